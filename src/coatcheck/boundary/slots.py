"""Slots for executions, and the worker threads of sync tools.

Python cannot stop a thread. One whose call was given up still runs, and holds its slots until it really returns;
so whoever waits for a slot has to learn when none can ever come.
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread

from coatcheck.dispatch import Limit

__all__ = ["RunningThreads", "Slots"]

_MAX_THREADS = 40
_LOOK_AGAIN = 1.0  # seconds; then whoever waits for a slot asks again whether it can ever be had


class RunningThreads:
    """The worker threads of sync tools: how many may run, and which outlived their call.

    Python cannot stop a thread. One whose call was given up still runs, and holds its slots until it returns.

    Attributes:
        free: the slots of the threads themselves; taken like every other before the time of a tool begins.
    """

    def __init__(self) -> None:
        self.free: Limit = Limit(_MAX_THREADS)
        self._unlimited = anyio.CapacityLimiter(math.inf)
        self._abandoned: dict[_Thread, str] = {}

    @property
    def abandoned(self) -> tuple[str, ...]:
        """The tools whose threads still run although their call was given up."""
        return tuple(self._abandoned.values())

    async def run(self, name: str, function: Callable[..., Any], arguments: dict[str, Any], slots: Slots) -> Any:
        """Run ``function`` in a worker thread, and keep ``slots`` until that thread has ended."""

        def give_back() -> None:
            self._abandoned.pop(thread, None)
            slots.release()

        thread = _Thread(functools.partial(function, **arguments), give_back)
        slots.hand_over()
        try:
            (value,) = await anyio.to_thread.run_sync(thread.run, abandon_on_cancel=True, limiter=self._unlimited)
            return value
        finally:
            if thread.leave():
                give_back()
            else:
                self._abandoned[thread] = name
                slots.are_stuck()


class _Thread:
    """One run of a sync tool. Whoever is last, the waiting call or the thread, gives the slots back."""

    def __init__(self, function: Callable[[], Any], give_back: Callable[[], None]) -> None:
        self._function = function
        self._give_back = give_back
        self._token = anyio.lowlevel.current_token()
        self._lock = threading.Lock()
        self._running = False
        self._left = False

    def run(self) -> tuple[Any]:
        """In the worker thread. The answer is boxed: an event loop has opinions about a coroutine that is one."""
        with self._lock:
            if self._left:  # given up before it began
                return (None,)
            self._running = True
        try:
            return (self._function(),)
        except SystemExit as error:  # from a command line inside a tool: it must not end the server
            raise RuntimeError(f"the tool wanted to end the process with exit code {error.code}") from error
        finally:
            with self._lock:
                self._running = False
                last = self._left
            if last:
                with contextlib.suppress(RuntimeError):  # the event loop is gone, and the slots with it
                    anyio.from_thread.run_sync(self._give_back, token=self._token)

    def leave(self) -> bool:
        """On the event loop: nobody waits any more. True where the thread is not running, so that it is over."""
        with self._lock:
            self._left = True
            return not self._running


class Slots:
    """The slots that one execution holds; released once, here or by the thread that outlives it."""

    __slots__ = ("_handed_over", "_held", "_stuck", "_wanted")

    def __init__(self, wanted: Sequence[Limit]) -> None:
        self._wanted = wanted
        self._held: list[Limit] = []
        self._handed_over = False
        self._stuck = False

    async def acquire(self) -> bool:
        """Wait for all of them. False where one can never be had, because threads that hang hold all there are."""
        try:
            for limit in self._wanted:
                while limit.stuck < limit.size:
                    with anyio.move_on_after(_LOOK_AGAIN):
                        await limit.free.acquire()
                        self._held.append(limit)
                        break
                else:
                    self.release()
                    return False
        except BaseException:
            self.release()
            raise
        return True

    def leave(self) -> None:
        """Give back what is held, unless a thread does."""
        if not self._handed_over:
            self.release()

    def hand_over(self) -> None:
        """From now on the thread gives the slots back."""
        self._handed_over = True

    def are_stuck(self) -> None:
        """The thread that holds them was given up: nobody knows when they come back."""
        self._stuck = True
        for limit in self._held:
            limit.stuck += 1

    def release(self) -> None:
        """Give back what is held."""
        while self._held:
            limit = self._held.pop()
            limit.stuck -= self._stuck
            limit.free.release()
