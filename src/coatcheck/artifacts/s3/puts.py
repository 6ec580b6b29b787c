"""How an artifact comes into the bucket: what is looked at before, what is written, and what is left where that fails.

Laws (`design.md` section 5):

* A key's content is its name, so writing it again does no harm, and correctness needs no promise of the server. Its
  conditions tell who was first; where it ignores them, a look beforehand tells.
* The first put's words stand; a second put writes only what makes the artifact younger.
* A pointer is written only by the stream whose data object it names, within a day of its beginning. So a data object
  that is older and that no pointer names, none ever will.
* The last steps of a stream are not cancelled half way: or nobody would know what is named.
"""

from __future__ import annotations

import hashlib
import logging
import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from datetime import datetime

import anyio
import msgspec

from coatcheck.artifacts.meta import ArtifactMeta, Clock, PutResult, PutWords, Swept, read_clock
from coatcheck.artifacts.notices import EvictionFailed, Notices
from coatcheck.artifacts.ref import make_ref, normalise_media_type
from coatcheck.artifacts.retention import is_expired, resolve_expires_at
from coatcheck.artifacts.s3.body import PIECE_BYTES, Body, Hasher, Parts, Pieces, base64_of, hash_of
from coatcheck.artifacts.s3.errors import Refusal
from coatcheck.artifacts.s3.keys import LONGEST_STREAM, Segments
from coatcheck.artifacts.s3.opened import Opened
from coatcheck.artifacts.s3.parallel import gathered, unstopped
from coatcheck.artifacts.s3.places import There
from coatcheck.artifacts.s3.reads import find
from coatcheck.artifacts.s3.record import POINTER, Record
from coatcheck.artifacts.s3.requests import Found
from coatcheck.artifacts.s3.scan import evict
from coatcheck.artifacts.s3.settings import S3Settings
from coatcheck.artifacts.s3.upload import Multipart, NextPart, opened_upload, pour
from coatcheck.artifacts.workers import Turns, Workers
from coatcheck.errors import StoreUnavailable, UnknownParent

__all__ = ["Puts"]

_LOOK_FIRST = 1 << 19  # bytes from which on a look beforehand costs less than sending what is there already
_LONGEST_PAUSE = 2.0  # seconds
_log = logging.getLogger("coatcheck")

_TASK = "store an artifact"
_POINTER_SHA256 = hashlib.sha256(POINTER).hexdigest()
_MD5 = re.compile("[0-9a-f]{32}")


class _Payload(msgspec.Struct, frozen=True):
    """A payload that is at hand."""

    pieces: Pieces
    size: int
    sha256: str

    @property
    def digest(self) -> str:
        return f"sha256:{self.sha256}"


