"""A part of a payload in a file, read in order and in blocks, never more than one of them in memory."""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from coatcheck.artifacts.meta import ArtifactMeta
from coatcheck.artifacts.staging import Held
from coatcheck.artifacts.workers import Abandoned
from coatcheck.errors import IntegrityError

__all__ = ["READ_BYTES", "Chunks"]

READ_BYTES = 1 << 21
"""What is read at once: every read is a way to a thread and back, which takes as long as a megabyte."""

_RunInThread = Callable[[Callable[[], Any]], Awaitable[Any]]


class Chunks(AsyncIterator[bytes]):
    """The bytes from ``start`` to ``end``; where that is the whole payload, it is compared with its digest.

    Each chunk begins where the one before it ended, whatever was cancelled between them. What was raised is
    raised again.

    Args:
        meta: the artifact's.
        file: its payload, of the size that ``meta`` says.
        start, end: the part, within the payload.
        run: does work in a worker thread.
    """

    def __init__(self, meta: ArtifactMeta, file: Held, start: int, end: int, run: _RunInThread) -> None:
        self._meta = meta
        self._file = file
        self._at = start
        self._end = end
        self._run = run
        self._hash = hashlib.sha256() if (start, end) == (0, meta.bytes) else None

    async def __anext__(self) -> bytes:
        """The next chunk.

        Raises:
            IntegrityError: the file is shorter, or it is read to the end and is not what was put.
        """
        if self._at == self._end:
            self._compare()
            raise StopAsyncIteration
        # What a cancelled call left in its thread has no say here: position and hash are set once, in the loop.
        block: bytes
        try:
            block, self._hash = await self._run(lambda: self._file.use(self._read))
        except Abandoned:
            raise RuntimeError("a reader is read inside of its `async with`") from None
        self._at += len(block)
        return block

    def _read(self, descriptor: int) -> tuple[bytes, Any]:
        block = os.pread(descriptor, min(READ_BYTES, self._end - self._at), self._at)
        if not block:
            raise IntegrityError(self._meta.ref, f"{self._meta.bytes} bytes", f"{self._at} bytes")
        if self._hash is None:
            return block, None
        hashed = self._hash.copy()
        hashed.update(block)
        return block, hashed

    def _compare(self) -> None:
        if self._hash is not None and (digest := f"sha256:{self._hash.hexdigest()}") != self._meta.digest:
            raise IntegrityError(self._meta.ref, self._meta.digest, digest)
