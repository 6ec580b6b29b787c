"""What is the memory store's own of streams and readers: bounds, turns, and cancellation at every checkpoint."""

from __future__ import annotations

import tracemalloc
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from datetime import timedelta
from itertools import count
from typing import Any

import anyio
import msgspec
import pytest
from anyio.lowlevel import checkpoint

from coatcheck.artifacts.memory import MemoryStore
from coatcheck.artifacts.ref import digest_of
from coatcheck.errors import IntegrityError, InvalidArtifact, UnknownParent
from coatcheck.scope import Scope
from coatcheck.testing import ManualClock
from coatcheck.testing.trial import Source
from tests.boundary._cancel import cancelled_everywhere

pytestmark = pytest.mark.anyio

SCOPE = Scope(conversation="c")
WORDS: dict[str, Any] = {"kind": "k", "media_type": "text/plain"}


async def turns_during(call: Callable[[], Any]) -> int:
    """How often another task has its turn while ``call`` is under way."""
    turns = 0

    async def watch() -> None:
        nonlocal turns
        while True:
            await checkpoint()
            turns += 1

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        await checkpoint()
        turns = 0
        await call()
        tasks.cancel_scope.cancel()
    return turns


@pytest.mark.parametrize(
    "chunks", [[b"x"] * 5000, [b""] * 5000, [b"x" * 10_000] * 500, [bytes(5 << 20)], [bytearray(5 << 20)]]
)
async def test_a_source_that_is_always_ready_leaves_the_other_tasks_their_turns(chunks: list[bytes]) -> None:
    store = MemoryStore()
    assert await turns_during(lambda: store.put_stream(SCOPE, Source(*chunks), **WORDS)) >= 15


async def test_a_reader_leaves_the_other_tasks_their_turns() -> None:
    store = MemoryStore()
    ref = (await store.put(SCOPE, bytes(5 << 20), **WORDS)).meta.ref
    async with store.open(SCOPE, ref) as reader:
        assert reader is not None
        assert await turns_during(reader.read) >= 15


@pytest.mark.parametrize("chunk", [b"", b"xy", b"x" * 9000])
async def test_a_stream_without_an_end_takes_no_more_memory_than_a_scope_may(chunk: bytes) -> None:
    async def endless() -> AsyncGenerator[bytes, None]:
        for number in count():
            yield bytes([number % 256]) + chunk

    store = MemoryStore(max_bytes=100_000)
    await store.put(SCOPE, b"x", **WORDS)
    tracemalloc.start()
    try:
        async with aclosing(endless()) as source:
            with pytest.raises(InvalidArtifact, match=r"^source has .* bytes or more, more than max_bytes=100000 lets"):
                await store.put_stream(SCOPE, source, **WORDS)
        assert tracemalloc.get_traced_memory()[1] < 300_000
    finally:
        tracemalloc.stop()
    assert len((await store.list(SCOPE)).artifacts) == 1


async def test_a_parent_that_does_not_resolve_is_told_before_the_source_is_asked() -> None:
    store = MemoryStore()
    source = Source(b"x")
    with pytest.raises(UnknownParent):
        await store.put_stream(SCOPE, source, parents=["art_" + "0" * 32], **WORDS)
    assert source.asked == 0


async def test_a_parent_that_is_withdrawn_while_the_source_is_slow_is_told_at_the_end() -> None:
    store = MemoryStore()
    parent = (await store.put(SCOPE, b"parent", **WORDS)).meta.ref

    async def withdraw(index: int) -> None:
        await store.delete(SCOPE, parent)

    with pytest.raises(UnknownParent):
        await store.put_stream(SCOPE, Source(b"x", before=withdraw), parents=[parent], **WORDS)
    assert store._scopes == {}


async def test_a_refused_stream_leaves_no_scope_behind() -> None:
    store = MemoryStore(max_bytes=10)
    for chunk in (b"x" * 11, "text"):
        with pytest.raises(InvalidArtifact):
            await store.put_stream(SCOPE, Source(b"", chunk), **WORDS)
    assert store._scopes == {}


