"""The dials of the S3 store, judged where they are set. Everything here is pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import msgspec

from coatcheck.artifacts.retention import Retention
from coatcheck.errors import ConfigurationError
from coatcheck.settings import check_duration, check_whole

__all__ = ["MIB", "SLOWEST", "Connection", "Credentials", "S3Settings"]

MIB = 1 << 20

SLOWEST = 1 << 18
"""Bytes a second: what a body may take, beside the timeout of its request."""

_LEAST_PART = 5 * MIB
_MOST_PART = 5 << 30
_MAX_PREFIX_CHARS = 400
_LONGEST_TIMEOUT = 900
_BUCKET = re.compile("[A-Za-z0-9][A-Za-z0-9._-]{1,254}")
_SEGMENT = re.compile("[A-Za-z0-9._-]{1,255}")
_REGION = re.compile("[a-z0-9-]{1,64}")
_PUT_ARGS: Mapping[str, type] = {
    "ACL": str,
    "BucketKeyEnabled": bool,
    "CacheControl": str,
    "SSEKMSEncryptionContext": str,
    "SSEKMSKeyId": str,
    "ServerSideEncryption": str,
    "StorageClass": str,
    "Tagging": str,
}


class Credentials(msgspec.Struct, frozen=True, kw_only=True):
    """Who asks, where the usual chain is not to be asked."""

    access_key_id: str
    secret_access_key: str
    session_token: str | None = None

    def __repr__(self) -> str:
        return "Credentials(...)"


class Connection(msgspec.Struct, frozen=True, kw_only=True):
    """How the server is reached.

    Attributes:
        endpoint_url: of a server other than AWS.
        credentials: ``None``: by the usual chain (environment, profile, role).
        ca_bundle: a file of certificates to trust in place of the usual ones.
        connections: how many requests are under way at once, and as many bodies being read.
        timeout: seconds for one small request, its repetitions included.
        attempts: how often one request is tried in all.
    """

    endpoint_url: str | None
    region: str | None
    credentials: Credentials | None
    ca_bundle: str | None
    connections: int
    timeout: float
    attempts: int


class S3Settings(msgspec.Struct, frozen=True, kw_only=True):
    """All dials of an `S3Store`; see there.

    Attributes:
        own_generation: what was asked for. generation_seconds: what is taken where the store is new.
    """

    bucket: str
    prefix: str
    connection: Connection
    retention: Retention
    min_age: timedelta
    part_size: int
    concurrency: int
    put_args: dict[str, Any]
    own_generation: int | None
    generation_seconds: int | None

    @staticmethod
    def checked(
        *,
        bucket: object,
        prefix: object,
        endpoint_url: object,
        region: object,
        access_key_id: object,
        secret_access_key: object,
        session_token: object,
        ca_bundle: object,
        ttl: timedelta | None,
        max_bytes: int | None,
        max_count: int | None,
        min_age: object,
        part_size: object,
        concurrency: object,
        connections: object,
        timeout: object,
        attempts: object,
        extra_put_args: object,
        generation_seconds: object,
    ) -> S3Settings:
        """The dials, if all can be honoured.

        Raises:
            ConfigurationError: naming the one that cannot.
        """
        retention = Retention(ttl=ttl, max_bytes=max_bytes, max_count=max_count)
        size = check_whole("part_size", part_size, least=_LEAST_PART)
        if size > _MOST_PART:
            raise ConfigurationError(f"part_size must be at most {_MOST_PART} bytes, which is what S3 takes")
        if not isinstance(min_age, timedelta) or min_age < timedelta(0):
            raise ConfigurationError(f"min_age must be a timedelta, not less than nothing, not {min_age!r:.80}")
        return S3Settings(
            bucket=_bucket(bucket),
            prefix=_prefix(prefix),
            connection=Connection(
                endpoint_url=None if endpoint_url is None else _endpoint(endpoint_url),
                region=None if region is None else _region(region),
                credentials=_credentials(access_key_id, secret_access_key, session_token),
                ca_bundle=None if ca_bundle is None else _text("ca_bundle", ca_bundle),
                connections=check_whole("connections", connections),
                timeout=_timeout(timeout),
                attempts=check_whole("attempts", attempts),
            ),
            retention=retention,
            min_age=min_age,
            part_size=size,
            concurrency=check_whole("concurrency", concurrency),
            put_args=_put_args(extra_put_args),
            own_generation=None if generation_seconds is None else _generation(generation_seconds, retention.ttl),
            generation_seconds=_generation(generation_seconds, retention.ttl),
        )


def _timeout(timeout: object) -> float:
    seconds = check_duration("timeout", timeout)
    if seconds > _LONGEST_TIMEOUT:
        raise ConfigurationError(f"timeout must be at most {_LONGEST_TIMEOUT} seconds, not {seconds:g}")
    return seconds


def _bucket(bucket: object) -> str:
    if not isinstance(bucket, str) or _BUCKET.fullmatch(bucket) is None:
        raise ConfigurationError(
            f"bucket must be a bucket's name, of letters, digits, '.', '_' and '-', not {bucket!r:.80}"
        )
    return bucket


def _prefix(prefix: object) -> str:
    if not isinstance(prefix, str):
        raise ConfigurationError(f"prefix must be text, not {type(prefix).__name__}")
    if len(prefix) > _MAX_PREFIX_CHARS:
        raise ConfigurationError(f"prefix must be at most {_MAX_PREFIX_CHARS} characters, not {len(prefix)}")
    for segment in prefix.split("/") if prefix else ():
        if _SEGMENT.fullmatch(segment) is None or set(segment) <= {"."}:
            raise ConfigurationError(
                "prefix must be segments of letters, digits, '.', '_' and '-', with one slash between two and none at "
                f"either end, since servers change other keys; {segment!r:.80} is no segment"
            )
    return prefix


def _endpoint(url: object) -> str:
    """An endpoint's URL. What is wrong with one is told without quoting it, since it may hold a password."""
    text = _text("endpoint_url", url)
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise ConfigurationError("endpoint_url is no URL: write it as http://127.0.0.1:9000") from None
    if parts.scheme not in ("http", "https") or not host:
        raise ConfigurationError("endpoint_url must begin with http:// or https:// and a host")
    if "@" in parts.netloc:
        raise ConfigurationError("endpoint_url must hold no user and no password: give access_key_id, or set the chain")
    if parts.query or parts.fragment:
        raise ConfigurationError("endpoint_url must have no query and no fragment")
    return text.rstrip("/")


