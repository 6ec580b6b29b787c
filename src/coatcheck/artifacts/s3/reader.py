"""A part of a payload in a bucket, read in order. A connection that breaks is opened again where it broke.

Laws (`design.md` section 5): there is never a silent gap, since each attempt asks for the bytes from where the last one
ended; a read of the whole payload is compared with its digest; and leaving early frees the connection.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import anyio

from coatcheck.artifacts.meta import ArtifactMeta
from coatcheck.artifacts.s3.body import PIECE_BYTES, Hasher
from coatcheck.artifacts.s3.requests import Fetched, Requests
from coatcheck.errors import IntegrityError, StoreUnavailable
from coatcheck.lanes import Lane, Work

__all__ = ["Chunks", "Gone"]

_CHUNK = 1 << 18
_BATCH = 1 << 21  # bytes that are hashed at once, in a thread, beside the reading
_MOST_BEHIND = 2  # batches
_ATTEMPTS = 5
_LONGEST_PAUSE = 2.0  # seconds

Locate = Callable[[], Awaitable[str | None]]
"""The key under which the payload lies now; ``None``: nowhere."""


class Gone(StoreUnavailable):
    """The artifact was deleted while it was read."""


class Chunks(AsyncIterator[bytes]):
    """The bytes from ``start`` to ``end``; where that is the whole payload, it is compared with its digest.

    Each chunk begins where the one before it ended, whatever was cancelled between them. What was raised is raised
    again.

    Args:
        requests: of the store.
        meta: the artifact's.
        start, end: the part, within the payload.
        locate: is asked for the key before the first request, and again where there is nothing under it any more.
        body: the first connection, where there is one already, and what closes it.
    """

    def __init__(
        self,
        requests: Requests,
        meta: ArtifactMeta,
        start: int,
        end: int,
        locate: Locate,
        body: tuple[Fetched, AsyncExitStack] | None = None,
    ) -> None:
        self._requests = requests
        self._meta = meta
        self._at = start
        self._end = end
        self._locate = locate
        self._body: Fetched | None = None
        self._stack = AsyncExitStack()
        if body is not None:
            self._body, self._stack = body
        self._reading = False
        self._closed = False
        self._digest = Digest() if (start, end) == (0, meta.bytes) else None

    async def begin(self) -> bool:
        """Open the first connection, where there is anything to read: whether the payload is there."""
        if self._at == self._end or self._body is not None:
            return True
        try:
            await self._open()
        except Gone:
            return False
        return True

    async def __anext__(self) -> bytes:
        """The next chunk.

        Raises:
            IntegrityError: the payload has another size, or is read to the end and is not what was put.
            StoreUnavailable: it is gone, or the connection breaks again and again.
        """
        if self._closed:
            raise RuntimeError("a reader is read inside of its `async with`")
        if self._reading:  # a read was cancelled: nobody knows what of the body went with it
            await self.free()
        if self._digest is not None:
            await self._digest.ready()
        if self._at == self._end:
            await self.free()
            if self._digest is not None and (digest := await self._digest.finish()) != self._meta.digest:
                raise IntegrityError(self._meta.ref, self._meta.digest, digest)
            raise StopAsyncIteration
        chunk = await self._read()
        if self._digest is not None:
            self._digest.add(chunk)
        self._at += len(chunk)
        return chunk

    async def _read(self) -> bytes:
        """The next chunk, from a new connection where the old one breaks."""
        problem = StoreUnavailable()
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                self._reading = True
                body = self._body or await self._open()
                chunk = await self._requests.read(body.body, min(_CHUNK, self._end - self._at))
                self._reading = False
                if chunk:
                    return chunk
                problem = StoreUnavailable(
                    f"S3 could not read an artifact: {self._meta.ref} broke off at byte {self._at}"
                )
            except Gone:
                await self.free()
                raise
            except StoreUnavailable as error:
                problem = error
            await self.free()
            if attempt < _ATTEMPTS:
                await anyio.sleep(random.uniform(0, min(_LONGEST_PAUSE, 0.05 * 2**attempt)))
        raise problem

    async def _open(self) -> Fetched:
        for _ in range(2):
            key = await self._locate()
            if key is None:
                break
            body = await self._stack.enter_async_context(self._requests.fetch(key, self._at, self._end))
            if body is not None:
                if body.found.size != self._meta.bytes:
                    raise IntegrityError(self._meta.ref, f"{self._meta.bytes} bytes", f"{body.found.size} bytes")
                self._body = body
                return body
            await self.free()
        raise Gone(f"S3 could not read an artifact: {self._meta.ref} is gone")

    async def free(self) -> None:
        """Give the connection back."""
        self._body = None
        self._reading = False
        with anyio.CancelScope(shield=True):
            await self._stack.aclose()

    async def close(self) -> None:
        """Read no more."""
        self._closed = True
        if self._digest is not None:
            self._digest.close()
        await self.free()


class Digest:
    """The digest of what is read, made in a thread while more of it is read."""

    def __init__(self) -> None:
        self._hasher = Hasher()
        self._batch: list[bytes] = []
        self._size = 0
        self._lane: Lane | None = None
        self._behind: deque[Work[None]] = deque()

    def add(self, chunk: bytes) -> None:
        """Take in the next chunk, after `ready`."""
        self._batch.append(chunk)
        self._size += len(chunk)
        if self._size >= _BATCH:
            self._hand_over()

    async def ready(self) -> None:
        """Wait until not too much is behind. There is work for a thread all the while."""
        while self._behind and (len(self._behind) > _MOST_BEHIND or self._behind[0].is_done):
            await self._behind[0].result()
            self._behind.popleft()

    async def finish(self) -> str:
        """The digest of all that was taken in."""
        if self._size <= PIECE_BYTES and not self._behind:
            for chunk in self._batch:
                self._hasher.update(chunk)
            self._batch, self._size = [], 0
        elif self._batch:
            self._hand_over()
        for work in self._behind:
            await work.result()
        self.close()
        return f"sha256:{self._hasher.hexdigest}"

    def close(self) -> None:
        """Make it no more."""
        if self._lane is not None:
            self._lane.close()

    def _hand_over(self) -> None:
        if self._lane is None:
            self._lane = Lane()
        batch = self._batch
        # Joined, the thread has to be given the interpreter once for all of them; see `body`.
        self._behind.append(self._lane.do(lambda: self._hasher.update(b"".join(batch))))
        self._batch, self._size = [], 0
