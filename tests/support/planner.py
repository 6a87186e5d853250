"""For tests of the planner: a simulated store that obeys it and checks its decisions, and the reads of data loaders."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import nsmallest
from random import Random
from typing import TYPE_CHECKING

from outrider.core.ahead.planner import Planner
from outrider.core.model import BlockKey, Extent, ObjectRef, ObjectVersion

if TYPE_CHECKING:
    from collections.abc import Callable

    from outrider.core.ahead.prefetch_candidates import Want


BLOCK = 1024


class PlannedStore:
    """A simple model of a store. It obeys the planner, and checks that each decision of the planner is allowed."""

    def __init__(self, objects: int, blocks: int, capacity_blocks: int, *, odd: bool = False) -> None:
        names = [f"train/{chr(97 + i)}1x.tar" if odd else f"train/{i:05d}.tar" for i in range(objects)]
        self.refs = [ObjectRef("bucket", name) for name in names]
        self.size = blocks * BLOCK
        self.versions = {ref: ObjectVersion(ref, '"e"', self.size) for ref in self.refs}
        self.ids = {ref: i.to_bytes(16, "big") for i, ref in enumerate(self.refs)}
        self.capacity_blocks = capacity_blocks
        self.planner = Planner(capacity_blocks * BLOCK, BLOCK)
        self.present: set[BlockKey] = set()
        self.outstanding: set[BlockKey] = set()
        self.reading: dict[ObjectRef, set[int]] = {}
        self.client_of: dict[ObjectRef, str] = {}
        self.now = 0.0

    def key(self, ref: ObjectRef, index: int) -> BlockKey:
        return BlockKey(self.ids[ref], index)

    def fill(self, ref: ObjectRef, index: int) -> bool:
        block, version = self.key(ref, index), self.versions[ref]
        while len(self.present) >= self.capacity_blocks:
            victim = next(self.planner.victims(block, version), None)
            if victim is None:
                return False
            assert victim in self.present
            self.check_unprotected(victim)
            self.present.discard(victim)
            self.planner.removed(victim)
        self.present.add(block)
        self.planner.added(block, version)
        return True

    def check_unprotected(self, victim: BlockKey) -> None:
        ref = self.refs[int.from_bytes(victim.version_id, "big")]
        served = self.reading.get(ref)
        assert served is None or victim.index in served, "a reader has yet to read this block"

    def ask(self, ref: ObjectRef, client: str = "a") -> None:
        self.planner.requested(client, ref, self.size, Extent(0, self.size), self.now)
        self.reading[ref] = set()
        self.client_of[ref] = client

    def read_on(self, ref: ObjectRef) -> None:
        """Read the next block of an open object; the read ends with the last one."""
        index = len(self.reading[ref])
        block = self.key(ref, index)
        if block not in self.present and self.fill(ref, index):
            self.outstanding.discard(block)
        self.planner.read(block)
        self.reading[ref].add(index)
        if (index + 1) * BLOCK >= self.size:
            del self.reading[ref]
            self.planner.sent(self.client_of[ref], ref, self.now)

    def take(self, wants: list[Want]) -> None:
        for want in wants:
            for index in want.blocks:
                block = self.key(want.ref, index)
                assert block not in self.present, "the planner wants a cached block"
                assert block not in self.outstanding, "the planner wants a block twice"
                self.outstanding.add(block)

    def land(self, block: BlockKey) -> None:
        self.outstanding.discard(block)
        ref = self.refs[int.from_bytes(block.version_id, "big")]
        if block not in self.present and not self.fill(ref, block.index):
            self.planner.dropped(ref)
            self.outstanding = {other for other in self.outstanding if other.version_id != block.version_id}


def drive(store: PlannedStore, order: list[ObjectRef], client: str = "a") -> list[bool]:
    """Read the objects one after the other, while two prefetched blocks land beside each. Returns which were hits."""
    hits = []
    for ref in order:
        store.now += 0.01
        hits.append(store.key(ref, 0) in store.present)
        store.ask(ref, client)
        store.read_on(ref)
        for _ in range(2):
            think(store)
            land(store, 1)
    return hits


def think(store: PlannedStore) -> None:
    free_bytes = (store.capacity_blocks - len(store.present)) * BLOCK
    store.take(store.planner.wants(store.now, free_bytes, 16))


def land(store: PlannedStore, count: int) -> None:
    for block in nsmallest(count, store.outstanding):
        store.land(block)


def shuffled(store: PlannedStore, seed: int) -> list[ObjectRef]:
    return Random(seed).sample(store.refs, len(store.refs))


def ratio(hits: list[bool]) -> float:
    return sum(hits) / len(hits)


SIZE = 110_000


def beside_each_other(order: list[int], batch: int, workers: int, chance: Random) -> list[int]:
    """The reads of workers of about the same speed: a batch of each in turn."""
    batches = [order[begin : begin + batch] for begin in range(0, len(order), batch)]
    queues = [[number for its in batches[worker::workers] for number in its] for worker in range(workers)]
    read: list[int] = []
    while any(queues):
        for queue in chance.sample(queues, workers):
            read += queue[:1]
            del queue[:1]
    return read


def drifting(order: list[int], batch: int, workers: int, chance: Random, at_once: float) -> list[int]:
    """The reads of workers of different speeds: the next reader is a random one, and reads about `at_once` more in one
    go.

    As in torch, at most two batches for each worker are under way of which the first is not read yet.
    """
    batches = [order[begin : begin + batch] for begin in range(0, len(order), batch)]
    queues: list[list[list[int]]] = [[] for _ in range(workers)]
    read: list[int] = []
    sent = taken = 0
    while taken < len(batches):
        for number in range(sent, min(len(batches), taken + 2 * workers)):
            queues[number % workers].append(batches[number])
            sent += 1
        queue = chance.choice([queue for queue in queues if queue])
        some = 1 + int(chance.expovariate(1) * at_once)
        read += queue[0][:some]
        del queue[0][:some]
        if not queue[0]:
            del queue[0]
        while taken < len(batches) and not batches[taken]:
            taken += 1
    return read


class Sampled:
    def __init__(self, count: int, key: Callable[[int], str] = "train/{:06d}.jpg".format) -> None:
        self.planner = Planner(10 * SIZE, 2**20)
        self.refs = [ObjectRef("bucket", key(number)) for number in range(count)]
        self.planner.discovery.listed("bucket", sorted((ref.key, SIZE) for ref in self.refs))
        self.now = 0.0

    def read(self, numbers: Iterable[int], client: str = "client") -> None:
        for number in numbers:
            self.now += 0.1
            self.planner.requested(client, self.refs[number], SIZE, Extent(0, SIZE), self.now)
            self.planner.sent(client, self.refs[number], self.now)

    def steps(self) -> Iterator[None]:
        """One step of the seed search at a time, until none is left."""
        while self.planner.step():
            yield

    def foreseen(self, numbers: list[int], within: int) -> float:
        """Reads them; returns the share of reads that were among the `within` reads expected next, in a known order."""
        [dataset] = self.planner.registry.datasets()
        foreseen = 0
        for number in numbers:
            epoch = dataset.epochs()[-1] if dataset.epochs() else None
            if epoch is not None and epoch.order_known:
                key = dataset.names.find(self.refs[number].key)
                if key is not None and epoch.to_come(key):
                    before = epoch.agenda[: epoch.agenda.index(key)]
                    foreseen += sum(map((0).__gt__, map(epoch.done.__getitem__, before))) < within
            self.read([number])
            for _ in self.steps():
                pass
        return foreseen / len(numbers)

    @property
    def expected(self) -> list[int]:
        """The reads expected next, in the known order; empty: no order is known."""
        [dataset] = self.planner.registry.datasets()
        epoch = dataset.epochs()[-1]
        numbers = {ref.key: number for number, ref in enumerate(self.refs)}
        return [numbers[dataset.names.keys[key]] for key in epoch.agenda] if epoch.order_known else []
