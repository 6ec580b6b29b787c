"""A result that is produced piece by piece: how a tool says so, and what the pieces come to.

A tool returns an async or sync iterator of text, of bytes, or of rows; an async generator, a generator and an open
file are such iterators. What the first piece is, every other must be. Text becomes UTF-8, a row one line of JSON.

The law (`design.md` section 4): what is declared ``text/*``, and what nobody declared, is text as long as it is valid
UTF-8; where a later byte is not, all of it is ``application/octet-stream``. So type and size are known at the end. Any
other declared type is taken on trust where a stream is too large to be held; only that JSON is UTF-8 is looked at.
A stream carries a value and nothing else: no envelope, no absence and no ledger is recognised in one, at any size. An
`Envelope` may have a stream for its content.
"""

from __future__ import annotations

import codecs
from collections.abc import AsyncIterable, Iterable
from typing import Any, Final, Literal, Protocol

import msgspec

from coatcheck.errors import DeclarationError, RenderingError
from coatcheck.results.binary import OCTETS, is_textual
from coatcheck.results.envelope import Encoded, Envelope
from coatcheck.results.rendering import JSON, TEXT, render
from coatcheck.results.shapes import describe

__all__ = ["JSON_LINES", "Content", "FileResult", "Form", "Gauge", "Piecewise", "Stream", "find_stream", "to_value"]

JSON_LINES: Final = "application/jsonl"

Form = Literal["text", "bytes", "rows"]

# Everything that is no stream for certain, so that the common result costs one look at its type.
_WHOLE = frozenset({str, int, float, bool, type(None), list, tuple, bytes, bytearray, set, frozenset, Encoded})
_ENVELOPE_KEYS = (2, 3)


class Stream(msgspec.Struct, frozen=True):
    """A result that is produced piece by piece, with what its author knows about it.

    An iterator that is returned as it is needs no wrapper; this one declares the media type, or makes a stream of
    something that is not taken for one, such as a list of chunks.

    Args:
        source: an async or sync iterable of text, of bytes, or of rows (anything that JSON can carry).
        media_type: as ``text/csv``; without one, text is ``text/plain``, rows are ``application/jsonl``, and bytes
            are ``text/plain`` as long as they are UTF-8, else ``application/octet-stream``.

    Raises:
        DeclarationError: for a source that cannot be iterated over, or a media type that is none.
    """

    source: AsyncIterable[Any] | Iterable[Any]
    media_type: str | None = None

    def __post_init__(self) -> None:
        source: object = self.source
        kind = type(source)
        if isinstance(source, (str, bytes, bytearray, dict)) or not (
            hasattr(kind, "__aiter__") or hasattr(kind, "__iter__")
        ):
            raise DeclarationError(
                f"refused: Stream.source must be an iterable of pieces, but {describe(source)}; "
                "return what is there as a whole as it is"
            )
        _normalise(self)


class _PathLike(Protocol):
    def __fspath__(self) -> str: ...


class FileResult(msgspec.Struct, frozen=True):
    """A file that is the result: it is read piece by piece, and never held as a whole.

    Args:
        path: of a regular file; it is opened when the result is taken in, and neither changed nor removed.
        media_type: as for `Stream`; it is not guessed from the name, because that depends on the machine.

    Raises:
        DeclarationError: for what is no path, or a media type that is none.
    """

    path: str | _PathLike
    media_type: str | None = None

    def __post_init__(self) -> None:
        path: object = self.path
        if not isinstance(path, str) and not hasattr(type(path), "__fspath__"):
            raise DeclarationError(f"refused: FileResult.path must be a path, but {describe(path)}")
        _normalise(self)


Piecewise = Stream | FileResult
"""What a stream is brought to before anybody reads it."""


def _normalise(declared: Stream | FileResult) -> None:
    if declared.media_type is not None:
        try:
            normal = Encoded(b"", declared.media_type).media_type
        except DeclarationError as error:
            raise DeclarationError(str(error).replace("Encoded", type(declared).__name__)) from None
        msgspec.structs.force_setattr(declared, "media_type", normal)


