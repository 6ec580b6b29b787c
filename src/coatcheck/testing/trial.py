"""What a case of the conformance battery works with: stores, a clock, a hand on the data, and words to state a law."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Self, TypeVar

import msgspec

from coatcheck.artifacts.meta import Artifact, PutResult
from coatcheck.artifacts.port import ArtifactStore
from coatcheck.scope import Scope

__all__ = [
    "HOME",
    "Case",
    "Hook",
    "MakeStore",
    "ManualClock",
    "NotApplicable",
    "Overwrite",
    "Reopen",
    "Source",
    "Trial",
    "Violation",
    "check",
    "expect",
    "expires",
    "left_nothing",
    "listed",
    "opened",
    "put",
    "put_source",
    "read",
    "refuses",
    "stream",
]

HOME = Scope(tenant="acme", principal="dana", conversation="c-42")
"""The scope of a case that needs only one."""

_E = TypeVar("_E", bound=Exception)
_T = TypeVar("_T")


MakeStore = Callable[..., ArtifactStore]
"""Makes a store for one case: new, empty, and not yet opened.

It is called with some of ``clock``, ``ttl`` (a timedelta), ``max_bytes`` and ``max_count``, by keyword, as every store
of ours takes them. What is not given is not limited, or limited by the store's own defaults.
"""

Hook = Callable[[ArtifactStore, Scope, str], Awaitable[None]]
"""A hand on the data behind a store's back: does something to the payload of one artifact."""

Overwrite = Callable[[ArtifactStore, Scope, str, bytes], Awaitable[None]]
"""A hand on the data behind a store's back: puts other bytes, of another length, in the place of one payload."""

Reopen = Callable[[ArtifactStore], ArtifactStore]
"""Makes a second store, not yet opened, over the data of the first, as another process would see it."""


class Violation(AssertionError):
    """A store broke the law of a case."""


class NotApplicable(Exception):
    """A case cannot be tried on this store; the text says for want of what."""


class ManualClock:
    """A clock that moves when it is told to.

    Args:
        start: an aware datetime.
    """

    def __init__(self, start: datetime = datetime(2031, 1, 2, 3, 4, 5, tzinfo=UTC)) -> None:
        self.now: datetime = start

    def __call__(self) -> datetime:
        """The time it is set to."""
        return self.now

    def advance(self, seconds: float) -> datetime:
        """Move on by ``seconds``, and say what time it is."""
        self.now += timedelta(seconds=seconds)
        return self.now


class Case(msgspec.Struct, frozen=True):
    """One law, and the function that tries whether a store keeps it.

    Attributes:
        id: its name, for `check_store` and for reports.
        law: one sentence.
        run: raises `Violation` or `NotApplicable`, or returns.
    """

    id: str
    law: str
    run: Callable[[Trial], Awaitable[None]]


class Trial:
    """One run of one case.

    Attributes:
        clock: the clock of every store that this trial makes.
    """

    def __init__(
        self,
        make: MakeStore,
        *,
        corrupt: Hook | None,
        unlink: Hook | None,
        overwrite: Overwrite | None,
        reopen: Reopen | None,
    ) -> None:
        self.clock: ManualClock = ManualClock()
        self._make = make
        self._corrupt = corrupt
        self._unlink = unlink
        self._overwrite = overwrite
        self._reopen = reopen
        self._stack = AsyncExitStack()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Close at the end whatever the trial opened."""
        async with self._stack:
            yield

    async def store(self, *, ttl: float | None = None, **budgets: int) -> ArtifactStore:
        """A new, empty, open store; ``ttl`` is in seconds."""
        options: dict[str, Any] = dict(budgets)
        if ttl is not None:
            options["ttl"] = timedelta(seconds=ttl)
        return await self._stack.enter_async_context(self._make(clock=self.clock, **options))

    async def reopened(self, store: ArtifactStore) -> ArtifactStore:
        """A second open store over the same data."""
        reopen = _given(self._reopen, "reopen", "a second store over the same data")
        return await self._stack.enter_async_context(reopen(store))

    async def beside(self, store: ArtifactStore) -> ArtifactStore:
        """A second open store over the same data where one can be had, else the same store."""
        return store if self._reopen is None else await self.reopened(store)

    async def corrupt(self, store: ArtifactStore, scope: Scope, ref: str) -> None:
        """Change the stored payload behind the store's back."""
        await _given(self._corrupt, "corrupt", "a hand on the stored payload")(store, scope, ref)

    async def unlink(self, store: ArtifactStore, scope: Scope, ref: str) -> None:
        """Remove the stored payload behind the store's back."""
        await _given(self._unlink, "unlink", "a hand on the stored payload")(store, scope, ref)

    async def overwrite(self, store: ArtifactStore, scope: Scope, ref: str, data: bytes) -> None:
        """Put ``data`` in the place of the stored payload behind the store's back."""
        await _given(self._overwrite, "overwrite", "a hand on the stored payload")(store, scope, ref, data)


