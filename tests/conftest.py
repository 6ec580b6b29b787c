"""What holds for every suite: both event loops, no blocking call in one of them, and Hypothesis without litter."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import hypothesis
import hypothesis.configuration
import pytest
from blockbuster import blockbuster_ctx
from hypothesis.database import InMemoryExampleDatabase

CI = bool(os.environ.get("CI"))

# On CI a property runs on the same examples every time (which rules out a database); at a desk every run tries new
# ones, and what failed is tried again within the run only.
hypothesis.settings.register_profile(
    "coatcheck",
    deadline=None,
    max_examples=100,
    database=None if CI else InMemoryExampleDatabase(),
    derandomize=CI,
)
# For a longer search by hand: `pytest --hypothesis-profile=long`.
hypothesis.settings.register_profile("long", parent=hypothesis.settings.get_profile("coatcheck"), max_examples=5_000)
hypothesis.settings.load_profile("coatcheck")


def pytest_configure(config: pytest.Config) -> None:
    # Who started pytest under `nohup` or in the background of a script left it signals that are ignored, and a command
    # that a test starts would inherit that; a test that sends one means a command of a terminal.
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    # Hypothesis writes tables of its own beside the examples; they belong into the cache that is ignored already.
    if config.cache is not None:
        hypothesis.configuration.set_hypothesis_home_dir(config.cache.mkdir("hypothesis"))


@pytest.fixture(scope="module", params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """The event loops on which a suite marked ``@pytest.mark.anyio`` runs: both, unless it overrides this fixture."""
    backend: str = request.param
    return backend


def runs_on_asyncio(request: pytest.FixtureRequest) -> bool:
    """Whether the test is a coroutine that runs on an asyncio loop, by whichever plugin."""
    if request.node.get_closest_marker("asyncio") is not None:
        return True
    if "anyio_backend" not in request.fixturenames:
        return False
    backend = request.getfixturevalue("anyio_backend")
    name = backend if isinstance(backend, str) else backend[0]
    return bool(name == "asyncio")


@pytest.fixture(autouse=True)
def no_blocking_calls(request: pytest.FixtureRequest) -> Iterator[None]:
    """A blocking call in the event loop is an error, on asyncio, where it can be detected.

    Only calls with coatcheck on the stack count, so a test may prepare its files in the simplest way,
    while a tool or a rule that blocks the loop it was called in is caught.
    """
    if runs_on_asyncio(request):
        with blockbuster_ctx("coatcheck"):
            yield
    else:
        yield
