"""The door behind a real server: clients that are many, slow, gone or rude, and an end in good order."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import anyio
import httpx2
import pytest
from uvicorn.protocols.http.h11_impl import H11Protocol

from coatcheck.errors import ConfigurationError
from coatcheck.service import serve, server
from tests.service._door import ANN, HEADERS, MISSING, Watched, door, put, serving

AUTHORIZED = f"Authorization: {HEADERS[ANN]['Authorization']}\r\n"
LARGE = 8_000_000


def stored(size: int) -> tuple[Watched, str, bytes]:
    store = Watched()
    data = (b"0123456789abcdef" * (size // 16 + 1))[:size]
    return store, anyio.run(put, store, data).ref, data


def dial(url: str, *, receive_buffer: int | None = None) -> socket.socket:
    parts = urlsplit(url)
    connection = socket.socket()
    if receive_buffer is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.settimeout(30)
    connection.connect((parts.hostname, parts.port))
    return connection


def ask(connection: socket.socket, path: str) -> None:
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{AUTHORIZED}\r\n".encode())


def read_all(connection: socket.socket) -> bytes:
    """All that comes until the server closes, in order or not."""
    data = b""
    try:
        while chunk := connection.recv(1 << 16):
            data += chunk
    except ConnectionResetError:
        pass
    return data


def wait_until(true: Callable[[], bool]) -> None:
    """What another thread is about to do. The test's own timeout is the limit."""
    pause = threading.Event()
    while not true():
        pause.wait(0.02)


def test_two_hundred_readers_at_once_each_get_the_whole() -> None:
    store, ref, data = stored(700_000)
    with (
        serving(door(store, readers=16)) as (url, _),
        httpx2.Client(headers=HEADERS[ANN], timeout=50, limits=httpx2.Limits(max_connections=200)) as asks,
        ThreadPoolExecutor(200) as pool,
    ):
        assert all(pool.map(lambda _: asks.get(f"{url}/artifacts/{ref}").content == data, range(200)))
        wait_until(lambda: store.opened == 0)


@pytest.mark.slow
def test_a_thousand_readers_at_once_each_get_the_whole_and_few_are_read_at_a_time() -> None:
    store, ref, data = stored(300_000)
    good: list[bool] = []

    async def read(url: str) -> None:
        parts = urlsplit(url)
        async with await anyio.connect_tcp(str(parts.hostname), parts.port or 0) as stream:
            request = f"GET /artifacts/{ref} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{AUTHORIZED}\r\n"
            await stream.send(request.encode())
            got = b"".join([chunk async for chunk in stream])
            good.append(got.endswith(data) and got.startswith(b"HTTP/1.1 200"))

    async def read_all_at_once(url: str) -> None:
        async with anyio.create_task_group() as group:
            for _ in range(1000):
                group.start_soon(read, url)

    with serving(door(store, readers=32)) as (url, _):
        anyio.run(read_all_at_once, url)
        wait_until(lambda: store.opened == 0)
    assert good == [True] * 1000
    assert store.most_opened <= 32


def test_a_connection_is_kept_for_further_requests() -> None:
    store, ref, data = stored(1000)
    with serving(door(store)) as (url, _), httpx2.Client(base_url=url, headers=HEADERS[ANN]) as asks:
        for headers in ({}, {"Range": "bytes=5-9"}, {"If-None-Match": "*"}, {"Range": "bytes=9999-"}, {}):
            assert asks.get(f"/artifacts/{ref}", headers=headers).status_code in (200, 206, 304, 416)
        assert asks.head(f"/artifacts/{ref}").headers["content-length"] == str(len(data))
        assert asks.get(f"/artifacts/{MISSING}").status_code == 404


