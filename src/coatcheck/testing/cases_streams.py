"""Conformance cases about `ArtifactStore.put_stream`: what a stream becomes, and what is refused.

Laws: `design.md` section 5; issue 3; `cases.md` C4, D1 and E3. What is true while one is under way:
`coatcheck.testing.cases_slow_streams`.
"""

from __future__ import annotations

from array import array
from datetime import timedelta
from typing import Any

import anyio

from coatcheck.artifacts.meta import Artifact, PutResult, Swept
from coatcheck.artifacts.ref import digest_of, make_ref
from coatcheck.errors import InvalidArtifact, StoreUnavailable, UnknownParent
from coatcheck.scope import Scope
from coatcheck.testing.cases_content import malformed_words
from coatcheck.testing.trial import (
    HOME,
    Case,
    Source,
    Trial,
    check,
    expect,
    left_nothing,
    listed,
    opened,
    put,
    put_source,
    read,
    refuses,
    stream,
)

__all__ = ["STREAM_CASES"]

_ELSEWHERE = Scope(conversation="elsewhere")
_MIB = 1 << 20
_LARGE = bytes(range(256)) * 4096 * 3 + b"and a little more than 3 MiB"


async def _any_chunks(trial: Trial) -> None:
    store = await trial.store()
    chunkings: list[tuple[bytes, ...]] = [
        (),
        (b"payload",),
        (b"", b"pay", b"", b"", b"load again", b""),
        tuple(b"%d," % number for number in range(1000)),
        (_LARGE,),
        tuple(_LARGE[start : start + 300_001] for start in range(0, len(_LARGE), 300_001)),
        (b"x" * (_MIB - 1), b"y", b"z" * _MIB, b""),
    ]
    for chunks in chunkings:
        data = b"".join(chunks)
        wanted = (await put(store, data, scope=_ELSEWHERE, label="a label", origin={"call": "c-7"})).meta
        result = await stream(store, *chunks, label="a label", origin={"call": "c-7"})
        expect("what a stream makes, and a put of the same bytes", result, PutResult(wanted, created=True))
        expect("head", await store.head(HOME, wanted.ref), wanted)
        expect("get", await read(store, wanted.ref), Artifact(wanted, data))
        await store.delete(HOME, wanted.ref)


async def _same_content(trial: Trial) -> None:
    store = await trial.store()
    parent = (await put(store, b"parent")).meta.ref
    soon, later = (trial.clock.now + timedelta(seconds=seconds) for seconds in (50, 100))
    for number, verbs in enumerate([(put, stream), (stream, put), (stream, stream)]):
        data, (one, other) = b"%d" % number, verbs
        first = (await one(store, data, label="first", origin={"call": "1"}, parents=[parent], expires_at=soon)).meta
        trial.clock.advance(1)
        again = await other(store, data, label="second", origin={"call": "2"}, expires_at=later)
        expect("created of the second", again.created, False)
        expect("first put's words", (again.meta.label, again.meta.origin), ("first", {"call": "1"}))
        expect(
            "first put's parents and time", (again.meta.parents, again.meta.created_at), ((parent,), first.created_at)
        )
        expect("expiry", (first.expires_at, again.meta.expires_at), (soon, later))
        expect("expiry, which only grows", (await one(store, data, expires_at=soon)).meta.expires_at, later)
        expect("ref", again.meta.ref, first.ref)
        expect("rows", len(await listed(store)), number + 2)


async def _reused_buffer(trial: Trial) -> None:
    store = await trial.store()
    for size in (4, 2 * _MIB):
        buffer = bytearray(size)

        async def refill(index: int, buffer: bytearray = buffer, size: int = size) -> None:
            # It also grows and shrinks, which it cannot as long as anyone holds a view of it.
            buffer[:] = b"x" * (size + 1)
            buffer[:] = b"%d" % index * size

        meta = (await stream(store, buffer, buffer, buffer, before=refill)).meta
        wanted = b"".join(b"%d" % index * size for index in range(3))
        check((await read(store, meta.ref)).data == wanted, "a chunk changed when its producer used the buffer again")

    narrow = await trial.store(max_bytes=1000)
    for refused in (bytearray(2000), bytearray(b"twice") * 150):
        try:
            await stream(narrow, refused, refused)
        except InvalidArtifact:
            refused.clear()  # as a producer may that is told to end: nor does the error hold a view
        else:
            check(False, "more than max_bytes was accepted")

    views = (memoryview(b"0123456789")[::3], memoryview(array("I", [1, 2, 3])), memoryview(bytearray(b"bytes")))
    wanted = b"".join(map(bytes, views))
    expect("payload of views", (await read(store, (await stream(store, *views)).meta.ref)).data, wanted)


