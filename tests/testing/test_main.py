"""``python -m coatcheck.testing``: the battery on any store that has a URL, one line a law."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from coatcheck.testing import CASES, CaseResult
from coatcheck.testing.__main__ import main

FEW = ["put-head-get", "damaged-payload", "another-process"]
ONLY = [word for case in FEW for word in ("--only", case)]


def test_every_law_is_tried_on_a_directory_and_nothing_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--store", f"file://{tmp_path}/below", "--json"]) == 0
    out, err = capsys.readouterr()
    results = [msgspec.json.decode(line, type=CaseResult) for line in out.splitlines()]
    assert [result.id for result in results] == [case.id for case in CASES]
    assert {result.verdict for result in results} == {"passed"}
    assert err == ""
    assert [path.name for path in tmp_path.rglob("*")] == ["below"]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_what_cannot_be_tried_in_memory_says_for_want_of_what(backend: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--store", "memory:", "--backend", backend, *ONLY]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["passed", "not-applicable", "-", "not-applicable", "-", "1"]
    assert "no corrupt= was given" in lines[2]
    assert lines[-1] == "1 passed, 2 not-applicable, 0 failed"


def test_a_law_that_is_broken_is_said_and_is_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--store", "memory:", "--only", "delete", "--timeout", "0"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("failed          delete  ")
    assert lines[1].strip() == "! it did not end within 0 seconds"
    assert lines[-1] == "0 passed, 0 not-applicable, 1 failed"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--store", "ftp://x"], "no store has the scheme ftp"),
        (["--store", "file:///tmp/x?ttl=7d"], "?ttl= has to be left out"),
        (["--store", "memory:", "--only", "swept"], "no such case: swept; there are "),
    ],
)
def test_what_cannot_be_understood_is_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert said in err


def test_a_place_that_cannot_be_written_to_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert main(["--store", f"file://{tmp_path}/file/below"]) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)


def test_it_is_run_as_a_module(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "coatcheck.testing", "--store", f"file://{tmp_path}", *ONLY]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=50)
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split()[:2] for line in done.stdout.splitlines()[:-1]] == [
        ["passed", case.id] for case in CASES if case.id in FEW
    ]
    assert list(tmp_path.iterdir()) == []


def test_without_a_store_the_usage_is_said() -> None:
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 2
