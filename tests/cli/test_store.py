"""``ls``, ``stat``, ``verify``, ``sweep``, and how the commands find their store and say what is wrong with it."""

from __future__ import annotations

import subprocess
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import coatcheck as cc
from coatcheck.cli import store as store_module
from coatcheck.cli.output import harmless
from coatcheck.scope import scope_segments
from tests.cli._program import COATCHECK, Program, objects, wait_for

OTHER = cc.Scope(tenant="acme", principal="dana", conversation="c-42")


def whole_store(program: Program) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in program.files()}


def expired(program: Program, data: bytes = b"old") -> str:
    """Put an artifact that has expired by now."""
    store = cc.DirectoryStore(
        Path(program.environment["XDG_DATA_HOME"]) / "coatcheck" / "store",
        ttl=timedelta(hours=1),
        clock=lambda: datetime.now(UTC) - timedelta(days=1),
    )
    return wait_for(store.put(program.scope, data, kind="test/old", media_type="text/plain")).meta.ref


# --- ls ---


def test_ls_lists_the_scope_newest_first_through_all_pages(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "_PAGE", 3)
    refs = [program.put(b"%d" % number) for number in range(10)]
    program.put(b"theirs", OTHER)
    rows = objects(program("ls", "--json").stdout)
    assert [row["ref"] for row in rows] == refs[::-1]
    assert {row["kind"] for row in rows} == {"test/data"}
    for limit in (1, 3, 4, 10, 11):
        rows = objects(program("ls", "--json", "--limit", str(limit)).stdout)
        assert [row["ref"] for row in rows] == refs[::-1][:limit]


def test_ls_for_a_person_has_a_line_an_artifact_that_moves_no_cursor(program: Program) -> None:
    ref = program.put(b"abc", kind="kind\u202e", label="\u2066label\u2028")
    title, line = program("ls").stdout.splitlines()
    assert title.split() == ["REF", "BYTES", "CREATED", "EXPIRES", "TYPE", "KIND", "LABEL"]
    assert line.startswith(ref)
    assert line.isprintable()
    assert r"kind\u202e" in line


def test_ls_of_an_empty_scope_prints_nothing(program: Program) -> None:
    program.put(b"elsewhere")
    assert [program("ls", *more, "--scope", "another").output for more in ([], ["--json"])] == ["", ""]


@pytest.mark.parametrize("there", [False, True])
def test_a_command_that_reads_makes_no_store_and_says_that_there_is_none(
    program: Program, tmp_path: Path, there: bool
) -> None:
    path = tmp_path / "typo" / "store"
    if there:
        path.mkdir(parents=True, mode=0o755)
    for arguments, code in ((["ls"], 0), (["stat"], 0), (["verify"], 0), (["get", "x"], 1), (["head", "x"], 1)):
        result = program(*arguments, "--store", f"file://{path}")
        assert result.exit_code == code
        assert result.stderr.startswith(f"coatcheck: there is no store in {path} yet")
        assert list(path.iterdir()) == [] if there else not path.parent.exists()


def test_a_reader_that_goes_away_ends_ls_quietly(program: Program, tmp_path: Path) -> None:
    for number in range(5):
        program.put(b"%d" % number)
    done = subprocess.run(
        ["bash", "-c", '"$0" ls --json | true; echo "${PIPESTATUS[0]}"', COATCHECK],
        env=program.environment,
        capture_output=True,
        check=True,
    )
    assert done.stderr == b""
    assert done.stdout in (b"141\n", b"0\n"), "0 where the other side had not gone yet"


# --- stat ---


def test_stat_counts_by_kind_in_the_scope_that_is_named(program: Program) -> None:
    for number in range(4):
        program.put(b"x" * number, OTHER)
    program.put(b"12345", OTHER, kind="test/other")
    program.put(b"mine")
    rows = objects(program("stat", "--json", "--scope", "acme/dana/c-42").stdout)
    assert [(row["scope"], row["kind"], row["count"], row["bytes"]) for row in rows] == [
        (["acme", "dana", "c-42"], "test/data", 4, 6),
        (["acme", "dana", "c-42"], "test/other", 1, 5),
    ]
    shown = program("stat", COATCHECK_SCOPE="acme/dana/c-42").stdout.splitlines()
    assert [line.split() for line in shown] == [
        ["4", "6", "acme/dana/c-42", "test/data"],
        ["1", "5", "acme/dana/c-42", "test/other"],
        ["5", "11", "in", "all"],
    ]


