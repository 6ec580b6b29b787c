"""The seven words that say how a result ended, a closed list.

A host routes on these words, so that it never has to read prose. A tool delivers one in its envelope; the
boundary delivers one of its own in exactly two cases: ``absent`` for an absence whose tool spelled no status, and
``invalid`` for a result over its author's ceiling. Denials and errors of the boundary carry none.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

from coatcheck.results.shapes import is_text

__all__ = ["STATUSES", "Status", "read_status"]

Status: TypeAlias = Literal["success", "failure", "denied", "invalid", "partial", "pending", "absent"]

STATUSES: tuple[Status, ...] = get_args(Status)

_WORDS: dict[str, Status] = {word: word for word in STATUSES}


def read_status(value: object) -> Status | None:
    """The status that the value spells, exactly: case and padding matter, and ``None`` is no status.

    Args:
        value: anything.

    Returns:
        One of the seven words as a plain ``str``, or ``None`` for everything else.
    """
    return _WORDS.get(value) if is_text(value) else None
