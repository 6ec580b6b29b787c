"""One SELECT over one relation, in DuckDB, shut off from everything else.

This module runs in the process that `worker` makes for one query, and imports nothing of coatcheck, so that the process
starts quickly. What shuts a query off, each for itself enough for what it refuses:

* The query is parsed by DuckDB's own parser, and only a single SELECT that reads ``artifact``, its own common table
  expressions and table functions of a short list goes on. Its texts teach; the rest does the refusing.
* DuckDB has no external access (files, network, extensions, ATTACH, COPY) but to the one file with the payload, which
  has no name any more; its configuration is locked.
* Its memory and threads are limited, it spills nothing to disk, and it is interrupted when its time is up.
* The process has no environment, a limit on its address space, its processor time and on what it may write, and is
  killed when it does not end in time.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import duckdb

__all__ = [
    "Interrupter",
    "Relation",
    "Rows",
    "Statement",
    "Wrong",
    "check_statement",
    "connect",
    "file_path",
    "open_relation",
    "plain",
    "plain_value",
    "shut_off",
]

MAX_NEST = 200
_OBJECT = 16 << 20  # DuckDB's own limit for one JSON object, in bytes
_SNIFFED = 64 << 20  # a CSV up to this size is looked at as a whole before its types are chosen
_SHOWN_COLUMNS = 40
_SHOWN_CHARS = 1_500
_LINE = re.compile(r"\n+LINE \d+:.*", re.DOTALL)
_CANDIDATES = re.compile(r'"([^"\n]{1,200})"')

# What a FROM may call: functions that make rows out of their arguments alone.
_TABLE_FUNCTIONS = frozenset({"unnest", "range", "generate_series", "json_each", "json_tree", "repeat", "repeat_row"})
# Scalar functions that tell of the machine, or run text as a query.
_SCALARS = frozenset(
    {"current_setting", "getenv", "getvariable", "json_serialize_plan", "query", "query_table", "sleep_ms", "write_log"}
)
# Functions that give something else every time.
_RANDOM = frozenset(
    {
        "current_connection_id", "current_query_id", "current_transaction_id", "currval", "gen_random_uuid", "nextval",
        "random", "setseed", "setval", "stats", "uuid", "uuidv4", "uuidv7", "vector_type",
    }
)  # fmt: skip
_QUOTED = re.compile(r"""(['"])(.*)\1|(['"])(.*)$""")  # from the first mark to its last, or to the end
_MAX_QUOTED = 80  # characters of what may be a value of the payload


class Wrong(Exception):
    """The query cannot be answered; the text is for whoever wrote it."""


class Statement:
    """A checked SELECT.

    Attributes:
        text: without what ends it.
        loose: why its rows do not come in one order every time: ``order``, nothing fixes it; ``random``, they are
            other rows every time; ``None``: they do.
    """

    def __init__(self, text: str, loose: str | None) -> None:
        self.text = text
        self.loose = loose


class Relation:
    """The payload as the relation ``artifact``.

    Args:
        connection: DuckDB's.
        columns: names with types.
        note: what to know before asking it, or ``None``.
    """

    def __init__(self, connection: Any, columns: list[tuple[str, str]], note: str | None = None) -> None:
        self.connection = connection
        self.columns = columns
        self.note = note

    def described(self) -> str:
        """The columns with their types, bounded."""
        shown: list[str] = []
        chars = 0
        for name, kind in self.columns[:_SHOWN_COLUMNS]:
            word = f"{_identifier(name)} {kind if len(kind) <= 200 else kind[:199] + '…'}"
            chars += len(word) + 2
            if chars > _SHOWN_CHARS and shown:
                break
            shown.append(word)
        left = len(self.columns) - len(shown)
        return ", ".join(shown) + (f" and {left} more" if left else "")

    def explain(self, error: Exception) -> str:
        """What was wrong with a query, the nearest names, and the columns that there are."""
        text = plain(error)
        near = self._nearest(text) if isinstance(error, _OF_THE_QUERY) else ""
        return f"{text} {near}The relation is artifact, its columns are: {self.described()}." + (
            f" {self.note}" if self.note else ""
        )

    def _nearest(self, text: str) -> str:
        names = [name for name, _ in self.columns]
        folded = {name.lower(): name for name in reversed(names)}
        for asked in _CANDIDATES.findall(text)[:3]:
            if asked.lower() not in folded:
                close = difflib.get_close_matches(asked.lower()[:100], list(folded)[:2000], n=3, cutoff=0.5)
                if close:
                    return f"Nearest to {asked[:80]!r}: {', '.join(_identifier(folded[name]) for name in close)}. "
        return ""


# What DuckDB says before it looks at a value; anything else may repeat one.
_OF_THE_QUERY = (duckdb.ParserException, duckdb.SyntaxException, duckdb.BinderException, duckdb.CatalogException)


def plain(error: Exception) -> str:
    """DuckDB's own sentence, bounded, without a path of this machine and without advice about settings.

    What may repeat a value of the payload is cut, and stands in quotation marks that it cannot leave.
    """
    text = _LINE.sub("", str(error)).split("\n\n")[0].strip()
    text = re.sub(r"/(dev|proc)/[\w/]*", "artifact", text)
    text = " ".join(text.split())
    text = re.sub(r" ?Use \"SET .*|(Possible (fixes|solutions)|Database is launched).*", "", text)
    if isinstance(error, _OF_THE_QUERY):
        text = re.sub(r'"[^"]{81,}"', lambda found: f'"{_cut(found[0][1:-1], _MAX_QUOTED)}"', text)
        return _cut(_on_its_line(text), 500).rstrip(".") + "."
    found = _QUOTED.search(text)
    if found is not None:
        mark = found[1] or found[3]
        value = _cut(_on_its_line(found[2] or found[4] or ""), _MAX_QUOTED)
        text = f"{_cut(text[: found.start()], 160)}{mark}{value}{mark}{_cut(text[found.end() :], 120)}"
    else:  # what somebody's regular expression, or error(), says is all data
        text = _cut(text, 160)
    said = _cut(_on_its_line(text), 400).rstrip(".").replace('"', "'")
    return f'DuckDB said this, which may repeat data: "{said}".'


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _on_its_line(text: str) -> str:
    """Controls and marks that reorder text are spelled out."""
    return "".join(mark if mark.isprintable() else f"\\u{ord(mark):04x}" for mark in text)


def connect(*, memory: int, threads: int) -> Any:
    """An empty database in memory.

    Args:
        memory: bytes that it may take. threads: how many it may run.
    """
    connection = duckdb.connect(
        ":memory:",
        config={
            "threads": threads,
            "memory_limit": f"{max(memory >> 20, 32)}MiB",
            "temp_directory": "",
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "allow_community_extensions": False,
            "allow_unsigned_extensions": False,
            "allow_persistent_secrets": False,
            "python_enable_replacements": False,
            "preserve_insertion_order": True,
            "python_scan_all_frames": False,
        },
    )
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET enable_progress_bar = false")
    return connection


def shut_off(connection: Any, path: str | None, *, threads: int | None = None) -> None:
    """No more of the world than the one file, for good.

    Args:
        path: of the file.
        threads: how many it may run from here on; with one, a query gives its rows in the same order every time.
    """
    if threads is not None:
        connection.execute(f"SET threads = {threads}")
    if path is not None:
        connection.execute(f"SET allowed_paths = [{_text(path)}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")


def open_relation(connection: Any, path: str, form: str, head: bytes, tail: bytes, size: int) -> Relation:
    """Make the relation ``artifact`` of a file: a view that reads it in passing, so its size takes no memory.

    Args:
        path: the file.
        form: ``json``, ``jsonl``, ``csv``, ``tsv``, ``parquet``; ``text``, where it may be any of the first four.
        head, tail: its first bytes and its last ones.
        size: in bytes.

    Raises:
        Wrong: it holds no rows.
    """
    first = head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    if head.startswith(b"PAR1") and form in ("parquet", "binary"):
        source = f"read_parquet({_text(path)})"
    elif form in ("parquet", "binary"):
        raise Wrong("it is binary and no Parquet file: SQL reads JSON, JSON Lines, CSV and Parquet")
    elif size == 0 or not first:
        raise Wrong("it is empty: there are no rows to query")
    elif form in ("json", "jsonl") or (form == "text" and first in (b"{", b"[")):
        if tail.rstrip()[-1:] not in (b"}", b"]"):  # DuckDB reads what is cut off as if it ended there
            raise Wrong("its JSON cannot be read as rows: it ends in the middle")
        return _json_relation(connection, path, "array" if first == b"[" and form != "jsonl" else form, size)
    else:
        source = _csv_source(connection, path, form, size)
    try:
        connection.execute(f"CREATE VIEW artifact AS SELECT * FROM {source}")
        columns = _columns(connection, "artifact")
    except duckdb.Error as error:
        raise Wrong(f"its rows cannot be read: {plain(error)}") from None
    return Relation(connection, columns)


def _json_relation(connection: Any, path: str, form: str, size: int) -> Relation:
    shape = {"array": "array", "jsonl": "newline_delimited"}.get(form, "unstructured")
    limit = _OBJECT
    while True:
        options = f"format = '{shape}', maximum_object_size = {limit}, map_inference_threshold = -1"
        try:
            # The types are those of all rows: else a field that comes late would be missing, and nothing would say so.
            found = _columns(connection, f"read_json({_text(path)}, {options}, sample_size = -1)")
            break
        except duckdb.Error as error:
            if "maximum_object_size" in str(error) and limit < size:
                limit = size + 1
                continue
            raise Wrong(f"its JSON cannot be read as rows: {plain(error)}") from None
    if any(
        name == "json" for name, _ in found
    ):  # elements that are no objects; with columns named it reads objects only
        source = f"read_json({_text(path)}, {options}, sample_size = -1)"
    else:
        typed = ", ".join(f"{_text(name)}: {_text(kind)}" for name, kind in found)
        source = f"read_json({_text(path)}, {options}, columns = {{{typed}}})"
    try:
        connection.execute(f"CREATE VIEW artifact AS SELECT * FROM {source}")
    except duckdb.Error as error:
        raise Wrong(f"its JSON cannot be read as rows: {plain(error)}") from None
    note = None
    lists = [name for name, kind in found if kind.endswith("[]") and kind.startswith("STRUCT(")]
    if shape == "unstructured" and lists:
        name = _identifier(lists[0])
        note = (
            f"The artifact is one object, so it has one row; the rows within its {name} are: "
            f"SELECT * FROM (SELECT unnest({name}, recursive := true) FROM artifact)."
        )
    return Relation(connection, found, note)


def _csv_source(connection: Any, path: str, form: str, size: int) -> str:
    delimiter = ", delim = '\t'" if form == "tsv" else ""
    last: Exception | None = None
    for sample in (-1,) if size <= _SNIFFED else (20_480 * 10,):
        try:
            row = connection.execute(
                f"SELECT Prompt, len(Columns) FROM sniff_csv({_text(path)}, sample_size = {sample}{delimiter})"
            ).fetchone()
        except duckdb.Error as error:
            last = error
            continue
        prompt, width = row
        if form == "text" and width < 2:
            raise Wrong("it is text without columns: SQL needs rows. Search it, or read it by lines")
        source: str = prompt.strip().rstrip(";")
        return source[4:].strip() if source[:4].upper() == "FROM" else source
    raise Wrong(f"its rows cannot be read as CSV: {plain(last or ValueError())}")


def _columns(connection: Any, source: str) -> list[tuple[str, str]]:
    return [(row[0], row[1]) for row in connection.execute(f"DESCRIBE SELECT * FROM {source}").fetchall()]


def check_statement(connection: Any, sql: str) -> Statement:
    """The one SELECT in ``sql``.

    Raises:
        Wrong: it is something else, or reads something else; the text says what would be right.
    """
    try:
        sql.encode()
    except UnicodeEncodeError:
        raise Wrong("the query holds a lone surrogate, which is no character: write it without") from None
    try:
        statements = connection.extract_statements(sql)
    except duckdb.Error as error:
        raise Wrong(f"{plain(error)} Write one SELECT over the relation artifact.") from None
    if len(statements) != 1:
        raise Wrong(
            f"one SELECT is wanted, and this is {len(statements)} statements: ask one question at a time"
            if statements
            else "the query is empty: write one SELECT over the relation artifact"
        )
    (statement,) = statements
    kind = statement.type.name
    if kind != "SELECT":
        raise Wrong(
            f"only SELECT is possible here, and this is {_KINDS.get(kind, kind)}: the artifact is read and never "
            "changed, and nothing else can be reached. Write one SELECT over the relation artifact"
        )
    text: str = statement.query.strip().rstrip(";")
    # A parameter, not a part of the text: the query is data here.
    (tree,) = connection.execute("SELECT json_serialize_sql(?)", [text]).fetchone()
    parsed = json.loads(tree)
    if parsed.get("error"):
        raise Wrong(f"this SELECT cannot be used here: {str(parsed.get('error_message'))[:300]}")
    _check_tree(parsed, lambda: _catalogue(connection))
    return Statement(text, _loose(parsed))


def _catalogue(connection: Any) -> set[str]:
    """The names of DuckDB's own views, which a name without a schema may mean."""
    return {str(row[0]).lower() for row in connection.execute("SELECT view_name FROM duckdb_views()").fetchall()}


def _loose(tree: dict[str, Any]) -> str | None:
    """Why the rows of a SELECT have no fixed order, as `Statement` has it.

    DuckDB keeps the order of what it reads but where rows are joined, grouped or made distinct.
    """
    nodes = list(_nodes(tree))
    if any(node.get("sample") or str(node.get("function_name", "")).lower() in _RANDOM for node in nodes):
        return "random"
    top = tree["statements"][0]["node"]
    if any(modifier.get("type") == "ORDER_MODIFIER" for modifier in top.get("modifiers", ())):
        return None
    return "order" if any(map(_reorders, nodes)) else None


def _reorders(node: dict[str, Any]) -> bool:
    kind = node.get("type")
    if kind == "SET_OPERATION_NODE":
        return not (node.get("setop_type") == "UNION" and node.get("setop_all"))
    return (
        kind in ("JOIN", "PIVOT", "DISTINCT_MODIFIER", "RECURSIVE_CTE_NODE")
        or node.get("class") in ("WINDOW", "SUBQUERY")
        or bool(node.get("group_expressions"))
        or bool(node.get("group_sets"))
        or node.get("aggregate_handling") == "FORCE_AGGREGATES"
    )


_KINDS = {
    "COPY": "COPY", "ATTACH": "ATTACH", "DETACH": "DETACH", "LOAD": "INSTALL or LOAD", "PRAGMA": "PRAGMA", "SET": "SET",
    "VARIABLE_SET": "SET", "MULTI": "PIVOT (write CASE expressions, or FILTER), or several statements in one",
}  # fmt: skip


def _check_tree(tree: dict[str, Any], catalogue: Callable[[], set[str]]) -> None:
    nodes = list(_nodes(tree))
    names: set[str] = set()
    for node in nodes:
        entries = node.get("cte_map")
        if isinstance(entries, dict):
            names |= {str(entry.get("key")).lower() for entry in entries.get("map", ())}
    if names:  # one named like a view of DuckDB would let that through where the name means the view
        names -= catalogue()
    for node in nodes:
        kind = node.get("type")
        if kind == "BASE_TABLE":
            _check_table(node, names)
        elif kind == "SHOW_REF" and node.get("query") is None:
            raise Wrong("there is one relation, artifact: DESCRIBE artifact and SUMMARIZE artifact tell about it")
        elif kind == "TABLE_FUNCTION":
            called = str((node.get("function") or {}).get("function_name", "")).lower()
            if called not in _TABLE_FUNCTIONS:
                raise Wrong(
                    f"{called[:80]} cannot be used here: no file, no network and no catalogue can be reached, only the "
                    f"relation artifact. In FROM these functions are possible: {', '.join(sorted(_TABLE_FUNCTIONS))}"
                )
        elif node.get("class") == "FUNCTION" and str(node.get("function_name", "")).lower() in _SCALARS:
            raise Wrong(f"the function {node['function_name']} cannot be used here: a query sees the artifact alone")


def _check_table(node: dict[str, Any], names: set[str]) -> None:
    name, schema, catalogue = (str(node.get(key) or "") for key in ("table_name", "schema_name", "catalog_name"))
    if name.lower() == "artifact" and schema.lower() in ("", "main") and catalogue.lower() in ("", "memory"):
        return
    if name.lower() in names and re.fullmatch(r"[\w ]{1,100}", name) is not None and not schema and not catalogue:
        return
    spelled = ".".join(part for part in (catalogue, schema, name) if part)[:80]
    raise Wrong(
        f"there is no relation {spelled!r} here, and no file or other table can be reached: the only one is artifact"
    )


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    pending = [tree]
    while pending:
        each = pending.pop()
        if isinstance(each, dict):
            yield each
            pending.extend(each.values())
        elif isinstance(each, list):
            pending.extend(each)


class Rows:
    """The rows of a checked query, one after another.

    Args:
        relation: what is asked. statement: its text, from `check_statement`.
    """

    def __init__(self, relation: Relation, statement: str) -> None:
        self._connection = relation.connection
        self._statement = statement
        self._connection.execute(statement)
        described = self._connection.description or []
        self.columns: list[tuple[str, str]] = list(
            zip(_unique([row[0] for row in described]), [str(row[1]) for row in described], strict=True)
        )

    def __iter__(self) -> Iterator[dict[str, Any]]:
        names = [name for name, _ in self.columns]
        while batch := self._connection.fetchmany(64):
            for row in batch:
                yield {name: plain_value(item) for name, item in zip(names, row, strict=True)}

    def skip(self, rows: int) -> int:
        """Pass over some rows, and say how many there were."""
        passed = 0
        while passed < rows and (batch := self._connection.fetchmany(min(rows - passed, 2048))):
            passed += len(batch)
        return passed

    def count(self) -> int | None:
        """How many rows there are in all, counted by another query; ``None`` where that cannot be told in time."""
        try:
            row = self._connection.execute(f"SELECT count(*) FROM (\n{self._statement}\n)").fetchone()
        except duckdb.Error:
            return None
        return int(row[0])


def _unique(names: list[str]) -> list[str]:
    """Names that JSON can hold beside each other: what comes again gets a number."""
    taken: set[str] = set()
    unique: list[str] = []
    for name in names:
        each, number = name, 1
        while each in taken:
            number += 1
            each = f"{name}_{number}"
        taken.add(each)
        unique.append(each)
    return unique


def plain_value(value: Any, depth: int = 0) -> Any:
    """A value as JSON carries it exactly; what it cannot carry is text."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return value if value.bit_length() <= 64 else str(value)
    if isinstance(value, float):
        return value if value - value == 0 else str(value)  # infinities and what is no number
    if depth > MAX_NEST:
        raise Wrong(f"a value of the result is nested more than {MAX_NEST} levels deep: select a part of it")
    if isinstance(value, (list, tuple)):
        return [plain_value(item, depth + 1) for item in value]
    if isinstance(value, dict):
        return {key if isinstance(key, str) else str(key): plain_value(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (bytes, bytearray, memoryview)):
        import base64

        return base64.b64encode(bytes(value)).decode()
    if hasattr(value, "isoformat"):
        return value.isoformat()
    return str(value)  # decimals, durations, UUIDs


class Interrupter:
    """Interrupts whatever a connection does once the time is up, until the process ends."""

    def __init__(self, connection: Any, seconds: float) -> None:
        self._connection = connection
        self._deadline = time.monotonic() + seconds
        self.up: bool = False
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        time.sleep(max(self._deadline - time.monotonic(), 0))
        self.up = True
        while True:  # one that comes between two statements would be lost
            self._connection.interrupt()
            time.sleep(0.05)


def file_path(descriptor: int) -> str:
    """A file that has no name, as a path: through the descriptor that this process has of it."""
    return f"/proc/self/fd/{descriptor}" if os.path.isdir("/proc/self/fd") else f"/dev/fd/{descriptor}"


def _identifier(name: str) -> str:
    shown = name if len(name) <= 80 else f"{name[:79]}…"
    shown = "".join(mark if mark.isprintable() else "\N{REPLACEMENT CHARACTER}" for mark in shown)
    return shown if re.fullmatch(r"[A-Za-z_]\w*", shown, re.ASCII) else '"' + shown.replace('"', '""') + '"'


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
