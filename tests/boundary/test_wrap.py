"""One async callable, guarded for a hand-written loop, by the rules and limits of a session."""

from __future__ import annotations

import inspect
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import coatcheck as cc
from tests.boundary._cancel import cancelled_everywhere

pytestmark = pytest.mark.anyio

SCOPE = cc.Scope(conversation="c")
ALLOW = cc.before_tool(name="allow")(lambda call: cc.allow())


async def fetch(path: str, times: int = 1) -> str:
    """Fetches."""
    return path * times


def session(**dials: Any) -> cc.Session:
    return cc.Boundary(repeated_call_note=False, **dials).session(SCOPE)


async def test_a_guarded_callable_takes_its_arguments_by_name_and_answers_with_an_outcome() -> None:
    guarded = session().wrap(fetch)
    outcome = await guarded(path="ab", times=2)
    assert isinstance(outcome, cc.Inline)
    assert (outcome.tool, outcome.text, outcome.value, outcome.call_id, outcome.executed) == (
        "fetch",
        "abab",
        "abab",
        None,
        True,
    )


async def test_a_guarded_callable_still_says_what_it_is() -> None:
    guarded = session().wrap(fetch)
    assert (guarded.__name__, guarded.__doc__) == ("fetch", "Fetches.")
    assert inspect.iscoroutinefunction(guarded)
    assert list(inspect.signature(guarded).parameters) == ["path", "times"]


async def test_arguments_by_position_are_the_hosts_mistake() -> None:
    inner = session()
    with pytest.raises(TypeError, match="by name"):
        await inner.wrap(fetch)("ab")
    assert inner.turn == 0


@pytest.mark.parametrize("arguments", [{}, {"path": 5}, {"path": "a", "nonsense": 1}])
async def test_wrong_arguments_are_an_outcome_as_they_are_for_a_model(arguments: Any) -> None:
    outcome = await session().wrap(fetch)(**arguments)
    assert isinstance(outcome, cc.Failed)
    assert not outcome.executed


async def test_what_it_raises_is_an_outcome() -> None:
    async def broken() -> None:
        raise ValueError("the disk is full")

    outcome = await session().wrap(broken)()
    assert isinstance(outcome, cc.Failed)
    assert outcome.text == "the disk is full"


async def test_rules_thresholds_and_the_ledger_are_those_of_the_session() -> None:
    mask = cc.after_tool(name="mask")(lambda call, result: cc.allow("*" * 2000, "hides"))
    inner = session(rules=[ALLOW, mask], store=cc.MemoryStore(), placement=cc.Placement(1000))
    outcome = await inner.wrap(fetch)(path="secret")
    assert isinstance(outcome, cc.Placed)
    assert inner.decisions == outcome.decisions
    assert [row.rule for row in inner.decisions] == ["allow", "mask"]
    artifact = await inner.redeem(outcome.ticket.ref)
    assert artifact is not None
    assert artifact.data == b"*" * 2000


async def test_every_guarded_call_is_a_turn_with_events() -> None:
    events: list[cc.Event] = []
    inner = session(on_event=events.append)
    guarded = inner.wrap(fetch)
    await guarded(path="a")
    await guarded(path="b")
    assert inner.turn == 2
    assert [(type(event).__name__, event.tool, event.turn) for event in events] == [
        ("ToolStarted", "fetch", 1),
        ("ToolEnded", "fetch", 1),
        ("ToolStarted", "fetch", 2),
        ("ToolEnded", "fetch", 2),
    ]


async def test_a_tool_keeps_its_own_declarations() -> None:
    made = cc.tool(name="get", ceiling=cc.Ceiling(3), timeout=5)(fetch)
    inner = session()
    guarded = inner.wrap(made)
    assert (await guarded(path="abc")).text == "abc"
    refused = await guarded(path="abcd")
    assert isinstance(refused, cc.TooLarge)
    assert refused.tool == "get"


async def test_a_guarded_tool_is_not_one_that_the_model_can_call() -> None:
    inner = session()
    inner.wrap(fetch)
    assert isinstance(await inner.call("fetch", {"path": "a"}), cc.Failed)


async def test_a_tool_of_the_boundary_may_be_guarded_too() -> None:
    inner = session(tools=[fetch])
    assert (await inner.wrap(fetch)(path="a")).text == (await inner.call("fetch", {"path": "a"})).text == "a"


async def test_a_concurrency_limit_holds_for_the_guarded_callable() -> None:
    running = most = 0

    @cc.tool(concurrency=2)
    async def work() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await anyio.lowlevel.checkpoint()
        running -= 1

    guarded = session().wrap(work)
    async with anyio.create_task_group() as group:
        for _ in range(6):
            group.start_soon(guarded)
    assert most == 2


async def test_a_guarded_callable_that_is_cancelled_anywhere_leaves_no_slot_taken() -> None:
    @cc.tool(concurrency=1, timeout=5)
    async def work() -> str:
        await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()
        return "done"

    guarded = session(concurrency=1).wrap(work)

    async def call() -> cc.Outcome:
        return await guarded()

    async for _ in cancelled_everywhere(call, least=2):
        with anyio.fail_after(5):
            assert (await guarded()).text == "done"


async def test_a_rule_may_ask_about_a_guarded_call_and_the_answer_runs_it() -> None:
    asks = cc.before_tool(name="asks")(lambda call: cc.ask("may it?"))
    inner = session(rules=[asks])
    outcome = await inner.wrap(fetch)(path="ab")
    assert isinstance(outcome, cc.Pending)
    resumed = await inner.resume(outcome.call, approved=True, by="dana")
    assert isinstance(resumed, cc.Inline)
    assert (resumed.text, resumed.tool) == ("ab", "fetch")


async def test_a_name_that_another_tool_of_the_boundary_has_is_refused() -> None:
    """An approval names the tool; it must not be a yes to another one."""
    inner = session(tools=[cc.tool(name="fetch")(lambda: None)])
    with pytest.raises(cc.ConfigurationError, match="'fetch'"):
        inner.wrap(fetch)
    assert (await inner.wrap(cc.tool(name="fetch_page")(fetch))(path="a")).text == "a"


@pytest.mark.parametrize("wrong", [None, 5, "fetch", str, lambda: None])
def test_what_is_no_named_callable_is_refused(wrong: Any) -> None:
    with pytest.raises(cc.ConfigurationError):
        session().wrap(wrong)


@pytest.mark.parametrize("path", ["session", "other"])
async def test_sessions_guard_for_themselves(path: str) -> None:
    boundary = cc.Boundary(rules=[ALLOW])
    first, second = boundary.session(SCOPE), boundary.session(cc.Scope(conversation="other"))
    guarded = {"session": first, "other": second}[path].wrap(fetch)
    await guarded(path="a")
    assert (len(first.decisions), len(second.decisions)) == ((1, 0) if path == "session" else (0, 1))
