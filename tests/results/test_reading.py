from __future__ import annotations

import json
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coatcheck.results.absence import absent
from coatcheck.results.coverage import coverage
from coatcheck.results.reading import MAX_ITEMS, Declared, Reading, coverage_of, read_result, read_result_encoded

ABSENCE = absent(what="orders", checked=["live"], cannot_cover=[{"what": "apac", "why": "elsewhere"}])
ABSENCE_FACT = Declared("absence", "orders", ({"what": "live"},), (), ({"what": "apac", "why": "elsewhere"},))


class Text(str):
    """Text of another class."""


scalars = st.none() | st.booleans() | st.integers() | st.text()
trees = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3), max_leaves=10
)
lists = st.one_of(st.lists(st.fixed_dictionaries({"what": st.text()}) | scalars, max_size=3), trees)
absences = st.fixed_dictionaries(
    {"af_absent": st.sampled_from([True, True, True, 1, "true", None]) | trees, "checked": lists},
    optional={"looked_for": st.text() | trees, "not_checked": lists, "cannot_cover": lists, "extra": trees},
)
ledgers = st.fixed_dictionaries(
    {
        "af_coverage": st.fixed_dictionaries(
            {}, optional={"checked": lists, "not_checked": lists, "cannot_cover": lists}
        )
        | trees,
    },
    optional={"result": absences | trees, "checked": lists, "extra": trees},
)
both = st.builds(lambda ledger, absence: {**ledger, **absence}, ledgers, absences)
nested = st.builds(lambda inner: {"af_coverage": {}, "result": inner}, ledgers)
around = st.one_of(absences, ledgers, both, nested, trees)


def told(reading: Reading | None) -> tuple[tuple[Declared, ...], str | None] | None:
    """The facts and the status; what is served is the matter of test_served.py."""
    return None if reading is None else (reading.declared, reading.status)


