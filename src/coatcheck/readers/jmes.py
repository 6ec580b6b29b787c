"""A JMESPath expression over one JSON value.

Like `sql`, this runs in a process of its own: an expression can double its result with every step, and a thread that
evaluates one cannot be stopped. Here it has a time, a limit on memory, and results are written piece by piece, so that
one that shares its parts over and over is never written out.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

import jmespath
from jmespath import exceptions

__all__ = ["Found", "Wrong", "evaluate", "load", "pieces"]

_LOOKED_AT = 20_000  # values whose keys are known when a name is not found
_SHOWN_KEYS = 40
_SHOWN_CHARS = 1_200
_MAX_QUOTED = 80  # characters of a value in a text about it


class Wrong(Exception):
    """The expression, or the value, cannot be used; the text is for whoever wrote it."""


class Found:
    """What an expression gave.

    Args:
        value: plain JSON.
        note: what a reader of it should know, or ``None``.
    """

    def __init__(self, value: Any, note: str | None) -> None:
        self.value = value
        self.note = note


def load(data: bytes, form: str) -> Any:
    """The value of a payload.

    Args:
        form: ``json``; ``jsonl``, which is a list of its lines; ``text``, which may be either.

    Raises:
        Wrong: it is no JSON.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Wrong(f"it is no UTF-8 at byte {error.start}, so it is no JSON") from None
    try:
        if form == "jsonl":
            return [_loads(line) for line in text.split("\n") if line.strip("\x1e \t\r")]
        return _loads(text)
    except RecursionError:
        raise Wrong("its JSON is nested too deeply to be read") from None
    except ValueError as error:
        what = "JSON Lines" if form == "jsonl" else "JSON"
        raise Wrong(f"it cannot be read as {what} ({str(error)[:200]}): search it, or read it by lines") from None


def _loads(text: str) -> Any:
    return json.loads(text.strip("\x1e \t\r\n"), parse_constant=_refuse, parse_float=_number)


def _number(text: str) -> Any:
    """A number as Python reads it; one that is too large for that stays the text it is."""
    value = float(text)
    return value if value - value == 0 else text


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is no JSON")


def evaluate(expression: str, value: Any) -> Found:
    """What ``expression`` finds in ``value``.

    Raises:
        Wrong: it is no expression, or is used on what it does not fit; the text names the keys that there are.
    """
    try:
        compiled = jmespath.compile(expression)
        _check_references(compiled.parsed)
        result = compiled.search(value)
    except RecursionError:
        raise Wrong("the expression is nested too deeply") from None
    except exceptions.JMESPathTypeError as error:
        raise Wrong(
            f"In function {error.function_name}(), invalid type for value {_quoted(error.current_value)}, expected one "
            f"of: {', '.join(map(str, error.expected_types))}, received: {error.actual_type}. {_keys(value)}{_SYNTAX}"
        ) from None
    except exceptions.JMESPathError as error:
        text = " ".join(str(error).split())
        text = "".join(mark if mark.isprintable() else f"\\u{ord(mark):04x}" for mark in text)
        raise Wrong(f"{text[:500].rstrip('.')}. {_keys(value)}{_SYNTAX}") from None
    except (
        TypeError,
        ValueError,
        KeyError,
        AttributeError,
        OverflowError,
    ) as error:  # what a function makes of odd values
        raise Wrong(
            f"the expression does not fit the value (it may repeat data: {_quoted(str(error))}). {_keys(value)}"
        ) from None
    note = None
    if result is None or result == []:
        note = _unknown(compiled.parsed, value)
    return Found(result, note)


_SYNTAX = " JMESPath is written like this: rows[?age > `30`].name, rows[0], length(rows), sort_by(rows, &age)[-3:]."


# The functions that take an expression, written with & before it.
_REFERRING = frozenset({"map", "max_by", "min_by", "sort_by"})


