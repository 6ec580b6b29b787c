"""Payloads on their way out: kept as the pieces in which they came, hashed beside the event loop, sent piece by piece.

Laws (`design.md` section 5; the traps of aiobotocore that were measured):

* A body knows its length and its hash, so nothing is hashed twice, and nothing large in the event loop.
* A body can be sent again from its start, so that a request can be tried again.
* A large body goes out in pieces, so that the loop has its turns and no second copy of a part is made. The turns are
  taken, too: a fast server takes a whole part without ever making its sender wait.
* What a source may change afterwards is copied before it is asked for more.
* Chunks are joined before they are hashed: a thread that hashes has to be given the interpreter between two pieces, and
  waits for that while the loop is busy. Joining as much as here lets other threads run, too.
"""

from __future__ import annotations

import hashlib
import time
from base64 import b64encode
from collections.abc import AsyncIterable, AsyncIterator, Callable, Sequence
from typing import Literal

import msgspec
from anyio.lowlevel import checkpoint

from coatcheck.artifacts.meta import check_chunk
from coatcheck.artifacts.workers import Workers

__all__ = [
    "PIECE_BYTES",
    "SENT_BYTES",
    "Body",
    "Hasher",
    "Part",
    "Parts",
    "Pieces",
    "Sum",
    "base64_of",
    "hash_of",
    "summed_up",
]

PIECE_BYTES = 1 << 18
"""What is hashed in the event loop, a fraction of a millisecond of work; more is hashed in a thread."""

SENT_BYTES = 1 << 19
"""What is sent between two turns for the other tasks."""

_LONGEST_TURN = 0.004
_CHUNK_BYTES = 1 << 16  # smaller chunks are joined to such ones: many of them would weigh more than their bytes
_JOINED_BYTES = 1 << 21

Pieces = Sequence[bytes | memoryview]
"""A payload, or a part of one, in the order of its bytes."""


class Body:
    """What a request sends, as the transports of aiobotocore take it: they iterate over it, whichever they are.

    Args:
        pieces: the bytes.
        sha256: their hash in hex, which signs the request; ``None``: it is signed without.
    """

    def __init__(self, pieces: Pieces, sha256: str | None) -> None:
        self.sha256 = sha256
        self.length: int = sum(map(len, pieces))
        self._pieces = pieces
        self._at = 0

    async def __aiter__(self) -> AsyncIterator[bytes | memoryview]:
        """The bytes from the start, whatever was sent before."""
        began = False
        for piece in self._pieces:
            view = memoryview(piece)  # which is not copied to be cut
            for start in range(0, len(piece), SENT_BYTES):
                if began:
                    await checkpoint()
                began = True
                yield piece if len(piece) <= SENT_BYTES else view[start : start + SENT_BYTES]

    def __len__(self) -> int:
        return self.length

    async def read(self, size: int = -1) -> bytes:
        """All of it at once: botocore takes a body for a file if it has this. The transports iterate."""
        return b"".join(self._pieces)

    def tell(self) -> int:
        """Where the body stands: botocore asks before it sends, and seeks there before it sends again."""
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        """Nothing to do: every iteration begins at the start."""
        return self._at


