"""Scopes and their key segments (law: `design.md` section 5, and parting 13 of section 3)."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from coatcheck.errors import ConfigurationError
from coatcheck.scope import MAX_SEGMENT_CHARS, Scope, scope_segments
from coatcheck.testing.strategies import fields, scopes

LONG = "a" * 81


def segment(field: str | None) -> str:
    return scope_segments(Scope(tenant=field, conversation="c"))[0]


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        (None, "_"),
        ("acme", "acme"),
        ("a-1", "a-1"),
        ("_", "_5f"),
        ("ACME", "_41_43_4d_45"),
        (".", "_2e"),
        ("..", "_2e_2e"),
        ("a/b", "a_2fb"),
        ("a%2Fb", "a_252_46b"),
        ("\u00fcn", "_c3_bcn"),
        ("\x00", "_00"),
        ("a" * 80, "a" * 80),
    ],
)
def test_safe_characters_stand_for_themselves_and_all_others_become_hex(field: str | None, expected: str) -> None:
    assert segment(field) == expected


def test_a_long_field_becomes_a_prefix_and_the_digest_of_all_of_it() -> None:
    assert segment(LONG) == "a" * 14 + "__" + "8c48280d57fb88f161adf34d9f597d93ca32b7edfcd23b2afe64c3789b3f7855"


def test_a_prefix_never_ends_within_an_escape() -> None:
    assert segment("aA" * 50).startswith("a_41a_41a_41a__")


@given(scopes())
def test_segments_are_short_and_safe_where_case_is_folded(scope: Scope) -> None:
    for each in scope_segments(scope):
        assert re.fullmatch("[a-z0-9_-]{1,80}", each)


@given(st.none() | fields(), st.none() | fields())
@example("_", None)
@example("_2f", "/")
@example("A", "a")
@example("A", "_41")
@example(LONG, LONG[:-1])
@example(LONG, LONG + "a")
@example(LONG, segment(LONG))
@example("\u00e9", "e\u0301")
@example("a" * 14 + "__" + "0" * 64, LONG)
def test_two_fields_never_share_a_segment(one: str | None, other: str | None) -> None:
    assert (segment(one) == segment(other)) == (one == other)


@given(fields())
def test_a_field_that_fits_can_be_read_back(field: str) -> None:
    plain = segment(field)
    if "__" not in plain:
        data = re.sub(rb"_([0-9a-f]{2})", lambda match: bytes.fromhex(match[1].decode()), plain.encode())
        assert data.decode() == field


@given(fields(), fields())
def test_a_field_never_leaves_its_own_place(one: str, other: str) -> None:
    assert len(
        {scope_segments(Scope(tenant=one, conversation=other)), scope_segments(Scope(tenant=other, conversation=one))}
    ) == (1 if one == other else 2)


def test_the_longest_segment_is_exactly_as_long_as_it_may_be() -> None:
    assert len(segment(LONG)) == MAX_SEGMENT_CHARS


@pytest.mark.parametrize("field", ["tenant", "principal", "conversation"])
@pytest.mark.parametrize("value", ["", 7, b"acme", ["acme"], "secret\ud800"])
def test_a_field_that_no_scope_can_have_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=rf"^Scope\.{field} ") as refusal:
        Scope(**{"conversation": "c", field: value})
    assert "secret" not in str(refusal.value)


def test_the_conversation_is_never_absent() -> None:
    with pytest.raises(ConfigurationError, match="conversation must be text"):
        Scope(conversation=None)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        Scope(tenant="acme")  # type: ignore[call-arg]


def test_a_scope_is_compared_and_hashed_by_its_fields_and_never_changes() -> None:
    scope = Scope(tenant="acme", conversation="c")
    assert scope == Scope(conversation="c", tenant="acme")
    assert hash(scope) == hash(Scope(conversation="c", tenant="acme"))
    assert scope != Scope(principal="acme", conversation="c")
    with pytest.raises(AttributeError):
        scope.tenant = "other"  # type: ignore[misc]


def test_a_scope_round_trips_through_bytes_and_is_judged_on_the_way_back() -> None:
    scope = Scope(tenant="acme", principal="d\u00e4na", conversation="c")
    assert msgspec.json.decode(msgspec.json.encode(scope), type=Scope) == scope
    with pytest.raises(msgspec.ValidationError, match="must not be empty"):
        msgspec.json.decode(b'{"tenant": "", "conversation": "c"}', type=Scope)
