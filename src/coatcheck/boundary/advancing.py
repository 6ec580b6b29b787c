"""Who advances a tool's iterator: one task of its own, for the whole life of the iterator.

A generator may hold what belongs to a task across its yields: a cancel scope, a task group, a timeout, a context
variable. A sync one may hold what belongs to a thread, such as a database connection. So each is begun, advanced and
closed in one task, and a sync one in one thread besides, whoever reads its stream from wherever. The task ends with
the stream, and never outlives its call but for a moment: whoever closes it waits for it.
"""

from __future__ import annotations

import asyncio
import logging
import queue
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator
from time import perf_counter
from typing import Any

import anyio
import anyio.to_thread

from coatcheck.boundary.slots import RunningThreads, Slots
from coatcheck.dispatch import is_stray
from coatcheck.loops import Loop
from coatcheck.results.streams import Content

__all__ = ["Advance", "AsyncAdvance", "ThreadAdvance"]

_log = logging.getLogger("coatcheck")

GATHERED_BYTES = 1 << 16
"""Small items are taken together until they come to so many bytes, or until so much time has passed:"""
GATHERING_SECONDS = 0.005
CLOSING_SECONDS = 5.0
"""How long an iterator may take to close before it is left behind."""

_LARGE_TEXT = 1 << 20


class Advance(ABC):
    """One iterator, and its task.

    Args:
        name: the tool's. call_id: the call's, for the log.
        slots: what the tool holds, which calls that it makes find.

    Attributes:
        content: makes bytes of the items.
        pieces: what came and was not taken away yet.
        over: nothing comes after that.
        error: what the tool raised after that; an error of its own, or a `RenderingError` of an item.
    """

    def __init__(self, name: str, call_id: str | None, slots: Slots) -> None:
        self.content: Content = Content()
        self.pieces: list[bytes] = []
        self.over: bool = False
        self.error: BaseException | None = None
        self._name = name
        self._call_id = call_id
        self._slots = slots
        self._scope = anyio.CancelScope()
        self._ended = anyio.Event()
        self._answered = anyio.Event()
        self._loop = Loop()
        self._task: object = None
        self._stopped = False

    async def more(self) -> None:
        """Wait until there is more, or the end of it. After a cancellation only `aclose` makes sense."""
        if self._ended.is_set():
            return
        self._answered = anyio.Event()
        self._begin()
        self._want()
        await self._answered.wait()

    async def aclose(self) -> None:
        """End the iterator, in its own task, and wait for that. One that hangs is left behind."""
        self._begin()
        self._stopped = True
        self._stop()
        with anyio.move_on_after(CLOSING_SECONDS, shield=True):
            await self._ended.wait()
        if not self._ended.is_set():
            self._scope.cancel()
            _log.warning(
                "the stream of the call %r of the tool %s does not close, and was left behind",
                self._call_id,
                self._name,
            )

    def _begin(self) -> None:
        if self._task is None:
            self._task = self._loop.spawn(self._live)

    async def _live(self) -> None:
        try:
            with self._scope, self._slots.lent():
                try:
                    await self._work()
                except asyncio.CancelledError as error:
                    if self._scope.cancel_called or not is_stray(error):
                        raise
                    self.error = error
                except SystemExit as error:  # from a command line inside a tool: it must not end the server
                    self.error = RuntimeError(f"the tool wanted to end the process with exit code {error.code}")
                except Exception as error:  # noqa: BLE001 - whatever a tool raises is its answer
                    self.error = error
                finally:
                    with anyio.CancelScope(shield=True, deadline=anyio.current_time() + CLOSING_SECONDS):
                        await self._close()
        finally:
            if not (self.over or self._stopped) and self.error is None:  # its own timeout struck between two items
                self.error = asyncio.CancelledError()
            self._ended.set()
            self._answered.set()

    def _failed_to_close(self, error: BaseException) -> None:
        where = (self._call_id, self._name)
        _log.warning("the stream of the call %r of the tool %s raised when it was closed", *where, exc_info=error)

    @abstractmethod
    def _want(self) -> None:
        """Have more of it."""

    @abstractmethod
    def _stop(self) -> None:
        """Have no more of it."""

    @abstractmethod
    async def _work(self) -> None:
        """Advance the iterator whenever more is wanted, and answer."""

    @abstractmethod
    async def _close(self) -> None:
        """Close the iterator."""


