"""A store that fails or hangs on demand, with the same port outside and inside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Self, TypeVar

import anyio
import msgspec

from coatcheck.artifacts.meta import Artifact, ArtifactMeta, Page, PutResult, Swept
from coatcheck.artifacts.port import DEFAULT_LIMIT, ArtifactStore
from coatcheck.scope import Scope
from coatcheck.settings import check_whole

__all__ = ["Fault", "FaultyStore", "fail", "hang"]

_T = TypeVar("_T")


class Fault(msgspec.Struct, frozen=True):
    """What happens to the calls of one verb; see `fail` and `hang`.

    Attributes:
        error: what is raised; ``None``: the call hangs until it is cancelled.
        first, last: which calls it happens to, counted from 1; ``last=None`` is every one from ``first`` on.
    """

    error: Exception | None
    first: int = 1
    last: int | None = None

    def strikes(self, call: int) -> bool:
        """Whether it happens to the verb's ``call``-th call."""
        return self.first <= call and (self.last is None or call <= self.last)


def fail(error: Exception, *, calls: int | None = None, nth: int | None = None) -> Fault:
    """Raise ``error`` instead of doing anything.

    Args:
        error: for example ``StoreUnavailable("503")``, or an error that no store should raise.
        calls: only for the first so many calls; then it works.
        nth: only for this one call, counted from 1.

    Raises:
        ConfigurationError: ``calls`` or ``nth`` is no positive whole number.
        ValueError: both are given.
    """
    if nth is not None:
        if calls is not None:
            raise ValueError("say calls= or nth=, not both")
        return Fault(error, check_whole("nth", nth), nth)
    return Fault(error, last=None if calls is None else check_whole("calls", calls))


def hang(*, calls: int | None = None) -> Fault:
    """Wait for ever instead of doing anything, or for the first ``calls`` calls only.

    Raises:
        ConfigurationError: ``calls`` is no positive whole number.
    """
    return Fault(None, last=None if calls is None else check_whole("calls", calls))


class FaultyStore:
    """An `ArtifactStore` around another, with faults by verb: ``FaultyStore(MemoryStore(), put=fail(error))``.

    A call that a fault strikes never reaches the inner store.

    Args:
        store: the one that does the work.
        put, head, get, delete, list, sweep, enter: the fault of each verb; ``enter`` is ``__aenter__``.

    Attributes:
        calls: how often each verb was called so far, struck or not.
    """

    def __init__(
        self,
        store: ArtifactStore,
        *,
        put: Fault | None = None,
        head: Fault | None = None,
        get: Fault | None = None,
        delete: Fault | None = None,
        list: Fault | None = None,
        sweep: Fault | None = None,
        enter: Fault | None = None,
    ) -> None:
        self._store = store
        self._faults: Mapping[str, Fault | None] = {
            "put": put,
            "head": head,
            "get": get,
            "delete": delete,
            "list": list,
            "sweep": sweep,
            "enter": enter,
        }
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

    async def head(self, scope: Scope, ref: str) -> ArtifactMeta | None:
        """`ArtifactStore.head`, unless the fault strikes."""
        return await self._pass("head", lambda: self._store.head(scope, ref))

    async def get(self, scope: Scope, ref: str) -> Artifact | None:
        """`ArtifactStore.get`, unless the fault strikes."""
        return await self._pass("get", lambda: self._store.get(scope, ref))

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
        self.calls[verb] += 1
        fault = self._faults[verb]
        if fault is not None and fault.strikes(self.calls[verb]):
            if fault.error is None:
                await anyio.sleep_forever()
            else:
                raise fault.error
        return await call()
