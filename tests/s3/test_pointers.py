"""Artifacts whose payload lies apart: a pointer under the ref's key, and a data object that only it names."""

from __future__ import annotations

import gzip
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from coatcheck.artifacts.meta import Swept
from coatcheck.artifacts.s3.record import POINTER
from coatcheck.errors import IntegrityError
from coatcheck.testing.trial import ManualClock, Source
from tests.s3._laws import DAY, LARGE, SCOPE, TTL, data_objects, opened, others, put, scope_of, store_at, stream
from tests.s3._servers import Place, Server, keys, raw_delete, raw_get, raw_head, raw_put, uploads

pytestmark = pytest.mark.anyio

PlaceOn = Callable[[Server], Place]


@pytest.fixture(params=["asyncio", pytest.param("trio", marks=pytest.mark.slow)])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    backend: str = request.param
    return backend


@pytest.fixture
def place(seaweed: Server, place_on: PlaceOn) -> Place:
    return place_on(seaweed)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


async def test_a_stream_over_a_part_is_a_pointer_and_a_data_object_with_the_payload_as_it_is(place: Place) -> None:
    async with store_at(place) as store:
        ref = (await stream(store, media_type="text/csv", label="rows")).meta.ref
    [pointer], [data] = others(place), data_objects(place)
    assert pointer == f"acme/dana/c-42/{ref}"
    assert raw_get(place, pointer) == POINTER
    assert raw_get(place, data) == LARGE
    head, there = raw_head(place, pointer), raw_head(place, data)
    assert head is not None
    assert there is not None
    assert msgspec.json.decode(head["Metadata"]["coatcheck"])["data"] == data.rpartition("/")[2]
    assert head["ContentType"] == there["ContentType"] == "text/csv"
    assert there["Metadata"] == {}
    assert uploads(place) == []


@pytest.mark.parametrize("data", [b"", b"x", LARGE[: 5 << 20]])
async def test_a_stream_within_a_part_is_no_pointer(place: Place, data: bytes) -> None:
    async with store_at(place) as store:
        ref = (await stream(store, data)).meta.ref
        assert await opened(store, ref, scope=SCOPE) == data
    assert data_objects(place) == []
    assert raw_get(place, f"acme/dana/c-42/{ref}") == data


async def test_a_stream_that_is_there_and_young_leaves_no_second_data_object(place: Place, clock: ManualClock) -> None:
    async with store_at(place, clock, ttl=TTL) as store:
        first = await stream(store, label="first")
        there = keys(place)
        clock.advance(TTL / 20)
        again = await stream(store, label="second")
        assert (again.created, again.meta) == (False, first.meta)
        assert keys(place) == there
        assert uploads(place) == []


async def test_a_stream_that_is_there_and_old_moves_the_pointer_and_the_old_data_is_swept_later(
    place: Place, clock: ManualClock
) -> None:
    async with store_at(place, clock, ttl=TTL) as store:
        first = await stream(store)
        [old] = data_objects(place)
        clock.advance(TTL - 1)
        again = await stream(store)
        assert not again.created
        assert len(data_objects(place)) == 2
        assert await store.sweep() == ()
        clock.advance(TTL - 1)
        await store.sweep()
        assert await opened(store, first.meta.ref, scope=SCOPE) == LARGE
        clock.advance(TTL - 1)
        await stream(store)
        await store.sweep()
        assert old not in data_objects(place)
        assert await opened(store, first.meta.ref, scope=SCOPE) == LARGE


async def test_where_budgets_go_by_age_the_pointer_moves_and_the_old_data_is_swept_a_day_later(
    place: Place, clock: ManualClock
) -> None:
    async with store_at(place, clock, max_count=5, min_age=timedelta(seconds=60)) as store:
        ref = (await stream(store)).meta.ref
        [old] = data_objects(place)
        clock.advance(60)
        assert not (await stream(store)).created
        assert len(data_objects(place)) == 2
        clock.advance(DAY - 1)
        assert await store.sweep() == ()
        clock.advance(3_600)
        assert await store.sweep() == (Swept("", "", len(LARGE), "orphan"),)
        assert old not in data_objects(place)
        assert await opened(store, ref, scope=SCOPE) == LARGE
        clock.advance(DAY + 3_600)
        assert await store.sweep() == ()
        assert await opened(store, ref, scope=SCOPE) == LARGE


