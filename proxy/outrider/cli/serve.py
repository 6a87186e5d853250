"""`outrider serve`: the proxy, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import asyncio
import logging
import os
import signal

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
from outrider.cli import environment, options
from outrider.composition import Outrider
from outrider.settings import Settings, SettingsError

log = logging.getLogger(__name__)


def serve(
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
) -> None:
    """Serve S3 on loopback, from the cache where it can.

    Point clients at it with AWS_ENDPOINT_URL=http://127.0.0.1:9480. Every flag can also be set as OUTRIDER_NAME, or in
    the file of --config. Where no origin is set, it is the endpoint that AWS_ENDPOINT_URL or the AWS profile names, if
    that is another than this proxy.
    """
    flags = dict(locals())
    del flags["config"]
    settings, named_by = environment.load_with_origin(flags, config, {}, os.environ)
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

    def asked_to_stop() -> None:
        # A second signal is from somebody who does not want to wait for the first one's drain.
        (hurry if stop.is_set() else stop).set()
        if outrider is not None:
            end_within(last_acts_s(outrider) + (0.0 if hurry.is_set() else settings.drain_s), 1)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked_to_stop)
    try:
        async with running(settings, hurry) as outrider:
            finding = asyncio.create_task(outrider.credentials.find_early(), name="credentials")
            await stop.wait()
            finding.cancel()
    except (UnusableCacheDir, SettingsError) as error:
        raise options.refused(error) from error
    except OSError as error:
        raise options.refused(OSError(f"cannot start: {error}")) from error
    return 0
