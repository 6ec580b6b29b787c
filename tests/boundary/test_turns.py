"""A session's turns, end to end: effects, edges, picks, leases and the note on a repeated call, through the chain."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

import coatcheck as cc
from coatcheck.effects.graph import Edge, SkillGraph
from coatcheck.effects.instructions import Instruction, InstructionCatalog
from coatcheck.events import Event, MoveOutrun, RouteConflict, TurnOpened

pytestmark = pytest.mark.anyio

GRAPH = SkillGraph(
    ["triage", "billing", "refunds"],
    entries=["triage"],
    edges=[
        Edge("triage", "billing", tool="lookup", status="denied"),
        Edge("triage", "refunds", when=lambda text: "broken" in text),
        Edge("billing", "triage", open=True),
        Edge("refunds", "triage", open=True),
    ],
)
CATALOG = InstructionCatalog(
    [Instruction("tone", "Be brief.", skill="billing"), Instruction("policy", "Refund within 14 days.")]
)
SCOPE = cc.Scope(conversation="c-42")


@cc.tool
async def lookup(content: str = "body", status: str | None = None, effects: list[Any] = [], wait: float = 0) -> object:  # noqa: B006 - read only
    """Answer as asked."""
    await anyio.sleep(wait)
    return {"content": content, "effects": effects} | ({} if status is None else {"status": status})


def move(target: str) -> dict[str, str]:
    return {"kind": "propose-transition", "targetSkillId": target, "reason": "why"}


def push(lease: str) -> dict[str, str]:
    return {"kind": "require-instruction", "instructionId": "policy", "deliveryLease": lease}


def boundary(**settings: Any) -> cc.Boundary:
    return cc.Boundary([lookup], graph=GRAPH, instructions=CATALOG, secret="a secret of your replicas", **settings)


async def test_a_run_goes_on_on_another_replica_after_every_step() -> None:
    here = boundary()
    session = here.session(SCOPE)

    def elsewhere() -> cc.Session:
        return boundary().session_from_bytes(session.to_bytes())

    assert session.next_turn().skill == "triage"
    session = elsewhere()
    outcome = await session.call("lookup", {"effects": [move("billing"), push("until-skill-exit"), push("next-call")]})
    assert outcome.notes == ()
    session = elsewhere()
    turn = session.next_turn()
    assert (turn.number, turn.skill, turn.by, session.turn) == (2, "billing", "proposal", 2)
    assert [(each.id, each.why) for each in turn.instructions] == [("tone", "skill"), ("policy", "next-call")]
    session = elsewhere()
    assert session.pick("triage").accepted
    session = elsewhere()
    assert (session.next_turn().skill, session.next_turn().by) == ("triage", "stay")


async def test_an_edge_reads_what_the_model_read_and_outruns_a_proposal() -> None:
    events: list[Event] = []
    session = boundary(on_event=events.append).session(SCOPE)
    session.next_turn()
    await session.call_batch(
        [
            cc.ToolCall("lookup", {"content": "it is broken"}, "c1"),
            cc.ToolCall("lookup", {"status": "denied", "effects": [move("billing")]}, "c2"),
        ]
    )
    turn = session.next_turn()
    assert (turn.skill, turn.by, turn.move and turn.move.call_id) == ("refunds", "edge", "c1")
    assert [each.move.by for each in events if isinstance(each, MoveOutrun)] == ["proposal"]
    [conflict] = [each for each in events if isinstance(each, RouteConflict)]
    assert (conflict.winner.target, [each.target for each in conflict.losers]) == ("refunds", ["billing"])
    assert [each.opened.number for each in events if isinstance(each, TurnOpened)] == [1, 2]


async def test_a_call_that_was_denied_or_failed_moves_nothing() -> None:
    @cc.before_tool
    def no(call: cc.ToolCall) -> cc.Deny:
        return cc.deny("it is broken")

    session = boundary(rules=[no]).session(SCOPE)
    session.next_turn()
    await session.call("lookup")
    assert session.next_turn().by == "stay"
    session = boundary().session(SCOPE)
    session.next_turn()
    failed = await session.call("lookup", {"broken": 1})
    assert failed.error
    assert session.next_turn().by == "stay"


@given(st.permutations([0.0, 0.002, 0.004]))
def test_judgement_does_not_depend_on_the_order_in_which_calls_finish(waits: list[float]) -> None:
    asked = [[move("nowhere")], [move("refunds")], [move("billing"), push("next-call")]]

    async def run() -> None:
        session = boundary().session(SCOPE)
        session.next_turn()
        outcomes = await session.call_batch(
            [
                cc.ToolCall("lookup", {"content": str(index), "effects": effects, "wait": wait}, f"c{index}")
                for index, (effects, wait) in enumerate(zip(asked, waits, strict=True))
            ]
        )
        assert [len(outcome.notes) for outcome in outcomes] == [1, 0, 0]
        turn = session.next_turn()
        assert (turn.skill, turn.move and turn.move.call_id) == ("refunds", "c1")
        assert [each.lease and each.lease.call_id for each in turn.instructions] == ["c2"]

    anyio.run(run)


async def test_the_second_of_equal_calls_is_noted_once_and_on_another_replica_too() -> None:
    session = boundary().session(SCOPE)
    texts = []
    told = {"content": "a", "status": "success"}
    for arguments in (told, '{"status": "success", "content": "a"}', told):
        texts.append((await session.call("lookup", arguments)).text)
        session = boundary().session_from_bytes(session.to_bytes())
    assert texts[0] == texts[2] == "a"
    assert texts[1].startswith('a\n["lookup" has now been called 2 times')
    silent = boundary(repeated_call_note=False).session(SCOPE)
    assert [(await silent.call("lookup", told)).text for _ in range(2)] == ["a", "a"]


async def test_equal_results_give_equal_tickets_with_the_note_on() -> None:
    session = boundary(store=cc.MemoryStore(), placement=cc.Placement(max_inline_chars=10)).session(SCOPE)
    first, second = [await session.call("lookup", {"content": "x" * 100}) for _ in range(2)]
    assert first.text == second.text
    assert isinstance(first, cc.Placed)
