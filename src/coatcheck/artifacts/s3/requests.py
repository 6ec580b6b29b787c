"""The requests that a store makes, each within its deadline, and the one edge where a server's answer becomes ours.

A request is tried again by botocore, in whole, with a pause that grows and varies; never after it was cancelled. What
has no answer within the deadline, retries included, is `StoreUnavailable`: a server that accepts and says nothing would
hold a request for ever otherwise.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, Protocol, Self
from urllib.parse import urlsplit

import anyio
import msgspec
from anyio import CapacityLimiter

from coatcheck.artifacts.s3.body import Body
from coatcheck.artifacts.s3.client import Client
from coatcheck.artifacts.s3.errors import Place, Refusal, explain, refusal_of
from coatcheck.artifacts.s3.record import ENTRY
from coatcheck.artifacts.s3.settings import SLOWEST, S3Settings
from coatcheck.errors import CoatcheckError, StoreUnavailable

__all__ = ["Fetched", "Found", "Listed", "Requests", "Upload"]

_VOUCHED = 2.0  # seconds for which an answer proves that the bucket is there
_PAGE = 1000


class Found(msgspec.Struct, frozen=True):
    """An object, by what its headers say.

    Attributes:
        text: the record in its metadata, if there is one.
        etag: in quotes, as the server spells it. sha256: in base64, where the server keeps it.
        seen: the server's time when it said so, where it tells.
    """

    size: int
    text: str | None
    etag: str
    sha256: str | None
    seen: datetime | None = None


class Fetched(msgspec.Struct, frozen=True):
    """An object whose body is being read: ``body.read(size)``."""

    found: Found
    body: Any


class Listed(msgspec.Struct, frozen=True):
    """An object in a listing. ``modified`` is the server's time."""

    key: str
    size: int
    modified: datetime
    etag: str


class Upload(msgspec.Struct, frozen=True):
    """A multipart upload that was begun and has not ended. ``begun`` is the server's time."""

    key: str
    id: str
    begun: datetime


class _Readable(Protocol):
    async def read(self, size: int) -> bytes: ...


class _Nothing:
    async def read(self, size: int) -> bytes:
        return b""


class _HttpxBody:
    """A body on trio. The one of aiobotocore leaves iterators behind when it is left early, which trio warns of."""

    def __init__(self, response: Any) -> None:
        self._response = response
        self._chunks = response.aiter_raw()
        self._rest = b""
        length = response.headers.get("content-length", "")
        self._left = int(length) if length.isdecimal() else -1

    async def read(self, size: int) -> bytes:
        """At most so many bytes, as they come."""
        if not self._rest:
            self._rest = await anext(self._chunks, b"")
            self._left -= len(self._rest)
            if self._left == 0:  # seen to its end, the connection serves again
                await anext(self._chunks, b"")
        data, self._rest = self._rest[:size], self._rest[size:]
        return data

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        with anyio.CancelScope(shield=True):
            await self._response.aclose()
            with suppress(Exception):  # asked once more, the iterators within find that it is closed, and end
                await anext(self._chunks, b"")
            await self._chunks.aclose()


