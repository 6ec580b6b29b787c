"""Asyncio alone: waiting for a task that somebody else cancelled raises what being cancelled raises.

Such a stray cancellation is a failure of the one call that met it. A real one always goes on.
"""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import pytest

import coatcheck as cc

pytestmark = pytest.mark.asyncio

SCOPE = cc.Scope(conversation="c")


async def stray() -> Any:
    """Wait for a task that is cancelled, though this one is not."""
    task = asyncio.create_task(asyncio.sleep(60))
    await asyncio.sleep(0)
    task.cancel()
    return await task


@cc.tool
async def good() -> str:
    return "good"


@cc.tool
async def bad() -> str:
    await stray()
    return "never"


async def test_a_tool_that_meets_a_stray_cancellation_fails_alone() -> None:
    session = cc.Boundary([good, bad]).session(SCOPE)
    outcome = await session.call("bad")
    assert isinstance(outcome, cc.Failed)
    assert outcome.executed
    batch = await session.call_batch([cc.ToolCall("good"), cc.ToolCall("bad"), cc.ToolCall("good")])
    assert [type(each).__name__ for each in batch] == ["Inline", "Failed", "Inline"]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("sync", [False, True])
async def test_a_rule_that_meets_one_has_permitted_nothing(when: str, sync: bool) -> None:
    class Waits(cc.Rule):
        pass

    async def waits(*args: Any) -> Any:
        return await stray()

    def raises(*args: Any) -> Any:
        raise asyncio.CancelledError

    rule = Waits()
    setattr(rule, f"{when}_tool", raises if sync else waits)
    session = cc.Boundary([good], rules=[rule]).session(SCOPE)
    [outcome, other] = await session.call_batch([cc.ToolCall("good"), cc.ToolCall("nobody")])
    assert isinstance(outcome, cc.Denied if not sync else (cc.Denied, cc.Failed))
    assert outcome.text != "good"
    assert other.text


async def test_a_store_that_meets_one_leaves_an_event_and_the_result() -> None:
    class Store(cc.MemoryStore):
        async def put(self, *args: Any, **kwargs: Any) -> cc.PutResult:
            raise await stray()

    events: list[cc.Event] = []
    boundary = cc.Boundary([good], store=Store(), placement=cc.Placement(2), on_event=events.append)
    outcome = await boundary.session(SCOPE).call("good")
    assert isinstance(outcome, cc.Inline)
    [refused] = [event for event in events if isinstance(event, cc.ArtifactRefused)]
    assert refused.reason == "store-failed"
    assert "CancelledError" in (refused.detail or "")


async def test_a_middleware_that_meets_one_fails_the_one_call() -> None:
    async def middleware(call: cc.ToolCall, call_next: cc.CallNext) -> cc.Outcome:
        await call_next(call)
        await stray()
        raise AssertionError

    outcome = await cc.Boundary([good], middleware=[middleware]).session(SCOPE).call("good")
    assert isinstance(outcome, cc.Failed)
    assert outcome.executed, "the tool had run by then"


async def test_a_claim_that_meets_one_declines() -> None:
    class Port:
        async def claim(self, id: str) -> bool:
            await stray()
            return True

    rule = cc.before_tool(name="asks")(lambda call: cc.ask("sure?"))
    session = cc.Boundary([good], rules=[rule], approvals=Port()).session(SCOPE)
    pending = await session.call("good")
    assert isinstance(pending, cc.Pending)
    assert isinstance(await session.resume(pending, approved=True, by="dana"), cc.Denied)


@pytest.mark.parametrize("how", ["timeout", "wait_for", "cancel"])
async def test_a_real_cancellation_is_never_taken_for_a_stray_one(how: str) -> None:
    @cc.tool
    async def waits() -> None:
        await asyncio.sleep(60)

    session = cc.Boundary([waits], rules=[cc.before_tool(name="r")(lambda call: cc.allow())]).session(SCOPE)
    if how == "timeout":
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await session.call("waits")
    elif how == "wait_for":
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(session.call("waits"), 0.01)
    else:
        task = asyncio.create_task(session.call_batch([cc.ToolCall("waits")] * 2))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_tool_that_cancels_its_own_task_does_not_take_its_batch_along() -> None:
    @cc.tool
    async def cancels_itself() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    session = cc.Boundary([good, cancels_itself]).session(SCOPE)
    batch = await session.call_batch([cc.ToolCall("good"), cc.ToolCall("cancels_itself"), cc.ToolCall("good")])
    assert [type(each).__name__ for each in batch] == ["Inline", "Failed", "Inline"]


async def test_a_wrapper_that_takes_its_arguments_by_name_is_called_by_name() -> None:
    def audited(function: Any) -> Any:
        @functools.wraps(function)
        async def wrapper(**kwargs: Any) -> Any:
            return await function(**kwargs)

        return wrapper

    @audited
    async def add(left: int, right: int = 1) -> int:
        return left + right

    for tool in (cc.tool(name="add")(add), cc.tool(name="add")(functools.partial(add))):
        session = cc.Boundary([tool], repeated_call_note=False).session(SCOPE)
        assert (await session.call("add", {"left": 1, "right": 2})).text == "3"
        assert (await session.call_batch([cc.ToolCall("add", {"left": 1, "right": 2})]))[0].text == "3"
