from __future__ import annotations

import msgspec
import pytest

from coatcheck.effects.graph import Edge, SkillGraph
from coatcheck.effects.instructions import Instruction, InstructionCatalog
from coatcheck.effects.judgement import judge_effects
from coatcheck.effects.leases import Lease
from coatcheck.effects.routing import land, pick
from coatcheck.effects.state import Move, TurnState
from coatcheck.effects.turn import Delivery, Turn, advance
from tests.effects._runs import CATALOG, Ended, proposing, requiring

GRAPH = SkillGraph(
    ["a", "b", "c", "d"],
    entries=["a"],
    edges=[
        Edge("a", "b", tool="moving"),
        Edge("a", "c", open=True),
        Edge("a", "d", open=True),
        Edge("b", "a", open=True),
        Edge("c", "a", open=True),
    ],
)
IN_A = TurnState(number=1, skill="a")


def ended(state: TurnState, *calls: Ended) -> TurnState:
    """The state behind a batch."""
    for call in calls:
        state = judge_effects(state, call, graph=GRAPH, catalog=CATALOG).state
        state = land(state, call, GRAPH).state
    return state


MOVING = Ended(tool="moving", call_id="c2")


def test_the_first_turn_enters_the_only_entry() -> None:
    state, turn = advance(TurnState(), graph=GRAPH)
    assert turn == Turn(number=1, skill="a", by="entry", move=Move(target="a", by="entry", turn=1))
    assert state == TurnState(number=1, skill="a")


def test_a_declared_edge_then_a_proposal_then_a_pick_else_the_run_stays() -> None:
    asked = pick(ended(IN_A, proposing("c"), MOVING), "d", graph=GRAPH).state
    for slots, skill, by, outrun in [
        (("edge", "proposal", "pick"), "b", "edge", ["c", "d"]),
        (("proposal", "pick"), "c", "proposal", ["d"]),
        (("pick",), "d", "pick", []),
        ((), "a", "stay", []),
    ]:
        kept = {name: getattr(asked, name) if name in slots else None for name in ("edge", "proposal", "pick")}
        _, turn = advance(msgspec.structs.replace(asked, **kept), graph=GRAPH)
        assert (turn.skill, turn.by, turn.came_from) == (skill, by, None if by == "stay" else "a")
        assert [move.target for move in turn.outrun] == outrun
        assert (turn.move is None) == (by == "stay")


def test_a_proposal_that_an_edge_outran_is_on_the_record() -> None:
    _, turn = advance(ended(IN_A, proposing("d"), MOVING), graph=GRAPH)
    assert turn.move == Move(target="b", by="edge", turn=1, tool="moving", call_id="c2")
    assert turn.outrun == (Move(target="d", by="proposal", turn=1, tool="t", call_id="c1", why="why"),)


def test_what_leads_to_where_the_run_goes_anyway_was_not_outrun() -> None:
    state = ended(IN_A, proposing("b"), MOVING)
    _, turn = advance(pick(state, "b", graph=GRAPH).state, graph=GRAPH)
    assert (turn.skill, turn.by, turn.outrun) == ("b", "edge", ())


def test_a_move_is_good_for_one_turn_only() -> None:
    state = ended(IN_A, proposing("c"), MOVING)
    state, first = advance(state, graph=GRAPH)
    state, second = advance(state, graph=GRAPH)
    assert [first.skill, second.skill] == ["b", "b"]
    assert (second.by, second.outrun) == ("stay", ())
    assert state == TurnState(number=3, skill="b")


def test_a_cold_start_takes_an_entry_rule_then_a_proposed_entry_then_a_pick_else_waits() -> None:
    graph = SkillGraph(["a", "b", "c"], entries=["a", "b", "c"], edges=[Edge(None, "a", tool="t")])
    cold = TurnState(number=1)
    edge = land(cold, Ended(), graph).state.edge
    proposed = judge_effects(cold, proposing("b"), graph=graph).state.proposal
    picked = pick(cold, "c", graph=graph).state.pick
    for state, skill, by in [
        (TurnState(edge=edge, proposal=proposed, pick=picked), "a", "entry"),
        (TurnState(proposal=proposed, pick=picked), "b", "proposal"),
        (TurnState(pick=picked), "c", "pick"),
        (TurnState(), None, "stay"),
    ]:
        _, turn = advance(state, graph=graph)
        assert (turn.skill, turn.by, turn.came_from) == (skill, by, None)


