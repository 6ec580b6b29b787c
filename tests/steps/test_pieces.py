"""Rules and streams: judged piece by piece, staged, or as a whole; nothing is published before the last has passed."""

from __future__ import annotations

import errno
import hashlib
import tempfile
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import coatcheck as cc
from coatcheck.steps.pieces import _Split

pytestmark = pytest.mark.anyio

SCOPE = cc.Scope(tenant="acme", conversation="c")
KIB = 1024
LIMIT = 1_000
CARD = "4242 4242"


class Streaming:
    """A tool that yields what it is given, and says how often it was closed."""

    def __init__(self, *pieces: Any, fails: Exception | None = None, **declarations: Any) -> None:
        self.closed = 0
        self.yielded = 0

        async def give() -> AsyncIterator[Any]:
            try:
                for piece in pieces:
                    self.yielded += 1
                    yield piece
                if fails is not None:
                    raise fails
            finally:
                self.closed += 1

        self.tool = cc.tool(name="give", **declarations)(give)


async def judged(
    streaming: Streaming, *rules: Any, store: cc.ArtifactStore | None = None, **dials: Any
) -> tuple[cc.AnyOutcome, bytes | None, tuple[cc.Decision, ...]]:
    """One call under the rules: its outcome, what was stored, and the ledger."""
    store = store or cc.MemoryStore()
    dials = {"store": store, "placement": cc.Placement(LIMIT), **dials}
    boundary = cc.Boundary([streaming.tool], rules=rules, **dials)
    session = boundary.session(SCOPE)
    outcome = await session.call("give")
    assert not boundary.streams.open
    assert streaming.closed == 1
    stored: bytes | None = None
    if isinstance(outcome, cc.Placed):
        artifact = await store.get(SCOPE, outcome.ticket.ref)
        assert artifact is not None
        stored = artifact.data
    else:
        assert (await store.list(SCOPE)).artifacts == ()
        assert await store.sweep(dry_run=True) == ()
    return outcome, stored, session.decisions


def told(rows: tuple[cc.Decision, ...]) -> list[tuple[str, str, bool]]:
    return [(row.rule, row.outcome, row.changed) for row in rows]


# --- piece by piece ---


@cc.after_chunk
def looks(call: cc.ToolCall, chunk: cc.Chunk) -> cc.Allow:
    seen = chunk.memory.setdefault("seen", [])
    seen.append((chunk.offset, len(chunk.data), chunk.last))
    return cc.allow()


@cc.after_chunk
def hides_cards(call: cc.ToolCall, chunk: cc.Chunk) -> cc.Allow | cc.Deny:
    """As a rule for words has to be: it holds back what may be the beginning of one."""
    assert isinstance(chunk.data, str)
    text = chunk.memory.pop("held", "") + chunk.data
    clean = text.replace(CARD, "#### ####")
    keep = 0 if chunk.last else min(len(CARD) - 1, len(clean))
    chunk.memory["held"] = clean[len(clean) - keep :]
    return cc.allow(clean[: len(clean) - keep], why="card numbers stay out of conversations")


@cc.after_chunk
def no_secrets(call: cc.ToolCall, chunk: cc.Chunk) -> cc.Allow | cc.Deny:
    return cc.deny("It holds a secret.") if "SECRET" in str(chunk.data) else cc.allow()


@given(st.lists(st.sampled_from(["4242", " ", "42", CARD, "é", "x" * 400]), min_size=10, max_size=40))
@settings(max_examples=50)
async def test_a_word_is_found_wherever_the_pieces_are_cut(pieces: list[str]) -> None:
    pieces = ["x" * LIMIT, *pieces, "end"]
    outcome, stored, rows = await judged(Streaming(*pieces), hides_cards)
    assert isinstance(outcome, cc.Placed)
    assert stored == "".join(pieces).replace(CARD, "#### ####").encode()
    assert told(rows) == [("hides_cards", "allow", True)]
    (row,) = rows
    assert isinstance(row.before, cc.Fingerprint)
    assert isinstance(row.after, cc.Fingerprint)
    assert row.before.digest == "sha256:" + hashlib.sha256("".join(pieces).encode()).hexdigest()
    assert row.after == cc.Fingerprint(len(stored.decode()), "sha256:" + hashlib.sha256(stored).hexdigest())
    assert row.why == "card numbers stay out of conversations"


