"""``coatcheck exec``: any command as a tool of a boundary that is built for this one call.

The command's standard output is what the tool returns, as a stream. All that a model would read of it is the outcome's
text: the output itself, the ticket, the marker, the refusal or the failure. Nothing goes around the chain.

The exit code is the command's own, or one of `EXIT_CODES`; 141 where nobody reads standard output any more.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Sequence
from typing import Annotated

import msgspec
import typer

import coatcheck as cc
from coatcheck.artifacts.ticket import MAX_TICKET_CHARS, make_ticket
from coatcheck.cli.edge import command
from coatcheck.cli.ending import exit_code, signal_name
from coatcheck.cli.output import complain, print_json, write
from coatcheck.cli.process import CANNOT_RUN, NOT_FOUND, Command
from coatcheck.cli.settings import JsonOption, ScopeOption, StoreOption, chosen_scope, chosen_store
from coatcheck.settings import check_duration

__all__ = ["EXIT_CODES", "Attachment", "Report", "exec_command", "make_report", "passed_on", "tool_name"]

REFUSED, TIMED_OUT, BROKEN = 123, 124, 125

EXIT_CODES = f"""\b
Exit codes: the command's own, 128+N where signal N ended it, and
  {REFUSED}  the output is over the ceiling, and the command was stopped
  {TIMED_OUT}  the command did not end within --timeout, and was stopped
  {BROKEN}  coatcheck itself failed: a setting, the store
  {CANNOT_RUN}  the command cannot be run
  {NOT_FOUND}  there is no such command
    2  this command line cannot be understood
"""
"""For the end of the help."""

_MAX_NAME_CHARS = 64
_UNSAFE = re.compile("[^A-Za-z0-9._-]+")


class Attachment(msgspec.Struct, frozen=True):
    """Binary output that was small enough not to be stored; ``data`` is base64."""

    media_type: str
    data: bytes


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What ``exec --json`` prints.

    Attributes:
        outcome: its class: ``Inline``, ``Placed``, ``Truncated``, ``TooLarge`` or ``Failed``.
        text: what a model reads.
        ticket: of the stored output, where the outcome is ``Placed``.
        exit_status: the exit code: the command's own, 128 and the number of a signal, or 123 to 127.
        signal: the signal that ended the command, by name.
        timed_out: whether the command was stopped because its time was over.
        stdout_bytes: how much it wrote to standard output, as far as that was read.
        stderr_bytes: how much it wrote to standard error.
        stderr: the end of that.
        left_running: how many processes it left running, which were ended.
        not_stored: why the output could not be stored, where it was to be.
        content: small binary output that the store did not take; what it takes is behind ``ticket``.
    """

    outcome: str
    text: str
    ticket: cc.Ticket | None
    exit_status: int
    signal: str | None
    timed_out: bool
    stdout_bytes: int
    stderr_bytes: int
    stderr: str
    left_running: int
    not_stored: str | None
    content: tuple[Attachment, ...]


@command(wrong=BROKEN, misused=BROKEN, signals=False, log=logging.ERROR)  # what is less grave, the report says
async def exec_command(
    argv: Annotated[
        list[str], typer.Argument(metavar="COMMAND", help="The command and its arguments.", show_default=False)
    ],
    max_inline_chars: Annotated[
        int, typer.Option(metavar="N", min=1, help="Up to so many characters are read as they are; more is stored.")
    ] = 8_000,
    max_chars: Annotated[
        int, typer.Option(metavar="N", min=MAX_TICKET_CHARS, help="The last limit: no text is longer.")
    ] = 20_000,
    ceiling: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Over so many characters the output is refused, not stored.")
    ] = None,
    kind: Annotated[
        str | None, typer.Option(metavar="KIND", help="The kind of what is stored. Default: tool-result/COMMAND.")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Stop the command after so long.", show_default=False)
    ] = None,
    store: StoreOption = None,
    scope: ScopeOption = None,
    as_json: JsonOption = False,
) -> int:
    """Run a command as a tool, and print what a model would read of its standard output.

    A short output is printed as it is. A long one is streamed into the store, and a ticket is printed in its place:
    'coatcheck get REF' gives it back. Of a command that fails, its exit status and the end of its standard output and
    standard error are printed, and nothing is stored.

    Standard error passes through. Standard input is the command's, unless it is a terminal: then there is none.
    Signals go to the command; a second one to end, or 5 seconds, kills it. When the command ends, what it left
    running is ended, too. Where the store cannot take the output, the command goes on all the same;
    where it cannot even be opened, the command is not run.
    """
    name = tool_name(argv)
    whose = chosen_scope(scope)
    refusals: list[str] = []

    def listen(event: cc.AnyEvent) -> None:
        if isinstance(event, cc.ArtifactRefused):
            refusals.append(event.detail or event.reason)

    seconds = None if timeout is None else check_duration("--timeout", timeout)
    run = Command(argv, name=name, timeout=seconds)
    tool = cc.Tool(
        run.output,
        name=name,
        description="",
        ceiling=None if ceiling is None else cc.Ceiling(max_chars=ceiling),
        kind=kind,
        foreign=True,  # whatever a command prints, it has no authority here
    )
    boundary = cc.Boundary(
        [tool],
        store=chosen_store(store),
        placement=cc.Placement(max_inline_chars=max_inline_chars),
        truncation=cc.Truncation(max_chars=max_chars),
        on_event=listen,
    )
    try:
        async with run, boundary:
            outcome = await boundary.session(whose).call(name)
            if isinstance(outcome, cc.Truncated):  # nobody takes the rest: the command is not to blame, and goes on
                await run.discard()
            if isinstance(outcome, cc.Inline) and outcome.content:
                outcome = await _stored(outcome, boundary, whose, kind or f"tool-result/{name}", max_inline_chars)
    except asyncio.CancelledError:
        if run.interrupted is None:
            raise
        return exit_code(-run.interrupted)
    report = make_report(outcome, run, refusals)
    if as_json:
        print_json([report])
    else:
        whole = isinstance(outcome, cc.Inline) and not outcome.content
        write(outcome.text.encode() + (b"" if whole else b"\n"))
    _remark(report)
    return report.exit_status


