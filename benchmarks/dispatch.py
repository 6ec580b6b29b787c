"""What does one call through the whole chain cost, beside its parts, its variants and its peers?

A row that says "chain" has a ceiling, a placement and a truncation configured, and its result, a dict that takes
1 kB as JSON, is under all three limits: that is what every call pays. The rows take turns, many times, so that a
busy moment of the machine hits them alike, and the garbage collector runs as it always does. What is measured is
the CPU time of the process, threads included. Every outcome is checked to be what its row says.

The last rows are about wire bytes: 10 MB of rows as `Encoded`, through the chain to its status, beside decoding them.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import msgspec
from _table import Cell, arguments, report

import coatcheck as cc

PAYLOAD: dict[str, Any] = json.loads(Path(__file__).with_name("bench_payload.json").read_bytes())
TEXT = msgspec.json.encode(PAYLOAD).decode()
SLOT_SECONDS = 0.002
CEILING = cc.Ceiling(max_chars=100_000)
SCOPE = cc.Scope(tenant="acme", principal="dana", conversation="c-42")

Loop = Callable[[int], Awaitable[None]]


class Row:
    """One line of the table: something to do a number of times.

    Args:
        name: what it is. loop: does it so many times.
        beside: the row that it is measured against, which takes turns with it; itself where it is a yardstick.
        at_most: what its ratio is held to, or ``None``.
    """

    def __init__(self, name: str, loop: Loop, beside: Row | None = None, at_most: float | None = None) -> None:
        self.name = name
        self.loop = loop
        self.beside = beside or self
        self.at_most = at_most
        self.calls = 1
        self.spent: list[float] = []

    async def run(self, calls: int) -> float:
        """CPU seconds of one of ``calls`` calls."""
        began = time.process_time()
        await self.loop(calls)
        return (time.process_time() - began) / calls


async def measure(rows: Sequence[Row], rounds: int) -> None:
    """Let the rows take turns, each with as many calls as fit into its slot."""
    for row in rows:
        await row.run(3)  # imports, caches, the first growth of everything
        row.calls = max(1, min(500, int(SLOT_SECONDS / max(await row.run(3), 1e-6))))
    for _ in range(rounds):
        for row in rows:
            row.spent.append(await row.run(row.calls))


def cells(rows: Sequence[Row]) -> list[list[Cell]]:
    return [
        [
            row.name,
            statistics.median(row.spent) * 1e6,
            min(row.spent) * 1e6,
            statistics.median(mine / its for mine, its in zip(row.spent, row.beside.spent, strict=True)),
            min(row.spent) / min(row.beside.spent),
            row.at_most,
            row.beside.name,
        ]
        for row in rows
    ]


# --- what the chain is made of ---


async def lookup() -> dict[str, Any]:
    return PAYLOAD


def repeated(function: Callable[[Any], object], value: object) -> Loop:
    async def loop(calls: int) -> None:
        for _ in range(calls):
            function(value)

    return loop


def yardstick() -> Row:
    return Row("json.dumps of the payload", repeated(json.dumps, PAYLOAD))


async def bare(calls: int) -> None:
    for _ in range(calls):
        await lookup()


# --- the chain ---


class Before(cc.Rule):
    def before_tool(self, call: cc.ToolCall) -> cc.Allow:
        return cc.allow()


class After(cc.Rule):
    def after_tool(self, call: cc.ToolCall, result: cc.Result) -> cc.Allow:
        return cc.allow()


class AsyncBefore(cc.Rule):
    async def before_tool(self, call: cc.ToolCall) -> cc.Allow:
        return cc.allow()


class AsyncAfter(cc.Rule):
    async def after_tool(self, call: cc.ToolCall, result: cc.Result) -> cc.Allow:
        return cc.allow()


class ThreadBefore(Before):
    thread = True


class ThreadAfter(After):
    thread = True


RULES = (Before(), Before(), After(), After())
ASYNC_RULES = (AsyncBefore(), AsyncBefore(), AsyncAfter(), AsyncAfter())
THREAD_RULES = (ThreadBefore(), ThreadBefore(), ThreadAfter(), ThreadAfter())


def limits(max_chars: int = 8_000) -> dict[str, Any]:
    """The operator's two limits, and the store that one of them needs."""
    return {
        "store": cc.MemoryStore(max_bytes=1 << 26),
        "placement": cc.Placement(max_inline_chars=max_chars),
        "truncation": cc.Truncation(max_chars=max_chars + 12_000),
    }


