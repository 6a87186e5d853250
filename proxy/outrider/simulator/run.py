"""Runs one simulation: jobs or logged requests, a policy, and the result of each epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from outrider.core.ahead.numbered_names_search import NumberedNames, NumberedRange
from outrider.core.ahead.planner import Planner
from outrider.core.block_layout import BlockLayout
from outrider.core.cache.policies import EvictionPolicy
from outrider.core.cache.readahead import window_blocks
from outrider.core.model import Extent, ObjectRef
from outrider.simulator.scenarios import JobSpec, Request
from outrider.simulator.world import (
    AWAITED,
    PREFETCHED,
    READ_AHEAD,
    Act,
    Pipe,
    SimFill,
    SimObject,
    SimOrigin,
    SimStore,
    Timeline,
    policy_of,
)

# The duration of a LIST of a dataset: one page for each 1,000 keys, a few pages at a time.
_LIST_S = 0.2
# The engine thinks at least so often.
_TICK_S = 0.05


Mark = tuple[float, int, int]
"""A moment: its time, the bytes from the origin until then, and those that were wasted."""


@dataclass(slots=True)
class EpochResult:
    """The result of one epoch of a job.

    A hit is a shard whose blocks were all in the store when its reader requested it; a block that was still on its way
    makes it a miss. `stall_s` is the time that a reader waited, averaged over the readers. `origin_bytes` and
    `wasted_bytes` count for the whole cache during the epoch; wasted bytes were prefetched and evicted unread.
    """

    job: str
    number: int
    dataset_bytes: int
    opened: int = 0
    hits: int = 0
    stall_s: float = 0.0
    took_s: float = 0.0
    origin_bytes: int = 0
    wasted_bytes: int = 0

    def count(self, begin: Mark, end: Mark) -> None:
        self.took_s = end[0] - begin[0]
        self.origin_bytes, self.wasted_bytes = end[1] - begin[1], end[2] - begin[2]

    @property
    def hit_ratio(self) -> float:
        return self.hits / max(1, self.opened)

    @property
    def traffic(self) -> float:
        """Bytes from the origin, as a part of the dataset."""
        return self.origin_bytes / max(1, self.dataset_bytes)

    @property
    def waste(self) -> float:
        return self.wasted_bytes / max(1, self.dataset_bytes)

    @property
    def stall(self) -> float:
        """The part of the epoch's time for which the readers waited."""
        return self.stall_s / self.took_s if self.took_s > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine of a run. `ahead_blocks`: prefetched blocks that are on their way at any time, at most. `step_s`:
    the time between two steps of the planner's long computations; such a step takes 0.1 ms, and the engine gives a
    tenth of its time to them."""

    capacity_bytes: int
    origin_bytes_s: float
    latency_s: float = 0.05
    block_bytes: int = 8 * 2**20
    ahead_blocks: int = 16
    step_s: float = 0.001
    prefetch: bool = True
    listing: bool = True


Consume = Callable[[int, Act], None]


class SimProxy:
    """One proxy: its store, its planner, and the part of the engine that connects them. `opened` has the objects read,
    in order. `objects` may be shared with other proxies, as the time is."""

    def __init__(
        self, machine: Machine, policy: str | EvictionPolicy, time: Timeline, objects: dict[ObjectRef, SimObject]
    ) -> None:
        self.machine = machine
        self.layout = BlockLayout("simulated", machine.block_bytes)
        if isinstance(policy, str):
            policy = policy_of(policy, machine.capacity_bytes, machine.block_bytes)
        self.planner = policy if isinstance(policy, Planner) else None
        self.time = time
        self.store = SimStore(self._evicts(policy), machine.capacity_bytes)
        self.origin = self._origin()
        self.opened: list[tuple[ObjectRef, EpochResult]] = []
        self.objects = objects
        self.readers = 0
        self._is_stepping = self._will_tick = False

    def _evicts(self, policy: EvictionPolicy) -> EvictionPolicy:
        return policy

    def _origin(self) -> SimOrigin:
        return SimOrigin(
            self.time, self.store, Pipe(self.time, self.machine.origin_bytes_s), self.machine.latency_s,
            landed=lambda _: self.prefetch(), refused=self._refused, idle=self.prefetch,
        )  # fmt: skip

    def know(self, ref: ObjectRef, size: int) -> None:
        """There is such an object, of this size at least."""
        known = self.objects.get(ref)
        if known is None or known.version.size < size:
            self.objects[ref] = SimObject.of(ref, size, self.layout)

    @property
    def wasted_bytes(self) -> int:
        return self.planner.wasted_bytes if self.planner is not None else 0

    @property
    def mark(self) -> Mark:
        return self.time.now, self.origin.sent_bytes, self.wasted_bytes

    # -- the part of the engine ---------------------------------------------------------------------------------

    def prefetch(self) -> None:
        if self.planner is None or not self.machine.prefetch:
            return
        self._tick_later()
        self._take_steps()
        for bucket, prefix in self.planner.discovery.please_list():
            if self.machine.listing:
                self.time.at(self.time.now + _LIST_S, lambda b=bucket, p=prefix: self._list(b, p))  # type: ignore[misc]
            else:
                self.planner.discovery.list_refused(bucket, prefix, self.time.now)
        for bucket, numbering in self.planner.discovery.please_count():
            self._count(bucket, numbering)
        for want in self.planner.wants(self.time.now, self.store.free_bytes, self.machine.ahead_blocks):
            of = self.objects.get(want.ref)
            if of is None:
                self.planner.dropped(want.ref, again=False, missing=True)
                continue
            blocks: Sequence[int] = want.blocks
            if want.size < 0:
                self.planner.found(want.ref, of.version.size)
                blocks = self.planner.blocks(want, len(of.blocks))
            for index in blocks:
                self.origin.ask(of, index, (PREFETCHED, self.time.now))

    def _tick_later(self) -> None:
        if not self._will_tick and self.readers > 0:
            self._will_tick = True
            self.time.at(self.time.now + _TICK_S, self._tick)

    def _tick(self) -> None:
        self._will_tick = False
        if self.readers > 0:
            self.prefetch()

    def _take_steps(self) -> None:
        if not self._is_stepping and self.planner is not None and self.planner.step():
            self._is_stepping = True
            self.time.at(self.time.now + self.machine.step_s, self._next_step)

    def _next_step(self) -> None:
        self._is_stepping = False
        if self.time.is_over:
            return  # the jobs have ended: nobody has use for the result of a search
        self._take_steps()
        if not self._is_stepping:
            self.prefetch()

    def _list(self, bucket: str, prefix: str) -> None:
        assert self.planner is not None
        entries = sorted(
            (ref.key, of.version.size)
            for ref, of in self.objects.items()
            if ref.bucket == bucket and ref.key.startswith(prefix)
        )
        self.planner.discovery.listed(bucket, entries, prefix=prefix)
        self.prefetch()

    def _count(self, bucket: str, numbering: NumberedNames) -> None:
        probe, rounds = numbering.probe(), 0
        try:
            names = next(probe)
            while True:
                rounds += 1
                names = probe.send([ObjectRef(bucket, name) in self.objects for name in names])
        except StopIteration as end:
            found: NumberedRange | None = end.value
        after_s = rounds * self.machine.latency_s
        self.time.at(self.time.now + after_s, lambda: self._counted(bucket, numbering, found))

    def _counted(self, bucket: str, numbering: NumberedNames, found: NumberedRange | None) -> None:
        assert self.planner is not None
        if found is None:
            self.planner.discovery.not_counted(numbering, self.time.now)
        else:
            self.planner.discovery.counted(numbering, found.names())
        self.prefetch()

    def _refused(self, fill: SimFill) -> None:
        assert self.planner is not None
        self.planner.dropped(fill.of.ref)


class Simulation(SimProxy):
    """One proxy, jobs and logged requests. `policy` is a name (`epoch`, `lru`, ...), or an object for tests."""

    def __init__(self, machine: Machine, policy: str | EvictionPolicy, jobs: Sequence[JobSpec] = (),
                 requests: Iterable[Request] = ()) -> None:  # fmt: skip
        super().__init__(machine, policy, Timeline(), {})
        self.epochs: list[EpochResult] = []
        for job in jobs:
            for index in range(job.shards.count):
                self.know(ObjectRef(job.shards.bucket, job.shards.key(index)), job.shards.size)
            _SimJob(self, job)
        logged = list(requests)
        for request in logged:
            self.know(ObjectRef(request.bucket, request.key), request.size)
        if logged:
            _Replay(self, logged)

    def run(self) -> list[EpochResult]:
        self.time.run()
        return self.epochs


class Visit:
    """One read of an extent, block by block. Before each block, the missing blocks of the read-ahead window are asked
    for, as the engine does. `consume` gets the length of each block that has come, and goes on with the next one."""

    def __init__(self, sim: SimProxy, client: str, of: SimObject, extent: Extent, consume: Consume,
                 row: EpochResult, then: Act) -> None:  # fmt: skip
        self._sim = sim
        self._client = client
        self._of = of
        self._consume = consume
        self._row = row
        self._then = then
        self._at = self._first = sim.layout.index_of(extent.start)
        self._last = sim.layout.index_of(extent.stop - 1)
        # Blocks that came past the store, and are read from memory.
        self._relayed: set[int] = set()
        sim.readers += 1
        row.opened += 1
        row.hits += all(sim.store.has(block) for block, _ in of.blocks[self._first : self._last + 1])
        sim.opened.append((of.ref, row))
        if sim.planner is not None:
            # The read-ahead that it returns is for readers of many requests; these here ask for whole shards.
            sim.planner.requested(client, of.ref, of.version.size, extent, sim.time.now)
            sim.prefetch()
        self._since = sim.time.now
        self._step()

    def _step(self) -> None:
        sim, blocks = self._sim, self._of.blocks
        stop = min(self._last + 1, self._at + window_blocks(self._at - self._first, sim.readers))
        for index in range(self._at, stop):
            block = blocks[index][0]
            if index not in self._relayed and not sim.store.has(block):
                sim.origin.ask(self._of, index, (AWAITED if index == self._at else READ_AHEAD, sim.time.now))
                if (fill := sim.origin.flight(block)) is not None and self._relay not in fill.readers:
                    fill.readers.append(self._relay)
        block = blocks[self._at][0]
        if self._at in self._relayed or sim.store.has(block):
            self._read()
        elif (fill := sim.origin.flight(block)) is not None:
            fill.waiters.append(self._read)
        else:
            self._step()  # the block was evicted for this very window: ask for it again

    def _relay(self, index: int) -> None:
        """A block has come for which the store had no room."""
        self._relayed.add(index)

    def _read(self) -> None:
        sim = self._sim
        block, length = self._of.blocks[self._at]
        self._row.stall_s += sim.time.now - self._since
        sim.store.use(block)
        self._consume(length, self._done)

    def _done(self) -> None:
        sim = self._sim
        sim.store.release(self._of.blocks[self._at][0])
        self._since = sim.time.now
        self._at += 1
        if self._at <= self._last:
            self._step()
            return
        sim.readers -= 1
        if sim.planner is not None:
            sim.planner.sent(self._client, self._of.ref, sim.time.now)
        self._then()


def read_all(
    sim: SimProxy, client: str, objects: Iterator[SimObject], consume: Consume, row: EpochResult, then: Act
) -> None:  # fmt: skip
    """Read whole objects, one after the other. `then` is called after the last."""
    of = next(objects, None)
    if of is None:
        then()
        return
    Visit(sim, client, of, Extent(0, of.version.size), consume, row,
          lambda: read_all(sim, client, objects, consume, row, then))  # fmt: skip


class _SimJob:
    """The epochs of one job, one after the other. An epoch ends when its last reader has ended."""

    def __init__(self, sim: Simulation, spec: JobSpec) -> None:
        self._sim = sim
        self._spec = spec
        self._consume: Consume = lambda length, then: sim.time.at(sim.time.now + length / spec.reader_bytes_s, then)
        self._number = 0
        sim.time.at(spec.start_s, self._begin)

    def _begin(self) -> None:
        sim, spec = self._sim, self._spec
        lists = [shards for shards in spec.order(self._number) if shards]
        self._number += 1
        distinct = {index for shards in spec.order(0) for index in shards}
        whole = len(distinct) if len(distinct) == sum(map(len, lists)) else spec.shards.count
        self._row = EpochResult(spec.name, self._number, whole * spec.shards.size)
        self._before = sim.mark
        sim.epochs.append(self._row)
        if spec.announced and sim.planner is not None:
            for part in lists:
                sim.planner.announced(spec.client, [self._object(index).ref for index in part], sim.time.now)
        self._reading = self._readers = len(lists)
        for shards in lists:
            read_all(sim, spec.client, map(self._object, shards), self._consume, self._row, self._ended)

    def _object(self, index: int) -> SimObject:
        return self._sim.objects[ObjectRef(self._spec.shards.bucket, self._spec.shards.key(index))]

    def _ended(self) -> None:
        self._reading -= 1
        if self._reading == 0:
            self._end()

    def _end(self) -> None:
        self._row.count(self._before, self._sim.mark)
        self._row.stall_s /= self._readers
        if self._number < self._spec.epochs:
            self._begin()


class _Replay:
    """Logged requests, each at its own time. A new result begins when all objects were read and one is read again."""

    def __init__(self, sim: Simulation, requests: list[Request]) -> None:
        self._sim = sim
        self._keys = {(request.bucket, request.key) for request in requests}
        self._bytes = sum(sim.objects[ObjectRef(*key)].version.size for key in self._keys)
        self._read: set[tuple[str, str]] = set()
        self._begin()
        for request in requests:
            sim.time.at(request.at, lambda request=request: self._ask(request))  # type: ignore[misc]

    def _begin(self) -> None:
        sim = self._sim
        self._row = EpochResult("log", len(sim.epochs) + 1, self._bytes)
        self._before = sim.mark
        self._read.clear()
        sim.epochs.append(self._row)

    def _ask(self, request: Request) -> None:
        key = (request.bucket, request.key)
        if key in self._read and len(self._read) == len(self._keys):
            self._begin()
        self._read.add(key)
        of = self._sim.objects[ObjectRef(*key)]
        extent = Extent(request.start, request.stop)
        Visit(self._sim, request.client, of, extent, lambda _, then: then(), self._row, self._count)

    def _count(self) -> None:
        self._row.count(self._before, self._sim.mark)