def _check_references(tree: Any) -> None:
    """An expression that is referred to is no value: elsewhere than in a call that takes one, it would be a result."""
    pending = [(tree, False)]
    while pending:
        node, taken = pending.pop()
        if isinstance(node, dict):
            if node.get("type") == "expref" and not taken:
                raise Wrong(
                    f"&expression is no value: it is possible only in {', '.join(sorted(_REFERRING))}, as in "
                    "sort_by(rows, &age)"
                )
            takes = node.get("type") == "function_expression" and node.get("value") in _REFERRING
            pending.extend((child, takes) for child in node.get("children", ()))
        elif isinstance(node, list):
            pending.extend((child, False) for child in node)


def _quoted(value: Any) -> str:
    """The beginning of a value of the payload, in marks that say that it is data."""
    if isinstance(value, (dict, list)):
        return "(an object)" if isinstance(value, dict) else "(an array)"
    if not (value is None or isinstance(value, (str, int, float))):
        return "(an expression)"
    text = str(value) if not isinstance(value, int) or value.bit_length() < 300 else "a large number"
    cut = text if len(text) <= _MAX_QUOTED else f"{text[: _MAX_QUOTED - 1]}…"
    shown = "".join(mark if mark.isprintable() else f"\\u{ord(mark):04x}" for mark in cut).replace('"', "'")
    return f'"{shown}"'


def _unknown(tree: Any, value: Any) -> str:
    """Why nothing was found: names that are nowhere in the value, and the nearest that are."""
    known = dict.fromkeys(_all_keys(value))
    lines: list[str] = []
    for name in dict.fromkeys(_fields(tree)):
        if name not in known:
            close = difflib.get_close_matches(name[:100], list(known)[:2000], n=3, cutoff=0.5)
            lines.append(
                f"no key {_word(name)} was seen" + (f", nearest: {', '.join(map(_word, close))}" if close else "")
            )
    found = "; ".join(lines[:5])
    return f"The expression found nothing. {found + '. ' if found else ''}{_keys(value)}"


def _fields(tree: Any) -> Iterator[str]:
    pending = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, dict):
            if node.get("type") == "field":
                yield str(node["value"])
            pending.extend(node.get("children", ()))
        elif isinstance(node, list):
            pending.extend(node)


def _all_keys(value: Any) -> Iterator[str]:
    """The keys of the first values, level by level."""
    level: list[Any] = [value]
    looked = 0
    while level and looked < _LOOKED_AT:
        below: list[Any] = []
        for each in islice(level, _LOOKED_AT - looked):
            looked += 1
            if isinstance(each, dict):
                yield from islice(each, 2000)
                below.extend(islice(each.values(), 2000))
            elif isinstance(each, list):
                below.extend(each[:200])
        level = below


def _keys(value: Any) -> str:
    """What there is at the top, bounded."""
    if isinstance(value, list):
        first = value[0] if value else None
        kind = f"an array of {len(value)}"
        keys = first if isinstance(first, dict) else {}
        of = "its first element has the keys"
    elif isinstance(value, dict):
        kind, keys, of = f"an object of {len(value)} keys", value, "they are"
    else:
        return f"The value is a single {type(value).__name__}. "
    shown: list[str] = []
    chars = 0
    for name in islice(keys, _SHOWN_KEYS):
        chars += min(len(name), 60) + 4
        if chars > _SHOWN_CHARS:
            break
        shown.append(_word(name))
    left = len(keys) - len(shown)
    listed = f"; {of} {', '.join(shown)}{f' and {left} more' if left else ''}" if shown else ""
    return f"The value is {kind}{listed}."


def _word(name: str) -> str:
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,59}", name, re.ASCII):
        return name
    shown = json.dumps(name if len(name) <= 60 else f"{name[:59]}…", ensure_ascii=False)
    return "".join(mark if mark.isprintable() else "\N{REPLACEMENT CHARACTER}" for mark in shown)


def pieces(value: Any) -> Iterator[str]:
    """The compact JSON text of a value, piece by piece: only as much of it is made as is asked for.

    Raises:
        Wrong: it is nested too deeply, or holds what JSON cannot carry.
    """
    encoder = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False, allow_nan=False)
    try:
        for piece in encoder.iterencode(value):
            yield piece if piece.isascii() else piece.encode(errors="backslashreplace").decode()
    except RecursionError:
        raise Wrong("the result is nested too deeply: select a part of it") from None
    except ValueError:
        raise Wrong("the result holds a number that is infinite or none, which JSON cannot carry") from None
