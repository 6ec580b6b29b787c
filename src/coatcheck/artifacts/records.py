"""One artifact's directory: what is in it, and whether that can be trusted. Everything here blocks."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from datetime import UTC, datetime

import msgspec

from coatcheck.artifacts.disk import open_for_reading
from coatcheck.artifacts.meta import ArtifactMeta
from coatcheck.artifacts.ref import make_ref
from coatcheck.artifacts.retention import Row

__all__ = ["DATA", "LONG_AGO", "META", "Entry", "Record", "inspect"]

DATA = "data"
"""The name of the payload in an artifact's directory, staged or published."""

META = "meta.json"
"""The name of the `Record` beside it."""

LONG_AGO = datetime.min.replace(tzinfo=UTC)
"""When that was put of which nobody can tell."""

_LONGEST_META = 1 << 18


class Record(msgspec.Struct, frozen=True):
    """What ``meta.json`` holds.

    Attributes:
        meta: of the artifact.
        last_put: when its content was last put: the age that evictions go by.
    """

    meta: ArtifactMeta
    last_put: datetime


class Entry(msgspec.Struct, frozen=True):
    """One artifact's directory, as it was found.

    Attributes:
        ref: its name.
        record: what is known of it; ``None`` where ``meta.json`` is missing or damaged.
        size: of the payload on the disk; ``None`` where there is none.
        problem: what is wrong, where something is damaged.
        error: why nothing can be told of it now, though it may be whole.
    """

    ref: str
    record: Record | None
    size: int | None
    problem: str | None = None
    error: OSError | None = None

    @property
    def meta(self) -> ArtifactMeta | None:
        """The artifact's, if both meta and payload are there. Else there is nothing that a reader could have."""
        return self.record.meta if self.record is not None and self.size is not None else None

    def row(self) -> Row:
        """What retention needs. What nobody can read any more counts as the oldest."""
        if self.record is None or self.size is None:
            kind = "" if self.record is None else self.record.meta.kind
            return Row(self.ref, kind, self.size or 0, LONG_AGO)
        meta = self.record.meta
        return Row(self.ref, meta.kind, self.size, self.record.last_put, meta.expires_at)


def inspect(ref: str, artifact: int) -> Entry:
    """What lies in an artifact's directory.

    Raises:
        ForeignOwner: its ``meta.json`` belongs to another user.
    """
    size: int | None = None
    with suppress(FileNotFoundError):
        status = os.stat(DATA, dir_fd=artifact, follow_symlinks=False)
        if not stat.S_ISREG(status.st_mode):
            return Entry(ref, None, None, "a payload that is not a file")
        if status.st_uid != os.geteuid():
            return Entry(ref, None, None, "a payload of another user")
        size = status.st_size
    try:
        raw = _read(META, artifact)
    except FileNotFoundError:
        return Entry(ref, None, size)
    record = _decode(ref, raw)
    return Entry(ref, record, size, None if record is not None else "a meta.json that is damaged")


def _read(name: str, artifact: int) -> bytes:
    """A short file; nothing, where it is none."""
    descriptor = open_for_reading(name, artifact)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _LONGEST_META:
            return b""
        return os.read(descriptor, status.st_size)
    finally:
        os.close(descriptor)


def _decode(ref: str, raw: bytes) -> Record | None:
    """The record of ``ref``. A ref is made of kind, media type and digest, so a record proves itself."""
    try:
        record = msgspec.json.decode(raw, type=Record)
        meta = record.meta
        if make_ref(meta.kind, meta.media_type, meta.digest) == meta.ref == ref and _aware(record):
            return record
    except (msgspec.MsgspecError, ValueError):
        pass
    return None


def _aware(record: Record) -> bool:
    times = (record.last_put, record.meta.created_at, record.meta.expires_at)
    return all(time is None or time.utcoffset() is not None for time in times)
