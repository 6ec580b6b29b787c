"""A tool call, and its arguments as a model or a host may hand them over."""

from __future__ import annotations

import collections
import json
import types
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coatcheck.call import ToolCall, read_arguments
from coatcheck.testing.strategies import json_values, texts

objects = st.dictionaries(texts(max_size=10), json_values(max_leaves=5), max_size=4)


@given(objects)
def test_arguments_read_the_same_as_a_dict_as_text_and_as_bytes(arguments: dict[str, Any]) -> None:
    text = json.dumps(arguments)
    assert read_arguments(arguments) is arguments
    assert read_arguments(text) == arguments
    assert read_arguments(text.encode()) == arguments
    assert read_arguments(bytearray(text.encode())) == arguments
    assert read_arguments(f" \n{json.dumps(arguments, ensure_ascii=False, indent=1)}\t") == arguments


@given(objects)
def test_any_mapping_becomes_a_dict_of_its_items(arguments: dict[str, Any]) -> None:
    for mapping in (
        types.MappingProxyType(arguments),
        collections.OrderedDict(arguments),
        collections.ChainMap(arguments),
        collections.defaultdict(list, arguments),
    ):
        read = read_arguments(mapping)
        assert type(read) is dict
        assert read == arguments


@pytest.mark.parametrize("nothing", [None, "", b"", bytearray(), {}])
def test_nothing_at_all_is_no_arguments(nothing: Any) -> None:
    assert read_arguments(nothing) == {}


@given(json_values().filter(lambda value: not isinstance(value, dict)))
def test_json_that_is_no_object_is_named_for_what_it_is(value: Any) -> None:
    names = {list: "array", str: "string", bool: "boolean", type(None): "null", int: "number", float: "number"}
    assert read_arguments(json.dumps(value)) == f"they are a JSON {names[type(value)]}"


@pytest.mark.parametrize(
    "spoken",
    [
        *(
            "{",
            "}",
            "{'a': 1}",
            '{"a": 1} trailing',
            '{"a": 1}{"b": 2}',
            "a: 1",
            " ",
            "\x00",
            '{"a": NaN}',
            '{"a": 1,}',
        ),
        *(
            '{"a": "\ud800"}',
            "[" * 100_000,
            '{"a":' * 100_000,
            b"\xff",
            b'{"a": "\xff"}',
            "\ufeff{}",
            b"\xef\xbb\xbf{}",
        ),
    ],
    ids=lambda spoken: repr(spoken)[:20],
)
def test_text_that_is_no_json_is_answered_with_what_is_wrong(spoken: str | bytes) -> None:
    problem = read_arguments(spoken)
    assert isinstance(problem, str)
    assert 0 < len(problem) < 200
    assert problem.encode()


@given(st.one_of(st.text(), st.binary()))
def test_whatever_a_model_speaks_is_arguments_or_a_sentence(spoken: str | bytes) -> None:
    assert isinstance(read_arguments(spoken), (dict, str))


@pytest.mark.parametrize(
    ("other", "kind"),
    [
        ([], "list"),
        ([("a", 1)], "list"),
        (1, "int"),
        (True, "bool"),
        (object(), "object"),
        (np.array([1, 2]), "ndarray"),
        ({1}, "set"),
    ],
)
def test_what_is_neither_a_mapping_nor_text_is_named_by_its_type(other: Any, kind: str) -> None:
    assert read_arguments(other) == f"they are of type {kind}"


def test_a_call_without_arguments_shares_none_with_another() -> None:
    first, second = ToolCall("a"), ToolCall("b")
    first.arguments["x"] = 1
    assert second.arguments == {}
    assert (first.call_id, second.call_id) == (None, None)


def test_a_call_is_a_value_and_is_not_changed_in_place() -> None:
    call = ToolCall("a", {"x": 1}, "c1")
    assert call == ToolCall("a", {"x": 1}, "c1")
    with pytest.raises(AttributeError):
        call.name = "b"  # type: ignore[misc]  # it is frozen
    assert msgspec.structs.replace(call, name="b") == ToolCall("b", {"x": 1}, "c1")
    assert msgspec.json.decode(msgspec.json.encode(call), type=ToolCall) == call


@pytest.mark.parametrize("call_id", [None, "", "call_" + "A" * 1400, "../../etc/x", "\x00\n", "é😀"])
def test_c1_a_call_id_is_carried_and_never_interpreted(call_id: str | None) -> None:
    assert ToolCall("a", {}, call_id).call_id == call_id
