"""A value becomes text and a size, once; the fast look and the slow walk are one law."""

from __future__ import annotations

import ast
import collections
import dataclasses
import datetime
import decimal
import enum
import gc
import itertools
import json
import math
import os
import re
import subprocess
import sys
import threading
import tracemalloc
import types
import uuid
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import attrs
import msgspec
import numpy as np
import pydantic
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from coatcheck.errors import RenderingError
from coatcheck.results.conversion import MAX_DEPTH, canonical
from coatcheck.results.envelope import Encoded
from coatcheck.results.rendering import JSON, TEXT, Rendered, describe_blob, render, render_text
from coatcheck.testing.strategies import json_values, texts

NAN = float("nan")


# --- the kinds of things that tools return ---


class Color(enum.Enum):
    RED = "red"
    PAIR = (1, {"b", "a"})
    NOWHERE = NAN


class Word(enum.StrEnum):
    ONE = "one"


class Level(enum.IntEnum):
    LOW = 1


class Bits(enum.IntFlag):
    A = 1
    B = 2


class Odd(str, enum.Enum):  # noqa: UP042 - a StrEnum could not be as odd
    """A text whose value is a number."""

    A = ("a", 1)

    def __new__(cls, text: str, number: int) -> Odd:
        member = str.__new__(cls, text)
        member._value_ = number
        return member

    def __repr__(self) -> str:  # the one that it inherits fails, and would hide why a property does not hold
        return "Odd.A"


class Str(str):
    pass


class SlimStr(str):
    __slots__ = ()


class SlimInt(int):
    __slots__ = ()


class SlimFloat(float):
    __slots__ = ()


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclasses.dataclass
class Data:
    x: Any
    y: Any = 0


@dataclasses.dataclass(slots=True)
class SlimData:
    x: Any
    y: Any = 0


@dataclasses.dataclass
class Unfinished:
    x: Any = 1
    late: Any = dataclasses.field(init=False)


@attrs.define
class Attrs:
    x: Any
    y: Any = 0


class Model(pydantic.BaseModel):
    x: Any
    y: Any = 0


class Struct(msgspec.Struct):
    x: Any
    y: Any = 0


class Unseen(msgspec.Struct, gc=False):
    """The collector does not know it, so nobody sees from outside what it holds."""

    x: Any
    y: Any = 0


class Row(msgspec.Struct, array_like=True):
    x: Any
    y: Any = 0


class Tagged(msgspec.Struct, tag="t", rename="camel", omit_defaults=True):
    x: Any
    some_words: set[str] = msgspec.field(default_factory=set)
    known: frozenset[int] = frozenset({1, 2})
    y: Any = 0


class Plain:
    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)


LIVING: collections.deque[Plain] = collections.deque(maxlen=1000)


def own_dict(**fields: Any) -> dict[str, Any]:
    """The dict of an instance that lives: from Python 3.13 on the collector does not see what is in it."""
    LIVING.append(Plain(**fields))
    return vars(LIVING[-1])


class LegalTime(datetime.tzinfo):
    """Amsterdam before 1937: local mean time, which is no whole number of minutes ahead."""

    def utcoffset(self, moment: datetime.datetime | None, /) -> datetime.timedelta:
        return datetime.timedelta(minutes=19, seconds=32)

    def dst(self, moment: datetime.datetime | None, /) -> datetime.timedelta | None:
        return None

    def tzname(self, moment: datetime.datetime | None, /) -> str:
        return "LMT"


