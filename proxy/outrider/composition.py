"""The composition root: makes each part of the proxy and gives it the parts that it needs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from outrider.adapters.disk.block_dir import BlockDir
from outrider.adapters.disk.block_store import DiskBlockStore
from outrider.adapters.disk.disk import Sizes, disks_of
from outrider.adapters.disk.recovery import Recovery
from outrider.adapters.disk.written_names import Runs, WrittenNamesFile, WrittenNamesFiles
from outrider.adapters.origin.credentials import AwsCredentials
from outrider.adapters.process.port_tls import PortTls
from outrider.adapters.process.read_again import Bell
from outrider.adapters.state import learned_file, newest, pin_file
from outrider.core.ahead.planner import Planner
from outrider.core.block_layout import BlockLayout
from outrider.core.cache import block_file
from outrider.core.cache.descriptor_budget import DescriptorBudget
from outrider.core.cache.memory_budget import MemoryBudget, Shares
from outrider.core.cache.pins import Pins, SavedPin
from outrider.core.cache.policies import POLICIES, EvictionPolicy
from outrider.core.cache.tenant_blocks import TenantBlocks
from outrider.core.insight.load import CpuTimes
from outrider.core.insight.miss_ratio import MissRatioCurve
from outrider.core.insight.next_step import Setup
from outrider.core.insight.usage import Prices
from outrider.core.model import ObjectRef
from outrider.core.origin.aimd import AimdLimit
from outrider.core.origin.background_limit import BackgroundLimit
from outrider.core.origin.hedging import Hedging
from outrider.core.origin.token_bucket import TokenBucket
from outrider.engine.ahead.background_fill import BackgroundFill
from outrider.engine.ahead.prefetch import Mode, Prefetch, PrefetchPolicy
from outrider.engine.fill.block_source import BlockSource
from outrider.engine.fill.content_verification import ContentVerification, Listeners
from outrider.engine.fill.fill_scheduler import FillScheduler
from outrider.engine.fill.flight_table import FlightTable
from outrider.engine.fill.origin_reader import OriginReader
from outrider.engine.fill.patience import Patience
from outrider.engine.listing.enumerate import Enumerator
from outrider.engine.listing.list_cache import ListCache
from outrider.engine.listing.lists import Lists
from outrider.engine.maintenance.pinning import Pinning
from outrider.engine.maintenance.verification import Verification
from outrider.engine.maintenance.warmup import Book
from outrider.engine.maintenance.warmup_runner import WarmupRunner
from outrider.engine.read.hit_lookup import HitLookup
from outrider.engine.read.object_read import ObjectReads
from outrider.engine.read.version_cache import VersionCache
from outrider.engine.read.version_lookup import VersionLookup
from outrider.engine.status.document import Cache, Maintenance, StatusDocument
from outrider.engine.status.overview import Overview
from outrider.engine.status.tenants_part import TenantsPart
from outrider.engine.status.verdicts import Parts, Verdicts
from outrider.engine.tasks.background import Background
from outrider.engine.tasks.runtime import Runtime
from outrider.engine.write.passthrough import Passthrough
from outrider.engine.write.written_names import note_written
from outrider.http.access import Senders, reader_shown
from outrider.http.control.batch_objects import BatchParts
from outrider.http.control.batches import Batches
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


@dataclass(slots=True)
class Outrider:
    """A running proxy."""

    settings: Settings
    metrics: Metrics
    store: DiskBlockStore
    versions: VersionCache
    flights: FlightTable
    planner: Planner
    miss_ratio: MissRatioCurve
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


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine and its limits, for the verdict. `setup` has no `capacity_bytes` yet. See `Parts` for the others."""

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
    shares: Shares
    tasks: Background
    stack: AsyncExitStack
    descriptors: DescriptorBudget
    traces: Traces | None
    clock: Clock
    wall_clock: Clock
    patience: Patience
    machine: Machine
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
    pins = Pins(lambda size: layout.disk_bytes(size, block_file.usual_disk_bytes), layout.version_id)
    planner = Planner(
        capacity_bytes,
        settings.block_size,
        keys_max=settings.catalog_entries,
        disk_bytes=block_file.usual_disk_bytes,
        opened=miss_ratio.opened,
        believed_s=lambda ref: settings.freshness_of(ref).ttl_s,
        fetches=lambda ref: settings.prefetch_of(ref) == "epoch",
        pins=pins,
        templates=metrics.usage.templates,
    )
    learned_file.load(newest([directory.orders for directory in present]), planner.registry)
    cluster = _cluster(settings, resources, layout, capacity_bytes)
    senders = Senders(settings)
    policy = planner if settings.policy == "epoch" else POLICIES[settings.policy]()
    of_tenants = None if senders.tenants is None else TenantBlocks(
        policy, senders.tenants, capacity_bytes, layout, block_file.usual_disk_bytes, lambda block: store.has(block)
    )  # fmt: skip
    # That of near blocks is around that of tenants: of a near block of any tenant another member has a copy.
    its_policy: EvictionPolicy = of_tenants or policy
    its_policy = its_policy if cluster is None else cluster.near_first(its_policy)
    always = settings.verify == "always"
    store = DiskBlockStore(
        disks, its_policy, metrics, clock, open_files=descriptors.block_files, verify_always=always, pins=pins
    )
    stack.callback(store.close)
    versions = VersionCache(origin.endpoint, settings.freshness_of, clock, settings.catalog_entries, layout.version_id)
    scheduler = FillScheduler(AimdLimit(descriptors.fills), BackgroundLimit(descriptors.fills), clock, senders.tenants)
    origin_reader = OriginReader(origin, resources.patience, metrics, scheduler, Hedging(), resources.oddities)
    runtime, apart = Runtime(tasks.spawn, clock), Runtime(tasks.spawn_apart, clock)
    contents = ContentVerification(layout, origin_reader, apart, metrics, on=settings.verify_origin == "auto")
    contents.connect(store, Listeners(versions.forget_now, versions.stale, planner.proved))
    store.contents = contents
    memory = MemoryBudget(shares.clients_bytes)
    list_cache = ListCache(settings.list_ttl_of, clock, shares.listings_bytes, memory)
    in_memory = settings.cache_in_memory
    if cluster is not None:
        cluster.connect(store, versions, contents, list_cache, in_memory=in_memory)
    peers = None if cluster is None else cluster.reads
    source = BlockSource(origin_reader, peers)
    if cluster is not None:
        scheduler.share_line(cluster.remote_scheduler)
    flights = FlightTable(
        layout, source, store, contents, scheduler, runtime,
        remote_scheduler=None if cluster is None else cluster.remote_scheduler,
    )  # fmt: skip
    version_lookup = VersionLookup(
        layout, origin_reader, versions, flights, runtime, stale_if_error=settings.stale_if_error, peers=peers
    )
    if cluster is not None:
        cluster.serve(source, versions, store, flights, contents, version_lookup)
    reads = ObjectReads(layout, source, versions, store, flights, contents, version_lookup, scheduler, metrics)
    hits = HitLookup(layout, versions, store, clock)
    access = senders.access
    enumerator = Enumerator(origin_reader, memory, versions)
    fills = BackgroundFill(
        layout, versions, store, flights, contents, version_lookup, metrics,
        TokenBucket(settings.prefetch_bandwidth, clock()),
    )  # fmt: skip
    blocks_at_once = min(settings.prefetch_blocks, descriptors.fills)
    prefetching = PrefetchPolicy(lambda ref: Mode(settings.prefetch_of(ref)), blocks_at_once, evicts=policy is planner)
    prefetch = Prefetch(planner, fills, enumerator, scheduler, apart, prefetching)
    tenants = None if of_tenants is None else _tenants(of_tenants, senders, metrics, planner, prefetch, store)
    if cluster is not None:
        cluster.read_ahead_together(planner, prefetch, blocks_at_once)
    warmup_runner = WarmupRunner(
        layout, versions, store, fills, enumerator, pins, apart, blocks_at_once=blocks_at_once,
        view=None if cluster is None else cluster.view, tenants=senders.tenants,
    )  # fmt: skip
    pinning = Pinning(warmup_runner, fills, version_lookup, lambda saved: _save_pins(store, saved))
    pinning.restore(pin_file.load(newest([directory.pins for directory in present])), capacity_bytes)
    # A cache in memory ends with the process: no later start needs the names that were written.
    touched: list[WrittenNamesFile] = []
    if not in_memory:
        runs = Runs.of(directories) if len(disks) > 1 else None
        touched = [WrittenNamesFile(disk.directory, disk.work, is_alone=cluster is None, runs=runs) for disk in disks]
    note = partial(note_written, WrittenNamesFiles(touched) if touched else None, versions, version_lookup)

    def note_soon(ref: ObjectRef) -> None:
        tasks.spawn_apart(note([ref]), f"note {ref}")

    if touched and cluster is None:
        versions.on_other = note_soon
    passthrough = Passthrough(
        origin, origin_reader, versions, list_cache.forget, note,
        elsewhere=None if cluster is None else cluster.forgets,
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
    if access.is_open and not always:
        lender = Lender(hits, prefetch.note, metrics, clock, block_bytes=settings.block_size)
        stack.callback(lender.close)
        versions.on_change = lender.changed
    control = ControlBucket(
        lambda owner: outrider.status.for_client(owner), plans, commands,
        Batches(
            BatchParts(hits, reads, passthrough, prefetch, access, clock, readers), memory, metrics.usage.dataset_of
        ),
        access, metrics, time.time, lender=lender,
    )  # fmt: skip
    services = Services(reads, Lists(list_cache, passthrough, origin_reader), passthrough, prefetch, warmup_runner.hint)
    server = _s3_server(settings, resources, services, hits, senders, control, memory, readers)
    parts = Parts(resources.machine.cpu, resources.machine.is_short_of_connections, flights, scheduler)
    setup = replace(resources.machine.setup, capacity_bytes=capacity_bytes)
    overview = Overview(
        metrics, planner, miss_ratio, Prices(settings.price_per_gb, settings.price_per_1000_gets), clock,
        Verdicts(metrics, setup, parts),
        capacity_bytes=capacity_bytes, name_of=partial(reader_shown, senders.names),
        oddities=resources.oddities, origin_wait=lambda: origin_reader.long_wait, contents=contents,
    )  # fmt: skip
    outrider = Outrider(
        settings,
        metrics,
        store,
        versions,
        flights,
        planner,
        miss_ratio,
        prefetch,
        server,
        control,
        resources.credentials,
        overview,
        origin_reader,
        cluster,
        senders,
        lender,
    )
    outrider.status = StatusDocument(
        outrider, settings, metrics, Cache(store, versions, flights), server, planner, overview,
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
        newest([directory.members for directory in resources.directories if directory.missing is None]),
    )  # fmt: skip


def _tenants(
    blocks: TenantBlocks, senders: Senders, metrics: Metrics, planner: Planner, prefetch: Prefetch,
    store: DiskBlockStore,
) -> TenantsPart:  # fmt: skip
    tenants = TenantsPart(blocks, metrics, senders.tenant_of)
    planner.share_line(blocks.tenants)
    prefetch.on_read = tenants.read_by
    store.on_reserved = tenants.reserved
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


async def _save_pins(store: DiskBlockStore, saved: Sequence[SavedPin]) -> None:
    # On every disk: pins outlive any but the last of them. A start takes the newest ones.
    disks = store.working_disks
    saving = [pin_file.save(disk.directory.pins, saved, disk.work) for disk in disks]
    failed = [error for error in await asyncio.gather(*saving, return_exceptions=True) if error is not None]
    if len(failed) == len(disks):
        raise failed[0]
