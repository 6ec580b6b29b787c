"""``coatcheck exec`` with outputs that do not fit into its memory. The gigabytes are ``slow``."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli._program import COATCHECK, Program, objects

MIB = 1024 * 1024
MAX_MEMORY = 150 * MIB
LONG = pytest.mark.timeout(300)

ONE_LINE = "import sys; [sys.stdout.write('x' * 1048576) for _ in range({mib})]"
LINES = """
import sys
for start in range(0, {lines}, 10_000):
    sys.stdout.write("".join(f"{{number:09d}}\\n" for number in range(start, start + 10_000)))
"""
RANDOM = """
import random, sys
made = random.Random(7)
for _ in range({mib}):
    sys.stdout.buffer.write(made.randbytes(1048576))
"""


# A process inherits the peak of the one that started it, so a small one starts what is measured.
MEASURE = """
import os, subprocess, sys
child = subprocess.Popen(sys.argv[2:])
_, status, usage = os.wait4(child.pid, 0)
with open(sys.argv[1], "w") as file: file.write(str(usage.ru_maxrss))
sys.exit(os.waitstatus_to_exitcode(status))
"""


def run(program: Program, *arguments: str, output: Path | None = None) -> tuple[int, bytes, int]:
    """Run ``coatcheck``: its exit code, what it printed, and the most memory that it, or its command, took."""
    folder = Path(program.environment["XDG_DATA_HOME"]).parent
    out, peak = output or folder / "out", folder / "peak"
    with open(out, "wb") as file:
        measured = [sys.executable, "-c", MEASURE, str(peak), COATCHECK, *arguments]
        done = subprocess.run(measured, env=program.environment, stdout=file, check=False)
    unit = 1 if sys.platform == "darwin" else 1024
    return done.returncode, b"" if output else out.read_bytes(), int(peak.read_text()) * unit


def assert_stored(program: Program, code: str, size: int, media_type: str = "text/plain") -> None:
    """What `How it is judged` says of a large output."""
    command = ["exec", "--max-inline-chars", "2000", "--", sys.executable, "-c", code]
    status, printed, memory = run(program, *command)
    assert status == 0
    assert memory < MAX_MEMORY
    ticket = json.loads(printed)
    assert (ticket["bytes"], ticket["mediaType"]) == (size, media_type)

    again, printed_again, memory = run(program, *command)
    assert (again, printed_again) == (0, printed), "the same command gives byte for byte the same ticket"
    assert memory < MAX_MEMORY
    (meta,) = objects(program("ls", "--json").stdout)
    assert meta["ref"] == ticket["ref"]

    copy = Path(program.environment["XDG_DATA_HOME"]).parent / "copy"
    status, _, memory = run(program, "get", ticket["ref"], output=copy)
    assert status == 0
    assert memory < MAX_MEMORY
    with open(copy, "rb") as file:
        assert "sha256:" + hashlib.file_digest(file, "sha256").hexdigest() == meta["digest"]
    copy.unlink()
    status, printed, memory = run(program, "verify")
    assert (status, printed) == (0, b"1 of 1 are as they were put\n")
    assert memory < MAX_MEMORY


def assert_dies_half_way(program: Program, mib: int) -> None:
    code = f"{ONE_LINE.format(mib=mib)}; sys.stdout.flush(); sys.exit('no space in my head')"
    status, printed, memory = run(program, "exec", "--max-inline-chars", "2000", "--", sys.executable, "-c", code)
    assert status == 1
    assert memory < MAX_MEMORY
    assert b"ended with exit status 1" in printed
    assert b"no space in my head" in printed
    assert str(mib * MIB).encode() in printed
    assert len(printed) < 10_000
    assert program.files() == []


def test_64_mib_in_one_line_take_no_more_memory_than_a_little(program: Program) -> None:
    assert_stored(program, ONE_LINE.format(mib=64), 64 * MIB)
    status, printed, memory = run(program, "read", objects(program("ls", "--json").stdout)[0]["ref"], "--lines", "2:")
    assert (status, printed) == (0, b"")
    assert memory < MAX_MEMORY


def test_a_command_that_dies_after_64_mib_leaves_nothing(program: Program) -> None:
    assert_dies_half_way(program, 64)


def test_lines_one_by_one_are_taken_as_fast_as_they_come(program: Program) -> None:
    code = "import os\nfor n in range(20000): os.write(1, b'line\\n')"
    began = time.monotonic()
    status, printed, _ = run(program, "exec", "--", sys.executable, "-c", code)
    assert (status, json.loads(printed)["bytes"]) == (0, 100_000)
    assert time.monotonic() - began < 20


@pytest.mark.slow
@LONG
def test_1_gib_in_one_line(program: Program) -> None:
    assert_stored(program, ONE_LINE.format(mib=1024), 1024 * MIB)


@pytest.mark.slow
@LONG
def test_10_million_lines(program: Program) -> None:
    assert_stored(program, LINES.format(lines=10_000_000), 100_000_000)
    ref = objects(program("ls", "--json").stdout)[0]["ref"]
    status, printed, memory = run(program, "read", ref, "--lines", "9999999:")
    assert (status, printed) == (0, b"009999998\n009999999\n")
    assert memory < MAX_MEMORY
    status, printed, memory = run(program, "read", ref, "--chars", "99999990:")
    assert (status, printed) == (0, b"009999999\n")
    assert memory < MAX_MEMORY


@pytest.mark.slow
@LONG
def test_1_gib_of_random_bytes(program: Program) -> None:
    assert_stored(program, RANDOM.format(mib=1024), 1024 * MIB, "application/octet-stream")


@pytest.mark.slow
@LONG
def test_a_command_that_dies_after_1_gib(program: Program) -> None:
    assert_dies_half_way(program, 1024)
