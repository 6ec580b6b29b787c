"""Scopes as text, and what holds where nothing is said."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import coatcheck as cc
from coatcheck.artifacts.directory import DirectoryStore
from coatcheck.cli.settings import (
    DEFAULT_LIMITS,
    chosen_scope,
    chosen_store,
    default_scope,
    default_store_url,
    format_scope,
    parse_scope,
)

FIELDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
SCOPES = st.builds(
    cc.Scope, tenant=st.none() | FIELDS, principal=st.none() | FIELDS, conversation=FIELDS | st.just("a/b%2Fc")
)


@given(SCOPES)
def test_every_scope_has_a_text_that_means_it_again(scope: cc.Scope) -> None:
    assert parse_scope(format_scope(scope)) == scope


@given(SCOPES)
def test_the_text_of_a_scope_can_be_printed_whatever_its_fields_hold(scope: cc.Scope) -> None:
    assert format_scope(scope).isprintable()


@pytest.mark.parametrize(
    ("text", "scope"),
    [
        ("acme/dana/c-42", cc.Scope(tenant="acme", principal="dana", conversation="c-42")),
        ("dana/c-42", cc.Scope(principal="dana", conversation="c-42")),
        ("c-42", cc.Scope(conversation="c-42")),
        ("//c-42", cc.Scope(conversation="c-42")),
        ("/dana/c-42", cc.Scope(principal="dana", conversation="c-42")),
        ("acme//c-42", cc.Scope(tenant="acme", conversation="c-42")),
        ("a%2Fb/50%25/ö %C3%B6", cc.Scope(tenant="a/b", principal="50%", conversation="ö ö")),
        (" ", cc.Scope(conversation=" ")),
    ],
)
def test_a_scope_is_tenant_principal_and_conversation_and_what_is_left_out_is_absent(
    text: str, scope: cc.Scope
) -> None:
    assert parse_scope(text) == scope


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no conversation"),
        ("secret/", "no conversation"),
        ("//", "no conversation"),
        ("a/b/c/secret", "more than two slashes"),
        ("secret%/x", "principal holds a %"),
        ("x/secret%zz", "conversation holds a %"),
        ("a/b/secret%ff", "conversation is not UTF-8"),
        ("secret\udcff", "conversation is not UTF-8"),
    ],
)
def test_what_is_no_scope_is_refused_without_saying_what_it_held(text: str, said: str) -> None:
    with pytest.raises(cc.ConfigurationError, match=said) as caught:
        parse_scope(text)
    assert "secret" not in str(caught.value)


def test_by_default_the_scope_is_the_user_in_the_shell() -> None:
    scope = default_scope()
    assert (scope.tenant, scope.conversation) == (None, "shell")
    assert scope.principal
    assert chosen_scope(None) == scope


def test_a_user_without_a_name_has_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_000)
    assert default_scope().principal == "uid-4000000000"


def test_by_default_the_store_is_a_directory_under_the_data_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/dana")
    assert (
        default_store_url({"XDG_DATA_HOME": "/data dir"}, "linux")
        == f"file:///data%20dir/coatcheck/store{DEFAULT_LIMITS}"
    )
    assert default_store_url({}, "linux") == f"file:///home/dana/.local/share/coatcheck/store{DEFAULT_LIMITS}"
    assert default_store_url({"XDG_DATA_HOME": "relative"}, "linux").startswith("file:///home/dana/.local")
    assert (
        default_store_url({}, "darwin")
        == f"file:///home/dana/Library/Application%20Support/coatcheck/store{DEFAULT_LIMITS}"
    )
    assert isinstance(chosen_store(None), DirectoryStore)


def test_without_a_home_there_is_no_default_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "nowhere")
    with pytest.raises(cc.ConfigurationError, match="COATCHECK_STORE"):
        default_store_url({}, "linux")


def test_a_store_that_ends_with_the_process_is_refused() -> None:
    with pytest.raises(cc.ConfigurationError, match="memory: ends with this process"):
        chosen_store("memory:")
