"""The dials of the S3 store: each is refused by its name where it is set, and no secret is ever shown."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coatcheck import S3Store
from coatcheck.artifacts.open import open_store
from coatcheck.artifacts.s3.settings import MIB, Credentials, S3Settings
from coatcheck.errors import ConfigurationError

SECRET = "wJalrXUtnFEMI-very-secret"
DAY = timedelta(days=1)


def checked(**words: Any) -> S3Settings:
    """The dials of a store, as its constructor has them judged."""
    said: dict[str, Any] = {
        "bucket": "bucket",
        "prefix": "",
        "endpoint_url": None,
        "region": None,
        "access_key_id": None,
        "secret_access_key": None,
        "session_token": None,
        "ca_bundle": None,
        "ttl": None,
        "max_bytes": None,
        "max_count": None,
        "min_age": timedelta(minutes=15),
        "part_size": 8 * MIB,
        "concurrency": 4,
        "connections": 64,
        "timeout": 30.0,
        "attempts": 3,
        "extra_put_args": None,
        "generation_seconds": None,
    }
    return S3Settings.checked(**{**said, **words})


@pytest.mark.parametrize(
    ("dial", "value"),
    [
        ("bucket", ""),
        ("bucket", "a"),
        ("bucket", "a/b"),
        ("bucket", "arn:aws:s3:us-east-1:1:accesspoint/x"),
        ("bucket", "b?versionId=1"),
        ("bucket", "b" * 256),
        ("bucket", "bucket\n"),
        ("bucket", None),
        ("bucket", b"bucket"),
        ("prefix", "/a"),
        ("prefix", "a/"),
        ("prefix", "a//b"),
        ("prefix", "."),
        ("prefix", "a/../b"),
        ("prefix", "a b"),
        ("prefix", "\u00e9"),
        ("prefix", "a\\b"),
        ("prefix", "a%2Fb"),
        ("prefix", "a\n"),
        ("prefix", "p" * 401),
        ("prefix", "p" * 256),
        ("prefix", None),
        ("endpoint_url", ""),
        ("endpoint_url", "127.0.0.1:9000"),
        ("endpoint_url", "ftp://host"),
        ("endpoint_url", "http://"),
        ("endpoint_url", "http://[::1"),
        ("endpoint_url", "http://host:port"),
        ("endpoint_url", "http://host:99999"),
        ("endpoint_url", "http://user:word@host"),
        ("endpoint_url", "http://host/?a=b"),
        ("endpoint_url", "http://host/#a"),
        ("endpoint_url", 9000),
        ("region", ""),
        ("region", "US East"),
        ("region", "us-east-1/"),
        ("region", 1),
        ("ca_bundle", ""),
        ("ca_bundle", 1),
        ("ca_bundle", True),
        ("ttl", timedelta(0)),
        ("ttl", 60),
        ("ttl", timedelta(days=40_000)),
        ("max_bytes", 0),
        ("max_bytes", 1.5),
        ("max_count", 0),
        ("max_count", True),
        ("min_age", timedelta(seconds=-1)),
        ("min_age", 900),
        ("min_age", None),
        ("part_size", 5 * MIB - 1),
        ("part_size", (5 << 30) + 1),
        ("part_size", 8e6),
        ("concurrency", 0),
        ("concurrency", "4"),
        ("connections", 0),
        ("connections", None),
        ("timeout", 0),
        ("timeout", -1),
        ("timeout", None),
        ("timeout", float("nan")),
        ("timeout", float("inf")),
        ("attempts", 0),
        ("attempts", 1.0),
        ("generation_seconds", 60),
        ("extra_put_args", "SSE"),
        ("extra_put_args", ["StorageClass"]),
        ("extra_put_args", {"Metadata": {}}),
        ("extra_put_args", {"Key": "k"}),
        ("extra_put_args", {"IfNoneMatch": "*"}),
        ("extra_put_args", {"ContentType": "a/b"}),
        ("extra_put_args", {"ChecksumAlgorithm": "CRC32"}),
        ("extra_put_args", {"StorageClass": 1}),
        ("extra_put_args", {"BucketKeyEnabled": "yes"}),
        ("extra_put_args", {1: "a"}),
    ],
)
def test_a_dial_that_cannot_be_honoured_is_refused_by_its_name(dial: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=rf"^(\?)?{dial}") as caught:
        checked(**{dial: value})
    assert caught.value.__cause__ is None
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "words",
    [
        {"access_key_id": "A"},
        {"secret_access_key": SECRET},
        {"session_token": SECRET},
        {"access_key_id": "A", "session_token": SECRET},
        {"access_key_id": "", "secret_access_key": SECRET},
        {"access_key_id": SECRET, "secret_access_key": " "},
        {"access_key_id": SECRET, "secret_access_key": SECRET.encode()},
        {"access_key_id": SECRET, "secret_access_key": SECRET, "session_token": 5},
        {"access_key_id": [SECRET], "secret_access_key": SECRET},
        {"endpoint_url": f"http://user:{SECRET}@host"},
        {"endpoint_url": f"//{SECRET}"},
        {"endpoint_url": f"http://host/?X-Amz-Signature={SECRET}"},
        {"endpoint_url": f"http://[{SECRET}"},
        {"endpoint_url": [SECRET]},
    ],
)
def test_credentials_and_endpoints_are_refused_without_being_quoted(words: dict[str, Any]) -> None:
    with pytest.raises(
        ConfigurationError, match=r"access_key_id|secret_access_key|session_token|endpoint_url"
    ) as caught:
        checked(**words)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None or caught.value.__suppress_context__


def test_no_text_of_a_store_or_of_its_dials_shows_a_secret() -> None:
    keys: dict[str, Any] = {
        "access_key_id": "AKIA-shown",
        "secret_access_key": SECRET,
        "session_token": f"token-{SECRET}",
    }
    settings = checked(**keys)
    assert settings.connection.credentials == Credentials(**keys)
    for shown in (repr(settings), str(settings), repr(settings.connection), repr(settings.connection.credentials)):
        assert SECRET not in shown
    assert SECRET not in repr(S3Store("bucket", **keys))
    assert SECRET not in str(S3Store("bucket", **keys))


def test_what_is_not_said_is_what_the_signature_says() -> None:
    assert checked().connection.credentials is None
    assert checked(extra_put_args={}).put_args == {}
    assert checked(endpoint_url="http://127.0.0.1:9000/").connection.endpoint_url == "http://127.0.0.1:9000"
    assert checked(timeout=timedelta(seconds=5)).connection.timeout == 5
    assert checked(min_age=timedelta(0)).min_age == timedelta(0)


def test_a_store_keeps_the_put_arguments_that_it_was_given_then() -> None:
    args = {"StorageClass": "STANDARD_IA", "Tagging": "a=b", "BucketKeyEnabled": True}
    settings = checked(extra_put_args=args)
    args["StorageClass"] = "GLACIER"
    assert settings.put_args["StorageClass"] == "STANDARD_IA"


@given(st.integers(1, 10**9), st.integers(0, 999_999))
def test_a_generation_is_at_least_as_long_as_the_ttl(seconds: int, microseconds: int) -> None:
    ttl = timedelta(seconds=seconds, microseconds=microseconds)
    settings = checked(ttl=ttl)
    generation = settings.generation_seconds
    assert generation is not None
    assert ttl <= timedelta(seconds=generation) < ttl + timedelta(seconds=1)
    assert settings.own_generation is None
    longer = checked(ttl=ttl, generation_seconds=generation + 1)
    assert longer.own_generation == longer.generation_seconds == generation + 1
    with pytest.raises(ConfigurationError, match=r"^generation_seconds"):
        checked(ttl=ttl, generation_seconds=generation - 1)


@given(st.lists(st.text("abcXYZ019._-", min_size=1, max_size=20), max_size=5))
def test_a_prefix_is_segments_that_every_server_takes(segments: list[str]) -> None:
    prefix = "/".join(segments)
    if any(set(segment) <= {"."} for segment in segments):
        with pytest.raises(ConfigurationError, match=r"^prefix"):
            checked(prefix=prefix)
    else:
        assert checked(prefix=prefix).prefix == prefix


def test_settings_are_frozen() -> None:
    assert issubclass(S3Settings, msgspec.Struct)
    with pytest.raises(AttributeError):
        checked().part_size = 5 * MIB  # type: ignore[misc]  # that is what is tested


def test_a_store_can_be_made_and_described_without_the_extra() -> None:
    code = (
        "import sys\n"
        "sys.modules['aiobotocore'] = sys.modules['botocore'] = None\n"
        "import anyio, coatcheck\n"
        "store = coatcheck.open_store('s3://bucket/prefix?ttl=7d&endpoint_url=http://127.0.0.1:9')\n"
        "async def main():\n"
        "    try:\n"
        "        async with store: pass\n"
        "    except coatcheck.ConfigurationError as error:\n"
        "        assert error.__cause__ is None\n"
        "        print(error)\n"
        "anyio.run(main)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=50)
    assert "coatcheck[s3]" in ran.stdout
    assert ran.stderr == ""


def test_importing_coatcheck_imports_no_client_of_s3() -> None:
    code = (
        "import sys, coatcheck, coatcheck.testing\n"
        "store = coatcheck.open_store('s3://bucket/prefix')\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules} & {'aiobotocore', 'botocore', 'aiohttp'}))\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=50)
    assert ran.stdout == "[]\n"


@pytest.mark.parametrize(
    "url",
    [
        "s3:",
        "s3:///prefix",
        "s3://user:word@bucket/prefix",
        "s3://bucket/a//b",
        "s3://bucket/?access_key_id=A",
        "s3://bucket/?secret_access_key=A",
        "s3://bucket/?part_size=1",
        "s3://bucket/?ttl=0",
        "s3://bucket/?timeout=0",
        "s3://bucket/?generation_seconds=60",
        "s3://bucket/?endpoint_url=ftp://a",
    ],
)
def test_a_url_that_describes_no_store_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        open_store(url)
    assert "word" not in str(caught.value)
