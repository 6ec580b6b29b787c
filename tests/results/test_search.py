from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coatcheck.errors import ConfigurationError, DeclarationError
from coatcheck.results.absence import UnfinishedAbsence, absent, read_absence
from coatcheck.results.coverage import coverage
from coatcheck.results.notes import ABSENCE_NOTE_COMPOSED, NOTES
from coatcheck.results.search import Search, check_search, compose_checked, finish, keep_arguments

SEARCH = Search(
    covers=["the live orders table", {"what": "the last two years", "why": "older ones are archived"}],
    arguments={"customer": "customer", "since": "placed on or after", "limit": "at most"},
    defaults={"since": "30 days ago", "limit": 50},
    cannot_cover=[{"what": "orders of the subsidiary", "why": "kept in another system"}],
)
COVERED = [{"what": "the live orders table"}, {"what": "the last two years", "why": "older ones are archived"}]
SINCE, LIMIT = ({"what": what, "set_by": "default"} for what in ("placed on or after: 30 days ago", "at most: 50"))


class TestComposing:
    def test_what_every_call_covers_comes_first_then_what_set_each_argument(self) -> None:
        assert compose_checked(SEARCH, {"customer": "Zed", "limit": 10, "unrelated": "x"}) == [
            *COVERED,
            {"what": 'customer: "Zed"', "set_by": "argument"},
            SINCE,
            {"what": "at most: 10", "set_by": "argument"},
        ]

    def test_null_is_left_out_and_what_has_no_default_narrows_nothing(self) -> None:
        assert compose_checked(SEARCH, {"customer": None, "since": None}) == [*COVERED, SINCE, LIMIT]

    @pytest.mark.parametrize(
        ("value", "spelled"),
        [
            (False, "false"),
            (0, "0"),
            ("", '""'),
            (["eu", "us"], '["eu","us"]'),
            ({"a": 1}, '{"a":1}'),
            (object(), "a object"),
            ('x"\n]obey\u202e', '"x\'\N{REPLACEMENT CHARACTER})obey\N{REPLACEMENT CHARACTER}"'),
        ],
    )
    def test_a_value_is_spelled_on_one_line_that_it_cannot_leave(self, value: object, spelled: str) -> None:
        [*_, item] = compose_checked(Search(covers=["a"], arguments={"q": "query"}), {"q": value})
        assert item == {"what": f"query: {spelled}", "set_by": "argument"}

    @given(st.text() | st.lists(st.text()) | st.integers() | st.floats())
    def test_a_value_is_bounded(self, value: object) -> None:
        [_, item] = compose_checked(Search(covers=["a"], arguments={"q": "query"}), {"q": value})
        assert len(item["what"]) < 140
        assert "\n" not in item["what"]
        json.dumps(item).encode()


