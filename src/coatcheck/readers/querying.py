"""SQL and JMESPath over an artifact, by ranged reads: the cores of ``query_artifact`` and of ``coatcheck query``.

    payload ──► a file without a name ──► a process for this query ──► rows within a bound, or a file with all of them

Laws:

* Whatever the query is, it ends within its time, and takes no more than its memory. What evaluates it is a process of
  its own (`worker`): a thread cannot be stopped, and a library that crashes on an evil query would take the host along.
* That process has no environment, no file but the payload, and no network (`sql` says how).
* The payload is on disk at most `QueryLimits.max_query_bytes` long, in a file that has no name, so nothing is left of
  it however anything ends. Cancelling kills the process.
* At most four queries run at once in one event loop, and at most two of one conversation: before its payload is
  copied, a query takes its place, and it waits for that no longer than a query may take.
* An answer is at most ``max_chars`` characters, holds whole rows, says how many there are, and how to go on.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Literal

import msgspec
from anyio import CapacityLimiter, move_on_after, to_thread
from anyio.lowlevel import RunVar

from coatcheck.artifacts.meta import ArtifactMeta
from coatcheck.errors import ConfigurationError
from coatcheck.readers.query_process import NamelessFiles, QueryProcess
from coatcheck.readers.refs import Opener, ReaderError
from coatcheck.results.binary import is_textual
from coatcheck.settings import check_duration, check_whole

__all__ = ["MAX_QUERY_CHARS", "Produced", "Query", "QueryLimits", "answer_query", "produce", "query_form"]

MAX_QUERY_CHARS = 10_000
"""How long a query may be; an expression in JMESPath, whose parser is recursive, a tenth of it."""

_CHUNK = 1 << 20
_GRACE = 2.0  # seconds that the process has to say that its time is up
_AT_ONCE = 4
_AT_ONCE_OF_ONE = 2
_LEAST_WAIT = 1.0  # seconds
_LEAST_NOTE = 40  # characters of a note that is cut; less says nothing
_FRAME = 700  # characters that an answer keeps for what it says about a text
_FORMS = {
    "application/jsonl": "jsonl",
    "application/x-jsonlines": "jsonl",
    "application/ndjson": "jsonl",
    "application/x-ndjson": "jsonl",
    "application/json-seq": "jsonl",
    "text/csv": "csv",
    "text/tab-separated-values": "tsv",
    "application/vnd.apache.parquet": "parquet",
    "application/x-parquet": "parquet",
    "application/parquet": "parquet",
}


class QueryLimits(msgspec.Struct, frozen=True):
    """What one query may take.

    Args:
        max_query_bytes: the largest payload that SQL is asked of; so much disk it takes while it lasts.
        max_json_bytes: the largest payload that JMESPath is asked of: it is held as a whole.
        max_result_bytes: the largest result that ``into`` stores.
        memory_bytes: what the process may take beyond what it starts with; DuckDB itself takes half of it.
        timeout: how long it may take, in seconds or as a `timedelta`; reading the payload does not count.
        threads: how many threads DuckDB runs.

    Raises:
        ConfigurationError: naming the dial that cannot be honoured.
    """

    max_query_bytes: int = 1 << 30
    max_json_bytes: int = 64 << 20
    max_result_bytes: int = 256 << 20
    memory_bytes: int = 1 << 30
    timeout: float | timedelta = 20.0
    threads: int = 2

    def __post_init__(self) -> None:
        for name in ("max_query_bytes", "max_json_bytes", "max_result_bytes", "threads"):
            check_whole(f"QueryLimits.{name}", getattr(self, name))
        check_whole("QueryLimits.memory_bytes", self.memory_bytes, least=64 << 20)
        seconds = check_duration("QueryLimits.timeout", self.timeout)
        if seconds > 3600:
            raise ConfigurationError("QueryLimits.timeout must be at most an hour: a query holds a process")
        msgspec.structs.force_setattr(self, "timeout", seconds)

    @property
    def seconds(self) -> float:
        """The timeout, in seconds."""
        return check_duration("QueryLimits.timeout", self.timeout)


class Query(msgspec.Struct, frozen=True):
    """What is asked.

    Attributes:
        language: ``sql`` or ``jmespath``.
        text: the query.
    """

    language: Literal["sql", "jmespath"]
    text: str

    @classmethod
    def of(cls, sql: str | None, jmespath: str | None) -> Query:
        """The one of the two that is given.

        Raises:
            ReaderError: none is, or both are, or it is too long.
        """
        if (sql is None) == (jmespath is None):
            raise ReaderError(
                "Give one of sql and jmespath: sql for rows (a SELECT over the relation artifact), "
                "jmespath for any JSON (rows[?age > `30`].name)."
            )
        query = cls("sql", sql) if sql is not None else cls("jmespath", jmespath or "")
        longest = MAX_QUERY_CHARS if sql is not None else MAX_QUERY_CHARS // 10
        if len(query.text) > longest:
            raise ReaderError(f"The query has {len(query.text)} characters; at most {longest} are possible.")
        if not query.text.strip():
            raise ReaderError("The query is empty.")
        return query


class Produced(msgspec.Struct, frozen=True):
    """A whole result, in a file without a name that lasts as long as its ``async with``.

    Attributes:
        media_type: ``application/json``, or ``application/jsonl`` for lines.
        rows: how many rows, or elements of a list, there are; 1 for any other value.
        columns: names with types, of SQL.
        note: what to know about it, or ``None``.
        size: in bytes.
        descriptor: of the file.
    """

    media_type: str
    rows: int
    columns: dict[str, str]
    note: str | None
    size: int
    descriptor: int

    async def chunks(self) -> AsyncIterator[bytes]:
        """The result, piece by piece."""
        at = 0
        while at < self.size:
            chunk = await to_thread.run_sync(os.pread, self.descriptor, _CHUNK, at)
            if not chunk:
                return
            at += len(chunk)
            yield chunk


def query_form(media_type: str) -> str:
    """How a payload is written, as far as its media type says: ``json``, ``jsonl``, ``csv``, ``tsv``, ``parquet``,
    ``text`` (which may be any of the first four), ``binary`` (which may be Parquet).
    """
    if media_type in _FORMS:
        return _FORMS[media_type]
    if media_type == "application/json" or media_type.endswith("+json"):
        return "json"
    return "text" if is_textual(media_type) else "binary"


async def answer_query(
    opener: Opener,
    query: Query,
    *,
    max_chars: int,
    again: Callable[[int], str],
    offset: int = 0,
    into: str | None = None,
    limits: QueryLimits | None = None,
    whose: Hashable = None,
) -> str | None:
    """Ask, and answer within a bound.

    Args:
        opener: of the artifact.
        max_chars: of the answer, in characters.
        again: spells the call that goes on at an offset.
        offset: how many rows, elements of a list, or characters of a text are passed over.
        into: how the whole result can be stored, for the answer to say; ``None`` where it cannot.
        whose: whom the query is for: two of one run at once; ``None``: nobody in particular, so only four in all do.

    Returns:
        JSON text; ``None`` where there is no artifact.

    Raises:
        ReaderError: the query, or the artifact, is not one that can be answered; the text teaches.
        StoreError: the store cannot answer, or the payload is damaged.
    """
    limits = limits or QueryLimits()
    offset = max(offset, 0)
    async with _asked(opener, query, limits, max_chars=max_chars, offset=offset, whose=whose) as asked:
        if asked is None:
            return None
        return _answer(asked.reply, query, offset, max_chars, again, into)


@asynccontextmanager
async def produce(
    opener: Opener,
    query: Query,
    *,
    lines: bool = False,
    limits: QueryLimits | None = None,
    whose: Hashable = None,
    max_chars: int = 0,
) -> AsyncIterator[Produced | None]:
    """Ask, and give the whole result as a file.

    Args:
        lines: JSON Lines, a row (or an element of a list) a line; else one JSON value.
        whose: as `answer_query`.
        max_chars: of a refusal, in characters; 0 for as many as it has.

    Raises:
        ReaderError, StoreError: as `answer_query`.
    """
    style = "lines" if lines else "array"
    async with _asked(opener, query, limits or QueryLimits(), style=style, whose=whose, max_chars=max_chars) as asked:
        if asked is None or asked.out is None:
            yield None
            return
        yield Produced(
            "application/jsonl" if lines else "application/json",
            asked.reply["all"],
            dict(map(tuple, asked.reply.get("columns", ()))),
            asked.reply.get("note"),
            os.fstat(asked.out).st_size,
            asked.out,
        )


# --- answers ---


def _answer(
    reply: dict[str, Any], query: Query, offset: int, max_chars: int, again: Callable[[int], str], into: str | None
) -> str:
    kind = "rows" if query.language == "sql" else reply["kind"]
    unit = {"rows": "rows", "array": "elements", "string": "characters"}.get(kind)
    rows: list[str] = reply["rows"]
    while True:  # what it says of its rows depends on how many there are
        facts = _facts(reply, unit, kind, offset, len(rows), again, into)
        body = f"[{','.join(rows)}]" if kind in ("rows", "array") else (rows[0] if rows else "null")
        name = "rows" if kind == "rows" else "result"
        head = json.dumps(facts, ensure_ascii=False, separators=(",", ":"))
        text = f"{head[:-1]}{',' if facts else ''}{json.dumps(name)}:{body}}}"
        if len(text) <= max_chars:
            return text
        if kind in ("rows", "array") and rows:
            over = len(text) - max_chars
            while rows and over > 0:
                over -= len(rows[-1]) + 1
                rows = rows[:-1]
        elif reply.get("columns"):
            reply = {**reply, "columns": []}
        elif reply.get("note"):
            note = reply["note"][: -(len(text) - max_chars) - 1]
            reply = {**reply, "note": f"{note}…" if len(note) >= _LEAST_NOTE else None}
        else:
            raise ReaderError("The result does not fit into the characters that an answer may have: select less.")


def _facts(
    reply: dict[str, Any],
    unit: str | None,
    kind: str,
    offset: int,
    shown: int,
    again: Callable[[int], str],
    into: str | None,
) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    store = f" Or store the whole result: {into}." if into else ""
    loose = reply.get("loose")
    if unit is not None:
        total = reply["all"]
        end = offset + shown if kind != "string" else reply["seen"]
        facts[f"{unit}_in_all"] = total if total is not None else f"more than {reply['seen']}; counting took too long"
        if offset or end != total:
            facts["shown"] = f"{unit} {offset} to {end - 1}" if end > offset else f"none from {offset} on"
        large = reply.get("large")
        if shown == 0 and large is not None:
            facts["next"] = (
                f"The next one alone has {large['characters']} characters, which does not fit: select less of it"
                f"{_largest(large)}{'' if loose else f', or go on after it: {again(offset + 1)}'}.{store}"
            )
        elif (total is None or end < total) and end > offset:
            if loose:
                facts["next"] = f"{_LOOSE[loose]}{store}{' Then go on in that.' if store else ''}"
            else:
                facts["next"] = f"{again(end)}. Or ask for less: filter, aggregate, select fewer columns.{store}"
    elif reply.get("large") is not None:
        large = reply["large"]
        keys = ", ".join(large.get("keys", ()))
        facts["next"] = (
            f"The result has {large['characters']} characters or more, which does not fit: select a part of it"
            f"{f' (its keys: {keys})' if keys else ''}.{store}"
        )
    if reply.get("note"):
        facts["note"] = reply["note"]
    columns = dict(map(tuple, reply.get("columns") or ()))
    if columns and len(columns) <= 60 and sum(len(name) + len(kind) for name, kind in columns.items()) <= 1500:
        facts["columns"] = columns
    return facts


_LOOSE = {
    "order": "The order of these rows is not fixed, so a further call could skip some and repeat others: add ORDER BY "
    "over columns that tell them apart, and ask again. Or ask for less: filter, select fewer columns.",
    "random": "The query samples, or is random, so a further call would give other rows. Ask for less.",
}


def _largest(large: dict[str, Any]) -> str:
    sizes = large.get("largest") or {}
    if not sizes:
        return ""
    return " (the largest: " + ", ".join(f"{name} {chars} characters" for name, chars in sizes.items()) + ")"


# --- the process ---


class _Asked(msgspec.Struct, frozen=True):
    reply: dict[str, Any]
    out: int | None


@asynccontextmanager
async def _asked(
    opener: Opener,
    query: Query,
    limits: QueryLimits,
    *,
    max_chars: int = 0,
    offset: int = 0,
    style: str | None = None,
    whose: Hashable = None,
) -> AsyncIterator[_Asked | None]:
    try:
        async with (
            _place(whose, limits),
            _evaluated(opener, query, limits, max_chars=max_chars, offset=offset, style=style) as asked,
        ):
            yield asked
    except ReaderError as error:
        text = str(error)
        if 0 < max_chars < len(text):
            raise ReaderError(f"{text[: max_chars - 1]}…") from None
        raise


@asynccontextmanager
async def _evaluated(
    opener: Opener, query: Query, limits: QueryLimits, *, max_chars: int, offset: int, style: str | None
) -> AsyncIterator[_Asked | None]:
    files = NamelessFiles()
    child = QueryProcess(files)
    try:
        meta = await _spooled(opener, query, limits, files)
        if meta is None:
            yield None
            return
        out = None if style is None else await to_thread.run_sync(files.make)
        request = {
            "what": query.language,
            "query": query.text,
            "form": query_form(meta.media_type),
            "size": meta.bytes,
            "data": files.descriptors[0],
            "out": out,
            "out_bytes": limits.max_result_bytes,
            "style": style,
            "chars": max_chars,
            "text_chars": max(max_chars - _FRAME, max_chars // 4),
            "offset": offset,
            "seconds": limits.seconds,
            "memory": limits.memory_bytes,
            "threads": limits.threads,
            "path": [entry for entry in sys.path if entry.startswith("/")],
        }
        line = json.dumps(request).encode() + b"\n"
        raw: bytes | None = None
        with move_on_after(limits.seconds + _GRACE):
            raw = await to_thread.run_sync(child.ask, line, abandon_on_cancel=True, limiter=_threads())
        yield _Asked(_read_reply(raw, child.status, limits), out)
    finally:
        child.give_up()


async def _spooled(opener: Opener, query: Query, limits: QueryLimits, files: NamelessFiles) -> ArtifactMeta | None:
    """The payload in a file without a name, compared with its digest on the way."""
    async with opener(0, None) as reader:
        if reader is None:
            return None
        meta = reader.meta
        form = query_form(meta.media_type)
        if query.language == "jmespath" and form not in ("json", "jsonl", "text"):
            raise ReaderError(
                f"JMESPath reads JSON, and this is {meta.media_type}."
                + (" Use sql." if form in ("csv", "tsv", "parquet") else " Describe it with read_artifact.")
            )
        limit = limits.max_query_bytes if query.language == "sql" else limits.max_json_bytes
        if meta.bytes > limit:
            advice = (
                " Use sql, or search_artifact and read_artifact, which read it in parts."
                if query.language == "jmespath"
                else " Use search_artifact and read_artifact, which read it in parts."
            )
            raise ReaderError(f"It has {meta.bytes} bytes; {query.language} is asked of {limit} bytes at most.{advice}")
        descriptor = await to_thread.run_sync(files.make)
        async for chunk in reader:
            await to_thread.run_sync(_write_all, descriptor, chunk)
        return meta


def _write_all(descriptor: int, chunk: bytes) -> None:
    view = memoryview(chunk)
    while view:
        view = view[os.write(descriptor, view) :]


def _read_reply(raw: bytes | None, status: int | None, limits: QueryLimits) -> dict[str, Any]:
    if raw is None:
        raise ReaderError(
            f"The query took longer than the {limits.seconds:g} seconds that it may take, and was stopped: filter "
            "earlier, join less, or ask for less at once."
        )
    try:
        reply: dict[str, Any] = json.loads(raw)
    except ValueError:
        raise ReaderError(_ended_text(status, limits)) from None
    if "error" in reply:
        text = str(reply["error"]).rstrip(".")
        raise ReaderError(f"{text[:1].upper()}{text[1:]}.")
    return reply


def _ended_text(status: int | None, limits: QueryLimits) -> str:
    if status == 1:
        return (
            "Queries cannot be answered here: what evaluates them did not start. SQL needs the extra coatcheck[sql] "
            "(DuckDB), JMESPath the extra coatcheck[readers]. Use search_artifact and read_artifact."
        )
    return (
        f"The query ended what evaluates it: it needed more than {limits.memory_bytes >> 20} MiB of memory, more "
        "processor time than it may take, or is nested too deeply. Ask for something simpler."
    )


class _Places:
    """Who evaluates a query in this loop, or waits for it: each may take its memory and its processors."""

    def __init__(self) -> None:
        self.all = CapacityLimiter(_AT_ONCE)
        self.own: dict[Hashable, CapacityLimiter] = {}
        self.asking: Counter[Hashable] = Counter()


@asynccontextmanager
async def _place(whose: Hashable, limits: QueryLimits) -> AsyncIterator[None]:
    """A place for one query, first among those of one conversation, then among all."""
    places = _places()
    wanted = [places.all]
    if whose is not None:
        wanted.insert(0, places.own.setdefault(whose, CapacityLimiter(_AT_ONCE_OF_ONE)))
    places.asking[whose] += 1
    borrower, taken = object(), list[CapacityLimiter]()
    try:
        with move_on_after(max(limits.seconds, _LEAST_WAIT)):
            for limiter in wanted:
                await limiter.acquire_on_behalf_of(borrower)
                taken.append(limiter)
        if len(taken) < len(wanted):
            raise ReaderError(
                f"Other queries are still being answered, and none of them ended within the {limits.seconds:g} seconds "
                "that this one waited: ask again, one query at a time."
            )
        yield
    finally:
        for limiter in taken:
            limiter.release_on_behalf_of(borrower)
        places.asking[whose] -= 1
        if not places.asking[whose]:
            del places.asking[whose]
            places.own.pop(whose, None)


_places_var: RunVar[_Places] = RunVar("coatcheck.readers.queries")
_threads_var: RunVar[CapacityLimiter] = RunVar("coatcheck.readers.query_threads")


def _places() -> _Places:
    places = _places_var.get(None)
    if places is None:
        places = _Places()
        _places_var.set(places)
    return places


def _threads() -> CapacityLimiter:
    """Threads that wait for a process; one that was killed is waited for a moment longer than its query lasts."""
    limiter = _threads_var.get(None)
    if limiter is None:
        limiter = CapacityLimiter(4 * _AT_ONCE)
        _threads_var.set(limiter)
    return limiter
