"""Truncation: the last net. It cuts whatever is left over the limit, and says so.

Law (`design.md` section 3, partings 8 and 9): what the model reads is valid JSON for every limit; the head
is a verbatim prefix, as long as the limit affords; where a head is present the whole is within the limit,
and where the limit cannot even hold the explanation, the explanation stands alone. Errors keep their tail
too, because the cause is in their last line. A ticket is never cut.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import cast

import msgspec

from coatcheck.dispatch import Dispatch
from coatcheck.flow import Ended, Flow, flow_of, settled
from coatcheck.outcome import Failed, Inline, Marker, Outcome, Placed, Truncated, carried, rendered_of, size_of
from coatcheck.results.binary import MAX_ATTACHED_BYTES
from coatcheck.results.rendering import Rendered
from coatcheck.results.shapes import clip
from coatcheck.settings import check_whole
from coatcheck.steps.step import Step

__all__ = ["Truncation", "TruncationStep", "cut"]

_MAX_JUDGED_BYTES = 1 << 30  # of a stream that is read to its end only because somebody has to judge all of it


class Truncation(msgspec.Struct, frozen=True):
    """The most characters that any one result may put before the model.

    Args:
        max_chars: in characters (Unicode code points).

    Raises:
        ConfigurationError: for anything but a positive whole number.
    """

    max_chars: int

    def __post_init__(self) -> None:
        check_whole("Truncation.max_chars", self.max_chars)


def cut(
    tool: str, rendered: Rendered, max_chars: int, *, tail: bool = False, returned: bool = True, more: bool = False
) -> Marker | None:
    """Decide: ``None`` where the text fits, else the marker that the model reads instead.

    Args:
        tool: whose result it is.
        rendered: the text. max_chars: the limit.
        tail: keep the end as well as the beginning (for errors).
        returned: it is what the tool returned, not a text about the call (a denial, a question).
        more: there may be more of it than was measured; ``rendered`` is the beginning of it.
    """
    if rendered.size <= max_chars:
        return None
    tool = clip(tool, 128)
    what = f"What {tool} returned" if returned else f"This text about {tool}"
    advice = " Ask for less to see the rest." if returned else ""
    size = f"has {f'more than {max_chars}' if more else rendered.size} characters, cut to the limit of {max_chars}"
    reason = f"{what} {size}: `head` is its beginning.{advice}"
    if tail:
        what = f"The error of {tool}"
        reason = f"{what} {size}: `head` is its beginning, `tail` its end."
        frame = len(Marker(reason=reason, head="", tail="").to_json())
        room = max_chars - frame
        back = _longest(rendered.tail(max(0, room // 2)), room // 2, from_end=True)
        front = _longest(rendered.head(max(0, room - _cost(back))), room - _cost(back))
        if not (front or back):
            reason = f"{what} {size}: neither its beginning nor its end fits."
        return Marker(reason=reason, head=front or None, tail=back or None)
    room = max_chars - len(Marker(reason=reason, head="").to_json())
    head = _longest(rendered.head(max(0, room)), room)
    if not head:
        reason = f"{what} {size}: not even its beginning fits.{advice}"
    return Marker(reason=reason, head=head or None)


def _cost(text: str) -> int:
    """How many characters ``text`` takes inside a JSON string, its escapes paid for."""
    return len(msgspec.json.encode(text).decode()) - 2


def _longest(text: str, room: int, *, from_end: bool = False) -> str:
    """The longest prefix (or suffix) of ``text`` that takes at most ``room`` characters inside a JSON string."""
    if room <= 0:
        return ""
    if _cost(text) <= room:
        return text
    if from_end:
        kept = bisect_right(range(1, len(text) + 1), room, key=lambda length: _cost(text[-length:]))
        return text[len(text) - kept :]
    kept = bisect_right(range(1, len(text) + 1), room, key=lambda length: _cost(text[:length]))
    return text[:kept]


class TruncationStep(Step):
    """The outermost of the four: measures what is left, refusals and errors too."""

    def __init__(self, truncation: Truncation) -> None:
        self.least: int = truncation.max_chars
        self._max_chars = self.least

    def over(self, call: Dispatch, outcome: Outcome, size: int) -> bool:
        """Whether this step has anything to do."""
        return size > self._max_chars

    async def act(self, call: Dispatch, outcome: Outcome) -> Outcome:
        """Cut the text, and say so. A ticket is left whole."""
        if isinstance(outcome, Placed):
            return outcome
        flow = flow_of(outcome)
        if flow is not None:
            return await self._cut_stream(call, cast("Inline", outcome), flow)
        returned = isinstance(outcome, (Inline, Truncated))
        marker = cut(
            outcome.tool, _text_only(outcome), self._max_chars, tail=isinstance(outcome, Failed), returned=returned
        )
        if marker is None:
            return outcome if sum(len(blob.data) for blob in outcome.content) <= MAX_ATTACHED_BYTES else _bare(outcome)
        if isinstance(outcome, Inline):
            return carried(
                outcome,
                Truncated,
                text=marker.to_json(),
                cut=True,
                marker=marker,
                tickets=outcome.tickets,
                content=outcome.content,
            )
        return msgspec.structs.replace(outcome, text=marker.to_json(), cut=True)

    async def _cut_stream(self, call: Dispatch, outcome: Inline, flow: Flow) -> Outcome:
        """The head of a stream that nobody stored. Whoever judges it has to see all of it before any is shown."""
        instead: Outcome | None = None
        try:
            if not flow.lost and await flow.fill(self._max_chars):
                instead = settled(outcome, flow)
            elif flow.judged and not await flow.drain(_MAX_JUDGED_BYTES):
                instead = _never_ending(outcome)
        except Ended as end:
            instead = end.outcome
        except BaseException:
            await flow.abandon()
            raise
        if instead is not None:  # it is measured like everything else
            await flow.aclose()
            left = self.leave(call, instead, size_of(instead))
            return left if isinstance(left, Outcome) else await left
        more = not flow.whole
        await flow.aclose()
        head = flow.head()
        marker = cut(outcome.tool, head, self._max_chars, more=more) if flow.gauge.is_text else None
        if marker is None:
            size = f"{'more than ' if more else ''}{flow.gauge.bytes} bytes of binary"
            marker = Marker(reason=f"{outcome.tool} returned {size}, which could not be kept, and are not shown.")
        return carried(outcome, Truncated, text=marker.to_json(), cut=True, marker=marker)


def _bare(outcome: Outcome) -> Outcome:
    """Without binary that is too large to ride beside a text: a stream may turn into it after it was measured."""
    size = sum(len(blob.data) for blob in outcome.content)
    reason = f"{outcome.tool} returned {size} bytes of binary, which could not be kept, and are not shown."
    marker = Marker(reason=reason)
    return carried(outcome, Truncated, text=marker.to_json(), cut=True, marker=marker)


def _never_ending(outcome: Outcome) -> Failed:
    reason = (
        f"{outcome.tool} returned a stream that could not be stored, and that did not end within {_MAX_JUDGED_BYTES} "
        "bytes; so nobody could judge it, and nothing of it is shown. Ask for less."
    )
    return carried(outcome, Failed, text=reason, reason=reason)


def _text_only(outcome: Outcome) -> Rendered:
    """The text that the model would read; binary beside it is bounded elsewhere."""
    rendered = rendered_of(outcome)
    if not rendered.blobs:
        return rendered
    return Rendered(len(rendered.text), rendered.media_type, None, rendered.text)