async def test_a_stream_that_is_cancelled_at_any_checkpoint_is_whole_or_not_there_and_the_store_works() -> None:
    store = MemoryStore()
    chunks: list[Any] = [b"small", bytes(300_000), bytearray(700_000), b""]
    data = b"".join(chunks)

    async def pause(index: int) -> None:
        await checkpoint()

    async for _ in cancelled_everywhere(
        lambda: store.put_stream(SCOPE, Source(*chunks, before=pause), **WORDS), least=8
    ):
        for meta in (await store.list(SCOPE)).artifacts:
            artifact = await store.get(SCOPE, meta.ref)
            assert artifact is not None
            assert artifact.data == data
            await store.delete(SCOPE, meta.ref)
        assert store._scopes == {}
        result = await store.put_stream(SCOPE, Source(b"it ", b"works"), **WORDS)
        assert result.created
        await store.delete(SCOPE, result.meta.ref)
    [meta] = (await store.list(SCOPE)).artifacts
    assert (meta.bytes, meta.digest) == (len(data), digest_of(data))


async def test_a_read_that_is_cancelled_at_any_checkpoint_can_go_on_and_loses_nothing() -> None:
    store = MemoryStore()
    data = bytes(range(250)) * 4000
    ref = (await store.put(SCOPE, data, **WORDS)).meta.ref
    async with store.open(SCOPE, ref) as reader:
        assert reader is not None
        read = b""
        for chunk_too_late in (True, False, True, True, False):
            with anyio.CancelScope() as scope:
                if chunk_too_late:
                    scope.cancel()
                read += await anext(aiter(reader))
        assert read + await reader.read() == data

    async def read_all() -> None:
        async with store.open(SCOPE, ref) as reader:
            assert reader is not None
            assert await reader.read() == data

    async for _ in cancelled_everywhere(read_all, least=4):
        await read_all()


async def test_what_was_opened_is_read_to_its_end_whatever_becomes_of_the_artifact() -> None:
    clock = ManualClock()
    store = MemoryStore(max_count=1, ttl=timedelta(seconds=5), clock=clock)
    data = bytes(1 << 20)
    ref = (await store.put(SCOPE, data, **WORDS)).meta.ref
    async with store.open(SCOPE, ref) as one, store.open(SCOPE, ref) as other, store.open(SCOPE, ref) as third:
        assert one is not None
        assert other is not None
        assert third is not None
        clock.advance(5)
        assert await one.read() == data
        await store.put(SCOPE, b"it needs the place", **WORDS)
        assert await other.read() == data
        await store.delete(SCOPE, ref)
    assert await third.read() == data, "nor does it matter that it was left"


async def test_a_reader_that_found_a_changed_payload_never_ends_as_if_it_had_not() -> None:
    store = MemoryStore()
    meta = (await store.put(SCOPE, b"payload", **WORDS)).meta
    entries = store._scopes[SCOPE]
    for changed, actual in ((b"daolyap", digest_of(b"daolyap")), (b"pay", "3 bytes"), (b"payloads", "8 bytes")):
        entries[meta.ref] = msgspec.structs.replace(entries[meta.ref], data=changed)
        async with store.open(SCOPE, meta.ref) as reader:
            assert reader is not None
            for _ in range(2):
                with pytest.raises(IntegrityError) as damage:
                    await reader.read()
                assert (damage.value.ref, damage.value.actual) == (meta.ref, actual)
        async with store.open(SCOPE, meta.ref, 2, 5) as reader:
            assert reader is not None
            if len(changed) == meta.bytes:
                assert await reader.read() == changed[2:5], "a part is not verified"
            else:
                with pytest.raises(IntegrityError):
                    await reader.read()
    assert await store.head(SCOPE, meta.ref) == meta


async def test_a_caller_that_changes_the_meta_of_a_reader_changes_nothing_in_the_store() -> None:
    store = MemoryStore()
    ref = (await store.put_stream(SCOPE, Source(b"x"), origin={"call": "1"}, **WORDS)).meta.ref
    async with store.open(SCOPE, ref) as reader:
        assert reader is not None
        assert reader.meta.origin is not None
        reader.meta.origin["call"] = "2"
    head = await store.head(SCOPE, ref)
    assert head is not None
    assert head.origin == {"call": "1"}


async def test_a_stream_that_took_long_looks_around_like_a_put() -> None:
    clock = ManualClock()
    store = MemoryStore(ttl=timedelta(seconds=5), clock=clock)
    for number in range(40):
        await store.put_stream(Scope(conversation=str(number)), Source(b"x"), **WORDS)
    clock.advance(5)
    for _ in range(40):
        assert (await store.put_stream(SCOPE, Source(b"x"), **WORDS)).swept == ()
    assert len(store._scopes) <= 17
