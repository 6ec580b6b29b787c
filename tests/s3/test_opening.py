"""A store is opened before it is used; what replicas must agree on is in its marker; one store serves many loops."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from coatcheck import ConfigurationError, S3Store, StoreUnavailable
from coatcheck.artifacts.s3.record import POINTER
from tests.s3._laws import LARGE, MIB, PART, SCOPE, opened, put, scope_of, store_at, stream
from tests.s3._servers import Place, Server, keys, raw_get, raw_put

pytestmark = pytest.mark.anyio

PlaceOn = Callable[[Server], Place]


@pytest.fixture(params=["asyncio", pytest.param("trio", marks=pytest.mark.slow)])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    backend: str = request.param
    return backend


@pytest.fixture
def place(seaweed: Server, place_on: PlaceOn) -> Place:
    return place_on(seaweed)


def verbs(store: S3Store) -> list[Callable[[], Awaitable[object]]]:
    async def reading() -> None:
        async with store.open(SCOPE, "art_" + "0" * 32):
            pass

    ref = "art_" + "0" * 32
    return [
        lambda: put(store),
        lambda: stream(store),
        lambda: store.get(SCOPE, ref),
        lambda: store.head(SCOPE, ref),
        reading,
        lambda: store.delete(SCOPE, ref),
        lambda: store.list(SCOPE),
        store.sweep,
        store.usage,
    ]


async def test_a_store_that_is_not_open_says_so(place: Place) -> None:
    store = store_at(place)
    for verb in verbs(store):
        with pytest.raises(StoreUnavailable, match="async with store"):
            await verb()
    async with store:
        await put(store)
    for verb in verbs(store):
        with pytest.raises(StoreUnavailable, match="async with store"):
            await verb()


async def test_a_store_is_open_until_the_outermost_block_ends_and_may_be_opened_again(place: Place) -> None:
    store = store_at(place)
    for _ in range(2):
        async with store:
            async with store:
                ref = (await put(store)).meta.ref
            assert await store.head(SCOPE, ref) is not None


async def test_tasks_that_open_a_store_at_once_share_one_client(place: Place) -> None:
    store, refs = store_at(place), set[str]()
    everybody = anyio.Event()

    async def use(number: int) -> None:
        async with store:
            refs.add((await put(store)).meta.ref)
            if len(refs) == 1 and number == 7:
                everybody.set()
            await everybody.wait()
            assert await store.head(SCOPE, next(iter(refs))) is not None

    async with anyio.create_task_group() as group:
        for number in range(8):
            group.start_soon(use, number)
    with pytest.raises(StoreUnavailable, match="not open"):
        await put(store)


async def test_a_store_that_could_not_be_opened_can_be_opened_later(place: Place) -> None:
    raw_put(place, "coatcheck.json", b"not ours")
    store = store_at(place)
    with pytest.raises(ConfigurationError, match=r"coatcheck\.json"):
        async with store:
            pass
    place.server.client.delete_object(Bucket=place.bucket, Key=place.key("coatcheck.json"))
    async with store:
        await put(store)


@pytest.mark.parametrize("content", [b"", b"{}", b"[" * 4000, b"\xff", b'{"coatcheck":"1","generation_seconds":null}'])
async def test_a_marker_that_is_none_of_ours_is_refused(place: Place, content: bytes) -> None:
    raw_put(place, "coatcheck.json", content)
    with pytest.raises(
        ConfigurationError, match=r"^the object coatcheck\.json under the store's prefix is none of ours"
    ):
        async with store_at(place):
            pass


async def test_a_marker_of_a_later_release_asks_for_an_upgrade(place: Place) -> None:
    raw_put(place, "coatcheck.json", b'{"coatcheck":2,"generation_seconds":null}')
    with pytest.raises(ConfigurationError, match="format 2, and this release knows 1: upgrade"):
        async with store_at(place):
            pass


async def test_a_store_that_is_only_read_writes_nothing(place: Place) -> None:
    async with store_at(place, ttl=60) as store:
        await store.get(SCOPE, "art_" + "0" * 32)
        await store.list(SCOPE)
        await store.sweep()
    assert keys(place) == []


async def test_a_store_is_opened_with_the_ttl_it_was_made_with_or_a_shorter_one(place: Place) -> None:
    async with store_at(place, ttl=100) as store:
        ref = (await put(store)).meta.ref
    assert msgspec.json.decode(raw_get(place, "coatcheck.json") or b"") == {"coatcheck": 1, "generation_seconds": 100}
    fit: list[dict[str, Any]] = [{"ttl": 100}, {"ttl": 1}, {"ttl": 50, "generation_seconds": 100}]
    for options in fit:
        async with store_at(place, **options) as store:
            assert await store.head(SCOPE, ref) is not None
    unfit: list[dict[str, Any]] = [
        {},
        {"ttl": 101},
        {"ttl": 50, "generation_seconds": 50},
        {"ttl": 100, "generation_seconds": 101},
    ]
    for options in unfit:
        with pytest.raises(ConfigurationError, match=r"^ttl: .*generations of 100 seconds.*ttl=100"):
            async with store_at(place, **options):
                pass


async def test_a_store_without_a_ttl_is_opened_without_one(place: Place) -> None:
    async with store_at(place) as store:
        await put(store)
    with pytest.raises(ConfigurationError, match=r"^ttl: this store was made without one"):
        async with store_at(place, ttl=100):
            pass


async def test_replicas_that_make_a_store_at_once_agree_or_are_told(place: Place) -> None:
    stores = [store_at(place, ttl=100) for _ in range(3)]
    refs = set[str]()

    async def use(store: S3Store) -> None:
        async with store:
            refs.add((await put(store)).meta.ref)

    async with anyio.create_task_group() as group:
        for store in stores:
            group.start_soon(use, store)
    assert len(refs) == 1

    other = Place(place.server, place.bucket, f"{place.prefix}/other")
    async with store_at(other, ttl=100) as first, store_at(other) as second, store_at(other, ttl=200) as third:
        await put(first)
        for store in (second, third):
            for _ in range(2):
                with pytest.raises(ConfigurationError, match=r"^ttl: "):
                    await put(store)
            with pytest.raises(ConfigurationError, match=r"^ttl: "):
                await stream(store)
    assert len(keys(other)) == 2


async def test_one_store_serves_several_event_loops_at_once(place: Place) -> None:
    store = store_at(place)
    failed: list[BaseException] = []

    async def use(number: int) -> None:
        async with store:
            scope = scope_of(f"loop-{number}")
            for turn in range(5):
                ref = (await put(store, b"%d" % turn, scope=scope)).meta.ref
                assert await opened(store, ref, scope=scope) == b"%d" % turn
                same = await put(store, b"the same in all", scope=scope_of("shared"))
                assert await opened(store, same.meta.ref, scope=scope_of("shared")) == b"the same in all"

    def run(number: int) -> None:
        try:
            anyio.run(use, number, backend="trio" if number % 2 else "asyncio")
        except BaseException as error:  # noqa: BLE001 - it is shown below
            failed.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    await use(4)
    for thread in threads:
        await anyio.to_thread.run_sync(thread.join)
    assert failed == []


async def test_a_store_may_have_the_whole_bucket(seaweed: Server) -> None:
    from tests.s3._servers import new_place

    place = new_place(seaweed)
    async with store_at(place, ttl=60) as store:
        ref = (await stream(store)).meta.ref
        assert await opened(store, ref, scope=SCOPE) == LARGE
    assert {name.split("/")[0] for name in keys(place)} == {"acme", "coatcheck.json", "streams.d"}


async def test_no_key_is_a_folder_of_another_and_stores_below_one_prefix_do_not_meet(place: Place) -> None:
    inner = Place(place.server, place.bucket, f"{place.prefix}/acme")
    async with store_at(place, ttl=60) as store, store_at(inner) as within:
        refs = [(await way(each)).meta.ref for each in (store, within) for way in (put, stream)]
        assert {use.scope for use in await store.usage()} == {("acme", "dana", "c-42")}
        assert sum(use.count for use in await store.usage()) == 2
        await store.sweep()
        for each, ref in zip((store, store, within, within), refs, strict=True):
            assert await store.get(SCOPE, ref) is None or each is store or ref in refs[:2]
            assert await each.get(SCOPE, ref) is not None
    names = keys(place)
    assert not [1 for one in names for other in names if other.startswith(one + "/")]
    assert raw_get(place, "acme/coatcheck.json") is not None
    assert POINTER in [raw_get(inner, name) for name in keys(inner)]


MEMORY = """
import sys, anyio
from coatcheck import S3Store, Scope

