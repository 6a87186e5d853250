"""The composition root: settings become rooms, started and stopped in order."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from contextvars import Context
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiohttp import web
from aiohttp.abc import AbstractResolver

from outrider import __version__
from outrider.adapters import blockdir, orders, pinfile, warmfile
from outrider.adapters.blockdir import BlockDir
from outrider.adapters.credentials import AwsCredentials
from outrider.adapters.disk import DiskStore, Limits
from outrider.adapters.origin import HttpOrigin
from outrider.adapters.recovery import Recovery
from outrider.adapters.system import new_event_loop, raise_open_files_limit
from outrider.adapters.troubles import kept_troubles
from outrider.core import blockfile
from outrider.core.buffers import Buffers, Shares
from outrider.core.concurrency import Concurrency
from outrider.core.courtesy import Courtesy
from outrider.core.eviction import POLICIES
from outrider.core.ghost import Ghost
from outrider.core.hedging import Hedging
from outrider.core.ledger import Prices
from outrider.core.model import version_id
from outrider.core.pins import Pins, SavedPin, disk_bytes_of
from outrider.core.planner import Planner
from outrider.core.scrubbing import ROUND_S, Pace
from outrider.engine.asking import Asking, Patience
from outrider.engine.catalog import Catalog
from outrider.engine.flights import Flights
from outrider.engine.forwards import Forwards
from outrider.engine.hits import Hits
from outrider.engine.listings import Listings
from outrider.engine.openings import Openings
from outrider.engine.overview import Overview
from outrider.engine.pinning import Pinning
from outrider.engine.prefetch import Budget, Mode, Prefetch
from outrider.engine.reads import Reads
from outrider.engine.survey import Survey
from outrider.engine.turns import Turns
from outrider.engine.verifying import Verifying
from outrider.engine.warming import Warming
from outrider.http.access import Access, Loopback, SigV4
from outrider.http.admin import AdminServer
from outrider.http.orders import Orders
from outrider.http.server import S3Server
from outrider.http.steering import Steering
from outrider.metrics import Metrics
from outrider.ports import Clock, Origin
from outrider.settings import Settings, SettingsError

if TYPE_CHECKING:
    from outrider.adapters.tracing import Traces
    from outrider.http.tracing import ServerSpans

log = logging.getLogger(__name__)

# How long a start waits for its index: a snapshot of ten thousand blocks is read in less, and the first reads then
# find what is there. A directory that takes longer is indexed while reads are served.
_INDEX_WAIT_S = 0.25
# Longer ones are not waited for at all: 100,000 blocks take two seconds.
_INDEX_WAIT_BYTES_MAX = 1024 * 1024
# Settings that the status tells.
_TOLD = ("auth", "policy", "prefetch", "freshness", "verify", "block_size", "workers", "cache_dir")
DEFAULT_REGION = "us-east-1"
_BACKLOG = 1024
# How late the planner hears of hits: far less than a shard takes to be read.
_TICK_S = 0.05
# How soon a block goes that was read when it was to go.
_UPKEEP_S = 0.25
# A block whose last byte was just sent may lack only its name on disk. A fill that takes longer is not waited for.
_LAST_FILLS_S = 0.5
# What is left to do after the drain takes far less where the disk answers; and then the snapshot, for each block.
_LAST_ACTS_S = 5.0
_SNAPSHOT_BLOCK_S = 1e-4


@dataclass(slots=True)
class Outrider:
    """A running proxy."""

    settings: Settings
    metrics: Metrics
    store: DiskStore
    catalog: Catalog
    flights: Flights
    planner: Planner
    ghost: Ghost
    prefetch: Prefetch
    server: S3Server
    steering: Steering
    credentials: AwsCredentials
    overview: Overview
    listen: str = ""
    admin: str = ""
    ready: bool = False
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    began: float = field(default_factory=time.monotonic)
    indexed: asyncio.Event = field(default_factory=asyncio.Event)
    """What the cache directory held at the start is known; until then it may be a miss."""

    @property
    def endpoint(self) -> str:
        scheme = "http" if self.settings.tls_cert is None else "https"
        return f"{scheme}://{self.listen}"

    def status(self) -> dict[str, object]:
        """What the admin port's /status tells."""
        return {
            "version": __version__,
            "uptime_s": round(time.monotonic() - self.began, 1),
            "ready": self.ready,
            "indexed": self.indexed.is_set(),
            "listen": self.listen,
            "origin": self.settings.origin,
            "settings": {
                name: str(value) if isinstance(value := getattr(self.settings, name), Path) else value for name in _TOLD
            },
            "disk": {
                "used_bytes": self.store.used_bytes,
                "budget_bytes": self.store.budget.capacity_bytes,
                "room_bytes": self.store.room_bytes,
            },
            "blocks": len(self.store),
            "bytes": self.store.used_bytes,
            "objects": len(self.catalog),
            "fills": len(self.flights),
            "requests": self.server.in_flight,
            "connections": self.server.connected,
            "tasks": len(asyncio.all_tasks(self.loop)),
            "served_bytes": {
                source: self.metrics.value("outrider_served_bytes_total", source=source)
                for source in ("disk", "flight", "origin")
            },
            "origin_bytes": self.metrics.value("outrider_origin_bytes_total"),
            "origin_requests": self.metrics.total("outrider_origin_requests_total"),
            "prefetch": {
                "readers": self.planner.readers,
                "blocks": self.metrics.value("outrider_prefetched_blocks_total"),
                "fetched_bytes": self.planner.fetched_bytes,
                "wasted_bytes": self.planner.wasted_bytes,
                "window_bytes": self.planner.bytes_coming,
                "window_blocks": self.planner.blocks_coming,
                "window_bytes_max": self.settings.prefetch_bytes,
            },
            "hit_ratio_by_size": {
                f"{factor:g}": round(ratio, 4)
                for factor, ratio in (self.ghost.epoch(self.planner.library.outlook()) or {}).items()
            },
            **self.overview.document(),
            **self.steering.orders.status(),
        }


