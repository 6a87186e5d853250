"""The command line: `outrider serve`, `outrider run` and the other commands.

1. `main` opens the standard files, imports the module of the given command, and lets typer run it. A command is the
   function of its own name in the module or package of its own name. `outrider --help` imports none.
2. Commands that start a proxy (`serve`, `run`, `mount`) and `doctor` take settings as flags. `settings_flags`
   makes the flags from the settings model; `load_settings` merges flags, environment and file, and finds the origin by
   `aws_environment`.
3. Commands for a running proxy talk to it: `warm`, `pin`, `unpin`, `evict` and `verify` through its control bucket
   (`control_client`), `ls`, `stats` and `cluster` through its admin port (`status_client`, `admin_port`).
4. `simulate` runs without a proxy, and `demo` brings a bucket and a job along. `operator` is another program: it places
   pods in Kubernetes.

Exit codes: 0 done, 1 failed, 2 wrong use or settings.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterable
from importlib import import_module
from typing import Annotated

import typer

from outrider import __version__

_EXAMPLES = """Examples:

\b
outrider run -- python train.py           a cache for this one command
outrider mount s3://my-bucket/ ./data     a bucket as files, through a cache
outrider serve --cache-dir /data/cache    a cache for many, by this variable:
export AWS_ENDPOINT_URL=http://127.0.0.1:9480
outrider warm s3://my-bucket/train/       fetch it before it is read
outrider stats                            what it does now, and what is slow
outrider ls                               the datasets, and what is cached
outrider cluster                          the nodes that are one cache
outrider doctor                           what is wrong, and what to do
outrider simulate --cache 10%,25%,50%     how large a cache a job needs
outrider demo                             all of it, with a bucket of its own
"""

app = typer.Typer(
    name="outrider",
    help="S3 caching proxy for training jobs: keeps the shards that were read, fetches those that will be.",
    epilog=_EXAMPLES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
# The commands, as `outrider --help` lists them: each line is the first paragraph of the command's own help.
_COMMANDS = {
    "serve": "Serve S3 on loopback, from the cache where possible.",
    "run": "Run a command whose S3 reads go through a cache of its own.",
    "mount": "Mount objects as files, read-only, for jobs that open paths.",
    "warm": "Fetch objects into the cache of the running proxy; without a list, show the warm-ups.",
    "pin": "Reserve room in the cache for objects, fetch them, and never evict them; without a list, show the pins.",
    "unpin": "End a pin, given by its list or its name. Its objects stay on disk until room is needed.",
    "evict": "Drop the blocks of these objects from the cache. "
    "Blocks in use go when their reads end; pinned blocks stay.",
    "verify": "Verify the checksums of all blocks in the cache, or of those of these objects.",
    "doctor": "Check credentials, origin, clock, disk, ports, members and environment, for a proxy with these flags.",
    "simulate": "Run the proxy's own policy and others over a job in virtual time, "
    "and print the results of each epoch.",
    "ls": "List the datasets of the proxy at --admin, the most recently read first.",
    "stats": "Show the activity of the proxy at --admin: live on a terminal until Ctrl-C, else once.",
    "cluster": "Show the members of the cluster as the node at --admin sees them, or who owns the blocks of an object.",
    "operator": "Place pods near their data in Kubernetes, and let them wait until it is warm.",
    "demo": "Train from a bucket that is made for it, directly and through a cache, and compare.",
}
# Options after the child command of these belong to that command, with or without `--`.
_HAVE_A_CHILD = ("run", "mount")


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
    """The command line with the commands `names`.

    Modules of other commands are not imported: they take a megabyte, and time of each start.
    """
    for name in names:
        settings = {"allow_interspersed_args": name not in _HAVE_A_CHILD}
        app.command(name=name, context_settings=settings)(getattr(import_module(f"outrider.cli.{name}"), name))
    return app


def _with_summaries() -> typer.Typer:
    """The command line that `outrider --help` shows: it imports no command, and runs none."""
    for name, summary in _COMMANDS.items():
        app.command(name=name, help=summary)(lambda: None)
    return app


def _open_standard_files() -> None:
    """Open stdin, stdout or stderr if it is closed: the next file or socket would get its number, and our output."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            # The lowest free number is `fd`: all below it are open.
            os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(fd, True)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115, PTH123 - open as long as the process lives


def main() -> None:
    _open_standard_files()
    words = sys.argv[1:]
    # A shell that completes a line asks without a word, too: by this variable.
    if words == ["--help"] or (not words and "_OUTRIDER_COMPLETE" not in os.environ):
        _with_summaries()()
    # Modules stay: collections while they are imported take a tenth of the start, and find nothing.
    gc.disable()
    command_line = with_commands([name for name in words[:1] if name in _COMMANDS] or _COMMANDS)
    gc.enable()
    command_line()
