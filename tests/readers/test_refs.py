"""What models write where a ref is asked for, and the one answer for what gives nothing."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import coatcheck as cc
from coatcheck.artifacts import ref
from coatcheck.artifacts.meta import Page
from coatcheck.artifacts.ref import digest_of, is_ref, make_ref
from coatcheck.readers.answers import SMALLEST_MAX_CHARS
from coatcheck.readers.refs import clean_ref, missing
from coatcheck.readers.tools import tools

REF = make_ref("k", "text/plain", digest_of(b"payload"))
OTHER = make_ref("k", "text/plain", digest_of(b"another"))
SCOPE = cc.Scope(tenant="north", conversation="c-1")
BAD = [
    "",
    " ",
    "art_",
    REF[:-1],
    REF + "0",
    OTHER[:20],
    "../../etc/x",
    "art_%2e%2e",
    "art_\x00",
    "\ud800",
    "a" * 10_000,
    f"{REF} {OTHER}",
    "[" * 100_000,
    '{"ref": ' * 10_000,
]


@pytest.mark.parametrize(
    "written",
    [
        REF,
        REF.upper(),
        REF.title(),
        f" {REF}\n",
        f'"{REF}"',
        f"'{REF}'",
        f"`{REF}`",
        f"<{REF}>",
        f"({REF}).",
        f"{REF},",
        f"ref: {REF}",
        f"ref={REF}",
        f"Ref:{REF}!",
        f"artifact://{REF}",
        f"**{REF}**",
        f"“{REF}”",
        json.dumps({"placed": True, "ref": REF, "reason": f"Give {REF} to a tool"}),
        json.dumps({"placed": True, "ref": REF, "reason": f"Give {REF} to a tool, not {OTHER}"}),
        REF[:4] + REF[4:].replace("0", "O").replace("1", "l"),
    ],
)
def test_a_ref_is_read_as_what_was_meant(written: str) -> None:
    assert clean_ref(written) == REF


@pytest.mark.parametrize("written", BAD)
def test_what_is_no_ref_is_something_short_that_is_none(written: str) -> None:
    assert not is_ref(clean_ref(written))
    assert len(clean_ref(written)) <= 64


def test_readers_and_wants_read_a_ref_by_one_law() -> None:
    assert clean_ref is ref.clean_ref


@given(st.text() | st.text("art_0 \"'`<>{}:,lioLIO" + REF))
def test_anything_is_read_without_an_error(written: str) -> None:
    assert isinstance(clean_ref(written), str)
    assert clean_ref(clean_ref(written)) == clean_ref(written)


class Scoped:
    """A store's list in one scope."""

    def __init__(self, store: cc.ArtifactStore, scope: cc.Scope = SCOPE) -> None:
        self._store = store
        self._scope = scope

    async def list(self, *, cursor: str | None = None, limit: int = 50) -> Page:
        return await self._store.list(self._scope, cursor=cursor, limit=limit)


@pytest.fixture(params=["memory", "directory"])
async def store(request: pytest.FixtureRequest, tmp_path: Path, anyio_backend: str) -> AsyncIterator[cc.ArtifactStore]:
    made = cc.MemoryStore() if request.param == "memory" else cc.DirectoryStore(tmp_path)
    async with made as opened:
        yield opened


@pytest.mark.anyio
async def test_a_miss_lists_the_newest_of_this_scope_and_nothing_of_another(store: cc.ArtifactStore) -> None:
    mine = [
        (await store.put(SCOPE, b"%d" % number, kind="k" * 128, media_type="text/" + "t" * 100)).meta
        for number in range(15)
    ]
    theirs = (await store.put(cc.Scope(conversation="c-2"), b"x", kind="secret", media_type="text/plain")).meta
    said = await missing(Scoped(store))
    shown = [meta.ref for meta in (await store.list(SCOPE, limit=10)).artifacts]
    assert [ref for ref in shown if ref in said] == shown
    assert sum(meta.ref in said for meta in mine) == 10
    assert "older" in said
    assert theirs.ref not in said
    assert "secret" not in said
    assert not any(name in said for name in ("north", "c-1", "c-2"))
    assert len(said) <= SMALLEST_MAX_CHARS


@pytest.mark.anyio
async def test_a_miss_in_an_empty_scope_says_so(store: cc.ArtifactStore) -> None:
    assert "no stored results" in await missing(Scoped(store))


@pytest.mark.anyio
async def test_wrong_foreign_expired_and_malformed_refs_are_one_answer() -> None:
    now = datetime(2031, 1, 1, tzinfo=UTC)
    store = cc.MemoryStore(clock=lambda: now)
    live = (await store.put(SCOPE, b"live", kind="k", media_type="text/plain")).meta.ref
    soon = now + timedelta(minutes=1)
    expired = (await store.put(SCOPE, b"old", kind="k", media_type="text/plain", expires_at=soon)).meta.ref
    foreign = (await store.put(cc.Scope(conversation="c-2"), b"x", kind="k", media_type="text/plain")).meta.ref
    now += timedelta(minutes=2)
    boundary = cc.Boundary(tools(query=False), store=store, placement=cc.Placement(max_inline_chars=100_000))
    answers = set()
    async with boundary:
        session = boundary.session(SCOPE)
        for ref in [OTHER, expired, foreign, *BAD[:-2]]:
            for name, more in (("read_artifact", {}), ("search_artifact", {"pattern": "a"})):
                outcome = await session.call(name, {"ref": ref, **more})
                assert isinstance(outcome, cc.Failed)
                answers.add(outcome.text)
    assert len(answers) == 1
    assert live in answers.pop()
