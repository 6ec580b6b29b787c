"""Whether a server can be reached at all, is one of S3, knows who asks, and has the bucket; else why not."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

import anyio
from anyio.streams.tls import TLSStream
from botocore.exceptions import ClientError, EndpointConnectionError, NoRegionError
from botocore.parsers import ResponseParserError

from coatcheck.artifacts.findings import Finding
from coatcheck.artifacts.s3.doctor.bench import Bench
from coatcheck.artifacts.s3.errors import explain, refusal_of
from coatcheck.errors import CoatcheckError

__all__ = ["MOST_SKEW", "PERMITTED", "check_clock", "explain_in_two", "reach"]

PERMITTED = "the bucket is there, and the credentials are known"
MOST_SKEW = 900.0
"""Seconds by which a clock may be off before servers refuse what it signs."""

_TASK = "reach the bucket"
_SNIFFING_TIME = 3.0
_NO_PATHS = frozenset({"SecondLevelDomainForbidden", "PathStyleDomainForbidden", "InvalidPathStyle"})


async def reach(bench: Bench) -> list[Finding]:
    """Ask for a listing, since its refusals have words: whether the bucket is reached, and the server's clock."""
    try:
        with anyio.fail_after(bench.requests.timeout):
            answer = await bench.client.list_objects_v2(Bucket=bench.settings.bucket, Prefix=bench.root, MaxKeys=1)
    except Exception as error:  # noqa: BLE001 - transports and parsers raise what they like
        return await _refused(bench, error)
    headers = answer["ResponseMetadata"].get("HTTPHeaders") or {}
    if "Name" not in answer and "x-amz-request-id" not in headers:
        return [_no_s3(bench, "it answers, but not with what S3 would")]
    return [Finding("reach", "ok", PERMITTED), check_clock(headers)]


async def _refused(bench: Bench, error: Exception) -> list[Finding]:
    refusal = refusal_of(error)
    if refusal is None or not isinstance(error, ClientError):
        return [await _unreached(bench, error)]
    headers = (error.response.get("ResponseMetadata") or {}).get("HTTPHeaders") or {}
    clock = check_clock(headers)
    if refusal.code == str(refusal.status):  # there was no XML
        return [await _strange(bench, refusal.status)]
    if refusal.code in ("AccessDenied", "Forbidden"):  # which may be for the listing alone
        return [Finding("reach", "ok", PERMITTED), clock]
    if refusal.code in _NO_PATHS:
        detail = (
            f"the server takes no bucket in the path of a URL ({refusal.code}), which is where endpoint_url puts it"
        )
        return [_stop(detail, "leave endpoint_url out if this is AWS; else this server cannot be used")]
    bucket, endpoint = bench.settings.bucket, urlsplit(bench.settings.connection.endpoint_url or "")
    if refusal.status == 404 and (
        (endpoint.hostname or "").startswith(f"{bucket.lower()}.") or endpoint.path.rstrip("/").endswith(f"/{bucket}")
    ):
        return [_stop(f"endpoint_url names the bucket, too ({refusal.code})", "take the bucket out of endpoint_url")]
    detail, consequence = explain_in_two(explain(refusal, _TASK, bench.requests.place))
    reached = _stop(detail, consequence)
    return [reached, clock] if clock.verdict == "wrong" else [reached]


async def _unreached(bench: Bench, error: Exception) -> Finding:
    place = bench.requests.place
    wants_tls = place.endpoint.startswith("https:")
    broken = _certificate(error)
    if broken is not None:
        return _stop(
            f"the certificate of {place.endpoint} is not trusted: {broken.verify_message}",
            "give ca_bundle the file of the authority that signed it, or correct the host in endpoint_url",
        )
    if isinstance(error, NoRegionError):
        return _stop("there is no region", "say region, or set AWS_DEFAULT_REGION")
    if isinstance(error, ResponseParserError):
        return _no_s3(bench, "it answers, but not with what S3 would")
    if not isinstance(error, TimeoutError) and (other := await _other_protocol(bench, wants_tls)):
        return other
    detail, consequence = explain_in_two(explain(error, _TASK, place))
    if isinstance(error, EndpointConnectionError):
        detail = f"{place.endpoint} cannot be reached: nothing listens there, or its name is not known"
        consequence = "correct endpoint_url, or start the server"
    return _stop(detail, consequence)


