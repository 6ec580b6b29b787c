"""What lies where in a bucket, and for how long: the only place that makes or reads a key. Everything here is pure.

Below the store's prefix:

    <tenant>/<principal>/<conversation>/<ref>         an artifact, in a store without a ttl
    <tenant>/<principal>/<conversation>/<ref>.<g>     an artifact of generation g, in a store with a ttl
    streams.d/<tenant>/<principal>/<conversation>/<begun>-<random>     the data object of a stream
    coatcheck.json                                    the marker, which says what a generation is

No scope makes a segment with a dot in it, so what has one is never somebody's artifact. Every segment is one that every
server takes (lower case, digits, ``.``, ``_``, ``-``), and no key is a prefix of another's path.

Generations are why no interleaving of puts and sweeps loses an acknowledged put, whatever a server promises (law:
`design.md` section 5). A generation is a span of time at least as long as the ttl. A put writes into the present one, a
read looks into the present one and the one before, and a sweep deletes only what is older: what no put writes and no
read serves.
"""

from __future__ import annotations

import re
import secrets
from datetime import UTC, datetime, timedelta

import msgspec

from coatcheck.artifacts.ref import is_ref
from coatcheck.scope import is_segment

__all__ = ["LONGEST_STREAM", "ArtifactKey", "DataKey", "Generations", "Keys", "Segments", "is_data_name"]

Segments = tuple[str, str, str]
"""A scope as segments of a key: tenant, principal, conversation."""

LONGEST_STREAM = timedelta(days=1)
"""How long after it was begun a stream may still be published. So a data object that is older, and that no pointer
names, never will be named."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_STREAMS = "streams.d/"
_MARKER = "coatcheck.json"
_MOST_SKEW = timedelta(minutes=15)
_GRACE = timedelta(hours=1)  # for clocks that differ, and for the last request of a stream that was begun in time
_NUMBER = "(0|-?[1-9][0-9]{0,17})"  # as `str` writes it, and in no other way
_NAME = re.compile(f"(art_[0-9a-z]{{32}})(?:[.]{_NUMBER})?")
_DATA = re.compile(f"{_NUMBER}-[0-9a-f]{{32}}")


def is_data_name(name: str) -> bool:
    """Whether ``name`` is the last segment of a data object's key."""
    return _DATA.fullmatch(name) is not None


class ArtifactKey(msgspec.Struct, frozen=True):
    """What an artifact's key says: whose it is, its ref, and its generation where the store has any."""

    segments: Segments
    ref: str
    generation: int | None


class DataKey(msgspec.Struct, frozen=True):
    """What a data object's key says: whose it is, and when its stream was begun."""

    segments: Segments
    begun: datetime


class Generations:
    """Which generations are written, read and dead, by the store's clock.

    Args:
        seconds: how long one is; ``None``: there are none, and keys carry none.
    """

    def __init__(self, seconds: int | None) -> None:
        self.seconds = seconds
        span = _MOST_SKEW if seconds is None else min(_MOST_SKEW, timedelta(seconds=seconds) / 10)
        self.skew: timedelta = span
        """By how much the clocks of two replicas may differ."""

    def now(self, now: datetime) -> int | None:
        """The generation that a put writes."""
        return None if self.seconds is None else _seconds(now) // self.seconds

    def readable(self, now: datetime) -> tuple[int | None, ...]:
        """The generations that a read looks into, the youngest first.

        Shortly before the next one begins that one is among them, since a replica whose clock is ahead writes it.
        """
        present = self.now(now)
        if present is None:
            return (None,)
        ahead = self.now(now + self.skew)
        youngest = present if ahead is None else ahead
        return tuple(range(youngest, present - 2, -1))

    def deletable(self, now: datetime) -> tuple[int | None, ...]:
        """The generations from which a delete withdraws an artifact: all that anyone may read now or soon.

        Shortly after the present one began one more is among them, since a replica whose clock is behind reads it.
        """
        present, behind = self.now(now), self.now(now - self.skew)
        if present is None or behind is None:
            return (None,)
        return tuple(range(present + 1, behind - 2, -1))

    def is_dead(self, generation: int | None, now: datetime) -> bool:
        """Whether no put writes this generation any more, and no read serves it, in any replica."""
        if self.seconds is None or generation is None:
            return False
        return _seconds(now - self.skew) // self.seconds >= generation + 2


class Keys:
    """The keys of one store.

    Args:
        prefix: empty, or segments without a slash at either end.
        generations: whether keys carry a generation, and how long one is.
    """

    def __init__(self, prefix: str, generations: Generations) -> None:
        self.root: str = f"{prefix}/" if prefix else ""
        self.generations: Generations = generations
        self.marker: str = self.root + _MARKER
        self.data_root: str = self.root + _STREAMS

    def scope(self, segments: Segments) -> str:
        """What the keys of a scope's artifacts begin with."""
        return self.root + "/".join(segments) + "/"

    def scope_data(self, segments: Segments) -> str:
        """What the keys of a scope's data objects begin with."""
        return self.data_root + "/".join(segments) + "/"

    def artifact(self, segments: Segments, ref: str, generation: int | None) -> str:
        """The key of an artifact."""
        name = ref if generation is None else f"{ref}.{generation}"
        return self.scope(segments) + name

    def new_data(self, segments: Segments, now: datetime) -> str:
        """The key of a data object that is begun now, which nobody else has or will have."""
        return f"{self.scope_data(segments)}{_seconds(now)}-{secrets.token_hex(16)}"

    def data_beside(self, key: str, name: str) -> str:
        """The key of the data object that an artifact's object names: one of its own scope, whatever the name."""
        return self.data_root + key.removeprefix(self.root).rpartition("/")[0] + "/" + name

    def read(self, key: str) -> ArtifactKey | None:
        """What an artifact's key says; ``None``: it is the key of something else."""
        segments, name = self._split(key, self.root)
        match = _NAME.fullmatch(name)
        if segments is None or match is None or not is_ref(match[1]):
            return None
        generation = None if match[2] is None else int(match[2])
        if (generation is None) != (self.generations.seconds is None):
            return None
        return ArtifactKey(segments, match[1], generation)

    def read_data(self, key: str) -> DataKey | None:
        """What a data object's key says; ``None``: it is the key of something else."""
        segments, name = self._split(key, self.data_root)
        match = _DATA.fullmatch(name)
        if segments is None or match is None:
            return None
        try:
            return DataKey(segments, _EPOCH + timedelta(seconds=int(match[1])))
        except OverflowError:
            return None

    def is_stale(self, data: DataKey, now: datetime) -> bool:
        """Whether the stream of a data object can no longer be published, by any replica's clock."""
        return now - data.begun >= LONGEST_STREAM + _GRACE

    def _split(self, key: str, root: str) -> tuple[Segments | None, str]:
        parts = key.removeprefix(root).split("/") if key.startswith(root) else []
        if len(parts) != 4 or not all(map(is_segment, parts[:3])):
            return None, ""
        return (parts[0], parts[1], parts[2]), parts[3]


def _seconds(time: datetime) -> int:
    return (time - _EPOCH) // timedelta(seconds=1)
