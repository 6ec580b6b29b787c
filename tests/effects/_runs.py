"""What the suites about effects share: a call that has ended, and random graphs and runs on them."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec
from hypothesis import strategies as st

from coatcheck.effects.graph import Edge, SkillGraph
from coatcheck.effects.instructions import Instruction, InstructionCatalog
from coatcheck.errors import ConfigurationError
from coatcheck.results.envelope import Effect, Malformed, ProposeTransition, RequireInstruction
from coatcheck.results.status import STATUSES, Status

SKILLS = "abcde"
TOOLS = ("t", "u", "v")
INSTRUCTIONS = ("always-a", "snippet", "other", "pulled")


class Ended(msgspec.Struct, frozen=True):
    """A call that has ended, as far as effects are concerned."""

    tool: str = "t"
    call_id: str | None = "c1"
    text: str = "body"
    status: Status | None = None
    executed: bool = True
    error: bool = False
    effects: tuple[Effect, ...] = ()
    malformed: tuple[Malformed, ...] = ()


def proposing(*targets: str, call_id: str = "c1") -> Ended:
    return Ended(call_id=call_id, effects=tuple(ProposeTransition(target, "why") for target in targets))


def requiring(id: str, lease: Any = "next-call") -> Ended:
    return Ended(effects=(RequireInstruction(id, lease),))


CATALOG = InstructionCatalog(
    [
        Instruction("always-a", "text of always-a", skill="a"),
        Instruction("snippet", "text of snippet"),
        Instruction("other", "text of other"),
        Instruction("pulled", "text of pulled", pull_only=True),
    ]
)

Pick: TypeAlias = str
Step: TypeAlias = Ended | Pick
"""One thing that happens in a turn: a call ends, or the model picks a skill."""


def _graph(size: int, starts: set[int], drawn: list[tuple[int, int, str | None, Status | None]]) -> SkillGraph:
    """A ring, so that every skill is reached and left, and whatever else fits in."""
    nodes = list(SKILLS[:size])
    entries = [nodes[start % size] for start in sorted({start % size for start in starts})]
    edges = [Edge(nodes[index], nodes[(index + 1) % size], open=True) for index in range(size)]
    for source, target, tool, status in drawn:
        start = None if source % (size + 1) == size else nodes[source % (size + 1)]
        edge = Edge(start, nodes[target % size], tool=tool, status=status)
        try:
            SkillGraph(nodes, entries=entries, edges=[*edges, edge])
        except ConfigurationError:
            continue
        edges.append(edge)
    return SkillGraph(nodes, entries=entries, edges=edges)


statuses = st.none() | st.sampled_from(STATUSES)
graphs = st.builds(
    _graph,
    st.integers(2, 5),
    st.sets(st.integers(0, 4), min_size=1),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4), st.none() | st.sampled_from(TOOLS), statuses), max_size=6),
)
effects = st.one_of(
    st.builds(ProposeTransition, st.sampled_from([*SKILLS, "nowhere"]), st.text(min_size=1)),
    st.builds(
        RequireInstruction,
        st.sampled_from([*INSTRUCTIONS, "unknown"]),
        st.sampled_from(["next-call", "until-skill-exit"]),
    ),
)
faults = st.builds(
    Malformed, st.sampled_from(["propose-transition", "require-instruction"]), st.integers(1, 9), st.just("faulty")
)
calls = st.builds(
    Ended,
    tool=st.sampled_from(TOOLS),
    call_id=st.none() | st.text(max_size=5),
    status=statuses,
    executed=st.booleans() | st.just(True),
    error=st.sampled_from([False, False, False, True]),
    effects=st.lists(effects, max_size=4).map(tuple),
    malformed=st.lists(faults, max_size=2).map(tuple),
)
steps: st.SearchStrategy[Step] = calls | st.sampled_from(SKILLS)
runs = st.lists(st.lists(steps, max_size=4), min_size=1, max_size=10)
"""Turns, each with what happens in it."""
