"""A declared search: a tool says once what it searches, and its absences say where they looked by themselves.

    @cc.tool(search=cc.Search(
        covers=["the live orders table"],
        arguments={"customer": "customer", "since": "placed on or after"},
        defaults={"since": "30 days ago"},
    ))
    async def find_orders(customer: str, since: str | None = None) -> object:
        rows = ...
        return rows or cc.absent(what=f"orders of {customer}")

In such a tool ``absent()`` is left without ``checked``, and the library composes it: first what every call covers,
then one item an argument, with ``set_by`` beside its ``what``: ``argument`` where the call set it, ``default`` where
the call left it out and the tool declares a default. An argument that was left out and has no default narrows nothing,
and has no item. The note says that a default may have narrowed the search.

An item that an argument set quotes the caller. It is on the record and in what the model reads, and it is evidence of
nothing (`coatcheck.results.evidence`): who asks for an invented name has not shown that there is one.

An empty list is never turned into an absence: only the tool knows that it looked.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from coatcheck.errors import ConfigurationError, DeclarationError
from coatcheck.results.absence import UnfinishedAbsence, compose_absence
from coatcheck.results.coverage import COVERAGE_MARKER
from coatcheck.results.items import SET_BY, Items, mint_items
from coatcheck.results.notes import ABSENCE_NOTE_COMPOSED
from coatcheck.results.shapes import clip, is_object, is_text, legible, quote

__all__ = ["Search", "check_search", "compose_checked", "finish", "keep_arguments"]

MAX_SPELLED_CHARS = 120


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """What a tool searches, for absences that say where they looked. Declared as ``@tool(search=...)``.

    Args:
        covers: the ground that every call covers: a list of items, as in ``absent(checked=...)``; not empty.
        arguments: for each argument that narrows the search, what it sets, in words. An argument that is no business
            of whoever reads the answer is left out.
        defaults: for an argument among ``arguments``, what applies where a call leaves it out: words, a number, a bool.
        cannot_cover: ground that no call ever covers; each item says why.

    Raises:
        ConfigurationError: naming the field that cannot be honoured.
    """

    covers: Items
    arguments: Mapping[str, str] = {}
    defaults: Mapping[str, str | int | float | bool] = {}
    cannot_cover: Items = ()

    def __post_init__(self) -> None:
        """Refuse what could not be composed, and keep copies that nobody else can change."""
        try:
            covers = mint_items("covers", self.covers, kind=False)
            beyond = mint_items("cannot_cover", self.cannot_cover, why=True)
        except DeclarationError as error:
            raise ConfigurationError(f"Search.{str(error).removeprefix('refused: ')}") from None
        if not covers:
            raise ConfigurationError("Search.covers must hold at least one item that says what every call covers")
        for name in ("arguments", "defaults"):
            said = getattr(self, name)
            if not isinstance(said, Mapping):
                raise ConfigurationError(f"Search.{name} must map names of arguments to words, not {said!r:.80}")
            for argument, words in said.items():
                number = name == "defaults" and type(words) in (int, float, bool) and math.isfinite(words)
                if not (number or (is_text(words) and words.strip())):
                    raise ConfigurationError(
                        f"Search.{name}[{argument!r:.80}] must be text that is not blank, not {words!r:.80}"
                    )
        for argument in self.defaults:
            if argument not in self.arguments:
                raise ConfigurationError(f"Search.defaults[{argument!r:.80}] is not among Search.arguments")
        kept = {
            "covers": tuple(covers),
            "arguments": dict(self.arguments),
            "defaults": dict(self.defaults),
            "cannot_cover": tuple(beyond),
        }
        for name, value in kept.items():
            msgspec.structs.force_setattr(self, name, value)


def check_search(tool: str, search: object, parameters: Collection[str] | None) -> Search | None:
    """Check a search against the tool that declares it.

    Args:
        tool: the tool's name, for the sentence.
        search: what was declared; ``None`` is none.
        parameters: the names of the tool's arguments; ``None`` where it takes any.

    Raises:
        ConfigurationError: naming the tool and the argument that it does not have.
    """
    if search is None:
        return None
    if not isinstance(search, Search):
        raise ConfigurationError(f"tool {tool}: search must be a Search, not {search!r:.80}")
    for argument in search.arguments:
        if parameters is not None and argument not in parameters:
            names = ", ".join(parameters) or "none"
            raise ConfigurationError(
                f"tool {tool}: Search.arguments[{argument!r:.80}] is no argument of it; it takes: {names}"
            )
    return search


class _Spelled(msgspec.Struct, frozen=True):
    """The value of an argument, spelled before the tool could change it."""

    text: str


def keep_arguments(search: Search | None, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments of a call as `finish` needs them, to be taken before it runs: a tool may change them in place.

    Args:
        search: what the tool declares; without one nothing is kept.
        arguments: those that the tool is called with.
    """
    if search is None:
        return {}
    found = {name: arguments[name] for name in search.arguments if name in arguments}
    return {name: None if value is None else _Spelled(_spelled(value)) for name, value in found.items()}


