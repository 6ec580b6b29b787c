from __future__ import annotations

import enum
import json
from types import MappingProxyType
from typing import Any
from unittest import mock

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coatcheck.errors import DeclarationError, RenderingError
from coatcheck.results.absence import (
    ABSENCE_NOTE,
    SuggestedTool,
    UnfinishedAbsence,
    absent,
    read_absence,
    try_instead_of,
    try_instead_tool_of,
)
from coatcheck.results.coverage import coverage
from coatcheck.results.envelope import Encoded
from coatcheck.results.notes import NOTES
from coatcheck.results.period import Period, Span
from coatcheck.results.provenance import Provenance
from coatcheck.results.reading import read_result
from coatcheck.results.rendering import render

texts = st.text(min_size=1).filter(str.strip)
items = st.one_of(texts, st.fixed_dictionaries({"what": texts}), st.fixed_dictionaries({"what": texts, "why": texts}))
reasoned = st.fixed_dictionaries({"what": texts, "why": texts})
declarations = st.fixed_dictionaries(
    {"what": texts, "checked": st.lists(items, min_size=1, max_size=3)},
    optional={
        "not_checked": st.lists(items, max_size=3) | st.lists(items, max_size=2).map(tuple),
        "cannot_cover": st.lists(reasoned, max_size=3),
        "try_instead": st.none() | st.text(),
    },
)


def refusal(**declaration: Any) -> str:
    with pytest.raises(DeclarationError) as refused:
        absent(**declaration)
    text = str(refused.value)
    assert text.startswith("refused: ")
    assert "absent()" not in text
    return text


PERIOD = {"queried": {"from": "2031-01-02T00:00:00Z", "to": "2031-01-03T00:00:00Z"}, "held": "unknown"}


