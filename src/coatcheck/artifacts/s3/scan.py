"""What has to look at many objects: listings, budgets, sweeps, usage.

S3 lists keys and sizes, by key. What is in the metadata takes a request an object, so many are made at once, and none
where the listing tells enough.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncGenerator, Container
from contextlib import aclosing
from datetime import datetime, timedelta

import msgspec

from coatcheck.artifacts.meta import ArtifactMeta, Swept, utc_now
from coatcheck.artifacts.retention import Retention, fits, is_expired, plan_retention
from coatcheck.artifacts.s3.keys import LONGEST_STREAM, ArtifactKey, Segments
from coatcheck.artifacts.s3.opened import Opened
from coatcheck.artifacts.s3.parallel import gathered, unstopped
from coatcheck.artifacts.s3.record import POINTER, Record
from coatcheck.artifacts.s3.requests import Listed, Upload
from coatcheck.artifacts.usage import Usage
from coatcheck.errors import StoreUnavailable

__all__ = ["evict", "living", "remove", "sweep", "usage"]

_SWEEP = "sweep"
_EVICT = "make room"


class _Row(msgspec.Struct, frozen=True):
    """One object of an artifact in a listing."""

    key: ArtifactKey
    listed: Listed

    @property
    def may_point(self) -> bool:
        return self.listed.size == len(POINTER)


async def living(opened: Opened, segments: Segments, now: datetime) -> list[ArtifactMeta]:
    """The metas of a scope's unexpired artifacts."""
    readable = opened.keys.generations.readable(now)
    youngest: dict[str, _Row] = {}
    async for row in _rows(opened, opened.keys.scope(segments)):
        if row.key.generation in readable:
            there = youngest.get(row.key.ref)
            if there is None or (row.key.generation or 0) > (there.key.generation or 0):
                youngest[row.key.ref] = row

    async def look(row: _Row) -> ArtifactMeta | None:
        record = await _record(opened, row)
        return None if record is None or is_expired(record.meta.expires_at, now) else record.meta

    return [meta for meta in await gathered(look, youngest.values()) if meta is not None]


async def usage(opened: Opened) -> tuple[Usage, ...]:
    """What every scope holds, by kind: one request an artifact."""
    counts: dict[tuple[Segments, str], tuple[int, int]] = defaultdict(lambda: (0, 0))
    payloads = {listed.key async for listed in opened.requests.listing(opened.keys.data_root)}
    async with aclosing(_scopes(opened, opened.keys.root)) as scopes:
        async for segments, rows in scopes:
            youngest = {row.key.ref: row for row in sorted(rows, key=lambda row: row.key.generation or 0)}
            for record in await gathered(lambda row: _counted(opened, row, payloads), youngest.values()):
                if record is not None:
                    count, size = counts[segments, record.meta.kind]
                    counts[segments, record.meta.kind] = (count + 1, size + record.meta.bytes)
    return tuple(Usage(segments, kind, *found) for (segments, kind), found in sorted(counts.items()))


async def evict(
    opened: Opened, segments: Segments, put: ArtifactMeta, retention: Retention, min_age: timedelta, now: datetime
) -> tuple[Swept, ...]:
    """Remove what a put has forced out of its scope; best effort, since other replicas put meanwhile.

    What was put less than ``min_age`` ago is spared, by what its record says just before it is removed. What has merely
    expired is removed only where no put writes its object any more; until then it does not count, since nobody can read
    it.
    """
    by_ref: dict[str, list[_Row]] = defaultdict(list)
    async with aclosing(_rows(opened, opened.keys.scope(segments))) as rows:
        async for row in rows:
            if row.key.ref != put.ref:
                by_ref[row.key.ref].append(row)
    payloads: dict[str, int] = {}
    async with aclosing(opened.requests.listing(opened.keys.scope_data(segments))) as objects:
        async for listed in objects:
            payloads[listed.key] = listed.size
    total = sum(payloads.values()) + sum(max(row.listed.size for row in same) for same in by_ref.values())
    if fits(len(by_ref), total, put.bytes, retention):
        return ()
    evicting = _Evicting(opened, retention, min_age, now)

    async def look(same: list[_Row]) -> tuple[list[_Row], Record | None]:
        youngest = max(same, key=lambda row: row.key.generation or 0)
        return same, await _counted(opened, youngest, payloads)

    looked = await gathered(look, by_ref.values())
    counted = {
        same[0].key.ref: (same, record)
        for same, record in looked
        if record is not None and evicting.counts(same, record)
    }
    records = [record for _, record in counted.values()]
    if fits(len(records), sum(record.meta.bytes for record in records), put.bytes, retention):
        return ()  # the listing cannot tell a pointer from what it points to, and both were counted
    plan = plan_retention([record.row() for record in records], put.bytes, retention, now)
    gone = await gathered(lambda swept: evicting.drop(swept, counted[swept.ref][0]), plan.swept)
    return tuple(swept for swept in gone if swept is not None)


