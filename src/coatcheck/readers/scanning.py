"""Searches bytes that come in chunks, line by line. Pure but for the clock.

Laws:

* What is found does not depend on how the payload comes in chunks, and equals what a search of each line finds. In a
  line of more than 4 KiB, such as JSON without newlines, that is more than the first match: every one that is not shown
  with the one before it.
* Memory is bounded whatever the length of the payload and of its lines: a line of more than a mebibyte (for a
  pattern of many states, 64 KiB) is searched in overlapping windows, which miss at most a match of more than a
  sixteenth of that. No window finds what the line does not hold.
* It ends after some seconds, whatever the pattern, and says where to search on.
"""

from __future__ import annotations

import time
from contextlib import suppress
from importlib import import_module
from typing import Any, NamedTuple

from coatcheck.readers.characters import belonging_before, decode
from coatcheck.readers.matching import Matcher

_library: Any = None
with suppress(ImportError):  # of the extra `readers`; it counts seven times as fast as bytes do
    _library = import_module("stringzilla")

__all__ = ["SECONDS", "Hit", "Scanner", "newlines"]

SECONDS = 20.0
"""How long one search goes on; then it answers with what it has, and says where to search on."""

_BLOCK = 2 << 20
_WORK = 1 << 26
_SMALLEST_STEP = 1 << 14
_LINES_AT_ONCE = 256
_LONG = 1 << 20
_HEAVY = 256
_LONG_FOR_HEAVY = 1 << 16
_OVERLAPPING = 16
_SEEN_BEFORE = 8
_MATCHES_AGAIN = 4096  # bytes of a line, from which on it is found again and again
_LINE_SHOWN = 300
_BEFORE_SHOWN = 100


class Hit(NamedTuple):
    """A line that matches.

    Attributes:
        line: its number, counted from 1; ``None`` where the search did not begin at a line whose number was known.
        start: the byte at which it begins.
        at: the byte at which its first match begins.
        shown: the line as bytes, or so much of it around the match as is shown.
        shown_from: the byte at which that begins.
        whole: ``shown`` is all of the line.
    """

    line: int | None
    start: int
    at: int
    shown: bytes
    shown_from: int
    whole: bool

    @property
    def text(self) -> str:
        """What is shown, as text in one line."""
        text = decode(self.shown, len(self.shown), last=True)[0]
        return text.rstrip("\r\n")


def newlines(data: bytes, start: int, end: int) -> int:
    """How many there are between two places."""
    return data.count(b"\n", start, end) if _library is None else int(_library.count(data, b"\n", start, end))


