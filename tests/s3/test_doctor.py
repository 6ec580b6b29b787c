"""The doctor on real servers: it finds what each of them really does, what is set wrongly, and leaves nothing."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import anyio
import pytest
from anyio import to_thread

from coatcheck import Diagnosis, Finding, S3Store, Scope
from coatcheck.artifacts.s3.doctor import surroundings
from coatcheck.artifacts.s3.doctor.examine import CHECKS
from coatcheck.testing.proxy import FaultProxy, ProxyRequest, answer, silence
from tests.s3._servers import Place, Server, keys, new_place, uploads

pytestmark = pytest.mark.anyio

ON_ASYNCIO = pytest.mark.parametrize("anyio_backend", ["asyncio"])
ON_TRIO = pytest.mark.parametrize("anyio_backend", ["trio"])

# What is not "ok", by server. All else is.
NO_CHECKSUMS = {"checksum-sha256": "absent", "checksum-crc32": "absent", "checksum-part": "absent"}
OVER_HTTP = {"trailing-checksum": "unknown"}
NO_RULES = {"lifecycle": "absent"}
SHORTFALLS: dict[str, dict[str, str]] = {
    "seaweed": {
        "abort": "wrong",
        "payload-hash": "absent",
        "listing-order": "wrong",
        "region": "unknown",
        **OVER_HTTP,
        **NO_RULES,
    },
    "moto": {"payload-hash": "absent", **NO_CHECKSUMS, **OVER_HTTP, **NO_RULES},
    "ceph": {"conditional-complete": "absent", "region": "unknown", **NO_CHECKSUMS, **OVER_HTTP, **NO_RULES},
    "juicefs": {
        "metadata": "wrong",
        "conditional-put": "absent",
        "conditional-race": "absent",
        "conditional-complete": "absent",
        "small-parts": "absent",
        "region": "unknown",
        **NO_CHECKSUMS,
        **OVER_HTTP,
        **NO_RULES,
    },
    "tls": {
        "abort": "wrong",
        "payload-hash": "absent",
        "trailing-checksum": "wrong",
        "listing-order": "wrong",
        "region": "unknown",
        **NO_RULES,
    },
}


def by_check(diagnosis: Diagnosis) -> dict[str, Finding]:
    return {finding.check: finding for finding in diagnosis.findings}


def shortfalls(diagnosis: Diagnosis) -> dict[str, str]:
    return {finding.check: finding.verdict for finding in diagnosis.findings if finding.verdict != "ok"}


async def probe(place: Place, **options: Any) -> Diagnosis:
    return await S3Store(place.bucket, **place.options(**options)).probe()


async def nothing_is_left(place: Place) -> None:
    assert await to_thread.run_sync(keys, place) == []
    assert await to_thread.run_sync(uploads, place) == []


async def finds_what_it_does(name: str, place: Place) -> None:
    diagnosis = await probe(place)
    found = shortfalls(diagnosis)
    if name == "moto":  # which looks and writes in two steps, so its races end as chance has it
        found.pop("conditional-race", None)
    assert found == SHORTFALLS[name], diagnosis
    assert [finding.check for finding in diagnosis.findings] == list(CHECKS)
    assert diagnosis.works
    for finding in diagnosis.findings:
        assert finding.detail
        assert finding.consequence or finding.verdict in ("ok", "unknown")
        assert place.server.secret_key not in f"{finding.detail}{finding.consequence}"
    await nothing_is_left(place)


@pytest.mark.parametrize("server", ["seaweed", "moto", "ceph"], indirect=True)
async def test_it_finds_what_each_server_really_does(
    server: Server, place: Place, request: pytest.FixtureRequest
) -> None:
    await finds_what_it_does(request.node.callspec.params["server"], place)


@ON_TRIO
async def test_it_finds_what_becomes_of_trailing_checksums_over_tls(
    tls: Server, place_on: Callable[[Server], Place]
) -> None:
    await finds_what_it_does("tls", place_on(tls))


@pytest.mark.slow
async def test_it_finds_what_a_server_lacks_that_honours_no_condition(
    juicefs: Server, place_on: Callable[[Server], Place]
) -> None:
    await finds_what_it_does("juicefs", place_on(juicefs))


# --- what is set wrongly ---


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port


@contextlib.contextmanager
def some_web_server(status: int) -> Iterator[str]:
    """A server of HTTP that has never heard of S3."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b"<!doctype html><p>Welcome<br>to nowhere"
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_HEAD(self) -> None:
            self.do_GET()

        def log_message(self, format: str, *args: Any) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