async def test_a_delete_removes_the_pointer_and_its_data(place: Place, clock: ManualClock) -> None:
    async with store_at(place, clock, ttl=TTL) as store:
        ref = (await stream(store)).meta.ref
        clock.advance(TTL - 1)
        await stream(store)
        await store.delete(SCOPE, ref)
        assert keys(place) == ["coatcheck.json"]
        assert await store.get(SCOPE, ref) is None
        await store.delete(SCOPE, ref)


@pytest.mark.parametrize("order", ["stream-put", "put-stream"])
async def test_what_was_streamed_may_be_put_at_hand_and_the_other_way_round(
    place: Place, clock: ManualClock, order: str
) -> None:
    ways = [stream, put] if order == "stream-put" else [put, stream]
    async with store_at(place, clock, ttl=TTL) as store:
        first = await ways[0](store, LARGE)
        assert not (await ways[1](store, LARGE)).created
        assert len(keys(place)) == (3 if order == "stream-put" else 2)
        clock.advance(TTL - 1)
        assert not (await ways[1](store, LARGE)).created
        clock.advance(TTL - 1)
        await store.sweep()
        assert await opened(store, first.meta.ref, scope=SCOPE) == LARGE
        artifact = await store.get(SCOPE, first.meta.ref)
        assert artifact is not None
        assert artifact.data == LARGE
        clock.advance(3 * TTL)
        assert len(await store.sweep()) == 1
        assert keys(place) == ["coatcheck.json"]


async def test_a_pointer_whose_data_was_replaced_by_something_shorter_is_damaged_and_stored_again(place: Place) -> None:
    from coatcheck import IntegrityError

    async with store_at(place) as store:
        ref = (await stream(store)).meta.ref
        [name] = data_objects(place)
        raw_put(place, name, LARGE[:-1])
        with pytest.raises(IntegrityError):
            await store.get(SCOPE, ref)
        assert not (await stream(store)).created
        assert await opened(store, ref, scope=SCOPE) == LARGE


async def test_a_pointer_of_another_artifact_opens_nothing(place: Place) -> None:
    """Somebody who may write to the bucket copies a pointer under another ref: the record proves whose it is."""
    from coatcheck import IntegrityError

    async with store_at(place) as store:
        ref, other = (await stream(store)).meta.ref, (await put(store)).meta.ref
        head = raw_head(place, f"acme/dana/c-42/{ref}")
        assert head is not None
        raw_put(place, f"acme/dana/c-42/{other}", POINTER, head["Metadata"])
        for verb in (store.get, store.head):
            with pytest.raises(IntegrityError):
                await verb(SCOPE, other)


async def test_in_a_store_without_a_ttl_what_will_expire_lies_apart_and_only_its_data_are_swept(
    place: Place, clock: ManualClock
) -> None:
    def soon() -> dict[str, Any]:
        return {"expires_at": clock.now + timedelta(seconds=10)}

    async with store_at(place, clock) as store:
        ref = (await put(store, **soon())).meta.ref
        [first] = data_objects(place)
        assert raw_get(place, f"acme/dana/c-42/{ref}") == POINTER
        assert not (await put(store, **soon())).created
        assert data_objects(place) == [first]
        clock.advance(10)
        assert await store.get(SCOPE, ref) is None
        assert await store.sweep(dry_run=True) == (), "a replica whose clock is behind still serves it"
        clock.advance(15 * 60)
        assert await store.sweep(dry_run=True) == (Swept(ref, "test/item", 7, "ttl"),)
        assert await store.sweep() == (Swept(ref, "test/item", 7, "ttl"),)
        assert await store.sweep() == ()
        assert (data_objects(place), len(others(place))) == ([], 1)
        assert (await put(store, **soon())).created
        assert await opened(store, ref, scope=SCOPE) == b"payload"
        clock.advance(5)
        assert not (await put(store)).created, "which makes it stay for ever"
        clock.advance(2 * DAY)
        await store.sweep()
        assert await opened(store, ref, scope=SCOPE) == b"payload"
        assert data_objects(place) == []


