"""A server that is killed, frozen or full: what was acknowledged is there afterwards, as it was."""

from __future__ import annotations

import os
import random
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread

from coatcheck import S3Store, Scope, StoreUnavailable
from tests.s3._faults import (
    MIB,
    PART,
    PAYLOAD,
    Faulty,
    check_error,
    data_objects,
    every,
    faulty,
    left_in,
    pointers,
    scope_of,
    unavailable,
)
from tests.s3._programs import private_folder
from tests.s3._servers import Place, Server, fresh_place, keys, new_place, start_seaweed

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module", params=["asyncio", pytest.param("trio", marks=pytest.mark.slow)])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Both event loops; on trio in the slow lane, as only the transport differs."""
    backend: str = request.param
    return backend


@pytest.fixture(scope="module")
def own(nobodys_account: None) -> Iterator[Place]:
    """A bucket on a server which this suite may kill and freeze."""
    with start_seaweed() as server:
        yield new_place(server)


async def load(there: Faulty, acknowledged: dict[Scope, tuple[str, bytes]], seed: int, puts: int) -> None:
    """Put small and large payloads until the server is gone, and note what was acknowledged."""
    chosen = random.Random(seed)
    for number in range(puts):
        scope = scope_of(f"load-{seed}-{number}")
        data = chosen.randbytes(chosen.choice([10, 20_000, 300_000]))
        try:
            if number % 8 == 7:
                data += PAYLOAD[: PART + 1000]
                ref = await there.stream(scope, data)
            else:
                ref = await there.put(scope, data)
        except StoreUnavailable as error:
            check_error(error, "127.0.0.1")
        else:
            acknowledged[scope] = ref, data


async def test_a_server_that_is_killed_in_the_middle_of_a_load_has_everything_that_it_acknowledged(own: Place) -> None:
    await killed_under_load(fresh_place(own), kills=1, puts=16)


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_a_server_that_is_killed_again_and_again_has_everything_that_it_acknowledged(own: Place) -> None:
    await killed_under_load(fresh_place(own), kills=4, puts=120)


async def killed_under_load(place: Place, *, kills: int, puts: int) -> None:
    server = place.server
    acknowledged: dict[Scope, tuple[str, bytes]] = {}
    async with faulty(place, timeout=2.0, attempts=2) as there:
        there.proxy.requests.clear()
        async with anyio.create_task_group() as group:
            for seed in range(4):
                group.start_soon(load, there, acknowledged, seed, puts)
            for number in range(kills):
                await there.proxy.seen(count=(number + 1) * 40)
                await to_thread.run_sync(server.kill)
                await to_thread.run_sync(server.start)
    assert len(acknowledged) > 10
    loaded = [scope_of(f"load-{seed}-{number}") for seed in range(4) for number in range(puts)]
    # Another store looks, which has more patience: a server that was just started may take seconds to find an object.
    async with faulty(place) as there:

        async def look(number: int) -> None:
            scope = loaded[number - 1]
            if scope in acknowledged:
                ref, data = acknowledged[scope]
                assert await there.reads(scope, ref) == data
            else:  # it is whole, or it is not there
                for meta in (await there.store.list(scope)).artifacts:
                    assert await there.reads(scope, meta.ref) is not None

        await every(len(loaded), look, at_once=12)
        await there.is_clean_after_a_sweep()


async def test_j7_a_frozen_server_is_told_in_time_and_answers_again_when_it_is_thawed(own: Place) -> None:
    """Case J7: it accepts connections and takes some megabytes, and no word comes back."""
    place = fresh_place(own)
    async with faulty(place, timeout=2.0, attempts=1) as there:
        scope = scope_of("frozen")
        ref = await there.put(scope)
        await to_thread.run_sync(place.server.freeze)
        try:
            async with anyio.create_task_group() as group:
                for verb in (
                    lambda: there.store.head(scope, ref),
                    lambda: there.store.get(scope, ref),
                    lambda: there.put(scope, PAYLOAD[:MIB]),
                    lambda: there.store.list(scope),
                    lambda: there.store.delete(scope, ref),
                    lambda: there.store.sweep(),
                ):

                    async def fails(verb: Callable[[], Any] = verb) -> None:
                        with anyio.fail_after(10), unavailable("did not answer"):
                            await verb()

                    group.start_soon(fails)
        finally:
            await to_thread.run_sync(place.server.thaw)
        # What it had taken it may do now: nothing here can have come to harm by that.
        fresh = await there.put(scope_of("thawed"), b"after it")
        assert await there.reads(scope_of("thawed"), fresh) == b"after it"
        assert await there.reads(scope, ref) in (b"content", None)
        await there.is_clean_after_a_sweep()


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_j7_a_stream_to_a_server_that_freezes_ends_in_time_and_a_sweep_finds_what_it_left(own: Place) -> None:
    """Case J7: an upload that cannot be aborted while the server is frozen is told, too."""
    place = fresh_place(own)
    async with faulty(place, timeout=1.0, attempts=1) as there:
        async with anyio.create_task_group() as group:

            async def fails() -> None:
                with unavailable("did not answer"):
                    await there.stream(scope_of("frozen"))

            group.start_soon(fails)
            await there.proxy.seen("upload_part")
            await to_thread.run_sync(place.server.freeze)
            try:
                with anyio.fail_after(60):
                    while not there.left:  # noqa: ASYNC110 - a notice sets no event
                        await anyio.sleep(0.1)
            finally:
                await to_thread.run_sync(place.server.thaw)
        await there.is_clean_after_a_sweep()


