"""A tool runs: its arguments are checked, its time and its slots are bounded, and whatever it does is an outcome."""

from __future__ import annotations

import contextvars
import logging
import threading
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import coatcheck as cc
from coatcheck.boundary import slots
from coatcheck.results.binary import MAX_ATTACHED_BYTES
from coatcheck.testing import FaultyStore, hang
from tests.boundary._cancel import all_of, cancelled_everywhere, until

pytestmark = pytest.mark.anyio

SCOPE = cc.Scope(tenant="acme", conversation="c")


class Ran:
    """A tool that counts its runs, and keeps what it was given."""

    def __init__(self) -> None:
        self.given: list[dict[str, Any]] = []

    async def __call__(self, query: str = "", limit: int = 10) -> str:
        self.given.append({"query": query, "limit": limit})
        return f"{query}/{limit}"


def searching() -> tuple[Ran, cc.Session]:
    ran = Ran()
    return ran, cc.Boundary([cc.tool(name="search")(ran)], repeated_call_note=False).session(SCOPE)


# --- arguments, as a model or a host gives them ---


@pytest.mark.parametrize(
    "arguments",
    [
        {"query": "é", "limit": 3},
        MappingProxyType({"query": "é", "limit": 3}),
        '{"query": "é", "limit": 3}',
        ' {"limit": 3, "query": "\\u00e9"}\n',
        '{"query": "é", "limit": 3}'.encode(),
        bytearray('{"query": "é", "limit": 3}'.encode()),
    ],
)
async def test_arguments_are_a_mapping_or_its_json(arguments: Any) -> None:
    ran, session = searching()
    outcome = await session.call("search", arguments)
    assert isinstance(outcome, cc.Inline)
    assert ran.given == [{"query": "é", "limit": 3}]


@pytest.mark.parametrize("arguments", [{}, "", b"", None, "{}", b" {} ", MappingProxyType({})])
async def test_no_arguments_may_be_said_in_every_way_that_providers_say_it(arguments: Any) -> None:
    ran, session = searching()
    assert (await session.call("search", arguments)).text == "/10"
    assert (await session.call("search")).text == "/10"
    assert ran.given == [{"query": "", "limit": 10}] * 2


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ("[1]", "array"),
        ('"text"', "string"),
        ("5", "number"),
        ("-1.5", "number"),
        ("true", "boolean"),
        ("null", "null"),
        ('{"query": ', "truncated"),
        ('{"query": "a"} {}', "trailing"),
        ("not json", "malformed"),
        (b"\xff", ""),
        ("\ud800", ""),
        ("[" * 100_000, "recursion"),
        (5, "type int"),
        ([1], "type list"),
        (object(), "type object"),
    ],
)
async def test_what_is_no_json_object_is_a_failure_that_says_what_it_is(arguments: Any, what: str) -> None:
    ran, session = searching()
    outcome = await session.call("search", arguments, call_id="c1")
    assert isinstance(outcome, cc.Failed)
    assert (outcome.executed, outcome.call_id, outcome.text) == (False, "c1", outcome.reason)
    assert "search" in outcome.text
    assert "one JSON object" in outcome.text
    assert what in outcome.text
    outcome.text.encode()
    assert ran.given == []


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ({"limit": "3"}, ("`$.limit`", "`int`", "`str`")),
        ('{"limit": 1.5}', ("`$.limit`", "`int`", "`float`")),
        ({"query": None}, ("`$.query`", "`str`", "`null`")),
        ({"colour": "red"}, ("`colour`", "unknown")),
        ({"\ud800": 1}, ("search",)),
    ],
)
async def test_wrong_arguments_are_a_failure_that_teaches_and_the_tool_does_not_run(
    arguments: Any, parts: tuple[str, ...]
) -> None:
    ran, session = searching()
    outcome = await session.call("search", arguments)
    assert isinstance(outcome, cc.Failed)
    assert (outcome.executed, outcome.status) == (False, None)
    for part in (*parts, "query, limit", "Nothing was run"):
        assert part in outcome.text
    assert ran.given == []


async def test_the_hosts_own_dict_is_never_changed_and_a_default_is_never_shared() -> None:
    @cc.tool
    async def collect(into: list[int] | None = None, **rest: Any) -> list[int]:
        into = [] if into is None else into
        into.append(1)
        rest["added"] = True
        return into

    session = cc.Boundary([collect], repeated_call_note=False).session(SCOPE)
    arguments: dict[str, Any] = {"extra": 5}
    for _ in range(2):
        assert (await session.call("collect", arguments)).text == "[1]"
    assert arguments == {"extra": 5}


