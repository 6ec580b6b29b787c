"""What a tool is given of its call, where it asks: the artifacts of its conversation, and a way to say how far it is.

The scope is the session's, and out of reach: a tool can neither name another one nor widen its own (law:
`reference/behaviour.md` 9.8).
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from typing import Any, TypeVar

from coatcheck.artifacts.lineage import still_there
from coatcheck.artifacts.meta import Artifact, ArtifactMeta, MediaType, Page, PutResult, origin_of
from coatcheck.artifacts.port import DEFAULT_LIMIT, ArtifactReader, ArtifactStore
from coatcheck.call import ToolCall
from coatcheck.dispatch import Dispatch
from coatcheck.errors import (
    ArtifactsUnavailable,
    IntegrityError,
    InvalidArtifact,
    InvalidRange,
    StoreError,
    UnknownParent,
)
from coatcheck.events import ArtifactRefused, ArtifactResolved, Event, ToolProgress, events_of_put

__all__ = ["Artifacts", "ToolContext", "refusal_reason"]

_T = TypeVar("_T")


class Artifacts:
    """The verbs of an `ArtifactStore` in the scope of one call; see there for what each promises.

    What is stored says by itself which call it comes from, and names what the call wanted among its parents. A sync
    tool uses it from its worker thread by ``anyio.from_thread.run(ctx.artifacts.get, ref)``.

    Raises:
        ArtifactsUnavailable: by every verb: the host has no store, or the call has ended.
    """

    def __init__(self, store: ArtifactStore | None, call: Dispatch) -> None:
        self._store = store
        self._call = call
        self._ended = False
        self._open: set[AsyncExitStack] = set()

    @property
    def there(self) -> bool:
        """Whether this host has a store at all."""
        return self._store is not None

    async def put(
        self,
        data: bytes,
        *,
        kind: str,
        media_type: str,
        label: str | None = None,
        expires_at: datetime | None = None,
        parents: Sequence[str] = (),
    ) -> PutResult:
        """Store a payload."""
        store = self._ready("put")
        origin, parents = origin_of(self._call.name, self._call.call_id), await self._parents(store, parents)
        result = await self._told(
            "put",
            store.put(
                self._call.scope,
                data,
                kind=kind,
                media_type=media_type,
                label=label,
                expires_at=expires_at,
                origin=origin,
                parents=parents,
            ),
        )
        self._minted(result, origin, parents)
        return result

    async def put_stream(
        self,
        source: AsyncIterable[bytes],
        *,
        kind: str,
        media_type: MediaType,
        label: str | None = None,
        expires_at: datetime | None = None,
        parents: Sequence[str] = (),
    ) -> PutResult:
        """Store a payload that is still being made."""
        store = self._ready("put")
        origin, parents = origin_of(self._call.name, self._call.call_id), await self._parents(store, parents)
        result = await self._told(
            "put",
            store.put_stream(
                self._call.scope,
                source,
                kind=kind,
                media_type=media_type,
                label=label,
                expires_at=expires_at,
                origin=origin,
                parents=parents,
            ),
        )
        self._minted(result, origin, parents)
        return result

    async def head(self, ref: str) -> ArtifactMeta | None:
        """What is known of an artifact, or ``None``."""
        store = self._ready("head", ref)
        meta = await self._told("head", store.head(self._call.scope, ref), ref)
        self._found("head", ref, meta)
        return meta

    async def get(self, ref: str) -> Artifact | None:
        """An artifact with its payload, or ``None``."""
        store = self._ready("get", ref)
        artifact = await self._told("get", store.get(self._call.scope, ref), ref)
        self._found("get", ref, None if artifact is None else artifact.meta)
        return artifact

    @asynccontextmanager
    async def open(self, ref: str, start: int = 0, end: int | None = None) -> AsyncIterator[ArtifactReader | None]:
        """An artifact's payload, or a part of it, without ever holding all of it."""
        store = self._ready("get", ref)
        async with AsyncExitStack() as stack:
            self._open.add(stack)
            stack.callback(self._open.discard, stack)
            opening = stack.enter_async_context(store.open(self._call.scope, ref, start, end))
            reader = await self._told("get", opening, ref)
            self._found("get", ref, None if reader is None else reader.meta)
            if reader is not None:
                reader = ArtifactReader(reader.meta, reader.start, reader.end, _WhileItLasts(self, reader))
            try:
                yield reader
            except IntegrityError as error:
                if reader is not None and error.ref == reader.meta.ref:
                    self._refused("get", "digest-mismatch", ref, str(error))
                raise

    async def delete(self, ref: str) -> None:
        """Withdraw an artifact."""
        store = self._ready("delete", ref)
        await self._told("delete", store.delete(self._call.scope, ref), ref)

    async def list(self, *, cursor: str | None = None, limit: int = DEFAULT_LIMIT) -> Page:
        """A page of what is here, newest first."""
        store = self._ready("list")
        return await self._told("list", store.list(self._call.scope, cursor=cursor, limit=limit))

    def tell(self, event: type[Event], **fields: Any) -> None:
        """For tools of the library: an event about this call, while it lasts."""
        if self._call.emit is not None and not self._ended:
            self._call.emit(event(**self._about(), **fields))

    async def end(self) -> None:
        """The call is over; nothing is possible any more, and what was left open is closed."""
        self._ended = True
        for stack in tuple(self._open):
            await stack.aclose()

    def _check_lasting(self) -> None:
        """Go on only during the call.

        Raises:
            ArtifactsUnavailable: it has ended.
        """
        if self._ended:
            raise ArtifactsUnavailable(
                "the call has ended, and with it the use of its artifacts: use them during the call"
            )

    def _ready(self, op: str, ref: str | None = None) -> ArtifactStore:
        if self._store is None:
            self._refused(op, "no-store", ref)
            raise ArtifactsUnavailable(
                "this host keeps no artifacts, so there is nothing to read and nowhere to store: go on without refs"
            )
        self._check_lasting()
        return self._store

    async def _told(self, op: str, work: Awaitable[_T], ref: str | None = None) -> _T:
        try:
            return await work
        except StoreError as error:
            self._refused(op, refusal_reason(error), ref, f"{type(error).__name__}: {error}"[:500])
            raise

    async def _parents(self, store: ArtifactStore, parents: Sequence[str]) -> Sequence[str]:
        """What the tool names, and what its call wanted and is still there; what is no list the store refuses."""
        wanted = self._call.wanted
        if not wanted or isinstance(parents, (str, bytes)) or not isinstance(parents, Sequence):
            return parents
        there = await self._told("put", still_there(store, self._call.scope, wanted))
        return (*parents, *(ref for ref in there if ref not in parents))

    def _about(self) -> dict[str, Any]:
        return {"tool": self._call.name, "call_id": self._call.call_id, "turn": self._call.turn}

    def _emit(self, event: Event) -> None:
        if self._call.emit is not None:
            self._call.emit(event)

    def _minted(self, result: PutResult, origin: dict[str, str], parents: Sequence[str]) -> None:
        for event in events_of_put(result, origin=origin, parents=tuple(dict.fromkeys(parents)), **self._about()):
            self._emit(event)

    def _found(self, via: Any, ref: object, meta: ArtifactMeta | None) -> None:
        if meta is None:
            self._refused(via, "missing-or-expired", ref)
        else:
            self._emit(ArtifactResolved(**self._about(), ref=meta.ref, via=via, kind=meta.kind, bytes=meta.bytes))

    def _refused(self, op: str, reason: str, ref: object = None, detail: str | None = None) -> None:
        named = ref[:128] if isinstance(ref, str) else None
        self._emit(ArtifactRefused(**self._about(), op=op, reason=reason, ref=named, detail=detail))


