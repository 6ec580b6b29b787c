"""How a payload is labelled, so that no browser ever renders or runs what a tool brought home.

Laws:

* A type is sent as it is only if it is in the table here; every other one, HTML, SVG, XML, scripts and style sheets
  above all, is ``application/octet-stream``. What was declared is in the artifact's meta.
* Only what is inert by itself may be shown in place; everything else is a download.
* The file's name is the ref and an extension of this table: nothing of the label or the kind is in a header.
"""

from __future__ import annotations

import base64
from datetime import datetime
from typing import Final

from coatcheck.artifacts.meta import ArtifactMeta
from coatcheck.service.conditions import entity_tag, last_modified

__all__ = ["GUARDS", "content_headers", "validators"]

# Media type: its extension, and what is sent as Content-Type where that says more.
_INERT: Final = {
    "application/json": ("json", ""),
    "application/jsonl": ("jsonl", ""),
    "application/x-ndjson": ("ndjson", ""),
    "image/gif": ("gif", ""),
    "image/jpeg": ("jpg", ""),
    "image/png": ("png", ""),
    "image/webp": ("webp", ""),
    # With its charset said, or a browser guesses one.
    "text/plain": ("txt", "text/plain; charset=utf-8"),
}
_DOWNLOADS: Final = {
    "application/gzip": ("gz", ""),
    "application/pdf": ("pdf", ""),
    "application/vnd.apache.arrow.file": ("arrow", ""),
    "application/vnd.apache.parquet": ("parquet", ""),
    "application/zip": ("zip", ""),
    "audio/mpeg": ("mp3", ""),
    "audio/wav": ("wav", ""),
    "text/csv": ("csv", "text/csv; charset=utf-8"),
    "text/markdown": ("md", "text/markdown; charset=utf-8"),
    "text/tab-separated-values": ("tsv", "text/tab-separated-values; charset=utf-8"),
    "video/mp4": ("mp4", ""),
}
_OPAQUE: Final = ("bin", "application/octet-stream")

GUARDS: Final = {
    "x-content-type-options": "nosniff",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'; sandbox",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "vary": "Authorization, Cookie",
}
"""What every answer carries."""


def content_headers(meta: ArtifactMeta, now: datetime, max_age: float) -> dict[str, str]:
    """The headers of a payload, whole or in part, but for those that say which part.

    Args:
        meta: the artifact's.
        now: the time, by which its expiry counts.
        max_age: how long a client may keep what it has without asking again, in seconds; never past the expiry.
    """
    extension, content_type = _INERT.get(meta.media_type) or _DOWNLOADS.get(meta.media_type) or _OPAQUE
    disposition = "inline" if meta.media_type in _INERT else "attachment"
    return {
        **validators(meta, now, max_age),
        "content-type": content_type or meta.media_type,
        "content-disposition": f'{disposition}; filename="{meta.ref}.{extension}"',
        "repr-digest": f"sha-256=:{_base64(meta.digest)}:",
    }


def validators(meta: ArtifactMeta, now: datetime, max_age: float) -> dict[str, str]:
    """What a cache needs, and all that it is told where it has the payload already."""
    left = max_age if meta.expires_at is None else min(max_age, (meta.expires_at - now).total_seconds())
    return {
        "accept-ranges": "bytes",
        "etag": entity_tag(meta),
        "last-modified": last_modified(meta),
        "cache-control": f"private, max-age={max(0, int(left))}, must-revalidate, no-transform",
    }


def _base64(digest: str) -> str:
    return base64.b64encode(bytes.fromhex(digest.removeprefix("sha256:"))).decode()
