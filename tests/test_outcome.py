"""What the host gets for one call: values of a small closed family, whose text is made when it is read."""

from __future__ import annotations

import copy
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given

import coatcheck as cc
from coatcheck.outcome import Marker, Outcome, carried, failed, rendered_of, settle, size_of
from coatcheck.results.rendering import Rendered, render
from coatcheck.testing.strategies import json_values

SCOPE = cc.Scope(conversation="c")
TICKET = cc.Ticket(ref="art_" + "0" * 32, kind="k", media_type="text/plain", bytes=1, reason="r")
NOW = datetime(2031, 1, 2, tzinfo=UTC)
QUESTION = cc.PendingCall(
    id="p1",
    tool="t",
    arguments={"a": 1},
    call_id=None,
    scope=SCOPE,
    rule="r",
    index=0,
    rules=("r",),
    question="may I?",
    detail=None,
    turn=1,
    asked_at=NOW,
    expires_at=NOW,
)

ALL: list[Outcome] = [
    cc.Inline(tool="t", text="x", value="x", executed=True),
    cc.Placed(tool="t", text=TICKET.to_json(), ticket=TICKET, executed=True),
    cc.Truncated(tool="t", text="{}", marker=Marker(reason="r"), cut=True, executed=True),
    cc.TooLarge(tool="t", text="too large", size=2, max_chars=1, status="invalid", executed=True),
    cc.Denied(tool="t", text="no", reason="no", rule="r"),
    cc.Failed(tool="t", text="boom", reason="boom"),
    cc.Pending(tool="t", text="may I?", call=QUESTION),
]


def lazily(value: Any, **facts: Any) -> tuple[cc.Inline, Rendered]:
    """An outcome as it travels inside the chain: its text not made yet."""
    rendered = render(value)
    return cc.Inline(tool="t", text=rendered, value=value, executed=True, **facts), rendered  # type: ignore[arg-type]


def describe(outcome: cc.Outcome) -> str:
    """What a host does with the family."""
    match outcome:
        case cc.Inline(value=value, text=text):
            return f"inline {value} {text}"
        case cc.Placed(ticket=cc.Ticket(ref=ref)):
            return f"placed {ref}"
        case cc.Truncated(marker=marker):
            return f"truncated {marker.reason}"
        case cc.TooLarge(size=size, max_chars=limit):
            return f"too large {size} {limit}"
        case cc.Denied(reason=reason, rule=rule):
            return f"denied {reason} {rule}"
        case cc.Failed(reason=reason):
            return f"failed {reason}"
        case cc.Pending(call=call):
            return f"pending {call.question}"
        case _:
            return "another"


# --- the family ---


def test_every_class_matches_by_its_own_fields() -> None:
    assert [describe(outcome) for outcome in ALL] == [
        "inline x x",
        f"placed {TICKET.ref}",
        "truncated r",
        "too large 2 1",
        "denied no r",
        "failed boom",
        "pending may I?",
    ]


def test_error_is_said_of_a_failure_and_of_nothing_else() -> None:
    assert [type(outcome).__name__ for outcome in ALL if outcome.error] == ["Failed"]
    assert cc.Failed.error is True
    assert not any(kind.error for kind in (cc.Inline, cc.Placed, cc.Truncated, cc.TooLarge, cc.Denied, cc.Pending))


def test_outcomes_are_values_that_nobody_changes_in_place() -> None:
    for outcome in ALL:
        for field in ("text", "tool", "status", "decisions"):
            with pytest.raises(AttributeError):
                setattr(outcome, field, "other")
        assert outcome != copy.copy(outcome)  # each is what happened once, so it is equal to itself alone
        assert len({outcome, copy.copy(outcome)}) == 2


def test_what_nobody_said_is_empty() -> None:
    bare = cc.Inline(tool="t", text="", value=None)
    assert (bare.call_id, bare.status, bare.executed, bare.cut, bare.error) == (None, None, False, False, False)
    for field in ("effects", "malformed", "declared", "decisions", "notes", "tickets", "content"):
        assert getattr(bare, field) == ()


