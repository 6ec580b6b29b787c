"""What the proxy knows of a request, and which S3 operation it is."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qsl, urlsplit

import msgspec

__all__ = ["OPERATIONS", "ProxyRequest", "classify"]

OPERATIONS = (
    "put_object",
    "get_object",
    "head_object",
    "delete_object",
    "list",
    "create_multipart",
    "upload_part",
    "complete_multipart",
    "abort_multipart",
    "list_uploads",
    "head_bucket",
    "other",
)
"""The names that `classify` gives; ``other`` is everything that an artifact store does not ask for."""

_OF_OBJECT = {"PUT": "put_object", "GET": "get_object", "HEAD": "head_object", "DELETE": "delete_object"}
_OF_UPLOAD = {"POST": "complete_multipart", "DELETE": "abort_multipart"}
_LISTING = {
    "continuation-token",
    "delimiter",
    "encoding-type",
    "fetch-owner",
    "list-type",
    "marker",
    "max-keys",
    "prefix",
    "start-after",
}


class ProxyRequest(msgspec.Struct):
    """One request that the proxy met: noted when its head is there, and filled in as it goes.

    Attributes:
        operation: one of `OPERATIONS`.
        method: as ``PUT``.
        path: with the query, as the client wrote it.
        headers: the request's, by name in lower case, without credentials and signatures.
        status: what the client was answered; ``None``: nothing, so far.
        upstream_status: what the upstream answered; ``None``: it was not asked, or has not answered.
        request_bytes: how much of the request's body was passed on, or was taken and thrown away, in bytes of content
            (the framing of chunks does not count).
        response_bytes: how much of the answer's body was sent to the client, likewise; what the proxy itself answers
            does not count.
        faulted: whether a fault did strike. One that waits for a byte that never came did not.
        ended: whether the proxy is done with it.
    """

    operation: str
    method: str
    path: str
    headers: Mapping[str, str] = {}
    status: int | None = None
    upstream_status: int | None = None
    request_bytes: int = 0
    response_bytes: int = 0
    faulted: bool = False
    ended: bool = False


def classify(method: str, path: str, headers: Mapping[str, str] | None = None) -> str:
    """Return which of `OPERATIONS` a path-style S3 request is (``/bucket/key``, as clients ask a server by address).

    Args:
        method: as ``PUT``.
        path: with the query.
        headers: by name in lower case: a copy is told from a put by its header.
    """
    parts = urlsplit(path)
    bucket, _, key = parts.path.lstrip("/").partition("/")
    asked = {
        name
        for name, _ in parse_qsl(parts.query, keep_blank_values=True)
        if name not in ("x-id", "versionId") and not name.lower().startswith(("x-amz-", "response-"))
    }
    operation: str | None = None
    if not bucket or "x-amz-copy-source" in (headers or {}):
        pass
    elif key:
        if not asked:
            operation = _OF_OBJECT.get(method)
        elif asked == {"uploads"} and method == "POST":
            operation = "create_multipart"
        elif asked == {"uploadId", "partNumber"} and method == "PUT":
            operation = "upload_part"
        elif asked == {"uploadId"}:
            operation = _OF_UPLOAD.get(method)
    elif method == "HEAD" and not asked:
        operation = "head_bucket"
    elif method == "GET":
        if "uploads" in asked:
            operation = "list_uploads"
        elif asked <= _LISTING:
            operation = "list"
    return operation or "other"
