"""Who places bytes on S3: coatcheck's store, and what else one would use from an event loop, each in its best form.

A peer is given a key for every body; the store finds its own. Streams are hashed by everybody (`Plain` excepted), and
come from the event loop: a peer that blocks is fed through a `Handover`, in a worker thread.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import importlib.util
from collections.abc import AsyncIterator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from typing import Any, ClassVar, Self

from _s3_measure import Handover, source
from _s3_servers import REGION, Server

import coatcheck as cc

__all__ = ["PEERS", "Coatcheck", "Peer"]

PART = 8 << 20
IN_FLIGHT = 4
READ = 256 << 10
WORDS: dict[str, Any] = {"kind": "bench/item", "media_type": "application/octet-stream"}


class Peer:
    """One way to S3, open as long as the block ``async with peer`` runs.

    Args:
        server: where to.
        prefix: under which its keys are.
        connections: as many as it may have open.
    """

    name: ClassVar[str]
    module: ClassVar[str]

    def __init__(self, server: Server, prefix: str, connections: int) -> None:
        self.server = server
        self.prefix = prefix
        self.connections = connections
        self.stack = AsyncExitStack()

    @classmethod
    def missing(cls) -> bool:
        """Whether what it needs is not installed."""
        return importlib.util.find_spec(cls.module) is None

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stack.aclose()

    def key(self, name: str) -> str:
        return f"{self.prefix}/{name}"

    async def open(self) -> None:
        raise NotImplementedError

    async def put(self, key: str, data: bytes) -> bool | None:
        """Place one body; whether it was new, where that is known."""
        raise NotImplementedError

    async def put_many(self, bodies: Iterable[tuple[str, bytes]], at_once: int) -> list[bool | None]:
        """Place them all, so many at a time."""
        queue, told = iter(bodies), []

        async def work() -> None:
            for key, data in queue:
                told.append(await self.put(key, data))

        await asyncio.gather(*(work() for _ in range(at_once)))
        return told

    async def stream(self, key: str, size: int) -> str | None:
        """Place a stream whose length nobody says; its SHA-256, or ``None`` where it was not asked for."""
        raise NotImplementedError

    def read(self, key: str, start: int, end: int | None) -> AsyncIterator[bytes]:
        """An object, or a part of it, piece by piece."""
        raise NotImplementedError

    async def delete(self, key: str) -> None:
        """Remove what `stream` placed."""


class Coatcheck(Peer):
    """The store; its keys are made from the content, so ``key`` is a ref where something is read."""

    name = "coatcheck"
    module = "aiobotocore"

    async def open(self) -> None:
        self.scope = cc.Scope(tenant="bench", principal="dana", conversation="c-42")
        self.refs: dict[str, str] = {}
        self.store = await self.stack.enter_async_context(
            cc.S3Store(
                self.server.bucket,
                prefix=self.prefix,
                endpoint_url=self.server.endpoint,
                region=REGION,
                access_key_id=self.server.access_key,
                secret_access_key=self.server.secret_key,
                part_size=PART,
                concurrency=IN_FLIGHT,
                connections=self.connections,
            )
        )

    async def put(self, key: str, data: bytes) -> bool | None:
        return (await self.store.put(self.scope, data, **WORDS)).created

    async def stream(self, key: str, size: int) -> str | None:
        meta = (await self.store.put_stream(self.scope, source(size), **WORDS)).meta
        self.refs[key] = meta.ref
        return meta.digest.removeprefix("sha256:")

    async def read(self, key: str, start: int, end: int | None) -> AsyncIterator[bytes]:
        async with self.store.open(self.scope, key, start, end) as reader:
            if reader is None:
                raise AssertionError(f"nothing is stored as {key}")
            async for chunk in reader:
                yield chunk

    async def delete(self, key: str) -> None:
        await self.store.delete(self.scope, self.refs.pop(key))


class Aiobotocore(Peer):
    """aiobotocore as its documentation shows it: bodies are bytes, the settings are the default ones."""

    name = "aiobotocore"
    module = "aiobotocore"
    settings: ClassVar[dict[str, Any]] = {}

    async def open(self) -> None:
        session = importlib.import_module("aiobotocore.session").get_session()
        config = importlib.import_module("aiobotocore.config").AioConfig(
            max_pool_connections=self.connections, **self.settings
        )
        self.client = await self.stack.enter_async_context(
            session.create_client("s3", region_name=REGION, endpoint_url=self.server.endpoint, config=config)
        )

    async def put(self, key: str, data: bytes) -> bool | None:
        await self.client.put_object(Bucket=self.server.bucket, Key=self.key(key), Body=data)
        return None

    def body(self, pieces: Sequence[bytes]) -> dict[str, Any]:
        return {"Body": b"".join(pieces)}

    async def stream(self, key: str, size: int) -> str | None:
        digest = hashlib.sha256()

        async def hashed() -> AsyncIterator[bytes]:
            async for chunk in source(size):
                digest.update(chunk)
                yield chunk

        await self.multipart(key, hashed())
        return digest.hexdigest()

    async def multipart(self, key: str, chunks: AsyncIterator[bytes]) -> None:
        where = {"Bucket": self.server.bucket, "Key": self.key(key)}
        upload = (await self.client.create_multipart_upload(**where))["UploadId"]
        room, tasks, pieces, held = asyncio.Semaphore(IN_FLIGHT), list[asyncio.Task[dict[str, Any]]](), list[bytes](), 0

        async def send(number: int, body: dict[str, Any]) -> dict[str, Any]:
            try:
                sent = await self.client.upload_part(**where, UploadId=upload, PartNumber=number, **body)
                return {"PartNumber": number, "ETag": sent["ETag"]}
            finally:
                body.clear()
                room.release()

        async for chunk in chunks:
            pieces.append(chunk)
            held += len(chunk)
            if held >= PART:
                await room.acquire()
                tasks.append(asyncio.create_task(send(len(tasks) + 1, self.body(pieces))))
                pieces, held = [], 0
        if pieces:
            await room.acquire()
            tasks.append(asyncio.create_task(send(len(tasks) + 1, self.body(pieces))))
        parts = await asyncio.gather(*tasks)
        await self.client.complete_multipart_upload(**where, UploadId=upload, MultipartUpload={"Parts": parts})

    async def read(self, key: str, start: int, end: int | None) -> AsyncIterator[bytes]:
        part = {} if end is None else {"Range": f"bytes={start}-{end - 1}"}
        answer = await self.client.get_object(Bucket=self.server.bucket, Key=key, **part)
        async with answer["Body"] as body:
            if end is not None:
                yield await body.read()
                return
            async for chunk in body.iter_chunks(READ):
                yield chunk

    async def delete(self, key: str) -> None:
        await self.client.delete_object(Bucket=self.server.bucket, Key=self.key(key))


class _Pieces:
    """A body that is sent piece by piece and can be sent again."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece

    async def read(self, size: int = -1) -> bytes:
        return b"".join(self._pieces)

    def tell(self) -> int:
        return 0

    def seek(self, offset: int, whence: int = 0) -> int:
        return 0


