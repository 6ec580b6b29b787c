"""What a put may say of itself, judged before a store is asked (law: `reference/behaviour.md` 9.2)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest
from hypothesis import given

from coatcheck.artifacts.meta import (
    MAX_LABEL_CHARS,
    MAX_ORIGIN_ENTRIES,
    MAX_ORIGIN_KEY_CHARS,
    MAX_ORIGIN_VALUE_CHARS,
    MAX_PARENTS,
    ArtifactMeta,
    PutRequest,
    check_put,
    read_clock,
    utc_now,
)
from coatcheck.artifacts.ref import digest_of, make_ref
from coatcheck.errors import ConfigurationError, InvalidArtifact
from coatcheck.testing.strategies import kinds, media_types, payloads

NOW = datetime(2031, 1, 2, tzinfo=UTC)
SECOND = timedelta(seconds=1)
PARENT = make_ref("kind", "text/plain", digest_of(b"parent"))


def judge(data: object = b"payload", **words: object) -> PutRequest:
    given = {
        "kind": "kind",
        "media_type": "text/plain",
        "label": None,
        "expires_at": None,
        "origin": None,
        "parents": (),
    }
    return check_put(data, now=NOW, **{**given, **words})


@given(payloads(), kinds(), media_types())
def test_a_well_formed_put_makes_the_meta_of_its_content(data: bytes, kind: str, media_type: str) -> None:
    request = judge(data, kind=kind, media_type=media_type)
    digest = digest_of(data)
    meta = request.words.meta(digest, len(data), NOW, NOW + SECOND)
    assert meta.ref == make_ref(kind, media_type, digest)
    assert (meta.kind, meta.media_type, meta.bytes, meta.digest) == (kind, request.words.media_type, len(data), digest)
    assert (meta.created_at, meta.expires_at) == (NOW, NOW + SECOND)


@pytest.mark.parametrize("data", [bytearray(b"abc"), memoryview(b"abc"), memoryview(b"aXbXcX")[::2]])
def test_a_buffer_is_kept_as_bytes_that_nobody_else_can_change(data: Any) -> None:
    kept = judge(data).data
    assert type(kept) is bytes
    assert kept == b"abc"


@pytest.mark.parametrize("data", ["abc", None, 7, [97], {"a": 1}])
def test_what_is_not_bytes_is_refused(data: object) -> None:
    with pytest.raises(InvalidArtifact, match=r"^data must be bytes"):
        judge(data)


def test_an_expiry_is_kept_in_utc() -> None:
    elsewhere = datetime(2031, 1, 2, 3, tzinfo=timezone(timedelta(hours=2)))
    kept = judge(expires_at=elsewhere).words.expires_at
    assert kept == elsewhere
    assert kept is not None
    assert kept.utcoffset() == timedelta(0)


@pytest.mark.parametrize(
    "expires_at",
    [
        NOW,
        NOW - SECOND,
        NOW.replace(tzinfo=None) + SECOND,
        datetime.max.replace(tzinfo=timezone(-timedelta(hours=1))),
        1_925_000_000,
        "2031-01-02",
    ],
)
def test_an_expiry_that_is_not_an_aware_time_in_the_future_is_refused(expires_at: object) -> None:
    with pytest.raises(InvalidArtifact, match=r"^expires_at "):
        judge(expires_at=expires_at)


def test_a_moment_from_now_is_in_the_future() -> None:
    assert judge(expires_at=NOW + timedelta(microseconds=1)).words.expires_at is not None


def test_words_of_the_greatest_length_are_kept() -> None:
    origin = {f"{n:0{MAX_ORIGIN_KEY_CHARS}}": "\u00e9" * MAX_ORIGIN_VALUE_CHARS for n in range(MAX_ORIGIN_ENTRIES)}
    request = judge(label="l" * MAX_LABEL_CHARS, origin=origin)
    assert request.words.label == "l" * MAX_LABEL_CHARS
    assert request.words.origin == origin


@pytest.mark.parametrize(
    "word",
    [
        {"label": "l" * (MAX_LABEL_CHARS + 1)},
        {"label": "two\nlines"},
        {"label": "half \ud83d"},
        {"label": 7},
        {"origin": {str(n): "v" for n in range(MAX_ORIGIN_ENTRIES + 1)}},
        {"origin": {"k" * (MAX_ORIGIN_KEY_CHARS + 1): "v"}},
        {"origin": {"k": "v" * (MAX_ORIGIN_VALUE_CHARS + 1)}},
        {"origin": {"k": None}},
        {"origin": {7: "v"}},
        {"origin": {"k": "\ud83d"}},
        {"origin": ["k"]},
        {"origin": "k"},
        {"parents": PARENT},
        {"parents": PARENT.encode()},
        {"parents": None},
        {"parents": {PARENT}},
        {"parents": [PARENT, 7]},
        {"parents": [str(n) for n in range(MAX_PARENTS + 1)]},
    ],
)
def test_words_that_no_meta_can_hold_are_refused_by_name(word: dict[str, object]) -> None:
    [field] = word
    with pytest.raises(InvalidArtifact, match=field):
        judge(**word)


def test_an_origin_is_copied_and_an_empty_one_is_none() -> None:
    origin = {"call": "7"}
    request = judge(origin=origin)
    origin["call"] = "8"
    assert request.words.origin == {"call": "7"}
    assert judge(origin={}).words.origin is None


def test_a_provider_s_call_id_is_data_whatever_is_in_it() -> None:
    assert judge(origin={"call": "../../etc/x\x00\n"}).words.origin == {"call": "../../etc/x\x00\n"}


def test_parents_keep_their_order_and_count_once() -> None:
    assert judge(parents=["b", PARENT, "b"]).words.parents == ("b", PARENT)


def test_texts_of_refusals_hold_no_payload_and_no_words() -> None:
    for word in (
        {"kind": "5ecret\n"},
        {"media_type": "5ecret"},
        {"label": "5ecret\n"},
        {"origin": {"k": "5ecret" * 99}},
    ):
        with pytest.raises(InvalidArtifact) as refusal:
            judge(**word)
        assert "5ecret" not in str(refusal.value)
    with pytest.raises(InvalidArtifact) as refusal:
        judge("5ecret")
    assert "5ecret" not in str(refusal.value)


def test_a_meta_round_trips_through_json_to_the_microsecond() -> None:
    meta = judge(origin={"a": "b"}, parents=[PARENT]).words.meta(
        digest_of(b"payload"), 7, NOW + timedelta(microseconds=1), None
    )
    assert msgspec.json.decode(msgspec.json.encode(meta), type=ArtifactMeta) == meta


def test_a_clock_is_read_in_utc() -> None:
    elsewhere = datetime(2031, 1, 2, 3, tzinfo=timezone(timedelta(hours=2)))
    assert read_clock(lambda: elsewhere).utcoffset() == timedelta(0)
    assert read_clock(lambda: elsewhere) == elsewhere
    assert abs(read_clock(utc_now) - datetime.now(UTC)) < timedelta(minutes=1)


@pytest.mark.parametrize("time", [datetime(2031, 1, 2), 1_925_000_000.0, None])
def test_a_clock_that_gives_no_aware_time_is_refused(time: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^clock must return an aware datetime"):
        read_clock(lambda: time)
