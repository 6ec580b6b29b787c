from __future__ import annotations

import json
from collections import UserDict, deque
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coatcheck.errors import RenderingError
from coatcheck.results.absence import ABSENCE_NOTE, absent
from coatcheck.results.coverage import COVERAGE_NOTE, coverage
from coatcheck.results.envelope import Encoded
from coatcheck.results.notes import ABSENCE_NOTE_HELD_ONLY, PERIOD_CLAUSES
from coatcheck.results.reading import read_or_refuse, read_result, read_result_encoded
from coatcheck.results.rendering import render
from coatcheck.results.served import serve
from coatcheck.results.wire import MAX_LEDGERS

QUERIED = {"from": "2031-01-02T00:00:00Z", "to": "2031-01-03T00:00:00Z"}
HELD: dict[str, Any] = {
    "covered": QUERIED,
    "partly-held": {**QUERIED, "to": "2031-01-02T01:00:00Z"},
    "not-held": {"from": "2030-01-02T00:00:00Z", "to": "2030-01-03T00:00:00Z"},
    "unknown": "unknown",
}
ITEM = {"what": "the archive", "why": "slow", "short": "archive", "kind": "scope"}
SERVED_ITEM = {"what": "the archive", "why": "slow"}


@dataclass
class Piece:
    what: str
    why: str
    short: str
    kind: str


class Row(msgspec.Struct):
    what: str
    why: str
    short: str
    kind: str


class Mapped(dict[str, str]):
    pass


_MAPS = (MappingProxyType, UserDict, Mapped)


def period(verdict: str) -> dict[str, Any]:
    return {"queried": QUERIED, "held": HELD[verdict]}


def as_wire(value: Any) -> Any:
    """What the model is served of the same value in wire bytes."""
    raw = json.dumps(value).encode()
    reading = read_result_encoded(raw)
    return value if reading is None or reading.served is raw else json.loads(reading.served)


