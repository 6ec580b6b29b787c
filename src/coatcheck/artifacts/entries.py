"""What a store in memory holds of one scope, and how a payload of it is read piece by piece."""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Self

import msgspec
from anyio.lowlevel import checkpoint

from coatcheck.artifacts.meta import ArtifactMeta
from coatcheck.artifacts.retention import Row
from coatcheck.errors import IntegrityError

__all__ = ["PIECE_BYTES", "Entries", "Entry", "EntryChunks"]

PIECE_BYTES = 1 << 18
"""What is copied or hashed between two turns for the other tasks: a fraction of a millisecond of work."""


class Entry(msgspec.Struct, frozen=True):
    """One artifact.

    Attributes:
        last_put: when its content was last put; the age that evictions go by.
    """

    meta: ArtifactMeta
    data: bytes
    last_put: datetime

    def row(self) -> Row:
        """What retention needs to know of it."""
        return Row(self.meta.ref, self.meta.kind, self.meta.bytes, self.last_put, self.meta.expires_at)


class Entries(dict[str, Entry]):
    """One scope's artifacts by ref, and what their payloads take together."""

    total: int = 0

    def keep(self, entry: Entry) -> None:
        """Hold ``entry``, in place of what has its ref."""
        self.drop(entry.meta.ref)
        self[entry.meta.ref] = entry
        self.total += entry.meta.bytes

    def drop(self, ref: str) -> None:
        """Hold no longer what has this ref, if there is any."""
        entry = self.pop(ref, None)
        if entry is not None:
            self.total -= entry.meta.bytes


class EntryChunks:
    """A part of one payload, piece by piece; where it is the whole, its digest is compared at the end.

    It is an iterator and no generator, so it has nothing to close, and what it has raised it raises again.

    Args:
        entry: what is read; it is held until this goes, whatever becomes of it in the store.
        start, end: the part, in bytes, within the payload.
    """

    def __init__(self, entry: Entry, start: int, end: int) -> None:
        self._entry = entry
        self._at = start
        self._end = end
        self._whole = (start, end) == (0, entry.meta.bytes)
        self._hash = hashlib.sha256()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        """The next piece.

        Raises:
            IntegrityError: the payload is not the one that was put.
        """
        await checkpoint()
        meta, data = self._entry.meta, self._entry.data
        if len(data) != meta.bytes:
            raise IntegrityError(meta.ref, f"{meta.bytes} bytes", f"{len(data)} bytes")
        if self._at == self._end:
            self._check_digest()
            raise StopAsyncIteration
        chunk = data[self._at : min(self._at + PIECE_BYTES, self._end)]
        self._at += len(chunk)
        if self._whole:
            self._hash.update(chunk)
        return chunk

    def _check_digest(self) -> None:
        actual = f"sha256:{self._hash.hexdigest()}"
        if self._whole and actual != self._entry.meta.digest:
            raise IntegrityError(self._entry.meta.ref, self._entry.meta.digest, actual)
