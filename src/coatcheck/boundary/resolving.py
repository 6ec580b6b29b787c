"""The refs of a call become what the tool takes: all of them are judged before any is answered.

Law: `reference/behaviour.md` 9.8. A refusal, a damaged payload and a store that cannot answer are outcomes of the call;
none of them ever escapes from it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import tempfile
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

import anyio
import msgspec
from anyio import to_thread

from coatcheck.artifacts.meta import ArtifactMeta
from coatcheck.artifacts.port import ArtifactStore
from coatcheck.artifacts.ref import clean_ref
from coatcheck.boundary.context import Artifacts, refusal_reason
from coatcheck.boundary.wants import Want
from coatcheck.dispatch import Dispatch, is_stray
from coatcheck.errors import IntegrityError, StoreError
from coatcheck.events import ArtifactRefused, ArtifactResolved
from coatcheck.outcome import Outcome, failed
from coatcheck.results.binary import is_textual
from coatcheck.results.shapes import clip

__all__ = ["Resolved", "live_refs", "refuse_misspoken", "resolve"]

_T = TypeVar("_T")
_log = logging.getLogger("coatcheck")

_SHOWN = 10
_SCANNED = 200
_PAGE = 50
_DECODED_INLINE = 1 << 18
_ANSWERS_WITHIN = 30.0  # seconds
_LISTS_WITHIN = 5.0
_LEAST_RATE = 1_000_000  # bytes a second, below which a store counts as one that hangs
_lines = msgspec.json.Decoder()
_JSON = "application/json"
_ROWS = "application/jsonl"


class Resolved(msgspec.Struct, frozen=True):
    """What the tool is called with. values: by argument. metas: of the artifacts, by argument."""

    values: dict[str, Any]
    metas: dict[str, ArtifactMeta]


class _Refusal(Exception):
    """One argument is refused. reason: the word of the event. problem: for the model, after the argument's name."""

    def __init__(self, want: Want, ref: str | None, reason: str, problem: str) -> None:
        self.want = want
        self.ref = ref
        self.reason = reason
        self.said = f"{want.spoken} {problem}"
        super().__init__(self.said)


async def resolve(
    call: Dispatch,
    wants: Mapping[str, Want],
    arguments: Mapping[str, Any],
    store: ArtifactStore | None,
    artifacts: Artifacts,
    stack: AsyncExitStack,
) -> Resolved | Outcome:
    """Redeem the refs among the arguments.

    Args:
        wants: what the tool declares.
        arguments: as they were checked against the tool's signature; what was not given is left alone.
        artifacts: those of the call, for naming what could be meant.
        stack: what is opened for the tool is closed with it.

    Returns:
        The payloads, or the outcome that refuses the call and says why for every argument.
    """
    given = {name: value for name, value in arguments.items() if name in wants and isinstance(value, str)}
    if not given:
        return Resolved({}, {})
    judged = {name: clean_ref(value) for name, value in given.items()}
    if store is None:
        no_store = [_keeps_nothing(wants[name], ref) for name, ref in judged.items()]
        return await _refused(call, no_store, artifacts)
    refusals: list[_Refusal] = []
    metas: dict[str, ArtifactMeta] = {}
    answers: dict[str, ArtifactMeta | _Refusal] = {}

    async def judge(name: str, ref: str) -> None:
        try:
            answers[name] = await _judged(store, call, ref, wants[name])
        except _Refusal as refusal:
            answers[name] = refusal

    async with anyio.create_task_group() as judging:  # a store that hangs costs its time once
        for name, ref in judged.items():
            judging.start_soon(judge, name, ref)
    for name in judged:
        answer = answers[name]
        if isinstance(answer, _Refusal):
            refusals.append(answer)
        else:
            metas[name] = answer
    values: dict[str, Any] = {}
    if not refusals:
        for name, meta in metas.items():
            try:
                values[name] = await _redeemed(store, call, meta, wants[name], stack)
            except _Refusal as refusal:
                refusals.append(refusal)
    if refusals:
        return await _refused(call, refusals, artifacts)
    for meta in metas.values():
        if meta.ref not in call.wanted:
            call.wanted.append(meta.ref)
        if call.emit is not None:
            about: dict[str, Any] = {"tool": call.name, "call_id": call.call_id, "turn": call.turn}
            call.emit(ArtifactResolved(**about, ref=meta.ref, via="get", kind=meta.kind, bytes=meta.bytes))
    return Resolved(values, metas)


