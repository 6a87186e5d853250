"""The parts of the simulated machine: virtual time, a store with a budget, an origin of limited bandwidth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import Protocol

from outrider.core.block_layout import BlockLayout
from outrider.core.cache.policies import EvictionPolicy
from outrider.core.model import BlockKey, ObjectRef, ObjectVersion

Act = Callable[[], None]

# The order of service: blocks that a reader waits for, then the rest of its read-ahead window, then prefetched blocks.
AWAITED, READ_AHEAD, PREFETCHED = range(3)
Urgency = tuple[int, float]


class Timeline:
    """Virtual time. Acts happen in the order of their times; acts of the same time, in the order in which they were
    added."""

    def __init__(self) -> None:
        self.now = 0.0
        self._acts: list[tuple[float, int, Act]] = []
        self._numbers = count()

    def at(self, when: float, act: Act) -> None:
        heappush(self._acts, (when, next(self._numbers), act))

    def run(self) -> None:
        while self._acts:
            self.now, _, act = heappop(self._acts)
            act()


@dataclass(frozen=True, slots=True, eq=False)
class SimObject:
    """An object and its blocks: their keys and lengths."""

    ref: ObjectRef
    version: ObjectVersion
    blocks: tuple[tuple[BlockKey, int], ...]

    @classmethod
    def of(cls, ref: ObjectRef, size: int, layout: BlockLayout) -> SimObject:
        version = ObjectVersion(ref, '"simulated"', size)
        indexes = range(layout.count(size))
        return cls(ref, version, tuple((layout.key(version, i), layout.extent(i, size).length) for i in indexes))


class SimStore:
    """Blocks within a budget. The policy chooses the victims; a block that is being read is never one."""

    def __init__(self, policy: EvictionPolicy, capacity_bytes: int) -> None:
        self.policy = policy
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0
        self.used_bytes_max = 0
        self._present: dict[BlockKey, int] = {}
        self._in_use: Counter[BlockKey] = Counter()

    def has(self, block: BlockKey) -> bool:
        return block in self._present

    @property
    def free_bytes(self) -> int:
        return self.capacity_bytes - self.used_bytes

    def use(self, block: BlockKey) -> None:
        if block in self._present:
            self.policy.read(block)
        self._in_use[block] += 1

    def release(self, block: BlockKey) -> None:
        self._in_use[block] -= 1
        if not self._in_use[block]:
            del self._in_use[block]

    def reserve(self, block: BlockKey, version: ObjectVersion, length: int) -> bool:
        """Takes room for a block. False: the policy offers too few victims."""
        over = length - self.free_bytes
        chosen = []
        if over > 0:
            for victim in self.policy.victims(block, version):
                if victim not in self._in_use:
                    chosen.append(victim)
                    over -= self._present[victim]
                    if over <= 0:
                        break
            else:
                return False
        for victim in chosen:
            self.used_bytes -= self._present.pop(victim)
            self.policy.removed(victim)
        self.used_bytes += length
        self.used_bytes_max = max(self.used_bytes_max, self.used_bytes)
        return True

    def land(self, block: BlockKey, version: ObjectVersion, length: int) -> None:
        self._present[block] = length
        self.policy.added(block, version)


class RelayTarget(Protocol):
    """A reader whose blocks may come past the store."""

    def relay(self, index: int) -> None:
        """A block has come for which the store had no room."""
        ...


@dataclass(slots=True, eq=False)
class Fill:
    """A block that is queued at the origin, or is on its way. `relayed`: the store has no room for it."""

    of: SimObject
    index: int
    urgency: Urgency
    sent_for: bool = False
    relayed: bool = False
    waiters: list[Act] = field(default_factory=list)
    readers: list[RelayTarget] = field(default_factory=list)


class SimOrigin:
    """All blocks come through one pipe of `bytes_s`, the most urgent first, each `latency_s` after it left the pipe.

    `landed` is called for each block that came, `refused` for a prefetched block without room in the store, and `idle`
    whenever the pipe is free. A block that a reader asked for and that has no room is relayed to that reader.
    """

    def __init__(
        self, time: Timeline, store: SimStore, bytes_s: float, latency_s: float, *,
        landed: Callable[[Fill], None], refused: Callable[[Fill], None], idle: Act,
    ) -> None:  # fmt: skip
        self._time = time
        self._store = store
        self._bytes_s = bytes_s
        self._latency_s = latency_s
        self._landed = landed
        self._refused = refused
        self._idle = idle
        self._fills: dict[BlockKey, Fill] = {}
        self._queue: list[tuple[Urgency, int, Fill]] = []
        self._numbers = count()
        self._busy = False
        self.sent_bytes = 0

    def flight(self, block: BlockKey) -> Fill | None:
        return self._fills.get(block)

    def ask(self, of: SimObject, index: int, urgency: Urgency) -> None:
        """Asks for a block that is not in the store. If it is queued already, it is promoted."""
        block = of.blocks[index][0]
        fill = self._fills.get(block)
        if fill is None:
            fill = self._fills[block] = Fill(of, index, urgency)
        elif fill.sent_for or urgency >= fill.urgency:
            return
        fill.urgency = urgency
        heappush(self._queue, (urgency, next(self._numbers), fill))
        self._next()

    def _next(self) -> None:
        while not self._busy and self._queue:
            urgency, _, fill = heappop(self._queue)
            block, length = fill.of.blocks[fill.index]
            if fill.sent_for or urgency != fill.urgency or self._fills.get(block) is not fill:
                continue  # an entry from before a promotion
            if not self._store.reserve(block, fill.of.version, length):
                if urgency[0] == PREFETCHED:
                    del self._fills[block]
                    self._refused(fill)
                    continue
                fill.relayed = True
            fill.sent_for = self._busy = True
            self.sent_bytes += length
            out = self._time.now + length / self._bytes_s
            self._time.at(out, self._free)
            self._time.at(out + self._latency_s, lambda fill=fill: self._land(fill))  # type: ignore[misc]

    def _free(self) -> None:
        self._busy = False
        self._idle()
        self._next()

    def _land(self, fill: Fill) -> None:
        block, length = fill.of.blocks[fill.index]
        del self._fills[block]
        if fill.relayed:
            for reader in fill.readers:
                reader.relay(fill.index)
        else:
            self._store.land(block, fill.of.version, length)
        for then in fill.waiters:
            then()
        self._landed(fill)
