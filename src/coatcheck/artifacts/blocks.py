"""A stream on its way to the disk: chunks of any size become blocks of one size, at the pace of the slower side.

Laws (`design.md` section 4; the port's `put_stream`):

* The source is asked in the task that called, and feels the pace of what takes its blocks: at most four are in memory.
* A source that is always ready does not starve the loop, and a huge chunk is taken in slices.
* A chunk is copied before the next one is asked for, so a source may use its buffer again.
* What the source raises goes on unchanged; so does what the other side raises, and the source is then cancelled.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterable, Awaitable, Callable

from anyio import create_memory_object_stream, create_task_group
from anyio.lowlevel import checkpoint

from coatcheck.artifacts.meta import check_chunk

__all__ = ["BLOCK_BYTES", "Blocks", "pour"]

BLOCK_BYTES = 1 << 20
"""Large enough that handing a block to a thread costs little beside hashing it."""

_LONGEST_TURN = 0.004
_NOTHING = memoryview(b"")


class Blocks:
    """The chunks of a source as blocks.

    Args:
        source: chunks of bytes.
        check_size: is told how many bytes came so far, after every chunk; what it raises goes on.
    """

    def __init__(self, source: AsyncIterable[bytes], check_size: Callable[[int], None]) -> None:
        self._chunks = aiter(source)
        self._check_size = check_size
        self._chunk = _NOTHING
        self._count = self._size = 0
        self._ended = False
        self._due = time.monotonic() + _LONGEST_TURN

    async def next(self) -> bytearray | None:
        """The next block: a full one, or at the end what is left; ``None`` after it.

        Raises:
            InvalidArtifact: a chunk is no bytes.
        """
        block = bytearray()
        while len(block) < BLOCK_BYTES and (self._chunk or await self._pull()):
            rest = BLOCK_BYTES - len(block)
            block += self._chunk[:rest]
            self._chunk = self._chunk[rest:] or _NOTHING  # no view is left on a buffer that may be used again
            if time.monotonic() >= self._due:
                await checkpoint()
                self._due = time.monotonic() + _LONGEST_TURN
        return block or None

    async def _pull(self) -> bool:
        """Ask for the next chunk; False: there is none."""
        if self._ended:
            return False
        try:
            chunk = await anext(self._chunks)
        except StopAsyncIteration:
            self._ended = True
            return False
        with memoryview(check_chunk(chunk, self._count)) as view:
            self._count += 1
            self._size += view.nbytes
            self._check_size(self._size)
        self._chunk = _as_bytes(chunk)
        return True

    def release(self) -> None:
        """Let go of the chunk in hand, where nobody wants the rest: its producer may want its buffer."""
        self._chunk = _NOTHING


async def pour(blocks: Blocks, first: bytearray, write: Callable[[bytearray], Awaitable[None]]) -> None:
    """Write ``first`` and every block after it, each while the next one is gathered."""
    failed: list[Exception] = []
    ready, taken = create_memory_object_stream[bytearray](1)

    def fail(error: Exception) -> None:
        failed.append(error)
        group.cancel_scope.cancel()

    async def write_all() -> None:
        try:
            async for block in taken:
                await write(block)
        except Exception as error:  # noqa: BLE001 - raised below, as it is
            fail(error)

    # Closed by nobody who was cancelled, or the other side would meet that instead of its own cancellation.
    with ready, taken:
        async with create_task_group() as group:
            group.start_soon(write_all)
            try:
                block: bytearray | None = first
                while block is not None:
                    await ready.send(block)
                    block = await blocks.next()
            except Exception as error:  # noqa: BLE001 - raised below, as it is
                fail(error)
            ready.close()
    if failed:
        raise failed[0]


def _as_bytes(chunk: bytes | bytearray | memoryview) -> memoryview:
    view = memoryview(chunk)
    # Other memory than plain bytes in a row is rare, and is spelled out.
    return view if view.c_contiguous and view.format == "B" and view.ndim == 1 else memoryview(view.tobytes())
