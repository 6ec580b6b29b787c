"""Hypothesis strategies for what coatcheck takes: scopes, kinds, media types, payloads, JSON values.

They lean towards the awkward: case, separators, control characters, what lies outside the basic plane, long fields.
Nothing else in the package imports Hypothesis.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from coatcheck.scope import Scope

__all__ = ["fields", "json_values", "kinds", "media_types", "payloads", "scopes", "texts"]

_AWKWARD = (
    "_",
    "__",
    "-",
    ".",
    "..",
    "/",
    "\\",
    "%2F",
    "_2f",
    "A",
    "a",
    "\x00",
    "\n",
    "\u00e9",
    "e\u0301",
    "\U0001f600",
    "None",
)
_TOKEN = "abcxyzABC019!#$&^_.+-"


def texts(*, min_size: int = 0, max_size: int | None = None) -> st.SearchStrategy[str]:
    """Text that UTF-8 can carry: no lone surrogates."""
    return st.text(st.characters(codec="utf-8"), min_size=min_size, max_size=max_size)


def fields() -> st.SearchStrategy[str]:
    """Fields of a scope: any text that is not empty, often one that a key could confuse with another."""
    pieces = st.lists(st.sampled_from(_AWKWARD), min_size=1, max_size=4).map("".join)
    long = st.tuples(st.sampled_from("aA_/\u00e9"), st.integers(1, 300)).map(lambda drawn: drawn[0] * drawn[1])
    return st.one_of(pieces, texts(min_size=1, max_size=40), long)


def scopes() -> st.SearchStrategy[Scope]:
    """Scopes, with and without the fields that may be absent."""
    optional = st.none() | fields()
    return st.builds(Scope, tenant=optional, principal=optional, conversation=fields())


def kinds() -> st.SearchStrategy[str]:
    """Kinds: not blank, of one line, up to 128 characters."""
    letters = st.characters(codec="utf-8", exclude_categories=("Cc", "Cs"))
    return st.text(letters, min_size=1, max_size=128).filter(lambda kind: bool(kind.strip()))


def media_types() -> st.SearchStrategy[str]:
    """Media types as a caller may write them: in any case, with and without parameters."""
    token = st.text(_TOKEN, min_size=1, max_size=20)
    parameters = st.sampled_from(("", ";charset=utf-8", "; q=0.5", " ;a=b;c=d"))
    common = st.sampled_from(("text/plain", "application/json", "application/jsonl", "image/png"))
    return st.tuples(common | st.tuples(token, token).map("/".join), parameters).map("".join)


def payloads(*, max_size: int = 200) -> st.SearchStrategy[bytes]:
    """Payloads: any bytes, and often text."""
    return st.one_of(st.binary(max_size=max_size), texts(max_size=max_size // 4).map(str.encode))


def json_values(*, max_leaves: int = 20) -> st.SearchStrategy[Any]:
    """Values that JSON carries unchanged: no infinity, no NaN, no lone surrogate, whole numbers of 64 bits."""
    leaves = st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**64 - 1),
        st.floats(allow_nan=False, allow_infinity=False),
        texts(max_size=20),
        st.sampled_from(("", "\x00", '"\\/', "\u2028", "\u00e9", "e\u0301", "\U0001f600", "</script>", "\ufeff")),
    )
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.lists(inner, max_size=5),
            st.dictionaries(texts(max_size=10), inner, max_size=5),
        ),
        max_leaves=max_leaves,
    )
