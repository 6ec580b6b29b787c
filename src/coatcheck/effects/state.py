"""What a session remembers between two turns of its run: one frozen record, small, and JSON both ways.

It holds what was decided and nothing that was read: no text of a result, no instruction. So any replica that has the
host's declarations and this record goes on where another one stopped.
"""

from __future__ import annotations

from typing import Annotated, Literal, Protocol, TypeAlias

import msgspec

from coatcheck.effects.leases import Lease
from coatcheck.results.envelope import Effect, Malformed
from coatcheck.results.status import Status

__all__ = ["Delivered", "Move", "MoveBy", "TurnState"]

MoveBy: TypeAlias = Literal["entry", "edge", "proposal", "pick"]
"""What moves a run: a way into the graph, an edge out of a skill, a tool's accepted proposal, the model's own pick."""


class Delivered(Protocol):
    """What is judged of a call that has ended; every outcome is one."""

    @property
    def tool(self) -> str: ...  # noqa: D102 - as on the outcome, like all of these
    @property
    def call_id(self) -> str | None: ...  # noqa: D102
    @property
    def text(self) -> str: ...  # noqa: D102
    @property
    def status(self) -> Status | None: ...  # noqa: D102
    @property
    def executed(self) -> bool: ...  # noqa: D102
    @property
    def error(self) -> bool: ...  # noqa: D102
    @property
    def effects(self) -> tuple[Effect, ...]: ...  # noqa: D102
    @property
    def malformed(self) -> tuple[Malformed, ...]: ...  # noqa: D102


class Move(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A move that something asked for.

    Attributes:
        target: the skill to move to.
        by: what asked for it.
        turn: the number of the turn in which it did.
        tool, call_id: the call whose result did; ``None`` for a pick, and for the only entry of a graph.
        why: the tool's own reason for a proposal, on one line and bounded; ``None`` for everything else.
    """

    target: str
    by: MoveBy
    turn: int
    tool: str | None = None
    call_id: str | None = None
    why: str | None = None


class TurnState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where the run is, and what the open turn has asked for so far.

    There is one slot for each thing that can move the run. A slot is filled when the move is decided, so that whoever
    takes the bytes next has it, and every turn empties all of them: a move is good for the next turn and no other.

    Attributes:
        number: of the open turn; 0 before the first.
        skill: the one that the run is in; ``None`` while it is in none.
        edge: the declared edge that the first matching result of the turn took.
        proposal: the first accepted proposal of the turn.
        pick: the model's last accepted pick of the turn.
        activated: the skills that were accepted as the next one in this turn, in that order, each once.
        leases: the live ones, in the order in which they were granted.
    """

    number: Annotated[int, msgspec.Meta(ge=0)] = 0
    skill: str | None = None
    edge: Move | None = None
    proposal: Move | None = None
    pick: Move | None = None
    activated: tuple[str, ...] = ()
    leases: tuple[Lease, ...] = ()
