"""What the boundary hands the host for one call: a small closed family.

    Outcome
    ├── Inline      delivered: the model reads the value itself
    ├── Placed      delivered: the value is in the store, the model reads its ticket
    ├── Truncated   delivered: the model reads the head of it, and that it was cut
    ├── TooLarge    the author's ceiling refused the value; it exists nowhere any more
    ├── Denied      a rule (or a person) said no; ``executed`` tells whether the tool had run by then
    ├── Failed      the tool raised, ran out of time, was called wrongly, or returned what cannot be carried
    └── Pending     a rule asks a person; `Session.resume` goes on

A host matches on the class; a type checker sees that no case was forgotten.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar, TypeAlias, TypeVar, cast

import msgspec

from coatcheck.artifacts.ticket import Ticket
from coatcheck.call import ToolCall
from coatcheck.decision import Decision
from coatcheck.errors import ConfigurationError
from coatcheck.results.binary import Blob
from coatcheck.results.envelope import Malformed, ProposeTransition, RequireInstruction
from coatcheck.results.reading import Declared
from coatcheck.results.rendering import Rendered, render_text
from coatcheck.results.shapes import clip, legible
from coatcheck.results.status import Status
from coatcheck.scope import Scope

__all__ = [
    "AnyOutcome",
    "Denied",
    "Failed",
    "Inline",
    "Marker",
    "Outcome",
    "Pending",
    "PendingCall",
    "Placed",
    "TooLarge",
    "Truncated",
    "carried",
    "failed",
    "rendered_of",
    "settle",
    "size_of",
]


_SHOWN_CHARS = 60


class Outcome(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What every outcome says. Outcomes are values: a middleware that wants another one builds another one.

    Attributes:
        tool, call_id: the call.
        text: what the model reads, always a ``str``. Inside the chain a large text is decoded on first use.
        status: the delivered status, or ``None`` where neither the tool nor the boundary delivered one.
        executed: whether the tool ran. A tool that raised has run; so has one that an after-tool rule denied.
        cut: whether the text was cut by the last net.
        effects: the well-formed effects that the tool asked for, in its order.
        malformed: the effects that it asked for and got wrong; refused, never half applied.
        declared: what the tool declared about absence and coverage.
        decisions: this call's rows of the ledger, in the order they were made.
        notes: sentences to the model that were added to the text (refused effects).
        tickets: of everything that was stored for this call, a leaf's too.
        content: binary that travels beside the text.
    """

    error: ClassVar[bool] = False
    """True for `Failed`, and for nothing else."""

    held: ClassVar[Any]  # the slot behind `text`: see below

    tool: str
    call_id: str | None = None
    text: str
    status: Status | None = None
    executed: bool = False
    cut: bool = False
    effects: tuple[ProposeTransition | RequireInstruction, ...] = ()
    malformed: tuple[Malformed, ...] = ()
    declared: tuple[Declared, ...] = ()
    decisions: tuple[Decision, ...] = ()
    notes: tuple[str, ...] = ()
    tickets: tuple[Ticket, ...] = ()
    content: tuple[Blob, ...] = ()

    def __repr__(self) -> str:
        """Which outcome of which call; a short head of the text, because a value of 10 MB is of no use in a log."""
        shown = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"{type(self).__name__}({shown})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        head = self.held[: _SHOWN_CHARS + 1] if isinstance(self.held, str) else self.held.head(_SHOWN_CHARS + 1)
        return [
            ("tool", clip(self.tool, _SHOWN_CHARS)),
            ("call_id", None if self.call_id is None else clip(self.call_id, _SHOWN_CHARS)),
            ("status", self.status),
            ("size", size_of(self)),
            ("text", clip(head, _SHOWN_CHARS)),
        ]


class Inline(Outcome, frozen=True, kw_only=True, eq=False):
    """The model reads the value itself. ``value`` is what the tool returned, by reference, after any envelope."""

    value: Any


class Placed(Outcome, frozen=True, kw_only=True, eq=False):
    """The value is in the store; ``text`` is the ``ticket`` as JSON."""

    ticket: Ticket


