"""What a model wrote where a ref was asked for, and the one answer for a ref that gives nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeAlias

from coatcheck.artifacts.meta import ArtifactMeta, Page
from coatcheck.artifacts.port import ArtifactReader
from coatcheck.artifacts.ref import clean_ref
from coatcheck.errors import CoatcheckError

__all__ = ["Lister", "Opener", "ReaderError", "clean_ref", "missing"]

MAX_SHOWN = 10
"""How many live refs the answer for a miss lists."""

_MISS_CHARS = 2_000
_NAME_SHOWN_CHARS = 40

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


async def missing(artifacts: Lister) -> str:
    """The one text for a ref that gives nothing: wrong, foreign, expired and malformed are one answer.

    It does not repeat what was asked for, and lists the newest artifacts that the scope has. It has at most 2,000
    characters, which every reader's bound allows.

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
    answer = _listed(said, page, None)
    return answer if len(answer) <= _MISS_CHARS else _listed(said, page, _NAME_SHOWN_CHARS)


def _listed(said: str, page: Page, longest: int | None) -> str:
    rows = [_row(meta, longest) for meta in page.artifacts[:MAX_SHOWN]]
    if page.cursor is not None:
        rows.append("and older ones")
    return f"{said}What is stored here, newest first:\n" + "\n".join(rows)


def _row(meta: ArtifactMeta, longest: int | None) -> str:
    """An artifact, with no name longer than ``longest``."""
    kind, media_type = (
        name if longest is None or len(name) <= longest else f"{name[: longest - 1]}…"
        for name in (meta.kind, meta.media_type)
    )
    return f"- {meta.ref} {kind} ({media_type}, {meta.bytes} bytes)"
