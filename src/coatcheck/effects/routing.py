"""What else can move a run beside a proposal: the host's declared edges, and the model's own pick.

Edges read results in call order. A result takes the first declared edge that matches it; the first result of a turn
that takes one wins, and another result that takes one to another skill is a conflict on the record. An edge reads what
a tool DELIVERED: a call that did not run, failed or waits for a person matches none, so that a denial can never route
like a success. What a rule denied after the tool was delivered, with the rule's words for its text.

The model's own pick is the only thing that a posture gates:

* ``assist``: the model may pick any skill of the graph; the edges are advice to it.
* ``guard``, the default: it may pick what can be reached from where the run is, as a tool may propose it.
* ``rails``: it may pick nothing; edges and proposals alone move the run.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, get_args

import msgspec

from coatcheck.effects.graph import Edge, SkillGraph
from coatcheck.effects.judgement import activate, reached_from
from coatcheck.effects.state import Delivered, Move, TurnState
from coatcheck.results.shapes import legible, quote

__all__ = ["POSTURES", "Landed", "Picked", "Posture", "land", "pick"]

Posture: TypeAlias = Literal["assist", "guard", "rails"]

POSTURES: tuple[Posture, ...] = get_args(Posture)


class Landed(msgspec.Struct, frozen=True):
    """What the edges made of one result.

    Attributes:
        state: the state behind it.
        loser: the edge that this result took too late, because an earlier result of the turn leads elsewhere.
        broken: the predicates that raised or did not answer: the index of the edge, and the error. They matched
            nothing.
    """

    state: TurnState
    loser: Move | None = None
    broken: tuple[tuple[int, BaseException], ...] = ()


class Picked(msgspec.Struct, frozen=True):
    """What became of a pick.

    Attributes:
        state: the state behind it.
        skill: what was picked.
        accepted: whether it stands.
        text: what the model reads about it, on one line.
    """

    state: TurnState
    skill: str
    accepted: bool
    text: str


def land(state: TurnState, call: Delivered, graph: SkillGraph | None) -> Landed:
    """Let the edges read the result of one call. The calls of a batch are given one by one, in call order.

    Args:
        state: behind the call before this one.
        call: its outcome, with the text that the model reads, notes and all.
        graph: the skills of the host.
    """
    if graph is None or not call.executed or call.error:
        return Landed(state)
    broken: list[tuple[int, BaseException]] = []
    for index, edge in graph.leaving(state.skill):
        try:
            if not _matches(edge, call):
                continue
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - a host's predicate that raises, a cancelled future's result for
            # one, has matched nothing, and is reported
            broken.append((index, error))
            continue
        move = Move(
            target=edge.target,
            by="entry" if edge.source is None else "edge",
            turn=state.number,
            tool=legible(call.tool),
            call_id=None if call.call_id is None else legible(call.call_id),
        )
        if state.edge is None:
            return Landed(msgspec.structs.replace(state, edge=move), None, tuple(broken))
        return Landed(state, move if move.target != state.edge.target else None, tuple(broken))
    return Landed(state, None, tuple(broken))


def pick(state: TurnState, skill: str, *, graph: SkillGraph | None, posture: Posture = "guard") -> Picked:
    """Take the model's own pick of the next skill. A later pick of the same turn replaces an earlier one.

    To pick the skill that the run is in takes an earlier pick back, and is no move.

    Args:
        state: of the open turn.
        skill: the id, as the model spoke it.
        graph: the skills of the host; without one every pick is refused.
        posture: what the model may pick.
    """
    refusal = _why_not_picked(skill, state.skill, graph, posture)
    if refusal is not None:
        return Picked(state, skill, False, f"{quote(skill)} was not picked: {refusal}.")
    if skill == state.skill:
        stays = msgspec.structs.replace(state, pick=None)
        return Picked(stays, skill, True, f"The run is in {quote(skill)} already, and no pick moves it.")
    move = Move(target=skill, by="pick", turn=state.number)
    state = msgspec.structs.replace(state, pick=move, activated=activate(state, skill))
    return Picked(
        state,
        skill,
        True,
        f"The run moves to {quote(skill)} on the next turn, unless an edge or a tool's proposal leads elsewhere.",
    )


def _why_not_picked(skill: str, current: str | None, graph: SkillGraph | None, posture: Posture) -> str | None:
    if graph is None:
        return "this host has no skill graph"
    if posture == "rails":
        return "on this host the model picks no skill; go on with the skill that the run is in"
    if skill == current or skill in (graph.nodes if posture == "assist" else graph.reachable(current)):
        return None
    problem = "it cannot be reached" if skill in graph else "there is no such skill"
    return f"{problem}; {reached_from(graph, current)}"


def _matches(edge: Edge, call: Delivered) -> bool:
    """Whether an edge is taken on a result; the text is only made where nothing else says no."""
    if edge.open or edge.tool not in (None, call.tool) or edge.status not in (None, call.status):
        return False
    if edge.when is None:
        return True
    answer: Any = edge.when(call.text)
    if hasattr(answer, "__await__"):
        if hasattr(answer, "close"):
            answer.close()
        raise TypeError("the predicate must be synchronous, but it returned an awaitable")
    return bool(answer)
