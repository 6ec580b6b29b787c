"""A client that asks as fast as it is answered, over so many connections at once, and then ends.

Each connection is one conversation. What is printed is one JSON object. It imports little and parses no more than it
must, so that it is not what is measured; how busy it was is told.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time


class Connection(asyncio.Protocol):
    """One connection of a `Load`."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._buffer = bytearray()
        self._needed = 0
        self._sent = 0.0
        self._session = b',"session":"new"' if load.carries else b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._ask()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._needed:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            head = bytes(self._buffer[:end]).lower()
            length = head.partition(b"content-length: ")[2].partition(b"\r\n")[0]
            self._needed = end + 4 + int(length)
        if len(self._buffer) >= self._needed:
            self._answered()

    def connection_lost(self, error: Exception | None) -> None:
        self._load.lost()

    def _ask(self) -> None:
        body = self._load.next_body(self._session)
        assert self._transport is not None
        if body is None:
            self._transport.close()
            return
        self._sent = time.perf_counter()
        self._transport.write(self._load.head + b"%d\r\n\r\n%b" % (len(body), body))

    def _answered(self) -> None:
        self._load.latencies.append(time.perf_counter() - self._sent)
        answer = bytes(self._buffer)
        self._buffer.clear()
        self._needed = 0
        if not answer.startswith(b"HTTP/1.1 200") or self._load.expected not in answer[:1000]:
            self._load.errors += 1
        if self._load.carries:
            at = answer.rindex(b',"session":"')
            self._session = answer[at : answer.index(b'"', at + 12) + 1]
        self._ask()


class Load:
    """All connections together."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.head = (
            f"POST /calls HTTP/1.1\r\nHost: {args.host}\r\nAuthorization: Bearer {args.token}\r\nContent-Length: "
        ).encode()
        self.expected: bytes = args.expected.encode()
        self.carries: bool = args.session
        self.latencies: list[float] = []
        self.errors = 0
        self._names: list[bytes] = [name.encode() for name in args.names.split(",")]
        self._calls: int = args.calls
        self._asked = 0
        self._open: int = args.at_once
        self.ended = asyncio.get_running_loop().create_future()

    def next_body(self, session: bytes) -> bytes | None:
        if self._asked == self._calls:
            return None
        self._asked += 1
        name = self._names[self._asked % len(self._names)]
        return b'{"name":"%b","arguments":{"n":%d}%b}' % (name, self._asked, session)

    def lost(self) -> None:
        self._open -= 1
        if not self._open:
            self.ended.set_result(None)


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--token", required=True)
    parser.add_argument("--names", required=True, help="of the tools, which take turns")
    parser.add_argument("--expected", required=True, help="what the beginning of every answer has")
    parser.add_argument("--session", action="store_true", help="carry each conversation's session")
    parser.add_argument("--at-once", type=int, required=True)
    parser.add_argument("--calls", type=int, required=True)
    args = parser.parse_args()
    load = Load(args)
    loop = asyncio.get_running_loop()
    began, busy = time.perf_counter(), time.process_time()
    for _ in range(args.at_once):
        await loop.create_connection(lambda: Connection(load), args.host, args.port)
    async with asyncio.timeout(600):
        await load.ended
    seconds, busy = time.perf_counter() - began, time.process_time() - busy
    found = sorted(load.latencies)
    lost = args.calls - len(found)

    def percentile(share: float) -> float:
        return found[min(len(found) - 1, int(len(found) * share))]

    print(
        json.dumps(
            {
                "calls": len(found),
                "errors": load.errors + lost,
                "per second": len(found) / seconds,
                "p50": percentile(0.50),
                "p99": percentile(0.99),
                "busy": busy / seconds,
            }
        )
    )


if __name__ == "__main__":
    asyncio.run(main())