class TestRecordOnlyKeys:
    def test_they_are_on_the_record_and_not_in_what_is_served(self) -> None:
        value = absent(what="x", checked=["a"], not_checked=[ITEM], cannot_cover=[ITEM])
        reading = read_result(value)
        assert reading is not None
        [fact] = reading.declared
        assert fact.not_checked == fact.cannot_cover == (ITEM,)
        assert reading.served == {**value, "not_checked": [SERVED_ITEM], "cannot_cover": [SERVED_ITEM]}
        assert list(reading.served) == list(value)
        assert value["not_checked"] == [ITEM]

    def test_at_any_depth_of_ledgers(self) -> None:
        value: Any = absent(what="x", checked=["a"], not_checked=[ITEM])
        wanted: Any = absent(what="x", checked=["a"], not_checked=["the archive"])
        wanted["not_checked"] = [SERVED_ITEM]
        for _ in range(MAX_LEDGERS):
            value, wanted = coverage(value, not_checked=[ITEM]), coverage(wanted, not_checked=["a"])
            wanted["af_coverage"]["not_checked"] = [SERVED_ITEM]
        assert serve(value) == as_wire(value) == wanted

    @pytest.mark.parametrize("levels", [MAX_LEDGERS + 1, 90])
    def test_in_ledgers_deeper_than_are_opened_one_by_one_they_are_removed_too(self, levels: int) -> None:
        value: Any = absent(what="x", checked=["a"], not_checked=[ITEM])
        wanted: Any = {**value, "not_checked": [SERVED_ITEM]}
        for _ in range(levels):
            value, wanted = coverage(value, checked=["a"]), coverage(wanted, checked=["a"])
        assert serve(value) == as_wire(value) == wanted

    def test_a_number_in_the_deepest_ledger_stays_as_it_is_spelled(self) -> None:
        raw = b'{"af_absent":true,"checked":["a"],"not_checked":[{"what":"abc","short":"a"}],"n":1.10,"m":1E400}'
        for _ in range(MAX_LEDGERS + 2):
            raw = b'{"af_coverage":{},"result":' + raw + b"}"
        reading = read_result_encoded(raw)
        assert reading is not None
        assert reading.served == raw.replace(b',"short":"a"', b"")

    def test_bytes_nested_too_deeply_to_be_read_are_refused_or_no_json(self) -> None:
        for levels in range(200, 2_000, 20):
            raw = b'{"af_coverage":{},"result":' * levels + json.dumps(coverage(1, not_checked=[ITEM])).encode()
            raw += b"}" * levels
            try:
                read_or_refuse(Encoded(raw))
            except RenderingError:
                assert read_result(Encoded(raw)) is None, "whoever only reads is not refused"
                continue
            reading = read_result_encoded(raw)
            if reading is None:
                with pytest.raises(RenderingError):
                    render(Encoded(raw))
            else:
                assert b"short" not in reading.served

    @pytest.mark.parametrize("key", [b'"short"', b'"sh\\u006Frt"', b'"\\u006bind"'])
    def test_a_key_that_is_given_twice_hides_none_of_them(self, key: bytes) -> None:
        item = b'[{"what":"abc",' + key + b':"a"}]'
        for raw in (
            b'{"af_absent":true,"not_checked":' + item + b',"not_checked":[],"checked":["a"]}',
            b'{"af_coverage":{"checked":' + item + b'},"af_coverage":{},"result":1}',
            b'{"af_coverage":{},"result":{"af_absent":true,"checked":' + item + b'},"result":1}',
        ):
            reading = read_result_encoded(raw)
            assert reading is not None
            assert key not in reading.served
            assert json.loads(reading.served) == json.loads(raw)

    @pytest.mark.parametrize("make", [Piece, Row, MappingProxyType, UserDict, Mapped])
    def test_an_item_that_json_carries_as_an_object_is_one(self, make: Any) -> None:
        value = {"af_absent": True, "checked": ["a"], "not_checked": [make(ITEM) if make in _MAPS else make(**ITEM)]}
        reading = read_result(value)
        assert reading is not None
        assert reading.declared[0].not_checked == (ITEM,)
        assert json.loads(render(reading.served).text) == {**value, "not_checked": [SERVED_ITEM]}

    def test_a_list_that_is_none_here_and_an_array_in_json_is_one(self) -> None:
        reading = read_result({"af_absent": True, "checked": ["a"], "not_checked": deque([ITEM])})
        assert reading is not None
        assert reading.declared[0].not_checked == (ITEM,)
        assert reading.served["not_checked"] == [SERVED_ITEM]

    def test_a_ledger_within_itself_is_data(self) -> None:
        endless = coverage(None, checked=["a"])
        endless["result"] = endless
        assert serve(endless) is endless
        assert read_result(endless) is not None

    def test_whatever_stands_under_them_is_removed_even_what_json_cannot_carry(self) -> None:
        value = {"af_absent": True, "checked": [{"what": "a", "short": object(), "kind": "scope"}]}
        reading = read_result(value)
        assert reading is not None
        assert reading.served == {"af_absent": True, "checked": [{"what": "a"}]}
        assert reading.declared[0].checked == ({"what": "a"},)
        assert len(reading.faults) == 2

    def test_the_same_keys_anywhere_else_are_the_tools_own(self) -> None:
        rows = [{"short": "a", "kind": "b"}]
        value = coverage(rows, checked=[{"what": "abc", "short": "a"}])
        served = serve(value)
        assert served["result"] is rows
        assert served["af_coverage"]["checked"] == [{"what": "abc"}]
        for odd in (rows, {"checked": rows}, {"data": value}, [value], json.dumps(value)):
            assert serve(odd) is odd

    def test_where_there_is_nothing_to_change_it_is_the_same_object(self) -> None:
        for value in (absent(what="x", checked=["a"]), coverage([1], checked=["a"], period=period("covered"))):
            reading = read_result(value)
            assert reading is not None
            assert reading.served is value
            wire = Encoded(json.dumps(value).encode())
            reading = read_result(wire)
            assert reading is not None
            assert reading.served is wire


