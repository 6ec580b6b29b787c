"""Parts by lines and characters: what is cut from chunks is what Python cuts from the whole."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coatcheck.errors import InvalidRange
from coatcheck.readers.ranges import CharCutter, LineCutter, Part, parse_lines, parse_slice

TEXTS = st.text(st.sampled_from("ab\n\rö€😀\u2028"), max_size=40)
PLACES = st.lists(st.integers(0, 200), max_size=6)
NUMBERS = st.none() | st.integers(0, 45)


def chunks(data: bytes, places: Sequence[int]) -> list[bytes]:
    """``data`` cut at ``places``, empty chunks among them."""
    edges = [0, *sorted(min(place, len(data)) for place in places), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


def cut(cutter: LineCutter | CharCutter, pieces: Sequence[bytes]) -> bytes:
    found = b""
    for piece in pieces:
        found += cutter.feed(piece)
        if cutter.done:
            return found
    return found + (cutter.feed(b"", last=True) if isinstance(cutter, CharCutter) else b"")


def spell(number: int | None) -> str:
    return "" if number is None else str(number)


@given(TEXTS, PLACES, NUMBERS, NUMBERS)
def test_characters_are_those_of_a_slice(text: str, places: list[int], start: int | None, end: int | None) -> None:
    if start is not None and end is not None and end < start:
        start, end = end, start
    part = parse_slice(f"{spell(start)}:{spell(end)}")
    assert cut(CharCutter(part), chunks(text.encode(), places)).decode() == text[start:end]


@given(TEXTS, PLACES, NUMBERS.filter(lambda number: number != 0), NUMBERS.filter(lambda number: number != 0))
def test_lines_are_those_between_newlines(text: str, places: list[int], first: int | None, last: int | None) -> None:
    if first is not None and last is not None and last < first:
        first, last = last, first
    part = parse_lines(f"{spell(first)}:{spell(last)}")
    expected = "".join(text.splitlines(keepends=True)[part.start : part.end]) if text.isascii() else None
    lines = text.replace("\n", "\n\0").split("\0")
    assert cut(LineCutter(part), chunks(text.encode(), places)).decode() == "".join(lines[part.start : part.end])
    if expected is not None and "\r" not in text:
        assert "".join(lines[part.start : part.end]) == expected


@given(TEXTS, st.integers(0, 45), st.integers(0, 45))
def test_a_cutter_is_done_as_soon_as_nothing_more_is_wanted(text: str, start: int, length: int) -> None:
    cutter = CharCutter(Part(start, start + length))
    cutter.feed(text.encode())
    assert cutter.done == (len(text) >= start + length or not length)


def test_one_huge_line_costs_no_more_than_its_chunks() -> None:
    cutter = LineCutter(parse_lines("2:2"))
    chunk = b"x" * 1_000_000
    assert not any(cutter.feed(chunk) for _ in range(20))
    assert cutter.feed(b"x\nsecond\nthird") == b"second\n"
    assert cutter.done


@pytest.mark.parametrize("text", ["", "5", "1-2", "a:b", "-1:2", ":-1", "1:2:3", " 1:2", "1 :2", "1:٣", "9" * 19 + ":"])
@pytest.mark.parametrize("parse", [parse_lines, parse_slice])
def test_what_is_no_range_is_refused(parse: object, text: str) -> None:
    assert callable(parse)
    with pytest.raises(InvalidRange, match="a range is A:B"):
        parse(text)


def test_a_range_that_ends_before_it_starts_is_refused() -> None:
    for parse, text in ((parse_lines, "3:2"), (parse_slice, "3:2")):
        with pytest.raises(InvalidRange, match="ends before it starts"):
            parse(text)
    assert parse_lines("3:3") == Part(2, 3)
    assert parse_slice("3:3") == Part(3, 3)
    assert parse_slice(":") == parse_lines(":") == Part(0, None)


def test_lines_are_counted_from_one() -> None:
    for text in ("0:3", ":0", "0:"):
        with pytest.raises(InvalidRange, match="counted from 1"):
            parse_lines(text)


@pytest.mark.parametrize("data", [b"a\xff", b"\xe2\x82", b"\xed\xa0\x80"])
def test_characters_of_what_is_no_utf8_are_refused(data: bytes) -> None:
    with pytest.raises(UnicodeDecodeError):
        cut(CharCutter(Part(0, None)), [data])
