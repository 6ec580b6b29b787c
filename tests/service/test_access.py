"""Who is let in: known tokens, signed ones, and nobody else."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

import coatcheck as cc
from coatcheck.errors import ConfigurationError
from coatcheck.service import OnLoopback, SignedTokens, Tokens
from tests.service._door import ANN, BOB, TOKENS

SECRET = "0123456789abcdef0123456789abcdef"


def request(*headers: tuple[str, str], client: str | None = "127.0.0.1") -> Request:
    raw = [(name.lower().encode(), value.encode("latin-1", "replace")) for name, value in headers]
    peer = None if client is None else (client, 1)
    return Request({"type": "http", "method": "GET", "path": "/artifacts", "headers": raw, "client": peer})


def bearer(token: str, scheme: str = "Bearer") -> Request:
    return request(("Authorization", f"{scheme} {token}"))


# --- tokens that are known ---


def test_a_known_token_is_its_scope() -> None:
    tokens = Tokens(TOKENS)
    for token, scope in TOKENS.items():
        assert tokens(bearer(token)) == scope
        assert tokens(bearer(token, "bEARER")) == scope


@given(st.sampled_from([*TOKENS]), st.integers(0, 25), st.characters())
def test_a_token_that_is_another_in_one_character_is_nobodys(token: str, at: int, char: str) -> None:
    other = token[:at] + char + token[at + 1 :]
    assert Tokens(TOKENS)(bearer(other)) == TOKENS.get(other.strip(" "))


@pytest.mark.parametrize(
    "token", ["", "short", "with space in the middle", "ümlaut-ümlaut-ümlaut", "x" * 10_000, "=" * 20, 7]
)
def test_a_token_that_cannot_be_one_is_refused_and_not_quoted(token: Any) -> None:
    with pytest.raises(ConfigurationError, match="token 0") as caught:
        Tokens({token: ANN})
    assert not isinstance(token, str) or len(token) < 3 or token not in str(caught.value)


@pytest.mark.parametrize("scopes", [{}, None, [("a", ANN)], {"x" * 20: "acme/ann/one"}])
def test_tokens_without_scopes_are_refused(scopes: Any) -> None:
    with pytest.raises(ConfigurationError, match="Tokens"):
        Tokens(scopes)


def test_nothing_that_is_printed_of_tokens_holds_one() -> None:
    tokens = Tokens(TOKENS)
    for text in (repr(tokens), str(vars(tokens))):
        assert not any(token in text for token in TOKENS)


# --- this machine ---


def local(host: str, client: str | None = "127.0.0.1", **more: str) -> Request:
    return request(("Host", host), *((name.replace("_", "-"), value) for name, value in more.items()), client=client)


def test_on_loopback_this_machine_is_let_in_without_proof() -> None:
    door = OnLoopback(ANN)
    for host in ("localhost", "127.0.0.1:8080", "[::1]:80", "LOCALHOST:1", "127.9.9.9"):
        assert door(local(host)) == ANN
    for client in ("127.0.0.2", "::1", "::ffff:127.0.0.1"):
        assert door(local("localhost", client)) == ANN


def test_on_loopback_nobody_else_is_let_in() -> None:
    door = OnLoopback(ANN)
    for client in ("10.0.0.1", "::ffff:10.0.0.1", "fe80::1", "testclient", "", None):
        assert door(local("localhost", client)) is None
    for host in ("evil.example", "evil.example:80", "localhost.evil.example", "10.0.0.1", "", "127.0.0.1.evil.example"):
        assert door(local(host)) is None
    for name in ("x_forwarded_for", "forwarded", "via", "x_real_ip"):
        assert door(local("localhost", **{name: "127.0.0.1"})) is None
    assert door(request()) is None


def test_on_loopback_needs_a_scope() -> None:
    with pytest.raises(ConfigurationError, match="OnLoopback needs a Scope"):
        OnLoopback(None)  # type: ignore[arg-type]  # on purpose


# --- tokens that somebody else signed ---


def scope_of(claims: Mapping[str, Any]) -> cc.Scope | None:
    return cc.Scope(tenant="acme", principal=claims["sub"], conversation="one") if claims["sub"] != "none" else None


def signed(
    claims: dict[str, Any] | None = None, key: Any = SECRET, algorithm: str = "HS256", **headers: Any
) -> Request:
    said = {"sub": "ann", "exp": time.time() + 60, **(claims or {})}
    said = {name: value for name, value in said.items() if value is not None}
    return bearer(jwt.encode(said, key, algorithm, headers=headers or None))


def test_a_signed_token_is_the_scope_of_its_claims() -> None:
    door = SignedTokens(SECRET, algorithms=["HS256"], scope=scope_of)
    assert door(signed()) == ANN
    assert door(signed({"sub": "bob"})) == BOB


@pytest.mark.parametrize(
    "claims",
    [
        {"exp": None},
        {"exp": 1},
        {"exp": "soon"},
        {"exp": float("inf")},
        {"nbf": 99_999_999_999},
        {"iat": 99_999_999_999},
        {"aud": "somebody-else"},
        {"sub": None},
        {"sub": ""},
        {"sub": "none"},
    ],
)
def test_a_signed_token_that_does_not_count_is_nobodys(claims: dict[str, Any]) -> None:
    assert SignedTokens(SECRET, algorithms=["HS256"], scope=scope_of)(signed(claims)) is None


def test_a_signed_token_must_be_from_and_for_whom_it_should() -> None:
    door = SignedTokens(SECRET, algorithms=["HS256"], scope=scope_of, audience="artifacts", issuer="login")
    right = {"aud": "artifacts", "iss": "login"}
    assert door(signed(right)) == ANN
    for wrong in ({}, {"aud": "artifacts"}, {"iss": "login"}, {**right, "aud": "other"}, {**right, "iss": "other"}):
        assert door(signed(wrong)) is None


def test_a_signature_counts_by_the_named_algorithms_alone() -> None:
    private = ec.generate_private_key(ec.SECP256R1())
    public = private.public_key()
    pem = public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    door = SignedTokens(pem, algorithms=["ES256"], scope=scope_of)
    assert door(signed(key=private, algorithm="ES256")) == ANN
    assert door(signed(key=ec.generate_private_key(ec.SECP256R1()), algorithm="ES256")) is None
    assert door(signed(algorithm="HS256")) is None
    assert door(signed(key=None, algorithm="none")) is None
    assert door(signed(key=pem[:-1].replace(b"-", b"_"), algorithm="HS256")) is None
    assert SignedTokens(SECRET, algorithms=["HS256"], scope=scope_of)(signed(key=private, algorithm="ES256")) is None


def test_keys_can_change_by_their_id() -> None:
    old, new = rsa.generate_private_key(65537, 2048), ec.generate_private_key(ec.SECP256R1())
    door = SignedTokens({"a": new.public_key()}, algorithms=["ES256"], scope=scope_of)
    assert door(signed(key=new, algorithm="ES256", kid="a")) == ANN
    assert door(signed(key=new, algorithm="ES256", kid="b")) is None
    assert door(signed(key=new, algorithm="ES256")) is None
    assert door(signed(key=old, algorithm="RS256", kid="a")) is None


@given(st.text(max_size=60) | st.sampled_from(["a.b.c", "e30.e30.", "..", "eyJhbGciOiJub25lIn0.e30."]))
def test_what_is_no_signed_token_is_nobodys(text: str) -> None:
    assert SignedTokens(SECRET, algorithms=["HS256"], scope=scope_of)(bearer(text)) is None
    assert SignedTokens({"a": SECRET}, algorithms=["HS256"], scope=scope_of)(bearer(text)) is None


@pytest.mark.parametrize(
    ("key", "algorithms", "text"),
    [
        (SECRET, [], "algorithms must name"),
        (SECRET, "HS256", "algorithms must name"),
        (SECRET, ["none"], "algorithms must be"),
        (SECRET, ["HS256", "ES256"], "algorithms must be"),
        ("short", ["HS256"], "at least 32 bytes"),
        (SECRET, ["ES256"], "is no key for ES256"),
        (b"\xff" * 40, ["RS256"], "is no key for RS256"),
        (None, ["ES256"], "is no key for ES256"),
        ({}, ["ES256"], "at least one key"),
    ],
)
def test_a_key_that_cannot_verify_is_refused_when_it_is_named(key: Any, algorithms: Any, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text) as caught:
        SignedTokens(key, algorithms=algorithms, scope=scope_of)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None
