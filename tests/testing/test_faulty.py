"""A store that fails or hangs on demand."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import anyio
import pytest

from coatcheck.artifacts.memory import MemoryStore
from coatcheck.artifacts.port import ArtifactStore
from coatcheck.errors import ConfigurationError, StoreUnavailable
from coatcheck.scope import Scope
from coatcheck.testing import Fault, FaultyStore, ManualClock, check_store, fail, hang
from coatcheck.testing.trial import Source

pytestmark = pytest.mark.anyio

SCOPE = Scope(conversation="c")
WORDS: dict[str, Any] = {"kind": "k", "media_type": "text/plain"}
DOWN = StoreUnavailable("503")


async def use(store: ArtifactStore, verb: str) -> object:
    match verb:
        case "put":
            return await store.put(SCOPE, b"x", **WORDS)
        case "put_stream":
            return await store.put_stream(SCOPE, Source(b"x"), **WORDS)
        case "open":
            async with store.open(SCOPE, "art_" + "0" * 32) as reader:
                return reader
        case "enter":
            return await store.__aenter__()
        case "list" | "sweep":
            return await getattr(store, verb)(SCOPE)
        case _:
            return await getattr(store, verb)(SCOPE, "art_" + "0" * 32)


VERBS = ("put", "put_stream", "head", "get", "open", "delete", "list", "sweep", "enter")


def test_it_is_a_store() -> None:
    assert isinstance(FaultyStore(MemoryStore()), ArtifactStore)


async def test_without_a_fault_it_keeps_every_law_of_the_store_inside() -> None:
    report = await check_store(lambda **options: FaultyStore(MemoryStore(**options)))
    assert report.ok, str(report)


@pytest.mark.parametrize("verb", VERBS)
async def test_a_fault_strikes_its_verb_and_no_other(verb: str) -> None:
    store = FaultyStore(MemoryStore(), **{verb: fail(DOWN)})
    for each in VERBS:
        if each == verb:
            with pytest.raises(StoreUnavailable, match="503"):
                await use(store, each)
        else:
            await use(store, each)
    assert store.calls == dict.fromkeys(VERBS, 1)


async def test_a_call_that_is_struck_never_reaches_the_store_inside() -> None:
    inner = MemoryStore()
    store = FaultyStore(inner, put=fail(DOWN), put_stream=fail(DOWN))
    source = Source(b"x")
    for call in (store.put(SCOPE, b"x", **WORDS), store.put_stream(SCOPE, source, **WORDS)):
        with pytest.raises(StoreUnavailable):
            await call
    assert (await inner.list(SCOPE)).artifacts == ()
    assert source.asked == 0


async def test_a_fault_may_strike_the_first_calls_only() -> None:
    store = FaultyStore(MemoryStore(), get=fail(DOWN, calls=2))
    assert [await outcome(store) for _ in range(4)] == ["failed", "failed", "worked", "worked"]


async def test_a_fault_may_strike_one_call_only() -> None:
    store = FaultyStore(MemoryStore(), get=fail(DOWN, nth=3))
    assert [await outcome(store) for _ in range(4)] == ["worked", "worked", "failed", "worked"]


async def test_a_call_may_hang_for_ever_or_for_a_while() -> None:
    store = FaultyStore(MemoryStore(), get=hang(calls=2))
    assert [await outcome(store) for _ in range(3)] == ["hung", "hung", "worked"]
    store = FaultyStore(MemoryStore(), get=hang())
    assert [await outcome(store) for _ in range(3)] == ["hung"] * 3


CHUNKS = (b"one", b"two", b"three")


async def test_a_stream_may_fail_when_some_chunks_were_taken_and_leaves_nothing() -> None:
    for after in range(4):
        inner = MemoryStore()
        source = Source(*CHUNKS)
        with pytest.raises(StoreUnavailable) as failure:
            await FaultyStore(inner, put_stream=fail(DOWN, after=after)).put_stream(SCOPE, source, **WORDS)
        assert failure.value is DOWN
        assert (source.asked, source.ended) == (after, False)
        assert (await inner.list(SCOPE)).artifacts == ()


async def test_a_stream_may_hang_when_some_chunks_were_taken() -> None:
    store = FaultyStore(MemoryStore(), put_stream=hang(after=2))
    source = Source(*CHUNKS)
    with anyio.move_on_after(0.02) as limit:
        await store.put_stream(SCOPE, source, **WORDS)
    assert limit.cancelled_caught
    assert source.asked == 2
    assert (await store.list(SCOPE)).artifacts == ()


async def test_a_reader_may_fail_or_hang_when_some_chunks_were_read() -> None:
    inner = MemoryStore()
    data = bytes(1 << 20)
    ref = (await inner.put(SCOPE, data, **WORDS)).meta.ref
    async with FaultyStore(inner, open=fail(DOWN, after=2)).open(SCOPE, ref, 5) as reader:
        assert reader is not None
        assert (reader.meta.ref, reader.start, reader.end) == (ref, 5, len(data))
        read = [await anext(aiter(reader)) for _ in range(2)]
        with pytest.raises(StoreUnavailable) as failure:
            await anext(aiter(reader))
        assert failure.value is DOWN
    assert data[5:].startswith(b"".join(read))
    with pytest.raises(StoreUnavailable):
        await reader.read()  # it was left, and has not ended
    async with FaultyStore(inner, open=hang(after=0)).open(SCOPE, ref) as reader:
        assert reader is not None
        with anyio.move_on_after(0.02) as limit:
            await reader.read()
        assert limit.cancelled_caught


async def test_what_has_fewer_chunks_than_a_fault_waits_for_is_not_struck() -> None:
    store = FaultyStore(MemoryStore(), put_stream=fail(DOWN, after=4), open=hang(after=2))
    ref = (await store.put_stream(SCOPE, Source(*CHUNKS), **WORDS)).meta.ref
    async with store.open(SCOPE, ref) as reader:
        assert reader is not None
        assert await reader.read() == b"".join(CHUNKS)
    async with store.open(SCOPE, "no ref") as reader:
        assert reader is None


async def test_a_fault_after_some_chunks_may_strike_some_calls_only() -> None:
    store = FaultyStore(MemoryStore(), put_stream=fail(DOWN, nth=2, after=1))
    for struck in (False, True, False):
        if struck:
            with pytest.raises(StoreUnavailable):
                await store.put_stream(SCOPE, Source(*CHUNKS), **WORDS)
        else:
            await store.put_stream(SCOPE, Source(*CHUNKS), **WORDS)
    assert store.calls["put_stream"] == 3


@pytest.mark.parametrize("verb", ["put", "head", "get", "delete", "list", "sweep", "enter"])
def test_a_verb_without_chunks_has_no_fault_after_some_of_them(verb: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{verb} has no chunks"):
        FaultyStore(MemoryStore(), **{verb: fail(DOWN, after=1)})


@pytest.mark.parametrize("after", [-1, True, 1.0, "1"])
@pytest.mark.parametrize("make", [lambda **words: fail(DOWN, **words), hang])
def test_a_fault_strikes_after_a_whole_number_of_chunks(make: Callable[..., Fault], after: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^after must be"):
        make(after=after)


async def test_any_error_may_be_raised_also_one_that_no_store_should() -> None:
    store = FaultyStore(MemoryStore(), list=fail(ZeroDivisionError("no store raises this")))
    with pytest.raises(ZeroDivisionError):
        await store.list(SCOPE)


async def test_the_store_inside_is_opened_and_closed() -> None:
    class Watched(MemoryStore):
        seen: tuple[str, ...] = ()

        async def __aenter__(self) -> Watched:
            self.seen += ("opened",)
            return self

        async def __aexit__(self, *_: object) -> None:
            self.seen += ("closed",)

    inner = Watched()
    async with FaultyStore(inner) as store:
        assert isinstance(store, FaultyStore)
    assert inner.seen == ("opened", "closed")


@pytest.mark.parametrize("words", [{"calls": 0}, {"calls": True}, {"nth": -1}, {"nth": 1.0}])
def test_a_fault_that_can_never_strike_is_refused(words: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="must be"):
        fail(DOWN, **words)


def test_a_fault_strikes_the_first_calls_or_one_and_not_both() -> None:
    with pytest.raises(ValueError, match="not both"):
        fail(DOWN, calls=1, nth=1)


def test_a_manual_clock_moves_when_it_is_told_to() -> None:
    clock = ManualClock()
    before = clock()
    assert clock() == before
    assert clock.advance(1.5) == clock() == before + timedelta(seconds=1.5)


async def outcome(store: ArtifactStore) -> str:
    try:
        with anyio.fail_after(0.02):
            await use(store, "get")
    except TimeoutError:
        return "hung"
    except StoreUnavailable:
        return "failed"
    return "worked"
