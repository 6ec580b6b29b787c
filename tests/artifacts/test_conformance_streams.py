"""The cases about streams and readers can tell a broken store: for each of them there is a store here that it catches.

The broken stores collect what they stream, since what is broken matters and not how.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from coatcheck.artifacts.meta import ArtifactMeta, PutResult, Swept
from coatcheck.artifacts.port import ArtifactReader
from coatcheck.artifacts.ref import is_ref
from coatcheck.errors import CoatcheckError, StoreError, StoreUnavailable, UnknownParent
from coatcheck.scope import Scope
from coatcheck.testing import MakeStore, check_store
from coatcheck.testing.cases_readers import READER_CASES
from coatcheck.testing.cases_slow_streams import SLOW_STREAM_CASES
from coatcheck.testing.cases_streams import STREAM_CASES
from coatcheck.testing.trial import HOME
from tests.artifacts._broken import HANDS, Broken

pytestmark = pytest.mark.anyio

CASE_IDS = {case.id for case in (*STREAM_CASES, *SLOW_STREAM_CASES, *READER_CASES)}


class Chunks:
    """Chunks for a reader, or of a source; no generator, which would have to be closed."""

    def __init__(self, *chunks: bytes) -> None:
        self.rest = list(chunks)

    def __aiter__(self) -> Chunks:
        return self

    async def __anext__(self) -> bytes:
        await checkpoint()
        if not self.rest:
            raise StopAsyncIteration
        return self.rest.pop(0)


class WithoutStreams(Broken):
    """A store that was written before the port had streams: a property without a getter is an AttributeError."""

    put_stream = property()
    open = property()


async def test_a_store_without_streams_fails_every_case_about_them() -> None:
    report = await check_store(WithoutStreams, only=CASE_IDS, **HANDS)
    assert {result.id for result in report.failures} == CASE_IDS, str(report)


# --- put_stream ---


async def chunks_of(source: AsyncIterable[Any]) -> list[Any]:
    return [chunk async for chunk in source]


class LosesTheLastChunk(Broken):
    async def put_stream(self, scope: Scope, source: AsyncIterable[bytes], **words: Any) -> PutResult:
        return await self.inner.put_stream(scope, Chunks(*(await chunks_of(source))[:-1]), **words)


class StreamsReplaceWhatIsThere(Broken):
    async def put_stream(self, scope: Scope, source: AsyncIterable[bytes], **words: Any) -> PutResult:
        result = await self.inner.put_stream(scope, Chunks(*await chunks_of(source)), **words)
        if not result.created:
            artifact = await self.inner.get(scope, result.meta.ref)
            assert artifact is not None
            await self.inner.delete(scope, result.meta.ref)
            return await self.inner.put(scope, artifact.data, **words)
        return result


class KeepsChunksAsTheyCame(Broken):
    async def put_stream(self, scope: Scope, source: AsyncIterable[bytes], **words: Any) -> PutResult:
        return await self.inner.put_stream(scope, Chunks(*await chunks_of(source)), **words)


class HoldsAView(Broken):
    async def put_stream(self, scope: Scope, source: AsyncIterable[bytes], **words: Any) -> PutResult:
        async def held() -> AsyncIterator[bytes]:
            async for chunk in source:
                views.append(memoryview(chunk))
                yield bytes(chunk)

        views: list[memoryview] = []
        return await self.inner.put_stream(scope, held(), **words)


class AsksForTheTypeFirst(Broken):
    async def put_stream(self, scope: Scope, source: AsyncIterable[bytes], **words: Any) -> PutResult:
        if callable(words["media_type"]):
            words["media_type"] = words["media_type"]()
        return await self.inner.put_stream(scope, source, **words)


class PublishesAsItGoes(Broken):
    async def put_stream(self, scope: Scope, source: AsyncIterable[bytes], **words: Any) -> PutResult:
        result = await self.inner.put(scope, b"", **words)
        data = b""
        async for chunk in source:
            data += chunk
            await self.inner.delete(scope, result.meta.ref)
            result = await self.inner.put(scope, data, **words)
        return result


class SweepsWhatIsBeingWritten(Broken):
    """A sweep that takes a file that is being written for one that a crash left."""

    writing = 0
    lost = 0

    async def put_stream(self, scope: Scope, source: AsyncIterable[bytes], **words: Any) -> PutResult:
        lost = self.lost
        self.writing += 1
        try:
            chunks = await chunks_of(source)
        finally:
            self.writing -= 1
        if lost < self.lost:
            raise StoreUnavailable("the file has gone")
        return await self.inner.put_stream(scope, Chunks(*chunks), **words)

    async def sweep(self, scope: Scope | None = None, *, dry_run: bool = False) -> tuple[Swept, ...]:
        swept = await self.inner.sweep(scope, dry_run=dry_run)
        self.lost += self.writing
        return swept + (Swept("", "", 1, "orphan"),) * self.writing


class WrapsWhatASourceRaises(Broken):
    async def put_stream(self, scope: Scope, source: AsyncIterable[bytes], **words: Any) -> PutResult:
        try:
            return await self.inner.put_stream(scope, source, **words)
        except OSError as error:
            raise StoreUnavailable(str(error)) from error


class KeepsWhatCameBeforeAnError(Broken):
    async def put_stream(self, scope: Scope, source: AsyncIterable[bytes], **words: Any) -> PutResult:
        chunks: list[bytes] = []
        try:
            async for chunk in source:
                chunks += [chunk]
        except Exception:
            await self.inner.put(scope, b"".join(chunks), **words)
            raise
        return await self.inner.put_stream(scope, Chunks(*chunks), **words)


class LeavesAFileWhenItIsCancelled(Broken):
    files = 0

    async def put_stream(self, scope: Scope, source: AsyncIterable[bytes], **words: Any) -> PutResult:
        self.files += 1
        try:
            result = await self.inner.put_stream(scope, source, **words)
        except Exception:
            self.files -= 1
            raise
        self.files -= 1
        return result

    async def sweep(self, scope: Scope | None = None, *, dry_run: bool = False) -> tuple[Swept, ...]:
        return await self.inner.sweep(scope, dry_run=dry_run) + (Swept("", "", 1, "orphan"),) * self.files


class ListsBeforeItIsWritten(Broken):
    """It says in two steps that an artifact is there, and that it can be read."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.torn: set[str] = set()

    async def put_stream(self, scope: Scope, source: AsyncIterable[bytes], **words: Any) -> PutResult:
        result = await self.inner.put_stream(scope, source, **words)
        self.torn.add(result.meta.ref)
        for _ in range(20):
            await checkpoint()
        await anyio.sleep(0.001)
        self.torn.remove(result.meta.ref)
        return result

    async def get(self, scope: Scope, ref: str) -> Any:
        return None if ref in self.torn else await self.inner.get(scope, ref)