class _WhileItLasts(AsyncIterator[bytes]):
    """The chunks of a reader, during the call that opened it."""

    def __init__(self, artifacts: Artifacts, chunks: AsyncIterable[bytes]) -> None:
        self._artifacts = artifacts
        self._chunks = aiter(chunks)

    async def __anext__(self) -> bytes:
        self._artifacts._check_lasting()
        return await anext(self._chunks)


class ToolContext:
    """What a tool is given of its call. It asks by annotating a parameter, which the model does not see.

    ``async def report(rows: int, ctx: cc.ToolContext) -> str: ...``

    Attributes:
        artifacts: the artifacts of this conversation.
        wanted: what is known of each artifact that the call wanted, by the argument's name.
        call: the call, with its arguments as the model spoke them, but for what rules changed.
        readers: the tools of this boundary that read refs back: their names, by what they do (``read``, ``search``,
            ``query``).
    """

    def __init__(
        self,
        artifacts: Artifacts,
        wanted: Mapping[str, ArtifactMeta],
        call: ToolCall,
        readers: Mapping[str, str] = {},
    ) -> None:
        self.artifacts: Artifacts = artifacts
        self.wanted: Mapping[str, ArtifactMeta] = wanted
        self.call: ToolCall = call
        self.readers: Mapping[str, str] = readers

    def progress(self, text: str, *, done: float | None = None, total: float | None = None) -> None:
        """Say how far the work is: an event `ToolProgress` for the host, which the model does not read.

        Args:
            text: for a person, at most 500 characters of it are kept.
            done, total: how much of how much, in any unit.
        """
        self.tell(ToolProgress, text=str(text)[:500], done=done, total=total)

    def tell(self, event: type[Event], **fields: Any) -> None:
        """For tools of the library: an event about this call."""
        self.artifacts.tell(event, **fields)


def refusal_reason(error: StoreError) -> str:
    """The word of `ArtifactRefused` for what a store raised."""
    match error:
        case InvalidArtifact() | InvalidRange():
            return "invalid-input"
        case UnknownParent():
            return "unknown-parent"
        case IntegrityError():
            return "digest-mismatch"
        case ArtifactsUnavailable():
            return "no-store"
        case _:
            return "store-failed"
