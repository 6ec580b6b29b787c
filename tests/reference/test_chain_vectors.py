"""The reference's vectors about the governance chain and about whole calls, driven through a real boundary.

The rules and tools of a vector are scripts; here they are made real ones. What came of a run is told in the
reference's words and compared as a whole. A vector that does not hold as it is stands in `PARTED`, with the numbers of
the partings in `design.md` section 3; `amended` says, part by part, what our own
right value is, and everything else in it still holds.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import pytest

from coatcheck import (
    AbsenceDeclared,
    AnyOutcome,
    ArtifactMinted,
    ArtifactRefused,
    Boundary,
    CallNext,
    Ceiling,
    ConfigurationError,
    CoverageDeclared,
    Decision,
    DecisionMade,
    Denied,
    EffectJudged,
    Event,
    Failed,
    Fingerprint,
    Inline,
    MemoryStore,
    Middleware,
    Outcome,
    Pending,
    Placed,
    Placement,
    Result,
    ResultRefused,
    Scope,
    Session,
    Tool,
    TooLarge,
    ToolCall,
    ToolEnded,
    ToolStarted,
    Truncated,
    Truncation,
    allow,
    ask,
    deny,
    inside,
    tool,
)
from coatcheck.boundary.chain import STEPS, Inside
from coatcheck.dispatch import Dispatch
from coatcheck.effects.instructions import Instruction, InstructionCatalog
from coatcheck.effects.leases import Lease
from coatcheck.effects.state import Move, TurnState
from coatcheck.events import CallRepeated, RouteConflict
from coatcheck.steps.governance import GovernanceStep
from coatcheck.steps.rule import bind_rules
from tests.reference._forms import load, untag
from tests.reference.test_effects_vectors import graph_of, lease_of


def catalog_of(targets: Iterable[str]) -> InstructionCatalog:
    return InstructionCatalog([Instruction(id, f"text of {id}") for id in targets])


def move_told(move: Move) -> dict[str, Any]:
    return {"toolCallId": move.call_id, "toolName": move.tool, "target": move.target}


def conflict_told(event: Event) -> dict[str, Any]:
    assert isinstance(event, RouteConflict)
    return {
        "event": "skill.route_conflict",
        "winner": move_told(event.winner),
        "losers": [move_told(m) for m in event.losers],
        "source": "tool-proposal",
    }


def proposal_told(move: Move) -> dict[str, Any]:
    return {"target": move.target, "iteration": move.turn, "call_id": move.call_id}


def lease_told(lease: Lease) -> dict[str, Any]:
    return {"id": lease.instruction_id, "lease": lease.delivery_lease, "tenant": lease.skill, "iteration": lease.turn}


pytestmark = pytest.mark.anyio

FILES = ("dispatch", "dispatchResume", "runToolAfterChain", "runToolChain")
VECTORS = {vector["id"]: vector for name in FILES for vector in load(name)}

PARTED: dict[str, tuple[int, ...]] = {
    "dispatch/after-deny": (12,),
    "dispatch/after-deny-effects-still-judged": (12,),
    "dispatch/after-runs-on-error": (12,),
    "dispatch/after-throw": (12,),
    "dispatch/ask-mid-batch": (4,),
    "dispatch/batch-refused-does-not-win": (12,),
    "dispatch/lease-no-targets": (12,),
    "dispatch/lease-unknown-id": (12,),
    "dispatch/malformed-effect-refused": (12,),
    "dispatch/placement-put-refused-then-cap": (9,),
    "dispatch/placement-refused-effect-note-after-ticket": (6, 12),
    "dispatch/repeat-fingerprints-before-suffix": (12,),
    "dispatch/repeat-note": (12,),
    "dispatch/transition-no-graph": (12,),
    "dispatch/transition-to-self": (12,),
    "dispatch/transition-unreachable-nothing-reachable": (12,),
    "dispatchResume/approve-skips-arg-validation": (3,),
    "dispatchResume/resume-mid-batch": (4,),
    "runToolAfterChain/ask-at-after-tool": (2,),
    "runToolAfterChain/deny-inner": (12,),
    "runToolAfterChain/returns-nothing": (2,),
    "runToolAfterChain/throw-outer": (12,),
    "runToolChain/returns-nothing": (2,),
    "runToolChain/unknown-kind": (2,),
}

LISTED = sorted(PARTED)

SCOPE = Scope(conversation="conv-1")

tried: set[str] = set()


def runnable(*names: str) -> list[dict[str, Any]]:
    """The vectors of some files."""
    found = [vector for name in names for vector in load(name)]
    tried.update(vector["id"] for vector in found)
    return found


def of(vectors: Iterable[dict[str, Any]]) -> pytest.MarkDecorator:
    vectors = list(vectors)
    return pytest.mark.parametrize("vector", vectors, ids=[vector["id"] for vector in vectors])


def missing(text: str, mentions: Iterable[str]) -> list[str]:
    """The facts that a sentence does not carry as words of their own."""
    return [token for token in mentions if not re.search(rf"(?<!\w){re.escape(token)}(?!\w)", text)]


def so_far(vector: dict[str, Any]) -> Any:
    """The outcome that a vector expects, as JSON has it."""
    return copy.deepcopy(vector["expect"])


# Rules and tools from scripts


def spoken(op: dict[str, Any]) -> Any:
    """What a scripted hook answers."""
    [(verb, argument)] = op.items()
    match verb:
        case "allow" if argument is True:
            return allow()
        case "allow" if "value" in argument:
            return allow(untag(argument["value"]), argument["why"])
        case "allow":
            return allow(why=argument["why"])
        case "deny":
            return deny(argument)
        case "ask":
            return ask(argument)
        case "throw":
            raise RuntimeError(argument)
        case "raw" if argument["kind"] == "ask":  # an ask where nobody may ask
            return ask(argument["payload"]["question"])
        case "raw":
            return argument
        case "returns_nothing":
            return None
    raise ValueError(f"{verb} is no verb of a script")


class Link:
    """A rule that does what its script says, and notes what it was shown."""

    def __init__(self, script: dict[str, Any], way: str, order: list[str]) -> None:
        self.name = script["name"]
        self.thread = way == "thread"
        self.script = script
        self.calls: list[dict[str, Any]] = []
        self.results: list[dict[str, Any]] = []
        self._order = order
        if "before" in script:
            self.before_tool = self._hook(self._before, way)
        if "after" in script:
            self.after_tool = self._hook(self._after, way)

    def _hook(self, answer: Callable[..., Any], way: str) -> Callable[..., Any]:
        async def hook(*shown: Any) -> Any:
            return answer(*shown)

        return hook if way == "async" else answer

    def _before(self, call: ToolCall) -> Any:
        self.calls.append(call.arguments)
        return spoken(self._meant("before", call))

    def _after(self, call: ToolCall, result: Result) -> Any:
        self._order.append(self.name)
        self.results.append({"result": result.value, "args": call.arguments, "error": result.error})
        return spoken(self._meant("after", call))

    def _meant(self, hook: str, call: ToolCall) -> dict[str, Any]:
        meant: dict[str, Any] = self.script[hook]
        return meant if self.script.get("only_tool", call.name) == call.name else {"allow": True}


NUMBER = {"type": "object", "properties": {"n": {"type": "number"}}, "required": ["n"]}
REF = {"type": "object", "properties": {"d": {"type": "string"}}}


def built(name: str, script: dict[str, Any], ran: list[tuple[str, dict[str, Any]]]) -> Tool[..., Any]:
    """A tool that does what its script says, and notes what it ran with."""

    def run(arguments: dict[str, Any]) -> Any:
        ran.append((name, arguments))
        if "raises" in script:
            raise RuntimeError(script["raises"])
        return arguments[script["returns_arg"]] if "returns_arg" in script else untag(script["returns"])

    async def takes_anything(**arguments: Any) -> Any:
        return run(arguments)

    async def takes_a_number(n: float) -> Any:
        return run({"n": n})

    async def takes_a_ref(d: Any = None) -> Any:
        return run({} if d is None else {"d": d})

    assert script.keys() <= {"returns", "raises", "returns_arg", "input_schema", "result_ceiling", "wants"}
    wants: dict[str, str] | None = script.get("wants")
    assert wants is None or list(wants) == ["d"]
    assert wants is not None or script.get("input_schema", NUMBER) == NUMBER
    ours = {"maxChars": "max_chars", "narrowBy": "narrow_by"}
    ceiling = None
    if "result_ceiling" in script:
        ceiling = Ceiling(**{ours[dial]: value for dial, value in script["result_ceiling"].items()})
    if wants is not None:
        assert script.get("input_schema", REF) == REF
        return tool(name=name, ceiling=ceiling, wants=wants)(takes_a_ref)
    return tool(name=name, ceiling=ceiling)(takes_a_number if "input_schema" in script else takes_anything)


# runToolChain and runToolAfterChain: one walk


SECRET = "a secret that both replicas know"
WAYS = ("sync", "async", "thread")


class Walk:
    """One call through the rules of a vector: what they saw, what they decided, what came of it."""

    def __init__(self, vector: dict[str, Any], way: str, *, heard: bool) -> None:
        self.given = vector["input"]
        self.events: list[Event] | None = [] if heard else None
        self.order: list[str] = []
        self.links = [Link(script, way, self.order) for script in self.given["chain"]]
        self.ran: list[dict[str, Any]] = []
        self.result = untag(self.given.get("result", "found"))

    async def run(self) -> Walk:
        session = self.boundary(self.links).session(SCOPE)
        session.turn = 2
        if "start_index" in self.given:
            self.outcome = await self.resumed(session)
        else:
            self.outcome = await session.call("lookup", {"q": 1}, call_id="call-1")
        self.rows = self.outcome.decisions
        assert session.decisions == self.rows
        return self

    async def resumed(self, session: Session) -> AnyOutcome:
        """Start behind a link: a rule of the same name and place asked, and a person said yes."""
        index: int = self.given["start_index"] - 1
        asking = [Link({"name": link.name, "before": {"allow": True}}, "sync", []) for link in self.links]
        asking[index] = Link({"name": asking[index].name, "before": {"ask": "go on?"}}, "sync", [])
        elsewhere = self.boundary(asking).session(SCOPE)
        elsewhere.turn = 2
        pending = await elsewhere.call("lookup", {"q": 1}, call_id="call-1")
        assert isinstance(pending, Pending)
        assert pending.call.index == index
        if self.events is not None:
            self.events.clear()
        outcome = await session.resume(pending.call.to_bytes(), approved=True, by="dana")
        granted, *rows = outcome.decisions
        assert (granted.rule, granted.outcome, granted.changed) == (asking[index].name, "allow", False)
        assert session.drain_decisions() == outcome.decisions
        session.restore(rows, ())
        if self.events is not None:
            del self.events[next(at for at, event in enumerate(self.events) if isinstance(event, DecisionMade))]
        return msgspec.structs.replace(outcome, decisions=tuple(rows))

    def boundary(self, rules: list[Link]) -> Boundary:
        async def lookup(**arguments: Any) -> Any:
            self.ran.append(arguments)
            if self.given.get("error"):
                raise RuntimeError(self.result)
            return self.result

        events = self.events
        return Boundary(
            [lookup],
            rules=rules,
            secret=SECRET,
            ledger_values=True,
            on_event=None if events is None else events.append,
        )

    def at(self, moment: str) -> list[Decision]:
        return [row for row in self.rows if row.moment == moment]

    def check_events(self) -> None:
        """One event a row, in order, without what was changed."""
        if self.events is None:
            return
        made = [event for event in self.events if isinstance(event, DecisionMade)]
        assert [(event.rule, event.moment, event.outcome, event.changed, event.why) for event in made] == [
            (row.rule, row.moment, row.outcome, row.changed, row.why) for row in self.rows
        ]
        assert {event.turn for event in self.events} == {3}
        assert {event.call_id for event in self.events} == {"call-1"}


def told(row: Decision) -> dict[str, Any]:
    """A row in the reference's words. What was changed is only there where something was."""
    if not row.changed:
        assert row.before is None
        assert row.after is None
    return {
        "middleware": row.rule,
        "moment": row.moment,
        "outcome": row.outcome,
        "changed": row.changed,
        "has_why": row.why is not None,
        "has_before_after": row.changed,
        "iteration": 3,  # `Walk.check_events` compares the turn
        "tool_call_id": row.call_id,
    }


