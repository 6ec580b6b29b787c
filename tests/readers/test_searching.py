"""Searches: what is found is what a search of each line finds, however the payload comes; bounded, and in good time."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from itertools import pairwise
from typing import Any

import anyio
import pytest
import re2
from hypothesis import assume, given
from hypothesis import strategies as st

from coatcheck.artifacts.port import ArtifactReader
from coatcheck.errors import StoreUnavailable
from coatcheck.readers import searching
from coatcheck.readers.answers import SMALLEST_MAX_CHARS, TextPage
from coatcheck.readers.matching import make_matcher
from coatcheck.readers.reading import read_page
from coatcheck.readers.refs import ReaderError
from coatcheck.readers.scanning import Hit, Scanner, newlines
from coatcheck.readers.searching import Found, render, search
from tests.readers._payloads import Payload, nothing

ATOMS = [
    "a",
    "b",
    ".",
    "[^a]",
    r"\s",
    r"\S",
    r"\b",
    r"\B",
    "^",
    "$",
    r"\A",
    r"\z",
    "(?i:A)",
    "(?s).",
    "(?-m)^",
    "(?-m)$",
]
ATOMS += [
    "(a|b)",
    "a*",
    "b+?",
    "(?:)",
    r"\n",
    r"[\n]",
    r"\C",
    "ö",
    r"\pL",
    "[[:space:]]",
    r"\x0a",
    "x{2}",
    r"\W",
    r"\Qa\E",
]
PATTERNS = st.lists(st.sampled_from(ATOMS), min_size=1, max_size=4).map("".join)
DATA = st.lists(
    st.sampled_from([b"a", b"b", b"\n", b"x", "ö".encode(), b"\xff", b" ", b"\r\n", b"A", b"xx"]), max_size=40
).map(b"".join)
PLACES = st.lists(st.integers(0, 80), max_size=6)


def lines_of(data: bytes) -> list[bytes]:
    lines = data.split(b"\n")
    return lines if lines[-1] else lines[:-1]


def naive(data: bytes, pattern: str, ignore_case: bool = False) -> list[tuple[int, int, int]]:
    """The line, its first byte and the match's, for every line that matches by itself."""
    options = re2.Options()
    options.case_sensitive = not ignore_case
    options.log_errors = False
    engine = re2.compile(b"(?m)" + pattern.encode(), options)
    found, at = [], 0
    for number, line in enumerate(lines_of(data), 1):
        match = engine.search(line)
        if match is not None:
            found.append((number, at, at + match.start()))
        at += len(line) + 1
    return found


def scan(scanner: Scanner, data: bytes, places: Sequence[int]) -> list[Hit]:
    edges = [0, *sorted(min(place, len(data)) for place in places), len(data)]
    for start, end in pairwise(edges):
        if not scanner.feed(data[start:end]):
            return scanner.hits
    scanner.feed(b"", last=True)
    return scanner.hits


# --- what is found ---


LONG_DATA = st.lists(
    st.sampled_from([b"a" * 900, b"b" * 1500, b"\n", b"needle", "ö".encode() * 400, b"x" * 2000]), max_size=14
).map(b"".join)


def naive_in_long_lines(data: bytes, pattern: str) -> list[tuple[int, int]]:
    """The line and the match's first byte, for every match that is not shown with the one before it."""
    engine = re2.compile(b"(?m)" + pattern.encode())
    found, begin = [], 0
    for number, line in enumerate(lines_of(data), 1):
        at: int | None = 0
        while at is not None and (match := engine.search(line, at)) is not None:
            found.append((number, begin + match.start()))
            length = match.end() - match.start()
            at = max(match.end(), match.start() + 197 - length) if len(line) > 4096 else None
            at = None if at is not None and at >= len(line) else at
        begin += len(line) + 1
    return found


@given(st.sampled_from(["needle", "b", "ab", "xa?", "ö", "^a", "a$", "a*", r"\bneedle\b"]), LONG_DATA, PLACES)
def test_a_long_line_is_found_at_every_match_that_is_not_shown_with_another(
    pattern: str, data: bytes, places: Sequence[int]
) -> None:
    edges = [place * 150 for place in places]
    hits = scan(Scanner(make_matcher(pattern), 10_000), data, edges)
    assert [(hit.line, hit.at) for hit in hits] == naive_in_long_lines(data, pattern)


