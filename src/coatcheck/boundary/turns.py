"""The run of one session: what its results asked for, and the turns that follow. The law is in `coatcheck.effects`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from coatcheck.dispatch import Dispatch
from coatcheck.effects.graph import SkillGraph
from coatcheck.effects.instructions import InstructionCatalog
from coatcheck.effects.judgement import judge_effects, note_for
from coatcheck.effects.routing import Picked, Posture, land, pick
from coatcheck.effects.state import Move, TurnState
from coatcheck.effects.turn import Turn, advance
from coatcheck.events import EffectJudged, Event, MoveOutrun, PickJudged, RouteConflict, TurnOpened
from coatcheck.outcome import Outcome

__all__ = ["MAX_NOTES", "Turns"]

_log = logging.getLogger("coatcheck")

MAX_NOTES = 8
"""How many refusals of one call are told to the model; the rest is told as a number, and by events."""


class Turns:
    """The state of one session between its model calls, and what the host declared about it.

    Args:
        graph, instructions, posture: of the boundary.
        emit: where events go.
    """

    def __init__(
        self,
        graph: SkillGraph | None,
        instructions: InstructionCatalog | None,
        posture: Posture,
        emit: Callable[[Event], None] | None,
    ) -> None:
        self.state: TurnState = TurnState()
        self.graph = graph
        self._instructions = instructions
        self._posture: Posture = posture
        self._emit = emit
        self._losers: list[Move] = []

    def judge(self, outcome: Outcome, call: Dispatch) -> list[str]:
        """Judge what a result asks for: an event for each effect, and a note to the model for each that is refused."""
        judged = judge_effects(self.state, outcome, graph=self.graph, catalog=self._instructions)
        self.state = judged.state
        self._lost(judged.losers)
        notes: list[str] = []
        for judgement in judged.judgements:
            if self._emit is not None:
                fields = msgspec.structs.asdict(judgement)
                self._emit(EffectJudged(tool=outcome.tool, call_id=outcome.call_id, turn=call.turn, **fields))
            if judgement.outcome == "refused":
                notes.append(note_for(judgement))
        if len(notes) > MAX_NOTES:
            notes[MAX_NOTES:] = [f"[{len(notes) - MAX_NOTES} more effects were refused in the same way.]"]
        return notes

    def land(self, outcome: Outcome) -> None:
        """Let the declared edges read a final outcome."""
        if self.graph is None:
            return
        landed = land(self.state, outcome, self.graph)
        self.state = landed.state
        if landed.loser is not None:
            self._lost([landed.loser])
        for index, error in landed.broken:
            _log.error("the predicate of SkillGraph.edges[%d] failed, and matched nothing", index, exc_info=error)

    def _lost(self, moves: Sequence[Move]) -> None:
        if self._emit is not None:  # they are kept for the event alone
            self._losers += moves

    def end_batch(self, turn: int) -> None:
        """Put on record who won where the results of a batch wanted to go to different skills."""
        losers, self._losers = self._losers, []
        if self._emit is None:
            return
        for winner in (self.state.edge, self.state.proposal):
            lost = tuple(
                move for move in losers if winner is not None and (move.by == "proposal") == (winner.by == "proposal")
            )
            if winner is not None and lost:
                self._emit(RouteConflict(tool=None, call_id=None, turn=turn, winner=winner, losers=lost))

    def pick(self, skill: str, turn: int) -> Picked:
        """Take the model's own pick."""
        picked = pick(self.state, skill, graph=self.graph, posture=self._posture)
        self.state = picked.state
        if self._emit is not None:
            self._emit(
                PickJudged(
                    tool=None, call_id=None, turn=turn, skill=skill, accepted=picked.accepted, reason=picked.text
                )
            )
        return picked

    def advance(self) -> Turn:
        """Open the next turn."""
        self.state, turn = advance(self.state, graph=self.graph, catalog=self._instructions)
        if self._emit is not None:
            about: dict[str, Any] = {"tool": None, "call_id": None, "turn": turn.number}
            for move in turn.outrun:
                self._emit(MoveOutrun(**about, move=move, went_to=turn.skill))
            self._emit(TurnOpened(**about, opened=turn.without_texts()))
        return turn
