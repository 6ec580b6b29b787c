"""``grep``: what ``search_artifact`` does, from the shell."""

from __future__ import annotations

import pytest

from tests.cli._program import Program, objects

TEXT = b"".join(b"line %d of \x1b[2J\n" % number for number in range(1, 2001))


def test_every_line_that_matches_is_shown_with_its_number_and_byte(program: Program) -> None:
    ref = program.put(TEXT)
    result = program("grep", r"^line (7|1999) of", ref)
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        rf"7:{TEXT.index(b'line 7 ')}:line 7 of \x1b[2J",
        rf"1999:{TEXT.index(b'line 1999 ')}:line 1999 of \x1b[2J",
    ]
    assert len(program("grep", "line", ref).stdout.splitlines()) == 2000
    assert len(program("grep", "-m", "700", "line", ref).stdout.splitlines()) == 700


def test_a_program_reads_json_objects(program: Program) -> None:
    ref = program.put(b"one\ntwo\nthree\n")
    result = program("grep", "--json", "-C", "1", "-F", "w", ref.upper())
    assert objects(result.stdout) == [
        {"line": 2, "byte": 4, "match": 5, "text": "two", "before": ["one"], "behind": ["three"]}
    ]
    assert "  one\n2:4:two\n  three\n--\n" in program("grep", "-C", "1", "-i", "W", ref).stdout


def test_nothing_found_is_silence_and_an_exit_code(program: Program) -> None:
    ref = program.put(b"one\n")
    result = program("grep", "two", ref)
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", "")


@pytest.mark.parametrize("pattern", ["(", "(?=a)", "", "a{9999}"])
def test_a_pattern_that_cannot_be_is_a_usage_error(program: Program, pattern: str) -> None:
    result = program("grep", "--", pattern, program.put(b"one\n"))
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)


def test_a_refusal_speaks_of_the_shells_option(program: Program) -> None:
    result = program("grep", "(", program.put(b"one\n"))
    assert result.stderr.endswith("mend it, or search for it as it stands with --literal\n")


def test_what_is_missing_and_what_is_binary_is_one_line(program: Program) -> None:
    binary = program.put(b"\x00\x01", media_type="image/png")
    for ref in ("art_" + "0" * 32, "nonsense", binary):
        result = program("grep", "a", ref)
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
