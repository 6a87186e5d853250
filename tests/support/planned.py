"""A simulated store that obeys the planner and checks its decisions, and readers that read through it."""

from __future__ import annotations

import sys
from random import Random
from typing import TYPE_CHECKING

from outrider.core.ahead.planner import Planner
from outrider.core.model import BlockKey, Extent, ObjectRef, ObjectVersion

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

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
        self.planner.asked(client, ref, self.size, Extent(0, self.size), self.now)
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
    for block in sorted(store.outstanding)[:count]:
        store.land(block)


def shuffled(store: PlannedStore, seed: int) -> list[ObjectRef]:
    return Random(seed).sample(store.refs, len(store.refs))


def ratio(hits: list[bool]) -> float:
    return sum(hits) / len(hits)


def calls_of(act: Callable[[], object]) -> int:
    """The number of Python functions that `act` enters."""
    count = 0

    def note(frame: FrameType, event: str, arg: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(None)
    return count
