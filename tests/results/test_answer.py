from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coatcheck.results.absence import absent
from coatcheck.results.answer import compose_answer
from coatcheck.results.coverage import coverage
from coatcheck.results.reading import Declared, read_result

SPAN = {"from": "2031-01-02T00:00:00Z", "to": "2031-01-03T00:00:00Z"}


def facts(*values: Any) -> list[Declared]:
    readings = [read_result(value) for value in values]
    return [fact for reading in readings if reading is not None for fact in reading.declared]


def test_the_block_says_what_was_checked_what_was_not_and_which_time_was_held() -> None:
    declared = facts(
        coverage([1], checked=["the live table"], not_checked=[{"what": "the archive", "why": "it is slow"}]),
        absent(
            what="x",
            checked=["the live table", "the cache"],
            cannot_cover=[{"what": "the subsidiary", "why": "another system"}],
            period={"queried": SPAN, "held": "unknown", "read_at": "2031-01-04T00:00:00Z"},
        ),
    )
    assert compose_answer("Nothing was ordered. \n", declared) == (
        "Nothing was ordered.\n"
        "\n"
        "---\n"
        "What this answer covers\n"
        "\n"
        "Checked:\n"
        "- the live table\n"
        "- the cache\n"
        "\n"
        "Not checked:\n"
        "- the archive — it is slow\n"
        "\n"
        "Cannot be covered:\n"
        "- the subsidiary — another system\n"
        "\n"
        "Period: asked 2031-01-02T00:00:00Z to 2031-01-03T00:00:00Z, held unknown, "
        "read at 2031-01-04T00:00:00Z (unknown)"
    )


def test_a_period_alone_is_a_block() -> None:
    declared = facts(coverage([1], period={"queried": SPAN, "held": SPAN}))
    assert compose_answer("", declared) == (
        "What this answer covers\n\nPeriod: asked 2031-01-02T00:00:00Z to 2031-01-03T00:00:00Z, "
        "held 2031-01-02T00:00:00Z to 2031-01-03T00:00:00Z (covered)"
    )


@pytest.mark.parametrize("text", ["All good. \n", "", " "])
def test_where_nothing_was_declared_the_answer_is_the_very_same(text: str) -> None:
    for declared in (
        [],
        facts({"af_coverage": {}, "result": 1}),
        [Declared("ledger", None, (None, 7, " ", {}), (), ())],
    ):
        assert compose_answer(text, declared) is text


def test_the_same_item_stands_in_each_section_that_names_it_and_once_in_one() -> None:
    declared = facts(
        coverage(1, checked=["a", {"what": "a", "why": "b"}, "a"], not_checked=["a"]),
        {"af_coverage": {"checked": [{"what": "a", "why": ""}, {"what": "a", "why": None}, "a"]}, "result": 1},
    )
    block = compose_answer("", declared)
    assert block.endswith("Checked:\n- a\n- a — b\n\nNot checked:\n- a")


def test_thirteen_items_are_twelve_and_one_more() -> None:
    for count, last in ((12, "- s11"), (13, "- and 1 more")):
        block = compose_answer("", facts(coverage(1, checked=[f"s{index}" for index in range(count)])))
        assert block.endswith(last)
        assert len(block.split("\n")) == 3 + min(count, 13)


@given(st.lists(st.text(st.characters()), max_size=5))
def test_whatever_an_item_says_stays_on_its_line(words: list[str]) -> None:
    declared = [Declared("ledger", None, tuple({"what": "x" + word, "why": "y" + word} for word in words), (), ())]
    block = compose_answer("The answer.", declared)
    block.encode()
    for line in block.splitlines()[6:]:
        assert line.startswith("- x")
        assert len(line) < 700


@pytest.mark.parametrize("mark", ["\u202e", "\u2066", "\u200b", "\ufeff", "\x1b", "\x08", "\xad"])
def test_what_reorders_or_hides_a_line_is_dropped_and_what_is_blank_then_is_no_item(mark: str) -> None:
    declared = [Declared("absence", None, (f"{mark}a{mark}b", f" {mark} ", {"what": "c", "why": mark}), (), ())]
    assert compose_answer("", declared).endswith("Checked:\n- ab\n- c")


def test_what_the_record_left_out_is_counted() -> None:
    declared = facts(coverage(1, checked=[f"s{index}" for index in range(1_000)]))
    assert compose_answer("", declared).endswith("- s11\n- and 988 more")


def test_an_item_cannot_look_like_a_part_of_the_answer() -> None:
    declared = [Declared("absence", None, ("a\n\n---\nNot checked:\r- nothing\u2028\ud800",), (), ())]
    assert compose_answer("", declared).endswith("\n- a --- Not checked: - nothing \\ud800")
