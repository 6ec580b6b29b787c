"""What lies around the objects: the bucket's region, versions and lifecycle rules, and how fast the way there is."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from coatcheck.artifacts.findings import Finding
from coatcheck.artifacts.s3.doctor.bench import DOCTORS, Bench
from coatcheck.artifacts.s3.settings import MIB

__all__ = ["check_latency", "check_lifecycle", "check_region", "check_throughput", "check_versions", "concerns"]

_SMALL = b"x" * 1024
_TRIES = 7
_PART = 8 * MIB
_DAY = timedelta(days=1)
_COLD = frozenset({"GLACIER", "DEEP_ARCHIVE"})
_OWN = (DOCTORS, "claims.d/")


async def check_region(bench: Bench) -> Finding:
    """Where the bucket lies, if the server says so."""
    reply = await bench.ask("look for the bucket", "head_bucket")
    headers = (reply.said.get("ResponseMetadata") or {}).get("HTTPHeaders") or {}
    there = headers.get("x-amz-bucket-region")
    asked = bench.requests.place.region
    if not there:
        return Finding("region", "unknown", "the server does not say where the bucket lies")
    if there != asked:
        return Finding("region", "wrong", f"the bucket lies in {there}, and {asked} is asked", f"say region={there}")
    return Finding("region", "ok", f"the bucket lies in {there}")


async def check_versions(bench: Bench) -> Finding:
    """Whether what is deleted stays."""
    reply = await bench.ask("look for versions", "get_bucket_versioning")
    if reply.denied:
        return Finding(
            "versions",
            "unknown",
            "s3:GetBucketVersioning is not permitted",
            "look yourself whether the bucket keeps versions",
        )
    if reply.done and reply.said.get("Status") == "Enabled":
        return Finding(
            "versions",
            "wrong",
            "the bucket keeps versions: what is deleted stays, and costs",
            "let a lifecycle rule expire noncurrent versions",
        )
    return Finding("versions", "ok", "the bucket keeps no versions")


async def check_lifecycle(bench: Bench) -> Finding:
    """Whether the bucket's rules fit the store."""
    reply = await bench.ask("look for lifecycle rules", "get_bucket_lifecycle_configuration")
    if reply.denied:
        return Finding(
            "lifecycle",
            "unknown",
            "s3:GetLifecycleConfiguration is not permitted",
            "see yourself that no rule expires artifacts too soon, and that one aborts uploads after 2 days",
        )
    if not reply.done and reply.code != "NoSuchLifecycleConfiguration":
        return Finding(
            "lifecycle",
            "absent",
            f"the server answers {reply} when it is asked for rules",
            "sweeps remove what has expired, and what a crash left",
        )
    rules = [rule for rule in reply.said.get("Rules") or () if rule.get("Status") == "Enabled"]
    return _judged(bench, [rule for rule in rules if concerns(rule, bench.keys.root)])


def _judged(bench: Bench, rules: Iterable[Mapping[str, Any]]) -> Finding:
    generation = bench.settings.generation_seconds
    least = None if generation is None else timedelta(seconds=2 * generation)
    expires = aborts = False
    for rule in rules:
        problem = _problem(rule, least) or _marker_problem(rule, bench.keys.marker)
        if problem is not None:
            return Finding("lifecycle", "wrong", *problem)
        expires = expires or "Days" in (rule.get("Expiration") or {})
        aborts = aborts or "AbortIncompleteMultipartUpload" in rule
    advice = []
    if least is not None and not expires:
        advice.append(f"expires artifacts after {-(-(least + 2 * _DAY) // _DAY)} days")
    if not aborts:
        advice.append("aborts incomplete uploads after 2 days")
    if advice:
        return Finding(
            "lifecycle",
            "absent",
            f"no rule {' and none '.join(advice)}",
            "sweeps do it; such rules, as deploy/s3 has them, do it without",
        )
    return Finding("lifecycle", "ok", "the rules are no shorter than what the store keeps")


