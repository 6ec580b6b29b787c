"""What the suites of faults share: a store behind a fault proxy, streams of three parts, and a look at what is left."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import anyio
import msgspec
import pytest
from anyio import to_thread

from coatcheck import S3Store, Scope, StoreUnavailable
from coatcheck.artifacts.meta import utc_now
from coatcheck.artifacts.notices import UploadLeft
from coatcheck.artifacts.s3.record import POINTER
from coatcheck.scope import scope_segments
from coatcheck.testing.proxy import FaultProxy, ProxyFault, ProxyRequest
from coatcheck.testing.trial import ManualClock
from tests.s3._servers import ACCESS_KEY, SECRET_KEY, Place, keys, raw_head, uploads

__all__ = [
    "DAY",
    "MIB",
    "PART",
    "PAYLOAD",
    "SCOPE",
    "WORDS",
    "Faulty",
    "chunks_of",
    "data_objects",
    "every",
    "faulty",
    "left_in",
    "of_scope",
    "onwards",
    "pointers",
    "scope_of",
    "unavailable",
]

MIB = 1 << 20
PART = 5 * MIB
DAY = 25 * 3600.0  # seconds after which a sweep takes what a crash left
PAYLOAD = random.Random(5).randbytes(2 * PART + 70_001)
"""Three parts, no two stretches of which are alike."""

TENANT, PRINCIPAL = "the-tenant-of-these-tests", "the-principal-of-these-tests"
WORDS: dict[str, Any] = {"kind": "tool-result/give", "media_type": "application/octet-stream"}


def scope_of(conversation: str) -> Scope:
    """A scope of its own."""
    return Scope(tenant=TENANT, principal=PRINCIPAL, conversation=conversation)


SCOPE = scope_of("first")


async def chunks_of(data: bytes = PAYLOAD, size: int = 256 * 1024) -> AsyncGenerator[bytes, None]:
    """A source of these bytes."""
    for start in range(0, len(data), size):
        yield data[start : start + size]


def of_scope(scope: Scope) -> Callable[[ProxyRequest], bool]:
    """Whether a request is about an object of this scope: for faults that strike one of several calls at once."""
    segments = "/".join(scope_segments(scope)) + "/"
    return lambda request: segments in request.path


def onwards(fault: ProxyFault, first: int) -> ProxyFault:
    """The fault, for the n-th request that it matches and for all after that."""
    return msgspec.structs.replace(fault, first=first, last=None)


@contextmanager
def unavailable(*names: str) -> Iterator[pytest.ExceptionInfo[StoreUnavailable]]:
    """The block raises that the store cannot answer, in a text that names this, and no secret, no scope, no cause."""
    with pytest.raises(StoreUnavailable) as raised:
        yield raised
    check_error(raised.value, *names)


def check_error(error: BaseException, *names: str) -> None:
    """Whether the error is the store's, and its text names this, and no secret and no scope."""
    text = f"{error!r} {error}"
    assert isinstance(error, StoreUnavailable), text
    assert len(str(error)) > 20
    assert all(name in text for name in names), text
    assert not any(word in text for word in (SECRET_KEY, ACCESS_KEY, TENANT, PRINCIPAL)), text
    assert error.__cause__ is None
    assert error.__context__ is None or error.__suppress_context__


class Faulty:
    """A store, the proxy before its server, and what it told of uploads that it could not abort."""

    def __init__(self, place: Place, proxy: FaultProxy, store: S3Store, clock: ManualClock) -> None:
        self.place = place
        self.proxy = proxy
        self.store = store
        self.clock = clock
        self.left: list[str] = []
        store.notices.listen(self._hear)

    def _hear(self, notice: object) -> None:
        assert isinstance(notice, UploadLeft)
        assert notice.detail
        check_error(StoreUnavailable(notice.detail))
        self.left.append(notice.upload_id)

    async def stream(self, scope: Scope = SCOPE, data: bytes = PAYLOAD) -> str:
        """Put a stream: its ref."""
        with anyio.fail_after(40):
            async with aclosing(chunks_of(data)) as source:
                return (await self.store.put_stream(scope, source, **WORDS)).meta.ref

    async def put(self, scope: Scope = SCOPE, data: bytes = b"content") -> str:
        """Put a payload: its ref."""
        with anyio.fail_after(20):
            return (await self.store.put(scope, data, **WORDS)).meta.ref

    async def reads(self, scope: Scope, ref: str) -> bytes | None:
        """The payload, as `get` gives it; and as `open` does, which must be the same."""
        with anyio.fail_after(20):
            artifact = await self.store.get(scope, ref)
            async with self.store.open(scope, ref) as reader:
                streamed = None if reader is None else await reader.read()
        assert streamed == (None if artifact is None else artifact.data)
        return streamed

    async def is_clean(self) -> None:
        """Nothing is left in the bucket that nobody will ever read."""
        left = await left_in(self.place)
        assert left == ([], []), f"data objects and uploads that nobody will ever read: {left}"

    async def is_clean_after_a_sweep(self) -> None:
        """A day later a sweep leaves nothing in the bucket that nobody will ever read."""
        self.proxy.heal()
        self.clock.advance(DAY)
        with anyio.fail_after(20):
            await self.store.sweep()
        await self.is_clean()


@asynccontextmanager
async def faulty(place: Place, *faults: ProxyFault, **options: Any) -> AsyncIterator[Faulty]:
    """A store that has been put to once, with these faults from then on. Its log of requests begins then."""
    clock = ManualClock(utc_now())
    async with FaultProxy(place.server.url) as proxy:
        words = {"endpoint_url": proxy.url, "part_size": PART, "timeout": 12.0, "attempts": 2, "clock": clock}
        async with S3Store(place.bucket, **place.options(**{**words, **options})) as store:
            await store.put(scope_of("before"), b"before the faults", **WORDS)
            proxy.requests.clear()
            proxy.add(*faults)
            yield Faulty(place, proxy, store, clock)


async def left_in(place: Place) -> tuple[list[str], list[tuple[str, str]]]:
    """What nobody will ever read: data objects that no pointer names, and multipart uploads that have not ended."""

    def look() -> tuple[list[str], list[tuple[str, str]]]:
        there = data_objects(place)
        named = set(pointers(place).values()) if there else set()
        return [name for name in there if name not in named], uploads(place)

    return await to_thread.run_sync(look)


def data_objects(place: Place) -> list[str]:
    """The names of the data objects at a place."""
    return [name for name in keys(place) if name.startswith("streams.d/")]


def pointers(place: Place) -> dict[str, str]:
    """The data object that each pointer of a place names, by the pointer's name."""
    client, start, found = place.server.client, place.key(""), {}
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=place.bucket, Prefix=start):
        for entry in page.get("Contents", ()):
            name = entry["Key"].removeprefix(start)
            head = raw_head(place, name) if entry["Size"] == len(POINTER) and "/art_" in name else None
            if head is not None:
                data = json.loads(head["Metadata"]["coatcheck"]).get("data")
                found[name] = f"streams.d/{name.rpartition('/')[0]}/{data}"
    return found


async def every(count: int, work: Callable[[int], Any], at_once: int = 3) -> None:
    """Await ``work(1)`` to ``work(count)``, so many at once."""
    limiter = anyio.CapacityLimiter(at_once)

    async def one(number: int) -> None:
        async with limiter:
            await work(number)

    async with anyio.create_task_group() as group:
        for number in range(1, count + 1):
            group.start_soon(partial(one, number))
