"""The judgement of effects: a tool asks, the host's declarations decide, and every decision is on the record.

The law (`reference/behaviour.md` 3):

* Calls are judged in call order, whatever order they finished in. Within one call ALL malformed effects are refused
  first, then the valid ones are judged in the order in which the tool declared them. Each gets one judgement.
* A transition is accepted where its target is reachable from the skill that the run is in. The first ACCEPTED one of a
  turn wins and fills the slot at once; the same target again is accepted too, another one is superseded. One that was
  refused stands in nobody's way.
* An instruction is granted where it is registered and may be pushed.
* Nothing is judged of a call that did not run or that failed. A rule's denial after the tool cancels nothing.

A refusal says why in a sentence that teaches; what was not refused adds no text.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from coatcheck.effects.graph import SkillGraph
from coatcheck.effects.instructions import InstructionCatalog
from coatcheck.effects.leases import Lease, granted, tenure
from coatcheck.effects.state import Delivered, Move, TurnState
from coatcheck.results.envelope import (
    DeliveryLease,
    EffectKind,
    ProposeTransition,
)
from coatcheck.results.shapes import clip, legible, quote

__all__ = ["NOTE_LIMIT", "Judged", "Judgement", "activate", "judge_effects", "note_for", "reached_from"]

NOTE_LIMIT = 400

_QUOTED_CHARS = 40
_LISTED_CHARS = 160


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one effect.

    Attributes:
        kind: the effect's reserved word.
        outcome: ``accepted``, ``refused``, or ``superseded`` by an earlier accepted proposal of the same turn.
        reason: why it was refused; ``None`` otherwise.
        target_skill_id: as the transition had it, verbatim; ``None`` on an instruction and on a malformed effect.
        why: the tool's own reason for the transition, on one line and bounded; ``None`` where the target is.
        instruction_id: as the instruction had it, verbatim; ``None`` on a transition and on a malformed effect.
        delivery_lease: as the instruction had it; ``None`` on a transition and on a malformed effect.
    """

    kind: EffectKind
    outcome: Literal["accepted", "refused", "superseded"]
    reason: str | None = None
    target_skill_id: str | None = None
    why: str | None = None
    instruction_id: str | None = None
    delivery_lease: DeliveryLease | None = None


class Judged(msgspec.Struct, frozen=True):
    """What came of the effects of one call.

    Attributes:
        state: the state behind them.
        judgements: one for each effect: the malformed ones, then the valid ones in declared order.
        losers: the transitions that were superseded, for the record of the conflict.
    """

    state: TurnState
    judgements: tuple[Judgement, ...] = ()
    losers: tuple[Move, ...] = ()


def judge_effects(
    state: TurnState, call: Delivered, *, graph: SkillGraph | None = None, catalog: InstructionCatalog | None = None
) -> Judged:
    """Judge what the result of one call asks for. The calls of a batch are given one by one, in call order.

    Args:
        state: behind the call before this one.
        call: its outcome.
        graph: the skills of the host; without one every transition is refused.
        catalog: its instructions; without one every instruction is refused.
    """
    if not call.executed or call.error or not (call.effects or call.malformed):
        return Judged(state)
    judgements = [Judgement(kind=fault.kind, outcome="refused", reason=fault.reason) for fault in call.malformed]
    losers: list[Move] = []
    tool, call_id = legible(call.tool), None if call.call_id is None else legible(call.call_id)
    for effect in call.effects:
        if isinstance(effect, ProposeTransition):
            move = Move(
                target=effect.target_skill_id,
                by="proposal",
                turn=state.number,
                tool=tool,
                call_id=call_id,
                why=clip(legible(effect.reason), NOTE_LIMIT),
            )
            state, judgement = _propose(state, move, graph)
            if judgement.outcome == "superseded":
                losers.append(move)
        else:
            lease = Lease(
                instruction_id=effect.instruction_id,
                delivery_lease=effect.delivery_lease,
                skill=tenure(state.skill, state.activated),
                tool=tool,
                call_id=call_id,
                turn=state.number,
            )
            state, judgement = _require(state, lease, catalog)
        judgements.append(judgement)
    return Judged(state, tuple(judgements), tuple(losers))


