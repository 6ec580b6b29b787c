"""What a rule is, and the three words that it may answer with."""

from __future__ import annotations

import inspect
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import coatcheck as cc
from coatcheck.results.rendering import render
from coatcheck.steps.rule import PLAIN_ALLOW, UNCHANGED, Allow, Ask, Deny, Result, bind_rules
from coatcheck.testing.strategies import json_values

CALL = cc.ToolCall("echo", {"a": 1}, "c1")

BLANK: list[Any] = ["", " ", "\t\n", "\u00a0\u3000"]
NO_TEXT: list[Any] = [0, 1, True, b"no", ["no"], {"a": 1}, object()]


# --- the words ---


def test_a_plain_allow_is_one_object_and_changes_nothing() -> None:
    assert cc.allow() is cc.allow() is PLAIN_ALLOW
    assert cc.allow().value is UNCHANGED
    assert cc.allow().why is None


@given(st.one_of(json_values(), st.sampled_from([None, False, "", 0, [], {}])))
def test_every_value_is_a_value_and_needs_a_reason(value: Any) -> None:
    assert cc.allow(value, "because") == Allow(value, "because")
    assert cc.allow(value, "because").value is value
    with pytest.raises(cc.ConfigurationError, match="needs a why"):
        cc.allow(value)


def test_a_reason_may_stand_without_a_value() -> None:
    assert cc.allow(why="harmless").value is UNCHANGED
    assert cc.allow(why="harmless").why == "harmless"


@pytest.mark.parametrize("reason", [*BLANK, *NO_TEXT, None])
def test_a_word_without_a_sentence_is_refused_when_it_is_said(reason: Any) -> None:
    with pytest.raises(cc.ConfigurationError, match=r"^deny\(reason\)"):
        cc.deny(reason)
    with pytest.raises(cc.ConfigurationError, match=r"^ask\(question\)"):
        cc.ask(reason)
    with pytest.raises(cc.ConfigurationError, match=r"^allow\("):
        cc.allow({}, reason)


@pytest.mark.parametrize("why", [*BLANK, *NO_TEXT])
def test_a_reason_for_nothing_is_a_sentence_all_the_same(why: Any) -> None:
    with pytest.raises(cc.ConfigurationError, match=r"^allow\(why"):
        cc.allow(why=why)


@pytest.mark.parametrize("make", [lambda: Deny(""), lambda: Ask(" "), lambda: Allow(1), lambda: Allow(why="")])
def test_there_is_no_way_around_the_sentence(make: Any) -> None:
    with pytest.raises(cc.ConfigurationError):
        make()


@given(st.text(min_size=1).filter(lambda text: bool(text.strip())))
def test_a_sentence_is_kept_as_it_was_said_where_utf8_can_carry_it(sentence: str) -> None:
    carried = sentence.encode(errors="backslashreplace").decode()
    assert cc.deny(sentence).reason == carried
    assert cc.ask(sentence, {"k": 1}) == Ask(carried, {"k": 1})
    assert cc.allow(1, sentence).why == carried


def test_words_are_values_and_cannot_be_changed() -> None:
    for word, field in ((cc.allow(1, "w"), "value"), (cc.deny("d"), "reason"), (cc.ask("q"), "question")):
        with pytest.raises(AttributeError):
            setattr(word, field, "other")


# --- what a rule is ---


class Both(cc.Rule):
    def before_tool(self, call: cc.ToolCall) -> Any:
        return cc.allow()

    def after_tool(self, call: cc.ToolCall, result: Any) -> Any:
        return cc.deny("never")


class Renamed(Both):
    name = "a name of its own"


class Heir(Renamed):
    """It is another rule, so it has another name."""


class Duck:
    name = "duck"

    async def before_tool(self, call: cc.ToolCall) -> Any:
        return cc.allow()


@cc.before_tool
def before(call: cc.ToolCall) -> Any:
    return cc.deny(f"not {call.name}")


@cc.after_tool
def after(call: cc.ToolCall, result: Any) -> Any:
    return cc.allow(result.text.upper(), "louder")


@cc.before_tool(name="spoken", thread=True)
def slow(call: cc.ToolCall) -> Any:
    return cc.allow()


@cc.after_tool(name="read")
async def later(call: cc.ToolCall, result: Any) -> Any:
    return cc.allow()


def test_a_rule_is_called_as_its_class_unless_it_says_otherwise() -> None:
    assert [rule.name for rule in (Both(), Renamed(), Heir())] == ["Both", "a name of its own", "Heir"]


def test_a_decorated_function_is_a_rule_with_one_hook_that_can_still_be_called() -> None:
    assert isinstance(before, cc.Rule)
    assert before.name == "before"
    assert after.name == "after"
    assert slow.name == "spoken"
    assert (before.thread, slow.thread) == (False, True)
    assert getattr(before, "before_tool")(CALL) == cc.deny("not echo")  # noqa: B009 - a rule's hooks are optional
    assert not hasattr(before, "after_tool")
    assert not hasattr(after, "before_tool")


