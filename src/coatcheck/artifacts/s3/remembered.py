"""What objects in a listing say of themselves, remembered: or paging through a scope would ask each of them every time.

That an object is there is never remembered, only what it says; and only where that cannot have changed. A write makes
the time of its object in a listing younger, so what was read some time after that time is what any later listing with
the same time means.
"""

from __future__ import annotations

from collections import OrderedDict
from datetime import UTC, datetime, timedelta

from coatcheck.artifacts.s3.record import Record
from coatcheck.artifacts.s3.requests import Found, Listed

__all__ = ["Remembered"]

_GRAIN = timedelta(seconds=2)  # listings and headers tell times in whole seconds


class Remembered:
    """The records of objects, by their rows in a listing.

    Args:
        most: how many; the ones that were not used for longest are forgotten first.
    """

    def __init__(self, most: int = 4096) -> None:
        self._most = most
        self._records: OrderedDict[Listed, Record] = OrderedDict()

    def get(self, listed: Listed) -> Record | None:
        """The record of an object, if it is known."""
        record = self._records.get(listed)
        if record is not None:
            self._records.move_to_end(listed)
        return record

    def keep(self, listed: Listed, found: Found, record: Record) -> None:
        """Remember what an object said, if nobody can have changed it without changing its row."""
        if found.seen is None or _aware(found.seen) - _aware(listed.modified) < _GRAIN:
            return
        self._records[listed] = record
        while len(self._records) > self._most:
            self._records.popitem(last=False)


def _aware(time: datetime) -> datetime:
    return time if time.utcoffset() is not None else time.replace(tzinfo=UTC)
