"""What could go on without end is bounded, and calls that wait for each other come to an end."""

from __future__ import annotations

from typing import Any, assert_never

import anyio
import anyio.lowlevel
import pytest

import coatcheck as cc

pytestmark = pytest.mark.anyio

SCOPE = cc.Scope(conversation="c")


async def test_effects_without_end_are_told_as_a_few_notes_and_a_number() -> None:
    @cc.tool
    async def eager() -> cc.Envelope:
        return cc.Envelope("done", tuple(cc.ProposeTransition(f"skill-{index}", "why") for index in range(1000)))

    events: list[cc.Event] = []
    outcome = await cc.Boundary([eager], on_event=events.append).session(SCOPE).call("eager")
    assert len(outcome.text) < 9 * 400
    assert "992 more" in outcome.text
    assert sum(isinstance(event, cc.EffectJudged) for event in events) == 1000


async def test_a_name_without_end_is_clipped_wherever_it_is_kept() -> None:
    rule = cc.before_tool(name="r")(lambda call: cc.allow())
    session = cc.Boundary([], rules=[rule]).session(SCOPE)
    outcome = await session.call("n" * 1_000_000)
    assert isinstance(outcome, cc.Failed)
    assert max(len(outcome.tool), len(outcome.text), *(len(row.tool) for row in session.decisions)) < 500


async def test_an_argument_without_end_is_not_repeated_in_the_answer() -> None:
    @cc.tool
    async def none() -> None: ...

    outcome = await cc.Boundary([none]).session(SCOPE).call("none", {"a" * 100_000: 1})
    assert isinstance(outcome, cc.Failed)
    assert len(outcome.text) < 1000


async def test_a_note_without_end_is_clipped_on_the_ledger_and_in_the_text() -> None:
    rule = cc.before_tool(name="asks")(lambda call: cc.ask("sure?"))

    @cc.tool
    async def work() -> str:
        return "done"

    session = cc.Boundary([work], rules=[rule]).session(SCOPE)
    pending = await session.call("work")
    assert isinstance(pending, cc.Pending)
    outcome = await session.resume(pending, approved=False, by="dana", note="n" * 100_000)
    assert isinstance(outcome, cc.Denied)
    assert len(outcome.text) < 1000
    assert all(len(row.why or "") < 1000 for row in session.decisions)


async def test_a_tool_that_calls_a_tool_does_not_wait_for_its_own_slot() -> None:
    @cc.tool
    async def inner() -> str:
        return "inner"

    @cc.tool
    async def outer() -> str:
        return (await session.call("inner")).text

    session = cc.Boundary([inner, outer], concurrency=1, repeated_call_note=False).session(SCOPE)
    with anyio.fail_after(5):
        assert (await session.call("outer")).text == "inner"
        assert [each.text for each in await session.call_batch([cc.ToolCall("outer")] * 3)] == ["inner"] * 3


async def test_a_tool_that_calls_itself_has_its_slot_and_a_task_that_it_left_behind_has_none() -> None:
    peak = running = 0

    @cc.tool(concurrency=1)
    async def fold(depth: int) -> str:
        return "leaf" if depth == 0 else (await session.call("fold", {"depth": depth - 1})).text

    @cc.tool
    async def work() -> None:
        nonlocal peak, running
        running += 1
        peak = max(peak, running)
        await anyio.sleep(0.005)
        running -= 1

    @cc.tool
    async def starts() -> str:
        for _ in range(5):
            group.start_soon(session.call, "work", {})
        return "started"

    session = cc.Boundary([fold, work, starts], concurrency=1).session(SCOPE)
    with anyio.fail_after(5):
        assert (await session.call("fold", {"depth": 4})).text == "leaf"
        async with anyio.create_task_group() as group:
            await session.call("starts")
    assert peak == 1


async def test_whoever_waits_for_a_slot_is_served_in_line() -> None:
    served: list[int] = []

    @cc.tool(concurrency=1)
    async def work(number: int) -> None:
        served.append(number)
        await anyio.sleep(0.002)

    session = cc.Boundary([work]).session(SCOPE)
    async with anyio.create_task_group() as group:
        for number in range(20):
            group.start_soon(session.call, "work", {"number": number})
            await anyio.lowlevel.checkpoint()
    assert served == sorted(served)


