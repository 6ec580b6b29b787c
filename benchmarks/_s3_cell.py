"""One process of the S3 benchmark: does what its arguments say, and prints one line of JSON for each.

    python _s3_cell.py '[{"job": "stream", "by": "obstore", ...}]'

It is a process of its own so that memory and CPU time are those of one thing.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import statistics
import sys
import time
from collections.abc import Awaitable, Callable

import msgspec
from _s3_measure import Figures, content, ticking, watched
from _s3_peers import PEERS, Coatcheck, Peer
from _s3_servers import Server

import coatcheck as cc

__all__ = ["Cell", "Measured"]

SMALL = 64 << 10
LARGE = 8 << 20


class Cell(msgspec.Struct):
    """What is to be done.

    Args:
        job, by: which, by which peer.
        server, prefix: where.
        count, size: how many, of which size, as the job understands it.
        ref: what the store knows the stream by that is read.
        levels: how many small placements there are at once.
    """

    job: str
    by: str
    server: Server
    prefix: str
    count: int = 1
    size: int = 0
    ref: str | None = None
    levels: tuple[int, ...] = (1, 16, 64)

    @property
    def sink(self) -> str | None:
        return self.server.endpoint if self.server.name == "sink" else None

    def peer(self, connections: int = 64) -> Peer:
        return PEERS[self.by](self.server, self.prefix, connections)


Measured = dict[str, Figures]


async def small(cell: Cell) -> Measured:
    """Small placements, of new content and of the same again, one at a time and many."""
    measured: Measured = {}
    numbers = 0
    async with cell.peer() as peer:
        for at_once in cell.levels:
            warm = [(f"w{at_once}-{i}", content(1_000_000 * at_once + i, SMALL)) for i in range(at_once + 4)]
            await peer.put_many(warm, at_once)
            first, count = numbers, max(cell.count, at_once)
            numbers += count
            for new in (True, False):
                figures = Figures(count, count * SMALL)
                bodies = ((f"k{i}", content(i, SMALL)) for i in range(first, first + count))
                with watched(figures, cell.sink):
                    told = await peer.put_many(bodies, at_once)
                check(told, new, count)
                measured[f"64 KiB, {'new' if new else 'again'}, {at_once} at once"] = figures
    return measured


def check(told: list[bool | None], new: bool, count: int) -> None:
    if len(told) != count or any(created is (not new) for created in told):
        raise AssertionError(f"{count} bodies that were {'' if new else 'not '}new: {told}")


async def part(cell: Cell) -> Measured:
    """Bodies of a part, one after another, and the same ones again."""
    measured: Measured = {}
    async with cell.peer() as peer:
        await peer.put("warm", content(1 << 30, LARGE))
        for new in (True, False):
            figures = Figures(cell.count, cell.count * LARGE)
            each: list[float] = []
            told: list[bool | None] = []
            with watched(figures, cell.sink):
                for i in range(cell.count):
                    data = content(i, LARGE)
                    began = time.perf_counter()
                    told.append(await peer.put(f"k{i}", data))
                    each.append(time.perf_counter() - began)
            check(told, new, cell.count)
            figures.each = statistics.median(each)
            measured["8 MiB, new" if new else "8 MiB, again"] = figures
    return measured


async def stream(cell: Cell) -> Measured:
    """A stream of unknown length."""
    figures = Figures(size=cell.size)
    async with cell.peer() as peer:
        await peer.put("warm", content(0, SMALL))
        with watched(figures, cell.sink):
            figures.digest = await peer.stream("stream", cell.size)
        await peer.delete("stream")
    return {"": figures}


async def prepare(cell: Cell) -> Measured:
    """A stream that is read afterwards; its ref stands for its digest."""
    async with Coatcheck(cell.server, cell.prefix, 64) as peer:
        await peer.stream("stream", cell.size)
        return {"": Figures(digest=peer.refs["stream"])}


async def readable(cell: Cell, peer: Peer) -> str:
    """What the peer calls the stream that is read; the sink has it for everybody but the store, whose ref must be."""
    if not isinstance(peer, Coatcheck):
        return f"generated/{cell.size}"
    if cell.ref is None:
        await peer.stream("stream", cell.size)
    return cell.ref or peer.refs["stream"]


async def read(cell: Cell) -> Measured:
    """All of a stream, to its end."""
    figures = Figures(size=cell.size)
    async with cell.peer() as peer:
        await peer.put("warm", content(0, SMALL))
        key = await readable(cell, peer)
        with watched(figures, cell.sink):
            size = sum([len(chunk) async for chunk in peer.read(key, 0, None)])
        if size != cell.size:
            raise AssertionError(f"{size} bytes were read of {cell.size}")
        if not isinstance(peer, Coatcheck):
            return {"": figures}
        # All but a byte is a part, and what is read of parts is not compared with the digest.
        unverified = Figures(size=cell.size)
        with watched(unverified, cell.sink):
            size = sum([len(chunk) async for chunk in peer.read(key, 1, None)])
    return {"": figures, "all but a byte": unverified}


async def ranged(cell: Cell) -> Measured:
    """A small part from the midst of a large stream, many times, one after another."""
    figures = Figures(cell.count, cell.count * SMALL)
    places = [random.Random(i).randrange(1, cell.size - SMALL) for i in range(cell.count + 4)]
    each = []
    async with cell.peer() as peer:
        key = await readable(cell, peer)
        for warm in places[cell.count :]:
            [_ async for _ in peer.read(key, warm, warm + SMALL)]
        with watched(figures, cell.sink):
            for start in places[: cell.count]:
                began = time.perf_counter()
                size = sum([len(chunk) async for chunk in peer.read(key, start, start + SMALL)])
                each.append(time.perf_counter() - began)
                if size != SMALL:
                    raise AssertionError(f"{size} bytes were read of {SMALL}")
    figures.each = statistics.median(each)
    return {"": figures}


async def block(cell: Cell) -> Measured:
    """How long the event loop stands still while a part goes out: the median of several."""
    late: list[float] = []
    figures = Figures(cell.count, cell.count * LARGE)
    async with cell.peer() as peer:
        for i in range(cell.count + 1):
            data, one = content(i, LARGE), Figures()
            async with ticking(one):
                began = time.perf_counter()
                await peer.put(f"k{i}", data)
                figures.seconds += time.perf_counter() - began
            late.append(one.blocked or 0)
        one = Figures()
        async with ticking(one):
            await peer.stream("stream", cell.size)
    figures.blocked = statistics.median(late[1:])
    return {"8 MiB go out: the loop is blocked": figures, "a stream goes out: the loop is blocked": one}


async def behind(cell: Cell) -> Measured:
    """Write-behind: how long until the ticket is there, beside the hash alone, in turns."""
    ticket, hashed = Figures(cell.count, cell.count << 20), Figures(cell.count, cell.count << 20)
    mine: list[float] = []
    its: list[float] = []
    async with Coatcheck(cell.server, cell.prefix, 64) as peer, cc.WriteBehind(peer.store) as store:
        for i in range(cell.count + 2):
            data = content(i, 1 << 20)
            began = time.perf_counter()
            digest = hashlib.sha256(data).hexdigest()
            its.append(time.perf_counter() - began)
            began = time.perf_counter()
            put = await store.put(peer.scope, data, kind="bench/item", media_type="application/octet-stream")
            mine.append(time.perf_counter() - began)
            if put.meta.digest != f"sha256:{digest}":
                raise AssertionError(f"{put.meta.digest} is not {digest}")
            await asyncio.sleep(0.01)  # it is uploaded meanwhile
    ticket.each, hashed.each = statistics.median(mine[2:]), statistics.median(its[2:])
    return {"coatcheck": ticket, "hashlib.sha256": hashed}


async def opening(cell: Cell) -> Measured:
    """From nothing to the end of the first small placement."""
    figures = Figures()
    peer = cell.peer()
    async with ticking(figures):
        with watched(figures, cell.sink):
            await peer.open()
            await peer.put("first", content(0, SMALL))
    await peer.stack.aclose()
    return {"": figures}


JOBS: dict[str, Callable[[Cell], Awaitable[Measured]]] = {
    "small": small,
    "part": part,
    "stream": stream,
    "prepare": prepare,
    "read": read,
    "range": ranged,
    "block": block,
    "behind": behind,
    "open": opening,
}


def main() -> None:
    for cell in msgspec.json.decode(sys.argv[1], type=list[Cell]):
        measured = asyncio.run(_run(cell))
        print(msgspec.json.encode(measured).decode(), flush=True)
    # One of the peers aborts now and then when the interpreter takes its threads down; all is said already.
    os._exit(0)


async def _run(cell: Cell) -> Measured:
    return await JOBS[cell.job](cell)


if __name__ == "__main__":
    main()
