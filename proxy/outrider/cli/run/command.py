"""Starts the proxy, runs the command of `outrider run` with it, and ends with the command's status."""

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
from outrider.cli import aws_environment
from outrider.cli.admin_port import loopback_of
from outrider.cli.load_settings import load_with_origin, refuse_itself, refused
from outrider.cli.run import child_process
from outrider.cli.run.child_environment import for_child
from outrider.cli.run.summary import Summary
from outrider.cli.settings_flags import ALL, Config, Flags, with_settings
from outrider.composition import Outrider
from outrider.core.errors import OriginBroke
from outrider.settings import Settings, SettingsError

SummaryForm = Literal["text", "json", "none"]

# Defaults of `run` that differ from those of `serve`: any free port, no log lines among the child's output, and no long
# wait for readers that outlive the child.
_DEFAULTS = {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "log_level": "warning", "drain_s": 1.0}
# The start of the child waits no longer than this for credentials: off EC2 the metadata service does not answer.
_CREDENTIALS_WAIT_S = 1.0


@with_settings(*ALL)
def run(
    command: Annotated[list[str], typer.Argument(metavar="CMD", help="The command and its arguments.")],
    flags: Flags,
    config: Config = None,
    summary: Annotated[SummaryForm, typer.Option(help="Form of the last line on stderr.")] = "text",
) -> None:
    """Run a command whose S3 reads go through a cache of its own.

    The command finds the proxy by AWS_ENDPOINT_URL, on a free loopback port. If AWS_ENDPOINT_URL is set already and
    --origin is not given, it names the origin. Exits with the status of the command.

    Example: outrider run --cache-dir /data/cache -- python train.py
    """
    settings = _settings(flags, config)
    set_up_logs(settings.log_level, settings.log_format)
    keep_memory_small()
    keep_collections_short()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        status = runner.run(_run(settings, command, summary))
    _flush_stderr()
    raise typer.Exit(status)


def _settings(flags: Flags, config: Path | None) -> Settings:
    settings, name = load_with_origin(flags, config, _DEFAULTS, os.environ)
    if name is not None:
        _say(f"the bucket is at {settings.origin}, as {name} says (--origin URL to name another)")
    found = aws_environment.endpoint_in(os.environ) or aws_environment.endpoint_in_profile(os.environ)
    # An endpoint that was skipped because it leads here must not make the proxy use AWS S3 instead: the job's bucket is
    # not there.
    refuse_itself(settings.origin or (found and found[1]), settings.listen)
    return settings


async def _run(settings: Settings, command: list[str], form: SummaryForm) -> int:
    signals = child_process.Signals()
    signals.install()
    try:
        async with running(settings) as outrider:
            status = await _run_child(outrider, command, signals)
            end_within(settings.drain_s + last_acts_s(outrider), status)
    except child_process.CannotStart as error:
        _say(str(error))
        return error.status
    except (UnusableCacheDir, SettingsError) as error:
        raise refused(error) from error
    except OSError as error:
        raise refused(OSError(f"cannot start: {error}")) from error
    finally:
        signals.remove()
    # Made after the drain, when reads that the child left unfinished are counted, too.
    summary = Summary.of(outrider.metrics)
    if form == "text":
        _say(summary.text())
    elif form == "json":
        _write(summary.json())
    return status


async def _run_child(outrider: Outrider, command: list[str], signals: child_process.Signals) -> int:
    """Run `command` to its end. Returns its exit status."""
    environ = for_child(
        os.environ,
        endpoint=_reachable(outrider.endpoint),
        admin=_reachable(f"http://{outrider.admin}"),
        region=outrider.settings.region or await outrider.credentials.region(),
        needs_keys=outrider.settings.auth == "loopback" and await _has_no_keys(outrider.credentials),
    )
    if signals.ended_by is not None:
        return 128 + signals.ended_by
    process = child_process.start(command, environ)
    signals.to(process)
    # The AWS chain is walked while the child starts, so that the first read need not wait for it. Its import takes half
    # a second: done earlier, it would delay the child.
    finding = asyncio.create_task(outrider.credentials.find_early(), name="credentials")
    try:
        return child_process.status_of(await child_process.ended(process))
    finally:
        finding.cancel()
        await asyncio.gather(finding, return_exceptions=True)


async def _has_no_keys(credentials: AwsCredentials) -> bool:
    """Whether the child has no credentials at all: it finds the same ones as this process."""
    if aws_environment.names_credentials(os.environ):
        return False
    try:
        async with asyncio.timeout(_CREDENTIALS_WAIT_S):
            return await credentials.current() is None
    except TimeoutError:
        return True
    except OriginBroke:
        return False  # a way to credentials is named, but fails: each read will report how


def _reachable(url: str) -> str:
    """The URL with a loopback address, if the proxy listens on all addresses."""
    parts = urlsplit(url)
    host, _, port = parts.netloc.rpartition(":")
    return f"{parts.scheme}://{loopback_of(host)}:{port}"


def _say(words: str) -> None:
    _write(f"outrider: {words}")


def _write(line: str) -> None:
    # An error of stderr (a full disk, a closed pipe) must not make a job fail that succeeded.
    with contextlib.suppress(OSError):
        typer.echo(line, err=True)


def _flush_stderr() -> None:
    """Flush stderr, and give up what it does not take: else Python would try again at exit, and exit with 120."""
    try:
        sys.stderr.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stderr.fileno())
        os.close(nowhere)