class Puts:
    """The puts of one store on one event loop.

    Args:
        opened: the store. turns: one flight a key, shared by all tasks.
    """

    def __init__(
        self, opened: Opened, settings: S3Settings, clock: Clock, workers: Workers, turns: Turns, notices: Notices
    ) -> None:
        self._opened = opened
        self._requests = opened.requests
        self._keys = opened.keys
        self._settings = settings
        self._retention = settings.retention
        self._clock = clock
        self._workers = workers
        self._turns = turns
        self._notices = notices
        bounded = self._retention.max_bytes is not None or self._retention.max_count is not None
        self._min_age = settings.min_age.total_seconds() if bounded else None

    async def put(self, segments: Segments, words: PutWords, pieces: Pieces) -> PutResult:
        """Store a payload that is at hand."""
        payload = _Payload(pieces, sum(map(len, pieces)), await hash_of(self._workers, pieces))
        await self._check_parents(segments, words)
        if self._keys.generations.seconds is None and words.expires_at is not None:
            return await self._put_apart(segments, words, payload)
        abilities = await self._opened.abilities()
        ref = make_ref(words.kind, str(words.media_type), payload.digest)
        async with self._turn(segments, ref) as waited:
            # Where the server tells whether the key is taken, it is asked by the put itself, unless that sends much.
            asked = abilities.conditions and not waited and payload.size < _LOOK_FIRST
            return await self._settle(segments, ref, words, payload, skip_present=asked)

    async def _settle(
        self, segments: Segments, ref: str, words: PutWords, payload: _Payload, *, skip_present: bool
    ) -> PutResult:
        """Write the payload under its ref, unless it is there and young."""
        there = await self._find(segments, ref, skip_present=skip_present)
        refusal: Refusal | None = None
        for attempt in range(1, self._attempts + 1):
            record, now = self._record(words, payload.digest, payload.size)
            old = await self._old(there, now, payload)
            if old is not None:
                if old.sound and self._serves(old.record, record):
                    return PutResult(old.record.meta, created=False)
                record = old.record.refreshed(record)
            key, absent = self._target(segments, ref, there, now)
            refusal = await self._write(key, record, payload, if_absent=absent)
            if refusal is None:
                return await self._stored(segments, record.meta, now, created=old is None)
            await self._pause(refusal, attempt)
            there = await self._find(segments, ref)
        raise self._contested(refusal)

    async def _write(self, key: str, record: Record, payload: _Payload, *, if_absent: bool) -> Refusal | None:
        abilities = await self._opened.abilities()
        if_absent = if_absent and abilities.conditions
        text = record.encode()
        kind = content_type(record.meta.media_type)
        if payload.size <= self._settings.part_size:
            return await self._put_whole(key, payload, text=text, content_type=kind, if_absent=if_absent)
        async with self._upload(key, text=text, content_type=kind) as upload:
            await self._pour(upload, _parts_of(payload), None)
            return await upload.complete(if_absent=if_absent)

    async def _put_whole(
        self, key: str, payload: _Payload, *, text: str | None, content_type: str, if_absent: bool = False
    ) -> Refusal | None:
        abilities = await self._opened.abilities()
        return await self._requests.put(
            key,
            Body(payload.pieces, payload.sha256),
            text=text,
            content_type=content_type,
            if_absent=if_absent,
            checksum=base64_of(payload.sha256) if abilities.takes_checksums else None,
        )

    async def _put_apart(self, segments: Segments, words: PutWords, payload: _Payload) -> PutResult:
        """Store what will expire in a store that has no generations: as a data object, which a sweep can remove even
        though its ref may be put again at any moment.
        """
        begun = read_clock(self._clock)
        key = self._keys.new_data(segments, begun)
        kind = content_type(str(words.media_type))
        if payload.size <= self._settings.part_size:

            async def complete() -> None:
                refusal = await self._put_whole(key, payload, text=None, content_type=kind)
                if refusal is not None:
                    raise self._requests.unavailable(refusal, _TASK)

            return await self._publish(segments, words, payload.digest, payload.size, key, begun, complete)
        async with self._upload(key, text=None, content_type=kind) as upload:
            await self._pour(upload, _parts_of(payload), None)
            return await self._publish(
                segments, words, payload.digest, payload.size, key, begun, upload.complete_for_certain
            )

    async def stream(self, segments: Segments, words: PutWords, parts: Parts) -> PutResult:
        """Store a payload that is still being made."""
        first = await parts.next(self._settings.part_size)
        if not await parts.more():
            return await self.put(segments, settled(words), first)
        await self._check_parents(segments, words)
        begun = read_clock(self._clock)
        key = self._keys.new_data(segments, begun)
        hasher = Hasher()
        waiting = [first]
        del first

        async def next_part(size: int) -> Pieces:
            return waiting.pop() if waiting else await parts.next(size)

        kind = words.media_type if isinstance(words.media_type, str) else "application/octet-stream"
        async with self._upload(key, text=None, content_type=content_type(kind)) as upload:
            await self._pour(upload, next_part, hasher)
            words = settled(words)
            await self._check_parents(segments, words)
            digest = f"sha256:{hasher.hexdigest}"
            return await self._publish(segments, words, digest, upload.size, key, begun, upload.complete_for_certain)

    async def _publish(
        self,
        segments: Segments,
        words: PutWords,
        digest: str,
        size: int,
        data: str,
        begun: datetime,
        complete: Callable[[], Awaitable[None]],
    ) -> PutResult:
        """Point to a data object, unless equal content is there and young.

        Args:
            digest, size: of the payload.
            data: the key of the data object. begun: when it was begun.
            complete: makes it, as the last thing before the pointer is written.
        """
        ref = make_ref(words.kind, str(words.media_type), digest)

        async def point() -> tuple[ArtifactMeta, datetime, bool] | PutResult:
            return await self._pointed(segments, ref, words, digest, size, data, begun, complete)

        async with self._turn(segments, ref):
            # Nobody is cancelled half way: it must be known whether the data object is named.
            result = await unstopped(point)
            if isinstance(result, PutResult):
                return result
            meta, now, created = result
            return await self._stored(segments, meta, now, created=created)

    async def _pointed(
        self,
        segments: Segments,
        ref: str,
        words: PutWords,
        digest: str,
        size: int,
        data: str,
        begun: datetime,
        complete: Callable[[], Awaitable[None]],
    ) -> tuple[ArtifactMeta, datetime, bool] | PutResult:
        """What a pointer was written for, when, and whether it is the first; or what was there and stands."""
        there = await self._find(segments, ref)
        refusal: Refusal | None = None
        completed = False
        for attempt in range(1, self._attempts + 1):
            record, now = self._record(words, digest, size)
            old = await self._old(there, now, None)
            if old is not None:
                if old.sound and self._serves(old.record, record):
                    if completed:  # another one was quicker, and nobody knows of this one
                        await self._forget(data)
                    return PutResult(old.record.meta, created=False)
                record = old.record.refreshed(record)
            record = msgspec.structs.replace(record, data=data.rpartition("/")[2])
            text = record.encode()  # before anything is sent
            key, absent = self._target(segments, ref, there, now)
            if not completed:
                await complete()
                completed = True
            if read_clock(self._clock) - begun >= LONGEST_STREAM:
                await self._forget(data)
                raise StoreUnavailable(f"S3 could not {_TASK}: its stream took longer than {LONGEST_STREAM}")
            refusal = await self._point(key, text, record.meta.media_type, if_absent=absent)
            if refusal is not None:
                await self._pause(refusal, attempt)
                there = await self._find(segments, ref)
            if refusal is None or (there is not None and there.record == record):  # an answer was lost
                return record.meta, now, old is None
        await self._forget(data)
        raise self._contested(refusal)

    async def _point(self, key: str, text: str, media_type: str, *, if_absent: bool) -> Refusal | None:
        """Write a pointer. Its bytes are always the same; what it says is in its metadata."""
        abilities = await self._opened.abilities()
        return await self._requests.put(
            key,
            Body([POINTER], _POINTER_SHA256),
            text=text,
            content_type=content_type(media_type),
            if_absent=if_absent and abilities.conditions,
            checksum=base64_of(_POINTER_SHA256) if abilities.takes_checksums else None,
        )

    async def _forget(self, data: str) -> None:
        """Remove a data object that nothing ever named; where that fails, a sweep does."""
        with suppress(StoreUnavailable):
            await self._requests.delete(data, _TASK)

    def _target(self, segments: Segments, ref: str, there: There | None, now: datetime) -> tuple[str, bool]:
        """The key to write, and whether it is free as far as anyone knows.

        It is of the present generation; or of the next one, where a replica whose clock is ahead has begun that.
        """
        generation = self._keys.generations.now(now)
        if there is not None and generation is not None and there.generation is not None:
            generation = max(generation, there.generation)
        return self._keys.artifact(segments, ref, generation), there is None or there.generation != generation

    async def _find(self, segments: Segments, ref: str, *, skip_present: bool = False) -> There | None:
        now = read_clock(self._clock)
        skipped = (self._keys.generations.now(now),) if skip_present else ()
        return await find(self._opened, segments, ref, now, skipped=skipped)

    async def _old(self, there: There | None, now: datetime, payload: _Payload | None) -> _Old | None:
        """What is there and living, and whether its payload seems to be what it should."""
        if there is None or there.record is None or is_expired(there.record.meta.expires_at, now):
            return None
        meta, found = there.record.meta, there.found
        if there.record.data is not None:
            data = await self._requests.head(there.payload_key(self._keys), _TASK)
            return None if data is None else _Old(there.record, data.size == meta.bytes)
        return _Old(there.record, found.size == meta.bytes and await self._is_same(found, meta, payload))

    async def _is_same(self, found: Found, meta: ArtifactMeta, payload: _Payload | None) -> bool:
        """Whether the server has the bytes that it should have, by the sums that it keeps; where it keeps none that can
        be compared, it is believed.
        """
        if found.sha256 is not None and "-" not in found.sha256:
            return found.sha256 == base64_of(meta.digest.removeprefix("sha256:"))
        tag = found.etag.strip('"')
        if payload is None or _MD5.fullmatch(tag) is None:
            return True
        # A tag of this form is the MD5 of the bytes, or, where the server encrypts, something else: then the same bytes
        # are written again, which does no harm.
        if payload.size <= PIECE_BYTES:
            return tag == _md5(payload.pieces)
        return tag == await self._workers.run(lambda job: _md5(payload.pieces))

    def _serves(self, old: Record, fresh: Record) -> bool:
        return old.serves(fresh, self._retention, self._min_age)

    def _record(self, words: PutWords, digest: str, size: int) -> tuple[Record, datetime]:
        # Now, and not when the put was called: however long it had to wait, it has its whole life before it.
        now = read_clock(self._clock)
        meta = words.meta(digest, size, now, resolve_expires_at(words.expires_at, self._retention, now))
        return Record(meta, last_put=now), now

    async def _stored(self, segments: Segments, meta: ArtifactMeta, now: datetime, *, created: bool) -> PutResult:
        self._opened.places.forget(segments, meta.ref)
        swept: tuple[Swept, ...] = ()
        if self._min_age is not None:
            try:
                swept = await evict(self._opened, segments, meta, self._retention, self._settings.min_age, now)
            except StoreUnavailable as error:  # which is no failure of the put
                _log.warning("the budget of a scope could not be kept: %s", error)
                self._notices.tell(EvictionFailed(ref=meta.ref, detail=str(error)))
        return PutResult(meta, created, swept)

    async def _check_parents(self, segments: Segments, words: PutWords) -> None:
        if not words.parents:
            return
        now = read_clock(self._clock)

        async def is_there(ref: str) -> bool:
            there = await find(self._opened, segments, ref, now)
            return there is not None and there.record is not None and not is_expired(there.record.meta.expires_at, now)

        known = await gathered(is_there, words.parents)
        unknown = tuple(ref for ref, there in zip(words.parents, known, strict=True) if not there)
        if unknown:
            raise UnknownParent(unknown)

    @asynccontextmanager
    async def _turn(self, segments: Segments, ref: str) -> AsyncIterator[bool]:
        """One flight a key, and one a scope where its budgets are counted."""
        key = (segments, ref) if self._min_age is None else segments
        async with self._turns.of(key) as waited:
            yield waited

    def _upload(self, key: str, *, text: str | None, content_type: str) -> AbstractAsyncContextManager[Multipart]:
        return opened_upload(self._opened, self._notices, key, text=text, content_type=content_type)

    async def _pour(self, upload: Multipart, next_part: NextPart, hasher: Hasher | None) -> None:
        await pour(
            upload,
            next_part,
            hasher,
            first_part_bytes=self._settings.part_size,
            concurrency=self._settings.concurrency,
        )

    @property
    def _attempts(self) -> int:
        return self._settings.connection.attempts + 1

    async def _pause(self, refusal: Refusal, attempt: int) -> None:
        if refusal.is_conflict:
            await anyio.sleep(random.uniform(0, min(_LONGEST_PAUSE, 0.1 * 2**attempt)))

    def _contested(self, refusal: Refusal | None) -> StoreUnavailable:
        assert refusal is not None
        return self._requests.unavailable(refusal, f"{_TASK}, for others write the same one again and again")


class _Old(msgspec.Struct, frozen=True):
    """What is there already. sound: its payload seems to be what it should be."""

    record: Record
    sound: bool


def settled(words: PutWords) -> PutWords:
    """The words of a stream that has ended: now it can be told what it is."""
    if isinstance(words.media_type, str):
        return words
    return msgspec.structs.replace(words, media_type=normalise_media_type(words.media_type()))


def content_type(media_type: str) -> str:
    """What an object says of itself to whoever reads it by other means."""
    return f"{media_type}; charset=utf-8" if media_type == "text/plain" else media_type


def _parts_of(payload: _Payload) -> NextPart:
    """The parts of a payload that is at hand."""
    whole = memoryview(payload.pieces[0] if len(payload.pieces) == 1 else b"".join(payload.pieces))
    at = 0

    async def next_part(size: int) -> Pieces:
        nonlocal at
        part = whole[at : at + size]
        at += len(part)
        return [part] if part else []

    return next_part


def _md5(pieces: Pieces) -> str:
    hashed = hashlib.md5(usedforsecurity=False)
    for piece in pieces:
        hashed.update(piece)
    return hashed.hexdigest()
