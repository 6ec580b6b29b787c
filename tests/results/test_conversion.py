"""From any Python value to plain JSON values: what each type becomes, and what is refused."""

from __future__ import annotations

import collections
import copy
import dataclasses
import datetime
import decimal
import enum
import json
import math
import subprocess
import sys
import types
import uuid
from collections.abc import Mapping
from typing import Any, NamedTuple

import attrs
import msgspec
import numpy as np
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coatcheck.errors import RenderingError
from coatcheck.results.conversion import MAX_DEPTH, canonical, is_steady
from coatcheck.testing.strategies import json_values, texts

UTC = datetime.UTC
masked: Any = np.ma.array


class Point(NamedTuple):
    x: Any
    y: Any


class Suit(enum.Enum):
    HEARTS = "h"
    RANKS = ({2, 1}, 3)


class Size(enum.IntEnum):
    SMALL = 1


class Mood(enum.StrEnum):
    GOOD = "good"


@dataclasses.dataclass(frozen=True)
class Place:
    name: str
    tags: Any = ()
    _note: str = "kept"


@attrs.frozen
class Parcel:
    weight: float
    labels: Any = attrs.field(factory=list)


class Person(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow", serialize_by_alias=True)

    full_name: str = pydantic.Field(serialization_alias="fullName")
    tags: Any = None

    @pydantic.computed_field
    def shout(self) -> str:
        return self.full_name.upper()


class Order(msgspec.Struct, rename="camel"):
    order_id: Any
    line_items: Any = ()


@given(json_values())
def test_what_needs_no_conversion_is_returned_by_reference(value: Any) -> None:
    before = copy.deepcopy(value)
    assert canonical(value) is value
    assert value == before


@given(json_values(), st.sampled_from([{1}, (1,), Suit.HEARTS, np.int64(1)]))
def test_a_value_is_not_changed_by_being_converted(value: Any, odd: Any) -> None:
    holder = {"plain": value, "odd": [odd]}
    before = copy.deepcopy(holder)
    converted = canonical(holder)
    assert holder == before
    assert holder["odd"][0] is odd
    assert converted["plain"] is value
    assert list(converted) == ["plain", "odd"]


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        ((1, (2, ())), [1, [2, []]]),
        (Point(1, {2, 1}), [1, [1, 2]]),
        (collections.deque([1, (2,)]), [1, [2]]),
        ({3, 1, 2}, [1, 2, 3]),
        (frozenset("ba"), ["a", "b"]),
        ({(2, "b"), (1, "a")}, [[1, "a"], [2, "b"]]),
        ({1, "1", None}, ["1", 1, None]),
        ({frozenset({2, 3}), frozenset({1, 9})}, [[1, 9], [2, 3]]),
        ({Place("b"), Place("a")}, [{"name": name, "tags": [], "_note": "kept"} for name in "ab"]),
        (collections.OrderedDict(b=1, a={2}), {"b": 1, "a": [2]}),
        (collections.defaultdict(lambda: (0,), a=(1,)), {"a": [1]}),
        (collections.Counter("aab"), {"a": 2, "b": 1}),
        (collections.ChainMap({"a": 1}, {"b": 2}), {"b": 2, "a": 1}),
        (collections.UserDict(a=(1,)), {"a": [1]}),
        (types.MappingProxyType({"a": (1,)}), {"a": [1]}),
        (Suit.HEARTS, "h"),
        (Suit.RANKS, [[1, 2], 3]),
        (Size.SMALL, 1),
        (Mood.GOOD, "good"),
        (b"\xff\xfe", "//4="),
        (bytearray(b"ab"), "YWI="),
        (memoryview(b"a.b.")[::2], "YWI="),
        (decimal.Decimal("1.10"), "1.10"),
        (decimal.Decimal("NaN"), "NaN"),
        (Place("x", {2, 1}), {"name": "x", "tags": [1, 2], "_note": "kept"}),
        (Parcel(1.5, ("a",)), {"weight": 1.5, "labels": ["a"]}),
        (
            Person.model_validate({"full_name": "a", "tags": {2, 1}, "more": (1,)}),
            {"fullName": "a", "tags": [1, 2], "more": [1], "shout": "A"},
        ),
        (np.float64(1.5), 1.5),
        (np.float32(0.1), float(np.float32(0.1))),
        (np.int64(2**62), 2**62),
        (np.bool_(True), True),
        (np.str_("é"), "é"),
        (np.bytes_(b"ab"), "YWI="),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (np.array(3.5), 3.5),
        (np.array([], dtype="i8"), []),
        (np.array([Suit.HEARTS, {2, 1}], dtype=object), ["h", [1, 2]]),
        (np.array([(1, 2.5, "a")], dtype=[("a", "i4"), ("b", "f8"), ("c", "U1")]), [[1, 2.5, "a"]]),
        (masked([1, 2]), [1, 2]),
        (masked([1, 2], mask=[0, 0]), [1, 2]),
        (masked([[1, 2]], mask=[[0, 0]]), [[1, 2]]),
        (masked([(1, 2.5)], dtype=[("a", "i4"), ("b", "f8")], mask=[(0, 0)]), [[1, 2.5]]),
        (masked((1, 2.5), dtype=[("a", "i4"), ("b", "f8")], mask=(0, 0)), [1, 2.5]),
        (np.datetime64("2031-01-02"), datetime.date(2031, 1, 2)),
        (np.datetime64("2031-01-02T03:04:05", "s"), datetime.datetime(2031, 1, 2, 3, 4, 5)),
        (np.datetime64("2031-01-02T03:04:05.123456789"), "2031-01-02T03:04:05.123456789"),
        (np.array(["2031-01-02"], dtype="M8[ns]"), ["2031-01-02T00:00:00.000000000"]),
        (np.timedelta64(90, "s"), datetime.timedelta(seconds=90)),
        (datetime.datetime(2031, 1, 2, tzinfo=UTC), datetime.datetime(2031, 1, 2, tzinfo=UTC)),
        (uuid.UUID(int=5), uuid.UUID(int=5)),
        (datetime.timedelta(1), datetime.timedelta(1)),
        (10**30, 10**30),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_type_has_one_stated_form(value: Any, plain: Any) -> None:
    converted = canonical(value)
    assert msgspec.json.encode(converted) == msgspec.json.encode(plain)
    assert msgspec.json.encode(canonical({"k": [value]})) == msgspec.json.encode({"k": [plain]})
    assert canonical(converted) == converted


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("k", "k"),
        (Mood.GOOD, "good"),
        (Suit.HEARTS, "h"),
        (Size.SMALL, "1"),
        (np.str_("n"), "n"),
        (None, "null"),
        (True, "true"),
        (False, "false"),
        (-7, "-7"),
        (2.5, "2.5"),
        (np.float64(2.5), "2.5"),
        (uuid.UUID(int=5), "00000000-0000-0000-0000-000000000005"),
        (datetime.date(2031, 1, 2), "2031-01-02"),
        (datetime.datetime(2031, 1, 2, tzinfo=UTC), "2031-01-02T00:00:00Z"),
        (decimal.Decimal("1.10"), "1.10"),
    ],
    ids=repr,
)
def test_a_key_is_written_so_that_it_reads_back(key: Any, name: str) -> None:
    converted = canonical({key: 1})
    assert converted == {name: 1}
    assert [type(key) for key in converted] == [str]


