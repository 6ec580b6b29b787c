"""What a boundary tells its host while it works: typed facts, meta only.

An event never carries arguments, results or payloads. `Boundary(on_event=...)` is called with each,
synchronously and in order; what it raises is logged and never reaches the call.
The fields are those of `reference/behaviour.md` 9.9 in Python spelling.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, TypeAlias

import msgspec

from coatcheck.artifacts.meta import PutResult
from coatcheck.artifacts.notices import EvictionFailed, Notice, UploadLeft
from coatcheck.decision import Moment, Verdict
from coatcheck.effects.state import Move
from coatcheck.effects.turn import Turn
from coatcheck.results.absence import SuggestedTool
from coatcheck.results.period import Period, PeriodVerdict
from coatcheck.results.provenance import Provenance

__all__ = [
    "AbsenceDeclared",
    "AnyEvent",
    "ArtifactExpired",
    "ArtifactMinted",
    "ArtifactPresented",
    "ArtifactRefused",
    "ArtifactResolved",
    "BatchBudgetUnmet",
    "CallRepeated",
    "CoverageDeclared",
    "DecisionMade",
    "EffectJudged",
    "Event",
    "ForeignEnvelope",
    "MoveOutrun",
    "NearMiss",
    "PickJudged",
    "ResultRefused",
    "RouteConflict",
    "StoreEvictionFailed",
    "StoreUploadFailed",
    "StoreUploadLeft",
    "StreamBroken",
    "ToolEnded",
    "ToolProgress",
    "ToolStarted",
    "TurnOpened",
    "event_of",
    "events_of_put",
]


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """What every event says.

    Attributes:
        tool, call_id: the call that it is about; ``None`` where it is about no single call.
        turn: the session's turn number, counted from 1.
    """

    tool: str | None
    call_id: str | None
    turn: int


class ToolStarted(Event, frozen=True, kw_only=True):
    """A call entered the boundary, before any rule was asked. ``batch`` is the number of calls in its turn."""

    batch: int = 1


class ToolProgress(Event, frozen=True, kw_only=True):
    """A tool says how far it is (`ToolContext.progress`): for a person, not for the model.

    Attributes:
        done, total: how much of how much, in the tool's own unit.
    """

    text: str
    done: float | None
    total: float | None


class ArtifactPresented(Event, frozen=True, kw_only=True):
    """The model asked the host to show an artifact (``present``).

    Attributes:
        as_: in which form; the host's own words, not judged here.
        label: the model's, or else the artifact's own.
    """

    ref: str
    as_: str
    kind: str
    media_type: str
    bytes: int
    label: str | None


class ToolEnded(Event, frozen=True, kw_only=True):
    """A call left the boundary. A call that was resumed ends once more, and did not start again.

    Attributes:
        outcome: the class of the outcome: ``Inline``, ``Placed``, ``Truncated``, ``TooLarge``,
            ``Denied``, ``Failed`` or ``Pending``.
        status: the delivered status, if any.
        error: True for ``Failed``.
        executed: whether the tool ran.
        chars: characters that the model reads.
        seconds: wall time inside the boundary.
    """

    outcome: str
    status: str | None
    error: bool
    executed: bool
    chars: int
    seconds: float


class DecisionMade(Event, frozen=True, kw_only=True):
    """A row was added to the ledger. It is the row without what was changed."""

    rule: str
    moment: Moment
    outcome: Verdict
    changed: bool
    why: str | None


class ResultRefused(Event, frozen=True, kw_only=True):
    """The author's ceiling refused a result. ``declared_status`` is the status that the tool had delivered."""

    size: int
    max_chars: int
    narrow_by: tuple[str, ...]
    declared_status: str | None


class StreamBroken(Event, frozen=True, kw_only=True):
    """A result that was being produced piece by piece broke off, and nothing of it is left.

    Attributes:
        reason: ``raised``: the tool did. ``timed-out``: its time was over. ``idle``: nothing came for too long.
            ``wrong-piece``: it yielded what cannot be carried, or another kind of thing than before.
            ``cancelled``: nobody waited for it any more.
        bytes: how much had been taken in.
    """

    reason: Literal["raised", "timed-out", "idle", "wrong-piece", "cancelled"]
    bytes: int


