"""The innermost end of the chain: a tool runs, and what it returned becomes an outcome.

Here the arguments are checked, the tool runs under its timeout and its concurrency limit, and its return is
read once: an envelope is unwrapped, an absence or a ledger is declared, the value is rendered.
"""

from __future__ import annotations

import asyncio
import difflib
import functools
import logging
import math
import sys
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from contextlib import AsyncExitStack
from typing import Any

import anyio
import msgspec

from coatcheck.artifacts.port import ArtifactStore
from coatcheck.boundary.context import Artifacts, ToolContext
from coatcheck.boundary.producing import OpenStreams, Producer, message_of
from coatcheck.boundary.resolving import refuse_misspoken, resolve
from coatcheck.boundary.slots import RunningThreads, Slots
from coatcheck.boundary.tool import Tool
from coatcheck.call import ToolCall
from coatcheck.dispatch import Dispatch, Limit, is_stray
from coatcheck.errors import DeclarationError, RenderingError, StoreUnavailable
from coatcheck.events import AbsenceDeclared, CoverageDeclared, ForeignEnvelope, NearMiss
from coatcheck.flow import Ended, Flow, flowing, undeliverable
from coatcheck.outcome import Inline, Outcome, carried, failed
from coatcheck.results.binary import MAX_ATTACHED_BYTES, Blob, may_hold_binary, replace_blobs
from coatcheck.results.conversion import canonical
from coatcheck.results.envelope import (
    Effect,
    Encoded,
    Envelope,
    Malformed,
    decode_envelope,
    explain_near_miss,
    read_envelope,
)
from coatcheck.results.reading import (
    Declared,
    Reading,
    content_of,
    may_declare,
    may_declare_encoded,
    read_and_check,
    read_or_refuse,
)
from coatcheck.results.rendering import JSON, Rendered, render
from coatcheck.results.search import finish, keep_arguments
from coatcheck.results.served import with_content
from coatcheck.results.shapes import clip
from coatcheck.results.status import Status
from coatcheck.results.streams import find_stream

__all__ = ["Execution", "Peek"]

_log = logging.getLogger("coatcheck")
_AGAIN = "Nothing was run; call it again, corrected."
_NO_ARGUMENTS: Mapping[str, Any] = {}
_TAKEN_AWAY_WITHIN = 30.0  # seconds


class Peek(msgspec.Struct, frozen=True):
    """How much of a stream is read ahead.

    Attributes:
        chars: what is within so many characters becomes an ordinary value.
        keep: how many characters of its head may have to be shown in the end.
    """

    chars: int
    keep: int


