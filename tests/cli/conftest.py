"""What every suite of the command line needs: a home directory that is nobody's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cli._program import Program


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The environment of a user without any settings, whose data directory is a new one."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("COATCHECK_", "_COATCHECK_"))}
    return {**kept, "HOME": str(tmp_path / "home"), "XDG_DATA_HOME": str(tmp_path / "data"), "COLUMNS": "100"}


@pytest.fixture
def program(environment: dict[str, str]) -> Program:
    """``coatcheck`` as that user runs it."""
    return Program(environment)
