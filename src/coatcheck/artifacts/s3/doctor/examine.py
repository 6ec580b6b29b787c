"""The examination: every check in turn, none that holds up the others, and nothing left behind."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import anyio
import msgspec

from coatcheck.artifacts.findings import Diagnosis, Finding
from coatcheck.artifacts.s3.client import opened_client
from coatcheck.artifacts.s3.doctor import honours, objects, permissions, surroundings
from coatcheck.artifacts.s3.doctor.bench import Bench
from coatcheck.artifacts.s3.doctor.reach import explain_in_two, reach
from coatcheck.artifacts.s3.opened import opened_store
from coatcheck.artifacts.s3.settings import S3Settings
from coatcheck.errors import ConfigurationError, StoreUnavailable

__all__ = ["CHECKS", "examine"]

_LONGEST_CHECK = 60.0  # seconds
_LONGEST = 300.0

_Check = Callable[[Bench], Awaitable[Finding]]

_NEEDED: dict[str, _Check] = {
    "put": permissions.check_put,
    "get": permissions.check_get,
    "list": permissions.check_list,
    "head": permissions.check_head,
    "delete": permissions.check_delete,
    "multipart": permissions.check_multipart,
    "abort": permissions.check_abort,
    "list-uploads": permissions.check_list_uploads,
    "range": objects.check_ranges,
    "keys": objects.check_keys,
    "metadata": objects.check_metadata,
}
"""Without these a store cannot be used, so a check that comes to nothing is blocking."""

_USEFUL: dict[str, _Check] = {
    "conditional-put": honours.check_put_condition,
    "conditional-race": honours.check_race,
    "conditional-complete": honours.check_complete_condition,
    "checksum-sha256": honours.check_put_sha256,
    "checksum-crc32": honours.check_put_crc32,
    "checksum-part": honours.check_part_checksum,
    "payload-hash": honours.check_payload_hash,
    "trailing-checksum": honours.check_trailer,
    "conditional-get": objects.check_conditional_get,
    "listing-order": objects.check_listing,
    "copy": objects.check_copy,
    "copy-onto-itself": objects.check_copy_onto_itself,
    "small-parts": objects.check_small_parts,
    "presigning": objects.check_presigned,
    "region": surroundings.check_region,
    "versions": surroundings.check_versions,
    "lifecycle": surroundings.check_lifecycle,
    "latency": surroundings.check_latency,
    "throughput": surroundings.check_throughput,
}

CHECKS: tuple[str, ...] = ("reach", "clock", "settings", *_NEEDED, *_USEFUL, "cleaning")
"""The names of all checks, in the order of a diagnosis."""


async def examine(settings: S3Settings) -> Diagnosis:
    """Find out what a server really does. The store need not be open, and is not changed.

    Raises:
        ConfigurationError: the extra is missing, or a setting of the environment cannot be honoured.
    """
    findings: list[Finding] = []
    problem: list[ConfigurationError] = []

    async def run() -> None:
        try:
            await _examine(settings, findings)
        except ConfigurationError as error:
            problem.append(error)

    # In a task of its own, so that a shield holds against a cancellation of the host's kind, too.
    async with anyio.create_task_group() as group:
        group.start_soon(run)
    if problem:
        raise problem[0]
    where = settings.connection.endpoint_url or "AWS"
    return Diagnosis(f"bucket {settings.bucket!r} at {where}", tuple(findings))


async def _examine(settings: S3Settings, findings: list[Finding]) -> None:
    # It tries once, so that what the server answers is what is seen; and a reply in a race may take long.
    patient = msgspec.structs.replace(settings.connection, attempts=1, timeout=max(settings.connection.timeout, 30.0))
    async with opened_client(patient) as client:
        bench = Bench(client, settings)
        findings += await reach(bench)
        if any(finding.blocking and finding.check == "reach" for finding in findings):
            return
        try:
            findings.append(await _check_settings(settings))
            until = time.monotonic() + _LONGEST
            for name, check in _NEEDED.items():
                findings.append(await _tried(name, check, bench, until, needed=True))
            if any(finding.check == "put" and finding.blocking for finding in findings):
                findings += [Finding(name, "unknown", "nothing can be put, so it was not tried") for name in _USEFUL]
                return
            for name, check in _USEFUL.items():
                findings.append(await _tried(name, check, bench, until))
        finally:
            findings.append(await bench.clean())


async def _tried(name: str, check: _Check, bench: Bench, until: float, *, needed: bool = False) -> Finding:
    """What one check comes to, whatever happens in it."""
    if time.monotonic() > until:
        return Finding(name, "unknown", "there was no time left for it", "see what took so long above", needed)
    with anyio.move_on_after(_LONGEST_CHECK):
        try:
            return await check(bench)
        except StoreUnavailable as error:
            detail, consequence = explain_in_two(error)
        except Exception as error:  # noqa: BLE001 - a server may answer anything, and the other checks go on
            detail = f"the server's answer cannot be understood ({type(error).__name__})"
            consequence = "see what the server is"
        return Finding(name, "failed", detail, consequence, needed)
    return Finding(name, "failed", f"it did not end within {_LONGEST_CHECK:.0f} seconds", "see to the server", needed)


async def _check_settings(settings: S3Settings) -> Finding:
    """Whether the store opens with its own settings, which its marker may contradict."""
    try:
        async with opened_store(settings):
            return Finding("settings", "ok", "the store opens with them")
    except (ConfigurationError, StoreUnavailable) as error:
        return Finding("settings", "failed", str(error), "until then the store cannot be opened", blocking=True)
