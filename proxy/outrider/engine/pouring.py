"""One fill carried out: bytes from the origin into block files, told to the flights as they land."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import aclosing

from outrider.core.model import Extent
from outrider.engine.asking import Asking
from outrider.engine.flight import Flight
from outrider.engine.turns import Turn
from outrider.ports import BlockStore, BlockWriter, Clock, OriginReply


class Pouring:
    """One fill under way: the block files that it has open, and the bytes that go into them."""

    def __init__(
        self, asking: Asking, store: BlockStore, turn: Turn | None, clock: Clock,
        arrived: Callable[[float, float, int], None], landed: Callable[[Flight], None],
    ) -> None:  # fmt: skip
        """`turn`: given away while this waits for another try. `arrived` is told of each write: seconds of waiting for
        the origin, seconds that the disk took, bytes."""
        self._asking = asking
        self._store = store
        self._turn = turn
        self._clock = clock
        self._arrived = arrived
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
        async with aclosing(self._asking.stream(flight.meta.version, extent, first, self._turn)) as chunks:
            asked_at = self._clock()
            async for chunk in chunks:
                waited_s = self._clock() - asked_at
                rest = memoryview(chunk)
                while rest:
                    if position == flight.meta.extent.stop:
                        flight = next(coming)
                    piece = rest[: flight.meta.extent.stop - position]
                    disk_s = await self._write(flight, position - flight.meta.extent.start, piece)
                    self._arrived(waited_s, disk_s, len(piece))
                    position += len(piece)
                    rest, waited_s = rest[len(piece) :], 0.0
                asked_at = self._clock()

    async def bring_head(self, lead: Flight, head: Extent) -> None:
        # What nobody waits for comes after what somebody does.
        await lead.head_wanted.wait()
        await self.bring([lead], head)

    async def _write(self, flight: Flight, offset: int, piece: memoryview) -> float:
        writer = self._writers.get(flight) or await self.begin(flight)
        disk_s = await writer.write(offset, [piece])
        flight.advance(offset, len(piece))
        if flight.arrival.whole:
            await writer.commit()
            del self._writers[flight]
            self._landed(flight)
        return disk_s

    async def abort(self) -> None:
        for writer in self._writers.values():
            await writer.abort()
