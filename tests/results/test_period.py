from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coatcheck.errors import DeclarationError
from coatcheck.results.period import VERDICTS, Period, Span, least_held, mint_period, parse_instant, verdict_of

A, B, C, D = (f"2031-01-0{day}T00:00:00Z" for day in (1, 2, 3, 4))
JUST_BEFORE_B, JUST_AFTER_C = "2031-01-01T23:59:59.999999999Z", "2031-01-03T00:00:00.000000001Z"


def span(start: str, end: str) -> dict[str, str]:
    return {"from": start, "to": end}


def refusal(period: Any) -> str:
    with pytest.raises(DeclarationError) as refused:
        mint_period(period)
    assert str(refused.value).startswith("refused: period")
    return str(refused.value)


class TestInstants:
    @pytest.mark.parametrize(
        ("one", "other"),
        [
            ("2031-01-02T03:04:05Z", "2031-01-02t03:04:05z"),
            ("2031-01-02T03:04:05Z", "2031-01-02T03:04:05.000000000+00:00"),
            ("2031-01-02T03:04:05Z", "2031-01-02T05:04:05+02:00"),
            ("2031-01-02T03:04:05Z", "2031-01-01T20:34:05-06:30"),
            ("2031-01-02T03:04:05Z", "2031-01-02T03:04:05-00:00"),
            ("2031-01-02T03:04:05.5Z", "2031-01-02T03:04:05.500000000Z"),
            ("2016-12-31T23:59:60Z", "2017-01-01T00:00:00Z"),
            ("2016-12-31T23:59:60.25Z", "2017-01-01T00:00:00.25Z"),
            ("0001-01-01T00:00:00+23:59", "0001-01-01T00:00:00.0+23:59"),
        ],
    )
    def test_however_an_instant_is_spelled_it_is_the_same(self, one: str, other: str) -> None:
        assert parse_instant(one) == parse_instant(other) is not None

    def test_a_nanosecond_is_told_apart(self) -> None:
        first, second = parse_instant("2031-01-02T03:04:05.000000001Z"), parse_instant("2031-01-02T03:04:05Z")
        assert first is not None
        assert second is not None
        assert first - second == 1

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "2031-01-02",
            "2031-01-02T03:04:05",
            "2031-01-02 03:04:05Z",
            "2031-01-02T03:04Z",
            "2031-01-02T03Z",
            "20310102T030405Z",
            "2031-W01-4T00:00:00Z",
            "2031-01-02T24:00:00Z",
            "2031-01-02T03:60:00Z",
            "2031-01-02T03:04:61Z",
            "2031-02-29T03:04:05Z",
            "2031-13-01T03:04:05Z",
            "2031-00-01T03:04:05Z",
            "0000-01-01T00:00:00Z",
            "2031-01-02T03:04:05.Z",
            "2031-01-02T03:04:05,5Z",
            "2031-01-02T03:04:05.1234567891Z",
            "2031-01-02T03:04:05+02",
            "2031-01-02T03:04:05+0200",
            "2031-01-02T03:04:05+24:00",
            "2031-01-02T03:04:05+02:60",
            "2031-01-02T03:04:05Z ",
            " 2031-01-02T03:04:05Z",
            "2031-01-02T03:04:05Z\n",
            "\u0662031-01-02T03:04:05Z",
            "+2031-01-02T03:04:05Z",
            "2031-01-02T03:04:05Z[Europe/Paris]",
            b"2031-01-02T03:04:05Z",
            1925089445,
            None,
            datetime(2031, 1, 2, tzinfo=UTC),
        ],
    )
    def test_anything_else_is_none(self, text: object) -> None:
        assert parse_instant(text) is None

    @given(
        st.datetimes(timezones=st.builds(timezone, st.integers(-1439, 1439).map(lambda part: timedelta(minutes=part)))),
        st.datetimes(timezones=st.just(UTC)),
    )
    def test_their_order_and_distance_are_those_of_the_moments(self, one: datetime, other: datetime) -> None:
        first, second = parse_instant(one.isoformat()), parse_instant(other.isoformat())
        assert first is not None
        assert second is not None
        assert first - second == (one - other) // timedelta(microseconds=1) * 1000

    @given(st.text())
    def test_no_text_raises(self, text: str) -> None:
        assert parse_instant(text) is None


