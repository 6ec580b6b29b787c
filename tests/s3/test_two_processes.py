"""Two processes on one bucket: what one mints the other reads, and no sweep takes what the other puts (D3, D4)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import pytest

from coatcheck.testing.trial import ManualClock
from tests.s3._servers import Place, Server

TTL = 1_000
MANY = 24

# One replica: does what each line of its input says, at the time that the line says, and answers with a line.
REPLICA = """
import json, sys
from datetime import datetime, timedelta
import anyio, coatcheck
SCOPE = coatcheck.Scope(tenant="acme", conversation="c-42")
now = datetime.now().astimezone()
async def act(store, verb, names):
    if verb == "put":
        refs = {}
        async def put(name):
            done = await store.put(SCOPE, name.encode(), kind="test/item", media_type="text/plain")
            refs[name] = [done.meta.ref, done.created]
        async with anyio.create_task_group() as tasks:
            for name in names:
                tasks.start_soon(put, name)
        return refs
    if verb == "sweep":
        return sum([len(await store.sweep()) for _ in range(10)])
    found = {}
    for name in names:
        loaded = await store.get(SCOPE, name)
        found[name] = None if loaded is None else loaded.data.decode()
    return found
async def main():
    global now
    said = json.loads(sys.argv[1])
    store = coatcheck.S3Store(**said, ttl=timedelta(seconds=float(sys.argv[2])), clock=lambda: now)
    async with store:
        print("ready", flush=True)
        while line := await anyio.to_thread.run_sync(sys.stdin.readline):
            at, verb, names = json.loads(line)
            now = datetime.fromisoformat(at)
            print(json.dumps(await act(store, verb, names)), flush=True)
anyio.run(main)
"""


class Replica:
    """A process with a store of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def start(self, at: datetime, verb: str, *names: str) -> None:
        """Have it begin; `answer` waits for the end."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([at.isoformat(), verb, names]) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def do(self, at: datetime, verb: str, *names: str) -> Any:
        self.start(at, verb, *names)
        return self.answer()


@contextmanager
def two_replicas(place: Place) -> Iterator[tuple[Replica, Replica]]:
    said = json.dumps({"bucket": place.bucket, **place.options()})
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", REPLICA, said, str(TTL)],
            env={**os.environ},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        yield Replica(processes[0]), Replica(processes[1])
        for process in processes:
            process.communicate(timeout=30)
            assert process.returncode == 0
    finally:
        for process in processes:
            process.kill()
            process.communicate()


@pytest.mark.parametrize("server", ["seaweed", "ceph"], indirect=True)
def test_what_one_process_puts_the_other_reads_and_no_sweep_of_it_takes_what_was_put_again(
    server: Server, place: Place
) -> None:
    clock = ManualClock()
    names = [f"payload {number}" for number in range(MANY)]
    with two_replicas(place) as (one, other):
        # Both put the same at once: one artifact each, whose ref both know.
        one.start(clock.now, "put", *names)
        other.start(clock.now, "put", *names)
        its, others = one.answer(), other.answer()
        refs = {name: ref for name, (ref, _) in its.items()}
        assert {name: ref for name, (ref, _) in others.items()} == refs
        assert all(its[name][1] or others[name][1] for name in names)
        assert len(set(refs.values())) == MANY
        assert other.do(clock.now, "get", *refs.values()) == {ref: name for name, ref in refs.items()}

        # Put again by one just before the end of their time, while the other sweeps just after it: none is lost.
        before, after = clock.advance(TTL - 1), clock.advance(2)
        other.start(after, "sweep")
        again = one.do(before, "put", *names)
        other.answer()
        assert {name: ref for name, (ref, _) in again.items()} == refs
        for replica in (one, other):
            assert replica.do(after, "get", *refs.values()) == {ref: name for name, ref in refs.items()}

        # And in the end they go, whoever sweeps.
        over = clock.advance(3 * TTL)
        one.start(over, "sweep")
        other.start(over, "sweep")
        assert one.answer() + other.answer() >= MANY
        assert set(one.do(over, "get", *refs.values()).values()) == {None}
