"""How fast is a large text in a store searched for what is rare in it, beside ``grep -c`` of the same bytes in a file?

    python benchmarks/search.py               # 1 GiB of log lines, in a folder for temporary files
    python benchmarks/search.py --folder /dev/shm --mebibytes 256

``search_artifact`` also numbers the lines that it finds, so it counts all lines before them, which ``grep -c`` need
not. The two take turns, and the ratio is the median of the rounds' ratios. What they find is compared. The memory is
what the process had at its peak, above what it had before.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

from _s3_measure import Figures, watched
from _table import Cell, arguments, report

import coatcheck as cc
from coatcheck.readers.searching import Found, search

MIB = 1 << 20
AT_LEAST = 0.3
"""What the literal search is held to: of the speed of grep."""
PEAK_AT_MOST = 100
"""MiB."""
SCOPE = cc.Scope(tenant="bench", principal="dana", conversation="c-42")
LOOKED_FOR = {
    "a literal": ("needle-8f3a", True),
    "one of rare letters": ("XYZZY", True),  # which is where grep is fastest
    "a pattern": (r"needle-[0-9a-f]{4}\b", False),
}


def block_of(number: int) -> bytes:
    """A mebibyte of log lines, and a few bytes less."""
    begin = number * 8192
    lines = (
        f"2026-11-30T12:{i // 60000 % 60:02d}:{i // 1000 % 60:02d}.{i % 1000:03d}Z INFO checkout "
        f"request={i:08x} path=/api/v1/orders/{i % 9973} status=200 took={i % 977} ms from=10.0.{i % 251}.{i % 241}\n"
        for i in range(begin, begin + 8192)
    )
    return "".join(lines).encode()


async def log(mebibytes: int, file: Path) -> AsyncIterator[bytes]:
    """The log, which is written to ``file``, too. The rare line is near its end."""
    size, number, end = 0, 0, mebibytes * MIB
    with file.open("wb") as out:
        while size < end:
            block = block_of(number)
            if size + 2 * len(block) >= end > size + len(block):
                block += b"2026-11-30T23:59:59.999Z WARN checkout needle-8f3a XYZZY was found\n"
            size, number = size + len(block), number + 1
            out.write(block)
            yield block


async def ours(store: cc.ArtifactStore, ref: str, pattern: str, literal: bool) -> int:
    """How many lines match, as ``search_artifact`` finds them."""
    found = await search(lambda start, end: store.open(SCOPE, ref, start, end), pattern, literal=literal)
    if not isinstance(found, Found):
        raise AssertionError(found)
    return len(found.hits)


def grep(file: Path, pattern: str, literal: bool) -> int:
    """How many lines match, as grep finds them."""
    how = "-Fc" if literal else "-Ec"
    done = subprocess.run(
        ["grep", how, "--", pattern, file],
        env={**os.environ, "LC_ALL": "C"},
        capture_output=True,
        text=True,
        check=False,
    )
    return int(done.stdout)


async def measure(args: argparse.Namespace, folder: Path) -> tuple[list[list[Cell]], list[str]]:
    """The rows, and what falls short."""
    file = folder / "log"
    rows: list[list[Cell]] = []
    short: list[str] = []
    store = cc.DirectoryStore(folder / "store")
    put = await store.put_stream(SCOPE, log(args.mebibytes, file), kind="bench/log", media_type="text/plain")
    size, ref = put.meta.bytes, put.meta.ref
    for what, (pattern, literal) in LOOKED_FOR.items():
        figures = Figures()
        with watched(figures):
            right = await ours(store, ref, pattern, literal)
        if not right == 1 == grep(file, pattern, literal):
            raise AssertionError(f"{pattern} matches {right} lines")
        mine, its = [], []
        for _ in range(args.rounds):
            mine.append(await timed(lambda p=pattern, lit=literal: ours(store, ref, p, lit)))  # type: ignore[misc]
            its.append(await timed(lambda p=pattern, lit=literal: asyncio.to_thread(grep, file, p, lit)))  # type: ignore[misc]
        ratio = statistics.median(theirs / own for own, theirs in zip(mine, its, strict=True))
        peak = figures.peak / MIB
        if literal and ratio < AT_LEAST:
            short.append(f"{what}: {ratio:.2f} of grep, asked {AT_LEAST}")
        if peak > PEAK_AT_MOST:
            short.append(f"{what}: {peak:.0f} MiB at its peak, asked {PEAK_AT_MOST}")
        asked = f">= {AT_LEAST}" if literal else None
        rows.append([what, "search_artifact", size / MIB / statistics.median(mine), ratio, asked, peak])
        rows.append([what, "grep -c", size / MIB / statistics.median(its), None, None, None])
    return rows, short


async def timed(work: Callable[[], Coroutine[Any, Any, int]]) -> float:
    """How many seconds it takes."""
    began = time.perf_counter()
    await work()
    return time.perf_counter() - began


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--mebibytes", type=int, default=1024, help="so much is searched (1024)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where twice as much is written meanwhile")
    parser.add_argument("--quick", action="store_true", help="little, to see that it runs")
    args = parser.parse_args()
    if args.quick:
        args.mebibytes, args.rounds = 4, 1
    if shutil.which("grep") is None:
        raise SystemExit("this compares with grep, which is not here")
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        rows, short = asyncio.run(measure(args, Path(folder)))
    report(
        "Searching an artifact",
        ["what", "by", "MiB/s", "ratio", "asked", "peak MiB"],
        rows,
        args,
        note=f"{args.mebibytes} MiB in a DirectoryStore; medians of {args.rounds} rounds. Asked and not reached: "
        + ("; ".join(short) or "nothing")
        + ".",
    )


if __name__ == "__main__":
    main()
