"""Conformance cases about many tasks at once, and about tasks that are cancelled.

Laws: `design.md` section 5 ("No interleaving of put and sweep loses an acknowledged put"); `cases.md` D4.
"""

from __future__ import annotations

import random

import anyio
from anyio.lowlevel import checkpoint

from coatcheck.artifacts.meta import PutResult
from coatcheck.testing.trial import HOME, Case, Trial, check, expect, put, read

__all__ = ["RACE_CASES"]


async def _put_races_sweep(trial: Trial) -> None:
    store = await trial.store(ttl=100)
    sweeper = await trial.beside(store)
    dice = random.Random(0)
    ref = (await put(store)).meta.ref

    async def put_late(wait: int) -> None:
        for _ in range(wait):
            await checkpoint()
        await put(store)
        await read(store, ref)

    async def sweep_late(wait: int) -> None:
        for _ in range(wait):
            await checkpoint()
        await sweeper.sweep()

    for _ in range(60):
        # Just before the artifact expires, at the very moment, just after it.
        trial.clock.advance(dice.choice((98, 99, 100, 101, 250)))
        async with anyio.create_task_group() as tasks:
            for job in dice.sample((put_late, put_late, sweep_late, sweep_late), 4):
                tasks.start_soon(job, dice.randrange(8))
        expect("payload after a put and a sweep at once", (await read(store, ref)).data, b"payload")


async def _one_key(trial: Trial) -> None:
    store = await trial.store()
    results: list[PutResult] = []

    async def put_one() -> None:
        results.append(await put(store, b"one" * 1000))

    async with anyio.create_task_group() as tasks:
        for _ in range(32):
            tasks.start_soon(put_one)
    expect("puts that created it", sum(result.created for result in results), 1)
    expect("metas", {result.meta.ref for result in results}, {results[0].meta.ref})
    expect("rows", (await store.list(HOME)).artifacts, (results[0].meta,))
    expect("payload", (await read(store, results[0].meta.ref)).data, b"one" * 1000)


async def _many_keys(trial: Trial) -> None:
    store = await trial.store(max_count=20)
    swept: list[str] = []
    stored: list[str] = []

    async def put_one(number: int) -> None:
        result = await put(store, b"%d" % number)
        stored.append(result.meta.ref)
        swept.extend(gone.ref for gone in result.swept)

    async with anyio.create_task_group() as tasks:
        for number in range(50):
            tasks.start_soon(put_one, number)
    listed = {meta.ref for meta in (await store.list(HOME)).artifacts}
    expect("rows", len(listed), 20)
    expect("evictions", len(swept), 30)
    expect("what is there and what was swept", listed | set(swept), set(stored))


async def _cancelled_put(trial: Trial) -> None:
    store = await trial.store()
    for number in range(24):
        data = b"%d" % number * 10_000
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(put, store, data)
                # Early on by steps of the loop, later by time, since the work may be done in a thread.
                for _ in range(number if number < 12 else 0):
                    await checkpoint()
                await anyio.sleep(0 if number < 12 else (number - 12) * 0.0002)
                scope.cancel()
        for meta in (await store.list(HOME)).artifacts:
            artifact = await store.get(HOME, meta.ref)
            check(artifact is not None, "a cancelled put left a meta without a payload")
        meta = (await put(store, data)).meta
        expect("payload when put again", (await read(store, meta.ref)).data, data)


RACE_CASES = (
    Case("put-races-sweep", "No interleaving of puts and sweeps loses an acknowledged put.", _put_races_sweep),
    Case("one-key-at-once", "Many puts of one content at once make one artifact.", _one_key),
    Case("many-keys-at-once", "Many puts at once keep a budget exactly, and report every eviction.", _many_keys),
    Case("cancelled-put", "A cancelled put leaves a whole artifact or none.", _cancelled_put),
)
