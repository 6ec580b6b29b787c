"""The calls of one turn, where they have to wait for each other.

Two things are decided across a batch: a call enters when the one before it has passed the rules, so that the
rules see one call at a time, in call order; and a batch budget is planned when the size of every result is known.
No slot is held while a call waits here: its tool has returned it, so no batch can block itself.
"""

from __future__ import annotations

import anyio

from coatcheck.dispatch import Limit
from coatcheck.steps.placement import plan_batch

__all__ = ["MAX_RUNNING", "Batch"]

MAX_RUNNING = 32
"""How many tools of one turn run at once, whatever the boundary's own limit."""


class Batch:
    """One turn of ``count`` calls.

    Args:
        count: how many calls.
        budget: what their results may take together, in characters; ``None`` for no limit.
    """

    def __init__(self, count: int, budget: int | None) -> None:
        self.slots: Limit = Limit(MAX_RUNNING)
        self._walked = [anyio.Event() for _ in range(count)]
        self._sizes: list[tuple[int, int | None] | None] = [None] * count
        self._unknown = count
        self._planned = anyio.Event()
        self._placed: frozenset[int] = frozenset()
        self._budget = budget

    def place(self, index: int) -> Place:
        """The place of the call at ``index``."""
        return Place(self, index)

    async def passed(self, index: int) -> None:
        """Wait until the call at ``index`` has passed the rules before the tool, or has ended without."""
        await self._walked[index].wait()

    def walked(self, index: int) -> None:
        """The call at ``index`` has passed the rules before the tool."""
        self._walked[index].set()

    def report(self, index: int, chars: int, ticket_chars: int | None) -> None:
        """Note the size of one call's result; the last one to report makes the plan."""
        if self._sizes[index] is None:
            self._unknown -= 1
        self._sizes[index] = (chars, ticket_chars)  # a middleware that calls again has another result
        if self._unknown or self._budget is None or self._planned.is_set():
            return
        plan = plan_batch([size for size in self._sizes if size is not None], self._budget)
        self._placed = plan.placed
        self._planned.set()

    def is_short(self) -> bool:
        """Whether what is known so far is over the budget already."""
        return self._budget is not None and sum(size[0] for size in self._sizes if size is not None) > self._budget

    async def is_placed(self, index: int) -> bool:
        """Wait for the plan, and tell what it says of the call at ``index``."""
        await self._planned.wait()
        return index in self._placed


class Place:
    """One call's place in its batch: what the steps see of it (`coatcheck.dispatch.BatchPlace`)."""

    __slots__ = ("_batch", "_index", "slots")

    def __init__(self, batch: Batch, index: int) -> None:
        self._batch = batch
        self.slots: Limit = batch.slots
        self._index = index

    def walked(self) -> None:
        """This call has passed the rules before the tool."""
        self._batch.walked(self._index)

    def ended(self, chars: int) -> None:
        """This call takes ``chars`` characters and cannot be placed any more."""
        self._batch.report(self._index, chars, None)

    async def must_place(self, chars: int, ticket_chars: int, patience: float) -> bool:
        """Report, wait for all others, and be told whether the budget wants this result placed."""
        self._batch.walked(self._index)  # also where a middleware answered and no tool ran: others must get in
        self._batch.report(self._index, chars, ticket_chars)
        with anyio.move_on_after(patience):
            return await self._batch.is_placed(self._index)
        return ticket_chars < chars and self._batch.is_short()