class TakesText(Broken):
    async def put_stream(self, scope: Scope, source: AsyncIterable[bytes], **words: Any) -> PutResult:
        async def encoded() -> AsyncIterator[bytes]:
            async for chunk in source:
                yield chunk.encode() if isinstance(chunk, str) else chunk

        return await self.inner.put_stream(scope, encoded(), **words)


class DrainsBeforeItJudges(Broken):
    async def put_stream(self, scope: Scope, source: AsyncIterable[bytes], **words: Any) -> PutResult:
        return await self.inner.put_stream(scope, Chunks(*await chunks_of(source)), **words)


class MakesRoomForAStream(Broken):
    async def put_stream(self, scope: Scope, source: AsyncIterable[bytes], **words: Any) -> PutResult:
        metas = (await self.inner.list(scope, limit=1000)).artifacts
        gone = metas[-1:] if len(metas) == 3 else ()
        for meta in gone:
            await self.inner.delete(scope, meta.ref)
        result = await self.inner.put_stream(scope, source, **words)
        return PutResult(result.meta, result.created, tuple(Swept(m.ref, m.kind, m.bytes, "max-count") for m in gone))


class ForgetsWhatAStreamEvicts(Broken):
    async def put_stream(self, scope: Scope, source: AsyncIterable[bytes], **words: Any) -> PutResult:
        result = await self.inner.put_stream(scope, source, **words)
        return PutResult(result.meta, result.created)


class StreamsTrustParents(Broken):
    async def put_stream(self, scope: Scope, source: AsyncIterable[bytes], **words: Any) -> PutResult:
        try:
            return await self.inner.put_stream(scope, source, **words)
        except UnknownParent:
            return await self.inner.put_stream(scope, source, **{**words, "parents": ()})


class AsksBeforeItJudges(Broken):
    async def put_stream(self, scope: Scope, source: AsyncIterable[bytes], **words: Any) -> PutResult:
        first = await anext(aiter(source), b"")

        async def all_of_it() -> AsyncIterator[bytes]:
            yield first
            async for chunk in source:
                yield chunk

        return await self.inner.put_stream(scope, all_of_it(), **words)