SIZE, PART, CONCURRENCY = int(sys.argv[4]), int(sys.argv[5]), int(sys.argv[6])

def peak():
    return int(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))) << 10

async def chunks(size):
    chunk = bytes(1 << 18)
    for start in range(0, size, len(chunk)):
        yield memoryview(chunk)[: min(len(chunk), size - start)]

async def main():
    bucket, prefix, url = sys.argv[1:4]
    store = S3Store(bucket, prefix=prefix, endpoint_url=url, part_size=PART, concurrency=CONCURRENCY)
    scope = Scope(conversation="c")
    async with store:
        await store.put_stream(scope, chunks(PART + 1), kind="k", media_type="a/b")  # and all is loaded
        before = peak()
        result = await store.put_stream(scope, chunks(SIZE), kind="k", media_type="a/b")
        written = peak()
        size = 0
        async with store.open(scope, result.meta.ref) as reader:
            async for chunk in reader:
                size += len(chunk)
        assert size == SIZE == result.meta.bytes
        print(before, written, peak())

anyio.run(main, backend=sys.argv[7])
"""


@pytest.mark.slow
def test_the_memory_of_a_stream_is_bounded_whatever_its_length(place: Place, anyio_backend: str) -> None:
    size, concurrency = 256 * MIB, 3
    words: list[Any] = [place.bucket, place.prefix, place.server.url, size, PART, concurrency, anyio_backend]
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(MEMORY), *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        timeout=55,
        env={**place.server.env(), "PATH": ""},
    )
    assert ran.returncode == 0, ran.stderr
    before, written, read = map(int, ran.stdout.split())
    bound = PART * (concurrency + 1)
    assert written - before <= bound + 8 * MIB
    assert read - written <= 16 * MIB


async def test_the_time_may_be_said_as_a_timedelta(place: Place) -> None:
    async with store_at(place, timeout=timedelta(seconds=20), min_age=timedelta(0)) as store:
        assert (await put(store)).created


def test_credentials_that_are_refreshed_serve_one_event_loop_after_the_other(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What refreshes them has a lock, which belongs to the loop on which it was first waited for."""
    giver = tmp_path / "giver.py"
    giver.write_text(
        "import datetime, json, time\n"
        "time.sleep(0.1)\n"  # so that all puts wait for it
        "soon = datetime.datetime.now(datetime.UTC) + datetime.timedelta(minutes=5)\n"  # so soon that each asks again
        f"print(json.dumps(dict(Version=1, AccessKeyId={place.server.access_key!r}, "
        f"SecretAccessKey={place.server.secret_key!r}, Expiration=soon.isoformat())))\n"
    )
    config = tmp_path / "config"
    config.write_text(f"[default]\ncredential_process = {sys.executable} {giver}\n")
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    options = place.options()
    for name in ("access_key_id", "secret_access_key"):
        options.pop(name, None)
    store = S3Store(place.bucket, **options)

    async def put_some() -> None:
        async with store, anyio.create_task_group() as group:
            for number in range(4):
                put = partial(store.put, SCOPE, b"%d" % number, kind="test/item", media_type="text/plain")
                group.start_soon(put)

    for backend in ("asyncio", "asyncio", "trio", "trio"):
        anyio.run(put_some, backend=backend)