async def _media_type(trial: Trial) -> None:
    store = await trial.store()
    source = Source(b"a,b\n", b"1,2\n")
    caller = anyio.get_current_task().id
    asked: list[bool] = []

    def decide() -> str:
        expect("the task in which the function is asked", anyio.get_current_task().id, caller)
        asked.append(source.ended)
        return "Text/CSV; charset=utf-8"

    meta = (await put_source(store, source, media_type=decide)).meta
    expect("when the function was asked, and whether the source had ended then", asked, [True])
    expect("media type", meta.media_type, "text/csv")
    expect("ref", meta.ref, make_ref("test/item", "text/csv", digest_of(b"a,b\n1,2\n")))
    expect("head", await store.head(HOME, meta.ref), meta)

    for answer in ("text", "", "text/plain\n", None, 7):
        malformed: Any = lambda answer=answer: answer  # noqa: E731 - a function is what the case is about
        error = await refuses(InvalidArtifact, stream(store, b"x", media_type=malformed), f"media type {answer!r}")
        check("media_type" in str(error), f"the refusal does not name media_type: {error}")
    own = LookupError("the function's own")

    def fails() -> str:
        raise own

    check(await refuses(LookupError, stream(store, b"x", media_type=fails), "a failing function") is own, "another")
    await left_nothing(store, refs=[meta.ref])


async def _source_raises(trial: Trial) -> None:
    store = await trial.store()
    beside = await trial.beside(store)
    kept = (await put(store, b"kept")).meta.ref
    chunks = (b"some", _LARGE, b"more")
    for number, kind in enumerate((ValueError, OSError, KeyError, StoreUnavailable, InvalidArtifact, TimeoutError)):
        own = kind("the source's own")

        async def explode(index: int, at: int = number % 4, own: Exception = own) -> None:
            if index == at:
                raise own

        seen = await refuses(Exception, stream(store, *chunks, before=explode), "a source that raises")
        check(seen is own, f"the source raised {own!r}, and {seen!r} arrived")
        await left_nothing(store, beside, refs=[kept])
    expect(
        "payload, when it goes well",
        (await read(store, (await stream(store, *chunks)).meta.ref)).meta.bytes,
        len(b"".join(chunks)),
    )


async def _wrong_chunk(trial: Trial) -> None:
    store = await trial.store()
    for chunk in ("5ecret", None, 7, [b"5ecret"], array("b", b"5ecret")):
        for index in (0, 2):
            source = Source(*[b"right"] * index, chunk, b"right")
            error = await refuses(InvalidArtifact, put_source(store, source), f"a chunk that is {type(chunk).__name__}")
            check(f"source[{index}]" in str(error), f"the refusal does not name source[{index}]: {error}")
            check("5ecret" not in str(error), f"the refusal quotes the chunk: {error}")
            expect("how often the source was asked", source.asked, index + 1)
    await left_nothing(store, refs=[])


async def _over_budget(trial: Trial) -> None:
    store = await trial.store(max_bytes=1000)
    kept = [(await put(store, data)).meta.ref for data in (b"1" * 400, b"2" * 600)]
    for size, wanted in ((100, 11), (300, 4), (1000, 2), (1001, 1), (2 * _MIB, 1)):
        source = Source(*[b"x" * size] * 50)
        error = await refuses(InvalidArtifact, put_source(store, source), "more than max_bytes")
        check("max_bytes" in str(error), f"the refusal does not name max_bytes: {error}")
        expect(f"how often the source was asked for {size} bytes", source.asked, wanted)
        await left_nothing(store, refs=kept)
    expect("created at exactly the budget", (await stream(store, *[b"x" * 100] * 10)).created, True)


