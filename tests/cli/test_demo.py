"""``coatcheck demo``: what a newcomer reads, on whatever their output is, and that it cannot praise what went wrong."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import os
import pty
import re
import resource
import struct
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from typer.testing import CliRunner, Result

import coatcheck as cc
from coatcheck.cli import demo as demo_module
from coatcheck.cli import demo_large, demo_stream
from coatcheck.cli.demo_page import Page, Unmet
from coatcheck.cli.demo_tools import PNG_SIGNATURE, list_modules, picture_of_module, read_module, search_source
from coatcheck.cli.main import app

KINDS = ["Inline", "Placed", "Truncated", "TooLarge", "Denied", "Failed", "Pending"]
LIMITS = resource.getrlimit(resource.RLIMIT_DATA)
# What would make an output look like another one; the tests say for themselves what they want.
UNSET = dict.fromkeys(["FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "TERM", "PYTHONIOENCODING"])


def run(*arguments: str, columns: int = 100) -> Result:
    """The command in this process."""
    return CliRunner(env={**UNSET, "COLUMNS": str(columns)}).invoke(app, arguments or ["demo"])


def spawn(
    program: str = "from coatcheck.cli import main; main()", **environment: str
) -> subprocess.CompletedProcess[bytes]:
    """``coatcheck demo`` in a process of its own, its output a pipe."""
    inherited = {name: value for name, value in os.environ.items() if name not in UNSET}
    return subprocess.run(
        [sys.executable, "-c", f"import sys; sys.argv = ['coatcheck', 'demo']\n{program}"],
        env={**inherited, "COLUMNS": "100", **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=50,
    )


def alike(output: str) -> str:
    """The output without what is another number in another process.

    That is its memory, and the packages that it sees installed where it has more folders on its path.
    """
    return re.sub(r"\d+(?=\s+installed)|(?<=this\sprogram\s)had\s+\d+(?=\s+MB)", "", re.sub(r"\s+", " ", output))


def quotes(output: str) -> list[tuple[str, str]]:
    """What was printed behind bars: the call before it, and the lines joined as they were before they were folded."""
    found: list[tuple[str, str]] = []
    for block in re.split(r"^  call +", output, flags=re.MULTILINE)[1:]:
        call, _, rest = block.partition("\n")
        found.append((call, "".join(re.findall(r"^.{11}\| (.*)$", rest.partition("\n\n")[0], re.MULTILINE))))
    return found


@pytest.fixture(scope="module")
def shown() -> str:
    """The output of one run in this process."""
    result = run()
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this process makes its temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


# --- what is shown ---


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_outcome_is_shown_by_a_call(shown: str, kind: str) -> None:
    assert re.search(rf"^  outcome  {kind}; ", shown, re.MULTILINE)


def test_the_kinds_that_it_shows_are_all_that_there_are() -> None:
    assert {cls.__name__ for cls in cc.Outcome.__subclasses__()} == set(KINDS)


def test_an_absence_is_a_delivered_result_with_the_status_absent(shown: str) -> None:
    assert "  outcome  Inline; status absent; the tool ran\n" in shown


def test_a_denial_is_shown_before_the_tool_and_after_it(shown: str) -> None:
    assert "  outcome  Denied; no status; the tool did not run\n" in shown
    assert "  outcome  Denied; no status; the tool ran\n" in shown


def test_a_failure_is_shown_for_an_unknown_tool_for_wrong_arguments_and_for_a_tool_that_raises(shown: str) -> None:
    assert "There is no tool named 'serch_source'" in shown
    assert "The arguments of search_source are wrong" in shown
    assert "The standard library has no module 'argparser'" in shown


def test_every_call_is_shown_with_what_the_model_reads_its_outcome_and_its_ledger(shown: str) -> None:
    calls = len(re.findall(r"^  call     \w", shown, re.MULTILINE)) - 1  # less the line that explains the word
    assert calls >= 16
    for label in (r"reads    \|", "outcome  [A-Z]", "ledger   before the tool, guard_notes said (allow|deny|ask)"):
        assert len(re.findall(rf"^  {label}", shown, re.MULTILINE)) == calls


def test_what_the_model_reads_is_shown_as_it_is(shown: str) -> None:
    texts = dict(quotes(shown))
    ticket = msgspec.json.decode(texts['picture_of_module(name="argparse")'])[1]["data"]
    assert cc.is_ticket(ticket)
    assert ticket["bytes"] == len(base64.b64decode(picture_of_module("argparse")[1]["data"]))
    absence = cc.read_absence(msgspec.json.decode(texts['search_source(word="coatcheck")']))
    assert absence == search_source("coatcheck")


def test_a_text_that_is_shortened_says_by_how_much(shown: str) -> None:
    section = shown[shown.index("Truncated\n---") : shown.index("Denied\n---")]
    (reads,) = re.findall(r"the model reads ([\d,]+) characters", section)
    (left_out,) = re.findall(r"\[([\d,]+) characters are left out here by this demo", section)
    ((_, shortened),) = quotes(section)
    whole = int(reads.replace(",", ""))
    assert len(shortened) + int(left_out.replace(",", "")) == whole
    assert 5_990 < whole <= 6_000, "the limit, or what is left of it where the next character needs an escape"


def test_the_digest_that_it_computes_is_that_of_the_list_of_modules(shown: str) -> None:
    assert hashlib.sha256(msgspec.json.encode(list_modules())).hexdigest() in shown


def test_the_same_call_is_shown_with_the_same_ticket_in_the_batch(shown: str) -> None:
    single, in_batch = (text for call, text in quotes(shown) if call == "list_modules()")
    assert single[:160] == in_batch[:160]
    assert '"ref":"art_' in in_batch[:160]


def test_a_second_use_of_the_approved_bytes_is_declined_on_both_servers(shown: str) -> None:
    assert [text for call, text in quotes(shown) if call == 'resume(the bytes, approved=True, by="Dana")'] == [
        "save_note did not run: the approval was used already."
    ] * 2


def test_two_runs_print_the_same(shown: str) -> None:
    assert alike(run().stdout) == alike(shown)


# --- the act about a result of 200 MB ---


def third_act(output: str) -> str:
    return output[output.index("Far too much to read: Placed") : output.index("What you saw\n---")]


def test_from_a_result_of_200_mb_it_answers_with_texts_of_at_most_8000_characters(shown: str) -> None:
    act = third_act(shown)
    (size,) = re.findall(r"ok +([\d,]+) bytes are in the store", act)
    assert int(size.replace(",", "")) > 200_000_000
    (longest,) = re.findall(r"its longest text has ([\d,]+) characters", act)
    assert 0 < int(longest.replace(",", "")) <= demo_large.LONGEST == 8_000
    tools = [call.partition("(")[0] for call, _ in quotes(act)]
    reading = ["search_artifact", "read_artifact", "read_artifact", "query_artifact"]
    assert tools == ["export_log", *reading, "add_up", "present"]


def test_sql_and_the_tool_that_wants_the_log_give_the_sums_of_what_the_log_is_made_of(shown: str) -> None:
    texts = {call.partition("(")[0]: text for call, text in quotes(third_act(shown))}
    expected: dict[str, dict[str, int]] = {}
    for line in b"".join(demo_large._log(demo_large.ROWS)).splitlines():
        row = msgspec.json.decode(line)
        total = expected.setdefault(row["host"], {"requests": 0, "ms": 0})
        total["requests"] += 1
        total["ms"] += row["ms"]
    assert msgspec.json.decode(texts["add_up"]) == expected
    rows = msgspec.json.decode(texts["query_artifact"])["rows"]
    assert {row.pop("host"): row for row in rows} == expected


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the memory of the process that started it counts, too")
def test_a_program_of_its_own_never_has_as_much_memory_as_that_result_is_long() -> None:
    done = spawn()
    (megabytes,) = re.findall(r"at its largest, this program had (\d+) MB", " ".join(done.stdout.decode().split()))
    assert int(megabytes) < 200_000_000 >> 20


@pytest.mark.parametrize("missing", ["re2", "jmespath", "duckdb"])
def test_what_needs_an_extra_that_is_not_there_is_left_out_and_says_so(missing: str) -> None:
    done = spawn(f"sys.modules[{missing!r}] = None\nfrom coatcheck.cli import main; main()")
    assert (done.returncode, done.stderr) == (0, b"")
    act = " ".join(third_act(done.stdout.decode()).split())
    assert "and is left out: install coatcheck[readers,sql]." in act
    assert ("and is left out: install coatcheck[readers]." in act) == (missing == "re2")
    assert ("call search_artifact(" in act) == (missing != "re2")
    assert "call query_artifact(" not in act
    assert "they are right, too" in act


def test_a_sum_that_is_wrong_ends_it_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    worked_out = demo_large._worked_out
    monkeypatch.setattr(demo_large, "_worked_out", lambda: (worked_out()[0], {"web-1": {"requests": 1, "ms": 1}}))
    result = run()
    assert result.exit_code == 1
    assert "does not: the numbers are those that the demo has worked out" in result.stderr


def test_a_text_that_is_too_long_ends_it_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_large, "LONGEST", 4_000)
    result = run()
    assert result.exit_code == 1
    assert "does not: its longest text has" in result.stderr


def test_a_call_that_an_answer_names_and_that_reads_elsewhere_ends_it_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    copied = demo_large._copied

    def elsewhere(words: str, text: str) -> tuple[str, dict[str, object]]:
        tool, arguments = copied(words, text)
        return tool, {**arguments, "lines": "1:3", "from_byte": 0} if words == "Read on with" else arguments

    monkeypatch.setattr(demo_large, "_copied", elsewhere)
    result = run()
    assert result.exit_code == 1
    assert "does not: both pages, joined, are the" in result.stderr


# --- on whatever the output is ---


def test_in_a_pipe_it_prints_no_escape_sequences_and_leaves_nothing_behind(tmp_path: Path, shown: str) -> None:
    done = spawn(TMPDIR=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"\x1b" not in done.stdout
    assert alike(done.stdout.decode()) == alike(shown)
    assert list(tmp_path.iterdir()) == []


def test_the_console_script_is_the_same_program(shown: str) -> None:
    script = Path(sys.executable).with_name("coatcheck")
    done = subprocess.run([script, "--help"], capture_output=True, text=True, check=True, timeout=50)
    assert "demo" in done.stdout


@pytest.mark.parametrize("columns", [30, 60, 200])
def test_no_line_is_wider_than_the_window(columns: int) -> None:
    result = run(columns=columns)
    assert result.exit_code == 0
    assert max(cell_len(line) for line in result.stdout.splitlines()) <= min(columns, 100)


def test_an_output_that_only_takes_ascii_is_no_trouble() -> None:
    done = spawn(PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.isascii()


@pytest.mark.parametrize("no_color", ["", "1"])
def test_on_a_terminal_it_is_coloured_unless_no_color_is_set(no_color: str) -> None:
    terminal, its_end = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if name not in UNSET}
    with subprocess.Popen(
        [Path(sys.executable).with_name("coatcheck"), "demo"],
        env={**environment, "TERM": "xterm-256color", "NO_COLOR": no_color},
        stdin=its_end,
        stdout=its_end,
        stderr=its_end,
    ) as process:
        os.close(its_end)
        seen = b""
        with contextlib.suppress(OSError), open(terminal, "rb", buffering=0) as output:  # EIO is the end of a terminal
            while piece := output.read(1 << 16):
                seen += piece
    assert process.returncode == 0
    assert b"README.md" in seen
    assert (re.search(rb"\x1b\[[\d;]*3[0-7]m", seen) is None) == bool(no_color)


def test_a_reader_that_goes_away_early_gets_no_traceback() -> None:
    with subprocess.Popen(
        [Path(sys.executable).with_name("coatcheck"), "demo"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert b"coatcheck" in process.stdout.readline()
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read()


# --- it needs nothing, and changes nothing ---

WATCH = """
import os, sys
writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT
own = os.path.realpath(os.environ["TMPDIR"])
def watch(event, args):
    if event in ("socket.connect", "socket.getaddrinfo"):
        print("network:", event, args[1:], file=sys.stderr)
    if event == "open" and isinstance(args[0], str) and isinstance(args[2], int) and args[2] & writing:
        if os.path.isabs(args[0]) and not os.path.realpath(args[0]).startswith(own) and args[0] != os.devnull:
            print("writes:", args[0], file=sys.stderr)
        written.append(args[0])
