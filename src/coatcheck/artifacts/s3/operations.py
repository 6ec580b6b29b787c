"""What a store on S3 does on one event loop, verb by verb, on what was opened there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime

from coatcheck.artifacts.meta import Artifact, ArtifactMeta, Clock, Swept
from coatcheck.artifacts.notices import Notices
from coatcheck.artifacts.port import ArtifactReader
from coatcheck.artifacts.s3 import reads, scan
from coatcheck.artifacts.s3.keys import Segments
from coatcheck.artifacts.s3.opened import Opened, opened_store
from coatcheck.artifacts.s3.parallel import gathered
from coatcheck.artifacts.s3.puts import Puts
from coatcheck.artifacts.s3.record import Record
from coatcheck.artifacts.s3.settings import S3Settings
from coatcheck.artifacts.usage import Usage
from coatcheck.artifacts.workers import Turns, Workers

__all__ = ["Operations", "opened_operations"]

_DELETE = "delete an artifact"


class Operations:
    """One store on one event loop."""

    def __init__(self, opened: Opened, puts: Puts, workers: Workers) -> None:
        self.opened: Opened = opened
        self.puts: Puts = puts
        self._workers = workers

    async def head(self, segments: Segments, ref: str, now: datetime) -> ArtifactMeta | None:
        """What is known of an artifact."""
        return await reads.head(self.opened, segments, ref, now)

    async def get(self, segments: Segments, ref: str, now: datetime) -> Artifact | None:
        """An artifact with its payload."""
        return await reads.get(self.opened, self._workers, segments, ref, now)

    def open(
        self, segments: Segments, ref: str, start: int, end: int | None, now: datetime
    ) -> AbstractAsyncContextManager[ArtifactReader | None]:
        """An artifact's payload, or a part of it."""
        return reads.open_payload(self.opened, segments, ref, start, end, now)

    async def delete(self, segments: Segments, ref: str, now: datetime) -> None:
        """Withdraw an artifact, from every generation in which anyone may look for it."""
        keys, requests = self.opened.keys, self.opened.requests

        async def withdraw(generation: int | None) -> None:
            key = keys.artifact(segments, ref, generation)
            found = await requests.head(key, _DELETE)
            if found is not None:
                await scan.remove(self.opened, key, Record.decode(ref, found.text), _DELETE)

        try:
            await gathered(withdraw, keys.generations.deletable(now))
        finally:
            self.opened.places.forget(segments, ref)

    async def living(self, segments: Segments, now: datetime) -> list[ArtifactMeta]:
        """The metas of a scope's unexpired artifacts."""
        return await scan.living(self.opened, segments, now)

    async def sweep(self, segments: Segments | None, now: datetime, *, dry_run: bool) -> tuple[Swept, ...]:
        """Remove what is dead."""
        return await scan.sweep(self.opened, segments, now, dry_run=dry_run)

    async def usage(self) -> tuple[Usage, ...]:
        """What every scope holds, by kind."""
        return await scan.usage(self.opened)


@asynccontextmanager
async def opened_operations(
    settings: S3Settings, clock: Clock, workers: Workers, turns: Turns, notices: Notices
) -> AsyncIterator[Operations]:
    """A store that is open until the end of the block."""
    async with opened_store(settings) as opened:
        yield Operations(opened, Puts(opened, settings, clock, workers, turns, notices), workers)
