"""A door to try: stores with something in them, and clients that are quick, slow or gone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anyio
import httpx2
from anyio.from_thread import start_blocking_portal

import coatcheck as cc
from coatcheck.service import Tokens, artifact_app, serve

ANN = cc.Scope(tenant="acme", principal="ann", conversation="one")
BOB = cc.Scope(tenant="acme", principal="bob", conversation="one")
TOKENS = {"ann-0123456789abcdef": ANN, "bob-0123456789abcdef": BOB}
HEADERS = {scope: {"Authorization": f"Bearer {token}"} for token, scope in TOKENS.items()}
MISSING = "art_" + "0123456789abcdef" * 2

Put = dict[str, Any]


class Watched(cc.MemoryStore):
    """A store in memory that counts what is open, and may be told to break.

    Attributes:
        opened: how many readers there are now. most_opened: how many there ever were.
        looks: how often it was asked for anything.
        broken: what every verb raises.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.opened = self.most_opened = 0
        self.looks: list[str] = []
        self.broken: Exception | None = None

    def _look(self, verb: str) -> None:
        self.looks.append(verb)
        if self.broken is not None:
            raise self.broken

    async def head(self, scope: cc.Scope, ref: str) -> cc.ArtifactMeta | None:
        self._look("head")
        return await super().head(scope, ref)

    async def list(self, scope: cc.Scope, *, cursor: str | None = None, limit: int = 50) -> cc.Page:
        self._look("list")
        return await super().list(scope, cursor=cursor, limit=limit)

    @asynccontextmanager
    async def open(
        self, scope: cc.Scope, ref: str, start: int = 0, end: int | None = None
    ) -> AsyncIterator[cc.ArtifactReader | None]:
        self._look("open")
        self.opened += 1
        self.most_opened = max(self.opened, self.most_opened)
        try:
            async with super().open(scope, ref, start, end) as reader:
                yield reader
        finally:
            self.opened -= 1

    def damage(self, scope: cc.Scope, ref: str) -> None:
        """Change the last byte of a payload."""
        entry = self._scopes[scope][ref]
        data = entry.data[:-1] + bytes([entry.data[-1] ^ 1])
        self._scopes[scope][ref] = type(entry)(entry.meta, data, entry.last_put)


def door(store: cc.ArtifactStore, **settings: Any) -> Any:
    """The app, for those two."""
    return artifact_app(store, **{"authenticate": Tokens(TOKENS), **settings})


@asynccontextmanager
async def client(app: Any, scope: cc.Scope | None = ANN) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of the app, in this process."""
    headers = {} if scope is None else HEADERS[scope]
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=headers) as asks:
        yield asks


async def put(store: cc.ArtifactStore, data: bytes, scope: cc.Scope = ANN, **words: Any) -> cc.ArtifactMeta:
    """Put a payload, and return its meta."""
    said: dict[str, Any] = {"kind": "test/data", "media_type": "text/plain", **words}
    return (await store.put(scope, data, **said)).meta


def seen(response: httpx2.Response) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    """All that a client can see of an answer, but for the date."""
    return response.status_code, [pair for pair in response.headers.raw if pair[0].lower() != b"date"], response.content


class Peer:
    """One request at the edge of an ASGI app, from a client that a test plays.

    Attributes:
        sent: what the app sent.
        gone: set it, and the client has gone away.
        takes: how many messages it takes before it takes nothing any more.
        stuck: is set when it is offered more than that.
    """

    def __init__(self, path: str, takes: int = 10**9, headers: dict[str, str] | None = None) -> None:
        self.sent: list[dict[str, Any]] = []
        self.gone = anyio.Event()
        self.stuck = anyio.Event()
        self.takes = takes
        self._asked = False
        given = {**HEADERS[ANN], **(headers or {})}
        self.scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(name.lower().encode(), value.encode()) for name, value in given.items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
        }

    async def receive(self) -> dict[str, Any]:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        if len(self.sent) >= self.takes:
            self.stuck.set()
            await anyio.sleep_forever()
        self.sent.append(message)
        await anyio.lowlevel.checkpoint()

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)

    @property
    def complete(self) -> bool:
        return bool(self.sent) and not self.sent[-1].get("more_body", True)


@contextmanager
def serving(app: Any, **settings: Any) -> Iterator[tuple[str, Callable[[], None]]]:
    """A server in a thread of its own: its URL, and what tells it to end. Leaving waits until it has ended."""
    with start_blocking_portal() as portal:
        stop = portal.call(anyio.Event)

        async def run(*, task_status: anyio.abc.TaskStatus[str]) -> None:
            await serve(app, listening=task_status.started, stop=stop, signals=False, **settings)

        future, url = portal.start_task(run)

        def end() -> None:
            portal.call(stop.set)

        try:
            yield url, end
        finally:
            end()
            future.result(timeout=50)
