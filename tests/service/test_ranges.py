"""Ranges: what is answered is the slice, whatever is asked."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import coatcheck as cc
from coatcheck.service.ranges import ByteRange, Unsatisfiable, parse_range
from tests.service._door import client, door, put

NUMBERS = st.integers(0, 40) | st.integers(0, 10**40)
SPACES = st.sampled_from(["", " ", "\t ", ","])


@st.composite
def spelled(draw: st.DrawFn) -> tuple[str, int | None, int | None]:
    """A range as somebody may write it, with its two numbers: ``first-last``, ``first-`` or ``-suffix``."""
    first, last = draw(st.sampled_from([(True, True), (True, False), (False, True)]))
    numbers = [draw(NUMBERS) if there else None for there in (first, last)]
    texts = ["" if number is None else "0" * draw(st.integers(0, 30)) + str(number) for number in numbers]
    unit = draw(st.sampled_from(["bytes", "Bytes", "BYTES"]))
    return f"{unit}={draw(SPACES)}{texts[0]}-{texts[1]}{draw(SPACES)}", numbers[0], numbers[1]


def slice_of(data: bytes, first: int | None, last: int | None) -> bytes | None:
    """What RFC 9110 says is in a range of ``data``; ``None``: nothing is, and it is a 416."""
    if first is None:
        assert last is not None
        return None if last == 0 else data[max(0, len(data) - last) :]
    if first >= len(data):
        return None
    return data[first:] if last is None else data[first : last + 1]


@given(data=st.binary(max_size=50), asked=spelled())
@settings(max_examples=300)
def test_a_range_is_the_slice_that_the_rfc_describes(data: bytes, asked: tuple[str, int | None, int | None]) -> None:
    header, first, last = asked
    parsed = parse_range(header)
    if first is not None and last is not None and last < first:
        assert parsed is None
        return
    assert parsed is not None
    expected = slice_of(data, first, last)
    if expected is None:
        with pytest.raises(Unsatisfiable):
            parsed.resolve(len(data))
        return
    found = parsed.resolve(len(data))
    assert found is None if not data else found is not None
    if found is not None:
        assert data[slice(*found)] == expected != b""


@pytest.mark.parametrize(
    "header",
    [
        "",
        "bytes",
        "bytes=",
        "bytes=,",
        "bytes=-",
        "bytes=--1",
        "bytes=1-0",
        "bytes=a-b",
        "bytes=0-1,2-3",
        "bytes=-1,-1",
        "bytes = 0-1",
        "bytes=0 -1",
        "bytes=+0-1",
        "bytes=\u0660-\u0661",
        "bytes=0x0-0x1",
        "bytes=1e1-",
        "items=0-1",
        "bytes=0-1;",
        "bytes=0-1\n",
        "bytes=" + "0-0," * 5000,
    ],
)
def test_what_is_no_single_range_is_ignored(header: str) -> None:
    assert parse_range(header) is None


def test_numbers_of_any_length_are_read() -> None:
    far = "9" * 100_000
    assert parse_range(f"bytes=0-{far}") is not None
    assert parse_range(f"bytes={far}8-{far}9") is not None
    assert parse_range(f"bytes={far}-{far[1:]}") is None
    assert ByteRange(suffix=10**18).resolve(5) == (0, 5)


@pytest.mark.anyio
@given(
    data=st.binary(max_size=60),
    header=st.one_of(spelled().map(lambda it: it[0]), st.text("bytes=-, 0123", max_size=20)),
)
@settings(max_examples=60)
async def test_what_is_answered_is_what_content_range_says_or_the_whole(data: bytes, header: str) -> None:
    store = cc.MemoryStore()
    meta = await put(store, data)
    async with client(door(store)) as asks:
        response = await asks.get(f"/artifacts/{meta.ref}", headers={"Range": header})
    parsed = parse_range(header)
    if response.status_code == 206:
        match = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", response.headers["content-range"])
        assert match is not None
        first, last, size = map(int, match.groups())
        assert size == len(data)
        assert response.content == data[first : last + 1] != b""
        assert parsed is not None
        assert parsed.resolve(len(data)) == (first, last + 1)
    elif response.status_code == 416:
        assert response.headers["content-range"] == f"bytes */{len(data)}"
        assert parsed is not None
        with pytest.raises(Unsatisfiable):
            parsed.resolve(len(data))
    else:
        assert (response.status_code, response.content) == (200, data)
        assert "content-range" not in response.headers
        assert parsed is None or parsed.resolve(len(data)) is None


@pytest.mark.anyio
@pytest.mark.parametrize(
    "asked", [(0, 0), (1, 700_000), (299_999, 700_001), (699_990, None), (None, 300_000), (None, 7)]
)
async def test_ranges_of_a_large_payload_are_its_slices(
    store: cc.ArtifactStore, asked: tuple[int | None, int | None]
) -> None:
    data = bytes(range(256)) * 3000
    meta = await put(store, data)
    first, last = asked
    header = f"bytes={'' if first is None else first}-{'' if last is None else last}"
    async with client(door(store)) as asks:
        response = await asks.get(f"/artifacts/{meta.ref}", headers={"Range": header})
    assert response.status_code == 206
    assert response.content == slice_of(data, first, last)
    assert int(response.headers["content-length"]) == len(response.content)


@pytest.mark.anyio
async def test_ranges_put_together_are_the_payload(tmp_path: Path) -> None:
    store = cc.DirectoryStore(tmp_path / "store")
    data = bytes(range(251)) * 4000
    meta = await put(store, data)
    got = b""
    async with client(door(store)) as asks:
        while len(got) < len(data):
            header = {"Range": f"bytes={len(got)}-{len(got) + 123_456}", "If-Range": f'"{meta.digest}"'}
            response = await asks.get(f"/artifacts/{meta.ref}", headers=header)
            assert response.status_code == 206
            got += response.content
    assert got == data
