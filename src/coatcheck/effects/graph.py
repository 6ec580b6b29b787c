"""The skill graph: which skills a run may be in, where it may start, and what leads from one to another.

The host declares it once. An edge is a rule of the host's own, so a matching edge moves the run by itself; it is also
what makes its target reachable, so that a tool may propose the move. Whatever could never work is refused when the
graph is built, with its path: a slip is not found out by a run that stands still.

No graph library: what is asked is a dict of successors and one breadth-first search.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Sequence

import msgspec

from coatcheck.errors import ConfigurationError
from coatcheck.results.shapes import describe, is_array, is_text, legible, quote
from coatcheck.results.status import STATUSES, Status, read_status

__all__ = ["MAX_ID_CHARS", "Edge", "SkillGraph", "check_id"]

MAX_ID_CHARS = 128
"""How long the id of a skill or an instruction may be, in characters."""


class _Ends(msgspec.Struct, frozen=True):
    source: str | None
    target: str


class Edge(_Ends, frozen=True, kw_only=True):
    """A declared way from one skill to another, and what it is taken on.

    With several conditions all of them must hold. The text is what the model read, which a placement, a truncation and
    a rule all change; an edge that must not depend on them keys on the tool or on the status.

    Attributes:
        source: the skill that it leaves; ``None`` for a way into the graph, while the run is in no skill yet.
        target: the skill that it leads to.
        tool: taken on a result of this tool.
        status: taken on a result that delivered this status; a result without a status never matches.
        when: taken on a result whose text this predicate answers with a true value; synchronous, and asked last.
        open: True for a way without conditions, which is never taken by itself: it is there for a tool to propose and
            for the model to pick.
    """

    tool: str | None = None
    status: Status | None = None
    when: Callable[[str], object] | None = None
    open: bool = False


class SkillGraph:
    """Skills, the entries among them, and the edges between them. It never changes.

    Args:
        nodes: the ids of all skills, in an order of the host's own.
        entries: the skills in which a run may start. Where there is only one, every run starts in it.
        edges: the declared ways; where several match one result, the first of them is taken.

    Attributes:
        nodes, entries, edges: as declared, as tuples.

    Raises:
        ConfigurationError: with the path of what is wrong, for example ``SkillGraph.edges[2].target``.
    """

    __slots__ = ("_leaving", "_reachable", "edges", "entries", "nodes")

    def __init__(self, nodes: Sequence[str], *, entries: Sequence[str], edges: Sequence[Edge] = ()) -> None:
        self.nodes: tuple[str, ...] = _ids("SkillGraph.nodes", nodes)
        self.entries: tuple[str, ...] = _ids("SkillGraph.entries", entries, self.nodes)
        if not is_array(edges):
            raise ConfigurationError(f"SkillGraph.edges must be a list of Edge, but {describe(edges)}")
        self.edges: tuple[Edge, ...] = tuple(edges)
        leaving: dict[str | None, list[tuple[int, Edge]]] = {None: [], **{node: [] for node in self.nodes}}
        for index, edge in enumerate(self.edges):
            path = f"SkillGraph.edges[{index}]"
            _check_ends(path, edge, self.nodes, self.entries)
            _check_conditions(path, edge)
            for earlier, other in leaving[edge.source]:
                if _shadows(other, edge):
                    raise ConfigurationError(
                        f"{path} is never taken: SkillGraph.edges[{earlier}] comes first on all that it stands for; "
                        "remove it, or declare it first"
                    )
            leaving[edge.source].append((index, edge))
        self._leaving = {source: tuple(found) for source, found in leaving.items()}
        self._reachable: dict[str | None, tuple[str, ...]] = {
            node: tuple(dict.fromkeys(edge.target for _, edge in self._leaving[node])) for node in self.nodes
        }
        self._reachable[None] = self.entries
        self._check_all_reachable()

    def __repr__(self) -> str:
        return f"SkillGraph({list(self.nodes)!r}, entries={list(self.entries)!r}, edges={list(self.edges)!r})"

    def __contains__(self, skill: object) -> bool:
        return is_text(skill) and skill in self._reachable

    def reachable(self, current: str | None) -> tuple[str, ...]:
        """The skills that one move leads to from ``current``, in declared order, and never ``current`` itself.

        Args:
            current: the skill that the run is in; ``None`` before it is in any.

        Returns:
            Their ids: before the start the entries, and nothing for a skill that is not in the graph.
        """
        return self._reachable.get(current, ())

    def leaving(self, current: str | None) -> tuple[tuple[int, Edge], ...]:
        """The edges out of ``current``, each with its index among ``edges``, in declared order."""
        return self._leaving.get(current, ())

    def _check_all_reachable(self) -> None:
        seen, level = set(self.entries), self.entries
        while level:
            level = tuple(target for node in level for target in self._reachable[node] if target not in seen)
            seen.update(level)
        for index, node in enumerate(self.nodes):
            if node not in seen:
                raise ConfigurationError(
                    f"SkillGraph.nodes[{index}]: {quote(node)} cannot be reached from any entry; "
                    "give it an edge, or make it an entry"
                )


def check_id(path: str, value: object) -> str:
    """The id of a skill or an instruction, as plain text.

    Raises:
        ConfigurationError: naming ``path``, where it is no text, blank, too long, or holds half a surrogate pair.
    """
    if not is_text(value) or not str.strip(value):
        raise ConfigurationError(f"{path} must be an id, as text that is not blank, but {describe(value)}")
    plain = str.__str__(value)
    if len(plain) > MAX_ID_CHARS:
        raise ConfigurationError(f"{path} must be an id of at most {MAX_ID_CHARS} characters, not {len(plain)}")
    if legible(plain) != plain:
        raise ConfigurationError(f"{path} holds half of a surrogate pair")
    return plain


def _ids(path: str, given: object, known: tuple[str, ...] | None = None) -> tuple[str, ...]:
    """A list of ids that is not empty and names each once, and none that is not ``known``."""
    if not is_array(given):
        raise ConfigurationError(f"{path} must be a list of ids, but {describe(given)}")
    if not given:
        raise ConfigurationError(f"{path} is empty: name at least one skill")
    found: dict[str, int] = {}
    for index, value in enumerate(given):
        at = f"{path}[{index}]"
        plain = check_id(at, value) if known is None else _known(at, value, known)
        if plain in found:
            raise ConfigurationError(f"{at}: {quote(plain)} is there already, as {path}[{found[plain]}]")
        found[plain] = index
    return tuple(found)


def _known(path: str, value: object, known: tuple[str, ...]) -> str:
    plain = check_id(path, value)
    if plain not in known:
        near = difflib.get_close_matches(plain, known, n=1)
        meant = f"; did you mean {quote(near[0])}?" if near else ""
        raise ConfigurationError(f"{path}: there is no skill {quote(plain)} in SkillGraph.nodes{meant}")
    return plain


def _check_ends(path: str, edge: object, nodes: tuple[str, ...], entries: tuple[str, ...]) -> None:
    if not isinstance(edge, Edge):
        raise ConfigurationError(f"{path} must be an Edge, but {describe(edge)}")
    if edge.source is not None:
        _known(f"{path}.source", edge.source, nodes)
    _known(f"{path}.target", edge.target, nodes)
    if edge.target == edge.source:
        raise ConfigurationError(f"{path}.target is its own source; a run stays in a skill without an edge")
    if edge.source is None and edge.target not in entries:
        raise ConfigurationError(
            f"{path}.target: an edge without a source leads into the graph, and {quote(edge.target)} is no entry"
        )


def _check_conditions(path: str, edge: Edge) -> None:
    if not isinstance(edge.open, bool):
        raise ConfigurationError(f"{path}.open must be True or False, but {describe(edge.open)}")
    if edge.tool is None and edge.status is None and edge.when is None:
        if not edge.open:
            raise ConfigurationError(
                f"{path} has no condition: give it tool=, status= or when=; "
                "or open=True, for a way that is only taken when it is proposed or picked"
            )
        return
    if edge.open:
        raise ConfigurationError(f"{path}.open: an open edge is never taken by itself, so it has no other condition")
    if edge.tool is not None and not (is_text(edge.tool) and str.strip(edge.tool)):
        raise ConfigurationError(f"{path}.tool must be the name of a tool, but {describe(edge.tool)}")
    if edge.status is not None and read_status(edge.status) is None:
        given = quote(edge.status) if is_text(edge.status) else describe(edge.status)
        raise ConfigurationError(f"{path}.status must be one of {', '.join(STATUSES)}, not {given}")
    if edge.when is not None and (not callable(edge.when) or inspect.iscoroutinefunction(edge.when)):
        raise ConfigurationError(f"{path}.when must be a synchronous callable that takes the text")


def _shadows(first: Edge, second: Edge) -> bool:
    """Whether ``first`` is taken wherever ``second`` would be; both leave one skill."""
    if first.open or second.open:
        return first.open and second.open and first.target == second.target
    return (
        first.tool in (None, second.tool)
        and first.status in (None, second.status)
        and first.when in (None, second.when)
    )
