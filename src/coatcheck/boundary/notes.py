"""What becomes of the effects that a tool asked for, and what the model is told about it."""

from __future__ import annotations

import contextlib

import msgspec

from coatcheck.dispatch import Dispatch
from coatcheck.effects.judgement import judge, note_for
from coatcheck.events import EffectJudged
from coatcheck.outcome import Marker, Outcome, Placed, Truncated

__all__ = ["MAX_NOTES", "judged", "with_notes"]

MAX_NOTES = 8
"""How many refusals of one call are told to the model; the rest is told as a number, and by events."""


def judged(outcome: Outcome, call: Dispatch) -> Outcome:
    """Judge what the tool asked for: an event for each effect, and a note to the model for each that is refused."""
    notes: list[str] = []
    for judgement in judge(outcome.effects, outcome.malformed):
        if call.emit is not None:
            call.emit(
                EffectJudged(
                    tool=outcome.tool,
                    call_id=outcome.call_id,
                    turn=call.turn,
                    kind=judgement.kind,
                    outcome=judgement.outcome,
                    reason=judgement.reason,
                    target_skill_id=judgement.target_skill_id,
                    instruction_id=judgement.instruction_id,
                    delivery_lease=judgement.delivery_lease,
                )
            )
        if judgement.outcome == "refused":
            notes.append(note_for(judgement))
    if len(notes) > MAX_NOTES:
        notes[MAX_NOTES:] = [f"[{len(notes) - MAX_NOTES} more effects were refused in the same way.]"]
    return with_notes(outcome, tuple(notes)) if notes else outcome


def with_notes(outcome: Outcome, notes: tuple[str, ...]) -> Outcome:
    """Add notes to what the model reads, without breaking a ticket's or a marker's JSON."""
    replace = msgspec.structs.replace
    if isinstance(outcome, Placed):
        ticket = replace(outcome.ticket, notes=notes)
        tickets = tuple(ticket if each == outcome.ticket else each for each in outcome.tickets)
        return replace(outcome, text=ticket.to_json(), ticket=ticket, tickets=tickets, notes=notes)
    if isinstance(outcome, Truncated):
        marker = replace(outcome.marker, notes=notes)
        return replace(outcome, text=marker.to_json(), marker=marker, notes=notes)
    if outcome.cut:  # a refusal that was cut reads as a marker, too
        with contextlib.suppress(msgspec.DecodeError, ValueError):
            marker = replace(msgspec.json.decode(outcome.text, type=Marker), notes=notes)
            return replace(outcome, text=marker.to_json(), notes=notes)
    return replace(outcome, text="\n".join((outcome.text, *notes)), notes=notes)
