"""Binary inside a value: which forms are known, what stays as it is, and what rides beside a small text."""

from __future__ import annotations

import base64
import collections
import copy
import dataclasses
import datetime
import decimal
import uuid
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coatcheck.results.binary import MAX_ATTACHED_BYTES, Blob, is_textual, may_hold_binary, replace_blobs
from coatcheck.results.conversion import canonical
from coatcheck.results.rendering import JSON, render
from coatcheck.testing.strategies import json_values, payloads

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
BASE64 = base64.b64encode(PNG).decode()
PADDED = base64.b64encode(PNG + b"x").decode()
STRAY = PADDED.replace("eA==", "eB==")  # its last bits stand for nothing


def mcp_image(data: str = BASE64, mime: str = "image/png") -> dict[str, Any]:
    return {"type": "image", "data": data, "mimeType": mime}


def anthropic_image() -> dict[str, Any]:
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": BASE64}}


def mcp_resource() -> dict[str, Any]:
    return {"type": "resource", "resource": {"uri": "file:///x.png", "mimeType": "image/png", "blob": BASE64}}


def openai_image() -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{BASE64}", "detail": "low"}}


def gemini_image() -> dict[str, Any]:
    return {
        "inlineData": {"mimeType": "image/png", "data": BASE64},
        "inline_data": {"mime_type": "image/png", "data": PNG},
    }


BLOCKS = [
    (mcp_image, ["$.data"]),
    (anthropic_image, ["$.source.data"]),
    (mcp_resource, ["$.resource.blob"]),
    (openai_image, ["$.image_url.url"]),
    (gemini_image, ["$.inlineData.data", "$.inline_data.data"]),
]


def blobs_of(value: Any) -> list[Blob]:
    found: list[Blob] = []

    def collect(blob: Blob) -> bytes | str:
        found.append(blob)
        return blob.original

    assert replace_blobs(value, collect) == value
    return found


# --- the forms ---


@pytest.mark.parametrize(("block", "paths"), BLOCKS)
def test_every_known_content_block_is_found_with_its_type_and_its_bytes(block: Any, paths: list[str]) -> None:
    found = blobs_of(block())
    assert [blob.path for blob in found] == paths
    assert {(blob.media_type, blob.data) for blob in found} == {("image/png", PNG)}
    inner = blobs_of({"deep": [1, (block(),)]})
    assert [blob.path for blob in inner] == ["$.deep[1][0]" + path[1:] for path in paths]


@given(st.lists(payloads(), max_size=4), json_values(max_leaves=5))
def test_bytes_are_binary_wherever_they_stand_and_in_order(pieces: list[bytes], around: Any) -> None:
    value = {"a": [[piece, around] for piece in pieces]}
    found = [blob for blob in blobs_of(value) if blob.path.startswith("$.a") and blob.path.endswith("][0]")]
    assert [blob.data for blob in found] == pieces
    assert [blob.path for blob in found] == [f"$.a[{index}][0]" for index in range(len(pieces))]
    assert {blob.media_type for blob in found} <= {"application/octet-stream"}


@pytest.mark.parametrize(
    ("url", "media_type"),
    [
        (f"data:image/png;base64,{BASE64}", "image/png"),
        (f"data:IMAGE/PNG;base64,{BASE64}", "image/png"),
        (f"data:image/svg+xml;base64,{BASE64}", "image/svg+xml"),
        (f"data:application/pdf;base64,{BASE64}", "application/pdf"),
    ],
)
def test_f2_a_whole_data_url_is_its_decoded_bytes(url: str, media_type: str) -> None:
    [blob] = blobs_of({"url": url})
    assert (blob.media_type, blob.data, blob.path, blob.original) == (media_type, PNG, "$.url", url)


@pytest.mark.parametrize("mime_key", ["mimeType", "mime_type", "media_type", "mediaType"])
@pytest.mark.parametrize("mime", ["image/png", "IMAGE/PNG", " image/png ; q=1", "image/png;charset=binary"])
def test_the_declared_type_is_read_without_case_and_parameters(mime_key: str, mime: str) -> None:
    [blob] = blobs_of({mime_key: mime, "data": BASE64})
    assert (blob.media_type, blob.data) == ("image/png", PNG)
    assert may_hold_binary({}, msgspec.json.encode({mime_key: mime, "data": BASE64}))


