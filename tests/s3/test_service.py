"""The HTTP door of a store on S3."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import httpx2
import pytest

from coatcheck import S3Store, Scope
from coatcheck.service import Tokens, artifact_app
from coatcheck.testing.proxy import answer
from tests.s3._faults import faulty
from tests.s3._servers import Place, Server

pytestmark = pytest.mark.anyio

ANN = Scope(principal="ann", conversation="one")
TOKEN = "ann-0123456789abcdef"
HEADERS = {"Authorization": f"Bearer {TOKEN}"}


def client(store: S3Store) -> httpx2.AsyncClient:
    app = artifact_app(store, authenticate=Tokens({TOKEN: ANN}))
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://127.0.0.1", headers=HEADERS)


async def test_what_lies_on_s3_is_served_whole_and_in_part(
    seaweed: Server, place_on: Callable[[Server], Place]
) -> None:
    place = place_on(seaweed)
    data = bytes(range(256)) * 8000
    async with S3Store(place.bucket, **place.options()) as store, client(store) as asks:
        meta = (await store.put(ANN, data, kind="test/data", media_type="image/png")).meta
        foreign = Scope(principal="bob", conversation="one")
        theirs = (await store.put(foreign, b"theirs", kind="test/data", media_type="text/plain")).meta
        path = f"/artifacts/{meta.ref}"
        whole = await asks.get(path)
        assert (whole.status_code, whole.content, whole.headers["content-type"]) == (200, data, "image/png")
        for header, part in [("10-20", data[10:21]), ("-7", data[-7:]), ("300000-", data[300_000:])]:
            response = await asks.get(path, headers={"Range": f"bytes={header}"})
            assert (response.status_code, response.content) == (206, part)
        assert (await asks.get(path, headers={"Range": f"bytes={len(data)}-"})).status_code == 416
        assert (await asks.get(path, headers={"If-None-Match": whole.headers["etag"]})).status_code == 304
        assert [row["ref"] for row in (await asks.get("/artifacts")).json()["artifacts"]] == [meta.ref]
        missing = [await asks.get(f"/artifacts/{ref}") for ref in (theirs.ref, "art_" + "1" * 32, "x")]
        assert {(answer.status_code, answer.content, str(answer.headers)) for answer in missing} == {
            (404, missing[0].content, str(missing[0].headers))
        }
        good: list[bool] = []

        async def read() -> None:
            good.append((await asks.get(path)).content == data)

        async with anyio.create_task_group() as group:
            for _ in range(20):
                group.start_soon(read)
        assert good == [True] * 20


async def test_a_server_that_is_down_is_a_503_that_tells_no_secret(
    seaweed: Server, place_on: Callable[[Server], Place]
) -> None:
    place = place_on(seaweed)
    async with faulty(place, attempts=1) as there:
        ref = await there.put(ANN)
        async with client(there.store) as asks:
            assert (await asks.get(f"/artifacts/{ref}")).content == b"content"
            there.proxy.add(answer(503))
            for path in ("/artifacts", f"/artifacts/{ref}", f"/artifacts/{ref}/meta"):
                response = await asks.get(path)
                assert response.status_code == 503
                assert response.json() == {"error": "the store cannot answer now: try again"}
            there.proxy.heal()
            assert (await asks.get(f"/artifacts/{ref}")).status_code == 200
