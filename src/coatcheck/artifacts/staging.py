"""A stream's payload while it is written, where nobody sees it: in a ``.new-`` directory of its scope.

It is written outside the scope's lock, since a producer may take hours. What says that somebody writes it is a lock of
its own, on its payload, which the system drops when the process dies: a sweep that can have that lock has found
what a crash left (laws: `coatcheck.artifacts.root`).

A disk may hang, and a thread cannot be stopped. So a thread that uses a file and whoever gives the file up each
first say what they do, and then look at the other. Whoever ends last closes it, and nobody uses a descriptor that was
closed.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import threading
from collections.abc import Callable
from typing import TypeVar

from coatcheck.artifacts.disk import (
    directory,
    make_directory,
    open_directory,
    open_for_reading,
    open_for_writing,
    remove_tree,
    unique,
)
from coatcheck.artifacts.records import DATA
from coatcheck.artifacts.workers import Abandoned

__all__ = ["Held", "Staging", "was_left"]

_T = TypeVar("_T")


class Held:
    """A descriptor that worker threads use, and that is closed once, after the last of them.

    Attributes:
        gone: set when it has been closed.
    """

    def __init__(self, descriptor: int) -> None:
        self.gone: threading.Event = threading.Event()
        self._open = [descriptor]
        self._users: set[object] = set()
        self._given_up = False

    def use(self, work: Callable[[int], _T]) -> _T:
        """Do ``work`` with the descriptor, in a thread.

        Raises:
            Abandoned: it was given up.
        """
        user = object()
        self._users.add(user)
        try:
            if self._given_up:
                raise Abandoned
            return work(self._open[0])
        finally:
            self._users.discard(user)
            if self._given_up:
                self._close_if_unused()

    def give_up(self) -> None:
        """Close it: now, or after the thread that uses it. Once is enough, and twice does no harm."""
        self._given_up = True
        self._close_if_unused()

    def _close_if_unused(self) -> None:
        if self._users:
            return
        try:
            descriptor = self._open.pop()
        except IndexError:  # two came here at once, and the other one was first
            return
        try:
            self._close(descriptor)
        finally:
            self.gone.set()

    def _close(self, descriptor: int) -> None:
        os.close(descriptor)


class Staging(Held):
    """A payload that grows block by block, until it is published or given up.

    Args:
        scope: the scope's directory, whose lock the caller holds.
        fsync: `flush` does something.

    Attributes:
        name: the directory's, in the scope's.
        size: how many bytes were written.
    """

    def __init__(self, scope: int, *, fsync: bool) -> None:
        self.name: str = unique("new")
        self.size = 0
        self._fsync = fsync
        self._hash = hashlib.sha256()
        self._kept: list[int] = []
        self._scope = os.dup(scope)
        try:
            super().__init__(self._begin())
        except BaseException:
            remove_tree(self.name, self._scope)
            os.close(self._scope)
            raise

    @property
    def digest(self) -> str:
        """Of what was written, as `digest_of` spells it."""
        return f"sha256:{self._hash.hexdigest()}"

    def write(self, block: bytes | bytearray) -> None:
        """Write the next block, and hash it."""

        def write(descriptor: int) -> None:
            self._hash.update(block)
            rest = memoryview(block)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            self.size += len(block)

        self.use(write)

    def flush(self) -> None:
        """Make the payload outlast a loss of power, if that is wanted."""
        if self._fsync:
            self.use(os.fsync)

    def keep(self, descriptor: int) -> None:
        """Hold something open as long as this: the system takes its time to free a large file, and the lock is held."""
        self._kept.append(descriptor)

    def _begin(self) -> int:
        make_directory(self.name, self._scope)
        with directory(self.name, self._scope) as staged:
            descriptor = open_for_writing(DATA, staged)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _close(self, descriptor: int) -> None:
        # What was published has another name. The lock is dropped last: until then no sweep comes between.
        remove_tree(self.name, self._scope)
        for each in (descriptor, self._scope, *self._kept):
            os.close(each)


def was_left(name: str, scope: int) -> bool:
    """Whether a staging is what a crash left: it is there, and nobody writes it.

    The caller holds the scope's lock, under which every staging begins. One that is just being given up may look as
    if it had been left; removing it twice does no harm.
    """
    try:
        staged = open_directory(name, scope)
    except FileNotFoundError:
        return False
    except OSError:  # no directory, or not ours
        return True
    try:
        descriptor = open_for_reading(DATA, staged)
    except OSError:
        return True
    finally:
        os.close(staged)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True
