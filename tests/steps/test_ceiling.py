"""The author's ceiling: only strictly over is over, and the refusal teaches."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import coatcheck as cc
from coatcheck.call import ToolCall
from coatcheck.dispatch import Dispatch
from coatcheck.outcome import Outcome
from coatcheck.results.rendering import render
from coatcheck.steps.ceiling import CeilingStep, refuse

SECRET = "the payload itself"

BAD_WHOLE: list[Any] = [
    *(0, -1, -(10**30), 1.5, 2.0, math.nan, math.inf, True, False, "10", "", b"10", None),
    *([10], {}, 10j, Decimal(10), Fraction(10, 1), np.int64(10), np.float64(10), object()),
]


# --- the decision ---


@given(st.integers(0, 10**12), st.integers(1, 10**12))
def test_only_strictly_over_is_over(size: int, limit: int) -> None:
    refusal = refuse("t", size, cc.Ceiling(limit))
    assert (refusal is not None) is (size > limit)


WAYS = ("by_region", "by_rows", "by_date")


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.lists(st.sampled_from(WAYS), unique=True))
def test_the_refusal_names_the_tool_the_size_the_limit_and_every_way_to_ask_for_less(
    limit: int, over: int, names: list[str]
) -> None:
    refusal = refuse("export_orders", limit + over, cc.Ceiling(limit, narrow_by=tuple(names)))
    assert refusal is not None
    for word in ("export_orders", str(limit + over), str(limit), "refused"):
        assert word in refusal
    assert {word for word in WAYS if word in refusal} == {*names}


def test_the_sentence_is_the_one_that_was_written_for_the_model() -> None:
    assert refuse("rows", 2001, cc.Ceiling(2000, narrow_by=["limit", "region"])) == (
        "rows returned 2001 characters, over the ceiling of 2000 that its author set. The result was refused: "
        "none of it was returned or stored. Call rows again and ask for less: narrow it by limit, region."
    )
    plain = refuse("rows", 2001, cc.Ceiling(2000))
    assert plain is not None
    assert plain.endswith("Call rows again and ask for less.")


# --- the dials ---


@pytest.mark.parametrize("value", BAD_WHOLE, ids=lambda value: f"{type(value).__name__}-{value!r:.20}")
def test_a_limit_that_is_no_positive_whole_number_is_refused_by_its_name(value: Any) -> None:
    with pytest.raises(cc.ConfigurationError, match=r"^Ceiling\.max_chars must be "):
        cc.Ceiling(value)


@pytest.mark.parametrize(
    ("names", "named"),
    [
        ([], "an empty list"),
        ("region", "a list of argument names"),
        ({"region"}, "a list of argument names"),
        ({"region": 1}, "a list of argument names"),
        (None, "a list of argument names"),
        (5, "a list of argument names"),
        (["region", ""], r"narrow_by\[1\]"),
        (["region", " \t"], r"narrow_by\[1\]"),
        ([None], r"narrow_by\[0\]"),
        (["a", "b", 3], r"narrow_by\[2\]"),
        ([b"region"], r"narrow_by\[0\]"),
    ],
)
def test_names_that_cannot_be_honoured_are_refused(names: Any, named: str) -> None:
    with pytest.raises(cc.ConfigurationError, match=rf"^Ceiling\.narrow_by.*{named}|^Ceiling\.{named}"):
        cc.Ceiling(10, narrow_by=names)


def test_the_names_are_kept_in_order_and_are_the_ceilings_own() -> None:
    names = ["region", "limit"]
    ceiling = cc.Ceiling(10, narrow_by=names)
    names.append("later")
    assert ceiling.narrow_by == ("region", "limit")
    assert cc.Ceiling(10).narrow_by == ()


# --- the step ---


def outcome_of(value: Any, **facts: Any) -> cc.Inline:
    rendered = render(value)
    return cc.Inline(tool="rows", call_id="c1", text=rendered, value=value, executed=True, **facts)  # type: ignore[arg-type]


async def through(step: CeilingStep, outcome: Outcome, emit: Any = None) -> Outcome:
    async def tool(_: ToolCall) -> Outcome:
        return outcome

    return await step(Dispatch("rows", {}, "c1", emit=emit), tool)


@pytest.mark.anyio
@pytest.mark.parametrize("unit", ["a", "é", "😀", "e\u0301"])
@pytest.mark.parametrize("size", [999, 1000, 1001])
async def test_a9_the_limit_is_in_code_points_of_what_is_rendered(unit: str, size: int) -> None:
    step = CeilingStep({"rows": cc.Ceiling(1000)})
    values: list[Any] = [(unit * size)[:size], {"k": (unit * size)[: size - len('{"k":""}')]}]
    for value in values:
        outcome = outcome_of(value)
        passed = await through(step, outcome)
        assert len(outcome.text) == size
        assert isinstance(passed, cc.TooLarge) is (size > 1000)
        assert (passed is outcome) is (size <= 1000)


@pytest.mark.anyio
async def test_what_fits_passes_by_reference() -> None:
    outcome = outcome_of("a" * 10)
    assert await through(CeilingStep({"rows": cc.Ceiling(10)}), outcome) is outcome


@pytest.mark.anyio
async def test_the_refused_payload_is_gone_and_what_the_tool_said_beside_it_stays() -> None:
    effects = (cc.ProposeTransition("billing", "money"),)
    events: list[Any] = []
    outcome = outcome_of(SECRET * 10, status="partial", effects=effects)
    step = CeilingStep({"rows": cc.Ceiling(20, narrow_by=["limit"])})
    refused = await through(step, outcome, events.append)
    assert isinstance(refused, cc.TooLarge)
    assert (refused.status, refused.effects, refused.executed, refused.error) == ("invalid", effects, True, False)
    assert (refused.size, refused.max_chars, refused.tool, refused.call_id) == (len(SECRET) * 10, 20, "rows", "c1")
    assert SECRET not in refused.text
    assert not hasattr(refused, "value")
    [event] = events
    assert isinstance(event, cc.ResultRefused)
    assert (event.size, event.max_chars, event.narrow_by, event.declared_status) == (180, 20, ("limit",), "partial")
    assert SECRET not in repr(event)


@pytest.mark.anyio
async def test_a_ceiling_holds_for_its_own_tool_and_for_results_alone() -> None:
    step = CeilingStep({"rows": cc.Ceiling(5)})
    others: list[Outcome] = [
        cc.Inline(tool="other", text="a" * 50, value="a" * 50, executed=True),
        cc.Failed(tool="rows", text="a" * 50, reason="a" * 50, executed=True),
        cc.Denied(tool="rows", text="a" * 50, reason="a" * 50, rule="r"),
    ]
    for outcome in others:
        assert await through(step, outcome) is outcome


@pytest.mark.anyio
async def test_bytes_count_by_their_number() -> None:
    step = CeilingStep({"rows": cc.Ceiling(100)})
    assert isinstance(await through(step, outcome_of(bytes(100))), cc.Inline)
    assert isinstance(await through(step, outcome_of(bytes(101))), cc.TooLarge)
