"""An engine under test: its real parts, a real disk cache in a temporary directory, a fake origin and a fake clock."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from outrider.adapters.disk.block_dir import BlockDir
from outrider.adapters.disk.block_store import DiskBlockStore
from outrider.adapters.disk.disk import Disk
from outrider.core.ahead.planner import Planner
from outrider.core.block_layout import BlockLayout
from outrider.core.cache.block_file import usual_disk_bytes
from outrider.core.cache.disk_budget import DiskBudget
from outrider.core.cache.freshness import Freshness
from outrider.core.cache.memory_budget import MemoryBudget
from outrider.core.cache.pins import Pins
from outrider.core.cache.policies import POLICIES, EvictionPolicy
from outrider.core.cache.tenants import Tenants
from outrider.core.cluster.view import View
from outrider.core.model import ObjectRef
from outrider.core.origin.aimd import AimdLimit
from outrider.core.origin.background_limit import BackgroundLimit
from outrider.core.origin.hedging import Hedging
from outrider.core.origin.token_bucket import TokenBucket
from outrider.engine.ahead.background_fill import BackgroundFill
from outrider.engine.ahead.prefetch import Later, Mode, Prefetch, PrefetchPolicy
from outrider.engine.cluster.forgets import ForgetQueues
from outrider.engine.cluster.peer_reader import PeerReads
from outrider.engine.fill.block_source import BlockSource
from outrider.engine.fill.content_verification import ContentVerification, Listeners
from outrider.engine.fill.fill import BULK_BYTES
from outrider.engine.fill.fill_scheduler import FillScheduler
from outrider.engine.fill.flight_table import FlightTable
from outrider.engine.fill.origin_reader import OriginReader
from outrider.engine.fill.patience import Patience
from outrider.engine.fill.peer_block import IncomingBody, PeerReader
from outrider.engine.listing.enumerate import Enumerator
from outrider.engine.listing.list_cache import ListCache
from outrider.engine.maintenance.warmup_runner import WarmupRunner
from outrider.engine.read.body_pieces import Body, EarlyPiece, FilePiece, Piece
from outrider.engine.read.object_read import ObjectReads, ReadAnswer
from outrider.engine.read.version_cache import VersionCache
from outrider.engine.read.version_lookup import VersionLookup
from outrider.engine.tasks.runtime import Runtime
from outrider.engine.write.passthrough import Passthrough
from outrider.metrics import Metrics
from tests.support.fakes import FakeClock, FakeOrigin, FakeTasks, no_wait_patience

BLOCK = 64 * 1024
REF = ObjectRef("train", "a.tar")


def as_large(fills: int) -> int:
    """The buffer of a fill of large blocks: half a block."""
    return BLOCK // 2


async def at_once(seconds: float) -> None:
    """A sleep that takes no time."""


def called_at_once(seconds: float, act: Callable[[], None]) -> None:
    """Stands in for a function that makes calls later: it makes them at once."""
    act()


def as_small(fills: int) -> int:
    """The buffer of a fill of small blocks: a whole block."""
    return BLOCK


def by_threads(fills: int) -> int:
    """In place of a buffer: each fill is received as large ones are, by a thread that writes."""
    return BLOCK


@dataclass(frozen=True, slots=True)
class Joined:
    """The parts that make an engine a member of a cluster."""

    reads: PeerReads
    forgets: ForgetQueues
    view: Callable[[], View]


class Join(Protocol):
    """Makes an engine a member of a cluster (`tests.support.members`)."""

    def near_first(self, policy: EvictionPolicy) -> EvictionPolicy: ...

    def parts(
        self, layout: BlockLayout, versions: VersionCache, contents: ContentVerification, list_cache: ListCache,
        runtime: Runtime, metrics: Metrics,
    ) -> Joined: ...  # fmt: skip


@dataclass(slots=True)
class Engine:
    """All parts of one proxy, without its network ports."""

    origin: FakeOrigin
    layout: BlockLayout
    clock: FakeClock
    tasks: FakeTasks
    metrics: Metrics
    store: DiskBlockStore
    versions: VersionCache
    flights: FlightTable
    reads: ObjectReads
    passthrough: Passthrough
    prefetch: Prefetch
    """It prefetches only if the policy is `epoch` and it is told of reads."""
    planner: Planner
    scheduler: FillScheduler
    pins: Pins
    warmup_runner: WarmupRunner
    version_lookup: VersionLookup
    fills: BackgroundFill
    contents: ContentVerification
    source: BlockSource

    async def get(self, ref: ObjectRef = REF, **headers: str) -> bytes:
        """The body of a GET; `headers` with `_` for `-`."""
        answer = await self.reads.get(ref, _named(headers))
        return await taken(answer)

    async def range(self, start: int, stop: int, ref: ObjectRef = REF) -> bytes:
        return await self.get(ref, range=f"bytes={start}-{stop - 1}")


def _named(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


async def all_of(body: IncomingBody) -> bytes:
    """All bytes of a body that comes in."""
    async with aclosing(body):
        whole = b""
        while piece := await body.some():
            whole += piece
        return whole


def bytes_of(piece: Piece) -> bytes:
    """The bytes that the kernel would send."""
    if isinstance(piece, FilePiece):
        found = os.pread(piece.fd, piece.count, piece.offset)
        assert len(found) == piece.count, "the file is shorter than the piece"
        return found
    return bytes(piece.data) if isinstance(piece, EarlyPiece) else piece


async def pieces_of(body: Body) -> AsyncIterator[bytes]:
    try:
        async for piece in body:
            yield bytes_of(piece)
            await asyncio.sleep(0)
    finally:
        await body.aclose()


async def taken(answer: ReadAnswer) -> bytes:
    """The whole body. An answer shorter than its length fails the test."""
    body = bytearray()
    if answer.body is not None:
        async with aclosing(pieces_of(answer.body)) as pieces:  # type: ignore[type-var]
            async for piece in pieces:
                body += piece
        assert len(body) == answer.length
    return bytes(body)


@contextmanager
def engine(
    root: Path, origin: FakeOrigin | None = None, *, directory: BlockDir | None = None,
    capacity_bytes: int = 64 * 1024 * 1024, min_free_bytes: int = 0, policy: str = "lru", freshness: str = "ttl:60",
    stale_if_error: bool = False, fills_max: int = 64, verify_always: bool = False, clock: FakeClock | None = None,
    catalog_entries: int = 10_000, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    patience: Patience | None = None, prefetch: Mode = Mode.EPOCH, prefetch_blocks: int = 64,
    prefetch_bytes_s: float = 0.0, buffer_bytes: Callable[[int], int] = as_large,
    reads_on: Callable[[float], Awaitable[object]] = at_once, later: Later = called_at_once,
    cpu: Callable[[], float] | None = None, peers: PeerReader | None = None, verify_origin: bool = False,
    join: Join | None = None, tenants: Tenants | None = None,
) -> Iterator[Engine]:  # fmt: skip
    """`buffer_bytes`: `as_large`, `as_small`, where each block is written whole, or `by_threads`. `reads_on`: the sleep
    for which the disk work of a small block waits. `cpu`: the CPU time of the engine's thread; None: the fake clock.
    `later`: makes the calls that may wait until a reader has requested more. `join`: makes the engine a member of a
    cluster. `tenants`: take turns on the line."""
    origin = origin or FakeOrigin()
    clock = clock or FakeClock()
    tasks, metrics = FakeTasks(), Metrics()
    mode = Freshness.parse(freshness)
    layout = BlockLayout(origin.endpoint, BLOCK)
    pins = Pins(lambda size: layout.disk_bytes(size, usual_disk_bytes), layout.version_id)
    planner = Planner(capacity_bytes, BLOCK, disk_bytes=usual_disk_bytes, believed_s=lambda _: mode.ttl_s,
                      fetches=lambda _: prefetch is Mode.EPOCH, pins=pins)  # fmt: skip
    its_policy: EvictionPolicy = planner if policy == "epoch" else POLICIES[policy]()
    if join is not None:
        its_policy = join.near_first(its_policy)
    store = DiskBlockStore(
        [Disk(directory or BlockDir.open(root), DiskBudget(capacity_bytes, min_free_bytes), metrics, clock)],
        its_policy, metrics, clock,
        verify_always=verify_always, pins=pins,
    )  # fmt: skip
    versions = VersionCache(origin.endpoint, lambda _: mode, clock, catalog_entries, layout.version_id)
    scheduler = FillScheduler(AimdLimit(fills_max), BackgroundLimit(fills_max), clock, tenants)
    origin_reader = OriginReader(origin, patience or no_wait_patience(), metrics, scheduler, Hedging())
    runtime = Runtime(tasks.spawn, clock, sleep)
    contents = ContentVerification(layout, origin_reader, runtime, metrics, on=verify_origin)
    contents.connect(store, Listeners(versions.forget_now, versions.stale, planner.proved))
    store.contents = contents
    memory = MemoryBudget(64 * 1024 * 1024)
    list_cache = ListCache(lambda prefix: None, clock, 1 << 20, memory)
    joined = None if join is None else join.parts(layout, versions, contents, list_cache, runtime, metrics)
    source = BlockSource(origin_reader, peers if joined is None else joined.reads)
    remote_scheduler = FillScheduler(AimdLimit(fills_max), BackgroundLimit(fills_max), clock)
    if joined is not None:
        scheduler.share_line(remote_scheduler)
    flights = FlightTable(
        layout,
        source,
        store,
        contents,
        scheduler,
        replace(runtime, sleep=reads_on),
        buffer_bytes_of=buffer_bytes,
        bulk_bytes=1 if buffer_bytes is by_threads else BULK_BYTES,
        remote_scheduler=remote_scheduler,
    )
    version_lookup = VersionLookup(
        layout, origin_reader, versions, flights, runtime, stale_if_error=stale_if_error,
        peers=None if joined is None else joined.reads,
    )  # fmt: skip
    reads = ObjectReads(layout, source, versions, store, flights, contents, version_lookup, scheduler, metrics)
    passthrough = Passthrough(
        origin, origin_reader, versions, list_cache.forget, elsewhere=None if joined is None else joined.forgets
    )
    enumerator = Enumerator(origin_reader, memory, versions)
    fills = BackgroundFill(
        layout,
        versions,
        store,
        flights,
        contents,
        version_lookup,
        metrics,
        TokenBucket(prefetch_bytes_s, clock()),
    )
    prefetching = PrefetchPolicy(lambda _: prefetch, prefetch_blocks, policy == "epoch", later, cpu or clock)
    ahead = Prefetch(planner, fills, enumerator, scheduler, runtime, prefetching)
    warmup_runner = WarmupRunner(
        layout, versions, store, fills, enumerator, pins, runtime, blocks_at_once=prefetch_blocks,
        view=None if joined is None else joined.view, tenants=tenants,
    )  # fmt: skip
    try:
        yield Engine(
            origin, layout, clock, tasks, metrics, store, versions, flights, reads, passthrough, ahead, planner,
            scheduler, pins, warmup_runner, version_lookup, fills, contents, source,
        )  # fmt: skip
    finally:
        store.close()
