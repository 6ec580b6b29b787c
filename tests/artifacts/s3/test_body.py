"""Payloads on their way out: parts of exact sizes from any chunks, and bodies that can be sent again."""

from __future__ import annotations

import binascii
import hashlib
import tracemalloc
from base64 import b64encode
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing
from itertools import count

import anyio
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from coatcheck.artifacts.s3.body import (
    PIECE_BYTES,
    SENT_BYTES,
    Body,
    Hasher,
    Part,
    Parts,
    base64_of,
    hash_of,
    summed_up,
)
from coatcheck.artifacts.s3.upload import part_bytes
from coatcheck.artifacts.workers import Workers
from coatcheck.errors import InvalidArtifact
from coatcheck.testing.trial import Source

KIB = 1 << 10
TERA = 10**12


async def gathered(chunks: Iterable[bytes], sizes: Iterable[int]) -> tuple[list[list[bytes]], list[int]]:
    """The parts of a source, each so large, and how many bytes it was told of."""
    told: list[int] = []
    parts = Parts(Source(*chunks), told.append)
    made: list[list[bytes]] = []
    for size in sizes:
        pieces = await parts.next(size)
        if not pieces:
            break
        made.append(pieces)
    assert await parts.next(1) == [], "what has ended has ended"
    return made, told


chunkings = st.lists(st.binary(max_size=7) | st.sampled_from([b"", b"x" * PIECE_BYTES, b"y" * 70_000]), max_size=12)


@given(chunkings, st.lists(st.integers(1, 9) | st.sampled_from([65_536, 2 * PIECE_BYTES]), min_size=1, max_size=6))
@example([], [1])
@example([b"", b""], [1])
@example([b"abc"], [3])
@example([b"abcdef"], [3])
@example([b"z" * (3 * PIECE_BYTES)], [PIECE_BYTES])
def test_any_chunks_make_parts_of_exactly_the_size_that_is_asked_for(chunks: list[bytes], sizes: list[int]) -> None:
    whole = b"".join(chunks)
    asked = [*sizes, *([len(whole)] if whole else []), 1]

    made, told = anyio.run(gathered, chunks, asked)

    assert b"".join(piece for pieces in made for piece in pieces) == whole
    lengths = [sum(map(len, pieces)) for pieces in made]
    assert lengths[:-1] == asked[: max(0, len(lengths) - 1)]
    assert all(length <= size for length, size in zip(lengths, asked, strict=False))
    assert all(type(piece) is bytes and piece for pieces in made for piece in pieces)
    assert (told or [0])[-1] == len(whole)
    assert told == sorted(told)


@pytest.mark.anyio
async def test_whether_there_is_more_is_known_without_losing_it() -> None:
    parts = Parts(Source(*[b"abc", b"", b"d", b""]), lambda size: None)
    assert await parts.next(3) == [b"abc"]
    assert await parts.more()
    assert await parts.more()
    assert await parts.next(9) == [b"d"]
    assert not await parts.more()
    assert await parts.next(9) == []


@pytest.mark.anyio
@pytest.mark.parametrize("view", [False, True])
async def test_a_buffer_that_the_source_uses_again_is_copied_before_it_is_asked_for_more(view: bool) -> None:
    async def reusing() -> AsyncIterator[bytes]:
        buffer = bytearray(4)
        for number in range(200):
            buffer[:] = b"%04d" % number
            yield memoryview(buffer) if view else buffer  # type: ignore[misc]  # a source may give any buffer

    pieces = await Parts(reusing(), lambda size: None).next(10_000)
    assert b"".join(pieces) == b"".join(b"%04d" % number for number in range(200))


@pytest.mark.anyio
async def test_many_tiny_chunks_weigh_little_more_than_their_bytes() -> None:
    async def tiny() -> AsyncIterator[bytes]:
        for number in range(100_000):
            yield b"%05d" % number

    parts = Parts(tiny(), lambda size: None)
    tracemalloc.start()
    try:
        pieces = await parts.next(1 << 20)
        weight, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sum(map(len, pieces)) == 500_000
    assert len(pieces) <= 2
    assert weight < 600_000


@pytest.mark.anyio
async def test_a_chunk_that_is_no_bytes_is_refused_by_its_number() -> None:
    parts = Parts(Source(*[b"a", "b"]), lambda size: None)
    with pytest.raises(InvalidArtifact, match=r"source\[1\]"):
        await parts.next(9)


@pytest.mark.anyio
async def test_what_the_judge_of_sizes_and_the_source_raise_goes_on() -> None:
    def judge(size: int) -> None:
        if size > 3:
            raise InvalidArtifact("too large")

    parts = Parts(Source(*[b"abc", b"d"]), judge)
    with pytest.raises(InvalidArtifact, match="too large"):
        await parts.next(9)

    async def failing(asked: int) -> None:
        if asked == 1:
            raise LookupError("of its own")

    with pytest.raises(LookupError, match="of its own"):
        await Parts(Source(b"a", b"b", before=failing), lambda size: None).next(9)


