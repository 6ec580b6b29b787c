"""The walk of the rules, as a session does it: order, answers, the ledger, and what a bad rule comes to."""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Callable
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import coatcheck as cc
from coatcheck.boundary.session import MAX_LEDGER_ROWS
from coatcheck.testing.strategies import json_values, texts

pytestmark = pytest.mark.anyio

SCOPE = cc.Scope(conversation="c")


async def echo(**arguments: Any) -> Any:
    """Answers with its arguments."""
    return arguments


async def broken() -> None:
    raise ValueError("the disk is full")


def session(*rules: object, **dials: Any) -> cc.Session:
    return cc.Boundary([echo, broken], rules=rules, **dials).session(SCOPE)


class Noted(cc.Rule):
    """A rule that notes when it is asked, and answers as told."""

    def __init__(self, name: str, log: list[str], before: Any = None, after: Any = None) -> None:
        self.name = name
        self._log = log
        self._before = before
        self._after = after

    def before_tool(self, call: cc.ToolCall) -> Any:
        self._log.append(f"{self.name} before")
        return self._before or cc.allow()

    def after_tool(self, call: cc.ToolCall, result: cc.Result) -> Any:
        self._log.append(f"{self.name} after")
        return self._after or cc.allow()


def rows(outcome: cc.Outcome) -> list[tuple[str, str, str]]:
    return [(row.rule, row.moment, row.outcome) for row in outcome.decisions]


# --- order ---


async def test_rules_are_asked_in_declared_order_before_the_tool_and_in_reverse_after_it() -> None:
    log: list[str] = []
    outcome = await session(*(Noted(name, log) for name in "abc")).call("echo")
    assert log == ["a before", "b before", "c before", "c after", "b after", "a after"]
    assert rows(outcome) == [
        ("a", "before-tool", "allow"),
        ("b", "before-tool", "allow"),
        ("c", "before-tool", "allow"),
        ("c", "after-tool", "allow"),
        ("b", "after-tool", "allow"),
        ("a", "after-tool", "allow"),
    ]


@pytest.mark.parametrize("listening", [False, True])
async def test_the_first_denial_before_the_tool_ends_the_walk_and_the_tool_does_not_run(listening: bool) -> None:
    log: list[str] = []
    rules = [Noted("a", log), Noted("b", log, before=cc.deny("not today")), Noted("c", log)]
    outcome = await session(*rules, on_event=(lambda event: None) if listening else None).call("echo", call_id="c7")
    assert isinstance(outcome, cc.Denied)
    assert (outcome.text, outcome.reason, outcome.rule) == ("not today", "not today", "b")
    assert (outcome.executed, outcome.error, outcome.status, outcome.call_id) == (False, False, None, "c7")
    assert log == ["a before", "b before"]
    assert outcome.decisions == (
        cc.Decision("a", "before-tool", "echo", "c7", "allow"),
        cc.Decision("b", "before-tool", "echo", "c7", "deny", why="not today"),
    )


async def test_the_first_denial_after_the_tool_ends_the_walk_and_the_tool_has_run() -> None:
    log: list[str] = []
    rules = [Noted("a", log), Noted("b", log, after=cc.deny("hidden")), Noted("c", log)]
    outcome = await session(*rules).call("echo", {"x": 1})
    assert isinstance(outcome, cc.Denied)
    assert (outcome.text, outcome.rule, outcome.executed, outcome.error) == ("hidden", "b", True, False)
    assert log[3:] == ["c after", "b after"]
    row = outcome.decisions[-1]
    assert (row.rule, row.outcome, row.changed, row.why) == ("b", "deny", True, "hidden")


def transforming(key: str, value: Any) -> cc.Rule:
    return cc.before_tool(name=key)(lambda call: cc.allow({**call.arguments, key: value}, f"adds {key}"))


