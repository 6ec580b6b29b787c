"""What the directory store refuses to use, and what it makes: owners, modes, links, and a disk that takes no more.

Laws: issue 3, part 2 (directories 0700, files 0600, links and foreign owners refused; a clear answer for each fault).
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from coatcheck.artifacts.blocks import BLOCK_BYTES
from coatcheck.artifacts.directory import DirectoryStore
from coatcheck.artifacts.meta import Swept
from coatcheck.errors import IntegrityError, StoreUnavailable
from coatcheck.scope import Scope, scope_segments
from coatcheck.testing import ManualClock
from tests.artifacts._disk import (
    DATA,
    SCOPE,
    Chunks,
    all_work_done,
    contents,
    index_of,
    names_under,
    payload,
    place,
    present,
    put,
    read,
    stream,
    totals,
)

pytestmark = pytest.mark.anyio

ELSEWHERE = Scope(conversation="elsewhere")
LARGE = bytes(BLOCK_BYTES + 1)


def modes(root: Path) -> set[tuple[str, int]]:
    found = {(path, path.lstat().st_mode) for path in (root, *root.rglob("*"))}
    return {("directory" if stat.S_ISDIR(mode) else "file", stat.S_IMODE(mode)) for _, mode in found}


def verbs(store: DirectoryStore, ref: str) -> list[Callable[[], Any]]:
    return [
        lambda: put(store, b"new"),
        lambda: stream(store, LARGE),
        lambda: store.head(SCOPE, ref),
        lambda: store.get(SCOPE, ref),
        lambda: read(store, ref),
        lambda: store.delete(SCOPE, ref),
        lambda: store.list(SCOPE),
        lambda: store.usage(),
        lambda: store.sweep(),
    ]


async def refuses(call: Callable[[], Any], pattern: str) -> None:
    with pytest.raises(StoreUnavailable, match=pattern) as error:
        await call()
    assert "5ecret" not in f"{error.value!r}{error.value}"


# Modes


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077, 0o277, 0o777])
async def test_directories_have_mode_0700_and_files_0600_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    root = tmp_path / "store"
    before = os.umask(umask)
    try:
        store = DirectoryStore(root, max_count=2)
        for data in (DATA, DATA, b"a", b"b"):
            await put(store, data)
        await stream(store, LARGE)
        await stream(store, LARGE)
        await store.sweep()
        source = Chunks(LARGE, fail=ValueError("mine"))
        with pytest.raises(ValueError, match="mine"):
            await store.put_stream(SCOPE, source, kind="k", media_type="text/plain")
    finally:
        os.umask(before)
    assert modes(root) == {("directory", 0o700), ("file", 0o600)}
    assert present(index_of(root).with_name(".index-journal"))


@pytest.mark.parametrize("mode", [0o755, 0o775, 0o777, 0o1777, 0o500])
async def test_an_empty_directory_that_the_operator_made_becomes_the_store_s_alone(root: Path, mode: int) -> None:
    root.mkdir(parents=True)
    root.chmod(mode)
    if os.geteuid() != 0 and mode == 0o500:
        pytest.skip("only root makes anything there")
    await put(DirectoryStore(root))
    assert modes(root) == {("directory", 0o700), ("file", 0o600)}


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o722, 0o777])
async def test_a_store_that_others_could_change_is_refused_and_the_error_says_what_to_do(
    store: DirectoryStore, root: Path, mode: int
) -> None:
    ref = (await put(store)).meta.ref
    root.chmod(mode)
    for call in (*verbs(store, ref), DirectoryStore(root).__aenter__):
        await refuses(call, rf"{root} can be changed by other users \(its mode is {mode:o}\): chmod 700 it")
    root.chmod(0o700)
    assert await payload(store, ref) == DATA


@pytest.mark.parametrize("mode", [0o755, 0o750])
async def test_a_store_that_its_operator_opened_to_readers_stays_so(
    store: DirectoryStore, root: Path, mode: int
) -> None:
    await put(store)
    root.chmod(mode)
    await put(store, b"new")
    assert stat.S_IMODE(root.stat().st_mode) == mode


# Owners


@contextmanager
def owned_by_another(monkeypatch: pytest.MonkeyPatch, *paths: Path) -> Iterator[None]:
    """As if some files belonged to user 4321: a test does not run as root everywhere."""
    inodes = {path.lstat().st_ino for path in paths}

    def watched(works: Callable[..., os.stat_result]) -> Callable[..., os.stat_result]:
        def look(*args: Any, **options: Any) -> os.stat_result:
            status = works(*args, **options)
            return os.stat_result((*status[:4], 4321, *status[5:])) if status.st_ino in inodes else status

        return look

    held = [os.open(path, os.O_RDONLY) for path in paths]  # so that nothing new gets the same number
    try:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fstat", watched(os.fstat))
            patch.setattr(os, "stat", watched(os.stat))
            yield
    finally:
        for descriptor in held:
            os.close(descriptor)


@pytest.mark.parametrize("made", [False, True], ids=["empty", "a store"])
async def test_a_root_of_another_user_is_refused_and_left_as_it_is(
    root: Path, monkeypatch: pytest.MonkeyPatch, made: bool
) -> None:
    root.mkdir(parents=True)
    root.chmod(0o755)
    store = DirectoryStore(root)
    ref = (await put(store)).meta.ref if made else "art_" + "0" * 32
    before = names_under(root), root.stat().st_mode
    with owned_by_another(monkeypatch, root):
        for call in (*verbs(store, ref), DirectoryStore(root).__aenter__):
            await refuses(call, rf"{root} belongs to user 4321, and this process runs as user {os.geteuid()}: run as")
    assert (names_under(root), root.stat().st_mode) == before


@pytest.mark.parametrize("depth", [1, 2, 3])
async def test_a_scope_s_directory_of_another_user_is_refused_and_other_scopes_go_on(
    store: DirectoryStore, root: Path, monkeypatch: pytest.MonkeyPatch, depth: int
) -> None:
    ref = (await put(store)).meta.ref
    elsewhere = (await put(store, scope=ELSEWHERE)).meta.ref
    with owned_by_another(monkeypatch, root.joinpath(*scope_segments(SCOPE)[:depth])):
        for call in verbs(store, ref):
            await refuses(call, r"something in it belongs to user 4321, .*\(EPERM\)")
        assert await payload(store, elsewhere, ELSEWHERE) == DATA
        assert not (await put(store, scope=ELSEWHERE)).created
    assert await payload(store, ref) == DATA


async def test_the_locks_of_another_user_are_refused(
    store: DirectoryStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put(store)
    with owned_by_another(monkeypatch, root / ".coatcheck-1"):
        await refuses(lambda: put(store), "belongs to user 4321")
    with owned_by_another(monkeypatch, *(root / ".coatcheck-1").iterdir()):
        await refuses(lambda: put(store), "belongs to user 4321")


@pytest.mark.parametrize("name", [".", "data", "meta.json"])
async def test_an_artifact_of_another_user_is_damaged_and_no_more_than_that(
    store: DirectoryStore, root: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    meta, other = (await put(store)).meta, (await put(store, b"other")).meta
    with owned_by_another(monkeypatch, place(root, meta.ref) / name):
        for call in (
            lambda: store.head(SCOPE, meta.ref),
            lambda: payload(store, meta.ref),
            lambda: read(store, meta.ref),
        ):
            with pytest.raises(IntegrityError, match="of another user"):
                await call()
        assert (await store.list(SCOPE)).artifacts == (other,)
        assert await payload(store, other.ref) == b"other"
        assert (await put(store)).created
    assert await payload(store, meta.ref) == DATA


async def test_a_shard_of_another_user_hides_what_is_in_it_and_no_more(
    store: DirectoryStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meta, other = (await put(store)).meta, (await put(store, b"other")).meta
    assert meta.ref[4:6] != other.ref[4:6]
    with owned_by_another(monkeypatch, place(root, meta.ref).parent):
        index_of(root).unlink()
        assert (await store.list(SCOPE)).artifacts == (other,)
        assert await store.sweep() == ()
    await store.sweep()
    assert len((await store.list(SCOPE)).artifacts) == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
async def test_what_was_really_given_to_another_user_is_refused(store: DirectoryStore, root: Path) -> None:
    ref = (await put(store)).meta.ref
    os.chown(place(root, ref) / "data", 4321, -1)
    with pytest.raises(IntegrityError, match="a payload of another user"):
        await store.get(SCOPE, ref)
    os.chown(index_of(root), 4321, -1)
    assert (await put(store)).created
    assert index_of(root).stat().st_uid == 0
    os.chown(root, 4321, -1)
    await refuses(lambda: store.list(SCOPE), f"{root} belongs to user 4321")


# What lies in the place of a payload or of its words


def in_its_place(path: Path, what: str) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    match what:
        case "a directory":
            path.mkdir()
            (path / "inside").touch()
        case "a pipe":
            os.mkfifo(path)
        case "a link":
            path.symlink_to("/etc/passwd")
        case "a file":
            path.touch()


@pytest.mark.parametrize("what", ["a directory", "a pipe", "a link"])
@pytest.mark.parametrize("name", ["data", "meta.json"])
async def test_what_is_no_file_is_damage_of_one_artifact_that_any_put_heals_and_a_sweep_removes(
    store: DirectoryStore, root: Path, name: str, what: str
) -> None:
    metas = [(await put(store, data)).meta for data in (DATA, b"second")] + [(await stream(store, LARGE)).meta]
    other = (await put(store, b"other")).meta
    for meta in metas:
        in_its_place(place(root, meta.ref) / name, what)
        for call in (store.head, store.get):
            with pytest.raises(IntegrityError):
                await call(SCOPE, meta.ref)
        with pytest.raises(IntegrityError):
            await read(store, meta.ref)
    assert (await store.list(SCOPE)).artifacts == (other,)
    assert (await put(store)).created
    assert (await stream(store, LARGE)).created
    assert {gone.ref for gone in await store.sweep()} == {metas[1].ref}
    for meta, whole in ((metas[0], DATA), (metas[2], LARGE), (other, b"other")):
        assert await payload(store, meta.ref) == whole
    assert totals(root) == (3, len(DATA) + len(LARGE) + 5)


async def test_a_file_in_an_artifact_s_place_is_damage_too(store: DirectoryStore, root: Path) -> None:
    meta = (await put(store)).meta
    in_its_place(place(root, meta.ref), "a file")
    with pytest.raises(IntegrityError):
        await store.get(SCOPE, meta.ref)
    assert (await put(store)).created
    assert await payload(store, meta.ref) == DATA


async def test_what_a_crash_left_and_cannot_be_removed_is_not_told_as_removed(
    store: DirectoryStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put(store)
    left = root.joinpath(*scope_segments(SCOPE), ".old-0123456789abcdef")
    left.mkdir()
    (left / "data").write_bytes(b"half")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)
        assert await store.sweep() == ()
    assert await store.sweep() == (Swept("", "", 4, "orphan"),)


# A disk that takes no more


async def test_a_disk_with_room_for_no_large_file_refuses_one_and_goes_on(tmp_path: Path) -> None:
    """The real thing, in a process of its own: the limit is for all that it writes."""
    script = f"""
