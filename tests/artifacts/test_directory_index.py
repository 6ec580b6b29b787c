"""What the directory store remembers of a scope: an index that orders and counts, and that nobody has to trust.

Laws: `coatcheck.artifacts.index`; `cases.md` D5.
"""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coatcheck.artifacts import database as database_module
from coatcheck.artifacts import index as index_module
from coatcheck.artifacts import operations as operations_module
from coatcheck.artifacts.database import Unusable
from coatcheck.artifacts.directory import DirectoryStore
from coatcheck.artifacts.files import ScopeDirectory
from coatcheck.artifacts.meta import ArtifactMeta, Page, Swept
from coatcheck.artifacts.records import Entry
from coatcheck.artifacts.usage import Usage
from coatcheck.scope import Scope, scope_segments
from coatcheck.testing import ManualClock
from tests.artifacts._disk import (
    DATA,
    INDEX_FILES,
    SCOPE,
    contents,
    index_of,
    inode_of,
    payload,
    place,
    present,
    put,
    read_bytes,
    totals,
    write_bytes,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The refs of the artifacts that were looked at on the disk."""
    looked: list[str] = []
    works = ScopeDirectory.find

    def find(scope: ScopeDirectory, ref: str) -> Entry | None:
        looked.append(ref)
        return works(scope, ref)

    monkeypatch.setattr(ScopeDirectory, "find", find)
    return looked


async def pages(store: DirectoryStore, limit: int = 3) -> list[ArtifactMeta]:
    rows: list[ArtifactMeta] = []
    cursor: str | None = None
    while True:
        page = await store.list(SCOPE, cursor=cursor, limit=limit)
        rows += page.artifacts
        cursor = page.cursor
        if cursor is None:
            return rows


# Why it is there


async def test_a_put_and_a_page_look_at_no_more_artifacts_than_they_need(root: Path, looks: list[str]) -> None:
    clock = ManualClock()
    store = DirectoryStore(root, max_count=50, max_bytes=10**6, clock=clock)
    for number in range(50):
        await put(store, b"%d" % number)
        clock.advance(number % 2)
    looks.clear()
    result = await put(store, b"new")
    assert len(result.swept) == 1
    assert len(looks) <= 3  # itself, and what the put before it left in doubt
    looks.clear()
    assert len((await store.list(SCOPE, limit=5)).artifacts) == 5
    assert len(looks) == 6  # and one that tells that there is another page


async def test_a_page_passes_over_what_has_expired_without_a_look_at_it(root: Path, looks: list[str]) -> None:
    clock = ManualClock()
    store = DirectoryStore(root, clock=clock)
    kept = [(await put(store, b"kept %d" % number)).meta for number in range(3)]
    for number in range(40):
        await put(store, b"%d" % number, expires_at=clock.now + timedelta(seconds=5))
    clock.advance(5)
    looks.clear()
    assert {meta.ref for meta in (await store.list(SCOPE)).artifacts} == {meta.ref for meta in kept}
    assert len(looks) == 3


def test_importing_the_store_loads_no_database() -> None:
    code = "import sys, coatcheck.artifacts.directory; sys.exit('sqlite3' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 0


async def test_a_reader_makes_nothing_where_nothing_is(store: DirectoryStore, root: Path) -> None:
    assert await store.list(SCOPE) == Page(())
    assert await store.usage() == ()
    await store.delete(SCOPE, "art_" + "0" * 32)
    await store.sweep(SCOPE)
    assert contents(root) == {".coatcheck-1"}


# What may become of it


def journal(file: Path) -> Path:
    return file.with_name(".index-journal")


def replaced(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def replace(file: Path) -> None:
        file.unlink()
        make(file)

    return replace


def changed(*statements: str) -> Callable[[Path], None]:
    def change(file: Path) -> None:
        database = sqlite3.connect(file)
        for statement in statements:
            database.execute(statement)
        database.commit()
        database.close()

    return change


def a_directory(file: Path) -> None:
    file.mkdir()
    (file / "inside").write_bytes(b"x")


def a_journal_that_is_a_directory(file: Path) -> None:
    journal(file).unlink(missing_ok=True)
    a_directory(journal(file))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "removed": Path.unlink,
    "empty": replaced(Path.touch),
    "text": replaced(lambda file: file.write_bytes(b"hello " * 1000)),
    "zeros": replaced(lambda file: file.write_bytes(bytes(20_000))),
    "a directory": replaced(a_directory),
    "a pipe": replaced(os.mkfifo),
    "a link": replaced(lambda file: file.symlink_to(file.parents[3] / "outside")),
    "a link to nothing": replaced(lambda file: file.symlink_to("nowhere")),
    "cut after a page": lambda file: os.truncate(file, 1024),
    "cut in its head": lambda file: os.truncate(file, 60),
    "of another format": changed("PRAGMA user_version = 7"),
    "of another schema": changed("DROP TABLE doubtful"),
    "without totals": changed("DELETE FROM totals"),
    "with other totals": changed("UPDATE totals SET count = 1000000"),
    "words for numbers": changed("UPDATE artifacts SET place = 'soon', last_put = 'x', expires = 'y'"),
    "times that are none": changed(f"UPDATE artifacts SET last_put = {1 << 62}, expires = {1 << 62}"),
    "another order": changed("UPDATE artifacts SET place = -place"),
    "all expired long ago": changed("UPDATE artifacts SET expires = 5"),
    "a journal of rubbish": lambda file: journal(file).write_bytes(random.Random(0).randbytes(5000)),
    "a journal that is a directory": a_journal_that_is_a_directory,
}
UNSEEN_BY_A_PAGE = {"all expired long ago"}


@pytest.mark.parametrize("budgets", [{}, {"max_count": 8}], ids=["no budgets", "a full budget"])
@pytest.mark.parametrize("damage", DAMAGES)
async def test_whatever_becomes_of_the_index_no_artifact_is_lost_and_a_listing_is_right(
    root: Path, damage: str, budgets: dict[str, Any]
) -> None:
    clock = ManualClock()
    store = DirectoryStore(root, clock=clock, **budgets)
    metas: list[ArtifactMeta] = []
    for number in range(8):
        metas.insert(0, (await put(store, b"%d" % number)).meta)
        clock.advance(1)
    outside = root / "outside"
    write_bytes(outside, b"not yours")
    DAMAGES[damage](index_of(root))
    for meta in metas:
        assert await store.head(SCOPE, meta.ref) == meta
        assert await payload(store, meta.ref) is not None
    if damage not in UNSEEN_BY_A_PAGE:
        assert await pages(store) == metas
    result = await put(store, b"new")
    assert [gone.ref for gone in result.swept] == ([metas.pop().ref] if budgets else [])
    wanted = [result.meta, *metas]
    if damage not in UNSEEN_BY_A_PAGE:
        assert await pages(store) == wanted
    assert await store.sweep() == ()
    assert await pages(store) == wanted
    assert totals(root) == (len(wanted), sum(meta.bytes for meta in wanted))
    assert read_bytes(outside) == b"not yours"


@given(st.randoms(use_true_random=False), st.integers(1, 8), st.booleans())
@settings(max_examples=40)
def test_no_bytes_that_are_changed_in_an_index_lose_an_artifact_or_outlive_a_sweep(
    dice: random.Random, spots: int, budget: bool
) -> None:
    async def main(root: Path) -> None:
        clock = ManualClock()
        store = DirectoryStore(root, max_count=30 if budget else None, clock=clock)
        metas = []
        for number in range(30):
            metas.append((await put(store, b"%d" % number)).meta)
            clock.advance(dice.randrange(2))
        data = bytearray(read_bytes(index_of(root)))
        for _ in range(spots):
            at = dice.randrange(len(data))
            length = dice.choice((1, 2, 40, 1024))
            data[at : at + length] = dice.randbytes(len(data[at : at + length]))
        write_bytes(index_of(root), bytes(data))

        listed = await pages(store, limit=7)
        assert {meta.ref for meta in listed} <= {meta.ref for meta in metas}
        result = await put(store, b"new")
        assert len(result.swept) <= budget
        await store.sweep()
        gone = {each.ref for each in result.swept}
        wanted = [meta for meta in [*metas, result.meta] if meta.ref not in gone]
        wanted.sort(key=lambda meta: meta.ref)
        wanted.sort(key=lambda meta: meta.created_at, reverse=True)
        assert await pages(store, limit=7) == wanted
        assert totals(root) == (len(wanted), sum(meta.bytes for meta in wanted))
        for meta in wanted:
            assert await payload(store, meta.ref) is not None

    with tempfile.TemporaryDirectory() as folder:
        anyio.run(main, Path(folder) / "store")


async def test_an_older_copy_of_the_index_is_put_right_by_a_sweep(store: DirectoryStore, root: Path) -> None:
    old = (await put(store, b"old")).meta
    copy = read_bytes(index_of(root))
    new = (await put(store, b"new")).meta
    await store.delete(SCOPE, old.ref)
    write_bytes(index_of(root), copy)
    assert (await store.list(SCOPE)).artifacts == ()
    await store.sweep()
    assert (await store.list(SCOPE)).artifacts == (new,)


async def test_a_store_of_a_version_without_an_index_is_listed_and_gets_one(store: DirectoryStore, root: Path) -> None:
    metas = {(await put(store, b"%d" % number)).meta.ref for number in range(5)}
    for name in INDEX_FILES:
        index_of(root).with_name(name).unlink(missing_ok=True)
    assert {meta.ref for meta in await pages(store, limit=2)} == metas
    assert totals(root) == (5, 5)


async def test_an_index_of_another_user_is_replaced(
    store: DirectoryStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meta = (await put(store)).meta
    inode = inode_of(index_of(root))
    works = os.stat

    def stat(path: Any, **options: Any) -> Any:
        status = works(path, **options)
        if path == ".index" and status.st_ino == inode:
            return os.stat_result((*status[:4], status.st_uid + 1, *status[5:]))
        return status

    monkeypatch.setattr(os, "stat", stat)
    assert (await store.list(SCOPE)).artifacts == (meta,)
    assert inode_of(index_of(root)) != inode


async def test_where_no_index_can_be_written_the_store_works_without_one(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cannot(*_: object, **__: object) -> None:
        raise sqlite3.OperationalError("unable to open database file")

    monkeypatch.setattr(database_module, "_connect", cannot)
    clock = ManualClock()
    store = DirectoryStore(root, max_count=3, ttl=timedelta(seconds=100), clock=clock)
    metas = []
    for number in range(5):
        metas.append((await put(store, b"%d" % number)).meta)
        clock.advance(1)
    assert await pages(store, limit=2) == metas[:1:-1]
    await store.delete(SCOPE, metas[4].ref)
    assert await store.usage() == (Usage(scope_segments(SCOPE), "k", 2, 2),)
    assert not any(present(index_of(root).with_name(name)) for name in INDEX_FILES)
    unlimited = DirectoryStore(root, clock=clock)
    assert (await put(unlimited, b"5")).created
    clock.advance(100)
    assert len(await store.sweep()) == 2
    assert [meta.bytes for meta in (await store.list(SCOPE)).artifacts] == [1]


async def test_a_store_far_down_in_the_tree_works_although_the_database_takes_no_such_name(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path.joinpath(*["a" * 100] * 6), max_count=2)
    metas = [(await put(store, b"%d" % number)).meta for number in range(4)]
    assert {meta.ref for meta in await pages(store)} == {meta.ref for meta in metas[2:]}


@pytest.mark.parametrize(
    "name", ["with space", "a?b=c&d#e", "100%41", "\u00fc\u4e2d", "a'b\"c", os.fsdecode(b"\xff\xfe")]
)
async def test_the_root_may_have_any_name(tmp_path: Path, name: str) -> None:
    store = DirectoryStore(tmp_path / name)
    meta = (await put(store)).meta
    assert (await store.list(SCOPE)).artifacts == (meta,)
    assert present(index_of(tmp_path / name))
    assert contents(tmp_path) == {name}


async def test_an_index_that_somebody_holds_up_makes_nobody_wait_for_ever(
    store: DirectoryStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "_PATIENCE", 0.05)
    first = (await put(store)).meta
    stuck = sqlite3.connect(index_of(root), isolation_level=None)
    try:
        stuck.execute("BEGIN EXCLUSIVE")
        assert (await store.list(SCOPE)).artifacts == (first,)
        second = (await put(store, b"second")).meta
        assert {meta.ref for meta in (await store.list(SCOPE)).artifacts} == {first.ref, second.ref}
    finally:
        stuck.close()
    await store.sweep()
    assert totals(root) == (2, len(DATA) + 6)


# What was done behind its back, and what is in doubt


async def test_what_was_removed_by_hand_is_not_evicted_and_not_told(root: Path) -> None:
    clock = ManualClock()
    store = DirectoryStore(root, max_count=4, clock=clock)
    metas = []
    for number in range(4):
        metas.append((await put(store, b"%d" % number)).meta)
        clock.advance(1)
    shutil.rmtree(place(root, metas[0].ref))
    shutil.rmtree(place(root, metas[1].ref).parent, ignore_errors=True)
    assert await pages(store) == metas[:1:-1]
    assert (await put(store, b"new")).swept == ()
    assert (await put(store, b"newer")).swept == ()
    assert [gone.ref for gone in (await put(store, b"newest")).swept] == [metas[2].ref]
    assert (await put(store, b"0")).created


async def test_a_whole_scope_that_was_removed_by_hand_is_an_empty_one(store: DirectoryStore, root: Path) -> None:
    await put(store)
    shutil.rmtree(root / scope_segments(SCOPE)[0])
    assert (await store.list(SCOPE)).artifacts == ()
    assert (await put(store)).created
    assert totals(root) == (1, len(DATA))


async def test_what_was_damaged_by_hand_leaves_first_among_what_has_to_leave(root: Path) -> None:
    clock = ManualClock()
    store = DirectoryStore(root, max_bytes=20, clock=clock)
    for data in (b"first", b"second", b"third"):
        meta = (await put(store, data)).meta
        clock.advance(1)
        if data == b"first":
            write_bytes(place(root, meta.ref) / "meta.json", b"{")
    result = await put(store, b"fourth")
    assert [(gone.kind, gone.bytes) for gone in result.swept] == [("", 5)]


async def test_a_change_that_was_noted_and_not_done_is_looked_up_by_the_next_one(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    store = DirectoryStore(root, max_count=2, clock=clock)
    metas = []
    for data in (b"a", b"b"):
        metas.append((await put(store, data)).meta)
        clock.advance(1)

    class Killed(Exception):
        pass

    def die(*_: object) -> None:
        raise Killed

    for verb in ("publish", "remove"):
        with monkeypatch.context() as patch:
            patch.setattr(ScopeDirectory, verb, die)
            with pytest.raises(Killed):
                await put(store, b"never")
        assert await pages(store) == metas[::-1]
        assert await store.usage() == (Usage(scope_segments(SCOPE), "k", 2, 2),)
    with monkeypatch.context() as patch:
        patch.setattr(ScopeDirectory, "remove", die)
        with pytest.raises(Killed):
            await store.delete(SCOPE, metas[0].ref)
    assert await pages(store) == metas[::-1]
    result = await put(store, b"c")
    assert [gone.ref for gone in result.swept] == [metas[0].ref]
    assert await pages(store) == [result.meta, metas[1]]


async def test_a_put_that_was_killed_before_it_evicted_is_made_up_for_by_the_next_one(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    store = DirectoryStore(root, max_count=2, clock=clock)
    metas = []
    with monkeypatch.context() as patch:
        patch.setattr(operations_module, "_removed", lambda scope, plan: ())
        for number in range(3):
            metas.append((await put(store, b"%d" % number)).meta)
            clock.advance(1)
    assert await pages(store) == metas[::-1]
    result = await put(DirectoryStore(root, max_count=2, clock=clock), b"new")
    assert [gone.ref for gone in result.swept] == [metas[0].ref, metas[1].ref]
    assert await pages(store) == [result.meta, metas[2]]


async def test_a_listing_meets_what_is_put_anew_while_it_is_read_on_no_second_place(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An artifact of an old page expires and is put again between the index's answer and the look at the disk."""
    clock = ManualClock()
    store = DirectoryStore(root, clock=clock)
    brief = (await put(store, b"brief", expires_at=clock.now + timedelta(seconds=5))).meta
    clock.advance(1)
    kept = (await put(store, b"kept")).meta
    works = index_module.Index._places
    meanwhile: list[str] = []

    def places(*arguments: Any) -> Any:
        found = works(*arguments)
        if not meanwhile:
            clock.advance(10)
            anyio.run(put, DirectoryStore(root, clock=clock), b"brief")
            meanwhile.append(brief.ref)
        return found

    monkeypatch.setattr(index_module.Index, "_places", places)
    inode = inode_of(index_of(root))
    assert (await store.list(SCOPE)).artifacts == (kept,)
    assert inode_of(index_of(root)) == inode, "it was taken for damage"
    assert [meta.ref for meta in (await store.list(SCOPE)).artifacts] == [brief.ref, kept.ref]


async def test_an_index_that_cannot_be_used_twice_is_given_up(
    store: DirectoryStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put(store)

    def useless(*_: object) -> None:
        raise Unusable("as it says")

    monkeypatch.setattr(index_module, "_doubt", useless)
    assert (await put(store, b"new")).created
    assert not present(index_of(root))
    assert len((await store.list(SCOPE)).artifacts) == 2


# Sweeps of many


async def test_a_sweep_of_many_lets_others_have_the_lock_between_and_leaves_the_index_right(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations_module, "_AT_ONCE", 5)
    clock = ManualClock()
    store = DirectoryStore(root, clock=clock)
    brief = {
        (await put(store, b"brief %d" % number, expires_at=clock.now + timedelta(seconds=5))).meta.ref
        for number in range(20)
    }
    kept = {(await put(store, b"kept %d" % number)).meta.ref for number in range(20)}
    clock.advance(5)
    breaths: list[float] = []

    def breathe(seconds: float) -> None:
        breaths.append(seconds)
        kept.add(anyio.run(put, DirectoryStore(root, clock=clock), b"meanwhile %d" % len(breaths)).meta.ref)

    monkeypatch.setattr(time, "sleep", breathe)
    assert [gone.ref for gone in await store.sweep(dry_run=True)] == sorted(brief)
    assert breaths
    swept = await store.sweep()
    assert [gone.ref for gone in swept] == sorted(brief)
    assert {meta.ref for meta in await pages(store, limit=10)} == kept
    monkeypatch.undo()
    await store.sweep()
    assert totals(root)[0] == len(kept)


# What an operator sees


async def test_usage_counts_by_scope_and_kind_also_what_has_expired(root: Path) -> None:
    clock = ManualClock()
    store = DirectoryStore(root, ttl=timedelta(seconds=10), clock=clock)
    assert await store.usage() == ()
    other = Scope(tenant="a", principal="b", conversation="C")
    for number in range(3):
        await put(store, b"x" * number, kind="b")
        await put(store, b"y" * number, kind="a")
        await put(store, b"z" * number, scope=other)
    clock.advance(100)
    expected = (
        Usage(("a", "b", "_43"), "k", 3, 3),
        Usage(scope_segments(SCOPE), "a", 3, 3),
        Usage(scope_segments(SCOPE), "b", 3, 3),
    )
    assert await store.usage() == expected
    index_of(root).unlink()
    assert await store.usage() == expected
    assert len(await store.sweep(other)) == 3
    assert await store.usage() == expected[1:]


async def test_usage_tells_apart_what_nobody_can_read_any_more(store: DirectoryStore, root: Path) -> None:
    torn, kept = (await put(store, b"torn")).meta, (await put(store, b"kept")).meta
    write_bytes(place(root, torn.ref) / "meta.json", b"{")
    await store.list(SCOPE)
    index_of(root).unlink()
    segments = scope_segments(SCOPE)
    assert await store.usage() == (Usage(segments, "", 1, 4), Usage(segments, "k", 1, 4))
    assert await store.sweep() == (Swept(torn.ref, "", 4, "orphan"),)
    assert await store.usage() == (Usage(segments, "k", 1, 4),)
    await store.delete(SCOPE, kept.ref)
    assert await store.usage() == ()


# Pages


@given(
    st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=1, max_size=20),
    st.integers(1, 4),
    st.lists(st.tuples(st.booleans(), st.integers(0, 30)), max_size=12),
)
@settings(max_examples=25)
def test_pages_meet_everything_once_whatever_comes_and_goes_between_them(
    times: list[tuple[int, bool]], limit: int, changes: list[tuple[bool, int]]
) -> None:
    async def main(root: Path) -> None:
        clock = ManualClock()
        store = DirectoryStore(root, clock=clock)
        metas: list[ArtifactMeta] = []
        for number, (seconds, refreshed) in enumerate(times):
            clock.advance(seconds)  # many of one moment
            metas.append((await put(store, b"%d" % number)).meta)
            if refreshed:  # moves nothing
                await put(store, b"%d" % (number // 2))
        clock.advance(1)
        gone: set[str] = set()
        met: list[ArtifactMeta] = []
        cursor: str | None = None
        while True:
            page = await store.list(SCOPE, cursor=cursor, limit=limit)
            met += page.artifacts
            cursor = page.cursor
            if cursor is None:
                break
            assert len(page.artifacts) == limit
            for comes, number in [changes.pop() for _ in range(min(2, len(changes)))]:
                if comes:
                    await put(store, b"new %d" % number)
                elif number < len(metas):
                    gone.add(metas[number].ref)
                    await store.delete(SCOPE, metas[number].ref)
        metas.sort(key=lambda meta: meta.ref)
        metas.sort(key=lambda meta: meta.created_at, reverse=True)
        assert [meta for meta in met if meta.ref not in gone] == [meta for meta in metas if meta.ref not in gone]
        assert len({meta.ref for meta in met}) == len(met)

    with tempfile.TemporaryDirectory() as folder:
        anyio.run(main, Path(folder) / "store")


@pytest.mark.parametrize("limit", [-5, 0, 1, 1 << 40, 10**30])
async def test_a_page_may_have_any_limit(store: DirectoryStore, limit: int) -> None:
    for number in range(3):
        await put(store, b"%d" % number)
    assert len((await store.list(SCOPE, limit=limit)).artifacts) == (3 if limit > 3 else 1)
