"""An engine under test: its real parts, a real disk cache in a temporary directory, a fake origin and a fake clock."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Protocol

from outrider.adapters.disk.block_dir import BlockDir
from outrider.adapters.disk.block_store import DiskBlockStore
from outrider.adapters.disk.disk import Disk
from outrider.adapters.disk.slots import Slot
from outrider.core.block_layout import BlockLayout
from outrider.core.cache.disk_limits import DiskBudget
from outrider.core.cache.freshness import Freshness
from outrider.core.cache.policies import EvictionPolicy
from outrider.core.cache.tenants import Tenants
from outrider.core.cluster.view import View
from outrider.core.model import BlockKey, ObjectRef, ObjectVersion
from outrider.core.origin.fill_limits import AimdLimit, BackgroundLimit
from outrider.engine.ahead.event_log import Later
from outrider.engine.ahead.prefetch import Mode
from outrider.engine.cluster.forgets import ForgetQueues
from outrider.engine.fill.fill import BULK_BYTES
from outrider.engine.fill.fill_scheduler import FillScheduler
from outrider.engine.fill.flight import Flight
from outrider.engine.fill.flight_table import FlightTable
from outrider.engine.fill.patience import Patience
from outrider.engine.fill.peer_block import IncomingBody, PeerBlock, PeerReader
from outrider.engine.read.body_pieces import Body, EarlyPiece, FilePiece, Piece
from outrider.engine.read.object_read import ReadAnswer
from outrider.engine.tasks.runtime import Runtime
from outrider.engine.write.passthrough import Passthrough
from outrider.engine_composition import ClusterOfEngine, EnginePorts, EngineSettings, make_engine
from outrider.engine_composition import Engine as Parts
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


class Join(ClusterOfEngine, Protocol):
    """Makes an engine a member of a cluster (`tests.support.members`)."""

    forgets: ForgetQueues

    def begin(self, layout: BlockLayout, runtime: Runtime, metrics: Metrics) -> None:
        """Called first."""
        ...


@dataclass
class OnlyBlocks:
    """A cluster of which `peers` bring blocks, and in which nobody else knows a version."""

    peers: PeerReader
    remote_scheduler: FillScheduler

    @property
    def reads(self) -> Any:
        return self

    def block(self, version: ObjectVersion, index: int) -> PeerBlock | None:
        return self.peers.block(version, index)

    def origin_flowed(self, count: int, waited_s: float, *, is_first: bool) -> None:
        self.peers.origin_flowed(count, waited_s, is_first=is_first)

    def has_owner(self, ref: ObjectRef, index: int) -> bool:
        return False

    def had_authority(self, ref: ObjectRef) -> bool:
        return False

    def near_first(self, policy: EvictionPolicy) -> EvictionPolicy:
        return policy

    def connect(self, *parts: object) -> None: ...

    def view(self) -> View:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Engine(Parts):
    """All parts of one proxy, without its network ports. `prefetch` prefetches only if the policy is `epoch` and it is
    notified of reads."""

    origin: FakeOrigin
    clock: FakeClock
    tasks: FakeTasks
    metrics: Metrics
    passthrough: Passthrough

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
    return bytes(piece.data if isinstance(piece, EarlyPiece) else piece)


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


def slot_of(store: DiskBlockStore, block: BlockKey) -> Slot:
    return store._slots[block]


def flights_of(table: FlightTable) -> list[Flight]:
    return list(table._flights.values())


async def cleaned(disk: Disk) -> None:
    """The files that the disk is removing are gone, and their room is free."""
    while disk.leaving or disk.work.is_cleaning:
        await asyncio.sleep(0)


async def nothing_is_left(room: Parts) -> None:
    """No flight, slot, lease or reserved byte, once its background tasks have ended."""
    assert len(room.flights) == 0
    assert room.scheduler.is_idle
    assert room.store.leases() == 0
    for disk in room.store.disks:
        await cleaned(disk)
    slots = [slot_of(room.store, block) for block in room.store.present()]
    assert not any(slot.in_use for slot in slots)
    assert room.store.used_bytes == sum(slot.disk_bytes for slot in slots)


@contextmanager
def engine(
    root: Path, origin: FakeOrigin | None = None, *, directory: BlockDir | None = None,
    capacity_bytes: int = 64 * 1024 * 1024, min_free_bytes: int = 0, policy: str = "lru", freshness: str = "ttl:60",
    stale_if_error: bool = False, fills_max: int = 64, verify_always: bool = False, clock: FakeClock | None = None,
    catalog_entries: int = 1_000_000, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
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
    mode, layout = Freshness.parse(freshness), BlockLayout(origin.endpoint, BLOCK)
    runtime = Runtime(tasks.spawn, clock, sleep)
    chosen = EngineSettings(
        policy, lambda _: mode, lambda _: prefetch, lambda prefix: None, catalog_entries, 256, fills_max,
        prefetch_blocks, prefetch_bytes_s, memory_bytes=64 * 1024 * 1024, listings_bytes=1 << 20,
        verify_always=verify_always, verify_origin=verify_origin, stale_if_error=stale_if_error,
        prefetch_off=prefetch is Mode.OFF,
    )  # fmt: skip
    disk = Disk(directory or BlockDir.open(root), DiskBudget(capacity_bytes, min_free_bytes), metrics, clock)
    ports = EnginePorts(
        layout, [disk], origin, metrics, clock, patience or no_wait_patience(), runtime, runtime, tenants=tenants,
        fill_runtime=replace(runtime, sleep=reads_on), buffer_bytes_of=buffer_bytes,
        bulk_bytes=1 if buffer_bytes is by_threads else BULK_BYTES, later=later, cpu=cpu or clock,
    )  # fmt: skip
    if join is not None:
        join.begin(layout, runtime, metrics)
    scheduler = FillScheduler(AimdLimit(fills_max), BackgroundLimit(fills_max), clock)
    parts = make_engine(chosen, ports, join or (None if peers is None else OnlyBlocks(peers, scheduler)))
    passthrough = Passthrough(
        origin, parts.origin_reader, parts.versions, parts.list_cache.forget,
        others=None if join is None else join.forgets,
    )  # fmt: skip
    try:
        made: dict[str, Any] = {each.name: getattr(parts, each.name) for each in fields(parts)}
        yield Engine(**made, origin=origin, clock=clock, tasks=tasks, metrics=metrics, passthrough=passthrough)
    finally:
        parts.store.close()
