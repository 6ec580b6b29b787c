"""What is on its way to a store while nobody waits for it: the engine of `coatcheck.WriteBehind`.

What is in flight, by scope and ref, is one `Flight`: a payload, and the puts of the inner store that are owed for it.
Laws:

* Every put that was taken is followed by a put of the inner store that begins after it was taken, so ages are refreshed
  and expiries grow as if there were nothing in between. Those that are taken before that one begins share it.
* A put waits for those before it that it needs: of the same content, and of its parents. Each waits only for what was
  there before it, so none waits for ever.
* A flight is shielded: whatever is cancelled, only the closing ends it before it has landed.
* What fails is told: by a notice, by a line in the log, and to whoever asks for the ref.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Iterable
from datetime import datetime

import anyio
import msgspec
from anyio.abc import TaskGroup

from coatcheck.artifacts.meta import ArtifactMeta, PutWords, Swept
from coatcheck.artifacts.notices import Notices, UploadFailed
from coatcheck.artifacts.port import ArtifactStore
from coatcheck.artifacts.retention import is_expired, later_expiry
from coatcheck.artifacts.room import Room
from coatcheck.errors import CoatcheckError, IntegrityError, StoreUnavailable, UnknownParent
from coatcheck.scope import Scope

__all__ = ["MAX_FLIGHTS", "MAX_REMEMBERED", "Flight", "Flights", "Put", "wait_for"]

MAX_FLIGHTS = 1024
"""How many payloads are in flight at once, however small: each is a task."""

MAX_REMEMBERED = 1024
"""How many failures, and how many evictions, are kept for whoever asks."""

_LOOKS = 8
_log = logging.getLogger("coatcheck")


class Put:
    """One put of the inner store that is owed.

    Attributes:
        words: what it says; those that share it may lengthen its expiry until it has begun.
        after: the ends of the puts that it needs.
        begun: whether the inner store was asked.
        ended: set when it has succeeded or failed.
        failure: set where it has failed.
    """

    def __init__(self, words: PutWords, after: tuple[anyio.Event, ...]) -> None:
        self.words = words
        self.after = after
        self.begun = False
        self.ended: anyio.Event = anyio.Event()
        self.failure: UploadFailed | None = None


class Flight:
    """One payload on its way.

    Attributes:
        meta: as the puts of this flight have it.
        puts: those that are owed, in order; none but the first has begun.
        shield: around all that is done for it.
    """

    def __init__(self, scope: Scope, data: bytes, meta: ArtifactMeta) -> None:
        self.scope = scope
        self.data = data
        self.meta: ArtifactMeta = meta
        self.puts: deque[Put] = deque()
        self.shield: anyio.CancelScope = anyio.CancelScope(shield=True)

    def owe(self, meta: ArtifactMeta, words: PutWords, after: tuple[anyio.Event, ...]) -> bool:
        """Owe a put, or make the last one serve for this one, too, where it has not begun and needs nothing more.

        Returns:
            Whether it makes the artifact: nothing of this content was in flight, or it had expired before it landed.

        Raises:
            IntegrityError: another payload has the same ref.
        """
        if self.meta.digest != meta.digest:
            raise IntegrityError(meta.ref, meta.digest, self.meta.digest)
        last = self.puts[-1] if self.puts else None
        anew = last is None or is_expired(self.meta.expires_at, meta.created_at)
        if last is None or anew or last.begun or not set(last.words.parents) <= set(words.parents):
            self.puts.append(Put(words, after))
        else:  # its own words stand, since it came first; so it need not wait for what this one names
            expires_at = later_expiry(last.words.expires_at, words.expires_at)
            last.words = msgspec.structs.replace(last.words, expires_at=expires_at)
        expires_at = later_expiry(self.meta.expires_at, meta.expires_at)
        self.meta = meta if anew else msgspec.structs.replace(self.meta, expires_at=expires_at)
        return anew


class Flights:
    """All that is in flight to one store. Use it in one event loop.

    Args:
        store: the inner one.
        notices: where failures are told.
        max_bytes: what payloads in flight may take together.
        concurrency: how many puts of the inner store run at once.
    """

    def __init__(self, store: ArtifactStore, notices: Notices, max_bytes: int, concurrency: int) -> None:
        self._store = store
        self._notices = notices
        self._concurrency = concurrency
        self._limiter = anyio.CapacityLimiter(concurrency)
        self._tasks: TaskGroup | None = None
        self._room = Room(max_bytes, MAX_FLIGHTS)
        self._flights: dict[tuple[Scope, str], Flight] = {}
        self._failures: OrderedDict[tuple[Scope, str], tuple[UploadFailed, datetime | None]] = OrderedDict()
        self._evictions: dict[Scope, list[Swept]] = {}

    # --- what is in flight ---

    def find(self, scope: Scope, ref: object) -> Flight | None:
        """The flight of a ref."""
        return self._flights.get((scope, ref)) if isinstance(ref, str) else None

    def puts(self, scope: Scope | None = None) -> list[Put]:
        """Every put that is owed now, in one scope or in all."""
        return [put for flight in self._flights.values() if scope in (None, flight.scope) for put in flight.puts]

    def ends(self, scope: Scope, refs: Iterable[object]) -> tuple[anyio.Event, ...]:
        """The ends of the puts that are owed now for these refs."""
        found = (self.find(scope, ref) for ref in refs)
        return tuple(put.ended for flight in found if flight is not None for put in flight.puts)

    # --- taking ---

    async def check_parents(self, scope: Scope, parents: tuple[str, ...], now: datetime) -> None:
        """Refuse parents that are neither in flight nor in the store. A few are looked for at once.

        Raises:
            UnknownParent: with all that do not resolve.
            StoreUnavailable: it cannot be told.
        """
        resolves: dict[str, bool] = {}
        for parent in parents:
            flight = self.find(scope, parent)
            if flight is not None and not is_expired(flight.meta.expires_at, now):
                resolves[parent] = True
        rest = iter([parent for parent in parents if parent not in resolves])
        problems: list[Exception] = []

        async def look() -> None:
            for parent in rest:
                try:
                    resolves[parent] = await self._store.head(scope, parent) is not None
                except Exception as error:  # noqa: BLE001 - raised below, and no task group makes a group of it
                    problems.append(error)
                if problems:
                    return

        if len(resolves) < len(parents):
            async with anyio.create_task_group() as tasks:
                for _ in range(min(_LOOKS, len(parents))):
                    tasks.start_soon(look)
        if problems:
            raise problems[0]
        unknown = tuple(parent for parent in parents if not resolves[parent])
        if unknown:
            raise UnknownParent(unknown)

    async def take_room(self, scope: Scope, ref: str, size: int) -> bool:
        """Wait until a payload may fly; False where it is in flight already, and needs no room of its own.

        What was taken goes back by `launch`, or by `give_room` where it does not come to that.
        """
        if (scope, ref) in self._flights:
            return False
        await self._room.take(size)
        return True

    def give_room(self, size: int) -> None:
        """Give back what `take_room` took."""
        self._room.give(size)

    def check_taking(self) -> TaskGroup:
        """Refuse what comes when the store is being closed."""
        if self._tasks is None:
            raise StoreUnavailable("WriteBehind is being closed, and takes nothing any more")
        return self._tasks

    def launch(
        self, scope: Scope, data: bytes, meta: ArtifactMeta, words: PutWords, *, room: bool
    ) -> tuple[ArtifactMeta, bool]:
        """Have a payload stored.

        Args:
            room: whether `take_room` took any. It is used for a new flight, and given back where it is not needed.

        Returns:
            The artifact as it will be, and whether this put makes it, as far as that is known here.

        Raises:
            StoreUnavailable: the store is being closed.
            IntegrityError: another payload of the same ref is in flight.
        """
        try:
            tasks = self.check_taking()
            after = self.ends(scope, words.parents)
            found = self._flights.get((scope, meta.ref))
            flight = Flight(scope, data, meta) if found is None else found
            created = flight.owe(meta, words, after)
            if found is None:
                self._flights[scope, meta.ref] = flight
                tasks.start_soon(self._fly, flight)
                room = False
        finally:
            if room:
                self._room.give(len(data))
        return flight.meta, created

    # --- flying ---

    async def _fly(self, flight: Flight) -> None:
        try:
            with flight.shield:
                while flight.puts:
                    self._end(flight, await self._attempt(flight, flight.puts[0]))
        finally:
            while flight.puts:
                self._end(flight, "it had not ended when the store was closed, and was given up")
            del self._flights[flight.scope, flight.meta.ref]
            self._room.give(len(flight.data))

    async def _attempt(self, flight: Flight, put: Put) -> str | None:
        """Do one put; ``None``, or why it failed."""
        ref = flight.meta.ref
        try:
            await wait_for(put.after)
            async with self._limiter:
                put.begun = True
                result = await self._store.put(
                    flight.scope,
                    flight.data,
                    kind=put.words.kind,
                    media_type=flight.meta.media_type,
                    label=put.words.label,
                    expires_at=put.words.expires_at,
                    origin=put.words.origin,
                    parents=put.words.parents,
                )
        except anyio.get_cancelled_exc_class():
            if flight.shield.cancel_called:
                raise
            return "it was cancelled from outside"  # on asyncio anyone can; a task group would end for it
        except Exception as error:  # noqa: BLE001 - whatever the store raises is told, in words of our own errors only
            name = type(error).__name__
            return f"{name}: {error}"[:500] if isinstance(error, CoatcheckError) else name
        if result.swept:
            self._evictions.setdefault(flight.scope, []).extend(result.swept)
            self._forget_evictions(MAX_REMEMBERED)
        return None if result.meta.ref == ref else "the store gave it another ref"

    def _end(self, flight: Flight, problem: str | None) -> None:
        """Tell what became of the first put that is owed."""
        put, meta, key = flight.puts.popleft(), flight.meta, (flight.scope, flight.meta.ref)
        put.begun = True
        if problem is None:
            self._failures.pop(key, None)
        else:
            put.failure = UploadFailed(ref=meta.ref, kind=meta.kind, bytes=meta.bytes, detail=problem)
            self._failures[key] = put.failure, meta.expires_at
            self._failures.move_to_end(key)
            if len(self._failures) > MAX_REMEMBERED:
                self._failures.popitem(last=False)
            _log.warning("the upload of %s failed after its put had returned: %s", meta.ref, problem)
            self._notices.tell(put.failure)
        put.ended.set()

    # --- what became of it ---

    def failure(self, scope: Scope, ref: object) -> tuple[UploadFailed, datetime | None] | None:
        """The last failure of a ref that was not made good since, and when what it promised would have expired."""
        return self._failures.get((scope, ref)) if isinstance(ref, str) else None

    def forget(self, scope: Scope, ref: object) -> None:
        """Forget a failure: what failed is there now, or nobody wants it any more."""
        if isinstance(ref, str):
            self._failures.pop((scope, ref), None)

    def evicted(self, scope: Scope, ref: str) -> tuple[Swept, ...]:
        """What puts in a scope have forced out since it was last told, without ``ref``, which is put again."""
        return tuple(gone for gone in self._evictions.pop(scope, ()) if gone.ref != ref)

    def _forget_evictions(self, most: int) -> None:
        while sum(map(len, self._evictions.values())) > most:
            gone = self._evictions.pop(next(iter(self._evictions)))
            _log.warning("uploads pushed %d older artifacts out of a scope, and no later put there told it", len(gone))

    # --- the lifetime ---

    def open(self, tasks: TaskGroup) -> None:
        """Take what comes, and let it fly in ``tasks``."""
        self._limiter = anyio.CapacityLimiter(self._concurrency)
        self._tasks = tasks

    async def close(self, timeout: float) -> None:
        """Take nothing any more, and wait for what is in flight; what has not landed in time is given up, and told.

        Args:
            timeout: in seconds. A cancellation does not make it shorter.
        """
        self._tasks = None
        try:
            with anyio.CancelScope(shield=True):
                with anyio.move_on_after(timeout):
                    await self._landed()
                self._give_up()
                await self._landed()
        finally:
            self._give_up()  # asyncio knows cancellations that no shield keeps off
            self._forget_evictions(0)

    def _give_up(self) -> None:
        for flight in self._flights.values():
            flight.shield.cancel()

    async def _landed(self) -> None:
        while self._flights:
            await wait_for([put.ended for put in self.puts()])


async def wait_for(ends: Iterable[anyio.Event]) -> None:
    """Wait until each has come."""
    for end in ends:
        await end.wait()
