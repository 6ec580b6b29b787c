"""The shape of a JSON text or value: its fields by path with their types, its rows, its largest fields.

It costs less than reading the text: only the levels that are shown are opened, what is below stays unread, and of a
long list some elements are looked at. No value is in a shape, only names, types and sizes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

import msgspec

from coatcheck.results.shapes import legible

__all__ = ["FIELDS_CHARS", "MAX_FIELDS", "SAMPLE", "Fields", "shape_of_text", "shape_of_value", "spell_name"]

FIELDS_CHARS = 1_200
"""What paths and their types may take together, in characters."""

MAX_FIELDS = 48
"""How many of them there are at most."""

SAMPLE = 96
"""How many elements of a longer list are looked at."""

_MAX_NAME = 48
_MAX_PATH = 120
_DEPTH = 4
_FLAT_DEPTH = 2
_MAX_FLAT = 2 * MAX_FIELDS  # paths of one element of a list
_WHOLE = 4 << 20  # a larger text is opened only where it holds few values
_MAX_VALUES = 1_000_000
_MAX_SIZED = 1_000  # keys: of more, none is most of the payload
_LONG = 1 << 14  # bytes of a string that is not read for its characters
_LARGE = 1_000  # bytes of a field whose size is worth a word
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_KINDS = {
    dict: "object", list: "array", str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"
}  # fmt: skip

_Raw = msgspec.Raw
_decode = msgspec.json.decode


def shape_of_text(data: bytes | None, head: bytes) -> dict[str, Any] | None:
    """The shape of a JSON text: of all of it, where it can be opened cheaply, else of its beginning.

    Args:
        data: all of it, where it is at hand.
        head: its beginning.

    Returns:
        ``type`` and what is known beside it; ``None``: it is no JSON.
    """
    if data is not None and (len(data) <= _WHOLE or data.count(b",") <= _MAX_VALUES):
        try:
            return _shape(_opened(_Raw(data)), cheap=True)
        except (msgspec.DecodeError, UnicodeError, RecursionError, ValueError):
            return None
    return _beginning(head.decode(errors="ignore"))


def shape_of_value(value: Any) -> dict[str, Any] | None:
    """The same of a value at hand, whatever its size; ``None``: it holds what is no plain JSON value."""
    try:
        return _shape(value, cheap=False)
    except Exception:  # noqa: BLE001 - somebody else's value; its encoded form says the same
        return None


def _opened(raw: Any) -> Any:
    """One level of a JSON text: what is below stays unread. Short elements are cheaper read than left."""
    if type(raw) is not _Raw:
        return raw
    view = memoryview(raw)
    start = bytes(view[:256]).lstrip()
    if start[:1] == b'"' and len(view) > _LONG:
        return raw
    if start[:1] == b"{":
        return _decode(raw, type=dict[str, _Raw])
    if start[:1] != b"[":
        return _decode(raw)
    first = start[1:].lstrip()
    if first[:1] != b"[" and (first[:1] != b"{" or b"," in first[:7]):
        return _decode(raw)
    return _decode(raw, type=list[_Raw])


def _shape(top: Any, *, cheap: bool) -> dict[str, Any]:
    """The outline of an opened value.

    Args:
        cheap: what is below it is unread text, whose size is known.
    """
    found: dict[str, Any] = {"type": _kind_of_raw(top)}  # a long string is not opened
    fields = Fields()
    if type(top) is dict:
        found["keys"] = len(top)
        sizes = {name: _size(item) for name, item in top.items()} if 1 < len(top) <= _MAX_SIZED else {}
        largest = sorted((name for name in sizes if sizes[name] >= _LARGE), key=lambda name: -sizes[name])[:3]
        if largest:
            unit = "bytes" if cheap else "characters"
            found["largest"] = {spell_name(name): f"{sizes[name]} {unit}" for name in largest}
        fields.walk([("", top)])
    elif type(top) is list:
        found["rows" if _has_rows(top) else "elements"] = len(top)
        fields.walk_elements("", top)
    else:
        found["of"] = _described(top)
    return {**found, **fields.summary()}


class Fields:
    """Paths with their types, the higher levels first, until there is no room."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}
        self.left_out: int = 0
        self.sampled: int = 0
        self._chars = 0

    def summary(self) -> dict[str, Any]:
        """What was found, as a part of an outline."""
        found: dict[str, Any] = {}
        if self.found:
            found["fields"] = self.found
        if self.left_out:
            found["fields_left_out"] = self.left_out
        if self.sampled:
            found["sampled"] = f"the fields of a list are those of {self.sampled} of its elements"
        return found

    def walk(self, level: list[tuple[str, dict[str, Any]]], depth: int = 1) -> None:
        """Objects by their paths, level by level."""
        while level and depth <= _DEPTH:
            below: list[tuple[str, dict[str, Any]]] = []
            for path, holder in level:
                for index, (name, item) in enumerate(holder.items()):
                    here = _join(path, name)
                    opened = _opened(item) if depth < _DEPTH or _is_scalar(item) else item
                    if not self._add(here, _described(opened)):
                        self.left_out += len(holder) - index - 1
                        break
                    if type(opened) is dict:
                        below.append((here, opened))
                    elif type(opened) is list and opened and depth < _DEPTH:
                        merged = self._merged(opened)
                        if merged:
                            self._add_columns(f"{here}[]", merged)
            level, depth = below, depth + 1

    def walk_elements(self, path: str, elements: list[Any]) -> None:
        """A list at the top."""
        merged = self._merged(elements)
        if merged:
            self._add_columns("[]", merged)
        elif elements:
            kinds = sorted({_kind(_opened(item)) for item in _sample(elements)})
            self._add("[]", " or ".join(kinds))
            self._note(elements)

    def _merged(self, elements: list[Any]) -> dict[str, tuple[dict[str, None], int, int]]:
        """The fields of the objects among some elements: their kinds, and how many of the objects have them."""
        merged: dict[str, tuple[dict[str, None], int, int]] = {}
        sample = [opened for item in _sample(elements) if type(opened := _opened(item)) is dict]
        for row in sample:
            for path, kind in islice(_flat(row), _MAX_FLAT):
                kinds, count, _ = merged.get(path, ({}, 0, 0))
                kinds[kind] = None
                merged[path] = (kinds, count + 1, len(sample))
        if merged:
            self._note(elements)
        return merged

    def _note(self, elements: list[Any]) -> None:
        if len(elements) > SAMPLE:
            self.sampled = SAMPLE

    def _add_columns(self, path: str, merged: dict[str, tuple[dict[str, None], int, int]]) -> None:
        for index, (name, (kinds, count, of)) in enumerate(merged.items()):
            words = " or ".join(sorted(kinds, key=lambda kind: kind == "null"))
            if not self._add(f"{path}.{name}", words if count == of else f"{words}, not in all"):
                self.left_out += len(merged) - index - 1
                return

    def _add(self, path: str, words: str) -> bool:
        if path in self.found:
            return True
        chars = len(json.dumps(path)) + len(words) + 4
        if len(path) > _MAX_PATH or len(self.found) >= MAX_FIELDS or self._chars + chars > FIELDS_CHARS:
            self.left_out += 1
            return len(path) > _MAX_PATH
        self.found[path] = words
        self._chars += chars
        return True


