"""Payloads behind an opener, as a store gives them: in chunks of any size, and counted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from coatcheck.artifacts.meta import ArtifactMeta, check_range
from coatcheck.artifacts.port import ArtifactReader
from coatcheck.artifacts.ref import digest_of, make_ref


class Payload:
    """One artifact that needs no store.

    Args:
        data: its bytes.
        chunk: how long the chunks are in which it is read.

    Attributes:
        opened: how often it was opened.
        read: how many bytes were read of it.
    """

    def __init__(self, data: bytes, media_type: str = "text/plain", *, chunk: int = 1 << 20) -> None:
        self.data = data
        self.chunk = chunk
        digest = digest_of(data)
        self.meta = ArtifactMeta(
            ref=make_ref("test", media_type, digest),
            kind="test",
            media_type=media_type,
            bytes=len(data),
            digest=digest,
            created_at=datetime(2031, 1, 2, tzinfo=UTC),
        )
        self.opened = 0
        self.read = 0

    @asynccontextmanager
    async def open(self, start: int, end: int | None) -> AsyncIterator[ArtifactReader | None]:
        self.opened += 1
        first, last = check_range(start, end, len(self.data))
        yield ArtifactReader(self.meta, first, last, Chunks(self, first, last))


class Chunks(AsyncIterator[bytes]):
    """A part of a payload."""

    def __init__(self, payload: Payload, first: int, last: int) -> None:
        self._payload = payload
        self._at = first
        self._last = last

    async def __anext__(self) -> bytes:
        if self._at >= self._last:
            raise StopAsyncIteration
        piece = self._payload.data[self._at : min(self._at + self._payload.chunk, self._last)]
        self._at += len(piece)
        self._payload.read += len(piece)
        return piece


@asynccontextmanager
async def nothing(start: int, end: int | None) -> AsyncIterator[ArtifactReader | None]:
    """An opener for a ref that gives nothing."""
    yield None
