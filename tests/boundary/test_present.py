"""``present``: the model asks for something to be shown, and reads nothing of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import coatcheck as cc
from coatcheck.testing import FaultyStore, ManualClock, fail

pytestmark = pytest.mark.anyio

SCOPE = cc.Scope(tenant="acme", principal="dana", conversation="c-42")
OTHER = cc.Scope(tenant="globex", conversation="c-42")
NEVER = "art_" + "0" * 32


@pytest.fixture(params=["memory", "directory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> cc.ArtifactStore:
    return cc.MemoryStore() if request.param == "memory" else cc.DirectoryStore(tmp_path / "store")


class Bench:
    """A session with ``present``, and the events."""

    def __init__(self, store: cc.ArtifactStore | None, **settings: Any) -> None:
        self.events: list[Any] = []
        self.session = cc.Boundary([cc.present], store=store, on_event=self.events.append, **settings).session(SCOPE)

    async def __call__(self, **arguments: Any) -> cc.AnyOutcome:
        return await self.session.call("present", arguments, call_id="c1")

    def seen(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


async def put(store: cc.ArtifactStore, data: bytes = b'{"s":1}', scope: cc.Scope = SCOPE, **words: Any) -> str:
    said = {"kind": "chart/spec", "media_type": "application/json", "label": "Q3", **words}
    return (await store.put(scope, data, **said)).meta.ref


@pytest.mark.parametrize(
    ("label", "shown"),
    [(None, "Q3"), ("Mine", "Mine"), ("  ", "Q3"), ("", "Q3")],
    ids=["own", "given", "blank", "empty"],
)
async def test_what_is_known_of_an_artifact_is_in_the_result_and_in_the_event(
    store: cc.ArtifactStore, label: str | None, shown: str
) -> None:
    bench, ref = Bench(store), await put(store)
    outcome = await bench(ref=ref, **{"as": "bar-chart"}, **({} if label is None else {"label": label}))
    assert isinstance(outcome, cc.Inline)
    snapshot = {"kind": "chart/spec", "mediaType": "application/json", "bytes": 7, "label": shown}
    assert json.loads(outcome.text) == {"presented": True, "ref": ref, "as": "bar-chart", "snapshot": snapshot}
    assert bench.seen(cc.ArtifactPresented) == [
        cc.ArtifactPresented(
            tool="present",
            call_id="c1",
            turn=1,
            ref=ref,
            as_="bar-chart",
            kind="chart/spec",
            media_type="application/json",
            bytes=7,
            label=shown,
        )
    ]
    [resolved] = bench.seen(cc.ArtifactResolved)
    assert (resolved.ref, resolved.via) == (ref, "head")


async def test_a_label_that_nobody_gave_is_no_key(store: cc.ArtifactStore) -> None:
    bench, ref = Bench(store), await put(store, label=None)
    outcome = await bench(ref=ref, **{"as": "table"})
    assert list(json.loads(outcome.text)["snapshot"]) == ["kind", "mediaType", "bytes"]
    assert bench.seen(cc.ArtifactPresented)[0].label is None


async def test_the_payload_is_never_asked_for() -> None:
    broken = fail(cc.StoreUnavailable("503"))
    store = FaultyStore(cc.MemoryStore(), get=broken, open=broken)
    outcome = await Bench(store)(ref=await put(store), **{"as": "table"})
    assert not outcome.error
    assert (store.calls["head"], store.calls["get"], store.calls["open"]) == (1, 0, 0)


async def test_a_ref_is_found_whatever_stands_around_it(store: cc.ArtifactStore) -> None:
    ref = await put(store)
    outcome = await Bench(store)(ref=f"`{ref.upper()}`.", **{"as": "table"})
    assert json.loads(outcome.text)["ref"] == ref


async def test_a_miss_is_an_error_and_one_answer_that_lists_what_is_here() -> None:
    clock = ManualClock()
    store = cc.MemoryStore(clock=clock)
    foreign = await put(store, b"1", OTHER)
    refs = []
    for number in range(12):
        clock.advance(1)
        refs.append(await put(store, b"[%d]" % number, kind=f"kind-{number}"))
    bench = Bench(store)
    outcomes = [
        await bench(ref=ref, **{"as": "table"}) for ref in (NEVER, foreign, "nonsense", "../x", "\0", "x" * 9999)
    ]
    [text] = {outcome.text for outcome in outcomes}
    assert all(isinstance(outcome, cc.Failed) and outcome.error and outcome.executed for outcome in outcomes)
    assert all(ref in text for ref in refs[2:])
    assert not any(ref in text for ref in (*refs[:2], foreign))
    reasons = [(event.op, event.reason) for event in bench.seen(cc.ArtifactRefused)]
    assert reasons == [("head", "missing-or-expired")] * len(outcomes)
    assert bench.seen(cc.ArtifactPresented) == []


@pytest.mark.parametrize(("ref", "as_", "named"), [(" ", "table", "ref"), (NEVER, "\t", "as"), ("", "", "as")])
async def test_what_is_blank_is_invalid(ref: str, as_: str, named: str) -> None:
    bench = Bench(cc.MemoryStore())
    outcome = await bench(ref=ref, **{"as": as_})
    assert outcome.error
    assert outcome.text.startswith(f"{named} is blank")
    assert [(event.op, event.reason) for event in bench.seen(cc.ArtifactRefused)] == [("head", "invalid-input")]


async def test_without_a_store_it_teaches() -> None:
    bench = Bench(None)
    outcome = await bench(ref=NEVER, **{"as": "table"})
    assert outcome.error
    assert outcome.text.startswith("this host keeps no artifacts")
    assert [(event.op, event.reason) for event in bench.seen(cc.ArtifactRefused)] == [("head", "no-store")]


async def test_a_store_that_fails_is_an_error() -> None:
    broken = fail(cc.StoreUnavailable("503"))
    bench = Bench(FaultyStore(cc.MemoryStore(), head=broken, list=broken))
    assert (await bench(ref=NEVER, **{"as": "table"})).text == "503"
    assert [(event.op, event.reason) for event in bench.seen(cc.ArtifactRefused)] == [("head", "store-failed")]


def test_what_the_model_is_told_of_it() -> None:
    assert cc.present.name == "present"
    assert cc.present.description == "Show a stored result to the person, without reading it yourself."
    assert list(cc.present.parameters["properties"]) == ["ref", "as", "label"]
    assert cc.present.parameters["required"] == ["ref", "as"]
    assert all("description" in repr(each) for each in cc.present.parameters["properties"].values())


@pytest.mark.parametrize("arguments", [{}, {"ref": NEVER}, {"ref": 5, "as": "x"}, {"ref": NEVER, "as_": "x"}])
async def test_wrong_arguments_are_taught_in_the_words_that_the_model_speaks(arguments: dict[str, Any]) -> None:
    outcome = await Bench(cc.MemoryStore())(**arguments)
    assert outcome.error
    assert "It takes: ref, as, label." in outcome.text


async def test_rules_see_it_as_every_other_call(store: cc.ArtifactStore) -> None:
    denies = cc.before_tool(name="denies")(lambda call: cc.deny(f"not as {call.arguments['as']}"))
    bench = Bench(store, rules=[denies])
    outcome = await bench(ref=await put(store), **{"as": "table"})
    assert isinstance(outcome, cc.Denied)
    assert outcome.reason == "not as table"
    assert bench.seen(cc.ArtifactPresented) == []


@pytest.mark.parametrize(
    ("word", "value"), [("as", "a\x00b"), ("as", "x" * 65), ("label", "a\nb"), ("label", "l" * 257), ("as", "\ud800")]
)
async def test_what_no_screen_should_show_is_invalid(word: str, value: str) -> None:
    heard: list[cc.Event] = []
    store = cc.MemoryStore()
    scope = cc.Scope(conversation="c-42")
    ref = (await store.put(scope, b"payload", kind="test/item", media_type="text/plain")).meta.ref
    session = cc.Boundary([cc.present], store=store, on_event=heard.append).session(scope)
    outcome = await session.call("present", {"ref": ref, "as": "table", word: value})
    assert isinstance(outcome, cc.Failed)
    assert word in outcome.text
    assert not [event for event in heard if isinstance(event, cc.ArtifactPresented)]