class Plain(Aiobotocore):
    """A plain multipart upload with all that is superfluous left out: no hash, no checksum, no copy of a part."""

    name = "plain multipart"
    settings: ClassVar[dict[str, Any]] = {
        "request_checksum_calculation": "when_required",
        "response_checksum_validation": "when_required",
        "s3": {"payload_signing_enabled": False, "addressing_style": "path"},
        "user_agent": "bench",
    }

    async def open(self) -> None:
        await super().open()
        handlers = importlib.import_module("botocore.handlers")
        self.client.meta.events.unregister("before-call.s3", handlers.add_expect_header)

    def body(self, pieces: Sequence[bytes]) -> dict[str, Any]:
        return {"Body": _Pieces(pieces), "ContentLength": sum(map(len, pieces))}

    async def stream(self, key: str, size: int) -> str | None:
        await self.multipart(key, source(size))
        return None


class _Fed(Peer):
    """A peer that takes a stream in a thread."""

    async def stream(self, key: str, size: int) -> str | None:
        hand = Handover(PART)
        await asyncio.gather(hand.feed(source(size)), asyncio.to_thread(self.upload, self.key(key), hand))
        return hand.digest.hexdigest()

    def upload(self, key: str, hand: Handover) -> None:
        raise NotImplementedError


class Boto3(_Fed):
    """boto3 with s3transfer, in threads."""

    name = "boto3"
    module = "boto3"

    async def open(self) -> None:
        self.client = importlib.import_module("boto3").client(
            "s3",
            region_name=REGION,
            endpoint_url=self.server.endpoint,
            config=importlib.import_module("botocore.config").Config(max_pool_connections=self.connections),
        )
        self.stack.callback(self.client.close)

    def _put(self, key: str, data: bytes) -> bool | None:
        self.client.put_object(Bucket=self.server.bucket, Key=self.key(key), Body=data)
        return None

    async def put(self, key: str, data: bytes) -> bool | None:
        return await asyncio.to_thread(self._put, key, data)

    async def put_many(self, bodies: Iterable[tuple[str, bytes]], at_once: int) -> list[bool | None]:
        with ThreadPoolExecutor(at_once) as threads:
            loop = asyncio.get_running_loop()
            return await asyncio.gather(*(loop.run_in_executor(threads, self._put, key, data) for key, data in bodies))

    def upload(self, key: str, hand: Handover) -> None:
        config = importlib.import_module("boto3.s3.transfer").TransferConfig(
            multipart_chunksize=PART, max_concurrency=IN_FLIGHT
        )
        self.client.upload_fileobj(hand, self.server.bucket, key, Config=config)

    async def read(self, key: str, start: int, end: int | None) -> AsyncIterator[bytes]:
        body = (await asyncio.to_thread(self.client.get_object, Bucket=self.server.bucket, Key=key))["Body"]
        while chunk := await asyncio.to_thread(body.read, 1 << 20):
            yield chunk