async def refuse_misspoken(
    call: Dispatch,
    wants: Mapping[str, Want],
    arguments: Mapping[str, Any],
    schema: Mapping[str, Any],
    store: ArtifactStore | None,
) -> str:
    """What to say to arguments that were refused, where the model spoke no text in place of a ref, or nothing."""
    said, kinds = "", set()
    for want in wants.values():
        if want.spoken not in arguments:
            wrong = want.spoken in schema["required"]
        elif arguments[want.spoken] is None:  # as good as nothing where that is the parameter's default
            wrong = schema["properties"][want.spoken].get("default", want) is not None
        else:
            wrong = not isinstance(arguments[want.spoken], str)
        if wrong:
            refusal = _Refusal(want, None, "invalid-input", f"takes the ref of a {want.kind}")
            _tell(call, refusal)
            said += f" {refusal.said}."
            kinds.add(want.kind)
    return said if not kinds or store is None else f"{said} {await live_refs(Artifacts(store, call), kinds)}"


async def _judged(store: ArtifactStore, call: Dispatch, ref: str, want: Want) -> ArtifactMeta:
    if not ref:
        raise _Refusal(want, None, "invalid-input", f"is blank: it takes the ref of a {want.kind}")
    meta = await _asked(want, ref, store.head(call.scope, ref))
    if meta is None:
        raise _missing(want, ref)
    if meta.kind != want.kind:
        said = f"is of the kind {meta.kind}, and has to be of the kind {want.kind}"
        raise _Refusal(want, ref, "kind-mismatch", said)
    return meta


async def _redeemed(store: ArtifactStore, call: Dispatch, meta: ArtifactMeta, want: Want, stack: AsyncExitStack) -> Any:
    """The payload, as the tool takes it."""
    if want.form == "reader":  # open beyond this, and so in no scope of its own
        reader = await _asked(want, meta.ref, stack.enter_async_context(store.open(call.scope, meta.ref)), math.inf)
        if reader is None:
            raise _missing(want, meta.ref)
        return reader
    if want.form == "path":
        copying = stack.enter_async_context(_private_file(store, call, meta, want))
        return await _asked(want, meta.ref, copying, meta.bytes)
    artifact = await _asked(want, meta.ref, store.get(call.scope, meta.ref), meta.bytes)
    if artifact is None:
        raise _missing(want, meta.ref)
    if want.form == "bytes":
        return artifact.data
    try:
        if len(artifact.data) <= _DECODED_INLINE:
            return _decoded(artifact.data, meta.media_type, want)
        return await to_thread.run_sync(_decoded, artifact.data, meta.media_type, want)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError) as error:
        said = f"does not hold what {call.name} takes: {clip(str(error), 300)}"
        raise _Refusal(want, meta.ref, "invalid-input", said) from None


def _decoded(data: bytes, media_type: str, want: Want) -> Any:
    if want.form == "text":
        return data.decode()
    if media_type == _JSON:
        return msgspec.json.decode(data, type=want.type)
    if media_type == _ROWS:
        return msgspec.convert(_lines.decode_lines(data), want.type)
    value = data.decode() if is_textual(media_type) else data
    return msgspec.convert(value, want.type)


