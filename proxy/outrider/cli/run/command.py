"""Starts the proxy, runs the command of `outrider run` with it, and ends with the command's status."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from outrider.adapters.disk.block_dir import UnusableCacheDir
from outrider.adapters.process.system import (
    end_within,
    keep_collections_short,
    keep_memory_small,
    new_event_loop,
    set_up_logs,
)
from outrider.app import last_acts_s, running
from outrider.cli.load_settings import refused
from outrider.cli.run import child_process
from outrider.cli.run.own_proxy import check_origin, environment_for, settings_of
from outrider.cli.run.stderr import flush_stderr, say
from outrider.cli.run.summary import Summary, SummaryForm, report
from outrider.cli.settings_flags import ALL, Config, Flags, with_settings
from outrider.composition import Outrider
from outrider.settings import Settings, SettingsError


@with_settings(*ALL)
def run(
    command: Annotated[list[str], typer.Argument(metavar="CMD", help="The command and its arguments.")],
    flags: Flags,
    config: Config = None,
    summary: Annotated[SummaryForm, typer.Option(help="Form of the summary on stderr.")] = "text",
) -> None:
    """Run a command whose S3 reads go through a cache of its own.

    The command finds the proxy by AWS_ENDPOINT_URL, on a free loopback port.

    If AWS_ENDPOINT_URL is set already and --origin is not given, it names the origin.

    Exits with the status of the command.

    Example: outrider run --cache-dir /data/cache -- python train.py
    """
    settings = settings_of(flags, config)
    set_up_logs(settings.log_level, settings.log_format)
    keep_memory_small()
    keep_collections_short()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        status = runner.run(_run(settings, command, summary))
    flush_stderr()
    raise typer.Exit(status)


async def _run(settings: Settings, command: list[str], form: SummaryForm) -> int:
    signals = child_process.Signals()
    signals.install()
    try:
        async with running(settings) as outrider:
            status = await _run_child(outrider, command, signals)
            end_within(settings.drain_s + last_acts_s(outrider), status)
    except child_process.CannotStart as error:
        say(str(error))
        return error.status
    except (UnusableCacheDir, SettingsError) as error:
        raise refused(error) from error
    except OSError as error:
        raise refused(OSError(f"cannot start: {error}")) from error
    finally:
        signals.remove()
    # Made after the drain, when reads that the child left unfinished are counted, too.
    report(Summary.of(outrider), form)
    return status


async def _run_child(outrider: Outrider, command: list[str], signals: child_process.Signals) -> int:
    """Run `command` to its end. Returns its exit status."""
    environ = await environment_for(outrider)
    if signals.ended_by is not None:
        return 128 + signals.ended_by
    process = child_process.start(command, environ)
    signals.to(process)
    # The AWS chain is walked while the child starts, so that the first read need not wait for it. Its import takes half
    # a second: done earlier, it would delay the child.
    checking = asyncio.create_task(check_origin(outrider), name="origin")
    try:
        return child_process.status_of(await child_process.ended(process))
    finally:
        checking.cancel()
        await asyncio.gather(checking, return_exceptions=True)
