"""The conformance battery on a real server: every store of it under a prefix of its own, and a hand on its objects."""

from __future__ import annotations

from datetime import timedelta
from itertools import count
from typing import Any

from anyio import to_thread

from coatcheck import ArtifactStore, S3Store, Scope
from coatcheck.scope import scope_segments
from coatcheck.testing import Report, check_store
from tests.s3._servers import Place, keys, raw_delete, raw_head, raw_put

__all__ = ["run_battery"]


async def run_battery(place: Place, **words: Any) -> Report:
    """Hold the S3 store to the laws of the port, at this place."""
    numbers = count()
    where: dict[int, tuple[Place, dict[str, Any]]] = {}
    stores: list[ArtifactStore] = []  # kept, so that no id is used twice

    def at(there: Place, **options: Any) -> S3Store:
        store = S3Store(there.bucket, **there.options(**{"min_age": timedelta(0), **options}))
        stores.append(store)
        where[id(store)] = there, options
        return store

    def make(**options: Any) -> S3Store:
        return at(Place(place.server, place.bucket, f"{place.prefix}/{next(numbers)}"), **options)

    def name_of(store: ArtifactStore, scope: Scope, ref: str) -> tuple[Place, str]:
        there = where[id(store)][0]
        start = "/".join(scope_segments(scope)) + "/" + ref
        [name] = [name for name in keys(there) if name.startswith(start)]
        return there, name

    def replace(store: ArtifactStore, scope: Scope, ref: str, data: bytes | None) -> None:
        there, name = name_of(store, scope, ref)
        head = raw_head(there, name)
        assert head is not None
        body = there.server.client.get_object(Bucket=there.bucket, Key=there.key(name))["Body"].read()
        raw_put(there, name, body[::-1] if data is None else data, head["Metadata"])

    async def corrupt(store: ArtifactStore, scope: Scope, ref: str) -> None:
        await to_thread.run_sync(replace, store, scope, ref, None)

    async def overwrite(store: ArtifactStore, scope: Scope, ref: str, data: bytes) -> None:
        await to_thread.run_sync(replace, store, scope, ref, data)

    async def unlink(store: ArtifactStore, scope: Scope, ref: str) -> None:
        await to_thread.run_sync(lambda: raw_delete(*name_of(store, scope, ref)))

    def reopen(store: ArtifactStore) -> S3Store:
        there, options = where[id(store)]
        return at(there, **options)

    return await check_store(make, corrupt=corrupt, unlink=unlink, overwrite=overwrite, reopen=reopen, **words)
