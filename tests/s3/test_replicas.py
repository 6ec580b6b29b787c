"""Replicas, scopes and servers: a ref resolves in any replica and in its own scope alone, on every kind of server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import anyio
import pytest

from coatcheck import Scope, StoreUnavailable
from coatcheck.artifacts.notices import EvictionFailed
from coatcheck.testing.trial import ManualClock, Source
from tests.s3._laws import LARGE, PART, SCOPE, TTL, data_objects, opened, others, put, scope_of, store_at, stream
from tests.s3._servers import Place, Server, raw_head, uploads

pytestmark = pytest.mark.anyio

PlaceOn = Callable[[Server], Place]


@pytest.fixture
def place(seaweed: Server, place_on: PlaceOn) -> Place:
    return place_on(seaweed)


@pytest.fixture(params=["asyncio", pytest.param("trio", marks=pytest.mark.slow)])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    backend: str = request.param
    return backend


@pytest.mark.parametrize("apart", [-0.099, 0.099])
async def test_e1_replicas_whose_clocks_differ_a_little_read_and_delete_each_others(place: Place, apart: float) -> None:
    clock = ManualClock()
    second = clock.now.timestamp()
    generation = int(TTL)
    async with store_at(place, clock, ttl=TTL) as one, store_at(place, ManualClock(), ttl=TTL) as other:
        for near in (-90, -1, 0, 1, 90):  # seconds around the beginning of a generation
            clock.now = ManualClock().now + timedelta(seconds=generation * 3 - second % generation + near)
            its = other._clock
            assert isinstance(its, ManualClock)
            its.now = clock.now + timedelta(seconds=apart * generation)
            ref = (await put(one, b"%d" % near)).meta.ref
            assert await opened(other, ref, scope=SCOPE) == b"%d" % near
            assert ref in [meta.ref for meta in (await other.list(SCOPE)).artifacts]
            await other.sweep()
            assert await opened(one, ref, scope=SCOPE) == b"%d" % near
            await other.delete(SCOPE, ref)
            assert await one.get(SCOPE, ref) is None


async def test_e1_a_ref_resolves_in_any_replica_with_the_scope_and_in_no_other_scope(place: Place) -> None:
    async with store_at(place) as one:
        ref = (await stream(one)).meta.ref
        small = (await put(one)).meta.ref
    async with store_at(place) as other:
        assert await opened(other, ref, scope=SCOPE) == LARGE
        for scope in (scope_of("c-43"), Scope(conversation="c-42"), Scope(tenant="ACME", conversation="c-42")):
            assert await other.get(scope, ref) is None
            assert await other.head(scope, small) is None
            assert (await other.list(scope)).artifacts == ()
            await other.delete(scope, ref)
        assert await opened(other, ref, scope=SCOPE) == LARGE


HOSTILE = [
    "../../c-42/x",
    "art_%2e%2e",
    "a/b",
    "ART_" + "0" * 32,
    "art_\x00" + "0" * 31,
    "a" * 10_000,
    "",
    "coatcheck.json",
]


@pytest.mark.parametrize("ref", HOSTILE, ids=range(len(HOSTILE)))
async def test_e2_a_forged_ref_is_as_absent_as_a_missing_one(place: Place, ref: str) -> None:
    async with store_at(place) as store:
        kept = (await put(store)).meta.ref
        assert await store.get(SCOPE, ref) is None
        assert await store.head(SCOPE, ref) is None
        async with store.open(SCOPE, ref) as reader:
            assert reader is None
        await store.delete(SCOPE, ref)
        assert await store.get(SCOPE, kept) is not None


async def test_e3_two_scopes_with_the_same_payload_each_see_their_own(place: Place) -> None:
    async with store_at(place) as store:
        for scope in (SCOPE, scope_of("c-43")):
            assert (await stream(store, scope=scope)).created
            assert (await put(store, scope=scope)).created
        await store.delete(SCOPE, (await put(store)).meta.ref)
        assert len((await store.list(SCOPE)).artifacts) == 1
        assert len((await store.list(scope_of("c-43"))).artifacts) == 2


@pytest.mark.parametrize("server", ["seaweed", "moto", "ceph"], indirect=True)
async def test_j4_a_stream_that_fails_leaves_nothing_and_nothing_has_to_be_told(
    server: Server, place_on: PlaceOn
) -> None:
    place, told = place_on(server), list[object]()

    async def fails(asked: int) -> None:
        if asked == 2:
            raise LookupError("of the source")

    async with store_at(place) as store:
        store.notices.listen(told.append)
        source = Source(LARGE[:PART], LARGE, before=fails)
        with pytest.raises(LookupError, match="of the source"):
            await store.put_stream(SCOPE, source, kind="test/item", media_type="text/plain")
        assert uploads(place) == []
        assert others(place) == data_objects(place) == []
    assert told == []


@pytest.mark.parametrize("server", ["seaweed", "moto", "ceph"], indirect=True)
async def test_what_an_object_says_comes_back_whatever_is_in_it(server: Server, place_on: PlaceOn) -> None:
    place = place_on(server)
    origin = {"a": "deleted: \x7f", "b": "\x00\t\r\n", "c  d": "two  spaces ", "\u00e9": "\U0001f600", "e": " "}
    async with store_at(place) as store:
        meta = (await put(store, label="a   label \u00e9 ", origin=origin)).meta
        assert meta.origin == origin
        assert await store.head(SCOPE, meta.ref) == meta
    [name] = others(place)
    head = raw_head(place, name)
    assert head is not None
    assert list(head["Metadata"]) == ["coatcheck"]
    assert head["ContentType"] == "text/plain; charset=utf-8"


async def test_many_reads_at_once_of_what_is_not_in_the_first_place_looked_at_do_not_wait_for_each_other(
    place: Place,
) -> None:
    """Each looks into two generations, one after the other, and never holds more than one connection."""
    clock = ManualClock()
    async with store_at(place, clock, ttl=TTL, connections=4, timeout=10) as store:
        ref = (await put(store)).meta.ref
        clock.advance(TTL - 1)
        seen: list[bytes | None] = []

        async def read(name: str) -> None:
            seen.append(await opened(store, name, scope=SCOPE))

        async with anyio.create_task_group() as tasks:
            for number in range(24):
                tasks.start_soon(read, ref if number % 2 else "art_" + "0" * 32)
        assert sorted(seen, key=str) == sorted([b"payload", None] * 12, key=str)


async def test_an_answer_with_another_part_than_was_asked_for_is_an_error(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with store_at(place) as store:
        ref = (await put(store, bytes(range(200)))).meta.ref
        requests = store._open_here().opened.requests
        ask = requests.ask

        async def forgetful(*args: Any, Range: str = "", **words: Any) -> Any:  # noqa: N803 - as S3 spells it
            return await ask(*args, **words)

        monkeypatch.setattr(requests, "ask", forgetful)
        with pytest.raises(StoreUnavailable, match="another part than was asked for"):
            await opened(store, ref, 50, 60, scope=SCOPE)


async def test_d2_a_budget_that_cannot_be_kept_is_told_and_fails_no_put(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with store_at(place, max_count=1, min_age=timedelta(0)) as store:
        await put(store, b"first")
        told: list[object] = []
        store.notices.listen(told.append)

        async def refuse(*args: object) -> None:
            raise StoreUnavailable("no delete today")

        monkeypatch.setattr(store._open_here().opened.requests, "delete", refuse)
        second = await put(store, b"second")
        assert (second.created, second.swept) == (True, ())
        assert told == [EvictionFailed(second.meta.ref, "no delete today")]


async def test_a_put_that_asyncio_itself_cancels_leaves_nothing_that_nobody_will_read(
    place: Place, anyio_backend: str
) -> None:
    """Against ``task.cancel()`` no scope of anyio shields the task itself."""
    if anyio_backend != "asyncio":
        pytest.skip("asyncio's own kind of cancellation")
    async with store_at(place) as store:
        await put(store)
        for steps in range(1, 60):
            task = asyncio.ensure_future(stream(store, scope=scope_of(f"s-{steps}")))
            for _ in range(steps):
                await asyncio.sleep(0.002)
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                break
            assert uploads(place) == []
            data, pointers = data_objects(place), others(place)
            assert len(data) == len([name for name in pointers if "/s-" in name]), (data, pointers)