class TestTheVerdict:
    @pytest.mark.parametrize(
        ("held", "verdict"),
        [
            (span(B, C), "covered"),
            (span(A, D), "covered"),
            (span(B, JUST_AFTER_C), "covered"),
            (span(A, JUST_BEFORE_B), "not-held"),
            (span(JUST_AFTER_C, D), "not-held"),
            (span(A, B), "partly-held"),  # they touch at one instant
            (span(C, D), "partly-held"),
            (span(C, C), "partly-held"),
            (span(JUST_BEFORE_B, "2031-01-02T23:59:59.999999999Z"), "partly-held"),
            (span("2031-01-02T00:00:00.000000001Z", C), "partly-held"),
            (span("2031-01-02T02:00:00+02:00", "2031-01-02T17:00:00-07:00"), "covered"),
            ("unknown", "unknown"),
        ],
    )
    def test_both_ends_belong_to_a_span(self, held: Any, verdict: str) -> None:
        period = {"queried": span(B, C), "held": held}
        assert verdict_of(period) == verdict
        assert verdict_of(msgspec.convert(period, Period)) == verdict

    def test_an_instant_that_was_asked_about_is_held_or_not(self) -> None:
        assert verdict_of({"queried": span(B, B), "held": span(A, C)}) == "covered"
        assert verdict_of({"queried": span(A, A), "held": span(B, C)}) == "not-held"

    @pytest.mark.parametrize(
        "odd",
        [
            None,
            "last hour",
            {},
            {"queried": span(B, C)},
            {"queried": span(C, B), "held": "unknown"},
            {"queried": span(B, C), "held": "unknown", "verdict": "covered"},
            Period(Span("yesterday", B), "unknown"),
        ],
    )
    def test_what_is_no_period_has_none(self, odd: object) -> None:
        assert verdict_of(odd) is None

    def test_of_several_the_least_held_counts_in_any_order(self) -> None:
        for several in itertools.permutations(VERDICTS):
            assert least_held(several) == "not-held"
        assert least_held(["covered", None, "unknown"]) == "unknown"
        assert least_held([None]) is None


class TestTheMint:
    def test_instants_are_kept_verbatim(self) -> None:
        period = {"queried": span("2031-01-02t03:04:05.120z", C), "held": "unknown", "read_at": D}
        assert mint_period(period) == period
        assert mint_period({**period, "read_at": None}) == {"queried": period["queried"], "held": "unknown"}
        assert mint_period(None) is None

    def test_an_aware_datetime_is_an_instant(self) -> None:
        ahead = timezone(timedelta(hours=2, seconds=5))
        period = mint_period(
            {
                "queried": {
                    "from": datetime(2031, 1, 2, tzinfo=UTC),
                    "to": datetime(2031, 1, 3, 2, 0, 5, tzinfo=ahead),
                },
                "held": "unknown",
            }
        )
        assert period == {"queried": span(B, C), "held": "unknown"}

    @pytest.mark.parametrize(
        ("period", "mentions"),
        [
            ({"held": "unknown"}, ["period.queried", "missing"]),
            ({"queried": "today", "held": "unknown"}, ["period.queried", "from and to"]),
            ({"queried": {"from": B}, "held": "unknown"}, ["period.queried.to", "missing"]),
            ({"queried": span(B, "soon"), "held": "unknown"}, ["period.queried.to", "with a zone", "other text"]),
            ({"queried": span(B, ""), "held": "unknown"}, ["period.queried.to", "blank"]),
            ({"queried": span(C, B), "held": "unknown"}, ["period.queried.from", "later"]),
            ({"queried": span(B, C)}, ["period.held", "missing", "unknown"]),
            ({"queried": span(B, C), "held": "some"}, ["period.held", "other text"]),
            ({"queried": span(B, C), "held": span(B, "2031-01-03")}, ["period.held.to"]),
            ({"queried": {**span(B, C), "zone": "UTC"}, "held": "unknown"}, ['period.queried has no "zone"']),
            ({"queried": span(B, C), "held": "unknown", "readAt": D}, ['"readAt"; write read_at']),
            ({"queried": span(B, C), "held": "unknown", "read_at": "now"}, ["period.read_at"]),
            ({"queried": span(B, C), "held": "unknown", "verdict": "covered"}, ['"verdict"']),
            ({"queried": {"from": datetime(2031, 1, 2), "to": C}, "held": "unknown"}, ["queried.from", "zone"]),
            (datetime(2031, 1, 2, tzinfo=UTC), ["period must be an object"]),
        ],
    )
    def test_a_fault_is_named_by_its_field(self, period: Any, mentions: list[str]) -> None:
        text = refusal(period)
        assert [word for word in mentions if word not in text] == []

    def test_a_mapping_within_itself_and_a_moment_that_utc_does_not_have_are_refused(self) -> None:
        endless: dict[str, Any] = {"held": "unknown"}
        endless["queried"] = {"from": endless, "to": C}
        assert "period.queried.from" in refusal(endless)
        first = datetime.min.replace(tzinfo=timezone(timedelta(hours=5)))
        assert "period.queried.from" in refusal({"queried": {"from": first, "to": C}, "held": "unknown"})
