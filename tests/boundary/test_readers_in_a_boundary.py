"""Tools that read refs back: never placed, named by tickets, and giving way to a host's tool of the same name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

import coatcheck as cc
from coatcheck import readers
from coatcheck.testing import FaultyStore, fail

pytestmark = pytest.mark.anyio

SCOPE = cc.Scope(conversation="c-42")
LARGE = "x" * 5000


@cc.tool(reader="read")
async def read_artifact(ref: str = "") -> str:
    """Read."""
    return LARGE


@cc.tool(reader="search")
async def search_artifact(ref: str = "") -> str:
    """Search."""
    return LARGE


@cc.tool
async def export() -> str:
    return "y" * 5000


def placing(*tools: Any, **dials: Any) -> cc.Boundary:
    return cc.Boundary(tools, store="memory:", placement=cc.Placement(1000, **dials), repeated_call_note=False)


async def test_what_a_reader_returns_is_never_placed() -> None:
    """Case A7."""
    session = placing(read_artifact, search_artifact, export, per_tool={"read_*": 10}).session(SCOPE)
    for name in ("read_artifact", "search_artifact"):
        outcome = await session.call(name)
        assert isinstance(outcome, cc.Inline)
        assert outcome.text == LARGE
    assert isinstance(await session.call("export"), cc.Placed)


@pytest.mark.parametrize("alone", [True, False])
async def test_a_reader_counts_for_the_budget_of_a_turn_and_is_not_placed_for_it(alone: bool) -> None:
    async def small() -> str:
        return "z" * 900

    session = placing(read_artifact, small, max_batch_chars=5500).session(SCOPE)
    if alone:
        assert isinstance(await session.call("read_artifact"), cc.Inline)
        return
    read, first, second = await session.call_batch([cc.ToolCall(name) for name in ("read_artifact", "small", "small")])
    assert isinstance(read, cc.Inline)
    assert [type(first), type(second)].count(cc.Placed) >= 1, "what the reader takes is missing to the others"
    first, second = await session.call_batch([cc.ToolCall("small")] * 2)
    assert [type(first), type(second)] == [cc.Inline] * 2


async def test_a_reader_that_alone_is_over_the_budget_of_a_turn_stays_what_it_is() -> None:
    session = placing(read_artifact, max_batch_chars=100).session(SCOPE)
    assert isinstance(await session.call("read_artifact"), cc.Inline)
    outcomes = await session.call_batch([cc.ToolCall("read_artifact")] * 3)
    assert [type(outcome) for outcome in outcomes] == [cc.Inline] * 3


async def test_a_reader_is_measured_by_the_truncation_all_the_same() -> None:
    boundary = cc.Boundary(
        [read_artifact], store="memory:", placement=cc.Placement(1000), truncation=cc.Truncation(2000)
    )
    outcome = await boundary.session(SCOPE).call("read_artifact")
    assert isinstance(outcome, cc.Truncated)
    assert len(outcome.text) <= 2000


async def test_a_ticket_names_the_reader_that_this_boundary_has() -> None:
    outcome = await placing(search_artifact, read_artifact, export).session(SCOPE).call("export")
    assert isinstance(outcome, cc.Placed)
    ticket = outcome.ticket
    assert f'call read_artifact with {{"ref": "{ticket.ref}"}}' in ticket.reason
    assert len(outcome.text) < 700


@pytest.mark.parametrize("tools", [[export], [search_artifact, export]])
async def test_a_ticket_names_no_reader_that_this_boundary_has_not(tools: list[Any]) -> None:
    outcome = await placing(*tools).session(SCOPE).call("export")
    assert isinstance(outcome, cc.Placed)
    assert "read_artifact" not in outcome.text
    assert f"Give {outcome.ticket.ref} exactly as written to a tool that takes a ref" in outcome.ticket.reason


@pytest.mark.parametrize("first", [True, False])
async def test_a_reader_gives_way_to_a_tool_of_the_host_s_and_the_ticket_knows_it(first: bool) -> None:
    @cc.tool(name="read_artifact")
    async def theirs() -> str:
        return "theirs " * 1000

    tools = [read_artifact, theirs, export] if first else [theirs, read_artifact, export]
    boundary = placing(*tools)
    assert set(boundary.tools) == {"coatcheck_read_artifact", "read_artifact", "export"}
    session = boundary.session(SCOPE)
    assert isinstance(await session.call("read_artifact"), cc.Placed), "a tool of the host's is no reader"
    assert (await session.call("coatcheck_read_artifact")).text == LARGE
    assert "call coatcheck_read_artifact with" in (await session.call("export")).text
    assert read_artifact.name == "read_artifact", "the tool itself keeps its name for other boundaries"


def test_two_tools_that_are_both_readers_or_both_none_still_clash() -> None:
    for pair in ([read_artifact, read_artifact], [export, export]):
        with pytest.raises(cc.ConfigurationError, match=r"^tools\[1\]: there is a tool named"):
            cc.Boundary(pair)


def test_a_name_that_is_taken_as_well_is_passed_over() -> None:
    @cc.tool(name="read_artifact")
    async def theirs() -> None: ...

    @cc.tool(name="coatcheck_read_artifact")
    async def theirs_too() -> None: ...

    boundary = cc.Boundary([read_artifact, theirs, theirs_too])
    assert set(boundary.tools) == {"read_artifact", "coatcheck_read_artifact", "coatcheck_read_artifact_2"}


async def test_a_stream_and_the_binary_in_a_result_name_the_reader_too() -> None:
    async def lines() -> AsyncIterator[str]:
        for number in range(500):
            yield f"line {number}\n"

    async def image() -> Any:
        return {"image": b"\x89PNG" + b"\0" * 5000}

    session = placing(read_artifact, lines, image).session(SCOPE)
    for name in ("lines", "image"):
        assert "call read_artifact with {" in (await session.call(name)).text.replace("\\", "")


async def test_a_wrapped_tool_s_ticket_names_the_reader_of_the_boundary() -> None:
    session = placing(read_artifact).session(SCOPE)
    outcome = await session.wrap(export)()
    assert isinstance(outcome, cc.Placed)
    assert "call read_artifact with" in outcome.text


@pytest.mark.parametrize("role", ["write", "", True, 5])
def test_a_role_that_is_none_is_refused(role: Any) -> None:
    with pytest.raises(cc.ConfigurationError, match="reader must be 'read', 'search' or 'query'"):
        cc.tool(name="reads", reader=role)(lambda: None)


async def test_a_truncation_that_would_cut_what_a_reader_keeps_within_its_own_bound_is_refused() -> None:
    with pytest.raises(cc.ConfigurationError, match="5999, but the tool read_artifact answers within 6000"):
        cc.Boundary(readers.tools(max_chars=6000), store="memory:", truncation=cc.Truncation(5999))
    cc.Boundary(readers.tools(max_chars=6000), store="memory:", truncation=cc.Truncation(6000))


@pytest.mark.parametrize("name", ["read_artifact", "search_artifact", "query_artifact"])
async def test_what_the_model_reads_of_a_store_that_cannot_answer_names_no_server(name: str) -> None:
    store = FaultyStore(cc.MemoryStore(), open=fail(cc.StoreUnavailable("http://10.0.0.7:9000 cannot be reached")))
    events: list[cc.Event] = []
    session = cc.Boundary(readers.tools(), store=store, on_event=events.append).session(SCOPE)
    more = {"read_artifact": {}, "search_artifact": {"pattern": "a"}, "query_artifact": {"jmespath": "a"}}[name]
    outcome = await session.call(name, {"ref": "art_" + "0" * 32, **more})
    assert isinstance(outcome, cc.Failed)
    assert "cannot answer now" in outcome.text
    assert "10.0.0.7" not in outcome.text
    [refused] = [event for event in events if isinstance(event, cc.ArtifactRefused)]
    assert "10.0.0.7" in (refused.detail or "")
