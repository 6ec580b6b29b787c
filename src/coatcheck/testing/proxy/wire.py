"""HTTP/1.1 as far as a proxy must know it: where a head ends, and where a body does."""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Mapping
from contextlib import suppress
from typing import Self

import anyio
import msgspec
from anyio.abc import SocketAttribute, SocketStream
from anyio.streams.buffered import BufferedByteReceiveStream

__all__ = ["CHUNK", "Body", "Head", "Lost", "Malformed", "Peer"]

CHUNK = 256 * 1024
"""The most bytes of a body that are taken at once."""

_LONGEST_HEAD = 256 * 1024
_LONGEST_LINE = 16 * 1024
_NO_BODY = (204, 304)
_STATUS = re.compile("[1-5][0-9]{2}")
_LENGTH = re.compile("[0-9]{1,18}")
_SIZE = re.compile(b"[0-9A-Fa-f]{1,15}")


class Lost(Exception):
    """The other end of a connection is gone.

    Attributes:
        peer: which connection.
        reset: whether it broke, where it could have been closed.
    """

    def __init__(self, peer: Peer, *, reset: bool) -> None:
        super().__init__("the other end is gone")
        self.peer = peer
        self.reset = reset


class Malformed(Exception):
    """What came is no HTTP/1.1."""


class Head(msgspec.Struct, frozen=True):
    """A request's or an answer's head.

    Attributes:
        raw: as it came, with the empty line at its end; it is passed on as it is, because what is signed is the text.
        first: the three parts of its first line.
        headers: by name in lower case; one that comes twice is joined by a comma.
    """

    raw: bytes
    first: tuple[str, str, str]
    headers: Mapping[str, str]

    @classmethod
    def parse(cls, raw: bytes) -> Self:
        """Take a head apart.

        Raises:
            Malformed: it is none.
        """
        first, *lines = raw.decode("latin-1").split("\r\n")
        parts = first.split(" ", 2)
        headers: dict[str, str] = {}
        for line in lines:
            name, colon, value = line.partition(":")
            if not colon:
                raise Malformed
            name, value = name.lower(), value.strip()
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        if len(parts) < 2:
            raise Malformed
        return cls(raw + b"\r\n\r\n", (parts[0], parts[1], parts[2] if len(parts) > 2 else ""), headers)

    @property
    def status(self) -> int:
        """An answer's status.

        Raises:
            Malformed: there is none.
        """
        if not _STATUS.fullmatch(self.first[1]):
            raise Malformed
        return int(self.first[1])

    @property
    def keeps(self) -> bool:
        """Whether the connection may carry another request after this one."""
        old = "HTTP/1.0" in (self.first[0], self.first[2])
        said = self.headers.get("connection", "").lower()
        return "keep-alive" in said if old else "close" not in said


class Peer:
    """One connection, with its loss told in one way.

    Args:
        stream: the connection.
    """

    def __init__(self, stream: SocketStream) -> None:
        self._stream = stream
        self._inbox = BufferedByteReceiveStream(stream)

    async def send(self, data: bytes) -> None:
        """Send all of ``data``.

        Raises:
            Lost: the other end is gone.
        """
        try:
            await self._stream.send(data)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise Lost(self, reset=True) from None

    async def head(self) -> Head | None:
        """Read a head; ``None`` where the connection was closed instead.

        Raises:
            Lost: the connection broke.
            Malformed: what came is no head.
        """
        try:
            return Head.parse(await self._inbox.receive_until(b"\r\n\r\n", _LONGEST_HEAD))
        except anyio.IncompleteRead:
            return None
        except anyio.DelimiterNotFound:
            raise Malformed from None
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise Lost(self, reset=True) from None

    async def some(self, most: int) -> bytes:
        """Read 1 to ``most`` bytes; nothing where the connection was closed instead.

        Raises:
            Lost: the connection broke.
        """
        try:
            return await self._inbox.receive(most)
        except anyio.EndOfStream:
            return b""
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise Lost(self, reset=True) from None

    async def line(self) -> bytes:
        """Read a line, without its end.

        Raises:
            Lost: the connection ended.
            Malformed: no line ends in what came.
        """
        try:
            return await self._inbox.receive_until(b"\r\n", _LONGEST_LINE)
        except anyio.DelimiterNotFound:
            raise Malformed from None
        except anyio.IncompleteRead:
            raise Lost(self, reset=False) from None
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise Lost(self, reset=True) from None

    async def gone(self) -> bool:
        """Wait until the other end closes, or sends something that nobody asked for yet; whether it is gone."""
        try:
            data = await self.some(CHUNK)
        except Lost:
            return True
        self._inbox.feed_data(data)
        return not data

    async def close(self, *, reset: bool = False) -> None:
        """Close the connection, with an RST if it is to be reset."""
        if reset:
            raw = self._stream.extra(SocketAttribute.raw_socket)
            with suppress(OSError):  # closed already, by the other end's reset
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await self._stream.aclose()


class Body:
    """The body that follows a head, as its bytes of content.

    Args:
        peer: where it comes from.
        head: what stands before it.
        asked: the method of the request that it answers; ``None``: it is a request's own.

    Attributes:
        ended: whether all of it was read.
        until_close: whether its end is the end of the connection.

    Raises:
        Malformed: the head does not say where the body ends.
    """

    def __init__(self, peer: Peer, head: Head, asked: str | None = None) -> None:
        self._peer = peer
        self._trailer = b""
        self._begun = False
        coding = head.headers.get("transfer-encoding", "").lower()
        length = head.headers.get("content-length")
        empty = asked is not None and (asked == "HEAD" or head.status in _NO_BODY)
        self._chunked = bool(coding) and not empty
        if coding not in ("", "chunked") or not (length is None or _LENGTH.fullmatch(length)):
            raise Malformed
        self.until_close: bool = asked is not None and not empty and not coding and length is None
        self._left = 0 if empty or coding else int(length or 0)
        self.ended: bool = not (self._chunked or self.until_close or self._left)

    async def read(self, most: int) -> bytes:
        """Read 1 to ``most`` bytes of content; nothing where it has ended.

        Raises:
            Lost: the connection ended before the body did.
            Malformed: the framing of its chunks is broken.
        """
        if self._chunked and not self._left:
            await self._next_chunk()
        if self.ended:
            return b""
        data = await self._peer.some(most if self.until_close else min(most, self._left))
        if self.until_close:
            self.ended = not data
            return data
        if not data:
            raise Lost(self._peer, reset=False)
        self._left -= len(data)
        self.ended = not (self._left or self._chunked)
        return data

    async def _next_chunk(self) -> None:
        if self._begun and await self._peer.line():
            raise Malformed
        self._begun = True
        size = (await self._peer.line()).partition(b";")[0].strip()
        if not _SIZE.fullmatch(size):
            raise Malformed
        self._left = int(size, 16)
        if not self._left:
            while line := await self._peer.line():
                self._trailer += line + b"\r\n"
            self.ended = True

    def framed(self, data: bytes) -> bytes:
        """Return ``data`` as it goes over the wire in this body's framing."""
        return b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data

    @property
    def end(self) -> bytes:
        """What goes over the wire after the last byte of content: the last chunk and the trailer, or nothing."""
        return b"0\r\n" + self._trailer + b"\r\n" if self._chunked else b""
