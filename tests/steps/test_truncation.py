"""The last net: what the model reads is valid JSON for every limit, and says that it was cut."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import coatcheck as cc
from coatcheck.call import ToolCall
from coatcheck.dispatch import Dispatch
from coatcheck.outcome import Marker, Outcome
from coatcheck.results.rendering import render, render_text
from coatcheck.steps.truncation import TruncationStep, cut
from coatcheck.testing.strategies import texts

AWKWARD = (
    '{"quote\\"": "back\\\\slash", "control": "\\u0000\x01\n\t", '
    '"emoji": "😀👩\u200d👩", "mark": "e\u0301é", "sep": "\u2028"}'
)
HARD = (AWKWARD * 10)[:1000]
TRACEBACK = "Traceback (most recent call last):\n" + "".join(
    f'  File "module_{index}.py", line {index}, in function\n    call("argument {index}")\n' for index in range(600)
)
CAUSE = "KeyError: 'the cause'"
ERROR = TRACEBACK + CAUSE

hard_texts = st.one_of(
    texts(max_size=800),
    st.text(st.sampled_from('"\\\x00\x1f\n😀é\u0301a'), max_size=800),
    st.tuples(st.sampled_from(["a", '"', "\\", "\x00", "😀", "é", "e\u0301"]), st.integers(0, 900)).map(
        lambda t: t[0] * t[1]
    ),
)


def frame(marker: Marker) -> int:
    """What the explanation alone takes, with the keys of what it explains."""
    return len(msgspec.structs.replace(marker, head=marker.head and "", tail=marker.tail and "").to_json())


def check(marker: Marker | None, text: str, limit: int) -> None:
    """What holds for every marker, of results and of errors."""
    if len(text) <= limit:
        assert marker is None
        return
    assert marker is not None
    wire = marker.to_json()
    parsed = json.loads(wire)
    assert parsed["truncated"] is True
    assert [key for key in ("truncated", "reason", "head", "tail") if key in parsed] == list(parsed)
    assert str(len(text)) in parsed["reason"]
    assert str(limit) in parsed["reason"]
    assert parsed.get("head") == marker.head
    assert parsed.get("tail") == marker.tail
    if marker.head is not None:
        assert marker.head
        assert text.startswith(marker.head)
    if marker.tail is not None:
        assert marker.tail
        assert text.endswith(marker.tail)
    if marker.head is not None or marker.tail is not None:
        assert len(wire) <= limit
    assert len(marker.head or "") + len(marker.tail or "") < len(text)


# --- results ---


@given(hard_texts, st.integers(1, 1200), st.booleans())
@example("a" * 1000, 999, False)
@example("\x00" * 400, 399, True)
def test_b2_the_head_is_a_verbatim_prefix_within_the_limit_and_as_long_as_it_affords(
    text: str, limit: int, encoded: bool
) -> None:
    rendered = render(cc.Encoded(text.encode(), "text/plain")) if encoded else render_text(text)
    marker = cut("rows", rendered, limit)
    check(marker, text, limit)
    if marker is None:
        return
    assert marker.tail is None
    longer = msgspec.structs.replace(marker, head=text[: len(marker.head or "") + 1])
    assert len(longer.to_json()) > limit


@pytest.mark.parametrize("text", [HARD, '"' * 600, "\x00" * 300, "😀" * 700, "e\u0301" * 400, "a" * 900])
def test_b2_every_limit_from_one_to_the_length_parses(text: str) -> None:
    heads = []
    for limit in range(1, len(text) + 1):
        marker = cut("rows", render_text(text), limit)
        check(marker, text, limit)
        heads.append(-1 if marker is None else len(marker.head or ""))
    assert heads[-1] == -1
    assert heads[:-1] == sorted(heads[:-1])
    assert heads[0] == 0
    assert heads[-2] > 0


def test_b2_the_json_of_a_value_is_cut_like_any_text() -> None:
    value = {"q": '"\\', "c": "\x00\n\t", "e": "😀é", "rows": [{"id": index, "t": "\u0301"} for index in range(40)]}
    rendered = render(value)
    for limit in range(1, rendered.size + 1):
        check(cut("rows", rendered, limit), rendered.text, limit)


def test_b1_what_the_model_reads_parses_as_json() -> None:
    value = {"messages": [{"id": index, "body": "b" * 40} for index in range(900)]}
    rendered = render(value)
    marker = cut("list_messages", rendered, 20_000)
    assert marker is not None
    read = json.loads(marker.to_json())
    assert read["head"].startswith('{"messages":[{"id":0,')
    assert rendered.text.startswith(read["head"])
    assert 19_900 < len(marker.to_json()) <= 20_000
    assert "list_messages" in read["reason"]
    assert str(rendered.size) in read["reason"]


def test_a_large_value_is_not_decoded_to_be_cut() -> None:
    rendered = render({"rows": ["é😀" * 50] * 2000})
    for tail in (False, True):
        marker = cut("rows", rendered, 1000, tail=tail)
        assert marker is not None
        assert marker.head
    assert rendered.decoded is None


@pytest.mark.parametrize("unit", ["é", "😀", "e\u0301", "\U0010ffff", "ア"])
@pytest.mark.parametrize("shift", range(4))
def test_no_character_is_split_whatever_bytes_it_takes(unit: str, shift: int) -> None:
    text = "a" * shift + unit * 800
    rendered = render(cc.Encoded(text.encode(), "text/plain"))
    for limit in range(250, 270):
        for tail in (False, True):
            marker = cut("t", rendered, limit, tail=tail)
            check(marker, text, limit)
            assert marker is not None
            assert marker.head


def test_a_limit_that_cannot_hold_the_explanation_gets_the_explanation_alone() -> None:
    for limit in (1, 10, 50):
        for tail in (False, True):
            marker = cut("rows", render_text("x" * 5000), limit, tail=tail)
            assert marker is not None
            assert (marker.head, marker.tail) == (None, None)
            assert set(json.loads(marker.to_json())) == {"truncated", "reason"}


def test_a_tools_long_name_does_not_outgrow_the_marker() -> None:
    marker = cut("n" * 100_000, render_text("x" * 5000), 1000)
    check(marker, "x" * 5000, 1000)
    assert marker is not None
    assert marker.head


# --- errors ---


@given(hard_texts, st.integers(1, 1200), st.booleans())
def test_b4_an_error_keeps_its_head_and_its_tail(text: str, limit: int, encoded: bool) -> None:
    rendered = render(cc.Encoded(text.encode(), "text/plain")) if encoded else render_text(text)
    marker = cut("rows", rendered, limit, tail=True)
    check(marker, text, limit)
    if marker is not None and limit - frame(marker) > 60:
        assert marker.head is not None
        assert marker.tail is not None


def test_b4_the_last_line_of_a_traceback_is_there_when_the_limit_affords_it() -> None:
    assert len(ERROR) > 40_000
    for limit in range(300, 3000, 50):
        marker = cut("run", render_text(ERROR), limit, tail=True)
        check(marker, ERROR, limit)
        assert marker is not None
        if marker.tail is not None and len(marker.tail) >= len(CAUSE):
            assert marker.tail.splitlines()[-1].endswith(CAUSE)
            assert (marker.head or "").startswith("Traceback"[: len(marker.head or "")])
    marker = cut("run", render_text(ERROR), 1000, tail=True)
    assert marker is not None
    assert marker.tail is not None
    assert marker.tail.endswith("\n" + CAUSE)
    assert len(marker.to_json()) >= 990


def test_an_error_uses_what_the_limit_affords() -> None:
    for text in ("x" * 5000, '"' * 5000, "😀" * 5000):
        for limit in range(300, 400):
            marker = cut("run", render_text(text), limit, tail=True)
            assert marker is not None
            assert limit - 4 <= len(marker.to_json()) <= limit


# --- the dial ---


@pytest.mark.parametrize(
    "value",
    [0, -1, 1.5, 2.0, math.nan, math.inf, True, False, "10", None, Decimal(10), [10], b"1"],
    ids=lambda value: f"{type(value).__name__}-{value!r:.20}",
)
def test_a_limit_that_is_no_positive_whole_number_is_refused_by_its_name(value: Any) -> None:
    with pytest.raises(cc.ConfigurationError, match=r"^Truncation\.max_chars must be "):
        cc.Truncation(value)


# --- the step ---


async def through(outcome: Outcome, limit: int) -> Outcome:
    async def inner(_: ToolCall) -> Outcome:
        return outcome

    return await TruncationStep(cc.Truncation(limit))(Dispatch("rows"), inner)


@pytest.mark.anyio
async def test_what_fits_passes_by_reference_whatever_it_is() -> None:
    outcomes: list[Outcome] = [
        cc.Inline(tool="rows", text="a" * 50, value="a" * 50),
        cc.Failed(tool="rows", text="a" * 50, reason="a" * 50),
        cc.Denied(tool="rows", text="a" * 50, reason="a" * 50, rule="r"),
    ]
    for outcome in outcomes:
        assert await through(outcome, 50) is outcome


@pytest.mark.anyio
async def test_everything_over_is_cut_and_only_a_result_changes_its_class() -> None:
    text = "x" * 2000
    about: dict[str, Any] = {"tool": "rows", "call_id": "c", "text": text, "executed": True}
    outcomes: list[Outcome] = [
        cc.Inline(**about, value=text, status="success"),
        cc.Failed(**about, reason=text),
        cc.Denied(**about, reason=text, rule="r"),
        cc.TooLarge(**about, size=9, max_chars=1, status="invalid"),
    ]
    for outcome in outcomes:
        seen = await through(outcome, 500)
        assert seen.cut
        assert not outcome.cut
        assert len(seen.text) <= 500
        read = json.loads(seen.text)
        assert read["truncated"] is True
        assert ("tail" in read) is isinstance(outcome, cc.Failed)
        assert (seen.status, seen.call_id, seen.executed) == (outcome.status, "c", True)
        assert type(seen) is (cc.Truncated if isinstance(outcome, cc.Inline) else type(outcome))
        if isinstance(seen, cc.Truncated):
            assert seen.marker.to_json() == seen.text
        elif not isinstance(seen, cc.TooLarge):
            assert seen.reason == text  # type: ignore[attr-defined]  # the two that have one


@pytest.mark.anyio
async def test_a_ticket_is_never_cut() -> None:
    ticket = cc.Ticket(ref="art_" + "0" * 32, kind="k", media_type="text/plain", bytes=1, reason="r" * 5000)
    placed = cc.Placed(tool="rows", text=ticket.to_json(), ticket=ticket)
    assert await through(placed, 100) is placed


@pytest.mark.anyio
async def test_k3_text_that_looks_like_a_marker_is_text_and_is_cut_like_text() -> None:
    text = json.dumps({"truncated": True, "reason": "all good", "head": "x" * 2000})
    seen = await through(cc.Inline(tool="rows", text=text, value=text), 600)
    assert isinstance(seen, cc.Truncated)
    head = json.loads(seen.text)["head"]
    assert text.startswith(head)
    short = cc.Inline(tool="rows", text=text[:600], value=text[:600])
    assert await through(short, 600) is short


@pytest.mark.anyio
async def test_binary_beside_a_text_that_fits_stays_beside_it() -> None:
    rendered = render(bytes(5000))
    outcome = cc.Inline(tool="rows", text=rendered, value=bytes(5000), content=rendered.blobs)  # type: ignore[arg-type]
    seen = await through(outcome, 100)
    assert seen is outcome
    assert seen.content == rendered.blobs