def test_stat_without_a_scope_counts_the_whole_store_where_the_store_can(program: Program) -> None:
    program.put(b"mine")
    for number in range(3):
        program.put(b"%d" % number, OTHER)
    rows = objects(program("stat", "--json").stdout)
    assert {(*row["scope"], row["kind"], row["count"], row["bytes"]) for row in rows} == {
        (*scope_segments(program.scope), "test/data", 1, 4),
        ("acme", "dana", "c-42", "test/data", 3, 3),
    }


def test_stat_without_a_scope_counts_the_own_one_where_the_store_cannot_count_all(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(cc.DirectoryStore, "usage", raising=False)
    program.put(b"mine")
    program.put(b"theirs", OTHER)
    assert sum(row["count"] for row in objects(program("stat", "--json").stdout)) == 1


# --- verify ---


def test_verify_of_a_scope_reads_all_of_it(program: Program) -> None:
    for number in range(5):
        program.put(b"%d" % number)
    result = program("verify")
    assert (result.exit_code, result.output) == (0, "5 of 5 are as they were put\n")
    rows = objects(program("verify", "--json").stdout)
    assert Counter((row["ok"], row["problem"]) for row in rows) == {(True, None): 5}


def test_verify_names_what_is_wrong_and_ends_with_1(program: Program) -> None:
    kinds = {"data": "damaged", "short": "damaged", "meta": "damaged", "fine": None}
    refs = {name: program.put(name.encode() * 1000) for name in kinds}
    for path in program.files():
        path.chmod(0o600)
        name = next(name for name, ref in refs.items() if ref in str(path))
        if name == "data" and path.name == "data":
            path.write_bytes(b"xata" * 1000)
        elif name == "short" and path.name == "data":
            path.write_bytes(b"short")
        elif name == "meta" and path.name == "meta.json":
            path.write_bytes(b"{")
    expected = {ref: kinds[name] for name, ref in refs.items()}
    for arguments in ([], list(refs.values())):
        result = program("verify", "--json", *arguments)
        assert result.exit_code == 1
        assert {row["ref"]: row["problem"] for row in objects(result.stdout)} == expected
        shown = program("verify", *arguments)
        assert shown.exit_code == 1
        assert "1 of 4 are as they were put\n" in shown.stdout
        for name, ref in refs.items():
            assert (f"{ref}  {kinds[name]}: " in shown.stdout) == (kinds[name] is not None)


def test_what_is_deleted_while_a_scope_is_verified_is_nobodys_fault(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    program.put(b"one")
    ref = program.put(b"two")
    listed = cc.DirectoryStore.list

    async def list_and_delete(
        self: cc.DirectoryStore, scope: cc.Scope, *, cursor: str | None = None, limit: int = 50
    ) -> cc.Page:
        page = await listed(self, scope, cursor=cursor, limit=limit)
        await self.delete(scope, ref)
        return page

    monkeypatch.setattr(cc.DirectoryStore, "list", list_and_delete)
    result = program("verify")
    assert (result.exit_code, result.stdout) == (0, "1 of 1 are as they were put\n")


def test_verify_goes_on_after_a_payload_that_the_store_cannot_read(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = program.put(b"bad"), program.put(b"good")
    original = cc.DirectoryStore.open

    def opened(self: cc.DirectoryStore, scope: cc.Scope, ref: str, start: int = 0, end: int | None = None) -> object:
        if ref == bad:
            raise cc.StoreUnavailable("the store cannot read an artifact: Input/output error (EIO)")
        return original(self, scope, ref, start, end)

    monkeypatch.setattr(cc.DirectoryStore, "open", opened)
    result = program("verify", "--json", bad, good)
    assert result.exit_code == 1
    assert [(row["ref"], row["problem"]) for row in objects(result.stdout)] == [(bad, "unreadable"), (good, None)]


# --- sweep ---


def test_a_dry_run_says_what_would_be_removed_and_removes_nothing(program: Program) -> None:
    ref = expired(program)
    program.put(b"new")
    before = whole_store(program)
    (row,) = objects(program("sweep", "--dry-run", "--json").stdout)
    assert row == {"ref": ref, "kind": "test/old", "bytes": 3, "reason": "ttl"}
    assert program("sweep", "--dry-run").stdout.endswith("1 would be removed, 3 bytes\n")
    assert whole_store(program) == before
    assert program("sweep").stdout.endswith("1 removed, 3 bytes\n")
    assert objects(program("sweep", "--json").stdout) == []
    assert len(objects(program("ls", "--json").stdout)) == 1


def test_sweep_is_for_one_scope_unless_all_are_meant(program: Program) -> None:
    expired(program)
    assert objects(program("sweep", "--json", "--scope", "other").stdout) == []
    assert len(objects(program("sweep", "--json", "--all-scopes", "--scope", "other").stdout)) == 1


# --- which store, and what is wrong with it ---


def test_flags_win_over_the_environment_and_the_environment_over_the_defaults(program: Program, tmp_path: Path) -> None:
    def listed(*arguments: str, **environment: str) -> list[str]:
        return [row["ref"] for row in objects(program("ls", "--json", *arguments, **environment).stdout)]

    mine, theirs = program.put(b"mine"), program.put(b"theirs", OTHER)
    assert listed() == [mine]
    assert listed(COATCHECK_SCOPE="acme/dana/c-42") == [theirs]
    assert listed("--scope", "nobody", COATCHECK_SCOPE="acme/dana/c-42") == []
    elsewhere = f"file://{tmp_path}/elsewhere"
    assert listed(COATCHECK_STORE=elsewhere) == []
    default = f"file://{program.environment['XDG_DATA_HOME']}/coatcheck/store"
    assert listed("--store", default, COATCHECK_STORE=elsewhere) == [mine]
    assert listed(COATCHECK_STORE="", COATCHECK_SCOPE="") == [mine], "an empty variable is none"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("s3://dana:hunter2@bucket/x", "s3: takes no credentials in its URL"),
        ("redis://dana:hunter2@host", "no store has the scheme redis"),
        ("file:///tmp/x?password=hunter2", "file: has no setting"),
        ("memory:", "memory: ends with this process"),
        ("/a/path", "no scheme"),
        ("file:///hunter2/\udcff", "no UTF-8"),
    ],
)
def test_a_store_that_cannot_be_is_refused_in_one_line_without_its_secrets(
    program: Program, url: str, said: str
) -> None:
    result = program("ls", "--store", url)
    assert result.exit_code == 2
    assert result.stderr.startswith("coatcheck: ")
    assert said in result.stderr
    assert result.stderr.count("\n") == 1
    assert "hunter2" not in result.output


def test_a_scope_that_is_none_is_a_mistake_in_the_command_line(program: Program) -> None:
    for arguments in (["ls"], ["stat"], ["get", "x"], ["head", "x"], ["read", "x"], ["rm", "x"], ["verify"], ["sweep"]):
        result = program(*arguments, "--scope", "a/b/c/d")
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1)