async def is_stopped(place: Place, detail: str, consequence: str, **options: Any) -> None:
    """It cannot even begin, and says why, and what to do."""
    diagnosis = await probe(place, **options)
    assert not diagnosis.works
    first = diagnosis.findings[0]
    assert (first.check, first.verdict, first.blocking) == ("reach", "failed", True), diagnosis
    assert detail in first.detail, first
    assert consequence in first.consequence, first
    assert place.server.secret_key not in str(diagnosis)


@pytest.fixture
def ours(seaweed: Server, place_on: Callable[[Server], Place]) -> Place:
    return place_on(seaweed)


async def test_a_key_that_nobody_knows_is_found(ours: Place) -> None:
    await is_stopped(ours, "does not know the access key", "give another", access_key_id="nobody")


async def test_a_secret_that_does_not_fit_is_found(ours: Place) -> None:
    await is_stopped(ours, "the secret does not fit", "correct secret_access_key", secret_access_key="wrong-secret")


async def test_a_bucket_that_is_missing_is_found(ours: Place) -> None:
    await is_stopped(Place(ours.server, "no-such-bucket"), "there is no bucket", "make it, or correct")


async def test_an_endpoint_where_nothing_listens_is_found(ours: Place) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    await is_stopped(ours, f"{url} cannot be reached", "correct endpoint_url", endpoint_url=url)


async def test_an_endpoint_that_names_the_bucket_too_is_found(ours: Place) -> None:
    url = f"{ours.server.url}/{ours.bucket}"
    await is_stopped(ours, "endpoint_url names the bucket", "take the bucket out", endpoint_url=url)


@pytest.mark.parametrize("status", [200, 404])
async def test_a_server_that_is_none_of_s3_is_found(ours: Place, status: int) -> None:
    with some_web_server(status) as url:
        await is_stopped(ours, f"{url} is no S3 server", "correct endpoint_url", endpoint_url=url)


async def test_tls_where_the_server_speaks_none_is_found(ours: Place) -> None:
    url = ours.server.url.replace("http:", "https:")
    await is_stopped(ours, "speaks HTTP there", "begin endpoint_url with http://", endpoint_url=url)


async def test_no_tls_where_the_server_speaks_it_is_found(tls: Server, place_on: Callable[[Server], Place]) -> None:
    url = tls.url.replace("https:", "http:")
    await is_stopped(place_on(tls), "speaks TLS there", "begin endpoint_url with https://", endpoint_url=url)


async def test_a_certificate_that_is_not_trusted_is_found(tls: Server, place_on: Callable[[Server], Place]) -> None:
    await is_stopped(place_on(tls), "is not trusted", "give ca_bundle", ca_bundle=None)


@pytest.mark.parametrize(
    ("status", "code", "detail", "consequence"),
    [
        (400, "ExpiredToken", "the credentials have expired", "renew them"),
        (403, "RequestTimeTooSkewed", "the clock of this machine", "set it"),
        (400, "AuthorizationHeaderMalformed", "is not in the region us-east-1", "correct region"),
        (403, "SecondLevelDomainForbidden", "takes no bucket in the path", "leave endpoint_url out"),
        (503, "SlowDown", "is overloaded", "try again later"),
    ],
)
async def test_what_a_server_refuses_everything_for_is_found(
    ours: Place, status: int, code: str, detail: str, consequence: str
) -> None:
    async with FaultProxy(ours.server.url, answer(status, code)) as proxy:
        await is_stopped(ours, detail, consequence, endpoint_url=proxy.url)


