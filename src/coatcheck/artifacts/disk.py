"""File operations below a directory's descriptor, for the directory store: no symbolic link is ever followed.

Everything here blocks, and raises the system's own errors.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = [
    "directories_in",
    "directory",
    "ensure_directory",
    "exists",
    "flush",
    "named_directory",
    "open_directory",
    "open_for_reading",
    "open_lock",
    "remove_tree",
    "write_file",
]

_NO_LINK = os.O_NOFOLLOW | os.O_CLOEXEC
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# A pipe that lies in a payload's place must not make a reader wait.
_READ = os.O_RDONLY | os.O_NONBLOCK | _NO_LINK
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK
_LOCK = os.O_RDWR | os.O_CREAT | _NO_LINK


def open_directory(name: str, parent: int) -> int:
    """A descriptor of a directory inside another one; a symbolic link is none. The caller closes it."""
    return os.open(name, _DIRECTORY | _NO_LINK, dir_fd=parent)


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


def ensure_directory(name: str, parent: int, *, fsync: bool) -> None:
    """Make a directory, of mode 0700, where there is none."""
    try:
        os.mkdir(name, 0o700, dir_fd=parent)
    except FileExistsError:
        return
    flush(parent, fsync=fsync)


def open_for_reading(name: str, parent: int) -> int:
    """A descriptor of a file; the caller closes it."""
    return os.open(name, _READ, dir_fd=parent)


def open_lock(name: str, parent: int) -> int:
    """A descriptor of a lock file, made where it is missing; the caller closes it, which drops the lock."""
    return os.open(name, _LOCK, 0o600, dir_fd=parent)


def write_file(name: str, data: bytes, parent: int, *, fsync: bool) -> None:
    """Write a new file, of mode 0600; a name that is taken is an error."""
    with open(os.open(name, _WRITE, 0o600, dir_fd=parent), "wb", buffering=0) as file:
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


def remove_tree(name: str, parent: int) -> None:
    """Remove a file, or a directory with all that is in it, as far as it can be; a sweep comes for the rest."""
    with suppress(OSError):
        if stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            import shutil  # here, because it loads every compression library

            shutil.rmtree(name, ignore_errors=True, dir_fd=parent)
        else:
            os.unlink(name, dir_fd=parent)
