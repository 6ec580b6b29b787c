"""Placement: the OPERATOR's threshold. What is over it is stored, and the model reads a ticket.

Law (`design.md` section 3; `reference/behaviour.md` section 6): what the rules let through is measured, only
strictly over is over, and the bytes that were measured are the bytes that are stored. Refusals, denials and
errors are never placed. A placement that fails for any cause leaves an event and the result as it was; the
call goes on.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from fnmatch import fnmatchcase
from typing import Any

import anyio
import msgspec

from coatcheck.artifacts.lineage import still_there
from coatcheck.artifacts.meta import MAX_PARENTS, ArtifactMeta, PutResult, origin_of
from coatcheck.artifacts.port import ArtifactStore
from coatcheck.artifacts.ref import MAX_KIND_CHARS
from coatcheck.artifacts.ticket import OUTLINE_FRAME_CHARS, Ticket, make_ticket, placed_kind
from coatcheck.dispatch import Dispatch, is_stray
from coatcheck.errors import (
    ConfigurationError,
    IntegrityError,
    InvalidArtifact,
    RenderingError,
    StoreError,
    UnknownParent,
)
from coatcheck.events import ArtifactRefused, events_of_put
from coatcheck.flow import Ended, Flow, flow_of, settled
from coatcheck.outcome import Inline, Outcome, Placed, carried, rendered_of, size_of
from coatcheck.results.binary import MAX_ATTACHED_BYTES, Blob, may_hold_binary, replace_blobs
from coatcheck.results.conversion import canonical
from coatcheck.results.envelope import Encoded
from coatcheck.results.outline import MAX_OUTLINE_CHARS, Outliner, outline_of
from coatcheck.results.rendering import JSON, TEXT, Rendered, render
from coatcheck.settings import check_duration, check_whole
from coatcheck.steps.step import Step

__all__ = ["MIN_LEAF_BYTES", "BatchPlan", "Placement", "PlacementStep", "plan_batch"]

MIN_LEAF_BYTES = 1024
"""Binary inside a placed value that is smaller stays where it is: its ticket would be longer."""

_log = logging.getLogger("coatcheck")

_ANY_REF = "art_" + "0" * 32
_LONGEST = 10**15  # bytes of a stream whose ticket has to be reckoned with before it has ended


class Placement(msgspec.Struct, frozen=True):
    """How large a result may be before it is stored instead of read.

    Args:
        max_inline_chars: the threshold for one result, in characters (Unicode code points); bytes for binary.
        per_tool: thresholds of their own, by exact tool name or by glob (``"search_*"``). An exact name
            wins over every glob, an earlier glob over a later one.
        max_batch_chars: what all results of one turn may take together; ``None`` for no such limit.
        preview_chars: how much of the head of a placed text its ticket shows, beside an outline of the whole (the
            shape of JSON, the columns of rows, the lines of text); 0 for neither.
        timeout: how long storing one result may take before it counts as failed, in seconds or as a `timedelta`. While
            a stream is stored, only the time counts in which the store does not ask for the next piece.

    Raises:
        ConfigurationError: naming the dial that cannot be honoured.
    """

    max_inline_chars: int
    per_tool: Mapping[str, int] = {}
    max_batch_chars: int | None = None
    preview_chars: int = 0
    timeout: float | timedelta = 30.0

    def __post_init__(self) -> None:
        check_whole("Placement.max_inline_chars", self.max_inline_chars)
        if not isinstance(self.per_tool, Mapping):
            raise ConfigurationError(f"Placement.per_tool must map tool names to limits, not {self.per_tool!r:.80}")
        for name, limit in self.per_tool.items():
            if not isinstance(name, str) or not name.strip():
                raise ConfigurationError(f"Placement.per_tool: {name!r:.80} is no tool name and no glob")
            check_whole(f"Placement.per_tool[{name!r:.80}]", limit)
        if self.max_batch_chars is not None:
            check_whole("Placement.max_batch_chars", self.max_batch_chars)
        check_whole("Placement.preview_chars", self.preview_chars, least=0)
        msgspec.structs.force_setattr(self, "timeout", check_duration("Placement.timeout", self.timeout))
        msgspec.structs.force_setattr(self, "per_tool", dict(self.per_tool))

    def limit_for(self, tool: str) -> int:
        """The threshold of one tool, in characters."""
        if tool in self.per_tool:
            return self.per_tool[tool]
        return next((limit for glob, limit in self.per_tool.items() if fnmatchcase(tool, glob)), self.max_inline_chars)


class BatchPlan(msgspec.Struct, frozen=True):
    """Which results of a turn are placed for its budget.

    Attributes:
        placed: their indexes. chars: what the turn takes then.
        met: whether that is within the budget.
    """

    placed: frozenset[int]
    chars: int
    met: bool


def plan_batch(sizes: Sequence[tuple[int, int | None]], budget: int) -> BatchPlan:
    """Decide which results of one turn are placed so that together they are within ``budget``.

    The largest go first, ties by index, and only where the ticket is shorter than the result.

    Args:
        sizes: per call, the characters that it takes now, and the length of its ticket or ``None`` where
            it cannot be placed.
        budget: in characters.
    """
    total = sum(chars for chars, _ in sizes)
    placed: set[int] = set()
    for index in sorted(range(len(sizes)), key=lambda index: (-sizes[index][0], index)):
        if total <= budget:
            break
        chars, ticket = sizes[index]
        if ticket is not None and ticket < chars:
            placed.add(index)
            total += ticket - chars
    return BatchPlan(frozenset(placed), total, total <= budget)


class PlacementStep(Step):
    """The middleware around governance: stores what is over, and hands on the ticket.

    Args:
        placement: the thresholds. store: where to.
        tools: the kind that each tool's author declared, or ``None``, by tool name.
        cap: the limit of the truncation outside, which bounds what an outcome can take of a turn's budget.
        readers: the tools that read refs back, by name: what they do. Their own results are never placed.
    """

    def __init__(
        self,
        placement: Placement,
        store: ArtifactStore,
        tools: Mapping[str, str | None],
        *,
        cap: int | None = None,
        readers: Mapping[str, str] | None = None,
    ) -> None:
        self._readers = readers or {}
        self._pager = next((name for name, does in self._readers.items() if does == "read"), None)
        self._placement = placement
        self._store = store
        self._kinds = tools
        self._limits = {tool: placement.limit_for(tool) for tool in tools}
        self._smallest = min((placement.max_inline_chars, *placement.per_tool.values()))
        self._budget = placement.max_batch_chars
        self._cap = sys.maxsize if cap is None else cap
        self.least: int = self._smallest if self._budget is None else -1
        self._timeout = check_duration("Placement.timeout", placement.timeout)

    def over(self, call: Dispatch, outcome: Outcome, size: int) -> bool:
        """Whether this step has anything to do. With a batch budget every call of a batch has to be counted."""
        if size > self._limits.get(outcome.tool, self._smallest) and outcome.tool not in self._readers:
            return True
        return self._budget is not None and (call.batch is not None or size > self._budget)

    async def act(self, call: Dispatch, outcome: Outcome) -> Outcome:
        """Store what is over its own limit, or what the budget of its batch wants stored."""
        budget = self._budget
        batch = call.batch if budget is not None else None
        if not isinstance(outcome, Inline):
            return outcome
        flow = flow_of(outcome)
        if outcome.tool in self._readers:
            if batch is not None:  # it counts, and stays what it is
                batch.ended(min(size_of(outcome), self._cap))
            return outcome
        if flow is not None:
            return await self._place_stream(call, outcome, flow)
        measured, limit = outcome, self._placement.limit_for(outcome.tool)
        size = size_of(outcome)
        if size > limit:
            placed = await self._place(call, outcome, limit, shared=False)
            if budget is None or not isinstance(placed, Inline) or not placed.tickets:
                return placed
            outcome, size = placed, size_of(placed)  # its binary is stored; what is left counts
        if budget is None:
            return outcome
        size = min(size, self._cap)
        ticket_chars = len(self._draft(outcome, budget, shared=True).to_json())
        if batch is None:  # a turn of one
            wanted = size > budget and ticket_chars < size
        else:
            wanted = await batch.must_place(size, ticket_chars, self._timeout)
        if not wanted:
            return outcome
        placed = await self._place(call, outcome, budget, shared=True)
        # What could not be stored whole is delivered as it came: a part may have been pushed out meanwhile.
        return measured if isinstance(placed, Inline) else placed

    def _draft(self, outcome: Inline, limit: int, *, shared: bool = False) -> Ticket:
        """The ticket but for its ref, which is as long as every other."""
        outcome, rendered = _parcel(outcome, limit, shared)
        return self._ticket(outcome, _ANY_REF, rendered.media_type, len(rendered.data), rendered, limit, shared)

    def _ticket(
        self, outcome: Inline, ref: str, media_type: str, stored: int, rendered: Rendered, limit: int, shared: bool
    ) -> Ticket:
        chars = self._placement.preview_chars
        return make_ticket(
            tool=outcome.tool,
            ref=ref,
            kind=self._kind(outcome.tool),
            media_type=media_type,
            size=max(rendered.size, size_of(outcome)),
            bytes=stored,
            limit=limit,
            shared=shared,
            reader=self._pager,
            preview=rendered.head(chars) if chars and not rendered.blobs else None,
            outline=_outlined(lambda: outline_of(rendered.data, media_type)) if chars else None,
        )

    def _kind(self, tool: str) -> str:
        return placed_kind(tool, self._kinds.get(tool))

    async def _place(self, call: Dispatch, outcome: Inline, limit: int, *, shared: bool) -> Outcome:
        scope = anyio.CancelScope(deadline=anyio.current_time() + self._timeout)
        placed = await self._attempt(call, outcome, scope, lambda: self._store_result(outcome, limit, shared, call))
        return _unplaced(outcome) if placed is None else placed

    async def _place_stream(self, call: Dispatch, outcome: Inline, flow: Flow) -> Outcome:
        """Store a stream while it flows. What has come to be within the limit meanwhile is an ordinary value."""
        limit = self._placement.limit_for(outcome.tool)
        try:
            if await flow.fill(limit):
                return await self.act(call, settled(outcome, flow))
        except Ended as end:
            return end.outcome
        if call.batch is not None:  # the others need not wait for it
            ticket = self._stream_ticket(outcome, flow, _ANY_REF, limit, _LONGEST)
            shown = OUTLINE_FRAME_CHARS + MAX_OUTLINE_CHARS if self._placement.preview_chars else 0
            call.batch.ended(len(ticket.to_json()) + shown)
        scope = anyio.CancelScope()
        outliner = Outliner() if self._placement.preview_chars else None
        pieces = _Pieces(flow, scope, self._timeout, outliner)

        async def store() -> Outcome:
            origin, parents = origin_of(outcome.tool, outcome.call_id), await self._wanted(call)
            result = await self._store.put_stream(
                call.scope,
                pieces,
                kind=self._kind(outcome.tool),
                media_type=lambda: flow.gauge.media_type,
                label=_label(outcome),
                origin=origin,
                parents=parents,
            )
            if flow.ended is not None or not flow.whole:  # it took a part for the whole
                if result.created:
                    await self._store.delete(call.scope, result.meta.ref)
                raise StoreError("the store did not read the stream to its end")
            self._tell(outcome, result, origin, parents, call)
            ticket = self._stream_ticket(outcome, flow, result.meta.ref, limit, outliner=outliner)
            return carried(outcome, Placed, text=ticket.to_json(), ticket=ticket, tickets=(ticket,))

        try:
            placed = await self._attempt(call, outcome, scope, store, flow)
        except BaseException:
            await flow.abandon()
            raise
        return outcome if placed is None else placed

    def _stream_ticket(
        self,
        outcome: Inline,
        flow: Flow,
        ref: str,
        limit: int,
        at_least: int = 0,
        outliner: Outliner | None = None,
    ) -> Ticket:
        """The ticket of what has flowed by now, or of so many bytes where that is more."""
        chars = self._placement.preview_chars
        head = flow.head()
        return make_ticket(
            tool=outcome.tool,
            ref=ref,
            kind=self._kind(outcome.tool),
            media_type=head.media_type,
            size=max(head.size, at_least),
            bytes=max(flow.gauge.bytes, at_least),
            limit=limit,
            reader=self._pager,
            preview=head.head(chars) if chars and flow.gauge.is_text else None,
            outline=None if outliner is None else _outlined(lambda: outliner.outline(head.media_type)),
        )

    async def _attempt(
        self,
        call: Dispatch,
        outcome: Inline,
        scope: anyio.CancelScope,
        store: Callable[[], Awaitable[Outcome]],
        flow: Flow | None = None,
    ) -> Outcome | None:
        """What ``store`` makes of the outcome, within the time that ``scope`` gives it; ``None``: it failed, and that
        is told. What a stream ended as is no failure of the store.
        """
        try:
            with scope:
                return await store()
            problem: BaseException = TimeoutError(f"no answer within {self._timeout:g} seconds")
        except asyncio.CancelledError as error:
            if not is_stray(error):
                raise
            problem = error
        except Exception as error:  # noqa: BLE001 - whatever the store does, the call goes on
            problem = error
        if flow is not None and flow.ended is not None:
            return flow.ended
        _log.warning(
            "the result of the call %r of the tool %s could not be stored, and goes on unplaced (%r)",
            outcome.call_id,
            outcome.tool,
            problem,
        )
        if call.emit is not None:
            call.emit(
                ArtifactRefused(
                    tool=outcome.tool,
                    call_id=outcome.call_id,
                    turn=call.turn,
                    op="put",
                    reason=_refusal(problem),
                    detail=f"{type(problem).__name__}: {problem}"[:500],
                )
            )
        return None

    async def _wanted(self, call: Dispatch) -> tuple[str, ...]:
        """The parents of what the call made: what it wanted, and is still there."""
        if not call.wanted:
            return ()
        return (await still_there(self._store, call.scope, call.wanted))[:MAX_PARENTS]

    async def _store_result(self, outcome: Inline, limit: int, shared: bool, call: Dispatch) -> Outcome:
        outcome, rendered = _parcel(outcome, limit, shared)
        evicted: set[str] = set()
        leaves = outcome.tickets  # its binary may be stored already, for its own limit
        if not leaves and _may_hold_leaves(outcome, rendered):
            rendered, leaves = await self._store_leaves(outcome, rendered, limit, call, evicted)
            _refuse_lost(leaves, evicted)
            if leaves and not shared and rendered.size <= min(limit, self._cap):
                return msgspec.structs.replace(outcome, text=rendered, tickets=leaves, content=())
        kind = self._kind(outcome.tool)
        wanted = await self._wanted(call)
        parents = tuple(dict.fromkeys((*(ticket.ref for ticket in leaves), *wanted)))[:MAX_PARENTS]
        meta = await self._put(outcome, rendered.data, kind, rendered.media_type, parents, call, evicted)
        _refuse_lost(leaves, evicted)
        ticket = self._ticket(outcome, meta.ref, meta.media_type, meta.bytes, rendered, limit, shared)
        return carried(outcome, Placed, text=ticket.to_json(), ticket=ticket, tickets=(ticket, *leaves))

    async def _store_leaves(
        self, outcome: Inline, rendered: Rendered, limit: int, call: Dispatch, evicted: set[str]
    ) -> tuple[Rendered, tuple[Ticket, ...]]:
        """Store every piece of binary in the value on its own; the rest as text, with tickets in their places.

        The tool may keep its value and change it while the store is at work, so nothing is read from it after the
        first ``await``: each ticket is written into the place that its own piece was taken from.
        """
        large: list[tuple[Blob, dict[str, Any]]] = []

        def take(blob: Blob) -> Any:
            if len(blob.data) < MIN_LEAF_BYTES:
                return blob.original
            large.append((blob, {}))
            return large[-1][1]

        tree = _measured_tree(outcome, rendered)
        rest = None if tree is None else replace_blobs(tree, take)
        tickets: list[Ticket] = []
        for blob, place in large:
            kind = f"file/{blob.media_type.partition('/')[2]}"[:MAX_KIND_CHARS]
            parents = await self._wanted(call)
            meta = await self._put(outcome, blob.data, kind, blob.media_type, parents, call, evicted)
            ticket = make_ticket(
                tool=outcome.tool,
                ref=meta.ref,
                kind=kind,
                media_type=meta.media_type,
                size=len(blob.data),
                bytes=meta.bytes,
                limit=limit,
                part=True,
                reader=self._pager,
            )
            place.update(msgspec.to_builtins(ticket))
            tickets.append(ticket)
        return (render(rest, attach=False) if tickets else rendered), tuple(tickets)

    async def _put(
        self,
        outcome: Inline,
        data: bytes,
        kind: str,
        media_type: str,
        parents: tuple[str, ...],
        call: Dispatch,
        evicted: set[str],
    ) -> ArtifactMeta:
        origin = origin_of(outcome.tool, outcome.call_id)
        result = await self._store.put(
            call.scope,
            data,
            kind=kind,
            media_type=media_type,
            label=_label(outcome),
            origin=origin,
            parents=parents,
        )
        evicted.update(swept.ref for swept in result.swept)
        self._tell(outcome, result, origin, parents, call)
        return result.meta

    def _tell(
        self, outcome: Inline, result: PutResult, origin: dict[str, str], parents: tuple[str, ...], call: Dispatch
    ) -> None:
        if call.emit is None:
            return
        about = {"tool": outcome.tool, "call_id": outcome.call_id, "turn": call.turn}
        for event in events_of_put(result, origin=origin, parents=parents, **about):
            call.emit(event)


class _Pieces:
    """A flow as a store reads it. While the store works, its time runs; while it waits for the tool, it does not."""

    def __init__(self, flow: Flow, scope: anyio.CancelScope, timeout: float, outliner: Outliner | None = None) -> None:
        self._flow = flow
        self._outliner = outliner
        self._scope = scope
        self._timeout = timeout
        scope.deadline = anyio.current_time() + timeout

    def __aiter__(self) -> _Pieces:
        return self

    async def __anext__(self) -> bytes:
        self._scope.deadline = math.inf
        piece = await self._flow.read()
        self._scope.deadline = anyio.current_time() + self._timeout
        if not piece:
            raise StopAsyncIteration
        if self._outliner is not None:
            self._outliner.feed(piece)
        return piece


def _outlined(outline: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
    """An outline; ``None`` where it fails: it is an addition to a ticket, and no cause to place nothing."""
    try:
        return outline()
    except Exception as error:  # noqa: BLE001 - whatever it is, the ticket is right without
        _log.warning("a ticket is without its outline, which failed (%s)", type(error).__name__)
        return None


def _label(outcome: Outcome) -> str:
    return f"{outcome.tool} result"


def _may_hold_leaves(outcome: Inline, rendered: Rendered) -> bool:
    """Whether the value has to be looked into for binary: text has none inside, and wire bytes stay as they are."""
    if rendered.media_type != JSON or isinstance(outcome.value, Encoded):
        return False
    return may_hold_binary(outcome.value, rendered.stored().data)


def _parcel(outcome: Inline, limit: int, shared: bool) -> tuple[Inline, Rendered]:
    """The outcome with what is stored of it if it is stored whole, as it was measured.

    A text that is one ``data:`` URL is stored as what it holds, unless that would not be over the limit.
    """
    rendered = rendered_of(outcome).stored()
    if rendered.media_type == TEXT and isinstance(outcome.value, str) and rendered.head(5) == "data:":
        found: list[Blob] = []
        replace_blobs(rendered.text, found.append)
        if found and (shared or len(found[0].data) > limit):
            rendered = render(Encoded(found[0].data, found[0].media_type))
            outcome = msgspec.structs.replace(outcome, text=rendered)
    return outcome, rendered


def _measured_tree(outcome: Inline, rendered: Rendered) -> Any:
    """The value as plain containers that nobody else holds, or ``None`` where it is no longer what was measured.

    A tool may have changed the value since: what the rules did not see is neither stored nor shown.
    """
    try:
        tree = canonical(outcome.value, keep_bytes=True, private=True)
        return tree if render(tree, attach=False).data == rendered.data else None
    except RenderingError:
        return None


def _refuse_lost(leaves: Sequence[Ticket], evicted: set[str]) -> None:
    """No ticket is handed out for a part that a later part of the same result has pushed out of the store."""
    if any(ticket.ref in evicted for ticket in leaves):
        raise StoreError(
            "the budget of one scope does not hold all parts of this one result; raise max_bytes or max_count"
        )


def _refusal(problem: BaseException) -> str:
    match problem:
        case InvalidArtifact() | RenderingError():
            return "invalid-input"
        case UnknownParent():
            return "unknown-parent"
        case IntegrityError():
            return "digest-mismatch"
        case _:
            return "store-failed"


def _unplaced(outcome: Inline) -> Outcome:
    """The result as it was; binary that is too large to ride beside the text is named, and said to be lost."""
    attached = sum(len(blob.data) for blob in outcome.content)
    if attached <= MAX_ATTACHED_BYTES:
        return outcome
    text = f"[{attached} bytes of binary that {outcome.tool} returned could not be stored, and are not shown]"
    return msgspec.structs.replace(outcome, text=text, content=())
