"""A person's yes: bound to one call, exactly as it was asked about, and good for one use of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import coatcheck as cc
from coatcheck.boundary.session import MAX_LEDGER_ROWS
from coatcheck.testing import ManualClock
from coatcheck.testing.strategies import json_values
from tests.boundary._cancel import all_of, cancelled_everywhere

pytestmark = pytest.mark.anyio

SCOPE = cc.Scope(tenant="acme", principal="dana", conversation="c")
SECRET = "a secret of a good length"


class Transfers:
    """A tool that must not run twice."""

    def __init__(self) -> None:
        self.done: list[int] = []

    async def __call__(self, amount: int, note: str = "") -> str:
        await anyio.lowlevel.checkpoint()
        self.done.append(amount)
        return f"moved {amount}"


class Asks(cc.Rule):
    def __init__(self, name: str = "asks", question: str = "Move the money?", detail: Any = None) -> None:
        self.name = name
        self._ask = cc.ask(question, detail)

    def before_tool(self, call: cc.ToolCall) -> Any:
        return self._ask


def desk(*rules: object, **dials: Any) -> tuple[Transfers, cc.Boundary]:
    transfers = Transfers()
    settings: dict[str, Any] = {"secret": SECRET, **dials}
    return transfers, cc.Boundary([cc.tool(name="transfer")(transfers)], rules=rules or [Asks()], **settings)


async def asked(session: cc.Session, **arguments: Any) -> cc.PendingCall:
    outcome = await session.call("transfer", {"amount": 5, **arguments}, call_id="c1")
    assert isinstance(outcome, cc.Pending), outcome.text
    return outcome.call


def reasons(outcome: cc.Outcome) -> str:
    assert isinstance(outcome, cc.Denied), outcome.text
    assert not outcome.executed
    assert outcome.text == outcome.reason
    return outcome.text


# --- the question ---


@pytest.mark.parametrize("listening", [False, True])
async def test_a_call_that_is_asked_about_is_pending_and_has_not_run(listening: bool) -> None:
    clock = ManualClock()
    transfers, boundary = desk(
        Asks(detail={"risk": "high"}), clock=clock, on_event=(lambda event: None) if listening else None
    )
    session = boundary.session(SCOPE)
    outcome = await session.call("transfer", {"amount": 5}, call_id="c1")
    assert isinstance(outcome, cc.Pending)
    assert (outcome.executed, outcome.error, outcome.status, outcome.call_id) == (False, False, None, "c1")
    assert "Move the money?" in outcome.text
    assert "not run" in outcome.text
    call = outcome.call
    assert (call.tool, call.arguments, call.call_id, call.scope) == ("transfer", {"amount": 5}, "c1", SCOPE)
    assert (call.rule, call.index, call.rules, call.question, call.detail) == (
        "asks",
        0,
        ("asks",),
        "Move the money?",
        {"risk": "high"},
    )
    assert call.asked_at == clock.now
    assert call.expires_at == clock.now + timedelta(hours=24)
    assert outcome.decisions == (cc.Decision("asks", "before-tool", "transfer", "c1", "ask", why="Move the money?"),)
    assert transfers.done == []


async def test_the_text_for_the_model_opens_nothing() -> None:
    _, boundary = desk()
    outcome = await boundary.session(SCOPE).call("transfer", {"amount": 5})
    assert isinstance(outcome, cc.Pending)
    assert outcome.call.id not in outcome.text
    assert SECRET not in repr(outcome)


async def test_the_rules_behind_the_asking_one_are_not_asked_before_the_answer() -> None:
    log: list[str] = []

    @cc.before_tool
    def later(call: cc.ToolCall) -> Any:
        log.append("asked")
        return cc.allow()

    _, boundary = desk(Asks(), later)
    session = boundary.session(SCOPE)
    pending = await asked(session)
    assert log == []
    outcome = await session.resume(pending, approved=True, by="dana")
    assert log == ["asked"]
    assert [(row.rule, row.outcome) for row in outcome.decisions] == [("asks", "allow"), ("later", "allow")]


@pytest.mark.parametrize(
    ("arguments", "detail"),
    [
        ({"amount": float("nan")}, None),
        ({"amount": object()}, None),
        ({"amount": 5}, float("inf")),
        ({"amount": 5}, object()),
    ],
)
async def test_a_question_that_cannot_be_carried_to_another_process_is_a_denial(arguments: Any, detail: Any) -> None:
    transfers, boundary = desk(Asks(detail=detail))
    outcome = await boundary.session(SCOPE).call("transfer", arguments)
    assert isinstance(outcome, cc.Denied)
    assert [row.outcome for row in outcome.decisions] == ["deny"]
    assert transfers.done == []


# --- the answer ---


@pytest.mark.parametrize("as_bytes", [False, True])
async def test_an_approved_call_runs_once_with_the_arguments_that_were_asked_about(as_bytes: bool) -> None:
    transfers, boundary = desk()
    session = boundary.session(SCOPE)
    pending = await asked(session, note="né")
    outcome = await session.resume(
        pending.to_bytes() if as_bytes else pending, approved=True, by="dana", note="it is fine"
    )
    assert isinstance(outcome, cc.Inline)
    assert (outcome.text, outcome.call_id, outcome.executed, outcome.tool) == ("moved 5", "c1", True, "transfer")
    assert outcome.decisions == (
        cc.Decision("asks", "before-tool", "transfer", "c1", "allow", why="approved by dana: it is fine"),
    )
    assert session.decisions[-1] == outcome.decisions[0]
    assert transfers.done == [5]


async def test_a_declined_call_does_not_run_and_the_model_reads_who_said_why() -> None:
    transfers, boundary = desk()
    session = boundary.session(SCOPE)
    outcome = await session.resume(await asked(session), approved=False, by="dana", note="too much")
    assert isinstance(outcome, cc.Denied)
    assert (outcome.rule, outcome.status, outcome.error, outcome.executed) == ("asks", None, False, False)
    for part in ("transfer did not run", "dana", "too much"):
        assert part in outcome.text
    assert outcome.decisions == (cc.Decision("asks", "before-tool", "transfer", "c1", "deny", why=outcome.reason),)
    assert transfers.done == []


async def test_a_no_uses_the_approval_up_as_a_yes_does() -> None:
    transfers, boundary = desk()
    session = boundary.session(SCOPE)
    pending = await asked(session)
    await session.resume(pending, approved=False, by="dana")
    assert "used already" in reasons(await session.resume(pending, approved=True, by="mallory"))
    assert transfers.done == []


@pytest.mark.parametrize("approved", [1, "yes", "true", "True", None, [], {"approved": True}, object()])
async def test_an_answer_that_is_not_exactly_true_is_a_no(approved: Any) -> None:
    transfers, boundary = desk()
    session = boundary.session(SCOPE)
    pending = await asked(session)
    reasons(await session.resume(pending, approved=approved, by="dana"))
    assert transfers.done == []


@pytest.mark.parametrize(
    ("by", "note"), [("", None), (" ", None), (None, None), (5, None), (b"dana", None), ("dana", 5), ("dana", b"x")]
)
async def test_an_answer_of_nobody_or_without_words_is_a_no(by: Any, note: Any) -> None:
    transfers, boundary = desk()
    session = boundary.session(SCOPE)
    pending = await asked(session)
    reasons(await session.resume(pending, approved=True, by=by, note=note))
    assert transfers.done == []


async def test_arguments_are_checked_again_when_an_approved_call_runs() -> None:
    transfers, boundary = desk()
    session = boundary.session(SCOPE)
    outcome = await session.call("transfer", {"amount": "much"})
    assert isinstance(outcome, cc.Pending), "rules are asked before arguments are checked"
    resumed = await session.resume(outcome.call, approved=True, by="dana")
    assert isinstance(resumed, cc.Failed)
    assert "`$.amount`" in resumed.text
    assert transfers.done == []


async def test_a_rule_behind_the_asking_one_may_still_deny_or_change_the_call() -> None:
    deny = cc.before_tool(name="limit")(lambda call: cc.deny("over the limit"))
    transfers, boundary = desk(Asks(), deny)
    session = boundary.session(SCOPE)
    outcome = await session.resume(await asked(session), approved=True, by="dana")
    assert (type(outcome), outcome.text, transfers.done) == (cc.Denied, "over the limit", [])
    assert [(row.rule, row.outcome) for row in outcome.decisions] == [("asks", "allow"), ("limit", "deny")]

    cap = cc.before_tool(name="cap")(lambda call: cc.allow({"amount": 1}, "caps"))
    transfers, boundary = desk(Asks(), cap)
    session = boundary.session(SCOPE)
    await session.resume(await asked(session), approved=True, by="dana")
    assert transfers.done == [1]


async def test_a_rule_before_the_asking_one_is_not_asked_twice() -> None:
    asked_about: list[Any] = []

    @cc.before_tool
    def doubles(call: cc.ToolCall) -> Any:
        asked_about.append(call.arguments)
        return cc.allow({"amount": call.arguments["amount"] * 2}, "doubles")

    transfers, boundary = desk(doubles, Asks())
    session = boundary.session(SCOPE)
    pending = await asked(session)
    assert (pending.arguments, pending.index) == ({"amount": 10}, 1)
    await session.resume(pending, approved=True, by="dana")
    assert (asked_about, transfers.done) == ([{"amount": 5}], [10])


async def test_a_second_question_is_a_denial_because_one_approval_answers_one_question() -> None:
    transfers, boundary = desk(Asks(), Asks("also asks", "Really?"))
    session = boundary.session(SCOPE)
    outcome = await session.resume(await asked(session), approved=True, by="dana")
    assert isinstance(outcome, cc.Denied)
    assert outcome.rule == "also asks"
    assert "Really?" in outcome.text
    assert [(row.rule, row.outcome) for row in outcome.decisions] == [("asks", "allow"), ("also asks", "deny")]
    assert transfers.done == []


async def test_the_rules_after_the_tool_see_an_approved_call_like_any_other() -> None:
    hide = cc.after_tool(name="hide")(lambda call, result: cc.deny("hidden"))
    transfers, boundary = desk(hide, Asks())
    session = boundary.session(SCOPE)
    outcome = await session.resume(await asked(session), approved=True, by="dana")
    assert (type(outcome), outcome.executed, transfers.done) == (cc.Denied, True, [5])


async def test_an_approved_result_is_placed_and_its_effects_are_judged_like_any_others() -> None:
    async def report() -> Any:
        effect = {"kind": "propose-transition", "targetSkillId": "billing", "reason": "money"}
        return {"content": "x" * 5000, "effects": [effect], "status": "partial"}

    boundary = cc.Boundary([report], rules=[Asks()], store=cc.MemoryStore(), placement=cc.Placement(1000))
    session = boundary.session(SCOPE)
    outcome = await session.call("report")
    assert isinstance(outcome, cc.Pending)
    resumed = await session.resume(outcome.call, approved=True, by="dana")
    assert isinstance(resumed, cc.Placed)
    assert (resumed.status, len(resumed.notes)) == ("partial", 1)


async def test_a_middleware_that_changes_arguments_cannot_change_what_was_approved() -> None:
    """It stands outside the rules and runs again on resume; the yes was to what it had made the first time."""

    async def doubles(call: cc.ToolCall, call_next: Any) -> cc.Outcome:
        amount = call.arguments["amount"] * 2
        outcome: cc.Outcome = await call_next(cc.ToolCall(call.name, {"amount": amount}, call.call_id))
        return outcome

    transfers, boundary = desk(middleware=[doubles])
    session = boundary.session(SCOPE)
    pending = await asked(session)
    assert pending.arguments == {"amount": 10}
    await session.resume(pending, approved=True, by="dana")
    assert transfers.done == [10]


# --- another process, another time ---


async def test_another_replica_with_the_same_secret_and_rules_goes_on() -> None:
    _, here = desk()
    data = (await asked(here.session(SCOPE))).to_bytes()
    transfers, there = desk()
    outcome = await there.session(SCOPE).resume(data, approved=True, by="dana")
    assert (outcome.text, transfers.done) == ("moved 5", [5])


async def test_without_a_secret_a_pending_call_is_good_in_its_own_process_and_makes_no_bytes() -> None:
    transfers, boundary = desk(secret=None)
    session = boundary.session(SCOPE)
    pending = await asked(session)
    with pytest.raises(cc.ConfigurationError, match="secret"):
        pending.to_bytes()
    _, other = desk(secret=None)
    reasons(await other.session(SCOPE).resume(pending, approved=True, by="dana"))
    assert (await session.resume(pending, approved=True, by="dana")).text == "moved 5"
    assert transfers.done == [5]


async def test_another_secret_opens_nothing() -> None:
    _, here = desk()
    pending = await asked(here.session(SCOPE))
    for secret in ("another secret of a good length", None):
        transfers, there = desk(secret=secret)
        for form in (pending, pending.to_bytes()):
            reasons(await there.session(SCOPE).resume(form, approved=True, by="dana"))
        assert transfers.done == []


@pytest.mark.parametrize(
    "other",
    [
        cc.Scope(tenant="acme", principal="dana", conversation="d"),
        cc.Scope(tenant="acme", principal="eve", conversation="c"),
        cc.Scope(tenant="evil", principal="dana", conversation="c"),
        cc.Scope(principal="dana", conversation="c"),
    ],
)
async def test_another_scope_declines_and_does_not_use_the_approval_up(other: cc.Scope) -> None:
    transfers, boundary = desk()
    session = boundary.session(SCOPE)
    pending = await asked(session)
    assert "another conversation" in reasons(await boundary.session(other).resume(pending, approved=True, by="dana"))
    assert transfers.done == []
    await session.resume(pending, approved=True, by="dana")
    assert transfers.done == [5]


@pytest.mark.parametrize("rules", [[], ["other"], ["asks", "other"], ["other", "asks"], ["asks", "asks"]])
async def test_changed_rules_decline(rules: list[str]) -> None:
    _, boundary = desk()
    pending = await asked(boundary.session(SCOPE))
    transfers = Transfers()
    changed = cc.Boundary([cc.tool(name="transfer")(transfers)], rules=[Asks(name) for name in rules], secret=SECRET)
    assert "rules" in reasons(await changed.session(SCOPE).resume(pending, approved=True, by="dana"))
    assert transfers.done == []


async def test_an_approval_is_good_until_it_expires_and_not_at_that_very_moment() -> None:
    for wait, runs in ((59.999, True), (60, False), (61, False)):
        clock = ManualClock()
        transfers, boundary = desk(clock=clock, approval_ttl=timedelta(minutes=1))
        session = boundary.session(SCOPE)
        pending = await asked(session)
        clock.advance(wait)
        outcome = await session.resume(pending, approved=True, by="dana")
        assert transfers.done == ([5] if runs else [])
        if not runs:
            assert "expired" in reasons(outcome)


async def test_a_pending_call_keeps_the_turn_in_which_it_was_asked() -> None:
    events: list[cc.Event] = []
    _, boundary = desk(on_event=events.append)
    session = boundary.session(SCOPE)
    pending = await asked(session)
    await asked(session)
    del events[:]
    await session.resume(pending, approved=True, by="dana")
    assert {event.turn for event in events} == {1}
    assert session.turn == 2


# --- nobody changes anything ---

FOREIGN: dict[str, Any] = {
    "id": "another",
    "tool": "other",
    "arguments": {"amount": 6},
    "call_id": "c2",
    "scope": cc.Scope(conversation="d"),
    "rule": "other",
    "index": 1,
    "rules": ("other",),
    "question": "Other?",
    "detail": {"x": 1},
    "turn": 9,
    "asked_at": timedelta(days=-1),
    "expires_at": timedelta(days=365),
    "seal": b"",
    "portable": False,
}


def test_every_field_of_a_pending_call_is_tampered_with_below() -> None:
    assert set(FOREIGN) == set(cc.PendingCall.__struct_fields__)


@pytest.mark.parametrize("field", list(FOREIGN))
async def test_a_pending_call_with_one_field_changed_declines(field: str) -> None:
    transfers, boundary = desk()
    session = boundary.session(SCOPE)
    pending = await asked(session)
    other = FOREIGN[field]
    if isinstance(other, timedelta):
        other = getattr(pending, field) + other
    changed = msgspec.structs.replace(pending, **{field: other})
    assert changed != pending
    for form in (changed, msgspec.json.encode(changed)):
        reasons(await session.resume(form, approved=True, by="dana"))
    assert transfers.done == []
    assert (await session.resume(pending, approved=True, by="dana")).text == "moved 5", "the true one is still good"


@pytest.mark.parametrize("field", list(FOREIGN))
@pytest.mark.parametrize("nonsense", [None, 5, "x", b"\xff", object(), "\ud800", [[]], float("nan")])
async def test_a_pending_call_with_nonsense_in_a_field_declines_and_crashes_nothing(field: str, nonsense: Any) -> None:
    transfers, boundary = desk(Asks(detail={"risk": "high"}))
    session = boundary.session(SCOPE)
    pending = await asked(session)
    outcome = await session.resume(msgspec.structs.replace(pending, **{field: nonsense}), approved=True, by="dana")
    reasons(outcome).encode()
    assert transfers.done == []
    assert session.to_bytes()


@pytest.mark.parametrize("field", [*FOREIGN, "tenant", "conversation"])
async def test_bytes_with_one_field_changed_decline(field: str) -> None:
    transfers, boundary = desk()
    session = boundary.session(SCOPE)
    wire = json.loads((await asked(session)).to_bytes())
    holder = wire["scope"] if field in ("tenant", "conversation") else wire
    for other in (None, 5, "x", [], {}, True, [1], {"amount": 6}, "2099-01-01T00:00:00Z"):
        if other == holder[field]:
            continue
        changed = json.loads(json.dumps(wire))
        (changed["scope"] if field in ("tenant", "conversation") else changed)[field] = other
        reasons(await session.resume(json.dumps(changed).encode(), approved=True, by="dana"))
    without = {name: value for name, value in wire.items() if name != field}
    if without != wire:
        reasons(await session.resume(json.dumps(without).encode(), approved=True, by="dana"))
    assert transfers.done == []


@pytest.mark.parametrize("twin", [(1, 2), {1, 2}, [1.0, 2], ["1", "2"]])
async def test_what_runs_is_what_was_asked_about_and_not_what_merely_reads_alike(twin: Any) -> None:
    """A set or a tuple is written as a list is, so the seal alone cannot tell them apart."""
    given: list[Any] = []

    async def take(ids: Any) -> str:
        given.append(ids)
        return "done"

    session = cc.Boundary([take], rules=[Asks()]).session(SCOPE)
    outcome = await session.call("take", {"ids": [1, 2]})
    assert isinstance(outcome, cc.Pending)
    changed = msgspec.structs.replace(outcome.call, arguments={"ids": twin})
    await session.resume(changed, approved=True, by="dana")
    assert given in ([], [[1, 2]])
    assert all(type(ids) is list for ids in given)


@given(st.data())
async def test_bytes_with_any_byte_changed_decline_or_say_the_same(data: st.DataObject) -> None:
    transfers, boundary = desk()
    session = boundary.session(SCOPE)
    whole = (await asked(session)).to_bytes()
    position = data.draw(st.integers(0, len(whole) - 1))
    byte = data.draw(st.integers(0, 255))
    changed = whole[:position] + bytes([byte]) + whole[position + 1 :]
    cut = whole[:position]
    reasons(await session.resume(cut, approved=True, by="dana"))
    outcome = await session.resume(changed, approved=True, by="dana")
    if isinstance(outcome, cc.Denied):
        assert transfers.done == []
    else:  # white space, or the unused bits at the end of the seal's base64
        assert msgspec.json.decode(changed, type=cc.PendingCall) == msgspec.json.decode(whole, type=cc.PendingCall)
        assert transfers.done == [5]


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"{}",
        b"null",
        b"[]",
        b"\xff\xfe",
        b'{"detail":' + b"[" * 100_000,
        b"[" * 100_000,
        "",
        "\ud800",
        bytearray(b"{}"),
        memoryview(b"{}"),
        None,
        5,
        {},
        object(),
    ],
)
async def test_what_is_no_pending_call_declines(garbage: Any) -> None:
    transfers, boundary = desk()
    session = boundary.session(SCOPE)
    reasons(await session.resume(garbage, approved=True, by="dana"))
    assert session.decisions[-1].outcome == "deny"
    assert transfers.done == []


@given(json_values(max_leaves=8))
async def test_whatever_json_the_arguments_hold_comes_back_from_the_bytes_as_it_was(value: Any) -> None:
    given: list[Any] = []

    async def take(value: Any) -> str:
        given.append(value)
        return "done"

    boundary = cc.Boundary([take], rules=[Asks(detail=value)], secret=SECRET)
    session = boundary.session(SCOPE)
    outcome = await session.call("take", {"value": value})
    assert isinstance(outcome, cc.Pending)
    assert (outcome.call.arguments["value"], outcome.call.detail) == (value, value)
    resumed = await session.resume(outcome.call.to_bytes(), approved=True, by="dana")
    assert resumed.text == "done"
    assert given == [value]


# --- one use ---


@pytest.mark.parametrize("as_bytes", [False, True])
async def test_a_second_use_declines(as_bytes: bool) -> None:
    transfers, boundary = desk()
    session = boundary.session(SCOPE)
    pending = await asked(session)
    form: Any = pending.to_bytes() if as_bytes else pending
    assert (await session.resume(form, approved=True, by="dana")).text == "moved 5"
    for again in (pending, pending.to_bytes()):
        assert "used already" in reasons(await session.resume(again, approved=True, by="dana"))
    assert transfers.done == [5]


async def test_of_many_uses_at_once_exactly_one_runs() -> None:
    transfers, boundary = desk()
    pending = await asked(boundary.session(SCOPE))
    sessions = [boundary.session(SCOPE) for _ in range(10)]
    outcomes = await all_of(
        *[lambda session=session: session.resume(pending, approved=True, by="dana") for session in sessions]
    )
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Denied"] * 9 + ["Inline"]
    assert transfers.done == [5]


class SharedApprovals:
    """What an `Approvals` over a database looks like, with a claim that takes its time."""

    def __init__(self) -> None:
        self.claimed: set[str] = set()

    async def claim(self, id: str) -> bool:
        fresh = id not in self.claimed
        self.claimed.add(id)
        await anyio.lowlevel.checkpoint()
        return fresh


async def test_replicas_that_share_their_approvals_execute_once() -> None:
    shared = SharedApprovals()
    desks = [desk(approvals=shared) for _ in range(5)]
    data = (await asked(desks[0][1].session(SCOPE))).to_bytes()
    outcomes = await all_of(
        *[
            lambda boundary=boundary: boundary.session(SCOPE).resume(data, approved=True, by="dana")
            for _, boundary in desks
        ]
    )
    assert [type(outcome) for outcome in outcomes].count(cc.Inline) == 1
    assert [amount for transfers, _ in desks for amount in transfers.done] == [5]


class BadApprovals:
    def __init__(self, answer: Callable[[], Any]) -> None:
        self._answer = answer

    async def claim(self, id: str) -> bool:
        answer: bool = self._answer()
        return answer


def database_down() -> Any:
    raise OSError("password=hunter2")


@pytest.mark.parametrize(
    "answer", [database_down, lambda: False, lambda: None, lambda: 1, lambda: "OK", lambda: object(), lambda: [True]]
)
async def test_a_claim_that_is_not_answered_with_true_declines(
    answer: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    transfers, boundary = desk(approvals=BadApprovals(answer))
    session = boundary.session(SCOPE)
    text = reasons(await session.resume(await asked(session), approved=True, by="dana"))
    assert "hunter2" not in text
    assert ("hunter2" in caplog.text) is (answer is database_down)
    assert transfers.done == []


async def test_the_use_is_claimed_before_the_tool_runs_so_a_crash_in_between_declines() -> None:
    ran: list[str] = []

    class Halt(BaseException):
        """The process dies."""

    async def dies() -> None:
        ran.append("ran")
        raise Halt

    boundary = cc.Boundary([dies], rules=[Asks()], secret=SECRET)
    session = boundary.session(SCOPE)
    outcome = await session.call("dies")
    assert isinstance(outcome, cc.Pending)
    with pytest.raises(Halt):
        await session.resume(outcome.call, approved=True, by="dana")
    assert "used already" in reasons(await session.resume(outcome.call, approved=True, by="dana"))
    assert ran == ["ran"]


async def test_a_resume_that_is_cancelled_anywhere_executes_at_most_once() -> None:
    transfers, boundary = desk(approvals=SharedApprovals())
    session = boundary.session(SCOPE)
    pendings = [await asked(session, amount=number) for number in range(20)]
    unused = iter(pendings)
    used: list[cc.PendingCall] = []

    async def resume() -> None:
        used.append(next(unused))
        await session.resume(used[-1], approved=True, by="dana")

    async for _ in cancelled_everywhere(resume, least=1):
        await session.resume(used[-1], approved=True, by="dana")
    assert len(transfers.done) == len(set(transfers.done))
    assert transfers.done[-1] == used[-1].arguments["amount"]


async def test_two_questions_about_equal_calls_are_two_approvals() -> None:
    transfers, boundary = desk()
    session = boundary.session(SCOPE)
    first, second = await asked(session), await asked(session)
    assert first.id != second.id
    for pending in (first, second):
        await session.resume(pending, approved=True, by="dana")
    assert transfers.done == [5, 5]


async def test_the_claims_in_memory_are_bounded_and_the_oldest_are_forgotten_first() -> None:
    approvals = cc.MemoryApprovals(max_claims=2)
    assert [await approvals.claim(id) for id in ("a", "b", "a", "c")] == [True, True, False, True]
    assert await approvals.claim("c") is False
    assert await approvals.claim("b") is False
    assert await approvals.claim("a") is True


# --- the session's own bytes ---


def ledger_and_coverage() -> list[object]:
    class Changes(cc.Rule):
        def before_tool(self, call: cc.ToolCall) -> Any:
            return cc.allow({"amount": 1}, "caps") if call.arguments else cc.allow()

        def after_tool(self, call: cc.ToolCall, result: cc.Result) -> Any:
            return cc.allow()

    return [Changes()]


async def look() -> Any:
    """Finds nothing."""
    return cc.coverage(
        cc.absent(what="orders", checked=["the live table"], not_checked=[{"what": "the archive", "why": "old"}]),
        checked=["eu"],
        cannot_cover=[{"what": "us", "why": "elsewhere"}],
    )


@pytest.mark.parametrize("secret", [SECRET, None, SECRET.encode()])
@pytest.mark.parametrize("ledger_values", [False, True])
async def test_a_session_comes_back_from_its_bytes_as_it_was(secret: Any, ledger_values: bool) -> None:
    def boundary() -> cc.Boundary:
        tools: list[Callable[..., Any]] = [cc.tool(name="transfer")(Transfers()), look]
        return cc.Boundary(tools, rules=ledger_and_coverage(), secret=secret, ledger_values=ledger_values)

    session = boundary().session(SCOPE)
    await session.call("transfer", {"amount": 5}, call_id="c1")
    await session.call("look")
    back = boundary().session_from_bytes(session.to_bytes())
    assert (back.scope, back.turn, back.decisions, back.declared_coverage) == (
        session.scope,
        session.turn,
        session.decisions,
        session.declared_coverage,
    )
    assert back.turn == 2
    assert len(back.declared_coverage) == 2
    changed = back.decisions[0]
    assert changed.changed
    assert isinstance(changed.before, dict if ledger_values else cc.Fingerprint)
    await back.call("transfer", {"amount": 5})
    assert back.turn == 3
    assert len(back.decisions) == len(session.decisions) + 2


async def test_a_new_session_comes_back_and_so_does_a_full_one() -> None:
    _, boundary = desk(cc.before_tool(name="allow")(lambda call: cc.allow()))
    session = boundary.session(cc.Scope(conversation="é/\x00"))
    back = boundary.session_from_bytes(session.to_bytes())
    assert (back.scope, back.turn, back.decisions, back.declared_coverage) == (session.scope, 0, (), ())
    for _ in range(MAX_LEDGER_ROWS + 5):
        await session.call("transfer", {"amount": 1})
    assert boundary.session_from_bytes(session.to_bytes()).decisions == session.decisions


@given(json_values(max_leaves=8))
@example({"size": 1, "digest": "sha256:aa"})
@example({"size": "large", "digest": None})
@example({"value": 1})
@example({"value": {"size": 1, "digest": "x"}})
async def test_whatever_json_the_ledger_keeps_comes_back_as_it_was(value: Any) -> None:
    class Changes(cc.Rule):
        def before_tool(self, call: cc.ToolCall) -> Any:
            return cc.allow({"amount": value}, "changes")

    _, boundary = desk(Changes(), ledger_values=True)
    session = boundary.session(SCOPE)
    await session.call("transfer", {"amount": [value]})
    assert session.decisions[0].after == {"amount": value}
    assert boundary.session_from_bytes(session.to_bytes()).decisions == session.decisions


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("levels", [150, 190, 195, 197, 198, 199, 200, 201, 250])
async def test_nothing_that_a_tool_returns_or_a_model_says_keeps_a_session_from_its_bytes(levels: int) -> None:
    async def relay() -> Any:
        return {"af_coverage": {"checked": [nested(levels)]}, "result": 1}

    changes = cc.before_tool(name="changes")(lambda call: cc.allow({}, "clears"))
    boundary = cc.Boundary([cc.tool(foreign=True)(relay)], rules=[changes], ledger_values=True)
    session = boundary.session(SCOPE)
    await session.call("relay", {"x": nested(levels)})
    back = boundary.session_from_bytes(session.to_bytes())
    assert (back.decisions, back.declared_coverage) == (session.decisions, session.declared_coverage)


async def test_drained_rows_are_not_in_the_bytes() -> None:
    _, boundary = desk()
    session = boundary.session(SCOPE)
    await asked(session)
    session.drain_decisions()
    assert boundary.session_from_bytes(session.to_bytes()).decisions == ()


@given(st.text(st.characters()), st.text(st.characters()), st.text(st.characters(), min_size=1).filter(str.strip))
async def test_a_session_has_bytes_whatever_names_ids_and_reasons_were_spoken(
    name: str, call_id: str, why: str
) -> None:
    deny = cc.before_tool(name="deny")(lambda call: cc.deny(why))
    boundary = cc.Boundary(rules=[deny])
    session = boundary.session(SCOPE)
    outcome = await session.call(name, call_id=call_id)
    outcome.text.encode()
    assert boundary.session_from_bytes(session.to_bytes()).decisions == session.decisions


async def test_bytes_of_a_session_that_were_changed_are_refused() -> None:
    _, boundary = desk()
    session = boundary.session(SCOPE)
    await asked(session)
    wire = json.loads(session.to_bytes())
    for change in (
        {"state": {**wire["state"], "turn": 99}},
        {"state": {**wire["state"], "scope": {"conversation": "other"}}},
        {"state": {**wire["state"], "decisions": []}},
        {"seal": ""},
        {"seal": "AAAA"},
    ):
        with pytest.raises(cc.ConfigurationError, match="secret"):
            boundary.session_from_bytes(json.dumps({**wire, **change}).encode())
    with pytest.raises(cc.ConfigurationError, match="secret"):
        boundary.session_from_bytes(json.dumps({"state": wire["state"]}).encode())


async def test_bytes_of_a_session_sealed_with_another_secret_are_refused() -> None:
    _, here = desk()
    _, there = desk(secret="another secret of a good length")
    _, unsealed = desk(secret=None)
    data = here.session(SCOPE).to_bytes()
    with pytest.raises(cc.ConfigurationError, match="secret"):
        there.session_from_bytes(data)
    with pytest.raises(cc.ConfigurationError, match="secret"):
        here.session_from_bytes(unsealed.session(SCOPE).to_bytes())
    assert unsealed.session_from_bytes(data).scope == SCOPE, "who has no secret can check none"


async def test_a_pending_call_is_no_session_and_a_session_is_no_pending_call() -> None:
    transfers, boundary = desk()
    session = boundary.session(SCOPE)
    pending = await asked(session)
    with pytest.raises(cc.ConfigurationError):
        boundary.session_from_bytes(pending.to_bytes())
    reasons(await session.resume(session.to_bytes(), approved=True, by="dana"))
    assert transfers.done == []


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"\xff",
        b"[" * 100_000,
        b'{"state":' + b"[" * 100_000,
        b'{"state":{},"seal":""}',
        b'{"state":5}',
    ],
)
@pytest.mark.parametrize("secret", [SECRET, None])
async def test_what_is_no_session_is_refused(garbage: bytes, secret: str | None) -> None:
    _, boundary = desk(secret=secret)
    with pytest.raises(cc.ConfigurationError, match="session_from_bytes"):
        boundary.session_from_bytes(garbage)


async def test_a_conversation_goes_on_on_another_replica_with_its_pending_call() -> None:
    _, here = desk()
    session = here.session(SCOPE)
    pending = await asked(session)
    state, question = session.to_bytes(), pending.to_bytes()
    transfers, there = desk()
    back = there.session_from_bytes(state)
    outcome = await back.resume(question, approved=True, by="dana")
    assert outcome.text == "moved 5"
    assert [(row.rule, row.outcome) for row in back.decisions] == [("asks", "ask"), ("asks", "allow")]
    assert transfers.done == [5]


# --- the dials ---


@pytest.mark.parametrize("secret", ["", "tiny", b"fifteen bytes.."])
def test_a_secret_that_is_too_short_is_refused_and_not_repeated(secret: Any) -> None:
    with pytest.raises(cc.ConfigurationError, match="secret") as refusal:
        cc.Boundary(secret=secret)
    if secret:
        assert (secret if isinstance(secret, str) else secret.decode()) not in str(refusal.value)


@pytest.mark.parametrize("secret", [5, ["a" * 20], object(), True])
def test_a_secret_of_another_type_is_refused_and_not_repeated(secret: Any) -> None:
    with pytest.raises(cc.ConfigurationError, match="secret") as refusal:
        cc.Boundary(secret=secret)
    assert "aaaa" not in str(refusal.value)


def test_sixteen_bytes_are_enough_for_a_secret() -> None:
    cc.Boundary(secret="é" * 8)
    cc.Boundary(secret=b"x" * 16)


@pytest.mark.parametrize("ttl", [0, -1, True, "1h", float("nan"), float("inf"), timedelta(0), 1e300, timedelta.max])
def test_a_time_to_live_that_cannot_be_honoured_is_refused(ttl: Any) -> None:
    with pytest.raises(cc.ConfigurationError, match="approval_ttl"):
        cc.Boundary(approval_ttl=ttl)
