"""The grammar of refs (law: `design.md` section 5; bytes and examples: `api.md`)."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coatcheck.artifacts.ref import check_kind, digest_of, is_ref, make_ref, normalise_media_type
from coatcheck.errors import InvalidArtifact
from coatcheck.testing.strategies import kinds, media_types, payloads

DIGEST = digest_of(b"payload")
ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


@pytest.mark.parametrize(
    ("kind", "media_type", "payload", "ref"),
    [
        ("tool-result/lookup", "text/plain", b"hello", "art_s756pmzakvgspjv1pqe3py07dj9gpqz9"),
        ("tool-result/lookup", "application/json", b'{"a":1}', "art_e3690dfywjmh10s0yxbaxzjhwebjkvcr"),
        ("dataset/rows", "application/json", b'{"a":1}', "art_n2fv8cp5wxhd3kmr5tb4vjzhge982j4k"),
        ("file/png", "image/png", b"", "art_xdbp89a3dq8evs6nyveczz5fmwmed50a"),
    ],
)
def test_a_ref_has_the_bytes_that_are_written_down(kind: str, media_type: str, payload: bytes, ref: str) -> None:
    assert make_ref(kind, media_type, digest_of(payload)) == ref


@given(kinds(), media_types(), payloads())
def test_a_ref_is_160_bits_of_a_digest_over_kind_media_type_and_digest(kind: str, media_type: str, data: bytes) -> None:
    digest = digest_of(data)
    ref = make_ref(kind, media_type, digest)
    header = "\n".join(("coatcheck/1", kind, normalise_media_type(media_type), digest))
    number = 0
    for letter in ref.removeprefix("art_"):
        number = number * 32 + ALPHABET.index(letter)
    assert number.to_bytes(20, "big") == hashlib.sha256(header.encode()).digest()[:20]
    assert is_ref(ref)


def test_a_digest_is_spelled_with_its_algorithm() -> None:
    assert digest_of(b"") == "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


@pytest.mark.parametrize(
    "value",
    [
        "",
        "art_",
        "art_" + "0" * 31,
        "art_" + "0" * 33,
        "ART_" + "0" * 32,
        "art_" + "A" * 32,
        *("art_" + letter * 32 for letter in "ilou"),
        "art_" + "0" * 31 + "\u0661",
        "art_" + "0" * 32 + "\n",
        " art_" + "0" * 32,
        "art-" + "0" * 32,
        "art_../../../../etc/passwd",
        "art_" + "0" * 10_000,
        "\ud800",
        5,
        None,
        b"art_" + b"0" * 32,
        ["art_" + "0" * 32],
    ],
)
def test_what_is_no_ref_is_told_apart_by_its_form(value: object) -> None:
    assert not is_ref(value)


@pytest.mark.parametrize("letter", ALPHABET)
def test_every_letter_of_the_alphabet_may_stand_in_a_ref(letter: str) -> None:
    assert is_ref("art_" + letter * 32)


@given(kinds())
def test_a_kind_is_taken_letter_by_letter(kind: str) -> None:
    assert check_kind(kind) == kind


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("", "blank"),
        (" \u00a0", "blank"),
        ("a\nb", "control"),
        ("a\x7fb", "control"),
        ("a\x9fb", "control"),
        ("k" * 129, "128"),
        ("k\udfff", "surrogate"),
        (None, "text"),
        (b"k", "text"),
    ],
)
def test_what_is_no_kind_is_refused_with_the_reason(kind: object, why: str) -> None:
    with pytest.raises(InvalidArtifact, match=f"^kind .*{why}"):
        check_kind(kind)


def test_a_kind_may_be_128_characters_long_whatever_they_weigh() -> None:
    assert check_kind("\U0001f600" * 128) == "\U0001f600" * 128


@pytest.mark.parametrize(
    ("given", "normal"),
    [
        ("text/plain", "text/plain"),
        ("TEXT/Plain", "text/plain"),
        ("application/json; charset=utf-8", "application/json"),
        (" image/png ;q=1", "image/png"),
        ("application/vnd.api+json", "application/vnd.api+json"),
        ("a/" + "b" * 126, "a/" + "b" * 126),
        ("a/b;" + "c" * 500, "a/b"),
    ],
)
def test_a_media_type_has_one_spelling(given: str, normal: str) -> None:
    assert normalise_media_type(given) == normal


@given(media_types())
def test_normalising_twice_changes_nothing(media_type: str) -> None:
    normal = normalise_media_type(media_type)
    assert normalise_media_type(normal) == normal
    assert normal == normal.lower()
    assert ";" not in normal


@pytest.mark.parametrize(
    "media_type",
    [
        "",
        " ",
        "text",
        "/",
        "text/",
        "/plain",
        "a/b/c",
        "text/pl ain",
        "text/plain\n",
        "text/plain;\n",
        "te\u212at/plain",
        "t\u00e9xt/plain",
        "a/" + "b" * 127,
        "a/\udc00",
        None,
        7,
        b"text/plain",
    ],
)
def test_what_is_no_media_type_is_refused_by_name(media_type: object) -> None:
    with pytest.raises(InvalidArtifact, match=r"^media_type "):
        normalise_media_type(media_type)


@pytest.mark.parametrize(
    "digest", ["", "sha256:", DIGEST.upper(), "sha-256:" + DIGEST[7:], DIGEST[7:], DIGEST + "0", DIGEST + "\n"]
)
def test_a_digest_in_another_spelling_makes_no_ref(digest: str) -> None:
    with pytest.raises(InvalidArtifact, match=r"^digest "):
        make_ref("kind", "text/plain", digest)


@given(st.tuples(kinds(), media_types()), st.tuples(kinds(), media_types()))
def test_one_payload_under_two_kinds_or_media_types_has_two_refs(one: tuple[str, str], other: tuple[str, str]) -> None:
    same = one[0] == other[0] and normalise_media_type(one[1]) == normalise_media_type(other[1])
    assert (make_ref(*one, DIGEST) == make_ref(*other, DIGEST)) == same
