"""Leases: for how long an instruction that a tool required is delivered.

The whole law: a turn SERVES its leases first, and then SWEEPS them, both with the skill that the run has moved to by
then (`reference/behaviour.md` 3.2). So the end of a skill's tenure ends its leases on that very turn, for good: coming
back to the skill later revives nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from coatcheck.results.envelope import DeliveryLease

__all__ = ["Lease", "granted", "served", "swept", "tenure"]


class Lease(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A granted requirement. It holds no text: the instruction is looked up when it is delivered.

    Attributes:
        instruction_id: the registered instruction.
        delivery_lease: ``next-call`` or ``until-skill-exit``.
        skill: the skill in whose tenure it was granted; ``None`` where the run was in none.
        tool, call_id: the call whose result required it.
        turn: the number of the turn in which it was granted.
    """

    instruction_id: str
    delivery_lease: DeliveryLease
    skill: str | None = None
    tool: str
    call_id: str | None = None
    turn: int


def tenure(skill: str | None, activated: Sequence[str]) -> str | None:
    """The skill that holds the tenure: the one that the run is in, else the one that was activated last, else none."""
    if skill is not None:
        return skill
    return activated[-1] if activated else None


def served(leases: Sequence[Lease], *, turn: int, skill: str | None) -> tuple[Lease, ...]:
    """The leases that deliver on a turn.

    Args:
        leases: in the order in which they were granted.
        turn: the number of the turn.
        skill: the skill that the run is in on this turn.

    Returns:
        In the same order, the first for each instruction. A ``next-call`` delivers on the turn behind its grant
        whatever the skill, an ``until-skill-exit`` while its skill is the run's.
    """
    found: dict[str, Lease] = {}
    for lease in leases:
        due = lease.turn + 1 == turn if lease.delivery_lease == "next-call" else lease.skill == skill
        if due:
            found.setdefault(lease.instruction_id, lease)
    return tuple(found.values())


def swept(leases: Sequence[Lease], *, turn: int, skill: str | None) -> tuple[Lease, ...]:
    """The leases that are left behind a turn; the arguments are those of `served`, which comes first."""
    return tuple(
        lease
        for lease in leases
        if (lease.turn + 1 > turn if lease.delivery_lease == "next-call" else lease.skill == skill)
    )


def granted(leases: Sequence[Lease], lease: Lease) -> tuple[Lease, ...]:
    """The leases with one more, without those that are spent; one that would say the same again adds nothing."""
    left = swept(leases, turn=lease.turn, skill=lease.skill)
    return left if any(_says_the_same(other, lease) for other in left) else (*left, lease)


def _says_the_same(first: Lease, second: Lease) -> bool:
    """Whether two live leases deliver one instruction on the same turns."""
    return (first.instruction_id, first.delivery_lease) == (second.instruction_id, second.delivery_lease) and (
        first.turn == second.turn if first.delivery_lease == "next-call" else first.skill == second.skill
    )
