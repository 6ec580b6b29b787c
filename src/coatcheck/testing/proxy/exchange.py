"""One client's connection, request by request, and what a fault does to it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
from anyio.abc import SocketStream

from coatcheck.testing.proxy.faults import ProxyFault
from coatcheck.testing.proxy.request import ProxyRequest, classify
from coatcheck.testing.proxy.wire import CHUNK, Body, Head, Lost, Malformed, Peer

__all__ = ["Connection"]

_SECRET = ("authorization", "x-amz-security-token")
_SLICES = 20  # a second, of a body that is slow
_TURNED = bytes(255 - byte for byte in range(256))


class Connection:
    """A client's connection and, from the first request that is passed on, one to the upstream.

    Args:
        client: the client's.
        connect: opens one to the upstream.
        meet: notes a request, and returns the fault that strikes it.
        hold: waits until what is held is released.
    """

    def __init__(
        self,
        client: SocketStream,
        connect: Callable[[], Awaitable[SocketStream]],
        meet: Callable[[ProxyRequest], ProxyFault | None],
        hold: Callable[[], Awaitable[None]],
    ) -> None:
        self._client = Peer(client)
        self._upstream: Peer | None = None
        self._connect = connect
        self._meet = meet
        self._hold = hold
        self._keep = True
        self._reset = False
        self._scope = anyio.CancelScope()

    def drop(self) -> None:
        """End it with a reset, as soon as the event loop comes to it."""
        self._reset = True
        self._scope.cancel()

    async def run(self) -> None:
        """Serve the client until one side leaves; both connections are closed then, whatever happens."""
        try:
            with self._scope:
                while self._keep and (head := await self._next_head()) is not None:
                    await self._serve(head)
        except Lost as lost:
            # What happens to the upstream happens to the client.
            self._reset = self._reset or (lost.peer is not self._client and lost.reset)
        except Malformed:
            await self._say_malformed()
        finally:
            with anyio.CancelScope(shield=True):
                await self._client.close(reset=self._reset)
                if self._upstream is not None:
                    await self._upstream.close()

    async def _say_malformed(self) -> None:
        try:
            await self._client.send(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        except Lost:
            return

    async def _next_head(self) -> Head | None:
        """The head of the client's next request; ``None`` where one of the two has left instead."""
        if self._upstream is None:
            return await self._client.head()
        return await self._beside(self._upstream, self._client.head)

    async def _beside(self, peer: Peer, wait: Callable[[], Awaitable[Head | None]]) -> Head | None:
        """What ``wait`` gives; ``None`` where the peer leaves first."""
        found: Head | None = None
        failed: Lost | Malformed | None = None
        async with anyio.create_task_group() as tasks:

            async def watch() -> None:
                if await peer.gone():
                    tasks.cancel_scope.cancel()

            tasks.start_soon(watch)
            try:
                found = await wait()
            except (Lost, Malformed) as error:
                failed = error  # raised below, where no group wraps it
            tasks.cancel_scope.cancel()
        if failed is not None:
            raise failed
        return found

    async def _serve(self, head: Head) -> None:
        method, path, _ = head.first
        request = ProxyRequest(
            operation=classify(method, path, head.headers),
            method=method,
            path=path,
            headers={name: value for name, value in head.headers.items() if name not in _SECRET},
        )
        fault = self._meet(request)
        self._keep = head.keeps
        try:
            body = Body(self._client, head)
            if fault is not None and not fault.passed and _strikes_before(fault):
                await self._strike_before(fault, request, head, body)
            else:
                if self._upstream is None:
                    try:
                        self._upstream = Peer(await self._connect())
                    except OSError:
                        self._keep, self._reset = False, True
                        return
                await _Exchange(self, self._client, self._upstream, fault, request).run(head, body)
        finally:
            request.ended = True

    async def _strike_before(self, fault: ProxyFault, request: ProxyRequest, head: Head, body: Body) -> None:
        """What happens to a request that the upstream never hears of."""
        request.faulted = True
        if fault.kind == "reset":
            self._keep, self._reset = False, True
            return
        expects = "100-continue" in head.headers.get("expect", "").lower()
        if fault.kind == "answer" and expects:
            await self._client.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        if fault.kind == "answer" or not expects:
            while not body.ended:
                request.request_bytes += len(await body.read(CHUNK))
        if fault.kind == "answer":
            await self.tell(fault, request)
        else:
            self._keep = False
            await self._beside(self._client, self.hold)

    async def tell(self, fault: ProxyFault, request: ProxyRequest) -> None:
        """Answer the request with the fault's error."""
        content = (
            '<?xml version="1.0" encoding="UTF-8"?>\n'
            f"<Error><Code>{fault.code}</Code><Message>made by the fault proxy</Message></Error>"
        ).encode()
        closing = "" if self._keep else "Connection: close\r\n"
        head = (
            f"HTTP/1.1 {fault.status} {fault.code}\r\nContent-Type: application/xml\r\n"
            f"Content-Length: {len(content)}\r\n{closing}\r\n"
        ).encode()
        request.status = fault.status
        await self._client.send(head if request.method == "HEAD" else head + content)

    async def hold(self) -> None:
        """Wait until what is held is released."""
        await self._hold()

    def end(self, *, reset: bool = False) -> None:
        """Let this request be the last one."""
        self._keep = False
        self._reset = self._reset or reset


