"""Stores from URLs (names: `api.md`)."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from coatcheck.artifacts.directory import DirectoryStore
from coatcheck.artifacts.memory import MemoryStore
from coatcheck.artifacts.open import open_store
from coatcheck.artifacts.retention import Retention
from coatcheck.errors import ConfigurationError


def settings(url: str) -> tuple[Path, bool, Retention]:
    store = open_store(url)
    assert isinstance(store, DirectoryStore)
    return store._root.path, store._root.fsync, store._retention


@pytest.mark.parametrize("url", ["memory:", "MEMORY:", "memory://", "memory:?"])
def test_memory_is_a_scheme_alone(url: str) -> None:
    store = open_store(url)
    assert isinstance(store, MemoryStore)
    assert store._retention == MemoryStore()._retention


def test_memory_takes_its_dials() -> None:
    store = open_store("memory:?ttl=15m&max_bytes=1000&max_count=5")
    assert isinstance(store, MemoryStore)
    assert store._retention == Retention(ttl=timedelta(minutes=15), max_bytes=1000, max_count=5)


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("file:///var/lib/coatcheck", "/var/lib/coatcheck"),
        ("file:/var/lib", "/var/lib"),
        ("file://localhost/var/lib", "/var/lib"),
        ("file:///with%20space/%C3%BC/a%3Fb%23c", "/with space/\u00fc/a?b#c"),
    ],
)
def test_a_file_url_names_a_directory_on_this_machine(url: str, path: str) -> None:
    assert settings(url) == (Path(path), False, Retention())


@pytest.mark.parametrize(
    ("query", "retention"),
    [
        ("ttl=90", Retention(ttl=timedelta(seconds=90))),
        ("ttl=12h", Retention(ttl=timedelta(hours=12))),
        ("ttl=7d&max_bytes=1&max_count=2", Retention(ttl=timedelta(days=7), max_bytes=1, max_count=2)),
    ],
)
def test_a_file_url_takes_dials(query: str, retention: Retention) -> None:
    assert settings(f"file:///x?{query}") == (Path("/x"), False, retention)


def test_a_file_url_takes_fsync() -> None:
    assert settings("file:///x?fsync=true")[1] is True
    assert settings("file:///x?fsync=false")[1] is False


def test_nothing_is_made_before_the_store_is_opened(tmp_path: Path) -> None:
    open_store(f"file://{tmp_path}/new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("", "no scheme"),
        ("/var/lib/coatcheck", "no scheme"),
        ("coatcheck", "no scheme"),
        ("ftp://host/x", "scheme ftp"),
        ("s3://key:secret@bucket/prefix", "s3: takes no credentials in its URL"),
        ("s3:///prefix", "s3: needs a bucket"),
        ("s3://bucket/a//b", "prefix must be segments"),
        ("s3://bucket?part_size=1", "part_size must be at least 5242880"),
        ("s3://bucket?endpoint_url=127.0.0.1:9000", "endpoint_url must begin with http"),
        ("memory:x", "memory: takes no path"),
        ("memory://host", "memory: takes no path"),
        ("memory:?fsync=true", r"memory: has no setting \?fsync="),
        ("file:", "absolute path"),
        ("file:relative", "absolute path"),
        ("file://host/x", "absolute path"),
        ("file://", "absolute path"),
        ("file:///x#y", "fragment"),
        ("file:///x y", "%20"),
        ("file:///x\n", "control character"),
        ("file:///%00", "path must name a directory"),
        ("file:///%ff", "not UTF-8"),
        ("file://[/x", "no URL"),
        ("file:///x?TTL=7d", r"no setting \?TTL="),
        ("file:///x?tll=7d", r"no setting \?tll=.*it has ttl, max_bytes, max_count, fsync"),
        ("file:///x?", ""),
        ("file:///x?ttl", r"\?ttl=: expected"),
        ("file:///x?ttl=", r"\?ttl=: expected"),
        ("file:///x?ttl=1.5h", r"\?ttl=1.5h: expected"),
        ("file:///x?ttl=0", "ttl must be more than nothing"),
        ("file:///x?ttl=99999999d", "ttl must be more than nothing and at most a century"),
        ("file:///x?ttl=%ff", r"\?ttl= is not UTF-8"),
        ("file:///x?max_bytes=1k", r"\?max_bytes=1k: expected a whole number"),
        ("file:///x?max_bytes=-1", r"\?max_bytes=-1: expected a whole number"),
        ("file:///x?max_bytes=0", "max_bytes must be at least 1"),
        ("file:///x?max_count=1.0", r"\?max_count=1.0: expected a whole number"),
        ("file:///x?max_count=%D9%A1", r"\?max_count=.*: expected a whole number"),
        ("file:///x?fsync=1", r"\?fsync=1: expected true or false"),
        ("file:///x?fsync=True", r"\?fsync=True: expected true or false"),
        ("file:///x?ttl=1&ttl=2", r"\?ttl= is there twice"),
        ("file:///x?ttl=1&&max_count=2", r"no setting \?="),
        ("memory:?max_count=0", "max_count must be at least 1"),
    ],
)
def test_what_a_url_cannot_say_is_refused_by_name(url: str, named: str) -> None:
    if named:
        with pytest.raises(ConfigurationError, match=named):
            open_store(url)
    else:
        open_store(url)


@pytest.mark.parametrize("url", [None, 7, b"memory:", Path("/x")])
def test_what_is_no_text_is_refused(url: Any) -> None:
    with pytest.raises(ConfigurationError, match="must be a URL"):
        open_store(url)


@pytest.mark.parametrize("scheme", ["ftp", "file", "s3", "memory"])
@pytest.mark.parametrize(
    "rest",
    [
        "user:5ecret@host/x",
        "user:5ecret\u2100@host/x",
        "user:5ecret\uff03@host/x",
        "user:5ecret@[host/x",
        "user:5ecret@[host]/x",
        "user:[5ecret]@host/x",
        "user:5ecret]@host/x",
        "user:5ecret#@host/x",
        "user:5ecret @host/x",
        "user:5ecret\x00@host/x",
    ],
)
def test_a_password_in_a_url_is_never_carried_by_a_refusal(scheme: str, rest: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        open_store(f"{scheme}://{rest}")
    assert "5ecret" not in f"{refusal.value} {refusal.value!r}"
    assert refusal.value.__cause__ is None
    assert refusal.value.__context__ is None
