"""Where an artifact lies in a bucket, and for how long: the laws of keys and of generations, without a server."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from itertools import permutations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from coatcheck.artifacts.ref import digest_of, make_ref
from coatcheck.artifacts.s3.keys import LONGEST_STREAM, ArtifactKey, DataKey, Generations, Keys
from coatcheck.scope import Scope, scope_segments
from coatcheck.testing.strategies import scopes

NOW = datetime(2031, 1, 2, 3, 4, 5, tzinfo=UTC)
SECOND = timedelta(seconds=1)
SEGMENT = re.compile("[A-Za-z0-9._-]{1,255}")

refs = st.binary(max_size=8).map(lambda data: make_ref("test/item", "text/plain", digest_of(data)))
prefixes = st.sampled_from(("", "p", "team/coatcheck", "a.b/c_d/E-f"))
spans = st.integers(1, 40) | st.integers(1, 10**9)
moments = st.datetimes(
    min_value=datetime(1960, 1, 1), max_value=datetime(2200, 1, 1), timezones=st.just(UTC)
)  # before the epoch, too: a clock may be wrong by much


@st.composite
def boundaries(draw: st.DrawFn, seconds: int) -> datetime:
    """A moment, often close to the beginning of a generation."""
    if draw(st.booleans()):
        return draw(moments)
    start = datetime(1970, 1, 1, tzinfo=UTC) + draw(st.integers(1, 3)) * seconds * SECOND
    return start + draw(st.integers(-1_000, 1_000)) * Generations(seconds).skew / 1_000


@st.composite
def placed(draw: st.DrawFn) -> tuple[Keys, Scope, str, int | None]:
    """Keys of some store, and an artifact of one."""
    seconds = draw(st.none() | spans)
    generation = None if seconds is None else draw(st.integers(-(10**6), 10**12))
    return Keys(draw(prefixes), Generations(seconds)), draw(scopes()), draw(refs), generation


@given(placed())
def test_a_key_says_whose_it_is_and_which_ref_and_generation(drawn: tuple[Keys, Scope, str, int | None]) -> None:
    keys, scope, ref, generation = drawn
    segments = scope_segments(scope)
    key = keys.artifact(segments, ref, generation)

    assert keys.read(key) == ArtifactKey(segments, ref, generation)
    assert keys.read_data(key) is None
    assert key.startswith(keys.scope(segments))


@given(prefixes, st.none() | spans, st.lists(st.tuples(scopes(), refs), min_size=2, max_size=6), moments)
def test_no_two_artifacts_share_a_key_and_none_is_a_folder_of_another(
    prefix: str, seconds: int | None, artifacts: list[tuple[Scope, str]], now: datetime
) -> None:
    keys = Keys(prefix, Generations(seconds))
    made = {}
    for scope, ref in artifacts:
        for generation in keys.generations.readable(now):
            made[scope, ref, generation] = keys.artifact(scope_segments(scope), ref, generation)
    data = [keys.new_data(scope_segments(scope), now) for scope, _ in artifacts]

    everything = [*set(made.values()), *data, keys.marker]
    assert len(set(made.values())) == len(made)
    assert len(set(data)) == len(data)
    for one, other in permutations(everything, 2):
        assert not other.startswith(one + "/")
        assert one != other


@given(placed(), moments)
def test_every_segment_is_one_that_every_server_takes_and_keys_are_short(
    drawn: tuple[Keys, Scope, str, int | None], now: datetime
) -> None:
    keys, scope, ref, generation = drawn
    segments = scope_segments(scope)
    for key in (keys.artifact(segments, ref, generation), keys.new_data(segments, now), keys.marker):
        assert all(SEGMENT.fullmatch(segment) and not segment.startswith(".") for segment in key.split("/"))
        assert len(key) <= 400


def test_the_longest_key_is_far_below_the_limit_of_any_server() -> None:
    scope = Scope(tenant="\U0001f600" * 999, principal="\U0001f600" * 999, conversation="\U0001f600" * 999)
    keys = Keys("p" * 400, Generations(1))
    ref = make_ref("k", "text/plain", digest_of(b""))
    assert len(keys.artifact(scope_segments(scope), ref, 10**12)) < 1024
    assert len(keys.new_data(scope_segments(scope), NOW)) < 1024


@given(st.text() | st.lists(st.sampled_from(["a", "_", "streams.d", "..", "", "p"]), max_size=6).map("/".join))
def test_a_key_of_anything_else_is_nobodys(key: str) -> None:
    for seconds in (None, 60):
        keys = Keys("", Generations(seconds))
        assert keys.read(key) is None
        assert keys.read_data(key) is None


REF = make_ref("test/item", "text/plain", digest_of(b"payload"))


@pytest.mark.parametrize(
    "key",
    [
        f"a/b/c/{REF}.007",
        f"a/b/c/{REF}.-0",
        f"a/b/c/{REF}.+1",
        f"a/b/c/{REF}.",
        f"a/b/c/{REF}.1.2",
        f"a/b/c/{REF}.1\n",
        f"a/b/c/{REF}.\u0661",
        f"a/b/c/{REF}.9999999999999999999",
        f"a/b/c/{REF}x.1",
        f"a/b/c/{REF.upper()}.1",
        f"a/b/C/{REF}.1",
        f"a/b/{REF}.1",
        f"a/b//{REF}.1",
        f"/a/b/c/{REF}.1",
        f"a/b/c/d/{REF}.1",
        f"streams.d/b/c/{REF}.1",
        f"a/b/c/{REF}",
    ],
)
def test_a_key_that_no_put_makes_is_nobodys(key: str) -> None:
    assert Keys("", Generations(60)).read(key) is None


def test_a_generation_belongs_to_a_store_with_a_ttl_alone() -> None:
    assert Keys("", Generations(None)).read(f"a/b/c/{REF}.1") is None
    assert Keys("", Generations(None)).read(f"a/b/c/{REF}") is not None
    assert Keys("q", Generations(None)).read(f"a/b/c/{REF}") is None


@given(prefixes, scopes(), moments)
def test_a_data_object_says_whose_it_is_and_when_it_was_begun(prefix: str, scope: Scope, now: datetime) -> None:
    keys = Keys(prefix, Generations(None))
    segments = scope_segments(scope)
    key = keys.new_data(segments, now)

    assert keys.read_data(key) == DataKey(segments, now.replace(microsecond=0))
    assert keys.read(key) is None
    assert key.startswith(keys.scope_data(segments))
    assert key.startswith(keys.data_root)


@pytest.mark.parametrize(
    "name",
    ["1-", "-" + "a" * 32, "999999999999999999-" + "a" * 32, "01-" + "a" * 32, "1-" + "A" * 32, "1-" + "a" * 33],
)
def test_a_data_object_that_no_stream_begins_is_nobodys(name: str) -> None:
    assert Keys("", Generations(None)).read_data(f"streams.d/a/b/c/{name}") is None


@given(spans, st.data())
def test_what_a_put_writes_is_read_by_every_replica_until_it_expires(seconds: int, data: st.DataObject) -> None:
    generations = Generations(seconds)
    written = data.draw(boundaries(seconds), label="the writer's clock")
    ttl = data.draw(st.floats(0, 1, exclude_min=True), label="of a generation") * timedelta(seconds=seconds)
    since = data.draw(st.floats(-1, 1), label="the reader's clock")
    read = written + (since * ttl if since > 0 else since * generations.skew)
    if read < written + ttl:
        assert generations.now(written) in generations.readable(read)


@given(spans, st.data())
@example(10, None)
def test_what_is_dead_is_neither_read_nor_written_by_any_replica(seconds: int, data: st.DataObject | None) -> None:
    generations = Generations(seconds)
    if data is None:
        swept, skew, generation = datetime(1970, 1, 1, tzinfo=UTC) + 20 * SECOND, generations.skew, 0
    else:
        swept = data.draw(boundaries(seconds), label="the sweeper's clock")
        skew = data.draw(st.floats(-1, 1), label="of the skew") * generations.skew
        generation = (generations.now(swept) or 0) - data.draw(st.integers(-3, 5))
    other = swept + skew
    if generations.is_dead(generation, swept):
        assert generation not in generations.readable(other)
        assert generation != generations.now(other)
        assert generations.is_dead(generation, swept + timedelta(seconds=1))


@given(spans, st.data())
def test_a_delete_reaches_all_that_any_replica_reads_and_nobody_waits_for_long(
    seconds: int, data: st.DataObject
) -> None:
    generations = Generations(seconds)
    deleted = data.draw(boundaries(seconds), label="the deleter's clock")
    other = deleted + data.draw(st.floats(-1, 1), label="of the skew") * generations.skew
    assert generations.now(other) in generations.deletable(deleted)
    assert set(generations.readable(other)) <= set(generations.deletable(deleted))
    assert len(generations.deletable(deleted)) <= 4


@given(spans, moments)
def test_what_is_over_for_two_generations_and_the_skew_is_dead(seconds: int, now: datetime) -> None:
    generations = Generations(seconds)
    generation = generations.now(now)
    assert generation is not None
    assert generations.is_dead(generation, now + timedelta(seconds=2 * seconds) + generations.skew)
    read = [readable or 0 for readable in generations.readable(now)]
    assert read == sorted(read, reverse=True)


@given(moments, st.integers(-5, 5))
def test_a_store_without_a_ttl_has_one_generation_that_never_dies(now: datetime, generation: int) -> None:
    generations = Generations(None)
    assert generations.now(now) is None
    assert generations.readable(now) == generations.deletable(now) == (None,)
    assert not generations.is_dead(None, now)
    assert not generations.is_dead(generation, now)


def test_the_skew_is_a_tenth_of_a_generation_and_15_minutes_at_most() -> None:
    assert Generations(20).skew == timedelta(seconds=2)
    assert Generations(7 * 86_400).skew == Generations(None).skew == timedelta(minutes=15)


@given(moments, st.floats(-1, 1), st.none() | spans)
def test_a_data_object_is_stale_only_when_no_replica_publishes_its_stream_any_more(
    begun: datetime, part: float, seconds: int | None
) -> None:
    keys = Keys("", Generations(seconds))
    data = DataKey(("_", "_", "c"), begun)
    latest = begun + LONGEST_STREAM  # by the clock of the replica that streams, which is refused from then on
    assert not keys.is_stale(data, latest - timedelta(microseconds=1) + part * keys.generations.skew)
    assert not keys.is_stale(data, latest + keys.generations.skew), "the pointer's own request takes its time"
    assert keys.is_stale(data, latest + timedelta(hours=1))
