"""What an artifact was made from, as far as it is still there."""

from __future__ import annotations

from collections.abc import Iterable

from coatcheck.artifacts.port import ArtifactStore
from coatcheck.scope import Scope

__all__ = ["still_there"]


async def still_there(store: ArtifactStore, scope: Scope, refs: Iterable[str]) -> tuple[str, ...]:
    """Those of ``refs`` that resolve now, each once: a store refuses a put whose parents do not.

    What a call was handed may have expired, or made room for others, before the call had something to store.

    Raises:
        StoreUnavailable: the store cannot say.
    """
    return tuple([ref for ref in dict.fromkeys(refs) if await store.head(scope, ref) is not None])
