"""A JSON text that is read forwards by its structure alone, a chunk at a time. Pure but for the clock.

What reads it is a generator that is sent the chunks, so that it can go on in any thread. It holds what is still to be
looked at, and ends after some seconds.
"""

from __future__ import annotations

import re
import time
from collections.abc import Generator
from typing import TypeAlias, TypeVar

from coatcheck.readers.refs import ReaderError

__all__ = ["InString", "Skim", "Steps", "Text"]

_SLICES = (512, 4096, 32_768, 131_072)
_AFTER_SPACE = re.compile(rb"[^ \t\r\n]")
_STRING_END = re.compile(rb'(?:[^"\\]++|\\.)*+"', re.DOTALL)
_MARKS = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[][{},]', re.DOTALL)
_RUNS = re.compile(rb",+|[][{}]")
_CLOSED = re.compile(rb"\[,*\]|\{,*\}")
_NOT_STRUCTURE = bytes(set(range(256)) - set(b"[]{},"))
_ROUNDS = 8
_T = TypeVar("_T")

Steps: TypeAlias = Generator[None, "bytes | None", _T]
"""Goes on with the next chunk each time, or ``None`` at the end of the text."""


class Text:
    """A JSON text that is read forwards.

    Attributes:
        data: the bytes that are there now.
        at: the place in them; moved by whoever reads.
        given_up: set by whoever does not wait any more.
    """

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._deadline = None if seconds is None else time.monotonic() + seconds
        self._ended = False
        self.given_up = False
        self._base = 0
        self.data: bytes = b""
        self.at: int = 0

    @property
    def offset(self) -> int:
        """The place in the payload."""
        return self._base + self.at

    def more(self) -> Steps[bool]:
        """Have more bytes behind those that are there; False at the end. What was passed is dropped."""
        self.check_time()
        chunk = None if self._ended else (yield)
        if chunk is None:
            self._ended = True
            return False
        self._base += self.at
        self.data = self.data[self.at :] + chunk if self.at < len(self.data) else chunk
        self.at = 0
        return True

    def check_time(self) -> None:
        """Called every few kilobytes.

        Raises:
            ReaderError: the time is over, or nobody waits.
        """
        if self.given_up or (self._deadline is not None and time.monotonic() >= self._deadline):
            raise ReaderError(
                f"to go there took more than {self._seconds or 0:.0f} s and was ended at byte {self.offset}: search "
                "for what stands there, and read from the byte that the search names"
            )

    def after_space(self) -> Steps[int | None]:
        """Go to the next byte that is no space, and say which it is; ``None`` at the end."""
        while True:
            match = _AFTER_SPACE.search(self.data, self.at)
            if match is not None:
                self.at = match.start()
                return self.data[self.at]
            self.at = len(self.data)
            if not (yield from self.more()):
                return None

    def starts_with(self, mark: bytes) -> Steps[bool]:
        """Whether ``mark`` comes next."""
        while len(self.data) - self.at < len(mark) and (yield from self.more()):
            pass
        return self.data.startswith(mark, self.at)

    def string(self, longest: int) -> Steps[bytes | None]:
        """Go over the string that begins here, and return it as it is written; ``None`` where it is longer."""
        while True:
            match = _STRING_END.match(self.data, self.at + 1)
            if match is not None:
                start, self.at = self.at, match.end()
                return self.data[start : self.at]
            if len(self.data) - self.at > longest:
                break
            if not (yield from self.more()):
                raise self.no_json()
        skim = Skim()
        yield from self.skim(skim, None)
        return None

    def skim(self, skim: Skim | InString, limit: int | None) -> Steps[bool]:
        """Go on until ``skim`` has found what it looks for, and say whether it has; at most to the byte ``limit``."""
        size = 0
        while True:
            while self.at < len(self.data):
                piece = self.data[self.at : self.at + _SLICES[min(size, len(_SLICES) - 1)]]
                found = skim.feed(piece)
                if found is not None:
                    self.at += found
                    return True
                self.at += len(piece)
                size += 1
                if size > len(_SLICES):
                    self.check_time()
                if limit is not None and self.offset >= limit:
                    return False
            if not (yield from self.more()):
                return False

    def no_json(self) -> ReaderError:
        """What is here is no JSON."""
        return ReaderError(f"the text is no JSON at its byte {self.offset}: read it as text instead")


class Skim:
    """Goes over JSON text by its structure alone.

    Looks for the ``commas``-th comma of the level where it began, or for what closes that level.

    Attributes:
        seen: how many of those commas were met.
    """

    def __init__(self, commas: int = 1) -> None:
        self._commas = commas
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self.seen: int = 0

    def feed(self, piece: bytes) -> int | None:
        """Where in ``piece`` it is; ``None``: further on."""
        start = 0
        if self._escaped:
            self._escaped, start = False, 1
        if self._in_string:
            match = _STRING_END.match(piece, start)
            if match is None:
                self._escaped = _ends_escaped(piece, start)
                return None
            self._in_string, start = False, match.end()
        return None if self._pass_over(piece, start) else self._walk(piece, start)

    def _pass_over(self, piece: bytes, start: int) -> bool:
        """Go over ``piece`` as a whole, if what is looked for is not in it."""
        parts = piece[start:].replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        outside = b"".join(parts[::2]).translate(None, _NOT_STRUCTURE)
        for _ in range(_ROUNDS):
            shorter = _CLOSED.sub(b"", outside)
            if len(shorter) == len(outside):
                break
            outside = shorter
        depth, seen = self._depth, self.seen
        for run in _RUNS.findall(outside):
            mark = run[0]
            if mark == 0x2C:
                if depth == 0:
                    seen += len(run)
                    if seen >= self._commas:
                        return False
            elif mark in b"[{":
                depth += 1
            else:
                depth -= 1
                if depth < 0:
                    return False
        self._depth, self.seen = depth, seen
        self._in_string = len(parts) % 2 == 0
        self._escaped = self._in_string and _ends_escaped(piece, start)
        return True

    def _walk(self, piece: bytes, start: int) -> int | None:
        """Go over ``piece`` mark by mark."""
        for match in _MARKS.finditer(piece, start):
            mark = piece[match.start()]
            if mark == 0x22:
                self._in_string = _STRING_END.match(piece, match.start() + 1) is None
                if self._in_string:
                    self._escaped = _ends_escaped(piece, match.start() + 1)
                    return None
            elif mark in b"[{":
                self._depth += 1
            elif mark in b"]}":
                self._depth -= 1
                if self._depth < 0:
                    return match.start()
            elif self._depth == 0:
                self.seen += 1
                if self.seen == self._commas:
                    return match.start()
        return None


def _ends_escaped(piece: bytes, start: int) -> bool:
    """Whether the last byte of a string that is cut off here is a backslash that escapes what comes next."""
    tail = piece[start:]
    return (len(tail) - len(tail.rstrip(b"\\"))) % 2 == 1


class InString:
    """Looks for the end of a string, from behind its first quotation mark on."""

    def __init__(self) -> None:
        self._escaped = False

    def feed(self, piece: bytes) -> int | None:
        """The place in ``piece`` behind the end; ``None``: it is further on."""
        start = 1 if self._escaped else 0
        match = _STRING_END.match(piece, start)
        if match is not None:
            return match.end()
        self._escaped = _ends_escaped(piece, start)
        return None
