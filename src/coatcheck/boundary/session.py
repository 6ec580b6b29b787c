"""One conversation at the boundary: its scope, its turns, its ledger."""

from __future__ import annotations

import asyncio
import functools
import logging
import math
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

import anyio
import msgspec

from coatcheck.artifacts.meta import Artifact, read_clock
from coatcheck.boundary.approval import objection
from coatcheck.boundary.batch import Batch, Place
from coatcheck.boundary.chain import Entrance
from coatcheck.boundary.notes import with_notes
from coatcheck.boundary.record import record_lines
from coatcheck.boundary.tool import MAX_NAME_CHARS, Tool, as_tool
from coatcheck.boundary.turns import Turns
from coatcheck.call import ToolCall, read_arguments
from coatcheck.decision import Decision
from coatcheck.dispatch import Approval, Dispatch, is_stray
from coatcheck.effects.repeats import Landing, RepeatedCalls, note_on_repeat
from coatcheck.effects.routing import Picked
from coatcheck.effects.state import TurnState
from coatcheck.effects.turn import Turn
from coatcheck.errors import ConfigurationError, IntegrityError
from coatcheck.events import (
    ArtifactRefused,
    ArtifactResolved,
    BatchBudgetUnmet,
    CallRepeated,
    ToolEnded,
    ToolStarted,
)
from coatcheck.flow import FLOWING
from coatcheck.outcome import (
    AnyOutcome,
    Denied,
    Outcome,
    Pending,
    PendingCall,
    Placed,
    failed,
    settle,
    size_of,
)
from coatcheck.results.answer import compose_answer
from coatcheck.results.reading import Declared
from coatcheck.results.shapes import clip, legible
from coatcheck.scope import Scope
from coatcheck.steps.ledger import file_row

if TYPE_CHECKING:
    from coatcheck.boundary.boundary import Boundary

__all__ = ["MAX_LEDGER_ROWS", "Session"]

_P = ParamSpec("_P")
_T = TypeVar("_T")
_log = logging.getLogger("coatcheck")

MAX_LEDGER_ROWS = 1_000
"""How many rows a session keeps for a host that does not drain them; the oldest leave first."""

_MAX_DECLARED = 1_000
_MAX_SAID_CHARS = 400
_AGAIN = "Nothing was run; call it again, corrected."
_INCOMPLETE = "The call did not complete; it may have run."


