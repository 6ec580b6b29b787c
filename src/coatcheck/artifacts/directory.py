"""The embedded store: artifacts in a directory, for any number of processes at once.

What lies where, and why nothing acknowledged is lost, is in `coatcheck.artifacts.root`.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import msgspec

from coatcheck.artifacts.files import Entry, Record, ScopeDirectory, Segments
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
from coatcheck.artifacts.root import Root
from coatcheck.artifacts.workers import Job, Turns, Workers
from coatcheck.errors import ConfigurationError, IntegrityError, StoreUnavailable, UnknownParent
from coatcheck.scope import Scope, scope_segments

__all__ = ["DirectoryStore"]

_T = TypeVar("_T")


class DirectoryStore:
    """An `ArtifactStore` in a directory. POSIX only.

    It is opened by ``async with``, or by its first use, which makes the directory with mode 0700 where it is
    missing. A directory that vanishes later is an error, and is not made again. All its work is done in worker
    threads, so a disk that hangs does not hold up a caller that gives up: what a cancelled put left in a thread
    either still succeeds, which is harmless, or is never seen.

    Args:
        path: the directory. Its parents are made with it. A relative one means where the process is at the opening.
        ttl: how long an artifact resolves after its last put; ``None``: until it is deleted or evicted.
        max_bytes: what the payloads of one scope may take together, in bytes; ``None`` is no limit.
        max_count: how many artifacts one scope may hold; ``None`` is no limit.
        fsync: flush every change to the disk before it counts. Without it an acknowledged artifact survives
            the death of every process, but perhaps not a loss of power.
        clock: what time it is, as an aware datetime. It is asked in worker threads, too.

    Raises:
        ConfigurationError: naming the setting that cannot be honoured.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        ttl: timedelta | None = None,
        max_bytes: int | None = None,
        max_count: int | None = None,
        fsync: bool = False,
        clock: Clock = utc_now,
    ) -> None:
        if not isinstance(fsync, bool):
            raise ConfigurationError(f"fsync must be True or False, not {fsync!r:.80}")
        self._retention = Retention(ttl=ttl, max_bytes=max_bytes, max_count=max_count)
        self._root = Root(_checked(path), fsync=fsync)
        self._created = False
        self._clock = clock
        self._workers = Workers()
        self._turns = Turns()

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
        segments = scope_segments(scope)
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
        # One at a time, as the lock would have it anyway: no threads pile up at the lock, and of many puts of one
        # payload only the first writes it.
        async with self._turns.of(segments):
            return await self._run("store an artifact", lambda job: self._put(job, segments, request, digest))

    def _put(self, job: Job, segments: Segments, request: PutRequest, digest: str) -> PutResult:
        with self._root.locked(segments, job.check) as scope:
            # Now, and not when the put was called: however long it had to wait, it has its whole life before it.
            now = read_clock(self._clock)
            meta = request.meta(digest, now, resolve_expires_at(request.expires_at, self._retention, now))
            unknown = tuple(ref for ref in request.parents if _live(scope.find(ref), now) is None)
            if unknown:
                raise UnknownParent(unknown)

            record = Record(meta, last_put=now)
            found = _found(scope, meta, now)
            if found is not None:
                record = _refreshed(found, record)
            plan = self._plan(scope, meta, now)

            if found is not None:
                job.check()
                scope.rewrite(record)
            else:
                with scope.staged(record, request.data) as staged:
                    job.check()
                    scope.publish(staged, meta.ref)
            # Last, so that a crash before it leaves too much, which the next put removes, and never too little.
            for gone in plan.swept:
                scope.remove(gone.ref)
        return PutResult(record.meta, found is None, plan.swept)

    def _plan(self, scope: ScopeDirectory, meta: ArtifactMeta, now: datetime) -> Plan:
        if self._retention.max_bytes is None and self._retention.max_count is None:
            return Plan()
        others = [entry.row() for entry in scope.entries() if entry.ref != meta.ref]
        if fits(len(others), sum(row.bytes for row in others), meta.bytes, self._retention):
            return Plan()
        plan = plan_retention(others, meta.bytes, self._retention, now)
        if plan.refused:
            raise too_large(meta.bytes, self._retention)
        return plan

    async def head(self, scope: Scope, ref: str) -> ArtifactMeta | None:
        """What is known of an artifact, or ``None``; see `ArtifactStore.head`.

        Raises:
            IntegrityError: its ``meta.json`` is damaged.
        """
        now = read_clock(self._clock)
        segments = scope_segments(scope)

        def look(job: Job) -> ArtifactMeta | None:
            with self._root.scope(segments) as directory:
                return _visible(directory.find(ref), now)

        return await self._run("look for an artifact", look)

    async def get(self, scope: Scope, ref: str) -> Artifact | None:
        """An artifact with its verified payload, or ``None``; see `ArtifactStore.get`."""
        now = read_clock(self._clock)
        segments = scope_segments(scope)

        def read(job: Job) -> Artifact | None:
            with self._root.scope(segments) as directory:
                meta = _visible(directory.find(ref), now)
                data = None if meta is None else directory.payload(meta)
                return None if meta is None or data is None else Artifact(meta, data)

        return await self._run("read an artifact", read)

    async def delete(self, scope: Scope, ref: str) -> None:
        """Withdraw an artifact; see `ArtifactStore.delete`."""
        segments = scope_segments(scope)

        def withdraw(job: Job) -> None:
            with self._root.locked(segments, job.check) as directory:
                directory.remove(ref)

        async with self._turns.of(segments):
            await self._run("delete an artifact", withdraw)

    async def list(self, scope: Scope, *, cursor: str | None = None, limit: int = DEFAULT_LIMIT) -> Page:
        """A page of a scope's artifacts, newest first; see `ArtifactStore.list`. A damaged one is left out."""
        now = read_clock(self._clock)
        segments = scope_segments(scope)

        def read(job: Job) -> Page:
            with self._root.scope(segments) as directory:
                metas = [meta for entry in directory.entries() if (meta := _live(entry, now)) is not None]
                return page_of(metas, cursor, limit)

        return await self._run("list artifacts", read)

    async def sweep(self, scope: Scope | None = None, *, dry_run: bool = False) -> tuple[Swept, ...]:
        """Remove what has expired and what a crash left; see `ArtifactStore.sweep`.

        What cannot be read by anyone any more, for want of a payload or of a readable ``meta.json``, is an orphan too.

        Raises:
            StoreUnavailable: some of it could not be swept; the rest was.
        """
        now = read_clock(self._clock)
        segments = None if scope is None else scope_segments(scope)

        def sweep(job: Job) -> tuple[Swept, ...]:
            swept: list[Swept] = []
            failed: OSError | None = None
            for each in self._root.scopes() if segments is None else [segments]:
                try:
                    swept += self._sweep(job, each, now, dry_run=dry_run)
                except OSError as error:
                    failed = error
            if failed is not None:
                raise failed
            return tuple(swept)

        return await self._run("sweep", sweep)

    def _sweep(self, job: Job, segments: Segments, now: datetime, *, dry_run: bool) -> Sequence[Swept]:
        swept: list[Swept] = []
        with self._root.locked(segments, job.check) as scope:
            for name, size in scope.leftovers():
                swept.append(Swept("", "", size, "orphan"))
                if not dry_run:
                    scope.clear(name)
            for entry in sorted(scope.entries(), key=lambda entry: entry.ref):
                if entry.meta is not None and not is_expired(entry.meta.expires_at, now):
                    continue
                row = entry.row()
                swept.append(Swept(row.ref, row.kind, row.bytes, "ttl" if entry.meta is not None else "orphan"))
                if not dry_run:
                    scope.remove(entry.ref)
            if not dry_run:
                scope.prune()
                self._root.prune(segments)
        return swept

    async def __aenter__(self) -> Self:
        """Make the directory, or see that it is a store.

        Raises:
            StoreUnavailable: it can be neither.
        """

        def look(job: Job) -> None:
            with self._root.opened():
                pass

        await self._run("be opened", look)
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Nothing to close: between two operations the store holds nothing open."""

    async def _run(self, task: str, work: Callable[[Job], _T]) -> _T:
        """Do ``work`` in a thread. This is the one edge where errors of the system become the store's own."""

        def attempt(job: Job) -> _T:
            try:
                if not self._created:
                    self._root.create()
                    self._created = True
                return work(job)
            except StoreUnavailable:
                raise
            except OSError as error:
                raise self._unavailable(task, error) from None

        return await self._workers.run(attempt)

    def _unavailable(self, task: str, error: OSError) -> StoreUnavailable:
        # Neither the error's own text nor the error itself goes on: they hold names of tenants and principals.
        code = errno.errorcode.get(error.errno or 0, "unknown")
        return StoreUnavailable(f"the store in {self._root.path} cannot {task}: {error.strerror} ({code})")


