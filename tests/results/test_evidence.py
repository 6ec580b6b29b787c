from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from coatcheck.results.absence import absent
from coatcheck.results.coverage import coverage
from coatcheck.results.envelope import Encoded
from coatcheck.results.evidence import evidence_of
from coatcheck.results.notes import ABSENCE_NOTE, ABSENCE_NOTE_HELD_ONLY, COVERAGE_NOTE, PERIOD_CLAUSES
from coatcheck.results.search import Search, finish
from coatcheck.results.served import serve

PERIOD = {
    "queried": {"from": "2031-01-02T00:00:00Z", "to": "2031-01-03T00:00:00Z"},
    "held": {"from": "2030-01-02T00:00:00Z", "to": "2030-01-03T00:00:00Z"},
}
ABSENCE = absent(
    what="orders of CALLER",
    checked=[{"what": "the live table", "short": "SHORT"}],
    not_checked=[{"what": "the archive", "kind": "scope"}],
    period=PERIOD,
    try_instead="Ask the archive.",
    try_instead_tool={"tool": "find_archived"},
)
GROUND = {
    "af_absent": True,
    "outcome": "nothing_found",
    "checked": [{"what": "the live table"}],
    "not_checked": [{"what": "the archive"}],
    "period": PERIOD,
    "retry_returns_the_same": True,
    "try_instead": "Ask the archive.",
    "try_instead_tool": {"tool": "find_archived"},
    "note": ABSENCE_NOTE,
}


def test_of_an_absence_everything_is_evidence_but_what_quotes_the_request_and_what_is_for_the_record() -> None:
    before = json.dumps(ABSENCE)
    assert evidence_of(ABSENCE) == GROUND
    assert list(evidence_of(ABSENCE)) == list(GROUND)
    assert json.dumps(ABSENCE) == before
    assert evidence_of({**ABSENCE, "known": ["EXTRA"]}) == {**GROUND, "known": ["EXTRA"]}


def test_the_verdict_and_its_clause_are_the_librarys_and_ground_nothing() -> None:
    assert evidence_of(serve(ABSENCE)) == {**GROUND, "note": ABSENCE_NOTE_HELD_ONLY}
    ledger = coverage([1], checked=["a"], period=PERIOD)
    assert evidence_of(serve(ledger)) == ledger
    alone = {"af_coverage": {"period": PERIOD, "note": PERIOD_CLAUSES["not-held"]}, "result": 1}
    assert evidence_of(alone)["af_coverage"]["note"] == ""


def test_a_ledger_around_an_absence_keeps_both_rules_at_any_depth() -> None:
    ledger = coverage(coverage(ABSENCE, checked=[{"what": "all of it", "short": "SHORT"}]), checked=["a"])
    assert evidence_of(ledger) == {
        "af_coverage": {"checked": [{"what": "a"}], "note": COVERAGE_NOTE},
        "result": {
            "af_coverage": {"checked": [{"what": "all of it"}], "note": COVERAGE_NOTE},
            "result": GROUND,
        },
    }


def test_what_an_argument_set_quotes_the_caller_and_what_a_default_set_does_not() -> None:
    search = Search(covers=["orders"], arguments={"customer": "customer", "since": "since"}, defaults={"since": "May"})
    evidence = evidence_of(finish(absent(what="x"), search, {"customer": "CALLER"}))
    assert evidence["checked"] == [{"what": "orders"}, {"what": "since: May", "set_by": "default"}]
    assert "CALLER" not in json.dumps(evidence)


@pytest.mark.parametrize(
    "value",
    [
        None,
        7,
        "orders of CALLER",
        "{",
        '{"a": 1}',
        "{\ud800",
        b"{}",
        [ABSENCE],
        {"data": ABSENCE, "looked_for": "x"},
        {"looked_for": "x", "checked": ["a"]},
        coverage([{"short": "a", "looked_for": "b"}], checked=["a"]),
        Encoded(b'{"a":1}'),
        Encoded(b"\xff"),
        Encoded(json.dumps(ABSENCE).encode(), media_type="text/plain"),
    ],
)
def test_everything_else_is_evidence_as_it_is(value: Any) -> None:
    assert evidence_of(value) is value


def test_json_text_and_wire_bytes_are_opened_for_this_alone() -> None:
    text = f" \n{json.dumps(serve(ABSENCE))}"
    evidence = evidence_of(text)
    assert type(evidence) is str
    assert json.loads(evidence) == {**GROUND, "note": ABSENCE_NOTE_HELD_ONLY}
    wire = evidence_of(Encoded(text.encode()))
    assert type(wire) is Encoded
    assert msgspec.json.decode(wire.raw) == {**GROUND, "note": ABSENCE_NOTE_HELD_ONLY}