class _Runner:
    """One tool of one boundary, with everything about it looked at once."""

    def __init__(
        self,
        tool: Tool[..., Any],
        own: Limit | None,
        shared: Limit | None,
        threads: RunningThreads,
        streams: OpenStreams,
        *,
        places: bool,
        peek: Peek | None,
        collect: int,
    ) -> None:
        self.tool = tool
        self.name = tool.name
        self.function = tool.run
        self._foreign = tool.foreign
        self._streams = streams
        self._peek = peek
        self._collect = collect
        wanted = (own, shared, None if tool.is_async else threads.free)
        self._wanted = tuple(limit for limit in wanted if limit is not None)
        self._threads = threads
        self.places = places
        self._ceiling = sys.maxsize if tool.ceiling is None else tool.ceiling.max_chars
        self.takes_arguments = tool.takes_arguments
        self.direct = tool.takes_in_order and tool.is_async and not self._wanted and tool.timeout is None

    async def bounded(self, arguments: dict[str, Any], call: Dispatch) -> Any:
        tool = self.tool
        slots = Slots(self._wanted if call.batch is None else (*self._wanted, call.batch.slots))
        if not await slots.acquire():  # waiting in line is not the tool's time
            hang = f"{tool.name} did not run: threads of earlier calls hang, and hold every slot. Try again later."
            raise _TimedOut(hang, executed=False)
        deadline = math.inf if tool.timeout is None else anyio.current_time() + tool.timeout
        with slots.around(), anyio.CancelScope(deadline=deadline):
            value = await self._execute(arguments, slots)
            opened = self.opened(call, value, slots, deadline) if may_declare(value) else None
            return value if opened is None else opened
        lingers = "" if tool.is_async else " Its thread is still running and cannot be stopped."
        given_up = f"{tool.name} did not finish within {tool.timeout:g} seconds and was given up.{lingers}"
        raise _TimedOut(given_up, executed=True)

    async def _execute(self, arguments: dict[str, Any], slots: Slots) -> Any:
        if self.tool.is_async:
            return await self.function(**arguments)
        return await self._threads.run_part(self.name, functools.partial(self.function, **arguments), slots)

    def opened(
        self, call: Dispatch, value: Any, slots: Slots | None = None, deadline: float = math.inf
    ) -> _Opened | None:
        """The flow of what a tool returned, which holds the tool's slots from now on; ``None``: it is no stream."""
        stream = find_stream(value)
        if stream is None:
            return None
        facts: dict[str, Any] = {}
        if isinstance(value, (dict, Envelope)):
            envelope = read_envelope(value)
            if envelope is None:  # a dict like every other, in which a stream has no place
                return None
            if not self._foreign:
                facts = {"effects": envelope.effects, "malformed": envelope.malformed, "status": envelope.status}
            elif call.emit is not None:
                call.emit(ForeignEnvelope(tool=call.name, call_id=call.call_id, turn=call.turn, form="envelope"))
        slots = Slots(()) if slots is None else slots
        producer = Producer(call, self.tool, stream, slots=slots, threads=self._threads, deadline=deadline)
        slots.hand_over()
        self._streams.add(call, producer)
        outcome = Inline(tool=call.name, call_id=call.call_id, text="", executed=True, value=None, **facts)
        flow = Flow(producer, producer.gauge, outcome, keep=0 if self._peek is None else self._peek.keep)
        return _Opened(outcome, flow)

    async def begun(self, call: Dispatch, opened: _Opened) -> Outcome:
        """The first of a stream is read: what is within the limits is an ordinary value, any other flows."""
        outcome, flow, peek = opened.outcome, opened.flow, self._peek
        try:
            if await (flow.fill(self._ceiling, self._collect) if peek is None else flow.fill(peek.chars)):
                value = flow.value()
                rendered = render(value)
                if MAX_ATTACHED_BYTES < rendered.size <= self._ceiling and not self.places:
                    _refuse_large_binary(value, rendered)
                return carried(outcome, Inline, text=rendered, value=value, content=rendered.blobs)
        except Ended as end:
            return end.outcome
        except RenderingError as error:
            return undeliverable(outcome, error)
        if self.places or flow.gauge.size > self._ceiling or (peek is not None and flow.gauge.is_text):
            return flowing(outcome, flow)  # for the steps outside to take in, or to refuse
        await flow.aclose()
        if peek is not None:
            return undeliverable(call, _too_much_binary("$", flow.gauge.bytes, more=True))
        return failed(
            call,
            f"{self.name} returned a stream of more than {self._collect} bytes, and this host has nowhere to put it. "
            f"Nothing was returned or stored. Call {self.name} again and ask for less.",
            executed=True,
        )

    def teach_arguments(self, error: msgspec.ValidationError) -> str:
        names = ", ".join(self.tool.parameters.get("properties", {})) or "none"
        return f"The arguments of {self.name} are wrong: {clip(str(error), 500)}. It takes: {names}. {_AGAIN}"

    def read(self, call: Dispatch, value: Any, arguments: Mapping[str, Any]) -> Outcome:
        """What the tool returned, as an outcome: envelope, then coverage, then rendering.

        ``arguments`` are those that a declared search needs, as they were before the tool ran.

        The syntax of wire bytes is checked once: by whichever of the three reads them to their end first.
        """
        envelope: Envelope | None = None
        reading: Reading | None = None
        checked = False
        if not isinstance(value, Encoded):
            envelope = read_envelope(value)
            if envelope is None:
                value = finish(value, self.tool.search, arguments)
                reading = read_or_refuse(value)
        elif value.media_type == JSON:
            envelope = decode_envelope(value.raw)
            reading, checked = (None, True) if envelope is not None else read_and_check(value.raw)
        if envelope is None and reading is None:
            if call.emit is not None and not self._foreign and (hint := explain_near_miss(value)) is not None:
                call.emit(NearMiss(tool=call.name, call_id=call.call_id, turn=call.turn, hint=hint))
            return self.inline(call, value, render(value, checked=checked))
        if self._foreign:
            return self._read_foreign(call, value, envelope, reading, checked, arguments)
        effects: tuple[Effect, ...] = ()
        malformed: tuple[Malformed, ...] = ()
        status: Status | None = None
        if envelope is not None:
            effects, malformed, status = envelope.effects, envelope.malformed, envelope.status
            value = envelope.content
            if isinstance(value, msgspec.Raw):
                value = Encoded(bytes(value))
                reading = read_or_refuse(value) if may_declare_encoded(value.raw) else None
            else:
                value = finish(value, self.tool.search, arguments)
                reading = read_or_refuse(value)
        if reading is not None:
            value = _served(value, reading)
            status = status or reading.status
        rendered = render(value, checked=checked)
        declared = _declared(call, reading)
        return self.inline(
            call, value, rendered, status=status, effects=effects, malformed=malformed, declared=declared
        )

    def _read_foreign(
        self,
        call: Dispatch,
        value: Any,
        envelope: Envelope | None,
        reading: Reading | None,
        checked: bool,
        arguments: Mapping[str, Any],
    ) -> Outcome:
        """Data that is merely relayed has no authority: it sets no status and asks for no effects."""
        form = "envelope" if reading is None else reading.declared[0].kind
        if call.emit is not None:
            call.emit(ForeignEnvelope(tool=call.name, call_id=call.call_id, turn=call.turn, form=form))
        if envelope is not None:
            content = content_of(value)
            finished = content if type(content) is Encoded else finish(content, self.tool.search, arguments)
            reading = read_or_refuse(finished)
            served = finished if reading is None else _served(finished, reading)
            if served is not content or (reading is not None and type(value) is Encoded):
                value, checked = with_content(value, served), False
        elif reading is not None:
            value = _served(value, reading)
        rendered = render(value, checked=checked)
        return self.inline(call, value, rendered, declared=_declared(call, reading))

    def inline(self, call: Dispatch, value: Any, rendered: Rendered, **facts: Any) -> Inline:
        if MAX_ATTACHED_BYTES < rendered.size <= self._ceiling and not self.places:  # over it, the ceiling refuses
            _refuse_large_binary(value, rendered)
        return Inline(
            tool=call.name,
            call_id=call.call_id,
            text=rendered,  # type: ignore[arg-type]  # see above
            executed=True,
            value=value,
            content=rendered.blobs,
            **facts,
        )