class _Evicting:
    def __init__(self, opened: Opened, retention: Retention, min_age: timedelta, now: datetime) -> None:
        self._opened = opened
        self._retention = retention
        self._min_age = min_age
        self._now = now

    def counts(self, same: list[_Row], record: Record) -> bool:
        """Whether an artifact is to be reckoned with: it lives, or it has expired and can be removed."""
        if not is_expired(record.meta.expires_at, self._now) or record.data is not None:
            return True
        present = self._opened.keys.generations.now(self._now)
        return present is not None and all((row.key.generation or 0) < present for row in same)

    async def drop(self, swept: Swept, same: list[_Row]) -> Swept | None:
        """Remove an artifact, unless somebody has put it meanwhile."""
        opened = self._opened
        for row in sorted(same, key=lambda row: row.key.generation or 0):
            key = row.listed.key
            found = await opened.requests.head(key, _EVICT)
            record = None if found is None else Record.decode(row.key.ref, found.text)
            if record is None:
                continue
            if is_expired(record.meta.expires_at, self._now):
                if record.data is None:
                    await opened.requests.delete(key, _EVICT)
                else:  # its key may be written again at any moment, and names another data object then
                    await opened.requests.delete(opened.keys.data_beside(key, record.data), _EVICT)
            elif swept.reason == "ttl" or self._now - record.last_put < self._min_age:
                return None
            else:
                await remove(opened, key, record, _EVICT)
        return swept


async def remove(opened: Opened, key: str, record: Record | None, task: str) -> None:
    """Remove one object of an artifact, and then its data object, which only it names. No cancellation parts them."""
    data = None if record is None or record.data is None else opened.keys.data_beside(key, record.data)

    async def both() -> None:
        await opened.requests.delete(key, task)
        if data is not None:
            await opened.requests.delete(data, task)

    await (both() if data is None else unstopped(both))


async def sweep(opened: Opened, segments: Segments | None, now: datetime, *, dry_run: bool) -> tuple[Swept, ...]:
    """Remove what is dead: artifacts that no put writes and no read serves any more, and what a crash left.

    Raises:
        StoreUnavailable: some of it could not be swept.
    """
    sweeping = _Sweep(opened, now, dry_run=dry_run)
    keys = opened.keys
    async with aclosing(_scopes(opened, keys.root if segments is None else keys.scope(segments))) as scopes:
        async for _, rows in scopes:
            await sweeping.artifacts(rows)
    await sweeping.orphans(keys.data_root if segments is None else keys.scope_data(segments))
    await sweeping.uploads(keys.root if segments is None else keys.scope(segments))
    if segments is not None:
        await sweeping.uploads(keys.scope_data(segments))
    return sweeping.result()


