"""The second act of the demo: what results say beside their values, and what comes of it in a run of several turns."""

from __future__ import annotations

import ast
from typing import Any

import coatcheck as cc
from coatcheck.cli.demo_page import Page, spell_call
from coatcheck.cli.demo_tools import guard_notes, source_files

__all__ = ["run"]

GRAPH = cc.SkillGraph(
    ["look", "explain", "give-up"],
    entries=["look"],
    edges=[
        cc.Edge("look", "give-up", tool="find_function", status="absent"),
        cc.Edge("look", "explain", open=True),
        cc.Edge("explain", "look", open=True),
        cc.Edge("give-up", "look", open=True),
    ],
)
INSTRUCTIONS = cc.InstructionCatalog(
    [
        cc.Instruction("apologise", "Say that you found nothing, and where you looked.", skill="give-up"),
        cc.Instruction("cite", "Name the file and the line of everything that you say."),
    ]
)


@cc.tool(
    search=cc.Search(
        covers=["the functions at the top of every module of the standard library"],
        arguments={"name": "name"},
        cannot_cover=[{"what": "modules written in C", "why": "they come without Python source"}],
    )
)
def find_function(name: str) -> object:
    """Where a function of the standard library is defined."""
    found = [
        {"file": path.name, "line": node.lineno}
        for path in source_files()
        if f"def {name}(" in (source := path.read_text("utf-8", "replace"))
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and node.name == name
    ]
    return found or cc.absent(
        what=f"a function {name}", not_checked=[{"what": "methods of classes", "why": "they are not at the top"}]
    )


@cc.tool
def count_warnings() -> object:
    """How many modules of the standard library use the module warnings."""
    readable, unreadable, using = 0, 0, 0
    for path in source_files():
        try:
            using += "import warnings" in path.read_text("utf-8")
            readable += 1
        except UnicodeDecodeError:
            unreadable += 1
    return cc.coverage(
        {"modules": using},
        checked=[f"the source of {readable} modules"],
        not_checked=[{"what": f"{unreadable} modules", "why": "they are not UTF-8"}] if unreadable else [],
        cannot_cover=[{"what": "modules written in C", "why": "they come without Python source"}],
    )


@cc.tool
def read_function(name: str) -> cc.Envelope:
    """Where a function is, and what should happen next."""
    return cc.Envelope(
        content=find_function.function(name),
        effects=(
            cc.ProposeTransition("publish", reason="it reads well"),
            cc.ProposeTransition("explain", reason="there is something to explain"),
            cc.RequireInstruction("cite", delivery_lease="next-call"),
        ),
    )


async def run(page: Page, scope: cc.Scope) -> None:
    """Several turns of one run."""
    boundary = cc.Boundary(
        [find_function, count_warnings, read_function],
        rules=[guard_notes],
        graph=GRAPH,
        instructions=INSTRUCTIONS,
        coverage_in_answers=True,
    )
    session = boundary.session(scope)
    await finds_nothing(page, session)
    await bounds_its_answer(page, session)
    await asks_for_more(page, session)
    answer(page, session)


async def finds_nothing(page: Page, session: cc.Session) -> None:
    """An absence of a declared search, and the edge that it takes."""
    page.section("A search that says where it looked")
    page.say(
        "So much for single calls. An agent works in turns, and what its tools say beside their values can move it. "
        "Here the run has three skills: look, explain, give-up. It begins with the first. The author of this tool has "
        "declared what it searches, so that an absence says by itself where it looked, and what was asked for:"
    )
    turn = session.next_turn()
    page.check((turn.skill, turn.by) == ("look", "entry"), "turn 1: the run is in the skill look")
    outcome = await call(page, session, "find_function", "absent", name="coatcheck")
    grounds = [item["what"] for item in outcome.declared[0].checked]
    page.check(any("coatcheck" in ground for ground in grounds), "the absence names the argument that it searched for")
    turn = session.next_turn()
    page.check(
        (turn.skill, turn.by, [each.id for each in turn.instructions]) == ("give-up", "edge", ["apologise"]),
        "turn 2: the status absent took a declared edge to give-up, where the model is told to apologise",
    )
    page.check(session.pick("look").accepted, "the model picks the skill look, which can be reached from here")
    page.check(session.next_turn().skill == "look", "turn 3: the run is there")


async def bounds_its_answer(page: Page, session: cc.Session) -> None:
    """A coverage ledger."""
    page.section("An answer that says what it covers")
    page.say("A count is only as good as the ground that it covers. This tool says which that is:")
    outcome = await call(page, session, "count_warnings", None)
    page.check(outcome.declared[0].kind == "ledger", "what it covers, and what it cannot, is on the session's record")


async def asks_for_more(page: Page, session: cc.Session) -> None:
    """Proposals and a lease."""
    page.section("A result that asks for something")
    page.say(
        "A tool may ask: move to another skill, deliver an instruction. These are requests. The first one here asks "
        "for a skill that does not exist, and is refused; a note tells the model why. The others are accepted:"
    )
    outcome = await call(page, session, "read_function", None, name="dedent")
    page.check(len(outcome.notes) == 1 and "publish" in outcome.notes[0], "one is refused, and the model reads why")
    turn = session.next_turn()
    page.check(
        (turn.skill, turn.by) == ("explain", "proposal"), "turn 4: the accepted proposal moved the run to explain"
    )
    page.check(
        [(each.id, each.why) for each in turn.instructions] == [("cite", "next-call")],
        "the instruction cite is delivered with this turn",
    )
    page.check(session.next_turn().instructions == (), "turn 5: its lease was for one call, and is over")


def answer(page: Page, session: cc.Session) -> None:
    """The block that travels with the answer."""
    page.section("The answer, and what it rests on")
    page.say("Whatever the model answers now, what its tools covered and did not cover travels with it:")
    text = session.compose_answer("There is no function of that name.")
    page.answer(text)
    page.check("modules written in C" in text, "the answer says that it cannot speak for modules written in C")
    page.check(len(session.record().splitlines()) >= 5, "and the session's record has it all, as JSON Lines")


async def call(page: Page, session: cc.Session, tool: str, status: str | None, /, **arguments: Any) -> cc.Inline:
    """Make a call, show what came of it, and see that it ended as it has to."""
    outcome = await session.call(tool, arguments)
    page.show(outcome, spell_call(tool, arguments))
    return page.expect(outcome, cc.Inline, status=status)
