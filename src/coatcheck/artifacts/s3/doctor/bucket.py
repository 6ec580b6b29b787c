"""Making a bucket, for an operator who asks for it: a store never does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coatcheck.artifacts.s3.client import opened_client
from coatcheck.artifacts.s3.errors import Refusal
from coatcheck.artifacts.s3.requests import Requests

if TYPE_CHECKING:
    from coatcheck.artifacts.s3.store import S3Store

__all__ = ["make_bucket"]

_TASK = "make the bucket"
_NOWHERE = "us-east-1"  # what AWS calls the region that must not be named


async def make_bucket(store: S3Store) -> bool:
    """Make a store's bucket, private as the server makes it, where there is none.

    Returns:
        Whether it was made; else it was there.

    Raises:
        ConfigurationError: the extra is missing.
        StoreUnavailable: it could not be made; the text says why.
    """
    settings = store._settings
    async with opened_client(settings.connection) as client:
        requests = Requests(client, settings)
        there = await requests.ask(_TASK, "head_bucket", (404,))
        if not isinstance(there, Refusal):
            return False
        words: dict[str, Any] = {}
        if settings.connection.endpoint_url is None and requests.place.region != _NOWHERE:
            words["CreateBucketConfiguration"] = {"LocationConstraint": requests.place.region}
        made = await requests.ask(_TASK, "create_bucket", (409,), **words)
        if not isinstance(made, Refusal):
            return True
        if made.code == "BucketAlreadyOwnedByYou":  # somebody of ours was quicker
            return False
        raise requests.unavailable(made, _TASK)
