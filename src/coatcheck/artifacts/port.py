"""What every store promises, whatever it is made of.

Bytes in, bytes out: a value becomes bytes upstairs. There is no ``query`` and no ``transform``: what reads an artifact
for a purpose is built on ranged reads, outside the port.

Promises of the whole (laws: `design.md` section 5, `reference/behaviour.md` 9.7); `coatcheck.testing.check_store`
holds a store to them:

* The scope comes first, always. What is missing, expired, in another scope or no ref at all is one answer,
  ``None``, byte for byte the same: never an error, never a hint. A store that cannot answer raises `StoreUnavailable`.
* Only a `Scope` is a scope: for anything else every verb raises TypeError (`coatcheck.scope.check_scope`), so that
  nobody shares a table by accident.
* No interleaving of puts and sweeps, in any number of processes, loses an acknowledged put.
* Nothing half-written is ever seen, whatever was cancelled, refused or killed.
* Existence is never remembered from one call to the next: another replica may have deleted the artifact.
* Memory is bounded whatever the length of a stream, and nothing of one is visible before all of it is there.
* Texts of errors name refs and settings, never a payload, a tenant or a principal.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from types import TracebackType
from typing import Protocol, Self, runtime_checkable

from coatcheck.artifacts.meta import Artifact, ArtifactMeta, MediaType, Page, PutResult, Swept
from coatcheck.scope import Scope

__all__ = ["DEFAULT_LIMIT", "ArtifactReader", "ArtifactStore"]

DEFAULT_LIMIT = 50
"""How many rows a page has where nobody asked for another number."""


class ArtifactReader:
    """A part of one payload, read in order: ``async for chunk in reader``. `ArtifactStore.open` makes it.

    No chunk is empty, and none is larger than a few megabytes. A read of the whole payload is compared with its
    digest: where it differs, `IntegrityError` is raised in place of the end, so what was read so far is not to be
    trusted. Of a part only the length is certain. Use it from one task, and once.

    Args:
        meta: the artifact's.
        start, end: the part, in bytes: from ``start`` up to and without ``end``, both within the payload.
        chunks: the part itself.

    Raises:
        IntegrityError: while reading: the payload is not the one that was put.
        StoreUnavailable: while reading: the store cannot go on. There is never a silent gap.
    """

    def __init__(self, meta: ArtifactMeta, start: int, end: int, chunks: AsyncIterator[bytes]) -> None:
        self.meta = meta
        self.start = start
        self.end = end
        self._chunks = chunks

    def __aiter__(self) -> AsyncIterator[bytes]:
        """The chunks."""
        return self._chunks

    async def read(self) -> bytes:
        """All that was not read yet, at once: for a part that is known to be small."""
        return b"".join([chunk async for chunk in self._chunks])


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

    async def put_stream(
        self,
        scope: Scope,
        source: AsyncIterable[bytes],
        *,
        kind: str,
        media_type: MediaType,
        label: str | None = None,
        expires_at: datetime | None = None,
        origin: Mapping[str, str] | None = None,
        parents: Sequence[str] = (),
    ) -> PutResult:
        """Store a payload that is still being made, of any length, as `put` would store the whole of it.

        Ref and digest are made at the end; until then nothing is visible, and nothing was removed for it. The source
        is asked for the next chunk in the task that called, and never far ahead of what is written: it feels the
        store's pace. What it raises goes on unchanged. Where that happens, where the put is refused, or is cancelled,
        nothing is left. The source is not closed here: that is for whoever made it, so it had better be an iterator
        itself.

        Args:
            source: chunks of bytes, of any size; empty ones do not matter.
            media_type: may be a function: it is asked once, when the source has ended, in the task that called.
            kind, label, expires_at, origin, parents: as for `put`.

        Raises:
            InvalidArtifact: a malformed argument, a chunk that is no bytes, or more bytes than the whole budget,
                which is refused as soon as it is known.
            UnknownParent: a parent that does not resolve in this scope.
            StoreUnavailable: the store cannot take it now.
        """
        ...

    def open(
        self, scope: Scope, ref: str, start: int = 0, end: int | None = None
    ) -> AbstractAsyncContextManager[ArtifactReader | None]:
        """An artifact's payload, or a part of it, without ever holding all of it: ``async with store.open(...)``.

        Nothing before ``start`` is read. Extends nothing. Leaving early is free. A reader that is read from after the
        artifact was deleted, or after it was left, goes on or raises.

        Args:
            start: the first byte, counted from 0; one past the payload gives an empty reader.
            end: the byte after the last; ``None``, and one past the payload, is the payload's end.

        Returns:
            A context manager that gives the reader, or ``None`` where `get` gives ``None``.

        Raises:
            InvalidRange: when it is entered: a negative start, or an end before it; whether or not there is anything
                under the ref.
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