async def test_rules_are_asked_before_arguments_are_checked() -> None:
    seen: list[Mapping[str, Any]] = []

    @cc.before_tool
    def watch(call: cc.ToolCall) -> Any:
        seen.append(call.arguments)
        return cc.allow()

    ran = Ran()
    outcome = (
        await cc.Boundary([cc.tool(name="search")(ran)], rules=[watch]).session(SCOPE).call("search", {"limit": "x"})
    )
    assert isinstance(outcome, cc.Failed)
    assert seen == [{"limit": "x"}]
    assert [(row.rule, row.outcome) for row in outcome.decisions] == [("watch", "allow")]


async def test_what_a_rule_changed_is_checked_like_what_the_model_said() -> None:
    @cc.before_tool
    def spoil(call: cc.ToolCall) -> Any:
        return cc.allow({"limit": "many"}, "because")

    ran = Ran()
    outcome = (
        await cc.Boundary([cc.tool(name="search")(ran)], rules=[spoil]).session(SCOPE).call("search", {"limit": 1})
    )
    assert isinstance(outcome, cc.Failed)
    assert "`$.limit`" in outcome.text
    assert ran.given == []


# --- an unknown tool ---


async def test_an_unknown_tool_is_a_failure_that_names_the_nearest() -> None:
    def export_orders() -> None: ...
    def export_customers() -> None: ...
    def ping() -> None: ...

    outcome = await cc.Boundary([ping, export_orders, export_customers]).session(SCOPE).call("export_order")
    assert isinstance(outcome, cc.Failed)
    assert not outcome.executed
    assert "'export_order'" in outcome.text
    assert "export_orders" in outcome.text
    assert "ping" not in outcome.text


async def test_where_nothing_is_near_some_that_there_are_are_named() -> None:
    tools = [cc.tool(name=f"tool_{letter}")(lambda: None) for letter in "gfedcba"]
    outcome = await cc.Boundary(tools).session(SCOPE).call("zzz")
    for letter in "abcde":
        assert f"tool_{letter}" in outcome.text
    assert "tool_g" not in outcome.text


async def test_without_tools_the_model_learns_that() -> None:
    outcome = await cc.Boundary().session(SCOPE).call("anything", {"x": 1})
    assert isinstance(outcome, cc.Failed)
    assert "no tools" in outcome.text


@pytest.mark.parametrize("name", ["", "x" * 1_000_000, "\ud800", "a\nb\x00", "{}", "é" * 500])
async def test_a_name_that_is_no_name_is_answered_within_bounds(name: str) -> None:
    def find() -> None: ...

    given: tuple[Any, ...] = ({}, "[")
    for arguments in given:
        outcome = await cc.Boundary([find]).session(SCOPE).call(name, arguments)
        assert isinstance(outcome, cc.Failed)
        assert len(outcome.text) < 1000
        outcome.text.encode()


async def test_rules_are_asked_about_an_unknown_tool_and_never_about_its_result() -> None:
    class Both(cc.Rule):
        def before_tool(self, call: cc.ToolCall) -> Any:
            return cc.allow()

        def after_tool(self, call: cc.ToolCall, result: cc.Result) -> Any:
            return cc.deny("never asked")

    session = cc.Boundary(rules=[Both()]).session(SCOPE)
    outcome = await session.call("nothing")
    assert isinstance(outcome, cc.Failed)
    assert [(row.tool, row.moment, row.outcome) for row in outcome.decisions] == [("nothing", "before-tool", "allow")]
    denied = (
        await cc.Boundary(rules=[cc.before_tool(name="no")(lambda call: cc.deny("not here"))]).session(SCOPE).call("x")
    )
    assert isinstance(denied, cc.Denied)
    assert denied.text == "not here"


# --- sync tools ---

who = contextvars.ContextVar("who", default="nobody")


async def test_a_sync_tool_runs_in_a_worker_thread_and_sees_the_context() -> None:
    def look() -> list[Any]:
        return [threading.get_ident(), who.get()]

    token = who.set("dana")
    try:
        outcome = await cc.Boundary([look]).session(SCOPE).call("look")
    finally:
        who.reset(token)
    assert isinstance(outcome, cc.Inline)
    assert outcome.value[0] != threading.get_ident()
    assert outcome.value[1] == "dana"


