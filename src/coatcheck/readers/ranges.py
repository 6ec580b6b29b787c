"""Parts of a payload by lines, characters or bytes, without ever holding more than a chunk of it. Pure.

    --lines A:B   lines A to B, counted from 1, B included. A line ends with its newline
    --chars A:B   characters (code points), counted from 0, B not included, as Python slices
    --bytes A:B   bytes, likewise

An end that is left out is that of the payload. What is past the payload's end is nothing, and no error.
"""

from __future__ import annotations

import codecs
import re
from typing import NamedTuple

from coatcheck.errors import InvalidRange

__all__ = ["CharCutter", "LineCutter", "Part", "behind_newline", "parse_lines", "parse_slice"]

_FORM = re.compile("([0-9]{0,18}):([0-9]{0,18})", re.ASCII)


class Part(NamedTuple):
    """From ``start``, counted from 0, up to and without ``end``; ``None`` is the end of the payload."""

    start: int
    end: int | None


def parse_slice(text: str) -> Part:
    """``A:B`` counted from 0, without ``B``.

    Raises:
        InvalidRange: it is none.
    """
    first, last = _numbers(text)
    part = Part(first or 0, last)
    if last is not None and last < part.start:
        raise InvalidRange(f"the range {text} ends before it starts")
    return part


def parse_lines(text: str) -> Part:
    """``A:B`` counted from 1, with ``B``, as a part counted from 0.

    Raises:
        InvalidRange: it is none.
    """
    first, last = _numbers(text)
    if first == 0 or last == 0:
        raise InvalidRange("lines are counted from 1: the first line is 1:1")
    start = (first or 1) - 1
    if last is not None and last <= start:
        raise InvalidRange(f"the range {text} ends before it starts")
    return Part(start, last)


def _numbers(text: str) -> tuple[int | None, int | None]:
    match = _FORM.fullmatch(text)
    if match is None:
        raise InvalidRange(
            "a range is A:B, two whole numbers of at most 18 digits; either may be left out, as in 10: or :20"
        )
    first, last = (int(number) if number else None for number in match.groups())
    return first, last


class LineCutter:
    """Cuts lines out of bytes that come in chunks.

    Attributes:
        done: whether nothing that is still to come is wanted.
    """

    def __init__(self, part: Part) -> None:
        self._skip = part.start
        self._take = None if part.end is None else part.end - part.start
        self.done: bool = self._take == 0

    def feed(self, chunk: bytes) -> bytes:
        """What is wanted of the next chunk."""
        start = 0
        if self._skip:
            ends = chunk.count(b"\n")
            if ends < self._skip:
                self._skip -= ends
                return b""
            start = behind_newline(chunk, self._skip)
            self._skip = 0
        if self._take is None:
            return chunk[start:]
        ends = chunk.count(b"\n", start)
        if ends < self._take:
            self._take -= ends
            return chunk[start:]
        self.done = True
        return chunk[start : behind_newline(chunk, self._take, start)]


def behind_newline(chunk: bytes, nth: int, start: int = 0) -> int:
    """The place behind the ``nth`` newline (counted from 1) from ``start`` on, which is there."""
    end = len(chunk)
    while end - start > 1:
        middle = (start + end) // 2
        ends = chunk.count(b"\n", start, middle)
        if ends >= nth:
            end = middle
        else:
            nth -= ends
            start = middle
    return end


class CharCutter:
    """Cuts characters out of UTF-8 that comes in chunks, which may end within a character.

    Attributes:
        done: whether nothing that is still to come is wanted.
    """

    def __init__(self, part: Part) -> None:
        self._part = part
        self._decoder = codecs.getincrementaldecoder("utf-8")("strict")
        self._seen = 0
        self.done: bool = part.end == part.start

    def feed(self, chunk: bytes, *, last: bool = False) -> bytes:
        """What is wanted of the next chunk.

        Args:
            last: no other follows, so a character that is not complete is none.

        Raises:
            UnicodeDecodeError: it is no UTF-8.
        """
        text = self._decoder.decode(chunk, last)
        start, end = self._part
        begin, self._seen = self._seen, self._seen + len(text)
        if end is not None and self._seen >= end:
            self.done = True
        return text[max(start - begin, 0) : None if end is None else max(end - begin, 0)].encode()