async def test_a_later_rule_sees_what_an_earlier_one_changed_and_so_does_the_tool() -> None:
    seen: list[Any] = []

    @cc.before_tool
    def watch(call: cc.ToolCall) -> Any:
        seen.append(dict(call.arguments))
        return cc.allow()

    outcome = await session(transforming("a", 1), watch, transforming("b", 2), watch).call("echo", {"x": 0})
    assert isinstance(outcome, cc.Inline)
    assert seen == [{"x": 0, "a": 1}, {"x": 0, "a": 1, "b": 2}]
    assert outcome.value == {"x": 0, "a": 1, "b": 2}


async def test_after_the_tool_an_earlier_rule_has_the_last_word_and_sees_what_a_later_one_changed() -> None:
    seen: list[Any] = []

    def adds(letter: str) -> cc.Rule:
        @cc.after_tool(name=letter)
        def add(call: cc.ToolCall, result: cc.Result) -> Any:
            seen.append(result.value)
            return cc.allow(f"{result.text}{letter}", "adds")

        return add

    outcome = await session(adds("a"), adds("b"), adds("c")).call("echo")
    assert isinstance(outcome, cc.Inline)
    assert seen == [{}, "{}c", "{}cb"]
    assert (outcome.value, outcome.text) == ("{}cba", "{}cba")


async def test_rules_after_the_tool_see_the_arguments_that_the_tool_was_given() -> None:
    seen: list[Any] = []

    @cc.after_tool
    def watch(call: cc.ToolCall, result: cc.Result) -> Any:
        seen.append((call.name, call.arguments, call.call_id))
        return cc.allow()

    for dials in ({}, {"on_event": lambda event: None}):
        await session(watch, transforming("a", 1), **dials).call("echo", {"x": 0}, call_id="c1")
    assert seen == [("echo", {"x": 0, "a": 1}, "c1")] * 2


@pytest.mark.parametrize("value", [None, False, 0, "", [], {}])
async def test_a_value_that_is_empty_is_a_value(value: Any) -> None:
    replace = cc.after_tool(name="replace")(lambda call, result: cc.allow(value, "because"))
    outcome = await session(replace).call("echo", {"x": 1})
    assert isinstance(outcome, cc.Inline)
    assert outcome.value == value
    assert outcome.text == (value if isinstance(value, str) else msgspec.json.encode(value).decode())
    assert outcome.decisions[0].changed


async def test_an_empty_dict_of_arguments_is_a_change() -> None:
    clear = cc.before_tool(name="clear")(lambda call: cc.allow({}, "nothing of it"))
    outcome = await session(clear).call("echo", {"x": 1})
    assert isinstance(outcome, cc.Inline)
    assert outcome.value == {}
    assert outcome.decisions[0].changed


async def test_a_reason_without_a_value_is_on_the_ledger_and_changes_nothing() -> None:
    value = {"rows": [1]}

    async def give() -> Any:
        return value

    class Says(cc.Rule):
        def before_tool(self, call: cc.ToolCall) -> Any:
            return cc.allow(why="office hours")

        def after_tool(self, call: cc.ToolCall, result: cc.Result) -> Any:
            return cc.allow(why="looked at it")

    outcome = await cc.Boundary([give], rules=[Says()]).session(SCOPE).call("give")
    assert isinstance(outcome, cc.Inline)
    assert outcome.value is value
    assert [(row.why, row.changed, row.before, row.after) for row in outcome.decisions] == [
        ("office hours", False, None, None),
        ("looked at it", False, None, None),
    ]


async def test_after_tool_rules_are_asked_only_about_a_call_that_ran() -> None:
    log: list[str] = []
    for rule, name, arguments in (
        (Noted("deny", log, before=cc.deny("no")), "echo", {}),
        (Noted("ask", log, before=cc.ask("may it?")), "echo", {}),
        (Noted("unknown", log), "nothing", {}),
        (Noted("arguments", log), "broken", {"x": 1}),
    ):
        outcome = await session(rule).call(name, arguments)
        assert not outcome.executed
    assert log == ["deny before", "ask before", "unknown before", "arguments before"]


