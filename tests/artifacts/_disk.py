"""What the suites of the directory store share: words, and hands on the disk.

The hands are plain functions, since a test may block its loop for them.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel

from coatcheck.artifacts.directory import DirectoryStore
from coatcheck.artifacts.meta import PutResult
from coatcheck.artifacts.port import ArtifactStore
from coatcheck.scope import Scope, scope_segments

SCOPE = Scope(tenant="tenant-5ecret", conversation="conversation-5ecret")
WORDS: dict[str, Any] = {"kind": "k", "media_type": "text/plain"}
DATA = b"payload"
INDEX_FILES = {".index", ".index-journal"}


def place(root: Path, ref: str, scope: Scope = SCOPE) -> Path:
    """Where an artifact lies, as the module says."""
    return root.joinpath(*scope_segments(scope), ref[4:6], ref)


async def put(store: ArtifactStore, data: bytes = DATA, scope: Scope = SCOPE, **words: Any) -> PutResult:
    return await store.put(scope, data, **{**WORDS, **words})


class Chunks:
    """A source of the chunks given, which tells how often it was asked."""

    def __init__(self, *chunks: Any, fail: Exception | None = None) -> None:
        self._chunks = iter(chunks)
        self._fail = fail
        self.asked = 0

    def __aiter__(self) -> Chunks:
        return self

    async def __anext__(self) -> bytes:
        self.asked += 1
        await anyio.lowlevel.checkpoint()
        for chunk in self._chunks:
            found: bytes = chunk
            return found
        if self._fail is not None:
            raise self._fail
        raise StopAsyncIteration


async def stream(store: ArtifactStore, *chunks: Any, scope: Scope = SCOPE, **words: Any) -> PutResult:
    return await store.put_stream(scope, Chunks(*chunks), **{**WORDS, **words})


async def read(store: ArtifactStore, ref: str, start: int = 0, end: int | None = None) -> bytes | None:
    async with store.open(SCOPE, ref, start, end) as reader:
        return None if reader is None else await reader.read()


async def payload(store: ArtifactStore, ref: str, scope: Scope = SCOPE) -> bytes | None:
    artifact = await store.get(scope, ref)
    return None if artifact is None else artifact.data


def names_under(root: Path) -> set[str]:
    """Everything below a root but locks and indexes."""
    below = (path for path in root.rglob("*") if not path.is_relative_to(root / ".coatcheck-1"))
    return {str(path.relative_to(root)) for path in below if path.name not in INDEX_FILES}


async def all_work_done(store: DirectoryStore) -> None:
    for _ in range(1000):
        if not store._workers._left_behind:
            return
        await anyio.sleep(0.005)
    raise AssertionError("what was given up never ended")


def index_of(root: Path, scope: Scope = SCOPE) -> Path:
    return root.joinpath(*scope_segments(scope), ".index")


def totals(root: Path, scope: Scope = SCOPE) -> tuple[int, int]:
    """How many artifacts the index counts, and what they take."""
    database = sqlite3.connect(f"file:{index_of(root, scope)}?mode=ro", uri=True)
    try:
        found: tuple[int, int] = database.execute("SELECT count, bytes FROM totals").fetchone()
        rows = database.execute("SELECT count(*), coalesce(sum(bytes), 0) FROM artifacts").fetchone()
    finally:
        database.close()
    assert found == rows
    return found


def open_files() -> int:
    """How many descriptors this process holds."""
    return len(os.listdir("/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"))


def present(path: Path) -> bool:
    return path.exists()


def contents(path: Path) -> set[str]:
    """The names in a directory, but those of an index."""
    return {entry.name for entry in path.iterdir()} - INDEX_FILES


def inode_of(path: Path) -> int:
    return path.stat().st_ino


def read_bytes(path: Path) -> bytes:
    return path.read_bytes()


def write_bytes(path: Path, data: bytes) -> None:
    path.write_bytes(data)
