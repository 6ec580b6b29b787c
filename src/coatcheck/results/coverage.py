"""A coverage ledger: "my answer covers this, and not that", around any result.

The wire form says the boundary first, so that a reader of the text meets it before the result::

    {"af_coverage": {[checked], [not_checked], [cannot_cover], note}, "result": <any value>}

A ledger alone sets no status. Around an absence it adds its own ground, and the status is the absence's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Never

from coatcheck.errors import DeclarationError
from coatcheck.results.items import Items, mint_items, refuse_unknown
from coatcheck.results.shapes import is_object

__all__ = ["COVERAGE_MARKER", "COVERAGE_NOTE", "coverage", "read_coverage"]

COVERAGE_MARKER: Final = "af_coverage"

COVERAGE_NOTE: Final = (
    "These lists bound `result`. It speaks for the ground under `checked`; what stands under `not_checked` was left "
    "out this time, what stands under `cannot_cover` is out of this tool's reach, and `result` says nothing about "
    "either, not even that nothing is there. Keep these bounds in any answer that rests on it."
)

_FIELDS = ("checked", "not_checked", "cannot_cover")


def coverage(
    result: Any,
    *,
    checked: Items = (),
    not_checked: Items = (),
    cannot_cover: Items = (),
    **unknown: Never,
) -> dict[str, Any]:
    """Bound a result by the ground that it covers. A tool returns what this returns.

        return coverage(rows, checked=["region eu"], not_checked=[{"what": "region us", "why": "its replica lags"}])

    Args:
        result: any value, ``None`` and an absence included; it rides by reference.
        checked: the ground that the result covers.
        not_checked: ground that this call left out, though it could have been covered.
        cannot_cover: ground that this tool never covers; each item says why.
        unknown: refused, with the spelling that was meant.

    Items are text, or mappings with ``what`` and optionally ``why``. All text is trimmed. At least one list holds
    an item.

    Returns:
        The ledger in its wire form, a fresh ``dict`` that holds ``result`` itself.

    Raises:
        DeclarationError: at the first fault, judged in the order of the fields. The text starts ``refused: `` and
            names the field and the index.
    """
    refuse_unknown("a coverage ledger", unknown, _FIELDS)
    lists = {
        "checked": mint_items("checked", checked),
        "not_checked": mint_items("not_checked", not_checked),
        "cannot_cover": mint_items("cannot_cover", cannot_cover, why=True),
    }
    if not any(lists.values()):
        raise DeclarationError(
            "refused: a coverage ledger needs at least one item in checked, not_checked or cannot_cover; "
            "a result without bounds is returned as it is"
        )
    bounds: dict[str, Any] = {name: items for name, items in lists.items() if items}
    return {COVERAGE_MARKER: {**bounds, "note": COVERAGE_NOTE}, "result": result}


def read_coverage(value: Any) -> Mapping[str, Any] | None:
    """Recognise a ledger: an object whose ``af_coverage`` is an object, with a ``result`` key beside it.

    Nothing else is judged: the marker may be empty, ``result`` may be null, extra keys ride.
    It is not looked for within arrays, domain objects or JSON text.

    Args:
        value: whatever a tool returned, after any envelope was unwrapped. It is not changed.

    Returns:
        The very same object, or ``None``. Never raises.
    """
    cls = type(value)
    if (
        (cls is dict or issubclass(cls, dict))
        and is_object(dict.get(value, COVERAGE_MARKER))
        and dict.__contains__(value, "result")
    ):
        ledger: Mapping[str, Any] = value
        return ledger
    return None