def test_a_store_that_is_none_is_one_line(program: Program, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("not a store")
    result = program("ls", "--store", f"file://{tmp_path}/full")
    assert result.exit_code == 1
    assert "is not a store" in result.stderr
    assert result.stderr.startswith("coatcheck: ")
    assert result.stderr.count("\n") == 1
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["thesis.tex"]


def test_help_names_every_command_and_its_exit_codes(program: Program) -> None:
    listed = program("--help").stdout
    for name in ("exec", "get", "head", "read", "ls", "rm", "verify", "sweep", "stat", "schema", "demo"):
        assert f"\n  {name} " in listed
        if name != "demo":
            assert "Exit codes: " in program(name, "--help").stdout


def test_shell_completion_is_on(program: Program) -> None:
    done = program.run("--show-completion", "bash")
    assert b"_COATCHECK_COMPLETE" in done.stdout or b"--show-completion" in program.run("--help").stdout
    program.environment.update(_COATCHECK_COMPLETE="complete_bash", COMP_WORDS="coatcheck ve", COMP_CWORD="1")
    assert program.run().stdout.split() == [b"verify"]


def test_what_cannot_be_printed_is_spelled_out() -> None:
    assert harmless("ö\x1b[1m\u202e") == r"ö\x1b[1m" + r"\u202e"
