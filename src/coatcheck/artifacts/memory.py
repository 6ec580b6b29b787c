"""The store that keeps artifacts in this process: for tests, for a single server, and bounded always."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from io import BytesIO
from itertools import islice
from types import TracebackType
from typing import Self

import msgspec
from anyio.lowlevel import checkpoint

from coatcheck.artifacts.entries import PIECE_BYTES, Entries, Entry, EntryChunks
from coatcheck.artifacts.meta import (
    Artifact,
    ArtifactMeta,
    Clock,
    MediaType,
    Page,
    PutResult,
    PutWords,
    Swept,
    check_chunk,
    check_put,
    check_range,
    check_words,
    read_clock,
    utc_now,
)
from coatcheck.artifacts.paging import page_of
from coatcheck.artifacts.port import DEFAULT_LIMIT, ArtifactReader
from coatcheck.artifacts.ref import is_ref
from coatcheck.artifacts.retention import (
    Plan,
    Retention,
    fits,
    is_expired,
    later_expiry,
    plan_retention,
    resolve_expires_at,
    too_large,
)
from coatcheck.artifacts.workers import Workers
from coatcheck.errors import IntegrityError, InvalidArtifact, UnknownParent
from coatcheck.scope import Scope, check_scope
from coatcheck.settings import check_whole

__all__ = ["MemoryStore"]

_MIB = 1 << 20
_FEW_SCOPES = 16
_LOOKS = 4
# What a chunk of a stream counts for beside its bytes, so that many small ones, or empty ones, take turns too.
_CHUNK_COST = 1 << 12


class MemoryStore:
    """An `ArtifactStore` in memory. It needs no opening and no closing, and ends with the process.

    Every change is one step of the event loop it is used in, so no task ever sees half of one. Use it from
    one loop at a time.

    What is bounded is each scope, by its budgets; how many scopes there are is not. But where there are more than 16,
    every put looks at four artifacts, in turn, and drops those of other scopes that have expired, and scopes that
    are empty then. Nobody could read these, and no `PutResult` names them. So what has expired leaves faster than
    anything can come. Without a ttl and without ``expires_at`` nothing expires, and a scope stays until its artifacts
    are deleted.

    Args:
        ttl: how long an artifact resolves after its last put; ``None``: until a budget evicts it. A server with ever
            new conversations needs one.
        max_bytes: what the payloads of one scope may take together, in bytes. Memory is bounded always.
        max_count: how many artifacts one scope may hold.
        clock: what time it is, as an aware datetime.

    Raises:
        ConfigurationError: naming the dial that cannot be honoured.
    """

    def __init__(
        self,
        *,
        ttl: timedelta | None = None,
        max_bytes: int = 32 * _MIB,
        max_count: int = 256,
        clock: Clock = utc_now,
    ) -> None:
        self._retention = Retention(
            ttl=ttl, max_bytes=check_whole("max_bytes", max_bytes), max_count=check_whole("max_count", max_count)
        )
        self._clock = clock
        self._scopes: dict[Scope, Entries] = {}
        self._round: Iterator[tuple[Scope, str]] = iter(())
        self._workers = Workers()

    @property
    def retention(self) -> Retention:
        """How long, how much and how many, as it was set."""
        return self._retention

    async def put(
        self,
        scope: Scope,
        data: bytes,
        *,
        kind: str,
        media_type: str,
        label: str | None = None,
        expires_at: datetime | None = None,
        origin: Mapping[str, str] | None = None,
        parents: Sequence[str] = (),
    ) -> PutResult:
        """Store a payload; see `ArtifactStore.put`."""
        check_scope(scope)
        request = check_put(
            data,
            kind=kind,
            media_type=media_type,
            label=label,
            expires_at=expires_at,
            origin=origin,
            parents=parents,
            now=read_clock(self._clock),
        )
        return await self._store(scope, request.data, request.words)

    async def put_stream(
        self,
        scope: Scope,
        source: AsyncIterable[bytes],
        *,
        kind: str,
        media_type: MediaType,
        label: str | None = None,
        expires_at: datetime | None = None,
        origin: Mapping[str, str] | None = None,
        parents: Sequence[str] = (),
    ) -> PutResult:
        """Store a payload that is still being made; see `ArtifactStore.put_stream`.

        Until it ends, it is held beside what the scope's budget counts: as much as that whole budget, at most.
        """
        check_scope(scope)
        now = read_clock(self._clock)
        words = check_words(
            source,
            kind=kind,
            media_type=media_type,
            label=label,
            expires_at=expires_at,
            origin=origin,
            parents=parents,
            now=now,
        )
        self._check_parents(scope, words, now)
        return await self._store(scope, await self._collect(source), words)

    async def _collect(self, source: AsyncIterable[bytes]) -> bytes:
        """All of a stream, if a scope may hold so much. The other tasks have their turns, however fast it comes."""
        collected = BytesIO()
        index = 0
        work = 0  # since the other tasks had their last turn
        await checkpoint()
        async for chunk in source:
            size = memoryview(check_chunk(chunk, index)).nbytes
            self._check_room(collected.tell() + size)
            index += 1
            # A copy, since a producer may use its buffer again; and no view is kept, or it could not resize it.
            data = chunk if isinstance(chunk, bytes) else bytes(chunk)
            for start in range(0, max(size, 1), PIECE_BYTES):  # once for an empty chunk, too: it takes its turn
                collected.write(data[start : start + PIECE_BYTES])
                work += min(size, PIECE_BYTES) + _CHUNK_COST
                if work >= PIECE_BYTES:
                    work = 0
                    await checkpoint()
        return collected.getvalue()

    def _check_room(self, size: int) -> None:
        """Refuse a stream of which ``size`` bytes have come, where that is more than a scope may hold."""
        most = self._retention.max_bytes
        if most is not None and size > most:
            raise InvalidArtifact(f"source has {size} bytes or more, more than max_bytes={most} lets one scope hold")

    async def _store(self, scope: Scope, data: bytes, words: PutWords) -> PutResult:
        digest = await self._workers.digest(data)
        # Now, and not when the put was called: however long it had to wait, it has its whole life before it.
        now = read_clock(self._clock)
        result = self._put(scope, data, words, digest, now)
        self._look_around(scope, now)
        return result

    def _put(self, scope: Scope, data: bytes, words: PutWords, digest: str, now: datetime) -> PutResult:
        entries = self._scopes.get(scope) or Entries()
        self._check_parents(scope, words, now)
        meta = words.meta(digest, len(data), now, resolve_expires_at(words.expires_at, self._retention, now))
        entry = Entry(meta, data, now)
        found = self._find(scope, meta.ref, now)
        if found is not None:
            if found.meta.digest != digest:
                raise IntegrityError(meta.ref, digest, found.meta.digest)
            expires_at = later_expiry(found.meta.expires_at, meta.expires_at)
            meta = msgspec.structs.replace(found.meta, expires_at=expires_at)
            # The payload is kept as it was put now, in case the one that lies there is damaged.
            entry = Entry(meta, data, max(found.last_put, now))

        plan = self._plan(entries, meta, now)
        for gone in plan.swept:
            entries.drop(gone.ref)
        entries.keep(entry)
        self._scopes[scope] = entries
        return PutResult(_detached(entry.meta), found is None, plan.swept)

    def _check_parents(self, scope: Scope, words: PutWords, now: datetime) -> None:
        unknown = tuple(parent for parent in words.parents if self._find(scope, parent, now) is None)
        if unknown:
            raise UnknownParent(unknown)

    def _plan(self, entries: Entries, meta: ArtifactMeta, now: datetime) -> Plan:
        before = entries.get(meta.ref)
        count = len(entries) - (before is not None)
        total = entries.total - (before.meta.bytes if before is not None else 0)
        if fits(count, total, meta.bytes, self._retention):
            return Plan()
        others = [entry.row() for ref, entry in entries.items() if ref != meta.ref]
        plan = plan_retention(others, meta.bytes, self._retention, now)
        if plan.refused:
            raise too_large(meta.bytes, self._retention)
        return plan

    async def head(self, scope: Scope, ref: str) -> ArtifactMeta | None:
        """What is known of an artifact, or ``None``; see `ArtifactStore.head`."""
        check_scope(scope)
        await checkpoint()
        entry = self._find(scope, ref, read_clock(self._clock))
        return None if entry is None else _detached(entry.meta)

    async def get(self, scope: Scope, ref: str) -> Artifact | None:
        """An artifact with its verified payload, or ``None``; see `ArtifactStore.get`."""
        check_scope(scope)
        await checkpoint()
        entry = self._find(scope, ref, read_clock(self._clock))
        if entry is None:
            return None
        actual = await self._workers.digest(entry.data)
        if actual != entry.meta.digest:
            raise IntegrityError(entry.meta.ref, entry.meta.digest, actual)
        return Artifact(_detached(entry.meta), entry.data)

    @asynccontextmanager
    async def open(
        self, scope: Scope, ref: str, start: int = 0, end: int | None = None
    ) -> AsyncIterator[ArtifactReader | None]:
        """An artifact's payload, or a part of it, or ``None``; see `ArtifactStore.open`.

        What was opened is read to its end, whatever is put, deleted or evicted meanwhile.
        """
        check_scope(scope)
        check_range(start, end, 0)  # before it is looked for: what is no range is refused for every ref alike
        await checkpoint()
        entry = self._find(scope, ref, read_clock(self._clock))
        if entry is None:
            yield None
        else:
            first, last = check_range(start, end, entry.meta.bytes)
            yield ArtifactReader(_detached(entry.meta), first, last, EntryChunks(entry, first, last))

    async def delete(self, scope: Scope, ref: str) -> None:
        """Withdraw an artifact; see `ArtifactStore.delete`."""
        check_scope(scope)
        await checkpoint()
        self._drop(scope, [ref] if is_ref(ref) else [])

    async def list(self, scope: Scope, *, cursor: str | None = None, limit: int = DEFAULT_LIMIT) -> Page:
        """A page of a scope's artifacts, newest first; see `ArtifactStore.list`."""
        check_scope(scope)
        await checkpoint()
        now = read_clock(self._clock)
        entries = self._scopes.get(scope) or Entries()
        metas = [entry.meta for entry in entries.values() if not is_expired(entry.meta.expires_at, now)]
        page = page_of(metas, cursor, limit)
        return Page(tuple(_detached(meta) for meta in page.artifacts), page.cursor)

    async def sweep(self, scope: Scope | None = None, *, dry_run: bool = False) -> tuple[Swept, ...]:
        """Remove what has expired; see `ArtifactStore.sweep`. Memory has no crash leftovers."""
        chosen = None if scope is None else check_scope(scope)
        await checkpoint()
        now = read_clock(self._clock)
        swept: list[Swept] = []
        for each in [*self._scopes] if chosen is None else [chosen]:
            entries = self._scopes.get(each) or Entries()
            rows = [entry.row() for entry in entries.values()]
            expired = plan_retention(rows, 0, None, now).swept
            if not dry_run:
                self._drop(each, [gone.ref for gone in expired])
            swept.extend(expired)
        return tuple(swept)

    async def __aenter__(self) -> Self:
        """Nothing to open."""
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Nothing to close; what is stored stays."""

    def _find(self, scope: Scope, ref: str, now: datetime) -> Entry | None:
        """The entry that ``ref`` resolves to now."""
        entries = self._scopes.get(scope)
        entry = entries.get(ref) if entries is not None and is_ref(ref) else None
        return None if entry is None or is_expired(entry.meta.expires_at, now) else entry

    def _look_around(self, own: Scope, now: datetime) -> None:
        """Drop what has expired among the next few artifacts, but those of the scope that was put to.

        That one's put says what it removed.
        """
        if len(self._scopes) <= _FEW_SCOPES:
            return
        looked = 0
        for scope, ref in islice(self._round, _LOOKS):
            looked += 1
            entry = self._scopes.get(scope, Entries()).get(ref)
            if scope != own and entry is not None and is_expired(entry.meta.expires_at, now):
                self._drop(scope, [ref])
        if looked < _LOOKS:
            self._round = self._go_round()

    def _go_round(self) -> Iterator[tuple[Scope, str]]:
        """Every artifact that is there, once, while others come and go."""
        for scope in [*self._scopes]:
            for ref in [*self._scopes.get(scope, ())]:
                yield scope, ref

    def _drop(self, scope: Scope, refs: Iterable[str]) -> None:
        entries = self._scopes.get(scope)
        if entries is None:
            return
        for ref in refs:
            entries.drop(ref)
        if not entries:
            del self._scopes[scope]


def _detached(meta: ArtifactMeta) -> ArtifactMeta:
    """``meta`` for a caller, who may change the one field that can be changed."""
    return meta if meta.origin is None else msgspec.structs.replace(meta, origin=dict(meta.origin))
