"""What is known of an artifact, and what a put may say.

The records are frozen and hold no payload but in `Artifact`. `check_put` is the one judgement of a put's own
words, the same for every store; what depends on the store (parents, budgets) is the store's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal

import msgspec

from coatcheck.artifacts.ref import check_kind, make_ref, normalise_media_type, one_line, plain_text
from coatcheck.errors import ConfigurationError, InvalidArtifact, InvalidRange

__all__ = [
    "MAX_LABEL_CHARS",
    "MAX_ORIGIN_ENTRIES",
    "MAX_ORIGIN_KEY_CHARS",
    "MAX_ORIGIN_VALUE_CHARS",
    "MAX_PARENTS",
    "Artifact",
    "ArtifactMeta",
    "Clock",
    "MediaType",
    "Page",
    "PutRequest",
    "PutResult",
    "PutWords",
    "Swept",
    "check_chunk",
    "check_put",
    "check_range",
    "check_words",
    "origin_of",
    "read_clock",
    "utc_now",
]

MAX_LABEL_CHARS = 256
MAX_ORIGIN_ENTRIES = 8
MAX_ORIGIN_KEY_CHARS = 64
MAX_ORIGIN_VALUE_CHARS = 256
MAX_PARENTS = 1000
_MAX_CALL_ID_CHARS = 128

Clock = Callable[[], datetime]
"""What a store asks for the time: an aware datetime at every call."""

MediaType = str | Callable[[], str]
"""The type of a streamed payload: said beforehand, or asked for once the stream has ended, where only the whole of it
can tell (text is text until a byte says otherwise)."""


class ArtifactMeta(msgspec.Struct, frozen=True):
    """What is known of an artifact without its payload.

    Attributes:
        ref: its name; it opens nothing without the scope.
        kind: what the payload is, for example ``dataset/rows``.
        media_type: how the payload is written, lower case, without parameters.
        bytes: the payload's size.
        digest: ``sha256:<hex>`` of the payload.
        created_at: when it was first put, in UTC; a later put does not change it.
        expires_at: when it ceases to resolve, in UTC; ``None`` is never. A later put only extends it.
        label: the first put's word for a person to read.
        origin: where the first put says it came from, for example the call's id.
        parents: refs in the same scope that it was made from, as the first put had them.
    """

    ref: str
    kind: str
    media_type: str
    bytes: int
    digest: str
    created_at: datetime
    expires_at: datetime | None = None
    label: str | None = None
    origin: dict[str, str] | None = None
    parents: tuple[str, ...] = ()


class Artifact(msgspec.Struct, frozen=True):
    """An artifact with its payload, which was compared with its digest."""

    meta: ArtifactMeta
    data: bytes


class Swept(msgspec.Struct, frozen=True):
    """One removal, as a returned fact.

    Attributes:
        ref: what was removed; empty for a leftover that never had a name.
        kind: its kind; empty where it cannot be told any more.
        bytes: the size of the payload that is gone.
        reason: ``ttl``: it had expired. ``max-bytes``, ``max-count``: a put needed its place.
            ``orphan``: a crash left it, and nothing could ever have read it.
    """

    ref: str
    kind: str
    bytes: int
    reason: Literal["ttl", "max-bytes", "max-count", "orphan"]


class PutResult(msgspec.Struct, frozen=True):
    """What a put did.

    Attributes:
        meta: the artifact as it is now; label, origin, parents and creation time are the first put's.
        created: False where the same content was there already.
        swept: what a budget forced out, in the order of removal.
    """

    meta: ArtifactMeta
    created: bool
    swept: tuple[Swept, ...] = ()


class Page(msgspec.Struct, frozen=True):
    """A part of a listing, newest first, and where to go on: ``cursor`` is ``None`` on the last page."""

    artifacts: tuple[ArtifactMeta, ...]
    cursor: str | None = None


class PutWords(msgspec.Struct, frozen=True):
    """What a put says beside the payload, judged and brought to one spelling.

    Attributes:
        media_type: for a stream it may be a function, which `meta` asks.
    """

    kind: str
    media_type: MediaType
    label: str | None
    expires_at: datetime | None
    origin: dict[str, str] | None
    parents: tuple[str, ...]

    def meta(self, digest: str, size: int, created_at: datetime, expires_at: datetime | None) -> ArtifactMeta:
        """The meta of the artifact that this put makes, if it is the first of its content.

        Args:
            digest, size: of the payload.
            created_at: the store's clock, now.
            expires_at: what retention makes of the put's own expiry.

        Raises:
            InvalidArtifact: the put had to wait until the expiry that it asked for was over, or the media type that a
                function answered is none.
        """
        if self.expires_at is not None:
            _expiry(self.expires_at, created_at)
        media_type = self.media_type if isinstance(self.media_type, str) else normalise_media_type(self.media_type())
        return ArtifactMeta(
            ref=make_ref(self.kind, media_type, digest),
            kind=self.kind,
            media_type=media_type,
            bytes=size,
            digest=digest,
            created_at=created_at,
            expires_at=expires_at,
            label=self.label,
            origin=self.origin,
            parents=self.parents,
        )


class PutRequest(msgspec.Struct, frozen=True):
    """A put whose payload is at hand, and its words."""

    data: bytes
    words: PutWords


def check_put(
    data: object,
    *,
    kind: object,
    media_type: object,
    label: object,
    expires_at: object,
    origin: object,
    parents: object,
    now: datetime,
) -> PutRequest:
    """Judge what a put says of itself, before anything is read, written or removed.

    Args:
        data: the payload: bytes, or a bytearray or memoryview, of which a copy is kept.
        kind, media_type: see `check_kind` and `normalise_media_type`.
        label: text of one line, at most 256 characters, or ``None``.
        expires_at: an aware datetime after ``now`` (``now`` itself is too early), or ``None``.
        origin: at most 8 texts of at most 256 characters, by names of at most 64, or ``None``, which an empty
            mapping is too.
        parents: at most 1000 refs; a repeated one counts once. Whether they resolve is for the store to say.
        now: the store's clock.

    Raises:
        InvalidArtifact: naming the field, never its content.
    """
    return PutRequest(
        data=_payload(data),
        words=_words(kind, normalise_media_type(media_type), label, expires_at, origin, parents, now),
    )


def check_words(
    source: object,
    *,
    kind: object,
    media_type: object,
    label: object,
    expires_at: object,
    origin: object,
    parents: object,
    now: datetime,
) -> PutWords:
    """As `check_put`, for a payload that is still to come: before the first chunk of ``source`` is asked for.

    Args:
        source: an async iterable of bytes.
        media_type: see `MediaType`.

    Raises:
        InvalidArtifact: naming the field, never its content.
    """
    if not hasattr(type(source), "__aiter__"):
        raise InvalidArtifact(f"source must be an async iterable of bytes, not {type(source).__name__}")
    known = media_type if callable(media_type) else normalise_media_type(media_type)
    return _words(kind, known, label, expires_at, origin, parents, now)


def check_chunk(chunk: object, index: int) -> bytes | bytearray | memoryview:
    """Return the ``index``-th chunk of a stream, counted from 0, if it is one.

    Raises:
        InvalidArtifact: it is no bytes.
    """
    if isinstance(chunk, (bytes, bytearray, memoryview)):
        return chunk
    raise InvalidArtifact(f"source[{index}] must be bytes, not {type(chunk).__name__}")


def check_range(start: object, end: object, size: int) -> tuple[int, int]:
    """The part of a payload of ``size`` bytes that ``start`` and ``end`` ask for, within it.

    Args:
        start: the first byte, counted from 0; one past the payload asks for nothing.
        end: the byte after the last; ``None``, and one past the payload, is the payload's end.

    Raises:
        InvalidRange: one is no whole number, is negative, or the end is before the start.
    """
    if type(start) is not int or start < 0:
        raise InvalidRange(f"start must be a whole number of bytes, 0 or more, not {start!r:.80}")
    if end is not None and (type(end) is not int or end < start):
        raise InvalidRange(f"end must be None or a whole number of bytes, not before start={start}, not {end!r:.80}")
    last = size if end is None else min(end, size)
    return min(start, last), last


def utc_now() -> datetime:
    """The system's clock, aware, in UTC: what every store uses unless it is given another."""
    return datetime.now(UTC)