@given(st.sampled_from(["needle", "ab", "ö", r"\bneedle\b"]), LONG_DATA, PLACES)
def test_so_is_a_line_that_is_too_long_to_be_held(pattern: str, data: bytes, places: Sequence[int]) -> None:
    wanted = naive_in_long_lines(data, pattern)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("coatcheck.readers.scanning._LONG", 4097)
        hits = scan(Scanner(make_matcher(pattern), 10_000), data, [place * 150 for place in places])
    assert [(hit.line, hit.at) for hit in hits] == wanted


MANY_LINES = st.lists(
    st.sampled_from(
        [b"needle", b"xneedle", b"a" * 90, b"b" * 700, b"ab " * 60, b"ab " * 400, b"\n", "ö".encode() * 70]
    ),
    max_size=40,
).map(b"".join)
FOLLOWED = ["needle", "^.", "b+", r"\bneedle", "x|needle", r"\Qab \E", r"(?-m)^needle", "ö+", "a$"]


@given(st.sampled_from(FOLLOWED), MANY_LINES, st.integers(1, 4), st.sampled_from([1 << 20, 300, 1000]))
def test_following_a_search_finds_every_match_of_a_long_line_once(
    pattern: str, data: bytes, limit: int, chunk: int
) -> None:
    async def follow() -> tuple[list[int], list[int]]:
        once = await search(Payload(data).open, pattern, max_matches=500)
        assert isinstance(once, Found)
        came: list[int] = []
        following: Any = {}
        while following is not None:
            page = await search(Payload(data, chunk=chunk).open, pattern, max_matches=limit, **following)
            assert isinstance(page, Found)
            came += [hit.at for hit in page.hits]
            following = page.next
        return [hit.at for hit in once.hits], came

    once, came = anyio.run(follow)
    assert came == once


@given(st.sampled_from([r"needle\d\d", "x?needle[0-9]+"]), st.lists(st.integers(170, 330), min_size=30, max_size=60))
def test_following_the_answers_shows_every_match_of_a_long_line(pattern: str, gaps: list[int]) -> None:
    data = b"".join(b"needle%02d" % number + b"." * gap for number, gap in enumerate(gaps))

    async def follow() -> str:
        shown = ""
        call: dict[str, Any] | None = {}
        while call is not None:
            text, _ = await answered(Payload(data), pattern, max_chars=SMALLEST_MAX_CHARS, **call)
            shown += text
            following = call_in(text, "search_artifact")
            call = None if following is None else {name: following[name] for name in ("from_byte", "from_line")}
        return shown

    shown = anyio.run(follow)
    assert [number for number in range(len(gaps)) if f"needle{number:02d}" not in shown] == []


@pytest.mark.anyio
@pytest.mark.parametrize("rows", [2_000, 200_000])
async def test_rows_in_one_line_of_json_are_found_one_by_one_and_searched_on_from(rows: int) -> None:
    data = json.dumps([{"order": number, "euros": number % 90} for number in range(rows)]).encode()
    wanted = [data.index(b'"order": %d,' % number) for number in (7, 1_077, 1_777)]
    _, found = await answered(Payload(data), r'"order": (7|1077|1777),')
    assert [(hit.line, hit.at) for hit in found.hits] == [(1, at) for at in wanted]
    text, _ = await answered(Payload(data), r'"order": (7|1077|1777),')
    assert "3 matches in 1 line" in text
    assert "All of it was searched." in text
    came: list[int] = []
    following: Any = {}
    while following is not None:
        _, page = await answered(Payload(data), r'"order": (7|1077|1777),', max_matches=1, **following)
        came += [hit.at for hit in page.hits]
        following = page.next
    assert came == wanted
    text, found = await answered(Payload(data), '"order"')
    call = call_in(text, "search_artifact")
    assert call is not None
    _, page = await answered(Payload(data), '"order"', from_byte=call["from_byte"], from_line=call["from_line"])
    assert call["from_line"] == 1
    assert 0 < page.hits[0].at - found.hits[text.count("1@") - 1].at < 330, "it goes on behind what was shown"