def last_acts_s(outrider: Outrider) -> float:
    """How long a stop may take after its drain; what takes longer hangs."""
    return _LAST_ACTS_S + len(outrider.store) * _SNAPSHOT_BLOCK_S


@asynccontextmanager
async def running(
    settings: Settings, hurry: asyncio.Event | None = None, *, wall_clock: Clock = time.time,
    resolver: AbstractResolver | None = None,
) -> AsyncIterator[Outrider]:  # fmt: skip
    """A proxy that serves until the context ends; then it drains, until `hurry` at the latest, and leaves a snapshot of
    its index.

    `wall_clock`: the machine's; `resolver` None: the machine's. Others are for tests of a machine that has it wrong.

    Raises:
        UnusableCacheDir, SettingsError: it cannot start as it was told to.
        OSError: an address cannot be bound.
    """
    open_files = raise_open_files_limit()
    async with AsyncExitStack() as stack:
        metrics = Metrics()
        traces = await _traces(settings, stack)
        stack.enter_context(kept_troubles(metrics.troubles))
        metrics.info.labels(__version__).set(1)
        metrics.started_at.set(wall_clock())
        directory = stack.enter_context(_directory(settings.cache_dir))
        tasks = await stack.enter_async_context(_background())
        credentials = AwsCredentials(settings.listen)
        region = settings.region or await credentials.region() or DEFAULT_REGION
        endpoint = settings.origin or f"https://s3.{region}.amazonaws.com"
        shares = Shares.of(settings.buffer_bytes, settings.origin_connections)
        origin = HttpOrigin(
            endpoint, region, credentials, metrics, wall_clock, connections=shares.exchanges,
            read_timeout_s=settings.origin_timeout_s, resolver=resolver,
        )  # fmt: skip
        await origin.open()
        stack.push_async_callback(origin.close)
        outrider, recovery = _rooms(
            settings, metrics, directory, credentials, _traced(origin, traces), shares, tasks, stack, open_files, traces
        )  # fmt: skip
        waits = directory.snapshot_bytes() <= _INDEX_WAIT_BYTES_MAX
        endless = {
            tasks.spawn(_recover(outrider, recovery), "recovery"),
            tasks.spawn(_tick(outrider.prefetch, outrider.overview), "prefetch"),
            tasks.spawn(_upkeep(outrider), "upkeep"),
        }
        if waits:
            with suppress(TimeoutError):
                async with asyncio.timeout(_INDEX_WAIT_S):
                    await outrider.indexed.wait()
        s3 = await _serve(outrider, stack)
        log.info("ready", extra={"listen": outrider.listen, "admin": outrider.admin, "origin": origin.endpoint,
                                 "cache_dir": str(directory.root), "version": __version__})  # fmt: skip
        try:
            yield outrider
        finally:
            outrider.ready = False
            for site in list(s3.sites):
                await site.stop()
            if outrider.server.workers is not None:
                outrider.server.workers.stop_listening()
            await _drain(outrider, hurry or asyncio.Event())
            await tasks.wait(_LAST_FILLS_S, apart_from=endless)
            under_way = outrider.steering.orders.under_way()
            # Readers may outlast the drain, and what they bring from here on no snapshot would tell of.
            outrider.store.stopping = True
            await tasks.stop()
            await recovery.save()
            orders.save(directory, outrider.planner.library)
            warmfile.save(directory.warmups, under_way)