async def test_a_stream_that_takes_longer_than_a_day_is_refused_and_leaves_nothing(
    place: Place, clock: ManualClock
) -> None:
    from coatcheck import StoreUnavailable

    async def waits(asked: int) -> None:
        if asked == 2:
            clock.advance(DAY)

    async with store_at(place, clock, ttl=TTL) as store:
        source = Source(LARGE, LARGE, before=waits)
        with pytest.raises(StoreUnavailable, match="took longer than 1 day"):
            await store.put_stream(SCOPE, source, kind="test/item", media_type="text/plain")
        assert data_objects(place) == others(place) == []
        assert uploads(place) == []


async def test_a_stream_of_which_nobody_knew_the_type_says_it_in_the_end(place: Place) -> None:
    async with store_at(place) as store:
        source = Source(gzip.compress(LARGE), LARGE)
        result = await store.put_stream(SCOPE, source, kind="test/item", media_type=lambda: "application/gzip")
        assert result.meta.media_type == "application/gzip"
    [pointer] = others(place)
    head = raw_head(place, pointer)
    assert head is not None
    assert head["ContentType"] == "application/gzip"


async def test_a_lost_pointer_is_absent_and_its_data_are_swept_as_an_orphan(place: Place, clock: ManualClock) -> None:
    async with store_at(place, clock) as store:
        ref = (await stream(store)).meta.ref
        raw_delete(place, others(place)[0])
        assert await store.get(SCOPE, ref) is None
        assert (await store.list(SCOPE)).artifacts == ()
        clock.advance(DAY + 3_600)
        assert [gone.reason for gone in await store.sweep()] == ["orphan"]
        assert keys(place) == ["coatcheck.json"]


async def test_a_pointer_that_somebody_forged_leads_into_no_other_scope(place: Place) -> None:
    async with store_at(place) as store:
        theirs = (await put(store, b"somebody else's", scope=scope_of("victim"))).meta.ref
        ref = (await put(store, b"mine")).meta.ref
        name = f"acme/dana/c-42/{ref}"
        head = raw_head(place, name)
        assert head is not None
        wire = msgspec.json.decode(head["Metadata"]["coatcheck"])
        for data in (f"acme/dana/victim/{theirs}", f"../victim/{theirs}", theirs):
            said = msgspec.json.encode({**wire, "data": data, "bytes": 15}).decode()
            raw_put(place, name, POINTER, {"coatcheck": said})
            with pytest.raises(IntegrityError):
                await opened(store, ref, 0, 6, scope=SCOPE)
            await store.delete(SCOPE, ref)
            assert await opened(store, theirs, scope=scope_of("victim")) == b"somebody else's"


@pytest.mark.parametrize("lies_apart", [True, False])
async def test_what_another_replica_deleted_is_absent_also_where_it_was_just_read(
    place: Place, lies_apart: bool
) -> None:
    async with store_at(place) as store, store_at(place) as replica:
        ref = (await (stream(store) if lies_apart else put(store, LARGE[:9_000]))).meta.ref
        assert await opened(store, ref, 5_000, 5_009, scope=SCOPE) == LARGE[5_000:5_009]
        await replica.delete(SCOPE, ref)
        assert await opened(store, ref, 5_000, 5_009, scope=SCOPE) is None
        again = await (stream(replica) if lies_apart else put(replica, LARGE[:9_000]))
        assert again.created
        assert await opened(store, ref, 5_000, 5_009, scope=SCOPE) == LARGE[5_000:5_009]


