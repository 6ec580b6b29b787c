"""One tool call, as the rules and the middlewares see it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

__all__ = ["ToolCall", "read_arguments"]


class ToolCall(msgspec.Struct, frozen=True):
    """One call that a model asked for.

    Attributes:
        name: the tool's name, as the model spoke it; it may be unknown.
        arguments: the arguments. Do not change them in place: a rule that wants other arguments answers
            ``allow(value, why)``, so that the change is on the ledger.
        call_id: the provider's id for this call, or ``None``. It is carried, never interpreted: no
            file name and no key is ever made of it.
    """

    name: str
    arguments: dict[str, Any] = {}
    call_id: str | None = None


def read_arguments(arguments: object) -> dict[str, Any] | str:
    """The arguments as a dict, or what is wrong with them.

    Args:
        arguments: a mapping; the JSON text that the model spoke, as ``str`` or ``bytes``; nothing at all
            (``None``, or an empty text), which providers send for a tool without arguments.
    """
    if isinstance(arguments, Mapping):
        return arguments if type(arguments) is dict else dict(arguments)
    if arguments is None:
        return {}
    if not isinstance(arguments, (str, bytes, bytearray)):
        return f"they are of type {type(arguments).__name__}"
    if not arguments:
        return {}
    try:
        decoded = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        return str(error)
    return decoded if isinstance(decoded, dict) else f"they are a JSON {_JSON_NAMES.get(type(decoded), 'number')}"


_JSON_NAMES = {list: "array", str: "string", bool: "boolean", type(None): "null"}
