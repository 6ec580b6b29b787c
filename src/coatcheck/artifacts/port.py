"""What every store promises, whatever it is made of.

Bytes in, bytes out: a value becomes bytes upstairs. The streaming pair, ``put_stream`` and ``open``, is not part
of this port yet.

Promises of the whole (laws: `design.md` section 5, `reference/behaviour.md` 9.7); `coatcheck.testing.check_store`
holds a store to them:

* The scope comes first, always. What is missing, expired, in another scope or no ref at all is one answer,
  ``None``, byte for byte the same: never an error, never a hint. A store that cannot answer raises `StoreUnavailable`.
* Only a `Scope` is a scope: for anything else every verb raises TypeError (`coatcheck.scope.check_scope`), so that
  nobody shares a table by accident.
* No interleaving of puts and sweeps, in any number of processes, loses an acknowledged put.
* Nothing half-written is ever seen, whatever was cancelled, refused or killed.
* Existence is never remembered from one call to the next: another replica may have deleted the artifact.
* Texts of errors name refs and settings, never a payload, a tenant or a principal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Protocol, Self, runtime_checkable

from coatcheck.artifacts.meta import Artifact, ArtifactMeta, Page, PutResult, Swept
from coatcheck.scope import Scope

__all__ = ["DEFAULT_LIMIT", "ArtifactStore"]

DEFAULT_LIMIT = 50
"""How many rows a page has where nobody asked for another number."""


@runtime_checkable
class ArtifactStore(Protocol):
    """Where artifacts live. Every method may be called by any number of tasks at once."""

    async def put(
        self,
        scope: Scope,
        data: bytes,
        *,
        kind: str,
        media_type: str,
        label: str | None = None,
        expires_at: datetime | None = None,
        origin: Mapping[str, str] | None = None,
        parents: Sequence[str] = (),
    ) -> PutResult:
        """Store a payload under the ref that its content, kind and media type have.

        Idempotent. When it returns, the artifact resolves until it expires, is deleted, or a budget evicts it. Where
        the same content is there and unexpired, ``created`` is False, label, origin, parents and creation time stay
        the first put's, the expiry grows if it is later, and the artifact counts as put now. Where it was there
        and cannot be read any more, it is stored again.

        The ttl runs from the moment of the put itself, not from the call: however long the call had to wait, the
        artifact has its life before it.

        Removes from its scope only what a byte or count budget forces out, and reports it. A put that is refused
        leaves nothing. One that fails or is cancelled leaves the whole artifact or none of it; both are harmless.

        Args:
            data: the payload.
            kind: what it is, 1 to 128 characters.
            media_type: how it is written; case and parameters do not matter.
            label: a word for a person to read, at most 256 characters.
            expires_at: an aware datetime in the future; the store's ttl can only make it sooner.
            origin: where it comes from, a few short texts.
            parents: refs in this scope that it was made from.

        Raises:
            InvalidArtifact: a malformed argument, or a payload larger than the whole byte budget.
            UnknownParent: a parent that does not resolve in this scope.
            StoreUnavailable: the store cannot take it now.
        """
        ...

    async def head(self, scope: Scope, ref: str) -> ArtifactMeta | None:
        """What is known of an artifact, without its payload, or ``None``."""
        ...

    async def get(self, scope: Scope, ref: str) -> Artifact | None:
        """An artifact with its payload, compared with its digest, or ``None``. Extends nothing.

        Raises:
            IntegrityError: the payload is not the one that was put. `head` still answers.
        """
        ...

    async def delete(self, scope: Scope, ref: str) -> None:
        """Withdraw an artifact for everyone who holds its ref. Where there is none, nothing happens."""
        ...

    async def list(self, scope: Scope, *, cursor: str | None = None, limit: int = DEFAULT_LIMIT) -> Page:
        """A page of a scope's unexpired artifacts, newest first, ties by ref, without payloads.

        While nothing is put or deleted, following the cursors meets every artifact once; a put of content that
        is there already changes no place.

        Args:
            cursor: from the page before; one that is not known reads as the start.
            limit: the most rows wanted; less than 1 reads as 1.
        """
        ...

    async def sweep(self, scope: Scope | None = None, *, dry_run: bool = False) -> tuple[Swept, ...]:
        """Remove what has expired, and what a crash left behind.

        Args:
            scope: whose; ``None`` is everyone's.
            dry_run: remove nothing, and say what would be.

        Returns:
            What was removed, or would be.
        """
        ...

    async def __aenter__(self) -> Self:
        """Open what the store needs. Who opens it, closes it."""
        ...

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close it. Artifacts stay where they are."""
        ...
