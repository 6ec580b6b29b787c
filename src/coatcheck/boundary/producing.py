"""The tool's end of a stream: its iterator is advanced, and what it yields becomes pieces of bytes.

Nothing is asked for ahead of what is taken. The tool is still running all the while: its time runs, and its slots
are held until the stream has ended or was closed.
"""

from __future__ import annotations

import asyncio
import io
import logging
import os
import stat
from collections.abc import AsyncIterable, Awaitable, Callable, Iterator
from time import perf_counter
from typing import Any, Literal

import anyio
from anyio.lowlevel import checkpoint

from coatcheck.boundary.advancing import Advance, AsyncAdvance, ThreadAdvance
from coatcheck.boundary.slots import RunningThreads, Slots
from coatcheck.boundary.tool import Tool
from coatcheck.dispatch import Dispatch
from coatcheck.errors import RenderingError
from coatcheck.events import StreamBroken
from coatcheck.flow import PIECE, Ended
from coatcheck.outcome import failed
from coatcheck.results.streams import FileResult, Gauge, Piecewise

__all__ = ["OpenStreams", "Producer", "message_of"]

_log = logging.getLogger("coatcheck")

_LONGEST_TURN = 0.005

Reason = Literal["raised", "timed-out", "idle", "wrong-piece", "cancelled"]


class Producer:
    """One stream of one call.

    Args:
        call: whose it is. tool: whose iterator it is.
        stream: what the tool returned.
        slots: what the tool holds; given back at the end.
        threads: where a sync iterator is advanced.
        deadline: until when the tool may run, by the event loop's clock.

    Attributes:
        gauge: counts what was produced; whoever reads it feeds it.
        closing: each called once when the stream is closed, whatever it came to.

    Raises:
        RenderingError: the tool returned a generator that was used already.
    """

    def __init__(
        self,
        call: Dispatch,
        tool: Tool[..., Any],
        stream: Piecewise,
        *,
        slots: Slots,
        threads: RunningThreads,
        deadline: float,
    ) -> None:
        self.gauge: Gauge = Gauge(stream.media_type)
        self.closing: list[Callable[[], object]] = []
        self._afterwards: list[Callable[[], Awaitable[None]]] = []
        self._call = call
        self._tool = tool
        self._slots = slots
        self._deadline = deadline
        self._advance = _advance(tool.name, call.call_id, stream, slots, threads)
        self._ready = b""
        self._at = 0
        self._closed = False
        self._broken: _Broken | None = None
        self._rested = perf_counter()

    async def read(self) -> bytes:
        """The next piece; see `coatcheck.flow.Source`."""
        while self._at >= len(self._ready):
            if self._broken is not None:  # what came before it was read
                await self.aclose()
                raise self._ended(self._broken)
            if self._advance.over:
                return b""
            await self._more()
        if perf_counter() - self._rested > _LONGEST_TURN:  # a large item must not starve the others
            await checkpoint()
            self._rested = perf_counter()
        start = self._at
        self._at += PIECE
        return self._ready if len(self._ready) <= PIECE else self._ready[start : self._at]

    async def abandon(self) -> None:
        """`aclose`, because the call that it belongs to is over, and nobody waits for it any more."""
        if not self._closed:
            self._tell("cancelled")
        await self.aclose()

    async def aclose(self) -> None:
        """Close the tool's iterator, and give back what it holds. One that hangs in closing is left behind."""
        if self._closed:
            return
        self._closed = True
        self._ready = b""
        if not self._advance.over and self._broken is None:  # whoever reads on must not take this for the end
            self._broken = _Broken("cancelled", f"the stream of {self._tool.name} was closed.")
        try:
            await self._advance.aclose()
        finally:
            self._slots.end()
            for close in self.closing:
                close()
            with anyio.CancelScope(shield=True):
                for take_away in self._afterwards:
                    await take_away()

    def at_end(self, take_away: Callable[[], Awaitable[None]]) -> None:
        """Have what the tool was handed taken away when it has ended."""
        self._afterwards.append(take_away)

    async def _more(self) -> None:
        """Take what comes next, or note why nothing does."""
        name, idle, advance = self._tool.name, self._tool.idle_timeout, self._advance
        until = self._deadline if idle is None else min(self._deadline, anyio.current_time() + idle)
        with anyio.CancelScope(deadline=until) as scope:
            await advance.more()
        self.gauge.form = advance.content.form
        self._ready, self._at = b"".join(advance.pieces), 0
        advance.pieces.clear()
        if advance.error is not None:
            self._broken = self._raised(advance.error)
        elif scope.cancelled_caught and anyio.current_time() >= self._deadline:
            given_up = f"{name} did not finish within {self._tool.timeout:g} seconds and was given up."
            self._broken = _Broken("timed-out", given_up + self._lingering())
        elif scope.cancelled_caught:
            given_up = f"nothing more came from {name} for {idle:g} seconds, and it was given up."
            self._broken = _Broken("idle", given_up + self._lingering())

    def _raised(self, error: BaseException) -> _Broken:
        name = self._tool.name
        if isinstance(error, RenderingError):
            return _Broken("wrong-piece", f"{name} yielded what cannot be delivered: {error}.")
        if isinstance(error, asyncio.CancelledError):
            return _Broken("raised", f"{name} waited for something that was cancelled.")
        _log.info("the stream of the call %r of the tool %s raised", self._call.call_id, name, exc_info=error)
        return _Broken("raised", message_of(error))

    def _lingering(self) -> str:
        return " Its thread is still running and cannot be stopped." if self._slots.in_thread else ""

    def _ended(self, broken: _Broken) -> Ended:
        self._tell(broken.reason)
        read = self.gauge.bytes
        how_far = f"{self._tool.name} broke off after {read} bytes, and nothing was stored: "
        return Ended(failed(self._call, how_far + broken.said if read else broken.said, executed=True))

    def _tell(self, reason: Reason) -> None:
        call = self._call
        if call.emit is not None:
            call.emit(
                StreamBroken(
                    tool=call.name, call_id=call.call_id, turn=call.turn, reason=reason, bytes=self.gauge.bytes
                )
            )