@given(PATTERNS, DATA, PLACES, st.booleans())
def test_what_is_found_is_what_a_search_of_each_line_finds(
    pattern: str, data: bytes, places: Sequence[int], ignore_case: bool
) -> None:
    try:
        wanted = naive(data, pattern, ignore_case)
    except re2.error:
        assume(False)
        raise
    hits = scan(Scanner(make_matcher(pattern, ignore_case=ignore_case), 10_000), data, places)
    assert [(hit.line, hit.start, hit.at) for hit in hits] == wanted
    assert [hit.shown for hit in hits] == [lines_of(data)[line - 1] for line, _, _ in wanted]


@given(st.text("ab.\\*(ö", min_size=1, max_size=3), DATA, PLACES)
def test_a_literal_stands_for_itself(needle: str, data: bytes, places: Sequence[int]) -> None:
    hits = scan(Scanner(make_matcher(needle, literal=True), 10_000), data, places)
    wanted = [number for number, line in enumerate(lines_of(data), 1) if needle.encode() in line]
    assert [hit.line for hit in hits] == wanted


@given(PATTERNS, DATA, PLACES, st.integers(1, 3))
def test_searching_on_finds_the_same_as_searching_once(
    pattern: str, data: bytes, places: Sequence[int], limit: int
) -> None:
    try:
        wanted = naive(data, pattern)
    except re2.error:
        assume(False)
        raise
    found: list[Hit] = []
    at: tuple[int, int | None] | None = (0, 1)
    while at is not None:
        offset, line = at
        scanner = Scanner(make_matcher(pattern), limit, offset=offset, line=line)
        found.extend(scan(scanner, data[offset:], places))
        at = scanner.resume
        assert at is None or at[0] > offset
    assert [(hit.line, hit.start, hit.at) for hit in found] == wanted


@given(st.sampled_from(["needle", "^x", "y$", r"\bneedle\b", "^needle", r"\Ax", r"y\z"]), DATA, PLACES, st.data())
def test_a_line_too_long_to_be_held_is_searched_all_the_same(
    pattern: str, data: bytes, places: Sequence[int], more: st.DataObject
) -> None:
    parts = more.draw(st.lists(st.sampled_from([b"x" * 50, b"needle", b"\n", b" ", b"y", b"y\n"]), max_size=12))
    data += b"".join(parts)
    scanner = Scanner(make_matcher(pattern), 10_000)
    scanner._window_bytes = 160  # a window overlaps the next by a sixteenth of it
    hits = scan(scanner, data, [place * 10 for place in places])
    assert [(hit.line, hit.start) for hit in hits] == [(line, start) for line, start, _ in naive(data, pattern)]


@pytest.mark.parametrize("literal", [True, False])
def test_a_match_in_a_line_of_many_megabytes_is_found_in_bounded_memory(literal: bool) -> None:
    line = b"z" * 5_000_000 + b"needle" + b"z" * 5_000_000
    data = b"first\n" + line + b"\nneedle\n"
    scanner = Scanner(make_matcher("needle", literal=literal), 10)
    longest = 0
    for start in range(0, len(data), 100_000):
        scanner.feed(data[start : start + 100_000])
        longest = max(longest, len(scanner._rest))
    scanner.feed(b"", last=True)
    assert [(hit.line, hit.start, hit.at, len(hit.shown) <= 300) for hit in scanner.hits] == [
        (2, 6, 5_000_006, True),
        (3, len(data) - 7, len(data) - 7, True),
    ]
    assert longest < 1_200_000


# --- patterns ---


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("", "is empty"),
        ("a\nb", "within one line"),
        ("(a", "missing \\)"),
        ("a(?=b)", "no lookahead"),
        (r"(a)\1", "backreference"),
        ("a{2000}", "at most 1000"),
        ("((a{100}){100}){100}", "at most 1000"),
        (r".{1000}", "repeats too much"),
        (r"(\pL|a){900}", "repeats too much"),
        ("x" * 1001, "1001 characters"),
        ("a\ud800", "surrogate"),
        ("*", "no argument.*mend it"),
    ],
)
def test_a_pattern_that_cannot_be_is_answered_with_why(pattern: str, said: str) -> None:
    with pytest.raises(ReaderError, match=said) as raised:
        make_matcher(pattern)
    assert len(str(raised.value)) < 400


