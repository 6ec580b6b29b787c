"""``get``, ``head``, ``read`` and ``rm``."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import coatcheck as cc
from tests.cli._program import COATCHECK, Program, objects, wait_for

TEXT = "".join(f"line {number} ö€😀\n" for number in range(1, 1001))
NOWHERE = [
    "art_" + "0" * 32,
    "",
    "\udcff",
    "../../etc/passwd",
    "ART_X",
    "art_\x1b[2J",
    "x" * 10_000,
    "art_" + "0" * 32 + "%00",
]


def damage(program: Program) -> None:
    """Change one byte of the only payload."""
    (payload,) = (path for path in program.files() if path.name == "data")
    data = bytearray(payload.read_bytes())
    data[len(data) // 2] ^= 1
    payload.chmod(0o600)
    payload.write_bytes(data)


# --- what is not there ---


@pytest.mark.parametrize("command", ["get", "head", "read", "rm"])
def test_missing_expired_foreign_and_malformed_refs_are_one_answer(program: Program, command: str) -> None:
    foreign = program.put(b"theirs", cc.Scope(principal="somebody-else", conversation="shell"))
    for ref in [foreign, *NOWHERE]:
        result = program(command, "--", ref)
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
        assert result.stderr.startswith("coatcheck: there is nothing under the ref ")
        assert result.stderr.rstrip("\n").isprintable()
        assert len(result.stderr) < 200


# --- get ---


def test_get_writes_the_payload_as_it_is(program: Program) -> None:
    data = bytes(range(256)) * 1000
    ref = program.put(data, media_type="application/octet-stream")
    assert program.run("get", ref).stdout == data
    assert program("get", ref).stdout_bytes == data


def test_get_into_a_file_leaves_that_file_alone_beside_it(program: Program, tmp_path: Path) -> None:
    ref = program.put(b"x" * 3_000_000)
    target = tmp_path / "folder" / "out"
    target.parent.mkdir()
    target.write_text("what was there")
    result = program("get", ref, "-o", str(target))
    assert (result.exit_code, result.output) == (0, "")
    assert target.read_bytes() == b"x" * 3_000_000
    assert list(target.parent.iterdir()) == [target]


def test_a_file_that_get_writes_has_the_mode_of_any_new_file(program: Program, tmp_path: Path) -> None:
    ref = program.put(b"x")
    assert program("get", ref, "-o", str(tmp_path / "out")).exit_code == 0
    (tmp_path / "other").write_bytes(b"x")
    assert (tmp_path / "out").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_get_follows_a_link_and_leaves_it_a_link(program: Program, tmp_path: Path) -> None:
    ref = program.put(b"new")
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real")
    assert program("get", ref, "-o", str(tmp_path / "link")).exit_code == 0
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"


def test_a_damaged_artifact_leaves_the_file_as_it_was(program: Program, tmp_path: Path) -> None:
    ref = program.put(b"x" * 3_000_000)
    damage(program)
    target = tmp_path / "folder" / "out"
    target.parent.mkdir()
    target.write_text("what was there")
    result = program("get", ref, "--output", str(target))
    assert result.exit_code == 1
    assert f"coatcheck: {ref} is damaged" in result.stderr
    assert target.read_text() == "what was there"
    assert list(target.parent.iterdir()) == [target]


def test_a_damaged_artifact_on_standard_output_ends_with_1_and_says_so(program: Program) -> None:
    ref = program.put(b"x" * 3_000_000)
    damage(program)
    done = program.run("get", ref)
    assert done.returncode == 1
    assert done.stderr.startswith(b"coatcheck: " + ref.encode() + b" is damaged")
    assert done.stderr.count(b"\n") == 1


def test_get_does_not_put_a_file_in_the_place_of_a_device_or_a_directory(program: Program, tmp_path: Path) -> None:
    ref = program.put(b"x")
    os.mkfifo(tmp_path / "pipe")
    for target in (tmp_path / "pipe", tmp_path):
        result = program("get", ref, "-o", str(target))
        assert result.exit_code == 1
        assert "is no file" in result.stderr
    assert (tmp_path / "pipe").is_fifo()


def test_get_into_a_directory_that_is_not_there_is_one_line(program: Program, tmp_path: Path) -> None:
    result = program("get", program.put(b"x"), "-o", str(tmp_path / "nope" / "out"))
    assert result.exit_code == 1
    assert result.stderr.startswith("coatcheck: ")
    assert result.stderr.endswith("No such file or directory\n")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_get_that_is_asked_to_end_leaves_no_file(program: Program, tmp_path: Path, number: signal.Signals) -> None:
    ref = program.put(b"x" * 50_000_000)
    (tmp_path / "folder").mkdir()
    child = program.start("get", ref, "-o", str(tmp_path / "folder" / "out"))
    deadline = time.monotonic() + 20
    while not list((tmp_path / "folder").iterdir()) and child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.001)
    child.send_signal(number)
    assert child.communicate(timeout=20) == (b"", b"")
    assert [path.name for path in (tmp_path / "folder").iterdir()] == (["out"] if child.returncode == 0 else [])
    assert child.returncode in (0, 128 + number), "0 where it was done already"


def test_a_reader_that_goes_away_ends_get_quietly(program: Program) -> None:
    ref = program.put(b"x" * 3_000_000)
    child = program.start("get", ref)
    assert child.stdout is not None
    child.stdout.read(10)
    child.stdout.close()
    assert child.stderr is not None
    assert child.stderr.read() == b""
    child.stderr.close()
    assert child.wait(20) == 141


def test_a_full_disk_is_one_line(program: Program) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no device that is always full")
    ref = program.put(b"x" * 3_000_000)
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [COATCHECK, "get", ref], env=program.environment, stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert done.returncode == 1
    assert done.stderr == b"coatcheck: standard output: No space left on device\n"


def test_standard_output_that_does_not_block_gets_all_of_it(program: Program) -> None:
    ref = program.put(b"x" * 3_000_000)
    out, its_out = os.pipe()
    os.set_blocking(its_out, False)
    child = program.start("get", ref, stdout=its_out)
    os.close(its_out)
    digest = hashlib.sha256()
    with open(out, "rb") as stream:
        while chunk := stream.read(65_536):
            digest.update(chunk)
    assert digest.digest() == hashlib.sha256(b"x" * 3_000_000).digest()
    assert (child.communicate(timeout=20)[1], child.returncode) == (b"", 0)


def test_a_person_sees_how_far_a_long_transfer_is_and_nothing_of_it_stays(program: Program, tmp_path: Path) -> None:
    ref = program.put(b"x" * 30_000_000)
    leader, terminal = os.openpty()
    program.environment["TERM"] = "xterm"
    child = program.start("get", ref, "-o", str(tmp_path / "out"), stderr=terminal)
    os.close(terminal)
    shown = b""
    with suppress(OSError):  # that is how the end of a terminal reads
        while chunk := os.read(leader, 65_536):
            shown += chunk
    os.close(leader)
    child.communicate(timeout=20)
    assert child.returncode == 0
    assert b"get" in shown
    assert b"30.0" in shown


# --- head ---


def test_head_as_json_is_the_meta(program: Program) -> None:
    ref = program.put(b"abc", label="a word", origin={"tool": "t"})
    (meta,) = objects(program("head", ref, "--json").stdout)
    assert meta["ref"] == ref
    assert meta["digest"] == "sha256:" + hashlib.sha256(b"abc").hexdigest()
    assert (meta["bytes"], meta["kind"], meta["label"], meta["origin"]) == (3, "test/data", "a word", {"tool": "t"})


def test_head_for_a_person_moves_no_cursor(program: Program) -> None:
    first = program.put(b"first")
    ref = program.put(
        b"abc", kind="kind\u202ereversed", label="\u2028", origin={"tool": "\x1b]0;title\x07\n\x9b2J"}, parents=[first]
    )
    shown = program("head", ref).stdout
    assert all(line.isprintable() for line in shown.splitlines())
    assert f"digest: sha256:{hashlib.sha256(b'abc').hexdigest()}\n" in shown
    assert f"parent 1: {first}\n" in shown
    assert r"\x1b]0;title" in shown
    as_json = program("head", ref, "--json").stdout
    assert all(line.isprintable() for line in as_json.splitlines())
    assert objects(as_json)[0]["origin"] == {"tool": "\x1b]0;title\x07\n\x9b2J"}


def test_head_still_answers_for_a_payload_that_is_damaged(program: Program) -> None:
    ref = program.put(b"x" * 100)
    damage(program)
    assert program("head", ref).exit_code == 0


# --- read ---


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], TEXT),
        (["--lines", "2:3"], "".join(TEXT.splitlines(keepends=True)[1:3])),
        (["--lines", "1000:"], TEXT.splitlines(keepends=True)[999]),
        (["--lines", "1001:2000"], ""),
        (["--chars", "5:9"], TEXT[5:9]),
        (["--chars", ":8"], TEXT[:8]),
        (["--chars", "7:7"], ""),
        (["--chars", f"{len(TEXT) - 3}:999999999"], TEXT[-3:]),
    ],
)
def test_read_prints_the_part_that_was_asked_for(program: Program, arguments: list[str], expected: str) -> None:
    ref = program.put(TEXT.encode())
    result = program("read", ref, *arguments)
    assert (result.exit_code, result.stdout_bytes.decode()) == (0, expected)


def test_read_gives_any_bytes_of_anything(program: Program) -> None:
    data = os.urandom(100_000)
    ref = program.put(data, media_type="image/png")
    assert program("read", ref, "--bytes", "1000:2000").stdout_bytes == data[1000:2000]
    assert program("read", ref, "--bytes", "99990:").stdout_bytes == data[99_990:]
    assert program("read", ref, "--bytes", "200000:").stdout_bytes == b""


@pytest.mark.parametrize("arguments", [[], ["--lines", "1:2"], ["--chars", "0:9"]])
def test_lines_and_characters_of_binary_are_refused(program: Program, arguments: list[str]) -> None:
    ref = program.put(b"\x89PNG\n\0", media_type="image/png")
    result = program("read", ref, *arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"coatcheck: {ref} is binary (image/png): read --bytes of it, or get it into a file\n"


def test_text_that_is_none_is_one_line(program: Program) -> None:
    ref = program.put(b"abc\xff", media_type="text/plain")
    result = program("read", ref, "--chars", "0:10")
    assert result.exit_code == 1
    assert "no UTF-8" in result.stderr


def test_only_one_kind_of_range_can_be_meant(program: Program) -> None:
    result = program("read", "x", "--lines", "1:2", "--bytes", "1:2")
    assert result.exit_code == 2
    assert "give one of them" in result.stderr


@pytest.mark.parametrize("option", ["--lines", "--chars", "--bytes"])
def test_a_range_that_is_none_is_a_mistake_in_the_command_line(program: Program, option: str) -> None:
    for text in ("5", ""):
        result = program("read", "x", option, text)
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
        assert result.stderr.startswith("coatcheck: a range is A:B")


def test_a_read_of_a_part_needs_no_reading_of_the_rest(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    ref = program.put(b"a" * 20_000_000 + b"the end")
    asked: list[tuple[int, int | None]] = []
    original: Callable[..., object] = cc.DirectoryStore.open

    def opened(self: cc.DirectoryStore, scope: cc.Scope, ref: str, start: int = 0, end: int | None = None) -> object:
        asked.append((start, end))
        return original(self, scope, ref, start, end)

    monkeypatch.setattr(cc.DirectoryStore, "open", opened)
    assert program("read", ref, "--bytes", "20000000:").stdout == "the end"
    assert asked == [(20_000_000, None)]


@pytest.mark.parametrize("count", [1, 2, 3, 700, 1000, 5000])
@pytest.mark.parametrize("text", [TEXT, TEXT + "no end", TEXT * 80, "", "\n", "\n\n", "x"])
def test_head_and_tail_are_the_first_and_the_last_lines(program: Program, count: int, text: str) -> None:
    ref = program.put(text.encode())
    lines = text.split("\n")
    lines = [f"{line}\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
    assert program("read", "--head", str(count), ref).stdout_bytes.decode() == "".join(lines[:count])
    assert program("read", "--tail", str(count), ref).stdout_bytes.decode() == "".join(lines[-count:])


def test_a_path_prints_the_value_that_is_there(program: Program) -> None:
    ref = program.put(b'{"a": [1, {"b": "' + b"x" * 3_000_000 + b'"}], "c": null}', media_type="application/json")
    assert program("read", "--path", "$.c", ref).stdout == "null\n"
    assert len(program("read", "--path", "a[1].b", ref).stdout) == 3_000_003
    for path, said in (("$.d", "no key 'd'"), ("$..", "cannot be read"), ("$.c.d", "is null")):
        result = program("read", "--path", path, ref)
        assert (result.exit_code, result.stdout) == (1, "")
        assert said in result.stderr
    for words in (["--tail", "1"], ["--path", "$.a"]):
        assert program("read", *words, "art_" + "0" * 32).exit_code == 1
        assert "is binary" in program("read", *words, program.put(b"\0", media_type="image/png")).stderr


def test_a_path_to_a_long_value_prints_all_of_it(program: Program) -> None:
    value = b'"' + b'x\\"' * 5_000_000 + b'"'
    ref = program.put(b'{"a": ' + value + b', "b": 1}', media_type="application/json")
    assert program("read", "--path", "$.a", ref).stdout_bytes == value + b"\n"


@pytest.mark.parametrize("option", ["--head", "--tail"])
def test_any_number_of_lines_can_be_asked_for(program: Program, option: str) -> None:
    assert program("read", option, "1" + "0" * 19, program.put(TEXT.encode())).stdout_bytes.decode() == TEXT


# --- rm ---


def test_rm_removes_every_ref_that_is_there_and_names_every_other(program: Program) -> None:
    refs = [program.put(b"%d" % number) for number in range(3)]
    result = program("rm", refs[0], NOWHERE[0], refs[1], refs[1])
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert NOWHERE[0] in result.stderr
    page = wait_for(program.store.list(program.scope))
    assert [meta.ref for meta in page.artifacts] == [refs[2]]
    assert program("rm", refs[2]).exit_code == 0


def test_rm_removes_what_is_damaged(program: Program) -> None:
    ref = program.put(b"x" * 100)
    (meta,) = (path for path in program.files() if path.name == "meta.json")
    meta.chmod(0o600)
    meta.write_bytes(b"{")
    assert program("head", ref).exit_code == 1
    assert program("rm", ref).exit_code == 0
    assert program.files() == []


def test_a_file_that_is_replaced_stays_as_private_as_it_was(program: Program, tmp_path: Path) -> None:
    ref = program.put(b"secret")
    target = tmp_path / "private"
    target.write_bytes(b"old")
    target.chmod(0o600)
    assert program("get", ref, "-o", str(target)).exit_code == 0
    assert (target.read_bytes(), target.stat().st_mode & 0o777) == (b"secret", 0o600)
