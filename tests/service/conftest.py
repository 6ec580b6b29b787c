"""What every suite of the door needs: stores to look into."""

from __future__ import annotations

from pathlib import Path

import pytest

import coatcheck as cc


@pytest.fixture(params=["memory", "directory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> cc.ArtifactStore:
    """A store of each kind that needs no server."""
    return cc.MemoryStore() if request.param == "memory" else cc.DirectoryStore(tmp_path / "store")
