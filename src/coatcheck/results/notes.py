"""Every static sentence that the library puts beside a result, published as data.

Tools in other languages that mint the same shapes carry the same sentences, byte for byte. None of them is ever
interpolated: what a model reads here counts as the library's word, so nothing of a caller's may be in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

__all__ = [
    "ABSENCE_NOTE",
    "ABSENCE_NOTE_COMPOSED",
    "ABSENCE_NOTE_HELD_ONLY",
    "ANSWER_HEADING",
    "COVERAGE_NOTE",
    "NOTES",
    "PERIOD_CLAUSES",
]

_GAPS = (
    "what stands under `not_checked` was left out this time, what stands under `cannot_cover` is out of this tool's "
    "reach. Ask something else to learn about those."
)

# An absence whose author said where it looked: nothing was put in the place of what was asked.
ABSENCE_NOTE: Final = (
    "The call succeeded, and what it found is nothing: take that as the result. Nothing else was returned in its "
    "place, and the same arguments will find the same again, so do not repeat the call. `checked` says where it "
    f"looked, and the answer holds there and nowhere else: {_GAPS}"
)

# The library composed `checked`, and a default may have narrowed the search: "nothing else in its place" would be
# more than anybody knows.
ABSENCE_NOTE_COMPOSED: Final = (
    "The call succeeded, and what it found is nothing: take that as the result. The same arguments will find the same "
    "again, so do not repeat the call. `checked` says where it looked, put together from the arguments of the call and "
    "from the defaults that the tool declares: where `set_by` is `default`, the call left an argument out, and the "
    "tool narrowed the search by itself. The answer holds for that ground and for no other; "
    f"{_GAPS}"
)

# What the model reads in place of the first note where the period is not held, or only in part.
ABSENCE_NOTE_HELD_ONLY: Final = (
    "The call succeeded, and in the data that the tool has it found nothing. The same arguments will find the same "
    "again, so do not repeat the call. `checked` says where it looked, but only for the time that the data covers; "
    f"{_GAPS}"
)

COVERAGE_NOTE: Final = (
    "These lists bound `result`. It speaks for the ground under `checked`; what stands under `not_checked` was left "
    "out this time, what stands under `cannot_cover` is out of this tool's reach, and `result` says nothing about "
    "either, not even that nothing is there. Keep these bounds in any answer that rests on it."
)

# What follows a note where the time that was asked about is not all in the data.
PERIOD_CLAUSES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "partly-held": (
            "The data covers only a part of the time that was asked about, where `period.held` and `period.queried` "
            "overlap: for the rest nothing is known, not even that nothing is there."
        ),
        "not-held": (
            "The data covers none of the time that was asked about: `period.held` lies outside of `period.queried`, "
            "for which nothing is known, not even that nothing is there."
        ),
        "unknown": (
            "Which time the data covers is not known, so it may lack some or all of `period.queried`: do not take "
            "what is missing here for what never was."
        ),
    }
)

ANSWER_HEADING: Final = "What this answer covers"

NOTES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "absence": ABSENCE_NOTE,
        "absence-composed": ABSENCE_NOTE_COMPOSED,
        "absence-held-only": ABSENCE_NOTE_HELD_ONLY,
        "answer-heading": ANSWER_HEADING,
        "coverage": COVERAGE_NOTE,
        **{f"period-{verdict}": clause for verdict, clause in PERIOD_CLAUSES.items()},
    }
)