def nest(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def within_itself(kind: type) -> Any:
    value = kind()
    if isinstance(value, list):
        value.append(value)
    else:
        value["a"] = value
    return value


def generator() -> Iterator[int]:
    yield 1


# What JSON carries once something is done about it: made anew each time, because some can be changed.
CARRIED: list[Callable[[], Any]] = [
    lambda: {3, "b", 1},
    lambda: frozenset({"z", "a", "q"}),
    lambda: {(1, "a"), (2, "b"), None, frozenset({2, 1})},
    lambda: set(),
    lambda: {"inner": {"c", "a", "b"}},
    lambda: {1: "a", None: "b", False: "c", 2.5: "d"},
    lambda: {Level.LOW: 1, Word.ONE: 2, Color.RED: 3, Bits.A | Bits.B: 4},
    lambda: {uuid.UUID(int=1): 1, datetime.date(2031, 1, 2): 2, decimal.Decimal("1.10"): 3},
    lambda: {np.str_("k"): 1, np.float64(1.5): 2},
    lambda: b"\xff\xfe",
    lambda: bytearray(b"ab"),
    lambda: memoryview(b"abcdef")[::2],
    lambda: decimal.Decimal("1.10"),
    lambda: decimal.Decimal("sNaN"),
    lambda: datetime.datetime(2031, 1, 2, 3, 4, 5, 6, tzinfo=datetime.UTC),
    lambda: datetime.datetime(1900, 1, 1, tzinfo=LegalTime()),
    lambda: datetime.datetime(2031, 1, 2),
    lambda: datetime.date(2031, 1, 2),
    lambda: datetime.time(3, 4, 5),
    lambda: datetime.timedelta(days=1, microseconds=1),
    lambda: uuid.UUID(int=7),
    lambda: Color.RED,
    lambda: Color.PAIR,
    lambda: Word.ONE,
    lambda: Level.LOW,
    lambda: Bits.A | Bits.B,
    lambda: Odd.A,
    lambda: Str("s"),
    lambda: SlimStr("s"),
    lambda: SlimInt(2),
    lambda: SlimFloat(2),
    lambda: Data({2, 1}),
    lambda: SlimData({2, 1}),
    lambda: Attrs({2, 1}),
    lambda: Model(x={2, 1}),
    lambda: Struct({2, 1}),
    lambda: Struct(msgspec.UNSET),
    lambda: Unseen({2, 1, "b"}),
    lambda: Unseen({1: "a"}),
    lambda: Row({2, 1}),
    lambda: Tagged(1),
    lambda: Tagged({2, 1}, {"b", "a"}, frozenset({9, 8}), NAN),
    lambda: np.float64(1.5),
    lambda: np.int64(3),
    lambda: np.bool_(True),
    lambda: np.str_("n"),
    lambda: np.array([[1.5, 2.0], [3.0, 4.0]]),
    lambda: np.array([], dtype="f4"),
    lambda: np.array([{2, 1}, "x"], dtype=object),
    lambda: np.datetime64("2031-01-02T03:04:05.123456789"),
    lambda: np.array(["2031-01-02", "2031-01-03"], dtype="M8[ns]"),
    lambda: np.array([(1, 2.5)], dtype=[("a", "i4"), ("b", "f4")]),
    lambda: collections.deque([1, {2, 1}]),
    lambda: collections.deque(),
    lambda: Pair(1, {2, 1}),
    lambda: collections.OrderedDict(b=1, a=2),
    lambda: collections.defaultdict(list, a=[1]),
    lambda: collections.Counter("abca"),
    lambda: types.MappingProxyType({"a": {2, 1}}),
    lambda: own_dict(a=1, b={2, 1}),
    lambda: (1, (2, ())),
    lambda: [(), {}, [], [()], [{}]],
    lambda: 10**30,
    lambda: -0.0,
    lambda: nest(150),
]
# `Tagged(..., y=NAN)` writes its y: it is no default, so it belongs to the next list.
CARRIED = [make for make in CARRIED if not (isinstance(made := make(), Tagged) and made.y is NAN)]

# What JSON cannot carry, or would change without a word.
CULPRITS: dict[str, Callable[[], Any]] = {
    "nan": lambda: NAN,
    "infinity": lambda: -math.inf,
    "a numpy nan": lambda: np.float64(NAN),
    "a slim nan": lambda: SlimFloat(NAN),
    "an enum of nan": lambda: Color.NOWHERE,
    "a set of nan": lambda: {1.0, NAN},
    "an array with nan": lambda: np.array([[1.0, NAN]]),
    "an object array": lambda: np.array([None, object()], dtype=object),
    "no date": lambda: np.datetime64("NaT", "s"),
    "no dates": lambda: np.array(["2031-01-02", "NaT"], dtype="M8[D]"),
    "a date that is none in an array of no dimension": lambda: np.array("NaT", dtype="M8[s]"),
    "a count of nanoseconds": lambda: np.timedelta64(5, "ns"),
    "a long double": lambda: np.longdouble(1),
    "a lone surrogate": lambda: "a\ud800b",
    "a slim lone surrogate": lambda: SlimStr("\udc00"),
    "a lone surrogate as a key": lambda: {"\ud800": 1},
    "a number and its text": lambda: {1: "a", "1": "b"},
    "a truth and its text": lambda: {True: "a", "true": "b"},
    "nothing and its text": lambda: {None: "a", "null": "b"},
    "two types of a number": lambda: {2: "a", "2": "b", 2.5: "c"},
    "an enum and its text": lambda: {Color.RED: 1, "red": 2},
    "bytes as a key": lambda: {b"k": 1},
    "a tuple as a key": lambda: {(1, 2): 3},
    "nan as a key": lambda: {NAN: 1},
    "infinity as a key": lambda: {math.inf: 1},
    "no decimal as a key": lambda: {decimal.Decimal("NaN"): 1},
    "a duration as a key": lambda: {datetime.timedelta(1): 1},
    "a number too long": lambda: 10**5000,
    "a number too long as a key": lambda: {10**5000: 1},
    "raw text that is no JSON": lambda: msgspec.Raw(b'{"a":'),
    "raw text": lambda: msgspec.Raw(b"1"),
    "wire bytes": lambda: Encoded(b"1"),
    "a lock": threading.Lock,
    "an object": object,
    "a class": lambda: Data,
    "an exception": lambda: ValueError("no"),
    "a complex number": lambda: 1j,
    "a generator": generator,
    "an ellipsis": lambda: ...,
    "a time that is no whole minute ahead": lambda: datetime.time(1, tzinfo=LegalTime()),
    "a dataclass with nan": lambda: Data(1, NAN),
    "an attrs class with nan": lambda: Attrs(1, NAN),
    "a model with nan": lambda: Model(x=1, y=NAN),
    "a struct with nan": lambda: Struct(1, NAN),
    "an unseen struct with nan": lambda: Unseen(1, NAN),
    "an unseen struct with two keys": lambda: Unseen({1: 1, "1": 2}),
    "a row with nan": lambda: Row(1, NAN),
    "a struct that leaves out defaults, with nan": lambda: Tagged(1, y=NAN),
    "too deep": lambda: nest(MAX_DEPTH + 1),
    "a list within itself": lambda: within_itself(list),
    "a dict within itself": lambda: within_itself(dict),
    "an ordered dict within itself": lambda: within_itself(collections.OrderedDict),
}


# --- ways to hold a value among others ---


def in_object_array(items: list[Any]) -> Any:
    array = np.empty(len(items), dtype=object)
    for index, item in enumerate(items):
        array[index] = item
    return array


def keyed(items: list[Any]) -> dict[str, Any]:
    return {("a key", "k", "é", "", "\x00", "class")[index % 6] + str(index): item for index, item in enumerate(items)}


def two(items: list[Any]) -> tuple[Any, Any]:
    """The items as two: whichever comes last is alone, so that both fields of a record get their turn."""
    return (items[0], items[1:]) if len(items) % 2 else (items[:-1], items[-1])


HOLDERS: list[Callable[[list[Any]], Any]] = [
    list,
    list,
    keyed,
    keyed,
    tuple,
    lambda items: collections.deque(items),
    lambda items: collections.OrderedDict(keyed(items)),
    lambda items: types.MappingProxyType(keyed(items)),
    lambda items: dict(enumerate(items)),
    lambda items: own_dict(**{f"field{index}": item for index, item in enumerate(items)}),
    lambda items: Data(*two(items)),
    lambda items: SlimData(*two(items)),
    lambda items: Attrs(*two(items)),
    lambda items: Model(x=two(items)[0], y=two(items)[1]),
    lambda items: Struct(*two(items)),
    lambda items: Unseen(*two(items)),
    lambda items: Row(*two(items)),
    lambda items: Tagged(two(items)[0], y=two(items)[1]),
    lambda items: Pair(*two(items)),
    in_object_array,
]

carried = st.sampled_from(CARRIED).map(lambda make: make())
culprits = st.sampled_from(sorted(CULPRITS)).map(lambda name: CULPRITS[name]())
anything = st.one_of(json_values(max_leaves=5), carried, carried, culprits, st.just(msgspec.UNSET))


@st.composite
def holding(draw: st.DrawFn, inner: st.SearchStrategy[Any], around: st.SearchStrategy[Any]) -> tuple[Any, Any]:
    """A value at some depth, among others at every level: the value itself, and what holds it."""
    value = held = draw(inner)
    for _ in range(draw(st.integers(1, 5))):
        before, after = draw(st.lists(around, max_size=3)), draw(st.lists(around, max_size=3))
        held = draw(st.sampled_from(HOLDERS))([*before, held, *after])
    return value, held


STEP = re.compile(r"\.(?P<name>\w+)|\[(?P<index>\d+)\]|\[(?P<key>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")\]")


