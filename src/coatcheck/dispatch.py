"""A call on its way through the chain: the call itself, and what the steps share about it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

import anyio
import msgspec

from coatcheck.call import ToolCall
from coatcheck.decision import Decision
from coatcheck.events import Event
from coatcheck.scope import Scope

__all__ = ["Approval", "BatchPlace", "Dispatch", "Limit", "is_stray"]


class Approval(msgspec.Struct, frozen=True):
    """A person's yes to the rule at ``index``: the walk goes on behind it, and nobody is asked again.

    It is a yes to ``tool`` with exactly these ``arguments``, whatever a middleware made of them on the way.
    """

    rule: str
    index: int
    why: str
    tool: str
    arguments: dict[str, Any]


class Limit:
    """How many executions may run at once, and how many of them will not end because their thread hangs."""

    def __init__(self, size: int) -> None:
        self.size: int = size
        self.stuck: int = 0
        self.free: anyio.Semaphore = anyio.Semaphore(size, fast_acquire=True)
        self.waiting: set[anyio.CancelScope] = set()


class BatchPlace(Protocol):
    """One call's place among the calls of its turn."""

    slots: Limit
    """How many tools of the turn run at once: taken for the execution alone."""

    def walked(self) -> None:
        """Say that this call has passed the rules before the tool, so that the next may enter; safe to say twice."""

    def ended(self, chars: int) -> None:
        """Say that this call takes ``chars`` characters and cannot be placed any more; the latest word counts."""

    async def must_place(self, chars: int, ticket_chars: int, patience: float) -> bool:
        """Say how large this call's text is, wait for all others, and be told whether the budget wants it placed.

        Args:
            chars: what the model would read now.
            ticket_chars: the length of its ticket.
            patience: how many seconds to wait, because whoever is waited for may be waiting for something that this
                call holds; then the answer is yes where the ticket is shorter and what is known so far is over the
                budget already.
        """


class Dispatch(ToolCall, frozen=True, eq=False):
    """A `ToolCall` on its way, with what the boundary knows about it.

    A middleware may hand on another call than it was given; `following` keeps the rest with it.

    Attributes:
        scope, turn: of the session.
        rows: the ledger rows of this call, appended as they are made.
        emit: where events go; ``None`` where nobody listens, so that none is built.
        batch: its place in the turn, or ``None`` for a turn of one call.
        approval: a person's approval, on resume.
        wanted: the refs that the tool was handed, which are parents of what the call makes.
    """

    scope: Scope = msgspec.field(default_factory=lambda: Scope(conversation="-"))
    turn: int = 0
    rows: list[Decision] = msgspec.field(default_factory=list)
    emit: Callable[[Event], None] | None = None
    batch: BatchPlace | None = None
    approval: Approval | None = None
    wanted: list[str] = msgspec.field(default_factory=list)

    def following(self, call: ToolCall) -> Dispatch:
        """``call`` as the one that goes on in place of this one."""
        if isinstance(call, Dispatch):
            return call
        return self._as(call.name, call.arguments, call.call_id)

    def with_arguments(self, arguments: dict[str, Any]) -> Dispatch:
        """This call with other arguments."""
        return self._as(self.name, arguments, self.call_id)

    def _as(self, name: str, arguments: dict[str, Any], call_id: str | None) -> Dispatch:
        return Dispatch(
            name,
            arguments,
            call_id,
            self.scope,
            self.turn,
            self.rows,
            self.emit,
            self.batch,
            self.approval,
            self.wanted,
        )


def is_stray(error: asyncio.CancelledError) -> bool:
    """Whether a cancellation came out of what was awaited, although nobody cancels this task.

    On asyncio, waiting for a task that somebody else cancelled raises what being cancelled raises. Such an error is
    a failure of the one call that met it; a real cancellation always goes on. Where in doubt it is real: a tool that
    cancels its own task, or leaves its count of cancellations behind, is believed. On trio it is an error like others.
    """
    try:
        task = asyncio.current_task()
    except RuntimeError:  # there is no loop of asyncio here
        return True
    return task is not None and task.cancelling() == 0
