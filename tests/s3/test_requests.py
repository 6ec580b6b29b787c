"""How many requests each verb makes, which is what an operator pays and must permit; and how they look on the wire."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from coatcheck import S3Store
from coatcheck.artifacts.s3 import places
from coatcheck.testing.proxy import FaultProxy, ProxyRequest, answer
from coatcheck.testing.trial import ManualClock, Source
from tests.s3._laws import LARGE, MIB, PART, SCOPE, TTL, asked, opened, others, put, scope_of, store_at, stream
from tests.s3._servers import Place, Server, keys, raw_head, uploads

pytestmark = pytest.mark.anyio

PlaceOn = Callable[[Server], Place]
DATA = PART + len(LARGE)


@pytest.fixture(params=["asyncio", pytest.param("trio", marks=pytest.mark.slow)])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    backend: str = request.param
    return backend


@pytest.fixture
def place(seaweed: Server, place_on: PlaceOn) -> Place:
    return place_on(seaweed)


@asynccontextmanager
async def counted(place: Place, **options: Any) -> AsyncIterator[tuple[S3Store, FaultProxy]]:
    """A store that knows its server already, and the proxy that counts what it asks from now on."""
    clock = ManualClock()
    clock.advance(TTL / 2 - clock.now.timestamp() % TTL)  # in the middle of a generation
    async with (
        FaultProxy(place.server.url) as proxy,
        store_at(place, clock, endpoint_url=proxy.url, **options) as store,
    ):
        await put(store, b"first", scope=scope_of("first"))
        asked(proxy)
        yield store, proxy


async def test_a_put_of_new_content_is_one_request(place: Place) -> None:
    async with counted(place) as (store, proxy):
        await put(store)
        assert asked(proxy) == {"put_object": 1}
        await stream(store, b"a stream within one part")
        assert asked(proxy) == {"put_object": 1}
        await put(store, b"with a parent", parents=[(await put(store)).meta.ref])
        assert asked(proxy) == {"put_object": 2, "head_object": 2}


async def test_a_put_again_is_one_request_and_a_look(place: Place) -> None:
    large = bytes(600_000)
    async with counted(place) as (store, proxy):
        await put(store)
        await put(store, large)
        asked(proxy)
        await put(store)
        assert asked(proxy) == {"put_object": 1, "head_object": 1}
        sent = proxy.bytes_out()
        await put(store, large)
        assert asked(proxy) == {"head_object": 1}
        assert proxy.bytes_out() - sent <= 0, "what is large is not sent to learn that it is there"


async def test_with_a_ttl_a_put_looks_into_the_generation_before_first(place: Place) -> None:
    async with counted(place, ttl=TTL) as (store, proxy):
        await put(store)
        assert asked(proxy) == {"head_object": 1, "put_object": 1}
        await put(store)
        assert asked(proxy) == {"head_object": 2, "put_object": 1}
        large = bytes(600_000)
        await put(store, large)
        assert asked(proxy) == {"head_object": 2, "put_object": 1}
        await put(store, large)
        assert asked(proxy) == {"head_object": 1}


async def test_a_stream_is_its_parts_and_five_requests(place: Place) -> None:
    async with counted(place) as (store, proxy):
        await stream(store)
        assert asked(proxy) == {
            "create_multipart": 1,
            "upload_part": 2,
            "head_object": 2,
            "complete_multipart": 1,
            "put_object": 1,
        }


async def test_a_put_of_more_than_a_part_is_its_parts_and_four_requests(place: Place) -> None:
    async with counted(place) as (store, proxy):
        await put(store, LARGE)
        assert asked(proxy) == {
            "head_object": 2,
            "create_multipart": 1,
            "upload_part": 2,
            "complete_multipart": 1,
        }


async def test_a_stream_that_fails_is_aborted_until_the_server_knows_it_no_more(place: Place) -> None:
    async def fails(asked: int) -> None:
        if asked == 2:
            raise LookupError

    async with counted(place) as (store, proxy):
        with pytest.raises(LookupError):
            await store.put_stream(SCOPE, Source(LARGE, b"1", before=fails), kind="k", media_type="a/b")
        made = asked(proxy)
        assert made.pop("create_multipart") == 1
        assert 1 <= made.pop("abort_multipart") <= 2
        assert set(made) <= {"upload_part"}
        assert uploads(place) == []


@pytest.mark.parametrize("ttl", [None, TTL])
async def test_a_read_is_one_request_and_one_a_generation_for_what_is_missing(place: Place, ttl: float | None) -> None:
    options = {} if ttl is None else {"ttl": ttl}
    generations = 1 if ttl is None else 2
    async with counted(place, **options) as (store, proxy):
        ref = (await put(store)).meta.ref
        other = (await put(store, b"other")).meta.ref
        await store.delete(SCOPE, other)
        asked(proxy)
        await store.head(SCOPE, ref)
        assert asked(proxy) == {"head_object": 1}
        await store.get(SCOPE, ref)
        assert asked(proxy) == {"get_object": 1}
        await opened(store, ref, scope=SCOPE)
        assert asked(proxy) == {"get_object": 1}
        await opened(store, ref, 2, 5, scope=SCOPE)
        assert asked(proxy) == {"get_object": 1}
        await store.head(SCOPE, other)
        assert asked(proxy) == {"head_object": generations}
        await store.get(SCOPE, other)
        assert asked(proxy) == {"get_object": generations}


async def test_a_pointer_takes_a_look_and_a_request_more(place: Place) -> None:
    async with counted(place) as (store, proxy):
        ref = (await stream(store)).meta.ref
        asked(proxy)
        await store.head(SCOPE, ref)
        assert asked(proxy) == {"head_object": 1}
        await store.get(SCOPE, ref)
        assert asked(proxy) == {"get_object": 2}
        await opened(store, ref, scope=SCOPE)
        assert asked(proxy) == {"get_object": 2}
        await store.delete(SCOPE, ref)
        assert asked(proxy) == {"head_object": 1, "delete_object": 2}


@pytest.mark.parametrize("lies_apart", [True, False])
async def test_who_reads_one_part_after_another_asks_once_where_it_is(
    place: Place, monkeypatch: pytest.MonkeyPatch, lies_apart: bool
) -> None:
    monkeypatch.setattr(places, "_LONGEST", 60.0)  # however slow the machine is
    async with counted(place) as (store, proxy):
        ref = (await (stream(store) if lies_apart else put(store, LARGE[:MIB]))).meta.ref
        asked(proxy)
        for start in (1_000, 2_000, 0, 3_000):
            assert await opened(store, ref, start, start + 9, scope=SCOPE) == LARGE[start : start + 9]
        assert asked(proxy) == {"head_object": 1, "get_object": 4}
        assert await opened(store, ref, scope=scope_of("another")) is None
        assert asked(proxy) == {"get_object": 1}, "in another scope it is nowhere"
        monkeypatch.setattr(places, "_LONGEST", -1.0)
        await opened(store, ref, 1_000, 1_009, scope=SCOPE)
        assert asked(proxy) == {"head_object": 1, "get_object": 1}, "it is asked again after a moment"


async def test_a_malformed_ref_asks_nothing(place: Place) -> None:
    async with counted(place) as (store, proxy):
        for verb in (store.get, store.head, store.delete):
            await verb(SCOPE, "no ref")
        assert asked(proxy) == {}


@pytest.mark.slow
async def test_a_listing_asks_for_every_artifact_once_and_remembers_what_cannot_have_changed(place: Place) -> None:
    async with counted(place) as (store, proxy):
        for number in range(5):
            await put(store, b"%d" % number)
        await anyio.sleep(3.1)  # as long as the times of the server's listings and headers are coarse, and one more
        asked(proxy)
        page = await store.list(SCOPE, limit=2)
        assert asked(proxy) == {"list": 1, "head_object": 5}
        await store.list(SCOPE, limit=2, cursor=page.cursor)
        assert asked(proxy) == {"list": 1}
        await store.delete(SCOPE, page.artifacts[0].ref)
        assert len((await store.list(SCOPE)).artifacts) == 4


async def test_a_sweep_of_a_store_in_which_nothing_is_dead_lists_and_looks_at_nothing(place: Place) -> None:
    async with counted(place, ttl=TTL) as (store, proxy):
        for number in range(5):
            await put(store, b"%d" % number)
        asked(proxy)
        await store.sweep()
        assert asked(proxy) == {"list": 2, "list_uploads": 1}
        await store.sweep(SCOPE)
        assert asked(proxy) == {"list": 2, "list_uploads": 2}


async def test_opening_reads_the_marker_and_the_first_put_learns_what_the_server_honours(place: Place) -> None:
    async with FaultProxy(place.server.url) as proxy:
        async with store_at(place, endpoint_url=proxy.url) as store:
            assert asked(proxy) == {"get_object": 1}
            await store.get(SCOPE, "no ref")
            await put(store)
            assert asked(proxy) == {"put_object": 5, "get_object": 1}
        async with store_at(place, endpoint_url=proxy.url) as store:
            await put(store, b"other")
            assert asked(proxy) == {"put_object": 4, "get_object": 1}


def has_checksums(request: ProxyRequest) -> bool:
    sums = ("x-amz-checksum-", "x-amz-sdk-checksum-algorithm", "x-amz-trailer")
    return any(name.startswith(sums) for name in request.headers)


async def test_j1_a_server_that_refuses_every_checksum_is_served_by_default(place: Place) -> None:
    refuses = answer(400, "InvalidRequest", where=has_checksums)
    async with FaultProxy(place.server.url, refuses) as proxy, store_at(place, endpoint_url=proxy.url) as store:
        small, large = (await put(store)).meta, (await stream(store)).meta
        assert not (await put(store)).created
        assert await store.head(SCOPE, small.ref) == small
        assert await opened(store, large.ref, scope=SCOPE) == LARGE
        assert {meta.ref for meta in (await store.list(SCOPE)).artifacts} == {small.ref, large.ref}
        await store.delete(SCOPE, small.ref)
        await store.delete(SCOPE, large.ref)
        assert keys(place) == ["coatcheck.json"]


async def test_j1_no_request_asks_for_what_servers_do_not_know(place: Place) -> None:
    async with FaultProxy(place.server.url) as proxy, store_at(place, endpoint_url=proxy.url) as store:
        await put(store)
        await stream(store)
        await store.list(SCOPE)
        await store.sweep()
        for request in proxy.requests:
            headers = request.headers
            assert "expect" not in headers
            assert "aws-chunked" not in headers.get("content-encoding", "")
            assert headers.get("transfer-encoding") is None
            assert "x-amz-sdk-checksum-algorithm" not in headers
            if request.method == "PUT":
                assert int(headers["content-length"]) == request.request_bytes
        assert {request.headers["user-agent"].split("/")[0] for request in proxy.requests} == {"coatcheck"}


async def test_every_upload_carries_a_sum_that_the_server_compares(place: Place) -> None:
    async with counted(place) as (store, proxy):
        await put(store)
        await stream(store)
        sent = [request for request in proxy.requests if request.method == "PUT"]
        assert len(sent) == 4
        for request in sent:
            name = "x-amz-checksum-crc32" if request.operation == "upload_part" else "x-amz-checksum-sha256"
            assert name in request.headers


async def test_j3_64_reads_at_once_share_few_connections_and_all_succeed(place: Place) -> None:
    async with counted(place, connections=5) as (store, proxy):
        data = bytes(range(256)) * 4096
        ref = (await put(store, data)).meta.ref
        got: list[bytes] = []

        async def get() -> None:
            artifact = await store.get(SCOPE, ref)
            assert artifact is not None
            got.append(artifact.data)

        async with anyio.create_task_group() as group:
            for _ in range(64):
                group.start_soon(get)
        assert got == [data] * 64
        assert proxy.peak_connections <= 10


async def test_j3_open_readers_hold_up_no_puts(place: Place) -> None:
    async with counted(place, connections=2) as (store, _):
        ref = (await put(store, bytes(4 * MIB))).meta.ref
        async with store.open(SCOPE, ref) as one, store.open(SCOPE, ref) as other:
            assert one is not None
            assert other is not None
            await anext(aiter(one))
            await anext(aiter(other))
            with anyio.fail_after(20):
                await put(store, b"meanwhile")
                assert await store.head(SCOPE, ref) is not None


async def test_j5_a_hundred_calls_have_one_client_and_one_connection(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    from aiobotocore.session import AioSession

    made: list[str] = []
    create = AioSession.create_client

    def counting(self: Any, name: str, *words: Any, **others: Any) -> Any:
        made.append(name)
        return create(self, name, *words, **others)

    monkeypatch.setattr(AioSession, "create_client", counting)
    async with counted(place) as (store, proxy):
        ref = (await put(store)).meta.ref
        for _ in range(100):
            assert await store.head(SCOPE, ref) is not None
        large = (await put(store, LARGE[:MIB])).meta.ref
        for _ in range(20):  # a body that was read serves the connection again
            assert await store.get(SCOPE, large) is not None
            assert await opened(store, large, scope=SCOPE) == LARGE[:MIB]
            assert await opened(store, large, 5, 70_000, scope=SCOPE) == LARGE[5:70_000]
        assert made == ["s3"]
        assert proxy.peak_connections == proxy.connections == 1


async def test_what_is_said_for_puts_is_said_by_every_object(place: Place) -> None:
    args = {"Tagging": "team=a%20b&cost=1", "StorageClass": "STANDARD", "CacheControl": "no-store"}
    async with counted(place, extra_put_args=args) as (store, proxy):
        await put(store, media_type="application/json")
        await stream(store)
        for request in proxy.requests:
            if request.operation in ("put_object", "create_multipart"):
                assert request.headers["x-amz-tagging"] == args["Tagging"]
                assert request.headers["x-amz-storage-class"] == "STANDARD"
                assert request.headers["cache-control"] == "no-store"
    for name in others(place):
        tags = place.server.client.get_object_tagging(Bucket=place.bucket, Key=place.key(name))["TagSet"]
        assert {tag["Key"]: tag["Value"] for tag in tags} == {"team": "a b", "cost": "1"}
        head = raw_head(place, name)
        assert head is not None
        assert head["CacheControl"] == "no-store"