async def test_a_server_that_says_nothing_is_found_in_time(ours: Place) -> None:
    async with FaultProxy(ours.server.url, silence()) as proxy:
        await is_stopped(ours, "did not answer", "", endpoint_url=proxy.url, timeout=0.5)


# --- what is not permitted, and what hangs ---


@pytest.fixture
def mock(moto: Server, place_on: Callable[[Server], Place]) -> Place:
    """On the server that is the quickest here."""
    return place_on(moto)


@ON_ASYNCIO
@pytest.mark.parametrize(
    ("operation", "check", "action"),
    [
        ("put_object", "put", "s3:PutObject"),
        ("get_object", "get", "s3:GetObject"),
        ("head_object", "head", "s3:GetObject"),
        ("delete_object", "delete", "s3:DeleteObject"),
        ("list", "list", "s3:ListBucket"),
        ("create_multipart", "multipart", "s3:PutObject"),
        ("abort_multipart", "abort", "s3:AbortMultipartUpload"),
        ("list_uploads", "list-uploads", "s3:ListBucketMultipartUploads"),
    ],
)
async def test_an_action_that_is_not_permitted_is_named(mock: Place, operation: str, check: str, action: str) -> None:
    async with FaultProxy(mock.server.url, answer(403, "AccessDenied", on=operation)) as proxy:
        diagnosis = await probe(mock, endpoint_url=proxy.url)
    found = by_check(diagnosis)
    assert found["reach"].verdict == "ok"
    assert (found[check].verdict, found[check].detail) == ("failed", f"{action} is not permitted")
    assert f"allow {action} on arn:aws:s3:::{mock.bucket}" in found[check].consequence
    assert not diagnosis.works
    assert [finding.check for finding in diagnosis.findings] == list(CHECKS)
    left = await to_thread.run_sync(keys, mock) + await to_thread.run_sync(uploads, mock)
    assert bool(left) == (operation in ("delete_object", "abort_multipart"))
    assert (found["cleaning"].verdict == "failed") == bool(left)
    if left:
        assert "doctor.d/" in found["cleaning"].consequence


@pytest.mark.slow
async def test_a_check_that_hangs_is_failed_with_its_reason_and_the_others_go_on(mock: Place) -> None:
    def copies(request: ProxyRequest) -> bool:
        return "x-amz-copy-source" in request.headers

    async with FaultProxy(mock.server.url, silence(where=copies)) as proxy:
        diagnosis = await probe(mock, endpoint_url=proxy.url, timeout=1)
    found = by_check(diagnosis)
    for check in ("copy", "copy-onto-itself"):
        assert found[check].verdict == "failed"
        assert "did not answer" in found[check].detail
    assert diagnosis.works
    assert {check: found[check].verdict for check in ("conditional-put", "small-parts", "throughput")} == {
        "conditional-put": "ok",
        "small-parts": "ok",
        "throughput": "ok",
    }
    await nothing_is_left(mock)


async def test_a_store_of_other_settings_at_the_same_prefix_is_found(mock: Place) -> None:
    async with S3Store(mock.bucket, **mock.options()) as store:
        await store.put(Scope(conversation="c"), b"content", kind="test/item", media_type="text/plain")
    diagnosis = await probe(mock, ttl=timedelta(days=1))
    found = by_check(diagnosis)
    assert (found["settings"].verdict, found["settings"].blocking) == ("failed", True)
    assert "ttl: this store was made without one" in found["settings"].detail


# --- lifecycle rules ---


def rule(**words: Any) -> dict[str, Any]:
    return {"ID": "of-the-test", "Status": "Enabled", "Filter": {"Prefix": ""}, **words}