class Execution:
    """Looks the tool up and runs it; an unknown one is an error that names the nearest.

    Args:
        tools: by name.
        shared: the boundary's own concurrency limit, or ``None``.
        threads: where sync tools run.
        limits: the tools' own concurrency limits, shared by all chains of one boundary.
        streams: where streams are known until they are closed.
        places: whether a placement stands outside, which binary too large to attach is left to.
        peek: how much of a tool's stream is read before it is decided whether it flows, by tool name; ``None`` where
            no step outside can take a stream in.
        collect: how many bytes of a stream are held at most in that case.
        store: what tools may use of it, in the scope of their call.
    """

    def __init__(
        self,
        tools: Mapping[str, Tool[..., Any]],
        shared: Limit | None,
        threads: RunningThreads,
        limits: MutableMapping[Tool[..., Any], Limit],
        streams: OpenStreams,
        *,
        places: bool,
        peek: Callable[[str], Peek | None],
        collect: int,
        store: ArtifactStore | None,
    ) -> None:
        self._store = store
        self._streams = streams
        self._readers: dict[str, str] = {tool.reader: name for name, tool in tools.items() if tool.reader is not None}
        self._runners: dict[str, _Runner] = {}
        for name, tool in tools.items():
            own = None
            if tool.concurrency is not None:
                own = limits.setdefault(tool, Limit(tool.concurrency))
            self._runners[name] = _Runner(
                tool, own, shared, threads, streams, places=places, peek=peek(name), collect=collect
            )

    async def run(self, call: Dispatch) -> Outcome:
        """Run the tool that ``call`` names, and read what it returns."""
        if call.batch is not None:
            call.batch.walked()
        runner = self._runners.get(call.name)
        if runner is None:
            return _unknown(call, self._runners)
        arguments = call.arguments
        direct = runner.direct and call.batch is None
        ordered: tuple[Any, ...] = ()
        if arguments or runner.takes_arguments:
            try:
                if direct:
                    ordered = runner.tool.convert_in_order(arguments)
                else:
                    arguments = runner.tool.convert(arguments)
            except msgspec.ValidationError as error:
                tool = runner.tool
                no_refs = await refuse_misspoken(call, tool.wants, call.arguments, tool.parameters, self._store)
                return failed(call, runner.teach_arguments(error) + no_refs)
        if not runner.tool.is_plain:
            return await self._run_with_more(runner, call, arguments)
        return await self._run(runner, call, arguments, ordered, direct=direct)

    async def _run_with_more(self, runner: _Runner, call: Dispatch, arguments: dict[str, Any]) -> Outcome:
        """Run a tool that takes more than what the model speaks: payloads in place of refs, or its context."""
        tool = runner.tool
        stack = AsyncExitStack()
        artifacts = Artifacts(self._store, call)
        stack.push_async_callback(artifacts.end)
        try:
            resolved = await resolve(call, tool.wants, arguments, self._store, artifacts, stack)
            if isinstance(resolved, Outcome):
                return resolved
            arguments = {**arguments, **resolved.values}
            if tool.context is not None:
                spoken = ToolCall(call.name, dict(call.arguments), call.call_id)
                arguments[tool.context] = ToolContext(artifacts, resolved.metas, spoken, self._readers)
            outcome = await self._run(runner, call, arguments, (), direct=False)
            # A stream is the tool still at work: what it was handed is taken away when it has ended.
            for producer in self._streams.of(call)[-1:]:
                producer.at_end(functools.partial(_taken_away, stack.pop_all()))
            return outcome
        finally:
            await _taken_away(stack)

    async def _run(
        self, runner: _Runner, call: Dispatch, arguments: dict[str, Any], ordered: tuple[Any, ...], *, direct: bool
    ) -> Outcome:
        asked = _NO_ARGUMENTS if runner.tool.search is None else keep_arguments(runner.tool.search, call.arguments)
        try:
            if direct:
                value = await runner.function(*ordered)
            else:
                value = await runner.bounded(arguments, call)
        except _TimedOut as error:
            return failed(call, str(error), executed=error.executed)
        except asyncio.CancelledError as error:
            if not is_stray(error):
                raise
            return failed(call, f"{runner.name} waited for something that was cancelled.", executed=True)
        except Exception as error:  # noqa: BLE001 - whatever a tool raises is its answer
            _log.info("the tool %s raised", runner.name, exc_info=True)
            if runner.tool.reader is not None and isinstance(error, StoreUnavailable):
                # It speaks to the operator, of endpoints and settings, and is in the event.
                said = "The store of this host cannot answer now: try again later, or go on without it."
                return failed(call, said, executed=True)
            return failed(call, message_of(error), executed=True)
        try:
            if may_declare(value):
                opened = value if type(value) is _Opened else runner.opened(call, value)
                return runner.read(call, value, asked) if opened is None else await runner.begun(call, opened)
            if call.emit is not None:
                return runner.read(call, value, asked)
            rendered = render(value)
            if rendered.blobs or (rendered.size > MAX_ATTACHED_BYTES and not runner.places):
                return runner.inline(call, value, rendered)
        except RenderingError as error:
            return undeliverable(call, error)
        except DeclarationError as error:
            return failed(call, str(error), executed=True)
        except Exception:  # noqa: BLE001 - a value may run code of its own when it is looked at
            _log.exception("the result of the call %r of the tool %s cannot be looked at", call.call_id, runner.name)
            reason = f"{runner.name} returned a value that cannot be read. Nothing was returned or stored."
            return failed(call, reason, executed=True)
        # The slot of `text` holds the rendering until somebody reads it: see outcome.py.
        return Inline(tool=call.name, call_id=call.call_id, text=rendered, executed=True, value=value)  # type: ignore[arg-type]