async def test_an_async_tool_runs_in_the_callers_task_and_context() -> None:
    async def look() -> list[Any]:
        return [threading.get_ident(), who.get()]

    token = who.set("dana")
    try:
        outcome = await cc.Boundary([look]).session(SCOPE).call("look")
    finally:
        who.reset(token)
    assert isinstance(outcome, cc.Inline)
    assert outcome.value == [threading.get_ident(), "dana"]


async def test_two_sync_tools_run_at_once() -> None:
    both = threading.Barrier(2, timeout=5)

    def meet() -> str:
        both.wait()
        return "met"

    session = cc.Boundary([meet], repeated_call_note=False).session(SCOPE)
    outcomes = await session.call_batch([cc.ToolCall("meet"), cc.ToolCall("meet")])
    assert [outcome.text for outcome in outcomes] == ["met", "met"]


async def test_a_sync_function_that_returns_a_coroutine_is_a_failure_that_says_so() -> None:
    async def inner() -> str:
        return "never"

    def outer() -> Any:
        return inner()

    outcome = await cc.Boundary([outer]).session(SCOPE).call("outer")
    assert isinstance(outcome, cc.Failed)
    assert "never awaited" in outcome.text


# --- time ---


async def test_an_async_tool_that_runs_out_of_time_is_cancelled_and_has_run() -> None:
    ended: list[str] = []

    @cc.tool(timeout=0.01)
    async def slow() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("cleaned up")

    seen: list[bool] = []

    @cc.after_tool
    def watch(call: cc.ToolCall, result: cc.Result) -> Any:
        seen.append(result.error)
        return cc.allow()

    outcome = await cc.Boundary([slow], rules=[watch]).session(SCOPE).call("slow")
    assert isinstance(outcome, cc.Failed)
    assert outcome.executed
    assert "slow" in outcome.text
    assert "0.01 seconds" in outcome.text
    assert "thread" not in outcome.text
    assert ended == ["cleaned up"]
    assert seen == [True]


async def test_a_tool_that_ends_in_time_is_left_alone() -> None:
    @cc.tool(timeout=30)
    async def quick() -> str:
        await anyio.lowlevel.checkpoint()
        return "done"

    @cc.tool(timeout=30)
    def threaded() -> str:
        return "done"

    session = cc.Boundary([quick, threaded]).session(SCOPE)
    assert [(await session.call(name)).text for name in ("quick", "threaded")] == ["done", "done"]


async def test_a_tools_own_timeout_error_is_its_answer_and_not_ours() -> None:
    @cc.tool(timeout=30)
    async def fetch() -> None:
        raise TimeoutError("upstream did not answer")

    assert (await cc.Boundary([fetch]).session(SCOPE).call("fetch")).text == "upstream did not answer"


async def test_the_time_spent_waiting_for_a_slot_is_not_the_tools() -> None:
    release = anyio.Event()
    running: list[str] = []

    @cc.tool(concurrency=1, timeout=0.02)
    async def work(first: bool) -> str:
        running.append("ran")
        if first:
            with anyio.CancelScope(shield=True):
                await release.wait()
        return "done"

    session = cc.Boundary([work]).session(SCOPE)
    answers: list[cc.AnyOutcome] = []

    async def second() -> None:
        answers.append(await session.call("work", {"first": False}))

    async with anyio.create_task_group() as group:
        group.start_soon(session.call, "work", {"first": True})
        await until(lambda: running)
        group.start_soon(second)
        await anyio.sleep(0.05)
        assert answers == []
        release.set()
    assert answers[0].text == "done"


