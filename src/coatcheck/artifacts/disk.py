"""File operations below a directory's descriptor, for the directory store: no symbolic link is ever followed.

What is made here has mode 0700 or 0600, whatever the process's umask says; what is opened here belongs to the process's
own user. Everything blocks, and raises the system's own errors.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

__all__ = [
    "ForeignOwner",
    "directories_in",
    "directory",
    "ensure_directory",
    "exists",
    "flush",
    "make_directory",
    "named_directory",
    "open_directory",
    "open_for_reading",
    "open_for_writing",
    "open_lock",
    "remove_tree",
    "unique",
    "write_file",
]

_NO_LINK = os.O_NOFOLLOW | os.O_CLOEXEC
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# A pipe that lies in a payload's place must not make a reader wait.
_READ = os.O_RDONLY | os.O_NONBLOCK | _NO_LINK
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK
_LOCK = os.O_RDWR | _NO_LINK


class ForeignOwner(PermissionError):
    """A file or a directory below the root belongs to another user, who could change it at any time."""

    def __init__(self, owner: int) -> None:
        super().__init__(
            errno.EPERM,
            f"something in it belongs to user {owner}, and this process runs as user {os.geteuid()}: "
            "run as the store's own user, or give it back to that user",
        )


def open_directory(name: str, parent: int) -> int:
    """A descriptor of a directory inside another one; a symbolic link is none. The caller closes it.

    Raises:
        ForeignOwner: it belongs to another user.
    """
    return _owned(os.open(name, _DIRECTORY | _NO_LINK, dir_fd=parent))


@contextmanager
def directory(name: str, parent: int) -> Iterator[int]:
    """`open_directory`, and close it at the end."""
    descriptor = open_directory(name, parent)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def named_directory(path: Path) -> Iterator[int]:
    """A directory that the operator named; where it lies is the operator's to say, so links are followed."""
    descriptor = os.open(path, _DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def directories_in(parent: int) -> list[str]:
    """The names of the directories in one, without our own that start with a dot, in order."""
    with os.scandir(parent) as found:
        return sorted(e.name for e in found if not e.name.startswith(".") and e.is_dir(follow_symlinks=False))


def make_directory(name: str, parent: int) -> None:
    """Make a directory; a name that is taken is an error."""
    os.mkdir(name, 0o700, dir_fd=parent)
    os.chmod(name, 0o700, dir_fd=parent)  # a umask may have taken the owner's own rights away


def ensure_directory(name: str, parent: int, *, fsync: bool) -> None:
    """Make a directory where there is none."""
    try:
        make_directory(name, parent)
    except FileExistsError:
        return
    flush(parent, fsync=fsync)


def open_for_reading(name: str, parent: int) -> int:
    """A descriptor of a file; the caller closes it.

    Raises:
        ForeignOwner: it belongs to another user.
    """
    return _owned(os.open(name, _READ, dir_fd=parent))


def open_for_writing(name: str, parent: int) -> int:
    """A descriptor of a new file; the caller closes it. A name that is taken is an error."""
    descriptor = os.open(name, _WRITE, 0o600, dir_fd=parent)
    try:
        os.fchmod(descriptor, 0o600)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def open_lock(name: str, parent: int) -> int:
    """A descriptor of a lock file, made where it is missing; the caller closes it, which drops the lock.

    Raises:
        ForeignOwner: it belongs to another user.
    """
    while True:
        try:
            return _owned(os.open(name, _LOCK, dir_fd=parent))
        except FileNotFoundError:
            with suppress(FileExistsError):
                os.close(open_for_writing(name, parent))


def write_file(name: str, data: bytes, parent: int, *, fsync: bool) -> None:
    """Write a new file; a name that is taken is an error."""
    with open(open_for_writing(name, parent), "wb", buffering=0) as file:
        rest = memoryview(data)
        while rest:
            rest = rest[file.write(rest) :]
        if fsync:
            os.fsync(file.fileno())


def flush(directory: int, *, fsync: bool) -> None:
    """Make what was renamed in a directory outlast a loss of power, if that is wanted."""
    if fsync:
        os.fsync(directory)


def exists(name: str, parent: int) -> bool:
    """Whether there is anything of this name."""
    try:
        os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def unique(what: Literal["new", "old"]) -> str:
    """A name that nothing has, for what is not to be seen yet, or not any more."""
    return f".{what}-{secrets.token_hex(8)}"


def remove_tree(name: str, parent: int) -> None:
    """Remove a file, or a directory with all that is in it, as far as it can be; a sweep comes for the rest."""
    with suppress(OSError):
        if stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            import shutil  # here, because it loads every compression library

            shutil.rmtree(name, ignore_errors=True, dir_fd=parent)
        else:
            os.unlink(name, dir_fd=parent)


def _owned(descriptor: int) -> int:
    try:
        owner = os.fstat(descriptor).st_uid
        if owner != os.geteuid():
            raise ForeignOwner(owner)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
