"""Whose artifacts these are, and how that becomes segments of a key.

Two laws (`design.md` section 5, and parting 13 of section 3):

* A field that is not there is ``None``. An empty one is refused, so that nobody shares a table by accident.
* Segments are injective and safe where case is folded: no two scopes ever share a key, and no field leaves
  its own segment. Every segment matches ``[a-z0-9_-]{1,80}``, which object stores, file systems and URLs
  all take as it is, and none is empty, starts with a dot or is made of dots.
"""

from __future__ import annotations

import hashlib
import re

import msgspec

from coatcheck.errors import ConfigurationError

__all__ = ["MAX_SEGMENT_CHARS", "Scope", "check_scope", "is_segment", "scope_segments"]

MAX_SEGMENT_CHARS = 80
"""No segment is longer, whatever its field holds. Three of them and a ref stay far below every server's limit."""

_ABSENT = "_"
_LONG = "__"
_SAFE = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789-")
_ENCODED = tuple(chr(byte) if byte in _SAFE else f"_{byte:02x}" for byte in range(256))
_DIGEST_CHARS = 64
_SEGMENT = re.compile(f"[a-z0-9_-]{{1,{MAX_SEGMENT_CHARS}}}")


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """Whose artifacts these are: the first argument of every store verb. A ref alone opens nothing.

    Two scopes are the same exactly when all three fields are equal, letter by letter.

    Attributes:
        tenant: the customer or organisation, or ``None`` where there is only one.
        principal: the person or agent that acts, or ``None``.
        conversation: the conversation; it is never absent.

    Raises:
        ConfigurationError: a field is empty, no text, or holds half of a surrogate pair. The text names the
            field, never what is in it.
    """

    tenant: str | None = None
    principal: str | None = None
    conversation: str

    def __post_init__(self) -> None:
        _check("tenant", self.tenant, optional=True)
        _check("principal", self.principal, optional=True)
        _check("conversation", self.conversation, optional=False)


def check_scope(scope: object) -> Scope:
    """Return ``scope`` if it is one: what every store verb does first, so that nobody shares a table by accident.

    Raises:
        TypeError: it is something else. The text names its type, never what is in it.
    """
    if not isinstance(scope, Scope):
        raise TypeError(f"scope must be a Scope, not {type(scope).__name__}: say Scope(conversation=...)")
    return scope


def scope_segments(scope: Scope) -> tuple[str, str, str]:
    """The key segments of a scope: tenant, principal, conversation.

    ``None`` is ``_``. Otherwise ``a-z``, ``0-9`` and ``-`` stand for themselves and every other byte of the
    field's UTF-8 is ``_`` and two hex digits. Where that is longer than 80 characters, the segment is a
    readable prefix, ``__`` and the SHA-256 of the whole field; ``__`` occurs in no other form.

    Raises:
        TypeError: it is no scope.
    """
    check_scope(scope)
    return _segment(scope.tenant), _segment(scope.principal), _segment(scope.conversation)


def is_segment(name: str) -> bool:
    """Whether ``name`` has the form of a segment. What has not, no scope has made."""
    return _SEGMENT.fullmatch(name) is not None


def _segment(field: str | None) -> str:
    if field is None:
        return _ABSENT
    data = field.encode()
    # Every byte becomes at least one character, so a longer field is not even spelled out.
    if len(data) <= MAX_SEGMENT_CHARS:
        plain = "".join([_ENCODED[byte] for byte in data])
        if len(plain) <= MAX_SEGMENT_CHARS:
            return plain
    return _prefix(data) + _LONG + hashlib.sha256(data).hexdigest()


def _prefix(data: bytes) -> str:
    """The head of the plain form, as much of it as fits before the digest, without a cut escape."""
    room = MAX_SEGMENT_CHARS - len(_LONG) - _DIGEST_CHARS
    prefix = ""
    for byte in data[:room]:
        if len(prefix) + len(_ENCODED[byte]) > room:
            break
        prefix += _ENCODED[byte]
    return prefix


def _check(field: str, value: object, *, optional: bool) -> None:
    if value is None and optional:
        return
    if not isinstance(value, str):
        hint = "text or None" if optional else "text"
        raise ConfigurationError(f"Scope.{field} must be {hint}, not {type(value).__name__}")
    if not value:
        hint = ": leave it out, or say None, where there is none" if optional else ""
        raise ConfigurationError(f"Scope.{field} must not be empty{hint}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ConfigurationError(f"Scope.{field} holds half of a surrogate pair, which no key can spell") from None
