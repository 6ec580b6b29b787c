"""A server that refuses the credentials, the region or the bucket: told with what to do, and never "no data"."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import pytest
from anyio import to_thread

from coatcheck import S3Store
from coatcheck.testing.proxy import answer
from tests.s3._faults import SCOPE, WORDS, Faulty, faulty, unavailable
from tests.s3._servers import Place, Server, keys, new_place, raw_delete

pytestmark = pytest.mark.anyio

PlaceOn = Callable[[Server], Place]
SECRET = "the-wrong-secret-of-somebody"
MISSING = "art_" + "0" * 32


@pytest.fixture(scope="module", params=["asyncio", pytest.param("trio", marks=pytest.mark.slow)])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Both event loops; on trio in the slow lane, as only the transport differs."""
    backend: str = request.param
    return backend


@pytest.fixture
def place(seaweed: Server, place_on: PlaceOn) -> Place:
    return place_on(seaweed)


@pytest.mark.parametrize(
    ("credentials", "names"),
    [
        ({"secret_access_key": SECRET}, ["SignatureDoesNotMatch", "correct secret_access_key"]),
        ({"access_key_id": "SOMEBODYELSE"}, ["InvalidAccessKeyId", "does not know the access key"]),
    ],
)
async def test_j7_wrong_credentials_are_told_when_the_store_is_opened(
    place: Place, credentials: dict[str, str], names: list[str]
) -> None:
    """Case J7."""
    store = S3Store(place.bucket, **place.options(**credentials))
    with anyio.fail_after(20), unavailable(place.bucket, *names) as raised:
        async with store:
            pass
    text = f"{raised.value!r} {raised.value}"
    assert not any(secret in text for secret in credentials.values())


def verbs(there: Faulty) -> dict[str, Callable[[], Any]]:
    """Every verb of the store, about an artifact that is not there."""

    async def open_() -> None:
        async with there.store.open(SCOPE, MISSING) as reader:
            assert reader is None

    return {
        "head": lambda: there.store.head(SCOPE, MISSING),
        "get": lambda: there.store.get(SCOPE, MISSING),
        "open": open_,
        "put": lambda: there.store.put(SCOPE, b"content", **WORDS),
        "stream": lambda: there.stream(),
        "list": lambda: there.store.list(SCOPE),
        "delete": lambda: there.store.delete(SCOPE, MISSING),
        "sweep": lambda: there.store.sweep(),
        "usage": lambda: there.store.usage(),
    }


@pytest.mark.parametrize(
    ("status", "code", "names"),
    [
        (400, "ExpiredToken", ["the credentials have expired", "renew them"]),
        (403, "ExpiredToken", ["the credentials have expired", "renew them"]),
        (403, "RequestTimeTooSkewed", ["clock"]),
        (403, "AccessDenied", ["do not permit it"]),
        (400, "AuthorizationHeaderMalformed", ["region us-east-1", "correct region"]),
    ],
)
async def test_j7_what_is_refused_while_the_store_is_open_is_told_by_every_verb(
    place: Place, status: int, code: str, names: list[str]
) -> None:
    """Case J7. An answer to HEAD has no body, so the code is not known there, and the status has to say it."""
    async with faulty(place, answer(status, code)) as there:
        for name, verb in verbs(there).items():
            with (
                anyio.fail_after(20),
                unavailable(place.bucket, *([] if name in ("head", "delete", "open") else names)),
            ):
                await verb()
        there.proxy.heal()
        assert (await there.store.list(SCOPE)).artifacts == ()
        await there.is_clean()


async def test_j7_a_redirection_is_told_and_not_asked_about_again_and_again(place: Place) -> None:
    """Case J7. One to an upload ends in the transport, which says only that the connection broke."""
    async with faulty(place, answer(301, "PermanentRedirect")) as there:
        for verb in ("head", "get", "list"):
            with anyio.fail_after(20), unavailable(place.bucket, "correct region, or endpoint_url"):
                await verbs(there)[verb]()
        with anyio.fail_after(20), unavailable(there.proxy.url):
            await there.put()
        assert there.proxy.count() <= 5


async def test_j6_a_bucket_that_does_not_exist_is_told_when_the_store_is_opened(seaweed: Server) -> None:
    """Case J6."""
    place = Place(seaweed, "no-such-bucket-of-ours")
    with anyio.fail_after(20), unavailable("there is no bucket 'no-such-bucket-of-ours'"):
        async with S3Store(place.bucket, **place.options()):
            pass


async def test_j6_a_bucket_that_vanishes_is_never_no_data(seaweed: Server) -> None:
    """Case J6: for every verb. For two seconds after the last good answer a bare 404 may be taken for a missing key."""
    place = await to_thread.run_sync(new_place, seaweed)
    async with faulty(place) as there:
        ref = await there.put()
        assert await there.reads(SCOPE, ref) == b"content"
        await to_thread.run_sync(_remove, place)
        await anyio.sleep(2.1)
        for verb in verbs(there).values():
            with anyio.fail_after(20), unavailable(f"there is no bucket {place.bucket!r}"):
                await verb()


async def test_j6_a_missing_artifact_is_no_data_and_no_error(place: Place) -> None:
    """Case J6, the other side."""
    async with faulty(place) as there:
        await anyio.sleep(2.1)
        assert await there.store.head(SCOPE, MISSING) is None
        assert await there.reads(SCOPE, MISSING) is None
        assert (await there.store.list(SCOPE)).artifacts == ()
        await there.store.delete(SCOPE, MISSING)


def _remove(place: Place) -> None:
    for name in keys(place):
        raw_delete(place, name)
    place.server.client.delete_bucket(Bucket=place.bucket)
