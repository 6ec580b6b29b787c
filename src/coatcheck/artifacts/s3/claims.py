"""Claims in a bucket: an object that is made at most once, by a put on the condition that there is none.

    <prefix>/claims.d/<64 hex digits>      one claim, which holds a random word of whoever made it

What keeps the law is the server, so it is asked first, with a race in a folder of the doctor's.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import anyio

from coatcheck.artifacts.s3.body import Body
from coatcheck.artifacts.s3.doctor.race import Race, race
from coatcheck.errors import StoreUnavailable

if TYPE_CHECKING:
    from coatcheck.artifacts.s3.store import S3Store

__all__ = ["make_claim", "race_for_claims"]

_CLAIMS = "claims.d/"
_TYPE = "text/plain"
_CONFLICTS = 5
_PAUSE = 0.1  # seconds, doubled each time, and varied
_CLEANING_TIME = 10.0


async def make_claim(store: S3Store, name: str) -> bool:
    """Make the claim of that name: whether this call made it.

    A request whose answer was lost is sent again, and refused for the claim that it has made itself. That is told by
    the word that the claim holds. Where no answer comes at all the claim may have been made, and nobody learns of it.

    Args:
        store: open.
        name: 64 hex digits.

    Raises:
        StoreUnavailable: it cannot be told.
    """
    task = "record a claim"
    opened = store._open_here().opened
    key, word = f"{opened.keys.root}{_CLAIMS}{name}", secrets.token_hex(16).encode()
    for conflict in range(_CONFLICTS):
        refusal = await opened.requests.put(
            key, Body([word], None), text=None, content_type=_TYPE, if_absent=True, task=task
        )
        if refusal is None:
            return True
        if not refusal.is_conflict:
            break
        await anyio.sleep(_PAUSE * 2**conflict * (0.5 + secrets.randbelow(1000) / 1000))
    else:
        raise StoreUnavailable(f"S3 could not {task}: others wrote the same one all the time")
    async with opened.requests.fetch(key) as fetched:
        if fetched is None:
            raise StoreUnavailable(f"S3 could not {task}: one is there, and cannot be read; is it being removed?")
        return await opened.requests.read_all(fetched.body, 2 * len(word)) == word


async def race_for_claims(store: S3Store) -> Race:
    """Have several tasks make one claim at once, in a folder of its own, which is removed.

    Args:
        store: open.

    Raises:
        StoreUnavailable: it cannot be told.
    """
    opened = store._open_here().opened
    folder = f"{opened.keys.root}doctor.d/{secrets.token_hex(8)}/"
    made: set[str] = set()

    async def put(number: int, racer: int) -> int:
        key, body = f"{folder}race-{number}", Body([b"%d" % racer], None)
        made.add(key)
        statuses = []
        with anyio.CancelScope(shield=True):  # so that nothing appears after it was cleaned
            refusal = await opened.requests.put(
                key, body, text=None, content_type=_TYPE, if_absent=True, task="learn what the server honours"
            )
            statuses.append(200 if refusal is None else refusal.status)
        return statuses[0]

    try:
        return await race(put)
    finally:
        with anyio.move_on_after(_CLEANING_TIME, shield=True):
            for key in sorted(made):
                await opened.requests.delete(key, "remove what was tried")
