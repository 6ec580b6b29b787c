"""A tool: an ordinary function, with what only its author knows about it.

The name, the description and the JSON schema are read off the signature; msgspec converts and checks the
arguments. The function stays callable as it was.
"""

from __future__ import annotations

import copy
import functools
import inspect
import re
import typing
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import timedelta
from typing import Any, Generic, Literal, ParamSpec, TypeVar, overload

import msgspec

from coatcheck.boundary.context import ToolContext
from coatcheck.boundary.wants import Want, bare, check_wants, ref_hint, spoken_name
from coatcheck.errors import ConfigurationError
from coatcheck.results.search import Search, check_search
from coatcheck.settings import check_duration, check_whole
from coatcheck.steps.ceiling import Ceiling

__all__ = ["MAX_NAME_CHARS", "ReaderRole", "Tool", "as_tool", "tool"]

P = ParamSpec("P")
R = TypeVar("R")

MAX_NAME_CHARS = 128

ReaderRole = Literal["read", "search", "query"]
"""What a tool that reads refs back does: pages through one, finds something in it, or asks it something."""


class Tool(Generic[P, R]):
    """A function and its declarations. Made by `tool`; calling it calls the function.

    Attributes:
        name, description: what the model is told.
        parameters: the JSON schema of the arguments.
        ceiling: the author's limit on the result, or ``None``.
        kind: the kind under which a placed result is stored, or ``None`` for ``tool-result/<name>``.
        timeout: seconds that one execution may take, or ``None``.
        idle_timeout: seconds that may pass between two pieces of a streamed result, or ``None``.
        concurrency: how many executions may run at once, or ``None``.
        foreign: the result is relayed from elsewhere and has no authority.
        search: what it searches, for absences that say by themselves where they looked, or ``None``.
        wants: the arguments that are refs, and what the tool takes in their place.
        reader: what it does with refs, where it reads them back for the model, or ``None``.
        answers_within: no text of its is longer, in characters, as far as it says so, or ``None``.
        context: the parameter for which it asks its `ToolContext`, or ``None``.
        function: the function itself.
        takes_arguments: whether it has parameters of its own.
        is_plain: whether it takes nothing but what the model speaks.
        takes_in_order: whether the function takes all of them in their order, which costs less than by name.
        is_async: whether `run` gives what is to be awaited; any other function runs in a worker thread.
        run: the function as an execution calls it.
    """

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str | None = None,
        description: str | None = None,
        ceiling: Ceiling | None = None,
        kind: str | None = None,
        timeout: float | timedelta | None = None,
        idle_timeout: float | timedelta | None = None,
        concurrency: int | None = None,
        foreign: bool = False,
        search: Search | None = None,
        wants: Mapping[str, str] | None = None,
        reader: ReaderRole | None = None,
        answers_within: int | None = None,
    ) -> None:
        if not callable(function):
            raise ConfigurationError(f"a tool must be a function, not {function!r:.80}")
        self.name: str = _checked_name(getattr(function, "__name__", None) if name is None else name, function)
        self.description: str = (
            inspect.cleandoc(_unbound(function).__doc__ or "") if description is None else description
        )
        if ceiling is not None and not isinstance(ceiling, Ceiling):
            raise ConfigurationError(f"tool {self.name}: ceiling must be a Ceiling(max_chars=...), not {ceiling!r:.80}")
        self.ceiling = ceiling
        self.kind: str | None = None if kind is None else _checked_word(f"tool {self.name}: kind", kind)
        self.timeout: float | None = None if timeout is None else check_duration(f"tool {self.name}: timeout", timeout)
        self.idle_timeout: float | None = (
            None if idle_timeout is None else check_duration(f"tool {self.name}: idle_timeout", idle_timeout)
        )
        self.concurrency: int | None = (
            None if concurrency is None else check_whole(f"tool {self.name}: concurrency", concurrency)
        )
        if not isinstance(foreign, bool):
            raise ConfigurationError(f"tool {self.name}: foreign must be True or False, not {foreign!r:.80}")
        self.foreign = foreign
        self.function = function
        self.is_async: bool = _is_async(function)
        self.run: Callable[..., Any] = function
        if not self.is_async and _is_generator(function):  # calling it runs nothing yet
            self.is_async, self.run = True, _in_time(function)
        if reader not in (None, *typing.get_args(ReaderRole)):
            raise ConfigurationError(
                f"tool {self.name}: reader must be 'read', 'search' or 'query', not {reader!r:.80}"
            )
        self.reader: ReaderRole | None = reader
        self.answers_within: int | None = (
            None if answers_within is None else check_whole(f"tool {self.name}: answers_within", answers_within)
        )
        hints = _readable_hints(self.name, function)
        if next(iter(hints), None) == "self":
            raise ConfigurationError(
                f"tool {self.name} takes self: make the tool of a bound method, tool(it.{self.name})"
            )
        self.context: str | None = _context_of(self.name, function, hints)
        named = [each.name for each in _named(function) if each.name != self.context]
        self.wants: Mapping[str, Want] = check_wants(self.name, wants, hints, named)
        self.arguments_type: type[msgspec.Struct]
        self.arguments_type, self._takes_any = _arguments_type(self.name, function, hints, self.context, self.wants)
        self.parameters: dict[str, Any] = _schema(self.name, self.arguments_type, self._takes_any)
        self._names = self.arguments_type.__struct_fields__
        self.search: Search | None = check_search(self.name, search, None if self._takes_any else self._names)
        self.takes_arguments: bool = bool(self._names)
        self._leaves_out = msgspec.UNSET in self.arguments_type.__struct_defaults__
        self._has_mappings = _has_mappings(self.parameters)
        self.is_plain: bool = self.context is None and not self.wants
        self.takes_in_order: bool = self.is_plain and not (self._takes_any or self._leaves_out or _differs(function))
        functools.update_wrapper(self, function, updated=())  # its attributes are no declarations

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself: no boundary, no chain."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"Tool({self.name!r})"

    def renamed(self, names: Mapping[str, str]) -> Tool[P, R]:
        """The same tool where some are called otherwise: ``names`` says by the old name what each is called."""
        other = copy.copy(self)
        other.name = _checked_name(names.get(self.name, self.name), self.function)
        for old, new in names.items():
            other.description = re.sub(rf"\b{re.escape(old)}\b", new, other.description)
        return other

    def convert(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Check ``arguments`` against the signature, and return them as the function takes them.

        Raises:
            msgspec.ValidationError: naming the path of what is wrong (``$.limit``).
        """
        if self._takes_any:  # what is not a parameter of its own passes through
            own = {*self._names, *self.arguments_type.__struct_encode_fields__}
            named = {name: item for name, item in arguments.items() if name in own}
            return {name: item for name, item in arguments.items() if name not in own} | self._given(named)
        return self._given(arguments)

    def convert_in_order(self, arguments: dict[str, Any]) -> tuple[Any, ...]:
        """As `convert`, but in the order of the parameters; what is left out is there as ``msgspec.UNSET``."""
        try:
            if self._has_mappings:  # in JSON their keys are text, whatever the signature says
                checked = msgspec.convert(arguments, self.arguments_type, str_keys=True)
            else:
                checked = msgspec.convert(arguments, self.arguments_type)
        except (UnicodeEncodeError, RecursionError) as error:  # a name it cannot spell, a value nested too deeply
            raise msgspec.ValidationError(f"Arguments that JSON cannot carry ({error!a:.80})") from None
        return msgspec.structs.astuple(checked)

    def _given(self, arguments: dict[str, Any]) -> dict[str, Any]:
        fields = dict(zip(self._names, self.convert_in_order(arguments), strict=True))
        if self._leaves_out:
            return {name: item for name, item in fields.items() if item is not msgspec.UNSET}
        return fields


@overload
def tool(function: Callable[P, R], /) -> Tool[P, R]: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    ceiling: Ceiling | None = None,
    kind: str | None = None,
    timeout: float | timedelta | None = None,
    idle_timeout: float | timedelta | None = None,
    concurrency: int | None = None,
    foreign: bool = False,
    search: Search | None = None,
    wants: Mapping[str, str] | None = None,
    reader: ReaderRole | None = None,
    answers_within: int | None = None,
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...
def tool(
    function: Callable[P, R] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    ceiling: Ceiling | None = None,
    kind: str | None = None,
    timeout: float | timedelta | None = None,
    idle_timeout: float | timedelta | None = None,
    concurrency: int | None = None,
    foreign: bool = False,
    search: Search | None = None,
    wants: Mapping[str, str] | None = None,
    reader: ReaderRole | None = None,
    answers_within: int | None = None,
) -> Tool[P, R] | Callable[[Callable[P, R]], Tool[P, R]]:
    """Make a tool of a function, and declare what only its author knows.

    Args:
        function: sync or async. A sync one runs in a worker thread. It may be a generator, or return an iterator: then
            its result is a stream (see `coatcheck.Stream`).
        name: what the model calls it; the function's name by default.
        description: what the model is told; the docstring by default.
        ceiling: the largest result that the author is willing to return.
        kind: the kind under which a placed result is stored, for tools that want it.
        timeout: how long one execution may take, in seconds or as a `timedelta`; of a stream, the whole of it.
        idle_timeout: how long a streamed result may keep its reader waiting for the next piece.
        concurrency: how many executions may run at once on one boundary.
        foreign: True for a tool that merely relays what somebody else wrote: no envelope in its result is
            recognised, so it delivers no effects and no status (law: `design.md` section 3, parting 10).
        search: what the tool searches; ``absent()`` may then be left without ``checked`` (see `Search`).
        wants: the arguments in which the model speaks a ref, by the kind that the artifact has to have; the function
            is handed what its annotation asks for: the decoded value, `bytes`, `str`, a `Path` (a private file that is
            gone after the call) or an `ArtifactReader`.
        reader: what it does for the model with refs; its results are never placed, and tickets name it.
        answers_within: how many characters a text of the tool has at most, for one that keeps a bound of its own: a
            boundary whose truncation would cut it all the same is refused.

    Raises:
        ConfigurationError: naming the tool and the setting or parameter that cannot be honoured.
    """

    def make(function: Callable[P, R]) -> Tool[P, R]:
        return Tool(
            function,
            name=name,
            description=description,
            ceiling=ceiling,
            kind=kind,
            timeout=timeout,
            idle_timeout=idle_timeout,
            concurrency=concurrency,
            foreign=foreign,
            search=search,
            wants=wants,
            reader=reader,
            answers_within=answers_within,
        )

    return make if function is None else make(function)


def as_tool(candidate: object, where: str) -> Tool[..., Any]:
    """A `Tool` as it is; a plain function as a tool without declarations.

    Raises:
        ConfigurationError: naming ``where`` it stood, for anything else.
    """
    if isinstance(candidate, Tool):
        return candidate
    if callable(candidate) and not isinstance(candidate, type):
        if getattr(candidate, "__module__", None) == "coatcheck.readers.tools":
            raise ConfigurationError(f"{where} is the function that makes the readers: call it, [*readers.tools()]")
        return Tool(candidate)
    raise ConfigurationError(f"{where} must be a function or a @tool, not {candidate!r:.80}")


def _checked_name(name: object, function: object) -> str:
    if not isinstance(name, str) or not name.strip():
        raise ConfigurationError(f"the tool {function!r:.80} has no name; give it one: @tool(name=...)")
    if name == "<lambda>":
        raise ConfigurationError("a lambda has no name; give the tool one: tool(name=...)(lambda ...)")
    _checked_word(f"the tool name {name[:80]!r}", name)
    return name


def _checked_word(setting: str, word: object) -> str:
    """Names and kinds stand in tickets: short, printable, and nothing that JSON must escape."""
    if not isinstance(word, str) or not word.strip():
        raise ConfigurationError(f"{setting} must be text that is not blank, not {word!r:.80}")
    if len(word) > MAX_NAME_CHARS:
        raise ConfigurationError(f"{setting} has {len(word)} characters; at most {MAX_NAME_CHARS} fit into a ticket")
    if not word.isprintable() or '"' in word or "\\" in word:
        raise ConfigurationError(f"{setting} holds a quote, a backslash or a character that cannot be printed")
    return word


def _is_async(function: object) -> bool:
    call = getattr(function, "__call__", None)  # noqa: B004 - an object whose __call__ is a coroutine function counts
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def _is_generator(function: object) -> bool:
    call = getattr(_unbound(function), "__call__", None)  # type: ignore[arg-type]  # noqa: B004 - as above
    return any(
        kind(each) for each in (function, call) for kind in (inspect.isasyncgenfunction, inspect.isgeneratorfunction)
    )


def _in_time(function: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
    """A generator function as one that is awaited like every other."""

    async def start(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return start


def _unbound(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function behind `functools.partial`, whose types and words are those of the tool."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _readable_hints(name: str, function: Callable[..., Any]) -> dict[str, Any]:
    """The types of the parameters, `Any` where there is none."""
    try:
        signature = inspect.signature(function)
        target = _unbound(function)
        target = target if inspect.isroutine(target) or inspect.isclass(target) else type(target).__call__
        hints = _hints(inspect.unwrap(target))
    except (TypeError, ValueError, NameError) as error:
        raise ConfigurationError(f"tool {name}: its signature cannot be read ({error})") from error
    return {parameter: hints.get(parameter, Any) for parameter in signature.parameters}


def _named(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters that can be given by name, each alone."""
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [each for each in inspect.signature(function).parameters.values() if each.kind in by_name]


def _context_of(name: str, function: Callable[..., Any], hints: Mapping[str, Any]) -> str | None:
    asking = [parameter for parameter, hint in hints.items() if bare(hint) is ToolContext]
    if len(asking) > 1:
        raise ConfigurationError(f"tool {name}: {' and '.join(asking)} are each a ToolContext; one is enough")
    if asking and asking[0] not in {each.name for each in _named(function)}:
        raise ConfigurationError(
            f"tool {name}: {asking[0]}, its ToolContext, must be a parameter that is given by name"
        )
    return asking[0] if asking else None


def _arguments_type(
    name: str, function: Callable[..., Any], hints: Mapping[str, Any], context: str | None, wants: Mapping[str, Want]
) -> tuple[type[msgspec.Struct], bool]:
    """A struct with one field a parameter, and whether the function takes any further keyword."""
    fields: list[Any] = []
    spoken: dict[str, str] = {}
    takes_any = False
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == context:
            continue
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            takes_any = True
            continue
        if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY):
            raise ConfigurationError(
                f"tool {name}: the parameter {parameter.name!r} is positional only; a model names its arguments"
            )
        if spoken_name(parameter.name) != parameter.name:
            spoken[parameter.name] = spoken_name(parameter.name)
        want = wants.get(parameter.name)
        hint = hints[parameter.name] if want is None else ref_hint(want)
        if parameter.default is None:
            hint = hint | None
        if parameter.default is inspect.Parameter.empty:
            fields.append((parameter.name, hint))
        elif parameter.default is None or (want is None and type(parameter.default) in (bool, int, float, str)):
            fields.append((parameter.name, hint, parameter.default))
        else:  # the function has its default itself: a value left out stays left out
            fields.append((parameter.name, hint | msgspec.UnsetType, msgspec.UNSET))
    try:
        struct = msgspec.defstruct(
            f"{name}_arguments", fields, kw_only=True, forbid_unknown_fields=True, rename=spoken or None
        )
        msgspec.json.Decoder(struct)
    except (TypeError, ValueError, NameError) as error:
        raise _untakable(name, fields, error) from error
    return struct, takes_any


