"""A payload on its way to the bucket, part by part, while more of it is made and while it is hashed.

Laws (`design.md` section 5):

* Memory is bounded: so many parts are under way as `concurrency` says, and one is gathered. Parts grow with their
  number, so that no length is out of reach, and then fewer are under way.
* The source is asked in the task that called, and feels the pace of the slower side.
* Whatever happens, a cancellation at any ``await`` too, an upload that was begun is completed or aborted, under a
  shield with a deadline of its own. One that could not be aborted is told with its id: a sweep finds it.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
from anyio import CapacityLimiter

from coatcheck.artifacts.notices import Notices, UploadLeft
from coatcheck.artifacts.s3.abilities import Abilities
from coatcheck.artifacts.s3.body import Body, Hasher, Part, Pieces, Sum, summed_up
from coatcheck.artifacts.s3.errors import Refusal
from coatcheck.artifacts.s3.opened import Opened
from coatcheck.artifacts.s3.parallel import unstopped
from coatcheck.artifacts.s3.requests import Requests
from coatcheck.errors import StoreUnavailable
from coatcheck.lanes import Lane, Work

__all__ = ["Multipart", "NextPart", "opened_upload", "part_bytes", "pour"]

_log = logging.getLogger("coatcheck")

_PARTS_OF_A_SIZE = 1000
_MOST_PARTS = 10_000
_MOST_PART = 5 << 30
_ABORTS = 4
_ABORT_TIME = 10.0  # seconds
_TASK = "store an artifact"

NextPart = Callable[[int], Awaitable[Pieces]]
"""Gives the next part of so many bytes; a shorter one, or nothing, at the end."""


def part_bytes(number: int, first: int) -> int:
    """How large a part is: parts double with every thousand of them.

    Args:
        number: of the part, counted from 0.
        first: how large the first one is.
    """
    return min(first << (number // _PARTS_OF_A_SIZE), _MOST_PART)


class Multipart:
    """A multipart upload that was begun."""

    def __init__(self, requests: Requests, abilities: Abilities, notices: Notices, key: str, id: str) -> None:
        self.key = key
        self.size: int = 0
        self._requests = requests
        self._abilities = abilities
        self._notices = notices
        self._id = id
        self._parts: dict[int, dict[str, Any]] = {}
        self._ended = False

    def sum_up(self, pieces: Pieces, hasher: Hasher | None) -> Part:
        """A part with the cheapest sum over it that the server compares; ``hasher`` takes it in, too. It blocks."""
        wanted: Sum = "crc32" if self._abilities.compares_checksums else "sha256"
        return summed_up(pieces, wanted, hasher)

    async def send(self, number: int, part: Part) -> None:
        """Send one part."""
        body = Body(part.pieces, part.sha256)
        tag = await self._requests.put_part(self.key, self._id, number + 1, body, part.crc32)
        sent: dict[str, Any] = {"ETag": tag, "PartNumber": number + 1}
        if part.crc32 is not None:
            sent["ChecksumCRC32"] = part.crc32
        self._parts[number] = sent
        self.size += body.length

    async def complete(self, *, if_absent: bool = False) -> Refusal | None:
        """Make the object.

        Returns:
            ``None``, or what the server refused: the condition, or a conflict with another write.

        Raises:
            StoreUnavailable: it is not there as it was sent.
        """
        parts = [self._parts[number] for number in sorted(self._parts)]
        refusal = await self._requests.complete(self.key, self._id, parts, if_absent=if_absent)
        if refusal is not None and refusal.status != 404:
            return refusal
        # Where the answer to the first attempt was lost, the second one is told that there is no such upload.
        found = await self._requests.head(self.key, _TASK)
        if found is None or found.size != self.size:
            raise StoreUnavailable(f"S3 could not {_TASK}: what was uploaded is not there as it was sent")
        self._ended = True
        return None

    async def complete_for_certain(self) -> None:
        """Make the object under a key that nobody else has.

        Raises:
            StoreUnavailable: it is not there as it was sent.
        """
        refusal = await self.complete()
        if refusal is not None:
            raise self._requests.unavailable(refusal, "end an upload")

    async def abort(self) -> None:
        """End it without an object, unless it is complete. Never raises."""
        if self._ended:
            return
        problem = "it did not end in time"
        with anyio.move_on_after(_ABORT_TIME, shield=True):
            aborted = 0
            for _ in range(_ABORTS):
                try:
                    known = await self._requests.abort(self.key, self._id)
                except StoreUnavailable as error:
                    problem = str(error)
                    await anyio.sleep(0.2)
                    continue
                aborted += 1
                # A part that was under way may land after an abort, so it is aborted until it is not known; or twice,
                # since some servers never say that they do not know it.
                if not known or aborted == 2:
                    self._ended = True
                    return
        _log.warning(
            "the multipart upload %s could not be aborted, and takes room until a sweep: %s", self._id, problem
        )
        self._notices.tell(UploadLeft(upload_id=self._id, detail=problem))


@asynccontextmanager
async def opened_upload(
    opened: Opened, notices: Notices, key: str, *, text: str | None, content_type: str
) -> AsyncIterator[Multipart]:
    """A multipart upload that is aborted at the end of the block, unless it was completed."""
    requests, abilities = opened.requests, await opened.abilities()
    begun: list[Multipart] = []

    async def begin() -> None:
        id = await requests.begin(key, text=text, content_type=content_type, checksums=abilities.compares_checksums)
        begun.append(Multipart(requests, abilities, notices, key, id))

    try:
        await unstopped(begin)  # or nobody would know the id
        yield begun[0]
    finally:
        for upload in begun:
            await unstopped(upload.abort)


async def pour(
    upload: Multipart, next_part: NextPart, hasher: Hasher | None, *, first_part_bytes: int, concurrency: int
) -> None:
    """Send all parts, several at once, and hash them in order beside that.

    Args:
        upload: where to.
        next_part: is asked in this task.
        hasher: takes in all bytes; ``None``: their hash is known.
    """
    failed: list[Exception] = []
    slots = CapacityLimiter(concurrency + 1)  # and one that is gathered
    lane = Lane()

    def fail(error: Exception) -> None:
        failed.append(error)
        group.cancel_scope.cancel()

    async def send(number: int, part: Work[Part], slot: object) -> None:
        try:
            await upload.send(number, await part.result())
        except Exception as error:  # noqa: BLE001 - raised below, as it is
            fail(error)
        finally:
            slots.release_on_behalf_of(slot)

    try:
        async with anyio.create_task_group() as group:
            number = 0
            try:
                while True:
                    size = part_bytes(number, first_part_bytes)
                    slots.total_tokens = 1 + max(1, concurrency * first_part_bytes // size)
                    slot = object()
                    await slots.acquire_on_behalf_of(slot)
                    pieces = await next_part(size)
                    if not pieces:
                        break
                    if number == _MOST_PARTS:
                        raise StoreUnavailable(f"S3 could not {_TASK}: it takes no more than {_MOST_PARTS} parts")
                    group.start_soon(send, number, lane.do(partial(upload.sum_up, pieces, hasher)), slot)
                    del pieces
                    number += 1
            except Exception as error:  # noqa: BLE001 - raised below, as it is
                fail(error)
    finally:
        lane.close()
    if failed:
        raise failed[0]
