"""Blocks on their way in: one flight per block, followed by any number of readers at any offset.

A flight belongs to nobody: readers come and go, and only the task that fills it ends it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import aclosing
from typing import Any

from outrider.core.blockfile import BlockMeta
from outrider.core.errors import Signal, StoreUnavailable
from outrider.core.model import BlockKey, Extent, ObjectVersion
from outrider.core.window import Run
from outrider.engine.asking import Asking
from outrider.ports import BlockStore, BlockWriter, Lease, OriginReply

log = logging.getLogger(__name__)

Spawn = Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]]
"""Starts a background task, with a name, in a group that somebody owns."""


class Flight:
    """One block's arrival. `arrived` bytes of it, from its start, can be read through `lease`."""

    __slots__ = ("_error", "_waiters", "_writer", "arrived", "meta")

    def __init__(self, meta: BlockMeta) -> None:
        self.meta = meta
        self.arrived = 0
        self._writer: BlockWriter | None = None
        self._error: Exception | None = None
        self._waiters: set[asyncio.Future[None]] = set()

    def begin(self, writer: BlockWriter) -> None:
        self._writer = writer

    def advance(self, count: int) -> None:
        self.arrived += count
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
        """Wait until byte `offset` of the block is here; how many bytes are.

        Raises:
            Signal: why it will never come.
        """
        while self.arrived <= offset:
            if self._error is not None:
                raise self._error.with_traceback(None)
            # A future of one's own: a waiter that is cancelled takes nobody with it.
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.add(waiter)
            try:
                await waiter
            finally:
                self._waiters.discard(waiter)
        return self.arrived

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

    def board(self, origin: str, version: ObjectVersion, block_bytes: int, run: Run) -> list[Flight]:
        """Enter the blocks of `run`, all of them wanted, into the table. The caller sees to it that they are filled."""
        flights = [Flight(BlockMeta(origin, version, block_bytes, run.first + i)) for i in range(run.count)]
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
        version = flights[0].meta.version
        whole = Extent(flights[0].meta.extent.start, flights[-1].meta.extent.stop)
        waiting = list(flights)
        writer: BlockWriter | None = None
        try:
            # The file of the first block is made before the GET is sent: no room, no traffic.
            writer = await self._begin(waiting[0])
            async with aclosing(self._asking.stream(version, whole, first)) as chunks:
                async for chunk in chunks:
                    rest = memoryview(chunk)
                    while rest:
                        flight = waiting[0]
                        writer = writer or await self._begin(flight)
                        piece = rest[: flight.meta.extent.length - flight.arrived]
                        await writer.append([piece])
                        flight.advance(len(piece))
                        rest = rest[len(piece) :]
                        if flight.arrived == flight.meta.extent.length:
                            await writer.commit()
                            writer = None
                            # The store has it now: only then it leaves the table, so that nobody finds neither.
                            self._flights.pop(flight.meta.key, None)
                            waiting.pop(0)
        except BaseException as error:
            # Out of the table before the file is closed: whoever finds a flight there may lease it.
            self._end(flights, error if isinstance(error, Exception) else StoreUnavailable("the proxy is stopping"))
            if writer is not None:
                await writer.abort()
            raise

    async def _begin(self, flight: Flight) -> BlockWriter:
        writer = await self._store.create(flight.meta)
        flight.begin(writer)
        return writer

    def _end(self, flights: Sequence[Flight], error: Exception) -> None:
        for flight in flights:
            if self._flights.get(flight.meta.key) is flight:
                del self._flights[flight.meta.key]
                flight.fail(error)
