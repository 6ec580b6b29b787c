"""The directory store on a disk that is damaged, full, or was left by a crash.

Laws: `cases.md` D5.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from coatcheck.artifacts import disk, files
from coatcheck.artifacts.directory import DirectoryStore
from coatcheck.artifacts.meta import Swept
from coatcheck.artifacts.ref import digest_of
from coatcheck.errors import IntegrityError, StoreUnavailable
from coatcheck.scope import Scope, scope_segments
from coatcheck.testing import ManualClock
from tests.artifacts._disk import (
    DATA,
    SCOPE,
    contents,
    inode_of,
    names_under,
    payload,
    place,
    put,
    read_bytes,
    write_bytes,
)

pytestmark = pytest.mark.anyio


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


@pytest.mark.parametrize("damaged", [b"pay", bytes(len(DATA)), DATA[::-1]], ids=["cut", "zeros", "reversed"])
async def test_a_put_stores_a_payload_that_was_damaged_again(store: DirectoryStore, root: Path, damaged: bytes) -> None:
    meta = (await put(store, label="first")).meta
    write_bytes(place(root, meta.ref) / "data", damaged)
    again = await put(store, label="second")
    assert (again.created, again.meta.label) == (True, "second")
    assert await payload(store, meta.ref) == DATA
    assert not (await put(store)).created


async def test_a_put_stores_a_large_payload_that_was_damaged_in_its_middle_again(
    store: DirectoryStore, root: Path
) -> None:
    data = b"x" * (1 << 20)
    meta = (await put(store, data)).meta
    where = place(root, meta.ref) / "data"
    write_bytes(where, data[: 1 << 19] + bytes(4096) + data[(1 << 19) + 4096 :])
    assert (await put(store, data)).created
    assert read_bytes(where) == data


async def test_a_put_stores_a_payload_that_the_disk_cannot_read_again(
    store: DirectoryStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meta = (await put(store)).meta
    inode = inode_of(place(root, meta.ref) / "data")

    def fails_on_data(name: str, parent: int) -> int:
        if name == "data":
            raise OSError(errno.EIO, "Input/output error")
        return disk.open_for_reading(name, parent)

    with monkeypatch.context() as patch:
        patch.setattr(files, "open_for_reading", fails_on_data)
        with pytest.raises(StoreUnavailable, match="EIO"):
            await store.get(SCOPE, meta.ref)
        assert (await put(store)).created
    assert inode_of(place(root, meta.ref) / "data") != inode
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


# Crashes


async def test_what_a_crash_left_is_never_seen_and_is_swept(store: DirectoryStore, root: Path) -> None:
    meta = (await put(store)).meta
    scope = root.joinpath(*scope_segments(SCOPE))
    new, rewritten, old = (f".{what}-{number:016x}" for number, what in enumerate(("new", "new", "old")))
    (scope / new).mkdir()
    write_bytes(scope / new / "data", b"half")
    write_bytes(scope / rewritten, b"{")
    (scope / old / "deeper").mkdir(parents=True)
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
        with monkeypatch.context() as patch:
            patch.setattr(files, "write_file", full)
            with pytest.raises(StoreUnavailable, match="ENOSPC"):
                await put(store, again)
    assert contents(root.joinpath(*scope_segments(SCOPE))) == {before.ref[4:6]}
    assert (await store.list(SCOPE)).artifacts == (before,)


async def test_a_put_that_fails_has_evicted_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = DirectoryStore(root, max_count=1)
    before = (await put(store, b"before")).meta

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(files.ScopeDirectory, "publish", fail)
        with pytest.raises(StoreUnavailable, match="EIO"):
            await put(store)
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
