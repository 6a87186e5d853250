"""Whose fill asks the origin next: demand before prefetch, and not more at once than the origin bears."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from heapq import heappop, heappush
from itertools import count
from types import TracebackType

from outrider.core.origin.aimd import AimdLimit
from outrider.core.origin.background_limit import BackgroundLimit
from outrider.ports import Clock

READS_ON_S = 0.003
"""A loop that reads one small object after the other asks for the next one within this time. Were what can wait begun
meanwhile, that request would wait for it, a millisecond of sixty; so it is done while the bucket takes its time."""


class FillSlot:
    """One fill's place in the order: `async with` it. Until it ends, anybody may `promote` it.

    `ahead`: how many blocks its reader has before those that it brings; 0: he waits for them. Of many readers'
    read-ahead the nearest comes first. `left_bytes`: what it has yet to bring, as far as is known.
    `ordered`: it is brought because somebody ordered it, and no reader is about to want it. `more`: its reader is about
    to ask for more.
    """

    __slots__ = ("_scheduler", "ahead", "demand", "held", "left_bytes", "more", "number", "ordered", "waiter")

    def __init__(self, scheduler: FillScheduler, *, demand: bool, ahead: int, left_bytes: int, ordered: bool) -> None:
        self._scheduler = scheduler
        self.demand = demand
        self.ahead = ahead
        self.left_bytes = left_bytes
        self.ordered = ordered
        self.more = False
        self.held = False
        self.number = 0
        self.waiter: asyncio.Future[None] | None = None

    async def __aenter__(self) -> None:
        await self.take()

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.give_back()

    async def take(self) -> None:
        await self._scheduler.grant(self)

    def give_back(self) -> None:
        """For others to have, as while one waits before the next try; `take` gets another."""
        if self.held:
            self._scheduler.returned(self)

    def came_whole(self) -> None:
        """All that it was for is here, and nothing of it on disk: the next one's fill need not wait for that. But where
        readers go on reading what is here, and nobody waits, what begins would only be in their way."""
        if self.demand or self._scheduler.is_awaited or not self._scheduler.reads_on:
            self.give_back()

    def brings(self, count: int) -> None:
        """So many bytes, as is seen now, are to come."""
        self._scheduler.found(self, count)

    def goes_on(self) -> None:
        """When that has come, its reader asks for more of what he reads."""
        if not self.more:
            self._scheduler.promised(self)

    def promote(self, ahead: int = 0) -> None:
        """Somebody waits for what was a prefetch, or has so many blocks before it now."""
        if not self.demand or ahead < self.ahead:
            self._scheduler.promoted(self, ahead)


class FillScheduler:
    """Grants turns: all demand before any prefetch, of demand what is nearest to its reader, of these, and of prefetch,
    in the order in which they were asked for.

    Demand waits for demand alone: prefetch leaves a quarter of the turns free, and does not count where demand asks, so
    that both together may for a moment be more than the limit. Of prefetch there are only so many as take
    nothing from the rest.
    """

    def __init__(self, aimd: AimdLimit, background_limit: BackgroundLimit, clock: Clock) -> None:
        self._aimd = aimd
        self._background_limit = background_limit
        self._clock = clock
        # By how far ahead, then by number; one whose number is not its turn's any more has moved on or gone.
        self._demand: list[tuple[int, int, FillSlot]] = []
        self._numbers = count(1)
        self._prefetch: deque[FillSlot] = deque()
        self._held = {True: 0, False: 0}
        # Of the demand that has its turn.
        self._left_bytes = 0
        # The limit holds somebody up, and not courtesy.
        self._short = False
        # Somebody did wait for bytes when that was last asked: not all that is waited for holds a turn.
        self._awaited = False
        self._questions = 0
        # Of the demand that has its turn, as many as more will follow on.
        self._going_on = 0
        self.read_at = float("-inf")
        """When a reader was last answered with what is here. Set from any thread; each hit would pay for a call."""

    def slot(
        self, *, demand: bool = True, ahead: int = 0, left_bytes: int = 0, ordered: bool = False
    ) -> FillSlot:  # fmt: skip
        return FillSlot(self, demand=demand, ahead=ahead, left_bytes=left_bytes, ordered=ordered)

    @contextmanager
    def question(self) -> Iterator[None]:
        """Somebody waits for a reply that needs no turn."""
        self._questions += 1
        try:
            yield
        finally:
            self._questions -= 1
            self._admit()

    def arrived(self, count: int) -> None:
        """Bytes from the origin are on disk."""
        self._aimd.arrived(count, self._clock(), short=self._short)
        self._admit()

    def came(self, count: int, slot: FillSlot | None) -> None:
        """Bytes came from the origin, for whom has `slot`; None: it needs none."""
        if slot is None:
            return
        brought = min(count, slot.left_bytes)
        slot.left_bytes -= brought
        if slot.held and slot.demand:
            self._left_bytes -= brought
            # Not when they are on disk: half a megabyte of each fill is held back, and all of a small block.
            if self._prefetch and self._background_limit.ends(self._left_bytes):
                self._admit()

    def found(self, slot: FillSlot, left_bytes: int) -> None:
        if slot.held and slot.demand:
            self._left_bytes += left_bytes - slot.left_bytes
        slot.left_bytes = left_bytes

    def promised(self, slot: FillSlot) -> None:
        slot.more = True
        self._going_on += slot.held and slot.demand

    def flowed(self, count: int, awaited: Callable[[], bool]) -> None:
        """A connection brought `count` more bytes of a body. `awaited`: whether somebody waits for any."""
        now = self._clock()
        if self._background_limit.is_due(now):
            self._awaited = awaited()
            self._background_limit.judge(now, awaited=self._awaited, queued=bool(self._prefetch))
        self._background_limit.flowed(count)

    def came_small(self, after_s: float) -> None:
        """A small body was here so long after it was asked for."""
        self._background_limit.came_small(after_s)

    def alone_again(self) -> None:
        """A LIST of ours that shared the line has ended."""
        self._background_limit.alone_again(self._held[True] + self._held[False] + self._questions)

    @property
    def reads_on(self) -> bool:
        """A reader of what is here is about to ask for more of it."""
        return self._clock() - self.read_at < READS_ON_S

    @property
    def is_awaited(self) -> bool:
        """Somebody waits for what has not come yet, or for a reply."""
        # Nobody waits for a turn of demand where no other demand holds one.
        return self._held[True] > 0 or self._questions > 0

    def slow_down(self) -> None:
        """The origin says that it is asked too much."""
        self._aimd.slow_down(self._clock())

    async def grant(self, slot: FillSlot) -> None:
        """Two parts of one fill may each ask again after its own failure: the turn is one for both, and so they end
        together."""
        if slot.held:
            return
        waiter = slot.waiter or self._queued(slot)
        try:
            await asyncio.shield(waiter)
        except asyncio.CancelledError:
            if slot.held:
                self.returned(slot)  # granted and cancelled in the same moment
            elif slot.waiter is not None:
                if slot.demand:
                    slot.number = 0
                else:
                    self._prefetch.remove(slot)
                slot.waiter = None
            raise

    def _queued(self, slot: FillSlot) -> asyncio.Future[None]:
        """From here until it is granted or given up, a turn with a waiter stands in one queue, once."""
        waiter = slot.waiter = asyncio.get_running_loop().create_future()
        if slot.demand:
            self._enter(slot)
        else:
            self._prefetch.append(slot)
        self._admit()
        return waiter

    def _enter(self, slot: FillSlot) -> None:
        slot.number = next(self._numbers)
        heappush(self._demand, (slot.ahead, slot.number, slot))

    def returned(self, slot: FillSlot) -> None:
        slot.held = False
        self._count(slot, -1)
        self._admit()

    def _count(self, slot: FillSlot, one: int) -> None:
        """Among those that have their turn: `one` more, or, if negative, less."""
        self._held[slot.demand] += one
        if slot.demand:
            self._left_bytes += one * slot.left_bytes
            self._going_on += one * slot.more

    def promoted(self, slot: FillSlot, ahead: int) -> None:
        if slot.held:
            self._count(slot, -1)
        was_prefetch, slot.demand, slot.ahead = not slot.demand, True, ahead
        if slot.held:
            self._count(slot, +1)
            self._background_limit.asked(self._held[True])
        elif slot.waiter is not None:
            if was_prefetch:
                self._prefetch.remove(slot)
            self._enter(slot)
        self._admit()

    def _nearest(self) -> FillSlot | None:
        """Of the demand that waits; it stays where it is."""
        while self._demand:
            _, number, slot = self._demand[0]
            if number == slot.number:
                return slot
            heappop(self._demand)
        return None

    def _admit(self) -> None:
        limit = self._aimd.limit
        while self._held[True] < limit and (slot := self._nearest()) is not None:
            heappop(self._demand)
            self._start(slot)
        ours = max(1, limit - limit // 4)
        while self._prefetch and self._held[False] < ours:
            self._background_limit.heed(self._clock())
            demand, free, room = self._held[True], ours, self._background_limit.alone
            if self._awaited or demand > 0 or self._questions > 0:
                # Who asks for something new is about to want more of it; of what was ordered, nobody wants any next.
                goes_on = self._going_on > 0 or self._questions > 0 or self._prefetch[0].ordered
                ends = demand > 0 and not goes_on and self._background_limit.ends(self._left_bytes)
                free = limit if ends else ours
                room = self._background_limit.after if ends else self._background_limit.beside
            if self._held[False] >= free - demand:
                break
            if self._held[False] >= room:
                self._background_limit.felt()
                break
            self._start(self._prefetch.popleft())
        full = self._held[True] + self._held[False] >= ours
        self._short = self._nearest() is not None or (full and bool(self._prefetch))

    def _start(self, slot: FillSlot) -> None:
        assert slot.waiter is not None
        slot.held, slot.number = True, 0
        self._count(slot, +1)
        if slot.demand:
            self._background_limit.asked(self._held[True])
        slot.waiter.set_result(None)
        slot.waiter = None