def check_reason(reason: str, expect: dict[str, Any]) -> None:
    assert reason == expect.get("exact", reason)
    assert missing(reason, expect.get("mentions", ())) == []


def check_before(walk: Walk, expect: dict[str, Any]) -> None:
    assert not expect.get("chain_raised")
    rows = walk.at("before-tool")
    assert [told(row) for row in rows] == expect["rows"]
    assert [len(link.calls) for link in walk.links] == expect["ran"]
    assert [link.calls[0] if link.calls else None for link in walk.links] == expect["saw_args"]
    scripts = {link.name: link for link in walk.links}
    arguments = {"q": 1}
    for row in rows:
        if row.changed:
            assert row.before == arguments == scripts[row.rule].calls[0]
            assert row.after == scripts[row.rule].script["before"]["allow"]["value"]
            arguments = row.after
    assert arguments == expect["args"]
    outcome = walk.outcome
    assert outcome.executed == (expect["kind"] == "allow")
    assert walk.ran == ([arguments] if outcome.executed else [])
    match expect["kind"]:
        case "ask":
            assert isinstance(outcome, Pending)
            pending = outcome.call
            assert (pending.rule, pending.index) == (expect["middleware"], expect["index"])
            assert (pending.question, pending.arguments) == (expect["question"], arguments)
        case "deny":
            assert isinstance(outcome, Denied)
            assert outcome.rule == expect["middleware"]
            assert outcome.text == outcome.reason == rows[-1].why
            check_reason(outcome.reason, expect["reason"])
    assert (outcome.status, outcome.error) == (None, False)
    walk.check_events()


