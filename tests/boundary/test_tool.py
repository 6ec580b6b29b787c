"""A tool is an ordinary function; its schema, its checks and its refusals are read off the signature."""

from __future__ import annotations

import enum
import functools
import inspect
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal, TypedDict, cast

import msgspec
import pydantic
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import Meta

import coatcheck as cc
from coatcheck.boundary.tool import MAX_NAME_CHARS
from coatcheck.testing.strategies import json_values, texts

SCOPE = cc.Scope(conversation="c")


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Range(msgspec.Struct):
    start: int
    end: int | None = None


@dataclass
class Filter:
    field: str
    within: Range


class Options(TypedDict, total=False):
    deep: bool


def references(schema: Any) -> list[str]:
    """Every ``$ref`` in a schema."""
    if isinstance(schema, dict):
        own = [schema["$ref"]] if isinstance(schema.get("$ref"), str) else []
        return own + [ref for part in schema.values() for ref in references(part)]
    if isinstance(schema, list):
        return [ref for part in schema for ref in references(part)]
    return []


# --- what is read off the signature ---


def test_name_description_and_schema_come_from_the_function() -> None:
    @cc.tool
    async def export_orders(region: Literal["eu", "us"], limit: int = 1000, exact: bool = False) -> list[str]:
        """Orders of one region.

        The newest first.
        """
        return [region]

    assert export_orders.name == "export_orders"
    assert export_orders.description == "Orders of one region.\n\nThe newest first."
    assert export_orders.parameters == {
        "type": "object",
        "properties": {
            "region": {"enum": ["eu", "us"]},
            "limit": {"type": "integer", "default": 1000},
            "exact": {"type": "boolean", "default": False},
        },
        "required": ["region"],
        "additionalProperties": False,
    }


def test_name_and_description_that_are_declared_win() -> None:
    def lookup() -> None:
        """What the function says."""

    made = cc.tool(name="find", description="What the model is told.")(lookup)
    assert (made.name, made.description) == ("find", "What the model is told.")
    assert made.parameters == {"type": "object", "properties": {}, "required": [], "additionalProperties": False}


def test_a_function_without_a_docstring_has_an_empty_description() -> None:
    def lookup() -> None: ...

    assert cc.tool(lookup).description == ""


def test_constraints_and_descriptions_of_annotated_stand_in_the_schema() -> None:
    @cc.tool
    def page(number: Annotated[int, Meta(ge=1, le=50, description="counted from 1")]) -> int:
        return number

    assert page.parameters["properties"]["number"] == {
        "type": "integer",
        "minimum": 1,
        "maximum": 50,
        "description": "counted from 1",
    }
    with pytest.raises(msgspec.ValidationError, match=r"\$\.number"):
        page.convert({"number": 51})


def test_optional_takes_null_and_says_so_in_the_schema() -> None:
    @cc.tool
    def find(note: str | None = None) -> str | None:
        return note

    assert find.parameters["properties"]["note"] == {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}
    assert find.convert({"note": None}) == find.convert({}) == {"note": None}


def test_nested_types_are_defined_in_the_schema_and_built_for_the_function() -> None:
    @cc.tool
    def search(where: Filter, colour: Colour, options: Options, since: datetime) -> None: ...

    refs = references(search.parameters)
    assert refs
    for ref in refs:
        assert ref.startswith("#/$defs/")
        assert ref.removeprefix("#/$defs/") in search.parameters["$defs"]
    converted = search.convert(
        {
            "where": {"field": "price", "within": {"start": 1}},
            "colour": "blue",
            "options": {"deep": True},
            "since": "2031-01-02T03:04:05Z",
        }
    )
    assert converted["where"] == Filter("price", Range(1))
    assert converted["colour"] is Colour.BLUE
    assert converted["since"].year == 2031


def test_a_schema_never_names_the_internal_struct() -> None:
    @cc.tool
    def find(query: str) -> str:
        return query

    assert "title" not in find.parameters
    assert "$defs" not in find.parameters
    assert "find_arguments" not in str(find.parameters)


def test_any_further_keyword_passes_where_the_function_takes_it() -> None:
    @cc.tool
    def forward(path: str, **rest: Any) -> None: ...

    assert forward.parameters["additionalProperties"] is True
    assert forward.parameters["required"] == ["path"]
    assert forward.convert({"path": "/", "depth": 3}) == {"path": "/", "depth": 3}
    with pytest.raises(msgspec.ValidationError, match=r"\$\.path"):
        forward.convert({"path": 3, "depth": 3})


