"""The reference's vectors about the dials and the pure decisions of the steps, and about rendering and tickets.

Of the reference's sentences only the facts are asked (`mentions`), as words of their own: 10 is not found in 510. What
the reference calls a setting is called otherwise here, so a refusal is asked to name ours.

A vector that does not hold as it is stands in `PARTED`, by id, with the numbers of the partings in `design.md`
section 3, or with the sentence that is against it; its test asserts our own value. Every other holds as it is.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest

from coatcheck import (
    Boundary,
    Ceiling,
    ConfigurationError,
    DirectoryStore,
    Inline,
    MemoryStore,
    Placement,
    RenderingError,
    Scope,
    TooLarge,
    Truncated,
    Truncation,
    is_ticket,
    render,
    tool,
)
from coatcheck.artifacts.ticket import make_ticket, placed_kind
from coatcheck.outcome import Marker
from coatcheck.results.rendering import TEXT, render_text
from coatcheck.steps.ceiling import refuse
from coatcheck.steps.truncation import cut
from tests.reference._forms import UNDEFINED, load, untag

FILES = (
    "applyResultCeiling",
    "assertArtifactPlacement",
    "assertMaxToolResultChars",
    "assertResultCeiling",
    "assertRetention",
    "capToolResult",
    "isPlacedToolResult",
    "measuredText",
    "placedResultKind",
    "placedToolResult",
)
VECTORS = {vector["id"]: vector for name in FILES for vector in load(name)}

AT_THE_DIAL = "a dial refuses what it cannot honour where it is built, so no function meets it"
PARTED: dict[str, tuple[int, ...] | str] = {
    "applyResultCeiling/narrow-empty-list": AT_THE_DIAL,
    "assertRetention/fraction-count": (18,),
    "capToolResult/astral-under-by-codepoints": (11,),
    "capToolResult/negative-cap-function-level": AT_THE_DIAL,
    "capToolResult/zero-cap-function-level": AT_THE_DIAL,
    "measuredText/lone-surrogate": (17,),
}

tried: set[str] = set()


def vectors(*names: str) -> pytest.MarkDecorator:
    """One test a vector of some files."""
    ids = [vector["id"] for name in names for vector in load(name)]
    tried.update(ids)
    return pytest.mark.parametrize("vector", [VECTORS[each] for each in ids], ids=ids)


def test_every_vector_runs_and_the_listed_ones_are_among_them() -> None:
    assert tried == VECTORS.keys()
    assert sum(len(load(name)) for name in FILES) == len(VECTORS)
    assert {vector["fn"] for vector in VECTORS.values()} == set(FILES)
    assert PARTED.keys() <= tried


def missing(text: str, mentions: list[str]) -> list[str]:
    """The facts that a sentence does not carry as words of their own."""
    return [token for token in mentions if not re.search(rf"(?<!\w){re.escape(token)}(?!\w)", text)]


# Dials


def check_dial(vector: dict[str, Any], refusal: ConfigurationError | None, setting: str) -> None:
    """A dial is accepted or refused as in the reference, but where we part, and the refusal names our setting."""
    accepted = vector["expect"]["accepted"] and vector["id"] not in PARTED
    if accepted:
        assert refusal is None
    else:
        assert refusal is not None
        assert str(refusal).startswith(setting)


def refusal_of(make: Any, **dials: Any) -> ConfigurationError | None:
    try:
        make(**dials)
    except ConfigurationError as error:
        return error
    return None


@vectors("assertResultCeiling")
def test_a_ceiling_is_judged_where_it_is_built(vector: dict[str, Any]) -> None:
    given = untag(vector["input"]["ceiling"])
    if given is UNDEFINED:
        assert tool(look_up).ceiling is None
        return
    ours = {"maxChars": "max_chars", "narrowBy": "narrow_by"}
    refusal = refusal_of(Ceiling, **{ours[name]: value for name, value in given.items()})
    [setting] = [name for name in ours if name in vector["expect"].get("mentions", ["maxChars"])]
    check_dial(vector, refusal, f"Ceiling.{ours[setting]}")


@vectors("assertArtifactPlacement")
def test_a_placement_is_judged_where_it_is_built(vector: dict[str, Any]) -> None:
    given = untag(vector["input"]["placement"])
    if given is UNDEFINED:
        assert "placement" not in Boundary([look_up], store=MemoryStore()).chain
        return
    refusal = refusal_of(Placement, max_inline_chars=given["maxInlineChars"])
    check_dial(vector, refusal, "Placement.max_inline_chars")


@vectors("assertMaxToolResultChars")
def test_a_truncation_is_judged_where_it_is_built(vector: dict[str, Any]) -> None:
    given = untag(vector["input"]["value"])
    if given is UNDEFINED:
        assert "truncation" not in Boundary([look_up]).chain
        return
    check_dial(vector, refusal_of(Truncation, max_chars=given), "Truncation.max_chars")


@pytest.mark.parametrize("store", [MemoryStore, lambda **dials: DirectoryStore("artifacts", **dials)])
@vectors("assertRetention")
def test_a_budget_is_judged_where_its_store_is_built(store: Any, vector: dict[str, Any]) -> None:
    given = untag(vector["input"]["retention"])
    ours = {"maxBytesPerScope": "max_bytes", "maxCountPerScope": "max_count"}
    dials = {} if given is UNDEFINED else {ours[name]: value for name, value in given.items()}
    check_dial(vector, refusal_of(store, **dials), next(iter(dials), ""))


def look_up() -> str:
    return "found"


# Rendering and measuring


@vectors("measuredText")
def test_a_value_is_rendered_and_measured_as_in_the_reference(vector: dict[str, Any]) -> None:
    value, expect = untag(vector["input"]["value"]), vector["expect"]
    if vector["id"] in PARTED:
        with pytest.raises(RenderingError, match=r"^\$: text with a lone surrogate") as refusal:
            render(value)
        assert refusal.value.path == "$"
        return
    rendered = render(value)
    assert rendered.text == expect["text"]
    assert rendered.size == expect["len_codepoints"]
    assert rendered.data == expect["text"].encode()
    assert len(rendered.data) == expect["len_utf8"]


@vectors("measuredText")
def test_text_is_measured_as_it_is(vector: dict[str, Any]) -> None:
    text = vector["expect"]["text"]
    rendered = render_text(text)
    assert (rendered.text, rendered.size, rendered.media_type) == (text, vector["expect"]["len_codepoints"], TEXT)
    assert len(rendered.data) == vector["expect"]["len_utf8"]


# The ceiling


@vectors("applyResultCeiling")
def test_a_ceiling_refuses_what_the_reference_refuses(vector: dict[str, Any]) -> None:
    given, expect = vector["input"], vector["expect"]
    size = render(untag(given["value"])).size
    assert size == expect.get("size_codepoints", expect["size_utf16"])
    ceiling = ceiling_of(vector)
    refusal = None if ceiling is None else refuse(given["tool_name"], size, ceiling)
    assert (refusal is not None) == expect["refused"]
    assert missing(refusal or "", expect.get("mentions", [])) == []


def ceiling_of(vector: dict[str, Any]) -> Ceiling | None:
    given = vector["input"]["ceiling"]
    if given is None:
        return None
    if "narrowBy" not in given:
        return Ceiling(given["maxChars"])
    if vector["id"] in PARTED:
        with pytest.raises(ConfigurationError, match=r"^Ceiling\.narrow_by is an empty list"):
            Ceiling(given["maxChars"], given["narrowBy"])
        return Ceiling(given["maxChars"])
    return Ceiling(given["maxChars"], given["narrowBy"])


# The last net


def cut_by(vector: dict[str, Any]) -> Marker | None:
    """What the reference's vector cuts, cut by ours."""
    given = vector["input"]
    rendered = render(untag(given["value"]))
    assert rendered.size == vector["expect"]["size_codepoints"]
    return cut(given["tool_name"], rendered, given["max_chars"])


