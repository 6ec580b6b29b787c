"""``coatcheck demo``: one session, without a model, over files that lie on every machine with Python.

This is the frame: the command, and the boundary as an operator builds it. The tools and the rules are in
`coatcheck.cli.demo_tools`; what happens with them is told by `coatcheck.cli.demo_story`, `demo_stream` and
`demo_batch`, in a second act by `demo_run`, and in a third by `demo_large`.
"""

from __future__ import annotations

import secrets
import tempfile
from pathlib import Path

import anyio
import typer
from rich.console import Console

import coatcheck as cc
from coatcheck.cli import demo_story as story
from coatcheck.cli.demo_batch import batch
from coatcheck.cli.demo_large import answered
from coatcheck.cli.demo_page import Page, Unmet
from coatcheck.cli.demo_run import run
from coatcheck.cli.demo_stream import streamed
from coatcheck.cli.demo_tools import RULES, TOOLS, note_saver

__all__ = ["PLACEMENT", "TRUNCATION", "demo"]

# Sources are for reading: read_module may return much more than other tools before its result is stored.
PLACEMENT = cc.Placement(max_inline_chars=4_000, per_tool={"read_module": 1_000_000})
TRUNCATION = cc.Truncation(max_chars=6_000)


def demo() -> None:
    """One call for each way in which a tool call can end, shown as a model would read it.

    It needs no model, no network and no settings, and leaves nothing behind.
    It checks itself: the exit code is 0 only if everything was as it says.
    """
    page = Page(Console(markup=False, emoji=False))
    try:
        with tempfile.TemporaryDirectory(prefix="coatcheck-demo-") as folder:
            anyio.run(tell, page, Path(folder))
    except (Unmet, cc.StoreError, OSError) as error:
        typer.echo(f"coatcheck demo: stopped, {error}", err=True)
        raise typer.Exit(1) from None


async def tell(page: Page, folder: Path) -> None:
    """The whole story, in a folder of its own."""
    notes = folder / "notes"
    await anyio.Path(notes).mkdir()
    approvals = cc.MemoryApprovals()
    secret = secrets.token_urlsafe()

    def build(store: cc.ArtifactStore) -> cc.Boundary:
        """What an operator writes. Two of these stand for two servers: same folder, same secret, same approvals."""
        return cc.Boundary(
            [*TOOLS, note_saver(notes)],
            rules=RULES,
            store=store,
            placement=PLACEMENT,
            truncation=TRUNCATION,
            secret=secret,
            approvals=approvals,
        )

    store, store_of_other = cc.DirectoryStore(folder / "store"), cc.DirectoryStore(folder / "store")
    async with build(store) as boundary, build(store_of_other) as other_server:
        session = boundary.session(story.SCOPE)
        await story.introduction(page, boundary)
        await story.fits(page, session)
        await story.nothing_found(page, session)
        await story.too_large(page, session)
        ticket = await story.placed(page, session)
        await story.redeemed(page, boundary, session, store, ticket)
        await streamed(page, story.SCOPE, folder)
        await story.picture(page, session)
        await story.cut(page, session)
        await story.denied(page, session, notes)
        await story.failed(page, session)
        await batch(page, session, other_server, notes)
        await run(page, story.SCOPE)
        await answered(page, story.SCOPE, folder)
        story.summary(page, session)
