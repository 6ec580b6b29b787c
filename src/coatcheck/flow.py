"""A result that is still being produced while the chain judges it.

The tool's end of it is a `Source`; whoever takes it in reads a `Flow`. A step that has something to say about the
pieces stands between the two: the ceiling counts (`Flow.limit`), a rule looks at every piece (a source of its own,
around the flow before it). So the nesting of the steps holds for streams as it does for whole values, and nothing is
published before the last of them has passed: the store sees the end only if all of them let it through.

Where a stream breaks off or is refused, it becomes an outcome, and whoever reads it learns so by `Ended`.
Memory is bounded: a flow keeps what is read ahead of a decision, and the head that may have to be shown.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import msgspec

from coatcheck.call import ToolCall
from coatcheck.errors import RenderingError
from coatcheck.outcome import Failed, Inline, Outcome, carried, failed
from coatcheck.results.rendering import Rendered, render
from coatcheck.results.streams import Gauge, to_value

__all__ = ["FLOWING", "PIECE", "Ended", "Flow", "Source", "flow_of", "flowing", "settled", "undeliverable"]

PIECE = 1 << 18
"""How many bytes one piece of a flow has at most."""

FLOWING = sys.maxsize
"""The size of what nobody knows the size of: over every limit, so that every step is asked."""


class Ended(Exception):
    """The stream has become ``outcome``, which is not what it was to be. Nobody outside of the boundary meets it."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(f"the stream of {outcome.tool} ended as {type(outcome).__name__}")
        self.outcome = outcome


class Source(Protocol):
    """What a flow is read from."""

    async def read(self) -> bytes:
        """The next piece, of at most `PIECE` bytes and never empty; ``b""`` at the end, and ever after.

        Raises:
            Ended: it broke off.
        """
        ...

    async def aclose(self) -> None:
        """Nobody reads on. Safe to say twice."""
        ...

    async def abandon(self) -> None:
        """Nobody reads on, because whoever read it was cancelled: `aclose`, and whoever listens is told."""
        ...


