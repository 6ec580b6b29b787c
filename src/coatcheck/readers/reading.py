"""One page of a stored text, within a bound in characters, and the exact call that reads on. The core of
``read_artifact`` and of the shell's.

Laws:

* An answer is within its bound, whatever the payload's shape.
* Following the next calls from the first page reads every character exactly once, to the end of the artifact.
* A page that starts at a known byte (every continuation does) costs one ranged read of a few times its own length.
  Lines and characters that are counted from the start are found by streaming up to them, a chunk at a time.
"""

from __future__ import annotations

import codecs
from collections.abc import Mapping
from typing import Any, NamedTuple

from coatcheck.artifacts.meta import ArtifactMeta
from coatcheck.readers.answers import (
    DEFAULT_MAX_CHARS,
    HEX_BYTES,
    OVERHEAD_CHARS,
    SMALLEST_MAX_CHARS,
    TextPage,
    describe_binary,
)
from coatcheck.readers.characters import MAX_CHAR_BYTES, belonging_before, decode
from coatcheck.readers.json_path import Span, find_value
from coatcheck.readers.locating import is_json_lines
from coatcheck.readers.ranges import Part, behind_newline, parse_lines, parse_slice
from coatcheck.readers.refs import Opener, ReaderError
from coatcheck.results.binary import is_textual

__all__ = ["read_page"]

_COUNTED_BYTES = 1 << 18
_SLICE = 1 << 16
_MOST_LINES = 10**15
_BACK = MAX_CHAR_BYTES - 1


async def read_page(
    open_: Opener,
    *,
    lines: str | None = None,
    chars: str | None = None,
    bytes: str | None = None,
    head: int | None = None,
    tail: int | None = None,
    path: str | None = None,
    from_byte: int | None = None,
    max_chars: int = DEFAULT_MAX_CHARS,
) -> TextPage | str | None:
    """One page of an artifact: from its start, or where one of the arguments says.

    Args:
        open_: opens the artifact.
        lines: ``A:B``, counted from 1, B included; either may be left out.
        chars: ``A:B``, counted from 0, B not included.
        bytes: ``A:B``, likewise; a character belongs to where its first byte lies.
        head, tail: so many lines from the start, or up to the end.
        path: a value within JSON, see `coatcheck.readers.json_path`.
        from_byte: where the first of ``lines`` or ``chars`` goes on, as an earlier answer said: nothing before it is
            read.
        max_chars: the bound of the rendered answer.

    Returns:
        A page; for what is no text, a description; ``None`` for a ref that gives nothing.

    Raises:
        ReaderError: the arguments, or what they ask for, cannot be.
        InvalidRange: a range that is none.
    """
    given = {"lines": lines, "chars": chars, "bytes": bytes, "head": head, "tail": tail, "path": path}
    said = [name for name, value in given.items() if value is not None]
    if len(said) > 1:
        raise ReaderError(f"{' and '.join(said)} say different things: give one of them")
    if from_byte is not None:
        if from_byte < 0:
            raise ReaderError("from_byte is counted from 0")
        if said and said[0] not in ("lines", "chars"):
            raise ReaderError(f"from_byte goes with lines or chars, as an earlier answer gave it, not with {said[0]}")
    for name, value in (("head", head), ("tail", tail)):
        if value is not None and value < 1:
            raise ReaderError(f"{name} is a number of lines, at least 1")
    head = None if head is None else min(head, _MOST_LINES)
    tail = None if tail is None else min(tail, _MOST_LINES)
    pages = _Pages(open_, max(max_chars, SMALLEST_MAX_CHARS) - OVERHEAD_CHARS)
    if path is not None:
        return await pages.value(path)
    if tail is not None:
        return await pages.tail(tail)
    if bytes is not None:
        return await pages.bytes(parse_slice(_tidied(bytes)))
    if chars is not None:
        return await pages.chars(parse_slice(_tidied(chars)), from_byte)
    if head is not None:
        return await pages.lines(Part(0, head), None)
    if lines is None:
        return await pages.lines(Part(0, None), None) if from_byte is None else await pages.bytes(Part(from_byte, None))
    tidied = _tidied(lines)
    return await pages.lines(parse_lines(tidied if ":" in tidied else f"{tidied}:{tidied}"), from_byte)


