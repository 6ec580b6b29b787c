"""The boundary: what an operator builds once, and a server opens for its lifetime."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from datetime import UTC, datetime, timedelta
from os import PathLike
from types import TracebackType
from typing import Any, cast
from weakref import WeakKeyDictionary

import msgspec

from coatcheck.artifacts.meta import read_clock
from coatcheck.artifacts.notices import Notices
from coatcheck.artifacts.open import open_store
from coatcheck.artifacts.port import ArtifactStore
from coatcheck.artifacts.ticket import MAX_TICKET_CHARS, OUTLINE_FRAME_CHARS, PREVIEW_FENCE_CHARS
from coatcheck.boundary.approval import IN_THIS_PROCESS, Approvals, Sealer
from coatcheck.boundary.chain import Entrance, Inside, Middleware, StepName, compose, place
from coatcheck.boundary.claims import check_kept
from coatcheck.boundary.execution import Execution, Peek
from coatcheck.boundary.producing import OpenStreams
from coatcheck.boundary.record import SealedSession, SessionState, fact_to_write, row_again, row_to_write
from coatcheck.boundary.session import Session
from coatcheck.boundary.slots import RunningThreads
from coatcheck.boundary.tool import Tool, as_tool
from coatcheck.dispatch import Dispatch, Limit
from coatcheck.effects.graph import SkillGraph
from coatcheck.effects.instructions import InstructionCatalog
from coatcheck.effects.routing import Posture
from coatcheck.effects.turn import check_declarations
from coatcheck.errors import ConfigurationError
from coatcheck.events import AnyEvent, Event, event_of
from coatcheck.flow import flow_of
from coatcheck.outcome import Outcome, Pending, size_of
from coatcheck.results.binary import MAX_ATTACHED_BYTES
from coatcheck.results.outline import MAX_OUTLINE_CHARS
from coatcheck.scope import Scope
from coatcheck.settings import check_duration, check_whole
from coatcheck.steps.ceiling import CeilingStep
from coatcheck.steps.governance import GovernanceStep
from coatcheck.steps.placement import Placement, PlacementStep
from coatcheck.steps.rule import BoundRules, bind_rules
from coatcheck.steps.step import Step
from coatcheck.steps.truncation import Truncation, TruncationStep

__all__ = ["Boundary"]

_log = logging.getLogger("coatcheck")
_SESSION = b"coatcheck session 1"

MAX_COLLECTED = 16 << 20
"""How many bytes of one stream are held where something needs it as a whole, unless a boundary says otherwise."""

_LONGEST_TTL = timedelta(days=36_525)


def _now() -> datetime:
    return datetime.now(UTC)


class Boundary:
    """Owns the tools, the rules and the thresholds, and composes the chain. Nothing is on until it is asked for.

    Use it as a server's lifespan: ``async with boundary:`` opens the store once, and closing reports what
    still runs. Without a store that must be opened it works without, too.

    Args:
        tools: functions, or ``@tool``s.
        rules: governance, in declared order; see `Rule`.
        middleware: the host's own, outermost first; ``inside("placement", m)`` stands just inside a step.
        store: an `ArtifactStore`, or a URL for `open_store`; needed by ``placement``.
        placement: what is too large to read, and is stored. truncation: the last limit.
        rule_timeout: how long the async rules of one walk may take together, in seconds or as a `timedelta`.
        secret: what pending calls and sessions are sealed with when they leave the process; the same on
            every replica, at least 16 bytes.
        approvals: where uses of approvals are claimed; this process's memory by default. `DirectoryApprovals` serves
            all processes that share a directory.
        approval_ttl: how long a question waits for its answer.
        concurrency: how many tools run at once in all sessions together; ``None`` for no limit.
        on_event: called with every event, synchronously; what it raises is logged, never felt.
        ledger_values: keep the values that rules changed on the ledger, not only their fingerprints.
        max_collected_bytes: how much of one stream is held in memory where something needs it as a whole: a rule that
            judges whole results, or a boundary with neither placement nor truncation. A larger one is denied, or fails.
        graph: the skills that a run moves between, and what moves it; see `Session.next_turn`.
        instructions: what a tool may require to be delivered.
        posture: what the model may pick itself: ``assist``: any skill of the graph; ``guard``: one that is reachable;
            ``rails``: none.
        repeated_call_note: tell the model, once, when a call came to the very same as one before. Nothing is blocked.
        coverage_in_answers: `Session.compose_answer` adds the block that says what an answer covers.
        clock: aware UTC now; tests inject their own.

    Attributes:
        tools: by name. store: as opened from its URL. chain: the names of all that stands around a tool,
            outermost first.

    Raises:
        ConfigurationError: naming the setting that cannot be honoured.
    """

    def __init__(
        self,
        tools: Sequence[Callable[..., Any]] = (),
        *,
        rules: Sequence[object] = (),
        middleware: Sequence[Middleware | Inside] = (),
        store: ArtifactStore | str | None = None,
        placement: Placement | None = None,
        truncation: Truncation | None = None,
        rule_timeout: float | timedelta = 10.0,
        secret: str | bytes | None = None,
        approvals: Approvals | None = None,
        approval_ttl: float | timedelta = timedelta(hours=24),
        concurrency: int | None = None,
        on_event: Callable[[AnyEvent], object] | None = None,
        ledger_values: bool = False,
        max_collected_bytes: int = MAX_COLLECTED,
        graph: SkillGraph | None = None,
        instructions: InstructionCatalog | None = None,
        posture: Posture = "guard",
        repeated_call_note: bool = True,
        coverage_in_answers: bool = False,
        clock: Callable[[], datetime] = _now,
    ) -> None:
        _check_sequences(tools=tools, rules=rules, middleware=middleware)
        self.tools: Mapping[str, Tool[..., Any]] = _by_name(tools)
        self.rules: BoundRules = bind_rules(rules)
        self.store: ArtifactStore | None = open_store(store) if isinstance(store, str) else store
        self.placement = placement
        self.truncation = truncation
        self.approvals: Approvals = IN_THIS_PROCESS if approvals is None else approvals
        self.sealer: Sealer = Sealer(secret)
        self.clock = clock
        self.emit: Callable[[Event], None] | None = None if on_event is None else _guarded(on_event)
        self._middleware = tuple(middleware)
        self.rule_timeout: float = check_duration("Boundary(rule_timeout=...)", rule_timeout)
        self._approval_ttl = _checked_ttl(approval_ttl)
        self._ledger_values = ledger_values
        self._collect = check_whole("Boundary(max_collected_bytes=...)", max_collected_bytes)
        check_declarations(graph, instructions, posture)
        if not isinstance(repeated_call_note, bool):
            raise ConfigurationError("Boundary(repeated_call_note=...) must be True or False")
        self.graph = graph
        self.instructions = instructions
        self.posture: Posture = posture
        self.repeated_call_note = repeated_call_note
        if not isinstance(coverage_in_answers, bool):
            raise ConfigurationError("Boundary(coverage_in_answers=...) must be True or False")
        self.coverage_in_answers = coverage_in_answers
        self.streams: OpenStreams = OpenStreams()
        self._threads = RunningThreads()
        self._limits: WeakKeyDictionary[Tool[..., Any], Limit] = WeakKeyDictionary()
        self._shared = None
        if concurrency is not None:
            limit = check_whole("Boundary(concurrency=...)", concurrency)
            self._shared = Limit(limit)
        self._check_together(on_event)
        self.batch_budget: int | None = None if placement is None else placement.max_batch_chars
        self._lifespan: AsyncExitStack | None = None
        self.chain: tuple[str, ...]
        self.entrance: Entrance
        self.chain, self.entrance = self._composed(self.tools)

    def _check_together(self, on_event: object) -> None:
        """Settings that are right alone and wrong together."""
        placement, truncation = self.placement, self.truncation
        if placement is not None and not isinstance(placement, Placement):
            raise ConfigurationError(f"Boundary(placement=...) must be a Placement, not {placement!r:.80}")
        if truncation is not None and not isinstance(truncation, Truncation):
            raise ConfigurationError(f"Boundary(truncation=...) must be a Truncation, not {truncation!r:.80}")
        if self.store is not None and (isinstance(self.store, type) or not isinstance(self.store, ArtifactStore)):
            given = f"the class {self.store.__name__}" if isinstance(self.store, type) else type(self.store).__name__
            raise ConfigurationError(f"Boundary(store=...) must be an ArtifactStore or a URL, not {given}")
        if placement is not None and self.store is None:
            raise ConfigurationError("Boundary(placement=...) needs a store to place into: Boundary(store=...)")
        if on_event is not None and (not callable(on_event) or inspect.iscoroutinefunction(on_event)):
            raise ConfigurationError(f"Boundary(on_event=...) must be a synchronous callable, not {on_event!r:.80}")
        if isinstance(self.approvals, type) or not callable(getattr(self.approvals, "claim", None)):
            raise ConfigurationError(f"Boundary(approvals=...) must have a claim(id), not be {self.approvals!r:.80}")
        check_kept(self.approvals, self._approval_ttl)
        if not callable(self.clock):
            raise ConfigurationError(f"Boundary(clock=...) must be a callable, not {self.clock!r:.80}")
        if not isinstance(self._ledger_values, bool):
            raise ConfigurationError(
                f"Boundary(ledger_values=...) must be True or False, not {self._ledger_values!r:.80}"
            )
        if truncation is not None:
            for tool in self.tools.values():
                if tool.answers_within is not None and tool.answers_within > truncation.max_chars:
                    raise ConfigurationError(
                        f"Truncation.max_chars is {truncation.max_chars}, but the tool {tool.name} answers within "
                        f"{tool.answers_within} characters, and would be cut; raise it, or lower that of the tool"
                    )
        if placement is not None and truncation is not None:
            largest = MAX_TICKET_CHARS
            if placement.preview_chars:
                largest += PREVIEW_FENCE_CHARS + 6 * placement.preview_chars  # a control character takes six
                largest += OUTLINE_FRAME_CHARS + MAX_OUTLINE_CHARS
            if truncation.max_chars < largest:
                raise ConfigurationError(
                    f"Truncation.max_chars is {truncation.max_chars}, but a ticket may take {largest} characters "
                    "and is never cut; raise it, or lower Placement.preview_chars"
                )

    def _composed(self, tools: Mapping[str, Tool[..., Any]]) -> tuple[tuple[str, ...], Entrance]:
        """The chain around ``tools``: its names, and its entrance."""
        steps: dict[StepName, Step] = {}
        if self.truncation is not None:
            steps["truncation"] = TruncationStep(self.truncation)
        if self.placement is not None and self.store is not None:
            kinds = {tool.name: tool.kind for tool in tools.values()}
            known = {**self.tools, **tools}  # a wrapped tool's ticket names the boundary's reader
            readers = {tool.name: tool.reader for tool in known.values() if tool.reader is not None}
            cap = None if self.truncation is None else self.truncation.max_chars
            steps["placement"] = PlacementStep(self.placement, self.store, kinds, cap=cap, readers=readers)
        if self.rules.names:
            steps["governance"] = GovernanceStep(
                self.rules,
                timeout=self.rule_timeout,
                collect=self._collect,
                ledger_values=self._ledger_values,
                make_pending=self._make_pending,
            )
        ceilings = {tool.name: tool.ceiling for tool in tools.values() if tool.ceiling is not None}
        if ceilings:
            steps["ceiling"] = CeilingStep(ceilings)
        placed = place(steps, self._middleware)
        execution = Execution(
            tools,
            self._shared,
            self._threads,
            self._limits,
            self.streams,
            places=self.placement is not None,
            peek=self._peek,
            collect=self._collect,
            store=self.store,
        )
        return tuple(name for name, _ in placed), compose(placed, execution.run)

    def _peek(self, tool: str) -> Peek | None:
        """How much of a stream of ``tool`` is read before it is decided whether it flows."""
        cap = 0 if self.truncation is None else self.truncation.max_chars
        if self.placement is not None:
            limit = self.placement.limit_for(tool)
            return Peek(limit, max(limit, cap, self.placement.preview_chars))
        return Peek(max(cap, MAX_ATTACHED_BYTES), cap) if cap else None

    def _make_pending(self, call: Dispatch, hook_name: str, index: int, question: str, detail: Any) -> Pending:
        return self.sealer.make_pending(
            call,
            scope=call.scope,
            turn=call.turn,
            rule=hook_name,
            index=index,
            rules=self.rules.names,
            question=question,
            detail=detail,
            now=read_clock(self.clock),
            ttl=self._approval_ttl,
        )

    @classmethod
    def from_toml(cls, path: str | PathLike[str], **settings: Any) -> Boundary:
        """Build a boundary from a TOML file whose keys are this class's arguments; ``settings`` win over the file.

        Tools, rules, middleware, approvals and on_event are named as ``module:attribute``, which may be a list of
        tools, rules or middleware, too; durations may be written ``90``, ``"15m"``, ``"12h"``, ``"7d"``.

        Raises:
            ConfigurationError: with the path of what is wrong (``$.placement.max_inline_chars``).
        """
        from coatcheck.boundary.config import read_toml

        try:
            return cls(**{**read_toml(path), **settings})
        except ConfigurationError as error:
            raise ConfigurationError(f"{path}: {error}") from None

    # --- sessions ---

    def session(self, scope: Scope) -> Session:
        """A new session for one conversation."""
        if not isinstance(scope, Scope):
            raise ConfigurationError(f"boundary.session(scope) takes a Scope, not {type(scope).__name__}")
        return Session(self, scope)

    def session_from_bytes(self, data: bytes) -> Session:
        """The session that `Session.to_bytes` wrote, on any replica.

        Raises:
            ConfigurationError: for bytes that are no session, or were not sealed with this boundary's secret.
        """
        try:
            sealed = msgspec.json.decode(data, type=SealedSession)
            state = msgspec.json.decode(sealed.state, type=SessionState)
            rows = [row_again(row) for row in state.decisions]
        except (msgspec.DecodeError, ValueError, TypeError, KeyError, RecursionError) as error:
            raise ConfigurationError(f"session_from_bytes: these bytes are no session ({error})") from None
        if state.turn < 0:
            raise ConfigurationError("session_from_bytes: these bytes are no session ($.state.turn is negative)")
        if self.sealer.portable and not self.sealer.is_seal(_SESSION, sealed.state, sealed.seal):
            raise ConfigurationError("session_from_bytes: these bytes were not sealed with this boundary's secret")
        session = Session(self, state.scope, turn=state.turn)
        session.restore(rows, state.declared, state.run, state.landings)
        return session

    def seal_session(self, session: Session) -> bytes:
        """What `Session.to_bytes` returns."""
        state = msgspec.json.encode(
            SessionState(
                session.scope,
                session.turn,
                tuple(map(row_to_write, session.decisions)),
                tuple(map(fact_to_write, session.declared_coverage)),
                session.turn_state,
                session.landings,
            )
        )
        seal = self.sealer.seal(_SESSION, state) if self.sealer.portable else b""
        return msgspec.json.encode(SealedSession(msgspec.Raw(state), seal))

    async def net(self, call: Dispatch, outcome: Outcome) -> Outcome:
        """An outcome that was made outside of the chain, under the last limit all the same."""
        return outcome if self.truncation is None else await _cut(self.truncation, call, outcome)

    async def finish_streams(self, call: Dispatch, outcome: Outcome) -> Outcome:
        """What is left of a call whose stream is still open: its head, where nobody took it in; and close it.

        Without a truncation a stream is still open here where it could not be stored; as much of it is shown as would
        have been read.
        """
        flow, peek = flow_of(outcome), self._peek(call.name)
        try:
            return outcome if flow is None or peek is None else await _cut(Truncation(peek.chars), call, outcome)
        finally:
            await self.streams.close(call)

    def chain_for(self, tools: Mapping[str, Tool[..., Any]]) -> Entrance:
        """The entrance of this boundary's chain around other tools."""
        return self._composed(tools)[1]

    # --- lifespan ---

    async def __aenter__(self) -> Boundary:
        if self._lifespan is not None:
            raise ConfigurationError("this boundary is open already; open it once, for the lifetime of the server")
        async with AsyncExitStack() as stack:
            notices, emit = getattr(self.store, "notices", None), self.emit
            if isinstance(notices, Notices) and emit is not None:  # the closing may have some to tell
                stack.callback(notices.listen(lambda notice: emit(event_of(notice))))
            if self.store is not None:
                await stack.enter_async_context(self.store)
            approvals: object = self.approvals
            if isinstance(approvals, AbstractAsyncContextManager):  # one that has to be opened, or refuses at the start
                await stack.enter_async_context(approvals)
            self._lifespan = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        lifespan, self._lifespan = self._lifespan, None
        for name in self._threads.abandoned:
            _log.warning("the boundary closes while a thread of the tool %s still runs; it cannot be stopped", name)
        if lifespan is not None:
            await lifespan.__aexit__(kind, error, traceback)


