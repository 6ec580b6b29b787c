from __future__ import annotations

import json
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coatcheck.errors import DeclarationError
from coatcheck.results.absence import absent
from coatcheck.results.coverage import COVERAGE_NOTE, coverage, read_coverage
from coatcheck.results.envelope import Encoded
from coatcheck.results.notes import NOTES

texts = st.text(min_size=1).filter(str.strip)
items = texts | st.fixed_dictionaries({"what": texts}, optional={"why": texts})
SPAN = {"from": "2031-01-02T00:00:00Z", "to": "2031-01-03T00:00:00Z"}
declarations = st.fixed_dictionaries(
    {},
    optional={
        "checked": st.lists(items, max_size=3),
        "not_checked": st.lists(items, max_size=3),
        "cannot_cover": st.lists(st.fixed_dictionaries({"what": texts, "why": texts}), max_size=3),
    },
)


def refusal(result: Any, **declaration: Any) -> str:
    with pytest.raises(DeclarationError) as refused:
        coverage(result, **declaration)
    text = str(refused.value)
    assert text.startswith("refused: ")
    assert "coverage()" not in text
    return text


class TestTheMint:
    def test_a_ledger_says_its_bounds_before_the_result(self) -> None:
        rows = [1, 2]
        ledger = coverage(
            rows,
            checked=[" eu "],
            not_checked=[{"what": "us", "why": "its replica lags"}],
            cannot_cover=[{"what": "apac", "why": "another system"}],
        )
        assert json.dumps(ledger) == json.dumps(
            {
                "af_coverage": {
                    "checked": [{"what": "eu"}],
                    "not_checked": [{"what": "us", "why": "its replica lags"}],
                    "cannot_cover": [{"what": "apac", "why": "another system"}],
                    "note": COVERAGE_NOTE,
                },
                "result": [1, 2],
            }
        )
        assert ledger["result"] is rows

    @pytest.mark.parametrize("result", [None, [], "", 0, absent(what="x", checked=["a"])])
    def test_any_value_can_be_bounded(self, result: Any) -> None:
        ledger = coverage(result, not_checked=["b"])
        assert ledger["result"] is result
        assert list(ledger["af_coverage"]) == ["not_checked", "note"]

    @given(st.none() | st.text() | st.lists(st.integers()), declarations)
    def test_what_is_minted_is_recognised_and_what_bounds_nothing_is_refused(
        self, result: Any, declaration: dict[str, Any]
    ) -> None:
        if not any(declaration.values()):
            assert "at least one item" in refusal(result, **declaration)
            return
        ledger = coverage(result, **declaration)
        assert read_coverage(ledger) is ledger
        assert ledger["af_coverage"]["note"] == COVERAGE_NOTE
        assert json.loads(json.dumps(ledger)) == ledger

    def test_a_period_alone_bounds_a_result_and_stands_before_the_note(self) -> None:
        ledger = coverage([1], period={"queried": SPAN, "held": SPAN})
        assert ledger == {
            "af_coverage": {"period": {"queried": SPAN, "held": SPAN}, "note": COVERAGE_NOTE},
            "result": [1],
        }
        assert list(ledger["af_coverage"]) == ["period", "note"]
        assert list(coverage([1], checked=["a"], period=ledger["af_coverage"]["period"])["af_coverage"]) == [
            *("checked", "period", "note"),
        ]

    def test_the_note_is_published(self) -> None:
        assert NOTES["coverage"] == COVERAGE_NOTE
        for word in ("`result`", "`checked`", "`not_checked`", "`cannot_cover`"):
            assert word in COVERAGE_NOTE


class TestRefusals:
    @pytest.mark.parametrize("field", ["checked", "not_checked", "cannot_cover"])
    def test_a_list_that_is_none_is_refused(self, field: str) -> None:
        assert f"{field} must be a list" in refusal(1, **{"checked": ["a"], field: None})

    def test_items_keep_the_rules_of_an_absence(self) -> None:
        assert "cannot_cover[0].why" in refusal(1, cannot_cover=["peer"])
        assert "not_checked[1]" in refusal(1, not_checked=["a", ""])
        assert '"Why"; write why' in refusal(1, not_checked=[{"what": "a", "Why": "b"}])

    def test_a_slip_in_a_name_is_answered_with_the_name_that_was_meant(self) -> None:
        assert '"notChecked"; write not_checked' in refusal(1, notChecked=["a"])
        assert '"try_instead"; there are checked' in refusal(1, checked=["a"], try_instead="x")
        assert '"provenance"; there are checked' in refusal(1, checked=["a"], provenance={})
        assert "refused: period.held" in refusal(1, checked=["a"], period={"queried": SPAN, "held": None})

    def test_ground_that_was_covered_is_no_gap_and_has_no_kind(self) -> None:
        assert "checked[0].kind" in refusal(1, checked=[{"what": "a", "kind": "scope"}])


class TestTheRecogniser:
    @pytest.mark.parametrize(
        "value",
        [
            {"af_coverage": {}, "result": None},
            {"af_coverage": {"checked": 7}, "result": 1, "extra": 2},
        ],
    )
    def test_only_the_marker_and_a_result_are_demanded(self, value: dict[str, Any]) -> None:
        assert read_coverage(value) is value

    @pytest.mark.parametrize(
        "value",
        [
            {"af_coverage": {}},
            {"af_coverage": True, "result": 1},
            {"af_coverage": [{"what": "a"}], "result": 1},
            {"af_coverage": None, "result": 1},
            {"coverage": {}, "result": 1},
            [{"af_coverage": {}, "result": 1}],
            '{"af_coverage": {}, "result": 1}',
            {"af_coverage": mock.MagicMock(spec=dict), "result": 1},
            mock.MagicMock(spec=dict),
            None,
        ],
    )
    def test_everything_else_is_data(self, value: object) -> None:
        assert read_coverage(value) is None

    def test_wire_bytes_are_opened_and_what_they_bound_stays_raw(self) -> None:
        ledger = read_coverage(Encoded(b'{"af_coverage":{"checked":["a"]},"result":[1.10]}'))
        assert ledger is not None
        assert ledger["af_coverage"] == {"checked": ["a"]}
        assert bytes(ledger["result"]) == b"[1.10]"
