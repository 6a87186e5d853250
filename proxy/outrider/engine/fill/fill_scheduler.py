"""The scheduler of fills: it grants slots, demand before prefetch, and no more at once than the origin bears."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from types import TracebackType

from outrider.core.cache.tenants import NOBODY, Tenants
from outrider.core.model import ObjectRef
from outrider.core.origin.fair_turns import TurnQueue
from outrider.core.origin.fill_limits import AimdLimit, BackgroundLimit, DemandOnLine
from outrider.ports import Clock

READS_ON_S = 0.003
"""A loop that reads one small object after the other asks for the next one within this time. Work that can wait would
hold that request up for a millisecond of its sixty, so it is done later, while the bucket takes its time."""

# A reader that goes on asks for its next object within this time.
_QUIET_S = 0.1
# Readers need a contended line for themselves if they waited for more of the last `_TICKS` ticks, some four seconds.
_WAITED_MAX, _TICKS = 0.25, 80


class Purpose(IntEnum):
    """The purpose of a prefetch. Lower ones go first."""

    READER = 0
    """A reader is about to want the blocks."""
    COMMAND = 1
    """A warm-up or a pin wants them."""
    GUESS = 2
    """A guess that a reader may want them: in a job's first epoch, or by a member of a cluster, as all guess."""


class FillSlot:
    """The place of one fill among all fills. `async with` waits until it is granted and gives it back at the end. Until
    then anybody may `promote` it.

    `demand`: a reader waits for the fill, or is about to. `ahead`: how many blocks that reader has before those of the
    fill; 0: it waits for them. Within demand the nearest comes first. `left_bytes`: how many bytes are still to come,
    as far as is known. `purpose` is that of a prefetch. `tenant`: for whom it is; see `Tenants.on_line`. `more`: the
    reader is about to ask for more blocks after these.
    """

    __slots__ = (
        "_scheduler", "ahead", "began", "demand", "held", "is_received", "left_bytes", "more", "purpose",
        "received_bytes", "tenant", "waiter", "work_bytes",
    )  # fmt: skip

    def __init__(
        self, scheduler: FillScheduler, *, demand: bool, ahead: int, left_bytes: int, purpose: Purpose, tenant: str,
        work_bytes: int,
    ) -> None:  # fmt: skip
        self._scheduler = scheduler
        self.demand = demand
        self.ahead = ahead
        self.left_bytes = left_bytes
        self.purpose = purpose
        self.tenant = tenant
        self.work_bytes = work_bytes
        self.more = False
        self.held = False
        self.began = 0.0
        self.received_bytes = 0
        self.is_received = False
        self.waiter: asyncio.Future[None] | None = None

    async def __aenter__(self) -> None:
        await self.take()

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.give_back()

    def queue(self) -> None:
        """Stand in the queue from now on, for `take` to wait in. No prefetch is granted a slot before this one if it is
        demand. Call `give_up` if nobody takes it."""
        self._scheduler.queued(self)

    async def take(self) -> None:
        await self._scheduler.grant(self)

    def give_back(self) -> None:
        """Let other fills have the slot, for good or while this one waits before another try; `take` gets it again."""
        if self.held:
            self._scheduler.returned(self)

    def give_up(self) -> None:
        """Neither hold the slot nor wait for it any more."""
        self._scheduler.given_up(self)

    def body_received(self) -> None:
        """All bytes are here, and none of them is on disk: the next fill need not wait for the write. The slot is kept
        while readers go on reading blocks that are here and no reader waits: another fill would only hold them up."""
        if self.demand or self._scheduler.line.is_awaited or not self._scheduler.reads_on:
            self.give_back()

    def expect(self, left_bytes: int) -> None:
        """It is known now how many bytes are to come."""
        self._scheduler.expected(self, left_bytes)

    def expect_more(self) -> None:
        """The reader will ask for more blocks once these have come."""
        if not self.more:
            self._scheduler.expected_more(self)

    def promote(self, ahead: int = 0) -> None:
        """A reader has `ahead` blocks before those of this fill now; 0: it waits for them. A slot never moves back."""
        if not self.demand or ahead < self.ahead:
            self._scheduler.promoted(self, ahead)


