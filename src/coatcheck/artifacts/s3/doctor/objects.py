"""What becomes of objects: read in part or on a condition, listed, named, described, copied, read by a signed URL."""

from __future__ import annotations

import functools
import ssl
import urllib.error
import urllib.request
from typing import Any

import anyio
from anyio import to_thread

from coatcheck.artifacts.findings import Finding
from coatcheck.artifacts.s3.doctor.bench import Bench, Reply
from coatcheck.artifacts.s3.record import ENTRY, MAX_METADATA_BYTES

__all__ = [
    "check_conditional_get",
    "check_copy",
    "check_copy_onto_itself",
    "check_keys",
    "check_listing",
    "check_metadata",
    "check_presigned",
    "check_ranges",
    "check_small_parts",
]

_CONTENT = bytes(range(256)) * 4
# In the order of their bytes, which is not the order of folders.
_NAMES = ("a-b", "a.b", "a/b", "a/c.1", "a0", "b")
_KEYS = ("_/dana-2d/c_42/art_0000.17", "streams.d/_/_/c/1893456000-00ff", "coatcheck.json", "claims.d/" + "0" * 64)
_PREFIX = "x-amz-meta-"  # which some servers count
_PRESIGNED_SECONDS = 60


async def check_ranges(bench: Bench) -> Finding:
    """A part of an object; and one that is not there."""
    await bench.put("range", _CONTENT)
    for said, wanted in (
        ("bytes=0-0", _CONTENT[:1]),
        ("bytes=100-355", _CONTENT[100:356]),
        ("bytes=1000-", _CONTENT[1000:]),
        ("bytes=1000-5000", _CONTENT[1000:]),
    ):
        reply, data = await bench.get("range", Range=said)
        if not reply.done:
            return Finding("range", "failed", f"{said} is answered {reply}", "parts cannot be read", blocking=True)
        if data != wanted:
            return Finding("range", "wrong", f"{said} gives other bytes", "parts cannot be read", blocking=True)
    beyond, _ = await bench.get("range", Range=f"bytes={len(_CONTENT)}-")
    if beyond.status != 416:
        return Finding(
            "range",
            "wrong",
            f"a range behind the end is answered {beyond}, and not 416",
            "a damaged artifact may be told in other words",
        )
    return Finding("range", "ok", "the bytes are right, and a range behind the end is answered 416")


async def check_conditional_get(bench: Bench) -> Finding:
    """A read of what has not changed, and of what has."""
    name, use = "conditional-get", "it is not used here"
    put = await bench.put("tagged", _CONTENT)
    tag = str(put.said.get("ETag"))
    same, _ = await bench.get("tagged", IfNoneMatch=tag)
    other, _ = await bench.get("tagged", IfMatch='"0123456789abcdef0123456789abcdef"')
    if same.done and other.done:
        return Finding(name, "absent", "If-Match and If-None-Match are ignored", use)
    if (same.status, other.status) != (304, 412):
        return Finding(name, "wrong", f"they are answered {same} and {other}, and not 304 and 412", use)
    return Finding(name, "ok", "they are answered 304 and 412")


async def check_listing(bench: Bench) -> Finding:
    """A listing through several pages: all of it, once, and in the order of keys."""
    name = "listing-order"
    for each in _NAMES:
        await bench.put(f"list/{each}", b"")
    seen: list[str] = []
    token: dict[str, Any] = {}
    for _ in range(2 * len(_NAMES)):
        reply = await bench.ask("list objects", "list_objects_v2", Prefix=f"{bench.root}list/", MaxKeys=2, **token)
        if not reply.done:
            return Finding(name, "failed", f"a page is answered {reply}", "see list above")
        seen += [row["Key"].removeprefix(f"{bench.root}list/") for row in reply.said.get("Contents") or ()]
        if not reply.said.get("IsTruncated"):
            break
        token = {"ContinuationToken": reply.said["NextContinuationToken"]}
    if sorted(seen) != sorted(_NAMES):
        return Finding(
            name,
            "wrong",
            "a listing through several pages leaves something out, or has it twice",
            "lists, budgets and sweeps are wrong",
            blocking=True,
        )
    if seen != sorted(seen):
        return Finding(
            name,
            "wrong",
            'the order is another one across "/" than that of keys',
            "no order of keys is relied on: what is listed is sorted by age",
        )
    return Finding(name, "ok", "all of it, once, in the order of keys")


async def check_keys(bench: Bench) -> Finding:
    """Keys as a store has them: segments with dots."""
    for each in _KEYS:
        reply = await bench.put(f"keys/{each}", b"")
        if not reply.done:
            return Finding(
                "keys",
                "failed",
                f"a key as the store makes them is answered {reply}",
                "nothing can be stored",
                blocking=True,
            )
    listed = await bench.ask("list objects", "list_objects_v2", Prefix=f"{bench.root}keys/")
    if listed.done:
        seen = {row["Key"].removeprefix(f"{bench.root}keys/") for row in listed.said.get("Contents") or ()}
        if seen != set(_KEYS):
            return Finding(
                "keys",
                "wrong",
                "keys as the store makes them come back changed",
                "artifacts are not found",
                blocking=True,
            )
    return Finding("keys", "ok", "keys come back as they were")


