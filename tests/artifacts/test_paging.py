"""The order of listings and their cursors (law: `reference/behaviour.md` 9.4)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coatcheck.artifacts.meta import ArtifactMeta
from coatcheck.artifacts.paging import page_of
from coatcheck.artifacts.ref import digest_of, make_ref

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def meta(number: int, micros: int) -> ArtifactMeta:
    digest = digest_of(b"%d" % number)
    return ArtifactMeta(make_ref("k", "a/b", digest), "k", "a/b", 1, digest, EPOCH + timedelta(microseconds=micros))


tables = st.lists(st.integers(-3, 3) | st.integers(0, 2**51), max_size=12).map(
    lambda times: [meta(number, micros) for number, micros in enumerate(times)]
)


@given(tables, st.integers(-2, 5))
def test_following_the_cursors_meets_every_row_once_newest_first(rows: list[ArtifactMeta], limit: int) -> None:
    met: list[ArtifactMeta] = []
    cursor: str | None = None
    while True:
        page = page_of(rows, cursor, limit)
        met += page.artifacts
        if page.cursor is None:
            break
        assert len(page.artifacts) == max(1, limit)
        cursor = page.cursor
    assert sorted(row.ref for row in met) == sorted(row.ref for row in rows)
    assert met == sorted(rows, key=lambda row: (EPOCH - row.created_at, row.ref))


@given(tables, st.integers(1, 5), st.data())
def test_what_comes_and_goes_between_two_pages_moves_no_other_row(
    rows: list[ArtifactMeta], limit: int, data: st.DataObject
) -> None:
    page = page_of(rows, None, limit)
    if page.cursor is None:
        return
    gone = data.draw(st.sets(st.sampled_from(rows).map(lambda row: row.ref)))
    newer = [meta(100 + n, 2**52 + n) for n in range(data.draw(st.integers(0, 3)))]
    later = page_of([*(row for row in rows if row.ref not in gone), *newer], page.cursor, 100)
    whole = page_of(rows, None, 100).artifacts
    assert [*later.artifacts] == [row for row in whole[limit:] if row.ref not in gone]


@pytest.mark.parametrize(
    "cursor", ["", "99", "0.", "0.art_x", ".", "\u0661." + meta(0, 0).ref, "0." + meta(0, 0).ref + "\n"]
)
def test_a_cursor_that_is_none_reads_as_the_start(cursor: str) -> None:
    rows = [meta(n, n) for n in range(3)]
    assert page_of(rows, cursor, 2) == page_of(rows, None, 2)


def test_a_cursor_past_the_end_gives_an_empty_last_page() -> None:
    page = page_of([meta(n, n) for n in range(3)], None, 2)
    assert page_of([meta(2, 2)], page.cursor, 2) == msgspec.structs.replace(page, artifacts=(), cursor=None)
