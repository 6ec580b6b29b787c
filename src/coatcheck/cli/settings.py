"""Which store and whose artifacts a command means: flags, environment variables and defaults.

A scope in text is ``tenant/principal/conversation``:

* a field that is empty is absent; ``conversation`` is never empty;
* fields that are absent on the left may be left out with their slashes: ``principal/conversation``, ``conversation``;
* a ``/`` or ``%`` within a field is percent-encoded (``%2F``, ``%25``); every ``%XX`` is decoded.

So every scope has a text, and a text has one scope. Nothing is filled in: ``build-7`` has no principal.
"""

from __future__ import annotations

import os
import pwd
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated
from urllib.parse import quote, unquote_to_bytes

import typer

from coatcheck.artifacts.directory import DirectoryStore
from coatcheck.artifacts.memory import MemoryStore
from coatcheck.artifacts.open import open_store
from coatcheck.artifacts.port import ArtifactStore
from coatcheck.cli.output import complain, harmless
from coatcheck.errors import ConfigurationError
from coatcheck.scope import Scope

__all__ = [
    "DEFAULT_LIMITS",
    "JsonOption",
    "ScopeOption",
    "StoreOption",
    "chosen_scope",
    "chosen_store",
    "default_scope",
    "default_store_url",
    "format_scope",
    "parse_scope",
    "readable_store",
]

StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        envvar="COATCHECK_STORE",
        metavar="URL",
        help="Where artifacts live, as in file:///var/lib/agents?ttl=7d. "
        "Default: a directory under your data directory, with ttl=30d and max_bytes=20000000000 for each scope.",
    ),
]
ScopeOption = Annotated[
    str | None,
    typer.Option(
        "--scope",
        envvar="COATCHECK_SCOPE",
        metavar="SCOPE",
        help="Whose artifacts: tenant/principal/conversation, principal/conversation or conversation; an empty field "
        "is absent, a slash within a field is %2F. Default: your user name and the conversation 'shell'.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="For programs: JSON, one object a line.")]

DEFAULT_LIMITS = "?ttl=30d&max_bytes=20000000000"
"""What the default store keeps of one scope: nobody looks after it, so it must not grow for ever."""

_ESCAPE = re.compile("%(?![0-9A-Fa-f]{2})")
_FIELDS = ("tenant", "principal", "conversation")


def parse_scope(text: str) -> Scope:
    """The scope that ``text`` spells; see the head of this module.

    Raises:
        ConfigurationError: it spells none. The text names the field, never what is in it.
    """
    fields = text.split("/")
    if len(fields) > len(_FIELDS):
        raise ConfigurationError(
            "scope has more than two slashes: write tenant/principal/conversation, and %2F for a slash within a field"
        )
    named = zip(_FIELDS[-len(fields) :], fields, strict=True)
    tenant, principal, conversation = (
        dict.fromkeys(_FIELDS) | {name: _field(name, field) for name, field in named}
    ).values()
    if conversation is None:
        raise ConfigurationError(
            "scope has no conversation: write tenant/principal/conversation, or conversation alone"
        )
    return Scope(tenant=tenant, principal=principal, conversation=conversation)


def format_scope(scope: Scope) -> str:
    """The shortest text that `parse_scope` reads as ``scope``; it can be printed whatever the fields hold."""
    return "/".join(map(_spell, (scope.tenant, scope.principal, scope.conversation))).lstrip("/")


def default_scope() -> Scope:
    """Where nothing else is said: the user's name, and the conversation ``shell``."""
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # in a container a user may be no more than a number
        user = f"uid-{os.getuid()}"
    return Scope(principal=user, conversation="shell")


def default_store_url(environment: Mapping[str, str], platform: str = sys.platform) -> str:
    """Where nothing else is said: a directory under the user's data directory, as the platform has it.

    Raises:
        ConfigurationError: the user has no home directory.
    """
    data = environment.get("XDG_DATA_HOME", "")
    if not os.path.isabs(data):  # the XDG specification: a relative one is to be ignored
        data = os.path.expanduser("~/Library/Application Support" if platform == "darwin" else "~/.local/share")
    if not os.path.isabs(data):
        raise ConfigurationError("there is no home directory for a default store: say --store or COATCHECK_STORE")
    return "file://" + quote(os.fsencode(os.path.join(data, "coatcheck", "store"))) + DEFAULT_LIMITS


def chosen_scope(text: str | None) -> Scope:
    """The scope that a command works in."""
    return default_scope() if text is None else parse_scope(text)


def readable_store(url: str | None) -> ArtifactStore:
    """The store that a command reads from, not opened yet. Where there is none, none is made: it is an empty one, and
    that is said.
    """
    store = chosen_store(url)
    if isinstance(store, DirectoryStore) and not _holds_anything(store.path):
        complain(f"there is no store in {harmless(str(store.path))} yet")
        return MemoryStore()
    return store


def _holds_anything(path: Path) -> bool:
    try:
        return any(path.iterdir())
    except FileNotFoundError:
        return False
    except OSError:  # the store says it better
        return True


def chosen_store(url: str | None) -> ArtifactStore:
    """The store that a command works on, not opened yet.

    Raises:
        ConfigurationError: the URL cannot be honoured, or what is put there would end with this process.
    """
    url = default_store_url(os.environ) if url is None else url
    if any("\ud800" <= char <= "\udfff" for char in url):  # an argument that was no text to begin with
        raise ConfigurationError("store URL is no UTF-8: write %FF and the like")
    store = open_store(url)
    if isinstance(store, MemoryStore):
        raise ConfigurationError("memory: ends with this process, and its tickets would open nothing: say file:///...")
    return store


def _field(name: str, text: str) -> str | None:
    if _ESCAPE.search(text) is not None:
        raise ConfigurationError(f"scope: {name} holds a % that no two hex digits follow: write %25 for a percent sign")
    try:
        return unquote_to_bytes(text).decode() or None
    except UnicodeError:  # also an argument that was no text to begin with
        raise ConfigurationError(f"scope: {name} is not UTF-8 once it is percent-decoded") from None


def _spell(field: str | None) -> str:
    return "".join(char if char.isprintable() and char not in "/%" else quote(char, safe="") for char in field or "")
