"""Whole runs on random cyclic graphs, beside a second account of what must come of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from coatcheck.effects.graph import SkillGraph
from coatcheck.effects.judgement import judge_effects
from coatcheck.effects.routing import POSTURES, Posture, land, pick
from coatcheck.effects.state import TurnState
from coatcheck.effects.turn import Turn, advance
from coatcheck.results.envelope import RequireInstruction
from tests.effects._runs import CATALOG, Step, graphs, runs

postures = st.sampled_from(POSTURES)


def happened(state: TurnState, step: Step, graph: SkillGraph, posture: Posture) -> TurnState:
    if isinstance(step, str):
        return pick(state, step, graph=graph, posture=posture).state
    return land(judge_effects(state, step, graph=graph, catalog=CATALOG).state, step, graph).state


def played(graph: SkillGraph, run: list[list[Step]], posture: Posture, between: Any) -> Iterator[Turn]:
    """The turns of a run, with ``between`` done to the state wherever another replica may take over."""
    state = TurnState()
    for steps in run:
        for step in steps:
            state = between(happened(state, step, graph, posture))
        state, turn = advance(state, graph=graph, catalog=CATALOG)
        state = between(state)
        yield turn


def through_bytes(state: TurnState) -> TurnState:
    again = msgspec.json.decode(msgspec.json.encode(state), type=TurnState)
    assert again == state
    return again


@given(graphs, runs, postures)
def test_a_run_goes_the_same_way_whichever_replica_goes_on_with_it(
    graph: SkillGraph, run: list[list[Step]], posture: Posture
) -> None:
    assert list(played(graph, run, posture, through_bytes)) == list(played(graph, run, posture, lambda state: state))


@given(graphs, runs, postures)
def test_a_run_only_moves_where_it_may_and_says_what_moved_it(
    graph: SkillGraph, run: list[list[Step]], posture: Posture
) -> None:
    before = None
    for number, turn in enumerate(played(graph, run, posture, lambda state: state), 1):
        assert turn.number == number
        if turn.by == "stay":
            assert (turn.skill, turn.move, turn.outrun, turn.came_from) == (before, None, (), None)
        else:
            assert turn.move is not None
            assert (turn.move.by, turn.move.target, turn.came_from) == (turn.by, turn.skill, before)
            assert turn.skill != before
            assert turn.skill in graph.reachable(before) or (turn.by, posture) == ("pick", "assist")
            assert (turn.by, posture) != ("pick", "rails")
            assert (turn.by == "entry") <= (before is None)
        order = ["entry", "edge", "proposal", "pick"]
        asked = [order.index(move.by) for move in (turn.move, *turn.outrun) if move is not None]
        assert asked == sorted(asked)
        assert all(move.target != turn.skill for move in turn.outrun)
        before = turn.skill


@given(graphs, runs, postures)
def test_a_lease_lives_as_long_as_its_tenure_and_coming_back_revives_nothing(
    graph: SkillGraph, run: list[list[Step]], posture: Posture
) -> None:
    """A tenure has a number of its own here, so that the second stay in a skill is not the first."""
    state = TurnState()
    serial = 0
    until: list[tuple[str, int]] = []
    for steps in run:
        following: list[str] = []
        waiting: list[tuple[str, str | None]] = []
        activated: str | None = None
        for step in steps:
            before, state = state, happened(state, step, graph, posture)
            if state.activated != before.activated:
                activated = state.activated[-1]
            if isinstance(step, str) or not step.executed or step.error:
                continue
            # An acceptance within this very call comes before the requirements behind it.
            seen = before.activated[-1] if before.activated else None
            for effect in step.effects:
                if isinstance(effect, RequireInstruction):
                    if effect.instruction_id in {"unknown", "pulled"}:
                        continue
                    if effect.delivery_lease == "next-call":
                        following.append(effect.instruction_id)
                    elif state.skill is not None:
                        until.append((effect.instruction_id, serial))
                    else:
                        waiting.append((effect.instruction_id, seen))
                elif before.proposal is None and state.proposal is not None and effect.target_skill_id == activated:
                    seen = activated
        was = state.skill
        state, turn = advance(state, graph=graph, catalog=CATALOG)
        serial += turn.skill != was
        until += [(id, serial) for id, skill in waiting if skill == turn.skill]
        expected = {*following, *(id for id, tenure in until if tenure == serial)}
        own = {delivery.id for delivery in turn.instructions if delivery.why == "skill"}
        assert own == ({"always-a"} if turn.skill == "a" else set())
        assert {delivery.id for delivery in turn.instructions} == expected | own
        assert len(turn.instructions) == len(expected | own)
        # What is left can still be served, so nothing piles up.
        assert all(lease.delivery_lease == "until-skill-exit" for lease in state.leases)
        assert all(lease.skill == turn.skill for lease in state.leases)
        assert len(state.leases) <= len(CATALOG)
        for delivery in turn.instructions:
            assert (delivery.lease is None) == (delivery.why == "skill")
            if delivery.lease is not None:
                assert (delivery.lease.instruction_id, delivery.lease.delivery_lease) == (delivery.id, delivery.why)
