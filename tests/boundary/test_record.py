"""What a session has on record, as JSON Lines, and the block that travels with an answer."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import coatcheck as cc

pytestmark = pytest.mark.anyio

SCOPE = cc.Scope(tenant="acme", conversation="c")


@cc.tool
async def find(customer: str) -> object:
    return cc.absent(
        what=f"orders of {customer}",
        checked=["the live orders table"],
        not_checked=[{"what": "the archive", "why": "it is offline", "short": "archive"}],
    )


@cc.tool
async def count() -> object:
    return cc.coverage({"alarms": 0}, checked=["shard 1"], cannot_cover=[{"what": "shard 2", "why": "it is gone"}])


@cc.after_tool
def changes(call: cc.ToolCall, result: cc.Result) -> cc.Allow:
    return cc.allow({"alarms": 1}, why="a correction") if call.name == "count" else cc.allow()


@pytest.mark.parametrize("ledger_values", [False, True])
async def test_the_record_is_json_lines_that_read_back_as_what_they_were(ledger_values: bool) -> None:
    session = cc.Boundary([find, count], rules=[changes], ledger_values=ledger_values).session(SCOPE)
    await session.call("find", {"customer": "Ann"}, call_id="call_1")
    await session.call("count", call_id="call_2")
    lines = [msgspec.json.decode(line) for line in session.record().splitlines()]
    assert [line.pop("record") for line in lines] == ["decision", "decision", "declared", "declared"]
    facts = msgspec.convert(lines[2:], list[cc.Declared])
    assert facts == list(session.declared_coverage)
    assert [(fact.kind, fact.tool, fact.call_id, fact.turn) for fact in facts] == [
        ("absence", "find", "call_1", 1),
        ("ledger", "count", "call_2", 2),
    ]
    rows = [msgspec.convert({**line, "before": None, "after": None}, cc.Decision) for line in lines[:2]]
    assert [(row.tool, row.outcome, row.changed, row.why) for row in rows] == [
        ("find", "allow", False, None),
        ("count", "allow", True, "a correction"),
    ]
    assert ("alarms" in str(lines[1]["after"])) == ledger_values


async def test_a_session_with_nothing_on_record_has_no_lines() -> None:
    assert cc.Boundary().session(SCOPE).record() == ""


async def test_an_answer_has_its_block_only_where_the_boundary_says_so() -> None:
    for asked_for in (False, True):
        session = cc.Boundary([find], coverage_in_answers=asked_for).session(SCOPE)
        assert session.compose_answer("Nothing.  ") == "Nothing.  ", "nothing was declared yet"
        await session.call("find", {"customer": "Ann"})
        answer = session.compose_answer("Ann ordered nothing.  ")
        if asked_for:
            assert answer == cc.compose_answer("Ann ordered nothing.  ", session.declared_coverage)
            assert "the archive" in answer
        else:
            assert answer == "Ann ordered nothing.  "


async def test_what_a_session_declared_goes_on_in_another_process() -> None:
    boundary = cc.Boundary([find, count], coverage_in_answers=True)
    session = boundary.session(SCOPE)
    await session.call("find", {"customer": "Ann"})
    again = boundary.session_from_bytes(session.to_bytes())
    assert again.record() == session.record()
    assert again.compose_answer("x") == session.compose_answer("x")


@pytest.mark.parametrize("setting", ["repeated_call_note", "coverage_in_answers"])
def test_a_switch_that_is_none_is_refused_by_name(setting: str) -> None:
    dials: dict[str, Any] = {setting: "yes"}
    with pytest.raises(cc.ConfigurationError, match=setting):
        cc.Boundary(**dials)


async def test_i1_an_empty_page_says_what_was_searched_and_what_was_not() -> None:
    @cc.tool
    async def search() -> object:
        return cc.absent(
            what="alarms of the last hour",
            checked=["shard 1", "shard 2"],
            not_checked=[{"what": "shard 3", "why": "it did not answer"}],
        )

    outcome = await cc.Boundary([search]).session(SCOPE).call("search")
    assert (outcome.status, outcome.error) == ("absent", False)
    (fact,) = outcome.declared
    assert ([item["what"] for item in fact.checked], [item["what"] for item in fact.not_checked]) == (
        ["shard 1", "shard 2"],
        ["shard 3"],
    )
    assert "shard 3" in outcome.text


@pytest.mark.parametrize("status", ["denied", "invalid", "partial"])
async def test_i2_the_status_of_a_failure_with_a_body_survives(status: Any) -> None:
    @cc.tool
    async def refund() -> object:
        return cc.Envelope(content={"order": 7}, status=status)

    outcome = await cc.Boundary([refund]).session(SCOPE).call("refund")
    assert (outcome.status, outcome.text) == (status, '{"order":7}')
