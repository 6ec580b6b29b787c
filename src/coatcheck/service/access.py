"""Who asks, and whose artifacts they may read: the scope comes from here, and never from what a URL says."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

from starlette.requests import Request

from coatcheck.errors import ConfigurationError
from coatcheck.scope import Scope

__all__ = ["MIN_TOKEN_CHARS", "Authenticate", "OnLoopback", "Tokens", "bearer_token", "is_loopback"]

Authenticate: TypeAlias = "Callable[[Request], Scope | Awaitable[Scope | None] | None]"
"""What tells the scope of a request, or ``None`` where it shows nobody that is known. It may be asynchronous; if it is
not, it must not block. It decides by what the request proves, for example a header, and cannot read a body."""

MIN_TOKEN_CHARS = 16
"""No token may be shorter: it could be guessed."""

_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")  # as RFC 6750 has it
_BEARER = re.compile(r"bearer +([A-Za-z0-9._~+/-]+=*) *", re.IGNORECASE)
_MOST_CHARS = 1 << 13
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^:\[\]]+)(?::[0-9]*)?", re.IGNORECASE)
_FORWARDED = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-real-ip")


class Tokens:
    """Bearer tokens that are known beforehand, each of one scope: an `Authenticate`.

    A token that is presented is compared by a digest under a key that this object alone has, and the digests in
    constant time: how long an answer takes tells nothing of how near a guess was.

    Args:
        scopes: the scope of each token. A token is at least 16 letters, digits or ``-._~+/``, with ``=`` at its end
            if it likes; make one with ``secrets.token_urlsafe(32)``.

    Raises:
        ConfigurationError: there is none, one is malformed or too short, or its scope is none. The text counts the
            tokens, and quotes none.
    """

    def __init__(self, scopes: Mapping[str, Scope]) -> None:
        if not isinstance(scopes, Mapping) or not scopes:
            raise ConfigurationError("Tokens needs at least one token, as in Tokens({token: Scope(conversation=...)})")
        self._key = secrets.token_bytes(32)
        self._scopes: dict[bytes, tuple[bytes, Scope]] = {}
        for index, (token, scope) in enumerate(scopes.items()):
            self._check(index, token, scope)
            digest = self._digest(token)
            self._scopes[digest] = digest, scope

    def __call__(self, request: Request) -> Scope | None:
        """The scope of the request's bearer token."""
        token = bearer_token(request)
        if token is None:
            return None
        digest = self._digest(token)
        known, scope = self._scopes.get(digest, (b"", None))
        return scope if hmac.compare_digest(known, digest) else None

    def __repr__(self) -> str:
        return f"Tokens(<{len(self._scopes)}>)"

    def _digest(self, token: str) -> bytes:
        return hmac.digest(self._key, token.encode(), hashlib.sha256)

    @staticmethod
    def _check(index: int, token: object, scope: object) -> None:
        if not isinstance(token, str) or _TOKEN.fullmatch(token) is None or len(token) > _MOST_CHARS:
            raise ConfigurationError(
                f"Tokens: token {index} may only have letters, digits and -._~+/, and = at its end: "
                "make one with secrets.token_urlsafe(32)"
            )
        if len(token) < MIN_TOKEN_CHARS:
            raise ConfigurationError(
                f"Tokens: token {index} must have at least {MIN_TOKEN_CHARS} characters, not {len(token)}: "
                "make one with secrets.token_urlsafe(32)"
            )
        if not isinstance(scope, Scope):
            raise ConfigurationError(f"Tokens: the scope of token {index} must be a Scope, not {type(scope).__name__}")


class OnLoopback:
    """One scope for whoever asks from this machine, without any proof: for development. An `Authenticate`.

    Nobody else is let in, wherever the server listens. That means a request whose client has a loopback address, which
    came through no proxy, and which was made to a name of this machine, so that no web page can turn a name of its own
    into this machine's and read along. Every user and program of the machine is let in.

    Args:
        scope: whose artifacts they read.

    Raises:
        ConfigurationError: it is none.
    """

    def __init__(self, scope: Scope) -> None:
        if not isinstance(scope, Scope):
            raise ConfigurationError(f"OnLoopback needs a Scope, not {type(scope).__name__}")
        self._scope = scope

    def __call__(self, request: Request) -> Scope | None:
        """The scope, if the request comes from this machine."""
        host = _HOST.fullmatch(request.headers.get("host", ""))
        near = (
            request.client is not None
            and is_loopback(request.client.host)
            and host is not None
            and (host[1].lower() == "localhost" or is_loopback(host[1].strip("[]")))
            and not any(name in request.headers for name in _FORWARDED)
        )
        return self._scope if near else None


def is_loopback(address: str) -> bool:
    """Whether an IP address is one that only this machine reaches. A name is none."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return (mapped or parsed).is_loopback


def bearer_token(request: Request) -> str | None:
    """The bearer token that a request presents (RFC 6750); ``None``: none, or more than one."""
    values = request.headers.getlist("authorization")
    if len(values) != 1 or len(values[0]) > _MOST_CHARS:
        return None
    match = _BEARER.fullmatch(values[0])
    return None if match is None else match[1]
