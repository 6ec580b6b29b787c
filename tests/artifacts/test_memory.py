"""What is the memory store's own, beside the port's laws, which `test_conformance` tries on it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import anyio
import msgspec
import pytest

from coatcheck.artifacts import memory
from coatcheck.artifacts.memory import MemoryStore
from coatcheck.artifacts.meta import Swept
from coatcheck.artifacts.port import ArtifactStore
from coatcheck.artifacts.ref import digest_of
from coatcheck.artifacts.retention import is_expired
from coatcheck.errors import ConfigurationError, IntegrityError, InvalidArtifact
from coatcheck.scope import Scope
from coatcheck.testing import ManualClock

pytestmark = pytest.mark.anyio

SCOPE = Scope(conversation="c")
WORDS: dict[str, Any] = {"kind": "k", "media_type": "text/plain"}


def scope_of(number: int) -> Scope:
    return Scope(conversation=str(number))


def test_it_is_a_store() -> None:
    assert isinstance(MemoryStore(), ArtifactStore)


@pytest.mark.parametrize(
    "dials",
    [
        {"max_bytes": None},
        {"max_count": None},
        {"max_bytes": 0},
        {"max_count": True},
        {"max_count": 2.0},
        {"ttl": 60},
        {"ttl": timedelta(0)},
    ],
)
def test_memory_is_bounded_always_and_a_dial_that_says_otherwise_is_refused_by_name(dials: dict[str, Any]) -> None:
    [dial] = dials
    with pytest.raises(ConfigurationError, match=rf"^{dial} must be"):
        MemoryStore(**dials)


async def test_it_needs_no_opening_and_keeps_what_it_has_when_it_is_closed() -> None:
    store = MemoryStore()
    ref = (await store.put(SCOPE, b"x", **WORDS)).meta.ref
    async with store as opened:
        assert opened is store
    assert await store.head(SCOPE, ref) is not None


async def test_by_default_a_scope_holds_256_artifacts() -> None:
    store = MemoryStore()
    results = [await store.put(SCOPE, b"%d" % number, **WORDS) for number in range(257)]
    assert [len(result.swept) for result in results] == [0] * 256 + [1]


async def test_by_default_a_scope_holds_32_mib() -> None:
    store = MemoryStore()
    half = [bytes([fill]) * (16 << 20) for fill in (1, 2)]
    assert [(await store.put(SCOPE, data, **WORDS)).swept for data in half] == [(), ()]
    assert [gone.reason for gone in (await store.put(SCOPE, b"x", **WORDS)).swept] == ["max-bytes"]


async def test_a_caller_that_changes_what_it_was_given_changes_nothing_in_the_store() -> None:
    store = MemoryStore()
    result = await store.put(SCOPE, b"x", origin={"call": "1"}, **WORDS)
    head, artifact = await store.head(SCOPE, result.meta.ref), await store.get(SCOPE, result.meta.ref)
    assert head is not None
    assert artifact is not None
    for meta in (result.meta, head, artifact.meta, *(await store.list(SCOPE)).artifacts):
        assert meta.origin == {"call": "1"}
        meta.origin["call"] = "2"
    head = await store.head(SCOPE, result.meta.ref)
    assert head is not None
    assert head.origin == {"call": "1"}


async def test_a_payload_that_was_changed_in_memory_is_not_handed_out() -> None:
    store = MemoryStore()
    meta = (await store.put(SCOPE, b"payload", **WORDS)).meta
    entries = store._scopes[SCOPE]
    entries[meta.ref] = msgspec.structs.replace(entries[meta.ref], data=b"daolyap")
    with pytest.raises(IntegrityError) as damage:
        await store.get(SCOPE, meta.ref)
    assert damage.value.expected == meta.digest
    assert await store.head(SCOPE, meta.ref) == meta


async def test_two_contents_with_one_ref_are_an_error_and_not_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """160 bits will not collide by chance; the digest is compared all the same."""
    monkeypatch.setattr("coatcheck.artifacts.meta.make_ref", lambda *_: "art_" + "0" * 32)
    store = MemoryStore()
    await store.put(SCOPE, b"one", **WORDS)
    with pytest.raises(IntegrityError):
        await store.put(SCOPE, b"other", **WORDS)
    artifact = await store.get(SCOPE, "art_" + "0" * 32)
    assert artifact is not None
    assert artifact.data == b"one"


async def test_scopes_that_are_empty_again_take_no_memory() -> None:
    clock = ManualClock()
    store = MemoryStore(ttl=timedelta(seconds=10), clock=clock)
    for number in range(10):
        await store.put(Scope(conversation=str(number)), b"x", **WORDS)
    ref = (await store.put(SCOPE, b"x", **WORDS)).meta.ref
    await store.delete(SCOPE, ref)
    clock.advance(10)
    assert len(await store.sweep()) == 10
    assert store._scopes == {}


async def test_a_put_whose_digest_took_long_has_its_whole_life_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    store = MemoryStore(ttl=timedelta(seconds=100), clock=clock)

    async def slow(data: bytes) -> str:
        clock.advance(150)
        return digest_of(data)

    monkeypatch.setattr(store._workers, "digest", slow)
    for _ in range(2):  # when the second one comes to its place, the first has expired
        result = await store.put(SCOPE, b"x", **WORDS)
        assert (result.created, result.meta.created_at) == (True, clock.now)
        assert result.meta.expires_at == clock.now + timedelta(seconds=100)
        assert await store.head(SCOPE, result.meta.ref) == result.meta
    with pytest.raises(InvalidArtifact, match="expires_at must be in the future"):
        await store.put(SCOPE, b"y", expires_at=clock.now + timedelta(seconds=150), **WORDS)
    assert (await store.list(SCOPE)).artifacts == ()


async def test_what_has_expired_leaves_as_new_conversations_come() -> None:
    clock = ManualClock()
    store = MemoryStore(ttl=timedelta(seconds=50), clock=clock)
    lasting = [await store.put(scope_of(-1 - number), b"lasting", **WORDS) for number in range(20)]
    most = 0
    for number in range(2000):
        result = await store.put(scope_of(number), b"%d" % number, **WORDS)
        assert result.swept == ()
        if number % 40 == 0:
            for kept in range(20):
                assert not (await store.put(scope_of(-1 - kept), b"lasting", **WORDS)).created
        most = max(most, len(store._scopes))
        clock.advance(1)
    assert most <= 2 * (50 + len(lasting))


async def test_of_what_has_expired_nothing_stays_and_what_lives_stays() -> None:
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    soon = clock.now + timedelta(seconds=5)
    for number in range(200):
        await store.put(scope_of(number), b"brief", expires_at=soon, **WORDS)
        if number % 10 == 0:
            await store.put(scope_of(number), b"lasting", **WORDS)
    clock.advance(5)
    for _ in range(100):
        assert (await store.put(SCOPE, b"x", **WORDS)).swept == ()
    assert set(store._scopes) == {SCOPE, *(scope_of(number) for number in range(0, 200, 10))}
    for number in range(0, 200, 10):
        [meta] = (await store.list(scope_of(number))).artifacts
        artifact = await store.get(scope_of(number), meta.ref)
        assert artifact is not None
        assert artifact.data == b"lasting"
    assert await store.sweep() == ()


async def test_a_put_looks_at_a_few_artifacts_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[object] = []

    def watched(expires_at: datetime | None, now: datetime) -> bool:
        looks.append(expires_at)
        return is_expired(expires_at, now)

    monkeypatch.setattr(memory, "is_expired", watched)
    clock = ManualClock()
    store = MemoryStore(ttl=timedelta(seconds=900), clock=clock)
    most = 0
    for number in range(1200):
        looks.clear()
        await store.put(scope_of(number % 300), b"%d" % number, **WORDS)
        most = max(most, len(looks))
        clock.advance(1)
    assert 0 < most <= 5


async def test_a_put_says_what_it_removed_of_its_own_scope_however_many_others_there_are() -> None:
    clock = ManualClock()
    store = MemoryStore(max_count=2, clock=clock)
    for number in range(40):
        await store.put(scope_of(number), b"x", **WORDS)
    brief = (await store.put(SCOPE, b"brief", expires_at=clock.now + timedelta(seconds=5), **WORDS)).meta
    clock.advance(5)
    for _ in range(40):
        assert (await store.put(SCOPE, b"x", **WORDS)).swept == ()
    assert (await store.put(SCOPE, b"y", **WORDS)).swept == (Swept(brief.ref, "k", 5, "ttl"),)


async def test_a_second_put_heals_a_payload_that_was_changed_in_memory() -> None:
    store = MemoryStore()
    meta = (await store.put(SCOPE, b"payload", **WORDS)).meta
    entries = store._scopes[SCOPE]
    entries[meta.ref] = msgspec.structs.replace(entries[meta.ref], data=b"daolyap")
    await store.put(SCOPE, b"payload", **WORDS)
    artifact = await store.get(SCOPE, meta.ref)
    assert artifact is not None
    assert artifact.data == b"payload"


async def test_a_put_that_was_cancelled_before_it_began_stores_nothing() -> None:
    store = MemoryStore()
    for data in (b"small", bytes(1 << 20)):
        with anyio.CancelScope() as scope:
            scope.cancel()
            await store.put(SCOPE, data, **WORDS)
        assert scope.cancelled_caught
    assert store._scopes == {}


async def test_a_clock_without_a_zone_is_refused_and_nothing_is_stored() -> None:
    clock = ManualClock()
    store = MemoryStore(clock=lambda: clock().replace(tzinfo=None))
    with pytest.raises(ConfigurationError, match="aware datetime"):
        await store.put(SCOPE, b"x", **WORDS)
    assert store._scopes == {}
