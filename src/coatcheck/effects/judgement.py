"""The judgement of one call's effects, by a host that has declared nothing to judge them against.

Without a skill graph no skill is reachable, and without a catalog no instruction is registered, so every effect is
refused, out loud and on the record: a tool is never left to believe that it steered the run.

The order is part of the law: within one call ALL malformed effects are refused first, then the valid ones in the
order in which the tool declared them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from coatcheck.results.envelope import (
    DeliveryLease,
    Effect,
    EffectKind,
    Malformed,
    ProposeTransition,
)
from coatcheck.results.shapes import clip, quote

__all__ = ["NOTE_LIMIT", "Judgement", "judge", "note_for"]

NOTE_LIMIT = 400


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one effect.

    Attributes:
        kind: the effect's reserved word.
        outcome: ``accepted``, ``refused``, or ``superseded`` by an earlier accepted proposal of the same batch.
        reason: why it was refused; ``None`` otherwise.
        target_skill_id: as the transition had it, verbatim; ``None`` on an instruction and on a malformed effect.
        instruction_id: as the instruction had it, verbatim; ``None`` on a transition and on a malformed effect.
        delivery_lease: as the instruction had it; ``None`` on a transition and on a malformed effect.
    """

    kind: EffectKind
    outcome: Literal["accepted", "refused", "superseded"]
    reason: str | None = None
    target_skill_id: str | None = None
    instruction_id: str | None = None
    delivery_lease: DeliveryLease | None = None


def judge(effects: Iterable[Effect], malformed: Iterable[Malformed]) -> tuple[Judgement, ...]:
    """Judge one call's effects where neither a skill graph nor an instruction catalog is mounted.

    Args:
        effects: the valid effects of the call's envelope, in declared order.
        malformed: its malformed ones, in declared order.

    Returns:
        One judgement for each: the malformed first, then the valid, all refused.
    """
    faulty = (Judgement(kind=fault.kind, outcome="refused", reason=fault.reason) for fault in malformed)
    return (*faulty, *map(_refuse, effects))


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


def _refuse(effect: Effect) -> Judgement:
    if isinstance(effect, ProposeTransition):
        return Judgement(
            kind=effect.kind,
            outcome="refused",
            reason=(
                f"{effect.kind} to {quote(effect.target_skill_id)}: this host has no skill graph, so there is no "
                "skill to move to, and the run stays where it is"
            ),
            target_skill_id=effect.target_skill_id,
        )
    return Judgement(
        kind=effect.kind,
        outcome="refused",
        reason=(
            f"{effect.kind} of {quote(effect.instruction_id)}: this host has no instruction catalog, so no "
            "instruction is registered, and none was delivered"
        ),
        instruction_id=effect.instruction_id,
        delivery_lease=effect.delivery_lease,
    )
