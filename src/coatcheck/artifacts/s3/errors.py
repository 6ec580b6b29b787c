"""The one edge where what botocore raises becomes an error of ours, with what to do about it.

No text holds a secret, a key of the bucket, a header or a URL with a path: keys hold names of tenants. No foreign
error goes on as a cause, for the same reason.
"""

from __future__ import annotations

import re
import ssl
from typing import Any

import msgspec
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionError,
    ConnectTimeoutError,
    EndpointConnectionError,
    HTTPClientError,
    NoCredentialsError,
    PartialCredentialsError,
    ReadTimeoutError,
    SSLError,
)

from coatcheck.errors import StoreUnavailable

__all__ = ["Place", "Refusal", "explain", "refusal_of"]

_DENIED = frozenset({"AccessDenied", "AllAccessDisabled", "AccountProblem", "Forbidden", "403"})
_UNKNOWN_KEY = frozenset({"InvalidAccessKeyId", "InvalidTokenId", "InvalidToken", "UnrecognizedClientException"})
_EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"})
_REDIRECTED = frozenset(
    {"PermanentRedirect", "TemporaryRedirect", "AuthorizationHeaderMalformed", "301", "302", "307", "308"}
)
_BUSY = frozenset({"SlowDown", "ServiceUnavailable", "TooManyRequests", "ErrTooManyRequest", "Throttling"})


class Place(msgspec.Struct, frozen=True):
    """Where a request went, for the texts of errors: the bucket, the endpoint without its path, the region."""

    bucket: str
    endpoint: str
    region: str

    def __str__(self) -> str:
        return f"bucket {self.bucket!r} at {self.endpoint}"


class Refusal(msgspec.Struct, frozen=True):
    """What a server answered in place of doing it.

    Attributes:
        status: of HTTP.
        code: of S3; where an answer has no body, the status again.
        region: where the server says that the bucket lies, if it does.
    """

    status: int
    code: str
    region: str | None = None

    @property
    def is_conflict(self) -> bool:
        """Whether another write of the same key was under way; it may be tried again."""
        return self.status == 409


def refusal_of(error: BaseException) -> Refusal | None:
    """What a server refused; ``None``: it did not even answer."""
    if not isinstance(error, ClientError):
        return None
    response: dict[str, Any] = error.response
    about = response.get("ResponseMetadata") or {}
    status = about.get("HTTPStatusCode")
    headers = about.get("HTTPHeaders") or {}
    code = (response.get("Error") or {}).get("Code")
    region = headers.get("x-amz-bucket-region")
    return Refusal(
        status if isinstance(status, int) else 0, _word(code or status), None if region is None else _word(region)
    )


def _word(said: object) -> str:
    """A server's word for a text of ours: short, and in one line."""
    return re.sub("[^A-Za-z0-9._-]", "?", str(said)[:64])


def explain(error: BaseException | Refusal, task: str, place: Place) -> StoreUnavailable:
    """The error of ours for one of botocore's, or for a refusal.

    Args:
        error: what was raised.
        task: what was tried, as it fits behind "could not".
        place: where.
    """
    refusal = error if isinstance(error, Refusal) else refusal_of(error)
    if refusal is not None:
        return StoreUnavailable(f"S3 could not {task}: {_refused(refusal, place)}")
    assert isinstance(error, BaseException)
    return StoreUnavailable(f"S3 could not {task}: {_unreached(error, place)}")


def _refused(refusal: Refusal, place: Place) -> str:
    code = refusal.code
    if code == "NoSuchBucket":
        return f"there is no {place}; make it, or correct the bucket's name"
    if code in _UNKNOWN_KEY:
        return f"the server of {place} does not know the access key ({code}); give another, or correct the endpoint"
    if code == "SignatureDoesNotMatch":
        return f"the secret does not fit the access key ({code}), for {place}; correct secret_access_key"
    if code in _EXPIRED:
        return f"the credentials have expired ({code}), for {place}; renew them"
    if code == "RequestTimeTooSkewed":
        return f"the clock of this machine and that of {place} differ by too much ({code}); set it"
    if code in _REDIRECTED:
        if refusal.region is None and refusal.status in (301, 302, 307, 308):
            return (
                f"{place} redirects to elsewhere ({code}), and is not in the region {place.region} or not at this "
                "endpoint; correct region, or endpoint_url"
            )
        there = f"; it lies in {refusal.region}" if refusal.region else ""
        return f"{place} is not in the region {place.region}{there} ({code}); correct region"
    if code in _DENIED or refusal.status == 403:
        return f"the credentials do not permit it, in {place} ({code}); allow the action, or give other credentials"
    if code in _BUSY or refusal.status in (429, 503):
        return f"{place} is overloaded ({code}); try again later"
    return f"{place} answered {refusal.status} {code}"


def _unreached(error: BaseException, place: Place) -> str:
    if isinstance(error, (NoCredentialsError, PartialCredentialsError)):
        return "there are no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile or a role"
    if isinstance(error, SSLError) or _is_tls(error):
        return f"TLS with {place.endpoint} failed; does it speak TLS? If its certificate is your own, give ca_bundle"
    if isinstance(error, (ConnectTimeoutError, ReadTimeoutError, TimeoutError)) or _is_httpx_timeout(error):
        return f"{place.endpoint} did not answer in time"
    if isinstance(error, EndpointConnectionError):
        return f"{place.endpoint} cannot be reached; is it up, and are the network and endpoint_url (or region) right?"
    if isinstance(error, (ConnectionError, HTTPClientError, OSError)):
        return f"the connection to {place.endpoint} broke"
    kind = type(error).__name__
    if isinstance(error, BotoCoreError):
        return f"the request for {place} could not be made ({kind})"
    return f"{place} answered what cannot be understood ({kind})"


def _is_httpx_timeout(error: BaseException) -> bool:
    """Whether it is one of httpx, the transport on trio, which need not be installed."""
    return type(error).__name__ in {"ConnectTimeout", "ReadTimeout", "WriteTimeout", "PoolTimeout"}


def _is_tls(error: BaseException) -> bool:
    """Whether a failed handshake is behind it: transports wrap that in different ways."""
    seen: BaseException | None = error
    for _ in range(8):
        if seen is None or isinstance(seen, ssl.SSLError):
            break
        seen = seen.__cause__ or seen.__context__
    return isinstance(seen, ssl.SSLError)