@given(
    st.text("0123456789abcdefABCDEF+/=gz", max_size=70)
    | st.sampled_from([BASE64, BASE64[:64], BASE64[:-4], STRAY, PNG.hex(), BASE64[:80].replace("A", "B")])
    | st.binary(max_size=100).map(lambda data: base64.b64encode(data).decode())
)
def test_text_is_binary_only_where_its_bytes_give_it_back_letter_by_letter(text: str) -> None:
    for prefix, value in (
        ("", {"mimeType": "image/png", "data": text}),
        ("data:image/png;base64,", {"url": f"data:image/png;base64,{text}"}),
    ):
        for blob in blobs_of(value):
            assert prefix + base64.b64encode(blob.data).decode() == blob.original == prefix + text
            assert len(text) >= 64


def test_where_binary_is_found_is_spelled_as_in_a_refusal_and_stays_short() -> None:
    [blob] = blobs_of({"a b": [{"é": b"x"}]})
    assert blob.path == "$['a b'][0].é"
    value: Any = b"x"
    for _ in range(100):
        value = {"k" * 1000: value}
    [blob] = blobs_of({"first": value})
    assert len(blob.path) == 300
    assert blob.path.startswith("$.first")


# --- what only looks like it ---

LOCATIONS = [
    {"type": "document", "source": {"location": "s3://b/k"}},
    {"type": "image", "source": {"type": "url", "url": "https://example.org/x.png", "media_type": "image/png"}},
    {"type": "resource_link", "uri": "file:///x.png", "mimeType": "image/png", "name": "x"},
    {"type": "image", "source": {"type": "file", "file_id": "file_123", "media_type": "image/png"}},
    {"fileData": {"mimeType": "image/png", "fileUri": "gs://b/k"}},
    {"type": "image_url", "image_url": {"url": "https://example.org/x.png"}},
]
LOOKALIKES = [
    {"mimeType": "text/plain", "data": BASE64},
    {"mimeType": "text/html", "blob": BASE64},
    {"media_type": "application/json", "data": BASE64},
    {"media_type": "application/ld+json", "data": BASE64},
    {"media_type": "application/jsonl", "data": BASE64},
    {"media_type": "application/xml", "data": BASE64},
    {"data": BASE64},
    {"type": "image", "data": BASE64},
    {"mimeType": "image/png"},
    {"mimeType": "image/png", "text": BASE64},
    {"mimeType": "image/png", "data": ""},
    {"mimeType": "image/png", "data": BASE64[:-1]},
    {"mimeType": "image/png", "data": BASE64[:8] + "\n" + BASE64[8:]},
    {"mimeType": "image/png", "data": "not base64!"},
    {"mimeType": "image/png", "data": "s3://bucket/key"},
    {"mimeType": "image/png", "data": "-_-_"},
    {"mimeType": "image/png", "data": "é"},
    {"mimeType": "image/png", "data": None},
    {"mimeType": "image/png", "data": 12},
    {"mimeType": "image/png", "data": {"x": 1}},
    {"mimeType": "no type", "data": BASE64},
    {"mimeType": "a/" + "b" * 200, "data": BASE64},
    {"mimeType": None, "data": BASE64},
    {"url": f"data:image/png;base64,{BASE64} "},
    {"url": f"see data:image/png;base64,{BASE64}"},
    {"url": f"data:image/png,{BASE64}"},
    {"url": f"data:;base64,{BASE64}"},
    {"url": "data:image/png;base64,!!"},
    {"url": "data:image/png;base64,abc"},
    {"url": "data:text/html,<p>hello</p>"},
    {"url": f"data:image/svg+xml;charset=utf-8;base64,{BASE64}"},
    {"url": f"data:text/plain;charset=utf-16le;base64,{BASE64}"},
    {"url": f"data:text/plain;base64,{BASE64}"},
    {"url": f"data:application/json;base64,{BASE64}"},
    {"url": f"data:application/pdf;name=a.pdf;base64,{BASE64}"},
    {"url": f"data:image/png;base64,{base64.b64encode(PNG[:45]).decode()}"},
    {"url": f"data:image/png;base64,{STRAY}"},
    {"type": "job", "mimeType": "image/png", "data": "done"},
    {"mimeType": "image/png", "data": "completed/successfully/0123"},
    {"mimeType": "image/png", "data": base64.b64encode(PNG[:45]).decode()},
    {"mimeType": "image/png", "data": STRAY},
    {"mimeType": "image/png", "data": PADDED.rstrip("=")},
    {"mimeType": "image/png", "data": PNG.hex()},
    {"mimeType": "image/png", "data": PNG.hex().upper()},
    {"mimeType": "application/octet-stream", "blob": "0123456789abcdef" * 4},
    {"url": "data:"},
]


