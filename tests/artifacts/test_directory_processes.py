"""The directory store under many tasks, stores and processes, and on a disk that hangs.

Laws: `design.md` section 5 (no interleaving loses an acknowledged put); `cases.md` C7, D4, E1.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import msgspec
import pytest

from coatcheck.artifacts import disk, files
from coatcheck.artifacts import root as root_module
from coatcheck.artifacts.directory import DirectoryStore
from coatcheck.artifacts.meta import ArtifactMeta, PutResult
from coatcheck.artifacts.root import Root
from coatcheck.artifacts.workers import Abandoned
from coatcheck.errors import InvalidArtifact
from coatcheck.scope import Scope, scope_segments
from coatcheck.testing import ManualClock
from tests.artifacts._disk import DATA, SCOPE, all_work_done, contents, payload, put

pytestmark = pytest.mark.anyio


# Many tasks, many stores, many processes


async def test_one_content_put_by_many_tasks_at_once_is_written_once(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    works = disk.write_file

    def watched(name: str, *args: Any, **options: Any) -> None:
        written.append(name)
        works(name, *args, **options)

    monkeypatch.setattr(files, "write_file", watched)
    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(put, store, b"one")
    assert written.count("data") == 1


async def test_two_stores_on_one_directory_keep_one_budget_exactly(root: Path) -> None:
    clock = ManualClock()
    stores = [DirectoryStore(root, max_count=10, max_bytes=100, clock=clock) for _ in range(2)]
    results: list[PutResult] = []

    async def put_one(number: int) -> None:
        results.append(await put(stores[number % 2], b"%09d" % number))

    async with anyio.create_task_group() as tasks:
        for number in range(40):
            tasks.start_soon(put_one, number)
    listed = {meta.ref for meta in (await stores[0].list(SCOPE)).artifacts}
    swept = [gone.ref for result in results for gone in result.swept]
    assert len(listed) == 10
    assert len(swept) == len(set(swept)) == 30
    assert listed | set(swept) == {result.meta.ref for result in results}


async def test_a_budget_holds_after_a_restart_also_a_smaller_one(root: Path) -> None:
    clock = ManualClock()
    for number in range(4):
        await put(DirectoryStore(root, max_count=4, clock=clock), b"%d" % number)
        clock.advance(1)
    result = await put(DirectoryStore(root, max_count=2, clock=clock), b"3")
    assert (result.created, [gone.reason for gone in result.swept]) == (False, ["max-count", "max-count"])
    assert len((await DirectoryStore(root).list(SCOPE)).artifacts) == 2


@pytest.fixture
def slow_lock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    """A clock, and a lock that another process holds for 150 seconds by it, each time that somebody wants it."""
    clock = ManualClock()
    works = root_module._acquire

    def slow(*arguments: Any) -> None:
        clock.advance(150)
        works(*arguments)

    monkeypatch.setattr(root_module, "_acquire", slow)
    return clock


async def test_a_put_that_had_to_wait_for_the_lock_has_its_whole_life_before_it(
    root: Path, slow_lock: ManualClock
) -> None:
    store = DirectoryStore(root, ttl=timedelta(seconds=100), clock=slow_lock)
    for data in (DATA, b"other"):
        result = await put(store, data)
        assert result.created
        assert result.meta.created_at == slow_lock.now
        assert result.meta.expires_at == slow_lock.now + timedelta(seconds=100)
        assert await payload(store, result.meta.ref) == data


async def test_a_second_put_that_had_to_wait_makes_the_artifact_as_young_as_itself(
    root: Path, slow_lock: ManualClock
) -> None:
    store = DirectoryStore(root, ttl=timedelta(seconds=1000), max_count=2, clock=slow_lock)
    first = await put(store)
    between = await put(store, b"between")
    again = await put(store)
    assert not again.created
    assert again.meta.created_at == first.meta.created_at
    assert again.meta.expires_at == slow_lock.now + timedelta(seconds=1000)
    evicted = (await put(store, b"new")).swept
    assert [gone.ref for gone in evicted] == [between.meta.ref], "the age that evictions go by is that of the put"


async def test_a_put_that_outlived_its_own_expiry_while_it_waited_is_refused_and_leaves_nothing(
    root: Path, slow_lock: ManualClock
) -> None:
    store = DirectoryStore(root, clock=slow_lock)
    with pytest.raises(InvalidArtifact, match="expires_at must be in the future"):
        await put(store, expires_at=slow_lock.now + timedelta(seconds=150))
    assert (await store.list(SCOPE)).artifacts == ()
    assert (await put(store, expires_at=slow_lock.now + timedelta(seconds=151))).created


CHILD = """
import sys
import threading
from datetime import datetime, timedelta
import anyio, msgspec
from coatcheck.artifacts.directory import DirectoryStore
from coatcheck.scope import Scope

