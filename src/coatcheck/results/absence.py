"""An absence: "I looked here, and there is nothing", in a shape that nobody takes for a failure.

A tool that finds nothing returns something: an empty list, null, a sentence. From none of these can a model tell
"there is nothing" from "I could not look", and the second read as the first declares healthy what was never
checked. So the two do not share a shape. An error is an error; an absence is a result that ran, carries the
ground that it covered, and says that asking again changes nothing.

The wire form, in this order (keys in brackets only when there is something in them)::

    af_absent: true, outcome: "nothing_found", looked_for, checked, [not_checked], [cannot_cover],
    retry_returns_the_same: true, [try_instead], note

``looked_for`` is the one field that quotes the request. The note is static and never interpolated: text of the
library can carry nothing of the caller's into what the model takes for evidence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Never

import msgspec

from coatcheck.errors import DeclarationError
from coatcheck.results.items import Items, mint_items, mint_text, refuse_unknown
from coatcheck.results.shapes import is_array, is_text, quote

__all__ = ["ABSENCE_MARKER", "ABSENCE_NOTE", "absent", "read_absence"]

ABSENCE_MARKER: Final = "af_absent"

ABSENCE_NOTE: Final = (
    "The call succeeded, and what it found is nothing: take that as the result. Nothing else was returned in its "
    "place, and the same arguments will find the same again, so do not repeat the call. `checked` says where it "
    "looked, and the answer holds there and nowhere else: what stands under `not_checked` was left out this time, "
    "what stands under `cannot_cover` is out of this tool's reach. Ask something else to learn about those."
)

_FIELDS = ("what", "checked", "not_checked", "cannot_cover", "try_instead")
# Left out, as opposed to given as None. A sentinel, so that the refusal is ours and reads like the others.
_LEFT_OUT: Any = msgspec.UNSET


def absent(
    *,
    what: str = _LEFT_OUT,
    checked: Items = _LEFT_OUT,
    not_checked: Items = (),
    cannot_cover: Items = (),
    try_instead: str | None = None,
    **unknown: Never,
) -> dict[str, Any]:
    """Say "I looked, and there is nothing". A tool returns what this returns.

    The boundary recognises it: the call ends with the status ``absent`` unless the tool spelled another, is never
    an error, and its ground is on the record.

        return absent(
            what=f"orders of {customer}",
            checked=["the live orders table"],
            not_checked=[{"what": "the archive", "why": "orders older than two years"}],
            cannot_cover=[{"what": "orders of the subsidiary", "why": "kept in another system"}],
            try_instead="Ask for a customer by number.",
        )

    Args:
        what: what was looked for, in words; required. On the wire ``looked_for``.
        checked: the ground that was covered; required, and not empty: who covered no ground found nothing out.
        not_checked: ground that this call left out, though it could have been covered.
        cannot_cover: ground that this tool never covers; each item says why.
        try_instead: one sentence for the model about what to ask instead. Blank, or anything but text, is none.
        unknown: refused, with the spelling that was meant.

    Items are text, or mappings with ``what`` and optionally ``why``. All text is trimmed.

    Returns:
        The absence in its wire form, a fresh ``dict``.

    Raises:
        DeclarationError: at the first fault, judged in the order of the fields. The text starts ``refused: `` and
            names the field and the index.
    """
    refuse_unknown("an absence", unknown, _FIELDS)
    looked_for = mint_text("what", "text that says what was looked for", what)
    ground = mint_items("checked", checked) if checked is not _LEFT_OUT else []
    if not ground:
        raise DeclarationError(
            f"refused: the absence of {quote(looked_for)} needs checked: at least one item that says where it looked"
        )
    skipped = mint_items("not_checked", not_checked)
    beyond = mint_items("cannot_cover", cannot_cover, why=True)
    advice = _sentence(try_instead)

    minted: dict[str, Any] = {
        ABSENCE_MARKER: True,
        "outcome": "nothing_found",
        "looked_for": looked_for,
        "checked": ground,
    }
    if skipped:
        minted["not_checked"] = skipped
    if beyond:
        minted["cannot_cover"] = beyond
    minted["retry_returns_the_same"] = True
    if advice:
        minted["try_instead"] = advice
    minted["note"] = ABSENCE_NOTE
    return minted


def read_absence(value: Any) -> Mapping[str, Any] | None:
    """Recognise an absence: an object whose ``af_absent`` is exactly true, with a ``checked`` that is not empty.

    Nothing else is judged: an absence that was minted elsewhere is read, never repaired, and extra keys ride.
    It is not looked for within arrays, domain objects or JSON text.

    Args:
        value: whatever a tool returned, after any envelope was unwrapped. It is not changed.

    Returns:
        The very same object, or ``None``. Never raises.
    """
    cls = type(value)
    if (cls is dict or issubclass(cls, dict)) and dict.get(value, ABSENCE_MARKER) is True:
        checked = dict.get(value, "checked")
        if is_array(checked) and checked:
            absence: Mapping[str, Any] = value
            return absence
    return None


def _sentence(declared: object) -> str:
    """The author's advice, trimmed; empty when there is none. A mapping is refused: it would be dropped in silence."""
    if isinstance(declared, Mapping):
        raise DeclarationError("refused: try_instead must be one sentence of text, but it is a mapping")
    return declared.strip() if is_text(declared) else ""