@pytest.mark.parametrize("value", LOCATIONS + LOOKALIKES, ids=lambda value: repr(value)[:60])
def test_c2_what_leaves_a_doubt_stays_in_place(value: dict[str, Any]) -> None:
    before = copy.deepcopy(value)
    assert blobs_of([value]) == []
    assert replace_blobs(value, lambda blob: pytest.fail(f"replaced {blob.path}")) is value
    assert value == before


def test_text_that_happens_to_be_base64_stays_text() -> None:
    for text in (BASE64, "abcd", "deadbeef", "data"):
        assert blobs_of({"data": text, "blob": text, "text": [text]}) == []
        assert blobs_of(text) == []


# --- replacing ---


@given(json_values())
def test_what_holds_no_binary_comes_back_by_reference(value: Any) -> None:
    if not blobs_of(value):
        assert replace_blobs(value, lambda blob: None) is value


def test_what_is_replaced_is_replaced_once_each_in_order_and_the_value_is_not_changed() -> None:
    value = {"first": b"a", "rest": [mcp_image(), "text", (b"b", {"x": openai_image()})], "same": {"k": [1]}}
    before = copy.deepcopy(value)
    counter = iter(range(10))
    replaced = replace_blobs(value, lambda blob: next(counter))
    assert replaced["first"] == 0
    assert replaced["rest"][0] == {"type": "image", "data": 1, "mimeType": "image/png"}
    assert replaced["rest"][2][0] == 2
    assert replaced["rest"][2][1]["x"]["image_url"] == {"url": 3, "detail": "low"}
    assert replaced["same"] is value["same"]
    assert list(replaced) == ["first", "rest", "same"]
    assert value == before


@given(st.binary(min_size=47, max_size=100).map(lambda data: b"\xff" + data))
def test_the_bytes_are_those_that_were_encoded(data: bytes) -> None:
    text = base64.b64encode(data).decode()
    for value in ({"mimeType": "image/png", "data": text}, {"u": f"data:image/png;base64,{text}"}, [data]):
        [blob] = blobs_of(value)
        assert blob.data == data


# --- the cheap look ---


@dataclasses.dataclass
class Holder:
    inside: Any


class Slots(msgspec.Struct, gc=False):
    inside: Any


LIVING: list[Holder] = []


def living(item: Any) -> Holder:
    """An object that lives on: from Python 3.13 on the collector does not see what is in the dict of one."""
    LIVING.append(Holder(item))
    return LIVING[-1]


@pytest.mark.parametrize(
    "hold",
    [
        lambda item: [item],
        lambda item: {"k": [1, {"deep": (item,)}]},
        lambda item: [None] * 10_000 + [item],
        lambda item: [{"row": index} for index in range(5000)] + [{"row": item}],
        lambda item: collections.OrderedDict(a=item),
        lambda item: [collections.defaultdict(list, a=[item])],
        lambda item: collections.deque([item]),
        lambda item: [vars(living(item)), {1: "a"}],
        Holder,
        Slots,
        lambda item: [Holder([item])],
    ],
)
@pytest.mark.parametrize("block", [lambda: PNG, lambda: bytearray(PNG), mcp_image, anthropic_image, openai_image])
def test_nothing_that_holds_binary_escapes_the_cheap_look(hold: Any, block: Any) -> None:
    value = hold(block())
    encoded = msgspec.json.encode(canonical(value))
    assert may_hold_binary(value, encoded)
    assert [blob.data for blob in blobs_of(canonical(value, keep_bytes=True))] == [PNG]