SCOPE = Scope(tenant="tenant-5ecret", conversation="conversation-5ecret")

async def resolve(root, ref):
    async with DirectoryStore(root) as store:
        artifact = await store.get(SCOPE, ref)
        foreign = await store.get(Scope(conversation="another"), ref)
        again = await store.put(SCOPE, artifact.data, kind="k", media_type="text/plain", label="the child's")
        minted = await store.put(SCOPE, b"minted by the child", kind="k", media_type="text/plain")
        print(msgspec.json.encode([artifact.meta, foreign, again.created, minted.meta]).decode())

async def sweep(root, now):
    store = DirectoryStore(root, ttl=timedelta(seconds=100), clock=lambda: datetime.fromisoformat(now))
    while True:
        await store.sweep()
        print("swept", flush=True)

anyio.run(globals()[sys.argv[1]], *sys.argv[2:])
"""


def child(*arguments: str) -> list[str]:
    return [sys.executable, "-c", CHILD, *arguments]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


async def test_what_this_process_put_another_one_resolves_and_the_other_way_round(
    store: DirectoryStore, root: Path
) -> None:
    meta = (await put(store, label="ours")).meta
    done = await anyio.run_process(child("resolve", str(root), meta.ref), env=environment())
    theirs, foreign, created, minted = msgspec.json.decode(
        done.stdout, type=tuple[ArtifactMeta, None, bool, ArtifactMeta]
    )
    assert (theirs, foreign, created) == (meta, None, False)
    assert await store.head(SCOPE, minted.ref) == minted
    assert await payload(store, minted.ref) == b"minted by the child"


async def test_no_sweep_of_another_process_loses_an_acknowledged_put(root: Path) -> None:
    clock = ManualClock()
    store = DirectoryStore(root, ttl=timedelta(seconds=100), clock=clock)
    start = clock.now
    await put(store, b"neighbour")
    arguments = child("sweep", str(root), (start + timedelta(seconds=140)).isoformat())
    async with await anyio.open_process(arguments, env=environment()) as sweeper:
        assert sweeper.stdout is not None
        await sweeper.stdout.receive()
        lost_meanwhile = 0
        for _ in range(3000):
            clock.now = start
            ref = (await put(store)).meta.ref  # expired, by the sweeper's clock
            clock.now = start + timedelta(seconds=150)
            lost_meanwhile += (await put(store)).created
            assert await payload(store, ref) == DATA
            await store.delete(SCOPE, ref)
            if lost_meanwhile == 25:  # the sweeper came between two puts
                break
        sweeper.kill()
    assert lost_meanwhile == 25


async def test_a_process_whose_clock_is_behind_loses_nothing_and_makes_nothing_older(root: Path) -> None:
    ahead, behind = ManualClock(), ManualClock()
    behind.advance(-3600)
    ours = DirectoryStore(root, ttl=timedelta(seconds=10_000), max_count=3, clock=ahead)
    theirs = DirectoryStore(root, ttl=timedelta(seconds=10_000), max_count=3, clock=behind)
    first = (await put(ours, b"first")).meta
    again = await put(theirs, b"first")
    assert (again.created, again.meta) == (False, first), "an expiry only grows"
    ahead.advance(1)
    second = (await put(ours, b"second")).meta
    early = (await put(theirs, b"early")).meta
    assert early.created_at < first.created_at
    assert [meta.ref for meta in (await ours.list(SCOPE)).artifacts] == [second.ref, first.ref, early.ref]
    result = await put(ours, b"new")
    assert [gone.ref for gone in result.swept] == [early.ref], "by every clock it was put first"
    result = await put(theirs, b"newest, by a clock that is behind")
    assert [gone.ref for gone in result.swept] == [first.ref], "and never itself"
    assert await theirs.sweep() == ()


FORKING = """
import os, sqlite3, sys
from pathlib import Path
import anyio
from coatcheck.artifacts import database
from coatcheck.artifacts.root import Root
from coatcheck.scope import scope_segments
from tests.artifacts._disk import *

ROOT = Path(sys.argv[1])

async def before():
    return (await put(DirectoryStore(ROOT), b"ours")).meta.ref

async def in_the_child(ref):
    store = DirectoryStore(ROOT)
    assert (await put(store, b"the child's")).created
    assert len((await store.list(SCOPE)).artifacts) == 2
    assert await payload(store, ref) == b"ours"
    assert await store.sweep() == ()

async def after(ref, name):
    store = DirectoryStore(ROOT)
    assert await store.sweep() == (), "what the parent writes is a leftover for its child, or after it"
    assert name in contents(ROOT.joinpath(*scope_segments(SCOPE)))
    assert len((await store.list(SCOPE)).artifacts) == 2
    assert totals(ROOT)[0] == 2

