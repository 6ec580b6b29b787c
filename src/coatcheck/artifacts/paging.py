"""The order of listings, and the cursor that says where a page ended.

Newest first by creation, ties by ref (law: `reference/behaviour.md` 9.4). A cursor names the place after a row
and not a number of rows, so what is put or deleted between two pages makes no row appear twice and none vanish.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from coatcheck.artifacts.meta import ArtifactMeta, Page
from coatcheck.artifacts.ref import is_ref

__all__ = ["Place", "page_of", "place_of", "read_cursor", "write_cursor"]

Place = tuple[int, str]
"""Where a row stands: places in ascending order are rows in the order of listings."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_CURSOR = re.compile("(-?[0-9]{1,18})[.](art_[0-9a-z]{1,64})")


def page_of(metas: Iterable[ArtifactMeta], cursor: object, limit: int) -> Page:
    """The page after ``cursor``.

    Args:
        metas: everything that may be listed, in any order.
        cursor: from an earlier page; anything that is none reads as the start.
        limit: the most rows of the page; less than 1 reads as 1.
    """
    start = read_cursor(cursor)
    ordered = sorted((place_of(meta), meta) for meta in metas)
    rest = [meta for place, meta in ordered if start is None or place > start]
    page = rest[: max(1, limit)]
    return Page(
        artifacts=tuple(page),
        cursor=write_cursor(place_of(page[-1])) if len(rest) > len(page) else None,
    )


def place_of(meta: ArtifactMeta) -> Place:
    """Where an artifact stands in a listing."""
    return -((meta.created_at - _EPOCH) // _MICROSECOND), meta.ref


def write_cursor(place: Place) -> str:
    """The cursor of what comes after a row."""
    return f"{-place[0]}.{place[1]}"


def read_cursor(cursor: object) -> Place | None:
    """The place that a cursor names; ``None``: it is none."""
    match = _CURSOR.fullmatch(cursor) if isinstance(cursor, str) else None
    if match is None or not is_ref(match[2]):
        return None
    return -int(match[1]), match[2]
