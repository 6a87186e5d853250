"""Blocks on their way in: one flight per block, followed by any number of readers at any offset.

A flight belongs to nobody: readers come and go, and only the task that fills it ends it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import aclosing
from typing import Any

from outrider.core.arrival import Arrival
from outrider.core.blockfile import BlockMeta
from outrider.core.errors import Signal, StoreUnavailable
from outrider.core.model import BlockKey, Extent, ObjectVersion
from outrider.core.window import Run, fill_start
from outrider.engine.asking import Asking
from outrider.ports import BlockStore, BlockWriter, Lease, OriginReply

log = logging.getLogger(__name__)

Spawn = Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]]
"""Starts a background task, with a name, in a group that somebody owns."""


class Flight:
    """One block's arrival, from offset `start` on and then what lies before it; it is read through `lease`."""

    __slots__ = ("_error", "_waiters", "_writer", "arrival", "head_wanted", "meta")

    def __init__(self, meta: BlockMeta, start: int = 0) -> None:
        self.meta = meta
        self.arrival = Arrival(meta.extent.length, start)
        self.head_wanted = asyncio.Event()
        """Somebody waits for what lies before `start`, or all the rest is here."""
        self._writer: BlockWriter | None = None
        self._error: Exception | None = None
        self._waiters: set[asyncio.Future[None]] = set()

    @property
    def begins_at(self) -> int:
        """The first of the object's bytes that is brought."""
        return self.meta.extent.start + self.arrival.start

    def begin(self, writer: BlockWriter) -> None:
        self._writer = writer

    def advance(self, offset: int, count: int) -> None:
        self.arrival.add(offset, count)
        self._wake()

    def fail(self, error: Exception) -> None:
        self._error = error
        self._wake()

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    async def beyond(self, offset: int) -> int:
        """Wait until byte `offset` of the block is here; where the run of bytes that are here ends from there on.

        Raises:
            Signal: why it will never come.
        """
        while (reach := self.arrival.reach(offset)) <= offset:
            if self._error is not None:
                raise self._error.with_traceback(None)
            if offset < self.arrival.start:
                self.head_wanted.set()
            # A future of one's own: a waiter that is cancelled takes nobody with it.
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.add(waiter)
            try:
                await waiter
            finally:
                self._waiters.discard(waiter)
        return reach

    def lease(self) -> Lease:
        """Good after the first byte arrived."""
        assert self._writer is not None
        return self._writer.lease()


