"""How far a long transfer is: on standard error, and only where a person looks at it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["progress"]

_WORTH_SHOWING = 8 * 1024 * 1024


def _nobody(done: int) -> None:
    """Progress that nobody looks at."""


@contextmanager
def progress(what: str, total: int, *, shown: bool = True) -> Iterator[Callable[[int], None]]:
    """Gives a function that is told of every further so many bytes.

    Args:
        what: the transfer, in a word.
        total: how many bytes there will be.
        shown: False where the transfer itself goes to the terminal.
    """
    if not shown or total < _WORTH_SHOWING or sys.stderr is None or not sys.stderr.isatty():
        yield _nobody
        return
    from rich.console import Console  # a quarter of the start-up, for the few who look
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    columns = ("{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.advance(task, done)
