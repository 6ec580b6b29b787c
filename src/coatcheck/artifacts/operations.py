"""What the directory store does in its worker threads, verb by verb. Everything here blocks.

Each change of a scope goes the same way, under the scope's lock: look, plan, note it in the index, and only then touch
what others can see. Before that it asks `Job.check`, so that what nobody waits for any more does nothing.
"""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import datetime

import msgspec

from coatcheck.artifacts.database import INDEX_FILES, Unusable, drop
from coatcheck.artifacts.files import ScopeDirectory, Segments
from coatcheck.artifacts.index import Index
from coatcheck.artifacts.meta import (
    Artifact,
    ArtifactMeta,
    Clock,
    Page,
    PutRequest,
    PutResult,
    PutWords,
    Swept,
    read_clock,
)
from coatcheck.artifacts.paging import page_of
from coatcheck.artifacts.records import Entry, Record
from coatcheck.artifacts.ref import is_ref
from coatcheck.artifacts.retention import Plan, Retention, is_expired, later_expiry, resolve_expires_at
from coatcheck.artifacts.root import Root
from coatcheck.artifacts.staging import Held, Staging
from coatcheck.artifacts.workers import Job
from coatcheck.errors import IntegrityError, UnknownParent

__all__ = ["Operations"]

_AT_ONCE = 1000  # artifacts that a sweep looks at before it lets others have the lock
_BREATH = 0.015  # seconds for which it does; whoever waits for the lock looks every 10 milliseconds


class Operations:
    """One store's work.

    Args:
        root: its directory.
        retention: its dials.
        clock: its time.
    """

    def __init__(self, root: Root, retention: Retention, clock: Clock) -> None:
        self._root = root
        self._retention = retention
        self._clock = clock

    def put(self, job: Job, segments: Segments, request: PutRequest, digest: str) -> PutResult:
        """Store a payload that is at hand."""
        with self._root.locked(segments, job.check) as scope:
            record, now = self._record(scope, request.words, digest, len(request.data))
            found = _found(scope, record.meta, now, read=True)
            if found is not None:
                record = _refreshed(found, record)
            plan = self._admit(scope, record, now)
            if found is not None:
                job.check()
                scope.rewrite(record)
            else:
                with scope.staged(record, request.data) as staged:
                    job.check()
                    scope.publish(staged, record.meta.ref)
            return PutResult(record.meta, found is None, _removed(scope, plan))

    def begin(self, job: Job, segments: Segments, words: PutWords) -> Staging:
        """Begin a payload that is still being made, if its parents are there."""
        with self._root.locked(segments, job.check) as scope:
            _check_parents(scope, words, read_clock(self._clock))
            return scope.begin()

    def finish(self, job: Job, segments: Segments, words: PutWords, staging: Staging) -> PutResult:
        """Store a payload that was staged. It was hashed on its way, so what may lie there already is not read."""
        with self._root.locked(segments, job.check) as scope:
            record, now = self._record(scope, words, staging.digest, staging.size)
            found = _found(scope, record.meta, now, read=False)
            if found is not None:
                record = _refreshed(found, record)
            plan = self._admit(scope, record, now)
            job.check()
            staging.use(lambda _: scope.finish(staging, record, there=found is not None))
            result = PutResult(record.meta, found is None, _removed(scope, plan))
        staging.give_up()
        return result

    def _record(self, scope: ScopeDirectory, words: PutWords, digest: str, size: int) -> tuple[Record, datetime]:
        # Now, and not when the put was called: however long it had to wait, it has its whole life before it.
        now = read_clock(self._clock)
        meta = words.meta(digest, size, now, resolve_expires_at(words.expires_at, self._retention, now))
        _check_parents(scope, words, now)
        return Record(meta, last_put=now), now

    def _admit(self, scope: ScopeDirectory, record: Record, now: datetime) -> Plan:
        scope.create()
        return Index(scope).admit(record, self._retention, now)

    def head(self, job: Job, segments: Segments, ref: str, now: datetime) -> ArtifactMeta | None:
        """What is known of an artifact."""
        with self._root.scope(segments) as scope:
            return _visible(scope.find(ref), now)

    def get(self, job: Job, segments: Segments, ref: str, now: datetime) -> Artifact | None:
        """An artifact with its payload."""
        with self._root.scope(segments) as scope:
            meta = _visible(scope.find(ref), now)
            data = None if meta is None else scope.payload(meta)
            return None if meta is None or data is None else Artifact(meta, data)

    def open(self, job: Job, segments: Segments, ref: str, now: datetime) -> tuple[ArtifactMeta, Held] | None:
        """An artifact with its payload's file, which the caller gives up in the end."""
        with self._root.scope(segments) as scope:
            meta = _visible(scope.find(ref), now)
            descriptor = None if meta is None else scope.open(meta)
            return None if meta is None or descriptor is None else (meta, Held(descriptor))

    def delete(self, job: Job, segments: Segments, ref: str) -> None:
        """Withdraw an artifact."""
        with self._root.locked(segments, job.check) as scope:
            if scope.exists and is_ref(ref):
                Index(scope).doubt([ref])
                scope.remove(ref)

    def page(self, job: Job, segments: Segments, cursor: str | None, limit: int, now: datetime) -> Page:
        """A page of what lives in a scope."""
        with self._root.scope(segments) as scope:
            if not scope.exists:
                return Page(())
            with suppress(Unusable):
                return Index(scope).page(cursor, limit, now)
        # Whoever can make the index does, so that the next page is quick. Nobody waits for that.
        with suppress(OSError, Unusable), self._root.locked(segments, job.check, wait=False) as scope:
            Index(scope).remake()
            return Index(scope).page(cursor, limit, now)
        with self._root.scope(segments) as scope:
            metas = [meta for entry in scope.entries() if (meta := _live(entry, now)) is not None]
            return page_of(metas, cursor, limit)

    def tally(self, job: Job) -> dict[Segments, dict[str, tuple[int, int]]]:
        """How many artifacts of which kind every scope holds, expired or not, and what they take."""
        tally: dict[Segments, dict[str, tuple[int, int]]] = {}
        for segments in self._root.scopes():
            with self._root.scope(segments) as scope:
                if scope.exists:
                    tally[segments] = Index(scope).tally()
        return tally

    def sweep(self, job: Job, segments: Segments | None, now: datetime, *, dry_run: bool) -> tuple[Swept, ...]:
        """Remove what has expired or can never be read again, from one scope or from all."""
        swept: list[Swept] = []
        failed: OSError | None = None
        try:
            for each in self._root.scopes() if segments is None else (segments,):
                try:
                    failed = self._sweep(job, each, now, swept, dry_run=dry_run) or failed
                except OSError as error:
                    failed = error
        except OSError as error:  # of the way to the scopes
            failed = error
        if failed is not None:
            raise failed
        return tuple(swept)

    def _sweep(
        self, job: Job, segments: Segments, now: datetime, swept: list[Swept], *, dry_run: bool
    ) -> OSError | None:
        """Sweep one scope, a part of it at a time; what could not be swept is passed over, and the error returned."""
        failed: OSError | None = None
        after = ""
        while True:
            with self._root.locked(segments, job.check) as scope:
                if not scope.exists:
                    return failed
                if not after:
                    swept += _cleared(scope, dry_run=dry_run)
                last, entries = _next_entries(scope, after)
                going = [(entry.ref, gone) for entry in entries if (gone := _sweepable(entry, now)) is not None]
                if dry_run:
                    swept += [gone for _, gone in going]
                else:
                    index = Index(scope)
                    index.compare(after, last, entries, going=[ref for ref, _ in going], thoroughly=not after)
                    for ref, gone in going:
                        try:
                            scope.remove(ref)
                        except OSError as error:
                            failed = error
                        else:
                            swept.append(gone)
                    if going:
                        index.settle()
                failed = next((entry.error for entry in entries if entry.error is not None), failed)
                if last is None and not dry_run:
                    self._prune(scope, segments)
            if last is None:
                return failed
            after = last
            time.sleep(_BREATH)

    def _prune(self, scope: ScopeDirectory, segments: Segments) -> None:
        scope.prune()
        if scope.names() <= set(INDEX_FILES):
            drop(scope)
            self._root.prune(segments)


