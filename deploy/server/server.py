"""An async agent server around one boundary, to be copied and changed: tools, rules and who may call are at the end.

    GET   /tools              the tools with their schemas
    POST  /calls              {"name", "arguments", "call_id", "session"}                one call, which is a turn
    POST  /batches            {"calls": [{"name", "arguments", "call_id"}], "session"}   all calls of one turn
    POST  /resume             {"pending", "approved", "note", "session"}                 a person's answer to a question
    GET   /artifacts/{ref}    the artifact door (`coatcheck.service.artifact_app`), with its listing and metas
    GET   /healthz            the process answers
    GET   /readyz             its store answers, too

Whatever becomes of a call is an outcome, with status 200: also of a tool that is unknown or fails. Other statuses are
about the request itself, as ``{"error": "one sentence"}``. A POST with ``Accept: text/event-stream`` is answered with
server-sent events: ``progress`` while tools tell how far they are, and ``answer`` in the end.

Laws:

* Replicas share a store, a place for claims and a secret, and keep nothing between requests. The conversation's state
  travels: a request with ``"session": "new"`` is answered with a sealed one, which the next request sends back, to any
  replica. A request without stands alone; artifacts and approvals do not depend on it. Requests at the same time each
  go on from what they brought, so a turn's calls belong into one batch.
* A token decides whose call it is: tenant, principal and conversation. No word of a request changes that, and a session
  or a pending call of another conversation is refused (case E4). Who answered a question is the token's principal.
* A call that has begun comes to its end, whether or not its client is still there; the tools' timeouts bound it.
* Requests are bounded in size and time before anything is done for them, and events that a client is too slow for are
  left out.

Settings are environment variables; README.md beside this file has them.
"""

from __future__ import annotations

import asyncio
import base64
import inspect
import logging
import os
import secrets
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any, TypeVar
from urllib.parse import unquote

import anyio
import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount, Route
from starlette.types import Receive, Send
from starlette.types import Scope as Connection

import coatcheck as cc
from coatcheck.errors import CoatcheckError, ConfigurationError
from coatcheck.service import Authenticate, Tokens, artifact_app, serve
from coatcheck.service.reply import ResponseCut

__all__ = ["agent_app", "boundary_for", "main", "on_event", "read_tokens"]

MAX_BODY_BYTES = 1 << 20
BODY_SECONDS = 10.0
WRITE_SECONDS = 30.0
HEARTBEAT_SECONDS = 15.0  # a proxy cuts what is silent for long
READY_SECONDS = 2.0
MAX_EVENTS_WAITING = 64

_log = logging.getLogger("agent")
_ledger = logging.getLogger("agent.ledger")
_T = TypeVar("_T")
_Answer = cc.AnyOutcome | list[cc.AnyOutcome]
_Work = tuple["_Carried", Coroutine[Any, Any, _Answer]]


# --- what a request may say ---


NEW = "new"
"""The ``session`` of a request that begins one."""


class Call(msgspec.Struct, forbid_unknown_fields=True):
    """One call; the arguments are an object, or the text of one as a model spoke it."""

    name: str
    arguments: dict[str, Any] | str | None = None
    call_id: str | None = None


class CallRequest(Call):
    """The body of ``POST /calls``."""

    session: str | None = None


class BatchRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of ``POST /batches``."""

    calls: Annotated[list[Call], msgspec.Meta(min_length=1, max_length=64)]
    session: str | None = None


class ResumeRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of ``POST /resume``; ``pending`` is as the outcome of the call had it."""

    pending: str
    approved: bool
    note: str | None = None
    session: str | None = None


class Refused(Exception):
    """A request that cannot be honoured: the status, and a sentence for whoever wrote the client."""

    def __init__(self, status: int, text: str, **headers: str) -> None:
        super().__init__(text)
        self.status = status
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


class Gone(Exception):
    """The client went away before its request was complete."""


def _decoded(body: bytes, form: type[_T]) -> _T:
    try:
        return msgspec.json.decode(body, type=form)
    except RecursionError:
        raise Refused(400, "the body is nested too deep") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refused(400, f"the body is not what is asked for here: {error}") from None