@given(st.dictionaries(texts(max_size=10), json_values(max_leaves=5), max_size=5))
def test_what_goes_through_to_a_keyword_function_is_unchanged(arguments: dict[str, Any]) -> None:
    def relay(**rest: Any) -> None: ...

    assert cc.tool(relay).convert(arguments) == arguments


# --- it stays the function it was ---


def test_a_tool_is_called_as_the_function_was() -> None:
    def add(left: int, right: int = 2) -> int:
        """Adds."""
        return left + right

    made = cc.tool(add)
    assert made(1) == 3
    assert made(1, right=5) == 6
    free: Any = made
    assert free("a", "b") == "ab", "a call of one's own is not checked, as before"
    assert inspect.signature(made) == inspect.signature(add)
    assert (made.__name__, made.__doc__, made.__wrapped__) == ("add", "Adds.", add)  # type: ignore[attr-defined]
    assert repr(made) == "Tool('add')"


@pytest.mark.anyio
async def test_an_async_tool_is_awaited_as_the_function_was() -> None:
    @cc.tool(timeout=1, concurrency=1)
    async def double(number: int) -> int:
        return 2 * number

    assert await double(4) == 8


@pytest.mark.parametrize("bare", [True, False])
def test_the_decorator_works_with_and_without_parentheses(bare: bool) -> None:
    def find() -> None: ...

    made = cc.tool(find) if bare else cc.tool()(find)
    assert isinstance(made, cc.Tool)
    assert (made.name, made.ceiling, made.kind, made.timeout, made.concurrency, made.foreign) == (
        "find",
        None,
        None,
        None,
        None,
        False,
    )


def test_declarations_are_kept_as_given() -> None:
    ceiling = cc.Ceiling(10, ["limit"])

    @cc.tool(ceiling=ceiling, kind="dataset/orders", timeout=timedelta(minutes=2), concurrency=3, foreign=True)
    def find(limit: int) -> None: ...

    assert (find.ceiling, find.kind, find.timeout, find.concurrency, find.foreign) == (
        ceiling,
        "dataset/orders",
        120.0,
        3,
        True,
    )


def test_attributes_of_the_function_never_overwrite_a_declaration() -> None:
    def find(query: str) -> str:
        return query

    find.__dict__.update(name="other", timeout="soon", kind=7, ceiling="none", function=None, parameters={})
    made = cc.tool(kind="dataset/found")(find)
    assert (made.name, made.timeout, made.kind, made.ceiling, made.function) == (
        "find",
        None,
        "dataset/found",
        None,
        find,
    )
    assert list(made.parameters["properties"]) == ["query"]


# --- what can be a tool ---


class Counter:
    """Counts in steps."""

    def __init__(self) -> None:
        self.name = "an attribute of the object's own"
        self.total = 0

    def __call__(self, step: int) -> int:
        self.total += step
        return self.total

    def reset(self, to: int = 0) -> int:
        """Starts again."""
        self.total = to
        return to


class AsyncCounter:
    async def __call__(self, step: int) -> int:
        return step


def test_an_object_that_can_be_called_is_a_tool_with_a_name() -> None:
    made = cc.tool(name="count")(Counter())
    assert (made.name, made.description, made.is_async) == ("count", "Counts in steps.", False)
    assert made.parameters["properties"] == {"step": {"type": "integer"}}
    assert cc.tool(name="count")(AsyncCounter()).is_async


def test_a_bound_method_is_a_tool_without_its_self() -> None:
    counter = Counter()
    made = cc.tool(counter.reset)
    assert (made.name, made.description) == ("reset", "Starts again.")
    assert made.parameters["properties"] == {"to": {"type": "integer", "default": 0}}
    assert made(to=5) == counter.total == 5


def test_a_partial_function_keeps_the_types_and_the_words_of_the_function() -> None:
    async def fetch(host: str, path: str, depth: int = 1) -> str:
        """Fetches."""
        return f"{host}{path}{depth}"

    made = cc.tool(name="fetch_example")(functools.partial(fetch, "example.org", depth=3))
    assert (made.name, made.description, made.is_async) == ("fetch_example", "Fetches.", True)
    assert made.parameters["properties"] == {"path": {"type": "string"}, "depth": {"type": "integer", "default": 3}}
    with pytest.raises(msgspec.ValidationError, match=r"\$\.path"):
        made.convert({"path": 3})