# --- the text ---


@given(json_values())
def test_the_text_is_always_a_str_and_is_that_of_the_value(value: Any) -> None:
    outcome, _ = lazily(value)
    assert size_of(outcome) == render(value).size
    assert type(outcome.text) is str
    assert outcome.text == render(value).text
    assert rendered_of(outcome).text == outcome.text


def test_the_text_is_made_when_it_is_read_and_made_once() -> None:
    outcome, rendered = lazily({"rows": ["é" * 100] * 1000})
    assert size_of(outcome) > 100_000
    assert rendered_of(outcome) is rendered
    assert rendered_of(outcome).head(9) == '{"rows":['
    assert rendered.decoded is None
    assert outcome.text is outcome.text
    assert rendered.decoded is outcome.text


def test_a_text_that_was_written_by_hand_is_measured_like_any_other() -> None:
    outcome = cc.Inline(tool="t", text="é😀", value=None)
    assert size_of(outcome) == 2
    assert rendered_of(outcome).data == "é😀".encode()
    assert rendered_of(outcome).media_type == "text/plain"


def test_an_outcome_that_is_settled_holds_nothing_but_its_text_and_its_rows() -> None:
    outcome, rendered = lazily({"a": 1})
    row = cc.Decision("r", "before-tool", "t", None, "allow")
    settle(outcome, [row])
    assert type(outcome.held) is str
    assert outcome.text == rendered.text == '{"a":1}'
    assert outcome.decisions == (row,)
    settle(outcome, [])
    assert outcome.decisions == (row,)
    assert msgspec.structs.asdict(outcome)["text"] == '{"a":1}'
    assert json.loads(msgspec.json.encode(outcome))["text"] == '{"a":1}'


@pytest.mark.parametrize("settled", [False, True])
def test_another_outcome_is_made_of_one_by_replacing_what_differs(settled: bool) -> None:
    outcome, _ = lazily({"a": "é"}, status="partial")
    if settled:
        settle(outcome, [])
    same = msgspec.structs.replace(outcome, call_id="c2")
    assert (same.text, same.status, same.call_id, outcome.call_id) == ('{"a":"é"}', "partial", "c2", None)
    other = msgspec.structs.replace(outcome, text="other")
    assert (other.text, size_of(other)) == ("other", 5)
    assert copy.copy(outcome).text == outcome.text
    assert type(same) is cc.Inline


def test_what_was_said_about_the_call_is_carried_and_what_belongs_to_the_value_is_not() -> None:
    effects = (cc.ProposeTransition("s", "r"),)
    outcome, _ = lazily("x", call_id="c1", status="partial", effects=effects, tickets=(TICKET,))
    refused = carried(outcome, cc.TooLarge, text="refused", status="invalid", size=2, max_chars=1)
    assert (refused.tool, refused.call_id, refused.executed, refused.effects) == ("t", "c1", True, effects)
    assert (refused.status, refused.tickets, refused.content) == ("invalid", (), ())
    denied = carried(outcome, cc.Denied, text="no", reason="no", rule="r")
    assert (denied.status, denied.effects) == ("partial", effects)


def test_a_failure_names_the_call_and_says_why() -> None:
    outcome = failed(cc.ToolCall("t", {}, "c1"), "it broke")
    assert (outcome.tool, outcome.call_id, outcome.text, outcome.reason) == ("t", "c1", "it broke", "it broke")
    assert (outcome.executed, outcome.error, outcome.status) == (False, True, None)


# --- for people who read logs ---


