"""One answer on its way to a client that may be slow, or gone.

Laws:

* A client that goes away ends the work for it, wherever that is, and everything is freed.
* A client that takes nothing for the write timeout is given up: the response is cut.
* A response that is cut is never a whole one: it ends with an exception, upon which a server closes the connection,
  before as many bytes as were announced were sent.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping

import anyio
import msgspec
from anyio.lowlevel import checkpoint
from starlette.types import Message, Receive, Send

from coatcheck.service.content import GUARDS

__all__ = ["Reply", "ResponseCut", "while_connected"]

_PIECE = 1 << 16
"""What is sent at once: what a server and its socket hold for one slow client is about twice as much."""

_log = logging.getLogger("coatcheck")


class ResponseCut(Exception):
    """A response could not be sent to its end, and its connection is to be closed."""


class Reply:
    """The answer to one request.

    Args:
        send: the server's.
        head_only: nothing but the status and the headers is sent, as for HEAD.
        write_timeout: how long the client may take nothing, in seconds.

    Attributes:
        head_only: as given.
        started: whether the status is on its way, and cannot be changed any more.
    """

    def __init__(self, send: Send, *, head_only: bool, write_timeout: float) -> None:
        self.started: bool = False
        self._send = send
        self.head_only: bool = head_only
        self._timeout = write_timeout

    async def start(self, status: int, headers: Mapping[str, str]) -> None:
        """Send the status and the headers, and the guards that every answer has.

        Raises:
            ResponseCut: the client does not take them.
        """
        self.started = True
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in {**headers, **GUARDS}.items()]
        await self._push({"type": "http.response.start", "status": status, "headers": raw})

    async def body(self, data: bytes | memoryview, *, last: bool) -> None:
        """Send a part of the body, in pieces.

        Raises:
            ResponseCut: the client does not take it.
        """
        for at in range(0, max(len(data), 1), _PIECE):
            more = not last or at + _PIECE < len(data)
            piece = b"" if self.head_only else bytes(data[at : at + _PIECE])
            await self._push({"type": "http.response.body", "body": piece, "more_body": more})
            if more:
                # A server need not wait for anything while its buffer has room; others, and the news that the client
                # is gone, get their turn here.
                await checkpoint()

    async def whole(self, status: int, headers: Mapping[str, str], data: bytes) -> None:
        """Send an answer of which everything is at hand.

        Raises:
            ResponseCut: the client does not take it.
        """
        length = {} if status == 304 else {"content-length": str(len(data))}
        await self.start(status, {**headers, **length})
        await self.body(data, last=True)

    async def problem(self, status: int, text: str, headers: Mapping[str, str] | None = None) -> None:
        """Send what is wrong, in one sentence. It depends on nothing else."""
        data = msgspec.json.encode({"error": text}) + b"\n"
        fixed = {"content-type": "application/json", "cache-control": "no-store"}
        await self.whole(status, {**fixed, **(headers or {})}, data)

    async def _push(self, message: Message) -> None:
        with anyio.move_on_after(self._timeout) as limit:
            await self._send(message)
        if limit.cancelled_caught:
            _log.warning("a response was cut: its client took nothing for %g seconds", self._timeout)
            raise ResponseCut("the client takes nothing")


async def while_connected(receive: Receive, work: Callable[[], Awaitable[None]]) -> None:
    """Do ``work`` for as long as somebody waits for it.

    Args:
        receive: the server's; nothing that it brings is kept.
        work: is cancelled when the client goes away. What it raises goes on unchanged.
    """
    errors: list[Exception] = []

    async def listen() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(listen)
        try:
            await work()
        except Exception as error:  # noqa: BLE001  # it goes on below, and not inside of a group
            errors.append(error)
        group.cancel_scope.cancel()
    if errors:
        raise errors[0]
