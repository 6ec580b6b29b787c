"""The one funnel: what does a returned value declare about the ground that it covers?

Asked in this order, of the value itself and of nothing within it but for the last line:

* an absence is one fact, and the status ``absent``;
* a ledger is one fact and no status of its own;
* the absence DIRECTLY inside a ledger is a second fact, after the ledger's, and sets the status.

A value that declares nothing costs two look-ups.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from coatcheck.results.absence import ABSENCE_MARKER, read_absence
from coatcheck.results.coverage import COVERAGE_MARKER, read_coverage
from coatcheck.results.shapes import is_array, is_text, is_utf8

__all__ = [
    "Declared",
    "Reading",
    "may_declare",
    "may_declare_encoded",
    "read_and_check",
    "read_result",
    "read_result_encoded",
]


# Unbound, so that a subclass of dict is read as the encoder reads it, and runs no code of its own.
_get = dict.get

_MARKERS = (f'"{ABSENCE_MARKER}"'.encode(), f'"{COVERAGE_MARKER}"'.encode())
_LISTS = ("checked", "not_checked", "cannot_cover")


class Declared(msgspec.Struct, frozen=True):
    """One fact about coverage that a result declared.

    A fact that was minted elsewhere is read, never repaired: a list that is none is empty here, and an item may be
    anything, though ``absent()`` and ``coverage()`` mint only ``{"what": ..., "why": ...}``.

    Attributes:
        kind: ``absence`` or ``ledger``.
        looked_for: what an absence looked for, in the tool's words; ``None`` where it says no text, and on a ledger.
        checked: the ground that is covered, as found.
        not_checked: the ground that was left out, as found.
        cannot_cover: the ground that is out of reach, as found.
    """

    kind: Literal["absence", "ledger"]
    looked_for: str | None
    checked: tuple[Any, ...]
    not_checked: tuple[Any, ...]
    cannot_cover: tuple[Any, ...]


class Reading(msgspec.Struct, frozen=True):
    """What one result declared.

    Attributes:
        declared: its facts, the outer one first; never empty.
        status: ``absent`` when an absence is among them, unless the tool spelled a status itself.
    """

    declared: tuple[Declared, ...]
    status: Literal["absent"] | None


_SILENT = frozenset({str, list, int, float, bool, type(None)})


def may_declare(value: Any) -> bool:
    """Whether a value can be an envelope, an absence or a ledger at all: the one cheap look at every result.

    Args:
        value: whatever a tool returned.

    Returns:
        False where neither ``read_envelope`` nor ``read_result`` would find anything, nor ``explain_near_miss``.
    """
    kind = type(value)
    if kind is dict:
        return "content" in value or ABSENCE_MARKER in value or COVERAGE_MARKER in value
    return kind not in _SILENT


def read_result(value: Any) -> Reading | None:
    """Read what a value declares, by the order of this module.

    Args:
        value: whatever a tool returned, after any envelope was unwrapped. It is not changed.

    Returns:
        The reading, or ``None`` when the value declares nothing. Never raises.
    """
    cls = type(value)
    if not (cls is dict or issubclass(cls, dict)):
        return None
    if _get(value, ABSENCE_MARKER) is None and _get(value, COVERAGE_MARKER) is None:
        return None
    if read_absence(value) is not None:
        return Reading((_absence(value),), "absent")
    if read_coverage(value) is None:
        return None
    ledger = Declared("ledger", None, *_lists(_get(value, COVERAGE_MARKER)))
    inner = _get(value, "result")
    if read_absence(inner) is not None:
        return Reading((ledger, _absence(inner)), "absent")
    return Reading((ledger,), None)


class _Outline(msgspec.Struct):
    """An object's declaring keys; the others are skipped, and the large ones stay raw."""

    af_absent: Any = msgspec.UNSET
    looked_for: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    checked: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    not_checked: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    cannot_cover: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    af_coverage: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_OUTLINE = msgspec.json.Decoder(_Outline)


def read_result_encoded(raw: bytes) -> Reading | None:
    """Read what wire bytes declare, without decoding what a ledger bounds.

    The law: the answer is that of ``read_result`` on the decoded value, keys spelled with escapes included. It
    costs one syntax check of an object, and nothing for any other value: skipping what is not asked for is as fast
    as a search for the marker bytes would be, and needs no second thought about how a key may be spelled.

    Args:
        raw: the bytes of one JSON value.

    Returns:
        The reading, or ``None`` when the value declares nothing, is not JSON, not UTF-8, or nested too deeply.
    """
    return read_and_check(raw)[0]


def read_and_check(raw: bytes) -> tuple[Reading | None, bool]:
    """As ``read_result_encoded``; and whether that has found the syntax of all of ``raw`` to be right.

    It has to read an object to its end, so that nobody need check its syntax once more.
    """
    try:
        outline = _OUTLINE.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return None, False
    try:
        value = _decode_absence(outline)
        if outline.af_coverage is not msgspec.UNSET and outline.result is not msgspec.UNSET:
            value[COVERAGE_MARKER] = msgspec.json.decode(outline.af_coverage)
            value["result"] = _decode_inner(outline.result)
    except (msgspec.DecodeError, RecursionError):
        return None, True
    reading = read_result(value)
    return reading if reading is not None and is_utf8(raw) else None, True


def may_declare_encoded(raw: bytes) -> bool:
    """Whether the bytes of one JSON value may declare anything: they hold a marker, or an escape that may spell one.

    Two searches from the end cost half of what reading an object does, so this is for bytes whose syntax is known.
    """
    return raw[:1] != b"[" and (b"\\" in raw or any(raw.rfind(marker) >= 0 for marker in _MARKERS))


def _decode_absence(outline: _Outline) -> dict[str, Any]:
    """The part of an object that could be an absence, as plain values; empty where its marker is not true."""
    if outline.af_absent is not True:
        return {}
    value: dict[str, Any] = {ABSENCE_MARKER: True}
    for name in ("looked_for", *_LISTS):
        part = getattr(outline, name)
        if part is not msgspec.UNSET:
            value[name] = msgspec.json.decode(part)
    return value


def _decode_inner(result: msgspec.Raw) -> dict[str, Any] | None:
    """What could be an absence directly inside a ledger; ``None`` where the result is no object."""
    try:
        return _decode_absence(_OUTLINE.decode(result))
    except msgspec.ValidationError:
        return None


def _absence(value: Any) -> Declared:
    looked_for = _get(value, "looked_for")
    return Declared("absence", looked_for if is_text(looked_for) else None, *_lists(value))


def _lists(holder: Any) -> Iterator[tuple[Any, ...]]:
    for name in _LISTS:
        found = _get(holder, name)
        yield tuple(found) if is_array(found) else ()