def _opaque(text: str, field: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise Refused(400, f"{field} must be sent back exactly as an answer had it") from None


def _too_large() -> Refused:
    return Refused(413, f"a body may have {MAX_BODY_BYTES} bytes at most", connection="close")


async def _read(request: Request, receive: Receive) -> bytes:
    """The body, bounded in size and time."""
    if (said := request.headers.get("content-length", "0")).isdecimal() and int(said[:20]) > MAX_BODY_BYTES:
        raise _too_large()
    body = bytearray()
    try:
        with anyio.fail_after(BODY_SECONDS):
            while (message := await receive())["type"] == "http.request":
                body += message.get("body", b"")
                if len(body) > MAX_BODY_BYTES:
                    raise _too_large()
                if not message.get("more_body", False):
                    return bytes(body)
    except TimeoutError:
        raise Refused(408, f"the body took longer than {BODY_SECONDS:g} seconds", connection="close") from None
    raise Gone


# --- what it is answered ---


def _shown(outcome: cc.AnyOutcome) -> dict[str, Any]:
    """An outcome as JSON: ``text`` is what the model reads, and nothing else is for it."""
    shown: dict[str, Any] = {
        "outcome": type(outcome).__name__,
        "tool": outcome.tool,
        "call_id": outcome.call_id,
        "status": outcome.status,
        "executed": outcome.executed,
        "error": outcome.error,
        "text": outcome.text,
    }
    if outcome.tickets:
        shown["refs"] = [ticket.ref for ticket in outcome.tickets]
    if outcome.content:
        shown["content"] = [{"media_type": blob.media_type, "data": blob.data} for blob in outcome.content]
    if isinstance(outcome, cc.Pending):
        call = outcome.call
        shown |= {"question": call.question, "detail": call.detail, "expires_at": call.expires_at}
        shown["pending"] = outcome.to_bytes()  # sealed, not secret: for the program that asks the person
    return shown


async def _reply(send: Send, status: int, value: object, headers: Mapping[str, str] | None = None) -> None:
    data = msgspec.json.encode(value)  # bytes become base64
    raw = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(data)), *_GUARDS]
    raw += [(name.encode(), text.encode()) for name, text in (headers or {}).items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": data})


_GUARDS = [(b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff")]

# Whoever waits for the progress of the calls of this request; tools inherit it, in tasks and in threads.
_listener: ContextVar[Callable[[cc.ToolProgress], None] | None] = ContextVar("listener", default=None)


def on_event(event: cc.AnyEvent) -> None:
    """What a boundary of this server is to be given as its ``on_event``."""
    if isinstance(event, cc.ToolProgress) and (listener := _listener.get()) is not None:
        listener(event)


async def _stream(send: Send, work: Callable[[], Awaitable[dict[str, Any]]]) -> None:
    """Answer with server-sent events. A client that takes nothing is written to no more; the work goes on."""
    tell, events = anyio.create_memory_object_stream[cc.ToolProgress](MAX_EVENTS_WAITING)
    loop, home = asyncio.get_running_loop(), threading.get_ident()
    final: list[tuple[str, object]] = []

    def put(event: cc.ToolProgress) -> None:
        with suppress(anyio.WouldBlock, anyio.ClosedResourceError, anyio.BrokenResourceError):
            tell.send_nowait(event)

    def listen(event: cc.ToolProgress) -> None:
        if threading.get_ident() == home:
            put(event)
        else:
            loop.call_soon_threadsafe(put, event)

    async def run() -> None:
        _listener.set(listen)
        with tell:
            try:
                final.append(("answer", await work()))
            except Exception:  # noqa: BLE001 - the client is told, and no other request is touched
                _log.exception("a request failed")
                final.append(("error", {"error": "this server failed"}))

    async def write(data: bytes, *, more: bool = True) -> None:
        with anyio.fail_after(WRITE_SECONDS):
            await send({"type": "http.response.body", "body": data, "more_body": more})

    def framed(name: str, value: object) -> bytes:
        return b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(value))

    async def write_all() -> None:
        while True:
            event = None
            with anyio.move_on_after(HEARTBEAT_SECONDS):
                try:
                    event = await events.receive()
                except anyio.EndOfStream:
                    return
            if event is None:
                await write(b": still at work\n\n")
                continue
            said = {name: getattr(event, name) for name in ("tool", "call_id", "text", "done", "total")}
            await write(framed("progress", said))

    head = [(b"content-type", b"text/event-stream"), *_GUARDS]
    await send({"type": "http.response.start", "status": 200, "headers": head})
    stuck = False
    async with anyio.create_task_group() as group:
        group.start_soon(run)
        with events:
            try:
                await write_all()
            except TimeoutError:
                stuck = True
    if stuck:
        _log.warning("an answer was cut: its client took nothing for %g seconds", WRITE_SECONDS)
        raise ResponseCut("the client takes nothing")  # which closes the connection
    await write(framed(*final[0]), more=False)


# --- the app ---


def agent_app(boundary: cc.Boundary, authenticate: Authenticate) -> Starlette:
    """The server of one boundary, which it opens for its lifespan.

    Args:
        boundary: with a store and a secret, and `on_event` as its ``on_event`` for tools that tell their progress.
            A use of an approval is claimed at the start, so that a server which cannot do so does not even run.
        authenticate: tells the scope of a request, for calls and for the artifact door alike.

    Raises:
        ConfigurationError: the boundary has no store or no secret.
    """
    agent = Agent(boundary, authenticate)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with boundary:
            await boundary.approvals.claim(f"the start of a server {secrets.token_hex(16)}")
            yield

    routes = [
        Route("/calls", _Endpoint(agent.posted(agent.call))),
        Route("/batches", _Endpoint(agent.posted(agent.batch))),
        Route("/resume", _Endpoint(agent.posted(agent.resume))),
        Route("/tools", _Endpoint(agent.list_tools)),
        Route("/healthz", _Endpoint(agent.healthz)),
        Route("/readyz", _Endpoint(agent.readyz)),
        Mount("/", artifact_app(agent.store, authenticate=authenticate)),
    ]
    return Starlette(routes=routes, lifespan=lifespan)


class _Endpoint:
    """A route's end: what it refuses is answered in JSON, and what fails is logged and answered in JSON."""

    def __init__(self, answer: Callable[[Request, Receive, Send], Awaitable[None]]) -> None:
        self._answer = answer

    async def __call__(self, connection: Connection, receive: Receive, send: Send) -> None:
        started = False

        async def noted(message: Any) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._answer(Request(connection), receive, noted)
        except Refused as refused:
            await _reply(send, refused.status, {"error": str(refused)}, refused.headers)
        except Gone:
            pass
        except Exception:
            if started:
                raise
            _log.exception("a request failed")
            await _reply(send, 500, {"error": "this server failed"})


class Agent:
    """The endpoints. Nothing in here belongs to one conversation."""

    def __init__(self, boundary: cc.Boundary, authenticate: Authenticate) -> None:
        if boundary.store is None or not boundary.sealer.portable:
            raise ConfigurationError("an agent server needs Boundary(store=..., secret=...): replicas share both")
        self._boundary = boundary
        self.store: cc.ArtifactStore = boundary.store
        self._authenticate = authenticate
        self._tools = [
            {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
            for tool in boundary.tools.values()
        ]
        self._asking = anyio.Lock()
        self._asked: tuple[float, bool] | None = None

    async def healthz(self, request: Request, receive: Receive, send: Send) -> None:
        """The process answers; whatever is the matter with others."""
        _only(request, "GET")
        await _reply(send, 200, {"status": "ok"})

    async def readyz(self, request: Request, receive: Receive, send: Send) -> None:
        """The store answers. It is asked once a second at most: nobody has to show a token here."""
        _only(request, "GET")
        async with self._asking:
            if self._asked is None or time.monotonic() - self._asked[0] > 1:
                answers = False
                with suppress(cc.StoreError, TimeoutError), anyio.fail_after(READY_SECONDS):
                    await self.store.head(_NOBODY, _NOTHING)
                    answers = True
                self._asked = time.monotonic(), answers
        if not self._asked[1]:
            raise Refused(503, "the store does not answer", retry_after="1")
        await _reply(send, 200, {"status": "ready"})

    async def list_tools(self, request: Request, receive: Receive, send: Send) -> None:
        """What a model is told of the tools."""
        _only(request, "GET")
        await self._identify(request)
        await _reply(send, 200, {"tools": self._tools})

    def posted(self, begin: Callable[[cc.Scope, bytes], _Work]) -> Callable[[Request, Receive, Send], Awaitable[None]]:
        """The endpoint of what ``begin`` makes of a body: in order method, identity, body, work."""

        async def answer(request: Request, receive: Receive, send: Send) -> None:
            _only(request, "POST")
            scope = await self._identify(request)
            carried, work = begin(scope, await _read(request, receive))
            if "text/event-stream" in request.headers.get("accept", ""):
                await _stream(send, lambda: self.done(carried, work))
            else:
                await _reply(send, 200, await self.done(carried, work))

        return answer

    def call(self, scope: cc.Scope, body: bytes) -> _Work:
        """One call."""
        asked = _decoded(body, CallRequest)
        carried = self._session(scope, asked.session)
        return carried, carried.session.call(asked.name, asked.arguments, call_id=asked.call_id)

    def batch(self, scope: cc.Scope, body: bytes) -> _Work:
        """The calls of one turn."""
        asked = _decoded(body, BatchRequest)
        carried = self._session(scope, asked.session)
        calls = [cc.ToolCall(*msgspec.structs.astuple(call)) for call in asked.calls]
        return carried, carried.session.call_batch(calls)

    def resume(self, scope: cc.Scope, body: bytes) -> _Work:
        """A call about which a person was asked."""
        asked = _decoded(body, ResumeRequest)
        carried, pending = self._session(scope, asked.session), _opaque(asked.pending, "pending")
        by = scope.principal or "who holds the conversation's token"
        return carried, carried.session.resume(pending, approved=asked.approved, by=by, note=asked.note)

    async def _identify(self, request: Request) -> cc.Scope:
        found = self._authenticate(request)
        scope = await found if inspect.isawaitable(found) else found
        if scope is None:
            challenge = 'Bearer realm="agent"'
            raise Refused(401, "a request here must show a bearer token that is known", www_authenticate=challenge)
        return scope

    def _session(self, scope: cc.Scope, sealed: str | None) -> _Carried:
        if sealed is None or sealed == NEW:
            return _Carried(self._boundary.session(scope), travels=sealed is not None)
        with suppress(ConfigurationError):
            session = self._boundary.session_from_bytes(_opaque(sealed, "session"))
            if session.scope == scope:
                return _Carried(session, travels=True)
        raise Refused(400, f'session is none that was sealed here for this conversation: say "{NEW}" to begin another')

    async def done(self, carried: _Carried, work: Awaitable[_Answer]) -> dict[str, Any]:
        """Do the work, write the ledger, and say what came of it."""
        result, session = await work, carried.session
        for row in session.drain_decisions():  # they go to the log, and do not travel
            _ledger.info("%s", msgspec.json.encode({"scope": session.scope, "decision": row}).decode())
        answer: dict[str, Any] = (
            {"outcomes": [_shown(outcome) for outcome in result]}
            if isinstance(result, list)
            else {"outcome": _shown(result)}
        )
        return {**answer, "session": session.to_bytes()} if carried.travels else answer


class _Carried(msgspec.Struct):
    """The session of one request, and whether its answer has it."""

    session: cc.Session
    travels: bool


_NOBODY = cc.Scope(conversation="readiness")
_NOTHING = cc.make_ref("readiness", "text/plain", "sha256:" + "0" * 64)


def _only(request: Request, method: str) -> None:
    if request.method != method:
        raise Refused(405, f"use {method} here", allow=method)


# --- who may call, and what: change this ---


@cc.tool(timeout=60)
async def sales_report(region: str, rows: int = 20_000) -> list[dict[str, Any]]:
    """All sales of a region, one object each."""
    return [{"order": number, "region": region, "amount": number * 37 % 1000 / 10} for number in range(rows)]


@cc.tool(timeout=60)
async def refund(order: int, amount: float) -> dict[str, Any]:
    """Pay an order back, in euros."""
    return {"order": order, "refunded": amount}


@cc.tool(timeout=60)
async def rebuild_index(ctx: cc.ToolContext, shards: int = 4) -> str:
    """Rebuild the search index; it takes a while."""
    for shard in range(shards):
        ctx.progress(f"shard {shard + 1} of {shards}", done=shard, total=shards)
        await anyio.sleep(0.1)
    return f"{shards} shards rebuilt"


class LargeRefunds(cc.Rule):
    """A refund of more than 100 euros needs a person's yes."""

    name = "large-refunds"

    def before_tool(self, call: cc.ToolCall) -> cc.Allow | cc.Ask:
        """Ask, where it is large or not even a number."""
        amount = call.arguments.get("amount")
        if call.name != "refund" or (isinstance(amount, int | float) and amount <= 100):
            return cc.allow()
        return cc.ask("May this refund be paid?", detail=call.arguments)


def boundary_for(store: cc.ArtifactStore, secret: str) -> cc.Boundary:
    """The boundary of this server: the sample tools, the readers, one rule, and the limits.

    Claims of approvals lie where all replicas see them: in the store's bucket, or in a directory beside its own.
    """
    from coatcheck import readers

    approvals: cc.Approvals | None = None
    if isinstance(store, cc.S3Store):
        approvals = cc.S3Approvals(store)
    elif isinstance(store, cc.DirectoryStore):
        approvals = cc.DirectoryApprovals(store.path.with_name(store.path.name + "-approvals"))
    return cc.Boundary(
        [sales_report, refund, rebuild_index, *readers.tools()],
        rules=[LargeRefunds()],
        store=store,
        placement=cc.Placement(max_inline_chars=8_000, max_batch_chars=24_000),
        truncation=cc.Truncation(max_chars=20_000),
        concurrency=64,
        secret=secret,
        approvals=approvals,
        on_event=on_event,
    )


def read_tokens(path: str | os.PathLike[str]) -> Tokens:
    """The tokens of a file, as ``coatcheck serve --token-file`` has them: a token and its scope on each line.

    Raises:
        ConfigurationError: naming the line, and quoting none.
    """
    scopes: dict[str, cc.Scope] = {}
    for number, line in enumerate(Path(path).read_text(encoding="utf-8-sig").splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        fields = [unquote(field) or None for field in words[1].split("/")] if len(words) == 2 else []
        if len(fields) != 3 or fields[2] is None or words[0] in scopes:
            raise ConfigurationError(f"line {number} of the token file: write TOKEN TENANT/PRINCIPAL/CONVERSATION once")
        scopes[words[0]] = cc.Scope(tenant=fields[0], principal=fields[1], conversation=fields[2])
    return Tokens(scopes)


async def _run(boundary: cc.Boundary, tokens: Tokens) -> None:
    async with boundary:  # what cannot be opened is told here in a line, and in a lifespan with a traceback
        pass
    await serve(
        agent_app(boundary, tokens),
        host=os.environ.get("AGENT_HOST", "127.0.0.1"),
        port=int(os.environ.get("AGENT_PORT", "8080")),
        drain=float(os.environ.get("AGENT_DRAIN", "30")),
        listening=lambda url: _log.info("listening on %s", url),
    )


def main() -> None:
    """Serve until SIGTERM or SIGINT, and let what is under way come to its end then."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    try:
        missing = [name for name in _NEEDED if not os.environ.get(name)]
        if missing:
            raise ConfigurationError(f"these environment variables are needed: {', '.join(missing)}")
        store, secret, tokens = (os.environ[name] for name in _NEEDED)
        asyncio.run(_run(boundary_for(cc.open_store(store), secret), read_tokens(tokens)))
    except (CoatcheckError, OSError, ValueError) as error:
        sys.exit(f"this server cannot start: {error}")


_NEEDED = ("COATCHECK_STORE", "COATCHECK_SECRET", "COATCHECK_TOKEN_FILE")

if __name__ == "__main__":
    main()
