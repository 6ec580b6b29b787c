from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coatcheck.errors import DeclarationError
from coatcheck.results.absence import absent
from coatcheck.results.provenance import Among, Provenance, judge_provenance, mint_provenance

GAP = {"what": "names outside the directory", "why": "the list does not claim to hold every name there is"}
PARTIAL = {"what": "the names in the directory that were not read", "why": "not every name in it was read"}


def refusal(**declared: Any) -> str:
    with pytest.raises(DeclarationError) as refused:
        absent(what="x", **declared)
    assert str(refused.value).startswith("refused: ")
    return str(refused.value)


class TestProvenance:
    def test_the_time_is_the_authors_words(self) -> None:
        minted = mint_provenance(Provenance(measured_at=" the 02:00 export ", source=" db ", source_export_date="x"))
        assert minted == {"measured_at": "the 02:00 export", "source": "db", "source_export_date": "x"}
        assert mint_provenance({"measured_at": datetime(2031, 1, 2, tzinfo=UTC), "source": "db"}) == {
            "measured_at": "2031-01-02T00:00:00Z",
            "source": "db",
        }

    @pytest.mark.parametrize("age", [0, 0.5, 2**53])
    def test_an_age_is_a_number_of_seconds(self, age: float) -> None:
        declared = {"measured_at": "now", "source": "db", "age_seconds": age}
        assert mint_provenance(declared) == declared
        assert judge_provenance(declared).age_seconds == age

    @pytest.mark.parametrize("age", [-1, True, "1", float("nan"), float("inf"), 2**53 + 1, 10**400])
    def test_any_other_age_is_refused(self, age: Any) -> None:
        text = refusal(checked=["a"], provenance={"measured_at": "now", "source": "db", "age_seconds": age})
        assert "provenance.age_seconds" in text

    @pytest.mark.parametrize(
        ("provenance", "mentions"),
        [
            ({"source": "db"}, "provenance.measured_at"),
            ({"measured_at": " ", "source": "db"}, "provenance.measured_at"),
            ({"measured_at": "now"}, "provenance.source"),
            ({"measured_at": "now", "source": b"db"}, "provenance.source"),
            ({"measuredAt": "now", "source": "db"}, '"measuredAt"; write measured_at'),
            ({"measured_at": "now", "source": "db", "source_export_date": ""}, "provenance.source_export_date"),
            ("yesterday", "provenance must be an object"),
            (Among(source="s", measured_at="now"), 'provenance has no "authoritative"'),
        ],
    )
    def test_a_fault_is_named_by_its_field(self, provenance: Any, mentions: str) -> None:
        assert mentions in refusal(checked=["a"], provenance=provenance)


class TestAmong:
    def test_it_composes_the_ground_the_gap_and_the_provenance(self) -> None:
        absence = absent(
            what="customer Zed",
            among=Among(source=" the directory ", measured_at="02:00", names=["Ann", "Bob"], count=2),
            not_checked=["the archive"],
        )
        assert absence["checked"] == [{"what": "all names in the directory, 2 of them"}]
        assert absence["not_checked"] == [{"what": "the archive"}, GAP]
        assert absence["provenance"] == {"measured_at": "02:00", "source": "the directory"}

    def test_only_authority_removes_the_gap_and_nothing_removes_that_of_a_partial_read(self) -> None:
        for authoritative in (False, True):
            for partial in (False, True):
                among = Among(source="the directory", measured_at="now", authoritative=authoritative, partial=partial)
                gaps = absent(what="x", among=among).get("not_checked", [])
                assert gaps == [GAP] * (not authoritative) + [PARTIAL] * partial

    def test_a_partial_read_does_not_claim_all_names(self) -> None:
        among = {"source": "the directory", "measured_at": "now", "partial": True}
        assert absent(what="x", among=among)["checked"] == [{"what": "some names in the directory"}]
        assert absent(what="x", among={**among, "count": 7})["checked"] == [
            {"what": "some names in the directory, 7 of them"}
        ]

    def test_further_ground_follows_the_list(self) -> None:
        absence = absent(what="x", among=Among(source="s", measured_at="now"), checked=["its aliases"])
        assert absence["checked"] == [{"what": "all names in s"}, {"what": "its aliases"}]

    @given(st.lists(st.text(alphabet="ωψ", min_size=1), min_size=1, max_size=5))
    def test_no_name_is_served(self, names: list[str]) -> None:
        among = Among(source="the directory", measured_at="now", names=names)
        text = json.dumps(absent(what="x", among=among), ensure_ascii=False)
        assert not set(text) & set("ωψ")
        assert f"{len(names)} of them" in text

    @pytest.mark.parametrize(
        ("among", "mentions"),
        [
            ({"measured_at": "now"}, "among.source"),
            ({"source": "s"}, "among.measured_at"),
            ({"source": "s", "measured_at": " "}, "among.measured_at"),
            (
                {"source": "s", "measured_at": "now", "names": ["a"], "count": 2},
                "among.count is 2, but among.names has 1",
            ),
            ({"source": "s", "measured_at": "now", "names": "Ann"}, "among.names"),
            ({"source": "s", "measured_at": "now", "names": iter(["Ann"])}, "among.names"),
            ({"source": "s", "measured_at": "now", "count": True}, "among.count"),
            ({"source": "s", "measured_at": "now", "count": -1}, "among.count"),
            ({"source": "s", "measured_at": "now", "partial": 1}, "among.partial"),
            ({"source": "s", "measuredAt": "now"}, '"measuredAt"; write measured_at'),
            ("the directory", "among must be an Among"),
        ],
    )
    def test_a_fault_is_named_by_its_field(self, among: Any, mentions: str) -> None:
        assert mentions in refusal(among=among)

    def test_the_provenance_is_said_once(self) -> None:
        text = refusal(
            among=Among(source="s", measured_at="now"), provenance=Provenance(measured_at="then", source="t")
        )
        assert "provenance is said by among" in text
