"""What a binary payload is, by its first bytes. Of common pictures the dimensions, in pixels."""

from __future__ import annotations

from typing import Any

__all__ = ["describe_binary"]

_SIGNS = (
    (b"%PDF-", "PDF"),
    (b"PAR1", "Parquet"),
    (b"PK\x03\x04", "ZIP"),
    (b"\x1f\x8b", "gzip"),
    (b"SQLite format 3\x00", "SQLite"),
    (b"ARROW1", "Arrow"),
    (b"\x28\xb5\x2f\xfd", "Zstandard"),
)
_FRAMES = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})  # the JPEG markers that hold the dimensions


def describe_binary(head: bytes, media_type: str) -> dict[str, Any]:
    """What is known of a binary payload.

    Args:
        head: its first bytes; 64 KiB find the dimensions of nearly every picture.
        media_type: what it was stored as.

    Returns:
        ``mediaType``, and where the bytes say so ``format``, ``width`` and ``height``.
    """
    found: dict[str, Any] = {"mediaType": media_type}
    for name, measure in (("PNG", _png), ("GIF", _gif), ("WebP", _webp), ("JPEG", _jpeg)):
        sides = measure(head)
        if sides is not None:
            found["format"] = name
            if sides != (0, 0):
                found["width"], found["height"] = sides
            return found
    for sign, name in _SIGNS:
        if head.startswith(sign):
            found["format"] = name
            break
    return found


def _png(head: bytes) -> tuple[int, int] | None:
    if not head.startswith(b"\x89PNG\r\n\x1a\n"):
        return None
    if head[12:16] != b"IHDR" or len(head) < 24:
        return 0, 0
    return int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")


def _gif(head: bytes) -> tuple[int, int] | None:
    if head[:6] not in (b"GIF87a", b"GIF89a"):
        return None
    return (int.from_bytes(head[6:8], "little"), int.from_bytes(head[8:10], "little")) if len(head) >= 10 else (0, 0)


def _webp(head: bytes) -> tuple[int, int] | None:
    if head[:4] != b"RIFF" or head[8:12] != b"WEBP":
        return None
    if len(head) < 30:
        return 0, 0
    match head[12:16]:
        case b"VP8 ":
            return int.from_bytes(head[26:28], "little") & 0x3FFF, int.from_bytes(head[28:30], "little") & 0x3FFF
        case b"VP8L":
            bits = int.from_bytes(head[21:25], "little")
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8X":
            return int.from_bytes(head[24:27], "little") + 1, int.from_bytes(head[27:30], "little") + 1
        case _:
            return 0, 0


def _jpeg(head: bytes) -> tuple[int, int] | None:
    if not head.startswith(b"\xff\xd8\xff"):
        return None
    at = 2
    while at + 9 <= len(head) and head[at] == 0xFF:
        marker = head[at + 1]
        if marker == 0xFF:  # padding
            at += 1
        elif marker in _FRAMES:
            return int.from_bytes(head[at + 7 : at + 9], "big"), int.from_bytes(head[at + 5 : at + 7], "big")
        else:
            at += 2 + max(int.from_bytes(head[at + 2 : at + 4], "big"), 2)
    return 0, 0
