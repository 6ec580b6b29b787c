"""A stream on its way to the disk: blocks of one size, backpressure, and a loop that is never starved."""

from __future__ import annotations

import time
from array import array
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coatcheck.artifacts.blocks import BLOCK_BYTES, Blocks, pour
from coatcheck.errors import InvalidArtifact
from tests.artifacts._disk import Chunks

pytestmark = pytest.mark.anyio


def no_limit(size: int) -> None:
    return None


async def gathered(*chunks: Any) -> list[bytearray]:
    blocks = Blocks(Chunks(*chunks), no_limit)
    found: list[bytearray] = []
    while (block := await blocks.next()) is not None:
        found.append(block)
    assert await blocks.next() is None
    return found


@given(st.lists(st.integers(0, 2 * BLOCK_BYTES) | st.integers(0, 50), max_size=8))
def test_blocks_are_full_but_the_last_and_hold_every_byte_in_order(sizes: list[int]) -> None:
    chunks = [bytes([number + 1]) * size for number, size in enumerate(sizes)]
    found = anyio.run(gathered, *chunks)
    assert b"".join(found) == b"".join(chunks)
    assert all(len(block) == BLOCK_BYTES for block in found[:-1])
    assert all(0 < len(block) <= BLOCK_BYTES for block in found)


async def test_any_memory_of_bytes_is_taken_as_the_bytes_that_it_holds() -> None:
    square = memoryview(bytes(range(12))).cast("B", (3, 4))
    numbers = array("H", [1, 2, 3])
    every_other = memoryview(bytes(range(10)))[::2]
    views = (square, memoryview(numbers), every_other, memoryview(b""), bytearray(b"x"), memoryview(b"y"))
    [found] = await gathered(*views)
    assert found == bytes(range(12)) + numbers.tobytes() + bytes(range(0, 10, 2)) + b"xy"


async def test_a_source_may_change_and_resize_the_buffer_that_it_gave_when_it_is_asked_again() -> None:
    buffer = bytearray()

    async def source() -> AsyncIterator[bytes]:
        for size in (10, BLOCK_BYTES, 3 * BLOCK_BYTES + 5, 7):
            buffer[:] = bytes([size % 251]) * size
            yield buffer  # type: ignore[misc]  # what a careless producer gives

    blocks = Blocks(source(), no_limit)
    found = bytearray()
    while (block := await blocks.next()) is not None:
        found += block
    assert found == b"".join(bytes([size % 251]) * size for size in (10, BLOCK_BYTES, 3 * BLOCK_BYTES + 5, 7))


async def test_a_chunk_that_is_no_bytes_is_refused_by_its_number() -> None:
    with pytest.raises(InvalidArtifact, match=r"source\[2\] must be bytes, not str"):
        await gathered(b"a", b"b", "c")


async def test_the_size_is_judged_after_every_chunk_before_it_is_copied() -> None:
    sizes: list[int] = []
    blocks = Blocks(Chunks(b"ab", b"", b"cde"), sizes.append)
    assert await blocks.next() == bytearray(b"abcde")
    assert sizes == [2, 2, 5]


@pytest.mark.parametrize("chunk", [b"", b"x", b"x" * 1000], ids=len)
async def test_a_source_that_is_always_ready_lets_other_tasks_run(
    chunk: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = count()
    monkeypatch.setattr(time, "monotonic", lambda: next(clock) * 0.0005)  # half a millisecond a chunk

    async def source() -> AsyncIterator[bytes]:
        for _ in range(1000):
            yield chunk

    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await anyio.lowlevel.checkpoint()
            turns += 1

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(other)
        await anyio.lowlevel.checkpoint()
        blocks = Blocks(source(), no_limit)
        while await blocks.next() is not None:
            pass
        tasks.cancel_scope.cancel()
    assert turns > 60


# Pouring


async def poured(source: Any, write: Any) -> None:
    blocks = Blocks(source, no_limit)
    first = await blocks.next()
    assert first is not None
    await pour(blocks, first, write)


async def test_the_next_block_is_gathered_while_one_is_written_and_no_more_than_that() -> None:
    made = written = 0
    most = 0

    async def source() -> AsyncIterator[bytes]:
        nonlocal made, most
        for _ in range(20):
            made += 1
            most = max(most, made - written)
            yield bytes(BLOCK_BYTES)

    async def write(block: bytearray) -> None:
        nonlocal written
        for _ in range(10):
            await anyio.lowlevel.checkpoint()
        written += 1

    await poured(source(), write)
    assert (made, written) == (20, 20)
    assert 2 <= most <= 4


async def test_what_the_source_raises_goes_on_as_it_is_after_what_was_begun() -> None:
    class Mine(Exception):
        pass

    error = Mine()
    written: list[int] = []

    async def write(block: bytearray) -> None:
        written.append(len(block))

    with pytest.raises(Mine) as raised:
        await poured(Chunks(bytes(BLOCK_BYTES), bytes(BLOCK_BYTES), fail=error), write)
    assert raised.value is error


async def test_a_write_that_fails_ends_a_source_that_hangs() -> None:
    cancelled = False

    async def source() -> AsyncIterator[bytes]:
        nonlocal cancelled
        yield bytes(BLOCK_BYTES)
        try:
            await anyio.sleep_forever()
        except BaseException:
            cancelled = True
            raise

    async def write(block: bytearray) -> None:
        raise OSError("full")

    with anyio.fail_after(5), pytest.raises(OSError, match="full"):
        await poured(source(), write)
    assert cancelled


async def test_the_source_is_asked_in_the_task_that_called() -> None:
    tasks: set[int] = set()

    async def source() -> AsyncIterator[bytes]:
        for _ in range(3):
            tasks.add(anyio.get_current_task().id)
            yield bytes(BLOCK_BYTES)

    async def write(block: bytearray) -> None:
        return None

    await poured(source(), write)
    assert tasks == {anyio.get_current_task().id}