async def _strange(bench: Bench, status: int) -> Finding:
    """What refuses a listing without a word of S3."""
    wants_tls = bench.requests.place.endpoint.startswith("https:")
    other = await _other_protocol(bench, wants_tls)
    return other or _no_s3(bench, f"it answered {status}, without the words of S3")


async def _other_protocol(bench: Bench, wants_tls: bool) -> Finding | None:
    """What to say where the server speaks TLS and was asked without, or the other way round."""
    place = urlsplit(bench.requests.place.endpoint)
    host, port = place.hostname or "", place.port or (443 if wants_tls else 80)
    if wants_tls and await _speaks_http(host, port):
        return _stop("the server speaks HTTP there, and not TLS", "begin endpoint_url with http://")
    if not wants_tls and await _speaks_tls(host, port):
        return _stop("the server speaks TLS there", "begin endpoint_url with https://")
    return None


async def _speaks_http(host: str, port: int) -> bool:
    with anyio.move_on_after(_SNIFFING_TIME):
        try:
            async with await anyio.connect_tcp(host, port) as stream:
                await stream.send(b"HEAD / HTTP/1.0\r\n\r\n")
                return (await stream.receive(5)) == b"HTTP/"
        except (OSError, anyio.EndOfStream, anyio.BrokenResourceError):
            return False
    return False


async def _speaks_tls(host: str, port: int) -> bool:
    anyone = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anyone.check_hostname, anyone.verify_mode = False, ssl.CERT_NONE  # nothing is said there, nor believed
    with anyio.move_on_after(_SNIFFING_TIME):
        try:
            async with await anyio.connect_tcp(host, port) as stream:
                await TLSStream.wrap(stream, server_side=False, ssl_context=anyone)
        except (OSError, anyio.EndOfStream, anyio.BrokenResourceError):
            return False
        return True
    return False


def check_clock(headers: Mapping[str, Any]) -> Finding:
    """How far the server's clock is from this machine's."""
    try:
        server = parsedate_to_datetime(headers["date"])
        skew = (server - datetime.now(UTC)).total_seconds()
    except (KeyError, TypeError, ValueError):
        return Finding("clock", "unknown", "the server does not say what time it is")
    seen = f"the server's clock is {abs(skew):.0f} seconds {'ahead of' if skew > 0 else 'behind'} this machine's"
    if abs(skew) > MOST_SKEW:
        return Finding(
            "clock", "wrong", seen, "set the clock: requests are refused for it, and expiry is off", blocking=True
        )
    if abs(skew) > 5:
        return Finding("clock", "wrong", seen, "set the clock: expiry is off by as much, which sweeps allow for")
    return Finding("clock", "ok", "the server's clock and this machine's differ by less than 5 seconds")


def explain_in_two(error: CoatcheckError) -> tuple[str, str]:
    """What an error says was wrong, and what it says to do, which stands behind its last semicolon."""
    text = str(error).partition(": ")[2] or str(error)
    detail, _, remedy = text.rpartition("; ")
    return (detail, remedy) if detail else (remedy, "see to the server and the network between")


def _certificate(error: BaseException | None) -> ssl.SSLCertVerificationError | None:
    for _ in range(8):
        if isinstance(error, ssl.SSLCertVerificationError) and hasattr(error, "verify_message"):
            return error
        if error is None:
            break
        nested = getattr(error, "certificate_error", None) or getattr(error, "__cause__", None) or error.__context__
        error = nested if isinstance(nested, BaseException) else None
    return None


def _no_s3(bench: Bench, detail: str) -> Finding:
    return _stop(f"{bench.requests.place.endpoint} is no S3 server: {detail}", "correct endpoint_url")


def _stop(detail: str, consequence: str) -> Finding:
    return Finding("reach", "failed", detail, consequence, blocking=True)
