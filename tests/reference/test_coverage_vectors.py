"""The reference's later vectors for absences and ledgers: item extras, advice, provenance, periods, served and proven.

A sentence of the reference is not a sentence of ours: of its texts only the facts are asked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from coatcheck.errors import DeclarationError
from coatcheck.results.absence import absent, try_instead_of, try_instead_tool_of
from coatcheck.results.answer import compose_answer
from coatcheck.results.coverage import coverage
from coatcheck.results.evidence import evidence_of
from coatcheck.results.notes import ANSWER_HEADING, PERIOD_CLAUSES
from coatcheck.results.period import least_held, verdict_of
from coatcheck.results.reading import Declared, Reading, read_result
from tests.reference._forms import load, untag

# Vectors that do not hold here, by id, each with the rule that parts from it.
PARTED = {
    "absenceEvidenceProjection_9_62/inside-ledger": "behaviour.md 7.4: superseded by the later rule, which we take",
    "period_later/read-at-wrong-spelling-camel": "Python's spelling for authors is the wire's: there is one, read_at",
}

# The author's spelling is Python's; everything that the reference names in camel case is named in snake case.
SPELLINGS = {
    "ageSeconds": "age_seconds",
    "cannotCover": "cannot_cover",
    "measuredAt": "measured_at",
    "notChecked": "not_checked",
    "readAt": "read_at",
    "sourceExportDate": "source_export_date",
    "tryInstead": "try_instead",
    "tryInsteadTool": "try_instead_tool",
}


def spelled(declared: Any, spelling: str = "camel") -> Any:
    """What an author writes for what the reference's author writes; what stands on the wire is the same everywhere."""
    if spelling == "camel" and isinstance(declared, dict):
        return {SPELLINGS.get(name, name): item for name, item in declared.items()}
    return declared


def absence(**parts: Any) -> dict[str, Any]:
    """An absence that was minted elsewhere."""
    return {"af_absent": True, "checked": [{"what": "a"}], **parts}


def read(value: Any) -> Reading:
    reading = read_result(value)
    assert reading is not None
    return reading


def check_fault(text: str, field: str) -> None:
    """A fault names the field: by its path, or as a name that the object around it does not have."""
    around, _, name = field.rpartition(".")
    assert field in text or f'{around} has no "{name}"' in text, text


def refusal(mint: Callable[..., Any], *args: Any, **declared: Any) -> str:
    with pytest.raises(DeclarationError) as refused:
        mint(*args, **declared)
    text = str(refused.value)
    assert text.startswith("refused: ")
    return text


def run_item_extras(vector: dict[str, Any]) -> None:
    item, expect = untag(vector["input"]["item"]), vector["expect"]
    section = SPELLINGS.get(vector["input"]["section"], vector["input"]["section"])
    foreign = read(absence(**{section: [item]}))
    [kept] = getattr(foreign.declared[0], section)
    for name in ("short", "kind"):
        if (holds := expect.get(f"{name}_kept")) is not None:
            assert (kept.get(name) == item[name]) == holds
            assert (foreign.faults == ()) == holds
    [served] = foreign.served[section]
    assert served == {name: said for name, said in item.items() if name == "what" or said is None}
    declared: dict[str, Any] = {"what": "x", "checked": ["a"], section: [{**item, "why": "w"}]}
    if False in expect.values():
        assert f"{section}[0]." in refusal(absent, **declared)
    else:
        [minted] = absent(**declared)[section]
        assert minted == {name: said for name, said in {**item, "why": "w"}.items() if said is not None}


def run_try_instead(vector: dict[str, Any]) -> None:
    field, value = SPELLINGS[vector["input"]["field"]], vector["input"]["value"]
    expect = vector["expect"]
    foreign = absence(**{field: value})
    if expect.get("refused"):
        assert field in refusal(absent, what="x", checked=["a"], **{field: value})
        assert try_instead_of(foreign) is None
        assert try_instead_tool_of(foreign) is None
        assert field in read(foreign).faults[0]
        return
    minted = absent(what="x", checked=["a"], **{field: value})
    assert minted.get(field) == expect["value"]
    for each in (minted, foreign):
        tool = try_instead_tool_of(each)
        said = try_instead_of(each) if field == "try_instead" else tool and {"tool": tool.tool, "why": tool.why}
        wanted = expect["value"]
        assert said == ({"why": None, **wanted} if isinstance(wanted, dict) else wanted)


def run_provenance(vector: dict[str, Any]) -> None:
    expect, value = vector["expect"], vector["input"]["value"]
    declared = spelled(value, vector["input"]["spelling"])
    foreign = read(absence(provenance=declared)).declared[0]
    if expect.get("refused"):
        parts = [SPELLINGS.get(part, part) for part in expect["field"].split(".")]
        field = expect["field"] if vector["input"]["spelling"] == "wire" else ".".join(parts)
        check_fault(refusal(absent, what="x", checked=["a"], provenance=declared), field)
        check_fault(read(absence(provenance=declared)).faults[0], field)
        assert foreign.provenance is None
        return
    minted = absent(what="x", checked=["a"], provenance=declared)
    if expect.get("declared") is False:
        assert "provenance" not in minted
        assert foreign.provenance is None
        return
    assert minted["provenance"] == declared
    assert read(minted).declared[0].provenance == foreign.provenance is not None


