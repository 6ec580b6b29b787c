"""The chain: four steps in one order, and a host's own middlewares around and between them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio.lowlevel
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import coatcheck as cc
from coatcheck.boundary.chain import STEPS, Entrance, StepName, compose, place
from coatcheck.dispatch import Dispatch
from coatcheck.outcome import failed
from coatcheck.steps.step import Step

pytestmark = pytest.mark.anyio

SCOPE = cc.Scope(conversation="c")
Next = Callable[[cc.ToolCall], Awaitable[cc.Outcome]]


async def echo(**arguments: Any) -> Any:
    return arguments


@cc.tool(ceiling=cc.Ceiling(100_000))
async def large(size: int) -> str:
    return "x" * size


ALLOW = cc.before_tool(name="allows")(lambda call: cc.allow())
DIALS: dict[str, dict[str, Any]] = {
    "truncation": {"truncation": cc.Truncation(2000)},
    "placement": {"placement": cc.Placement(1000), "store": "memory:"},
    "governance": {"rules": [ALLOW]},
    "ceiling": {"tools": [echo, large]},
}


def boundary(*steps: str, **dials: Any) -> cc.Boundary:
    """A boundary with just these steps."""
    settings: dict[str, Any] = {"tools": [echo], **dials}
    for step in steps:
        settings.update(DIALS[step])
    return cc.Boundary(**settings)


def named(name: str, log: list[str] | None = None) -> cc.Middleware:
    async def middleware(call: cc.ToolCall, call_next: Next) -> cc.Outcome:
        if log is not None:
            log.append(f"{name} in")
        outcome = await call_next(call)
        if log is not None:
            log.append(f"{name} out")
        return outcome

    middleware.__name__ = name
    return middleware


# --- what is composed ---


@given(st.sets(st.sampled_from(STEPS)))
def test_the_chain_names_the_configured_steps_in_the_one_order_that_there_is(steps: set[str]) -> None:
    assert boundary(*steps).chain == tuple(step for step in STEPS if step in steps)


def test_nothing_is_on_until_it_is_asked_for() -> None:
    assert cc.Boundary([echo]).chain == ()
    assert cc.Boundary([echo], store="memory:").chain == ()
    assert cc.Boundary([echo], rules=[]).chain == ()


@given(
    st.sets(st.sampled_from(STEPS)),
    st.lists(st.none() | st.sampled_from(STEPS), max_size=6),
)
async def test_a_hosts_middlewares_stand_where_they_say_and_the_steps_keep_their_order(
    steps: set[str], places: list[StepName | None]
) -> None:
    log: list[str] = []
    entries = [
        named(f"m{index}", log) if step is None else cc.inside(step, named(f"m{index}", log))
        for index, step in enumerate(places)
    ]
    expected = [f"m{index}" for index, step in enumerate(places) if step is None]
    for step in STEPS:
        expected += [step] if step in steps else []
        expected += [f"m{index}" for index, where in enumerate(places) if where == step]
    made = boundary(*steps, middleware=entries)
    assert made.chain == tuple(expected)
    outcome = await made.session(SCOPE).call("echo", {"x": 1})
    assert isinstance(outcome, cc.Inline)
    hosts = [name for name in expected if name.startswith("m")]
    assert log == [f"{name} in" for name in hosts] + [f"{name} out" for name in reversed(hosts)]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("configured", [False, True])
async def test_inside_a_step_is_just_inside_of_it_whether_it_is_configured_or_not(
    step: StepName, configured: bool
) -> None:
    """What a middleware inside a step returns is what the step judges, and what it sees is what came from within."""
    sizes: list[int] = []

    async def measure(call: cc.ToolCall, call_next: Next) -> cc.Outcome:
        outcome = await call_next(call)
        sizes.append(len(outcome.text))
        return outcome

    dials = {name: dial for name, dial in DIALS.items() if configured or name != step}
    settings: dict[str, Any] = {"tools": [cc.tool(name="large")(large.function)]}
    for dial in dials.values():
        settings.update(dial)
    made = cc.Boundary(middleware=[cc.inside(step, measure)], **settings)
    steps = [name for name in STEPS if name in dials]
    at = STEPS.index(step)
    assert made.chain == (
        *[s for s in steps if STEPS.index(s) <= at],
        "measure",
        *[s for s in steps if STEPS.index(s) > at],
    )
    outcome = await made.session(SCOPE).call("large", {"size": 50_000})
    placed_within = "placement" in STEPS[at + 1 :] and "placement" in dials
    assert (sizes[0] == 50_000) is not placed_within
    assert isinstance(outcome, cc.Placed if "placement" in dials else cc.Truncated)


@pytest.mark.parametrize("step", ["tool", "", "Placement", "truncation ", None, 5])
def test_a_place_that_does_not_exist_is_refused_by_name(step: Any) -> None:
    with pytest.raises(cc.ConfigurationError) as refusal:
        cc.inside(step, named("m"))
    assert repr(step) in str(refusal.value)
    for known in STEPS:
        assert known in str(refusal.value)


class NotInstantiated:
    async def __call__(self, call: cc.ToolCall, call_next: Next) -> cc.Outcome:
        return await call_next(call)


@pytest.mark.parametrize("wrong", [None, 5, "placement", NotInstantiated])
@pytest.mark.parametrize("within", [False, True])
def test_what_is_no_middleware_is_refused_by_index(wrong: Any, within: bool) -> None:
    entry = cc.inside("placement", wrong) if within else wrong
    with pytest.raises(cc.ConfigurationError, match=r"middleware\[1\]"):
        boundary(middleware=[named("m"), entry])


def test_an_object_that_can_be_called_is_named_by_its_name_or_its_class() -> None:
    class Named(NotInstantiated):
        name = "its name"

    assert boundary(middleware=[NotInstantiated(), Named()]).chain == ("NotInstantiated", "its name")


# --- what a middleware may do ---


async def test_a_middleware_may_change_the_arguments_and_the_rules_within_see_it() -> None:
    seen: list[Any] = []

    @cc.before_tool
    def watch(call: cc.ToolCall) -> Any:
        seen.append(call.arguments)
        return cc.allow()

    async def adds(call: cc.ToolCall, call_next: Next) -> cc.Outcome:
        return await call_next(msgspec.structs.replace(call, arguments={**call.arguments, "added": True}))

    outcome = await boundary(rules=[watch], middleware=[adds]).session(SCOPE).call("echo", {"x": 1})
    assert isinstance(outcome, cc.Inline)
    assert outcome.value == {"x": 1, "added": True}
    assert seen == [{"x": 1, "added": True}]


@pytest.mark.parametrize("in_a_batch", [False, True])
async def test_a_fresh_call_in_place_of_the_one_that_came_keeps_scope_ledger_and_events(in_a_batch: bool) -> None:
    events: list[cc.Event] = []

    async def reroutes(call: cc.ToolCall, call_next: Next) -> cc.Outcome:
        return await call_next(cc.ToolCall("large", {"size": 5000}, "other"))

    made = cc.Boundary(
        [echo, large],
        rules=[ALLOW],
        middleware=[reroutes],
        store=cc.MemoryStore(),
        placement=cc.Placement(100),
        on_event=events.append,
    )
    session = made.session(SCOPE)
    call = cc.ToolCall("echo", {"x": 1}, "c1")
    outcome = (await session.call_batch([call]))[0] if in_a_batch else await session.call(*_parts(call), call_id="c1")
    assert isinstance(outcome, cc.Placed)
    assert (outcome.tool, outcome.call_id) == ("large", "other")
    assert [(row.tool, row.call_id) for row in outcome.decisions] == [("large", "other")]
    assert session.decisions == outcome.decisions
    artifact = await session.redeem(outcome.ticket.ref)
    assert artifact is not None
    assert len(artifact.data) == 5000
    minted = [event for event in events if isinstance(event, cc.ArtifactMinted)]
    assert [(event.tool, event.call_id, event.turn) for event in minted] == [("large", "other", 1)]


def _parts(call: cc.ToolCall) -> tuple[str, dict[str, Any]]:
    return call.name, call.arguments


async def test_a_middleware_may_answer_itself_and_nothing_within_is_asked() -> None:
    log: list[str] = []

    async def cached(call: cc.ToolCall, call_next: Next) -> cc.Outcome:
        return cc.Inline(tool=call.name, call_id=call.call_id, text="from the cache", value="from the cache")

    @cc.before_tool
    def rule(call: cc.ToolCall) -> Any:
        log.append("asked")
        return cc.allow()

    outcome = await boundary(rules=[rule], middleware=[cached]).session(SCOPE).call("echo", call_id="c1")
    assert (outcome.text, outcome.executed, outcome.decisions, log) == ("from the cache", False, (), [])


@pytest.mark.parametrize(
    ("size", "expected"), [(1000, cc.Inline), (1001, cc.Placed), (2001, cc.Placed), (100_000, cc.Placed)]
)
async def test_what_a_middleware_answers_is_measured_by_the_steps_around_it(size: int, expected: type) -> None:
    text = "é" * size

    async def answers(call: cc.ToolCall, call_next: Next) -> cc.Outcome:
        return cc.Inline(tool=call.name, call_id=call.call_id, text=text, value=text)

    made = boundary("truncation", "placement", middleware=[cc.inside("placement", answers)])
    session = made.session(SCOPE)
    outcome = await session.call("echo")
    assert type(outcome) is expected
    if isinstance(outcome, cc.Placed):
        artifact = await session.redeem(outcome.ticket.ref)
        assert artifact is not None
        assert artifact.data.decode() == text
    cut = await boundary("truncation", middleware=[cc.inside("truncation", answers)]).session(SCOPE).call("echo")
    assert isinstance(cut, cc.Truncated if size > 2000 else cc.Inline)
    assert len(cut.text) <= 2000


async def test_a_text_of_a_middleware_that_utf8_cannot_carry_breaks_nothing() -> None:
    async def answers(call: cc.ToolCall, call_next: Next) -> cc.Outcome:
        text = "\ud800" * call.arguments["times"]
        return cc.Inline(tool=call.name, text=text, value=text)

    for dials in (["truncation"], ["placement", "truncation"], []):
        for times in (1, 3000):
            made = boundary(*dials, middleware=[cc.inside("governance", answers)])
            outcome = await made.session(SCOPE).call("echo", {"times": times})
            outcome.text.encode()
            assert not isinstance(outcome, cc.Failed)


async def test_a_middleware_may_call_again_and_every_attempt_is_on_the_ledger() -> None:
    attempts = 0

    async def flaky() -> str:
        nonlocal attempts
        attempts += 1
        if attempts < 3:
            raise OSError(f"attempt {attempts}")
        return "done"

    async def retries(call: cc.ToolCall, call_next: Next) -> cc.Outcome:
        outcome = await call_next(call)
        while isinstance(outcome, cc.Failed):
            outcome = await call_next(call)
        return outcome

    for in_a_batch in (False, True):
        attempts = 0
        session = cc.Boundary([flaky], rules=[ALLOW], middleware=[retries]).session(SCOPE)
        batch = [cc.ToolCall("flaky")]
        outcome = (await session.call_batch(batch))[0] if in_a_batch else await session.call("flaky")
        assert outcome.text == "done"
        assert len(outcome.decisions) == len(session.decisions) == 3


@pytest.mark.parametrize("where", [None, *STEPS])
async def test_a_middleware_that_raises_fails_its_call_and_the_model_learns_no_internals(
    where: StepName | None, caplog: pytest.LogCaptureFixture
) -> None:
    async def breaks(call: cc.ToolCall, call_next: Next) -> cc.Outcome:
        if call.arguments:
            raise RuntimeError("password=hunter2")
        return await call_next(call)

    entry = breaks if where is None else cc.inside(where, breaks)
    session = boundary("truncation", "placement", "governance", middleware=[entry]).session(SCOPE)
    outcome = await session.call("echo", {"x": 1}, call_id="c1")
    assert isinstance(outcome, cc.Failed)
    assert outcome.call_id == "c1"
    assert "hunter2" not in outcome.text
    assert "hunter2" in caplog.text
    assert (await session.call("echo")).text == "{}", "the session goes on"


@pytest.mark.parametrize("answer", [None, "text", {}, cc.allow(), cc.Inline])
async def test_a_middleware_that_gives_no_outcome_fails_its_call_by_its_name(answer: Any) -> None:
    async def forgets(call: cc.ToolCall, call_next: Next) -> Any:
        await call_next(call)
        return answer

    outcome = await boundary(middleware=[forgets]).session(SCOPE).call("echo")
    assert isinstance(outcome, cc.Failed)
    assert "forgets" in outcome.text


async def test_a_middleware_that_is_not_async_fails_its_call_and_crashes_nothing() -> None:
    def forgets(call: cc.ToolCall, call_next: Next) -> Any:
        return None

    outcome = await boundary(middleware=[forgets]).session(SCOPE).call("echo")
    assert isinstance(outcome, cc.Failed)


async def test_outcomes_are_values_and_a_middleware_that_builds_another_one_is_believed() -> None:
    async def relabels(call: cc.ToolCall, call_next: Next) -> cc.Outcome:
        outcome = await call_next(call)
        assert outcome.text == '{"x":1}'
        return msgspec.structs.replace(outcome, text=outcome.text + " checked", status="partial")

    for step in STEPS:
        made = boundary(*STEPS, middleware=[cc.inside(step, relabels)])
        outcome = await made.session(SCOPE).call("echo", {"x": 1})
        assert (type(outcome), outcome.text, outcome.status) == (cc.Inline, '{"x":1} checked', "partial")


async def test_an_answer_that_a_middleware_hands_out_twice_keeps_each_calls_own_rows() -> None:
    """A cache inside governance returns one and the same outcome again and again; it is a value, nobody's own."""
    kept: dict[str, cc.Outcome] = {}

    async def cache(call: cc.ToolCall, call_next: Next) -> cc.Outcome:
        if call.name not in kept:
            kept[call.name] = await call_next(call)
        return kept[call.name]

    session = boundary(rules=[ALLOW], middleware=[cc.inside("governance", cache)]).session(SCOPE)
    first = await session.call("echo", call_id="1")
    rows = first.decisions
    second = await session.call("echo", call_id="2")
    assert [row.call_id for row in second.decisions] == ["2"]
    assert [row.call_id for row in first.decisions] == ["1"]
    assert first.decisions == rows
    assert [row.call_id for row in session.decisions] == ["1", "2"]


