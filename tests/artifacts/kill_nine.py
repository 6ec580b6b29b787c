"""`kill -9` at random moments of a load of puts, streams, deletes and sweeps by three processes on one directory.

    python tests/artifacts/kill_nine.py --rounds 200 --seed 7

A round starts three processes, kills one, two or all of them at a random moment, lets the others come to an end,
and looks. What must hold:

* Every artifact that was acknowledged (its ref was written to a file after the put had returned) is listed, and its
  payload is the one that was put.
* Everything that is listed is whole, and what lies on the disk is what is listed.
* A sweep leaves nothing but artifacts, and a second one finds nothing. Then the index agrees with the disk.
* A count budget that the processes share is exceeded by no more than the one artifact of a put that was killed
  between its own artifact and the one that had to leave.

Everything follows from the seed, but the moments at which the system lets a process run. A round that fails leaves
its directory, and says where it is.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
import traceback
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import anyio

from coatcheck.artifacts.directory import DirectoryStore
from coatcheck.artifacts.meta import ArtifactMeta
from coatcheck.artifacts.ref import digest_of
from coatcheck.scope import Scope, scope_segments

WORKERS = 3
ROUNDS_IN_ONE_SCOPE = 8
LONGEST_ROUND = 0.5  # seconds
BUDGET = 12
WORDS: dict[str, Any] = {"kind": "k", "media_type": "text/plain"}
POOL = [random.Random(number).randbytes(size) for number, size in enumerate([3_000_000, 1_500_000, 2_200_000])]


def free(round_: int) -> Scope:
    """Where nothing leaves but what is deleted."""
    return Scope(tenant="t", conversation=f"free-{round_ // ROUNDS_IN_ONE_SCOPE}")


def tight(round_: int) -> Scope:
    """Where there is a budget."""
    return Scope(tenant="t", conversation=f"tight-{round_ // ROUNDS_IN_ONE_SCOPE}")


# One process of the load


class Load:
    """What one process does until it is told to end, or killed."""

    def __init__(self, root: Path, log: Path, round_: int, seed: str) -> None:
        self.dice = random.Random(seed)
        self.fsync = self.dice.random() < 0.2
        self.store = DirectoryStore(root, fsync=self.fsync)
        self.budgeted = DirectoryStore(root, max_count=BUDGET, fsync=self.fsync)
        self.log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self.round = round_
        self.ending = False

    async def run(self) -> None:
        async with anyio.create_task_group() as tasks:
            for _ in range(self.dice.choice((1, 1, 3))):
                tasks.start_soon(self.work)

    async def work(self) -> None:
        while not self.ending:
            await self.dice.choices([self.put, self.stream, self.tight, self.sweep, self.delete], [8, 4, 5, 2, 2])[0]()

    def say(self, word: str, ref: str) -> None:
        os.write(self.log, f"{word} {ref}\n".encode())

    async def put(self) -> None:
        # Now and then a content that others put, too.
        data = self.dice.choice([self.dice.randbytes(self.dice.randrange(4_000)), b"ours"])
        self.say("there", (await self.store.put(free(self.round), data, **WORDS)).meta.ref)

    async def stream(self) -> None:
        async def source() -> AsyncIterator[bytes]:
            data = self.dice.choice(POOL)[self.dice.choice((0, 1, 2, 3)) :]
            step = self.dice.randrange(50_000, 700_000)
            for at in range(0, len(data), step):
                yield data[at : at + step]
                await anyio.sleep(self.dice.choice((0, 0, 0.001)))

        self.say("there", (await self.store.put_stream(free(self.round), source(), **WORDS)).meta.ref)

    async def tight(self) -> None:
        await self.budgeted.put(tight(self.round), self.dice.randbytes(100), **WORDS)

    async def sweep(self) -> None:
        await self.store.sweep(self.dice.choice((None, free(self.round))))

    async def delete(self) -> None:
        data = self.dice.randbytes(50)
        ref = (await self.store.put(free(self.round), data, **WORDS)).meta.ref
        self.say("gone", ref)
        await self.store.delete(free(self.round), ref)


def load(root: Path, log: Path, round_: int, seed: str) -> None:
    work = Load(root, log, round_, seed)

    def end(*_: object) -> None:
        work.ending = True

    signal.signal(signal.SIGTERM, end)
    anyio.run(work.run, backend=work.dice.choice(("asyncio", "trio")))


# A look at what is left


class Broken(AssertionError):
    """A law does not hold."""


def must(holds: object, otherwise: str) -> None:
    if not holds:
        raise Broken(otherwise)


async def look(root: Path, round_: int, acknowledged: set[str]) -> None:
    store = DirectoryStore(root)
    listed = {meta.ref: meta for meta in await everything(store, free(round_))}
    must(acknowledged <= listed.keys(), f"acknowledged, and not listed: {sorted(acknowledged - listed.keys())}")
    crowd = {meta.ref: meta for meta in await everything(store, tight(round_))}
    must(len(crowd) <= BUDGET + 1, f"{len(crowd)} artifacts where {BUDGET} may be")
    for scope, metas in ((free(round_), listed), (tight(round_), crowd)):
        must(on_disk(root, scope) == metas.keys(), "what lies on the disk is not what is listed")
        for ref, meta in metas.items():
            artifact = await store.get(scope, ref)
            must(artifact is not None and artifact.meta == meta, f"{ref} is listed, and not there")
            must(artifact is not None and digest_of(artifact.data) == meta.digest, f"{ref} is damaged")

    swept = await store.sweep()
    must({gone.reason for gone in swept} <= {"orphan"}, f"a sweep removed what had not expired: {swept}")
    must(not any(gone.ref for gone in swept), f"an artifact was left half-written: {swept}")
    must(await store.sweep() == (), "a second sweep found something")
    hidden = [path.name for path in root.rglob(".*") if path.name[:5] in (".new-", ".old-")]
    must(not hidden, f"left after a sweep: {hidden}")
    for scope, metas in ((free(round_), listed), (tight(round_), crowd)):
        wanted = (len(metas), sum(meta.bytes for meta in metas.values()))
        must(totals(root, scope) == wanted, f"the index says {totals(root, scope)}, the disk {wanted}")
        must({meta.ref for meta in await everything(store, scope)} == metas.keys(), "a sweep removed an artifact")


async def everything(store: DirectoryStore, scope: Scope) -> list[ArtifactMeta]:
    metas: list[ArtifactMeta] = []
    cursor: str | None = None
    while True:
        page = await store.list(scope, cursor=cursor, limit=40)
        metas += page.artifacts
        cursor = page.cursor
        if cursor is None:
            return metas


def on_disk(root: Path, scope: Scope) -> set[str]:
    return {path.name for path in root.joinpath(*scope_segments(scope)).glob("??/art_*")}


def totals(root: Path, scope: Scope) -> tuple[int, int]:
    file = root.joinpath(*scope_segments(scope), ".index")
    if not file.exists():
        return (0, 0)
    database = sqlite3.connect(f"file:{file}?mode=ro", uri=True)
    try:
        must(database.execute("PRAGMA integrity_check").fetchall() == [("ok",)], "the index is damaged")
        must(database.execute("SELECT * FROM doubtful").fetchall() == [], "the index is in doubt after a sweep")
        found: tuple[int, int] = database.execute("SELECT count, bytes FROM totals").fetchone()
        return found
    finally:
        database.close()


# Rounds


def forked(work: Callable[[], object]) -> int:
    """Do ``work`` in a process of its own, which starts in no time, since everything is imported already."""
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        work()
        status = 0
    except BaseException:  # noqa: BLE001 - told, and passed on as the process's status
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def ended(process: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def run_round(root: Path, logs: Path, round_: int, seed: int, acknowledged: set[str]) -> None:
    """One round; ``acknowledged`` grows by what it must find from now on."""
    dice = random.Random(f"{seed}/{round_}")
    files = [logs / f"{round_}-{number}" for number in range(WORKERS)]
    workers = [
        forked(lambda number=number, log=log: load(root, log, round_, f"{seed}/{round_}/{number}"))  # type: ignore[misc]  # what a default is in a lambda, mypy cannot say
        for number, log in enumerate(files)
    ]
    time.sleep(dice.uniform(0.01, LONGEST_ROUND))
    victims = dice.sample(workers, dice.choice((1, 1, 2, WORKERS)))
    for victim in victims:
        os.kill(victim, signal.SIGKILL)
    for worker in workers:
        if worker not in victims:
            os.kill(worker, signal.SIGTERM)
    for worker in workers:
        status = ended(worker)
        must(
            status in ((-signal.SIGKILL,) if worker in victims else (0, -signal.SIGTERM)), f"a process ended: {status}"
        )

    said = [line.split(" ") for log in files if log.exists() for line in log.read_text().splitlines()]
    acknowledged |= {ref for word, ref in said if word == "there"}
    acknowledged -= {ref for word, ref in said if word == "gone"}
    must(ended(forked(lambda: anyio.run(look, root, round_, acknowledged))) == 0, f"round {round_} of seed {seed}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="coatcheck-kill-"))
    (folder / "logs").mkdir()
    found = round_ = 0
    started = time.monotonic()
    acknowledged: set[str] = set()
    try:
        for round_ in range(args.rounds):
            if round_ % ROUNDS_IN_ONE_SCOPE == 0:
                found += len(acknowledged)
                acknowledged.clear()
                shutil.rmtree(folder / "root" / "t", ignore_errors=True)  # as an operator may
            run_round(folder / "root", folder / "logs", round_, args.seed, acknowledged)
    except Broken as broken:
        sys.exit(f"seed {args.seed}, round {round_}: {broken}\nleft in {folder}")
    found += len(acknowledged)
    shutil.rmtree(folder)
    took = f"{time.monotonic() - started:.0f} seconds"
    sys.stdout.write(f"{args.rounds} kills, seed {args.seed}: all {found} acknowledged artifacts verify ({took})\n")


if __name__ == "__main__":
    main()