def through(boundary: cc.Boundary, given: dict[str, Any] | None = None) -> Loop:
    """Calls of the only tool of ``boundary``, whose result is the payload."""
    session = boundary.session(SCOPE)
    (name,) = boundary.tools
    decisions = len(boundary.rules.names)
    call_arguments = given or {}

    async def loop(calls: int) -> None:
        call = session.call
        outcome: cc.Outcome | None = None
        for _ in range(calls):
            outcome = await call(name, call_arguments, call_id="call_7")
            if type(outcome) is not cc.Inline:
                raise AssertionError(f"{name}: {outcome!r:.200}")
        assert outcome is not None
        assert outcome.text == TEXT
        assert len(outcome.decisions) == decisions

    return loop


def our_rows() -> list[Row]:
    async def search(region: str, limit: int = 10) -> dict[str, Any]:
        return PAYLOAD

    async def read() -> str:
        return TEXT

    def blocking() -> dict[str, Any]:
        return PAYLOAD

    def chain(function: Callable[..., Any], rules: Sequence[cc.Rule] = (), **settings: Any) -> cc.Boundary:
        settings = {"repeated_call_note": False, **settings}  # every call of a row is the same one
        return cc.Boundary([cc.tool(ceiling=CEILING)(function)], rules=rules, **limits(), **settings)

    patient = cc.Boundary([cc.tool(ceiling=CEILING, timeout=30)(lookup)], repeated_call_note=False, **limits())
    heard: list[object] = []
    two = {"region": "eu", "limit": 5}
    dumps = yardstick()
    return [
        dumps,
        Row("msgspec.json.encode of the payload", repeated(msgspec.json.encode, PAYLOAD), dumps),
        Row("await of the tool", bare, dumps),
        Row("chain, no rules", through(chain(lookup)), dumps, at_most=0.42),
        Row("chain, 2 + 2 rules", through(chain(lookup, RULES)), dumps, at_most=0.50),
        Row("nothing configured", through(cc.Boundary([lookup], repeated_call_note=False)), dumps),
        Row("chain, no rules, 2 arguments", through(chain(search), two), dumps),
        Row("chain, 2 + 2 rules, 2 arguments", through(chain(search, RULES), two), dumps),
        Row("chain, 2 arguments, repeated-call note", through(chain(search, repeated_call_note=True), two), dumps),
        Row("chain, 2 + 2 async rules", through(chain(lookup, ASYNC_RULES)), dumps),
        Row("chain, 2 + 2 rules in threads", through(chain(lookup, THREAD_RULES)), dumps),
        Row("chain, tool with a timeout", through(patient), dumps),
        Row("chain, event listener", listening(through(chain(lookup, on_event=heard.append)), heard), dumps),
        Row("chain, the same as text", through(chain(read)), dumps),
        Row("chain, sync tool in a thread", through(chain(blocking)), dumps),
    ]


def listening(loop: Loop, heard: list[object]) -> Loop:
    """``loop``, and two events a call are heard."""

    async def listened(calls: int) -> None:
        heard.clear()
        await loop(calls)
        assert len(heard) == 2 * calls

    return listened


# --- the peers, where they are installed ---


def fastmcp_rows(dumps: Row) -> list[Row]:
    from fastmcp import FastMCP
    from fastmcp.server.middleware import Middleware

    class Pass(Middleware):  # type: ignore[misc]  # untyped where it is not installed
        async def on_call_tool(self, context: Any, call_next: Any) -> Any:
            return await call_next(context)

    def served(server: Any) -> Loop:
        server.tool(lookup)

        async def loop(calls: int) -> None:
            for _ in range(calls):
                result = await server.call_tool("lookup", {})
                if result.structured_content != PAYLOAD or result.content[0].text != TEXT:
                    raise AssertionError(f"fastmcp: {result!r:.200}")

        return loop

    return [
        Row("FastMCP, server.call_tool", served(FastMCP("bench")), dumps),
        Row("FastMCP, the same with 2 middlewares", served(FastMCP("bench", middleware=[Pass(), Pass()])), dumps),
    ]


def pydantic_ai_rows(dumps: Row) -> list[Row]:
    from pydantic_ai import FunctionToolset, RunContext
    from pydantic_ai.messages import ToolCallPart, ToolReturnPart
    from pydantic_ai.models.test import TestModel
    from pydantic_ai.tool_manager import ToolManager
    from pydantic_ai.usage import RunUsage

    context = RunContext(deps=None, model=TestModel(), usage=RunUsage())  # the model is never asked
    step = ToolManager(toolset=FunctionToolset([lookup]))

    async def loop(calls: int) -> None:
        manager = await step.for_run_step(context)  # once a step of an agent, so not for every call
        for _ in range(calls):
            value = await manager.handle_call(ToolCallPart("lookup", {}, "call_7"))
            text = ToolReturnPart("lookup", value, "call_7").model_response_str()
            if text != TEXT:
                raise AssertionError(f"pydantic-ai: {text:.200}")

    return [Row("pydantic-ai, ToolManager.handle_call and its text", loop, dumps)]


