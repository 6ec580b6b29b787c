"""What a result declares about its ground, as a session serves it, records it, and lets it ground an answer."""

from __future__ import annotations

import json
from collections import UserDict
from typing import Any

import pytest

import coatcheck as cc

pytestmark = pytest.mark.anyio

SCOPE = cc.Scope(tenant="acme", conversation="c")
GAP = {"what": "the archive", "short": "archive", "kind": "scope"}
ABSENCE = cc.absent(what="orders", checked=["live"], not_checked=[GAP])
PERIOD = {"queried": {"from": "2031-01-02T00:00:00Z", "to": "2031-01-03T00:00:00Z"}, "held": "unknown"}


@cc.tool
async def find(q: str) -> object:
    return cc.absent(what=f"orders of {q}", checked=["the live orders table"])


async def test_an_invented_word_is_no_evidence_however_often_a_tool_looks_for_it() -> None:
    session = cc.Boundary([find]).session(SCOPE)
    first = await session.call("find", {"q": "INVENTED-77"})
    second = await session.call("find", {"q": "INVENTED-77"})
    assert second.text != first.text, "there is a note"
    for outcome in (first, second):
        assert "INVENTED-77" in outcome.text
        evidence = cc.evidence_of(outcome.text)
        assert "INVENTED-77" not in evidence
        assert "the live orders table" in evidence


async def test_an_invented_word_in_a_text_that_was_cut_is_no_evidence() -> None:
    truncation = cc.Truncation(max_chars=400)
    session = cc.Boundary([find], truncation=truncation).session(SCOPE)
    for _ in range(2):
        outcome = await session.call("find", {"q": "INVENTED-77"})
        assert isinstance(outcome, cc.Truncated)
        assert "INVENTED-77" in outcome.text
        assert "INVENTED-77" not in cc.evidence_of(outcome.text)


@pytest.mark.parametrize("wire", [False, True])
async def test_a_foreign_envelope_around_an_absence_is_relayed_without_what_is_for_the_record(wire: bool) -> None:
    envelope = {"content": ABSENCE, "effects": [], "status": "partial"}

    @cc.tool(foreign=True)
    async def relay() -> object:
        return cc.Encoded(json.dumps(envelope).encode()) if wire else envelope

    outcome = await cc.Boundary([relay]).session(SCOPE).call("relay")
    assert json.loads(outcome.text) == {**envelope, "content": {**ABSENCE, "not_checked": [{"what": "the archive"}]}}
    assert outcome.status is None
    assert outcome.declared[0].not_checked == (GAP,)
    assert envelope["content"] is ABSENCE


async def test_a_foreign_envelope_of_the_librarys_own_class_is_served_too() -> None:
    @cc.tool(foreign=True)
    async def relay() -> object:
        return cc.Envelope(ABSENCE, status="partial")

    outcome = await cc.Boundary([relay]).session(SCOPE).call("relay")
    assert json.loads(outcome.text)["content"]["not_checked"] == [{"what": "the archive"}]


@pytest.mark.parametrize("enveloped", [False, True])
async def test_what_a_rule_puts_in_place_is_served_as_what_a_tool_returns(enveloped: bool) -> None:
    absence = cc.absent(what="x", checked=["a"], not_checked=[GAP], period=PERIOD)

    @cc.after_tool
    def hides(call: cc.ToolCall, result: cc.Result) -> cc.Allow:
        value = {"content": absence, "effects": [], "status": "partial"} if enveloped else absence
        return cc.allow(value, why="a change")

    outcome = await cc.Boundary([find], rules=[hides]).session(SCOPE).call("find", {"q": "x"})
    read = json.loads(outcome.text)
    read = read["content"] if enveloped else read
    assert read["not_checked"] == [{"what": "the archive"}]
    assert read["period"]["verdict"] == "unknown"
    assert read["note"].endswith(cc.NOTES["period-unknown"])


async def test_an_absence_that_is_not_finished_is_refused_in_its_own_words_wherever_it_stands() -> None:
    @cc.after_tool
    def hides(call: cc.ToolCall, result: cc.Result) -> cc.Allow:
        return cc.allow(cc.absent(what="x"), why="a change") if call.name == "find" else cc.allow()

    @cc.tool
    async def rows() -> object:
        return {"rows": [cc.absent(what="x")]}

    session = cc.Boundary([find, rows], rules=[hides]).session(SCOPE)
    denied = await session.call("find", {"q": "x"})
    assert isinstance(denied, cc.Denied)
    assert 'refused: the absence of "x" needs checked' in denied.text
    failed = await session.call("rows")
    assert failed.error
    assert '$.rows[0]: refused: the absence of "x" needs checked' in failed.text


async def test_a_tool_that_changes_its_arguments_does_not_change_what_it_looked_for() -> None:
    @cc.tool(search=cc.Search(covers=["orders"], arguments={"regions": "regions"}))
    async def search(regions: list[str]) -> object:
        regions.clear()
        regions.append("CHANGED")
        return cc.absent(what="orders")

    outcome = await cc.Boundary([search]).session(SCOPE).call("search", {"regions": ["eu"]})
    assert outcome.declared[0].checked[1] == {"what": 'regions: ["eu"]', "set_by": "argument"}
    assert "CHANGED" not in outcome.text


class Text(str):
    """Text of another class."""


async def test_text_and_items_of_other_classes_are_on_record_as_json_carries_them() -> None:
    gaps: list[Any] = [UserDict(GAP), {"what": Text("the cache")}]

    @cc.tool
    async def search() -> object:
        return {"af_absent": True, "looked_for": Text("orders"), "checked": ["a"], "not_checked": gaps}

    boundary = cc.Boundary([search], coverage_in_answers=True)
    session = boundary.session(SCOPE)
    outcome = await session.call("search")
    assert json.loads(outcome.text)["not_checked"] == [{"what": "the archive"}, {"what": "the cache"}]
    again = boundary.session_from_bytes(session.to_bytes())
    assert again.record() == session.record()
    assert again.compose_answer("x") == session.compose_answer("x")
    assert "- the archive\n- the cache" in session.compose_answer("x")


async def test_a_fact_on_record_and_on_events_is_bounded() -> None:
    events: list[Any] = []

    @cc.tool
    async def search() -> object:
        return cc.absent(what="x", checked=[f"shard {index}" for index in range(5_000)])

    session = cc.Boundary([search], on_event=events.append).session(SCOPE)
    outcome = await session.call("search")
    assert len(json.loads(outcome.text)["checked"]) == 5_000
    (declared,) = (event for event in events if isinstance(event, cc.AbsenceDeclared))
    for checked in (session.declared_coverage[0].checked, declared.checked):
        assert len(checked) == 201
        assert checked[-1]["left_out"] == 4_800
