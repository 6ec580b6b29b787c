"""What a step is: at most three parts around the tool, and the middleware that they make.

A step may look at the call on its way in (`Step.enter`), and at the outcome on its way out (`Step.leave`): most ask
cheaply whether there is anything to do (`Step.over`), and do it (`Step.act`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from coatcheck.dispatch import Dispatch
from coatcheck.outcome import Outcome, size_of

__all__ = ["Step"]


class Step:
    """One of the four steps. As a middleware it is called with the call and what stands inside of it.

    The chain runs steps that stand directly around each other in one coroutine instead, because a result that
    is over no limit should cost next to nothing. That is the same as nesting them: `enter` of an outer step
    comes first, `leave` of an inner step comes first, and an outcome that a step made on the way in is
    one that the steps inside of it leave alone.
    """

    enters = False
    """Whether `enter` does anything."""

    least = -1
    """`leave` hands on every outcome of this size or below as it is; -1 where the size does not tell."""

    def enter(self, call: Dispatch) -> Dispatch | Outcome | Awaitable[Dispatch | Outcome]:
        """The call that goes on, or the outcome that ends it here; to be awaited where that takes time."""
        return call

    def leave(self, call: Dispatch, outcome: Outcome, size: int) -> Outcome | Awaitable[Outcome]:
        """The outcome that goes on; to be awaited where that takes time.

        Args:
            call: as it went in. outcome: as it comes out. size: of its text, in characters.
        """
        return self.act(call, outcome) if self.over(call, outcome, size) else outcome

    def over(self, call: Dispatch, outcome: Outcome, size: int) -> bool:
        """Whether `act` has anything to do; it only compares."""
        raise NotImplementedError

    async def act(self, call: Dispatch, outcome: Outcome) -> Outcome:
        """The outcome that goes on."""
        raise NotImplementedError

    async def __call__(self, call: Dispatch, call_next: Callable[[Dispatch], Awaitable[Outcome]]) -> Outcome:
        """The step as a middleware."""
        entered = self.enter(call)
        if not isinstance(entered, (Dispatch, Outcome)):
            entered = await entered
        if isinstance(entered, Outcome):
            outcome = entered
        else:
            call = entered  # what comes out is judged by the call that really went in
            outcome = await call_next(call)
        left = self.leave(call, outcome, size_of(outcome))
        return left if isinstance(left, Outcome) else await left
