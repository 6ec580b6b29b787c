"""What a server may say, and leave out: an answer that does not hold what it must is an error of the store's."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from anyio import wait_all_tasks_blocked

from coatcheck.artifacts.s3.body import Body
from coatcheck.artifacts.s3.reader import Digest
from coatcheck.artifacts.s3.requests import Requests
from coatcheck.errors import StoreUnavailable
from tests.artifacts.s3.test_settings import checked

pytestmark = pytest.mark.anyio


class Silent:
    """A client whose every answer says nothing."""

    meta = SimpleNamespace(endpoint_url="http://127.0.0.1:1", region_name="us-east-1")

    def __getattr__(self, operation: str) -> Callable[..., Awaitable[dict[str, Any]]]:
        async def answer(**words: object) -> dict[str, Any]:
            return {"ResponseMetadata": {}, "Body": SimpleNamespace(raw_stream=None)}

        return answer


async def fetched(requests: Requests) -> None:
    async with requests.fetch("key"):
        pass


@pytest.mark.parametrize(
    ("ask", "field"),
    [
        (lambda requests: requests.head("key"), "ContentLength"),
        (lambda requests: requests.begin("key", text=None, content_type="text/plain", checksums=True), "UploadId"),
        (lambda requests: requests.put_part("key", "id", 1, Body([b"a"], None), None), "ETag"),
    ],
    ids=["head", "begin", "part"],
)
async def test_an_answer_without_what_it_must_hold_is_told(
    ask: Callable[[Requests], Awaitable[Any]], field: str
) -> None:
    requests = Requests(Silent(), checked())
    with pytest.raises(StoreUnavailable, match=f"S3 could not .*answered without {field}"):
        await ask(requests)


async def test_a_digest_is_the_same_however_often_it_is_asked_for() -> None:
    for size in (10, 1 << 18, (1 << 18) + 1, 3 << 20):
        digest = Digest()
        digest.add(b"a" * size)
        first = await digest.finish()
        assert await digest.finish() == first


class Slow(Silent):
    """A client whose puts take longer than a small request may."""

    def __getattr__(self, operation: str) -> Callable[..., Awaitable[dict[str, Any]]]:
        async def answer(**words: object) -> dict[str, Any]:
            if operation == "put_object":
                await anyio.sleep(1.2)
            return {"ResponseMetadata": {}, "ContentLength": 1}

        return answer


async def test_a_small_request_waits_for_a_connection_as_long_as_a_large_one_may_have_it() -> None:
    requests = Requests(Slow(), checked(connections=1, timeout=0.5))
    put = partial(requests.put, "key", Body([bytes(1 << 20)], None), text=None, content_type="text/plain")
    async with anyio.create_task_group() as group:
        group.start_soon(put)
        await wait_all_tasks_blocked()
        found = await requests.head("key")
    assert found is not None