class _Opened(msgspec.Struct, frozen=True):
    """A stream that a tool returned, and what the tool said beside it."""

    outcome: Inline
    flow: Flow


class _TimedOut(Exception):
    def __init__(self, text: str, *, executed: bool) -> None:
        super().__init__(text)
        self.executed = executed


async def _taken_away(stack: AsyncExitStack) -> None:
    """What the tool was handed is taken away. What that comes to is nothing to the call, which has its outcome."""
    try:
        with anyio.move_on_after(_TAKEN_AWAY_WITHIN, shield=True):
            await stack.aclose()
    except Exception:  # noqa: BLE001 - see above
        _log.warning("what a call was handed could not be taken away in good order", exc_info=True)


def _unknown(call: Dispatch, known: Iterable[str]) -> Outcome:
    names = list(known)
    nearest = difflib.get_close_matches(call.name[:200], names, n=3, cutoff=0.5) or sorted(names)[:5]
    hint = f" Did you mean {' or '.join(nearest)}?" if nearest else " This host has no tools."
    return failed(call, f"There is no tool named {call.name[:80]!r}.{hint}")


def _served(value: Any, reading: Reading) -> Any:
    """What the model is served of a value that was read; the value itself where that is the same."""
    served = reading.served
    if type(served) is bytes:  # of wire bytes that `read_and_check` read
        return value if served is value.raw else Encoded(served)
    return served


