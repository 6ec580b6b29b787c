"""Many small requests at once, but not too many."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import anyio

__all__ = ["gathered", "unstopped"]

_A = TypeVar("_A")
_R = TypeVar("_R")
_AT_ONCE = 16


async def gathered(work: Callable[[_A], Awaitable[_R]], items: Iterable[_A], at_once: int = _AT_ONCE) -> list[_R]:
    """What ``work`` makes of each item, in their order, so many at once.

    Raises:
        Exception: what the first one that failed raised, as it is; the others are cancelled.
    """
    todo = list(enumerate(items))
    results: dict[int, _R] = {}
    failed: list[Exception] = []
    rest = iter(todo)

    async def take() -> None:
        for index, item in rest:
            try:
                results[index] = await work(item)
            except Exception as error:  # noqa: BLE001 - raised below, as it is
                failed.append(error)
                group.cancel_scope.cancel()

    if len(todo) == 1:
        return [await work(todo[0][1])]
    async with anyio.create_task_group() as group:
        for _ in range(min(at_once, len(todo))):
            group.start_soon(take)
    if failed:
        raise failed[0]
    return [results[index] for index in range(len(todo))]


async def unstopped(work: Callable[[], Awaitable[_R]]) -> _R:
    """What ``work`` returns, which is ended before a cancellation is felt.

    It runs in a task of its own, so that it is not ended half way by a cancellation of the event loop's own kind either
    (``task.cancel()`` of asyncio), against which no scope shields the task that is cancelled.

    Raises:
        Exception: what ``work`` raises, as it is.
    """
    results: list[_R] = []
    failed: list[Exception] = []

    async def run() -> None:
        with anyio.CancelScope(shield=True):
            try:
                results.append(await work())
            except Exception as error:  # noqa: BLE001 - raised below, as it is
                failed.append(error)

    async with anyio.create_task_group() as group:
        group.start_soon(run)
    if failed:
        raise failed[0]
    return results[0]
