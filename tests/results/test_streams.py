"""What a tool says of a stream, and what the pieces of one come to."""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coatcheck.errors import DeclarationError, RenderingError
from coatcheck.results.binary import OCTETS
from coatcheck.results.envelope import Encoded, Envelope
from coatcheck.results.rendering import TEXT
from coatcheck.results.streams import JSON_LINES, Content, FileResult, Gauge, Stream, find_stream, to_value
from coatcheck.testing.strategies import json_values

# --- what is a stream ---


def generator() -> Iterator[str]:
    yield "a"


async def async_generator() -> AsyncIterator[str]:
    yield "a"


class OnlyAsyncIterable:
    """As a response of an HTTP client: it may be iterated over, and is no iterator."""

    def __aiter__(self) -> AsyncIterator[str]:
        return async_generator()


@pytest.mark.parametrize("make", [generator, async_generator, lambda: iter([1]), lambda: map(str, [1]), io.BytesIO])
def test_an_iterator_is_a_stream(make: Any) -> None:
    value = make()
    stream = find_stream(value)
    assert isinstance(stream, Stream)
    assert (stream.source, stream.media_type) == (value, None)


@pytest.mark.parametrize(
    "value",
    [
        "text",
        b"bytes",
        1,
        None,
        [1],
        (1,),
        {"a": 1},
        {1},
        range(3),
        {}.keys(),
        OnlyAsyncIterable(),
        Encoded(b"1"),
        object(),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_there_as_a_whole_is_none(value: object) -> None:
    assert find_stream(value) is None


@pytest.mark.parametrize("value", [[generator()], {"rows": generator()}, {"content": 1, "effects": []}])
def test_a_stream_within_a_value_is_none(value: object) -> None:
    assert find_stream(value) is None


def test_a_wrapper_says_what_could_not_be_seen() -> None:
    for source in (["a", "b"], OnlyAsyncIterable(), generator()):
        stream = Stream(source, media_type="Text/CSV; charset=utf-8")
        assert find_stream(stream) is stream
        assert stream.media_type == "text/csv"
    file = FileResult(Path("a.png"), media_type="image/PNG")
    assert find_stream(file) is file
    assert file.media_type == "image/png"


def test_an_envelope_may_have_a_stream_for_its_content() -> None:
    source = generator()
    for envelope in (
        Envelope(content=source, status="partial"),
        {"content": source, "effects": [], "status": "partial"},
        {"content": source, "effects": []},
    ):
        stream = find_stream(envelope)
        assert isinstance(stream, Stream)
        assert stream.source is source


@pytest.mark.parametrize("source", ["text", b"bytes", {"a": 1}, 7, None])
def test_a_wrapper_around_what_has_no_pieces_is_refused(source: Any) -> None:
    with pytest.raises(DeclarationError, match=r"^refused: Stream.source must be an iterable of pieces"):
        Stream(source)


@pytest.mark.parametrize("path", [7, None, b"/tmp/x"])
def test_a_file_result_without_a_path_is_refused(path: Any) -> None:
    with pytest.raises(DeclarationError, match=r"^refused: FileResult.path must be a path"):
        FileResult(path)


@pytest.mark.parametrize("declared", ["csv", "", "a/b/c", 7, "text/" + "x" * 200])
def test_a_media_type_that_is_none_is_refused_by_the_name_of_the_wrapper(declared: Any) -> None:
    with pytest.raises(DeclarationError, match=r"^refused: Stream.media_type"):
        Stream([], media_type=declared)
    with pytest.raises(DeclarationError, match=r"^refused: FileResult.media_type"):
        FileResult("a", media_type=declared)


# --- pieces become bytes ---


def joined(pieces: list[Any]) -> bytes:
    content = Content()
    return b"".join(content.to_bytes(piece) for piece in pieces)


@given(st.lists(st.text()))
def test_text_becomes_utf_8(pieces: list[str]) -> None:
    assert joined(list(pieces)) == "".join(pieces).encode()


@given(st.lists(st.binary()))
def test_bytes_are_copied_so_that_a_producer_may_use_its_buffer_again(pieces: list[bytes]) -> None:
    content, buffer, out = Content(), bytearray(), []
    for piece in pieces:
        buffer[:] = piece
        out.append(content.to_bytes(buffer))
    assert out == pieces
    assert joined([memoryview(piece) for piece in pieces]) == b"".join(pieces)


@given(st.lists(json_values().filter(lambda value: not isinstance(value, str))))
def test_every_row_is_one_line_of_json(rows: list[Any]) -> None:
    lines = joined(rows).split(b"\n")
    assert lines.pop() == b""
    assert [msgspec.json.decode(line) for line in lines] == rows


def test_a_row_of_wire_bytes_is_brought_to_one_line() -> None:
    assert joined([Encoded(b'{\n "a": [1,\n 2]\n}'), {"b": 1}]) == b'{"a":[1,2]}\n{"b":1}\n'


@pytest.mark.parametrize(
    ("pieces", "path", "problem"),
    [
        (["a", b"b"], "$[1]", "a piece of type bytes in a stream of text"),
        ([b"a", "b"], "$[1]", "a piece of type str in a stream of bytes"),
        ([b"a", {}], "$[1]", "a piece of type dict in a stream of bytes"),
        ([{}, None, "b"], "$[2]", "a piece of type str in a stream of rows"),
        ([{}, {"mean": math.nan}], "$[1].mean", "not a finite number"),
        ([[1], [object()]], "$[1][0]", "object"),
        (["a", "b\ud800"], "$[1]", "half of a surrogate pair at character 1"),
        ([{"a": "\ud800"}], "$[0].a", "surrogate"),
        ([{}, Encoded(b"%PDF", "application/pdf")], "$[1]", "application/pdf where a row of JSON is expected"),
        ([{}, Encoded(b"{", "application/json")], "$[1]", "not JSON"),
    ],
)
def test_a_piece_that_does_not_fit_is_refused_by_its_place(pieces: list[Any], path: str, problem: str) -> None:
    with pytest.raises(RenderingError) as refusal:
        joined(pieces)
    assert refusal.value.path == path
    assert problem in refusal.value.problem


def test_h5_a_row_that_is_nested_too_deeply_or_holds_itself_is_refused_and_nothing_crashes() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    cycle: dict[str, Any] = {}
    cycle["self"] = cycle
    for row in (deep, cycle):
        with pytest.raises(RenderingError) as refusal:
            joined([{}, row])
        assert refusal.value.path.startswith("$[1]")
    while deep:  # the interpreter would free it by recursion
        deep = deep[0]


# --- what they come to ---


def cut(data: bytes, places: list[int]) -> list[bytes]:
    bounds = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[start:end] for start, end in itertools.pairwise(bounds)]


def gauged(pieces: list[bytes], declared: str | None = None, form: Any = "bytes") -> Gauge:
    gauge = Gauge(declared)
    gauge.form = form
    for piece in pieces:
        gauge.feed(piece)
    gauge.finish()
    return gauge


@given(st.one_of(st.binary(), st.text().map(str.encode)), st.lists(st.integers(0, 1000)))
def test_wherever_it_is_cut_a_stream_of_bytes_is_text_if_and_only_if_all_of_it_is_utf_8(
    data: bytes, places: list[int]
) -> None:
    gauge = gauged(cut(data, places))
    try:
        text: str | None = data.decode()
    except UnicodeDecodeError:
        text = None
    assert gauge.bytes == len(data)
    assert gauge.is_text == (text is not None)
    assert gauge.size == (len(data) if text is None else len(text))
    assert gauge.media_type == (OCTETS if text is None else TEXT)
    assert to_value(data, gauge) == (data if text is None else text)


@given(st.binary(), st.lists(st.integers(0, 1000)))
def test_the_size_never_shrinks(data: bytes, places: list[int]) -> None:
    gauge, sizes = Gauge(), [0]
    for piece in cut(data, places):
        gauge.feed(piece)
        sizes.append(gauge.size)
    gauge.finish()
    assert [*sizes, gauge.size] == sorted([*sizes, gauge.size])


@pytest.mark.parametrize(
    ("declared", "data", "media_type", "size"),
    [
        ("text/csv", "é,1".encode(), "text/csv", 3),
        ("text/csv", b"\xff,1", OCTETS, 3),
        ("text/plain", b"\xc3", OCTETS, 1),
        ("application/json", '"é"'.encode(), "application/json", 3),
        ("image/png", b"abc", "image/png", 3),
        ("application/xml", "é".encode(), "application/xml", 1),
        (OCTETS, "é".encode(), OCTETS, 2),
    ],
)
def test_what_is_declared_stays_unless_it_says_text_and_is_none(
    declared: str, data: bytes, media_type: str, size: int
) -> None:
    gauge = gauged([data], declared)
    assert (gauge.media_type, gauge.size) == (media_type, size)


def test_rows_are_json_lines() -> None:
    gauge = gauged([b'{"a":1}\n'], form="rows")
    assert gauge.media_type == JSON_LINES
    assert to_value(b'{"a":1}\n', gauge) == Encoded(b'{"a":1}\n', JSON_LINES)


def test_nothing_at_all_is_empty_text() -> None:
    gauge = gauged([], form=None)
    assert (gauge.media_type, gauge.size, to_value(b"", gauge)) == (TEXT, 0, "")