class Source:
    """The source of a stream: gives its chunks, one each time it is asked.

    Args:
        chunks: what it gives.
        before: called each time it is asked, with the number of times it was asked before; the last call, with the
            number of the chunks, is where it ends. What this raises, the source raises.

    Attributes:
        asked: how often it was asked.
        ended: whether it said that it has ended.
    """

    def __init__(self, *chunks: Any, before: Callable[[int], Awaitable[object]] | None = None) -> None:
        self.asked: int = 0
        self.ended: bool = False
        self._chunks = chunks
        self._before = before

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        index = self.asked
        self.asked += 1
        if self._before is not None:
            await self._before(index)
        if index >= len(self._chunks):
            self.ended = True
            raise StopAsyncIteration
        return self._chunks[index]


def check(holds: object, otherwise: str) -> None:
    """State what must hold.

    Raises:
        Violation: it does not; ``otherwise`` says what was seen.
    """
    if not holds:
        raise Violation(otherwise)


def expect(what: str, seen: object, wanted: object) -> None:
    """State what must be equal.

    Raises:
        Violation: it is not.
    """
    if seen != wanted:  # and no `check`, which would spell out every payload, also one that is right
        raise Violation(f"{what}: expected {wanted!r:.300}, got {seen!r:.300}")


async def refuses(error: type[_E], call: Awaitable[object], what: str) -> _E:
    """State that a call must raise, and return what it raised.

    Raises:
        Violation: it raised something else, or returned.
    """
    try:
        await call
    except error as raised:
        return raised
    except Exception as raised:
        raise Violation(f"{what}: expected {error.__name__}, got {type(raised).__name__}: {raised}") from raised
    raise Violation(f"{what}: expected {error.__name__}, and it was accepted")


async def put(store: ArtifactStore, data: bytes = b"payload", *, scope: Scope = HOME, **words: Any) -> PutResult:
    """Put with words that do not matter to the case."""
    return await store.put(scope, data, **{"kind": "test/item", "media_type": "text/plain", **words})


async def stream(
    store: ArtifactStore,
    *chunks: Any,
    before: Callable[[int], Awaitable[object]] | None = None,
    scope: Scope = HOME,
    **words: Any,
) -> PutResult:
    """As `put`, of a stream of these chunks; ``before`` as for `Source`."""
    return await put_source(store, Source(*chunks, before=before), scope=scope, **words)


async def put_source(store: ArtifactStore, source: Any, *, scope: Scope = HOME, **words: Any) -> PutResult:
    """As `stream`, of a source that the case looks at."""
    return await store.put_stream(scope, source, **{"kind": "test/item", "media_type": "text/plain", **words})


async def opened(
    store: ArtifactStore, ref: str, start: int = 0, end: int | None = None, *, scope: Scope = HOME
) -> bytes | None:
    """What a reader gives, all of it; ``None`` where there is none."""
    data: bytes | None = None
    async with store.open(scope, ref, start, end) as reader:
        if reader is not None:
            data = b"".join([chunk async for chunk in reader])
    return data


async def listed(store: ArtifactStore) -> list[str]:
    """The refs of `HOME`, newest first."""
    return [meta.ref for meta in (await store.list(HOME, limit=1000)).artifacts]


async def left_nothing(*stores: ArtifactStore, refs: list[str]) -> None:
    """State that what was refused, or given up, left nothing: `HOME` lists ``refs``, and a sweep finds nothing."""
    for store in stores:
        expect("what is listed", sorted(await listed(store)), sorted(refs))
        expect("what a sweep finds", await store.sweep(), ())


def expires(expires_at: datetime | None, last_put: datetime, ttl: float) -> None:
    """State that an expiry is at least 0.9 ttl and at most ttl, in seconds, after the last put."""
    if expires_at is None:
        raise Violation("expires_at is None in a store with a ttl")
    seconds = (expires_at - last_put).total_seconds()
    check(0.9 * ttl <= seconds <= ttl, f"the artifact expires {seconds} seconds after its last put; the ttl is {ttl}")


async def read(store: ArtifactStore, ref: str, *, scope: Scope = HOME) -> Artifact:
    """Get what must be there.

    Raises:
        Violation: it is not.
    """
    artifact = await store.get(scope, ref)
    if artifact is None:
        raise Violation(f"{ref} does not resolve")
    return artifact


def _given(hook: _T | None, name: str, what: str) -> _T:
    if hook is None:
        raise NotApplicable(f"needs {what}: no {name}= was given")
    return hook
