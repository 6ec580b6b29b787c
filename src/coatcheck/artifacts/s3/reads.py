"""How an artifact is found in the bucket, and read."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime, timedelta

from coatcheck.artifacts.meta import Artifact, ArtifactMeta, check_range
from coatcheck.artifacts.port import ArtifactReader
from coatcheck.artifacts.ref import is_ref
from coatcheck.artifacts.retention import is_expired
from coatcheck.artifacts.s3.keys import Segments
from coatcheck.artifacts.s3.opened import Opened
from coatcheck.artifacts.s3.places import There
from coatcheck.artifacts.s3.reader import Chunks
from coatcheck.artifacts.s3.record import POINTER, Record
from coatcheck.artifacts.s3.requests import Fetched
from coatcheck.artifacts.workers import Workers
from coatcheck.errors import IntegrityError, StoreUnavailable

__all__ = ["find", "get", "head", "open_payload"]


async def find(
    opened: Opened, segments: Segments, ref: str, now: datetime, *, skipped: Collection[int | None] = ()
) -> There | None:
    """The youngest object under a ref, in the generations that a read looks into, but for those that are skipped."""
    if not is_ref(ref):
        return None
    for generation in opened.keys.generations.readable(now):
        if generation in skipped:
            continue
        key = opened.keys.artifact(segments, ref, generation)
        found = await opened.requests.head(key)
        if found is not None:
            return There(key, generation, found, Record.decode(ref, found.text))
    return None


async def head(opened: Opened, segments: Segments, ref: str, now: datetime) -> ArtifactMeta | None:
    """What is known of an artifact."""
    record = _living(await find(opened, segments, ref, now), ref, now)
    return None if record is None else record.meta


async def get(opened: Opened, workers: Workers, segments: Segments, ref: str, now: datetime) -> Artifact | None:
    """An artifact with its payload, in one request, if the object holds it and the connection does not break."""
    async with AsyncExitStack() as stack:
        there, body = await _opened(opened, segments, ref, 0, None, now, stack)
        record = _living(there, ref, now)
        if there is None or record is None:
            return None
        data = None if body is None else await _whole(opened, record.meta, body)
        if data is not None:
            digest = await workers.digest(data)
            if digest != record.meta.digest:
                raise IntegrityError(ref, record.meta.digest, digest)
            return Artifact(record.meta, data)
    async with _reading(opened, segments, there, record, 0, None, now) as reader:
        return None if reader is None else Artifact(reader.meta, await reader.read())


async def _whole(opened: Opened, meta: ArtifactMeta, fetched: Fetched) -> bytes | None:
    """All of a body; ``None``: it broke off, and has to be read again."""
    _check_size(meta, fetched)
    try:
        data = await opened.requests.read_all(fetched.body, meta.bytes)
    except StoreUnavailable:
        return None
    return data if len(data) == meta.bytes else None


@asynccontextmanager
async def open_payload(
    opened: Opened, segments: Segments, ref: str, start: int, end: int | None, now: datetime
) -> AsyncIterator[ArtifactReader | None]:
    """An artifact's payload, or a part of it: in one request, if the object holds the payload itself, or it is known
    where the payload is.
    """
    async with AsyncExitStack() as stack:
        there, body = await _reopened(opened, segments, ref, start, end, now, stack)
        if there is None:
            looked = time.monotonic()
            there, body = await _opened(opened, segments, ref, start, end, now, stack)
            if there is not None:
                opened.places.keep(segments, ref, there, looked)
        record = _living(there, ref, now)
        if there is None or record is None:
            yield None
            return
        if body is not None:
            _check_size(record.meta, body)
        adopted = None if body is None else (body, stack.pop_all())
        async with _reading(opened, segments, there, record, start, end, now, adopted) as reader:
            yield reader


async def _reopened(
    opened: Opened,
    segments: Segments,
    ref: str,
    start: int,
    end: int | None,
    now: datetime,
    stack: AsyncExitStack,
) -> tuple[There | None, Fetched | None]:
    """Where the payload was a moment ago, and its body, which ``stack`` closes; ``None``: it has to be looked for."""
    there = opened.places.get(segments, ref)
    if there is None or there.record is None or is_expired(there.record.meta.expires_at, now):
        return None, None
    record, apart = there.record, there.record.data is not None
    first, last = check_range(start, end, record.meta.bytes)
    if first == last:
        return None, None
    async with AsyncExitStack() as attempt:
        body = await attempt.enter_async_context(opened.requests.fetch(there.payload_key(opened.keys), first, last))
        if body is not None:
            said = record if apart else Record.decode(ref, body.found.text)  # what holds the payload says what it is
            fits = said is not None and (said.data is not None) == apart and said.meta.bytes == body.found.size
            if said is not None and fits and not is_expired(said.meta.expires_at, now):
                stack.push_async_exit(attempt.pop_all())
                return There(there.key, there.generation, body.found, said), body
    opened.places.forget(segments, ref)
    return None, None


@asynccontextmanager
async def _reading(
    opened: Opened,
    segments: Segments,
    there: There,
    record: Record,
    start: int,
    end: int | None,
    now: datetime,
    adopted: tuple[Fetched, AsyncExitStack] | None = None,
) -> AsyncIterator[ArtifactReader | None]:
    """A part of a payload that was found, from the connection that is open already, if one is."""
    found: list[There] = [] if adopted is not None else [there]
    begun = time.monotonic()

    async def locate() -> str | None:
        """Where the payload is. A put may have moved it since it was asked for last."""
        later = now + timedelta(seconds=time.monotonic() - begun)
        there = found.pop() if found else await find(opened, segments, record.meta.ref, later)
        return None if there is None else there.payload_key(opened.keys)

    first, last = check_range(start, end, record.meta.bytes)
    chunks = Chunks(opened.requests, record.meta, first, last, locate, adopted)
    try:
        is_there = await chunks.begin()
        yield ArtifactReader(record.meta, first, last, chunks) if is_there else None
    finally:
        await chunks.close()


async def _opened(
    opened: Opened,
    segments: Segments,
    ref: str,
    start: int,
    end: int | None,
    now: datetime,
    stack: AsyncExitStack,
) -> tuple[There | None, Fetched | None]:
    """What is under a ref, and its body, which ``stack`` closes; ``None``: the body has to be asked for."""
    if start == end or start > len(POINTER) or not is_ref(ref):  # of a pointer there would be no such part
        return await find(opened, segments, ref, now), None
    for generation in opened.keys.generations.readable(now):
        key = opened.keys.artifact(segments, ref, generation)
        async with AsyncExitStack() as attempt:  # which is over before the next one: or readers wait for each other
            body = await attempt.enter_async_context(opened.requests.fetch(key, start, end))
            if body is None:
                continue
            there = There(key, generation, body.found, Record.decode(ref, body.found.text))
            if there.record is None or there.record.data is not None:
                return there, None
            stack.push_async_exit(attempt.pop_all())
            return there, body
    return None, None


def _check_size(meta: ArtifactMeta, fetched: Fetched) -> None:
    if fetched.found.size != meta.bytes:
        raise IntegrityError(meta.ref, f"{meta.bytes} bytes", f"{fetched.found.size} bytes")


def _living(there: There | None, ref: str, now: datetime) -> Record | None:
    """The record that is served.

    Raises:
        IntegrityError: the object does not say what it is.
    """
    if there is None:
        return None
    if there.record is None:
        raise IntegrityError(ref, "what the artifact says of itself", "metadata that says nothing of the kind")
    return None if is_expired(there.record.meta.expires_at, now) else there.record
