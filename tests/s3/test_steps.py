"""A failure at every request of a put in turn, once and for ever: nothing is lost, wrong, or left behind."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from datetime import timedelta
from typing import Any

import anyio
import pytest

from coatcheck import Scope, StoreUnavailable
from coatcheck.testing.proxy import ProxyFault, alter, answer, lose_answer, reset
from tests.s3._faults import (
    PART,
    PAYLOAD,
    SCOPE,
    WORDS,
    Faulty,
    check_error,
    every,
    faulty,
    of_scope,
    onwards,
    scope_of,
    unavailable,
)
from tests.s3._servers import Place, Server, uploads

pytestmark = pytest.mark.anyio

PlaceOn = Callable[[Server], Place]
STREAM = [
    "create_multipart",
    "upload_part",
    "upload_part",
    "upload_part",
    "head_object",
    "complete_multipart",
    "head_object",
    "put_object",
]
"""The requests of a stream of three parts."""

ALL = range(1, len(STREAM) + 1)


def at_some(*some: int) -> pytest.MarkDecorator:
    """Strike some of a stream's requests in every run, and each of them in the slow one."""
    return pytest.mark.parametrize("at", [some, pytest.param(ALL, marks=pytest.mark.slow)], ids=["some", "all"])


TTL = timedelta(days=7)
PUT_WITH_A_TTL = ["head_object", "put_object"]
"""The requests of a put into a store that has a ttl: it looks into the generation before, and writes this one."""