@given(json_values())
def test_the_cheap_look_never_denies_what_the_walk_finds(value: Any) -> None:
    if blobs_of(value):
        assert may_hold_binary(value, msgspec.json.encode(value))


def test_the_cheap_look_spares_a_large_value_without_binary_the_walk() -> None:
    at = datetime.datetime(2031, 1, 2)
    row = {
        "id": 1,
        "text": "x",
        "none": None,
        "list": [1.5, (True,)],
        "at": at,
        "d": decimal.Decimal(1),
        "u": uuid.UUID(int=1),
    }
    value = [row] * 3000
    assert not may_hold_binary(value, msgspec.json.encode(value))
    assert not may_hold_binary("text", b'"text"')


@pytest.mark.parametrize(
    ("media_type", "textual"),
    [
        ("text/plain", True),
        ("text/csv", True),
        ("application/json", True),
        ("application/problem+json", True),
        ("application/jsonl", True),
        ("application/x-ndjson", True),
        ("application/xml", True),
        ("application/atom+xml", True),
        ("application/yaml", True),
        ("application/octet-stream", False),
        ("application/pdf", False),
        ("application/jsonx", False),
        ("image/png", False),
        ("image/svg+xml", False),
        ("audio/mpeg", False),
    ],
)
def test_which_types_a_model_can_read(media_type: str, textual: bool) -> None:
    assert is_textual(media_type) is textual


# --- small binary rides beside the text ---


@pytest.mark.parametrize("block", [mcp_image, anthropic_image, mcp_resource, openai_image])
def test_a_small_image_of_a_content_block_travels_beside_the_text_which_describes_it(block: Any) -> None:
    rendered = render([{"type": "text", "text": "a chart"}, block()])
    [blob] = rendered.blobs
    assert (blob.media_type, blob.data) == ("image/png", PNG)
    assert f"[image/png, {len(PNG)} bytes, attached]" in rendered.text
    assert "a chart" in rendered.text
    assert BASE64[:20] not in rendered.text
    assert rendered.size == len(rendered.text) + len(PNG)
    assert rendered.media_type == JSON


def test_one_block_alone_is_treated_as_a_list_of_it() -> None:
    assert [blob.data for blob in render(mcp_image()).blobs] == [PNG]
    assert (
        render(mcp_image()).text
        == f'{{"type":"image","data":"[image/png, {len(PNG)} bytes, attached]","mimeType":"image/png"}}'
    )


def test_what_is_rendered_for_storing_keeps_its_images() -> None:
    value = [{"type": "text", "text": "a"}, mcp_image()]
    rendered = render(value, attach=False)
    assert rendered.blobs == ()
    assert msgspec.json.decode(rendered.data) == value


@pytest.mark.parametrize("over", [0, 1])
def test_beside_the_text_there_is_room_for_64_kib_and_no_byte_more(over: int) -> None:
    half = MAX_ATTACHED_BYTES // 2
    images = [mcp_image(base64.b64encode(b"\xff" * size).decode()) for size in (half, half + over)]
    rendered = render(images)
    assert [len(blob.data) for blob in rendered.blobs] == ([] if over else [half, half])
    if over:
        assert msgspec.json.decode(rendered.data) == images
    else:
        assert rendered.size == len(rendered.text) + 2 * half


@pytest.mark.parametrize("value", [*LOCATIONS, *LOOKALIKES[:6]], ids=lambda value: repr(value)[:60])
def test_blocks_without_bytes_of_their_own_read_as_they_are(value: dict[str, Any]) -> None:
    block = {"type": "x", **value}
    rendered = render([block, {"type": "text", "text": "t"}])
    assert rendered.blobs == ()
    assert msgspec.json.decode(rendered.text) == [block, {"type": "text", "text": "t"}]


def test_what_is_stored_of_a_value_with_images_beside_it_is_what_was_measured() -> None:
    value = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{BASE64}"}}, {"type": "x", "é": "é"}]
    rendered = render(value)
    assert len(rendered.blobs) == 1
    stored = rendered.stored()
    whole = render(value, attach=False)
    value.clear()
    assert (stored.data, stored.size, stored.media_type, stored.blobs) == (whole.data, whole.size, JSON, ())
    for alone in (whole, render(b"abc"), render("text")):
        assert alone.stored() is alone