class _Sweep:
    def __init__(self, opened: Opened, now: datetime, *, dry_run: bool) -> None:
        self._opened = opened
        self._now = now
        self._dry_run = dry_run
        self._swept: list[Swept] = []
        self._problem: StoreUnavailable | None = None

    async def artifacts(self, rows: list[_Row]) -> None:
        """Sweep one scope."""
        generations = self._opened.keys.generations
        if generations.seconds is None:
            await gathered(self._expired, [row for row in rows if row.may_point])
            return
        dead = [row for row in rows if generations.is_dead(row.key.generation, self._now)]
        by_ref: dict[str, list[_Row]] = defaultdict(list)
        for row in sorted(dead, key=lambda row: row.key.generation or 0):
            by_ref[row.key.ref].append(row)
        remaining = {row.key.ref for row in rows if not generations.is_dead(row.key.generation, self._now)}

        async def drop(same: list[_Row]) -> None:
            record = None
            for row in same:
                record = await self._dropped(row)
            youngest = same[-1]
            if youngest.key.ref not in remaining:
                kind, size = ("", youngest.listed.size) if record is None else (record.meta.kind, record.meta.bytes)
                self._swept.append(Swept(youngest.key.ref, kind, size, "ttl"))

        await gathered(drop, by_ref.values())

    async def _dropped(self, row: _Row) -> Record | None:
        record = await _record(self._opened, row)
        if not self._dry_run:
            await self._try(row.listed.key, record)
        return record

    async def _expired(self, row: _Row) -> None:
        """In a store without a ttl: the data object of what has expired. The pointer may be written again at any time,
        so it stays; and what is written again names another data object.
        """
        record = await _record(self._opened, row)
        late = self._now - self._opened.keys.generations.skew  # by the clock of a replica that is behind
        if record is None or record.data is None or not is_expired(record.meta.expires_at, late):
            return
        data = self._opened.keys.data_beside(row.listed.key, record.data)
        if await self._opened.requests.head(data, _SWEEP) is None:
            return
        if not self._dry_run:
            await self._try(data, None)
        self._swept.append(Swept(record.meta.ref, record.meta.kind, record.meta.bytes, "ttl"))

    async def orphans(self, prefix: str) -> None:
        """Data objects that no pointer names, and none will."""
        keys = self._opened.keys
        stale: dict[Segments, list[Listed]] = defaultdict(list)
        async for listed in self._opened.requests.listing(prefix, _SWEEP):
            data = keys.read_data(listed.key)
            if data is not None and keys.is_stale(data, self._now):
                stale[data.segments].append(listed)
        for segments, objects in stale.items():
            named = await self._named(segments)  # after they became stale: whatever will ever be named, is named by now
            for listed in objects:
                if listed.key not in named:
                    if not self._dry_run:
                        await self._try(listed.key, None)
                    self._swept.append(Swept("", "", listed.size, "orphan"))

    async def _named(self, segments: Segments) -> set[str]:
        opened = self._opened
        pointers = [row async for row in _rows(opened, opened.keys.scope(segments)) if row.may_point]
        records = await gathered(lambda row: _record(opened, row), pointers)
        return {
            opened.keys.data_beside(row.listed.key, record.data)
            for row, record in zip(pointers, records, strict=True)
            if record is not None and record.data is not None
        }

    async def uploads(self, prefix: str) -> None:
        """Multipart uploads that were begun more than a day ago."""
        async with aclosing(self._opened.requests.uploads(prefix)) as uploads:
            async for upload in uploads:
                if self._is_left(upload):
                    if not self._dry_run:
                        await self._opened.requests.abort(upload.key, upload.id)
                    self._swept.append(Swept("", "", 0, "orphan"))

    def _is_left(self, upload: Upload) -> bool:
        """Whether an upload is one of ours that nobody completes any more."""
        keys = self._opened.keys
        data = keys.read_data(upload.key)
        if data is not None:
            return keys.is_stale(data, self._now)
        artifact = keys.read(upload.key)
        if artifact is None:
            return False
        if keys.generations.is_dead(artifact.generation, self._now):
            return True
        return utc_now() - upload.begun >= LONGEST_STREAM  # both by clocks of the world

    async def _try(self, key: str, record: Record | None) -> None:
        try:
            await remove(self._opened, key, record, _SWEEP)
        except StoreUnavailable as error:
            self._problem = error

    def result(self) -> tuple[Swept, ...]:
        if self._problem is not None:
            raise StoreUnavailable(f"some of it could not be swept, the rest was: {self._problem}")
        return tuple(self._swept)


async def _rows(opened: Opened, prefix: str) -> AsyncGenerator[_Row, None]:
    async with aclosing(opened.requests.listing(prefix)) as listing:
        async for listed in listing:
            key = opened.keys.read(listed.key)
            if key is not None:
                yield _Row(key, listed)


async def _scopes(opened: Opened, prefix: str) -> AsyncGenerator[tuple[Segments, list[_Row]], None]:
    """The objects of each scope: a listing has them in a row."""
    segments: Segments | None = None
    rows: list[_Row] = []
    async with aclosing(_rows(opened, prefix)) as every_row:
        async for row in every_row:
            if row.key.segments != segments:
                if segments is not None:
                    yield segments, rows
                segments, rows = row.key.segments, []
            rows.append(row)
    if segments is not None:
        yield segments, rows


async def _counted(opened: Opened, row: _Row, payloads: Container[str]) -> Record | None:
    """What an object says of itself, if its payload is there: a pointer outlives what it points to."""
    record = await _record(opened, row)
    if record is None or record.data is None:
        return record
    return record if opened.keys.data_beside(row.listed.key, record.data) in payloads else None


async def _record(opened: Opened, row: _Row) -> Record | None:
    """What an object that was just listed says of itself."""
    known = opened.records.get(row.listed)
    if known is not None:
        return known
    found = await opened.requests.head(row.listed.key)
    record = None if found is None else Record.decode(row.key.ref, found.text)
    if found is not None and record is not None:
        opened.records.keep(row.listed, found, record)
    return record
