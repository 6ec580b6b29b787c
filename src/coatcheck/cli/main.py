"""The program ``coatcheck``: every command is a function in a module of its own, and is registered here."""

from __future__ import annotations

from typing import Annotated

import typer

from coatcheck import __version__
from coatcheck.cli.artifacts import get, head, read, rm
from coatcheck.cli.doctor import doctor
from coatcheck.cli.exec import EXIT_CODES, exec_command
from coatcheck.cli.grep import grep
from coatcheck.cli.lineage import lineage
from coatcheck.cli.query import query
from coatcheck.cli.schema import schema
from coatcheck.cli.serve import serve
from coatcheck.cli.store import ls, stat, sweep, verify

__all__ = ["app"]

app: typer.Typer = typer.Typer(
    name="coatcheck",
    help="The boundary between an AI agent's tools and its model.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: nothing in it is markup, and rich is not even imported
)


def _say_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"coatcheck {__version__}")
        raise typer.Exit


@app.callback()
def coatcheck(
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Show the version, and exit.")
    ] = False,
) -> None:
    """With a callback, a program of one command still wants that command's name."""


@app.command()
def demo() -> None:
    """One call for each way in which a tool call can end, shown as a model would read it.

    It needs no model, no network and no settings, and leaves nothing behind.
    It checks itself: the exit code is 0 only if everything was as it says.
    """
    from coatcheck.cli.demo import demo  # what it shows it with takes longer to import than all other commands

    demo()


# Options after COMMAND are the command's own, with or without a -- before it.
app.command("exec", epilog=EXIT_CODES, context_settings={"allow_interspersed_args": False})(exec_command)
for _command in (get, head, read, grep, query, ls, stat, verify, lineage, sweep, rm, doctor, serve, schema):
    app.command()(_command)
