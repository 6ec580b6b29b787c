"""Conformance cases about `ArtifactStore.open`: reading a payload, or a part of it, piece by piece.

Laws: `design.md` section 5; issue 3. What `get` answers with ``None``, `open` does too: the cases about absence and
scopes hold both to it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import product
from typing import Any

import anyio

from coatcheck.artifacts.port import ArtifactReader, ArtifactStore
from coatcheck.artifacts.ref import digest_of, make_ref
from coatcheck.errors import IntegrityError, InvalidRange, StoreUnavailable
from coatcheck.testing.trial import (
    HOME,
    Case,
    Trial,
    Violation,
    check,
    expect,
    left_nothing,
    opened,
    put,
    read,
    refuses,
    stream,
)

__all__ = ["READER_CASES"]

_MIB = 1 << 20
_LARGEST_CHUNK = 4 * _MIB
_LARGE = bytes(range(251)) * 20_000
_LARGER = _LARGE + _LARGE[::-1]  # more than one chunk, in every store


async def _whole(trial: Trial) -> None:
    store = await trial.store()
    for verb, data in product((put, stream), (b"", b"x", b"payload", bytes(_MIB), bytes(_MIB + 1), _LARGER)):
        meta = (await verb(store, data)).meta
        async with store.open(HOME, meta.ref) as reader:
            seen = _there(reader)
            expect("meta", seen.meta, meta)
            expect("start and end", (seen.start, seen.end), (0, len(data)))
            chunks = [chunk async for chunk in seen]
        expect("types of chunks", {type(chunk) for chunk in chunks}, {bytes} if data else set())
        sizes = [len(chunk) for chunk in chunks]
        check(all(0 < size <= _LARGEST_CHUNK for size in sizes), f"chunks have {sizes!r:.200} bytes")
        check(b"".join(chunks) == data, f"a payload of {len(data)} bytes was read as {sum(sizes)}, or as others")
        await store.delete(HOME, meta.ref)


async def _rest(trial: Trial) -> None:
    store = await trial.store()
    ref = (await put(store, _LARGER)).meta.ref
    async with store.open(HOME, ref, 7) as one, store.open(HOME, ref) as other:
        first = await anext(aiter(_there(one)))
        check(await _there(other).read() == _LARGER, "two readers at once disturb each other")
        check(first + await _there(one).read() == _LARGER[7:], "read() after a chunk is not the rest")
        expect("read() at the end", await _there(one).read(), b"")


async def _part(trial: Trial) -> None:
    store = await trial.store()
    data = bytes(range(256)) * 4100 + b"and a little more than 1 MiB"
    size = len(data)
    ref = (await stream(store, data[:1000], data[1000:])).meta.ref
    starts = (0, 1, 4095, 65_536, 262_143, 262_144, _MIB - 1, _MIB, _MIB + 1, size - 1, size, size + 1, 10**15)
    for start, end in product(starts, (*starts, None)):
        if end is not None and end < start:
            continue
        last = size if end is None else min(end, size)
        async with store.open(HOME, ref, start, end) as reader:
            seen = _there(reader)
            expect(f"start and end of [{start}:{end}]", (seen.start, seen.end), (min(start, last), last))
            chunks = [chunk async for chunk in seen]
        check(b"" not in chunks, f"[{start}:{end}] has an empty chunk")
        check(b"".join(chunks) == data[start:end], f"[{start}:{end}] of {size} bytes was read as something else")
    empty = (await put(store, b"")).meta.ref
    for start, end in ((0, 0), (0, 1), (1, None), (5, 9)):
        expect(f"[{start}:{end}] of nothing", await opened(store, empty, start, end), b"")


async def _no_range(trial: Trial) -> None:
    store = await trial.store()
    there = (await put(store)).meta.ref
    never = make_ref("test/item", "text/plain", digest_of(b"never put"))
    wrong: list[tuple[Any, Any, str]] = [
        *((start, None, "start") for start in (-1, -(10**15), None, 1.0, "1", True)),
        *((3, end, "end") for end in (2, 0, -1, 4.0, "4", False)),
    ]
    # The same for every ref, or else the answer would tell which ones are there.
    for ref, (start, end, named) in product((there, never, "no ref"), wrong):
        error = await refuses(InvalidRange, opened(store, ref, start, end), f"[{start!r}:{end!r}] of {ref}")
        check(named in str(error), f"the refusal of [{start!r}:{end!r}] does not name {named}: {error}")
    expect("payload", await opened(store, there), b"payload")


async def _left(trial: Trial) -> None:
    store = await trial.store()
    ref = (await put(store, _LARGER)).meta.ref
    for _ in range(50):
        async with store.open(HOME, ref):
            pass
        async with store.open(HOME, ref, 5) as reader:
            async for _chunk in _there(reader):
                break
    own = LookupError("the reader's own")

    async def explode() -> None:
        async with store.open(HOME, ref) as reader:
            await anext(aiter(_there(reader)))
            raise own

    check(await refuses(LookupError, explode(), "an error of the one who reads") is own, "another error arrived")
    for turns in range(4):
        with anyio.CancelScope() as scope:
            async with store.open(HOME, ref) as reader:
                for _ in range(turns):
                    await anext(aiter(_there(reader)))
                scope.cancel()
                await _there(reader).read()
        check(scope.cancelled_caught, "a cancelled read went on")
    check((await read(store, ref)).data == _LARGER, "another payload after readers were left")
    await store.delete(HOME, ref)
    expect("created afterwards", (await put(store, _LARGER)).created, True)
    await left_nothing(store, refs=[ref])


async def _late(trial: Trial) -> None:
    store = await trial.store()
    ref = (await put(store, _LARGER)).meta.ref
    for start in (0, 5):
        async with store.open(HOME, ref, start) as reader:
            first = await anext(aiter(_there(reader)))
        try:
            seen = first + await _there(reader).read()
        except Exception:  # noqa: BLE001 - a store may say in any way that it is too late
            continue
        check(seen == _LARGER[start:], f"of {len(_LARGER) - start} bytes {len(seen)} were read, and then it ended")


async def _withdrawn(trial: Trial) -> None:
    async def delete(store: ArtifactStore, ref: str) -> None:
        await store.delete(HOME, ref)
        await store.sweep()

    async def expire(store: ArtifactStore, ref: str) -> None:
        trial.clock.advance(101)
        await store.sweep()

    async def evict(store: ArtifactStore, ref: str) -> None:
        for number in range(3):
            await put(store, b"%d" % number)

    async def renew(store: ArtifactStore, ref: str) -> None:
        await store.delete(HOME, ref)
        await stream(store, _LARGER)

    for withdraw, start in product((delete, expire, evict, renew), (0, 5)):
        store = await trial.store(ttl=100, max_count=3)
        ref = (await put(store, _LARGER)).meta.ref
        async with store.open(HOME, ref, start) as reader:
            seen = await anext(aiter(_there(reader)))
            await withdraw(store, ref)
            try:
                seen += await _there(reader).read()
            except (StoreUnavailable, IntegrityError):
                continue
        check(seen == _LARGER[start:], f"{len(seen)} bytes were read, and then it ended ({withdraw.__name__})")


async def _damaged(trial: Trial) -> None:
    store = await trial.store()
    damaged, sound = (await put(store, _LARGER + b"!")).meta, (await put(store, b"sound")).meta
    await trial.corrupt(store, HOME, damaged.ref)
    error = await refuses(IntegrityError, opened(store, damaged.ref), "a whole read of a changed payload")
    expect("what the error names", (error.ref, error.expected), (damaged.ref, damaged.digest))
    error = await refuses(IntegrityError, opened(store, damaged.ref, 0, damaged.bytes + 1), "a read past the end")
    expect("what the error names", (error.ref, error.expected), (damaged.ref, damaged.digest))
    part = await opened(store, damaged.ref, 3, 1000)
    expect("bytes of a part", None if part is None else len(part), 997)
    expect("head", await store.head(HOME, damaged.ref), damaged)
    expect("its neighbour", await opened(store, sound.ref), b"sound")
    await put(store, _LARGER + b"!")
    check(await opened(store, damaged.ref) == _LARGER + b"!", "it was put again, and is still damaged")


async def _resized(trial: Trial) -> None:
    data = _LARGER
    parts: list[tuple[int, int | None]] = [(0, None), (1, None), (0, 2 * _MIB), (len(data) - 10, len(data))]
    for instead, (start, end) in product((b"", data[:100], data[:-1], data + b"!", data + data), parts):
        store = await trial.store()
        ref = (await put(store, data)).meta.ref
        await trial.overwrite(store, HOME, ref, instead)

        async def attempt(store: ArtifactStore = store, ref: str = ref, part: Any = (start, end)) -> bytes | None:
            return await opened(store, ref, *part)

        seen = await _answer(attempt)
        what = f"[{start}:{end}] of a payload of {len(instead)} bytes that had {len(data)}"
        check(
            seen is None or seen == data[start:end], f"{what} was read as {len(seen or b'')} bytes, and then it ended"
        )


async def _lost(trial: Trial) -> None:
    store = await trial.store()
    for start, end in ((0, None), (2, 5)):
        ref = (await put(store)).meta.ref
        await trial.unlink(store, HOME, ref)
        expect("open without a payload", await opened(store, ref, start, end), None)
        expect("created when put again", (await stream(store, b"pay", b"load")).created, True)
        expect("payload when put again", await opened(store, ref, start, end), b"payload"[start:end])
        await store.delete(HOME, ref)


async def _answer(call: Callable[[], Awaitable[bytes | None]]) -> bytes | None:
    """What a call gives, where an error that a store may raise for a damaged payload is ``None`` too."""
    try:
        return await call()
    except (IntegrityError, StoreUnavailable):
        return None


def _there(reader: ArtifactReader | None) -> ArtifactReader:
    if reader is None:
        raise Violation("what was just put cannot be opened")
    return reader


READER_CASES = (
    Case("open-whole", "A payload is read as it was put, in chunks of a few megabytes at most.", _whole),
    Case("open-rest", "What was not read yet can be read at once, and readers do not disturb each other.", _rest),
    Case("open-part", "Any part of a payload is read as that part, and one past the end as what there is.", _part),
    Case("open-no-range", "A part that cannot be is refused, whether the artifact is there or not.", _no_range),
    Case("open-left", "A reader may be left at any time, and nothing is held up by it.", _left),
    Case("open-late", "A reader that is read after it was left never ends before the payload does.", _late),
    Case("open-withdrawn", "What is withdrawn while it is read is read to its end, or is an error.", _withdrawn),
    Case("open-damaged", "A whole read of a changed payload is an error in place of its end.", _damaged),
    Case("open-resized", "A payload of another length than was put is never read as if it were whole.", _resized),
    Case("open-lost", "An artifact whose payload is gone cannot be opened, and is stored again by a stream.", _lost),
)
