"""What is in a store, and keeping it in order: ``ls``, ``stat``, ``verify``, ``sweep``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Annotated, Literal

import msgspec
import typer

from coatcheck.artifacts.meta import ArtifactMeta
from coatcheck.artifacts.port import ArtifactStore
from coatcheck.artifacts.usage import Usage
from coatcheck.cli.artifacts import missing
from coatcheck.cli.edge import WRONG, command
from coatcheck.cli.output import complain, print_json, print_lines, spell_time
from coatcheck.cli.progress import progress
from coatcheck.cli.settings import JsonOption, ScopeOption, StoreOption, chosen_scope, readable_store
from coatcheck.errors import IntegrityError, StoreUnavailable
from coatcheck.scope import Scope, scope_segments

__all__ = ["Verdict", "ls", "stat", "sweep", "verify"]

_PAGE = 500


class Verdict(msgspec.Struct, frozen=True):
    """What ``verify`` found of one ref: a line of its ``--json``.

    Attributes:
        ref: the artifact.
        ok: whether its bytes are the bytes that were put.
        problem: ``None`` where it is; ``missing`` where there is nothing; ``damaged``; ``unreadable`` where the
            store could not give all of it.
        detail: the cause, for a person.
        bytes: of the payload, where it is known.
    """

    ref: str
    ok: bool
    problem: Literal["missing", "damaged", "unreadable"] | None = None
    detail: str | None = None
    bytes: int | None = None


@command()
async def ls(
    limit: Annotated[
        int | None, typer.Option("--limit", metavar="N", min=1, help="At most so many, the newest.")
    ] = None,
    store: StoreOption = None,
    scope: ScopeOption = None,
    as_json: JsonOption = False,
) -> int:
    """List the artifacts of the scope, newest first.

    Exit codes: 0 done, 1 not reachable, 2 usage.
    """
    whose = chosen_scope(scope)
    titled = as_json
    async with readable_store(store) as opened:
        async for page in _pages(opened, whose, limit):
            if as_json:
                print_json(page)
                continue
            if not titled and page:
                print_lines([_row("REF", "BYTES", "CREATED", "EXPIRES", "TYPE", "KIND", "LABEL")])
                titled = True
            print_lines(
                _row(
                    meta.ref,
                    str(meta.bytes),
                    spell_time(meta.created_at),
                    spell_time(meta.expires_at),
                    meta.media_type,
                    meta.kind,
                    meta.label or "",
                )
                for meta in page
            )
    return 0


@command()
async def stat(store: StoreOption = None, scope: ScopeOption = None, as_json: JsonOption = False) -> int:
    """Count what is stored, by scope and kind: of the whole store, or of the scope that is named.

    A store that cannot count over all scopes counts your own. Scopes are shown as the keys of a store spell them:
    tenant/principal/conversation, an absent field as _.

    Exit codes: 0 done, 1 not reachable, 2 usage.
    """
    whose = chosen_scope(scope)
    async with readable_store(store) as opened:
        usage: Callable[[], Awaitable[Sequence[Usage]]] | None = getattr(opened, "usage", None)  # no part of the port
        rows = await (_counted(opened, whose) if usage is None or scope is not None else usage())
    rows = sorted(rows, key=lambda row: (row.scope, row.kind))
    if as_json:
        print_json(rows)
        return 0
    print_lines(f"{row.count:>10}  {row.bytes:>16}  {'/'.join(row.scope)}  {row.kind}" for row in rows)
    print_lines([f"{sum(row.count for row in rows):>10}  {sum(row.bytes for row in rows):>16}  in all"])
    return 0


@command()
async def verify(
    refs: Annotated[
        list[str] | None,
        typer.Argument(metavar="REF", help="Which; all of the scope if none is named.", show_default=False),
    ] = None,
    store: StoreOption = None,
    scope: ScopeOption = None,
    as_json: JsonOption = False,
) -> int:
    """Read artifacts and compare them with their digests.

    Exit codes: 0 all are as they were put, 1 something is wrong (or not reachable), 2 usage.
    """
    wrong = total = 0
    whose = chosen_scope(scope)
    async with readable_store(store) as opened:
        async for verdict in _verdicts(opened, whose, refs):
            total += 1
            wrong += not verdict.ok
            if as_json:
                print_json([verdict])
            elif not verdict.ok:
                print_lines([f"{verdict.ref}  {verdict.problem}: {verdict.detail}"])
    if not as_json:
        print_lines([f"{total - wrong} of {total} are as they were put"])
    return WRONG if wrong else 0


@command()
async def sweep(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Remove nothing, and say what would be.")] = False,
    all_scopes: Annotated[bool, typer.Option("--all-scopes", help="Everyone's, not only those of the scope.")] = False,
    store: StoreOption = None,
    scope: ScopeOption = None,
    as_json: JsonOption = False,
) -> int:
    """Remove what has expired, and what a crash left behind.

    Exit codes: 0 done, 1 not reachable, 2 usage.
    """
    whose = None if all_scopes else chosen_scope(scope)
    async with readable_store(store) as opened:
        swept = await opened.sweep(whose, dry_run=dry_run)
    if as_json:
        print_json(swept)
        return 0
    print_lines(f"{row.ref or '-':<36}  {row.bytes:>14}  {row.reason:<9}  {row.kind}" for row in swept)
    would_be = "would be " if dry_run else ""
    print_lines([f"{len(swept)} {would_be}removed, {sum(row.bytes for row in swept)} bytes"])
    return 0


def _row(ref: str, size: str, created: str, expires: str, media_type: str, kind: str, label: str) -> str:
    return f"{ref:<36}  {size:>14}  {created:<20}  {expires:<20}  {media_type:<24}  {kind:<24}  {label}".rstrip()


async def _pages(store: ArtifactStore, scope: Scope, limit: int | None = None) -> AsyncIterator[Sequence[ArtifactMeta]]:
    """All that a scope holds, or the newest ``limit`` of it, page by page."""
    cursor, left = None, limit
    while True:
        page = await store.list(scope, cursor=cursor, limit=_PAGE if left is None else min(_PAGE, left))
        yield page.artifacts
        cursor = page.cursor
        if left is not None:
            left -= len(page.artifacts)
        if cursor is None or left == 0:
            return


async def _counted(store: ArtifactStore, scope: Scope) -> Sequence[Usage]:
    counts: dict[str, tuple[int, int]] = {}
    async for page in _pages(store, scope):
        for meta in page:
            count, size = counts.get(meta.kind, (0, 0))
            counts[meta.kind] = (count + 1, size + meta.bytes)
    return [Usage(scope_segments(scope), kind, count, size) for kind, (count, size) in counts.items()]


async def _verdicts(store: ArtifactStore, scope: Scope, refs: Sequence[str] | None) -> AsyncIterator[Verdict]:
    """A verdict for each of ``refs``; without any, for all that the scope holds."""
    if refs:
        for ref in dict.fromkeys(refs):
            yield await _verdict(store, scope, ref)
        return
    async for page in _pages(store, scope):
        for meta in page:
            verdict = await _verdict(store, scope, meta.ref)
            if verdict.problem != "missing":  # it went while we looked, which is nobody's fault
                yield verdict
    # What a listing leaves out because nobody can read it any more, a sweep would remove.
    try:
        leftovers = await store.sweep(scope, dry_run=True)
    except StoreUnavailable as error:  # as on a read-only disk
        complain(f"what a listing leaves out was not looked at: {error}")
        return
    for row in leftovers:
        if row.ref and row.reason == "orphan":
            yield Verdict(row.ref, False, "damaged", "it cannot be read any more; a sweep removes it", row.bytes)


async def _verdict(store: ArtifactStore, scope: Scope, ref: str) -> Verdict:
    try:
        async with store.open(scope, ref) as reader:
            if reader is None:
                return Verdict(ref, False, "missing", missing(ref))
            size = reader.meta.bytes
            with progress("verify", size) as advance:
                async for chunk in reader:
                    advance(len(chunk))
            return Verdict(ref, True, bytes=size)
    except IntegrityError as error:
        return Verdict(ref, False, "damaged", str(error))
    except StoreUnavailable as error:
        return Verdict(ref, False, "unreadable", str(error))