class AbsenceDeclared(Event, frozen=True, kw_only=True):
    """A tool said: I looked here, and there is nothing. All of it is as on the record (`coatcheck.Declared`)."""

    looked_for: str | None
    checked: tuple[Any, ...]
    not_checked: tuple[Any, ...]
    cannot_cover: tuple[Any, ...]
    try_instead: str | None = None
    try_instead_tool: SuggestedTool | None = None
    provenance: Provenance | None = None
    period: Period | None = None
    verdict: PeriodVerdict | None = None


class CoverageDeclared(Event, frozen=True, kw_only=True):
    """A tool said what its result covers and what it does not. All of it is as on the record (`coatcheck.Declared`)."""

    checked: tuple[Any, ...]
    not_checked: tuple[Any, ...]
    cannot_cover: tuple[Any, ...]
    period: Period | None = None
    verdict: PeriodVerdict | None = None


class EffectJudged(Event, frozen=True, kw_only=True):
    """An effect that a tool asked for was accepted, refused or superseded by an earlier accepted proposal.

    Attributes:
        reason: why it was refused. why: the tool's own reason for a transition. The others are those of the effect.
    """

    kind: str
    outcome: Literal["accepted", "refused", "superseded"]
    reason: str | None
    target_skill_id: str | None = None
    why: str | None = None
    instruction_id: str | None = None
    delivery_lease: str | None = None


class RouteConflict(Event, frozen=True, kw_only=True):
    """Results of one batch wanted to go to different skills: proposals against each other, or edges."""

    winner: Move
    losers: tuple[Move, ...]


class PickJudged(Event, frozen=True, kw_only=True):
    """The model picked a skill; ``reason`` is what it read about it."""

    skill: str
    accepted: bool
    reason: str


class MoveOutrun(Event, frozen=True, kw_only=True):
    """A move that had been accepted was left behind, because what comes before it led elsewhere."""

    move: Move
    went_to: str | None


class TurnOpened(Event, frozen=True, kw_only=True):
    """The next turn has begun; ``opened`` is it, without the texts of its instructions."""

    opened: Turn


class CallRepeated(Event, frozen=True, kw_only=True):
    """A call was made before, with the same arguments and the same text to read; the model was told so."""

    occurrences: int


class NearMiss(Event, frozen=True, kw_only=True):
    """A result looks like an envelope whose ``effects`` key was forgotten; ``hint`` says how to write it."""

    hint: str


class ForeignEnvelope(Event, frozen=True, kw_only=True):
    """A foreign tool returned something with authority; it was treated as data.

    Attributes:
        form: ``envelope``, ``absence`` or ``ledger``.
    """

    form: Literal["envelope", "absence", "ledger"]


class ArtifactMinted(Event, frozen=True, kw_only=True):
    """A payload is in the store. ``created`` is False when the same content was there already."""

    ref: str
    kind: str
    media_type: str
    bytes: int
    digest: str
    created: bool
    label: str | None = None
    expires_at: datetime | None = None
    origin: dict[str, str] | None = None
    parents: tuple[str, ...] = ()


class ArtifactResolved(Event, frozen=True, kw_only=True):
    """A ref was redeemed."""

    ref: str
    via: Literal["head", "get"]
    kind: str
    bytes: int


class ArtifactExpired(Event, frozen=True, kw_only=True):
    """A put pushed an older artifact out. ``reason`` is that of the sweep."""

    ref: str
    kind: str
    bytes: int
    reason: str


