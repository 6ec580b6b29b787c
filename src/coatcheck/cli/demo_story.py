"""What happens in the demo, section by section: a few sentences, a call, and what has to be true then.

Most of it is about one call at a time. The last section, about a batch and a person, is in `demo_batch`.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, TypeVar

import anyio.to_thread
import msgspec

import coatcheck as cc
from coatcheck.cli import demo_tools as tools
from coatcheck.cli.demo_page import Page, spell_call

__all__ = [
    "SCOPE",
    "cut",
    "denied",
    "failed",
    "fits",
    "introduction",
    "nothing_found",
    "picture",
    "placed",
    "redeemed",
    "summary",
    "too_large",
]

SCOPE = cc.Scope(tenant="demo", principal="you", conversation="first")
ELSEWHERE = cc.Scope(tenant="demo", principal="you", conversation="second")

DOORS = {
    "ceiling": "the limit that a tool's author has set for its results. What is over it is refused.",
    "governance": "rules, which are small functions. They allow, deny, change, or ask a person.",
    "placement": "what is too long for the conversation is stored, and the model reads a short ticket instead.",
    "truncation": "whatever is still too long is cut, and says so.",
}

_O = TypeVar("_O", bound=cc.Outcome)


async def call(
    page: Page, session: cc.Session, kind: type[_O], tool: str, status: str | None = None, /, **arguments: Any
) -> _O:
    """Make a call, show what came of it, and see that it ended as ``kind``."""
    outcome = await session.call(tool, arguments)
    page.show(outcome, spell_call(tool, arguments))
    return page.expect(outcome, kind, status=status)


async def introduction(page: Page, boundary: cc.Boundary) -> None:
    """What this is, and how to read it."""
    modules = await anyio.to_thread.run_sync(tools.list_modules)
    packages = await anyio.to_thread.run_sync(tools.count_packages)
    page.title("coatcheck: a session without a model")
    page.say(
        "An AI model can call tools: functions that a program runs for it. Whatever a tool returns, the model reads, "
        "and it can read only so much. Nothing keeps a tool from returning too much, or something that is nobody's "
        "business, or from doing what nobody wanted. coatcheck stands between the tools and the model. Every result "
        "passes four doors. The first is set by the author of a tool, the others by the operator, who runs the tools:"
    )
    page.define(DOORS)
    page.check(boundary.chain == tuple(reversed(DOORS)), "all four are set up here, and they keep this order")
    page.say(
        "Each call ends in one of seven outcomes, and this demo makes all of them happen. There is no model in it: the "
        "calls are written down, and you read what a model would read. The rest is real. The tools work on the Python "
        f"of this machine: {len(modules):,} modules of its standard library, and {packages:,} installed packages."
    )
    page.say("How to read what follows:")
    page.define(
        {
            "call": "what the model asks for.",
            "reads": "what it gets to read, behind a bar. Only the line breaks are this demo's, to fit your window.",
            "outcome": "how the call ended. A status is one more word about the result, where there is one.",
            "ledger": "what each rule said about the call. It is the record that stays with the session.",
            "ok": "something that this demo has just verified. If anything is not as it says, it stops.",
        }
    )


async def fits(page: Page, session: cc.Session) -> None:
    """Inline, and a rule that changes the result."""
    page.section("An answer that fits: Inline")
    page.say(
        "Most answers are short, and go straight to the model. This one is short, too, but it names a folder of this "
        "machine, which a rule takes out before the model reads it. The ledger tells that something was changed. It "
        "keeps the size and a fingerprint of what was changed, so that it does not give away what the rule hides."
    )
    outcome = await call(page, session, cc.Inline, "describe_package", name="anyio")
    page.check(outcome.value["location"] == "(hidden)", "the folder is not in what the model reads")


async def nothing_found(page: Page, session: cc.Session) -> None:
    """Inline with the status ``absent``."""
    page.section("An answer that is nothing: Inline, with the status absent")
    page.say(
        "A search that finds nothing often returns an empty list. A model cannot tell that from a search that never "
        "ran, and may invent what should be in it. So this tool returns an absence: what it was looking for, where it "
        "looked, and where it did not."
    )
    outcome = await call(page, session, cc.Inline, "search_source", "absent", word="coatcheck")
    page.check(not outcome.error, "nothing was found, and that is a result, not an error")


async def too_large(page: Page, session: cc.Session) -> None:
    """TooLarge, and the advice in it followed."""
    page.section("More than the tool's author wants to return: TooLarge")
    page.say(
        "The same search, for a word that is everywhere. The tool's author knows that thousands of lines help nobody, "
        "and has set a ceiling. The result is dropped, and the model reads how to ask for less. The status invalid "
        "says that there is nothing here to go on with."
    )
    refused = await call(page, session, cc.TooLarge, "search_source", "invalid", word="import")
    page.check(refused.size > refused.max_chars, f"{refused.size:,} characters are more than {refused.max_chars:,}")
    page.say("The model takes the advice:")
    await call(page, session, cc.Inline, "search_source", word="import", package="json", limit=3)


async def placed(page: Page, session: cc.Session) -> cc.Ticket:
    """Placed: the result is stored, and the model reads a ticket."""
    page.section("More than the conversation can hold: Placed")
    page.say(
        "This time all of it is wanted: every module with its size. But that is more than the 4,000 characters which "
        "this operator grants one answer. So it goes as in a theatre: the bulky coat stays in the cloakroom, and the "
        "guest keeps a ticket. The whole result is stored, and the model reads a ticket. On it stands a ref, which is "
        "the name of what was stored, for other tools to take."
    )
    outcome = await call(page, session, cc.Placed, "list_modules")
    page.check(len(outcome.text) <= 1_024, f"the ticket is {len(outcome.text)} characters long")
    return outcome.ticket


async def redeemed(
    page: Page, boundary: cc.Boundary, session: cc.Session, store: cc.ArtifactStore, ticket: cc.Ticket
) -> None:
    """The ticket is good for the result, here and nowhere else, and equal results share one."""
    page.say(
        "The program redeems the ref. With the result comes its digest: a number (SHA-256) that is computed from all "
        "of its bytes, and is another one as soon as a single byte is."
    )
    artifact = page.given(await session.redeem(ticket.ref), "the ref is good for what was stored")
    page.check(artifact.meta.bytes == ticket.bytes == len(artifact.data), f"{ticket.bytes:,} bytes, as on the ticket")
    digest = hashlib.sha256(artifact.data).hexdigest()
    page.check(artifact.meta.digest == f"sha256:{digest}", f"computed again, the digest is the same:\n{digest}")
    rows = msgspec.json.decode(artifact.data)
    page.check(rows == await anyio.to_thread.run_sync(tools.list_modules), f"it is the list of {len(rows):,} modules")

    page.say(
        "The ref is made from the digest, so equal results have the same name. The model asks again, and reads the "
        "very same ticket; nothing is stored twice."
    )
    again = page.expect(await session.call("list_modules"), cc.Placed)
    page.check(again.text == ticket.to_json(), "the second ticket is the first one, character by character")
    held = [meta.ref for meta in (await store.list(SCOPE)).artifacts]
    page.check(held == [ticket.ref], "the store holds one artifact, which is the word for a stored result")

    page.say(
        "A ref opens nothing by itself. It belongs to one conversation. To any other it is as unknown as a ref that "
        "somebody made up."
    )
    elsewhere = boundary.session(ELSEWHERE)
    page.check(await elsewhere.redeem(ticket.ref) is None, "another conversation gets nothing for this ref")
    page.check(await elsewhere.redeem("art_" + "0" * 32) is None, "nor for an invented one")


async def picture(page: Page, session: cc.Session) -> None:
    """Inline with a ticket in it: a picture is stored, the text around it stays."""
    page.section("A picture in an answer: Inline, with a ticket in it")
    page.say(
        "Tools return pictures as long rows of letters, which nobody can read. This tool draws the source of a module, "
        "every byte as a grey dot. The picture is stored as what it is, and the sentence beside it is left to read."
    )
    outcome = await call(page, session, cc.Inline, "picture_of_module", name="argparse")
    page.check([ticket.media_type for ticket in outcome.tickets] == ["image/png"], "one ticket, for a PNG picture")
    artifact = page.given(await session.redeem(outcome.tickets[0].ref), "its ref is good for what was stored")
    page.check(artifact.data.startswith(tools.PNG_SIGNATURE), "and that is a PNG picture")


async def cut(page: Page, session: cc.Session) -> None:
    """Truncated: the last net."""
    page.section("More than any answer may be: Truncated")
    page.say(
        "This operator wants source code to be read, not stored. But no answer at all may be longer than 6,000 "
        "characters. So the model reads the beginning, and how much there was."
    )
    outcome = await call(page, session, cc.Truncated, "read_module", name="argparse")
    page.check(outcome.cut and len(outcome.text) <= 6_000, f"the model reads {len(outcome.text):,} characters")
    page.check(msgspec.json.decode(outcome.text)["truncated"] is True, "what it reads is whole JSON, not a torn piece")


async def denied(page: Page, session: cc.Session, notes: Path) -> None:
    """Denied, before the tool and after it."""
    page.section("A rule says no: Denied")
    page.say("A rule may stop a call before the tool runs. This one would write a file where none should be:")
    before = await call(page, session, cc.Denied, "save_note", name="../../.profile", text="Good evening.")
    written = [path async for path in anyio.Path(notes).iterdir()]
    page.check(not before.executed and not written, "the tool did not run, and nothing was written")
    page.say(
        "Or a rule looks at what came back. Here the tool has run, but this operator does not want its result to be "
        "read. The model reads why, and nothing else:"
    )
    after = await call(page, session, cc.Denied, "read_module", name="getpass")
    page.check(after.executed and after.text == after.reason, "the tool ran, and the model reads the reason alone")


async def failed(page: Page, session: cc.Session) -> None:
    """Failed, in three ways."""
    page.section("Something went wrong: Failed")
    page.say(
        "A failure is an outcome like the others: the program does not crash, and the model reads what it can do "
        "better. First, a misspelled name:"
    )
    await call(page, session, cc.Failed, "serch_source", word="import")
    page.say("Wrong arguments, which are found before the tool runs:")
    wrong = await call(page, session, cc.Failed, "search_source", word="import", limit="ten")
    page.check(not wrong.executed, "the tool did not run with wrong arguments")
    page.say("And an error in the tool itself:")
    raised = await call(page, session, cc.Failed, "read_module", name="argparser")
    page.check(raised.executed and raised.error, "the tool ran, and what the model reads are its own words")


def summary(page: Page, session: cc.Session) -> None:
    """What was seen."""
    page.section("What you saw")
    page.define(
        {
            "Inline": "the model read the result itself; an absence is a result, too.",
            "Placed": "the result was stored, and the model read a ticket that is good for it.",
            "Truncated": "the model read the beginning, and how much there was.",
            "TooLarge": "the tool's author refused the result, and the model read how to ask for less.",
            "Denied": "a rule said no, before the tool or after it; or a person's yes had been used already.",
            "Failed": "no such tool, wrong arguments, or an error in the tool.",
            "Pending": "a person was asked, and the call went on when there was an answer.",
        }
    )
    page.say(
        f"The ledger of this session has {len(session.decisions)} rows. {page.checks} things were verified, and all of "
        "them were as they should be. What the demo stored is removed again. To do all this with tools of your own, "
        "begin with README.md."
    )
