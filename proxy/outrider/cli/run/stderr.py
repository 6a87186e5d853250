"""Lines of `outrider run` and `outrider mount` on stderr, whose errors never change the command's end."""

from __future__ import annotations

import contextlib
import os
import sys

import typer


def say(words: str) -> None:
    write(f"outrider: {words}")


def write(line: str) -> None:
    # An error of stderr (a full disk, a closed pipe) must not make a job fail that succeeded.
    with contextlib.suppress(OSError):
        typer.echo(line, err=True)


def flush_stderr() -> None:
    """Flush stderr, and give up what it does not take: else Python would try again at exit, and exit with 120."""
    try:
        sys.stderr.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stderr.fileno())
        os.close(nowhere)
