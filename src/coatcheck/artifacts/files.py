"""One scope's directory of the directory store: what is in it, and the steps that change it. Everything here blocks.

The layout, and the laws that it serves, are in `coatcheck.artifacts.root`.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from io import FileIO
from typing import Literal

import msgspec

from coatcheck.artifacts.disk import (
    directories_in,
    directory,
    ensure_directory,
    flush,
    open_directory,
    open_for_reading,
    remove_tree,
    write_file,
)
from coatcheck.artifacts.meta import ArtifactMeta
from coatcheck.artifacts.ref import digest_of, is_ref, make_ref
from coatcheck.artifacts.retention import Row
from coatcheck.errors import IntegrityError, StoreUnavailable

__all__ = ["Entry", "Record", "ScopeDirectory", "Segments"]

Segments = tuple[str, str, str]
"""A scope as `scope_segments` spells it."""

_DATA = "data"
_META = "meta.json"
_LEFTOVER = re.compile("[.](new|old)-[0-9a-f]{16}")  # as `_unique` makes them
_SHARD = re.compile("[0-9a-z]{2}")  # two characters of a ref
_LONGEST_META = 1 << 18
_LONG_AGO = datetime.min.replace(tzinfo=UTC)
_ATTEMPTS = 16


class Record(msgspec.Struct, frozen=True):
    """What ``meta.json`` holds.

    Attributes:
        meta: of the artifact.
        last_put: when its content was last put: the age that evictions go by.
    """

    meta: ArtifactMeta
    last_put: datetime


class Entry(msgspec.Struct, frozen=True):
    """One artifact's directory, as it was found.

    Attributes:
        ref: its name.
        record: what is known of it; ``None`` where ``meta.json`` is missing or damaged.
        size: of the payload on the disk; ``None`` where there is none.
        problem: what is wrong, where something is damaged.
    """

    ref: str
    record: Record | None
    size: int | None
    problem: str | None = None

    @property
    def meta(self) -> ArtifactMeta | None:
        """The artifact's, if both meta and payload are there. Else there is nothing that a reader could have."""
        return self.record.meta if self.record is not None and self.size is not None else None

    def row(self) -> Row:
        """What retention needs. What nobody can read any more counts as the oldest."""
        if self.record is None or self.size is None:
            kind = "" if self.record is None else self.record.meta.kind
            return Row(self.ref, kind, self.size or 0, _LONG_AGO)
        meta = self.record.meta
        return Row(self.ref, meta.kind, self.size, self.record.last_put, meta.expires_at)