def along(value: Any, path: str) -> list[Any]:
    """All that lies on a path, from the value to what the path names; of a long one, what its beginning names."""
    assert path.startswith("$")
    path, cut, _ = path.partition("…")
    steps, position = [value], 1
    while position < len(path):
        step = STEP.match(path, position)
        if step is None and cut:
            break
        assert step is not None, path
        position = step.end()
        here = steps[-1]
        if step["index"] is not None:
            steps.append(here[int(step["index"])])
            continue
        name = step["name"] if step["name"] is not None else ast.literal_eval(step["key"])
        if hasattr(here, "keys"):
            steps.append(next(item for key, item in here.items() if spelled(key) == name))
        else:
            steps.append(getattr(here, name))
    return steps


def spelled(key: Any) -> str:
    """A key as JSON has it, for the keys that stand on a path here."""
    if isinstance(key, enum.Enum):
        return spelled(key.value)
    return key if isinstance(key, str) else json.dumps(key)


def answer(call: Callable[[], bytes]) -> bytes | tuple[str, str]:
    """What a call returns, or the path and the problem of its refusal."""
    try:
        return call()
    except RenderingError as refusal:
        return refusal.path, refusal.problem


def encoded(value: Any) -> bytes:
    """The law by its definition, which walks every value."""
    return msgspec.json.encode(canonical(value))


# --- the text ---


@given(json_values())
def test_what_json_carries_reads_as_compact_json_with_its_keys_in_order(value: Any) -> None:
    rendered = render(value, attach=False)
    if isinstance(value, str):
        assert rendered.text == value
        assert rendered.media_type == TEXT
        return
    assert rendered.media_type == JSON
    again = json.loads(rendered.text)
    assert again == value
    compact = json.dumps(again, ensure_ascii=False, separators=(",", ":"))
    assert compact == json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if not re.search(r"\d[.e]", compact):  # numbers with a point may be spelled in more than one way
        assert rendered.text == compact


@given(st.one_of(json_values(), carried))
def test_the_size_is_code_points_and_the_bytes_are_those_of_the_text(value: Any) -> None:
    rendered = render(value, attach=False)
    if rendered.blobs:
        assert rendered.size == len(rendered.data)
        return
    assert rendered.size == len(rendered.text)
    assert rendered.data == rendered.text.encode()


@pytest.mark.parametrize(
    "unit", ["a", "é", "😀", "e\u0301", "👩\u200d👩\u200d👧", "\u0000", '"', "\\", "\u2028", "ß", "\U0010ffff"]
)
@pytest.mark.parametrize("times", [1, 3, 5000])
def test_one_unit_counts_alike_in_text_and_in_json(unit: str, times: int) -> None:
    text = unit * times
    assert render(text).size == len(text)
    rendered = render({"k": text})
    assert (
        rendered.size == len(rendered.text) == len(json.dumps({"k": text}, ensure_ascii=False, separators=(",", ":")))
    )
    assert render(Encoded(text.encode(), "text/plain")).size == len(text)


