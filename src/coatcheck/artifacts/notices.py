"""What a store has to say when nobody is waiting for its answer.

An error belongs to the call that it ends. What goes wrong behind a call, or after one, has no caller: it is a notice,
told to whoever listens. A store that has any has an attribute ``notices``; `coatcheck.Boundary` listens to it while it
is open, and makes events of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeAlias

import msgspec

__all__ = ["EvictionFailed", "Notice", "Notices", "UploadFailed", "UploadLeft"]

_log = logging.getLogger("coatcheck")


class UploadLeft(msgspec.Struct, frozen=True):
    """A multipart upload could be neither completed nor aborted: its parts take room, and cost, until a sweep.

    Attributes:
        upload_id: the server's name of it.
        detail: why it could not be aborted.
    """

    upload_id: str
    detail: str


class UploadFailed(msgspec.Struct, frozen=True):
    """An upload that a put had not waited for failed: the store does not have what the put promised.

    Attributes:
        ref, kind: the artifact's.
        bytes: the payload's size.
        detail: why; never holds a payload, a scope or a secret.
    """

    ref: str
    kind: str
    bytes: int
    detail: str


class EvictionFailed(msgspec.Struct, frozen=True):
    """A put was stored, and what its scope's budget wants removed could not be.

    Attributes:
        ref: of what was put.
        detail: why.
    """

    ref: str
    detail: str


Notice: TypeAlias = UploadLeft | UploadFailed | EvictionFailed


class Notices:
    """Where a store tells its notices, and a host hears them. Use it in the store's event loop."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[Notice], object]] = []

    def listen(self, callback: Callable[[Notice], object]) -> Callable[[], None]:
        """Have ``callback`` called with every notice from now on, synchronously; what it raises is logged, never felt.

        Returns:
            A function that ends it; calling it again does nothing.
        """

        def heard(notice: Notice) -> object:  # one of its own each time: who listens twice is heard, and ended, twice
            return callback(notice)

        self._listeners.append(heard)

        def stop() -> None:
            if heard in self._listeners:
                self._listeners.remove(heard)

        return stop

    def tell(self, notice: Notice) -> None:
        """Call everyone who listens, in the order in which they began to."""
        for listener in tuple(self._listeners):
            try:
                listener(notice)
            except Exception:  # noqa: BLE001 - whoever listens must not be felt
                _log.exception("a listener to the store's notices raised on %s", type(notice).__name__)
