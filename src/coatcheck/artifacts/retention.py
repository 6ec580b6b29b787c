"""One law of retention for every store: how long an artifact stays, and what leaves when a budget is short.

Laws (`design.md` section 3, parting 14; `api.md`; `reference/behaviour.md` 9.3):

* ``expires_at <= now`` is expired. An expired artifact is gone for every reader, whether it was removed or not.
* The ttl runs from the last put. A put again only extends an expiry, and a read extends nothing.
* A put never removes more than its budgets force out, and says what it removed: first what has expired, then
  the artifact whose last put is the oldest. What is larger than the whole budget is refused, and nothing leaves.

Everything here is pure: a store brings its rows and acts on the plan.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Literal

import msgspec

from coatcheck.artifacts.meta import Swept
from coatcheck.errors import ConfigurationError, InvalidArtifact
from coatcheck.settings import check_whole

__all__ = [
    "Plan",
    "Retention",
    "Row",
    "fits",
    "is_expired",
    "later_expiry",
    "parse_duration",
    "plan_in_order",
    "plan_retention",
    "resolve_expires_at",
    "too_large",
]

_LONGEST = timedelta(days=36_525)
_DURATION = re.compile("([0-9]{1,12})([smhd]?)")
_UNITS = {"": "seconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """How long, how much and how many, per scope. What is ``None`` is not limited.

    Attributes:
        ttl: how long an artifact resolves after its last put: more than nothing, at most a century.
        max_bytes: what the payloads of one scope may take together, in bytes.
        max_count: how many artifacts one scope may hold.

    Raises:
        ConfigurationError: naming the dial that cannot be honoured.
    """

    ttl: timedelta | None = None
    max_bytes: int | None = None
    max_count: int | None = None

    def __post_init__(self) -> None:
        if self.ttl is not None:
            if not isinstance(self.ttl, timedelta):
                raise ConfigurationError(f"ttl must be a timedelta, not {self.ttl!r:.80}")
            if not timedelta(0) < self.ttl <= _LONGEST:
                raise ConfigurationError(f"ttl must be more than nothing and at most a century, not {self.ttl}")
        if self.max_bytes is not None:
            check_whole("max_bytes", self.max_bytes)
        if self.max_count is not None:
            check_whole("max_count", self.max_count)


class Row(msgspec.Struct, frozen=True):
    """What retention needs to know of one stored artifact.

    Attributes:
        last_put: when its content was last put; the age that evictions go by.
    """

    ref: str
    kind: str
    bytes: int
    last_put: datetime
    expires_at: datetime | None = None


class Plan(msgspec.Struct, frozen=True):
    """What a store is to do before it takes a payload.

    Attributes:
        refused: the payload alone is more than the whole budget; then nothing leaves.
        swept: what leaves, in this order.
    """

    refused: bool = False
    swept: tuple[Swept, ...] = ()


def is_expired(expires_at: datetime | None, now: datetime) -> bool:
    """Whether an artifact with this expiry is gone at ``now``. At the very moment, it is."""
    return expires_at is not None and expires_at <= now


def resolve_expires_at(caller: datetime | None, retention: Retention | None, now: datetime) -> datetime | None:
    """The expiry that one put asks for: the sooner of the caller's own and the ttl from now; ``None`` is never."""
    if retention is None or retention.ttl is None:
        return caller
    limit = now + retention.ttl
    return limit if caller is None else min(caller, limit)


def later_expiry(stored: datetime | None, asked: datetime | None) -> datetime | None:
    """The expiry after a second put of the same content: it only grows, and ``None``, never, is the largest."""
    if stored is None or asked is None:
        return None
    return max(stored, asked)


def fits(count: int, total_bytes: int, incoming_bytes: int, retention: Retention) -> bool:
    """Whether one more payload is within the budgets beside what is there now, expired or not.

    Where it is, a put removes nothing and needs no plan.

    Args:
        count, total_bytes: the scope's artifacts without the one that is put.
        incoming_bytes: the size of the payload that is put.
        retention: the budgets.
    """
    return (retention.max_count is None or count + 1 <= retention.max_count) and (
        retention.max_bytes is None or total_bytes + incoming_bytes <= retention.max_bytes
    )


def plan_retention(rows: Iterable[Row], incoming_bytes: int, retention: Retention | None, now: datetime) -> Plan:
    """What leaves for a payload, once something has to: a put asks only when it does not `fit <fits>`.

    Args:
        rows: the scope's artifacts, without the one that is put. Their order does not matter.
        incoming_bytes: the size of the payload that is put.
        retention: the budgets; ``None``: only what has expired leaves.
        now: the store's clock.

    Returns:
        A refusal, or what leaves: everything that has expired, then the oldest last put first, ties by ref,
        until the count fits, and then until the bytes fit.
    """
    expired: list[Row] = []
    living: list[Row] = []
    for row in sorted(rows, key=lambda row: (row.last_put, row.ref)):
        (expired if is_expired(row.expires_at, now) else living).append(row)
    total = sum(row.bytes for row in living)
    return plan_in_order(expired, living, len(living), total, incoming_bytes, retention)


def plan_in_order(
    expired: Iterable[Row],
    living: Iterable[Row],
    count: int,
    total_bytes: int,
    incoming_bytes: int,
    retention: Retention | None,
) -> Plan:
    """`plan_retention` over rows that are in order already, of which no more are asked for than leave, and one.

    Args:
        expired, living: the scope's artifacts, without the one that is put, the oldest last put first, ties by ref.
        count, total_bytes: of the living.
        incoming_bytes, retention: as for `plan_retention`.
    """
    max_bytes = retention.max_bytes if retention is not None else None
    max_count = retention.max_count if retention is not None else None
    if max_bytes is not None and incoming_bytes > max_bytes:
        return Plan(refused=True)

    swept = [_swept(row, "ttl") for row in expired]
    for row in living:
        if max_count is not None and count + 1 > max_count:
            swept.append(_swept(row, "max-count"))
        elif max_bytes is not None and total_bytes + incoming_bytes > max_bytes:
            swept.append(_swept(row, "max-bytes"))
        else:
            break
        count -= 1
        total_bytes -= row.bytes
    return Plan(swept=tuple(swept))


def too_large(size: int, retention: Retention) -> InvalidArtifact:
    """The error for a payload of ``size`` bytes whose plan is a refusal."""
    return InvalidArtifact(f"data has {size} bytes, more than max_bytes={retention.max_bytes} lets one scope hold")


def parse_duration(text: str) -> timedelta:
    """A duration as URLs and TOML write it: ``90`` and ``90s`` are seconds, ``15m``, ``12h``, ``7d``.

    Raises:
        ValueError: it is written in another way.
    """
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError("expected a whole number, of seconds or with a unit: 90, 15m, 12h or 7d")
    number, unit = match.groups()
    try:
        return timedelta(**{_UNITS[unit]: int(number)})
    except OverflowError:
        raise ValueError("it is too long") from None


def _swept(row: Row, reason: Literal["ttl", "max-bytes", "max-count"]) -> Swept:
    return Swept(ref=row.ref, kind=row.kind, bytes=row.bytes, reason=reason)