def _next_entries(scope: ScopeDirectory, after: str) -> tuple[str | None, list[Entry]]:
    """The next artifacts, in the order of their refs, and up to which ref they were; ``None``: to the end."""
    entries: list[Entry] = []
    last: str | None = None
    for shard in scope.shards():
        end = f"art_{shard}~"  # no ref of the shard comes after it
        if end <= after:
            continue
        if len(entries) >= _AT_ONCE:
            return last, entries
        entries += sorted(scope.entries([shard]), key=lambda entry: entry.ref)
        last = end
    return None, entries


def _cleared(scope: ScopeDirectory, *, dry_run: bool) -> list[Swept]:
    """What a crash left, after it was removed."""
    gone = scope.leftovers() if dry_run else [(name, size) for name, size in scope.leftovers() if scope.clear(name)]
    return [Swept("", "", size, "orphan") for _, size in gone]


def _sweepable(entry: Entry, now: datetime) -> Swept | None:
    if entry.error is not None or (entry.meta is not None and not is_expired(entry.meta.expires_at, now)):
        return None
    row = entry.row()
    return Swept(row.ref, row.kind, row.bytes, "ttl" if entry.meta is not None else "orphan")


def _removed(scope: ScopeDirectory, plan: Plan) -> tuple[Swept, ...]:
    """Remove what was planned, after the artifact is there: a crash before leaves too much, which the next put removes.

    Returns:
        What was removed. What somebody removed already is none of it, and what cannot be removed now is looked at
        by the next put: neither is a reason to say that this one failed.
    """
    removed: list[Swept] = []
    for gone in plan.swept:
        with suppress(OSError):
            try:
                was_there = scope.remove(gone.ref)
            except OSError:
                was_there = scope.find(gone.ref) is None  # it went, and something after that failed
            if was_there:
                removed.append(gone)
    return tuple(removed)


def _check_parents(scope: ScopeDirectory, words: PutWords, now: datetime) -> None:
    unknown = tuple(ref for ref in words.parents if _live(scope.find(ref), now) is None)
    if unknown:
        raise UnknownParent(unknown)


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


def _found(scope: ScopeDirectory, meta: ArtifactMeta, now: datetime, *, read: bool) -> Record | None:
    """What is known of the artifact that a put brings, where it is there, lives, and can be read.

    Args:
        read: see that by reading the payload, which takes about as long as hashing the one that is put. Else a payload
            that was damaged in its place, as by a loss of power, would stay what it is whatever is put.
    """
    entry = scope.look(meta.ref)
    if entry is None or entry.record is None or entry.size != meta.bytes or _live(entry, now) is None:
        return None
    return entry.record if not read or scope.holds(entry.record.meta) else None


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
