"""``query``: what query_artifact does for a model, from the shell."""

from __future__ import annotations

import msgspec
import pytest

from tests.cli._program import Program, objects

ROWS = [{"id": index, "name": f"n{index}"} for index in range(2_000)]


@pytest.fixture
def ref(program: Program) -> str:
    return program.put(msgspec.json.encode(ROWS), media_type="application/json")


def test_every_row_of_a_result_is_a_line(program: Program, ref: str) -> None:
    result = program("query", ref, "--sql", "SELECT * FROM artifact")
    assert (result.exit_code, result.stderr) == (0, "")
    assert objects(result.stdout) == ROWS
    assert program.run("query", ref, "--jmespath", "[0].name").stdout == b'"n0"\n'


@pytest.mark.parametrize("asked", [["--sql", "SELECT nmae FROM artifact"], [], ["--jmespath", "["], ["--jmespath", ""]])
def test_a_wrong_query_is_a_line_that_teaches(program: Program, ref: str, asked: list[str]) -> None:
    result = program("query", ref, *asked)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)


def test_a_query_of_nothing_is_the_answer_of_every_command(program: Program) -> None:
    result = program("query", "art_" + "0" * 32, "--jmespath", "@")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "there is nothing under the ref " in result.stderr


def test_a_time_that_cannot_be_honoured_is_misuse(program: Program, ref: str) -> None:
    assert program("query", ref, "--jmespath", "@", "--timeout", "-1").exit_code == 2


def test_an_expression_that_finds_nothing_says_why_beside_it(program: Program, ref: str) -> None:
    result = program("query", ref, "--jmespath", "[0].nmae")
    assert (result.exit_code, result.stdout) == (0, "null\n")
    assert "nearest: name" in result.stderr
