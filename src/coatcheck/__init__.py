"""coatcheck: the boundary between an AI agent's tools and its model.

    truncation( placement( governance( ceiling( tool ) ) ) )

Start with `Boundary`, `tool` and `Scope`; the README shows the rest. ``coatcheck.readers`` is imported when it is asked
for; `coatcheck.service` and `coatcheck.testing` want an import of their own.
"""

import typing as _typing

from coatcheck.artifacts.directory import DirectoryStore
from coatcheck.artifacts.findings import Diagnosis, Finding
from coatcheck.artifacts.memory import MemoryStore
from coatcheck.artifacts.meta import Artifact, ArtifactMeta, MediaType, Page, PutResult, Swept
from coatcheck.artifacts.open import open_store
from coatcheck.artifacts.port import ArtifactReader, ArtifactStore
from coatcheck.artifacts.ref import make_ref
from coatcheck.artifacts.s3.store import S3Store
from coatcheck.artifacts.ticket import Ticket, is_ticket
from coatcheck.artifacts.usage import Usage
from coatcheck.artifacts.write_behind import WriteBehind
from coatcheck.boundary.approval import Approvals, MemoryApprovals
from coatcheck.boundary.boundary import Boundary
from coatcheck.boundary.chain import CallNext, Inside, Middleware, inside
from coatcheck.boundary.claims import DirectoryApprovals, S3Approvals
from coatcheck.boundary.context import Artifacts, ToolContext
from coatcheck.boundary.presenting import present
from coatcheck.boundary.session import Session
from coatcheck.boundary.tool import Tool, tool
from coatcheck.call import ToolCall
from coatcheck.decision import Decision, Fingerprint
from coatcheck.effects.graph import Edge, SkillGraph
from coatcheck.effects.instructions import Instruction, InstructionCatalog
from coatcheck.effects.leases import Lease
from coatcheck.effects.routing import Picked, Posture
from coatcheck.effects.state import Move, TurnState
from coatcheck.effects.turn import Delivery, Turn
from coatcheck.errors import (
    ArtifactsUnavailable,
    CoatcheckError,
    ConfigurationError,
    DeclarationError,
    IntegrityError,
    InvalidArtifact,
    InvalidRange,
    RenderingError,
    StoreError,
    StoreUnavailable,
    UnknownParent,
)
from coatcheck.events import (
    AbsenceDeclared,
    AnyEvent,
    ArtifactExpired,
    ArtifactMinted,
    ArtifactPresented,
    ArtifactRefused,
    ArtifactResolved,
    BatchBudgetUnmet,
    CallRepeated,
    CoverageDeclared,
    DecisionMade,
    EffectJudged,
    Event,
    ForeignEnvelope,
    MoveOutrun,
    NearMiss,
    PickJudged,
    ResultRefused,
    RouteConflict,
    StoreEvictionFailed,
    StoreUploadFailed,
    StoreUploadLeft,
    StreamBroken,
    ToolEnded,
    ToolProgress,
    ToolStarted,
    TurnOpened,
)
from coatcheck.outcome import (
    AnyOutcome,
    Denied,
    Failed,
    Inline,
    Marker,
    Outcome,
    Pending,
    PendingCall,
    Placed,
    TooLarge,
    Truncated,
)
from coatcheck.results.absence import (
    SuggestedTool,
    UnfinishedAbsence,
    absent,
    read_absence,
    try_instead_of,
    try_instead_tool_of,
)
from coatcheck.results.answer import compose_answer
from coatcheck.results.binary import Blob
from coatcheck.results.coverage import coverage, read_coverage
from coatcheck.results.envelope import (
    Effect,
    Encoded,
    Envelope,
    Malformed,
    ProposeTransition,
    RequireInstruction,
    decode_envelope,
    explain_near_miss,
    read_envelope,
)
from coatcheck.results.evidence import evidence_of
from coatcheck.results.notes import NOTES
from coatcheck.results.period import Period, PeriodVerdict, Span, least_held, verdict_of
from coatcheck.results.provenance import Among, Provenance
from coatcheck.results.reading import Coverage, Declared, Reading, coverage_of, read_result
from coatcheck.results.rendering import Rendered, render
from coatcheck.results.search import Search
from coatcheck.results.status import STATUSES, Status
from coatcheck.results.streams import FileResult, Stream
from coatcheck.scope import Scope
from coatcheck.steps.ceiling import Ceiling
from coatcheck.steps.placement import Placement
from coatcheck.steps.rule import (
    Allow,
    Ask,
    Chunk,
    Deny,
    Result,
    Rule,
    StreamResult,
    after_chunk,
    after_tool,
    allow,
    ask,
    before_tool,
    deny,
)
from coatcheck.steps.truncation import Truncation