async def test_a_rule_after_the_tool_sees_that_the_tool_raised_and_may_change_what_the_model_reads() -> None:
    seen: list[tuple[Any, ...]] = []

    @cc.after_tool
    def soften(call: cc.ToolCall, result: cc.Result) -> Any:
        seen.append((result.value, result.text, result.size, result.status, result.error))
        return cc.allow("try again later", "no internals")

    outcome = await session(soften).call("broken")
    assert seen == [("the disk is full", "the disk is full", 16, None, True)]
    assert isinstance(outcome, cc.Failed)
    assert (outcome.text, outcome.reason, outcome.error) == ("try again later", "try again later", True)


MOVE = {"kind": "propose-transition", "targetSkillId": "billing", "reason": "money"}


async def test_a_denial_after_the_tool_cancels_neither_status_nor_effects_nor_coverage() -> None:
    async def give() -> Any:
        absence = cc.absent(what="orders", checked=["the live table"])
        return {"content": absence, "effects": [MOVE, {"kind": "require-instruction"}], "status": "partial"}

    hide = cc.after_tool(name="hide")(lambda call, result: cc.deny("hidden"))
    outcome = await cc.Boundary([give], rules=[hide]).session(SCOPE).call("give")
    assert isinstance(outcome, cc.Denied)
    assert (outcome.status, len(outcome.effects), len(outcome.malformed), len(outcome.declared)) == ("partial", 1, 1, 1)
    assert outcome.text.split("\n")[0] == "hidden"
    assert len(outcome.notes) == 2


async def test_a_rule_that_changes_the_result_leaves_status_effects_and_coverage() -> None:
    async def give() -> Any:
        return {"content": "secret", "effects": [MOVE], "status": "partial"}

    mask = cc.after_tool(name="mask")(lambda call, result: cc.allow("******", "masks"))
    outcome = await cc.Boundary([give], rules=[mask]).session(SCOPE).call("give")
    assert isinstance(outcome, cc.Inline)
    assert (outcome.status, len(outcome.effects), outcome.value) == ("partial", 1, "******")
    assert "secret" not in outcome.text


async def test_a_rule_sees_the_refusal_of_a_ceiling_and_never_the_payload() -> None:
    @cc.tool(ceiling=cc.Ceiling(10))
    async def give() -> str:
        return "secret" * 10

    seen: list[cc.Result] = []

    @cc.after_tool
    def watch(call: cc.ToolCall, result: cc.Result) -> Any:
        seen.append(result)
        return cc.allow("ask for less", "shorter")

    outcome = await cc.Boundary([give], rules=[watch]).session(SCOPE).call("give")
    assert isinstance(outcome, cc.TooLarge)
    assert "secret" not in str(seen[0].value)
    assert (seen[0].status, seen[0].error) == ("invalid", False)
    assert (outcome.text, outcome.status, outcome.size) == ("ask for less", "invalid", 60)


# --- rules of every allowed kind ---


class AsyncRule(cc.Rule):
    async def before_tool(self, call: cc.ToolCall) -> Any:
        await anyio.lowlevel.checkpoint()
        return cc.allow({"from": "async"}, "because")


class ThreadRule(cc.Rule):
    thread = True

    def before_tool(self, call: cc.ToolCall) -> Any:
        return cc.allow({"from": threading.get_ident()}, "because")


class ThreadedAsyncRule(cc.Rule):
    thread = True

    async def before_tool(self, call: cc.ToolCall) -> Any:
        return cc.allow({"from": threading.get_ident()}, "because")


class Duck:
    name = "duck"

    def before_tool(self, call: cc.ToolCall) -> Any:
        return cc.allow({"from": "duck"}, "because")


class AsyncCallable:
    async def __call__(self, call: cc.ToolCall) -> Any:
        return cc.allow({"from": "callable"}, "because")


class Holder:
    def __init__(self, *, thread: bool) -> None:
        self.name = "holder"
        self.thread = thread
        self.before_tool = AsyncCallable()


@cc.before_tool
async def async_function(call: cc.ToolCall) -> Any:
    return cc.allow({"from": "function"}, "because")