def test_without_re2_literals_are_found_and_patterns_say_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coatcheck.readers.matching.find_spec", lambda name: None)
    assert make_matcher("a.b", literal=True).find(b"xa.b", 0, 4) == (1, 4)
    assert make_matcher("ab").find(b"xaab", 0, 3) is None
    words: dict[str, Any]
    for words in ({"pattern": "a+"}, {"pattern": "a", "ignore_case": True}):
        with pytest.raises(ReaderError, match=r"coatcheck\[readers\]"):
            make_matcher(**words)


@pytest.mark.parametrize("pattern", ["(x+x+)+y", "(a+)+$b", "(a|aa)+b", "(a?){30}a{30}b", "(.*)(.*)(.*)(.*)b"])
@pytest.mark.anyio
async def test_a_pattern_that_is_evil_elsewhere_is_linear_here(pattern: str) -> None:
    found = await search(Payload(b"a" * 3_000_000).open, pattern)
    assert isinstance(found, Found)
    assert (found.hits, found.next) == ((), None)


@pytest.mark.parametrize("data", [b"a" * 4_000_000, (b"a" * 999 + b"\n") * 4000], ids=["one line", "lines"])
@pytest.mark.anyio
async def test_a_search_that_takes_too_long_ends_and_goes_on_where_it_was(data: bytes) -> None:
    payload = Payload(data)
    found = await search(payload.open, "((a?){30}){20}b", seconds=0.0)
    assert isinstance(found, Found)
    assert found.timed_out
    assert found.next is not None
    assert 0 < found.next["from_byte"] < len(data)
    assert found.next["from_line"] == data.count(b"\n", 0, found.next["from_byte"]) + 1
    answer = render(found, tool="s", reader="r", ref=payload.meta.ref, call={"pattern": "b"})
    assert "took too long" in answer
    again = await search(payload.open, "((a?){30}){20}b", seconds=0.0, **dict(found.next))
    assert isinstance(again, Found)
    assert again.next is not None
    assert again.next["from_byte"] > found.next["from_byte"]


class Held:
    """A matcher that finds nothing, and waits until it is let go."""

    by_line = False
    cost = 4000

    def __init__(self) -> None:
        self.calls = 0
        self.begun = threading.Event()
        self.let_go = threading.Event()

    def find(self, data: bytes, start: int, end: int) -> None:
        self.calls += 1
        self.begun.set()
        self.let_go.wait()


@pytest.mark.anyio
async def test_a_search_that_is_cancelled_goes_no_further_than_the_next_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    held, ended, feed = Held(), threading.Event(), searching._feed

    def watched(*arguments: Any) -> bool:
        try:
            return feed(*arguments)
        finally:
            ended.set()

    monkeypatch.setattr(searching, "make_matcher", lambda pattern, **how: held)
    monkeypatch.setattr(searching, "_feed", watched)
    async with anyio.create_task_group() as group:
        group.start_soon(search, Payload((b"a" * 999 + b"\n") * 1000).open, "x")
        await anyio.to_thread.run_sync(held.begun.wait)
        group.cancel_scope.cancel()
    assert not ended.is_set()
    held.let_go.set()
    await anyio.to_thread.run_sync(ended.wait)
    assert held.calls == 1


@pytest.mark.anyio
async def test_the_loop_goes_on_while_a_search_runs() -> None:
    turns = 0
    done = anyio.Event()

    async def work() -> None:
        await search(Payload((b"a" * 999 + b"\n") * 40).open, "((a?){30}){20}b")
        done.set()

    async with anyio.create_task_group() as group:
        group.start_soon(work)
        while not done.is_set():
            await anyio.sleep(0.001)
            turns += 1
    assert turns > 5


# --- answers ---


async def answered(
    payload: Payload,
    pattern: str,
    *,
    max_chars: int = SMALLEST_MAX_CHARS,
    read_chars: int | None = None,
    **how: Any,
) -> tuple[str, Found]:
    found = await search(payload.open, pattern, max_chars=read_chars, **how)
    assert isinstance(found, Found)
    call = {"pattern": pattern, **{name: value for name, value in how.items() if not name.startswith("from")}}
    answer = render(
        found, tool="search_artifact", reader="read_artifact", ref=payload.meta.ref, call=call, max_chars=max_chars
    )
    assert len(answer) <= max_chars
    return answer, found