ref = anyio.run(before)
held = sqlite3.connect(index_of(ROOT), isolation_level=None)  # what a thread may have open at the moment of a fork
held.execute(sys.argv[2])
held.execute("SELECT * FROM artifacts").fetchone()
with Root(ROOT, fsync=False).locked(scope_segments(SCOPE), lambda: None) as scope:
    staging = scope.begin()
child = os.fork()
if not child:
    database._PATIENCE = 0.2
    anyio.run(in_the_child, ref)
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
held.close()
anyio.run(after, ref, staging.name)
staging.give_up()
"""


@pytest.mark.parametrize("begin", ["BEGIN", "BEGIN IMMEDIATE"], ids=["while it reads", "while it writes"])
def test_a_process_that_was_forked_from_one_at_work_works_too(root: Path, begin: str) -> None:
    """A child inherits descriptors, and what a library believes of locks. Neither may hold it up, or let go a lock."""
    arguments = [sys.executable, "-W", "ignore", "-c", FORKING, str(root), begin]
    done = subprocess.run(arguments, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# A disk that hangs


@contextmanager
def locked(root: Path, scope: Scope) -> Iterator[None]:
    """Hold the scope's lock, as a process that hangs would."""
    name = hashlib.sha256("/".join(scope_segments(scope)).encode()).hexdigest()[:2]
    with open(root / ".coatcheck-1" / name, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


async def test_a_store_that_hangs_does_not_hang_a_caller_that_gives_up(store: DirectoryStore, root: Path) -> None:
    before = (await put(store, b"before")).meta
    with locked(root, SCOPE):
        with anyio.fail_after(5):
            for _ in range(3):
                with anyio.move_on_after(0.05) as limit:
                    await put(store)
                assert limit.cancelled_caught
            with anyio.move_on_after(0.05):
                await store.delete(SCOPE, before.ref)
            assert await payload(store, before.ref) == b"before", "readers need no lock"
            elsewhere = Scope(conversation="elsewhere")
            assert await payload(store, (await put(store, scope=elsewhere)).meta.ref, elsewhere) == DATA
            await all_work_done(store)
            # However many wait for this scope, other scopes go on.
            async with anyio.create_task_group() as tasks:
                for number in range(100):
                    tasks.start_soon(put, store, b"%d" % number)
                await anyio.sleep(0.05)
                assert (await put(store, b"new", elsewhere)).created
                tasks.cancel_scope.cancel()
            await all_work_done(store)
    # What was given up before it had begun is not done later: this delete would come after this put.
    assert not (await put(store, b"before")).created
    assert await payload(store, before.ref) == b"before"
    assert [meta.ref for meta in (await store.list(SCOPE)).artifacts] == [before.ref]


async def test_a_put_that_is_given_up_while_it_writes_is_never_seen(
    store: DirectoryStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (await put(store, b"before")).meta
    writing, go_on = threading.Event(), threading.Event()

    def slow(*args: Any, **options: Any) -> None:
        writing.set()
        go_on.wait(5)
        disk.write_file(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_file", slow)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(put, store)
            assert await anyio.to_thread.run_sync(writing.wait, 5)
            tasks.cancel_scope.cancel()
        go_on.set()
        await all_work_done(store)
    assert (await store.list(SCOPE)).artifacts == (before,)
    assert contents(root.joinpath(*scope_segments(SCOPE))) == {before.ref[4:6]}


async def test_a_second_put_that_is_given_up_while_it_reads_refreshes_nothing(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    store = DirectoryStore(root, ttl=timedelta(seconds=100), clock=clock)
    before = (await put(store)).meta
    clock.advance(50)
    reading, go_on = threading.Event(), threading.Event()
    works = files.ScopeDirectory.holds

    def slow(scope: files.ScopeDirectory, meta: ArtifactMeta) -> bool:
        reading.set()
        go_on.wait(5)
        return works(scope, meta)

    with monkeypatch.context() as patch:
        patch.setattr(files.ScopeDirectory, "holds", slow)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(put, store)
            assert await anyio.to_thread.run_sync(reading.wait, 5)
            tasks.cancel_scope.cancel()
        go_on.set()
        await all_work_done(store)
    assert await store.head(SCOPE, before.ref) == before


async def test_what_nobody_waits_for_does_not_begin_though_the_lock_is_free(store: DirectoryStore, root: Path) -> None:
    await put(store)

    def begin() -> None:
        with Root(root, fsync=False).locked(scope_segments(SCOPE), give_up):
            raise AssertionError("it began")

    def give_up() -> None:
        raise Abandoned

    with pytest.raises(Abandoned):
        await anyio.to_thread.run_sync(begin)