def test_hooks_before_are_walked_as_declared_and_hooks_after_in_reverse() -> None:
    bound = bind_rules([before, Both(), after, Duck(), later, Renamed()])
    assert bound.names == ("before", "Both", "after", "duck", "read", "a name of its own")
    assert [(hook.name, hook.index) for hook in bound.before] == [
        ("before", 0),
        ("Both", 1),
        ("duck", 3),
        ("a name of its own", 5),
    ]
    assert [(hook.name, hook.index) for hook in bound.after] == [
        ("a name of its own", 5),
        ("read", 4),
        ("after", 2),
        ("Both", 1),
    ]


@given(st.lists(st.sampled_from([before, after, Both(), Duck()]), max_size=8))
def test_every_hook_is_walked_once_and_keeps_the_index_of_its_rule(rules: list[Any]) -> None:
    bound = bind_rules(rules)
    assert bound.names == tuple(rule.name for rule in rules)
    with_before = [index for index, rule in enumerate(rules) if hasattr(rule, "before_tool")]
    with_after = [index for index, rule in enumerate(rules) if hasattr(rule, "after_tool")]
    assert [hook.index for hook in bound.before] == with_before
    assert [hook.index for hook in bound.after] == with_after[::-1]


def test_no_rules_are_no_hooks() -> None:
    bound = bind_rules(())
    assert (bound.names, bound.before, bound.after) == ((), (), ())


@pytest.mark.anyio
async def test_a_rule_that_blocks_answers_from_a_worker_thread() -> None:
    seen: list[int] = []

    @cc.before_tool(thread=True)
    def blocking(call: cc.ToolCall) -> Any:
        seen.append(threading.get_ident())
        return cc.deny("thought about it")

    [hook] = bind_rules([blocking]).before
    said = hook.function(CALL)
    assert inspect.isawaitable(said)
    assert await said == cc.deny("thought about it")
    assert seen != [threading.get_ident()]


class Nameless:
    def before_tool(self, call: cc.ToolCall) -> Any:
        return cc.allow()


class Named:
    def __init__(self, name: Any, hook: Any = None) -> None:
        self.name = name
        if hook is not None:
            self.before_tool = hook


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        (Both, r"rules\[1\] is the class Both; pass an instance: Both\(\)"),
        (Nameless(), r"rules\[1\] \(Nameless\) has no name"),
        (lambda call: cc.allow(), r"rules\[1\] is the plain function <lambda>: decorate it with @before_tool"),
        (cc.allow(), r"rules\[1\] \(Allow\) has no name"),
        (None, r"rules\[1\] \(NoneType\) has no name"),
        ("before", r"rules\[1\] \(str\) has no name"),
        (Named("", lambda call: cc.allow()), r"rules\[1\] \(Named\) has no name"),
        (Named("  ", lambda call: cc.allow()), r"rules\[1\] \(Named\) has no name"),
        (Named(7, lambda call: cc.allow()), r"rules\[1\] \(Named\) has no name"),
        (Named("idle"), r"rules\[1\] \(idle\) has none of the hooks before_tool, after_tool, after_chunk"),
        (Named("odd", "not a function"), r"rules\[1\] \(odd\): its hook 'not a function' cannot be called"),
        (cc.Rule(), r"rules\[1\] \(Rule\) has no name"),
    ],
)
def test_what_is_no_rule_is_refused_by_its_place_in_the_list(rule: Any, problem: str) -> None:
    with pytest.raises(cc.ConfigurationError, match=problem):
        bind_rules([before, rule])


# --- what a rule after the tool sees ---


def test_a_rule_sees_the_value_by_reference_and_the_text_only_when_it_asks() -> None:
    value = {"rows": ["é" * 100] * 100}
    rendered = render(value)
    outcome = cc.Inline(tool="t", text=rendered, value=value, status="partial", executed=True)  # type: ignore[arg-type]
    result = Result(outcome)
    assert result.value is value
    assert result.size == rendered.size
    assert (result.status, result.error) == ("partial", False)
    assert rendered.decoded is None
    assert result.text == rendered.text
    assert len(result.text) == result.size


def test_where_there_is_no_value_a_rule_sees_what_the_model_reads() -> None:
    failed = Result(cc.Failed(tool="t", text="boom", reason="boom", executed=True))
    assert (failed.value, failed.text, failed.size, failed.error, failed.status) == ("boom", "boom", 4, True, None)
    refused = Result(cc.TooLarge(tool="t", text="refused", size=9, max_chars=1, status="invalid", executed=True))
    assert (refused.value, refused.error, refused.status) == ("refused", False, "invalid")


def test_binary_counts_by_its_bytes_for_a_rule_as_well() -> None:
    rendered = render(bytes(5000))
    outcome = cc.Inline(tool="t", text=rendered, value=bytes(5000), content=rendered.blobs)  # type: ignore[arg-type]
    result = Result(outcome)
    assert (result.size, result.text) == (5000, "[application/octet-stream, 5000 bytes, attached]")
