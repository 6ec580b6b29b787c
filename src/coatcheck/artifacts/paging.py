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

__all__ = ["page_of"]

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
    start = _read(cursor)
    ordered = sorted((_place(meta), meta) for meta in metas)
    rest = [meta for place, meta in ordered if start is None or place > start]
    page = rest[: max(1, limit)]
    return Page(
        artifacts=tuple(page),
        cursor=_write(page[-1]) if len(rest) > len(page) else None,
    )


def _place(meta: ArtifactMeta) -> tuple[int, str]:
    return -((meta.created_at - _EPOCH) // _MICROSECOND), meta.ref


def _write(meta: ArtifactMeta) -> str:
    place, ref = _place(meta)
    return f"{-place}.{ref}"


def _read(cursor: object) -> tuple[int, str] | None:
    match = _CURSOR.fullmatch(cursor) if isinstance(cursor, str) else None
    if match is None or not is_ref(match[2]):
        return None
    return -int(match[1]), match[2]
