"""What the suites of the write-behind store share: an inner store whose puts wait, and hands to watch them with."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
from anyio.lowlevel import checkpoint

import coatcheck as cc
from coatcheck.artifacts.notices import Notice
from coatcheck.artifacts.ref import digest_of
from tests.artifacts._broken import Broken

SCOPE = cc.Scope(tenant="t-5ecret", principal="p-5ecret", conversation="c")
ELSEWHERE = cc.Scope(conversation="elsewhere")
BROKEN = cc.StoreUnavailable("503")


class Gated(Broken):
    """A memory store whose puts wait until they are let through; it notes what began and what ended."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.begun: list[bytes] = []
        self.ended: list[bytes] = []
        self.words: list[dict[str, Any]] = []
        self._gate = anyio.Event()

    def open_gate(self) -> None:
        self._gate.set()

    async def put(self, scope: cc.Scope, data: bytes, **words: Any) -> cc.PutResult:
        self.begun.append(data)
        self.words.append(words)
        await self._gate.wait()
        result = await super().put(scope, data, **words)
        self.ended.append(data)
        return result


async def put(store: cc.ArtifactStore, data: bytes = b"payload", scope: cc.Scope = SCOPE, **words: Any) -> cc.PutResult:
    return await store.put(scope, data, **{"kind": "test/item", "media_type": "text/plain", **words})


def ref_of(data: bytes = b"payload") -> str:
    return cc.make_ref("test/item", "text/plain", digest_of(data))


def heard_by(store: cc.WriteBehind) -> list[Notice]:
    heard: list[Notice] = []
    store.notices.listen(heard.append)
    return heard


async def opened(store: cc.ArtifactStore) -> bytes | None:
    """What a reader of the payload gives, from its second byte."""
    async with store.open(SCOPE, ref_of(), 1) as reader:
        return None if reader is None else await reader.read()


async def idle(holds: Callable[[], object]) -> None:
    """Let the other tasks run until something holds."""
    with anyio.fail_after(20):
        while not holds():
            await checkpoint()


async def rest() -> None:
    """Let the other tasks go as far as they can."""
    for _ in range(50):
        await checkpoint()


@asynccontextmanager
async def in_background(*jobs: Callable[[], Any]) -> AsyncIterator[list[Any]]:
    """Run jobs beside the block, and collect what they return; each must end."""
    results: list[Any] = []

    async def run(job: Callable[[], Any]) -> None:
        results.append(await job())

    async with anyio.create_task_group() as tasks:
        for job in jobs:
            tasks.start_soon(run, job)
        yield results
