"""What the suites of the laws share: a store at a place with a clock of its own, streams, and every interleaving."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import anyio

from coatcheck import PutResult, S3Store, Scope
from coatcheck.testing.proxy import FaultProxy, silence
from coatcheck.testing.trial import ManualClock, Source, opened
from tests.s3._servers import Place, keys

__all__ = [
    "DAY",
    "HOUR",
    "LARGE",
    "MIB",
    "PART",
    "SCOPE",
    "TTL",
    "Interleaved",
    "asked",
    "data_objects",
    "interleaved",
    "opened",
    "others",
    "put",
    "scope_of",
    "store_at",
    "stream",
]

MIB = 1 << 20
PART = 5 * MIB
LARGE = random.Random(7).randbytes(PART + 4_321)
"""Two parts: as a stream it is stored as a data object, and a pointer to it."""

TTL = 1_000.0
HOUR = 3_600.0
DAY = 24 * HOUR


def scope_of(conversation: str) -> Scope:
    """A scope of its own."""
    return Scope(tenant="acme", principal="dana", conversation=conversation)


SCOPE = scope_of("c-42")


def store_at(place: Place, clock: ManualClock | None = None, **options: Any) -> S3Store:
    """A store at this place, with parts as small as S3 has them. ``ttl`` is in seconds."""
    said: dict[str, Any] = {"part_size": PART, "min_age": timedelta(0), **options}
    if "ttl" in said:
        said["ttl"] = timedelta(seconds=said["ttl"])
    if clock is not None:
        said["clock"] = clock
    return S3Store(place.bucket, **place.options(**said))


async def put(store: S3Store, data: bytes = b"payload", *, scope: Scope = SCOPE, **words: Any) -> PutResult:
    """Put with words that do not matter."""
    return await store.put(scope, data, **{"kind": "test/item", "media_type": "text/plain", **words})


async def stream(store: S3Store, data: bytes = LARGE, *, scope: Scope = SCOPE, **words: Any) -> PutResult:
    """As `put`, of a stream in chunks of a megabyte."""
    chunks = [data[start : start + MIB] for start in range(0, len(data), MIB)]
    said = {"kind": "test/item", "media_type": "text/plain", **words}
    return await store.put_stream(scope, Source(*chunks), **said)


def data_objects(place: Place) -> list[str]:
    """The names of a place's data objects."""
    return [name for name in keys(place) if name.startswith("streams.d/")]


def others(place: Place) -> list[str]:
    """The names of all other objects of a place, without its marker."""
    return [name for name in keys(place) if not name.startswith("streams.d/") and name != "coatcheck.json"]


def asked(proxy: FaultProxy) -> dict[str, int]:
    """How many requests of each operation arrived since the log was cleared, which it is now.

    Now and then a store asks for the bucket itself, where a key is missing; that does not count.
    """
    counted = Counter(request.operation for request in proxy.requests if request.operation != "head_bucket")
    proxy.requests.clear()
    return dict(counted)


Work = Callable[[S3Store, Scope], Awaitable[object]]


class Interleaved:
    """Two stores over the same data, and a proxy that holds one of them between two of its requests."""

    def __init__(self, proxy: FaultProxy, held: S3Store, free: S3Store, clock: ManualClock) -> None:
        self.proxy = proxy
        self.held = held
        self.free = free
        self.clock = clock
        self.rounds = 0
        self._start = clock.now

    async def every(self, before: Work, held: Work, meanwhile: Work, after: Work) -> int:
        """Do one thing, and another between any two requests of it.

        Args:
            before: prepares the scope of one round, from the same time each.
            held: is held after its first request in the first round, after its second in the second, and so on.
            meanwhile: is done while it is held.
            after: says what must be so.

        Returns:
            How many rounds there were: as many as ``held`` makes requests, at the most.
        """
        rounds = 0
        while True:
            rounds += 1
            self.rounds += 1
            self.clock.now = self._start
            scope = scope_of(f"round-{self.rounds}")
            await before(self.free, scope)
            if not await self._round(rounds, scope, held, meanwhile):
                return rounds - 1
            await after(self.free, scope)

    async def _round(self, number: int, scope: Scope, held: Work, meanwhile: Work) -> bool:
        ended = anyio.Event()

        async def run() -> None:
            await held(self.held, scope)
            ended.set()

        self.proxy.requests.clear()
        self.proxy.add(silence(passed=True, nth=number))

        def is_held() -> bool:
            met = self.proxy.requests[number - 1 : number]
            return bool(met) and met[0].upstream_status is not None

        async with anyio.create_task_group() as group:
            group.start_soon(run)
            while not (ended.is_set() or is_held()):  # noqa: ASYNC110 - the proxy has no event for an answer
                await anyio.sleep(0.002)
            was_held = is_held()
            await meanwhile(self.free, scope)
            self.proxy.heal()
        return was_held


@asynccontextmanager
async def interleaved(place: Place, **options: Any) -> AsyncIterator[Interleaved]:
    """Two open stores at one place."""
    clock = ManualClock()
    async with FaultProxy(place.server.url) as proxy:
        held = store_at(place, clock, endpoint_url=proxy.url, **options)
        async with held, store_at(place, clock, **options) as free:
            for store in (held, free):
                await put(store, b"first", scope=scope_of("first"))  # and each knows what the server honours
            yield Interleaved(proxy, held, free, clock)
