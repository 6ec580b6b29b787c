"""How fast does a stream flow into the directory store and out of it, beside `sha256sum` over the same bytes?

A gigabyte that exists nowhere as a whole is streamed into the store, hashed by the program `sha256sum` from the file
that came of it, hashed by hashlib piece by piece, and read back through `open`: in turns, so that a busy moment of the
machine hits them alike. A task that wants to run every millisecond tells how late it came, which is how long the event
loop stood still; the system tells the peak of memory. Every digest is compared.
"""

from __future__ import annotations

import argparse
import hashlib
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
from _table import Cell, arguments, report

import coatcheck as cc

HEARTBEAT_SECONDS = 0.001
CHUNK = 1 << 16
SCOPE = cc.Scope(conversation="c-42")
WORDS: dict[str, Any] = {"kind": "dataset/blob", "media_type": "application/octet-stream"}
AT_LEAST = 0.5
"""What putting is held to, in the speed of `sha256sum`."""
MOST_MEMORY = 64
LONGEST_BLOCK = 20


def chunks(megabytes: int, seed: int) -> Iterator[bytes]:
    """So many MiB, each chunk unlike every other one."""
    body = hashlib.shake_128(b"%d" % seed).digest(CHUNK - 8)
    for number in range(megabytes * (1 << 20) // CHUNK):
        yield number.to_bytes(8, "big") + body


class Memory:
    """How far the resident memory of this process rises."""

    def __init__(self) -> None:
        with suppress(OSError):  # where it cannot be set back, the peak of the whole run is told
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        self._before = self._now("VmRSS") or self._peak()

    def rise(self) -> float:
        """In MB, since this was made."""
        return max(0, (self._now("VmHWM") or self._peak()) - self._before) / 1e6

    def _now(self, name: str) -> int | None:
        with suppress(OSError):
            for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
                if line.startswith(f"{name}:"):
                    return int(line.split()[1]) * 1024
        return None

    def _peak(self) -> int:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


class Measured:
    """What several rounds of one thing came to."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.memory: list[float] = []
        self.late: list[list[float]] = []

    async def add(self, what: Callable[[], Awaitable[str]]) -> str:
        """Do it once more, with a heartbeat beside it."""
        late: list[float] = []

        async def beat() -> None:
            while True:
                before = time.perf_counter()
                await anyio.sleep(HEARTBEAT_SECONDS)
                late.append(time.perf_counter() - before - HEARTBEAT_SECONDS)

        memory = Memory()
        async with anyio.create_task_group() as group:
            group.start_soon(beat)
            await anyio.sleep(5 * HEARTBEAT_SECONDS)
            started = time.perf_counter()
            digest = await what()
            self.seconds.append(time.perf_counter() - started)
            await anyio.sleep(5 * HEARTBEAT_SECONDS)  # the beat that was held up is heard
            group.cancel_scope.cancel()
        self.memory.append(memory.rise())
        self.late.append(sorted(late))
        return digest

    def blocked(self, share: float) -> float:
        """Milliseconds: the median over the rounds of how late that share of the beats came at most."""
        return statistics.median(late[round(share * (len(late) - 1))] for late in self.late) * 1e3


async def rounds(folder: Path, args: argparse.Namespace) -> dict[str, Measured]:
    measured: dict[str, Measured] = {}
    async with cc.DirectoryStore(folder / "store", fsync=args.fsync) as store:
        for number in range(args.rounds):

            async def source(seed: int = number) -> AsyncIterator[bytes]:
                for chunk in chunks(args.megabytes, seed):
                    yield chunk

            ref = ""

            async def put() -> str:
                nonlocal ref
                meta = (await store.put_stream(SCOPE, source(), **WORDS)).meta
                ref = meta.ref
                return meta.digest

            async def program() -> str:
                [file] = [path async for path in anyio.Path(folder).glob(f"store/*/*/*/*/{ref}/data")]  # noqa: B023
                done = await anyio.run_process(["sha256sum", str(file)])
                return f"sha256:{done.stdout.split()[0].decode()}"

            async def library(seed: int = number) -> str:
                digest = hashlib.sha256()
                for chunk in chunks(args.megabytes, seed):
                    digest.update(chunk)
                return f"sha256:{digest.hexdigest()}"

            async def read() -> str:
                digest = "nothing"
                async with store.open(SCOPE, ref) as reader:  # noqa: B023 - it is done in this round
                    if reader is not None:
                        size = sum([len(chunk) async for chunk in reader])
                        digest = reader.meta.digest if size == reader.meta.bytes else f"{size} bytes"
                return digest

            steps = {"put_stream": put, "put_stream, there already": put, "sha256sum": program}
            steps |= {"hashlib": library, "open, to the end": read}
            digests = {await measured.setdefault(name, Measured()).add(step) for name, step in steps.items()}
            if len(digests) != 1:
                raise AssertionError(f"the same bytes came to {digests}")
            await store.delete(SCOPE, ref)
    return measured


def row(name: str, measured: dict[str, Measured], megabytes: int) -> list[Cell]:
    mine, its = measured[name], measured["sha256sum"]
    ratio = statistics.median(theirs / ours for ours, theirs in zip(mine.seconds, its.seconds, strict=True))
    on_the_loop = name == "hashlib"
    return [
        name,
        megabytes / statistics.median(mine.seconds),
        ratio,
        AT_LEAST if name == "put_stream" else None,
        max(mine.memory),
        None if on_the_loop else mine.blocked(1),
        None if on_the_loop else mine.blocked(0.99),
    ]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--megabytes", type=int, default=1024, help="the size of the stream, in MiB")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--fsync", action="store_true", help="with a store that flushes")
    parser.add_argument(
        "--folder", type=Path, help="where the store is made, and removed; else where files go that do not stay"
    )
    parser.add_argument("--quick", action="store_true", help="a few megabytes: whether it runs, not what it costs")
    args = parser.parse_args()
    if args.quick:
        args.megabytes, args.rounds = 8, 1

    with tempfile.TemporaryDirectory(prefix="coatcheck-", dir=args.folder) as folder:
        measured = anyio.run(rounds, Path(folder), args)
    report(
        f"Streaming {args.megabytes} MiB",
        ["what", "MiB/s", "of sha256sum", "at least", "peak MB", "blocked ms", "blocked p99 ms"],
        [row(name, measured, args.megabytes) for name in measured],
        args,
        facts={"peak MB, at most": MOST_MEMORY, "blocked ms, at most": LONGEST_BLOCK},
        note=f"Medians of {args.rounds} rounds; the ratio is to sha256sum's speed in the same round.\n"
        "Peak: resident memory of this process above what was there before, in the worst round.\n"
        "Blocked: how late a beat came that was due every millisecond: the latest, and the 99th percentile.\n"
        "While sha256sum runs, this process waits: what is late then is the machine.",
    )


if __name__ == "__main__":
    main()
