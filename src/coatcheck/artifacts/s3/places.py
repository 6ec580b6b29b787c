"""Where an artifact was found, and where it was found a moment ago.

Whoever reads one part after another asks once where the payload is, and then for the payload alone. That it exists is
not remembered: it is gone when its payload is, and then the artifact is looked for anew. Only a payload that outlived
its artifact can be read a moment longer: one that a delete failed to remove, or that was replaced just before.
"""

from __future__ import annotations

from collections import OrderedDict
from time import monotonic

import msgspec

from coatcheck.artifacts.s3.keys import Keys, Segments
from coatcheck.artifacts.s3.record import Record
from coatcheck.artifacts.s3.requests import Found

__all__ = ["Places", "There"]

_LONGEST = 2.0  # seconds


class There(msgspec.Struct, frozen=True):
    """The object that a ref leads to, living or not.

    Attributes:
        record: what it says of itself; ``None``: nothing that can be trusted.
        found: the object. generation: of its key.
    """

    key: str
    generation: int | None
    found: Found
    record: Record | None

    def payload_key(self, keys: Keys) -> str:
        """Where its payload is."""
        if self.record is None or self.record.data is None:
            return self.key
        return keys.data_beside(self.key, self.record.data)


class Places:
    """Where the artifacts are that were read of late: who reads one part after another asks once where they are.

    Args:
        most: how many; the ones that were not read for longest are forgotten first.
    """

    def __init__(self, most: int = 1024) -> None:
        self._most = most
        self._places: OrderedDict[tuple[Segments, str], tuple[float, There]] = OrderedDict()

    def get(self, segments: Segments, ref: str) -> There | None:
        """Where an artifact was, not long ago."""
        since, there = self._places.get((segments, ref), (0.0, None))
        if there is None or monotonic() - since > _LONGEST:
            self.forget(segments, ref)
            return None
        self._places.move_to_end((segments, ref))
        return there

    def keep(self, segments: Segments, ref: str, there: There, since: float) -> None:
        """Remember where an artifact was found, by whoever looked for it at ``since``; by `time.monotonic`."""
        self._places[segments, ref] = since, there
        self._places.move_to_end((segments, ref))
        while len(self._places) > self._most:
            self._places.popitem(last=False)

    def forget(self, segments: Segments, ref: str) -> None:
        """It may be elsewhere now, or nowhere."""
        self._places.pop((segments, ref), None)