class Other:
    """Another task, which takes as many turns as it is let have."""

    turns = 0

    async def take(self) -> None:
        while True:
            await anyio.lowlevel.checkpoint()
            self.turns += 1


@pytest.mark.anyio
async def test_a_source_that_never_waits_lets_the_other_tasks_have_their_turns() -> None:
    other = Other()

    async def ready() -> AsyncIterator[bytes]:
        for _ in count():
            yield b"x"
            if other.turns >= 3:
                return

    async with anyio.create_task_group() as group:
        group.start_soon(other.take)
        await Parts(ready(), lambda size: None).next(1 << 40)  # which has no end unless the other task has its turns
        group.cancel_scope.cancel()


@pytest.mark.anyio
async def test_a_server_that_takes_all_at_once_lets_the_other_tasks_have_their_turns() -> None:
    other = Other()

    async with anyio.create_task_group() as group:
        group.start_soon(other.take)
        sent = [piece async for piece in Body([bytes(5 * SENT_BYTES), b"the end"], None)]
        group.cancel_scope.cancel()
    assert len(sent) == 6
    assert other.turns >= 3, "about one between two pieces"


@pytest.mark.anyio
async def test_large_chunks_are_joined_by_the_megabyte_and_no_larger_than_a_part() -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for number in range(160):
            yield bytes([number]) * (1 << 16)

    parts = Parts(chunks(), lambda size: None)
    assert [len(piece) for piece in await parts.next(5 << 20)] == [2 << 20, 2 << 20, 1 << 20]
    assert [len(piece) for piece in await parts.next(9 << 20)] == [2 << 20, 2 << 20, 1 << 20]


@given(st.lists(st.binary(min_size=1, max_size=9) | st.just(b"p" * (2 * SENT_BYTES + 1)), max_size=5))
def test_a_body_is_sent_again_from_its_start_piece_by_piece(pieces: list[bytes]) -> None:
    async def sent() -> None:
        body = Body(pieces, None)
        whole = b"".join(pieces)
        assert len(body) == body.length == len(whole)
        async with aclosing(aiter(body)) as half:  # type: ignore[type-var]  # it is a generator
            await anext(half, None)  # an attempt that broke off
        for _ in range(2):
            assert body.tell() == 0
            body.seek(0)
            came = [piece async for piece in body]
            assert b"".join(came) == whole
            assert all(0 < len(piece) <= SENT_BYTES for piece in came)
        assert await body.read() == whole

    anyio.run(sent)


@pytest.mark.anyio
@pytest.mark.parametrize("pieces", [[], [b""], [b"a", b"bc"], [b"x" * PIECE_BYTES, b"y"], [b"z" * (3 * PIECE_BYTES)]])
async def test_sums_are_those_of_the_whole_however_it_is_cut(pieces: list[bytes]) -> None:
    whole = b"".join(pieces)
    digest, crc32 = hashlib.sha256(whole), b64encode(binascii.crc32(whole).to_bytes(4)).decode()
    assert await hash_of(Workers(), pieces) == digest.hexdigest()
    assert base64_of(digest.hexdigest()) == b64encode(digest.digest()).decode()
    hasher = Hasher()
    assert summed_up(pieces, "crc32", hasher) == Part(pieces, crc32=crc32)
    assert summed_up(pieces, "sha256", hasher) == Part(pieces, sha256=digest.hexdigest())
    assert summed_up(pieces, "crc32", None) == Part(pieces, crc32=crc32)
    assert hasher.hexdigest == hashlib.sha256(whole + whole).hexdigest(), "of all parts, in their order"


async def worked(chunk: bytes, part: int) -> int:
    """How many bytes are copied, at the most, to make parts of one chunk: by what the parts and the rest hold."""
    parts, copied = Parts(Source(chunk), lambda size: None), 0
    while pieces := await parts.next(part):
        copied += sum(map(len, pieces))
        assert not isinstance(parts._rest, bytes) or parts._rest in (b"", chunk), "the rest of a chunk is not copied"
    return copied


@pytest.mark.anyio
@pytest.mark.parametrize("part", [1, 999, 1000, 1001, 4096])
async def test_a_chunk_of_many_parts_is_copied_once_and_not_for_every_part(part: int) -> None:
    assert await worked(bytes(4096), part) == 4096


@pytest.mark.parametrize("first", [5 << 20, 8 << 20, 64 << 20, 5 << 30])
def test_parts_grow_so_that_ten_thousand_reach_five_terabytes_and_none_is_too_large(first: int) -> None:
    sizes = [part_bytes(number, first) for number in range(10_000)]
    assert sizes[:1000] == [first] * 1000
    assert sizes == sorted(sizes)
    assert max(sizes) <= 5 << 30
    assert sum(sizes) > 5 * TERA
