"""Claims in a bucket: at most once among any number of tasks and processes, and never where a server cannot keep it.

Law: `design.md` section 3, parting 3.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from anyio import to_thread
from anyio.lowlevel import checkpoint

import coatcheck as cc
from coatcheck.artifacts.s3.doctor.race import RACERS, race
from coatcheck.testing.proxy import FaultProxy, ProxyRequest, answer, lose_answer, silence
from tests.s3._servers import Place, Server, keys

pytestmark = pytest.mark.anyio

SCOPE = cc.Scope(conversation="c")
ON_ASYNCIO = pytest.mark.parametrize("anyio_backend", ["asyncio"])


def store_at(place: Place, **options: Any) -> cc.S3Store:
    return cc.S3Store(place.bucket, **place.options(**options))


def trusted(place: Place, **options: Any) -> cc.S3Approvals:
    """Approvals as they are after a fair race: the mock honours conditions, but not always in a race."""
    approvals = cc.S3Approvals(store_at(place, **options))
    approvals._fair = True
    return approvals


@pytest.fixture
def mock(moto: Server, place_on: Callable[[Server], Place]) -> Place:
    """On the server that is the quickest here."""
    return place_on(moto)


def of_claims(request: ProxyRequest) -> bool:
    return "/claims.d/" in request.path


async def claimed(place: Place) -> list[str]:
    return await to_thread.run_sync(keys, place)


@pytest.mark.parametrize("server", ["seaweed", "ceph"], indirect=True)
async def test_a_claim_is_made_once_and_never_again_by_anyone(server: Server, place: Place) -> None:
    async with store_at(place) as one, store_at(place) as other:
        first, second = cc.S3Approvals(one), cc.S3Approvals(other)
        assert [await first.claim("a"), await second.claim("a"), await first.claim("a")] == [True, False, False]
        assert [await second.claim("b"), await first.claim("b")] == [True, False]
    assert [name.split("/")[0] for name in await claimed(place)] == ["claims.d"] * 2


@pytest.mark.parametrize("id", ["", "../../etc/passwd", "a/b", "\x00", "\ud800", "\u4e2d" * 10_000])
async def test_an_id_is_any_text_and_names_nothing_but_its_hash(mock: Place, id: str) -> None:
    async with trusted(mock) as approvals:
        assert [await approvals.claim(id), await approvals.claim(id)] == [True, False]
    [name] = await claimed(mock)
    assert len(name.removeprefix("claims.d/")) == 64


@pytest.mark.slow
@pytest.mark.parametrize(("server", "tasks"), [("seaweed", 6), ("ceph", 24)], indirect=["server"])
async def test_many_tasks_that_claim_one_use_at_once_make_it_once(server: Server, place: Place, tasks: int) -> None:
    results: list[bool] = []
    async with store_at(place) as one, store_at(place) as other:
        desks = [cc.S3Approvals(one), cc.S3Approvals(other)]

        async def claim(number: int) -> None:
            results.append(await desks[number % 2].claim("one"))

        async with anyio.create_task_group() as group:
            for number in range(tasks):
                group.start_soon(claim, number)
    assert sorted(results) == [False] * (tasks - 1) + [True]


RACER = """
import sys
import anyio, coatcheck
async def main():
    async with coatcheck.S3Approvals(coatcheck.open_store(sys.argv[1])) as approvals:
        print("ready", flush=True)
        sys.stdin.readline()
        for number in range(8):
            print(number if await approvals.claim(f"id {number}") else "", flush=True)
