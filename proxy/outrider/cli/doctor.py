"""`outrider doctor`: what would keep a proxy with these settings from serving a job well, and what to do about it."""

from __future__ import annotations

import asyncio
import http.client
import logging
import os
from collections.abc import AsyncIterator, Iterator
from typing import Annotated
from urllib.parse import urlsplit

import typer

from outrider.cli import environment, options
from outrider.cli.check_machine import (
    cache_findings,
    check_open_files,
    check_port,
    direct,
    job_findings,
    loopback_of,
    running_outrider,
)
from outrider.cli.check_origin import origin_findings
from outrider.cli.findings import Finding, ok, show, show_json
from outrider.settings import Settings

# A kubelet gives a probe 1 s by default; Docker 30.
_PROBE_TIMEOUT_S = 2.0


def doctor(
    origin: options.Origin = None,
    region: options.Region = None,
    listen: options.Listen = None,
    admin: options.Admin = None,
    cache_dir: options.CacheDir = None,
    cache_size: options.CacheSize = None,
    min_free: options.MinFree = None,
    block_size: options.BlockSize = None,
    auth: options.Auth = None,
    clients: options.Clients = None,
    tls_cert: options.TlsCert = None,
    tls_key: options.TlsKey = None,
    config: options.Config = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON array instead of lines.")] = False,
    health: Annotated[
        bool, typer.Option("--health", help="Only ask whether the proxy at --admin is ready (for a HEALTHCHECK).")
    ] = False,
    probe: Annotated[
        str | None, typer.Option(help="Like --health, of the admin port at this URL.", metavar="URL")
    ] = None,
) -> None:
    """Check credentials, origin, clock, disk, ports and environment, for a proxy with these flags.

    Each line is ok, warn or fail, with what to do. Exits with 0 when nothing fails, 1 otherwise, 2 for wrong settings.
    """
    flags = dict(locals())
    for name in ("config", "as_json", "health", "probe"):
        del flags[name]
    if probe is not None:
        raise typer.Exit(_probe(probe))
    if health:
        host, _, port = environment.load(flags, config, {}).admin.rpartition(":")
        raise typer.Exit(_probe(f"http://{loopback_of(host)}:{port}"))
    settings, _ = environment.load_with_origin(flags, config, {}, os.environ)
    # What the rooms would log, the findings tell.
    logging.getLogger("outrider").setLevel(logging.ERROR)
    healthy = (show_json if as_json else show)(_findings(settings))
    raise typer.Exit(0 if healthy else 1)


def _findings(settings: Settings) -> Iterator[Finding]:
    yield ok("settings", f"valid: auth {settings.auth}, freshness {settings.freshness}, policy {settings.policy}")
    yield from asyncio.run(_collected(origin_findings(settings)))
    status = running_outrider(settings)
    version = None if status is None else str(status["version"])
    listens = status is not None and status["listen"] == settings.listen
    yield from cache_findings(settings, listens)
    yield check_port("--listen", settings.listen, version if listens else None)
    yield check_port("--admin", settings.admin, version)
    yield check_open_files()
    yield from job_findings(settings, os.environ)


async def _collected(findings: AsyncIterator[Finding]) -> list[Finding]:
    return [finding async for finding in findings]


def _probe(url: str) -> int:
    """0: ready; 1: not, with a line that says why."""
    if urlsplit(url).scheme not in ("http", "https"):
        typer.echo(f"outrider: --probe {url}: must be http://HOST:PORT of the admin port", err=True)
        return 2
    target = url if urlsplit(url).path.strip("/") else f"{url.rstrip('/')}/readyz"
    try:
        with direct().open(target, timeout=_PROBE_TIMEOUT_S):
            return 0
    except (OSError, ValueError, http.client.HTTPException) as error:
        typer.echo(f"outrider: {target}: not ready: {error}", err=True)
        return 1