def test_a_repr_says_which_outcome_it_is_and_never_dumps_what_it_carries() -> None:
    large = "é" * 10_000_000
    outcome, rendered = lazily({"blob": large}, call_id="call_" + "A" * 1400)
    shown = repr(outcome)
    assert len(shown) < 400
    assert shown.startswith("Inline(tool='t', call_id='call_A")
    assert f"size={rendered.size}" in shown
    assert rendered.decoded is None
    for each in (
        cc.Denied(tool="t", text=large, reason=large, rule="r"),
        cc.Failed(tool="t" * 5000, text=large, reason=large),
        cc.Inline(tool="t", text=render(bytes(1_000_000)), value=bytes(1_000_000)),  # type: ignore[arg-type]
        cc.Pending(tool="t", text="may I?", call=msgspec.structs.replace(QUESTION, arguments={"a": large})),
    ):
        assert len(repr(each)) < 400
        assert type(each).__name__ in repr(each)
        assert len(str(each.__rich_repr__())) < 400


# --- through a boundary ---


async def give() -> Any:
    return {"rows": [1, 2, 3]}


CallNext = Callable[[cc.ToolCall], Awaitable[cc.Outcome]]


@pytest.mark.anyio
async def test_a_host_gets_a_plain_text_whatever_the_chain_did_with_it() -> None:
    settings: list[dict[str, Any]] = [
        {},
        {"placement": cc.Placement(5), "store": "memory:"},
        {"truncation": cc.Truncation(5)},
        {"rules": [cc.after_tool(lambda call, result: cc.allow([1], "less"))]},
        {"on_event": lambda event: None},
    ]
    for setting in settings:
        outcome = await cc.Boundary([give], **setting).session(SCOPE).call("give")
        assert type(outcome.held) is str
        assert type(outcome.text) is str
        assert json.loads(outcome.text)


@pytest.mark.anyio
async def test_a_middleware_may_build_an_outcome_or_replace_what_differs() -> None:
    async def shorten(call: cc.ToolCall, call_next: CallNext) -> cc.Outcome:
        outcome = await call_next(call)
        return msgspec.structs.replace(outcome, text=outcome.text[:6], status="partial")

    async def answer(call: cc.ToolCall, call_next: CallNext) -> cc.Outcome:
        return cc.Inline(tool=call.name, call_id=call.call_id, text="x" * 5000, value=None, executed=True)

    outcome = await cc.Boundary([give], middleware=[shorten]).session(SCOPE).call("give")
    assert isinstance(outcome, cc.Inline)
    assert (outcome.text, outcome.status, outcome.value) == ('{"rows', "partial", {"rows": [1, 2, 3]})
    boundary = cc.Boundary(
        [give], middleware=[cc.inside("ceiling", answer)], store="memory:", placement=cc.Placement(1000)
    )
    session = boundary.session(SCOPE)
    placed = await session.call("give", call_id="c1")
    assert isinstance(placed, cc.Placed)
    artifact = await session.redeem(placed.ticket.ref)
    assert artifact is not None
    assert (artifact.data, artifact.meta.media_type) == (b"x" * 5000, "text/plain")


@pytest.mark.anyio
async def test_the_same_outcome_may_be_handed_out_again() -> None:
    kept: list[cc.Outcome] = []

    async def remember(call: cc.ToolCall, call_next: CallNext) -> cc.Outcome:
        if not kept:
            kept.append(await call_next(call))
        return kept[0]

    session = cc.Boundary([give], middleware=[remember], repeated_call_note=False).session(SCOPE)
    first, second = await session.call("give"), await session.call("give")
    assert first.text == second.text == '{"rows":[1,2,3]}'


# --- a pending call ---


def test_a_pending_call_leaves_the_process_only_where_its_seal_means_something() -> None:
    with pytest.raises(cc.ConfigurationError, match=r"needs Boundary\(secret=\.\.\.\)"):
        QUESTION.to_bytes()
    portable = msgspec.structs.replace(QUESTION, portable=True, seal=b"s")
    assert msgspec.json.decode(portable.to_bytes(), type=cc.PendingCall) == portable


def test_a_marker_has_one_order_of_keys_and_leaves_out_what_is_absent() -> None:
    assert Marker(reason="r").to_json() == '{"truncated":true,"reason":"r"}'
    full = Marker(reason="r", head="h", tail="t", notes=("n",)).to_json()
    assert full == '{"truncated":true,"reason":"r","head":"h","tail":"t","notes":["n"]}'
