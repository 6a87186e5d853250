"""Runs the demo's job straight from the bucket, and through a proxy, and compares."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from outrider import settings
from outrider.adapters.disk.block_dir import UnusableCacheDir
from outrider.adapters.process.system import new_event_loop
from outrider.app import running
from outrider.cli.demo.bucket import DemoBucket, NoBucket, served
from outrider.cli.demo.job import DemoEpoch
from outrider.cli.demo.slow_line import SlowLine
from outrider.settings import SettingsError

# A bucket some kilometres away.
_LATENCY_S = 0.030
_CONNECTION_BYTES_S = 40e6


@dataclass(frozen=True, slots=True)
class DemoRow:
    """One epoch: seconds for which the job waited for data, of those that it took, and bytes from the bucket."""

    run: str
    wait_s: float
    time_s: float
    bucket_bytes: int


class _Failed(Exception):
    """The demo cannot go on; the text says why."""


def demo(
    objects: Annotated[int, typer.Option(min=1, help="Objects of 8 MiB that the job reads in each epoch.")] = 24,
    stay: Annotated[bool, typer.Option("--stay", help="Keep proxy and dashboard until Ctrl-C.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Train from a bucket that is made for it, directly and through a cache, and compare.

    All of it runs on this machine, in a temporary directory, without root or keys. Needs the extra `demo`.

    \b
    outrider demo
    outrider demo --stay
    """
    logging.getLogger().setLevel(logging.ERROR)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        try:
            runner.run(_demo(objects, stay=stay, as_json=as_json))
        except (_Failed, NoBucket, SettingsError, UnusableCacheDir, OSError) as error:
            typer.echo(f"outrider: {error}", err=True)
            raise typer.Exit(1) from error
        except asyncio.CancelledError as error:  # SIGTERM
            raise typer.Exit(128 + signal.SIGTERM) from error


async def _demo(objects: int, *, stay: bool, as_json: bool) -> None:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="outrider-demo-")))
        (directory / "bucket").mkdir()
        _say("starting an S3 server")
        bucket = stack.enter_context(served(directory / "bucket"))
        size = await bucket.fill(objects, lambda: _say(f"writing {objects} objects"))
        line = SlowLine(bucket.port, _LATENCY_S, _CONNECTION_BYTES_S)
        await stack.enter_async_context(line.opened())
        # The proxy is in this process, and finds the bucket's keys as any proxy does.
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            del os.environ[name]
        os.environ.update(bucket.environ)
        _say(f"{objects} objects, {size / 1e6:.0f} MB; 30 ms to the first byte, 40 MB/s a connection")
        rows, digests = await _run(line, line.endpoint, bucket, objects, ["straight from the bucket"])
        flags = {
            "origin": line.endpoint, "region": bucket.environ["AWS_REGION"], "listen": "127.0.0.1:0",
            "admin": "127.0.0.1:0", "cache_dir": str(directory / "cache"), "min_free": "0",
        }  # fmt: skip
        outrider = await stack.enter_async_context(running(settings.load(flags, environ={})))
        _say(f"the dashboard: http://{outrider.admin}/")
        more, again = await _run(
            line, outrider.endpoint, bucket, objects, ["through Outrider, cold", "through Outrider, warm"]
        )
        rows += more
        if len({*digests, *again}) != 1:
            raise _Failed("the bytes were not the same in each epoch. Please report this.")
        typer.echo(json.dumps([asdict(row) for row in rows])) if as_json else _show(rows)
        if stay:
            _say(f"outrider ls --admin {outrider.admin}   shows what the cache has; Ctrl-C ends the demo")
            await asyncio.Event().wait()


async def _run(
    line: SlowLine, endpoint: str, bucket: DemoBucket, objects: int, names: list[str]
) -> tuple[list[DemoRow], list[str]]:
    """An epoch of the job for each name; the second value has the digests of what they read."""
    rows, digests = [], []
    before = line.reply_bytes
    async with aclosing(_epochs({**os.environ, "AWS_ENDPOINT_URL": endpoint}, objects, len(names))) as epochs:
        for name in names:
            _say(name)
            epoch = await anext(epochs, None)
            if epoch is None:
                raise _Failed("the job failed")
            rows.append(DemoRow(name, round(epoch.wait_s, 3), round(epoch.time_s, 3), line.reply_bytes - before))
            digests.append(epoch.digest)
            before = line.reply_bytes
    return rows, digests


async def _epochs(environ: dict[str, str], objects: int, count: int) -> AsyncGenerator[DemoEpoch, None]:
    # Not by -m: this package has imported the module.
    argv = [sys.executable, "-c", "from outrider.cli.demo.job import main; main()", str(objects), str(count)]
    job = await asyncio.create_subprocess_exec(*argv, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    assert job.stdout is not None
    try:
        async for line in job.stdout:
            yield DemoEpoch(**json.loads(line))
        await job.wait()
    finally:
        if job.returncode is None:
            job.kill()
            await job.wait()


def _say(words: str) -> None:
    typer.echo(f"outrider: {words}", err=True)


def _show(rows: list[DemoRow]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for heading in ("the job reads", "waits for data, s", "of, s", "MB from bucket"):
        table.add_column(heading, justify="left" if heading == "the job reads" else "right")
    for row in rows:
        table.add_row(row.run, f"{row.wait_s:.2f}", f"{row.time_s:.2f}", f"{row.bucket_bytes / 1e6:.0f}")
    Console().print(table)