def compose_checked(search: Search, arguments: Mapping[str, Any]) -> list[dict[str, str]]:
    """The ground that one call of a declared search covered, as it goes on the wire.

    Args:
        search: what the tool declares.
        arguments: those that the tool was called with, maybe as `keep_arguments` took them; ``None`` is left out.

    Returns:
        Fresh dicts: what every call covers, then one for each argument that was set, or has a default.
    """
    checked = mint_items("covers", search.covers)
    for argument, sets in search.arguments.items():
        set_by, value = "argument", arguments.get(argument)
        if value is None:
            set_by, value = "default", search.defaults.get(argument)
            spelled = value if is_text(value) else _spelled(value)
        else:
            spelled = _spelled(value)
        if value is not None:
            checked.append({"what": f"{sets.strip()}: {spelled.strip()}", SET_BY: set_by})
    return checked


def finish(value: Any, search: Search | None, arguments: Mapping[str, Any]) -> Any:
    """Finish the absence that a tool returned without saying where it looked, directly or directly within a ledger.

    Args:
        value: what the tool returned, after any envelope was unwrapped.
        search: what the tool declares, if it declares a search.
        arguments: those that the tool was called with, as `keep_arguments` took them before it ran.

    Returns:
        The finished absence, or a copy of the ledger around it; every other value as it is.

    Raises:
        DeclarationError: where there is one to finish and no search that says how.
    """
    if type(value) is UnfinishedAbsence:
        if search is None:
            raise value.refusal()
        return _finished(value, search, arguments)
    if type(value) is dict and type(value.get("result")) is UnfinishedAbsence and is_object(value.get(COVERAGE_MARKER)):
        return {**value, "result": finish(value["result"], search, arguments)}
    return value


def _finished(value: UnfinishedAbsence, search: Search, arguments: Mapping[str, Any]) -> dict[str, Any]:
    said = value.parts
    parts = {"looked_for": said.pop("looked_for"), "checked": compose_checked(search, arguments)}
    if "not_checked" in said:
        parts["not_checked"] = said.pop("not_checked")
    beyond = [*said.pop("cannot_cover", ()), *mint_items("cannot_cover", search.cannot_cover)]
    if beyond:
        parts["cannot_cover"] = beyond
    return compose_absence({**parts, **said}, ABSENCE_NOTE_COMPOSED)


def _spelled(value: object) -> str:
    """The value of an argument on one bounded line."""
    if type(value) is _Spelled:
        return value.text
    if is_text(value):
        return quote(value, MAX_SPELLED_CHARS)
    try:
        spelled = msgspec.json.encode(value).decode()
    except Exception:  # noqa: BLE001 - a host may call with what JSON cannot carry; its type says enough here
        spelled = f"a {type(value).__name__}"
    return clip(legible(spelled), MAX_SPELLED_CHARS)