def test_a_decorated_function_is_read_through_its_decorator() -> None:
    def logged(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        async def inner(*args: Any, **kwargs: Any) -> Any:
            return await function(*args, **kwargs)

        return inner

    @logged
    async def find(query: str, limit: int = 5) -> str:
        """Finds."""
        return query * limit

    made = cc.tool(find)
    assert (made.name, made.description, made.is_async) == ("find", "Finds.", True)
    assert made.parameters["properties"] == {"query": {"type": "string"}, "limit": {"type": "integer", "default": 5}}


def test_a_boundary_takes_plain_functions_and_tools() -> None:
    def plain() -> None: ...

    @cc.tool(name="declared")
    def other() -> None: ...

    boundary = cc.Boundary([plain, other])
    assert list(boundary.tools) == ["plain", "declared"]
    assert boundary.tools["declared"] is other


# --- what is refused, when it is built ---


def star(*words: str) -> None: ...
def only_by_position(word: str, /) -> None: ...
def locked(lock: threading.Lock) -> None: ...


class Model(pydantic.BaseModel): ...


def pydantic_model(word: str, value: Model) -> None: ...


class Methods:
    def look(self, word: str) -> None: ...


def two_kinds_of_record(value: Range | Filter) -> None: ...
def unknown_type(value: NoSuchType) -> None: ...  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    ("function", "parts"),
    [
        (star, ("tool star", "'words'", "positional only")),
        (only_by_position, ("tool only_by_position", "'word'", "positional only")),
        (locked, ("tool locked", "'lock'", "not read from JSON")),
        (pydantic_model, ("tool pydantic_model", "'value'", "Model", "msgspec.Struct")),
        (Methods.look, ("tool look takes self", "tool(it.look)")),
        (two_kinds_of_record, ("tool two_kinds_of_record",)),
        (unknown_type, ("tool unknown_type", "NoSuchType")),
        (lambda: None, ("lambda", "tool(name=...)")),
        (functools.partial(print), ("has no name", "@tool(name=...)")),
        (5, ("must be a function", "5")),
    ],
)
def test_a_function_that_a_model_cannot_call_is_refused_by_name(function: Any, parts: tuple[str, ...]) -> None:
    with pytest.raises(cc.ConfigurationError) as refusal:
        cc.tool(function)
    for part in parts:
        assert part in str(refusal.value)


@pytest.mark.parametrize("name", ["", " ", "\t", "a" * (MAX_NAME_CHARS + 1), 'say "it"', "back\\slash", "a\nb", 5])
def test_a_name_that_no_ticket_can_hold_is_refused(name: Any) -> None:
    with pytest.raises(cc.ConfigurationError, match="name"):

        @cc.tool(name=name)
        def find() -> None: ...


def test_the_longest_name_is_taken() -> None:
    @cc.tool(name="n" * MAX_NAME_CHARS)
    def find() -> None: ...

    assert len(find.name) == MAX_NAME_CHARS


@pytest.mark.parametrize(
    ("dials", "parts"),
    [
        ({"ceiling": 1000}, ("ceiling", "1000")),
        ({"kind": " "}, ("kind",)),
        ({"kind": 5}, ("kind", "5")),
        ({"kind": "k" * 129}, ("kind", "129")),
        ({"kind": "a\x00"}, ("kind",)),
        ({"timeout": 0}, ("timeout", "0")),
        ({"timeout": -1.5}, ("timeout", "-1.5")),
        ({"timeout": float("nan")}, ("timeout", "nan")),
        ({"timeout": float("inf")}, ("timeout", "inf")),
        ({"timeout": True}, ("timeout", "True")),
        ({"timeout": "5s"}, ("timeout", "5s")),
        ({"timeout": timedelta(0)}, ("timeout",)),
        ({"concurrency": 0}, ("concurrency", "0")),
        ({"concurrency": -1}, ("concurrency", "-1")),
        ({"concurrency": 2.0}, ("concurrency", "2.0")),
        ({"concurrency": True}, ("concurrency", "True")),
        ({"foreign": 1}, ("foreign", "1")),
        ({"foreign": None}, ("foreign", "None")),
    ],
)
def test_a_dial_that_cannot_be_honoured_is_refused_by_tool_and_dial(
    dials: dict[str, Any], parts: tuple[str, ...]
) -> None:
    with pytest.raises(cc.ConfigurationError) as refusal:

        @cc.tool(**dials)
        def find() -> None: ...

    for part in ("tool find", *parts):
        assert part in str(refusal.value)


def test_two_tools_of_one_name_are_refused_by_index() -> None:
    def find() -> None: ...

    other = cc.tool(name="find")(lambda: None)
    with pytest.raises(cc.ConfigurationError, match=r"tools\[1\].*'find'"):
        cc.Boundary([find, other])


@pytest.mark.parametrize("wrong", [5, "find", None, Counter, int])
def test_what_is_no_function_is_refused_by_index(wrong: Any) -> None:
    def find() -> None: ...

    with pytest.raises(cc.ConfigurationError, match=r"tools\[1\]"):
        cc.Boundary([find, wrong])


