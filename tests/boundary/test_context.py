"""What a tool is given of its call: artifacts in the scope of the session, and a way to say how far it is."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, get_type_hints

import anyio
import anyio.from_thread
import anyio.to_thread
import msgspec
import pytest

import coatcheck as cc
from coatcheck.artifacts.memory import MemoryStore
from coatcheck.boundary import execution
from coatcheck.boundary.context import Artifacts
from coatcheck.testing import FaultyStore, fail

pytestmark = pytest.mark.anyio

SCOPE = cc.Scope(tenant="acme", principal="dana", conversation="c-42")
OTHER = cc.Scope(tenant="globex", principal="dana", conversation="c-42")
NEVER = "art_" + "0" * 32
WORDS: dict[str, Any] = {"kind": "test/kind", "media_type": "text/plain"}


@pytest.fixture(params=["memory", "directory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> cc.ArtifactStore:
    return cc.MemoryStore() if request.param == "memory" else cc.DirectoryStore(tmp_path / "store")


class Bench:
    """A session around one tool, whose body is a function of its context."""

    def __init__(self, body: Callable[[cc.ToolContext], Any], store: cc.ArtifactStore | None, **settings: Any) -> None:
        async def use(ctx: cc.ToolContext, rows: Any = None) -> Any:
            self.contexts.append(ctx)
            made = body(ctx)
            return await made if inspect.isawaitable(made) else made

        self.contexts: list[cc.ToolContext] = []
        self.events: list[Any] = []
        self.boundary = cc.Boundary(
            [cc.tool(wants={"rows": "test/kind"})(use)], store=store, on_event=self.events.append, **settings
        )
        self.session = self.boundary.session(SCOPE)

    async def __call__(self, **arguments: Any) -> cc.AnyOutcome:
        return await self.session.call("use", arguments, call_id="c1")

    def seen(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def refusals(self) -> list[tuple[str, str, str | None]]:
        return [(event.op, event.reason, event.ref) for event in self.seen(cc.ArtifactRefused)]


async def chunks(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


# --- how it is asked for ---


def test_a_context_is_asked_for_by_annotation_and_the_model_does_not_see_it() -> None:
    def first(ctx: cc.ToolContext, a: int) -> None: ...
    def optional(a: int, about: cc.ToolContext | None = None) -> None: ...
    def by_keyword(a: int, *, ctx: cc.ToolContext) -> None: ...

    for function in (first, optional, by_keyword):
        made = cc.tool(function)
        assert list(made.parameters["properties"]) == ["a"]
        assert made.parameters["required"] == ["a"]
        assert made.context in ("ctx", "about")
        assert not made.takes_in_order


def test_a_context_that_cannot_be_given_is_refused_by_name() -> None:
    def two(a: cc.ToolContext, b: cc.ToolContext) -> None: ...
    def positional(ctx: cc.ToolContext, /) -> None: ...
    def several(*ctx: cc.ToolContext) -> None: ...
    def keywords(**ctx: cc.ToolContext) -> None: ...

    with pytest.raises(cc.ConfigurationError, match=r"^tool two: a and b are each a ToolContext"):
        cc.tool(two)
    for function in (positional, several, keywords):
        with pytest.raises(cc.ConfigurationError, match=rf"^tool {function.__name__}: ctx, its ToolContext"):
            cc.tool(function)


async def test_a_model_cannot_speak_a_context() -> None:
    async def strict(ctx: cc.ToolContext) -> Any:
        return type(ctx).__name__

    async def takes_any(ctx: cc.ToolContext, **rest: Any) -> Any:
        return [type(ctx).__name__, rest]

    session = cc.Boundary([strict, takes_any]).session(SCOPE)
    assert (await session.call("strict", {"ctx": {"scope": "x"}})).error
    outcome = await session.call("takes_any", {"ctx": {"scope": "x"}, "more": 1})
    assert outcome.text == '["ToolContext",{"more":1}]'


async def test_the_scope_is_out_of_a_tool_s_reach() -> None:
    """Of its call a tool sees what the model spoke; no verb takes a scope, and there is no sweep."""

    async def body(ctx: cc.ToolContext) -> Any:
        assert type(ctx.call) is cc.ToolCall
        shown = {name for name in dir(ctx) if not name.startswith("_")}
        assert shown == {"artifacts", "call", "progress", "readers", "tell", "wanted"}
        shown = {name for name in dir(ctx.artifacts) if not name.startswith("_")}
        assert shown == {"delete", "end", "get", "head", "list", "open", "put", "put_stream", "tell", "there"}
        ctx.call.arguments["rows"] = "changed"
        return [ctx.call.name, ctx.call.call_id]

    class Watches(cc.Rule):
        def after_tool(self, call: cc.ToolCall, result: cc.Result) -> Any:
            assert call.arguments == {}
            return cc.allow()

    outcome = await Bench(body, cc.MemoryStore(), rules=[Watches()])()
    assert outcome.text == '["use","c1"]'


@pytest.mark.parametrize("verb", ["put", "put_stream", "head", "get", "open", "delete", "list"])
def test_the_verbs_are_those_of_the_port_without_the_scope(verb: str) -> None:
    def spelled(function: Callable[..., Any]) -> list[tuple[str, Any, Any]]:
        return [(each.name, each.kind, each.default) for each in inspect.signature(function).parameters.values()]

    ours = spelled(getattr(Artifacts, verb))
    theirs = [each for each in spelled(getattr(MemoryStore, verb)) if each[0] not in ("scope", "origin")]
    assert ours == theirs
    assert "scope" not in get_type_hints(getattr(Artifacts, verb))


# --- what it can do ---


async def test_every_verb_does_what_the_store_does_and_says_so(store: cc.ArtifactStore) -> None:
    async def body(ctx: cc.ToolContext) -> Any:
        first = (await ctx.artifacts.put(b"payload", label="mine", **WORDS)).meta
        streamed = await ctx.artifacts.put_stream(chunks(b"a", b"b"), parents=[first.ref], **WORDS)
        assert await ctx.artifacts.head(first.ref) == first
        got = await ctx.artifacts.get(first.ref)
        assert got is not None
        assert got.data == b"payload"
        async with ctx.artifacts.open(first.ref, 3, 5) as reader:
            assert reader is not None
            assert b"".join([chunk async for chunk in reader]) == b"lo"
        page = await ctx.artifacts.list(limit=1)
        assert (len(page.artifacts), page.cursor is not None) == (1, True)
        await ctx.artifacts.delete(first.ref)
        assert await ctx.artifacts.head(first.ref) is None
        assert await ctx.artifacts.get(first.ref) is None
        async with ctx.artifacts.open(first.ref) as reader:
            assert reader is None
        return [first.ref, streamed.meta.ref]

    bench = Bench(body, store)
    theirs = (await store.put(OTHER, b"payload", **WORDS)).meta
    outcome = await bench()
    first, second = msgspec.json.decode(outcome.text)
    about: dict[str, Any] = {"tool": "use", "call_id": "c1", "turn": 1}
    minted = bench.seen(cc.ArtifactMinted)
    assert [(event.ref, event.bytes, event.label, event.parents) for event in minted] == [
        (first, 7, "mine", ()),
        (second, 2, None, (first,)),
    ]
    assert {(event.created, event.kind, event.media_type) for event in minted} == {(True, "test/kind", "text/plain")}
    assert bench.seen(cc.ArtifactResolved) == [
        cc.ArtifactResolved(**about, ref=first, via=via, kind="test/kind", bytes=7) for via in ("head", "get", "get")
    ]
    assert bench.refusals() == [(op, "missing-or-expired", first) for op in ("head", "get", "get")]
    assert b"payload" not in msgspec.json.encode(bench.events)
    assert await store.head(OTHER, theirs.ref) == theirs, "another scope's is untouched"


async def test_what_a_tool_stores_says_which_call_it_comes_from_whatever_the_tool_says(
    store: cc.ArtifactStore,
) -> None:
    async def body(ctx: cc.ToolContext) -> Any:
        for forged in ({"origin": {"tool": "another"}}, {"scope": OTHER}):
            with pytest.raises(TypeError, match="|".join(forged)):
                await ctx.artifacts.put(b"x", **WORDS, **forged)
        return [(await ctx.artifacts.put(b"x", **WORDS)).meta.ref]

    bench = Bench(body, store)
    [ref] = msgspec.json.decode((await bench()).text)
    meta = await store.head(SCOPE, ref)
    assert meta is not None
    assert meta.origin == {"tool": "use", "call_id": "c1"}
    assert bench.seen(cc.ArtifactMinted)[0].origin == meta.origin


async def test_what_a_tool_stores_has_what_its_call_wanted_among_its_parents(store: cc.ArtifactStore) -> None:
    async def body(ctx: cc.ToolContext) -> Any:
        assert ctx.wanted["rows"].ref == wanted
        put = await ctx.artifacts.put(b"made", parents=[more], **WORDS)
        streamed = await ctx.artifacts.put_stream(chunks(b"made", b"again"), parents=[wanted, more], **WORDS)
        return [put.meta.ref, streamed.meta.ref]

    bench = Bench(body, store)
    wanted = (await store.put(SCOPE, b"rows", **WORDS)).meta.ref
    more = (await store.put(SCOPE, b"more", **WORDS)).meta.ref
    refs = msgspec.json.decode((await bench(rows=wanted)).text)
    metas = [await store.head(SCOPE, ref) for ref in refs]
    assert [meta and meta.parents for meta in metas] == [(more, wanted), (wanted, more)]
    assert [event.parents for event in bench.seen(cc.ArtifactMinted)] == [(more, wanted), (wanted, more)]


async def test_what_a_call_wanted_and_has_gone_is_nobody_s_parent(store: cc.ArtifactStore) -> None:
    async def body(ctx: cc.ToolContext) -> Any:
        await ctx.artifacts.delete(wanted)
        return list((await ctx.artifacts.put(b"made", **WORDS)).meta.parents)

    wanted = (await store.put(SCOPE, b"rows", **WORDS)).meta.ref
    assert (await Bench(body, store)(rows=wanted)).text == "[]"


async def test_a_tool_that_stores_what_it_was_handed_has_not_made_anything(store: cc.ArtifactStore) -> None:
    async def body(ctx: cc.ToolContext) -> Any:
        result = await ctx.artifacts.put(b"rows", **WORDS)
        return [result.created, list(result.meta.parents)]

    bench = Bench(body, store)
    wanted = (await store.put(SCOPE, b"rows", **WORDS)).meta.ref
    assert (await bench(rows=wanted)).text == "[false,[]]"


@pytest.mark.parametrize("parents", ["art_x", b"x", 5, None, [5]])
async def test_parents_that_are_no_refs_are_refused_as_the_store_does(parents: Any) -> None:
    async def body(ctx: cc.ToolContext) -> Any:
        with pytest.raises(cc.InvalidArtifact, match="parents"):
            await ctx.artifacts.put(b"x", parents=parents, **WORDS)

    store = cc.MemoryStore()
    wanted = (await store.put(SCOPE, b"rows", **WORDS)).meta.ref
    bench = Bench(body, store)
    for arguments in ({}, {"rows": wanted}):
        assert not (await bench(**arguments)).error
    assert bench.refusals() == [("put", "invalid-input", None)] * 2


async def test_a_sync_tool_uses_it_from_its_thread(store: cc.ArtifactStore) -> None:
    def use(ctx: cc.ToolContext) -> Any:
        put = partial(ctx.artifacts.put, b"payload", **WORDS)
        ref = anyio.from_thread.run(put).meta.ref
        got = anyio.from_thread.run(ctx.artifacts.get, ref)
        assert got is not None
        ctx.progress("half way", done=1, total=2)
        return got.data.decode()

    def lines(ctx: cc.ToolContext) -> Iterator[str]:
        for number in range(3):
            put = partial(ctx.artifacts.put, b"%d" % number, **WORDS)
            yield anyio.from_thread.run(put).meta.ref + "\n"

    events: list[Any] = []
    session = cc.Boundary([use, lines], store=store, on_event=events.append).session(SCOPE)
    assert (await session.call("use")).text == "payload"
    [progress] = [event for event in events if isinstance(event, cc.ToolProgress)]
    assert (progress.text, progress.done, progress.total, progress.tool) == ("half way", 1, 2, "use")
    outcome = await session.call("lines")
    assert len(outcome.text.split()) == 3, outcome.text


async def test_progress_is_for_the_host_and_bounded() -> None:
    async def body(ctx: cc.ToolContext) -> Any:
        for step in range(3):
            ctx.progress("x" * 1000, done=step)
        return "done"

    bench = Bench(body, None)
    outcome = await bench()
    assert outcome.text == "done"
    assert [(len(event.text), event.done, event.total) for event in bench.seen(cc.ToolProgress)] == [
        (500, 0, None),
        (500, 1, None),
        (500, 2, None),
    ]
    bench.contexts[0].progress("too late")
    assert len(bench.seen(cc.ToolProgress)) == 3


async def test_progress_that_nobody_listens_to_is_nothing() -> None:
    async def use(ctx: cc.ToolContext) -> Any:
        ctx.progress("x")
        return dict(ctx.wanted)

    assert (await cc.Boundary([use]).session(SCOPE).call("use")).text == "{}"


# --- where it cannot ---

VERBS: dict[str, Callable[[Artifacts], Any]] = {
    "put": lambda artifacts: artifacts.put(b"x", **WORDS),
    "put_stream": lambda artifacts: artifacts.put_stream(chunks(b"x"), **WORDS),
    "head": lambda artifacts: artifacts.head(NEVER),
    "get": lambda artifacts: artifacts.get(NEVER),
    "open": lambda artifacts: _opened(artifacts),
    "delete": lambda artifacts: artifacts.delete(NEVER),
    "list": lambda artifacts: artifacts.list(),
}
OPS = {"put_stream": "put", "open": "get"}


async def _opened(artifacts: Artifacts) -> None:
    async with artifacts.open(NEVER):
        pass


@pytest.mark.parametrize("verb", VERBS)
async def test_without_a_store_every_verb_refuses_and_teaches(verb: str) -> None:
    async def body(ctx: cc.ToolContext) -> Any:
        assert not ctx.artifacts.there
        return await VERBS[verb](ctx.artifacts)

    bench = Bench(body, None)
    outcome = await bench()
    assert isinstance(outcome, cc.Failed)
    assert outcome.executed
    assert outcome.text.startswith("this host keeps no artifacts")
    ref = None if verb in ("put", "put_stream", "list") else NEVER
    assert bench.refusals() == [(OPS.get(verb, verb), "no-store", ref)]


@pytest.mark.parametrize("verb", VERBS)
async def test_after_the_call_has_ended_every_verb_refuses(store: cc.ArtifactStore, verb: str) -> None:
    bench = Bench(lambda ctx: "done", store)
    await bench()
    with pytest.raises(cc.ArtifactsUnavailable, match="the call has ended"):
        await VERBS[verb](bench.contexts[0].artifacts)
    assert isinstance(cc.ArtifactsUnavailable("x"), cc.StoreError)
    assert (await store.list(SCOPE)).artifacts == ()


@pytest.mark.parametrize("how", ["raises", "times out", "is cancelled"])
async def test_the_call_has_ended_also_where_the_tool_did_not_come_to_its_end(how: str) -> None:
    kept: list[cc.ToolContext] = []
    began = anyio.Event()

    async def use(ctx: cc.ToolContext) -> Any:
        kept.append(ctx)
        began.set()
        if how == "raises":
            raise ValueError("broken")
        await anyio.sleep_forever()

    made = cc.tool(timeout=0.2 if how == "times out" else None)(use)
    session = cc.Boundary([made], store="memory:").session(SCOPE)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(session.call, "use")
        await began.wait()
        if how == "is cancelled":
            tasks.cancel_scope.cancel()
    with pytest.raises(cc.ArtifactsUnavailable, match="the call has ended"):
        await kept[0].artifacts.list()


async def test_a_stream_is_the_call_still_going_on(store: cc.ArtifactStore) -> None:
    kept: list[cc.ToolContext] = []

    async def use(ctx: cc.ToolContext) -> AsyncIterator[str]:
        kept.append(ctx)
        for number in range(200):
            await ctx.artifacts.put(b"%d" % number, **WORDS)
            yield "x" * 100

    boundary = cc.Boundary([use], store=store, placement=cc.Placement(1000))
    assert isinstance(await boundary.session(SCOPE).call("use"), cc.Placed)
    with pytest.raises(cc.ArtifactsUnavailable):
        await kept[0].artifacts.list()


FAULTS: list[tuple[Exception, str]] = [
    (cc.StoreUnavailable("503"), "store-failed"),
    (cc.InvalidArtifact("too much"), "invalid-input"),
    (cc.UnknownParent((NEVER,)), "unknown-parent"),
    (cc.IntegrityError(NEVER, "sha256:a", "sha256:b"), "digest-mismatch"),
]


@pytest.mark.parametrize(("error", "reason"), FAULTS, ids=[reason for _, reason in FAULTS])
@pytest.mark.parametrize("verb", VERBS)
async def test_what_a_store_raises_is_told_once_and_is_the_tool_s(verb: str, error: Exception, reason: str) -> None:
    bench = Bench(lambda ctx: VERBS[verb](ctx.artifacts), FaultyStore(cc.MemoryStore(), **{verb: fail(error)}))
    outcome = await bench()
    assert isinstance(outcome, cc.Failed)
    assert outcome.text == str(error)
    [event] = bench.seen(cc.ArtifactRefused)
    assert (event.op, event.reason) == (OPS.get(verb, verb), reason)
    assert event.detail == f"{type(error).__name__}: {error}"


async def test_damage_that_shows_while_reading_is_told_once_and_only_of_what_was_read(tmp_path: Path) -> None:
    store = cc.DirectoryStore(tmp_path)
    ref = (await store.put(SCOPE, b"payload " * 1000, **WORDS)).meta.ref
    [payload] = [path for path in tmp_path.rglob("*") if path.is_file() and b"payload " * 9 in path.read_bytes()]
    payload.write_bytes(payload.read_bytes().replace(b"payload", b"PAYLOAD", 1))

    async def body(ctx: cc.ToolContext) -> Any:
        async with ctx.artifacts.open(ref) as reader:
            assert reader is not None
            return [len(chunk) async for chunk in reader]

    async def raises_another(ctx: cc.ToolContext) -> Any:
        async with ctx.artifacts.open(ref):
            raise cc.IntegrityError(NEVER, "sha256:a", "sha256:b")

    bench = Bench(body, store)
    assert "is damaged" in (await bench()).text
    assert bench.refusals() == [("get", "digest-mismatch", ref)]
    bench = Bench(raises_another, store)
    assert (await bench()).error
    assert bench.refusals() == []


async def test_what_a_put_pushes_out_is_told() -> None:
    async def body(ctx: cc.ToolContext) -> Any:
        for number in range(3):
            await ctx.artifacts.put(b"%d" % number, **WORDS)

    bench = Bench(body, cc.MemoryStore(max_count=1))
    await bench()
    assert [event.reason for event in bench.seen(cc.ArtifactExpired)] == ["max-count"] * 2
    kinds = [type(event).__name__ for event in bench.events if "Artifact" in type(event).__name__]
    assert kinds == ["ArtifactMinted", *["ArtifactExpired", "ArtifactMinted"] * 2]


async def test_an_awkward_call_id_is_made_fit_for_an_origin(store: cc.ArtifactStore) -> None:
    async def use(ctx: cc.ToolContext) -> Any:
        return (await ctx.artifacts.put(b"x", **WORDS)).meta.ref

    outcome = await cc.Boundary([use], store=store).session(SCOPE).call("use", call_id="\ud800" + "x" * 1000)
    meta = await store.head(SCOPE, outcome.text)
    assert meta is not None
    assert meta.origin == {"tool": "use", "call_id": ("\\ud800" + "x" * 1000)[:128]}


# --- tools of one call each, and the plain path ---


async def test_each_call_has_a_context_of_its_own(store: cc.ArtifactStore) -> None:
    async def use(number: int, ctx: cc.ToolContext) -> Any:
        meta = (await ctx.artifacts.put(b"%d" % number, **WORDS)).meta
        return [ctx.call.call_id, (meta.origin or {})["call_id"]]

    session = cc.Boundary([use], store=store).session(SCOPE)
    outcomes = await session.call_batch([cc.ToolCall("use", {"number": n}, str(n)) for n in range(10)])
    assert [outcome.text for outcome in outcomes] == [f'["{n}","{n}"]' for n in range(10)]


async def test_a_wrapped_tool_has_a_context_in_the_session_s_scope(store: cc.ArtifactStore) -> None:
    async def use(ctx: cc.ToolContext) -> Any:
        return (await ctx.artifacts.put(b"x", **WORDS)).meta.ref

    guarded: Any = cc.Boundary([], store=store).session(SCOPE).wrap(use)
    ref = (await guarded()).text
    assert await store.head(SCOPE, ref) is not None
    assert await store.head(OTHER, ref) is None


async def test_an_approved_call_has_a_context(store: cc.ArtifactStore) -> None:
    bench = Bench(
        lambda ctx: ctx.artifacts.put(b"x", **WORDS),
        store,
        rules=[cc.before_tool(name="asks")(lambda call: cc.ask("may it?"))],
    )
    pending = await bench()
    assert isinstance(pending, cc.Pending)
    await bench.session.resume(pending.call, approved=True, by="dana")
    [meta] = (await store.list(SCOPE)).artifacts
    assert meta.origin == {"tool": "use", "call_id": "c1"}


async def test_the_function_itself_can_be_called_with_any_context() -> None:
    @cc.tool
    async def use(ctx: cc.ToolContext) -> Any:
        return ctx.call.name

    context: Any = type("Fake", (), {"call": cc.ToolCall("by hand")})()
    assert await use(context) == "by hand"


async def test_a_tool_that_takes_nothing_but_what_the_model_speaks_pays_for_none_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def plain(a: int) -> Any:
        return a

    made = cc.tool(plain)
    assert made.is_plain
    assert made.takes_in_order

    def never(*_: Any) -> None:
        raise AssertionError("a plain tool needs none")

    for name in ("Artifacts", "ToolContext", "AsyncExitStack"):
        monkeypatch.setattr(execution, name, never)
    outcome = await cc.Boundary([made], store="memory:").session(SCOPE).call("plain", {"a": 1})
    assert outcome.text == "1"


async def test_a_reader_that_a_tool_left_open_ends_with_its_call() -> None:
    kept: list[cc.ArtifactReader] = []
    opened: list[Any] = []

    async def keeps(ref: str, ctx: cc.ToolContext) -> str:
        opened.append(ctx.artifacts.open(ref))
        reader = await opened[0].__aenter__()
        assert reader is not None
        kept.append(reader)
        return "kept"

    store = cc.MemoryStore()
    scope = cc.Scope(conversation="c-42")
    ref = (await store.put(scope, b"payload" * 100_000, kind="test/item", media_type="text/plain")).meta.ref
    session = cc.Boundary([keeps], store=store).session(scope)
    assert (await session.call("keeps", {"ref": ref})).text == "kept"
    with pytest.raises(cc.ArtifactsUnavailable):
        await kept[0].read()
    await opened[0].__aexit__(None, None, None)
