"""A flow: what is read ahead, what is kept, and how it ends, whatever its source does."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coatcheck.errors import RenderingError
from coatcheck.flow import FLOWING, Ended, Flow, flow_of, flowing, settled, undeliverable
from coatcheck.outcome import Failed, Inline, Outcome, TooLarge, carried, size_of
from coatcheck.results.streams import Gauge

pytestmark = pytest.mark.anyio

ABOUT = Inline(tool="give", call_id="call_7", text="", value=None, executed=True, status="partial")


class Script:
    """A source that gives what it was told to, then ends as it was told to."""

    def __init__(self, pieces: Sequence[bytes], ends: Outcome | None = None) -> None:
        self.pieces = [piece for piece in pieces if piece]
        self.ends = ends
        self.closed = 0

    async def read(self) -> bytes:
        await anyio.lowlevel.checkpoint()
        if self.pieces:
            return self.pieces.pop(0)
        if self.ends is not None:
            raise Ended(self.ends)
        return b""

    async def aclose(self) -> None:
        self.closed += 1

    async def abandon(self) -> None:
        await self.aclose()


def flow_from(*pieces: bytes, keep: int = 10, ends: Outcome | None = None) -> tuple[Flow, Script]:
    script = Script(pieces, ends)
    return Flow(script, Gauge(), ABOUT, keep=keep), script


async def rest_of(flow: Flow) -> bytes:
    pieces = []
    while piece := await flow.read():
        pieces.append(piece)
    return b"".join(pieces)


texts = st.lists(st.text(min_size=1, max_size=8).map(str.encode), max_size=8)


@given(texts, st.integers(0, 40))
async def test_what_was_read_ahead_is_read_again_and_nothing_twice(pieces: list[bytes], chars: int) -> None:
    flow, script = flow_from(*pieces)
    text = b"".join(pieces).decode()
    assert await flow.fill(chars) == (len(text) <= chars)
    assert await rest_of(flow) == text.encode()
    assert flow.gauge.size == len(text)
    assert flow.whole
    assert script.closed >= 1
    assert await flow.read() == b""


@given(texts, st.integers(0, 40))
async def test_the_head_is_the_beginning_of_the_text_however_much_was_read(pieces: list[bytes], keep: int) -> None:
    flow, _ = flow_from(*pieces, keep=keep)
    await flow.drain()
    head = flow.head()
    assert head.text == b"".join(pieces).decode()[:keep]
    assert head.size == flow.gauge.size


async def test_no_more_is_read_ahead_than_the_decision_needs() -> None:
    flow, script = flow_from(b"aaa", b"bbb", b"ccc", b"ddd")
    assert not await flow.fill(5)
    assert script.pieces == [b"ccc", b"ddd"]
    assert not await flow.fill(bytes=7)
    assert script.pieces == [b"ddd"]
    assert not flow.whole
    assert not await flow.fill(5), "asked again, it reads nothing more"
    assert script.pieces == [b"ddd"]


async def test_text_that_turns_out_to_be_none_is_measured_again() -> None:
    flow, _ = flow_from("éé".encode(), b"\xff")
    assert not await flow.fill(4), "five bytes, and no characters any more"
    assert flow.head().text == ""


async def test_a_limit_ends_it_as_its_refusal_and_closes_the_source() -> None:
    refusal = carried(ABOUT, TooLarge, text="too large", size=0, max_chars=5)
    flow, script = flow_from(b"aaa", b"bbb", b"ccc")
    flow.limit(5, lambda: refusal)
    assert flow.judged
    with pytest.raises(Ended) as ended:
        await flow.drain()
    assert ended.value.outcome is refusal is flow.ended
    assert script.closed == 1
    assert script.pieces == [b"ccc"]
    with pytest.raises(Ended):
        await flow.read()


async def test_what_it_ends_as_is_judged_once_more() -> None:
    broken = Failed(tool="give", text="broken", reason="broken")
    judged = Failed(tool="give", text="judged", reason="judged")

    async def judge(outcome: Outcome) -> Outcome:
        assert outcome is broken
        return judged

    flow, _ = flow_from(b"a", ends=broken)
    flow.on_end = judge
    with pytest.raises(Ended) as ended:
        await flow.fill(100)
    assert ended.value.outcome is judged is flow.ended


async def test_a_reader_that_was_interrupted_leaves_a_flow_that_nobody_can_read_to_its_end() -> None:
    flow, _ = flow_from(b"a", b"b")
    with anyio.CancelScope() as scope:
        scope.cancel()
        await flow.read()
    assert flow.lost
    with pytest.raises(Ended) as ended:
        await flow.read()
    assert isinstance(ended.value.outcome, Failed)
    assert "cut off" in ended.value.outcome.text


async def test_a_flow_around_another_has_a_count_of_its_own() -> None:
    flow, script = flow_from(b"aaa", b"bbb")

    class Doubles:
        async def read(self) -> bytes:
            return await flow.read() * 2

        async def aclose(self) -> None:
            await flow.aclose()

        async def abandon(self) -> None:
            await flow.abandon()

    onward = flow.through(Doubles())
    assert await rest_of(onward) == b"aaaaaabbbbbb"
    assert (flow.gauge.size, onward.gauge.size) == (6, 12)
    assert onward.judged
    assert script.closed >= 1


async def test_an_outcome_on_its_way_is_over_every_limit_and_says_what_it_is() -> None:
    flow, _ = flow_from(b"aaa")
    outcome = flowing(ABOUT, flow)
    assert size_of(outcome) == FLOWING
    assert flow_of(outcome) is flow
    assert flow_of(ABOUT) is None
    assert "a stream of text/plain" in outcome.text
    assert outcome.status == "partial"


async def test_read_as_a_whole_it_is_an_ordinary_outcome_of_the_same_call() -> None:
    flow, _ = flow_from("é".encode(), b"a")
    assert await flow.fill(5)
    outcome = settled(ABOUT, flow)
    assert isinstance(outcome, Inline)
    assert (outcome.value, outcome.text, outcome.status, outcome.call_id) == ("éa", "éa", "partial", "call_7")
    failed = undeliverable(ABOUT, RenderingError("$", "nothing"))
    assert (failed.tool, failed.call_id, failed.executed) == ("give", "call_7", True)
