"""One range of bytes, as RFC 9110 (section 14) writes and reads it.

Laws: what is no range, has another unit, or asks for several parts is ignored, so that the answer is the whole (200),
which section 14.2 lets a server do; a single range that begins after the end is unsatisfiable (416). No number is too
large and no header too long: reading one takes time in proportion to its length.
"""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["ByteRange", "Unsatisfiable", "parse_range"]

_HEADER = re.compile(r"[ \t]*bytes=(.*)", re.IGNORECASE | re.DOTALL)
_RANGE = re.compile(r"([0-9]*)-([0-9]*)")
_DIGITS = 18
_FAR = 10**_DIGITS  # no payload is longer, and every file system and server can count so far


class Unsatisfiable(Exception):
    """No byte of the payload is in the range: 416."""


class ByteRange(NamedTuple):
    """What was asked for: ``first-last``; ``first-``, where ``last`` is ``None``; or ``suffix`` bytes from the end."""

    first: int = 0
    last: int | None = None
    suffix: int | None = None

    def resolve(self, size: int) -> tuple[int, int] | None:
        """Start and end (the byte after the last) within a payload of ``size`` bytes.

        Returns:
            ``None`` where the whole is answered as if nothing had been asked: the end of an empty payload can be
            asked for, but no ``Content-Range`` can say it.

        Raises:
            Unsatisfiable: nothing of the payload is in it.
        """
        if self.suffix is not None:
            if self.suffix == 0:
                raise Unsatisfiable
            return None if size == 0 else (max(0, size - self.suffix), size)
        if self.first >= size:
            raise Unsatisfiable
        return self.first, size if self.last is None else min(self.last + 1, size)


def parse_range(header: str) -> ByteRange | None:
    """The one range that a ``Range`` header asks for; ``None``: it is to be ignored.

    Args:
        header: its value. Empty elements of the list do not count, as for every list in HTTP.
    """
    found = _HEADER.fullmatch(header)
    if found is None:
        return None
    elements = [stripped for element in found[1].split(",") if (stripped := element.strip(" \t"))]
    if len(elements) != 1:
        return None
    match = _RANGE.fullmatch(elements[0])
    if match is None or not (match[1] or match[2]):
        return None
    if not match[1]:
        return ByteRange(suffix=_number(match[2]))
    first, last = _number(match[1]), _number(match[2]) if match[2] else None
    if last is not None and _less(match[2], match[1]):
        return None
    return ByteRange(first, last)


def _number(digits: str) -> int:
    significant = digits.lstrip("0")
    return int(significant or "0") if len(significant) <= _DIGITS else _FAR


def _less(left: str, right: str) -> bool:
    """Whether one number is less than the other, however many digits they have."""
    left, right = left.lstrip("0"), right.lstrip("0")
    return (len(left), left) < (len(right), right)