def check_after(walk: Walk, expect: dict[str, Any]) -> None:
    assert not expect.get("chain_raised")
    rows = walk.at("after-tool")
    outcome = walk.outcome
    reason = outcome.reason if isinstance(outcome, Denied) else None
    assert [
        told(row) | {"before": row.before, "after": "<reason>" if row.outcome == "deny" else row.after} for row in rows
    ] == expect["rows"]
    assert [row.after for row in rows if row.outcome == "deny"] == ([] if reason is None else [reason])
    assert walk.order == expect["walk_order"]
    assert [link.results[0] if link.results else None for link in walk.links] == expect["saw"]
    assert walk.ran == [{"q": 1}]
    assert outcome.executed
    assert outcome.status is None
    assert outcome.error == walk.given.get("error", False)
    if expect["kind"] == "deny":
        assert isinstance(outcome, Denied)
        assert outcome.rule == expect["middleware"]
        assert outcome.text == reason == rows[-1].why
        check_reason(outcome.text, expect["reason"])
        # The reference hands the real result on to its second channel; here it is on the ledger, if anywhere.
        assert "result" not in expect
        assert not hasattr(outcome, "value")
    elif isinstance(outcome, Failed):
        assert outcome.text == outcome.reason == expect["result"]
    else:
        assert isinstance(outcome, Inline)
        assert outcome.value == expect["result"]
        if not any(row.changed for row in rows):
            assert expect["result_is_the_real_one"]
            assert outcome.value is walk.result
    walk.check_events()


