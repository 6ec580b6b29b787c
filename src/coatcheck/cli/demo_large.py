"""The third act of the demo: a result of 200 MB is placed, and a model answers from it without ever reading it."""

from __future__ import annotations

import hashlib
import json
import re
import resource
import sys
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TypeVar

import anyio.to_thread
import msgspec

import coatcheck as cc
from coatcheck import readers
from coatcheck.cli.demo_page import Page, spell_call
from coatcheck.cli.demo_stream import ROOM, little_memory
from coatcheck.cli.demo_tools import guard_notes
from coatcheck.readers.matching import has_re2
from coatcheck.readers.query_tool import has_jmespath, has_sql

__all__ = ["LONGEST", "ROWS", "answered"]

LONGEST = 8_000
"""No text that the model reads in this act is longer, in characters."""

ROWS = 200_000
_AT_ONCE = 256
_HOSTS = ("web-1", "web-2", "web-3")
_RARE = 161_803
_FAULT = "disk full"
_STEPS = [
    "; ".join(f"step {(start * 7_919 + step * 104_729) % 99_991:05} ok" for step in range(70)) for start in range(16)
]
_KIND = "log/requests"
_SQL = "SELECT host, count(*) AS requests, sum(ms) AS ms FROM artifact GROUP BY host ORDER BY host"

_O = TypeVar("_O", bound=cc.Outcome)


class _Request(msgspec.Struct):
    """What `add_up` takes of a row."""

    host: str
    ms: int


_DECODER = msgspec.json.Decoder(_Request)


# --- the tools ---


@cc.tool(kind=_KIND)
def export_log(requests: int) -> cc.Stream:
    """The log of a web server, one request a line."""
    return cc.Stream(_log(requests), media_type="application/jsonl")


@cc.tool(wants={"log": _KIND})
async def add_up(log: cc.ArtifactReader) -> dict[str, dict[str, int]]:
    """How many requests of a log each host answered, and how many milliseconds that took."""
    totals: dict[str, dict[str, int]] = {}
    rest = b""
    async for chunk in log:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            _count(totals, _DECODER.decode(line))
    return totals


def _log(requests: int) -> Iterator[bytes]:
    """It is made up, because nothing so large lies on every machine; and it is the same on each."""
    for first in range(1, requests + 1, _AT_ONCE):
        yield "".join(map(_line, range(first, min(first + _AT_ONCE, requests + 1)))).encode()


def _line(number: int) -> str:
    request = _request(number)
    steps = _STEPS[number % len(_STEPS)]
    trace = f"{_FAULT}, nothing was written; {steps}" if number == _RARE else steps
    return f'{{"request":{number},"host":"{request.host}","ms":{request.ms},"trace":"{trace}"}}\n'


def _request(number: int) -> _Request:
    return _Request(_HOSTS[number % len(_HOSTS)], number * 7_919 % 997)


def _count(totals: dict[str, dict[str, int]], request: _Request) -> None:
    total = totals.setdefault(request.host, {"requests": 0, "ms": 0})
    total["requests"] += 1
    total["ms"] += request.ms


# --- the act ---


class _Model:
    """What stands in for the model: it makes calls, and each text that it gets is measured.

    Args:
        page: where the calls are shown.
        session: where they are made.
    """

    def __init__(self, page: Page, session: cc.Session) -> None:
        self._page = page
        self._session = session
        self.longest: int = 0
        self.read: int = 0

    async def call(self, kind: type[_O], tool: str, arguments: Mapping[str, Any], *, limited: bool = False) -> _O:
        """Make a call, show what came of it, and see that it ended as ``kind``.

        Args:
            kind: how it has to end.
            tool, arguments: what is called.
            limited: the call may take only `ROOM` of memory. Not where it loads a library, which takes some for itself,
                or starts a process, which would inherit the limit and has one of its own.
        """
        with little_memory() if limited else nullcontext():
            outcome = await self._session.call(tool, dict(arguments))
        self._page.show(outcome, spell_call(tool, arguments))
        self.longest = max(self.longest, len(outcome.text))
        self.read += len(outcome.text)
        return self._page.expect(outcome, kind)


async def answered(page: Page, scope: cc.Scope, folder: Path) -> None:
    """Placed, searched, asked, handed to another tool, read in one place, and shown."""
    wanted, totals = await anyio.to_thread.run_sync(_worked_out)
    store = cc.DirectoryStore(folder / "large")
    presented: list[cc.ArtifactPresented] = []
    boundary = cc.Boundary(
        [export_log, add_up, cc.present, *_readers()],
        rules=[guard_notes],
        store=store,
        placement=cc.Placement(max_inline_chars=4_000, preview_chars=400),
        on_event=lambda event: presented.append(event) if isinstance(event, cc.ArtifactPresented) else None,
    )
    before = _largest()
    async with boundary:
        model = _Model(page, boundary.session(scope))
        ticket = await exported(page, model, store, scope, wanted)
        await searched(page, model, store, scope, ticket)
        await summed(page, model, ticket, totals)
        await shown(page, model, ticket, presented)
    after = _largest()
    page.say(f"That is all that the model has read of {ticket.bytes:,} bytes: {model.read:,} characters.")
    page.check(model.longest <= LONGEST, f"its longest text has {model.longest:,} characters")
    page.check(
        after - before <= ROOM,
        f"all this took less than {ROOM >> 20} MB more memory than the acts before: at its largest, this program had "
        f"{after >> 20} MB",
    )