def _rooms(
    settings: Settings, metrics: Metrics, directory: BlockDir, credentials: AwsCredentials, origin: Origin,
    shares: Shares, tasks: _Tasks, stack: AsyncExitStack, open_files: int, traces: Traces | None,
) -> tuple[Outrider, Recovery]:  # fmt: skip
    total = directory.total_bytes()
    limits = Limits(settings.cache_size.of(total), settings.min_free.of(total), max(16, open_files // 4))
    ghost = Ghost(limits.capacity_bytes)
    pins = Pins(
        lambda size: disk_bytes_of(size, settings.block_size, blockfile.usual_disk_bytes),
        lambda version: version_id(origin.endpoint, version, settings.block_size),
    )
    planner = Planner(
        limits.capacity_bytes,
        settings.block_size,
        disk_bytes=blockfile.usual_disk_bytes,
        opened=ghost.opened,
        believed_s=lambda ref: settings.freshness_of(ref).ttl_s,
        pins=pins,
    )
    orders.load(directory.orders, planner.library)
    policy = planner if settings.policy == "epoch" else POLICIES[settings.policy]()
    always = settings.verify == "always"
    store = DiskStore(directory, policy, limits, metrics, time.monotonic, verify_always=always, pins=pins)
    stack.callback(store.close)
    catalog = Catalog(origin.endpoint, settings.freshness_of, time.monotonic, settings.catalog_entries)
    turns = Turns(Concurrency(settings.fills), Courtesy(settings.fills), time.monotonic)
    asking = Asking(origin, Patience(), metrics, turns, Hedging())
    flights = Flights(asking, store, tasks.spawn, turns, time.monotonic)
    openings = Openings(
        asking, origin.endpoint, catalog, flights, tasks.spawn, time.monotonic,
        block_bytes=settings.block_size, stale_if_error=settings.stale_if_error,
    )  # fmt: skip
    reads = Reads(asking, origin.endpoint, catalog, store, flights, openings, metrics, block_bytes=settings.block_size)
    buffers = Buffers(shares.clients_bytes)
    listings = Listings(settings.list_ttl_of, time.monotonic, shares.listings_bytes, buffers)
    hits = Hits(origin.endpoint, catalog, store, time.monotonic, block_bytes=settings.block_size)
    access = _access(settings)
    survey = Survey(asking, buffers, catalog)
    budget = Budget(max(1, settings.prefetch_bytes // settings.block_size), settings.prefetch_bandwidth)
    prefetch = Prefetch(
        planner, origin.endpoint, catalog, store, flights, openings, survey, turns,
        tasks.spawn_apart, time.monotonic, metrics, block_bytes=settings.block_size,
        mode_of=lambda ref: Mode(settings.prefetch_of(ref)), budget=budget,
    )  # fmt: skip
    warming = Warming(
        origin.endpoint, catalog, store, prefetch, survey, pins, tasks.spawn_apart, time.monotonic,
        block_bytes=settings.block_size, blocks_at_once=budget.blocks, disk_bytes=blockfile.usual_disk_bytes,
    )  # fmt: skip
    pinning = Pinning(warming, prefetch, openings, lambda saved: _save_pins(store, saved))
    pinning.restore(pinfile.load(directory.pins), limits.capacity_bytes)
    steering = Steering(
        lambda: outrider.status(), prefetch,
        Orders(warming, pinning, Verifying(store, tasks.spawn, time.time), access, time.time), access, metrics,
        time.time,
    )  # fmt: skip
    server = S3Server(
        reads, hits, Forwards(origin, asking, catalog, listings), prefetch, access, steering, metrics, buffers,
        warming.hint, domains=settings.domain, requests_max=settings.requests,
        # Each takes two descriptors, and block files a quarter of them all.
        connections_max=min(settings.max_connections, max(16, open_files // 4)),
        heads_bytes=shares.heads_bytes // settings.workers,
        client_timeout_s=settings.client_timeout_s, client_idle_s=settings.client_idle_s,
        spans=_spans(settings, traces),
    )  # fmt: skip
    stack.push_async_callback(server.stop)
    overview = Overview(
        metrics, metrics.ledger, planner, ghost, metrics.troubles,
        Prices(settings.price_per_gb, settings.price_per_1000_gets), time.monotonic,
        capacity_bytes=limits.capacity_bytes, name_of=partial(_reader_shown, _names_of_keys(settings)),
    )  # fmt: skip
    outrider = Outrider(
        settings, metrics, store, catalog, flights, planner, ghost, prefetch, server, steering, credentials, overview
    )
    return outrider, Recovery(store, catalog)


async def _traces(settings: Settings, stack: AsyncExitStack) -> Traces | None:
    """Imported here, so that nobody pays who wants none. Raises SettingsError."""
    if not settings.traces:
        return None
    try:
        from outrider.adapters.tracing import Traces
    except ImportError as error:
        raise SettingsError(
            f"--traces needs a package that is not installed ({error.name}): pip install 'outrider[tracing]'"
        ) from error
    traces = Traces()
    stack.push_async_callback(traces.close)
    return traces


def _traced(origin: Origin, traces: Traces | None) -> Origin:
    if traces is None:
        return origin
    from outrider.adapters.tracing import TracedOrigin

    return TracedOrigin(origin, traces.tracer)


def _spans(settings: Settings, traces: Traces | None) -> ServerSpans | None:
    if traces is None:
        return None
    from outrider.http.tracing import ServerSpans

    return ServerSpans(traces.tracer, partial(_reader_shown, _names_of_keys(settings)))


def _access(settings: Settings) -> Access:
    if settings.auth == "loopback":
        return Loopback(settings.domain, cross_site=settings.cross_site)
    known = settings.known_clients
    return SigV4(
        {client.access_key: client for client, _ in known},
        {client.access_key: secret.get_secret_value() for client, secret in known},
        time.time,
    )


def _names_of_keys(settings: Settings) -> dict[str, str]:
    known = settings.known_clients if settings.auth == "sigv4" else ()
    return {client.access_key: client.name for client, _ in known}


def _reader_shown(names: dict[str, str], reader: str) -> str:
    host, _, access_key = reader.partition(" ")
    return f"{host} {names.get(access_key, '')}".rstrip()


async def _recover(outrider: Outrider, recovery: Recovery) -> None:
    await recovery.index()
    outrider.indexed.set()
    outrider.steering.orders.pinning.resume()
    await outrider.steering.orders.resume(
        await outrider.store.work.run(warmfile.take, outrider.store.directory.warmups)
    )
    if outrider.settings.scrub_bandwidth:
        await recovery.scrub(Pace(outrider.settings.scrub_bandwidth, ROUND_S))


async def _tick(prefetch: Prefetch, overview: Overview) -> None:
    while True:
        await asyncio.sleep(_TICK_S)
        prefetch.tick()
        overview.tick()


async def _upkeep(outrider: Outrider) -> None:
    while True:
        await asyncio.sleep(_UPKEEP_S)
        await outrider.store.sweep()
        outrider.steering.orders.pinning.look_again()


async def _save_pins(store: DiskStore, saved: Sequence[SavedPin]) -> None:
    await store.work.run(pinfile.save, store.directory.pins, saved)


async def _serve(outrider: Outrider, stack: AsyncExitStack) -> web.ServerRunner:
    settings = outrider.settings
    token = settings.admin_token.get_secret_value() if settings.admin_token else None
    served = AdminServer(outrider.metrics, lambda: outrider.ready, outrider.status, token, settings.client_timeout_s)
    admin = web.ServerRunner(served, shutdown_timeout=1.0)
    s3 = web.ServerRunner(outrider.server, shutdown_timeout=1.0)
    for runner in (admin, s3):
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
    outrider.admin = await _bind(admin, settings.admin, None)
    if settings.workers == 1:
        outrider.listen = await _bind(s3, settings.listen, _tls(settings))
    else:
        host, port = _host_and_port(settings.listen)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        outrider.server.work_with(settings.workers - 1, new_event_loop).listen(listener)
        outrider.listen = f"{_host(settings.listen)}:{listener.getsockname()[1]}"
    outrider.ready = True
    return s3


async def _bind(runner: web.BaseRunner, address: str, tls: ssl.SSLContext | None) -> str:
    host, port = _host_and_port(address)
    site = web.TCPSite(runner, host, port, ssl_context=tls, backlog=_BACKLOG)
    await site.start()
    return f"{_host(address)}:{runner.addresses[-1][1]}"


def _host(address: str) -> str:
    return address.rpartition(":")[0]


def _host_and_port(address: str) -> tuple[str, int]:
    return _host(address).strip("[]"), int(address.rpartition(":")[2])


def _tls(settings: Settings) -> ssl.SSLContext | None:
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(f"--tls-cert {settings.tls_cert}, --tls-key {settings.tls_key}: {error}") from error
    return context


async def _drain(outrider: Outrider, hurry: asyncio.Event) -> None:
    """Let requests under way end, for as long as the settings allow and nobody is in a hurry; connections that idle are
    closed at once."""
    outrider.server.pre_shutdown()
    waits = [asyncio.ensure_future(outrider.server.idle()), asyncio.ensure_future(hurry.wait())]
    await asyncio.wait(waits, timeout=outrider.settings.drain_s, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    if outrider.server.in_flight:
        log.warning("stopping with requests under way", extra={"requests": outrider.server.in_flight})


@contextmanager
def _directory(setting: Path) -> Iterator[BlockDir]:
    """The cache directory, locked; one on the tmpfs is removed at the end."""
    memory = str(setting) == "memory"
    directory = BlockDir.open(blockdir.make_memory_dir() if memory else setting.expanduser())
    try:
        yield directory
    finally:
        directory.close()
        if memory:
            blockdir.remove_memory_dir(directory.root)


class _Tasks:
    """Background work of the engine: owned here, ended here."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        return self._own(asyncio.create_task(work, name=name))

    def spawn_apart(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Work that is not for the request in which it began: in a trace it is no part of that one."""
        return self._own(asyncio.create_task(work, name=name, context=Context()))

    def _own(self, task: asyncio.Task[None]) -> asyncio.Task[None]:
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("background task failed", extra={"task": task.get_name()}, exc_info=error)

    async def wait(self, for_s: float, *, apart_from: set[asyncio.Task[None]]) -> None:
        if others := self._tasks - apart_from:
            await asyncio.wait(others, timeout=for_s)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def _background() -> AsyncIterator[_Tasks]:
    tasks = _Tasks()
    try:
        yield tasks
    finally:
        await tasks.stop()
