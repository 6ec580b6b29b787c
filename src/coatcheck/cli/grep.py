"""``grep``: the lines of a stored text that match, without getting all of it."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Annotated, Any

import typer

from coatcheck.artifacts.port import ArtifactReader
from coatcheck.cli.artifacts import RefArgument, missing
from coatcheck.cli.edge import WRONG, command
from coatcheck.cli.output import complain, print_json, print_lines
from coatcheck.cli.settings import JsonOption, ScopeOption, StoreOption, chosen_scope, readable_store
from coatcheck.errors import ConfigurationError
from coatcheck.readers.refs import ReaderError
from coatcheck.readers.searching import LARGEST_CONTEXT, LARGEST_MAX_MATCHES, Found, search

__all__ = ["grep"]


@command()
async def grep(
    pattern: Annotated[
        str, typer.Argument(metavar="PATTERN", help="A regular expression as RE2 has it.", show_default=False)
    ],
    ref: RefArgument,
    literal: Annotated[bool, typer.Option("--literal", "-F", help="Look for PATTERN itself.")] = False,
    ignore_case: Annotated[
        bool, typer.Option("--ignore-case", "-i", help="Upper and lower case are the same.")
    ] = False,
    context: Annotated[
        int,
        typer.Option("--context", "-C", metavar="N", min=0, max=LARGEST_CONTEXT, help="Lines around each match."),
    ] = 0,
    most: Annotated[
        int | None, typer.Option("--max-count", "-m", metavar="N", min=1, help="End after so many matching lines.")
    ] = None,
    store: StoreOption = None,
    scope: ScopeOption = None,
    as_json: JsonOption = False,
) -> int:
    """Show the lines of a stored text that match a pattern, each as LINE:BYTE:TEXT.

    BYTE is where the line begins; of a line that is too long to show, a part around the match is shown, and BYTE is
    where that begins. It takes time linear in the text, whatever the pattern.

    Exit codes: 0 some line matches, 1 none does, or nothing there or binary or damaged or not reachable, 2 usage.
    """
    whose = chosen_scope(scope)
    left = most
    start: dict[str, Any] | None = {}
    code = WRONG
    async with readable_store(store) as opened:

        def open_(first: int, end: int | None) -> AbstractAsyncContextManager[ArtifactReader | None]:
            return opened.open(whose, ref, first, end)

        while start is not None and left != 0:
            few = LARGEST_MAX_MATCHES if left is None else min(left, LARGEST_MAX_MATCHES)
            try:
                found = await search(
                    open_,
                    pattern,
                    literal=literal,
                    ignore_case=ignore_case,
                    context=context,
                    max_matches=few,
                    **start,
                )
            except ReaderError as error:
                raise ConfigurationError(str(error).replace("with literal=true", "with --literal")) from None
            if not isinstance(found, Found):
                complain(missing(ref) if found is None else found)
                return WRONG
            if found.hits:
                code = 0
                _show(found, as_json)
            left = None if left is None else left - len(found.hits)
            start = None if found.next is None else dict(found.next)
    return code


def _show(found: Found, as_json: bool) -> None:
    rows: list[object] = []
    lines: list[str] = []
    for hit, (before, behind) in zip(found.hits, found.context, strict=True):
        row: dict[str, object] = {"line": hit.line, "byte": hit.start, "match": hit.at, "text": hit.text}
        if not hit.whole:
            row["from"] = hit.shown_from
        if before or behind:
            row |= {"before": before, "behind": behind}
        rows.append(row)
        lines.extend(f"  {text}" for text in before)
        lines.append(f"{hit.line}:{hit.start if hit.whole else hit.shown_from}:{hit.text}")
        lines.extend(f"  {text}" for text in behind)
        if before or behind:
            lines.append("--")
    if as_json:
        print_json(rows)
    else:
        print_lines(lines)