class Held:
    """A sync tool that blocks its thread until it is let go."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.entered = 0
        self.left = 0
        self._lock = threading.Lock()

    def __call__(self, wait: bool = True) -> str:
        with self._lock:
            self.entered += 1
        if wait:
            self.go.wait(10)
        with self._lock:
            self.left += 1
        return "done"


async def test_a_thread_that_runs_out_of_time_keeps_its_slot_until_it_returns_and_the_model_is_told() -> None:
    held = Held()
    boundary = cc.Boundary([cc.tool(name="held", timeout=0.02, concurrency=1)(held)])
    session = boundary.session(SCOPE)
    try:
        outcome = await session.call("held")
        assert isinstance(outcome, cc.Failed)
        assert outcome.executed
        assert "still running" in outcome.text
        assert (held.entered, held.left) == (1, 0)

        refused = await session.call("held", {"wait": False})
        assert isinstance(refused, cc.Failed)
        assert not refused.executed
        assert "hang" in refused.text
        assert held.entered == 1, "the slot is still taken"

        held.go.set()
        await until(lambda: held.left == 1)
        await anyio.sleep(0.01)
        assert (await session.call("held", {"wait": False})).text == "done"
        assert (held.entered, held.left) == (2, 2)
    finally:
        held.go.set()


async def test_closing_the_boundary_reports_threads_that_still_run_and_no_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    held, other = Held(), Held()
    tools = [cc.tool(name="held", timeout=0.02)(held), cc.tool(name="other", timeout=0.02)(other)]
    try:
        async with cc.Boundary(tools) as boundary:
            session = boundary.session(SCOPE)
            await session.call("other")
            other.go.set()
            await until(lambda: other.left == 1 and len(boundary._threads.abandoned) == 0)
            await session.call("held")
            with caplog.at_level(logging.WARNING, logger="coatcheck"):
                await boundary.__aexit__(None, None, None)
            await boundary.__aenter__()
    finally:
        held.go.set()
    assert [record.getMessage() for record in caplog.records if "held" in record.getMessage()]
    assert not [record for record in caplog.records if "other" in record.getMessage()]
    await until(lambda: held.left == 1)


async def test_a_call_that_finds_every_thread_hanging_ends_without_having_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """All threads are taken by calls that were given up: a further call waits its own timeout, and does not run."""
    monkeypatch.setattr(slots, "_MAX_THREADS", 3)
    held = Held()
    late = Held()
    boundary = cc.Boundary([cc.tool(name="held", timeout=0.05)(held), cc.tool(name="late", timeout=0.05)(late)])
    session = boundary.session(SCOPE)
    try:
        outcomes = await session.call_batch([cc.ToolCall("held")] * 3)
        assert all("still running" in outcome.text for outcome in outcomes)
        assert held.entered == 3
        refused = await session.call("late", {"wait": False})
        assert isinstance(refused, cc.Failed)
        assert not refused.executed
        assert late.entered == 0
    finally:
        held.go.set()
    await until(lambda: held.left == 3)


# --- slots ---

BEHAVIOURS = ("return", "raise", "hang", "cancelled", "thread", "thread raises", "unserialisable")


@settings(max_examples=30)
@given(
    own=st.none() | st.integers(1, 3),
    shared=st.none() | st.integers(1, 3),
    calls=st.lists(st.tuples(st.sampled_from(BEHAVIOURS), st.integers(0, 4), st.integers(0, 6)), max_size=12),
)
async def test_no_limit_is_ever_exceeded_and_every_slot_comes_back(
    own: int | None, shared: int | None, calls: list[tuple[str, int, int]]
) -> None:
    running = {"async": 0, "thread": 0}
    most = {"async": 0, "thread": 0, "together": 0}
    lock = threading.Lock()

    def enter(kind: str) -> None:
        with lock:
            running[kind] += 1
            most[kind] = max(most[kind], running[kind])
            most["together"] = max(most["together"], sum(running.values()))

    def leave(kind: str) -> None:
        with lock:
            running[kind] -= 1

    @cc.tool(timeout=0.02, concurrency=own)
    async def work(behaviour: str, ticks: int) -> Any:
        enter("async")
        try:
            for _ in range(ticks):
                await anyio.lowlevel.checkpoint()
            if behaviour == "raise":
                raise ValueError("no")
            if behaviour == "hang":
                await anyio.sleep_forever()
            return object() if behaviour == "unserialisable" else "done"
        finally:
            leave("async")

    @cc.tool(concurrency=own)
    def block(behaviour: str) -> str:
        enter("thread")
        try:
            if behaviour == "thread raises":
                raise ValueError("no")
            return "done"
        finally:
            leave("thread")

    session = cc.Boundary([work, block], concurrency=shared, repeated_call_note=False).session(SCOPE)

    async def one(behaviour: str, ticks: int, cancel_after: int) -> None:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:
                if behaviour == "cancelled":

                    async def cancel() -> None:
                        for _ in range(cancel_after):
                            await anyio.lowlevel.checkpoint()
                        scope.cancel()

                    group.start_soon(cancel)
                if behaviour.startswith("thread"):
                    await session.call("block", {"behaviour": behaviour})
                else:
                    await session.call("work", {"behaviour": behaviour, "ticks": ticks})

    async with anyio.create_task_group() as group:
        for call in calls:
            group.start_soon(one, *call)

    assert running == {"async": 0, "thread": 0}
    if own is not None:
        assert most["async"] <= own
        assert most["thread"] <= own
    if shared is not None:
        assert most["together"] <= shared
    with anyio.fail_after(5):  # every slot is free again: as many calls as there are slots run at once
        wanted = min(limit for limit in (own, shared, 3) if limit is not None)
        for _ in range(wanted):
            assert (await session.call("work", {"behaviour": "return", "ticks": 0})).text == "done"
            assert (await session.call("block", {"behaviour": "return"})).text == "done"


async def test_as_many_run_at_once_as_there_are_slots_and_no_more() -> None:
    running = 0
    most = 0

    @cc.tool(concurrency=3)
    async def work() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await anyio.sleep(0.001)
        running -= 1

    session = cc.Boundary([work]).session(SCOPE)
    await session.call_batch([cc.ToolCall("work")] * 10)
    assert most == 3


# --- cancellation ---


def a_busy_boundary(*, sync: bool) -> tuple[cc.Boundary, Callable[[], int]]:
    """A boundary with one slot everywhere, async rules, a store and a batch budget: many places to be cancelled at."""
    store = cc.MemoryStore()
    runs = 0

    @cc.tool(concurrency=1, timeout=5, name="work")
    async def work() -> str:
        nonlocal runs
        runs += 1
        await anyio.lowlevel.checkpoint()
        return "x" * 50

    @cc.tool(concurrency=1, timeout=5, name="work")
    def block() -> str:
        nonlocal runs
        runs += 1
        return "x" * 50

    class Slow(cc.Rule):
        async def before_tool(self, call: cc.ToolCall) -> Any:
            await anyio.lowlevel.checkpoint()
            return cc.allow()

        async def after_tool(self, call: cc.ToolCall, result: cc.Result) -> Any:
            await anyio.lowlevel.checkpoint()
            return cc.allow()

    boundary = cc.Boundary(
        [block if sync else work],
        rules=[Slow()],
        store=store,
        placement=cc.Placement(10, max_batch_chars=100_000),
        truncation=cc.Truncation(2000),
        concurrency=1,
    )
    return boundary, lambda: runs


@pytest.mark.parametrize("sync", [False, True])
async def test_a_call_that_is_cancelled_anywhere_leaves_no_slot_taken(sync: bool) -> None:
    boundary, runs = a_busy_boundary(sync=sync)
    session = boundary.session(SCOPE)
    async for _ in cancelled_everywhere(lambda: session.call("work"), least=4):
        with anyio.fail_after(5):
            assert isinstance(await session.call("work"), cc.Placed)
    assert runs() >= 4
    assert boundary._threads.abandoned == ()


async def test_a_call_that_is_cancelled_while_it_stores_leaves_nothing_waiting() -> None:
    @cc.tool(concurrency=1)
    async def work() -> str:
        return "x" * 50

    store = FaultyStore(cc.MemoryStore(), put=hang(calls=1))
    session = cc.Boundary([work], store=store, placement=cc.Placement(10), concurrency=1).session(SCOPE)
    with anyio.move_on_after(0.02) as scope:
        await session.call("work")
    assert scope.cancelled_caught
    with anyio.fail_after(5):
        assert isinstance(await session.call("work"), cc.Placed)


class Halt(BaseException):
    """Not an exception that a boundary may answer for."""


@pytest.mark.parametrize("kind", ["async", "sync", "limited"])
async def test_what_is_no_exception_is_never_swallowed_and_leaves_no_slot_taken(kind: str) -> None:
    stop = True

    def end() -> str:
        if stop:
            raise Halt
        return "done"

    async def end_async() -> str:
        return end()

    tools: dict[str, Callable[..., Any]] = {
        "async": cc.tool(name="end")(end_async),
        "sync": cc.tool(name="end", concurrency=1, timeout=5)(end),
        "limited": cc.tool(name="end", concurrency=1, timeout=5)(end_async),
    }
    session = cc.Boundary([tools[kind]], concurrency=1).session(SCOPE)
    with pytest.raises(Halt):
        await session.call("end")
    stop = False
    with anyio.fail_after(5):
        assert (await session.call("end")).text == "done"


async def test_a_tool_cannot_swallow_the_callers_cancellation() -> None:
    async def stubborn() -> str:
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            await anyio.lowlevel.checkpoint()
        return "went on"

    session = cc.Boundary([stubborn]).session(SCOPE)
    with anyio.move_on_after(0.01) as scope:
        await session.call("stubborn")
    assert scope.cancelled_caught


# --- what a tool raises ---


class Silent(Exception):
    """Says nothing."""


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("cannot even be printed")


def nested(*errors: Exception) -> ExceptionGroup[Exception]:
    return ExceptionGroup("several", [errors[0], ExceptionGroup("inner", list(errors[1:]))])


@pytest.mark.parametrize(
    ("error", "parts"),
    [
        (ValueError("the region is unknown"), ("the region is unknown",)),
        (nested(ValueError("first"), OSError("second"), KeyError("third")), ("first", "second", "third")),
        (Silent(), ("Silent",)),
        (ValueError("  \n"), ("ValueError",)),
        (ValueError("a\ud800b"), ("a", "b")),
        (Mute("x"), ("Mute",)),
        (nested(Silent(), Mute(), ValueError("said")), ("Silent", "Mute", "said")),
        (StopAsyncIteration("over"), ("over",)),
        (StopIteration("over"), ("StopIteration",)),
        (msgspec.ValidationError("inside the tool"), ("inside the tool",)),
        (cc.RenderingError("$.x", "inside the tool"), ("$.x",)),
        (cc.DeclarationError("refused: what is blank"), ("refused: what is blank",)),
    ],
)
@pytest.mark.parametrize("sync", [False, True])
async def test_whatever_a_tool_raises_is_its_answer_and_the_tool_has_run(
    error: Exception, parts: tuple[str, ...], sync: bool
) -> None:
    def break_sync() -> None:
        raise error

    async def break_async() -> None:
        raise error

    seen: list[tuple[bool, str]] = []

    @cc.after_tool
    def watch(call: cc.ToolCall, result: cc.Result) -> Any:
        seen.append((result.error, result.text))
        return cc.allow()

    made = cc.tool(name="breaks")(break_sync if sync else break_async)
    outcome = await cc.Boundary([made], rules=[watch]).session(SCOPE).call("breaks", call_id="c1")
    assert isinstance(outcome, cc.Failed)
    assert (outcome.error, outcome.executed, outcome.status, outcome.call_id) == (True, True, None, "c1")
    for part in parts:
        assert part in outcome.text
    outcome.text.encode()
    assert seen == [(True, outcome.text)]


async def test_wrong_arguments_within_a_tool_are_not_the_models() -> None:
    """A ValidationError that the tool raises itself must not tell the model that nothing was run."""

    async def parse() -> None:
        msgspec.convert("x", int)

    outcome = await cc.Boundary([parse]).session(SCOPE).call("parse")
    assert outcome.executed
    assert "Nothing was run" not in outcome.text


# --- what a tool returns ---


async def test_a_value_is_handed_on_by_reference() -> None:
    value = {"rows": [1, 2]}

    async def give() -> dict[str, Any]:
        return value

    for on_event in (None, lambda event: None):
        outcome = await cc.Boundary([give], on_event=on_event).session(SCOPE).call("give")
        assert isinstance(outcome, cc.Inline)
        assert outcome.value is value
        assert outcome.text == '{"rows":[1,2]}'


@pytest.mark.parametrize(
    ("value", "path"),
    [({"a": [1, float("nan")]}, "$.a[1]"), ({"a": object()}, "$.a"), ("\ud800", "$"), ({b"k": 1}, "$")],
)
async def test_a_value_that_cannot_be_delivered_is_a_failure_that_names_the_path(value: Any, path: str) -> None:
    async def give() -> Any:
        return value

    store = FaultyStore(cc.MemoryStore())
    for dials in ({}, {"on_event": lambda event: None}, {"store": store, "placement": cc.Placement(1)}):
        outcome = await cc.Boundary([give], **dials).session(SCOPE).call("give")
        assert isinstance(outcome, cc.Failed)
        assert outcome.executed
        assert f"{path}:" in outcome.text
    assert store.calls["put"] == 0


ABSENCE = cc.absent(what="orders", checked=["the live table"])


def encoded(value: Any) -> cc.Encoded:
    return cc.Encoded(msgspec.json.encode(value))


MOVE = {"kind": "propose-transition", "targetSkillId": "billing", "reason": "money"}


@pytest.mark.parametrize("form", [lambda value: value, encoded])
@pytest.mark.parametrize(
    ("value", "status", "declared", "effects", "read"),
    [
        ({"content": {"n": 1}, "effects": [], "status": "partial"}, "partial", 0, 0, '{"n":1}'),
        ({"content": "hi", "effects": [MOVE]}, None, 0, 1, "hi"),
        (ABSENCE, "absent", 1, 0, None),
        (cc.coverage({"n": 1}, checked=["eu"]), None, 1, 0, None),
        (cc.coverage(ABSENCE, checked=["eu"]), "absent", 2, 0, None),
        ({"content": ABSENCE, "effects": []}, None, 0, 0, None),
        ({"content": ABSENCE, "effects": [MOVE]}, "absent", 1, 1, None),
        ({"content": ABSENCE, "effects": [], "status": "failure"}, "failure", 1, 0, None),
        (
            {"content": {"content": 1, "effects": [], "status": "denied"}, "effects": [], "status": "success"},
            "success",
            0,
            0,
            None,
        ),
        ([ABSENCE], None, 0, 0, None),
        ({"content": 1, "status": "denied"}, None, 0, 0, None),
    ],
)
@pytest.mark.parametrize("listening", [False, True])
async def test_an_envelope_and_what_it_declares_are_read_alike_as_values_and_as_wire_bytes(
    form: Callable[[Any], Any],
    value: Any,
    status: str | None,
    declared: int,
    effects: int,
    read: str | None,
    listening: bool,
) -> None:
    async def give() -> Any:
        return form(value)

    boundary = cc.Boundary([give], on_event=(lambda event: None) if listening else None)
    outcome = await boundary.session(SCOPE).call("give")
    assert isinstance(outcome, cc.Inline)
    assert (outcome.status, len(outcome.declared), len(outcome.effects)) == (status, declared, effects)
    if read is not None:
        text = outcome.text.partition("\n")[0]
        assert text == (read if form is not encoded or read.startswith("{") else f'"{read}"')


async def test_keys_that_are_spelled_with_escapes_declare_all_the_same() -> None:
    raw = b'{"\\u0061f_absent": true, "checked": ["x"], "looked_for": "y"}'

    async def give() -> cc.Encoded:
        return cc.Encoded(raw)

    outcome = await cc.Boundary([give]).session(SCOPE).call("give")
    assert (outcome.status, outcome.text) == ("absent", raw.decode())


async def test_an_envelope_in_wire_bytes_of_another_media_type_is_data() -> None:
    raw = msgspec.json.encode({"content": "hi", "effects": [MOVE], "status": "denied"})

    async def give() -> cc.Encoded:
        return cc.Encoded(raw, "text/plain")

    outcome = await cc.Boundary([give]).session(SCOPE).call("give")
    assert (outcome.status, outcome.effects, outcome.text) == (None, (), raw.decode())


@pytest.mark.parametrize("form", [lambda value: value, encoded])
@pytest.mark.parametrize(
    ("value", "declared"),
    [
        ({"content": "hi", "effects": [MOVE], "status": "denied"}, 0),
        (ABSENCE, 1),
        (cc.coverage(ABSENCE, checked=["eu"]), 2),
        ({"content": ABSENCE, "effects": [MOVE]}, 1),
    ],
)
async def test_what_a_foreign_tool_relays_has_no_authority(
    form: Callable[[Any], Any], value: Any, declared: int
) -> None:
    @cc.tool(foreign=True)
    async def relay() -> Any:
        return form(value)

    events: list[cc.Event] = []
    outcome = await cc.Boundary([relay], on_event=events.append).session(SCOPE).call("relay")
    assert isinstance(outcome, cc.Inline)
    assert (outcome.status, outcome.effects, outcome.notes) == (None, (), ())
    assert outcome.text == msgspec.json.encode(value).decode()
    assert len(outcome.declared) == declared
    assert [type(event) for event in events].count(cc.ForeignEnvelope) == 1


@pytest.mark.parametrize("size", [0, 1, MAX_ATTACHED_BYTES])
async def test_bytes_up_to_64_kib_travel_beside_the_text(size: int) -> None:
    async def shoot() -> bytes:
        return b"\x00" * size

    outcome = await cc.Boundary([shoot]).session(SCOPE).call("shoot")
    assert isinstance(outcome, cc.Inline)
    assert [(blob.media_type, blob.data) for blob in outcome.content] == [("application/octet-stream", b"\x00" * size)]
    assert str(size) in outcome.text


@pytest.mark.parametrize(
    "give",
    [
        lambda: b"\x00" * (MAX_ATTACHED_BYTES + 1),
        lambda: {"image": {"mimeType": "image/png", "data": b"\x00" * (MAX_ATTACHED_BYTES + 1)}},
        lambda: cc.Encoded(b"\x00" * (MAX_ATTACHED_BYTES + 1), "image/png"),
    ],
)
async def test_more_binary_without_a_store_is_a_failure_that_says_what_is_needed(give: Callable[[], Any]) -> None:
    async def shoot() -> Any:
        return give()

    outcome = await cc.Boundary([shoot]).session(SCOPE).call("shoot")
    assert isinstance(outcome, cc.Failed)
    assert outcome.executed
    assert str(MAX_ATTACHED_BYTES + 1) in outcome.text
    assert "store" in outcome.text


# --- the ways through are one way ---

ANSWERS: dict[str, Callable[[], Any]] = {
    "text": lambda: "é" * 20,
    "dict": lambda: {"n": [1, None, 2.5]},
    "null": lambda: None,
    "bytes": lambda: b"\x00\x01",
    "nan": lambda: float("nan"),
    "absence": lambda: ABSENCE,
    "envelope": lambda: {"content": "x" * 30, "effects": [MOVE, {"kind": "propose-transition"}], "status": "partial"},
    "encoded": lambda: encoded({"rows": list(range(20))}),
    "near miss": lambda: {"content": 1, "status": "denied"},
    "long": lambda: "y" * 3000,
}


def facts(outcome: cc.Outcome) -> dict[str, Any]:
    return {name: getattr(outcome, name) for name in cc.Outcome.__struct_fields__} | {"class": type(outcome)}


@pytest.mark.parametrize("answer", list(ANSWERS))
@pytest.mark.parametrize("rules", [0, 1])
async def test_every_way_through_the_boundary_gives_the_same_outcome(answer: str, rules: int) -> None:
    """With or without a listener, limits on the tool, JSON arguments, in a batch of one, guarded by hand."""

    async def give(which: str) -> Any:
        return ANSWERS[which]()

    class Both(cc.Rule):
        def before_tool(self, call: cc.ToolCall) -> Any:
            return cc.allow()

        def after_tool(self, call: cc.ToolCall, result: cc.Result) -> Any:
            return cc.allow(None, "seen") if result.value == 5 else cc.allow()

    def session(*, limited: bool = False, **dials: Any) -> cc.Session:
        limits: dict[str, Any] = {"timeout": 5, "concurrency": 2} if limited else {}
        made = cc.tool(name="give", ceiling=cc.Ceiling(2900), **limits)(give)
        return cc.Boundary(
            [made],
            rules=[Both()] * rules,
            store=cc.MemoryStore(),
            placement=cc.Placement(25),
            truncation=cc.Truncation(1100),
            **dials,
        ).session(SCOPE)

    arguments = {"which": answer}
    text = msgspec.json.encode(arguments).decode()
    ways: list[Callable[[], Awaitable[Any]]] = [
        lambda: session().call("give", arguments),
        lambda: session().call("give", text),
        lambda: session(on_event=lambda event: None).call("give", arguments),
        lambda: session(limited=True, concurrency=1).call("give", arguments),
        lambda: session().call_batch([cc.ToolCall("give", arguments)]),
        lambda: session(on_event=lambda event: None).call_batch([cc.ToolCall("give", arguments)]),
        lambda: session().wrap(cc.tool(name="give", ceiling=cc.Ceiling(2900))(give))(which=answer),
    ]
    outcomes = [found[0] if isinstance(found, list) else found for found in await all_of(*ways)]
    for outcome in outcomes[1:]:
        assert facts(outcome) == facts(outcomes[0])
    assert len(outcomes[0].decisions) == 2 * rules
