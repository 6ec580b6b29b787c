"""Twenty thousand operations: nothing fails, nothing grows, nothing is left open."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.s3._servers import Place, Server

_PROGRAM = """
import json, resource, sys
import anyio
from coatcheck import S3Store, Scope

bucket, options, count = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])

def resident():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))

async def main():
    scope = Scope(conversation="load")
    wrong = 0
    async with S3Store(bucket, **options) as store:
        async def one(number):
            nonlocal wrong
            data = b"%d," % (number % 1000) * 2000
            meta = (await store.put(scope, data, kind="load/item", media_type="text/plain")).meta
            artifact = await store.get(scope, meta.ref)
            wrong += artifact is None or artifact.data != data

        async def some(numbers):
            for number in numbers:
                await one(number)

        async def all_of(total):
            numbers = iter(range(total))
            async with anyio.create_task_group() as tasks:
                for _ in range(64):
                    tasks.start_soon(some, numbers)

        await all_of(count // 5)
        before = resident()
        await all_of(count)
        after = resident()
    print(json.dumps({"wrong": wrong, "grown": after - before}))

anyio.run(main)
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_twenty_thousand_puts_and_gets_at_once_fail_nowhere_and_grow_nothing(
    place_on: Callable[[Server], Place], seaweed: Server
) -> None:
    place = place_on(seaweed)
    options = {**place.options(), "connections": 64}
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-c", _PROGRAM, place.bucket, json.dumps(options), "10000"],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stderr == ""
    told = json.loads(done.stdout)
    assert told["wrong"] == 0
    assert told["grown"] < 8 * 1024, f"{told['grown']} KiB more"