class ScopeDirectory:
    """The directory of one scope, which need not exist until something is written."""

    def __init__(self, root: int, segments: Segments, *, fsync: bool) -> None:
        self._root = root
        self._segments = segments
        self._fsync = fsync
        self._fd: int | None = None

    def __enter__(self) -> ScopeDirectory:
        with suppress(FileNotFoundError):
            self._fd = self._walk(create=False)
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd is not None:
            os.close(self._fd)

    def find(self, ref: str) -> Entry | None:
        """What lies under a ref; ``None``: nothing at all, or it is no ref."""
        if self._fd is None or not is_ref(ref):
            return None
        try:
            with directory(ref[4:6], self._fd) as shard, directory(ref, shard) as artifact:
                return _inspect(ref, artifact)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                raise
            return Entry(ref, None, None, "something that is no directory or no file")

    def entries(self) -> Iterator[Entry]:
        """What lies under every ref."""
        if self._fd is None:
            return
        for name in self._shards():
            try:
                with directory(name, self._fd) as shard, os.scandir(shard) as found:
                    refs = [entry.name for entry in found if is_ref(entry.name) and entry.name[4:6] == name]
            except FileNotFoundError:
                continue
            for ref in refs:
                entry = self.find(ref)
                if entry is not None:
                    yield entry

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
        scope = self._create()
        name = _unique("new")
        os.mkdir(name, 0o700, dir_fd=scope)
        try:
            with directory(name, scope) as artifact:
                write_file(_DATA, data, artifact, fsync=self._fsync)
                write_file(_META, msgspec.json.encode(record), artifact, fsync=self._fsync)
                flush(artifact, fsync=self._fsync)
            yield name
        finally:
            remove_tree(name, scope)

    def publish(self, staged: str, ref: str) -> None:
        """Make a staged artifact visible, in place of whatever lies under its ref."""
        scope = self._create()
        self.remove(ref)
        ensure_directory(ref[4:6], scope, fsync=self._fsync)
        with directory(ref[4:6], scope) as shard:
            os.rename(staged, ref, src_dir_fd=scope, dst_dir_fd=shard)
            flush(shard, fsync=self._fsync)

    def rewrite(self, record: Record) -> None:
        """Replace what is known of an artifact, and leave its payload alone."""
        scope = self._create()
        ref = record.meta.ref
        name = _unique("new")
        try:
            write_file(name, msgspec.json.encode(record), scope, fsync=self._fsync)
            with directory(ref[4:6], scope) as shard, directory(ref, shard) as artifact:
                os.rename(name, _META, src_dir_fd=scope, dst_dir_fd=artifact)
                flush(artifact, fsync=self._fsync)
        finally:
            remove_tree(name, scope)

    def remove(self, ref: str) -> None:
        """Take away whatever lies under a ref."""
        if self._fd is None or not is_ref(ref):
            return
        name = _unique("old")
        try:
            with directory(ref[4:6], self._fd) as shard:
                os.rename(ref, name, src_dir_fd=shard, dst_dir_fd=self._fd)
                flush(shard, fsync=self._fsync)
        except FileNotFoundError:
            return
        remove_tree(name, self._fd)
        with suppress(OSError):  # other artifacts share it
            os.rmdir(ref[4:6], dir_fd=self._fd)

    def leftovers(self) -> list[tuple[str, int]]:
        """What a crash left: names for `clear`, and the bytes of the payload in each. The caller holds the lock."""
        if self._fd is None:
            return []
        with os.scandir(self._fd) as found:
            names = sorted(entry.name for entry in found if _LEFTOVER.fullmatch(entry.name) is not None)
        return [(name, self._payload_size(name, self._fd)) for name in names]

    def clear(self, leftover: str) -> None:
        """Remove something that a crash left."""
        if self._fd is not None:
            remove_tree(leftover, self._fd)

    def prune(self) -> None:
        """Remove the directories between the scope's and its artifacts' that are empty."""
        for name in self._shards():
            with suppress(OSError):
                os.rmdir(name, dir_fd=self._fd)

    def _shards(self) -> list[str]:
        return [] if self._fd is None else [name for name in directories_in(self._fd) if _SHARD.fullmatch(name)]

    @contextmanager
    def _open(self, ref: str) -> Iterator[FileIO]:
        """An artifact's payload, for reading.

        Raises:
            FileNotFoundError: there is none.
        """
        if self._fd is None:
            raise FileNotFoundError(errno.ENOENT, "no such scope")
        with directory(ref[4:6], self._fd) as shard, directory(ref, shard) as artifact:
            descriptor = open_for_reading(_DATA, artifact)
        with FileIO(descriptor) as file:
            yield file

    def _payload_size(self, leftover: str, scope: int) -> int:
        with suppress(OSError), directory(leftover, scope) as artifact:
            return os.stat(_DATA, dir_fd=artifact, follow_symlinks=False).st_size
        return 0

    def _create(self) -> int:
        """The scope's descriptor, after making its directories where they are missing."""
        for _ in range(_ATTEMPTS):
            if self._fd is not None:
                return self._fd
            with suppress(FileNotFoundError):  # a sweep of a neighbour removed an empty directory on the way
                self._fd = self._walk(create=True)
        raise StoreUnavailable("the scope's directory cannot be made: its parents keep vanishing")

    def _walk(self, *, create: bool) -> int:
        opened: list[int] = []
        try:
            for name in self._segments:
                parent = opened[-1] if opened else self._root
                if create:
                    ensure_directory(name, parent, fsync=self._fsync)
                opened.append(open_directory(name, parent))
            return opened.pop()
        finally:
            for descriptor in opened:
                os.close(descriptor)


def _unique(what: Literal["new", "old"]) -> str:
    return f".{what}-{secrets.token_hex(8)}"


def _digest_of_file(file: FileIO) -> str:
    """`digest_of` a payload, piece by piece."""
    return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()


def _inspect(ref: str, artifact: int) -> Entry:
    size: int | None = None
    with suppress(FileNotFoundError):
        status = os.stat(_DATA, dir_fd=artifact, follow_symlinks=False)
        if not stat.S_ISREG(status.st_mode):
            return Entry(ref, None, None, "a payload that is not a file")
        size = status.st_size
    try:
        with open(open_for_reading(_META, artifact), "rb", buffering=0) as file:
            raw = file.read(_LONGEST_META)
    except FileNotFoundError:
        return Entry(ref, None, size)
    record = _decode(ref, raw)
    return Entry(ref, record, size, None if record is not None else "a meta.json that is damaged")


def _decode(ref: str, raw: bytes) -> Record | None:
    """The record of ``ref``. A ref is made of kind, media type and digest, so a record proves itself."""
    try:
        record = msgspec.json.decode(raw, type=Record)
        meta = record.meta
        if make_ref(meta.kind, meta.media_type, meta.digest) == meta.ref == ref and _aware(record):
            return record
    except (msgspec.MsgspecError, ValueError):
        pass
    return None


def _aware(record: Record) -> bool:
    times = (record.last_put, record.meta.created_at, record.meta.expires_at)
    return all(time is None or time.utcoffset() is not None for time in times)
