"""Room for what is held in memory on its way: bounded, and given out in the order in which it was asked for."""

from __future__ import annotations

from collections import deque

from anyio import Event

__all__ = ["Room"]


class Room:
    """A bound on bytes, and on pieces, that are in flight at once.

    Whoever asks first is served first: a large piece is not overtaken for ever by small ones. What is larger than the
    whole room waits until it is empty, and goes alone. Use it in one event loop.

    Args:
        max_bytes, max_pieces: how much and how many may be inside together.
    """

    def __init__(self, max_bytes: int, max_pieces: int) -> None:
        self._max_bytes = max_bytes
        self._max_pieces = max_pieces
        self._bytes = 0
        self._pieces = 0
        self._waiting: deque[tuple[int, Event]] = deque()

    async def take(self, size: int) -> None:
        """Wait until there is room for a piece of ``size`` bytes, and take it. Cancelled, it has taken nothing."""
        if not self._waiting and self._fits(size):
            self._enter(size)
            return
        place = size, Event()
        self._waiting.append(place)
        try:
            await place[1].wait()
        except BaseException:
            if place[1].is_set():  # it was given while the wait was cancelled
                self.give(size)
            else:
                self._waiting.remove(place)
                self._admit()
            raise

    def give(self, size: int) -> None:
        """Give back what was taken for a piece of ``size`` bytes."""
        self._bytes -= size
        self._pieces -= 1
        self._admit()

    def _admit(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            size, given = self._waiting.popleft()
            self._enter(size)
            given.set()

    def _fits(self, size: int) -> bool:
        return not self._pieces or (self._pieces < self._max_pieces and self._bytes + size <= self._max_bytes)

    def _enter(self, size: int) -> None:
        self._bytes += size
        self._pieces += 1
