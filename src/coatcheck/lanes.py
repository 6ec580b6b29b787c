"""Work in worker threads that keeps its order: what hashes or searches a payload, while the event loop moves its bytes.

Laws:

* Work of one lane is done one after another, in the order in which it was given. It is given without waiting for what
  was given before, so a thread goes on at once with the next piece: it never waits for the loop, which is busy then.
* All lanes of an event loop share some threads, and take turns at them. More lanes than threads wait.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Generic, TypeVar

import anyio
from anyio.lowlevel import RunVar

from coatcheck.errors import StoreUnavailable
from coatcheck.loops import Loop

__all__ = ["Lane", "Work"]

_R = TypeVar("_R")
_MOST_THREADS = 32
_AT_ONCE = 8
_pool: RunVar[ThreadPoolExecutor] = RunVar("coatcheck.lanes")


class Lane:
    """Work that is done in its order, in whatever thread is free. It takes no thread while it has none to do."""

    def __init__(self) -> None:
        pool = _pool.get(None)
        if pool is None:
            pool = ThreadPoolExecutor(_MOST_THREADS, "coatcheck")
            _pool.set(pool)
        self._pool = pool
        self._loop = Loop()
        self._lock = threading.Lock()
        self._waiting: deque[Work[Any]] = deque()
        self._busy = False
        self._failed = False

    def do(self, work: Callable[[], _R]) -> Work[_R]:
        """Have ``work`` done, after all that was given before.

        Raises:
            StoreUnavailable: no thread can be started; and then again, whatever is given.
        """
        given = Work(self._loop, work)
        with self._lock:
            begin = not self._busy
            if not self._failed:
                self._waiting.append(given)
                self._busy = True
        if begin and not self._failed:
            try:
                self._pool.submit(self._go_on)
            except RuntimeError:
                self._failed = True
        if self._failed:
            self.close()
            raise StoreUnavailable(
                "no worker thread can be started: this machine lets the process have no more, so raise its limit; or "
                "the interpreter is ending"
            )
        return given

    def close(self) -> None:
        """Do no more than what is done just now; nobody waits for that."""
        with self._lock:
            waiting, self._waiting = self._waiting, deque()
        for work in waiting:
            work.drop()

    def _go_on(self) -> None:
        """Do what is waiting; after some of it the other lanes have their turns."""
        while self._do_some():
            with suppress(RuntimeError):  # the interpreter is ending, and takes no more: the rest is done here
                self._pool.submit(self._go_on)
                return

    def _do_some(self) -> bool:
        """Do some of what is waiting, and say whether there may be more."""
        for _ in range(_AT_ONCE):
            with self._lock:
                work = self._waiting.popleft() if self._waiting else None
                self._busy = work is not None
            if work is None:
                return False
            work.run()
            del work  # what it made may be large
        return True


class Work(Generic[_R]):
    """What a `Lane` was given."""

    def __init__(self, loop: Loop, work: Callable[[], _R]) -> None:
        self._loop = loop
        self._work: Callable[[], _R] | None = work
        self._future: Future[_R] = Future()

    @property
    def is_done(self) -> bool:
        """Whether there is a result, or an error; or there never will be one."""
        return self._future.done()

    async def result(self) -> _R:
        """What it returned, as soon as it is done; or raises what it raised."""
        if not self._future.done():
            loop, done = self._loop, anyio.Event()  # not `self`: it would keep itself, and what it holds is large
            self._future.add_done_callback(lambda _: loop.tell(done.set))
            await done.wait()
        try:
            return self._future.result()
        except CancelledError:  # of this kind of future, not of the task that waits
            raise StoreUnavailable(
                "what a worker thread was to do was given up, as no thread could be started"
            ) from None

    def run(self) -> None:
        """Do it, in this thread."""
        work, self._work = self._work, None
        if work is None or not self._future.set_running_or_notify_cancel():
            return
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is raised where the result is asked for
            self._future.set_exception(error)
        else:
            self._future.set_result(result)

    def drop(self) -> None:
        """It will not be done."""
        self._work = None
        self._future.cancel()