def _problem(rule: Mapping[str, Any], least: timedelta | None) -> tuple[str, str] | None:
    """What is wrong with one rule, and what to do."""
    name = str(rule.get("ID") or "without a name")[:64]
    expiration = rule.get("Expiration") or {}
    days = expiration.get("Days")
    if "Date" in expiration:
        return f"the rule {name} removes all objects at a date", "artifacts are lost then: take the rule away"
    if days is not None and least is None:
        return (
            f"the rule {name} removes objects after {days} days, and the store has no ttl",
            "artifacts are lost then, while their tickets promise them: take the rule away, or say ttl",
        )
    if days is not None and least is not None and timedelta(days=days) < least:
        return (
            f"the rule {name} removes objects after {days} days, and the store keeps them for up to {least / _DAY:.3g}",
            f"artifacts are lost too soon: let it be {-(-(least + 2 * _DAY) // _DAY)} days",
        )
    abort = (rule.get("AbortIncompleteMultipartUpload") or {}).get("DaysAfterInitiation")
    if abort is not None and abort < 1:
        return f"the rule {name} aborts uploads within a day", "streams that last longer fail: let it be 2 days"
    for transition in rule.get("Transitions") or ():
        if transition.get("StorageClass") in _COLD:
            return (
                f"the rule {name} moves objects to {transition['StorageClass']}",
                "artifacts there cannot be read: take the transition away",
            )
    return None


def _marker_problem(rule: Mapping[str, Any], marker: str) -> tuple[str, str] | None:
    if not rule.get("Expiration") or not marker.startswith(_prefix(rule)):
        return None
    name = str(rule.get("ID") or "without a name")[:64]
    return (
        f"the rule {name} removes the store's own marker, and the claims of approvals, too",
        "replicas may then disagree on what has expired: give rules the prefix of artifacts alone, as in deploy/s3",
    )


def _prefix(rule: Mapping[str, Any]) -> str:
    chosen = rule.get("Filter") or {}
    return str(chosen.get("Prefix") or (chosen.get("And") or {}).get("Prefix") or rule.get("Prefix") or "")


def concerns(rule: Mapping[str, Any], root: str) -> bool:
    """Whether a rule may be for artifacts of the store, and not only for claims, or for something else."""
    prefix = _prefix(rule)
    if prefix.startswith(root) and prefix.removeprefix(root).startswith(_OWN):
        return False
    return bool(prefix.startswith(root) or root.startswith(prefix))


async def check_latency(bench: Bench) -> Finding:
    """How long one small request takes."""
    puts: list[float] = []
    gets: list[float] = []
    for _ in range(_TRIES):
        begun = time.perf_counter()
        put = await bench.put("small-one", _SMALL)
        puts.append(time.perf_counter() - begun)
        begun = time.perf_counter()
        got, _ = await bench.get("small-one")
        gets.append(time.perf_counter() - begun)
        if not (put.done and got.done):
            return Finding("latency", "failed", f"they were answered {put} and {got}")
    put_ms, get_ms = (1000 * statistics.median(times) for times in (puts, gets))
    return Finding("latency", "ok", f"1 KiB: put {put_ms:.1f} ms, get {get_ms:.1f} ms (median of {_TRIES})")


async def check_throughput(bench: Bench) -> Finding:
    """How long a part takes there and back."""
    begun, id = await bench.begin("large")
    if not begun.done:
        return Finding("throughput", "failed", f"no upload could be begun ({begun})")
    start = time.perf_counter()
    sent, part = await bench.part("large", id, 1, bytes(_PART))
    up = time.perf_counter() - start
    ended = await bench.complete("large", id, [part]) if sent.done else sent
    if not ended.done:
        return Finding("throughput", "failed", f"a part of {_PART // MIB} MiB was answered {ended}")
    start = time.perf_counter()
    got, data = await bench.get("large", size=_PART)
    down = time.perf_counter() - start
    if len(data) != _PART:
        return Finding("throughput", "failed", f"{len(data)} of {_PART} bytes came back ({got})")
    speeds = " and ".join(f"{_PART / 1e6 / seconds:.0f} MB/s {way}" for seconds, way in ((up, "up"), (down, "down")))
    return Finding("throughput", "ok", f"{speeds}, with one request of {_PART // MIB} MiB at a time")
