"""The doors for people: `outrider serve`, `run` and others. Exit codes: 0 done, 1 failed, 2 wrong use or settings."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from importlib import import_module
from typing import Annotated, Any

import typer

from outrider import __version__

_EXAMPLES = """Examples:

\b
outrider run -- python train.py           a cache for this one command
outrider serve --cache-dir /data/cache    a cache for many; tell each of them:
export AWS_ENDPOINT_URL=http://127.0.0.1:9480
outrider warm s3://my-bucket/train/       bring it before it is read
outrider stats                            what it does now, who waits for whom, what was saved
outrider ls                               the datasets, and how much of each is here
outrider doctor                           what is wrong, and what to do
outrider simulate --cache 10%,25%,50%     how large a cache a job needs
outrider bench s3://my-bucket/train/      what it makes of reads of that bucket
"""

app = typer.Typer(
    name="outrider",
    help="S3 caching proxy for training jobs: keeps the shards that were read, fetches those that will be.",
    epilog=_EXAMPLES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
# Each is the function of its own name in the module of its own name. Options after the command of `run` are the
# command's own, with or without `--`.
_COMMANDS: dict[str, dict[str, Any]] = {
    "serve": {},
    "run": {"context_settings": {"allow_interspersed_args": False}},
    "warm": {},
    "pin": {},
    "unpin": {},
    "evict": {},
    "verify": {},
    "doctor": {},
    "simulate": {},
    "bench": {},
    "ls": {},
    "stats": {},
}


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


def with_commands(names: Iterable[str]) -> typer.Typer:
    """The command line with these commands. The modules of the others are not imported: a proxy needs none of them, and
    they take a megabyte and a part of each start."""
    for name in names:
        app.command(name=name, **_COMMANDS[name])(getattr(import_module(f"outrider.cli.{name}"), name))
    return app


def _open_standard_files() -> None:
    """Where one of them is closed, the next file or socket would take its number, and get what is printed."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            # The lowest free number is this one.
            os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(fd, True)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115, PTH123 - for as long as the process lives


def main() -> None:
    _open_standard_files()
    with_commands([name for name in sys.argv[1:2] if name in _COMMANDS] or _COMMANDS)()