class TestTheMint:
    def test_an_absence_says_what_where_and_what_not_in_the_order_of_the_wire(self) -> None:
        absence = absent(
            what=" orders of Dana ",
            checked=["live table", {"what": "last 24h", "why": " retention "}],
            not_checked=({"what": "archive", "why": "older"}, "cold tier"),
            cannot_cover=[MappingProxyType({"what": "the subsidiary", "why": "another system"})],
            try_instead=" Ask by number. ",
        )
        assert list(absence.items()) == [
            ("af_absent", True),
            ("outcome", "nothing_found"),
            ("looked_for", "orders of Dana"),
            ("checked", [{"what": "live table"}, {"what": "last 24h", "why": "retention"}]),
            ("not_checked", [{"what": "archive", "why": "older"}, {"what": "cold tier"}]),
            ("cannot_cover", [{"what": "the subsidiary", "why": "another system"}]),
            ("retry_returns_the_same", True),
            ("try_instead", "Ask by number."),
            ("note", ABSENCE_NOTE),
        ]

    def test_an_empty_search_over_two_of_three_shards_says_which_were_searched_and_which_not(self) -> None:
        # cases.md I1
        absence = absent(
            what="alarms",
            checked=["shard 1", "shard 2"],
            not_checked=[{"what": "shard 3", "why": "it did not answer"}],
        )
        reading = read_result(absence)
        assert reading is not None
        assert reading.status == "absent"
        assert reading.declared[0].checked == ({"what": "shard 1"}, {"what": "shard 2"})
        assert reading.declared[0].not_checked == ({"what": "shard 3", "why": "it did not answer"},)

    def test_what_is_empty_mints_no_key(self) -> None:
        absence = absent(what="x", checked=["a"], not_checked=[], cannot_cover=(), try_instead=" ")
        assert list(absence) == ["af_absent", "outcome", "looked_for", "checked", "retry_returns_the_same", "note"]

    def test_what_is_said_beside_the_lists_stands_where_the_wire_has_it(self) -> None:
        absence = absent(
            what="x",
            checked=[{"what": "the 02:00 export", "short": "export"}],
            not_checked=[{"what": "tape", "kind": "scope"}],
            provenance=Provenance(measured_at=" 02:00 ", source="export", age_seconds=60),
            period=Period(Span("2031-01-02T00:00:00Z", "2031-01-03T00:00:00Z"), "unknown"),
            try_instead="Ask find_tape.",
            try_instead_tool=SuggestedTool(" find_tape ", "it reads tapes"),
        )
        assert list(absence) == [
            *("af_absent", "outcome", "looked_for", "checked", "not_checked", "provenance", "period"),
            *("retry_returns_the_same", "try_instead", "try_instead_tool", "note"),
        ]
        assert absence["checked"] == [{"what": "the 02:00 export", "short": "export"}]
        assert absence["not_checked"] == [{"what": "tape", "kind": "scope"}]
        assert absence["provenance"] == {"measured_at": "02:00", "source": "export", "age_seconds": 60}
        assert absence["period"] == PERIOD
        assert absence["try_instead_tool"] == {"tool": "find_tape", "why": "it reads tapes"}

    def test_a_record_and_a_mapping_of_its_fields_mint_the_same(self) -> None:
        by_record = absent(
            what="x",
            checked=["a"],
            provenance=Provenance(measured_at="now", source="s"),
            period=Period(Span("2031-01-02T00:00:00Z", "2031-01-03T00:00:00Z"), "unknown"),
            try_instead_tool=SuggestedTool("t"),
        )
        by_mapping = absent(
            what="x",
            checked=["a"],
            provenance=MappingProxyType({"measured_at": "now", "source": "s"}),
            period=MappingProxyType({**PERIOD, "queried": MappingProxyType(PERIOD["queried"])}),  # type: ignore[arg-type]  # the span, not the word
            try_instead_tool=MappingProxyType({"tool": "t"}),
        )
        assert json.dumps(by_record) == json.dumps(by_mapping)

    @given(declarations)
    def test_what_is_minted_is_recognised_and_survives_the_wire(self, declaration: dict[str, Any]) -> None:
        absence = absent(**declaration)
        again = json.loads(json.dumps(absence))
        assert again == absence
        assert list(again) == list(absence)
        for each in (absence, again):
            assert read_absence(each) is each

    @given(declarations)
    def test_the_authors_own_objects_are_neither_kept_nor_changed(self, declaration: dict[str, Any]) -> None:
        before = repr(declaration)
        absence = absent(**declaration)
        absence["checked"][0]["what"] = "changed"
        absence["checked"].append({})
        assert repr(declaration) == before

    @given(declarations, texts)
    def test_the_note_is_the_same_whatever_is_said(self, declaration: dict[str, Any], what: str) -> None:
        assert absent(**{**declaration, "what": what})["note"] == ABSENCE_NOTE

    def test_a_sentence_that_is_no_text_is_none(self) -> None:
        for odd in (7, False, ["a"], None):
            assert "try_instead" not in absent(what="x", checked=["a"], try_instead=odd)  # type: ignore[arg-type]

    def test_members_of_a_text_enum_are_text_and_come_out_plain(self) -> None:
        class Ground(enum.StrEnum):
            LIVE = "live table"

        [item] = absent(what=Ground.LIVE, checked=[Ground.LIVE])["checked"]
        assert type(item["what"]) is str

    def test_the_note_is_published(self) -> None:
        assert NOTES["absence"] == ABSENCE_NOTE
        for word in ("succeeded", "`checked`", "`not_checked`", "`cannot_cover`", "do not repeat"):
            assert word in ABSENCE_NOTE
        with pytest.raises(TypeError):
            NOTES["absence"] = ""  # type: ignore[index]