def run_period(vector: dict[str, Any]) -> None:
    expect = vector["expect"]
    period = spelled(vector["input"]["period"], vector["input"]["spelling"])
    mints: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = [
        (coverage, (1,), {}),
        (absent, (), {"what": "x", "checked": ["a"]}),
    ]
    foreign = read(absence(period=period, note="n"))
    if not expect["well_formed"]:
        for mint, args, declared in mints:
            check_fault(refusal(mint, *args, period=period, **declared), expect["field"])
        check_fault(foreign.faults[0], expect["field"])
        assert foreign.declared[0].period is None
        assert verdict_of(period) is None
        return
    for reading in (foreign, *(read(mint(*args, period=period, **declared)) for mint, args, declared in mints)):
        assert reading.verdict == reading.declared[0].verdict == expect["verdict"] == verdict_of(period)
        holder = reading.served.get("af_coverage", reading.served)
        assert holder["period"].get("verdict") == expect["served_word"]
        assert {**holder["period"], "verdict": None} == {**period, "verdict": None}


def run_least_held(vector: dict[str, Any]) -> None:
    assert least_held(vector["input"]["verdicts"]) == vector["expect"]["least"]


def run_served(vector: dict[str, Any]) -> None:
    value, expect = vector["input"]["value"], vector["expect"]
    before = json.dumps(value)
    reading = read_result(value)
    served = value if reading is None else reading.served
    assert json.dumps(value) == before
    assert (served is value) == expect["same_reference"]
    if served is value:
        return
    if expect["item_keys"] is not None:
        assert [list(item) for item in served["checked"]] == expect["item_keys"]
    assert served.get("period", {}).get("verdict") == expect["verdict_word"]
    gained = served.get("note", "").endswith(tuple(PERIOD_CLAUSES.values()))
    assert gained == expect["note_gained_clause"]
    assert '"short"' not in json.dumps(served)
    assert '"kind"' not in json.dumps(served)


def run_evidence(vector: dict[str, Any]) -> None:
    value, expect = vector["input"]["value"], vector["expect"]
    evidence = evidence_of(value)
    assert (evidence is not value) == expect["projected"]
    text = json.dumps(evidence)
    assert [word for word in expect.get("mentions", ()) if word not in text] == []
    if expect["projected"]:
        assert [word for word in expect["does_not_mention"] if word in text] == []


def run_compose_answer(vector: dict[str, Any]) -> None:
    answer, expect = vector["input"]["answer"], vector["expect"]
    declared = [
        Declared(row["kind"], None, tuple(row["checked"]), tuple(row["notChecked"]), tuple(row["cannotCover"]))
        for row in vector["input"]["declared"]
    ]
    composed = compose_answer(answer, declared)
    assert (composed is answer) == expect["unchanged"]
    if composed is answer:
        return
    before, heading, block = composed.partition(ANSWER_HEADING)
    assert heading
    assert (before == "") == expect["block_only"]
    assert before.endswith("\n\n---\n") == expect["has_rule_before_block"]
    assert before.startswith(answer.rstrip()) == expect["starts_with_trimmed_answer"]
    assert [section(part) for part in block.strip().split("\n\n")] == expect["sections"]


def section(part: str) -> dict[str, Any]:
    names = {"Checked:": "checked", "Not checked:": "notChecked", "Cannot be covered:": "cannotCover"}
    title, *lines = part.split("\n")
    folded = re.fullmatch(r"- and (\d+) more", lines[-1])
    shown = lines[:-1] if folded else lines
    return {
        "section": names[title],
        "shown": len(shown),
        "folded": int(folded[1]) if folded else 0,
        "first": shown[0].removeprefix("- "),
    }


RUNNERS: dict[str, Callable[[dict[str, Any]], None]] = {
    "itemExtras_later": run_item_extras,
    "tryInstead_later": run_try_instead,
    "provenance_later": run_provenance,
    "period_later": run_period,
    "leastHeld_later": run_least_held,
    "servedToModel_later": run_served,
    "absenceEvidenceProjection_later": run_evidence,
    "absenceEvidenceProjection_9_62": run_evidence,
    "composeAnswerWithCoverage": run_compose_answer,
}

ALL = [vector for name in RUNNERS for vector in load(name)]
RUN = [vector for vector in ALL if vector["id"] not in PARTED]


@pytest.mark.parametrize("vector", RUN, ids=[vector["id"] for vector in RUN])
def test_the_reference_vector_holds(vector: dict[str, Any]) -> None:
    RUNNERS[vector["fn"]](vector)


@pytest.mark.parametrize("identity", sorted(PARTED))
def test_a_vector_is_listed_only_where_it_really_does_not_hold(identity: str) -> None:
    [vector] = [vector for vector in ALL if vector["id"] == identity]
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        RUNNERS[vector["fn"]](vector)


def test_every_vector_is_run_or_listed_and_every_file_has_some() -> None:
    identities = [vector["id"] for vector in ALL]
    assert len(identities) == len(set(identities))
    assert set(identities) == {vector["id"] for vector in RUN} | set(PARTED)
    assert {vector["fn"] for vector in ALL} == set(RUNNERS)
