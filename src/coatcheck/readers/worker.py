"""The process that answers one query, and nothing else: ``querying`` starts it, asks, and kills it when it is late.

It reads one line of JSON from standard input, and writes one JSON document to where standard output was. While it
works it watches its standard input: when that ends, whoever asked is gone, and so is this process. It imports nothing
of coatcheck but its neighbours `sql` and `jmes`.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import resource
import signal
import sys
import threading
import time
from typing import Any, BinaryIO

__all__ = ["main"]

_HEAD = 1 << 16
_TAIL = 1 << 10


class _TimeUp(BaseException):
    """The time of the query is up."""


class _Wrong(Exception):
    """The query cannot be answered; the text is for whoever wrote it."""


def main() -> None:
    """Answer the one query."""
    said = os.dup(1)  # nothing but the answer goes there, whatever a library prints
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    request = json.loads(sys.stdin.buffer.readline())
    sys.path[:] = request["path"]
    threading.Thread(target=_watch, daemon=True).start()
    reply: dict[str, Any]
    try:
        reply = _answer(request)
    except MemoryError:
        reply = {"error": _memory_text(request)}
    except _TimeUp:
        reply = {"error": _time_text(request)}
    except _Wrong as error:
        reply = {"error": str(error)}
    except ImportError:  # not installed: the status says so
        raise
    except RecursionError:
        reply = {"error": "the query, or a value, is nested too deeply: write it flatter"}
    except Exception as error:  # noqa: BLE001 - a library's, of a query that nobody foresaw; its text may hold anything
        reply = {"error": f"the query cannot be evaluated ({type(error).__name__}): write it differently"}
    with open(said, "wb") as answer:
        answer.write(json.dumps(reply).encode())
    os._exit(0)


def _watch() -> None:
    while os.read(0, 4096):
        pass
    os._exit(3)


def _limit(request: dict[str, Any]) -> None:
    """Give this process no more than it needs. What the libraries took to start does not count."""
    _lower(resource.RLIMIT_CORE, 0)
    _lower(resource.RLIMIT_FSIZE, request["out_bytes"])
    _lower(resource.RLIMIT_CPU, math.ceil(request["seconds"] * request["threads"]) + 5)
    with contextlib.suppress(OSError, ValueError), open("/proc/self/statm", "rb") as file:
        taken = int(file.read().split()[0]) * resource.getpagesize()
        _lower(resource.RLIMIT_AS, taken + request["memory"])


def _lower(what: int, limit: int) -> None:
    hard = resource.getrlimit(what)[1]
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    with contextlib.suppress(OSError, ValueError):  # a system that does not know it; the other limits hold
        resource.setrlimit(what, (limit, limit))


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    out = None if request["out"] is None else io.FileIO(request["out"], "wb", closefd=False)
    try:
        buffer = None if out is None else io.BufferedWriter(out, 1 << 16)
        reply = _sql(request, buffer) if request["what"] == "sql" else _jmespath(request, buffer)
        if buffer is not None:
            buffer.flush()
    except OSError:
        limit = request["out_bytes"]
        raise _Wrong(f"the result is larger than the {limit} bytes that may be stored: select less") from None
    return reply


def _memory_text(request: dict[str, Any]) -> str:
    return (
        f"the query needs more than the {request['memory'] >> 20} MiB of memory that it may take: "
        "filter or aggregate first, and select fewer columns"
    )


def _time_text(request: dict[str, Any]) -> str:
    return (
        f"the query took longer than the {request['seconds']:g} seconds that it may take, and was stopped: "
        "filter earlier, join less, or ask for less at once"
    )


# --- SQL ---


def _sql(request: dict[str, Any], out: BinaryIO | None) -> dict[str, Any]:
    import duckdb

    from coatcheck.readers import sql

    connection = sql.connect(memory=request["memory"] // 2, threads=request["threads"])
    clock = sql.Interrupter(connection, request["seconds"])
    _limit(request)
    path = sql.file_path(request["data"])
    relation = None
    try:
        statement = sql.check_statement(connection, request["query"])
        head = os.pread(request["data"], _HEAD, 0)
        tail = os.pread(request["data"], _TAIL, max(request["size"] - _TAIL, 0))
        relation = sql.open_relation(connection, path, request["form"], head, tail, request["size"])
        # What is read page by page is evaluated anew for each: with several threads the rows would change places.
        sql.shut_off(connection, path, threads=1 if out is None else None)
        rows = sql.Rows(relation, statement.text)
        reply = _page(rows, request, clock) if out is None else _all_rows(rows, request, out)
        knows = "unnest" in request["query"].lower()
        return {**reply, "note": None if knows else relation.note, "loose": statement.loose}
    except duckdb.InterruptException:
        raise _TimeUp from None
    except duckdb.OutOfMemoryException:
        raise MemoryError from None
    except (sql.Wrong, duckdb.Error) as error:
        if clock.up:
            raise _TimeUp from None
        if isinstance(error, duckdb.Error):
            text = sql.plain(error) if relation is None else relation.explain(error)
            raise _Wrong(text) from None
        raise _Wrong(
            f"{error}." if relation is None else f"{error}. Its columns are: {relation.described()}."
        ) from None


def _page(rows: Any, request: dict[str, Any], clock: Any) -> dict[str, Any]:
    """As many whole rows as fit, and how many there are."""
    offset, room = request["offset"], request["chars"]
    passed = rows.skip(offset)
    texts: list[str] = []
    large: dict[str, Any] | None = None
    whole = True
    for row in rows:
        text = _dumps(row)
        room -= len(text) + 1
        if room < 0:
            whole = False
            if not texts:
                sizes = {name: len(_dumps(item)) for name, item in row.items()}
                largest = sorted(sizes, key=lambda name: -sizes[name])[:5]
                large = {"characters": len(text), "largest": {name[:80]: sizes[name] for name in largest}}
            break
        texts.append(text)
    seen = passed + len(texts)
    total = seen if whole else rows.count()
    return {"columns": rows.columns, "rows": texts, "seen": seen, "all": total, "large": large}


def _all_rows(rows: Any, request: dict[str, Any], out: BinaryIO) -> dict[str, Any]:
    """Every row into the file: a JSON array with a row a line, or JSON Lines."""
    array = request["style"] == "array"
    count = 0
    if array:
        out.write(b"[")
    for row in rows:
        out.write(((",\n" if count else "\n") if array else "").encode() + _dumps(row).encode())
        if not array:
            out.write(b"\n")
        count += 1
    if array:
        out.write(b"\n]")
    return {"columns": rows.columns, "all": count}


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


# --- JMESPath ---


def _jmespath(request: dict[str, Any], out: BinaryIO | None) -> dict[str, Any]:
    from coatcheck.readers import jmes

    _limit(request)
    signal.signal(signal.SIGALRM, _ring)
    signal.setitimer(signal.ITIMER_REAL, request["seconds"], 0.05)
    try:
        value = jmes.load(_read(request["data"], request["size"]), request["form"])
        found = jmes.evaluate(request["query"], value)
        reply = _part(jmes, found, request) if out is None else _written(jmes, found, out, request)
        signal.setitimer(signal.ITIMER_REAL, 0)
        return {**reply, "note": found.note}
    except jmes.Wrong as error:
        raise _Wrong(str(error)) from None


def _ring(number: int, frame: object) -> None:
    signal.setitimer(signal.ITIMER_REAL, 0)
    raise _TimeUp


def _read(descriptor: int, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        chunk = os.pread(descriptor, 1 << 20, len(data))
        if not chunk:
            break
        data += chunk
    return bytes(data)


def _part(jmes: Any, found: Any, request: dict[str, Any]) -> dict[str, Any]:
    """What fits of the result: whole elements of a list, the beginning of a text, another value whole or not at all."""
    value, offset, room = found.value, request["offset"], request["chars"]
    if isinstance(value, list):
        texts: list[str] = []
        large = None
        for item in value[offset:]:
            text, chars = _spelled(jmes, item, room)
            if text is None:
                large = {"characters": chars} if not texts else None
                break
            texts.append(text)
            room -= chars + 1
        return {
            "kind": "array",
            "rows": texts,
            "seen": min(offset, len(value)) + len(texts),
            "all": len(value),
            "large": large,
        }
    if isinstance(value, str):
        room = request["text_chars"]
        head = value[offset : offset + room]
        while len(_dumps(head)) > room:
            head = head[: len(head) * room // (len(_dumps(head)) + 1)]
        text = "".join(jmes.pieces(head))
        return {
            "kind": "string",
            "rows": [text],
            "seen": min(offset + len(head), len(value)),
            "all": len(value),
            "large": None,
        }
    text, chars = _spelled(jmes, value, room)
    if text is not None:
        return {"kind": "value", "rows": [text], "seen": 1, "all": 1, "large": None}
    keys = [name[:80] for name in list(value)[:30]] if isinstance(value, dict) else []
    return {"kind": "value", "rows": [], "seen": 1, "all": 1, "large": {"characters": chars, "keys": keys}}


def _spelled(jmes: Any, value: Any, room: int) -> tuple[str | None, int]:
    """The JSON text of a value where it fits, and how long it is, as far as that is worth knowing."""
    parts: list[str] = []
    chars = 0
    until = time.monotonic() + 1
    for index, piece in enumerate(jmes.pieces(value)):
        chars += len(piece)
        if chars <= room:
            parts.append(piece)
        elif index % 1024 == 0 and time.monotonic() > until:
            break
    return ("".join(parts) if chars <= room else None), chars


def _written(jmes: Any, found: Any, out: BinaryIO, request: dict[str, Any]) -> dict[str, Any]:
    value = found.value
    lines = isinstance(value, list) and request["style"] == "lines"
    for item in value if lines else (value,):
        for piece in jmes.pieces(item):
            out.write(piece.encode())
        if request["style"] == "lines":
            out.write(b"\n")
    return {
        "kind": "array" if isinstance(value, list) else "value",
        "all": len(value) if isinstance(value, list) else 1,
    }