def amended_walk(vector: dict[str, Any]) -> Any:
    """What a vector about one walk expects here."""
    expect = so_far(vector)
    row: dict[str, Any] = {"middleware": "a", "outcome": "deny", "has_why": True, "iteration": 3}
    row |= {"tool_call_id": "call-1"}
    match vector["id"]:
        case "runToolChain/returns-nothing" | "runToolChain/unknown-kind":  # 2
            row |= {"moment": "before-tool", "changed": False, "has_before_after": False}
            expect = {"kind": "deny", "middleware": "a", "reason": {"mentions": ["a"]}, "rows": [row]}
            expect |= {"args": {"q": 1}, "ran": [1], "saw_args": [{"q": 1}]}
        case "runToolAfterChain/returns-nothing" | "runToolAfterChain/ask-at-after-tool":  # 2
            row |= {"moment": "after-tool", "changed": True, "has_before_after": True}
            row |= {"before": "raw", "after": "<reason>"}
            expect = {"kind": "deny", "middleware": "a", "reason": {"mentions": ["a"]}, "rows": [row]}
            expect |= {"walk_order": ["a"], "saw": [{"result": "raw", "args": {"q": 1}, "error": False}]}
        case "runToolAfterChain/deny-inner" | "runToolAfterChain/throw-outer":  # 12
            assert expect["rows"][-1]["before"] == expect.pop("result")
            assert expect.pop("result_is_the_real_one")
    return expect


CHECKS = {"runToolChain": check_before, "runToolAfterChain": check_after}
WALKS = runnable("runToolChain", "runToolAfterChain")


@pytest.mark.parametrize("heard", [True, False], ids=["heard", "unheard"])
@pytest.mark.parametrize("way", WAYS)
@of(WALKS)
async def test_the_rules_of_one_call_decide_as_in_the_reference(vector: dict[str, Any], way: str, heard: bool) -> None:
    walk = await Walk(vector, way, heard=heard).run()
    CHECKS[vector["fn"]](walk, amended_walk(vector))


async def test_governance_called_as_a_middleware_shows_the_rules_after_the_tool_what_it_really_ran_with() -> None:
    """As in `runToolAfterChain`, without a chain around the step."""
    script = VECTORS["runToolChain/transform-seen-by-later"]["input"]["chain"][0] | {"after": {"allow": True}}
    link = Link(script, "sync", [])
    step = GovernanceStep(bind_rules([link]), timeout=1, collect=1, ledger_values=True, make_pending=never_asked)

    async def tool_alone(call: ToolCall) -> Outcome:
        return Inline(tool=call.name, text="found", executed=True, value=call.arguments)

    outcome = await step(Dispatch("lookup", {"q": 1}, rows=[]), tool_alone)
    assert isinstance(outcome, Inline)
    assert outcome.value == {"q": 2}
    assert link.results == [{"result": {"q": 2}, "args": {"q": 2}, "error": False}]


def never_asked(call: Dispatch, hook_name: str, index: int, question: str, detail: Any) -> Pending:
    raise AssertionError(f"{hook_name} asks")


# dispatch: whole calls


async def hand_on(call: ToolCall, call_next: CallNext) -> Outcome:
    """A host's own middleware that changes nothing; it keeps the steps around it apart."""
    return await call_next(call)


BETWEEN: tuple[Middleware | Inside, ...] = (hand_on, *(inside(step, hand_on) for step in STEPS))