import resource, anyio
from tests.artifacts._disk import *
from coatcheck.errors import StoreUnavailable

async def main():
    store = DirectoryStore({str(tmp_path / "store")!r})
    await put(store, b"before")
    resource.setrlimit(resource.RLIMIT_FSIZE, (3 << 20, 3 << 20))
    for call in (lambda: put(store, bytes(4 << 20)), lambda: stream(store, *[bytes(1 << 20)] * 5)):
        try:
            await call()
        except StoreUnavailable as error:
            print(error)
    assert (await put(store, b"after")).created
    assert await payload(store, (await put(store, b"before")).meta.ref) == b"before"
    assert await store.sweep() == ()
    print(len((await store.list(SCOPE)).artifacts), [n for n in names_under(store._root.path) if "/." in n])

anyio.run(main)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    first, second, last = done.stdout.splitlines()
    assert first == second == f"the store in {tmp_path}/store cannot store an artifact: File too large (EFBIG)"
    assert last == "2 []"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with room for two megabytes, where one can be had."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m,mode=0700", "tmpfs", str(path)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("no file system can be mounted here")
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)


@pytest.mark.parametrize("budgets", [{}, {"max_count": 100}], ids=["no budgets", "budgets"])
async def test_a_full_disk_is_a_clear_error_and_what_is_there_can_be_read_listed_and_removed(
    small_disk: Path, budgets: dict[str, Any]
) -> None:
    store = DirectoryStore(small_disk / "store", **budgets)
    kept = (await put(store, b"kept")).meta
    refs: list[str] = []

    async def fill() -> None:
        for number in range(40):
            refs.extend([(await put(store, bytes([number]) * 100_000)).meta.ref])

    await refuses(fill, r"No space left on device \(ENOSPC\)")
    await refuses(lambda: stream(store, *[LARGE] * 2), "ENOSPC")
    for number in range(2000):  # the last corners, too
        try:
            refs.append((await put(store, b"%d" % number)).meta.ref)
        except StoreUnavailable:
            break
    assert await payload(store, kept.ref) == b"kept"
    assert len((await store.list(SCOPE, limit=5000)).artifacts) == len(refs) + 1
    assert await store.sweep() == ()
    for ref in refs[:5]:
        await store.delete(SCOPE, ref)
    assert (await put(store, b"there is room again")).created
    assert len((await store.list(SCOPE, limit=5000)).artifacts) == len(refs) - 3
    await store.sweep()
    assert totals(small_disk / "store")[0] == len(refs) - 3


