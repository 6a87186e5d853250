"""The parts of the simulated machine: virtual time, a store with a budget, pipes, an origin behind a pipe."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from math import inf

from outrider.core.ahead.planner import Planner
from outrider.core.block_layout import BlockLayout
from outrider.core.cache.policies import POLICIES, EvictionPolicy
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

    def not_before(self, when: float, act: Act) -> None:
        """Acts at once if that time has come."""
        if when <= self.now:
            act()
        else:
            self.at(when, act)

    @property
    def is_over(self) -> bool:
        """No act is left after the present one."""
        return not self._acts

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


def policy_of(name: str, capacity_bytes: int, block_bytes: int) -> EvictionPolicy:
    """The policy for a store of `capacity_bytes`. `epoch` is the planner, which is notified of requests, too."""
    return Planner(capacity_bytes, block_bytes) if name == "epoch" else POLICIES[name]()


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


@dataclass(slots=True, eq=False)
class PipeLoad:
    """Bytes that are to pass a pipe. `begin` is called when their turn has come, and returns whether they are to pass
    at all; `sent` right after that, with the time at which the last byte will have left the pipe; `left` then."""

    length: int
    urgency: Urgency
    sent: Callable[[float], None]
    left: Act = lambda: None
    begin: Callable[[], bool] = lambda: True
    is_begun: bool = False


class Pipe:
    """A line of `bytes_s`. Loads pass it whole, one after the other: the most urgent first, then first come. Where
    `bytes_s` is infinite they pass at once."""

    def __init__(self, time: Timeline, bytes_s: float) -> None:
        self._time = time
        self._bytes_s = bytes_s
        self._queue: list[tuple[Urgency, int, PipeLoad]] = []
        self._numbers = count()
        self._busy = False
        self.sent_bytes = 0

    def add(self, load: PipeLoad) -> None:
        heappush(self._queue, (load.urgency, next(self._numbers), load))
        self._next()

    def promote(self, load: PipeLoad, urgency: Urgency) -> None:
        """A load that has not begun is more urgent now."""
        load.urgency = urgency
        self.add(load)

    def _next(self) -> None:
        while not self._busy and self._queue:
            urgency, _, load = heappop(self._queue)
            if load.is_begun or urgency != load.urgency:
                continue  # an entry from before a promotion
            load.is_begun = True
            if not load.begin():
                continue
            self.sent_bytes += load.length
            if self._bytes_s == inf:
                load.sent(self._time.now)
                load.left()
                continue
            self._busy = True
            out = self._time.now + load.length / self._bytes_s
            self._time.at(out, lambda load=load: self._free(load))  # type: ignore[misc]
            load.sent(out)

    def _free(self, load: PipeLoad) -> None:
        self._busy = False
        load.left()
        self._next()


@dataclass(slots=True, eq=False)
class SimFill:
    """A block that is queued at the origin, or is on its way. `relayed`: the store has no room for it; then `readers`
    get its index."""

    of: SimObject
    index: int
    urgency: Urgency
    load: PipeLoad | None = None
    relayed: bool = False
    waiters: list[Act] = field(default_factory=list)
    readers: list[Callable[[int], None]] = field(default_factory=list)

    @property
    def block(self) -> BlockKey:
        return self.of.blocks[self.index][0]

    @property
    def length(self) -> int:
        return self.of.blocks[self.index][1]


class SimOrigin:
    """All blocks come through one pipe, the most urgent first, each `latency_s` after it left the pipe.

    `landed` is called for each block received, `refused` for a prefetched block without room in the store, and `idle`
    whenever the pipe is free. A block that somebody waits for and that has no room is relayed.
    """

    def __init__(
        self, time: Timeline, store: SimStore, pipe: Pipe, latency_s: float, *,
        landed: Callable[[SimFill], None], refused: Callable[[SimFill], None], idle: Act,
    ) -> None:  # fmt: skip
        self._time = time
        self._store = store
        self._pipe = pipe
        self._latency_s = latency_s
        self._landed = landed
        self._refused = refused
        self._idle = idle
        self._fills: dict[BlockKey, SimFill] = {}
        self.sent_bytes = 0

    def flight(self, block: BlockKey) -> SimFill | None:
        return self._fills.get(block)

    def ask(self, of: SimObject, index: int, urgency: Urgency, waiter: Act | None = None) -> None:
        """Asks for a block that is not in the store. If it is queued already, it is promoted. `waiter` is called once
        the block has come."""
        fill = self._fills.get(of.blocks[index][0])
        waiters = [] if waiter is None else [waiter]
        if fill is None:
            fill = self._fills[of.blocks[index][0]] = SimFill(of, index, urgency, waiters=waiters)
            self._begin(fill)
            return
        fill.waiters += waiters
        if urgency < fill.urgency:
            self._promote(fill, urgency)

    def _begin(self, fill: SimFill) -> None:
        fill.load = PipeLoad(
            fill.length, fill.urgency, lambda out: self._sent(fill, out), self._idle, lambda: self._take(fill)
        )
        self._pipe.add(fill.load)

    def _promote(self, fill: SimFill, urgency: Urgency) -> None:
        if fill.load is not None and not fill.load.is_begun:
            fill.urgency = urgency
            self._pipe.promote(fill.load, urgency)

    def _take(self, fill: SimFill) -> bool:
        """Takes room for the block. False: there is none, and nobody waits for the block."""
        if not self._store.reserve(fill.block, fill.of.version, fill.length):
            if fill.urgency[0] == PREFETCHED:
                self._refused(fill)
                if not fill.waiters:
                    del self._fills[fill.block]
                    return False
            fill.relayed = True
        self.sent_bytes += fill.length
        return True

    def _sent(self, fill: SimFill, out: float) -> None:
        self._time.at(out + self._latency_s, lambda: self._land(fill))

    def _land(self, fill: SimFill) -> None:
        del self._fills[fill.block]
        if fill.relayed:
            for reader in fill.readers:
                reader(fill.index)
        else:
            self._store.land(fill.block, fill.of.version, fill.length)
        for then in fill.waiters:
            then()
        self._landed(fill)
