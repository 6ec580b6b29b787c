"""The ledger's row: one rule's answer about one call."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

__all__ = ["Decision", "Fingerprint", "Moment", "Verdict"]

Moment: TypeAlias = Literal["before-tool", "after-tool"]
Verdict: TypeAlias = Literal["allow", "deny", "ask"]


class Fingerprint(msgspec.Struct, frozen=True):
    """What the ledger keeps of a value by default: enough to recognise it, nothing to leak.

    Attributes:
        size: characters of the value as the model would read it (bytes for binary).
        digest: ``sha256:<hex>`` of its encoded form.
    """

    size: int
    digest: str


class Decision(msgspec.Struct, frozen=True, gc=False):
    """One row of the ledger. Rows are never changed and never removed one by one.

    Attributes:
        rule: the name of the rule that answered.
        moment: ``before-tool`` or ``after-tool``.
        tool, call_id: the call that was judged.
        outcome: ``allow``, ``deny`` or ``ask``. A rule that raised, hung, or answered with nothing or
            nonsense is on the ledger as ``deny``.
        changed: True when the rule replaced the arguments or the result (a denial after the tool
            replaces the result by its reason).
        why: the rule's reason, or ``None`` where it gave none.
        before, after: what was changed, as a `Fingerprint`; the values themselves only on a boundary
            with ``ledger_values=True``. ``None`` where nothing changed.
    """

    rule: str
    moment: Moment
    tool: str
    call_id: str | None
    outcome: Verdict
    changed: bool = False
    why: str | None = None
    before: Any = None
    after: Any = None
