from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from coatcheck.results.absence import absent
from coatcheck.results.coverage import coverage
from coatcheck.results.envelope import Encoded, Envelope
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


NOTE = '["find" has now been called 2 times with the same arguments, and what there is to read is the same.]'


@pytest.mark.parametrize("lead", ["", " ", "\ufeff"])
@pytest.mark.parametrize("notes", [[NOTE], [NOTE, "[}]"]])
@pytest.mark.parametrize("indent", [None, 1])
def test_notes_that_follow_the_text_of_an_absence_are_no_evidence(lead: str, notes: list[str], indent: Any) -> None:
    value = {**ABSENCE, "looked_for": 'CALLER \\" } ]\n[', "extra": ["]\n[", {}]}
    evidence = evidence_of("\n".join([lead + json.dumps(value, indent=indent), *notes]))
    assert json.loads(evidence) == {**GROUND, "extra": ["]\n[", {}]}


def test_notes_after_other_data_are_dropped_and_any_other_text_is_kept() -> None:
    assert evidence_of(f'{{"a": 1}}\n{NOTE}') == '{"a": 1}'
    for text in ('{"a": 1} and more', '{"a": 1}[2]', f"orders\n{NOTE}", "{" + '\\"' * 100_000 + "]"):
        assert evidence_of(text) is text


def test_the_pieces_in_a_marker_and_in_a_ticket_are_no_evidence() -> None:
    marker = {"truncated": True, "reason": "find returned 900 characters", "head": "CALLER", "tail": "CALLER"}
    ticket = {"placed": True, "ref": "art_1", "kind": "k", "mediaType": "text/plain", "bytes": 7, "reason": "r"}
    for value, kept in (
        ({**marker, "notes": [NOTE]}, {"truncated": True, "reason": marker["reason"]}),
        ({**ticket, "preview": "CALLER"}, ticket),
    ):
        assert evidence_of(value) == kept
        assert json.loads(evidence_of(json.dumps(value))) == kept
    for odd in ({**marker, "more": 1}, {**marker, "truncated": 1}, {"truncated": True, "head": "x"}, ticket):
        assert evidence_of(odd) is odd
        text = json.dumps(odd)
        assert evidence_of(text) is text


def test_of_an_envelope_the_content_is_projected() -> None:
    envelope = Envelope(ABSENCE, status="partial")
    assert evidence_of(envelope) == Envelope(GROUND, status="partial")
    value = {"content": ABSENCE, "effects": [], "status": "partial"}
    assert evidence_of(value) == {**value, "content": evidence_of(ABSENCE)}
    text = json.dumps(value)
    assert json.loads(evidence_of(f"{text}\n{NOTE}")) == {**value, "content": evidence_of(ABSENCE)}
    wire = evidence_of(Encoded(text.encode()))
    assert json.loads(wire.raw) == {**value, "content": evidence_of(ABSENCE)}
    plain = {"content": [1], "effects": [], "status": "partial"}
    assert evidence_of(plain) is plain


def test_a_key_that_is_given_twice_hides_nothing_of_the_callers() -> None:
    text = '{"af_coverage":{},"result":{"af_absent":true,"checked":["a"],"looked_for":"CALLER"},"result":1}'
    assert "CALLER" not in evidence_of(text)
