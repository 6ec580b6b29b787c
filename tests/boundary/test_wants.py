"""Arguments that are refs: what the tool is handed in their place, and what is said where that cannot be."""

from __future__ import annotations

import dataclasses
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Optional

import anyio
import anyio.from_thread
import anyio.to_thread
import msgspec
import pytest
from anyio.lowlevel import checkpoint
from hypothesis import given
from hypothesis import strategies as st

import coatcheck as cc
from coatcheck.artifacts.ref import clean_ref, is_ref
from coatcheck.boundary import execution, resolving
from coatcheck.boundary.wants import check_wants
from coatcheck.testing import FaultyStore, ManualClock, fail, hang
from coatcheck.testing.faulty import Fault

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def own_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left behind is seen, whatever other programs do meanwhile."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


SCOPE = cc.Scope(tenant="acme", principal="dana", conversation="c-42")
OTHER = cc.Scope(tenant="globex", principal="dana", conversation="c-42")
KIND = "dataset/rows"
ROWS = [{"id": number, "city": f"City {number}"} for number in range(50)]
JSON = msgspec.json.encode(ROWS)
NEVER = "art_" + "0" * 32


class Row(msgspec.Struct):
    id: int
    city: str


@dataclasses.dataclass
class Line:
    id: int
    city: str


