"""What does a call cost here more than in another revision, as a share of one `json.dumps` of its result?

    git worktree add ../before REVISION
    python benchmarks/revisions.py --beside ../before

The two take turns, each time in a fresh interpreter, and every one also times `json.dumps` of the payload of 1 kB. A
difference is that of the two neighbours in time. Beside itself, which is the default, it shows the machine's own noise.
What is measured is CPU time, the least of several slots of a process.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from _table import Cell, arguments, report

HERE = Path(__file__).parent.parent

PROBE = """
import inspect, json, sys, time
import anyio
import coatcheck as cc

payload = json.loads(open(sys.argv[1], "rb").read())
slots, calls = int(sys.argv[2]), 2000

async def lookup():
    return payload

async def search(region: str, limit: int = 10):
    return payload

def boundary(function, note):
    settings = {"repeated_call_note": note} if "repeated_call_note" in inspect.signature(cc.Boundary).parameters else {}
    limits = dict(store=cc.MemoryStore(), placement=cc.Placement(100_000), truncation=cc.Truncation(200_000))
    return cc.Boundary([cc.tool(ceiling=cc.Ceiling(max_chars=100_000))(function)], **limits, **settings)

async def main():
    sessions = {
        f"{what}, {note}": (boundary(function, note == "note on").session(cc.Scope(conversation="c")), name, given)
        for what, function, name, given in (
            ("no arguments", lookup, "lookup", {}), ("2 arguments", search, "search", {"region": "eu", "limit": 5})
        )
        for note in ("note off", "note on")
    }
    least = {}
    for _ in range(slots):
        began = time.process_time()
        for _ in range(calls):
            json.dumps(payload)
        took = {"json.dumps": time.process_time() - began}
        for row, (session, name, given) in sessions.items():
            call = session.call
            began = time.process_time()
            for _ in range(calls):
                await call(name, given)
            took[row] = time.process_time() - began
        least = {row: min(seconds, least.get(row, seconds)) for row, seconds in took.items()}
    print(json.dumps({row: seconds / calls * 1e6 for row, seconds in least.items()}))

anyio.run(main)
"""


def measure(checkout: Path, slots: int) -> dict[str, float]:
    """Microseconds of each row, in a fresh interpreter that imports ``checkout``."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE, HERE / "benchmarks" / "bench_payload.json", str(slots)],
        env={**os.environ, "PYTHONPATH": str(checkout / "src")},
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--beside", type=Path, default=HERE, help="the other checkout; this one by default")
    parser.add_argument("--rounds", type=int, default=12, help="fresh interpreters of each")
    parser.add_argument("--slots", type=int, default=20, help="slots of a process")
    args = parser.parse_args()
    pairs = [(measure(args.beside, args.slots), measure(HERE, args.slots)) for _ in range(args.rounds)]
    yardstick = statistics.median(found["json.dumps"] for pair in pairs for found in pair)
    rows: list[list[Cell]] = []
    for row in pairs[0][0]:
        there, here = (statistics.median(pair[side][row] for pair in pairs) for side in (0, 1))
        more = statistics.median(pair[1][row] - pair[0][row] for pair in pairs) / yardstick * 100
        at_most = None if row == "json.dumps" else 2 if row.endswith("off") else 6
        rows.append([row, there, here, more, at_most])
    report(
        "One call in two revisions",
        ["call", "us there", "us here", "more, % of json.dumps", "at most"],
        rows,
        args,
        note=f"Median of {args.rounds} pairs of fresh interpreters; the same call over and over, a dict of 1 kB.",
    )


if __name__ == "__main__":
    main()
