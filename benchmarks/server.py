"""What does the boundary cost an agent server over HTTP, beside the same server without it?

Both are processes of their own, with the same endpoints, identity and bounds; the one without calls the function and
sends its result as it is. With the boundary, 1 kB is delivered: as the server is, with nobody who listens to events
(tools that tell no progress need none), and with the conversation's session that goes to and fro, which the other
server has not. 64 kB and 1 MB are placed in a directory. The load comes from a third process, over 1, 16 and 64
connections, and no result is the same as another. The servers take turns, round by round; shown are medians, and the
median of the ratios of each round. Then 20,000 calls in a row with their sessions, every tenth one placed, while the
server's memory is looked at.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from _server_app import TOKEN
from _table import Cell, arguments, report

HERE = Path(__file__).parent
WHAT = {
    "small": "1 kB",
    "quiet": "1 kB, no listener",
    "carried": "1 kB, session",
    "medium": "64 kB, placed",
    "large": "1 MB, placed",
}
TOOLS = {"quiet": "small", "carried": "small"}
AT_ONCE = (1, 16, 64)
AT_LEAST = 0.85
"""What the server with the boundary is held to for 1 kB, in the rate of the one without."""
MIXED = ",".join(["small"] * 9 + ["medium"])


class Server:
    """One server that runs.

    Attributes:
        pid: of its process.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        url = urlsplit(process.stdout.readline().strip())
        self.pid = process.pid
        self._at = ["--host", str(url.hostname), "--port", str(url.port), "--token", TOKEN]

    def load(
        self, names: str, at_once: int, calls: int, expected: str = '"text"', *, session: bool = False
    ) -> dict[str, float]:
        """What one load finds, and the CPU seconds that a call took of the server."""
        before = self.cpu_seconds()
        words = [*self._at, "--names", names, "--expected", expected, *(["--session"] if session else [])]
        words += ["--at-once", str(min(at_once, calls)), "--calls", str(calls)]
        done = subprocess.run(
            [sys.executable, HERE / "_server_load.py", *words], capture_output=True, text=True, check=True
        )
        found: dict[str, float] = json.loads(done.stdout)
        return {**found, "cpu": (self.cpu_seconds() - before) / calls}

    def cpu_seconds(self) -> float:
        """All that its process took so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def megabytes(self) -> float:
        """What its process has in memory now."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


@contextmanager
def running(kind: str, folder: str) -> Iterator[Server]:
    words = [sys.executable, str(HERE / "_server_app.py"), kind, "--store", f"{folder}/{kind}"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Server(process)
        finally:
            process.terminate()


def measured(servers: Mapping[str, Server], args: argparse.Namespace) -> tuple[list[list[Cell]], dict[str, Cell]]:
    """The rows of the table, and how much went wrong."""
    cases = [(name, at_once) for name in args.names for at_once in AT_ONCE]
    found: dict[tuple[str, int], list[tuple[dict[str, float], dict[str, float]]]] = {case: [] for case in cases}

    def load(name: str, at_once: int, calls: int, *, bare: bool) -> dict[str, float]:
        tool = TOOLS.get(name, name)
        if bare:
            return servers["without"].load(tool, at_once, calls)
        ours = servers["quiet" if name == "quiet" else "heard"]
        expected = '"Inline"' if tool == "small" else '"Placed"'
        return ours.load(tool, at_once, calls, expected, session=name == "carried")

    for name in args.names:
        for bare in (False, True):
            load(name, 1, min(20, args.calls[name]), bare=bare)  # the first growth of everything
    for number in range(args.rounds):
        for name, at_once in cases:
            pair = {bare: load(name, at_once, args.calls[name], bare=bare) for bare in (number % 2 > 0, number % 2 < 1)}
            found[name, at_once].append((pair[False], pair[True]))
    rows: list[list[Cell]] = []
    for (name, at_once), pairs in found.items():
        row: list[Cell] = [f"{WHAT[name]}, {at_once} at once"]
        for side in (0, 1):
            for what, factor in (("per second", 1), ("p50", 1e3), ("p99", 1e3)):
                row.append(statistics.median(pair[side][what] for pair in pairs) * factor)
        row.append(statistics.median(mine["per second"] / its["per second"] for mine, its in pairs))
        cpu = [sum(pair[side]["cpu"] for pair in pairs) for side in (0, 1)]
        row.append(cpu[1] / cpu[0] if cpu[0] else None)  # a clock of 10 ms tells nothing of a few calls
        row.append(AT_LEAST if name in ("small", "quiet") else None)
        rows.append(row)
    every = [one for pairs in found.values() for pair in pairs for one in pair]
    facts: dict[str, Cell] = {
        "errors in these": int(sum(one["errors"] for one in every)),
        "load generator busy, at most": max(one["busy"] for one in every),
    }
    return rows, facts


def memory(ours: Server, calls: int) -> dict[str, Cell]:
    """What a long run finds: errors, and the server's memory at the start, in the middle and at the end."""
    ours.load(MIXED, 16, calls // 20, session=True)  # the start is where every pool has grown
    seen, errors = [ours.megabytes()], 0
    for _ in range(2):
        errors += int(ours.load(MIXED, 16, calls // 2, session=True)["errors"])
        seen.append(ours.megabytes())
    facts: dict[str, Cell] = {"calls in a row": calls // 2 * 2, "errors in a row": errors}
    return facts | dict(zip(("RSS MB, start", "RSS MB, middle", "RSS MB, end"), seen, strict=True))


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--in-a-row", type=int, default=20_000, help="calls of the long run")
    parser.add_argument("--quick", action="store_true", help="a few calls: whether it runs, not what it costs")
    parser.add_argument("--only", choices=WHAT, help="these rows alone")
    args = parser.parse_args()
    args.names = [args.only] if args.only else list(WHAT)
    args.calls = dict.fromkeys(WHAT, 1500) | {"medium": 300, "large": 60}
    if args.quick:
        args.rounds, args.in_a_row, args.calls = 1, 200, dict.fromkeys(WHAT, 20) | {"medium": 6, "large": 3}
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="coatcheck-bench-"))
        kinds = ("heard", "quiet", "without")
        servers = {kind: stack.enter_context(running(kind, folder)) for kind in kinds}
        rows, facts = measured(servers, args)
        facts |= memory(servers["heard"], args.in_a_row)
    beside = [f"bare {name}" for name in ("per s", "p50 ms", "p99 ms")]
    report(
        "Calls of an agent server over HTTP",
        ["call", "per s", "p50 ms", "p99 ms", *beside, "ratio", "CPU ratio", "at least"],
        rows,
        args,
        facts=facts,
        note=f"median of {args.rounds} rounds; bare is the same server without the boundary; ratio is our rate in its, "
        "CPU ratio its time in ours",
    )
    if facts["errors in these"] or facts["errors in a row"]:
        sys.exit("there were errors, so nothing was measured")


if __name__ == "__main__":
    main()
