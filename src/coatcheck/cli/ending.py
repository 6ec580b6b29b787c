"""How a command ended, in words and in numbers. Pure.

What a failed command said is what a model needs to go on: all of a short output, the end of a long one.
"""

from __future__ import annotations

import signal

__all__ = ["MAX_TAIL_CHARS", "Tail", "describe_failure", "exit_code", "signal_name"]

MAX_TAIL_CHARS = 4_000
"""How much of the end of each stream a failure shows."""

_KEPT_BYTES = 4 * MAX_TAIL_CHARS  # no character takes more than four
_CONTINUATION = bytes(range(0x80, 0xC0))


class Tail:
    """How much a stream brought, and the end of it.

    Attributes:
        size: in bytes.
    """

    def __init__(self) -> None:
        self.size: int = 0
        self._end = b""

    def add(self, chunk: bytes) -> None:
        """The next chunk."""
        self.size += len(chunk)
        self._end = (chunk if len(chunk) >= _KEPT_BYTES else self._end + chunk)[-_KEPT_BYTES:]

    @property
    def text(self) -> str:
        """Its last characters, at most `MAX_TAIL_CHARS`; what is no UTF-8 becomes U+FFFD."""
        return self._decoded()[-MAX_TAIL_CHARS:]

    def describe(self, name: str) -> str:
        """What is said of this stream where the command failed."""
        if not self.size:
            return f"Its {name} is empty."
        if b"\0" in self._end:
            return f"Its {name} is {self.size} bytes of binary, not shown."
        text = self.text
        if self.size <= _KEPT_BYTES and len(self._decoded()) == len(text):
            head = f"Its {name}:"
        else:
            head = f"The last {len(text)} characters of its {name}, which is {self.size} bytes:"
        return head + "\n" + text.removesuffix("\n")

    def _decoded(self) -> str:
        # Where the beginning is gone, a character may have been cut in two.
        kept = self._end.lstrip(_CONTINUATION) if self.size > len(self._end) else self._end
        return kept.decode(errors="replace")


def describe_failure(name: str, status: int | None, timeout: float | None, out: Tail, err: Tail) -> str:
    """What a model reads of a command that failed.

    Args:
        name: the command.
        status: how it ended, as `Popen.returncode` has it; ``None`` where it did not.
        timeout: the seconds after which it was stopped, where it was.
        out, err: what it wrote.
    """
    if timeout is not None:
        how = f"did not end within {timeout:g} seconds and was stopped"
    elif status is not None and status < 0:
        how = f"was ended by {signal_name(-status)}"
    elif status is None:
        how = "was asked to end, and did not"
    else:
        how = f"ended with exit status {status}"
    return f"{name} {how}. {out.describe('standard output')}\n{err.describe('standard error')}"


def exit_code(status: int) -> int:
    """What a shell makes of how a process ended: its exit status, or 128 and the number of the signal."""
    return status if status >= 0 else 128 - status


def signal_name(number: int) -> str:
    """``SIGTERM`` and the like."""
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
