"""`kill -9` at random moments: what `kill_nine.py` beside this file does, and says if it cannot."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("kill_nine.py")


def run(rounds: int, seed: int) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    arguments = [sys.executable, str(SCRIPT), "--rounds", str(rounds), "--seed", str(seed)]
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_few_kills_lose_nothing_that_was_acknowledged() -> None:
    assert run(8, 20311).startswith("8 kills, seed 20311: all ")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_hundred_kills_lose_nothing_that_was_acknowledged() -> None:
    said = run(200, 20312)
    assert said.startswith("200 kills, seed 20312: all ")
    assert int(said.split()[5]) > 400, "there was hardly any load"