class AsyncAdvance(Advance):
    """An async iterator."""

    def __init__(self, name: str, call_id: str | None, slots: Slots, iterator: AsyncIterator[Any]) -> None:
        super().__init__(name, call_id, slots)
        self._iterator = iterator
        self._wanted = anyio.Event()

    def _want(self) -> None:
        self._wanted.set()

    def _stop(self) -> None:
        self._scope.cancel()

    async def _work(self) -> None:
        while not (self.over or self._stopped):
            await self._wanted.wait()
            self._wanted = anyio.Event()
            await self._gather()
            self._answered.set()

    async def _gather(self) -> None:
        gathered, began = 0, perf_counter()
        while gathered < GATHERED_BYTES and perf_counter() - began < GATHERING_SECONDS:
            try:
                item = await anext(self._iterator)
            except StopAsyncIteration:
                self.over = True
                return
            if self._stopped:  # what is yielded in spite of that came too late
                return
            if isinstance(item, str) and len(item) > _LARGE_TEXT:
                piece = await anyio.to_thread.run_sync(self.content.to_bytes, item)
            else:
                piece = self.content.to_bytes(item)
            self.pieces.append(piece)
            gathered += len(piece) or 1

    async def _close(self) -> None:
        aclose = getattr(self._iterator, "aclose", None)
        if aclose is None:
            return
        try:
            await aclose()
        except asyncio.CancelledError as error:
            if not is_stray(error):
                raise
            self._failed_to_close(error)
        except Exception as error:  # noqa: BLE001 - the tool's own code, which nobody waits for any more
            self._failed_to_close(error)


class ThreadAdvance(Advance):
    """A sync iterator.

    Args:
        make: begins it, in its thread; what it makes is closed, even if nothing of it was ever wanted.
        threads: where it may run.
    """

    def __init__(
        self, name: str, call_id: str | None, slots: Slots, make: Callable[[], Iterator[Any]], threads: RunningThreads
    ) -> None:
        super().__init__(name, call_id, slots)
        self._make = make
        self._threads = threads
        self._orders: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._busy = False
        self._entered = False

    def _want(self) -> None:
        self._busy = True
        self._orders.put(True)

    def _stop(self) -> None:
        self._orders.put(False)
        if self._busy:  # it may hang
            self._scope.cancel()

    async def _work(self) -> None:
        if not await self._slots.acquire_also(self._threads.free):
            raise RuntimeError("threads of earlier calls hang, and hold every slot")
        try:
            await self._threads.run_part(self._name, self._live_in_thread, self._slots)
        finally:  # also where the event loop ends and nobody closes anything: the thread must not wait for ever
            self._stopped = True
            self._orders.put(False)

    async def _close(self) -> None:
        if not self._entered:  # else its thread does that, whenever it comes back
            await anyio.to_thread.run_sync(self._live_in_thread)

    def _live_in_thread(self) -> None:
        self._entered = True
        iterator = self._make()
        try:
            while not (self.over or self._stopped) and self._orders.get():
                self._gather(iterator)
                self._busy = False
                self._loop.tell(self._answered.set)
        finally:
            close = getattr(iterator, "close", None)
            if close is not None:
                try:
                    close()
                except Exception as error:  # noqa: BLE001 - the tool's own code, which nobody waits for any more
                    self._failed_to_close(error)

    def _gather(self, iterator: Iterator[Any]) -> None:
        gathered, began = 0, perf_counter()
        while gathered < 4 * GATHERED_BYTES and perf_counter() - began < 4 * GATHERING_SECONDS:
            try:
                item = next(iterator)
            except StopIteration:
                self.over = True
                return
            if self._stopped:
                return
            piece = self.content.to_bytes(item)
            self.pieces.append(piece)
            gathered += len(piece) or 1
