"""An S3 server that throws bodies away: what is measured against it is the client.

    python _s3_sink.py        # prints its port; ends when its standard input does

It speaks enough of S3 for a store to live on it, and answers truly about everything but large bodies:

* PutObject with ``If-None-Match: *``, HeadObject, GetObject with ranges, DeleteObject, ListObjectsV2, and multipart
  uploads.
* Of an object it keeps size, metadata and type, and the bytes where they are at most ``KEPT_BYTES``. Of those it
  verifies the checksums too: a client that tries finds a server which honours conditions and checksums.
* Any other body reads as `pattern` from the start, over and over, which is what the benchmark's streams are made of. A
  key ``generated/<bytes>`` is there without having been put. All of it was written when the sink began.
* No signature is looked at.

``GET /-/usage`` tells the CPU seconds that it spent and the requests that it answered.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import functools
import hashlib
import itertools
import json
import os
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any
from urllib.parse import parse_qsl, unquote
from xml.sax.saxutils import escape

__all__ = ["KEPT_BYTES", "PATTERN_BYTES", "pattern"]

PATTERN_BYTES = 8 << 20
KEPT_BYTES = 16 << 10
READ_BYTES = 256 << 10
WRITE_BYTES = 1 << 20
BEGAN = datetime.now(UTC)

Headers = dict[str, str]


@functools.cache
def pattern() -> bytes:
    """The bytes that every large body is made of, from its start, over and over."""
    return hashlib.shake_128(b"coatcheck").digest(PATTERN_BYTES)


class Stored:
    """What is known of one object."""

    def __init__(self, size: int, headers: Headers, etag: str, body: bytes | None = None) -> None:
        self.size = size
        self.etag = etag
        self.body = body
        self.shown = {
            name: value
            for name, value in headers.items()
            if name.startswith(("x-amz-meta-", "x-amz-checksum-sha256")) or name in {"content-type", "cache-control"}
        }


class Upload:
    """A multipart upload that was begun."""

    def __init__(self, key: str, headers: Headers) -> None:
        self.key = key
        self.headers = headers
        self.parts: dict[int, int] = {}


class Bucket:
    """Everything that the sink remembers; there is one bucket, whatever it is called."""

    def __init__(self) -> None:
        self.objects: dict[str, Stored] = {}
        self.uploads: dict[str, Upload] = {}
        self.answered: Counter[str] = Counter()
        self._numbers = itertools.count(1)

    def name(self) -> str:
        """One that was not given before."""
        return f"{next(self._numbers):032x}"

    def find(self, key: str) -> Stored | None:
        folder, _, size = key.rpartition("/")
        if folder == "generated" and size.isdecimal():
            return Stored(int(size), {}, "0" * 32)
        return self.objects.get(key)


def usage() -> float:
    """CPU seconds of this process."""
    spent = resource.getrusage(resource.RUSAGE_SELF)
    return spent.ru_utime + spent.ru_stime


def refused(headers: Headers, body: bytes) -> str | None:
    """What a server says that verifies: the error's code, or ``None`` where every checksum fits."""
    sums: dict[str, Callable[[bytes], bytes]] = {
        "x-amz-checksum-crc32": lambda data: binascii.crc32(data).to_bytes(4, "big"),
        "x-amz-checksum-sha256": lambda data: hashlib.sha256(data).digest(),
        "content-md5": lambda data: hashlib.md5(data, usedforsecurity=False).digest(),
    }
    for name, compute in sums.items():
        if name in headers and base64.b64encode(compute(body)).decode() != headers[name]:
            return "BadDigest"
    signed = headers.get("x-amz-content-sha256", "")
    if len(signed) == 64 and hashlib.sha256(body).hexdigest() != signed:
        return "XAmzContentSHA256Mismatch"
    return None


