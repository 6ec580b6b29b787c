"""Where the battery makes its stores, from a URL: each in a place of its own below the one that is named, and the hands
that a case lays on the data behind a store's back.
"""

from __future__ import annotations

import hashlib
import secrets
import shutil
from abc import ABC, abstractmethod
from contextlib import AsyncExitStack, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Generic, TypeVar
from urllib.parse import urlsplit

import anyio
from anyio import to_thread
from anyio.lowlevel import checkpoint

from coatcheck.artifacts.directory import DirectoryStore
from coatcheck.artifacts.memory import MemoryStore
from coatcheck.artifacts.open import open_store
from coatcheck.artifacts.port import ArtifactStore
from coatcheck.artifacts.s3.body import Body
from coatcheck.artifacts.s3.store import S3Store
from coatcheck.errors import ConfigurationError, StoreUnavailable
from coatcheck.scope import Scope, scope_segments

__all__ = ["Place", "check_reachable", "place_of"]

_RETENTION = ("ttl", "max_bytes", "max_count")
_REMOVING_TIME = 60.0

_W = TypeVar("_W")


class Place(ABC):
    """Where the stores of one case are made. ``async with`` it; at its end all of it is removed.

    Attributes:
        left: why something could not be removed; empty where all was.
    """

    left: str = ""

    async def __aenter__(self) -> Place:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        with anyio.move_on_after(_REMOVING_TIME, shield=True) as scope:
            try:
                await self.remove()
            except StoreUnavailable as error:
                self.left = str(error)
        if scope.cancelled_caught:
            self.left = f"it took more than {_REMOVING_TIME:.0f} seconds"

    @abstractmethod
    def make(self, **options: Any) -> ArtifactStore:
        """A new, empty store."""

    def hooks(self) -> dict[str, Any]:
        """The hands on the data, as `check_store` takes them."""
        return {}

    @abstractmethod
    async def remove(self) -> None:
        """Remove all that was made.

        Raises:
            StoreUnavailable: some of it is left.
        """


class _InMemory(Place):
    def make(self, **options: Any) -> MemoryStore:
        return MemoryStore(**options)

    async def remove(self) -> None:
        await checkpoint()


class _Shared(Place, Generic[_W]):
    """A place that outlives a store: where each store lies is remembered, so that it can be opened again."""

    def __init__(self) -> None:
        self._stores: list[ArtifactStore] = []  # kept, so that no id is used twice
        self._where: dict[int, tuple[_W, dict[str, Any]]] = {}

    def make(self, **options: Any) -> ArtifactStore:
        return self._remembered(self.fresh(len(self._stores)), options)

    @abstractmethod
    def fresh(self, number: int) -> _W:
        """Where the store of that number lies."""

    @abstractmethod
    def at(self, where: _W, **options: Any) -> ArtifactStore:
        """A store there."""

    @abstractmethod
    async def overwrite(self, store: ArtifactStore, scope: Scope, ref: str, data: bytes | None) -> None:
        """Put other bytes in the place of a payload; ``None``: the same ones, turned round."""

    @abstractmethod
    async def unlink(self, store: ArtifactStore, scope: Scope, ref: str) -> None:
        """Remove a payload."""

    async def corrupt(self, store: ArtifactStore, scope: Scope, ref: str) -> None:
        """Change a payload."""
        await self.overwrite(store, scope, ref, None)

    def reopen(self, store: ArtifactStore) -> ArtifactStore:
        """A second store over the same data."""
        return self._remembered(*self._where[id(store)])

    def hooks(self) -> dict[str, Any]:
        return {
            "corrupt": self.corrupt,
            "unlink": self.unlink,
            "overwrite": self.overwrite,
            "reopen": self.reopen,
        }

    def where(self, store: ArtifactStore) -> _W:
        """Where a store lies."""
        return self._where[id(store)][0]

    def _remembered(self, where: _W, options: dict[str, Any]) -> ArtifactStore:
        store = self.at(where, **options)
        self._stores.append(store)
        self._where[id(store)] = where, options
        return store


class _Directories(_Shared[Path]):
    """Fresh directories in one."""

    def __init__(self, path: Path, *, fsync: bool) -> None:
        super().__init__()
        self._root = path / f"coatcheck-testing-{secrets.token_hex(8)}"
        self._fsync = fsync

    def fresh(self, number: int) -> Path:
        return self._root / str(number)

    def at(self, where: Path, **options: Any) -> DirectoryStore:
        return DirectoryStore(where, fsync=self._fsync, **options)

    async def overwrite(self, store: ArtifactStore, scope: Scope, ref: str, data: bytes | None) -> None:
        path = await self._payload(store, ref)
        await path.write_bytes((await path.read_bytes())[::-1] if data is None else data)

    async def unlink(self, store: ArtifactStore, scope: Scope, ref: str) -> None:
        await (await self._payload(store, ref)).unlink()

    async def _payload(self, store: ArtifactStore, ref: str) -> anyio.Path:
        [found] = [path async for path in anyio.Path(self.where(store)).glob(f"*/*/*/*/{ref}/data")]
        return found

    async def remove(self) -> None:
        await to_thread.run_sync(lambda: shutil.rmtree(self._root, ignore_errors=True))
        if await anyio.Path(self._root).exists():
            raise StoreUnavailable(f"{self._root} could not be removed")


