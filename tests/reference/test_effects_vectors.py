"""The reference's vectors about effects, leases and repeated calls, against the pure machine that owns them.

Whole calls run through a real boundary in `test_chain_vectors`; what is asked here of the `dispatch` ones is their
effects alone. The reference's tenant is a skill here, and its iteration is the number of a turn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from coatcheck.effects.graph import Edge, SkillGraph
from coatcheck.effects.instructions import Instruction, InstructionCatalog
from coatcheck.effects.judgement import judge_effects, note_for
from coatcheck.effects.leases import Lease, served, swept, tenure
from coatcheck.effects.repeats import RepeatedCalls, note_on_repeat
from coatcheck.effects.state import TurnState
from coatcheck.results.envelope import read_envelope
from tests.effects._runs import Ended
from tests.reference._forms import load, untag


def lease_of(given: dict[str, Any]) -> Lease:
    return Lease(
        instruction_id=given["instructionId"],
        delivery_lease=given["deliveryLease"],
        skill=given.get("skillId"),
        tool=given["toolName"],
        turn=given["iteration"],
    )


def run_leases(vector: dict[str, Any]) -> None:
    given, expect = vector["input"], vector["expect"]
    if "script" in given:  # the only one: grant in a on turn 1, then turns in a, b and a again
        leases: tuple[Lease, ...] = (
            Lease(instruction_id="i", delivery_lease="until-skill-exit", skill="a", tool="t", turn=1),
        )
        passes = []
        for turn, skill in ((2, "a"), (3, "b"), (4, "a")):
            passes.append([lease.instruction_id for lease in served(leases, turn=turn, skill=skill)])
            leases = swept(leases, turn=turn, skill=skill)
        assert passes == expect["served_per_pass"]
        assert len(leases) == expect["remaining"]
        return
    leases = tuple(map(lease_of, given["leases"]))
    turn, skill = given["iteration"], given["tenant"]
    assert [lease.instruction_id for lease in served(leases, turn=turn, skill=skill)] == expect["active"]
    left = swept(leases, turn=turn, skill=skill)
    assert [index for index, lease in enumerate(leases) if lease in left] == expect["surviving_after_prune"]


def run_tenant_of(vector: dict[str, Any]) -> None:
    given = vector["input"]
    assert tenure(given["cursor"], given["activated"] or ()) == vector["expect"]["tenant"]


def run_repeats(vector: dict[str, Any]) -> None:
    repeats = RepeatedCalls()
    found = []
    for landing in vector["input"]["landings"]:
        arguments = repeats.fingerprint(landing["args"])
        times = repeats.landed(landing.get("tool", "t"), arguments, landing["result"])
        found.append({"occurrences": times, "noted": times == 2})
    assert found == vector["expect"]["landings"]


def graph_of(reachable: dict[str, list[str]]) -> SkillGraph:
    """A graph in which exactly this can be reached; a skill without a way to it is an entry."""
    ways = [(source, target) for source, targets in reachable.items() for target in targets]
    nodes = list(dict.fromkeys(node for way in ways for node in way if node)) or list(reachable)
    led_to = {target for source, target in ways if source}
    entries = reachable.get("") or [node for node in nodes if node not in led_to]
    return SkillGraph(
        nodes, entries=entries, edges=[Edge(source, target, open=True) for source, target in ways if source]
    )


def run_dispatch(vector: dict[str, Any]) -> None:
    given, expect = vector["input"], vector["expect"]
    graph = graph_of(given["reachable"]) if "reachable" in given else None
    catalog = None
    if "lease_targets" in given:
        assert not any(given["lease_targets"].values())  # none of them travels by pull
        catalog = InstructionCatalog([Instruction(id, f"text of {id}") for id in given["lease_targets"]])
    leases = tuple(map(lease_of, given.get("existing_leases", ())))
    state = TurnState(number=given.get("iteration", 1), skill=given.get("cursor"), leases=leases)
    events: list[dict[str, Any]] = []
    losers: list[Any] = []
    texts: list[str] = []
    for call in given["calls"]:
        envelope = read_envelope(untag(given["tools"][call["name"]]["returns"]))
        assert envelope is not None
        outcome = Ended(tool=call["name"], call_id=call["id"], effects=envelope.effects, malformed=envelope.malformed)
        judged = judge_effects(state, outcome, graph=graph, catalog=catalog)
        state = judged.state
        losers += judged.losers
        texts.append(" ".join(map(note_for, judged.judgements)))
        for judgement in judged.judgements:
            event = {
                "event": "tools.effect",
                "kind": judgement.kind,
                "outcome": judgement.outcome,
                "targetSkillId": judgement.target_skill_id,
                "instructionId": judgement.instruction_id,
                "deliveryLease": judgement.delivery_lease,
                "supersededBy": "earlier-proposal" if judgement.outcome == "superseded" else None,
                "toolCallId": call["id"],
            }
            events.append({key: value for key, value in event.items() if value is not None})
    assert events == [event for event in expect["events"] if event["event"] == "tools.effect"]
    conflicts = [event for event in expect["events"] if event["event"] == "skill.route_conflict"]
    assert bool(losers) == bool(conflicts)
    for conflict in conflicts:
        assert conflict["winner"] == told(state.proposal)
        assert conflict["losers"] == list(map(told, losers))
    assert list(state.activated) == expect["activated"]
    pending = state.proposal and {
        "target": state.proposal.target,
        "iteration": state.proposal.turn,
        "call_id": state.proposal.call_id,
    }
    assert pending == expect.get("pending_transition")
    assert [
        {
            "id": lease.instruction_id,
            "lease": lease.delivery_lease,
            "tenant": lease.skill,
            "iteration": lease.turn,
        }
        for lease in state.leases
    ] == expect.get("leases", [])
    assert msgspec.json.decode(msgspec.json.encode(state), type=TurnState) == state
    for text, result in zip(texts, expect["results"], strict=True):
        # A ceiling's refusal, a ticket, and that a call was made before are told by others.
        facts = [fact for fact in result["model"].get("mentions", ()) if fact.isalpha() and fact != "placed"]
        assert [fact for fact in facts if f'"{fact}"' not in text] == []
        assert (text != "") == (facts != [])


def told(move: Any) -> dict[str, Any]:
    return {"toolCallId": move.call_id, "toolName": move.tool, "target": move.target}


WITH_EFFECTS = {
    "dispatch/absence-in-envelope-no-status",
    "dispatch/after-deny-effects-still-judged",
    "dispatch/batch-first-accepted-wins",
    "dispatch/batch-refused-does-not-win",
    "dispatch/ceiling-measures-content-effects-survive",
    "dispatch/lease-no-targets",
    "dispatch/lease-prune-on-grant",
    "dispatch/lease-unknown-id",
    "dispatch/placement-refused-effect-note-after-ticket",
    "dispatch/repeat-fingerprints-before-suffix",
    "dispatch/transition-accepted",
    "dispatch/transition-accepted-cold",
    "dispatch/transition-no-graph",
    "dispatch/transition-to-self",
    "dispatch/transition-unreachable-nothing-reachable",
}
"""Those whose tools declare effects that are well formed; malformed ones are the envelope's business."""