class Scanner:
    """Searches bytes that come in chunks, line by line.

    Attributes:
        hits: what was found.
        resume: once ``limit`` lines were found, or the time was over: the byte at which to go on, and the number of the
            line there.
        given_up: set by whoever does not wait any more.
        timed_out: the search was ended before its time.

    Args:
        matcher: what finds.
        limit: how many matching lines are wanted.
        offset: the byte of the payload with which the first chunk begins.
        line: the number of the line there; ``None``: nobody knows.
        seconds: how long to search, from now on.
    """

    def __init__(
        self,
        matcher: Matcher,
        limit: int,
        *,
        offset: int = 0,
        line: int | None = 1,
        seconds: float = SECONDS,
    ) -> None:
        self._matcher = matcher
        self._limit = limit
        self._base = offset
        self._line = 1 if line is None else line
        self._numbered = line is not None
        self._rest = b""
        # Inside of a line that is too long to be held: where it begins, and from where on to look.
        self._long: tuple[int, int] | None = None
        self._window_bytes = _LONG if matcher.cost <= _HEAVY else _LONG_FOR_HEAVY
        self._reached = 0
        self._step = max(min(_WORK // matcher.cost, _BLOCK), _SMALLEST_STEP)
        self._deadline = time.monotonic() + seconds
        self.given_up = False
        self.timed_out: bool = False
        self.hits: list[Hit] = []
        self.resume: tuple[int, int | None] | None = None

    def feed(self, chunk: bytes, *, last: bool = False) -> bool:
        """Search the next chunk; False once no more is wanted.

        Args:
            last: nothing follows.
        """
        if (
            self._rest and self._long is None
        ):  # the line that the last chunk cut off, by itself: nothing large is copied
            newline = chunk.find(b"\n") + 1
            if newline:
                line = self._rest + chunk[:newline]
                self._block(line, 0, len(line))
                self._base += len(line) - newline
                self._rest = b""
                return self._search(chunk, newline, last)
        data = self._rest + chunk if self._rest else chunk
        self._rest = b""
        return self._search(data, 0, last)

    def _search(self, data: bytes, start: int, last: bool) -> bool:
        """Search ``data``, which begins at the byte ``_base``, from ``start`` on."""
        if self._long is not None and self.resume is None:
            newline = data.find(b"\n")
            if newline < 0 and not last:
                self._window(data)
                return self.resume is None
            start = len(data) if newline < 0 else newline + 1
            self._end_of_long(data, len(data) if newline < 0 else newline, start)
        if self.resume is None:
            end = len(data) if last else data.rfind(b"\n", start) + 1
            if end > start:
                self._block(data, start, end)
                start = end
        if self.resume is not None:
            return False
        self._rest = data[start:] if start else data
        self._base += start
        if len(self._rest) > self._window_bytes and not last:
            rest, self._rest = self._rest, b""
            self._long = (self._base, 0)
            self._window(rest)
        return self.resume is None

    def _block(self, data: bytes, start: int, end: int) -> None:
        """Search whole lines."""
        if self._matcher.by_line:
            self._each_line(data, start, end)
            return
        at = counted = start
        piece = self._piece(data, at, end)
        while at < end:
            if piece - at > self._window_bytes and self._matcher.cost > _HEAVY:  # it is one line
                match = self._in_windows(data, at, piece)
                if self.timed_out:
                    self._line += newlines(data, counted, at) if self._numbered else 0
                    self.resume = (self._base + self._reached, self._line if self._numbered else None)
                    return
            else:
                match = self._matcher.find(data, at, piece)
            if match is None or (match[0] == piece and data[piece - 1] == 0x0A):  # behind the last line is none
                if piece == end:
                    break
                at = piece
                piece = self._piece(data, at, end)
                if self._out_of_time():
                    self._line += newlines(data, counted, at) if self._numbered else 0
                    self.resume = (self._base + at, self._line if self._numbered else None)
                    return
                continue
            begin = data.rfind(b"\n", start, match[0]) + 1 or start
            behind = data.find(b"\n", match[0], end)
            behind = end if behind < 0 else behind
            if self._numbered:
                self._line += newlines(data, counted, begin)
            counted = begin
            self._keep(data, begin, match[0], match[1], behind)
            at = _beyond(match)
            in_line = behind - begin > _MATCHES_AGAIN and at < behind
            if not in_line:
                at = behind + 1
            if self._full(at, end, in_line=in_line):
                return
            if at >= piece:
                piece = self._piece(data, at, end)
        if self._numbered:
            self._line += newlines(data, counted, end)

    def _piece(self, data: bytes, start: int, end: int) -> int:
        """Where so many lines end as are searched at once."""
        if end - start <= self._step:
            return end
        return data.rfind(b"\n", start, start + self._step) + 1 or data.find(b"\n", start + self._step, end) + 1 or end

    def _out_of_time(self) -> bool:
        self.timed_out = self.given_up or time.monotonic() >= self._deadline
        return self.timed_out

    def _each_line(self, data: bytes, start: int, end: int) -> None:
        at = start
        while at < end:
            behind = data.find(b"\n", at, end)
            behind = end if behind < 0 else behind
            match = self._in_windows(data[at:behind], 0, behind - at)
            if self.timed_out:
                self.resume = (self._base + at + self._reached, self._line if self._numbered else None)
                return
            if match is not None:
                self._keep(data, at, at + match[0], at + match[1], behind)
                if self._full(behind + 1, end):
                    return
            self._line += 1
            at = behind + 1
            if at < end and self._line % _LINES_AT_ONCE == 0 and self._out_of_time():
                self.resume = (self._base + at, self._line if self._numbered else None)
                return

    def _keep(self, data: bytes, begin: int, at: int, match_end: int, end: int) -> None:
        shown, shown_from, whole = _excerpt(data, begin, at, match_end, end)
        line = self._line if self._numbered else None
        self.hits.append(Hit(line, self._base + begin, self._base + at, shown, self._base + shown_from, whole))

    def _full(self, behind: int, end: int, *, in_line: bool = False) -> bool:
        if len(self.hits) < self._limit:
            return False
        line = self._line if in_line else self._line + 1
        self.resume = (self._base + min(behind, end), line if self._numbered else None)
        return True

    def _in_windows(self, data: bytes, start: int, end: int) -> tuple[int, int] | None:
        """The first match in a part of a line, which is searched in overlapping windows."""
        while True:
            stop = min(end, start + self._window_bytes)
            match = self._matcher.find(data, start, stop)
            if match is not None or stop == end:
                return match
            start = stop - self._window_bytes // _OVERLAPPING
            if self._out_of_time():
                self._reached = start
                return None

    def _window(self, data: bytes) -> None:
        """Search a part of a long line that is not its end, and keep what the next part must see again."""
        assert self._long is not None
        begin, seen = self._long
        seen = self._search_long(data, begin, seen, len(data) - 1)
        if self.resume is not None:
            return
        kept = min(len(data), self._window_bytes // _OVERLAPPING + _SEEN_BEFORE)
        self._base += len(data) - kept
        self._rest = data[len(data) - kept :]
        self._long = (begin, max(min(_SEEN_BEFORE, kept), seen - (len(data) - kept)))

    def _end_of_long(self, data: bytes, end: int, behind: int) -> None:
        assert self._long is not None
        begin, seen = self._long
        self._long = None
        self._search_long(data[:end], begin, seen, end)
        if self.resume is not None and not self.timed_out and self.resume[0] >= self._base + end:
            self.resume = None  # the line is over
        if self.resume is None and not self._full(behind, behind):
            self._line += 1

    def _search_long(self, data: bytes, begin: int, seen: int, end: int) -> int:
        """Find what matches in a part of a long line, from ``seen`` up to ``end``: from where on to look next."""
        while seen < end and (match := self._in_windows(data, seen, end)) is not None:
            self._keep_long(data, begin, match)
            seen = _beyond(match)
            if self._full(seen, len(data), in_line=True):
                return seen
        if self.timed_out:
            self.resume = (self._base + self._reached, self._line if self._numbered else None)
        return seen

    def _keep_long(self, data: bytes, begin: int, match: tuple[int, int]) -> None:
        shown, shown_from, _ = _excerpt(data, 0, match[0], match[1], len(data))
        line = self._line if self._numbered else None
        self.hits.append(Hit(line, begin, self._base + match[0], shown, self._base + shown_from, False))


def _beyond(match: tuple[int, int]) -> int:
    """Behind what is shown of a match in a long line, less a character that may be cut off there."""
    return max(match[1], match[0] + _LINE_SHOWN - _BEFORE_SHOWN - 3)


def _excerpt(data: bytes, begin: int, at: int, match_end: int, end: int) -> tuple[bytes, int, bool]:
    """So much of a line as is shown, around its match: bytes, where they begin, and whether they are all of it."""
    if end - begin <= _LINE_SHOWN:
        return data[begin:end], begin, True
    first = begin if match_end - begin <= _LINE_SHOWN else max(begin, at - _BEFORE_SHOWN)
    first += belonging_before(data[max(begin, first - 3) : first], data[first : first + 3])
    last = min(end, first + _LINE_SHOWN)
    if last < end:
        last -= len(data[first:last]) - decode(data[first:last], _LINE_SHOWN, last=False)[1]
    return data[first:last], first, False
