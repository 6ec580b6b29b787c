"""What is the directory store's own, beside the port's laws, which `test_conformance` tries on it: layout and modes.

Laws: `design.md` section 5; `cases.md` C1.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import msgspec
import pytest
from hypothesis import given

from coatcheck.artifacts import disk, files
from coatcheck.artifacts import root as root_module
from coatcheck.artifacts.directory import DirectoryStore
from coatcheck.artifacts.meta import Swept
from coatcheck.artifacts.port import ArtifactStore
from coatcheck.artifacts.records import Record
from coatcheck.errors import ConfigurationError, IntegrityError, StoreUnavailable
from coatcheck.scope import Scope, is_segment, scope_segments
from coatcheck.testing import ManualClock
from coatcheck.testing.strategies import scopes
from tests.artifacts._disk import (
    DATA,
    SCOPE,
    contents,
    names_under,
    payload,
    place,
    present,
    put,
    read_bytes,
    write_bytes,
)

pytestmark = pytest.mark.anyio


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
    assert msgspec.json.decode(read_bytes(where / "meta.json"), type=Record).meta == meta


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


@pytest.mark.parametrize("path", ["", "a\x00b", b"/somewhere", 7, None])
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
    with pytest.raises(StoreUnavailable, match=f"{tmp_path}/file cannot be opened: .*ENOTDIR"):
        await DirectoryStore(tmp_path / "file").__aenter__()


async def test_a_store_of_another_format_is_refused_and_left_alone(root: Path) -> None:
    (root / ".coatcheck-2").mkdir(parents=True)
    with pytest.raises(StoreUnavailable, match="format that this version does not know"):
        await DirectoryStore(root).__aenter__()
    assert contents(root) == {".coatcheck-2"}


async def test_a_new_volume_is_made_a_store_although_it_has_a_folder_for_what_was_lost(root: Path) -> None:
    (root / "lost+found").mkdir(parents=True)
    async with DirectoryStore(root) as store:
        await put(store)
        await store.sweep()
    assert (root / "lost+found").is_dir()


@pytest.mark.parametrize("name", ["notes.txt", ".hidden", "photos/", "acme/dana/c-42/.new-0123456789abcdef/"])
async def test_a_directory_that_holds_anything_is_not_made_a_store_and_is_left_alone(root: Path, name: str) -> None:
    if name.endswith("/"):
        (root / name).mkdir(parents=True)
    else:
        root.mkdir(parents=True)
        write_bytes(root / name, b"mine")
    before = names_under(root)
    calls: list[Callable[[DirectoryStore], Any]] = [
        lambda store: store.__aenter__(),
        put,
        lambda store: store.sweep(),
        lambda store: store.sweep(Scope(tenant="acme", principal="dana", conversation="c-42")),
    ]
    for call in calls:
        with pytest.raises(StoreUnavailable, match=f"{root} is not empty, and is not a store: name a directory of the"):
            await call(DirectoryStore(root))
    assert names_under(root) == before
    assert await payload(inside := DirectoryStore(root / "inside"), (await put(inside)).meta.ref) == DATA


async def test_a_store_that_another_process_makes_of_the_directory_meanwhile_is_a_store(
    store: DirectoryStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put(store)
    looks = count()

    def seen_late(name: str, parent: int) -> bool:
        return next(looks) > 0 and disk.exists(name, parent)

    monkeypatch.setattr(root_module, "exists", seen_late)
    assert not (await put(DirectoryStore(root))).created
    assert next(looks) > 1


async def test_many_stores_that_open_a_new_directory_at_once_make_one_store_of_it(root: Path) -> None:
    stores = [DirectoryStore(root) for _ in range(12)]
    async with anyio.create_task_group() as tasks:
        for number, each in enumerate(stores):
            tasks.start_soon(put, each, b"%d" % number)
    assert len((await stores[0].list(SCOPE)).artifacts) == 12


async def test_a_sweep_neither_counts_nor_touches_what_is_not_the_store_s_own(
    store: DirectoryStore, root: Path
) -> None:
    scope = root.joinpath(*scope_segments(SCOPE))
    meta = (await put(store)).meta
    minted = ".new-0123456789abcdef"
    for path in (
        *(root / name for name in ("lost+found", f"Backup/2024/may/{minted}", f"backup/2024/may.txt/{minted}")),
        *(root / name for name in (f"backup/a b/may/{minted}", f"{'t' * 81}/_/c/{minted}", f".trash/a/b/{minted}")),
        *(scope / name for name in (".new-", ".new-notes", ".new-0123456789abcde", ".old-0123456789abcdef0")),
        *(scope / name for name in (".new-0123456789ABCDEF", ".tmp-0123456789abcdef", "new-0123456789abcdef")),
        *(scope / name for name in ("abc", "z", "Zz", "a.")),
    ):
        path.mkdir(parents=True)
    for path in (root / "notes.txt", scope / ".old-notes.txt", scope / f"{minted}.txt", scope / meta.ref):
        write_bytes(path, b"mine")
    before = names_under(root)
    for only in (None, SCOPE, Scope(conversation="another")):
        assert await store.sweep(only, dry_run=True) == ()
        assert await store.sweep(only) == ()
    assert names_under(root) == before
    assert (await store.list(SCOPE)).artifacts == (meta,)


@given(scopes())
def test_every_scope_has_a_directory_that_a_sweep_finds(scope: Scope) -> None:
    assert all(is_segment(segment) for segment in scope_segments(scope))


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
