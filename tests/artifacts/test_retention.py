"""Retention as a pure plan (law: `design.md` section 3, parting 14; `api.md`; `reference/behaviour.md` 9.3)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coatcheck.artifacts.retention import (
    Retention,
    Row,
    fits,
    is_expired,
    later_expiry,
    parse_duration,
    plan_in_order,
    plan_retention,
    resolve_expires_at,
    too_large,
)
from coatcheck.errors import ConfigurationError

NOW = datetime(2031, 1, 2, tzinfo=UTC)
SECOND = timedelta(seconds=1)

moments = st.integers(-5, 5).map(lambda seconds: NOW + seconds * SECOND)
expiries = st.none() | moments
budgets = st.builds(
    Retention,
    max_bytes=st.none() | st.integers(1, 60),
    max_count=st.none() | st.integers(1, 6),
)
tables = st.lists(
    st.builds(
        Row, ref=st.uuids().map(str), kind=st.just("k"), bytes=st.integers(0, 30), last_put=moments, expires_at=expiries
    ),
    max_size=8,
    unique_by=lambda row: row.ref,
)


@pytest.mark.parametrize(
    ("dial", "value"),
    [
        *(("ttl", value) for value in (timedelta(0), -SECOND, timedelta(days=40_000), 60, 1.5, True, "1h")),
        *((dial, value) for dial in ("max_bytes", "max_count") for value in (0, -1, 1.5, 1.0, True, float("nan"), "1")),
    ],
)
def test_a_dial_that_cannot_be_honoured_is_refused_by_name(dial: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"^{dial} must be"):
        Retention(**{dial: value})


def test_a_dial_that_is_not_given_limits_nothing() -> None:
    assert Retention() == Retention(ttl=None, max_bytes=None, max_count=None)
    rows = [Row(str(n), "k", 1 << 40, NOW) for n in range(100)]
    assert plan_retention(rows, 1 << 50, Retention(), NOW).swept == ()
    assert fits(10**9, 1 << 60, 1 << 60, Retention())


def test_at_the_very_moment_an_artifact_is_expired() -> None:
    assert is_expired(NOW, NOW)
    assert not is_expired(NOW + timedelta(microseconds=1), NOW)
    assert not is_expired(None, NOW)


@given(expiries.map(lambda moment: moment and moment + 10 * SECOND), st.none() | st.integers(1, 20))
def test_a_put_asks_for_the_sooner_of_its_own_expiry_and_the_ttl(caller: datetime | None, ttl: int | None) -> None:
    retention = Retention(ttl=None if ttl is None else ttl * SECOND)
    asked = resolve_expires_at(caller, retention, NOW)
    bounds = [bound for bound in (caller, None if ttl is None else NOW + ttl * SECOND) if bound is not None]
    assert asked == min(bounds, default=None)


@given(expiries, expiries)
def test_an_expiry_only_grows_and_never_is_the_longest(stored: datetime | None, asked: datetime | None) -> None:
    grown = later_expiry(stored, asked)
    if stored is None or asked is None:
        assert grown is None
    else:
        assert grown is not None
        assert grown >= stored
        assert grown in (stored, asked)


@given(tables, st.integers(0, 70), budgets)
def test_what_is_left_after_a_plan_is_within_the_budgets_and_no_less_than_it_must_be(
    rows: list[Row], incoming: int, retention: Retention
) -> None:
    plan = plan_retention(rows, incoming, retention, NOW)
    if plan.refused:
        assert retention.max_bytes is not None
        assert incoming > retention.max_bytes
        assert plan.swept == ()
        return
    gone = {swept.ref for swept in plan.swept}
    kept = [row for row in rows if row.ref not in gone]
    assert fits(len(kept), sum(row.bytes for row in kept), incoming, retention)
    assert not any(is_expired(row.expires_at, NOW) for row in kept)

    evicted = [swept for swept in plan.swept if swept.reason != "ttl"]
    if evicted:  # the last one had to go
        last = evicted[-1].bytes
        assert not fits(len(kept) + 1, sum(row.bytes for row in kept) + last, incoming, retention)


@given(tables, st.integers(0, 70), budgets)
def test_the_expired_leave_first_and_then_the_oldest_put(rows: list[Row], incoming: int, retention: Retention) -> None:
    by_ref = {row.ref: row for row in rows}
    swept = plan_retention(rows, incoming, retention, NOW).swept
    reasons = [each.reason == "ttl" for each in swept]
    assert reasons == sorted(reasons, reverse=True)
    evicted = [by_ref[each.ref] for each in swept if each.reason != "ttl"]
    assert evicted == sorted(evicted, key=lambda row: (row.last_put, row.ref))
    survivors = [row for row in rows if row.ref not in {each.ref for each in swept}]
    if evicted and survivors:
        assert max((row.last_put, row.ref) for row in evicted) < min((row.last_put, row.ref) for row in survivors)


@given(tables, st.integers(0, 70), budgets)
def test_a_plan_does_not_depend_on_the_order_of_its_rows(rows: list[Row], incoming: int, retention: Retention) -> None:
    assert plan_retention(rows[::-1], incoming, retention, NOW) == plan_retention(rows, incoming, retention, NOW)


@given(tables, st.integers(0, 70), budgets)
def test_a_plan_over_rows_in_order_is_the_same_and_asks_for_one_row_more_than_leaves(
    rows: list[Row], incoming: int, retention: Retention
) -> None:
    rows.sort(key=lambda row: (row.last_put, row.ref))
    expired = [row for row in rows if is_expired(row.expires_at, NOW)]
    living = [row for row in rows if row not in expired]
    asked: list[Row] = []

    def lazily() -> Iterator[Row]:
        for row in living:
            asked.append(row)
            yield row

    total = sum(row.bytes for row in living)
    plan = plan_in_order(expired, lazily(), len(living), total, incoming, retention)
    assert plan == plan_retention(rows, incoming, retention, NOW)
    assert len(asked) <= len(plan.swept) - len(expired) + 1 or plan.refused


def test_the_text_of_a_refusal_names_the_dial_and_the_sizes() -> None:
    assert (
        str(too_large(11, Retention(max_bytes=10))) == "data has 11 bytes, more than max_bytes=10 lets one scope hold"
    )


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("15m", 900), ("12h", 43_200), ("7d", 604_800), ("007", 7), ("0", 0)]
)
def test_a_duration_is_a_whole_number_and_a_unit(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds * SECOND


@pytest.mark.parametrize(
    "text",
    ["", "m", "1.5h", "-1", "+1", "1 h", "1H", "1w", "1h30m", "\u0661", "1_000", "1\n", "9" * 12 + "d", "9" * 20],
)
def test_a_duration_in_another_form_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected a whole number|too long"):
        parse_duration(text)
