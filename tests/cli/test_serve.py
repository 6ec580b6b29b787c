"""``serve``."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

import coatcheck as cc
from tests.cli._program import Program

TOKEN = "ann-0123456789abcdef"
ANN = cc.Scope(tenant="acme", principal="ann", conversation="one two")


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    """Who may read what: Ann."""
    file = tmp_path / "tokens"
    file.write_text(f"# who may read\n\n{TOKEN}  acme/ann/one%20two  # Ann\n")
    file.chmod(0o600)
    return file


@contextmanager
def served(program: Program, *arguments: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """The command as it runs, and the URL that it printed."""
    process = program.start("serve", *arguments)
    assert process.stdout is not None
    try:
        line = process.stdout.readline().decode()
        if not line:
            _, said = process.communicate(timeout=30)
            pytest.fail(f"it ended: {said.decode()}")
        yield line.strip(), process
    finally:
        process.kill()
        process.communicate()


def get(url: str, token: str | None = TOKEN, **given: Any) -> httpx2.Response:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return httpx2.get(url, headers=headers, **given)


def test_it_prints_its_url_serves_what_the_token_may_read_and_ends_in_order(program: Program, token_file: Path) -> None:
    mine, theirs = program.put(b"mine", ANN), program.put(b"theirs")
    with served(program, "--token-file", str(token_file)) as (url, process):
        assert url.startswith("http://127.0.0.1:")
        assert url.endswith("/artifacts")
        assert [meta["ref"] for meta in get(url).json()["artifacts"]] == [mine]
        assert get(f"{url}/{mine}").content == b"mine"
        assert get(f"{url}/{mine}/meta").json()["ref"] == mine
        assert get(f"{url}/{theirs}").status_code == 404
        assert get(url, None).status_code == 401
        process.send_signal(signal.SIGTERM)
        out, said = process.communicate(timeout=30)
    assert (process.returncode, out, said) == (0, b"", b"")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_other_signals_end_it_likewise(program: Program, token_file: Path, number: signal.Signals) -> None:
    with served(program, "--token-file", str(token_file)) as (_, process):
        process.send_signal(number)
        _, said = process.communicate(timeout=30)
    assert (process.returncode, said) == (0, b"")


def test_what_is_under_way_at_sigterm_comes_to_its_end(program: Program, token_file: Path) -> None:
    data = b"0123456789abcdef" * 1_000_000
    ref = program.put(data, ANN)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with (
        served(program, "--token-file", str(token_file)) as (url, process),
        httpx2.stream("GET", f"{url}/{ref}", headers=headers) as response,
    ):
        chunks = response.iter_bytes(1000)
        got = [next(chunks)]
        process.send_signal(signal.SIGTERM)
        got += chunks
        process.communicate(timeout=30)
    assert b"".join(got) == data
    assert process.returncode == 0


def test_tokens_may_be_in_the_environment(program: Program) -> None:
    program.environment["COATCHECK_TOKENS"] = f"{TOKEN} acme/ann/one%20two\n"
    mine = program.put(b"mine", ANN)
    with served(program) as (url, _):
        assert get(f"{url}/{mine}").content == b"mine"


def test_open_is_said_and_for_this_machine_alone(program: Program) -> None:
    ref = program.put(b"mine")
    with served(program, "--open") as (url, _):
        assert get(f"{url}/{ref}", None).content == b"mine"
        rebound = {"Host": "evil.example"}
        assert httpx2.get(f"{url}/{ref}", headers=rebound).status_code == 401
    for host in ("0.0.0.0", "::", ""):
        result = program("serve", "--open", "--host", host)
        assert (result.exit_code, "this machine alone" in result.stderr) == (2, True)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "has no token"),
        ("# nothing\n", "has no token"),
        (f"{TOKEN}\n", "line 1: write a token and its scope"),
        (f"\n{TOKEN} a b c\n", "line 2: write a token and its scope"),
        (f"{TOKEN} a/b/c/d\n", "line 1: scope has more than two slashes"),
        (f"{TOKEN} a\n{TOKEN} b\n", "line 2: this token is there twice"),
        ("short-word a\n", "at least 16 characters"),
        (f"{TOKEN}\xff\n", "is not UTF-8"),
    ],
)
def test_a_token_file_that_says_nothing_clear_is_refused_and_not_quoted(
    program: Program, token_file: Path, text: str, complaint: str
) -> None:
    token_file.write_bytes(text.encode("latin-1"))
    result = program("serve", "--token-file", str(token_file))
    assert (result.exit_code, result.stdout) == (2, "")
    assert complaint in result.stderr
    assert "short-word" not in result.stderr
    assert TOKEN not in result.stderr


def test_it_says_who_may_read_in_one_way(program: Program, token_file: Path) -> None:
    for arguments, environment in [
        ([], {}),
        (["--open", "--token-file", str(token_file)], {}),
        (["--token-file", str(token_file)], {"COATCHECK_TOKENS": f"{TOKEN} a"}),
        (["--open"], {"COATCHECK_TOKENS": f"{TOKEN} a"}),
    ]:
        result = program("serve", *arguments, **environment)
        assert (result.exit_code, "say who may read" in result.stderr) == (2, True)


def test_a_token_file_that_others_can_read_is_complained_of(program: Program, token_file: Path) -> None:
    token_file.chmod(0o644)
    with served(program, "--token-file", str(token_file)) as (_, process):
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=30)
    assert b"chmod 600" in said


def test_what_cannot_be_listened_on_or_opened_is_one_line(program: Program, token_file: Path, tmp_path: Path) -> None:
    missing = program("serve", "--token-file", str(tmp_path / "nowhere"))
    assert (missing.exit_code, missing.stderr.count("\n")) == (1, 1)
    with served(program, "--token-file", str(token_file)) as (url, _):
        port = url.removesuffix("/artifacts").rpartition(":")[2]
        taken = program.run("serve", "--token-file", str(token_file), "--port", port)
    assert (taken.returncode, taken.stdout, taken.stderr.count(b"\n")) == (1, b"", 1)
