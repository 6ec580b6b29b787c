"""Finds patterns in bytes, in time linear in them: RE2 for regular expressions, plain search for literals.

A model's pattern never meets a backtracking engine. A match lies within one line.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import Any, Protocol

from coatcheck.readers.refs import ReaderError

__all__ = ["MAX_PATTERN_CHARS", "Matcher", "has_re2", "make_matcher"]

MAX_PATTERN_CHARS = 1000
"""What a pattern may be long."""

_MAX_MEMORY = 1 << 20
_KEPT = 16
_MAX_STATES = 4000
# Everything that RE2 gives a meaning; a pattern without any of it stands for itself.
_MAGIC = frozenset("\\.^$*+?()[]{}|")
# What sees the ends of the text instead of the line's, or a newline: such a pattern is given one line at a time.
_ONE_LINE = re.compile(r"\\[AzCQ]|\(\?[A-Za-z]*-")
_compiled = 0


class Matcher(Protocol):
    """What finds the first match in a part of some bytes, whose surroundings it sees.

    Attributes:
        by_line: it must be given one line at a time.
        cost: what a byte may cost at most, in steps of some nanoseconds.
    """

    by_line: bool
    cost: int

    def find(self, data: bytes, start: int, end: int) -> tuple[int, int] | None:
        """Where the leftmost match from ``start`` up to ``end`` begins and ends."""
        ...


def has_re2() -> bool:
    """Whether RE2 is installed (the extra ``readers``)."""
    return find_spec("re2") is not None


def make_matcher(pattern: str, *, literal: bool = False, ignore_case: bool = False) -> Matcher:
    """What finds ``pattern``.

    Raises:
        ReaderError: it cannot be one; the text says why, and what would work.
    """
    if not pattern:
        raise ReaderError("the pattern is empty: say what to look for")
    if len(pattern) > MAX_PATTERN_CHARS:
        raise ReaderError(f"the pattern has {len(pattern)} characters; at most {MAX_PATTERN_CHARS} are taken")
    if "\n" in pattern:
        raise ReaderError("a match lies within one line, so a pattern with a newline finds nothing: leave it out")
    try:
        encoded = pattern.encode()
    except UnicodeEncodeError:
        raise ReaderError("the pattern holds half of a surrogate pair, which no text does") from None
    plain = literal or not _MAGIC.intersection(pattern)
    if has_re2():  # several times as fast as bytes.find, and other threads go on meanwhile
        return _RE2(encoded, plain, ignore_case)
    if not plain or ignore_case:
        raise ReaderError(
            "regular expressions, and ignoring case, are not installed here (the host would install "
            "coatcheck[readers]): search with literal=true"
        )
    return _Literal(encoded)


class _Literal:
    by_line = False
    cost = 1

    def __init__(self, needle: bytes) -> None:
        self._needle = needle

    def find(self, data: bytes, start: int, end: int) -> tuple[int, int] | None:
        at = data.find(self._needle, start, end)
        return None if at < 0 else (at, at + len(self._needle))


class _RE2:
    def __init__(self, pattern: bytes, plain: bool, ignore_case: bool) -> None:
        import re2

        global _compiled
        _compiled += 1
        if _compiled % _KEPT == 0:
            re2.purge()  # it keeps 128 compiled patterns otherwise, each with its memory
        options = re2.Options()
        options.max_mem = _MAX_MEMORY
        options.log_errors = False
        options.never_capture = True
        options.never_nl = True
        options.case_sensitive = not ignore_case
        self.by_line: bool = not plain and _ONE_LINE.search(pattern.decode()) is not None
        source = re2.escape(pattern) if plain else b"(?m)" + pattern
        try:
            compiled = re2.compile(source, options)
            self._search: Any = compiled.search
        except re2.error as error:
            raise ReaderError(_wrong(error)) from None
        self.cost: int = 1 if plain else compiled.programsize
        if self.cost > _MAX_STATES:
            raise ReaderError(
                "the pattern is too large, because it repeats too much (every count of a group, a class or a dot "
                "multiplies it): look for less, and read around what is found"
            )

    def find(self, data: bytes, start: int, end: int) -> tuple[int, int] | None:
        match = self._search(data, start, end)
        return None if match is None else match.span()


def _wrong(error: Exception) -> str:
    detail = error.args[0] if error.args else ""
    reason = detail.decode(errors="replace") if isinstance(detail, bytes) else str(detail)
    reason = reason.replace(": (?m)", ": ", 1)
    said = f"the pattern is no regular expression that is taken here (RE2: {reason[:120]})"
    if "too large" in reason or "repetition size" in reason:
        return f"{said}: it repeats too much; a count is at most 1000, and less where groups are nested"
    if "perl operator" in reason or "escape sequence" in reason:
        return f"{said}: it has no lookahead, lookbehind or backreference; search for the simpler part"
    return f"{said}: mend it, or search for it as it stands with literal=true"
