"""A section of the demo: a result that is larger than the memory that the program may use."""

from __future__ import annotations

import hashlib
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio.to_thread

import coatcheck as cc
from coatcheck.cli.demo_page import Page, spell_call
from coatcheck.cli.demo_tools import guard_notes, source_files

__all__ = ["MEGABYTES", "ROOM", "little_memory", "streamed"]

_MIB = 1 << 20
MEGABYTES = 128
ROOM = 64 * _MIB


@cc.tool
def print_library(megabytes: int) -> Iterator[bytes]:
    """The source of the standard library, file after file, over and over, until it is so long."""
    left = megabytes * _MIB
    while left:
        for path in source_files():
            piece = path.read_bytes()[:left]
            left -= len(piece)
            yield piece


async def streamed(page: Page, scope: cc.Scope, folder: Path) -> None:
    """Placed, piece by piece."""
    page.section("More than fits into memory: Placed, while it is being made")
    page.say(
        "A tool does not have to hold what it returns: it may hand it over piece by piece, as a generator does. What "
        "is short comes to the model as always. What is long flows into the store while the tool still works on it. "
        f"Here a tool makes {MEGABYTES} MB, and this program may not take more than {ROOM // _MIB} MB of memory beyond "
        "what it has:"
    )
    store = cc.DirectoryStore(folder / "streams")
    boundary = cc.Boundary(
        [print_library], rules=[guard_notes], store=store, placement=cc.Placement(max_inline_chars=4_000)
    )
    wanted = await anyio.to_thread.run_sync(_digest)
    async with boundary:
        with little_memory() as limited:
            if limited:
                page.check(not _can_hold(MEGABYTES * _MIB), f"holding {MEGABYTES} MB fails: there is no such memory")
            outcome = await boundary.session(scope).call("print_library", {"megabytes": MEGABYTES})
            page.show(outcome, spell_call("print_library", {"megabytes": MEGABYTES}))
            ticket = page.expect(outcome, cc.Placed).ticket
            page.check(ticket.bytes == MEGABYTES * _MIB, f"all {ticket.bytes:,} bytes are in the store")
            digest = hashlib.sha256()
            async with store.open(scope, ticket.ref) as opened:
                async for chunk in page.given(opened, "the ref opens it, piece by piece as well"):
                    digest.update(chunk)
            page.check("sha256:" + digest.hexdigest() == wanted, "and every byte is the one that the tool made")
        await store.delete(scope, ticket.ref)  # the third act needs the room on the disk


def _digest() -> str:
    digest = hashlib.sha256()
    for piece in print_library(MEGABYTES):
        digest.update(piece)
    return "sha256:" + digest.hexdigest()


@contextmanager
def little_memory() -> Iterator[bool]:
    """Where the system can, let this process take only `ROOM` beyond what it has. Says whether it can."""
    if sys.platform != "linux":
        yield False
        return
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[5])
    before = resource.getrlimit(resource.RLIMIT_DATA)
    allowed = pages * resource.getpagesize() + ROOM
    resource.setrlimit(resource.RLIMIT_DATA, (allowed if before[0] < 0 else min(allowed, before[0]), before[1]))
    try:
        yield True
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _can_hold(size: int) -> bool:
    try:
        bytearray(size)
    except MemoryError:
        return False
    return True
