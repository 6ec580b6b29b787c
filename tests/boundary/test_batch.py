"""The calls of one turn: asked one at a time, run at once, and none of them lost."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import coatcheck as cc
from coatcheck.boundary.batch import MAX_RUNNING
from coatcheck.testing import Fault, FaultyStore, fail, hang
from tests.boundary._cancel import after_ticks

pytestmark = pytest.mark.anyio

SCOPE = cc.Scope(conversation="c")
Next = Callable[[cc.ToolCall], Awaitable[cc.Outcome]]
EFFECT = {"kind": "propose-transition", "targetSkillId": "billing", "reason": "money"}


async def work(size: int = 1, ticks: int = 0, how: str = "return") -> Any:
    """Takes its turns, and then does as told."""
    for _ in range(ticks):
        await anyio.lowlevel.checkpoint()
    match how:
        case "raise":
            raise ValueError("broken")
        case "hang":
            await anyio.sleep_forever()
        case "effects":
            return {"content": "x" * size, "effects": [EFFECT], "status": "partial"}
        case "unserialisable":
            return object()
    return "x" * size


WORK = cc.tool(name="work", timeout=0.2)(work)


def calls(*arguments: dict[str, Any]) -> list[cc.ToolCall]:
    return [cc.ToolCall("work", each, f"c{index}") for index, each in enumerate(arguments)]


# --- order ---


@given(st.lists(st.integers(0, 8), max_size=8))
async def test_outcomes_come_in_call_order_whatever_order_the_tools_finish_in(ticks: list[int]) -> None:
    finished: list[int] = []

    async def take(index: int, ticks: int) -> int:
        for _ in range(ticks):
            await anyio.lowlevel.checkpoint()
        finished.append(index)
        return index

    session = cc.Boundary([take]).session(SCOPE)
    batch = [cc.ToolCall("take", {"index": index, "ticks": each}, str(index)) for index, each in enumerate(ticks)]
    outcomes = await session.call_batch(batch)
    assert [outcome.text for outcome in outcomes] == [outcome.call_id for outcome in outcomes]
    assert [outcome.text for outcome in outcomes] == [str(index) for index in range(len(ticks))]
    assert sorted(finished) == list(range(len(ticks)))
    assert session.turn == 1


async def test_tools_of_a_batch_run_at_once() -> None:
    met = anyio.Event()
    waiting = 0

    async def meet() -> str:
        nonlocal waiting
        waiting += 1
        if waiting == 5:
            met.set()
        await met.wait()
        return "met"

    with anyio.fail_after(5):
        outcomes = (
            await cc.Boundary([meet], repeated_call_note=False).session(SCOPE).call_batch([cc.ToolCall("meet")] * 5)
        )
    assert [outcome.text for outcome in outcomes] == ["met"] * 5


async def test_no_more_than_32_tools_of_a_batch_run_at_once() -> None:
    running = most = 0
    full = anyio.Event()

    async def count() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == MAX_RUNNING:
            full.set()
        await full.wait()
        await anyio.lowlevel.checkpoint()
        running -= 1

    with anyio.fail_after(5):
        outcomes = await cc.Boundary([count]).session(SCOPE).call_batch([cc.ToolCall("count")] * 100)
    assert len(outcomes) == 100
    assert most == MAX_RUNNING == 32


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6)), min_size=1, max_size=6))
async def test_rules_see_one_call_at_a_time_in_call_order_however_long_they_take(delays: list[tuple[int, int]]) -> None:
    log: list[str] = []

    class Slow(cc.Rule):
        async def before_tool(self, call: cc.ToolCall) -> Any:
            log.append(f"{call.call_id} in")
            for _ in range(delays[int(call.call_id or 0)][0]):
                await anyio.lowlevel.checkpoint()
            log.append(f"{call.call_id} out")
            return cc.allow()

    session = cc.Boundary([work], rules=[Slow(), Slow()]).session(SCOPE)
    batch = [cc.ToolCall("work", {"ticks": ticks}, str(index)) for index, (_, ticks) in enumerate(delays)]
    await session.call_batch(batch)
    assert log == [f"{index} {word}" for index in range(len(delays)) for _ in range(2) for word in ("in", "out")]


async def test_a_rule_that_counts_is_deterministic() -> None:
    class AtMost(cc.Rule):
        def __init__(self) -> None:
            self.seen = 0

        async def before_tool(self, call: cc.ToolCall) -> Any:
            self.seen += 1
            mine = self.seen
            await anyio.lowlevel.checkpoint()
            return cc.allow() if mine <= 2 else cc.deny("two are enough")

    outcomes = await cc.Boundary([WORK], rules=[AtMost()]).session(SCOPE).call_batch(calls(*[{"ticks": 3}] * 5))
    assert [type(outcome) for outcome in outcomes] == [cc.Inline] * 2 + [cc.Denied] * 3


async def test_a_tool_runs_while_a_later_call_is_still_asked_about() -> None:
    running = anyio.Event()

    async def run(first: bool) -> str:
        running.set()
        return "done"

    class Waits(cc.Rule):
        async def before_tool(self, call: cc.ToolCall) -> Any:
            if not call.arguments["first"]:
                await running.wait()
            return cc.allow()

    session = cc.Boundary([run], rules=[Waits()], rule_timeout=5).session(SCOPE)
    outcomes = await session.call_batch([cc.ToolCall("run", {"first": first}) for first in (True, False)])
    assert [outcome.text for outcome in outcomes] == ["done", "done"]


async def test_effects_are_judged_and_rows_are_filed_in_call_order() -> None:
    events: list[cc.Event] = []

    @cc.after_tool
    def watch(call: cc.ToolCall, result: cc.Result) -> Any:
        return cc.allow()

    session = cc.Boundary([work], rules=[watch], on_event=events.append).session(SCOPE)
    batch = calls(*({"how": "effects", "ticks": ticks} for ticks in (9, 5, 0)))
    outcomes = await session.call_batch(batch)
    assert [event.call_id for event in events if isinstance(event, cc.EffectJudged)] == ["c0", "c1", "c2"]
    assert [row.call_id for row in session.decisions] == ["c0", "c1", "c2"]
    assert session.decisions == sum((outcome.decisions for outcome in outcomes), ())
    assert all(outcome.notes and outcome.notes[0] in outcome.text for outcome in outcomes)


async def test_declared_coverage_is_kept_in_call_order() -> None:
    async def look(where: str, ticks: int) -> Any:
        for _ in range(ticks):
            await anyio.lowlevel.checkpoint()
        return cc.absent(what="orders", checked=[where])

    session = cc.Boundary([look]).session(SCOPE)
    await session.call_batch(
        [cc.ToolCall("look", {"where": where, "ticks": ticks}) for where, ticks in (("a", 5), ("b", 0))]
    )
    assert [fact.checked[0]["what"] for fact in session.declared_coverage] == ["a", "b"]


# --- nothing is lost ---

KINDS: dict[str, tuple[dict[str, Any], type[cc.Outcome]]] = {
    "inline": ({}, cc.Inline),
    "late": ({"ticks": 5}, cc.Inline),
    "placed": ({"size": 1500}, cc.Placed),
    "raises": ({"how": "raise"}, cc.Failed),
    "timeout": ({"how": "hang"}, cc.Failed),
    "unserialisable": ({"how": "unserialisable"}, cc.Failed),
    "wrong": ({"size": "x"}, cc.Failed),
    "effects": ({"how": "effects"}, cc.Inline),
    "denied": ({"how": "denied"}, cc.Denied),
    "asked": ({"how": "asked"}, cc.Pending),
    "hidden": ({"how": "hidden"}, cc.Denied),
    "rule breaks": ({"how": "rule breaks"}, cc.Denied),
    "answered outside": ({"how": "answered outside"}, cc.Inline),
    "answered within": ({"how": "answered within"}, cc.Inline),
    "breaks outside": ({"how": "breaks outside"}, cc.Failed),
    "breaks within": ({"how": "breaks within"}, cc.Failed),
    "forgets": ({"how": "forgets"}, cc.Failed),
    "retried": ({"how": "retried"}, cc.Inline),
    "too large": ({"size": 5000}, cc.TooLarge),
}


class Judge(cc.Rule):
    async def before_tool(self, call: cc.ToolCall) -> Any:
        await anyio.lowlevel.checkpoint()
        match call.arguments.get("how"):
            case "denied":
                return cc.deny("no")
            case "asked":
                return cc.ask("may it?")
            case "rule breaks":
                return None
        return cc.allow()

    def after_tool(self, call: cc.ToolCall, result: cc.Result) -> Any:
        return cc.deny("hidden") if call.arguments.get("how") == "hidden" else cc.allow()


async def outside(call: cc.ToolCall, call_next: Next) -> Any:
    match call.arguments.get("how"):
        case "answered outside":
            return cc.Inline(tool=call.name, call_id=call.call_id, text="outside", value="outside")
        case "breaks outside":
            raise RuntimeError("outside")
        case "forgets":
            await call_next(call)
            return None
        case "retried":
            await call_next(call)
    return await call_next(call)


async def within(call: cc.ToolCall, call_next: Next) -> cc.Outcome:
    match call.arguments.get("how"):
        case "answered within":
            return cc.Inline(tool=call.name, call_id=call.call_id, text="within", value="within")
        case "breaks within":
            raise RuntimeError("within")
    return await call_next(call)


def everything(budget: int | None, concurrency: int | None = None, **dials: Any) -> cc.Session:
    made = cc.tool(name="work", timeout=0.2, ceiling=cc.Ceiling(4000), concurrency=concurrency)(work)
    return cc.Boundary(
        [made],
        rules=[Judge()],
        middleware=[outside, cc.inside("governance", within)],
        placement=cc.Placement(1000, max_batch_chars=budget),
        truncation=cc.Truncation(2000),
        concurrency=concurrency,
        repeated_call_note=False,
        **{"store": cc.MemoryStore(), **dials},
    ).session(SCOPE)


@settings(max_examples=40)
@given(
    st.lists(st.sampled_from(list(KINDS)), max_size=7),
    st.none() | st.integers(1, 3000),
    st.none() | st.integers(1, 2),
)
async def test_every_call_of_a_batch_gets_its_own_outcome_whatever_becomes_of_the_others(
    kinds: list[str], budget: int | None, concurrency: int | None
) -> None:
    session = everything(budget, concurrency)
    with anyio.fail_after(10):
        outcomes = await session.call_batch(calls(*(KINDS[kind][0] for kind in kinds)))
    assert [outcome.call_id for outcome in outcomes] == [f"c{index}" for index in range(len(kinds))]
    for kind, outcome in zip(kinds, outcomes, strict=True):
        assert isinstance(outcome, (KINDS[kind][1], cc.Placed) if KINDS[kind][1] is cc.Inline else KINDS[kind][1]), kind
        assert isinstance(outcome.text, str)
    assert session.turn == 1


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("budget", [None, 100])
async def test_a_call_of_each_kind_first_middle_and_last_leaves_the_others_as_they_are(
    kind: str, budget: int | None
) -> None:
    for position in range(3):
        batch: list[dict[str, Any]] = [{"ticks": 1}, {}]
        batch.insert(position, KINDS[kind][0])
        with anyio.fail_after(10):
            outcomes = await everything(budget).call_batch(calls(*batch))
        assert isinstance(outcomes[position], (KINDS[kind][1], cc.Placed))
        assert [outcome.text for index, outcome in enumerate(outcomes) if index != position] == ["x", "x"]


async def test_an_empty_batch_is_an_empty_turn() -> None:
    events: list[cc.Event] = []
    session = everything(50, on_event=events.append)
    assert await session.call_batch([]) == []
    assert session.turn == 1
    assert events == []


async def test_calls_with_one_id_or_none_are_told_apart_by_their_place() -> None:
    async def say(word: str) -> str:
        return word

    session = cc.Boundary([say], repeated_call_note=False).session(SCOPE)
    batch = [
        cc.ToolCall("say", {"word": word}, call_id)
        for word, call_id in (("a", "x"), ("b", "x"), ("c", None), ("d", None))
    ]
    assert [outcome.text for outcome in await session.call_batch(batch)] == ["a", "b", "c", "d"]
    same = cc.ToolCall("say", {"word": "a"}, "x")
    assert [outcome.text for outcome in await session.call_batch([same, same])] == ["a", "a"]


async def test_a_batch_takes_arguments_as_json_like_a_single_call() -> None:
    raw: Any = '{"size": 3}'
    bad: Any = "[1]"
    outcomes = await cc.Boundary([WORK]).session(SCOPE).call_batch([cc.ToolCall("work", raw), cc.ToolCall("work", bad)])
    assert outcomes[0].text == "xxx"
    assert isinstance(outcomes[1], cc.Failed)


async def test_a_pending_call_of_a_batch_is_resumed_after_the_others_have_their_outcome() -> None:
    session = everything(None)
    outcomes = await session.call_batch(calls({}, {"how": "asked"}, {"size": 2}))
    first, asked, last = outcomes
    assert isinstance(asked, cc.Pending)
    assert (type(first), type(last)) == (cc.Inline, cc.Inline)
    resumed = await session.resume(asked.call, approved=True, by="dana")
    assert (resumed.call_id, resumed.executed) == ("c1", True)


@pytest.mark.parametrize(
    ("fault", "stored"), [(fail(OSError("503")), 0), (hang(), 0), (fail(OSError("503"), nth=2), 2), (hang(calls=1), 2)]
)
async def test_a_store_that_fails_in_the_middle_of_a_batch_loses_no_outcome(fault: Fault, stored: int) -> None:
    events: list[cc.Event] = []
    store = FaultyStore(cc.MemoryStore(), put=fault)
    boundary = cc.Boundary(
        [work],
        store=store,
        placement=cc.Placement(1000, max_batch_chars=2500, timeout=0.02),
        on_event=events.append,
        repeated_call_note=False,
    )
    outcomes = await boundary.session(SCOPE).call_batch(calls(*[{"size": 900}] * 4))
    assert len(placed(outcomes)) == stored
    for outcome in outcomes:
        if isinstance(outcome, cc.Inline):
            assert outcome.text == "x" * 900
    refused = [event for event in events if isinstance(event, cc.ArtifactRefused)]
    assert len(refused) == 3 - stored, "three have to be placed for this budget"
    assert all(event.reason == "store-failed" for event in refused)


# --- the budget of a batch (cases.md, A1) ---


def budgeted(budget: int, inline: int = 100_000, **dials: Any) -> tuple[cc.Session, list[cc.Event]]:
    events: list[cc.Event] = []
    boundary = cc.Boundary(
        [WORK],
        store=dials.pop("store", None) or cc.MemoryStore(),
        placement=cc.Placement(inline, max_batch_chars=budget, preview_chars=dials.pop("preview_chars", 0)),
        on_event=events.append,
        repeated_call_note=False,
        **dials,
    )
    return boundary.session(SCOPE), events


def total(outcomes: list[cc.AnyOutcome]) -> int:
    return sum(len(outcome.text) for outcome in outcomes)


def placed(outcomes: list[cc.AnyOutcome]) -> list[int]:
    return [index for index, outcome in enumerate(outcomes) if isinstance(outcome, cc.Placed)]


async def test_a_batch_within_its_budget_is_left_alone() -> None:
    session, events = budgeted(30)
    outcomes = await session.call_batch(calls({"size": 10}, {"size": 20}))
    assert (placed(outcomes), total(outcomes)) == ([], 30)
    assert not [event for event in events if isinstance(event, cc.BatchBudgetUnmet)]


async def test_over_the_budget_the_largest_are_placed_first_and_no_more_than_needed() -> None:
    session, _ = budgeted(5000)
    outcomes = await session.call_batch(calls({"size": 2000}, {"size": 4000}, {"size": 1000}, {"size": 3000}))
    assert placed(outcomes) == [1, 3]
    assert total(outcomes) <= 5000


async def test_of_equals_the_earlier_call_is_placed() -> None:
    session, _ = budgeted(5000)
    assert placed(await session.call_batch(calls(*[{"size": 2000, "ticks": ticks} for ticks in (5, 0, 3)]))) == [0]


async def test_a_result_is_placed_for_the_budget_only_where_its_ticket_is_shorter() -> None:
    session, events = budgeted(150)
    outcomes = await session.call_batch(calls(*[{"size": 50}] * 5))
    assert placed(outcomes) == []
    [unmet] = [event for event in events if isinstance(event, cc.BatchBudgetUnmet)]
    assert (unmet.budget, unmet.chars, unmet.tool, unmet.call_id, unmet.turn) == (150, 250, None, None, 1)


async def test_a_result_over_its_own_limit_is_placed_whatever_the_budget() -> None:
    session, _ = budgeted(1_000_000, inline=1000)
    outcomes = await session.call_batch(calls({"size": 1001}, {"size": 1000}))
    assert placed(outcomes) == [0]


async def test_what_cannot_be_placed_counts_against_the_budget_all_the_same() -> None:
    def long_denial(call: cc.ToolCall) -> Any:
        return cc.deny("n" * 3000) if call.arguments.get("how") == "denied" else cc.allow()

    session, events = budgeted(4000, rules=[cc.before_tool(name="no")(long_denial)])
    outcomes = await session.call_batch(calls({"how": "denied"}, {"size": 1500}, {"size": 100}))
    assert [type(outcome) for outcome in outcomes] == [cc.Denied, cc.Placed, cc.Inline]
    assert total(outcomes) <= 4000
    assert not [event for event in events if isinstance(event, cc.BatchBudgetUnmet)]


@pytest.mark.parametrize("preview_chars", [0, 200])
@given(sizes=st.lists(st.integers(0, 3000), max_size=8), budget=st.integers(1, 12_000))
@settings(max_examples=30)
async def test_the_budget_holds_for_the_sum_of_a_batch_or_an_event_says_by_how_much_not(
    preview_chars: int, sizes: list[int], budget: int
) -> None:
    session, events = budgeted(budget, preview_chars=preview_chars)
    outcomes = await session.call_batch(calls(*({"size": size} for size in sizes)))
    unmet = [event for event in events if isinstance(event, cc.BatchBudgetUnmet)]
    assert (total(outcomes) <= budget) is (not unmet)
    if unmet:
        assert unmet[0].chars == total(outcomes)
    smallest_placed = min((sizes[index] for index in placed(outcomes)), default=None)
    for index, outcome in enumerate(outcomes):
        if smallest_placed is not None and isinstance(outcome, cc.Inline) and sizes[index] > smallest_placed:
            raise AssertionError("a smaller one was placed")
    for index in placed(outcomes):
        assert len(outcomes[index].text) < sizes[index]


async def test_equal_batches_are_placed_alike() -> None:
    texts = []
    for _ in range(2):
        session, _ = budgeted(3000)
        outcomes = await session.call_batch(calls({"size": 2500, "ticks": 3}, {"size": 2000}, {"size": 2500}))
        texts.append([outcome.text for outcome in outcomes])
    assert texts[0] == texts[1]


@pytest.mark.parametrize("concurrency", [1, 2, None])
@pytest.mark.parametrize("own", [1, None])
async def test_a_budget_never_blocks_on_a_slot(concurrency: int | None, own: int | None) -> None:
    """Every call waits for all others; none of them may hold what another needs to run."""
    made = cc.tool(name="work", concurrency=own)(work)
    boundary = cc.Boundary(
        [made], concurrency=concurrency, store=cc.MemoryStore(), placement=cc.Placement(10_000, max_batch_chars=3000)
    )
    with anyio.fail_after(5):
        outcomes = await boundary.session(SCOPE).call_batch(calls(*[{"size": 900, "ticks": 2}] * 40))
    assert total(outcomes) <= 3000 or len(placed(outcomes)) == 40


async def test_two_batches_at_once_do_not_wait_for_each_other() -> None:
    boundary = cc.Boundary(
        [WORK], concurrency=1, store=cc.MemoryStore(), placement=cc.Placement(10_000, max_batch_chars=3000)
    )
    done: list[list[cc.AnyOutcome]] = []

    async def turn() -> None:
        done.append(await boundary.session(SCOPE).call_batch(calls(*[{"size": 2000, "ticks": 2}] * 3)))

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            for _ in range(4):
                group.start_soon(turn)
    assert [placed(outcomes) for outcomes in done] == [[0, 1]] * 4


async def test_a_single_call_is_a_turn_of_one_and_has_the_same_budget() -> None:
    session, _ = budgeted(1500)
    assert isinstance(await session.call("work", {"size": 1500}), cc.Inline)
    assert isinstance(await session.call("work", {"size": 1501}), cc.Placed)
    session, _ = budgeted(10)
    assert (await session.call("work", {"size": 300})).text == "x" * 300, "its ticket would be longer"


async def test_what_was_placed_for_the_budget_says_so_and_is_redeemed_whole() -> None:
    session, _ = budgeted(3000)
    outcomes = await session.call_batch(calls({"size": 2500}, {"size": 1000}))
    [ticket] = [outcome.ticket for outcome in outcomes if isinstance(outcome, cc.Placed)]
    assert "3000" in ticket.reason
    assert "together" in ticket.reason
    assert json.loads(outcomes[0].text)["placed"] is True
    artifact = await session.redeem(ticket.ref)
    assert artifact is not None
    assert artifact.data == b"x" * 2500


async def test_the_budget_counts_what_a_middleware_outside_of_governance_made_of_the_results_within() -> None:
    async def shrinks(call: cc.ToolCall, call_next: Next) -> cc.Outcome:
        outcome = await call_next(call)
        return cc.Inline(tool=outcome.tool, call_id=outcome.call_id, text="short", value="short")

    session, _ = budgeted(100, middleware=[cc.inside("placement", shrinks)])
    outcomes = await session.call_batch(calls(*[{"size": 5000}] * 3))
    assert [outcome.text for outcome in outcomes] == ["short"] * 3


# --- cancellation ---


@pytest.mark.parametrize("budget", [None, 1000])
async def test_a_batch_that_is_cancelled_leaves_nothing_behind(budget: int | None) -> None:
    running = 0

    @cc.tool(concurrency=2)
    async def count() -> str:
        nonlocal running
        running += 1
        try:
            for _ in range(3):
                await anyio.lowlevel.checkpoint()
            return "x" * 900
        finally:
            running -= 1

    session = cc.Boundary(
        [count],
        rules=[Judge()],
        concurrency=2,
        store=cc.MemoryStore(),
        placement=cc.Placement(800, max_batch_chars=budget),
    ).session(SCOPE)
    cancelled = 0
    for ticks in range(40):
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(after_ticks, ticks, scope.cancel)
                await session.call_batch([cc.ToolCall("count")] * 5)
                group.cancel_scope.cancel()
        cancelled += scope.cancelled_caught
        assert running == 0
        with anyio.fail_after(5):
            assert len(await session.call_batch([cc.ToolCall("count")] * 3)) == 3
    assert cancelled > 5


class Halt(BaseException):
    """Not an exception that a batch may answer for."""


async def test_what_is_no_exception_ends_the_whole_batch_and_leaves_no_slot_taken() -> None:
    stop = True

    @cc.tool(concurrency=1)
    async def end() -> str:
        if stop:
            raise Halt
        return "done"

    session = cc.Boundary([end], concurrency=1, repeated_call_note=False).session(SCOPE)
    with pytest.raises(BaseExceptionGroup) as raised:
        await session.call_batch([cc.ToolCall("end")] * 3)
    assert raised.group_contains(Halt)
    stop = False
    with anyio.fail_after(5):
        assert [outcome.text for outcome in await session.call_batch([cc.ToolCall("end")] * 3)] == ["done"] * 3