# --- one coroutine for neighbouring steps is nesting ---


class Plan(msgspec.Struct, frozen=True):
    """What one made-up step does."""

    size: int
    waits: bool
    answers: bool
    grows: int


class Measuring(Step):
    """A step that is over at a size, logs what it sees, and adds to the text.

    As `Step` asks: an outcome that a step outside of it made on the way in is not its business.
    """

    def __init__(self, number: int, plan: Plan, enters: bool, log: list[str]) -> None:
        self._number = number
        self._plan = plan
        self._log = log
        self.enters = enters
        self.least = plan.size

    def enter(self, call: Dispatch) -> Dispatch | cc.Outcome | Awaitable[Dispatch | cc.Outcome]:
        if not self.enters:
            return call
        self._log.append(f"{self._number} enters {call.arguments}")
        on: Dispatch | cc.Outcome = call.with_arguments({**call.arguments, str(self._number): True})
        if self._plan.answers:
            on = failed(call, f"answered by {self._number}")
        return self._later(on) if self._plan.waits else on

    async def _later(self, on: Dispatch | cc.Outcome) -> Dispatch | cc.Outcome:
        await anyio.lowlevel.checkpoint()
        return on

    def over(self, call: Dispatch, outcome: cc.Outcome, size: int) -> bool:
        answered_outside = isinstance(outcome, cc.Failed) and int(outcome.reason.split()[-1]) < self._number
        return size > self._plan.size and not answered_outside

    async def act(self, call: Dispatch, outcome: cc.Outcome) -> cc.Outcome:
        self._log.append(f"{self._number} acts on {outcome.text} of {call.arguments if self.enters else '?'}")
        return msgspec.structs.replace(outcome, text=outcome.text + "+" * self._plan.grows)