class TestFinishing:
    def test_an_absence_of_a_declared_search_is_finished_in_the_order_of_the_wire(self) -> None:
        absence = finish(
            absent(
                what="orders of Zed",
                not_checked=["the archive"],
                cannot_cover=[{"what": "drafts", "why": "never saved"}],
                provenance={"measured_at": "now", "source": "db"},
                try_instead="Ask for another customer.",
            ),
            SEARCH,
            {"customer": "Zed"},
        )
        assert list(absence) == [
            *("af_absent", "outcome", "looked_for", "checked", "not_checked", "cannot_cover", "provenance"),
            *("retry_returns_the_same", "try_instead", "note"),
        ]
        assert read_absence(absence) == absence
        assert absence["looked_for"] == "orders of Zed"
        assert absence["checked"] == compose_checked(SEARCH, {"customer": "Zed"})
        assert [item["what"] for item in absence["cannot_cover"]] == ["drafts", "orders of the subsidiary"]
        assert absence["note"] == ABSENCE_NOTE_COMPOSED

    def test_what_a_tool_does_to_its_arguments_changes_nothing_that_was_kept_of_them(self) -> None:
        arguments: dict[str, Any] = {"customer": ["Zed", object()], "limit": [1], "since": None, "unrelated": object()}
        wanted = compose_checked(SEARCH, arguments)
        kept = keep_arguments(SEARCH, arguments)
        arguments["customer"].pop()
        arguments["limit"].append(2)
        assert finish(absent(what="x"), SEARCH, kept)["checked"] == wanted
        assert keep_arguments(None, arguments) == {}

    def test_directly_within_a_ledger_it_is_finished_too(self) -> None:
        ledger = coverage(absent(what="x"), checked=["a"])
        finished = finish(ledger, SEARCH, {})
        assert read_absence(finished["result"]) is not None
        assert finished["af_coverage"] is ledger["af_coverage"]
        assert type(ledger["result"]) is UnfinishedAbsence

    def test_without_a_declared_search_it_is_refused_and_says_what_it_needs(self) -> None:
        for value in (absent(what="thing-42"), coverage(absent(what="thing-42"), checked=["a"])):
            with pytest.raises(DeclarationError, match=r"^refused: the absence of \"thing-42\" needs checked"):
                finish(value, None, {})

    def test_everything_else_is_as_it_is(self) -> None:
        finished = absent(what="x", checked=["a"])
        odd: Any
        for odd in (
            [],
            None,
            "",
            {},
            finished,
            [absent(what="x")],
            {"result": absent(what="x")},
            coverage(1, checked=["a"]),
        ):
            for search in (None, SEARCH):
                assert finish(odd, search, {"customer": "Zed"}) is odd

    def test_an_author_who_says_where_it_looked_has_the_last_word(self) -> None:
        said = absent(what="x", checked=["the archive, this time"])
        assert finish(said, SEARCH, {}) is said

    @given(st.dictionaries(st.sampled_from(["customer", "since", "limit"]), st.text(min_size=1)), st.text(min_size=1))
    def test_nothing_of_the_call_is_in_a_note(self, arguments: dict[str, str], what: str) -> None:
        absence = finish(absent(what=f"x{what}"), SEARCH, arguments)
        assert absence["note"] == NOTES["absence-composed"]

    def test_nobody_can_change_the_search_through_what_it_composed(self) -> None:
        first = finish(absent(what="x"), SEARCH, {})
        first["checked"][0]["what"] = first["cannot_cover"][0]["what"] = "changed"
        assert compose_checked(SEARCH, {})[0] == COVERED[0]
        assert finish(absent(what="x"), SEARCH, {})["cannot_cover"][0]["what"] == "orders of the subsidiary"


class TestTheDeclaration:
    @pytest.mark.parametrize(
        ("declared", "mentions"),
        [
            ({"covers": []}, "Search.covers"),
            ({"covers": "the table"}, "Search.covers must be a list"),
            ({"covers": ["a", ""]}, "Search.covers[1]"),
            ({"covers": [{"what": "a", "kind": "scope"}]}, "Search.covers[0].kind"),
            ({"cannot_cover": ["a"]}, "Search.cannot_cover[0].why"),
            ({"arguments": ["a"]}, "Search.arguments"),
            ({"arguments": {"a": " "}}, "Search.arguments['a']"),
            ({"arguments": {"a": 7}}, "Search.arguments['a']"),
            ({"arguments": {"a": "b"}, "defaults": {"a": None}}, "Search.defaults['a']"),
            ({"arguments": {"a": "b"}, "defaults": {"a": float("nan")}}, "Search.defaults['a']"),
            ({"defaults": {"a": "b"}}, "Search.defaults['a'] is not among Search.arguments"),
        ],
    )
    def test_a_fault_is_named_by_its_field(self, declared: dict[str, Any], mentions: str) -> None:
        with pytest.raises(ConfigurationError) as refused:
            Search(**{"covers": ["a"], **declared})
        assert mentions in str(refused.value)

    def test_it_keeps_copies(self) -> None:
        arguments = {"q": "query"}
        search = Search(covers=["a"], arguments=arguments)
        arguments["more"] = "x"
        assert search.arguments == {"q": "query"}

    def test_it_is_checked_against_the_tool(self) -> None:
        assert check_search("find", None, ["customer"]) is None
        assert check_search("find", SEARCH, ["customer", "since", "limit", "page"]) is SEARCH
        assert check_search("find", SEARCH, None) is SEARCH
        with pytest.raises(ConfigurationError, match=r"tool find: Search.arguments\['limit'\] .* customer, since"):
            check_search("find", SEARCH, ["customer", "since"])
        with pytest.raises(ConfigurationError, match="tool find: search must be a Search"):
            check_search("find", {"covers": ["a"]}, [])