def check_marker(marker: Marker, text: str, vector: dict[str, Any]) -> None:
    """The laws behind the reference's figures, which depend on the length of its own sentence."""
    limit = vector["input"]["max_chars"]
    wire = json.loads(marker.to_json())
    assert list(wire) == ["truncated", "reason", *(["head"] if marker.head else [])]
    assert wire["truncated"] is True
    assert wire["reason"] == marker.reason
    assert missing(marker.reason, vector["expect"]["mentions"]) == []
    head = marker.head or ""
    assert wire.get("head", "") == head
    assert text.startswith(head)
    if head:
        assert len(marker.to_json()) <= limit
    longer = msgspec.structs.replace(marker, head=text[: len(head) + 1])
    assert len(longer.to_json()) > limit, "the limit affords a longer head"


@vectors("capToolResult")
def test_the_net_cuts_what_the_reference_cuts(vector: dict[str, Any]) -> None:
    if PARTED.get(vector["id"]) == AT_THE_DIAL:
        with pytest.raises(ConfigurationError, match=r"^Truncation\.max_chars must be at least 1"):
            Truncation(vector["input"]["max_chars"])
        return
    marker = cut_by(vector)
    assert (marker is not None) == (vector["expect"]["truncated"] and vector["id"] not in PARTED)
    if marker is not None:
        check_marker(marker, render(untag(vector["input"]["value"])).text, vector)


