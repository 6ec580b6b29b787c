"""Where the doctor works: a folder of its own in the bucket, and requests whose refusals are answers.

Laws:

* A request that changes something is not cut short by a cancellation, but by its own deadline alone. So nothing is
  under way any more when the folder is cleaned, and nothing appears in it afterwards.
* Every key and every upload is noted before it can be there.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import anyio
import msgspec

from coatcheck.artifacts.findings import Finding
from coatcheck.artifacts.s3.body import Body
from coatcheck.artifacts.s3.client import Client
from coatcheck.artifacts.s3.errors import Refusal
from coatcheck.artifacts.s3.keys import Generations, Keys
from coatcheck.artifacts.s3.parallel import gathered
from coatcheck.artifacts.s3.requests import Requests
from coatcheck.artifacts.s3.settings import S3Settings
from coatcheck.errors import StoreUnavailable

__all__ = ["DOCTORS", "Bench", "Reply"]

DOCTORS = "doctor.d/"
"""Below the store's prefix, what begins so is a doctor's."""

_N = TypeVar("_N")
_REFUSALS = tuple(range(300, 600))
_CLEANING_TIME = 20.0  # seconds
_QUICK = 10.0
_SMALL = 1 << 16  # bytes, and more than any object of the doctor's but those whose size is said
_PATIENT = 30.0


class Reply(msgspec.Struct, frozen=True):
    """What a server answered.

    Attributes:
        status: of HTTP.
        code: of S3's error; empty where it did it.
        said: the answer as botocore reads it; empty where it refused.
    """

    status: int
    code: str = ""
    said: dict[str, Any] = {}

    @property
    def done(self) -> bool:
        """Whether the server did what it was asked for."""
        return self.status < 300

    @property
    def denied(self) -> bool:
        """Whether the credentials do not permit it."""
        return self.status == 403

    def __str__(self) -> str:
        named = self.code and self.code != str(self.status)
        return f"{self.status} {self.code}" if named else str(self.status)


class Bench:
    """The doctor's folder, on one client.

    Args:
        client: aiobotocore's, which tries once.
        settings: the store's.

    Attributes:
        keys: the store's.
        root: what all keys that the doctor makes begin with.
    """

    def __init__(self, client: Client, settings: S3Settings) -> None:
        self.client: Client = client
        self.settings: S3Settings = settings
        self.keys: Keys = Keys(settings.prefix, Generations(None))
        self.root: str = f"{self.keys.root}{DOCTORS}{secrets.token_hex(8)}/"
        timeout = settings.connection.timeout
        self.requests: Requests = Requests(client, _within(settings, min(timeout, _QUICK)))
        self._patient = Requests(client, _within(settings, min(4 * timeout, _PATIENT)))
        self._made: set[str] = set()
        self._uploads: set[tuple[str, str]] = set()

    def key(self, name: str) -> str:
        """The key of an object of the doctor's. It is noted, and removed in the end."""
        key = self.root + name
        self._made.add(key)
        return key

    async def ask(self, task: str, operation: str, *, patient: bool = False, size: int = 0, **words: Any) -> Reply:
        """Make one request of the bucket that changes nothing.

        Args:
            task: what for, as it fits behind "could not". operation: the client's method. words: its arguments.
            patient: whether the server may take its time.
            size: bytes that travel, which take time.

        Raises:
            StoreUnavailable: there was no answer, or not in time.
        """
        requests = self._patient if patient else self.requests
        answer = await requests.ask(task, operation, _REFUSALS, size=size, **words)
        if isinstance(answer, Refusal):
            return Reply(answer.status, answer.code)
        return Reply(answer["ResponseMetadata"]["HTTPStatusCode"], said=answer)

    async def change(self, task: str, operation: str, **words: Any) -> Reply:
        """Make one request that changes something, as `ask`. A caller that is cancelled waits for its end."""
        replies = []
        with anyio.CancelScope(shield=True):
            replies.append(await self.ask(task, operation, **words))
        return replies[0]

    async def put(
        self,
        name: str,
        content: bytes = b"coatcheck",
        *,
        sha256: str | None = None,
        patient: bool = False,
        **words: Any,
    ) -> Reply:
        """Store an object of the doctor's.

        Args:
            sha256: the hash that signs it, where it is to be another than the content's.
            words: more arguments of PutObject.
        """
        body = Body([content], sha256 or hashlib.sha256(content).hexdigest())
        said = {"Key": self.key(name), "Body": body, "ContentLength": len(content), **words}
        return await self.change("put an object", "put_object", size=len(content), patient=patient, **said)

    async def get(self, name: str, *, size: int = 0, **words: Any) -> tuple[Reply, bytes]:
        """An object of the doctor's with its bytes, as far as there are any."""
        task = "get an object"
        reply = await self.ask(task, "get_object", size=size, Key=self.root + name, **words)
        if not reply.done:
            return reply, b""
        async with reply.said["Body"] as stream:
            return reply, await self.requests.read_all(stream, max(size, _SMALL))

    async def begin(self, name: str, **words: Any) -> tuple[Reply, str]:
        """Begin an upload: its id."""
        key = self.key(name)
        reply = await self.change("begin an upload", "create_multipart_upload", Key=key, **words)
        id = str(reply.said.get("UploadId") or "")
        if id:
            self._uploads.add((key, id))
        return reply, id

    async def part(self, name: str, id: str, number: int, content: bytes, **words: Any) -> tuple[Reply, dict[str, Any]]:
        """Send a part, and how the end of the upload names it."""
        reply = await self.change(
            "store a part",
            "upload_part",
            size=len(content),
            Key=self.key(name),
            UploadId=id,
            PartNumber=number,
            Body=Body([content], hashlib.sha256(content).hexdigest()),
            ContentLength=len(content),
            **words,
        )
        return reply, {"ETag": reply.said.get("ETag"), "PartNumber": number}

    async def complete(self, name: str, id: str, parts: Sequence[dict[str, Any]], **words: Any) -> Reply:
        """End an upload with an object."""
        return await self.change(
            "end an upload",
            "complete_multipart_upload",
            patient=True,
            Key=self.key(name),
            UploadId=id,
            MultipartUpload={"Parts": list(parts)},
            **words,
        )

    async def abort(self, name: str, id: str) -> Reply:
        """End an upload without one."""
        return await self.change("abort an upload", "abort_multipart_upload", Key=self.root + name, UploadId=id)

    async def clean(self) -> Finding:
        """Remove all that the doctor made, also where the caller is cancelled. Never raises."""
        left, problem = "", "it did not end in time"
        with anyio.move_on_after(_CLEANING_TIME, shield=True):
            try:
                left, problem = await self._clean(), ""
            except StoreUnavailable as error:
                problem = str(error)
        if not problem and not left:
            return Finding("cleaning", "ok", "nothing is left of the examination")
        seen = problem or left
        where = f"{DOCTORS}{self.root.split('/')[-2]}/"
        return Finding(
            "cleaning", "failed", seen, f"remove what lies under {where} of the prefix, or see its cause above"
        )

    async def _clean(self) -> str:
        """Remove it, and say what is left."""
        keys, uploads = set(self._made), set(self._uploads)
        keys.update(await self._list("list_objects_v2", "Contents", lambda row: row["Key"]))
        uploads.update(await self._list("list_multipart_uploads", "Uploads", lambda row: (row["Key"], row["UploadId"])))

        async def end(upload: tuple[str, str]) -> bool:
            key, id = upload
            return _is_gone(await self.ask("abort an upload", "abort_multipart_upload", Key=key, UploadId=id))

        async def remove(key: str) -> bool:
            return _is_gone(await self.ask("delete an object", "delete_object", Key=key))

        refused = (await gathered(end, sorted(uploads)) + await gathered(remove, sorted(keys))).count(False)
        objects = len(await self._list("list_objects_v2", "Contents", lambda row: row["Key"]))
        opened = len(await self._list("list_multipart_uploads", "Uploads", lambda row: row["Key"]))
        if refused and not objects + opened:  # which cannot be listed, perhaps
            return f"{refused} of {len(keys) + len(uploads)} things could not be removed"
        counts = ((objects, "objects"), (opened, "uploads"))
        return " and ".join(f"{count} {what}" for count, what in counts if count)

    async def _list(self, operation: str, rows: str, name: Callable[[dict[str, Any]], _N]) -> list[_N]:
        """What lies in the folder; nothing where that cannot be listed."""
        reply = await self.ask("list what the doctor made", operation, Prefix=self.root)
        return [name(row) for row in reply.said.get(rows) or () if str(row["Key"]).startswith(self.root)]


def _is_gone(reply: Reply) -> bool:
    return reply.done or reply.status == 404


def _within(settings: S3Settings, timeout: float) -> S3Settings:
    connection = msgspec.structs.replace(settings.connection, timeout=timeout)
    return msgspec.structs.replace(settings, connection=connection)
