"""What counts as an object, an array and text in a returned value, and how a sentence speaks of what was found.

Two rules:

* A shape is judged by the value's real type, never by its ``__class__``. A lazy proxy or a mock that only claims
  to be a ``dict`` is another class, and asking it anything would run its code: it is not an object here.
* A sentence for a model or an author holds no more of a foreign value than ``quote`` lets through: one line,
  bounded, and unable to leave its quotation marks or the brackets around the sentence.
"""

from __future__ import annotations

import codecs
import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeGuard, TypeVar

import msgspec

__all__ = [
    "clip",
    "copied",
    "describe",
    "is_array",
    "is_object",
    "is_text",
    "is_utf8",
    "legible",
    "quote",
    "recogniser",
    "spoken",
]

_T = TypeVar("_T")

_CHUNK = 1 << 16
# What would close the quotation marks of `quote`, or the brackets of a note that holds them.
_FENCE = str.maketrans({'"': "'", "[": "(", "]": ")"})


def is_object(value: object) -> TypeGuard[dict[Any, Any]]:
    """Whether the value is a JSON object: a ``dict`` or a subclass of it, and nothing else."""
    return type(value) is dict or issubclass(type(value), dict)


def is_array(value: object) -> TypeGuard[list[Any] | tuple[Any, ...]]:
    """Whether the value is a JSON array: a ``list`` or a ``tuple``, which JSON does not tell apart."""
    return issubclass(type(value), (list, tuple))


def is_text(value: object) -> TypeGuard[str]:
    """Whether the value is text: a ``str`` or a subclass of it, such as a member of a ``StrEnum``."""
    return issubclass(type(value), str)


def recogniser(reads: Callable[[Any], _T | None]) -> Callable[[Any], _T | None]:
    """Make of ``reads`` what never raises: whatever a foreign object raises when it is looked at, it is not our shape.

    A ``dict`` can have keys that run code when they are compared, so that a mere look-up raises.
    """

    @functools.wraps(reads)
    def read(value: Any, /) -> _T | None:
        try:
            return reads(value)
        except Exception:  # noqa: BLE001 - as promised
            return None

    return read


def spoken(value: object) -> str | None:
    """The text that says something, verbatim, as a plain ``str``.

    Args:
        value: anything.

    Returns:
        The text itself, not trimmed; ``None`` when the value is not text, or nothing is left of it
        once Unicode white space is stripped.
    """
    if is_text(value) and str.strip(value):
        return str.__str__(value)
    return None


def describe(value: object) -> str:
    """What was found where something else was wanted, without quoting it: ``it is missing``, ``it is None``..."""
    if value is msgspec.UNSET:
        return "it is missing"
    if value is None:
        return "it is None"
    if is_text(value):
        return "it is text" if str.strip(value) else "it is blank"
    return f"it is of type {type(value).__name__}"


def copied(holder: dict[Any, Any], changed: Mapping[str, Any], *, without: tuple[str, ...] = ()) -> dict[Any, Any]:
    """A plain ``dict`` with the entries of an object in their order, some changed or added, some left out.

    A subclass of ``dict`` is read as the encoder reads it, and runs no code of its own.
    """
    entries = {**dict(dict.items(holder)), **changed}
    return {name: said for name, said in entries.items() if name not in without} if without else entries


def clip(text: str, limit: int) -> str:
    """The text on one line of at most ``limit`` characters, with an ellipsis where it was cut."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def legible(text: str) -> str:
    """The text as UTF-8 can carry it: lone surrogates are spelled out, everything else is as it was."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def quote(text: str, limit: int = 80) -> str:
    """The text in quotation marks, fit for a sentence: bounded, on one line, unable to leave the marks.

    What cannot be printed (controls, line separators, marks that reorder text, lone surrogates) becomes U+FFFD.
    """
    shown = "".join(mark if mark.isprintable() else "\N{REPLACEMENT CHARACTER}" for mark in text[:limit]).translate(
        _FENCE
    )
    return f'"{shown}…"' if len(text) > limit else f'"{shown}"'


def is_utf8(raw: bytes) -> bool:
    """Whether the bytes are UTF-8. Costs next to nothing for ASCII, and never holds a decoded copy of the whole.

    ``msgspec`` checks the syntax of what it leaves raw or skips, but not its encoding.
    """
    if raw.isascii():
        return True
    view, start = memoryview(raw), 0
    try:
        while start < len(view):
            end = start + _CHUNK
            start += codecs.utf_8_decode(view[start:end], "strict", end >= len(view))[1]
    except UnicodeDecodeError:
        return False
    return True
