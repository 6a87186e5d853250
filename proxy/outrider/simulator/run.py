"""The virtual-time run: readers, a store, an origin of limited bandwidth, and the very policy that the proxy uses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

from outrider.core.eviction import POLICIES, Policy
from outrider.core.model import BlockKey, Extent, ObjectRef, ObjectVersion, version_id
from outrider.core.planner import Planner
from outrider.core.window import window_blocks
from outrider.simulator.worlds import JobSpec

AWAITED, AHEAD, PREFETCH = 0, 1, 2


@dataclass(slots=True)
class Epoch:
    job: str
    number: int
    opened: int = 0
    hits: int = 0
    block_hits: float = 0.0
    stall_s: float = 0.0
    took_s: float = 0.0
    origin_bytes: int = 0
    dataset_bytes: int = 0
    wasted_bytes: int = 0

    @property
    def hit_ratio(self) -> float:
        return self.hits / max(1, self.opened)

    @property
    def traffic(self) -> float:
        return self.origin_bytes / max(1, self.dataset_bytes)


@dataclass(slots=True)
class _Fill:
    block: BlockKey
    shard: _Shard
    size: int
    urgency: tuple[int, float]
    running: bool = False
    relayed: bool = False
    waiters: list[Callable[[], None]] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Shard:
    ref: ObjectRef
    version: ObjectVersion
    vid: bytes
    blocks: list[tuple[BlockKey, int]]


class Simulation:
    def __init__(
        self, jobs: list[JobSpec], *, policy: str, capacity_bytes: int, origin_bytes_s: float, latency_s: float = 0.05,
        block_bytes: int = 8 * 2**20, prefetch: bool = True, listing: bool = True,
    ) -> None:  # fmt: skip
        self.block_bytes = block_bytes
        self.capacity_bytes = capacity_bytes
        self.origin_bytes_s = origin_bytes_s
        self.latency_s = latency_s
        self.listing = listing
        self.planner = Planner(capacity_bytes, block_bytes) if policy == "epoch" else None
        self.prefetch = prefetch and self.planner is not None
        self.policy: Policy = self.planner if self.planner is not None else POLICIES[policy]()
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = count()
        self._present: dict[BlockKey, int] = {}
        self._pins: Counter[BlockKey] = Counter()
        self._used_bytes = 0
        self._fills: dict[BlockKey, _Fill] = {}
        self._queue: list[tuple[tuple[int, float], int, _Fill]] = []
        self._busy = False
        self._prefetching = 0
        self.used_bytes_max = 0
        self.origin_bytes = 0
        self.epochs: list[Epoch] = []
        self.trace: list[tuple[str, int]] = []
        self._shards: dict[str, _Shard] = {}
        self._live = len(jobs)
        for job in jobs:
            _Job(self, job)

    # -- loop ---------------------------------------------------------------------------------------------------
    def at(self, when: float, act: Callable[[], None]) -> None:
        heappush(self._events, (when, next(self._number), act))

    def run(self) -> list[Epoch]:
        while self._events:
            self.now, _, act = heappop(self._events)
            act()
        return self.epochs

    def shard(self, job: JobSpec, index: int) -> _Shard:
        key = job.shards.key(index)
        found = self._shards.get(key)
        if found is None:
            ref = ObjectRef(job.shards.bucket, key)
            version = ObjectVersion(ref, '"e"', job.shards.size)
            vid = version_id("sim", version, self.block_bytes)
            n = -(-job.shards.size // self.block_bytes)
            blocks = [
                (BlockKey(vid, i), min(self.block_bytes, job.shards.size - i * self.block_bytes)) for i in range(n)
            ]
            found = self._shards[key] = _Shard(ref, version, vid, blocks)
        return found

    # -- store --------------------------------------------------------------------------------------------------
    def has(self, block: BlockKey) -> bool:
        return block in self._present

    def _reserve(self, fill: _Fill) -> bool:
        over = self._used_bytes + fill.size - self.capacity_bytes
        chosen = []
        if over > 0:
            for block in self.policy.victims(fill.block, fill.shard.version):
                if self._pins[block] == 0:
                    chosen.append(block)
                    over -= self._present[block]
                    if over <= 0:
                        break
        if over > 0:
            return False
        for block in chosen:
            self._used_bytes -= self._present.pop(block)
            self.policy.removed(block)
        self._used_bytes += fill.size
        self.used_bytes_max = max(self.used_bytes_max, self._used_bytes)
        return True

    # -- origin -------------------------------------------------------------------------------------------------
    def demand(self, shard: _Shard, index: int, urgency: tuple[int, float]) -> None:
        block, size = shard.blocks[index]
        fill = self._fills.get(block)
        if fill is None:
            fill = self._fills[block] = _Fill(block, shard, size, urgency)
            heappush(self._queue, (urgency, next(self._number), fill))
        elif not fill.running and urgency < fill.urgency:
            if fill.urgency[0] == PREFETCH:
                self._prefetching -= 1
            fill.urgency = urgency
            heappush(self._queue, (urgency, next(self._number), fill))
        self._serve()

    def wait(self, block: BlockKey, then: Callable[[], None]) -> None:
        self._fills[block].waiters.append(then)

    def _serve(self) -> None:
        while not self._busy and self._queue:
            urgency, _, fill = heappop(self._queue)
            if fill.running or urgency != fill.urgency or self._fills.get(fill.block) is not fill:
                continue
            if not self._reserve(fill):
                if urgency[0] == AHEAD:
                    # Asked for again when the reader is there.
                    del self._fills[fill.block]
                    continue
                if urgency[0] == PREFETCH:
                    del self._fills[fill.block]
                    self._prefetching -= 1
                    if self.planner:
                        self.planner.dropped(fill.shard.ref)
                    continue
                fill.relayed = True
            fill.running = True
            self._busy = True
            self.origin_bytes += fill.size
            took = fill.size / self.origin_bytes_s
            self.at(self.now + took, self._free)
            self.at(self.now + took + self.latency_s, lambda fill=fill: self._land(fill))

    def _free(self) -> None:
        self._busy = False
        self.pump()
        self._serve()

    def _land(self, fill: _Fill) -> None:
        del self._fills[fill.block]
        if fill.urgency[0] == PREFETCH:
            self._prefetching -= 1
        if not fill.relayed:
            self._present[fill.block] = fill.size
            self.policy.added(fill.block, fill.shard.version)
        for then in fill.waiters:
            then()
        self.pump()

    def pump(self) -> None:
        if not self.prefetch or self.planner is None:
            return
        p = self.planner
        if self.listing:
            for bucket, prefix in p.please_list():
                self.at(self.now + 0.2, lambda b=bucket, x=prefix: self._list(b, x))
        if self._prefetching < 16:
            for want in p.wants(self.now, self.capacity_bytes - self._used_bytes, 16):
                shard = self._shards.get(want.ref.key) or self._make(want.ref)
                for i in want.blocks:
                    block, size = shard.blocks[i]
                    if block in self._fills:
                        continue
                    fill = self._fills[block] = _Fill(block, shard, size, (PREFETCH, self.now))
                    self._prefetching += 1
                    heappush(self._queue, (fill.urgency, next(self._number), fill))
            self._serve()

    universe: dict[str, tuple[JobSpec, int]] = {}

    def _make(self, ref: ObjectRef) -> _Shard:
        spec, i = self.universe[ref.key]
        return self.shard(spec, i)

    def _list(self, bucket: str, prefix: str) -> None:
        assert self.planner
        self.planner.listed(
            bucket, [(key, spec.shards.size) for key, (spec, _) in sorted(self.universe.items()) if key.startswith(prefix)], self.now
        )
        self.pump()


class _Job:
    def __init__(self, sim: Simulation, spec: JobSpec) -> None:
        self.sim = sim
        self.spec = spec
        for i in range(spec.shards.count):
            sim.universe = {**sim.universe} if i == 0 else sim.universe
            sim.universe[spec.shards.key(i)] = (spec, i)
        self.epoch = -1
        self.running = 0
        sim.at(spec.start_s, self.next_epoch)

    def next_epoch(self) -> None:
        sim, spec = self.sim, self.spec
        if self.epoch >= 0:
            row = self.row
            row.took_s = sim.now - self.began
            row.origin_bytes = sim.origin_bytes - self.origin_before
            row.wasted_bytes = (sim.planner.wasted_bytes if sim.planner else 0) - self.wasted_before
            row.stall_s /= spec.readers
        self.epoch += 1
        if self.epoch >= spec.epochs:
            return
        lists = spec.order(self.epoch)
        self.row = Epoch(spec.name, self.epoch + 1, dataset_bytes=spec.shards.count * spec.shards.size)
        sim.epochs.append(self.row)
        self.began = sim.now
        self.origin_before = sim.origin_bytes
        self.wasted_before = sim.planner.wasted_bytes if sim.planner else 0
        if spec.told and sim.planner:
            for part in lists:
                sim.planner.told(spec.client, [ObjectRef(spec.shards.bucket, spec.shards.key(i)) for i in part], sim.now)
            for i in range(spec.shards.count):
                sim.planner.found(ObjectRef(spec.shards.bucket, spec.shards.key(i)), spec.shards.size)
            sim.pump()
        self.running = len(lists)
        for number, shards in enumerate(lists):
            _Reader(self, number, shards)


class _Reader:
    def __init__(self, job: _Job, number: int, shards: list[int]) -> None:
        self.job = job
        self.sim = job.sim
        self.shards = iter(shards)
        self.next_shard()

    def next_shard(self) -> None:
        index = next(self.shards, None)
        sim, job = self.sim, self.job
        if index is None:
            job.running -= 1
            if job.running == 0:
                job.next_epoch()
            return
        self.shard = sim.shard(job.spec, index)
        self.i = 0
        here = sum(sim.has(block) for block, _ in self.shard.blocks)
        row = job.row
        row.opened += 1
        row.hits += here == len(self.shard.blocks)
        row.block_hits += here / len(self.shard.blocks)
        sim.trace.append((self.shard.ref.key, row.number))
        if sim.planner:
            sim.planner.asked(job.spec.client, self.shard.ref, self.shard.version.size, Extent(0, self.shard.version.size), sim.now)
            sim.pump()
        self.since = sim.now
        self.step()

    def step(self) -> None:
        sim = self.sim
        blocks = self.shard.blocks
        for j in range(self.i, min(len(blocks), self.i + window_blocks(self.i))):
            if not sim.has(blocks[j][0]):
                sim.demand(self.shard, j, (0 if j == self.i else 1, sim.now))
        block, size = blocks[self.i]
        if sim.has(block):
            self.use()
        elif block in sim._fills:
            sim.wait(block, self.use)
        else:
            # Evicted for the read-ahead of this very reader.
            self.step()

    def use(self) -> None:
        sim = self.sim
        block, size = self.shard.blocks[self.i]
        self.job.row.stall_s += sim.now - self.since
        if sim.has(block):
            sim._pins[block] += 1
            sim.policy.read(block)
        sim.at(sim.now + size / self.job.spec.reader_bytes_s, self.done)

    def done(self) -> None:
        sim = self.sim
        block = self.shard.blocks[self.i][0]
        if sim._pins[block] > 0:
            sim._pins[block] -= 1
        self.i += 1
        self.since = sim.now
        if self.i == len(self.shard.blocks):
            if sim.planner:
                sim.planner.sent(self.job.spec.client, self.shard.ref, sim.now)
            self.next_shard()
        else:
            self.step()
