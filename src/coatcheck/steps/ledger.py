"""One row of the ledger, and the event that says so."""

from __future__ import annotations

from typing import Any

from coatcheck.decision import Decision, Moment, Verdict
from coatcheck.dispatch import Dispatch
from coatcheck.events import DecisionMade

__all__ = ["file_row"]


def file_row(
    call: Dispatch,
    rule: str,
    moment: Moment,
    outcome: Verdict,
    why: str | None = None,
    change: tuple[Any, Any] | None = None,
) -> None:
    """Put one row on the ledger."""
    if change is None:
        row = Decision(rule, moment, call.name, call.call_id, outcome, False, why)
    else:
        row = Decision(rule, moment, call.name, call.call_id, outcome, True, why, change[0], change[1])
    call.rows.append(row)
    if call.emit is not None:
        call.emit(
            DecisionMade(
                tool=call.name,
                call_id=call.call_id,
                turn=call.turn,
                rule=rule,
                moment=moment,
                outcome=outcome,
                changed=row.changed,
                why=why,
            )
        )
