"""Nothing that a host, a model or a tool hands over turns a run, or its record, into an error of the boundary."""

from __future__ import annotations

import concurrent.futures
from typing import Any

import msgspec
import pytest

import coatcheck as cc

pytestmark = pytest.mark.anyio

SCOPE = cc.Scope(conversation="c")
GRAPH = cc.SkillGraph(
    ["a", "b", "c"], entries=["a"], edges=[cc.Edge("a", "b", open=True), cc.Edge("a", "c", open=True)]
)


@cc.tool
async def echo(text: str = "x") -> str:
    return text


@cc.tool
async def propose(to: str) -> cc.Envelope:
    return cc.Envelope(content="", effects=(cc.ProposeTransition(to, reason="why"),))


class Opinionated:
    """An object that will not say whether it is empty."""

    def __bool__(self) -> bool:
        raise ValueError("who knows")


async def test_arguments_with_opinions_fail_their_own_call_and_no_other() -> None:
    session = cc.Boundary([echo]).session(SCOPE)
    odd: Any = Opinionated()
    assert isinstance(await session.call("echo", odd), cc.Failed)
    good, bad = await session.call_batch([cc.ToolCall("echo", {}), cc.ToolCall("echo", odd)])
    assert (type(good), type(bad)) == (cc.Inline, cc.Failed)


async def test_turns_go_on_counting_where_a_host_declares_a_graph_later() -> None:
    before = cc.Boundary([echo])
    session = before.session(SCOPE)
    for number in range(5):
        await session.call("echo", {"text": str(number)})
    restored = cc.Boundary([echo], graph=GRAPH).session_from_bytes(session.to_bytes())
    assert restored.turn == 5
    await restored.call("echo", {"text": "joins"})
    assert restored.turn == 5, "calls belong to the turn that is open"
    assert (restored.next_turn().number, restored.turn) == (6, 6)


async def test_moves_that_lost_are_kept_for_nobody_where_nobody_listens() -> None:
    session = cc.Boundary([propose], graph=GRAPH).session(SCOPE)
    session.next_turn()
    for _ in range(20):
        await session.call("propose", {"to": "b"})
        await session.call("propose", {"to": "c"})
    assert session._turns._losers == []


async def test_a_predicate_that_meets_a_cancelled_future_loses_no_outcome() -> None:
    future: concurrent.futures.Future[bool] = concurrent.futures.Future()
    future.cancel()
    edges = [cc.Edge("a", "b", when=lambda text: future.result()), cc.Edge("a", "c", open=True)]
    session = cc.Boundary([echo], graph=cc.SkillGraph(["a", "b", "c"], entries=["a"], edges=edges)).session(SCOPE)
    session.next_turn()
    outcomes = await session.call_batch([cc.ToolCall("echo", {"text": text}) for text in ("1", "2")])
    assert [outcome.text for outcome in outcomes] == ["1", "2"]


async def test_names_and_ids_of_a_class_of_their_own_leave_the_process_as_text() -> None:
    class Text(str):
        pass

    session = cc.Boundary([echo]).session(SCOPE)
    outcome = await session.call(Text("echo"), {"text": "x"}, call_id=Text("call_7"))
    assert (type(outcome.tool), type(outcome.call_id)) == (str, str)
    assert msgspec.json.encode(session.record())
    assert session.to_bytes()
