"""The directory of the directory store: its layout, its format, its locks. Everything here blocks.

    <root>/.coatcheck-1/<00..ff>                            marks a store and its format; holds the locks
    <root>/<tenant>/<principal>/<conversation>/             one scope (coatcheck.scope says how fields are spelled)
        <first two characters>/<ref>/data                   the payload, byte for byte
        <first two characters>/<ref>/meta.json              what is known of it
        .new-<16 hex digits>                                something that is being written
        .old-<16 hex digits>                                something that is being removed
        .index, .index-journal                              the order of the artifacts, and their number

Laws:

* One rename publishes payload and meta together, and one rename takes them away together. A kill at any moment
  leaves what was there before or what is there after, and beside it at most ``.new-`` and ``.old-`` names.
* Whoever changes a scope holds its lock, so a put and a sweep, in any processes, never see each other half done.
  Readers take no lock. The system drops the locks of a process that dies.
* A stream is written outside of that lock, and holds one of its own, on its ``.new-<...>/data``, from the moment when
  it appears to the moment when it is published or gone (`coatcheck.artifacts.staging`). A sweep that finds a ``.new-``
  without it has found what a crash left.
* What lies on the disk is what is there. The index orders and counts it, so that no put and no listing has to look at
  every artifact; it is made again wherever it cannot be trusted (`coatcheck.artifacts.index`). Nothing is remembered
  in a process, so a restart changes nothing, and budgets hold across processes.
* What has no name of this layout is somebody else's: it is never counted and never touched. A directory that holds
  anything, and no mark, is not made a store.
* No symbolic link is followed below the root, and nothing there that belongs to another user is used. Directories have
  mode 0700, files 0600, whatever the umask. So has the root from the moment when it is made a store; one that its
  operator opens to readers later stays so (they learn the names of tenants, and nothing else), and one that others
  could write to is refused.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from coatcheck.artifacts.disk import (
    directories_in,
    directory,
    ensure_directory,
    exists,
    named_directory,
    open_directory,
    open_lock,
)
from coatcheck.artifacts.files import ScopeDirectory, Segments
from coatcheck.errors import StoreUnavailable
from coatcheck.scope import is_segment

__all__ = ["Root"]

_MARKER = ".coatcheck-"
_OF_THE_VOLUME = "lost+found"  # a new volume is empty but for it
_CONTROL = _MARKER + "1"
_SHORTEST_WAIT = 0.0005
_LONGEST_WAIT = 0.01


class Root:
    """The store's directory. It is opened anew for every operation, so one that vanished is noticed.

    Args:
        path: a relative one means where the process is when the store is opened.
        fsync: every change is flushed to the disk before it counts.
    """

    def __init__(self, path: Path, *, fsync: bool) -> None:
        self.path: Path = path
        self.fsync = fsync

    def create(self) -> None:
        """Make of the path what a store needs, as far as it is not there.

        Raises:
            StoreUnavailable: a store of another format is there, or something that is no store.
        """
        self.path = self.path.absolute()
        os.makedirs(self.path.parent, exist_ok=True)
        with suppress(FileExistsError):
            os.mkdir(self.path, 0o700)
            os.chmod(self.path, 0o700)
        with named_directory(self.path) as root:
            if not exists(_CONTROL, root):
                names = [name for name in os.listdir(root) if name != _OF_THE_VOLUME]
                if names and not exists(_CONTROL, root):  # another process may just have made a store of it
                    raise StoreUnavailable(f"{self.path} {_refusal(names)}")
                self._check_owner(root)
                os.fchmod(root, 0o700)
                ensure_directory(_CONTROL, root, fsync=self.fsync)
            self._check_owner(root)
            self._check_mode(root)
        if self.fsync:
            with named_directory(self.path.parent) as parent:
                os.fsync(parent)

    @contextmanager
    def opened(self) -> Iterator[int]:
        """The root's descriptor.

        Raises:
            StoreUnavailable: another directory is in its place.
        """
        with named_directory(self.path) as root:
            if not exists(_CONTROL, root):
                raise StoreUnavailable(f"{self.path} is not a store any more: was it emptied, or is it not mounted?")
            self._check_owner(root)
            self._check_mode(root)
            yield root

    def _check_owner(self, root: int) -> None:
        owner = os.fstat(root).st_uid
        if owner != os.geteuid():
            raise StoreUnavailable(
                f"{self.path} belongs to user {owner}, and this process runs as user {os.geteuid()}: "
                "run as that user, or name a directory of this one's own, for example one inside it"
            )

    def _check_mode(self, root: int) -> None:
        mode = stat.S_IMODE(os.fstat(root).st_mode)
        if mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise StoreUnavailable(f"{self.path} can be changed by other users (its mode is {mode:o}): chmod 700 it")

    @contextmanager
    def scope(self, segments: Segments) -> Iterator[ScopeDirectory]:
        """One scope, for reading."""
        with self.opened() as root, ScopeDirectory(root, self.path, segments, fsync=self.fsync) as scope:
            yield scope

    @contextmanager
    def locked(self, segments: Segments, check: Callable[[], None], *, wait: bool = True) -> Iterator[ScopeDirectory]:
        """One scope, for changing. Waits until no other thread and no other process holds its lock.

        Args:
            segments: the scope's.
            check: raises when nobody waits for this any more. It is asked while the lock is waited for, so a process
                that hangs with the lock in its hand costs others no threads, and once more when it is there.
            wait: where it is False and the lock is held, BlockingIOError is raised.
        """
        # A fixed number of files, each the lock of all scopes with its hash: no lock ever has to be removed.
        name = hashlib.sha256("/".join(segments).encode()).hexdigest()[:2]
        with self.opened() as root, directory(_CONTROL, root) as control:
            lock = open_lock(name, control)
            try:
                if wait:
                    _acquire(lock, check)
                else:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                with ScopeDirectory(root, self.path, segments, fsync=self.fsync) as scope:
                    yield scope
            finally:
                os.close(lock)

    def scopes(self) -> Iterator[Segments]:
        """Every scope that has a directory. What cannot be looked into is passed over; the error comes in the end."""
        failed: list[OSError] = []
        with self.opened() as root:
            for tenant, principals in _inside(root, failed):
                for principal, conversations in _inside(principals, failed):
                    for conversation in _segments_in(conversations):
                        yield tenant, principal, conversation
        if failed:
            raise failed[-1]

    def prune(self, segments: Segments) -> None:
        """Remove the directories of a scope that are empty. The caller holds its lock."""
        tenant, principal, conversation = segments
        with self.opened() as root, suppress(OSError):
            with directory(tenant, root) as principals:
                with directory(principal, principals) as conversations:
                    os.rmdir(conversation, dir_fd=conversations)
                os.rmdir(principal, dir_fd=principals)
            os.rmdir(tenant, dir_fd=root)


def _segments_in(parent: int) -> list[str]:
    return [name for name in directories_in(parent) if is_segment(name)]


def _inside(parent: int, failed: list[OSError]) -> Iterator[tuple[str, int]]:
    """The directories in one that can be opened, by name, each open until the next one is asked for."""
    for name in _segments_in(parent):
        try:
            descriptor = open_directory(name, parent)
        except FileNotFoundError:
            continue
        except OSError as error:
            failed.append(error)
            continue
        try:
            yield name, descriptor
        finally:
            os.close(descriptor)


def _refusal(names: list[str]) -> str:
    if any(name.startswith(_MARKER) for name in names):
        return "is a store of a format that this version does not know"
    return "is not empty, and is not a store: name a directory of the store's own, for example one inside it"


def _acquire(lock: int, check: Callable[[], None]) -> None:
    wait = _SHORTEST_WAIT
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            check()
            time.sleep(wait)
            wait = min(2 * wait, _LONGEST_WAIT)
        else:
            check()
            return
