"""The program ``coatcheck``: every command is a function in a module of its own, and is registered here."""

from __future__ import annotations

import typer

from coatcheck.cli.demo import demo

__all__ = ["app"]

app: typer.Typer = typer.Typer(
    name="coatcheck",
    help="The boundary between an AI agent's tools and its model.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def coatcheck() -> None:
    """With a callback, a program of one command still wants that command's name."""


app.command()(demo)