class SkipsWhatWasThere(Broken):
    """What is there when a stream begins is not stored again when it ends (`cases.md` D3)."""

    async def put_stream(self, scope: Scope, source: AsyncIterable[bytes], **words: Any) -> PutResult:
        before = {meta.ref: meta for meta in (await self.inner.list(scope, limit=1000)).artifacts}
        chunks = await chunks_of(source)
        made = await type(self.inner)().put_stream(HOME, Chunks(*chunks), **{**words, "parents": ()})
        if made.meta.ref in before:
            return PutResult(before[made.meta.ref], created=False)
        return await self.inner.put_stream(scope, Chunks(*chunks), **words)


class SweepsInTwoSteps(Broken):
    """It looks what has expired, and then deletes it, whatever has come in between (`cases.md` D4)."""

    async def sweep(self, scope: Scope | None = None, *, dry_run: bool = False) -> tuple[Swept, ...]:
        swept = await self.inner.sweep(scope, dry_run=True)
        for gone in swept:
            await checkpoint()
            await self.inner.delete(HOME if scope is None else scope, gone.ref)
        return swept


class LivesFromTheBeginning(Broken):
    async def put_stream(self, scope: Scope, source: AsyncIterable[bytes], **words: Any) -> PutResult:
        ttl = self.inner._retention.ttl
        assert ttl is not None
        return await self.inner.put_stream(scope, source, **{**words, "expires_at": self.inner._clock() + ttl})


class OneStreamAtATime(Broken):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.lock = anyio.Lock()

    async def put_stream(self, scope: Scope, source: AsyncIterable[bytes], **words: Any) -> PutResult:
        async with self.lock:
            return await self.inner.put_stream(scope, source, **words)


class EveryStreamCreates(Broken):
    async def put_stream(self, scope: Scope, source: AsyncIterable[bytes], **words: Any) -> PutResult:
        result = await self.inner.put_stream(scope, source, **words)
        return PutResult(result.meta, created=True, swept=result.swept)


class PullsInAnotherTask(Broken):
    async def put_stream(self, scope: Scope, source: AsyncIterable[bytes], **words: Any) -> PutResult:
        async def pull() -> None:
            chunks.extend(await chunks_of(source))

        chunks: list[bytes] = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pull)
        return await self.inner.put_stream(scope, Chunks(*chunks), **words)


class OneScopeForStreams(Broken):
    async def put_stream(self, scope: Scope, source: AsyncIterable[bytes], **words: Any) -> PutResult:
        return await self.inner.put_stream(HOME, source, **words)


class StreamsTakeAnyScope(Broken):
    async def put_stream(self, scope: Scope, source: AsyncIterable[bytes], **words: Any) -> PutResult:
        taken = scope if isinstance(scope, Scope) else Scope(conversation=repr(scope))
        return await self.inner.put_stream(taken, source, **words)


class StreamsTellSecrets(Broken):
    async def put_stream(self, scope: Scope, source: AsyncIterable[bytes], **words: Any) -> PutResult:
        try:
            return await self.inner.put_stream(scope, source, **words)
        except CoatcheckError as error:
            raise StoreError(f"{scope.tenant}: {error}") from None


BROKEN_STREAMS: list[tuple[MakeStore, set[str]]] = [
    (LosesTheLastChunk, {"stream-any-chunks"}),
    (StreamsReplaceWhatIsThere, {"stream-same-content"}),
    (KeepsChunksAsTheyCame, {"stream-buffers"}),
    (HoldsAView, {"stream-buffers"}),
    (AsksForTheTypeFirst, {"stream-media-type"}),
    (PublishesAsItGoes, {"stream-unseen", "stream-budgets"}),
    (SweepsWhatIsBeingWritten, {"stream-unseen", "stream-swept"}),
    (WrapsWhatASourceRaises, {"stream-raises"}),
    (KeepsWhatCameBeforeAnError, {"stream-raises"}),
    (LeavesAFileWhenItIsCancelled, {"stream-cancelled"}),
    (ListsBeforeItIsWritten, {"cancelled-stream"}),
    (TakesText, {"stream-wrong-chunk"}),
    (DrainsBeforeItJudges, {"stream-oversized", "stream-wrong-chunk"}),
    (MakesRoomForAStream, {"stream-budgets"}),
    (ForgetsWhatAStreamEvicts, {"stream-budgets"}),
    (StreamsTrustParents, {"stream-parents"}),
    (AsksBeforeItJudges, {"stream-malformed"}),
    (SkipsWhatWasThere, {"stream-same-content", "stream-swept"}),
    (SweepsInTwoSteps, {"stream-races-sweep", "put-races-sweep"}),
    (LivesFromTheBeginning, {"stream-ttl"}),
    (OneStreamAtATime, {"streams-at-once", "stream-holds-up-nobody"}),
    (EveryStreamCreates, {"stream-same-content", "streams-at-once"}),
    (PullsInAnotherTask, {"stream-in-turn"}),
    (OneScopeForStreams, {"stream-scope"}),
    (StreamsTakeAnyScope, {"not-a-scope"}),
    (StreamsTellSecrets, {"secrets"}),
]