written = []
sys.addaudithook(watch)
from coatcheck.cli import main
try:
    main()
finally:
    print("written:", len(written))
"""


def test_it_uses_no_network_and_writes_nowhere_but_in_its_own_folder(tmp_path: Path) -> None:
    own, here = tmp_path / "own", tmp_path / "here"
    own.mkdir()
    here.mkdir()
    # The store opens files by name within an open folder; a name without a folder would otherwise mean `here`.
    done = spawn(f"import os; os.chdir({str(here)!r})\n{WATCH}", TMPDIR=str(own), PYTHONDONTWRITEBYTECODE="1")
    assert (done.returncode, done.stderr) == (0, b"")
    assert int(done.stdout.split()[-1]) > 1
    assert list(here.iterdir()) == []


# --- it checks itself ---


def test_an_outcome_of_another_kind_ends_it_with_1_and_a_sentence(
    monkeypatch: pytest.MonkeyPatch, temporary: Path
) -> None:
    monkeypatch.setattr(demo_module, "PLACEMENT", cc.Placement(max_inline_chars=10_000_000))
    result = run()
    assert result.exit_code == 1
    assert "the call of list_modules should end as Placed, and ended as Truncated" in result.stderr
    assert "things were verified" not in result.stdout
    assert list(temporary.iterdir()) == []


def test_a_status_that_is_missing_ends_it_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cc, "absent", lambda **said: {"nothing": True})
    result = run()
    assert result.exit_code == 1
    assert "the call of search_source should have the status absent, and has None" in result.stderr


def test_a_store_that_gives_back_other_bytes_ends_it_with_1(monkeypatch: pytest.MonkeyPatch, temporary: Path) -> None:
    get = cc.DirectoryStore.get

    async def damaged(self: cc.DirectoryStore, scope: cc.Scope, ref: str) -> cc.Artifact | None:
        artifact = await get(self, scope, ref)
        return artifact and msgspec.structs.replace(artifact, data=artifact.data[:-2] + b" ]")

    monkeypatch.setattr(cc.DirectoryStore, "get", damaged)
    result = run()
    assert result.exit_code == 1
    assert "the digest is the same" in result.stderr
    assert "the digest is the same" not in result.stdout
    assert list(temporary.iterdir()) == []


def test_a_store_that_opens_for_every_scope_ends_it_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    get = cc.DirectoryStore.get

    async def careless(self: cc.DirectoryStore, scope: cc.Scope, ref: str) -> cc.Artifact | None:
        return await get(self, cc.Scope(tenant="demo", principal="you", conversation="first"), ref)

    monkeypatch.setattr(cc.DirectoryStore, "get", careless)
    result = run()
    assert result.exit_code == 1
    assert "another conversation gets nothing" in result.stderr


def test_an_approval_that_is_good_twice_ends_it_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    async def claim(self: cc.MemoryApprovals, id: str) -> bool:
        return True

    monkeypatch.setattr(cc.MemoryApprovals, "claim", claim)
    result = run()
    assert result.exit_code == 1
    assert "the call of save_note should end as Denied, and ended as Inline" in result.stderr


def test_a_store_that_cannot_answer_ends_it_with_1_and_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    async def unavailable(self: cc.DirectoryStore, scope: cc.Scope, ref: str) -> None:
        raise cc.StoreUnavailable("the store cannot read an artifact: No space left on device (ENOSPC)")

    monkeypatch.setattr(cc.DirectoryStore, "get", unavailable)
    result = run()
    assert (result.exit_code, type(result.exception)) == (1, SystemExit)
    assert "No space left on device" in result.stderr


# --- the page ---


def page_of(width: int) -> tuple[Page, io.StringIO]:
    file = io.StringIO()
    return Page(Console(file=file, width=width, _environ={})), file


@given(
    st.text(st.characters(exclude_categories=["C", "Zl", "Zp", "Zs"], include_characters="  \n"), max_size=400),
    st.integers(20, 120),
)
def test_folded_lines_joined_are_the_text_again(text: str, width: int) -> None:
    page, file = page_of(width)
    page.show(cc.Inline(tool="t", text=text, value=text), "t()")
    for line in file.getvalue().splitlines():
        assert cell_len(line) <= max(width, 30)
    quoted = re.findall(r"^.{11}\| (.*)$", file.getvalue(), re.MULTILINE)
    assert "".join(quoted) == text.replace("\n", "")


@given(st.text(max_size=200))
def test_nothing_that_a_tool_returns_moves_the_cursor_of_a_terminal(text: str) -> None:
    page, file = page_of(60)
    page.show(cc.Inline(tool="t", text="\x1b[2J\r\x07\u202e\u2028" + text, value=text), "t()")
    assert all(char.isprintable() or char == "\n" for char in file.getvalue())


def test_markup_in_a_result_is_text() -> None:
    page, file = page_of(80)
    page.show(cc.Inline(tool="t", text="[bold]loud[/bold] :smile: [/nonsense]", value=None), "t()")
    assert "| [bold]loud[/bold] :smile: [/nonsense]\n" in file.getvalue()


@given(st.integers(9, 400), st.integers(9, 120))
def test_head_and_tail_and_what_is_said_to_be_left_out_are_the_whole(length: int, most: int) -> None:
    page, file = page_of(60)
    text = "".join(chr(0x4E00 + index) for index in range(length))
    page.show(cc.Inline(tool="t", text=text, value=text), "t()", most=most)
    kept = "".join(re.findall(r"^.{11}\| (.*)$", file.getvalue(), re.MULTILINE))
    left_out = sum(map(int, re.findall(r"\[([\d]+) characters are left out", file.getvalue())))
    assert (left_out > 0) == (length > most)
    assert len(kept) + left_out == length
    assert text.startswith(kept[: most * 2 // 3])
    assert text.endswith(kept[most * 2 // 3 :])


def test_a_fact_that_does_not_hold_is_not_stated() -> None:
    page, file = page_of(80)
    with pytest.raises(Unmet, match="two and two are five"):
        page.check(False, "two and two are five")
    with pytest.raises(Unmet, match="something is there"):
        page.given(None, "something is there")
    assert file.getvalue() == ""
    assert page.checks == 0


# --- its tools ---


def test_a_search_returns_the_lines_that_hold_the_word() -> None:
    found = search_source("def dumps(", package="json")
    assert isinstance(found, list)
    assert [row["module"] for row in found] == ["json"]
    assert all("def dumps(" in row["text"] for row in found)


def test_a_search_that_covers_no_ground_is_an_error_and_no_absence() -> None:
    with pytest.raises(LookupError, match="no module 'jsn'"):
        search_source("def", package="jsn")


def test_the_modules_of_a_package_are_its_own_and_no_tests_or_installed_packages_are_among_all() -> None:
    names = [row["module"] for row in list_modules()]
    assert names == sorted(names)
    assert (
        [row["module"] for row in list_modules("json")]
        == [name for name in names if name.split(".")[0] == "json"]
        != []
    )
    assert not {"test", "site-packages", "dist-packages"} & {part for name in names for part in name.split(".")}
    assert {name.split(".")[0] for name in names} & {"rich", "typer", "pytest"} == set()


def test_the_picture_is_a_png() -> None:
    data = base64.b64decode(picture_of_module("this")[1]["data"])
    assert data.startswith(PNG_SIGNATURE)
    width, height = struct.unpack(">II", data[16:24])
    pixels = zlib.decompress(data[data.index(b"IDAT") + 4 : data.index(b"IEND") - 8])
    rows = [pixels[start : start + width + 1] for start in range(0, len(pixels), width + 1)]
    assert len(rows) == height
    assert {row[0] for row in rows} == {0}
    assert b"".join(row[1:] for row in rows).rstrip(b"\0").decode() == read_module("this")


# --- without the extra ---

BLOCK = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r} or name.startswith({name!r} + "."):
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocker())
from coatcheck.cli import main
main()
"""


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_the_extra_it_says_what_to_install(missing: str) -> None:
    done = spawn(BLOCK.format(name=missing))
    assert done.returncode == 1
    assert done.stdout == b""
    assert b"pip install 'coatcheck[cli]'" in done.stderr
    assert missing.encode() in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("missing", ["coatcheck.cli.demo", "zlib"])
def test_what_the_extra_would_not_bring_is_not_blamed_on_it(missing: str) -> None:
    done = spawn(BLOCK.format(name=missing))
    assert done.returncode == 1
    assert b"ModuleNotFoundError" in done.stderr
    assert b"pip install" not in done.stderr


# --- the program ---


def test_without_a_command_it_lists_the_commands() -> None:
    assert " demo " in run("--help").stdout
    assert run("--help").exit_code == 0


def test_an_unknown_command_is_refused_by_name() -> None:
    result = run("no-such-command")
    assert result.exit_code == 2
    assert "no-such-command" in result.stderr


def test_a_stream_is_larger_than_the_memory_that_the_demo_may_use(shown: str) -> None:
    assert demo_stream.MEGABYTES << 20 > demo_stream.ROOM
    assert f"all {demo_stream.MEGABYTES << 20:,} bytes are in the store" in shown
    if sys.platform == "linux":
        assert f"holding {demo_stream.MEGABYTES} MB fails: there is no such memory" in shown
    assert resource.getrlimit(resource.RLIMIT_DATA) == LIMITS, "the limit is lifted again"
