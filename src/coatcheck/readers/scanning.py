"""Searches bytes that come in chunks, line by line. Pure but for the clock.

Laws:

* What is found does not depend on how the payload comes in chunks, and equals what a search of each line finds. In a
  line of more than 4 KiB, such as JSON without newlines, that is more than the first match: every one that is not shown
  with the one before it. A search that goes on where one had ended finds what that would have found.
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

__all__ = ["SECONDS", "SEEN_BEFORE", "Hit", "Scanner", "newlines"]

SECONDS = 20.0
"""How long one search goes on; then it answers with what it has, and says where to search on."""

SEEN_BEFORE = 8
"""So many bytes before a place are enough for an anchor or a word boundary there."""

_BLOCK = 2 << 20
_WORK = 1 << 26
_SMALLEST_STEP = 1 << 14
_LINE_COSTS = 1000  # what a line costs beside its bytes, in bytes
_LONG = 1 << 20
_HEAVY = 256
_LONG_FOR_HEAVY = 1 << 16
_OVERLAPPING = 16
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
        offset: the byte of the payload at which to begin.
        before: so many bytes before that begin the first chunk, from 0 to `SEEN_BEFORE`: what an anchor or a word
            boundary at the beginning looks at, and what tells whether a line begins there.
        line: the number of the line there; ``None``: nobody knows.
        seconds: how long to search, from now on.
    """

    def __init__(
        self,
        matcher: Matcher,
        limit: int,
        *,
        offset: int = 0,
        before: int = 0,
        line: int | None = 1,
        seconds: float = SECONDS,
    ) -> None:
        self._matcher = matcher
        self._limit = limit
        self._base = offset - before
        self._before = before  # bytes of the data that are only looked at, until the first line is over
        self._line = 1 if line is None else line
        self._numbered = line is not None
        self._rest = b""
        # Inside of a line that is too long to be held: where it begins, and from where on to look.
        self._long: tuple[int, int] | None = None
        self._window_bytes = _LONG if matcher.cost <= _HEAVY else _LONG_FOR_HEAVY
        self._reached = 0
        self._step = max(min(_WORK // matcher.cost, _BLOCK), _SMALLEST_STEP)
        if matcher.cost > _HEAVY:  # only a single line is more than a window, then
            self._step = min(self._step, self._window_bytes)
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
                if len(line) > self._before:
                    self._block(line, self._before, len(line))
                    self._before = 0
                    self._base += len(line) - newline
                    self._rest = b""
                    return self._search(chunk, newline, last)
        data = self._rest + chunk if self._rest else chunk
        self._rest = b""
        return self._search(data, 0 if self._long is not None else self._before, last)

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
                start, self._before = end, 0
        if self.resume is not None:
            return False
        start -= self._before  # a line that was not searched yet keeps what is before it
        self._rest = data[start:] if start > 0 else data
        self._base += max(start, 0)
        if len(self._rest) > self._window_bytes and not last:
            rest, self._rest = self._rest, b""
            self._long = (self._base + self._before, self._before)
            self._before = 0
            self._window(rest)
        return self.resume is None

    def _block(self, data: bytes, start: int, end: int) -> None:
        """Search whole lines."""
        if self._matcher.by_line:
            self._each_line(data, start, end)
            return
        at = counted = start
        cut_off = self._first_is_cut_off(data)
        piece = self._piece(data, at, end)
        while at < end:
            if piece - at > self._window_bytes and self._matcher.cost > _HEAVY:  # it is one line
                match = self._in_windows(data, at, piece)
                if self.timed_out:
                    self._line += newlines(data, counted, at) if self._numbered else 0
                    self._stop(self._reached)
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
                    self._stop(at)
                    return
                continue
            begin = data.rfind(b"\n", start, match[0]) + 1 or start
            behind = data.find(b"\n", match[0], end)
            behind = end if behind < 0 else behind
            if self._numbered:
                self._line += newlines(data, counted, begin)
            counted = begin
            long = behind - begin > _MATCHES_AGAIN or (cut_off and begin == start)
            self._keep(data, begin, match, behind, long=long)
            at = _beyond(match)
            in_line = long and at < behind
            if not in_line:
                at = behind + 1
            if self._full(at, end, in_line=in_line):
                return
            if self._out_of_time():
                self._stop(min(at, end), 0 if in_line else 1)
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

    def _first_is_cut_off(self, data: bytes) -> bool:
        """Whether the first line had begun before: then it is a long one, which is searched further."""
        return self._before > 0 and data[self._before - 1] != 0x0A

    def _each_line(self, data: bytes, start: int, end: int) -> None:
        at, work = start, 0
        before = self._before if self._first_is_cut_off(data) else 0
        while at < end:
            behind = data.find(b"\n", at, end)
            behind = end if behind < 0 else behind
            place, seen = at - before, before
            line = data[place:behind]
            long = before > 0 or len(line) > _MATCHES_AGAIN
            while seen <= len(line) and (match := self._in_windows(line, seen, len(line))) is not None:
                self._keep(data, at, (place + match[0], place + match[1]), behind, long=long)
                seen = _beyond(match)
                in_line = long and seen < len(line)
                if self._full(place + seen if in_line else behind + 1, end, in_line=in_line):
                    return
                if not in_line:
                    break
                if self._out_of_time():
                    self._stop(place + seen)
                    return
            if self.timed_out:
                self._stop(place + self._reached)
                return
            self._line += 1
            at, before = behind + 1, 0
            work += (len(line) + _LINE_COSTS) * self._matcher.cost
            if at < end and work >= _WORK:
                work = 0
                if self._out_of_time():
                    self._stop(at)
                    return

    def _keep(self, data: bytes, begin: int, match: tuple[int, int], end: int, *, long: bool) -> None:
        shown, shown_from, whole = _excerpt(data, begin, match, end, long=long)
        line = self._line if self._numbered else None
        self.hits.append(Hit(line, self._base + begin, self._base + match[0], shown, self._base + shown_from, whole))

    def _full(self, behind: int, end: int, *, in_line: bool = False) -> bool:
        if len(self.hits) < self._limit:
            return False
        self._stop(min(behind, end), 0 if in_line else 1)
        return True

    def _stop(self, at: int, lines: int = 0) -> None:
        """End here: the search goes on at ``at``, so many lines behind the one that is counted."""
        self.resume = (self._base + at, self._line + lines if self._numbered else None)

    def _in_windows(self, data: bytes, start: int, end: int) -> tuple[int, int] | None:
        """The first match in a part of a line, which is searched in overlapping windows."""
        while True:
            stop = min(end, start + self._window_bytes)
            match = self._matcher.find(data, start, stop)
            if match is not None and match[1] == stop < end:  # it may be longer than the window shows
                match = self._matcher.find(data, match[0], min(end, match[0] + self._window_bytes))
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
        kept = min(len(data), self._window_bytes // _OVERLAPPING + SEEN_BEFORE + _LINE_SHOWN)
        left = len(data) - kept
        # What is shown behind a match is there; and what may go on in the next part is left to it.
        seen = self._search_long(data, begin, seen, len(data) - _LINE_SHOWN, again=left + SEEN_BEFORE)
        if self.resume is not None:
            return
        self._base += left
        self._rest = data[left:]
        self._long = (begin, max(SEEN_BEFORE if left else 0, seen - left))

    def _end_of_long(self, data: bytes, end: int, behind: int) -> None:
        assert self._long is not None
        begin, seen = self._long
        self._long = None
        self._search_long(data[:end], begin, seen, end)
        if self.resume is not None and not self.timed_out and self.resume[0] >= self._base + end:
            self.resume = None  # the line is over
        if self.resume is None and not self._full(behind, behind):
            self._line += 1

    def _search_long(self, data: bytes, begin: int, seen: int, end: int, *, again: int | None = None) -> int:
        """Find what matches in a part of a long line, from ``seen`` up to ``end``: from where on to look next.

        Args:
            again: what begins there or behind, and reaches the end, is left to the next part; ``None``: there is none.
        """
        while seen < end and (match := self._in_windows(data, seen, end)) is not None:
            if again is not None and match[1] >= end and match[0] >= again:
                return match[0]
            self._keep_long(data, begin, match)
            seen = _beyond(match)
            if self._full(seen, len(data), in_line=True):
                return seen
            if self._out_of_time():
                self._stop(min(seen, len(data)))
                return seen
        if self.timed_out:
            self._stop(self._reached)
        return seen

    def _keep_long(self, data: bytes, begin: int, match: tuple[int, int]) -> None:
        shown, shown_from, _ = _excerpt(data, 0, match, len(data), long=True)
        line = self._line if self._numbered else None
        self.hits.append(Hit(line, begin, self._base + match[0], shown, self._base + shown_from, False))


def _beyond(match: tuple[int, int]) -> int:
    """Behind what is shown of a match in a long line, less a character that may be cut off there, and less as much as
    the match is long: another such one that is cut off there is found again.
    """
    return max(match[1], match[0] + _LINE_SHOWN - _BEFORE_SHOWN - 3 - (match[1] - match[0]))


def _excerpt(data: bytes, begin: int, match: tuple[int, int], end: int, *, long: bool) -> tuple[bytes, int, bool]:
    """So much of a line as is shown, around its match: bytes, where they begin, and whether they are all of it.

    Of a long one as much is shown behind a match as `_beyond` passes over.
    """
    if end - begin <= _LINE_SHOWN:
        return data[begin:end], begin, True
    first = begin if match[1] - begin <= _LINE_SHOWN and not long else max(begin, match[0] - _BEFORE_SHOWN)
    first += belonging_before(data[max(begin, first - 3) : first], data[first : first + 3])
    last = min(end, first + _LINE_SHOWN)
    if last < end:
        last -= len(data[first:last]) - decode(data[first:last], _LINE_SHOWN, last=False)[1]
    return data[first:last], first, False