class Hasher:
    """The SHA-256 of a payload, made of its pieces in order."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def update(self, piece: bytes | memoryview) -> None:
        """Take in more. It takes time: see `PIECE_BYTES`."""
        self._hash.update(piece)

    @property
    def hexdigest(self) -> str:
        """Of all that was taken in."""
        return self._hash.hexdigest()


async def hash_of(workers: Workers, pieces: Pieces) -> str:
    """The SHA-256 of a payload in hex; a large one is hashed in a thread, where it does not hold up the loop."""
    if sum(map(len, pieces)) <= PIECE_BYTES:
        return _sha256(pieces)
    return await workers.run(lambda job: _sha256(pieces))


def _sha256(pieces: Pieces) -> str:
    hashed = hashlib.sha256()
    for piece in pieces:
        hashed.update(piece)
    return hashed.hexdigest()


Sum = Literal["crc32", "sha256"]
"""What a server compares of a part: a checksum, or the hash that signs the request."""


class Part(msgspec.Struct, frozen=True):
    """A part that is ready to be sent. crc32: in base64. sha256: in hex."""

    pieces: Pieces
    crc32: str | None = None
    sha256: str | None = None


def summed_up(pieces: Pieces, wanted: Sum, hasher: Hasher | None) -> Part:
    """A part with its sum, while the payload's own hash takes it in. It blocks: for a worker thread."""
    from zlib_ng import zlib_ng  # of the extra `s3`: its CRC-32 takes a quarter of the time of the standard library's

    crc = 0
    own = Hasher()
    for piece in pieces:  # both at once, as long as a piece is in the processor's memory
        if wanted == "crc32":
            crc = zlib_ng.crc32(piece, crc)
        else:
            own.update(piece)
        if hasher is not None:
            hasher.update(piece)
    if wanted == "crc32":
        return Part(pieces, crc32=b64encode(crc.to_bytes(4)).decode())
    return Part(pieces, sha256=own.hexdigest)


def base64_of(sha256: str) -> str:
    """A hash in hex as S3's headers spell it."""
    return b64encode(bytes.fromhex(sha256)).decode()


class Parts:
    """The chunks of a source, gathered to parts.

    Args:
        source: chunks of bytes, of any size.
        check_size: is told how many bytes came so far, after every chunk; what it raises goes on.
    """

    def __init__(self, source: AsyncIterable[bytes], check_size: Callable[[int], None]) -> None:
        self._chunks = aiter(source)
        self._check_size = check_size
        self._rest: bytes | memoryview = b""  # a view, so that a large chunk is not copied for every part of it
        self._count = self._size = 0
        self._ended = False
        self._due = time.monotonic() + _LONGEST_TURN

    async def next(self, part_bytes: int) -> list[bytes]:
        """The next part, of exactly ``part_bytes``; at the end what is left, which is shorter.

        Raises:
            InvalidArtifact: a chunk is no bytes.
        """
        pieces: list[bytes] = []
        chunks: list[bytes] = []  # which become a piece
        small: list[bytes] = []  # which become a chunk
        size = chunks_size = small_size = 0
        while size < part_bytes and (chunk := await self._pull()):
            if size + len(chunk) > part_bytes:
                view, room = memoryview(chunk), part_bytes - size
                chunk, self._rest = view[:room], view[room:]
            size += len(chunk)
            small.append(chunk if isinstance(chunk, bytes) else bytes(chunk))
            small_size += len(chunk)
            if small_size >= _CHUNK_BYTES:
                chunks.append(_joined(small))
                chunks_size += small_size
                small, small_size = [], 0
            if chunks_size >= _JOINED_BYTES:
                pieces.append(_joined(chunks))
                chunks, chunks_size = [], 0
        if chunks or small:
            pieces.append(_joined(chunks + small))
        return pieces

    async def more(self) -> bool:
        """Whether there is more: whether the next part holds anything."""
        self._rest = await self._pull()
        return bool(self._rest)

    async def _pull(self) -> bytes | memoryview:
        """The next chunk that is not empty; nothing: there is none. The other tasks have their turns."""
        while True:
            if self._rest:
                chunk, self._rest = self._rest, b""
                return chunk
            if self._ended:
                return b""
            if time.monotonic() >= self._due:
                await checkpoint()
                self._due = time.monotonic() + _LONGEST_TURN
            try:
                came = await anext(self._chunks)
            except StopAsyncIteration:
                self._ended = True
                return b""
            data = check_chunk(came, self._count)
            chunk = data if isinstance(data, bytes) else bytes(data)
            self._count += 1
            self._size += len(chunk)
            self._check_size(self._size)
            if chunk:
                return chunk


def _joined(chunks: list[bytes]) -> bytes:
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)
