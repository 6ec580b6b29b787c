"""What does `import coatcheck` cost beside the two libraries that it stands on?

Every measurement is a fresh interpreter. The statements take turns, so that a busy moment of the
machine hits them alike, and the first round is not counted: it warms the file cache and writes the
bytecode.
"""

from __future__ import annotations

import statistics
import subprocess
import sys

from _table import arguments, report

STATEMENTS = {
    "nothing": "pass",
    "anyio, msgspec": "import anyio, msgspec",
    "coatcheck": "import coatcheck",
}

# The clocks are read inside the interpreter, around the import alone: its start is not ours to pay for.
PROBE = """
import time
wall, cpu = time.perf_counter_ns(), time.process_time_ns()
{statement}
cpu, wall = time.process_time_ns() - cpu, time.perf_counter_ns() - wall
import sys
print(wall, cpu, len(sys.modules))
"""


def measure(statement: str) -> tuple[int, int, int]:
    """Wall nanoseconds, CPU nanoseconds and loaded modules of one import in a fresh interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE.format(statement=statement)], capture_output=True, text=True, check=True
    )
    wall, cpu, modules = map(int, done.stdout.split())
    return wall, cpu, modules


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=30, help="fresh interpreters for each statement")
    args = parser.parse_args()

    runs: dict[str, list[tuple[int, int, int]]] = {name: [] for name in STATEMENTS}
    for round_number in range(args.rounds + 1):
        for name, statement in STATEMENTS.items():
            measured = measure(statement)
            if round_number > 0:
                runs[name].append(measured)

    medians = {
        name: (statistics.median(r[0] for r in rows) / 1e6, statistics.median(r[1] for r in rows) / 1e6, rows[0][2])
        for name, rows in runs.items()
    }
    base_cpu = medians["anyio, msgspec"][1]
    report(
        "Import time",
        ["import", "wall ms", "CPU ms", "modules", "CPU ratio"],
        [[name, wall, cpu, modules, cpu / base_cpu] for name, (wall, cpu, modules) in medians.items()],
        args,
        note=f"Median of {args.rounds} fresh interpreters each, interleaved; the interpreter's own start is left out.\n"
        "The ratio is to anyio and msgspec together, in CPU time.",
    )


if __name__ == "__main__":
    main()
