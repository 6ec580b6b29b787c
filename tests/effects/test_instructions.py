from __future__ import annotations

from typing import Any

import pytest

from coatcheck.effects.graph import SkillGraph
from coatcheck.effects.instructions import Instruction, InstructionCatalog
from coatcheck.effects.turn import check_declarations
from coatcheck.errors import ConfigurationError


def test_an_instruction_is_found_by_its_exact_id_and_by_nothing_else() -> None:
    catalog = InstructionCatalog([Instruction("refund-policy", "Refund within 14 days.")])
    assert catalog.get("refund-policy") == Instruction("refund-policy", "Refund within 14 days.")
    assert catalog.get("Refund-policy") is catalog.get("") is None
    assert [instruction.id for instruction in catalog] == ["refund-policy"]
    assert len(catalog) == 1
    assert "refund-policy" in repr(catalog)


WRONG: dict[str, tuple[Any, str]] = {
    "no list": ({"a": "text"}, r"^InstructionCatalog takes a list of Instruction, but it is of type dict"),
    "no instruction": (["a"], r"^InstructionCatalog\[0\] must be an Instruction"),
    "a blank id": ([Instruction(" ", "text")], r"^InstructionCatalog\[0\]\.id must be an id"),
    "a blank text": ([Instruction("a", "\n")], r"^InstructionCatalog\[0\]\.text must be text that is not blank"),
    "text that is none": ([Instruction("a", b"text")], r"^InstructionCatalog\[0\]\.text .*bytes"),  # type: ignore[arg-type]  # what is tested
    "text that no JSON carries": ([Instruction("a", "\ud800")], r"^InstructionCatalog\[0\]\.text holds half"),
    "an id twice": (
        [Instruction("a", "one"), Instruction("a", "two")],
        r'^InstructionCatalog\[1\]\.id: "a" is registered already',
    ),
    "a skill that is no id": ([Instruction("a", "text", skill="")], r"^InstructionCatalog\[0\]\.skill must be an id"),
    "pull that is no bool": (
        [Instruction("a", "text", pull_only=1)],  # type: ignore[arg-type]  # what is tested
        r"^InstructionCatalog\[0\]\.pull_only must be",
    ),
    "pushed and pulled": (
        [Instruction("a", "text", skill="s", pull_only=True)],
        r"^InstructionCatalog\[0\]: .*skill= or pull_only=True",
    ),
}


@pytest.mark.parametrize("slip", WRONG)
def test_a_catalog_that_cannot_work_is_refused_with_the_path_of_what_is_wrong(slip: str) -> None:
    given, problem = WRONG[slip]
    with pytest.raises(ConfigurationError, match=problem):
        InstructionCatalog(given)


GRAPH = SkillGraph(["a"], entries=["a"])
OF_A = InstructionCatalog([Instruction("i", "text"), Instruction("j", "text", skill="a")])


def test_declarations_that_fit_together_are_taken() -> None:
    check_declarations(None, None, "guard")
    check_declarations(GRAPH, None, "rails")
    check_declarations(GRAPH, OF_A, "assist")
    check_declarations(None, InstructionCatalog([Instruction("i", "text")]), "guard")


@pytest.mark.parametrize(
    ("graph", "catalog", "posture", "problem"),
    [
        ({}, None, "guard", r"^Boundary\(graph=\.\.\.\) must be a SkillGraph, but it is of type dict"),
        (None, [], "guard", r"^Boundary\(instructions=\.\.\.\) must be an InstructionCatalog"),
        (None, None, "strict", r'^Boundary\(posture=\.\.\.\) must be one of assist, guard, rails, not "strict"'),
        (None, None, None, r"^Boundary\(posture=\.\.\.\).*it is None"),
        (None, OF_A, "guard", r'InstructionCatalog\[1\]\.skill is "a", which is no skill of Boundary\(graph=\.\.\.\)'),
        (SkillGraph(["b"], entries=["b"]), OF_A, "guard", r'InstructionCatalog\[1\]\.skill is "a"'),
    ],
)
def test_declarations_that_do_not_fit_are_refused_by_the_setting(
    graph: Any, catalog: Any, posture: Any, problem: str
) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        check_declarations(graph, catalog, posture)
