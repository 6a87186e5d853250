"""Reads the /status of a running proxy for `ls`, `stats` and `cluster`, and formats parts of it."""

from __future__ import annotations

import http.client
import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode, urlsplit

import typer
from rich.console import Console

from outrider.cli.admin_port import STATUS_URL, direct, loopback_of
from outrider.cli.load_settings import load
from outrider.cli.settings_flags import Flags
from outrider.settings import Settings

_TIMEOUT_S = 5.0
_WIDE = 1000
_BYTES_MAX = 4 * 1024 * 1024
# The status of an answer that says in words why there is no other; see `http.admin.server`.
_REFUSED = 422
_TEXT_BYTES_MAX = 4096

Status = dict[str, Any]
AsJson = Annotated[bool, typer.Option("--json", help="Print the status of the proxy as JSON.")]


class NoStatus(Exception):
    """The status cannot be read. The text says why, and what to do."""


def place_of(flags: Flags, config: Path | None, environ: Mapping[str, str] = os.environ) -> tuple[str, Settings]:
    """The URL of the admin port, and the settings, which hold its token. Wrong settings end the command with 2."""
    settings = load(flags, config)
    url = environ.get(STATUS_URL)
    if flags["admin"] is None and url:
        return url.rstrip("/"), settings
    host, _, port = settings.admin.rpartition(":")
    return f"http://{loopback_of(host)}:{port}", settings


def status_at(url: str, settings: Settings) -> Status:
    """Raises NoStatus."""
    status = _answer(url, settings, "/status")
    if "verdict" not in status:
        raise NoStatus(f"{url} is no admin port of outrider, or of an older one. Is --admin right?")
    return status


def _answer(url: str, settings: Settings, path: str) -> Status:
    """The JSON object at `path`. Raises NoStatus."""
    if urlsplit(url).scheme not in ("http", "https"):
        raise NoStatus(f"{url} is no URL of an admin port: write http://HOST:PORT.")
    request = urllib.request.Request(f"{url}{path}")  # noqa: S310 - the scheme was checked above
    if settings.admin_token is not None:
        request.add_header("Authorization", f"Bearer {settings.admin_token.get_secret_value()}")
    try:
        with direct().open(request, timeout=_TIMEOUT_S) as reply:
            answer = json.loads(reply.read(_BYTES_MAX))
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 401:
                text = f"{url} needs a token, or does not accept this one: set OUTRIDER_ADMIN_TOKEN."
            elif error.code == _REFUSED:
                text = error.read(_TEXT_BYTES_MAX).decode("utf-8", "replace").strip()
            else:
                text = f"{url} answered {error.code}: that is no admin port of outrider. Is --admin right?"
        raise NoStatus(text) from error
    except OSError as error:
        raise NoStatus(
            f"No outrider answers at {url}. Start one with `outrider serve`, or say where it is: --admin HOST:PORT."
        ) from error
    except (ValueError, http.client.HTTPException) as error:
        raise NoStatus(f"{url} is no admin port of outrider. Is --admin right?") from error
    if not isinstance(answer, dict):
        raise NoStatus(f"{url} is no admin port of outrider, or of an older one. Is --admin right?")
    return answer


def answer_or_exit(url: str, settings: Settings, path: str, query: Mapping[str, str]) -> Status:
    """The answer to a question at the admin port. A failure is printed on stderr and ends the command with 1."""
    try:
        return _answer(url, settings, f"{path}?{urlencode(query, errors='surrogateescape')}")
    except NoStatus as error:
        typer.echo(f"outrider: {shown(str(error))}", err=True)
        raise typer.Exit(1) from error


def status_or_exit(url: str, settings: Settings) -> Status:
    """Like `status_at`; a failure is printed on stderr and ends the command with 1."""
    try:
        return status_at(url, settings)
    except NoStatus as error:
        typer.echo(f"outrider: {error}", err=True)
        raise typer.Exit(1) from error


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
