"""``query_artifact`` behind a boundary."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

import coatcheck as cc
from coatcheck.readers.query_process import NamelessFiles
from coatcheck.readers.query_tool import query_tool
from coatcheck.readers.querying import QueryLimits

pytestmark = pytest.mark.anyio

SCOPE = cc.Scope(tenant="acme", principal="dana", conversation="c-42")
ROWS = [{"id": index, "name": f"n{index}"} for index in range(2_000)]


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[cc.ArtifactStore]:
    async with cc.DirectoryStore(tmp_path / "store") as opened:
        yield opened


async def put(store: cc.ArtifactStore, value: Any, scope: cc.Scope = SCOPE) -> str:
    data = msgspec.json.encode(value)
    return (await store.put(scope, data, kind="dataset/rows", media_type="application/json")).meta.ref


def session(store: cc.ArtifactStore) -> Any:
    boundary = cc.Boundary(
        [query_tool("query_artifact", 4_000)], store=store, placement=cc.Placement(max_inline_chars=500)
    )
    return boundary.session(SCOPE)


async def test_a_question_is_answered_within_the_bound_and_never_placed(store: cc.ArtifactStore) -> None:
    ref = await put(store, ROWS)
    outcome = await session(store).call("query_artifact", {"ref": ref, "sql": "SELECT * FROM artifact"})
    assert isinstance(outcome, cc.Inline)
    assert 2_000 < len(outcome.text) <= 4_000
    answer = json.loads(outcome.text)
    assert answer["rows_in_all"] == 2_000
    assert answer["rows"] == ROWS[: len(answer["rows"])]
    assert answer["next"].startswith(
        f'query_artifact {{"ref":"{ref}","sql":"SELECT * FROM artifact","offset":{len(answer["rows"])}}}'
    )
    assert len((await store.list(SCOPE)).artifacts) == 1


async def test_the_next_call_that_an_answer_names_goes_on(store: cc.ArtifactStore) -> None:
    ref = await put(store, ROWS)
    arguments: dict[str, Any] = {"ref": ref, "jmespath": "[].name"}
    seen: list[str] = []
    for _ in range(20):
        answer = json.loads((await session(store).call("query_artifact", arguments)).text)
        seen += answer["result"]
        if "next" not in answer:
            break
        call = answer["next"].removeprefix("query_artifact ")
        arguments = json.JSONDecoder().raw_decode(call)[0]
    assert seen == [row["name"] for row in ROWS]


async def test_a_whole_result_is_stored_where_it_is_asked_for_with_its_parent(store: cc.ArtifactStore) -> None:
    ref = await put(store, ROWS)
    arguments = {"ref": f'"{ref.upper()}".', "sql": "SELECT id FROM artifact ORDER BY id", "into": "artifact"}
    outcome = await session(store).call("query_artifact", arguments)
    stored = json.loads(outcome.text)["stored"]
    found = await store.get(SCOPE, stored["ref"])
    assert found is not None
    assert json.loads(found.data) == [{"id": row["id"]} for row in ROWS]
    assert (found.meta.parents, found.meta.media_type) == ((ref,), "application/json")
    assert (stored["rows"], stored["bytes"]) == (2_000, len(found.data))
    again = await session(store).call(
        "query_artifact", {"ref": stored["ref"], "sql": "SELECT sum(id) AS s FROM artifact"}
    )
    assert json.loads(again.text)["rows"] == [{"s": sum(range(2_000))}]


@pytest.mark.parametrize("into", [{}, {"into": "artifact"}])
async def test_wrong_foreign_and_malformed_refs_are_one_answer(store: cc.ArtifactStore, into: dict[str, str]) -> None:
    await put(store, ROWS)
    foreign = await put(store, [1], cc.Scope(conversation="another"))
    answers = set()
    for ref in [foreign, "art_" + "0" * 32, "", "../../etc/passwd", "x" * 1000]:
        outcome = await session(store).call("query_artifact", {"ref": ref, "jmespath": "@", **into})
        assert isinstance(outcome, cc.Failed)
        answers.add(outcome.text)
    assert len(answers) == 1


async def test_a_wrong_query_is_an_outcome_that_teaches(store: cc.ArtifactStore) -> None:
    ref = await put(store, ROWS)
    for arguments in ({"sql": "SELECT nmae FROM artifact"}, {}, {"sql": "SELECT 1", "jmespath": "a"}):
        outcome = await session(store).call("query_artifact", {"ref": ref, **arguments})
        assert isinstance(outcome, cc.Failed)
        assert "raceback" not in outcome.text
        assert len(outcome.text) < 2_000


BOMB = "SELECT count(*) FROM range(1000000) a, range(1000000) b"


async def test_one_conversation_leaves_places_for_others(store: cc.ArtifactStore) -> None:
    other = cc.Scope(tenant="acme", principal="eve", conversation="c-7")
    ref, theirs = await put(store, ROWS), await put(store, [{"a": 1}], other)
    boundary = cc.Boundary([query_tool("query_artifact", 4_000, QueryLimits(timeout=50))], store=store)
    async with anyio.create_task_group() as group:
        for _ in range(8):
            group.start_soon(boundary.session(SCOPE).call, "query_artifact", {"ref": ref, "sql": BOMB})
        await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(40):
            answer = await boundary.session(other).call("query_artifact", {"ref": theirs, "jmespath": "[0].a"})
        assert json.loads(answer.text) == {"result": 1}
        group.cancel_scope.cancel()


async def test_waiting_for_a_place_ends_with_an_answer_and_copies_no_payload(
    store: cc.ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = await put(store, ROWS)
    made: list[int] = []
    make = NamelessFiles.make

    def counted(files: NamelessFiles) -> int:
        made.append(1)
        return make(files)

    monkeypatch.setattr(NamelessFiles, "make", counted)
    holding = cc.Boundary([query_tool("query_artifact", 4_000, QueryLimits(timeout=50))], store=store)
    waiting = cc.Boundary([query_tool("query_artifact", 4_000, QueryLimits(timeout=1))], store=store)
    async with anyio.create_task_group() as group:
        for _ in range(2):
            group.start_soon(holding.session(SCOPE).call, "query_artifact", {"ref": ref, "sql": BOMB})
        await anyio.wait_all_tasks_blocked()
        answer = await waiting.session(SCOPE).call("query_artifact", {"ref": ref, "jmespath": "[0]"})
        assert isinstance(answer, cc.Failed)
        assert "Other queries are still being answered" in answer.text
        group.cancel_scope.cancel()
    assert len(made) == 2
    later = await waiting.session(SCOPE).call("query_artifact", {"ref": ref, "jmespath": "[0].id"})
    assert json.loads(later.text) == {"result": 0}
