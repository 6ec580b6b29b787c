"""A caller that goes away at any moment: no upload is left, no data object, and no connection."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from datetime import timedelta
from typing import Any

import anyio
import pytest

from coatcheck import Scope
from coatcheck.testing.proxy import answer, silence
from tests.s3._faults import PART, PAYLOAD, SCOPE, WORDS, Faulty, faulty, left_in, scope_of, unavailable
from tests.s3._servers import Place, Server
from tests.s3._steps import cancelled_after, steps_of

pytestmark = pytest.mark.anyio

PlaceOn = Callable[[Server], Place]
DATA = PAYLOAD[: PART + 70_000]
SMALL = PAYLOAD[:100_000]


@pytest.fixture
def place(seaweed: Server, place_on: PlaceOn) -> Place:
    return place_on(seaweed)


def spread(steps: int, count: int) -> list[int]:
    """So many numbers of 1 to ``steps``, and all of the first and of the last ones."""
    most = range(1, steps + 1)
    return sorted({*most[:: max(1, steps // count)], *most[: count // 2], *most[-count // 2 :]})


async def check_cancelled(there: Faulty, start: Callable[[], Awaitable[Any]], count: int | None) -> None:
    """Cancel a call after its steps, all of them or a selection: after each, nothing is left that nobody will read."""
    with anyio.fail_after(20):
        await start()
        steps = await steps_of(start)
    assert steps >= 2
    chosen = list(range(1, steps + 20)) if count is None else spread(steps, count)
    cancelled = 0
    async with aclosing(cancelled_after(start, chosen)) as runs:
        async for number in runs:
            cancelled += 1
            left = await left_in(there.place)
            assert left == ([], []), f"cancelled after step {number} of {steps}: {left}"
            assert there.left == [], f"cancelled after step {number} of {steps}"
    assert cancelled >= 1


def direct(there: Faulty, name: str) -> dict[str, Callable[[], Awaitable[Any]]]:
    """The calls, each a fresh one, in scopes that go by this name."""
    numbers = iter(range(10**6))

    def fresh() -> Scope:
        return scope_of(f"{name}-{next(numbers)}")

    async def stream() -> None:
        await there.stream(fresh(), DATA)

    async def put() -> None:
        await there.put(fresh(), SMALL)

    async def put_that_expires() -> None:
        expires_at = there.clock.now + timedelta(hours=1)
        await there.store.put(fresh(), SMALL, expires_at=expires_at, **WORDS)

    async def stream_again() -> None:
        await there.stream(SCOPE, DATA)

    async def get() -> None:
        for meta in (await there.store.list(SCOPE)).artifacts:
            assert await there.store.get(SCOPE, meta.ref) is not None

    async def read() -> None:
        for meta in (await there.store.list(SCOPE)).artifacts:
            async with there.store.open(SCOPE, meta.ref) as reader:
                assert reader is not None
                assert len(await reader.read()) == meta.bytes

    async def list_() -> None:
        await there.store.list(SCOPE)

    async def sweep() -> None:
        await there.store.sweep()

    return {
        "stream": stream,
        "stream-again": stream_again,
        "put": put,
        "put-that-expires": put_that_expires,
        "get": get,
        "open": read,
        "list": list_,
        "sweep": sweep,
    }


@pytest.mark.parametrize(
    ("calls", "count"),
    [
        (["stream"], 6),
        (["stream-again"], 2),
        (["put", "put-that-expires"], 4),
        (["get", "open", "list", "sweep"], 3),
    ],
    ids=["stream", "stream-again", "puts", "reads"],
)
async def test_j4_a_call_that_is_cancelled_leaves_nothing_behind(place: Place, calls: list[str], count: int) -> None:
    """Case J4."""
    async with faulty(place, endpoint_url=place.server.url) as there:
        await there.stream(SCOPE, DATA)
        await there.put(SCOPE, SMALL)
        for call in calls:
            await check_cancelled(there, direct(there, call)[call], count)
        await still_works(there)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("call", ["stream", "stream-again", "put", "put-that-expires", "get", "open", "list", "sweep"])
async def test_j4_a_call_that_is_cancelled_after_any_of_its_steps_leaves_nothing_behind(
    place: Place, call: str
) -> None:
    """Case J4."""
    async with faulty(place, endpoint_url=place.server.url) as there:
        await there.stream(SCOPE, DATA)
        await there.put(SCOPE, SMALL)
        await check_cancelled(there, direct(there, call)[call], None)
        await still_works(there)


async def still_works(there: Faulty) -> None:
    scope = scope_of("after all that")
    with anyio.fail_after(20):
        assert await there.reads(scope, await there.stream(scope, DATA)) == DATA
        assert await there.reads(SCOPE, await there.put(SCOPE, SMALL)) == SMALL
    await there.is_clean()


async def test_a_delete_that_is_cancelled_leaves_no_data_object_without_its_pointer(place: Place) -> None:
    """It removes the pointer and then what it names: a caller that leaves in between does not part them."""
    async with faulty(place, endpoint_url=place.server.url) as there:
        scopes = [scope_of(f"deleted-{number}") for number in range(30)]
        expires_at = there.clock.now + timedelta(hours=1)  # so that it is a pointer and a data object
        refs = {
            scope: (await there.store.put(scope, SMALL, expires_at=expires_at, **WORDS)).meta.ref for scope in scopes
        }
        waiting = iter(scopes)

        async def delete() -> None:
            scope = next(waiting)
            await there.store.delete(scope, refs[scope])

        steps = await steps_of(delete)
        async with aclosing(cancelled_after(delete, spread(steps, 6))) as runs:
            async for number in runs:
                left = await left_in(there.place)
                assert left == ([], []), f"cancelled after step {number} of {steps}: {left}"


async def test_a_stream_that_is_cancelled_while_its_pointer_is_contested_leaves_no_data_object(place: Place) -> None:
    """A conflict is waited out; by then the data object is there, and nothing names it."""
    async with faulty(place, answer(409, on="put_object")) as there:

        async def contested() -> None:
            with unavailable("others write the same one"):
                await there.stream()

        async with anyio.create_task_group() as group:
            group.start_soon(contested)
            await there.proxy.seen("put_object")
            group.cancel_scope.cancel()
        await there.is_clean()
        assert there.left == []


async def test_downloads_that_are_cancelled_leak_no_connection(place: Place) -> None:
    async with faulty(place, connections=4, timeout=20.0) as there:
        ref = await there.stream(SCOPE, DATA)

        async def download(after: int) -> None:
            with anyio.CancelScope() as scope:
                async with there.store.open(SCOPE, ref) as reader:
                    assert reader is not None
                    count = 0
                    async for _ in reader:
                        count += 1
                        if count == after:
                            scope.cancel()

        async with anyio.create_task_group() as group:
            for number in range(100):
                group.start_soon(download, 1 + number % 3)
        with anyio.fail_after(10):
            assert await there.reads(SCOPE, ref) == DATA
        assert there.proxy.connections <= 8


async def test_gets_that_are_cancelled_while_the_server_says_nothing_leak_no_connection(place: Place) -> None:
    async with faulty(place, connections=4) as there:
        ref = await there.put(SCOPE, SMALL)
        there.proxy.add(silence(on="get_object"))
        for _ in range(10):
            before = there.proxy.count("get_object")
            async with anyio.create_task_group() as group:
                for _ in range(4):
                    group.start_soon(there.store.get, SCOPE, ref)
                await there.proxy.seen("get_object", before + 4)
                group.cancel_scope.cancel()
        there.proxy.heal()
        with anyio.fail_after(10):
            assert await there.reads(SCOPE, ref) == SMALL