# --- open ---


class Rereads(Broken):
    """Its readers give what `read` makes of the artifact's bytes, unverified."""

    @asynccontextmanager
    async def open(
        self, scope: Scope, ref: str, start: int = 0, end: int | None = None
    ) -> AsyncIterator[ArtifactReader | None]:
        async with self.inner.open(scope, ref, start, end) as reader:
            if reader is None:
                yield None
            else:
                data = self.inner._scopes[scope][ref].data
                yield self.read(reader.meta, reader.start, reader.end, data)

    def read(self, meta: ArtifactMeta, start: int, end: int, data: bytes) -> ArtifactReader:
        return ArtifactReader(meta, start, end, Chunks(*filter(None, [data[start : start + 1], data[start + 1 : end]])))


class NeverVerifies(Rereads):
    pass


class GivesOneLargeChunk(Rereads):
    def read(self, meta: ArtifactMeta, start: int, end: int, data: bytes) -> ArtifactReader:
        return ArtifactReader(meta, start, end, Chunks(*filter(None, [data[start:end]])))


class GivesEmptyChunks(Rereads):
    def read(self, meta: ArtifactMeta, start: int, end: int, data: bytes) -> ArtifactReader:
        return ArtifactReader(meta, start, end, Chunks(b"", data[start : start + 1], data[start + 1 : end]))


class ReadsOneMore(Rereads):
    def read(self, meta: ArtifactMeta, start: int, end: int, data: bytes) -> ArtifactReader:
        return super().read(meta, start, end + 1, data)


class BeginsAtTheBeginning(Rereads):
    def read(self, meta: ArtifactMeta, start: int, end: int, data: bytes) -> ArtifactReader:
        return super().read(meta, 0, end, data)


