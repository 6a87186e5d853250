"""One fill: the bytes of adjacent missing blocks are read from the block source, handed to their readers from memory,
and written to disk.

A fill has up to two parts, each with a GET of its own. The tail begins at the byte that the first reader waits for and
ends with the last block. The head is what lies before that byte in the first block: it is brought when somebody waits
for it, or after the tail.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from outrider.core.errors import Signal, StoreUnavailable, WrongDigest
from outrider.core.model import Extent
from outrider.engine.fill.block_sinks import BlockSinks
from outrider.engine.fill.block_source import BlockSource
from outrider.engine.fill.content_verification import BodyCheck, ContentMismatch, ContentVerification, Judgement
from outrider.engine.fill.fill_scheduler import READS_ON_S, FillScheduler, FillSlot
from outrider.engine.fill.flight import Flight
from outrider.engine.tasks.runtime import Runtime
from outrider.engine.tasks.task_group import TaskGroup
from outrider.ports import BlockStore, BlockWriter, Buffer, OriginReply

log = logging.getLogger(__name__)

# A write costs a hop to a thread and back, with the GIL handed over at each of its system calls, while a connection of
# the bucket brings some 100 KiB at a time: so bytes are held in memory until there are as many as this. Readers do not
# wait for the write: they get the bytes from memory.
_BUFFER_BYTES = 512 * 1024
# All fills together hold less than this, so each of many fills holds less. Fifty fills that each held as much as a
# single one took more memory than everything else in the process.
_ALL_BUFFERS_BYTES = 8 * 1024 * 1024
_BUFFER_BYTES_MIN = 64 * 1024
# The time of a body of so few bytes is latency: its rate says nothing about the line.
_SMALL_BYTES = 256 * 1024
BULK_BYTES = 1024 * 1024
"""From this size on, a thread receives the tail of a fill."""
# A small object is written once its readers rest, or after these waits. The disk's thread and the loop hand the GIL to
# and fro, and a burst of small hits takes half as long again beside a write.
_WAITS_S = (READS_ON_S, 2 * READS_ON_S, 4 * READS_ON_S, 8 * READS_ON_S)


def buffer_bytes(fills: int) -> int:
    """How many bytes one of `fills` fills under way may hold in memory before it writes them."""
    return max(_BUFFER_BYTES_MIN, min(_BUFFER_BYTES, _ALL_BUFFERS_BYTES // max(1, fills)))


class Table(Protocol):
    """The table of flights, as far as a fill needs it."""

    @property
    def buffer_bytes(self) -> int:
        """How many bytes each fill may hold in memory now."""
        ...

    def is_awaited(self) -> bool:
        """Whether a reader waits for bytes of any flight."""
        ...

    def written(self, origin_s: float, disk_s: float, count: int) -> None:
        """A fill waited `origin_s` for `count` bytes, and then `disk_s` for the disk to write them."""
        ...

    def landed(self, flight: Flight) -> None:
        """The store has the block."""
        ...

    def failed(self, flights: Sequence[Flight], error: Exception) -> None:
        """Those of `flights` that have not landed never will."""
        ...


@dataclass(frozen=True, slots=True)
class FillParts:
    """The parts of the engine that every fill works with."""

    source: BlockSource
    store: BlockStore
    contents: ContentVerification
    scheduler: FillScheduler
    table: Table
    runtime: Runtime
    bulk_bytes: int = BULK_BYTES


class FirstReply(NamedTuple):
    """A reply that brings the bytes of the tail already, and when it was asked for."""

    reply: OriginReply
    asked_at: float


class Fill:
    """One fill under way. Owns the block files that it has open."""

    def __init__(self, flights: Sequence[Flight], slot: FillSlot | None, parts: FillParts) -> None:
        """`flights`: adjacent blocks in order. `slot`: held by the caller, and lent to other fills while this one waits
        before another try; None: the fill needs none."""
        self._flights = flights
        self._slot = slot
        self._source = parts.source
        self._store = parts.store
        self._contents = parts.contents
        self._scheduler = parts.scheduler
        self._table = parts.table
        self._runtime = parts.runtime
        self._bulk_bytes = parts.bulk_bytes
        self._writers: dict[Flight, BlockWriter] = {}
        self._opening: asyncio.Task[BlockWriter] | None = None
        # The check of the body that brings the whole object; None: there is no such body, or no proof of its content.
        self._check: BodyCheck | None = None
        self._condemned_at = 0

    async def run(self, first: FirstReply | None = None) -> None:
        """Carry the fill out. Raises no error of the origin or the disk: the readers of the flights get it."""
        try:
            await self._run(first)
        except (Signal, OSError) as error:
            log.debug("fill failed", extra={"object": str(self._flights[0].meta.version.ref), "error": repr(error)})
        except Exception:  # our own bug; the readers were told
            log.exception("fill failed")

    async def _run(self, first: FirstReply | None) -> None:
        lead = self._flights[0]
        tail = Extent(lead.begins_at, self._flights[-1].meta.extent.stop)
        head = Extent(lead.meta.extent.start, tail.start)
        try:
            if self._contents.relays(lead.meta.version.ref):
                raise StoreUnavailable("its bytes did not match the bucket's checksum")
            self._condemned_at = self._contents.condemned_at(lead.meta.key.version_id)
            if not head.length:
                self._check = self._contents.check_for(lead.meta)
            async with TaskGroup() as tasks:
                if first is None or head.length:
                    # With a reply that is here already, its first bytes go to their reader while the file is made.
                    await self._open_beside(lead, tasks)
                if head.length:
                    tasks.create_task(self._bring_head(lead, head))
                # A body that is compared as it passes has to pass here.
                is_bulk = first is None and self._check is None and tail.length >= self._bulk_bytes
                place = self._source if lead.peer is None else lead.peer
                if is_bulk and place.receives_in_threads:
                    await self._receive(tail)
                else:
                    await self._bring(self._flights, tail, first)
                lead.head_wanted.set()
        except BaseException as error:
            # Out of the table before the file is closed: a reader that finds a flight in the table may lease its file.
            self._source.dropped(
                "restart", sum(flight.partial.count for flight in self._flights if not flight.has_landed)
            )
            if isinstance(error, WrongDigest) and lead.peer is not None:
                lead.peer.refuted()
                # Readers may have some of the bytes: they are cut.
                error = ContentMismatch(f"{lead.meta.version.ref}: not the bytes of the peer's digest")
            stopped = StoreUnavailable("the proxy is stopping")
            self._table.failed(self._flights, error if isinstance(error, Exception) else stopped)
            await self._abort()
            raise

    # -- room on disk -----------------------------------------------------------------------------------------------

    async def _open_beside(self, lead: Flight, tasks: TaskGroup) -> None:
        """Take room for the first block before its bytes are asked for: without room there is to be no traffic.

        The disk may need a hop to a thread to make room. While a reader waits, the origin is asked meanwhile: a store
        that can have no room says so at once, and otherwise the request is given up when the room is refused.
        """
        self._opening = tasks.create_task(self._open(lead))
        in_hurry = self._slot is None or self._slot.demand
        if in_hurry:
            await asyncio.sleep(0)
        if not in_hurry or self._opening.done():
            await self._opening

    async def _open(self, flight: Flight) -> BlockWriter:
        writer = self._writers[flight] = await self._store.create(flight.meta, hashed=self._check is None)
        flight.begin(writer)
        return writer

    async def _writer_of(self, flight: Flight) -> BlockWriter:
        if self._opening is not None:
            await self._opening
            self._opening = None
        writer = self._writers.get(flight) or await self._open(flight)
        if flight.peer is not None and (digest := flight.peer.digest):
            writer.expect(digest)
        return writer

    # -- bytes ------------------------------------------------------------------------------------------------------

    async def _bring_head(self, lead: Flight, head: Extent) -> None:
        # After the tail, unless a reader waits for bytes of the head.
        await lead.head_wanted.wait()
        await self._bring([lead], head, None)

    async def _bring(self, flights: Sequence[Flight], extent: Extent, first: FirstReply | None) -> None:
        """The bytes of `extent` into those of `flights` that they belong to."""
        outstanding = iter(flights)
        buffer = _WriteBuffer(next(outstanding), extent.start)
        reply = None if first is None else first.reply
        lead = buffer.flight
        stream = self._source.stream(lead.meta.version, extent, reply, self._slot, lead.waiters, lead.peer)
        if self._check is not None:
            stream = self._check.checked(stream)
        clock = self._runtime.clock
        async with aclosing(stream) as chunks:
            asked_at = clock()
            took_s, pieces = 0.0 if first is None else asked_at - first.asked_at, 0
            is_small = extent.length <= _SMALL_BYTES
            async for chunk in chunks:
                waited_s = clock() - asked_at
                buffer.waited_s += waited_s
                took_s += waited_s
                pieces += 1
                flows = pieces > 1 and not is_small
                self._received(len(chunk), flows=flows)
                if flows and self._source.has_peers and not (lead.peer is not None and lead.peer.gives):
                    self._source.flowed(len(chunk), waited_s)
                rest: Buffer = chunk
                while rest := buffer.add(rest):
                    if buffer.count:
                        await self._write(buffer)
                    buffer.flight = next(outstanding)
                if buffer.full or buffer.count >= self._table.buffer_bytes:
                    await self._write(buffer)
                asked_at = clock()
            if is_small:
                self._scheduler.came_small(took_s)
            if buffer.count:
                # The head ends within its block.
                await self._write(buffer)

    def _received(self, count: int, *, flows: bool) -> None:
        """`flows`: not the first bytes of a large body, so that their time tells the rate of the line."""
        if flows:
            self._scheduler.flowed(count, self._table.is_awaited)
        # Not `self._slot`: a flight that was opened with the first reply may have got a slot since.
        self._scheduler.received(count, self._flights[0].slot)

    def _written(self, origin_s: float, disk_s: float, count: int) -> None:
        self._scheduler.written(count)
        self._table.written(origin_s, disk_s, count)

    async def _receive(self, extent: Extent) -> None:
        """As `_bring`, for many bytes: a thread receives and writes them, and readers get them from the files."""
        sinks = BlockSinks(self._flights, self._writer_of)
        lead = self._flights[0]
        stream = self._source.receive(lead.meta.version, extent, sinks.at, self._slot, lead.waiters, lead.peer)
        clock = self._runtime.clock
        async with aclosing(stream) as counts:
            asked_at, flows = clock(), False
            async for count in counts:
                took_s = clock() - asked_at
                self._received(count, flows=flows)
                if flows and self._source.has_peers and not (lead.peer is not None and lead.peer.gives):
                    self._source.flowed(count, took_s)
                flows = True
                flight, offset = sinks.flight, sinks.offset
                if (early := sinks.early(count)) is not None:
                    flight.hand_out(offset, early)
                    await asyncio.sleep(0)
                    disk_s = await (await self._writer_of(flight)).write(offset, [early])
                else:
                    disk_s = sinks.took_s()
                    took_s = max(0.0, took_s - disk_s)
                sinks.offset += count
                flight.advance(offset, count)
                self._written(took_s, disk_s, count)
                if flight.partial.whole:
                    await self._land(flight)
                asked_at = clock()

    async def _land(self, flight: Flight) -> None:
        await self._writers[flight].commit()
        del self._writers[flight]
        self._heed_verdict(flight)
        self._table.landed(flight)

    async def _write(self, buffer: _WriteBuffer) -> None:
        flight, offset, pieces, count = buffer.flight, buffer.offset, buffer.pieces, buffer.count
        if not flight.partial.begun:
            # The disk's work takes the GIL for a while: the reader sends first what it was handed. A reader that learns
            # of the version in this very step of the loop sends in the step after the next.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            if count == flight.meta.version.size <= _SMALL_BYTES:
                await self._let_readers_ask(flight.slot)
        if self._check is not None and self._check.judgement is Judgement.RELAYED:
            raise StoreUnavailable("its bytes did not match the bucket's checksum")
        writer = await self._writer_of(flight)
        disk_s = await writer.write(offset, pieces)
        flight.advance(offset, count)
        self._written(buffer.waited_s, disk_s, count)
        buffer.empty()
        if flight.partial.whole:
            await self._land(flight)

    def _heed_verdict(self, flight: Flight) -> None:
        """Raises ContentMismatch: the block was the last one of its version, or the only one, and the bytes are not
        those that the bucket has. The store has dropped it."""
        if self._check is not None:
            if self._check.judgement is Judgement.RIGHT:
                self._contents.prove(flight.meta)
        elif self._contents.condemned_at(flight.meta.key.version_id) != self._condemned_at:
            raise ContentMismatch(f"{flight.meta.version.ref}: not the bytes that the bucket has")

    async def _let_readers_ask(self, slot: FillSlot | None) -> None:
        """Give readers time to ask for the next object before the disk's work of a small one begins. `slot`: of the
        flight."""
        asks = slot is None or slot.demand
        if slot is not None:
            slot.body_received()
        for wait_s in _WAITS_S:
            if not (asks or self._scheduler.reads_on):
                return
            await self._runtime.sleep(wait_s)
            asks = False

    # -- the end ----------------------------------------------------------------------------------------------------

    async def _abort(self) -> None:
        """Remove the files that are open, and free the room that is reserved for them, also when this is cancelled."""
        cancelled: asyncio.CancelledError | None = None
        # One after the other: there are rarely more than two, and tasks of their own might never begin.
        for writer in self._writers.values():
            try:
                await writer.abort()
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled


class _WriteBuffer:
    """The bytes of one GET that are not on disk yet: `pieces`, from the object's byte `position` on, all in the block
    of `flight`."""

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
        """Hold the bytes of `chunk` that belong to the block, for its readers to have at once; the rest is returned."""
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

    def empty(self) -> None:
        """Its bytes are on disk."""
        self.position += self.count
        self.pieces, self.count, self.waited_s = [], 0, 0.0
