"""The single-flight table: the blocks on their way in, one fill per block at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from typing import Any

from outrider.core.block_layout import BlockLayout
from outrider.core.cache.block_file import BlockMeta
from outrider.core.cache.disk_limits import DiskPressure
from outrider.core.cache.readahead import BlockRun, fill_start
from outrider.core.errors import StoreUnavailable
from outrider.core.model import BlockKey, ObjectVersion
from outrider.engine.fill.block_source import BlockSource, SourcePart
from outrider.engine.fill.content_verification import ContentVerification
from outrider.engine.fill.fill import BULK_BYTES, BlockFill, FillParts, FirstReply, buffer_bytes
from outrider.engine.fill.fill_scheduler import FillScheduler, FillSlot, Purpose
from outrider.engine.fill.flight import Flight
from outrider.engine.fill.patience import Waiters
from outrider.engine.fill.peer_block import IncomingBody, PeerBlock
from outrider.engine.tasks.runtime import Runtime
from outrider.ports import BlockStore


class FlightTable:
    """Owns the flights, and starts the tasks that fill them. A block is in the table from `board` until the store has
    it or its fill failed."""

    def __init__(
        self, layout: BlockLayout, source: BlockSource, store: BlockStore, contents: ContentVerification,
        scheduler: FillScheduler, runtime: Runtime, *, buffer_bytes_of: Callable[[int], int] = buffer_bytes,
        bulk_bytes: int = BULK_BYTES, remote_scheduler: FillScheduler | None = None,
    ) -> None:  # fmt: skip
        """`buffer_bytes_of`: how many bytes one of so many fills may hold in memory before it writes them.
        `bulk_bytes`: from which size on a thread receives the tail of a fill. `runtime.sleep`: for how long readers get
        time to ask for more before the disk's work begins.

        `remote_scheduler`: of the fills whose bytes a peer brings; None: there are none. A slot of `scheduler` is never
        held while a peer is waited for, which may itself wait for a slot: the slots of two members would wait for each
        other.
        """
        self._layout = layout
        self._store = store
        self._source = source
        self._scheduler = scheduler
        self._remote_scheduler = scheduler if remote_scheduler is None else remote_scheduler
        self._runtime = runtime
        self._buffer_bytes_of = buffer_bytes_of
        self._parts = FillParts(source, store, contents, scheduler, self, runtime, bulk_bytes)
        self._remote_parts = replace(self._parts, scheduler=self._remote_scheduler)
        self._disk_pressure = DiskPressure()
        self._flights: dict[BlockKey, Flight] = {}
        self.fills = 0
        # How many relays past the cache begin with each block now.
        self._relays: Counter[BlockKey] = Counter()

    def __len__(self) -> int:
        return len(self._flights)

    def get(self, block: BlockKey) -> Flight | None:
        return self._flights.get(block)

    def wanted(self, block: BlockKey) -> bool:
        """Neither here nor on its way."""
        return block not in self._flights and not self._store.has(block)

    def is_to_be_requested(self, block: BlockKey) -> bool:
        """Neither here nor on its way for a reader."""
        flight = self._flights.get(block)
        if flight is None:
            return not self._store.has(block)
        return flight.slot is not None and not flight.slot.demand

    def missing_until(self, version: ObjectVersion, position: int, stop: int) -> int:
        """Where the run of missing blocks ends that the byte `position` lies in; `stop` at the latest."""
        index = self._layout.index_of(position)
        while True:
            block_stop = self._layout.extent(index, version.size).stop
            if block_stop >= stop:
                return stop
            index += 1
            if not self.wanted(self._layout.key(version, index)):
                return block_stop

    def admits(self) -> bool:
        """Whether one more fill may begin. False is back-pressure of the disk: fills wait for it, and a miss is better
        relayed past the cache."""
        return self._disk_pressure.allows(len(self._flights), self._runtime.clock())

    @property
    def disk_lags(self) -> bool:
        """Fills wait for the disk, or did a moment ago."""
        return self._disk_pressure.fills is not None

    def begin_relay(self, block: BlockKey) -> bool:
        """A relay past the cache begins with `block`, until `end_relay`. Returns whether its bytes come twice: another
        relay or a fill brings them now, or they are on disk."""
        self._relays[block] += 1
        return self._relays[block] > 1 or not self.wanted(block)

    def end_relay(self, block: BlockKey) -> None:
        self._relays[block] -= 1
        if not self._relays[block]:
            del self._relays[block]

    # -- how a block enters, and who fills it -----------------------------------------------------------------------

    def parts(self, version: ObjectVersion, run: BlockRun) -> Iterator[SourcePart]:
        """The fills for a run of wanted blocks. See `BlockSource.parts`."""
        return self._source.parts(version, run)

    def scheduler_of(self, *, remote: bool) -> FillScheduler:
        """The scheduler of fills whose bytes a peer brings, or of all others."""
        return self._remote_scheduler if remote else self._scheduler

    def board(
        self, version: ObjectVersion, run: BlockRun, wanted_byte: int | None = None, peer: PeerBlock | None = None
    ) -> list[Flight]:
        """Enter the blocks of `run`, all of them wanted, into the table. The caller sees to it that they are filled.
        `peer`: asked for the block, of which there is one then.

        `wanted_byte`: the byte of the object that a reader waits for. If it lies in the first block, the fill begins
        there or a little before. None, or a byte elsewhere: the fill begins at the start of the first block.
        """
        waiters = Waiters()
        flights = [Flight(BlockMeta(self._layout, version, run.first + i), 0, waiters, peer) for i in range(run.count)]
        lead = flights[0].meta
        if wanted_byte is not None and lead.extent.start < wanted_byte < lead.extent.stop:
            flights[0] = Flight(
                lead, fill_start(wanted_byte - lead.extent.start, self._layout.block_bytes), waiters, peer
            )
        for flight in flights:
            key = flight.meta.key
            assert key not in self._flights, "one fill per block"
            self._flights[key] = flight
        return flights

    def fill(
        self, flights: Sequence[Flight], *, prefetch: bool = False, ahead: int = 0, purpose: Purpose = Purpose.READER
    ) -> None:
        """Bring adjacent blocks by one GET, in a task of its own. `prefetch`: no reader waits for them yet; the fill
        becomes demand once a reader does. `ahead`: how many blocks their reader has before them. `purpose`: that of a
        prefetch."""
        left_bytes = sum(flight.meta.extent.length for flight in flights)
        scheduler = self.scheduler_of(remote=flights[0].is_remote)
        slot = scheduler.slot(
            demand=not prefetch, ahead=ahead, left_bytes=left_bytes, purpose=purpose, ref=flights[0].meta.version.ref
        )
        for flight in flights:
            flight.slot = slot
        # Not in the task: a prefetch could be granted a slot before the first step of a task of demand.
        slot.queue()
        task = self._runtime.spawn(self._fill(flights, slot), f"fill {flights[0].meta.version.ref}")

        def end(_: object) -> None:
            # Not a `finally` in the task: a task that is cancelled before its first step never gets there.
            slot.give_up()
            self.failed(flights, StoreUnavailable("the proxy is stopping"))

        task.add_done_callback(end)

    async def _fill(self, flights: Sequence[Flight], slot: FillSlot) -> None:
        async with slot:
            await BlockFill(flights, slot, self._parts_of(flights)).run()

    def fill_begun(self, flights: Sequence[Flight]) -> Coroutine[Any, Any, None]:
        """Fill the flight of a block whose `peer` has its reply already. As `fill_from`."""
        return BlockFill(flights, None, self._parts_of(flights)).run()

    def fill_from(
        self, flights: Sequence[Flight], body: IncomingBody, requested_at: float
    ) -> Coroutine[Any, Any, None]:  # fmt: skip
        """Fill the flights from `body`, which was requested at `requested_at` and brings their bytes. It needs no slot.
        Raises no error of the origin or the disk: the readers of the flights get it."""
        return BlockFill(flights, None, self._parts).run(FirstReply(body, requested_at))

    def _parts_of(self, flights: Sequence[Flight]) -> FillParts:
        return self._remote_parts if flights[0].is_remote else self._parts

    # -- what a fill asks and reports: see `fill.Table` -------------------------------------------------------------

    @property
    def buffer_bytes(self) -> int:
        return self._buffer_bytes_of(self.fills)

    def is_awaited(self) -> bool:
        return any(flight.is_awaited() for flight in self._flights.values())

    def written(self, origin_s: float, disk_s: float, count: int) -> None:
        self._disk_pressure.measured(disk_s, origin_s, count, len(self._flights), self._runtime.clock())

    def landed(self, flight: Flight) -> None:
        # The block leaves the table only now that the store has it: a reader always finds it in one of the two.
        self._flights.pop(flight.meta.key, None)
        flight.land()

    def failed(self, flights: Sequence[Flight], error: Exception) -> None:
        for flight in flights:
            if self._flights.get(flight.meta.key) is flight:
                del self._flights[flight.meta.key]
                flight.fail(error)
