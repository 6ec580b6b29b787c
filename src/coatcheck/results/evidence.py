"""What of a result may ground an answer: for gates that a host writes, which ask whether an answer was made up.

A gate compares an answer with what the tools said about the world. An absence also says what it was asked, and so do
some of the library's own words; an identifier that a model invented must not become true because one tool looked for
it and found nothing. So of an absence everything is evidence but

* ``looked_for``, which quotes the request, and the items of a composed ``checked`` that an argument of the call set;
* the record-only keys of the items (``short``, ``kind``): a label restates, and is easily made personal;
* the verdict on a period and its clause, which are the library's.

A ledger is evidence as a whole, but for the last two. An absence that is buried in other data is data.
"""

from __future__ import annotations

from typing import Any

import msgspec

from coatcheck.results.envelope import Encoded
from coatcheck.results.items import SET_BY, served_items
from coatcheck.results.notes import PERIOD_CLAUSES
from coatcheck.results.served import encode_revised, revise
from coatcheck.results.shapes import copied, is_array, is_object, is_text, recogniser
from coatcheck.results.wire import LISTS, open_wire

__all__ = ["evidence_of"]

_get = dict.get


def evidence_of(value: Any) -> Any:
    """The part of a result that may ground an answer.

    Args:
        value: a result, as a tool returned it or as a model was served it: `Inline.value`, or the text of an outcome.
            JSON text and wire bytes are opened, for this purpose alone. It is not changed.

    Returns:
        The same kind of thing without what grounds nothing: a dict for an object, text for JSON text, an `Encoded` for
        an `Encoded`. The very same object where all of it is evidence. Never raises.
    """
    evidence = _evidence_of(value)
    return value if evidence is None else evidence


@recogniser
def _evidence_of(value: Any) -> Any:
    if is_text(value):
        if not str.lstrip(value).startswith("{"):
            return value
        raw = value.encode()
        revised = _of_bytes(raw)
        return value if revised is raw else revised.decode()
    if type(value) is Encoded:
        revised = _of_bytes(value.raw) if value.media_type == "application/json" else value.raw
        return value if revised is value.raw else msgspec.structs.replace(value, raw=revised)
    return revise(value, _grounding)


def _of_bytes(raw: bytes) -> bytes:
    opened = open_wire(raw)[0]
    return raw if opened is None else encode_revised(opened, raw, _grounding)


def _grounding(holder: dict[Any, Any], is_absence: bool) -> dict[Any, Any]:
    """An absence, or the bounds of a ledger, without what grounds nothing."""
    changed: dict[str, Any] = {}
    for name in LISTS:
        found = _get(holder, name)
        items = served_items(found)
        if is_array(items) and any(_is_the_callers(item) for item in items):
            items = [item for item in items if not _is_the_callers(item)]
        if items is not found:
            changed[name] = items
    period, note = _get(holder, "period"), _get(holder, "note")
    if is_object(period) and dict.__contains__(period, "verdict"):
        changed["period"] = copied(period, {}, without=("verdict",))
    if is_text(note):
        for clause in PERIOD_CLAUSES.values():
            if note.endswith(clause):
                changed["note"] = note.removesuffix(clause).rstrip()
    without = ("looked_for",) if is_absence and dict.__contains__(holder, "looked_for") else ()
    return copied(holder, changed, without=without) if changed or without else holder


def _is_the_callers(item: object) -> bool:
    set_by = _get(item, SET_BY) if is_object(item) else None
    return is_text(set_by) and set_by == "argument"
