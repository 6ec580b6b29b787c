"""What botocore raises becomes one clear error of ours: what could not be done, where, and what to do about it."""

from __future__ import annotations

import inspect
import ssl
import traceback
from typing import Any

import botocore.exceptions
import pytest
from botocore.exceptions import BotoCoreError, ClientError
from hypothesis import given
from hypothesis import strategies as st

from coatcheck.artifacts.s3.errors import Place, Refusal, explain, refusal_of
from coatcheck.errors import StoreUnavailable

SECRET = "wJalrXUtnFEMI"
KEY = "acme-tenant/dana/c-42/art_0123456789"
PLACE = Place("things", "http://127.0.0.1:9000", "us-east-1")
URL = f"http://127.0.0.1:9000/things/{KEY}?X-Amz-Signature={SECRET}"


def refused(status: int, code: str | None, message: str | None = None, **headers: str) -> ClientError:
    """What botocore makes of an answer that is an error."""
    about = {"HTTPStatusCode": status, "HTTPHeaders": headers}
    return ClientError({"Error": {"Code": code, "Message": message}, "ResponseMetadata": about}, "PutObject")


def told(error: BaseException | Refusal) -> str:
    """The text of our error; it is short, one sentence of one line, and hides what it must."""
    problem = explain(error, "store an artifact", PLACE)
    text = str(problem)
    assert type(problem) is StoreUnavailable
    assert problem.__cause__ is None
    assert problem.__context__ is None
    assert text.startswith("S3 could not store an artifact: ")
    assert "\n" not in text
    assert len(text) < 300
    for hidden in (SECRET, KEY, "tenant", "X-Amz", "/things/"):
        assert hidden not in text
        assert hidden not in "".join(traceback.format_exception(problem))
    return text


ADVICE = [
    ("NoSuchBucket", 404, "there is no bucket 'things' at http://127.0.0.1:9000; make it"),
    ("InvalidAccessKeyId", 403, "does not know the access key"),
    ("InvalidToken", 400, "does not know the access key"),
    ("SignatureDoesNotMatch", 403, "correct secret_access_key"),
    ("ExpiredToken", 400, "renew them"),
    ("RequestExpired", 403, "renew them"),
    ("RequestTimeTooSkewed", 403, "set it"),
    ("PermanentRedirect", 301, "correct region"),
    ("AuthorizationHeaderMalformed", 400, "correct region"),
    ("AccessDenied", 403, "allow the action"),
    ("AllAccessDisabled", 403, "allow the action"),
    ("403", 403, "allow the action"),
    ("SlowDown", 503, "try again later"),
    ("ServiceUnavailable", 503, "try again later"),
    ("ErrTooManyRequest", 503, "try again later"),
    ("Whatever", 429, "try again later"),
    ("InternalError", 500, "answered 500 InternalError"),
    ("EntityTooLarge", 400, "answered 400 EntityTooLarge"),
]


@pytest.mark.parametrize(("code", "status", "advice"), ADVICE)
def test_a_refusal_says_what_to_do(code: str, status: int, advice: str) -> None:
    error = refused(status, code, f"Resource /things/{KEY} is not for {SECRET}", **{"x-amz-request-id": "1"})
    text = told(error)
    assert advice in text
    refusal = refusal_of(error)
    assert refusal is not None
    assert told(refusal) == text
    assert "'things'" in text


def test_a_bucket_elsewhere_is_told_with_its_region_where_the_server_tells_it() -> None:
    text = told(refused(301, "PermanentRedirect", None, **{"x-amz-bucket-region": "eu-north-1"}))
    assert "is not in the region us-east-1; it lies in eu-north-1" in text


@given(st.integers(200, 599), st.none() | st.sampled_from([code for code, *_ in ADVICE]))
def test_every_status_with_and_without_a_code_is_told(status: int, code: str | None) -> None:
    refusal = refusal_of(refused(status, code))
    assert refusal == Refusal(status, str(code or status))
    assert str(code or status) in told(refusal) or code == "NoSuchBucket"
    assert refusal.is_conflict == (status == 409)


@pytest.mark.parametrize("response", [{}, {"Error": {}}, {"ResponseMetadata": {}}, {"Error": {"Code": None}}])
def test_an_answer_that_says_nothing_is_told_too(response: dict[str, Any]) -> None:
    assert "answered 0" in told(ClientError(response, "PutObject"))


def raised(kind: type[BotoCoreError]) -> BotoCoreError:
    """One of botocore's errors, with all that its text could give away."""
    names = ["endpoint_url", "error", "msg", "error_msg", "report", "message", "provider", "cred_var", "path"]
    words: dict[str, Any] = dict.fromkeys(names, f"{URL} {SECRET}")
    class_words = {name for name in ("request", "response") if name in inspect.signature(kind.__init__).parameters}
    try:
        return kind(**words, **dict.fromkeys(class_words))
    except KeyError:
        pass
    fmt = str(kind.fmt)
    every = {name.split("}")[0].split("!")[0]: f"{URL} {SECRET}" for name in fmt.split("{")[1:]}
    return kind(**every)


EVERY = sorted(
    (
        kind
        for _, kind in inspect.getmembers(botocore.exceptions, inspect.isclass)
        if issubclass(kind, BotoCoreError) and kind.__name__ not in ("StubAssertionError", "WaiterError")
    ),
    key=lambda kind: str(kind.__name__),
)


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: str(kind.__name__))
def test_whatever_botocore_raises_is_told_without_what_it_quotes(kind: type[BotoCoreError]) -> None:
    error = raised(kind)
    text = told(error)
    assert refusal_of(error) is None
    assert "things" in text or "127.0.0.1:9000" in text or "credentials" in text


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (botocore.exceptions.NoCredentialsError(), "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
        (botocore.exceptions.PartialCredentialsError(provider="env", cred_var="x"), "there are no credentials"),
        (botocore.exceptions.SSLError(endpoint_url=URL, error=SECRET), "give ca_bundle"),
        (botocore.exceptions.ConnectTimeoutError(endpoint_url=URL), "did not answer in time"),
        (botocore.exceptions.ReadTimeoutError(endpoint_url=URL), "did not answer in time"),
        (TimeoutError(URL), "did not answer in time"),
        (botocore.exceptions.EndpointConnectionError(endpoint_url=URL), "is it up, and are the network"),
        (botocore.exceptions.ConnectionClosedError(endpoint_url=URL), "broke"),
        (ConnectionResetError(URL), "broke"),
        (OSError(URL), "broke"),
        (ssl.SSLError(URL), "give ca_bundle"),
        (botocore.exceptions.ParamValidationError(report=URL), "could not be made (ParamValidationError)"),
        (ValueError(URL), "cannot be understood (ValueError)"),
        (KeyError(SECRET), "cannot be understood (KeyError)"),
    ],
)
def test_what_never_had_an_answer_says_what_to_do(error: Exception, advice: str) -> None:
    assert advice in told(error)


def test_a_failed_handshake_is_told_however_a_transport_wraps_it() -> None:
    try:
        try:
            raise ssl.SSLCertVerificationError(URL)
        except ssl.SSLError as inner:
            raise ConnectionError(URL) from inner
    except ConnectionError as error:
        outer = botocore.exceptions.HTTPClientError(error=error)
        outer.__cause__ = error
    assert "give ca_bundle" in told(outer)


def test_a_chain_of_causes_without_an_end_ends() -> None:
    one, other = OSError("1"), OSError("2")
    one.__cause__, other.__cause__ = other, one
    assert "broke" in told(one)