class SharesOnePlace(Broken):
    """All readers of one artifact read on where the last one was."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.places: dict[str, Any] = {}

    @asynccontextmanager
    async def open(
        self, scope: Scope, ref: str, start: int = 0, end: int | None = None
    ) -> AsyncIterator[ArtifactReader | None]:
        async with self.inner.open(scope, ref, start, end) as reader:
            if reader is None:
                yield None
            else:
                chunks = self.places.setdefault(ref, aiter(reader))
                yield ArtifactReader(reader.meta, reader.start, reader.end, chunks)


class JudgesTheRangeOfWhatIsThere(Broken):
    @asynccontextmanager
    async def open(
        self, scope: Scope, ref: str, start: int = 0, end: int | None = None
    ) -> AsyncIterator[ArtifactReader | None]:
        if await self.inner.head(scope, ref) is None:
            yield None
        else:
            async with self.inner.open(scope, ref, start, end) as reader:
                yield reader


class HoldsWhatIsNotReadToItsEnd(Broken):
    readers = 0

    @asynccontextmanager
    async def open(
        self, scope: Scope, ref: str, start: int = 0, end: int | None = None
    ) -> AsyncIterator[ArtifactReader | None]:
        if self.readers > 16:
            raise StoreUnavailable("too many files are open")
        async with self.inner.open(scope, ref, start, end) as reader:
            if reader is None:
                yield None
            else:
                self.readers += 1
                chunks = Chunks(*[chunk async for chunk in reader])
                yield ArtifactReader(reader.meta, reader.start, reader.end, chunks)
                self.readers -= not chunks.rest


class EndsWhenItIsLeft(Broken):
    @asynccontextmanager
    async def open(
        self, scope: Scope, ref: str, start: int = 0, end: int | None = None
    ) -> AsyncIterator[ArtifactReader | None]:
        async with self.inner.open(scope, ref, start, end) as reader:
            if reader is None:
                yield None
            else:
                chunks = Chunks(*[chunk async for chunk in reader])
                yield ArtifactReader(reader.meta, reader.start, reader.end, chunks)
                chunks.rest.clear()


class EndsWhenItIsGone(Broken):
    @asynccontextmanager
    async def open(
        self, scope: Scope, ref: str, start: int = 0, end: int | None = None
    ) -> AsyncIterator[ArtifactReader | None]:
        class Living(Chunks):
            async def __anext__(living) -> bytes:  # noqa: N805 - `self` is the store
                if await self.inner.head(scope, ref) is None:
                    raise StopAsyncIteration
                return await super().__anext__()

        async with self.inner.open(scope, ref, start, end) as reader:
            if reader is None:
                yield None
            else:
                chunks = Living(*[chunk async for chunk in reader])
                yield ArtifactReader(reader.meta, reader.start, reader.end, chunks)


class CutsWhatIsShort(Rereads):
    """It verifies what is read whole, and of a part it gives what is there."""

    @asynccontextmanager
    async def open(
        self, scope: Scope, ref: str, start: int = 0, end: int | None = None
    ) -> AsyncIterator[ArtifactReader | None]:
        if (start, end) == (0, None):
            async with self.inner.open(scope, ref) as reader:
                yield reader
        else:
            async with super().open(scope, ref, start, end) as reader:
                yield reader


class RemembersPayloads(Broken):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.cached: dict[str, tuple[ArtifactMeta, bytes]] = {}

    async def put(self, scope: Scope, data: bytes, **words: Any) -> PutResult:
        result = await self.inner.put(scope, data, **words)
        self.cached[result.meta.ref] = (result.meta, data)
        return result

    @asynccontextmanager
    async def open(
        self, scope: Scope, ref: str, start: int = 0, end: int | None = None
    ) -> AsyncIterator[ArtifactReader | None]:
        if ref in self.cached:
            meta, data = self.cached[ref]
            yield ArtifactReader(meta, start, end or len(data), Chunks(data[start:end]))
        else:
            yield None


class OpensForAnyone(Broken):
    @asynccontextmanager
    async def open(
        self, scope: Scope, ref: str, start: int = 0, end: int | None = None
    ) -> AsyncIterator[ArtifactReader | None]:
        async with self.inner.open(HOME, ref, start, end) as reader:
            yield reader


class RaisesForWhatIsNoRef(Broken):
    @asynccontextmanager
    async def open(
        self, scope: Scope, ref: str, start: int = 0, end: int | None = None
    ) -> AsyncIterator[ArtifactReader | None]:
        if not is_ref(ref):
            raise CoatcheckError("that is no ref")
        async with self.inner.open(scope, ref, start, end) as reader:
            yield reader


class ReadingExtends(Broken):
    @asynccontextmanager
    async def open(
        self, scope: Scope, ref: str, start: int = 0, end: int | None = None
    ) -> AsyncIterator[ArtifactReader | None]:
        artifact = await self.inner.get(scope, ref)
        if artifact is not None:
            await self.inner.put(scope, artifact.data, kind=artifact.meta.kind, media_type=artifact.meta.media_type)
        async with self.inner.open(scope, ref, start, end) as reader:
            yield reader


BROKEN_READERS: list[tuple[MakeStore, set[str]]] = [
    (GivesOneLargeChunk, {"open-whole"}),
    (GivesEmptyChunks, {"open-whole", "open-part"}),
    (SharesOnePlace, {"open-rest", "open-part"}),
    (ReadsOneMore, {"open-part"}),
    (BeginsAtTheBeginning, {"open-part", "open-rest"}),
    (JudgesTheRangeOfWhatIsThere, {"open-no-range"}),
    (HoldsWhatIsNotReadToItsEnd, {"open-left"}),
    (EndsWhenItIsLeft, {"open-late"}),
    (EndsWhenItIsGone, {"open-withdrawn"}),
    (NeverVerifies, {"open-damaged", "open-resized"}),
    (CutsWhatIsShort, {"open-resized"}),
    (RemembersPayloads, {"open-lost"}),
    (OpensForAnyone, {"ref-alone", "not-a-scope", "stream-scope"}),
    (RaisesForWhatIsNoRef, {"one-absence"}),
    (ReadingExtends, {"reads-extend-nothing"}),
]


@pytest.mark.parametrize(("make", "caught"), [*BROKEN_STREAMS, *BROKEN_READERS])
async def test_a_store_that_breaks_a_law_of_streams_is_caught_by_the_case_of_that_law(
    make: MakeStore, caught: set[str]
) -> None:
    report = await check_store(make, only=caught, timeout=1, **HANDS)
    assert {result.id for result in report.failures} == caught, str(report)
    assert all(result.detail for result in report.failures)


def test_for_every_case_about_streams_and_readers_there_is_a_store_that_it_catches() -> None:
    caught = {id for _, ids in (*BROKEN_STREAMS, *BROKEN_READERS) for id in ids}
    assert caught >= CASE_IDS