class Requests:
    """What one store asks of its bucket on one event loop.

    Args:
        client: aiobotocore's.
        settings: the store's.
    """

    def __init__(self, client: Client, settings: S3Settings) -> None:
        connection = settings.connection
        endpoint = urlsplit(client.meta.endpoint_url)
        self.place: Place = Place(
            settings.bucket, f"{endpoint.scheme}://{endpoint.netloc}", str(client.meta.region_name)
        )
        self.timeout: float = connection.timeout
        self._client = client
        self._bucket = settings.bucket
        self._put_args = settings.put_args
        self._slots = CapacityLimiter(connection.connections)
        self._bodies = CapacityLimiter(connection.connections)
        self._sending = 0  # bytes of all requests that are under way, or wait for a connection
        self._vouched = -_VOUCHED
        self._tells_sums = True  # until the server refuses to

    async def put(
        self,
        key: str,
        body: Body,
        *,
        text: str | None,
        content_type: str,
        if_absent: bool = False,
        checksum: str | None = None,
        expected: tuple[int, ...] = (409, 412),
        task: str = "store an artifact",
    ) -> Refusal | None:
        """Store one object.

        Args:
            text: its record. if_absent: only where there is none, if the server honours that.
            checksum: its SHA-256, for the server to compare; ``None``: it gets none.
            expected: statuses of refusals that are answers: of the condition, and of a conflict with another write.

        Returns:
            ``None``; or what the server refused.
        """
        arguments: dict[str, Any] = {**self._put_args, "ContentType": content_type, "ContentLength": body.length}
        if checksum is not None:
            arguments["ChecksumSHA256"] = checksum
        if text is not None:
            arguments["Metadata"] = {ENTRY: text}
        if if_absent:
            arguments["IfNoneMatch"] = "*"
        answer = await self.ask(task, "put_object", expected, size=body.length, Key=key, Body=body, **arguments)
        return answer if isinstance(answer, Refusal) else None

    async def head(self, key: str, task: str = "look for an artifact") -> Found | None:
        """What is known of an object, or ``None``."""
        sums: dict[str, Any] = {"ChecksumMode": "ENABLED"} if self._tells_sums else {}
        answer = await self.ask(task, "head_object", (400, 404) if sums else (404,), Key=key, **sums)
        if isinstance(answer, Refusal) and answer.status == 400:  # perhaps since it knows nothing of sums
            answer = await self.ask(task, "head_object", (404,), Key=key)
            self._tells_sums = False
        if isinstance(answer, Refusal):
            await self._check_bucket(answer, task)
            return None
        return _found(answer, int(self._told(answer, "ContentLength", task)))

    @asynccontextmanager
    async def fetch(
        self, key: str, start: int = 0, end: int | None = None, *, task: str = "read an artifact"
    ) -> AsyncIterator[Fetched | None]:
        """An object with its body, or a part of it, which must not be empty; ``None``: there is none.

        Its connection is free again at the end of the block, whatever was read.
        """
        arguments: dict[str, Any] = {}
        if start or end is not None:
            arguments["Range"] = f"bytes={start}-{'' if end is None else end - 1}"
        reading = object()  # one task may read several bodies at once
        with self._deadline(task, self.timeout, f"all {self._bodies.total_tokens:g} readers of the store are open"):
            await self._bodies.acquire_on_behalf_of(reading)
        try:
            # A body that fails is read again from where it broke; and no limit of requests is held while it is read.
            answer = await self.ask(task, "get_object", (404, 416), limit=False, Key=key, **arguments)
            if isinstance(answer, Refusal):
                if answer.status == 404:
                    await self._check_bucket(answer, task)
                    yield None
                    return
                found = await self.head(key, task)  # the part is not there; the caller sees by the size that it is not
                yield None if found is None else Fetched(found, _Nothing())
                return
            stream: Any = answer["Body"]
            if arguments and not str(answer.get("ContentRange") or "").startswith(f"bytes {start}-"):
                with suppress(Exception):
                    await stream.aclose()
                raise StoreUnavailable(
                    f"S3 could not {task}: {self.place} answers with another part than was asked for"
                )
            if hasattr(stream.raw_stream, "aiter_raw"):
                stream = _HttpxBody(stream.raw_stream)
            async with stream:
                yield Fetched(_found(answer, self._whole_size(answer, task)), stream)
        finally:
            self._bodies.release_on_behalf_of(reading)

    async def read(self, body: _Readable, most: int) -> bytes:
        """The next bytes of a body, as they come; nothing: it has ended.

        The transport has a timeout for silence. A deadline of ours as well would cost as much as a piece does.

        Raises:
            StoreUnavailable: it broke off, or nothing came in time.
        """
        with self._edge("read an artifact"):
            return await body.read(most)
        raise AssertionError("unreachable")

    async def read_all(self, body: _Readable, most: int) -> bytes:
        """What is left of a body, ``most`` bytes of it at most.

        Raises:
            StoreUnavailable: it broke off, or did not come in time.
        """
        task = "read an artifact"
        pieces: list[bytes] = []
        with self._deadline(task, self.timeout + most / SLOWEST), self._edge(task):
            while most > 0 and (piece := await body.read(most)):
                pieces.append(piece)
                most -= len(piece)
        return b"".join(pieces)

    async def delete(self, key: str, task: str = "delete an artifact") -> None:
        """Remove an object. Where there is none, nothing happens."""
        await self.ask(task, "delete_object", (404,), Key=key)

    async def listing(self, prefix: str, task: str = "list artifacts") -> AsyncGenerator[Listed, None]:
        """Every object whose key begins with ``prefix``."""
        token: dict[str, Any] = {}
        while True:
            page = await self.ask(task, "list_objects_v2", Prefix=prefix, MaxKeys=_PAGE, **token)
            for row in page.get("Contents") or ():
                yield Listed(row["Key"], row["Size"], row["LastModified"], row.get("ETag") or "")
            if not page.get("IsTruncated") or not page.get("NextContinuationToken"):
                return
            token = {"ContinuationToken": page["NextContinuationToken"]}

    async def begin(self, key: str, *, text: str | None, content_type: str, checksums: bool) -> str:
        """Begin a multipart upload: its id."""
        arguments: dict[str, Any] = {**self._put_args, "ContentType": content_type}
        if text is not None:
            arguments["Metadata"] = {ENTRY: text}
        if checksums:
            arguments["ChecksumAlgorithm"] = "CRC32"
        answer = await self.ask("begin an upload", "create_multipart_upload", Key=key, **arguments)
        return str(self._told(answer, "UploadId", "begin an upload"))

    async def put_part(self, key: str, upload: str, number: int, body: Body, crc32: str | None) -> str:
        """Send one part: its tag."""
        arguments: dict[str, Any] = {} if crc32 is None else {"ChecksumCRC32": crc32}
        task = "store a part of an artifact"
        answer = await self.ask(
            task,
            "upload_part",
            size=body.length,
            Key=key,
            UploadId=upload,
            PartNumber=number,
            Body=body,
            ContentLength=body.length,
            **arguments,
        )
        return str(self._told(answer, "ETag", task))

    async def complete(self, key: str, upload: str, parts: list[dict[str, Any]], *, if_absent: bool) -> Refusal | None:
        """End a multipart upload: what the server refused, if it did; 404 where it does not know the upload."""
        arguments: dict[str, Any] = {"IfNoneMatch": "*"} if if_absent else {}
        answer = await self.ask(
            "end an upload",
            "complete_multipart_upload",
            (404, 409, 412),
            # Servers put the parts together now, which some do by copying them.
            size=len(parts) * SLOWEST,
            Key=key,
            UploadId=upload,
            MultipartUpload={"Parts": parts},
            **arguments,
        )
        if isinstance(answer, Refusal) and answer.code == "NoSuchBucket":
            raise self.unavailable(answer, "end an upload")
        return answer if isinstance(answer, Refusal) else None

    async def abort(self, key: str, upload: str) -> bool:
        """End a multipart upload without an object: whether the server knew it."""
        answer = await self.ask(
            "abort an upload", "abort_multipart_upload", (404,), limit=False, Key=key, UploadId=upload
        )
        return not isinstance(answer, Refusal)

    async def uploads(self, prefix: str) -> AsyncGenerator[Upload, None]:
        """Every multipart upload that has not ended, whose key begins with ``prefix``."""
        marker: dict[str, Any] = {}
        while True:
            page = await self.ask("list uploads", "list_multipart_uploads", Prefix=prefix, MaxUploads=_PAGE, **marker)
            for row in page.get("Uploads") or ():
                if str(row["Key"]).startswith(prefix):
                    yield Upload(row["Key"], row["UploadId"], row["Initiated"])
            if not page.get("IsTruncated") or not page.get("NextKeyMarker"):
                return
            marker = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page.get("NextUploadIdMarker") or ""}

    async def ask(
        self,
        task: str,
        operation: str,
        expected: tuple[int, ...] = (),
        *,
        size: int = 0,
        limit: bool = True,
        **words: Any,
    ) -> Any:
        """Make one request of the bucket.

        Args:
            task: what for, as it fits behind "could not".
            operation: the client's method. words: its arguments, but for the bucket.
            expected: statuses of refusals that are answers here.
            size: bytes that are sent, which take time. limit: whether it counts among those that are under way at once.

        Returns:
            The answer, or a `Refusal` with one of the expected statuses.
        """
        self._sending += size
        try:
            if limit:
                await self._take_slot(task)
            try:
                with self._deadline(task, self.timeout + size / SLOWEST):
                    return await self._send(task, operation, expected, words)
            finally:
                if limit:
                    self._slots.release()
        finally:
            self._sending -= size
        raise AssertionError("unreachable")

    async def _take_slot(self, task: str) -> None:
        try:
            self._slots.acquire_nowait()
        except anyio.WouldBlock:
            # Those that have the connections may take as long as what they send.
            seconds = self.timeout + self._sending / SLOWEST
            with self._deadline(task, seconds, f"all {self._slots.total_tokens:g} connections are in use"):
                await self._slots.acquire()

    async def _send(self, task: str, operation: str, expected: tuple[int, ...], words: dict[str, Any]) -> Any:
        with self._edge(task, expected) as refused:
            answer = await getattr(self._client, operation)(Bucket=self._bucket, **words)
            self._vouched = time.monotonic()
            return answer
        refusal = refused[0]
        if refusal.status not in (403, 404):
            self._vouched = time.monotonic()
        return refusal

    def unavailable(self, refusal: Refusal, task: str) -> StoreUnavailable:
        """The error for a refusal that is no answer."""
        return explain(refusal, task, self.place)

    def _told(self, answer: Any, field: str, task: str) -> Any:
        """What an answer says of itself, which no answer may leave out."""
        said = answer.get(field)
        if said is None:
            raise StoreUnavailable(f"S3 could not {task}: {self.place} answered without {field}")
        return said

    def _whole_size(self, answer: Any, task: str) -> int:
        """The size of an object of which a part may have come."""
        _, _, total = (answer.get("ContentRange") or "").rpartition("/")
        return int(total if total.isdigit() else self._told(answer, "ContentLength", task))

    async def _check_bucket(self, refusal: Refusal, task: str) -> None:
        """After a 404: that it is the object that is missing, and not the bucket, which an answer without a body does
        not tell (law: `cases.md` J6).
        """
        if refusal.code == "NoSuchBucket":
            raise self.unavailable(refusal, task)
        if refusal.code == "NoSuchKey" or time.monotonic() - self._vouched < _VOUCHED:
            return
        answer = await self.ask(task, "head_bucket", (403, 404))
        if isinstance(answer, Refusal) and answer.status == 404:
            raise self.unavailable(Refusal(404, "NoSuchBucket"), task)
        self._vouched = time.monotonic()  # whoever may not look at the bucket is told that it is there

    @contextmanager
    def _deadline(self, task: str, seconds: float, waiting: str | None = None) -> Iterator[None]:
        with anyio.move_on_after(seconds) as scope:
            yield
        if scope.cancelled_caught:
            problem = f"{self.place.endpoint} did not answer" if waiting is None else f"{waiting}; raise connections"
            raise StoreUnavailable(f"S3 could not {task} within {seconds:.3g} seconds: {problem}") from None

    @contextmanager
    def _edge(self, task: str, expected: tuple[int, ...] = ()) -> Iterator[list[Refusal]]:
        """What is raised inside becomes an error of ours, or, where it is expected, is what the block is given."""
        refused: list[Refusal] = []
        problem: StoreUnavailable | None = None
        try:
            yield refused
        except CoatcheckError:
            raise
        except Exception as error:  # noqa: BLE001 - transports and parsers raise what they like
            refusal = refusal_of(error)
            if refusal is not None and refusal.status in expected:
                refused.append(refusal)
            else:
                problem = explain(error, task, self.place)
        if problem is not None:  # nothing foreign is shown with it: its text may hold a key
            raise problem from None


def _found(answer: Any, size: int) -> Found:
    metadata = answer.get("Metadata") or {}
    text = next((value for name, value in metadata.items() if name.lower() == ENTRY), None)
    return Found(size, text, answer.get("ETag") or "", answer.get("ChecksumSHA256"), _date(answer))


def _date(answer: Any) -> datetime | None:
    headers = answer["ResponseMetadata"].get("HTTPHeaders") or {}
    try:
        return parsedate_to_datetime(headers["date"])
    except (KeyError, ValueError):
        return None