def escaped(value: Any) -> str:
    """JSON text in which every character of every text, keys included, is spelled as an escape."""
    if isinstance(value, str):
        units = value.encode("utf-16-be", "surrogatepass")
        return '"' + "".join(f"\\u{units[at]:02x}{units[at + 1]:02X}" for at in range(0, len(units), 2)) + '"'
    if isinstance(value, list):
        return "[" + ",".join(escaped(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{escaped(key)}:{escaped(item)}" for key, item in value.items()) + "}"
    return json.dumps(value)


class TestReading:
    def test_an_absence_is_one_fact_and_the_status(self) -> None:
        assert told(read_result(ABSENCE)) == ((ABSENCE_FACT,), "absent")

    def test_a_ledger_is_one_fact_and_no_status(self) -> None:
        reading = read_result(coverage([1], checked=["eu"], not_checked=["us"]))
        assert told(reading) == ((Declared("ledger", None, ({"what": "eu"},), ({"what": "us"},), ()),), None)

    def test_a_ledger_around_an_absence_is_both_the_ledger_first(self) -> None:
        reading = read_result(coverage(ABSENCE, checked=["eu"]))
        assert reading is not None
        assert [fact.kind for fact in reading.declared] == ["ledger", "absence"]
        assert reading.declared[1] == ABSENCE_FACT
        assert reading.status == "absent"

    def test_only_what_lies_directly_inside_a_ledger_is_read(self) -> None:
        for inner in (coverage(ABSENCE, checked=["a"]), [ABSENCE], {"data": ABSENCE}, json.dumps(ABSENCE)):
            reading = read_result(coverage(inner, checked=["eu"]))
            assert reading is not None
            assert len(reading.declared) == 1
            assert reading.status is None

    def test_the_absence_is_asked_first(self) -> None:
        value = {**coverage([1], checked=["eu"]), **ABSENCE}
        assert told(read_result(value)) == ((ABSENCE_FACT,), "absent")

    def test_a_ledger_whose_absence_marker_means_nothing_is_a_ledger(self) -> None:
        reading = read_result({"af_absent": True, "checked": [], "af_coverage": {"checked": ["a"]}, "result": 1})
        assert told(reading) == ((Declared("ledger", None, ("a",), (), ()),), None)

    def test_a_foreign_fact_is_read_and_never_repaired(self) -> None:
        value = {"af_absent": True, "looked_for": 7, "checked": ["a", None], "not_checked": None, "cannot_cover": {}}
        assert told(read_result(value)) == ((Declared("absence", None, ("a", None), (), ()),), "absent")

    def test_text_and_other_classes_declare_nothing(self) -> None:
        text = json.dumps(ABSENCE)
        for value in (text, text.encode(), [ABSENCE], {"data": ABSENCE}, mock.MagicMock(spec=dict), None, 7):
            assert read_result(value) is None

    @given(around)
    def test_it_never_raises_and_never_changes_a_value(self, value: object) -> None:
        before = repr(value)
        read_result(value)
        assert repr(value) == before


class TestTheRecord:
    def test_a_list_is_bounded_and_says_how_much_was_left_off(self) -> None:
        value = absent(what="x", checked=[f"s{index}" for index in range(1_000)])
        for reading in (read_result(value), read_result_encoded(json.dumps(value).encode())):
            assert reading is not None
            *kept, last = reading.declared[0].checked
            assert kept == value["checked"][:MAX_ITEMS]
            assert last == {"what": "800 more, which were left off the record", "left_out": 800}
            assert reading.faults == ("checked has 1000 items, of which 800 were left off the record",)
        assert read_result(value).served is value  # type: ignore[union-attr]  # it declares
        assert len(coverage_of(value).checked) == 1_000  # type: ignore[union-attr]  # as above

    def test_a_list_at_the_bound_is_kept_as_it_is(self) -> None:
        reading = read_result(absent(what="x", checked=["a"] * MAX_ITEMS))
        assert reading is not None
        assert reading.declared[0].checked == ({"what": "a"},) * MAX_ITEMS

    def test_what_was_looked_for_is_plain_text(self) -> None:
        reading = read_result({"af_absent": True, "checked": ["a"], "looked_for": Text("orders")})
        assert reading is not None
        assert type(reading.declared[0].looked_for) is str


class TestWireBytes:
    @given(around)
    def test_they_declare_what_the_decoded_value_declares(self, value: Any) -> None:
        expected = told(read_result(value))
        for text in (json.dumps(value, ensure_ascii=False), json.dumps(value, indent=2)):
            assert told(read_result_encoded(text.encode())) == expected

    @given(around)
    def test_however_the_keys_are_spelled(self, value: Any) -> None:
        text = escaped(value)
        assert json.loads(text) == value
        assert told(read_result_encoded(text.encode())) == told(read_result(value))

    def test_of_a_key_that_is_given_twice_the_last_counts(self) -> None:
        raw = b'{"af_absent":false,"checked":[],"af_absent":true,"checked":["a"]}'
        assert told(read_result_encoded(raw)) == told(read_result(json.loads(raw)))
        assert read_result_encoded(raw) is not None

    @pytest.mark.parametrize(
        "raw",
        [
            b"",
            b"[",
            b"{",
            b"null",
            json.dumps([ABSENCE]).encode(),
            json.dumps(json.dumps(ABSENCE)).encode(),
            b"\xef\xbb\xbf" + json.dumps(ABSENCE).encode(),
            json.dumps(ABSENCE).encode() + b"x",
            b'{"af_absent":true,"checked":["a"],"extra":"\xff"}',
            b'{"af_absent":true,"checked":["\xff"]}',
            b'{"af_coverage":{},"result":"\xff"}',
            b'{"af_coverage":{},"result":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
            b'{"af_absent":true,"checked":["a"],"extra":NaN}',
        ],
    )
    def test_what_is_not_json_or_declares_nothing_is_none(self, raw: bytes) -> None:
        assert read_result_encoded(raw) is None

    @given(st.binary())
    def test_they_never_raise(self, raw: bytes) -> None:
        assert read_result_encoded(raw) is None

    def test_a_result_of_another_shape_inside_a_ledger_is_skipped(self) -> None:
        for result in (b'"text"', b"7", b"[1,2]", b"null", b"1e999", b'{"a":"\\u00e9"}'):
            reading = read_result_encoded(b'{"af_coverage":{},"result":' + result + b"}")
            assert told(reading) == ((Declared("ledger", None, (), (), ()),), None)
