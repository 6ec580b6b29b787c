"""``lineage``: what an artifact was made from."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import coatcheck as cc
from coatcheck.cli.lineage import Ancestor
from coatcheck.cli.schema import make_schema
from tests.cli._program import Program, objects, wait_for

OTHER = cc.Scope(tenant="acme", principal="dana", conversation="c-42")
NEVER = "art_" + "0" * 32


def walked(program: Program, *arguments: str) -> list[tuple[str, int, bool]]:
    result = program("lineage", *arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return [(row["ref"], row["depth"], row["meta"] is not None) for row in objects(result.stdout)]


def test_ancestors_come_breadth_first_each_once(program: Program) -> None:
    root = program.put(b"root")
    left, right = program.put(b"left", parents=[root]), program.put(b"right", parents=[root])
    far = program.put(b"far", parents=[left])
    made = program.put(b"made", parents=[far, right, root])
    program.put(b"unrelated")
    steps = [(made, 0), (far, 1), (right, 1), (root, 1), (left, 2)]
    assert walked(program, made) == [(ref, depth, True) for ref, depth in steps]
    assert walked(program, root) == [(root, 0, True)]


def test_a_parent_that_is_gone_is_said_to_be(program: Program) -> None:
    gone, root = program.put(b"gone"), program.put(b"root")
    made = program.put(b"made", parents=[gone, root], origin={"tool": "report"}, label="x")
    wait_for(program.store.delete(program.scope, gone))
    assert walked(program, made) == [(made, 0, True), (gone, 1, False), (root, 1, True)]
    title, *lines = program("lineage", made).stdout.splitlines()
    assert title.split() == ["STEPS", "REF", "BYTES", "CREATED", "KIND", "MADE", "BY"]
    assert [line.split()[:2] for line in lines] == [["0", made], ["1", gone], ["1", root]]
    assert lines[0].endswith("report")
    assert lines[1].split()[2:] == ["-", "gone"]


def test_an_expired_parent_is_gone_too(program: Program) -> None:
    store = cc.DirectoryStore(
        Path(program.environment["XDG_DATA_HOME"]) / "coatcheck" / "store",
        clock=lambda: datetime.now(UTC) - timedelta(days=1),
    )
    words: dict[str, Any] = {"kind": "test/old", "media_type": "text/plain"}
    soon = datetime.now(UTC) - timedelta(hours=1)
    old = wait_for(store.put(program.scope, b"old", expires_at=soon, **words)).meta.ref
    made = wait_for(store.put(program.scope, b"made", parents=[old], **words)).meta.ref
    assert walked(program, made) == [(made, 0, True), (old, 1, False)]


def test_a_circle_is_walked_once(program: Program) -> None:
    """The parent goes, and is made again from its own child."""
    first = program.put(b"first")
    second = program.put(b"second", parents=[first])
    wait_for(program.store.delete(program.scope, first))
    assert program.put(b"first", parents=[second]) == first
    assert walked(program, first) == [(first, 0, True), (second, 1, True)]
    assert walked(program, second) == [(second, 0, True), (first, 1, True)]


@pytest.mark.parametrize(
    ("arguments", "steps", "cut"),
    [
        (["--depth", "2"], 3, True),
        (["--depth", "0"], 1, True),
        (["--limit", "3"], 3, True),
        (["--depth", "9"], 10, False),
        (["--limit", "10"], 10, False),
        ([], 10, False),
    ],
)
def test_a_walk_is_bounded_and_says_where_it_was_cut(
    program: Program, arguments: list[str], steps: int, cut: bool
) -> None:
    chain: list[str] = []
    for number in range(10):
        chain.append(program.put(b"%d" % number, parents=chain[-1:]))
    result = program("lineage", chain[-1], "--json", *arguments)
    assert [row["ref"] for row in objects(result.stdout)] == chain[::-1][:steps]
    assert result.exit_code == 0
    assert result.stderr == ("coatcheck: there is more behind these: raise --depth or --limit to see it\n" * cut)


@pytest.mark.parametrize("ref", [NEVER, "nonsense", "../x"])
def test_what_is_not_there_has_no_lineage(program: Program, ref: str) -> None:
    program.put(b"something")
    result = program("lineage", ref)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"coatcheck: there is nothing under the ref {ref!r} in this scope\n"


def test_another_scope_s_artifact_has_none_here(program: Program) -> None:
    theirs = program.put(b"theirs", OTHER)
    assert program("lineage", theirs).exit_code == 1
    assert walked(program, theirs, "--scope", "acme/dana/c-42") == [(theirs, 0, True)]


def test_a_line_moves_no_cursor(program: Program) -> None:
    made = program.put(b"made", kind="kind\u202e", origin={"tool": "\u2066tool"})
    _, line = program("lineage", made).stdout.splitlines()
    assert line.isprintable()


@pytest.mark.parametrize("wrong", [["--depth", "-1"], ["--limit", "0"], ["--limit", "x"], []])
def test_wrong_usage_is_told(program: Program, wrong: list[str]) -> None:
    assert program("lineage", *([NEVER, *wrong] if wrong else [])).exit_code == 2


def test_a_line_of_json_is_described_by_the_schema() -> None:
    definition = make_schema(Ancestor.__name__)["$defs"]["Ancestor"]
    assert list(definition["properties"]) == ["ref", "depth", "meta"]
