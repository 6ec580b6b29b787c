"""One command as a stream of bytes: started, read, timed, signalled, and ended with all that it started.

    async with Command(["make", "all"], name="make", timeout=60) as command:
        async for chunk in command.output(): ...

Laws:

* The command leads a session of its own. Signals that this process gets go to it; asked to end a second time, or
  when it does not end within `GRACE` seconds, it is killed. A timeout asks in the same way.
* Its standard output is the stream. Standard error passes through while it is written, and its end is kept.
* Its end is the end of the stream: what still holds the pipe then has `LINGER` seconds to finish.
* Any other end than exit status 0 raises `CommandFailed` in place of the stream's end.
* Whatever happens, no process is left behind the ``async with``. Where this process itself is killed, Linux kills the
  command with it; what that had started goes on.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import select
import shutil
import signal
import struct
import sys
import termios
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, suppress
from subprocess import DEVNULL, Popen
from types import TracebackType
from typing import Any, Self

from coatcheck.cli.ending import Tail, describe_failure
from coatcheck.cli.family import Family, adopting_orphans, dies_with_parent

__all__ = ["CANNOT_RUN", "GRACE", "LINGER", "NOT_FOUND", "Command", "CommandFailed"]

CANNOT_RUN, NOT_FOUND = 126, 127

GRACE = 5.0
"""How long a command that was asked to end may take, in seconds."""

LINGER = 1.0
"""How long what a command left behind may go on writing, in seconds."""

_CHUNK = 1024 * 1024
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_FORWARDED = (*_ENDING, signal.SIGUSR1, signal.SIGUSR2)


class CommandFailed(Exception):
    """The command did not end with exit status 0. The text is for the model that reads it."""


class Command:
    """One run of one command; see the head of this module.

    Args:
        argv: the command and its arguments; no shell is in between.
        name: what a failure calls it.
        timeout: how many seconds it may take; ``None`` for no limit.

    Attributes:
        status: how it ended, as `Popen.returncode` has it; ``None`` while it runs, and where it was not run.
        not_run: the exit code that says why it could not be run, else ``None``.
        timed_out: whether it was asked to end because its time was over.
        interrupted: the signal that came when there was no command any more that it could go to, else ``None``.
        left_running: how many processes it left running when it ended, which were ended, too.
        out, err: what it wrote.
    """

    def __init__(self, argv: Sequence[str], *, name: str, timeout: float | None = None) -> None:
        self.status: int | None = None
        self.not_run: int | None = None
        self.timed_out: bool = False
        self.interrupted: int | None = None
        self.left_running: int = 0
        self.out: Tail = Tail()
        self.err: Tail = Tail()
        self._argv = list(argv)
        self._name = name
        self._timeout = timeout
        self._context = ExitStack()
        self._news = asyncio.Event()
        self._family: Family | None = None
        self._pipe = -1
        self._over_at: float | None = None
        self._last: int | None = None
        self._relays = False
        self._asked = False
        self._hurries = False

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._caller = asyncio.current_task()
        self._strangers = self._context.enter_context(adopting_orphans())
        self._handle(signal.SIGCHLD, self._look)
        for number in _FORWARDED:
            if signal.getsignal(number) != signal.SIG_IGN:  # as nohup and a shell's background jobs want it
                self._handle(number, self._forward, number)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._caller = None  # from now on a signal does not cancel, it hurries
        try:
            if self._family is not None:
                self._look()
                had_ended = self.status is not None
                ended = await self._family.end(lambda: self._hurries)
                self.left_running = ended if had_ended else 0
                await self._until(lambda: not self._relays or self._hurries, GRACE)
        finally:
            self._context.close()

    async def output(self) -> AsyncIterator[bytes]:
        """Run the command, and give its standard output in chunks of at most 1 MiB.

        Raises:
            CommandFailed: at the end: it could not be run, ran out of time, or ended with another exit status than 0.
        """
        self._start()
        while chunk := await self._next():
            yield chunk
        await self._until(lambda: self.status is not None or self._is_over())
        await self._until(lambda: not self._relays or self._is_over())
        if self.timed_out or self.status != 0:
            timeout = self._timeout if self.timed_out else None
            raise CommandFailed(describe_failure(self._name, self.status, timeout, self.out, self.err))

    async def discard(self) -> None:
        """Let the command end by itself, where nobody takes the rest of its output."""
        if self._family is None:
            return
        while await self._next():
            pass
        await self._until(lambda: self.status is not None or self._is_over())

    # --- its standard output ---

    async def _next(self) -> bytes:
        """The next chunk; empty at the end."""
        while (chunk := self._take()) is None:
            await self._arrival()
        if chunk:
            self.out.add(chunk)
            await asyncio.sleep(0)  # signals and timers get their turn, however fast the reader is
        return chunk

    def _take(self) -> bytes | None:
        """What is in the pipe, at most a chunk; empty at the end; ``None`` where there is nothing yet."""
        if self._last is None and self._is_over():
            (self._last,) = struct.unpack("i", fcntl.ioctl(self._pipe, termios.FIONREAD, bytes(4)))
        try:
            chunk = os.read(self._pipe, _CHUNK if self._last is None else min(self._last, _CHUNK))
        except BlockingIOError:
            return None
        if self._last is not None:
            self._last -= len(chunk)
        return chunk

    async def _arrival(self) -> None:
        """Wait until there is something in the pipe, or something happened to the command."""
        self._news.clear()
        self._loop.add_reader(self._pipe, self._news.set)
        try:
            await self._news.wait()
        finally:
            self._loop.remove_reader(self._pipe)

    async def _until(self, holds: Callable[[], bool], seconds: float | None = None) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not holds():
                    self._news.clear()
                    await self._news.wait()

    def _is_over(self) -> bool:
        """Whether the command ended long enough ago, or does not end at all."""
        return self._over_at is not None and self._loop.time() >= self._over_at

    # --- its life ---

    def _start(self) -> None:
        out, its_out = os.pipe()
        err, its_err = os.pipe()
        try:
            leader = Popen(
                self._argv,
                stdin=_stdin(),
                stdout=its_out,
                stderr=its_err,
                start_new_session=True,
                preexec_fn=dies_with_parent(),
            )
        except OSError as error:
            os.close(out)
            os.close(err)
            self.not_run, why = _why_not(self._argv[0], error)
            raise CommandFailed(f"{self._name} cannot be run: {why}.") from None
        finally:
            os.close(its_out)
            os.close(its_err)
        self._family = Family(leader, self._strangers)
        self._pipe = out
        self._context.callback(os.close, out)
        os.set_blocking(out, False)
        with suppress(AttributeError, OSError):  # not every system has it, or lets everyone
            fcntl.fcntl(out, fcntl.F_SETPIPE_SZ, _CHUNK)
        self._relays = True
        threading.Thread(target=self._relay, args=(err,), daemon=True).start()
        if self._timeout is not None:
            self._call_later(self._timeout, self._time_is_over)

    def _look(self) -> None:
        """A child ended: this one?"""
        if self._family is None or self.status is not None:
            return
        self.status = self._family.status()
        if self.status is not None:
            self._last_orders()

    def _last_orders(self) -> None:
        """What is still to come has to come soon."""
        self._over_at = self._loop.time() + LINGER
        self._call_later(LINGER, self._news.set)
        self._news.set()

    def _time_is_over(self) -> None:
        if self.status is None:
            self.timed_out = True
            self._ask(signal.SIGTERM)

    def _forward(self, number: int) -> None:
        """A signal came."""
        if self._family is not None and self.status is None:
            if number in _ENDING:
                self._ask(number)
            else:
                self._family.send(number)
        elif number in _ENDING:
            self._hurries = True
            self._news.set()
            self.interrupted = number
            if self._caller is not None:
                self._caller.cancel()

    def _ask(self, number: int) -> None:
        """Ask the command to end, and see that it does."""
        if self._family is not None:
            self._family.send(number)
        if self._asked:
            self._kill()
        self._asked = True
        self._call_later(GRACE, self._kill)

    def _kill(self) -> None:
        if self._family is not None and self.status is None:
            self._hurries = True
            self._family.send(signal.SIGKILL)
            self._last_orders()  # it may have become another user's, and beyond our reach

    def _relay(self, err: int) -> None:
        """Pass standard error on, in a thread: whoever reads it slowly must not stop the rest."""
        listened_to = sys.stderr is not None
        try:
            while chunk := os.read(err, _CHUNK):
                self.err.add(chunk)
                listened_to = listened_to and _said(chunk)
        finally:
            os.close(err)
            with suppress(RuntimeError):  # nobody waited for it any more
                self._loop.call_soon_threadsafe(self._relayed)

    def _relayed(self) -> None:
        self._relays = False
        self._news.set()

    # --- what has to be undone ---

    def _call_later(self, seconds: float, callback: Callable[[], object]) -> None:
        self._context.callback(self._loop.call_later(seconds, callback).cancel)

    def _handle(self, number: int, callback: Callable[..., object], *args: Any) -> None:
        before = signal.getsignal(number)
        self._loop.add_signal_handler(number, callback, *args)

        def restore() -> None:
            self._loop.remove_signal_handler(number)
            signal.signal(number, before or signal.SIG_DFL)

        self._context.callback(restore)


def _stdin() -> int | None:
    """What a command reads: what this process would read; nothing where that is a terminal, or closed."""
    return DEVNULL if sys.stdin is None or os.isatty(0) else None


def _why_not(program: str, error: OSError) -> tuple[int, str]:
    """The exit code, and the words, for a command that the system would not run."""
    # The system says the same where a directory on the path may not be looked into, and nothing was found elsewhere.
    found = os.path.exists(program) if os.sep in program else shutil.which(program, os.F_OK) is not None
    if isinstance(error, FileNotFoundError) and found:
        return NOT_FOUND, "what its first line names is not there"
    if isinstance(error, FileNotFoundError) or (not found and os.sep not in program):
        return NOT_FOUND, "there is no such command"
    return CANNOT_RUN, error.strerror or "the system refuses"


def _said(chunk: bytes) -> bool:
    """Write to standard error, and tell whether it goes anywhere."""
    left = memoryview(chunk)
    while left:
        try:
            left = left[os.write(2, left) :]
        except BlockingIOError:
            select.select([], [2], [])
        except OSError:
            return False
    return True
