"""The command line on a store on S3: every command, what it says when something is wrong, and one gigabyte."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coatcheck.artifacts.s3.doctor.examine import CHECKS
from tests.cli._program import Program, objects
from tests.s3._servers import Place, Server, keys, uploads


def environment_of(server: Server, home: Path) -> dict[str, str]:
    """A user's environment who has nothing but credentials."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("COATCHECK_", "_COATCHECK_"))}
    credentials = {name: value for name, value in server.env().items() if "KEY" in name}
    return {**kept, **credentials, "HOME": str(home), "XDG_DATA_HOME": str(home), "COLUMNS": "100"}


@pytest.fixture
def place(seaweed: Server, place_on: Callable[[Server], Place]) -> Place:
    return place_on(seaweed)


@pytest.fixture
def program(place: Place, tmp_path: Path) -> Program:
    """``coatcheck`` as a user runs it whose store is on S3."""
    return Program({**environment_of(place.server, tmp_path), "COATCHECK_STORE": place.url(ttl="7d")})


def run(program: Program, *arguments: str) -> Any:
    """One command, in this process."""
    return program(*arguments, COATCHECK_STORE=program.environment["COATCHECK_STORE"])


def run_as(program: Program, environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """One command with other credentials, in a process of its own, since a process asks for them once."""
    done = Program({**program.environment, **environment}).run(*arguments)
    return subprocess.CompletedProcess(arguments, done.returncode, done.stdout.decode(), done.stderr.decode())


def test_every_command_works_on_a_store_on_s3(program: Program, place: Place, tmp_path: Path) -> None:
    made = program.run("exec", "--json", "--", sys.executable, "-c", "print('0123456789' * 100_000)")
    assert made.returncode == 0, made.stderr
    [report] = objects(made.stdout)
    ref = report["ticket"]["ref"]

    [row] = objects(run(program, "ls", "--json").stdout)
    assert (row["ref"], row["bytes"]) == (ref, 1_000_001)
    assert objects(run(program, "head", "--json", ref).stdout)[0]["digest"] == row["digest"]
    assert run(program, "read", ref, "--bytes", "5:15").stdout_bytes == b"5678901234"
    assert run(program, "get", ref, "-o", str(tmp_path / "out")).exit_code == 0
    assert (tmp_path / "out").read_bytes() == b"0123456789" * 100_000 + b"\n"
    assert run(program, "verify").stdout == "1 of 1 are as they were put\n"
    [counted] = objects(run(program, "stat", "--json").stdout)
    assert (counted["count"], counted["bytes"]) == (1, 1_000_001)
    assert run(program, "sweep", "--all-scopes").stdout == "0 removed, 0 bytes\n"
    assert run(program, "rm", ref).exit_code == 0
    assert run(program, "ls", "--json").stdout == ""
    assert (keys(place), uploads(place)) == (["coatcheck.json"], [])


def test_a_stream_of_several_parts_is_stored_and_comes_back(program: Program, place: Place, tmp_path: Path) -> None:
    made = program.run("exec", "--json", "--", "head", "-c", "20000000", "/dev/zero")
    [report] = objects(made.stdout)
    assert run(program, "get", report["ticket"]["ref"], "-o", str(tmp_path / "out")).exit_code == 0
    assert (tmp_path / "out").read_bytes() == bytes(20_000_000)
    assert uploads(place) == []


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_gigabyte_goes_there_and_back_in_bounded_memory(program: Program, place: Place) -> None:
    measured = (
        "import resource, subprocess, sys\n"
        "code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode\n"
        "print(code, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )

    def peak(*arguments: str) -> int:
        command = [sys.executable, "-c", measured, str(Path(sys.executable).with_name("coatcheck")), *arguments]
        done = subprocess.run(command, env=program.environment, capture_output=True, text=True, check=True, timeout=250)
        code, kibibytes = map(int, done.stdout.split())
        assert code == 0, done.stderr
        return kibibytes

    idle = peak("ls")
    assert peak("exec", "--", "head", "-c", "1G", "/dev/zero") < idle + 96 * 1024
    [row] = objects(run(program, "ls", "--json").stdout)
    assert row["bytes"] == 1 << 30
    assert peak("get", row["ref"]) < idle + 48 * 1024
    assert uploads(place) == []


# --- doctor ---


def test_the_doctor_of_a_store_that_does_not_work_ends_with_1_and_says_what_to_do(program: Program) -> None:
    result = run_as(program, {"AWS_SECRET_ACCESS_KEY": "another-secret"}, "doctor")
    assert result.returncode == 1
    assert "! reach  failed   the secret does not fit the access key" in result.stdout
    assert "> correct secret_access_key" in result.stdout
    assert "the store does not work" in result.stdout
    assert "another-secret" not in result.stdout


@pytest.mark.slow
def test_a_bucket_is_made_by_the_doctor_when_it_is_asked_to_and_else_never(program: Program, place: Place) -> None:
    missing = Place(place.server, f"{place.bucket}-new")
    url = missing.url()
    assert run(program, "ls", "--store", url).exit_code == 1
    assert run(program, "doctor", "--store", url).exit_code == 1

    made = run(program, "doctor", "--store", url, "--make-bucket")
    assert (made.exit_code, made.stderr) == (0, "coatcheck: the bucket was made\n")
    lines = made.stdout.splitlines()
    assert lines[0] == f"bucket {missing.bucket!r} at {place.server.url}"
    assert lines[-1] == "the store works"
    assert [line.split()[0] for line in lines[1:-1] if not line.strip().startswith(">")] == list(CHECKS)

    again = run(program, "doctor", "--store", url, "--make-bucket", "--json")
    assert (again.exit_code, again.stderr) == (0, "coatcheck: the bucket is there already\n")
    rows = objects(again.stdout)
    assert [row["check"] for row in rows] == list(CHECKS)
    assert rows[0].keys() == {"check", "verdict", "detail", "consequence", "blocking"}

    assert (keys(missing), uploads(missing)) == ([], [])
    place.server.client.delete_bucket(Bucket=missing.bucket)


def test_a_bucket_that_cannot_be_made_is_told_in_one_line(program: Program, place: Place) -> None:
    url = Place(place.server, f"{place.bucket}-denied").url()
    wrong = {"AWS_SECRET_ACCESS_KEY": "another-secret"}
    result = run_as(program, wrong, "doctor", "--store", url, "--make-bucket")
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (1, "", 1)


def test_the_doctor_of_a_directory_says_what_there_is_to_say(program: Program, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    result = run(program, "doctor", "--store", url)
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, "the store works")
    assert not (tmp_path / "store").exists()
    run(program, "exec", "--store", url, "--", "head", "-c", "20000", "/dev/zero")
    (tmp_path / "store").mkdir(mode=0o700, exist_ok=True)
    rows = {row["check"]: row["verdict"] for row in objects(run(program, "doctor", "--store", url, "--json").stdout)}
    assert rows == {"reach": "ok", "mode": "ok", "room": "ok", "writing": "ok", "settings": "ok"}
    (tmp_path / "file").write_bytes(b"")
    assert run(program, "doctor", "--store", f"file://{tmp_path}/file").exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--store", "memory:"), "memory: ends with this process"),
        (("--store", "file:///tmp/x", "--make-bucket"), "--make-bucket is for a store on S3"),
        (("--store", "s3://user@bucket"), "takes no credentials in its URL"),
        (("--store", "s3://bucket?ttl=x"), "?ttl=x"),
    ],
)
def test_what_the_doctor_cannot_understand_is_told_in_one_line(
    program: Program, arguments: tuple[str, ...], said: str
) -> None:
    result = run(program, "doctor", *arguments)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert said in result.stderr


