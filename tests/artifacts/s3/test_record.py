"""What an object says of itself: the record in its metadata, without a server."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from coatcheck.artifacts.meta import ArtifactMeta
from coatcheck.artifacts.ref import digest_of, make_ref, normalise_media_type
from coatcheck.artifacts.retention import Retention, is_expired, resolve_expires_at
from coatcheck.artifacts.s3.record import ENTRY, MAX_METADATA_BYTES, POINTER, Record
from coatcheck.errors import InvalidArtifact
from coatcheck.testing.strategies import kinds, media_types, texts

NOW = datetime(2031, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC)
SECOND = timedelta(seconds=1)
HEADER = re.compile("[!-~](?:[!-~]| (?! ))*[!-~]")

moments = st.datetimes(min_value=datetime(1971, 1, 1), max_value=datetime(9000, 1, 1), timezones=st.just(UTC))
lines = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), max_size=256)
spaced = st.lists(st.sampled_from(("a", " ", "  ", "\u00e9", "\U0001f600", '"', "\\")), max_size=30).map("".join)
origins = st.dictionaries(
    spaced | lines.map(lambda text: text[:64]), spaced | texts(max_size=40), min_size=1, max_size=8
)
refs = st.binary(max_size=8).map(lambda data: make_ref("test/item", "text/plain", digest_of(data)))


@st.composite
def records(draw: st.DrawFn) -> Record:
    """Records of artifacts as puts make them, some of which are too large."""
    kind, media_type = draw(kinds()), normalise_media_type(draw(media_types()))
    digest = digest_of(draw(st.binary(max_size=8)))
    meta = ArtifactMeta(
        ref=make_ref(kind, media_type, digest),
        kind=kind,
        media_type=media_type,
        bytes=draw(st.integers(0, 2**50)),
        digest=digest,
        created_at=draw(moments),
        expires_at=draw(st.none() | moments),
        label=draw(st.none() | spaced | lines),
        origin=draw(st.none() | origins),
        parents=tuple(draw(st.lists(refs, max_size=12, unique=True))),
    )
    last_put = draw(st.just(meta.created_at) | moments)
    return Record(meta, last_put, draw(st.none() | st.just(f"1-{'a' * 32}")))


def record(**words: Any) -> Record:
    said = {"kind": "test/item", "media_type": "text/plain", "digest": digest_of(b"payload"), "bytes": 7, **words}
    ref = make_ref(said["kind"], said["media_type"], said["digest"])
    return Record(ArtifactMeta(**{"ref": ref, "created_at": NOW, **said}), said.get("created_at", NOW))


@given(records())
@example(record(label="two  spaces,   three, and one at the end "))
@example(record(origin={"a": "deleted: \x7f", "b": "\x00\t\r\n"}))
@example(record(label="\u00e9" * 256, origin={"\U0001f600": " "}))
def test_a_record_goes_through_a_header_unchanged_or_is_refused(written: Record) -> None:
    try:
        text = written.encode()
    except InvalidArtifact:
        return
    assert len(ENTRY) + len(text) <= MAX_METADATA_BYTES
    assert HEADER.fullmatch(text), "a header carries printable ASCII, and some servers join spaces"
    assert Record.decode(written.meta.ref, text) == written


def test_a_record_of_the_usual_words_is_taken_at_their_longest() -> None:
    written = record(kind="k" * 128, media_type="a/" + "m" * 126, label="l" * 256, origin={"call": "o" * 256})
    assert Record.decode(written.meta.ref, written.encode()) == written


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ({"label": "\U0001f600" * 256}, "label"),
        ({"origin": {str(number): "o" * 256 for number in range(8)}}, "origin"),
        ({"parents": tuple(make_ref("k", "a/b", digest_of(b"%d" % n)) for n in range(80))}, "parents"),
        ({"kind": "\U0001f600" * 128, "label": "l" * 256, "origin": {"o": "o" * 256}}, "kind"),
    ],
)
def test_what_is_more_than_two_kilobytes_is_refused_by_the_name_of_what_takes_the_most(
    words: dict[str, Any], name: str
) -> None:
    with pytest.raises(InvalidArtifact, match=rf"^{name} takes \d+ of the \d+ bytes") as caught:
        record(**words).encode()
    assert str(MAX_METADATA_BYTES - len(f"x-amz-meta-{ENTRY}")) in str(caught.value)


def test_some_fifty_parents_are_taken() -> None:
    parents = tuple(make_ref("k", "a/b", digest_of(b"%d" % number)) for number in range(50))
    written = record(parents=parents)
    assert Record.decode(written.meta.ref, written.encode()) == written


@given(records(), st.sampled_from(["kind", "type", "sha256"]))
def test_a_record_proves_that_it_is_of_its_ref(written: Record, field: str) -> None:
    try:
        wire = msgspec.json.decode(written.encode())
    except InvalidArtifact:
        return
    wire[field] = {"kind": "forged", "type": "forged/type", "sha256": "0" * 64}[field]
    assert Record.decode(written.meta.ref, msgspec.json.encode(wire).decode()) is None
    assert Record.decode(make_ref("other", "text/plain", written.meta.digest), written.encode()) is None


@pytest.mark.parametrize(
    "change",
    [
        {"bytes": -1},
        {"bytes": "7"},
        {"created": "2031-01-02T03:04:05"},
        {"created": "yesterday"},
        {"put": "2031-01-02T03:04:05"},
        {"expires": "2031-01-02T03:04:05"},
        {"sha256": "X" * 64},
        {"sha256": None},
        {"kind": ""},
        {"kind": "a\nb"},
        {"type": "text"},
        {"origin": ["a"]},
        {"label": 1},
        {"parents": ["a"]},
        {"data": 5},
        {"data": "acme/dana/c-43/art_00000000000000000000000000000000"},
        {"data": f"../x/1-{'a' * 32}"},
    ],
)
def test_a_record_that_is_damaged_is_none(change: dict[str, Any]) -> None:
    written = record()
    wire = {**msgspec.json.decode(written.encode()), **change}
    assert Record.decode(written.meta.ref, msgspec.json.encode(wire).decode()) is None


@given(st.none() | st.text() | st.integers() | st.binary())
@example("[" * 100_000)
@example('{"x":' + "[" * 100_000 + "]" * 100_000 + "}")
@example('{"kind":"\\ud800","type":"a/b","bytes":1,"sha256":"","created":"2031-01-02T03:04:05Z"}')
def test_whatever_else_an_object_says_is_no_record(text: object) -> None:
    assert Record.decode(record().meta.ref, text) is None


def test_fields_of_a_later_release_are_passed_over() -> None:
    written = record()
    wire = {**msgspec.json.decode(written.encode()), "later": {"deep": [1]}}
    assert Record.decode(written.meta.ref, msgspec.json.encode(wire).decode()) == written


def test_a_pointer_has_a_length_that_a_listing_tells() -> None:
    assert POINTER.isascii()
    assert POINTER.endswith(b"\n")
    assert len(POINTER) == 84


ages = st.integers(0, 30).map(lambda seconds: seconds * SECOND)


@given(st.none() | st.integers(1, 20), ages, st.none() | ages, st.none() | ages, st.none() | st.integers(0, 20))
def test_a_second_put_leaves_what_it_asks_for_and_no_expiry_shrinks(
    ttl: int | None,
    between: timedelta,
    first_asks: timedelta | None,
    second_asks: timedelta | None,
    min_age: int | None,
) -> None:
    retention = Retention(ttl=None if ttl is None else ttl * SECOND)
    now = NOW + between

    def put(at: datetime, asks: timedelta | None) -> Record:
        own = None if asks is None else at + asks + SECOND
        return record(created_at=at, expires_at=resolve_expires_at(own, retention, at))

    old, fresh = put(NOW, first_asks), put(now, second_asks)
    if is_expired(old.meta.expires_at, now):
        return  # which is as if it were not there
    stays = old.serves(fresh, retention, min_age)
    after = old if stays else old.refreshed(fresh)

    asked, left = fresh.meta.expires_at, after.meta.expires_at
    if old.meta.expires_at is None:
        assert left is None
    elif left is not None:
        assert left >= old.meta.expires_at
        assert asked is not None
        full = ttl is not None and asked == now + ttl * SECOND
        assert left >= asked or (full and left - now >= 0.9 * (asked - now))
    if min_age is not None:
        age = (now - after.last_put).total_seconds()
        assert age < min_age or age == 0, "what was just put again is young"
    if not (stays or min_age == 0):
        assert after.serves(fresh, retention, min_age)
    assert after.meta.created_at == old.meta.created_at


def test_a_put_again_makes_younger_and_does_not_say_where_the_payload_is() -> None:
    old = Record(record(label="first").meta, NOW, "streams.d/_/_/c/1-" + "a" * 32)
    fresh = Record(record(label="second", expires_at=NOW + SECOND).meta, NOW + SECOND)
    refreshed = old.refreshed(fresh)
    assert (refreshed.meta.label, refreshed.meta.expires_at) == ("first", None)
    assert (refreshed.last_put, refreshed.data) == (NOW + SECOND, None)
    assert Record(old.meta, NOW + 9 * SECOND).refreshed(fresh).last_put == NOW + 9 * SECOND