def awaitable_from_a_sync_rule(call: cc.ToolCall) -> Any:
    async def later() -> Any:
        await anyio.lowlevel.checkpoint()
        return cc.allow({"from": "awaitable"}, "because")

    return later()


class Described(cc.Rule):
    name = "a name of its own"

    def before_tool(self, call: cc.ToolCall) -> Any:
        return cc.allow({"from": "described"}, "because")


@pytest.mark.parametrize(
    ("rule", "name", "expected"),
    [
        (AsyncRule(), "AsyncRule", "async"),
        (Duck(), "duck", "duck"),
        (Holder(thread=False), "holder", "callable"),
        (Holder(thread=True), "holder", "callable"),
        (async_function, "async_function", "function"),
        (cc.before_tool(awaitable_from_a_sync_rule), "awaitable_from_a_sync_rule", "awaitable"),
        (cc.before_tool(name="threaded", thread=True)(awaitable_from_a_sync_rule), "threaded", "awaitable"),
        (Described(), "a name of its own", "described"),
    ],
)
async def test_a_rule_may_be_sync_or_async_a_function_or_an_object(rule: object, name: str, expected: str) -> None:
    for dials in ({}, {"on_event": lambda event: None}):
        outcome = await session(rule, **dials).call("echo", {"x": 1})
        assert isinstance(outcome, cc.Inline)
        assert outcome.value == {"from": expected}
        assert rows(outcome) == [(name, "before-tool", "allow")]


async def test_a_rule_that_blocks_runs_in_a_thread_where_it_says_so() -> None:
    outcome = await session(ThreadRule()).call("echo")
    assert isinstance(outcome, cc.Inline)
    assert outcome.value["from"] != threading.get_ident()
    inline = await session(ThreadedAsyncRule()).call("echo")
    assert isinstance(inline, cc.Inline)
    assert inline.value["from"] == threading.get_ident(), "an async rule has nothing to do in a thread"


async def test_one_function_may_be_two_rules_of_one_name() -> None:
    rule = transforming("a", 1)
    outcome = await session(rule, rule).call("echo")
    assert [row.rule for row in outcome.decisions] == ["a", "a"]


class Nameless:
    def before_tool(self, call: cc.ToolCall) -> Any:
        return cc.allow()


class Hookless(cc.Rule):
    """Nothing to ask."""


class NotCallable(cc.Rule):
    before_tool = "yes"


@pytest.mark.parametrize(
    ("rule", "part"),
    [
        (Nameless(), "no name"),
        (Hookless(), "none of the hooks"),
        (NotCallable(), "cannot be called"),
        (AsyncRule, "AsyncRule()"),
        (lambda call: cc.allow(), "plain function"),
        (None, "no name"),
        ("rule", "no name"),
        (cc.before_tool(name=" ")(lambda call: cc.allow()), "no name"),
    ],
)
def test_what_is_no_rule_is_refused_by_index(rule: object, part: str) -> None:
    with pytest.raises(cc.ConfigurationError, match=r"rules\[1\]") as refusal:
        session(AsyncRule(), rule)
    assert part in str(refusal.value)


# --- what a bad rule comes to (cases.md, K1) ---


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("cannot even be printed")


def raises(error: Exception) -> Callable[..., Any]:
    def hook(*args: Any) -> Any:
        raise error

    return hook


async def sleeps(*args: Any) -> Any:
    await anyio.sleep_forever()


async def takes_no_notice(*args: Any) -> Any:
    try:
        await anyio.sleep_forever()
    except anyio.get_cancelled_exc_class():
        return cc.allow()


def blocks(*args: Any) -> Any:
    threading.Event().wait(0.05)
    return cc.allow()


async def coroutine_of_a_coroutine(*args: Any) -> Any:
    return 5


