"""Binary inside a value: where it is, what type it has, and the value with something else in its place.

Three forms are known, each only where it leaves no doubt: bytes; a text that is one whole ``data:`` URL
in base64, of a binary media type without parameters; and the base64 text under ``data`` or ``blob`` of a
mapping that declares a binary media type beside it (the content blocks of MCP, Anthropic and Gemini).
A block whose source is a location has no bytes here and is left in place.

The law for text: it is binary only where the bytes that it stands for give exactly this text again. Words
and digests can be read as base64 too, so what is short, and what is hexadecimal, stays text.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import re
import sys
import uuid
from collections.abc import Callable
from gc import get_referents
from typing import Any, TypeAlias

import msgspec

from coatcheck.results.conversion import MAX_VALUES, spell_path, spell_step

__all__ = ["MAX_ATTACHED_BYTES", "OCTETS", "Blob", "is_textual", "may_hold_binary", "replace_blobs"]

MAX_ATTACHED_BYTES = 64 * 1024
"""How many bytes of binary one outcome carries in ``content`` where no placement decides."""

OCTETS = "application/octet-stream"

_DATA_URL = re.compile(r"data:([\w.+-]{1,64}/[\w.+-]{1,64});base64,", re.ASCII)
_HEXADECIMAL = re.compile(r"[0-9a-fA-F]+", re.ASCII)
_MIN_TEXT_CHARS = 64
_MEDIA_TYPE = re.compile(r"\s*([\w.+-]+/[\w.+-]+)\s*(?:;.*)?", re.ASCII)
_TEXTUAL = re.compile(r"text/.*|application/(.*\+)?(json|jsonl|ndjson|x-ndjson|json-seq|xml|yaml|javascript)")
_MEDIA_TYPE_KEYS = ("mimeType", "mime_type", "media_type", "mediaType")
_PAYLOAD_KEYS = ("data", "blob")
_SIGNS = (b'"data:', *(f'"{key}"'.encode() for key in _MEDIA_TYPE_KEYS))
_LEAVES = frozenset({str, int, float, bool, type(None)})
_CONTAINERS = frozenset({dict, list, tuple})
_SCALARS = frozenset({datetime.datetime, datetime.date, datetime.time, datetime.timedelta, decimal.Decimal, uuid.UUID})
_DICTS_MAY_HIDE = sys.version_info >= (3, 13)  # an instance's own __dict__ does not hand over what it holds
_CHUNK = 4096


class Blob(msgspec.Struct, frozen=True):
    """Binary that travels beside an outcome's text.

    Attributes:
        media_type: as declared beside it, lower case; ``application/octet-stream`` where nothing was.
        data: the bytes themselves (base64 is undone).
        path: where in the value it was, as ``$.blocks[1].data``.
        original: what stood there: the bytes, or the base64 text.
    """

    media_type: str
    data: bytes
    path: str = "$"
    original: bytes | str = b""


def is_textual(media_type: str) -> bool:
    """Whether payloads of this type, in lower case, are text that a model can read."""
    return _TEXTUAL.fullmatch(media_type) is not None


def may_hold_binary(value: object, encoded: bytes) -> bool:
    """Whether a walk over ``value`` may find binary: a cheap look first, because most large values hold none.

    Bytes are binary, and what is of a type of its own may hold them.

    Args:
        value: anything. encoded: the same as JSON text.
    """
    if any(encoded.rfind(sign) >= 0 for sign in _SIGNS):  # from the end, which CPython does twice as fast
        return True
    pending: list[Any] = [(value,)]
    met = 0
    while pending:
        level = pending.pop()
        met += len(level)
        if met > MAX_VALUES:  # it was measured once, so somebody has changed it since
            return True
        kinds = {*map(type, level)}
        if kinds <= _LEAVES:
            continue
        if not kinds <= _CONTAINERS | _LEAVES:
            if not kinds <= _CONTAINERS | _LEAVES | _SCALARS:
                return True
            level = [item for item in level if type(item) in _CONTAINERS]
        if _DICTS_MAY_HIDE and _hides(level):
            return True
        below = get_referents(*level)
        pending.extend(below[start : start + _CHUNK] for start in range(0, len(below), _CHUNK))
    return False


def _hides(level: list[Any]) -> bool:
    return any(type(item) is dict and len(get_referents(item)) < len(item) for item in level)


def replace_blobs(value: Any, replace: Callable[[Blob], Any]) -> Any:
    """Return ``value`` with every piece of binary replaced by what ``replace`` answers for it.

    The order is that of the value. What holds no binary comes back by reference.

    Args:
        value: plain JSON values, and bytes.
        replace: is given each `Blob`, and answers with the plain value that takes its place.
    """
    return _walk(value, None, replace)


_Way: TypeAlias = "tuple[_Way, str | int] | None"  # from a value back to the root; spelled only where binary is found


def _walk(value: Any, way: _Way, replace: Callable[[Blob], Any]) -> Any:
    if isinstance(value, str):
        blob = _from_data_url(value, way) if value.startswith("data:") else None
        return value if blob is None else replace(blob)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return replace(_blob(OCTETS, bytes(value), way, bytes(value)))
    if isinstance(value, dict):
        media_type = _declared_type(value)
        items: dict[Any, Any] = {}
        changed = False
        for key, item in value.items():
            blob = None
            if media_type is not None and key in _PAYLOAD_KEYS:
                blob = _from_block(item, media_type, (way, key))
            items[key] = replacement = _walk(item, (way, key), replace) if blob is None else replace(blob)
            changed = changed or replacement is not item
        return items if changed else value
    if isinstance(value, (list, tuple)):
        elements = [_walk(item, (way, index), replace) for index, item in enumerate(value)]
        same = all(new is old for new, old in zip(elements, value, strict=True))
        return value if same else elements
    return value


def _declared_type(block: dict[Any, Any]) -> str | None:
    for key in _MEDIA_TYPE_KEYS:
        declared = block.get(key)
        if isinstance(declared, str) and (match := _MEDIA_TYPE.fullmatch(declared[:256])):
            media_type = match[1].lower()
            return None if len(media_type) > 128 or is_textual(media_type) else media_type
    return None


def _from_block(item: object, media_type: str, way: _Way) -> Blob | None:
    if isinstance(item, (bytes, bytearray, memoryview)):
        return _blob(media_type, bytes(item), way, bytes(item))
    if isinstance(item, str) and _HEXADECIMAL.fullmatch(item) is None:
        data = _undone(item)
        return None if data is None else _blob(media_type, data, way, item)
    return None


def _from_data_url(text: str, way: _Way) -> Blob | None:
    match = _DATA_URL.match(text)
    if match is None or is_textual(media_type := match[1].lower()) or len(media_type) > 128:
        return None
    data = _undone(text[match.end() :])
    return None if data is None else _blob(media_type, data, way, text)


def _undone(text: str) -> bytes | None:
    """The bytes that ``text`` is the base64 of, where it is so to the letter."""
    if len(text) < _MIN_TEXT_CHARS or len(text) % 4:
        return None
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError:
        return None
    return data if base64.b64encode(data) == text.encode() else None  # nothing hides in the unused bits of its end


def _blob(media_type: str, data: bytes, way: _Way, original: bytes | str) -> Blob:
    steps: list[str] = []
    while way is not None:
        way, step = way
        steps.append(f"[{step}]" if isinstance(step, int) else spell_step(str(step)))
    return Blob(media_type, data, spell_path(steps[::-1]), original)