def note_for(judgement: Judgement) -> str:
    """The sentence about a judgement that the model reads, in brackets, on one line.

    Args:
        judgement: what became of an effect.

    Returns:
        At most ``NOTE_LIMIT`` characters, however long an id is. Empty for what was not refused: an effect that
        was accepted or superseded adds no text.
    """
    if judgement.outcome != "refused" or judgement.reason is None:
        return ""
    before, after = "[effect refused: ", "]"
    return before + clip(judgement.reason, NOTE_LIMIT - len(before) - len(after)) + after


def activate(state: TurnState, skill: str) -> tuple[str, ...]:
    """The activated skills of ``state`` with ``skill`` as the last one."""
    return (*(other for other in state.activated if other != skill), skill)


def reached_from(graph: SkillGraph, current: str | None) -> str:
    """A sentence about the skills that can be reached, bounded, for whoever asked for another one."""
    where = "the start" if current is None else quote(current, _QUOTED_CHARS)
    return f"from {where} the run can go to {_listed(graph.reachable(current))}"


def _propose(state: TurnState, move: Move, graph: SkillGraph | None) -> tuple[TurnState, Judgement]:
    refusal = _why_not_there(move.target, state.skill, graph)
    outcome: Literal["accepted", "refused", "superseded"] = "accepted" if refusal is None else "refused"
    if refusal is None and state.proposal is None:
        state = msgspec.structs.replace(state, proposal=move, activated=activate(state, move.target))
    elif refusal is None and state.proposal is not None and state.proposal.target != move.target:
        outcome = "superseded"
    return state, Judgement(
        kind="propose-transition", outcome=outcome, reason=refusal, target_skill_id=move.target, why=move.why
    )


def _require(state: TurnState, lease: Lease, catalog: InstructionCatalog | None) -> tuple[TurnState, Judgement]:
    refusal = _why_not_pushed(lease.instruction_id, catalog)
    if refusal is None:
        state = msgspec.structs.replace(state, leases=granted(state.leases, lease))
    return state, Judgement(
        kind="require-instruction",
        outcome="accepted" if refusal is None else "refused",
        reason=refusal,
        instruction_id=lease.instruction_id,
        delivery_lease=lease.delivery_lease,
    )


def _why_not_there(target: str, current: str | None, graph: SkillGraph | None) -> str | None:
    """Why a proposed transition is refused, or ``None``."""
    asked = f"propose-transition to {quote(target)}"
    if graph is None:
        return f"{asked}: this host has no skill graph, so there is no skill to move to, and the run stays where it is"
    if target in graph.reachable(current):
        return None
    if target == current:
        return f"{asked}: the run is in it already; {reached_from(graph, current)}"
    return f"{asked}: it cannot be reached; {reached_from(graph, current)}"


def _why_not_pushed(instruction_id: str, catalog: InstructionCatalog | None) -> str | None:
    """Why a required instruction is refused, or ``None``."""
    asked = f"require-instruction of {quote(instruction_id)}"
    if catalog is None:
        return f"{asked}: this host has no instruction catalog, so no instruction is registered, and none was delivered"
    found = catalog.get(instruction_id)
    if found is None:
        ids = tuple(instruction.id for instruction in catalog if not instruction.pull_only)
        return f"{asked}: no such instruction is registered, and none was delivered; there are {_listed(ids)}"
    if found.pull_only:
        return f"{asked}: it travels only by pull, so it is read with the host's own tool, and was not delivered"
    return None


def _listed(ids: tuple[str, ...]) -> str:
    """Ids for a sentence: as many as there is room for, and how many more there are."""
    shown: list[str] = []
    room = _LISTED_CHARS
    for id in ids:
        word = quote(id, _QUOTED_CHARS)
        room -= len(word) + 2
        if room < 0:
            return f"{', '.join(shown)} and {len(ids) - len(shown)} more"
        shown.append(word)
    return ", ".join(shown) or "nothing"
