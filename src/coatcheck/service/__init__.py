"""Artifacts over HTTP (extra ``http``): an ASGI app to mount, who may use it, and a server to run it by itself."""

from __future__ import annotations

from coatcheck.service.access import Authenticate, OnLoopback, Tokens
from coatcheck.service.app import artifact_app
from coatcheck.service.server import serve
from coatcheck.service.signed import SignedTokens

__all__ = ["Authenticate", "OnLoopback", "SignedTokens", "Tokens", "artifact_app", "serve"]
