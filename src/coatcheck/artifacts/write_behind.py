"""Write-behind: a put that returns as soon as the artifact has its name, while the upload goes on.

What flies, and what becomes of it, is in `coatcheck.artifacts.flights`.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime, timedelta
from types import TracebackType
from typing import Self

import anyio
import msgspec
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from coatcheck.artifacts.flights import Flights, wait_for
from coatcheck.artifacts.meta import (
    Artifact,
    ArtifactMeta,
    Clock,
    MediaType,
    Page,
    PutResult,
    Swept,
    check_put,
    check_range,
    check_words,
    read_clock,
    utc_now,
)
from coatcheck.artifacts.notices import Notices, UploadFailed
from coatcheck.artifacts.port import DEFAULT_LIMIT, ArtifactReader, ArtifactStore
from coatcheck.artifacts.ref import digest_of
from coatcheck.artifacts.retention import Retention, is_expired, resolve_expires_at, too_large
from coatcheck.artifacts.usage import Usage
from coatcheck.artifacts.workers import Workers
from coatcheck.errors import ConfigurationError, StoreUnavailable
from coatcheck.scope import Scope, check_scope
from coatcheck.settings import check_duration, check_whole

__all__ = ["WriteBehind"]

_MIB = 1 << 20
# A thread's turn costs as much as hashing so much, and many times that on a busy machine: the put would wait for it.
_HASHED_INLINE = _MIB


class WriteBehind:
    """An `ArtifactStore` around another: a put returns when the artifact has its ref, and is uploaded meanwhile.

    Off unless you wrap a store: ``Boundary(store=WriteBehind(S3Store(...)), ...)``. It takes the upload's time out of
    every call whose result is placed, and that costs three promises:

    * **Not durable until flushed.** The death of the process loses what is in flight.
    * **Not visible elsewhere until flushed**: to other replicas, other processes, or through the inner store itself.
    * **It may fail after its ticket was handed out.** Then there is a notice (`coatcheck.StoreUploadFailed` among a
      boundary's events), a line in the log, and whoever reads the ref through this store gets `StoreUnavailable`, which
      says why, until a later put of it succeeds or it is deleted. The last 1024 failures are remembered. For other
      replicas the artifact is not there.

    Within this store all else is as ever. Refs are the inner store's. A read of what is in flight waits for it, as do a
    delete, a listing of its scope, and the upload of an artifact that names it as a parent. An upload goes on when the
    call that began it is cancelled.

    **What a put returns is what can be known without a request:**

    * ``created`` is False where the same content is in flight, and else True, although the store may have it. Label,
      origin, parents, creation time and expiry are this put's own; where the store has the content already, the first
      put's stand, as `head` tells. The store itself creates an artifact, and counts its ttl, when it is uploaded: a
      little later.
    * ``expires_at`` counts the ttl where the store says its ``retention``, as those of coatcheck do (one with
      generations may state up to a tenth of the ttl less). Of another store it is what the put asked for, and the
      store may make it sooner.
    * ``swept`` is what earlier uploads in the same scope have forced out: an eviction is told by the next put there.
      What no put has told is a line in the log, at the closing.
    * A payload that is larger than the whole budget is refused at once where the store says its ``retention``. What
      else only the store can judge is a failed upload.

    `put_stream` and `sweep` are the inner store's own: the ref of a stream is known at its end, so there is nothing to
    return sooner. A stream waits for its parents that are in flight.

    Open it once, for the lifetime of the server; the task that opens it closes it, and may open it again in between.

    Args:
        store: the inner store; it is opened and closed with this one.
        max_bytes_in_flight: what payloads in flight may take together, in bytes. A put for which there is no room waits
            for it, in turn; a payload larger than that goes alone. More than 1024 are never in flight, however small.
        concurrency: how many uploads run at once.
        flush_timeout: how long closing waits for what is in flight, in seconds or as a `timedelta`. What has not ended
            then is given up, and told as every failed upload is.
        clock: what time it is, as an aware datetime: as the inner store has it.

    Attributes:
        notices: where failed uploads are told, and what the inner store has to tell.

    Raises:
        ConfigurationError: naming the setting that cannot be honoured.
    """

    def __init__(
        self,
        store: ArtifactStore,
        *,
        max_bytes_in_flight: int = 64 * _MIB,
        concurrency: int = 32,
        flush_timeout: float | timedelta = 30.0,
        clock: Clock = utc_now,
    ) -> None:
        if isinstance(store, type) or not isinstance(store, ArtifactStore):
            given = f"the class {store.__name__}" if isinstance(store, type) else type(store).__name__
            raise ConfigurationError(
                f"WriteBehind(store) must be an ArtifactStore, not {given}; see open_store for a URL"
            )
        self._store = store
        self._clock = clock
        self._flush_timeout = check_duration("WriteBehind(flush_timeout=...)", flush_timeout)
        self.notices: Notices = Notices()
        self._flights = Flights(
            store,
            self.notices,
            check_whole("WriteBehind(max_bytes_in_flight=...)", max_bytes_in_flight),
            check_whole("WriteBehind(concurrency=...)", concurrency),
        )
        self._workers = Workers()
        self._opener: int | None = None
        self._depth = 0
        self._lifespan = AsyncExitStack()
        self._tasks: TaskGroup | None = None

    @property
    def retention(self) -> Retention | None:
        """The inner store's, where it says it."""
        retention = getattr(self._store, "retention", None)
        return retention if isinstance(retention, Retention) else None

    @property
    def usage(self) -> Callable[[], Awaitable[Sequence[Usage]]]:
        """The inner store's count of what it holds, once all has landed. A store without one has no such attribute."""
        inner: Callable[[], Awaitable[Sequence[Usage]]] = self._store.usage  # type: ignore[attr-defined]  # not of the port

        async def usage() -> Sequence[Usage]:
            await self.flush()
            return await inner()

        return usage

    # --- putting ---

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
        """Name a payload, and have it stored; see `ArtifactStore.put`, and the class for what the result says.

        Raises:
            StoreUnavailable: this store is not open, or is being closed.
        """
        check_scope(scope)
        self._check_open()
        self._flights.check_taking()
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
        data, words, size = request.data, request.words, len(request.data)
        retention = self.retention
        if retention is not None and retention.max_bytes is not None and size > retention.max_bytes:
            raise too_large(size, retention)
        digest = await self._digest(data)
        if words.parents:
            await self._flights.check_parents(scope, words.parents, read_clock(self._clock))
        ref = words.meta(digest, size, read_clock(self._clock), None).ref
        room = await self._flights.take_room(scope, ref, size)
        # No `await` from here on: what returns is in flight, and what raises has left nothing.
        try:
            now = read_clock(self._clock)
            meta = words.meta(digest, size, now, resolve_expires_at(words.expires_at, retention, now))
        except BaseException:
            if room:
                self._flights.give_room(size)
            raise
        meta, created = self._flights.launch(scope, data, meta, words, room=room)
        return PutResult(_detached(meta), created, self._flights.evicted(scope, ref))

    async def _digest(self, data: bytes) -> str:
        if len(data) > _HASHED_INLINE:
            return await self._workers.digest(data)
        await checkpoint()
        return digest_of(data)

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
        """The inner store's `ArtifactStore.put_stream`, after parents that are in flight."""
        check_scope(scope)
        self._check_open()
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
        await wait_for(self._flights.ends(scope, words.parents))
        result = await self._store.put_stream(
            scope,
            source,
            kind=kind,
            media_type=media_type,
            label=label,
            expires_at=expires_at,
            origin=origin,
            parents=parents,
        )
        self._flights.forget(scope, result.meta.ref)
        return msgspec.structs.replace(result, swept=(*self._flights.evicted(scope, result.meta.ref), *result.swept))

    # --- reading ---

    async def _landed(self, scope: Scope, ref: object) -> None:
        """Wait for the puts of a ref that are owed now."""
        check_scope(scope)
        self._check_open()
        await wait_for(self._flights.ends(scope, [ref]))

    def _check_missing(self, scope: Scope, ref: object) -> None:
        """Say of what the store does not have that its upload failed, where that is so, and until it had expired."""
        failed = self._flights.failure(scope, ref)
        if failed is not None and not is_expired(failed[1], read_clock(self._clock)):
            raise StoreUnavailable(
                f"{failed[0].ref} was put here, but its upload failed, and the store does not have it "
                f"({failed[0].detail}): put it again"
            )

    async def flush(self) -> tuple[UploadFailed, ...]:
        """Wait until everything that is in flight now has been stored, or has failed.

        Returns:
            What failed among it; each was told as a notice, too.
        """
        self._check_open()
        puts = self._flights.puts()
        await wait_for([put.ended for put in puts])
        return tuple(put.failure for put in puts if put.failure is not None)

    async def head(self, scope: Scope, ref: str) -> ArtifactMeta | None:
        """What is known of an artifact, or ``None``; see `ArtifactStore.head`. Waits for what is in flight.

        Raises:
            StoreUnavailable: its upload failed.
        """
        await self._landed(scope, ref)
        meta = await self._store.head(scope, ref)
        if meta is None:
            self._check_missing(scope, ref)
        return meta

    async def get(self, scope: Scope, ref: str) -> Artifact | None:
        """An artifact with its payload, or ``None``; see `ArtifactStore.get`. Waits for what is in flight.

        Raises:
            StoreUnavailable: its upload failed.
        """
        await self._landed(scope, ref)
        artifact = await self._store.get(scope, ref)
        if artifact is None:
            self._check_missing(scope, ref)
        return artifact

    @asynccontextmanager
    async def open(
        self, scope: Scope, ref: str, start: int = 0, end: int | None = None
    ) -> AsyncIterator[ArtifactReader | None]:
        """An artifact's payload, or a part of it; see `ArtifactStore.open`. Waits for what is in flight.

        Raises:
            StoreUnavailable: its upload failed.
        """
        check_range(start, end, 0)
        await self._landed(scope, ref)
        async with self._store.open(scope, ref, start, end) as reader:
            if reader is None:
                self._check_missing(scope, ref)
            yield reader

    async def delete(self, scope: Scope, ref: str) -> None:
        """Withdraw an artifact once it has landed; see `ArtifactStore.delete`. That its upload failed is forgotten."""
        await self._landed(scope, ref)
        await self._store.delete(scope, ref)
        self._flights.forget(scope, ref)

    async def list(self, scope: Scope, *, cursor: str | None = None, limit: int = DEFAULT_LIMIT) -> Page:
        """A page of a scope's artifacts; see `ArtifactStore.list`. Waits for what is in flight there.

        What could not be uploaded is not listed.
        """
        check_scope(scope)
        self._check_open()
        await wait_for([put.ended for put in self._flights.puts(scope)])
        return await self._store.list(scope, cursor=cursor, limit=limit)

    async def sweep(self, scope: Scope | None = None, *, dry_run: bool = False) -> tuple[Swept, ...]:
        """The inner store's `ArtifactStore.sweep`, as things are there now."""
        self._check_open()
        return await self._store.sweep(scope, dry_run=dry_run)

    # --- opening and closing ---

    def _check_open(self) -> None:
        if not self._depth:
            raise StoreUnavailable(
                "WriteBehind is not open: use it inside `async with store:`, or through an open boundary"
            )

    async def __aenter__(self) -> Self:
        """Open the inner store, and take what is put.

        Raises:
            ConfigurationError: another task has it open.
        """
        task = anyio.get_current_task().id
        if self._opener not in (None, task):
            raise ConfigurationError(
                "this WriteBehind is open in another task already; open it once, for the lifetime of the server"
            )
        if not self._depth:
            self._opener = task
            try:
                await self._begin()
            except BaseException:
                self._opener = None
                raise
        self._depth += 1
        return self

    async def _begin(self) -> None:
        async with AsyncExitStack() as stack:
            notices = getattr(self._store, "notices", None)
            if isinstance(notices, Notices):  # until after the closing, which may have some to tell
                stack.callback(notices.listen(self.notices.tell))
            await stack.enter_async_context(self._store)
            tasks = anyio.create_task_group()
            await tasks.__aenter__()
            self._tasks = tasks
            self._flights.open(tasks)
            self._lifespan = stack.pop_all()

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Take nothing any more, wait for what is in flight as long as ``flush_timeout``, and close the inner store.

        A cancellation does not make the wait shorter.
        """
        if self._depth > 1 or self._tasks is None:
            self._depth = max(0, self._depth - 1)
            return
        tasks, self._tasks = self._tasks, None
        try:
            try:
                await self._flights.close(self._flush_timeout)
            finally:
                # Without the error, of which a task group would make a group; there is no task left to be cancelled.
                await tasks.__aexit__(None, None, None)
        finally:
            self._depth, self._opener = 0, None
            await self._lifespan.__aexit__(exc_type, exc, traceback)


def _detached(meta: ArtifactMeta) -> ArtifactMeta:
    """``meta`` for a caller, who may change the one field that can be changed."""
    return meta if meta.origin is None else msgspec.structs.replace(meta, origin=dict(meta.origin))