def _checked(path: str | os.PathLike[str]) -> Path:
    try:
        text = os.fspath(path)
    except TypeError:
        text = ""
    if isinstance(text, str) and "://" in text:
        raise ConfigurationError("path must name a directory; a URL goes to open_store, or to Boundary(store=...)")
    if not isinstance(text, str) or not text or "\0" in text:
        raise ConfigurationError(f"path must name a directory, not {path!r:.80}")
    return Path(text)


def _visible(entry: Entry | None, now: datetime) -> ArtifactMeta | None:
    """What a reader may know of what was found.

    Raises:
        IntegrityError: it is damaged.
    """
    if entry is not None and entry.problem is not None:
        raise IntegrityError(entry.ref, "an artifact as it was put", entry.problem)
    return _live(entry, now)


def _live(entry: Entry | None, now: datetime) -> ArtifactMeta | None:
    """The meta of an artifact that is whole and has not expired."""
    meta = entry.meta if entry is not None else None
    return None if meta is None or is_expired(meta.expires_at, now) else meta


def _found(scope: ScopeDirectory, meta: ArtifactMeta, now: datetime) -> Record | None:
    """What is known of the artifact that a put brings, where it is there, lives, and can be read.

    That takes a reading of the payload, about as long as hashing the one that is put: else a payload that was
    damaged in its place, as by a loss of power, would stay what it is whatever is put.
    """
    entry = scope.find(meta.ref)
    if entry is None or entry.record is None or entry.size != meta.bytes or _live(entry, now) is None:
        return None
    return entry.record if scope.holds(entry.record.meta) else None


def _refreshed(found: Record, put: Record) -> Record:
    """What is there, after its content was put again.

    Raises:
        IntegrityError: it is another content.
    """
    if found.meta.digest != put.meta.digest:
        raise IntegrityError(put.meta.ref, put.meta.digest, found.meta.digest)
    expires_at = later_expiry(found.meta.expires_at, put.meta.expires_at)
    # The clock of another process may be ahead of this one's.
    return Record(msgspec.structs.replace(found.meta, expires_at=expires_at), max(found.last_put, put.last_put))
