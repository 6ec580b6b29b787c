"""How the reference's vectors are read: one JSON object a line, with tagged forms for what JSON cannot spell.

The forms are those of the vectors' own README: an object with exactly one key that starts with ``$``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

VECTORS = Path(__file__).parent / "vectors"


class Undefined:
    """JavaScript's ``undefined``: "not given" in Python, never ``None``."""

    def __repr__(self) -> str:
        return "UNDEFINED"


UNDEFINED: Final = Undefined()


def load(name: str) -> list[dict[str, Any]]:
    """Every vector of ``vectors/<name>.shared.jsonl``, in file order, tagged forms still in place."""
    text = (VECTORS / f"{name}.shared.jsonl").read_text(encoding="ascii")
    return [json.loads(line) for line in text.splitlines() if line]


def untag(value: Any) -> Any:
    """``value`` with every tagged form, at any depth, replaced by what it stands for."""
    if isinstance(value, list):
        return [untag(item) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        [(tag, argument)] = value.items()
        if tag in _FORMS:
            return _FORMS[tag](argument)
        if tag.startswith("$"):
            raise ValueError(f"{tag} is no form of the vectors")
    return {key: untag(item) for key, item in value.items()}


def _list(argument: list[Any]) -> list[Any]:
    item, times = argument
    return [untag(item) for _ in range(times)]


_FORMS: dict[str, Callable[[Any], Any]] = {
    "$rep": lambda argument: argument[0] * argument[1],
    "$cat": lambda argument: "".join(untag(part) for part in argument),
    # Lone surrogates stay what they are; pairs become one character.
    "$utf16": lambda units: b"".join(unit.to_bytes(2, "little") for unit in units).decode("utf-16-le", "surrogatepass"),
    "$list": _list,
    "$rows": lambda count: [{"id": index, "name": f"row-{index}"} for index in range(count)],
    "$nulldict": lambda argument: {key: untag(item) for key, item in argument.items()},
    "$bytes": bytes,
    "$nan": lambda _: float("nan"),
    "$inf": lambda _: float("inf"),
    "$undef": lambda _: UNDEFINED,
}
