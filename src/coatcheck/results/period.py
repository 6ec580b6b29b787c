"""The period of a reading: which time was asked about, which time the data covers, and the one verdict on the two.

The wire form, on an absence or in a ledger's bounds (keys in brackets only when there is something in them)::

    {"queried": {"from": <instant>, "to": <instant>}, "held": {"from", "to"} or "unknown", [read_at]}

An instant is ISO 8601 in the profile of RFC 3339: a date, a time and a zone (``Z`` or ``+hh:mm``), with at most nine
digits of a second. Both ends of a span belong to it. A tool states the two spans; the library alone judges them, so
a ``verdict`` that a tool declares is an unknown key, and an unknown key makes the whole period say nothing.

Instants are compared exactly, to the nanosecond, and kept verbatim. No maintained library does that and nothing else
(`datetime` and msgspec stop at microseconds, `whenever` makes one instant of second 59 and second 60 and takes dates
that RFC 3339 does not have), so it is one pattern here, with `datetime.date` for the calendar.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import date
from typing import Final, Literal, TypeAlias, get_args

import msgspec

from coatcheck.errors import DeclarationError
from coatcheck.results.items import mint_fields, refuse_unknown
from coatcheck.results.shapes import describe, is_object, is_text, recogniser

__all__ = [
    "Period",
    "PeriodVerdict",
    "Span",
    "judge_period",
    "least_held",
    "mint_period",
    "parse_instant",
    "verdict_of",
]

PeriodVerdict: TypeAlias = Literal["not-held", "partly-held", "unknown", "covered"]

VERDICTS: Final[tuple[PeriodVerdict, ...]] = get_args(PeriodVerdict)
"""The four verdicts, the least held first."""


class Span(msgspec.Struct, frozen=True, rename={"from_": "from"}):
    """A span of time; both ends belong to it.

    Attributes:
        from_, to: instants, ISO 8601 with a zone, as `datetime.isoformat` of an aware one writes them. On the wire
            ``from`` and ``to``.
    """

    from_: str
    to: str


class Period(msgspec.Struct, frozen=True, omit_defaults=True):
    """Which time was asked about, and which time the data covers. Judged by ``absent()`` and ``coverage()``.

    Attributes:
        queried: the time that was asked about.
        held: the time that the data covers, or ``unknown``.
        read_at: when the data was read, if it matters.
    """

    queried: Span
    held: Span | Literal["unknown"]
    read_at: str | None = None


_NANOSECONDS = 1_000_000_000
_INSTANT = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt]([01]\d|2[0-3]):([0-5]\d):([0-5]\d|60)(?:\.(\d{1,9}))?"
    r"(?:[Zz]|([+-])([01]\d|2[0-3]):([0-5]\d))",
    re.ASCII,
)
_get = dict.get


def parse_instant(text: object) -> int | None:
    """The instant that the text names, in nanoseconds of the proleptic Gregorian calendar, in UTC.

    Second 60 is the first of the next minute, as in every count of seconds that knows no leap seconds.

    Args:
        text: anything.

    Returns:
        The count, which is good for comparing and for nothing else; ``None`` for what is no instant: a date alone, a
        time without a zone, hour 24, a day that the calendar does not have, more than nine digits of a second.
    """
    found = _INSTANT.fullmatch(text) if is_text(text) else None
    if found is None:
        return None
    year, month, day, hour, minute, second, fraction, sign, ahead_hours, ahead_minutes = found.groups()
    try:
        days = date(int(year), int(month), int(day)).toordinal()
    except ValueError:
        return None
    seconds = ((days * 24 + int(hour)) * 60 + int(minute)) * 60 + int(second)
    if sign is not None:
        ahead = (int(ahead_hours) * 60 + int(ahead_minutes)) * 60
        seconds += ahead if sign == "-" else -ahead
    return seconds * _NANOSECONDS + int((fraction or "0").ljust(9, "0"))


def mint_period(declared: object) -> dict[str, object] | None:
    """The period as it goes on the wire.

    Args:
        declared: a `Period`, or a mapping with the keys of the wire, in which an instant may be an aware ``datetime``.
            ``None`` is none.

    Raises:
        DeclarationError: at the first fault, naming the field.
    """
    if declared is None:
        return None
    minted: dict[str, object] = msgspec.to_builtins(judge_period(mint_fields(declared))[0])
    return minted


def judge_period(found: object) -> tuple[Period, PeriodVerdict]:
    """The period of the wire and the verdict on it. The one rule set: a mint refuses by it, a recogniser reads by it.

    Args:
        found: anything.

    Raises:
        DeclarationError: at the first fault, naming the field.
    """
    if not is_object(found):
        raise DeclarationError(f"refused: period must be an object with queried and held, but {describe(found)}")
    refuse_unknown("period", found, ("queried", "held", "read_at"))
    queried, first, last = _judge_span("period.queried", _get(found, "queried", msgspec.UNSET))
    held = _get(found, "held", msgspec.UNSET)
    span: Span | Literal["unknown"] = "unknown"
    verdict: PeriodVerdict = "unknown"
    if not (is_text(held) and held == "unknown"):
        span, start, end = _judge_span("period.held", held, or_else=', or the word "unknown"')
        verdict = _compare(first, last, start, end)
    read_at = _get(found, "read_at")
    return Period(queried, span, None if read_at is None else _judge_instant("period.read_at", read_at)[0]), verdict


@recogniser
def verdict_of(period: object) -> PeriodVerdict | None:
    """The verdict on a period.

    ``covered``: the data covers all of the time that was asked about. ``not-held``: none of it. ``partly-held``: a part
    of it, an instant at which the two spans touch included. ``unknown``: the tool does not know what its data covers.

    Args:
        period: a `Period`, the object of the wire, or anything else.

    Returns:
        The verdict; ``None`` for what is no period. Never raises.
    """
    return judge_period(mint_fields(period) if type(period) is Period else period)[1]


def least_held(verdicts: Iterable[PeriodVerdict | None]) -> PeriodVerdict | None:
    """The verdict on several readings together: that of the least held, ``None`` where there is none."""
    found = set(verdicts)
    return next((verdict for verdict in VERDICTS if verdict in found), None)


def _compare(first: int, last: int, start: int, end: int) -> PeriodVerdict:
    """The verdict on a time that was asked about, and one that is held."""
    if start <= first and last <= end:
        return "covered"
    return "not-held" if end < first or last < start else "partly-held"


def _judge_span(place: str, found: object, or_else: str = "") -> tuple[Span, int, int]:
    """A span, and its two ends in nanoseconds."""
    if not is_object(found):
        problem = "it is other text" if is_text(found) and or_else else describe(found)
        raise DeclarationError(f"refused: {place} must be an object with from and to{or_else}, but {problem}")
    refuse_unknown(place, found, ("from", "to"))
    start, first = _judge_instant(f"{place}.from", _get(found, "from", msgspec.UNSET))
    end, last = _judge_instant(f"{place}.to", _get(found, "to", msgspec.UNSET))
    if first > last:
        raise DeclarationError(f"refused: {place}.from must not be later than {place}.to")
    return Span(start, end), first, last


def _judge_instant(place: str, found: object) -> tuple[str, int]:
    instant = parse_instant(found)
    if instant is None or not is_text(found):
        problem = "it is other text" if is_text(found) and str.strip(found) else describe(found)
        raise DeclarationError(
            f"refused: {place} must be an instant with a zone, as 2031-01-02T03:04:05Z, with at most nine digits of a "
            f"second, but {problem}"
        )
    return str.__str__(found), instant
