"""Is a scope with 100,000 artifacts as quick as one with 100: put, head, and the first page of a listing?

Both are filled through the store. Then every operation is timed in turns, once on the small scope and once on the large
one, so that a busy moment of the machine hits them alike. What was put is deleted again, untimed, so that no scope
grows; where budgets are set they are full, and every put evicts the oldest artifact.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path
from typing import Any

import anyio
from _table import Cell, arguments, report

import coatcheck as cc

SMALL = 100
AT_MOST = 2.0
"""What the large scope is held to, in the time that the small one takes."""
SCOPE = cc.Scope(tenant="acme", principal="dana", conversation="c-42")
WORDS: dict[str, Any] = {"kind": "tool-result/lookup", "media_type": "text/plain"}
numbers = count()


def payload() -> bytes:
    """One that was never put before."""
    return b"row %d" % next(numbers)


class Filled:
    """A scope of a known size, with and without budgets that it fills."""

    def __init__(self, folder: Path, size: int) -> None:
        self.size = size
        self.free = cc.DirectoryStore(folder)
        self.full = cc.DirectoryStore(folder, max_count=size, max_bytes=1 << 40)
        self.refs: list[str] = []
        self.seconds = 0.0

    async def fill(self) -> None:
        started = time.perf_counter()
        for _ in range(self.size):
            self.refs.append((await self.free.put(SCOPE, payload(), **WORDS)).meta.ref)
        self.seconds = time.perf_counter() - started

    async def put(self) -> float:
        data = payload()
        started = time.perf_counter()
        result = await self.free.put(SCOPE, data, **WORDS)
        seconds = time.perf_counter() - started
        await self.free.delete(SCOPE, result.meta.ref)
        return seconds

    async def put_again(self) -> float:
        data = payload()
        result = await self.free.put(SCOPE, data, **WORDS)
        started = time.perf_counter()
        again = await self.free.put(SCOPE, data, **WORDS)
        seconds = time.perf_counter() - started
        await self.free.delete(SCOPE, result.meta.ref)
        assert not again.created
        return seconds

    async def put_and_evict(self) -> float:
        data = payload()
        started = time.perf_counter()
        result = await self.full.put(SCOPE, data, **WORDS)
        seconds = time.perf_counter() - started
        assert len(result.swept) == 1, "the budget is not full"
        self.refs.remove(result.swept[0].ref)
        self.refs.append(result.meta.ref)
        return seconds

    async def head(self) -> float:
        ref = self.refs[next(numbers) * 7919 % len(self.refs)]
        started = time.perf_counter()
        meta = await self.free.head(SCOPE, ref)
        seconds = time.perf_counter() - started
        assert meta is not None
        return seconds

    async def page(self) -> float:
        started = time.perf_counter()
        page = await self.free.list(SCOPE)
        seconds = time.perf_counter() - started
        assert len(page.artifacts) == min(50, self.size)
        return seconds


async def timed(
    small: Filled, large: Filled, what: Callable[[Filled], Awaitable[float]], rounds: int
) -> tuple[float, float]:
    """Median seconds on each."""
    times: dict[Filled, list[float]] = {small: [], large: []}
    for _ in range(rounds):
        for each in (small, large):
            times[each].append(await what(each))
    return statistics.median(times[small]), statistics.median(times[large])


async def run(folder: Path, args: argparse.Namespace) -> tuple[list[list[Cell]], float]:
    small, large = Filled(folder / "small", SMALL), Filled(folder / "large", args.size)
    for each in (small, large):
        await each.fill()
    rows: list[list[Cell]] = []
    for name, what in {
        "head": Filled.head,
        "first page": Filled.page,
        "put": Filled.put,
        "put, there already": Filled.put_again,
        "put, full budgets": Filled.put_and_evict,
    }.items():
        few, many = await timed(small, large, what, args.rounds)
        rows.append([name, few * 1e6, many * 1e6, many / few, AT_MOST])
    usage = await large.free.usage()
    assert [each.count for each in usage] == [args.size], usage
    return rows, large.seconds


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--size", type=int, default=100_000, help="artifacts in the large scope")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument(
        "--quick", action="store_true", help="a few hundred artifacts: whether it runs, not what it costs"
    )
    args = parser.parse_args()
    if args.quick:
        args.size, args.rounds = 300, 5

    with tempfile.TemporaryDirectory(prefix="coatcheck-") as folder:
        rows, seconds = anyio.run(run, Path(folder), args)
    report(
        "The size of a scope",
        ["what", f"us at {SMALL}", f"us at {args.size}", "ratio", "at most"],
        rows,
        args,
        facts={"seconds to fill the large one": seconds},
        note=f"Medians of {args.rounds} turns, through the event loop and a worker thread.",
    )


if __name__ == "__main__":
    main()
