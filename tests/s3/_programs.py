"""Programs that a session of tests runs in the background, each in a directory of its own, and none outlives it.

A fixture stops what it started. What ends a session before its fixtures are torn down (SIGKILL, a crash of the
interpreter) leaves that to the keeper: a small process which learns every process and directory of the session, waits
for the session's end of its pipe to close, and removes what is still there.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import http.client
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

__all__ = [
    "DidNotStart",
    "NotInstalled",
    "Program",
    "answers",
    "find_program",
    "free_ports",
    "private_folder",
    "removed_in_the_end",
    "run",
    "thread_state",
    "wait_until",
]

_KEEPER = """
import os, shutil, signal, sys
left = {}
for line in sys.stdin:
    number, _, what = line.rstrip("\\n").partition(" ")
    if what:
        left[number] = what
    else:
        left.pop(number, None)
for what in sorted(left.values(), key=lambda what: not what.isdigit()):
    if what.isdigit():
        try:
            os.kill(int(what), signal.SIGKILL)
        except ProcessLookupError:
            pass
    elif os.path.isdir(what):
        shutil.rmtree(what, ignore_errors=True)
    elif os.path.lexists(what):
        os.unlink(what)
"""


class NotInstalled(Exception):
    """A program is not on this machine."""


class DidNotStart(Exception):
    """A program failed to start; the text ends with what it logged."""


@functools.cache
def _keeper() -> subprocess.Popen[str]:
    keeper = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _KEEPER], stdin=subprocess.PIPE, text=True, bufsize=1, start_new_session=True
    )
    atexit.register(keeper.communicate)
    return keeper


@contextlib.contextmanager
def _kept(what: str) -> Iterator[None]:
    """Have the keeper remove ``what`` (a process's id, or an absolute path) if this session cannot."""
    pipe = _keeper().stdin
    assert pipe is not None
    number = f"{random.getrandbits(64):x}"
    pipe.write(f"{number} {what}\n")
    try:
        yield
    finally:
        pipe.write(f"{number}\n")


@contextlib.contextmanager
def private_folder(name: str) -> Iterator[Path]:
    """A new directory with a short path (sockets are made in it), removed in the end."""
    with tempfile.TemporaryDirectory(prefix=f"cc-{name}-", ignore_cleanup_errors=True) as folder, _kept(folder):
        yield Path(folder)


@contextlib.contextmanager
def removed_in_the_end(file: Path) -> Iterator[None]:
    """Remove a file that a program makes outside of its directory."""
    with _kept(str(file)):
        try:
            yield
        finally:
            file.unlink(missing_ok=True)


def find_program(name: str, package: str) -> str:
    """The path of a program: beside the interpreter, where a wheel puts it, else on ``PATH``.

    Raises:
        NotInstalled: it is in neither place; the text names ``package``, which brings it.
    """
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        raise NotInstalled(f"{name} is not installed (from: {package})")
    return found


def free_ports(count: int) -> list[int]:
    """Free ports of 127.0.0.1, drawn at random below those that outgoing connections take.

    For each of them the port 10000 above is free, too: SeaweedFS speaks gRPC there. Nothing holds the ports, so whoever
    starts a server on them tries again with others when another process was quicker.
    """
    found: list[int] = []
    while len(found) < count:
        port = random.SystemRandom().randrange(10_000, 22_000)
        if port not in found and _is_free(port) and _is_free(port + 10_000):
            found.append(port)
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def answers(port: int, *statuses: int, path: str = "/") -> Callable[[], bool]:
    """Whether a GET of ``path`` on this port of 127.0.0.1 is answered with one of these HTTP statuses."""

    def ask() -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", path)
            return connection.getresponse().status in statuses
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    return ask


class Program:
    """One program in the background, which can be started again in the same place.

    Args:
        words: the command.
        folder: where it runs, and where its log is written (``NAME.log``).
        environment: of its own, beside PATH and a temporary directory in ``folder``. Nothing else is inherited.
    """

    def __init__(self, words: Sequence[str | Path], folder: Path, environment: Mapping[str, str] | None = None) -> None:
        self.words = [str(word) for word in words]
        self.folder = folder
        self.environment = _environment(folder, environment)
        self.log = folder / f"{Path(self.words[0]).name}.log"
        self._running = contextlib.ExitStack()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def runs(self) -> bool:
        """Whether it was started, and not killed by ``kill``."""
        return self._process is not None

    @property
    def pid(self) -> int:
        """The id of its process."""
        assert self._process is not None, f"{self.words[0]} does not run"
        return self._process.pid

    def start(self) -> None:
        """Start it; it does not run yet, or no more."""
        assert self._process is None, f"{self.words[0]} runs already"
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                self.words,
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._running.enter_context(_kept(str(process.pid)))
        self._process = process

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def freeze(self) -> None:
        """Stop it (SIGSTOP), and wait until none of its threads does anything."""
        self.send(signal.SIGSTOP)
        threads = Path(f"/proc/{self.pid}/task")
        stopped = wait_until(lambda: all(thread_state(thread) in "TZ" for thread in threads.iterdir()), 20)
        assert stopped, f"{self.words[0]} cannot be stopped"

    def kill(self) -> None:
        """Kill it, even where it is stopped, and wait until it is gone; nothing happens if it does not run."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            self._running.close()

    def wait(self, ready: Callable[[], bool], seconds: float = 40) -> None:
        """Wait until it is ready.

        Raises:
            DidNotStart: it ended, or took longer.
        """
        if not wait_until(lambda: self._ended() or ready(), seconds) or self._ended():
            said = self.log.read_text(encoding="utf-8", errors="replace")[-4_000:] if self.log.exists() else ""
            how = f"ended with status {self._process.poll() if self._process else None}"
            what = how if self._ended() else f"was not ready within {seconds:g} s"
            raise DidNotStart(f"{' '.join(self.words)}\n{what}; its log ends with:\n{said}")

    def _ended(self) -> bool:
        return self._process is None or self._process.poll() is not None


def thread_state(folder: Path) -> str:
    """The state of a process or a thread with this directory in ``/proc``: "T" is stopped; "Z" if it is gone."""
    try:
        return (folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def run(words: Sequence[str | Path], folder: Path, environment: Mapping[str, str] | None = None) -> str:
    """Run a command to its end, and return what it printed.

    Raises:
        DidNotStart: it failed.
    """
    command = [str(word) for word in words]
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=_environment(folder, environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
        )
    except subprocess.SubprocessError as error:
        said = [text for text in (getattr(error, "stdout", ""), getattr(error, "stderr", "")) if text]
        raise DidNotStart("\n".join([str(error), *map(str, said)])) from error
    return done.stdout


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait until something outside this process holds; False if it does not within ``seconds``."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _environment(folder: Path, environment: Mapping[str, str] | None) -> dict[str, str]:
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(folder),
        "TMPDIR": str(folder),
        **(environment or {}),
    }