def test_an_answer_does_not_wait_for_an_acknowledgement() -> None:
    """Nagle's algorithm is off on the server's side of a connection."""
    seen: list[int] = []
    app = door(Watched())

    class Asked(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
            super().connection_made(transport)
            connection = transport.get_extra_info("socket")
            seen.append(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("uvicorn.protocols.http.h11_impl.H11Protocol", Asked)
        with serving(app) as (url, _):
            assert httpx2.get(f"{url}/artifacts", headers=HEADERS[ANN]).status_code == 200
    assert seen == [1]


def test_a_client_that_hangs_up_frees_the_reader() -> None:
    store, ref, _ = stored(LARGE)
    with serving(door(store, write_timeout=1000)) as (url, _):
        connection = dial(url, receive_buffer=4096)
        ask(connection, f"/artifacts/{ref}")
        connection.recv(1000)
        wait_until(lambda: store.opened == 1)
        connection.close()
        wait_until(lambda: store.opened == 0)


def test_a_client_that_takes_nothing_loses_its_reader_and_its_connection() -> None:
    store, ref, _ = stored(LARGE)
    with serving(door(store, write_timeout=0.3), linger=0.3) as (url, _), dial(url, receive_buffer=4096) as connection:
        ask(connection, f"/artifacts/{ref}")
        wait_until(lambda: store.opened == 1)
        wait_until(lambda: store.opened == 0)
        assert len(read_all(connection)) < LARGE


def test_the_last_bytes_of_a_small_answer_do_not_hold_a_connection_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """They lie in the server's buffer: for the app the answer is complete, and the server must see to it."""
    store, ref, data = stored(100_000)
    real = server._listen

    def listen(host: str, port: int) -> socket.socket:
        """The same, where the system takes little into its own buffers."""
        listener = real(host, port)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        return listener

    monkeypatch.setattr(server, "_listen", listen)
    with (
        serving(door(store, write_timeout=0.5), linger=0.3, connections=1) as (url, _),
        dial(url, receive_buffer=2048) as connection,
    ):
        ask(connection, f"/artifacts/{ref}")
        assert b"200 OK" in connection.recv(100)
        wait_until(lambda: httpx2.get(f"{url}/artifacts", headers=HEADERS[ANN]).status_code == 200)
        assert len(read_all(connection)) < len(data)


def test_a_damaged_payload_never_ends_as_a_whole_one() -> None:
    store, ref, _ = stored(LARGE)
    store.damage(ANN, ref)
    with serving(door(store)) as (url, _), pytest.raises(httpx2.RemoteProtocolError, match="without sending complete"):
        httpx2.get(f"{url}/artifacts/{ref}", headers=HEADERS[ANN])


@pytest.mark.parametrize("head", [b"", b"GET /artifacts HTTP/1.1\r\nHost: lo"])
def test_a_head_that_does_not_end_in_time_ends_its_connection(head: bytes) -> None:
    with serving(door(Watched()), head_timeout=0.3) as (url, _), dial(url) as connection:
        connection.sendall(head)
        assert read_all(connection) == b""


def test_a_head_that_comes_byte_by_byte_ends_its_connection_all_the_same() -> None:
    with serving(door(Watched()), head_timeout=0.5) as (url, _), dial(url) as connection:

        def trickle() -> None:
            for byte in b"GET /artifacts HTTP/1.1\r\nX: " + b"x" * 10_000:
                connection.sendall(bytes([byte]))
                threading.Event().wait(0.05)

        with pytest.raises(OSError, match=r"Broken pipe|reset"):
            trickle()


def test_a_second_head_on_a_connection_has_the_same_time() -> None:
    store, ref, _ = stored(10)
    with serving(door(store), head_timeout=0.3) as (url, _), dial(url) as connection:
        ask(connection, f"/artifacts/{ref}")
        assert b"200 OK" in connection.recv(1 << 16)
        connection.sendall(b"GET /art")
        assert b"HTTP" not in read_all(connection)


@pytest.mark.parametrize(
    "request_",
    [
        b"GET /artifacts HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 100_000,
        b"GET /" + b"x" * 100_000,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /artifacts\xff HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nX: a\x00b\r\n\r\n",
    ],
)
def test_what_is_no_request_is_refused(request_: bytes) -> None:
    with serving(door(Watched())) as (url, _), dial(url) as connection:
        try:
            connection.sendall(request_)
        except OSError:
            return
        assert read_all(connection)[:12] in (b"HTTP/1.1 400", b"HTTP/1.1 401", b"HTTP/1.1 431", b"")


def test_a_body_is_refused_without_being_read() -> None:
    with serving(door(Watched())) as (url, _), dial(url) as connection:
        connection.sendall(f"GET /artifacts HTTP/1.1\r\nHost: x\r\n{AUTHORIZED}Content-Length: 99999\r\n\r\n".encode())
        assert read_all(connection).startswith(b"HTTP/1.1 413")


def test_what_is_under_way_comes_to_its_end_when_the_server_is_told_to_end() -> None:
    store, ref, data = stored(LARGE)
    with serving(door(store)) as (url, end), dial(url, receive_buffer=4096) as connection:
        ask(connection, f"/artifacts/{ref}")
        got = connection.recv(1000)
        end()
        wait_until(lambda: not listens(url))
        got += read_all(connection)
    assert got.endswith(data)
    assert store.opened == 0


def test_what_takes_too_long_is_cut_when_the_server_is_told_to_end() -> None:
    store, ref, _ = stored(LARGE)
    with serving(door(store), drain=1, linger=0.3) as (url, end), dial(url, receive_buffer=4096) as connection:
        ask(connection, f"/artifacts/{ref}")
        connection.recv(1000)
        end()
        wait_until(lambda: store.opened == 0)


def listens(url: str) -> bool:
    parts = urlsplit(url)
    with socket.socket() as connection:
        return connection.connect_ex((parts.hostname, parts.port)) == 0


def test_an_address_that_is_taken_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use"):
        anyio.run(lambda: serve(door(Watched()), port=taken.getsockname()[1], signals=False))


@pytest.mark.parametrize("setting", ["connections", "head_timeout", "linger", "drain"])
def test_a_bound_that_is_none_is_refused_by_name(setting: str) -> None:
    with pytest.raises(ConfigurationError, match=f"serve.{setting}"):
        anyio.run(lambda: serve(door(Watched()), signals=False, **{setting: 0}))  # type: ignore[arg-type]  # any of them
