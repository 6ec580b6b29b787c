"""Cancelling one call at its n-th checkpoint, for every n that it has."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

import anyio
import anyio.lowlevel

_T = TypeVar("_T")


class _Counted(Generic[_T]):
    """Awaits a coroutine, and counts how often it is suspended; at the n-th time, cancels a scope first."""

    def __init__(self, coroutine: Coroutine[Any, Any, _T], cancel_at: int, scope: anyio.CancelScope) -> None:
        self._coroutine = coroutine
        self._cancel_at = cancel_at
        self._scope = scope
        self.suspended = 0

    def __await__(self) -> Generator[Any, Any, _T]:
        step: Callable[[], Any] = lambda: self._coroutine.send(None)  # noqa: E731
        while True:
            try:
                yielded = step()
            except StopIteration as stop:
                result: _T = stop.value
                return result
            self.suspended += 1
            if self.suspended == self._cancel_at:
                self._scope.cancel()
            try:
                sent = yield yielded
            except BaseException as error:  # noqa: BLE001 - handed to the coroutine, which is what was waiting
                step = _thrower(self._coroutine, error)
            else:
                step = _sender(self._coroutine, sent)


def _thrower(coroutine: Coroutine[Any, Any, Any], error: BaseException) -> Callable[[], Any]:
    return lambda: coroutine.throw(error)


def _sender(coroutine: Coroutine[Any, Any, Any], sent: Any) -> Callable[[], Any]:
    return lambda: coroutine.send(sent)


async def cancelled_everywhere(
    start: Callable[[], Coroutine[Any, Any, Any]], *, least: int, most: int = 100
) -> AsyncIterator[int]:
    """Run ``start()`` again and again, cancelled at its first checkpoint, its second, ... until one run ends by itself.

    Yields after every cancelled run, so that the test can look at what is left.

    Args:
        start: begins one run.
        least: how many checkpoints there must have been, so that the test cannot pass by cancelling nothing.
        most: how many runs are tried.
    """
    for cancel_at in range(1, most):
        with anyio.CancelScope() as scope:
            await _Counted(start(), cancel_at, scope)
        if not scope.cancel_called:
            assert cancel_at > least, f"there were only {cancel_at - 1} checkpoints to cancel at"
            return
        yield cancel_at
    raise AssertionError(f"the call never ended within {most} checkpoints")


async def after_ticks(ticks: int, act: Callable[[], object]) -> None:
    """Let the other tasks take ``ticks`` turns, then ``act``."""
    for _ in range(ticks):
        await anyio.lowlevel.checkpoint()
    act()


async def until(condition: Callable[[], object], *, within: float = 5.0) -> None:
    """Wait for something that a thread or another task does."""
    with anyio.fail_after(within):
        while not condition():  # noqa: ASYNC110 - a thread sets no event of a loop
            await anyio.sleep(0.001)


async def all_of(*awaitables: Callable[[], Awaitable[Any]]) -> list[Any]:
    """The answers of several calls that run at once, in the order given."""
    answers: dict[int, Any] = {}

    async def run(index: int, call: Callable[[], Awaitable[Any]]) -> None:
        answers[index] = await call()

    async with anyio.create_task_group() as group:
        for index, call in enumerate(awaitables):
            group.start_soon(run, index, call)
    return [answers[index] for index in range(len(awaitables))]
