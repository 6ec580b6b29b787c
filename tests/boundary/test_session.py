"""A conversation at the boundary: its turns, what effects come to, what a ticket is redeemed for; and the dials."""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import anyio
import anyio.lowlevel
import msgspec
import pytest

import coatcheck as cc
from coatcheck.artifacts.ticket import MAX_TICKET_CHARS
from coatcheck.effects.judgement import NOTE_LIMIT
from coatcheck.testing import FaultyStore, ManualClock, fail
from tests.boundary._cancel import all_of

pytestmark = pytest.mark.anyio

SCOPE = cc.Scope(tenant="acme", conversation="c")
MOVE = {"kind": "propose-transition", "targetSkillId": "billing", "reason": "money"}
PUSH = {"kind": "require-instruction", "instructionId": "refunds", "deliveryLease": "next-call"}
BAD = {"kind": "propose-transition", "targetSkillId": ""}


async def echo(**arguments: Any) -> Any:
    return arguments


def giving(value: Any, **declarations: Any) -> cc.Tool[..., Any]:
    async def give() -> Any:
        return value

    return cc.tool(name="give", **declarations)(give)


def opened(*tools: Callable[..., Any], **dials: Any) -> cc.Session:
    return cc.Boundary(tools, **dials).session(SCOPE)


# --- turns and scopes ---


async def test_a_call_without_a_name_that_is_text_is_no_turn() -> None:
    session = opened(echo)
    with pytest.raises(TypeError, match="name must be text, not int"):
        await session.call(7)  # type: ignore[arg-type]
    assert session.turn == 0


def test_what_is_given_in_place_of_a_scope_is_named_by_its_type_and_never_shown() -> None:
    with pytest.raises(cc.ConfigurationError, match="takes a Scope, not dict") as error:
        cc.Boundary([]).session({"tenant": "acme"})  # type: ignore[arg-type]
    assert "acme" not in str(error.value)


async def test_a_call_is_a_turn_and_a_batch_is_one_turn() -> None:
    session = opened(echo)
    assert session.turn == 0
    await session.call("echo")
    await session.call("nothing")
    await session.call_batch([cc.ToolCall("echo")] * 3)
    assert session.turn == 3


@pytest.mark.parametrize("wrong", [None, "c-42", {"conversation": "c"}, cc.Scope])
def test_a_session_is_opened_for_a_scope_and_nothing_else(wrong: Any) -> None:
    with pytest.raises(cc.ConfigurationError, match="Scope"):
        cc.Boundary().session(wrong)


async def test_sessions_of_one_boundary_share_nothing_but_the_boundary() -> None:
    rule = cc.before_tool(name="allow")(lambda call: cc.allow())
    boundary = cc.Boundary([echo], rules=[rule])
    first, second = boundary.session(SCOPE), boundary.session(cc.Scope(conversation="other"))
    await first.call("echo")
    assert (first.turn, second.turn) == (1, 0)
    assert (len(first.decisions), len(second.decisions)) == (1, 0)
    assert boundary.session(SCOPE).decisions == ()


async def test_calls_of_one_session_may_run_at_once() -> None:
    async def take(number: int) -> int:
        for _ in range(5 - number):
            await anyio.lowlevel.checkpoint()
        return number

    session = opened(take)
    outcomes = await all_of(*[lambda number=number: session.call("take", {"number": number}) for number in range(5)])
    assert [outcome.text for outcome in outcomes] == list("01234")
    assert session.turn == 5


# --- effects, where a host has declared nothing to judge them against ---


@pytest.mark.parametrize("effects", [[MOVE], [PUSH], [MOVE, PUSH], [BAD], [MOVE, BAD, PUSH]])
async def test_every_effect_is_refused_with_a_note_on_a_line_of_its_own(effects: list[Any]) -> None:
    outcome = await opened(giving({"content": "the answer", "effects": effects})).call("give")
    assert isinstance(outcome, cc.Inline)
    lines = outcome.text.split("\n")
    assert lines[0] == "the answer"
    assert tuple(lines[1:]) == outcome.notes
    assert len(outcome.notes) == len(effects)
    for note in outcome.notes:
        assert note.startswith("[effect refused: ")
        assert len(note) <= NOTE_LIMIT
    assert len(outcome.effects) + len(outcome.malformed) == len(effects)
    assert not outcome.error


async def test_malformed_effects_are_refused_before_the_valid_ones() -> None:
    outcome = await opened(giving({"content": "x", "effects": [MOVE, BAD]})).call("give")
    assert "targetSkillId" in outcome.notes[0]
    assert '"billing"' in outcome.notes[1]


