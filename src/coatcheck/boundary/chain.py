"""The chain: which middleware stands around which, visible in one short function.

    host's own, outermost first → truncation → placement → governance → ceiling → the tool

The four keep their order whatever a host adds. A step that is not configured is not there, and costs nothing.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec

from coatcheck.call import ToolCall
from coatcheck.dispatch import Dispatch, is_stray
from coatcheck.errors import ConfigurationError
from coatcheck.flow import FLOWING, Flow, flow_of
from coatcheck.outcome import Outcome, failed, size_of
from coatcheck.results.rendering import Rendered
from coatcheck.results.shapes import clip
from coatcheck.steps.step import Step

__all__ = ["STEPS", "CallNext", "Entrance", "Inside", "Middleware", "StepName", "compose", "inside", "place"]

_log = logging.getLogger("coatcheck")

CallNext: TypeAlias = Callable[[ToolCall], Awaitable[Outcome]]
Entrance: TypeAlias = Callable[[Dispatch], Awaitable[Outcome]]
Middleware: TypeAlias = Callable[[ToolCall, CallNext], Awaitable[Outcome]]
Leaves: TypeAlias = tuple[tuple[int, Callable[[Dispatch, Outcome, int], Outcome | Awaitable[Outcome]]], ...]
StepName: TypeAlias = Literal["truncation", "placement", "governance", "ceiling"]

STEPS: tuple[StepName, ...] = ("truncation", "placement", "governance", "ceiling")
"""The four steps, outermost first."""


class Inside(msgspec.Struct, frozen=True):
    """A host's middleware and the step that it stands just inside of. Made by `inside`."""

    step: StepName
    middleware: Middleware


def inside(step: StepName, middleware: Middleware) -> Inside:
    """Place ``middleware`` just inside a step: ``inside("placement", m)`` sees what placement is about to measure.

    Raises:
        ConfigurationError: for a step that does not exist.
    """
    if step not in STEPS:
        raise ConfigurationError(f"inside({step!r:.80}, ...): there is no such step; the steps are {', '.join(STEPS)}")
    return Inside(step, middleware)


def place(
    steps: Mapping[StepName, Step], middleware: Sequence[Middleware | Inside]
) -> tuple[tuple[str, Middleware | Step], ...]:
    """Order everything that stands around the tool, outermost first, each with its name.

    Args:
        steps: the configured ones of the four.
        middleware: the host's own: plain ones stand outermost, in order; ``inside(...)`` ones where they say,
            also where that step itself is not configured.
    """
    outermost: list[tuple[str, Middleware | Step]] = []
    within: dict[str, list[tuple[str, Middleware | Step]]] = {step: [] for step in STEPS}
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


def compose(placed: Sequence[tuple[str, Middleware | Step]], innermost: Entrance) -> Entrance:
    """Nest what was placed around ``innermost``; steps that stand directly around each other share one coroutine."""
    call_next = innermost
    together: list[Step] = []
    for name, middleware in reversed(placed):
        if isinstance(middleware, Step):
            together.append(middleware)
        else:
            call_next = _guarded(name, middleware, _together(together, call_next))
            together = []
    return _together(together, call_next)


def _together(steps: list[Step], call_next: Entrance) -> Entrance:
    """The ``steps``, innermost first, around ``call_next``; see `Step` for why this is nesting."""
    if not steps:
        return call_next
    enters = tuple(step.enter for step in reversed(steps) if step.enters)
    leaves: Leaves = tuple((step.least, step.leave) for step in steps)
    # An outcome of at most `least` only concerns the steps that do not go by the size; what they change, those outside.
    least = min((step.least for step in steps if step.least >= 0), default=sys.maxsize)
    regardless = tuple((step.leave, leaves[index + 1 :]) for index, step in enumerate(steps) if step.least < 0)

    async def around(call: Dispatch) -> Outcome:
        for enter in enters:
            entered = enter(call)
            if not isinstance(entered, Dispatch):
                entered = entered if isinstance(entered, Outcome) else await entered
                if isinstance(entered, Outcome):
                    return await _left(leaves, call, entered)
            call = entered
        outcome = await call_next(call)
        held = outcome.held
        size = held.size if type(held) is Rendered else len(held)  # as `size_of`, without a call
        if size > least:
            return await _left(leaves, call, outcome)
        for leave, outside in regardless:
            left = leave(call, outcome, size)
            if left is not outcome:
                return await _left(outside, call, left if isinstance(left, Outcome) else await left)
        return outcome

    return around


async def _left(leaves: Leaves, call: Dispatch, outcome: Outcome) -> Outcome:
    """The outcome that goes on, when every one of the steps was asked that its size concerns."""
    for least, leave in leaves:
        size = size_of(outcome)
        if size > least:
            left = leave(call, outcome, size)
            outcome = left if isinstance(left, Outcome) else await left
    return outcome


def _guarded(name: str, middleware: Middleware, call_next: Entrance) -> Entrance:
    """A host's own middleware must answer with an outcome. A stream that it does not hand on, as it is, is closed.

    So what stands outside, and judges by the outcome that it is handed, never meets a stream that looks like a text;
    and whoever tries again does not wait for what the attempt before still holds.
    """

    async def enter(call: Dispatch) -> Outcome:
        inner: Outcome | None = None
        flows: list[Flow] = []
        over = False

        async def onward(changed: ToolCall) -> Outcome:
            nonlocal inner
            await _close(flows)
            outcome = inner = await call_next(call.following(changed))
            flow = flow_of(outcome)
            if flow is not None:
                flows.append(flow)
            if over:  # nobody waits for this any more
                await _close(flows)
            return outcome

        tool = clip(call.name, 128)
        handed_on: Flow | None = None
        try:
            outcome: object = await middleware(call, onward)
        except asyncio.CancelledError as error:
            if not is_stray(error):
                raise
            reason = f"The middleware {name} waited for something that was cancelled; {tool} gave no result."
        except Exception as error:  # noqa: BLE001 - in a batch, the other calls must not be lost
            _log.error(
                "the middleware %s raised in the call %r of the tool %s", name, call.call_id, tool, exc_info=error
            )
            reason = f"An internal step of this host failed while {tool} was called. The call did not complete."
        else:
            if isinstance(outcome, Outcome) and isinstance(outcome.held, (str, Rendered)):
                handed_on = flow_of(outcome)
                if handed_on is None or (handed_on in flows and size_of(outcome) == FLOWING):
                    return outcome
                handed_on = None
                reason = (
                    f"The middleware {name} of this host changed the text of a result that {tool} still produces, or "
                    "handed on another one. The call did not complete."
                )
            else:
                reason = f"The middleware {name} of this host gave no outcome for {tool}; the call did not complete."
        finally:
            over = True
            await _close([flow for flow in flows if flow is not handed_on])
        return failed(call, reason, executed=inner is not None and inner.executed)

    return enter


async def _close(flows: list[Flow]) -> None:
    while flows:
        await flows.pop().aclose()


def _name(function: object) -> str:
    name = getattr(function, "__name__", None) or getattr(function, "name", None)
    return name if isinstance(name, str) else type(function).__name__