async def _stored(
    outcome: cc.Inline, boundary: cc.Boundary, scope: cc.Scope, kind: str, limit: int
) -> cc.Inline | cc.Placed:
    """Small binary, which a server would attach to a message, in the store: a command line has nothing to attach to."""
    (blob,) = outcome.content
    assert boundary.store is not None  # `exec_command` gave it one
    try:
        put = await boundary.store.put(scope, blob.data, kind=kind, media_type=blob.media_type)
    except cc.StoreError:  # it is said that nothing is shown
        return outcome
    ticket = make_ticket(
        tool=outcome.tool,
        ref=put.meta.ref,
        kind=kind,
        media_type=put.meta.media_type,
        size=len(blob.data),
        bytes=len(blob.data),
        limit=limit,
        part=True,
    )
    return cc.Placed(tool=outcome.tool, text=ticket.to_json(), executed=True, ticket=ticket, tickets=(ticket,))


def tool_name(argv: Sequence[str]) -> str:
    """What the tool of a command is called: the command's base name, as far as a ticket can hold it."""
    name = _UNSAFE.sub("-", os.path.basename(argv[0])).strip("-")[:_MAX_NAME_CHARS]
    return name if name.strip(".") else "exec"


def passed_on(outcome: cc.AnyOutcome, *, status: int | None, not_run: int | None, timed_out: bool) -> int:
    """The exit code that says how a command ended, and what became of its output."""
    if not_run is not None:
        return not_run
    if timed_out:
        return TIMED_OUT
    if isinstance(outcome, cc.TooLarge):
        return REFUSED
    if status:
        return exit_code(status)
    return BROKEN if status is None or outcome.error else 0


def make_report(outcome: cc.AnyOutcome, run: Command, refusals: Sequence[str]) -> Report:
    """All that is to be said of one run."""
    status = run.status
    code = passed_on(outcome, status=status, not_run=run.not_run, timed_out=run.timed_out)
    return Report(
        outcome=type(outcome).__name__,
        text=outcome.text,
        ticket=outcome.ticket if isinstance(outcome, cc.Placed) else None,
        exit_status=code,
        signal=signal_name(-status) if status is not None and status < 0 else None,
        timed_out=run.timed_out,
        stdout_bytes=run.out.size,
        stderr_bytes=run.err.size,
        stderr=run.err.text,
        left_running=run.left_running,
        not_stored=refusals[0] if refusals else None,
        content=tuple(Attachment(blob.media_type, blob.data) for blob in outcome.content),
    )


def _remark(report: Report) -> None:
    """Say on standard error what the text does not show."""
    if report.not_stored is not None:
        complain(f"the output was not stored: {report.not_stored}")
    if report.content:
        size = sum(len(blob.data) for blob in report.content)
        complain(f"{size} bytes of binary could not be stored, and are not shown")
    if report.left_running:
        processes = "a process" if report.left_running == 1 else f"{report.left_running} processes"
        complain(f"the command left {processes} running; what it leaves behind is ended")
