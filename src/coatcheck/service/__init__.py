"""Artifacts over HTTP (extra ``http``): an ASGI app to mount, who may use it, and a server to run it by itself."""

from __future__ import annotations

try:
    from coatcheck.service.access import Authenticate, OnLoopback, Tokens
    from coatcheck.service.app import artifact_app
    from coatcheck.service.server import serve
    from coatcheck.service.signed import SignedTokens
except ModuleNotFoundError as _error:
    raise ModuleNotFoundError(
        f"coatcheck.service needs the extra http: install coatcheck[http] ({_error.name} is missing)", name=_error.name
    ) from None

__all__ = ["Authenticate", "OnLoopback", "SignedTokens", "Tokens", "artifact_app", "serve"]