class TestPeriods:
    @pytest.mark.parametrize("verdict", ["partly-held", "not-held", "unknown"])
    def test_an_absence_gains_the_verdict_and_its_clause(self, verdict: str) -> None:
        value = absent(what="x", checked=["a"], period=period(verdict))
        note = ABSENCE_NOTE if verdict == "unknown" else ABSENCE_NOTE_HELD_ONLY
        assert (
            serve(value)
            == as_wire(value)
            == {
                **value,
                "period": {**period(verdict), "verdict": verdict},
                "note": f"{note} {PERIOD_CLAUSES[verdict]}",
            }
        )
        assert value["note"] == ABSENCE_NOTE
        assert value["period"] == period(verdict)

    @pytest.mark.parametrize("verdict", ["partly-held", "not-held", "unknown"])
    def test_a_ledger_gains_them_in_its_bounds(self, verdict: str) -> None:
        value = coverage([1], checked=["a"], period=period(verdict))
        assert serve(value)["af_coverage"] == {
            "checked": [{"what": "a"}],
            "period": {**period(verdict), "verdict": verdict},
            "note": f"{COVERAGE_NOTE} {PERIOD_CLAUSES[verdict]}",
        }
        assert serve(value)["result"] is value["result"]

    def test_a_note_of_somebody_else_is_kept_and_followed(self) -> None:
        value = {"af_absent": True, "checked": ["a"], "period": period("not-held"), "note": "Nothing there."}
        assert serve(value)["note"] == f"Nothing there. {PERIOD_CLAUSES['not-held']}"
        for odd in ({**value, "note": 7}, {name: said for name, said in value.items() if name != "note"}):
            assert serve(odd)["note"] == PERIOD_CLAUSES["not-held"]

    @pytest.mark.parametrize(
        "odd", ["last week", {}, {**period("unknown"), "verdict": "covered"}, {"queried": QUERIED}]
    )
    def test_a_period_that_says_nothing_adds_nothing_and_is_left_off_the_record(self, odd: Any) -> None:
        value = {"af_absent": True, "checked": ["a"], "period": odd, "note": "n"}
        reading = read_result(value)
        assert reading is not None
        assert reading.served is value
        assert reading.declared[0].period is None
        assert reading.verdict is None
        assert "period" in reading.faults[0]

    def test_of_two_periods_the_least_held_is_the_verdict(self) -> None:
        value = coverage(
            absent(what="x", checked=["a"], period=period("not-held")), checked=["a"], period=period("unknown")
        )
        reading = read_result(value)
        assert reading is not None
        assert [fact.verdict for fact in reading.declared] == ["unknown", "not-held"]
        assert reading.verdict == "not-held"
        assert read_result(absent(what="x", checked=["a"])).verdict is None  # type: ignore[union-attr]  # it declares


class TestWireBytes:
    def test_what_nobody_looks_at_is_written_again_byte_for_byte(self) -> None:
        result = '{"mean": 1.10, "big":123456789012345678901234567890, "e":1E400,"esc":"\\u00e9"}'
        raw = (
            '{ "extra" : 1.0e5, "af_coverage": {"checked":[{"what":"abc","short":"a"}]}, "result": ' + result + "}"
        ).encode()
        reading = read_result_encoded(raw)
        assert reading is not None
        assert reading.served == (
            b'{"extra":1.0e5,"af_coverage":{"checked":[{"what":"abc"}]},"result":' + result.encode() + b"}"
        )

    def test_an_encoded_comes_back_as_one(self) -> None:
        wire = Encoded(json.dumps(absent(what="x", checked=["a"], not_checked=[ITEM])).encode())
        reading = read_result(wire)
        assert reading is not None
        assert type(reading.served) is Encoded
        assert reading.served.media_type == "application/json"
        assert b"short" not in reading.served.raw
        assert reading.declared[0].not_checked == (ITEM,)


def values() -> st.SearchStrategy[Any]:
    items = st.fixed_dictionaries(
        {"what": st.text(min_size=1)},
        optional={"why": st.text(), "short": st.text() | st.none(), "kind": st.sampled_from(["scope", "x", None])},
    )
    lists = st.lists(items | st.text() | st.none(), max_size=3)
    periods = st.sampled_from([*map(period, HELD), {}, "x", None])
    parts = {"not_checked": lists, "period": periods, "note": st.sampled_from([ABSENCE_NOTE, "n", 7, None])}
    absences = st.fixed_dictionaries({"af_absent": st.just(True), "checked": lists}, optional=parts)
    bounds = st.fixed_dictionaries({}, optional={"checked": lists, **parts})
    return st.recursive(
        absences | st.integers() | st.text() | lists,
        lambda inner: st.fixed_dictionaries({"af_coverage": bounds, "result": inner}, optional={"more": inner}),
        max_leaves=4,
    )


@given(values())
def test_what_was_served_is_served_again_as_it_is(value: Any) -> None:
    before = json.dumps(value)
    served = serve(value)
    assert serve(served) is served
    assert json.dumps(value) == before


@given(values())
def test_wire_bytes_are_served_as_the_decoded_value_is(value: Any) -> None:
    assert json.dumps(as_wire(value)) == json.dumps(serve(value))
