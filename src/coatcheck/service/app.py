"""The HTTP door: artifacts for programs, people's screens and other agents, over an ASGI app.

    GET, HEAD  /artifacts/{ref}         the payload, whole or one range of it
    GET, HEAD  /artifacts/{ref}/meta    what is known of it, as JSON
    GET, HEAD  /artifacts               this scope's artifacts, newest first, in pages: ?limit=50&cursor=...

Laws:

* The scope is what `Authenticate` says of the request, and nothing in a URL changes it (case E4). Who is nobody gets a
  401 before anything is looked up.
* What is missing, foreign, expired or no ref at all is one answer, byte for byte the same, after the same look-up.
* Nothing that a tool brought home is rendered or run (`coatcheck.service.content`).
* Memory is bounded whatever is read by however many slow clients, and what a client that is gone had is freed
  (`coatcheck.service.reply`).
* A payload whose bytes are not those that were put is never sent as a whole one: where it is small, the answer is a
  500, and else its end is never sent and the connection is cut. Of a range only the length is certain.
"""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from urllib.parse import parse_qs

import anyio
import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as Connection

from coatcheck.artifacts.meta import Clock, utc_now
from coatcheck.artifacts.port import DEFAULT_LIMIT, ArtifactStore
from coatcheck.errors import ConfigurationError, IntegrityError, StoreError
from coatcheck.scope import Scope, check_scope
from coatcheck.service.access import Authenticate
from coatcheck.service.payload import MISS, Payloads, looked_for
from coatcheck.service.reply import Reply, ResponseCut, while_connected
from coatcheck.settings import check_duration, check_whole

__all__ = ["MAX_LIMIT", "artifact_app"]

MAX_LIMIT = 200
"""The most rows of a page of the listing; who asks for more gets so many."""

_METHODS = ("GET", "HEAD")
_QUERY_CHARS = 2048
_LIMIT = re.compile("[0-9]{1,9}")
_RETRY_AFTER = {"retry-after": "5"}

_log = logging.getLogger("coatcheck")


def artifact_app(
    store: ArtifactStore,
    *,
    authenticate: Authenticate | None = None,
    write_timeout: float | timedelta = 30.0,
    max_age: float | timedelta = 300.0,
    readers: int = 128,
    clock: Clock = utc_now,
) -> Starlette:
    """An ASGI app that serves a store's artifacts to whoever may read them; it changes nothing.

    Mount it into a server's own app, where the host opens the store; or run it by itself, where it opens the store
    for its lifespan. Put no middleware that compresses around it: that would break ranges and tags. Paths, statuses
    and laws are at the head of this module; the service works on both event loops.

    Preconditions and ranges are as in RFC 9110. The entity tag is strong: it is the digest. A ``Range`` of several
    parts, of another unit, or malformed is ignored, as section 14.2 permits: the answer is the whole, with 200. Ranges
    of HEAD are ignored, too. Every payload has a ``Repr-Digest`` (RFC 9530), by which a client can check what it put
    together from ranges. A request with a body is refused.

    Args:
        store: where the artifacts are.
        authenticate: tells whose artifacts a request may read. `Tokens`, `SignedTokens` or a function of the host's;
            there is no default, since a door without a lock must be said: `OnLoopback`. What it raises goes on to
            the host.
        write_timeout: how long a client may take no more of an answer before it is given up, in seconds or as a
            timedelta. It is asked 64 KiB at a time, so it is also how slow a client may be.
        max_age: how long a client may keep a payload without asking again; never past the artifact's expiry. So long
            may a deleted artifact still be seen by who had it already.
        readers: how many payloads are read from the store at once: one of up to 256 KiB until it is read, a larger one
            until it is sent, which takes up to 1.5 MiB. Further ones wait their turn for up to the write timeout, and
            are then told to come again (503).
        clock: what time it is; used for ``max_age`` only.

    Returns:
        The app.

    Raises:
        ConfigurationError: naming the argument that cannot be honoured.
    """
    if authenticate is None:
        raise ConfigurationError(
            "artifact_app needs authenticate, or anybody could read everything: say Tokens({token: Scope(...)}), "
            "SignedTokens(...) or a function of the request; for development on one machine, OnLoopback(Scope(...))"
        )
    if not callable(authenticate):
        raise ConfigurationError(
            f"artifact_app.authenticate must be a function of the request, not {type(authenticate).__name__}"
        )
    timeout = check_duration("artifact_app.write_timeout", write_timeout)
    door = _Door(
        store,
        authenticate,
        timeout,
        Payloads(
            store,
            max_age=0.0 if max_age == 0 else check_duration("artifact_app.max_age", max_age),
            readers=check_whole("artifact_app.readers", readers),
            patience=timeout,
            clock=clock,
        ),
    )

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with store:
            yield

    routes = [
        Route("/artifacts", _Endpoint(door, door.page)),
        Route("/artifacts/{ref:path}/meta", _Endpoint(door, door.meta)),
        Route("/artifacts/{ref:path}", _Endpoint(door, door.payload)),
    ]
    app = Starlette(routes=routes, lifespan=lifespan)
    app.router.redirect_slashes = False
    app.router.default = _Elsewhere(_Endpoint(door, door.elsewhere), app.router.default)
    return app