class Session:
    """One conversation's state at a boundary. Made by `Boundary.session`; cheap, and not shared between conversations.

    Attributes:
        scope: whose artifacts its calls store.
        turn: the number of turns so far. A `call` is a turn of one; a `call_batch` is one turn.
    """

    def __init__(self, boundary: Boundary, scope: Scope, *, turn: int = 0) -> None:
        self.scope = scope
        self.turn: int = turn
        self._boundary = boundary
        self._chain = boundary.entrance
        self._streams = boundary.streams
        self._emit = boundary.emit
        self._guarded: dict[str, Entrance] = {}
        self._wrapped: dict[str, Tool[..., Any]] = {}
        self._turns = Turns(boundary.graph, boundary.instructions, boundary.posture, boundary.emit)
        self._graph = boundary.graph
        self._host_turns = boundary.graph is not None or boundary.instructions is not None
        self._repeats = RepeatedCalls() if boundary.repeated_call_note else None
        self._ledger: deque[Decision] = deque(maxlen=MAX_LEDGER_ROWS)
        self._declared: deque[Declared] = deque(maxlen=_MAX_DECLARED)

    # --- the ledger ---

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """The rows of the ledger that were not drained yet, oldest first; at most `MAX_LEDGER_ROWS`."""
        return tuple(self._ledger)

    def drain_decisions(self) -> tuple[Decision, ...]:
        """Take the rows off the session, for a log that keeps them."""
        rows = tuple(self._ledger)
        self._ledger.clear()
        return rows

    @property
    def declared_coverage(self) -> tuple[Declared, ...]:
        """What the tools of this conversation declared about absence and coverage, oldest first."""
        return tuple(self._declared)

    def record(self) -> str:
        """The ledger's undrained rows and the declared coverage as JSON Lines, for a log or a file.

        Every line is one object; ``record`` is ``decision`` or ``declared``, and the other fields are those of
        `Decision` or `Declared` (``coatcheck schema`` describes both). Arguments and results are in it only where
        ``ledger_values=True`` keeps them on the ledger.
        """
        return record_lines(self.decisions, self.declared_coverage)

    def compose_answer(self, text: str) -> str:
        """An answer of the model, with the block that says what it covers.

        That is for a boundary with ``coverage_in_answers=True``; any other answer comes back as it is, and so does one
        where nothing was declared. The block itself is `coatcheck.compose_answer`.
        """
        return compose_answer(text, self.declared_coverage) if self._boundary.coverage_in_answers else text

    # --- calls ---

    async def call(
        self, name: str, arguments: Mapping[str, Any] | str | bytes | None = None, *, call_id: str | None = None
    ) -> AnyOutcome:
        """Take one tool call through the chain.

        Args:
            name: the tool, as the model spoke it.
            arguments: a dict, or the JSON text that the model spoke; ``None`` for none.
            call_id: the provider's id; it is carried, never interpreted.

        Returns:
            The outcome. Whatever goes wrong with the call is an outcome too.

        Raises:
            TypeError: where ``name`` is no text. Cancellation goes on, as always.
        """
        if not isinstance(name, str):
            raise TypeError(f"call(name, arguments): name must be text, not {type(name).__name__}")
        self.turn = turn = self._open_turn() if self._host_turns else self.turn + 1
        if not (
            type(name) is str
            and len(name) <= MAX_NAME_CHARS
            and name.isascii()
            and (call_id is None or (type(call_id) is str and call_id.isascii()))
        ):
            name, call_id = _as_name(name), _as_id(call_id)
        if arguments is None:
            arguments = {}
        rows: list[Decision] = []
        emit, chain, repeats = self._emit, self._chain, self._repeats
        spoken = None if repeats is None else repeats.fingerprint(arguments)
        call = Dispatch(name, arguments, call_id, self.scope, turn, rows, emit)  # type: ignore[arg-type]  # read next
        if emit is not None or type(arguments) is not dict:
            self._started(call, 1)
            began = perf_counter()
            outcome = await self._entered(call, chain)
            final = self._finished(outcome, call, perf_counter() - began, spoken)
            self._turns.end_batch(turn)
            return final
        try:  # as `_entered`, and one coroutine less
            outcome = await chain(call)
            if self._streams.open or size_of(outcome) == FLOWING:
                outcome = await self._boundary.finish_streams(call, outcome)
        except BaseException as error:  # noqa: BLE001
            outcome = await self._survived(call, error)
        if outcome.effects or outcome.malformed or outcome.declared or self._graph is not None:
            return self._finished(outcome, call, 0.0, spoken)
        if rows:  # as `_finished`, where there is nothing else to put on record
            self._ledger.extend(rows)
        final = settle(outcome, rows)
        if repeats is not None and final.executed and repeats.landed(name, spoken, final.held) == 2:
            return self._told(final, name)
        return final

    def _told(self, final: AnyOutcome, name: str) -> AnyOutcome:
        """A final outcome with the note on a repeated call; not in a ticket: equal results give equal tickets."""
        if isinstance(final, Placed):
            return final
        return cast("AnyOutcome", with_notes(final, (note_on_repeat(name),)))

    async def call_batch(self, calls: Sequence[ToolCall]) -> list[AnyOutcome]:
        """Take all calls of one model turn through the chain.

        The before-tool rules see one call at a time, in call order; the tools run concurrently, at most 32
        at once; effects are judged, and outcomes returned, in call order. Every call gets an outcome,
        whatever becomes of the others.
        """
        for index, call in enumerate(calls):
            if not isinstance(call, ToolCall):
                raise TypeError(f"calls[{index}] must be a ToolCall, not {type(call).__name__}")
        self.turn = turn = self._open_turn() if self._host_turns else self.turn + 1
        spoken = [None if self._repeats is None else self._repeats.fingerprint(call.arguments) for call in calls]
        batch = Batch(len(calls), self._boundary.batch_budget)
        entered = [
            Dispatch(
                _as_name(call.name),
                call.arguments,
                _as_id(call.call_id),
                self.scope,
                turn,
                [],
                self._emit,
                batch.place(index),
            )
            for index, call in enumerate(calls)
        ]
        outcomes: dict[int, Outcome] = {}
        began = perf_counter()
        took: dict[int, float] = {}

        async def enter(index: int, call: Dispatch, place: Place) -> None:
            try:
                outcome = await self._entered(call, self._chain)
            except asyncio.CancelledError as error:
                if anyio.current_effective_deadline() == -math.inf:  # the batch itself is cancelled
                    raise
                outcome = _broken(call, error)
            finally:
                place.walked()
            outcomes[index] = outcome
            took[index] = perf_counter() - began
            place.ended(size_of(outcome))

        for call in entered:
            self._started(call, len(entered))
        async with anyio.create_task_group() as group:
            for index, call in enumerate(entered):
                group.start_soon(enter, index, call, batch.place(index))
                await batch.passed(index)
        budget, chars = self._boundary.batch_budget, sum(size_of(outcome) for outcome in outcomes.values())
        if budget is not None and chars > budget and self._emit is not None:
            self._emit(BatchBudgetUnmet(tool=None, call_id=None, turn=turn, budget=budget, chars=chars))
        finals = [
            self._finished(outcomes[index], call, took[index], spoken[index]) for index, call in enumerate(entered)
        ]
        self._turns.end_batch(turn)
        return finals

    async def resume(
        self, pending: Pending | PendingCall | bytes, *, approved: bool, by: str, note: str | None = None
    ) -> AnyOutcome:
        """Go on with a call that a rule had asked about; on any replica, behind the rule that asked.

        The arguments are validated again, the remaining rules are asked, and the use of the approval is
        claimed before the tool runs. Whatever does not fit declines: a changed call, changed rules, another
        scope, an approval that has expired or was used, an answer that is not exactly True.

        Args:
            pending: the outcome that waits, its call, or the bytes of that.
            approved: the person's answer. by: who answered, for the ledger. note: what they said.

        Returns:
            The outcome of the call, or `Denied`.
        """
        boundary = self._boundary
        if isinstance(pending, Pending):
            pending = pending.call
        sealed = boundary.sealer.open_pending(pending)
        if sealed is None:
            name, call_id = getattr(pending, "tool", None), getattr(pending, "call_id", None)
            call = Dispatch(_text_or(name, ""), {}, _text_or(call_id, None), self.scope, self.turn, [], self._emit)
            return await self._declined(call, "approval", "the approval is not the one that was asked for")
        call = Dispatch(sealed.tool, sealed.arguments, sealed.call_id, self.scope, sealed.turn, [], self._emit)
        problem = objection(sealed, scope=self.scope, rules=boundary.rules.names, now=read_clock(boundary.clock))
        if problem is None and not (isinstance(by, str) and by.strip()):
            problem = "nobody is named who answered"
        if problem is None and not isinstance(note, (str, type(None))):
            problem = "the note is no text"
        if problem is None:
            problem = await self._claim(sealed)
        said = clip(legible(f"by {by}: {note}" if note else f"by {by}"), _MAX_SAID_CHARS)
        if problem is None and approved is not True:
            problem = f"it was declined {said}"
        if problem is not None:
            return await self._declined(call, sealed.rule, problem)
        approval = Approval(sealed.rule, sealed.index, f"approved {said}", sealed.tool, sealed.arguments)
        call = msgspec.structs.replace(call, approval=approval)
        began = perf_counter()
        chain = self._guarded.get(sealed.tool, self._chain)
        outcome = await self._entered(call, chain)
        final = self._finished(outcome, call, perf_counter() - began)
        self._turns.end_batch(self.turn)
        return final

    async def _claim(self, sealed: PendingCall) -> str | None:
        claimed = False
        try:
            with anyio.fail_after(self._boundary.rule_timeout):
                claimed = await self._boundary.approvals.claim(sealed.id)
        except asyncio.CancelledError as error:
            if not is_stray(error):
                raise
            return "the use of the approval could not be recorded"
        except Exception:  # noqa: BLE001 - a claim that cannot be confirmed is none
            _log.exception(
                "the approvals port failed; the call %r of the tool %s is declined", sealed.call_id, sealed.tool
            )
            return "the use of the approval could not be recorded"
        return None if claimed is True else "the approval was used already"

    async def _declined(self, call: Dispatch, rule: str, problem: str) -> AnyOutcome:
        reason = f"{clip(call.name, 128) or 'The call'} did not run: {problem}."
        file_row(call, rule, "before-tool", "deny", reason)
        denied = Denied(tool=call.name, call_id=call.call_id, text=reason, reason=reason, rule=rule)
        return self._finished(await self._boundary.net(call, denied), call, 0.0)

    def wrap(
        self, function: Callable[_P, Awaitable[Any] | AsyncIterator[Any]]
    ) -> Callable[_P, Coroutine[Any, Any, AnyOutcome]]:
        """Guard one async callable for a hand-written loop.

        The guarded callable takes the arguments by name, as the model gives them, and returns the outcome.
        Rules, thresholds and the ledger are those of this session.

        Args:
            function: the callable, which may be an async generator, or a `@tool` with declarations of its own.

        Raises:
            ConfigurationError: for what is no named callable, and for a name that a tool of the boundary has.
        """
        tool = as_tool(function, "session.wrap(...)")
        known = self._boundary.tools.get(tool.name), self._wrapped.get(tool.name)
        if any(other is not None and other.function is not tool.function for other in known):
            raise ConfigurationError(  # an approval could not tell the two apart
                f"session.wrap(...): there is another tool named {tool.name!r}; give this one @tool(name=...)"
            )
        self._wrapped[tool.name] = tool
        chain = self._guarded[tool.name] = self._boundary.chain_for({tool.name: tool})

        @functools.wraps(function)
        async def guarded(*args: _P.args, **kwargs: _P.kwargs) -> AnyOutcome:
            if args:
                raise TypeError(f"{tool.name} is guarded: give its arguments by name, as a model does")
            self.turn = self._open_turn() if self._host_turns else self.turn + 1
            spoken = None if self._repeats is None else self._repeats.fingerprint(kwargs)
            call = Dispatch(tool.name, dict(kwargs), None, self.scope, self.turn, [], self._emit)
            began = perf_counter()
            self._started(call, 1)
            outcome = await self._entered(call, chain)
            final = self._finished(outcome, call, perf_counter() - began, spoken)
            self._turns.end_batch(self.turn)
            return final

        return guarded

    # --- turns ---

    def next_turn(self) -> Turn:
        """Open the next turn of the run, before a model call: where it is now, and what the model is to be told.

        From then on the turns are the host's: calls belong to the one that is open.
        """
        if not self._host_turns:
            self._host_turns = True
            self._turns.state = msgspec.structs.replace(self._turns.state, number=self.turn)
        turn = self._turns.advance()
        self.turn = turn.number
        return turn

    def pick(self, skill: str) -> Picked:
        """Take the model's own pick of the next skill, under the boundary's posture; the text is for the model."""
        if not isinstance(skill, str):
            raise TypeError(f"pick(skill) takes the id of a skill, not {type(skill).__name__}")
        return self._turns.pick(skill, self.turn)

    @property
    def turn_state(self) -> TurnState:
        """Where the run is, and what the open turn has asked for so far."""
        return self._turns.state

    @property
    def landings(self) -> tuple[Landing, ...]:
        """What is remembered of calls, for the note on a repeated one."""
        return () if self._repeats is None else self._repeats.landings()

    def _open_turn(self) -> int:
        """The number of the turn that the host opened; the first call before any opens turn 1."""
        if not self._turns.state.number:
            self._turns.state = msgspec.structs.replace(self._turns.state, number=1)
        return self._turns.state.number

    # --- refs ---

    async def redeem(self, ref: str) -> Artifact | None:
        """Fetch what a ticket of this conversation stands for, verified against its digest.

        Returns:
            The artifact; ``None`` for a ref that is missing, expired, foreign or malformed, which are one answer.

        Raises:
            ConfigurationError: where the boundary has no store.
            StoreError: where the store cannot answer, or the payload is damaged.
        """
        store = self._boundary.store
        if store is None:
            raise ConfigurationError("this boundary has no store: Boundary(store=...)")
        about: dict[str, Any] = {"tool": None, "call_id": None, "turn": self.turn}
        try:
            artifact = await store.get(self.scope, ref)
        except IntegrityError as error:
            if self._emit is not None:
                self._emit(
                    ArtifactRefused(**about, op="get", reason="digest-mismatch", ref=error.ref, detail=str(error))
                )
            raise
        if self._emit is not None:
            if artifact is None:
                self._emit(ArtifactRefused(**about, op="get", reason="missing-or-expired", ref=str(ref)[:64]))
            else:
                meta = artifact.meta
                self._emit(ArtifactResolved(**about, ref=meta.ref, via="get", kind=meta.kind, bytes=meta.bytes))
        return artifact

    # --- bytes ---

    def to_bytes(self) -> bytes:
        """The session's state for a database: scope, turn, the ledger's undrained rows, declared coverage.

        `Boundary.session_from_bytes` makes it a session again, on any replica. On a boundary with a
        ``secret`` it is sealed, and only what was sealed with the same secret is taken back.
        """
        return self._boundary.seal_session(self)

    def restore(
        self,
        decisions: Sequence[Decision],
        declared: Sequence[Declared],
        run: TurnState = TurnState(),  # noqa: B008 - frozen
        landings: Sequence[Landing] = (),
    ) -> None:
        """Put back what `to_bytes` kept."""
        self._host_turns = self._host_turns or run.number > 0
        if self._host_turns and run.number < self.turn:  # its turns were counted before the host declared a graph
            run = msgspec.structs.replace(run, number=self.turn)
        self._turns.state = run
        if self._repeats is not None:
            self._repeats = RepeatedCalls(landings)
        self._ledger.extend(decisions)
        self._declared.extend(declared)

    # --- one call's way in and out ---

    def _started(self, call: Dispatch, batch: int) -> None:
        if self._emit is not None:
            self._emit(ToolStarted(tool=call.name, call_id=call.call_id, turn=call.turn, batch=batch))

    async def _entered(self, call: Dispatch, chain: Entrance) -> Outcome:
        """The outcome of the chain; whatever a host's own code raises in it is a failure of this one call."""
        try:
            if type(call.arguments) is not dict:
                arguments = read_arguments(call.arguments)
                if isinstance(arguments, str):
                    reason = f"The arguments of {clip(call.name, 128)} must be one JSON object: {arguments}. {_AGAIN}"
                    return await self._boundary.net(call, failed(call, reason))
                call = call.with_arguments(arguments)
            outcome = await chain(call)
            if self._streams.open or size_of(outcome) == FLOWING:
                outcome = await self._boundary.finish_streams(call, outcome)
            return outcome
        except BaseException as error:  # noqa: BLE001 - in a batch, the other calls must not be lost
            return await self._survived(call, error)

    async def _survived(self, call: Dispatch, error: BaseException) -> Outcome:
        """The failure that an error in the chain comes to; a cancellation goes on. No stream is left open."""
        await self._streams.close(call)
        if isinstance(error, Exception) or (isinstance(error, asyncio.CancelledError) and is_stray(error)):
            return _broken(call, error)
        raise error

    def _finished(self, outcome: Outcome, call: Dispatch, seconds: float, spoken: bytes | None = None) -> AnyOutcome:
        """Judge the effects, put rows and facts on record, and make the outcome final."""
        read = outcome.text if spoken is not None and outcome.executed else ""
        notes = self._turns.judge(outcome, call) if outcome.effects or outcome.malformed else []
        if self._repeats is not None and outcome.executed and self._repeats.landed(call.name, spoken, read) == 2:
            if not isinstance(outcome, Placed):  # equal results give equal tickets, and the ref says it
                notes.append(note_on_repeat(call.name))
            if self._emit is not None:
                self._emit(CallRepeated(tool=outcome.tool, call_id=outcome.call_id, turn=call.turn, occurrences=2))
        if notes:
            outcome = with_notes(outcome, tuple(notes))
        rows = call.rows
        final = settle(outcome, rows)
        self._turns.land(final)
        if rows:
            self._ledger.extend(rows)
        if final.declared:
            self._declared.extend(final.declared)
        if self._emit is not None:
            self._emit(
                ToolEnded(
                    tool=final.tool,
                    call_id=final.call_id,
                    turn=call.turn,
                    outcome=type(final).__name__,
                    status=final.status,
                    error=final.error,
                    executed=final.executed,
                    chars=len(final.text),
                    seconds=seconds,
                )
            )
        return final


def _text_or(found: object, otherwise: _T) -> str | _T:
    """What a pending call that was not sealed here says of itself, where it can be said at all."""
    return legible(found) if isinstance(found, str) else otherwise


def _as_name(name: object) -> str:
    """What a model spoke as a tool's name, bounded; what is cut is longer than the name of any tool."""
    spoken = legible(str.__str__(name) if isinstance(name, str) else str(name))
    return spoken if len(spoken) <= MAX_NAME_CHARS else spoken[:MAX_NAME_CHARS] + "…"


def _as_id(call_id: object) -> str | None:
    return None if call_id is None else legible(str.__str__(call_id) if isinstance(call_id, str) else str(call_id))


def _broken(call: Dispatch, error: BaseException) -> Outcome:
    """The host's own code raised in the chain: the model learns that much, the log the rest."""
    tool = clip(call.name, 128)
    _log.error("the host's own code raised in the call %r of the tool %s", call.call_id, tool, exc_info=error)
    return failed(call, f"An internal step of this host failed while {tool} was called. {_INCOMPLETE}")