@pytest.mark.parametrize("index", ["there", "gone", "damaged"])
async def test_a_sweep_makes_room_on_a_full_disk_whatever_became_of_the_index(small_disk: Path, index: str) -> None:
    clock = ManualClock()
    store = DirectoryStore(small_disk / "store", ttl=timedelta(seconds=10), clock=clock)
    refs: set[str] = set()

    async def fill() -> None:
        for number in range(3000):
            refs.add((await put(store, b"%d" % number * 500)).meta.ref)

    await refuses(fill, "ENOSPC")
    (small_disk / "the last corner").write_bytes(b"")
    match index:
        case "gone":
            index_of(small_disk / "store").unlink()
        case "damaged":
            os.truncate(index_of(small_disk / "store"), 2000)
    with suppress(OSError), open(small_disk / "the last corner", "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    clock.advance(10)
    assert {gone.ref for gone in await store.sweep() if gone.ref} == refs
    assert (await put(store)).created
    assert await store.sweep() == ()
    assert len((await store.list(SCOPE)).artifacts) == 1


async def test_a_disk_that_is_read_only_can_be_read(small_disk: Path) -> None:
    store = DirectoryStore(small_disk / "store")
    meta = (await put(store)).meta
    remount = ["mount", "-o", "remount,ro", str(small_disk)]
    if subprocess.run(remount, capture_output=True, check=False).returncode != 0:
        pytest.skip("it cannot be mounted anew")
    other = DirectoryStore(small_disk / "store")
    for each in (store, other):
        assert await payload(each, meta.ref) == DATA
        assert await read(each, meta.ref) == DATA
        assert (await each.list(SCOPE)).artifacts == (meta,)
        assert len(await each.usage()) == 1
        for call in (lambda: put(store, b"new"), lambda: stream(store, LARGE), lambda: store.delete(SCOPE, meta.ref)):
            await refuses(call, r"Read-only file system \(EROFS\)")
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    index_of(small_disk / "store").unlink()
    subprocess.run(remount, check=True)
    assert (await store.list(SCOPE)).artifacts == (meta,), "it is read from the disk where no index can be made"


# A disk that fails at any call


FAILING = ("open", "mkdir", "rename", "rmdir", "unlink", "write", "fstat", "chmod", "fchmod", "dup", "fsync", "pread")


@contextmanager
def failing(monkeypatch: pytest.MonkeyPatch, at: int, code: int) -> Iterator[Callable[[], bool]]:
    """The ``at``-th call of the system that the store makes fails, and no other."""
    calls = struck = 0

    def faulty(name: str) -> Callable[..., Any]:
        works = getattr(os, name)

        def call(*args: Any, **options: Any) -> Any:
            nonlocal calls, struck
            if "coatcheck/artifacts" in sys._getframe(1).f_code.co_filename.replace(os.sep, "/"):
                calls += 1
                if calls == at:
                    struck += 1
                    raise OSError(code, os.strerror(code), "tenant-5ecret")
            return works(*args, **options)

        return call

    with monkeypatch.context() as patch:
        for name in FAILING:
            patch.setattr(os, name, faulty(name))
        yield lambda: struck > 0


CODES = [
    pytest.param(errno.ENOSPC, id="ENOSPC"),
    pytest.param(errno.EIO, id="EIO"),
    pytest.param(errno.EROFS, id="EROFS", marks=pytest.mark.slow),
    pytest.param(errno.EACCES, id="EACCES", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("verb", ["put", "put again", "evict", "stream", "stream again", "delete", "list", "sweep"])
async def test_one_call_of_the_system_that_fails_loses_nothing_and_leaves_nothing(
    root: Path, monkeypatch: pytest.MonkeyPatch, verb: str, code: int
) -> None:
    store = DirectoryStore(root, fsync=True)
    tight = DirectoryStore(root, fsync=True, max_count=3)
    neighbour = (await put(store, b"neighbour")).meta
    doomed = (await put(store, b"doomed")).meta
    if verb == "put again":
        await put(store)
    if verb == "stream again":
        await stream(store, LARGE)
    calls: dict[str, Callable[[], Any]] = {
        "put": lambda: put(store),
        "put again": lambda: put(store),
        "evict": lambda: put(tight, os.urandom(8)),
        "stream": lambda: stream(store, LARGE),
        "stream again": lambda: stream(store, LARGE),
        "delete": lambda: store.delete(SCOPE, doomed.ref),
        "list": lambda: store.list(SCOPE),
        "sweep": lambda: store.sweep(),
    }
    for step in range(1, 400):
        before = {meta.ref for meta in (await store.list(SCOPE, limit=1000)).artifacts}
        with failing(monkeypatch, step, code) as struck:
            result, error = None, None
            try:
                result = await calls[verb]()
            except StoreUnavailable as raised:
                error = raised
        if not struck():
            break
        if error is not None:
            assert errno.errorcode[code] in str(error)
            assert "5ecret" not in repr(error)
        await all_work_done(store)
        listed = {meta.ref: meta for meta in (await store.list(SCOPE, limit=1000)).artifacts}
        if verb != "evict":
            assert neighbour.ref in listed
            assert before - listed.keys() <= {doomed.ref}
        if verb in ("put", "stream", "put again", "stream again") and result is not None:
            assert result.meta.ref in listed
        for ref, meta in listed.items():
            found = await payload(store, ref)
            assert found is not None
            assert len(found) == meta.bytes
        for meta in listed.values():
            if verb in ("put", "stream") and meta.bytes in (len(DATA), len(LARGE)):
                await store.delete(SCOPE, meta.ref)
        if verb == "delete":
            await put(store, b"doomed")
        if verb == "evict":
            assert len(listed) <= 4
            await put(tight, b"%d" % step)
            assert len((await store.list(SCOPE)).artifacts) == 3
        await store.sweep()
        assert not [name for name in names_under(root) if ".new-" in name or ".old-" in name]
    else:
        pytest.fail(f"it never ended; {len(names_under(root))} names: {sorted(names_under(root))[:40]}")
    assert step > 8
    await store.sweep()
    assert totals(root)[0] == len((await store.list(SCOPE, limit=1000)).artifacts)
    assert contents(root) == {".coatcheck-1", scope_segments(SCOPE)[0]}