async def check_metadata(bench: Bench) -> Finding:
    """Two kilobytes of user metadata."""
    text = ('{"label":"a b, c; d=e","path":"\\\\u00e9"}' * 100)[: MAX_METADATA_BYTES - len(ENTRY)]
    put = await bench.put("metadata", Metadata={ENTRY: text})
    if not put.done:
        seen = f"{MAX_METADATA_BYTES} bytes are answered {put}"
        for size in (len(text) - len(_PREFIX), 1900, 1500, 1000, 500):
            if (await bench.put("metadata", Metadata={ENTRY: text[:size]})).done:
                use = f"a label, an origin and parents that take more than {size} bytes together are an error"
                return Finding("metadata", "wrong", f"{seen}, and {size} are taken", use)
        return Finding("metadata", "failed", seen, "artifacts cannot say what they are", blocking=True)
    head = await bench.ask("look for an object", "head_object", Key=bench.root + "metadata")
    there = {name.lower(): value for name, value in (head.said.get("Metadata") or {}).items()}
    if there.get(ENTRY) != text:
        return Finding(
            "metadata", "wrong", "it comes back changed", "artifacts do not say what they are", blocking=True
        )
    return Finding("metadata", "ok", f"{MAX_METADATA_BYTES} bytes come back as they were")


async def check_copy(bench: Bench) -> Finding:
    """CopyObject."""
    await bench.put("origin", _CONTENT, Metadata={"note": "kept"})
    return await _copied(bench, "copy", "origin", "copied", {})


async def check_copy_onto_itself(bench: Bench) -> Finding:
    """CopyObject of an object onto itself, which is how others make one younger."""
    await bench.put("itself", _CONTENT, Metadata={"note": "old"})
    replaced: dict[str, Any] = {"MetadataDirective": "REPLACE", "Metadata": {"note": "kept"}}
    return await _copied(bench, "copy-onto-itself", "itself", "itself", replaced)


async def _copied(bench: Bench, name: str, origin: str, target: str, words: dict[str, Any]) -> Finding:
    source = {"Bucket": bench.settings.bucket, "Key": bench.root + origin}
    task = "copy an object"
    reply = await bench.change(task, "copy_object", Key=bench.key(target), CopySource=source, **words)
    use = "coatcheck copies nothing"
    if not reply.done:
        return Finding(name, "absent", f"it is answered {reply}", use)
    got, data = await bench.get(target)
    if data != _CONTENT or (got.said.get("Metadata") or {}).get("note") != "kept":
        return Finding(name, "wrong", "bytes or metadata are not those that were to be", use)
    return Finding(name, "ok", "bytes and metadata are right")


async def check_small_parts(bench: Bench) -> Finding:
    """Whether a part that is too small, and not the last, is refused."""
    begun, id = await bench.begin("small")
    if not begun.done:
        return Finding("small-parts", "failed", f"no upload could be begun ({begun})")
    parts = [(await bench.part("small", id, number, b"small"))[1] for number in (1, 2)]
    reply: Reply = await bench.complete("small", id, parts)
    if reply.done:
        return Finding(
            "small-parts", "absent", "parts of less than 5 MiB are taken", "coatcheck sends none but the last"
        )
    return Finding("small-parts", "ok", f"parts of less than 5 MiB are answered {reply}")


async def check_presigned(bench: Bench) -> Finding:
    """A read by a URL that is signed, through a client that knows nothing of S3."""
    name, use = "presigning", "coatcheck gives out no URLs"
    await bench.put("presigned", _CONTENT)
    url = await bench.client.generate_presigned_url(
        "get_object",
        Params={"Bucket": bench.settings.bucket, "Key": bench.root + "presigned"},
        ExpiresIn=_PRESIGNED_SECONDS,
    )
    fetch = functools.partial(_fetch, url, bench.settings.connection.ca_bundle, bench.requests.timeout)
    with anyio.move_on_after(2 * bench.requests.timeout):
        status, data = await to_thread.run_sync(fetch, abandon_on_cancel=True)
        if status != 200:
            return Finding(name, "absent", f"it is answered {status or 'with nothing'}", use)
        if data != _CONTENT:
            return Finding(name, "wrong", "it gives other bytes", use)
        return Finding(name, "ok", "a signed URL gives the bytes to whoever has it")
    return Finding(name, "failed", "there was no answer in time", use)


def _fetch(url: str, ca_bundle: str | None, timeout: float) -> tuple[int, bytes]:
    """What a plain client gets, in a worker thread: the status, 0 without one, and the bytes."""
    context = ssl.create_default_context(cafile=ca_bundle) if url.startswith("https:") else None
    try:
        with urllib.request.urlopen(url, timeout=timeout, context=context) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, b""
    except OSError:
        return 0, b""