BAD: dict[str, tuple[Callable[..., Any], bool, str]] = {
    "raises": (raises(ValueError("no database")), False, "no database"),
    "raises silently": (raises(KeyError()), False, "KeyError"),
    "raises the unprintable": (raises(Mute()), False, "Mute"),
    "raises a surrogate": (raises(ValueError("a\ud800")), False, "a"),
    "raises much": (raises(ValueError("x" * 100_000)), False, "xxx"),
    "returns an exception": (lambda *args: ValueError("returned"), False, "returned"),
    "returns nothing": (lambda *args: None, False, "None"),
    "returns True": (lambda *args: True, False, "a bool"),
    "returns text": (lambda *args: "allow", False, "allow"),
    "returns the class": (lambda *args: cc.Allow, False, "a StructMeta"),
    "returns much": (lambda *args: "x" * 100_000, False, "a str"),
    "denies without a reason": (lambda *args: cc.deny(" "), False, "deny(reason)"),
    "denies without a text": (lambda *args: cc.Deny(None), False, "deny(reason)"),  # type: ignore[arg-type]
    "changes without a reason": (lambda *args: cc.allow({}), False, "why"),
    "changes without a reason, by class": (lambda *args: cc.Allow({}), False, "why"),
    "takes no arguments": (lambda: cc.allow(), False, "argument"),
    "returns NaN": (lambda *args: cc.allow({"x": math.nan}, "because"), False, "$.x"),
    "returns what is no data": (lambda *args: cc.allow({"x": object()}, "because"), False, "$.x"),
    "answers with nonsense later": (coroutine_of_a_coroutine, False, "a int"),
    "sleeps": (sleeps, False, "0.02"),
    "sleeps and takes no notice": (takes_no_notice, False, "0.02"),
    "blocks in a thread": (blocks, True, "0.02"),
}


def bad_rule(kind: str, moment: str) -> tuple[cc.Rule, str]:
    hook, thread, part = BAD[kind]
    make: Any = cc.before_tool if moment == "before-tool" else cc.after_tool
    return make(name="bad", thread=thread)(hook), part


@pytest.mark.parametrize("kind", list(BAD))
@pytest.mark.parametrize("moment", ["before-tool", "after-tool"])
@pytest.mark.parametrize("dials", [{}, {"on_event": lambda event: None}, {"ledger_values": True}])
async def test_a_rule_that_cannot_decide_has_permitted_nothing_and_that_is_on_record(
    kind: str, moment: str, dials: dict[str, Any]
) -> None:
    rule, part = bad_rule(kind, moment)
    log: list[str] = []
    inner = session(rule, Noted("inner", log), rule_timeout=0.02, **dials)
    outcome = await inner.call("echo", {"x": "secret"})
    assert isinstance(outcome, cc.Denied)
    assert outcome.executed is (moment == "after-tool")
    assert outcome.rule == "bad"
    row = outcome.decisions[-1]
    assert (row.rule, row.moment, row.outcome, row.why) == ("bad", moment, "deny", outcome.text)
    for said in ("bad", part):
        assert said in outcome.text
    assert "secret" not in outcome.text
    assert len(outcome.text) < 1000
    assert log == ([] if moment == "before-tool" else ["inner before", "inner after"])
    outcome.text.encode()
    assert inner.to_bytes()


@pytest.mark.parametrize("value", [[1], "x", None, 5, {1: 2}.keys()])
async def test_arguments_that_are_no_dict_are_no_answer(value: Any) -> None:
    rule = cc.before_tool(name="bad")(lambda call: cc.allow(value, "because"))
    outcome = await session(rule).call("echo")
    assert isinstance(outcome, cc.Denied)
    assert "dict" in outcome.text


async def test_asking_after_the_tool_is_a_denial() -> None:
    rule = cc.after_tool(name="late")(lambda call, result: cc.ask("may it?"))
    outcome = await session(rule).call("echo")
    assert isinstance(outcome, cc.Denied)
    assert outcome.executed
    assert "before the tool" in outcome.text
    assert rows(outcome) == [("late", "after-tool", "deny")]