async def exported(page: Page, model: _Model, store: cc.ArtifactStore, scope: cc.Scope, wanted: str) -> cc.Ticket:
    """Placed, and a ticket with an outline."""
    page.section("Far too much to read: Placed, with an outline")
    page.say(
        "A ticket is only as good as what can be done with it. In this last act a tool exports a log of more than "
        "200 MB, and the model has to answer from it, although it can read only a few thousand characters at a time. "
        "The log is made up, because nothing so large lies on every machine. This operator lets a ticket show how the "
        "result begins, and an outline: what its rows are, and how many. Again the call may take only "
        f"{ROOM >> 20} MB of memory:"
    )
    outcome = await model.call(cc.Placed, "export_log", {"requests": ROWS}, limited=True)
    ticket = outcome.ticket
    page.check(ticket.bytes >= 200_000_000, f"{ticket.bytes:,} bytes are in the store")
    meta = page.given(await store.head(scope, ticket.ref), "the ref is good for them")
    page.check(meta.digest == wanted, "and their digest is that of what the tool made")
    page.check(ticket.outline["rows"] == ROWS, f"the outline counts {ROWS:,} rows")
    return ticket


async def searched(page: Page, model: _Model, store: cc.ArtifactStore, scope: cc.Scope, ticket: cc.Ticket) -> None:
    """A rare thing is found, and read where it stands."""
    page.section("One line of it: search_artifact, then read_artifact")
    if not _readers():
        page.say("This section needs the extra readers, and is left out: install coatcheck[readers].")
        return
    page.check(
        "call read_artifact with" in ticket.reason, "the ticket names the tool that reads it, and how to call it"
    )
    page.say("What went wrong in that log? The model searches. The answer is short, however long the log is:")
    found = await model.call(
        cc.Inline, "search_artifact", {"ref": ticket.ref, "pattern": _FAULT, "literal": True, "max_matches": 5}
    )
    page.check(
        f"\n{_RARE}@" in found.text and "1 matching line" in found.text, f"it is in line {_RARE:,}, and only there"
    )
    page.say("The answer ends with the very call that reads there. The model copies it:")
    tool, arguments = _copied("Read at the first with", found.text)
    first = await model.call(cc.Inline, tool, arguments)
    page.say("And that answer ends with the call that reads on:")
    tool, going_on = _copied("Read on with", first.text)
    second = await model.call(cc.Inline, tool, going_on)
    read = (_body(first.text) + _body(second.text)).encode()
    start = arguments["from_byte"]
    async with store.open(scope, ticket.ref, start, start + len(read)) as opened:
        held = await page.given(opened, f"the store opens the log at byte {start:,}").read()
    page.check(read == held, f"both pages, joined, are the {len(held):,} bytes that the log has there")
    page.check(read.startswith(_line(_RARE).encode()), "and they begin with the line that was looked for")


async def summed(page: Page, model: _Model, ticket: cc.Ticket, totals: dict[str, dict[str, int]]) -> None:
    """An aggregate, by SQL and by a tool of the host's."""
    page.section("All of it: query_artifact, and another tool that wants it")
    if _readers() and has_jmespath() and has_sql():
        page.say(
            "How busy was each host? That takes every row. The model asks in SQL. DuckDB answers in a process of its "
            "own, which has no network, no other file, and limits for its memory and its time:"
        )
        asked = await model.call(cc.Inline, "query_artifact", {"ref": ticket.ref, "sql": _SQL})
        rows = {row.pop("host"): row for row in msgspec.json.decode(asked.text)["rows"]}
        page.check(rows == totals, "the numbers are those that the demo has worked out without the log")
    else:
        page.say("A query in SQL needs the extras readers and sql, and is left out: install coatcheck[readers,sql].")
    page.say(
        "Or the host has a tool for it. Its author declares that it wants such a log. The model gives the ref, and the "
        f"tool gets the log itself, piece by piece. Again {ROOM >> 20} MB of memory are enough:"
    )
    added = await model.call(cc.Inline, "add_up", {"log": ticket.ref}, limited=True)
    page.check(added.value == totals, "they are right, too")


async def shown(page: Page, model: _Model, ticket: cc.Ticket, presented: list[cc.ArtifactPresented]) -> None:
    """The host is asked to show it."""
    page.section("For a person: present")
    page.say(
        "The model has the host show the log to a person. It does not read it for that, and neither does the tool:"
    )
    await model.call(cc.Inline, "present", {"ref": ticket.ref, "as": "table", "label": "Requests"})
    heard = [(each.ref, each.as_) for each in presented]
    page.check(heard == [(ticket.ref, "table")], "the host has heard what to show, and how")


# --- how it is checked ---


def _readers() -> list[cc.Tool[..., Any]]:
    return readers.tools(query=has_jmespath()) if has_re2() else []


def _worked_out() -> tuple[str, dict[str, dict[str, int]]]:
    """The digest of the log, and what each host did, from what the log is made of."""
    digest = hashlib.sha256()
    for piece in _log(ROWS):
        digest.update(piece)
    totals: dict[str, dict[str, int]] = {}
    for number in range(1, ROWS + 1):
        _count(totals, _request(number))
    return f"sha256:{digest.hexdigest()}", totals


def _copied(words: str, text: str) -> tuple[str, dict[str, Any]]:
    """The call that stands behind these words, as a model copies it."""
    found = re.search(rf"{words} (\w+) (?={{)", text)
    if found is None:
        return "", {}  # no tool has this name, so the call fails, and the demo says so
    arguments, _ = json.JSONDecoder().raw_decode(text, found.end())
    return found[1], arguments


def _body(text: str) -> str:
    """What a page has between its first line and its last one."""
    return text[text.find("\n") + 1 : text.rfind("\n[")]


def _largest() -> int:
    """How much memory this process had when it had most, in bytes."""
    if sys.platform == "linux":  # what `getrusage` says there includes the process that started this one
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        return int(status.partition("VmHWM:")[2].split()[0]) << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
