"""``coatcheck exec``: what a model reads of a command, what is stored of it, and the exit code."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

import coatcheck as cc
from coatcheck.cli.exec import Report, passed_on, tool_name
from tests.cli._program import COATCHECK, Program, objects, wait_for


def python(code: str) -> list[str]:
    """A command that runs ``code``."""
    return ["--", sys.executable, "-c", code]


def report(program: Program, *arguments: str) -> Report:
    """What ``exec --json`` says, its exit code compared with that of the process."""
    done = program.run("exec", "--json", *arguments)
    said = msgspec.json.decode(done.stdout, type=Report)
    assert said.exit_status == done.returncode
    return said


def stored(program: Program) -> list[dict[str, Any]]:
    return objects(program("ls", "--json").stdout)


# --- what a model reads ---


@pytest.mark.parametrize("output", ["", "hi", "hi\n", "ö€😀\n\n", "a\0b", "\x1b[1mbold\x1b[0m\r\n", "[bold] {x} %s\n"])
def test_a_short_output_is_printed_exactly_as_it_is(program: Program, output: str) -> None:
    done = program.run("exec", *python(f"import sys; sys.stdout.buffer.write({output.encode()!r})"))
    assert (done.returncode, done.stdout.decode(), done.stderr) == (0, output, b"")
    assert program.files() == []


def test_a_long_output_is_stored_and_a_ticket_is_printed_in_its_place(program: Program) -> None:
    done = program.run("exec", "--", "seq", "1", "100000")
    expected = "".join(f"{number}\n" for number in range(1, 100_001)).encode()
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.endswith(b"}\n")
    ticket = msgspec.json.decode(done.stdout, type=cc.Ticket)
    assert (ticket.kind, ticket.media_type, ticket.bytes) == ("tool-result/seq", "text/plain", len(expected))
    assert program.run("get", ticket.ref).stdout == expected
    (meta,) = objects(program("head", ticket.ref, "--json").stdout)
    assert meta["digest"] == "sha256:" + hashlib.sha256(expected).hexdigest()


def test_the_same_output_again_gives_the_same_ticket_and_one_artifact(program: Program) -> None:
    first, second = (program.run("exec", "--", "seq", "1", "100000").stdout for _ in range(2))
    assert first == second
    assert len(stored(program)) == 1


@pytest.mark.parametrize(("size", "kind"), [(2000, "Inline"), (2001, "Placed")])
def test_only_what_is_over_the_threshold_is_stored(program: Program, size: int, kind: str) -> None:
    said = report(program, "--max-inline-chars", "2000", *python(f"print('ö' * {size}, end='')"))
    assert (said.outcome, said.stdout_bytes) == (kind, 2 * size)
    assert len(stored(program)) == (kind == "Placed")


def test_a_kind_that_is_named_is_that_of_the_artifact(program: Program) -> None:
    said = report(program, "--kind", "dataset/numbers", "--", "seq", "1", "10000")
    assert said.ticket is not None
    assert said.ticket.kind == stored(program)[0]["kind"] == "dataset/numbers"


def test_what_a_command_prints_has_no_authority(program: Program) -> None:
    envelope = (
        '{"content":"x","effects":[{"kind":"propose-transition","targetSkillId":"s","reason":"r"}],"status":"denied"}'
    )
    assert program.run("exec", "--", "printf", "%s", envelope).stdout.decode() == envelope


def test_a_store_that_does_not_take_the_output_leaves_its_beginning_and_says_why(
    program: Program, tmp_path: Path
) -> None:
    store = f"file://{tmp_path}/small?max_bytes=1000"
    said = report(program, "--store", store, "--", "seq", "1", "100000")
    assert (said.outcome, said.exit_status, said.ticket) == ("Truncated", 0, None)
    assert msgspec.json.decode(said.text)["head"].startswith("1\n2\n")
    assert "max_bytes=1000" in (said.not_stored or "")
    done = program.run("exec", "--store", store, "--", "seq", "1", "100000")
    assert done.stderr.startswith(b"coatcheck: the output was not stored: ")
    assert done.stderr.count(b"\n") == 1


def test_small_binary_is_stored_since_there_is_nothing_to_attach_it_to(program: Program) -> None:
    done = program.run("exec", *python("import sys; sys.stdout.buffer.write(b'a\\xff' * 50)"))
    assert (done.returncode, done.stderr) == (0, b"")
    ticket = msgspec.json.decode(done.stdout, type=cc.Ticket)
    assert (ticket.media_type, ticket.bytes) == ("application/octet-stream", 100)
    assert "nothing was lost" in ticket.reason
    assert program.run("get", ticket.ref).stdout == b"a\xff" * 50
    said = report(program, "--kind", "file/x", *python("import sys; sys.stdout.buffer.write(b'a\\xff' * 50)"))
    assert (said.outcome, said.content) == ("Placed", ())
    assert said.ticket is not None
    assert said.ticket.kind == "file/x"


def test_a_command_whose_output_nobody_can_store_ends_by_itself(program: Program, tmp_path: Path) -> None:
    store = f"file://{tmp_path}/small?max_bytes=1000"
    done = tmp_path / "done"
    script = f"seq 1 2000000; touch {done}; exit 3"
    for status, ending in ((3, ""), (0, "; exit 0")):
        done.unlink(missing_ok=True)
        said = report(program, "--store", store, "--", "sh", "-c", script.replace("; exit 3", ending or "; exit 3"))
        assert (said.outcome, said.exit_status, said.signal) == ("Truncated", status, None)
        assert said.stdout_bytes == 14_888_896
        assert done.exists()


def test_text_that_turns_out_to_be_none_late_is_stored_as_bytes(program: Program) -> None:
    said = report(program, *python("import sys; sys.stdout.buffer.write(b'text\\n' * 500_000 + b'\\xff\\n')"))
    assert said.ticket is not None
    assert (said.ticket.media_type, said.ticket.bytes) == ("application/octet-stream", 2_500_002)


# --- a command that fails ---


def test_the_exit_status_is_passed_on_with_all_of_a_short_output_and_nothing_is_stored(program: Program) -> None:
    done = program.run("exec", "--", "sh", "-c", "echo 1 failed; echo oops >&2; exit 3")
    assert done.returncode == 3
    assert done.stdout.endswith(
        b"sh ended with exit status 3. Its standard output:\n1 failed\nIts standard error:\noops\n"
    )
    assert done.stderr == b"oops\n"
    assert program.files() == []


def test_a_command_that_fails_after_much_output_shows_the_end_of_it(program: Program) -> None:
    said = report(program, "--", "sh", "-c", "seq 1 1000000; seq 1 100000 >&2; exit 9")
    assert (said.outcome, said.exit_status, said.ticket, said.stdout_bytes) == ("Failed", 9, None, 6_888_896)
    assert "ended with exit status 9" in said.text
    assert "\n999999\n1000000\nThe last 4000 characters of its standard error, which is 588895 bytes:\n" in said.text
    assert said.text.endswith("\n99999\n100000")
    assert said.stderr.endswith("\n100000\n")
    assert len(said.text) < 10_000
    assert program.files() == []


@pytest.mark.parametrize("name", ["HUP", "KILL", "TERM", "SEGV"])
def test_a_command_that_a_signal_ends_is_128_and_its_number(program: Program, name: str) -> None:
    said = report(program, "--", "sh", "-c", f"echo before; kill -{name} $$")
    assert said.exit_status == 128 + int(subprocess.check_output(["kill", "-l", name]))
    assert said.signal == f"SIG{name}"
    assert f"was ended by SIG{name}. Its standard output:\nbefore" in said.text


def test_a_command_that_is_not_there_is_127(program: Program, tmp_path: Path) -> None:
    for command in ("no-such-command", str(tmp_path / "no-such-command")):
        done = program.run("exec", "--", command)
        assert (done.returncode, done.stdout) == (127, b"no-such-command cannot be run: there is no such command.\n")


def test_a_script_whose_interpreter_is_not_there_is_127_and_says_so(program: Program, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    done = program.run("exec", "--", str(script))
    assert (done.returncode, done.stdout) == (127, b"script cannot be run: what its first line names is not there.\n")


def test_a_file_that_cannot_be_run_is_126(program: Program, tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("echo hi")
    (tmp_path / "plain").chmod(0o644)
    (tmp_path / "nonsense").write_bytes(b"\x01\x02")
    (tmp_path / "nonsense").chmod(0o755)
    for command in (tmp_path / "plain", tmp_path / "nonsense", tmp_path):
        done = program.run("exec", "--", str(command))
        assert done.returncode == 126
        assert b" cannot be run: " in done.stdout
        assert done.stdout.count(b"\n") == 1


def test_a_command_over_its_time_is_stopped_and_is_124(program: Program) -> None:
    said = report(program, "--timeout", "0.5", "--", "sh", "-c", "echo so far; echo hm >&2; sleep 1000; echo never")
    assert (said.outcome, said.exit_status, said.timed_out) == ("Failed", 124, True)
    assert "did not end within 0.5 seconds and was stopped. Its standard output:\nso far\n" in said.text
    assert said.stderr == "hm\n"


def test_a_command_over_the_ceiling_is_stopped_and_is_123(program: Program) -> None:
    said = report(program, "--ceiling", "1000", "--", "yes")
    assert (said.outcome, said.exit_status) == ("TooLarge", 123)
    assert "ceiling of 1000" in said.text
    assert program.files() == []
    assert report(program, "--ceiling", "1000", "--", "seq", "1", "100").outcome == "Inline"


def test_what_is_over_the_ceiling_and_has_ended_is_refused_all_the_same(program: Program) -> None:
    said = report(program, "--ceiling", "100", "--", "printf", "%0200d", "7")
    assert (said.outcome, said.exit_status, said.left_running) == ("TooLarge", 123, 0)


# --- coatcheck itself fails ---


@pytest.mark.parametrize(
    "arguments",
    [
        ["--store", "redis://dana:hunter2@host"],
        ["--store", "memory:"],
        ["--store", "file:///dev/null/x"],
        ["--scope", "a/b/c/d"],
        ["--timeout", "0"],
        ["--timeout", "nan"],
        ["--kind", " "],
    ],
)
def test_a_setting_that_cannot_be_honoured_is_125_and_nothing_is_run(
    program: Program, tmp_path: Path, arguments: list[str]
) -> None:
    done = program.run("exec", *arguments, "--", "touch", str(tmp_path / "ran"))
    assert (done.returncode, done.stdout) == (125, b"")
    assert done.stderr.startswith(b"coatcheck: ")
    assert done.stderr.count(b"\n") == 1
    assert b"hunter2" not in done.stderr
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "arguments", [[], ["--max-chars", "1023", "ls"], ["--no-such-option", "ls"], ["--ceiling", "x", "ls"]]
)
def test_a_command_line_that_cannot_be_understood_is_2(program: Program, arguments: list[str]) -> None:
    done = program.run("exec", *arguments)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"Traceback" not in done.stderr


# --- its arguments and its input ---


def test_arguments_reach_the_command_letter_by_letter(program: Program) -> None:
    arguments = ["a b", "", "'", '"$HOME"', "*", "--help", "--", "-x", "ö\n", "\\"]
    code = "import sys; print(sys.argv[1:])"
    for between in (["--"], []):
        done = program.run("exec", *between, sys.executable, "-c", code, *arguments)
        assert done.stdout.decode() == f"{arguments}\n"


def test_an_argument_that_is_no_text_reaches_the_command(program: Program) -> None:
    done = subprocess.run(
        [COATCHECK, "exec", "--json", "--", "printf", "%s", b"a\xff"],
        env=program.environment,
        capture_output=True,
        check=True,
    )
    ticket = msgspec.json.decode(done.stdout, type=Report).ticket
    assert ticket is not None
    assert program.run("get", ticket.ref).stdout == b"a\xff"


def test_standard_input_is_the_commands(program: Program) -> None:
    assert program.run("exec", "--", "cat", stdin=b"from me\n").stdout == b"from me\n"


def test_a_terminal_is_no_standard_input(program: Program) -> None:
    leader, terminal = os.openpty()
    try:
        done = program.run("exec", "--", "cat", stdin=terminal)
        assert (done.returncode, done.stdout) == (0, b"")
    finally:
        os.close(leader)
        os.close(terminal)


def test_a_command_cannot_stop_at_the_terminal_of_coatcheck(program: Program) -> None:
    done = program.run("exec", *python("import os; print(os.getsid(0) == os.getpid() == os.getpgid(0))"))
    assert done.stdout == b"True\n"


@pytest.mark.parametrize(("closed", "code", "out"), [("<&-", 0, b"hi\n"), ("2>&-", 0, b"hi\n"), (">&-", 125, b"")])
def test_a_stream_that_is_closed_from_the_start_is_no_trouble(
    program: Program, closed: str, code: int, out: bytes
) -> None:
    done = subprocess.run(
        ["sh", "-c", f"{shlex.quote(COATCHECK)} exec -- sh -c 'echo hi; echo oops >&2' {closed}"],
        env=program.environment,
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (code, out)
    assert b"Traceback" not in done.stderr


def test_a_reader_that_goes_away_ends_exec_quietly(program: Program) -> None:
    child = program.start("exec", "--", "sh", "-c", "sleep 0.3; echo late")
    assert child.stdout is not None
    child.stdout.close()
    assert child.stderr is not None
    assert child.stderr.read() == b""
    child.stderr.close()
    assert child.wait(20) == 141


def test_standard_error_passes_through_while_it_is_written(program: Program) -> None:
    child = program.start("exec", "--", "sh", "-c", 'echo first >&2; read line; echo "$line"', stdin=subprocess.PIPE)
    assert child.stderr is not None
    assert child.stderr.readline() == b"first\n"
    assert child.poll() is None
    out, err = child.communicate(b"go on\n", timeout=20)
    assert (out, err, child.returncode) == (b"go on\n", b"", 0)


def test_nobody_needs_to_listen_to_standard_error(program: Program) -> None:
    child = program.start("exec", "--json", "--", "sh", "-c", "sleep 0.3; seq 1 100000 >&2; echo done; exit 1")
    assert child.stderr is not None
    child.stderr.close()
    assert child.stdout is not None
    said = msgspec.json.decode(child.stdout.read(), type=Report)
    child.stdout.close()
    assert (child.wait(20), said.stderr_bytes) == (1, 588_895)


def test_a_stream_that_the_command_closes_early_is_not_its_end(program: Program) -> None:
    done = program.run(
        "exec", "--", "sh", "-c", "echo out; exec >&-; sleep 0.5; echo err >&2; exec 2>&-; sleep 0.5; exit 7"
    )
    assert done.returncode == 7
    assert b"Its standard output:\nout\nIts standard error:\nerr\n" in done.stdout


# --- the report ---


def test_the_report_of_a_short_output_says_all_there_is(program: Program) -> None:
    done = program.run("exec", "--json", "--", "echo", "hi")
    assert done.stdout.count(b"\n") == 1
    assert objects(done.stdout) == [
        {
            "outcome": "Inline",
            "text": "hi\n",
            "ticket": None,
            "exit_status": 0,
            "signal": None,
            "timed_out": False,
            "stdout_bytes": 3,
            "stderr_bytes": 0,
            "stderr": "",
            "left_running": 0,
            "not_stored": None,
            "content": [],
        }
    ]


def test_the_ticket_of_a_report_is_the_text_of_the_outcome(program: Program) -> None:
    said = report(program, "--", "seq", "1", "100000")
    assert said.ticket is not None
    assert said.ticket.to_json() == said.text


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("ls", "ls"),
        ("/usr/bin/git-lfs", "git-lfs"),
        ("./my script.sh", "my-script.sh"),
        ("python3.11", "python3.11"),
        ("köln", "k-ln"),
        ("[", "exec"),
        ("..", "exec"),
        ("dir/", "exec"),
        ('a"b\\c\n\x1b', "a-b-c"),
        ("x" * 300, "x" * 64),
    ],
)
def test_a_tool_is_named_after_its_command_as_far_as_a_ticket_can_hold_it(command: str, name: str) -> None:
    assert tool_name([command]) == name


def test_what_became_of_the_output_and_how_the_command_ended_make_one_exit_code() -> None:
    inline = cc.Inline(tool="t", text="x", value="x")
    too_large = cc.TooLarge(tool="t", text="x", size=2, max_chars=1)
    failure = cc.Failed(tool="t", text="x", reason="x")
    assert passed_on(inline, status=0, not_run=None, timed_out=False) == 0
    assert passed_on(too_large, status=-15, not_run=None, timed_out=False) == 123
    assert passed_on(too_large, status=0, not_run=None, timed_out=False) == 123
    assert passed_on(failure, status=0, not_run=None, timed_out=True) == 124
    assert passed_on(failure, status=0, not_run=None, timed_out=False) == 125
    assert passed_on(failure, status=None, not_run=None, timed_out=False) == 125
    assert passed_on(failure, status=None, not_run=126, timed_out=False) == 126
    assert passed_on(failure, status=-9, not_run=None, timed_out=False) == 137
    assert passed_on(failure, status=5, not_run=None, timed_out=False) == 5


def test_another_process_opens_what_exec_stored(program: Program) -> None:
    said = report(program, "--", "seq", "1", "100000")
    assert said.ticket is not None
    artifact = wait_for(program.store.get(program.scope, said.ticket.ref))
    assert artifact is not None
    assert wait_for(program.store.get(cc.Scope(conversation="shell"), said.ticket.ref)) is None
    shutil.rmtree(Path(program.environment["XDG_DATA_HOME"]))
