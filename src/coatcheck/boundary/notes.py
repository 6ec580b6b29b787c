"""What becomes of the effects that a tool asked for, and what the model is told about it."""

from __future__ import annotations

import contextlib

import msgspec

from coatcheck.outcome import Marker, Outcome, Placed, Truncated

__all__ = ["with_notes"]


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
