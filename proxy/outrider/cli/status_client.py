"""The /status of a running proxy for `ls`, `stats` and `cluster`, and how parts of it are printed."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated
from urllib.parse import urlencode

import typer
from rich.console import Console

from outrider.cli.admin_port import STATUS_URL, NoStatus, Status, answer_at, status_at, url_of
from outrider.cli.load_settings import load
from outrider.cli.settings_flags import Flags

_WIDE = 1000

AsJson = Annotated[bool, typer.Option("--json", help="Print the status of the proxy as JSON.")]


class RunningProxy:
    """The proxy whose admin port the flags, the environment or the file name. Wrong settings end the command with 2."""

    def __init__(self, flags: Flags, config: Path | None, environ: Mapping[str, str] = os.environ) -> None:
        self._settings = load(flags, config)
        named = None if flags["admin"] is not None else environ.get(STATUS_URL)
        self.url = named.rstrip("/") if named else url_of(self._settings)

    def status(self) -> Status:
        """Raises NoStatus."""
        return status_at(self.url, self._settings)

    def status_or_exit(self) -> Status:
        """Like `status`; a failure is printed on stderr and ends the command with 1."""
        try:
            return self.status()
        except NoStatus as error:
            raise _failed(error) from error

    def answer_or_exit(self, path: str, **query: str) -> Status:
        """The answer to a question at the admin port. A failure is printed on stderr and ends the command with 1."""
        try:
            return answer_at(self.url, self._settings, f"{path}?{urlencode(query, errors='surrogateescape')}")
        except NoStatus as error:
            raise _failed(error) from error


def _failed(error: NoStatus) -> typer.Exit:
    typer.echo(f"outrider: {shown(str(error))}", err=True)
    return typer.Exit(1)


def console() -> Console:
    """The console to print on. In a file or a pipe lines are not wrapped."""
    return Console(width=None if sys.stdout.isatty() else _WIDE, highlight=False)


def shown(text: str) -> str:
    """`text` with terminal control characters escaped."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def ago(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
