"""Whether a store works, and what its server really does: ``doctor``."""

from __future__ import annotations

import os
import secrets
import shutil
import stat
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from anyio import to_thread

from coatcheck.artifacts.directory import DirectoryStore
from coatcheck.artifacts.findings import Diagnosis, Finding
from coatcheck.artifacts.s3.store import S3Store
from coatcheck.cli.edge import WRONG, command
from coatcheck.cli.output import complain, print_json, print_lines
from coatcheck.cli.settings import JsonOption, StoreOption, chosen_store
from coatcheck.errors import ConfigurationError, StoreError

__all__ = ["doctor"]

_LITTLE_ROOM = 1 << 30


@command()
async def doctor(
    store: StoreOption = None,
    make_bucket: Annotated[
        bool, typer.Option("--make-bucket", help="Make the bucket of a store on S3 first, if there is none.")
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Find out whether a store works, and what its server really does, by doing it.

    What it makes lies in a folder of its own, and is removed in the end. The server of a store on S3 may lack much that
    is dealt with: a line that begins with > says how, or what you can do.

    Exit codes: 0 the store works, 1 it does not, 2 usage.
    """
    chosen = chosen_store(store)
    if make_bucket:
        await _make_bucket(chosen)
    if isinstance(chosen, S3Store):
        diagnosis = await chosen.probe()
    elif isinstance(chosen, DirectoryStore):
        diagnosis = await _examine_directory(chosen)
    else:
        raise ConfigurationError("doctor knows nothing of a store of this kind")
    if as_json:
        print_json(diagnosis.findings)
    else:
        print_lines(_table(diagnosis))
    return 0 if diagnosis.works else WRONG


async def _make_bucket(store: object) -> None:
    if not isinstance(store, S3Store):
        raise ConfigurationError("--make-bucket is for a store on S3")
    make = await to_thread.run_sync(_load_make_bucket)
    complain("the bucket was made" if await make(store) else "the bucket is there already")


def _load_make_bucket():  # type: ignore[no-untyped-def]  # an import of botocore, which has no types
    try:
        from coatcheck.artifacts.s3.doctor.bucket import make_bucket
    except ImportError as error:
        raise ConfigurationError(
            f"a store on S3 needs the extra s3: install coatcheck[s3] ({error.name} is missing)"
        ) from None
    return make_bucket


def _table(diagnosis: Diagnosis) -> Sequence[str]:
    lines = [diagnosis.place]
    width = max(len(finding.check) for finding in diagnosis.findings)
    for finding in diagnosis.findings:
        mark = "!" if finding.blocking else " "
        lines.append(f"{mark} {finding.check:<{width}}  {finding.verdict:<7}  {finding.detail}")
        if finding.consequence and finding.verdict != "ok":
            lines.append(f"  {'':<{width}}  {'':<7}  > {finding.consequence}")
    blocking = sum(finding.blocking for finding in diagnosis.findings)
    lines.append(
        "the store works" if diagnosis.works else f"the store does not work: see {blocking} of the lines, marked !"
    )
    return lines


async def _examine_directory(store: DirectoryStore) -> Diagnosis:
    """What there is to find out about a directory, which is not made for it."""
    findings = await to_thread.run_sync(_look_at, store.path)
    if findings[0].verdict == "ok":
        try:
            async with store:
                findings.append(Finding("settings", "ok", "the store opens"))
        except (ConfigurationError, StoreError) as error:
            findings.append(Finding("settings", "failed", str(error), blocking=True))
    return Diagnosis(f"directory {store.path}", tuple(findings))


def _look_at(path: Path) -> list[Finding]:
    """The directory as the system shows it. It blocks."""
    there = path
    while not there.exists() and there != there.parent:
        there = there.parent
    findings = [_check_path(path, there)]
    if not findings[0].blocking:
        findings += [_check_mode(path), _check_room(there), _check_writing(there)]
    return findings


def _check_path(path: Path, there: Path) -> Finding:
    if not there.is_dir():
        return Finding("reach", "failed", f"{there} is no directory", "name another path", blocking=True)
    if not os.access(there, os.W_OK | os.X_OK):
        return Finding("reach", "failed", f"{there} cannot be written to", "let it belong to this user", blocking=True)
    if there != path:
        return Finding("reach", "absent", "there is no store yet", "the first put makes it")
    return Finding("reach", "ok", "the directory is there")


def _check_mode(path: Path) -> Finding:
    try:
        about = path.stat()
    except FileNotFoundError:
        return Finding("mode", "unknown", "there is no store yet", "it is made with mode 0700")
    mode = stat.S_IMODE(about.st_mode)
    if about.st_uid != os.geteuid():
        return Finding(
            "mode", "wrong", f"it belongs to user {about.st_uid}", "whoever owns it can read and change artifacts"
        )
    if mode & 0o077:
        return Finding("mode", "wrong", f"its mode is {mode:04o}: other users may get in", f"chmod 700 {path}")
    return Finding("mode", "ok", f"its mode is {mode:04o}")


def _check_room(there: Path) -> Finding:
    free = shutil.disk_usage(there).free
    seen = f"{free / 1e9:.1f} GB are free"
    if free < _LITTLE_ROOM:
        return Finding("room", "wrong", seen, "sweep, say max_bytes, or make room: a put that does not fit is refused")
    return Finding("room", "ok", seen)


def _check_writing(there: Path) -> Finding:
    """Write a small file and flush it, as a put with ``fsync`` does."""
    file = there / f".coatcheck-doctor-{secrets.token_hex(8)}"
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(descriptor, b"x" * 4096)
            begun = time.perf_counter()
            os.fsync(descriptor)
            took = time.perf_counter() - begun
        finally:
            os.close(descriptor)
            file.unlink()
    except OSError as error:
        seen = f"a file cannot be written: {error.strerror}"
        return Finding("writing", "failed", seen, "see to the disk, and to who may write to it", blocking=True)
    return Finding("writing", "ok", f"a file can be written; to flush one takes {1000 * took:.1f} ms (fsync=true)")
