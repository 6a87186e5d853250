"""The blocks of a fill as the places where a thread puts what it receives."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from outrider.engine.fill.flight import Flight
from outrider.engine.fill.sinks import Sink
from outrider.ports import BlockReceiver, BlockWriter

# The first bytes of a reply that are handed on from memory.
_FIRST_BYTES = 64 * 1024


class FirstBytes:
    """A sink in memory, for the first bytes of a reply: their reader gets them while the block's file is made."""

    is_awaited = True

    def __init__(self) -> None:
        self._data = bytearray()
        self._taken = 0

    def take(self, count: int) -> bytes:
        """The next `count` of the bytes that came."""
        start, self._taken = self._taken, self._taken + count
        return bytes(self._data[start : self._taken])

    def write(self, data: memoryview) -> None:
        self._data += data

    def check(self) -> None:
        pass

    def ended(self) -> None:
        pass


class BlockSinks:
    """Gives the sink for one block of a fill after the other."""

    def __init__(self, flights: Sequence[Flight], writer_of: Callable[[Flight], Awaitable[BlockWriter]]) -> None:
        self._flights = flights
        self._writer_of = writer_of
        self.flight = flights[0]
        """The block that gets the next bytes."""
        self.offset = 0
        """Where in the block the next bytes go."""
        self._disk_s = 0.0
        self._sink: BlockReceiver | FirstBytes = FirstBytes()

    async def at(self, position: int) -> Sink:
        """The place for the object's byte `position` and those after it in its block. Raises StoreUnavailable."""
        flight = next(flight for flight in self._flights if position < flight.meta.extent.stop)
        self.flight, self.offset, self._disk_s = flight, position - flight.meta.extent.start, 0.0
        room = flight.meta.extent.stop - position
        if not flight.partial.begun and flight is self._flights[0]:
            self._sink = FirstBytes()
            return Sink(self._sink, min(room, _FIRST_BYTES))
        writer = await self._writer_of(flight)
        self._sink = await writer.receiver(self.offset, lambda: flight.awaited)
        return Sink(self._sink, room)

    def early(self, count: int) -> bytes | None:
        """The next `count` bytes, if they came into memory; None: they went to disk."""
        return self._sink.take(count) if isinstance(self._sink, FirstBytes) else None

    def took_s(self) -> float:
        """The seconds that the disk took since the last call for this block."""
        assert not isinstance(self._sink, FirstBytes)
        disk_s = self._sink.disk_s
        took_s, self._disk_s = disk_s - self._disk_s, disk_s
        return took_s