@pytest.fixture(scope="module", params=["asyncio", pytest.param("trio", marks=pytest.mark.slow)])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Both event loops; on trio in the slow lane, as only the transport differs."""
    backend: str = request.param
    return backend


@pytest.fixture
def place(seaweed: Server, place_on: PlaceOn) -> Place:
    return place_on(seaweed)


async def test_a_stream_of_three_parts_is_eight_requests(place: Place) -> None:
    """What the other tests here strike one by one."""
    async with faulty(place) as there:
        ref = await there.stream()
        assert [request.operation for request in there.proxy.requests] == STREAM
        assert await there.reads(SCOPE, ref) == PAYLOAD
        await there.is_clean()


async def test_a_put_with_a_ttl_is_two_requests(place: Place) -> None:
    async with faulty(place, ttl=TTL) as there:
        await there.put()
        assert [request.operation for request in there.proxy.requests] == PUT_WITH_A_TTL


async def struck_in_turn(
    there: Faulty, at: Sequence[int], fault: Callable[..., ProxyFault], *, lasting: bool, data: bytes
) -> dict[Scope, str | StoreUnavailable]:
    """Put once for each of these requests of a put, at which the fault strikes: what came of each.

    What is acknowledged is there, byte for byte, and what is not acknowledged is an error that says what is wrong.
    """
    outcomes: dict[Scope, str | StoreUnavailable] = {}

    async def strike(index: int) -> None:
        number = at[index - 1]
        scope = scope_of(f"struck-at-{number}")
        made = fault(where=of_scope(scope), nth=number)
        there.proxy.add(onwards(made, number) if lasting else made)
        try:
            outcomes[scope] = await (there.stream if len(data) > PART else there.put)(scope, data)
        except StoreUnavailable as error:
            check_error(error, "127.0.0.1")
            outcomes[scope] = error

    await every(len(at), strike)
    there.proxy.heal()
    for scope, outcome in outcomes.items():
        if isinstance(outcome, str):
            assert await there.reads(scope, outcome) == data
        else:
            assert await nothing_or(there, scope, data)
    return outcomes


async def nothing_or(there: Faulty, scope: Scope, data: bytes) -> bool:
    """A put that was not acknowledged has come to nothing, or to all of it."""
    listed = (await there.store.list(scope)).artifacts
    return [await there.reads(scope, meta.ref) for meta in listed] in ([], [data])


@pytest.mark.parametrize(
    "status", [503, pytest.param(500, marks=pytest.mark.slow), pytest.param(429, marks=pytest.mark.slow)]
)
@at_some(1, 3, 5, 7)
async def test_a_stream_gets_over_one_failure_at_any_of_its_requests(
    place: Place, at: Sequence[int], status: int
) -> None:
    async with faulty(place) as there:

        def fault(**which: Any) -> ProxyFault:
            return answer(status, "SlowDown" if status != 500 else "InternalError", **which)

        outcomes = await struck_in_turn(there, at, fault, lasting=False, data=PAYLOAD)
        assert [outcome for outcome in outcomes.values() if not isinstance(outcome, str)] == []
        await there.is_clean()
        assert there.left == []


@at_some(2, 6, 8)
async def test_a_conflict_at_any_request_of_a_stream_leaves_nothing_after_a_sweep(
    place: Place, at: Sequence[int]
) -> None:
    """Only a write that has a condition is tried again after a conflict: the one of the pointer.

    Where the data object is there already and cannot be looked at, it is left for a sweep.
    """
    async with faulty(place) as there:
        outcomes = await struck_in_turn(there, at, lambda **which: answer(409, **which), lasting=False, data=PAYLOAD)
        assert isinstance(outcomes[scope_of("struck-at-8")], str)
        assert there.left == []
        await there.is_clean_after_a_sweep()


@pytest.mark.parametrize(
    "status", [500, pytest.param(503, marks=pytest.mark.slow), pytest.param(409, marks=pytest.mark.slow)]
)
@at_some(3, 8)
async def test_a_stream_whose_server_fails_from_any_of_its_requests_on_leaves_what_a_sweep_removes(
    place: Place, at: Sequence[int], status: int
) -> None:
    async with faulty(place) as there:
        outcomes = await struck_in_turn(there, at, lambda **which: answer(status, **which), lasting=True, data=PAYLOAD)
        assert [outcome for outcome in outcomes.values() if isinstance(outcome, str)] == []
        assert {id for _, id in uploads(place)} <= set(there.left)
        await there.is_clean_after_a_sweep()


@at_some(1, 4, 6, 8)
async def test_a_stream_gets_over_one_lost_answer_at_any_of_its_requests(place: Place, at: Sequence[int]) -> None:
    """Also of the one that ends the upload, and of the one that writes the pointer: done, and the store cannot know."""
    async with faulty(place) as there:
        outcomes = await struck_in_turn(there, at, lose_answer, lasting=False, data=PAYLOAD)
        assert [outcome for outcome in outcomes.values() if not isinstance(outcome, str)] == []
        assert there.left == []
        await there.is_clean_after_a_sweep()


@pytest.mark.slow
@pytest.mark.parametrize("at", [ALL], ids=["all"])
async def test_a_stream_whose_answers_are_lost_from_any_of_its_requests_on_leaves_what_a_sweep_removes(
    place: Place,
    at: Sequence[int],
) -> None:
    async with faulty(place) as there:
        await struck_in_turn(there, at, lose_answer, lasting=True, data=PAYLOAD)
        await there.is_clean_after_a_sweep()


@pytest.mark.slow
@pytest.mark.parametrize("at", [ALL], ids=["all"])
async def test_a_stream_whose_connections_break_from_any_of_its_requests_on_leaves_what_a_sweep_removes(
    place: Place,
    at: Sequence[int],
) -> None:
    async with faulty(place) as there:
        await struck_in_turn(there, at, reset, lasting=True, data=PAYLOAD)
        await there.is_clean_after_a_sweep()


@pytest.mark.parametrize("fault", [lambda **which: answer(503, **which), lose_answer, reset])
async def test_a_put_with_a_ttl_gets_over_one_failure_at_any_of_its_requests(
    place: Place, fault: Callable[..., ProxyFault]
) -> None:
    async with faulty(place, ttl=TTL) as there:
        outcomes = await struck_in_turn(there, (1, 2), fault, lasting=False, data=b"content")
        assert [outcome for outcome in outcomes.values() if not isinstance(outcome, str)] == []
        await there.is_clean()


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(lambda **which: answer(500, **which), marks=pytest.mark.slow),
        lose_answer,
        pytest.param(reset, marks=pytest.mark.slow),
    ],
)
async def test_a_put_with_a_ttl_whose_server_fails_from_any_of_its_requests_on_has_come_to_nothing_or_to_all(
    place: Place, fault: Callable[..., ProxyFault]
) -> None:
    async with faulty(place, ttl=TTL) as there:
        outcomes = await struck_in_turn(there, (1, 2), fault, lasting=True, data=b"content")
        assert [outcome for outcome in outcomes.values() if isinstance(outcome, str)] == []
        await there.is_clean()


async def test_a_put_gets_over_a_conflict_and_over_a_lost_answer(place: Place) -> None:
    async with faulty(place) as there:
        for number, fault in enumerate([answer(409, nth=1), lose_answer(nth=1)]):
            there.proxy.heal()
            there.proxy.add(fault)
            scope = scope_of(f"put-{number}")
            ref = await there.put(scope)
            assert await there.reads(scope, ref) == b"content"


async def test_what_will_expire_in_a_store_without_a_ttl_leaves_nothing_either(place: Place) -> None:
    """It is a data object and a pointer, in two requests: one that is lost half way is removed, or swept."""
    async with faulty(place) as there:
        expires_at = there.clock.now + timedelta(days=1)
        for number, fault in enumerate([answer(500, on="put_object"), onwards(answer(500, on="put_object"), 2)]):
            there.proxy.add(fault)
            with unavailable("500"):
                await there.store.put(scope_of(f"{number}"), b"content", expires_at=expires_at, **WORDS)
            there.proxy.heal()
        await there.is_clean_after_a_sweep()


async def test_j4_an_abort_that_fails_once_is_tried_again(place: Place) -> None:
    """Case J4."""
    async with faulty(place, attempts=1) as there:
        there.proxy.add(answer(500, on="upload_part", nth=2), answer(500, on="abort_multipart", nth=1))
        with unavailable("500", "store a part"):
            await there.stream()
        await there.is_clean()
        assert there.left == []


async def test_j4_an_upload_that_cannot_be_aborted_is_told_with_its_id_and_swept_a_day_later(place: Place) -> None:
    """Case J4."""
    async with faulty(place, attempts=1) as there:
        there.proxy.add(answer(500, on="upload_part", nth=2), answer(503, on="abort_multipart"))
        with unavailable("500", "store a part"):
            await there.stream()
        [(_, id)] = uploads(place)
        assert there.left == [id]

        there.proxy.heal()
        there.clock.advance(23 * 3600)
        assert await there.store.sweep() == ()
        assert [(id) for _, id in uploads(place)] == there.left
        there.clock.advance(2 * 3600)
        [swept] = await there.store.sweep()
        assert swept.reason == "orphan"
        await there.is_clean()


class Broken(Exception):
    """The source's own."""