async def test_a_rule_after_the_tool_that_answers_with_nan_hides_the_result() -> None:
    rule = cc.after_tool(name="mean")(lambda call, result: cc.allow({"mean": math.inf}, "computes"))
    outcome = await session(rule).call("echo", {"x": "secret"})
    assert isinstance(outcome, cc.Denied)
    assert "$.mean" in outcome.text
    assert "secret" not in outcome.text


async def test_all_async_rules_of_a_walk_share_one_deadline() -> None:
    asked: list[int] = []

    def slow(number: int) -> cc.Rule:
        @cc.before_tool(name=f"rule {number}")
        async def wait(call: cc.ToolCall) -> Any:
            asked.append(number)
            await anyio.sleep(0.04)
            return cc.allow()

        return wait

    outcome = await session(*(slow(number) for number in range(20)), rule_timeout=0.1).call("echo")
    assert isinstance(outcome, cc.Denied)
    assert 1 < len(asked) <= 3, "each of them is within the deadline, and all of them together are not"
    assert outcome.rule == f"rule {asked[-1]}"
    assert [row.outcome for row in outcome.decisions] == ["allow"] * (len(asked) - 1) + ["deny"]


async def test_the_walk_before_and_the_walk_after_have_a_deadline_each() -> None:
    class Slow(cc.Rule):
        async def before_tool(self, call: cc.ToolCall) -> Any:
            await anyio.sleep(0.3)
            return cc.allow()

        async def after_tool(self, call: cc.ToolCall, result: cc.Result) -> Any:
            await anyio.sleep(0.3)
            return cc.allow()

    outcome = await session(Slow(), rule_timeout=0.55).call("echo")
    assert isinstance(outcome, cc.Inline)


async def test_the_time_of_the_tool_is_not_the_rules() -> None:
    @cc.tool
    async def slow() -> str:
        await anyio.sleep(0.4)
        return "done"

    class Async(cc.Rule):
        async def before_tool(self, call: cc.ToolCall) -> Any:
            return cc.allow()

        async def after_tool(self, call: cc.ToolCall, result: cc.Result) -> Any:
            await anyio.lowlevel.checkpoint()
            return cc.allow()

    outcome = await cc.Boundary([slow], rules=[Async()], rule_timeout=0.3).session(SCOPE).call("slow")
    assert outcome.text == "done"


class Halt(BaseException):
    """Not an answer, and not for a boundary to swallow."""


@pytest.mark.parametrize("moment", ["before_tool", "after_tool"])
@pytest.mark.parametrize("asynchronous", [False, True])
async def test_what_is_no_exception_passes_a_rule_by(moment: str, asynchronous: bool) -> None:
    def halt(*args: Any) -> Any:
        raise Halt

    async def halt_async(*args: Any) -> Any:
        raise Halt

    rule = getattr(cc, moment)(name="halt")(halt_async if asynchronous else halt)
    with pytest.raises(Halt):
        await session(rule).call("echo")


async def test_cancellation_during_a_rule_is_the_callers() -> None:
    with anyio.move_on_after(0.01) as scope:
        await session(cc.before_tool(name="sleeps")(sleeps), rule_timeout=60).call("echo")
    assert scope.cancelled_caught


# --- the ledger ---


async def test_a_row_holds_fingerprints_of_what_was_changed_and_nothing_of_the_values() -> None:
    mask = cc.after_tool(name="mask")(lambda call, result: cc.allow({"card": "****"}, "hides card numbers"))
    inner = session(transforming("pin", 4711), mask)
    outcome = await inner.call("echo", {"card": "4111 1111"}, call_id="c1")
    before, after = outcome.decisions
    assert (before.rule, before.moment, before.tool, before.call_id, before.outcome, before.changed, before.why) == (
        "pin",
        "before-tool",
        "echo",
        "c1",
        "allow",
        True,
        "adds pin",
    )
    given, made = '{"card":"4111 1111"}', '{"card":"4111 1111","pin":4711}'
    assert (before.before, before.after) == (fingerprint(given), fingerprint(made))
    assert (after.before, after.after) == (fingerprint(made), fingerprint('{"card":"****"}'))
    for secret in ("4111", "4711"):
        assert secret not in repr(outcome.decisions)
        assert secret not in repr(inner.decisions)
    assert inner.decisions == outcome.decisions


