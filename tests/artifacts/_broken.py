"""What the suites about the battery share: a store that every broken store is made of, and hands on a memory store."""

from __future__ import annotations

from collections.abc import AsyncIterable
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec

from coatcheck.artifacts.memory import MemoryStore
from coatcheck.artifacts.meta import Artifact, ArtifactMeta, Page, PutResult, Swept
from coatcheck.artifacts.port import DEFAULT_LIMIT, ArtifactReader, ArtifactStore
from coatcheck.scope import Scope


class Broken:
    """A store that keeps every law; each subclass breaks one."""

    def __init__(self, **options: Any) -> None:
        self.inner = MemoryStore(**options)

    async def put(self, scope: Scope, data: bytes, **words: Any) -> PutResult:
        return await self.inner.put(scope, data, **words)

    async def put_stream(self, scope: Scope, source: AsyncIterable[bytes], **words: Any) -> PutResult:
        return await self.inner.put_stream(scope, source, **words)

    async def head(self, scope: Scope, ref: str) -> ArtifactMeta | None:
        return await self.inner.head(scope, ref)

    async def get(self, scope: Scope, ref: str) -> Artifact | None:
        return await self.inner.get(scope, ref)

    def open(
        self, scope: Scope, ref: str, start: int = 0, end: int | None = None
    ) -> AbstractAsyncContextManager[ArtifactReader | None]:
        return self.inner.open(scope, ref, start, end)

    async def delete(self, scope: Scope, ref: str) -> None:
        await self.inner.delete(scope, ref)

    async def list(self, scope: Scope, *, cursor: str | None = None, limit: int = DEFAULT_LIMIT) -> Page:
        return await self.inner.list(scope, cursor=cursor, limit=limit)

    async def sweep(self, scope: Scope | None = None, *, dry_run: bool = False) -> tuple[Swept, ...]:
        return await self.inner.sweep(scope, dry_run=dry_run)

    async def __aenter__(self) -> Any:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None


def memory_of(store: ArtifactStore) -> MemoryStore:
    inner = store.inner if isinstance(store, Broken) else store
    assert isinstance(inner, MemoryStore)
    return inner


async def overwrite(store: ArtifactStore, scope: Scope, ref: str, data: bytes) -> None:
    entries = memory_of(store)._scopes[scope]
    entries[ref] = msgspec.structs.replace(entries[ref], data=data)


async def corrupt(store: ArtifactStore, scope: Scope, ref: str) -> None:
    await overwrite(store, scope, ref, memory_of(store)._scopes[scope][ref].data[::-1])


async def unlink(store: ArtifactStore, scope: Scope, ref: str) -> None:
    memory_of(store)._scopes[scope].drop(ref)


def reopen(store: ArtifactStore) -> ArtifactStore:
    """Another store object on the same data."""
    first = memory_of(store)
    second = MemoryStore(clock=first._clock)
    second._retention = first._retention
    second._scopes = first._scopes
    return second


HANDS: dict[str, Any] = {"corrupt": corrupt, "overwrite": overwrite, "unlink": unlink}
HOOKS: dict[str, Any] = {**HANDS, "reopen": reopen}
