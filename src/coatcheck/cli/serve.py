"""Artifacts over HTTP: ``serve``.

Who may read what is a list of tokens, in a file or in the variable ``COATCHECK_TOKENS``, one on a line with its scope::

    # make one with: python -c 'import secrets; print(secrets.token_urlsafe(32))'
    0n8bcEXAMPLEuJmG4  acme/ann/build-7

A token is never an argument: every user of the machine could read it there.
"""

from __future__ import annotations

import os
import stat
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from anyio import to_thread

from coatcheck.cli.edge import command
from coatcheck.cli.output import complain, print_lines
from coatcheck.cli.settings import ScopeOption, StoreOption, chosen_scope, chosen_store, parse_scope
from coatcheck.errors import ConfigurationError
from coatcheck.scope import Scope

if TYPE_CHECKING:
    from coatcheck.service import Authenticate

__all__ = ["serve"]

_TOKENS = "COATCHECK_TOKENS"
_MOST_BYTES = 1 << 24


@command(signals=False)
async def serve(
    store: StoreOption = None,
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="The address on which to listen.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="The port; 0 is one that is free.")] = 0,
    token_file: Annotated[
        str | None,
        typer.Option(
            "--token-file",
            envvar="COATCHECK_TOKEN_FILE",
            metavar="FILE",
            help="Who may read what: a token and its scope on each line, and comments after #. "
            f"Without it, the variable {_TOKENS} is read in the same way.",
        ),
    ] = None,
    open_to_all: Annotated[
        bool,
        typer.Option("--open", help="Ask for no token: every user of this machine, and only of it, reads --scope."),
    ] = False,
    scope: ScopeOption = None,
    connections: Annotated[int, typer.Option("--connections", min=1, help="How many there may be at once.")] = 1000,
    drain: Annotated[
        float, typer.Option("--drain", min=0.1, metavar="SECONDS", help="How long requests may go on after a signal.")
    ] = 30.0,
) -> int:
    """Serve artifacts over HTTP, to be read only, until a signal ends it.

    Prints the URL as soon as it listens: GET URL lists what the token's scope has, GET URL/REF is a payload, GET
    URL/REF/meta what is known of it. Lets requests that are under way come to their end when it is told to end.

    Exit codes: 0 ended by a signal, 1 the store or the address cannot be used, 2 usage.
    """
    try:
        from coatcheck.service import artifact_app
        from coatcheck.service import serve as run
        from coatcheck.service.server import check_loopback
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "coatcheck":
            raise
        raise ConfigurationError(
            f"serve needs the extra http: install coatcheck[http] ({error.name} is missing)"
        ) from None
    chosen = chosen_store(store)
    authenticate = await to_thread.run_sync(_authentication, token_file, open_to_all, scope)
    near = await to_thread.run_sync(check_loopback, host)
    if open_to_all and not near:
        raise ConfigurationError("--open is for this machine alone: say --host 127.0.0.1, or give tokens")
    if not near:
        complain("tokens and artifacts travel in the clear here: put a proxy that ends TLS in front")
    app = artifact_app(chosen, authenticate=authenticate)
    async with chosen:
        await run(
            app,
            host=host,
            port=port,
            listening=lambda url: print_lines([f"{url}/artifacts"]),
            connections=connections,
            drain=timedelta(seconds=drain),
        )
    return 0


def _authentication(token_file: str | None, open_to_all: bool, scope: str | None) -> Authenticate:
    """Who is let in."""
    from coatcheck.service import OnLoopback, Tokens

    said = os.environ.get(_TOKENS)
    if sum([token_file is not None, said is not None, open_to_all]) != 1:
        raise ConfigurationError(
            f"say who may read: one of --token-file FILE, the variable {_TOKENS}, and --open (this machine alone)"
        )
    if open_to_all:
        return OnLoopback(chosen_scope(scope))
    if token_file is None:
        return Tokens(_parse_tokens(_TOKENS, said or ""))
    return Tokens(_parse_tokens("--token-file", _read(Path(token_file))))


def _read(path: Path) -> str:
    with path.open("rb") as file:
        about = os.fstat(file.fileno())
        if stat.S_ISREG(about.st_mode) and about.st_mode & 0o007:
            complain("warning: other users may read or write the token file: chmod 600 it")
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise ConfigurationError(f"--token-file has more than {_MOST_BYTES} bytes")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigurationError("--token-file is not UTF-8") from None


def _parse_tokens(where: str, text: str) -> dict[str, Scope]:
    """The scope of each token. No error quotes a line, which holds a secret."""
    scopes: dict[str, Scope] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        token, *rest = words
        if len(rest) > 1 and rest[1].startswith("#"):
            rest = rest[:1]
        if len(rest) != 1:
            raise ConfigurationError(f"{where}, line {number}: write a token and its scope, with a space between them")
        if token in scopes:
            raise ConfigurationError(f"{where}, line {number}: this token is there twice")
        try:
            scopes[token] = parse_scope(rest[0])
        except ConfigurationError as error:
            raise ConfigurationError(f"{where}, line {number}: {error}") from None
    if not scopes:
        raise ConfigurationError(f"{where} has no token: write one on each line, and its scope after a space")
    return scopes