class _Asked(msgspec.Struct, frozen=True):
    """One request of somebody who is known."""

    request: Request
    scope: Scope
    reply: Reply

    @property
    def ref(self) -> str:
        """The ref in the URL, or one that names nothing."""
        return looked_for(self.request.path_params.get("ref", ""))


_Answer = Callable[[_Asked], Awaitable[None]]


class _Endpoint:
    """A route's end. It is an object, so that Starlette hands it requests of every method as they come."""

    def __init__(self, door: _Door, answer: _Answer) -> None:
        self._door = door
        self._answer = answer

    async def __call__(self, connection: Connection, receive: Receive, send: Send) -> None:
        await self._door(connection, receive, send, self._answer)


class _Elsewhere:
    """What answers where no route does: as where there is no artifact. What is no HTTP is Starlette's."""

    def __init__(self, ours: ASGIApp, others: ASGIApp) -> None:
        self._ours = ours
        self._others = others

    async def __call__(self, connection: Connection, receive: Receive, send: Send) -> None:
        await (self._ours if connection["type"] == "http" else self._others)(connection, receive, send)


class _Door:
    """What every request goes through, in this order: method, body, identity, look-up."""

    def __init__(
        self, store: ArtifactStore, authenticate: Authenticate, write_timeout: float, payloads: Payloads
    ) -> None:
        self._store = store
        self._authenticate = authenticate
        self._write_timeout = write_timeout
        self._payloads = payloads

    async def __call__(self, connection: Connection, receive: Receive, send: Send, answer: _Answer) -> None:
        request = Request(connection)  # without `receive`: nobody reads a body
        reply = Reply(send, head_only=request.method == "HEAD", write_timeout=self._write_timeout)
        if request.method not in _METHODS:
            allow = {"allow": ", ".join(_METHODS)}
            await reply.problem(405, "artifacts can only be read here: use GET or HEAD", allow)
        elif request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers:
            await reply.problem(413, "a request here must not have a body", {"connection": "close"})
        else:
            await while_connected(receive, lambda: self._answered(request, reply, answer))

    async def _answered(self, request: Request, reply: Reply, answer: _Answer) -> None:
        """Answer who may ask; whoever decides that has as long as a client has for taking in a part of an answer."""
        scope: Scope | None = None
        with anyio.move_on_after(self._write_timeout) as patience:
            scope = await self._identify(request)
        if patience.cancelled_caught:
            _log.warning("authenticate did not decide within %g seconds", self._write_timeout)
            await reply.problem(503, "who asks cannot be told now: try again", _RETRY_AFTER)
        elif scope is None:
            challenge = {"www-authenticate": 'Bearer realm="artifacts"'}
            await reply.problem(401, "a request here must show a bearer token that is known", challenge)
        else:
            await self._look(_Asked(request, scope, reply), answer)

    async def _identify(self, request: Request) -> Scope | None:
        found = self._authenticate(request)
        if inspect.isawaitable(found):
            found = await found
        return None if found is None else check_scope(found)

    async def _look(self, asked: _Asked, answer: _Answer) -> None:
        """Answer, and say what the store cannot do in words that tell nothing else."""
        try:
            await answer(asked)
        except StoreError as error:
            damaged = isinstance(error, IntegrityError)
            _log.warning("an artifact was not served: %s", error)
            if asked.reply.started:
                raise ResponseCut("the payload is damaged" if damaged else "the store cannot go on") from None
            if damaged:
                await asked.reply.problem(500, "this artifact is damaged")
            else:
                await asked.reply.problem(503, "the store cannot answer now: try again", _RETRY_AFTER)

    async def payload(self, asked: _Asked) -> None:
        if not await self._payloads.answer(asked.request.headers, asked.scope, asked.ref, asked.reply):
            await asked.reply.problem(503, "too many artifacts are being read now: try again", _RETRY_AFTER)

    async def meta(self, asked: _Asked) -> None:
        meta = await self._store.head(asked.scope, asked.ref)
        if meta is None:
            await asked.reply.problem(404, MISS)
        else:
            await _json(asked.reply, meta)

    async def page(self, asked: _Asked) -> None:
        query = asked.request.url.query
        try:
            given = parse_qs(query, keep_blank_values=True, max_num_fields=8) if len(query) <= _QUERY_CHARS else None
        except ValueError:
            given = None
        limits, cursors = ([], []) if given is None else (given.get("limit", []), given.get("cursor", []))
        if given is None or len(limits) > 1 or len(cursors) > 1 or not all(map(_LIMIT.fullmatch, limits)):
            await asked.reply.problem(400, f"limit must be a number from 1 to {MAX_LIMIT}, and cursor one of a page")
            return
        limit = min(int(limits[0]), MAX_LIMIT) if limits else DEFAULT_LIMIT
        await _json(
            asked.reply,
            await self._store.list(asked.scope, cursor=cursors[0] if cursors else None, limit=limit),
        )

    async def elsewhere(self, asked: _Asked) -> None:
        """A path that no route has, for example with a line's end in it: missed with the same work as a ref."""
        await (self.meta if asked.request.url.path.endswith("/meta") else self.payload)(asked)


async def _json(reply: Reply, value: object) -> None:
    headers = {"content-type": "application/json", "cache-control": "private, no-store"}
    await reply.whole(200, headers, msgspec.json.encode(value) + b"\n")
