"""``query``: a SELECT or a JMESPath expression over one artifact."""

from __future__ import annotations

from typing import Annotated

import typer

from coatcheck.cli.artifacts import RefArgument, missing
from coatcheck.cli.edge import WRONG, command
from coatcheck.cli.output import complain, write
from coatcheck.cli.settings import ScopeOption, StoreOption, chosen_scope, readable_store
from coatcheck.readers.querying import Query, QueryLimits, produce

__all__ = ["query"]


@command()
async def query(
    ref: RefArgument,
    sql: Annotated[
        str | None,
        typer.Option("--sql", metavar="SELECT", help="Over the relation artifact: JSON, JSON Lines, CSV, Parquet."),
    ] = None,
    jmespath: Annotated[
        str | None, typer.Option("--jmespath", metavar="EXPRESSION", help="Over any JSON: 'rows[?age > `30`].name'.")
    ] = None,
    timeout: Annotated[float, typer.Option("--timeout", metavar="SECONDS", help="What the query may take.")] = 60.0,
    store: StoreOption = None,
    scope: ScopeOption = None,
) -> int:
    """Ask a stored result a question, and print all of the answer as JSON Lines: a row, or an element, a line.

    It is what query_artifact does for a model, without the bound on the answer: the query sees the artifact alone, no
    file and no network, and its memory is limited.

    Exit codes: 0 done, 1 nothing there or a query that cannot be answered, 2 usage.
    """
    whose = chosen_scope(scope)
    limits = QueryLimits(timeout=timeout, max_result_bytes=1 << 32)
    asked = Query.of(sql, jmespath)
    async with (
        readable_store(store) as opened,
        produce(lambda start, end: opened.open(whose, ref, start, end), asked, lines=True, limits=limits) as produced,
    ):
        if produced is None:
            complain(missing(ref))
            return WRONG
        async for chunk in produced.chunks():
            write(chunk)
        if produced.note is not None:
            complain(produced.note)
    return 0
