"""Worker threads of a store, for work that would block the event loop.

A disk can hang for ever, and a thread cannot be stopped. So a caller that is cancelled leaves its work behind
(law: `cases.md` C7), under two conditions that this module keeps:

* Work asks `Job.check` before it does what others can see. What was left behind then does nothing, so it cannot
  undo what its caller did after it had given up.
* Work that was left behind and still runs is counted. When there is too much of it, the store says that it
  cannot answer, instead of starting threads without end.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager
from typing import TypeVar

from anyio import CapacityLimiter, Lock, to_thread
from anyio.lowlevel import RunVar, checkpoint

from coatcheck.artifacts.ref import digest_of
from coatcheck.errors import StoreUnavailable

__all__ = ["Abandoned", "Job", "Turns", "Workers"]

_T = TypeVar("_T")
# Hashing so much takes a fraction of a millisecond, as long as starting a thread.
_HASHED_INLINE = 1 << 18


class Abandoned(Exception):
    """The caller went away. Ends work in its thread; nobody ever catches it, since nobody waits."""


class Job:
    """One piece of work, and whether somebody still waits for it."""

    def __init__(self) -> None:
        self.started = False
        self.abandoned = False
        self.done = False

    def check(self) -> None:
        """Go on only if somebody waits.

        Raises:
            Abandoned: nobody does.
        """
        if self.abandoned:
            raise Abandoned


class Workers:
    """The threads of one store.

    Args:
        limit: how many pieces of work run at once, and how many may be left behind before new ones are refused.
    """

    def __init__(self, limit: int = 32) -> None:
        self._limit = limit
        self._limiter: RunVar[CapacityLimiter] = RunVar("coatcheck.artifacts.workers")
        self._left_behind: set[Job] = set()

    async def run(self, work: Callable[[Job], _T]) -> _T:
        """Do ``work`` in a thread. Cancelling the caller ends the wait at once.

        Raises:
            StoreUnavailable: too much that was left behind has not ended.
        """
        if len(self._left_behind) >= self._limit:
            raise StoreUnavailable(
                f"{self._limit} operations that were given up still hang in the store: its disk does not answer"
            )
        job = Job()
        try:
            return await to_thread.run_sync(self._do, job, work, abandon_on_cancel=True, limiter=self._get_limiter())
        except RuntimeError as error:
            if job.started:
                raise
            raise StoreUnavailable(f"no worker thread can be started ({error})") from None
        finally:
            if not job.done:
                self._leave_behind(job)

    async def digest(self, data: bytes) -> str:
        """`digest_of` a payload; a large one is hashed in a thread, where it does not hold up the loop."""
        if len(data) > _HASHED_INLINE:
            return await self.run(lambda job: digest_of(data))
        await checkpoint()
        return digest_of(data)

    def _do(self, job: Job, work: Callable[[Job], _T]) -> _T:
        job.started = True
        try:
            job.check()
            return work(job)
        finally:
            job.done = True
            self._left_behind.discard(job)

    def _leave_behind(self, job: Job) -> None:
        # No lock is needed, and none may block the loop: each side first says what it did, then looks at the other.
        job.abandoned = True
        if job.started:
            self._left_behind.add(job)
            if job.done:
                self._left_behind.discard(job)

    def _get_limiter(self) -> CapacityLimiter:
        """The limiter of the running loop; a store may serve several loops, one after another or at once."""
        limiter = self._limiter.get(None)
        if limiter is None:
            limiter = CapacityLimiter(self._limit)
            self._limiter.set(limiter)
        return limiter


class Turns:
    """One at a time for each key, among the tasks of a loop. A key that nobody uses takes no memory."""

    def __init__(self) -> None:
        self._locks: RunVar[dict[Hashable, tuple[Lock, list[None]]]] = RunVar("coatcheck.artifacts.turns")

    @asynccontextmanager
    async def of(self, key: Hashable) -> AsyncIterator[bool]:
        """Wait until no other task is inside for this key, and say whether there was one."""
        locks = self._locks.get(None)
        if locks is None:
            locks = {}
            self._locks.set(locks)
        lock, users = locks.setdefault(key, (Lock(), []))
        users.append(None)
        waited = len(users) > 1
        try:
            async with lock:
                yield waited
        finally:
            users.pop()
            if not users:
                del locks[key]
