"""The process of one query, seen from the host: started in a thread, killed from the event loop; and its files."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

__all__ = ["NamelessFiles", "QueryProcess"]

_MAX_REPLY = 16 << 20  # bytes; what it says is bounded by itself

# The process imports its own modules by these names, without what the package would load.
_PROGRAM = """
import sys, types
for name, path in zip(("coatcheck", "coatcheck.readers"), sys.argv[1:]):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [path]
from coatcheck.readers.worker import main
main()
"""


class NamelessFiles:
    """Files without a name, closed together, once."""

    def __init__(self) -> None:
        self.descriptors: list[int] = []

    def make(self) -> int:
        """A new one, which only this process and what it hands it to can read. Blocks."""
        descriptor, path = tempfile.mkstemp(prefix="coatcheck-query-")
        self.descriptors.append(descriptor)
        os.unlink(path)
        return descriptor

    def close(self) -> None:
        """Give them up. Blocks while a large one is freed."""
        while self.descriptors:
            with suppress(IndexError):  # the other thread took it
                os.close(self.descriptors.pop())


class QueryProcess:
    """The process of one query. A thread starts it and waits for it; the event loop only kills it.

    No lock is needed: each side first says what it did, then looks at the other. The files are closed by the side that
    is the last to need them.
    """

    def __init__(self, files: NamelessFiles) -> None:
        self.status: int | None = None
        self._files = files
        self._process: subprocess.Popen[bytes] | None = None
        self._started = False
        self._done = False
        self._given_up = False

    def ask(self, line: bytes) -> bytes:
        """Start the process, ask, and return what it said. Blocks until it has ended."""
        self._started = True
        try:
            if self._given_up:
                return b""
            return self._ask(line)
        finally:
            self._done = True
            if self._given_up:
                self._files.close()

    def _ask(self, line: bytes) -> bytes:
        package = Path(__file__).parent
        libraries = os.environ.get("LD_LIBRARY_PATH")  # Python itself may not start without it
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", _PROGRAM, str(package.parent), str(package)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=tuple(self._files.descriptors),
            env={"LD_LIBRARY_PATH": libraries} if libraries else {},
            cwd="/",
            start_new_session=True,
        )
        self._process = process
        with process:
            if self._given_up:
                process.kill()
            assert process.stdin is not None
            assert process.stdout is not None
            with suppress(BrokenPipeError):  # it ended already, and its status says why
                process.stdin.write(line)
                process.stdin.flush()
            said = process.stdout.read(_MAX_REPLY)
            process.kill()  # all that it had to say was said
            with suppress(BrokenPipeError):
                process.stdin.close()
            self.status = process.wait()
        return said

    def give_up(self) -> None:
        """Nobody waits any more: kill it. Never blocks."""
        self._given_up = True
        if self._process is not None and not self._done:
            self._process.kill()
        if not self._started or self._done:
            threading.Thread(target=self._files.close, daemon=True).start()
