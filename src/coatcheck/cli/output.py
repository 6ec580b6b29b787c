"""What a command prints: bytes as they are, lines for people, JSON for programs, and complaints.

Nothing of somebody else's that is printed for a person moves the cursor of a terminal (`harmless`).
"""

from __future__ import annotations

import re
import select
import sys
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from typing import IO, Any

import msgspec

__all__ = [
    "OutputClosed",
    "complain",
    "goes_to_terminal",
    "harmless",
    "print_json",
    "print_lines",
    "spell_time",
    "write",
]

# What JSON may hold as it is, and a terminal may obey or show in another order.
_UNPRINTABLE = re.compile("[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


class OutputClosed(Exception):
    """Nobody reads standard output any more."""


def write(data: bytes) -> None:
    """Write ``data`` to standard output, all of it.

    Raises:
        OutputClosed: nobody reads it.
        OSError: it cannot be written, as to a full disk.
    """
    if sys.stdout is None:
        raise OSError("standard output is closed")
    try:
        sys.stdout.flush()
        _write_all(sys.stdout.buffer, data)
    except BrokenPipeError:
        raise OutputClosed from None
    except OSError as error:
        raise OSError(error.errno, error.strerror, "standard output") from None


def goes_to_terminal() -> bool:
    """Whether standard output is a terminal."""
    return sys.stdout is not None and sys.stdout.isatty()


def _write_all(stream: IO[bytes], data: bytes) -> None:
    """Write ``data`` past the stream's own buffer; where the descriptor does not block, wait until it takes more."""
    raw: Any = getattr(stream, "raw", stream)
    left = memoryview(data)
    while left:
        taken = raw.write(left)
        if taken is None:
            select.select([], [raw], [])
        else:
            left = left[taken:]


def print_lines(lines: Iterable[str]) -> None:
    """Lines for a person, each made harmless."""
    write("".join(f"{harmless(line)}\n" for line in lines).encode(errors="backslashreplace"))


def print_json(rows: Iterable[object]) -> None:
    """One JSON object a line."""
    write(b"".join(_json_line(row) for row in rows))


def complain(text: str) -> None:
    """One line on standard error."""
    if sys.stderr is not None:
        with suppress(OSError):  # where nobody listens, the exit code has to say it
            print(f"coatcheck: {harmless(' '.join(text.split()))}", file=sys.stderr, flush=True)


def harmless(text: str) -> str:
    """``text`` with everything that cannot be printed spelled out."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def spell_time(time: datetime | None) -> str:
    """A time for a person, in UTC, to the second; ``-`` where there is none."""
    return "-" if time is None else f"{time:%Y-%m-%dT%H:%M:%SZ}"


def _json_line(row: object) -> bytes:
    text = msgspec.json.encode(row).decode()
    return _UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text).encode() + b"\n"
