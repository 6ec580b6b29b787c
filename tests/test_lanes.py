"""Lanes: work is done in its order, whatever the event loop does meanwhile, and gone when nobody wants it."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
import weakref
from types import ModuleType

import anyio
import pytest
from anyio.lowlevel import RunVar

from coatcheck import StoreUnavailable, lanes
from coatcheck.lanes import Lane

pytestmark = pytest.mark.anyio


async def test_work_is_done_in_the_order_in_which_it_was_given_while_the_loop_is_busy() -> None:
    lane, done = Lane(), []
    try:
        given = [lane.do(lambda number=number: done.append(number)) for number in range(50)]  # type: ignore[misc]
        until = time.monotonic() + 10
        while len(done) < 50 and time.monotonic() < until:
            time.sleep(0.001)
        assert done == list(range(50))
        assert all(work.is_done for work in given)
        for work in given:
            await work.result()
    finally:
        lane.close()


async def test_a_result_is_waited_for_and_an_error_is_raised_where_it_is_asked_for() -> None:
    lane, may = Lane(), threading.Event()
    nothing: dict[str, int] = {}
    try:
        slow = lane.do(lambda: "slow" if may.wait(10) else "late")
        wrong = lane.do(lambda: nothing["missing"])
        got: list[str] = []

        async def wait() -> None:
            got.append(await slow.result())

        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            group.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            assert not slow.is_done
            may.set()
        assert got == ["slow", "slow"]
        with pytest.raises(KeyError, match="missing"):
            await wrong.result()
        with pytest.raises(KeyError, match="missing"):
            await wrong.result()
    finally:
        may.set()
        lane.close()


async def test_what_was_not_begun_when_it_is_closed_is_never_done() -> None:
    lane, may, begun, done = Lane(), threading.Event(), threading.Event(), list[str]()

    def work() -> None:
        begun.set()
        may.wait(10)

    first = lane.do(work)
    await anyio.to_thread.run_sync(begun.wait, 10)
    late = lane.do(lambda: done.append("late"))
    lane.close()
    may.set()
    await first.result()
    assert late.is_done
    assert done == []


async def test_a_caller_that_is_cancelled_waits_for_nothing() -> None:
    lane, may = Lane(), threading.Event()
    try:
        work = lane.do(lambda: may.wait(10))
        with anyio.move_on_after(0.01) as scope:
            await work.result()
        assert scope.cancelled_caught
    finally:
        may.set()
        lane.close()


class Large:
    """Something that can be watched."""


async def test_a_result_goes_with_the_last_who_holds_it() -> None:
    lane, may, made = Lane(), threading.Event(), []

    def make() -> Large:
        may.wait(10)
        large = Large()
        made.append(weakref.ref(large))
        return large

    gc.collect()
    gc.disable()
    try:
        work = lane.do(make)
        async with anyio.create_task_group() as group:
            group.start_soon(work.result)
            await anyio.wait_all_tasks_blocked()
            may.set()
        assert made[0]() is not None
        del work
        await lane.do(lambda: None).result()  # the thread lets its last work go when it takes the next
        assert made[0]() is None
    finally:
        gc.enable()
        may.set()
        lane.close()


async def test_many_lanes_share_few_threads_and_all_come_to_their_end() -> None:
    threads: set[int] = set()
    many = [Lane() for _ in range(200)]
    done: list[list[int]] = [[] for _ in many]

    def work(mine: list[int], number: int) -> None:
        threads.add(threading.get_ident())
        mine.append(number)

    given = [
        lane.do(lambda mine=mine, number=number: work(mine, number))  # type: ignore[misc]
        for number in range(20)
        for lane, mine in zip(many, done, strict=True)
    ]
    for each in given:
        await each.result()
    assert done == [list(range(20))] * 200
    assert len(threads) <= 32


async def test_a_lane_for_which_no_thread_can_be_started_says_so_and_never_loses_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    lane = Lane()
    with monkeypatch.context() as patch:
        patch.setattr(lane._pool, "submit", lambda work: start(threading.current_thread()))
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="no worker thread can be started"):
                lane.do(lambda: None)
    with pytest.raises(StoreUnavailable, match="no worker thread"):
        lane.do(lambda: None)


async def test_a_lane_with_much_to_do_lets_the_others_have_their_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "_MOST_THREADS", 1)
    monkeypatch.setattr(lanes, "_pool", RunVar("coatcheck.tests.lanes"))
    order: list[str] = []
    busy, other, may = Lane(), Lane(), threading.Event()
    first = busy.do(lambda: may.wait(10))
    given = [busy.do(lambda: order.append("busy")) for _ in range(30)]
    late = other.do(lambda: order.append("other"))
    may.set()
    await first.result()
    await late.result()
    for work in given:
        await work.result()
    assert order.index("other") < 10
    assert len(order) == 31


async def test_a_pool_that_takes_no_more_has_the_thread_that_is_there_do_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where the interpreter is ending: work that was taken is done, and nobody waits for ever."""
    lane, may = Lane(), threading.Event()
    first = lane.do(lambda: may.wait(10))
    given = [lane.do(lambda number=number: number) for number in range(30)]  # type: ignore[misc]

    def refuse(work: object) -> None:
        raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    monkeypatch.setattr(lane._pool, "submit", refuse)
    may.set()
    with anyio.fail_after(10):
        await first.result()
        assert [await work.result() for work in given] == list(range(30))


def test_an_event_loop_is_known_while_another_thread_is_just_importing_trio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trio", ModuleType("trio"))

    async def work() -> int:
        return await Lane().do(lambda: 5).result()

    assert asyncio.run(work()) == 5
