"""What is the directory store's own, beside the port's laws, which `test_conformance` tries on it.

Laws: issue 2 section 4; `design.md` section 5; `cases.md` C1, C7, D5, E1.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import msgspec
import pytest

from coatcheck.artifacts import disk, files
from coatcheck.artifacts.directory import DirectoryStore
from coatcheck.artifacts.meta import ArtifactMeta, PutResult, Swept
from coatcheck.artifacts.port import ArtifactStore
from coatcheck.artifacts.ref import digest_of
from coatcheck.artifacts.root import Root
from coatcheck.artifacts.workers import Abandoned
from coatcheck.errors import ConfigurationError, IntegrityError, StoreUnavailable
from coatcheck.scope import Scope, scope_segments
from coatcheck.testing import ManualClock

pytestmark = pytest.mark.anyio

SCOPE = Scope(tenant="tenant-5ecret", conversation="conversation-5ecret")
WORDS: dict[str, Any] = {"kind": "k", "media_type": "text/plain"}
DATA = b"payload"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "parent" / "store"


@pytest.fixture
def store(root: Path) -> DirectoryStore:
    return DirectoryStore(root)


def place(root: Path, ref: str, scope: Scope = SCOPE) -> Path:
    """Where an artifact lies, as the module says."""
    return root.joinpath(*scope_segments(scope), ref[4:6], ref)


async def put(store: ArtifactStore, data: bytes = DATA, scope: Scope = SCOPE, **words: Any) -> PutResult:
    return await store.put(scope, data, **{**WORDS, **words})


async def payload(store: ArtifactStore, ref: str, scope: Scope = SCOPE) -> bytes | None:
    artifact = await store.get(scope, ref)
    return None if artifact is None else artifact.data


def names_under(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if not path.is_relative_to(root / ".coatcheck-1")}


# Layout, modes, opening


def test_it_is_a_store(store: DirectoryStore) -> None:
    assert isinstance(store, ArtifactStore)


async def test_nothing_is_made_before_the_store_is_used(store: DirectoryStore, root: Path) -> None:
    assert not present(root)
    async with store as opened:
        assert opened is store
        assert present(root)


async def test_a_store_that_nobody_opened_opens_at_its_first_use(store: DirectoryStore, root: Path) -> None:
    assert await store.head(SCOPE, (await put(store)).meta.ref) is not None
    assert present(root)


async def test_payload_and_meta_lie_where_the_documentation_says(store: DirectoryStore, root: Path) -> None:
    meta = (await put(store, label="a label")).meta
    where = place(root, meta.ref)
    assert contents(where) == {"data", "meta.json"}
    assert read_bytes(where / "data") == DATA
    assert msgspec.json.decode(read_bytes(where / "meta.json"), type=files.Record).meta == meta


async def test_directories_are_the_owner_s_alone_and_so_are_files(root: Path) -> None:
    before = os.umask(0)
    try:
        async with DirectoryStore(root, fsync=True) as store:
            await put(store)
            await put(store)
    finally:
        os.umask(before)
    modes = {str(path): stat.S_IMODE(path.lstat().st_mode) for path in (root, *root.rglob("*"))}
    assert {mode for path, mode in modes.items() if Path(path).is_dir()} == {0o700}
    assert {mode for path, mode in modes.items() if Path(path).is_file()} == {0o600}


async def test_no_name_on_the_disk_comes_from_a_caller_s_words(store: DirectoryStore, root: Path) -> None:
    scope = Scope(tenant="../..", principal="/etc", conversation="\x00" * 300)
    await put(store, scope=scope, origin={"call_id": "../../etc/x"}, kind="../../kind", label="../label")
    for name in names_under(root):
        assert all(0 < len(part) <= 80 and not part.startswith(".") for part in Path(name).parts)


@pytest.mark.parametrize("path", ["", "a\x00b", b"/tmp/x", 7, None])
def test_what_names_no_directory_is_refused(path: Any) -> None:
    with pytest.raises(ConfigurationError, match="path must name a directory"):
        DirectoryStore(path)


@pytest.mark.parametrize("dials", [{"fsync": 1}, {"fsync": "true"}, {"max_bytes": 0}, {"max_count": 1.5}, {"ttl": 7}])
def test_a_dial_that_cannot_be_honoured_is_refused_by_name(root: Path, dials: dict[str, Any]) -> None:
    [dial] = dials
    with pytest.raises(ConfigurationError, match=rf"^{dial} must be"):
        DirectoryStore(root, **dials)


async def test_a_relative_path_means_where_the_process_was_at_the_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with DirectoryStore("here") as store:
        monkeypatch.chdir("/")
        await put(store)
    assert present(tmp_path / "here")


async def test_a_path_that_is_a_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    write_bytes(tmp_path / "file", b"")
    with pytest.raises(StoreUnavailable, match=f"{tmp_path}/file cannot be opened: .*EEXIST"):
        await DirectoryStore(tmp_path / "file").__aenter__()


async def test_a_store_of_another_format_is_refused_and_left_alone(root: Path) -> None:
    (root / ".coatcheck-2").mkdir(parents=True)
    with pytest.raises(StoreUnavailable, match="format that this version does not know"):
        await DirectoryStore(root).__aenter__()
    assert contents(root) == {".coatcheck-2"}


async def test_what_is_not_the_store_s_own_in_its_directory_is_left_alone(store: DirectoryStore, root: Path) -> None:
    (root / "lost+found").mkdir(parents=True)
    write_bytes(root / "notes.txt", b"mine")
    await put(store)
    assert await store.sweep() == ()
    assert {"lost+found", "notes.txt"} <= contents(root)


@pytest.mark.parametrize("how", ["removed", "emptied"])
async def test_a_directory_that_vanished_is_an_error_for_every_verb_and_is_not_made_again(
    store: DirectoryStore, root: Path, how: str
) -> None:
    ref = (await put(store)).meta.ref
    os.rename(root, root.with_name("moved"))
    if how == "emptied":  # as when nothing is mounted there any more
        root.mkdir()
    calls: list[Callable[[], Any]] = [
        lambda: put(store),
        lambda: store.head(SCOPE, ref),
        lambda: store.get(SCOPE, ref),
        lambda: store.delete(SCOPE, ref),
        lambda: store.list(SCOPE),
        lambda: store.sweep(),
    ]
    for call in calls:
        with pytest.raises(StoreUnavailable) as error:
            await call()
        assert str(root) in str(error.value)
        assert "5ecret" not in f"{error.value!r}"
    assert present(root) == (how == "emptied")
    assert how == "removed" or contents(root) == set()
    if how == "emptied":
        root.rmdir()
    os.rename(root.with_name("moved"), root)
    assert await payload(store, ref) == DATA


# Damage


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"\xff", b"[]", b"null", b" " * 300_000, "{other}", "{naive}", "{kind}"],
    ids=[
        "empty",
        "cut",
        "binary",
        "list",
        "null",
        "huge",
        "another artifact's",
        "times without a zone",
        "another kind",
    ],
)
async def test_a_damaged_meta_is_an_error_for_that_artifact_alone_and_a_put_heals_it(
    store: DirectoryStore, root: Path, raw: bytes | str
) -> None:
    meta, other = (await put(store)).meta, (await put(store, b"other")).meta
    where = place(root, meta.ref) / "meta.json"
    good = read_bytes(where)
    match raw:
        case "{other}":
            raw = read_bytes(place(root, other.ref) / "meta.json")
        case "{naive}":
            raw = good.replace(b'Z"', b'"')
        case "{kind}":
            raw = good.replace(b'"kind":"k"', b'"kind":"K"')
    assert isinstance(raw, bytes)
    assert raw != good
    write_bytes(where, raw)

    for verb in (store.head, store.get):
        with pytest.raises(IntegrityError, match=f"{meta.ref} is damaged: .*meta.json") as damage:
            await verb(SCOPE, meta.ref)
        assert damage.value.ref == meta.ref
    assert (await store.list(SCOPE)).artifacts == (other,)
    assert await payload(store, other.ref) == b"other"

    assert (await put(store)).created
    assert await payload(store, meta.ref) == DATA


async def test_what_can_never_be_read_again_is_swept_as_an_orphan(store: DirectoryStore, root: Path) -> None:
    torn, bare, empty = [(await put(store, data)).meta.ref for data in (b"torn", b"bare", b"empty")]
    kept = (await put(store)).meta
    write_bytes(place(root, torn) / "meta.json", b"{")
    (place(root, bare) / "data").unlink()
    for name in ("data", "meta.json"):
        (place(root, empty) / name).unlink()
    expected = {Swept(torn, "", 4, "orphan"), Swept(bare, "k", 0, "orphan"), Swept(empty, "", 0, "orphan")}
    assert set(await store.sweep(dry_run=True)) == expected
    assert set(await store.sweep()) == expected
    assert await store.sweep() == ()
    assert await store.head(SCOPE, torn) is None
    assert (await store.list(SCOPE)).artifacts == (kept,)


@pytest.mark.parametrize("damaged", [b"", b"payloaD", b"payload and more", bytes(3 << 20)])
async def test_a_damaged_payload_is_never_handed_out_and_head_still_answers(
    store: DirectoryStore, root: Path, damaged: bytes
) -> None:
    meta = (await put(store)).meta
    write_bytes(place(root, meta.ref) / "data", damaged)
    with pytest.raises(IntegrityError) as error:
        await store.get(SCOPE, meta.ref)
    assert (error.value.expected, error.value.actual) == (meta.digest, digest_of(damaged))
    assert await store.head(SCOPE, meta.ref) == meta


async def test_a_put_stores_a_payload_of_the_wrong_size_again(store: DirectoryStore, root: Path) -> None:
    meta = (await put(store)).meta
    write_bytes(place(root, meta.ref) / "data", b"pay")
    assert (await put(store)).created
    assert await payload(store, meta.ref) == DATA


async def test_a_damaged_artifact_can_be_deleted(store: DirectoryStore, root: Path) -> None:
    meta = (await put(store)).meta
    write_bytes(place(root, meta.ref) / "meta.json", b"{")
    await store.delete(SCOPE, meta.ref)
    assert await store.head(SCOPE, meta.ref) is None


async def test_a_damaged_artifact_counts_against_the_budgets_and_is_the_first_to_leave(root: Path) -> None:
    store = DirectoryStore(root, max_count=2, clock=ManualClock())
    old = (await put(store, b"old")).meta
    torn = (await put(store, b"torn")).meta
    write_bytes(place(root, torn.ref) / "meta.json", b"{")
    assert (await put(store, b"new")).swept == (Swept(torn.ref, "", 4, "max-count"),)
    assert await payload(store, old.ref) == b"old"


async def test_an_expired_artifact_is_replaced_by_the_next_put_of_its_content(root: Path) -> None:
    clock = ManualClock()
    store = DirectoryStore(root, ttl=timedelta(seconds=10), clock=clock)
    ref = (await put(store, label="first")).meta.ref
    inode = inode_of(place(root, ref) / "data")
    clock.advance(10)
    again = await put(store, label="second")
    assert (again.created, again.meta.label) == (True, "second")
    assert inode_of(place(root, ref) / "data") != inode


async def test_a_second_put_leaves_the_payload_alone(store: DirectoryStore, root: Path) -> None:
    ref = (await put(store)).meta.ref
    inode = inode_of(place(root, ref) / "data")
    assert not (await put(store)).created
    assert inode_of(place(root, ref) / "data") == inode


# Symbolic links


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A directory that no store has any business in."""
    path = tmp_path / "outside"
    path.mkdir()
    (path / "data").write_bytes(b"not yours")
    return path