@asynccontextmanager
async def _private_file(store: ArtifactStore, call: Dispatch, meta: ArtifactMeta, want: Want) -> AsyncIterator[Path]:
    """The payload in a file that only this process may read, until the end of the block."""
    folder = await to_thread.run_sync(lambda: tempfile.TemporaryDirectory(prefix="coatcheck-"))
    try:
        path = Path(folder.name) / meta.ref
        async with (
            store.open(call.scope, meta.ref) as reader,
            await anyio.open_file(path, "xb", opener=_private) as file,
        ):
            if reader is None:
                raise _missing(want, meta.ref)
            async for chunk in reader:
                await file.write(chunk)
        yield path
    finally:
        with anyio.CancelScope(shield=True):
            await to_thread.run_sync(folder.cleanup)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


async def _asked(want: Want, ref: str, work: Awaitable[_T], size: float = 0) -> _T:
    """What a store answers; where it cannot, whatever the cause, or takes too long for ``size`` bytes, a refusal."""
    scope = nullcontext() if size == math.inf else anyio.fail_after(_ANSWERS_WITHIN + size / _LEAST_RATE)
    try:
        with scope:
            return await work
    except _Refusal:
        raise
    except IntegrityError:
        raise _Refusal(want, ref, "digest-mismatch", "is damaged, and was not handed out: have it made again") from None
    except asyncio.CancelledError as error:
        if not is_stray(error):
            raise
        problem: BaseException = error
    except Exception as error:  # noqa: BLE001 - whatever the store does is an outcome of the call
        problem = error
    _log.warning("the artifact %r that a call wanted could not be read (%r)", ref[:64], problem)
    reason = refusal_reason(problem) if isinstance(problem, StoreError) else "store-failed"
    raise _Refusal(want, ref, reason, "could not be read, because the store does not answer now: try again later")


def _missing(want: Want, ref: str) -> _Refusal:
    return _Refusal(want, ref, "missing-or-expired", "names nothing that is here: no such ref, or it has expired")


def _keeps_nothing(want: Want, ref: str) -> _Refusal:
    said = f"takes the ref of a {want.kind}, and this host keeps no artifacts: go on without it"
    return _Refusal(want, ref, "no-store", said)


async def _refused(call: Dispatch, refusals: Sequence[_Refusal], artifacts: Artifacts) -> Outcome:
    """The outcome of a call whose refs were not redeemed."""
    for refusal in refusals:
        _tell(call, refusal)
    text = f"{call.name} did not run. " + ". ".join(refusal.said for refusal in refusals) + "."
    if artifacts.there:
        text += " " + await live_refs(artifacts, {refusal.want.kind for refusal in refusals})
    return failed(call, text)


def _tell(call: Dispatch, refusal: _Refusal) -> None:
    if call.emit is not None:
        about: dict[str, Any] = {"tool": call.name, "call_id": call.call_id, "turn": call.turn}
        call.emit(ArtifactRefused(**about, op="dispatch", reason=refusal.reason, ref=refusal.ref))


async def live_refs(artifacts: Artifacts, kinds: set[str] | None = None) -> str:
    """What could be meant: the newest refs of this conversation, of these kinds, or of any. Never raises."""
    found: list[ArtifactMeta] = []
    cursor, scanned = None, 0
    try:
        with anyio.fail_after(_LISTS_WITHIN):
            while scanned < _SCANNED and len(found) < _SHOWN:
                page = await artifacts.list(cursor=cursor, limit=_PAGE)
                found += [meta for meta in page.artifacts if kinds is None or meta.kind in kinds]
                scanned, cursor = scanned + len(page.artifacts), page.cursor
                if cursor is None:
                    break
    except Exception:  # noqa: BLE001 - a refusal is given all the same
        return "What is here cannot be listed now."
    wanted = "" if kinds is None else f" of the kind {' or '.join(sorted(kinds))}"
    if not found:
        return f"There is no artifact{wanted} in this conversation: call the tool that makes it first."
    rows = [f"{meta.ref} ({meta.kind}, {meta.bytes} bytes)" for meta in found[:_SHOWN]]
    return f"Artifacts{wanted} that are here, the newest first: {'; '.join(rows)}. Give one of these refs as written."
