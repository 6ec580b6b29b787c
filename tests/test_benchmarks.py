"""Every benchmark runs, checks its own outcomes, and writes what its table shows. What it measures is not judged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
QUICKLY = {
    "dispatch": ["--quick"],
    "import_time": ["--rounds", "1"],
    "placement": ["--quick"],
    "revisions": ["--rounds", "1", "--slots", "1"],
    "s3": ["--quick"],
    "search": ["--quick"],
    "server": ["--quick"],
    "store_size": ["--quick"],
    "streams": ["--quick"],
}


def run(name: str, folder: Path) -> tuple[str, dict[str, Any]]:
    """What a benchmark prints, and the document that it writes."""
    written = folder / "results" / f"{name}.json"
    done = subprocess.run(
        [sys.executable, BENCHMARKS / f"{name}.py", *QUICKLY[name], "--json", written],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(written.read_bytes())
    return done.stdout, document


def test_every_benchmark_is_run_here() -> None:
    assert {path.stem for path in BENCHMARKS.glob("[!_]*.py")} == QUICKLY.keys()


@pytest.mark.parametrize("name", QUICKLY)
def test_a_benchmark_writes_what_its_table_shows(name: str, tmp_path: Path) -> None:
    table, document = run(name, tmp_path)
    lines = table.splitlines()
    assert lines[0].startswith(document["title"])
    columns = list(document["rows"][0])
    assert all(list(row) == columns for row in document["rows"])
    heading = lines.index("", 1) + 1
    assert lines[heading].split() == " ".join(columns).split()
    # One line a row, below the heading and its rule, in the same order.
    shown = lines[heading + 2 : heading + 2 + len(document["rows"])]
    for line, row in zip(shown, document["rows"], strict=True):
        assert line.startswith(str(row[columns[0]]))
        measured = [cell for name, cell in row.items() if not name.startswith("more")]  # a difference may be negative
        assert all(cell is None or isinstance(cell, str) or cell >= 0 for cell in measured)
    assert lines[heading + 2 + len(document["rows"])] == ""


def test_the_dispatch_benchmark_has_a_row_for_everything_that_the_chain_is_held_to(tmp_path: Path) -> None:
    _, document = run("dispatch", tmp_path)
    rows = {row["call"]: row for row in document["rows"]}
    held = {name: row["at most"] for name, row in rows.items() if row["at most"] is not None}
    assert held["chain, no rules"] == 0.42
    assert held["chain, 2 + 2 rules"] == 0.5
    assert sorted(limit for name, limit in held.items() if name.startswith("Encoded")) == [0.25] * 3
    for name, row in rows.items():
        assert row["beside"] in rows
        assert row["us median"] >= row["us min"] > 0
        assert row["ratio"] == 1 or row["beside"] != name
    variants = ["async rules", "rules in threads", "timeout", "event listener", "text", "sync tool in a thread"]
    assert all(any(name.startswith("chain") and variant in name for name in rows) for variant in variants)


def test_the_placement_benchmark_looks_at_both_stores(tmp_path: Path) -> None:
    _, document = run("placement", tmp_path)
    rows = {row["what"]: row for row in document["rows"]}
    assert rows.keys() == {"1 MB into MemoryStore", "1 MB into DirectoryStore"}
    assert rows["1 MB into DirectoryStore"]["at most"] == 3
    for row in rows.values():
        assert row["wall ms"] > 0
        assert row["json.dumps ms"] > 0
        assert row["peak MB"] >= 1  # the encoded payload exists at least once


def test_the_streams_benchmark_holds_the_store_to_the_program_that_everybody_knows(tmp_path: Path) -> None:
    _, document = run("streams", tmp_path)
    rows = {row["what"]: row for row in document["rows"]}
    assert rows["put_stream"]["at least"] == 0.5
    assert rows["sha256sum"]["of sha256sum"] == 1
    assert document["facts"] == {"peak MB, at most": 64, "blocked ms, at most": 20}
    for name in ("put_stream", "put_stream, there already", "open, to the end"):
        assert rows[name]["blocked ms"] >= rows[name]["blocked p99 ms"]
        assert rows[name]["peak MB"] is not None


def test_the_store_size_benchmark_holds_a_large_scope_to_a_small_one(tmp_path: Path) -> None:
    _, document = run("store_size", tmp_path)
    rows = {row["what"]: row for row in document["rows"]}
    assert {"head", "first page", "put", "put, full budgets"} <= rows.keys()
    assert {row["at most"] for row in rows.values()} == {2}


def test_the_server_benchmark_holds_the_server_to_the_same_one_without_the_boundary(tmp_path: Path) -> None:
    _, document = run("server", tmp_path)
    rows = {row["call"]: row for row in document["rows"]}
    for at_once in (1, 16, 64):
        assert rows[f"1 kB, {at_once} at once"]["at least"] == 0.85
        for what in ("1 kB, no listener", "1 kB, session", "64 kB, placed", "1 MB, placed"):
            row = rows[f"{what}, {at_once} at once"]
            assert row["p99 ms"] >= row["p50 ms"] > 0
            assert row["bare per s"] > 0
    facts = document["facts"]
    assert facts["errors in these"] == facts["errors in a row"] == 0
    assert facts["calls in a row"] > 0
    assert all(facts[f"RSS MB, {when}"] > 0 for when in ("start", "middle", "end"))
