"""The file that one scope's index is in: an SQLite database that is opened for every use, judged, and replaced.

What it says and when, is the business of `coatcheck.artifacts.index`. Everything here blocks. `sqlite3` is loaded by
the first use: `import coatcheck` does not pay for it.

Nobody but the holder of the scope's lock ever opens it for writing. Others open it in SQLite's read-only mode, which
leaves also the journal of a process that died alone.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING
from urllib.parse import quote

from coatcheck.artifacts.disk import exists, flush, open_for_writing, remove_tree, unique
from coatcheck.artifacts.files import ScopeDirectory

if TYPE_CHECKING:
    import sqlite3

__all__ = ["INDEX_FILES", "SET", "TOTALS", "Line", "Unusable", "build", "drop", "opened"]

_INDEX = ".index"
INDEX_FILES = (_INDEX, f"{_INDEX}-journal")  # the second as SQLite names it
"""Its names in the scope's directory, in the order in which they are removed."""

Line = tuple[str, str, int, int, int, int | None]
"""One row: ref, kind, bytes, place in a listing, last put, expiry; times are microseconds."""

_FORMAT = 0x0C0A7001
_PATIENCE = 5.0  # seconds; what holds an index up lasts milliseconds, or for ever
_SCHEMA = f"""
CREATE TABLE artifacts (
    ref TEXT PRIMARY KEY, kind TEXT NOT NULL, bytes INTEGER NOT NULL,
    place INTEGER NOT NULL, last_put INTEGER NOT NULL, expires INTEGER
) WITHOUT ROWID;
CREATE INDEX newest ON artifacts (place, ref);
CREATE INDEX oldest ON artifacts (last_put, ref);
CREATE INDEX expiring ON artifacts (expires) WHERE expires IS NOT NULL;
CREATE TABLE totals (count INTEGER NOT NULL, bytes INTEGER NOT NULL, seal INTEGER NOT NULL);
INSERT INTO totals VALUES (0, 0, 7);
CREATE TRIGGER came AFTER INSERT ON artifacts
    BEGIN UPDATE totals SET count = count + 1, bytes = bytes + new.bytes, seal = seal + 3 + 5 * new.bytes; END;
CREATE TRIGGER went AFTER DELETE ON artifacts
    BEGIN UPDATE totals SET count = count - 1, bytes = bytes - old.bytes, seal = seal - 3 - 5 * old.bytes; END;
CREATE TRIGGER changed AFTER UPDATE OF bytes ON artifacts
    BEGIN UPDATE totals SET bytes = bytes + new.bytes - old.bytes, seal = seal + 5 * (new.bytes - old.bytes); END;
CREATE TABLE doubtful (ref TEXT PRIMARY KEY) WITHOUT ROWID;
PRAGMA user_version = {_FORMAT};
"""
TOTALS = "SELECT count, bytes FROM totals WHERE seal = 7 + 3 * count + 5 * bytes"
"""One row. Where what was written is not what is read, there is none: budgets must not follow a damaged number."""

SET = """
INSERT INTO artifacts (ref, kind, bytes, place, last_put, expires) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (ref) DO UPDATE SET kind = excluded.kind, bytes = excluded.bytes, place = excluded.place,
    last_put = excluded.last_put, expires = excluded.expires
"""
"""Takes a `Line`."""


class Unusable(Exception):
    """No index can be used: it is missing, damaged, of another format, not ours, or somebody holds it up."""


@contextmanager
def opened(scope: ScopeDirectory, *, change: bool) -> Iterator[sqlite3.Connection]:
    """The index in one transaction, which ends with the block. What is left with an error has changed nothing.

    Args:
        scope: the scope's directory.
        change: the caller holds the scope's lock.

    Raises:
        Unusable: also for every error of SQLite in the block.
    """
    import sqlite3

    _check(scope)
    try:
        with closing(_connect(scope, _INDEX, change=change)) as database:
            database.execute("BEGIN IMMEDIATE" if change else "BEGIN")
            if database.execute("PRAGMA user_version").fetchone() != (_FORMAT,):
                raise Unusable("another format")
            yield database
            database.execute("COMMIT")
    except (sqlite3.Error, UnicodeDecodeError) as error:  # the second of names that are none any more
        raise Unusable(str(error)) from None


def build(scope: ScopeDirectory, lines: Iterable[Line]) -> None:
    """Replace the index, or what lies in its place, by a new one. The caller holds the scope's lock.

    Raises:
        Unusable: SQLite cannot write it here; then there is none.
    """
    import sqlite3

    name = unique("new")
    try:
        os.close(open_for_writing(name, scope.descriptor))
        with closing(_connect(scope, name, change=True)) as database:
            database.execute("PRAGMA page_size = 1024")  # most scopes are small, and there may be many
            database.execute("PRAGMA journal_mode = OFF")  # a name that nobody knows needs no way back
            database.executescript(f"BEGIN; {_SCHEMA}")
            database.executemany(SET, lines)
            database.execute("COMMIT")
        drop(scope)
        os.rename(name, _INDEX, src_dir_fd=scope.descriptor, dst_dir_fd=scope.descriptor)
        flush(scope.descriptor, fsync=scope.fsync)
    except sqlite3.Error as error:
        drop(scope)
        raise Unusable(str(error)) from None
    finally:
        remove_tree(name, scope.descriptor)


def drop(scope: ScopeDirectory) -> None:
    """Remove the index, or what lies in its place. The caller holds the scope's lock.

    Raises:
        OSError: it is still there, and must not be: it would miss what comes.
    """
    # The journal last: without its journal, an index may be half a change.
    for name in INDEX_FILES:
        try:
            os.unlink(name, dir_fd=scope.descriptor)
        except FileNotFoundError:
            continue
        except OSError:
            remove_tree(name, scope.descriptor)
            if exists(name, scope.descriptor):
                raise


def _check(scope: ScopeDirectory) -> None:
    """See that SQLite, which opens by name, will open what is ours and follow no link."""
    for name in INDEX_FILES:
        try:
            status = os.stat(name, dir_fd=scope.descriptor, follow_symlinks=False)
        except FileNotFoundError:
            if name == _INDEX:
                raise Unusable("missing") from None
        except OSError as error:
            raise Unusable(error.strerror) from None
        else:
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
                raise Unusable("not a file of ours")
    with suppress(OSError):
        if os.path.samestat(os.stat(scope.path), os.fstat(scope.descriptor)):
            return
    raise Unusable("the directory was moved")


def _connect(scope: ScopeDirectory, name: str, *, change: bool) -> sqlite3.Connection:
    import sqlite3

    path = quote(os.fsencode(scope.path / name))
    database = sqlite3.connect(
        f"file:{path}?mode={'rw' if change else 'ro'}", uri=True, timeout=_PATIENCE, isolation_level=None
    )
    try:
        database.execute("PRAGMA trusted_schema = OFF")
        database.execute("PRAGMA cell_size_check = ON")
        if change:
            database.execute("PRAGMA temp_store = MEMORY")
            database.execute("PRAGMA cache_spill = OFF")  # readers are held up by the commit alone
            database.execute("PRAGMA journal_mode = PERSIST")
            database.execute("PRAGMA journal_size_limit = 1048576")
            database.execute(f"PRAGMA synchronous = {'FULL' if scope.fsync else 'OFF'}")
    except BaseException:
        database.close()
        raise
    return database