class TestRefusals:
    @pytest.mark.parametrize("what", ["", " \n", "\u00a0\u3000", None, 7, ["x"]])
    def test_what_must_say_something(self, what: Any) -> None:
        assert "refused: what must be text" in refusal(what=what, checked=["a"])

    def test_what_and_checked_must_be_given(self) -> None:
        assert "what must be text that says what was looked for, but it is missing" in refusal(checked=["a"])
        assert "what" in refusal()
        text = refusal(what="thing-42", checked=[])
        assert "thing-42" in text
        assert "checked" in text

    @pytest.mark.parametrize("field", ["checked", "not_checked", "cannot_cover"])
    @pytest.mark.parametrize("odd", [None, "text", {"what": "x"}, {"x"}, 7, iter(["x"])])
    def test_a_list_is_a_list_or_a_tuple(self, field: str, odd: Any) -> None:
        text = refusal(**{"what": "x", "checked": ["a"], field: odd})
        assert text.startswith(f"refused: {field} must be a list, but it is")

    @pytest.mark.parametrize(
        ("field", "item", "mentions"),
        [
            ("checked", " ", ["checked[1]", "blank"]),
            ("checked", None, ["checked[1]", "None"]),
            ("not_checked", 7, ["not_checked[1]", "int"]),
            ("not_checked", {}, ["not_checked[1].what", "missing"]),
            ("checked", {"what": None}, ["checked[1].what", "None"]),
            ("checked", {"what": "db", "why": " "}, ["checked[1].why", '"db"', "blank"]),
            ("checked", {"what": "db", "why": None}, ["checked[1].why", '"db"', "None"]),
            ("cannot_cover", "peer", ["cannot_cover[1].why", '"peer"', "missing"]),
            ("cannot_cover", {"what": "peer"}, ["cannot_cover[1].why", '"peer"', "missing"]),
            ("cannot_cover", {"what": "peer", "why": ""}, ["cannot_cover[1].why", '"peer"', "blank"]),
            ("checked", {"What": "db"}, ["checked[1]", '"What"', "write what"]),
            ("checked", {"what": "db", "WHY": "r"}, ["checked[1]", '"WHY"', "write why"]),
            (
                "checked",
                {"what": "db", "because": "r"},
                ["checked[1]", '"because"', "there are what, why, short"],
            ),
            ("checked", {"what": "db", "short": "longer"}, ["checked[1].short", '"db"', "no longer"]),
            ("checked", {"what": "db", "short": 7}, ["checked[1].short"]),
            ("checked", {"what": "db", "kind": "scope"}, ["checked[1].kind", "left out"]),
            ("not_checked", {"what": "db", "kind": "time"}, ["not_checked[1].kind", "existence, scope"]),
            ("cannot_cover", {"what": "db", "why": "r", "kind": 7}, ["cannot_cover[1].kind"]),
            ("checked", {"what": "db", 1: "r"}, ["checked[1]", '"1"']),
        ],
    )
    def test_an_item_is_refused_by_its_list_and_index(self, field: str, item: Any, mentions: list[str]) -> None:
        fine = {"what": "fine", "why": "so"}
        text = refusal(**{"what": "x", "checked": ["a"], field: [fine, item]})
        assert [token for token in mentions if token not in text] == []

    @pytest.mark.parametrize(
        ("slip", "meant"),
        [
            ("notChecked", "not_checked"),
            ("cannotCover", "cannot_cover"),
            ("tryInstead", "try_instead"),
            ("NOT_CHECKED", "not_checked"),
            ("Checked", "checked"),
            ("What", "what"),
        ],
    )
    def test_a_slip_in_a_name_is_answered_with_the_name_that_was_meant(self, slip: str, meant: str) -> None:
        text = refusal(**{"what": "x", "checked": ["a"], slip: ["b"]})
        assert f'"{slip}"; write {meant}' in text

    def test_an_unknown_name_is_answered_with_those_that_there_are(self) -> None:
        text = refusal(what="x", checked=["a"], hint="b")
        assert '"hint"; there are what, checked, not_checked, cannot_cover, among, provenance, period, try_' in text

    def test_the_first_fault_is_the_one_that_is_named(self) -> None:
        text = refusal(what="x", checked=["a", ""], not_checked="bad", cannot_cover=["bad"])
        assert "checked[1]" in text
        assert "cannot_cover" not in text

    def test_advice_in_another_shape_is_refused_rather_than_dropped(self) -> None:
        odd: Any
        for odd in ({"tool": "y"}, MappingProxyType({}), SuggestedTool("y")):
            assert "goes into try_instead_tool" in refusal(what="x", checked=["a"], try_instead=odd)

    @pytest.mark.parametrize("odd", ["find_tape", ["find_tape"], {}, {"tool": " "}, {"tool": "a", "because": "b"}, 7])
    def test_a_suggested_tool_is_one_tool_and_typed(self, odd: Any) -> None:
        assert "refused: try_instead_tool" in refusal(what="x", checked=["a"], try_instead_tool=odd)

    def test_a_tool_is_never_read_out_of_the_sentence(self) -> None:
        absence = absent(what="x", checked=["a"], try_instead='{"tool": "find_tape"}')
        assert "try_instead_tool" not in absence
        assert try_instead_tool_of(absence) is None

    def test_a_refusal_quotes_a_long_or_wild_text_only_within_bounds(self) -> None:
        wild = 'x"] [now obey\n\u202e\ud800' + "y" * 10_000
        text = refusal(what=wild, checked=[])
        assert len(text) < 300
        assert text.isprintable()
        assert text.count('"') == 2
        assert "]" not in text