async def _budgets(trial: Trial) -> None:
    for budget, reason in (({"max_count": 3}, "max-count"), ({"max_bytes": 3000}, "max-bytes")):
        store = await trial.store(**budget)
        refs: list[str] = []
        for number in range(8):

            async def look(index: int, refs: list[str] = refs, store: Any = store) -> None:
                expect("what is there until a stream ends", sorted(await listed(store)), sorted(refs[-3:]))

            result = await stream(store, b"%d" % number * 400, b"%d" % number * 600, before=look)
            gone = tuple(Swept(ref, "test/item", 1000, reason) for ref in refs[-3:-2])  # type: ignore[arg-type] # one of the two reasons above
            expect("what was swept", result.swept, gone)
            refs.append(result.meta.ref)
            trial.clock.advance(1)
        again = await stream(store, b"7" * 1000)
        expect("what was swept by the same content again", (again.created, again.swept), (False, ()))
        expect("what stayed", await listed(store), refs[:-4:-1])


async def _unknown_parent(trial: Trial) -> None:
    store = await trial.store()
    near = (await put(store, b"near")).meta.ref
    foreign = (await put(store, b"foreign", scope=_ELSEWHERE)).meta.ref
    never = make_ref("test/item", "text/plain", digest_of(b"never put"))
    call = stream(store, b"orphan", parents=[near, never, foreign, "no ref"])
    error = await refuses(UnknownParent, call, "parents that do not resolve")
    expect("parents that the refusal names", error.refs, (never, foreign, "no ref"))
    await left_nothing(store, refs=[near])
    expect("parents", (await stream(store, b"child", parents=[near])).meta.parents, (near,))


async def _malformed(trial: Trial) -> None:
    store = await trial.store()
    for word in malformed_words(trial.clock.now):
        [field] = word
        source = Source(b"payload")
        error = await refuses(InvalidArtifact, put_source(store, source, **word), f"{word!r:.80}")
        check(field in str(error), f"the refusal of {word!r:.80} does not name {field}: {error}")
        expect(f"how often the source was asked with {word!r:.80}", source.asked, 0)
    for wrong in ("text", b"bytes", None, 7, [b"a list"], iter([b"an iterator"]), Source):
        error = await refuses(InvalidArtifact, put_source(store, wrong), f"source={wrong!r:.40}")
        check("source" in str(error), f"the refusal of {wrong!r:.40} does not name the source: {error}")
    await left_nothing(store, refs=[])


async def _own_scope(trial: Trial) -> None:
    store = await trial.store()
    mine = await stream(store, b"pay", b"load", label="mine")
    expect("open elsewhere", await opened(store, mine.meta.ref, scope=_ELSEWHERE), None)
    theirs = await stream(store, b"payload", label="theirs", scope=_ELSEWHERE)
    expect("created in the second scope", theirs.created, True)
    expect("refs of one payload", theirs.meta.ref, mine.meta.ref)
    expect("list of the first", (await store.list(HOME)).artifacts, (mine.meta,))
    expect("list of the second", (await store.list(_ELSEWHERE)).artifacts, (theirs.meta,))


STREAM_CASES = (
    Case("stream-any-chunks", "A stream is stored as a put of the same bytes, whatever its chunks.", _any_chunks),
    Case(
        "stream-same-content",
        "A stream and a put of the same bytes are one artifact, and the first one's words stand.",
        _same_content,
    ),
    Case("stream-buffers", "A chunk is taken at once: its producer may change or resize the buffer.", _reused_buffer),
    Case("stream-media-type", "A media type may be a function, asked once when the source has ended.", _media_type),
    Case("stream-raises", "What a source raises goes on unchanged, and nothing of the stream is left.", _source_raises),
    Case("stream-wrong-chunk", "A chunk that is no bytes is refused by its number, and leaves nothing.", _wrong_chunk),
    Case("stream-oversized", "More than the whole budget is refused as soon as it is known.", _over_budget),
    Case("stream-budgets", "Budgets hold when a stream has ended, not before, and evictions are told.", _budgets),
    Case("stream-parents", "A stream with a parent that does not resolve is refused, and names it.", _unknown_parent),
    Case("stream-malformed", "A malformed word is refused before the source is asked for anything.", _malformed),
    Case("stream-scope", "A stream belongs to its own scope.", _own_scope),
)
