"""What ``server.py`` measures: the agent server of ``deploy/server`` with tools of three sizes, or the same without the
boundary, where the same endpoint calls the function and writes its result. Run it as a process of its own; it prints
its URL, and ends when it is told to (SIGTERM).
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
from starlette.applications import Starlette

import coatcheck as cc
from coatcheck.service import Tokens, serve

PAYLOAD: dict[str, Any] = json.loads(Path(__file__).with_name("bench_payload.json").read_bytes())
KILOBYTE = len(msgspec.json.encode(PAYLOAD))
SIZES = {"small": 1, "medium": 64, "large": 1000}
"""The tools, and how many times 1 kB each returns."""
TOKEN = "bench-0123456789abcdef"
_numbers = count()


def loaded() -> ModuleType:
    """The server that is to be copied, as it is."""
    path = Path(__file__).parent.parent / "deploy" / "server" / "server.py"
    spec = importlib.util.spec_from_file_location("agent_server", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where its annotations are looked up
    spec.loader.exec_module(module)
    return module


def function(kilobytes: int) -> Callable[..., Any]:
    """A tool that is quick itself; no two of its results are the same."""
    rows = [PAYLOAD] * (kilobytes - 1)

    async def lookup(n: int) -> list[dict[str, Any]]:
        return [{**PAYLOAD, "number": next(_numbers)}, *rows]

    return lookup


FUNCTIONS = {name: function(size) for name, size in SIZES.items()}


def with_boundary(server: ModuleType, tokens: Tokens, folder: str, *, heard: bool = True) -> Starlette:
    boundary = cc.Boundary(
        [cc.tool(name=name, description="It is measured.")(each) for name, each in FUNCTIONS.items()],
        store=cc.DirectoryStore(folder, max_bytes=200 << 20),
        placement=cc.Placement(max_inline_chars=8_000),
        truncation=cc.Truncation(max_chars=20_000),
        secret="a secret of sixteen bytes or more",
        on_event=server.on_event if heard else None,
    )
    app: Starlette = server.agent_app(boundary, tokens)
    return app


def without(server: ModuleType, tokens: Tokens, folder: str) -> Starlette:
    """The same server, in which a call is the function's and nothing else."""

    async def called(name: str, call_id: str | None, given: dict[str, Any]) -> dict[str, Any]:
        result = await FUNCTIONS[name](**given)
        return {"outcome": {"tool": name, "call_id": call_id, "text": msgspec.json.encode(result).decode()}}

    class Agent(server.Agent):  # type: ignore[misc,name-defined]  # it is loaded, and not imported
        def call(self, scope: cc.Scope, body: bytes) -> Any:
            asked = server._decoded(body, server.CallRequest)
            return None, called(asked.name, asked.call_id, asked.arguments)

        async def done(self, carried: None, work: Any) -> Any:
            return await work

    server.Agent = Agent  # type: ignore[attr-defined]  # as above
    return with_boundary(server, tokens, folder)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=["heard", "quiet", "without"])
    parser.add_argument("--store", required=True)
    args = parser.parse_args()
    server, tokens = loaded(), Tokens({TOKEN: cc.Scope(tenant="acme", principal="dana", conversation="c-42")})
    if args.kind == "without":
        app = without(server, tokens, args.store)
    else:
        app = with_boundary(server, tokens, args.store, heard=args.kind == "heard")
    asyncio.run(serve(app, listening=lambda url: print(url, flush=True)))


if __name__ == "__main__":
    main()
