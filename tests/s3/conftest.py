"""The servers on which the suites of the S3 store run.

A session starts a server when a test first asks for it. SeaweedFS, moto and the TLS lane come with the test
dependencies, so they run everywhere; Ceph and JuiceFS run where they are installed, and on CI they must be. A suite for
some of the servers says so::

    @pytest.mark.parametrize("server", ["seaweed", "ceph"], indirect=True)
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.s3._servers import (
    NotInstalled,
    Place,
    Server,
    fresh_place,
    new_place,
    start_ceph,
    start_juicefs,
    start_moto,
    start_seaweed,
    start_tls,
)

CI = bool(os.environ.get("CI"))

# What became of each server that a test asked for, by product: "SeaweedFS" -> "4.48", or "" where it is not installed.
SEEN = pytest.StashKey[dict[str, str]]()

HERE = Path(__file__).parent

SLOW = {
    "test_claims.py",
    "test_cli.py",
    "test_conformance.py",
    "test_deploy.py",
    "test_doctor.py",
    "test_load.py",
    "test_servers.py",
}

NO_PARAMETERS = SimpleNamespace(id="")

PRODUCTS = ["SeaweedFS", "moto", "Ceph", "JuiceFS"]

SERVERS = ["seaweed", "moto", "ceph", pytest.param("juicefs", marks=pytest.mark.slow), "tls"]


@pytest.fixture(scope="session", autouse=True)
def nobodys_account() -> Iterator[None]:
    """No test sees what the developer's environment and files say of AWS, and none asks a metadata service."""
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.upper().startswith("AWS_") or name.upper() in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
                patch.delenv(name)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.setenv("AWS_CONFIG_FILE", os.devnull)
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
        yield


@contextlib.contextmanager
def seen(request: pytest.FixtureRequest, start: Callable[[], AbstractContextManager[Server]]) -> Iterator[Server]:
    """Start a server that every machine has."""
    with start() as server:
        request.config.stash.setdefault(SEEN, {})[server.name] = server.version
        yield server


@contextlib.contextmanager
def seen_where_installed(
    request: pytest.FixtureRequest, name: str, start: Callable[[], AbstractContextManager[Server]]
) -> Iterator[Server]:
    """Start a server that a machine may lack; on CI none may."""
    with contextlib.ExitStack() as stack:
        try:
            yield stack.enter_context(seen(request, start))
            return
        except NotInstalled as error:
            missing = str(error)
    request.config.stash.setdefault(SEEN, {})[name] = ""
    if CI:
        pytest.fail(f"on CI every server must run: {missing}", pytrace=False)
    pytest.skip(missing)


@pytest.fixture(scope="session")
def seaweed(request: pytest.FixtureRequest, nobodys_account: None) -> Iterator[Server]:
    with seen(request, start_seaweed) as server:
        yield server


@pytest.fixture(scope="session")
def moto(request: pytest.FixtureRequest, nobodys_account: None) -> Iterator[Server]:
    with seen(request, start_moto) as server:
        yield server


@pytest.fixture(scope="session")
def ceph(request: pytest.FixtureRequest, nobodys_account: None) -> Iterator[Server]:
    with seen_where_installed(request, "Ceph", start_ceph) as server:
        yield server


@pytest.fixture(scope="session")
def juicefs(request: pytest.FixtureRequest, nobodys_account: None) -> Iterator[Server]:
    """Its tests are slow ones: whoever asks for it by this name marks the test so."""
    with seen_where_installed(request, "JuiceFS", start_juicefs) as server:
        yield server


@pytest.fixture(scope="session")
def tls(seaweed: Server) -> Iterator[Server]:
    """SeaweedFS behind TLS."""
    with start_tls(seaweed) as server:
        yield server


@pytest.fixture(scope="session", params=SERVERS)
def server(request: pytest.FixtureRequest) -> Server:
    """Every server in turn."""
    found: Server = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="session")
def buckets() -> dict[str, Place]:
    """The bucket which the tests of a session share, of each server by its URL."""
    return {}


@pytest.fixture
def place_on(buckets: dict[str, Place]) -> Callable[[Server], Place]:
    """Make a place on a server: a fresh prefix in the bucket that its tests share."""

    def make(server: Server) -> Place:
        if server.url not in buckets:
            buckets[server.url] = new_place(server)
        return fresh_place(buckets[server.url])

    return make


@pytest.fixture
def place(server: Server, place_on: Callable[[Server], Place]) -> Place:
    """A fresh prefix in the bucket of the tests, on every server in turn."""
    return place_on(server)


@pytest.fixture
def fresh_bucket(server: Server) -> Place:
    """A whole bucket of the test's own, on every server in turn."""
    return new_place(server)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of these suites, those of `SLOW` run in the slow lane where they are marked so; all else that is slow, and all on
    trio but the battery, is exhaustive.
    """
    for item in items:
        if HERE not in item.path.parents or not isinstance(item, pytest.Function):
            continue
        variant = getattr(item, "callspec", NO_PARAMETERS).id
        battery = item.path.name == "test_conformance.py"
        if "trio" in variant:
            item.add_marker(pytest.mark.slow)
        slow = item.get_closest_marker("slow") is not None
        kept = item.path.name in SLOW and "tls" not in variant and (battery or "trio" not in variant)
        if slow and not kept:
            item.add_marker(pytest.mark.exhaustive)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    versions = config.stash.get(SEEN, {})
    if versions:
        ran = ", ".join(f"{name} {version}" for name, version in versions.items() if version) or "none"
        absent = [f"{name} not installed" for name, version in versions.items() if not version]
        unasked = [f"{name} not asked for" for name in PRODUCTS if name not in versions]
        terminalreporter.write_line("; ".join([f"S3 servers: {ran} ran", *absent, *unasked]))