def _flat(row: dict[str, Any], path: str = "", depth: int = 1) -> Iterator[tuple[str, str]]:
    """The paths within one element of a list, down to objects within it, with their types."""
    for name, item in row.items():
        here, kind = _join(path, name), _kind_of_raw(item)
        yield here, kind
        if kind == "object" and depth < _FLAT_DEPTH:
            yield from _flat(_opened(item), here, depth + 1)


def _sample(elements: list[Any]) -> list[Any]:
    """The first ones, the last ones, and some between."""
    if len(elements) <= SAMPLE:
        return elements
    third = SAMPLE // 3
    step = (len(elements) - 2 * third) // third or 1
    middle = elements[third : len(elements) - third : step][:third]
    return elements[:third] + middle + elements[-third:]


def _has_rows(elements: list[Any]) -> bool:
    return bool(elements) and _kind_of_raw(elements[0]) == "object"


def _is_scalar(item: Any) -> bool:
    return _kind_of_raw(item) not in ("object", "array")


def _kind_of_raw(item: Any) -> str:
    """The type of an element, by its first character where it is unread."""
    if type(item) is not _Raw:
        return _kind(item)
    view = bytes(memoryview(item)[:64]).lstrip()
    match view[:1]:
        case b"{":
            return "object"
        case b"[":
            return "array"
        case b'"':
            return "string"
        case b"t" | b"f":
            return "boolean"
        case b"n":
            return "null"
        case _:
            return "number" if re.search(rb"[.eE]", view) else "integer"