async def test_what_expires_is_absent_also_where_it_was_just_read(place: Place, clock: ManualClock) -> None:
    async with store_at(place, clock, ttl=TTL) as store:
        ref = (await stream(store)).meta.ref
        assert await opened(store, ref, 5_000, 5_009, scope=SCOPE) == LARGE[5_000:5_009]
        clock.advance(TTL)
        assert await opened(store, ref, 5_000, 5_009, scope=SCOPE) is None


async def test_a_reader_follows_a_pointer_that_another_replica_moved(place: Place, clock: ManualClock) -> None:
    budgets: dict[str, Any] = {"max_count": 5, "min_age": timedelta(seconds=60)}
    async with store_at(place, clock, **budgets) as store, store_at(place, clock, **budgets) as replica:
        ref = (await stream(store)).meta.ref
        [old] = data_objects(place)
        assert await opened(store, ref, 5_000, 5_009, scope=SCOPE) == LARGE[5_000:5_009]
        clock.advance(60)
        await stream(replica)
        raw_delete(place, old)
        assert await opened(store, ref, 5_000, 5_009, scope=SCOPE) == LARGE[5_000:5_009]


async def test_what_lies_at_a_remembered_place_and_has_another_size_is_looked_for_anew(place: Place) -> None:
    async with store_at(place) as store:
        ref = (await stream(store)).meta.ref
        [data] = data_objects(place)
        assert await opened(store, ref, 5_000, 5_009, scope=SCOPE) == LARGE[5_000:5_009]
        raw_put(place, data, b"x" * 9_000)
        with pytest.raises(IntegrityError, match="expected 5247201 bytes"):
            await opened(store, ref, 5_000, 5_009, scope=SCOPE)


async def test_what_another_replica_put_in_its_place_says_itself_what_it_is(place: Place, clock: ManualClock) -> None:
    async with store_at(place, clock) as store, store_at(place, clock) as replica:
        data = LARGE[: len(POINTER)]  # of the size of a pointer, which takes its place
        ref = (await put(store, data)).meta.ref
        assert await opened(store, ref, scope=SCOPE) == data
        await replica.delete(SCOPE, ref)
        await put(replica, data, expires_at=clock() + timedelta(seconds=3))
        assert await opened(store, ref, 3, 9, scope=SCOPE) == data[3:9]
        clock.advance(3)
        assert await opened(store, ref, 3, 9, scope=SCOPE) is None


async def test_what_another_replica_put_anew_has_the_words_and_the_life_of_that(
    place: Place, clock: ManualClock
) -> None:
    async with store_at(place, clock, ttl=TTL) as store, store_at(place, clock, ttl=TTL) as replica:
        ref = (await put(store, label="old")).meta.ref
        await opened(store, ref, scope=SCOPE)
        await replica.delete(SCOPE, ref)
        await put(replica, label="new", expires_at=clock() + timedelta(seconds=3))
        async with store.open(SCOPE, ref, 1, 3) as reader:
            assert reader is not None
            assert reader.meta.label == "new"
        clock.advance(3)
        assert await opened(store, ref, 1, 3, scope=SCOPE) is None


async def test_what_a_delete_could_not_remove_is_read_for_a_moment_at_most(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with store_at(place) as store:
        ref = (await stream(store)).meta.ref
        assert await opened(store, ref, 5, 9, scope=SCOPE) == LARGE[5:9]
        [pointer] = others(place)
        raw_delete(place, pointer)
        now = time.monotonic()
        for later, is_there in ((0.5, True), (1.5, True), (2.1, False)):  # from the look, and not from the last read
            monkeypatch.setattr("coatcheck.artifacts.s3.places.monotonic", lambda later=later: now + later)
            assert (await opened(store, ref, 5, 9, scope=SCOPE) is not None) == is_there
