"""``coatcheck schema``: the JSON Schema of what this library writes for other programs."""

from __future__ import annotations

from typing import Annotated, Any, get_args

import msgspec
import typer

import coatcheck as cc
from coatcheck.artifacts.findings import Finding
from coatcheck.artifacts.usage import Usage
from coatcheck.cli.edge import command
from coatcheck.cli.exec import Report
from coatcheck.cli.lineage import Ancestor
from coatcheck.cli.output import write
from coatcheck.cli.store import Verdict
from coatcheck.errors import ConfigurationError

__all__ = ["make_schema", "schema"]

_GROUPS: dict[str, tuple[type, ...]] = {
    "Event": get_args(cc.AnyEvent),
    "Outcome": get_args(cc.AnyOutcome),
    "Decision": (cc.Decision,),
    "Declared": (cc.Declared,),
    "Turn": (cc.Turn,),
    "Ticket": (cc.Ticket,),
    "Command": (Report, Verdict, Usage, Finding, Ancestor, cc.ArtifactMeta, cc.Swept),
}
"""What is described. A group of several types has a definition of its own, as any one of them."""


class Blob(msgspec.Struct):
    """Binary that travels beside an outcome's text; ``data`` is base64."""

    media_type: str
    data: bytes
    path: str = "$"
    original: str = ""


@command()
async def schema(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="One type, for example Ticket.", show_default=False)
    ] = None,
) -> int:
    """Print the JSON Schema of events, outcomes, decisions and tickets, and of what the commands print with --json.

    Exit codes: 0 done, 2 there is no type of that name.
    """
    write(msgspec.json.format(msgspec.json.encode(make_schema(name)), indent=2) + b"\n")
    return 0


def make_schema(name: str | None = None) -> dict[str, Any]:
    """One JSON document: all types, or the one of that name and what it is made of.

    Raises:
        ConfigurationError: there is no type of that name.
    """
    types = [_describable(type_) for group in _GROUPS.values() for type_ in group]
    _, definitions = msgspec.json.schema_components(types, ref_template="#/$defs/{name}")
    for group, members in _GROUPS.items():
        if len(members) > 1:
            definitions[group] = {"anyOf": [_ref(member.__name__) for member in members]}
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    if name is None:
        return {**head, "title": "coatcheck", "anyOf": [_ref(group) for group in _GROUPS], "$defs": definitions}
    if name not in definitions:
        raise ConfigurationError(f"schema has no type {name[:64]!r}; it has {', '.join(sorted(definitions))}")
    return {**head, **_ref(name), "$defs": {each: definitions[each] for each in _reachable(name, definitions)}}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/$defs/{name}"}


def _describable(struct: type) -> type:
    """An outcome with its binary as JSON has it: base64, whatever it was before; anything else as it is."""
    if not issubclass(struct, cc.Outcome):
        return struct
    fields: list[Any] = [
        (field.name, tuple[Blob, ...], ()) if field.name == "content" else _field(field)
        for field in msgspec.structs.fields(struct)
    ]
    return msgspec.defstruct(struct.__name__, fields, kw_only=True, namespace={"__doc__": struct.__doc__})


def _field(field: msgspec.structs.FieldInfo) -> tuple[Any, ...]:
    return (field.name, field.type) if field.required else (field.name, field.type, field.default)


def _reachable(name: str, definitions: dict[str, Any]) -> list[str]:
    """The type and all that it refers to, sorted."""
    found, waiting = {name}, [definitions[name]]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            target = str(part.get("$ref", "")).removeprefix("#/$defs/")
            if target in definitions and target not in found:
                found.add(target)
                waiting.append(definitions[target])
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part
    return sorted(found)
