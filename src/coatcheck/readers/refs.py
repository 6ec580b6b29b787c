"""What a model wrote where a ref was asked for, and the one answer for a ref that gives nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeAlias

import msgspec

from coatcheck.artifacts.meta import Page
from coatcheck.artifacts.port import ArtifactReader
from coatcheck.artifacts.ref import is_ref
from coatcheck.errors import CoatcheckError

__all__ = ["Lister", "Opener", "ReaderError", "clean_ref", "missing"]

MAX_SHOWN = 10
"""How many live refs the answer for a miss lists."""

_LONGEST_INPUT = 16_384
_LONGEST_MALFORMED = 64
# Crockford's base32 in either case, and the letters that people write for its 0 and 1.
_MEANT = re.compile(r"(?<![A-Za-z0-9_])art_([0-9a-tv-z]{32})(?![A-Za-z0-9_])", re.ASCII | re.IGNORECASE)
_MISREAD = str.maketrans("oil", "011")
_AROUND = " \t\r\n\"'`<>()[]{}.,;:!?*"

Opener: TypeAlias = Callable[[int, "int | None"], AbstractAsyncContextManager["ArtifactReader | None"]]
"""Opens one artifact from a byte up to and without another (``None``: its end), as `ArtifactStore.open` does without
scope and ref."""


class ReaderError(CoatcheckError):
    """A reader cannot do what it was asked. The text is what the model reads: what was wrong, and what would work."""


class Lister(Protocol):
    """What can list the artifacts of one scope, newest first."""

    async def list(self, *, cursor: str | None = None, limit: int = 50) -> Page:
        """A page of them."""
        ...


class _Named(msgspec.Struct):
    ref: str


def clean_ref(text: str) -> str:
    """The ref that was meant by what a model wrote.

    Another case, quotes, backticks, brackets and punctuation around it, a word like ``ref:`` before it, the letters
    o, i and l for the digits 0 and 1, and a whole ticket around it do not matter.

    Args:
        text: anything.

    Returns:
        A well-formed ref; or, where none or more than one can be told, something short that is none, and that every
        store answers as a miss. Never raises.
    """
    if is_ref(text):
        return text
    looked = text[:_LONGEST_INPUT]
    found = {_spelled(match[1]) for match in _MEANT.finditer(looked)}
    if len(found) > 1:  # what else a ticket names, it does not stand for
        try:
            found = {_spelled(match[1]) for match in _MEANT.finditer(msgspec.json.decode(text, type=_Named).ref[:64])}
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return "art_"
    if len(found) == 1:
        return found.pop()
    return looked.strip(_AROUND)[:_LONGEST_MALFORMED].lower()


def _spelled(tail: str) -> str:
    return "art_" + tail.lower().translate(_MISREAD)


async def missing(artifacts: Lister) -> str:
    """The one text for a ref that gives nothing: wrong, foreign, expired and malformed are one answer.

    It does not repeat what was asked for, and lists the newest artifacts that the scope has.

    Args:
        artifacts: those of the scope.

    Raises:
        StoreUnavailable: the store cannot list them.
    """
    page = await artifacts.list(limit=MAX_SHOWN)
    said = (
        "There is nothing under that ref: it was never stored in this conversation, has expired, or is not spelled "
        "as the ticket spells it (art_ and 32 letters and digits). "
    )
    if not page.artifacts:
        return said + "This conversation has no stored results now: call the tool again whose result you need."
    rows = [f"- {meta.ref} {meta.kind} ({meta.media_type}, {meta.bytes} bytes)" for meta in page.artifacts[:MAX_SHOWN]]
    if page.cursor is not None:
        rows.append("and older ones")
    return f"{said}What is stored here, newest first:\n" + "\n".join(rows)
