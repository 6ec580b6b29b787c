"""A store from a URL, for settings files, environment variables and command lines.

    memory:                        in this process; ttl, max_bytes, max_count
    file:///var/lib/coatcheck      a directory; the same, and fsync
    s3://bucket/prefix             an S3-compatible object store (extra s3); the first three, and endpoint_url, region,
                                   ca_bundle, part_size, concurrency, connections, timeout, attempts, min_age,
                                   generation_seconds

Settings stand in the query: ``file:///var/lib/coatcheck?ttl=7d&max_bytes=1000000000&fsync=true``. Credentials never do:
a store on S3 finds them in the environment, in a profile or in a role. Durations are
``90`` (seconds), ``15m``, ``12h``, ``7d``; sizes are bytes. What is unknown, twice there or malformed is refused
by name: a setting that has no effect is worse than none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import SplitResult, unquote_to_bytes, urlsplit

from coatcheck.artifacts.directory import DirectoryStore
from coatcheck.artifacts.memory import MemoryStore
from coatcheck.artifacts.port import ArtifactStore
from coatcheck.artifacts.retention import parse_duration
from coatcheck.artifacts.s3.store import S3Store
from coatcheck.artifacts.write_behind import WriteBehind
from coatcheck.errors import ConfigurationError

__all__ = ["open_store"]

_LOCAL = ("", "localhost")


def open_store(url: str, settings: Mapping[str, object] | None = None) -> ArtifactStore:
    """The store that ``url`` describes. Nothing is opened or made yet: ``async with`` the store does that.

    Args:
        url: ``memory:``, ``file:///path?...`` or ``s3://bucket/prefix?...``, with settings behind the ``?``. Those of
            each store are the arguments of `MemoryStore`, `DirectoryStore` and `S3Store`; an unknown one is refused
            with a list of those that are known.
        settings: the same settings by name, as a file has them: numbers, switches, and texts as in a URL. Beside them
            ``extra_put_args``, a table, for a store on S3; and ``write_behind``, which wraps it in a `WriteBehind`.

    Raises:
        ConfigurationError: naming the scheme or the setting that cannot be honoured, never the whole URL,
            which may hold a password.
    """
    given = dict(settings or {})
    behind = given.pop("write_behind", False)
    if not isinstance(behind, bool):
        raise ConfigurationError(f"write_behind must be true or false, not {behind!r:.80}")
    store = _open(url, given)
    return WriteBehind(store) if behind else store


def _open(url: str, given: Mapping[str, object]) -> ArtifactStore:
    if not isinstance(url, str):
        raise ConfigurationError(f"store must be a URL, not {type(url).__name__}")
    if re.search(r"[\x00-\x20\x7f]", url) is not None:
        raise ConfigurationError("store URL holds a space or a control character: write it as %20 and the like")
    parts = _split(url)
    if parts is None:
        raise ConfigurationError("store is no URL: what stands between // and the path is no host")
    build = _SCHEMES.get(parts.scheme)
    if build is None:
        raise ConfigurationError(_unknown(parts.scheme))
    if parts.fragment:
        raise ConfigurationError("store URL has a fragment (#...), which means nothing here: write # as %23")
    return build(parts, given)


def _split(url: str) -> SplitResult | None:
    """The parts of a URL. The error of what is none goes no further, not even as a cause: it quotes the URL."""
    try:
        return urlsplit(url)
    except ValueError:
        return None


def _memory(parts: SplitResult, given: Mapping[str, object]) -> MemoryStore:
    if parts.netloc or parts.path:
        raise ConfigurationError("memory: takes no path, because nothing of it is kept: write memory: alone")
    return MemoryStore(**_settings("memory", parts.query, _RETENTION, given))


def _file(parts: SplitResult, given: Mapping[str, object]) -> DirectoryStore:
    if parts.netloc not in _LOCAL or not parts.path.startswith("/"):
        raise ConfigurationError("file: needs an absolute path on this machine, as in file:///var/lib/coatcheck")
    return DirectoryStore(_text("the path of file:", parts.path), **_settings("file", parts.query, _DIRECTORY, given))


def _s3(parts: SplitResult, given: Mapping[str, object]) -> S3Store:
    if "@" in parts.netloc:
        raise ConfigurationError("s3: takes no credentials in its URL: set AWS_ACCESS_KEY_ID, a profile or a role")
    if not parts.netloc:
        raise ConfigurationError("s3: needs a bucket, as in s3://bucket/prefix")
    prefix = _text("the prefix of s3:", parts.path).removeprefix("/").removesuffix("/")
    others = {name: value for name, value in given.items() if name != "extra_put_args"}
    settings = _settings("s3", parts.query, _S3, others)
    put_args: Any = given.get("extra_put_args")  # judged by the store
    return S3Store(parts.netloc, prefix=prefix, extra_put_args=put_args, **settings)


def _settings(
    scheme: str, query: str, known: Mapping[str, Callable[[str], Any]], given: Mapping[str, object]
) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for name, value in given.items():
        if name not in known:
            raise ConfigurationError(f"{scheme}: has no setting {name!r:.40}; it has {', '.join(known)}")
        if not isinstance(value, (str, int, float)):
            raise ConfigurationError(f"{name} must be text, a number or a switch, not {type(value).__name__}")
        text = str(value).lower() if isinstance(value, bool) else str(value)
        try:
            settings[name] = known[name](text)
        except ValueError as error:
            raise ConfigurationError(f"{name} = {text:.40}: {error}") from None
    for pair in query.split("&") if query else []:
        name, _, value = pair.partition("=")
        if name not in known:
            raise ConfigurationError(f"{scheme}: has no setting ?{name:.40}=; it has {', '.join(known)}")
        if name in settings:
            raise ConfigurationError(f"?{name}= is there twice, or beside the URL, too: say it once")
        try:
            settings[name] = known[name](_text(f"?{name}=", value))
        except ValueError as error:
            raise ConfigurationError(f"?{name}={value:.40}: {error}") from None
    return settings


def _text(what: str, quoted: str) -> str:
    """Percent-decoded text."""
    try:
        return unquote_to_bytes(quoted).decode()
    except UnicodeDecodeError:
        raise ConfigurationError(f"{what} is not UTF-8 once it is percent-decoded") from None


def _whole(value: str) -> int:
    if re.fullmatch("[0-9]{1,18}", value) is None:
        raise ValueError("expected a whole number")
    return int(value)


def _switch(value: str) -> bool:
    if value not in ("true", "false"):
        raise ValueError("expected true or false")
    return value == "true"


def _unknown(scheme: str) -> str:
    if not scheme:
        return "store URL has no scheme: write memory:, file:///... or s3://bucket"
    return f"no store has the scheme {scheme:.40}: it may be memory:, file:///... or s3://bucket"


_RETENTION: Mapping[str, Callable[[str], Any]] = {"ttl": parse_duration, "max_bytes": _whole, "max_count": _whole}
_DIRECTORY: Mapping[str, Callable[[str], Any]] = {**_RETENTION, "fsync": _switch}
_S3: Mapping[str, Callable[[str], Any]] = {
    **_RETENTION,
    "endpoint_url": str,
    "region": str,
    "ca_bundle": str,
    "part_size": _whole,
    "concurrency": _whole,
    "connections": _whole,
    "timeout": parse_duration,
    "attempts": _whole,
    "min_age": parse_duration,
    "generation_seconds": _whole,
}
_SCHEMES: Mapping[str, Callable[[SplitResult, Mapping[str, object]], ArtifactStore]] = {
    "memory": _memory,
    "file": _file,
    "s3": _s3,
}
