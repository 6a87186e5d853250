"""Runs the checks of `outrider doctor` and prints what they found, or only asks whether a proxy is ready."""

from __future__ import annotations

import asyncio
import http.client
import logging
import os
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Annotated
from urllib.parse import urlsplit

import typer

from outrider.cli.admin_port import WrongToken, direct, running_outrider, url_of
from outrider.cli.doctor.finding import Diagnosis, fail, ok, show, show_json
from outrider.cli.doctor.job_checks import job_findings
from outrider.cli.doctor.machine_checks import cache_findings, check_open_files, check_port
from outrider.cli.doctor.origin_checks import endpoint_findings, origin_findings
from outrider.cli.load_settings import load, load_with_origin
from outrider.cli.settings_flags import Config, Flags, with_settings
from outrider.settings import Settings

# A kubelet gives a probe 1 s by default; Docker 30.
_PROBE_TIMEOUT_S = 2.0


@with_settings(
    "origin", "region", "listen", "admin", "cache_dir", "cache_size", "min_free", "block_size", "auth", "clients",
    "tls_cert", "tls_key", "peers", "peer_listen", "peer_address", "peer_name", "peer_key_file", "peer_zone",
    "peer_tls_cert", "peer_tls_key", "peer_tls_ca",
)  # fmt: skip
def doctor(
    flags: Flags,
    config: Config = None,
    url: Annotated[
        str | None,
        typer.Argument(metavar="[s3://BUCKET/PREFIX]", help="A bucket whose replies are looked at, too."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON array instead of lines.")] = False,
    health: Annotated[
        bool, typer.Option("--health", help="Only ask whether the proxy at --admin is ready (for a HEALTHCHECK).")
    ] = False,
    probe: Annotated[
        str | None, typer.Option(help="Like --health, for the admin port at this URL.", metavar="URL")
    ] = None,
    endpoint: Annotated[
        str | None,
        typer.Option(help="Only check the proxy at this URL, as a job would reach it from here.", metavar="URL"),
    ] = None,
) -> None:
    """Check credentials, origin, clock, disk, ports, members and environment, for a proxy with these flags.

    With the name of a bucket it also reports how the bucket differs from AWS S3.

    Each line is ok, warn or fail, with what to do. Exits with 0 when nothing fails, 1 otherwise, 2 for wrong settings.
    """
    if probe is not None:
        raise typer.Exit(_probe(probe))
    if endpoint is not None:
        if not _is_http(endpoint) or urlsplit(endpoint).path.strip("/"):
            raise typer.BadParameter(f"--endpoint {endpoint}: must be http://HOST:PORT of the S3 port.")
        raise typer.Exit(_report(asyncio.run(_collected(endpoint_findings(endpoint))), as_json))
    if health:
        raise typer.Exit(_probe(url_of(load(flags, config))))
    if url is not None and not _is_url(url):
        raise typer.BadParameter(f"{url}: write s3://BUCKET/PREFIX.")
    settings, _ = load_with_origin(flags, config, {}, os.environ)
    raise typer.Exit(_report(_findings(settings, url), as_json))


def _report(findings: Iterable[Diagnosis], as_json: bool) -> int:
    # The findings say what the parts of the proxy would log.
    logging.getLogger("outrider").setLevel(logging.ERROR)
    return 0 if (show_json if as_json else show)(findings) else 1


def _findings(settings: Settings, url: str | None) -> Iterator[Diagnosis]:
    yield ok("settings", f"valid: auth {settings.auth}, freshness {settings.freshness}, policy {settings.policy}")
    yield from asyncio.run(_collected(origin_findings(settings, url)))
    status = None
    try:
        status = running_outrider(settings)
    except WrongToken:
        yield fail(
            "admin token", f"{settings.admin}: needs a token, or does not accept this one",
            "Set OUTRIDER_ADMIN_TOKEN to the proxy's. Without it, the lines below take that proxy for a stranger.",
        )  # fmt: skip
    version = None if status is None else str(status["version"])
    listens = status is not None and status["listen"] == settings.listen
    yield from cache_findings(settings, listens)
    elsewhere = (status["origin"] or "AWS S3") if status is not None and status["origin"] != settings.origin else None
    yield check_port("--listen", settings.listen, version if listens else None, elsewhere)
    yield check_port("--admin", settings.admin, version)
    if settings.peer_listen_at is not None:
        member = status.get("cluster") if status is not None and listens else None
        yield check_port("--peer-listen", settings.peer_listen_at, version if member else None)
        yield from _peer_findings(settings, is_running=bool(member))
    yield check_open_files()
    yield from job_findings(settings, os.environ)


def _peer_findings(settings: Settings, *, is_running: bool) -> Iterator[Diagnosis]:
    """Not imported by a node that is alone."""
    from outrider.cli.doctor.peer_checks import peer_findings

    return iter(asyncio.run(_collected(peer_findings(settings, is_running=is_running))))


async def _collected(findings: AsyncIterator[Diagnosis]) -> list[Diagnosis]:
    return [finding async for finding in findings]


def _is_http(url: str) -> bool:
    return urlsplit(url).scheme in ("http", "https") and urlsplit(url).netloc != ""


def _is_url(url: str) -> bool:
    return url.startswith("s3://") and url.removeprefix("s3://").partition("/")[0] != ""


def _why(error: Exception) -> str:
    """The error of the system, without the `<urlopen error ...>` that urllib puts around it."""
    reason = getattr(error, "reason", None)
    return (reason.strerror if isinstance(reason, OSError) else None) or str(error)


def _probe(url: str) -> int:
    """Ask the admin port at `url`. 0: ready; 1: not ready, with a line on stderr that says why; 2: not a URL."""
    if not _is_http(url):
        typer.echo(f"outrider: --probe {url}: must be http://HOST:PORT of the admin port", err=True)
        return 2
    target = url if urlsplit(url).path.strip("/") else f"{url.rstrip('/')}/readyz"
    try:
        with direct().open(target, timeout=_PROBE_TIMEOUT_S):
            return 0
    except (OSError, ValueError, http.client.HTTPException) as error:
        typer.echo(f"outrider: {target}: not ready: {_why(error)}", err=True)
        return 1
