"""Values found in JSON by their path, against Python's own reading of the whole."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coatcheck.readers.json_path import Span, find_value
from coatcheck.readers.paths import MAX_PATH_CHARS, parse_path
from coatcheck.readers.refs import ReaderError
from tests.readers._payloads import Chunks, Payload

KEYS = st.sampled_from(["a", "b", "key", "0", "a.b", 'q"uote', "back\\slash", "ö€😀", "", " ", "]", "'", "\n"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | KEYS | st.text(),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(KEYS, inner, max_size=6),
    max_leaves=40,
)


def find(data: bytes, path: str, *, chunk: int = 1 << 20, **how: Any) -> Span:
    payload = Payload(data, chunk=chunk)
    return anyio.run(lambda: find_value(Chunks(payload, 0, len(data)), path, **how))


def walk(value: Any, path: str = "$") -> list[tuple[str, Any]]:
    found = [(path, value)]
    if isinstance(value, dict):
        for key, item in value.items():
            found.extend(walk(item, f"{path}[{json.dumps(key)}]"))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            found.extend(walk(item, f"{path}[{index}]"))
    return found


@given(VALUES, st.sampled_from([None, 1, "\t"]), st.booleans(), st.sampled_from([1, 2, 3, 17, 1 << 20]), st.data())
def test_every_value_is_found_at_its_path(
    value: Any, indent: int | str | None, ascii_only: bool, chunk: int, data: st.DataObject
) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode()
    path, wanted = data.draw(st.sampled_from(walk(value)))
    span = find(text, path, chunk=chunk)
    assert span.end is not None
    assert json.loads(text[span.start : span.end]) == wanted


@given(st.lists(VALUES, min_size=1, max_size=5), st.data())
def test_an_index_names_a_line_of_json_lines(values: list[Any], data: st.DataObject) -> None:
    text = b"\n".join(json.dumps(value).encode() for value in values)
    index = data.draw(st.integers(0, len(values) - 1))
    span = find(text, f"$[{index}]", lines=True)
    assert json.loads(text[span.start : span.end]) == values[index]


@pytest.mark.parametrize(
    ("path", "steps"),
    [
        ("$", ()),
        ("", ()),
        ("$.a", ("a",)),
        ("a", ("a",)),
        ("a.b[3].c", ("a", "b", 3, "c")),
        ("$['a'][\"b\"]", ("a", "b")),
        ("[0]", (0,)),
        ("$.rows.0.mean", ("rows", "0", "mean")),
        ('$."a b".c', ("a b", "c")),
        ("$['it\\'s \"so\"']", ('it\'s "so"',)),
        ("$.ö-x", ("ö-x",)),
    ],
)
def test_paths_are_read_as_they_are_written(path: str, steps: tuple[str | int, ...]) -> None:
    assert parse_path(path) == steps


@pytest.mark.parametrize(
    "path", ["$..", "$.", "$[", "$[1", "$[*]", "$[-1]", "$[1:2]", "$[?(@.a)]", "$.a b", "x" * 2000]
)
def test_what_is_no_path_is_answered_with_what_one_looks_like(path: str) -> None:
    with pytest.raises(ReaderError, match=r"\$\.rows\[3\]|at most"):
        parse_path(path)
    assert MAX_PATH_CHARS < 2000


@pytest.mark.parametrize(
    ("data", "path", "said"),
    [
        (b'{"alpha": 1, "beta": 2}', "$.alpah", "nearest are alpha.* Its keys: alpha, beta"),
        (b'{"a": [1, 2, 3]}', "$.a[3]", r"\$\.a has 3 elements.*\$\.a\[2\]"),
        (b'{"a": []}', "$.a[0]", "empty array"),
        (b"{}", "$.a", "it is empty"),
        (b'{"a": "text"}', "$.a.b", r"\$\.a is a string"),
        (b'{"a": 1}', "$.a.b", "a number"),
        (b'{"a": [1]}', "$.a.b", "is an array"),
        (b"", "$.a", "is empty"),
        (b"  \n ", "$", "is empty"),
        (b'{"a" 1}', "$.a", "no JSON at its byte 5"),
        (b'{"a": 1', "$.b", "no JSON"),
        (b"{a: 1}", "$.a", "no JSON at its byte 1"),
        (b'{"a": }', "$.a", "no JSON at its byte 6"),
        (b"not json", "$.a", "there is nothing in it"),
    ],
)
def test_a_path_that_leads_nowhere_is_answered_with_what_is_there(data: bytes, path: str, said: str) -> None:
    with pytest.raises(ReaderError, match=said):
        find(data, path)


def test_an_object_of_many_keys_names_some_of_them() -> None:
    data = json.dumps({f"key-{number}-{'x' * 100}": number for number in range(5000)}).encode()
    with pytest.raises(ReaderError) as raised:
        find(data, "$.other")
    assert "and 4980 more" in str(raised.value)
    assert len(str(raised.value)) < 2000


# --- evil JSON ---


def evil(name: str) -> bytes:
    return {
        "deep": b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b', "a": 7}',
        "deep objects": b'{"x": ' + b'{"k":' * 100_000 + b"1" + b"}" * 100_000 + b', "a": 7}',
        "a huge number": b'{"x": ' + b"9" * 3_000_000 + b', "a": 7}',
        "a huge string": b'{"x": "' + b'\\\\\\"' * 700_000 + b'", "a": 7}',
        "a huge key": b'{"' + b"k" * 3_000_000 + b'": 1, "a": 7}',
        "brackets in strings": b'{"x": [' + b'"]}[{\\"",' * 300_000 + b'0], "a": 7}',
        "many rows": b'{"x": [' + b'{"id": 1, "v": [1, 2]},' * 130_000 + b'0], "a": 7}',
    }[name]


@pytest.mark.parametrize(
    "name",
    ["deep", "deep objects", "a huge number", "a huge string", "a huge key", "brackets in strings", "many rows"],
)
@pytest.mark.parametrize("chunk", [65_536, 1_000_003])
def test_what_lies_before_a_value_costs_no_memory_whatever_its_shape(name: str, chunk: int) -> None:
    data = evil(name)
    tracemalloc.start()
    try:
        span = find(data, "$.a", chunk=chunk)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert data[span.start : span.end] == b"7"
    assert peak < 4_000_000 + 4 * chunk


def test_of_a_key_that_is_there_twice_the_first_is_taken() -> None:
    data = b'{"a": 1, "a": 2}'
    assert data[slice(*find(data, "$.a"))] == b"1"


def test_the_end_of_a_long_value_is_not_looked_for_without_end() -> None:
    for value in (b"[" + b"1," * 500_000 + b"1]", b'"' + b"x" * 1_000_000 + b'"', b"7" * 1_000_000):
        data = b'{"a": ' + value + b"}"
        assert find(data, "$.a", chunk=65_536, look_for_end=100_000) == (6, None)
        assert find(data, "$.a", chunk=65_536, look_for_end=2_000_000) == (6, 6 + len(value))


def test_a_value_far_down_an_array_is_found() -> None:
    data = b"[" + b",".join(b'{"n": %d, "s": "],["}' % number for number in range(50_000)) + b"]"
    span = find(data, "$[49999].n", chunk=65_536)
    assert data[span.start : span.end] == b"49999"


def test_a_byte_order_mark_is_passed_over() -> None:
    data = b'\xef\xbb\xbf{"a": 1}'
    assert data[slice(*find(data, "$.a"))] == b"1"
