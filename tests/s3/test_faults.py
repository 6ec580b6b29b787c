"""A network and a server that fail: every call ends in time, what was acknowledged is read back, nothing is silent."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import anyio
import pytest

import coatcheck as cc
from coatcheck.testing.proxy import ProxyRequest, alter, answer, reset, silence, slow, stall, truncate
from tests.s3._faults import MIB, PART, PAYLOAD, SCOPE, WORDS, Faulty, every, faulty, of_scope, scope_of, unavailable
from tests.s3._servers import Place, Server

pytestmark = pytest.mark.anyio

PlaceOn = Callable[[Server], Place]
RANDOM = random.Random(13)
BLOB = PAYLOAD[:MIB]


@pytest.fixture(scope="module", params=["asyncio", pytest.param("trio", marks=pytest.mark.slow)])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Both event loops; on trio in the slow lane, as only the transport differs."""
    backend: str = request.param
    return backend


@pytest.fixture
def place(seaweed: Server, place_on: PlaceOn) -> Place:
    return place_on(seaweed)


def verbs(there: Faulty, ref: str) -> dict[str, Callable[[], Any]]:
    """Every verb of the store, about an artifact of ``SCOPE``."""

    async def read() -> None:
        async with there.store.open(SCOPE, ref) as reader:
            assert reader is not None
            await reader.read()

    return {
        "head": lambda: there.store.head(SCOPE, ref),
        "get": lambda: there.store.get(SCOPE, ref),
        "open": read,
        "put": lambda: there.store.put(SCOPE, BLOB + b"new", **WORDS),
        "list": lambda: there.store.list(SCOPE),
        "delete": lambda: there.store.delete(SCOPE, ref),
        "sweep": lambda: there.store.sweep(),
        "usage": lambda: there.store.usage(),
    }


async def all_fail(there: Faulty, ref: str, *names: str, within: float) -> None:
    """Every verb says that the store cannot answer, within so many seconds."""
    async with anyio.create_task_group() as group:
        for verb in verbs(there, ref).values():

            async def fails(verb: Callable[[], Any] = verb) -> None:
                with anyio.fail_after(within), unavailable("127.0.0.1", *names):
                    await verb()

            group.start_soon(fails)


async def all_work(there: Faulty, ref: str, data: bytes) -> None:
    assert await there.reads(SCOPE, ref) == data
    for verb in verbs(there, ref).values():
        with anyio.fail_after(20):
            await verb()
    await there.is_clean()


async def test_j7_a_refused_connection_is_told_and_gone_when_the_port_is_open_again(place: Place) -> None:
    """Case J7."""
    async with faulty(place, attempts=1) as there:
        ref = await there.put()
        await there.proxy.refuse()
        there.proxy.drop()
        with unavailable("127.0.0.1"):  # on trio, who is given an idle connection is told that it broke
            await there.store.head(SCOPE, ref)
        await all_fail(there, ref, "cannot be reached", within=12)
        with unavailable("cannot be reached"):
            await there.stream()
        await there.proxy.accept()
        await all_work(there, ref, b"content")
        assert await there.reads(SCOPE, await there.stream()) == PAYLOAD


async def test_j7_a_store_cannot_be_opened_where_nothing_listens(place: Place) -> None:
    """Case J7."""
    async with faulty(place) as there:
        await there.proxy.refuse()
        store = cc.S3Store(place.bucket, **place.options(endpoint_url=there.proxy.url, timeout=2, attempts=1))
        with anyio.fail_after(10), unavailable("cannot be reached", "endpoint_url"):
            async with store:
                pass
        await there.proxy.accept()
        async with store:
            assert (await store.list(SCOPE)).artifacts == ()


async def test_j7_a_server_that_accepts_and_says_nothing_is_told_in_time(place: Place) -> None:
    """Case J7; also to a put, whose body goes out without waiting for a ``100 Continue`` that never comes."""
    async with faulty(place, timeout=2.0, attempts=2) as there:
        ref = await there.put()
        there.proxy.add(silence())
        await all_fail(there, ref, "did not answer", within=12)
        there.proxy.heal()
        await all_work(there, ref, b"content")


async def test_j7_a_server_that_takes_a_body_and_no_more_of_it_is_told_in_time(place: Place) -> None:
    """Case J7: nothing on the way has a timeout for sending, so the store's own deadline ends it."""
    async with faulty(place, timeout=1.0, attempts=1) as there:
        there.proxy.add(stall(after_request_bytes=0, on="put_object"))
        # Sockets keep some megabytes, so this one is all sent, and waits for an answer.
        with anyio.fail_after(10), unavailable("did not answer"):
            await there.put(SCOPE, BLOB)
        there.proxy.heal()
        assert await there.reads(SCOPE, await there.put(SCOPE, BLOB)) == BLOB


