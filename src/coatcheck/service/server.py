"""A server for one ASGI app (uvicorn) that slow clients cannot keep busy, and that ends in good order.

What uvicorn bounds is set here: the size of a request's head, the number of connections, how long an idle one stays.
What it does not bound is bounded here, too:

* a connection on which a request's head does not come to its end in time is closed;
* a connection that is being closed, and whose client does not take what is left, is closed all the same.
"""

from __future__ import annotations

import logging
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from math import ceil
from typing import TYPE_CHECKING, Any

import anyio
from anyio import to_thread

from coatcheck.errors import ConfigurationError
from coatcheck.service.access import is_loopback
from coatcheck.service.reply import ResponseCut
from coatcheck.settings import check_duration, check_whole

if TYPE_CHECKING:
    import asyncio

    from starlette.types import ASGIApp
    from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["check_loopback", "serve"]

_HEAD_BYTES = 1 << 14
_IDLE_SECONDS = 5
_BACKLOG = 512


async def serve(
    app: ASGIApp,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    listening: Callable[[str], None] | None = None,
    stop: anyio.Event | None = None,
    signals: bool = True,
    connections: int = 1000,
    head_timeout: float | timedelta = 10.0,
    linger: float | timedelta = 30.0,
    drain: float | timedelta = 30.0,
) -> None:
    """Serve an ASGI app, with its lifespan, until a signal or `stop` says to end. On asyncio only, as uvicorn is.

    When it is to end, it takes no new connection, lets requests that are under way come to their end, and cuts those
    that take longer than `drain`. A second signal ends it at once.

    Nothing is believed of what a proxy says about a client; run it behind one that ends TLS all the same.

    Args:
        app: the app, for example of `artifact_app`.
        host: the address, or a name of it, on which to listen.
        port: the port; 0 is one that is free.
        listening: is called with the URL, as in ``http://127.0.0.1:8080``, as soon as connections are taken.
        stop: when it is set, the server ends.
        signals: whether SIGTERM, SIGINT and SIGHUP end it; only in the main thread.
        connections: how many there may be at once; a request on one more is told to come again (503).
        head_timeout: how long a request's head may take, in seconds or as a timedelta.
        linger: how long a client may take with the last bytes on a connection that is being closed.
        drain: how long requests may go on after the end was asked for.

    Raises:
        ConfigurationError: an argument cannot be honoured, or the extra is missing.
        OSError: it cannot listen there.
    """
    try:
        import uvicorn
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"a server needs the extra http: install coatcheck[http] ({error.name} is missing)"
        ) from None

    class Server(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            """Signals are dealt with below."""
            yield

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started and listening is not None:
                listening(url)

    protocol = _protocol(check_duration("serve.head_timeout", head_timeout), check_duration("serve.linger", linger))
    config = uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=_BACKLOG,
        limit_concurrency=check_whole("serve.connections", connections) + 1,
        timeout_keep_alive=_IDLE_SECONDS,
        timeout_graceful_shutdown=ceil(check_duration("serve.drain", drain)),
        h11_max_incomplete_event_size=_HEAD_BYTES,
    )
    listener = await to_thread.run_sync(_listen, host, port)
    with listener:
        url = _url(listener)
        server = Server(config)
        async with _ended_by(server, stop, signals=signals):
            with _without_cuts():
                await server.serve([listener])


@asynccontextmanager
async def _ended_by(server: Any, stop: anyio.Event | None, *, signals: bool) -> AsyncIterator[None]:
    """Tell a server to end when something says so."""

    async def wait(event: anyio.Event) -> None:
        await event.wait()
        server.should_exit = True

    async def listen() -> None:
        # Whoever started this process may have said that a hang-up does not count.
        chosen = [signal.SIGTERM, signal.SIGINT]
        chosen += [signal.SIGHUP] if signal.getsignal(signal.SIGHUP) == signal.SIG_DFL else []
        with anyio.open_signal_receiver(*chosen) as received:
            async for _ in received:
                server.force_exit = server.should_exit
                server.should_exit = True

    errors: list[Exception | SystemExit] = []
    async with anyio.create_task_group() as group:
        if stop is not None:
            group.start_soon(wait, stop)
        if signals:
            group.start_soon(listen)
        try:
            yield
        except (Exception, SystemExit) as error:  # noqa: BLE001  # it goes on below, and not inside of a group
            errors.append(error)
        group.cancel_scope.cancel()
    if errors:
        raise errors[0]


def check_loopback(host: str) -> bool:
    """Whether only this machine reaches an address, or every address that a name has. Looking up a name may block.

    Raises:
        OSError: there is no such name.
    """
    found = socket.getaddrinfo(host or "0.0.0.0", None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return all(is_loopback(str(address[0])) for _, _, _, _, address in found)


def _listen(host: str, port: int) -> socket.socket:
    """A socket that listens. Looking up a name may block.

    Raises:
        OSError: it cannot.
    """
    found = socket.getaddrinfo(host or "0.0.0.0", port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, address = found[0]
    # With its protocol said, which what it accepts inherits: asyncio switches Nagle's algorithm off for TCP that says
    # it is. Otherwise every small answer, which is a head and a body, would wait for a delayed acknowledgement.
    listener = socket.socket(family, kind, protocol or socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@contextmanager
def _without_cuts() -> Iterator[None]:
    """Keep responses that were cut on purpose out of uvicorn's log, where each is a traceback; ours has a line."""
    cancelled = anyio.get_cancelled_exc_class()

    def keep(record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        return not isinstance(error, (ResponseCut, cancelled))

    logger = logging.getLogger("uvicorn.error")
    logger.addFilter(keep)
    try:
        yield
    finally:
        logger.removeFilter(keep)


class _Lingering:
    """A transport that is closed for good some time after `close`, whether or not its peer took what was left."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, linger: float) -> None:
        self._transport = transport
        self._loop = loop
        self._linger = linger

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def close(self) -> None:
        if not self._transport.is_closing() and self._transport.get_write_buffer_size():
            self._loop.call_later(self._linger, self._transport.abort)
        self._transport.close()


def _protocol(head_timeout: float, linger: float) -> type[H11Protocol]:
    """The HTTP of uvicorn, with the bounds that it lacks."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Protocol(H11Protocol):
        _waiting: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
            super().connection_made(_Lingering(transport, self.loop, linger))  # type: ignore[arg-type]  # it is like one
            self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            self._unwatch()

        def _watch(self) -> None:
            """The time runs from the first byte of a head until the head is there, and is not set back by a byte."""
            if self.cycle is not None and not self.cycle.response_complete:
                self._unwatch()
            elif self._waiting is None:
                self._waiting = self.loop.call_later(head_timeout, self._give_up)

        def _unwatch(self) -> None:
            if self._waiting is not None:
                self._waiting.cancel()
                self._waiting = None

        def _give_up(self) -> None:
            self._waiting = None
            if self.cycle is None or self.cycle.response_complete:
                self.transport.abort()

    return Protocol
