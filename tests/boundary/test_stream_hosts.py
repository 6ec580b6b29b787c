"""Streams among a host's own code: middlewares, threads, files, and generators that hold what a task holds."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import decimal
import gc
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread
import msgspec
import pytest

import coatcheck as cc
from coatcheck.testing import FaultyStore, fail
from tests.boundary._cancel import all_of, until

pytestmark = pytest.mark.anyio

SCOPE = cc.Scope(tenant="acme", conversation="c")
KIB = 1024
LIMIT = 1_000
SECRET = "password=hunter2"


@cc.after_chunk
def no_passwords(call: cc.ToolCall, chunk: cc.Chunk) -> cc.Allow | cc.Deny:
    return cc.deny("It holds a password.") if "password=" in str(chunk.data) else cc.allow()


@cc.after_chunk
def looks(call: cc.ToolCall, chunk: cc.Chunk) -> cc.Allow:
    return cc.allow()


def giving(*pieces: Any, **declarations: Any) -> cc.Tool[..., Any]:
    async def give() -> AsyncIterator[Any]:
        for piece in pieces:
            await anyio.lowlevel.checkpoint()
            yield piece

    return cc.tool(**{"name": "give", **declarations})(give)


def boundary_of(tool: Any, store: cc.ArtifactStore | None = None, **dials: Any) -> cc.Boundary:
    return cc.Boundary([tool], **{"store": store or cc.MemoryStore(), "placement": cc.Placement(LIMIT), **dials})


async def given(tool: Any, store: cc.ArtifactStore | None = None, **dials: Any) -> cc.AnyOutcome:
    boundary = boundary_of(tool, store, **dials)
    outcome = await boundary.session(SCOPE).call("give")
    assert not boundary.streams.open
    return outcome


# --- middlewares ---


@pytest.mark.parametrize("step", ["truncation", "placement", "governance", "ceiling"])
@pytest.mark.parametrize("size", [LIMIT * 30, LIMIT + 1])
async def test_a_middleware_that_changes_the_text_of_a_stream_lets_nothing_pass_unjudged(step: Any, size: int) -> None:
    async def notes(call: cc.ToolCall, call_next: cc.CallNext) -> cc.Outcome:
        outcome = await call_next(call)
        return msgspec.structs.replace(outcome, text=outcome.text + " a note")

    store = cc.MemoryStore()
    tool = giving("x" * size, SECRET, ceiling=cc.Ceiling(max_chars=10**6))
    for truncation in (None, cc.Truncation(max_chars=2_000)):
        outcome = await given(
            tool, store, rules=[no_passwords], middleware=[cc.inside(step, notes)], truncation=truncation
        )
        assert isinstance(outcome, (cc.Failed, cc.Denied))
        assert SECRET not in outcome.text
        assert (await store.list(SCOPE)).artifacts == ()


async def test_a_middleware_may_change_what_is_said_beside_a_stream() -> None:
    async def marks(call: cc.ToolCall, call_next: cc.CallNext) -> cc.Outcome:
        return msgspec.structs.replace(await call_next(call), status="partial")

    outcome = await given(giving("x" * 5_000), middleware=[cc.inside("governance", marks)])
    assert isinstance(outcome, cc.Placed)
    assert outcome.status == "partial"


@pytest.mark.parametrize("ends", ["raises", "nothing"])
async def test_whoever_tries_again_does_not_wait_for_what_a_broken_middleware_left(ends: str) -> None:
    tries = 0

    async def breaks(call: cc.ToolCall, call_next: cc.CallNext) -> Any:
        nonlocal tries
        tries += 1
        outcome = await call_next(call)
        if tries > 1:
            return outcome
        if ends == "raises":
            raise ValueError("a bug")
        return None

    async def again(call: cc.ToolCall, call_next: cc.CallNext) -> cc.Outcome:
        await call_next(call)
        return await call_next(call)

    with anyio.fail_after(10):
        outcome = await given(
            giving("x" * 5_000, concurrency=1),
            middleware=[cc.inside("placement", again), cc.inside("placement", breaks)],
        )
    assert isinstance(outcome, cc.Placed)


@pytest.mark.parametrize("where", ["tool", "rule", "store"])
async def test_whoever_tries_again_after_a_timeout_does_not_wait_for_the_first_try(where: str) -> None:
    hangs = [True]

    async def once(at: str) -> None:
        if at == where and hangs:
            hangs.pop()
            await anyio.sleep_forever()

    async def give() -> AsyncIterator[str]:
        yield "x" * 300 * KIB
        await once("tool")
        yield "x" * 300 * KIB

    @cc.after_tool(streams=True)
    async def rule(call: cc.ToolCall, result: cc.Result | cc.StreamResult) -> cc.Allow:
        await once("rule")
        return cc.allow()

    class Store(cc.MemoryStore):
        async def put_stream(self, *args: Any, **words: Any) -> cc.PutResult:
            await once("store")
            return await super().put_stream(*args, **words)

    async def again(call: cc.ToolCall, call_next: cc.CallNext) -> cc.Outcome:
        with anyio.move_on_after(0.3):
            return await call_next(call)
        return await call_next(call)

    tool = cc.tool(name="give", concurrency=1)(give)
    with anyio.fail_after(10):
        outcome = await given(tool, Store(), rules=[rule], middleware=[again])
    assert isinstance(outcome, cc.Placed)


async def test_a_call_that_goes_on_in_the_background_after_its_end_leaves_nothing_open() -> None:
    boundary: cc.Boundary

    async with anyio.create_task_group() as background:

        async def stale(call: cc.ToolCall, call_next: cc.CallNext) -> cc.Outcome:
            async def refresh() -> None:
                await anyio.sleep(0.01)
                await call_next(call)

            background.start_soon(refresh)
            return cc.Inline(tool=call.name, call_id=call.call_id, text="cached", value="cached")

        boundary = boundary_of(giving("x" * 5_000, concurrency=1), middleware=[cc.inside("placement", stale)])
        session = boundary.session(SCOPE)
        with anyio.fail_after(10):
            for _ in range(3):
                assert (await session.call("give")).text == "cached"
    assert not boundary.streams.open


async def test_the_first_of_two_attempts_at_once_may_be_handed_on() -> None:
    async def hedges(call: cc.ToolCall, call_next: cc.CallNext) -> cc.Outcome:
        first: cc.Outcome = (await all_of(lambda: call_next(call), lambda: call_next(call)))[0]
        return first

    outcome = await given(giving("x" * 5_000), middleware=[cc.inside("placement", hedges)])
    assert isinstance(outcome, cc.Placed)


# --- generators that hold what belongs to a task or to a thread ---


@pytest.mark.parametrize("then", ["placed", "denied", "cut"])
async def test_a_generator_may_hold_a_task_group_and_a_deadline_across_its_yields(then: str) -> None:
    closed: list[str] = []

    async def give() -> AsyncIterator[str]:
        with anyio.fail_after(30):
            async with anyio.create_task_group() as group:
                group.start_soon(anyio.sleep, 0.01)
                for number in range(20):
                    await anyio.sleep(0.001)
                    yield "x" * 30 * KIB + (SECRET if then == "denied" and number == 9 else "")
        closed.append("whole")

    dials: dict[str, Any] = {"placed": {}, "denied": {}, "cut": {"placement": None, "truncation": cc.Truncation(2_000)}}
    with anyio.fail_after(10):
        outcome = await given(cc.tool(name="give")(give), rules=[no_passwords] if then != "cut" else [], **dials[then])
    assert type(outcome).__name__ == {"placed": "Placed", "denied": "Denied", "cut": "Truncated"}[then]
    assert closed == (["whole"] if then == "placed" else [])
    await anyio.sleep(0.02)  # the host's own task is as it was: nothing cancels it


async def test_a_generator_of_either_kind_keeps_its_context() -> None:
    var = contextvars.ContextVar("var", default="outside")

    async def give_async() -> AsyncIterator[str]:
        token = var.set("inside")
        for _ in range(5):
            await anyio.sleep(0.001)
            yield var.get() + "x" * 70 * KIB
        var.reset(token)

    def give_sync() -> Iterator[str]:
        with decimal.localcontext() as context:
            context.prec = 50
            token = var.set("inside")
            for _ in range(5):
                yield f"{decimal.Decimal(1) / 7:.45f}{var.get()}" + "x" * 300 * KIB
            var.reset(token)

    for function in (give_async, give_sync):
        outcome = await given(cc.tool(name="give")(function))
        assert isinstance(outcome, cc.Placed), outcome.text[:200]
        assert var.get() == "outside"


async def test_a_sync_generator_is_begun_advanced_and_closed_in_one_thread() -> None:
    threads: list[int] = []

    def give() -> Iterator[dict[str, int]]:
        with contextlib.closing(sqlite3.connect(":memory:")) as database:  # it refuses another thread
            for (number,) in database.execute(
                "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 60000) SELECT i FROM n"
            ):
                threads.append(threading.get_ident())
                yield {"number": number}

    tool = cc.tool(name="give")(give)
    outcomes = await all_of(*[lambda: given(tool)] * 4)
    assert {type(outcome) for outcome in outcomes} == {cc.Placed}
    assert len(threads) == 4 * 60_000


async def test_a_sync_function_that_returns_an_iterator_keeps_its_slot_until_the_end() -> None:
    running: list[int] = []
    most = 0

    class Pieces:
        def __init__(self) -> None:
            running.append(1)
            self.left = 3

        def __iter__(self) -> Pieces:
            return self

        def __next__(self) -> str:
            nonlocal most
            most = max(most, len(running))
            if not self.left:
                raise StopIteration
            self.left -= 1
            return "x" * 300 * KIB

        def close(self) -> None:
            running.pop()

    boundary = boundary_of(cc.tool(name="give", concurrency=1)(lambda: Pieces()))
    await all_of(*[lambda: boundary.session(SCOPE).call("give")] * 4)
    assert (most, running) == (1, [])


async def test_a_clean_up_that_waits_for_a_task_it_cancelled_is_no_cancellation(anyio_backend: str) -> None:
    if anyio_backend != "asyncio":
        return  # only asyncio has tasks that can be cancelled and waited for

    async def give() -> AsyncIterator[str]:
        task = asyncio.create_task(asyncio.sleep(60))
        try:
            while True:
                yield "x" * 300 * KIB + SECRET
        finally:
            task.cancel()
            await task

    boundary = boundary_of(cc.tool(name="give")(give), rules=[no_passwords])
    session = boundary.session(SCOPE)
    assert isinstance(await session.call("give"), cc.Denied)
    assert [row.outcome for row in session.decisions] == ["deny"]


async def test_a_timeout_of_its_own_that_strikes_between_two_pieces_is_a_failure(anyio_backend: str) -> None:
    if anyio_backend != "asyncio":
        return  # trio's deadlines do not strike what is suspended

    async def give() -> AsyncIterator[str]:
        async with asyncio.timeout(0.1):
            for _ in range(50):
                yield "x" * 70 * KIB

    @cc.after_chunk
    async def ponders(call: cc.ToolCall, chunk: cc.Chunk) -> cc.Allow:
        await anyio.sleep(0.05)
        return cc.allow()

    with anyio.fail_after(10):
        outcome = await given(cc.tool(name="give")(give), rules=[ponders])
    assert isinstance(outcome, cc.Failed)
    assert "broke off after" in outcome.text


async def test_a_generator_that_was_used_already_is_no_empty_result() -> None:
    async def pieces() -> AsyncIterator[str]:
        yield "x" * 5_000

    kept = pieces()

    async def give() -> AsyncIterator[str]:
        return kept

    boundary = boundary_of(cc.tool(name="give")(give))
    session = boundary.session(SCOPE)
    assert isinstance(await session.call("give"), cc.Placed)
    again = await session.call("give")
    assert isinstance(again, cc.Failed)
    assert "used already" in again.text


# --- threads and files ---


async def test_staging_does_not_wait_for_threads_that_wait_for_it() -> None:
    @cc.after_tool(streams=True)
    def stages(call: cc.ToolCall, result: cc.Result | cc.StreamResult) -> cc.Allow:
        return cc.allow()

    session = boundary_of(giving("x" * 5_000), rules=[stages]).session(SCOPE)
    answers: list[str] = []

    def handler() -> None:  # as a web framework runs a sync endpoint
        answers.append(type(anyio.from_thread.run(session.call, "give")).__name__)

    with anyio.fail_after(20):
        await all_of(*[lambda: anyio.to_thread.run_sync(handler)] * 40)
    assert answers == ["Placed"] * 40


async def test_an_open_file_is_read_as_it_comes() -> None:
    reading, writing = os.pipe()

    def write() -> None:
        for number in range(4):
            os.write(writing, f"line {number}\n".encode())
            threading.Event().wait(0.2)
        os.close(writing)

    async with anyio.create_task_group() as group:
        group.start_soon(anyio.to_thread.run_sync, write)
        file = open(reading, "rb")  # noqa: SIM115 - the boundary closes it
        outcome = await given(cc.tool(name="give", idle_timeout=0.6)(lambda: file))
    assert outcome.text == "line 0\nline 1\nline 2\nline 3\n"
    assert file.closed


async def test_an_open_file_that_does_not_wait_is_no_end_of_it() -> None:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.write(writing, b"first part")
    file = open(reading, "rb", buffering=0)  # noqa: SIM115 - the boundary closes it
    outcome = await given(cc.tool(name="give")(lambda: file))
    os.close(writing)
    assert isinstance(outcome, cc.Failed)
    assert "blocking" in outcome.text
    assert file.closed


async def test_a_file_is_closed_even_if_nobody_came_to_read_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("x" * 5_000)
    files: list[Any] = []

    async def give() -> Any:
        files.append(path.open())
        return files[-1]

    boundary = boundary_of(cc.tool(name="give")(give))
    for ticks in range(6):
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:

                async def cancel(after: int = ticks, scope: anyio.CancelScope = scope) -> None:
                    for _ in range(after):
                        await anyio.lowlevel.checkpoint()
                    scope.cancel()

                group.start_soon(cancel)
                await boundary.session(SCOPE).call("give")
    await until(lambda: all(file.closed for file in files))


async def test_what_was_staged_is_gone_at_once_whatever_becomes_of_it() -> None:
    before = len(os.listdir("/dev/fd"))

    @cc.after_tool(streams=True)
    async def stops_reading(call: cc.ToolCall, result: cc.Result | cc.StreamResult) -> cc.Allow | cc.Deny:
        assert isinstance(result, cc.StreamResult)
        async for _ in result.read():
            return cc.deny("enough")
        return cc.allow()

    @cc.after_tool(streams=True)
    async def hangs(call: cc.ToolCall, result: cc.Result | cc.StreamResult) -> cc.Allow:
        await anyio.sleep_forever()
        return cc.allow()

    gc.disable()
    try:
        for _ in range(3):
            assert isinstance(await given(giving("x" * 5_000), rules=[stops_reading]), cc.Denied)
            with anyio.move_on_after(0.05):
                await given(giving("x" * 5_000), rules=[hangs])
            store = FaultyStore(cc.MemoryStore(), put_stream=fail(cc.StoreUnavailable("503")))
            staged = cc.after_tool(streams=True)(lambda call, result: cc.allow())
            assert isinstance(await given(giving("x" * 5_000), store, rules=[staged]), cc.Truncated)
        assert len(os.listdir("/dev/fd")) == before
    finally:
        gc.enable()


# --- stores that lie, and streams that do not end ---


class TakesPart(cc.MemoryStore):
    """Stops reading early, and says that all is well."""

    async def put_stream(self, scope: cc.Scope, source: Any, **words: Any) -> cc.PutResult:
        first = await anext(aiter(source))
        media_type = words.pop("media_type")
        return await self.put(scope, first, media_type=media_type(), **words)


class Swallows(cc.MemoryStore):
    """Takes what a source raises for its end."""

    async def put_stream(self, scope: cc.Scope, source: Any, **words: Any) -> cc.PutResult:
        taken = []
        with contextlib.suppress(Exception):
            async for piece in source:
                taken.append(piece)  # noqa: PERF401 - what came before it raised is kept
        return await self.put(scope, b"".join(taken), **{**words, "media_type": "text/plain"})


@pytest.mark.parametrize("make", [TakesPart, Swallows])
async def test_a_store_that_takes_a_part_for_the_whole_gives_no_ticket(make: Callable[[], cc.MemoryStore]) -> None:
    store = make()
    outcome = await given(giving("x" * 300 * KIB, "x" * 300 * KIB + SECRET), store, rules=[no_passwords])
    assert isinstance(outcome, cc.Denied)
    assert (await store.list(SCOPE)).artifacts == ()


async def test_late_trouble_of_a_store_shows_the_head_even_without_a_truncation() -> None:
    class FailsLate(cc.MemoryStore):
        async def put_stream(self, scope: cc.Scope, source: Any, **words: Any) -> cc.PutResult:
            async for _ in source:
                pass
            raise cc.StoreUnavailable("the disk is full")

    placement = cc.Placement(max_inline_chars=4_000)
    outcome = await given(giving("é" * 300 * KIB), FailsLate(), placement=placement)
    assert isinstance(outcome, cc.Truncated)
    assert outcome.marker.head is not None
    assert set(outcome.marker.head) == {"é"}


async def test_a_stream_that_is_read_only_to_be_judged_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coatcheck.steps.truncation._MAX_JUDGED_BYTES", 2_000 * KIB)

    async def give() -> AsyncIterator[str]:
        while True:
            yield "x" * 300 * KIB

    with anyio.fail_after(10):
        outcome = await given(
            cc.tool(name="give")(give),
            cc.MemoryStore(max_bytes=600 * KIB),
            rules=[looks],
            truncation=cc.Truncation(max_chars=2_000),
        )
    assert isinstance(outcome, cc.Failed)
    assert "did not end" in outcome.text


async def test_what_turns_into_binary_late_is_bounded_as_binary_is() -> None:
    @cc.after_tool
    def whole(call: cc.ToolCall, result: cc.Result) -> cc.Allow:
        return cc.allow()

    outcome = await given(
        giving(b"x" * 300 * KIB, b"\xff"), placement=None, rules=[whole], truncation=cc.Truncation(max_chars=2_000)
    )
    assert isinstance(outcome, cc.Truncated)
    assert outcome.content == ()
    assert "bytes of binary" in outcome.text


async def test_one_large_piece_does_not_starve_the_others() -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await anyio.lowlevel.checkpoint()
            ticks += 1

    async with anyio.create_task_group() as group:
        group.start_soon(tick)
        outcome = await given(
            giving("é" * 30_000 * KIB),
            truncation=cc.Truncation(2_000),
            rules=[looks],
            store=cc.MemoryStore(max_bytes=10**9),
        )
        group.cancel_scope.cancel()
    assert isinstance(outcome, cc.Placed)
    assert ticks > 50


PROGRAM = """
import sys, time, anyio
import coatcheck as cc

@cc.tool
def give():
    yield "x" * 300_000
    time.sleep(0.5)
    yield "x" * 300_000

async def main():
    boundary = cc.Boundary([give], store="memory:", placement=cc.Placement(1_000))
    async with anyio.create_task_group() as group:
        group.start_soon(boundary.session(cc.Scope(conversation="c")).call, "give")
        await anyio.sleep(0.2)
        sys.exit(3)

anyio.run(main, backend=sys.argv[1])
"""


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_program_that_ends_in_the_middle_of_a_sync_stream_ends(backend: str) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, backend], timeout=30, check=False, capture_output=True)
    assert done.returncode in (1, 3), done.stderr.decode()
