"""A coverage ledger: "my answer covers this, and not that", around any result.

The wire form says the boundary first, so that a reader of the text meets it before the result::

    {"af_coverage": {[checked], [not_checked], [cannot_cover], [period], note}, "result": <any value>}

A ledger alone sets no status. Around an absence it adds its own ground, and the status is the absence's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Never

from coatcheck.errors import DeclarationError
from coatcheck.results.items import Items, mint_items, refuse_unknown
from coatcheck.results.notes import COVERAGE_NOTE
from coatcheck.results.period import Period, mint_period
from coatcheck.results.shapes import is_object, recogniser
from coatcheck.results.wire import COVERAGE_MARKER, as_object

__all__ = ["COVERAGE_MARKER", "COVERAGE_NOTE", "coverage", "read_coverage"]

_FIELDS = ("checked", "not_checked", "cannot_cover", "period")
_get = dict.get


def coverage(
    result: Any,
    *,
    checked: Items = (),
    not_checked: Items = (),
    cannot_cover: Items = (),
    period: Period | Mapping[str, Any] | None = None,
    **unknown: Never,
) -> dict[str, Any]:
    """Bound a result by the ground that it covers. A tool returns what this returns.

        return coverage(rows, checked=["region eu"], not_checked=[{"what": "region us", "why": "its replica lags"}])

    Args:
        result: any value, ``None`` and an absence included; it rides by reference.
        checked: the ground that the result covers.
        not_checked: ground that this call left out, though it could have been covered.
        cannot_cover: ground that this tool never covers; each item says why.
        period: which time was asked about, and which time the data covers: see `Period`. In a mapping an instant may
            be an aware ``datetime``.
        unknown: refused, with the spelling that was meant.

    Items are text, or mappings with ``what`` and optionally ``why``, and for the record alone ``short`` and ``kind``
    (see `coatcheck.results.items`). All text is trimmed. At least one list holds an item, or there is a period.

    Returns:
        The ledger in its wire form, a fresh ``dict`` that holds ``result`` itself.

    Raises:
        DeclarationError: at the first fault, judged in the order of the fields. The text starts ``refused: `` and
            names the field and the index.
    """
    refuse_unknown("a coverage ledger", unknown, _FIELDS)
    said = {
        "checked": mint_items("checked", checked, kind=False),
        "not_checked": mint_items("not_checked", not_checked),
        "cannot_cover": mint_items("cannot_cover", cannot_cover, why=True),
        "period": mint_period(period),
    }
    bounds = {name: part for name, part in said.items() if part}
    if not bounds:
        raise DeclarationError(
            "refused: a coverage ledger needs at least one item in checked, not_checked or cannot_cover, or a period; "
            "a result without bounds is returned as it is"
        )
    return {COVERAGE_MARKER: {**bounds, "note": COVERAGE_NOTE}, "result": result}


@recogniser
def read_coverage(value: Any) -> Mapping[str, Any] | None:
    """Recognise a ledger: an object whose ``af_coverage`` is an object, with a ``result`` key beside it.

    Nothing else is judged: the marker may be empty, ``result`` may be null, extra keys ride.
    It is not looked for within arrays, domain objects or JSON text.

    Args:
        value: whatever a tool returned, after any envelope was unwrapped. It is not changed.

    Returns:
        The very same object, or ``None``; of an `Encoded` the decoded object, in which a result that declares nothing
        is ``msgspec.Raw``. Never raises.
    """
    ledger = as_object(value)
    if ledger is not None and is_object(_get(ledger, COVERAGE_MARKER)) and dict.__contains__(ledger, "result"):
        return ledger
    return None
