"""What a rule is, and what it may answer.

A rule is the operator's: an object with a name and a hook before the tool, after it, or both. Its answer is
one of three words: ``allow()``, ``deny(reason)``, ``ask(question)``. `governance` walks the rules.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, ClassVar, Literal, TypeAlias, overload

import anyio.to_thread
import msgspec

from coatcheck.call import ToolCall
from coatcheck.errors import ConfigurationError
from coatcheck.outcome import Inline, Outcome, rendered_of, size_of
from coatcheck.results.envelope import Encoded
from coatcheck.results.rendering import TEXT
from coatcheck.results.shapes import legible
from coatcheck.results.status import Status

__all__ = [
    "PLAIN_ALLOW",
    "UNCHANGED",
    "Allow",
    "Answer",
    "Ask",
    "BoundRules",
    "Chunk",
    "Deny",
    "Hook",
    "Result",
    "Rule",
    "StreamResult",
    "after_chunk",
    "after_tool",
    "allow",
    "ask",
    "before_tool",
    "bind_rules",
    "deny",
]


_MOMENTS = ("before_tool", "after_tool", "after_chunk")


class _Unchanged:
    """The value of an ``allow()`` that changes nothing; ``None`` would be a value."""

    def __repr__(self) -> str:
        return "unchanged"


UNCHANGED = _Unchanged()


class Allow(msgspec.Struct, frozen=True):
    """Permits the call or the result, unchanged or replaced by ``value``. Made by `allow`."""

    value: Any = UNCHANGED
    why: str | None = None

    def __post_init__(self) -> None:
        why = self.why
        if why is not None:
            if not isinstance(why, str) or not why.strip():
                raise ConfigurationError("allow(why=...) must be a sentence for the ledger, or left out")
            msgspec.structs.force_setattr(self, "why", legible(why))
        elif self.value is not UNCHANGED:
            raise ConfigurationError("allow(value) needs a why: a change without a reason is refused")


class Deny(msgspec.Struct, frozen=True):
    """Refuses the call or hides the result; the model reads ``reason``. Made by `deny`."""

    reason: str

    def __post_init__(self) -> None:
        if not isinstance(self.reason, str) or not self.reason.strip():
            raise ConfigurationError("deny(reason) needs a sentence that the model can read")
        msgspec.structs.force_setattr(self, "reason", legible(self.reason))


class Ask(msgspec.Struct, frozen=True):
    """Wants a person to decide before the tool runs. Made by `ask`."""

    question: str
    detail: Any = None

    def __post_init__(self) -> None:
        if not isinstance(self.question, str) or not self.question.strip():
            raise ConfigurationError("ask(question) needs a question that a person can answer")
        msgspec.structs.force_setattr(self, "question", legible(self.question))


PLAIN_ALLOW = Allow()
"""What ``allow()`` answers: one object, because most answers are this one."""


def allow(value: Any = UNCHANGED, why: str | None = None) -> Allow:
    """Permit. With a ``value``, go on with it instead: other arguments before the tool, another result after it.

    Args:
        value: the replacement; ``None``, ``False`` and empty values are values.
        why: the reason for the ledger; required with a value.

    Raises:
        ConfigurationError: for a value without a reason. Inside a rule that is a recorded denial.
    """
    if value is UNCHANGED and why is None:
        return PLAIN_ALLOW
    return Allow(value, why)


def deny(reason: str) -> Deny:
    """Refuse. The model reads ``reason``, so say what it may do instead.

    Raises:
        ConfigurationError: for a blank reason. Inside a rule that is a recorded denial all the same.
    """
    return Deny(reason)


def ask(question: str, detail: Any = None) -> Ask:
    """Let a person decide. Only before the tool; after it, asking is a recorded denial.

    Args:
        question: what the person is asked.
        detail: anything JSON can carry that helps to decide.

    Raises:
        ConfigurationError: for a blank question. Inside a rule that is a recorded denial.
    """
    return Ask(question, detail)


class Result(msgspec.Struct, frozen=True, eq=False):
    """What an after-tool rule sees.

    Attributes:
        value: what the tool returned, after any envelope; the refusal or the error text where there is none.
        text: what the model would read. size: its size in characters. Neither is computed before it is asked for.
        status: the delivered status, or ``None``.
        error: True where the tool raised or returned what cannot be carried.
    """

    outcome: Outcome

    @property
    def value(self) -> Any:
        """What the tool returned."""
        return self.outcome.value if isinstance(self.outcome, Inline) else self.outcome.text

    @property
    def text(self) -> str:
        """What the model would read."""
        return self.outcome.text

    @property
    def size(self) -> int:
        """The size in characters (bytes for binary)."""
        return size_of(self.outcome)

    @property
    def status(self) -> Status | None:
        """The delivered status."""
        return self.outcome.status

    @property
    def error(self) -> bool:
        """Whether the call failed."""
        return self.outcome.error


Pieces: TypeAlias = AsyncIterator[bytes]


class StreamResult(msgspec.Struct, frozen=True, eq=False):
    """What an after-tool rule sees of a stream, if it says that it understands streams (``streams = True``).

    All of it lies in a private temporary file; nothing is published before the rule has answered. It has neither
    ``text`` nor ``value``: those would be all of it.

    Attributes:
        media_type: as found. bytes: how many. size: in characters (bytes for binary). digest: ``sha256:<hex>``.
        status: the delivered status, or ``None``.
        error: always False: a stream that broke off is a `Result` with the error's text.
    """

    media_type: str
    bytes: int
    size: int
    digest: str
    status: Status | None
    reader: Callable[[int, int | None], Pieces]
    error: ClassVar[bool] = False

    def read(self, start: int = 0, end: int | None = None) -> Pieces:
        """A part of it, in pieces: ``async for piece in result.read(start, end)``.

        Args:
            start: the first byte, counted from 0. end: the byte after the last; ``None`` is the end.

        Raises:
            InvalidRange: a negative start, or an end before it.
        """
        return self.reader(start, end)


class Chunk(msgspec.Struct, eq=False):
    """A piece of a result, as an ``after_chunk`` hook sees it. The last one may be empty.

    A word may begin in one piece and end in the next. A rule that looks for words keeps the end of each piece in
    ``memory``, and may hold it back: it answers with less than it was given, and with the rest when more has come.

    Attributes:
        data: text as ``str``, cut between characters; anything else as ``bytes``.
        offset: how many bytes of the result came before it.
        last: no piece comes after it.
        memory: the rule's own, for this one result.
    """

    data: str | bytes
    offset: int = 0
    last: bool = True
    memory: dict[str, Any] = msgspec.field(default_factory=dict)


Answer: TypeAlias = Allow | Deny | Ask
BeforeHook: TypeAlias = Callable[[ToolCall], Answer | Awaitable[Answer]]
AfterHook: TypeAlias = Callable[[ToolCall, Result], Answer | Awaitable[Answer]]
StreamHook: TypeAlias = Callable[[ToolCall, Result | StreamResult], Answer | Awaitable[Answer]]
ChunkHook: TypeAlias = Callable[[ToolCall, Chunk], Answer | Awaitable[Answer]]


class Rule:
    """One governance link: subclass it, and define ``before_tool(call)``, ``after_tool(call, result)``, or both.

    The hooks may be sync or async. A sync hook runs on the event loop and must not block; set ``thread = True``
    to run it in a worker thread instead. Anything else with a ``name`` and one of the hooks is a rule, too.

    A result that is too large to be held comes as a stream. ``after_tool`` judges whole results: it is asked about a
    stream that the boundary can hold, and a larger one is denied. A rule for streams of any length has
    ``after_chunk(call, chunk)``, which is asked about every piece, or says ``streams = True``: then ``after_tool`` is
    given a `StreamResult` for a stream, and a `Result` for everything else. Whole results come to ``after_chunk`` as
    one piece, unless the rule has ``after_tool`` beside it.

    Attributes:
        name: how the ledger calls it; the class's name unless set.
        thread: run sync hooks in a worker thread.
        streams: ``after_tool`` understands a `StreamResult`.
    """

    name: str = ""
    thread: bool = False
    streams: bool = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not cls.__dict__.get("name"):
            cls.name = cls.__name__


class _FunctionRule(Rule):
    def __init__(
        self, moment: str, function: Callable[..., Any], name: str | None, thread: bool, streams: bool = False
    ) -> None:
        self.name = name or str(getattr(function, "__name__", ""))
        self.thread = thread
        self.streams = streams
        setattr(self, moment, function)


@overload
def before_tool(function: BeforeHook, /) -> Rule: ...
@overload
def before_tool(*, name: str | None = None, thread: bool = False) -> Callable[[BeforeHook], Rule]: ...
def before_tool(
    function: BeforeHook | None = None, /, *, name: str | None = None, thread: bool = False
) -> Rule | Callable[[BeforeHook], Rule]:
    """Make a rule of a function ``(call) -> allow() | deny(...) | ask(...)``, sync or async.

    Args:
        function: the hook; left out where the decorator takes arguments.
        name: how the ledger calls the rule; the function's name by default.
        thread: run a sync function in a worker thread, because it blocks.
    """
    if function is None:
        return lambda hook: _FunctionRule("before_tool", hook, name, thread)
    return _FunctionRule("before_tool", function, name, thread)


@overload
def after_tool(function: AfterHook, /) -> Rule: ...
@overload
def after_tool(
    *, name: str | None = None, thread: bool = False, streams: Literal[False] = False
) -> Callable[[AfterHook], Rule]: ...
@overload
def after_tool(
    *, name: str | None = None, thread: bool = False, streams: Literal[True]
) -> Callable[[StreamHook], Rule]: ...
def after_tool(
    function: AfterHook | None = None, /, *, name: str | None = None, thread: bool = False, streams: bool = False
) -> Rule | Callable[[AfterHook], Rule] | Callable[[StreamHook], Rule]:
    """Make a rule of a function ``(call, result) -> allow() | deny(...)``, sync or async.

    Args:
        function: the hook; left out where the decorator takes arguments.
        name: how the ledger calls the rule; the function's name by default.
        thread: run a sync function in a worker thread, because it blocks.
        streams: the function understands a `StreamResult`, which it is given for a stream of any length.
    """

    def make(hook: Callable[..., Any]) -> Rule:
        return _FunctionRule("after_tool", hook, name, thread, streams)

    return make if function is None else make(function)


@overload
def after_chunk(function: ChunkHook, /) -> Rule: ...
@overload
def after_chunk(*, name: str | None = None, thread: bool = False) -> Callable[[ChunkHook], Rule]: ...
def after_chunk(
    function: ChunkHook | None = None, /, *, name: str | None = None, thread: bool = False
) -> Rule | Callable[[ChunkHook], Rule]:
    """Make a rule of a function ``(call, chunk) -> allow() | deny(...)`` that is asked about every piece of a result.

    Args:
        function: the hook; left out where the decorator takes arguments.
        name: how the ledger calls the rule; the function's name by default.
        thread: run a sync function in a worker thread, because it blocks.
    """
    if function is None:
        return lambda hook: _FunctionRule("after_chunk", hook, name, thread)
    return _FunctionRule("after_chunk", function, name, thread)


class Hook:
    """One hook of one rule, looked at once.

    Attributes:
        function: what is asked about a call, or about a whole result.
        chunk: what is asked about every piece of a stream, if the rule has that.
        streams: ``function`` understands a `StreamResult`.
    """

    __slots__ = ("chunk", "function", "index", "name", "streams")

    def __init__(
        self,
        name: str,
        index: int,
        function: Callable[..., Any],
        *,
        thread: bool,
        chunk: Callable[..., Any] | None = None,
        streams: bool = False,
    ) -> None:
        self.name: str = name
        self.index: int = index
        self.function: Callable[..., Any] = _runnable(function, thread)
        self.chunk: Callable[..., Any] | None = None if chunk is None else _runnable(chunk, thread)
        self.streams: bool = streams


def _runnable(function: Callable[..., Any], thread: bool) -> Callable[..., Any]:
    return _in_thread(function) if thread and not inspect.iscoroutinefunction(function) else function


def _as_one_piece(hook: Callable[..., Any]) -> Callable[..., Any]:
    """An ``after_chunk`` hook as one that is asked about whole results. A type that is not plain text stays with it."""

    def after_tool(call: ToolCall, result: Result) -> Any:
        rendered = rendered_of(result.outcome)
        binary = bool(rendered.blobs) and rendered.whole is None
        said = hook(call, Chunk(rendered.data if binary else rendered.text))
        return _with_type(said, None if rendered.media_type == TEXT else rendered.media_type)

    async def after_tool_async(call: ToolCall, result: Result) -> Any:
        return await after_tool(call, result)

    return after_tool_async if inspect.iscoroutinefunction(hook) else after_tool


def _with_type(said: Any, media_type: str | None) -> Any:
    if inspect.isawaitable(said):

        async def later() -> Any:
            return _with_type(await said, media_type)

        return later()
    if media_type is None or type(said) is not Allow or not isinstance(said.value, (str, bytes)):
        return said
    raw = said.value.encode() if isinstance(said.value, str) else said.value
    return Allow(Encoded(raw, media_type), said.why)


def _in_thread(function: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    async def run(*args: Any) -> Any:
        # Boxed: an event loop has opinions about a coroutine that is an answer.
        (said,) = await anyio.to_thread.run_sync(lambda: (function(*args),), abandon_on_cancel=True)
        return await said if inspect.isawaitable(said) else said

    return run


class BoundRules(msgspec.Struct, frozen=True):
    """The rules of one boundary: their names in declared order, and the hooks of each moment in walking order."""

    names: tuple[str, ...]
    before: tuple[Hook, ...]
    after: tuple[Hook, ...]


def bind_rules(rules: Sequence[object]) -> BoundRules:
    """Check the rules and order their hooks: before the tool as declared, after it in reverse.

    Raises:
        ConfigurationError: naming ``rules[i]`` that has no name or no hook.
    """
    names: list[str] = []
    before: list[Hook] = []
    after: list[Hook] = []
    for index, rule in enumerate(rules):
        name = getattr(rule, "name", None)
        if isinstance(rule, type):
            raise ConfigurationError(
                f"rules[{index}] is the class {rule.__name__}; pass an instance: {rule.__name__}()"
            )
        if inspect.isroutine(rule):
            raise ConfigurationError(
                f"rules[{index}] is the plain function {rule.__name__}: decorate it with @before_tool or @after_tool"
            )
        if not isinstance(name, str) or not name.strip():
            raise ConfigurationError(
                f"rules[{index}] ({type(rule).__name__}) has no name; decorate a function with @before_tool "
                "or @after_tool, or give the object a name"
            )
        thread, streams = bool(getattr(rule, "thread", False)), bool(getattr(rule, "streams", False))
        on_call, on_result, on_chunk = (getattr(rule, f"{moment}", None) for moment in _MOMENTS)
        for hook in (on_call, on_result, on_chunk):
            if hook is not None and not callable(hook):
                raise ConfigurationError(f"rules[{index}] ({name}): its hook {hook!r:.80} cannot be called")
        if on_call is None and on_result is None and on_chunk is None:
            raise ConfigurationError(f"rules[{index}] ({name}) has none of the hooks {', '.join(_MOMENTS)}")
        if streams and (on_result is None or on_chunk is not None):
            raise ConfigurationError(
                f"rules[{index}] ({name}): streams=True is for a rule with after_tool and without after_chunk"
            )
        if on_call is not None:
            before.append(Hook(name, index, on_call, thread=thread))
        if on_result is not None:
            after.append(Hook(name, index, on_result, thread=thread, chunk=on_chunk, streams=streams))
        elif on_chunk is not None:
            after.append(Hook(name, index, _as_one_piece(on_chunk), thread=thread, chunk=on_chunk))
        names.append(name)
    return BoundRules(tuple(names), tuple(before), tuple(reversed(after)))
