"""The served form: what the model reads of an absence or a ledger, where that is not what is on the record.

Of every absence and ledger that is recognised, in ledgers within each other at any depth,

* the record-only keys of the items (``short``, ``kind``) are removed, whatever is in them;
* a period that does not cover what was asked about gains its ``verdict``, and the note one static clause; an absence
  with the standard note carries another one first, where the period is held in part or not at all.

Nothing else is touched, nothing is changed in place, and where there is nothing to change it is the same object. What
was served once is served again as it is: a ``verdict`` in a period is a key that no tool may declare, so the period
says nothing any more. Wire bytes that hold more of the record-only keys than was read of them (a key was given twice,
or is spelled with escapes) are written anew, for a reader may find there what nobody looked at.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import msgspec

from coatcheck.results.envelope import Encoded
from coatcheck.results.items import RECORD_ONLY, served_items
from coatcheck.results.notes import ABSENCE_NOTE, ABSENCE_NOTE_HELD_ONLY, PERIOD_CLAUSES
from coatcheck.results.period import verdict_of
from coatcheck.results.shapes import copied, is_array, is_object, is_text
from coatcheck.results.wire import ABSENCE_MARKER, COVERAGE_MARKER, LISTS

__all__ = ["encode_revised", "revise", "serve", "serve_encoded", "with_content"]

_get = dict.get

_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])

Revision = Callable[[dict[Any, Any], bool], dict[Any, Any]]


def serve(value: Any) -> Any:
    """What the model is served of a value; the very same object where that is the value itself."""
    return revise(value, _served)


def serve_encoded(opened: dict[str, Any], raw: bytes) -> bytes:
    """As `serve`, for the wire bytes that were opened with `coatcheck.results.wire.open_wire`."""
    return encode_revised(opened, raw, _served, RECORD_ONLY)


def revise(value: Any, revision: Revision) -> Any:
    """Change what a value declares about itself, by a copy of exactly the objects that have to change.

    Args:
        value: anything; looked at as `read_result` does, but through every ledger. One that is within itself is as it
            is: JSON has no word for it.
        revision: given an absence, or the bounds of a ledger, and whether it is an absence; returns the same object
            where nothing is to change, else a copy.

    Returns:
        The very same object where nothing changed.
    """
    ledgers: dict[int, tuple[dict[Any, Any], Any]] = {}
    inner = value
    while is_object(inner):
        checked = _get(inner, "checked")
        if _get(inner, ABSENCE_MARKER) is True and is_array(checked) and checked:
            inner = revision(inner, True)
            break
        bounds = _get(inner, COVERAGE_MARKER)
        if not is_object(bounds) or not dict.__contains__(inner, "result"):
            break
        if id(inner) in ledgers:
            return value
        ledgers[id(inner)] = inner, revision(bounds, False)
        inner = _get(inner, "result")
    for ledger, bounds in reversed(ledgers.values()):
        if bounds is _get(ledger, COVERAGE_MARKER) and inner is _get(ledger, "result"):
            inner = ledger
        else:
            inner = copied(ledger, {COVERAGE_MARKER: bounds, "result": inner})
    return inner


def encode_revised(opened: dict[str, Any], raw: bytes, revision: Revision, words: tuple[str, ...]) -> bytes:
    """As `revise`, for wire bytes that were opened; what stayed raw is written again as it was.

    Args:
        opened: what `coatcheck.results.wire.open_wire` made of ``raw``.
        raw: the bytes.
        revision: see `revise`.
        words: keys that must not be left over in what nobody looked at, because another value of the same key counts.

    Returns:
        The very same bytes where nothing changed.
    """
    revised = revise(opened, revision)
    if revised is not opened:
        return msgspec.json.encode(revised)
    if b"\\u" not in raw and not any(f'"{word}"'.encode() in raw for word in words):
        return raw
    spelled = _spellings(words)
    encoded = msgspec.json.encode(revised)
    return raw if len(spelled.findall(raw)) == len(spelled.findall(encoded)) else encoded


@functools.cache
def _spellings(words: tuple[str, ...]) -> re.Pattern[bytes]:
    """Each way to spell one of the words as JSON text, with escapes and without."""
    spelled = ("".join(rf"(?:{mark}|\\u(?i:{ord(mark):04x}))" for mark in word) for word in words)
    return re.compile(f'"(?:{"|".join(spelled)})"'.encode())


def with_content(envelope: Any, content: Any) -> Any:
    """A copy of an envelope, as somebody wrote it, with another content.

    Args:
        envelope: a ``dict``, an `Envelope`, or an `Encoded`, whose content has to be one too.
        content: what stands in it from now on.
    """
    if is_object(envelope):
        return copied(envelope, {"content": content})
    if type(envelope) is Encoded:
        fields = {**_FIELDS.decode(envelope.raw), "content": msgspec.Raw(content.raw)}
        return msgspec.structs.replace(envelope, raw=msgspec.json.encode(fields))
    return msgspec.structs.replace(envelope, content=content)


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
