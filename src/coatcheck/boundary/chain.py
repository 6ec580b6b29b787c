"""The chain: which middleware stands around which, visible in one short function.

    host's own, outermost first → truncation → placement → governance → ceiling → the tool

The four keep their order whatever a host adds. A step that is not configured is not there, and costs nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, Protocol, TypeAlias, cast

import msgspec

from coatcheck.call import ToolCall
from coatcheck.dispatch import Dispatch
from coatcheck.errors import ConfigurationError
from coatcheck.outcome import Outcome, failed

__all__ = ["STEPS", "CallNext", "Entrance", "Inside", "Middleware", "Step", "compose", "inside", "place"]

CallNext: TypeAlias = Callable[[ToolCall], Awaitable[Outcome]]
Entrance: TypeAlias = Callable[[Dispatch], Awaitable[Outcome]]
Middleware: TypeAlias = Callable[[ToolCall, CallNext], Awaitable[Outcome]]
Step: TypeAlias = Literal["truncation", "placement", "governance", "ceiling"]

STEPS: tuple[Step, ...] = ("truncation", "placement", "governance", "ceiling")
"""The four steps, outermost first."""


class Inside(msgspec.Struct, frozen=True):
    """A host's middleware and the step that it stands just inside of. Made by `inside`."""

    step: Step
    middleware: Middleware


def inside(step: Step, middleware: Middleware) -> Inside:
    """Place ``middleware`` just inside a step: ``inside("placement", m)`` sees what placement is about to measure.

    Raises:
        ConfigurationError: for a step that does not exist.
    """
    if step not in STEPS:
        raise ConfigurationError(f"inside({step!r:.80}, ...): there is no such step; the steps are {', '.join(STEPS)}")
    return Inside(step, middleware)


def place(
    steps: dict[Step, Middleware], middleware: Sequence[Middleware | Inside]
) -> tuple[tuple[str, Middleware], ...]:
    """Order everything that stands around the tool, outermost first, each with its name.

    Args:
        steps: the configured ones of the four.
        middleware: the host's own: plain ones stand outermost, in order; ``inside(...)`` ones where they say,
            also where that step itself is not configured.
    """
    outermost: list[tuple[str, Middleware]] = []
    within: dict[str, list[tuple[str, Middleware]]] = {step: [] for step in STEPS}
    for index, entry in enumerate(middleware):
        function = entry.middleware if isinstance(entry, Inside) else entry
        if not callable(function) or isinstance(function, type):
            raise ConfigurationError(
                f"middleware[{index}] must be an async callable (call, call_next) -> Outcome, not {function!r:.80}"
            )
        named = (_name(function), function)
        (within[entry.step] if isinstance(entry, Inside) else outermost).append(named)
    placed = outermost
    for step in STEPS:
        if step in steps:
            placed.append((step, steps[step]))
        placed.extend(within[step])
    return tuple(placed)


class Measuring(Protocol):
    """A step that only looks at what comes out of the tool: truncation, placement, ceiling."""

    def over(self, call: Dispatch, outcome: Outcome) -> bool:
        """Whether it has anything to do; cheap, because it is asked about every result."""

    async def act(self, call: Dispatch, outcome: Outcome) -> Outcome:
        """Do it."""


def compose(placed: Sequence[tuple[str, Middleware]], innermost: Entrance) -> Entrance:
    """Nest the placed middlewares around ``innermost``.

    Measuring steps that stand directly around each other share one coroutine: what they do and in which
    order is the same as if each were nested in the next, and a result that is over no limit costs less.
    """
    call_next = innermost
    together: list[Measuring] = []
    for name, middleware in reversed(placed):
        if hasattr(middleware, "over") and name in STEPS:
            together.append(cast("Measuring", middleware))
            continue
        call_next = _measured(together, call_next)
        together = []
        call_next = _around(middleware, call_next) if name in STEPS else _guarded(name, middleware, call_next)
    return _measured(together, call_next)


def _measured(steps: list[Measuring], call_next: Entrance) -> Entrance:
    """The measuring ``steps``, innermost first, after ``call_next``."""
    if not steps:
        return call_next
    looks = tuple((step.over, step.act) for step in steps)

    async def enter(call: Dispatch) -> Outcome:
        outcome = await call_next(call)
        for over, act in looks:
            if over(call, outcome):
                outcome = await act(call, outcome)
        return outcome

    return enter


def _around(middleware: Middleware, call_next: Entrance) -> Entrance:
    function = cast("Any", middleware).__call__  # bound once, not looked up for every call

    def enter(call: Dispatch) -> Awaitable[Outcome]:
        return cast("Awaitable[Outcome]", function(call, call_next))

    return enter


def _guarded(name: str, middleware: Middleware, call_next: Entrance) -> Entrance:
    """A host's own middleware must answer with an outcome."""

    async def enter(call: Dispatch) -> Outcome:
        async def onward(changed: ToolCall) -> Outcome:
            return await call_next(call.following(changed))

        outcome: object = await middleware(call, onward)
        if not isinstance(outcome, Outcome):
            reason = f"The middleware {name} of this host gave no outcome for {call.name[:128]}; the call did not complete."
            return failed(call, reason)
        return outcome

    return enter


def _name(function: object) -> str:
    name = getattr(function, "__name__", None) or getattr(function, "name", None)
    return name if isinstance(name, str) else type(function).__name__