RUNNERS: dict[str, Callable[[dict[str, Any]], None]] = {
    "leases": run_leases,
    "tenantOf": run_tenant_of,
    "noteRepeatedCall": run_repeats,
    "dispatch": run_dispatch,
}
ALL = [vector for name in RUNNERS for vector in load(name)]
RUN = [vector for vector in ALL if vector["fn"] != "dispatch" or vector["id"] in WITH_EFFECTS]


@pytest.mark.parametrize("vector", RUN, ids=[vector["id"] for vector in RUN])
def test_the_reference_vector_holds(vector: dict[str, Any]) -> None:
    RUNNERS[vector["fn"]](vector)


def test_every_vector_with_an_effect_is_run() -> None:
    with_effects = {
        vector["id"]
        for vector in load("dispatch")
        for script in vector["input"]["tools"].values()
        if (envelope := read_envelope(untag(script.get("returns")))) is not None and envelope.effects
    }
    assert with_effects == WITH_EFFECTS


@pytest.mark.parametrize("name", ["repeat-note", "repeat-fingerprints-before-suffix"])
def test_the_second_of_equal_calls_is_noted_by_its_text_before_the_notes(name: str) -> None:
    [vector] = [vector for vector in load("dispatch") if vector["id"] == f"dispatch/{name}"]
    given, expect = vector["input"], vector["expect"]
    returned = given["tools"]["t"]["returns"]
    text = returned if isinstance(returned, str) else returned["content"]
    repeats = RepeatedCalls()
    noted = [call["id"] for call in given["calls"] if repeats.landed("t", repeats.fingerprint(call["args"]), text) == 2]
    assert noted == ["c2"]
    assert [event["occurrences"] for event in expect["events"] if event["event"] == "tools.repeated_call"] == [2]
    assert '"t"' in note_on_repeat("t")
    assert " 2 " in note_on_repeat("t")
