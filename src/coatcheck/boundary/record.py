"""What a session keeps, as bytes: its state for the next replica, and its record for whoever keeps books."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from coatcheck.decision import Decision, Fingerprint
from coatcheck.effects.repeats import Landing
from coatcheck.effects.state import TurnState
from coatcheck.errors import RenderingError
from coatcheck.results.conversion import canonical
from coatcheck.results.envelope import Encoded
from coatcheck.results.reading import Declared
from coatcheck.scope import Scope

__all__ = ["SealedSession", "SessionState", "fact_to_write", "record_lines", "row_again", "row_to_write"]


class SessionState(msgspec.Struct, frozen=True):
    """All that `Session.to_bytes` keeps."""

    scope: Scope
    turn: int
    decisions: tuple[Decision, ...]
    declared: tuple[Declared, ...]
    run: TurnState = TurnState()
    landings: tuple[Landing, ...] = ()


class SealedSession(msgspec.Struct, frozen=True):
    """A `SessionState` as JSON, and what proves that nobody changed it."""

    state: msgspec.Raw
    seal: bytes = b""


class _Value(msgspec.Struct, frozen=True):
    """A value on the ledger, written so that none can be taken for a fingerprint."""

    value: Any


# Each value is made canonical by itself: it was delivered once, so it can be, and it stands no deeper than it did.
def row_to_write(row: Decision) -> Decision:
    """A row as JSON carries it, whatever a rule had changed; `row_again` undoes that."""
    return msgspec.structs.replace(row, before=_to_write(row.before), after=_to_write(row.after))


def fact_to_write(fact: Declared) -> Declared:
    """A fact as JSON carries it, whatever its lists hold."""
    names = ("checked", "not_checked", "cannot_cover")
    return msgspec.structs.replace(fact, **{name: tuple(map(_writable, getattr(fact, name))) for name in names})


def _writable(value: Any) -> Any:
    """The value as JSON carries it; a sentence in the place of one that was changed since it was delivered."""
    if isinstance(value, Encoded):
        value = value.raw.decode(errors="replace")
    try:
        return canonical(value)
    except RenderingError as error:
        return f"[a value that JSON cannot carry any more: {error.problem}]"


def _to_write(kept: Any) -> Any:
    return kept if kept is None or isinstance(kept, Fingerprint) else _Value(_writable(kept))


def row_again(row: Decision) -> Decision:
    """A row as it was before `row_to_write`."""
    return msgspec.structs.replace(row, before=_again(row.before), after=_again(row.after))


def _again(written: Any) -> Any:
    if written is None:
        return None
    return written["value"] if "value" in written else msgspec.convert(written, Fingerprint)


def record_lines(decisions: Iterable[Decision], declared: Iterable[Declared]) -> str:
    """The ledger and the declared facts as JSON Lines, in this order; ``record`` says which of the two a line is."""
    lines: list[Any] = [{"record": "decision", **_plain(row_to_write(row))} for row in decisions]
    lines += [{"record": "declared", **_plain(fact_to_write(fact))} for fact in declared]
    return "".join(msgspec.json.encode(line).decode() + "\n" for line in lines)


def _plain(record: Decision | Declared) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(record)
    return fields
