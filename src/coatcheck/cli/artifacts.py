"""One artifact: ``get``, ``head``, ``read``, ``rm``.

What is missing, expired, in another scope or no ref at all is one answer, as it is in the store.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from pathlib import Path
from typing import Annotated

import typer

from coatcheck.artifacts.meta import ArtifactMeta
from coatcheck.artifacts.port import ArtifactReader
from coatcheck.cli.edge import WRONG, command
from coatcheck.cli.output import complain, goes_to_terminal, harmless, print_json, print_lines, spell_time, write
from coatcheck.cli.progress import progress
from coatcheck.cli.settings import JsonOption, ScopeOption, StoreOption, chosen_scope, readable_store
from coatcheck.errors import IntegrityError, InvalidRange
from coatcheck.readers.locating import locate_tail, locate_value
from coatcheck.readers.ranges import CharCutter, LineCutter, parse_lines, parse_slice
from coatcheck.readers.refs import ReaderError, clean_ref
from coatcheck.results.binary import is_textual

__all__ = ["get", "head", "missing", "read", "rm"]

_MOST_LINES = 10**15

RefArgument = Annotated[
    str,
    typer.Argument(
        metavar="REF", help="The ref, as a ticket names it: art_...", show_default=False, callback=clean_ref
    ),
]


def missing(ref: str) -> str:
    """The one sentence for a ref that gives nothing."""
    shown = ref if len(ref) <= 64 else f"{ref[:63]}…"
    return f"there is nothing under the ref {harmless(shown)!r} in this scope"


@command()
async def get(
    ref: RefArgument,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write it there, and only if all of it is as it was put."),
    ] = None,
    store: StoreOption = None,
    scope: ScopeOption = None,
) -> int:
    """Write an artifact to standard output or into a file.

    It is compared with its digest on the way. A file is there when all of it was right; what went to standard output
    cannot be taken back, so look at the exit code.

    Exit codes: 0 done, 1 nothing there or damaged or not reachable, 2 usage.
    """
    whose = chosen_scope(scope)
    async with readable_store(store) as opened, opened.open(whose, ref) as reader:
        if reader is None:
            complain(missing(ref))
            return WRONG
        if output is None:
            with progress("get", reader.meta.bytes, shown=not goes_to_terminal()) as advance:
                await _copy(reader, write, advance)
            return 0
        with _published(output) as put, progress("get", reader.meta.bytes) as advance:
            await _copy(reader, put, advance)
    return 0


@command()
async def head(
    ref: RefArgument, store: StoreOption = None, scope: ScopeOption = None, as_json: JsonOption = False
) -> int:
    """Show what is known of an artifact, without its payload.

    Exit codes: 0 done, 1 nothing there or damaged or not reachable, 2 usage.
    """
    whose = chosen_scope(scope)
    async with readable_store(store) as opened:
        meta = await opened.head(whose, ref)
    if meta is None:
        complain(missing(ref))
        return WRONG
    if as_json:
        print_json([meta])
    else:
        print_lines(_facts(meta))
    return 0


@command()
async def read(
    ref: RefArgument,
    lines: Annotated[
        str | None, typer.Option("--lines", metavar="A:B", help="Lines A to B, counted from 1, B included.")
    ] = None,
    chars: Annotated[
        str | None, typer.Option("--chars", metavar="A:B", help="Characters, counted from 0, B not included.")
    ] = None,
    byte_range: Annotated[
        str | None, typer.Option("--bytes", metavar="A:B", help="Bytes, counted from 0, B not included.")
    ] = None,
    first: Annotated[
        int | None, typer.Option("--head", metavar="N", min=1, help="So many lines from the start.")
    ] = None,
    tail: Annotated[int | None, typer.Option("--tail", metavar="N", min=1, help="So many lines up to the end.")] = None,
    path: Annotated[
        str | None, typer.Option("--path", metavar="PATH", help="Of JSON the one value there: '$.rows[3].mean'.")
    ] = None,
    store: StoreOption = None,
    scope: ScopeOption = None,
) -> int:
    """Print a stored text, or a part of it, exactly as it is.

    Either end of a range may be left out: 100: is all from there on. What is past the end is nothing, and no error.
    A line ends with its newline character. Of a binary artifact only --bytes can be read.

    Exit codes: 0 done, 1 nothing there or binary or damaged or not reachable, 2 usage.
    """
    if sum(part is not None for part in (lines, chars, byte_range, first, tail, path)) > 1:
        raise InvalidRange(
            "--lines, --chars, --bytes, --head, --tail and --path say different things: give one of them"
        )
    if tail is not None or path is not None:
        return await _read_span(ref, tail, path, store, scope)
    if first is not None:
        lines = f":{min(first, _MOST_LINES)}"
    cutter = (
        LineCutter(parse_lines(lines))
        if lines is not None
        else CharCutter(parse_slice(":" if chars is None else chars))
    )
    start, end = parse_slice(":" if byte_range is None else byte_range)
    whose = chosen_scope(scope)
    async with readable_store(store) as opened, opened.open(whose, ref, start, end) as reader:
        if reader is None:
            complain(missing(ref))
            return WRONG
        if byte_range is not None:
            await _copy(reader, write)
            return 0
        media_type = reader.meta.media_type
        if not is_textual(media_type):
            complain(f"{ref} is binary ({media_type}): read --bytes of it, or get it into a file")
            return WRONG
        try:
            async for piece in _cut(reader, cutter):
                write(piece)
        except UnicodeDecodeError:
            complain(f"{ref} calls itself {media_type} and is no UTF-8 from here on: read --bytes of it")
            return WRONG
    return 0


async def _read_span(ref: str, tail: int | None, path: str | None, store: str | None, scope: str | None) -> int:
    """Print what only a look at the payload tells where it is: the last lines, or a value within JSON."""
    whose = chosen_scope(scope)
    async with readable_store(store) as opened:

        def open_(start: int, end: int | None) -> AbstractAsyncContextManager[ArtifactReader | None]:
            return opened.open(whose, ref, start, end)

        meta = await opened.head(whose, ref)
        if meta is None:
            complain(missing(ref))
            return WRONG
        if not is_textual(meta.media_type):
            complain(f"{ref} is binary ({meta.media_type}): read --bytes of it, or get it into a file")
            return WRONG
        try:
            span = await (locate_value(open_, path) if path is not None else locate_tail(open_, meta.bytes, tail or 1))
        except ReaderError as error:
            complain(str(error))
            return WRONG
        if span is not None:
            async with open_(*span) as reader:
                if reader is not None:
                    await _copy(reader, write)
                    if path is not None:
                        write(b"\n")
                    return 0
    complain(missing(ref))
    return WRONG


@command()
async def rm(
    refs: Annotated[list[str], typer.Argument(metavar="REF", help="Refs, as tickets name them.", show_default=False)],
    store: StoreOption = None,
    scope: ScopeOption = None,
) -> int:
    """Remove artifacts, for everyone who holds a ticket for them.

    Exit codes: 0 all removed, 1 some of them were not there or could not be removed, 2 usage.
    """
    code = 0
    whose = chosen_scope(scope)
    async with readable_store(store) as opened:
        for ref in dict.fromkeys(refs):
            try:
                found = await opened.head(whose, ref) is not None
            except IntegrityError:  # damaged, and there
                found = True
            if found:
                await opened.delete(whose, ref)
            else:
                complain(missing(ref))
                code = WRONG
    return code


def _facts(meta: ArtifactMeta) -> list[str]:
    """A meta for a person, a fact a line."""
    facts = {
        "ref": meta.ref,
        "kind": meta.kind,
        "media type": meta.media_type,
        "bytes": str(meta.bytes),
        "digest": meta.digest,
        "created": spell_time(meta.created_at),
        "expires": spell_time(meta.expires_at) if meta.expires_at else "never",
    }
    if meta.label is not None:
        facts["label"] = meta.label
    for name, text in (meta.origin or {}).items():
        facts[f"origin, {name}"] = text
    for index, parent in enumerate(meta.parents, 1):
        facts[f"parent {index}"] = parent
    return [f"{name}: {text}" for name, text in facts.items()]


async def _copy(
    reader: ArtifactReader, put: Callable[[bytes], object], advance: Callable[[int], None] | None = None
) -> None:
    async for chunk in reader:
        put(chunk)
        if advance is not None:
            advance(len(chunk))


async def _cut(reader: ArtifactReader, cutter: LineCutter | CharCutter) -> AsyncIterator[bytes]:
    async for chunk in reader:
        yield cutter.feed(chunk)
        if cutter.done:
            return
    if isinstance(cutter, CharCutter):
        yield cutter.feed(b"", last=True)


@contextmanager
def _published(path: Path) -> Iterator[Callable[[bytes], object]]:
    """A new file that takes the place of ``path`` when all went well, and is gone when anything did not.

    Raises:
        OSError: there is something else than a file.
    """
    target = Path(os.path.realpath(path))  # where it is a link, the link stays
    if target.exists() and not target.is_file():
        raise OSError(f"{path} is there and is no file: without -o the artifact goes to standard output")
    beside = target.with_name(f".coatcheck-{secrets.token_hex(8)}.part")
    try:
        with open(beside, "xb") as file:
            if target.exists():  # what was there is replaced, and not who may read it
                os.fchmod(file.fileno(), target.stat().st_mode & 0o777)
            yield file.write
        beside.replace(target)
    finally:
        with suppress(FileNotFoundError):
            beside.unlink()
