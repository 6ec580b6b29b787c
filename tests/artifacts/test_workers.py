"""Worker threads whose callers may go away (law: `cases.md` C7)."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import anyio
import anyio.abc
import anyio.to_thread
import pytest

from coatcheck.artifacts.ref import digest_of
from coatcheck.artifacts.workers import Job, Turns, Workers
from coatcheck.errors import StoreUnavailable

pytestmark = pytest.mark.anyio


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What hanging work waits for; it is opened at the end, so that no thread outlives its test."""
    event = threading.Event()
    yield event
    event.set()


async def until(what: threading.Event) -> None:
    assert await anyio.to_thread.run_sync(what.wait, 5)


async def test_work_runs_in_a_thread_and_its_result_and_its_error_come_back() -> None:
    workers = Workers()
    assert await workers.run(lambda job: threading.get_ident()) != threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        await workers.run(lambda job: 1 // 0)


async def test_a_thread_that_cannot_be_started_is_told_and_an_error_of_the_work_is_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def starts_none(*args: object, **words: object) -> None:
        raise RuntimeError("can't start new thread")

    def raises(job: Job) -> None:
        raise RuntimeError("of the work")

    with pytest.raises(RuntimeError, match="of the work"):
        await Workers().run(raises)
    monkeypatch.setattr(anyio.to_thread, "run_sync", starts_none)
    with pytest.raises(StoreUnavailable, match="no worker thread can be started"):
        await Workers().run(raises)


@pytest.mark.parametrize("size", [0, 1 << 18, (1 << 18) + 1])
async def test_a_digest_is_the_same_on_the_loop_and_in_a_thread(size: int) -> None:
    assert await Workers().digest(bytes(size)) == digest_of(bytes(size))


async def test_a_caller_that_gives_up_does_not_wait_for_its_work(gate: threading.Event) -> None:
    workers, started, done = Workers(), threading.Event(), threading.Event()
    acted: list[bool] = []

    def work(job: Job) -> None:
        started.set()
        gate.wait(5)
        try:
            job.check()
            acted.append(True)
        finally:
            done.set()

    with anyio.fail_after(1):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(workers.run, work)
            await until(started)
            tasks.cancel_scope.cancel()
    gate.set()
    await until(done)
    assert not acted, "work went on to what others can see after its caller had gone"


async def test_threads_that_were_left_behind_are_bounded_and_come_back_into_use(gate: threading.Event) -> None:
    workers = Workers(limit=2)
    for _ in range(2):
        started = threading.Event()

        def hang(job: Job, started: threading.Event = started) -> None:
            started.set()
            gate.wait(5)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(workers.run, hang)
            await until(started)
            tasks.cancel_scope.cancel()
    with pytest.raises(StoreUnavailable, match="2 operations that were given up still hang"):
        await workers.run(lambda job: None)
    gate.set()
    with anyio.fail_after(5):
        while True:
            try:
                assert await workers.run(lambda job: "works again") == "works again"
            except StoreUnavailable:
                await anyio.sleep(0.001)
            else:
                break


async def test_work_that_was_given_up_before_it_began_is_not_counted() -> None:
    workers = Workers(limit=1)
    for _ in range(5):
        with anyio.CancelScope() as scope:
            scope.cancel()
            await workers.run(lambda job: None)
    assert await workers.run(lambda job: 1) == 1


async def test_work_that_ends_while_its_caller_leaves_is_not_counted() -> None:
    workers, job = Workers(limit=1), Job()
    job.started = job.done = True
    workers._leave_behind(job)
    assert await workers.run(lambda job: 1) == 1


def test_workers_serve_one_loop_after_another(anyio_backend_name: str) -> None:
    workers, turns = Workers(), Turns()

    async def use() -> int:
        async with turns.of("key"):
            return await workers.run(lambda job: 7)

    assert [anyio.run(use, backend=anyio_backend_name) for _ in range(3)] == [7, 7, 7]


async def test_tasks_take_turns_at_one_key_and_pass_each_other_at_different_ones() -> None:
    turns = Turns()
    inside: list[str] = []
    most = 0

    async def visit(key: str) -> None:
        nonlocal most
        async with turns.of(key):
            assert key not in inside
            inside.append(key)
            most = max(most, len(inside))
            await anyio.sleep(0.001)
            inside.remove(key)

    async with anyio.create_task_group() as tasks:
        for number in range(12):
            tasks.start_soon(visit, "abc"[number % 3])
    assert most == 3
    assert turns._locks.get() == {}, "keys that nobody uses take memory"


async def test_a_task_that_gives_up_waiting_leaves_its_turn_to_the_next() -> None:
    turns = Turns()
    leave = anyio.Event()

    async def stay(*, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        async with turns.of("key"):
            task_status.started()
            await leave.wait()

    async with anyio.create_task_group() as tasks:
        await tasks.start(stay)
        with anyio.move_on_after(0.01) as scope:
            async with turns.of("key"):
                raise AssertionError
        assert scope.cancelled_caught
        leave.set()
        with anyio.fail_after(1):
            async with turns.of("key"):
                pass
