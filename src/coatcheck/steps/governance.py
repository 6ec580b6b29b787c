"""Governance: rules that allow, deny, change, or ask a person, before the tool and after it.

Law (`design.md` section 3, parting 2; `reference/behaviour.md` section 5): before the tool the rules are
asked in declared order, after it in reverse. The first denial ends the walk. A rule that raises, runs out
of time, answers with nothing or with nonsense, or asks after the tool, has permitted nothing: it is a
recorded denial. Every answer is a row of the ledger.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable
from typing import Any, Protocol, cast

import anyio

from coatcheck.artifacts.ref import digest_of
from coatcheck.call import ToolCall
from coatcheck.decision import Decision, Fingerprint
from coatcheck.dispatch import Approval, Dispatch, is_stray
from coatcheck.errors import RenderingError
from coatcheck.flow import FLOWING, Ended, Flow, flow_of, flowing, settled
from coatcheck.outcome import (
    Denied,
    Failed,
    Inline,
    Outcome,
    Pending,
    Placed,
    TooLarge,
    Truncated,
    carried,
    rendered_of,
)
from coatcheck.results.reading import served_of
from coatcheck.results.rendering import Rendered, render
from coatcheck.results.shapes import clip
from coatcheck.steps.ledger import file_row
from coatcheck.steps.pieces import JudgedPieces, stage
from coatcheck.steps.rule import (
    PLAIN_ALLOW,
    UNCHANGED,
    Allow,
    Ask,
    BoundRules,
    Chunk,
    Deny,
    Hook,
    Result,
    StreamResult,
)
from coatcheck.steps.step import Step

__all__ = ["GovernanceStep", "PendingMaker"]

_log = logging.getLogger("coatcheck")
_NOTHING_YET: Any = object()


class PendingMaker(Protocol):
    """Builds the sealed `Pending` outcome for a rule that asked."""

    def __call__(self, call: Dispatch, hook_name: str, index: int, question: str, detail: Any) -> Pending:
        """Build it; raises `RenderingError` where the call cannot be carried to another process."""


class GovernanceStep(Step):
    """The middleware around the ceiling: walks the rules before the tool, and after it.

    Args:
        rules: as `bind_rules` ordered them.
        timeout: seconds that all waiting rules of one walk share; of a stream, those that look at one piece.
        collect: how many bytes of a stream are held for a rule that needs it as a whole.
        ledger_values: keep the changed values themselves on the ledger.
        make_pending: builds the outcome for a rule that asked.
    """

    def __init__(
        self, rules: BoundRules, *, timeout: float, collect: int, ledger_values: bool, make_pending: PendingMaker
    ) -> None:
        self._before = rules.before
        self._after = rules.after
        self._asked_before = tuple((position, hook.function, hook.name) for position, hook in enumerate(rules.before))
        self._asked_after = tuple((position, hook.function, hook.name) for position, hook in enumerate(rules.after))
        self.enters: bool = bool(rules.before)
        self._timeout = timeout
        self._collect = collect
        self._ledger_values = ledger_values
        self._make_pending = make_pending

    def enter(self, call: Dispatch) -> Dispatch | Outcome | Awaitable[Dispatch | Outcome]:
        """Ask the rules before the tool: the call as they changed it, or its end."""
        if call.approval is not None or call.emit is not None:
            return self._walk_before(call)
        tool, call_id, rows = call.name, call.call_id, call.rows
        for position, hook, name in self._asked_before:  # the common answer, at the least cost
            try:
                said = hook(call)
            except Exception as error:  # noqa: BLE001 - a rule that raises has permitted nothing
                said = error
            if said is not PLAIN_ALLOW:
                return self._walk_before(call, position, said)
            rows.append(Decision(name, "before-tool", tool, call_id, "allow"))
        return call

    def leave(self, call: Dispatch, outcome: Outcome, size: int) -> Outcome | Awaitable[Outcome]:
        """Ask the rules after the tool, in reverse, where it ran or a value is there all the same."""
        if not (self._asked_after and (outcome.executed or isinstance(outcome, (Inline, Placed, Truncated)))):
            return outcome
        if size == FLOWING and (flow := flow_of(outcome)) is not None:
            return self._walk_stream(call, cast("Inline", outcome), flow)
        if call.emit is not None:
            return self._walk_after(call, outcome)
        tool, call_id, rows = call.name, call.call_id, call.rows
        result = Result(outcome)
        for position, hook, name in self._asked_after:  # the common answer, at the least cost
            try:
                said = hook(call, result)
            except Exception as error:  # noqa: BLE001 - a rule that raises has permitted nothing
                said = error
            if said is not PLAIN_ALLOW:
                return self._walk_after(call, outcome, position, said)
            rows.append(Decision(name, "after-tool", tool, call_id, "allow"))
        return outcome

    async def _walk_before(self, call: Dispatch, first: int = 0, said: Any = _NOTHING_YET) -> Dispatch | Outcome:
        """Walk the hooks from position ``first`` on, which has ``said`` its answer already where one is given."""
        approval = call.approval
        if approval is not None:
            call = call.following(ToolCall(approval.tool, approval.arguments, call.call_id))
            file_row(call, approval.rule, "before-tool", "allow", approval.why)
        deadline = _Deadline(self._timeout)
        for hook in self._before[first:]:
            if approval is not None and hook.index <= approval.index:
                continue
            change: tuple[Any, Any] | None = None
            answer: Allow | Deny | Pending
            try:
                said = await deadline.settled(hook.function(call) if said is _NOTHING_YET else said)
                if type(said) is Allow and said.value is not UNCHANGED:
                    changed = _changed_call(call, said.value)
                    change = self._record_if_it_can_be(call.arguments), self._record(said.value)
                    call = changed
                answer = self._asked(call, hook, said, approval) if type(said) is Ask else said
            except Exception as error:  # noqa: BLE001 - a rule that raises has permitted nothing
                answer, change = _malfunction(hook.name, call, error), None
            said = _NOTHING_YET
            if isinstance(answer, Allow):
                file_row(call, hook.name, "before-tool", "allow", answer.why, change)
            elif isinstance(answer, Deny):
                file_row(call, hook.name, "before-tool", "deny", answer.reason)
                return Denied(
                    tool=call.name, call_id=call.call_id, text=answer.reason, reason=answer.reason, rule=hook.name
                )
            else:
                file_row(call, hook.name, "before-tool", "ask", answer.call.question)
                return answer
        return call

    def _asked(self, call: Dispatch, hook: Hook, said: Ask, approval: Approval | None) -> Pending | Deny:
        if approval is None:
            return self._make_pending(call, hook.name, hook.index, said.question, said.detail)
        return Deny(
            f"The rule {hook.name} asks as well: {said.question} "
            "One approval answers one question, so the call was refused."
        )

    async def _walk_after(self, call: Dispatch, outcome: Outcome, first: int = 0, said: Any = _NOTHING_YET) -> Outcome:
        """Walk the hooks from position ``first`` on, which has ``said`` its answer already where one is given."""
        deadline = _Deadline(self._timeout)
        result = Result(outcome)
        for hook in self._after[first:]:
            change: tuple[Any, Any] | None = None
            answer: Allow | Deny
            try:
                said = _after_answer(
                    await deadline.settled(hook.function(call, result) if said is _NOTHING_YET else said)
                )
                if type(said) is Allow and said.value is not UNCHANGED:
                    replaced = _replaced(outcome, said.value)
                    change = self._record_of(outcome), self._record_of(replaced)
                    outcome, result = replaced, Result(replaced)
                answer = said
            except Exception as error:  # noqa: BLE001 - a rule that raises has permitted nothing
                answer, change = _malfunction(hook.name, call, error), None
            said = _NOTHING_YET
            if isinstance(answer, Deny):
                hidden = self._record_of(outcome), self._record(answer.reason)
                file_row(call, hook.name, "after-tool", "deny", answer.reason, hidden)
                return carried(outcome, Denied, text=answer.reason, reason=answer.reason, rule=hook.name)
            file_row(call, hook.name, "after-tool", "allow", answer.why, change)
        return outcome

    async def _walk_stream(self, call: Dispatch, outcome: Inline, flow: Flow) -> Outcome:
        """Walk the hooks over a stream: each judges it as a whole, piece by piece, or staged, before any of it leaves.

        What the stream ends as, the error of a tool or the refusal of its ceiling, is an outcome as every other, and
        the hooks are asked about it.
        """

        async def walked(ended: Outcome) -> Outcome:
            return await self._walk_after(call, ended)

        flow.on_end = walked
        try:
            whole = next((hook for hook in self._after if hook.chunk is None and not hook.streams), None)
            if whole is not None:
                if await flow.fill(bytes=self._collect):
                    return await self._walk_after(call, settled(outcome, flow))
                await flow.aclose()
                reason = (
                    f"{outcome.tool} returned more than {self._collect} bytes piece by piece, and the rule "
                    f"{whole.name} can only judge a result as a whole. Nothing was returned or stored. Ask for less."
                )
                file_row(call, whole.name, "after-tool", "deny", reason, (None, self._record(reason)))
                return carried(outcome, Denied, text=reason, reason=reason, rule=whole.name)
            for position, hook in enumerate(self._after):
                if hook.chunk is not None:
                    flow = flow.through(JudgedPieces(flow, call, outcome, hook, self._ask_about_chunk))
                    continue
                answer: Allow | Deny
                change: tuple[Any, Any] | None = (None, None)
                try:
                    flow, staged = await stage(flow, outcome.status)
                except OSError as error:  # there is no room for it: the rule could not look
                    answer = _malfunction(hook.name, call, error)
                else:
                    answer, change = await self._judge_staged(call, hook, staged)
                if isinstance(answer, Deny):
                    await flow.aclose()
                    file_row(call, hook.name, "after-tool", "deny", answer.reason, change)
                    return carried(outcome, Denied, text=answer.reason, reason=answer.reason, rule=hook.name)
                file_row(call, hook.name, "after-tool", "allow", answer.why, change)
                if answer.value is not UNCHANGED:
                    await flow.aclose()
                    return await self._walk_after(call, _replaced(outcome, answer.value), position + 1)
        except Ended as end:
            return end.outcome
        except BaseException:
            await flow.abandon()
            raise
        return flowing(outcome, flow)

    async def _judge_staged(
        self, call: Dispatch, hook: Hook, staged: StreamResult
    ) -> tuple[Allow | Deny, tuple[Any, Any] | None]:
        """What a hook says of a staged stream, and the change for the ledger."""
        before = Fingerprint(staged.size, staged.digest)
        try:
            said = _after_answer(await _Deadline(self._timeout).settled(hook.function(call, staged)))
            if isinstance(said, Deny):
                return said, (before, self._record(said.reason))
            return said, None if said.value is UNCHANGED else (before, self._record(said.value))
        except Exception as error:  # noqa: BLE001 - a rule that raises has permitted nothing
            answer = _malfunction(hook.name, call, error)
            return answer, (before, self._record(answer.reason))

    async def _ask_about_chunk(self, call: Dispatch, hook: Hook, chunk: Chunk) -> Allow | Deny:
        """What a hook says of one piece."""
        try:
            said = hook.chunk(call, chunk)  # type: ignore[misc]  # only asked of a hook that has it
            answer: Allow | Deny = _after_answer(await _Deadline(self._timeout).settled(said))
            if (
                isinstance(answer, Allow)
                and answer.value is not UNCHANGED
                and type(answer.value) is not type(chunk.data)
            ):
                wanted = "text" if isinstance(chunk.data, str) else "bytes"
                raise TypeError(
                    f"allow(value) for a piece of {wanted} takes {wanted}, not {type(answer.value).__name__}"
                )
            if isinstance(answer, Allow) and isinstance(answer.value, str):
                answer.value.encode()  # what UTF-8 cannot carry is no text
        except Exception as error:  # noqa: BLE001 - a rule that raises has permitted nothing
            return _malfunction(hook.name, call, error)
        return answer

    def _record(self, value: Any) -> Any:
        """What the ledger keeps of a value; raises `RenderingError` where JSON cannot carry it."""
        rendered = render(value)
        return value if self._ledger_values else _fingerprint(rendered)

    def _record_if_it_can_be(self, value: Any) -> Any:
        """What the ledger keeps of a value that a rule takes away, maybe because JSON cannot carry it."""
        try:
            return self._record(value)
        except RenderingError:
            return None

    def _record_of(self, outcome: Outcome) -> Any:
        if self._ledger_values:
            return Result(outcome).value
        return _fingerprint(rendered_of(outcome))


class _Deadline:
    """The time that the waiting rules of one walk share. The clock starts when the first of them is waited for."""

    __slots__ = ("_at", "_seconds")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._at: float | None = None

    async def settled(self, said: Any) -> Any:
        """Wait for what an async rule says; raise what a rule raised, and for what is no answer at all."""
        if isinstance(said, Exception):
            raise said
        if inspect.isawaitable(said):
            if self._at is None:
                self._at = anyio.current_time() + self._seconds
            with anyio.CancelScope(deadline=self._at) as scope:
                try:
                    said = await said
                except asyncio.CancelledError as error:
                    if not is_stray(error):
                        raise
                    raise RuntimeError("something that it waited for was cancelled") from error
            if scope.cancel_called:  # an answer that came too late, from a rule that took no notice, is none
                raise TimeoutError(f"no answer within the {self._seconds:g} seconds that the rules of one walk share")
        if type(said) not in (Allow, Deny, Ask):
            raise TypeError(f"a rule answers with allow(), deny(...) or ask(...), not with a {type(said).__name__}")
        return said


def _malfunction(name: str, call: Dispatch, error: Exception) -> Deny:
    try:
        problem = str(error) or type(error).__name__
    except Exception:  # noqa: BLE001 - the rule's own code, which failed already
        problem = type(error).__name__
    where = (name, call.call_id, clip(call.name, 128))
    _log.warning("the rule %s could not decide on the call %r of the tool %s: a refusal", *where, exc_info=error)
    return Deny(f"The rule {name} could not decide ({problem:.300}), so it was taken as a refusal.")


def _after_answer(said: Any) -> Any:
    if type(said) is Ask:
        raise TypeError("ask() is only for the moment before the tool")
    return said


def _changed_call(call: Dispatch, arguments: Any) -> Dispatch:
    if not isinstance(arguments, dict):
        raise TypeError(f"allow(value) before the tool takes a dict of arguments, not {type(arguments).__name__}")
    return call.with_arguments(arguments)


def _replaced(outcome: Outcome, value: Any) -> Outcome:
    """The outcome with another value: served and rendered again, because a rule changed it."""
    value = served_of(value)
    rendered = render(value)
    if isinstance(outcome, Failed):
        return carried(outcome, Failed, text=rendered, reason=rendered.text)
    if isinstance(outcome, TooLarge):
        return carried(outcome, TooLarge, text=rendered, size=outcome.size, max_chars=outcome.max_chars)
    return carried(outcome, Inline, text=rendered, value=value, content=rendered.blobs)


def _fingerprint(rendered: Rendered) -> Fingerprint:
    return Fingerprint(rendered.size, digest_of(rendered.data))