class _Broken(Exception):
    """The stream ended before its end; ``said`` is for the model."""

    def __init__(self, reason: Reason, said: str) -> None:
        super().__init__(said)
        self.reason: Reason = reason
        self.said = said


class OpenStreams:
    """The streams of one boundary that are not closed yet, by the call that they belong to.

    Whatever became of a call, its streams end with it: also where a middleware threw their outcome away.
    """

    def __init__(self) -> None:
        self.open: dict[int, list[Producer]] = {}

    def add(self, call: Dispatch, producer: Producer) -> None:
        """Remember a stream until it is closed."""
        key = id(call.rows)  # all forms of one call share its rows
        mine = self.open.setdefault(key, [])
        mine.append(producer)

        def forget() -> None:
            mine.remove(producer)
            if not mine and self.open.get(key) is mine:
                del self.open[key]

        producer.closing.append(forget)

    def of(self, call: Dispatch) -> tuple[Producer, ...]:
        """What is open of one call's."""
        return tuple(self.open.get(id(call.rows), ()))

    async def close(self, call: Dispatch) -> None:
        """Close what is left of one call's."""
        for producer in self.of(call):
            await producer.abandon()


def message_of(error: BaseException) -> str:
    """What a tool's exception says; of a group, what its leaves say."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(message_of(leaf) for leaf in error.exceptions)
    try:
        if isinstance(error, KeyError):  # whose text is the key alone
            return f"KeyError: {error}"
        text = str(error).strip() or f"{type(error).__name__} without a message"
    except Exception:  # noqa: BLE001 - the tool's own code, which failed already
        text = f"{type(error).__name__} with a message that cannot be printed"
    return text


def _advance(name: str, call_id: str | None, stream: Piecewise, slots: Slots, threads: RunningThreads) -> Advance:
    if isinstance(stream, FileResult):
        return ThreadAdvance(name, call_id, slots, lambda: _file(stream), threads)
    source = stream.source
    if isinstance(source, io.IOBase):
        return ThreadAdvance(name, call_id, slots, lambda: _Blocks(source), threads)
    if any(getattr(source, frame, source) is None for frame in ("gi_frame", "ag_frame")):
        raise RenderingError("$", "a generator that was used already, and has nothing left to give")
    if isinstance(source, AsyncIterable):
        return AsyncAdvance(name, call_id, slots, aiter(source))
    return ThreadAdvance(name, call_id, slots, lambda: iter(source), threads)


def _file(result: FileResult) -> Iterator[bytes]:
    """The blocks of a file that a tool named. A pipe in its place would make the reader wait, and is refused."""
    descriptor = os.open(result.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"FileResult needs a regular file, and {os.fspath(result.path)!r:.200} is none")
        while block := os.read(descriptor, PIECE):
            yield block
    finally:
        os.close(descriptor)


class _Blocks:
    """What an open file has, in blocks, as it comes; its lines may be of any length."""

    def __init__(self, file: Any) -> None:
        self.close = file.close
        # `read` of a buffered file waits until there is as much as was asked for.
        self._read: Callable[[int], Any] = getattr(file, "read1", None) or (
            file.readline if isinstance(file, io.TextIOBase) else file.read
        )

    def __iter__(self) -> _Blocks:
        return self

    def __next__(self) -> Any:
        block = self._read(PIECE)
        if block is None:
            raise BlockingIOError("the open file does not wait for what it has not got yet: open it as a blocking one")
        if not block:
            raise StopIteration
        return block
