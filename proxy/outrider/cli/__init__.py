"""The doors for people: `outrider serve`, `run`, `doctor`. Exit codes: 0 done, 1 failed, 2 wrong use or settings."""

from __future__ import annotations

from typing import Annotated

import typer

from outrider import __version__
from outrider.cli import serve

app = typer.Typer(
    name="outrider",
    help="S3 caching proxy for training jobs: keeps the shards that were read, fetches those that will be.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command(name="serve")(serve.serve)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"outrider {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    app()
