"""A value becomes the text that the model reads, and its size, once.

The encoded bytes are kept: they are what is measured and what is stored, so a value that is placed is
never encoded twice, and a large one never exists as a text beside its bytes unless somebody reads it.

Sizes of text are Unicode code points (law: `design.md` section 3, parting 11); binary counts by its bytes.
"""

from __future__ import annotations

import sys
from gc import get_referents
from math import isfinite
from typing import Annotated, Any, Final

import msgspec

from coatcheck.errors import RenderingError
from coatcheck.results.binary import MAX_ATTACHED_BYTES, OCTETS, Blob, is_textual, replace_blobs
from coatcheck.results.conversion import (
    MAX_DEPTH,
    MAX_VALUES,
    TOO_MANY,
    canonical,
    canonical_rows,
    is_steady,
    said,
)
from coatcheck.results.envelope import Encoded

__all__ = ["JSON", "TEXT", "Rendered", "describe_blob", "render", "render_text"]

JSON: Final = "application/json"
TEXT: Final = "text/plain"

_encode = msgspec.json.Encoder().encode
_convert = msgspec.convert
_ATOMS = frozenset({str, int, float, bool, type(None)})
_DICTS_MAY_HIDE = sys.version_info >= (3, 13)  # an instance's own __dict__ does not hand over what it holds
_CHUNK = 4096
_PIECE = 1 << 20
_DECODED_AT_ONCE = 16 * 1024
_FEW = 64  # a level of more is counted before it is opened: what it shares may be more than memory holds
_ROWS = 256
_LARGEST = sys.float_info.max
_CONTINUATION_BYTES = bytes(range(0x80, 0xC0))


class Rendered(msgspec.Struct, gc=False):
    """What one value reads as. Made by `render`, or by `render_text` from text that is there already.

    Attributes:
        size: what every limit compares: code points of the text, plus the bytes of ``blobs``.
        media_type: ``text/plain``, ``application/json``, or what was declared.
        blobs: binary that travels beside the text instead of in it.
        whole: the encoded text with its images in it, where they travel as ``blobs``; what `stored` is made of.
    """

    size: int
    media_type: str
    encoded: bytes | None = None
    decoded: str | None = None
    blobs: tuple[Blob, ...] = ()
    whole: bytes | None = None

    @property
    def text(self) -> str:
        """The text that the model reads; decoded on first use."""
        if self.decoded is None:
            self.decoded = self.data.decode()
        return self.decoded

    @property
    def data(self) -> bytes:
        """The bytes to store: the encoded text, or the binary itself; encoded on first use."""
        if self.encoded is None:
            self.encoded = (self.decoded or "").encode()
        return self.encoded

    def stored(self) -> Rendered:
        """The same as it is stored: with nothing beside it, from the bytes that were there when it was measured."""
        if self.whole is None:
            return self
        return Rendered(_code_points(self.whole), self.media_type, self.whole)

    def head(self, chars: int) -> str:
        """The first ``chars`` characters of the text, without decoding the rest."""
        if self.decoded is not None:
            return self.decoded[:chars]
        return self.data[: 4 * chars].decode(errors="ignore")[:chars]

    def tail(self, chars: int) -> str:
        """The last ``chars`` characters of the text, without decoding the rest."""
        if chars == 0:
            return ""
        if self.decoded is not None:
            return self.decoded[-chars:]
        return self.data[-4 * chars :].decode(errors="ignore")[-chars:]


def render(value: object, *, attach: bool = True, checked: bool = False) -> Rendered:
    """Render what a tool returned.

    Text is itself. Everything else that JSON can carry is compact JSON: key order kept, non-ASCII raw,
    sets sorted. Bytes travel as a blob, described by the text; so do the images and sounds of content
    blocks up to 64 KiB. `Encoded` is measured as it is.

    Args:
        value: what the tool returned.
        attach: False leaves the images and sounds of content blocks in the text, for storing.
        checked: whoever read an `Encoded` has found its syntax to be right already.

    Raises:
        RenderingError: naming the path and the type of what JSON cannot carry or would silently change.
    """
    try:
        kind = type(value)
        if kind is str:
            return render_text(value)  # type: ignore[arg-type]  # narrowed by kind
        if kind is dict or kind is list:
            data = _encode_checked(value)
            first = value[0] if kind is list and value else value  # type: ignore[index]
            if type(first) is dict and "type" in first and attach:
                return _with_attachments(value, data)
            if len(data) > _DECODED_AT_ONCE:
                return Rendered(_code_points(data), JSON, data)
            text = data.decode()  # the model most probably reads it, and the length is its size
            return Rendered(len(text), JSON, data, text)
        if isinstance(value, (bytes, bytearray, memoryview)):
            return _binary(bytes(value), OCTETS)
        if isinstance(value, Blob):
            return _binary(value.data, value.media_type)
        if isinstance(value, Encoded):
            return _render_encoded(value, checked)
        if isinstance(value, str) and type(plain := canonical(value)) is str:  # a subclass, or an enum of text
            return render_text(plain)
        data = _encode_checked(value)
        return Rendered(_code_points(data), JSON, data)
    except RenderingError:
        raise
    except Exception as error:
        raise _cannot_carry(error) from error


def render_text(text: str) -> Rendered:
    """Render text as itself.

    Raises:
        RenderingError: where it holds a lone surrogate, which UTF-8 cannot carry.
    """
    if text.isascii():
        return Rendered(len(text), TEXT, None, text)
    try:
        return Rendered(len(text), TEXT, text.encode(), text)
    except UnicodeEncodeError:
        canonical(text)  # which says where
        raise


def describe_blob(blob: Blob) -> str:
    """The words that stand in a text for binary that travels beside it."""
    return f"[{blob.media_type}, {len(blob.data)} bytes, attached]"