@pytest.mark.parametrize("effects", [[MOVE], [MOVE, BAD, PUSH]])
async def test_notes_never_break_the_json_of_a_ticket(effects: list[Any]) -> None:
    tool = giving({"content": "x" * 5000, "effects": effects})
    session = opened(tool, store=cc.MemoryStore(), placement=cc.Placement(1000))
    outcome = await session.call("give")
    assert isinstance(outcome, cc.Placed)
    wire = json.loads(outcome.text)
    assert wire["placed"] is True
    assert tuple(wire["notes"]) == outcome.notes == outcome.ticket.notes
    assert len(outcome.notes) == len(effects)
    assert outcome.tickets == (outcome.ticket,)
    artifact = await session.redeem(wire["ref"])
    assert artifact is not None
    assert artifact.data == b"x" * 5000, "a note is no part of the payload"


async def test_a_ticket_without_effects_has_no_notes() -> None:
    outcome = await opened(giving("x" * 5000), store=cc.MemoryStore(), placement=cc.Placement(1000)).call("give")
    assert "notes" not in json.loads(outcome.text)


@pytest.mark.parametrize("limit", [1, 50, 200, 300, 1000])
async def test_notes_never_break_the_json_of_a_marker(limit: int) -> None:
    tool = giving({"content": 'x"\n' * 2000, "effects": [MOVE, BAD]})
    outcome = await opened(tool, truncation=cc.Truncation(limit)).call("give")
    assert isinstance(outcome, cc.Truncated)
    wire = json.loads(outcome.text)
    assert wire["truncated"] is True
    assert tuple(wire["notes"]) == outcome.notes == outcome.marker.notes
    assert len(outcome.notes) == 2


@pytest.mark.parametrize("limit", [1, 60, 300])
async def test_notes_never_break_the_json_of_a_refusal_or_a_denial_that_was_cut(limit: int) -> None:
    value = {"content": "x" * 5000, "effects": [MOVE, BAD]}
    hide = cc.after_tool(name="hide")(lambda call, result: cc.deny('"hidden"\n' * 200))
    for session in (
        opened(giving(value, ceiling=cc.Ceiling(10, ["rows"] * 200)), truncation=cc.Truncation(limit)),
        opened(giving(value), rules=[hide], truncation=cc.Truncation(limit)),
    ):
        outcome = await session.call("give")
        assert isinstance(outcome, (cc.TooLarge, cc.Denied))
        assert outcome.cut
        assert len(outcome.notes) == 2
        assert tuple(json.loads(outcome.text)["notes"]) == outcome.notes


async def test_notes_of_a_refusal_that_was_not_cut_stand_on_lines_of_their_own() -> None:
    outcome = await opened(giving({"content": "x" * 50, "effects": [MOVE]}, ceiling=cc.Ceiling(10))).call("give")
    assert isinstance(outcome, cc.TooLarge)
    assert outcome.text.split("\n")[1:] == list(outcome.notes)
    assert len(outcome.notes) == 1


async def test_effects_of_a_call_that_failed_or_did_not_run_are_not_judged() -> None:
    events: list[cc.Event] = []

    async def fails() -> Any:
        raise ValueError({"content": 1, "effects": [MOVE]})

    deny = cc.before_tool(name="no")(lambda call: cc.deny("no") if call.name == "give" else cc.allow())
    session = opened(fails, giving({"content": 1, "effects": [MOVE]}), rules=[deny], on_event=events.append)
    await session.call("fails")
    await session.call("give")
    unrenderable = opened(giving({"content": object(), "effects": [MOVE]}), on_event=events.append)
    outcome = await unrenderable.call("give")
    assert isinstance(outcome, cc.Failed)
    assert not [event for event in events if isinstance(event, cc.EffectJudged)]


@pytest.mark.parametrize("executed", [False, True])
async def test_effects_that_a_middleware_hands_out_are_judged_only_of_a_call_that_ran(executed: bool) -> None:
    async def answers(call: cc.ToolCall, call_next: Any) -> cc.Outcome:
        effect = cc.ProposeTransition("billing", "money")
        return cc.Inline(tool=call.name, text="x", value="x", effects=(effect,), executed=executed)

    outcome = await opened(echo, middleware=[answers]).call("echo")
    assert len(outcome.notes) == executed