def fingerprint(text: str) -> cc.Fingerprint:
    return cc.Fingerprint(len(text), f"sha256:{hashlib.sha256(text.encode()).hexdigest()}")


async def test_with_ledger_values_a_row_holds_the_values_themselves() -> None:
    mask = cc.after_tool(name="mask")(lambda call, result: cc.allow("****", "hides"))
    deny = cc.after_tool(name="deny")(lambda call, result: cc.deny("no"))
    outcome = await session(deny, transforming("pin", 4711), mask, ledger_values=True).call("echo", {"x": 1})
    assert [(row.before, row.after) for row in outcome.decisions] == [
        ({"x": 1}, {"x": 1, "pin": 4711}),
        ({"x": 1, "pin": 4711}, "****"),
        ("****", "no"),
    ]


async def test_a_denial_after_the_tool_says_what_it_hid_by_fingerprint() -> None:
    deny = cc.after_tool(name="deny")(lambda call, result: cc.deny("no"))
    outcome = await session(deny).call("echo", {"x": "secret"})
    [row] = outcome.decisions
    assert (row.changed, row.before, row.after) == (True, fingerprint('{"x":"secret"}'), fingerprint("no"))
    assert "secret" not in repr(row)


@pytest.mark.parametrize("ledger_values", [False, True])
@pytest.mark.parametrize("bad", [math.nan, "a\ud800", object()])
async def test_a_rule_may_take_away_what_json_cannot_carry(bad: Any, ledger_values: bool) -> None:
    """Such arguments have no fingerprint; that is no reason to deny the rule that removes them."""
    clean = cc.before_tool(name="clean")(lambda call: cc.allow({"x": 0}, "cleans"))
    inner = session(clean, ledger_values=ledger_values)
    outcome = await inner.call("echo", {"x": bad})
    assert isinstance(outcome, cc.Inline)
    assert outcome.value == {"x": 0}
    assert (outcome.decisions[0].changed, outcome.decisions[0].before) == (True, None)
    assert inner.to_bytes()


@given(json_values(max_leaves=8), texts(min_size=1).filter(str.strip), st.booleans())
async def test_whatever_a_rule_puts_in_place_of_a_result_is_what_the_model_reads(
    value: Any, why: str, listening: bool
) -> None:
    replace = cc.after_tool(name="replace")(lambda call, result: cc.allow(value, why))
    outcome = await session(replace, on_event=(lambda event: None) if listening else None).call("echo", {"x": 1})
    assert isinstance(outcome, cc.Inline)
    assert outcome.value is value
    assert outcome.text == cc.render(value).text
    assert outcome.decisions[0].why == why


async def test_a_rule_that_changes_nothing_leaves_the_value_by_reference_and_rendered_once() -> None:
    value = {"rows": [1, 2]}

    async def give() -> Any:
        return value

    sizes: list[int] = []

    @cc.after_tool
    def measure(call: cc.ToolCall, result: cc.Result) -> Any:
        sizes.append(result.size)
        assert result.value is value
        return cc.allow()

    outcome = await cc.Boundary([give], rules=[measure, measure]).session(SCOPE).call("give")
    assert isinstance(outcome, cc.Inline)
    assert outcome.value is value
    assert sizes == [14, 14]


async def test_decisions_are_on_the_outcome_and_on_the_session_and_are_drained_once() -> None:
    log: list[str] = []
    inner = session(Noted("a", log))
    first = await inner.call("echo", call_id="1")
    second = await inner.call("echo", call_id="2")
    assert inner.decisions == first.decisions + second.decisions
    assert inner.drain_decisions() == first.decisions + second.decisions
    left = [inner.decisions, inner.drain_decisions()]
    assert left == [(), ()]
    third = await inner.call("echo", call_id="3")
    assert inner.decisions == third.decisions
    assert [row.call_id for row in third.decisions] == ["3", "3"]