def test_text_is_itself_and_nothing_is_put_around_it() -> None:
    for text in ("", "a", '"quoted"', '{"a": 1}', "é\n"):
        rendered = render(text)
        assert (rendered.text, rendered.media_type, rendered.data) == (text, TEXT, text.encode())


@pytest.mark.parametrize("value", [Str("é"), SlimStr("é"), np.str_("é")])
def test_text_in_another_class_is_text_and_comes_out_plain(value: str) -> None:
    rendered = render(value)
    assert type(rendered.text) is str
    assert (rendered.text, rendered.media_type) == ("é", TEXT)


def test_an_enum_is_what_it_holds_whatever_else_it_is() -> None:
    assert (render(Word.ONE).text, render(Word.ONE).media_type) == ("one", TEXT)
    assert (render(Color.RED).text, render(Color.RED).media_type) == ('"red"', JSON)
    assert (render(Odd.A).text, render(Odd.A).media_type) == ("a", TEXT), "it is text, whatever its value is"
    assert [render([*range(width), Odd.A, None]).data[-9:] for width in (1, 200)] == [b',"a",null]'[-9:]] * 2


@given(st.one_of(json_values(), carried), st.integers(0, 80))
def test_head_and_tail_are_those_of_the_text_without_decoding_it(value: Any, chars: int) -> None:
    rendered, whole = render(value, attach=False), render(value, attach=False).text
    lazily = rendered.decoded is None
    assert rendered.head(chars) == whole[:chars]
    assert rendered.tail(chars) == (whole[-chars:] if chars else "")
    assert (rendered.decoded is None) is lazily


@pytest.mark.parametrize("unit", ["a", "é", "ア", "😀", "e\u0301", "a😀"])
def test_head_and_tail_are_whole_whatever_bytes_a_character_takes(unit: str) -> None:
    text = unit * 50
    for chars in range(len(text) + 3):
        rendered = render(Encoded(text.encode(), "text/plain"))
        assert rendered.head(chars) == text[:chars]
        assert rendered.tail(chars) == (text[-chars:] if chars else "")
        assert rendered.decoded is None


def test_a_large_value_is_not_decoded_before_it_is_read() -> None:
    value = {"rows": [{"id": index, "text": "é" * 100} for index in range(5000)]}
    rendered = render(value)
    assert rendered.size > 500_000
    assert rendered.data
    assert rendered.head(10) == '{"rows":[{'
    assert rendered.tail(3) == '"}]}'[-3:]
    assert rendered.decoded is None
    assert rendered.text is rendered.text
    assert rendered.decoded is not None


def test_text_is_kept_by_reference_and_its_bytes_are_made_once() -> None:
    for text in ("a" * 1000, "é" * 1000):
        rendered = render(text)
        assert rendered.text is text
        assert rendered.data is rendered.data
    assert Rendered(2, TEXT, None, "ab").data == b"ab"


@given(texts())
def test_text_that_is_there_already_renders_as_if_a_tool_had_returned_it(text: str) -> None:
    assert render_text(text) == render(text)


# --- one law, looked at quickly or walked ---


@given(holding(anything, anything))
@example((None, [own_dict(x={3, 1, 2}), {1: "a"}]))
@example((None, [own_dict(x=1, y=2), {1: "a", "1": "b"}]))
@example((None, [Unseen(NAN), None]))
@example((None, {"a": msgspec.Raw(b"{")}))
@example((None, [nest(MAX_DEPTH - 1), nest(MAX_DEPTH)]))
@example((None, [[decimal.Decimal(1)], [datetime.datetime(1900, 1, 1, tzinfo=LegalTime())]]))
def test_the_quick_look_and_the_walk_agree(case: tuple[Any, Any]) -> None:
    _, value = case
    expected = answer(lambda: encoded(value))
    assert answer(lambda: render(value, attach=False).data) == expected
    if isinstance(expected, bytes):
        json.loads(expected, parse_constant=pytest.fail)


@given(holding(carried, st.one_of(json_values(max_leaves=3), carried)))
def test_what_json_can_carry_is_carried_wherever_it_stands(case: tuple[Any, Any]) -> None:
    _, value = case
    assert render(value, attach=False).data == encoded(value)


@given(holding(culprits, st.one_of(json_values(max_leaves=3), carried)))
def test_what_json_cannot_carry_is_refused_by_its_path_wherever_it_stands(case: tuple[Any, Any]) -> None:
    culprit, value = case
    with pytest.raises(RenderingError) as caught:
        render(value)
    assert any(step is culprit for step in along(value, caught.value.path))
    assert str(caught.value) == f"{caught.value.path}: {caught.value.problem}"


@pytest.mark.parametrize("name", sorted(CULPRITS))
def test_no_culprit_becomes_a_success_alone_or_within(name: str) -> None:
    if name not in ("wire bytes", "a lone surrogate"):  # those two are values of their own at the top
        with pytest.raises(RenderingError, match=r"^\$"):
            render(CULPRITS[name]())
    for holder, deeper in itertools.product(HOLDERS, (1, [[{"deep": [None, 0.5]}]])):
        culprit = CULPRITS[name]()
        value = holder([deeper, culprit])
        with pytest.raises(RenderingError) as caught:
            render(value)
        assert any(step is culprit for step in along(value, caught.value.path)), caught.value.path


