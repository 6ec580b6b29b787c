"""A store that fails or hangs on demand."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import anyio
import pytest

from coatcheck.artifacts.memory import MemoryStore
from coatcheck.artifacts.port import ArtifactStore
from coatcheck.errors import ConfigurationError, StoreUnavailable
from coatcheck.scope import Scope
from coatcheck.testing import FaultyStore, ManualClock, check_store, fail, hang

pytestmark = pytest.mark.anyio

SCOPE = Scope(conversation="c")
WORDS: dict[str, Any] = {"kind": "k", "media_type": "text/plain"}
DOWN = StoreUnavailable("503")


async def use(store: ArtifactStore, verb: str) -> object:
    match verb:
        case "put":
            return await store.put(SCOPE, b"x", **WORDS)
        case "enter":
            return await store.__aenter__()
        case "list" | "sweep":
            return await getattr(store, verb)(SCOPE)
        case _:
            return await getattr(store, verb)(SCOPE, "art_" + "0" * 32)


VERBS = ("put", "head", "get", "delete", "list", "sweep", "enter")


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
    store = FaultyStore(inner, put=fail(DOWN))
    with pytest.raises(StoreUnavailable):
        await use(store, "put")
    assert (await inner.list(SCOPE)).artifacts == ()


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
