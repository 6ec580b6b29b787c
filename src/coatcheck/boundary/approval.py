"""A person's yes: how a pending call leaves the process, comes back unchanged, and is used once.

Law (`design.md` section 3, parting 3): an approval is bound to the tool, the exact canonical arguments, the
scope and the names of the rules; anything that changed, and a second use, declines. Use is claimed before
the tool runs, so a crash after the claim declines, too: at most once.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict
from datetime import datetime, timedelta
from typing import Any, Protocol

import msgspec

from coatcheck.call import ToolCall
from coatcheck.errors import ConfigurationError, RenderingError
from coatcheck.outcome import Pending, PendingCall
from coatcheck.results.conversion import canonical
from coatcheck.results.shapes import clip
from coatcheck.scope import Scope

__all__ = ["IN_THIS_PROCESS", "Approvals", "MemoryApprovals", "Sealer", "objection"]

_MIN_SECRET_BYTES = 16


class Approvals(Protocol):
    """Where uses of approvals are claimed; share one among all replicas that resume calls.

    A key that is set only where it is absent does it, with the approvals' ttl: ``SET id 1 NX EX ttl``.
    """

    async def claim(self, id: str) -> bool:
        """Claim the one use of ``id``: True exactly once, for one caller of all; False ever after.

        An implementation that cannot answer raises; the call is declined then.
        """


class MemoryApprovals:
    """Claims in memory: right where one process does all the resuming, and forgotten when it ends.

    A boundary that is given no approvals uses `IN_THIS_PROCESS`, which all boundaries of the process share.

    Args:
        max_claims: how many claims are remembered, the oldest forgotten first.
    """

    def __init__(self, max_claims: int = 100_000) -> None:
        self._max_claims = max_claims
        self._claimed: OrderedDict[str, None] = OrderedDict()

    async def claim(self, id: str) -> bool:
        """Claim the one use of ``id``."""
        if id in self._claimed:
            return False
        self._claimed[id] = None
        if len(self._claimed) > self._max_claims:
            self._claimed.popitem(last=False)
        return True


IN_THIS_PROCESS = MemoryApprovals()


class Sealer:
    """Seals and opens what leaves the process. Without a secret, a random key seals for this process alone."""

    def __init__(self, secret: str | bytes | None) -> None:
        if secret is not None:
            if not isinstance(secret, (str, bytes)):
                raise ConfigurationError(f"Boundary(secret=...) must be text or bytes, not {type(secret).__name__}")
            try:
                secret = secret.encode() if isinstance(secret, str) else secret
            except UnicodeEncodeError:
                raise ConfigurationError("Boundary(secret=...) holds half of a surrogate pair") from None
            if len(secret) < _MIN_SECRET_BYTES:
                raise ConfigurationError(
                    f"Boundary(secret=...) is too short: give at least {_MIN_SECRET_BYTES} bytes, "
                    "for example from secrets.token_urlsafe()"
                )
        self.portable: bool = secret is not None
        self._key = secret or secrets.token_bytes(32)

    def seal(self, purpose: bytes, message: bytes) -> bytes:
        """The proof that ``message`` was made here, for this purpose."""
        return hmac.digest(self._key, purpose + b"\n" + message, hashlib.sha256)

    def is_seal(self, purpose: bytes, message: bytes, seal: bytes) -> bool:
        """Whether ``seal`` is the proof for ``message``; takes the same time for every wrong one."""
        return hmac.compare_digest(self.seal(purpose, message), seal)

    def make_pending(
        self,
        call: ToolCall,
        *,
        scope: Scope,
        turn: int,
        rule: str,
        index: int,
        rules: tuple[str, ...],
        question: str,
        detail: Any,
        now: datetime,
        ttl: timedelta,
    ) -> Pending:
        """Build the outcome of a call that waits for a person.

        Raises:
            RenderingError: where arguments or detail hold what JSON cannot carry unchanged.
        """
        unsealed = PendingCall(
            id=secrets.token_urlsafe(24),
            tool=call.name,
            arguments=_plain("arguments", call.arguments),
            call_id=call.call_id,
            scope=scope,
            rule=rule,
            index=index,
            rules=rules,
            question=question,
            detail=_plain("detail", detail),
            turn=turn,
            asked_at=now,
            expires_at=now + ttl,
            portable=self.portable,
        )
        sealed = msgspec.structs.replace(unsealed, seal=self.seal(_PURPOSE, _canonical(unsealed)))
        text = (
            f"{clip(call.name, 128)} has not run yet: a person was asked. {question} "
            "Its result follows when they have answered."
        )
        return Pending(tool=call.name, call_id=call.call_id, text=text, call=sealed)

    def open_pending(self, pending: PendingCall | bytes) -> PendingCall | None:
        """The pending call if its seal is whole, else ``None``."""
        if isinstance(pending, (bytes, bytearray, memoryview, str)):
            try:
                pending = msgspec.json.decode(pending, type=PendingCall)
            except (msgspec.DecodeError, ValueError, RecursionError):  # a scope may refuse itself, text may be no UTF-8
                return None
        if not isinstance(pending, PendingCall):
            return None
        try:
            message = _canonical(pending)
        except Exception:  # noqa: BLE001 - fields that cannot even be encoded were not sealed here
            return None
        if not isinstance(pending.seal, bytes) or not self.is_seal(_PURPOSE, message, pending.seal):
            return None
        # What reads alike is sealed alike, so that what goes on is what was sealed and not what was handed in.
        return msgspec.structs.replace(msgspec.json.decode(message, type=PendingCall), seal=pending.seal)


_PURPOSE = b"coatcheck pending call 1"
_sorted = msgspec.json.Encoder(order="sorted")


def _canonical(pending: PendingCall) -> bytes:
    return _sorted.encode(msgspec.structs.replace(pending, seal=b""))


def _plain(field: str, value: Any) -> Any:
    """What comes back from JSON, so that the seal covers exactly what will run."""
    try:
        return msgspec.json.decode(msgspec.json.encode(canonical(value)))
    except RenderingError as error:
        raise RenderingError(f"{field}{error.path[1:]}", error.problem) from None


def objection(pending: PendingCall, *, scope: Scope, rules: tuple[str, ...], now: datetime) -> str | None:
    """Why a sealed pending call cannot be resumed here and now, or ``None``."""
    if pending.scope != scope:
        return "the approval belongs to another conversation"
    if pending.expires_at <= now:
        return "the approval has expired"
    if pending.rules != rules or not (0 <= pending.index < len(rules)) or rules[pending.index] != pending.rule:
        return "the rules of this host have changed since the question was asked"
    return None
