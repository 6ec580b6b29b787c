"""Tokens that somebody else signed (JSON Web Tokens, RFC 7519), by PyJWT: the extra ``jwt``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from starlette.requests import Request

from coatcheck.errors import ConfigurationError
from coatcheck.scope import Scope
from coatcheck.service.access import bearer_token

if TYPE_CHECKING:
    from jwt.types import Options

__all__ = ["SignedTokens"]

_SHARED = ("HS256", "HS384", "HS512")
_PUBLIC = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
_SECRET_BYTES = 32

_log = logging.getLogger("coatcheck")


class SignedTokens:
    """Bearer tokens that are JSON Web Tokens: an `Authenticate`.

    A token counts if its signature is right by one of the algorithms named here (never by one that the token names
    alone), if it says until when it counts (``exp``) and that is not over, and if audience and issuer are those named
    here. A token that has an audience is refused where none is named.

    Args:
        key: what tokens are verified with: a shared secret (text or bytes), a public key in PEM, or one of the package
            ``cryptography``; or, where keys change, a mapping of key ids (``kid``) to such keys.
        algorithms: which algorithms count, of one kind: ``HS*`` with a shared secret of at least 32 bytes, or the
            others with a public key.
        scope: makes the scope of a token's claims; ``None`` where they give no access. Where it raises LookupError or
            ConfigurationError, because a claim is missing or empty, there is no access either.
        audience: whom the token must be for (``aud``).
        issuer: whom it must be from (``iss``).
        leeway: by how much the clocks may differ, in seconds or as a timedelta.

    Raises:
        ConfigurationError: naming the argument that cannot be honoured, or saying that the extra is missing.

    For example::

        SignedTokens(
            public_key,
            algorithms=["ES256"],
            audience="artifacts",
            issuer="https://login.example",
            scope=lambda claims: Scope(tenant=claims["tenant"], principal=claims["sub"], conversation=claims["conv"]),
        )
    """

    def __init__(
        self,
        key: object,
        *,
        algorithms: Sequence[str],
        scope: Callable[[Mapping[str, Any]], Scope | None],
        audience: str | Sequence[str] | None = None,
        issuer: str | None = None,
        leeway: float | timedelta = 0,
    ) -> None:
        try:
            import jwt
        except ModuleNotFoundError as error:
            raise ConfigurationError(
                f"SignedTokens needs the extra jwt: install coatcheck[jwt] ({error.name} is missing)"
            ) from None
        self._jwt = jwt
        self._algorithms = _check_algorithms(algorithms)
        self._keys: dict[object, object] = dict(key) if isinstance(key, Mapping) else {None: key}
        self._by_id = isinstance(key, Mapping)
        self._prepare()
        if not callable(scope):
            raise ConfigurationError("SignedTokens.scope must be a function of a token's claims")
        self._scope = scope
        self._audience = audience
        self._issuer = issuer
        self._leeway = leeway

    def __call__(self, request: Request) -> Scope | None:
        """The scope of the request's bearer token."""
        token = bearer_token(request)
        claims = None if token is None else self._claims(token)
        if claims is None:
            return None
        try:
            return self._scope(claims)
        except (LookupError, ConfigurationError) as error:
            _log.info("a signed token gives no scope: %s", type(error).__name__)
            return None

    def __repr__(self) -> str:
        return f"SignedTokens(algorithms={self._algorithms})"

    def _claims(self, token: str) -> Mapping[str, Any] | None:
        """What a token claims, if all of it counts."""
        options: Options = {"require": ["exp"]}
        try:
            kid: object = self._jwt.get_unverified_header(token).get("kid") if self._by_id else None
            key: Any = self._keys.get(kid)
            if key is None:
                return None
            return self._jwt.decode(
                token,
                key,
                algorithms=self._algorithms,
                options=options,
                audience=self._audience,
                issuer=self._issuer,
                leeway=self._leeway,
            )
        except (self._jwt.PyJWTError, ValueError, OverflowError, RecursionError):
            return None

    def _prepare(self) -> None:
        """See that every key is one for every algorithm, and keep it as the library has it."""
        if not self._keys:
            raise ConfigurationError("SignedTokens.key must have at least one key")
        if self._algorithms[0] in _SHARED:
            for key in self._keys.values():
                size = len(key.encode() if isinstance(key, str) else key) if isinstance(key, (str, bytes)) else 0
                if size < _SECRET_BYTES:
                    raise ConfigurationError(
                        f"SignedTokens.key must be a secret of at least {_SECRET_BYTES} bytes for {self._algorithms[0]}"
                    )
        try:
            known = self._jwt.algorithms.get_default_algorithms()
            for name in self._algorithms:
                for key in self._keys.values():
                    known[name].prepare_key(key)
        except (self._jwt.PyJWTError, KeyError, TypeError, ValueError):
            raise ConfigurationError(
                f"SignedTokens.key is no key for {', '.join(self._algorithms)}: give a public key in PEM, or a secret"
            ) from None


def _check_algorithms(algorithms: object) -> list[str]:
    if isinstance(algorithms, str) or not isinstance(algorithms, Sequence) or not algorithms:
        raise ConfigurationError("SignedTokens.algorithms must name at least one algorithm, as in ['ES256']")
    names = list(algorithms)
    for kind in (_SHARED, _PUBLIC):
        if all(name in kind for name in names):
            return names
    raise ConfigurationError(
        f"SignedTokens.algorithms must be all of {', '.join(_SHARED)}, or all of {', '.join(_PUBLIC)}: "
        "with both, a public key would do as a shared secret"
    )
