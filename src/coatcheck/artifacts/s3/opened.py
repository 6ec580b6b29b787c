"""A store while it is open on one event loop: its client, its keys, and what its server honours."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import anyio
import msgspec

from coatcheck.artifacts.s3.abilities import Abilities, learn_abilities
from coatcheck.artifacts.s3.body import Body
from coatcheck.artifacts.s3.client import opened_client
from coatcheck.artifacts.s3.keys import Generations, Keys
from coatcheck.artifacts.s3.places import Places
from coatcheck.artifacts.s3.remembered import Remembered
from coatcheck.artifacts.s3.requests import Requests
from coatcheck.artifacts.s3.settings import S3Settings
from coatcheck.errors import ConfigurationError

__all__ = ["Opened", "opened_store"]

_FORMAT = 1
_LONGEST_MARKER = 1 << 12


class _Marker(msgspec.Struct, frozen=True):
    """What the marker object says: what every replica of a store must agree on."""

    coatcheck: int
    generation_seconds: int | None


class Opened:
    """What is opened once for all tasks of an event loop.

    Args:
        requests: to the bucket.
        settings: the store's.
        generation_seconds: as the marker has it, or will have it.
        established: whether the marker is there.
    """

    def __init__(
        self, requests: Requests, settings: S3Settings, generation_seconds: int | None, *, established: bool
    ) -> None:
        self.requests: Requests = requests
        self.keys: Keys = Keys(settings.prefix, Generations(generation_seconds))
        self.records: Remembered = Remembered()
        self.places: Places = Places()
        self._settings = settings
        self._established = established
        self._abilities: Abilities | None = None
        self._turn = anyio.Lock()

    async def abilities(self) -> Abilities:
        """What the server honours. It is asked once, before the first put, for which the marker is made, too.

        Raises:
            ConfigurationError: another replica has just made the marker, and with other settings.
            StoreUnavailable: the server cannot be asked.
        """
        if self._abilities is None:
            async with self._turn:
                if self._abilities is None:
                    self._abilities = await self._establish()
        return self._abilities

    async def _establish(self) -> Abilities:
        marker = _Marker(_FORMAT, self.keys.generations.seconds)
        content = msgspec.json.encode(marker)
        if not self._established:
            await self.requests.put(
                self.keys.marker,
                Body([content], None),
                text=None,
                content_type="application/json",
                if_absent=True,
                task="make its marker",
            )
            there = await _read_marker(self.requests, self.keys.marker)
            if there != marker:
                raise _disagreement(there, self._settings)
            self._established = True
        return await learn_abilities(self.requests, self.keys.marker, content)


@asynccontextmanager
async def opened_store(settings: S3Settings) -> AsyncIterator[Opened]:
    """A store that is open until the end of the block.

    Raises:
        ConfigurationError: a setting does not fit the store that is there.
        StoreUnavailable: the bucket cannot be asked; the text says why and what to do.
    """
    async with opened_client(settings.connection) as client:
        requests = Requests(client, settings)
        marker = await _read_marker(requests, Keys(settings.prefix, Generations(None)).marker)
        seconds = settings.generation_seconds
        if marker is not None:
            if not _agrees(marker, settings):
                raise _disagreement(marker, settings)
            seconds = marker.generation_seconds
        yield Opened(requests, settings, seconds, established=marker is not None)


async def _read_marker(requests: Requests, key: str) -> _Marker | None:
    async with requests.fetch(key, task="be opened") as fetched:
        if fetched is None:
            return None
        content = await requests.read_all(fetched.body, _LONGEST_MARKER)
    try:
        return msgspec.json.decode(content, type=_Marker)
    except (msgspec.MsgspecError, RecursionError):
        raise ConfigurationError(
            "the object coatcheck.json under the store's prefix is none of ours: choose another prefix, or remove it"
        ) from None


def _agrees(marker: _Marker, settings: S3Settings) -> bool:
    """Whether a store may be opened with these settings. A shorter ttl than a generation does no harm."""
    ttl, there = settings.retention.ttl, marker.generation_seconds
    if marker.coatcheck != _FORMAT:
        return False
    if ttl is None or there is None:
        return ttl is None and there is None
    return ttl <= timedelta(seconds=there) and (settings.own_generation is None or settings.own_generation == there)


def _disagreement(marker: _Marker | None, settings: S3Settings) -> ConfigurationError:
    if marker is None:
        return ConfigurationError(
            "the object coatcheck.json under the store's prefix was removed as soon as it was made"
        )
    if marker.coatcheck != _FORMAT:
        return ConfigurationError(f"the store has format {marker.coatcheck}, and this release knows {_FORMAT}: upgrade")
    there = marker.generation_seconds
    if there is None:
        return ConfigurationError(
            "ttl: this store was made without one, and what is in it does not expire: leave it out, or choose another "
            "prefix"
        )
    return ConfigurationError(
        f"ttl: this store was made with one, and keeps generations of {there} seconds: say a ttl of at most that, as "
        f"ttl={there}, and no other generation_seconds; or choose another prefix"
    )