async def test_an_effect_inside_the_content_is_content() -> None:
    outcome = await opened(
        giving({"content": {"content": 1, "effects": [MOVE]}, "effects": [], "status": "success"})
    ).call("give")
    assert (outcome.effects, outcome.notes) == ((), ())


# --- statuses and coverage ---


@pytest.mark.parametrize("status", cc.STATUSES)
async def test_a_status_that_a_tool_spells_is_delivered_and_is_never_an_error(status: str) -> None:
    outcome = await opened(giving({"content": 1, "effects": [], "status": status})).call("give")
    assert (outcome.status, outcome.error) == (status, False)


async def test_the_boundary_delivers_a_status_of_its_own_in_two_cases_only() -> None:
    absence = cc.absent(what="orders", checked=["the table"])
    assert (await opened(giving(absence)).call("give")).status == "absent"
    refused = await opened(
        giving({"content": "x" * 50, "effects": [], "status": "success"}, ceiling=cc.Ceiling(10))
    ).call("give")
    assert refused.status == "invalid"
    deny = cc.before_tool(name="no")(lambda call: cc.deny("no"))
    assert (await opened(giving(1), rules=[deny]).call("give")).status is None
    assert (await opened(giving(1)).call("give", {"x": 1})).status is None
    assert (await opened(giving(object())).call("give")).status is None
    assert (await opened(giving([])).call("give")).status is None


async def test_coverage_survives_a_ceiling_a_placement_and_a_cut() -> None:
    value = cc.coverage("x" * 5000, checked=["eu"], not_checked=["us"])
    for session, kind in (
        (opened(giving(value, ceiling=cc.Ceiling(10))), cc.TooLarge),
        (opened(giving(value), store=cc.MemoryStore(), placement=cc.Placement(1000)), cc.Placed),
        (opened(giving(value), truncation=cc.Truncation(1000)), cc.Truncated),
    ):
        outcome = await session.call("give")
        assert isinstance(outcome, kind)
        assert [fact.kind for fact in outcome.declared] == ["ledger"]
        assert session.declared_coverage == outcome.declared


# --- redeeming ---


async def test_a_ticket_is_redeemed_in_its_conversation_for_exactly_what_was_stored() -> None:
    session = opened(giving({"rows": ["é"] * 1000}), store=cc.MemoryStore(), placement=cc.Placement(100))
    outcome = await session.call("give", call_id="c1")
    assert isinstance(outcome, cc.Placed)
    artifact = await session.redeem(outcome.ticket.ref)
    assert artifact is not None
    assert json.loads(artifact.data) == {"rows": ["é"] * 1000}
    assert (artifact.meta.ref, artifact.meta.kind, artifact.meta.media_type, artifact.meta.bytes) == (
        outcome.ticket.ref,
        "tool-result/give",
        "application/json",
        len(artifact.data),
    )
    assert artifact.meta.origin == {"tool": "give", "call_id": "c1"}


@pytest.mark.parametrize(
    "ref",
    ["", "art_", "art_" + "0" * 32, "art_" + "A" * 32, "../../etc/passwd", "a" * 10_000, "\x00", "\ud800", "art_%2e"],
)
async def test_a_ref_that_opens_nothing_is_none(ref: str) -> None:
    events: list[cc.Event] = []
    session = opened(store=cc.MemoryStore(), on_event=events.append)
    assert await session.redeem(ref) is None
    [event] = events
    assert isinstance(event, cc.ArtifactRefused)
    assert (event.op, event.reason) == ("get", "missing-or-expired")
    assert len(event.ref or "") <= 64


async def test_a_ref_of_another_conversation_is_none_like_a_missing_one() -> None:
    events: list[cc.Event] = []
    boundary = cc.Boundary(
        [giving("x" * 500)], store=cc.MemoryStore(), placement=cc.Placement(100), on_event=events.append
    )
    outcome = await boundary.session(SCOPE).call("give")
    assert isinstance(outcome, cc.Placed)
    del events[:]
    stranger = boundary.session(cc.Scope(tenant="acme", conversation="d"))
    assert await stranger.redeem(outcome.ticket.ref) is None
    assert await stranger.redeem("art_" + "0" * 32) is None
    first, second = events
    assert msgspec.structs.replace(first, ref=None) == msgspec.structs.replace(second, ref=None)