def _kind(value: Any) -> str:
    return _KINDS[type(value)]


def _described(value: Any) -> str:
    """A type, and how much of it there is."""
    if type(value) is _Raw:
        kind = _kind_of_raw(value)
        return f"string of {_size(value) - 2} bytes" if kind == "string" else kind
    if type(value) is str:
        return f"string of {_counted(len(value), 'character')}"
    if type(value) is dict:
        return f"object of {_counted(len(value), 'key')}"
    if type(value) is list:
        return f"array of {_counted(len(value), 'object' if _has_rows(value) else 'element')}"
    return _kind(value)


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _size(item: Any) -> int:
    if type(item) is _Raw:
        return len(memoryview(item))
    return len(item) if type(item) is str else 0


def spell_name(name: Any) -> str:
    """A key as JMESPath writes it: bare where it can be, else in quotes; cut, and on one line."""
    if not isinstance(name, str):
        raise TypeError("a key that is no text")
    if len(name) <= _MAX_NAME and _PLAIN.fullmatch(name):
        return name
    shown = name if len(name) <= _MAX_NAME else f"{name[: _MAX_NAME - 1]}…"
    quoted = json.dumps(legible(shown), ensure_ascii=False)
    return "".join(mark if mark.isprintable() else "\N{REPLACEMENT CHARACTER}" for mark in quoted)


def _join(path: str, name: Any) -> str:
    return f"{path}.{spell_name(name)}" if path else spell_name(name)


_scanner = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\r\n]*")


def _beginning(text: str) -> dict[str, Any] | None:
    """What can be told from the beginning of a JSON text whose end was not seen."""
    at = _skip(text, 0)
    opening = text[at : at + 1]
    if opening not in ("{", "["):
        return None
    items: list[Any] = []
    names: list[str] = []
    at = _skip(text, at + 1)
    try:
        while text[at : at + 1] not in ("", "}", "]"):
            if opening == "{":
                name, at = _scanner.raw_decode(text, at)
                names.append(name)
                at = _skip(text, at)
                if text[at : at + 1] != ":":
                    break
                at = _skip(text, at + 1)
            item, at = _scanner.raw_decode(text, at)
            items.append(item)
            at = _skip(text, at)
            if text[at : at + 1] != ",":
                break
            at = _skip(text, at + 1)
    except (ValueError, RecursionError):  # the last one is cut, or this is no JSON
        pass
    if opening == "{":
        found = shape_of_value(dict(zip(names, items, strict=False)))
        if found is not None:
            found.pop("keys", None)
            if len(names) > len(items) and isinstance(names[-1], str):
                found.setdefault("fields", {})[spell_name(names[-1])] = "not seen to its end"
    else:
        found = shape_of_value(items)
        if found is not None:
            found.pop("rows", None)
            found.pop("elements", None)
    return None if found is None else {**found, "seen": f"the first {len(text)} characters only"}


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return at if match is None else match.end()
