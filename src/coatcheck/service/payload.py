"""A payload on its way out of the store: whole or in part, in bounded memory, and never a damaged one as a whole."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import anyio
from starlette.datastructures import Headers

from coatcheck.artifacts.meta import ArtifactMeta, Clock, read_clock
from coatcheck.artifacts.port import ArtifactReader, ArtifactStore
from coatcheck.artifacts.ref import is_ref
from coatcheck.scope import Scope
from coatcheck.service.conditions import CONDITIONS, judge, wants_part
from coatcheck.service.content import content_headers, validators
from coatcheck.service.ranges import ByteRange, Unsatisfiable, parse_range
from coatcheck.service.reply import Reply

__all__ = ["MISS", "Payloads", "looked_for"]

MISS = "there is nothing under this ref"
"""All that anybody is told of what is missing, foreign, expired or malformed."""

_NOTHING = "art_" + "0" * 32
_SMALL = 1 << 18
_TAIL = 1 << 16


def looked_for(ref: str) -> str:
    """What is looked up for a text that may be a ref: what is none is looked for like what is missing."""
    return ref if is_ref(ref) else _NOTHING


class _Part(NamedTuple):
    """What is read: bytes from ``start`` up to and without ``end``; ``whole``: no range was asked for."""

    start: int
    end: int | None
    whole: bool


class Payloads:
    """Answers requests for payloads.

    Args:
        store: where they are.
        max_age: how long a client may keep one without asking again, in seconds.
        readers: how many are read at once.
        patience: how long a request waits for its turn to read, in seconds.
        clock: what time it is.
    """

    def __init__(self, store: ArtifactStore, *, max_age: float, readers: int, patience: float, clock: Clock) -> None:
        self._store = store
        self._max_age = max_age
        self._patience = patience
        self._clock = clock
        self._turns = anyio.Semaphore(readers)

    async def answer(self, headers: Headers, scope: Scope, ref: str, reply: Reply) -> bool:
        """Answer a GET or HEAD.

        Returns:
            False, with nothing sent, where too many payloads are being read already.

        Raises:
            StoreError: the store cannot answer, or the payload is damaged; ``reply.started`` tells how far it came.
            ResponseCut: the client takes no more.
        """
        asked = None if reply.head_only else _range_of(headers)
        # What needs the artifact's size or tag first costs one more look; which of them it is, the request says alone.
        looks_first = reply.head_only or any(name in headers for name in CONDITIONS)
        if looks_first or (asked is not None and asked.suffix is not None):
            meta = await self._store.head(scope, ref)
            if meta is None:
                await reply.problem(404, MISS)
                return True
            status = judge(headers, meta)
            if status == 304:
                await reply.whole(304, self._validators(meta), b"")
                return True
            if status == 412:
                await reply.problem(412, "this artifact is not the one that the request was for")
                return True
            if reply.head_only:
                await reply.start(200, {**self._headers(meta), "content-length": str(meta.bytes)})
                await reply.body(b"", last=True)
                return True
            if asked is not None and not wants_part(headers, meta):
                asked = None
            part = await self._resolve(asked, meta, reply)
            if part is None:
                return True
        elif asked is not None:
            part = _Part(asked.first, None if asked.last is None else asked.last + 1, whole=False)
        else:
            part = _Part(0, None, whole=True)
        return await self._send(scope, ref, part, reply)

    async def _resolve(self, asked: ByteRange | None, meta: ArtifactMeta, reply: Reply) -> _Part | None:
        """What to read of an artifact that is known; ``None``: it was answered already."""
        try:
            found = None if asked is None else asked.resolve(meta.bytes)
        except Unsatisfiable:
            await _unsatisfiable(meta, reply)
            return None
        return _Part(0, None, whole=True) if found is None else _Part(*found, whole=False)

    async def _send(self, scope: Scope, ref: str, part: _Part, reply: Reply) -> bool:
        small: bytes
        async with self._turn() as mine:
            if not mine:
                return False
            async with self._store.open(scope, ref, part.start, part.end) as reader:
                if reader is None:
                    await reply.problem(404, MISS)
                    return True
                if not part.whole and part.start >= reader.meta.bytes:
                    await _unsatisfiable(reader.meta, reply)
                    return True
                status, headers = self._start_of(reader, part)
                if reader.end - reader.start > _SMALL:
                    await _stream(reader, status, headers, reply)
                    return True
                small = await reader.read()
        # The reader and the turn are given back already: a slow client holds no more than these bytes.
        await reply.whole(status, headers, small)
        return True

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[bool]:
        """One of the turns to read, if one comes in time."""
        with anyio.move_on_after(self._patience) as limit:
            await self._turns.acquire()
        if limit.cancelled_caught:
            yield False
            return
        try:
            yield True
        finally:
            self._turns.release()

    def _start_of(self, reader: ArtifactReader, part: _Part) -> tuple[int, dict[str, str]]:
        headers = self._headers(reader.meta)
        if part.whole:
            return 200, headers
        headers["content-range"] = f"bytes {reader.start}-{reader.end - 1}/{reader.meta.bytes}"
        return 206, headers

    def _headers(self, meta: ArtifactMeta) -> dict[str, str]:
        return content_headers(meta, read_clock(self._clock), self._max_age)

    def _validators(self, meta: ArtifactMeta) -> dict[str, str]:
        return validators(meta, read_clock(self._clock), self._max_age)


async def _stream(reader: ArtifactReader, status: int, headers: dict[str, str], reply: Reply) -> None:
    """Send what is too large to hold.

    The last bytes wait until the reader has come to its end, where a whole payload is compared with its digest. So a
    damaged one, however it ends, comes short of its announced length.
    """
    chunks = aiter(reader)
    chunk = await anext(chunks)  # before the status goes out: a store that is down can still say so
    await reply.start(status, {**headers, "content-length": str(reader.end - reader.start)})
    held = b""
    while chunk:
        if held:
            await reply.body(held, last=False)
        if len(chunk) > _TAIL:
            await reply.body(memoryview(chunk)[:-_TAIL], last=False)
        held = chunk[-_TAIL:]
        chunk = b""  # the one that was sent is let go before there is another
        chunk = await anext(chunks, b"")
    await reply.body(held, last=True)


async def _unsatisfiable(meta: ArtifactMeta, reply: Reply) -> None:
    headers = {"content-range": f"bytes */{meta.bytes}", "accept-ranges": "bytes"}
    await reply.problem(416, "the range is past the end of this artifact", headers)


def _range_of(headers: Headers) -> ByteRange | None:
    values = headers.getlist("range")
    return parse_range(values[0]) if len(values) == 1 else None