ABORT = {"AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 2}}


@ON_ASYNCIO
@pytest.mark.parametrize(
    ("rules", "ttl", "verdict", "detail"),
    [
        ([rule(**ABORT)], None, "ok", "no shorter than"),
        (
            [rule(Expiration={"Days": 16}, Filter={"Prefix": "p/_/"}), rule(**ABORT)],
            7,
            "ok",
            "no shorter than",
        ),
        ([rule(Expiration={"Days": 16}, **ABORT)], 7, "wrong", "removes the store's own marker"),
        ([rule(Expiration={"Days": 10}, **ABORT)], 7, "wrong", "after 10 days, and the store keeps them for up to 14"),
        ([rule(Expiration={"Days": 10}, **ABORT)], None, "wrong", "the store has no ttl"),
        ([rule(**ABORT)], 7, "absent", "no rule expires artifacts after 16 days"),
        (
            [rule(Transitions=[{"Days": 1, "StorageClass": "GLACIER"}], **ABORT)],
            None,
            "wrong",
            "moves objects to GLACIER",
        ),
        ([rule(Expiration={"Days": 1}, Filter={"Prefix": "elsewhere/"})], None, "absent", "aborts incomplete uploads"),
        (
            [rule(Expiration={"Days": 1}, Filter={"Prefix": "p/claims.d/"}), rule(**ABORT)],
            None,
            "ok",
            "no shorter than",
        ),
    ],
)
async def test_the_buckets_lifecycle_rules_are_held_against_the_stores_ttl(
    moto: Server,
    rules: list[dict[str, Any]],
    ttl: int | None,
    verdict: str,
    detail: str,
) -> None:
    place = await to_thread.run_sync(new_place, moto)
    put = moto.client.put_bucket_lifecycle_configuration
    await to_thread.run_sync(lambda: put(Bucket=place.bucket, LifecycleConfiguration={"Rules": rules}))
    options = place.options(prefix="p", ttl=None if ttl is None else timedelta(days=ttl))
    found = by_check(await S3Store(place.bucket, **options).probe())["lifecycle"]
    assert (found.verdict, detail in found.detail) == (verdict, True), found


def test_a_rule_for_another_prefix_concerns_nobody_here() -> None:
    assert surroundings.concerns(rule(Filter={"Prefix": ""}), "p/")
    assert surroundings.concerns(rule(Filter={"And": {"Prefix": "p/acme/", "Tags": []}}), "p/")
    assert not surroundings.concerns(rule(Filter={"Prefix": "q/"}), "p/")
    assert not surroundings.concerns(rule(Filter={"Prefix": "doctor.d/"}), "")


# --- nothing is left, whenever it is given up ---


def at_request(number: int, happens: Callable[[], object]) -> Callable[[ProxyRequest], bool]:
    """Have something happen when the proxy meets its n-th request, which is passed on."""
    seen = 0

    def count(request: ProxyRequest) -> bool:
        nonlocal seen
        seen += 1
        if seen == number:
            happens()
        return False

    return count


@pytest.mark.parametrize("number", [1, 4, 9, 15, 22, 40, 60, 85])
async def test_a_doctor_that_is_cancelled_leaves_nothing(mock: Place, number: int) -> None:
    scope = anyio.CancelScope()
    async with FaultProxy(mock.server.url, silence(where=at_request(number, scope.cancel))) as proxy:
        with scope:
            await probe(mock, endpoint_url=proxy.url)
    assert scope.cancel_called
    await nothing_is_left(mock)


@ON_ASYNCIO
@pytest.mark.parametrize("number", [9, 40])
async def test_a_doctor_whose_task_is_cancelled_by_asyncio_itself_leaves_nothing(mock: Place, number: int) -> None:
    async with FaultProxy(mock.server.url) as proxy:
        task = asyncio.ensure_future(probe(mock, endpoint_url=proxy.url))
        proxy.add(silence(where=at_request(number, task.cancel)))
        with pytest.raises(asyncio.CancelledError):
            await task
    await nothing_is_left(mock)
