"""The grammar of refs: nothing else makes or parses one.

A ref names content, and what the content is: ``art_`` and 160 bits, in Crockford base32, of the SHA-256 over a
header of kind, media type and payload digest (law: `design.md` section 5; bytes and examples: `api.md`). So
equal bytes of one kind are one artifact in a scope, and one payload under two kinds is two artifacts.
A ref opens nothing without a scope.
"""

from __future__ import annotations

import hashlib
import re

import msgspec

from coatcheck.errors import InvalidArtifact

__all__ = [
    "MAX_KIND_CHARS",
    "check_kind",
    "clean_ref",
    "digest_of",
    "is_ref",
    "make_ref",
    "normalise_media_type",
    "one_line",
    "plain_text",
]

MAX_KIND_CHARS = 128
"""What a kind, and a media type, may be long."""

_CROCKFORD = "0123456789abcdefghjkmnpqrstvwxyz"
_REF_BYTES = 20
_REF_CHARS = _REF_BYTES * 8 // 5
_LONGEST_MENTION = 16_384
# Crockford's base32 in either case, and the letters that people write for its 0 and 1.
_MEANT = re.compile(f"(?<![0-9a-z_])art_([{_CROCKFORD}oil]{{{_REF_CHARS}}})(?![0-9a-z_])", re.ASCII | re.IGNORECASE)
_MISREAD = str.maketrans("oil", "011")
_REF = re.compile(f"art_[{_CROCKFORD}]{{{_REF_CHARS}}}")
_DIGEST = re.compile("sha256:[0-9a-f]{64}")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
_TOKEN = "[A-Za-z0-9!#$%&'*+.^_`|~-]+"  # as RFC 9110 has it
_MEDIA_TYPE = re.compile(f"{_TOKEN}/{_TOKEN}")


def make_ref(kind: str, media_type: str, digest: str) -> str:
    """The ref of a payload: a pure function of what it is and what it holds.

    Args:
        kind: what the payload is, for example ``tool-result/lookup``; taken letter by letter.
        media_type: ``text/plain`` and the like; case and parameters do not matter.
        digest: the payload's, as `digest_of` spells it.

    Raises:
        InvalidArtifact: one of the three is malformed.
    """
    if _DIGEST.fullmatch(digest) is None:
        raise InvalidArtifact("digest must be sha256: and 64 lower-case hex digits")
    header = f"coatcheck/1\n{check_kind(kind)}\n{normalise_media_type(media_type)}\n{digest}"
    return "art_" + _base32(hashlib.sha256(header.encode()).digest()[:_REF_BYTES])


def is_ref(value: object) -> bool:
    """Whether ``value`` has the form of a ref. Whether it names anything, only a store can tell."""
    return isinstance(value, str) and _REF.fullmatch(value) is not None


class _Named(msgspec.Struct):
    ref: str


def clean_ref(text: str) -> str:
    """The ref that was meant by what a model wrote.

    Another case, quotes, backticks, brackets and punctuation around it, a word like ``ref:`` before it, the letters
    o, i and l for the digits 0 and 1, and a whole ticket around it do not matter.

    Args:
        text: anything.

    Returns:
        A well-formed ref; or, where none or more than one can be told, something short that is none, and that every
        store answers as a miss. Never raises.
    """
    if is_ref(text):
        return text
    looked = text[:_LONGEST_MENTION]
    found = {_spelled(match[1]) for match in _MEANT.finditer(looked)}
    if len(found) > 1:  # what else a ticket names, it does not stand for
        try:
            found = {_spelled(match[1]) for match in _MEANT.finditer(msgspec.json.decode(text, type=_Named).ref[:64])}
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return "art_"
    if len(found) == 1:
        return found.pop()
    return looked.strip()[:_REF_CHARS].strip()  # too short to hold one


def _spelled(tail: str) -> str:
    return "art_" + tail.lower().translate(_MISREAD)


def digest_of(data: bytes) -> str:
    """``sha256:`` and the hex SHA-256 of a payload. About a millisecond for one or two megabytes."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def check_kind(kind: object) -> str:
    """Return ``kind`` if it may be one: some text that is not blank, in one line, of at most 128 characters.

    Raises:
        InvalidArtifact: it may not; the text says why.
    """
    text = one_line("kind", kind, MAX_KIND_CHARS)
    if not text.strip():
        raise InvalidArtifact("kind must not be blank: say what the payload is, for example 'dataset/rows'")
    return text


def normalise_media_type(media_type: object) -> str:
    """The one spelling of a media type: ``type/subtype``, lower case, without parameters.

    Raises:
        InvalidArtifact: it is blank, malformed, or longer than 128 characters without its parameters.
    """
    text = one_line("media_type", media_type).partition(";")[0].strip(" ")
    one_line("media_type", text, MAX_KIND_CHARS)
    if _MEDIA_TYPE.fullmatch(text) is None:
        raise InvalidArtifact("media_type must look like type/subtype, for example 'application/json'")
    return text.lower()


def plain_text(field: str, value: object, limit: int | None = None) -> str:
    """Return ``value`` if it is text that UTF-8 can carry, of at most ``limit`` characters.

    Raises:
        InvalidArtifact: it is not; the text names ``field`` and not the value.
    """
    if not isinstance(value, str):
        raise InvalidArtifact(f"{field} must be text, not {type(value).__name__}")
    if limit is not None and len(value) > limit:
        raise InvalidArtifact(f"{field} must be at most {limit} characters, not {len(value)}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidArtifact(f"{field} holds half of a surrogate pair") from None
    return value


def one_line(field: str, value: object, limit: int | None = None) -> str:
    """Return ``value`` if it is `plain_text` without control characters, which would forge a header's lines.

    Raises:
        InvalidArtifact: it is not; the text names ``field`` and not the value.
    """
    text = plain_text(field, value, limit)
    if _CONTROL.search(text) is not None:
        raise InvalidArtifact(f"{field} must not hold control characters")
    return text


def _base32(data: bytes) -> str:
    """Crockford's base32 without its check digit, lower case, five bits a character from the most significant down."""
    number = int.from_bytes(data)
    shifts = range(len(data) * 8 - 5, -1, -5)
    return "".join([_CROCKFORD[number >> shift & 31] for shift in shifts])
