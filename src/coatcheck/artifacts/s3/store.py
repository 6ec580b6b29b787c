"""The store on S3, verb by verb. What lies where, and why nothing is lost, is in `coatcheck.artifacts.s3.keys`."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import anyio
from anyio import to_thread
from anyio.lowlevel import RunVar, checkpoint

from coatcheck.artifacts.findings import Diagnosis
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
from coatcheck.artifacts.notices import Notices
from coatcheck.artifacts.paging import page_of
from coatcheck.artifacts.port import DEFAULT_LIMIT, ArtifactReader
from coatcheck.artifacts.ref import is_ref
from coatcheck.artifacts.retention import Retention, too_large
from coatcheck.artifacts.s3.body import Parts
from coatcheck.artifacts.s3.settings import MIB, S3Settings
from coatcheck.artifacts.usage import Usage
from coatcheck.artifacts.workers import Turns, Workers
from coatcheck.errors import ConfigurationError, StoreUnavailable
from coatcheck.scope import Scope, scope_segments

if TYPE_CHECKING:
    from coatcheck.artifacts.s3.operations import Operations

__all__ = ["S3Store"]


class S3Store:
    """An `ArtifactStore` in a bucket of an S3-compatible object store, for any number of replicas at once.

    It has to be opened: ``async with store:``, which a `Boundary` does, opens one client for all tasks of the event
    loop, on asyncio and on trio. The bucket must exist; it is never made here. Needs the extra ``s3``.

    What it promises does not depend on what a server promises. The same content is written again without harm, since
    a key names its content; keys carry generations of time, so that no sweep removes what a put has just made younger;
    and what a server does honour (conditions, checksums) is found out by asking it once, before the first put.

    A payload that is at hand goes to its key, in one request up to ``part_size``. A stream that is longer goes out part
    by part while it is made, in memory of ``part_size * (concurrency + 1)`` for a thousand parts, after which parts and
    memory grow; it may last a day. An artifact may say at most two kilobytes of itself (label, origin, some fifty
    parents).

    Budgets are best effort: they are counted by listing the scope after a put, other replicas put meanwhile, and what
    is younger than ``min_age`` is spared. A listing asks for the metadata of every artifact of its scope.

    Args:
        bucket: its name.
        prefix: what all keys begin with: segments of letters, digits, ``.``, ``_`` and ``-``, with slashes between.
        endpoint_url: of a server other than AWS; then the bucket stands in the path of URLs, not in the host's name.
        region: ``None``: by the usual chain; with an endpoint of its own, ``us-east-1``.
        access_key_id, secret_access_key, session_token: ``None``: by the usual chain (environment, profile, role).
        ca_bundle: a file of certificates to trust, in place of the usual ones.
        ttl: how long an artifact resolves after its last put; ``None``: until it is deleted or evicted. All replicas
            of a store have one, or none has.
        max_bytes: what the payloads of one scope may take together, in bytes; ``None`` is no limit.
        max_count: how many artifacts one scope may hold; ``None`` is no limit.
        min_age: what was put less long ago is not evicted by a budget.
        part_size: bytes of a part, at least 5 MiB. Parts double with every thousand.
        concurrency: how many parts of one stream are sent at once.
        connections: how many requests are under way at once, and how many readers are open.
        timeout: seconds for one request, its repetitions included; one that carries a body has a second more for every
            256 KiB.
        attempts: how often a request is tried in all.
        extra_put_args: for encryption, storage class and tags: ``ServerSideEncryption``, ``SSEKMSKeyId``,
            ``SSEKMSEncryptionContext``, ``BucketKeyEnabled``, ``StorageClass``, ``Tagging``, ``ACL``, ``CacheControl``.
        generation_seconds: how long a generation is; at least the ttl, which it is if nothing is said. It is fixed when
            the store is first put to.
        clock: what time it is, as an aware datetime. Replicas may differ by a tenth of a generation, or 15 minutes,
            whichever is less.

    Attributes:
        notices: what goes wrong behind a call, see `coatcheck.artifacts.notices`.

    Raises:
        ConfigurationError: naming the dial that cannot be honoured.
    """

    def __init__(
        self,
        bucket: str,
        *,
        prefix: str = "",
        endpoint_url: str | None = None,
        region: str | None = None,
        access_key_id: str | None = None,
        secret_access_key: str | None = None,
        session_token: str | None = None,
        ca_bundle: str | None = None,
        ttl: timedelta | None = None,
        max_bytes: int | None = None,
        max_count: int | None = None,
        min_age: timedelta = timedelta(minutes=15),
        part_size: int = 8 * MIB,
        concurrency: int = 4,
        connections: int = 64,
        timeout: float | timedelta = 30.0,
        attempts: int = 3,
        extra_put_args: Mapping[str, Any] | None = None,
        generation_seconds: int | None = None,
        clock: Clock = utc_now,
    ) -> None:
        self._settings = S3Settings.checked(
            bucket=bucket,
            prefix=prefix,
            endpoint_url=endpoint_url,
            region=region,
            access_key_id=access_key_id,
            secret_access_key=secret_access_key,
            session_token=session_token,
            ca_bundle=ca_bundle,
            ttl=ttl,
            max_bytes=max_bytes,
            max_count=max_count,
            min_age=min_age,
            part_size=part_size,
            concurrency=concurrency,
            connections=connections,
            timeout=timeout,
            attempts=attempts,
            extra_put_args=extra_put_args,
            generation_seconds=generation_seconds,
        )
        self.notices: Notices = Notices()
        self._clock = clock
        self._workers = Workers()
        self._turns = Turns()
        self._here: RunVar[_Here] = RunVar("coatcheck.artifacts.s3")

    @property
    def retention(self) -> Retention:
        """How long, how much and how many, as it was set."""
        return self._settings.retention

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
        self._check_size(len(request.data))
        return await self._open_here().puts.put(segments, request.words, [request.data])

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

        Parts are sent while the source makes more of it, and hashed in a worker thread beside that. A stream that ends
        within its first part is a `put`. A caller that is cancelled while the end is made visible is held up until that
        is known, for a few requests at most.
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
        puts = self._open_here().puts
        return await puts.stream(segments, words, Parts(source, self._check_size))

    def _check_size(self, size: int) -> None:
        """Refuse what is more than the whole budget before anything is done for it."""
        most = self._settings.retention.max_bytes
        if most is not None and size > most:
            raise too_large(size, self._settings.retention)

    async def head(self, scope: Scope, ref: str) -> ArtifactMeta | None:
        """What is known of an artifact, or ``None``; see `ArtifactStore.head`.

        Raises:
            IntegrityError: the object under its key does not say what it is.
        """
        now, segments = read_clock(self._clock), scope_segments(scope)
        return await self._open_here().head(segments, ref, now)

    async def get(self, scope: Scope, ref: str) -> Artifact | None:
        """An artifact with its verified payload, or ``None``; see `ArtifactStore.get`."""
        now, segments = read_clock(self._clock), scope_segments(scope)
        return await self._open_here().get(segments, ref, now)

    @asynccontextmanager
    async def open(
        self, scope: Scope, ref: str, start: int = 0, end: int | None = None
    ) -> AsyncIterator[ArtifactReader | None]:
        """An artifact's payload, or a part of it; see `ArtifactStore.open`.

        It is one request, until its connection breaks: then it goes on where it was. What is deleted or swept meanwhile
        ends with an error.
        """
        now, segments = read_clock(self._clock), scope_segments(scope)
        check_range(start, end, 0)
        async with self._open_here().open(segments, ref, start, end, now) as reader:
            yield reader

    async def delete(self, scope: Scope, ref: str) -> None:
        """Withdraw an artifact; see `ArtifactStore.delete`."""
        now, segments = read_clock(self._clock), scope_segments(scope)
        opened = self._open_here()
        if is_ref(ref):
            await opened.delete(segments, ref, now)
        else:
            await checkpoint()

    async def list(self, scope: Scope, *, cursor: str | None = None, limit: int = DEFAULT_LIMIT) -> Page:
        """A page of a scope's artifacts, newest first; see `ArtifactStore.list`.

        S3 lists by key, so every page looks at all artifacts of the scope. What does not say what it is is left out.
        """
        now, segments = read_clock(self._clock), scope_segments(scope)
        return page_of(await self._open_here().living(segments, now), cursor, limit)

    async def sweep(self, scope: Scope | None = None, *, dry_run: bool = False) -> tuple[Swept, ...]:
        """Remove what has expired and what a crash left; see `ArtifactStore.sweep`.

        What has expired goes when its generation is over, which is up to one generation later. Data objects that
        nothing names, and uploads that nobody ended, go after a day.

        Raises:
            StoreUnavailable: some of it could not be swept; the rest was.
        """
        now = read_clock(self._clock)
        segments = None if scope is None else scope_segments(scope)
        return await self._open_here().sweep(segments, now, dry_run=dry_run)

    async def usage(self) -> tuple[Usage, ...]:
        """What every scope holds, by kind: for an operator who wants to know what takes the room. One request each."""
        return await self._open_here().usage()

    async def probe(self) -> Diagnosis:
        """Find out what the server really does, by doing it; ``coatcheck doctor`` prints it.

        The store need not be open: it tells why it cannot be opened, too. All that is made lies in a folder of its own
        below the prefix, and is removed in the end, also where the caller is cancelled. It takes a few seconds.

        Raises:
            ConfigurationError: the extra is missing, or a setting of the environment cannot be honoured.
        """
        examine = await to_thread.run_sync(_load_doctor)  # which imports botocore, and blocks
        diagnosis: Diagnosis = await examine(self._settings)
        return diagnosis

    async def __aenter__(self) -> Self:
        """Open the client, and see that bucket and settings fit. It may be opened again inside: the first one counts.

        Raises:
            ConfigurationError: the extra is missing, or a setting does not fit the store that is there.
            StoreUnavailable: the bucket cannot be asked; the text says why, and what to do.
        """
        here = self._here.get(None)
        if here is None:
            here = _Here()
            self._here.set(here)
        async with here.turn:
            if here.users == 0:
                here.operations = await self._enter(here.stack)
            here.users += 1
        return self

    async def _enter(self, stack: AsyncExitStack) -> Operations:
        make = await to_thread.run_sync(_load)  # which imports botocore, and blocks
        return await stack.enter_async_context(
            make(self._settings, self._clock, self._workers, self._turns, self.notices)
        )

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close it. Artifacts stay where they are."""
        here = self._here.get(None)
        if here is None:
            return
        with anyio.CancelScope(shield=True):
            async with here.turn:
                here.users -= 1
                if here.users == 0:
                    here.operations = None
                    await here.stack.aclose()

    def _open_here(self) -> Operations:
        here = self._here.get(None)
        if here is None or here.operations is None:
            raise StoreUnavailable(
                "the S3 store is not open: use it inside of `async with store:`, or of its boundary's"
            )
        return here.operations


class _Here:
    """The store on one event loop."""

    def __init__(self) -> None:
        self.turn = anyio.Lock()
        self.users = 0
        self.stack = AsyncExitStack()
        self.operations: Operations | None = None


def _load() -> Any:
    try:
        from coatcheck.artifacts.s3.operations import opened_operations
    except ImportError as error:
        raise ConfigurationError(
            f"a store on S3 needs the extra s3: install coatcheck[s3] ({error.name} is missing)"
        ) from None
    return opened_operations


def _load_doctor() -> Any:
    _load()  # which says what is missing
    from coatcheck.artifacts.s3.doctor.examine import examine

    return examine
