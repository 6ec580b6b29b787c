"""The one client of a store and event loop: what is changed of aiobotocore's defaults, and why.

* ``Expect: 100-continue`` is not sent: the transport waits for the interim answer without a timeout.
* Checksums go only where they are asked for: the default ones are refused, or stored as data, by many servers.
* The hash that signs a request is taken from its body, which knows it.
* The user agent is a constant; else it is built twice for every request.
* Parameters are not validated: they are ours, or were judged with the store's settings.
* Everything that blocks (imports, reading of models and profiles) is done in a worker thread.

On asyncio the transport is aiohttp, which is the faster one there; on trio it is httpx, the only one that runs there.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import cache
from typing import Any

import anyio
from anyio import to_thread
from anyio.lowlevel import RunVar

from coatcheck.artifacts.s3.body import Body
from coatcheck.artifacts.s3.settings import SLOWEST, Connection
from coatcheck.errors import ConfigurationError
from coatcheck.loops import trio_here

__all__ = ["Client", "opened_client"]

Client = Any
"""An aiobotocore client of S3, which has no types of its own."""

_SIGNER = "coatcheck-s3v4"
_LONGEST_CONNECT = 5.0  # seconds
_LONGEST_SILENCE = 3600.0
_SENT_AHEAD = 8 << 20  # bytes at most that a socket takes before they are on their way
_OPENING = 10.0  # seconds, beside the timeout: credentials may have to be fetched, and much is imported
_session: RunVar[Any] = RunVar("coatcheck.artifacts.s3.session")
_making = threading.Lock()


@asynccontextmanager
async def opened_client(connection: Connection) -> AsyncIterator[Client]:
    """A client until the end of the block.

    Raises:
        ConfigurationError: the extra is not installed, or a setting of the environment cannot be honoured.
    """
    session, arguments = await to_thread.run_sync(_prepare, connection, trio_here() is not None, _session.get(None))
    _session.set(session)
    from botocore.exceptions import BotoCoreError

    problem = None
    async with AsyncExitStack() as stack:
        try:
            with anyio.fail_after(connection.timeout + _OPENING):
                client = await stack.enter_async_context(session.create_client("s3", **arguments))
        except TimeoutError:
            problem = "the S3 client cannot be made: the credentials did not come in time"
        except (BotoCoreError, ValueError) as error:
            problem = f"the S3 client cannot be made: {type(error).__name__}"
        else:
            _adapt(client, own_endpoint=connection.endpoint_url is not None)
            yield client
    if problem is not None:
        raise ConfigurationError(problem)


def _prepare(connection: Connection, on_trio: bool, session: Any) -> tuple[Any, dict[str, Any]]:
    """The event loop's session, and what a client is made with. It blocks.

    A session belongs to one loop: its credentials have a lock of that loop, and are refreshed under it.
    """
    try:
        from aiobotocore.config import AioConfig
        from aiobotocore.httpsession import AIOHTTPSession
        from aiobotocore.httpxsession import HttpxSession
        from botocore.exceptions import BotoCoreError

        importlib.import_module("zlib_ng")  # which parts are summed up with
    except ImportError as error:
        raise ConfigurationError(f"a store on S3 needs the extra s3, for want of {error.name}: coatcheck[s3]") from None
    _know_payloads()
    with _making:
        if session is None:
            session = _make_session(AioConfig(http_session_cls=HttpxSession) if on_trio else None)
        session.warm_up_loader_caches("s3")
        with suppress(BotoCoreError):  # files that cannot be read are told where the client is made
            session.get_scoped_config()
        region = connection.region or session.get_config_variable("region")
    if region is None and connection.endpoint_url is not None:
        region = "us-east-1"  # what servers other than AWS call their only region
    style = "auto" if connection.endpoint_url is None else "path"
    once = connection.timeout / connection.attempts
    config = AioConfig(
        http_session_cls=HttpxSession if on_trio else AIOHTTPSession,
        # There a request waits for a connection, and for each piece that is sent, as long as its own deadline lets it.
        connector_args={"write_timeout": None, "pool_timeout": None} if on_trio else None,
        signature_version="s3v4",
        s3={"addressing_style": style},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        parameter_validation=False,
        retries={"mode": "standard", "total_max_attempts": connection.attempts},
        # As many bodies may be read as requests are under way: see `Requests`.
        max_pool_connections=2 * connection.connections,
        connect_timeout=min(_LONGEST_CONNECT, once),
        read_timeout=once,
        user_agent=f"coatcheck/{importlib.metadata.version('coatcheck')}",
    )
    credentials = connection.credentials
    arguments: dict[str, Any] = {
        "region_name": region,
        "endpoint_url": connection.endpoint_url,
        "verify": connection.ca_bundle,
        "config": config,
    }
    if credentials is not None:
        arguments["aws_access_key_id"] = credentials.access_key_id
        arguments["aws_secret_access_key"] = credentials.secret_access_key
        arguments["aws_session_token"] = credentials.session_token
    return session, arguments


def _make_session(config: Any) -> Any:
    from aiobotocore.session import get_session

    session = get_session()
    session.register_component("data_loader", _loader())
    if config is not None:
        session.set_default_client_config(config)  # tells the fetchers of credentials on which loop they run
    return session


@cache
def _loader() -> Any:
    """What reads botocore's models, and keeps them: one for all sessions of the process."""
    from aiobotocore.session import get_session

    return get_session().get_component("data_loader")


