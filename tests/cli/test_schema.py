"""``coatcheck schema``: what is described is what is written."""

from __future__ import annotations

import json
from typing import Any, get_args

import msgspec
import pytest

import coatcheck as cc
from coatcheck.cli.schema import make_schema
from tests.cli._program import Program

DRAFT = "https://json-schema.org/draft/2020-12/schema"


def refs_in(part: Any) -> set[str]:
    if isinstance(part, dict):
        return {part["$ref"]} if "$ref" in part else set().union(*map(refs_in, part.values()))
    return set().union(*map(refs_in, part)) if isinstance(part, list) else set()


def test_one_document_describes_all_events_outcomes_decisions_and_tickets(program: Program) -> None:
    result = program("schema")
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert document["$schema"] == DRAFT
    for union in (cc.AnyEvent, cc.AnyOutcome):
        assert {cls.__name__ for cls in get_args(union)} <= document["$defs"].keys()
    assert {"Decision", "Ticket", "Event", "Outcome", "Report", "Verdict", "Usage"} <= document["$defs"].keys()


def test_no_schema_refers_to_what_is_not_in_it() -> None:
    whole = make_schema()
    for document in (whole, *(make_schema(name) for name in whole["$defs"])):
        assert refs_in(document) <= {f"#/$defs/{name}" for name in document["$defs"]}


def test_one_type_comes_with_what_it_is_made_of_and_nothing_else(program: Program) -> None:
    document = json.loads(program("schema", "Ticket").stdout)
    assert document["$ref"] == "#/$defs/Ticket"
    assert list(document["$defs"]) == ["Ticket"]
    assert "mediaType" in document["$defs"]["Ticket"]["properties"]


def test_an_unknown_type_is_refused_with_the_names_of_all(program: Program) -> None:
    result = program("schema", "Tickets")
    assert result.exit_code == 2
    assert "Ticket" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("cls", get_args(cc.AnyOutcome))
def test_the_properties_of_an_outcome_are_its_fields(cls: type[cc.Outcome]) -> None:
    definition = make_schema(cls.__name__)["$defs"][cls.__name__]
    assert list(definition["properties"]) == [field.encode_name for field in msgspec.structs.fields(cls)]
    assert definition["description"].startswith((cls.__doc__ or "").split("\n")[0][:40])
