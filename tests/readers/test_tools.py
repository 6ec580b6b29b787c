"""The readers at a boundary: what a model does with a ticket, from the ticket on."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

import coatcheck as cc
from coatcheck.readers.answers import LARGEST_MAX_CHARS, SMALLEST_MAX_CHARS
from coatcheck.readers.tools import reader_names, tools

SCOPE = cc.Scope(principal="dana", conversation="c-1")
LOG = "".join(f"2031-01-02 line {number} {'ö' * (number % 50)}\n" for number in range(1, 20_001))


@pytest.fixture(params=["memory", "directory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> cc.ArtifactStore:
    return cc.MemoryStore() if request.param == "memory" else cc.DirectoryStore(tmp_path)


async def make_log() -> str:
    return LOG


async def make_blob() -> dict[str, str]:
    return {"blob": "z" * 100_000}


async def make_json() -> dict[str, Any]:
    return {"a": "x" * 3_000_000, "info": {"version": "9.9"}}


@pytest.fixture
async def session(store: cc.ArtifactStore, anyio_backend: str) -> AsyncIterator[cc.Session]:
    hosts = [make_log, make_blob, make_json]
    boundary = cc.Boundary(
        [*hosts, *tools(max_chars=6000, query=False)], store=store, placement=cc.Placement(max_inline_chars=1000)
    )
    async with boundary:
        yield boundary.session(SCOPE)


async def ticket(session: cc.Session, tool: str) -> str:
    outcome = await session.call(tool, {})
    ref: str = json.loads(outcome.text)["ref"]
    return ref


async def read(session: cc.Session, ref: str, **arguments: Any) -> str:
    outcome = await session.call("read_artifact", {"ref": ref, **arguments})
    assert isinstance(outcome, cc.Inline), outcome
    assert len(outcome.text) <= 6000
    return outcome.text


def content(answer: str) -> str:
    """The payload's own text in an answer."""
    first, _, rest = answer.partition("\n")
    return rest.rpartition(f"\n{first[: first.index(':')]}: end]")[0]


def next_call(answer: str) -> dict[str, Any] | None:
    call = answer.rpartition("Read on with read_artifact ")[2]
    return json.loads(call) if call.startswith("{") else None


@pytest.mark.anyio
async def test_a_placed_text_is_read_page_by_page_and_no_page_is_placed(session: cc.Session) -> None:
    ref = await ticket(session, "make_log")
    call: dict[str, Any] | None = {"ref": ref, "lines": "19000:"}
    text = ""
    while call is not None:
        answer = await read(session, **call)
        text += content(answer)
        call = next_call(answer)
    assert text == "".join(LOG.splitlines(keepends=True)[18_999:])


@pytest.mark.anyio
async def test_one_line_of_100_000_characters_is_bounded_in_characters_and_read_on(session: cc.Session) -> None:
    ref = await ticket(session, "make_blob")
    call: dict[str, Any] | None = {"ref": ref, "lines": "1:100"}
    pages = []
    while call is not None:
        answer = await read(session, **call)
        pages.append(content(answer))
        call = next_call(answer)
    assert json.loads("".join(pages)) == await make_blob()
    assert len(pages) == 21


@pytest.mark.anyio
async def test_the_one_field_that_mattered_is_read_by_its_path(session: cc.Session) -> None:
    ref = await ticket(session, "make_json")
    assert content(await read(session, ref, path="$.info.version")) == '"9.9"'
    outcome = await session.call("read_artifact", {"ref": ref, "path": "$.info.versoin"})
    assert isinstance(outcome, cc.Failed)
    assert 'the nearest are "version"' in outcome.text


@pytest.mark.anyio
async def test_a_match_is_searched_for_and_read_at(session: cc.Session) -> None:
    ref = await ticket(session, "make_log")
    outcome = await session.call("search_artifact", {"ref": f"`{ref.upper()}`", "pattern": "line 17[0-9]{2}7 "})
    assert isinstance(outcome, cc.Inline)
    assert len(outcome.text) <= 6000
    rows = [row for row in outcome.text.splitlines()[1:-1] if "@" in row]
    assert len(rows) == 20
    assert "Search on with search_artifact" in outcome.text
    call = json.JSONDecoder().raw_decode(outcome.text.partition("Read at the first with read_artifact ")[2])[0]
    assert content(await read(session, **call)).startswith("2031-01-02 line 17007 ")


