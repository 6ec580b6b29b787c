"""The write-behind store: a put returns when the artifact has its name, and nothing that was promised is lost silently.

Laws: `design.md` section 5 ("Write-behind"), and those of the port (`coatcheck.testing.check_store`).
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from hypothesis import given
from hypothesis import strategies as st

import coatcheck as cc
from coatcheck.artifacts.flights import MAX_REMEMBERED
from coatcheck.artifacts.notices import UploadFailed
from coatcheck.testing import FaultyStore, ManualClock, check_store, fail, hang
from tests.artifacts._behind import (
    BROKEN,
    ELSEWHERE,
    SCOPE,
    Gated,
    heard_by,
    idle,
    in_background,
    opened,
    put,
    ref_of,
    rest,
)
from tests.artifacts._broken import Broken

pytestmark = pytest.mark.anyio

# --- the battery ---

THERE = "without a request it is not known whether the store has the content: created, and the first put's words"
EVICTED = "what an upload forces out is told by the next put in the scope"
LATER = "the store creates an artifact, and counts its ttl, when it is uploaded, which is after the clock has moved"

DECLARED = {
    "same-content": THERE,
    "puts-refresh": THERE,
    "expiry-only-grows": THERE,
    "stream-same-content": THERE,
    "streams-at-once": THERE,
    "count-budget": EVICTED,
    "bytes-budget": EVICTED,
    "oldest-put-leaves": EVICTED,
    "no-more-than-forced": EVICTED,
    "many-keys-at-once": EVICTED,
}
IN_FLIGHT = {"list-order": LATER, "reads-extend-nothing": LATER, "sweep": LATER, "list-pages": LATER}


class Settled(cc.WriteBehind):
    """One whose puts have landed before the test goes on, so that clock and uploads keep step."""

    async def put(self, *args: Any, **words: Any) -> cc.PutResult:
        result = await super().put(*args, **words)
        await self.flush()
        return result


@pytest.mark.parametrize(("kind", "declared"), [(cc.WriteBehind, {**DECLARED, **IN_FLIGHT}), (Settled, DECLARED)])
async def test_it_keeps_every_law_around_a_memory_store_but_what_it_says(
    kind: type[cc.WriteBehind], declared: dict[str, str]
) -> None:
    report = await check_store(
        lambda **options: kind(cc.MemoryStore(**options), clock=options["clock"]), declared=declared
    )
    assert report.ok, str(report)
    if kind is Settled:
        assert report.stale == (), str(report)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "declared"), [(cc.WriteBehind, {**DECLARED, **IN_FLIGHT}), (Settled, DECLARED)])
async def test_it_keeps_every_law_around_a_directory_store_but_what_it_says(
    tmp_path: Path, kind: type[cc.WriteBehind], declared: dict[str, str]
) -> None:
    numbers = count()

    def make(**options: Any) -> cc.WriteBehind:
        return kind(cc.DirectoryStore(tmp_path / str(next(numbers)), **options), clock=options["clock"])

    report = await check_store(make, declared=declared)
    assert report.ok, str(report)
    if kind is Settled:
        assert report.stale == (), str(report)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["put", "put", "put", "delete", "head", "get", "list", "flush"]),
            st.sampled_from([b"a", b"b", b"c"]),
            st.sampled_from(["one", "two"]),
        ),
        max_size=30,
    )
)
async def test_whoever_reads_through_it_sees_what_the_inner_store_alone_would_show(
    steps: list[tuple[str, bytes, str]],
) -> None:
    clock = ManualClock()
    plain = cc.MemoryStore(clock=clock)

    async def do(store: cc.ArtifactStore, verb: str, data: bytes, label: str) -> object:
        match verb:
            case "put":
                return (await put(store, data, label=label)).meta.ref
            case "delete":
                await store.delete(SCOPE, ref_of(data))
            case "head":
                return await store.head(SCOPE, ref_of(data))
            case "get":
                return await store.get(SCOPE, ref_of(data))
            case "list":
                return await store.list(SCOPE)
        return None

    async with cc.WriteBehind(cc.MemoryStore(clock=clock), clock=clock) as store:
        for verb, data, label in steps:
            if verb == "flush":
                await store.flush()
            assert await do(store, verb, data, label) == await do(plain, verb, data, label)
        assert await store.list(SCOPE) == await plain.list(SCOPE)


# --- putting ---


async def test_a_put_returns_while_the_upload_goes_on_and_its_ref_is_the_inner_stores() -> None:
    inner = Gated()
    async with cc.WriteBehind(inner) as store:
        result = await put(store, label="mine", origin={"call": "7"})
        assert inner.ended == []
        assert (result.created, result.swept) == (True, ())
        inner.open_gate()
        await store.flush()
        assert result.meta.ref == (await put(inner)).meta.ref
        head = await store.head(SCOPE, result.meta.ref)
        assert head is not None
        assert (head.label, head.origin, head.digest) == ("mine", {"call": "7"}, result.meta.digest)


async def test_what_the_caller_does_with_its_buffer_and_its_words_later_changes_nothing() -> None:
    inner = Gated()
    buffer, origin, parents = bytearray(b"payload"), {"call": "7"}, list[str]()
    async with cc.WriteBehind(inner) as store:
        result = await put(store, buffer, origin=origin, parents=parents)  # type: ignore[arg-type]  # it takes a copy
        buffer[:] = b"changed"
        origin["call"] = "8"
        parents.append("none")
        assert result.meta.origin is not None
        result.meta.origin["call"] = "9"
        inner.open_gate()
        artifact = await store.get(SCOPE, result.meta.ref)
        assert artifact is not None
        assert (artifact.data, artifact.meta.origin, artifact.meta.parents) == (b"payload", {"call": "7"}, ())


async def test_an_upload_goes_on_when_the_call_that_put_it_is_cancelled() -> None:
    inner = Gated()
    async with cc.WriteBehind(inner) as store:
        with anyio.CancelScope() as call:
            await put(store)
            call.cancel()
            await checkpoint()
        assert call.cancelled_caught
        inner.open_gate()
        await store.flush()
        assert inner.ended == [b"payload"]


async def test_a_put_that_is_cancelled_anywhere_is_whole_or_leaves_nothing() -> None:
    for steps in range(12):
        inner = Broken()
        async with cc.WriteBehind(inner) as store:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(put, store)
                for _ in range(steps):
                    await checkpoint()
                tasks.cancel_scope.cancel()
            await store.flush()
            refs = [meta.ref for meta in (await store.list(SCOPE)).artifacts]
            assert refs in ([], [ref_of()])
            assert not store._flights._room._pieces


async def test_a_result_states_the_expiry_that_the_inner_stores_retention_gives() -> None:
    clock = ManualClock()
    soon, late = clock.now + timedelta(seconds=5), clock.now + timedelta(days=9)
    async with cc.WriteBehind(cc.MemoryStore(ttl=timedelta(seconds=60), clock=clock), clock=clock) as store:
        minute = clock.now + timedelta(seconds=60)
        assert (await put(store, b"1")).meta.expires_at == minute
        assert (await put(store, b"2", expires_at=soon)).meta.expires_at == soon
        assert (await put(store, b"3", expires_at=late)).meta.expires_at == minute
    async with cc.WriteBehind(Broken(ttl=timedelta(seconds=60), clock=clock), clock=clock) as store:
        assert (await put(store, b"1")).meta.expires_at is None
        assert (await put(store, b"3", expires_at=late)).meta.expires_at == late


async def test_more_than_the_whole_budget_is_refused_at_once_where_the_store_says_it_and_else_a_failed_upload() -> None:
    async with cc.WriteBehind(cc.MemoryStore(max_bytes=10)) as store:
        with pytest.raises(cc.InvalidArtifact, match="max_bytes"):
            await put(store, b"x" * 11)
        assert await store.flush() == ()
    async with cc.WriteBehind(Broken(max_bytes=10)) as store:
        await put(store, b"x" * 11)
        [failed] = await store.flush()
        assert "max_bytes" in failed.detail


async def test_what_uploads_force_out_is_told_by_the_next_put_in_the_scope_once() -> None:
    async with cc.WriteBehind(cc.MemoryStore(max_count=2)) as store:
        for data in (b"1", b"2", b"3"):
            assert (await put(store, data)).swept == ()
            await store.flush()
        assert (await put(store, b"other", ELSEWHERE)).swept == ()
        assert (await put(store, b"3")).swept == (cc.Swept(ref_of(b"1"), "test/item", 1, "max-count"),)
        await store.flush()
        assert (await put(store, b"3")).swept == ()


async def test_what_no_put_told_of_evictions_is_logged_at_the_closing(caplog: pytest.LogCaptureFixture) -> None:
    async with cc.WriteBehind(cc.MemoryStore(max_count=1)) as store:
        await put(store, b"1")
        await put(store, b"2")
    assert "pushed 1 older artifacts out of a scope" in caplog.text
    assert "5ecret" not in caplog.text


# --- one content, many puts ---


async def test_many_puts_of_one_content_are_one_flight_and_share_the_next_upload() -> None:
    inner = Gated()
    async with cc.WriteBehind(inner) as store:
        first = await put(store, label="first")
        await idle(lambda: inner.begun)
        others = [await put(store, label=f"{number}") for number in range(9)]
        assert first.created
        assert not any(other.created for other in others)
        assert {other.meta for other in map(_plain, others)} == {_plain(first).meta}
        inner.open_gate()
        await store.flush()
        # One for the first, and one that began after all others were asked for: it refreshes for all of them.
        assert inner.ended == [b"payload"] * 2
        head = await store.head(SCOPE, ref_of())
        assert head is not None
        assert head.label == "first"


def _plain(result: cc.PutResult) -> cc.PutResult:
    assert result.meta.origin is None
    return result


async def test_puts_of_one_content_by_two_tasks_at_once_are_one_artifact() -> None:
    inner = Gated()
    async with cc.WriteBehind(inner) as store:
        async with in_background(lambda: put(store), lambda: put(store)) as results:
            pass
        assert sorted(result.created for result in results) == [False, True]
        inner.open_gate()
        assert len((await store.list(SCOPE)).artifacts) == 1


@pytest.mark.parametrize("begun", [True, False])
async def test_a_put_that_joins_a_flight_can_only_make_its_life_longer(begun: bool) -> None:
    clock = ManualClock()
    near, far = clock.now + timedelta(seconds=50), clock.now + timedelta(seconds=100)
    inner = Gated(clock=clock)
    async with cc.WriteBehind(inner, clock=clock, concurrency=1) as store:
        if not begun:
            await put(store, b"in the way")
            await idle(lambda: inner.begun)
        assert (await put(store, expires_at=near)).meta.expires_at == near
        if begun:
            await idle(lambda: inner.begun)
        assert (await put(store, expires_at=far)).meta.expires_at == far
        assert (await put(store, expires_at=near)).meta.expires_at == far
        inner.open_gate()
        head = await store.head(SCOPE, ref_of())
        assert head is not None
        assert head.expires_at == far
        assert inner.begun.count(b"payload") == (2 if begun else 1)


async def test_a_put_that_comes_after_one_that_fails_is_tried_on_its_own() -> None:
    async with cc.WriteBehind(FaultyStore(cc.MemoryStore(), put=fail(BROKEN, calls=1))) as store:
        heard = heard_by(store)
        await put(store)
        await rest()
        await put(store)
        assert await store.flush() == ()
        assert await store.head(SCOPE, ref_of()) is not None
        assert len(heard) == 1


async def test_what_expires_before_it_is_uploaded_is_made_anew_by_the_next_put_and_is_absent_else() -> None:
    clock = ManualClock()
    inner = Gated(clock=clock)
    async with cc.WriteBehind(inner, clock=clock) as store:
        for data in (b"1", b"2"):
            await put(store, data, expires_at=clock.now + timedelta(seconds=5))
        await idle(lambda: len(inner.begun) == 2)
        clock.advance(6)
        again = await put(store, b"1", label="again")
        assert (again.created, again.meta.label, again.meta.expires_at) == (True, "again", None)
        inner.open_gate()
        assert await store.head(SCOPE, ref_of(b"1")) is not None
        assert await store.head(SCOPE, ref_of(b"2")) is None


# --- reading what is in flight ---

READS: dict[str, Callable[[cc.WriteBehind], Any]] = {
    "head": lambda store: store.head(SCOPE, ref_of()),
    "get": lambda store: store.get(SCOPE, ref_of()),
    "open": lambda store: opened(store),
    "delete": lambda store: store.delete(SCOPE, ref_of()),
    "list": lambda store: store.list(SCOPE),
    "flush": lambda store: store.flush(),
    "usage": lambda store: store.usage(),
}


class Counting(Gated):
    async def usage(self) -> Sequence[cc.Usage]:
        return [cc.Usage(("t", "p", "c"), "test/item", len(self.ended), 0)]


@pytest.mark.parametrize("verb", READS)
async def test_a_read_of_what_is_in_flight_waits_for_it(verb: str) -> None:
    inner = Counting()
    async with cc.WriteBehind(inner) as store:
        await put(store)
        async with in_background(lambda: READS[verb](store)) as results:
            await rest()
            assert results == []
            inner.open_gate()
        [result] = results
        match verb:
            case "head" | "get":
                assert result is not None
            case "open":
                assert result == b"ayload"
            case "list":
                assert [meta.ref for meta in result.artifacts] == [ref_of()]
            case "usage":
                assert result[0].count == 1
            case "delete":
                assert await store.head(SCOPE, ref_of()) is None


@pytest.mark.parametrize("verb", ["head", "get", "open", "list"])
async def test_a_read_that_waits_can_be_cancelled_and_the_upload_goes_on(verb: str) -> None:
    inner = Gated()
    async with cc.WriteBehind(inner) as store:
        await put(store)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(READS[verb], store)
            await rest()
            tasks.cancel_scope.cancel()
        inner.open_gate()
        assert await store.get(SCOPE, ref_of()) is not None


async def test_what_is_not_in_flight_is_read_and_put_and_swept_while_another_upload_hangs() -> None:
    inner = cc.MemoryStore()
    kept = (await put(inner, b"kept")).meta
    async with cc.WriteBehind(FaultyStore(inner, put=hang(calls=1)), flush_timeout=0.2) as store:
        await put(store)
        await rest()
        assert await store.head(SCOPE, kept.ref) == kept
        assert await store.head(ELSEWHERE, ref_of()) is None
        assert (await store.list(ELSEWHERE)).artifacts == ()
        assert await store.sweep() == ()
        await put(store, b"more")
        assert await store.head(SCOPE, ref_of(b"more")) is not None


async def test_a_stray_ref_waits_for_nothing_and_is_absent() -> None:
    async with cc.WriteBehind(cc.MemoryStore()) as store:
        for ref in ("", "no ref", None, 7, b"ref", ["art_"]):
            assert await store.get(SCOPE, ref) is None  # type: ignore[arg-type]  # what callers may pass all the same


# --- parents ---


async def test_a_parent_may_be_in_flight_and_is_stored_first() -> None:
    inner = Gated()
    async with cc.WriteBehind(inner, concurrency=1) as store:
        parent = (await put(store, b"parent")).meta.ref
        child = (await put(store, b"child", parents=[parent])).meta
        assert child.parents == (parent,)
        inner.open_gate()
        assert await store.flush() == ()
        assert inner.ended == [b"parent", b"child"]
        head = await store.head(SCOPE, child.ref)
        assert head is not None
        assert head.parents == (parent,)


async def test_a_stream_waits_for_its_parents_that_are_in_flight() -> None:
    inner = Gated()

    async def source() -> AsyncIterator[bytes]:
        yield b"child"

    async with cc.WriteBehind(inner) as store:
        parent = (await put(store, b"parent")).meta.ref
        chunks = source()
        async with in_background(
            lambda: store.put_stream(SCOPE, chunks, kind="test/item", media_type="text/plain", parents=[parent])
        ) as results:
            await rest()
            assert results == []
            inner.open_gate()
        assert results[0].meta.parents == (parent,)


async def test_parents_that_neither_are_stored_nor_in_flight_are_refused_by_name_and_nothing_is_left() -> None:
    clock = ManualClock()
    inner = Gated(clock=clock)
    async with cc.WriteBehind(inner, clock=clock) as store:
        near = (await put(store, b"near")).meta.ref
        brief = (await put(store, b"brief", expires_at=clock.now + timedelta(seconds=5))).meta.ref
        foreign = (await put(store, b"foreign", ELSEWHERE)).meta.ref
        clock.advance(5)
        many = [f"art_{number:032d}" for number in range(30)]
        with pytest.raises(cc.UnknownParent) as error:
            await put(store, b"child", parents=[near, brief, foreign, "no ref", *many])
        assert error.value.refs == (brief, foreign, "no ref", *many)
        inner.open_gate()
        assert [meta.ref for meta in (await store.list(SCOPE)).artifacts] == [near]


async def test_where_it_cannot_be_told_whether_a_parent_resolves_the_put_says_so() -> None:
    inner = FaultyStore(cc.MemoryStore(), head=fail(BROKEN))
    async with cc.WriteBehind(inner) as store:
        with pytest.raises(cc.StoreUnavailable, match="503"):
            await put(store, parents=["art_" + "0" * 32, "art_" + "1" * 32])
        assert inner.calls["put"] == 0


async def test_a_child_whose_parent_could_not_be_uploaded_fails_and_says_why() -> None:
    async with cc.WriteBehind(FaultyStore(cc.MemoryStore(), put=fail(BROKEN, calls=1))) as store:
        parent = (await put(store, b"parent")).meta.ref
        await put(store, b"child", parents=[parent])
        first, second = await store.flush()
        assert (first.ref, second.ref) == (parent, ref_of(b"child"))
        assert second.detail.startswith("UnknownParent: ")
        with pytest.raises(cc.UnknownParent):
            await put(store, b"another child", parents=[parent])


async def test_artifacts_that_name_each_other_and_themselves_do_not_wait_for_ever() -> None:
    inner = Gated()
    async with cc.WriteBehind(inner) as store:
        one, two = ref_of(b"1"), ref_of(b"2")
        await put(store, b"1")
        await put(store, b"2", parents=[one])
        await put(store, b"1", parents=[one, two])
        await put(store, b"2", parents=[one, two])
        await rest()
        await put(store, b"1", parents=[two])
        await put(store, b"1")
        inner.open_gate()
        with anyio.fail_after(10):
            assert await store.flush() == ()


# --- failures ---


@pytest.mark.parametrize(
    ("error", "detail"),
    [
        (cc.StoreUnavailable("the bucket is gone"), "StoreUnavailable: the bucket is gone"),
        (cc.InvalidArtifact("label is too long"), "InvalidArtifact: label is too long"),
        (OSError("key=hunter2"), "OSError"),
        (ValueError("key=hunter2"), "ValueError"),
    ],
)
async def test_a_failed_upload_is_a_notice_a_log_line_and_a_clear_answer_on_read(
    error: Exception, detail: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with cc.WriteBehind(FaultyStore(cc.MemoryStore(), put=fail(error, calls=1))) as store:
        heard = heard_by(store)
        result = await put(store)
        wanted = UploadFailed(ref=result.meta.ref, kind="test/item", bytes=7, detail=detail)
        assert await store.flush() == (wanted,)
        assert heard == [wanted]
        assert f"the upload of {wanted.ref} failed after its put had returned: {detail}" in caplog.text
        for verb in ("head", "get", "open"):
            with pytest.raises(cc.StoreUnavailable) as raised:
                await READS[verb](store)
            assert detail in str(raised.value)
            assert "its upload failed" in str(raised.value)
            assert raised.value.__cause__ is None
            assert "hunter2" not in str(raised.value)
        assert "hunter2" not in caplog.text
        assert "5ecret" not in caplog.text
        assert await store.head(ELSEWHERE, ref_of()) is None
        assert (await store.list(SCOPE)).artifacts == ()


async def test_a_failure_is_forgotten_when_a_later_put_or_stream_succeeds_or_the_artifact_is_deleted() -> None:
    async def source() -> AsyncIterator[bytes]:
        yield b"payload"

    async def stream(store: cc.WriteBehind) -> object:
        return await store.put_stream(SCOPE, source(), kind="test/item", media_type="text/plain")

    mends: list[tuple[Callable[[cc.WriteBehind], Any], bool]] = [
        (put, True),
        (stream, True),
        (lambda store: store.delete(SCOPE, ref_of()), False),
    ]
    for mend, there in mends:
        inner = cc.MemoryStore()
        async with cc.WriteBehind(FaultyStore(inner, put=fail(BROKEN, calls=1))) as store:
            await put(store)
            with pytest.raises(cc.StoreUnavailable):
                await store.head(SCOPE, ref_of())
            await mend(store)
            assert (await store.head(SCOPE, ref_of()) is not None) is there
            await inner.delete(SCOPE, ref_of())
            assert await store.head(SCOPE, ref_of()) is None


async def test_what_the_store_has_is_served_although_an_upload_of_it_failed() -> None:
    inner = cc.MemoryStore()
    async with cc.WriteBehind(FaultyStore(inner, put=fail(BROKEN))) as store:
        await put(store)
        await put(inner)  # another replica
        assert await store.get(SCOPE, ref_of()) is not None


async def test_a_failure_is_remembered_until_what_it_promised_would_have_expired() -> None:
    clock = ManualClock()
    inner = FaultyStore(cc.MemoryStore(ttl=timedelta(seconds=60), clock=clock), put=fail(BROKEN))
    async with cc.WriteBehind(inner, clock=clock) as store:
        await put(store, expires_at=clock.now + timedelta(seconds=5))
        with pytest.raises(cc.StoreUnavailable):
            await store.head(SCOPE, ref_of())
        clock.advance(5)
        assert await store.head(SCOPE, ref_of()) is None


async def test_the_failures_that_are_remembered_are_bounded_and_the_oldest_is_forgotten_first() -> None:
    async with cc.WriteBehind(FaultyStore(cc.MemoryStore(), put=fail(BROKEN))) as store:
        for number in range(MAX_REMEMBERED + 1):
            await put(store, b"%d" % number)
            await store.flush()
        assert await store.head(SCOPE, ref_of(b"0")) is None
        for number in (1, MAX_REMEMBERED):
            with pytest.raises(cc.StoreUnavailable):
                await store.head(SCOPE, ref_of(b"%d" % number))


async def test_a_store_that_gives_another_ref_has_failed() -> None:
    class Renames(Broken):
        async def put(self, scope: cc.Scope, data: bytes, **words: Any) -> cc.PutResult:
            return await super().put(scope, data + b"!", **words)

    async with cc.WriteBehind(Renames()) as store:
        await put(store)
        [failed] = await store.flush()
        assert "another ref" in failed.detail


async def test_a_listener_that_raises_does_not_end_the_uploads(caplog: pytest.LogCaptureFixture) -> None:
    async with cc.WriteBehind(FaultyStore(cc.MemoryStore(), put=fail(BROKEN, calls=1))) as store:
        store.notices.listen(lambda notice: 1 / 0)
        await put(store, b"1")
        await put(store, b"2")
        await store.flush()
        assert await store.head(SCOPE, ref_of(b"2")) is not None
    assert "ZeroDivisionError" in caplog.text


# --- bounds ---


async def test_a_put_for_which_there_is_no_room_waits_for_it_in_turn() -> None:
    inner = Gated()
    async with cc.WriteBehind(inner, max_bytes_in_flight=100) as store:
        await put(store, b"a" * 60)
        await put(store, b"b" * 40)
        order: list[bytes] = []

        async def later(data: bytes) -> None:
            await put(store, data)
            order.append(data)

        async with anyio.create_task_group() as tasks:
            for data in (b"c" * 99, b"d" * 2, b"e" * 3):
                tasks.start_soon(later, data)
                await rest()
            assert order == []
            assert len(inner.begun) == 2
            inner.open_gate()
        # The small ones do not overtake the large one.
        assert order[0] == b"c" * 99
        assert len((await store.list(SCOPE)).artifacts) == 5


async def test_a_payload_larger_than_the_whole_bound_goes_alone() -> None:
    inner = Gated()
    async with cc.WriteBehind(inner, max_bytes_in_flight=100) as store:
        await put(store, b"a" * 1000)
        async with in_background(lambda: put(store, b"b")) as results:
            await rest()
            assert results == []
            inner.open_gate()
        assert results[0].created
        assert await store.head(SCOPE, ref_of(b"a" * 1000)) is not None


async def test_a_put_that_joins_a_flight_needs_no_room() -> None:
    inner = Gated()
    async with cc.WriteBehind(inner, max_bytes_in_flight=10) as store:
        await put(store, b"a" * 10)
        with anyio.fail_after(10):
            assert not (await put(store, b"a" * 10)).created
        inner.open_gate()


async def test_a_put_that_is_cancelled_while_it_waits_for_room_leaves_nothing_and_holds_up_nobody() -> None:
    inner = Gated()
    async with cc.WriteBehind(inner, max_bytes_in_flight=10) as store:
        await put(store, b"a" * 6)
        given_up = anyio.CancelScope()

        async def give_up() -> None:
            with given_up:
                await put(store, b"b" * 10)

        async with in_background(give_up) as large:
            await rest()
            async with in_background(lambda: put(store, b"c" * 4)) as small:
                await rest()
                assert small == []  # it waits behind the large one
                given_up.cancel()
        assert given_up.cancelled_caught
        assert (large, small[0].created) == ([None], True)
        inner.open_gate()
        refs = {meta.ref for meta in (await store.list(SCOPE)).artifacts}
        assert refs == {ref_of(b"a" * 6), ref_of(b"c" * 4)}


async def test_no_more_than_so_many_uploads_run_at_once() -> None:
    inner = Gated()
    async with cc.WriteBehind(inner, concurrency=3) as store:
        for number in range(10):
            await put(store, b"%d" % number)
        await rest()
        assert len(inner.begun) == 3
        inner.open_gate()
        await store.flush()
        assert len(inner.ended) == 10


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"max_bytes_in_flight": 0}, "max_bytes_in_flight"),
        ({"max_bytes_in_flight": 1.5}, "max_bytes_in_flight"),
        ({"concurrency": True}, "concurrency"),
        ({"flush_timeout": 0}, "flush_timeout"),
    ],
)
def test_a_setting_that_cannot_be_honoured_is_refused_by_name(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(cc.ConfigurationError, match=named):
        cc.WriteBehind(cc.MemoryStore(), **settings)


@pytest.mark.parametrize("store", [None, "memory:", cc.MemoryStore, object()])
def test_what_is_no_store_is_refused(store: Any) -> None:
    with pytest.raises(cc.ConfigurationError, match="must be an ArtifactStore"):
        cc.WriteBehind(store)


# --- in a boundary ---


async def test_a_result_is_placed_before_it_is_stored_and_a_failed_upload_is_an_event_about_no_call(
    caplog: pytest.LogCaptureFixture,
) -> None:
    events: list[cc.Event] = []
    caplog.set_level(logging.CRITICAL, "coatcheck")

    async def rows() -> str:
        return "x" * 5000

    store = cc.WriteBehind(FaultyStore(cc.MemoryStore(), put=hang()), flush_timeout=0.2)
    async with cc.Boundary([rows], store=store, placement=cc.Placement(1000), on_event=events.append) as boundary:
        outcome = await boundary.session(SCOPE).call("rows")
        assert isinstance(outcome, cc.Placed)
        assert not any(isinstance(event, cc.StoreUploadFailed) for event in events)
    [event] = [event for event in events if isinstance(event, cc.StoreUploadFailed)]
    assert (event.tool, event.call_id, event.turn) == (None, None, 0)
    assert (event.ref, event.bytes) == (outcome.ticket.ref, 5000)