def _region(region: object) -> str:
    if not isinstance(region, str) or _REGION.fullmatch(region) is None:
        raise ConfigurationError(f"region must be a region's name, as us-east-1, not {region!r:.80}")
    return region


def _credentials(key: object, secret: object, token: object) -> Credentials | None:
    if key is None and secret is None and token is None:
        return None
    if key is None or secret is None:
        raise ConfigurationError("access_key_id and secret_access_key go together, and session_token with both of them")
    return Credentials(
        access_key_id=_text("access_key_id", key),
        secret_access_key=_text("secret_access_key", secret),
        session_token=None if token is None else _text("session_token", token),
    )


def _text(name: str, value: object) -> str:
    """A text that is not blank. It is never quoted, since it may be a secret."""
    if not isinstance(value, str) or not value.strip():
        given = "blank" if isinstance(value, str) else type(value).__name__
        raise ConfigurationError(f"{name} must be text, not {given}")
    return value


def _put_args(args: object) -> dict[str, Any]:
    if args is None:
        return {}
    if not isinstance(args, Mapping):
        raise ConfigurationError(f"extra_put_args must be a mapping, not {type(args).__name__}")
    for name, value in args.items():
        if name not in _PUT_ARGS:
            raise ConfigurationError(f"extra_put_args has no {name!r:.80}; it may have {', '.join(_PUT_ARGS)}")
        if not isinstance(value, _PUT_ARGS[name]):
            raise ConfigurationError(
                f"extra_put_args[{name!r}] must be {_PUT_ARGS[name].__name__}, not {type(value).__name__}"
            )
    return dict(args)


def _generation(seconds: object, ttl: timedelta | None) -> int | None:
    if ttl is None:
        if seconds is not None:
            raise ConfigurationError("generation_seconds means nothing without a ttl: leave it out, or say ttl")
        return None
    least = -(-ttl // timedelta(seconds=1))
    return least if seconds is None else check_whole("generation_seconds", seconds, least=least)
