"""Conformance cases about `ArtifactStore.put_stream` while a stream is under way, which can be for hours.

A case looks from inside the source, between two chunks. That is also where a store would hang that holds up others
until a stream has ended.

Laws: `design.md` section 5 ("No interleaving of put and sweep loses an acknowledged put"); issue 3; `cases.md` C3, D3
and D4.
"""

from __future__ import annotations

import random
from datetime import timedelta

import anyio
from anyio.lowlevel import checkpoint

from coatcheck.artifacts.meta import ArtifactMeta, PutResult, Swept
from coatcheck.artifacts.ref import digest_of, make_ref
from coatcheck.errors import InvalidArtifact
from coatcheck.scope import Scope
from coatcheck.testing.trial import (
    HOME,
    Case,
    Source,
    Trial,
    check,
    expect,
    expires,
    left_nothing,
    listed,
    opened,
    put,
    put_source,
    read,
    refuses,
    stream,
)

__all__ = ["SLOW_STREAM_CASES"]

_MIB = 1 << 20
_LARGE = bytes(range(256)) * 4096 * 3 + b"and a little more than 3 MiB"


async def _unseen(trial: Trial) -> None:
    store = await trial.store()
    beside = await trial.beside(store)
    kept = (await put(store, b"kept")).meta
    for chunks in ((b"pay", b"load"), (_LARGE, b"payload", _LARGE)):
        ref = make_ref("test/item", "text/plain", digest_of(b"".join(chunks)))

        async def look(index: int, ref: str = ref) -> None:
            for each in (store, beside):
                expect(f"head before chunk {index}", await each.head(HOME, ref), None)
                expect(f"get before chunk {index}", await each.get(HOME, ref), None)
                expect(f"open before chunk {index}", await opened(each, ref), None)
                await left_nothing(each, refs=[kept.ref])

        expect("ref", (await stream(store, *chunks, before=look)).meta.ref, ref)
        for each in (store, beside):
            expect("payload at the end", (await read(each, ref)).data, b"".join(chunks))
        await store.delete(HOME, ref)


async def _cancelled(trial: Trial) -> None:
    store = await trial.store()
    beside = await trial.beside(store)
    kept = (await put(store, b"kept")).meta.ref
    for at in range(4):
        with anyio.CancelScope() as scope:

            async def wait(index: int, at: int = at, scope: anyio.CancelScope = scope) -> None:
                if index == at:
                    scope.cancel()
                    await anyio.sleep_forever()

            await stream(store, b"some", _LARGE, b"more", before=wait)
        await left_nothing(store, beside, refs=[kept])
        expect("created afterwards", (await stream(store, b"%d" % at)).created, True)
        await store.delete(HOME, make_ref("test/item", "text/plain", digest_of(b"%d" % at)))


async def _cancelled_anywhere(trial: Trial) -> None:
    store = await trial.store()
    for number in range(24):
        chunks = [b"%d" % number * 10_000] * 8
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stream, store, *chunks)
            # Early on by steps of the loop, later by time, since the work may be done in a thread.
            for _ in range(number if number < 12 else 0):
                await checkpoint()
            await anyio.sleep(0 if number < 12 else (number - 12) * 0.0004)
            tasks.cancel_scope.cancel()
        for ref in await listed(store):
            check(await store.get(HOME, ref) is not None, "a cancelled stream left a meta without a payload")
        meta = (await stream(store, *chunks)).meta
        expect("payload when streamed again", (await read(store, meta.ref)).data, b"".join(chunks))


async def _swept_meanwhile(trial: Trial) -> None:
    store = await trial.store(ttl=100)
    sweeper = await trial.beside(store)

    async def sweep(index: int) -> None:
        await sweeper.sweep()
        trial.clock.advance(70)
        await sweeper.sweep()

    for size in (10, _MIB):
        chunks = [b"%d" % number * size for number in range(5)]
        # The second time the same content is there, and expires, and is swept while it is streamed again.
        for _ in range(2):
            meta = (await stream(store, *chunks, before=sweep)).meta
            await sweeper.sweep()
            expect("payload after a slow stream", (await read(store, meta.ref)).data, b"".join(chunks))
            trial.clock.advance(89)
            await sweeper.sweep()
            expect("payload shortly before it expires", (await read(store, meta.ref)).data, b"".join(chunks))


async def _races_sweep(trial: Trial) -> None:
    store = await trial.store(ttl=100)
    sweeper = await trial.beside(store)
    dice = random.Random(0)
    ref = (await put(store)).meta.ref

    async def stream_late(wait: int) -> None:
        async def dawdle(index: int) -> None:
            for _ in range(wait):
                await checkpoint()

        await stream(store, b"pay", b"load", before=dawdle)
        await read(store, ref)

    async def sweep_late(wait: int) -> None:
        for _ in range(wait):
            await checkpoint()
        await sweeper.sweep()

    for _ in range(60):
        # Just before the artifact expires, at the very moment, just after it.
        trial.clock.advance(dice.choice((98, 99, 100, 101, 250)))
        async with anyio.create_task_group() as tasks:
            for job in dice.sample((stream_late, stream_late, sweep_late, sweep_late), 4):
                tasks.start_soon(job, dice.randrange(6))
        expect("payload after a stream and a sweep at once", (await read(store, ref)).data, b"payload")


