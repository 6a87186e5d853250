"""One fill: the bytes of adjacent missing blocks are read from the block source, handed to their readers from memory,
and written to disk.

A fill has up to two parts, each with a GET of its own. The tail begins at the byte that the first reader waits for and
ends with the last block. The head is what lies before that byte in the first block: it is brought when somebody waits
for it, or after the tail.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from outrider.core.errors import Signal, StoreUnavailable, WrongDigest
from outrider.core.model import Extent
from outrider.engine.fill.block_source import BlockSource
from outrider.engine.fill.body_check import BodyCheck, Judgement
from outrider.engine.fill.content_verification import ContentMismatch, ContentVerification
from outrider.engine.fill.fill_scheduler import READS_ON_S, FillScheduler, FillSlot
from outrider.engine.fill.flight import Flight
from outrider.engine.fill.peer_block import IncomingBody
from outrider.engine.tasks.runtime import Runtime
from outrider.engine.tasks.task_group import TaskGroup
from outrider.ports import BlockStore, BlockWriter, Buffer

log = logging.getLogger(__name__)

# A write costs a hop to a thread and back, with the GIL handed over at each system call, and a connection brings some
# 100 KiB at a time: so bytes are held in memory until there are so many. Readers get them from there, and do not wait.
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

    fills: int
    """How many fills are under way."""

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
    """The bytes of the tail, which are on their way already, and when they were requested."""

    body: IncomingBody
    requested_at: float


class BlockFill:
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
        self._table.fills += 1
        lead = self._flights[0]
        tail = Extent(lead.begins_at, self._flights[-1].meta.extent.stop)
        has_head = lead.meta.extent.start < tail.start
        try:
            if self._contents.has_mismatched:
                if self._contents.relays(lead.meta.version.ref):
                    raise StoreUnavailable("its bytes did not match the bucket's checksum")
                self._condemned_at = self._contents.condemned_at(lead.meta.key.version_id)
            if not has_head:
                self._check = self._contents.check_for(lead.meta)
            # A body that is compared as it passes has to pass here.
            bulk = self._check is None and tail.length >= self._bulk_bytes
            if not has_head and first is not None:
                # Its first bytes go to their reader while the file is made.
                await self._bring(self._flights, tail, first.body, first.requested_at, bulk=bulk)
                return
            async with TaskGroup() as tasks:
                await self._open_beside(lead, tasks)
                if has_head:
                    tasks.create_task(self._bring_head(lead, Extent(lead.meta.extent.start, tail.start)))
                body, requested_at = (self._body(tail, bulk=bulk), None) if first is None else first
                await self._bring(self._flights, tail, body, requested_at, bulk=bulk)
                lead.head_wanted.set()
        except BaseException as error:
            await self._failed(error)
            if isinstance(error, (Signal, OSError)):
                log.debug("fill failed", extra={"object": str(lead.meta.version.ref), "error": repr(error)})
            elif isinstance(error, Exception):  # our own bug; the readers got it
                log.exception("fill failed")
            else:
                raise
        finally:
            self._table.fills -= 1
            if first is not None:
                # Also where the fill ended before it took any byte.
                await first.body.aclose()

    async def _failed(self, error: BaseException) -> None:
        # Out of the table before the file is closed: a reader that finds a flight in the table may lease its file.
        lead = self._flights[0]
        self._source.dropped("restart", sum(flight.written_bytes for flight in self._flights if not flight.has_landed))
        if isinstance(error, WrongDigest) and lead.peer is not None:
            lead.peer.refuted()
            # Readers may have some of the bytes: they are cut.
            error = ContentMismatch(f"{lead.meta.version.ref}: not the bytes of the peer's digest")
        stopped = StoreUnavailable("the proxy is stopping")
        self._table.failed(self._flights, error if isinstance(error, Exception) else stopped)
        await self._abort()

    # -- room on disk -----------------------------------------------------------------------------------------------

    async def _open_beside(self, lead: Flight, tasks: TaskGroup) -> None:
        """Take room for the first block before its bytes are requested: without room there is to be no traffic.

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
        await self._bring([lead], head, self._body(head))

    def _body(self, extent: Extent, *, bulk: bool = False) -> IncomingBody:
        lead = self._flights[0]
        return self._source.body(
            lead.meta.version, extent, slot=self._slot, waiters=lead.waiters, peer=lead.peer, bulk=bulk
        )

    async def _bring(
        self, flights: Sequence[Flight], extent: Extent, body: IncomingBody, requested_at: float | None = None,
        *, bulk: bool = False,
    ) -> None:  # fmt: skip
        """The bytes of `extent` into those of `flights` that they belong to. `requested_at`: when they were requested;
        None: they are requested now. `bulk`: after the first ones, which their reader gets at once, a thread receives
        and writes them if it can, and readers get them from the files."""
        outstanding = iter(flights)
        buffer = _WriteBuffer(next(outstanding), extent.start)
        clock, check, is_small = self._runtime.clock, self._check, extent.length <= _SMALL_BYTES
        waits_from = clock()
        took_s, flows = 0.0 if requested_at is None else waits_from - requested_at, False
        try:
            while body.position < extent.stop:
                if bulk and body.position > extent.start and await body.in_thread():
                    await self._receive(body, buffer, outstanding)
                    waits_from = clock()
                    continue
                piece = await body.some()
                waited_s = clock() - waits_from
                buffer.waited_s += waited_s
                took_s += waited_s
                self._received(len(piece), waited_s, flows=flows)
                flows = not is_small
                for each in (piece,) if check is None else check.released(piece):
                    if len(each) <= buffer.room:
                        buffer.add(each)
                    else:
                        await self._hand_out(each, buffer, outstanding)
                if (buffer.count and not buffer.room) or buffer.count >= self._table.buffer_bytes:
                    await self._write(buffer)
                waits_from = clock()
            if is_small:
                self._scheduler.small_received(took_s)
            if buffer.count:
                # The head ends within its block.
                await self._write(buffer)
        finally:
            await body.aclose()

    async def _hand_out(self, piece: Buffer, buffer: _WriteBuffer, outstanding: Iterator[Flight]) -> None:
        """Readers have the bytes of `piece` from here on. `outstanding`: the flights after that of `buffer`."""
        view = memoryview(piece)
        while len(view) > buffer.room:
            if buffer.room:
                buffer.add(view[: (room := buffer.room)])
                view = view[room:]
            if buffer.count:
                await self._write(buffer)
            flight = next(outstanding)
            buffer.enter(flight, flight.meta.extent.start)
        buffer.add(view)

    def _received(self, count: int, waited_s: float, *, flows: bool) -> None:
        """`flows`: not the first bytes of a large body, so that their time shows the rate of the line."""
        lead = self._flights[0]
        peer = lead.peer
        if flows:
            self._scheduler.flowed(count, self._table.is_awaited)
        # The first bytes after a peer failed have waited for the peer, too, unless its disk alone was asked.
        if self._source.has_peers and (peer is None or (not peer.gives and (flows or not peer.is_remote))):
            self._source.flowed(count, waited_s, is_first=not flows)
        # Not `self._slot`: a flight that was opened with the first reply may have got a slot since.
        if lead.slot is not None:
            self._scheduler.received(count, lead.slot)

    def _written(self, origin_s: float, disk_s: float, count: int) -> None:
        self._scheduler.written(count)
        self._table.written(origin_s, disk_s, count)

    async def _receive(self, body: IncomingBody, buffer: _WriteBuffer, outstanding: Iterator[Flight]) -> None:
        """Have a thread receive the next bytes, as many as belong to one block, or as come by one reply."""
        if buffer.count:
            await self._write(buffer)
        flight = buffer.flight if buffer.room else next(outstanding)
        writer, clock = await self._writer_of(flight), self._runtime.clock
        offset = body.position - flight.meta.extent.start
        sink = await writer.receiver(offset, flight.is_awaited)
        landed_at, disk_s = clock(), 0.0

        def received(count: int) -> None:
            nonlocal offset, landed_at, disk_s
            took_s, landed_at = clock() - landed_at, clock()
            self._received(count, took_s, flows=True)
            disk_took_s, disk_s = sink.disk_s - disk_s, sink.disk_s
            flight.advance(offset, count)
            offset += count
            self._written(max(0.0, took_s - disk_took_s), disk_took_s, count)

        await body.receive(flight.meta.extent.stop - body.position, sink, received)
        buffer.enter(flight, body.position)
        if flight.is_written:
            await self._land(flight)

    async def _land(self, flight: Flight) -> None:
        await self._writers[flight].commit()
        del self._writers[flight]
        self._heed_verdict(flight)
        self._table.landed(flight)

    async def _write(self, buffer: _WriteBuffer) -> None:
        flight, offset, pieces, count = buffer.flight, buffer.offset, buffer.pieces, buffer.count
        if not flight.written_bytes:
            # The disk's work takes the GIL for a while: the reader sends first what it was handed.
            if count == flight.meta.version.size <= _SMALL_BYTES:
                await self._let_readers_ask(flight.slot)
            else:
                # One that learns of the version in this very step of the loop sends in the step after the next.
                await asyncio.sleep(0)
                await asyncio.sleep(0)
        if self._check is not None and self._check.judgement is Judgement.RELAYED:
            raise StoreUnavailable("its bytes did not match the bucket's checksum")
        writer = await self._writer_of(flight)
        disk_s = await writer.write(offset, pieces)
        flight.advance(offset, count)
        self._written(buffer.waited_s, disk_s, count)
        buffer.empty()
        if flight.is_written:
            await self._land(flight)

    def _heed_verdict(self, flight: Flight) -> None:
        """Raises ContentMismatch: the block was the last one of its version, or the only one, and the bytes are not
        those that the bucket has. The store has dropped it."""
        if self._check is not None:
            if self._check.judgement is Judgement.RIGHT:
                self._contents.prove(flight.meta.key)
        elif self._contents.condemned_at(flight.meta.key.version_id) != self._condemned_at:
            raise ContentMismatch(f"{flight.meta.version.ref}: not the bytes that the bucket has")

    async def _let_readers_ask(self, slot: FillSlot | None) -> None:
        """Give readers time to ask for the next object before the disk's work of a small one begins. `slot`: of the
        flight."""
        is_demand = slot is None or slot.demand
        if slot is not None:
            slot.body_received()
        for wait_s in _WAITS_S:
            if not (is_demand or self._scheduler.reads_on):
                return
            await self._runtime.sleep(wait_s)
            is_demand = False

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
    """The bytes of one GET that are not on disk yet, all in the block of `flight`: `pieces`, `count` bytes from
    `offset` of the block on. `room`: how many more belong to the block."""

    __slots__ = ("count", "flight", "offset", "pieces", "room", "waited_s")

    def __init__(self, flight: Flight, position: int) -> None:
        """`position`: the object's byte that comes first."""
        self.enter(flight, position)
        self.waited_s = 0.0

    def enter(self, flight: Flight, position: int) -> None:
        """The bytes from `position` on belong to the block of `flight`."""
        self.flight = flight
        self.offset = position - flight.meta.extent.start
        self.room = flight.meta.extent.stop - position
        self.pieces: list[Buffer] = []
        self.count = 0

    def add(self, piece: Buffer) -> None:
        """Hold bytes for which there is room. The block's readers have them at once."""
        self.flight.hand_out(self.offset + self.count, piece)
        self.pieces.append(piece)
        self.count += len(piece)
        self.room -= len(piece)

    def empty(self) -> None:
        """Its bytes are on disk."""
        self.offset += self.count
        self.pieces, self.count, self.waited_s = [], 0, 0.0
