from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given

from coatcheck.effects.graph import MAX_ID_CHARS, Edge, SkillGraph
from coatcheck.errors import ConfigurationError
from tests.effects._runs import graphs

NODES = ["triage", "billing", "refunds"]


async def asynchronous(text: str) -> bool:
    return True


def anything(text: str) -> bool:
    return True


def with_edges(*edges: Any) -> Callable[[], SkillGraph]:
    return lambda: SkillGraph(
        NODES,
        entries=["triage"],
        edges=[Edge("triage", "billing", open=True), Edge("billing", "refunds", tool="refund"), *edges],
    )


def test_what_one_move_leads_to_is_told_in_declared_order_and_once() -> None:
    graph = SkillGraph(
        NODES,
        entries=["billing", "triage"],
        edges=[
            Edge("triage", "refunds", status="denied"),
            Edge("triage", "billing", tool="lookup"),
            Edge("triage", "refunds", tool="refund"),
        ],
    )
    assert graph.reachable("triage") == ("refunds", "billing")
    assert graph.reachable("refunds") == ()
    assert graph.reachable("nowhere") == ()
    assert graph.reachable(None) == ("billing", "triage")
    assert [index for index, _ in graph.leaving("triage")] == [0, 1, 2]
    assert "refunds" in graph
    assert "nowhere" not in graph
    assert None not in graph
    assert repr(graph) == (f"SkillGraph({NODES!r}, entries=['billing', 'triage'], edges={list(graph.edges)!r})")


@given(graphs)
def test_no_skill_is_reachable_from_itself_and_every_edge_makes_its_target_reachable(graph: SkillGraph) -> None:
    for node in graph.nodes:
        assert node not in graph.reachable(node)
        assert set(graph.reachable(node)) == {edge.target for edge in graph.edges if edge.source == node}
        assert len(set(graph.reachable(node))) == len(graph.reachable(node))


def test_one_entry_needs_no_edge() -> None:
    assert SkillGraph(["a"], entries=["a"]).reachable(None) == ("a",)


def test_a_later_edge_may_be_wider_than_an_earlier_one() -> None:
    graph = with_edges(
        Edge("triage", "billing", tool="lookup", status="denied"),
        Edge("triage", "refunds", tool="lookup"),
        Edge("triage", "billing", status="denied"),
        Edge("triage", "refunds", when=anything, tool="other"),
        Edge("triage", "refunds", when=str.isupper),
    )()
    assert len(graph.edges) == 7


def test_an_edge_without_a_source_leads_into_the_graph() -> None:
    graph = SkillGraph(["a", "b"], entries=["a", "b"], edges=[Edge(None, "b", tool="classify")])
    assert graph.leaving(None) == ((0, graph.edges[0]),)
    assert graph.reachable(None) == ("a", "b")


WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "no nodes": (lambda: SkillGraph([], entries=["a"]), r"^SkillGraph\.nodes is empty"),
    "nodes as text": (lambda: SkillGraph("ab", entries=["a"]), r"^SkillGraph\.nodes must be a list of ids"),
    "a node that is no text": (
        lambda: SkillGraph(["a", 3], entries=["a"]),  # type: ignore[list-item]  # what is tested
        r"^SkillGraph\.nodes\[1\] must be an id.*int",
    ),
    "a blank node": (lambda: SkillGraph([" "], entries=[" "]), r"^SkillGraph\.nodes\[0\] must be an id.*blank"),
    "a node too long": (
        lambda: SkillGraph(["a" * (MAX_ID_CHARS + 1)], entries=["a"]),
        r"^SkillGraph\.nodes\[0\].*at most 128 characters, not 129",
    ),
    "a node that no JSON carries": (lambda: SkillGraph(["\ud800"], entries=["a"]), r"^SkillGraph\.nodes\[0\].*half"),
    "a node twice": (
        lambda: SkillGraph(["a", "b", "a"], entries=["a"]),
        r'^SkillGraph\.nodes\[2\]: "a" is there already, as SkillGraph\.nodes\[0\]',
    ),
    "no entries": (lambda: SkillGraph(["a"], entries=[]), r"^SkillGraph\.entries is empty"),
    "an entry that is no node": (
        lambda: SkillGraph(["billing"], entries=["biling"]),
        r'^SkillGraph\.entries\[0\]: there is no skill "biling" in SkillGraph\.nodes; did you mean "billing"\?$',
    ),
    "an entry twice": (
        lambda: SkillGraph(["a"], entries=["a", "a"]),
        r"^SkillGraph\.entries\[1\]: .* is there already",
    ),
    "a node that nothing leads to": (
        lambda: SkillGraph(
            ["a", "b", "c"], entries=["a"], edges=[Edge("b", "c", open=True), Edge("c", "b", open=True)]
        ),
        r'^SkillGraph\.nodes\[1\]: "b" cannot be reached from any entry',
    ),
    "edges that are no list": (
        lambda: SkillGraph(["a"], entries=["a"], edges={}),  # type: ignore[arg-type]  # what is tested
        r"^SkillGraph\.edges must be a list of Edge, but it is of type dict",
    ),
    "an edge that is none": (with_edges(("a", "b")), r"^SkillGraph\.edges\[2\] must be an Edge.*tuple"),
    "an unknown source": (
        with_edges(Edge("nowhere", "billing", open=True)),
        r'^SkillGraph\.edges\[2\]\.source: there is no skill "nowhere"',
    ),
    "an unknown target": (
        with_edges(Edge("triage", "nowhere", open=True)),
        r'^SkillGraph\.edges\[2\]\.target: there is no skill "nowhere"',
    ),
    "a target that is the source": (
        with_edges(Edge("triage", "triage", tool="t")),
        r"^SkillGraph\.edges\[2\]\.target is its own source",
    ),
    "a way in to what is no entry": (
        with_edges(Edge(None, "billing", tool="t")),
        r'^SkillGraph\.edges\[2\]\.target: .*"billing" is no entry',
    ),
    "no condition": (with_edges(Edge("triage", "refunds")), r"^SkillGraph\.edges\[2\] has no condition.*open=True"),
    "a condition on an open edge": (
        with_edges(Edge("triage", "refunds", open=True, tool="t")),
        r"^SkillGraph\.edges\[2\]\.open:",
    ),
    "open that is no bool": (
        with_edges(Edge("triage", "refunds", open=1)),  # type: ignore[arg-type]  # what is tested
        r"^SkillGraph\.edges\[2\]\.open must be True or False",
    ),
    "a blank tool": (with_edges(Edge("triage", "refunds", tool=" ")), r"^SkillGraph\.edges\[2\]\.tool must be"),
    "an unknown status": (
        with_edges(Edge("triage", "refunds", status="ok")),  # type: ignore[arg-type]  # what is tested
        r'^SkillGraph\.edges\[2\]\.status must be one of success, .*absent, not "ok"',
    ),
    "a status that is no text": (
        with_edges(Edge("triage", "refunds", status=2)),  # type: ignore[arg-type]  # what is tested
        r"^SkillGraph\.edges\[2\]\.status .*type int",
    ),
    "a predicate that is none": (
        with_edges(Edge("triage", "refunds", when="x")),  # type: ignore[arg-type]  # what is tested
        r"^SkillGraph\.edges\[2\]\.when must be a synchronous callable",
    ),
    "an asynchronous predicate": (
        with_edges(Edge("triage", "refunds", when=asynchronous)),
        r"^SkillGraph\.edges\[2\]\.when must be a synchronous callable",
    ),
    "an edge twice": (
        with_edges(Edge("billing", "refunds", tool="refund")),
        r"^SkillGraph\.edges\[2\] is never taken: SkillGraph\.edges\[1\] comes first",
    ),
    "an edge behind a wider one to elsewhere": (
        with_edges(Edge("billing", "triage", tool="refund", status="denied", when=anything)),
        r"^SkillGraph\.edges\[2\] is never taken: SkillGraph\.edges\[1\] comes first",
    ),
    "an open edge twice": (
        with_edges(Edge("triage", "billing", open=True)),
        r"^SkillGraph\.edges\[2\] is never taken: SkillGraph\.edges\[0\] comes first",
    ),
}


@pytest.mark.parametrize("slip", WRONG)
def test_a_graph_that_cannot_work_is_refused_with_the_path_of_what_is_wrong(slip: str) -> None:
    build, problem = WRONG[slip]
    with pytest.raises(ConfigurationError, match=problem):
        build()