@pytest.mark.parametrize("depth", [1, 2, 3])
async def test_a_scope_s_directory_that_is_a_link_is_refused(
    store: DirectoryStore, root: Path, outside: Path, depth: int
) -> None:
    ref = (await put(store)).meta.ref
    linked = root.joinpath(*scope_segments(SCOPE)[:depth])
    os.rename(linked, outside / "scope")
    linked.symlink_to(outside / "scope")
    before = names_under(outside)
    for call in (put(store, b"new"), store.head(SCOPE, ref), store.get(SCOPE, ref), store.list(SCOPE)):
        with pytest.raises(StoreUnavailable, match=r"ENOTDIR|ELOOP"):
            await call
    await store.sweep()
    assert names_under(outside) == before


async def test_an_artifact_that_is_a_link_is_damaged_and_is_replaced_without_touching_its_target(
    store: DirectoryStore, root: Path, outside: Path
) -> None:
    meta = (await put(store)).meta
    where = place(root, meta.ref)
    os.rename(where, outside / "moved")
    where.symlink_to(outside / "moved")
    for verb in (store.head, store.get):
        with pytest.raises(IntegrityError):
            await verb(SCOPE, meta.ref)
    assert (await put(store)).created
    assert not where.is_symlink()
    assert await payload(store, meta.ref) == DATA
    assert contents(outside / "moved") == {"data", "meta.json"}