def _untakable(name: str, fields: Sequence[Any], error: Exception) -> ConfigurationError:
    """The error for parameters of which one has a type that cannot be read from JSON, naming the first of them."""
    for parameter, hint, *_ in fields:
        try:
            msgspec.json.schema(hint)
            msgspec.json.Decoder(hint)
        except (TypeError, ValueError, NameError):
            return ConfigurationError(
                f"tool {name}: the parameter {parameter!r} has the type {hint!r:.100}, which is not read from "
                "JSON here: take plain types, an enum, a dataclass, a TypedDict or a msgspec.Struct"
            )
    return ConfigurationError(f"tool {name}: its parameters have a type that JSON cannot carry ({error})")


def _hints(function: Any) -> dict[str, Any]:
    """The types of the parameters; that of what is returned is nobody's business here, and may not resolve."""
    annotations = {name: hint for name, hint in inspect.get_annotations(function).items() if name != "return"}
    shim = type("Parameters", (), {"__annotations__": annotations, "__module__": getattr(function, "__module__", "")})
    return typing.get_type_hints(shim, globalns=getattr(function, "__globals__", None), include_extras=True)


def _has_mappings(schema: dict[str, Any]) -> bool:
    """Whether any parameter may be a mapping: where in doubt, yes."""
    return b'"object"' in msgspec.json.encode((schema["properties"], schema.get("$defs")))


def _differs(function: Callable[..., Any]) -> bool:
    """Whether the function may take its arguments in another order than its signature says, or by name alone."""
    target = _unbound(function)
    for each in (function, target, type(target).__call__):
        if hasattr(each, "__wrapped__") or hasattr(each, "__signature__"):
            return True
    return any(each.kind is inspect.Parameter.KEYWORD_ONLY for each in inspect.signature(function).parameters.values())


def _schema(name: str, arguments_type: type[msgspec.Struct], takes_any: bool) -> dict[str, Any]:
    try:
        (schema,), components = msgspec.json.schema_components([arguments_type], ref_template="#/$defs/{name}")
    except TypeError as error:
        fields = [(each.name, each.type) for each in msgspec.structs.fields(arguments_type)]
        raise _untakable(name, fields, error) from error
    own: dict[str, Any] = components.pop(str(schema["$ref"]).rpartition("/")[2])
    own.pop("title", None)
    own["additionalProperties"] = takes_any
    if components:
        own["$defs"] = components
    return own
