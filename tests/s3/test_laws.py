"""The laws of the S3 store by the rows of `cases.md`: lifetimes (C) and sweeps and budgets (D)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from coatcheck import S3Store, Scope, StoreUnavailable
from coatcheck.artifacts.meta import Swept, utc_now
from coatcheck.testing.proxy import FaultProxy, answer
from coatcheck.testing.trial import ManualClock
from tests.s3._laws import (
    DAY,
    LARGE,
    SCOPE,
    TTL,
    Work,
    data_objects,
    interleaved,
    opened,
    others,
    put,
    scope_of,
    store_at,
    stream,
)
from tests.s3._servers import Place, Server, keys, raw_delete, raw_put, uploads

pytestmark = pytest.mark.anyio

PlaceOn = Callable[[Server], Place]
BIG = bytes(600_000)  # more than is sent before anybody looks whether it is there


@pytest.fixture
def place(seaweed: Server, place_on: PlaceOn) -> Place:
    return place_on(seaweed)


@pytest.fixture(params=["asyncio", pytest.param("trio", marks=pytest.mark.slow)])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    backend: str = request.param
    return backend


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


WAYS = [
    pytest.param(put, b"payload", id="put"),
    pytest.param(put, BIG, id="large-put", marks=pytest.mark.slow),
    pytest.param(put, LARGE, id="put-in-parts", marks=pytest.mark.slow),
    pytest.param(stream, b"payload", id="short-stream", marks=pytest.mark.slow),
    pytest.param(stream, LARGE, id="stream"),
]


@pytest.mark.parametrize(("way", "data"), WAYS)
async def test_c3_the_ttl_runs_from_the_put_and_no_read_extends_it(
    place: Place, clock: ManualClock, way: Work, data: bytes
) -> None:
    async with store_at(place, clock, ttl=20) as store:
        meta = (await way(store, data)).meta  # type: ignore[arg-type,attr-defined]  # it is `put` or `stream`
        clock.advance(15)
        assert await opened(store, meta.ref, scope=SCOPE) == data
        assert (await store.head(SCOPE, meta.ref)) == meta
        clock.advance(4.999)
        artifact = await store.get(SCOPE, meta.ref)
        assert artifact is not None
        assert artifact.data == data
        for _ in range(2):
            clock.advance(0.001)
            assert await store.get(SCOPE, meta.ref) is None
            assert await store.head(SCOPE, meta.ref) is None
            assert await opened(store, meta.ref, scope=SCOPE) is None
            assert (await store.list(SCOPE)).artifacts == ()
            clock.advance(3 * 20)


@pytest.mark.parametrize(("way", "data"), WAYS)
async def test_d3_a_put_again_makes_younger_whatever_a_sweep_removes(
    place: Place, clock: ManualClock, way: Work, data: bytes
) -> None:
    async with store_at(place, clock, ttl=TTL) as store, store_at(place, clock, ttl=TTL) as other:
        first = await way(store, data)  # type: ignore[arg-type]  # it is `put` or `stream`
        clock.advance(TTL - 1)
        for _ in range(4):
            again = await way(other, data)  # type: ignore[arg-type]
            assert not again.created  # type: ignore[attr-defined]
            assert again.meta.created_at == first.meta.created_at  # type: ignore[attr-defined]
            clock.advance(2)
            await store.sweep()
            assert await opened(store, again.meta.ref, scope=SCOPE) == data  # type: ignore[attr-defined]
            clock.advance(TTL - 3)
        clock.advance(3 * TTL)
        [swept] = await store.sweep()
        assert swept == Swept(first.meta.ref, "test/item", len(data), "ttl")  # type: ignore[attr-defined]
        assert keys(place) == ["coatcheck.json"]


def putting(data: bytes, **words: float) -> Work:
    """A put of this payload, where ``expires_in`` seconds are said, with an expiry."""

    async def work(store: S3Store, scope: Scope) -> object:
        said = {"expires_at": store._clock() + timedelta(seconds=words["expires_in"])} if words else {}
        return await put(store, data, scope=scope, **said)

    return work


def streaming(data: bytes) -> Work:
    async def work(store: S3Store, scope: Scope) -> object:
        return await stream(store, data, scope=scope)

    return work


def reads(data: bytes) -> Work:
    """What was acknowledged is read."""

    async def work(store: S3Store, scope: Scope) -> None:
        [meta] = (await store.list(scope)).artifacts
        artifact = await store.get(scope, meta.ref)
        assert artifact is not None, "what was put again is lost"
        assert artifact.data == data
        assert await store.head(scope, meta.ref) == meta

    return work


def then(work: Work, clock: ManualClock, seconds: float) -> Work:
    async def later(store: S3Store, scope: Scope) -> None:
        await work(store, scope)
        clock.advance(seconds)

    return later


async def sweeping(store: S3Store, scope: Scope) -> object:
    return await store.sweep(scope)


@pytest.mark.parametrize("age", [TTL - 1, 2 * TTL + 100])
async def test_d4_no_interleaving_of_a_put_again_and_a_sweep_loses_it(place: Place, age: float) -> None:
    async with interleaved(place, ttl=TTL) as both:
        before = then(putting(b"payload"), both.clock, age)
        assert await both.every(before, sweeping, putting(b"payload"), reads(b"payload")) >= 3
        assert await both.every(before, putting(b"payload"), sweeping, reads(b"payload")) >= 1


async def test_d4_nor_where_what_expires_lies_apart_in_a_store_without_a_ttl(place: Place) -> None:
    async with interleaved(place) as both:
        before = then(putting(b"payload", expires_in=10), both.clock, 11)
        again = putting(b"payload", expires_in=10)
        assert await both.every(before, sweeping, again, reads(b"payload")) >= 4
        assert await both.every(before, again, sweeping, reads(b"payload")) >= 3
        assert await both.every(before, sweeping, putting(b"payload"), reads(b"payload")) >= 4
        assert await both.every(before, putting(b"payload"), sweeping, reads(b"payload")) >= 1


@pytest.mark.slow
@pytest.mark.parametrize("again", ["stream", "put"])
async def test_d4_nor_where_a_stream_is_put_again(place: Place, again: str) -> None:
    second = streaming(LARGE) if again == "stream" else putting(LARGE)
    async with interleaved(place, ttl=TTL) as both:
        before = then(streaming(LARGE), both.clock, 2 * TTL + 100)
        assert await both.every(before, sweeping, second, reads(LARGE)) >= 4
        assert await both.every(before, second, sweeping, reads(LARGE)) >= 4


async def test_d1_a_count_budget_holds_and_each_removal_is_a_returned_fact(place: Place, clock: ManualClock) -> None:
    async with store_at(place, clock, max_count=5) as store:
        refs, swept = list[str](), list[Swept]()
        for number in range(9):
            result = await put(store, b"%d" % number)
            refs.append(result.meta.ref)
            swept += result.swept
            clock.advance(1)
        assert [gone.ref for gone in swept] == refs[:4]
        assert {(gone.reason, gone.bytes, gone.kind) for gone in swept} == {("max-count", 1, "test/item")}
        assert [meta.ref for meta in (await store.list(SCOPE)).artifacts] == refs[:3:-1]
        assert len(others(place)) == 5


async def test_c4_a_bytes_budget_counts_streams_and_removes_their_data(place: Place, clock: ManualClock) -> None:
    async with store_at(place, clock, max_bytes=2 * len(LARGE) + 20) as store:
        first = await stream(store, b"1" + LARGE[1:])
        clock.advance(1)
        await stream(store, b"2" + LARGE[1:])
        await put(store, b"beside them")
        assert len(data_objects(place)) == 2
        clock.advance(1)
        third = await stream(store, b"3" + LARGE[1:])
        assert third.swept == (Swept(first.meta.ref, "test/item", len(LARGE), "max-bytes"),)
        assert len(data_objects(place)) == 2
        assert await store.get(SCOPE, first.meta.ref) is None


async def test_c4_what_is_younger_than_min_age_is_spared_by_budgets_and_the_put_succeeds(
    place: Place, clock: ManualClock
) -> None:
    async with store_at(place, clock, max_count=1, min_age=timedelta(seconds=60)) as store:
        first = await put(store, b"1")
        clock.advance(59)
        second = await put(store, b"2")
        assert second.swept == ()
        assert not (await put(store, b"1")).created
        assert len(others(place)) == 2
        clock.advance(1)
        third = await put(store, b"3")
        assert [gone.ref for gone in third.swept] == [first.meta.ref]
        clock.advance(60)
        again = await put(store, b"3")  # which makes it younger, for it is as old as what is evicted
        assert not again.created
        assert [gone.ref for gone in again.swept] == [second.meta.ref]
        assert (await put(store, b"4")).swept == ()


async def test_d2_a_sweep_that_cannot_remove_one_thing_removes_the_rest_and_says_so(
    seaweed: Server, place: Place, clock: ManualClock
) -> None:
    async with FaultProxy(seaweed.url) as proxy, store_at(place, clock, ttl=TTL, endpoint_url=proxy.url) as store:
        for number in range(3):
            await put(store, b"%d" % number)
        clock.advance(3 * TTL)
        proxy.add(answer(403, "AccessDenied", on="delete_object", nth=1))
        with pytest.raises(
            StoreUnavailable, match="the rest was: S3 could not sweep: the credentials do not permit it"
        ):
            await store.sweep()
        assert len(others(place)) == 1
        assert len(await store.sweep()) == 1
        assert others(place) == []


@pytest.mark.parametrize("way", [put, stream])
async def test_d5_what_is_gone_behind_the_stores_back_is_absent_and_stored_again(
    place: Place, clock: ManualClock, way: Work
) -> None:
    async with store_at(place, clock, ttl=TTL) as store:
        ref = (await way(store, LARGE)).meta.ref  # type: ignore[arg-type,attr-defined]  # it is `put` or `stream`
        [name] = data_objects(place) or others(place)
        raw_delete(place, name)
        assert await store.get(SCOPE, ref) is None
        assert await opened(store, ref, scope=SCOPE) is None
        again = await way(store, LARGE)  # type: ignore[arg-type]  # it is `put` or `stream`
        assert again.created  # type: ignore[attr-defined]
        assert await opened(store, ref, scope=SCOPE) == LARGE


async def test_d6_a_dry_run_tells_the_same_and_removes_nothing(place: Place, clock: ManualClock) -> None:
    async with store_at(place, clock, ttl=TTL) as store:
        await put(store, b"1")
        await stream(store)
        raw_put(place, f"streams.d/acme/dana/c-42/{int(clock.now.timestamp())}-{'a' * 32}", b"left")
        clock.advance(2 * DAY)
        await put(store, b"2")
        there = keys(place)
        dry = await store.sweep(dry_run=True)
        assert sorted(gone.reason for gone in dry) == ["orphan", "ttl", "ttl"]
        assert keys(place) == there
        assert sorted(dry, key=repr) == sorted(await store.sweep(), key=repr)
        assert len(others(place)) == 1
        assert await store.sweep() == ()


async def test_d6_usage_tells_what_every_scope_holds(place: Place, clock: ManualClock) -> None:
    async with store_at(place, clock, ttl=TTL) as store:
        await put(store, b"123")
        await put(store, b"12345")
        await stream(store, scope=scope_of("c-43"), kind="dataset/rows")
        told = {(use.scope, use.kind): (use.count, use.bytes) for use in await store.usage()}
        assert told == {
            (("acme", "dana", "c-42"), "test/item"): (2, 8),
            (("acme", "dana", "c-43"), "dataset/rows"): (1, len(LARGE)),
        }


async def test_a_data_object_that_a_crash_left_is_swept_after_a_day_and_not_before(
    place: Place, clock: ManualClock
) -> None:
    async with store_at(place, clock) as store:
        ref = (await stream(store)).meta.ref
        raw_put(place, f"streams.d/acme/dana/c-42/{int(clock.now.timestamp())}-{'a' * 32}", b"left")
        raw_put(place, "streams.d/acme/dana/c-42/foreign", b"not ours")
        clock.advance(DAY)
        assert await store.sweep() == ()
        clock.advance(3_600)
        assert await store.sweep(scope_of("c-43")) == ()
        assert await store.sweep() == (Swept("", "", 4, "orphan"),)
        assert await opened(store, ref, scope=SCOPE) == LARGE
        assert len(data_objects(place)) == 2


async def test_an_upload_that_a_crash_left_is_aborted_after_a_day_and_not_before(
    place: Place, clock: ManualClock
) -> None:
    def begin(name: str) -> None:
        place.server.client.create_multipart_upload(Bucket=place.bucket, Key=place.key(name))

    async with store_at(place, clock, ttl=TTL) as store:
        dead = int(clock.now.timestamp()) // int(TTL)
        begin(f"streams.d/acme/dana/c-42/{int(clock.now.timestamp())}-{'a' * 32}")
        begin(f"acme/dana/c-42/{(await put(store)).meta.ref}.{dead}")
        begin("somebody/elses")
        assert await store.sweep() == ()
        clock.advance(2 * TTL + 101)
        assert [gone.reason for gone in await store.sweep(SCOPE)].count("orphan") == 1
        clock.advance(DAY + 3_600)
        assert await store.sweep(dry_run=True) == (Swept("", "", 0, "orphan"),)
        assert len(uploads(place)) == 2
        assert await store.sweep() == (Swept("", "", 0, "orphan"),)
        assert [name for name, _ in uploads(place)] == ["somebody/elses"]


async def test_an_upload_of_a_store_without_a_ttl_is_young_by_the_clock_of_the_world(
    place: Place, clock: ManualClock
) -> None:
    async with store_at(place, clock) as store:
        ref = (await put(store)).meta.ref
        place.server.client.create_multipart_upload(Bucket=place.bucket, Key=place.key(f"acme/dana/c-42/{ref}"))
        clock.advance(30 * DAY)
        assert utc_now() < clock.now
        assert await store.sweep() == ()
        assert len(uploads(place)) == 1
