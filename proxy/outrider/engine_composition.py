"""The engine's part of the composition root: the parts between the ports and the protocols of clients.

The composition root gives it the real ports; tests of the engine give it fakes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from outrider.adapters.disk.block_store import DiskBlockStore
from outrider.adapters.disk.disk import Disk
from outrider.core.ahead.dataset.templates import Templates
from outrider.core.ahead.planner import Planner
from outrider.core.block_layout import BlockLayout
from outrider.core.cache.block_file import usual_disk_bytes
from outrider.core.cache.freshness import Freshness
from outrider.core.cache.memory_budget import MemoryBudget
from outrider.core.cache.pins import Pins
from outrider.core.cache.policies import POLICIES, EvictionPolicy
from outrider.core.cache.tenants import Tenants
from outrider.core.cluster.view import View
from outrider.core.model import ObjectRef
from outrider.core.origin.fill_limits import AimdLimit, BackgroundLimit
from outrider.core.origin.hedging import Hedging
from outrider.core.origin.token_bucket import TokenBucket
from outrider.engine.ahead.background_fill import BackgroundFill
from outrider.engine.ahead.event_log import BundledPolicy, EventLog, Later, call_later
from outrider.engine.ahead.prefetch import Mode, Prefetch, PrefetchPolicy
from outrider.engine.fill.block_source import BlockSource
from outrider.engine.fill.content_verification import ContentVerification, Listeners
from outrider.engine.fill.fill import BULK_BYTES, buffer_bytes
from outrider.engine.fill.fill_scheduler import FillScheduler
from outrider.engine.fill.flight_table import FlightTable
from outrider.engine.fill.origin_reader import OriginReader
from outrider.engine.fill.patience import Patience
from outrider.engine.fill.peer_block import PeerReader
from outrider.engine.listing.enumerate import Enumerator
from outrider.engine.listing.list_cache import ListCache
from outrider.engine.maintenance.warmup_runner import WarmupRunner
from outrider.engine.read.object_read import ObjectReads
from outrider.engine.read.version_cache import VersionCache
from outrider.engine.read.version_from_peers import PeerVersions
from outrider.engine.read.version_lookup import VersionLookup
from outrider.engine.tasks.runtime import Runtime
from outrider.metrics import Metrics
from outrider.origin_oddities import OriginOddities
from outrider.ports import Clock, Origin


class OtherMembers(PeerReader, PeerVersions, Protocol):
    """The reads of the other members of a cluster."""


class ClusterOfEngine(Protocol):
    """The cluster that the engine of a member belongs to. `reads` is there once `connect` was called."""

    @property
    def reads(self) -> OtherMembers: ...

    @property
    def remote_scheduler(self) -> FillScheduler:
        """The scheduler of the fills whose bytes a peer brings."""
        ...

    def near_first(self, policy: EvictionPolicy) -> EvictionPolicy: ...

    def connect(
        self, store: DiskBlockStore, versions: VersionCache, contents: ContentVerification, list_cache: ListCache
    ) -> None: ...

    def view(self) -> View:
        """The members of now."""
        ...


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """The settings of the engine. `policy`: a name of `POLICIES`, or `epoch`. `blocks_at_once`: prefetched blocks on
    their way, at most. `prefetch_bytes_s` 0: no limit. `list_ttl_of`: see `Settings.list_ttl_of`. `prefetch_off`:
    `mode_of` is off for all objects."""

    policy: str
    freshness_of: Callable[[ObjectRef], Freshness]
    mode_of: Callable[[ObjectRef], Mode]
    list_ttl_of: Callable[[str], float | None]
    catalog_entries: int
    open_files: int
    fills: int
    blocks_at_once: int
    prefetch_bytes_s: float
    memory_bytes: int
    listings_bytes: int
    verify_always: bool
    verify_origin: bool
    stale_if_error: bool
    prefetch_off: bool = False


@dataclass(frozen=True, slots=True)
class EnginePorts:
    """The ports. `runtime`: of work that readers wait for; `apart`: of the other work.

    A proxy leaves the rest at its defaults, but for `tenants`, which take turns on the line; None: clients are not
    distinguished. `fill_runtime` None: `runtime`. `later` makes the calls that report events to the planner. For the
    others, see `FlightTable` and `PrefetchPolicy`.
    """

    layout: BlockLayout
    disks: Sequence[Disk]
    origin: Origin
    metrics: Metrics
    clock: Clock
    patience: Patience
    runtime: Runtime
    apart: Runtime
    oddities: OriginOddities | None = None
    tenants: Tenants | None = None
    fill_runtime: Runtime | None = None
    buffer_bytes_of: Callable[[int], int] = buffer_bytes
    bulk_bytes: int = BULK_BYTES
    later: Later = call_later
    cpu: Clock = time.thread_time


@dataclass(frozen=True, slots=True)
class Engine:
    """The parts of the engine, connected."""

    layout: BlockLayout
    pins: Pins
    planner: Planner
    store: DiskBlockStore
    versions: VersionCache
    scheduler: FillScheduler
    origin_reader: OriginReader
    contents: ContentVerification
    memory: MemoryBudget
    list_cache: ListCache
    source: BlockSource
    flights: FlightTable
    version_lookup: VersionLookup
    reads: ObjectReads
    enumerator: Enumerator
    fills: BackgroundFill
    prefetch: Prefetch
    warmup_runner: WarmupRunner


def make_engine(
    settings: EngineSettings, ports: EnginePorts, cluster: ClusterOfEngine | None = None, *,
    opened: Callable[[ObjectRef, int], None] = lambda ref, size: None, templates: Templates | None = None,
    by_tenants: Callable[[EvictionPolicy], EvictionPolicy] = lambda policy: policy,
) -> Engine:  # fmt: skip
    """`cluster` None: the node is alone. `opened`: called for each object that is read, with its size. `by_tenants`:
    the eviction policy that is around the one of the settings."""
    layout, metrics, clock = ports.layout, ports.metrics, ports.clock
    pins = Pins(lambda size: layout.disk_bytes(size, usual_disk_bytes), layout.version_id)
    planner = Planner(
        sum(disk.budget.capacity_bytes for disk in ports.disks), layout.block_bytes,
        keys_max=settings.catalog_entries, disk_bytes=usual_disk_bytes, opened=opened,
        believed_s=lambda ref: settings.freshness_of(ref).ttl_s,
        fetches=lambda ref: settings.mode_of(ref) is Mode.EPOCH, pins=pins, templates=templates,
    )  # fmt: skip
    # That of near blocks is around that of tenants: of a near block of any tenant another member has a copy.
    policy = by_tenants(planner if settings.policy == "epoch" else POLICIES[settings.policy]())
    policy = policy if cluster is None else cluster.near_first(policy)
    evicts, events = settings.policy == "epoch", EventLog(clock, ports.later)
    if evicts:
        policy = BundledPolicy(policy, events)
    store = DiskBlockStore(
        ports.disks, policy, metrics, clock, open_files=settings.open_files, verify_always=settings.verify_always,
        pins=pins,
    )  # fmt: skip
    versions = VersionCache(
        layout.origin, settings.freshness_of, clock, settings.catalog_entries, layout.version_id
    )  # fmt: skip
    scheduler = FillScheduler(AimdLimit(settings.fills), BackgroundLimit(settings.fills), clock, ports.tenants)
    origin_reader = OriginReader(ports.origin, ports.patience, metrics, scheduler, Hedging(), ports.oddities)
    contents = ContentVerification(layout, origin_reader, ports.apart, metrics, on=settings.verify_origin)
    listeners = Listeners(versions.forget_now, versions.stale)
    contents.connect(store, replace(listeners, proved=partial(events.add, planner.proved)) if evicts else listeners)
    store.contents = contents
    memory = MemoryBudget(settings.memory_bytes)
    list_cache = ListCache(settings.list_ttl_of, clock, settings.listings_bytes, memory)
    if cluster is not None:
        cluster.connect(store, versions, contents, list_cache)
        scheduler.share_line(cluster.remote_scheduler)
    peers = None if cluster is None else cluster.reads
    source = BlockSource(origin_reader, peers)
    flights = FlightTable(
        layout, source, store, contents, scheduler, ports.fill_runtime or ports.runtime,
        buffer_bytes_of=ports.buffer_bytes_of, bulk_bytes=ports.bulk_bytes,
        remote_scheduler=None if cluster is None else cluster.remote_scheduler,
    )  # fmt: skip
    version_lookup = VersionLookup(
        layout, origin_reader, versions, flights, ports.runtime, stale_if_error=settings.stale_if_error, peers=peers
    )
    reads = ObjectReads(layout, source, versions, store, flights, contents, version_lookup, scheduler, metrics)
    enumerator = Enumerator(origin_reader, memory, versions)
    fills = BackgroundFill(
        layout, versions, store, flights, contents, version_lookup, metrics,
        TokenBucket(settings.prefetch_bytes_s, clock()),
    )  # fmt: skip
    prefetching = PrefetchPolicy(settings.mode_of, settings.blocks_at_once, evicts, settings.prefetch_off, ports.cpu)
    prefetch = Prefetch(planner, fills, enumerator, scheduler, ports.apart, prefetching, events)
    warmup_runner = WarmupRunner(
        layout, versions, store, fills, enumerator, pins, ports.apart, blocks_at_once=settings.blocks_at_once,
        view=None if cluster is None else cluster.view, tenants=ports.tenants,
    )  # fmt: skip
    return Engine(
        layout, pins, planner, store, versions, scheduler, origin_reader, contents, memory, list_cache, source,
        flights, version_lookup, reads, enumerator, fills, prefetch, warmup_runner,
    )  # fmt: skip
