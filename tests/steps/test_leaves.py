"""Binary inside a placed value: each ticket stands for its own parcel, whatever the tool does meanwhile."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import coatcheck as cc
from coatcheck.results.rendering import render
from coatcheck.steps.placement import MIN_LEAF_BYTES

pytestmark = pytest.mark.anyio

SCOPE = cc.Scope(conversation="c-1")
LIMIT = 1000


def picture(seed: int, size: int = 3000) -> bytes:
    return b"\x89PNG" + bytes([seed]) * size


def text_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


def block(data: bytes) -> dict[str, Any]:
    return {"type": "image", "mimeType": "image/png", "data": text_of(data)}


class Meddling(cc.MemoryStore):
    """A store that takes its time; the tool goes on with its value meanwhile."""

    def __init__(self) -> None:
        super().__init__(max_bytes=1 << 30)
        self.meddle: Callable[[], None] | None = None
        self.puts: list[bytes] = []

    async def put(self, scope: cc.Scope, data: bytes, **about: Any) -> cc.PutResult:
        result = await super().put(scope, data, **about)
        self.puts.append(data)
        if self.meddle is not None:
            self.meddle()
        return result


class Bench:
    def __init__(self, value: Any, placement: cc.Placement | None = None, **settings: Any) -> None:
        self.store = Meddling()
        self.events: list[Any] = []

        async def give() -> Any:
            return value

        boundary = cc.Boundary(
            [cc.tool(give)],
            store=self.store,
            placement=placement or cc.Placement(LIMIT),
            on_event=self.events.append,
            **settings,
        )
        self.session = boundary.session(SCOPE)

    async def __call__(self) -> Any:
        return await self.session.call("give")

    async def turn(self, count: int) -> list[Any]:
        return [*await self.session.call_batch([cc.ToolCall("give", {}) for _ in range(count)])]

    async def data(self, ref: str) -> bytes:
        artifact = await self.store.get(SCOPE, ref)
        assert artifact is not None
        return artifact.data

    async def rest(self, outcome: Any) -> Any:
        text = (await self.data(outcome.ticket.ref)).decode() if isinstance(outcome, cc.Placed) else outcome.text
        return json.loads(text)


def meddlers(value: dict[str, Any]) -> list[Callable[[], None]]:
    """What a tool may do to a value that it has returned."""

    def swap() -> None:
        value["images"].reverse()

    def grow() -> None:
        value["images"].insert(0, block(picture(99)))
        value["secret"] = "never judged"

    def shrink() -> None:
        value["images"].clear()

    def rewrite() -> None:
        for image in value["images"]:
            image["data"] = text_of(picture(77))
            image["note"] = "never judged"

    def loop() -> None:
        value["images"].append(value)

    def break_it() -> None:
        value["images"].append(object())

    return [swap, grow, shrink, rewrite, loop, break_it]


@pytest.mark.parametrize("meddler", range(6))
@pytest.mark.parametrize("padding", [0, 5000])
async def test_a_value_that_changes_while_it_is_stored_is_stored_as_it_was(meddler: int, padding: int) -> None:
    images = [picture(seed) for seed in range(4)]
    value: dict[str, Any] = {
        "images": [block(image) | {"name": f"{index}"} for index, image in enumerate(images)],
        "text": "t" * padding,
    }
    bench = Bench(value, cc.Placement(4000))
    bench.store.meddle = meddlers(value)[meddler]
    outcome = await bench()
    assert isinstance(outcome, cc.Placed if padding else cc.Inline)
    rest = await bench.rest(outcome)
    assert sorted(rest) == ["images", "text"]
    assert [image["name"] for image in rest["images"]] == ["0", "1", "2", "3"]
    for image, original in zip(rest["images"], images, strict=True):
        assert sorted(image) == ["data", "mimeType", "name", "type"]
        assert image["data"]["bytes"] == len(original)
        assert await bench.data(image["data"]["ref"]) == original
    assert not [event for event in bench.events if isinstance(event, cc.ArtifactRefused)]


@pytest.mark.parametrize("meddler", range(6))
async def test_a_value_that_changed_after_it_was_measured_is_stored_as_the_rules_saw_it(meddler: int) -> None:
    value: dict[str, Any] = {"images": [block(picture(seed)) for seed in range(3)], "n": 10**30}
    measured = render(value).data
    meddle = meddlers(value)[meddler]

    @cc.after_tool
    def judge(call: Any, result: Any) -> Any:
        assert result.text.encode() == measured
        meddle()
        return cc.allow()

    bench = Bench(value, rules=[judge])
    outcome = await bench()
    assert isinstance(outcome, cc.Placed)
    assert outcome.tickets == (outcome.ticket,)
    assert bench.store.puts == [measured]


@pytest.mark.parametrize(
    "value",
    [
        {"z": 1.50, "a": [1e300, 10**30, -0.0], "text": "é" * 2000, "mimeType": "image/png", "data": "done"},
        [{"type": "text", "text": "x" * 2000, "mimeType": "text/plain"}],
        {"icon": b"x" * (MIN_LEAF_BYTES - 1), "text": "x" * 2000},
        {"set": {b"b", b"a", b"+"}, "text": "x" * 2000},
        [{"type": "image", "mimeType": "image/png", "data": text_of(picture(1, 200))}, {"text": "x" * 2000}],
        [{"type": "image_url", "image_url": {"url": "data:image/png;base64," + text_of(picture(1, 200))}}] * 9,
    ],
    ids=range(6),
)
async def test_what_holds_no_large_binary_is_stored_as_the_bytes_that_were_measured(value: Any) -> None:
    bench = Bench(value)
    outcome = await bench()
    assert isinstance(outcome, cc.Placed)
    assert bench.store.puts == [render(value, attach=False).data]
    assert (outcome.ticket.bytes, outcome.ticket.media_type) == (len(bench.store.puts[0]), "application/json")


@pytest.mark.parametrize("padding", [0, 5000])
async def test_an_image_that_would_have_ridden_beside_the_text_is_stored_and_not_merely_described(padding: int) -> None:
    image = picture(1)
    value = [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64," + text_of(image)}},
        {"type": "text", "text": "t" * padding},
    ]
    bench = Bench(value)
    outcome = await bench()
    rest = await bench.rest(outcome)
    ticket = rest[0]["image_url"]["url"]
    assert (ticket["mediaType"], ticket["bytes"]) == ("image/png", len(image))
    assert await bench.data(ticket["ref"]) == image
    assert rest[1] == value[1]
    assert outcome.content == ()


async def test_binary_of_a_set_is_found_although_the_order_of_its_text_is_another() -> None:
    pieces = {picture(seed) for seed in (0, 63, 200, 255)}
    bench = Bench({"pieces": pieces}, cc.Placement(4000))
    outcome = await bench()
    assert isinstance(outcome, cc.Inline)
    assert {await bench.data(ticket["ref"]) for ticket in json.loads(outcome.text)["pieces"]} == pieces


async def test_equal_pieces_have_equal_tickets_each_in_its_own_place() -> None:
    image = block(picture(1))
    value = {"a": image, "b": image, "c": [image, block(picture(2))]}
    bench = Bench(value, cc.Placement(4000))
    outcome = await bench()
    rest = await bench.rest(outcome)
    assert rest["a"] == rest["b"] == rest["c"][0]
    assert await bench.data(rest["c"][1]["data"]["ref"]) == picture(2)
    assert len(outcome.tickets) - isinstance(outcome, cc.Placed) == 4
    assert image["data"] == text_of(picture(1))


async def test_parts_that_a_first_limit_stored_stay_parts_when_the_turn_wants_the_rest_stored() -> None:
    value = {"image": picture(1), "text": "t" * 900}
    bench = Bench(value, cc.Placement(2000, max_batch_chars=2500))
    outcomes = await bench.turn(3)
    placed = [outcome for outcome in outcomes if isinstance(outcome, cc.Placed)]
    assert placed
    for outcome in outcomes:
        rest = await bench.rest(outcome)
        assert rest["text"] == value["text"]
        assert await bench.data(rest["image"]["ref"]) == picture(1)
        assert rest["image"]["ref"] in {ticket.ref for ticket in outcome.tickets}
    for outcome in placed:
        meta = await bench.store.head(SCOPE, outcome.ticket.ref)
        assert meta is not None
        assert meta.parents == (outcome.tickets[1].ref,)
    assert sum(data == picture(1) for data in bench.store.puts) == len(outcomes)


# --- a whole result that is one data: URL ---


async def test_f2_a_result_that_is_one_data_url_is_stored_as_what_it_holds() -> None:
    image = picture(1)
    bench = Bench("data:image/png;base64," + text_of(image))
    outcome = await bench()
    assert isinstance(outcome, cc.Placed)
    assert (outcome.ticket.media_type, outcome.ticket.bytes) == ("image/png", len(image))
    assert f"{len(image)} bytes; more than the {LIMIT}" in outcome.ticket.reason
    assert outcome.tickets == (outcome.ticket,)
    assert bench.store.puts == [image]


@pytest.mark.parametrize(
    "text",
    [
        "data:text/plain;charset=utf-16le;base64," + text_of(picture(1)),
        "data:text/plain;base64," + text_of(picture(1)),
        "data:image/png;base64," + text_of(picture(1)) + " ",
        "data:image/png;base64," + text_of(picture(1, LIMIT - 100)),
        text_of(picture(1)),
    ],
    ids=["charset", "text", "not whole", "not over the limit", "bare"],
)
async def test_f2_any_other_text_is_stored_as_text(text: str) -> None:
    bench = Bench(text)
    outcome = await bench()
    assert isinstance(outcome, cc.Placed)
    assert outcome.ticket.media_type == "text/plain"
    assert bench.store.puts == [text.encode()]


async def test_f2_wire_bytes_that_are_a_data_url_stay_wire_bytes() -> None:
    raw = b"data:image/png;base64," + base64.b64encode(picture(1))
    bench = Bench(cc.Encoded(raw, "text/plain"))
    outcome = await bench()
    assert outcome.ticket.media_type == "text/plain"
    assert bench.store.puts == [raw]


async def test_f2_a_data_url_counts_in_the_budget_of_its_turn_like_any_result() -> None:
    image = picture(1)
    bench = Bench("data:image/png;base64," + text_of(image), cc.Placement(10_000, max_batch_chars=5000))
    outcomes = await bench.turn(2)
    placed = [outcome for outcome in outcomes if isinstance(outcome, cc.Placed)]
    assert len(placed) == 1
    assert placed[0].ticket.media_type == "image/png"
    assert sum(len(outcome.text) for outcome in outcomes) <= 5000


# --- what only looks like binary ---


@pytest.mark.parametrize(
    "value",
    [
        {"type": "job", "mimeType": "image/png", "data": "done"},
        {"mimeType": "image/png", "data": "0123456789abcdef" * 200},
        {"mimeType": "image/png", "data": text_of(picture(1) + b"x")[:-4] + "eB=="},
        {"url": "data:text/plain;charset=utf-16le;base64," + text_of(picture(1))},
    ],
    ids=["a word", "hexadecimal", "stray bits", "charset"],
)
async def test_no_word_is_lost_inline_or_stored(value: dict[str, str]) -> None:
    for pad in ("", "t" * 5000):
        padded = [{**value, "type": "job", "text": pad}]
        inline = await Bench(padded, cc.Placement(100_000))()
        assert json.loads(inline.text) == padded
        bench = Bench(padded)
        outcome = await bench()
        assert await bench.rest(outcome) == padded
        assert len(outcome.tickets) <= 1


async def test_a_media_type_under_its_wire_name_declares_binary_too() -> None:
    image = picture(1)
    bench = Bench({"mediaType": "image/png", "data": text_of(image)})
    outcome = await bench()
    [ticket] = outcome.tickets
    assert msgspec.to_builtins(ticket) == json.loads(outcome.text)["data"]
    assert await bench.data(ticket.ref) == image
