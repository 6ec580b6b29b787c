"""Where a part of a payload lies that only a look at it tells: the last lines, or a value within JSON."""

from __future__ import annotations

from coatcheck.readers.json_path import Span, find_value
from coatcheck.readers.ranges import behind_newline
from coatcheck.readers.refs import Opener

__all__ = ["is_json_lines", "locate_tail", "locate_value"]

_STEP = 1 << 20
_WHOLE = 1 << 62


def is_json_lines(media_type: str) -> bool:
    """Whether payloads of this type hold a value a line."""
    return media_type.endswith(("jsonl", "ndjson"))


async def locate_value(open_: Opener, path: str) -> Span | None:
    """Where all of the value at ``path`` lies; ``None`` where there is no artifact.

    Raises:
        ReaderError: nothing is at that path.
    """
    async with open_(0, None) as reader:
        if reader is None:
            return None
        lines = is_json_lines(reader.meta.media_type)
        return await find_value(aiter(reader), path, lines=lines, look_for_end=_WHOLE, seconds=None)


async def locate_tail(open_: Opener, size: int, count: int) -> Span | None:
    """Where the last ``count`` lines lie, found from the end; ``None`` where there is no artifact.

    Never more than a mebibyte is held.

    Args:
        open_: opens the artifact. size: its bytes.
        count: how many lines, at least 1.
    """
    end = size
    while end:
        begin = max(0, end - _STEP)
        async with open_(begin, end) as reader:
            if reader is None:
                return None
            data = await reader.read()
        if end == size:
            data = data.removesuffix(b"\n")
        newlines = data.count(b"\n")
        if newlines >= count:
            return Span(begin + behind_newline(data, newlines - count + 1), size)
        count -= newlines
        end = begin
    return Span(0, size)