async def test_a_rule_sees_every_byte_once_in_order_and_one_last_piece() -> None:
    seen: list[tuple[int, str | bytes, bool]] = []

    @cc.after_chunk
    async def keeps(call: cc.ToolCall, chunk: cc.Chunk) -> cc.Allow:
        await anyio.lowlevel.checkpoint()
        seen.append((chunk.offset, chunk.data, chunk.last))
        return cc.allow()

    data = "é" * 400 * KIB
    outcome, stored, rows = await judged(Streaming(data.encode()[:3], data.encode()[3:]), keeps)
    assert isinstance(outcome, cc.Placed)
    assert stored == data.encode()
    assert "".join(str(piece) for _, piece, _ in seen) == data
    assert [last for _, _, last in seen] == [False] * (len(seen) - 1) + [True]
    assert [offset for offset, _, _ in seen] == [2 * sum(len(each[1]) for each in seen[:n]) for n in range(len(seen))]
    assert told(rows) == [("keeps", "allow", False)]


async def test_what_turns_out_to_be_no_text_comes_as_bytes_from_then_on() -> None:
    kinds: list[str] = []

    @cc.after_chunk
    def keeps(call: cc.ToolCall, chunk: cc.Chunk) -> cc.Allow:
        kinds.append(type(chunk.data).__name__)
        return cc.allow()

    for pieces in ([b"text" * KIB, b"\xff" * 70 * KIB], [b"text" * KIB, b"\xc3" + b"\xff" * 70 * KIB]):
        kinds.clear()
        outcome, stored, _ = await judged(Streaming(*pieces), keeps)
        assert isinstance(outcome, cc.Placed)
        assert stored == b"".join(pieces)
        assert outcome.ticket.media_type == "application/octet-stream"
        assert kinds[-1] == "bytes"


async def test_a_denial_at_the_last_piece_leaves_nothing_of_the_first() -> None:
    streaming = Streaming("x" * 300 * KIB, "x" * 300 * KIB, "SECRET")
    outcome, _, rows = await judged(streaming, no_secrets)
    assert isinstance(outcome, cc.Denied)
    assert (outcome.text, outcome.rule, outcome.executed) == ("It holds a secret.", "no_secrets", True)
    assert told(rows) == [("no_secrets", "deny", True)]


async def test_a_denial_stops_the_tool() -> None:
    streaming = Streaming(*["x" * 300 * KIB, "SECRET" * 100 * KIB] * 100)
    outcome, _, _ = await judged(streaming, no_secrets)
    assert isinstance(outcome, cc.Denied)
    assert streaming.yielded < 6


async def test_rules_look_in_reverse_order_and_each_sees_what_the_one_before_let_through() -> None:
    outcome, stored, rows = await judged(Streaming("x" * LIMIT, CARD), looks, hides_cards)
    assert isinstance(outcome, cc.Placed)
    assert stored == b"x" * LIMIT + b"#### ####"
    assert told(rows) == [("hides_cards", "allow", True), ("looks", "allow", False)]


async def test_what_a_rule_made_small_is_an_ordinary_value() -> None:
    @cc.after_chunk
    def counts(call: cc.ToolCall, chunk: cc.Chunk) -> cc.Allow:
        chunk.memory["n"] = chunk.memory.get("n", 0) + len(chunk.data)
        return cc.allow(str(chunk.memory["n"]) if chunk.last else "", why="only how many")

    outcome, _, rows = await judged(Streaming(*["x" * 300 * KIB] * 3), counts)
    assert isinstance(outcome, cc.Inline)
    assert outcome.text == str(900 * KIB)
    assert told(rows) == [("counts", "allow", True)]


@pytest.mark.parametrize(
    "answer",
    [
        None,
        "yes",
        cc.ask("May it?"),
        cc.allow(7, why="a number"),
        cc.allow(b"bytes", why="for text"),
        ValueError("a bug"),
    ],
    ids=repr,
)
async def test_a_rule_that_answers_with_nonsense_or_raises_has_permitted_nothing(answer: Any) -> None:
    @cc.after_chunk
    def rule(call: cc.ToolCall, chunk: cc.Chunk) -> Any:
        if chunk.offset == 0:
            return cc.allow()
        if isinstance(answer, Exception):
            raise answer
        return answer

    outcome, _, rows = await judged(Streaming(*["x" * 300 * KIB] * 3), rule)
    assert isinstance(outcome, cc.Denied)
    assert "could not decide" in outcome.text
    assert told(rows) == [("rule", "deny", True)]


