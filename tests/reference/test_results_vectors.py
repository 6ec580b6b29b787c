"""The reference's vectors for envelopes, absences and ledgers, against the rooms that own those shapes.

A sentence of the reference is not a sentence of ours: of its texts only the facts are asked (`mentions`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest

from coatcheck.errors import DeclarationError
from coatcheck.results.absence import ABSENCE_NOTE, absent, read_absence
from coatcheck.results.coverage import COVERAGE_NOTE, coverage, read_coverage
from coatcheck.results.envelope import explain_near_miss, read_envelope
from coatcheck.results.reading import Declared, read_result
from coatcheck.results.search import finish
from tests.reference._forms import UNDEFINED, load, untag

# Vectors that do not hold here, by id, each with the rule that parts from it.
PARTED = {
    "absent/item-extra-keys-dropped": "behaviour.md 7.3: unknown item keys are refused, not dropped",
}

# The author's spelling is Python's; everything that the reference names in camel case is named in snake case.
SPELLINGS = {
    "notChecked": "not_checked",
    "cannotCover": "cannot_cover",
    "tryInstead": "try_instead",
}


def spelled(declaration: Mapping[str, Any]) -> dict[str, Any]:
    return {SPELLINGS.get(name, name): value for name, value in declaration.items() if value is not UNDEFINED}


def mentioned(expect: Mapping[str, Any]) -> list[str]:
    tokens = []
    for token in expect["mentions"]:
        for theirs, ours in SPELLINGS.items():
            token = token.replace(theirs, ours)
        tokens.append(token)
    return tokens


def minted(mint: Callable[..., dict[str, Any]], declaration: Any, *args: Any) -> dict[str, Any]:
    """Mint from a declaration; what is no mapping at all can only be given in a position that does not exist."""
    if isinstance(declaration, dict):
        return mint(*args, **spelled(declaration))
    return mint(*args, declaration)


def check_refusal(mint: Callable[..., dict[str, Any]], vector: dict[str, Any], *args: Any) -> None:
    declaration = untag(vector["input"]["declaration"])
    if not isinstance(declaration, dict):
        with pytest.raises(TypeError, match="positional argument"):
            minted(mint, declaration, *args)
        return
    with pytest.raises(DeclarationError) as refusal:
        minted(mint, declaration, *args)
    text = str(refusal.value)
    assert text.startswith("refused: ")
    assert [token for token in mentioned(vector["expect"]) if token not in text] == []


def run_read_envelope(vector: dict[str, Any]) -> None:
    value, expect = untag(vector["input"]["value"]), vector["expect"]
    before = repr(value)
    envelope = read_envelope(value)
    assert repr(value) == before
    assert (envelope is not None) == expect["recognized"]
    if envelope is None:
        return
    assert envelope.status == expect["status"]
    assert (envelope.status is not None) == expect["has_status"]
    assert envelope.content is value["content"]
    assert list(msgspec.to_builtins(envelope.effects)) == untag(expect["effects"])
    assert [{"kind": fault.kind, "position": fault.position} for fault in envelope.malformed] == expect["malformed"]
    for fault in envelope.malformed:
        assert f"effect {fault.position} " in fault.reason


def run_near_miss(vector: dict[str, Any]) -> None:
    sentence = explain_near_miss(untag(vector["input"]["value"]))
    assert (sentence is not None) == vector["expect"]["near_miss"]
    for token in vector["expect"].get("mentions", ()):
        assert token in str(sentence)


def absent_for_the_wire(**declaration: Any) -> dict[str, Any]:
    """An absence that says nowhere where it looked is refused where it would go on, outside of a declared search."""
    absence: dict[str, Any] = finish(absent(**declaration), None, {})
    return absence


def run_absent(vector: dict[str, Any]) -> None:
    expect = vector["expect"]
    if not expect["minted"]:
        check_refusal(absent_for_the_wire, vector)
        return
    absence = minted(absent, untag(vector["input"]["declaration"]))
    assert list(absence) == expect["keys"]
    assert absence["note"] == ABSENCE_NOTE
    assert read_absence(absence) is absence
    for name in {"outcome", "retry_returns_the_same", "looked_for", "checked", "not_checked", "cannot_cover"}:
        assert absence.get(name) == expect.get(name)
    assert absence.get("try_instead") == expect.get("try_instead")


def run_read_absence(vector: dict[str, Any]) -> None:
    value, expect = untag(vector["input"]["value"]), vector["expect"]
    absence = read_absence(value)
    assert absence is (value if expect["recognized"] else None)
    if "counts" in expect:
        reading = read_result(value)
        assert reading is not None
        assert counts(reading.declared[0]) == expect["counts"]


def run_coverage(vector: dict[str, Any]) -> None:
    content, expect = untag(vector["input"]["content"]), vector["expect"]
    if not expect["minted"]:
        check_refusal(coverage, vector, content)
        return
    ledger = minted(coverage, untag(vector["input"]["declaration"]), content)
    bounds = ledger["af_coverage"]
    assert list(ledger) == expect["keys"]
    assert list(bounds) == expect["marker_keys"]
    assert bounds["note"] == COVERAGE_NOTE
    assert ledger["result"] is content
    for name in ("checked", "not_checked", "cannot_cover"):
        assert bounds.get(name) == expect.get(name)


def run_read_coverage(vector: dict[str, Any]) -> None:
    value = untag(vector["input"]["value"])
    assert read_coverage(value) is (value if vector["expect"]["recognized"] else None)


def run_read_result(vector: dict[str, Any]) -> None:
    expect = vector["expect"]
    reading = read_result(untag(vector["input"]["value"]))
    assert (reading is not None) == expect["declares"]
    if reading is None:
        return
    assert reading.status == expect["status"]
    assert [
        {"kind": fact.kind, "counts": counts(fact), "looked_for": fact.looked_for} for fact in reading.declared
    ] == expect["declared"]


def counts(fact: Declared) -> list[int]:
    return [len(fact.checked), len(fact.not_checked), len(fact.cannot_cover)]


RUNNERS: dict[str, Callable[[dict[str, Any]], None]] = {
    "readToolResultEnvelope": run_read_envelope,
    "explainStatusOnlyNearMiss": run_near_miss,
    "absent": run_absent,
    "readAbsence": run_read_absence,
    "coverage": run_coverage,
    "readCoverageLedger": run_read_coverage,
    "readCoverageResult": run_read_result,
}

ALL = [vector for name in RUNNERS for vector in load(name)]
RUN = [vector for vector in ALL if vector["id"] not in PARTED]


@pytest.mark.parametrize("vector", RUN, ids=[vector["id"] for vector in RUN])
def test_the_reference_vector_holds(vector: dict[str, Any]) -> None:
    RUNNERS[vector["fn"]](vector)


@pytest.mark.parametrize("identity", sorted(PARTED))
def test_a_vector_is_listed_only_where_it_really_does_not_hold(identity: str) -> None:
    [vector] = [vector for vector in ALL if vector["id"] == identity]
    with pytest.raises((AssertionError, DeclarationError)):
        RUNNERS[vector["fn"]](vector)


def test_every_vector_is_run_or_listed_and_every_file_has_some() -> None:
    identities = [vector["id"] for vector in ALL]
    assert len(identities) == len(set(identities))
    assert set(identities) == {vector["id"] for vector in RUN} | set(PARTED)
    assert {vector["fn"] for vector in ALL} == set(RUNNERS)
