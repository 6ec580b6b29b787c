"""The lines of a stored text that match a pattern. The core of ``search_artifact`` and of the shell's ``grep``.

Laws:

* What is found is what a search of each line finds.
* Memory is bounded, and so is the time, whatever the payload and the pattern: see `coatcheck.readers.scanning`.
* The scanning is done in a worker thread, a few megabytes at a time; a caller that is cancelled waits for
  none of it.
* Matches say the number of their line and a byte from which `read_page` goes on at the cost of one ranged read.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from coatcheck.artifacts.meta import ArtifactMeta
from coatcheck.lanes import Lane, Work
from coatcheck.readers.answers import (
    DEFAULT_MAX_CHARS,
    HEX_BYTES,
    OVERHEAD_CHARS,
    SMALLEST_MAX_CHARS,
    describe_binary,
    end_line,
    spell_call,
    start_line,
)
from coatcheck.readers.characters import decode
from coatcheck.readers.matching import make_matcher
from coatcheck.readers.refs import Opener, ReaderError
from coatcheck.readers.scanning import SECONDS, SEEN_BEFORE, Hit, Scanner
from coatcheck.results.binary import is_textual

__all__ = [
    "DEFAULT_MAX_MATCHES",
    "LARGEST_CONTEXT",
    "LARGEST_MAX_MATCHES",
    "Found",
    "render",
    "search",
]

DEFAULT_MAX_MATCHES = 20
LARGEST_MAX_MATCHES = 500
LARGEST_CONTEXT = 20

_BLOCK = 2 << 20
_SMALL = 1 << 18
_FIRST_PART = 4 << 20
_LINE_SHOWN = 300
_CONTEXT_BYTES = 8192
_NEAR_BYTES = 32_768
_CALL_SHOWN = 400


_Around: TypeAlias = tuple[tuple[str, ...], tuple[str, ...]]


class Found(NamedTuple):
    """What a search found.

    Attributes:
        meta: the artifact's.
        hits: the matching lines, in order; a long one once for each match.
        context: for each, the lines before and behind it that were asked for, as far as they are near.
        searched: the byte up to which it was searched.
        next: the arguments of the call that searches on, without ref and pattern; ``None``: all was searched.
        from_byte: where the search began.
        timed_out: it was ended because it took too long.
    """

    meta: ArtifactMeta
    hits: tuple[Hit, ...]
    context: tuple[_Around, ...]
    searched: int
    next: Mapping[str, Any] | None
    from_byte: int = 0
    timed_out: bool = False


async def search(
    open_: Opener,
    pattern: str,
    *,
    literal: bool = False,
    ignore_case: bool = False,
    context: int = 0,
    max_matches: int = DEFAULT_MAX_MATCHES,
    from_byte: int = 0,
    from_line: int | None = None,
    seconds: float = SECONDS,
    max_chars: int | None = None,
) -> Found | str | None:
    """The lines of an artifact that match.

    Args:
        open_: opens the artifact.
        pattern: a regular expression as RE2 has it; or, where ``literal``, what is to be found itself.
        ignore_case: letters of either case are the same.
        context: so many lines before and behind each are shown too, at most `LARGEST_CONTEXT`.
        max_matches: after so many of them the search ends, at most `LARGEST_MAX_MATCHES`.
        from_byte, from_line: where to begin: the byte at which a line begins or a search ended, and the line's number.
        seconds: how long to search at most.
        max_chars: so much of it will be rendered; the lines around what comes behind that are not read.

    Returns:
        What was found; for what is no text, a description; ``None`` for a ref that gives nothing.

    Raises:
        ReaderError: the pattern or a number cannot be.
    """
    if not 0 <= context <= LARGEST_CONTEXT:
        raise ReaderError(f"context is a number of lines, from 0 to {LARGEST_CONTEXT}")
    if not 1 <= max_matches <= LARGEST_MAX_MATCHES:
        raise ReaderError(f"max_matches is from 1 to {LARGEST_MAX_MATCHES}")
    if from_byte < 0 or (from_line is not None and from_line < 1):
        raise ReaderError("from_byte is counted from 0, from_line from 1: give both as an earlier answer gave them")
    matcher = make_matcher(pattern, literal=literal, ignore_case=ignore_case)
    line = from_line if from_byte else 1
    # Two parts, because a whole payload is compared with its digest, which takes longer than searching it.
    middle = from_byte + _FIRST_PART
    before = min(from_byte, SEEN_BEFORE)
    async with open_(from_byte - before, middle) as reader:
        if reader is None:
            return None
        meta = reader.meta
        textual = is_textual(meta.media_type)
        scanner = Scanner(matcher, max_matches, offset=from_byte, before=before, line=line, seconds=seconds)
        more = False
        if textual:
            more = await _scan(aiter(reader), scanner, last=meta.bytes <= middle)
    if more and meta.bytes > middle:
        async with open_(middle, None) as reader:
            if reader is None:
                return None
            await _scan(aiter(reader), scanner, last=True)
    if not textual:
        async with open_(0, HEX_BYTES) as reader:
            return describe_binary(meta, b"" if reader is None else await reader.read())
    around: list[_Around] = [((), ())] * len(scanner.hits)
    chars = 0
    for place, hit in enumerate(scanner.hits if context else ()):
        around[place] = await _around(open_, hit, context)
        chars += _cost(_rows(hit, around[place]))
        if max_chars is not None and chars > max_chars:
            break
    searched, following = meta.bytes, None
    if scanner.resume is not None and scanner.resume[0] < meta.bytes:
        searched, number = scanner.resume
        following = {"from_byte": searched} | ({} if number is None else {"from_line": number})
    return Found(meta, tuple(scanner.hits), tuple(around), searched, following, from_byte, scanner.timed_out)


async def _scan(chunks: AsyncIterator[bytes], scanner: Scanner, *, last: bool) -> bool:
    """Search some chunks, a few megabytes at a time, while the next ones are read; False once no more is wanted."""
    lane = Lane()
    searched: Work[bool] | None = None
    waiting: list[bytes] = []
    size = 0
    try:
        while True:
            try:
                waiting.append(chunk := await anext(chunks))
            except StopAsyncIteration:
                break
            except Exception:
                if searched is not None and not await searched.result():
                    return False  # what was read before holds all that is wanted
                raise
            size += len(chunk)
            if searched is not None and (searched.is_done or size >= _BLOCK):
                if not await searched.result():
                    return False
                searched = None
            if size >= _BLOCK:
                searched = lane.do(partial(_feed, scanner, waiting, False))
                waiting, size = [], 0
        if searched is not None and not await searched.result():
            return False
        return await lane.do(partial(_feed, scanner, waiting, last)).result()
    except BaseException:
        scanner.given_up = True  # its thread goes no further than the next few lines
        raise
    finally:
        lane.close()


def _feed(scanner: Scanner, chunks: list[bytes], last: bool) -> bool:
    if chunks and len(chunks[0]) < _SMALL:
        chunks = [b"".join(chunks)]
    for chunk in chunks:
        if not scanner.feed(chunk):
            return False
    return not last or scanner.feed(b"", last=True)


async def _around(open_: Opener, hit: Hit, count: int) -> _Around:
    """The lines before and behind one, as far as they are near. Of a long line only what is near is read."""
    first = max(0, hit.start - _CONTEXT_BYTES)
    last = max(hit.at, hit.shown_from) + len(hit.shown) + _CONTEXT_BYTES
    if hit.at - hit.start <= _NEAR_BYTES:
        data, left = await _part(open_, first, last)
        head, tail = data[: hit.start - first], data[hit.at - first :]
    else:
        head, _ = await _part(open_, first, hit.start)
        tail, left = await _part(open_, hit.at, last)
    before = head.split(b"\n")[:-1]
    if first:
        before = before[1:]  # cut off at its beginning
    end = tail.find(b"\n")
    behind = [] if end < 0 else tail[end + 1 :].split(b"\n")
    if behind and (not behind[-1] or (left and len(behind[-1]) <= _LINE_SHOWN)):
        behind.pop()  # cut off at its end
    return tuple(map(_one_line, before[-count:])), tuple(map(_one_line, behind[:count]))


async def _part(open_: Opener, first: int, last: int) -> tuple[bytes, int]:
    """Some bytes, and how many are left behind them."""
    async with open_(first, last) as reader:
        if reader is None:
            return b"", 0
        data = await reader.read()
        return data, max(reader.meta.bytes - first - len(data), 0)


def _one_line(line: bytes) -> str:
    line = line.rstrip(b"\r")
    text, used = decode(line, _LINE_SHOWN, last=True)
    return text if used == len(line) else f"{text}…"


def render(
    found: Found, *, tool: str, reader: str, ref: str, call: Mapping[str, Any], max_chars: int = DEFAULT_MAX_CHARS
) -> str:
    """What was found as a model reads it, within ``max_chars``.

    Args:
        found: it.
        tool, reader: what this tool is called, and the one that reads.
        ref: the artifact.
        call: the arguments of this search but ref and where it began, for the call that searches on.
        max_chars: the bound, at least `SMALLEST_MAX_CHARS`.
    """
    budget = max(max_chars, SMALLEST_MAX_CHARS) - OVERHEAD_CHARS
    lines: list[str] = []
    shown = 0
    for hit, around in zip(found.hits, found.context, strict=True):
        rows = _rows(hit, around)
        fits = _cost(rows) <= budget
        if not fits:
            if shown:
                break
            rows = _nearest(hit, around, budget)
        budget -= _cost(rows)
        lines.extend(rows)
        shown += 1
        if not fits:
            break
    following, searched = found.next, found.searched
    if shown < len(found.hits):
        rest, before = found.hits[shown], found.hits[shown - 1] if shown else None
        same_line = before is not None and before.start == rest.start
        searched = rest.at if same_line else rest.start
        following = {"from_byte": searched} | ({} if rest.line is None else {"from_line": rest.line})
    lines_shown = len({hit.start for hit in found.hits[:shown]})
    where = f"{lines_shown} matching {'line' if lines_shown == 1 else 'lines'}"
    if lines_shown < shown:
        where = f"{shown} matches in {lines_shown} {'line' if lines_shown == 1 else 'lines'}"
    said: list[str] = []
    if not shown:
        began = f"from byte {found.from_byte} on " if found.from_byte else ""
        so_far = "" if following is None else "so far "
        said.append(
            f"Nothing {began}{so_far}matches. A match lies within one line, and in its case unless ignore_case."
        )
    else:
        hit = found.hits[0]
        read = (
            {"lines": f"{hit.line}:{hit.line + 20}", "from_byte": _place(hit)}
            if hit.line
            else {"bytes": f"{_place(hit)}:{_place(hit) + 2000}"}
        )
        said.append(f"Each row is line@byte: text. Read at the first with {reader} {spell_call(ref, read)}")
    if following is None:
        said.append("All of it was searched.")
    else:
        left = found.meta.bytes - searched
        again = spell_call(ref, {**call, **following})
        if len(again) > _CALL_SHOWN:
            again = f"and the same arguments, with {spell_call(ref, following)}"
        if found.timed_out:
            said.append("The search took too long for all of it: a simpler pattern, or literal=true, is faster.")
        said.append(f"{left} bytes are left. Search on with {tool} {again}")
    return "\n".join([start_line(found.meta, where), *lines, end_line(found.meta, " ".join(said))])


def _rows(hit: Hit, around: _Around) -> list[str]:
    """What is shown of a hit."""
    before, behind = around
    rows = [*(f"  {text}" for text in before), _row(hit), *(f"  {text}" for text in behind)]
    return [*rows, "--"] if before or behind else rows


def _cost(rows: list[str]) -> int:
    return sum(map(len, rows)) + len(rows)


def _nearest(hit: Hit, around: _Around, budget: int) -> list[str]:
    """What is shown of a hit with so many of the lines around it as fit, and of its own line at least a part."""
    before, behind = around
    while before or behind:
        if len(before) > len(behind):
            before = before[1:]
        else:
            behind = behind[:-1]
        rows = _rows(hit, (before, behind))
        if _cost(rows) <= budget:
            return rows
    return [_row(hit)[: max(budget - 1, 0)]]


def _place(hit: Hit) -> int:
    """From where a reader goes on to see the match."""
    return hit.start if hit.whole else hit.shown_from


def _row(hit: Hit) -> str:
    text = hit.text
    if not hit.whole:
        text = f"…{text}…" if hit.shown_from > hit.start else f"{text}…"
    return f"{'' if hit.line is None else hit.line}@{_place(hit)}: {text}"