@contextmanager
def small_disk(mebibytes: int) -> Iterator[Path]:
    """A file system of this size, in memory; the test is skipped where none can be mounted."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small disk")
    with private_folder("disk") as folder:
        command = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "coatcheck", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"a small disk cannot be mounted here: {done.stderr.strip()}")
        try:
            yield folder
        finally:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture
def full(nobodys_account: None) -> Iterator[Place]:
    """A bucket on a server whose disk is small."""
    with small_disk(140) as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(folder))
        with start_seaweed() as server:
            patch.undo()
            # Another bucket would want volumes of its own, for which there is no room: this one had the first puts.
            [bucket] = server.client.list_buckets()["Buckets"]
            yield Place(server, bucket["Name"])


async def test_a_full_disk_is_told_and_nothing_that_was_acknowledged_comes_to_harm(full: Place) -> None:
    place = fresh_place(full)
    acknowledged: dict[Scope, tuple[str, bytes]] = {}
    async with faulty(place, timeout=5.0, attempts=1) as there:
        refused = 0
        for number in range(40):
            scope = scope_of(f"{number}")
            data = random.Random(number).randbytes(4 * MIB)
            try:
                if number % 4 == 3:
                    data += PAYLOAD[: 2 * PART]
                    acknowledged[scope] = await there.stream(scope, data), data
                else:
                    acknowledged[scope] = await there.put(scope, data), data
            except StoreUnavailable as error:
                check_error(error, "127.0.0.1")
                refused += 1
                assert await there.store.list(scope) == await there.store.list(scope_of("nobody"))
            if refused == 4:
                break
        assert refused == 4
        assert acknowledged
        for scope, (ref, data) in acknowledged.items():
            assert await there.reads(scope, ref) == data
        await there.is_clean_after_a_sweep()
        for scope, (ref, _) in acknowledged.items():
            await there.store.delete(scope, ref)
        assert keys(place) == ["coatcheck.json", *(name for name in keys(place) if "/before/" in name)]


async def test_a_store_whose_process_died_in_a_stream_leaves_what_the_next_ones_sweep_removes(own: Place) -> None:
    """It leaves what is in the bucket while a stream is under way: an upload, and maybe a data object."""
    place = fresh_place(own)
    async with faulty(place) as there:
        server: Server = place.server
        begun = int(there.clock.now.timestamp())
        segments = "the-tenant/_/c"
        key = place.key(f"streams.d/{segments}/{begun}-{'0' * 32}")
        whole = place.key(f"streams.d/{segments}/{begun}-{'1' * 32}")

        def crash() -> None:
            server.client.create_multipart_upload(Bucket=place.bucket, Key=key)
            server.client.put_object(Bucket=place.bucket, Key=whole, Body=b"nobody names it")

        await to_thread.run_sync(crash)
        ref = await there.stream()
        async with S3Store(place.bucket, **place.options(part_size=PART, clock=there.clock)) as other:
            assert await other.sweep() == ()
            there.clock.advance(25 * 3600)
            assert {swept.reason for swept in await other.sweep(dry_run=True)} == {"orphan"}
            assert len(await other.sweep()) == 2
            assert await left_in(place) == ([], [])
            artifact = await other.get(scope_of("first"), ref)
        assert artifact is not None
        assert artifact.data == PAYLOAD
        assert list(pointers(place).values()) == data_objects(place)