def origin_of(tool: str, call_id: str | None) -> dict[str, str]:
    """Where an artifact comes from that a call made. A provider's id is made fit: bounded, valid Unicode."""
    origin = {"tool": tool}
    if call_id is not None:
        origin["call_id"] = call_id[:_MAX_CALL_ID_CHARS].encode(errors="replace").decode()
    return origin


def read_clock(clock: Clock) -> datetime:
    """The time by ``clock``, in UTC.

    Raises:
        ConfigurationError: the clock gave something else than an aware datetime.
    """
    now: object = clock()
    if not isinstance(now, datetime) or now.utcoffset() is None:
        raise ConfigurationError(f"clock must return an aware datetime, as datetime.now(UTC) does, not {now!r:.80}")
    return now.astimezone(UTC)


def _words(
    kind: object,
    media_type: MediaType,
    label: object,
    expires_at: object,
    origin: object,
    parents: object,
    now: datetime,
) -> PutWords:
    return PutWords(
        kind=check_kind(kind),
        media_type=media_type,
        label=None if label is None else one_line("label", label, MAX_LABEL_CHARS),
        expires_at=None if expires_at is None else _expiry(expires_at, now),
        origin=None if origin is None else _origin(origin),
        parents=_parents(parents),
    )


def _payload(data: object) -> bytes:
    if isinstance(data, bytes):
        return data
    if isinstance(data, (bytearray, memoryview)):
        return bytes(data)
    raise InvalidArtifact(f"data must be bytes, not {type(data).__name__}: a value is rendered before it is stored")


