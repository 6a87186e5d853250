"""`outrider run -- CMD ...`: a proxy for one command, which it outlives by nothing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

import typer

from outrider.adapters.disk.block_dir import UnusableCacheDir
from outrider.adapters.origin.credentials import AwsCredentials
from outrider.adapters.process.system import (
    end_within,
    keep_collections_short,
    keep_memory_small,
    new_event_loop,
    set_up_logs,
)
from outrider.app import last_acts_s, running
from outrider.cli import child, environment, options
from outrider.cli.summary import Summary
from outrider.composition import Outrider
from outrider.core.errors import OriginBroke
from outrider.settings import Settings, SettingsError

SummaryForm = Literal["text", "json", "none"]

# What `run` means where neither flag, environment nor file says otherwise: any free port, the child's output not
# drowned, and no long wait for readers that outlived the child.
_DEFAULTS = {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "log_level": "warning", "drain_s": 1.0}
# Off EC2 the metadata service does not answer: the child is not kept waiting for that.
_CREDENTIALS_WAIT_S = 1.0
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # noqa: S104 - to find one address to connect to


def run(
    command: Annotated[list[str], typer.Argument(metavar="CMD", help="The command and its arguments.")],
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
    domain: options.Domain = None,
    tls_cert: options.TlsCert = None,
    tls_key: options.TlsKey = None,
    freshness: options.Freshness = None,
    policy: options.Policy = None,
    prefetch: options.Prefetch = None,
    verify: options.Verify = None,
    workers: options.Workers = None,
    traces: options.Traces = None,
    log_level: options.LogLevel = None,
    log_format: options.LogFormat = None,
    config: options.Config = None,
    summary: Annotated[SummaryForm, typer.Option(help="The line on stderr at the end.")] = "text",
) -> None:
    """Run a command with its S3 reads going through a cache of its own.

    The command finds the proxy by AWS_ENDPOINT_URL, on a free loopback port. If AWS_ENDPOINT_URL is set already and
    --origin is not given, the bucket is taken to be there. Exits with the command's status.

    Example: outrider run --cache-dir /data/cache -- python train.py
    """
    flags = dict(locals())
    for name in ("command", "config", "summary"):
        del flags[name]
    settings = _settings(flags, config)
    set_up_logs(settings.log_level, settings.log_format)
    keep_memory_small()
    keep_collections_short()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        status = runner.run(_run(settings, command, summary))
    _let_go_of_stderr()
    raise typer.Exit(status)


def _settings(flags: dict[str, object], config: Path | None) -> Settings:
    settings, name = environment.load_with_origin(flags, config, _DEFAULTS, os.environ)
    if name is not None:
        _say(f"the bucket is at {settings.origin}, as {name} says (--origin URL to name another)")
    found = environment.endpoint_in(os.environ) or environment.endpoint_in_profile(os.environ)
    # What was found and passed over is no reason to take the job's bucket for one of AWS.
    environment.refuse_itself(settings.origin or (found and found[1]), settings.listen)
    return settings


async def _run(settings: Settings, command: list[str], form: SummaryForm) -> int:
    signals = child.Signals()
    signals.install()
    try:
        async with running(settings) as outrider:
            status = await _child(outrider, command, signals)
            end_within(settings.drain_s + last_acts_s(outrider), status)
    except child.CannotStart as error:
        _say(str(error))
        return error.status
    except (UnusableCacheDir, SettingsError) as error:
        raise options.refused(error) from error
    except OSError as error:
        raise options.refused(OSError(f"cannot start: {error}")) from error
    finally:
        signals.remove()
    # After the drain: what the child left half read is counted by then.
    summary = Summary.of(outrider.metrics)
    if form == "text":
        _say(summary.text())
    elif form == "json":
        _write(summary.json())
    return status


async def _child(outrider: Outrider, command: list[str], signals: child.Signals) -> int:
    """Run it to its end; its exit status."""
    environ = environment.for_child(
        os.environ,
        endpoint=_reachable(outrider.endpoint),
        admin=_reachable(f"http://{outrider.admin}"),
        region=outrider.settings.region or await outrider.credentials.region(),
        needs_keys=outrider.settings.auth == "loopback" and await _has_no_keys(outrider.credentials),
    )
    if signals.ended_by is not None:
        return 128 + signals.ended_by
    process = child.start(command, environ)
    signals.to(process)
    # The AWS chain is walked while the child starts, so that its first read need not wait for that; not before, since
    # the import of it would delay the child by half a second.
    finding = asyncio.create_task(outrider.credentials.find_early(), name="credentials")
    try:
        return child.status_of(await child.ended(process))
    finally:
        finding.cancel()
        await asyncio.gather(finding, return_exceptions=True)


async def _has_no_keys(credentials: AwsCredentials) -> bool:
    """Whether the child, which finds what we find, has no credentials at all."""
    if environment.names_credentials(os.environ):
        return False
    try:
        async with asyncio.timeout(_CREDENTIALS_WAIT_S):
            return await credentials.current() is None
    except TimeoutError:
        return True
    except OriginBroke:
        return False  # a way to credentials is named, and fails: each read will say how


def _reachable(url: str) -> str:
    """Of a proxy that listens everywhere, the loopback address."""
    parts = urlsplit(url)
    host, _, port = parts.netloc.rpartition(":")
    return f"{parts.scheme}://{_EVERYWHERE.get(host, host)}:{port}"


def _say(words: str) -> None:
    _write(f"outrider: {words}")


def _write(line: str) -> None:
    # A job that succeeded stays so whatever became of stderr: a full disk, a pipe that nobody reads.
    with contextlib.suppress(OSError):
        typer.echo(line, err=True)


def _let_go_of_stderr() -> None:
    """What it does not take is lost: Python would try again at its exit, and make the status 120."""
    try:
        sys.stderr.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stderr.fileno())
        os.close(nowhere)
