"""The wire's own words for absences and ledgers, and wire bytes opened as far as a recogniser looks.

A recogniser looks at few keys. Of wire bytes only those are decoded; everything else, above all the result that a
ledger bounds, stays ``msgspec.Raw``: it is never decoded, and is written again byte for byte where a copy is made.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from coatcheck.errors import RenderingError
from coatcheck.results.envelope import Encoded
from coatcheck.results.shapes import is_object, is_utf8

__all__ = ["ABSENCE_MARKER", "COVERAGE_MARKER", "LISTS", "MAX_LEDGERS", "as_object", "open_wire"]

ABSENCE_MARKER: Final = "af_absent"
COVERAGE_MARKER: Final = "af_coverage"
LISTS: Final = ("checked", "not_checked", "cannot_cover")

MAX_LEDGERS: Final = 16
"""How many ledgers within each other are opened one by one in wire bytes, each at the cost of one more pass over what
is within. Nobody bounds a result so often: what lies deeper and declares anything is decoded as a whole."""

_JSON = "application/json"
_DECODED = ("looked_for", *LISTS, "provenance", "period", "try_instead", "try_instead_tool", "note")


class _Markers(msgspec.Struct):
    """The two keys that declare; every other key is skipped."""

    af_absent: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    af_coverage: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_MARKERS = msgspec.json.Decoder(_Markers)
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_decode = msgspec.json.decode
_WHOLE = msgspec.json.Decoder(
    float_hook=lambda spelled: msgspec.Raw(spelled.encode())
)  # a number stays as it is spelled


def as_object(value: Any) -> dict[Any, Any] | None:
    """What a recogniser looks at: an object itself, the opened bytes of an `Encoded`, ``None`` for any other value.

    An `Encoded` of another media type than ``application/json`` declares nothing, whatever its bytes spell.
    """
    if is_object(value):
        return value
    if type(value) is Encoded and value.media_type == _JSON:
        return open_wire(value.raw)[0]
    return None


def open_wire(raw: bytes) -> tuple[dict[str, Any] | None, bool]:
    """Open the bytes of one JSON value that may declare something.

    It costs one syntax check of an object, and nothing for any other value: skipping what is not asked for is as fast
    as a search for the marker bytes would be, and needs no second thought about how a key may be spelled.

    Args:
        raw: the bytes of one JSON value.

    Returns:
        The object, in the order of the wire, with its declaring keys as plain values and all others as ``msgspec.Raw``;
        ``None`` when it has no marker, is no object, is not JSON, not UTF-8, or nested too deeply. And whether the
        syntax of all of ``raw`` was found to be right: an object is read to its end, so nobody need check it again.

    Raises:
        RenderingError: when a marker is there, and what it declares is nested so deeply that it cannot be read.
    """
    try:
        markers = _MARKERS.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return None, False
    try:
        opened = _open(raw, markers, MAX_LEDGERS)
    except msgspec.DecodeError:
        return None, True
    except RecursionError:
        raise RenderingError("$", "JSON that is nested too deeply to read what it declares") from None
    return (opened if opened is not None and is_utf8(raw) else None), True


def _open(raw: bytes | msgspec.Raw, markers: _Markers, levels: int) -> dict[str, Any] | None:
    """One object; ``None`` where nothing declares."""
    absent = markers.af_absent is not msgspec.UNSET and bytes(markers.af_absent) == b"true"
    if not absent and markers.af_coverage is msgspec.UNSET:
        return None
    fields: dict[str, Any] = _FIELDS.decode(raw)
    if absent:
        fields[ABSENCE_MARKER] = True
        for name in _DECODED:
            if name in fields:
                fields[name] = _decode(fields[name])
    if markers.af_coverage is not msgspec.UNSET:
        fields[COVERAGE_MARKER] = _decode(markers.af_coverage)
        if "result" in fields and is_object(fields[COVERAGE_MARKER]):
            fields["result"] = _open_inner(fields["result"], levels)
    return fields


def _open_inner(result: msgspec.Raw, levels: int) -> Any:
    try:
        markers = _MARKERS.decode(result)
        if not levels:
            silent = markers.af_absent is msgspec.UNSET and markers.af_coverage is msgspec.UNSET
            return result if silent else _WHOLE.decode(result)
        opened = _open(result, markers, levels - 1)
    except msgspec.ValidationError:  # no object
        return result
    return result if opened is None else opened
