"""A worker thread of one payload: its bytes are hashed there in their order, while the event loop moves others.

Work is given without waiting for what was given before, so the thread goes on at once with the next piece: it never
waits for the loop, which is busy while a payload is on its way.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

import anyio

from coatcheck.loops import Loop

__all__ = ["Thread", "Work"]

_R = TypeVar("_R")


class Thread:
    """A thread that does what it is given, one after another. It begins with the first work, and ends by `close`."""

    def __init__(self) -> None:
        self._loop = Loop()
        self._pool = ThreadPoolExecutor(1, "coatcheck-hash")

    def do(self, work: Callable[[], _R]) -> Work[_R]:
        """Have ``work`` done, after all that was given before."""
        return Work(self._loop, self._pool.submit(work))

    def close(self) -> None:
        """Do no more. The thread ends by itself, with what it does just now; nobody waits for that."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class Work(Generic[_R]):
    """What a `Thread` was given."""

    def __init__(self, loop: Loop, future: Future[_R]) -> None:
        self._loop = loop
        self._future = future

    @property
    def is_done(self) -> bool:
        """Whether there is a result, or an error."""
        return self._future.done()

    async def result(self) -> _R:
        """What it returned, as soon as it is done; or raises what it raised."""
        if not self._future.done():
            loop, done = self._loop, anyio.Event()  # not `self`: it would keep itself, and what it holds is large
            self._future.add_done_callback(lambda _: loop.tell(done.set))
            await done.wait()
        return self._future.result()