class Marker(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the model reads in place of a text that was cut; valid JSON for every limit.

    Attributes:
        truncated: always True; what a reader branches on.
        reason: which tool, how large, which limit, what to do.
        head: the first characters of the text, verbatim; ``None`` where the limit affords none.
        tail: the last characters, for errors only.
        notes: sentences that were added after the cut.
    """

    truncated: bool = msgspec.field(default_factory=lambda: True)  # a factory's default is written out
    reason: str
    head: str | None = None
    tail: str | None = None
    notes: tuple[str, ...] = ()

    def to_json(self) -> str:
        """The marker as the model reads it: ``truncated, reason, head, tail, notes``, absent keys left out."""
        return msgspec.json.encode(self).decode()


class Truncated(Outcome, frozen=True, kw_only=True, eq=False):
    """The model reads the ``marker`` as JSON: the head of the value, and that the rest was cut."""

    marker: Marker


class TooLarge(Outcome, frozen=True, kw_only=True, eq=False):
    """The author's ceiling refused the value. Its status is ``invalid``; effects and coverage survive.

    Attributes:
        size: of the refused value; of a stream, which is not read any further, of what was read by then.
        max_chars: the ceiling.
    """

    size: int
    max_chars: int


class Denied(Outcome, frozen=True, kw_only=True, eq=False):
    """A rule said no, or a person did.

    Attributes:
        reason: what the model reads, before any cut.
        rule: the rule's name.
    """

    reason: str
    rule: str


class Failed(Outcome, frozen=True, kw_only=True, eq=False):
    """The call did not give a result. ``reason`` is what the model reads, before any cut."""

    error: ClassVar[bool] = True

    reason: str


class PendingCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that waits for a person, with all that is needed to go on with it anywhere.

    It is bound to the tool, the exact arguments, the scope and the names of the rules. ``seal`` proves
    that nobody changed it; it is signed, not encrypted: do not show it to the model.

    Attributes:
        id: random; one approval is good for one use of it.
        tool, arguments, call_id: the call, with the arguments as the rules had changed them by then.
        scope: whose call it is.
        rule, index: the rule that asked, and its place among ``rules``.
        rules: the names of the boundary's rules at that time, in order.
        question, detail: what the person is asked.
        turn: the session's turn.
        asked_at, expires_at: aware UTC times; past the second one the answer is always no.
    """

    id: str
    tool: str
    arguments: dict[str, Any]
    call_id: str | None
    scope: Scope
    rule: str
    index: int
    rules: tuple[str, ...]
    question: str
    detail: Any
    turn: int
    asked_at: datetime
    expires_at: datetime
    seal: bytes = b""
    portable: bool = False

    def __repr__(self) -> str:
        """Without the arguments, and without the seal: a log line must not hold what proves an approval."""
        return f"PendingCall(id={self.id!r}, tool={self.tool!r}, rule={self.rule!r}, expires_at={self.expires_at!r})"

    def to_bytes(self) -> bytes:
        """The pending call as bytes for a queue or a database; `Session.resume` takes them on any replica.

        Raises:
            ConfigurationError: where the boundary has no ``secret``: its seal means nothing elsewhere.
        """
        if not self.portable:
            raise ConfigurationError(
                "PendingCall.to_bytes needs Boundary(secret=...): without it the seal is only good in this process"
            )
        return msgspec.json.encode(self)


class Pending(Outcome, frozen=True, kw_only=True, eq=False):
    """A rule asks a person. Keep ``call``; answer with ``session.resume(call, approved=..., by=...)``."""

    call: PendingCall

    def to_bytes(self) -> bytes:
        """The call as bytes; see `PendingCall.to_bytes`."""
        return self.call.to_bytes()


AnyOutcome: TypeAlias = Inline | Placed | Truncated | TooLarge | Denied | Failed | Pending
"""Every outcome there is, for a ``match`` that a type checker knows to be exhaustive."""


# Inside the chain the slot of `text` holds either a str or the `Rendered` that becomes one when somebody
# reads it, so that a value of 10 MB on its way into the store never exists as a text. The property below
# makes that invisible, `held` is the slot itself, and `settle` ends it before an outcome leaves the boundary.
_slot = Outcome.__dict__["text"]
_hold = _slot.__set__
_file = Outcome.__dict__["decisions"].__set__


def _read_text(outcome: Outcome) -> str:
    held: str | Rendered = outcome.held
    return held if isinstance(held, str) else held.text


setattr(Outcome, "held", _slot)  # noqa: B010
setattr(Outcome, "text", property(_read_text, doc="What the model reads."))  # noqa: B010


def size_of(outcome: Outcome) -> int:
    """The size that every limit compares, without decoding anything."""
    held = outcome.held
    return held.size if type(held) is Rendered else len(held)


def rendered_of(outcome: Outcome) -> Rendered:
    """The rendering behind ``outcome.text``; made from the text where a middleware wrote one itself."""
    held = outcome.held
    return held if type(held) is Rendered else render_text(legible(held))


def settle(outcome: Outcome, decisions: list[Decision]) -> AnyOutcome:
    """Make an outcome final before the host sees it: its text a plain ``str``, its rows of the ledger on it.

    An outcome that has rows already is one that a middleware kept and hands out again: it stays as it is, and
    its twin has the rows of this call.
    """
    held = outcome.held
    if type(held) is Rendered:
        _hold(outcome, held.decoded or held.text)
    elif not held.isascii():
        _hold(outcome, legible(held))
    if outcome.decisions:
        outcome = msgspec.structs.replace(outcome, decisions=tuple(decisions))
        return cast("AnyOutcome", outcome)
    if decisions:
        _file(outcome, tuple(decisions))
    return outcome  # type: ignore[return-value]  # the family is closed


_O = TypeVar("_O", bound=Outcome)


def carried(outcome: Outcome, cls: type[_O], /, **fields: Any) -> _O:
    """Build a ``cls`` that keeps what ``outcome`` says about the call, with ``fields`` of its own.

    Status, effects and coverage survive whatever happens to the value (law: `reference/behaviour.md` 1.1);
    text, content and tickets belong to the value and do not.
    """
    return cls(
        tool=outcome.tool,
        call_id=outcome.call_id,
        executed=outcome.executed,
        effects=outcome.effects,
        malformed=outcome.malformed,
        declared=outcome.declared,
        **{"status": outcome.status, **fields},
    )


def failed(call: ToolCall, reason: str, *, executed: bool = False) -> Failed:
    """The failure of ``call``, with the text that the model reads."""
    reason = legible(reason)
    return Failed(tool=call.name, call_id=call.call_id, text=reason, reason=reason, executed=executed)
