"""A store that fails or hangs on demand, with the same port outside and inside."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from types import TracebackType
from typing import NoReturn, Self, TypeVar

import anyio
import msgspec

from coatcheck.artifacts.meta import Artifact, ArtifactMeta, MediaType, Page, PutResult, Swept
from coatcheck.artifacts.port import DEFAULT_LIMIT, ArtifactReader, ArtifactStore
from coatcheck.errors import ConfigurationError
from coatcheck.scope import Scope
from coatcheck.settings import check_whole

__all__ = ["Fault", "FaultyStore", "fail", "hang"]

_T = TypeVar("_T")
_CHUNKED = ("put_stream", "open")


class Fault(msgspec.Struct, frozen=True):
    """What happens to the calls of one verb; see `fail` and `hang`.

    Attributes:
        error: what is raised; ``None``: the call hangs until it is cancelled.
        first, last: which calls it happens to, counted from 1; ``last=None`` is every one from ``first`` on.
        after: how many chunks pass before it happens; ``None``: it happens before anything is done.
    """

    error: Exception | None
    first: int = 1
    last: int | None = None
    after: int | None = None

    def strikes(self, call: int) -> bool:
        """Whether it happens to the verb's ``call``-th call."""
        return self.first <= call and (self.last is None or call <= self.last)


def fail(error: Exception, *, calls: int | None = None, nth: int | None = None, after: int | None = None) -> Fault:
    """Raise ``error`` instead of doing anything.

    Args:
        error: for example ``StoreUnavailable("503")``, or an error that no store should raise.
        calls: only for the first so many calls; then it works.
        nth: only for this one call, counted from 1.
        after: for ``put_stream`` and ``open``: not at once, but when so many chunks have been taken, or read, and
            one more is asked for. What has fewer chunks is not struck.

    Raises:
        ConfigurationError: ``calls`` or ``nth`` is no positive whole number, or ``after`` is no whole number.
        ValueError: both ``calls`` and ``nth`` are given.
    """
    if nth is not None:
        if calls is not None:
            raise ValueError("say calls= or nth=, not both")
        return Fault(error, check_whole("nth", nth), nth, _checked_after(after))
    return Fault(error, last=None if calls is None else check_whole("calls", calls), after=_checked_after(after))


def hang(*, calls: int | None = None, after: int | None = None) -> Fault:
    """Wait for ever instead of doing anything, or for the first ``calls`` calls only.

    Args:
        calls, after: as for `fail`.

    Raises:
        ConfigurationError: ``calls`` is no positive whole number, or ``after`` is no whole number.
    """
    return Fault(None, last=None if calls is None else check_whole("calls", calls), after=_checked_after(after))


def _checked_after(after: int | None) -> int | None:
    return None if after is None else check_whole("after", after, least=0)