@pytest.mark.parametrize("part", [0, 1, 2, 3])
async def test_j4_a_source_that_raises_in_any_part_is_heard_unchanged_and_leaves_no_upload(
    place: Place, part: int
) -> None:
    """Case J4. At 0 nothing came of it yet; at 3 all parts are there, and the end is missing."""
    broken = Broken("the source's own words")

    async def source() -> AsyncGenerator[bytes, None]:
        for number in range(part):
            yield PAYLOAD[number * PART : (number + 1) * PART]
        raise broken

    async with faulty(place) as there:
        with pytest.raises(Broken) as raised, anyio.fail_after(20):
            await there.store.put_stream(SCOPE, source(), **WORDS)
        assert raised.value is broken
        assert broken.__cause__ is None
        assert (await there.store.list(SCOPE)).artifacts == ()
        await there.is_clean()
        assert there.left == []


@pytest.mark.parametrize(
    "offset", [123_456, pytest.param(0, marks=pytest.mark.slow), pytest.param(PART - 1, marks=pytest.mark.slow)]
)
async def test_a_part_whose_bytes_change_on_the_way_is_refused_and_nothing_is_minted(place: Place, offset: int) -> None:
    async with faulty(place) as there:
        there.proxy.add(alter(request_at=offset, on="upload_part", where=lambda asked: "partNumber=2" in asked.path))
        with unavailable("BadDigest"):
            await there.stream()
        await there.is_clean()
        assert (await there.store.list(SCOPE)).artifacts == ()


async def test_a_payload_whose_bytes_change_on_the_way_is_refused_and_nothing_is_minted(place: Place) -> None:
    async with faulty(place) as there:
        there.proxy.add(alter(request_at=3, on="put_object"))
        with unavailable("BadDigest"):
            await there.put()
        assert (await there.store.list(SCOPE)).artifacts == ()
        there.proxy.heal()
        assert await there.reads(SCOPE, await there.put()) == b"content"
