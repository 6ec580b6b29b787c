"""What of a result may ground an answer: for gates that a host writes, which ask whether an answer was made up.

A gate compares an answer with what the tools said about the world. An absence also says what it was asked, and so do
some of the library's own words; an identifier that a model invented must not become true because one tool looked for
it and found nothing. So of an absence everything is evidence but

* ``looked_for``, which quotes the request, and the items of a composed ``checked`` that an argument of the call set;
* the record-only keys of the items (``short``, ``kind``): a label restates, and is easily made personal;
* the verdict on a period and its clause, which are the library's.

A ledger is evidence as a whole, but for the last two. An absence that is buried in other data is data; the content of
an envelope is not buried. What the library puts around a result grounds nothing either:

* the notes after a JSON object, each in brackets on a line of its own;
* of the marker of a text that was cut, and of a ticket, ``head``, ``tail``, ``preview`` and ``notes``: the first three
  are pieces of a result, which may quote the request like the whole.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from coatcheck.results.envelope import Encoded
from coatcheck.results.items import RECORD_ONLY, SET_BY, listed, served_items
from coatcheck.results.notes import PERIOD_CLAUSES
from coatcheck.results.reading import content_of
from coatcheck.results.served import encode_revised, revise, with_content
from coatcheck.results.shapes import copied, is_object, is_text, recogniser
from coatcheck.results.wire import LISTS, open_wire

__all__ = ["evidence_of"]

_get = dict.get

_CALLERS: Final = ("looked_for", SET_BY, *RECORD_ONLY)
_TOKENS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[{}\[\]]', re.DOTALL)
_DECODE = msgspec.json.Decoder(dict[str, msgspec.Raw])

# The library's own words in the place of a result: the keys that one must have, those that it may have, and those that
# ground nothing. `coatcheck.outcome.Marker` and `coatcheck.artifacts.ticket.Ticket` write them.
_STAND_INS: Final = (
    (frozenset({"truncated", "reason"}), frozenset({"head", "tail", "notes"}), ("head", "tail", "notes")),
    (
        frozenset({"placed", "ref", "kind", "mediaType", "bytes", "reason"}),
        frozenset({"preview", "outline", "notes"}),
        ("preview", "notes"),
    ),
)


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
        text = str.removeprefix(value, "\ufeff").strip()
        if not text.startswith("{"):
            return value
        first = _without_notes(text)
        raw = first.encode()
        revised = _of_bytes(raw)
        if revised is raw:
            return value if first is text else first
        return revised.decode()
    if type(value) is Encoded:
        revised = _of_bytes(value.raw) if value.media_type == "application/json" else value.raw
        return value if revised is value.raw else msgspec.structs.replace(value, raw=revised)
    content = content_of(value)
    if content is not msgspec.UNSET:
        evidence = evidence_of(content)
        return value if evidence is content else with_content(value, evidence)
    stripped = _without_pieces(value) if is_object(value) else value
    return revise(value, _grounding) if stripped is value else stripped


def _of_bytes(raw: bytes) -> bytes:
    raw = raw.removeprefix(b"\xef\xbb\xbf")
    opened = open_wire(raw)[0]
    if opened is not None:
        return encode_revised(opened, raw, _grounding, _CALLERS)
    wire = Encoded(raw)
    content = content_of(wire)
    if content is not msgspec.UNSET:
        evidence = evidence_of(content)
        whole: bytes = with_content(wire, evidence).raw
        return raw if evidence is content else whole
    if any(word in raw for word in (b"truncated", b"placed", b"\\u")):
        try:
            fields = _DECODE.decode(raw)
        except msgspec.DecodeError:
            return raw
        stripped = _without_pieces(fields)
        return raw if stripped is fields else msgspec.json.encode(stripped)
    return raw


def _without_notes(text: str) -> str:
    """The JSON object that a text begins with, where nothing but notes follow it; the very same text where not."""
    if not text.endswith("]"):
        return text
    depth = 0
    for token in _TOKENS.finditer(text):
        mark = token.group()
        depth += (mark in "{[") - (mark in "}]")
        if not depth:
            rest = text[token.end() :]
            return text[: token.end()] if rest.startswith("\n[") else text
    return text


def _without_pieces(found: dict[Any, Any]) -> dict[Any, Any]:
    """A marker or a ticket without what grounds nothing, and without notes; the very same object where it is neither.

    Args:
        found: an object, whose entries may be ``msgspec.Raw``.
    """
    keys = set(dict.keys(found))
    for must, may, without in _STAND_INS:
        if must <= keys <= must | may and keys.intersection(without):
            flag = _get(found, "truncated" if "truncated" in must else "placed")
            if flag is True or (type(flag) is msgspec.Raw and bytes(flag) == b"true"):
                return copied(found, {}, without=without)
    return found


def _grounding(holder: dict[Any, Any], is_absence: bool) -> dict[Any, Any]:
    """An absence, or the bounds of a ledger, without what grounds nothing."""
    changed: dict[str, Any] = {}
    for name in LISTS:
        found = _get(holder, name)
        items = served_items(found)
        plain = listed(items) or ()
        if any(_is_the_callers(item) for item in plain):
            items = [item for item in plain if not _is_the_callers(item)]
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
