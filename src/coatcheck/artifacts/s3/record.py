"""What an S3 object says of itself beside its bytes: one entry of user metadata. Everything here is pure.

Servers take two kilobytes of it, in ASCII, and some change the case of names or the runs of spaces in values. So it is
one entry, as JSON in which everything else is escaped.
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import Any

import msgspec

from coatcheck.artifacts.meta import ArtifactMeta
from coatcheck.artifacts.ref import make_ref
from coatcheck.artifacts.retention import Retention, Row, later_expiry
from coatcheck.artifacts.s3.keys import is_data_name
from coatcheck.errors import InvalidArtifact

__all__ = ["ENTRY", "MAX_METADATA_BYTES", "POINTER", "Record"]

ENTRY = "coatcheck"
"""The name of the entry: the header is ``x-amz-meta-coatcheck``."""

MAX_METADATA_BYTES = 2048
"""What names and values of an object's metadata may take together; some servers count the header's whole name."""

_MAX_CHARS = MAX_METADATA_BYTES - len("x-amz-meta-") - len(ENTRY)

POINTER = b"The payload of this artifact is a data object of its own, which the metadata names.\n"
"""What an object holds whose payload is elsewhere. Its length tells in a listing what may be one."""

_YOUNG = 0.9
_REPEATED_SPACE = re.compile("(?<= ) ")


class _Wire(msgspec.Struct, frozen=True, omit_defaults=True):
    """The record as it is written, without what the key says."""

    kind: str
    type: str
    bytes: int
    sha256: str
    created: datetime
    put: datetime | None = None
    expires: datetime | None = None
    data: str | None = None
    label: str | None = None
    origin: dict[str, str] | None = None
    parents: str = ""


class Record(msgspec.Struct, frozen=True):
    """What is known of a stored artifact.

    Attributes:
        meta: the artifact's.
        last_put: when its content was last put; the age that evictions go by.
        data: the name of its data object, among those of its scope; ``None``: the object holds the payload itself.
    """

    meta: ArtifactMeta
    last_put: datetime
    data: str | None = None

    def encode(self) -> str:
        """The record as an entry of metadata.

        Raises:
            InvalidArtifact: it is more than an object may say of itself; the text names what takes the most.
        """
        meta = self.meta
        wire = _Wire(
            kind=meta.kind,
            type=meta.media_type,
            bytes=meta.bytes,
            sha256=meta.digest.removeprefix("sha256:"),
            created=meta.created_at,
            put=None if self.last_put == meta.created_at else self.last_put,
            expires=meta.expires_at,
            data=self.data,
            label=meta.label,
            origin=meta.origin,
            parents=" ".join([ref.removeprefix("art_") for ref in meta.parents]),
        )
        text = _ascii(msgspec.json.encode(wire))
        if len(text) > _MAX_CHARS:
            raise _too_much(meta, len(text))
        return text

    def row(self) -> Row:
        """What retention needs to know of it."""
        return Row(self.meta.ref, self.meta.kind, self.meta.bytes, self.last_put, self.meta.expires_at)

    def refreshed(self, put: Record) -> Record:
        """This record after a second put of the same content, of which ``put`` would be the record if it were the
        first. It does not say where the payload is.
        """
        expires_at = later_expiry(self.meta.expires_at, put.meta.expires_at)
        meta = msgspec.structs.replace(self.meta, expires_at=expires_at)
        return Record(meta, max(self.last_put, put.last_put))

    def serves(self, put: Record, retention: Retention, min_age_seconds: float | None) -> bool:
        """Whether this record can stand as it is after a second put of its content.

        It can where its expiry is what the put asks for, or by no more than a tenth of the ttl sooner; and, where
        evictions go by the age, is no older than what they spare.

        Args:
            put: as for `refreshed`.
            retention: the store's dials.
            min_age_seconds: what is younger is never evicted; ``None``: nothing is.
        """
        if min_age_seconds is not None and (put.last_put - self.last_put).total_seconds() >= min_age_seconds:
            return False
        mine, asked = self.meta.expires_at, put.meta.expires_at
        if mine is None or (asked is not None and mine >= asked):
            return True
        if asked is None or retention.ttl is None or asked < put.last_put + retention.ttl:
            return False
        return mine - put.last_put >= retention.ttl * _YOUNG

    @staticmethod
    def decode(ref: str, text: object) -> Record | None:
        """The record of ``ref`` in an object's metadata; ``None``: there is none that can be trusted.

        A ref is made of kind, media type and digest, so a record proves itself.
        """
        try:
            wire = msgspec.json.decode(text, type=_Wire) if isinstance(text, str) else None
            if wire is None or make_ref(wire.kind, wire.type, f"sha256:{wire.sha256}") != ref:
                return None
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return None
        if wire.data is not None and not is_data_name(wire.data):
            return None
        last_put = wire.put or wire.created
        times = (wire.created, last_put, wire.expires)
        if any(time is not None and time.utcoffset() is None for time in times) or wire.bytes < 0:
            return None
        meta = ArtifactMeta(
            ref=ref,
            kind=wire.kind,
            media_type=wire.type,
            bytes=wire.bytes,
            digest=f"sha256:{wire.sha256}",
            created_at=wire.created,
            expires_at=wire.expires,
            label=wire.label,
            origin=wire.origin,
            parents=tuple([f"art_{name}" for name in wire.parents.split()]),
        )
        return Record(meta, last_put, wire.data)


def _ascii(encoded: bytes) -> str:
    text = encoded.decode() if encoded.isascii() else json.dumps(json.loads(encoded), separators=(",", ":"))
    text = text.replace("\x7f", r"\u007f")  # the one control character that JSON does not escape
    return _REPEATED_SPACE.sub(r"\\u0020", text) if "  " in text else text


def _too_much(meta: ArtifactMeta, size: int) -> InvalidArtifact:
    parts: dict[str, Any] = {"parents": meta.parents, "origin": meta.origin, "label": meta.label, "kind": meta.kind}
    sizes = {name: len(_ascii(msgspec.json.encode(part))) for name, part in parts.items()}
    largest = max(sizes, key=lambda name: sizes[name])
    return InvalidArtifact(
        f"{largest} takes {sizes[largest]} of the {size} bytes that this artifact would say of itself, and an S3 object"
        f" takes {_MAX_CHARS}: shorten it"
    )