def _declared(call: Dispatch, reading: Reading | None) -> tuple[Declared, ...]:
    """What a result declared about its ground, said to whoever listens."""
    if reading is None:
        return ()
    who: dict[str, Any] = {"tool": call.name, "call_id": call.call_id, "turn": call.turn}
    for fault in reading.faults:
        _log.warning("the tool %s declared what no mint lets pass: %s", call.name, fault)
    if call.emit is not None:
        for fact in reading.declared:
            said = {
                name: getattr(fact, name) for name in ("checked", "not_checked", "cannot_cover", "period", "verdict")
            }
            if fact.kind == "absence":
                more = ("looked_for", "try_instead", "try_instead_tool", "provenance")
                call.emit(AbsenceDeclared(**who, **said, **{name: getattr(fact, name) for name in more}))
            else:
                call.emit(CoverageDeclared(**who, **said))
    return tuple(msgspec.structs.replace(fact, **who) for fact in reading.declared)


def _refuse_large_binary(value: Any, rendered: Rendered) -> None:
    """Without a placement, binary beyond what an outcome can carry has nowhere to go."""
    found: list[Blob] = list(rendered.blobs)
    if rendered.media_type == JSON and not found and not isinstance(value, Encoded) and may_hold_binary(value, b""):

        def collect(blob: Blob) -> bytes | str:
            if isinstance(blob.original, bytes):
                found.append(blob)
            return blob.original

        replace_blobs(canonical(value, keep_bytes=True), collect)
    if sum(len(blob.data) for blob in found) > MAX_ATTACHED_BYTES:
        largest = max(found, key=lambda blob: len(blob.data))
        raise _too_much_binary(largest.path, len(largest.data))


def _too_much_binary(path: str, size: int, *, more: bool = False) -> RenderingError:
    return RenderingError(
        path,
        f"{'at least ' if more else ''}{size} bytes of binary; at most {MAX_ATTACHED_BYTES} travel beside a text, "
        "more needs a store and a placement",
    )
