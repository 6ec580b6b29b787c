"""Claims in a directory: at most once among any number of processes, whatever dies, and never where others can meddle.

Law: `design.md` section 3, parting 3.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

import coatcheck as cc
from coatcheck.boundary import claims

pytestmark = pytest.mark.anyio

SCOPE = cc.Scope(conversation="c")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "claims"


def claimed(path: Path) -> list[Path]:
    return sorted(file for file in path.glob("*/*/*") if file.is_file())


def make_older(path: Path, seconds: float) -> None:
    for file in claimed(path):
        os.utime(file, times=(file.stat().st_mtime - seconds,) * 2)


async def test_a_claim_is_made_once_and_never_again_by_anyone(path: Path) -> None:
    first, second = cc.DirectoryApprovals(path), cc.DirectoryApprovals(path)
    assert [await first.claim("a"), await second.claim("a"), await first.claim("a")] == [True, False, False]
    assert [await second.claim("b"), await first.claim("b")] == [True, False]


@pytest.mark.parametrize("id", ["", "../../etc/passwd", "a/b", "\x00", "\ud800", "\u4e2d" * 10_000])
async def test_an_id_is_any_text_and_names_nothing_but_its_hash(path: Path, id: str) -> None:
    approvals = cc.DirectoryApprovals(path, fsync=True)
    assert [await approvals.claim(id), await approvals.claim(id)] == [True, False]
    [file] = claimed(path)
    assert file.relative_to(path).parts == (file.name[:2], file.name[2:4], file.name)
    assert (len(file.name), file.read_bytes()) == (64, b"")


async def test_many_tasks_that_claim_one_use_at_once_make_it_once(path: Path) -> None:
    results: list[bool] = []
    desks = [cc.DirectoryApprovals(path) for _ in range(4)]

    async def claim(number: int) -> None:
        results.append(await desks[number % 4].claim("one"))

    async with anyio.create_task_group() as tasks:
        for number in range(32):
            tasks.start_soon(claim, number)
    assert sorted(results) == [False] * 31 + [True]


RACER = """
import sys
from datetime import timedelta
import anyio, coatcheck
async def main():
    approvals = coatcheck.DirectoryApprovals(sys.argv[1])
    sys.stdin.readline()
    for number in range(100):
        print(number if await approvals.claim(f"id {number}") else "", flush=True)
