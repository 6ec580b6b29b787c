"""What does it cost to place a large result: how long, how much memory, and how long does the event loop stand still?

A tool returns a dict of 1 MB, then of 10 MB, and the chain stores it and hands out the ticket. Time is measured beside
one `json.dumps` of the same value, in turns. Memory and the event loop are looked at in passes of their own, because
looking costs time: `tracemalloc` tells the peak above what was there before the call, the value among it, and a task
that wants to run every millisecond tells how late it came. Every payload is redeemed and compared once.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import msgspec
from _table import Cell, arguments, report

import coatcheck as cc

HEARTBEAT_SECONDS = 0.001
AT_MOST = {("DirectoryStore", 1): 3.0}
"""What the wall time of a row is held to, in `json.dumps` of its value."""

Stores = dict[str, Callable[[Path], cc.ArtifactStore]]
STORES: Stores = {
    "MemoryStore": lambda folder: cc.MemoryStore(max_bytes=1 << 30),
    "DirectoryStore": lambda folder: cc.DirectoryStore(folder / "store"),
}


def value_of(megabytes: int) -> dict[str, Any]:
    """A dict of rows that takes so many MB as JSON."""
    rows = [
        {"id": 1000 + i, "name": f"row-{i}-abcdefghij", "ok": i % 2 == 0, "score": i * 1.25}
        for i in range(megabytes * 14_100)
    ]
    return {"rows": rows, "total": len(rows)}


class Placing:
    """One value that is placed into one store, as often as it is asked for."""

    def __init__(self, store: cc.ArtifactStore, value: dict[str, Any]) -> None:
        @cc.tool(ceiling=cc.Ceiling(max_chars=1 << 30))
        async def export() -> dict[str, Any]:
            return value

        self._payload = msgspec.json.encode(value)
        self._store = store
        self._session = cc.Boundary(
            [export],
            store=store,
            placement=cc.Placement(max_inline_chars=8_000),
            truncation=cc.Truncation(max_chars=20_000),
        ).session(cc.Scope(tenant="acme", principal="dana", conversation="c-42"))

    async def once(self) -> cc.Ticket:
        outcome = await self._session.call("export", {}, call_id="call_7")
        if not isinstance(outcome, cc.Placed) or outcome.ticket.bytes != len(self._payload):
            raise AssertionError(f"export: {outcome!r:.200}")
        return outcome.ticket

    async def withdraw(self, ticket: cc.Ticket) -> None:
        """So that the next one is stored again."""
        await self._store.delete(self._session.scope, ticket.ref)

    async def proved(self) -> None:
        ticket = await self.once()
        artifact = await self._session.redeem(ticket.ref)
        assert artifact is not None
        assert artifact.data == self._payload
        await self.withdraw(ticket)
        assert await self._session.redeem(ticket.ref) is None


class Times:
    """Wall and CPU seconds of what was done in turns."""

    def __init__(self) -> None:
        self.wall: list[float] = []
        self.cpu: list[float] = []

    async def add(self, what: Callable[[], Awaitable[Any]]) -> Any:
        wall, cpu = time.perf_counter(), time.process_time()
        done = await what()
        self.cpu.append(time.process_time() - cpu)
        self.wall.append(time.perf_counter() - wall)
        return done


async def timed(placing: Placing, value: dict[str, Any], rounds: int) -> tuple[Times, Times]:
    async def dump() -> None:
        json.dumps(value)

    placed, dumped = Times(), Times()
    for _ in range(rounds):
        await dumped.add(dump)
        await placing.withdraw(await placed.add(placing.once))
    return placed, dumped


async def peak_bytes(placing: Placing) -> int:
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        ticket = await placing.once()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    await placing.withdraw(ticket)
    return peak - before


async def longest_block(placing: Placing, rounds: int) -> float:
    """Seconds; the median over the rounds of the latest that a heartbeat came while a result was placed."""
    latest = [0.0]  # how late it came in each round; first while nothing is placed

    async def beat() -> None:
        while True:
            before = time.perf_counter()
            await anyio.sleep(HEARTBEAT_SECONDS)
            late = time.perf_counter() - before - HEARTBEAT_SECONDS
            latest[-1] = max(latest[-1], late)

    async with anyio.create_task_group() as group:
        group.start_soon(beat)
        for _ in range(rounds):
            await anyio.sleep(2 * HEARTBEAT_SECONDS)
            latest.append(0.0)
            ticket = await placing.once()
            await anyio.sleep(2 * HEARTBEAT_SECONDS)  # the beat that was held up is heard
            await placing.withdraw(ticket)
        group.cancel_scope.cancel()
    return statistics.median(latest[1:])


async def row(name: str, store: cc.ArtifactStore, megabytes: int, rounds: int) -> list[Cell]:
    value = value_of(megabytes)
    placing = Placing(store, value)
    await placing.proved()
    placed, dumped = await timed(placing, value, rounds)
    wall = statistics.median(mine / its for mine, its in zip(placed.wall, dumped.wall, strict=True))
    cpu = statistics.median(mine / its for mine, its in zip(placed.cpu, dumped.cpu, strict=True))
    return [
        f"{megabytes} MB into {name}",
        statistics.median(placed.wall) * 1e3,
        statistics.median(placed.cpu) * 1e3,
        statistics.median(dumped.wall) * 1e3,
        wall,
        AT_MOST.get((name, megabytes)),
        cpu,
        await peak_bytes(placing) / 1e6,
        await longest_block(placing, min(rounds, 5)) * 1e3,
    ]


async def run(args: argparse.Namespace) -> list[list[Cell]]:
    rows: list[list[Cell]] = []
    for megabytes, rounds in args.sizes.items():
        for name, make in STORES.items():
            with tempfile.TemporaryDirectory(prefix="coatcheck-") as folder:
                async with make(Path(folder)) as store:
                    rows.append(await row(name, store, megabytes, rounds))
    return rows


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=40, help="turns for 1 MB; a quarter of them for 10 MB")
    parser.add_argument("--quick", action="store_true", help="1 MB twice: whether it runs, not what it costs")
    args = parser.parse_args()
    args.sizes = {1: 2} if args.quick else {1: args.rounds, 10: max(1, args.rounds // 4)}

    report(
        "Placing a large result",
        ["what", "wall ms", "CPU ms", "json.dumps ms", "wall ratio", "at most", "CPU ratio", "peak MB", "blocked ms"],
        anyio.run(run, args),
        args,
        note=f"Medians of {', '.join(f'{n} turns ({size} MB)' for size, n in args.sizes.items())}; the ratios are to "
        "one json.dumps of the same value, turn by turn.\nPeak: memory above what was there before the call. "
        "Blocked: the longest that the event loop stood still.",
    )


if __name__ == "__main__":
    main()
