"""Asyncio alone: cancellations that come from nowhere, and the write-behind store.

A stray cancellation is a failure of the one upload that met it. A real one always goes on.
"""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

import coatcheck as cc
from coatcheck.artifacts.notices import Notice
from coatcheck.testing import FaultyStore, hang
from tests.artifacts._behind import SCOPE, Gated, put, ref_of, rest
from tests.artifacts._broken import Broken

pytestmark = pytest.mark.asyncio


async def test_a_stray_cancellation_of_an_upload_is_a_failure_and_no_other_upload_feels_it() -> None:
    class Strays(Broken):
        async def put(self, scope: cc.Scope, data: bytes, **words: Any) -> cc.PutResult:
            if data == b"stray":
                raise asyncio.CancelledError
            return await super().put(scope, data, **words)

    async with cc.WriteBehind(Strays()) as store:
        await put(store, b"stray")
        await put(store, b"sound")
        [failed] = await store.flush()
        assert "cancelled" in failed.detail
        assert await store.head(SCOPE, ref_of(b"sound")) is not None
        await checkpoint()  # the block is not cancelled


async def test_a_task_that_is_cancelled_natively_while_it_has_the_store_open_flushes_it() -> None:
    inner = Gated()
    opened = anyio.Event()

    async def serve() -> None:
        async with cc.WriteBehind(inner) as store:
            await put(store)
            opened.set()
            await anyio.sleep_forever()

    server = asyncio.create_task(serve())
    await opened.wait()
    server.cancel()
    await rest()
    assert not server.done()
    inner.open_gate()
    with pytest.raises(asyncio.CancelledError):
        await server
    assert inner.ended == [b"payload"]


async def test_a_task_that_is_cancelled_again_while_it_flushes_gives_up_and_tells_it() -> None:
    heard: list[Notice] = []
    opened = anyio.Event()

    async def serve() -> None:
        async with cc.WriteBehind(FaultyStore(cc.MemoryStore(), put=hang())) as store:
            store.notices.listen(heard.append)
            await put(store)
            opened.set()
            await anyio.sleep_forever()

    server = asyncio.create_task(serve())
    await opened.wait()
    for _ in range(2):
        server.cancel()
        await rest()
    with pytest.raises(asyncio.CancelledError):
        await server
    assert len(heard) == 1