def _expiry(expires_at: object, now: datetime) -> datetime:
    if not isinstance(expires_at, datetime) or expires_at.utcoffset() is None:
        raise InvalidArtifact("expires_at must be an aware datetime, or None")
    if expires_at <= now:
        raise InvalidArtifact("expires_at must be in the future")
    try:
        return expires_at.astimezone(UTC)
    except OverflowError:
        raise InvalidArtifact("expires_at is out of range: say None for never") from None


def _origin(origin: object) -> dict[str, str] | None:
    if not isinstance(origin, Mapping):
        raise InvalidArtifact(f"origin must be a mapping of text to text, or None, not {type(origin).__name__}")
    if len(origin) > MAX_ORIGIN_ENTRIES:
        raise InvalidArtifact(f"origin must have at most {MAX_ORIGIN_ENTRIES} entries, not {len(origin)}")
    checked = {
        one_line("a name in origin", name, MAX_ORIGIN_KEY_CHARS): plain_text(
            f"origin[{name!r:.80}]", text, MAX_ORIGIN_VALUE_CHARS
        )
        for name, text in origin.items()
    }
    return checked or None


def _parents(parents: object) -> tuple[str, ...]:
    if isinstance(parents, (str, bytes)) or not isinstance(parents, Sequence):
        raise InvalidArtifact(f"parents must be a sequence of refs, not {type(parents).__name__}")
    if len(parents) > MAX_PARENTS:
        raise InvalidArtifact(f"parents must be at most {MAX_PARENTS} refs, not {len(parents)}")
    for index, ref in enumerate(parents):
        if not isinstance(ref, str):
            raise InvalidArtifact(f"parents[{index}] must be a ref, not {type(ref).__name__}")
    return tuple(dict.fromkeys(parents))
