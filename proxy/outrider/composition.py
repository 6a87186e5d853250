"""The composition root: makes each part of the proxy and gives it the parts that it needs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from outrider.adapters.disk.block_dir import BlockDir
from outrider.adapters.disk.block_store import DiskBlockStore
from outrider.adapters.disk.disk import Sizes, disks_of
from outrider.adapters.disk.recovery import Recovery
from outrider.adapters.disk.written_names import Runs, WrittenNamesFile, WrittenNamesFiles
from outrider.adapters.origin.credentials import AwsCredentials
from outrider.adapters.process.file_reload import Bell
from outrider.adapters.process.port_tls import PortTls
from outrider.adapters.sealed_file import newest_first
from outrider.adapters.state import learned_file, pin_file
from outrider.core.ahead.planner import Planner
from outrider.core.block_layout import BlockLayout
from outrider.core.cache import block_file
from outrider.core.cache.descriptor_budget import DescriptorBudget
from outrider.core.cache.memory_budget import MemoryBudget, MemoryShares
from outrider.core.cache.policies import EvictionPolicy
from outrider.core.cache.tenant_blocks import TenantBlocks
from outrider.core.insight.load import CpuTimes, LoadSample
from outrider.core.insight.miss_ratio import MissRatioCurve
from outrider.core.insight.next_step import Setup
from outrider.core.insight.usage import Prices
from outrider.core.model import ObjectRef
from outrider.engine.ahead.prefetch import Mode, Prefetch
from outrider.engine.fill.fill_scheduler import FillScheduler
from outrider.engine.fill.flight_table import FlightTable
from outrider.engine.fill.origin_reader import OriginReader
from outrider.engine.fill.patience import Patience
from outrider.engine.listing.lists import Lists
from outrider.engine.maintenance.pinning import Pinning
from outrider.engine.maintenance.verification import Verification
from outrider.engine.maintenance.warmup import Book
from outrider.engine.read.hit_lookup import HitLookup
from outrider.engine.read.version_cache import VersionCache
from outrider.engine.status.document import Cache, Maintenance, StatusDocument
from outrider.engine.status.overview import Overview
from outrider.engine.status.tenants_part import TenantsPart
from outrider.engine.status.verdicts import Verdicts
from outrider.engine.tasks.background import Background
from outrider.engine.tasks.runtime import Runtime
from outrider.engine.write.passthrough import Passthrough
from outrider.engine_composition import EnginePorts, EngineSettings, make_engine
from outrider.http.access import Senders, reader_shown
from outrider.http.control.batch_objects import BatchParts
from outrider.http.control.control_bucket import ControlBucket
from outrider.http.control.lender import Lender
from outrider.http.control.maintenance import MaintenanceCommands
from outrider.http.s3.fast_path import FastPath
from outrider.http.s3.handler import HandlerSettings, S3Handler, Services
from outrider.http.s3.server import S3Server
from outrider.http.wire.disk_readers import READERS, DiskReaders
from outrider.metrics import Metrics
from outrider.origin_oddities import OriginOddities
from outrider.ports import Clock, Origin
from outrider.settings import Settings, SettingsError

if TYPE_CHECKING:
    import socket

    from outrider.adapters.origin.traced_origin import Traces
    from outrider.cluster_composition import Cluster
    from outrider.http.record.server_spans import ServerSpans


# Objects whose rules are remembered: each miss asks some ten times.
_RULED_MAX = 1024


@dataclass(slots=True)
class Outrider:
    """A running proxy."""

    settings: Settings
    metrics: Metrics
    store: DiskBlockStore
    versions: VersionCache
    flights: FlightTable
    planner: Planner
    prefetch: Prefetch
    server: S3Server
    control: ControlBucket
    credentials: AwsCredentials
    overview: Overview
    origin_reader: OriginReader
    cluster: Cluster | None
    """None: the node is alone."""
    senders: Senders
    lender: Lender | None
    """None: mounts on this machine send GETs."""
    status: StatusDocument = field(init=False)
    tls: PortTls | None = None
    """The certificate of the S3 port; None: it serves http."""
    bell: Bell = field(default_factory=Bell)
    """Has keys, certificates and grants read again at once."""
    listen: str = ""
    admin: str = ""
    region: str = ""
    """The one that requests to the origin are signed for."""
    ready: bool = False
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    began: float = field(default_factory=time.monotonic)
    indexed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the blocks that the cache directory held at the start are known; until then a read of one may be a
    miss."""

    @property
    def endpoint(self) -> str:
        scheme = "http" if self.settings.tls_cert is None else "https"
        return f"{scheme}://{self.listen}"

    def state(self) -> dict[str, Any]:
        """For the status document."""
        return {
            "uptime_s": round(time.monotonic() - self.began, 1), "ready": self.ready, "indexed": self.indexed.is_set(),
            "listen": self.listen, "requests": self.server.in_flight, "connections": self.server.connected,
            "tasks": len(asyncio.all_tasks(self.loop)),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class MachineLoad:
    """The machine and its limits, for the verdict. `setup` has no `capacity_bytes` yet. `cpu`: called on the loop's
    thread. `is_short_of_connections`: a request waits for a free connection to the bucket."""

    setup: Setup
    cpu: Callable[[], CpuTimes]
    is_short_of_connections: Callable[[], bool]


@dataclass(frozen=True, slots=True)
class Resources:
    """The things that are opened before a proxy is composed. `stack` closes parts that need it; `traces` None: they
    are off; `clock` is monotonic, `wall_clock` in seconds since 1970; `peer_socket` is bound, None: the node is
    alone."""

    metrics: Metrics
    directories: Sequence[BlockDir]
    credentials: AwsCredentials
    origin: Origin
    oddities: OriginOddities
    shares: MemoryShares
    tasks: Background
    stack: AsyncExitStack
    descriptors: DescriptorBudget
    traces: Traces | None
    clock: Clock
    wall_clock: Clock
    patience: Patience
    machine: MachineLoad
    peer_socket: socket.socket | None = None


def compose(settings: Settings, resources: Resources) -> tuple[Outrider, Recovery]:
    """A proxy that does not listen yet, and the recovery of its index. Raises SettingsError."""
    metrics, directories, origin = resources.metrics, resources.directories, resources.origin
    shares, tasks, stack, clock = resources.shares, resources.tasks, resources.stack, resources.clock
    descriptors = resources.descriptors
    # The disks of the others may not answer.
    present = [directory for directory in directories if directory.missing is None]
    sizes = Sizes(settings.cache_size, settings.min_free)
    disks = disks_of(directories, sizes, metrics, clock)
    capacity_bytes = sum(disk.budget.capacity_bytes for disk in disks)
    miss_ratio = MissRatioCurve(capacity_bytes)
    layout = BlockLayout(origin.endpoint, settings.block_size)
    cluster = _cluster(settings, resources, layout, capacity_bytes)
    senders = Senders(settings)
    of_tenants: TenantBlocks | None = None

    def by_tenants(policy: EvictionPolicy) -> EvictionPolicy:
        nonlocal of_tenants
        if senders.tenants is None:
            return policy
        of_tenants = TenantBlocks(
            policy, senders.tenants, capacity_bytes, layout, block_file.usual_disk_bytes, lambda block: store.has(block)
        )
        return of_tenants

    runtime, apart = Runtime(tasks.spawn, clock), Runtime(tasks.spawn_apart, clock)
    blocks_at_once = min(settings.prefetch_blocks, descriptors.fills)
    chosen = EngineSettings(
        settings.policy, lru_cache(_RULED_MAX)(settings.freshness_of),
        lru_cache(_RULED_MAX)(lambda ref: Mode(settings.prefetch_of(ref))), settings.list_ttl_of,
        settings.catalog_entries, descriptors.block_files, descriptors.fills, blocks_at_once,
        settings.prefetch_bandwidth, shares.clients_bytes, shares.listings_bytes,
        verify_always=settings.verify == "always", verify_origin=settings.verify_origin == "auto",
        stale_if_error=settings.stale_if_error, prefetch_off=settings.prefetch_off,
    )  # fmt: skip
    ports = EnginePorts(
        layout, disks, origin, metrics, clock, resources.patience, runtime, apart, resources.oddities, senders.tenants
    )
    engine = make_engine(
        chosen, ports, cluster, opened=miss_ratio.opened, templates=metrics.usage.templates, by_tenants=by_tenants
    )
    planner, store, versions, contents = engine.planner, engine.store, engine.versions, engine.contents
    origin_reader, scheduler, flights = engine.origin_reader, engine.scheduler, engine.flights
    version_lookup, reads, fills, prefetch = engine.version_lookup, engine.reads, engine.fills, engine.prefetch
    memory, list_cache, warmup_runner = engine.memory, engine.list_cache, engine.warmup_runner
    stack.callback(store.close)
    learned_file.load(newest_first([directory.orders for directory in present])[0], planner.registry)
    hits = HitLookup(layout, versions, store, clock)
    access = senders.access
    tenants = None if of_tenants is None else _tenants(of_tenants, senders, metrics, planner, prefetch, store)
    if cluster is not None:
        cluster.serve(engine.source, versions, store, flights, contents, version_lookup)
        cluster.read_ahead_together(planner, prefetch, blocks_at_once)
    pin_files = pin_file.PinFiles(disks, resources.wall_clock)
    pinning = Pinning(warmup_runner, fills, version_lookup, pin_files.save, pin_files.is_behind)
    pinning.restore(pin_file.load([directory.pins for directory in present]), capacity_bytes)
    # A cache in memory ends with the process: no later start needs the names that were written.
    touched: list[WrittenNamesFile] = []
    if not settings.cache_in_memory:
        runs = Runs.of(directories) if len(disks) > 1 else None
        touched = [WrittenNamesFile(disk.directory, disk.work, is_alone=cluster is None, runs=runs) for disk in disks]
    note = WrittenNamesFiles(touched, lambda ref: versions.may_have(ref) or version_lookup.is_looking_up(ref)).note

    def note_soon(ref: ObjectRef) -> None:
        tasks.spawn_apart(note([ref]), f"note {ref}")

    if touched and cluster is None:
        versions.on_other = note_soon
    passthrough = Passthrough(
        origin, origin_reader, versions, list_cache.forget, note,
        others=None if cluster is None else cluster.forgets,
        created=lambda ref: warmup_runner.hint(ref) if settings.warms(ref) else None,
    )  # fmt: skip
    warmups = Book()
    together = None if cluster is None else cluster.maintain(warmups, warmup_runner, pinning, apart)
    commands = MaintenanceCommands(
        warmups, warmup_runner, pinning, Verification(store, tasks.spawn), access, time.time, together
    )
    if cluster is not None:
        cluster.obey(commands)
    plans = prefetch if cluster is None else cluster.plans_of_all(prefetch, fills)
    readers = DiskReaders(READERS, "outrider-read", metrics.disk_wait_s.inc)
    lender = None
    if access.is_open and not chosen.verify_always:
        lender = Lender(hits, prefetch.note, metrics, clock, block_bytes=settings.block_size)
        stack.callback(lender.close)
        versions.on_change = lender.changed
    control = ControlBucket(
        lambda owner: outrider.status.for_client(owner), plans, commands,
        BatchParts(hits, reads, passthrough, prefetch, access, clock, readers, memory),
        access, metrics, time.time, lender=lender,
    )  # fmt: skip
    pages = None if cluster is None else cluster.lists_from()
    lists = Lists(list_cache, passthrough, origin_reader, runtime, pages)
    if cluster is not None:
        cluster.lists_for(lists)
    services = Services(reads, lists, passthrough, prefetch, warmup_runner.hint)
    server = _s3_server(settings, resources, services, hits, senders, control, memory, readers)
    metrics.before_scrape.append(prefetch.learned)
    overview = Overview(
        metrics, planner, miss_ratio, Prices(settings.price_per_gb, settings.price_per_1000_gets), clock,
        _verdicts(resources, capacity_bytes, flights, scheduler),
        capacity_bytes=capacity_bytes, name_of=partial(reader_shown, senders.names),
        oddities=resources.oddities, origin_wait=lambda: origin_reader.long_wait, contents=contents,
    )  # fmt: skip
    outrider = Outrider(
        settings, metrics, store, versions, flights, planner, prefetch, server, control,
        resources.credentials, overview, origin_reader, cluster, senders, lender,
    )  # fmt: skip
    outrider.status = StatusDocument(
        outrider.state, settings, metrics, Cache(store, versions, flights), prefetch.learned, overview,
        Maintenance(warmup_runner, warmups, pinning), None if cluster is None else cluster.part, tenants,
    )  # fmt: skip
    return outrider, Recovery(
        store, versions, touched=touched, wall_clock=resources.wall_clock, is_alone=cluster is None,
        under_way=lambda: passthrough.under_way, sizes=sizes,
    )  # fmt: skip


def _cluster(settings: Settings, resources: Resources, layout: BlockLayout, capacity_bytes: int) -> Cluster | None:
    """None: the node is alone, and nothing of a cluster is imported. Raises SettingsError."""
    if resources.peer_socket is None:
        return None
    from outrider.cluster_composition import Cluster

    return Cluster(
        settings, layout, capacity_bytes, resources.metrics, resources.tasks, resources.clock, resources.peer_socket,
        newest_first([directory.members for directory in resources.directories if directory.missing is None])[0],
    )  # fmt: skip


def _tenants(
    blocks: TenantBlocks, senders: Senders, metrics: Metrics, planner: Planner, prefetch: Prefetch,
    store: DiskBlockStore,
) -> TenantsPart:  # fmt: skip
    tenants = TenantsPart(blocks, metrics, senders.tenant_of)
    planner.share_line(blocks.tenants)
    prefetch.on_read = tenants.read_by
    store.on_reserved = lambda meta, count: blocks.reserved(meta.key, meta.version, count)
    return tenants


def _s3_server(
    settings: Settings, resources: Resources, services: Services, hits: HitLookup, senders: Senders,
    control: ControlBucket, memory: MemoryBudget, readers: DiskReaders,
) -> S3Server:  # fmt: skip
    metrics, spans = resources.metrics, _spans(senders, resources.traces)
    handler = S3Handler(
        services, senders.access, control, metrics, memory,
        HandlerSettings(settings.domain, settings.requests, settings.client_timeout_s), spans,
    )  # fmt: skip
    fast_path = FastPath(
        hits, senders.access, services.prefetch.note, metrics, handler.access_log,
        clock=resources.clock, domains=settings.domain, heads_bytes=resources.shares.heads_bytes, spans=spans,
    )  # fmt: skip
    server = S3Server(
        handler, fast_path,
        connections_max=resources.descriptors.clients, turned_away_max=resources.descriptors.turned_away,
        client_timeout_s=settings.client_timeout_s, client_idle_s=settings.client_idle_s,
        readers=readers,
    )  # fmt: skip
    resources.stack.push_async_callback(server.stop)
    return server


def _verdicts(
    resources: Resources, capacity_bytes: int, flights: FlightTable, scheduler: FillScheduler
) -> Verdicts:  # fmt: skip
    machine = resources.machine

    def sample() -> LoadSample:
        return LoadSample(
            machine.cpu(), lookup_wait_s=scheduler.question_s, is_disk_behind=flights.disk_lags,
            is_short_of_connections=machine.is_short_of_connections(), is_short_of_fills=scheduler.is_short,
        )  # fmt: skip

    return Verdicts(resources.metrics, replace(machine.setup, capacity_bytes=capacity_bytes), sample)


async def make_traces(settings: Settings, stack: AsyncExitStack) -> Traces | None:
    """None: traces are off, and OpenTelemetry is not imported. Raises SettingsError: it is not installed."""
    if not settings.traces:
        return None
    try:
        from outrider.adapters.origin.traced_origin import Traces
    except ImportError as error:
        raise SettingsError(
            f"--traces needs a package that is not installed ({error.name}): pip install 'outrider[tracing]'"
        ) from error
    traces = Traces()
    stack.push_async_callback(traces.close)
    return traces


def traced(origin: Origin, traces: Traces | None) -> Origin:
    if traces is None:
        return origin
    from outrider.adapters.origin.traced_origin import TracedOrigin

    return TracedOrigin(origin, traces.tracer)


def _spans(senders: Senders, traces: Traces | None) -> ServerSpans | None:
    if traces is None:
        return None
    from outrider.http.record.server_spans import ServerSpans

    return ServerSpans(traces.tracer, partial(reader_shown, senders.names))
