"""The store over TLS, where clients send bodies in another way: everything arrives, and a wrong certificate is told."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import pytest

from coatcheck import StoreUnavailable, open_store
from coatcheck.testing.trial import Source
from tests.s3._laws import LARGE, MIB, SCOPE, data_objects, opened, others, put, store_at, stream
from tests.s3._servers import Place, Server, raw_get, raw_head, uploads

pytestmark = pytest.mark.anyio

PlaceOn = Callable[[Server], Place]


@pytest.fixture
def place(tls: Server, place_on: PlaceOn) -> Place:
    return place_on(tls)


async def test_puts_streams_and_reads_go_over_tls_unchanged(place: Place) -> None:
    async with store_at(place) as store:
        small, at_hand = (await put(store)).meta, (await put(store, LARGE[::-1])).meta
        streamed = (await stream(store)).meta
        assert await opened(store, small.ref, scope=SCOPE) == b"payload"
        assert await opened(store, streamed.ref, MIB, 3 * MIB, scope=SCOPE) == LARGE[MIB : 3 * MIB]
        assert await opened(store, streamed.ref, scope=SCOPE) == LARGE
        artifact = await store.get(SCOPE, at_hand.ref)
        assert artifact is not None
        assert artifact.data == LARGE[::-1]
        assert {meta.ref for meta in (await store.list(SCOPE)).artifacts} == {small.ref, at_hand.ref, streamed.ref}
    [data] = data_objects(place)
    assert raw_get(place, data) == LARGE
    for name in (*others(place), data):
        head = raw_head(place, name)
        assert head is not None
        assert "aws-chunked" not in head.get("ContentEncoding", "")


async def test_a_stream_that_fails_over_tls_leaves_no_upload(place: Place) -> None:
    async def fails(asked: int) -> None:
        if asked == 2:
            raise LookupError("of the source")

    async with store_at(place) as store:
        with pytest.raises(LookupError):
            await store.put_stream(SCOPE, Source(LARGE, LARGE, before=fails), kind="k", media_type="a/b")
        assert uploads(place) == []


async def test_a_certificate_that_is_not_trusted_is_told_at_once_with_what_to_do(place: Place) -> None:
    with (
        anyio.fail_after(20),
        pytest.raises(StoreUnavailable, match=r"TLS with https://.* failed.*ca_bundle") as caught,
    ):
        async with store_at(place, ca_bundle=None, attempts=1):
            pass
    assert caught.value.__cause__ is None


async def test_a_server_without_tls_is_told_at_once(place: Place, seaweed: Server) -> None:
    with anyio.fail_after(20), pytest.raises(StoreUnavailable, match=r"https://127\.0\.0\.1"):
        async with store_at(place, endpoint_url=seaweed.url.replace("http:", "https:"), attempts=1):
            pass


async def test_a_url_names_the_file_of_certificates(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in place.server.env().items():
        if name not in ("AWS_CA_BUNDLE", "AWS_ENDPOINT_URL"):
            monkeypatch.setenv(name, value)
    store = open_store(place.url(ttl="1h"))
    async with store:
        ref = (await store.put(SCOPE, b"x", kind="k", media_type="a/b")).meta.ref
        assert await store.head(SCOPE, ref) is not None