class TestUnfinished:
    def test_without_checked_an_absence_is_not_finished_and_json_has_no_word_for_it(self) -> None:
        unfinished = absent(what=" thing-42 ", try_instead="Ask again.")
        assert type(unfinished) is UnfinishedAbsence
        assert unfinished.looked_for == "thing-42"
        assert "thing-42" in repr(unfinished)
        for within in (unfinished, [unfinished], {"a": unfinished}, coverage(unfinished, checked=["a"])):
            with pytest.raises(RenderingError, match=r"^\$.*: refused: the absence of \"thing-42\" needs checked"):
                render(within)
            with pytest.raises(TypeError):
                msgspec.json.encode(within)
            with pytest.raises(TypeError):
                json.dumps(within)

    def test_it_declares_nothing(self) -> None:
        unfinished = absent(what="x")
        assert read_absence(unfinished) is None
        assert read_result(unfinished) is None
        assert read_result(coverage(unfinished, checked=["a"])) is not None  # the ledger does

    def test_its_faults_are_refused_at_once(self) -> None:
        assert "not_checked[0]" in refusal(what="x", not_checked=[""])
        assert "period" in refusal(what="x", period="last week")
        assert "checked must be a list" in refusal(what="x", checked=None)


class TestTheRecogniser:
    def test_only_the_marker_and_some_ground_are_demanded(self) -> None:
        for value in (
            {"af_absent": True, "checked": [None]},
            {"af_absent": True, "checked": ("a",), "extra": 1},
            {"af_absent": True, "checked": [{}], "outcome": 7},
        ):
            assert read_absence(value) is value

    @pytest.mark.parametrize(
        "value",
        [
            {"af_absent": 1, "checked": ["a"]},
            {"af_absent": "true", "checked": ["a"]},
            {"af_absent": True},
            {"af_absent": True, "checked": []},
            {"af_absent": True, "checked": "a"},
            {"af_absent": True, "checked": {"0": "a"}},
            {"data": {"af_absent": True, "checked": ["a"]}},
            [{"af_absent": True, "checked": ["a"]}],
            '{"af_absent": true, "checked": ["a"]}',
            b'{"af_absent": true, "checked": ["a"]}',
            mock.MagicMock(spec=dict),
            {"af_absent": True, "checked": mock.MagicMock(spec=list)},
            None,
        ],
    )
    def test_everything_else_is_data(self, value: object) -> None:
        assert read_absence(value) is None


class TestTheReaders:
    def test_advice_is_read_by_the_rules_of_the_mint(self) -> None:
        absence = {"af_absent": True, "checked": ["a"], "try_instead": " Ask. ", "try_instead_tool": {"tool": " t "}}
        assert try_instead_of(absence) == "Ask."
        assert try_instead_tool_of(absence) == SuggestedTool("t")
        wire = Encoded(json.dumps(absence).encode())
        assert try_instead_of(wire) == "Ask."
        assert try_instead_tool_of(wire) == SuggestedTool("t")

    @pytest.mark.parametrize("odd", [None, " ", 7, ["a"], {"tool": "x"}, {"tool": "x", "more": 1}, {"why": "w"}])
    def test_advice_that_a_mint_refuses_is_none_and_the_absence_stays_one(self, odd: Any) -> None:
        absence = {"af_absent": True, "checked": ["a"], "try_instead": odd, "try_instead_tool": odd}
        assert read_absence(absence) is absence
        assert try_instead_of(absence) is None
        suggested = try_instead_tool_of(absence)
        assert suggested == (SuggestedTool("x") if odd == {"tool": "x"} else None)

    def test_advice_of_what_is_no_absence_is_none(self) -> None:
        for value in (None, {"try_instead": "Ask."}, {"af_absent": True, "try_instead": "Ask."}, "Ask."):
            assert try_instead_of(value) is None
            assert try_instead_tool_of(value) is None

    def test_wire_bytes_are_opened_and_what_nobody_looks_at_stays_raw(self) -> None:
        absence = read_absence(Encoded(b'{"af_absent":true,"checked":["a"],"mean":1.10}'))
        assert absence is not None
        assert absence["checked"] == ["a"]
        assert bytes(absence["mean"]) == b"1.10"
        assert read_absence(Encoded(b'{"af_absent":true,"checked":["a"]}', media_type="text/plain")) is None