class Flights:
    """The table of flights, and the tasks that carry them out: one fill per block at a time."""

    def __init__(self, asking: Asking, store: BlockStore, spawn: Spawn, *, fills_max: int) -> None:
        self._asking = asking
        self._store = store
        self._spawn = spawn
        self._flights: dict[BlockKey, Flight] = {}
        self._turn = asyncio.Semaphore(fills_max)

    def __len__(self) -> int:
        return len(self._flights)

    def get(self, block: BlockKey) -> Flight | None:
        return self._flights.get(block)

    def wanted(self, block: BlockKey) -> bool:
        """Neither here nor on its way."""
        return block not in self._flights and not self._store.has(block)

    def board(
        self, origin: str, version: ObjectVersion, block_bytes: int, run: Run, wanted_byte: int | None = None
    ) -> list[Flight]:
        """Enter the blocks of `run`, all of them wanted, into the table. The caller sees to it that they are filled.

        `wanted_byte`: the object's byte that somebody waits for; when it lies in the first block, the fill begins there
        or a little before. None, or elsewhere: at the start.
        """
        flights = [Flight(BlockMeta(origin, version, block_bytes, run.first + i)) for i in range(run.count)]
        lead = flights[0].meta
        if wanted_byte is not None and lead.extent.start < wanted_byte < lead.extent.stop:
            flights[0] = Flight(lead, fill_start(wanted_byte - lead.extent.start, block_bytes))
        for flight in flights:
            key = flight.meta.key
            assert self.wanted(key), "one fill per block"
            self._flights[key] = flight
        return flights

    def fill(self, flights: Sequence[Flight]) -> None:
        """Bring adjacent blocks by one GET, in a task of its own."""
        task = self._spawn(self._fill_in_turn(flights), f"fill {flights[0].meta.version.ref}")
        # Not a `finally` in the task: one that is cancelled before its first step never gets there.
        task.add_done_callback(lambda _: self._end(flights, StoreUnavailable("the proxy is stopping")))

    async def _fill_in_turn(self, flights: Sequence[Flight]) -> None:
        async with self._turn:
            await self.pour(flights)

    async def pour(self, flights: Sequence[Flight], first: OriginReply | None = None) -> None:
        """Fill the flights from the origin; `first` is a reply that already brings their bytes. Never raises a Signal:
        the readers of the flights are told instead."""
        try:
            await self._pour(flights, first)
        except (Signal, OSError) as error:
            log.debug("fill failed", extra={"object": str(flights[0].meta.version.ref), "error": repr(error)})
        except Exception:  # our own bug; the readers were told
            log.exception("fill failed")

    async def _pour(self, flights: Sequence[Flight], first: OriginReply | None) -> None:
        lead = flights[0]
        begun = Extent(lead.begins_at, flights[-1].meta.extent.stop)
        head = Extent(lead.meta.extent.start, begun.start)
        pouring = _Pouring(self._asking, self._store, self._landed)
        try:
            # The file of the first block is made before the GET is sent: no room, no traffic.
            await pouring.begin(lead)
            if head.length == 0:
                await pouring.bring(flights, begun, first)
                return
            async with asyncio.TaskGroup() as parts:
                parts.create_task(pouring.bring_head(lead, head))
                await pouring.bring(flights, begun, first)
                lead.head_wanted.set()
        except BaseException as error:
            if isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]  # one part failed, and so the other was given up
            # Out of the table before the file is closed: whoever finds a flight there may lease it.
            self._end(flights, error if isinstance(error, Exception) else StoreUnavailable("the proxy is stopping"))
            await pouring.abort()
            raise error from None

    def _landed(self, flight: Flight) -> None:
        # The store has it now: only then it leaves the table, so that nobody finds neither.
        self._flights.pop(flight.meta.key, None)

    def _end(self, flights: Sequence[Flight], error: Exception) -> None:
        for flight in flights:
            if self._flights.get(flight.meta.key) is flight:
                del self._flights[flight.meta.key]
                flight.fail(error)


class _Pouring:
    """One fill under way: the block files that it has open, and the bytes that go into them."""

    def __init__(self, asking: Asking, store: BlockStore, landed: Callable[[Flight], None]) -> None:
        self._asking = asking
        self._store = store
        self._landed = landed
        self._writers: dict[Flight, BlockWriter] = {}

    async def begin(self, flight: Flight) -> BlockWriter:
        writer = self._writers[flight] = await self._store.create(flight.meta)
        flight.begin(writer)
        return writer

    async def bring(self, flights: Sequence[Flight], extent: Extent, first: OriginReply | None = None) -> None:
        """The bytes of `extent` into those of `flights` that they belong to."""
        coming = iter(flights)
        flight = next(coming)
        position = extent.start
        async with aclosing(self._asking.stream(flight.meta.version, extent, first)) as chunks:
            async for chunk in chunks:
                rest = memoryview(chunk)
                while rest:
                    if position == flight.meta.extent.stop:
                        flight = next(coming)
                    piece = rest[: flight.meta.extent.stop - position]
                    await self._write(flight, position - flight.meta.extent.start, piece)
                    position += len(piece)
                    rest = rest[len(piece) :]

    async def bring_head(self, lead: Flight, head: Extent) -> None:
        # What nobody waits for comes after what somebody does.
        await lead.head_wanted.wait()
        await self.bring([lead], head)

    async def _write(self, flight: Flight, offset: int, piece: memoryview) -> None:
        writer = self._writers.get(flight) or await self.begin(flight)
        await writer.write(offset, [piece])
        flight.advance(offset, len(piece))
        if flight.arrival.whole:
            await writer.commit()
            del self._writers[flight]
            self._landed(flight)

    async def abort(self) -> None:
        for writer in self._writers.values():
            await writer.abort()