async def test_a_name_is_never_taken_for_another_one() -> None:
    @cc.tool(name="delete_all")
    async def delete_all() -> str:
        return "deleted"

    session = cc.Boundary([delete_all]).session(SCOPE)
    for spoken in (" delete_all ", "delete_all\n", "delete_all" + " " * 200, "\u00a0delete_all"):
        assert isinstance(await session.call(spoken), cc.Failed)
        assert isinstance((await session.call_batch([cc.ToolCall(spoken)]))[0], cc.Failed)


async def test_a_middleware_whose_outcome_has_no_text_fails_the_one_call() -> None:
    async def middleware(call: cc.ToolCall, call_next: cc.CallNext) -> cc.Outcome:
        nothing: Any = None
        return cc.Inline(tool=call.name, text=nothing, value=1)

    @cc.tool
    async def work() -> str:
        return "done"

    session = cc.Boundary([work], middleware=[middleware]).session(SCOPE)
    assert isinstance(await session.call("work"), cc.Failed)
    assert all(isinstance(each, cc.Failed) for each in await session.call_batch([cc.ToolCall("work")] * 2))


async def test_a_budget_and_a_host_that_lets_one_call_through_at_a_time_come_to_an_end() -> None:
    lock = anyio.Lock()

    async def one_at_a_time(call: cc.ToolCall, call_next: cc.CallNext) -> cc.Outcome:
        async with lock:
            return await call_next(call)

    @cc.tool
    async def work() -> str:
        return "x" * 2000

    boundary = cc.Boundary(
        [work],
        middleware=[one_at_a_time],
        store="memory:",
        placement=cc.Placement(5000, max_batch_chars=2500, timeout=0.05),
    )
    with anyio.fail_after(5):
        outcomes = await boundary.session(SCOPE).call_batch([cc.ToolCall("work")] * 3)
    assert [type(each).__name__ for each in outcomes] == ["Inline", "Placed", "Placed"]


async def test_parts_that_a_later_part_pushes_out_are_not_promised() -> None:
    @cc.tool
    async def album() -> list[dict[str, bytes]]:
        return [{"image": bytes([index]) * 3000} for index in range(3)]

    events: list[cc.Event] = []
    boundary = cc.Boundary(
        [album], store=cc.MemoryStore(max_count=2), placement=cc.Placement(5000), on_event=events.append
    )
    outcome = await boundary.session(SCOPE).call("album")
    assert not outcome.tickets
    assert any(isinstance(event, cc.ArtifactRefused) and "budget" in (event.detail or "") for event in events)


async def test_a_port_that_never_answers_declines() -> None:
    class Port:
        async def claim(self, id: str) -> bool:
            await anyio.sleep_forever()
            return True

    @cc.tool
    async def work() -> str:
        return "done"

    rule = cc.before_tool(name="asks")(lambda call: cc.ask("sure?"))
    session = cc.Boundary([work], rules=[rule], approvals=Port(), rule_timeout=0.05).session(SCOPE)
    pending = await session.call("work")
    assert isinstance(pending, cc.Pending)
    with anyio.fail_after(5):
        assert isinstance(await session.resume(pending, approved=True, by="dana"), cc.Denied)


async def test_a_rule_sees_the_value_that_a_middleware_supplied_in_place_of_the_tool() -> None:
    async def cache(call: cc.ToolCall, call_next: cc.CallNext) -> cc.Outcome:
        return cc.Inline(tool=call.name, call_id=call.call_id, text="secret", value="secret")

    rule = cc.after_tool(name="hides")(lambda call, result: cc.deny("hidden"))

    @cc.tool
    async def work() -> str:
        return "done"

    boundary = cc.Boundary([work], rules=[rule], middleware=[cc.inside("governance", cache)])
    assert (await boundary.session(SCOPE).call("work")).text == "hidden"


async def test_two_wrapped_functions_of_one_name_are_refused_because_an_approval_could_not_tell_them_apart() -> None:
    def make(answer: str) -> Any:
        async def delete() -> str:
            return answer

        return delete

    session = cc.Boundary().session(SCOPE)
    session.wrap(make("one"))
    with pytest.raises(cc.ConfigurationError, match="delete"):
        session.wrap(make("other"))


async def test_a_type_checker_sees_that_no_outcome_was_forgotten() -> None:
    @cc.tool
    async def work() -> str:
        return "done"

    outcome = await cc.Boundary([work]).session(SCOPE).call("work")
    match outcome:
        case cc.Inline() | cc.Placed() | cc.Truncated() | cc.TooLarge() | cc.Denied() | cc.Failed() | cc.Pending():
            assert outcome.text == "done"
        case _:
            assert_never(outcome)
