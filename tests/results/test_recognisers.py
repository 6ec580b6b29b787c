"""The laws of every recogniser, on anything: it never raises, it never changes a value, and JSON text is text."""

from __future__ import annotations

import json
from collections import OrderedDict, UserDict, defaultdict
from collections.abc import Callable, Iterator
from datetime import UTC
from typing import Any
from unittest import mock

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coatcheck.results.absence import SuggestedTool, absent, read_absence, try_instead_of, try_instead_tool_of
from coatcheck.results.answer import compose_answer
from coatcheck.results.coverage import coverage, read_coverage
from coatcheck.results.envelope import Encoded, Envelope, decode_envelope, explain_near_miss, read_envelope
from coatcheck.results.evidence import evidence_of
from coatcheck.results.notes import NOTES, PERIOD_CLAUSES
from coatcheck.results.period import Period, Span, verdict_of
from coatcheck.results.provenance import Among, Provenance
from coatcheck.results.reading import Declared, coverage_of, may_declare, read_result
from coatcheck.results.search import finish
from coatcheck.results.served import serve

READERS: list[Callable[[Any], Any]] = [
    read_absence,
    read_coverage,
    read_result,
    coverage_of,
    try_instead_of,
    try_instead_tool_of,
    verdict_of,
    read_envelope,
    explain_near_miss,
]


class Hostile:
    """Raises whatever it is asked, but for its name."""

    @property
    def __class__(self) -> Any:
        raise RuntimeError

    @__class__.setter
    def __class__(self, _: Any) -> None:
        raise RuntimeError

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __repr__(self) -> str:
        return "Hostile()"

    def __eq__(self, other: object) -> bool:
        raise RuntimeError

    def __hash__(self) -> int:
        return hash("af_absent")

    def __bool__(self) -> bool:
        raise RuntimeError


class HostileDict(dict[Any, Any]):
    """Is what it holds, and raises whatever of its own it is asked."""

    def __getitem__(self, key: object) -> Any:
        raise RuntimeError

    def __iter__(self) -> Iterator[Any]:
        raise RuntimeError

    def __len__(self) -> int:
        raise RuntimeError

    def __contains__(self, key: object) -> bool:
        raise RuntimeError

    get = items = keys = __getitem__  # type: ignore[assignment]  # hostile as it is


class HostileText(str):
    __slots__ = ()

    def strip(self, *_: Any) -> str:
        raise RuntimeError

    def __eq__(self, other: object) -> bool:
        raise RuntimeError

    __hash__ = str.__hash__


class HostileList(list[Any]):
    def __iter__(self) -> Iterator[Any]:
        raise RuntimeError


ODDITIES: list[Any] = [
    [Hostile()],
    {"checked": Hostile()},
    {Hostile(): 1},
    {HostileText("af_absent"): True},
    {HostileText("effects"): [], "content": 1},
    {HostileText("content"): 1, "status": "denied"},
    HostileDict(af_absent=True, checked=["a"], period={}),
    HostileText('{"af_absent": true}'),
    HostileList(["a"]),
    mock.MagicMock(spec=dict),
    OrderedDict(af_absent=True, checked=["a"]),
    defaultdict(list, {"af_coverage": {}, "result": 1}),
    UserDict({"af_absent": True, "checked": ["a"]}),
    absent(what="x"),
    b'{"af_absent": true, "checked": ["a"]}',
    bytearray(b"{}"),
    msgspec.UNSET,
    msgspec.Raw(b'{"af_absent": true}'),
    Provenance(measured_at="now", source="s"),
    Period(Span("a", "b"), "unknown"),
    Among(source="s", measured_at="now"),
    SuggestedTool("t"),
    Declared("absence", None, (), (), ()),
    Encoded(b'{"af_absent":true,"checked":["a"],"period":{"queried":[[[]]]},"note":NaN}'),
    Encoded(b'{"af_absent":true,"checked":["a"],"x":"\xff"}'),
    Encoded(b'{"af_coverage":{},"result":' + b"[" * 10_000 + b"]" * 10_000 + b"}"),
    Encoded(b'{"af_absent":true,"checked":' + b"[" * 10_000 + b"]" * 10_000 + b"}"),
    Envelope,
    (("af_absent", True),),
    frozenset({"af_absent"}),
    float("nan"),
    1j,
]

