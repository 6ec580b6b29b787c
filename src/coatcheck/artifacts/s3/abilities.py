"""What a server honours of what a store asks, found out by asking it: nothing is believed of a server's name.

Correctness does not depend on it. It tells who came first, saves a request, and chooses the cheaper sum over a part.
"""

from __future__ import annotations

import hashlib

import msgspec

from coatcheck.artifacts.s3.body import Body, base64_of
from coatcheck.artifacts.s3.requests import Requests

__all__ = ["Abilities", "learn_abilities"]

_WRONG = base64_of(hashlib.sha256(b"something else").hexdigest())


class Abilities(msgspec.Struct, frozen=True):
    """What one server honours.

    Attributes:
        conditions: ``If-None-Match: *`` on a put.
        takes_checksums: it does not refuse a body for the checksum that is sent with it.
        compares_checksums: it refuses one whose checksum is wrong.
    """

    conditions: bool = False
    takes_checksums: bool = False
    compares_checksums: bool = False


async def learn_abilities(requests: Requests, key: str, content: bytes) -> Abilities:
    """Find out, with an object that holds ``content`` before and after, whatever is found out.

    Args:
        key: the object's; it is there already.
    """
    sha256 = hashlib.sha256(content).hexdigest()

    async def put(checksum: str | None, *, if_absent: bool = False) -> int:
        refusal = await requests.put(
            key,
            Body([content], sha256),
            text=None,
            content_type="application/json",
            if_absent=if_absent,
            checksum=checksum,
            expected=(400, 409, 412, 501),
            task="learn what the server honours",
        )
        return 200 if refusal is None else refusal.status

    takes = await put(base64_of(sha256)) == 200
    return Abilities(
        conditions=await put(None, if_absent=True) == 412,
        takes_checksums=takes,
        compares_checksums=takes and await put(_WRONG) == 400,
    )