async def _cut(truncation: Truncation, call: Dispatch, outcome: Outcome) -> Outcome:
    left = TruncationStep(truncation).leave(call, outcome, size_of(outcome))
    return left if isinstance(left, Outcome) else await left


def _check_sequences(**settings: object) -> None:
    for name, given in settings.items():
        if not isinstance(given, (list, tuple)):
            raise ConfigurationError(f"Boundary({name}=...) must be a list, not {type(given).__name__}: write [...]")


def _checked_ttl(approval_ttl: object) -> timedelta:
    """How long a question waits; bounded, so that it can be added to every time that a clock may tell."""
    seconds = check_duration("Boundary(approval_ttl=...)", approval_ttl)
    if seconds > _LONGEST_TTL.total_seconds():
        raise ConfigurationError(f"Boundary(approval_ttl=...) must be at most a century, not {approval_ttl!r:.80}")
    return timedelta(seconds=seconds)


def _by_name(tools: Sequence[Callable[..., Any]]) -> dict[str, Tool[..., Any]]:
    """The tools by their names. A reader gives way to a tool of the host's that has its name already."""
    made_tools = [as_tool(candidate, f"tools[{index}]") for index, candidate in enumerate(tools)]
    taken = {made.name for made in made_tools if made.reader is None}
    names = {
        made.name: _free_name(made.name, taken) for made in made_tools if made.reader is not None and made.name in taken
    }
    by_name: dict[str, Tool[..., Any]] = {}
    for index, each in enumerate(made_tools):
        made = each.renamed(names) if names and each.reader is not None else each
        if made.name in by_name:
            raise ConfigurationError(
                f"tools[{index}]: there is a tool named {made.name!r} already; give one of them @tool(name=...)"
            )
        by_name[made.name] = made
    return by_name


def _free_name(name: str, taken: Container[str]) -> str:
    wanted = (f"coatcheck_{name}", *(f"coatcheck_{name}_{number}" for number in range(2, 1000)))
    return next(each for each in wanted if each not in taken)


def _guarded(on_event: Callable[[AnyEvent], object]) -> Callable[[Event], None]:
    def emit(event: Event) -> None:
        try:
            on_event(cast("AnyEvent", event))
        except Exception:  # noqa: BLE001 - whoever listens must not be felt
            _log.exception("on_event raised on %s", type(event).__name__)

    return emit