def call_in(answer: str, tool: str) -> dict[str, Any] | None:
    before, _, after = answer.partition(f" {tool} ")
    if not before or not after:
        return None
    call: dict[str, Any] = json.JSONDecoder().raw_decode(after)[0]
    call.pop("ref")
    return call


@given(st.integers(1, 60), st.integers(0, 2000), st.integers(1, 500), st.integers(0, 3))
def test_following_the_answers_shows_every_matching_line_once(count: int, width: int, limit: int, context: int) -> None:
    data = b"".join(b"hit %d %s\n" % (number, b"w" * (number * width // count)) for number in range(count))
    payload = Payload(data)

    async def follow() -> list[str]:
        how: dict[str, Any] | None = {"pattern": "^hit", "max_matches": limit, "context": context}
        rows: list[str] = []
        while how is not None:
            pattern = how.pop("pattern")
            answer, _ = await answered(payload, pattern, **how)
            rows += [row for row in answer.split("\n")[1:-1] if "@" in row]
            how = call_in(answer, "search_artifact")
        return rows

    rows = anyio.run(follow)
    assert [row.partition("@")[0] for row in rows] == [str(number + 1) for number in range(count)]


@pytest.mark.anyio
async def test_a_match_says_how_to_read_there() -> None:
    data = b"".join(b"line %d\n" % number for number in range(1, 100_000))
    payload = Payload(data)
    answer, found = await answered(payload, "line 77777$")
    assert "77777@" in answer
    how = call_in(answer, "read_artifact")
    assert how == {"lines": "77777:77797", "from_byte": found.hits[0].start}
    payload.read = 0
    page = await read_page(payload.open, **how)
    assert isinstance(page, TextPage)
    assert page.text.startswith("line 77777\nline 77778\n")
    assert payload.read < 300_000


@pytest.mark.anyio
async def test_a_match_in_a_long_line_is_shown_with_what_is_around_it() -> None:
    payload = Payload(("ö" * 3000 + "needle" + "€" * 3000).encode())
    answer, found = await answered(payload, "needle")
    assert "ö…" not in answer
    assert "öneedle€" in answer
    assert not found.hits[0].whole
    assert "\ufffd" not in answer


@pytest.mark.anyio
async def test_lines_around_a_match_are_shown_as_far_as_they_are_near() -> None:
    payload = Payload(b"one\ntwo\nthree\nfour\nfive\n" + b"z" * 100_000 + b"\nsix\n")
    answer, found = await answered(payload, "three", context=2)
    assert found.context == ((("one", "two"), ("four", "five")),)
    assert "\n  one\n  two\n3@8: three\n  four\n  five\n--\n" in answer
    _, found = await answered(payload, "one|six", context=1)
    assert found.context[0] == ((), ("two",))
    assert found.context[1] == ((), ())


@pytest.mark.anyio
@pytest.mark.parametrize("before", [0, 100, 30_000, 40_000, 20_000_000])
async def test_of_a_long_line_only_what_is_near_a_match_is_read_for_the_lines_around_it(before: int) -> None:
    payload = Payload(b"one\ntwo\n" + b"x" * before + b"needle" + b"y" * 500 + b"\nthree\n" + b"z" * 20_000_000)
    hits = (await answered(payload, "needle"))[1].hits
    payload.read = 0
    around = await searching._around(payload.open, hits[0], 2)
    assert around == (("one", "two"), ("three", "z" * 300 + "…"))
    assert payload.read < 65_536


@pytest.mark.anyio
async def test_a_line_that_is_cut_off_where_reading_ends_is_not_shown_as_whole() -> None:
    payload = Payload(b"needle\n" + b"y" * 8100 + b"\n" + b"z" * 8100 + b"\n")
    _, found = await answered(payload, "needle", context=2)
    assert found.context == (((), ("y" * 300 + "…",)),)


@pytest.mark.anyio
async def test_lines_around_a_match_are_read_only_where_they_are_shown() -> None:
    payload = Payload(b"".join(b"hit %d %s\n" % (number, b"w" * 90) for number in range(1000)))
    await answered(payload, "hit", max_matches=500)
    without, payload.opened = payload.opened, 0
    answer, found = await answered(payload, "hit", max_matches=500, context=3, read_chars=2000)
    shown = answer.count("\n--")
    assert shown > 0
    assert payload.opened - without <= shown + 2
    everywhere, _ = await answered(payload, "hit", max_matches=500, context=3)
    assert everywhere == answer
    assert len(found.hits) == 500


@pytest.mark.anyio
async def test_of_the_lines_around_a_match_as_many_are_shown_as_fit() -> None:
    payload = Payload(b"".join(b"%d %s\n" % (number, b"w" * 250) for number in range(100)))
    answer, _ = await answered(payload, "^50 ", context=20)
    assert "\n  49 " in answer
    assert "\n  51 " in answer
    assert "\n51@" in answer


@pytest.mark.anyio
async def test_nothing_found_says_that_all_was_searched() -> None:
    answer, found = await answered(Payload(b"one\ntwo\n"), "three")
    assert (found.hits, found.next) == ((), None)
    assert "Nothing matches" in answer
    assert "All of it was searched" in answer


@pytest.mark.anyio
async def test_a_pattern_of_control_characters_keeps_the_answer_within_its_bound() -> None:
    answer, _ = await answered(Payload(b"\x01" * 900 + b"\nx\n" + b"\x01" * 900 + b"\n"), "\x01" * 900, max_matches=1)
    assert "the same arguments" in answer


@pytest.mark.anyio
async def test_binary_is_described_and_a_ref_that_gives_nothing_is_none() -> None:
    assert isinstance(await search(Payload(b"\x00\x01", "image/png").open, "a"), str)
    assert await search(nothing, "a") is None


@pytest.mark.parametrize(
    "how",
    [
        {"context": -1},
        {"context": 99},
        {"max_matches": 0},
        {"max_matches": 10**6},
        {"from_byte": -1},
        {"from_byte": 3, "from_line": 0},
    ],
)
@pytest.mark.anyio
async def test_numbers_that_cannot_be_are_answered_with_what_can(how: dict[str, int]) -> None:
    with pytest.raises(ReaderError, match=r"from 0|from 1|from_byte"):
        await search(Payload(b"a").open, "a", **how)  # type: ignore[arg-type]  # each is one of the numbers


@pytest.mark.anyio
@pytest.mark.parametrize("chunk", [1 << 20, 70_001])
async def test_a_large_payload_is_read_in_two_parts_and_numbered_as_one(
    chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "_FIRST_PART", 1_000_000)
    data = b"".join(b"line %d\n" % number for number in range(1, 500_001))
    payload = Payload(data, chunk=chunk)
    _, found = await answered(payload, "^line (1|77777|83333|450000)$")
    assert [hit.line for hit in found.hits] == [1, 77777, 83333, 450000]
    assert payload.opened == 2


@given(st.binary(max_size=50).map(lambda data: data * 1000), st.integers(0, 50_000), st.integers(0, 50_000))
def test_newlines_are_counted_alike_with_and_without_a_library(data: bytes, start: int, end: int) -> None:
    start, end = min(start, len(data)), min(end, len(data))
    start, end = min(start, end), max(start, end)
    with pytest.MonkeyPatch.context() as patch:
        counted = [newlines(data, start, end)]
        patch.setattr("coatcheck.readers.scanning._library", None)
        counted.append(newlines(data, start, end))
    assert counted == [data[start:end].count(b"\n")] * 2


class Broken(Payload):
    """A payload that cannot be read to its end."""

    @asynccontextmanager
    async def open(self, start: int, end: int | None) -> AsyncIterator[ArtifactReader | None]:
        async with super().open(start, end) as reader:
            assert reader is not None
            async with aclosing(self.broken(aiter(reader))) as chunks:
                yield ArtifactReader(self.meta, reader.start, reader.end, chunks)

    async def broken(self, chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        async for chunk in chunks:
            if self.read > 3 << 20:
                raise StoreUnavailable("it broke off")
            yield chunk


@pytest.mark.anyio
async def test_what_was_found_before_a_payload_breaks_off_is_an_answer_if_it_is_all_that_is_wanted() -> None:
    data = b"".join(b"line %d\n" % number for number in range(600_000))
    found = await search(Broken(data, chunk=1 << 18).open, "line 10", max_matches=5)
    assert isinstance(found, Found)
    assert len(found.hits) == 5
    with pytest.raises(StoreUnavailable, match="broke off"):
        await search(Broken(data, chunk=1 << 18).open, "line 10$", max_matches=5)