async def _ttl_from_the_end(trial: Trial) -> None:
    store = await trial.store(ttl=100)

    async def slow(index: int) -> None:
        trial.clock.advance(70)

    metas: list[ArtifactMeta] = []
    for _ in range(2):  # when the second one ends, the first has expired
        result = await stream(store, b"pay", b"load", before=slow)
        metas.append(result.meta)
        expect("created, and when", (result.created, result.meta.created_at), (True, trial.clock.now))
        expires(result.meta.expires_at, trial.clock.now, 100)
        expect("head", await store.head(HOME, result.meta.ref), result.meta)
    soon = trial.clock.now + timedelta(seconds=210)
    error = await refuses(
        InvalidArtifact,
        stream(store, b"la", b"te", before=slow, expires_at=soon),
        "an expiry that is over when the stream ends",
    )
    check("expires_at" in str(error), f"the refusal does not name expires_at: {error}")
    expect("what a sweep finds", await store.sweep(), (Swept(metas[0].ref, "test/item", 7, "ttl"),))


async def _at_once(trial: Trial) -> None:
    store = await trial.store()
    half = b"one" * 50_000
    results: list[PutResult] = []
    arrived = anyio.Event()

    async def gather(index: int) -> None:
        # The last chunk comes when every stream is under way, which a store that takes one at a time never sees.
        if index == 1:
            waiting.append(index)
            if len(waiting) == 8:
                arrived.set()
            await arrived.wait()

    async def stream_one() -> None:
        results.append(await stream(store, half, half, before=gather))

    async def put_one() -> None:
        await arrived.wait()
        results.append(await put(store, half + half))

    waiting: list[int] = []
    async with anyio.create_task_group() as tasks:
        for job in [stream_one, put_one] * 8:
            tasks.start_soon(job)
    expect("puts and streams that created it", sum(result.created for result in results), 1)
    expect("refs", {result.meta.ref for result in results}, {results[0].meta.ref})
    expect("rows", (await store.list(HOME)).artifacts, (results[0].meta,))
    expect("payload", (await read(store, results[0].meta.ref)).data, half + half)
    await left_nothing(store, refs=[results[0].meta.ref])


async def _used_meanwhile(trial: Trial) -> None:
    store = await trial.store()
    kept, gone = (await put(store, _LARGE)).meta, (await put(store, b"gone")).meta

    async def use(index: int) -> None:
        await put(store, b"put %d" % index)
        await stream(store, b"streamed ", b"%d" % index)
        await store.delete(HOME, gone.ref)
        expect("payload of another", (await read(store, kept.ref)).data, _LARGE)
        expect("sweep", await store.sweep(HOME), ())

    await stream(store, b"outer", before=use)
    expect("rows", len(await listed(store)), 6)
    async with store.open(HOME, kept.ref) as reader:
        copy = await put_source(store, reader, scope=Scope(conversation="elsewhere"))
    expect("a copy from a reader", (copy.created, copy.meta.digest), (True, kept.digest))


async def _asked_in_turn(trial: Trial) -> None:
    store = await trial.store()
    caller = anyio.get_current_task().id
    inside: list[int] = []

    async def watch(index: int) -> None:
        expect("the task in which the source is asked", anyio.get_current_task().id, caller)
        expect("calls of the source at once", inside, [])
        inside.append(index)
        for _ in range(3):
            await checkpoint()
        inside.clear()

    source = Source(*[b"chunk" * 50_000] * 12, before=watch)
    await put_source(store, source)
    expect("how often the source was asked", source.asked, 13)


SLOW_STREAM_CASES = (
    Case("stream-unseen", "Nothing of a stream is seen by anyone before it ends, and no sweep finds it.", _unseen),
    Case("stream-cancelled", "A stream that is cancelled while its source is slow leaves nothing.", _cancelled),
    Case("cancelled-stream", "A stream that is cancelled at any moment is whole or not there.", _cancelled_anywhere),
    Case("stream-swept", "A sweep during a slow stream harms neither it nor what it brings again.", _swept_meanwhile),
    Case("stream-races-sweep", "No interleaving of streams and sweeps loses an acknowledged one.", _races_sweep),
    Case("stream-ttl", "The life of an artifact begins when its stream has ended.", _ttl_from_the_end),
    Case("streams-at-once", "Streams and puts of one content at once make one artifact.", _at_once),
    Case("stream-holds-up-nobody", "While a source is slow, every verb works, in its own scope too.", _used_meanwhile),
    Case("stream-in-turn", "A source is asked in the task that called, for one chunk at a time.", _asked_in_turn),
)
