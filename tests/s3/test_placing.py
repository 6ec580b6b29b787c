"""From a tool's result to the bucket and back: a boundary places, any other one resolves (cases C5, E1, F1)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest

import coatcheck as cc
from coatcheck.testing.trial import ManualClock
from tests.s3._laws import LARGE, MIB, SCOPE, data_objects, others, store_at
from tests.s3._servers import Place, Server, raw_get, raw_head

pytestmark = pytest.mark.anyio

PlaceOn = Callable[[Server], Place]
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 20
ROWS = {"rows": [{"id": number, "name": "n\u00e9" * 5} for number in range(500)]}
TEXT = "t\u00e9xt " * 2_000


@pytest.fixture
def place(seaweed: Server, place_on: PlaceOn) -> Place:
    return place_on(seaweed)


def give_rows() -> dict[str, Any]:
    return ROWS


def give_text() -> str:
    return TEXT


def give_png() -> cc.Encoded:
    return cc.Encoded(PNG, "image/png")


async def give_stream() -> AsyncIterator[bytes]:
    for start in range(0, len(LARGE), MIB):
        yield LARGE[start : start + MIB]


TOOLS: list[cc.Tool[..., Any]] = [cc.tool(give_rows), cc.tool(give_text), cc.tool(give_png), cc.tool(give_stream)]


def boundary(place: Place, **dials: Any) -> cc.Boundary:
    return cc.Boundary(TOOLS, store=store_at(place), placement=cc.Placement(max_inline_chars=1_000), **dials)


@pytest.mark.parametrize(
    ("tool", "payload", "media_type", "content_type"),
    [
        ("give_rows", msgspec.json.encode(ROWS), "application/json", "application/json"),
        ("give_text", TEXT.encode(), "text/plain", "text/plain; charset=utf-8"),
        ("give_png", PNG, "image/png", "image/png"),
        ("give_stream", LARGE, "application/octet-stream", "application/octet-stream"),
    ],
)
async def test_c5_what_is_placed_says_its_type_on_the_object_and_in_the_meta_and_resolves_elsewhere(
    place: Place, tool: str, payload: bytes, media_type: str, content_type: str
) -> None:
    async with boundary(place) as here:
        outcome = await here.session(SCOPE).call(tool)
        assert isinstance(outcome, cc.Placed), outcome
        ref = outcome.ticket.ref

    async with boundary(place) as there:  # as another process would, with the store and the scope
        assert there.store is not None
        artifact = await there.store.get(SCOPE, ref)
        assert artifact is not None
        assert (artifact.meta.media_type, artifact.data) == (media_type, payload)
        assert await there.store.get(cc.Scope(conversation="another"), ref) is None

    [name] = others(place)
    head = raw_head(place, name)
    assert head is not None
    assert head["ContentType"] == content_type
    assert raw_get(place, (data_objects(place) or [name])[0]) == payload


async def test_c7_a_store_that_cannot_be_reached_costs_the_artifact_and_not_the_call(place: Place) -> None:
    from coatcheck.testing.proxy import FaultProxy

    events: list[object] = []
    async with FaultProxy(place.server.url) as proxy:
        store = store_at(place, ManualClock(), endpoint_url=proxy.url, timeout=2, attempts=1)
        async with cc.Boundary(
            TOOLS, store=store, placement=cc.Placement(max_inline_chars=1_000), on_event=events.append
        ) as there:
            await proxy.refuse()
            proxy.drop()
            outcome = await there.session(SCOPE).call("give_text")
    assert isinstance(outcome, cc.Inline)
    assert outcome.text == TEXT
    assert any("S3 could not" in repr(event) for event in events)