def _tidied(text: str) -> str:
    """A range as it was meant: blanks, thousands' marks and other dashes do not matter."""
    text = text.strip(" []()\"'`").replace(" ", "").replace("_", "").replace(",", "")
    for dash in ("..", "-", "\u2013"):
        text = text.replace(dash, ":")
    return text


class _Window(NamedTuple):
    """A part of a payload that starts with a character, and says whether the payload ends with it."""

    meta: ArtifactMeta
    start: int
    data: bytes
    last: bool


class _Binary(Exception):
    """Says why a page is none."""

    def __init__(self, description: str) -> None:
        super().__init__(description)
        self.description = description


class _Pages:
    """Cuts pages of one artifact, of at most ``budget`` characters."""

    def __init__(self, open_: Opener, budget: int) -> None:
        self._open = open_
        self._budget = budget

    async def lines(self, part: Part, from_byte: int | None) -> TextPage | str | None:
        """Lines from ``part.start`` on, counted from 0."""
        start, end = part
        at: int | None = from_byte
        if at is None:
            at = 0
            if start:
                found = await self._byte_of_line(start)
                if not isinstance(found, tuple):
                    return found
                meta, at, count = found
                if count is not None:
                    note = f"There is nothing there: the artifact has {count} lines."
                    return TextPage(meta, "", meta.bytes, meta.bytes, f"line {start + 1}", None, note=note)
        window = await self._window(at)
        if not isinstance(window, _Window):
            return window
        text, used = decode(window.data, self._budget, last=window.last)
        note = ""
        wanted = None if end is None else end - start
        ends = text.count("\n")
        if wanted is not None and ends >= wanted:
            text = text[: _nth(text, wanted)]
            used, ends, whole = _bytes_of(text, window.data, used), wanted, True
        else:
            whole = window.last and used == len(window.data)
            if not whole and ends and not text.endswith("\n"):
                text = text[: text.rindex("\n") + 1]
                used = _bytes_of(text, window.data, used)
            elif not whole and not text.endswith("\n"):
                note = f"The text is cut inside line {start + 1}, which goes on at byte {window.start + used}."
        stop = window.start + used
        line = start + ends
        following = None
        if stop < window.meta.bytes:
            if whole and end is not None:
                following = {"lines": f"{end + 1}:{end + (end - start)}", "from_byte": stop}
            else:
                following = {"lines": f"{line + 1}:{'' if end is None else end}", "from_byte": stop}
        last = line if text.endswith("\n") else line + 1
        where = f"lines {start + 1} to {max(last, start + 1)}"
        return await self._page(window, text, stop, where, following, note=note)

    async def chars(self, part: Part, from_byte: int | None) -> TextPage | str | None:
        """Characters from ``part.start`` on."""
        start, end = part
        at: int | None = from_byte
        if at is None:
            at = 0
            if start:
                found = await self._byte_of_char(start)
                if not isinstance(found, tuple):
                    return found
                meta, at, count = found
                if count is not None:
                    note = f"There is nothing there: the artifact has {count} characters."
                    return TextPage(meta, "", meta.bytes, meta.bytes, f"characters from {start} on", None, note=note)
        window = await self._window(at)
        if not isinstance(window, _Window):
            return window
        wanted = self._budget if end is None else min(end - start, self._budget)
        text, used = decode(window.data, wanted, last=window.last)
        stop = window.start + used
        following = None
        if stop < window.meta.bytes:
            now = start + len(text)
            until = end
            if end is not None and now >= end:
                until = end + max(end - start, 1)
            following = {"chars": f"{now}:{'' if until is None else until}", "from_byte": stop}
        where = f"characters {start} to {start + len(text)}"
        return await self._page(window, text, stop, where, following)

    async def bytes(self, part: Part) -> TextPage | str | None:
        """The characters whose first byte lies in ``part``."""
        window = await self._window(part.start)
        if not isinstance(window, _Window):
            return window
        text, stop = self._up_to(window, part.end)
        following = None
        if stop < window.meta.bytes:
            until = part.end
            if until is not None and stop >= until:
                until = stop + max(until - part.start, 1)
            following = {"bytes": f"{stop}:{'' if until is None else until}"}
        note = "" if part.start <= window.meta.bytes else "There is nothing there."
        return await self._page(window, text, stop, f"bytes {window.start} to {stop}", following, note=note)

    async def tail(self, count: int) -> TextPage | str | None:
        """The last lines, as far as they fit."""
        meta = await self._meta()
        if not isinstance(meta, ArtifactMeta):
            return meta
        window = await self._window(max(0, meta.bytes - MAX_CHAR_BYTES * self._budget))
        if not isinstance(window, _Window):
            return window
        text, used = decode(window.data, len(window.data), last=True)
        start = window.start
        kept = text[-self._budget :]
        at = len(kept) - 1
        for _ in range(count):
            at = kept.rfind("\n", 0, max(at, 0))
            if at < 0:
                break
        note = ""
        if at >= 0:
            kept = kept[at + 1 :]
        elif len(kept) < len(text) or start:
            first = kept.find("\n") + 1
            if 0 < first < len(kept):
                kept = kept[first:]
                note = f"Not all of the last {count} lines fit."
            else:
                note = "The text is cut inside a line, which begins before it."
        begin = start + _bytes_of(text[: len(text) - len(kept)], window.data, used)
        before = None if not begin else {"bytes": f"{max(0, begin - self._budget)}:{begin}"}
        where = f"the last {kept.count(chr(10)) + (not kept.endswith(chr(10)))} lines"
        return TextPage(meta, kept, begin, meta.bytes, where, None, before, note=note)

    async def value(self, path: str) -> TextPage | str | None:
        """The value that ``path`` names, as it is written."""
        async with self._open(0, None) as reader:
            if reader is None:
                return None
            meta, span = reader.meta, Span(0, None)
            textual = is_textual(meta.media_type)
            if textual:
                span = await find_value(aiter(reader), path, lines=is_json_lines(meta.media_type))
        if not textual:
            return await self._description(meta)
        window = await self._window(span.start)
        if not isinstance(window, _Window):
            return window
        text, stop = self._up_to(window, span.end)
        note, following = "", None
        if span.end is None and stop < meta.bytes:
            following = {"bytes": f"{stop}:"}
            note = "The value is long, and where it ends was not looked for."
        elif span.end is not None and stop < span.end:
            following = {"bytes": f"{stop}:{span.end}"}
            note = f"The value goes on: {span.end - stop} bytes of it are left."
        elif span.end is not None:
            where, note = f"the whole value at {_shown(path)}", ""
            return TextPage(meta, text, window.start, stop, where, None)
        return await self._page(window, text, stop, f"the value at {_shown(path)}", following, note=note)

    async def _page(
        self,
        window: _Window,
        text: str,
        stop: int,
        where: str,
        following: Mapping[str, Any] | None,
        *,
        note: str = "",
    ) -> TextPage:
        left = max(window.meta.bytes - stop, 0)
        left_lines = await self._lines_from(stop) if 0 < left <= _COUNTED_BYTES else None
        return TextPage(window.meta, text, window.start, stop, where, following, None, left, left_lines, note)

    def _up_to(self, window: _Window, end: int | None) -> tuple[str, int]:
        """The characters of a window whose first byte lies before ``end``, and where they end."""
        data, last = window.data, window.last
        if end is not None and end - window.start < len(data):
            size = max(end - window.start, 0)
            size += belonging_before(data[max(0, size - _BACK) : size], data[size:])
            data, last = data[:size], True
        text, used = decode(data, self._budget, last=last)
        return text, window.start + used

    async def _meta(self) -> ArtifactMeta | str | None:
        async with self._open(0, 0) as reader:
            if reader is None:
                return None
            return reader.meta if is_textual(reader.meta.media_type) else await self._description(reader.meta)

    async def _description(self, meta: ArtifactMeta) -> str:
        async with self._open(0, HEX_BYTES) as reader:
            return describe_binary(meta, b"" if reader is None else await reader.read())

    async def _window(self, start: int) -> _Window | str | None:
        """As many bytes from ``start`` on as a page may take."""
        first = max(0, start - _BACK)
        async with self._open(first, start + MAX_CHAR_BYTES * (self._budget + 1)) as reader:
            if reader is None:
                return None
            meta = reader.meta
            data = await reader.read() if is_textual(meta.media_type) else b""
        if not is_textual(meta.media_type):
            return await self._description(meta)
        before, data = data[: start - first], data[start - first :]
        skipped = belonging_before(before, data)
        at = min(start, meta.bytes)
        return _Window(meta, at + skipped, data[skipped:], at + len(data) >= meta.bytes)

    async def _byte_of_line(self, line: int) -> tuple[ArtifactMeta, int, int | None] | str | None:
        """Where a line begins, counted from 0; past the end, how many lines there are."""
        async with self._open(0, None) as reader:
            if reader is None:
                return None
            meta = reader.meta
            if is_textual(meta.media_type):
                at = passed = 0
                ended = True
                async for chunk in reader:
                    ends = chunk.count(b"\n")
                    if passed + ends >= line:
                        at += behind_newline(chunk, line - passed)
                        return meta, at, None if at < meta.bytes else line
                    passed += ends
                    at += len(chunk)
                    ended = chunk.endswith(b"\n")
                return meta, at, passed + (not ended)
        return await self._description(meta)

    async def _byte_of_char(self, char: int) -> tuple[ArtifactMeta, int, int | None] | str | None:
        """Where a character begins, counted from 0; past the end, how many characters there are."""
        async with self._open(0, None) as reader:
            if reader is None:
                return None
            meta = reader.meta
            if is_textual(meta.media_type):
                decoder = codecs.getincrementaldecoder("utf-8")("replace")
                at = passed = 0
                async for chunk in reader:
                    for begin in range(0, len(chunk), _SLICE):
                        piece = chunk[begin : begin + _SLICE]
                        pending = decoder.getstate()[0]
                        count = len(decoder.decode(piece))
                        if passed + count >= char:
                            used = decode(pending + piece, char - passed, last=False)[1]
                            return meta, at - len(pending) + used, None
                        passed += count
                        at += len(piece)
                return meta, at, passed + len(decoder.decode(b"", True))
        return await self._description(meta)

    async def _lines_from(self, start: int) -> int | None:
        async with self._open(start, None) as reader:
            if reader is None:
                return None
            rest = await reader.read()
        return rest.count(b"\n") + (not rest.endswith(b"\n"))


def _shown(path: str) -> str:
    """A path within the line that begins an answer."""
    return "".join(char if char.isprintable() else "?" for char in path[:80])


def _nth(text: str, count: int) -> int:
    """The place behind the ``count``-th newline, which is there."""
    at = 0
    for _ in range(count):
        at = text.index("\n", at) + 1
    return at


def _bytes_of(text: str, data: bytes, used: int) -> int:
    """How many of the ``used`` bytes of ``data`` the first characters of them, ``text``, stand for."""
    encoded = text.encode()
    return len(encoded) if data.startswith(encoded) else decode(data[:used], len(text), last=True)[1]