anyio.run(main)
"""


def test_many_processes_that_claim_the_same_uses_at_once_make_each_exactly_once(path: Path) -> None:
    command = [sys.executable, "-c", RACER, str(path)]
    racers = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(5)]
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    won = [line for racer in racers for line in racer.communicate()[0].split()]
    assert [racer.returncode for racer in racers] == [0] * 5
    assert sorted(map(int, won)) == list(range(100))


def test_a_process_that_is_killed_leaves_every_claim_made_or_not_made_and_none_can_be_made_twice(path: Path) -> None:
    racer = subprocess.Popen(
        [sys.executable, "-c", RACER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert racer.stdin is not None
    assert racer.stdout is not None
    racer.stdin.write("go\n")
    racer.stdin.flush()
    told = [racer.stdout.readline().strip() for _ in range(10)]
    racer.send_signal(signal.SIGKILL)
    told += racer.communicate()[0].split()

    async def claim_all() -> list[str]:
        approvals = cc.DirectoryApprovals(path)
        return [str(number) for number in range(100) if await approvals.claim(f"id {number}")]

    again = anyio.run(claim_all)
    assert set(told[:10]) == {str(number) for number in range(10)}
    assert set(told) & set(again) == set()
    assert len(claimed(path)) == 100


async def test_a_claim_that_is_given_up_before_it_began_is_not_made(path: Path) -> None:
    approvals = cc.DirectoryApprovals(path)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await approvals.claim("a")
    assert scope.cancelled_caught
    assert await approvals.claim("a")


async def test_a_claim_that_is_cancelled_at_any_moment_is_made_at_most_once(path: Path) -> None:
    approvals = cc.DirectoryApprovals(path)
    for number in range(30):
        won: list[bool] = []

        async def claim(id: str, won: list[bool] = won) -> None:
            won.append(await approvals.claim(id))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(claim, f"{number}")
            await anyio.sleep(number * 0.0001)
            tasks.cancel_scope.cancel()
        await claim(f"{number}")
        await claim(f"{number}")
        assert won.count(True) <= 1


# --- the directory ---


async def test_the_directory_is_made_for_its_owner_alone_whatever_the_umask(path: Path) -> None:
    before = os.umask(0o777)
    try:
        assert await cc.DirectoryApprovals(path).claim("a")
    finally:
        os.umask(before)
    [file] = claimed(path)
    assert file.stat().st_mode & 0o777 == 0o600
    assert {each.stat().st_mode & 0o777 for each in (path, *list(file.parents)[:2])} == {0o700}


async def test_an_empty_directory_that_is_there_is_made_the_claims_own_and_that_of_a_new_volume_too(path: Path) -> None:
    path.mkdir(mode=0o777)
    path.chmod(0o777)
    (path / "lost+found").mkdir()
    assert await cc.DirectoryApprovals(path).claim("a")
    assert path.stat().st_mode & 0o777 == 0o700


async def test_a_directory_that_others_can_write_to_is_refused(path: Path) -> None:
    approvals = cc.DirectoryApprovals(path)
    assert await approvals.claim("a")
    for mode in (0o720, 0o702, 0o777):
        path.chmod(mode)
        for each in (approvals, cc.DirectoryApprovals(path)):
            with pytest.raises(cc.StoreUnavailable, match="chmod 700"):
                await each.claim("b")
    path.chmod(0o755)
    assert [await approvals.claim("a"), await approvals.claim("b")] == [False, True]


async def test_a_directory_that_belongs_to_another_user_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    approvals = cc.DirectoryApprovals(path)
    assert await approvals.claim("a")
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(cc.StoreUnavailable, match=f"belongs to user {owner}"):
        await approvals.claim("b")


@pytest.mark.parametrize("content", ["some file", ".coatcheck-1", ".coatcheck-claims-2"])
async def test_a_directory_that_holds_something_else_is_refused_and_not_touched(path: Path, content: str) -> None:
    path.mkdir(mode=0o755)
    path.chmod(0o755)
    (path / content).write_bytes(b"")
    with pytest.raises(cc.StoreUnavailable, match=r"holds no claims|format"):
        await cc.DirectoryApprovals(path).claim("a")
    assert [file.name for file in path.iterdir()] == [content]
    assert path.stat().st_mode & 0o777 == 0o755


async def test_a_directory_whose_parent_is_missing_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(cc.StoreUnavailable, match="ENOENT"):
        await cc.DirectoryApprovals(tmp_path / "mount" / "claims").claim("a")
    assert list(tmp_path.iterdir()) == []


async def test_a_directory_that_vanishes_or_is_emptied_is_an_error_and_is_not_made_again(path: Path) -> None:
    approvals = cc.DirectoryApprovals(path)
    assert await approvals.claim("a")
    path.rename(path.with_name("moved"))
    with pytest.raises(cc.StoreUnavailable, match="ENOENT"):
        await approvals.claim("a")
    path.mkdir()
    with pytest.raises(cc.StoreUnavailable, match="any more"):
        await approvals.claim("a")
    path.rmdir()
    path.with_name("moved").rename(path)
    assert not await approvals.claim("a")


async def test_a_relative_path_means_where_the_process_was_at_the_first_claim(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(path.parent)
    approvals = cc.DirectoryApprovals(path.name)
    assert await approvals.claim("a")
    monkeypatch.chdir("/")
    assert not await approvals.claim("a")
    assert approvals.path == path


def no_space(*_: Any, **__: Any) -> int:
    raise OSError(28, "No space left on device", "secret name")


async def test_what_the_system_refuses_is_said_in_our_own_words(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    approvals = cc.DirectoryApprovals(path)
    monkeypatch.setattr(claims, "open_for_writing", no_space)
    with pytest.raises(
        cc.StoreUnavailable, match=r"cannot be used to record a claim: No space left on device \(ENOSP"
    ) as raised:
        await approvals.claim("a")
    assert raised.value.__cause__ is None
    assert "secret name" not in str(raised.value)
    monkeypatch.undo()
    assert await approvals.claim("a")


async def test_a_claim_that_could_not_be_flushed_raises_and_stays_made(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    approvals = cc.DirectoryApprovals(path, fsync=True)
    assert await approvals.claim("first")
    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(cc.StoreUnavailable):
        await approvals.claim("a")
    monkeypatch.undo()
    assert not await approvals.claim("a")


async def test_fsync_flushes_the_claim_and_every_directory_above_it_before_it_counts(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[str] = []
    fsync = os.fsync

    def watched(file: int) -> None:
        flushed.append(os.readlink(f"/proc/self/fd/{file}"))
        fsync(file)

    monkeypatch.setattr(os, "fsync", watched)
    assert await cc.DirectoryApprovals(path).claim("a")
    assert flushed == []
    assert await cc.DirectoryApprovals(path, fsync=True).claim("b")
    [file] = [file for file in claimed(path) if str(file) in flushed]
    assert {str(each) for each in (file, file.parent, file.parent.parent, path, path.parent)} <= set(flushed)


# --- forgetting ---


async def test_forget_removes_what_is_older_and_says_how_many(path: Path) -> None:
    approvals = cc.DirectoryApprovals(path, ttl=None)
    for number in range(20):
        assert await approvals.claim(f"old {number}")
    make_older(path, 3600)
    for number in range(5):
        assert await approvals.claim(f"new {number}")
    assert await approvals.forget(timedelta(hours=2)) == 0
    assert await approvals.forget(1800) == 20
    assert await approvals.forget(1800) == 0
    assert len(claimed(path)) == 5
    assert [await approvals.claim("new 0"), await approvals.claim("old 0")] == [False, True]
    assert all(any(twig.iterdir()) for twig in path.glob("[0-9a-f][0-9a-f]/[0-9a-f][0-9a-f]"))


async def test_forget_leaves_alone_what_is_no_claim(path: Path) -> None:
    approvals = cc.DirectoryApprovals(path)
    assert await approvals.claim("a")
    [file] = claimed(path)
    for strange in (path / "notes", file.parent / "notes", file.parent.parent / "notes"):
        strange.write_bytes(b"somebody else's")
        os.utime(strange, times=(0, 0))
    make_older(path, 3600)
    assert await approvals.forget(60) == 1
    assert sorted(each.name for each in path.rglob("notes")) == ["notes"] * 3


async def test_old_claims_leave_as_new_ones_are_made(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "_LOOKS_PER_TTL", 10**9)  # the test's time goes faster than the file system's
    approvals = cc.DirectoryApprovals(path, ttl=timedelta(hours=1))
    most = 0
    for number in range(2500):  # 100 in a ttl
        assert await approvals.claim(f"{number}")
        if number % 50 == 49:
            most = max(most, len(claimed(path)))
            make_older(path, 1800)
    # Each of 256 branches is looked through when a claim is made in it, on average after two and a half ttls.
    assert most <= 700


async def test_what_is_old_is_told_by_the_clock_of_the_file_system_alone(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    approvals = cc.DirectoryApprovals(path, ttl=timedelta(hours=1))
    monkeypatch.setattr("time.time", lambda: 4e9)
    assert [await approvals.claim("a"), await approvals.claim("a")] == [True, False]
    assert await approvals.forget(60) == 0


async def test_a_branch_is_not_looked_through_at_every_claim(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[float] = []
    monkeypatch.setattr(claims, "_remove", lambda branch, age: looked.append(age))
    approvals = cc.DirectoryApprovals(path, ttl=timedelta(hours=1))
    same = iter([f"{n}" for n in range(20_000) if hashlib.sha256(f"{n}".encode()).hexdigest()[:2] == "00"])
    for _ in range(10):
        await approvals.claim(next(same))
    assert looked == [3600]
    approvals._looked["00"] -= 3600 / 8  # the time that must pass
    for _ in range(10):
        await approvals.claim(next(same))
    assert looked == [3600, 3600]


async def test_only_one_process_forgets_at_a_time_and_nobody_waits_for_it(path: Path) -> None:
    approvals = cc.DirectoryApprovals(path)
    assert await approvals.claim("a")
    make_older(path, 3600)
    [file] = claimed(path)
    assert await approvals.forget(7200) == 0  # which makes the lock
    with (file.parent.parent / ".lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert await approvals.forget(60) == 0
        assert not await approvals.claim("a")
    assert await approvals.forget(60) == 1


async def test_claims_and_forgetting_at_once_make_no_claim_twice(path: Path) -> None:
    approvals = [cc.DirectoryApprovals(path, ttl=None) for _ in range(2)]
    for number in range(200):
        await approvals[0].claim(f"old {number}")
    make_older(path, 3600)
    won: list[int] = []

    async def claim(desk: cc.DirectoryApprovals) -> None:
        won.extend([number for number in range(100) if await desk.claim(f"new {number}")])

    async with anyio.create_task_group() as tasks:
        for desk in approvals:
            tasks.start_soon(claim, desk)
            tasks.start_soon(desk.forget, 60)
    assert sorted(won) == list(range(100))
    assert len(claimed(path)) == 100


@pytest.mark.parametrize("age", [0, -1, None, "1h", True])
async def test_an_age_that_is_none_is_refused(path: Path, age: Any) -> None:
    with pytest.raises(cc.ConfigurationError, match="older_than"):
        await cc.DirectoryApprovals(path).forget(age)


# --- settings ---


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: cc.DirectoryApprovals(""), "path"),
        (lambda: cc.DirectoryApprovals("file:///var/lib/claims"), "path"),
        (lambda: cc.DirectoryApprovals(7), "path"),  # type: ignore[arg-type]  # a slip
        (lambda: cc.DirectoryApprovals("a\x00b"), "path"),
        (lambda: cc.DirectoryApprovals("claims", fsync=1), "fsync"),  # type: ignore[arg-type]  # a slip
        (lambda: cc.DirectoryApprovals("claims", ttl=0), "ttl"),
        (lambda: cc.DirectoryApprovals("claims", ttl="7d"), "ttl"),  # type: ignore[arg-type]  # a slip
    ],
)
def test_a_setting_that_cannot_be_honoured_is_refused_by_name(make: Callable[[], object], named: str) -> None:
    with pytest.raises(cc.ConfigurationError, match=named):
        make()


def test_approvals_that_forget_a_claim_before_its_approval_expires_are_refused_by_the_boundary() -> None:
    hour = timedelta(hours=1)
    for ttl in (hour / 2, hour):
        with pytest.raises(cc.ConfigurationError, match="used twice"):
            cc.Boundary(approvals=cc.DirectoryApprovals("claims", ttl=ttl), approval_ttl=hour)
    for kept in (hour * 2, None):
        cc.Boundary(approvals=cc.DirectoryApprovals("claims", ttl=kept), approval_ttl=hour)
    cc.Boundary(approvals=cc.DirectoryApprovals("claims"))


# --- in a boundary ---


class Asks(cc.Rule):
    name = "asks"

    def before_tool(self, call: cc.ToolCall) -> Any:
        return cc.ask("may it?")


def desk(path: Path, ran: list[str]) -> cc.Boundary:
    async def transfer() -> str:
        ran.append("ran")
        return "done"

    return cc.Boundary([transfer], rules=[Asks()], secret="s" * 32, approvals=cc.DirectoryApprovals(path))


async def test_replicas_that_share_the_directory_execute_once(path: Path) -> None:
    ran: list[str] = []
    desks = [desk(path, ran) for _ in range(4)]
    outcome = await desks[0].session(SCOPE).call("transfer")
    assert isinstance(outcome, cc.Pending)
    data = outcome.call.to_bytes()
    outcomes: list[cc.Outcome] = []

    async def resume(boundary: cc.Boundary) -> None:
        outcomes.append(await boundary.session(SCOPE).resume(data, approved=True, by="dana"))

    async with anyio.create_task_group() as tasks:
        for boundary in desks:
            tasks.start_soon(resume, boundary)
    assert ran == ["ran"]
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Denied"] * 3 + ["Inline"]


async def test_a_directory_that_cannot_be_written_declines_the_call(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    boundary = desk(path, ran)
    outcome = await boundary.session(SCOPE).call("transfer")
    assert isinstance(outcome, cc.Pending)
    path.parent.joinpath("claims").write_bytes(b"a file in its place")
    denied = await boundary.session(SCOPE).resume(outcome.call, approved=True, by="dana")
    assert isinstance(denied, cc.Denied)
    assert "could not be recorded" in denied.text
    assert ran == []