class Run:
    """The calls of a vector through a real boundary: what came of them, in the reference's words."""

    def __init__(self, vector: dict[str, Any], door: str) -> None:
        self.given = vector["input"]
        self.door = door
        self.heard = "unheard" not in door
        self.ran: list[tuple[str, dict[str, Any]]] = []
        self.events: list[Event] = []
        self.paused: list[Pending] = []
        self.store: MemoryStore | None = None
        if "store" in self.given:
            assert self.given["store"].keys() <= {"max_bytes_per_scope"}
            budget = self.given["store"].get("max_bytes_per_scope")
            self.store = MemoryStore() if budget is None else MemoryStore(max_bytes=budget)
        self.placement = None
        if "placement" in self.given:
            self.placement = Placement(self.given["placement"]["max_inline_chars"])
        self.limit: int | None = self.given.get("max_tool_result_chars")
        if 9 in PARTED.get(vector["id"], ()):
            with pytest.raises(ConfigurationError, match=rf"^Truncation\.max_chars is {self.limit}, but a ticket"):
                self.boundary()
            self.limit = 1024

    def boundary(self) -> Boundary:
        return Boundary(
            [built(name, script, self.ran) for name, script in self.given["tools"].items()],
            rules=[Link(script, "sync", []) for script in self.given.get("middleware", ())],
            store=self.store,
            placement=self.placement,
            truncation=None if self.limit is None else Truncation(self.limit),
            middleware=BETWEEN if "among middlewares" in self.door else (),
            secret=SECRET,
            on_event=self.events.append if self.heard else None,
            graph=graph_of(self.given["reachable"]) if "reachable" in self.given else None,
            instructions=catalog_of(self.given["lease_targets"]) if "lease_targets" in self.given else None,
            repeated_call_note=self.given.get("repeated_call_nudge", False),
        )

    async def run(self) -> Run:
        self.session = self.boundary().session(SCOPE)
        leases = tuple(map(lease_of, self.given.get("existing_leases", ())))
        if leases or "reachable" in self.given or "lease_targets" in self.given:
            number = self.given.get("iteration", 1)
            state = TurnState(number=number, skill=self.given.get("cursor"), leases=leases)
            self.session.restore((), (), state, ())
        self.preset = {each["as"]: await self.put(each) for each in self.given.get("preset", ())}
        self.outcomes = await self.called(self.session)
        self.paused = [outcome for outcome in self.outcomes if isinstance(outcome, Pending)]
        assert [row for outcome in self.outcomes for row in outcome.decisions] == list(self.session.decisions)
        if "resume" in self.given:
            [pending] = self.paused
            at = self.outcomes.index(pending)
            self.outcomes[at] = await self.resumed(pending)
        listed = () if self.store is None else (await self.store.list(SCOPE)).artifacts
        self.artifacts = tuple(meta for meta in listed if meta.ref not in self.preset.values())
        return self

    async def put(self, preset: dict[str, Any]) -> str:
        """Store what is there before the calls, in the conversation that it belongs to."""
        assert self.store is not None
        assert preset.keys() <= {"as", "scope", "kind", "data"}
        data = msgspec.json.encode(preset["data"])
        scope = Scope(conversation=preset.get("scope", SCOPE.conversation))
        return (await self.store.put(scope, data, kind=preset["kind"], media_type="application/json")).meta.ref

    def redeemable(self, value: Any) -> Any:
        """An argument in which a preset is named as ``@name``, with its ref."""
        if isinstance(value, dict):
            return {name: self.redeemable(item) for name, item in value.items()}
        return self.preset[value[1:]] if isinstance(value, str) and value.startswith("@") else value

    async def called(self, session: Session) -> list[AnyOutcome]:
        calls = [
            ToolCall(call["name"], self.redeemable(untag(call["args"])), call["id"]) for call in self.given["calls"]
        ]
        if "batch" in self.door:
            return await session.call_batch(calls)
        [call] = calls
        arguments = json.dumps(call.arguments) if "spoken" in self.door else call.arguments
        return [await session.call(call.name, arguments, call_id=call.call_id)]

    async def resumed(self, pending: Pending) -> AnyOutcome:
        """Answer, here or on another replica that has the session and the question from their bytes alone."""
        asked = pending.call
        if "elsewhere" in self.door:
            self.session = self.boundary().session_from_bytes(self.session.to_bytes())
            return await self.session.resume(asked.to_bytes(), **self.given["resume"])
        return await self.session.resume(asked, **self.given["resume"])

    # Each part in the reference's words

    def executed(self) -> dict[str, int]:
        names = [name for name, _ in self.ran]
        return {name: names.count(name) for name in self.given["tools"]}

    def decisions(self) -> list[dict[str, Any]]:
        for row in self.session.decisions:  # 15
            assert {type(row.before), type(row.after)} == {Fingerprint if row.changed else type(None)}
        return [
            {"middleware": row.rule, "moment": row.moment, "outcome": row.outcome, "changed": row.changed}
            for row in self.session.decisions
        ]

    def declared_coverage(self) -> list[dict[str, Any]]:
        found = [(outcome.tool, fact) for outcome in self.outcomes for fact in outcome.declared]
        assert [fact for _, fact in found] == list(self.session.declared_coverage)
        return [
            {
                "kind": fact.kind,
                "tool": name,
                "counts": [len(fact.checked), len(fact.not_checked), len(fact.cannot_cover)],
            }
            for name, fact in found
        ]

    async def stored(self) -> list[dict[str, Any]]:
        assert self.store is not None
        found = []
        for meta in self.artifacts:
            artifact = await self.store.get(SCOPE, meta.ref)
            assert artifact is not None
            script = next(script for name, script in self.given["tools"].items() if f"{name} result" == meta.label)
            returned = untag(script["returns"])
            content = returned["content"] if isinstance(returned, dict) and "effects" in returned else returned
            found.append(
                {
                    "kind": meta.kind,
                    "media_type": meta.media_type,
                    "bytes": meta.bytes,
                    "label": meta.label,
                    "data_is_text": artifact.data.decode() == content,
                }
            )
        return found

    def happened(self, call_id: str) -> list[dict[str, Any]]:
        """The events of one call, in order; its end comes last, once for each answer that the host got."""
        events = [event for event in self.events if event.call_id == call_id]
        assert isinstance(events[0], ToolStarted)
        assert isinstance(events[-1], ToolEnded)
        [outcome] = [outcome for outcome in self.outcomes if outcome.call_id == call_id]
        answers = [*(pending for pending in self.paused if pending.call_id == call_id), outcome]
        ends = [event for event in events if isinstance(event, ToolEnded)]
        assert len(ends) == len({id(answer) for answer in answers})
        for end, answer in zip(ends, answers, strict=False):
            assert end.outcome == type(answer).__name__
            assert (end.status, end.error, end.executed) == (answer.status, answer.error, answer.executed)
            assert end.chars == len(answer.text)
        assert {event.turn for event in events} == {self.given.get("iteration", 1)}
        assert {event.tool for event in events} == {outcome.tool}
        return [retold for event in events if (retold := self.retold(event, outcome)) is not None]

    def retold(self, event: Event, outcome: Outcome) -> dict[str, Any] | None:
        """An event in the reference's words; keys without a value are not there."""
        name: str
        fields: dict[str, Any]
        match event:
            case ToolStarted():
                name, fields = "stream.tool_start", {"toolName": event.tool}
                fields["parallelCount"] = event.batch if event.batch > 1 else None
            case DecisionMade():
                name, fields = "middleware.decision", {"middleware": event.rule, "moment": event.moment}
                fields |= {"outcome": event.outcome, "changed": event.changed}
            case AbsenceDeclared() | CoverageDeclared():
                name = "tools.absent" if isinstance(event, AbsenceDeclared) else "tools.coverage_declared"
                fields = {"lookedFor": getattr(event, "looked_for", None), "checked": list(event.checked)}
                fields |= {"notChecked": list(event.not_checked), "cannotCover": list(event.cannot_cover)}
            case ResultRefused():
                name, fields = "tools.result_refused", {"sizeChars": event.size, "maxChars": event.max_chars}
                fields |= {"narrowBy": list(event.narrow_by), "declaredStatus": event.declared_status}
            case EffectJudged():
                name, fields = "tools.effect", {"kind": event.kind, "outcome": event.outcome}
                fields |= {"targetSkillId": event.target_skill_id, "instructionId": event.instruction_id}
                fields |= {"deliveryLease": event.delivery_lease, "toolCallId": event.call_id}
                fields["supersededBy"] = "earlier-proposal" if event.outcome == "superseded" else None
                assert (event.reason is not None) == (event.outcome == "refused")
            case CallRepeated():
                name, fields = "tools.repeated_call", {"occurrences": event.occurrences}
            case ArtifactMinted():
                name, fields = "artifacts.minted", {"kind": event.kind, "mediaType": event.media_type}
                fields |= {"bytes": event.bytes, "label": event.label, "origin": event.origin}
                assert [event.ref] == [ticket.ref for ticket in outcome.tickets]
                [meta] = [meta for meta in self.artifacts if meta.ref == event.ref]
                assert (event.digest, event.created, event.expires_at) == (meta.digest, True, meta.expires_at)
            case ArtifactRefused():
                name, fields = "artifacts.refused", {"op": event.op, "reason": event.reason}
            case ToolEnded():
                return None
            case _:
                raise AssertionError(f"{event!r} has no counterpart in these vectors")
        return {"event": name} | {key: value for key, value in fields.items() if value not in (None, [])}