@pytest.mark.parametrize("name", ["data", "meta.json"])
async def test_a_file_that_is_a_link_is_damaged_and_is_replaced_without_touching_its_target(
    store: DirectoryStore, root: Path, outside: Path, name: str
) -> None:
    meta = (await put(store)).meta
    where = place(root, meta.ref) / name
    os.rename(where, outside / name)
    where.symlink_to(outside / name)
    before = read_bytes(outside / name)
    for verb in (store.head, store.get):
        with pytest.raises(IntegrityError):
            await verb(SCOPE, meta.ref)
    await store.delete(SCOPE, meta.ref)
    assert (await put(store)).created
    assert await payload(store, meta.ref) == DATA
    assert read_bytes(outside / name) == before


async def test_a_pipe_in_a_payload_s_place_makes_nobody_wait(store: DirectoryStore, root: Path) -> None:
    meta = (await put(store)).meta
    (place(root, meta.ref) / "data").unlink()
    os.mkfifo(place(root, meta.ref) / "data")
    with anyio.fail_after(5), pytest.raises(IntegrityError, match="not a file"):
        await store.get(SCOPE, meta.ref)


async def test_the_root_may_be_a_link_that_the_operator_made(tmp_path: Path) -> None:
    (tmp_path / "big disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "big disk")
    store = DirectoryStore(tmp_path / "link")
    assert await payload(store, (await put(store)).meta.ref) == DATA


# Crashes


async def test_what_a_crash_left_is_never_seen_and_is_swept(store: DirectoryStore, root: Path) -> None:
    meta = (await put(store)).meta
    scope = root.joinpath(*scope_segments(SCOPE))
    (scope / ".new-0").mkdir()
    write_bytes(scope / ".new-0" / "data", b"half")
    write_bytes(scope / ".new-1", b"{")
    (scope / ".old-2" / "deeper").mkdir(parents=True)
    (scope / "zz").mkdir()
    assert (await store.list(SCOPE)).artifacts == (meta,)

    leftovers = (Swept("", "", 4, "orphan"), Swept("", "", 0, "orphan"), Swept("", "", 0, "orphan"))
    assert await store.sweep(dry_run=True) == leftovers
    assert await store.sweep(Scope(conversation="another")) == ()
    assert await store.sweep(SCOPE) == leftovers
    assert await store.sweep() == ()
    assert contents(scope) == {meta.ref[4:6]}


@contextmanager
def disk_that_fails(monkeypatch: pytest.MonkeyPatch, at: int, code: int) -> Iterator[Callable[[], bool]]:
    """Every change of the disk from the ``at``-th on fails, as after a crash or when the disk is full."""
    calls = count()
    struck = False

    def failing(name: str) -> Callable[..., Any]:
        works = getattr(os, name)

        def call(*args: Any, **options: Any) -> Any:
            nonlocal struck
            if "coatcheck" in sys._getframe(1).f_code.co_filename and next(calls) >= at:
                struck = True
                raise OSError(code, os.strerror(code), "tenant-5ecret")
            return works(*args, **options)

        return call

    with monkeypatch.context() as patch:
        for name in ("mkdir", "rename", "rmdir", "unlink", "open"):
            patch.setattr(os, name, failing(name))
        yield lambda: struck


@pytest.mark.parametrize("there", [False, True], ids=["first put", "second put"])
async def test_a_disk_that_fails_at_any_step_of_a_put_leaves_the_artifact_whole_or_absent(
    root: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    store = DirectoryStore(root)
    neighbour = (await put(store, b"neighbour")).meta
    if there:
        await put(store)
    for step in count():
        with disk_that_fails(monkeypatch, step, errno.ENOSPC) as struck, suppress(StoreUnavailable):
            assert (await put(store)).created != there
        listed = {meta.ref for meta in (await store.list(SCOPE)).artifacts}
        assert neighbour.ref in listed
        for ref in listed:
            assert await payload(store, ref) in (DATA, b"neighbour")
        assert len(listed) == 2 or not there, "a failed second put lost the first"
        if not struck():
            break
        if not there and len(listed) == 2:
            await store.delete(SCOPE, (listed - {neighbour.ref}).pop())
    assert step > 10
    await store.sweep()
    assert not any(part.startswith(".") for name in names_under(root) for part in Path(name).parts)


async def test_a_put_that_fails_leaves_nothing_on_the_disk(
    store: DirectoryStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (await put(store, b"before")).meta

    def full(name: str, data: bytes, parent: int, *, fsync: bool) -> None:
        disk.write_file(name, data[: len(data) // 2], parent, fsync=fsync)
        raise OSError(errno.ENOSPC, "No space left on device")

    for again in (DATA, b"before"):
        with monkeypatch.context() as patch, pytest.raises(StoreUnavailable, match="ENOSPC"):
            patch.setattr(files, "write_file", full)
            await put(store, again)
    assert contents(root.joinpath(*scope_segments(SCOPE))) == {before.ref[4:6]}
    assert (await store.list(SCOPE)).artifacts == (before,)


async def test_errors_of_the_system_are_told_by_name_and_without_names_of_tenants(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put(store)
    for code in (errno.EACCES, errno.EROFS, errno.EIO, errno.EDQUOT):
        with disk_that_fails(monkeypatch, 0, code), pytest.raises(StoreUnavailable) as error:
            await store.list(SCOPE)
        assert errno.errorcode[code] in str(error.value)
        assert "cannot list artifacts" in str(error.value)
        assert "5ecret" not in f"{error.value!r}"
        assert error.value.__cause__ is None
        assert error.value.__suppress_context__


# Flushing


@pytest.mark.parametrize("fsync", [False, True])
async def test_everything_is_flushed_when_it_is_asked_for_and_nothing_when_not(
    root: Path, monkeypatch: pytest.MonkeyPatch, fsync: bool
) -> None:
    flushed: list[str] = []
    works = os.fsync

    def watched(descriptor: int) -> None:
        flushed.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        works(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    store = DirectoryStore(root, fsync=fsync)
    ref = (await put(store)).meta.ref
    if not fsync:
        await put(store)
        await store.delete(SCOPE, ref)
        assert flushed == []
        return
    # Before the rename the files and their directory, after it the directory that got the new name.
    staged = flushed.index("data")
    assert flushed[staged + 1] == "meta.json"
    assert flushed[staged + 2].startswith(".new-")
    assert flushed[-1] == ref[4:6]
    assert {root.name, *scope_segments(SCOPE)[:2]} <= set(flushed[:-1])
    flushed.clear()
    await put(store)
    assert [name.startswith(".new-") for name in flushed] == [True, False]
    assert flushed[1] == ref
    flushed.clear()
    await store.delete(SCOPE, ref)
    assert flushed == [ref[4:6]]


# Sweeping


async def test_a_scope_that_is_empty_again_takes_no_directory(root: Path) -> None:
    clock = ManualClock()
    store = DirectoryStore(root, ttl=timedelta(seconds=10), clock=clock)
    near, far = Scope(tenant="t", conversation="near"), Scope(tenant="t", conversation="far")
    await put(store, scope=near)
    clock.advance(9)
    await put(store, scope=far)
    clock.advance(9)
    assert len(await store.sweep(dry_run=True)) == 1
    assert present(root / "t" / "_" / "near")
    assert len(await store.sweep()) == 1
    assert contents(root / "t" / "_") == {"far"}
    clock.advance(9)
    assert len(await store.sweep()) == 1
    assert contents(root) == {".coatcheck-1"}


async def test_a_sweep_that_fails_in_one_scope_does_the_others_and_then_says_so(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    store = DirectoryStore(root, ttl=timedelta(seconds=10), clock=clock)
    refs = {name: (await put(store, scope=Scope(conversation=name))).meta.ref for name in "abc"}
    clock.advance(10)
    works = files.ScopeDirectory.leftovers

    def fails_in_b(scope: files.ScopeDirectory) -> list[tuple[str, int]]:
        if scope._segments[2] == "b":
            raise PermissionError(errno.EACCES, "Permission denied", "conversation-5ecret")
        return works(scope)

    with monkeypatch.context() as patch:
        patch.setattr(files.ScopeDirectory, "leftovers", fails_in_b)
        with pytest.raises(StoreUnavailable, match="cannot sweep: Permission denied"):
            await store.sweep()
    assert await store.sweep() == (Swept(refs["b"], "k", len(DATA), "ttl"),)


async def test_puts_in_a_neighbour_scope_survive_the_removal_of_empty_directories(store: DirectoryStore) -> None:
    async def come_and_go(name: str) -> None:
        scope = Scope(tenant="t", principal="p", conversation=name)
        for _ in range(15):
            ref = (await put(store, scope=scope)).meta.ref
            assert await payload(store, ref, scope) == DATA
            await store.delete(scope, ref)
            await store.sweep(scope)

    async with anyio.create_task_group() as tasks:
        for number in range(6):
            tasks.start_soon(come_and_go, str(number))


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


async def test_what_nobody_waits_for_does_not_begin_though_the_lock_is_free(store: DirectoryStore, root: Path) -> None:
    await put(store)

    def begin() -> None:
        with Root(root, fsync=False).locked(scope_segments(SCOPE), give_up):
            raise AssertionError("it began")

    def give_up() -> None:
        raise Abandoned

    with pytest.raises(Abandoned):
        await anyio.to_thread.run_sync(begin)


async def all_work_done(store: DirectoryStore) -> None:
    for _ in range(1000):
        if not store._workers._left_behind:
            return
        await anyio.sleep(0.005)
    raise AssertionError("what was given up never ended")


# Hands on the disk: plain functions, since a test may block its loop for them


def present(path: Path) -> bool:
    return path.exists()


def contents(path: Path) -> set[str]:
    return {entry.name for entry in path.iterdir()}


def inode_of(path: Path) -> int:
    return path.stat().st_ino


def read_bytes(path: Path) -> bytes:
    return path.read_bytes()


def write_bytes(path: Path, data: bytes) -> None:
    path.write_bytes(data)
