"""Where a tool looked and when: the provenance of an absence, and a known list among whose names it looked.

The wire form of a provenance, on an absence only (keys in brackets only when there is something in them)::

    {"measured_at": <text>, "source": <text>, [age_seconds: <number>], [source_export_date: <text>]}

``measured_at`` is the author's words, "the 02:00 export" as well as an instant: it is never parsed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

import msgspec

from coatcheck.errors import DeclarationError
from coatcheck.results.items import mint_fields, mint_text, refuse_unknown
from coatcheck.results.shapes import describe, is_object, is_text, spoken

__all__ = ["Among", "Provenance", "judge_provenance", "mint_among", "mint_provenance"]

MAX_AGE_SECONDS: Final = 2**53  # beyond it JSON readers lose the number

_get = dict.get


class Provenance(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where and when an absence looked. Judged by ``absent()``.

    Attributes:
        measured_at: when, in the author's words; never parsed.
        source: where.
        age_seconds: how old the data was by then, in seconds; finite and not negative.
        source_export_date: when the source was exported, in the author's words.
    """

    measured_at: str
    source: str
    age_seconds: int | float | None = None
    source_export_date: str | None = None


class Among(msgspec.Struct, frozen=True, kw_only=True):
    """A known list among whose names something was looked up. Judged by ``absent()``, which makes of it

    * the ground that was covered: so many names of the list;
    * the gap *names outside of the list*, which only ``authoritative`` removes;
    * where ``partial``, the gap that not every name was read, which nothing removes;
    * the provenance.

    Attributes:
        source: what the list is called.
        measured_at: when it was read, in the author's words; never parsed.
        names: the names that were read. They are counted, to check ``count``; not one is served.
        count: how many names were read; counted from ``names`` where it is left out.
        authoritative: whether a name that is not on the list does not exist.
        partial: whether some names of the list were not read.
    """

    source: str
    measured_at: str
    names: Collection[str] | None = None
    count: int | None = None
    authoritative: bool = False
    partial: bool = False


def mint_provenance(declared: object) -> dict[str, Any] | None:
    """The provenance as it goes on the wire: trimmed.

    Args:
        declared: a `Provenance`, or a mapping with its fields. ``None`` is none.

    Raises:
        DeclarationError: at the first fault, naming the field.
    """
    if declared is None:
        return None
    minted: dict[str, Any] = msgspec.to_builtins(judge_provenance(mint_fields(declared)))
    return {name: said.strip() if is_text(said) else said for name, said in minted.items()}


def judge_provenance(found: object) -> Provenance:
    """The provenance of the wire. The one rule set: a mint refuses by it, a recogniser reads by it.

    Args:
        found: anything.

    Returns:
        The provenance, its texts verbatim.

    Raises:
        DeclarationError: at the first fault, naming the field.
    """
    if not is_object(found):
        raise DeclarationError(
            f"refused: provenance must be an object with measured_at and source, but {describe(found)}"
        )
    refuse_unknown("provenance", found, Provenance.__struct_fields__)
    measured_at = _verbatim("measured_at", _get(found, "measured_at", msgspec.UNSET))
    source = _verbatim("source", _get(found, "source", msgspec.UNSET))
    age, exported = _get(found, "age_seconds"), _get(found, "source_export_date")
    if age is not None and not (type(age) in (int, float) and 0 <= age <= MAX_AGE_SECONDS):
        raise DeclarationError("refused: provenance.age_seconds must be a number of seconds that is not negative")
    return Provenance(
        measured_at=measured_at,
        source=source,
        age_seconds=age,
        source_export_date=None if exported is None else _verbatim("source_export_date", exported),
    )


def mint_among(declared: object) -> tuple[dict[str, str], list[dict[str, str]], dict[str, Any]]:
    """What a known list says in an absence.

    Args:
        declared: an `Among`, or a mapping with its fields.

    Returns:
        The ground that was covered, the gaps, and the provenance, as they go on the wire.

    Raises:
        DeclarationError: at the first fault, naming the field.
    """
    if type(declared) is Among:
        fields: Mapping[str, Any] = msgspec.structs.asdict(declared)
    elif isinstance(declared, Mapping):
        refuse_unknown("among", declared, Among.__struct_fields__)
        fields = declared
    else:
        raise DeclarationError(f"refused: among must be an Among, but {describe(declared)}")
    source = mint_text("among.source", "text that says what the list is called", fields.get("source", msgspec.UNSET))
    read = mint_fields(fields.get("measured_at", msgspec.UNSET))
    measured_at = mint_text("among.measured_at", "text that says when the list was read", read)
    count = _count(fields.get("names"), fields.get("count"))
    for name in ("authoritative", "partial"):
        if type(fields.get(name, False)) is not bool:
            raise DeclarationError(f"refused: among.{name} must be True or False, but {describe(fields[name])}")
    gaps = []
    if not fields.get("authoritative"):
        gaps.append({"what": f"names outside {source}", "why": "the list does not claim to hold every name there is"})
    if fields.get("partial"):
        gaps.append({"what": f"the names in {source} that were not read", "why": "not every name in it was read"})
    ground = f"{'some' if fields.get('partial') else 'all'} names in {source}"
    if count is not None:
        ground = f"{ground}, {count} of them"
    return {"what": ground}, gaps, {"measured_at": measured_at, "source": source}


def _count(names: object, count: object) -> int | None:
    """How many names were read; the names are counted and not looked at."""
    if count is not None and (type(count) is not int or count < 0):
        raise DeclarationError("refused: among.count must be a whole number that is not negative")
    if names is None:
        return count
    if not isinstance(names, Collection) or isinstance(names, (str, bytes)):
        raise DeclarationError(f"refused: among.names must be a collection of names, but {describe(names)}")
    if count is not None and count != len(names):
        raise DeclarationError(f"refused: among.count is {count}, but among.names has {len(names)}")
    return len(names)


def _verbatim(field: str, found: object) -> str:
    text = spoken(found)
    if text is None:
        raise DeclarationError(f"refused: provenance.{field} must be text that is not blank, but {describe(found)}")
    return text
