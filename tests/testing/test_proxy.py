"""The fault proxy: what it passes on, and each of its faults, before a real HTTP server on both event loops."""

from __future__ import annotations

import errno
import hashlib
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest

from coatcheck.errors import ConfigurationError
from coatcheck.testing.proxy import (
    OPERATIONS,
    FaultProxy,
    ProxyFault,
    alter,
    answer,
    classify,
    lose_answer,
    reset,
    silence,
    slow,
    stall,
    truncate,
)

BIG = 3_000_000
PATTERN = bytes(range(251)) * (BIG // 251 + 1)


class Got(msgspec.Struct):
    """What the server got: a request with its body, as far as it came."""

    method: str
    path: str
    host: str | None
    body: bytes
    whole: bool


class Origin(ThreadingHTTPServer):
    """A server that keeps what it got, and gives bytes: ``GET /b/<length>`` and ``GET /b/chunked-<length>``."""

    daemon_threads = True
    block_on_close = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.got: list[Got] = []
        self.arrived = threading.Condition()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def note(self, got: Got) -> None:
        with self.arrived:
            self.got.append(got)
            self.arrived.notify_all()

    def handle_error(self, request: object, client_address: object) -> None:
        """Connections break here all the time: only what is no broken connection is worth a word."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]  # typed more narrowly than used

    async def wait(self, count: int) -> None:
        """Wait until so many requests were taken, whole or not."""

        def wait() -> bool:
            with self.arrived:
                return self.arrived.wait_for(lambda: len(self.got) >= count, 20)

        assert await anyio.to_thread.run_sync(wait)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Origin

    def log_message(self, format: str, *args: object) -> None:
        pass

    def take(self) -> bool:
        body, whole = b"", True
        try:
            if self.headers.get("transfer-encoding") == "chunked":
                while size := int(self.rfile.readline().partition(b";")[0], 16):
                    body += self.rfile.read(size)
                    self.rfile.readline()
                while self.rfile.readline().strip():
                    pass
            else:
                length = int(self.headers.get("content-length", 0))
                body = self.rfile.read(length)
                whole = len(body) == length
        except (OSError, ValueError):
            whole = False
        self.server.note(Got(self.command, self.path, self.headers.get("host"), body, whole))
        self.close_connection = self.close_connection or not whole
        return whole

    def do_PUT(self) -> None:
        if self.take():
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

    def do_DELETE(self) -> None:
        self.take()
        self.send_response(204)
        self.end_headers()

    def do_HEAD(self) -> None:
        self.take()
        self.send_response(200)
        self.send_header("Content-Length", "12345")
        self.end_headers()

    def do_GET(self) -> None:
        self.take()
        name = self.path.partition("?")[0].rpartition("/")[2]
        data = PATTERN[: int(name.rpartition("-")[2])]
        self.send_response(200)
        try:
            if name.startswith("chunked-"):
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                for start in range(0, len(data), 70_000):
                    piece = data[start : start + 70_000]
                    self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                self.wfile.write(b"0\r\nx-trailer: t\r\n\r\n")
            elif name.startswith("until-close-"):
                self.send_header("Connection", "close")
                self.end_headers()
                self.wfile.write(data)
            else:
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
        except OSError:
            self.close_connection = True


@pytest.fixture
def origin() -> Iterator[Origin]:
    server = Origin()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Answer(msgspec.Struct):
    """What the client got: ``end`` is ``""``, or how the connection ended before the answer did."""

    status: int | None
    body: bytes = b""
    headers: dict[str, str] = {}
    end: str = ""
    raw: bytes = b""


class Client:
    """A client without mercy: it shows every byte and every end of a connection as it is."""

    def __init__(self, stream: anyio.abc.SocketStream) -> None:
        self.stream = stream
        self.held = b""
        self.broken = False

    async def ask(self, method: str, path: str, body: bytes = b"", *, chunked: int = 0, more: str = "") -> Answer:
        await self.send(method, path, body, chunked=chunked, more=more)
        return await self.answer(method)

    async def send(self, method: str, path: str, body: bytes = b"", *, chunked: int = 0, more: str = "") -> None:
        how = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {len(body)}"
        head = f"{method} {path} HTTP/1.1\r\nHost: signed.example:1\r\n{how}\r\n{more}\r\n".encode()
        try:
            await self.stream.send(head)
            if not chunked:
                await self.stream.send(body)
            else:
                for start in range(0, len(body), chunked):
                    piece = body[start : start + chunked]
                    await self.stream.send(b"%x;ext=1\r\n%b\r\n" % (len(piece), piece))
                await self.stream.send(b"0\r\nx-amz-checksum-crc32: abc\r\n\r\n")
        except anyio.BrokenResourceError:
            self.broken = True  # the kernel tells of a reset once; what is read after it looks closed

    async def more(self) -> str:
        """Read more; how the connection ended where there is none."""
        try:
            self.held += await self.stream.receive(1 << 20)
            return ""
        except anyio.EndOfStream:
            return "reset" if self.broken else "closed"
        except anyio.BrokenResourceError as error:
            cause = error.__cause__
            while cause is not None and not isinstance(cause, OSError):
                cause = cause.__cause__
            assert cause is None or cause.errno in (errno.ECONNRESET, errno.EPIPE), cause
            return "reset"

    async def answer(self, method: str) -> Answer:
        while b"\r\n\r\n" not in self.held:
            if end := await self.more():
                return Answer(None, end=end, raw=self.held)
        head, _, self.held = self.held.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        status = int(first.split(" ")[1])
        if status < 200:
            return await self.answer(method)
        found = Answer(status, headers=headers)
        if method == "HEAD" or status == 204:
            return found
        chunked = headers.get("transfer-encoding") == "chunked"
        length = int(headers["content-length"]) if "content-length" in headers else None
        while not self.held.endswith(b"\r\n\r\n") if chunked else length is None or len(self.held) < length:
            if end := await self.more():
                found.end = end if length is not None or chunked else ""
                length = len(self.held)
                break
        found.raw = self.held
        if chunked and not found.end:
            rest = self.held
            while True:
                size, _, rest = rest.partition(b"\r\n")
                if not int(size, 16):
                    break
                found.body += rest[: int(size, 16)]
                rest = rest[int(size, 16) + 2 :]
            self.held = b""
        else:
            found.body, self.held = self.held[:length], self.held[length:]
        return found


@asynccontextmanager
async def client_of(proxy: FaultProxy) -> AsyncIterator[Client]:
    port = int(proxy.url.rpartition(":")[2])
    async with await anyio.connect_tcp("127.0.0.1", port) as stream:
        yield Client(stream)


@asynccontextmanager
async def between(origin: Origin, *faults: ProxyFault) -> AsyncIterator[tuple[FaultProxy, Client]]:
    async with FaultProxy(origin.url, *faults) as proxy, client_of(proxy) as client:
        yield proxy, client


@pytest.mark.anyio
class TestWithoutAFault:
    async def test_bodies_of_every_framing_pass_unchanged_over_one_connection(self, origin: Origin) -> None:
        async with between(origin) as (proxy, client):
            assert (await client.ask("PUT", "/b/k", PATTERN[:BIG])).status == 200
            assert (await client.ask("PUT", "/b/k", PATTERN[:BIG], chunked=99_999)).status == 200
            assert (await client.ask("PUT", "/b/k", b"")).status == 200
            assert (await client.ask("GET", f"/b/{BIG}")).body == PATTERN[:BIG]
            chunked = await client.ask("GET", f"/b/chunked-{BIG}")
            assert chunked.body == PATTERN[:BIG]
            assert chunked.raw.endswith(b"0\r\nx-trailer: t\r\n\r\n")
            assert (await client.ask("HEAD", "/b/k")).headers["content-length"] == "12345"
            assert (await client.ask("DELETE", "/b/k")).status == 204
            assert (await client.ask("GET", "/b/0")).body == b""
            assert (await client.ask("GET", f"/b/until-close-{BIG}")).body == PATTERN[:BIG]
            assert proxy.peak_connections == 1
            assert not any(request.faulted for request in proxy.requests)
        bodies = [got.body for got in origin.got]
        assert [hashlib.sha256(body).hexdigest() for body in bodies[:2]] == [
            hashlib.sha256(PATTERN[:BIG]).hexdigest()
        ] * 2

    async def test_heads_pass_as_they_are_the_signed_host_too(self, origin: Origin) -> None:
        async with between(origin) as (_, client):
            await client.ask("GET", "/b/1?x=%2F")
            await client.ask("GET", "/b/1")
        assert origin.got[0].path == "/b/1?x=%2F"
        assert origin.got[0].host == "signed.example:1"

    async def test_the_answer_to_an_expectation_passes_before_the_body_does(self, origin: Origin) -> None:
        async with between(origin) as (_, client):
            head = b"PUT /b/k HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n"
            await client.stream.send(head)
            while b"\r\n\r\n" not in client.held:
                assert not await client.more()
            assert client.held.startswith(b"HTTP/1.1 100 ")
            await client.stream.send(b"12345")
            assert (await client.answer("PUT")).status == 200
        assert origin.got[0].body == b"12345"

    async def test_the_log_says_what_passed(self, origin: Origin) -> None:
        async with between(origin) as (proxy, client):
            await client.ask("PUT", "/b/k", b"x" * 1000, more="Authorization: secret\r\nIf-None-Match: *\r\n")
            await client.ask("GET", "/b/700?versionId=1")
            await client.ask("PUT", "/b/k?partNumber=1&uploadId=u", b"x" * 10, chunked=3)
            assert [request.operation for request in proxy.requests] == ["put_object", "get_object", "upload_part"]
            put, get, _ = proxy.requests
            assert (put.status, put.upstream_status, put.request_bytes, put.response_bytes) == (200, 200, 1000, 0)
            assert put.headers["if-none-match"] == "*"
            assert "authorization" not in put.headers
            assert (get.path, get.response_bytes) == ("/b/700?versionId=1", 700)
            assert (proxy.count(), proxy.count("get_object"), proxy.count("list")) == (3, 1, 0)
            assert (proxy.bytes_out(), proxy.bytes_out("upload_part"), proxy.bytes_in()) == (1010, 10, 700)
            assert (proxy.connections, proxy.peak_connections) == (1, 1)
            async with client_of(proxy) as second:
                await second.ask("GET", "/b/1")
                assert proxy.connections == 2
            await client.stream.aclose()
            await proxy.idle()
            assert (proxy.connections, proxy.peak_connections) == (0, 2)

    async def test_a_client_that_leaves_takes_its_upstream_connection_along(self, origin: Origin) -> None:
        async with between(origin, silence(passed=True)) as (proxy, client):
            await client.send("PUT", "/b/k", b"x")
            await origin.wait(1)
            await client.stream.aclose()
            await proxy.idle()

    async def test_a_client_that_leaves_in_its_body_leaves_half_a_request(self, origin: Origin) -> None:
        async with between(origin) as (proxy, client):
            await client.stream.send(b"PUT /b/k HTTP/1.1\r\nContent-Length: 1000\r\n\r\nhalf")
            await proxy.seen("put_object")
            await client.stream.aclose()
            await origin.wait(1)
            await proxy.idle()
        assert (origin.got[0].body, origin.got[0].whole) == (b"half", False)

    async def test_a_server_that_is_not_there_resets(self) -> None:
        with socket.socket() as bound:
            bound.bind(("127.0.0.1", 0))
            async with (
                FaultProxy(f"http://127.0.0.1:{bound.getsockname()[1]}") as proxy,
                client_of(proxy) as client,
            ):
                assert (await client.ask("GET", "/b/k")).end == "reset"

    @pytest.mark.parametrize(
        "wrong",
        [
            b"hello\r\n\r\n",
            b"GET /b/k HTTP/1.1\r\nno header\r\n\r\n",
            b"PUT /b/k HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
            b"PUT /b/k HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
            b"PUT /b/k HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n",
        ],
    )
    async def test_what_is_no_http_is_answered_400(self, origin: Origin, wrong: bytes) -> None:
        async with between(origin) as (_, client):
            await client.stream.send(wrong)
            assert (await client.answer("GET")).status == 400
            assert await client.more() == "closed"

    @pytest.mark.parametrize("wrong", [b"-5\r\nhello\r\n", b"zz\r\n", b"2\r\nhello\r\n"])
    async def test_what_is_no_chunk_ends_the_connection(self, origin: Origin, wrong: bytes) -> None:
        async with between(origin) as (proxy, client):
            await client.stream.send(b"PUT /b/k HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + wrong)
            assert (await client.answer("PUT")).end == "reset"
            await proxy.idle()


@pytest.mark.anyio
class TestFaults:
    @pytest.mark.parametrize("chunked", [0, 64_000])
    async def test_an_error_is_answered_and_the_upstream_never_hears_of_it(self, origin: Origin, chunked: int) -> None:
        async with between(origin, answer(503, on="put_object", nth=2)) as (proxy, client):
            found = [await client.ask("PUT", "/b/k", PATTERN[:BIG], chunked=chunked) for _ in range(3)]
            assert [each.status for each in found] == [200, 503, 200]
            assert b"<Code>SlowDown</Code>" in found[1].body
            assert [request.faulted for request in proxy.requests] == [False, True, False]
            assert proxy.requests[1].upstream_status is None
            assert proxy.peak_connections == 1
        assert len(origin.got) == 2

    async def test_an_error_to_a_head_has_no_body(self, origin: Origin) -> None:
        async with between(origin, answer(404, "NoSuchBucket", on="HEAD", calls=1)) as (_, client):
            assert (await client.ask("HEAD", "/b/k")).status == 404
            assert (await client.ask("HEAD", "/b/k")).status == 200

    async def test_an_error_is_answered_to_a_client_that_waits_for_leave_to_send(self, origin: Origin) -> None:
        async with between(origin, answer(500, calls=1)) as (_, client):
            await client.stream.send(b"PUT /b/k HTTP/1.1\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n")
            assert not await client.more()
            await client.stream.send(b"12345")
            assert (await client.answer("PUT")).status == 500
            assert (await client.ask("GET", "/b/3")).body == PATTERN[:3]

    async def test_an_error_after_the_fact_is_told_of_what_the_upstream_did(self, origin: Origin) -> None:
        async with between(origin, answer(500, passed=True, calls=1)) as (proxy, client):
            assert (await client.ask("PUT", "/b/k", b"done")).status == 500
            assert (await client.ask("PUT", "/b/k", b"again")).status == 200
            assert (proxy.requests[0].status, proxy.requests[0].upstream_status) == (500, 200)
        assert [got.body for got in origin.got] == [b"done", b"again"]

    async def test_a_lost_answer_is_a_reset_after_the_upstream_did_it(self, origin: Origin) -> None:
        async with between(origin, lose_answer(on="put_object")) as (proxy, client):
            found = await client.ask("PUT", "/b/k", PATTERN[:BIG])
            assert (found.status, found.end) == (None, "reset")
            assert (proxy.requests[0].status, proxy.requests[0].upstream_status) == (None, 200)
        assert origin.got[0].body == PATTERN[:BIG]

    async def test_a_reset_comes_before_anything(self, origin: Origin) -> None:
        async with between(origin, reset()) as (proxy, client):
            found = await client.ask("PUT", "/b/k", b"x")
            assert (found.status, found.end, found.raw) == (None, "reset", b"")
            await proxy.idle()
            assert proxy.requests[0].faulted
        assert origin.got == []

    @pytest.mark.parametrize("chunked", [0, 64_000])
    @pytest.mark.parametrize("after", [0, 1, 70_000, BIG - 1, BIG])
    async def test_a_reset_in_the_body_of_a_request_lets_exactly_so_many_bytes_through(
        self, origin: Origin, after: int, chunked: int
    ) -> None:
        async with between(origin, reset(on="put_object", after_request_bytes=after)) as (proxy, client):
            found = await client.ask("PUT", "/b/k", PATTERN[:BIG], chunked=chunked)
            assert (found.status, found.end) == (None, "reset")
            await proxy.idle()
            await origin.wait(1)
            assert (proxy.requests[0].request_bytes, proxy.requests[0].faulted) == (after, True)
        if not chunked:
            assert origin.got[0].body == PATTERN[:after]
        assert origin.got[0].whole == (after == BIG and not chunked)

    async def test_a_reset_that_waits_for_a_byte_that_never_comes_does_not_strike(self, origin: Origin) -> None:
        async with between(origin, reset(after_request_bytes=10)) as (proxy, client):
            assert (await client.ask("PUT", "/b/k", b"short")).status == 200
            assert not proxy.requests[0].faulted

    @pytest.mark.parametrize("name", [str(BIG), f"chunked-{BIG}"])
    @pytest.mark.parametrize("after", [0, 70_000, BIG])
    async def test_a_reset_in_the_body_of_an_answer_cuts_it(self, origin: Origin, after: int, name: str) -> None:
        async with between(origin, reset(on="get_object", after_response_bytes=after)) as (proxy, client):
            await client.send("GET", f"/b/{name}")
            while not (end := await client.more()):
                pass
            assert end == "reset"
            assert (proxy.requests[0].response_bytes, proxy.requests[0].status) == (after, 200)

    @pytest.mark.parametrize("expects", ["", "Expect: 100-continue\r\n"])
    async def test_silence_says_nothing_until_it_is_released(self, origin: Origin, expects: str) -> None:
        async with between(origin, silence(on="put_object")) as (proxy, client):
            await client.send("PUT", "/b/k", b"x" * (0 if expects else 1000), more=expects)
            with anyio.move_on_after(0.2) as waited:
                await client.more()
            assert waited.cancelled_caught
            assert client.held == b""
            proxy.release()
            assert await client.more() == "closed"
            assert proxy.requests[0].faulted
        assert origin.got == []

    async def test_silence_after_the_fact_holds_the_answer_until_it_is_released(self, origin: Origin) -> None:
        async with between(origin, silence(passed=True)) as (proxy, client):
            await client.send("PUT", "/b/k", b"x")
            await origin.wait(1)
            with anyio.move_on_after(0.2) as waited:
                await client.more()
            assert waited.cancelled_caught
            proxy.heal()
            assert (await client.answer("PUT")).status == 200
            assert (await client.ask("PUT", "/b/k", b"y")).status == 200

    async def test_the_client_that_leaves_a_silent_server_is_seen_to_leave(self, origin: Origin) -> None:
        async with between(origin, silence()) as (proxy, client):
            await client.send("PUT", "/b/k", b"x")
            await proxy.seen("put_object")
            await client.stream.aclose()
            await proxy.idle()

    @pytest.mark.parametrize("after", [0, 70_000, BIG])
    async def test_a_stall_in_a_request_goes_on_when_it_is_released(self, origin: Origin, after: int) -> None:
        async with between(origin, stall(after_request_bytes=after)) as (proxy, client):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(client.send, "PUT", "/b/k", PATTERN[:BIG])
                await until(lambda: bool(proxy.requests) and proxy.requests[0].faulted)
                assert (proxy.requests[0].request_bytes, proxy.requests[0].status) == (after, None)
                proxy.release()
            assert (await client.answer("PUT")).status == 200
        assert origin.got[0].body == PATTERN[:BIG]

    async def test_a_stall_in_an_answer_goes_on_when_it_is_released(self, origin: Origin) -> None:
        async with between(origin, stall(after_response_bytes=70_000)) as (proxy, client):
            await client.send("GET", f"/b/{BIG}")
            await until(lambda: bool(proxy.requests) and proxy.requests[0].faulted)
            assert proxy.requests[0].response_bytes == 70_000
            proxy.release()
            assert (await client.answer("GET")).body == PATTERN[:BIG]

    async def test_slow_passes_everything_in_its_time(self, origin: Origin) -> None:
        faults = (
            slow(delay=0.3, nth=1),
            slow(request_rate=20_000, nth=2),
            slow(response_rate=20_000, nth=3),
        )
        async with between(origin, *faults) as (proxy, client):
            times = [anyio.current_time()]
            for method, path, body in (
                ("PUT", "/b/k", b"x"),
                ("PUT", "/b/k", PATTERN[:8000]),
                ("GET", "/b/8000", b""),
                ("GET", "/b/8000", b""),
            ):
                assert (await client.ask(method, path, body)).status == 200
                times.append(anyio.current_time())
            assert all(later - sooner >= 0.29 for sooner, later in pairwise(times[:4]))
            assert [request.faulted for request in proxy.requests] == [True, True, True, False]
        assert origin.got[1].body == PATTERN[:8000]

    @pytest.mark.parametrize("after", [0, 70_000, BIG - 1])
    async def test_a_truncated_answer_promises_more_and_is_closed(self, origin: Origin, after: int) -> None:
        async with between(origin, truncate(after_response_bytes=after, on="get_object")) as (_, client):
            found = await client.ask("GET", f"/b/{BIG}")
            assert (found.headers["content-length"], found.end) == (str(BIG), "closed")
            assert found.body == PATTERN[:after]

    async def test_a_body_that_is_not_longer_is_not_truncated(self, origin: Origin) -> None:
        async with between(origin, truncate(after_response_bytes=10)) as (proxy, client):
            assert (await client.ask("GET", "/b/10")).body == PATTERN[:10]
            assert not proxy.requests[0].faulted
            assert (await client.ask("GET", "/b/11")).end == "closed"

    async def test_a_chunked_answer_is_truncated_without_its_end(self, origin: Origin) -> None:
        async with between(origin, truncate(after_response_bytes=100_000)) as (_, client):
            assert (await client.ask("GET", f"/b/chunked-{BIG}")).end == "closed"

    @pytest.mark.parametrize("at", [0, 262_143, 262_144, BIG - 2])
    async def test_altered_bytes_change_a_body_and_not_its_length(self, origin: Origin, at: int) -> None:
        changed = bytearray(PATTERN[:BIG])
        for index in range(at, min(at + 3, BIG)):
            changed[index] ^= 0xFF
        faults = alter(request_at=at, length=3, on="PUT"), alter(response_at=at, length=3, on="GET")
        async with between(origin, *faults) as (proxy, client):
            await client.ask("PUT", "/b/k", PATTERN[:BIG])
            await client.ask("PUT", "/b/k", PATTERN[:BIG], chunked=64_000)
            assert (await client.ask("GET", f"/b/{BIG}")).body == changed
            assert (await client.ask("GET", f"/b/chunked-{BIG}")).body == changed
            assert all(request.faulted for request in proxy.requests)
        assert [bytes(changed)] * 2 == [got.body for got in origin.got[:2]]

    async def test_each_fault_counts_for_itself_and_the_first_that_strikes_happens(self, origin: Origin) -> None:
        faults = answer(500, on="PUT", calls=2), answer(503, where=lambda request: request.path == "/b/k", nth=2)
        async with between(origin, *faults) as (proxy, client):
            assert [(await client.ask("PUT", "/b/k")).status for _ in range(3)] == [500, 500, 200]
            proxy.add(answer(409, nth=1))
            assert [(await client.ask("GET", "/b/1")).status for _ in range(2)] == [409, 200]

    async def test_the_server_that_answers_before_the_body_has_come_is_heard(self) -> None:
        async def refuse(stream: anyio.abc.SocketStream) -> None:
            async with stream:
                await stream.receive()
                await stream.send(b"HTTP/1.1 403 No\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno")
                await stream.send_eof()
                with anyio.move_on_after(5):
                    async for _ in stream:
                        pass

        listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
        async with listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, refuse)
            port = listener.extra(anyio.abc.SocketAttribute.local_port)
            async with FaultProxy(f"http://127.0.0.1:{port}") as proxy, client_of(proxy) as client:
                await client.stream.send(b"PUT /b/k HTTP/1.1\r\nContent-Length: 100\r\n\r\nhalf")
                found = await client.answer("PUT")
                assert (found.status, found.body) == (403, b"no")
                assert await client.more() in ("closed", "reset")
            tasks.cancel_scope.cancel()


@pytest.mark.anyio
class TestConnections:
    async def test_refused_connections_are_accepted_again_on_the_same_port(self, origin: Origin) -> None:
        async with between(origin) as (proxy, client):
            url = proxy.url
            for _ in range(2):
                await proxy.refuse()
                await proxy.refuse()
                with pytest.raises(OSError, match=r"."):
                    async with client_of(proxy):
                        pass
                assert (await client.ask("GET", "/b/1")).status == 200
                await proxy.accept()
                await proxy.accept()
                assert proxy.url == url
                async with client_of(proxy) as second:
                    assert (await second.ask("GET", "/b/1")).status == 200

    async def test_dropped_connections_are_reset_idle_or_not(self, origin: Origin) -> None:
        async with between(origin, silence(nth=2)) as (proxy, idle), client_of(proxy) as busy:
            await idle.ask("GET", "/b/1")
            await busy.send("GET", "/b/1")
            await proxy.seen(count=2)
            proxy.drop()
            assert [await idle.more(), await busy.more()] == ["reset", "reset"]
            await proxy.idle()

    @pytest.mark.parametrize(
        "fault",
        [
            None,
            silence(),
            silence(passed=True),
            stall(after_request_bytes=10),
            stall(after_response_bytes=10),
            slow(delay=1000),
            slow(request_rate=1),
            slow(response_rate=1),
        ],
        ids=lambda fault: fault.kind if fault else "none",
    )
    @pytest.mark.parametrize("by", ["leaving", "error", "cancellation"])
    async def test_the_closed_proxy_leaves_no_task_and_no_socket(
        self, origin: Origin, fault: ProxyFault | None, by: str
    ) -> None:
        before = sockets()
        ended = False
        proxy = FaultProxy(origin.url, *([fault] if fault else []))
        with anyio.fail_after(20), anyio.CancelScope() as scope:
            try:
                async with proxy:
                    async with client_of(proxy) as client, anyio.create_task_group() as tasks:
                        for method, path in (("PUT", "/b/k"), ("GET", f"/b/{BIG}")):
                            tasks.start_soon(silently, proxy, method, path)
                        await proxy.seen(count=2)
                        tasks.cancel_scope.cancel()
                        await client.send("GET", "/b/1")
                        await proxy.seen(count=3)
                    if by == "error":
                        raise LookupError
                    if by == "cancellation":
                        scope.cancel()
                        await anyio.sleep_forever()
            except LookupError:
                assert by == "error"
            ended = True
        assert ended == (by != "cancellation")
        assert proxy.connections == 0
        assert all(request.ended for request in proxy.requests)
        await until(lambda: sockets() <= before)  # the server's threads close theirs when they see it
        with pytest.raises(ConfigurationError, match="not open"):
            _ = proxy.url


async def silently(proxy: FaultProxy, method: str, path: str) -> None:
    async with client_of(proxy) as client:
        await client.ask(method, path, PATTERN[:BIG] if method == "PUT" else b"")
        await anyio.sleep_forever()


async def until(true: Callable[[], bool]) -> None:
    """Wait for what has no event of its own."""
    with anyio.fail_after(20):
        while not true():  # noqa: ASYNC110 - what it waits for is another thread's, or a figure's
            await anyio.sleep(0.005)


def sockets() -> int:
    """How many sockets this process holds."""
    found = 0
    for each in Path("/proc/self/fd").iterdir():
        try:
            found += str(each.readlink()).startswith("socket:")
        except FileNotFoundError:
            continue
    return found


class TestSettings:
    @pytest.mark.parametrize(
        "upstream",
        [
            "http://192.0.2.1:80",
            "http://example.com",
            "https://127.0.0.1:1",
            "http://127.0.0.1:1/path",
            "http://u:p@127.0.0.1:1",
            "http://127.0.0.1:99999",
            "127.0.0.1:80",
            "http://0.0.0.0:80",
            "",
        ],
    )
    def test_an_upstream_that_is_not_on_the_loopback_is_refused(self, upstream: str) -> None:
        with pytest.raises(ConfigurationError, match="loopback"):
            FaultProxy(upstream)

    @pytest.mark.parametrize(
        "wrong",
        [
            lambda: answer(99),
            lambda: answer(503, "Slow\r\nDown"),
            lambda: answer(418),
            lambda: answer(503, on="putobject"),
            lambda: answer(503, nth=0),
            lambda: answer(503, nth=1, calls=1),
            lambda: reset(after_request_bytes=1, after_response_bytes=1),
            lambda: reset(after_request_bytes=-1),
            lambda: stall(),
            lambda: slow(),
            lambda: slow(delay=-1),
            lambda: slow(request_rate=0),
            lambda: truncate(after_response_bytes=-1),
            lambda: alter(),
            lambda: alter(request_at=0, length=0),
        ],
    )
    def test_a_fault_that_cannot_be_is_refused(self, wrong: Callable[[], object]) -> None:
        with pytest.raises(ConfigurationError):
            wrong()

    def test_an_argument_that_is_misspelt_is_refused(self) -> None:
        misspelt: dict[str, Any] = {"onn": "list"}
        with pytest.raises(TypeError, match="onn"):
            answer(503, **misspelt)

    @pytest.mark.parametrize(
        ("method", "path", "operation"),
        [
            ("PUT", "/b/k/with/slashes", "put_object"),
            ("PUT", "/b/k?x-id=PutObject", "put_object"),
            ("GET", "/b/k?X-Amz-Signature=1&response-content-type=x", "get_object"),
            ("HEAD", "/b/k", "head_object"),
            ("DELETE", "/b/k?versionId=1", "delete_object"),
            ("GET", "/b?list-type=2&prefix=a%2F", "list"),
            ("GET", "/b/", "list"),
            ("POST", "/b/k?uploads", "create_multipart"),
            ("PUT", "/b/k?partNumber=1&uploadId=u", "upload_part"),
            ("POST", "/b/k?uploadId=u", "complete_multipart"),
            ("DELETE", "/b/k?uploadId=u", "abort_multipart"),
            ("GET", "/b?uploads&prefix=a", "list_uploads"),
            ("HEAD", "/b", "head_bucket"),
            ("GET", "/", "other"),
            ("PUT", "/b", "other"),
            ("GET", "/b?location", "other"),
            ("POST", "/b?delete", "other"),
            ("PUT", "/b/k?tagging", "other"),
        ],
    )
    def test_s3_requests_are_told_apart(self, method: str, path: str, operation: str) -> None:
        assert classify(method, path) == operation
        assert operation in OPERATIONS

    def test_a_copy_is_no_put(self) -> None:
        assert classify("PUT", "/b/k", {"x-amz-copy-source": "/b/other"}) == "other"