# --- arguments against the signature ---


@cc.tool
def everything(
    whole: int,
    real: float,
    text: str,
    yes: bool,
    items: list[int],
    where: Range,
    table: dict[str, int],
    maybe: int | None = None,
) -> None: ...


GOOD: dict[str, Any] = {
    "whole": 1,
    "real": 1.5,
    "text": "a",
    "yes": True,
    "items": [1],
    "where": {"start": 1},
    "table": {"a": 1},
}


def test_arguments_that_fit_are_converted() -> None:
    assert everything.convert(GOOD) == {**GOOD, "where": Range(1), "maybe": None}


@pytest.mark.parametrize(
    ("name", "wrong", "path"),
    [
        ("whole", "1", "$.whole"),
        ("whole", 1.5, "$.whole"),
        ("whole", True, "$.whole"),
        ("whole", None, "$.whole"),
        ("real", "1.5", "$.real"),
        ("text", 5, "$.text"),
        ("text", None, "$.text"),
        ("yes", 1, "$.yes"),
        ("yes", "true", "$.yes"),
        ("items", "1", "$.items"),
        ("items", [1, "2"], "$.items[1]"),
        ("where", {"start": "1"}, "$.where.start"),
        ("where", {}, "$.where"),
        ("where", [1], "$.where"),
        ("table", {"a": "1"}, "$.table[...]"),
        ("maybe", "1", "$.maybe"),
    ],
)
def test_types_are_strict_and_the_refusal_names_the_path(name: str, wrong: Any, path: str) -> None:
    with pytest.raises(msgspec.ValidationError) as refusal:
        everything.convert({**GOOD, name: wrong})
    assert f"`{path}`" in str(refusal.value)


@pytest.mark.parametrize("left_out", list(GOOD))
def test_a_required_argument_that_is_missing_is_named(left_out: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=left_out):
        everything.convert({name: value for name, value in GOOD.items() if name != left_out})


def test_an_unknown_argument_is_refused_by_name() -> None:
    with pytest.raises(msgspec.ValidationError, match="`colour`"):
        everything.convert({**GOOD, "colour": "red"})


@given(st.text(st.characters(), min_size=1).filter(lambda name: name not in GOOD and name != "maybe"))
@example("\ud800")
def test_whatever_the_unknown_argument_is_called_it_is_a_refusal_and_no_crash(name: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        everything.convert({**GOOD, name: 1})


def test_keys_of_a_table_are_read_from_json_where_they_are_text() -> None:
    @cc.tool
    def rename(names: dict[int, str]) -> None: ...

    assert (
        rename.convert({"names": {"7": "seven"}}) == rename.convert({"names": {7: "seven"}}) == {"names": {7: "seven"}}
    )
    with pytest.raises(msgspec.ValidationError, match="names"):
        rename.convert({"names": {"seven": "7"}})


def test_a_default_that_json_cannot_spell_stays_the_functions_own() -> None:
    default: list[int] = [1, 2]
    nothing = object()

    @cc.tool
    def find(ids: list[int] = default, colour: Colour = Colour.RED, cursor: Any = nothing) -> tuple[Any, ...]:
        return ids, colour, cursor

    assert find.parameters["required"] == []
    assert set(find.parameters["properties"]) == {"ids", "colour", "cursor"}
    assert find.convert({}) == {}
    assert find.convert({"ids": [3]}) == {"ids": [3]}
    assert find(**find.convert({})) == (default, Colour.RED, nothing)
    with pytest.raises(msgspec.ValidationError, match=r"\$\.ids"):
        find.convert({"ids": "3"})


def test_a_default_that_is_not_of_its_type_is_the_authors_business() -> None:
    @cc.tool
    def find(limit: int = cast(int, None)) -> Any:
        return limit

    assert find.convert({}) == {"limit": None}
    with pytest.raises(msgspec.ValidationError, match=r"\$\.limit"):
        find.convert({"limit": "x"})


@given(
    st.fixed_dictionaries(
        {
            "whole": st.integers(-(2**63), 2**63 - 1),
            "real": st.floats(allow_nan=False),
            "text": texts(),
            "yes": st.booleans(),
            "items": st.lists(st.integers(-5, 5)),
            "table": st.dictionaries(texts(), st.integers(-5, 5)),
        }
    )
)
def test_arguments_of_the_right_types_reach_the_function_unchanged(arguments: dict[str, Any]) -> None:
    converted = everything.convert({**arguments, "where": {"start": 0, "end": 1}})
    assert {name: converted[name] for name in arguments} == arguments
