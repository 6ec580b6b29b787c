"""The servers themselves: what every other suite of the S3 store takes for granted."""

from __future__ import annotations

import http.client
import signal
import ssl
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.s3._programs import DidNotStart, Program, free_ports, private_folder, thread_state, wait_until
from tests.s3._servers import (
    Place,
    Server,
    keys,
    new_place,
    raw_delete,
    raw_get,
    raw_head,
    raw_put,
    start_seaweed,
    uploads,
)


def test_every_server_keeps_what_it_is_given_until_it_is_deleted(place: Place) -> None:
    raw_put(place, "a/b", b"content", {"note": "said"})

    assert raw_get(place, "a/b") == b"content"
    head = raw_head(place, "a/b")
    assert head is not None
    assert (head["ContentLength"], head["Metadata"]) == (7, {"note": "said"})
    assert keys(place) == ["a/b"]

    raw_delete(place, "a/b")
    raw_delete(place, "a/b")

    assert (raw_get(place, "a/b"), raw_head(place, "a/b"), keys(place)) == (None, None, [])


def test_a_place_sees_its_own_keys_and_uploads_alone(server: Server, place_on: Callable[[Server], Place]) -> None:
    one, other = place_on(server), place_on(server)
    raw_put(one, "x", b"1")
    raw_put(other, "x", b"2")
    upload = server.client.create_multipart_upload(Bucket=one.bucket, Key=one.key("y"))["UploadId"]

    assert (keys(one), uploads(one), raw_get(one, "x")) == (["x"], [("y", upload)], b"1")
    assert (keys(other), uploads(other), raw_get(other, "x")) == (["x"], [], b"2")

    server.client.abort_multipart_upload(Bucket=one.bucket, Key=one.key("y"), UploadId=upload)

    assert uploads(one) == []


def test_a_bucket_of_ones_own_is_empty_and_needs_no_prefix(fresh_bucket: Place) -> None:
    assert keys(fresh_bucket) == []
    raw_put(fresh_bucket, "x", b"1")
    assert keys(fresh_bucket) == ["x"]
    assert fresh_bucket.options()["prefix"] == ""


def test_a_seaweed_that_is_killed_and_started_again_has_every_object_it_acknowledged() -> None:
    with start_seaweed() as server:
        place = new_place(server)
        for number in range(20):
            raw_put(place, f"{number:02}", b"%d" % number)

        server.kill()
        with pytest.raises(OSError, match="refused"):
            ask(server)
        server.restart()

        assert keys(place) == [f"{number:02}" for number in range(20)]
        assert [raw_get(place, name) for name in keys(place)] == [b"%d" % number for number in range(20)]


@pytest.mark.slow
def test_a_frozen_seaweed_answers_nobody_until_it_is_thawed() -> None:
    with start_seaweed() as server, ThreadPoolExecutor() as threads:
        server.freeze()
        try:
            answer = threads.submit(ask, server)
            with pytest.raises(TimeoutError):
                answer.result(timeout=0.5)
        finally:
            server.thaw()
        assert answer.result(timeout=20) == 403


@pytest.mark.slow
def test_two_seaweeds_start_at_once_and_share_nothing() -> None:
    with start_seaweed() as one, start_seaweed() as other:
        place = new_place(one)
        raw_put(place, "x", b"1")

        assert one.pid != other.pid
        assert place.bucket not in [bucket["Name"] for bucket in other.client.list_buckets()["Buckets"]]


def test_what_ran_is_gone_afterwards_with_its_directory() -> None:
    with start_seaweed() as server:
        folder, pid = server.programs[0].folder, server.pid
        assert is_alive(pid)

    assert not folder.exists()
    assert not is_alive(pid)


SESSION = """
import sys, time
from tests.s3._programs import Program, private_folder

with private_folder("session") as folder:
    program = Program(["/bin/sleep", "600"], folder)
    program.start()
    print(program.pid, folder, flush=True)
    time.sleep(600)
"""


def test_a_session_that_is_killed_leaves_no_program_and_no_directory() -> None:
    with subprocess.Popen([sys.executable, "-c", SESSION], stdout=subprocess.PIPE, text=True) as session:
        assert session.stdout is not None
        pid, folder = session.stdout.readline().split()
        assert is_alive(int(pid))
        session.send_signal(signal.SIGKILL)

    assert wait_until(lambda: not is_alive(int(pid)) and not Path(folder).exists(), 20)


def test_a_program_that_does_not_start_shows_its_log() -> None:
    with private_folder("failing") as folder:
        program = Program(["/bin/sh", "-c", "echo the disk is full >&2; exit 3"], folder)
        program.start()
        with pytest.raises(DidNotStart, match=r"(?s)status 3.*the disk is full"):
            program.wait(lambda: False)
        program.kill()


def test_behind_tls_a_client_needs_the_certificate(tls: Server) -> None:
    connection = http.client.HTTPSConnection("127.0.0.1", tls.port, timeout=20)
    with pytest.raises(ssl.SSLCertVerificationError):
        connection.request("GET", "/")
    connection.close()

    trusting = ssl.create_default_context(cafile=tls.ca_bundle)
    connection = http.client.HTTPSConnection("127.0.0.1", tls.port, timeout=20, context=trusting)
    connection.request("GET", "/")
    assert connection.getresponse().status == 403
    connection.close()


def test_free_ports_are_distinct() -> None:
    assert len(set(free_ports(10))) == 10


def ask(server: Server) -> int:
    """The status with which the server answers somebody without credentials."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    try:
        connection.request("GET", "/")
        return connection.getresponse().status
    finally:
        connection.close()


def is_alive(pid: int) -> bool:
    """Whether there is such a process, and more of it than an exit status that nobody has asked for."""
    return thread_state(Path(f"/proc/{pid}")) != "Z"