def expected_class(result: dict[str, Any], events: list[dict[str, Any]]) -> type[Outcome]:
    """The class of an outcome that the reference tells by flags, texts and events."""
    denials = [event for event in events if event["event"] == "middleware.decision" and event["outcome"] == "deny"]
    if result["error"]:
        return Failed
    if denials:
        return Denied
    if any(event["event"] == "tools.result_refused" for event in events):
        return TooLarge
    delivered: dict[str, type[Outcome]] = {"ticket": Placed, "truncation-marker": Truncated}
    return delivered.get(result["model"]["type"], Inline)


def check_model(outcome: Outcome, model: dict[str, Any], limit: int | None) -> None:
    """What the model reads."""
    text = outcome.text
    match model["type"]:
        case "exact":
            assert text == model["text"]
        case "exact-long":
            assert len(text) == model["len_utf16"]
            assert text.startswith(model["prefix"])
        case "ticket":
            assert isinstance(outcome, Placed)
            wire = json.loads(text)
            assert list(wire) == model["keys"]
            assert wire["placed"] is True
            assert (wire["kind"], wire["mediaType"], wire["bytes"]) == (
                model["kind"],
                model["media_type"],
                model["bytes"],
            )
            assert outcome.tickets == (outcome.ticket,)
            assert text == outcome.ticket.to_json()
            assert missing("\n".join(wire.get("notes", ())), model.get("mentions", ())) == []
        case "truncation-marker":
            assert outcome.cut
            assert limit is not None
            wire = json.loads(text)
            assert list(wire) == model["keys"]
            assert wire["truncated"] is True
            assert "head" not in wire or len(text) <= limit
        case "prose":
            assert text.startswith(model.get("starts_with_exact", ""))
            assert missing(text, model["mentions"]) == []
        case unknown:
            raise AssertionError(f"{unknown} is no type of model text")
    assert outcome.cut == (model["type"] == "truncation-marker")