@pytest.fixture(params=["memory", "directory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> cc.ArtifactStore:
    return cc.MemoryStore() if request.param == "memory" else cc.DirectoryStore(tmp_path / "store")


async def put(store: cc.ArtifactStore, data: bytes = JSON, scope: cc.Scope = SCOPE, **words: Any) -> str:
    said = {"kind": KIND, "media_type": "application/json", **words}
    return (await store.put(scope, data, **said)).meta.ref


class Bench:
    """A session around one tool that wants its ``rows``, with the events."""

    def __init__(self, function: Callable[..., Any], store: cc.ArtifactStore | str | None, **settings: Any) -> None:
        declared = settings.pop("declared", {"wants": {"rows": KIND}})
        self.events: list[Any] = []
        self.tool: cc.Tool[..., Any] = cc.tool(name="use", **declared)(function)
        self.boundary = cc.Boundary([self.tool], store=store, on_event=self.events.append, **settings)
        self.session = self.boundary.session(SCOPE)

    async def __call__(self, ref: Any = None, **arguments: Any) -> cc.AnyOutcome:
        named = arguments if ref is None else {"rows": ref, **arguments}
        return await self.session.call("use", named, call_id="c1")

    async def value(self, ref: Any = None, **arguments: Any) -> Any:
        outcome = await self(ref, **arguments)
        assert isinstance(outcome, cc.Inline), outcome.text
        return outcome.value

    async def refused(self, ref: Any = None, **arguments: Any) -> str:
        outcome = await self(ref, **arguments)
        assert isinstance(outcome, cc.Failed)
        assert not outcome.executed
        return outcome.text

    def seen(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def reasons(self) -> list[str]:
        return [event.reason for event in self.seen(cc.ArtifactRefused) if event.op == "dispatch"]


# --- what the tool is handed ---


async def as_any(rows: Any) -> Any:
    return [type(rows).__name__, rows == ROWS]


async def as_list(rows: list[dict[str, Any]]) -> Any:
    return ["list", rows == ROWS]


async def as_structs(rows: list[Row]) -> Any:
    return ["list", [msgspec.to_builtins(row) for row in rows] == ROWS and isinstance(rows[0], Row)]


async def as_dataclasses(rows: tuple[Line, ...]) -> Any:
    return ["list", [dataclasses.asdict(row) for row in rows] == ROWS and isinstance(rows[0], Line)]


async def as_bytes(rows: bytes) -> Any:
    return ["list", rows == JSON]


async def as_text(rows: str) -> Any:
    return ["list", rows == JSON.decode()]


async def as_optional(rows: Optional[bytes] = None) -> Any:  # noqa: UP045 - the old spelling counts, too
    return ["list", rows == JSON]


async def as_annotated(rows: Annotated[str, "the rows"] | None = None) -> Any:
    return ["list", rows == JSON.decode()]


async def as_path(rows: Path) -> Any:
    return ["list", await anyio.Path(rows).read_bytes() == JSON]


async def as_reader(rows: cc.ArtifactReader) -> Any:
    assert rows.meta.kind == KIND
    return ["list", b"".join([chunk async for chunk in rows]) == JSON]


def in_a_thread(rows: list[dict[str, Any]]) -> Any:
    return ["list", rows == ROWS]


def path_in_a_thread(rows: Path) -> Any:
    return ["list", rows.read_bytes() == JSON]


FORMS = [
    *(as_any, as_list, as_structs, as_dataclasses, as_bytes, as_text, as_optional, as_annotated, as_path, as_reader),
    *(in_a_thread, path_in_a_thread),
]


@pytest.mark.parametrize("function", FORMS, ids=lambda each: each.__name__)
async def test_a_tool_is_handed_what_its_annotation_asks_for(
    store: cc.ArtifactStore, function: Callable[..., Any]
) -> None:
    bench = Bench(function, store)
    ref = await put(store)
    assert await bench.value(ref) == ["list", True]
    [resolved] = bench.seen(cc.ArtifactResolved)
    assert resolved == cc.ArtifactResolved(
        tool="use", call_id="c1", turn=1, ref=ref, via="get", kind=KIND, bytes=len(JSON)
    )
    assert bench.seen(cc.ArtifactRefused) == []


async def test_a_tool_that_declares_no_type_is_handed_the_decoded_value() -> None:
    store = cc.MemoryStore()
    assert await Bench(lambda rows: rows, store).value(await put(store)) == ROWS


@pytest.mark.parametrize(
    ("data", "media_type", "value"),
    [
        (b'{"a":1}', "application/json", {"a": 1}),
        (b'{"a":1}\n{"a":2}\n', "application/jsonl", [{"a": 1}, {"a": 2}]),
        ("grüße".encode(), "text/plain", "grüße"),
        (b"a,b\n1,2\n", "text/csv", "a,b\n1,2\n"),
        (b"null", "application/json", None),
        (b"", "text/plain", ""),
    ],
)
async def test_the_value_is_that_of_its_media_type(data: bytes, media_type: str, value: Any) -> None:
    store = cc.MemoryStore()

    async def use(rows: Any) -> Any:
        return {"value": rows}

    assert await Bench(use, store).value(await put(store, data, media_type=media_type)) == {"value": value}


async def test_binary_is_handed_over_as_bytes() -> None:
    store = cc.MemoryStore()

    async def use(rows: Any) -> Any:
        return [type(rows).__name__, len(rows)]

    assert await Bench(use, store).value(await put(store, b"\x89PNG\xff", media_type="image/png")) == ["bytes", 5]


async def test_a_payload_that_is_decoded_in_a_thread_is_the_same() -> None:
    store, rows = cc.MemoryStore(), [{"id": number} for number in range(40_000)]
    assert await Bench(lambda rows: len(rows), store).value(await put(store, msgspec.json.encode(rows))) == 40_000


async def test_what_one_tool_placed_another_one_of_another_process_is_handed(tmp_path: Path) -> None:
    """Cases A2 and E1: the model only ever sees the ticket."""
    url = f"file://{tmp_path}/store"

    async def export() -> Any:
        return ROWS * 100

    made = cc.tool(name="export", kind=KIND)(export)
    async with cc.Boundary([made], store=url, placement=cc.Placement(1000)) as boundary:
        placed = await boundary.session(SCOPE).call("export")
    assert isinstance(placed, cc.Placed)
    assert len(placed.text) < 1000
    script = f"""
import anyio, coatcheck as cc
async def use(rows: list): return len(rows)
async def main():
    async with cc.Boundary([cc.tool(wants={{"rows": {KIND!r}}})(use)], store={url!r}) as boundary:
        scope = cc.Scope(tenant="acme", principal="dana", conversation="c-42")
        print((await boundary.session(scope).call("use", {{"rows": {placed.ticket.ref!r}}})).text)
anyio.run(main)
"""
    done = await anyio.run_process([sys.executable, "-c", script], stderr=subprocess.STDOUT)
    assert done.stdout.split() == [b"5000"]


# --- a private file ---


class Seen:
    """Notes the private files that a tool was handed."""

    def __init__(self) -> None:
        self.paths: list[Path] = []

    def note(self, path: Path) -> None:
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        assert stat.S_IMODE(os.stat(path.parent).st_mode) == 0o700
        assert path.read_bytes() == JSON
        self.paths.append(path)

    def assert_gone(self, times: int = 1) -> None:
        assert len(self.paths) == times
        assert not any(path.exists() or path.parent.exists() for path in self.paths)


@pytest.mark.parametrize("how", ["returns", "raises", "times out", "deletes it", "refuses a second argument"])
@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
async def test_a_private_file_is_the_tool_s_alone_and_gone_after_the_call(how: str, sync: bool) -> None:
    store, seen = cc.MemoryStore(), Seen()
    hung = anyio.Event()

    def work(rows: Path) -> Any:
        seen.note(rows)
        if how == "raises":
            raise ValueError("broken")
        if how == "deletes it":
            rows.unlink()
            rows.parent.rmdir()
        return "done"

    async def use(rows: Path, more: list[Row] | None = None) -> Any:
        done = await anyio.to_thread.run_sync(work, rows)
        if how == "times out":
            await anyio.sleep_forever()
        return done

    def use_sync(rows: Path, more: list[Row] | None = None) -> Any:
        done = work(rows)
        if how == "times out":
            anyio.from_thread.run(hung.wait)
        return done

    wants = {"rows": KIND, "more": KIND}
    timeout = 0.3 if how == "times out" else None
    bench = Bench(use_sync if sync else use, store, declared={"wants": wants, "timeout": timeout})
    ref = await put(store)
    if how == "refuses a second argument":
        before = set(Path(tempfile.gettempdir()).glob("coatcheck-*"))
        assert "more does not hold what use takes" in await bench.refused(ref, more=await put(store, b"[1]"))
        assert set(Path(tempfile.gettempdir()).glob("coatcheck-*")) <= before
        return
    outcome = await bench(ref)
    hung.set()
    assert outcome.error == (how in ("raises", "times out"))
    seen.assert_gone()


async def test_a_private_file_is_gone_after_a_cancelled_call() -> None:
    store, seen, began = cc.MemoryStore(), Seen(), anyio.Event()

    async def use(rows: Path) -> Any:
        await anyio.to_thread.run_sync(seen.note, rows)
        began.set()
        await anyio.sleep_forever()

    bench = Bench(use, store)
    ref = await put(store)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(bench, ref)
        await began.wait()
        tasks.cancel_scope.cancel()
    seen.assert_gone()


@pytest.mark.parametrize("how", ["short", "placed", "refused", "cut", "raises", "closed"])
@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
async def test_a_tool_that_streams_keeps_what_it_was_handed_until_its_stream_has_ended(how: str, sync: bool) -> None:
    store, seen = cc.MemoryStore(), Seen()

    def lines(rows: Path) -> Iterator[dict[str, Any]]:
        for number in range(3 if how == "short" else 5000):
            if number == 2:
                seen.note(rows)
            if number == 4000:
                assert rows.exists()
                if how == "raises":
                    raise ValueError("broken")
            yield {"number": number}

    async def lines_async(rows: Path) -> AsyncIterator[dict[str, Any]]:
        for number in range(3 if how == "short" else 5000):
            if number == 2:
                await anyio.to_thread.run_sync(seen.note, rows)
            if number == 4000:
                assert await anyio.Path(rows).exists()
                if how == "raises":
                    raise ValueError("broken")
            yield {"number": number}

    class Throws(cc.Rule):
        def after_tool(self, call: cc.ToolCall, result: cc.Result) -> Any:
            return cc.deny("hidden")

    dials: dict[str, dict[str, Any]] = {
        "placed": {"placement": cc.Placement(1000)},
        "cut": {"truncation": cc.Truncation(2000)},
        "raises": {"placement": cc.Placement(1000)},
        "closed": {"rules": [Throws()], "truncation": cc.Truncation(2000)},
    }
    settings = dials.get(how, {})
    ceiling = cc.Ceiling(1000) if how == "refused" else None
    bench = Bench(
        lines if sync else lines_async, store, declared={"wants": {"rows": KIND}, "ceiling": ceiling}, **settings
    )
    ref = await put(store)
    outcome = await bench(ref)
    wanted = {"short": cc.Inline, "placed": cc.Placed, "refused": cc.TooLarge, "cut": cc.Truncated, "raises": cc.Failed}
    assert type(outcome) is wanted.get(how, cc.Denied), outcome.text
    seen.assert_gone()
    if isinstance(outcome, cc.Placed):
        meta = await store.head(SCOPE, outcome.ticket.ref)
        assert meta is not None
        assert meta.parents == (ref,)


async def test_a_generator_reads_its_reader_while_it_streams(store: cc.ArtifactStore) -> None:
    async def use(rows: cc.ArtifactReader) -> AsyncIterator[bytes]:
        async for chunk in rows:
            yield chunk

    bench = Bench(use, store, placement=cc.Placement(1000))
    large = b"x" * 6_000_000
    outcome = await bench(await put(store, large, media_type="text/plain"))
    assert isinstance(outcome, cc.Placed)
    copied = await store.get(SCOPE, outcome.ticket.ref)
    assert copied is not None
    assert copied.data == large


# --- what is not given ---


async def test_what_is_not_given_is_left_to_the_function() -> None:
    store = cc.MemoryStore()

    async def use(rows: list[Any] | None = None, more: Any = (), text: str = "none") -> Any:
        return [rows, list(more), text]

    bench = Bench(use, store, declared={"wants": {"rows": KIND, "more": KIND, "text": KIND}})
    assert await bench.value() == [None, [], "none"]
    assert (await bench(None, rows=None)).error is False, "null is as good as nothing where it is the default"
    assert bench.seen(cc.ArtifactRefused) == []
    assert await bench.value(text=await put(store)) == [None, [], JSON.decode()]


@pytest.mark.parametrize("spoken", [["x"], {"rows": []}, 5, True, None], ids=repr)
async def test_what_is_no_text_is_refused_with_what_it_takes_and_what_there_is(spoken: Any) -> None:
    store = cc.MemoryStore()

    async def use(rows: Any) -> Any: ...

    bench, ref = Bench(use, store), await put(store)
    text = await bench.refused(None, rows=spoken)
    assert f"rows takes the ref of a {KIND}" in text
    assert ref in text
    assert bench.reasons() == ["invalid-input"]


async def test_a_required_one_that_is_not_given_is_refused_likewise() -> None:
    async def use(rows: Any, limit: int = 3) -> Any: ...

    for store in (cc.MemoryStore(), None):
        bench = Bench(use, store)
        assert f"rows takes the ref of a {KIND}" in await bench.refused()
        assert bench.reasons() == ["invalid-input"]
        bench.events.clear()
        ref = NEVER if store is None else await put(store)
        assert "takes the ref" not in await bench.refused(ref, limit="three"), "that argument is none of its business"
        assert bench.reasons() == []


@pytest.mark.parametrize("blank", ["", " ", "\n\t "], ids=repr)
async def test_a_blank_ref_is_invalid(blank: str) -> None:
    bench = Bench(as_any, cc.MemoryStore())
    assert "rows is blank" in await bench.refused(None, rows=blank)
    assert bench.reasons() == ["invalid-input"]


# --- refusals ---

HOSTILE = ["a/b", "../../etc/passwd", "%2e%2e", "\0", NEVER.upper() + "X", "x" * 10_000, "\ud800", "art_", '"', "🎈"]


async def test_missing_foreign_expired_and_malformed_are_one_answer_byte_for_byte(tmp_path: Path) -> None:
    """Case E2."""
    for name in ("memory", "directory"):
        clock = ManualClock()
        store: cc.ArtifactStore = (
            cc.MemoryStore(clock=clock) if name == "memory" else cc.DirectoryStore(tmp_path, clock=clock)
        )
        expired = await put(store, b"[0]", expires_at=clock() + timedelta(seconds=1))
        clock.advance(2)
        foreign = await put(store, b"[1]", OTHER)
        live = await put(store)
        bench = Bench(as_any, store)
        texts = {await bench.refused(ref) for ref in (NEVER, foreign, expired, *HOSTILE)}
        assert len(texts) == 1
        assert live in texts.pop()
        assert set(bench.reasons()) == {"missing-or-expired"}
        assert len(bench.reasons()) == 3 + len(HOSTILE)
        assert bench.seen(cc.ArtifactResolved) == []


async def test_a_kind_counts_only_where_it_is_exactly_the_same(store: cc.ArtifactStore) -> None:
    bench = Bench(as_any, store)
    for kind in (KIND.upper(), KIND + "s", KIND[:-1], f" {KIND}".strip() + "/x", "dataset"):
        ref = await put(store, kind=kind)
        text = await bench.refused(ref)
        assert f"rows is of the kind {kind}, and has to be of the kind {KIND}" in text
    assert set(bench.reasons()) == {"kind-mismatch"}


async def test_all_arguments_are_judged_before_any_is_answered() -> None:
    store = cc.MemoryStore()

    async def use(first: Any, second: Any, third: Any, from_: Any = ()) -> Any: ...

    wants = dict.fromkeys(["first", "second", "third", "from_"], KIND)
    bench = Bench(use, store, declared={"wants": wants})
    good, chart = await put(store), await put(store, kind="chart")
    text = await bench.refused(None, first=NEVER, second=good, third=chart, **{"from": "nothing"})
    refused = [(event.op, event.reason, event.ref, event.tool) for event in bench.seen(cc.ArtifactRefused)]
    assert refused == [
        ("dispatch", "missing-or-expired", NEVER, "use"),
        ("dispatch", "kind-mismatch", chart, "use"),
        ("dispatch", "missing-or-expired", "nothing", "use"),
    ]
    assert all(f"{name} " in text for name in ("first", "third", "from"))
    assert "second" not in text
    assert bench.seen(cc.ArtifactResolved) == []


async def test_the_live_refs_of_this_scope_are_listed_at_most_ten_the_newest_first() -> None:
    clock = ManualClock()
    store = cc.MemoryStore(clock=clock)
    theirs = await put(store, b"[99]", OTHER)
    refs = []
    for number in range(15):
        clock.advance(1)
        refs.append(await put(store, b"[%d]" % number))
        clock.advance(1)
        await put(store, b"[%d]" % number, kind="chart")
    text = await Bench(as_any, store).refused(NEVER)
    listed = [word for word in text.replace(":", " ").split() if is_ref(word)]
    assert listed == refs[::-1][:10]
    assert theirs not in text
    assert len(text) < 2000


async def test_no_more_than_two_hundred_are_looked_at_for_what_to_list() -> None:
    class Counts(cc.MemoryStore):
        seen = 0

        async def list(self, scope: cc.Scope, *, cursor: str | None = None, limit: int = 50) -> cc.Page:
            page = await super().list(scope, cursor=cursor, limit=limit)
            self.seen += len(page.artifacts)
            return page

    clock = ManualClock()
    store = Counts(clock=clock, max_count=1000)
    old = await put(store)
    for number in range(300):
        clock.advance(1)
        await put(store, b"[%d]" % number, kind="chart")
    text = await Bench(as_any, store).refused(NEVER)
    assert old not in text
    assert f"There is no artifact of the kind {KIND}" in text
    assert store.seen == 200


async def test_without_a_store_a_ref_is_refused_and_taught() -> None:
    bench = Bench(as_any, None)
    text = await bench.refused(NEVER)
    assert f"rows takes the ref of a {KIND}, and this host keeps no artifacts" in text
    assert [(event.op, event.reason, event.ref) for event in bench.seen(cc.ArtifactRefused)] == [
        ("dispatch", "no-store", NEVER)
    ]


@pytest.mark.parametrize(
    ("function", "data"),
    [
        (as_list, b'{"a":1}'),
        (as_structs, b'[{"id":"one","city":"x"}]'),
        (as_dataclasses, b"[[1]]"),
        (as_any, b"{not json"),
        (as_text, b"\xff\xfe"),
        (as_any, b"[" * 100_000),
        (as_any, b""),
    ],
)
async def test_a_payload_that_is_not_what_the_tool_takes_teaches(function: Callable[..., Any], data: bytes) -> None:
    store = cc.MemoryStore()
    bench = Bench(function, store)
    text = await bench.refused(await put(store, data))
    assert "rows does not hold what use takes: " in text
    assert len(text) < 1000
    assert bench.reasons() == ["invalid-input"]


# --- a ref as a model may write it ---


@pytest.mark.parametrize(
    "written", ["{}", '"{}"', "'{}'", "`{}`", "<{}>", "({}).", " {}\n", "ref: {}", '{{"ref": "{}"}}', "{},", "ref={}"]
)
async def test_a_ref_resolves_whatever_stands_around_it_and_in_whichever_case(written: str) -> None:
    store = cc.MemoryStore()
    bench, ref = Bench(as_list, store), await put(store)
    for spelled in (ref, ref.upper()):
        assert await bench.value(written.format(spelled)) == ["list", True]


@given(st.text())
def test_whatever_is_written_is_cleaned_once_and_for_all(text: str) -> None:
    cleaned = clean_ref(text)
    assert clean_ref(cleaned) == cleaned
    assert len(cleaned) <= 36


@given(
    st.text(st.characters(), max_size=40),
    st.text("0123456789abcdefghjkmnpqrstvwxyz", min_size=32, max_size=32),
    st.text(st.characters(), max_size=40),
    st.booleans(),
)
def test_a_ref_is_found_in_what_was_written_around_it(before: str, tail: str, after: str, upper: bool) -> None:
    ref = "art_" + tail
    if "art_" not in (before + after).lower():
        assert clean_ref(f"{before} {ref.upper() if upper else ref}\n{after}") == ref


@given(st.integers(0, 80), st.text("0123456789abcdefghjkmnpqrstvwxyz", min_size=33, max_size=40))
def test_what_is_longer_than_a_ref_is_none_however_it_is_cut(spaces: int, tail: str) -> None:
    cleaned = clean_ref("x" + " " * spaces + "art_" + tail)
    assert not is_ref(cleaned)
    assert clean_ref(cleaned) == cleaned


# --- a store that is damaged, fails or hangs ---


@pytest.mark.parametrize("function", [as_any, as_bytes, as_path])
async def test_a_damaged_payload_is_not_handed_out(tmp_path: Path, function: Callable[..., Any]) -> None:
    store = cc.DirectoryStore(tmp_path)
    ref = await put(store)
    [payload] = [path for path in tmp_path.rglob("*") if path.is_file() and JSON in path.read_bytes()]
    payload.write_bytes(payload.read_bytes().replace(b"City 1", b"Citi 1"))
    bench = Bench(function, store)
    assert "rows is damaged, and was not handed out" in await bench.refused(ref)
    assert bench.reasons() == ["digest-mismatch"]


FAULTS: list[tuple[Fault, str]] = [
    (fail(cc.StoreUnavailable("503")), "store-failed"),
    (fail(RuntimeError("a secret")), "store-failed"),
    (fail(OSError(28, "no space")), "store-failed"),
    (fail(cc.IntegrityError(NEVER, "sha256:a", "sha256:b")), "digest-mismatch"),
    (hang(), "store-failed"),
]


@pytest.mark.parametrize(("fault", "reason"), FAULTS, ids=[f"{fault.error!r:.20}" for fault, _ in FAULTS])
@pytest.mark.parametrize("verb", ["head", "get", "open", "open after a chunk", "list"])
async def test_a_store_that_fails_or_hangs_is_an_outcome(
    monkeypatch: pytest.MonkeyPatch, fault: Fault, reason: str, verb: str
) -> None:
    monkeypatch.setattr(resolving, "_ANSWERS_WITHIN", 0.2)
    function: Callable[..., Any] = as_path if "open" in verb else as_any
    if verb == "open after a chunk":
        fault = msgspec.structs.replace(fault, after=0)
    store = FaultyStore(cc.MemoryStore(), **{verb.split()[0]: fault})
    bench, ref = Bench(function, store), await put(store)
    before = set(Path(tempfile.gettempdir()).glob("coatcheck-*"))
    text = await bench.refused(NEVER if verb == "list" else ref)
    assert set(Path(tempfile.gettempdir()).glob("coatcheck-*")) <= before
    assert "a secret" not in text
    if verb == "list":
        assert "What is here cannot be listed now." in text
        assert bench.reasons() == ["missing-or-expired"]
    else:
        assert bench.reasons() == [reason]
        assert ("is damaged" if reason == "digest-mismatch" else "could not be read") in text


async def test_a_cancelled_call_is_cancelled_also_while_the_store_is_asked() -> None:
    store = FaultyStore(cc.MemoryStore(), head=hang())
    bench = Bench(as_any, store)
    with anyio.move_on_after(0.2) as scope:
        await bench(NEVER)
    assert scope.cancelled_caught
    assert bench.reasons() == []


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("how", ["fails", "hangs"])
async def test_a_reader_that_does_not_close_in_good_order_costs_no_outcome(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, how: str, streams: bool
) -> None:
    class Closes(cc.MemoryStore):
        @asynccontextmanager
        async def open(
            self, scope: cc.Scope, ref: str, start: int = 0, end: int | None = None
        ) -> AsyncIterator[cc.ArtifactReader | None]:
            async with super().open(scope, ref, start, end) as reader:
                yield reader
            if how == "hangs":
                await anyio.sleep_forever()
            raise OSError("the connection is gone")

    async def use(rows: cc.ArtifactReader) -> Any:
        read = b"".join([chunk async for chunk in rows]).decode()
        return iter([read]) if streams else read

    monkeypatch.setattr(execution, "_TAKEN_AWAY_WITHIN", 0.2)
    store = Closes()
    assert (await Bench(use, store)(await put(store))).text == JSON.decode()
    assert ("could not be taken away" in caplog.text) == (how == "fails")


@pytest.mark.parametrize(("fault", "reason"), FAULTS[:-1], ids=[f"{fault.error!r:.20}" for fault, _ in FAULTS[:-1]])
async def test_a_reader_that_cannot_be_opened_is_an_outcome(fault: Fault, reason: str) -> None:
    store = FaultyStore(cc.MemoryStore(), open=fault)
    bench = Bench(as_reader, store)
    await bench.refused(await put(store))
    assert bench.reasons() == [reason]


async def test_a_reader_that_breaks_while_it_is_read_is_the_tool_s_failure() -> None:
    store = FaultyStore(cc.MemoryStore(), open=fail(cc.StoreUnavailable("503"), after=0))
    outcome = await Bench(as_reader, store)(await put(store))
    assert (outcome.error, outcome.executed, outcome.text) == (True, True, "503")


# --- parents ---


async def test_what_placement_stores_of_a_call_has_what_it_wanted_for_parents(store: cc.ArtifactStore) -> None:
    async def use(rows: Any, more: Any) -> Any:
        return {"text": "y" * 3000, "image": b"\x89PNG" + b"\0" * 5000, "again": rows is not more}

    bench = Bench(use, store, declared={"wants": {"rows": KIND, "more": KIND}}, placement=cc.Placement(1000))
    first, second = await put(store), await put(store, b"[]")
    outcome = await bench(first, more=second)
    assert isinstance(outcome, cc.Placed)
    whole, leaf = outcome.tickets
    for ticket, parents in ((whole, (leaf.ref, first, second)), (leaf, (first, second))):
        meta = await store.head(SCOPE, ticket.ref)
        assert meta is not None
        assert meta.parents == parents
    assert [event.parents for event in bench.seen(cc.ArtifactMinted)] == [(first, second), (leaf.ref, first, second)]


async def test_one_ref_in_two_arguments_is_one_parent(store: cc.ArtifactStore) -> None:
    async def use(rows: Any, more: Any) -> AsyncIterator[str]:
        yield "y" * 3000

    bench = Bench(use, store, declared={"wants": {"rows": KIND, "more": KIND}}, placement=cc.Placement(1000))
    ref = await put(store)
    assert isinstance(await bench(ref, more=ref), cc.Placed)
    assert [event.parents for event in bench.seen(cc.ArtifactMinted)] == [(ref,)]


@pytest.mark.parametrize("streams", [False, True])
async def test_a_result_is_placed_also_where_what_the_call_wanted_has_gone_meanwhile(
    store: cc.ArtifactStore, streams: bool
) -> None:
    async def use(rows: Any, more: Any, ctx: cc.ToolContext) -> Any:
        await ctx.artifacts.delete(ctx.wanted["rows"].ref)
        text = "y" * 3000
        return (part for part in [text]) if streams else text

    bench = Bench(use, store, declared={"wants": {"rows": KIND, "more": KIND}}, placement=cc.Placement(1000))
    first, second = await put(store), await put(store, b"[]")
    outcome = await bench(first, more=second)
    assert isinstance(outcome, cc.Placed)
    meta = await store.head(SCOPE, outcome.ticket.ref)
    assert meta is not None
    assert meta.parents == (second,)


async def test_a_call_that_was_refused_has_no_parents_to_give() -> None:
    """A host's middleware tries again with another ref: only what was handed over counts."""
    store = cc.MemoryStore()

    async def retry(call: cc.ToolCall, call_next: cc.CallNext) -> cc.Outcome:
        first = await call_next(call)
        return await call_next(msgspec.structs.replace(call, arguments={"rows": good})) if first.error else first

    async def use(rows: Any) -> Any:
        return "y" * 3000

    bench = Bench(use, store, placement=cc.Placement(1000), middleware=[cc.inside("governance", retry)])
    good = await put(store)
    outcome = await bench(NEVER)
    assert isinstance(outcome, cc.Placed)
    meta = await store.head(SCOPE, outcome.ticket.ref)
    assert meta is not None
    assert meta.parents == (good,)


# --- rules, the ledger, approvals, batches, wrapped callables ---


class Watches(cc.Rule):
    """Notes what it is shown, and asks where it is to."""

    def __init__(self, *, asks: bool = False) -> None:
        self.shown: list[dict[str, Any]] = []
        self._asks = asks

    def before_tool(self, call: cc.ToolCall) -> Any:
        self.shown.append(call.arguments)
        return cc.ask("may it?") if self._asks else cc.allow()

    def after_tool(self, call: cc.ToolCall, result: cc.Result) -> Any:
        self.shown.append(call.arguments)
        return cc.allow()


async def test_rules_and_the_ledger_see_the_ref_and_never_the_payload() -> None:
    store, rule = cc.MemoryStore(), Watches()
    ref = await put(store)

    class Puts(cc.Rule):
        def before_tool(self, call: cc.ToolCall) -> Any:
            return cc.allow({"rows": ref}, "that was meant")

    bench = Bench(as_list, store, rules=[Puts(), rule], ledger_values=True)
    assert await bench.value(NEVER) == ["list", True], "a rule may put another ref in its place"
    assert rule.shown == [{"rows": ref}] * 2
    changed = [row for row in bench.session.decisions if row.changed]
    assert [(row.before, row.after) for row in changed] == [({"rows": NEVER}, {"rows": ref})]
    assert "City" not in repr(bench.session.decisions)
    assert "City" not in repr(bench.events)


@pytest.mark.parametrize("gone", [False, True])
async def test_an_approval_is_of_the_ref_which_is_redeemed_when_the_call_goes_on(
    store: cc.ArtifactStore, gone: bool
) -> None:
    settings: dict[str, Any] = {"rules": [Watches(asks=True)], "secret": "a secret of both replicas"}
    bench, elsewhere = Bench(as_list, store, **settings), Bench(as_list, store, **settings)
    ref = await put(store)
    pending = await bench(ref)
    assert isinstance(pending, cc.Pending)
    assert pending.call.arguments == {"rows": ref}
    assert b"City" not in pending.call.to_bytes()
    assert bench.seen(cc.ArtifactResolved) == []
    if gone:
        await store.delete(SCOPE, ref)
    outcome = await elsewhere.session.resume(pending.call.to_bytes(), approved=True, by="dana")
    if gone:
        assert isinstance(outcome, cc.Failed)
        assert elsewhere.reasons() == ["missing-or-expired"]
    else:
        assert isinstance(outcome, cc.Inline)
        assert outcome.value == ["list", True]


async def test_an_approval_of_one_ref_is_none_of_another(store: cc.ArtifactStore) -> None:
    bench = Bench(as_any, store, rules=[Watches(asks=True)], secret="a secret of both replicas")
    ref, other = await put(store), await put(store, b"[1]")
    pending = await bench(ref)
    assert isinstance(pending, cc.Pending)
    forged = pending.call.to_bytes().replace(ref.encode(), other.encode())
    outcome = await bench.session.resume(forged, approved=True, by="dana")
    assert isinstance(outcome, cc.Denied)
    assert not outcome.executed


async def test_the_calls_of_a_batch_are_each_handed_their_own(store: cc.ArtifactStore) -> None:
    async def use(rows: list[int], ctx: cc.ToolContext) -> Any:
        await checkpoint()
        return [*rows, ctx.wanted["rows"].ref]

    bench = Bench(use, store, placement=cc.Placement(1000, max_batch_chars=5000))
    refs = [await put(store, b"[%d]" % number) for number in range(10)]
    calls = [cc.ToolCall("use", {"rows": ref}, str(number)) for number, ref in enumerate([*refs, NEVER])]
    *outcomes, missed = await bench.session.call_batch(calls)
    assert [outcome.text for outcome in outcomes] == [f'[{number},"{ref}"]' for number, ref in enumerate(refs)]
    assert isinstance(missed, cc.Failed)
    assert [(event.call_id, event.reason) for event in bench.seen(cc.ArtifactRefused)] == [("10", "missing-or-expired")]


async def test_a_wrapped_tool_is_handed_its_own(store: cc.ArtifactStore) -> None:
    session = cc.Boundary([], store=store).session(SCOPE)
    guarded: Any = session.wrap(cc.tool(wants={"rows": KIND})(as_structs))
    outcome = await guarded(rows=await put(store))
    assert outcome.value == ["list", True]
    assert (await guarded(rows=NEVER)).error


async def test_a_ref_of_another_scope_is_handed_to_nobody(store: cc.ArtifactStore) -> None:
    boundary = cc.Boundary([cc.tool(name="use", wants={"rows": KIND})(as_list)], store=store)
    ref = await put(store)
    assert not (await boundary.session(SCOPE).call("use", {"rows": ref})).error
    for other in (OTHER, cc.Scope(conversation="c-42"), cc.Scope(tenant="acme", principal="dana", conversation="c-43")):
        assert (await boundary.session(other).call("use", {"rows": ref})).error


async def test_a_tool_that_wants_runs_under_its_own_limits(store: cc.ArtifactStore) -> None:
    async def use(rows: list[Any]) -> Any:
        await anyio.sleep_forever()

    bench = Bench(use, store, declared={"wants": {"rows": KIND}, "timeout": 0.2, "concurrency": 1})
    outcome = await bench(await put(store))
    assert "did not finish within 0.2 seconds" in outcome.text
    assert outcome.executed


# --- declarations ---


def _plain(rows: Any) -> None: ...
def _context(rows: Any, ctx: cc.ToolContext) -> None: ...
def _keywords(**rows: Any) -> None: ...
def _no_payload(rows: list[int] | list[str]) -> None: ...
def _custom(rows: anyio.Path) -> None: ...


@pytest.mark.parametrize(
    ("function", "wants", "said"),
    [
        (_plain, {}, "wants must map arguments to kinds"),
        (_plain, [("rows", KIND)], "wants must map arguments to kinds"),
        (_plain, "rows", "wants must map arguments to kinds"),
        (_plain, {"row": KIND}, "wants names 'row', which is no parameter of it"),
        (_plain, {1: KIND}, "wants names 1, which is no parameter of it"),
        (_plain, {"rows": " "}, r"wants\['rows'\]: kind must not be blank|wants\['rows'\]: kind"),
        (_plain, {"rows": None}, r"wants\['rows'\]: kind"),
        (_plain, {"rows": "k" * 129}, r"wants\['rows'\]: kind"),
        (_context, {"ctx": KIND}, "wants names 'ctx', which is no parameter of it"),
        (_keywords, {"rows": KIND}, "wants names 'rows', which is no parameter of it"),
        (_no_payload, {"rows": KIND}, "rows has a type that no payload can be made"),
        (_custom, {"rows": KIND}, "rows has a type that no payload can be made"),
    ],
)
def test_what_cannot_be_wanted_is_refused_by_name(function: Callable[..., Any], wants: Any, said: str) -> None:
    with pytest.raises(cc.ConfigurationError, match=rf"^tool named: {said}"):
        cc.tool(name="named", wants=wants)(function)


def test_a_tool_that_wants_nothing_has_no_wants() -> None:
    assert cc.tool(_plain).wants == {} == check_wants("t", None, {}, [])
    assert cc.tool(_plain).is_plain


def test_what_a_model_is_told_of_a_wanted_argument_is_a_described_text() -> None:
    def use(rows: list[Row], as_: str, ctx: cc.ToolContext, path: Path | None = None, limit: int = 3) -> None: ...

    made = cc.tool(wants={"rows": KIND, "path": "file/csv"})(use)
    said = "The ref of an artifact of the kind {}."
    properties = made.parameters["properties"]
    assert list(properties) == ["rows", "as", "path", "limit"]
    assert properties["rows"] == {"type": "string", "description": said.format(KIND)}
    assert properties["path"]["anyOf"][0] == {"type": "string", "description": said.format("file/csv")}
    assert properties["path"]["default"] is None
    assert made.parameters["required"] == ["rows", "as"]
    assert not made.parameters["additionalProperties"]
    assert not made.is_plain
    assert not made.takes_in_order


async def test_a_parameter_named_with_a_word_of_python_is_spoken_without_its_underscore() -> None:
    async def use(from_: list[Any], as_: str = "table", **rest: Any) -> Any:
        return [len(from_), as_, rest]

    store = cc.MemoryStore()
    bench = Bench(use, store, declared={"wants": {"from_": KIND}})
    assert await bench.value(None, **{"from": await put(store), "as": "chart", "more": 1}) == [50, "chart", {"more": 1}]
    assert "from takes the ref of a dataset/rows" in await bench.refused(None, **{"as": "x"})
    assert "from names nothing" in await bench.refused(None, **{"from": NEVER})