class FillScheduler:
    """Grants slots. Demand before prefetch; within demand, fewest blocks ahead of its reader; within prefetch, by its
    purpose. Then tenants take turns by their shares of the line. Where nobody has a share: first come, first served.

    Demand waits for demand alone. Prefetch leaves a quarter of the slots free and does not count where demand asks, so
    that both together may exceed the limit for a moment. A `BackgroundLimit` lets only so many prefetches run as take
    no bandwidth from demand.

    Two schedulers may share a line (`share_line`). Prefetch of each gives way to the demand of both, and each judges
    the line by the bytes of both.
    """

    def __init__(
        self, aimd: AimdLimit, background_limit: BackgroundLimit, clock: Clock, tenants: Tenants | None = None
    ) -> None:  # fmt: skip
        """`tenants` None: clients are not distinguished."""
        self._aimd = aimd
        self._background_limit = background_limit
        self._clock = clock
        self._tenants = tenants
        # By blocks ahead, and by purpose.
        self._demand: TurnQueue[FillSlot] = TurnQueue(self._weight_of)
        self._prefetch: TurnQueue[FillSlot] = TurnQueue(self._weight_of)
        self._held = {True: 0, False: 0}
        # Whether the AIMD limit holds fills up, and not the background limit. Whether a reader waited for bytes when
        # that was last looked at: it may also wait for a fill that needs no slot.
        self._short = self._awaited = False
        # For which share of the last seconds a reader waited, and when demand last gave a slot back.
        self._waited, self._demand_at = 0.5, float("-inf")
        self.line = DemandOnLine([background_limit])
        # The schedulers whose fills share it, this one included.
        self._sharers = [self]
        self.read_at = float("-inf")
        """When a reader was last answered with a block that is here. A plain attribute that any thread sets: each hit
        would pay for a call."""
        self.question_s = 0.0
        """For how long, in all, clients waited for replies that need no slot."""

    def slot(
        self, *, demand: bool = True, ahead: int = 0, left_bytes: int = 0, purpose: Purpose = Purpose.READER,
        ref: ObjectRef | None = None, work_bytes: int = 0,
    ) -> FillSlot:  # fmt: skip
        """`ref`: its tenant is that of this object; None: nobody. `work_bytes`: so many count for the tenant, where
        `left_bytes` are not known. See `FillSlot` for the others."""
        tenant = NOBODY if self._tenants is None or ref is None else self._tenants.on_line(ref)
        return FillSlot(self, demand=demand, ahead=ahead, left_bytes=left_bytes, purpose=purpose, tenant=tenant,
                        work_bytes=max(left_bytes, work_bytes))  # fmt: skip

    def share_line(self, other: FillScheduler) -> None:
        """The fills of `other` come over the same line. Each keeps slots of its own: prefetch of one never waits for
        prefetch of the other. Before either has a fill."""
        self.line.limits.append(other._background_limit)
        other.line = self.line
        self._sharers = other._sharers = [self, other]
        other._tenants = self._tenants

    @contextmanager
    def question(self) -> Iterator[None]:
        """A client waits meanwhile for a reply that needs no slot."""
        began = self._clock()
        self.line.questions += 1
        try:
            yield
        finally:
            self.line.questions -= 1
            self.question_s += self._clock() - began
            self._admit_all()

    @property
    def is_idle(self) -> bool:
        """No slot is held or waited for."""
        return not (any(self._held.values()) or self._demand.waiting or self._prefetch.waiting)

    @property
    def is_short(self) -> bool:
        """Demand waits for a slot, and as many fills run as the settings allow at most."""
        return self._held[True] >= self._aimd.ceiling and bool(self._demand.waiting)

    def written(self, count: int) -> None:
        """`count` bytes from the origin are on disk."""
        self._aimd.received(count, self._clock(), short=self._short)
        self._admit()

    def received(self, count: int, slot: FillSlot) -> None:
        """`count` bytes came from the origin for the fill that has `slot`."""
        received = min(count, slot.left_bytes)
        slot.left_bytes -= received
        slot.received_bytes += received
        if received and not slot.left_bytes:
            self._all_received(slot)
        if slot.held and slot.demand:
            self.line.left_bytes -= received
            # Now, and not when they are on disk: a fill holds half a megabyte in memory, or all of a small block.
            for scheduler in self._sharers:
                if scheduler._prefetch.waiting and scheduler._background_limit.ends_soon(self.line.left_bytes):
                    scheduler._admit()

    def _all_received(self, slot: FillSlot) -> None:
        if (after_s := self._clock() - slot.began) > 0:
            self._background_limit.body_received(slot.received_bytes, after_s, is_demand=slot.demand)
        if slot.held and not slot.is_received:
            self.line.coming -= slot.demand
            slot.is_received = True

    def expected(self, slot: FillSlot, left_bytes: int) -> None:
        if slot.held and slot.demand:
            self.line.left_bytes += left_bytes - slot.left_bytes
        slot.left_bytes = left_bytes

    def expected_more(self, slot: FillSlot) -> None:
        slot.more = True
        self.line.expecting_more += slot.held and slot.demand

    def flowed(self, count: int, awaited: Callable[[], bool]) -> None:
        """A connection brought `count` bytes of a large body, after its first ones. `awaited`: whether a reader waits
        for bytes of any fill."""
        now = self._clock()
        for each in self._sharers:
            if each._background_limit.is_due(now):
                each._awaited = awaited()
                each._background_limit.judge(now, awaited=each._awaited, queued=bool(each._prefetch.waiting))
            each._background_limit.flowed(count)

    def small_received(self, after_s: float) -> None:
        """A small body was here `after_s` after it was requested."""
        self._background_limit.small_received(after_s, self._clock())

    def alone_again(self) -> None:
        """A LIST of ours that shared the line with fills has ended."""
        self._background_limit.alone_again(sum(self._held.values()) + self.line.questions)

    @property
    def reads_on(self) -> bool:
        """A reader was answered with a block that is here, and is about to ask for the next."""
        return self._clock() - self.read_at < READS_ON_S

    def slow_down(self) -> None:
        """The origin answered that it gets too many requests."""
        self._aimd.slow_down(self._clock())

    async def grant(self, slot: FillSlot) -> None:
        """Wait until `slot` is granted. The two parts of one fill share a slot: each may ask for it after a failure of
        its own, and one grant ends both waits."""
        if slot.held:
            return
        waiter = slot.waiter or self.queued(slot)
        self._admit()
        try:
            await asyncio.shield(waiter)
        except asyncio.CancelledError:
            self.given_up(slot)  # it may have been granted and cancelled in the same moment
            raise

    def queued(self, slot: FillSlot) -> asyncio.Future[None]:
        """From here until it is granted or given up, a slot with a waiter stands in one queue, once."""
        waiter = slot.waiter = asyncio.get_running_loop().create_future()
        self._enter(slot)
        return waiter

    def given_up(self, slot: FillSlot) -> None:
        if slot.held:
            self.returned(slot)
        elif slot.waiter is not None:
            self._queue(slot).discard(slot)
            slot.waiter = None

    def _weight_of(self, tenant: str) -> float:
        return 1.0 if self._tenants is None else self._tenants.weight_of(tenant)

    def _queue(self, slot: FillSlot) -> TurnQueue[FillSlot]:
        return self._demand if slot.demand else self._prefetch

    def _enter(self, slot: FillSlot) -> None:
        self._queue(slot).put(slot, slot.ahead if slot.demand else slot.purpose, slot.tenant, slot.work_bytes)

    def returned(self, slot: FillSlot) -> None:
        slot.held = False
        self._count(slot, -1)
        if slot.demand:
            self._demand_at = self._clock()
        self._admit_all()

    def tick(self) -> None:
        """Called twenty times a second: guesses wait until nobody has waited for a while."""
        self._waited += (self._a_reader_waits - self._waited) / _TICKS
        if self._prefetch.waiting:
            self._admit()

    def _count(self, slot: FillSlot, sign: int) -> None:
        """Add `slot` to the sums over the slots that are held, or take it out of them if `sign` is negative."""
        self._held[slot.demand] += sign
        if slot.demand:
            line = self.line
            line.held += sign
            line.left_bytes += sign * slot.left_bytes
            line.coming += sign * (not slot.is_received)
            line.expecting_more += sign * slot.more

    def promoted(self, slot: FillSlot, ahead: int) -> None:
        if slot.held:
            self._count(slot, -1)
        elif slot.waiter is not None:
            self._queue(slot).discard(slot)
        slot.demand, slot.ahead = True, ahead
        if slot.held:
            self._count(slot, +1)
            self.line.seen()
        elif slot.waiter is not None:
            self._enter(slot)
        self._admit()

    def _admit_all(self) -> None:
        """Demand may have ended: prefetch of each scheduler on the line may have waited for that."""
        for scheduler in self._sharers:
            scheduler._admit()

    def _admit(self) -> None:
        if not (self._demand.waiting or self._prefetch.waiting):
            self._short = False
            return
        limit = self._aimd.limit
        while self._held[True] < limit and (slot := self._demand.first()) is not None:
            self._start(slot)
        # A quarter of the slots stays free for demand that comes next.
        for_prefetch = max(1, limit - limit // 4)
        while self._held[False] < for_prefetch and (slot := self._prefetch.first()) is not None:
            self._background_limit.fill_begins(self._clock())
            slots, most = self._prefetch_limits(slot.purpose, limit, for_prefetch)
            if self._held[False] >= slots:
                break
            if self._held[False] >= most:
                self._background_limit.hindered()
                break
            self._start(slot)
            if self._held[False] >= most:
                self._background_limit.reached()
        full = self._held[True] + self._held[False] >= for_prefetch
        self._short = bool(self._demand.waiting or (full and self._prefetch.waiting))

    def _prefetch_limits(self, purpose: Purpose, limit: int, for_prefetch: int) -> tuple[int, int]:
        """How many prefetches of this purpose may hold slots now: by the AIMD limit, and by the background limit."""
        line, is_awaited = self.line, self._awaited or self.line.is_awaited
        slots, most = for_prefetch, self._background_limit.alone
        if is_awaited:
            # The client of a question is about to want more of its object. A warm-up need not use the slots of demand
            # that ends: no reader goes on with its blocks.
            more_follows = line.expecting_more or line.questions or purpose is not Purpose.READER
            slots, most = for_prefetch - self._held[True], self._background_limit.beside
            if line.held and not more_follows and self._background_limit.ends_soon(line.left_bytes):
                # All demand will be served within 50 ms and no reader has more to ask for: prefetch may use the free
                # slots. Otherwise the link would idle for a round trip at the end of each shard.
                slots, most = limit - self._held[True], self._background_limit.after
        return slots, self._guesses(most, is_awaited=is_awaited) if purpose is Purpose.GUESS else most

    def _guesses(self, most: int, *, is_awaited: bool) -> int:
        """How many guesses may hold slots now, of the `most` prefetches.

        A node by itself does not know who else asks the bucket. Eight of them, each dealt an eighth of the data, each
        with one guess beside its demand, had half of the bucket's bandwidth for what they never read (`make papers`).
        So large guesses wait until nobody has waited for a while, and on a contended line not often of late: a reader
        that gets half of what it could take has its quiet moments, too. A reader that waits for its one connection
        loses nothing by them (`make demo`). Small ones cost a round trip, not bandwidth.
        """
        if len(self._sharers) > 1:
            left = self.line.bodies_left(self._background_limit, most, awaited=self._awaited)
            return min(most, left) if is_awaited else most
        is_quiet = not self._a_reader_waits and self._clock() - self._demand_at >= _QUIET_S
        may_go = is_quiet and (self._waited < _WAITED_MAX or not self._background_limit.is_contended)
        return most if may_go or not self._background_limit.is_large else 0

    @property
    def _a_reader_waits(self) -> bool:
        # `_awaited` is judged as bytes come: with no fill under way it would stay as it is.
        return self.line.is_awaited or (self._awaited and self._held[False] > 0)

    def _start(self, slot: FillSlot) -> None:
        assert slot.waiter is not None
        self._queue(slot).take(slot)
        slot.held = True
        slot.began, slot.received_bytes, slot.is_received = self._clock(), 0, False
        self._count(slot, +1)
        if slot.demand:
            self.line.seen()
        slot.waiter.set_result(None)
        slot.waiter = None