def in_calls(run: Run, events: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The reference's events, which are those of one call after another, by call."""
    calls = iter(run.given["calls"])
    found: dict[str, list[dict[str, Any]]] = {}
    call: dict[str, Any] = {}
    for event in events:
        if event["event"] == "stream.tool_start":
            call = next(calls)
            found[call["id"]] = []
        if "origin" in event:
            assert event["origin"] == {"runId": "run-1", "toolCallId": call["id"]}
            event = event | {"origin": {"tool": call["name"], "call_id": call["id"]}}
        if event["event"] == "validation.args_invalid":  # not an event of ours: the call's end says that it failed
            [outcome] = [outcome for outcome in run.outcomes if outcome.call_id == call["id"]]
            assert (outcome.error, outcome.executed) == (True, False)
            continue
        if event["event"] != "skill.route_conflict":  # about no single call
            found[call["id"]].append(event)
    return found


async def check_run(run: Run, expect: dict[str, Any]) -> None:
    """Compare all that is portable in what a vector expects."""
    answered = [outcome for outcome in run.outcomes if not isinstance(outcome, Pending)]
    assert bool(run.paused) == expect["paused"]
    asks = [{"question": pending.call.question, "middleware": pending.call.rule} for pending in run.paused]
    assert asks == expect.get("asks", [expect["ask"]] if "ask" in expect else [])
    assert run.executed() == expect["executed"]
    assert run.decisions() == expect["decisions"]
    assert run.declared_coverage() == expect["declared_coverage"]
    assert [outcome.status for outcome in answered] == expect["batch_statuses"]
    assert (run.store is not None) == ("stored" in expect)
    if run.store is not None:
        assert await run.stored() == expect["stored"]
    assert [(outcome.tool, outcome.call_id) for outcome in answered] == [
        (result["tool"], result["call_id"]) for result in expect["results"]
    ]
    by_call = in_calls(run, expect["events"])
    for outcome, result in zip(answered, expect["results"], strict=True):
        check_model(outcome, result["model"], run.limit)
        assert (outcome.status, outcome.error) == (result["status"], result["error"])
        assert type(outcome) is expected_class(result, by_call[result["call_id"]])
        assert outcome.executed == (outcome.tool in {name for name, _ in run.ran})
        # One channel: no event carries a result.
        assert result["channels_equal"]
        assert "tool_end_channel" not in result
    if run.heard:
        assert {call: run.happened(call) for call in by_call} == by_call
        conflicts = [event for event in run.events if event.call_id is None]
        assert [conflict_told(event) for event in conflicts] == [
            event for event in expect["events"] if event["event"] == "skill.route_conflict"
        ]
    state = run.session.turn_state
    assert list(state.activated) == expect["activated"]
    assert (state.proposal and proposal_told(state.proposal)) == expect.get("pending_transition")
    assert [lease_told(lease) for lease in state.leases] == expect.get("leases", [])


def amended_run(vector: dict[str, Any]) -> dict[str, Any]:
    """What a vector about whole calls expects here."""
    expect: dict[str, Any] = so_far(vector)
    results, events = expect["results"], expect["events"]
    partings = PARTED.get(vector["id"], ())
    if 12 in partings:
        for result in results:
            assert result["channels_equal"] == ("tool_end_channel" not in result)
            result.pop("tool_end_channel", None)
            result["channels_equal"] = True
    match vector["id"]:
        case "dispatch/ask-mid-batch":  # 4: the rule asks about the second call as well
            first_start, *rest = events
            expect["events"] = [first_start, *rest, first_start | {"toolName": "u"}, *rest]
            expect["decisions"] *= 2
            expect["asks"] = [expect["ask"]] * 2
        case "dispatch/placement-refused-effect-note-after-ticket":  # 6: the note is in the ticket
            keys = ["placed", "ref", "kind", "mediaType", "bytes", "reason", "notes"]
            [stored] = expect["stored"]
            results[0]["model"] = stored | {"type": "ticket", "keys": keys, "mentions": ["z"]}
        case "dispatchResume/approve-skips-arg-validation":  # 3: an approved call is validated again
            results[0] |= {"error": True, "model": {"type": "prose", "mentions": ["t", "n"]}}
            expect["executed"] = {"t": 0}
        case "dispatchResume/resume-mid-batch":  # 4: the call behind the pending one runs, too
            allowed = {"middleware": "a", "moment": "before-tool", "outcome": "allow", "changed": False}
            behind = {"type": "exact", "text": "z"}
            results.append(results[1] | {"tool": "w", "call_id": "c3", "model": behind})
            events += [events[0] | {"toolName": "w"}, {"event": "middleware.decision"} | allowed]
            expect["decisions"].insert(2, allowed)  # while the second call was pending
            expect["executed"]["w"] = 1
            expect["batch_statuses"].append(None)
    return expect


DISPATCHED = runnable("dispatch", "dispatchResume")


def doors(vector: dict[str, Any]) -> list[str]:
    """The ways into a boundary: all give the same."""
    if "resume" in vector["input"]:
        doors = ["batch", "batch, elsewhere", "batch, elsewhere, unheard"]
        return doors if len(vector["input"]["calls"]) > 1 else [*doors, "call", "call, elsewhere"]
    doors = ["batch", "batch, unheard", "batch, among middlewares"]
    return doors if len(vector["input"]["calls"]) > 1 else [*doors, "call", "call, unheard", "spoken"]


THROUGH = [(vector, door) for vector in DISPATCHED for door in doors(vector)]


@pytest.mark.parametrize(("vector", "door"), THROUGH, ids=[f"{vector['id']}-{door}" for vector, door in THROUGH])
async def test_calls_go_as_in_the_reference(vector: dict[str, Any], door: str) -> None:
    run = await Run(vector, door).run()
    await check_run(run, amended_run(vector))


@of(vector for vector in DISPATCHED if 12 in PARTED.get(vector["id"], ()))
async def test_what_a_tool_returned_is_in_no_event(vector: dict[str, Any]) -> None:
    run = await Run(vector, "batch").run()
    channels = [result.get("tool_end_channel", {}) for result in vector["expect"]["results"]]
    hidden = [channel for channel in channels if channel.get("type") == "exact"]
    for event in run.events:
        fields = msgspec.structs.asdict(event)
        assert not {"result", "text", "value", "arguments", "content"} & fields.keys()
        for channel in hidden:
            assert channel.get("text") not in fields.values()


async def test_a_refusal_that_is_cut_takes_its_notes_into_the_marker() -> None:
    """Two vectors in one (6, 9): the ceiling refuses, the refusal is cut, and the effect is refused as well."""
    vector = copy.deepcopy(VECTORS["dispatch/ceiling-measures-content-effects-survive"])
    vector["input"]["max_tool_result_chars"] = 60
    del vector["input"]["reachable"]  # no graph, so the effect is refused
    run = await Run(vector, "call").run()
    [outcome] = run.outcomes
    assert isinstance(outcome, TooLarge)
    assert outcome.cut
    wire = json.loads(outcome.text)
    assert list(wire) == ["truncated", "reason", "notes"]
    assert tuple(wire["notes"]) == outcome.notes
    [note] = outcome.notes
    assert missing(note, ["propose-transition", "b"]) == []


# The lists themselves


def test_every_vector_runs() -> None:
    assert tried == VECTORS.keys()
    assert set(LISTED) <= tried
    assert sum(len(load(name)) for name in FILES) == len(VECTORS)
    assert {vector["fn"] for vector in VECTORS.values()} == set(FILES)


@of(VECTORS[each] for each in LISTED)
async def test_a_vector_is_listed_only_where_it_does_not_hold_as_it_is(vector: dict[str, Any]) -> None:
    if vector["fn"] in CHECKS:
        walk = await Walk(vector, "sync", heard=True).run()
        with pytest.raises(AssertionError):
            CHECKS[vector["fn"]](walk, vector["expect"])
    elif PARTED.get(vector["id"]) == (9,):
        run = Run(vector, "batch")  # its construction proves that the reference's limit is refused
        run.limit = vector["input"]["max_tool_result_chars"]
        with pytest.raises(ConfigurationError, match=r"^Truncation\.max_chars"):
            run.boundary()
    else:
        run = await Run(vector, "batch").run()
        with pytest.raises(AssertionError):
            await check_run(run, vector["expect"])