anyio.run(main)
"""


@pytest.mark.slow
@pytest.mark.parametrize("server", ["seaweed", "ceph"], indirect=True)
def test_two_processes_that_claim_the_same_uses_at_once_make_each_exactly_once(server: Server, place: Place) -> None:
    command, environment = [sys.executable, "-c", RACER, place.url()], {**os.environ, **server.env()}
    racers = [
        subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    won = [line for racer in racers for line in racer.communicate(timeout=50)[0].split()]
    assert [racer.returncode for racer in racers] == [0, 0]
    assert sorted(map(int, won)) == list(range(8))


# --- answers that are lost, late or refusals ---


async def test_a_claim_whose_answer_is_lost_is_told_from_a_second_use(mock: Place) -> None:
    lost = lose_answer(on="put_object", where=of_claims, nth=1)
    async with FaultProxy(mock.server.url, lost) as proxy:
        async with trusted(mock, endpoint_url=proxy.url) as approvals:
            assert await approvals.claim("a")
            assert not await approvals.claim("a")
        assert [request.operation for request in proxy.requests if of_claims(request)] == [
            *["put_object", "put_object", "get_object"],
            *["put_object", "get_object"],
        ]


async def test_a_conflict_with_another_write_is_tried_again(mock: Place) -> None:
    conflict = answer(409, "ConditionalRequestConflict", on="put_object", where=of_claims, calls=2)
    async with (
        FaultProxy(mock.server.url, conflict) as proxy,
        trusted(mock, endpoint_url=proxy.url) as approvals,
    ):
        assert [await approvals.claim("a"), await approvals.claim("a")] == [True, False]


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [
        answer(503, "SlowDown", where=of_claims),
        answer(403, "AccessDenied", where=of_claims),
        answer(409, "ConditionalRequestConflict", where=of_claims),
        answer(412, "PreconditionFailed", on="put_object", where=of_claims),
        silence(where=of_claims),
    ],
    ids=["503", "403", "409", "412 for nothing", "silence"],
)
async def test_what_cannot_be_told_is_an_error(mock: Place, fault: Any) -> None:
    async with (
        FaultProxy(mock.server.url, fault) as proxy,
        trusted(mock, endpoint_url=proxy.url, timeout=2, attempts=1) as approvals,
    ):
        with pytest.raises(cc.StoreUnavailable, match="record a claim"):
            await approvals.claim("a")
    assert await claimed(mock) == []


@pytest.mark.parametrize("nth", [1, 2])
async def test_a_claim_that_is_cancelled_is_made_at_most_once(mock: Place, nth: int) -> None:
    scope = anyio.CancelScope()

    def cancel(request: ProxyRequest) -> bool:
        if of_claims(request):
            scope.cancel()
        return False

    async with (
        trusted(mock) as again,
        FaultProxy(mock.server.url, silence(where=cancel)) as proxy,
        trusted(mock, endpoint_url=proxy.url) as approvals,
    ):
        if nth == 2:
            assert await again.claim("a")
        made = []
        with scope:
            made.append(await approvals.claim("a"))
        assert made in ([], [False])
        assert await again.claim("a") in ((True, False) if nth == 1 else (False,))
        assert not await again.claim("a")


# --- a server that cannot keep it ---


async def test_a_race_with_more_than_one_winner_is_not_fair() -> None:
    there: set[int] = set()

    async def honours(number: int, racer: int) -> int:
        first = number not in there
        there.add(number)
        return 200 if first else 412

    async def looks_first(number: int, racer: int) -> int:
        """As servers do that look and write in two steps."""
        if number in there:
            return 412
        await checkpoint()
        there.add(number)
        return 200

    async def ignores(number: int, racer: int) -> int:
        return 200

    async def is_broken(number: int, racer: int) -> int:
        return 500

    async def refuses(number: int, racer: int) -> int:
        return 409

    assert (await race(honours)).winners == (1, 1, 1)
    there.clear()
    assert not (await race(looks_first)).fair
    assert (await race(ignores)).winners == (RACERS,)
    for useless in (is_broken, refuses):
        with pytest.raises(cc.StoreUnavailable, match="who came first"):
            await race(useless)


@pytest.mark.slow
async def test_a_server_that_ignores_the_condition_is_refused_at_the_start_and_at_every_claim(
    juicefs: Server, place_on: Callable[[Server], Place]
) -> None:
    place = place_on(juicefs)
    store = store_at(place)
    with pytest.raises(cc.ConfigurationError, match="an approval could be used twice"):
        async with cc.S3Approvals(store):
            pass
    async with store:
        approvals = cc.S3Approvals(store)
        for _ in range(2):
            with pytest.raises(cc.ConfigurationError, match="4 of 4 racers were told that they came first"):
                await approvals.claim("a")
    assert await claimed(place) == []


async def test_a_race_that_is_cancelled_leaves_nothing(mock: Place) -> None:
    scope = anyio.CancelScope()

    def cancel(request: ProxyRequest) -> bool:
        if request.operation == "put_object":
            scope.cancel()
        return False

    async with FaultProxy(mock.server.url, silence(where=cancel)) as proxy:
        with scope:
            async with cc.S3Approvals(store_at(mock, endpoint_url=proxy.url)):
                pass
    assert scope.cancelled_caught
    assert await claimed(mock) == []


# --- how it is used ---


async def test_a_claim_is_made_whether_the_store_is_open_or_not(mock: Place) -> None:
    approvals = trusted(mock)
    assert [await approvals.claim("a"), await approvals.claim("a")] == [True, False]
    async with approvals, approvals:
        assert [await approvals.claim("a"), await approvals.claim("b")] == [False, True]
    assert not await approvals.claim("b")


def test_what_is_no_s3_store_is_refused_by_name() -> None:
    with pytest.raises(cc.ConfigurationError, match="must be an S3Store, not MemoryStore"):
        cc.S3Approvals(cc.MemoryStore())  # type: ignore[arg-type]  # a slip


class Asks(cc.Rule):
    name = "asks"

    def before_tool(self, call: cc.ToolCall) -> Any:
        return cc.ask("may it?")


@pytest.mark.slow
async def test_replicas_that_share_the_bucket_execute_once(
    seaweed: Server, place_on: Callable[[Server], Place]
) -> None:
    ran: list[str] = []
    place = place_on(seaweed)

    async def transfer() -> str:
        ran.append("ran")
        return "done"

    def desk() -> cc.Boundary:
        store = store_at(place)
        return cc.Boundary([transfer], rules=[Asks()], secret="s" * 32, store=store, approvals=cc.S3Approvals(store))

    outcomes: list[cc.Outcome] = []
    async with desk() as one, desk() as other:
        outcome = await one.session(SCOPE).call("transfer")
        assert isinstance(outcome, cc.Pending)
        data = outcome.call.to_bytes()

        async def resume(boundary: cc.Boundary) -> None:
            outcomes.append(await boundary.session(SCOPE).resume(data, approved=True, by="dana"))

        async with anyio.create_task_group() as tasks:
            for boundary in (one, other, one):
                tasks.start_soon(resume, boundary)
    assert ran == ["ran"]
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Denied", "Denied", "Inline"]


async def test_a_server_that_cannot_be_asked_declines_the_call(mock: Place) -> None:
    async def transfer() -> str:
        raise AssertionError("it ran")

    async with FaultProxy(mock.server.url, answer(500, "InternalError", where=of_claims)) as proxy:
        approvals = trusted(mock, endpoint_url=proxy.url, attempts=1)
        async with (
            approvals,
            cc.Boundary([transfer], rules=[Asks()], secret="s" * 32, approvals=approvals) as boundary,
        ):
            session = boundary.session(SCOPE)
            outcome = await session.call("transfer")
            assert isinstance(outcome, cc.Pending)
            assert isinstance(await session.resume(outcome.call.to_bytes(), approved=True, by="dana"), cc.Denied)