@pytest.mark.parametrize("width", [0, 1, 100, 5000])
@pytest.mark.parametrize("depth", [1, 2, 7, 60])
def test_one_nan_is_found_at_any_width_and_depth(width: int, depth: int) -> None:
    rows: Any = [*({"a": None, "b": 1.5} for _ in range(width)), {"mean": NAN}]
    for _ in range(depth):
        rows = {"in": rows, "beside": [0.5] * width}
    with pytest.raises(RenderingError) as caught:
        render(rows)
    assert caught.value.path == "$" + ".in" * depth + f"[{width}].mean"


@pytest.mark.parametrize("number", [NAN, math.inf, -math.inf])
@pytest.mark.parametrize("below", [[], [1], [[0.5]], {"a": {"b": [None]}}, nest(20), "text"], ids=repr)
def test_a_nan_is_found_also_where_its_neighbours_go_deeper(number: float, below: Any) -> None:
    cases = [
        ({"mean": number, "rows": below}, "$.mean"),
        ([below, number], "$[1]"),
        ([[below, (number,)]], "$[0][1][0]"),
    ]
    for value, path in cases:
        with pytest.raises(RenderingError) as caught:
            render(value)
        assert caught.value.path == path


@pytest.mark.parametrize("depth", range(MAX_DEPTH - 2, MAX_DEPTH + 4))
@pytest.mark.parametrize("leaf", [1, [], {}, (), None, "é", b"x", decimal.Decimal(1), set()], ids=repr)
@pytest.mark.parametrize("holder", [lambda inner: [inner], lambda inner: {"a": inner}, lambda inner: (inner, 1)])
def test_the_deepest_level_is_the_same_for_both(depth: int, leaf: Any, holder: Callable[[Any], Any]) -> None:
    value = leaf
    for _ in range(depth):
        value = holder(value)
    expected = answer(lambda: encoded(value))
    assert answer(lambda: render(value).data) == expected
    if isinstance(expected, tuple):
        assert expected[1] == f"nested deeper than {MAX_DEPTH} levels, or within itself"
    else:
        assert depth <= MAX_DEPTH + 1


def test_values_at_the_same_depth_are_refused_or_carried_whatever_stands_beside_them() -> None:
    assert render(nest(MAX_DEPTH)).text == "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1)
    with pytest.raises(RenderingError):
        render(nest(MAX_DEPTH + 1))
    with pytest.raises(RenderingError):
        render([1, {"a": None}, nest(MAX_DEPTH)])


def test_a_plain_value_is_never_walked(monkeypatch: pytest.MonkeyPatch) -> None:
    walked: list[object] = []

    def walk(value: object) -> Any:
        walked.append(value)
        return canonical(value)

    monkeypatch.setattr("coatcheck.results.rendering.canonical", walk)
    value: Any
    for value in ([{"a": 1, "b": None, "c": 1.5, "d": "é", "e": (True,)}] * 3, {}, [], 1, None, True, 1.5, [[[]]]):
        assert json.loads(render(value).text) == json.loads(json.dumps(value))
    at = datetime.datetime(2031, 1, 2, tzinfo=datetime.UTC)
    assert render({"at": at, "rows": [{"at": at}]}).text.count('"at":"2031-01-02T00:00:00Z"') == 2
    assert walked == []
    assert render([{1: 2}]).text == '[{"1":2}]'
    assert walked == [[{1: 2}]]


def test_what_is_unset_is_left_out_of_a_record_and_is_no_value_elsewhere() -> None:
    for record in (
        Data(msgspec.UNSET, 1),
        SlimData(msgspec.UNSET, 1),
        Attrs(msgspec.UNSET, 1),
        Struct(msgspec.UNSET, 1),
    ):
        assert render(record).text == '{"y":1}'
    values = [msgspec.UNSET, [msgspec.UNSET], {"a": msgspec.UNSET}, Row(msgspec.UNSET)]
    for value, path in zip(values, ["$", "$[0]", "$.a", "$.x"], strict=True):
        with pytest.raises(RenderingError) as caught:
            render(value)
        assert caught.value.path == path


# --- what would come out differently tomorrow, or elsewhere ---

SETS = """
import datetime, enum, sys
from coatcheck.results.rendering import render
Word = enum.StrEnum("Word", ["ONE", "TWO"])
value = {
    "texts": {"b", "a", "é", "", "zz"}, "mixed": {1, "1", None, 2.5, ("x", 1), frozenset({"q", "p"}), True},
    "tuples": {("b", "x"), ("a", "y")}, "nested": {frozenset({"c", "d"}), frozenset({"a", "z"})},
    "words": {Word.ONE, Word.TWO, "three"}, "bytes": {b"b", b"a"},
    "dates": {datetime.date(2031, 1, 2), datetime.date(2030, 1, 2)},
}
sys.stdout.buffer.write(render(value).data)
"""


def test_sets_come_out_the_same_in_every_process() -> None:
    outputs = {
        subprocess.run(
            [sys.executable, "-c", SETS], env={**os.environ, "PYTHONHASHSEED": seed}, check=True, capture_output=True
        ).stdout
        for seed in ("1", "2", "3")
    }
    [output] = outputs
    value = json.loads(output)
    assert value["texts"] == ["", "a", "b", "zz", "é"]
    assert value["tuples"] == [["a", "y"], ["b", "x"]]
    assert value["nested"] == [["a", "z"], ["c", "d"]]
    assert value["bytes"] == ["YQ==", "Yg=="]


@given(st.lists(st.one_of(st.integers(), texts(), st.none(), st.tuples(texts(), st.integers())), unique=True))
def test_a_set_reads_the_same_in_whatever_order_it_was_filled(items: list[Any]) -> None:
    assert render(set(items)).data == render({*items[::-1]}).data
    assert sorted(json.loads(render(set(items)).text), key=repr) == sorted(json.loads(json.dumps(items)), key=repr)


