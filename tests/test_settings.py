"""The one check behind every dial: a number that cannot be honoured is refused, and the setting is named."""

from __future__ import annotations

import enum
import math
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coatcheck.errors import CoatcheckError, ConfigurationError
from coatcheck.settings import check_duration, check_whole


class One(enum.IntEnum):
    ONE = 1


class Integer(int):
    pass


NO_NUMBERS: list[Any] = [
    *(True, False, None, "10", "", b"10", [10], (10,), {10}, {}, 10j, object(), int, One.ONE, Integer(3)),
    *(Decimal(10), Fraction(10), np.int64(10), np.float64(10), math.nan, math.inf, -math.inf, 1.5, -0.0),
]


@given(st.integers(-(10**30), 10**30), st.integers(-5, 5))
def test_whole_numbers_from_the_least_on_come_back_as_they_are(value: int, least: int) -> None:
    if value >= least:
        assert check_whole("dial", value, least=least) is value
    else:
        with pytest.raises(ConfigurationError, match=rf"^dial must be at least {least}, not "):
            check_whole("dial", value, least=least)


@pytest.mark.parametrize("value", NO_NUMBERS, ids=lambda value: f"{type(value).__name__}-{value!r:.20}")
def test_what_is_no_whole_number_is_refused_and_named(value: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^Some\.dial must be a whole number of at least 1, not "):
        check_whole("Some.dial", value)


def test_a_fraction_that_is_whole_gets_the_hint_that_it_needs() -> None:
    with pytest.raises(ConfigurationError, match=r"not 2\.0: write it as an int$"):
        check_whole("dial", 2.0)
    for value in (1.5, math.inf, math.nan):
        with pytest.raises(ConfigurationError, match=r"not [\w.]+$"):
            check_whole("dial", value)


@given(st.floats(min_value=1e-9, max_value=1e9) | st.integers(1, 10**9))
def test_durations_are_seconds_in_any_spelling(seconds: float) -> None:
    assert check_duration("dial", seconds) == float(seconds)
    assert type(check_duration("dial", seconds)) is float
    span = timedelta(seconds=seconds)
    if span > timedelta(0):
        assert check_duration("dial", span) == span.total_seconds()


@pytest.mark.parametrize(
    "value",
    [
        *(0, -1, 0.0, -0.5, math.nan, math.inf, -math.inf, 10**400, -(10**400), 10**5000, 1e300),
        *(
            timedelta(0),
            timedelta(microseconds=-1),
            timedelta.max,
            timedelta.min,
            None,
            "1",
            "15m",
            True,
            [1],
            1j,
            Decimal(1),
        ),
    ],
    ids=lambda value: f"{type(value).__name__}" + (f"-{value!r:.20}" if not isinstance(value, int) else ""),
)
def test_what_is_no_positive_duration_is_refused_and_named(value: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^Some\.timeout must be a positive number of seconds or a timedelta"):
        check_duration("Some.timeout", value)


@pytest.mark.parametrize(
    "value", [-(10**5000), "x" * 10_000, [0] * 10_000, "\ud800" * 1000], ids=lambda value: type(value).__name__
)
def test_a_refusal_stays_short_whatever_was_given(value: Any) -> None:
    for check in (check_whole, check_duration):
        with pytest.raises(ConfigurationError) as caught:
            check("dial", value)
        assert len(str(caught.value)) < 250
        assert str(caught.value).encode()


def test_a_refusal_is_a_value_error_and_one_of_ours() -> None:
    with pytest.raises(ValueError, match="dial") as caught:
        check_whole("dial", 0)
    assert isinstance(caught.value, CoatcheckError)
