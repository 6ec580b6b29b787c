"""``coatcheck exec``: signals go to the command, and no process is left behind, whatever happens."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from coatcheck.cli.exec import Report
from coatcheck.cli.process import GRACE
from tests.cli._program import COATCHECK, Program

linux = pytest.mark.skipif(sys.platform != "linux", reason="orphans that left the group are found under /proc")

# Forks twice and leads a session of its own, as daemons do; says its number in the file that its argument names.
DAEMON = """
import os, sys, time
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
{prepare}
with open(sys.argv[1] + ".new", "w") as file: file.write(str(os.getpid()))
os.rename(sys.argv[1] + ".new", sys.argv[1])
time.sleep(1000)
"""
DEAF = "import signal; [signal.signal(n, signal.SIG_IGN) for n in (1, 2, 3, 15)]"
WAITS_DEAF = f"""
{DEAF}
import os, time
with open("new", "w") as file: file.write(str(os.getpid()))
os.rename("new", "ready")
time.sleep(1000)
"""


def eventually(holds: Callable[[], object], what: str, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def number_in(path: Path) -> int:
    eventually(path.exists, f"{path.name} should appear")
    return int(path.read_text())


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def assert_gone(*pids: int) -> None:
    """At the moment when coatcheck ends, not some time later."""
    assert [pid for pid in pids if lives(pid)] == []


def report_of(child: subprocess.Popen[bytes]) -> Report:
    out, _ = child.communicate(timeout=40)
    return msgspec.json.decode(out, type=Report)


# --- signals ---


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"])
def test_a_signal_goes_to_the_command(program: Program, tmp_path: Path, name: str) -> None:
    trap = f"trap 'echo got {name}; exit 5' {name[3:]}; echo $$ >new; mv new ready; while :; do sleep 0.05; done"
    child = program.start("exec", "--json", "--", "sh", "-c", trap, cwd=tmp_path)
    pid = number_in(tmp_path / "ready")
    child.send_signal(signal.Signals[name])
    said = report_of(child)
    assert (said.exit_status, child.returncode) == (5, 5)
    assert f"got {name}" in said.text
    assert_gone(pid)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_command_that_a_forwarded_signal_ends_is_128_and_its_number(
    program: Program, tmp_path: Path, name: str
) -> None:
    child = program.start(
        "exec", "--json", "--", "sh", "-c", "echo $$ >new; mv new ready; exec sleep 1000", cwd=tmp_path
    )
    pid = number_in(tmp_path / "ready")
    child.send_signal(signal.Signals[name])
    said = report_of(child)
    assert (said.exit_status, said.signal, said.outcome) == (128 + signal.Signals[name], name, "Failed")
    assert_gone(pid)


def test_a_signal_reaches_the_whole_group(program: Program, tmp_path: Path) -> None:
    script = "(trap 'echo inner; exit' USR1; echo ok >ready; while :; do sleep 0.05; done) & trap : USR1; wait; wait"
    child = program.start("exec", "--", "sh", "-c", script, cwd=tmp_path)
    eventually((tmp_path / "ready").exists, "the inner one is ready")
    child.send_signal(signal.SIGUSR1)
    out, _ = child.communicate(timeout=20)
    assert out == b"inner\n"


def test_a_second_signal_kills_what_does_not_listen(program: Program, tmp_path: Path) -> None:
    child = program.start("exec", "--json", "--", sys.executable, "-c", WAITS_DEAF, cwd=tmp_path)
    pid = number_in(tmp_path / "ready")
    began = time.monotonic()
    child.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert child.poll() is None
    child.send_signal(signal.SIGINT)
    said = report_of(child)
    assert (said.exit_status, said.signal) == (137, "SIGKILL")
    assert time.monotonic() - began < GRACE
    assert_gone(pid)


def test_a_command_that_is_stopped_can_be_asked_to_end(program: Program, tmp_path: Path) -> None:
    child = program.start(
        "exec",
        "--json",
        "--",
        "sh",
        "-c",
        "trap 'exit 4' TERM; echo $$ >new; mv new ready; kill -STOP $$; sleep 1000",
        cwd=tmp_path,
    )
    pid = number_in(tmp_path / "ready")
    time.sleep(0.2)
    child.send_signal(signal.SIGTERM)
    assert report_of(child).exit_status == 4
    assert_gone(pid)


def test_a_signal_that_coatcheck_was_told_to_ignore_is_not_forwarded(program: Program, tmp_path: Path) -> None:
    child = subprocess.Popen(
        ["sh", "-c", 'trap "" HUP; exec "$0" exec -- sh -c "echo ok >ready; sleep 1; echo done"', COATCHECK],
        env=program.environment,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
    )
    eventually((tmp_path / "ready").exists, "the command runs")
    child.send_signal(signal.SIGHUP)
    out, _ = child.communicate(timeout=20)
    assert (out, child.returncode) == (b"done\n", 0)


# --- what a command leaves behind ---


def test_a_background_process_that_holds_the_pipe_makes_nobody_wait(program: Program, tmp_path: Path) -> None:
    began = time.monotonic()
    child = program.start("exec", "--json", "--", "sh", "-c", "sleep 1000 & echo $! >ready; echo hi", cwd=tmp_path)
    said = report_of(child)
    assert time.monotonic() - began < 10
    assert (said.outcome, said.text, said.exit_status) == ("Inline", "hi\n", 0)
    assert_gone(number_in(tmp_path / "ready"))
    if sys.platform == "linux":
        assert said.left_running == 1


def test_a_background_process_that_never_stops_writing_makes_nobody_wait(program: Program, tmp_path: Path) -> None:
    child = program.start("exec", "--json", "--", "sh", "-c", "yes & echo $! >ready; echo hi", cwd=tmp_path)
    said = report_of(child)
    assert (said.outcome, said.exit_status) == ("Placed", 0)
    assert_gone(number_in(tmp_path / "ready"))


def test_what_a_background_process_still_had_to_say_is_read(program: Program) -> None:
    done = program.run("exec", "--", "sh", "-c", "(sleep 0.3; echo late; echo worse >&2) & echo early")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"early\nlate\n", b"worse\n")


def test_background_processes_are_ended_in_words_too(program: Program) -> None:
    done = program.run("exec", "--", "sh", "-c", "sleep 1000 & sleep 1000 & echo hi")
    assert done.stdout == b"hi\n"
    if sys.platform == "linux":
        assert done.stderr == b"coatcheck: the command left 2 processes running; what it leaves behind is ended\n"


@pytest.mark.slow
@linux
@pytest.mark.parametrize(
    ("end", "prepare"), [("exit 0", ""), ("exit 3", DEAF), ("kill -9 $$", ""), ("sleep 1000", ""), ("yes", DEAF)]
)
def test_a_daemon_does_not_outlive_the_command_however_it_ends(
    program: Program, tmp_path: Path, end: str, prepare: str
) -> None:
    (tmp_path / "daemon.py").write_text(DAEMON.format(prepare=prepare))
    script = f"{sys.executable} daemon.py pid; while [ ! -e pid ]; do sleep 0.02; done; {end}"
    child = program.start("exec", "--timeout", "2", "--ceiling", "10000", "--", "sh", "-c", script, cwd=tmp_path)
    child.communicate(timeout=40)
    assert child.returncode == {"exit 0": 0, "exit 3": 3, "kill -9 $$": 137, "sleep 1000": 124, "yes": 123}[end]
    assert_gone(number_in(tmp_path / "pid"))


@pytest.mark.slow
@linux
def test_a_tree_of_daemons_is_ended_to_its_last_leaf(program: Program, tmp_path: Path) -> None:
    code = (
        "import os, sys, time\n"
        "for depth in range(5):\n"
        "    if os.fork():\n"
        "        time.sleep(1000)\n"
        "    os.setsid()\n"
        "    open(f'{depth}.pid', 'w').write(str(os.getpid()))\n"
        "open('all', 'w').close()\n"
        "time.sleep(1000)\n"
    )
    script = f"{sys.executable} tree.py & while [ ! -e all ]; do sleep 0.02; done"
    (tmp_path / "tree.py").write_text(code)
    done = subprocess.run(
        [COATCHECK, "exec", "--", "sh", "-c", script],
        cwd=tmp_path,
        env=program.environment,
        capture_output=True,
        check=True,
        timeout=40,
    )
    assert done.stdout == b""
    assert_gone(*(int(path.read_text()) for path in tmp_path.glob("*.pid")))


@pytest.mark.slow
@linux
def test_a_process_that_forks_too_fast_to_be_seen_is_ended_with_its_group(program: Program, tmp_path: Path) -> None:
    code = (
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "beats = os.open('beats', os.O_CREAT | os.O_APPEND | os.O_WRONLY)\n"
        "until = time.monotonic() + 20\n"
        "while time.monotonic() < until:\n"
        "    os.write(beats, b'.')\n"
        "    if os.fork(): os._exit(0)\n"
    )
    child = program.start("exec", "--", sys.executable, "-c", code, cwd=tmp_path)
    child.communicate(timeout=30)
    time.sleep(0.1)
    beats = (tmp_path / "beats").stat().st_size
    time.sleep(0.3)
    assert (tmp_path / "beats").stat().st_size == beats > 100


@linux
def test_zombies_of_the_command_are_nobodys_trouble(program: Program) -> None:
    code = "import os, time\nfor _ in range(20):\n    if not os.fork(): os._exit(0)\nprint('hi')"
    done = program.run("exec", "--", sys.executable, "-c", code)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"hi\n", b"")


@linux
def test_children_that_coatcheck_was_started_with_are_not_the_commands(program: Program, tmp_path: Path) -> None:
    before = "sleep 1000 </dev/null >/dev/null 2>&1 & echo $! >new; mv new pid"
    script = f'{before}; exec "$0" exec -- sh -c "sleep 1000 & echo hi"'
    child = subprocess.Popen(
        ["bash", "-c", script, COATCHECK], env=program.environment, cwd=tmp_path, stdout=subprocess.PIPE
    )
    out, _ = child.communicate(timeout=20)
    pid = number_in(tmp_path / "pid")
    try:
        assert out == b"hi\n"
        assert lives(pid)
    finally:
        os.kill(pid, signal.SIGKILL)


def test_a_command_is_not_left_behind_by_a_coatcheck_that_cannot_go_on(program: Program, tmp_path: Path) -> None:
    # The store breaks off the call, and then nothing can be written either: every end has to end the command.
    crash = (
        "import coatcheck, coatcheck.boundary.session as session\n"
        "async def broken(self, *args, **kwargs):\n"
        "    tool = self._boundary.tools['sh'].function()\n"
        "    await anext(tool)\n"
        "    raise RuntimeError('a fault of ours')\n"
        "session.Session.call = broken\n"
        "import sys; sys.argv[0] = 'coatcheck'\n"
        "from coatcheck.cli import main; main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", crash, "exec", "--", "sh", "-c", "echo $$ >pid; echo hi; sleep 1000"],
        env=program.environment,
        cwd=tmp_path,
        capture_output=True,
        check=False,
        timeout=30,
    )
    assert done.returncode == 1
    assert b"a fault of ours" in done.stderr
    assert_gone(number_in(tmp_path / "pid"))


def test_a_signal_before_the_command_runs_ends_coatcheck_and_nothing_is_run(program: Program, tmp_path: Path) -> None:
    slow = (
        "import asyncio, sys, coatcheck as cc\n"
        "async def enter(self):\n"
        "    open('opening', 'w').close()\n"
        "    await asyncio.sleep(1000)\n"
        "cc.DirectoryStore.__aenter__ = enter\n"
        "sys.argv[0] = 'coatcheck'\n"
        "from coatcheck.cli import main; main()\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", slow, "exec", "--", "touch", "ran"],
        env=program.environment,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    eventually((tmp_path / "opening").exists, "the store is being opened")
    child.send_signal(signal.SIGTERM)
    assert child.communicate(timeout=20) == (b"", b"")
    assert child.returncode == 143
    assert not (tmp_path / "ran").exists()


def patched(program: Program, tmp_path: Path, patch: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """``coatcheck exec`` on a system that is another one than this, as ``patch`` makes it."""
    code = f"import sys; sys.argv[0] = 'coatcheck'\n{patch}\nfrom coatcheck.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, "exec", "--json", *arguments],
        env=program.environment,
        cwd=tmp_path,
        capture_output=True,
        check=False,
        timeout=40,
    )


def test_what_does_not_listen_is_killed_after_a_while(program: Program, tmp_path: Path) -> None:
    patch = "import coatcheck.cli.process as process; process.GRACE = 0.5"
    done = patched(program, tmp_path, patch, "--timeout", "0.5", "--", sys.executable, "-c", WAITS_DEAF)
    said = msgspec.json.decode(done.stdout, type=Report)
    assert (said.exit_status, said.signal, said.timed_out) == (124, "SIGKILL", True)
    assert_gone(number_in(tmp_path / "ready"))


@pytest.mark.slow
@pytest.mark.parametrize("end", ["exit 3", "sleep 1000"])
def test_without_proc_the_group_is_ended(program: Program, tmp_path: Path, end: str) -> None:
    patch = "import coatcheck.cli.family as family; family._HAS_PROC = False"
    script = f"sleep 1000 & echo $! >pid; echo hi; {end}"
    done = patched(program, tmp_path, patch, "--timeout", "1", "--", "sh", "-c", script)
    assert done.returncode == {"exit 3": 3, "sleep 1000": 124}[end]
    assert "hi\n" in msgspec.json.decode(done.stdout, type=Report).text
    assert_gone(number_in(tmp_path / "pid"))


@pytest.mark.slow
def test_a_command_that_cannot_be_ended_makes_nobody_wait_for_ever(program: Program, tmp_path: Path) -> None:
    # As it is with one that has become another user's.
    patch = (
        "import coatcheck.cli.family as family, coatcheck.cli.process as process\n"
        "family.Family.send = family.Family._send_to = lambda *_: None\n"
        "family._KILL_GRACE = process.GRACE = 0.2\n"
    )
    done = patched(
        program, tmp_path, patch, "--timeout", "0.5", "--", "sh", "-c", "echo $$ >pid; echo hi; exec sleep 1000"
    )
    os.kill(number_in(tmp_path / "pid"), signal.SIGKILL)
    said = msgspec.json.decode(done.stdout, type=Report)
    assert (said.exit_status, done.returncode, said.outcome) == (124, 124, "Failed")
    assert "\nhi\n" in said.text


def test_many_runs_leave_no_process_and_lose_no_byte(program: Program) -> None:
    for size in (0, 1, 4096, 65_536, 1_048_577):
        done = program.run(
            "exec",
            "--max-inline-chars",
            "9000000",
            "--max-chars",
            "9000000",
            "--",
            "head",
            "-c",
            str(size),
            "/dev/zero",
        )
        assert (done.returncode, len(done.stdout)) == (0, size)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills a command with whoever started it")
def test_a_command_does_not_outlive_a_coatcheck_that_is_killed(program: Program, tmp_path: Path) -> None:
    pid, late = tmp_path / "pid", tmp_path / "late"
    script = (
        f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(60); open({str(late)!r}, 'w')"
    )
    running = subprocess.Popen([COATCHECK, "exec", "--", sys.executable, "-c", script], env=program.environment)
    deadline = time.monotonic() + 20
    while not (pid.exists() and pid.read_text()) and time.monotonic() < deadline:
        time.sleep(0.01)
    running.kill()
    running.wait()
    while os.path.exists(f"/proc/{pid.read_text()}") and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not os.path.exists(f"/proc/{pid.read_text()}")
    assert not late.exists()
