"""The edge of every command: what it raises becomes one line on standard error and an exit code.

    0     done
    1     what was asked for is not there, is damaged, or cannot be reached
    2     the command line or a setting cannot be understood
    130   interrupted (143, 129 likewise)
    141   nobody reads standard output any more; nothing is said

``exec`` has codes of its own beside these, see `coatcheck.cli.exec`.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, ParamSpec

import typer

from coatcheck.cli.output import OutputClosed, complain
from coatcheck.errors import CoatcheckError, ConfigurationError, InvalidRange

__all__ = ["WRONG", "command"]

_P = ParamSpec("_P")

WRONG = 1
_MISUSED = 2
_OUTPUT_CLOSED = 128 + signal.SIGPIPE


def command(
    *, wrong: int = WRONG, misused: int = _MISUSED, signals: bool = True, log: int = logging.WARNING
) -> Callable[[Callable[_P, Coroutine[Any, Any, int]]], Callable[_P, None]]:
    """Make a command of a coroutine function that returns the exit code.

    Args:
        wrong: the exit code where the store or the system fails.
        misused: the exit code where a setting cannot be honoured.
        signals: whether a signal that asks this process to end ends the coroutine in good order; a command that
            has other plans with signals says False.
        log: how grave a record of the library's log must be to be shown, as one line.
    """

    def make(function: Callable[_P, Coroutine[Any, Any, int]]) -> Callable[_P, None]:
        @functools.wraps(function)
        def run(*args: _P.args, **kwargs: _P.kwargs) -> None:
            code = wrong
            try:
                with _log_as_lines(log):
                    work = function(*args, **kwargs)
                    code = asyncio.run(_ended_by_signals(work) if signals else work)
            except OutputClosed:
                code = _OUTPUT_CLOSED
            except _Ended as ended:
                code = 128 + ended.signal
            except KeyboardInterrupt:
                code = 128 + signal.SIGINT
            except (ConfigurationError, InvalidRange) as error:
                code = misused
                complain(str(error))
            except (CoatcheckError, OSError) as error:
                complain(_explain(error))
            raise typer.Exit(code)

        return run

    return make


def _explain(error: CoatcheckError | OSError) -> str:
    """What went wrong, in one sentence."""
    if isinstance(error, CoatcheckError) or error.strerror is None:
        return str(error)
    return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"


class _Ended(Exception):
    def __init__(self, signal: int) -> None:
        super().__init__(signal)
        self.signal = signal


async def _ended_by_signals(work: Coroutine[Any, Any, int]) -> int:
    """Do ``work``; where a signal asks this process to end, cancel it, so that it can put its things in order."""
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    came: list[int] = []

    def end(number: int) -> None:
        came.append(number)
        task.cancel()

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:
            loop.add_signal_handler(number, end, number)
    try:
        return await task
    except asyncio.CancelledError:
        if came:
            raise _Ended(came[0]) from None
        raise


class _Lines(logging.Handler):
    """The library's log, one line a record, without tracebacks."""

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(Exception):  # a log record must never be felt
            complain(record.getMessage())


@contextmanager
def _log_as_lines(level: int) -> Iterator[None]:
    logger, handler = logging.getLogger("coatcheck"), _Lines(level)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