async def test_a_rule_that_hangs_on_a_piece_has_permitted_nothing() -> None:
    @cc.after_chunk
    async def rule(call: cc.ToolCall, chunk: cc.Chunk) -> Any:
        await anyio.sleep_forever()

    with anyio.fail_after(10):
        outcome, _, _ = await judged(Streaming(*["x" * 300 * KIB] * 3), rule, rule_timeout=0.1)
    assert isinstance(outcome, cc.Denied)


async def test_a_rule_in_a_thread_may_block() -> None:
    @cc.after_chunk(name="scanner", thread=True)
    def rule(call: cc.ToolCall, chunk: cc.Chunk) -> cc.Allow:
        with tempfile.TemporaryFile() as file:
            file.write(str(chunk.data).encode())
        return cc.allow()

    outcome, _, rows = await judged(Streaming(*["x" * 300 * KIB] * 3), rule)
    assert isinstance(outcome, cc.Placed)
    assert told(rows) == [("scanner", "allow", False)]


async def test_two_streams_at_once_have_a_memory_each() -> None:
    tool = Streaming("x" * LIMIT, CARD[:5], CARD[5:]).tool
    store = cc.MemoryStore()
    session = cc.Boundary([tool], rules=[hides_cards], store=store, placement=cc.Placement(LIMIT)).session(SCOPE)
    outcomes = await session.call_batch([cc.ToolCall("give", {})] * 5)
    assert len({outcome.text for outcome in outcomes}) == 1
    assert isinstance(outcomes[0], cc.Placed)


# --- a rule for pieces and a whole result ---


async def call_whole(value: Any, *rules: Any) -> cc.AnyOutcome:
    async def give() -> Any:
        if isinstance(value, Exception):
            raise value
        return value

    return await cc.Boundary([give], rules=rules).session(SCOPE).call("give")


async def test_a_whole_result_comes_to_a_rule_for_pieces_as_one_piece() -> None:
    for value, text in (
        (f"a {CARD}", "a #### ####"),
        ({"card": CARD}, '{"card":"#### ####"}'),
        (ValueError(CARD), "#### ####"),
    ):
        outcome = await call_whole(value, hides_cards)
        assert outcome.text == text
    assert isinstance(await call_whole("SECRET", no_secrets), cc.Denied)
    assert isinstance(await call_whole({"a": "SECRET"}, no_secrets), cc.Denied)
    binary = await call_whole(b"\xffSECRET", no_secrets)
    assert isinstance(binary, cc.Denied)


async def test_json_that_a_rule_for_pieces_changed_is_still_json() -> None:
    outcome = await call_whole({"card": CARD}, hides_cards)
    assert isinstance(outcome, cc.Inline)
    assert outcome.value == cc.Encoded(b'{"card":"#### ####"}')

    @cc.after_chunk
    async def breaks(call: cc.ToolCall, chunk: cc.Chunk) -> cc.Allow:
        return cc.allow("{", why="a careless cut")

    assert isinstance(await call_whole({"card": CARD}, breaks), cc.Denied)


async def test_a_rule_with_both_hooks_is_asked_by_the_one_that_fits() -> None:
    asked: list[str] = []

    class Both(cc.Rule):
        def after_tool(self, call: cc.ToolCall, result: cc.Result) -> cc.Allow:
            asked.append("whole")
            return cc.allow()

        def after_chunk(self, call: cc.ToolCall, chunk: cc.Chunk) -> cc.Allow:
            asked.append("chunk")
            return cc.allow()

    await call_whole("text", Both())
    assert asked == ["whole"]
    await judged(Streaming("x" * 5_000), Both())
    assert set(asked[1:]) == {"chunk"}


# --- what a stream ends as ---


