"""What the server honours of what it is told about a body: conditions and checksums. A store asks some of it itself."""

from __future__ import annotations

import hashlib
import zlib
from base64 import b64encode
from urllib.parse import urlsplit

from coatcheck.artifacts.findings import Finding
from coatcheck.artifacts.s3.body import base64_of
from coatcheck.artifacts.s3.doctor.bench import Bench, Reply
from coatcheck.artifacts.s3.doctor.race import RACERS, Race, race

__all__ = [
    "check_complete_condition",
    "check_part_checksum",
    "check_payload_hash",
    "check_put_condition",
    "check_put_crc32",
    "check_put_sha256",
    "check_race",
    "check_trailer",
    "race_of",
]

_CONTENT = b"what was sent"
_OTHER_SHA256 = hashlib.sha256(b"something else").hexdigest()
_OTHER_CRC32 = b64encode(zlib.crc32(b"something else").to_bytes(4, "big")).decode()
_HEAD_FIRST = (
    "a HEAD first tells who came first, so two at once may both be told so; S3Approvals refuses to make claims there"
)
_SIGNED = "bodies are signed with their hash instead"


async def check_put_condition(bench: Bench) -> Finding:
    """``If-None-Match: *`` on PutObject, one after the other."""
    name = "conditional-put"
    first = await bench.put("condition", b"first", IfNoneMatch="*", patient=True)
    if not first.done:
        return Finding(name, "absent", f"the server answered {first} to a condition that held", _HEAD_FIRST)
    second = await bench.put("condition", b"second", IfNoneMatch="*", patient=True)
    _, there = await bench.get("condition")
    if second.done:
        return Finding(name, "absent", "If-None-Match is ignored: the second put replaced the first", _HEAD_FIRST)
    if second.status != 412 or there != b"first":
        return Finding(
            name, "wrong", f"the second put was answered {second}, and not 412 with the first kept", _HEAD_FIRST
        )
    return Finding(name, "ok", "the second put was refused with 412, and the first kept")


async def check_race(bench: Bench) -> Finding:
    """The same by several at once."""
    found = await race_of(bench)
    if found.winners == (RACERS,):
        return Finding("conditional-race", "absent", str(found), _HEAD_FIRST)
    if not found.fair:
        return Finding(
            "conditional-race",
            "wrong",
            str(found),
            "several puts of one artifact may each be told that they "
            "came first; claims of approvals (S3Approvals) are refused",
        )
    return Finding("conditional-race", "ok", str(found))


async def race_of(bench: Bench) -> Race:
    """Races in the doctor's folder."""

    async def put(number: int, racer: int) -> int:
        reply = await bench.put(f"race-{number}", b"%d" % racer, IfNoneMatch="*", patient=True)
        return reply.status

    return await race(put)


async def check_complete_condition(bench: Bench) -> Finding:
    """``If-None-Match: *`` on CompleteMultipartUpload."""
    name, use = "conditional-complete", "a HEAD before an upload tells who came first, for what is longer than a part"
    await bench.put("completed", b"first")
    begun, id = await bench.begin("completed")
    if not begun.done:
        return Finding(name, "failed", f"no upload could be begun ({begun})")
    _, part = await bench.part("completed", id, 1, b"second")
    reply = await bench.complete("completed", id, [part], IfNoneMatch="*")
    _, there = await bench.get("completed")
    if reply.done:
        return Finding(name, "absent", "If-None-Match is ignored: the upload replaced the object", use)
    if reply.status != 412 or there != b"first":
        return Finding(name, "wrong", f"it was answered {reply}, and not 412 with the first kept", use)
    return Finding(name, "ok", "it was refused with 412, and the object kept")


async def check_put_sha256(bench: Bench) -> Finding:
    """``x-amz-checksum-sha256`` on PutObject."""
    right = base64_of(hashlib.sha256(_CONTENT).hexdigest())
    took = await bench.put("sha256", _CONTENT, ChecksumSHA256=right)
    refused = await bench.put("sha256", _CONTENT, ChecksumSHA256=base64_of(_OTHER_SHA256))
    return _checksum("checksum-sha256", took, refused, _SIGNED)


async def check_put_crc32(bench: Bench) -> Finding:
    """``x-amz-checksum-crc32`` on PutObject."""
    took = await bench.put("crc32", _CONTENT, ChecksumCRC32=_crc32(_CONTENT))
    refused = await bench.put("crc32", _CONTENT, ChecksumCRC32=_OTHER_CRC32)
    return _checksum("checksum-crc32", took, refused, "it is not used here")


async def check_part_checksum(bench: Bench) -> Finding:
    """``x-amz-checksum-crc32`` on UploadPart, which is how parts are sent where checksums are compared."""
    name = "checksum-part"
    begun, id = await bench.begin("part", ChecksumAlgorithm="CRC32")
    if not begun.done:
        return Finding(
            name, "absent", f"an upload with checksums is answered {begun}", "parts are signed with their hash instead"
        )
    took, _ = await bench.part("part", id, 1, _CONTENT, ChecksumCRC32=_crc32(_CONTENT))
    refused, _ = await bench.part("part", id, 2, _CONTENT, ChecksumCRC32=_OTHER_CRC32)
    return _checksum(
        name, took, refused, "parts are signed with their hash instead, where whole objects are compared neither"
    )


async def check_payload_hash(bench: Bench) -> Finding:
    """The hash of the body that is part of the signature."""
    reply = await bench.put("payload", _CONTENT, sha256=_OTHER_SHA256)
    if reply.done:
        return Finding(
            "payload-hash",
            "absent",
            "a body that does not fit its signed hash is stored",
            "a checksum goes with every body, where the server compares those; every read is verified",
        )
    return Finding("payload-hash", "ok", f"a body that does not fit its signed hash is answered {reply}")


async def check_trailer(bench: Bench) -> Finding:
    """A checksum behind the body, which is botocore's own default over https."""
    name = "trailing-checksum"
    if urlsplit(bench.requests.place.endpoint).scheme != "https":
        return Finding(name, "unknown", "botocore sends one over https only", "coatcheck never sends one")
    content = _CONTENT * 1000
    sent = await bench.change(
        "put an object", "put_object", Key=bench.key("trailer"), Body=content, ChecksumAlgorithm="CRC32"
    )
    if not sent.done:
        return Finding(
            name,
            "absent",
            f"it is answered {sent}",
            "coatcheck never sends one; other clients may need AWS_REQUEST_CHECKSUM_CALCULATION=when_required",
        )
    reply, data = await bench.get("trailer")
    if data != content:
        return Finding(
            name,
            "wrong",
            "the framing is stored as if it were content",
            "coatcheck never sends one; other "
            "clients need AWS_REQUEST_CHECKSUM_CALCULATION=when_required, or they store damaged objects",
        )
    if "aws-chunked" in str(reply.said.get("ContentEncoding")):
        return Finding(name, "wrong", "the bytes are right, and are called aws-chunked", "coatcheck never sends one")
    return Finding(name, "ok", "it is taken, and the bytes are right")


def _checksum(name: str, took: Reply, refused: Reply, use: str) -> Finding:
    if not took.done:
        return Finding(name, "absent", f"a right one is answered {took}", use)
    if refused.done:
        return Finding(name, "absent", "a wrong one is ignored", use)
    return Finding(name, "ok", f"a wrong one is answered {refused}")


def _crc32(content: bytes) -> str:
    return b64encode(zlib.crc32(content).to_bytes(4, "big")).decode()