# --- the rows of the values that users trip over ---


def test_h1_nan_and_infinity_are_errors_that_name_the_path() -> None:
    for number in (NAN, math.inf, -math.inf):
        with pytest.raises(RenderingError, match=r"^\$\.mean: .*number") as caught:
            render({"count": 0, "mean": number})
        assert str(number) in caught.value.problem
    with pytest.raises(RenderingError, match=r"^\$\.rows\[3\]\.mean: "):
        render({"rows": [{"mean": 1.0}, {"mean": None}, {"mean": 2.0}, {"mean": NAN}]})


def test_h2_nothing_carries_a_repr() -> None:
    with pytest.raises(RenderingError, match=r"^\$\.lock: a value of type _thread\.lock"):
        render({"lock": threading.Lock()})
    with pytest.raises(RenderingError, match=r"^\$\[0\]: a value of type generator"):
        render([generator()])


def test_h2_a_coroutine_that_nobody_awaited_is_named_and_leaves_no_warning() -> None:
    async def never() -> None:
        """Nobody comes here."""

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for value in (never(), [never()], {"a": (1, never())}, Data(never())):
            with pytest.raises(RenderingError, match=r"a coroutine that was never awaited .*never"):
                render(value)
            del value
        gc.collect()
    assert [str(warning.message) for warning in seen] == []


def test_h3_every_type_of_the_row_has_its_rendering() -> None:
    value = {"f": b"\xff\xfe", "t": datetime.datetime(2031, 1, 2), "s": {1, 2}, "d": decimal.Decimal("1.10")}
    assert render(value).text == '{"f":"//4=","t":"2031-01-02T00:00:00","s":[1,2],"d":"1.10"}'


def test_h4_a_lone_surrogate_is_an_error_that_names_the_path() -> None:
    with pytest.raises(RenderingError, match=r"^\$\.name: text with a lone surrogate .* at character 1"):
        render({"name": "a\ud800b"})
    with pytest.raises(RenderingError, match=r"^\$: text with a lone surrogate"):
        render("a\ud800b")
    with pytest.raises(RenderingError, match=r"^\$\['\\ud800'\]: "):
        render({"\ud800": 1})
    assert render({"name": "\U0001f600"}).text == '{"name":"\U0001f600"}'


@pytest.mark.parametrize(
    "make",
    [
        lambda: nest(100_000),
        lambda: within_itself(dict),
        lambda: within_itself(list),
        lambda: within_itself(collections.OrderedDict),
        lambda: [1, within_itself(list), 2],
    ],
)
def test_h5_depth_is_an_error_and_no_crash(make: Callable[[], Any]) -> None:
    with pytest.raises(RenderingError, match=f"nested deeper than {MAX_DEPTH} levels, or within itself"):
        render(make())


def test_h5_records_within_themselves_are_errors_as_well() -> None:
    data, struct, model, attr = Data(1), Struct(1), Model(x=1), Attrs(1)
    data.x, struct.x, model.x, attr.x = data, struct, model, attr
    array = np.array([None], dtype=object)
    array[0] = array
    values: list[Any] = [data, struct, model, attr, array]
    for value in values:
        with pytest.raises(RenderingError, match=r"^\$"):
            render(value)


def test_what_a_value_raises_when_it_is_asked_is_an_error_with_its_path() -> None:
    class Sulky(dict[str, int]):
        def items(self) -> Any:
            raise OSError("not today")

    for value, path in (
        ([1, Unfinished()], "$[1]"),
        ({"a": {"b": Unfinished()}}, "$.a.b"),
        ({"s": [Sulky()]}, "$.s[0]"),
    ):
        with pytest.raises(RenderingError) as caught:
            render(value)
        assert caught.value.path == path
    with pytest.raises(RenderingError, match="OSError: not today"):
        render(Data(Sulky()))


def test_numbers_of_any_length_that_python_writes_are_written_whole() -> None:
    assert render([2**64, -(2**70), 10**4000]).text == f"[{2**64},{-(2**70)},{10**4000}]"
    with pytest.raises(RenderingError, match=r"^\$\.n\[1\]: a whole number of 16610 bits"):
        render({"n": [1, 10**5000]})


def test_an_instant_keeps_its_instant_where_json_has_no_word_for_its_offset() -> None:
    at = datetime.datetime(1900, 1, 1, tzinfo=LegalTime())
    assert datetime.datetime.fromisoformat(json.loads(render([at]).text)[0]) == at
    assert render({"at": at}).text == '{"at":"1899-12-31T23:40:28Z"}'
    assert render({at: 1}).text == '{"1899-12-31T23:40:28Z":1}'


@given(
    st.datetimes(datetime.datetime(2, 1, 1), datetime.datetime(9998, 1, 1), timezones=st.timezones()), st.datetimes()
)
def test_every_date_reads_back_as_the_same_instant(aware: datetime.datetime, naive: datetime.datetime) -> None:
    first, second = json.loads(render([aware, naive]).text)
    assert datetime.datetime.fromisoformat(first).astimezone(datetime.UTC) == aware.astimezone(datetime.UTC)
    assert datetime.datetime.fromisoformat(second) == naive


