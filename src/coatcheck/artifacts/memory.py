"""The store that keeps artifacts in this process: for tests, for a single server, and bounded always."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import islice
from types import TracebackType
from typing import Self

import msgspec
from anyio.lowlevel import checkpoint

from coatcheck.artifacts.meta import (
    Artifact,
    ArtifactMeta,
    Clock,
    Page,
    PutRequest,
    PutResult,
    Swept,
    check_put,
    read_clock,
    utc_now,
)
from coatcheck.artifacts.paging import page_of
from coatcheck.artifacts.port import DEFAULT_LIMIT
from coatcheck.artifacts.ref import is_ref
from coatcheck.artifacts.retention import (
    Plan,
    Retention,
    Row,
    fits,
    is_expired,
    later_expiry,
    plan_retention,
    resolve_expires_at,
    too_large,
)
from coatcheck.artifacts.workers import Workers
from coatcheck.errors import IntegrityError, UnknownParent
from coatcheck.scope import Scope, check_scope
from coatcheck.settings import check_whole

__all__ = ["MemoryStore"]

_MIB = 1 << 20
_FEW_SCOPES = 16
_LOOKS = 4


class _Entry(msgspec.Struct, frozen=True):
    meta: ArtifactMeta
    data: bytes
    last_put: datetime

    def row(self) -> Row:
        return Row(self.meta.ref, self.meta.kind, self.meta.bytes, self.last_put, self.meta.expires_at)


class _Entries(dict[str, _Entry]):
    """One scope's artifacts by ref, and what their payloads take together."""

    total = 0

    def keep(self, entry: _Entry) -> None:
        self.drop(entry.meta.ref)
        self[entry.meta.ref] = entry
        self.total += entry.meta.bytes

    def drop(self, ref: str) -> None:
        entry = self.pop(ref, None)
        if entry is not None:
            self.total -= entry.meta.bytes


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
        self._scopes: dict[Scope, _Entries] = {}
        self._round: Iterator[tuple[Scope, str]] = iter(())
        self._workers = Workers()

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
        digest = await self._workers.digest(request.data)
        # Now, and not when the put was called: however long it had to wait, it has its whole life before it.
        now = read_clock(self._clock)
        result = self._put(scope, request, digest, now)
        self._look_around(scope, now)
        return result

    def _put(self, scope: Scope, request: PutRequest, digest: str, now: datetime) -> PutResult:
        entries = self._scopes.get(scope) or _Entries()
        unknown = tuple(parent for parent in request.parents if self._find(scope, parent, now) is None)
        if unknown:
            raise UnknownParent(unknown)

        meta = request.meta(digest, now, resolve_expires_at(request.expires_at, self._retention, now))
        entry = _Entry(meta, request.data, now)
        found = self._find(scope, meta.ref, now)
        if found is not None:
            if found.meta.digest != digest:
                raise IntegrityError(meta.ref, digest, found.meta.digest)
            expires_at = later_expiry(found.meta.expires_at, meta.expires_at)
            meta = msgspec.structs.replace(found.meta, expires_at=expires_at)
            # The payload is kept as it was put now, in case the one that lies there is damaged.
            entry = _Entry(meta, request.data, max(found.last_put, now))

        plan = self._plan(entries, meta, now)
        for gone in plan.swept:
            entries.drop(gone.ref)
        entries.keep(entry)
        self._scopes[scope] = entries
        return PutResult(_detached(entry.meta), found is None, plan.swept)

    def _plan(self, entries: _Entries, meta: ArtifactMeta, now: datetime) -> Plan:
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
        entries = self._scopes.get(scope) or _Entries()
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
            entries = self._scopes.get(each) or _Entries()
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

    def _find(self, scope: Scope, ref: str, now: datetime) -> _Entry | None:
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
            entry = self._scopes.get(scope, _Entries()).get(ref)
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
