"""One scope's directory of the directory store: what is in it, and the steps that change it. Everything here blocks.

The layout, and the laws that it serves, are in `coatcheck.artifacts.root`.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

import msgspec

from coatcheck.artifacts.disk import (
    ForeignOwner,
    directories_in,
    directory,
    ensure_directory,
    exists,
    flush,
    make_directory,
    open_directory,
    open_for_reading,
    remove_tree,
    unique,
    write_file,
)
from coatcheck.artifacts.meta import ArtifactMeta
from coatcheck.artifacts.records import DATA, META, Entry, Record, inspect
from coatcheck.artifacts.ref import digest_of, is_ref
from coatcheck.artifacts.staging import Staging, was_left
from coatcheck.errors import IntegrityError, StoreUnavailable

__all__ = ["ScopeDirectory", "Segments"]

Segments = tuple[str, str, str]
"""A scope as `scope_segments` spells it."""

_LEFTOVER = re.compile("[.](new|old)-[0-9a-f]{16}")  # as `unique` makes them
_SHARD = re.compile("[0-9a-z]{2}")  # two characters of a ref
_ATTEMPTS = 16
_OF_ONE_ARTIFACT = (errno.EACCES, errno.EIO, errno.EPERM)  # what the system says of one file, and not of the whole disk


class ScopeDirectory:
    """The directory of one scope, which need not exist until something is written.

    For every change of it the caller holds the scope's lock.

    Args:
        root: the store's directory, and ``path`` its name.
        segments: the scope's.
        fsync: every change is flushed to the disk before it counts.

    Attributes:
        path: where it lies, for what cannot use a descriptor.
    """

    def __init__(self, root: int, path: Path, segments: Segments, *, fsync: bool) -> None:
        self.path: Path = path.joinpath(*segments)
        self.fsync = fsync
        self._root = root
        self._segments = segments
        self._fd: int | None = None

    def __enter__(self) -> ScopeDirectory:
        with suppress(FileNotFoundError):
            self._fd = self._walk(create=False)
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd is not None:
            os.close(self._fd)

    @property
    def exists(self) -> bool:
        """Whether it is there."""
        return self._fd is not None

    @property
    def descriptor(self) -> int:
        """Its descriptor.

        Raises:
            FileNotFoundError: it is not there.
        """
        if self._fd is None:
            raise FileNotFoundError(errno.ENOENT, "no such scope")
        return self._fd

    def create(self) -> None:
        """Make it, where it is missing."""
        for _ in range(_ATTEMPTS):
            if self._fd is not None:
                return
            with suppress(FileNotFoundError):  # a sweep of a neighbour removed an empty directory on the way
                self._fd = self._walk(create=True)
        if self._fd is None:
            raise StoreUnavailable("the scope's directory cannot be made: its parents keep vanishing")

    def find(self, ref: str) -> Entry | None:
        """What lies under a ref; ``None``: nothing at all, or it is no ref."""
        if self._fd is None or not is_ref(ref):
            return None
        try:
            with directory(ref[4:6], self._fd) as shard, directory(ref, shard) as artifact:
                return inspect(ref, artifact)
        except FileNotFoundError:
            return None
        except ForeignOwner:
            return Entry(ref, None, None, "something of another user")
        except OSError as error:
            if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                raise
            return Entry(ref, None, None, "something that is no directory or no file")

    def look(self, ref: str) -> Entry | None:
        """`find`, where one artifact that cannot be read must not end the work on all of them."""
        try:
            return self.find(ref)
        except OSError as error:
            if error.errno not in _OF_ONE_ARTIFACT:
                raise
            return Entry(ref, None, None, error=error)

    def entries(self, shards: Iterable[str] | None = None) -> Iterator[Entry]:
        """What lies under every ref, or under those of some of the `shards`."""
        if self._fd is None:
            return
        for name in self.shards() if shards is None else shards:
            try:
                with directory(name, self._fd) as shard, os.scandir(shard) as found:
                    refs = [entry.name for entry in found if is_ref(entry.name) and entry.name[4:6] == name]
            except (FileNotFoundError, ForeignOwner):
                continue
            for ref in refs:
                entry = self.look(ref)
                if entry is not None:
                    yield entry

    def shards(self) -> list[str]:
        """The directories between the scope's and its artifacts', in the order of the refs in them."""
        return [] if self._fd is None else [name for name in directories_in(self._fd) if _SHARD.fullmatch(name)]

    def names(self) -> set[str]:
        """Everything that lies in it."""
        return set() if self._fd is None else set(os.listdir(self._fd))

    def payload(self, meta: ArtifactMeta) -> bytes | None:
        """An artifact's payload; ``None`` where it has just gone.

        Raises:
            IntegrityError: it is not the one that was put.
        """
        try:
            with self._open(meta.ref) as file:
                if os.fstat(file.fileno()).st_size == meta.bytes:
                    data = file.readall()
                    actual = digest_of(data)
                    if actual == meta.digest:
                        return data
                else:
                    # Not the payload, and it may be of any size.
                    actual = _digest_of_file(file)
        except FileNotFoundError:
            return None
        raise IntegrityError(meta.ref, meta.digest, actual)

    def holds(self, meta: ArtifactMeta) -> bool:
        """Whether an artifact's payload can be read, and is the one that was put. Takes little memory."""
        try:
            with self._open(meta.ref) as file:
                return _digest_of_file(file) == meta.digest
        except OSError:  # a disk that cannot read it holds it no more than one that lost it
            return False

    @contextmanager
    def staged(self, record: Record, data: bytes) -> Iterator[str]:
        """Write an artifact in full where nobody sees it, for `publish`; what was not published is removed."""
        self.create()
        scope = self.descriptor
        name = unique("new")
        try:
            make_directory(name, scope)
            with directory(name, scope) as artifact:
                write_file(DATA, data, artifact, fsync=self.fsync)
                write_file(META, msgspec.json.encode(record), artifact, fsync=self.fsync)
                flush(artifact, fsync=self.fsync)
            yield name
        finally:
            remove_tree(name, scope)

    def begin(self) -> Staging:
        """Begin to write a payload that is still being made."""
        self.create()
        return Staging(self.descriptor, fsync=self.fsync)

    def finish(self, staging: Staging, record: Record, *, there: bool) -> None:
        """Make a payload that was staged visible.

        Args:
            staging: the payload; it is whole.
            record: what is known of it.
            there: its content lies there already. Then the payload takes the place of its equal, which heals one that
                was damaged, and is quicker than a look at it.
        """
        scope = self.descriptor
        ref = record.meta.ref
        with directory(staging.name, scope) as staged:
            if there:
                with directory(ref[4:6], scope) as shard, directory(ref, shard) as artifact:
                    with suppress(OSError):  # it need not be readable to be replaced
                        staging.keep(open_for_reading(DATA, artifact))
                    os.rename(DATA, DATA, src_dir_fd=staged, dst_dir_fd=artifact)
                remove_tree(staging.name, scope)
                self.rewrite(record)
                return
            write_file(META, msgspec.json.encode(record), staged, fsync=self.fsync)
            flush(staged, fsync=self.fsync)
        self.publish(staging.name, ref)

    def publish(self, staged: str, ref: str) -> None:
        """Make a staged artifact visible, in place of whatever lies under its ref."""
        scope = self.descriptor
        self.remove(ref)
        ensure_directory(ref[4:6], scope, fsync=self.fsync)
        with directory(ref[4:6], scope) as shard:
            os.rename(staged, ref, src_dir_fd=scope, dst_dir_fd=shard)
            flush(shard, fsync=self.fsync)

    def rewrite(self, record: Record) -> None:
        """Replace what is known of an artifact, and leave its payload alone."""
        scope = self.descriptor
        ref = record.meta.ref
        name = unique("new")
        try:
            write_file(name, msgspec.json.encode(record), scope, fsync=self.fsync)
            with directory(ref[4:6], scope) as shard, directory(ref, shard) as artifact:
                os.rename(name, META, src_dir_fd=scope, dst_dir_fd=artifact)
                flush(artifact, fsync=self.fsync)
        finally:
            remove_tree(name, scope)

    def remove(self, ref: str) -> bool:
        """Take away whatever lies under a ref, and say whether there was anything."""
        if self._fd is None or not is_ref(ref):
            return False
        name = unique("old")
        try:
            with directory(ref[4:6], self._fd) as shard:
                os.rename(ref, name, src_dir_fd=shard, dst_dir_fd=self._fd)
                flush(shard, fsync=self.fsync)
        except FileNotFoundError:
            return False
        finally:
            remove_tree(name, self._fd)
        with suppress(OSError):  # other artifacts share it
            os.rmdir(ref[4:6], dir_fd=self._fd)
        return True

    def leftovers(self) -> list[tuple[str, int]]:
        """What a crash left: names for `clear`, and the bytes of the payload in each."""
        if self._fd is None:
            return []
        with os.scandir(self._fd) as found:
            names = sorted(entry.name for entry in found if _LEFTOVER.fullmatch(entry.name) is not None)
        left = [name for name in names if was_left(name, self._fd)]
        return [(name, self._payload_size(name, self._fd)) for name in left]

    def clear(self, leftover: str) -> bool:
        """Remove something that a crash left, and say whether it is gone."""
        remove_tree(leftover, self.descriptor)
        return not exists(leftover, self.descriptor)

    def prune(self) -> None:
        """Remove the directories between the scope's and its artifacts' that are empty."""
        for name in self.shards():
            with suppress(OSError):
                os.rmdir(name, dir_fd=self._fd)

    def open(self, meta: ArtifactMeta) -> int | None:
        """A descriptor of an artifact's payload, for the caller to close; ``None`` where it has just gone.

        Raises:
            IntegrityError: it has another size than the one that was put.
        """
        try:
            with self._open(meta.ref) as file:
                size = os.fstat(file.fileno()).st_size
                if size == meta.bytes:
                    return os.dup(file.fileno())
        except FileNotFoundError:
            return None
        raise IntegrityError(meta.ref, f"{meta.bytes} bytes", f"{size} bytes")

    @contextmanager
    def _open(self, ref: str) -> Iterator[FileIO]:
        """An artifact's payload, for reading.

        Raises:
            FileNotFoundError: there is none.
        """
        with directory(ref[4:6], self.descriptor) as shard, directory(ref, shard) as artifact:
            descriptor = open_for_reading(DATA, artifact)
        with FileIO(descriptor) as file:
            yield file

    def _payload_size(self, leftover: str, scope: int) -> int:
        with suppress(OSError), directory(leftover, scope) as artifact:
            return os.stat(DATA, dir_fd=artifact, follow_symlinks=False).st_size
        return 0

    def _walk(self, *, create: bool) -> int:
        opened: list[int] = []
        try:
            for name in self._segments:
                parent = opened[-1] if opened else self._root
                if create:
                    ensure_directory(name, parent, fsync=self.fsync)
                opened.append(open_directory(name, parent))
            return opened.pop()
        finally:
            for descriptor in opened:
                os.close(descriptor)


def _digest_of_file(file: FileIO) -> str:
    """`digest_of` a payload, piece by piece."""
    return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()
