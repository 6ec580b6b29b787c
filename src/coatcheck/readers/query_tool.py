"""``query_artifact``: a SELECT or a JMESPath expression over a placed result, as a tool."""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import AbstractAsyncContextManager
from importlib.util import find_spec
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from coatcheck.artifacts.port import ArtifactReader
from coatcheck.artifacts.ticket import placed_kind
from coatcheck.boundary.context import ToolContext
from coatcheck.boundary.tool import Tool, tool
from coatcheck.readers.answers import spell_call
from coatcheck.readers.querying import MAX_QUERY_CHARS, Produced, Query, QueryLimits, answer_query, produce
from coatcheck.readers.refs import Opener, ReaderError, clean_ref, missing

__all__ = ["has_jmespath", "has_sql", "query_tool"]

_MAX_REPEATED = 300
_INTO = '"into": "artifact"'


def has_sql() -> bool:
    """Whether SQL can be asked: the extra ``sql`` is installed."""
    return find_spec("duckdb") is not None


def has_jmespath() -> bool:
    """Whether JMESPath can be asked: the extra ``readers`` is installed."""
    return find_spec("jmespath") is not None


def query_tool(name: str, max_chars: int, limits: QueryLimits | None = None) -> Tool[..., Any]:
    """``query_artifact``, under a name and with a bound.

    Args:
        name: what it is called.
        max_chars: how many characters one answer has at most.
        limits: what one query may take.
    """
    bounds = limits or QueryLimits()
    kind = placed_kind(name)

    async def query_artifact(
        ref: Annotated[str, Meta(description="The ref, exactly as the ticket has it: art_ and 32 letters and digits.")],
        ctx: ToolContext,
        sql: Annotated[
            str,
            Meta(
                description="One SELECT (DuckDB) over the relation artifact, for rows: a JSON array of objects, JSON "
                'Lines, CSV, Parquet. "DESCRIBE artifact" gives the columns.'
            ),
        ]
        | None = None,
        jmespath: Annotated[
            str, Meta(description="A JMESPath expression, for any JSON, as in rows[?age > `30`].name or info.version.")
        ]
        | None = None,
        offset: Annotated[
            int, Meta(description="Pass over so many rows of the result, as an earlier answer gave it.")
        ] = 0,
        into: Annotated[Literal["artifact"], Meta(description="Store the whole result, and answer with its ref.")]
        | None = None,
    ) -> str:
        clean = clean_ref(ref)
        query = Query.of(sql, jmespath)
        if query.language == "sql" and not has_sql():
            raise ReaderError("SQL is not possible on this host: use jmespath, which reads any JSON.")
        opener, whose = _opener(ctx, clean), _whose(ctx)
        if into is not None:
            async with produce(opener, query, limits=bounds, whose=whose, max_chars=max_chars) as produced:
                if produced is not None:
                    return await _stored(ctx, produced, clean, kind)
            raise ReaderError(await missing(ctx.artifacts))
        answer = await answer_query(
            opener,
            query,
            max_chars=max_chars,
            again=lambda at: _again(ctx.readers.get("query", name), clean, query, at),
            offset=offset,
            into=f"the same call with {_INTO}",
            limits=bounds,
            whose=whose,
        )
        if answer is None:
            raise ReaderError(await missing(ctx.artifacts))
        return answer

    languages = "a SQL SELECT over its rows or a JMESPath expression" if has_sql() else "a JMESPath expression (no SQL)"
    description = (
        f"Ask a stored result a question, {languages}, without reading all of it. An answer has at most {max_chars} "
        "characters and whole rows, and says how many there are in all and the exact call for the next ones "
        "(of rows that have an order: use ORDER BY). A result "
        f'that is itself too large can be stored with into="artifact". A query has at most {MAX_QUERY_CHARS} '
        f"characters and {bounds.seconds:g} seconds."
    )
    return tool(name=name, description=description, reader="query", answers_within=max_chars)(query_artifact)


async def _stored(ctx: ToolContext, produced: Produced, parent: str, kind: str) -> str:
    result = await ctx.artifacts.put_stream(
        produced.chunks(),
        kind=kind,
        media_type=produced.media_type,
        label="query result",
        parents=[parent],
    )
    meta = result.meta
    stored = {"ref": meta.ref, "kind": meta.kind, "mediaType": meta.media_type, "bytes": meta.bytes}
    facts: dict[str, Any] = {"stored": {**stored, "rows": produced.rows}}
    columns = dict(list(produced.columns.items())[:40])
    if columns and sum(len(name) + len(word) for name, word in columns.items()) <= 1_500:
        facts["columns"] = columns
    if produced.note is not None:
        facts["note"] = produced.note[:1_500]
    facts["next"] = f"You have not read it. Give {meta.ref} exactly as written to a tool that takes such a ref."
    return msgspec.json.encode(facts).decode()


def _again(name: str, ref: str, query: Query, offset: int) -> str:
    """The exact call that goes on; a long query is not repeated."""
    if len(query.text) <= _MAX_REPEATED:
        return f"{name} {spell_call(ref, {query.language: query.text, 'offset': offset})}"
    return f"{name} with the same {query.language} and {spell_call(ref, {'offset': offset})}"


def _whose(ctx: ToolContext) -> Hashable:
    """The conversation, to be told from others and for nothing else: no tool is given its scope."""
    return ctx.artifacts._call.scope


def _opener(ctx: ToolContext, ref: str) -> Opener:
    def open_(start: int, end: int | None) -> AbstractAsyncContextManager[ArtifactReader | None]:
        return ctx.artifacts.open(ref, start, end)

    return open_
