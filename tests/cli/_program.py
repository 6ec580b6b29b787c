"""``coatcheck`` as a process of its own, and in this process; and a store to look at from outside."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import IO, Any, TypeVar

import msgspec
from typer.testing import CliRunner, Result

import coatcheck as cc
from coatcheck.cli.main import app
from coatcheck.cli.settings import chosen_store, default_scope, default_store_url

_T = TypeVar("_T")

COATCHECK = str(Path(sys.executable).with_name("coatcheck"))


class Program:
    """Runs the commands of one user.

    Args:
        environment: theirs.
    """

    def __init__(self, environment: dict[str, str]) -> None:
        self.environment = environment
        self.scope = default_scope()

    def __call__(self, *arguments: str, **environment: str) -> Result:
        """One command, in this process."""
        nobody = dict.fromkeys(["COATCHECK_STORE", "COATCHECK_SCOPE"])
        return CliRunner(env={**nobody, **self.environment, **environment}).invoke(app, arguments)

    def run(
        self, *arguments: str, stdin: IO[bytes] | int | bytes | None = subprocess.DEVNULL, timeout: float = 50
    ) -> subprocess.CompletedProcess[bytes]:
        """One command, as a process of its own."""
        given: dict[str, Any] = {"input": stdin} if isinstance(stdin, bytes) else {"stdin": stdin}
        return subprocess.run(
            [COATCHECK, *arguments], env=self.environment, capture_output=True, check=False, timeout=timeout, **given
        )

    def start(self, *arguments: str, **given: Any) -> subprocess.Popen[bytes]:
        """A process of its own that goes on while the test does."""
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen([COATCHECK, *arguments], env=self.environment, **{**streams, **given})

    @property
    def store(self) -> cc.ArtifactStore:
        """The user's default store."""
        return chosen_store(default_store_url(self.environment))

    def put(self, data: bytes, scope: cc.Scope | None = None, **words: Any) -> str:
        """Put an artifact into the user's default store and scope, and return its ref."""
        said = {"kind": "test/data", "media_type": "text/plain", **words}
        return wait_for(self.store.put(scope or self.scope, data, **said)).meta.ref

    def files(self) -> list[Path]:
        """The files of artifacts in the user's default store, whole or half written; none of the store's own."""
        root = Path(self.environment["XDG_DATA_HOME"]) / "coatcheck" / "store"
        files = [path for path in root.rglob("*") if path.is_file()]
        return [path for path in files if "art_" in str(path) or "/.new-" in str(path)]


def wait_for(work: Coroutine[Any, Any, _T]) -> _T:
    """What ``work`` returns, on a loop of its own."""
    return asyncio.run(work)


def objects(output: str | bytes) -> list[dict[str, Any]]:
    """The JSON objects that a command printed, one a line."""
    lines = output.encode() if isinstance(output, str) else output
    return [msgspec.json.decode(line, type=dict[str, Any]) for line in lines.splitlines()]