def _encode_checked(value: object) -> bytes:
    """Encode once; walk the value only where its encoding would change its meaning silently."""
    try:
        floats = _look(value)
        if floats is not None:
            data = _encode(value)
            if not floats or data.rfind(b"null") < 0 or _is_finite(value):
                return data
            del data
    except RenderingError:
        raise
    except Exception:  # noqa: BLE001 - whatever was met, the walk below finds it and says where it is
        pass
    return _encode_canonical(value)


def _encode_canonical(value: object) -> bytes:
    try:
        if type(value) is list and len(value) > _ROWS:
            pieces = [_encode(rows)[1:-1] for rows in canonical_rows(value)]
            return b"[%b]" % b",".join(pieces)
        return _encode(canonical(value))
    except RenderingError:
        raise
    except Exception as error:
        raise _cannot_carry(error) from error


def _cannot_carry(error: Exception) -> RenderingError:
    return RenderingError("$", f"a value that JSON cannot carry ({said(error)})")


def _look(value: object) -> bool | None:
    """Whether JSON says what ``value`` says: its containers are dicts with text keys, lists and tuples, none of its
    leaves is written as something else. ``None`` where not; else whether there are floats that nobody has looked at.

    A level is one call of C code, not a step of Python a leaf: `gc.get_referents` hands over what its containers
    hold, and their keys only where some key is no ``str``, so that counting tells. What holds nothing ends the walk:
    the last level is looked at as a whole. A float above it may send for a search: NaN is written as ``null``.
    It comes before the encoder, which would write what is shared over and over until memory is out.
    """
    depth = met = 0
    floats = False
    level: Any = (value,)
    while True:
        few = len(level) <= _FEW
        if few:
            if not (below := get_referents(*level)):
                break
        elif type(level[0]) in _ATOMS and type(level[-1]) in _ATOMS and _are_atoms(level):
            return floats
        expected = 0
        for item in level:
            if type(item) is dict or type(item) is list or type(item) is tuple:
                expected += len(item)
            elif type(item) is float:
                floats = True
            elif type(item) not in _ATOMS and not is_steady(item):
                return None
        met += expected
        if met > MAX_VALUES:
            raise RenderingError("$", TOO_MANY)
        if not few and not (below := get_referents(*level)):
            return floats
        if expected != len(below) or depth > MAX_DEPTH or (_DICTS_MAY_HIDE and _hides(level)):
            return None
        level = below
        depth += 1
    if _are_atoms(level):
        return floats
    if depth > MAX_DEPTH or not all(type(item) in _ATOMS or is_steady(item) for item in level):
        return None
    return True


def _are_atoms(level: Any) -> bool:
    """Whether all in a level are text, finite numbers, booleans or null; C code tells at a third of the cost."""
    try:
        _convert((level,), _Atoms)
    except Exception:  # noqa: BLE001 - whatever it met, it is none of the types that JSON has, or no number
        return False
    return True


def _hides(level: Any) -> bool:
    return any(type(item) is dict and len(get_referents(item)) != len(item) for item in level)


class _Atoms(msgspec.Struct, array_like=True, gc=False):
    """A level of leaves that all are what JSON has.

    Other types may only seem to be leaves: a `msgspec.Raw`, a struct that the collector does not know (``gc=False``).
    """

    items: tuple[str | int | Annotated[float, msgspec.Meta(ge=-_LARGEST, le=_LARGEST)] | bool | None, ...]


def _is_finite(value: object) -> bool:
    """Whether every float in a plain ``value`` is a number. Asked only where the encoding holds a ``null``."""
    pending: list[Any] = [(value,)]
    while pending:
        level = pending.pop()
        if not all(isfinite(item) for item in level if type(item) is float):
            return False
        below = get_referents(*level)
        pending.extend(below[start : start + _CHUNK] for start in range(0, len(below), _CHUNK))
    return True


def _code_points(data: bytes) -> int:
    if data.isascii():
        return len(data)
    pieces = (data[start : start + _PIECE] for start in range(0, len(data), _PIECE))
    return sum(len(piece.translate(None, _CONTINUATION_BYTES)) for piece in pieces)


def _binary(data: bytes, media_type: str) -> Rendered:
    blob = Blob(media_type, data)
    return Rendered(len(data), media_type, data, describe_blob(blob), (blob,))


def _with_attachments(value: object, data: bytes) -> Rendered:
    found: list[Blob] = []

    def attach(blob: Blob) -> str:
        found.append(blob)
        return describe_blob(blob)

    skeleton = replace_blobs(value, attach)
    attached = sum(len(blob.data) for blob in found)
    if not found or attached > MAX_ATTACHED_BYTES:
        return Rendered(_code_points(data), JSON, data)
    text = _encode_checked(skeleton)
    return Rendered(_code_points(text) + attached, JSON, text, None, tuple(found), data)


def _render_encoded(value: Encoded, checked: bool) -> Rendered:
    raw, media_type = value.raw, value.media_type
    json = media_type == JSON or media_type.endswith("+json")
    if not (json or is_textual(media_type)):
        return _binary(raw, media_type)
    ascii = raw.isascii()
    if not ascii:
        try:
            raw.decode()
        except UnicodeDecodeError as error:
            if not (json or media_type.startswith("text/")):  # XML and the like may be in another encoding
                return _binary(raw, media_type)
            raise RenderingError("$", f"{media_type} that is not UTF-8 at byte {error.start}") from None
    if json and not checked:
        try:
            msgspec.json.decode(raw, type=msgspec.Raw)
        except (msgspec.DecodeError, RecursionError) as error:
            raise RenderingError("$", f"{media_type} that is not JSON ({error})") from None
    return Rendered(len(raw) if ascii else _code_points(raw), media_type, raw)