@pytest.mark.slow
async def test_a_stream_to_a_server_that_takes_no_more_of_it_ends_in_time_and_leaves_nothing(place: Place) -> None:
    async with faulty(place, timeout=1.0, attempts=1) as there:
        there.proxy.add(stall(after_request_bytes=MIB, on="upload_part"))
        with anyio.fail_after(45), unavailable("did not answer"):
            await there.stream()
        there.proxy.heal()
        await there.is_clean_after_a_sweep()


@pytest.mark.parametrize(
    "operation",
    [
        "upload_part",
        pytest.param("create_multipart", marks=pytest.mark.slow),
        pytest.param("complete_multipart", marks=pytest.mark.slow),
    ],
)
async def test_j7_a_stream_to_a_server_that_says_nothing_ends_in_time_and_leaves_nothing(
    place: Place, operation: str
) -> None:
    """Case J7."""
    async with faulty(place, timeout=2.0, attempts=1) as there:
        there.proxy.add(silence(on=operation))
        with anyio.fail_after(20), unavailable("did not answer"):
            await there.stream()
        there.proxy.heal()
        await there.is_clean()
        assert there.left == []


async def test_what_a_socket_still_has_to_send_is_no_silence_of_the_server(place: Place) -> None:
    """A body that is written is not yet on its way: sockets take megabytes, which a slow link drains in its time."""
    async with faulty(place, timeout=1.0, attempts=1) as there:
        there.proxy.add(slow(request_rate=MIB // 2, on="put_object"))
        ref = await there.put(SCOPE, PAYLOAD[: 3 * MIB // 2])
        there.proxy.heal()
        assert await there.reads(SCOPE, ref) == PAYLOAD[: 3 * MIB // 2]


@pytest.mark.slow
async def test_a_slow_server_is_waited_for_until_the_deadline_and_no_longer(place: Place) -> None:
    async with faulty(place, timeout=2.0, attempts=1) as there:
        there.proxy.add(slow(delay=0.3, request_rate=2 * MIB, response_rate=4 * MIB))
        ref = await there.put(SCOPE, BLOB)
        assert await there.reads(SCOPE, ref) == BLOB
        there.proxy.heal()

        there.proxy.add(slow(delay=30))
        with anyio.fail_after(10), unavailable("did not answer"):
            await there.store.head(SCOPE, ref)
        there.proxy.heal()
        assert await there.reads(SCOPE, ref) == BLOB


async def test_a_put_gets_over_a_connection_that_breaks_anywhere_in_its_body_or_in_the_answer(place: Place) -> None:
    marks = [0, 1, MIB - 1, MIB, *(RANDOM.randrange(MIB) for _ in range(3))]
    async with faulty(place) as there:

        async def strike(number: int) -> None:
            scope, mark = scope_of(f"reset-at-{number}"), marks[number - 1]
            there.proxy.add(reset(after_request_bytes=mark, on="put_object", where=of_scope(scope), nth=1))
            assert await there.reads(scope, await there.put(scope, BLOB)) == BLOB

        await every(len(marks), strike)
        assert sum(request.faulted for request in there.proxy.requests) == len(marks)
        await there.is_clean()


async def test_a_stream_gets_over_connections_that_break_anywhere_in_its_parts(place: Place) -> None:
    async with faulty(place) as there:
        for number in (1, 2, 3):
            there.proxy.add(
                reset(
                    after_request_bytes=RANDOM.randrange(70_000),
                    where=_part(number),
                    nth=1,
                )
            )
        assert await there.reads(SCOPE, await there.stream()) == PAYLOAD
        assert sum(request.faulted for request in there.proxy.requests) == 3
        await there.is_clean()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
async def test_a_stream_gets_over_any_break_in_any_part(place: Place, seed: int) -> None:
    chosen = random.Random(seed)
    async with faulty(place) as there:
        mark = chosen.choice([0, 1, PART - 1, PART, chosen.randrange(PART)])
        there.proxy.add(reset(after_request_bytes=mark, on="upload_part", nth=chosen.choice([1, 2])))
        assert await there.reads(SCOPE, await there.stream()) == PAYLOAD
        await there.is_clean()


async def test_a_get_and_a_reader_go_on_where_their_connection_broke(place: Place) -> None:
    """However often, as long as each attempt brings something: there is never a gap."""
    async with faulty(place, attempts=1) as there:
        ref = await there.put(SCOPE, BLOB)
        long = await there.stream()
        for after in (0, MIB - 1, RANDOM.randrange(MIB)):
            for break_ in (reset, truncate):
                there.proxy.add(break_(after_response_bytes=after, on="get_object", calls=2))
                artifact = await there.store.get(SCOPE, ref)
                assert artifact is not None
                assert artifact.data == BLOB
                there.proxy.heal()
        for break_ in (reset, truncate):
            there.proxy.add(break_(after_response_bytes=3 * MIB + RANDOM.randrange(MIB), on="get_object"))
            async with there.store.open(SCOPE, long) as reader:
                assert reader is not None
                assert await reader.read() == PAYLOAD
            there.proxy.heal()
            there.proxy.add(break_(after_response_bytes=RANDOM.randrange(MIB), on="get_object", calls=3))
            async with there.store.open(SCOPE, long, MIB, 7 * MIB) as reader:
                assert reader is not None
                assert await reader.read() == PAYLOAD[MIB : 7 * MIB]
            there.proxy.heal()


@pytest.mark.slow
async def test_a_body_that_breaks_off_every_time_is_an_error_and_never_a_shorter_payload(place: Place) -> None:
    async with faulty(place, attempts=1) as there:
        ref = await there.put(SCOPE, BLOB)
        for fault in (
            truncate(after_response_bytes=0, on="get_object"),
            reset(after_response_bytes=0, on="get_object"),
        ):
            there.proxy.add(fault)
            with unavailable():
                await there.store.get(SCOPE, ref)
            with unavailable():
                async with there.store.open(SCOPE, ref) as reader:
                    assert reader is not None
                    await reader.read()
            there.proxy.heal()


async def test_a_payload_whose_bytes_change_on_the_way_back_is_never_taken_for_what_was_put(place: Place) -> None:
    async with faulty(place) as there:
        short, long = await there.put(SCOPE, BLOB), await there.stream()
        for ref, size in ((short, len(BLOB)), (long, len(PAYLOAD))):
            for offset in (0, RANDOM.randrange(size), size - 1):
                there.proxy.add(alter(response_at=offset, on="get_object", where=_holding(size)))
                with pytest.raises(cc.IntegrityError):
                    await there.store.get(SCOPE, ref)
                with pytest.raises(cc.IntegrityError):
                    await verbs(there, ref)["open"]()
                there.proxy.heal()
            assert await there.reads(SCOPE, ref) == (BLOB if size == len(BLOB) else PAYLOAD)


def _holding(size: int) -> Callable[[ProxyRequest], bool]:
    """Whether the object that is asked for is the one that holds a payload of this size."""
    return lambda asked: ("/streams.d/" in asked.path) == (size == len(PAYLOAD))


def _part(number: int) -> Callable[[ProxyRequest], bool]:
    return lambda asked: f"partNumber={number}&" in f"{asked.path}&"


async def test_a_listing_that_is_garbled_is_an_error_and_never_an_empty_one(place: Place) -> None:
    async with faulty(place, attempts=1) as there:
        await there.put()
        there.proxy.add(alter(response_at=0, length=10_000, on="list"))
        with unavailable("list artifacts"):
            await there.store.list(SCOPE)
        there.proxy.heal()
        there.proxy.add(truncate(after_response_bytes=100, on="list"))
        with unavailable():
            await there.store.list(SCOPE)
        there.proxy.heal()
        assert len((await there.store.list(SCOPE)).artifacts) == 1


@pytest.mark.parametrize(
    "fault",
    [answer(503), silence(), answer(403, "ExpiredToken"), reset()],
    ids=["busy", "silent", "expired", "broken"],
)
async def test_c7_a_result_whose_store_fails_is_shortened_and_the_call_succeeds(place: Place, fault: Any) -> None:
    """Case C7."""

    async def give() -> str:
        return "x" * 20_000

    async with faulty(place, timeout=2.0, attempts=1) as there:
        there.proxy.add(fault)
        events: list[cc.Event] = []
        boundary = cc.Boundary(
            [cc.tool(give)],
            store=there.store,
            placement=cc.Placement(1_000, timeout=1.0),
            truncation=cc.Truncation(max_chars=2_000),
            on_event=events.append,
        )
        with anyio.fail_after(10):
            outcome = await boundary.session(SCOPE).call("give", {})
        assert isinstance(outcome, cc.Truncated)
        [refused] = [event for event in events if isinstance(event, cc.ArtifactRefused)]
        assert (refused.op, refused.reason) == ("put", "store-failed")
        assert refused.detail

        there.proxy.heal()
        outcome = await boundary.session(SCOPE).call("give", {})
        assert isinstance(outcome, cc.Placed)
