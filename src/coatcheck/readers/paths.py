"""Paths into JSON, as a model or a person writes them. Pure.

$.rows[3].mean      keys and indices, counted from 0; ``$`` and the first dot may be left out
$["any key"]        a key in quotes, as JSON or Python write it
$[2].id             in JSON Lines: of the third line
"""

from __future__ import annotations

import re

import msgspec

from coatcheck.readers.refs import ReaderError

__all__ = ["MAX_PATH_CHARS", "parse_path"]

MAX_PATH_CHARS = 1000
"""What a path may be long."""

_PLAIN = re.compile(r"[^.\[\]\s\"'*]+")
_QUOTED = re.compile(r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'", re.DOTALL)
_INDEX = re.compile("[0-9]{1,18}", re.ASCII)


def parse_path(path: str) -> tuple[str | int, ...]:
    """The steps of a path: keys, and indices counted from 0.

    Raises:
        ReaderError: it is none; the text says what one looks like.
    """
    if len(path) > MAX_PATH_CHARS:
        raise ReaderError(f"the path has {len(path)} characters; at most {MAX_PATH_CHARS} are taken")
    steps: list[str | int] = []
    at = 1 if path.startswith("$") else 0
    while at < len(path):
        if path[at] == "[":
            match = _INDEX.match(path, at + 1)
            step: str | int
            if match is not None:
                step = int(match[0])
            elif (match := _QUOTED.match(path, at + 1)) is not None:
                step = _unquoted(match[0])
            else:
                raise _no_path(path, at)
            at = match.end()
            if path[at : at + 1] != "]":
                raise _no_path(path, at)
            at += 1
        else:
            if path[at] == ".":
                at += 1
            elif at:
                raise _no_path(path, at)
            match = _QUOTED.match(path, at) or _PLAIN.match(path, at)
            if match is None:
                raise _no_path(path, at)
            step = _unquoted(match[0]) if match[0][0] in "\"'" else match[0]
            at = match.end()
        steps.append(step)
    return tuple(steps)


def _unquoted(text: str) -> str:
    if text[0] == "'":
        inner = text[1:-1].replace("\\'", "'")
        text = '"' + re.sub(r'(?<!\\)((?:\\\\)*)"', r'\1\\"', inner) + '"'
    try:
        return msgspec.json.decode(text, type=str)
    except msgspec.DecodeError:
        raise ReaderError(f"the key {text[:60]!r} in the path is no JSON string") from None


def _no_path(path: str, at: int) -> ReaderError:
    return ReaderError(
        f"the path {path[:80]!r} cannot be read from its character {at} on: write keys and indices, as in "
        '$.rows[3].mean or $["a key"][0]; for wildcards, filters and slices use a query, where there is one'
    )
