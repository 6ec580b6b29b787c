"""One value inside a JSON text of any length: where it begins and ends, in bytes, without holding more than a chunk.

What lies before the value is skipped by its brackets and strings alone, and is not checked any further; what lies
behind it is not read. So no nesting, no length of a string and no number can take more than a chunk of memory. Where
an object has a key twice, the first is taken.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from difflib import get_close_matches
from typing import NamedTuple

import msgspec
from anyio.lowlevel import checkpoint

from coatcheck.readers.paths import parse_path
from coatcheck.readers.refs import ReaderError

__all__ = ["Span", "find_value"]

_KEYS_SHOWN = 20
_KEY_SHOWN_CHARS = 60
_INDEX = re.compile("[0-9]{1,18}", re.ASCII)
_SLICES = (512, 4096, 32_768, 131_072)
_SPACE = b" \t\r\n"
_AFTER_SPACE = re.compile(rb"[^ \t\r\n]")
_SCALAR_END = re.compile(rb"[ \t\r\n,\]}\[{\":]")
_STRING_END = re.compile(rb'(?:[^"\\]++|\\.)*+"', re.DOTALL)
_MARKS = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[][{},]', re.DOTALL)
_RUNS = re.compile(rb",+|[][{}]")
_CLOSED = re.compile(rb"\[,*\]|\{,*\}")
_NOT_STRUCTURE = bytes(set(range(256)) - set(b"[]{},"))
_ROUNDS = 8
_KINDS = {0x7B: "an object", 0x5B: "an array", 0x22: "a string", 0x74: "true", 0x66: "false", 0x6E: "null"}


class Span(NamedTuple):
    """Where a value lies, in bytes of the payload; ``end`` is ``None`` where it goes on past what was looked at."""

    start: int
    end: int | None


async def find_value(
    chunks: AsyncIterator[bytes], path: str, *, lines: bool = False, look_for_end: int = 1 << 18
) -> Span:
    """Where the value that ``path`` names lies.

    Args:
        chunks: the JSON text from its first byte on.
        path: as `parse_path` takes it.
        lines: it is JSON Lines: a value a line, of which an index names one.
        look_for_end: how many bytes of the value are read at most to find its end.

    Raises:
        ReaderError: nothing is there; the text names the keys or the number of elements that are. Or the text is
            no JSON there.
    """
    steps = parse_path(path)
    text = _Text(chunks)
    first = await text.after_space()
    if first is None:
        raise ReaderError("the artifact is empty: there is no JSON in it")
    if await text.starts_with(b"\xef\xbb\xbf"):
        text.at += 3
        first = await text.after_space()
    spelled = "$"
    if lines:
        if not steps:
            return Span(text.offset, None)
        if not isinstance(steps[0], int):
            raise ReaderError(f"the artifact is JSON Lines, a value a line: begin with an index, as in $[0].{steps[0]}")
        await _go_to_line(text, steps[0])
        spelled, steps = f"$[{steps[0]}]", steps[1:]
    for step in steps:
        first = await text.after_space()
        if first == 0x7B:
            await _go_to_key(text, str(step), spelled)
        elif first == 0x5B and (isinstance(step, int) or _INDEX.fullmatch(step)):
            await _go_to_index(text, int(step), spelled)
        elif first == 0x5B:
            raise ReaderError(f"{spelled} is an array: name an element by its index, as in {spelled}[0]")
        else:
            raise ReaderError(f"{spelled} is {_KINDS.get(first or 0, 'a number')}: there is nothing in it")
        spelled += f"[{step}]" if isinstance(step, int) else f".{step}"
    first = await text.after_space()
    if first is None or first in b",]}:":
        raise text.no_json()
    start = text.offset
    return Span(start, await _end_of_value(text, first, start + look_for_end))


class _Text:
    """A JSON text that is read forwards.

    Attributes:
        data: the bytes that are there now.
        at: the place in them; moved by whoever reads.
    """

    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        self._chunks = chunks
        self._base = 0
        self.data = b""
        self.at = 0

    @property
    def offset(self) -> int:
        """The place in the payload."""
        return self._base + self.at

    async def more(self) -> bool:
        """Have more bytes behind those that are there; False at the end. What was passed is dropped."""
        async for chunk in self._chunks:
            self._base += self.at
            self.data = self.data[self.at :] + chunk if self.at < len(self.data) else chunk
            self.at = 0
            return True
        return False

    async def after_space(self) -> int | None:
        """Go to the next byte that is no space, and say which it is; ``None`` at the end."""
        while True:
            match = _AFTER_SPACE.search(self.data, self.at)
            if match is not None:
                self.at = match.start()
                return self.data[self.at]
            self.at = len(self.data)
            if not await self.more():
                return None

    async def starts_with(self, mark: bytes) -> bool:
        """Whether ``mark`` comes next."""
        while len(self.data) - self.at < len(mark) and await self.more():
            pass
        return self.data.startswith(mark, self.at)

    async def string(self, longest: int) -> bytes | None:
        """Go over the string that begins here, and return it as it is written; ``None`` where it is longer."""
        while True:
            match = _STRING_END.match(self.data, self.at + 1)
            if match is not None:
                start, self.at = self.at, match.end()
                return self.data[start : self.at]
            if len(self.data) - self.at > longest:
                break
            if not await self.more():
                raise self.no_json()
        skim = _Skim()
        await self.skim(skim, None)
        return None

    async def skim(self, skim: _Skim, limit: int | None) -> bool:
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
                    await checkpoint()
                if limit is not None and self.offset >= limit:
                    return False
            if not await self.more():
                return False

    def no_json(self) -> ReaderError:
        """What is here is no JSON."""
        return ReaderError(f"the text is no JSON at its byte {self.offset}: read it as text instead")


class _Skim:
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
        self.seen = 0

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


async def _go_to_key(text: _Text, key: str, spelled: str) -> None:
    """From the brace of an object to the value of one of its keys."""
    text.at += 1
    longest = 12 * len(key) + 1024
    keys: list[str] = []
    count = 0
    first = await text.after_space()
    while first != 0x7D:
        if first != 0x22:
            raise text.no_json()
        written = await text.string(longest)
        if written is not None:
            name = _key(written, text)
            if await text.after_space() != 0x3A:
                raise text.no_json()
            text.at += 1
            if name == key:
                return
            if len(keys) < _KEYS_SHOWN * 50:
                keys.append(name[:_KEY_SHOWN_CHARS])
        count += 1
        if written is not None and not await text.skim(_Skim(), None):
            raise text.no_json()
        if await text.after_space() == 0x2C:
            text.at += 1
            first = await text.after_space()
        elif text.data[text.at : text.at + 1] == b"}":
            break
        else:
            raise text.no_json()
        if count % 64 == 0:
            await checkpoint()
    raise _no_key(key, keys, count, spelled)


def _no_key(key: str, keys: list[str], count: int, spelled: str) -> ReaderError:
    said = f"{spelled} has no key {key[:_KEY_SHOWN_CHARS]!r}"
    if not count:
        return ReaderError(f"{said}: it is empty")
    near = get_close_matches(key[:_KEY_SHOWN_CHARS], keys, n=3)
    if near:
        said += f"; the nearest are {', '.join(near)}"
    shown = ", ".join(keys[:_KEYS_SHOWN])
    more = f" and {count - _KEYS_SHOWN} more" if count > _KEYS_SHOWN else ""
    return ReaderError(f"{said}. Its keys: {shown}{more}")


def _key(written: bytes, text: _Text) -> str:
    try:
        return msgspec.json.decode(written, type=str)
    except (msgspec.DecodeError, UnicodeError):
        raise text.no_json() from None


async def _go_to_index(text: _Text, index: int, spelled: str) -> None:
    """From the bracket of an array to one of its elements."""
    text.at += 1
    if await text.after_space() == 0x5D:
        raise ReaderError(f"{spelled} is an empty array")
    if not index:
        return
    skim = _Skim(index)
    if not await text.skim(skim, None):
        raise text.no_json()
    if text.data[text.at] != 0x2C:
        count = skim.seen + 1
        raise ReaderError(f"{spelled} has {count} elements, counted from 0: the last is {spelled}[{count - 1}]")
    text.at += 1


async def _go_to_line(text: _Text, index: int) -> None:
    """To one of the lines, blank ones not counted."""
    passed = 0
    while passed < index:
        newline = text.data.find(b"\n", text.at)
        text.at = len(text.data) if newline < 0 else newline + 1
        if await text.after_space() is None:
            raise ReaderError(f"the artifact has {passed + 1} lines of JSON, counted from 0: the last is $[{passed}]")
        passed += newline >= 0


async def _end_of_value(text: _Text, first: int, limit: int) -> int | None:
    """Where the value that begins here ends; ``None``: past ``limit``."""
    if first in b"{[":
        text.at += 1
        if await text.skim(_Skim(1 << 62), limit):
            return text.offset + 1
        return None
    if first == 0x22:
        while (match := _STRING_END.match(text.data, text.at + 1)) is None:
            if text.offset + len(text.data) - text.at > limit:
                return None
            if not await text.more():
                return None
        return text.offset - text.at + match.end()
    while (match := _SCALAR_END.search(text.data, text.at)) is None:
        if text.offset + len(text.data) - text.at > limit:
            return None
        if not await text.more():
            return text.offset + len(text.data) - text.at
    return text.offset - text.at + match.start()