# Tickets


@vectors("placedResultKind")
def test_a_placed_result_has_the_kind_that_the_reference_gives_it(vector: dict[str, Any]) -> None:
    given = vector["input"]
    assert placed_kind(given["tool_name"], given["declared"]) == vector["expect"]["kind"]


@vectors("placedToolResult")
def test_a_ticket_says_what_the_reference_says(vector: dict[str, Any]) -> None:
    given, expect = vector["input"], vector["expect"]
    ticket = make_ticket(
        tool=given["tool_name"],
        ref=given["meta"]["ref"],
        kind=given["meta"]["kind"],
        media_type=given["meta"]["mediaType"],
        size=given["size_chars"],
        bytes=given["meta"]["bytes"],
        limit=given["max_inline_chars"],
    )
    wire = json.loads(ticket.to_json())
    assert list(wire) == expect["keys"]
    assert wire["placed"] is expect["placed"]
    assert (wire["ref"], wire["kind"], wire["bytes"]) == (expect["ref"], expect["kind"], expect["bytes"])
    assert wire["mediaType"] == expect["media_type"]
    assert missing(wire["reason"], expect["reason"]["mentions"]) == []
    assert is_ticket(wire)


@vectors("isPlacedToolResult")
def test_a_ticket_is_told_by_its_form(vector: dict[str, Any]) -> None:
    assert is_ticket(vector["input"]["value"]) == vector["expect"]["placed"]


# The same through a boundary: a step does what its decision says


@pytest.mark.anyio
@vectors("applyResultCeiling")
async def test_the_boundary_refuses_what_the_ceiling_decided(vector: dict[str, Any]) -> None:
    value = untag(vector["input"]["value"])
    name, ceiling = vector["input"]["tool_name"], ceiling_of(vector)

    async def returns() -> Any:
        return value

    boundary = Boundary([tool(name=name, ceiling=ceiling)(returns)])
    assert boundary.chain == (() if ceiling is None else ("ceiling",))
    outcome = await boundary.session(Scope(conversation="conv-1")).call(name)
    if vector["expect"]["refused"]:
        assert isinstance(outcome, TooLarge)
        assert ceiling is not None
        assert outcome.text == refuse(name, outcome.size, ceiling)
        assert (outcome.size, outcome.max_chars) == (vector["expect"]["size_codepoints"], ceiling.max_chars)
        assert (outcome.status, outcome.error, outcome.executed) == ("invalid", False, True)
    else:
        assert isinstance(outcome, Inline)
        assert outcome.value is value


CUT = [vector for vector in load("capToolResult") if PARTED.get(vector["id"]) != AT_THE_DIAL]


@pytest.mark.anyio
@pytest.mark.parametrize("vector", CUT, ids=[vector["id"] for vector in CUT])
async def test_the_boundary_cuts_what_the_net_decided_and_hands_on_the_rest_by_reference(
    vector: dict[str, Any],
) -> None:
    value, name = untag(vector["input"]["value"]), vector["input"]["tool_name"]

    async def returns() -> Any:
        return value

    boundary = Boundary([tool(name=name)(returns)], truncation=Truncation(vector["input"]["max_chars"]))
    outcome = await boundary.session(Scope(conversation="conv-1")).call(name)
    marker = cut_by(vector)
    if marker is None:
        assert isinstance(outcome, Inline)
        assert outcome.value is value
        assert outcome.cut is False
    else:
        assert isinstance(outcome, Truncated)
        assert outcome.marker == marker
        assert outcome.text == marker.to_json()
        assert outcome.cut is True
    assert (outcome.status, outcome.error) == (None, False)


# What is listed really does not hold


def test_a_vector_is_listed_only_where_the_reference_s_outcome_is_not_ours() -> None:
    reference = {each: VECTORS[each]["expect"] for each in PARTED}
    assert reference["applyResultCeiling/narrow-empty-list"]["refused"]  # there such a ceiling is a ceiling
    assert reference["assertRetention/fraction-count"]["accepted"]
    assert reference["capToolResult/astral-under-by-codepoints"]["truncated"]
    assert not reference["capToolResult/negative-cap-function-level"]["truncated"]
    assert not reference["capToolResult/zero-cap-function-level"]["truncated"]
    assert "\\ud83d" in reference["measuredText/lone-surrogate"]["text"]