async def test_a_ledger_that_nobody_drains_is_bounded_and_loses_its_oldest_rows_first() -> None:
    rules = [cc.before_tool(name=f"rule {number}")(lambda call: cc.allow()) for number in range(100)]
    inner = session(*rules)
    calls = MAX_LEDGER_ROWS // 100 + 2
    for number in range(calls):
        outcome = await inner.call("echo", call_id=str(number))
        assert len(outcome.decisions) == 100
    assert len(inner.decisions) == MAX_LEDGER_ROWS
    assert inner.decisions[0].call_id == "2"
    assert inner.decisions[-1].call_id == str(calls - 1)


async def test_without_rules_there_are_no_rows() -> None:
    inner = session()
    assert (await inner.call("echo")).decisions == inner.decisions == ()


ANSWERS = st.sampled_from(["allow", "reason", "change", "deny", "raise", "none", "ask"])


@given(st.lists(st.tuples(ANSWERS, ANSWERS, st.booleans()), max_size=5))
async def test_the_rows_are_the_walk_whatever_the_rules_answer_and_whoever_listens(
    plan: list[tuple[str, str, bool]],
) -> None:
    """One row for every rule that was asked, in the order in which it was asked, and the same with a listener."""

    def answer(what: str, value: Any) -> Any:
        match what:
            case "raise":
                raise ValueError("broken")
            case "none":
                return None
            case "reason":
                return cc.allow(why="because")
            case "change":
                return cc.allow(value, "changed")
            case "deny":
                return cc.deny("denied")
            case "ask":
                return cc.ask("may it?")
            case _:
                return cc.allow()

    def rule(index: int, before: str, after: str, asynchronous: bool) -> cc.Rule:
        class Planned(cc.Rule):
            name = str(index)

            def before_tool(self, call: cc.ToolCall) -> Any:
                asked.append((self.name, "before-tool"))
                return later(before, {"i": index}) if asynchronous else answer(before, {"i": index})

            def after_tool(self, call: cc.ToolCall, result: cc.Result) -> Any:
                asked.append((self.name, "after-tool"))
                return later(after, index) if asynchronous else answer(after, index)

        return Planned()

    async def later(what: str, value: Any) -> Any:
        return answer(what, value)

    rules = [rule(index, *each) for index, each in enumerate(plan)]
    found = []
    asked: list[tuple[str, str]] = []
    for on_event in (None, lambda event: None):
        asked.clear()
        outcome = await session(*rules, on_event=on_event).call("echo", {"i": -1})
        assert [(row.rule, row.moment) for row in outcome.decisions] == asked
        found.append((type(outcome), outcome.text if not isinstance(outcome, cc.Pending) else None, outcome.decisions))
    assert found[0] == found[1]

    walk = [each[0] for each in plan]
    stop = next((index for index, what in enumerate(walk) if what in ("deny", "raise", "none", "ask")), None)
    if stop is not None:
        assert [name for name, _ in asked] == [str(index) for index in range(stop + 1)]
        assert found[0][0] is (cc.Pending if walk[stop] == "ask" else cc.Denied)


async def test_an_unknown_tool_and_a_denied_call_are_on_the_sessions_ledger() -> None:
    log: list[str] = []
    inner = session(Noted("a", log, before=cc.deny("no")))
    await inner.call("nothing", call_id="1")
    await inner.call_batch([cc.ToolCall("echo", {}, "2"), cc.ToolCall("echo", {}, "3")])
    assert [(row.tool, row.call_id, row.outcome) for row in inner.decisions] == [
        ("nothing", "1", "deny"),
        ("echo", "2", "deny"),
        ("echo", "3", "deny"),
    ]


async def test_equal_calls_make_equal_rows_in_whichever_session() -> None:
    mask = cc.after_tool(name="mask")(lambda call, result: cc.allow("****", "hides"))
    first, second = [await session(transforming("a", 1), mask).call("echo", {"x": 1}) for _ in range(2)]
    assert first.decisions == second.decisions
