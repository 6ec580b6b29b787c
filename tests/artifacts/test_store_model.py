"""Stores against a model that keeps every artifact in a list, over any sequence of puts, streams, deletes and sweeps.

Laws: idempotence, budgets that hold exactly, evictions that are all reported, expiry, complete listings.
"""

from __future__ import annotations

import tempfile
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any, Literal

import anyio
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coatcheck.artifacts.directory import DirectoryStore
from coatcheck.artifacts.memory import MemoryStore
from coatcheck.artifacts.meta import ArtifactMeta, PutResult, Swept
from coatcheck.artifacts.port import ArtifactStore
from coatcheck.errors import InvalidArtifact
from coatcheck.scope import Scope
from coatcheck.testing import ManualClock
from coatcheck.testing.trial import Source, opened

SCOPES = (Scope(conversation="a"), Scope(tenant="t", conversation="a"))
WORDS: dict[str, Any] = {"kind": "k", "media_type": "text/plain"}
PAYLOADS = tuple(bytes([fill]) * size for fill, size in enumerate((0, 1, 3, 5, 8, 13, 21, 34), start=97))


class Put(msgspec.Struct, frozen=True):
    scope: int
    payload: int
    lives: int | None
    label: str
    pieces: int | None  # how many bytes a chunk of a stream has; None: a payload at hand


class Delete(msgspec.Struct, frozen=True):
    scope: int
    payload: int


class Wait(msgspec.Struct, frozen=True):
    seconds: int


class Sweep(msgspec.Struct, frozen=True):
    scope: int | None
    dry_run: bool


Step = Put | Delete | Wait | Sweep
places = st.integers(0, len(SCOPES) - 1)
chosen = st.integers(0, len(PAYLOADS) - 1)
pieces = st.none() | st.integers(1, 15)
steps = st.lists(
    st.one_of(
        st.builds(Put, places, chosen, st.none() | st.integers(1, 12), st.sampled_from("xyz"), pieces),
        st.builds(Put, st.just(0), chosen, st.none(), st.just("x"), pieces),
        st.builds(Delete, places, chosen),
        st.builds(Wait, st.integers(0, 6)),
        st.builds(Sweep, st.none() | places, st.booleans()),
    ),
    max_size=25,
)
dials = st.fixed_dictionaries(
    {},
    optional={
        "ttl": st.integers(1, 10).map(lambda seconds: timedelta(seconds=seconds)),
        "max_bytes": st.integers(1, 60),
        "max_count": st.integers(1, 5),
    },
)


class Held(msgspec.Struct):
    """One artifact of the model."""

    meta: ArtifactMeta
    data: bytes
    last_put: datetime

    def lives(self, now: datetime) -> bool:
        return self.meta.expires_at is None or self.meta.expires_at > now

    def swept(self, reason: Literal["ttl", "max-bytes", "max-count"]) -> Swept:
        return Swept(self.meta.ref, self.meta.kind, len(self.data), reason)


