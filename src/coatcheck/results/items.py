"""The lists that an absence and a ledger declare, and the rules by which they are minted and read. One rule set.

An item is one piece of ground, or only its ``what`` as text::

    {"what": ..., "why": ..., "short": ..., "kind": ...}

``short`` and ``kind`` are for the record alone: they are kept on events and rows, they are removed from what the
model is served, and they are evidence of nothing. ``short`` is a label for a person, one visible line; ``kind`` says
what a gap leaves open: whether a thing exists at all (``existence``), or only whether it is in a place that was not
looked at (``scope``).

A mint refuses what it cannot say, where it is called: every refusal starts ``refused: `` and names the field and the
index, because within a tool it becomes the error that the model reads. What was minted elsewhere is read, never
repaired; only a ``short`` or a ``kind`` that a mint would refuse is left off the record. An item that JSON carries as
an object or as text, and that is neither here (a dataclass, a struct, a frozen mapping, an enum), is read as JSON
carries it, so that the record says the same before and after it was written down.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

import msgspec

from coatcheck.errors import DeclarationError
from coatcheck.results.conversion import canonical
from coatcheck.results.shapes import copied, describe, is_array, is_object, is_text, quote

__all__ = [
    "LEFT_OUT",
    "RECORD_ONLY",
    "SET_BY",
    "Items",
    "listed",
    "mint_fields",
    "mint_items",
    "mint_text",
    "read_items",
    "refuse_unknown",
    "served_items",
]

Items: TypeAlias = Sequence[str | Mapping[str, str]]

RECORD_ONLY: Final = ("short", "kind")

SET_BY: Final = "set_by"
"""The key of an item that the library composed: ``argument`` or ``default`` (see `coatcheck.results.search`)."""

LEFT_OUT: Final = "left_out"
"""The key of the last item of a list that is longer than a record keeps: how many items were left out."""

MAX_SHORT_CHARS: Final = 80

_KEYS = ("what", "why", *RECORD_ONLY)
_KINDS = ("existence", "scope")
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})  # controls, format characters, half of a pair, separators

_SCALARS = frozenset({str, int, float, bool, type(None)})
_PLAIN_LEVELS = 8  # what is nested deeper is not looked at one by one

_get = dict.get


# --- minting ---


def mint_items(field: str, declared: object, *, why: bool = False, kind: bool = True) -> list[dict[str, str]]:
    """The items of one list as they go on the wire: trimmed, in order, each with what it says.

    Args:
        field: the list's name, as the author spells it.
        declared: what the author gave: a list or a tuple of texts and mappings.
        why: whether every item must say why, so that bare text is not enough.
        kind: whether an item may say what the gap leaves open; ground that was covered is no gap.

    Returns:
        Fresh dicts; the author's own objects are not kept.

    Raises:
        DeclarationError: at the first fault.
    """
    if not is_array(declared):
        raise DeclarationError(f"refused: {field} must be a list, but {describe(declared)}")
    return [_mint_item(f"{field}[{index}]", item, why=why, kind=kind) for index, item in enumerate(declared)]


def refuse_unknown(subject: str, given: Iterable[object], known: tuple[str, ...]) -> None:
    """Refuse the first name that is not known, and say which spelling was meant or which there are.

    Args:
        subject: what carries the names, for the sentence.
        given: the names as the author spelled them.
        known: the names that there are.

    Raises:
        DeclarationError: when a name is not known. ``notChecked`` is answered with ``not_checked``.
    """
    for name in given:
        if name not in known:
            meant = next((word for word in known if _folded(word) == _folded(name)), None)
            hint = f"write {meant}" if meant else f"there are {', '.join(known)}"
            raise DeclarationError(f"refused: {subject} has no {quote(str(name))}; {hint}")


def mint_text(place: str, wanted: str, found: object) -> str:
    """One text as it goes on the wire: trimmed, and not blank.

    Args:
        place: the field, with its index where it has one.
        wanted: what should stand there, for the sentence.
        found: what the author gave; ``msgspec.UNSET`` for nothing.

    Raises:
        DeclarationError: when it is not text, or blank.
    """
    text = str.strip(found) if is_text(found) else ""
    if not text:
        raise DeclarationError(f"refused: {place} must be {wanted}, but {describe(found)}")
    return text


def mint_fields(declared: object, levels: int = 3) -> object:
    """What an author gave for a record of fields, as the plain values of the wire; judged by whoever reads them.

    A mapping and one of the library's own records become a ``dict``, three levels deep; an aware ``datetime`` becomes
    its ISO 8601 text in UTC. Everything else is as it was, for the judge to refuse.
    """
    if isinstance(declared, datetime) and declared.tzinfo is not None:
        try:
            return declared.astimezone(UTC).isoformat().replace("+00:00", "Z")
        except OverflowError:  # the first or the last hours that there are, in UTC outside of them
            return declared
    if isinstance(declared, msgspec.Struct):
        fields = {field.encode_name: getattr(declared, field.name) for field in msgspec.structs.fields(declared)}
        declared = {name: item for name, item in fields.items() if item is not None}
    if isinstance(declared, Mapping) and levels:
        return {name: mint_fields(item, levels - 1) for name, item in declared.items()}
    return declared


def _mint_item(place: str, item: object, *, why: bool, kind: bool) -> dict[str, str]:
    if not isinstance(item, Mapping):
        what = mint_text(place, "text that is not blank, or a mapping with what and why", item)
        item = {}
    else:
        refuse_unknown(place, item, _KEYS)
        what = mint_text(f"{place}.what", "text that is not blank", item.get("what", msgspec.UNSET))
    minted = {"what": what}
    reason = item.get("why", msgspec.UNSET)
    if why or reason is not msgspec.UNSET:
        wanted = "text that says what keeps it out of reach" if why else "text that is not blank, or left out"
        minted["why"] = mint_text(f"{place}.why ({quote(what)})", wanted, reason)
    short = item.get("short")
    if short is not None:
        short = short.strip() if is_text(short) else short
        if not _is_short(short, what):
            raise DeclarationError(
                f"refused: {place}.short ({quote(what)}) must be one visible line of at most {MAX_SHORT_CHARS} "
                "characters, and no longer than what"
            )
        minted["short"] = short
    gap = item.get("kind")
    if gap is not None:
        if not (kind and is_text(gap) and gap in _KINDS):
            wanted = f"one of {', '.join(_KINDS)}" if kind else "left out: it says what a gap leaves open"
            raise DeclarationError(f"refused: {place}.kind ({quote(what)}) must be {wanted}")
        minted["kind"] = str.__str__(gap)
    return minted


def _folded(name: object) -> str:
    return str(name).replace("_", "").replace("-", "").lower()


# --- reading ---


def listed(found: object) -> list[Any] | tuple[Any, ...] | None:
    """One list, its items as JSON carries them.

    Args:
        found: whatever stands there; also what is no ``list`` here and an array in JSON.

    Returns:
        The very same object where its items are plain already; else a fresh list, in which only what JSON cannot carry
        is as it was. ``None`` for what is no array.
    """
    items = found
    if not is_array(items):
        if type(found) in _SCALARS or is_object(found) or is_text(found):
            return None
        items = _as_json(found)
        if type(items) is not list:
            return None
    return items if all(_is_plain(item) for item in items) else [_plain(item) for item in items]


def read_items(
    field: str, found: object, faults: list[str], *, kind: bool = True, most: int | None = None
) -> tuple[Any, ...]:
    """The items of one list as they go on the record: as found, without a ``short`` or ``kind`` that means nothing.

    Args:
        field: the list's name on the wire.
        found: whatever stands there; what is no array has no items.
        faults: where each thing that was left off the record is named, by field and index.
        kind: whether an item of this list may have a kind.
        most: how many items are kept; one more says how many others there were.
    """
    items = listed(found)
    if items is None:
        return ()
    kept = tuple(_read_item(f"{field}[{index}]", item, faults, kind=kind) for index, item in enumerate(items[:most]))
    left_out = len(items) - len(kept)
    if not left_out:
        return kept
    faults.append(f"{field} has {len(items)} items, of which {left_out} were left off the record")
    return (*kept, {"what": f"{left_out} more, which were left off the record", LEFT_OUT: left_out})


def served_items(found: object) -> object:
    """One list without its record-only keys, for what the model is served.

    Returns:
        The very same object where there is nothing to remove, or where it is no array; else a fresh list, in which the
        items that nothing was removed from are the same.
    """
    items = listed(found)
    if items is None or not any(_is_marked(item) for item in items):
        return found
    return [copied(item, {}, without=RECORD_ONLY) if is_object(item) and _is_marked(item) else item for item in items]


def _is_plain(value: object, levels: int = _PLAIN_LEVELS) -> bool:
    """Whether a value is what reading its JSON would give."""
    kind = type(value)
    if kind in _SCALARS:
        return True
    if not levels:
        return False
    if kind is dict:
        entries = value.items()  # type: ignore[attr-defined]  # narrowed by kind
        return all(type(name) is str and _is_plain(item, levels - 1) for name, item in entries)
    return kind is list and all(_is_plain(item, levels - 1) for item in value)  # type: ignore[attr-defined]  # as above


def _plain(item: Any) -> Any:
    """An item as JSON carries it; of an object that JSON cannot carry, each entry that it can."""
    if _is_plain(item):
        return item
    plain = _as_json(item)
    if plain is item and is_object(item):
        return {name: _as_json(said) for name, said in dict.items(item)}
    return plain


def _as_json(value: Any) -> Any:
    """What reading the JSON of a value gives; the value itself where JSON cannot carry it."""
    try:
        return msgspec.json.decode(msgspec.json.encode(canonical(value)))
    except Exception:  # noqa: BLE001 - a foreign value may raise anything; whoever renders it says what is wrong
        return value


def _read_item(place: str, item: Any, faults: list[str], *, kind: bool) -> Any:
    if not is_object(item):
        return item
    short, gap = _get(item, "short"), _get(item, "kind")
    wrong = []
    if short is not None and not _is_short(short, _get(item, "what")):
        wrong.append("short")
    if gap is not None and not (kind and is_text(gap) and gap in _KINDS):
        wrong.append("kind")
    if not wrong:
        return item
    faults.extend(f"{place}.{name} was left off the record: no mint would have let it pass" for name in wrong)
    return copied(item, {}, without=tuple(wrong))


def _is_marked(item: object) -> bool:
    return is_object(item) and any(_get(item, name) is not None for name in RECORD_ONLY)


def _is_short(short: object, what: object) -> bool:
    """Whether ``short`` is a label for ``what``: not blank, one visible line, at most 80 characters, no longer."""
    return (
        is_text(short)
        and is_text(what)
        and bool(str.strip(short))
        and len(short) <= min(MAX_SHORT_CHARS, len(what))
        and not any(unicodedata.category(mark) in _INVISIBLE for mark in short)
    )
