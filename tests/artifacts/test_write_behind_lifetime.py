"""The write-behind store from its opening to its closing: what is in flight lands, or is told.

Laws: `design.md` section 5 ("Write-behind").
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import pytest

import coatcheck as cc
from coatcheck.artifacts.notices import Notice, Notices, UploadFailed, UploadLeft
from coatcheck.artifacts.retention import Retention
from coatcheck.testing import FaultyStore, fail, hang
from tests.artifacts._behind import BROKEN, SCOPE, Gated, heard_by, idle, opened, put, ref_of, rest
from tests.artifacts._broken import Broken

pytestmark = pytest.mark.anyio


async def test_closing_waits_until_everything_has_landed() -> None:
    inner = Gated()
    async with anyio.create_task_group() as tasks:

        async def serve() -> None:
            async with cc.WriteBehind(inner) as store:
                for number in range(5):
                    await put(store, b"%d" % number)

        tasks.start_soon(serve)
        await idle(lambda: len(inner.begun) == 5)
        inner.open_gate()
    assert len(inner.ended) == 5


async def test_closing_flushes_although_whoever_has_it_open_is_cancelled() -> None:
    inner = Gated()
    async with anyio.create_task_group() as outside:
        with anyio.CancelScope() as server:
            async with cc.WriteBehind(inner) as store:
                await put(store)

                async def let_through() -> None:
                    await rest()
                    inner.open_gate()

                outside.start_soon(let_through)
                server.cancel()
                await anyio.sleep_forever()
    assert server.cancelled_caught
    assert inner.ended == [b"payload"]


async def test_what_has_not_landed_when_the_time_of_the_closing_is_over_is_given_up_and_told() -> None:
    inner = FaultyStore(cc.MemoryStore(), put=hang())
    heard: list[Notice] = []
    async with cc.WriteBehind(inner, flush_timeout=0.2, concurrency=2) as store:
        store.notices.listen(heard.append)
        refs = {(await put(store, b"%d" % number)).meta.ref for number in range(5)}
    failed = [notice for notice in heard if isinstance(notice, UploadFailed)]
    assert {notice.ref for notice in failed} == refs
    assert all("closed" in notice.detail for notice in failed)


async def test_an_error_in_the_block_comes_out_as_it_is_after_the_flush() -> None:
    inner = Gated()
    inner.open_gate()

    async def serve() -> None:
        async with cc.WriteBehind(inner) as store:
            await put(store)
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        await serve()
    assert inner.ended == [b"payload"]


async def test_a_put_during_the_closing_is_refused_also_where_it_waits_for_room_and_reads_are_served() -> None:
    inner = Gated()
    answers: list[str] = []
    async with anyio.create_task_group() as tasks:
        store = cc.WriteBehind(inner, max_bytes_in_flight=10)
        leave = anyio.Event()

        async def serve() -> None:
            async with store:
                await leave.wait()

        async def refused(data: bytes) -> None:
            with pytest.raises(cc.StoreUnavailable, match="closed"):
                await put(store, data)
            answers.append("refused")

        async def served() -> None:
            answers.append("served" if await store.head(SCOPE, ref_of(b"a" * 10)) else "not there")

        tasks.start_soon(serve)
        await rest()
        await put(store, b"a" * 10)
        tasks.start_soon(refused, b"waits")
        await rest()
        leave.set()
        await rest()
        tasks.start_soon(refused, b"late")
        tasks.start_soon(served)
        await rest()
        inner.open_gate()
    assert sorted(answers) == ["refused", "refused", "served"]
    assert inner.ended == [b"a" * 10]


async def test_before_it_is_opened_and_after_it_was_closed_every_verb_says_so() -> None:
    async def source() -> AsyncIterator[bytes]:
        yield b"payload"

    store = cc.WriteBehind(cc.MemoryStore())
    verbs: list[Callable[[], Any]] = [
        lambda: put(store),
        lambda: store.put_stream(SCOPE, source(), kind="test/item", media_type="text/plain"),
        lambda: store.head(SCOPE, ref_of()),
        lambda: store.get(SCOPE, ref_of()),
        lambda: opened(store),
        lambda: store.delete(SCOPE, ref_of()),
        lambda: store.list(SCOPE),
        lambda: store.sweep(),
        lambda: store.flush(),
    ]
    for _ in range(2):
        for verb in verbs:
            with pytest.raises(cc.StoreUnavailable, match="WriteBehind is not open"):
                await verb()
        async with store:
            await put(store)
            assert await store.head(SCOPE, ref_of()) is not None


async def test_it_may_be_opened_again_inside_and_the_outermost_closing_counts() -> None:
    async with cc.WriteBehind(cc.MemoryStore()) as store:
        async with cc.Boundary(store=store):
            await put(store, b"1")
        await put(store, b"2")
        assert len((await store.list(SCOPE)).artifacts) == 2
    with pytest.raises(cc.StoreUnavailable):
        await store.flush()


async def test_another_task_cannot_open_it_while_it_is_open() -> None:
    async with cc.WriteBehind(cc.MemoryStore()) as store:

        async def other() -> None:
            with pytest.raises(cc.ConfigurationError, match="open in another task"):
                await store.__aenter__()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(other)


async def test_an_inner_store_that_cannot_be_opened_leaves_it_closed_and_it_can_be_tried_again() -> None:
    store = cc.WriteBehind(FaultyStore(cc.MemoryStore(), enter=fail(BROKEN, calls=1)))
    with pytest.raises(cc.StoreUnavailable, match="503"):
        await store.__aenter__()
    with pytest.raises(cc.StoreUnavailable, match="not open"):
        await put(store)
    async with store:
        await put(store)


async def test_the_notices_of_the_inner_store_are_told_again_until_it_is_closed() -> None:
    class Tells(Broken):
        def __init__(self) -> None:
            super().__init__()
            self.notices = Notices()

        async def __aexit__(self, *_: object) -> None:
            self.notices.tell(UploadLeft(upload_id="closing", detail="503"))

    inner = Tells()
    store = cc.WriteBehind(inner)
    heard = heard_by(store)
    async with store:
        inner.notices.tell(UploadLeft(upload_id="open", detail="503"))
    inner.notices.tell(UploadLeft(upload_id="closed", detail="503"))
    assert [notice.upload_id for notice in heard if isinstance(notice, UploadLeft)] == ["open", "closing"]


async def test_it_has_usage_and_retention_where_the_inner_store_has_them() -> None:
    store = cc.WriteBehind(cc.MemoryStore())
    assert not hasattr(store, "usage")
    assert cc.WriteBehind(Broken()).retention is None
    assert cc.WriteBehind(cc.MemoryStore(max_count=7)).retention == Retention(max_bytes=32 << 20, max_count=7)