__all__ = [
    "AbsenceDeclared",
    "Allow",
    "Among",
    "AnyEvent",
    "AnyOutcome",
    "Approvals",
    "Artifact",
    "ArtifactExpired",
    "ArtifactMeta",
    "ArtifactMinted",
    "ArtifactPresented",
    "ArtifactReader",
    "ArtifactRefused",
    "ArtifactResolved",
    "ArtifactStore",
    "Artifacts",
    "ArtifactsUnavailable",
    "Ask",
    "BatchBudgetUnmet",
    "Blob",
    "Boundary",
    "CallNext",
    "CallRepeated",
    "Ceiling",
    "Chunk",
    "CoatcheckError",
    "ConfigurationError",
    "Coverage",
    "CoverageDeclared",
    "Decision",
    "DecisionMade",
    "DeclarationError",
    "Declared",
    "Delivery",
    "Denied",
    "Deny",
    "Diagnosis",
    "DirectoryApprovals",
    "DirectoryStore",
    "Edge",
    "Effect",
    "EffectJudged",
    "Encoded",
    "Envelope",
    "Event",
    "Failed",
    "FileResult",
    "Finding",
    "Fingerprint",
    "ForeignEnvelope",
    "Inline",
    "Inside",
    "Instruction",
    "InstructionCatalog",
    "IntegrityError",
    "InvalidArtifact",
    "InvalidRange",
    "Lease",
    "Malformed",
    "Marker",
    "MediaType",
    "MemoryApprovals",
    "MemoryStore",
    "Middleware",
    "Move",
    "MoveOutrun",
    "NOTES",
    "NearMiss",
    "Outcome",
    "Page",
    "Pending",
    "PendingCall",
    "Period",
    "PeriodVerdict",
    "PickJudged",
    "Picked",
    "Placed",
    "Placement",
    "Posture",
    "ProposeTransition",
    "Provenance",
    "PutResult",
    "Reading",
    "Rendered",
    "RenderingError",
    "RequireInstruction",
    "Result",
    "ResultRefused",
    "RouteConflict",
    "Rule",
    "S3Approvals",
    "S3Store",
    "STATUSES",
    "Scope",
    "Search",
    "Session",
    "SkillGraph",
    "Span",
    "Status",
    "StoreError",
    "StoreEvictionFailed",
    "StoreUnavailable",
    "StoreUploadFailed",
    "StoreUploadLeft",
    "Stream",
    "StreamBroken",
    "StreamResult",
    "SuggestedTool",
    "Swept",
    "Ticket",
    "TooLarge",
    "Tool",
    "ToolCall",
    "ToolContext",
    "ToolEnded",
    "ToolProgress",
    "ToolStarted",
    "Truncated",
    "Truncation",
    "Turn",
    "TurnOpened",
    "TurnState",
    "UnfinishedAbsence",
    "UnknownParent",
    "Usage",
    "WriteBehind",
    "absent",
    "after_chunk",
    "after_tool",
    "allow",
    "ask",
    "before_tool",
    "compose_answer",
    "coverage",
    "coverage_of",
    "decode_envelope",
    "deny",
    "evidence_of",
    "explain_near_miss",
    "inside",
    "is_ticket",
    "least_held",
    "make_ref",
    "open_store",
    "present",
    "read_absence",
    "read_coverage",
    "read_envelope",
    "read_result",
    "render",
    "tool",
    "try_instead_of",
    "try_instead_tool_of",
    "verdict_of",
]

__version__ = "0.1.0"

if _typing.TYPE_CHECKING:
    from coatcheck import readers as readers
else:

    def __getattr__(name: str) -> object:
        if name == "readers":
            from importlib import import_module

            return import_module("coatcheck.readers")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