class FaultyStore:
    """An `ArtifactStore` around another, with faults by verb: ``FaultyStore(MemoryStore(), put=fail(error))``.

    A call that a fault strikes never reaches the inner store, unless the fault strikes ``after`` some chunks: then
    the inner store meets a source that fails or hangs, and a reader gives the chunks before the fault.

    Args:
        store: the one that does the work.
        put, put_stream, head, get, open, delete, list, sweep, enter: the fault of each verb; ``enter`` is
            ``__aenter__``.

    Attributes:
        calls: how often each verb was called so far, struck or not; ``open`` counts when it is entered.

    Raises:
        ConfigurationError: a fault is to strike after some chunks of a verb that has none.
    """

    def __init__(
        self,
        store: ArtifactStore,
        *,
        put: Fault | None = None,
        put_stream: Fault | None = None,
        head: Fault | None = None,
        get: Fault | None = None,
        open: Fault | None = None,
        delete: Fault | None = None,
        list: Fault | None = None,
        sweep: Fault | None = None,
        enter: Fault | None = None,
    ) -> None:
        self._store = store
        self._faults: Mapping[str, Fault | None] = {
            "put": put,
            "put_stream": put_stream,
            "head": head,
            "get": get,
            "open": open,
            "delete": delete,
            "list": list,
            "sweep": sweep,
            "enter": enter,
        }
        for verb, fault in self._faults.items():
            if fault is not None and fault.after is not None and verb not in _CHUNKED:
                raise ConfigurationError(f"{verb} has no chunks that a fault could strike after")
        self.calls: Counter[str] = Counter()

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
        """`ArtifactStore.put`, unless the fault strikes."""
        return await self._pass(
            "put",
            lambda: self._store.put(
                scope,
                data,
                kind=kind,
                media_type=media_type,
                label=label,
                expires_at=expires_at,
                origin=origin,
                parents=parents,
            ),
        )

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
        """`ArtifactStore.put_stream`, unless the fault strikes."""
        fault = await self._struck("put_stream")
        return await self._store.put_stream(
            scope,
            source if fault is None else _Until(fault, source),
            kind=kind,
            media_type=media_type,
            label=label,
            expires_at=expires_at,
            origin=origin,
            parents=parents,
        )

    async def head(self, scope: Scope, ref: str) -> ArtifactMeta | None:
        """`ArtifactStore.head`, unless the fault strikes."""
        return await self._pass("head", lambda: self._store.head(scope, ref))

    async def get(self, scope: Scope, ref: str) -> Artifact | None:
        """`ArtifactStore.get`, unless the fault strikes."""
        return await self._pass("get", lambda: self._store.get(scope, ref))

    @asynccontextmanager
    async def open(
        self, scope: Scope, ref: str, start: int = 0, end: int | None = None
    ) -> AsyncIterator[ArtifactReader | None]:
        """`ArtifactStore.open`, unless the fault strikes."""
        fault = await self._struck("open")
        async with self._store.open(scope, ref, start, end) as reader:
            if reader is None or fault is None:
                yield reader
            else:
                yield ArtifactReader(reader.meta, reader.start, reader.end, _Until(fault, reader))

    async def delete(self, scope: Scope, ref: str) -> None:
        """`ArtifactStore.delete`, unless the fault strikes."""
        await self._pass("delete", lambda: self._store.delete(scope, ref))

    async def list(self, scope: Scope, *, cursor: str | None = None, limit: int = DEFAULT_LIMIT) -> Page:
        """`ArtifactStore.list`, unless the fault strikes."""
        return await self._pass("list", lambda: self._store.list(scope, cursor=cursor, limit=limit))

    async def sweep(self, scope: Scope | None = None, *, dry_run: bool = False) -> tuple[Swept, ...]:
        """`ArtifactStore.sweep`, unless the fault strikes."""
        return await self._pass("sweep", lambda: self._store.sweep(scope, dry_run=dry_run))

    async def __aenter__(self) -> Self:
        """Open the inner store, unless the fault strikes."""
        await self._pass("enter", self._store.__aenter__)
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the inner store."""
        await self._store.__aexit__(exc_type, exc, traceback)

    async def _pass(self, verb: str, call: Callable[[], Awaitable[_T]]) -> _T:
        await self._struck(verb)
        return await call()

    async def _struck(self, verb: str) -> Fault | None:
        """Let the verb's fault strike this call, or return it where it is to strike later, after some chunks."""
        self.calls[verb] += 1
        fault = self._faults[verb]
        if fault is None or not fault.strikes(self.calls[verb]):
            return None
        if fault.after is None:
            await _happen(fault)
        return fault


async def _happen(fault: Fault) -> NoReturn:
    if fault.error is not None:
        raise fault.error
    await anyio.sleep_forever()
    raise AssertionError("for ever is over")


class _Until:
    """``chunks``, until the fault strikes; it does not where there are fewer than ``fault.after``."""

    def __init__(self, fault: Fault, chunks: AsyncIterable[bytes]) -> None:
        self._fault = fault
        self._chunks = aiter(chunks)
        self._left = fault.after or 0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if not self._left:
            await _happen(self._fault)
        chunk = await anext(self._chunks)
        self._left -= 1
        return chunk
