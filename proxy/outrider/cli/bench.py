"""`outrider bench`: reads a bucket directly, through an empty cache and through a full one, and compares."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import aclosing, closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Annotated

import typer

from outrider.adapters.origin.credentials import AwsCredentials
from outrider.adapters.origin.endpoint import DEFAULT_REGION, aws_url
from outrider.adapters.origin.http_origin import HttpOrigin
from outrider.adapters.process.system import new_event_loop
from outrider.app import running
from outrider.cli.load_settings import load, load_with_origin
from outrider.cli.opened_origin import enumerator_of, opened, reader_of
from outrider.cli.settings_flags import Config, Flags, with_settings
from outrider.composition import Outrider
from outrider.core.errors import Signal
from outrider.core.s3.list_page import ListedObject
from outrider.ports import OriginRequest
from outrider.settings import Settings, SettingsError

_CONNECTIONS = 256
_WAYS = ("direct", "cold", "warm")
# The longest wait for blocks that are still being written.
_LANDING_S = 2.0
# The share of the objects that a full cache must answer. Below it, the cache had no room for them.
_KEPT = 0.5


@dataclass(frozen=True, slots=True)
class Measured:
    """One way of reading all objects once.

    MB/s of all readers together, milliseconds to the first byte of an object, and the share of objects from the cache.
    """

    way: str
    megabytes_per_s: float
    first_byte_ms: float
    slowest_first_byte_ms: float
    from_cache: float


@dataclass(frozen=True, slots=True)
class _Objects:
    bucket: str
    keys: Sequence[str]
    total_bytes: int


@with_settings("origin", "region", "block_size")
def bench(
    url: Annotated[str, typer.Argument(metavar="s3://BUCKET/PREFIX", help="Objects to read.")],
    objects: Annotated[int, typer.Option(min=1, help="How many objects to read.")] = 16,
    readers: Annotated[int, typer.Option(min=1, help="How many objects to read at a time.")] = 4,
    rounds: Annotated[int, typer.Option(min=1, help="How many rounds; the medians are printed.")] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    *,
    flags: Flags,
    config: Config = None,
) -> None:
    """Read objects of a bucket directly, through an empty cache and through a full one, and compare.

    The cache is a temporary directory. Traffic from the bucket: twice the bytes of the objects for each round.

    Example: outrider bench s3://my-bucket/train/ --objects 32 --readers 8
    """
    logging.getLogger().setLevel(logging.ERROR)
    # The origin behind a proxy that runs here: the direct reads must not go through that proxy.
    origin = load_with_origin(flags, config, {}, os.environ)[0].origin
    with tempfile.TemporaryDirectory(prefix="outrider-bench-") as directory:
        fixed = {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "cache_dir": directory, "prefetch": "object"}
        settings = load({**flags, "origin": origin, **fixed}, config)
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            try:
                measured = runner.run(_bench(settings, url, objects, readers, rounds, quiet=as_json))
            except (SettingsError, Signal, OSError) as error:
                typer.echo(f"outrider: {error}", err=True)
                raise typer.Exit(1) from error
    if as_json:
        typer.echo(json.dumps([asdict(way) for way in measured]))
    else:
        _show(measured)
    if measured[-1].from_cache < _KEPT:
        typer.echo(
            f"outrider: the cache had no room for the objects. {tempfile.gettempdir()} is too full, or `min_free` "
            "leaves too little: name a directory on another disk in TMPDIR.",
            err=True,
        )


async def _bench(settings: Settings, url: str, count: int, readers: int, rounds: int, *, quiet: bool) -> list[Measured]:
    credentials = AwsCredentials()
    region = settings.region or await credentials.region() or DEFAULT_REGION
    endpoint = settings.origin or aws_url(region, os.environ)
    found: dict[str, list[Measured]] = {way: [] for way in _WAYS}
    async with opened(endpoint, region, credentials, connections=_CONNECTIONS) as bucket:
        objects = await _objects(bucket, url, count)
        if not quiet:
            size = f"{objects.total_bytes / 1e6:.1f} MB"
            typer.echo(f"{len(objects.keys)} objects, {size}, {readers} at a time", err=True)
        for number in range(rounds):
            found["direct"].append(await _read(bucket, "direct", objects, readers))
            with tempfile.TemporaryDirectory(prefix="outrider-bench-") as directory:
                async with (
                    running(settings.model_copy(update={"cache_dir": (Path(directory),)})) as outrider,
                    opened(outrider.endpoint, region, credentials, connections=_CONNECTIONS) as proxy,
                ):
                    found["cold"].append(await _read(proxy, "cold", objects, readers))
                    await _landed(outrider)
                    found["warm"].append(await _read(proxy, "warm", objects, readers))
            if not quiet:
                rates = ", ".join(f"{way} {found[way][-1].megabytes_per_s:.0f} MB/s" for way in _WAYS)
                typer.echo(f"round {number + 1} of {rounds}: {rates}", err=True)
    return [_median(found[way]) for way in _WAYS]


async def _objects(bucket: HttpOrigin, url: str, count: int) -> _Objects:
    # urlsplit would not do: `?` and `#` are ordinary characters of a key.
    name, _, prefix = url.removeprefix("s3://").partition("/")
    if not url.startswith("s3://") or not name:
        raise SettingsError(f"{url}: write s3://BUCKET/PREFIX.")
    prefix = prefix.lstrip("/")
    listed: list[ListedObject] = []
    with suppress(Signal):
        async with aclosing(enumerator_of(reader_of(bucket)).pages(name, prefix)) as pages:
            async for page in pages:
                listed += [entry for entry in page if entry.size > 0]
                if len(listed) >= count:
                    break
    chosen = listed[:count]
    if not chosen:
        raise SettingsError(f"{url}: no objects there, or no permission to list them. `outrider doctor` tells which.")
    return _Objects(name, [entry.key for entry in chosen], sum(entry.size for entry in chosen))


async def _landed(outrider: Outrider) -> None:
    """Wait until the blocks that were read last are on disk.

    The wait is bounded: in a bucket with many more objects, prefetch keeps other fills under way all the time.
    """
    until = time.monotonic() + _LANDING_S
    while len(outrider.flights) and time.monotonic() < until:  # noqa: ASYNC110 - there is no event for the last flight
        await asyncio.sleep(0.01)


async def _read(origin: HttpOrigin, way: str, objects: _Objects, readers: int) -> Measured:
    waiting = list(reversed(objects.keys))
    first_bytes_s: list[float] = []
    hits = 0

    async def read() -> None:
        nonlocal hits
        while waiting:
            key = waiting.pop()
            started = time.perf_counter()
            with closing(await origin.ask(OriginRequest("GET", objects.bucket, key))) as reply:
                if reply.status != 200:
                    raise SettingsError(f"s3://{objects.bucket}/{key}: the {way} read was answered {reply.status}.")
                hits += dict(reply.headers).get("x-cache") == "HIT"
                await reply.some()
                first_bytes_s.append(time.perf_counter() - started)
                while await reply.some():
                    pass

    started = time.perf_counter()
    await asyncio.gather(*(read() for _ in range(readers)))
    rate = objects.total_bytes / (time.perf_counter() - started) / 1e6
    return Measured(way, rate, median(first_bytes_s) * 1e3, max(first_bytes_s) * 1e3, hits / len(objects.keys))


def _median(rounds: Sequence[Measured]) -> Measured:
    return Measured(
        rounds[0].way,
        round(median(measured.megabytes_per_s for measured in rounds), 1),
        round(median(measured.first_byte_ms for measured in rounds), 2),
        round(median(measured.slowest_first_byte_ms for measured in rounds), 2),
        round(median(measured.from_cache for measured in rounds), 2),
    )


def _show(measured: Sequence[Measured]) -> None:
    # Imported here: with all commands loaded (`outrider --help`) this would take two more megabytes.
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for heading in ("way", "MB/s", "of direct", "first byte ms, median", "slowest", "from cache"):
        table.add_column(heading, justify="left" if heading == "way" else "right")
    direct = measured[0].megabytes_per_s
    for way in measured:
        table.add_row(
            way.way, f"{way.megabytes_per_s:,.0f}", f"{way.megabytes_per_s / direct:.2f} x",
            f"{way.first_byte_ms:.1f}", f"{way.slowest_first_byte_ms:.1f}", f"{way.from_cache:.0%}",
        )  # fmt: skip
    Console().print(table)
