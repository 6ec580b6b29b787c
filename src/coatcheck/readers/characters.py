"""Characters in a part of a payload: no UTF-8 sequence is ever split, and every byte belongs to one character. Pure.

A character belongs to the part of the payload in which its first byte lies. What is no UTF-8 reads as U+FFFD, as
Python's ``errors="replace"`` has it.
"""

from __future__ import annotations

import codecs

__all__ = ["MAX_CHAR_BYTES", "belonging_before", "decode"]

MAX_CHAR_BYTES = 4
"""The longest UTF-8 sequence."""

_SLICE = 4096


def decode(data: bytes, limit: int, *, last: bool) -> tuple[str, int]:
    """The first characters of ``data``, which starts with one.

    Args:
        data: UTF-8, or what was meant to be.
        limit: how many characters at most.
        last: nothing comes after ``data``, so a sequence that it cuts off is damaged.

    Returns:
        The text, and how many bytes it stands for. A sequence that may be complete later is left out.
    """
    parts: list[str] = []
    at = 0
    while limit > 0 and at < len(data):
        piece = data[at : at + _SLICE]
        try:
            text, used = codecs.utf_8_decode(piece, "strict", last and at + len(piece) == len(data))
        except UnicodeDecodeError as error:
            text, used = "\ufffd", error.end
            if error.start:
                text, used = piece[: error.start].decode(), error.start
        if not used:
            break
        if len(text) > limit:
            text = text[:limit]
            used = len(text.encode())
        parts.append(text)
        limit -= len(text)
        at += used
    return "".join(parts), at


def belonging_before(before: bytes, data: bytes) -> int:
    """How many of the first bytes of ``data`` belong to a character that starts in ``before``.

    Args:
        before: the bytes right before, at least three of them where there are so many.
        data: from some byte of the payload on.
    """
    for back in range(1, min(MAX_CHAR_BYTES - 1, len(before)) + 1):
        lead = before[-back]
        if lead & 0xC0 == 0x80:
            continue
        length = 2 if 0xC2 <= lead < 0xE0 else 3 if 0xE0 <= lead < 0xF0 else 4 if 0xF0 <= lead < 0xF5 else 1
        if length <= back:
            return 0
        try:
            (before[len(before) - back :] + data[: length - back]).decode()
        except UnicodeDecodeError as error:  # a sequence that is cut off is one character too
            return max(error.end - back, 0) if error.start == 0 else 0
        return length - back
    return 0