class Sink(asyncio.BufferedProtocol):
    """One connection."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._writable = asyncio.Event()
        self._writable.set()
        self._view = memoryview(bytearray(READ_BYTES))
        self._unread = bytearray()
        self._left = 0
        self._head_only = False
        self._kept: bytearray | None = None
        self._request: tuple[str, str, dict[str, str], Headers] | None = None
        self._transport: Any = None
        self._sending: asyncio.Task[None] | None = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.set_write_buffer_limits(0)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        self._take(self._view[:nbytes])

    def _take(self, data: memoryview) -> None:
        while len(data):
            if self._request is None:
                self._unread += data
                end = self._unread.find(b"\r\n\r\n")
                if end < 0:
                    return
                data = memoryview(bytes(self._unread[end + 4 :]))
                head = bytes(self._unread[:end])
                self._unread.clear()
                self._begin(head)
            else:
                some = data[: self._left]
                if self._kept is not None:
                    self._kept += some
                self._left -= len(some)
                data = data[len(some) :]
            if self._request is not None and not self._left:
                self._answer()

    def _begin(self, head: bytes) -> None:
        first, *lines = head.decode("latin-1").split("\r\n")
        method, target, _ = first.split(" ", 2)
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        path, _, query = target.partition("?")
        _, _, key = unquote(path.partition("://")[2].partition("/")[2] if "://" in path else path[1:]).partition("/")
        if path == "/-/usage":
            key = path
        self._request = (method, key, dict(parse_qsl(query, keep_blank_values=True)), headers)
        self._left = int(headers.get("content-length", 0))
        self._kept = bytearray() if self._left <= KEPT_BYTES else None
        if "transfer-encoding" in headers:
            self._left = 0
            self._error(501, "NotImplemented")
            self._transport.close()
        elif headers.get("expect", "").lower() == "100-continue":
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _answer(self) -> None:
        if self._request is None:
            return
        (method, key, query, headers), self._request = self._request, None
        self._head_only = method == "HEAD"
        verbs = {"PUT": self._put, "POST": self._post, "DELETE": self._remove, "GET": self._get, "HEAD": self._get}
        verb = verbs.get(method)
        if key == "/-/usage":
            told = {"cpu": usage(), "seconds": time.perf_counter(), "answered": self._bucket.answered}
            self._say(200, json.dumps(told).encode())
        elif verb is None:
            self._error(501, "NotImplemented")
        else:
            verb(key, query, headers)

    def _say(self, status: int, body: bytes = b"", headers: Headers | None = None, length: int | None = None) -> None:
        lines = [f"HTTP/1.1 {status} -", f"content-length: {len(body) if length is None else length}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        self._transport.write("\r\n".join([*lines, "\r\n"]).encode("latin-1") + (b"" if self._head_only else body))

    def _error(self, status: int, code: str) -> None:
        text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{code}</Message></Error>"
        self._say(status, text.encode(), {"content-type": "application/xml"})

    def _xml(self, name: str, inner: str) -> None:
        text = f'<?xml version="1.0"?><{name} xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{inner}</{name}>'
        self._say(200, text.encode(), {"content-type": "application/xml"})

    def _put(self, key: str, query: dict[str, str], headers: Headers) -> None:
        bucket, etag = self._bucket, self._bucket.name()
        size = int(headers.get("content-length", 0))
        body = None if self._kept is None else bytes(self._kept)
        code = None if body is None else refused(headers, body)
        if not key:
            bucket.answered["CreateBucket"] += 1
            self._say(200)
        elif code is not None:
            self._error(400, code)
        elif "uploadId" in query:
            bucket.answered["UploadPart"] += 1
            upload = bucket.uploads.get(query["uploadId"])
            if upload is None or upload.key != key:
                self._error(404, "NoSuchUpload")
                return
            upload.parts[int(query["partNumber"])] = size
            self._say(200, headers={"etag": f'"{etag}"'})
        else:
            bucket.answered["PutObject"] += 1
            if headers.get("if-none-match") == "*" and key in bucket.objects:
                self._error(412, "PreconditionFailed")
                return
            bucket.objects[key] = Stored(size, headers, etag, body)
            self._say(200, headers={"etag": f'"{etag}"'})

    def _post(self, key: str, query: dict[str, str], headers: Headers) -> None:
        bucket = self._bucket
        if "uploads" in query:
            bucket.answered["CreateMultipartUpload"] += 1
            number = bucket.name()
            bucket.uploads[number] = Upload(key, headers)
            self._xml(
                "InitiateMultipartUploadResult",
                f"<Bucket>b</Bucket><Key>{escape(key)}</Key><UploadId>{number}</UploadId>",
            )
            return
        bucket.answered["CompleteMultipartUpload"] += 1
        upload = bucket.uploads.get(query.get("uploadId", ""))
        if upload is None or upload.key != key:
            self._error(404, "NoSuchUpload")
        elif headers.get("if-none-match") == "*" and key in bucket.objects:
            self._error(412, "PreconditionFailed")
        else:
            del bucket.uploads[query["uploadId"]]
            etag = f"{bucket.name()}-{len(upload.parts)}"
            bucket.objects[key] = Stored(sum(upload.parts.values()), upload.headers, etag)
            self._xml(
                "CompleteMultipartUploadResult",
                f"<Bucket>b</Bucket><Key>{escape(key)}</Key><ETag>&quot;{etag}&quot;</ETag>",
            )

    def _remove(self, key: str, query: dict[str, str], headers: Headers) -> None:
        if "uploadId" in query:
            self._bucket.answered["AbortMultipartUpload"] += 1
            self._bucket.uploads.pop(query["uploadId"], None)
        else:
            self._bucket.answered["DeleteObject"] += 1
            self._bucket.objects.pop(key, None)
        self._say(204)

    def _get(self, key: str, query: dict[str, str], headers: Headers) -> None:
        bucket, head = self._bucket, self._head_only
        if not key:
            if head or "location" in query:
                bucket.answered["HeadBucket"] += 1
                self._xml("LocationConstraint", "")
            elif "uploads" in query:
                bucket.answered["ListMultipartUploads"] += 1
                self._xml("ListMultipartUploadsResult", "<IsTruncated>false</IsTruncated>")
            else:
                bucket.answered["ListObjectsV2"] += 1
                self._list(query)
            return
        bucket.answered["HeadObject" if head else "GetObject"] += 1
        stored = bucket.find(key)
        if stored is None:
            self._error(404, "NoSuchKey")
            return
        start, end, status = 0, stored.size, 200
        asked = headers.get("range", "").removeprefix("bytes=")
        if asked:
            first, _, last = asked.partition("-")
            start = int(first) if first else max(0, stored.size - int(last))
            end = min(stored.size, int(last) + 1) if first and last else stored.size
            status = 206
            if start >= end:
                self._error(416, "InvalidRange")
                return
        told = {
            "etag": f'"{stored.etag}"',
            "last-modified": format_datetime(BEGAN, usegmt=True),
            "accept-ranges": "bytes",
        } | stored.shown
        if status == 206:
            told["content-range"] = f"bytes {start}-{end - 1}/{stored.size}"
        if stored.body is None and not head:
            told.pop("x-amz-checksum-sha256", None)  # the body is not the one that was put
        if head or stored.body is not None:
            body = b"" if head or stored.body is None else stored.body[start:end]
            self._say(status, body, told, length=end - start)
        else:
            self._say(status, headers=told, length=end - start)
            self._sending = asyncio.ensure_future(self._send(start, end))

    async def _send(self, start: int, end: int) -> None:
        body = memoryview(pattern())
        while start < end and not self._transport.is_closing():
            offset = start % PATTERN_BYTES
            piece = body[offset : offset + min(end - start, WRITE_BYTES)]
            self._transport.write(piece)
            start += len(piece)
            await self._writable.wait()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._writable.set()

    def _list(self, query: dict[str, str]) -> None:
        prefix, most = query.get("prefix", ""), int(query.get("max-keys", 1000))
        after = query.get("continuation-token") or query.get("start-after", "")
        keys = sorted(key for key in self._bucket.objects if key.startswith(prefix) and key > after)
        inner = [f"<KeyCount>{len(keys[:most])}</KeyCount><IsTruncated>{str(len(keys) > most).lower()}</IsTruncated>"]
        if len(keys) > most:
            inner.append(f"<NextContinuationToken>{escape(keys[most - 1])}</NextContinuationToken>")
        for key in keys[:most]:
            stored = self._bucket.objects[key]
            inner.append(
                f"<Contents><Key>{escape(key)}</Key><LastModified>{BEGAN:%Y-%m-%dT%H:%M:%S.000Z}</LastModified>"
                f"<ETag>&quot;{stored.etag}&quot;</ETag><Size>{stored.size}</Size></Contents>"
            )
        self._xml("ListBucketResult", "".join(inner))


async def serve() -> None:
    """On a free port of 127.0.0.1, until the standard input ends."""
    bucket, over = Bucket(), asyncio.Event()
    loop = asyncio.get_running_loop()
    pattern()
    server = await loop.create_server(lambda: Sink(bucket), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)

    def heard() -> None:
        if not os.read(sys.stdin.fileno(), 4096):
            over.set()

    loop.add_reader(sys.stdin.fileno(), heard)
    await over.wait()
    server.close()


if __name__ == "__main__":
    asyncio.run(serve())
