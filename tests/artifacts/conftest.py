"""Fixtures of the store suites."""

from __future__ import annotations

from pathlib import Path

import pytest

from coatcheck.artifacts.directory import DirectoryStore


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "parent" / "store"


@pytest.fixture
def store(root: Path) -> DirectoryStore:
    return DirectoryStore(root)
