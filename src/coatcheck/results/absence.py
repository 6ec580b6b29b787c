"""An absence: "I looked here, and there is nothing", in a shape that nobody takes for a failure.

A tool that finds nothing returns something: an empty list, null, a sentence. From none of these can a model tell
"there is nothing" from "I could not look", and the second read as the first declares healthy what was never
checked. So the two do not share a shape. An error is an error; an absence is a result that ran, carries the
ground that it covered, and says that asking again changes nothing.

The wire form, in this order (keys in brackets only when there is something in them)::

    af_absent: true, outcome: "nothing_found", looked_for, checked, [not_checked], [cannot_cover], [provenance],
    [period], retry_returns_the_same: true, [try_instead], [try_instead_tool], note

``looked_for`` is the one field that quotes the request. The note is static and never interpolated: text of the
library can carry nothing of the caller's into what the model takes for evidence.

``absent(what=...)`` that says nowhere where it looked is not finished. It is no ``dict`` but an `UnfinishedAbsence`,
which JSON has no word for: a tool that declares its search hands it to `coatcheck.results.search.finish`, which
composes ``checked``, and everywhere else it is refused. It cannot reach the wire as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Never, overload

import msgspec

from coatcheck.errors import DeclarationError
from coatcheck.results.conversion import Unfinished
from coatcheck.results.items import Items, mint_fields, mint_items, mint_text, refuse_unknown
from coatcheck.results.notes import ABSENCE_NOTE
from coatcheck.results.period import Period, mint_period
from coatcheck.results.provenance import Among, Provenance, mint_among, mint_provenance
from coatcheck.results.shapes import describe, is_array, is_object, is_text, quote, recogniser
from coatcheck.results.wire import ABSENCE_MARKER, as_object

__all__ = [
    "ABSENCE_MARKER",
    "ABSENCE_NOTE",
    "SuggestedTool",
    "UnfinishedAbsence",
    "absent",
    "compose_absence",
    "judge_sentence",
    "judge_suggestion",
    "read_absence",
    "try_instead_of",
    "try_instead_tool_of",
]

_FIELDS = (
    "what",
    "checked",
    "not_checked",
    "cannot_cover",
    "among",
    "provenance",
    "period",
    "try_instead",
    "try_instead_tool",
)
# Left out, as opposed to given as None. A sentinel, so that the refusal is ours and reads like the others.
_LEFT_OUT: Any = msgspec.UNSET
# Unbound, so that a subclass of dict is read as the encoder reads it, and runs no code of its own.
_get: Callable[..., Any] = dict.get


class SuggestedTool(msgspec.Struct, frozen=True, omit_defaults=True):
    """Another tool that an absence points at. The name is never looked up.

    Attributes:
        tool: its name.
        why: what it knows that this one does not.
    """

    tool: str
    why: str | None = None


class UnfinishedAbsence(Unfinished):
    """What ``absent()`` returns where it was not told where the tool looked. A tool returns it and does nothing else.

    It is not JSON, and no subclass of anything that is: see the head of this module.
    """

    __slots__ = ("_parts",)

    def __init__(self, parts: Mapping[str, Any]) -> None:
        self._parts = parts

    def __repr__(self) -> str:
        return f"<an absence of {quote(self.looked_for)} that does not say where it looked>"

    @property
    def looked_for(self) -> str:
        """What was looked for, in words."""
        return str(self._parts["looked_for"])

    @property
    def parts(self) -> dict[str, Any]:
        """Its parts as they go on the wire, without ``checked``, for `compose_absence`."""
        return dict(self._parts)

    def refusal(self) -> DeclarationError:
        """Why it can go nowhere outside of a tool that declares its search."""
        return DeclarationError(
            f"refused: the absence of {quote(self.looked_for)} needs checked: at least one item that says where it "
            "looked; only a tool that declares its search may leave it out"
        )


@overload
def absent(
    *,
    what: str,
    checked: Items,
    not_checked: Items = (),
    cannot_cover: Items = (),
    among: Among | Mapping[str, Any] | None = None,
    provenance: Provenance | Mapping[str, Any] | None = None,
    period: Period | Mapping[str, Any] | None = None,
    try_instead: str | None = None,
    try_instead_tool: SuggestedTool | Mapping[str, str] | None = None,
) -> dict[str, Any]: ...
@overload
def absent(
    *,
    what: str,
    among: Among | Mapping[str, Any],
    not_checked: Items = (),
    cannot_cover: Items = (),
    period: Period | Mapping[str, Any] | None = None,
    try_instead: str | None = None,
    try_instead_tool: SuggestedTool | Mapping[str, str] | None = None,
) -> dict[str, Any]: ...
@overload
def absent(
    *,
    what: str,
    not_checked: Items = (),
    cannot_cover: Items = (),
    provenance: Provenance | Mapping[str, Any] | None = None,
    period: Period | Mapping[str, Any] | None = None,
    try_instead: str | None = None,
    try_instead_tool: SuggestedTool | Mapping[str, str] | None = None,
) -> UnfinishedAbsence: ...
def absent(
    *,
    what: str = _LEFT_OUT,
    checked: Items = _LEFT_OUT,
    not_checked: Items = (),
    cannot_cover: Items = (),
    among: Among | Mapping[str, Any] | None = None,
    provenance: Provenance | Mapping[str, Any] | None = None,
    period: Period | Mapping[str, Any] | None = None,
    try_instead: str | None = None,
    try_instead_tool: SuggestedTool | Mapping[str, str] | None = None,
    **unknown: Never,
) -> dict[str, Any] | UnfinishedAbsence:
    """Say "I looked, and there is nothing". A tool returns what this returns.

    The boundary recognises it: the call ends with the status ``absent`` unless the tool spelled another, is never
    an error, and its ground is on the record.

        return absent(
            what=f"orders of {customer}",
            checked=["the live orders table"],
            not_checked=[{"what": "the archive", "why": "orders older than two years"}],
            cannot_cover=[{"what": "orders of the subsidiary", "why": "kept in another system"}],
            try_instead="Ask for a customer by number.",
            try_instead_tool={"tool": "find_customer", "why": "it knows the numbers"},
        )

    Args:
        what: what was looked for, in words; required. On the wire ``looked_for``.
        checked: the ground that was covered; not empty: who covered no ground found nothing out. Left out only where
            ``among`` says it, or in a tool that declares its search.
        not_checked: ground that this call left out, though it could have been covered.
        cannot_cover: ground that this tool never covers; each item says why.
        among: the known list among whose names it looked: see `Among`. It says the provenance.
        provenance: where and when it looked: see `Provenance`.
        period: which time was asked about, and which time the data covers: see `Period`. In a mapping an instant may
            be an aware ``datetime``.
        try_instead: one sentence for the model about what to ask instead. Blank, or anything but text, is none.
        try_instead_tool: the one tool to ask instead, and why. It is never read out of the sentence.
        unknown: refused, with the spelling that was meant.

    Items are text, or mappings with ``what`` and optionally ``why``, and for the record alone ``short`` and ``kind``
    (see `coatcheck.results.items`). All text is trimmed.

    Returns:
        The absence in its wire form, a fresh ``dict``; an `UnfinishedAbsence` where it does not say where it looked.

    Raises:
        DeclarationError: at the first fault, judged in the order of the fields. The text starts ``refused: `` and
            names the field and the index.
    """
    refuse_unknown("an absence", unknown, _FIELDS)
    looked_for = mint_text("what", "text that says what was looked for", what)
    ground = [] if checked is _LEFT_OUT else mint_items("checked", checked, kind=False)
    if not ground and checked is not _LEFT_OUT and among is None:
        raise DeclarationError(
            f"refused: the absence of {quote(looked_for)} needs checked: at least one item that says where it looked"
        )
    skipped = mint_items("not_checked", not_checked)
    beyond = mint_items("cannot_cover", cannot_cover, why=True)
    origin = mint_provenance(provenance)
    if among is not None:
        if origin is not None:
            raise DeclarationError("refused: provenance is said by among; leave one of them out")
        names, gaps, origin = mint_among(among)
        ground, skipped = [names, *ground], [*skipped, *gaps]
    said = {
        "looked_for": looked_for,
        "checked": ground,
        "not_checked": skipped,
        "cannot_cover": beyond,
        "provenance": origin,
        "period": mint_period(period),
        "try_instead": judge_sentence(mint_fields(try_instead)),
        "try_instead_tool": msgspec.to_builtins(judge_suggestion(mint_fields(try_instead_tool))),
    }
    parts = {name: part for name, part in said.items() if part}
    return compose_absence(parts, ABSENCE_NOTE) if ground else UnfinishedAbsence(parts)


def compose_absence(parts: Mapping[str, Any], note: str) -> dict[str, Any]:
    """The absence in its wire form, a fresh ``dict`` with its keys in the wire's order.

    Args:
        parts: what it says, by the keys of the wire; minted, and nothing empty in it.
        note: which of the static notes it carries.
    """
    advice = ("try_instead", "try_instead_tool")
    return {
        ABSENCE_MARKER: True,
        "outcome": "nothing_found",
        **{name: part for name, part in parts.items() if name not in advice},
        "retry_returns_the_same": True,
        **{name: parts[name] for name in advice if name in parts},
        "note": note,
    }


@recogniser
def read_absence(value: Any) -> Mapping[str, Any] | None:
    """Recognise an absence: an object whose ``af_absent`` is exactly true, with a ``checked`` that is not empty.

    Nothing else is judged: an absence that was minted elsewhere is read, never repaired, and extra keys ride.
    It is not looked for within arrays, domain objects or JSON text.

    Args:
        value: whatever a tool returned, after any envelope was unwrapped. It is not changed.

    Returns:
        The very same object, or ``None``; of an `Encoded` the decoded object, in which what nobody looks at is
        ``msgspec.Raw``. Never raises.
    """
    absence = as_object(value)
    if absence is not None and _get(absence, ABSENCE_MARKER) is True:
        checked = _get(absence, "checked")
        if is_array(checked) and checked:
            return absence
    return None


@recogniser
def try_instead_of(value: Any) -> str | None:
    """The sentence of an absence about what to ask instead, by the rules of the mint.

    Args:
        value: an absence, or anything else; an `Encoded` is opened. It is not changed.

    Returns:
        The sentence, trimmed; ``None`` where there is none, or one that a mint refuses. Never raises.
    """
    absence = read_absence(value)
    return None if absence is None else judge_sentence(_get(absence, "try_instead"))


@recogniser
def try_instead_tool_of(value: Any) -> SuggestedTool | None:
    """The tool that an absence points at, by the rules of the mint.

    Args:
        value: an absence, or anything else; an `Encoded` is opened. It is not changed.

    Returns:
        The tool; ``None`` where there is none, or one that a mint refuses. Never raises.
    """
    absence = read_absence(value)
    return None if absence is None else judge_suggestion(_get(absence, "try_instead_tool"))


def judge_sentence(found: object) -> str | None:
    """The advice of the wire, trimmed; ``None`` for what is blank or no text.

    The one rule set: a mint refuses by it, a recogniser reads by it.

    Raises:
        DeclarationError: for an object, which would be dropped in silence.
    """
    if is_object(found):
        raise DeclarationError(
            "refused: try_instead must be one sentence of text, but it is an object; a tool goes into try_instead_tool"
        )
    return (str.strip(found) if is_text(found) else "") or None


def judge_suggestion(found: object) -> SuggestedTool | None:
    """The suggested tool of the wire, trimmed; ``None`` for ``None``.

    The one rule set: a mint refuses by it, a recogniser reads by it.

    Raises:
        DeclarationError: at the first fault, naming the field.
    """
    if found is None:
        return None
    if not is_object(found):
        raise DeclarationError(f"refused: try_instead_tool must be an object with tool and why, but {describe(found)}")
    refuse_unknown("try_instead_tool", found, ("tool", "why"))
    tool = mint_text("try_instead_tool.tool", "the name of one tool", _get(found, "tool", msgspec.UNSET))
    why = _get(found, "why")
    if why is not None:
        why = mint_text("try_instead_tool.why", "text that is not blank, or left out", why)
    return SuggestedTool(tool, why)