KEYS = (
    *("af_absent", "af_coverage", "result", "looked_for", "checked", "not_checked", "cannot_cover", "provenance"),
    *(
        "period",
        "queried",
        "held",
        "from",
        "to",
        "read_at",
        "verdict",
        "try_instead",
        "try_instead_tool",
        "tool",
        "why",
    ),
    *(
        "what",
        "short",
        "kind",
        "set_by",
        "note",
        "measured_at",
        "source",
        "age_seconds",
        "content",
        "effects",
        "status",
    ),
)
WORDS = st.sampled_from(
    ["unknown", "2031-01-02T00:00:00Z", "2031-01-03T00:00:00Z", "argument", "scope", *NOTES.values()]
)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | WORDS
keys = st.sampled_from(KEYS) | st.text()
trees = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=6), max_leaves=12
)
odd_trees = st.recursive(
    scalars | st.sampled_from(ODDITIES) | st.builds(Hostile),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(keys | st.integers(), inner, max_size=6),
        st.dictionaries(keys, inner, max_size=6).map(HostileDict),
    ),
    max_leaves=12,
)


def declaring(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Absences and ledgers with anything in the places that a recogniser looks at."""
    parts = {name: inner for name in KEYS if name not in ("af_absent", "af_coverage", "checked")}
    absences = st.fixed_dictionaries(
        {"af_absent": st.just(True), "checked": st.lists(inner, min_size=1)}, optional=parts
    )
    bounds = st.fixed_dictionaries({}, optional={"checked": inner, **parts})
    return absences | st.fixed_dictionaries(
        {"af_coverage": bounds, "result": absences | inner}, optional={"note": inner}
    )


anything = odd_trees | declaring(odd_trees)


def frozen(value: Any) -> Any:
    """The value as it is now: what its containers hold, by the identity of what is no container."""
    kind = type(value)
    if issubclass(kind, dict):
        return kind, [(id(key), frozen(item)) for key, item in dict.items(value)]
    if issubclass(kind, (list, tuple)):
        return kind, [frozen(item) for item in (list if issubclass(kind, list) else tuple).__iter__(value)]
    return id(value)


@given(anything)
def test_a_recogniser_never_raises_and_never_changes_a_value(value: Any) -> None:
    before = frozen(value)
    for read in READERS:
        read(value)
    evidence_of(value)
    assert frozen(value) == before


@pytest.mark.parametrize("index", range(len(ODDITIES)))
def test_what_is_not_our_shape_declares_nothing_and_is_evidence_as_it_is(index: int) -> None:
    odd = ODDITIES[index]
    for value in (odd, [odd], {"data": odd}, {"af_absent": odd}, {"af_coverage": odd}, {"content": odd}):
        assert read_envelope(value) is None
        before = frozen(value)
        reading = read_result(value)
        evidence = evidence_of(value)
        if type(odd) in (OrderedDict, defaultdict, HostileDict) and value is odd:
            assert reading is not None
        else:
            assert reading is None
            assert evidence is value
        assert frozen(value) == before


@given(trees | declaring(trees))
def test_whoever_may_not_declare_declares_nothing(value: Any) -> None:
    if not may_declare(value):
        assert read_result(value) is None
        assert read_envelope(value) is None


@given(trees | declaring(trees))
def test_json_text_is_text_in_every_position(value: Any) -> None:
    text = json.dumps(value)
    for whole in (
        text,
        [text],
        {"data": text},
        {"af_absent": text, "checked": text},
        {"af_coverage": text, "result": 1},
    ):
        assert [read(whole) for read in READERS] == [None] * len(READERS)
        assert serve(whole) is whole
        assert finish(whole, None, {}) is whole
        assert read_envelope(whole) is None
    assert read_result(Encoded(json.dumps(text).encode())) is None
    assert read_result(Encoded(text.encode(), media_type="text/plain")) is None
    assert decode_envelope(json.dumps(text)) is None
    ledger = read_result(coverage(text, checked=["a"]))
    assert ledger is not None
    assert [fact.kind for fact in ledger.declared] == ["ledger"]
    assert ledger.status is None
    assert ledger.served["result"] is text
    envelope = read_envelope({"content": text, "effects": [], "status": "success"})
    assert envelope is not None
    assert envelope.content is text
    absence = absent(what="x", checked=[f"x{text}"], try_instead=f"x{text}", try_instead_tool={"tool": f"x{text}"})
    reading = read_result(absence)
    assert reading is not None
    assert len(reading.declared) == 1
    assert reading.declared[0].checked == ({"what": f"x{text}".strip()},)


def mint(with_what: Callable[..., dict[str, Any]], declared: dict[str, Any], *args: Any) -> dict[str, Any]:
    return with_what(*args, **declared)


said = st.text(min_size=1).filter(str.strip)
ground = said | st.fixed_dictionaries({"what": said}, optional={"why": said})
gap = (
    ground
    | said.map(lambda what: {"what": what, "kind": "scope"})
    | said.map(lambda what: {"what": what + "...", "short": "s"})
)
reasoned = st.fixed_dictionaries(
    {"what": said, "why": said}, optional={"kind": st.sampled_from(["scope", "existence"])}
)
moments = st.datetimes(timezones=st.just(UTC))
spans = st.tuples(moments, moments).map(lambda ends: {"from": min(ends), "to": max(ends)})
lists: dict[str, st.SearchStrategy[Any]] = {
    "not_checked": st.lists(gap, max_size=3),
    "cannot_cover": st.lists(reasoned, max_size=3),
    "period": st.fixed_dictionaries(
        {"queried": spans, "held": spans | st.just("unknown")}, optional={"read_at": moments}
    ),
}
absences = st.fixed_dictionaries(
    {"what": said, "checked": st.lists(ground, min_size=1, max_size=3)},
    optional={
        **lists,
        "provenance": st.fixed_dictionaries(
            {"measured_at": said, "source": said}, optional={"age_seconds": st.integers(0, 9)}
        ),
        "try_instead": said,
        "try_instead_tool": st.fixed_dictionaries({"tool": said}, optional={"why": said}),
    },
).map(lambda declared: mint(absent, declared))
minted = st.one_of(
    absences,
    st.builds(
        lambda inner, declared: mint(coverage, declared, inner),
        absences | trees,
        st.fixed_dictionaries({"checked": st.lists(ground, min_size=1, max_size=3)}, optional=lists),
    ),
)


@given(minted)
def test_what_is_minted_is_recognised_with_every_part_of_it(value: dict[str, Any]) -> None:
    reading = read_result(value)
    assert reading is not None
    assert reading.faults == () or "result" in value  # a result may look like an absence that somebody else minted
    fact = reading.declared[0]
    holder = value.get("af_coverage", value)
    for name in ("checked", "not_checked", "cannot_cover"):
        assert list(getattr(fact, name)) == holder.get(name, [])
    assert msgspec.to_builtins(fact.period) == holder.get("period")
    assert msgspec.to_builtins(fact.provenance) == holder.get("provenance")
    assert fact.try_instead == holder.get("try_instead") == try_instead_of(value)
    assert msgspec.to_builtins(fact.try_instead_tool) == holder.get("try_instead_tool")
    assert coverage_of(value) is not None


@given(minted)
def test_read_back_and_served_again_it_is_byte_for_byte_the_same(value: dict[str, Any]) -> None:
    for raw in (msgspec.json.encode(value), msgspec.json.encode(serve(value))):
        again = msgspec.json.decode(raw)
        assert msgspec.json.encode(again) == raw
        served, wire = read_result(again), read_result(Encoded(raw))
        assert served is not None
        assert wire is not None
        assert msgspec.json.encode(served.served) == msgspec.json.encode(serve(value)) == wire.served.raw


@given(absences)
def test_a_fact_survives_the_bytes_of_a_session(value: dict[str, Any]) -> None:
    reading = read_result(value)
    assert reading is not None
    for fact in reading.declared:
        again = msgspec.json.decode(msgspec.json.encode(fact), type=Declared)
        assert again == fact
        assert compose_answer("x", [again]) == compose_answer("x", [fact])


@given(minted)
def test_a_note_is_one_of_the_published_ones_whatever_was_said(value: dict[str, Any]) -> None:
    static = {*NOTES.values(), *(f"{note} {clause}" for note in NOTES.values() for clause in PERIOD_CLAUSES.values())}
    reading = read_result(value)
    assert reading is not None
    for form in (value, reading.served):
        assert form.get("af_coverage", form)["note"] in static
