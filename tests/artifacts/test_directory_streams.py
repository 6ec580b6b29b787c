"""Streams into the directory store and out of it, and what a producer, a reader and a disk may do on the way.

Laws: the port's `put_stream` and `open`; `cases.md` C7, D5. What every store keeps is in the battery.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from coatcheck.artifacts import directory as directory_module
from coatcheck.artifacts.blocks import BLOCK_BYTES
from coatcheck.artifacts.directory import DirectoryStore
from coatcheck.artifacts.meta import Swept
from coatcheck.artifacts.ranged import READ_BYTES
from coatcheck.artifacts.ref import digest_of, make_ref
from coatcheck.artifacts.staging import Held, Staging
from coatcheck.artifacts.workers import Abandoned
from coatcheck.errors import IntegrityError, InvalidArtifact, InvalidRange, StoreUnavailable, UnknownParent
from coatcheck.scope import scope_segments
from coatcheck.testing import ManualClock
from tests.artifacts._disk import (
    DATA,
    SCOPE,
    WORDS,
    Chunks,
    all_work_done,
    contents,
    inode_of,
    names_under,
    open_files,
    payload,
    place,
    put,
    read,
    read_bytes,
    stream,
    totals,
    write_bytes,
)
from tests.boundary._cancel import cancelled_everywhere, until

pytestmark = pytest.mark.anyio

BLOCK = b"0123456789abcdef" * (BLOCK_BYTES // 16)
LARGE = (BLOCK, b"x", BLOCK)
WHOLE = b"".join(LARGE)


def staged(root: Path) -> list[str]:
    """The names of what is being written, or was left."""
    return sorted(name for name in contents(root.joinpath(*scope_segments(SCOPE))) if name.startswith("."))


class Slow:
    """A source that waits before its second chunk until it is told to go on."""

    def __init__(self, *chunks: bytes) -> None:
        self.waits, self.go_on = anyio.Event(), anyio.Event()
        self.chunks = chunks

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for number, chunk in enumerate(self.chunks):
            if number == 1:
                self.waits.set()
                await self.go_on.wait()
            yield chunk


# What is stored


@pytest.mark.parametrize("chunks", [(), (b"",), (b"abc", b"", b"d"), (BLOCK,), LARGE, (WHOLE * 3,)])
@pytest.mark.parametrize("fsync", [False, True])
async def test_a_stream_of_any_size_is_the_artifact_that_a_put_of_the_whole_makes(
    root: Path, chunks: tuple[bytes, ...], fsync: bool
) -> None:
    store = DirectoryStore(root, fsync=fsync)
    whole = b"".join(chunks)
    result = await stream(store, *chunks, label="first")
    assert result.created
    assert (result.meta.bytes, result.meta.digest) == (len(whole), digest_of(whole))
    assert result.meta.ref == make_ref("k", "text/plain", digest_of(whole))
    assert read_bytes(place(root, result.meta.ref) / "data") == whole
    assert contents(place(root, result.meta.ref)) == {"data", "meta.json"}
    assert await read(store, result.meta.ref) == whole
    again = await put(store, whole, label="second")
    assert (again.created, again.meta.label) == (False, "first")
    assert staged(root) == []
    assert totals(root) == (1, len(whole))


async def test_a_second_stream_of_the_same_content_keeps_the_first_one_s_words_and_is_young(root: Path) -> None:
    clock = ManualClock()
    store = DirectoryStore(root, ttl=timedelta(seconds=100), clock=clock)
    first = (await stream(store, *LARGE, label="first")).meta
    clock.advance(60)
    again = await stream(store, WHOLE, label="second")
    assert not again.created
    assert (again.meta.label, again.meta.created_at) == ("first", first.created_at)
    assert again.meta.expires_at == clock.now + timedelta(seconds=100)
    assert await store.head(SCOPE, first.ref) == again.meta
    assert staged(root) == []


@pytest.mark.parametrize("damage", ["changed", "cut", "gone", "a pipe", "a link", "meta", "meta gone"])
async def test_a_stream_heals_whatever_happened_to_its_content(store: DirectoryStore, root: Path, damage: str) -> None:
    meta = (await stream(store, *LARGE)).meta
    data, words = place(root, meta.ref) / "data", place(root, meta.ref) / "meta.json"
    match damage:
        case "changed":
            write_bytes(data, WHOLE[::-1])
        case "cut":
            write_bytes(data, WHOLE[:100])
        case "gone":
            data.unlink()
        case "a pipe":
            data.unlink()
            os.mkfifo(data)
        case "a link":
            data.unlink()
            data.symlink_to("/etc/passwd")
        case "meta":
            write_bytes(words, b"{")
        case "meta gone":
            words.unlink()
    again = await stream(store, *LARGE)
    assert again.created == (damage != "changed")  # a payload of the right size is replaced unread
    assert await payload(store, meta.ref) == WHOLE
    assert staged(root) == []
    assert totals(root) == (1, len(WHOLE))


async def test_the_type_of_a_stream_is_asked_once_at_its_end_and_on_the_loop(store: DirectoryStore) -> None:
    asked: list[tuple[int, int]] = []
    for chunks in (LARGE, (b"small",)):
        source = Chunks(*chunks)

        def media_type(source: Chunks = source) -> str:
            asked.append((source.asked, threading.get_ident()))
            return "Text/CSV; charset=utf-8"

        result = await store.put_stream(SCOPE, source, kind="k", media_type=media_type)
        assert result.meta.media_type == "text/csv"
    assert asked == [(4, threading.get_ident()), (2, threading.get_ident())]


@pytest.mark.parametrize("chunks", [LARGE, (b"small",)], ids=["large", "small"])
async def test_a_type_that_is_none_refuses_the_stream_and_leaves_nothing(
    store: DirectoryStore, root: Path, chunks: tuple[bytes, ...]
) -> None:
    await put(store)
    before = names_under(root)
    with pytest.raises(InvalidArtifact, match="media_type"):
        await stream(store, *chunks, media_type=lambda: "no type")
    assert names_under(root) == before


async def test_more_than_the_byte_budget_is_refused_when_it_is_known_and_evicts_nothing(root: Path) -> None:
    store = DirectoryStore(root, max_bytes=BLOCK_BYTES + 10)
    before = (await put(store)).meta
    source = Chunks(BLOCK, b"x" * 10, b"y", b"never asked for")
    with pytest.raises(InvalidArtifact, match=f"more than max_bytes={BLOCK_BYTES + 10}"):
        await store.put_stream(SCOPE, source, **WORDS)
    assert source.asked == 3
    assert (await store.list(SCOPE)).artifacts == (before,)
    assert staged(root) == []


async def test_a_stream_evicts_when_it_has_ended_and_not_before(root: Path) -> None:
    store = DirectoryStore(root, max_count=1)
    before = (await put(store)).meta
    source = Slow(BLOCK, BLOCK)
    async with anyio.create_task_group() as tasks:

        async def run() -> None:
            result = await store.put_stream(SCOPE, source, **WORDS)
            assert result.swept == (Swept(before.ref, "k", len(DATA), "max-count"),)

        tasks.start_soon(run)
        await source.waits.wait()
        assert (await store.list(SCOPE)).artifacts == (before,)
        source.go_on.set()
    assert await store.head(SCOPE, before.ref) is None


async def test_a_parent_is_looked_for_before_the_stream_is_written_and_again_at_its_end(
    store: DirectoryStore, root: Path
) -> None:
    parent = (await put(store)).meta.ref
    source = Slow(BLOCK, BLOCK)
    async with anyio.create_task_group() as tasks:

        async def run() -> None:
            with pytest.raises(UnknownParent):
                await store.put_stream(SCOPE, source, **WORDS, parents=[parent])

        tasks.start_soon(run)
        await source.waits.wait()
        await store.delete(SCOPE, parent)
        source.go_on.set()
    early = Chunks(*[BLOCK] * 9)
    with pytest.raises(UnknownParent):
        await store.put_stream(SCOPE, early, **WORDS, parents=[parent])
    assert early.asked == 1
    assert staged(root) == []
    assert (await store.list(SCOPE)).artifacts == ()


async def test_a_stream_that_outlived_its_own_expiry_is_refused_and_leaves_nothing(root: Path) -> None:
    clock = ManualClock()
    store = DirectoryStore(root, clock=clock)

    async def source() -> AsyncIterator[bytes]:
        yield BLOCK
        clock.advance(11)
        yield BLOCK

    with pytest.raises(InvalidArtifact, match="expires_at must be in the future"):
        await store.put_stream(SCOPE, source(), **WORDS, expires_at=clock.now + timedelta(seconds=10))
    assert staged(root) == []


# Sweeps, other processes, and what a producer does


async def test_a_sweep_leaves_a_stream_alone_that_is_being_written_and_takes_what_a_crash_left(
    store: DirectoryStore, root: Path
) -> None:
    source = Slow(BLOCK, b"more")
    left = root.joinpath(*scope_segments(SCOPE), ".new-0123456789abcdef")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stream_of, store, source)
        await source.waits.wait()
        left.mkdir()
        write_bytes(left / "data", b"half")
        for each in (store, DirectoryStore(root)):
            assert await each.sweep(dry_run=True) == (Swept("", "", 4, "orphan"),)
        assert await store.sweep() == (Swept("", "", 4, "orphan"),)
        assert await store.sweep(SCOPE) == ()
        assert len(staged(root)) == 1
        source.go_on.set()
    assert staged(root) == []
    assert [meta.bytes for meta in (await store.list(SCOPE)).artifacts] == [BLOCK_BYTES + 4]


async def stream_of(store: DirectoryStore, source: Any) -> None:
    await store.put_stream(SCOPE, source, **WORDS)


async def test_sweeps_puts_and_streams_at_once_lose_nothing(store: DirectoryStore, root: Path) -> None:
    other = DirectoryStore(root)
    acknowledged: set[str] = set()

    async def streams(number: int) -> None:
        for turn in range(3):
            acknowledged.add((await stream(store, BLOCK, b"%d-%d" % (number, turn))).meta.ref)

    async def puts() -> None:
        for turn in range(10):
            acknowledged.add((await put(other, b"%d" % turn)).meta.ref)

    async def sweeps() -> None:
        while True:
            assert await other.sweep() == ()

    async with anyio.create_task_group() as sweepers:
        sweepers.start_soon(sweeps)
        async with anyio.create_task_group() as tasks:
            for number in range(3):
                tasks.start_soon(streams, number)
            tasks.start_soon(puts)
        sweepers.cancel_scope.cancel()
    assert {meta.ref for meta in (await store.list(SCOPE)).artifacts} == acknowledged
    for ref in acknowledged:
        assert await payload(other, ref) is not None


async def test_no_thread_and_no_lock_waits_for_a_slow_producer(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = [Slow(BLOCK, b"%d" % number) for number in range(40)]  # more than there are threads
    async with anyio.create_task_group() as tasks:
        for source in sources:
            tasks.start_soon(stream_of, store, source)
        for source in sources:
            await source.waits.wait()
        with anyio.fail_after(10):
            ref = (await put(store)).meta.ref
            assert await payload(store, ref) == DATA
        for source in sources:
            source.go_on.set()
    assert len((await store.list(SCOPE)).artifacts) == 41


async def test_a_scope_whose_directory_was_taken_away_under_a_stream_is_a_clear_error(
    store: DirectoryStore, root: Path
) -> None:
    source = Slow(BLOCK, b"more")
    async with anyio.create_task_group() as tasks:

        async def run() -> None:
            with pytest.raises(StoreUnavailable, match=r"cannot store an artifact: .*ENOENT") as error:
                await store.put_stream(SCOPE, source, **WORDS)
            assert "5ecret" not in repr(error.value)

        tasks.start_soon(run)
        await source.waits.wait()
        os.rename(root / scope_segments(SCOPE)[0], root.parent / "away")
        source.go_on.set()
    assert not [name for name in names_under(root.parent / "away") if ".new-" in name]
    assert (await put(store)).created


# Failure and cancellation


@pytest.mark.parametrize("chunks", [(), (b"a",), (BLOCK,), LARGE])
async def test_what_a_source_raises_goes_on_and_leaves_nothing(
    store: DirectoryStore, root: Path, chunks: tuple[bytes, ...]
) -> None:
    await put(store)
    before, files = names_under(root), open_files()
    error = ValueError("mine")
    with pytest.raises(ValueError, match="mine") as raised:
        await store.put_stream(SCOPE, Chunks(*chunks, fail=error), **WORDS)
    assert raised.value is error
    assert names_under(root) == before
    assert open_files() == files


@pytest.mark.parametrize("there", [False, True], ids=["new", "there already"])
async def test_a_stream_that_is_cancelled_at_any_moment_leaves_nothing_or_the_whole(
    store: DirectoryStore, root: Path, there: bool
) -> None:
    neighbour = (await put(store)).meta
    wanted = {neighbour.ref}
    if there:
        wanted.add((await stream(store, *LARGE)).meta.ref)
    files = open_files()
    whole: Any = None

    async def run() -> None:
        nonlocal whole
        whole = (await stream(store, *LARGE)).meta.ref

    async for _ in cancelled_everywhere(run, least=6):
        await all_work_done(store)
        listed = {meta.ref for meta in (await store.list(SCOPE)).artifacts}
        assert wanted <= listed
        for ref in listed - {neighbour.ref}:
            assert await payload(store, ref) == WHOLE
            if not there:
                await store.delete(SCOPE, ref)
        assert staged(root) == []
        assert open_files() == files
    assert await payload(store, whole) == WHOLE
    assert await store.sweep() == ()


async def test_reading_that_is_cancelled_at_any_moment_closes_the_file(store: DirectoryStore) -> None:
    ref = (await stream(store, *LARGE)).meta.ref
    files = open_files()

    async def run() -> None:
        assert await read(store, ref) == WHOLE

    async for _ in cancelled_everywhere(run, least=4):
        await all_work_done(store)
        assert open_files() == files


@contextmanager
def held_up(
    monkeypatch: pytest.MonkeyPatch, module: Any, name: str
) -> Iterator[tuple[threading.Event, Callable[[], None]]]:
    """A call of the system that hangs in the disk until it is let go on."""
    begun, go_on = threading.Event(), threading.Event()
    works = getattr(module, name)

    def slow(*args: Any, **options: Any) -> Any:
        begun.set()
        assert go_on.wait(10)
        return works(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(module, name, slow)
        try:
            yield begun, go_on.set
        finally:
            go_on.set()


async def test_a_stream_whose_disk_hangs_lets_its_caller_go_and_is_removed_when_the_disk_answers(
    store: DirectoryStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory_module, "_PATIENCE", 0.05)
    await put(store)
    files = open_files()
    with held_up(monkeypatch, os, "write") as (begun, go_on), anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stream, store, *LARGE)
            assert await anyio.to_thread.run_sync(begun.wait, 5)
            tasks.cancel_scope.cancel()
        assert len(staged(root)) == 1, "what a thread still writes is not pulled away under it"
        assert await store.sweep() == (), "nor by a sweep"
        go_on()
        await all_work_done(store)
    assert staged(root) == []
    assert open_files() == files


async def test_a_read_whose_disk_hangs_lets_its_caller_go_and_keeps_the_file_open_for_its_thread(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = (await put(store)).meta.ref
    files = open_files()
    works, used = os.pread, []

    def pread(descriptor: int, *args: int) -> bytes:
        used.append(os.fstat(descriptor).st_size)  # an error, or another file, if it was closed
        return works(descriptor, *args)

    monkeypatch.setattr(os, "pread", pread)
    with held_up(monkeypatch, os, "pread") as (begun, go_on), anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read, store, ref)
            assert await anyio.to_thread.run_sync(begun.wait, 5)
            tasks.cancel_scope.cancel()
        go_on()
        await all_work_done(store)
    assert used == [len(DATA)]
    assert open_files() == files


async def test_a_stream_is_removed_also_when_no_thread_is_left_for_it(
    store: DirectoryStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Slow(BLOCK, b"more")
    async with anyio.create_task_group() as tasks:

        async def run() -> None:
            with pytest.raises(StoreUnavailable, match="still hang"):
                await store.put_stream(SCOPE, source, **WORDS)

        tasks.start_soon(run)
        await source.waits.wait()
        monkeypatch.setattr(store._workers, "_limit", 0)
        source.go_on.set()
    await until(lambda: not staged(root))


# Held files


def test_a_file_that_was_given_up_is_closed_once_and_used_by_nobody_any_more(tmp_path: Path) -> None:
    held = Held(os.open(tmp_path, os.O_RDONLY))
    descriptor = held.use(lambda descriptor: descriptor)
    held.give_up()
    held.give_up()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    with pytest.raises(Abandoned):
        held.use(lambda _: pytest.fail("it is closed"))


def test_a_file_that_is_given_up_while_threads_use_it_is_closed_after_the_last_of_them(tmp_path: Path) -> None:
    held = Held(os.open(tmp_path, os.O_RDONLY))
    inside, leave = threading.Barrier(3), [threading.Event(), threading.Event()]

    def use(number: int) -> None:
        def work(descriptor: int) -> None:
            inside.wait(5)
            leave[number].wait(5)
            os.fstat(descriptor)

        held.use(work)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    inside.wait(5)
    held.give_up()
    for number, thread in enumerate(threads):
        assert not held.gone.is_set()
        leave[number].set()
        thread.join(5)
    assert held.gone.is_set()


def test_a_staging_that_cannot_be_locked_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    scope = os.open(tmp_path, os.O_RDONLY)
    files = open_files()
    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", refuse)
        with pytest.raises(OSError, match="No locks available"):
            Staging(scope, fsync=False)
    assert open_files() == files
    os.close(scope)
    assert contents(tmp_path) == set()


# Reading


async def test_a_part_is_read_without_what_is_before_it(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    ref = (await stream(store, *LARGE)).meta.ref
    asked: list[tuple[int, int]] = []
    works = os.pread

    def pread(descriptor: int, length: int, at: int) -> bytes:
        asked.append((at, length))
        return works(descriptor, length, at)

    monkeypatch.setattr(os, "pread", pread)
    assert await read(store, ref, BLOCK_BYTES + 1, BLOCK_BYTES + 5) == b"0123"
    assert asked == [(BLOCK_BYTES + 1, 4)]
    asked.clear()
    assert await read(store, ref, 5) == WHOLE[5:]
    assert asked == [(5, len(WHOLE) - 5)], "no more than is there, and all of it at once"
    asked.clear()
    long = (await stream(store, *LARGE, *LARGE)).meta.ref
    assert await read(store, long, 5) == (WHOLE * 2)[5:]
    assert [at for at, _ in asked] == [5, READ_BYTES + 5, 2 * READ_BYTES + 5][: len(asked)]
    assert len(asked) > 1
    for start, end in ((0, 0), (7, 7), (len(WHOLE), None), (len(WHOLE) + 9, len(WHOLE) + 99)):
        asked.clear()
        assert await read(store, ref, start, end) == b""
        assert asked == []


async def test_a_range_that_cannot_be_is_refused_also_where_nothing_is(store: DirectoryStore) -> None:
    ref = (await put(store)).meta.ref
    for each in (ref, "no ref"):
        for start, end in ((-1, None), (3, 2), (1.0, None), (True, None)):
            with pytest.raises(InvalidRange):
                await read(store, each, start, end)  # type: ignore[arg-type]  # what a careless caller gives


@pytest.mark.parametrize("chunks", [(DATA,), LARGE], ids=["small", "large"])
async def test_a_full_read_of_a_changed_payload_raises_in_place_of_its_end_and_a_part_does_not(
    store: DirectoryStore, root: Path, chunks: tuple[bytes, ...]
) -> None:
    whole = b"".join(chunks)
    meta = (await stream(store, *chunks)).meta
    changed = whole[:-1] + b"?"
    write_bytes(place(root, meta.ref) / "data", changed)
    async with store.open(SCOPE, meta.ref) as reader:
        assert reader is not None
        got: list[bytes] = []

        async def read_on() -> None:
            async for chunk in reader:
                got.extend([chunk])

        with pytest.raises(IntegrityError) as damage:
            await read_on()
        assert b"".join(got) == changed
        with pytest.raises(IntegrityError):
            await read_on()
    assert (damage.value.expected, damage.value.actual) == (meta.digest, digest_of(changed))
    assert await read(store, meta.ref, 1) == changed[1:]


@pytest.mark.parametrize("size", [0, 3, len(DATA) + 1])
async def test_a_payload_of_another_size_is_never_opened(store: DirectoryStore, root: Path, size: int) -> None:
    meta = (await put(store)).meta
    write_bytes(place(root, meta.ref) / "data", bytes(size))
    with pytest.raises(IntegrityError, match=f"expected {len(DATA)} bytes, read {size} bytes"):
        await read(store, meta.ref)


async def test_a_payload_that_is_cut_while_it_is_read_is_an_error_and_no_silent_end(
    store: DirectoryStore, root: Path
) -> None:
    whole = WHOLE * 2  # more than is read at once
    meta = (await stream(store, *LARGE, *LARGE)).meta
    for start in (0, 1):
        async with store.open(SCOPE, meta.ref, start) as reader:
            assert reader is not None
            await anext(aiter(reader))
            os.truncate(place(root, meta.ref) / "data", READ_BYTES)
            with pytest.raises(IntegrityError, match=rf"expected {len(whole)} bytes"):
                await reader.read()
        write_bytes(place(root, meta.ref) / "data", whole)


async def test_a_damaged_meta_is_an_error_and_what_is_not_there_is_none(store: DirectoryStore, root: Path) -> None:
    clock = ManualClock()
    meta = (await put(store)).meta
    gone = (await put(store, b"gone")).meta
    (place(root, gone.ref) / "data").unlink()
    write_bytes(place(root, meta.ref) / "meta.json", b"{")
    with pytest.raises(IntegrityError, match=r"meta\.json"):
        await read(store, meta.ref)
    expiring = DirectoryStore(root, ttl=timedelta(seconds=1), clock=clock)
    brief = (await put(expiring, b"brief")).meta
    clock.advance(1)
    for ref in (gone.ref, make_ref("k", "text/plain", digest_of(b"never")), "../../etc/passwd", None, "\x00"):
        assert await read(store, ref) is None  # type: ignore[arg-type]  # what a careless caller gives
    assert await read(expiring, brief.ref) is None


async def test_what_is_deleted_or_put_again_while_it_is_read_is_read_to_its_end(store: DirectoryStore) -> None:
    ref = (await stream(store, *LARGE)).meta.ref
    async with store.open(SCOPE, ref) as first, store.open(SCOPE, ref) as second:
        assert first is not None
        assert second is not None
        head = await anext(aiter(first))
        await stream(store, *LARGE)
        assert head + await first.read() == WHOLE
        await store.delete(SCOPE, ref)
        assert await second.read() == WHOLE


async def test_a_reader_goes_on_where_it_was_when_one_of_its_reads_was_cancelled(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = (await stream(store, *LARGE)).meta.ref
    async with store.open(SCOPE, ref) as reader:
        assert reader is not None
        chunks = aiter(reader)
        first = await anext(chunks)
        with held_up(monkeypatch, os, "pread") as (begun, go_on):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(reader.read)
                assert await anyio.to_thread.run_sync(begun.wait, 5)
                tasks.cancel_scope.cancel()
            go_on()
        await all_work_done(store)
        assert first + await reader.read() == WHOLE  # and the digest is the right one


async def test_leaving_early_closes_the_file_and_a_reader_that_was_left_says_so(store: DirectoryStore) -> None:
    ref = (await stream(store, *LARGE)).meta.ref
    files = open_files()
    async with store.open(SCOPE, ref) as reader:
        assert reader is not None
        async for _ in reader:
            break
        assert open_files() == files + 1
    assert open_files() == files
    with pytest.raises(RuntimeError, match="inside of its `async with`"):
        await reader.read()


async def test_the_inode_of_a_payload_changes_only_for_a_stream(store: DirectoryStore, root: Path) -> None:
    ref = (await stream(store, *LARGE)).meta.ref
    inode = inode_of(place(root, ref) / "data")
    await put(store, WHOLE)
    assert inode_of(place(root, ref) / "data") == inode
    await stream(store, *LARGE)
    assert inode_of(place(root, ref) / "data") != inode