class ArtifactRefused(Event, frozen=True, kw_only=True):
    """A store operation was refused or failed.

    Attributes:
        op: the verb: ``put``, ``head``, ``get``, ``delete`` or ``list``; ``dispatch``: a call wanted the artifact.
        reason: ``invalid-input``, ``unknown-parent``, ``missing-or-expired``, ``kind-mismatch``, ``digest-mismatch``,
            ``no-store`` or ``store-failed``.
        detail: the cause, in the store's words, which never hold a payload or a scope (`ArtifactStore` promises it).
    """

    op: str
    reason: str
    ref: str | None = None
    detail: str | None = None


class BatchBudgetUnmet(Event, frozen=True, kw_only=True):
    """The results of one turn exceed the batch budget although everything that could be placed was."""

    budget: int
    chars: int


class StoreUploadFailed(Event, frozen=True, kw_only=True):
    """An upload that no call had waited for failed (`coatcheck.WriteBehind`): what the ticket names is not stored.

    It is about no call: ``tool`` and ``call_id`` are ``None``, ``turn`` is 0.

    Attributes:
        ref, kind, bytes: the artifact's.
        detail: why, in words that never hold a payload or a scope.
    """

    ref: str
    kind: str
    bytes: int
    detail: str


class StoreUploadLeft(Event, frozen=True, kw_only=True):
    """A multipart upload could not be aborted; what it holds takes room until a sweep, or a lifecycle rule, removes it.

    It is about no call: ``tool`` and ``call_id`` are ``None``, ``turn`` is 0.

    Attributes:
        upload_id: the server's name of it.
        detail: why it could not be aborted.
    """

    upload_id: str
    detail: str


class StoreEvictionFailed(Event, frozen=True, kw_only=True):
    """A put was stored, but what its scope's budget wants removed could not be. A later put tries again.

    It is about no call: ``tool`` and ``call_id`` are ``None``, ``turn`` is 0.

    Attributes:
        ref: of what was put.
        detail: why.
    """

    ref: str
    detail: str


def event_of(notice: Notice) -> Event:
    """The event that tells of a store's notice."""
    if isinstance(notice, UploadLeft):
        return StoreUploadLeft(tool=None, call_id=None, turn=0, upload_id=notice.upload_id, detail=notice.detail)
    if isinstance(notice, EvictionFailed):
        return StoreEvictionFailed(tool=None, call_id=None, turn=0, ref=notice.ref, detail=notice.detail)
    return StoreUploadFailed(
        tool=None,
        call_id=None,
        turn=0,
        ref=notice.ref,
        kind=notice.kind,
        bytes=notice.bytes,
        detail=notice.detail,
    )


AnyEvent: TypeAlias = (
    ToolStarted
    | ToolProgress
    | ArtifactPresented
    | ToolEnded
    | DecisionMade
    | ResultRefused
    | StreamBroken
    | AbsenceDeclared
    | CoverageDeclared
    | EffectJudged
    | RouteConflict
    | PickJudged
    | MoveOutrun
    | TurnOpened
    | CallRepeated
    | NearMiss
    | ForeignEnvelope
    | ArtifactMinted
    | ArtifactResolved
    | ArtifactExpired
    | ArtifactRefused
    | BatchBudgetUnmet
    | StoreEvictionFailed
    | StoreUploadFailed
    | StoreUploadLeft
)


def events_of_put(
    result: PutResult, *, origin: dict[str, str], parents: tuple[str, ...], **about: Any
) -> tuple[Event, ...]:
    """What a put is told as: each artifact that made room for it, and the one that was minted.

    Args:
        result: what the store said.
        origin: the origin of the artifact in this call, which may not be the one that made it.
        parents: the refs from which it was made in this call.
        about: the fields that every event of the call has.
    """
    meta = result.meta
    return (
        *(
            ArtifactExpired(**about, ref=swept.ref, kind=swept.kind, bytes=swept.bytes, reason=swept.reason)
            for swept in result.swept
        ),
        ArtifactMinted(
            **about,
            ref=meta.ref,
            kind=meta.kind,
            media_type=meta.media_type,
            bytes=meta.bytes,
            digest=meta.digest,
            created=result.created,
            label=meta.label,
            expires_at=meta.expires_at,
            origin=origin,
            parents=parents,
        ),
    )