class S3fs(_Fed):
    """s3fs: its async calls for single bodies, its file for a stream."""

    name = "s3fs"
    module = "s3fs"

    def _settings(self) -> dict[str, Any]:
        return {
            "endpoint_url": self.server.endpoint,
            "client_kwargs": {"region_name": REGION},
            "config_kwargs": {"max_pool_connections": self.connections},
            "skip_instance_cache": True,
        }

    async def open(self) -> None:
        self.files = importlib.import_module("s3fs").S3FileSystem(asynchronous=True, **self._settings())
        session = await self.files.set_session()
        self.stack.push_async_callback(session.close)

    async def put(self, key: str, data: bytes) -> bool | None:
        await self.files._pipe_file(f"{self.server.bucket}/{self.key(key)}", data)
        return None

    def upload(self, key: str, hand: Handover) -> None:
        files = importlib.import_module("s3fs").S3FileSystem(**self._settings())
        with files.open(f"{self.server.bucket}/{key}", "wb", block_size=PART) as file:
            for chunk in hand:
                file.write(chunk)


class Obstore(_Fed):
    """obstore: its async calls for single bodies, `put` in a thread for a stream, its fastest form."""

    name = "obstore"
    module = "obstore"

    async def open(self) -> None:
        self.obstore: Any = importlib.import_module("obstore")
        self.store = importlib.import_module("obstore.store").S3Store(
            self.server.bucket,
            endpoint=self.server.endpoint,
            region=REGION,
            access_key_id=self.server.access_key,
            secret_access_key=self.server.secret_key,
            virtual_hosted_style_request=False,
            client_options={"allow_http": True},
        )

    async def put(self, key: str, data: bytes) -> bool | None:
        await self.obstore.put_async(self.store, self.key(key), data, use_multipart=False)
        return None

    def upload(self, key: str, hand: Handover) -> None:
        self.obstore.put(self.store, key, iter(hand), chunk_size=PART, max_concurrency=IN_FLIGHT)

    async def read(self, key: str, start: int, end: int | None) -> AsyncIterator[bytes]:
        if end is not None:
            yield await self.obstore.get_range_async(self.store, key, start=start, end=end)
            return
        async for chunk in (await self.obstore.get_async(self.store, key)).stream(1 << 20):
            yield chunk


class Hashed(Obstore):
    """obstore, and the SHA-256 of what is read: as much as the store does when it reads."""

    name = "obstore, hashed"

    async def read(self, key: str, start: int, end: int | None) -> AsyncIterator[bytes]:
        digest = hashlib.sha256()
        async for chunk in super().read(key, start, end):
            digest.update(chunk)
            yield chunk


PEERS: dict[str, type[Peer]] = {
    peer.name: peer for peer in (Coatcheck, Aiobotocore, Plain, Boto3, S3fs, Obstore, Hashed)
}