def nested(steps: list[Step], innermost: Entrance) -> Entrance:
    """The steps as what they are said to be: each a middleware around the next."""
    call_next = innermost
    for step in reversed(steps):
        call_next = _around(step, call_next)
    return call_next


def _around(step: Step, call_next: Entrance) -> Entrance:
    return lambda call: step(call, call_next)


@given(
    st.lists(st.builds(Plan, st.integers(-1, 12), st.booleans(), st.booleans(), st.integers(0, 4)), max_size=4),
    st.integers(0, 4),
    st.integers(0, 12),
    st.sets(st.integers(0, 4)),
)
async def test_steps_that_share_a_coroutine_do_what_steps_that_are_nested_do(
    plans: list[Plan], enters: int, size: int, between: set[int]
) -> None:
    """Whatever they measure and add, whichever of them looks at the call, and wherever a middleware stands between."""
    found = []
    for together in (True, False):
        log: list[str] = []

        async def run(call: Dispatch, log: list[str] = log) -> cc.Outcome:
            log.append(f"runs with {call.arguments}")
            return cc.Inline(tool=call.name, text="x" * size, value=None, executed=True)

        steps: list[Step] = [Measuring(number, plan, number == enters, log) for number, plan in enumerate(plans)]
        if together:
            placed: list[tuple[str, Any]] = []
            for number, step in enumerate(steps):
                placed += [("host", named("host"))] if number in between else []
                placed.append((str(number), step))
            entrance = compose(placed, run)
        else:
            entrance = nested(steps, run)
        outcome = await entrance(Dispatch("f", {}, None, SCOPE))
        found.append((type(outcome), outcome.text, log))
    assert found[0] == found[1]


def test_placing_the_steps_is_a_pure_function_of_what_is_configured() -> None:
    steps: dict[StepName, Step] = {name: Step() for name in STEPS if name != "governance"}
    placed = place(steps, [cc.inside("placement", named("m"))])
    assert [name for name, _ in placed] == ["truncation", "placement", "m", "ceiling"]
    assert placed[0][1] is steps["truncation"]