class Flow:
    """One stream, read by one task at a time.

    Args:
        source: where it comes from.
        gauge: what counts it.
        about: an outcome of the call that it belongs to.
        keep: how many characters of its beginning may have to be shown in the end.

    Attributes:
        gauge: what was read so far comes to.
        whole: all of it was read.
        judged: somebody still judges what comes, so it has to be read to its end before any of it is shown.
        ended: the outcome that it ended as.
        on_end: what becomes of an outcome that it ends as (the rules after the tool look at that, too).
    """

    def __init__(self, source: Source, gauge: Gauge, about: Outcome, *, keep: int) -> None:
        self.gauge = gauge
        self.about = about
        self.keep = keep
        self.whole: bool = False
        self.judged: bool = False
        self.on_end: Callable[[Outcome], Awaitable[Outcome]] | None = None
        self.ended: Outcome | None = None
        self._source = source
        self._ahead: deque[bytes] = deque()
        self._head: list[bytes] = []
        self._limit: tuple[int, Callable[[], Outcome]] | None = None
        self._reading = False

    def __repr__(self) -> str:
        return f"<a stream of {self.gauge.media_type}, {self.gauge.bytes} bytes so far>"

    def limit(self, chars: int, refuse: Callable[[], Outcome]) -> None:
        """End it, as what ``refuse`` answers, when more than ``chars`` characters of it were read."""
        self._limit = chars, refuse
        self.judged = True

    def through(self, source: Source) -> Flow:
        """The flow that comes out of a source around this one."""
        onward = Flow(source, Gauge(self.gauge.declared), self.about, keep=self.keep)
        onward.gauge.form = self.gauge.form
        onward.judged = True
        return onward

    @property
    def lost(self) -> bool:
        """Whether a reader was interrupted in the middle: what would have come then, nobody will ever read."""
        return self._reading and not self.whole and self.ended is None

    async def read(self) -> bytes:
        """The next piece, as `Source.read`."""
        return self._ahead.popleft() if self._ahead else await self._next()

    async def fill(self, chars: int = FLOWING, bytes: int = FLOWING) -> bool:
        """Read ahead until it is over ``chars`` characters or ``bytes`` bytes, or there is no more.

        Returns:
            Whether all of it was read, and is within both.

        Raises:
            Ended: as `read`.
        """
        while self.gauge.size <= chars and self.gauge.bytes <= bytes:
            piece = await self._next()
            if not piece:
                return self.gauge.size <= chars  # text may have turned out to be none
            self._ahead.append(piece)
        return False

    async def drain(self, bytes: int = FLOWING) -> bool:
        """Read it to its end, and keep nothing but its head; False: it is over ``bytes`` bytes, and was not read on."""
        while await self.read():
            if self.gauge.bytes > bytes:
                return False
        return True

    async def aclose(self) -> None:
        """Nobody reads on: the producer is closed, and what it held is free."""
        self._ahead.clear()
        await self._source.aclose()

    async def abandon(self) -> None:
        """`aclose`, because whoever read it was cancelled."""
        self._ahead.clear()
        await self._source.abandon()

    def value(self) -> Any:
        """All of it as an ordinary value, once `fill` has said so."""
        data = b"".join(self._ahead)
        self._ahead.clear()
        return to_value(data, self.gauge)

    def head(self) -> Rendered:
        """Its beginning as text; empty where it is binary. Its ``size`` is that of all that was read."""
        gauge = self.gauge
        text = b"".join(self._head).decode(errors="ignore")[: self.keep] if gauge.is_text else ""
        return Rendered(gauge.size, gauge.media_type, None, text)

    async def _next(self) -> bytes:
        if self.ended is not None:
            raise Ended(self.ended)
        if self.whole:
            return b""
        if self.lost:
            raise await self._end(_cut_off(self.about))
        gauge = self.gauge
        before = gauge.size
        self._reading = True
        try:
            piece = await self._source.read()
        except Ended as end:
            raise await self._end(end.outcome) from None
        except BaseException:
            await self.abandon()
            raise
        self._reading = False
        if piece:
            gauge.feed(piece)
        else:
            gauge.finish()
        if self._limit is not None and gauge.size > self._limit[0]:
            raise await self._end(self._limit[1]())
        if not piece:
            self.whole = True
            await self._source.aclose()
        elif before < self.keep:
            self._head.append(piece)
        return piece

    async def _end(self, outcome: Outcome) -> Ended:
        await self.aclose()
        if self.on_end is not None:
            outcome = await self.on_end(outcome)
        self.ended = outcome
        return Ended(outcome)


def flowing(outcome: Inline, flow: Flow) -> Inline:
    """An outcome whose value is still on its way. What it says of itself is for a host's middleware to read."""
    return msgspec.structs.replace(
        outcome, value=flow, text=Rendered(FLOWING, flow.gauge.media_type, None, f"[{flow!r:.200}]"), content=()
    )


def flow_of(outcome: Outcome) -> Flow | None:
    """The flow that an outcome stands for, if it does."""
    return outcome.value if isinstance(outcome, Inline) and type(outcome.value) is Flow else None


def settled(outcome: Inline, flow: Flow) -> Outcome:
    """The outcome of a flow that was read as a whole: an ordinary one, with an ordinary value."""
    try:
        value = flow.value()
        rendered = render(value)
    except RenderingError as error:
        return undeliverable(outcome, error)
    return carried(outcome, Inline, text=rendered, value=value, content=rendered.blobs)


def undeliverable(about: Outcome | ToolCall, error: RenderingError) -> Failed:
    """The failure of a tool that returned what cannot be carried."""
    tool = about.tool if isinstance(about, Outcome) else about.name
    reason = f"{tool} returned a value that cannot be delivered: {error}. Nothing was returned or stored."
    return failed(ToolCall(tool, {}, about.call_id), reason, executed=True)


def _cut_off(about: Outcome) -> Failed:
    reason = f"The result of {about.tool} was cut off while it was taken in. Nothing was returned or stored."
    return failed(ToolCall(about.tool, {}, about.call_id), reason, executed=True)
