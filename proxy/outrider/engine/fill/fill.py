"""One fill carried out: bytes from the origin into block files, told to the flights as they land."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing

from outrider.core.model import Extent
from outrider.engine.fill.fill_scheduler import READS_ON_S, FillSlot
from outrider.engine.fill.flight import Flight
from outrider.engine.fill.origin_reader import OriginReader
from outrider.engine.tasks.task_group import TaskGroup
from outrider.ports import BlockStore, BlockWriter, Buffer, Clock, OriginReply

# Written by so much at once: a write costs a hop to a thread and back, with the GIL handed over at each of its system
# calls, and bytes come from a bucket's connection some 100 KiB at a time. Readers do not wait for it: what came is
# handed out from memory until it is on disk.
_HOLD_BYTES = 512 * 1024
# All fills together hold less than this: a fill of many holds less of its own. Half a hundred that each held as much as
# one alone took more memory than all else in the process.
_HOLD_ALL_BYTES = 8 * 1024 * 1024
_HOLD_BYTES_MIN = 64 * 1024
# Of a body of so few bytes the time is latency, and says more of a line than its rate does.
_SMALL_BYTES = 256 * 1024
# A small object is written once readers rest, or after these waits: the disk's thread and the loop hand the GIL to and
# fro, and a burst of small hits beside that takes half as long again.
_WAITS_S = (READS_ON_S, 2 * READS_ON_S, 4 * READS_ON_S, 8 * READS_ON_S)


def hold_bytes(fills: int) -> int:
    """How much one of so many fills under way may hold back."""
    return max(_HOLD_BYTES_MIN, min(_HOLD_BYTES, _HOLD_ALL_BYTES // max(1, fills)))


class Pouring:
    """One fill under way: the block files that it has open, and the bytes that go into them."""

    def __init__(
        self, origin_reader: OriginReader, store: BlockStore, slot: FillSlot | None, clock: Clock,
        arrived: Callable[[float, float, int], None], landed: Callable[[Flight], None],
        came: Callable[[int, bool], None], came_small: Callable[[float], None], may_hold: Callable[[], int],
        reads_on: Callable[[], bool], sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:  # fmt: skip
        """`slot`: given away while this waits for another try. `arrived` is told of each write: seconds of waiting for
        the origin, seconds that the disk took, bytes. `came` is told of bytes as they come, and whether they are of a
        large body and not its first: then their time says how fast the line is; `came_small`, of a body with few, how
        many seconds it took from question to end. `may_hold`: how many bytes may be held back before they are
        written. `reads_on`: whether somebody reads what is here, and is about to ask for more."""
        self._origin_reader = origin_reader
        self._store = store
        self._slot = slot
        self._clock = clock
        self._arrived = arrived
        self._landed = landed
        self._came = came
        self._came_small = came_small
        self._may_hold = may_hold
        self._reads_on = reads_on
        self._sleep = sleep
        self._writers: dict[Flight, BlockWriter] = {}
        self._beginning: asyncio.Task[BlockWriter] | None = None

    async def begin_beside(self, lead: Flight, parts: TaskGroup, *, hurry: bool) -> None:
        """Take room for the first block before its bytes are asked for: no room, no traffic. `hurry`: somebody waits
        for them, so they are asked for while the disk makes room, which may take a hop to a thread; where there can be
        none, that is known at once, and elsewhere the request is given up."""
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
        outstanding = iter(flights)
        held = _Held(next(outstanding), extent.start)
        stream = self._origin_reader.stream(held.flight.meta.version, extent, first, self._slot)
        async with aclosing(stream) as chunks:
            asked_at = self._clock()
            took_s, pieces = 0.0 if begun_at is None else asked_at - begun_at, 0
            is_small = extent.length <= _SMALL_BYTES
            async for chunk in chunks:
                waited_s = self._clock() - asked_at
                held.waited_s += waited_s
                took_s += waited_s
                pieces += 1
                self._came(len(chunk), pieces > 1 and not is_small)
                rest: Buffer = chunk
                while rest := held.add(rest):
                    if held.count:
                        await self._write(held)
                    held.flight = next(outstanding)
                if held.full or held.count >= self._may_hold():
                    await self._write(held)
                asked_at = self._clock()
            if is_small:
                self._came_small(took_s)
            if held.count:
                # What lies before the first bytes that came ends amid a block.
                await self._write(held)

    async def bring_head(self, lead: Flight, head: Extent) -> None:
        # What nobody waits for comes after what somebody does.
        await lead.head_wanted.wait()
        await self.bring([lead], head)

    async def _write(self, held: _Held) -> None:
        flight, offset, pieces, count = held.flight, held.offset, held.pieces, held.count
        if not flight.partial.begun:
            # The disk's work takes the GIL for a while: first the reader sends what he was handed out. Who learns of
            # the version in this very moment has his turn after the next.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            if count == flight.meta.version.size <= _SMALL_BYTES:
                await self._let_readers_ask(flight.slot)
        writer = await self._writer(flight)
        disk_s = await writer.write(offset, pieces)
        flight.advance(offset, count)
        self._arrived(held.waited_s, disk_s, count)
        held.written()
        if flight.partial.whole:
            await writer.commit()
            del self._writers[flight]
            self._landed(flight)

    async def _let_readers_ask(self, slot: FillSlot | None) -> None:
        """For more, before the disk's work of a small object begins. `slot`: of its fill."""
        asks = slot is None or slot.demand
        if slot is not None:
            slot.came_whole()
        for wait_s in _WAITS_S:
            if not (asks or self._reads_on()):
                return
            await self._sleep(wait_s)
            asks = False

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

    __slots__ = ("count", "flight", "pieces", "position", "waited_s")

    def __init__(self, flight: Flight, position: int) -> None:
        self.flight = flight
        self.position = position
        self.pieces: list[Buffer] = []
        self.count = 0
        self.waited_s = 0.0

    @property
    def offset(self) -> int:
        return self.position - self.flight.meta.extent.start

    @property
    def full(self) -> bool:
        """The block's last byte is here."""
        return self.position + self.count == self.flight.meta.extent.stop

    def add(self, chunk: Buffer) -> Buffer:
        """Hold what of `chunk` belongs to the block, for its readers to have at once; the rest is returned."""
        room = self.flight.meta.extent.stop - self.position - self.count
        rest: Buffer = b""
        if len(chunk) > room:
            view = memoryview(chunk)
            chunk, rest = view[:room], view[room:]
        if chunk:
            self.flight.hand_out(self.offset + self.count, chunk)
            self.pieces.append(chunk)
            self.count += len(chunk)
        return rest

    def written(self) -> None:
        self.position += self.count
        self.pieces, self.count, self.waited_s = [], 0, 0.0
