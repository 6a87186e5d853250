"""`outrider serve`: runs the proxy until SIGTERM or Ctrl-C."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys

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
from outrider.cli.load_settings import load_with_origin, refused
from outrider.cli.settings_flags import ALL, Config, Flags, with_settings
from outrider.composition import Outrider
from outrider.settings import Settings, SettingsError

log = logging.getLogger(__name__)


@with_settings(*ALL)
def serve(flags: Flags, config: Config = None) -> None:
    """Serve S3 on loopback, from the cache where possible.

    Point clients at it with AWS_ENDPOINT_URL=http://127.0.0.1:9480.

    Every flag can also be set as OUTRIDER_NAME, or in the file of --config.

    Without --origin, the endpoint of AWS_ENDPOINT_URL or of the AWS profile is the origin, unless it is this proxy.
    """
    settings, named_by = load_with_origin(flags, config, {}, os.environ)
    set_up_logs(settings.log_level, settings.log_format)
    if named_by is not None:
        log.info("origin found", extra={"origin": settings.origin, "named_by": named_by})
    keep_memory_small()
    keep_collections_short()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        raise typer.Exit(runner.run(_serve(settings)))


async def _serve(settings: Settings) -> int:
    stop, hurry = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    outrider: Outrider | None = None

    def stop_or_hurry() -> None:
        # A second signal means that its sender does not want to wait for the drain that the first one began.
        (hurry if stop.is_set() else stop).set()
        if outrider is not None:
            end_within(last_acts_s(outrider) + (0.0 if hurry.is_set() else settings.drain_s), 1)

    def read_again() -> None:
        if outrider is not None:
            outrider.bell.ring()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop_or_hurry)
    if not sys.stdin.isatty():
        # A terminal sends it as it closes.
        loop.add_signal_handler(signal.SIGHUP, read_again)
    try:
        async with running(settings, hurry) as outrider:
            finding = asyncio.create_task(outrider.credentials.find_early(), name="credentials")
            await stop.wait()
            finding.cancel()
    except (UnusableCacheDir, SettingsError) as error:
        raise refused(error) from error
    except OSError as error:
        raise refused(OSError(f"cannot start: {error}")) from error
    return 0
