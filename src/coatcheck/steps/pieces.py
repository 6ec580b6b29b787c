"""How a rule judges a stream without holding it: piece by piece, or staged in a private file.

Law (`design.md` section 4): nothing is published before the last rule has passed. A denial at the last piece leaves
nothing of the first.
"""

from __future__ import annotations

import codecs
import hashlib
import os
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import IO, TypeVar

import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar

from coatcheck.artifacts.meta import check_range
from coatcheck.artifacts.ref import digest_of
from coatcheck.decision import Fingerprint
from coatcheck.dispatch import Dispatch
from coatcheck.flow import PIECE, Ended, Flow
from coatcheck.outcome import Denied, Inline, carried
from coatcheck.results.status import Status
from coatcheck.steps.ledger import file_row
from coatcheck.steps.rule import UNCHANGED, Allow, Chunk, Deny, Hook, StreamResult

__all__ = ["JudgedPieces", "stage"]

_BLOCK = 4 * PIECE
_MAX_THREADS = 16
_T = TypeVar("_T")


class JudgedPieces:
    """A `coatcheck.flow.Source`: what a rule lets through of the flow behind it, piece by piece.

    Its row is put on the ledger at the end. What the rule changed is on it as two fingerprints, whatever the ledger
    keeps of whole values: nobody holds a stream.

    Args:
        flow: what is judged. call, outcome: whose it is.
        hook: the rule's. ask: what the hook says of one piece.
    """

    def __init__(
        self,
        flow: Flow,
        call: Dispatch,
        outcome: Inline,
        hook: Hook,
        ask: Callable[[Dispatch, Hook, Chunk], Awaitable[Allow | Deny]],
    ) -> None:
        self._flow = flow
        self._call = call
        self._outcome = outcome
        self._hook = hook
        self._ask = ask
        self._memory: dict[str, object] = {}
        self._split = _Split()
        self._before = _Count()
        self._after = _Count()
        self._why: str | None = None
        self._changed = False
        self._over = False

    async def read(self) -> bytes:
        """The next piece that the rule lets through."""
        while not self._over:
            piece = await self._flow.read()
            self._over = not piece
            data = self._split.next(piece, as_text=self._flow.gauge.is_text)
            if data or self._over:
                kept = await self._judged(data)
                if kept:
                    return kept
        return b""

    async def _judged(self, data: str | bytes) -> bytes:
        raw = data.encode() if isinstance(data, str) else data
        chunk = Chunk(data, self._before.bytes, self._over, self._memory)
        answer = await self._ask(self._call, self._hook, chunk)
        name = self._hook.name
        if isinstance(answer, Deny):
            change = None, Fingerprint(len(answer.reason), digest_of(answer.reason.encode()))
            file_row(self._call, name, "after-tool", "deny", answer.reason, change)
            await self._flow.aclose()
            raise Ended(carried(self._outcome, Denied, text=answer.reason, reason=answer.reason, rule=name))
        kept = raw
        if answer.value is not UNCHANGED:
            self._changed = True
            kept = answer.value.encode() if isinstance(answer.value, str) else answer.value
        self._why = self._why or answer.why
        self._before.feed(raw, data)
        self._after.feed(kept, data if kept is raw else answer.value)
        if self._over:
            changed = (self._before.fingerprint(), self._after.fingerprint()) if self._changed else None
            file_row(self._call, name, "after-tool", "allow", self._why, changed)
        return kept

    async def aclose(self) -> None:
        """Nobody reads on."""
        self._over = True
        await self._flow.aclose()

    async def abandon(self) -> None:
        """Nobody reads on, because whoever read it was cancelled."""
        self._over = True
        await self._flow.abandon()


class _Split:
    """Bytes cut where characters end, for as long as they are text."""

    def __init__(self) -> None:
        self._open = b""

    def next(self, piece: bytes, *, as_text: bool) -> str | bytes:
        """What can be judged now: of text only whole characters, the rest comes with the next piece."""
        data, self._open = self._open + piece, b""
        if not as_text:
            return data
        text, used = codecs.utf_8_decode(data, "strict", not piece)
        self._open = data[used:]
        return text


class _Count:
    """What a fingerprint needs of a stream."""

    def __init__(self) -> None:
        self.bytes: int = 0
        self._size = 0
        self._hash = hashlib.sha256()

    def feed(self, raw: bytes, data: str | bytes) -> None:
        self.bytes += len(raw)
        self._size += len(data)
        self._hash.update(raw)

    def fingerprint(self) -> Fingerprint:
        return Fingerprint(self._size, "sha256:" + self._hash.hexdigest())


async def stage(flow: Flow, status: Status | None) -> tuple[Flow, StreamResult]:
    """Read all of a flow into a private file; what it is then, for a rule to look at, and the flow that goes on.

    Raises:
        Ended: the stream came to something else.
        OSError: the temporary directory cannot hold it.
    """
    staged = _Staged(await _in_thread(_private_file))
    try:
        block: list[bytes] = []
        while piece := await flow.read():
            block.append(piece)
            if sum(map(len, block)) >= _BLOCK:
                await staged.write(b"".join(block))
                block.clear()
        await staged.write(b"".join(block))
    except BaseException:
        staged.close()
        raise
    gauge = flow.gauge
    result = StreamResult(gauge.media_type, gauge.bytes, gauge.size, staged.digest, status, staged.read_range)
    return flow.through(staged), result


class _Range:
    """A part of what is staged. It holds nothing, so a rule may stop anywhere."""

    def __init__(self, pread: Callable[[int, int], Awaitable[bytes]], start: int, end: int) -> None:
        self._pread = pread
        self._at = start
        self._end = end

    def __aiter__(self) -> _Range:
        return self

    async def __anext__(self) -> bytes:
        if self._at >= self._end:
            raise StopAsyncIteration
        piece = await self._pread(min(PIECE, self._end - self._at), self._at)
        self._at += len(piece)
        return piece


_limiter: RunVar[anyio.CapacityLimiter] = RunVar("coatcheck.steps.pieces")


async def _in_thread(work: Callable[[], _T]) -> _T:
    """Do ``work`` in a thread of our own lot: those that a host's own threads are counted in may all wait for us."""
    limiter = _limiter.get(None)
    if limiter is None:
        limiter = anyio.CapacityLimiter(_MAX_THREADS)
        _limiter.set(limiter)
    return await anyio.to_thread.run_sync(work, limiter=limiter)


def _private_file() -> IO[bytes]:
    return tempfile.TemporaryFile("w+b", buffering=0)


class _Staged:
    """A `coatcheck.flow.Source`: a file of no name, which goes when it is closed."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self._size = 0
        self._at = 0

    @property
    def digest(self) -> str:
        return "sha256:" + self._hash.hexdigest()

    async def write(self, block: bytes) -> None:
        await _in_thread(lambda: self._write(block))

    def _write(self, block: bytes) -> None:
        self._hash.update(block)
        rest = memoryview(block)
        while rest:
            rest = rest[self._file.write(rest) :]
        self._size += len(block)

    async def read(self) -> bytes:
        piece = await self.pread(PIECE, self._at)
        self._at += len(piece)
        return piece

    def read_range(self, start: int, end: int | None) -> AsyncIterator[bytes]:
        return _Range(self.pread, *check_range(start, end, self._size))

    async def pread(self, size: int, offset: int) -> bytes:
        return await _in_thread(lambda: os.pread(self._file.fileno(), size, offset))

    def close(self) -> None:
        self._file.close()

    async def aclose(self) -> None:
        self.close()

    async def abandon(self) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()  # where nobody took the stream in