async def test_an_expired_ref_is_none() -> None:
    clock = ManualClock()
    store = cc.MemoryStore(ttl=timedelta(minutes=1), clock=clock)
    session = opened(giving("x" * 500), store=store, placement=cc.Placement(100))
    outcome = await session.call("give")
    assert isinstance(outcome, cc.Placed)
    assert await session.redeem(outcome.ticket.ref) is not None
    clock.advance(60)
    assert await session.redeem(outcome.ticket.ref) is None


async def test_a_damaged_payload_is_an_error_and_an_event_and_never_a_result() -> None:
    events: list[cc.Event] = []
    damage = cc.IntegrityError("art_" + "0" * 32, "sha256:aa", "sha256:bb")
    store = FaultyStore(cc.MemoryStore(), get=fail(damage))
    session = opened(store=store, on_event=events.append)
    with pytest.raises(cc.IntegrityError):
        await session.redeem("art_" + "0" * 32)
    [event] = events
    assert isinstance(event, cc.ArtifactRefused)
    assert (event.op, event.reason, event.ref) == ("get", "digest-mismatch", damage.ref)


async def test_a_store_that_cannot_answer_raises() -> None:
    session = opened(store=FaultyStore(cc.MemoryStore(), get=fail(cc.StoreUnavailable("503"))))
    with pytest.raises(cc.StoreUnavailable):
        await session.redeem("art_" + "0" * 32)


async def test_redeeming_without_a_store_is_a_mistake_of_the_host() -> None:
    with pytest.raises(cc.ConfigurationError, match="store"):
        await opened(echo).redeem("art_" + "0" * 32)


# --- the boundary's dials ---


def test_a_placement_without_a_store_is_refused_by_the_setting_it_lacks() -> None:
    with pytest.raises(cc.ConfigurationError, match=r"Boundary\(store=\.\.\.\)"):
        cc.Boundary(placement=cc.Placement(100))


@pytest.mark.parametrize("limit", [1, MAX_TICKET_CHARS - 1])
def test_a_truncation_that_could_cut_a_ticket_is_refused(limit: int) -> None:
    with pytest.raises(cc.ConfigurationError, match=r"Truncation\.max_chars") as refusal:
        cc.Boundary(store="memory:", placement=cc.Placement(10), truncation=cc.Truncation(limit))
    assert str(MAX_TICKET_CHARS) in str(refusal.value)
    cc.Boundary(truncation=cc.Truncation(limit))
    cc.Boundary(store="memory:", placement=cc.Placement(10), truncation=cc.Truncation(MAX_TICKET_CHARS))


@pytest.mark.parametrize("preview", [1, 100, 1000])
async def test_a_preview_raises_the_least_truncation_to_the_largest_ticket_with_it(preview: int) -> None:
    with pytest.raises(cc.ConfigurationError, match="preview_chars") as refusal:
        cc.Boundary(
            store="memory:",
            placement=cc.Placement(10, preview_chars=preview),
            truncation=cc.Truncation(MAX_TICKET_CHARS),
        )
    least = next(int(word) for word in str(refusal.value).split() if word.isdigit() and int(word) > MAX_TICKET_CHARS)
    for payload in ("\x00" * 5000, '"' * 5000, "\U0001f600" * 5000, "\\\n" * 5000):
        session = opened(
            cc.tool(name="n" * 128, kind="k" * 128)(giving(payload).function),
            store=cc.MemoryStore(),
            placement=cc.Placement(10, preview_chars=preview),
            truncation=cc.Truncation(least),
        )
        outcome = await session.call("n" * 128)
        assert isinstance(outcome, cc.Placed)
        assert len(outcome.text) <= least
        assert json.loads(outcome.text)["placed"] is True


@pytest.mark.parametrize(
    ("dials", "setting"),
    [
        ({"rule_timeout": 0}, "rule_timeout"),
        ({"rule_timeout": -1}, "rule_timeout"),
        ({"rule_timeout": True}, "rule_timeout"),
        ({"rule_timeout": float("nan")}, "rule_timeout"),
        ({"rule_timeout": "10s"}, "rule_timeout"),
        ({"rule_timeout": None}, "rule_timeout"),
        ({"concurrency": 0}, "concurrency"),
        ({"concurrency": -5}, "concurrency"),
        ({"concurrency": 2.0}, "concurrency"),
        ({"concurrency": True}, "concurrency"),
        ({"concurrency": "4"}, "concurrency"),
        ({"on_event": "print"}, "on_event"),
        ({"on_event": 5}, "on_event"),
        ({"on_event": echo}, "on_event"),
        ({"approvals": object()}, "approvals"),
        ({"approvals": "redis"}, "approvals"),
        ({"clock": 5}, "clock"),
        ({"ledger_values": 1}, "ledger_values"),
        ({"ledger_values": None}, "ledger_values"),
        ({"truncation": 2000}, "truncation"),
        ({"truncation": cc.Placement(5)}, "truncation"),
        ({"placement": 2000, "store": "memory:"}, "placement"),
        ({"placement": cc.Truncation(5), "store": "memory:"}, "placement"),
        ({"store": 5}, "store"),
        ({"store": object()}, "store"),
        ({"store": "nowhere"}, "store"),
        ({"store": "ftp://x"}, "ftp"),
    ],
)
def test_a_dial_that_cannot_be_honoured_is_refused_by_name(dials: dict[str, Any], setting: str) -> None:
    with pytest.raises(cc.ConfigurationError, match=setting):
        cc.Boundary([echo], **dials)


