"""The doors for people: `outrider serve`, `run` and others. Exit codes: 0 done, 1 failed, 2 wrong use or settings."""

from __future__ import annotations

from typing import Annotated

import typer

from outrider import __version__
from outrider.cli import bench, doctor, run, serve, simulate

_EXAMPLES = """Examples:

\b
outrider run -- python train.py           a cache for this one command
outrider serve --cache-dir /data/cache    a cache for many; tell each of them:
export AWS_ENDPOINT_URL=http://127.0.0.1:9480
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
app.command(name="serve")(serve.serve)
# Options after the command are the command's own, with or without `--`.
app.command(name="run", context_settings={"allow_interspersed_args": False})(run.run)
app.command(name="doctor")(doctor.doctor)
app.command(name="simulate")(simulate.simulate)
app.command(name="bench")(bench.bench)


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
