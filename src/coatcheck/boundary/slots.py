"""Slots for executions, and the worker threads of sync tools.

Python cannot stop a thread. One whose call was given up still runs, and holds its slots until it really returns;
so whoever waits for a slot has to learn when none can ever come.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread

from coatcheck.dispatch import Limit
from coatcheck.loops import Loop

__all__ = ["RunningThreads", "Slots"]

_MAX_THREADS = 40


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

    async def run_part(self, name: str, function: Callable[[], Any], slots: Slots) -> Any:
        """Run a part of an execution, which holds ``slots`` before and after, in a worker thread."""

        def give_back() -> None:
            del self._abandoned[thread]
            slots.release()

        thread = _Thread(function, give_back)
        slots.in_thread = True
        try:
            (value,) = await anyio.to_thread.run_sync(thread.run, abandon_on_cancel=True, limiter=self._unlimited)
            return value
        finally:
            if thread.leave():
                slots.in_thread = False
            else:
                self._abandoned[thread] = name
                slots.are_stuck()


class _Thread:
    """One run of a sync tool. Whoever is last, the waiting call or the thread, gives the slots back."""

    def __init__(self, function: Callable[[], Any], give_back: Callable[[], None]) -> None:
        self._function = function
        self._give_back = give_back
        self._loop = Loop()
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
                self._loop.tell(self._give_back)

    def leave(self) -> bool:
        """On the event loop: nobody waits any more. True where the thread is not running, so that it is over."""
        with self._lock:
            self._left = True
            return not self._running


class Slots:
    """The slots that one execution holds; released once, here or by the thread that outlives it.

    A tool that calls a tool holds what it needs already: limits that an execution around this one still holds are
    not wanted again, or the inner call would wait for the outer one for ever.

    Attributes:
        in_thread: a worker thread is at work for this execution, or was given up and has not come back.
    """

    def __init__(self, wanted: Sequence[Limit]) -> None:
        self._outer = _around.get()
        self._wanted = [limit for limit in wanted if not (self._outer and self._outer.holds(limit))]
        self._held: list[Limit] = []
        self._handed_over = False
        self._stuck = False
        self.in_thread: bool = False

    def holds(self, limit: Limit) -> bool:
        """Whether this execution, or one around it, still holds a slot of ``limit``."""
        return limit in self._held or (self._outer is not None and self._outer.holds(limit))

    async def acquire(self) -> bool:
        """Wait for all of them, in line. False where one can never be had: threads that hang hold all there are."""
        try:
            for limit in self._wanted:
                if limit.stuck < limit.size:
                    with anyio.CancelScope() as scope:
                        limit.waiting.add(scope)
                        try:
                            await limit.free.acquire()
                            self._held.append(limit)
                        finally:
                            limit.waiting.discard(scope)
                if limit not in self._held:
                    self.release()
                    return False
        except BaseException:
            self.release()
            raise
        return True

    async def acquire_also(self, limit: Limit) -> bool:
        """Wait for one more; as `acquire`."""
        if self.holds(limit):
            return True
        self._wanted = [limit]
        return await self.acquire()

    @contextlib.contextmanager
    def lent(self) -> Iterator[None]:
        """While the tool runs, calls that it makes find its slots."""
        token = _around.set(self)
        try:
            yield
        finally:
            _around.reset(token)

    @contextlib.contextmanager
    def around(self) -> Iterator[None]:
        """`lent`, and given back at the end, unless somebody else took that over."""
        token = _around.set(self)
        try:
            yield
        finally:
            _around.reset(token)
            if not self._handed_over:
                self.end()

    def hand_over(self) -> None:
        """From now on somebody else says when the execution has ended: the stream that it returned."""
        self._handed_over = True

    def end(self) -> None:
        """The execution has ended. What a thread still holds, it gives back itself."""
        if not self.in_thread:
            self.release()

    def are_stuck(self) -> None:
        """The thread that holds them was given up: nobody knows when they come back."""
        self._stuck = True
        for limit in self._held:
            limit.stuck += 1
            if limit.stuck >= limit.size:
                for scope in tuple(limit.waiting):
                    scope.cancel()

    def release(self) -> None:
        """Give back what is held."""
        self._outer = None
        while self._held:
            limit = self._held.pop()
            limit.stuck -= self._stuck
            limit.free.release()


_around: ContextVar[Slots | None] = ContextVar("coatcheck.slots", default=None)