def test_a_struct_keeps_its_own_rules_of_writing() -> None:
    assert render(Tagged(1)).text == '{"type":"t","x":1}'
    changed = Tagged({2, 1}, {"b", "a"}, frozenset({9, 8}), None)
    assert render(changed).text == '{"type":"t","x":[1,2],"someWords":["a","b"],"known":[8,9],"y":null}'
    assert render([Row({2, 1})]).text == "[[[1,2],0]]"
    assert changed.some_words == {"b", "a"}


def test_a_refusal_stays_short_whatever_the_keys_are() -> None:
    for key in ("k" * 100_000, "é " * 50_000):
        for value in ({key: NAN}, {key: {1: 1, "1": 2}}, [{key: b""}, {key: object()}]):
            with pytest.raises(RenderingError) as caught:
                render(value)
            assert len(str(caught.value)) < 600


def test_a_path_of_any_length_keeps_its_beginning_and_its_end_in_300_characters() -> None:
    for step in ("k" * 70, "é " * 35, "\x00" * 20, "a"):
        value: Any = {"last": NAN}
        for _ in range(150):
            value = {step: value}
        with pytest.raises(RenderingError) as caught:
            render({"first": value})
        path = caught.value.path
        assert len(path) == 300
        assert path.startswith("$.first")
        assert path.endswith(".last")
        assert "…" in path


# --- what is hostile, and what is endless ---


class Liar:
    """Its class raises when it is asked for, and so does its text."""

    @property
    def __class__(self) -> Any:
        raise RuntimeError("no class")

    @__class__.setter
    def __class__(self, value: Any) -> None:
        raise RuntimeError("no class")

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Sullen(dict[str, int]):
    def __init__(self, error: Exception) -> None:
        super().__init__(a=1)
        self.error = error

    def items(self) -> Any:
        raise self.error


class Unhashable(type):
    def __hash__(cls) -> int:
        raise RuntimeError("no hash")


class OfUnhashable(metaclass=Unhashable):
    pass


def released() -> memoryview:
    view = memoryview(bytearray(b"abc"))
    view.release()
    return view


HOSTILE: list[Callable[[], Any]] = [
    released,
    Liar,
    OfUnhashable,
    lambda: Sullen(Mute()),
    lambda: Sullen(RecursionError("deep")),
    lambda: Sullen(MemoryError()),
    lambda: Sullen(UnicodeError("a\ud800")),
]


@pytest.mark.parametrize("make", HOSTILE)
def test_whatever_a_hostile_value_does_ends_in_one_kind_of_error(make: Callable[[], Any]) -> None:
    for holder, path in ((lambda item: item, "$"), (lambda item: [1, item], "$[1]"), (lambda item: {"a": item}, "$.a")):
        for attach in (True, False):
            with pytest.raises(RenderingError) as caught:
                render(holder(make()), attach=attach)
            assert caught.value.path == path
        with pytest.raises(RenderingError) as caught:
            canonical(holder(make()))
        assert caught.value.path == path
    for value in ([{"type": "image", "mimeType": "image/png", "data": make()}], Data(make()), Struct(make())):
        with pytest.raises(RenderingError):
            render(value)


def shared(kind: Callable[[Any, Any], Any], levels: int) -> Any:
    """A value of a few bytes for each level, which doubles with every one."""
    value: Any = ["x" * 10]
    for _ in range(levels):
        value = kind(value, value)
    return value


