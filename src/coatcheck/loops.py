"""What anyio does not offer, and the two event loops do: a task of no task group, and a word from a thread.

Both are for streams and threads that outlive the block in which they began. Whoever uses them sees to their end.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import sys
from collections.abc import Callable, Coroutine
from typing import Any

__all__ = ["Loop", "trio_here"]


def trio_here() -> Any:
    """Trio's low level, where its event loop runs here; else ``None``. Another thread may just be importing trio."""
    lowlevel: Any = getattr(sys.modules.get("trio"), "lowlevel", None)
    return lowlevel if lowlevel is not None and getattr(lowlevel, "in_trio_run", bool)() else None


class Loop:
    """The event loop that runs here."""

    def __init__(self) -> None:
        self._trio: Any = trio_here()
        self._native: Any = asyncio.get_running_loop() if self._trio is None else self._trio.current_trio_token()

    def spawn(self, work: Callable[[], Coroutine[Any, Any, None]]) -> object:
        """Begin a task of no task group, in a copy of this context. Keep what is returned until it ends."""
        context = contextvars.copy_context()
        if self._trio is not None:
            return self._trio.spawn_system_task(work, context=context)
        return self._native.create_task(work(), context=context)

    def tell(self, word: Callable[[], object]) -> None:
        """From a thread: have ``word`` called on the loop, soon. Nobody waits for that, since the loop may end instead:
        a thread that waited for a loop that has ended would keep the interpreter from ending, too.
        """
        with contextlib.suppress(RuntimeError):  # it has ended; trio has an error of its own for that, which is one
            if self._trio is not None:
                self._native.run_sync_soon(word)
            else:
                self._native.call_soon_threadsafe(word)