@pytest.mark.anyio
async def test_wrong_arguments_are_answers_and_no_tracebacks(session: cc.Session) -> None:
    ref = await ticket(session, "make_log")
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("read_artifact", {"lines": "x"}),
        ("read_artifact", {"lines": "9:3"}),
        ("read_artifact", {"lines": "0:3"}),
        ("read_artifact", {"bytes": "9" * 40 + ":"}),
        ("read_artifact", {"chars": "-5:"}),
        ("read_artifact", {"head": 0}),
        ("read_artifact", {"head": 1, "tail": 1}),
        ("read_artifact", {"path": "$.x"}),
        ("search_artifact", {"pattern": "("}),
        ("search_artifact", {"pattern": "x", "context": 1000}),
    ]
    for name, arguments in wrong:
        outcome = await session.call(name, {"ref": ref, **arguments})
        assert isinstance(outcome, cc.Failed), (name, arguments)
        assert "Traceback" not in outcome.text
        assert len(outcome.text) < 700


@pytest.mark.anyio
async def test_a_payload_that_is_damaged_is_an_outcome(tmp_path: Path) -> None:
    boundary = cc.Boundary(tools(query=False), store=cc.DirectoryStore(tmp_path))
    async with boundary:
        session = boundary.session(SCOPE)
        assert boundary is not None
        put = await cc.DirectoryStore(tmp_path).put(SCOPE, b"needle\n" * 1000, kind="k", media_type="text/plain")
        (data,) = (path for path in tmp_path.rglob("data"))
        data.chmod(0o600)
        data.write_bytes(b"x" * 7000)
        outcome = await session.call("search_artifact", {"ref": put.meta.ref, "pattern": "needle"})
        assert isinstance(outcome, cc.Failed)


@pytest.mark.anyio
async def test_a_thousand_readers_at_once_each_get_their_page(session: cc.Session) -> None:
    ref = await ticket(session, "make_log")
    answers: list[str] = []

    async def one(number: int) -> None:
        answers.append(content(await read(session, ref, bytes=f"{number * 100}:{number * 100 + 100}")))

    async with anyio.create_task_group() as group:
        for number in range(1000):
            group.start_soon(one, number)
    assert sorted(map(len, answers))[-1] <= 101
    assert len(answers) == 1000


def test_readers_are_renamed_where_the_host_has_their_names() -> None:
    names = [tool.name for tool in tools(taken=["read_artifact"], query=False)]
    assert names == ["coatcheck_read_artifact", "search_artifact"]
    assert reader_names() == ("read_artifact", "search_artifact", "query_artifact")
    assert "coatcheck_read_artifact reads on" in tools(taken=["read_artifact"], query=False)[1].description


def test_a_model_is_told_each_parameter_in_a_plain_schema() -> None:
    for tool in tools(query=False):
        properties = tool.parameters["properties"]
        assert "ctx" not in properties
        for name, schema in properties.items():
            described = [schema, *schema.get("anyOf", [])]
            assert any("description" in each for each in described), name
            assert not any("anyOf" in each for each in schema.get("anyOf", []))
        assert len(msgspec.json.encode(tool.parameters)) < 2500
        assert "6000 characters" in tool.description


@pytest.mark.parametrize("limit", [SMALLEST_MAX_CHARS - 1, LARGEST_MAX_CHARS + 1, 0, -1])
def test_a_bound_that_cannot_be_is_refused(limit: int) -> None:
    with pytest.raises(cc.ConfigurationError, match="max_chars"):
        tools(max_chars=limit)


def test_without_its_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coatcheck.readers.matching.find_spec", lambda name: None)
    with pytest.raises(cc.ConfigurationError, match=r"coatcheck\[readers\]"):
        tools()
