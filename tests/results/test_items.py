from __future__ import annotations

import enum
from typing import Any

import pytest

from coatcheck.errors import DeclarationError
from coatcheck.results.items import mint_items, read_items, served_items


class Gap(enum.StrEnum):
    SCOPE = "scope"


class TestExtras:
    def test_they_are_minted_after_the_rest_and_trimmed(self) -> None:
        [item] = mint_items("not_checked", [{"kind": Gap.SCOPE, "short": " tape ", "why": "slow", "what": "the tape"}])
        assert list(item.items()) == [("what", "the tape"), ("why", "slow"), ("short", "tape"), ("kind", "scope")]
        assert type(item["kind"]) is str

    def test_null_is_left_out(self) -> None:
        item: dict[str, Any] = {"what": "a", "short": None, "kind": None}
        assert mint_items("not_checked", [item]) == [{"what": "a"}]
        assert mint_items("checked", [item], kind=False) == [{"what": "a"}]

    @pytest.mark.parametrize(
        "short",
        [
            " ",
            "longer than what",
            "s" * 81,
            "a\nb",
            "a\x00b",
            "a\x7fb",
            "a\u2028b",
            "a\u2029b",
            "a\u200db",
            "a\u202eb",
            "a\ufeffb",
            "a\ud800b",
            7,
            ["a"],
        ],
    )
    def test_a_short_that_is_no_visible_line_is_refused_and_left_off_the_record(self, short: Any) -> None:
        what = "the ground" if short == "longer than what" else "w" * 200
        item = {"what": what, "short": short}
        with pytest.raises(DeclarationError, match=r"refused: checked\[0\]\.short"):
            mint_items("checked", [item])
        faults: list[str] = []
        assert read_items("checked", [item], faults) == ({"what": what},)
        assert faults == ["checked[0].short was left off the record: no mint would have let it pass"]

    def test_a_short_as_long_as_what_and_as_the_bound_is_one(self) -> None:
        for length in (1, 80):
            item = {"what": "w" * length, "short": "é" * length}
            assert mint_items("checked", [item]) == [item]
            assert read_items("checked", [item], []) == (item,)

    def test_a_good_extra_stays_where_a_bad_one_goes(self) -> None:
        item = {"what": "abc", "short": "a", "kind": "time", "more": 1}
        faults: list[str] = []
        assert read_items("not_checked", ["x", item], faults) == ("x", {"what": "abc", "short": "a", "more": 1})
        assert faults == ["not_checked[1].kind was left off the record: no mint would have let it pass"]
        assert item == {"what": "abc", "short": "a", "kind": "time", "more": 1}

    def test_ground_that_was_covered_has_no_kind(self) -> None:
        faults: list[str] = []
        assert read_items("checked", [{"what": "a", "kind": "scope"}], faults, kind=False) == ({"what": "a"},)
        assert len(faults) == 1


class TestReading:
    def test_items_are_as_found_by_reference(self) -> None:
        items = [None, 7, "a", {"what": 1}, {"what": "a", "short": "a"}]
        found = read_items("checked", items, [])
        assert all(mine is theirs for mine, theirs in zip(found, items, strict=True))
        assert read_items("checked", tuple(items), []) == tuple(items)

    @pytest.mark.parametrize("odd", [None, "text", {"0": "a"}, 7])
    def test_what_is_no_array_has_no_items(self, odd: object) -> None:
        assert read_items("checked", odd, []) == ()


class TestServing:
    @pytest.mark.parametrize("found", [None, "text", 7, [], ["a", None], [{"what": "a"}], [{"short": None}]])
    def test_where_nothing_is_to_be_removed_it_is_the_same_object(self, found: object) -> None:
        assert served_items(found) is found

    def test_whatever_stands_under_a_record_only_key_is_removed_and_the_rest_is_the_same(self) -> None:
        plain = {"what": "a"}
        items: list[Any] = [plain, {"what": "b", "short": object(), "why": "c"}, {"kind": 0}, "d"]
        served = served_items(items)
        assert served == [plain, {"what": "b", "why": "c"}, {}, "d"]
        assert isinstance(served, list)
        assert served[0] is plain
        assert set(items[1]) == {"what", "short", "why"}