def test_the_only_entry_outruns_what_was_proposed_and_picked_before_the_start() -> None:
    state = pick(TurnState(), "c", graph=GRAPH, posture="assist").state
    _, turn = advance(state, graph=GRAPH)
    assert (turn.skill, turn.by) == ("a", "entry")
    assert [move.by for move in turn.outrun] == ["pick"]


def test_without_a_graph_the_run_is_in_no_skill_and_leases_hold() -> None:
    state = judge_effects(TurnState(number=1), requiring("snippet", "until-skill-exit"), catalog=CATALOG).state
    for number in range(2, 6):
        state, turn = advance(state, catalog=CATALOG)
        assert (turn.number, turn.skill, turn.by) == (number, None, "stay")
        assert [delivery.id for delivery in turn.instructions] == ["snippet"]


def test_instructions_of_the_skill_come_first_and_each_comes_once_with_its_why() -> None:
    state = ended(
        IN_A, requiring("snippet"), requiring("always-a"), requiring("snippet", "until-skill-exit"), requiring("other")
    )
    state, turn = advance(state, graph=GRAPH, catalog=CATALOG)
    snippet, always, other, held = (*turn.ended, *state.leases)
    assert turn.instructions == (
        Delivery("always-a", "text of always-a", "skill"),
        Delivery("snippet", "text of snippet", "next-call", snippet),
        Delivery("other", "text of other", "next-call", other),
    )
    assert always.instruction_id == "always-a"
    assert held == Lease(
        instruction_id="snippet", delivery_lease="until-skill-exit", skill="a", tool="t", call_id="c1", turn=1
    )
    assert state.leases == (held,)


def test_a_lease_until_the_skill_is_left_ends_with_the_tenure_and_is_never_served_again() -> None:
    state = ended(IN_A, requiring("snippet", "until-skill-exit"))
    delivered, ending = [], []
    for target in ("", "c", "a", "", "c", "a"):
        state, turn = advance(ended(state, proposing(target)) if target else state, graph=GRAPH, catalog=CATALOG)
        delivered.append([delivery.id for delivery in turn.instructions if delivery.why != "skill"])
        ending.append(len(turn.ended))
    assert delivered == [["snippet"], [], [], [], [], []]
    assert ending == [0, 1, 0, 0, 0, 0]


def test_a_lease_for_the_next_call_goes_along_with_a_move() -> None:
    state = ended(IN_A, requiring("snippet"), proposing("c"))
    state, turn = advance(state, graph=GRAPH, catalog=CATALOG)
    assert (turn.skill, [delivery.id for delivery in turn.instructions]) == ("c", ["snippet"])
    assert state.leases == ()


def test_a_state_goes_on_under_other_declarations() -> None:
    """A replica with newer declarations takes over: what is gone counts as never there."""
    state = ended(IN_A, requiring("snippet"), requiring("other"), proposing("c"), MOVING)
    other = SkillGraph(["x", "b", "c"], entries=["x", "b", "c"])
    _, turn = advance(state, graph=other, catalog=InstructionCatalog([Instruction("other", "text", pull_only=True)]))
    assert (turn.skill, turn.by, turn.move, turn.instructions) == (None, "stay", None, ())
    fewer = SkillGraph(["a", "c"], entries=["a"], edges=[Edge("a", "c", open=True)])
    _, turn = advance(state, graph=fewer)
    assert (turn.skill, turn.by, turn.instructions) == ("c", "proposal", ())
    renamed = SkillGraph(["x"], entries=["x"])
    _, turn = advance(state, graph=renamed)
    assert (turn.skill, turn.by, turn.came_from) == ("x", "entry", None)


def test_a_turn_for_a_record_names_its_instructions_without_their_texts() -> None:
    _, turn = advance(ended(IN_A, requiring("snippet")), graph=GRAPH, catalog=CATALOG)
    bare = turn.without_texts()
    assert [(delivery.id, delivery.text) for delivery in bare.instructions] == [("always-a", ""), ("snippet", "")]
    assert msgspec.json.decode(msgspec.json.encode(turn), type=Turn) == turn
    assert b"text of" not in msgspec.json.encode(bare)


def test_the_state_of_a_session_that_routes_nothing_takes_two_bytes() -> None:
    assert msgspec.json.encode(TurnState()) == b"{}"


def test_a_state_before_the_first_turn_is_refused_where_its_number_is_none() -> None:
    with pytest.raises(msgspec.ValidationError, match=r"\$\.number"):
        msgspec.json.decode(b'{"number":-1}', type=TurnState)