async def test_an_error_in_the_middle_is_judged_like_every_error() -> None:
    streaming = Streaming("x" * 300 * KIB, fails=ValueError(f"no such card: {CARD}"))
    outcome, _, rows = await judged(streaming, hides_cards)
    assert isinstance(outcome, cc.Failed)
    assert CARD not in outcome.text
    assert outcome.text.endswith("no such card: #### ####")
    assert told(rows) == [("hides_cards", "allow", True)]


async def test_the_refusal_of_a_ceiling_is_shown_to_the_rules() -> None:
    results: list[str] = []

    class Sees(cc.Rule):
        def after_tool(self, call: cc.ToolCall, result: cc.Result) -> cc.Allow:
            results.append(result.text)
            return cc.allow()

        def after_chunk(self, call: cc.ToolCall, chunk: cc.Chunk) -> cc.Allow:
            return cc.allow()

    streaming = Streaming(*["x" * 300 * KIB] * 9, ceiling=cc.Ceiling(max_chars=500 * KIB))
    outcome, _, _ = await judged(streaming, Sees())
    assert isinstance(outcome, cc.TooLarge)
    assert results == [outcome.text]


# --- rules for whole results ---


@cc.after_tool
def whole(call: cc.ToolCall, result: cc.Result) -> cc.Allow | cc.Deny:
    return cc.deny("It holds a secret.") if "SECRET" in result.text else cc.allow()


async def test_a_rule_for_whole_results_is_given_what_can_be_held() -> None:
    outcome, stored, rows = await judged(Streaming(*["x" * 300 * KIB] * 3), whole)
    assert isinstance(outcome, cc.Placed)
    assert stored == b"x" * 900 * KIB
    assert told(rows) == [("whole", "allow", False)]
    denied, _, _ = await judged(Streaming("x" * 300 * KIB, "SECRET"), whole, hides_cards)
    assert isinstance(denied, cc.Denied)


async def test_what_cannot_be_held_is_denied_on_the_ledger_and_the_model_learns_why() -> None:
    streaming = Streaming(*["x" * 300 * KIB] * 100)
    outcome, _, rows = await judged(streaming, looks, whole, max_collected_bytes=600 * KIB)
    assert isinstance(outcome, cc.Denied)
    assert f"more than {600 * KIB} bytes" in outcome.text
    assert "the rule whole can only judge a result as a whole" in outcome.text
    assert told(rows) == [("whole", "deny", True)]
    assert streaming.yielded <= 4


# --- staged ---


async def test_a_rule_that_understands_streams_reads_any_part_before_anything_is_published() -> None:
    store = cc.MemoryStore()
    results: list[cc.StreamResult] = []

    @cc.after_tool(streams=True)
    async def reads(call: cc.ToolCall, result: cc.Result | cc.StreamResult) -> cc.Allow:
        assert isinstance(result, cc.StreamResult)
        results.append(result)
        assert (await store.list(SCOPE)).artifacts == ()
        assert b"".join([piece async for piece in result.read(7, 700_000)]) == data[7:700_000]
        assert b"".join([piece async for piece in result.read()]) == data
        assert [piece async for piece in result.read(len(data) + 5)] == []
        with pytest.raises(cc.InvalidRange):
            await anext(aiter(result.read(-1)))
        assert not hasattr(result, "text")
        return cc.allow(why="it was read")

    data = "é1".encode() * 400 * KIB
    outcome, stored, rows = await judged(Streaming(data[:1], data[1:]), reads, store=store)
    assert isinstance(outcome, cc.Placed)
    assert stored == data
    assert told(rows) == [("reads", "allow", False)]
    (result,) = results
    assert (result.media_type, result.bytes, result.size, result.error, result.status) == (
        "text/plain",
        len(data),
        800 * KIB,
        False,
        None,
    )
    assert result.digest == "sha256:" + hashlib.sha256(data).hexdigest()


async def test_a_small_stream_is_an_ordinary_result_for_it() -> None:
    @cc.after_tool(streams=True)
    def reads(call: cc.ToolCall, result: cc.Result | cc.StreamResult) -> cc.Allow | cc.Deny:
        return cc.allow() if isinstance(result, cc.Result) else cc.deny("not small")

    outcome, _, _ = await judged(Streaming("a", "b"), reads)
    assert outcome.text == "ab"


