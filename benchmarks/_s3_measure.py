"""What the S3 benchmark looks at in the process that does the work, and the bytes that it works with."""

from __future__ import annotations

import asyncio
import hashlib
import json
import resource
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue

import msgspec
from _s3_sink import PATTERN_BYTES, pattern

__all__ = ["CHUNK", "Figures", "Handover", "content", "digest_of", "source", "ticking", "watched"]

CHUNK = 64 << 10
TICK_SECONDS = 0.0005


class Figures(msgspec.Struct):
    """What one round of one thing came to.

    Args:
        count, size: how many there were, and how many bytes altogether.
        seconds, cpu: of all of them; ``cpu`` of this process with its threads.
        peak: bytes of memory above what was there before.
        each: seconds of one, the median, where they were timed one by one.
        blocked: seconds; the longest that the event loop stood still.
        served: the share of a core that the server took meanwhile, where it tells.
        digest: of what was streamed, where that was computed.
    """

    count: int = 1
    size: int = 0
    seconds: float = 0
    cpu: float = 0
    peak: float = 0
    each: float | None = None
    blocked: float | None = None
    served: float | None = None
    digest: str | None = None


def content(number: int, size: int) -> bytes:
    """A body unlike that of every other number."""
    return number.to_bytes(8, "big") + pattern()[8:size]


async def source(size: int) -> AsyncIterator[bytes]:
    """A stream as it is made piece by piece: every chunk is an object of its own."""
    body = pattern()
    for start in range(0, size, CHUNK):
        offset = start % PATTERN_BYTES
        yield body[offset : offset + min(CHUNK, size - start)]


def digest_of(size: int) -> str:
    """SHA-256 of such a stream, as hexadecimal digits."""
    digest, body = hashlib.sha256(), memoryview(pattern())
    for start in range(0, size, PATTERN_BYTES):
        digest.update(body[: size - start])
    return digest.hexdigest()


def _spent() -> float:
    spent = resource.getrusage(resource.RUSAGE_SELF)
    return spent.ru_utime + spent.ru_stime


def _memory(name: str) -> int:
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) << 10
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak << 10


def _served(endpoint: str | None) -> tuple[float, float] | None:
    if endpoint is None:
        return None
    with urllib.request.urlopen(f"{endpoint}/-/usage", timeout=10) as answer:
        told = json.load(answer)
    return told["cpu"], told["seconds"]


@contextmanager
def watched(figures: Figures, sink: str | None = None) -> Iterator[None]:
    """Measure the block.

    Args:
        figures: what is filled in.
        sink: the address of the sink, where that is the server: it is asked what it spent.
    """
    served = _served(sink)
    with suppress(OSError):  # where it cannot be set back, the peak of the whole process is told
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    memory, cpu, began = _memory("VmRSS"), _spent(), time.perf_counter()
    yield
    figures.seconds = time.perf_counter() - began
    figures.cpu = _spent() - cpu
    figures.peak = max(0, _memory("VmHWM") - memory)
    after = _served(sink)
    if served and after:
        figures.served = (after[0] - served[0]) / (after[1] - served[1])


@asynccontextmanager
async def ticking(figures: Figures) -> AsyncIterator[None]:
    """Tell in ``figures.blocked`` how late the latest of many ticks came while the block ran."""
    latest = 0.0

    async def tick() -> None:
        nonlocal latest
        while True:
            before = time.perf_counter()
            await asyncio.sleep(TICK_SECONDS)
            latest = max(latest, time.perf_counter() - before - TICK_SECONDS)

    task = asyncio.create_task(tick())
    await asyncio.sleep(4 * TICK_SECONDS)
    latest = 0.0
    try:
        yield
        await asyncio.sleep(4 * TICK_SECONDS)  # the tick that was held up is heard
    finally:
        task.cancel()
    figures.blocked = latest


class Handover:
    """Chunks from the event loop to a thread that reads them as a file or one by one: how a peer that blocks is fed.

    At most ``limit`` bytes are between the two. The loop never waits for a lock, and is woken when half is gone. What
    the thread takes is hashed there, which was faster than in the loop.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._chunks: SimpleQueue[bytes | None] = SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._room = asyncio.Event()
        self._waits = False
        self._put = 0
        self._taken = 0
        self._rest = b""
        self.digest = hashlib.sha256()

    async def feed(self, chunks: AsyncIterator[bytes]) -> None:
        """All of them."""
        async for chunk in chunks:
            if self._put - self._taken >= self._limit:
                self._room.clear()
                self._waits = True
                if self._put - self._taken > self._limit // 2:
                    await self._room.wait()
                self._waits = False
            self._put += len(chunk)
            self._chunks.put(chunk)
        self._chunks.put(None)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._next, None)

    def _next(self) -> bytes | None:
        chunk = self._chunks.get()
        if chunk is None:
            self._chunks.put(None)  # the end stays the end
            return None
        self.digest.update(chunk)
        self._taken += len(chunk)
        if self._waits and self._put - self._taken <= self._limit // 2:
            self._waits = False
            self._loop.call_soon_threadsafe(self._room.set)
        return chunk

    def read(self, size: int = -1) -> bytes:
        """As a file gives them."""
        parts, missing = [], size if size >= 0 else sys.maxsize
        while missing > 0:
            chunk = self._rest or self._next()
            if not chunk:
                break
            parts.append(chunk[:missing])
            self._rest = chunk[missing:]
            missing -= len(parts[-1])
        return b"".join(parts)
