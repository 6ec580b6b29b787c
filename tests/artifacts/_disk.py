"""What the suites of the directory store share: words, and hands on the disk.

The hands are plain functions, since a test may block its loop for them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio

from coatcheck.artifacts.directory import DirectoryStore
from coatcheck.artifacts.meta import PutResult
from coatcheck.artifacts.port import ArtifactStore
from coatcheck.scope import Scope, scope_segments

SCOPE = Scope(tenant="tenant-5ecret", conversation="conversation-5ecret")
WORDS: dict[str, Any] = {"kind": "k", "media_type": "text/plain"}
DATA = b"payload"


def place(root: Path, ref: str, scope: Scope = SCOPE) -> Path:
    """Where an artifact lies, as the module says."""
    return root.joinpath(*scope_segments(scope), ref[4:6], ref)


async def put(store: ArtifactStore, data: bytes = DATA, scope: Scope = SCOPE, **words: Any) -> PutResult:
    return await store.put(scope, data, **{**WORDS, **words})


async def payload(store: ArtifactStore, ref: str, scope: Scope = SCOPE) -> bytes | None:
    artifact = await store.get(scope, ref)
    return None if artifact is None else artifact.data


def names_under(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if not path.is_relative_to(root / ".coatcheck-1")}


async def all_work_done(store: DirectoryStore) -> None:
    for _ in range(1000):
        if not store._workers._left_behind:
            return
        await anyio.sleep(0.005)
    raise AssertionError("what was given up never ended")


def present(path: Path) -> bool:
    return path.exists()


def contents(path: Path) -> set[str]:
    return {entry.name for entry in path.iterdir()}


def inode_of(path: Path) -> int:
    return path.stat().st_ino


def read_bytes(path: Path) -> bytes:
    return path.read_bytes()


def write_bytes(path: Path, data: bytes) -> None:
    path.write_bytes(data)
