"""Whether a condition holds when several write at once: on it depends that something is done at most once."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import anyio
import msgspec
from anyio.lowlevel import checkpoint

from coatcheck.errors import StoreUnavailable

__all__ = ["RACERS", "Race", "race"]

RACERS = 4
_ROUNDS = 3
_LONG = 2.0  # seconds: a server in which racers wait for each other has shown what it does in fewer rounds


class Race(msgspec.Struct, frozen=True):
    """What became of some races.

    Attributes:
        winners: how many were told that they came first, by round.
    """

    winners: tuple[int, ...]

    @property
    def fair(self) -> bool:
        """Whether never more than one was told so, and one was."""
        return max(self.winners) == 1

    def __str__(self) -> str:
        most = max(self.winners)
        return f"{most} of {RACERS} racers {'was' if most == 1 else 'were'} told that they came first"


async def race(put: Callable[[int, int], Awaitable[int]]) -> Race:
    """Have several tasks put to one key at once, each on the condition that there is nothing.

    Args:
        put: puts for a round and a racer, and returns the status; every round has a key of its own.

    Raises:
        StoreUnavailable: a racer got no answer, or another one than yes and no.
    """
    winners: list[int] = []
    begun = time.monotonic()
    while len(winners) < _ROUNDS and time.monotonic() - begun < _LONG:
        winners.append(await _round(put, len(winners)))
        await checkpoint()
        if winners[-1] > 1:
            break
    if not any(winners):
        raise StoreUnavailable("S3 could not tell who came first: every racer was refused")
    return Race(tuple(winners))


async def _round(put: Callable[[int, int], Awaitable[int]], number: int) -> int:
    statuses: list[int] = []
    failed: list[StoreUnavailable] = []

    async def run(racer: int) -> None:
        try:
            statuses.append(await put(number, racer))
        except StoreUnavailable as error:
            failed.append(error)

    async with anyio.create_task_group() as group:
        for racer in range(RACERS):
            group.start_soon(run, racer)
    if failed:
        raise failed[0]
    strange = [status for status in statuses if status >= 300 and status not in (409, 412)]
    if strange:
        raise StoreUnavailable(f"S3 could not tell who came first: a racer was answered {strange[0]}")
    return sum(status < 300 for status in statuses)