# --- the lifespan ---


class Lifespan(cc.MemoryStore):
    """A store that counts how often it was opened and closed."""

    def __init__(self) -> None:
        super().__init__()
        self.opened = 0
        self.closed = 0

    async def __aenter__(self) -> Self:
        self.opened += 1
        return await super().__aenter__()

    async def __aexit__(self, *exc: Any) -> None:
        self.closed += 1


async def test_the_boundary_opens_its_store_once_and_closes_it() -> None:
    store = Lifespan()
    boundary = cc.Boundary([echo], store=store)
    async with boundary as entered:
        assert entered is boundary
        assert (store.opened, store.closed) == (1, 0)
        await boundary.session(SCOPE).call("echo")
        await boundary.session(SCOPE).call("echo")
    assert (store.opened, store.closed) == (1, 1)
    async with boundary:
        assert store.opened == 2
    assert store.closed == 2


async def test_the_store_is_closed_when_the_body_raises() -> None:
    store = Lifespan()
    with pytest.raises(RuntimeError, match="the server crashed"):
        async with cc.Boundary(store=store):
            raise RuntimeError("the server crashed")
    assert store.closed == 1


async def test_a_boundary_that_is_open_is_not_opened_again() -> None:
    store = Lifespan()
    async with cc.Boundary(store=store) as boundary:
        with pytest.raises(cc.ConfigurationError, match="open already"):
            await boundary.__aenter__()
        assert (store.opened, store.closed) == (1, 0)
    assert store.closed == 1


async def test_a_store_that_cannot_be_opened_leaves_the_boundary_closed() -> None:
    store = FaultyStore(cc.MemoryStore(), enter=fail(cc.StoreUnavailable("no disk"), calls=1))
    boundary = cc.Boundary(store=store)
    with pytest.raises(cc.StoreUnavailable):
        await boundary.__aenter__()
    async with boundary:
        assert store.calls["enter"] == 2


async def test_a_store_may_be_given_as_a_url() -> None:
    with tempfile.TemporaryDirectory() as directory:
        url = f"{Path(directory).as_uri()}/artifacts"
        boundary = cc.Boundary([giving("x" * 500)], store=url, placement=cc.Placement(100))
        assert isinstance(boundary.store, cc.DirectoryStore)
        async with boundary:
            session = boundary.session(SCOPE)
            outcome = await session.call("give")
            assert isinstance(outcome, cc.Placed)
        async with cc.Boundary(store=url) as other:
            artifact = await other.session(SCOPE).redeem(outcome.ticket.ref)
            assert artifact is not None
            assert artifact.data == b"x" * 500
    assert isinstance(cc.Boundary(store="memory:").store, cc.MemoryStore)


async def test_a_store_that_was_never_opened_fails_no_call() -> None:
    events: list[cc.Event] = []
    store = FaultyStore(cc.MemoryStore(), put=fail(cc.StoreUnavailable("open the store first")))
    session = opened(giving("x" * 500), store=store, placement=cc.Placement(100), on_event=events.append)
    outcome = await session.call("give")
    assert isinstance(outcome, cc.Inline)
    assert outcome.text == "x" * 500
    [refused] = [event for event in events if isinstance(event, cc.ArtifactRefused)]
    assert "StoreUnavailable" in (refused.detail or "")


async def test_a_boundary_works_without_being_opened_where_nothing_has_to_be() -> None:
    assert (await opened(echo).call("echo")).text == "{}"


async def test_closing_a_boundary_where_nothing_runs_reports_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="coatcheck"):
        async with cc.Boundary([echo]) as boundary:
            await boundary.session(SCOPE).call("echo")
    assert caplog.records == []