def find_stream(value: object) -> Piecewise | None:
    """The stream that a tool returned, as it is or as the content of an envelope; ``None`` for every other value."""
    kind = type(value)
    if kind in _WHOLE:
        return None
    if kind is dict:
        if len(value) in _ENVELOPE_KEYS and "content" in value and "effects" in value:  # type: ignore[arg-type, operator]  # narrowed by kind
            return _as_stream(value["content"])  # type: ignore[index]  # narrowed by kind
        return None
    return _as_stream(value.content if isinstance(value, Envelope) else value)


def _as_stream(value: object) -> Piecewise | None:
    kind = type(value)
    if isinstance(value, (Stream, FileResult)):
        return value
    if hasattr(kind, "__anext__") or (hasattr(kind, "__next__") and hasattr(kind, "__iter__")):
        return Stream(value)  # type: ignore[arg-type]  # it is an iterator
    return None


class Content:
    """Turns the pieces of one stream into bytes, one after another."""

    def __init__(self) -> None:
        self.form: Form | None = None
        self.pieces: int = 0

    def to_bytes(self, piece: object) -> bytes:
        """The next piece as bytes.

        Raises:
            RenderingError: it is of another kind than those before, or nothing that JSON or UTF-8 can carry.
        """
        form: Form = "text" if isinstance(piece, str) else "rows"
        if isinstance(piece, (bytes, bytearray, memoryview)):
            form = "bytes"
        if self.form is None:
            self.form = form
        place = f"$[{self.pieces}]"
        if form != self.form:
            raise RenderingError(place, f"a piece of type {type(piece).__name__} in a stream of {self.form}")
        self.pieces += 1
        if isinstance(piece, (bytes, bytearray, memoryview)):
            return bytes(piece)
        if isinstance(piece, str):
            return _utf8(piece, place)
        return _row(piece, place)


def _utf8(text: str, place: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise RenderingError(place, f"half of a surrogate pair at character {error.start}") from None


def _row(row: object, place: str) -> bytes:
    try:
        rendered = render(row, attach=False)
    except RenderingError as error:
        raise RenderingError(f"{place}{error.path.removeprefix('$')}", error.problem) from None
    if rendered.media_type != JSON:
        raise RenderingError(place, f"{rendered.media_type} where a row of JSON is expected")
    line = rendered.data
    if b"\n" in line:  # wire bytes that somebody laid out for reading
        line = msgspec.json.format(line, indent=-1)
    return line + b"\n"


class Gauge:
    """What the bytes of one stream come to so far: how many, how many characters, and whether they are text.

    Args:
        declared: the media type that the author declared.
        form: of the pieces, as far as it is known; may be set later.
    """

    def __init__(self, declared: str | None = None) -> None:
        self.declared = declared
        self.form: Form | None = None
        self.bytes: int = 0
        self.is_text: bool = declared is None or is_textual(declared)
        self._chars = 0
        self._open = b""  # the beginning of a character whose other bytes are still to come

    @property
    def size(self) -> int:
        """What every limit compares: characters of text, bytes of binary. It never shrinks, and grows at once where
        what was taken for text turns out to be none.
        """
        return self._chars if self.is_text else self.bytes

    @property
    def media_type(self) -> str:
        """The type of what was seen so far; after `finish`, of the whole."""
        if self.declared is not None:
            must_be_text = self.declared.startswith("text/") or self.declared.endswith("json")
            return OCTETS if must_be_text and not self.is_text else self.declared
        if self.form == "rows":
            return JSON_LINES
        return TEXT if self.is_text else OCTETS

    def feed(self, piece: bytes) -> None:
        """Count the next bytes."""
        self.bytes += len(piece)
        if not self.is_text:
            return
        if not self._open and piece.isascii():
            self._chars += len(piece)
            return
        try:
            text, used = codecs.utf_8_decode(self._open + piece, "strict", False)
        except UnicodeDecodeError:
            self.is_text, self._open = False, b""
            return
        self._open = (self._open + piece)[used:]
        self._chars += len(text)

    def finish(self) -> None:
        """There are no more bytes: half a character at the end is none."""
        if self._open:
            self.is_text, self._open = False, b""


def to_value(data: bytes, gauge: Gauge) -> Any:
    """A whole stream as the ordinary value that it comes to.

    Text without a declared type is ``str``, binary without one is ``bytes``, and what has a type is `Encoded`.
    """
    media_type = gauge.media_type
    if media_type == TEXT:
        return data.decode()
    return data if media_type == OCTETS else Encoded(data, media_type)
