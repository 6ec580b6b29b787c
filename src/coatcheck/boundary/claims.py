"""Where uses of approvals are claimed outside of one process: at most once, among any number of replicas.

A claim that is forgotten could be made again. So whoever forgets claims by their age says so with an attribute ``ttl``,
and a boundary refuses one that is not longer than its own ``approval_ttl`` (`check_kept`): an approval that has expired
is declined whether it was claimed or not.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from anyio import Lock
from anyio.lowlevel import RunVar

from coatcheck.artifacts.disk import (
    directory,
    ensure_directory,
    exists,
    flush,
    named_directory,
    open_for_writing,
    open_lock,
)
from coatcheck.artifacts.s3.claims import make_claim, race_for_claims
from coatcheck.artifacts.s3.store import S3Store
from coatcheck.artifacts.workers import Job, Workers
from coatcheck.errors import ConfigurationError, StoreUnavailable
from coatcheck.settings import check_duration

__all__ = ["DirectoryApprovals", "S3Approvals", "check_kept"]

_T = TypeVar("_T")
_MARKER = ".coatcheck-claims-"
_MARK = _MARKER + "1"
_OF_THE_VOLUME = "lost+found"  # a new volume is empty but for it
_LOCK = ".lock"
_CLAIM = re.compile("[0-9a-f]{64}")
_BRANCH = re.compile("[0-9a-f]{2}")
# How often one branch is looked through for old claims: so many times while a claim is kept.
_LOOKS_PER_TTL = 8
_TRIES = 8


class DirectoryApprovals:
    """Claims in a directory that all processes share that resume calls. POSIX only.

        <path>/.coatcheck-claims-1                 marks it, and its format
        <path>/<2 hex digits>/<2 more>/<64>        one claim: an empty file, named after the SHA-256 of the id

    A claim is one file that the system makes only where it is not there yet (``O_CREAT | O_EXCL``), so it is made at
    most once whatever the number of processes, and a process that dies leaves it made or not made. It says when, by its
    modification time, and nothing else. All work is done in worker threads. A caller that gives up may find later that
    its claim was made all the same: at most once, and not at least once.

    The directory is made with mode 0700 where it is missing, in a directory that is there; it must be empty, or hold
    claims. One that belongs to another user, or that others can write to, is refused, and one that vanishes later is an
    error: whoever could remove claims could have calls executed twice. Let it be one of its own, and not in the
    directory of a `DirectoryStore`. A network file system will do if it makes files exclusively, as NFS does from
    version 3 on. Restoring it from a backup forgets claims: change the boundary's ``secret`` then.

    Args:
        path: the directory. A relative one means where the process is at the first claim.
        ttl: how long a claim is kept, in seconds or as a `timedelta`. It must be longer than the boundary's
            ``approval_ttl``. Ages are counted by the clock of the file system alone, so no other clock matters. Older
            claims are removed as new ones are made, without any job beside: now and then, a new claim looks through the
            256th part of the directory, in which it lies itself. ``None``: none is removed but by `forget`.
        fsync: flush every claim to the disk before it counts. Without it a claim survives the death of every process,
            but perhaps not a loss of power, after which its approval could be used again.

    Attributes:
        ttl: as given; `check_kept` compares it.

    Raises:
        ConfigurationError: naming the setting that cannot be honoured.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        ttl: float | timedelta | None = timedelta(days=7),
        fsync: bool = False,
    ) -> None:
        if not isinstance(fsync, bool):
            raise ConfigurationError(f"DirectoryApprovals(fsync=...) must be True or False, not {fsync!r:.80}")
        seconds = None if ttl is None else check_duration("DirectoryApprovals(ttl=...)", ttl)
        self.ttl: timedelta | None = None if seconds is None else timedelta(seconds=seconds)
        self._path = _checked(path)
        self._fsync = fsync
        self._made = False
        self._workers = Workers()
        self._looked: dict[str, float] = {}

    @property
    def path(self) -> Path:
        """The directory; absolute once the first claim was made."""
        return self._path

    async def claim(self, id: str) -> bool:
        """Claim the one use of ``id``: True exactly once, for one caller in all processes; False ever after.

        Raises:
            StoreUnavailable: it cannot be told; the call is declined then.
        """
        name = hashlib.sha256(id.encode("utf-8", "surrogatepass")).hexdigest()
        return await self._run("record a claim", lambda job: self._claim(job, name))

    async def forget(self, older_than: float | timedelta) -> int:
        """Remove claims that were made longer ago than ``older_than``, in seconds or as a `timedelta`.

        Never say less than the boundary's ``approval_ttl``: an approval whose claim is forgotten before it expires can
        be used again.

        Returns:
            How many were removed. Those of a branch where another process removes some at this moment are left to it.

        Raises:
            ConfigurationError: ``older_than`` is no duration.
            StoreUnavailable: the directory cannot be read or changed.
        """
        age = check_duration("forget(older_than)", older_than)
        return await self._run("forget claims", lambda job: self._forget(job, age))

    def _claim(self, job: Job, name: str) -> bool:
        branch, twig = name[:2], name[2:4]
        with self._opened() as root:
            ensure_directory(branch, root, fsync=False)
            with directory(branch, root) as outer:
                for _ in range(_TRIES):
                    with suppress(FileNotFoundError):  # whoever removes old claims may remove an empty twig just now
                        made = self._make(job, name, twig, outer)
                        break
                else:
                    raise StoreUnavailable(f"{self._path} changes all the time: is something else at work in it?")
                if made is not None:
                    flush(outer, fsync=self._fsync)
                    flush(root, fsync=self._fsync)
                    self._look_around(branch, outer, made)
        return made is not None

    def _make(self, job: Job, name: str, twig: str, outer: int) -> float | None:
        """Make one claim, and say when, by the file system's clock; ``None`` where it was there."""
        ensure_directory(twig, outer, fsync=False)
        with directory(twig, outer) as inner:
            job.check()
            try:
                file = open_for_writing(name, inner)
            except FileExistsError:
                return None
            try:
                flush(file, fsync=self._fsync)
                made = os.fstat(file).st_mtime
            finally:
                os.close(file)
            flush(inner, fsync=self._fsync)
        return made

    def _look_around(self, branch: str, outer: int, now: float) -> None:
        """Remove what is too old from one branch, now and then. The claim is made; nothing here may undo that."""
        if self.ttl is None:
            return
        kept = self.ttl.total_seconds()
        if now - self._looked.get(branch, -kept) >= kept / _LOOKS_PER_TTL:
            self._looked[branch] = now
            with suppress(OSError):
                _remove(outer, kept)

    def _forget(self, job: Job, age: float) -> int:
        removed = 0
        with self._opened() as root:
            for branch in _named(root, _BRANCH):
                job.check()
                with directory(branch, root) as outer:
                    removed += _remove(outer, age)
        return removed

    @contextmanager
    def _opened(self) -> Iterator[int]:
        """The directory's descriptor; it is opened anew for every claim, so one that vanished is noticed."""
        if not self._made:
            self._path = self._path.absolute()
            _make_root(self._path, fsync=self._fsync)
            self._made = True
        with named_directory(self._path) as root:
            if not exists(_MARK, root):
                raise StoreUnavailable(f"{self._path} holds no claims any more: was it emptied, or is it not mounted?")
            _check_safe(self._path, root)
            yield root

    async def _run(self, task: str, work: Callable[[Job], _T]) -> _T:
        """Do ``work`` in a thread. This is the one edge where errors of the system become ours."""

        def attempt(job: Job) -> _T:
            try:
                return work(job)
            except StoreUnavailable:  # which is an OSError, too
                raise
            except OSError as error:
                code = errno.errorcode.get(error.errno or 0, "unknown")
                raise StoreUnavailable(
                    f"the claims in {self._path} cannot be used to {task}: {error.strerror} ({code})"
                ) from None

        return await self._workers.run(attempt)