def _adapt(client: Client, *, own_endpoint: bool) -> None:
    """Take out of a client what does harm here."""
    from botocore.handlers import add_expect_header

    client.meta.events.unregister("before-call.s3", add_expect_header)
    client.meta.events.register("choose-signer.s3", _choose_signer)
    client.meta.events.register("before-call.s3.CompleteMultipartUpload", _have_patience)
    for operation in ("PutObject", "UploadPart"):
        client.meta.events.register(f"before-call.s3.{operation}", _wait_for_a_body)
    if own_endpoint:
        client.meta.events.register("before-call.s3", _follow_nothing)


def _have_patience(context: dict[str, Any], **_: object) -> None:
    """Let the deadline of the request alone end it: a server may be silent while it puts the parts together."""
    context["read_timeout"] = _LONGEST_SILENCE


def _wait_for_a_body(context: dict[str, Any], params: dict[str, Any], **_: object) -> None:
    """Let what the machine still has to send take its time: the transport calls it silence of the server."""
    size = int(params["headers"].get("Content-Length", 0))
    context["read_timeout"] = context["client_config"].read_timeout + min(size, _SENT_AHEAD) / SLOWEST


def _follow_nothing(context: dict[str, Any], **_: object) -> None:
    """Let a redirection be an error: botocore would ask for the bucket's region, be redirected, ask again, without end.

    Only AWS says where a bucket lies, and there it stays as it is.
    """
    context.setdefault("s3_redirect", {})["redirected"] = True


def _choose_signer(signature_version: object, **_: object) -> str | None:
    return _SIGNER if signature_version == "s3v4" else None


def _know_payloads() -> None:
    """Teach botocore a signer that asks a body for its hash: the way to add one is this table."""
    from botocore.auth import AUTH_TYPE_MAPS, UNSIGNED_PAYLOAD, S3SigV4Auth

    if _SIGNER in AUTH_TYPE_MAPS:
        return

    class KnownPayload(S3SigV4Auth):  # type: ignore[misc]  # botocore has no types
        def payload(self, request: Any) -> str:
            body = request.data  # `request.body` would make the whole request anew
            if isinstance(body, Body):
                return body.sha256 or str(UNSIGNED_PAYLOAD)
            return str(super().payload(request))

    AUTH_TYPE_MAPS[_SIGNER] = KnownPayload