def _strikes_before(fault: ProxyFault) -> bool:
    """Whether the fault strikes before the upstream is asked."""
    mid_body = fault.after_request_bytes is not None or fault.after_response_bytes is not None
    return fault.kind in ("answer", "silence") or (fault.kind == "reset" and not mid_body)


class _Exchange:
    """One request that is passed on: its body goes up while its answer comes down."""

    def __init__(
        self, connection: Connection, client: Peer, upstream: Peer, fault: ProxyFault | None, request: ProxyRequest
    ) -> None:
        self._connection = connection
        self._client = client
        self._upstream = upstream
        self._fault = fault
        self._request = request
        self._sent = anyio.Event()
        self._scope = anyio.CancelScope()

    async def run(self, head: Head, body: Body) -> None:
        self._request.faulted = self._fault is not None and self._fault.kind == "slow"
        async with anyio.create_task_group() as tasks:
            self._scope = tasks.cancel_scope
            tasks.start_soon(self._up, head, body)
            try:
                await self._down()
            except Lost as lost:
                self._connection.end(reset=lost.reset and lost.peer is self._upstream)
            except Malformed:
                self._connection.end(reset=True)
            tasks.cancel_scope.cancel()

    async def _cut(self, *, reset: bool = False) -> None:
        self._connection.end(reset=reset)
        self._scope.cancel()
        await anyio.sleep_forever()

    async def _up(self, head: Head, body: Body) -> None:
        fault = self._fault
        try:
            await self._upstream.send(head.raw)
            await self._pass(
                body,
                self._upstream,
                up=True,
                mark=fault.after_request_bytes if fault else None,
                rate=fault.request_rate if fault else None,
                altered=fault.request_at if fault else None,
            )
        except Lost as lost:
            # A server that closed may have answered before: the way down tells. A client that left hears nothing.
            self._connection.end()
            self._sent.set()
            if lost.peer is not self._upstream:
                self._scope.cancel()
            return
        except Malformed:
            await self._cut(reset=True)
        self._sent.set()
        if await self._client.gone():
            self._connection.end()
            self._scope.cancel()

    async def _down(self) -> None:
        fault, request = self._fault, self._request
        while True:
            head = await self._upstream.head()
            if head is None:
                raise Lost(self._upstream, reset=False)
            if head.status >= 200:
                break
            await self._client.send(head.raw)
        request.upstream_status = head.status
        body = Body(self._upstream, head, request.method)
        if not head.keeps or body.until_close:
            self._connection.end()
        if fault is not None and fault.passed and fault.kind in ("answer", "reset"):
            await self._lose(fault, body)
        else:
            await self._answer(head, body)
        if head.keeps:
            await self._sent.wait()

    async def _lose(self, fault: ProxyFault, body: Body) -> None:
        """Take the upstream's answer, and say that something else came of it."""
        while not body.ended:
            await body.read(CHUNK)
        await self._sent.wait()
        self._request.faulted = True
        if fault.kind == "reset":
            await self._cut(reset=True)
        await self._connection.tell(fault, self._request)

    async def _answer(self, head: Head, body: Body) -> None:
        fault, request = self._fault, self._request
        if fault is not None and fault.kind == "silence":
            request.faulted = True
            await self._connection.hold()
        if fault is not None and fault.after_request_bytes is not None:
            await self._sent.wait()  # an answer that comes at once does not overtake the fault
        if fault is not None and fault.delay:
            await anyio.sleep(fault.delay)
        request.status = head.status
        await self._client.send(head.raw)
        await self._pass(
            body,
            self._client,
            up=False,
            mark=fault.after_response_bytes if fault else None,
            rate=fault.response_rate if fault else None,
            altered=fault.response_at if fault else None,
        )

    async def _pass(
        self, body: Body, to: Peer, *, up: bool, mark: int | None, rate: float | None, altered: int | None
    ) -> None:
        """Pass a body on, with the fault at its mark."""
        passed = 0
        most = CHUNK if rate is None else max(1, min(CHUNK, int(rate / _SLICES)))
        while True:
            if passed == mark and not (body.ended and self._fault and self._fault.kind == "truncate"):
                mark = None
                await self._strike()
            if body.ended:
                break
            data = await body.read(most if mark is None else min(most, mark - passed))
            if not data:
                continue
            if altered is not None:
                data = self._altered(data, altered - passed)
            await to.send(body.framed(data))
            passed += len(data)
            if up:
                self._request.request_bytes = passed
            else:
                self._request.response_bytes = passed
            if rate is not None:
                await anyio.sleep(len(data) / rate)
        if end := body.end:
            await to.send(end)

    async def _strike(self) -> None:
        """What happens in the middle of a body."""
        self._request.faulted = True
        if self._fault is not None and self._fault.kind == "stall":
            await self._connection.hold()
        else:
            await self._cut(reset=self._fault is not None and self._fault.kind == "reset")

    def _altered(self, data: bytes, start: int) -> bytes:
        """``data`` with what lies from ``start`` on turned over, as far as it lies in it."""
        length = self._fault.length if self._fault is not None else 0
        first, last = max(start, 0), min(start + length, len(data))
        if first >= last:
            return data
        self._request.faulted = True
        return data[:first] + data[first:last].translate(_TURNED) + data[last:]
