"""The table of blocks on their way in: one fill per block at a time, and the tasks that carry the fills out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from outrider.core.block_layout import BlockLayout
from outrider.core.cache.block_file import BlockMeta
from outrider.core.cache.disk_pressure import DiskPressure
from outrider.core.cache.readahead import BlockRun, fill_start
from outrider.core.errors import Signal, StoreUnavailable
from outrider.core.model import BlockKey, Extent, ObjectVersion
from outrider.engine.fill.fill import Pouring, hold_bytes
from outrider.engine.fill.fill_scheduler import FillScheduler, FillSlot
from outrider.engine.fill.flight import Flight
from outrider.engine.fill.origin_reader import OriginReader
from outrider.engine.tasks.task_group import TaskGroup
from outrider.ports import BlockStore, Clock, OriginReply

log = logging.getLogger(__name__)

Spawn = Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]]
"""Starts a background task, with a name, in a group that somebody owns."""


class FlightTable:
    """The table of flights, and the tasks that carry them out: one fill per block at a time."""

    def __init__(
        self, layout: BlockLayout, origin_reader: OriginReader, store: BlockStore, spawn: Spawn,
        scheduler: FillScheduler, clock: Clock, *, may_hold: Callable[[int], int] = hold_bytes,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:  # fmt: skip
        """`may_hold`: how many bytes one of so many fills under way may hold back before they are written. `sleep`: for
        how long readers are given to ask for more before the disk's work begins."""
        self._layout = layout
        self._origin_reader = origin_reader
        self._store = store
        self._spawn = spawn
        self._scheduler = scheduler
        self._clock = clock
        self._may_hold = may_hold
        self._sleep = sleep
        self._lag = DiskPressure()
        self._flights: dict[BlockKey, Flight] = {}
        self._pouring = 0

    def __len__(self) -> int:
        return len(self._flights)

    def get(self, block: BlockKey) -> Flight | None:
        return self._flights.get(block)

    def wanted(self, block: BlockKey) -> bool:
        """Neither here nor on its way."""
        return block not in self._flights and not self._store.has(block)

    def board(self, version: ObjectVersion, run: BlockRun, wanted_byte: int | None = None) -> list[Flight]:
        """Enter the blocks of `run`, all of them wanted, into the table. The caller sees to it that they are filled.

        `wanted_byte`: the object's byte that somebody waits for; when it lies in the first block, the fill begins there
        or a little before. None, or elsewhere: at the start.
        """
        flights = [Flight(BlockMeta(self._layout, version, run.first + i)) for i in range(run.count)]
        lead = flights[0].meta
        if wanted_byte is not None and lead.extent.start < wanted_byte < lead.extent.stop:
            flights[0] = Flight(lead, fill_start(wanted_byte - lead.extent.start, self._layout.block_bytes))
        for flight in flights:
            key = flight.meta.key
            assert self.wanted(key), "one fill per block"
            self._flights[key] = flight
        return flights

    def admits(self) -> bool:
        """Whether one more fill may begin. False: the disk is what fills wait for, so a miss had better be relayed."""
        return self._lag.allows(len(self._flights), self._clock())

    @property
    def disk_lags(self) -> bool:
        """The disk is what fills wait for, or was a moment ago."""
        return self._lag.fills is not None

    def fill(self, flights: Sequence[Flight], *, prefetch: bool = False, ahead: int = 0, ordered: bool = False) -> None:
        """Bring adjacent blocks by one GET, in a task of its own. `prefetch`: nobody waits for them yet; it is demand
        from when somebody does. `ahead`: how many blocks their reader has before them. `ordered`: see `FillSlot`."""
        left_bytes = sum(flight.meta.extent.length for flight in flights)
        slot = self._scheduler.slot(demand=not prefetch, ahead=ahead, left_bytes=left_bytes, ordered=ordered)
        for flight in flights:
            flight.slot = slot
        task = self._spawn(self._fill_in_turn(flights, slot), f"fill {flights[0].meta.version.ref}")
        # Not a `finally` in the task: one that is cancelled before its first step never gets there.
        task.add_done_callback(lambda _: self._end(flights, StoreUnavailable("the proxy is stopping")))

    async def _fill_in_turn(self, flights: Sequence[Flight], slot: FillSlot) -> None:
        async with slot:
            await self._pour_safely(flights, None, None, slot)

    async def pour(self, flights: Sequence[Flight], first: OriginReply, asked_at: float) -> None:
        """Fill the flights from `first`, a reply that already brings their bytes, which were asked for at `asked_at`.
        Never raises a Signal: the readers of the flights are told instead."""
        await self._pour_safely(flights, first, asked_at, None)

    async def _pour_safely(
        self, flights: Sequence[Flight], first: OriginReply | None, asked_at: float | None, slot: FillSlot | None
    ) -> None:
        try:
            await self._pour(flights, first, asked_at, slot)
        except (Signal, OSError) as error:
            log.debug("fill failed", extra={"object": str(flights[0].meta.version.ref), "error": repr(error)})
        except Exception:  # our own bug; the readers were told
            log.exception("fill failed")

    async def _pour(
        self, flights: Sequence[Flight], first: OriginReply | None, asked_at: float | None, slot: FillSlot | None
    ) -> None:
        lead = flights[0]
        begun = Extent(lead.begins_at, flights[-1].meta.extent.stop)
        head = Extent(lead.meta.extent.start, begun.start)
        pouring = Pouring(
            self._origin_reader, self._store, slot, self._clock, self._arrived, self._landed, partial(self._came, lead),
            self._scheduler.came_small, lambda: self._may_hold(self._pouring),
            lambda: self._scheduler.reads_on, self._sleep,
        )  # fmt: skip
        self._pouring += 1
        try:
            async with TaskGroup() as parts:
                if first is None or head.length:
                    # Of a reply that is here already the first bytes are for their reader while the file is made.
                    await pouring.begin_beside(lead, parts, hurry=slot is None or slot.demand)
                if head.length:
                    parts.create_task(pouring.bring_head(lead, head))
                await pouring.bring(flights, begun, first, asked_at)
                lead.head_wanted.set()
        except BaseException as error:
            # Out of the table before the file is closed: whoever finds a flight there may lease it.
            self._end(flights, error if isinstance(error, Exception) else StoreUnavailable("the proxy is stopping"))
            await pouring.abort()
            raise
        finally:
            self._pouring -= 1

    def _arrived(self, origin_s: float, disk_s: float, count: int) -> None:
        self._scheduler.arrived(count)
        self._lag.took(disk_s, origin_s, count, len(self._flights), self._clock())

    def _came(self, lead: Flight, count: int, flows: bool) -> None:
        if flows:
            self._scheduler.flowed(count, lambda: any(flight.awaited for flight in self._flights.values()))
        # Of a reply that was here already the turn may have become known since.
        self._scheduler.came(count, lead.slot)

    def _landed(self, flight: Flight) -> None:
        # The store has it now: only then it leaves the table, so that nobody finds neither.
        self._flights.pop(flight.meta.key, None)
        flight.land()

    def _end(self, flights: Sequence[Flight], error: Exception) -> None:
        for flight in flights:
            if self._flights.get(flight.meta.key) is flight:
                del self._flights[flight.meta.key]
                flight.fail(error)
