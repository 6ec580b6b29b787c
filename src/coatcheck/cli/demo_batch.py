"""The last section of the demo: several calls in one turn, one of which has to wait for a person."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio

import coatcheck as cc
from coatcheck.cli.demo_page import Page, spell_call

__all__ = ["batch"]

_BRIEFLY = 240
_NOTE = "A note from the demo."

_CALLS: list[tuple[str, Mapping[str, Any], type[cc.Outcome], str | None]] = [
    ("describe_package", {"name": "msgspec"}, cc.Inline, None),
    ("save_note", {"name": "note.txt", "text": _NOTE}, cc.Pending, None),
    ("search_source", {"word": "coatcheck", "package": "json"}, cc.Inline, "absent"),
    ("list_modules", {}, cc.Placed, None),
    ("read_module", {"name": "argparser"}, cc.Failed, None),
]


async def batch(page: Page, session: cc.Session, other_server: cc.Boundary, notes: Path) -> None:
    """Pending in a batch, approved from its bytes by another boundary, once."""
    page.section("A person is asked: Pending")
    page.say(
        "A model may ask for several calls at once: a batch. The tools run side by side. Here a rule wants a person to "
        "agree to the second call. That one waits, and all the others get their outcomes, in the order of the calls:"
    )
    outcomes = await session.call_batch([cc.ToolCall(name, dict(arguments)) for name, arguments, _, _ in _CALLS])
    page.check(len(outcomes) == len(_CALLS), f"{len(_CALLS)} calls, {len(outcomes)} outcomes")
    for (name, arguments, kind, status), outcome in zip(_CALLS, outcomes, strict=True):
        page.show(outcome, spell_call(name, arguments), most=_BRIEFLY)
        page.expect(outcome, kind, status=status)
    pending = page.expect(outcomes[1], cc.Pending)
    note = anyio.Path(notes / "note.txt")
    page.check(not await note.exists(), "the note is not there yet")

    await approved(page, other_server.session(session.scope), pending.call.to_bytes(), note)
    await used_again(page, [session, other_server.session(session.scope)], pending.call.to_bytes(), note)


async def approved(page: Page, session: cc.Session, kept: bytes, note: anyio.Path) -> None:
    """On another server, from the bytes alone."""
    page.say(
        "People take their time, and servers are restarted meanwhile. So the waiting call is turned into bytes, which "
        "can lie in any database. They are sealed with a secret that only the operator's servers have:"
    )
    forged = await session.resume(kept.replace(_NOTE.encode(), b"Another note."), approved=True, by="Mallory")
    page.check(isinstance(forged, cc.Denied), "if somebody changes the text of the note in them, the answer is no")
    page.say("Days later Dana says yes, and another server goes on from the bytes:")
    outcome = await session.resume(kept, approved=True, by="Dana", note="go ahead")
    page.show(outcome, 'resume(the bytes, approved=True, by="Dana", note="go ahead")')
    page.expect(outcome, cc.Inline)
    page.check(await note.read_text(encoding="utf-8") == _NOTE, "the note is there, with the text that Dana agreed to")


async def used_again(page: Page, sessions: list[cc.Session], kept: bytes, note: anyio.Path) -> None:
    """The same bytes again, on either server."""
    await note.unlink()
    page.say("One yes is good for one use. The same bytes again, on the server that asked and on the other one:")
    for session in sessions:
        outcome = await session.resume(kept, approved=True, by="Dana")
        page.show(outcome, 'resume(the bytes, approved=True, by="Dana")')
        page.expect(outcome, cc.Denied)
    page.check(not await note.exists(), "the tool did not run again")
