"""A command and everything that it started: signalled, found again and ended.

The command leads a session and a process group of its own. What stays in the group is reached through it. On Linux
this process also becomes the one that orphans fall to, so what left the group (``setsid``, a double fork) turns up
among its own children when its parent is gone. Elsewhere such a process is out of reach; so is one that forks into new
sessions faster than it can be looked for.

The leader is not reaped before everything is over: as long as it is there, nobody else can have its number.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from subprocess import Popen
from typing import NamedTuple

__all__ = ["Family", "adopting_orphans", "dies_with_parent"]

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_EXIT_GRACE = 0.2  # what has closed its streams already may be on its way out
_TERM_GRACE = 1.0
_KILL_GRACE = 5.0
_LOOK_EVERY = 0.02
_HAS_PROC = sys.platform == "linux" and os.path.exists("/proc/self/stat")


class _Process(NamedTuple):
    pid: int
    alive: bool
    parent: int
    group: int


class Family:
    """The processes of one command.

    Args:
        leader: the command, started in a session of its own.
        strangers: children of this process that were there before it.
    """

    def __init__(self, leader: Popen[bytes], strangers: frozenset[int]) -> None:
        self._leader = leader
        self._strangers = strangers

    def status(self) -> int | None:
        """How the leader ended, as `Popen.returncode` says it; ``None`` while it runs. It is not reaped."""
        if self._leader.returncode is not None or not hasattr(os, "waitid"):
            return self._leader.poll()
        info = os.waitid(os.P_PID, self._leader.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if info is None:
            return None
        return info.si_status if info.si_code == os.CLD_EXITED else -info.si_status

    def send(self, number: int) -> None:
        """Send a signal to the group; to one that is asked to end, also the one that wakes it where it is stopped."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._leader.pid, number)
            if number == signal.SIGTERM:
                os.killpg(self._leader.pid, signal.SIGCONT)

    async def end(self, hurry: Callable[[], bool]) -> int:
        """End whatever is left: ask first, then kill, and wait until it is gone.

        Args:
            hurry: whether there is no time to ask.

        Returns:
            How many processes besides the leader there were to end, where the system can tell.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        seen: set[int] = set()
        while left := self._left():
            waited = loop.time() - began
            if waited > _EXIT_GRACE + _TERM_GRACE + _KILL_GRACE:  # in the hands of the kernel, or of another user
                break
            if hurry() or waited > _EXIT_GRACE + _TERM_GRACE:
                self._send_to(left, signal.SIGKILL)
                seen |= left
            elif waited > _EXIT_GRACE or left == {self._leader.pid}:
                self._send_to(left - seen, signal.SIGTERM)
                seen |= left
            await asyncio.sleep(_LOOK_EVERY)
        if _HAS_PROC:  # the number of the group is still taken
            self.send(signal.SIGKILL)  # who forks too fast to be seen does not escape what the whole group is sent
        self._reap()
        return len(seen - {self._leader.pid})

    def _left(self) -> set[int]:
        """The processes that are left: of the group, and orphans that fell to this process."""
        pid = self._leader.pid
        if not _HAS_PROC:
            self._leader.poll()  # a leader that nobody reaped would count as one that is left
            return {pid} if _exists(pid) else set()
        return {
            process.pid
            for process in _processes()
            if process.alive and (process.group == pid or self._is_ours(process))
        }

    def _send_to(self, pids: set[int], number: int) -> None:
        send = os.kill if _HAS_PROC else os.killpg
        for pid in pids:
            with suppress(ProcessLookupError, PermissionError):
                send(pid, number)
                if number == signal.SIGTERM:
                    send(pid, signal.SIGCONT)  # to one that is stopped, so that it can end

    def _is_ours(self, process: _Process) -> bool:
        return process.parent == os.getpid() and process.pid not in self._strangers

    def _reap(self) -> None:
        self._leader.poll()
        for process in _processes() if _HAS_PROC else ():
            if self._is_ours(process) and not process.alive:
                with suppress(ChildProcessError):
                    os.waitpid(process.pid, os.WNOHANG)


def dies_with_parent() -> Callable[[], object] | None:
    """What a child has to do before it becomes the command, so that it is killed with this process, if that is killed.

    Only Linux can do that, and only for the command itself: what it has started goes on.
    """
    if not _HAS_PROC:
        return None
    prctl = ctypes.CDLL(None).prctl  # looked up here: between fork and exec as little as possible should happen
    return lambda: prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


@contextmanager
def adopting_orphans() -> Iterator[frozenset[int]]:
    """While this lasts, orphaned descendants become children of this process, where the system can do that.

    Gives the children that this process has already: those that it was started with are not the command's.
    """
    if not _HAS_PROC:
        yield frozenset()
        return
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # a kernel that refuses leaves us with the group
    try:
        yield frozenset(process.pid for process in _processes() if process.parent == os.getpid())
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def _processes() -> Iterator[_Process]:
    """Every process that ``/proc`` shows."""
    for name in os.listdir("/proc"):
        if name.isascii() and name.isdigit():
            with suppress(OSError):  # it ended since
                with open(f"/proc/{name}/stat", "rb") as file:
                    stat = file.read()
                # 12 (name of the program, which may hold anything) S 1 12 12 ...
                state, parent, group = stat.rpartition(b") ")[2].split(maxsplit=3)[:3]
                yield _Process(int(name), state not in (b"Z", b"X"), int(parent), int(group))


def _exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):  # the second one: of zombies, on some systems
        return False
    return True
