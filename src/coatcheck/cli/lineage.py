"""What an artifact was made from: ``lineage``."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from typing import Annotated

import msgspec
import typer

from coatcheck.artifacts.meta import ArtifactMeta
from coatcheck.artifacts.port import ArtifactStore
from coatcheck.cli.artifacts import RefArgument, missing
from coatcheck.cli.edge import WRONG, command
from coatcheck.cli.output import complain, print_json, print_lines, spell_time
from coatcheck.cli.settings import JsonOption, ScopeOption, StoreOption, chosen_scope, readable_store
from coatcheck.scope import Scope

__all__ = ["Ancestor", "lineage"]


class Ancestor(msgspec.Struct, frozen=True):
    """One artifact of a lineage: a line of its ``--json``.

    Attributes:
        ref: the artifact.
        depth: how many steps it is away from the one that was asked for, by the shortest way; 0 for that one.
        meta: what is known of it; ``None`` where it is gone: deleted, expired, or pushed out by others.
    """

    ref: str
    depth: int
    meta: ArtifactMeta | None


@command()
async def lineage(
    ref: RefArgument,
    depth: Annotated[int, typer.Option("--depth", metavar="N", min=0, help="At most so many steps back.")] = 100,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="At most so many artifacts.")] = 1000,
    store: StoreOption = None,
    scope: ScopeOption = None,
    as_json: JsonOption = False,
) -> int:
    """Show what an artifact was made from, and what that was made from, the nearest first, each once.

    A parent that is gone is shown as such: what it was made from is not known any more.

    Exit codes: 0 done, 1 nothing there or not reachable, 2 usage.
    """
    whose = chosen_scope(scope)
    async with readable_store(store) as opened:
        walk = _Walk(opened, whose, depth, limit)
        async for ancestor in walk.back_from(ref):
            if ancestor.depth == 0 and ancestor.meta is None:
                complain(missing(ref))
                return WRONG
            if as_json:
                print_json([ancestor])
                continue
            if ancestor.depth == 0:
                print_lines([_row("STEPS", "REF", "BYTES", "CREATED", "KIND", "MADE BY")])
            print_lines([_line(ancestor)])
    if walk.left:
        complain("there is more behind these: raise --depth or --limit to see it")
    return 0


class _Walk:
    """The ancestors of one artifact, breadth first. left: whether some were left out."""

    def __init__(self, store: ArtifactStore, scope: Scope, depth: int, limit: int) -> None:
        self._store = store
        self._scope = scope
        self._depth = depth
        self._limit = limit
        self.left = False

    async def back_from(self, ref: str) -> AsyncIterator[Ancestor]:
        """The artifact itself, then its parents, then theirs."""
        known, waiting = {ref}, deque([(ref, 0)])
        while waiting:
            current, depth = waiting.popleft()
            meta = await self._store.head(self._scope, current)
            yield Ancestor(current, depth, meta)
            for parent in () if meta is None else meta.parents:
                if parent in known:
                    continue
                if depth == self._depth or len(known) == self._limit:
                    self.left = True
                    break
                known.add(parent)
                waiting.append((parent, depth + 1))


def _line(ancestor: Ancestor) -> str:
    steps, meta = str(ancestor.depth), ancestor.meta
    if meta is None:
        return _row(steps, ancestor.ref, "-", "gone", "", "")
    tool = (meta.origin or {}).get("tool", "")
    return _row(steps, meta.ref, str(meta.bytes), spell_time(meta.created_at), meta.kind, tool)


def _row(steps: str, ref: str, size: str, created: str, kind: str, tool: str) -> str:
    return f"{steps:>5}  {ref:<36}  {size:>14}  {created:<20}  {kind:<24}  {tool}".rstrip()