PEERS: dict[str, Callable[[Row], list[Row]]] = {"fastmcp": fastmcp_rows, "pydantic_ai": pydantic_ai_rows}


# --- wire bytes ---


def encoded_rows(megabytes: int) -> list[Row]:
    """Rows as a list, as an object, and as an envelope with a status, under the limits; and the envelope over them."""
    rows = [
        {"id": 1000 + i, "name": f"row-{i}-abcdefghij", "ok": i % 2 == 0, "score": i * 1.25}
        for i in range(megabytes * 14_100)
    ]
    forms: dict[str, tuple[object, str | None]] = {
        "list": (rows, None),
        "object": ({"rows": rows, "total": len(rows)}, None),
        "envelope": ({"content": rows, "effects": [], "status": "partial"}, "partial"),
    }
    made: list[Row] = []
    for form, (value, status) in forms.items():
        raw = msgspec.json.encode(value)
        size = f"{len(raw) / 1e6:.1f} MB"
        decoding = Row(f"msgspec.json.decode of the {form}", repeated(msgspec.json.decode, raw))
        made.append(decoding)
        inline = wire(raw, status, cc.Inline, len(raw))
        made.append(Row(f"Encoded {form} of {size}, chain to its status", inline, decoding, at_most=0.25))
        if status is not None:
            placed = wire(raw, status, cc.Placed, 8_000)
            made.append(Row(f"Encoded {form} of {size}, chain to its status and placed", placed, decoding))
    return made


def wire(raw: bytes, status: str | None, expected: type[cc.Outcome], max_chars: int) -> Loop:
    @cc.tool(ceiling=cc.Ceiling(max_chars=len(raw)))
    async def fetch() -> cc.Encoded:
        return cc.Encoded(raw)

    store = cc.MemoryStore(max_bytes=1 << 26)
    boundary = cc.Boundary([fetch], **{**limits(max_chars), "store": store})
    session = boundary.session(SCOPE)

    async def loop(calls: int) -> None:
        for _ in range(calls):
            outcome = await session.call("fetch", {}, call_id="call_7")
            if type(outcome) is not expected or outcome.status != status:
                raise AssertionError(f"fetch: {type(outcome)} {outcome.status}")
            if isinstance(outcome, cc.Placed):  # so that the next one is stored again
                await store.delete(SCOPE, outcome.ticket.ref)

    return loop


async def run(args: argparse.Namespace) -> tuple[list[Row], list[str]]:
    ours = our_rows()
    await measure(ours, args.rounds)
    large = encoded_rows(args.encoded_mb)
    await measure(large, args.encoded_rounds)
    # Last, with a yardstick of their own: what they import and leave to the garbage collector is theirs alone.
    installed = [package for package in PEERS if importlib.util.find_spec(package) is not None]
    peers: list[Row] = []
    if installed:
        peers.append(yardstick())
        for package in installed:
            peers += PEERS[package](peers[0])
        await measure(peers, args.rounds)
    return ours + peers + large, [package for package in PEERS if package not in installed]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=300, help="turns of each row")
    parser.add_argument("--encoded-rounds", type=int, default=15, help="turns of each row about wire bytes")
    parser.add_argument("--encoded-mb", type=int, default=10, help="how large the wire bytes are, in MB")
    parser.add_argument("--quick", action="store_true", help="a few turns: whether it runs, not what it costs")
    args = parser.parse_args()
    if args.quick:
        args.rounds, args.encoded_rounds, args.encoded_mb = 3, 1, 1

    rows, absent = anyio.run(run, args)
    note = (
        f"CPU time of one call; {args.rounds} turns of each row, {args.encoded_rounds} where it is about wire bytes.\n"
        "The ratio is the median of the ratios of each turn; then the ratio of the two minima, and what it is held to."
    )
    if absent:
        note += f"\nNot installed, and left out: {', '.join(absent)}."
    columns = ["call", "us median", "us min", "ratio", "ratio of min", "at most", "beside"]
    report("Dispatch of one tool call", columns, cells(rows), args, note=note)


if __name__ == "__main__":
    main()
