"""One fill carried out: bytes from the origin into block files, told to the flights as they land."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing

from outrider.core.model import Extent
from outrider.engine.asking import Asking
from outrider.engine.flight import Flight
from outrider.engine.turns import Turn
from outrider.ports import BlockStore, BlockWriter, Buffer, Clock, OriginReply

# What nobody waits for is written by so much at once: a write costs a hop to a thread and back, and bytes come from a
# bucket's connection some 100 KiB at a time. The profile of a cold read (tests.bench.cold_cpu under perf) says: what
# is left is the kernel's copying (socket, page cache, socket) and the HTTP client's two copies of each byte.
_HOLD_BYTES = 512 * 1024
# All fills together hold less than this: a fill of many holds less of its own. Half a hundred that each held as much as
# one alone took more memory than all else in the process.
_HOLD_ALL_BYTES = 8 * 1024 * 1024
_HOLD_BYTES_MIN = 64 * 1024


def hold_bytes(fills: int) -> int:
    """How much one of so many fills under way may hold back."""
    return max(_HOLD_BYTES_MIN, min(_HOLD_BYTES, _HOLD_ALL_BYTES // max(1, fills)))


class Pouring:
    """One fill under way: the block files that it has open, and the bytes that go into them."""

    def __init__(
        self, asking: Asking, store: BlockStore, turn: Turn | None, clock: Clock,
        arrived: Callable[[float, float, int], None], landed: Callable[[Flight], None],
        flowed: Callable[[int], None], came_at_once: Callable[[float], None], fills: Callable[[], int],
    ) -> None:  # fmt: skip
        """`turn`: given away while this waits for another try. `arrived` is told of each write: seconds of waiting for
        the origin, seconds that the disk took, bytes. `flowed` is told of the bytes of a body that come after its first
        ones; `came_at_once`, where there are none, of the seconds from question to body. `fills`: how many are under
        way."""
        self._asking = asking
        self._store = store
        self._turn = turn
        self._clock = clock
        self._arrived = arrived
        self._landed = landed
        self._flowed = flowed
        self._came_at_once = came_at_once
        self._fills = fills
        self._writers: dict[Flight, BlockWriter] = {}
        self._beginning: asyncio.Task[BlockWriter] | None = None

    async def begin_beside(self, lead: Flight, parts: asyncio.TaskGroup, *, hurry: bool) -> None:
        """Make the first block's file before its bytes are asked for: no room, no traffic. `hurry`: somebody waits for
        them, so they are asked for while the disk makes room and file, which takes two hops to threads; where there
        can be no room, that is known at once, and elsewhere the request is given up."""
        self._beginning = parts.create_task(self.begin(lead))
        if hurry:
            await asyncio.sleep(0)
        if not hurry or self._beginning.done():
            await self._beginning

    async def begin(self, flight: Flight) -> BlockWriter:
        writer = self._writers[flight] = await self._store.create(flight.meta)
        flight.begin(writer)
        return writer

    async def _writer(self, flight: Flight) -> BlockWriter:
        if self._beginning is not None:
            await self._beginning
            self._beginning = None
        return self._writers.get(flight) or await self.begin(flight)

    async def bring(
        self, flights: Sequence[Flight], extent: Extent, first: OriginReply | None = None,
        begun_at: float | None = None,
    ) -> None:  # fmt: skip
        """The bytes of `extent` into those of `flights` that they belong to. `begun_at`: when `first` was asked for."""
        coming = iter(flights)
        held = _Held(next(coming), extent.start)
        stream = self._asking.stream(held.flight.meta.version, extent, first, self._turn)
        async with asyncio.TaskGroup() as early, aclosing(stream) as chunks:

            def awaited() -> None:
                # Somebody came to wait while bytes were held back, and the next may be long in coming.
                if held.pieces and not held.overdue:
                    held.overdue = True
                    early.create_task(self._write(held))

            held.flight.on_wait.append(awaited)
            try:
                asked_at = self._clock()
                began, came_s, pieces = asked_at if begun_at is None else begun_at, 0.0, 0
                async for chunk in chunks:
                    held.waited_s += self._clock() - asked_at
                    pieces += 1
                    if pieces > 1:
                        self._flowed(len(chunk))
                    else:
                        came_s = self._clock() - began
                    rest: Buffer = chunk
                    while rest := held.add(rest):
                        await self._write(held)
                        held.flight.on_wait.remove(awaited)
                        held.flight = next(coming)
                        held.flight.on_wait.append(awaited)
                    if held.flight.awaited or held.count >= hold_bytes(self._fills()) or held.full:
                        await self._write(held)
                    asked_at = self._clock()
                if pieces == 1:
                    self._came_at_once(came_s)
                await self._write(held)
            finally:
                held.flight.on_wait.remove(awaited)

    async def bring_head(self, lead: Flight, head: Extent) -> None:
        # What nobody waits for comes after what somebody does.
        await lead.head_wanted.wait()
        await self.bring([lead], head)

    async def _write(self, held: _Held) -> None:
        async with held.lock:
            # Taken before the first wait: more is held meanwhile.
            flight, offset, pieces, count = held.flight, held.offset, held.pieces, held.count
            held.pieces, held.count, held.position = [], 0, held.position + count
            if count:
                if not flight.arrival.begun:
                    flight.hand_out(offset, pieces[0])
                    # Room and file take the loop for a while: first the reader sends these. Who learns of the version
                    # in this very moment has his turn after the next.
                    await asyncio.sleep(0)
                    await asyncio.sleep(0)
                writer = await self._writer(flight)
                disk_s = await writer.write(offset, pieces)
                flight.advance(offset, count)
                self._arrived(held.waited_s, disk_s, count)
                held.waited_s = 0.0
                if flight.arrival.whole:
                    await writer.commit()
                    del self._writers[flight]
                    self._landed(flight)
            held.overdue = False

    async def abort(self) -> None:
        """Also when this is cancelled: each file goes, and with it the room that is reserved for it."""
        cancelled: asyncio.CancelledError | None = None
        # One after the other, which are two at most as a rule: in tasks of their own they might never begin.
        for writer in self._writers.values():
            try:
                await writer.abort()
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled


class _Held:
    """What came of one GET and is not on disk yet: `pieces`, from the object's byte `position` on, all of `flight`."""

    __slots__ = ("count", "flight", "lock", "overdue", "pieces", "position", "waited_s")

    def __init__(self, flight: Flight, position: int) -> None:
        self.flight = flight
        self.position = position
        self.pieces: list[Buffer] = []
        self.count = 0
        self.waited_s = 0.0
        self.lock = asyncio.Lock()
        self.overdue = False
        """A task is about to write it. It stays so when that fails, as the fill then ends."""

    @property
    def offset(self) -> int:
        return self.position - self.flight.meta.extent.start

    @property
    def full(self) -> bool:
        """The block's last byte is here."""
        return self.position + self.count == self.flight.meta.extent.stop

    def add(self, chunk: Buffer) -> Buffer:
        """Hold what of `chunk` belongs to the block; the rest is returned."""
        room = self.flight.meta.extent.stop - self.position - self.count
        if len(chunk) <= room:
            self.pieces.append(chunk)
            self.count += len(chunk)
            return b""
        view = memoryview(chunk)
        self.pieces.append(view[:room])
        self.count += room
        return view[room:]