class Model:
    """What a store should hold, kept in the most obvious way."""

    def __init__(self, store: ArtifactStore, clock: ManualClock, dials: dict[str, Any]) -> None:
        self.store = store
        self.clock = clock
        self.ttl: timedelta | None = dials.get("ttl")
        self.max_bytes: int = dials.get("max_bytes", 10**9)
        self.max_count: int = dials.get("max_count", 10**9)
        self.tables: list[list[Held]] = [[] for _ in SCOPES]

    async def take(self, step: Step) -> None:
        match step:
            case Put():
                await self.put(step)
            case Delete():
                await self.delete(step)
            case Wait():
                self.clock.advance(step.seconds)
            case Sweep():
                await self.sweep(step)

    async def put(self, step: Put) -> None:
        table, data, now = self.tables[step.scope], PAYLOADS[step.payload], self.clock.now
        caller = None if step.lives is None else now + timedelta(seconds=step.lives)
        put = self.begin(step, data, expires_at=caller)
        if len(data) > self.max_bytes:
            with pytest.raises(InvalidArtifact):
                await put
            return
        result = await put
        bounds = [bound for bound in (caller, self.ttl and now + self.ttl) if bound is not None]
        asked = min(bounds, default=None)
        before = next((held for held in table if held.data == data), None)
        if before is not None:
            table.remove(before)
        if before is None or not before.lives(now):
            assert result.created
            assert (result.meta.label, result.meta.created_at, result.meta.expires_at) == (step.label, now, asked)
        else:
            assert not result.created
            both = (before.meta.expires_at, asked)
            grown = None if None in both else max(bound for bound in both if bound is not None)
            assert result.meta == msgspec.structs.replace(before.meta, expires_at=grown)
        self.evict(table, data, result, now)
        table.append(Held(result.meta, data, now))

    def begin(self, step: Put, data: bytes, expires_at: datetime | None) -> Awaitable[PutResult]:
        words = {"label": step.label, "expires_at": expires_at, **WORDS}
        if step.pieces is None:
            return self.store.put(SCOPES[step.scope], data, **words)
        chunks = [data[start : start + step.pieces] for start in range(0, len(data), step.pieces)]
        return self.store.put_stream(SCOPES[step.scope], Source(*chunks), **words)

    def evict(self, table: list[Held], data: bytes, result: PutResult, now: datetime) -> None:
        """The store must say that it removed exactly what had to go."""
        gone: list[Swept] = []

        def over() -> Literal["max-count", "max-bytes"] | None:
            if len(table) + 1 > self.max_count:
                return "max-count"
            return "max-bytes" if sum(len(held.data) for held in table) + len(data) > self.max_bytes else None

        table.sort(key=lambda held: (held.last_put, held.meta.ref))
        if over():
            for held in [held for held in table if not held.lives(now)]:
                table.remove(held)
                gone.append(held.swept("ttl"))
        while reason := over():
            gone.append(table.pop(0).swept(reason))
        assert list(result.swept) == gone

    async def delete(self, step: Delete) -> None:
        table = self.tables[step.scope]
        for held in [held for held in table if held.data == PAYLOADS[step.payload]]:
            await self.store.delete(SCOPES[step.scope], held.meta.ref)
            table.remove(held)

    async def sweep(self, step: Sweep) -> None:
        swept = await self.store.sweep(None if step.scope is None else SCOPES[step.scope], dry_run=step.dry_run)
        expected: list[Swept] = []
        for number, table in enumerate(self.tables):
            if step.scope in (None, number):
                expired = [held for held in table if not held.lives(self.clock.now)]
                expected += [held.swept("ttl") for held in expired]
                if not step.dry_run:
                    self.tables[number] = [held for held in table if held not in expired]
        assert sorted(swept, key=str) == sorted(expected, key=str)

    async def compare(self) -> None:
        """Every read says what the model says, and changes nothing."""
        for scope, table in zip(SCOPES, self.tables, strict=True):
            living = [held for held in table if held.lives(self.clock.now)]
            for held in table:
                lives = held in living
                artifact = await self.store.get(scope, held.meta.ref)
                assert (artifact is not None and artifact.data) == (lives and held.data)
                assert await self.store.head(scope, held.meta.ref) == (held.meta if lives else None)
                for start, end in ((0, None), (2, 7)):
                    assert await opened(self.store, held.meta.ref, start, end, scope=scope) == (
                        held.data[start:end] if lives else None
                    )
            listed: list[ArtifactMeta] = []
            cursor: str | None = None
            while True:
                page = await self.store.list(scope, cursor=cursor, limit=2)
                listed += page.artifacts
                cursor = page.cursor
                if cursor is None:
                    break
            living.sort(key=lambda held: held.meta.ref)
            living.sort(key=lambda held: held.meta.created_at, reverse=True)
            assert listed == [held.meta for held in living]


def play(make: Callable[..., ArtifactStore], script: list[Step], dials: dict[str, Any]) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with make(clock=clock, **dials) as store:
            model = Model(store, clock, dials)
            for step in script:
                await model.take(step)
                await model.compare()

    anyio.run(main)


@given(steps, dials)
@settings(max_examples=200)
def test_the_memory_store_does_what_the_model_does(script: list[Step], dials: dict[str, Any]) -> None:
    play(MemoryStore, script, dials)


@given(steps, dials)
@settings(max_examples=30)
def test_the_directory_store_does_what_the_model_does(script: list[Step], dials: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as root:
        play(lambda **options: DirectoryStore(root, **options), script, dials)
