"""What the credentials permit: each action that a store asks for, by doing it."""

from __future__ import annotations

from coatcheck.artifacts.findings import Finding
from coatcheck.artifacts.s3.doctor.bench import Bench, Reply

__all__ = [
    "check_abort",
    "check_delete",
    "check_get",
    "check_head",
    "check_list",
    "check_list_uploads",
    "check_multipart",
    "check_put",
    "denied",
]

_CONTENT = b"coatcheck was here"


async def check_put(bench: Bench) -> Finding:
    """PutObject, with what the store adds to it."""
    reply = await bench.put("put", _CONTENT, **bench.settings.put_args)
    if not reply.done and bench.settings.put_args and (await bench.put("put", _CONTENT)).done:
        names = ", ".join(bench.settings.put_args)
        return Finding(
            "put",
            "failed",
            f"s3:PutObject is permitted, and answered {reply} with extra_put_args ({names})",
            "permit what they need (s3:PutObjectAcl, s3:PutObjectTagging, kms:GenerateDataKey), or leave them out",
            blocking=True,
        )
    return _verdict(bench, "put", "s3:PutObject", reply, "nothing can be stored")


async def check_get(bench: Bench) -> Finding:
    """GetObject, byte for byte."""
    reply, data = await bench.get("put")
    if reply.done and data != _CONTENT:
        return Finding(
            "get", "wrong", "an object came back changed", "every read of an artifact would fail", blocking=True
        )
    return _verdict(bench, "get", "s3:GetObject", reply, "nothing can be read")


async def check_head(bench: Bench) -> Finding:
    """HeadObject, which needs no permission of its own: of an object that is there and of one that is not."""
    reply = await bench.ask("look for an object", "head_object", Key=bench.root + "put")
    if reply.done and reply.said["ContentLength"] != len(_CONTENT):
        return Finding(
            "head", "wrong", "the length is not the object's", "no artifact could be told by it", blocking=True
        )
    if not reply.done:
        return _verdict(bench, "head", "s3:GetObject", reply, "nothing can be told of an artifact")
    missing = await bench.ask("look for an object", "head_object", Key=bench.root + "missing")
    if missing.denied:
        return Finding(
            "head",
            "wrong",
            "a key that is missing is answered 403, as AWS does without s3:ListBucket",
            f"a read of what is not there is an error: allow s3:ListBucket on {_bucket(bench)}",
            blocking=True,
        )
    if missing.status != 404:
        return Finding(
            "head", "wrong", f"a key that is missing is answered {missing}", "reads would fail", blocking=True
        )
    return Finding("head", "ok", "s3:GetObject is permitted, and a missing key is answered 404")


async def check_delete(bench: Bench) -> Finding:
    """DeleteObject, and that the object is gone."""
    reply = await bench.change("delete an object", "delete_object", Key=bench.root + "put")
    if reply.done:
        after = await bench.ask("look for an object", "head_object", Key=bench.root + "put")
        if after.done:
            return Finding(
                "delete",
                "wrong",
                "an object is there after it was deleted",
                "deletes and sweeps remove nothing",
                blocking=True,
            )
    return _verdict(
        bench, "delete", "s3:DeleteObject", reply, "deletes and sweeps fail, and the doctor leaves its objects"
    )


async def check_list(bench: Bench) -> Finding:
    """ListObjectsV2, and that it has what was put."""
    reply = await bench.ask("list objects", "list_objects_v2", Prefix=bench.root)
    if reply.done and [row["Key"] for row in reply.said.get("Contents") or ()] != [bench.root + "put"]:
        return Finding(
            "list",
            "wrong",
            "a listing does not have what was just put",
            "lists, budgets and sweeps miss artifacts",
            blocking=True,
        )
    return _verdict(
        bench, "list", "s3:ListBucket", reply, "lists, budgets and sweeps fail, and a missing key is an error"
    )


async def check_multipart(bench: Bench) -> Finding:
    """CreateMultipartUpload, UploadPart and CompleteMultipartUpload, and the object that is made."""
    name, action, use = "multipart", "s3:PutObject", "nothing longer than a part can be stored"
    reply, id = await bench.begin("multipart")
    if not reply.done:
        return _verdict(bench, name, action, reply, use)
    reply, part = await bench.part("multipart", id, 1, _CONTENT)
    if reply.done:
        reply = await bench.complete("multipart", id, [part])
    if reply.done:
        reply, data = await bench.get("multipart")
        if reply.done and data != _CONTENT:
            return Finding(name, "wrong", "the object is not what was uploaded", use, blocking=True)
    return _verdict(bench, name, action, reply, use)


async def check_list_uploads(bench: Bench) -> Finding:
    """ListMultipartUploads, and that it has one that was begun."""
    begun, id = await bench.begin("listed")
    reply = await bench.ask("list uploads", "list_multipart_uploads", Prefix=bench.root)
    if begun.done and reply.done and id not in [row["UploadId"] for row in reply.said.get("Uploads") or ()]:
        return Finding(
            "list-uploads",
            "wrong",
            "a listing has not the upload that was just begun",
            "sweeps do not find what a crash left: a lifecycle rule that aborts uploads does",
        )
    found = _verdict(
        bench, "list-uploads", "s3:ListBucketMultipartUploads", reply, "sweeps cannot find what a crash left, and fail"
    )
    return found


async def check_abort(bench: Bench) -> Finding:
    """AbortMultipartUpload, that the upload is gone then, and that a second abort says so."""
    begun, id = await bench.begin("aborted")
    if not begun.done:
        return Finding("abort", "failed", f"no upload could be begun ({begun})")
    await bench.part("aborted", id, 1, _CONTENT)
    reply = await bench.abort("aborted", id)
    if not reply.done:
        return _verdict(
            bench, "abort", "s3:AbortMultipartUpload", reply, "what fails takes room until a lifecycle rule"
        )
    listed = await bench.ask("list uploads", "list_multipart_uploads", Prefix=bench.root)
    if id in [row["UploadId"] for row in listed.said.get("Uploads") or ()]:
        return Finding(
            "abort",
            "wrong",
            "an upload is still there after its abort",
            "what fails takes room; a lifecycle rule may remove it",
        )
    again = await bench.abort("aborted", id)
    if again.status != 404:
        return Finding(
            "abort",
            "wrong",
            f"an upload that is gone is answered {again} when it is aborted again, and not 404",
            "every upload is aborted twice, since a part may land after the first time",
        )
    return Finding("abort", "ok", "s3:AbortMultipartUpload is permitted, and nothing is left of the upload")


def denied(check: str, action: str, bench: Bench, use: str, *, blocking: bool = False) -> Finding:
    """The finding for what is not permitted."""
    resource = (
        _bucket(bench) if action.startswith(("s3:List", "s3:Get")) and action != "s3:GetObject" else _objects(bench)
    )
    return Finding(
        check, "failed", f"{action} is not permitted", f"{use}: allow {action} on {resource}", blocking=blocking
    )


def _verdict(bench: Bench, check: str, action: str, reply: Reply, use: str) -> Finding:
    if reply.done:
        return Finding(check, "ok", f"{action} is permitted")
    if reply.denied:
        return denied(check, action, bench, use, blocking=True)
    return Finding(check, "failed", f"the server answered {reply}", use, blocking=True)


def _bucket(bench: Bench) -> str:
    return f"arn:aws:s3:::{bench.settings.bucket}"


def _objects(bench: Bench) -> str:
    return f"{_bucket(bench)}/{bench.keys.root}*"