@pytest.mark.parametrize(
    "kind",
    [
        lambda a, b: [a, b],
        lambda a, b: (a, b),
        lambda a, b: {"a": a, "b": b},
        lambda a, b: {1: a, 2: b},
        lambda a, b: collections.deque([a, b]),
        lambda a, b: [a, b, {1}],
        Data,
        Attrs,
        Struct,
        Row,
        Unseen,
        Pair,
        lambda a, b: in_object_array([a, b]),
    ],
)
def test_what_is_shared_over_and_over_is_refused_before_it_is_written(
    kind: Callable[[Any, Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coatcheck.results.rendering.MAX_VALUES", 5000)
    monkeypatch.setattr("coatcheck.results.conversion.MAX_VALUES", 5000)
    assert render(shared(kind, 5)).data == encoded(shared(kind, 5))
    for value in (shared(kind, 40), {"a": [shared(kind, 40)]}, [shared(kind, 4)] * 400):
        with pytest.raises(RenderingError, match="more than 20000000 values"):
            render(value)


def test_a_broadcast_array_is_refused_before_it_is_a_list() -> None:
    with pytest.raises(RenderingError, match=r"^\$\.a: more than 20000000 values"):
        render({"a": np.broadcast_to(np.int8(1), (10**6, 10**6))})


def test_twenty_million_values_are_the_bound_and_forty_levels_do_not_reach_memory() -> None:
    with pytest.raises(RenderingError, match=r"^\$: more than 20000000 values"):
        render(shared(lambda a, b: [a, b], 40))


@pytest.mark.parametrize("rows", [255, 256, 257, 513, 1000])
def test_a_long_list_of_records_reads_as_a_short_one_does(rows: int) -> None:
    value: list[Any] = [Data(index, {"b", "a"}) for index in range(rows)]
    assert render(value).data == encoded(value)
    value[-1] = Data(1, NAN)
    with pytest.raises(RenderingError) as caught:
        render(value)
    assert caught.value.path == f"$[{rows - 1}].y"


def test_a_long_list_of_records_is_never_there_twice() -> None:
    value = [Data(index, ["text", index]) for index in range(5000)]
    tracemalloc.start()
    try:
        size = len(render(value).data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * size


def test_a_value_is_encoded_once_where_nothing_must_be_converted(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    encode = msgspec.json.Encoder().encode

    def count(value: object) -> bytes:
        seen.append(value)
        return encode(value)

    monkeypatch.setattr("coatcheck.results.rendering._encode", count)
    for value in ([1, None], [{1: 2}], [{1, 2}], Data(1), [Data(1)]):
        seen.clear()
        render(value)
        assert len(seen) == 1


@given(st.lists(st.one_of(json_values(max_leaves=4), carried), max_size=10))
def test_the_quick_look_and_the_walk_agree_on_wide_levels(value: list[Any]) -> None:
    for wide in (value, [*range(70), *value], [*value, *range(70)], [value, [0.5] * 70]):
        assert render(wide, attach=False).data == encoded(wide)


@pytest.mark.parametrize("width", [1, 63, 64, 65, 66, 200])
@pytest.mark.parametrize(
    "culprit",
    [NAN, math.inf, datetime.time(1, tzinfo=LegalTime()), msgspec.Raw(b"1")],
    ids=lambda value: type(value).__name__,
)
def test_no_leaf_hides_in_a_wide_level(width: int, culprit: Any) -> None:
    at = datetime.date(2031, 1, 2)
    for place in {0, width // 2, width - 1}:
        leaves: list[Any] = [1, 0.5, None, at, []]
        for leaf in leaves:
            value = [leaf] * width
            value[place] = culprit
            for holder, prefix in ((lambda item: item, "$"), (lambda item: [None, item], "$[1]")):
                with pytest.raises(RenderingError) as caught:
                    render(holder(value))
                assert caught.value.path == f"{prefix}[{place}]"


# --- binary and wire bytes ---


@pytest.mark.parametrize("value", [b"\xff\xfe\x00", bytearray(b"\xff\xfe\x00"), memoryview(b"\xff.\xfe.\x00.")[::2]])
def test_a_whole_bytes_value_is_binary_and_counts_by_its_bytes(value: Any) -> None:
    rendered = render(value)
    [blob] = rendered.blobs
    assert (blob.media_type, blob.data) == ("application/octet-stream", b"\xff\xfe\x00")
    assert (rendered.size, rendered.data) == (3, b"\xff\xfe\x00")
    assert rendered.media_type == "application/octet-stream"
    assert rendered.text == describe_blob(blob) == "[application/octet-stream, 3 bytes, attached]"
    assert rendered.head(5) == "[appl"
    assert rendered.tail(2) == "d]"


def test_wire_text_is_text_of_its_own_type() -> None:
    rendered = render(Encoded("é<br>".encode(), "text/HTML; charset=utf-8"))
    assert (rendered.text, rendered.size, rendered.media_type) == ("é<br>", 5, "text/html")


@pytest.mark.parametrize("media_type", ["application/json", "application/ld+json"])
def test_wire_json_is_kept_letter_by_letter(media_type: str) -> None:
    raw = b' {"b" : 1.0,\n"a":"\\u00e9"} '
    rendered = render(Encoded(raw, media_type))
    assert rendered.data is raw
    assert (rendered.size, rendered.media_type, rendered.blobs) == (len(raw), media_type, ())
    assert rendered.decoded is None


@pytest.mark.parametrize(
    ("raw", "media_type", "problem"),
    [
        (b"\xff", "text/plain", r"^\$: text/plain that is not UTF-8 at byte 0"),
        ("é".encode("latin-1"), "text/csv", r"^\$: text/csv that is not UTF-8 at byte 0"),
        (b'{"a": "\xe9"}', "application/json", r"^\$: application/json that is not UTF-8 at byte 7"),
        (b'{"a": ', "application/json", r"^\$: application/json that is not JSON"),
        (b"", "application/json", r"^\$: application/json that is not JSON"),
        (b"{} {}", "application/json", r"^\$: application/json that is not JSON"),
        (b"NaN", "application/problem+json", r"^\$: application/problem\+json that is not JSON"),
        (b"[" * 100_000 + b"]" * 100_000, "application/json", r"^\$: application/json that is not JSON"),
    ],
)
def test_wire_bytes_that_are_not_what_they_say_are_refused(raw: bytes, media_type: str, problem: str) -> None:
    with pytest.raises(RenderingError, match=problem):
        render(Encoded(raw, media_type))


def test_wire_bytes_of_another_type_are_binary() -> None:
    rendered = render(Encoded(b"\x89PNG", "image/PNG"))
    [blob] = rendered.blobs
    assert (blob.media_type, blob.data, rendered.size, rendered.media_type) == ("image/png", b"\x89PNG", 4, "image/png")
    assert rendered.text == "[image/png, 4 bytes, attached]"


@pytest.mark.parametrize("media_type", ["application/jsonl", "application/xml", "application/yaml", "text/csv"])
def test_wire_bytes_that_are_text_by_their_type_read_as_text(media_type: str) -> None:
    raw = '{"a":"é"}\n{"a":2}\n'.encode()
    rendered = render(Encoded(raw, media_type))
    assert (rendered.text, rendered.size, rendered.blobs) == (raw.decode(), len(raw.decode()), ())
    assert rendered.media_type == media_type


def test_xml_in_another_encoding_is_binary() -> None:
    raw = '<?xml version="1.0" encoding="latin-1"?><a>é</a>'.encode("latin-1")
    rendered = render(Encoded(raw, "application/xml"))
    assert (rendered.data, rendered.size, len(rendered.blobs)) == (raw, len(raw), 1)
