"""The turn: what the run does next, decided from the state and from nothing else.

The order of precedence, before any model call:

1. a declared edge that a result of the turn took (before the start: a way into the graph, or its only entry);
2. else the accepted proposal (before the start it names an entry, since nothing else is reachable);
3. else the model's own pick;
4. else the run stays where it is.

What was accepted and not taken is on the record of the turn. Then the leases are served, and then swept, with the skill
that the run is in now. Whoever restores a state may have other declarations: where the skill is in no graph any more
the run starts again, a move that leads nowhere any more is none, an instruction that is gone is not delivered.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from coatcheck.effects.graph import SkillGraph
from coatcheck.effects.instructions import InstructionCatalog
from coatcheck.effects.leases import Lease, served, swept
from coatcheck.effects.routing import POSTURES
from coatcheck.effects.state import Move, MoveBy, TurnState
from coatcheck.errors import ConfigurationError
from coatcheck.results.shapes import describe, is_text, quote

__all__ = ["Delivery", "Turn", "advance", "check_declarations"]


class Delivery(msgspec.Struct, frozen=True, omit_defaults=True):
    """One instruction for the next model call, and why it is there.

    Attributes:
        id: of the registered instruction.
        text: what the model is to read.
        why: ``skill``: it belongs to the skill that the run is in. Else a tool required it, and this is the lease's
            word: ``next-call`` or ``until-skill-exit``.
        lease: who required it, and when; ``None`` for an instruction of the skill.
    """

    id: str
    text: str
    why: Literal["skill", "next-call", "until-skill-exit"]
    lease: Lease | None = None


class Turn(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One turn of a run: where it is, how it got there, and what the model is to be told.

    Attributes:
        number: counted from 1.
        skill: the one that the run is in on this turn; ``None`` while it is in none.
        by: what moved it there; ``stay`` where nothing did.
        came_from: the skill that it left; ``None`` where it was in none, and where it stays.
        move: the move that was taken; ``None`` where it stays.
        outrun: the moves that had been accepted, and that the one taken left behind because it leads elsewhere.
        instructions: to deliver with the next model call, each once: first those of the skill in the order of the
            catalog, then those that tools required in the order of their grants.
        ended: the leases that this turn ended.
    """

    number: int
    skill: str | None = None
    by: MoveBy | Literal["stay"] = "stay"
    came_from: str | None = None
    move: Move | None = None
    outrun: tuple[Move, ...] = ()
    instructions: tuple[Delivery, ...] = ()
    ended: tuple[Lease, ...] = ()

    def without_texts(self) -> Turn:
        """The same turn for a record: the instructions by their ids alone."""
        bare = tuple(msgspec.structs.replace(delivery, text="") for delivery in self.instructions)
        return msgspec.structs.replace(self, instructions=bare)


def advance(
    state: TurnState, *, graph: SkillGraph | None = None, catalog: InstructionCatalog | None = None
) -> tuple[TurnState, Turn]:
    """Open the next turn.

    Args:
        state: behind all calls of the turn that ends.
        graph: the skills of the host; without one the run is in no skill.
        catalog: its instructions; without one none is delivered.

    Returns:
        The state of the new turn, with empty slots, and the turn.
    """
    number = state.number + 1
    here = state.skill if graph is not None and state.skill in graph else None
    asked = [] if graph is None else _moves(state, here, graph, number)
    taken = asked[0] if asked else None
    skill = here if taken is None else taken.target
    delivering = served(state.leases, turn=number, skill=skill)
    left = swept(state.leases, turn=number, skill=skill)
    turn = Turn(
        number=number,
        skill=skill,
        by="stay" if taken is None else taken.by,
        came_from=None if taken is None else here,
        move=taken,
        outrun=tuple(move for move in asked[1:] if move.target != skill),
        instructions=_deliveries(skill, delivering, catalog),
        ended=tuple(lease for lease in state.leases if lease not in left),
    )
    return TurnState(number=number, skill=skill, leases=left), turn


def check_declarations(graph: object, catalog: object, posture: object) -> None:
    """Refuse declarations of a boundary that cannot be honoured, or that do not fit together.

    Raises:
        ConfigurationError: naming the setting.
    """
    if graph is not None and not isinstance(graph, SkillGraph):
        raise ConfigurationError(f"Boundary(graph=...) must be a SkillGraph, but {describe(graph)}")
    if catalog is not None and not isinstance(catalog, InstructionCatalog):
        raise ConfigurationError(f"Boundary(instructions=...) must be an InstructionCatalog, but {describe(catalog)}")
    if not is_text(posture) or posture not in POSTURES:
        given = quote(posture) if is_text(posture) else describe(posture)
        raise ConfigurationError(f"Boundary(posture=...) must be one of {', '.join(POSTURES)}, not {given}")
    for index, instruction in enumerate(catalog or ()):
        if instruction.skill is not None and (graph is None or instruction.skill not in graph):
            raise ConfigurationError(
                f"Boundary(instructions=...): InstructionCatalog[{index}].skill is {quote(instruction.skill)}, "
                "which is no skill of Boundary(graph=...)"
            )


def _moves(state: TurnState, here: str | None, graph: SkillGraph, number: int) -> list[Move]:
    """Everything that would move the run out of ``here``, in the order of precedence."""
    reachable = graph.reachable(here)
    entry = Move(target=graph.entries[0], by="entry", turn=number)
    if here != state.skill:  # what was asked for in a skill that is gone
        state = TurnState()
    may_be = (
        (state.edge, reachable),
        (entry if here is None and len(graph.entries) == 1 else None, reachable),
        (state.proposal, reachable),
        (state.pick, graph.nodes),  # what it may be was judged when it was made
    )
    return [move for move, targets in may_be if move is not None and move.target in targets and move.target != here]


def _deliveries(
    skill: str | None, leases: tuple[Lease, ...], catalog: InstructionCatalog | None
) -> tuple[Delivery, ...]:
    if catalog is None:
        return ()
    found: dict[str, Delivery] = {}
    for instruction in catalog:
        if skill is not None and instruction.skill == skill:
            found[instruction.id] = Delivery(instruction.id, instruction.text, "skill")
    for lease in leases:
        required = catalog.get(lease.instruction_id)
        if required is not None and not required.pull_only:
            found.setdefault(required.id, Delivery(required.id, required.text, lease.delivery_lease, lease))
    return tuple(found.values())
