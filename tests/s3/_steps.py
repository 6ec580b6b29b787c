"""Cancelling a call after any step that any of its tasks takes: also those that its task groups started."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import sniffio
import trio

__all__ = ["cancelled_after", "steps_of"]


class _Steps:
    """Counts the steps of tasks while it is asked to, and cancels a scope after the n-th.

    Args:
        cancel_at: after which; ``None``: after none.
    """

    def __init__(self, cancel_at: int | None) -> None:
        self.count = 0
        self.scope = anyio.CancelScope()
        self._cancel_at = cancel_at

    def step(self) -> None:
        """One of the tasks was suspended."""
        self.count += 1
        if self.count == self._cancel_at:
            self.scope.cancel()


class _Counted:
    """Awaits a coroutine, and tells each time that it is suspended."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], steps: _Steps) -> None:
        self._coroutine = coroutine
        self._steps = steps

    def __await__(self) -> Generator[Any, Any, Any]:
        resume: Callable[..., Any] = self._coroutine.send
        argument: Any = None
        while True:
            try:
                yielded = resume(argument)
            except StopIteration as stop:
                return stop.value
            self._steps.step()
            try:
                argument = yield yielded
                resume = self._coroutine.send
            except BaseException as error:  # noqa: BLE001 - handed to the coroutine, which is what was waiting
                argument, resume = error, self._coroutine.throw


class _Instrument(trio.abc.Instrument):
    def __init__(self, steps: _Steps) -> None:
        self._steps = steps

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self._steps.step()


@contextmanager
def _counting(steps: _Steps) -> Iterator[None]:
    """Count the steps of all tasks that are started inside; on trio, of all that there are."""
    if sniffio.current_async_library() == "trio":
        instrument = _Instrument(steps)
        trio.lowlevel.add_instrument(instrument)
        try:
            yield
        finally:
            trio.lowlevel.remove_instrument(instrument)
        return
    loop = asyncio.get_running_loop()
    before = loop.get_task_factory()

    async def counted(coroutine: Coroutine[Any, Any, Any]) -> Any:
        return await _Counted(coroutine, steps)

    def make(loop: asyncio.AbstractEventLoop, coroutine: Any, **words: Any) -> asyncio.Task[Any]:
        return asyncio.Task(counted(coroutine), loop=loop, **words)

    loop.set_task_factory(make)
    try:
        yield
    finally:
        loop.set_task_factory(before)


async def _run(start: Callable[[], Awaitable[Any]], cancel_at: int | None) -> _Steps:
    steps = _Steps(cancel_at)

    async def run() -> None:
        with steps.scope:
            await start()

    with _counting(steps):
        async with anyio.create_task_group() as group:  # so that the call itself is a task that is counted
            group.start_soon(run)
    return steps


async def steps_of(start: Callable[[], Awaitable[Any]]) -> int:
    """How many steps a call takes, about: the network cuts what it brings as it likes."""
    return (await _run(start, None)).count


async def cancelled_after(start: Callable[[], Awaitable[Any]], chosen: list[int]) -> AsyncGenerator[int, None]:
    """Run a call once for each of these numbers, cancelled after so many steps; yield after every run that was."""
    for number in chosen:
        steps = await _run(start, number)
        if steps.scope.cancel_called:
            yield number