@given(
    st.dictionaries(
        st.one_of(texts(), st.integers(), st.booleans(), st.none(), st.floats(allow_nan=False, allow_infinity=False)),
        st.integers(),
    )
)
def test_no_entry_of_a_mapping_is_ever_lost(value: dict[Any, int]) -> None:
    try:
        converted = canonical(value)
    except RenderingError as refusal:
        assert "two keys of the mapping become one" in refusal.problem  # noqa: PT017 - a refusal is as good
    else:
        assert [*converted.values()] == [*value.values()]
        assert all(type(key) is str for key in converted)


@given(st.text(), st.lists(st.text(), max_size=4))
def test_text_is_carried_exactly_where_utf8_can(text: str, path: list[str]) -> None:
    value: Any = text
    for key in path:
        value = {key.encode(errors="replace").decode(): value}
    try:
        text.encode()
    except UnicodeEncodeError as error:
        with pytest.raises(RenderingError, match=f"at character {error.start}, which UTF-8 cannot carry"):
            canonical(value)
    else:
        assert canonical(value) is value


@pytest.mark.parametrize(
    ("value", "path", "problem"),
    [
        (math.nan, "$", "a float that is not a finite number (nan)"),
        ({"a b": [1, {"ok": 1, "é": math.inf}]}, "$['a b'][1].é", "a float that is not a finite number (inf)"),
        ({"a'b": math.nan}, '$["a\'b"]', "a float that is not a finite number (nan)"),
        ({1: math.nan}, "$['1']", "a float that is not a finite number (nan)"),
        ({1, math.nan}, "$", "a float that is not a finite number (nan)"),
        (Order(1, [math.nan]), "$.line_items[0]", "a float that is not a finite number (nan)"),
        (Person(full_name="x", tags=math.nan), "$.tags", "a float that is not a finite number (nan)"),
        ([np.array([[1, math.nan]])], "$[0][0][1]", "a float that is not a finite number (nan)"),
        ({"a": {1: 1, "1": 2}}, "$.a['1']", "two keys of the mapping become one in JSON: '1'"),
        (
            {"a": {math.nan: 1}},
            "$.a",
            "a mapping key that is no finite number (nan), which JSON cannot carry; use text",
        ),
        ({-math.inf: 1}, "$", "a mapping key that is no finite number (-inf)"),
        ({decimal.Decimal("NaN"): 1}, "$", "a mapping key that is no finite number (NaN)"),
        ({np.float64("nan"): 1}, "$", "a mapping key that is no finite number (nan)"),
        ([masked([1, 2], mask=[0, 1])], "$[0][1]", "a masked element, which JSON cannot carry"),
        ({"a": masked([[1.5, 2], [3, 4]], mask=[[0, 0], [1, 0]])}, "$.a[1][0]", "a masked element"),
        (np.ma.masked, "$", "a masked element"),
        ({"m": masked(["2031-01-02"], dtype="M8[D]", mask=[1])}, "$.m[0]", "a masked element"),
        (masked([{1}, None], dtype=object, mask=[0, 1]), "$[1]", "a masked element"),
        (masked((1, 2.5), dtype=[("a", "i4"), ("b", "f8")], mask=(0, 1)), "$[1]", "a masked element"),
        (
            masked([(1, 2.5)], dtype=[("a", "i4"), ("b", "f8")], mask=[(0, 1)]),
            "$[0][1]",
            "a masked element",
        ),
        ({"a": {b"x": 1}}, "$.a", "a mapping key of type bytes, which JSON cannot carry; use text"),
        ({"a": {np.int64(1): 1}}, "$.a", "a mapping key of type numpy.int64, which JSON cannot carry; use text"),
        ([object()], "$[0]", "a value of type object, which JSON cannot carry"),
        ([Suit], "$[0]", "a value of type enum.EnumType, which JSON cannot carry"),
        ([range(3)], "$[0]", "a value of type range, which JSON cannot carry"),
        ([collections.UserList([1])], "$[0]", "a value of type collections.UserList, which JSON cannot carry"),
        ([1j], "$[0]", "a value of type complex, which JSON cannot carry"),
        ([np.timedelta64(1, "Y")], "$[0]", "a value of type numpy.timedelta64, which JSON cannot carry"),
        ([msgspec.Raw(b"1")], "$[0]", "a value of type msgspec.Raw, which JSON cannot carry"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_refusal_names_the_path_and_what_is_there(value: Any, path: str, problem: str) -> None:
    with pytest.raises(RenderingError) as caught:
        canonical(value)
    assert caught.value.path == path
    assert caught.value.problem.startswith(problem)
    assert str(caught.value) == f"{path}: {caught.value.problem}"


def test_of_several_faults_the_first_in_order_is_named() -> None:
    with pytest.raises(RenderingError) as caught:
        canonical({"a": 1, "b": [object(), math.nan], "c": {b"": 1}})
    assert caught.value.path == "$.b[0]"


def test_a_value_may_hold_itself_twice_but_not_within() -> None:
    shared = {"x": {2, 1}}
    assert canonical([shared, shared]) == [{"x": [1, 2]}, {"x": [1, 2]}]
    loop: list[Any] = []
    loop.append({"again": loop})
    with pytest.raises(RenderingError, match=f"deeper than {MAX_DEPTH} levels, or within itself"):
        canonical(loop)


def test_a_mapping_that_is_no_dict_is_asked_for_its_items_alone() -> None:
    class Lazy(Mapping[str, int]):
        def __getitem__(self, key: str) -> int:
            return {"a": 1, "b": 2}[key]

        def __iter__(self) -> Any:
            return iter("ab")

        def __len__(self) -> int:
            return 2

    assert canonical(Lazy()) == {"a": 1, "b": 2}


def test_bytes_may_be_kept_for_whoever_looks_for_binary() -> None:
    value = {
        "raw": b"a",
        "buffer": [bytearray(b"b"), memoryview(b"c")],
        "place": Place("x", b"d"),
        "order": Order(b"e", [Order({2, 1}, [])]),
        "person": Person(full_name="n", tags=[b"f"]),
        "odd": {"z", "y"},
    }
    assert canonical(value, keep_bytes=True) == {
        "raw": b"a",
        "buffer": [b"b", b"c"],
        "place": {"name": "x", "tags": b"d", "_note": "kept"},
        "order": {"orderId": b"e", "lineItems": [{"orderId": [1, 2], "lineItems": []}]},
        "person": {"fullName": "n", "tags": [b"f"], "shout": "N"},
        "odd": ["y", "z"],
    }
    plain = {"a": [b"x", 1]}
    assert canonical(plain, keep_bytes=True) is plain


@given(json_values())
def test_without_bytes_keeping_them_changes_nothing(value: Any) -> None:
    holder = [Order(value, (value,)), Place("x", value), {"k": value}]
    kept = canonical(holder, keep_bytes=True)
    assert json.loads(msgspec.json.encode(kept)) == json.loads(msgspec.json.encode(canonical(holder)))


@given(
    st.one_of(
        st.datetimes(timezones=st.none() | st.timezones()),
        st.dates(),
        st.times(),
        st.timedeltas(),
        st.uuids(),
        st.decimals(),
        st.binary(),
        st.sampled_from([{}, [], (), set(), np.float64(1), 1, "a", Suit.HEARTS, object(), {1: 2}, [1]]),
    )
)
def test_a_steady_leaf_is_written_by_the_encoder_as_its_canonical_form_is(leaf: Any) -> None:
    if is_steady(leaf):
        assert msgspec.json.encode(leaf) == msgspec.json.encode(canonical(leaf))


def test_what_is_steady_is_so_for_the_common_leaves_and_not_for_what_must_be_walked() -> None:
    steady = [datetime.datetime(2031, 1, 2, tzinfo=UTC), datetime.date(2031, 1, 2), uuid.UUID(int=1), b"x", {}, [], ()]
    assert [leaf for leaf in steady if not is_steady(leaf)] == []
    walked = [{1: 2}, [1], (1,), set(), Suit.HEARTS, np.float64(1), Place("x"), msgspec.Raw(b""), object()]
    assert [leaf for leaf in walked if is_steady(leaf)] == []


def test_no_library_is_imported_to_ask_whether_a_value_is_its() -> None:
    program = (
        "import sys\n"
        "from coatcheck.errors import RenderingError\n"
        "from coatcheck.results.rendering import render\n"
        "for value in ({1: {2}}, object(), [1.5]):\n"
        "    try: render(value)\n"
        "    except RenderingError: pass\n"
        "sys.exit([name for name in ('attr', 'attrs', 'pydantic', 'numpy') if name in sys.modules] or 0)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


def containers(value: Any) -> list[int]:
    """The identities of all that could be changed within a plain value."""
    if isinstance(value, dict):
        return [id(value), *(place for item in value.values() for place in containers(item))]
    if isinstance(value, (list, tuple)):
        return [id(value), *(place for item in value for place in containers(item))]
    return [id(value)] if isinstance(value, bytearray) else []


@given(json_values(), st.lists(st.binary(max_size=5), max_size=5, unique=True))
def test_a_private_value_shares_no_container_and_is_written_alike(value: Any, pieces: list[bytes]) -> None:
    holder: Any = {"v": value, "t": (value, [bytearray(b"x")]), "o": Order([value], [{}]), "s": {*pieces, "a", "+"}}
    private = canonical(holder, keep_bytes=True, private=True)
    assert not {*containers(private)} & {*containers([holder["v"], holder["t"], holder["o"].order_id])}
    assert msgspec.json.encode(private) == msgspec.json.encode(canonical(holder))
    assert msgspec.json.encode(canonical(value, private=True)) == msgspec.json.encode(value)
