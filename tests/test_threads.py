"""Work in a thread of its own: in its order, whatever the event loop does meanwhile, and gone when nobody wants it."""

from __future__ import annotations

import gc
import threading
import time
import weakref

import anyio
import pytest

from coatcheck.threads import Thread

pytestmark = pytest.mark.anyio


async def test_work_is_done_in_the_order_in_which_it_was_given_while_the_loop_is_busy() -> None:
    thread, done = Thread(), []
    try:
        given = [thread.do(lambda number=number: done.append(number)) for number in range(50)]  # type: ignore[misc]
        until = time.monotonic() + 10
        while len(done) < 50 and time.monotonic() < until:
            time.sleep(0.001)
        assert done == list(range(50))
        assert all(work.is_done for work in given)
        for work in given:
            await work.result()
    finally:
        thread.close()


async def test_a_result_is_waited_for_and_an_error_is_raised_where_it_is_asked_for() -> None:
    thread, may = Thread(), threading.Event()
    nothing: dict[str, int] = {}
    try:
        slow = thread.do(lambda: "slow" if may.wait(10) else "late")
        wrong = thread.do(lambda: nothing["missing"])
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
        thread.close()


async def test_what_was_not_begun_when_it_is_closed_is_never_done() -> None:
    thread, may, begun, done = Thread(), threading.Event(), threading.Event(), list[str]()

    def work() -> None:
        begun.set()
        may.wait(10)

    first = thread.do(work)
    await anyio.to_thread.run_sync(begun.wait, 10)
    late = thread.do(lambda: done.append("late"))
    thread.close()
    may.set()
    await first.result()
    assert late.is_done
    assert done == []


async def test_a_caller_that_is_cancelled_waits_for_nothing() -> None:
    thread, may = Thread(), threading.Event()
    try:
        work = thread.do(lambda: may.wait(10))
        with anyio.move_on_after(0.01) as scope:
            await work.result()
        assert scope.cancelled_caught
    finally:
        may.set()
        thread.close()


class Large:
    """Something that can be watched."""


async def test_a_result_goes_with_the_last_who_holds_it() -> None:
    thread, may, made = Thread(), threading.Event(), []

    def make() -> Large:
        may.wait(10)
        large = Large()
        made.append(weakref.ref(large))
        return large

    gc.collect()
    gc.disable()
    try:
        work = thread.do(make)
        async with anyio.create_task_group() as group:
            group.start_soon(work.result)
            await anyio.wait_all_tasks_blocked()
            may.set()
        assert made[0]() is not None
        del work
        await thread.do(lambda: None).result()  # the thread lets its last work go when it takes the next
        assert made[0]() is None
    finally:
        gc.enable()
        may.set()
        thread.close()
