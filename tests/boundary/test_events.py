"""What a boundary tells its host while it works: which facts, in which order, and never a payload."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import coatcheck as cc
from coatcheck.artifacts.notices import Notices, UploadFailed, UploadLeft
from coatcheck.events import AnyEvent
from coatcheck.testing import FaultyStore, fail

pytestmark = pytest.mark.anyio

SCOPE = cc.Scope(tenant="acme", conversation="c")
MOVE = {"kind": "propose-transition", "targetSkillId": "billing", "reason": "money"}
PUSH = {"kind": "require-instruction", "instructionId": "refunds", "deliveryLease": "next-call"}
REF = "art_" + "0" * 32


class Both(cc.Rule):
    """Allows, before and after."""

    name = "both"

    def before_tool(self, call: cc.ToolCall) -> Any:
        return cc.allow()

    def after_tool(self, call: cc.ToolCall, result: cc.Result) -> Any:
        return cc.allow(why="seen")


def giving(value: Any, **declarations: Any) -> cc.Tool[..., Any]:
    async def give() -> Any:
        if isinstance(value, Exception):
            raise value
        return value

    return cc.tool(name="give", **declarations)(give)


async def heard(*tools: Callable[..., Any], call: str = "give", **dials: Any) -> tuple[cc.Outcome, list[cc.Event]]:
    """One call with id c1, and the events of it."""
    events: list[cc.Event] = []
    boundary = cc.Boundary(tools, on_event=events.append, **{"rules": [Both()], **dials})
    return await boundary.session(SCOPE).call(call, call_id="c1"), events


def kinds(events: list[cc.Event]) -> list[str]:
    return [type(event).__name__ for event in events]


def only(events: list[cc.Event], kind: type[Any]) -> Any:
    [event] = [event for event in events if isinstance(event, kind)]
    return event


# --- one call of each kind ---

PLACING: dict[str, Any] = {"store": "memory:", "placement": cc.Placement(1000)}
ASKS = cc.before_tool(name="asks")(lambda call: cc.ask("may it?"))
DENIES = cc.before_tool(name="denies")(lambda call: cc.deny("no"))
HIDES = cc.after_tool(name="hides")(lambda call, result: cc.deny("hidden"))
ABSENCE = cc.absent(what="orders", checked=["the table"])


@pytest.mark.parametrize(
    ("tool", "dials", "outcome", "between"),
    [
        (giving("x"), {}, "Inline", ["DecisionMade", "DecisionMade"]),
        (giving("x" * 2000), PLACING, "Placed", ["DecisionMade", "DecisionMade", "ArtifactMinted"]),
        (giving("x" * 2000), {"truncation": cc.Truncation(100)}, "Truncated", ["DecisionMade", "DecisionMade"]),
        (giving("x" * 2000, ceiling=cc.Ceiling(10)), {}, "TooLarge", ["DecisionMade", "ResultRefused", "DecisionMade"]),
        (giving("x"), {"rules": [Both(), DENIES]}, "Denied", ["DecisionMade", "DecisionMade"]),
        (giving("x"), {"rules": [HIDES, Both()]}, "Denied", ["DecisionMade", "DecisionMade", "DecisionMade"]),
        (giving(ValueError("broken")), {}, "Failed", ["DecisionMade", "DecisionMade"]),
        (giving(object()), {}, "Failed", ["DecisionMade", "DecisionMade"]),
        (giving("x"), {"rules": [Both(), ASKS]}, "Pending", ["DecisionMade", "DecisionMade"]),
        (giving(ABSENCE), {}, "Inline", ["DecisionMade", "AbsenceDeclared", "DecisionMade"]),
        (
            giving(cc.coverage(ABSENCE, checked=["eu"])),
            {},
            "Inline",
            ["DecisionMade", "CoverageDeclared", "AbsenceDeclared", "DecisionMade"],
        ),
        (giving({"content": 1, "status": "denied"}), {}, "Inline", ["DecisionMade", "NearMiss", "DecisionMade"]),
        (
            giving(ABSENCE, foreign=True),
            {},
            "Inline",
            ["DecisionMade", "ForeignEnvelope", "AbsenceDeclared", "DecisionMade"],
        ),
        (
            giving({"content": "x" * 2000, "effects": [MOVE, PUSH]}),
            PLACING,
            "Placed",
            ["DecisionMade", "DecisionMade", "ArtifactMinted", "EffectJudged", "EffectJudged"],
        ),
        (
            giving("x" * 2000),
            {**PLACING, "store": FaultyStore(cc.MemoryStore(), put=fail(OSError("503")))},
            "Inline",
            ["DecisionMade", "DecisionMade", "ArtifactRefused"],
        ),
    ],
)
async def test_a_call_begins_and_ends_with_an_event_and_tells_what_happened_in_between_in_order(
    tool: cc.Tool[..., Any], dials: dict[str, Any], outcome: str, between: list[str]
) -> None:
    got, events = await heard(tool, **dials)
    assert kinds(events) == ["ToolStarted", *between, "ToolEnded"]
    assert type(got).__name__ == outcome
    assert {(event.tool, event.call_id, event.turn) for event in events} == {("give", "c1", 1)}
    started, ended = events[0], events[-1]
    assert started == cc.ToolStarted(tool="give", call_id="c1", turn=1, batch=1)
    assert isinstance(ended, cc.ToolEnded)
    assert (ended.outcome, ended.status, ended.error, ended.executed, ended.chars) == (
        outcome,
        got.status,
        got.error,
        got.executed,
        len(got.text),
    )
    assert ended.seconds >= 0


async def test_an_unknown_tool_begins_and_ends_with_an_event_too() -> None:
    _, events = await heard(call="nothing")
    assert kinds(events) == ["ToolStarted", "DecisionMade", "ToolEnded"]
    assert {event.tool for event in events} == {"nothing"}


async def test_arguments_that_are_no_json_begin_and_end_with_an_event_too() -> None:
    events: list[cc.Event] = []
    await cc.Boundary([giving(1)], on_event=events.append).session(SCOPE).call("give", "[", call_id="c1")
    assert kinds(events) == ["ToolStarted", "ToolEnded"]
    assert only(events, cc.ToolEnded).error


async def test_a_batch_is_announced_and_ended_in_call_order() -> None:
    events: list[cc.Event] = []
    session = cc.Boundary([giving("x")], on_event=events.append, repeated_call_note=False).session(SCOPE)
    await session.call_batch([cc.ToolCall("give", {}, str(index)) for index in range(3)])
    assert kinds(events) == ["ToolStarted"] * 3 + ["ToolEnded"] * 3
    assert [event.call_id for event in events] == ["0", "1", "2"] * 2
    assert [event.batch for event in events if isinstance(event, cc.ToolStarted)] == [3, 3, 3]
    assert {event.turn for event in events} == {1}
    await session.call("give")
    assert events[-1].turn == 2


# --- their fields ---


async def test_a_decision_is_the_row_without_what_was_changed() -> None:
    changes = cc.before_tool(name="changes")(lambda call: cc.allow({}, "because"))
    outcome, events = await heard(giving("x"), rules=[changes, Both()])
    made = [event for event in events if isinstance(event, cc.DecisionMade)]
    assert [(e.rule, e.moment, e.outcome, e.changed, e.why) for e in made] == [
        (row.rule, row.moment, row.outcome, row.changed, row.why) for row in outcome.decisions
    ]
    assert [event.changed for event in made] == [True, False, False]
    assert not {"before", "after", "arguments"} & set(cc.DecisionMade.__struct_fields__)


async def test_a_refusal_of_the_ceiling_tells_the_size_and_the_status_that_the_tool_had_declared() -> None:
    value = {"content": "x" * 50, "effects": [], "status": "partial"}
    _, events = await heard(giving(value, ceiling=cc.Ceiling(10, ["limit"])))
    refused = only(events, cc.ResultRefused)
    assert (refused.size, refused.max_chars, refused.narrow_by, refused.declared_status) == (
        50,
        10,
        ("limit",),
        "partial",
    )


async def test_a_minted_artifact_is_told_with_its_meta_and_whether_it_was_new() -> None:
    events: list[cc.Event] = []
    store = cc.MemoryStore(ttl=timedelta(hours=1))
    boundary = cc.Boundary([giving("é" * 1500)], store=store, placement=cc.Placement(1000), on_event=events.append)
    session = boundary.session(SCOPE)
    outcome = await session.call("give", call_id="c1")
    await session.call("give", call_id="c2")
    assert isinstance(outcome, cc.Placed)
    first, second = [event for event in events if isinstance(event, cc.ArtifactMinted)]
    meta = await store.head(SCOPE, outcome.ticket.ref)
    assert meta is not None
    assert (first.ref, first.kind, first.media_type, first.bytes, first.digest, first.label) == (
        meta.ref,
        "tool-result/give",
        "text/plain",
        3000,
        meta.digest,
        meta.label,
    )
    assert (first.created, second.created) == (True, False)
    assert (first.origin, second.origin) == ({"tool": "give", "call_id": "c1"}, {"tool": "give", "call_id": "c2"})
    assert first.expires_at is not None
    assert second.ref == first.ref


async def test_what_a_put_pushes_out_is_told_before_what_it_minted() -> None:
    events: list[cc.Event] = []

    async def give(fill: str) -> str:
        return fill * 1500

    boundary = cc.Boundary(
        [give], store=cc.MemoryStore(max_count=1), placement=cc.Placement(1000), on_event=events.append
    )
    session = boundary.session(SCOPE)
    first = await session.call("give", {"fill": "a"})
    assert isinstance(first, cc.Placed)
    del events[:]
    await session.call("give", {"fill": "b"})
    assert kinds(events) == ["ToolStarted", "ArtifactExpired", "ArtifactMinted", "ToolEnded"]
    expired = only(events, cc.ArtifactExpired)
    assert (expired.ref, expired.kind, expired.bytes, expired.reason) == (
        first.ticket.ref,
        "tool-result/give",
        1500,
        "max-count",
    )


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError("connection refused"), "store-failed"),
        (cc.StoreUnavailable("503"), "store-failed"),
        (RuntimeError("a bug of the store"), "store-failed"),
        (cc.InvalidArtifact("larger than the whole budget"), "invalid-input"),
        (cc.UnknownParent((REF,)), "unknown-parent"),
        (cc.IntegrityError(REF, "sha256:a", "sha256:b"), "digest-mismatch"),
    ],
)
async def test_a_placement_that_fails_tells_its_cause(error: Exception, reason: str) -> None:
    store = FaultyStore(cc.MemoryStore(), put=fail(error))
    outcome, events = await heard(giving("x" * 2000), store=store, placement=cc.Placement(1000))
    assert isinstance(outcome, cc.Inline)
    refused = only(events, cc.ArtifactRefused)
    assert (refused.op, refused.reason) == ("put", reason)
    assert type(error).__name__ in refused.detail
    assert str(error) in refused.detail


async def test_a_redeemed_ref_is_told() -> None:
    events: list[cc.Event] = []
    boundary = cc.Boundary([giving("x" * 2000)], store="memory:", placement=cc.Placement(1000), on_event=events.append)
    session = boundary.session(SCOPE)
    outcome = await session.call("give")
    assert isinstance(outcome, cc.Placed)
    await session.redeem(outcome.ticket.ref)
    assert events[-1] == cc.ArtifactResolved(
        tool=None, call_id=None, turn=1, ref=outcome.ticket.ref, via="get", kind="tool-result/give", bytes=2000
    )


async def test_effects_are_told_with_what_they_asked_for() -> None:
    malformed = {"kind": "propose-transition", "targetSkillId": "x", "reason": " "}
    outcome, events = await heard(giving({"content": 1, "effects": [MOVE, PUSH, malformed]}))
    judged = [event for event in events if isinstance(event, cc.EffectJudged)]
    assert [(e.kind, e.outcome, e.target_skill_id, e.instruction_id, e.delivery_lease) for e in judged] == [
        ("propose-transition", "refused", None, None, None),
        ("propose-transition", "refused", "billing", None, None),
        ("require-instruction", "refused", None, "refunds", "next-call"),
    ]
    assert all(event.reason for event in judged)
    assert len(judged) == len(outcome.notes)


async def test_declared_ground_is_told_as_it_was_declared() -> None:
    absence = cc.absent(
        what="orders", checked=["the table"], not_checked=["the archive"], cannot_cover=[{"what": "us", "why": "far"}]
    )
    _, events = await heard(giving(absence))
    told = only(events, cc.AbsenceDeclared)
    assert (told.looked_for, told.checked, told.not_checked, told.cannot_cover) == (
        "orders",
        ({"what": "the table"},),
        ({"what": "the archive"},),
        ({"what": "us", "why": "far"},),
    )


@pytest.mark.parametrize(
    ("value", "form"),
    [
        ({"content": 1, "effects": [MOVE]}, "envelope"),
        (ABSENCE, "absence"),
        (cc.coverage(1, checked=["eu"]), "ledger"),
    ],
)
async def test_authority_that_a_foreign_tool_relays_is_told_by_its_form(value: Any, form: str) -> None:
    _, events = await heard(giving(value, foreign=True))
    assert only(events, cc.ForeignEnvelope).form == form


async def test_a_near_miss_is_told_with_what_to_write() -> None:
    outcome, events = await heard(giving({"content": 1, "status": "denied"}))
    assert "effects: []" in only(events, cc.NearMiss).hint
    assert outcome.status is None


async def test_a_pending_call_begins_once_and_ends_with_every_answer() -> None:
    events: list[cc.Event] = []
    session = cc.Boundary([giving("x")], rules=[ASKS], on_event=events.append).session(SCOPE)
    outcome = await session.call("give", call_id="c1")
    assert isinstance(outcome, cc.Pending)
    assert kinds(events) == ["ToolStarted", "DecisionMade", "ToolEnded"]
    for answer in ("Inline", "Denied"):
        del events[:]
        await session.resume(outcome.call, approved=True, by="dana")
        assert kinds(events) == ["DecisionMade", "ToolEnded"]
        assert only(events, cc.ToolEnded).outcome == answer
        assert {(event.call_id, event.turn) for event in events} == {("c1", 1)}


# --- meta only ---

MARK = "s3cr3t"


def marked(depth: int) -> Any:
    value: Any = MARK
    for level in range(depth):
        value = {"k": value, "pad": "x" * 50} if level % 2 else [value, MARK]
    return value


@settings(max_examples=40)
@given(
    depth=st.integers(0, 3),
    how=st.sampled_from(
        ["return", "envelope", "absence result", "large", "batch", "json", "denied", "hidden", "ceiling"]
    ),
    changed=st.booleans(),
    sink=st.sampled_from(["inline", "placed", "truncated", "refused"]),
)
async def test_no_event_holds_anything_of_arguments_results_and_payloads(
    depth: int, how: str, changed: bool, sink: str
) -> None:
    events: list[cc.Event] = []

    async def take(value: Any) -> Any:
        match how:
            case "envelope":
                return {"content": value, "effects": [MOVE], "status": "partial"}
            case "absence result":
                return cc.coverage(value, checked=["eu"])
            case "large":
                return [value] * 500
        return value

    class Rules(cc.Rule):
        def before_tool(self, call: cc.ToolCall) -> Any:
            if how == "denied":
                return cc.deny("no")
            return cc.allow({"value": [call.arguments["value"]]}, "wraps") if changed else cc.allow()

        def after_tool(self, call: cc.ToolCall, result: cc.Result) -> Any:
            if how == "hidden":
                return cc.deny("hidden")
            return cc.allow([result.value], "wraps") if changed else cc.allow()

    store = FaultyStore(cc.MemoryStore(), put=fail(OSError("503"))) if sink == "refused" else cc.MemoryStore()
    dials: dict[str, Any] = {}
    if sink in ("placed", "refused"):
        dials = {"store": store, "placement": cc.Placement(5, preview_chars=100)}
    if sink == "truncated":
        dials = {"truncation": cc.Truncation(200)}
    made = cc.tool(name="take", ceiling=cc.Ceiling(1) if how == "ceiling" else None)(take)
    boundary = cc.Boundary([made], rules=[Rules()], on_event=events.append, ledger_values=changed, **dials)
    session = boundary.session(SCOPE)
    arguments = {"value": marked(depth)}
    if how == "batch":
        await session.call_batch([cc.ToolCall("take", arguments)])
    else:
        await session.call("take", msgspec.json.encode(arguments) if how == "json" else arguments)
    assert len(events) >= 3
    for event in events:
        assert MARK not in repr(event)
        assert MARK not in msgspec.json.encode(event).decode()


async def test_wrong_arguments_are_in_no_event() -> None:
    events: list[cc.Event] = []

    async def take(value: int) -> None: ...

    session = cc.Boundary([take], rules=[Both()], on_event=events.append).session(SCOPE)
    for arguments in ({"value": MARK}, {"value": 1, MARK: 1}, f'{{"value": "{MARK}"'):
        await session.call("take", arguments)
    assert len(events) >= 6
    assert MARK not in repr(events)


# --- whoever listens ---


@pytest.mark.parametrize("kind", [ValueError, KeyError, StopIteration, RuntimeError])
async def test_what_on_event_raises_is_logged_and_never_felt(
    kind: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    def listener(event: cc.Event) -> None:
        raise kind("the listener is broken")

    value = {"content": "x" * 2000, "effects": [MOVE], "status": "partial"}
    dials: dict[str, Any] = {**PLACING, "rules": [Both()]}
    quiet = await cc.Boundary([giving(value)], **dials).session(SCOPE).call("give")
    with caplog.at_level(logging.ERROR, logger="coatcheck"):
        outcome = await cc.Boundary([giving(value)], on_event=listener, **dials).session(SCOPE).call("give")
    assert isinstance(outcome, cc.Placed)
    assert (outcome.text, outcome.notes, outcome.decisions) == (quiet.text, quiet.notes, quiet.decisions)
    logged = [record.getMessage() for record in caplog.records]
    for name in ("ToolStarted", "DecisionMade", "ArtifactMinted", "EffectJudged", "ToolEnded"):
        assert [line for line in logged if name in line]


async def test_what_on_event_returns_is_nobodys_business() -> None:
    events: list[cc.Event] = []

    def listener(event: cc.Event) -> list[int]:
        events.append(event)
        return [1]

    outcome = await cc.Boundary([giving("x")], on_event=listener).session(SCOPE).call("give")
    assert outcome.text == "x"
    assert len(events) == 2


# --- what a store tells when no call waits ---


class Telling(FaultyStore):
    """A store that has something to tell, also while it is closed."""

    def __init__(self, **faults: Any) -> None:
        super().__init__(cc.MemoryStore(), **faults)
        self.notices = Notices()

    async def __aexit__(self, *_: object) -> None:
        self.notices.tell(UploadLeft(upload_id="u-2", detail="closing"))


async def test_what_a_store_tells_is_an_event_about_no_call_until_it_is_closed() -> None:
    events: list[cc.Event] = []
    store = Telling()
    async with cc.Boundary(store=store, on_event=events.append):
        store.notices.tell(UploadLeft(upload_id="u-1", detail="503"))
        store.notices.tell(UploadFailed(ref=REF, kind="tool/give", bytes=7, detail="full"))
    store.notices.tell(UploadLeft(upload_id="u-3", detail="too late"))
    about: dict[str, Any] = {"tool": None, "call_id": None, "turn": 0}
    assert events == [
        cc.StoreUploadLeft(**about, upload_id="u-1", detail="503"),
        cc.StoreUploadFailed(**about, ref=REF, kind="tool/give", bytes=7, detail="full"),
        cc.StoreUploadLeft(**about, upload_id="u-2", detail="closing"),
    ]


async def test_what_a_store_tells_is_nothing_to_a_host_that_does_not_listen_or_whose_listener_raises(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(event: cc.Event) -> None:
        raise ValueError("no pager")

    for listener in (None, broken):
        store = Telling()
        async with cc.Boundary(store=store, on_event=listener):
            store.notices.tell(UploadLeft(upload_id="u-1", detail="503"))
    assert "on_event raised on StoreUploadLeft" in caplog.text


async def test_a_boundary_that_could_not_be_opened_does_not_listen() -> None:
    events: list[cc.Event] = []
    store = Telling(enter=fail(OSError("503")))
    with pytest.raises(OSError, match="503"):
        async with cc.Boundary(store=store, on_event=events.append):
            pass
    store.notices.tell(UploadLeft(upload_id="u-1", detail="503"))
    assert events == []


def test_every_event_is_public_and_is_a_plain_value() -> None:
    for kind in get_args(AnyEvent):
        assert getattr(cc, kind.__name__) is kind
        assert issubclass(kind, cc.Event)
        assert kind.__struct_config__.frozen
        assert kind.__doc__
    assert len(get_args(AnyEvent)) == 25
