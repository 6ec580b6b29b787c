"""The served form: what the model reads of an absence or a ledger, where that is not what is on the record.

Of every absence and ledger that is recognised, in ledgers within each other at any depth (`MAX_LEDGERS` of them),

* the record-only keys of the items (``short``, ``kind``) are removed, whatever is in them;
* a period that does not cover what was asked about gains its ``verdict``, and the note one static clause; an absence
  with the standard note carries another one first, where the period is held in part or not at all.

Nothing else is touched, nothing is changed in place, and where there is nothing to change it is the same object. What
was served once is served again as it is: a ``verdict`` in a period is a key that no tool may declare, so the period
says nothing any more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from coatcheck.results.items import served_items
from coatcheck.results.notes import ABSENCE_NOTE, ABSENCE_NOTE_HELD_ONLY, PERIOD_CLAUSES
from coatcheck.results.period import verdict_of
from coatcheck.results.shapes import copied, is_array, is_object, is_text
from coatcheck.results.wire import ABSENCE_MARKER, COVERAGE_MARKER, LISTS, MAX_LEDGERS

__all__ = ["encode_revised", "revise", "serve", "serve_encoded"]

_get = dict.get

Revision = Callable[[dict[Any, Any], bool], dict[Any, Any]]


def serve(value: Any) -> Any:
    """What the model is served of a value; the very same object where that is the value itself."""
    return revise(value, _served)


def serve_encoded(opened: dict[str, Any], raw: bytes) -> bytes:
    """As `serve`, for the wire bytes that were opened with `coatcheck.results.wire.open_wire`."""
    return encode_revised(opened, raw, _served)


def revise(value: Any, revision: Revision, levels: int = MAX_LEDGERS) -> Any:
    """Change what a value declares about itself, by a copy of exactly the objects that have to change.

    Args:
        value: anything; looked at as `read_result` does, but through every ledger.
        revision: given an absence, or the bounds of a ledger, and whether it is an absence; returns the same object
            where nothing is to change, else a copy.
        levels: how many ledgers are looked into.

    Returns:
        The very same object where nothing changed.
    """
    if not is_object(value):
        return value
    checked = _get(value, "checked")
    if _get(value, ABSENCE_MARKER) is True and is_array(checked) and checked:
        return revision(value, True)
    bounds = _get(value, COVERAGE_MARKER)
    if not is_object(bounds) or not dict.__contains__(value, "result"):
        return value
    result = _get(value, "result")
    revised_bounds, revised = revision(bounds, False), revise(result, revision, levels - 1) if levels else result
    if revised_bounds is bounds and revised is result:
        return value
    return copied(value, {COVERAGE_MARKER: revised_bounds, "result": revised})


def encode_revised(opened: dict[str, Any], raw: bytes, revision: Revision) -> bytes:
    """As `revise`, for wire bytes that were opened; what stayed raw is written again as it was.

    Returns:
        The very same bytes where nothing changed.
    """
    revised = revise(opened, revision)
    return raw if revised is opened else msgspec.json.encode(revised)


def _served(holder: dict[Any, Any], is_absence: bool) -> dict[Any, Any]:
    changed: dict[str, Any] = {}
    for name in LISTS:
        found = _get(holder, name)
        if (items := served_items(found)) is not found:
            changed[name] = items
    period = _get(holder, "period")
    verdict = None if period is None else verdict_of(period)
    if is_object(period) and verdict is not None and verdict in PERIOD_CLAUSES:
        changed["period"] = copied(period, {"verdict": verdict})
        note = _get(holder, "note")
        clause = PERIOD_CLAUSES[verdict]
        if not is_text(note):
            changed["note"] = clause
        elif is_absence and verdict != "unknown" and note == ABSENCE_NOTE:
            changed["note"] = f"{ABSENCE_NOTE_HELD_ONLY} {clause}"
        else:
            changed["note"] = f"{note} {clause}"
    return copied(holder, changed) if changed else holder