async def test_staged_it_may_be_denied_or_replaced_and_the_other_rules_still_look() -> None:
    @cc.after_tool(streams=True)
    def counts(call: cc.ToolCall, result: cc.Result | cc.StreamResult) -> cc.Allow:
        return cc.allow(f"{result.size} {CARD}", why="only how many")

    @cc.after_tool(streams=True)
    def denies(call: cc.ToolCall, result: cc.Result | cc.StreamResult) -> cc.Deny:
        return cc.deny("no")

    @cc.after_tool(streams=True)
    def fails(call: cc.ToolCall, result: cc.Result | cc.StreamResult) -> cc.Allow:
        raise ValueError("a bug")

    outcome, _, rows = await judged(Streaming("x" * 300 * KIB), hides_cards, counts)
    assert outcome.text == f"{300 * KIB} #### ####"
    assert told(rows) == [("counts", "allow", True), ("hides_cards", "allow", True)]
    outcome, _, rows = await judged(Streaming("x" * 300 * KIB), hides_cards, denies)
    assert (type(outcome), told(rows)) == (cc.Denied, [("denies", "deny", True)])
    outcome, _, rows = await judged(Streaming("x" * 300 * KIB), hides_cards, fails)
    assert (type(outcome), told(rows)) == (cc.Denied, [("fails", "deny", True)])


async def test_staged_between_rules_for_pieces_it_is_what_those_before_let_through() -> None:
    @cc.after_tool(streams=True)
    async def reads(call: cc.ToolCall, result: cc.Result | cc.StreamResult) -> cc.Allow:
        assert isinstance(result, cc.StreamResult)
        assert b"#### ####" in b"".join([piece async for piece in result.read()])
        return cc.allow()

    outcome, stored, rows = await judged(Streaming("x" * 300 * KIB, CARD), looks, reads, hides_cards)
    assert isinstance(outcome, cc.Placed)
    assert stored == b"x" * 300 * KIB + b"#### ####"
    assert [row[0] for row in told(rows)] == ["hides_cards", "reads", "looks"]


async def test_a_staging_that_the_disk_does_not_hold_is_a_rule_that_could_not_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    @cc.after_tool(streams=True)
    def reads(call: cc.ToolCall, result: cc.Result | cc.StreamResult) -> cc.Allow:
        return cc.allow()

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    outcome, _, rows = await judged(Streaming("x" * 300 * KIB), reads)
    assert isinstance(outcome, cc.Denied)
    assert told(rows) == [("reads", "deny", True)]


@pytest.mark.parametrize("hooks", ["after_chunk", "neither"])
def test_a_rule_that_says_it_understands_streams_must_have_the_hook_for_it(hooks: str) -> None:
    class Confused(cc.Rule):
        streams = True

    rule = Confused()
    setattr(rule, "before_tool", lambda call: cc.allow())  # noqa: B010 - a rule by its looks
    if hooks == "after_chunk":
        setattr(rule, "after_tool", lambda call, result: cc.allow())  # noqa: B010
        setattr(rule, "after_chunk", lambda call, chunk: cc.allow())  # noqa: B010
    with pytest.raises(cc.ConfigurationError, match=r"rules\[0\] \(Confused\): streams=True"):
        cc.Boundary(rules=[rule])


def pieces_of(data: bytes, sizes: list[int]) -> Iterator[bytes]:
    start = 0
    for size in sizes:
        yield data[start : start + size]
        start += size
    yield data[start:]


@given(st.text(max_size=30), st.lists(st.integers(0, 6)))
def test_text_is_cut_between_characters(text: str, sizes: list[int]) -> None:
    split = _Split()
    pieces = [piece for piece in pieces_of(text.encode(), sizes) if piece]
    out = [split.next(piece, as_text=True) for piece in [*pieces, b""]]
    assert "".join(str(each) for each in out) == text


async def test_the_ledger_of_a_stream_leaves_the_process_with_the_session() -> None:
    boundary = cc.Boundary(
        [Streaming("x" * LIMIT, CARD).tool], rules=[hides_cards], store="memory:", placement=cc.Placement(LIMIT)
    )
    session = boundary.session(SCOPE)
    await session.call("give")
    assert boundary.session_from_bytes(session.to_bytes()).decisions == session.decisions
    assert msgspec.json.encode(session.decisions)
