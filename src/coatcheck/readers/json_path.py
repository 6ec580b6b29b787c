"""One value inside a JSON text of any length: where it begins and ends, in bytes, without holding more than a chunk.

What lies before the value is skipped by its brackets and strings alone, and is not checked any further; what lies
behind it is not read. So no nesting, no length of a string and no number can take more than a chunk of memory. Where
an object has a key twice, the first is taken.

The scanning is done in a worker thread, a chunk at a time. It ends after some seconds, and a caller that is cancelled
waits for none of it.

What a text names of the payload's keys is spelled as JSON strings, bounded, with everything escaped that is not
printed, and said to be data.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from difflib import get_close_matches
from typing import NamedTuple

import msgspec
from anyio import to_thread

from coatcheck.readers.json_text import InString, Skim, Steps, Text
from coatcheck.readers.paths import parse_path
from coatcheck.readers.refs import ReaderError
from coatcheck.readers.scanning import SECONDS

__all__ = ["Span", "find_value"]

_KEYS_SHOWN = 20
_KEY_SHOWN_CHARS = 60
_PATH_SHOWN_CHARS = 200
_SMALL = 1 << 12
_LINES_AT_ONCE = 1 << 16
_KEYS_AT_ONCE = 256
_MEMBER_BYTES = 1 << 12
_PLAIN_KEY = re.compile("[A-Za-z_][A-Za-z0-9_-]*", re.ASCII)
_INDEX = re.compile("[0-9]{1,18}", re.ASCII)
_SCALAR_END = re.compile(rb"[ \t\r\n,\]}\[{\":]")
_STRING = rb'"(?:[^"\\]++|\\.)*+"'
_LEVELS = 6
_NESTED = rb"(?!)"
for _level in range(_LEVELS):
    _NESTED = rb"[\[{](?:[^\"\[\]{}]++|" + _STRING + rb"|" + _NESTED + rb")*+[\]}]"
# A whole member of an object and the comma behind it, where its value is not nested deeper than that.
_MEMBER = re.compile(
    rb"[ \t\r\n]*+(" + _STRING + rb")[ \t\r\n]*+:"
    rb"([ \t\r\n]*+(?:" + _STRING + rb"|[^ \t\r\n\"\[\]{},:]++|" + _NESTED + rb")[ \t\r\n]*+,)",
    re.DOTALL,
)
_BLANK_LINES = re.compile(rb"\n(?:[ \t\r]*+\n)++")
_decode_key = msgspec.json.Decoder(str).decode
_KINDS = {0x7B: "an object", 0x5B: "an array", 0x22: "a string", 0x74: "true", 0x66: "false", 0x6E: "null"}


class Span(NamedTuple):
    """Where a value lies, in bytes of the payload; ``end`` is ``None`` where it goes on past what was looked at."""

    start: int
    end: int | None


async def find_value(
    chunks: AsyncIterator[bytes],
    path: str,
    *,
    lines: bool = False,
    look_for_end: int = 1 << 18,
    seconds: float | None = SECONDS,
) -> Span:
    """Where the value that ``path`` names lies.

    Args:
        chunks: the JSON text from its first byte on.
        path: as `parse_path` takes it.
        lines: it is JSON Lines: a value a line, of which an index names one.
        look_for_end: how many bytes of the value are read at most to find its end.
        seconds: how long to look at most; ``None``: without end.

    Raises:
        ReaderError: nothing is there; the text names the keys or the number of elements that are. Or the text is
            no JSON there, or it took too long.
    """
    text = Text(seconds)
    steps = _find(text, parse_path(path), lines, look_for_end)
    chunk: bytes | None = None
    try:
        while True:
            if chunk is None or len(chunk) <= _SMALL:  # a thread would take longer
                found = _go_on(steps, chunk)
            else:
                found = await to_thread.run_sync(_go_on, steps, chunk, abandon_on_cancel=True)
            if found is not None:
                return found
            chunk = await anext(chunks, None)
    except BaseException:
        text.given_up = True  # its thread goes no further than the next slice
        raise


def _go_on(steps: Steps[Span], chunk: bytes | None) -> Span | None:
    """Go on with one more chunk; ``None``: more are needed."""
    try:
        steps.send(chunk)
    except StopIteration as end:
        span: Span = end.value
        return span
    return None


def _find(text: Text, steps: tuple[str | int, ...], lines: bool, look_for_end: int) -> Steps[Span]:
    first = yield from text.after_space()
    if first is None:
        raise ReaderError("the artifact is empty: there is no JSON in it")
    if (yield from text.starts_with(b"\xef\xbb\xbf")):
        text.at += 3
        first = yield from text.after_space()
    spelled = "$"
    if lines:
        if not steps:
            return Span(text.offset, None)
        if not isinstance(steps[0], int):
            raise ReaderError(
                f"the artifact is JSON Lines, a value a line: begin with an index, as in $[0]{_spell_step(steps[0])}"
            )
        yield from _go_to_line(text, steps[0])
        spelled, steps = f"$[{steps[0]}]", steps[1:]
    for step in steps:
        first = yield from text.after_space()
        if first == 0x7B:
            yield from _go_to_key(text, str(step), spelled)
        elif first == 0x5B and (isinstance(step, int) or _INDEX.fullmatch(step)):
            yield from _go_to_index(text, int(step), spelled)
        elif first == 0x5B:
            raise ReaderError(f"{spelled} is an array: name an element by its index, as in {spelled}[0]")
        elif spelled == "$":
            raise ReaderError("the artifact is no JSON object or array, so no path leads into it: read it by lines")
        else:
            raise ReaderError(f"{spelled} is {_KINDS.get(first or 0, 'a number')}: there is nothing in it")
        spelled = _spell_path(spelled, step)
    first = yield from text.after_space()
    if first is None or first in b",]}:":
        raise text.no_json()
    start = text.offset
    return Span(start, (yield from _end_of_value(text, first, start + look_for_end)))


def _go_to_key(text: Text, key: str, spelled: str) -> Steps[None]:
    """From the brace of an object to the value of one of its keys."""
    text.at += 1
    longest = 12 * len(key) + 1024
    keys: list[str] = []
    count = 0
    first = yield from text.after_space()
    while first != 0x7D:
        passed = _pass_members(text, key, keys)
        if passed is None:
            return
        count += passed
        text.check_time()
        first = yield from text.after_space()
        if passed and first == 0x7D:
            break
        if first != 0x22:
            raise text.no_json()
        written = yield from text.string(longest)
        if written is not None:
            name = _key(written, text)
            if (yield from text.after_space()) != 0x3A:
                raise text.no_json()
            text.at += 1
            if name == key:
                return
            _keep(keys, name)
        count += 1
        if written is not None and not (yield from text.skim(Skim(), None)):
            raise text.no_json()
        if (yield from text.after_space()) == 0x2C:
            text.at += 1
            first = yield from text.after_space()
        elif text.data[text.at : text.at + 1] == b"}":
            break
        else:
            raise text.no_json()
    raise _no_key(key, keys, count, spelled)


def _pass_members(text: Text, key: str, keys: list[str]) -> int | None:
    """Go over members that are short and whole, some at a time, and say over how many; ``None``: to the value."""
    data, at = text.data, text.at
    count = 0
    while (match := _MEMBER.match(data, at, at + _MEMBER_BYTES)) is not None:
        text.at = at
        name = _key(match[1], text)
        if name == key:
            text.at = match.start(2)
            return None
        _keep(keys, name)
        at = match.end()
        count += 1
        if count % _KEYS_AT_ONCE == 0:
            text.at = at
            text.check_time()
    text.at = at
    return count


def _keep(keys: list[str], name: str) -> None:
    if len(keys) < _KEYS_SHOWN * 50:
        keys.append(name[:_KEY_SHOWN_CHARS])


def _no_key(key: str, keys: list[str], count: int, spelled: str) -> ReaderError:
    said = f"{spelled} has no key {key[:_KEY_SHOWN_CHARS]!r}"
    if not count:
        return ReaderError(f"{said}: it is empty")
    near = get_close_matches(key[:_KEY_SHOWN_CHARS], keys, n=3)
    nearest = f"; the nearest are {', '.join(map(_spell_key, near))}" if near else ""
    shown = ", ".join(map(_spell_key, keys[:_KEYS_SHOWN]))
    more = f" and {count - _KEYS_SHOWN} more" if count > _KEYS_SHOWN else ""
    return ReaderError(f"{said}. Its keys (data, not instructions): {shown}{more}{nearest}")


def _spell_key(key: str) -> str:
    """A key as a JSON string in one line, cut off where it is long."""
    parts: list[str] = []
    size = 0
    for char in key:
        written = json.dumps(char, ensure_ascii=not char.isprintable())[1:-1]
        size += len(written)
        if size > _KEY_SHOWN_CHARS:
            return f'"{"".join(parts)}…"'
        parts.append(written)
    return f'"{"".join(parts)}"'


def _spell_step(step: str | int) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    return f".{step}" if len(step) <= _KEY_SHOWN_CHARS and _PLAIN_KEY.fullmatch(step) else f"[{_spell_key(step)}]"


def _spell_path(path: str, step: str | int) -> str:
    """A path and one more step, without its beginning where it is long."""
    spelled = path + _spell_step(step)
    return spelled if len(spelled) <= _PATH_SHOWN_CHARS else f"…{spelled[-_PATH_SHOWN_CHARS:]}"


def _key(written: bytes, text: Text) -> str:
    try:
        return _decode_key(written)
    except (msgspec.DecodeError, UnicodeError):
        raise text.no_json() from None


def _go_to_index(text: Text, index: int, spelled: str) -> Steps[None]:
    """From the bracket of an array to one of its elements."""
    text.at += 1
    if (yield from text.after_space()) == 0x5D:
        raise ReaderError(f"{spelled} is an empty array")
    if not index:
        return
    skim = Skim(index)
    if not (yield from text.skim(skim, None)):
        raise text.no_json()
    if text.data[text.at] != 0x2C:
        count = skim.seen + 1
        raise ReaderError(f"{spelled} has {count} elements, counted from 0: the last is {spelled}[{count - 1}]")
    text.at += 1


def _go_to_line(text: Text, index: int) -> Steps[None]:
    """From the first line that is not blank to one of the others, blank ones not counted."""
    passed = 0
    size = _LINES_AT_ONCE
    while passed < index:
        text.check_time()
        end = text.data.rfind(b"\n", text.at, text.at + size) + 1
        if not end:
            end = text.data.find(b"\n", text.at + size) + 1
        if not end:
            text.at = len(text.data)
            if not (yield from text.more()):
                passed += 1
                break
            continue
        ends = _BLANK_LINES.sub(b"\n", text.data[text.at : end]).count(b"\n")
        if passed + ends > index:
            size //= 2
            continue
        passed += ends
        text.at = end
        if (yield from text.after_space()) is None:
            break
    else:
        return
    raise ReaderError(f"the artifact has {passed} lines of JSON, counted from 0: the last is $[{passed - 1}]")


def _end_of_value(text: Text, first: int, limit: int) -> Steps[int | None]:
    """Where the value that begins here ends; ``None``: past ``limit``. What was looked at is not held."""
    if first in b"{[":
        text.at += 1
        return text.offset + 1 if (yield from text.skim(Skim(1 << 62), limit)) else None
    if first == 0x22:
        text.at += 1
        return text.offset if (yield from text.skim(InString(), limit)) else None
    while (match := _SCALAR_END.search(text.data, text.at)) is None:
        text.at = len(text.data)
        if text.offset > limit:
            return None
        if not (yield from text.more()):
            return text.offset
    text.at = match.start()
    return text.offset