class _Prefixes(_Shared[str]):
    """Fresh prefixes below the one of a store on S3."""

    def __init__(self, store: S3Store) -> None:
        super().__init__()
        self._settings = store._settings
        below = f"{self._settings.prefix}/" if self._settings.prefix else ""
        self._root = f"{below}coatcheck-testing-{secrets.token_hex(8)}"
        self._stack = AsyncExitStack()
        self._opened: Any = None

    def fresh(self, number: int) -> str:
        return f"{self._root}/{number}"

    def at(self, where: str, **options: Any) -> S3Store:
        settings, connection = self._settings, self._settings.connection
        said: dict[str, Any] = {
            "endpoint_url": connection.endpoint_url,
            "region": connection.region,
            "ca_bundle": connection.ca_bundle,
            "part_size": settings.part_size,
            "concurrency": settings.concurrency,
            "connections": connection.connections,
            "timeout": connection.timeout,
            "attempts": connection.attempts,
            # Budgets are tried on what was put just now.
            "min_age": timedelta(0),
        }
        return S3Store(settings.bucket, prefix=where, **said, **options)

    async def overwrite(self, store: ArtifactStore, scope: Scope, ref: str, data: bytes | None) -> None:
        requests, key = await self._requests(), await self._key(store, scope, ref)
        async with requests.fetch(key) as fetched:
            text, body = fetched.found.text, await requests.read_all(fetched.body, fetched.found.size)
        content = body[::-1] if data is None else data
        said = {"text": text, "content_type": "application/octet-stream"}
        await requests.put(key, Body([content], hashlib.sha256(content).hexdigest()), **said)

    async def unlink(self, store: ArtifactStore, scope: Scope, ref: str) -> None:
        requests, key = await self._requests(), await self._key(store, scope, ref)
        await requests.delete(key)

    async def _key(self, store: ArtifactStore, scope: Scope, ref: str) -> str:
        start = "/".join((self.where(store), *scope_segments(scope), ref))
        [key] = [listed.key async for listed in (await self._requests()).listing(start)]
        return str(key)

    async def _requests(self) -> Any:
        """Requests that know nothing of the store's laws."""
        if self._opened is None:
            opened_client, requests = await to_thread.run_sync(_load)
            client = await self._stack.enter_async_context(opened_client(self._settings.connection))
            self._opened = requests(client, self._settings)
        return self._opened

    async def remove(self) -> None:
        if not self._stores:
            return
        async with self._stack:
            requests = await self._requests()
            with suppress(StoreUnavailable):  # not every server lists uploads
                for upload in [upload async for upload in requests.uploads(f"{self._root}/")]:
                    await requests.abort(upload.key, upload.id)
            for listed in [listed async for listed in requests.listing(f"{self._root}/")]:
                await requests.delete(listed.key)


def _load() -> Any:
    from coatcheck.artifacts.s3.client import opened_client
    from coatcheck.artifacts.s3.requests import Requests

    return opened_client, Requests


def place_of(url: str) -> Place:
    """A place below what a store's URL names.

    Raises:
        ConfigurationError: the URL cannot be honoured, or says what the cases say themselves.
    """
    query = urlsplit(url).query.split("&")
    given = [name for name in (pair.partition("=")[0] for pair in query) if name in _RETENTION]
    if given:
        raise ConfigurationError(f"?{given[0]}= has to be left out: every case says it as it needs it")
    store = open_store(url)
    if isinstance(store, MemoryStore):
        return _InMemory()
    if isinstance(store, DirectoryStore):
        return _Directories(store.path, fsync="fsync=true" in query)
    if isinstance(store, S3Store):
        return _Prefixes(store)
    raise ConfigurationError("the store of this URL is none that the battery can make afresh: call check_store")


async def check_reachable(place: Place) -> None:
    """Make a store and open it, so that what holds for every case is told once.

    Raises:
        ConfigurationError: a setting cannot be honoured.
        StoreUnavailable: it cannot be reached.
    """
    problem: StoreUnavailable | None = None
    async with place:
        try:
            async with place.make():
                pass
        except StoreUnavailable as error:
            problem = error
    if problem is not None:
        raise problem
