"""What a directory store remembers of one scope, so that a large scope is as quick as a small one.

It orders and counts. What is true is what lies on the disk, and all of it can be made again from there: a row for each
artifact (ref, kind, size, the times that listings and evictions go by), their number and size together, and the
refs that are in doubt. Laws:

* A change notes here first, in one transaction, what is going to be, and which refs are in doubt until it is. Changes
  of a scope come one after another (`coatcheck.artifacts.root`), so only the last one can be in doubt: the next one
  looks these refs up on the disk before it trusts the totals.
* At every moment there is a row for every artifact that can be read: a row comes before its artifact, and leaves after
  it. So a listing takes the order from here and the rest from the disk, and passes over rows without an artifact.
* An index that cannot be used is replaced by one that is made from the disk. Where that cannot be written, the disk
  answers by itself. A want of an index is never an error.
* What was removed behind the store's back counts until a put of it, an eviction or a sweep meets it, and what was
  put there is listed from the next sweep on.

Everything here blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec

from coatcheck.artifacts.database import SET, TOTALS, Line, Unusable, build, drop, opened
from coatcheck.artifacts.files import ScopeDirectory
from coatcheck.artifacts.meta import ArtifactMeta, Page
from coatcheck.artifacts.paging import Place, place_of, read_cursor, write_cursor
from coatcheck.artifacts.records import LONG_AGO, Entry, Record
from coatcheck.artifacts.retention import Plan, Retention, Row, fits, is_expired, plan_in_order, plan_retention

if TYPE_CHECKING:
    import sqlite3

__all__ = ["Index"]

_T = TypeVar("_T")
_One = Annotated[list[tuple[int, int]], msgspec.Meta(min_length=1, max_length=1)]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_LINES = "SELECT ref, kind, bytes, place, last_put, expires FROM artifacts"
_LIVING = "(expires IS NULL OR expires > ?)"
_FEW = 100
_LARGEST = 1 << 60


class Index:
    """The index of one scope.

    Args:
        scope: the scope's directory. For every change the caller holds its lock.
    """

    def __init__(self, scope: ScopeDirectory) -> None:
        self._scope = scope

    def admit(self, record: Record, retention: Retention, now: datetime) -> Plan:
        """Plan what leaves for an artifact, and note that it comes and that they leave, before any of it is done.

        Args:
            record: the artifact as it is going to be. What is there of it already takes no room.
            retention: the budgets.
            now: the store's clock.
        """
        meta = record.meta

        def admit(database: sqlite3.Connection) -> Plan:
            plan = self._plan(database, meta, retention, now)
            if not plan.refused:
                database.execute(SET, _line(Entry(meta.ref, record, meta.bytes)))
                _doubt(database, [meta.ref, *(gone.ref for gone in plan.swept)])
            return plan

        try:
            return self._change(admit)
        except Unusable:
            pass
        if retention.max_bytes is None and retention.max_count is None:
            return Plan()
        others = [entry.row() for entry in self._scope.entries() if entry.ref != meta.ref]
        if fits(len(others), sum(row.bytes for row in others), meta.bytes, retention):
            return Plan()
        return plan_retention(others, meta.bytes, retention, now)

    def doubt(self, refs: Sequence[str]) -> None:
        """Note that refs are about to be removed."""
        try:
            with opened(self._scope, change=True) as database:
                self._look_up_the_doubtful(database)
                _doubt(database, refs)
        except Unusable:  # as on a full disk, where a removal must go on
            drop(self._scope)

    def settle(self) -> None:
        """Leave nothing in doubt."""
        with suppress(OSError, Unusable):
            self._change(lambda database: None)

    def compare(
        self, after: str, last: str | None, entries: Sequence[Entry], *, going: Sequence[str], thoroughly: bool
    ) -> None:
        """Make the index agree with what was found on the disk.

        Args:
            after, last: what was looked at: the refs above the one, up to the other or to the end.
            entries: what is there. Of what could not be read, the row stays as it is.
            going: the refs that are about to be removed.
            thoroughly: look for damage of the index itself, too.
        """

        def compare(database: sqlite3.Connection) -> None:
            if thoroughly:
                _check(database)
            place = "ref > ? AND ref <= ?" if last is not None else "ref > ? AND ? IS NULL"
            known = database.execute(f"{_LINES} WHERE {place}", (after, last)).fetchall()
            lines = {entry.ref: _line(entry) for entry in entries}
            unreadable = {entry.ref for entry in entries if entry.error is not None}
            gone = [(line[0],) for line in known if line[0] not in lines]
            database.executemany("DELETE FROM artifacts WHERE ref = ?", gone)
            changed = set(lines.values()).difference(known)
            database.executemany(SET, [line for line in changed if line[0] not in unreadable])
            _doubt(database, going)

        try:
            self._change(compare)
        except (OSError, Unusable):  # as on a full disk, where a sweep must go on
            drop(self._scope)

    def remake(self) -> None:
        """Make the index anew from the disk.

        Raises:
            Unusable: it cannot be written here.
        """
        build(self._scope, map(_line, self._scope.entries()))

    def page(self, cursor: object, limit: int, now: datetime) -> Page:
        """A page of the artifacts that live at ``now``; newest first. Needs no lock.

        Raises:
            Unusable: there is no index, or it is wrong.
        """
        wanted = min(max(1, limit), _LARGEST)
        place = read_cursor(cursor)
        found: list[tuple[Place, ArtifactMeta]] = []
        asked = wanted + 1
        while len(found) <= wanted:
            places = self._places(place, asked, now)
            found += [(at, meta) for at in places if (meta := self._at(at, now)) is not None]
            if len(places) < asked:
                break
            place, asked = places[-1], max(_FEW, wanted + 1 - len(found))
        page = found[:wanted]
        return Page(tuple(meta for _, meta in page), write_cursor(page[-1][0]) if len(found) > wanted else None)

    def tally(self) -> dict[str, tuple[int, int]]:
        """How many artifacts of each kind there are, and what they take, in bytes. Needs no lock."""
        try:
            with opened(self._scope, change=False) as database:
                query = "SELECT kind, count(*), sum(bytes) FROM artifacts GROUP BY kind"
                tally = _checked(database.execute(query).fetchall(), list[tuple[str, int, int]])
                query = "SELECT ref, kind, bytes FROM doubtful LEFT JOIN artifacts USING (ref)"
                doubtful = _checked(database.execute(query).fetchall(), list[tuple[str, str | None, int | None]])
        except Unusable:
            return _summed((row.kind, 1, row.bytes) for row in map(Entry.row, self._scope.entries()))
        for ref, kind, size in doubtful:
            entry = self._scope.look(ref)
            if kind is not None and size is not None:
                tally.append((kind, -1, -size))
            if entry is not None:
                tally.append((entry.row().kind, 1, entry.row().bytes))
        return _summed(tally)

    def _plan(self, database: sqlite3.Connection, meta: ArtifactMeta, retention: Retention, now: datetime) -> Plan:
        """What leaves for an artifact. Nothing leaves that the disk does not know as the index does."""
        if retention.max_bytes is None and retention.max_count is None:
            return Plan()
        while True:
            plan = _planned(database, meta, retention, now)
            doubted = [gone.ref for gone in plan.swept if not self._agrees(database, gone.ref)]
            if not doubted:
                return plan

    def _agrees(self, database: sqlite3.Connection, ref: str) -> bool:
        """Whether a row is what is on the disk. One of what is gone or damaged since is set right.

        Raises:
            Unusable: it never was.
        """
        entry = self._scope.look(ref)
        row = database.execute(f"{_LINES} WHERE ref = ?", (ref,)).fetchone()
        if entry is not None and (entry.error is not None or row == _line(entry)):
            return True
        if entry is not None and entry.meta is not None:
            raise Unusable("wrong")
        self._set(database, ref, entry)
        return False

    def _set(self, database: sqlite3.Connection, ref: str, entry: Entry | None) -> None:
        """Note what lies under a ref."""
        if entry is None:
            database.execute("DELETE FROM artifacts WHERE ref = ?", (ref,))
        else:
            database.execute(SET, _line(entry))

    def _change(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """Change the index in one transaction, the doubtful refs first; make it where there is none.

        Raises:
            Unusable: it cannot be made; then there is none.
        """
        try:
            with opened(self._scope, change=True) as database:
                self._look_up_the_doubtful(database)
                return work(database)
        except Unusable:
            self.remake()
        try:
            with opened(self._scope, change=True) as database:
                return work(database)
        except Unusable:
            drop(self._scope)
            raise

    def _look_up_the_doubtful(self, database: sqlite3.Connection) -> None:
        query = (
            "SELECT ref, kind FROM doubtful LEFT JOIN artifacts USING (ref)"  # where a row is missing, it is damaged
        )
        for ref, _ in _checked(database.execute(query).fetchall(), list[tuple[str, str]]):
            entry = self._scope.look(ref)
            if entry is None or entry.error is None:
                self._set(database, ref, entry)
                database.execute("DELETE FROM doubtful WHERE ref = ?", (ref,))

    def _places(self, after: Place | None, limit: int, now: datetime) -> list[Place]:
        start = "(place, ref) > (?, ?)" if after is not None else "? IS NULL AND ? IS NULL"
        with opened(self._scope, change=False) as database:
            query = f"SELECT place, ref FROM artifacts INDEXED BY newest WHERE {start} AND {_LIVING}"
            parameters = (*(after or (None, None)), _micros(now), limit)
            found = database.execute(f"{query} ORDER BY place, ref LIMIT ?", parameters).fetchall()
        return _checked(found, list[Place])

    def _at(self, place: Place, now: datetime) -> ArtifactMeta | None:
        """The meta of a row, as it is on the disk; ``None``: there is nothing that could be listed here.

        Raises:
            Unusable: the artifact has another place, and no change tells why.
        """
        entry = self._scope.look(place[1])
        meta = entry.meta if entry is not None else None
        if meta is None or is_expired(meta.expires_at, now):
            return None
        if place_of(meta) == place:
            return meta
        with opened(self._scope, change=False) as database:
            rows = database.execute("SELECT place, ref FROM artifacts WHERE ref = ?", (place[1],)).fetchall()
            doubtful = database.execute("SELECT ref FROM doubtful WHERE ref = ?", (place[1],)).fetchall()
        if rows == [place_of(meta)]:  # put anew meanwhile: it has its place on an earlier page
            return None
        if doubtful:
            return meta
        raise Unusable("wrong")


def _check(database: sqlite3.Connection) -> None:
    """Look for damage that would not be met otherwise."""
    sums = database.execute("SELECT count(*), coalesce(sum(bytes), 0) FROM artifacts")
    sound = database.execute("PRAGMA integrity_check(1)").fetchall() == [("ok",)]
    if not sound or sums.fetchall() != database.execute(TOTALS).fetchall():
        raise Unusable("damaged")


def _planned(database: sqlite3.Connection, meta: ArtifactMeta, retention: Retention, now: datetime) -> Plan:
    own = database.execute("SELECT count(*), coalesce(sum(bytes), 0) FROM artifacts WHERE ref = ?", (meta.ref,))
    [there], [mine] = _checked((database.execute(TOTALS).fetchall(), own.fetchall()), tuple[_One, _One])
    count, size = there[0] - mine[0], there[1] - mine[1]
    if fits(count, size, meta.bytes, retention):
        return Plan()
    expired = list(_rows(database, "expiring", "expires <= ?", meta.ref, now))
    return plan_in_order(
        expired,
        _rows(database, "oldest", _LIVING, meta.ref, now),
        count - len(expired),
        size - sum(row.bytes for row in expired),
        meta.bytes,
        retention,
    )


def _rows(database: sqlite3.Connection, order: str, which: str, without: str, now: datetime) -> Iterator[Row]:
    query = f"{_LINES} INDEXED BY {order} WHERE {which} AND ref != ? ORDER BY last_put, ref"
    for line in database.execute(query, (_micros(now), without)):
        ref, kind, size, _, last_put, expires = _checked(line, tuple[str, str, int, int, int, int | None])
        try:
            yield Row(ref, kind, size, _moment(last_put), None if expires is None else _moment(expires))
        except OverflowError:
            raise Unusable("damaged") from None


def _checked(found: object, kind: type[_T]) -> _T:
    """What SQLite found, if it is what was once written."""
    try:
        return msgspec.convert(found, kind)
    except msgspec.ValidationError:
        raise Unusable("damaged") from None


def _doubt(database: sqlite3.Connection, refs: Iterable[str]) -> None:
    """Note refs as doubtful. Each has a row; of what has none, nothing is claimed that could be wrong."""
    query = "INSERT OR IGNORE INTO doubtful SELECT ref FROM artifacts WHERE ref = ?"
    database.executemany(query, ((ref,) for ref in refs))


def _line(entry: Entry) -> Line:
    row = entry.row()
    created_at = LONG_AGO if entry.meta is None else entry.meta.created_at
    expires = None if row.expires_at is None else _micros(row.expires_at)
    return row.ref, row.kind, row.bytes, -_micros(created_at), _micros(row.last_put), expires


def _summed(counts: Iterable[tuple[str, int, int]]) -> dict[str, tuple[int, int]]:
    tally: dict[str, tuple[int, int]] = {}
    for kind, count, size in counts:
        before = tally.get(kind, (0, 0))
        tally[kind] = before[0] + count, before[1] + size
    return {kind: found for kind, found in tally.items() if found[0] > 0}


def _micros(moment: datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND


def _moment(micros: int) -> datetime:
    return _EPOCH + micros * _MICROSECOND
