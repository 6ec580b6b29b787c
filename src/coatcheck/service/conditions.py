"""The preconditions of a request, in the order that RFC 9110 (section 13.2.2) gives them.

An artifact never changes under its ref, so its entity tag, made of its digest, is strong, and so is the time of its
first put. What is malformed never matches.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from email.utils import format_datetime, parsedate_to_datetime
from typing import Literal

from starlette.datastructures import Headers

from coatcheck.artifacts.meta import ArtifactMeta

__all__ = ["CONDITIONS", "entity_tag", "judge", "last_modified", "wants_part"]

CONDITIONS = ("if-match", "if-none-match", "if-modified-since", "if-unmodified-since", "if-range")
"""The headers that can only be judged by who knows the artifact."""

_TAG = re.compile(r'[ \t]*(?:((?:W/)?"[\x21\x23-\x7e\x80-\xff]*")[ \t]*)?(?:,|\Z)')


def entity_tag(meta: ArtifactMeta) -> str:
    """The strong entity tag of an artifact: its digest in quotes."""
    return f'"{meta.digest}"'


def last_modified(meta: ArtifactMeta) -> str:
    """When an artifact was first put, as HTTP writes it: to the second."""
    return format_datetime(meta.created_at.astimezone(UTC), usegmt=True)


def judge(headers: Headers, meta: ArtifactMeta) -> Literal[304, 412] | None:
    """The status with which a GET or HEAD of an artifact that is there ends at once; ``None``: it goes on."""
    tag = entity_tag(meta)
    if "if-match" in headers:
        if not _matches(headers, "if-match", tag, weakly=False):
            return 412
    elif (time := _time(headers, "if-unmodified-since")) is not None and _seconds(meta) > time:
        return 412
    if "if-none-match" in headers:
        if _matches(headers, "if-none-match", tag, weakly=True):
            return 304
    elif (time := _time(headers, "if-modified-since")) is not None and _seconds(meta) <= time:
        return 304
    return None


def wants_part(headers: Headers, meta: ArtifactMeta) -> bool:
    """Whether ``If-Range`` lets a range of this artifact be answered: it names this content, by tag or by time."""
    values = headers.getlist("if-range")
    if not values:
        return True
    if len(values) > 1:
        return False
    value = values[0].strip(" \t")
    if value.startswith(('"', "W/")):
        return value == entity_tag(meta)
    return value == last_modified(meta) or _time(headers, "if-range") == _seconds(meta)


def _matches(headers: Headers, name: str, tag: str, *, weakly: bool) -> bool:
    value = ",".join(headers.getlist(name))
    if value.strip(" \t") == "*":
        return True
    found, at = False, 0
    while at < len(value):
        match = _TAG.match(value, at)
        if match is None:
            return False
        given = match[1] or ""
        found = found or (given.removeprefix("W/") if weakly else given) == tag
        at = match.end()
    return found


def _time(headers: Headers, name: str) -> datetime | None:
    """The time that a header says; ``None``: it says none, and is ignored."""
    values = headers.getlist(name)
    if len(values) != 1 or len(values[0]) > 64:
        return None
    try:
        time = parsedate_to_datetime(values[0])
    except (ValueError, OverflowError):
        return None
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time


def _seconds(meta: ArtifactMeta) -> datetime:
    return meta.created_at.replace(microsecond=0)
