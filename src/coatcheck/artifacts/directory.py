"""The embedded store: artifacts in a directory, for any number of processes at once.

What lies where, and why nothing acknowledged is lost, is in `coatcheck.artifacts.root`.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping, MutableSequence, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import anyio
import msgspec

from coatcheck.artifacts.blocks import BLOCK_BYTES, Blocks, pour
from coatcheck.artifacts.files import Segments
from coatcheck.artifacts.meta import (
    Artifact,
    ArtifactMeta,
    Clock,
    MediaType,
    Page,
    PutRequest,
    PutResult,
    PutWords,
    Swept,
    check_put,
    check_range,
    check_words,
    read_clock,
    utc_now,
)
from coatcheck.artifacts.operations import Operations
from coatcheck.artifacts.port import DEFAULT_LIMIT, ArtifactReader
from coatcheck.artifacts.ranged import Chunks
from coatcheck.artifacts.ref import normalise_media_type
from coatcheck.artifacts.retention import Retention, too_large
from coatcheck.artifacts.root import Root
from coatcheck.artifacts.staging import Held, Staging
from coatcheck.artifacts.usage import Usage
from coatcheck.artifacts.workers import Job, Turns, Workers
from coatcheck.errors import ConfigurationError, StoreUnavailable
from coatcheck.scope import Scope, scope_segments

__all__ = ["DirectoryStore"]

_T = TypeVar("_T")
_H = TypeVar("_H", bound=Held)
_STORE = "store an artifact"
_READ = "read an artifact"
_PATIENCE = 2.0  # seconds


class DirectoryStore:
    """An `ArtifactStore` in a directory. POSIX only.

    It is opened by ``async with``, or by its first use, which makes the directory with mode 0700 where it is
    missing. A directory that vanishes later is an error, and is not made again. All its work is done in worker
    threads, so a disk that hangs does not hold up a caller that gives up: what a cancelled put left in a thread
    either still succeeds, which is harmless, or is never seen.

    An empty directory that is there already is made the store's own, with mode 0700. One that belongs to another user,
    or that others can write to, is refused. Files that somebody removes by hand are noticed when they are asked for,
    and by the next sweep.

    Args:
        path: the directory. Its parents are made with it. A relative one means where the process is at the opening.
        ttl: how long an artifact resolves after its last put; ``None``: until it is deleted or evicted.
        max_bytes: what the payloads of one scope may take together, in bytes; ``None`` is no limit.
        max_count: how many artifacts one scope may hold; ``None`` is no limit.
        fsync: flush every change to the disk before it counts. Without it an acknowledged artifact survives
            the death of every process, but perhaps not a loss of power, after which a sweep puts listings and
            budgets right.
        clock: what time it is, as an aware datetime. It is asked in worker threads, too.

    Raises:
        ConfigurationError: naming the setting that cannot be honoured.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        ttl: timedelta | None = None,
        max_bytes: int | None = None,
        max_count: int | None = None,
        fsync: bool = False,
        clock: Clock = utc_now,
    ) -> None:
        if not isinstance(fsync, bool):
            raise ConfigurationError(f"fsync must be True or False, not {fsync!r:.80}")
        self._retention = Retention(ttl=ttl, max_bytes=max_bytes, max_count=max_count)
        self._root = Root(_checked(path), fsync=fsync)
        self._work = Operations(self._root, self._retention, clock)
        self._created = False
        self._clock = clock
        self._workers = Workers()
        self._turns = Turns()

    @property
    def path(self) -> Path:
        """The directory; absolute once the store is open."""
        return self._root.path

    @property
    def retention(self) -> Retention:
        """How long, how much and how many, as it was set."""
        return self._retention

    async def put(
        self,
        scope: Scope,
        data: bytes,
        *,
        kind: str,
        media_type: str,
        label: str | None = None,
        expires_at: datetime | None = None,
        origin: Mapping[str, str] | None = None,
        parents: Sequence[str] = (),
    ) -> PutResult:
        """Store a payload; see `ArtifactStore.put`."""
        segments = scope_segments(scope)
        request = check_put(
            data,
            kind=kind,
            media_type=media_type,
            label=label,
            expires_at=expires_at,
            origin=origin,
            parents=parents,
            now=read_clock(self._clock),
        )
        return await self._put(segments, request)

    async def _put(self, segments: Segments, request: PutRequest) -> PutResult:
        self._check_size(len(request.data))
        digest = await self._workers.digest(request.data)
        # One at a time, as the lock would have it anyway: no threads pile up at the lock, and of many puts of one
        # payload only the first writes it.
        async with self._turns.of(segments):
            return await self._run(_STORE, lambda job: self._work.put(job, segments, request, digest))

    async def put_stream(
        self,
        scope: Scope,
        source: AsyncIterable[bytes],
        *,
        kind: str,
        media_type: MediaType,
        label: str | None = None,
        expires_at: datetime | None = None,
        origin: Mapping[str, str] | None = None,
        parents: Sequence[str] = (),
    ) -> PutResult:
        """Store a payload that is still being made; see `ArtifactStore.put_stream`.

        It is written and hashed in worker threads, while the source makes more of it. No thread waits for the source.
        A stream that ends within its first megabyte is a `put`.
        """
        segments = scope_segments(scope)
        words = check_words(
            source,
            kind=kind,
            media_type=media_type,
            label=label,
            expires_at=expires_at,
            origin=origin,
            parents=parents,
            now=read_clock(self._clock),
        )
        blocks = Blocks(source, self._check_size)
        try:
            return await self._put_blocks(segments, words, blocks)
        finally:
            blocks.release()

    async def _put_blocks(self, segments: Segments, words: PutWords, blocks: Blocks) -> PutResult:
        first = await blocks.next() or bytearray()
        if len(first) < BLOCK_BYTES:
            return await self._put(segments, PutRequest(bytes(first), _settled(words)))
        async with self._staging(segments, words) as staging:
            await pour(blocks, first, lambda block: self._run(_STORE, lambda job: staging.write(block)))
            settled = _settled(words)
            await self._run(_STORE, lambda job: staging.flush())
            async with self._turns.of(segments):
                return await self._run(_STORE, lambda job: self._work.finish(job, segments, settled, staging))

    def _check_size(self, size: int) -> None:
        """Refuse what is more than the whole budget before anything is done for it."""
        most = self._retention.max_bytes
        if most is not None and size > most:
            raise too_large(size, self._retention)

    @asynccontextmanager
    async def _staging(self, segments: Segments, words: PutWords) -> AsyncIterator[Staging]:
        """A place for a stream, which is gone at the end whatever happened."""
        taken: list[Staging] = []
        try:
            async with self._turns.of(segments):
                await self._take(_STORE, lambda job: self._work.begin(job, segments, words), taken)
            yield taken[0]
        finally:
            await self._give_up(taken, wait=True)

    async def head(self, scope: Scope, ref: str) -> ArtifactMeta | None:
        """What is known of an artifact, or ``None``; see `ArtifactStore.head`.

        Raises:
            IntegrityError: its ``meta.json`` is damaged.
        """
        now, segments = read_clock(self._clock), scope_segments(scope)
        return await self._run("look for an artifact", lambda job: self._work.head(job, segments, ref, now))

    async def get(self, scope: Scope, ref: str) -> Artifact | None:
        """An artifact with its verified payload, or ``None``; see `ArtifactStore.get`."""
        now, segments = read_clock(self._clock), scope_segments(scope)
        return await self._run(_READ, lambda job: self._work.get(job, segments, ref, now))

    @asynccontextmanager
    async def open(
        self, scope: Scope, ref: str, start: int = 0, end: int | None = None
    ) -> AsyncIterator[ArtifactReader | None]:
        """An artifact's payload, or a part of it; see `ArtifactStore.open`.

        The file is held open: what is deleted, evicted or put again meanwhile is read to its end all the same.

        Raises:
            IntegrityError: the artifact is damaged, as far as that can be told without reading it.
        """
        now, segments = read_clock(self._clock), scope_segments(scope)
        check_range(start, end, 0)
        taken: list[Held] = []
        metas: list[ArtifactMeta] = []

        def find(job: Job) -> Held | None:
            found = self._work.open(job, segments, ref, now)
            if found is None:
                return None
            metas.append(found[0])
            return found[1]

        try:
            await self._take(_READ, find, taken)
            if not taken:
                yield None
                return
            [file], [meta] = taken, metas
            first, last = check_range(start, end, meta.bytes)
            chunks = Chunks(meta, file, first, last, lambda work: self._run(_READ, lambda job: work()))
            yield ArtifactReader(meta, first, last, chunks)
        finally:
            await self._give_up(taken)

    async def delete(self, scope: Scope, ref: str) -> None:
        """Withdraw an artifact; see `ArtifactStore.delete`."""
        segments = scope_segments(scope)
        async with self._turns.of(segments):
            await self._run("delete an artifact", lambda job: self._work.delete(job, segments, ref))

    async def list(self, scope: Scope, *, cursor: str | None = None, limit: int = DEFAULT_LIMIT) -> Page:
        """A page of a scope's artifacts, newest first; see `ArtifactStore.list`. A damaged one is left out."""
        now, segments = read_clock(self._clock), scope_segments(scope)
        return await self._run("list artifacts", lambda job: self._work.page(job, segments, cursor, limit, now))

    async def sweep(self, scope: Scope | None = None, *, dry_run: bool = False) -> tuple[Swept, ...]:
        """Remove what has expired and what a crash left; see `ArtifactStore.sweep`.

        What cannot be read by anyone any more, for want of a payload or of a readable ``meta.json``, is an orphan too.
        A stream that is still being written is none. What was removed behind the store's back is noticed, and takes
        no room in the budgets any more.

        Raises:
            StoreUnavailable: some of it could not be swept; the rest was.
        """
        now = read_clock(self._clock)
        segments = None if scope is None else scope_segments(scope)
        return await self._run("sweep", lambda job: self._work.sweep(job, segments, now, dry_run=dry_run))

    async def usage(self) -> tuple[Usage, ...]:
        """What every scope holds, by kind: for an operator who wants to know what takes the room."""
        tally = await self._run("be measured", self._work.tally)
        return tuple(
            Usage(segments, kind, *found)
            for segments, kinds in sorted(tally.items())
            for kind, found in sorted(kinds.items())
        )

    async def __aenter__(self) -> Self:
        """Make the directory, or see that it is a store.

        Raises:
            StoreUnavailable: it can be neither.
        """

        def look(job: Job) -> None:
            with self._root.opened():
                pass

        await self._run("be opened", look)
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Nothing to close: between two operations the store holds nothing open."""

    async def _run(self, task: str, work: Callable[[Job], _T]) -> _T:
        """Do ``work`` in a thread. This is the one edge where errors of the system become the store's own."""

        def attempt(job: Job) -> _T:
            try:
                if not self._created:
                    self._root.create()
                    self._created = True
                return work(job)
            except StoreUnavailable:
                raise
            except OSError as error:
                raise self._unavailable(task, error) from None

        return await self._workers.run(attempt)

    async def _take(self, task: str, work: Callable[[Job], _H | None], taken: MutableSequence[_H]) -> None:
        """Do ``work`` that opens something, which is in ``taken`` then, and never lost: the caller gives it up."""

        def take(job: Job) -> None:
            held = work(job)
            if held is not None:
                taken.append(held)
                if job.abandoned:
                    held.give_up()

        await self._run(task, take)

    async def _give_up(self, taken: Sequence[Held], *, wait: bool = False) -> None:
        """Close what was taken, also where the caller is cancelled. What a thread still uses is closed by that thread.

        Args:
            wait: for that thread, too, for a while: a disk that hangs must not hold up who leaves.
        """
        for held in taken:
            if held.gone.is_set():
                continue

            def close(job: Job, held: Held = held) -> None:
                held.give_up()
                if wait:
                    held.gone.wait(_PATIENCE)

            with anyio.move_on_after(_PATIENCE, shield=True):
                try:
                    await self._workers.run(close)
                except StoreUnavailable:  # for want of threads
                    threading.Thread(target=held.give_up, daemon=True).start()

    def _unavailable(self, task: str, error: OSError) -> StoreUnavailable:
        # Neither the error's own text nor the error itself goes on: they hold names of tenants and principals.
        code = errno.errorcode.get(error.errno or 0, "unknown")
        return StoreUnavailable(f"the store in {self._root.path} cannot {task}: {error.strerror} ({code})")


def _settled(words: PutWords) -> PutWords:
    """The words of a stream that has ended: now it can be told what it is."""
    if isinstance(words.media_type, str):
        return words
    return msgspec.structs.replace(words, media_type=normalise_media_type(words.media_type()))


def _checked(path: str | os.PathLike[str]) -> Path:
    try:
        text = os.fspath(path)
    except TypeError:
        text = ""
    if isinstance(text, str) and "://" in text:
        raise ConfigurationError("path must name a directory; a URL goes to open_store, or to Boundary(store=...)")
    if not isinstance(text, str) or not text or "\0" in text:
        raise ConfigurationError(f"path must name a directory, not {path!r:.80}")
    return Path(text)