# --- what is wrong is one line ---


@pytest.mark.parametrize("command", [("ls",), ("doctor",), ("verify",), ("doctor", "--make-bucket")])
def test_where_the_extra_is_missing_one_line_says_what_to_install(command: tuple[str, ...], program: Program) -> None:
    code = (
        "import sys; sys.modules['aiobotocore'] = None; sys.argv = ['coatcheck', *sys.argv[1:]]\n"
        "from coatcheck.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *command], env=program.environment, capture_output=True, check=False, timeout=50
    )
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (2, b"", 1)
    assert b"coatcheck[s3]" in done.stderr


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"AWS_SECRET_ACCESS_KEY": "another-secret"}, "correct secret_access_key"),
        ({"AWS_ACCESS_KEY_ID": "nobody"}, "does not know the access key"),
        ({"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, "there are no credentials"),
    ],
)
def test_credentials_that_do_not_fit_are_told_in_one_line(
    program: Program, environment: dict[str, str], said: str
) -> None:
    result = run_as(program, environment, "ls")
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (1, "", 1)
    assert said in result.stderr


# --- the battery from a command line ---


def battery(place: Place, home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "coatcheck.testing", "--store", place.url(), *arguments]
    environment = environment_of(place.server, home)
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=55)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_battery_runs_on_a_server_from_a_command_line_and_leaves_nothing(
    place: Place, tmp_path: Path, backend: str
) -> None:
    cases = ["put-head-get", "verified-get", "lost-payload"]
    only = [word for case in cases for word in ("--only", case)]
    done = battery(place, tmp_path, "--backend", backend, *only)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    lines = done.stdout.splitlines()
    assert sorted(line.split()[1] for line in lines[:-1]) == sorted(cases)
    assert {line.split()[0] for line in lines[:-1]} == {"passed"}
    assert lines[-1] == "3 passed, 0 not-applicable, 0 failed"
    assert (keys(place), uploads(place)) == ([], [])


def test_the_battery_says_in_one_line_that_a_server_cannot_be_reached(seaweed: Server, tmp_path: Path) -> None:
    done = battery(Place(seaweed, "no-such-bucket", "p"), tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "there is no bucket" in done.stderr
