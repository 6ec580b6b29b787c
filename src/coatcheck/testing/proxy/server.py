"""The proxy itself: its port, its connections, its faults and its log."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Self
from urllib.parse import urlsplit

import anyio
import msgspec
from anyio.abc import SocketListener, SocketStream, TaskGroup

from coatcheck.errors import ConfigurationError
from coatcheck.settings import check_whole
from coatcheck.testing.proxy.exchange import Connection
from coatcheck.testing.proxy.faults import ProxyFault
from coatcheck.testing.proxy.request import ProxyRequest

__all__ = ["FaultProxy"]

_HOST = "127.0.0.1"


class _Counted(msgspec.Struct):
    fault: ProxyFault
    met: int = 0


class FaultProxy(anyio.AsyncContextManagerMixin):
    """A proxy between a client and an HTTP/1.1 server on this machine, with faults.

        async with FaultProxy("http://127.0.0.1:8333") as proxy:
            proxy.add(reset(on="put_object", after_request_bytes=1000, nth=1))
            ...  # a client of proxy.url

    It listens on 127.0.0.1 alone. Heads are passed on as they are, ``Host`` too, so a request signed for ``proxy.url``
    is one for the server behind. Bodies are passed on as they come; chunks may be cut anew. One connection of a client
    is one to the server, from its first request that is passed on; when the server closes or breaks it, so does the
    proxy. What a client asks before it has its answer (pipelining) waits. There is no TLS.

    The faults of a proxy count requests each for itself, whether or not another fault strikes them; of those that
    strike a request, the first happens. Leaving the ``async with`` ends every connection at once.

    Args:
        upstream: the server's URL, as ``http://127.0.0.1:8333``; on the loopback.
        faults: as `FaultProxy.add` takes them.

    Attributes:
        requests: every request met so far, in the order of arrival; clear it as you like.
        peak_connections: how many connections of clients were open at once, at most.

    Raises:
        ConfigurationError: ``upstream`` is no ``http`` URL of a server on the loopback.
    """

    def __init__(self, upstream: str, *faults: ProxyFault) -> None:
        self._upstream = _loopback(upstream)
        self._faults: list[_Counted] = []
        self._listening: anyio.CancelScope | None = None
        self._tasks: TaskGroup | None = None
        self._socket: socket.socket | None = None
        self._port = 0
        self._open: set[Connection] = set()
        self._released = anyio.Event()
        self._changed = anyio.Event()
        self.requests: list[ProxyRequest] = []
        self.peak_connections: int = 0
        self.add(*faults)

    @property
    def url(self) -> str:
        """Where clients reach it, as ``http://127.0.0.1:40001``; the same until it is left.

        Raises:
            ConfigurationError: the proxy is not open.
        """
        if self._tasks is None:
            raise ConfigurationError("the proxy is not open; use it in `async with FaultProxy(...) as proxy`")
        return f"http://{_HOST}:{self._port}"

    @property
    def connections(self) -> int:
        """How many connections of clients are open now."""
        return len(self._open)

    def add(self, *faults: ProxyFault) -> None:
        """Let these faults happen from now on, after those that are there; each counts requests from 1."""
        self._faults.extend(_Counted(fault) for fault in faults)

    def heal(self) -> None:
        """Forget every fault, for the requests to come, and release what is held."""
        self._faults.clear()
        self.release()

    def release(self) -> None:
        """Let everything go on that `silence` and `stall` hold now."""
        self._released.set()
        self._released = anyio.Event()

    def drop(self) -> None:
        """Reset every connection that is open now."""
        for connection in tuple(self._open):
            connection.drop()

    async def refuse(self) -> None:
        """Refuse new connections, until `accept`; those that are open stay so (see `drop`).

        The port stays the proxy's own: nobody else can listen on it meanwhile.
        """
        if self._listening is not None:
            self._listening.cancel()
            while self._listening is not None:
                await self._change()

    async def accept(self) -> None:
        """Accept connections again, on the same port."""
        if self._tasks is not None and self._listening is None:
            await self._tasks.start(self._listen)

    def count(self, operation: str | None = None) -> int:
        """How many requests of the operation, or of all, arrived so far."""
        return sum(operation in (None, request.operation) for request in self.requests)

    def bytes_out(self, operation: str | None = None) -> int:
        """How many bytes of content the requests of the operation, or all, brought in their bodies so far."""
        return sum(request.request_bytes for request in self.requests if operation in (None, request.operation))

    def bytes_in(self, operation: str | None = None) -> int:
        """How many bytes of content were sent to clients in the bodies of answers to the operation, or to all."""
        return sum(request.response_bytes for request in self.requests if operation in (None, request.operation))

    async def seen(self, operation: str | None = None, count: int = 1) -> None:
        """Wait until ``count`` requests of the operation, or of any, have arrived since the log was cleared.

        Raises:
            ConfigurationError: ``count`` is no positive whole number.
        """
        check_whole("count", count)
        while self.count(operation) < count:
            await self._change()

    async def idle(self) -> None:
        """Wait until no client's connection is open."""
        while self._open:
            await self._change()

    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[Self, None]:
        if self._tasks is not None:
            raise ConfigurationError("this proxy is open already; make one for each use")
        failed: Exception | None = None
        try:
            self._bind()
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                await tasks.start(self._listen)
                try:
                    yield self
                except Exception as error:  # noqa: BLE001 - raised below as it is, where no group wraps it
                    failed = error
                tasks.cancel_scope.cancel()
        finally:
            self._tasks = None
            if self._socket is not None:
                self._socket.close()
                self._socket = None
        if failed is not None:
            raise failed

    def _bind(self) -> None:
        """Hold the port: a socket that is bound and does not listen refuses every connection."""
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind((_HOST, self._port))
        self._port = self._socket.getsockname()[1]

    async def _listen(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        tasks, bound = self._tasks, self._socket
        if tasks is None or bound is None:
            raise ConfigurationError("the proxy is not open; use it in `async with FaultProxy(...) as proxy`")
        self._socket = None
        bound.listen(1024)
        listener = await SocketListener.from_socket(bound)
        try:
            with anyio.CancelScope() as self._listening:
                task_status.started()
                await listener.serve(self._connection, tasks)
        finally:
            with anyio.CancelScope(shield=True):
                await listener.aclose()
            self._bind()
            self._listening = None
            self._notify()

    async def _connection(self, stream: SocketStream) -> None:
        connection = Connection(stream, self._connect, self._meet, self._hold)
        self._open.add(connection)
        self.peak_connections = max(self.peak_connections, len(self._open))
        try:
            await connection.run()
        finally:
            self._open.discard(connection)
            self._notify()

    async def _connect(self) -> SocketStream:
        return await anyio.connect_tcp(*self._upstream)

    def _meet(self, request: ProxyRequest) -> ProxyFault | None:
        self.requests.append(request)
        self._notify()
        struck = None
        for counted in self._faults:
            if counted.fault.matches(request):
                counted.met += 1
                if struck is None and counted.fault.strikes(counted.met):
                    struck = counted.fault
        return struck

    async def _hold(self) -> None:
        await self._released.wait()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def _change(self) -> None:
        await self._changed.wait()


def _loopback(url: str) -> tuple[str, int]:
    wrong = ConfigurationError(
        "FaultProxy's upstream must be the plain http URL of a server on the loopback, as http://127.0.0.1:8333"
    )
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
        local = host == "localhost" or (host is not None and ipaddress.ip_address(host).is_loopback)
    except ValueError:
        raise wrong from None
    if parts.scheme != "http" or not local or host is None or parts.username is not None:
        raise wrong
    if parts.path.strip("/") or parts.query or parts.fragment:
        raise wrong
    return (_HOST if host == "localhost" else host), port or 80