class S3Approvals:
    """Claims in a bucket, among all replicas that share it: one object each, under ``<prefix>/claims.d/``.

        store = S3Store("agents", prefix="prod")
        boundary = Boundary([export_orders], store=store, approvals=S3Approvals(store), secret=...)

    A claim is a put on the condition that there is nothing (``If-None-Match: *``), named after the SHA-256 of the id.
    Not every server honours the condition, and some do not when several write at once. So a race is run first, when the
    approvals are opened (``async with approvals:``), or else at the first claim; and where more than one racer is told
    that it came first, no claim is ever made.

    It is at most once, and not at least once: where a claim has no answer in time the call is declined, and the claim
    may have been made all the same. A conflict with another claim of the same id (409) is tried again.

    Claims are kept until somebody removes them. Let a lifecycle rule of the bucket do that, for the prefix
    ``<prefix>/claims.d/`` alone, and after more days than the boundary's ``approval_ttl``: an approval whose claim is
    removed before it expires can be used again. Nothing of a claim says whose it is. The credentials need s3:PutObject
    and s3:GetObject there, and s3:DeleteObject on ``<prefix>/doctor.d/`` for the race.

    Args:
        store: whose bucket, prefix and client are used. Where it is not open, by its boundary, by ``async with store:``
            or ``async with approvals:``, every claim opens a client of its own. Its ttl touches no claim.

    Raises:
        ConfigurationError: ``store`` is no `S3Store`.
    """

    def __init__(self, store: S3Store) -> None:
        if not isinstance(store, S3Store):
            raise ConfigurationError(f"S3Approvals(store) must be an S3Store, not {type(store).__name__}")
        self._store = store
        self._fair = False
        self._unfair: str | None = None
        self._turns: RunVar[Lock] = RunVar("coatcheck.boundary.claims")

    async def claim(self, id: str) -> bool:
        """Claim the one use of ``id``: True exactly once, for one caller of all; False ever after.

        Raises:
            ConfigurationError: the server does not honour the condition.
            StoreUnavailable: it cannot be told; the call is declined then.
        """
        name = hashlib.sha256(id.encode("utf-8", "surrogatepass")).hexdigest()
        async with self._store:  # which costs nothing where it is open already
            await self._check_server()
            return await make_claim(self._store, name)

    async def __aenter__(self) -> Self:
        """Open the store, and see that the server can tell who came first.

        Raises:
            ConfigurationError: it cannot.
            StoreUnavailable: it cannot be asked.
        """
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._store)
            await self._check_server()
            stack.pop_all()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the store, unless others have it open."""
        await self._store.__aexit__(exc_type, exc, traceback)

    async def _check_server(self) -> None:
        """Run the race, once."""
        if self._fair:
            return
        turn = self._turns.get(None)
        if turn is None:
            turn = Lock()
            self._turns.set(turn)
        async with turn:
            if not self._fair and self._unfair is None:
                found = await race_for_claims(self._store)
                self._fair, self._unfair = found.fair, None if found.fair else str(found)
        if self._unfair is not None:
            raise ConfigurationError(
                f"S3Approvals: the server does not honour If-None-Match when several write at once ({self._unfair}), "
                "so an approval could be used twice: use DirectoryApprovals, or approvals of your own"
            )


def check_kept(approvals: object, approval_ttl: timedelta) -> None:
    """Refuse approvals that forget a claim, by their attribute ``ttl``, while its approval could still be used.

    Raises:
        ConfigurationError: their ttl is not longer than ``approval_ttl``.
    """
    ttl = getattr(approvals, "ttl", None)
    if isinstance(ttl, timedelta) and ttl <= approval_ttl:
        raise ConfigurationError(
            f"Boundary(approvals=...) keeps a claim for {ttl}, and an approval can be used for {approval_ttl}: "
            "give the approvals a ttl longer than Boundary(approval_ttl=...), or an approval could be used twice"
        )


def _checked(path: object) -> Path:
    try:
        text: object = os.fspath(path)  # type: ignore[call-overload]  # what has no path is refused below
    except TypeError:
        text = None
    if not isinstance(text, str) or not text or "\0" in text or "://" in text:
        raise ConfigurationError(f"DirectoryApprovals(path) must name a directory, not {path!r:.80}")
    return Path(text)


def _make_root(path: Path, *, fsync: bool) -> None:
    """Make of the path what claims need, as far as it is not there."""
    with suppress(FileExistsError):
        os.mkdir(path, 0o700)
        os.chmod(path, 0o700)  # a umask may have taken the owner's own rights away
    with named_directory(path) as root:
        if not exists(_MARK, root):
            names = [name for name in os.listdir(root) if name != _OF_THE_VOLUME]
            if names and not exists(_MARK, root):  # another process may just have made it one
                if any(name.startswith(_MARKER) for name in names):
                    raise StoreUnavailable(f"{path} holds claims of a format that this version does not know")
                raise StoreUnavailable(f"{path} is not empty, and holds no claims: name a directory of the claims' own")
            _check_owner(path, root)
            os.fchmod(root, 0o700)
            ensure_directory(_MARK, root, fsync=fsync)
    if fsync:
        with named_directory(path.parent) as parent:
            os.fsync(parent)


def _check_safe(path: Path, root: int) -> None:
    """Refuse a directory in which others could remove a claim."""
    _check_owner(path, root)
    mode = stat.S_IMODE(os.fstat(root).st_mode)
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise StoreUnavailable(f"{path} can be changed by other users (its mode is {mode:o}): chmod 700 it")


def _check_owner(path: Path, root: int) -> None:
    owner = os.fstat(root).st_uid
    if owner != os.geteuid():
        raise StoreUnavailable(
            f"{path} belongs to user {owner}, and this process runs as user {os.geteuid()}: "
            "run as that user, or name a directory of this one's own"
        )


def _named(parent: int, pattern: re.Pattern[str]) -> list[str]:
    return [name for name in os.listdir(parent) if pattern.fullmatch(name) is not None]


def _remove(branch: int, age: float) -> int:
    """Remove the claims of a branch that are older than ``age``, in seconds; how many they were.

    Only one process at a time, so that nobody removes, in the place of a claim that it saw, one that was made since.
    What time it is says the file system, as it said when the claims were made: a process whose clock is wrong removes
    nothing too soon.
    """
    lock = open_lock(_LOCK, branch)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 0
    else:
        os.utime(lock)
        before = os.fstat(lock).st_mtime - age
        return sum(_thin_out(branch, twig, before) for twig in _named(branch, _BRANCH))
    finally:
        os.close(lock)


def _thin_out(branch: int, twig: str, before: float) -> int:
    removed = 0
    with directory(twig, branch) as inner:
        for name in _named(inner, _CLAIM):
            if os.stat(name, dir_fd=inner, follow_symlinks=False).st_mtime < before:
                os.unlink(name, dir_fd=inner)
                removed += 1
    with suppress(OSError):  # it still holds something
        os.rmdir(twig, dir_fd=branch)
    return removed
