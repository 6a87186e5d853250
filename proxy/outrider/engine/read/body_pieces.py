"""The body of a reply: each byte comes from the nearest place that has it, and missing blocks are filled ahead.

The nearest place is the disk, then a flight that brings the block, then the source of missing blocks. Bytes that come
straight from the source, past the cache, are relayed.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Protocol

from outrider.core.block_layout import BlockLayout
from outrider.core.cache.readahead import WINDOW_BLOCKS_MAX, BlockRun, runs_ahead, window_blocks
from outrider.core.errors import OriginBroke, StoreUnavailable
from outrider.core.model import BlockKey, Extent, ObjectVersion
from outrider.engine.fill.block_source import BlockSource
from outrider.engine.fill.content_verification import ContentMismatch, ContentVerification
from outrider.engine.fill.fill_scheduler import FillSlot
from outrider.engine.fill.flight import Flight
from outrider.engine.fill.flight_table import FlightTable
from outrider.engine.fill.patience import A_CLIENT, Waiters
from outrider.metrics import Metrics
from outrider.ports import BlockStore, Buffer, Lease

# A reader widens its read-ahead window this many times while a block arrives. A lone reader's first blocks take 0.2 s
# at 40 MB/s, and the rest of the line would idle meanwhile.
_PLANS_PER_BLOCK = 8
# The number of readers of late falls by this factor with each read that begins: a lone reader has the line to itself
# again after some fifty.
_READERS_KEPT = 0.98


@dataclass(slots=True)
class FilePiece:
    """`count` bytes of an open file, for the kernel to send; valid until the next piece is asked for.

    Where the disk gives fewer, the sender puts into `sent` how many there were. The next piece begins there.
    """

    fd: int
    offset: int
    count: int
    source: str
    sent: int = -1

    def __post_init__(self) -> None:
        self.sent = self.count

    @property
    def fell_short(self) -> bool:
        return self.sent < self.count


@dataclass(frozen=True, slots=True)
class EarlyPiece:
    """Bytes of a flight that are not on disk yet: to be sent from memory."""

    data: Buffer
    source: str = "flight"
    fell_short: bool = False

    @property
    def sent(self) -> int:
        return len(self.data)


Piece = FilePiece | EarlyPiece | bytes
"""Plain bytes were relayed."""


class Body(Protocol):
    """The pieces of a reply in order. `aclose` ends it, also when not all of it was taken, or nothing."""

    def __aiter__(self) -> AsyncIterator[Piece]: ...

    async def aclose(self) -> None: ...


class ReaderCount:
    """How many reads share the line. The read-ahead window of each depends on that."""

    def __init__(self) -> None:
        self.reading = 0
        # Reads whose version is not known yet. The first readers of a job begin so, all at once.
        self.beginning = 0
        # The readers of a job begin one after the other, at each epoch again, and the first has the line to itself for
        # a moment only: so the number of late counts, too.
        self._lately = 0.0

    def begin(self) -> None:
        self.reading += 1
        self._lately = max(self.reading, self._lately * _READERS_KEPT)

    def end(self) -> None:
        self.reading -= 1

    def expected(self, blocks_sent: float) -> int:
        """How many readers to expect beside a read that has sent `blocks_sent` blocks, with this one."""
        # By its second block the others would have begun, too: a long read that is alone then has the line to itself.
        readers = round(self._lately) if blocks_sent < 1 else self.reading
        return max(readers, self.reading + self.beginning)


@dataclass(frozen=True, slots=True)
class BodyParts:
    """The parts of the engine that every body is made with."""

    layout: BlockLayout
    source: BlockSource
    store: BlockStore
    flights: FlightTable
    contents: ContentVerification
    readers: ReaderCount
    metrics: Metrics


class BodyRead:
    """The read of one extent of one version, from `position` on."""

    def __init__(
        self, version: ObjectVersion, extent: Extent, since: int, parts: BodyParts, *, has_begun: bool = False
    ) -> None:  # fmt: skip
        """`since`: the number of changes of the version cache when the read began. `has_begun`: the client has the head
        of its reply."""
        self._version = version
        self._version_id = parts.layout.version_id(version)
        self._extent = extent
        self._position = self._planned_at = extent.start
        self._layout = parts.layout
        self._source = parts.source
        self._store = parts.store
        self._flights = parts.flights
        self._readers = parts.readers
        self._metrics = parts.metrics
        self._clock = parts.source.clock
        self._has_begun = has_begun
        # The waiters of the flights in the read-ahead window, by block, that this read has entered.
        self._waits_for: dict[int, Waiters] = {}
        # Since when the read has been at the position where its last block began.
        self._block_at = -1
        self._block_since = 0.0
        self._contents = parts.contents
        self._since = since
        # The cache takes no fill of this read, or each fill would bring the whole object: what is missing is relayed.
        self._relaying = parts.source.ignores_ranges(version.ref.bucket)
        if parts.contents.relays(version.ref):
            self._relaying = True
            parts.contents.relayed()
        # The block whose file failed under this read: the rest of it is relayed.
        self._failed_index = -1
        # The last block came at the pace of a disk that lags: the blocks after it need not.
        self._lagged = False

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        """The bytes in order.

        Raises:
            VersionChanged: the origin no longer has the version, or bytes that were sent are not those of the version.
            OriginRefused, OriginBroke: the origin does not give them.
        """
        self._readers.begin()
        try:
            while self._position < self._extent.stop:
                self._check_condemned()
                key, inside = self._next_block()
                self._note_progress(key.index)
                fills = self._begin_fills()
                failed = key.index == self._failed_index
                if not failed and (lease := self._store.lease_open(key) or await self._store.lease(key)) is not None:
                    on_disk = file_piece(lease, inside, "disk")
                    try:
                        yield on_disk
                    finally:
                        lease.release()
                    self._sent(on_disk, key)
                    continue
                flight = None if failed else self._flights.get(key)
                if flight is not None:
                    self._wait_for(key.index, flight)
                    try:
                        async with aclosing(follow(flight, inside)) as pieces:
                            async for piece in pieces:
                                yield piece
                                self._sent(piece, key)
                                if fills:
                                    self._fill_further_ahead()
                        self._lagged = self._flights.disk_lags
                        continue
                    except StoreUnavailable:
                        # No room, or a disk that fails.
                        self._relaying = True
                    except OriginBroke as error:
                        self._check_patience(lasting=error.lasting)
                        continue
                elif fills and not failed and not self._store.has(key):
                    # The block was found bad and deleted, or evicted, since the fills were planned: plan again.
                    continue
                with self._duplicates_counted(key):
                    async with aclosing(self._relay()) as relayed:
                        async for chunk in relayed:
                            yield chunk
                            self._position += chunk.sent if isinstance(chunk, EarlyPiece) else len(chunk)
        finally:
            self._wait_for_nothing()
            self._readers.end()

    # -- waiting for the origin -------------------------------------------------------------------------------------

    def _note_progress(self, index: int) -> None:
        """The read has come to the block `index`."""
        if self._position != self._block_at:
            self._block_at, self._block_since = self._position, self._clock()
        for passed in [other for other in self._waits_for if other < index]:
            self._waits_for.pop(passed).leave()

    def _wait_for(self, index: int, flight: Flight) -> None:
        """The flight is, or is soon to be, waited for by this read."""
        before = self._waits_for.get(index)
        if before is not flight.waiters:
            flight.waiters.enter()
            self._waits_for[index] = flight.waiters
            if before is not None:
                before.leave()

    def _wait_for_nothing(self) -> None:
        for waiters in self._waits_for.values():
            waiters.leave()
        self._waits_for.clear()

    def _check_patience(self, *, lasting: bool) -> None:
        """Called when a fill has failed. Raises its error again, unless another fill may be luckier.

        That is so where the reply has begun, the failure is not `lasting` (see `OriginBroke`), and the fill had waited
        for longer than this read has. A read whose reply has not begun fails in words that its client understands.
        """
        has_begun = self._has_begun or self._position > self._extent.start
        if lasting or not has_begun or self._clock() - self._block_since >= self._source.patience_s:
            raise

    def _next_block(self) -> tuple[BlockKey, Extent]:
        """The block at `position`, and which of its bytes are to be sent."""
        index = self._layout.index_of(self._position)
        block = self._layout.extent(index, self._version.size)
        stop = min(self._extent.stop, block.stop)
        return BlockKey(self._version_id, index), Extent(self._position - block.start, stop - block.start)

    def _check_condemned(self) -> None:
        if self._contents.condemned_at(self._version_id) > self._since:
            raise ContentMismatch(f"{self._version.ref}: not the bytes that the bucket has")

    def _sent(self, piece: FilePiece | EarlyPiece, key: BlockKey) -> None:
        self._position += piece.sent
        self._check_condemned()
        if piece.fell_short:
            self._store.doubt(key)
            self._failed_index = key.index

    # -- read-ahead -------------------------------------------------------------------------------------------------

    def _begin_fills(self) -> bool:
        """Fill ahead, if the disk admits fills; else False."""
        if self._relaying or self._lagged or not self._flights.admits():
            return False
        self._fill_ahead()
        return True

    def _fill_further_ahead(self) -> None:
        """Widen the window while a block arrives."""
        step = self._layout.block_bytes // _PLANS_PER_BLOCK
        if self._planned_at + step <= self._position < self._extent.stop:
            self._fill_ahead()

    def _fill_ahead(self) -> None:
        """Begin the fills of the read-ahead window, and promote those in it that were prefetches."""
        self._planned_at = self._position
        blocks_sent = (self._position - self._extent.start) / self._layout.block_bytes
        readers = self._readers.expected(blocks_sent)
        index, last = self._layout.index_of(self._position), self._layout.index_of(self._extent.stop - 1)
        vid, wanted = self._version_id, self._flights.wanted
        for run in runs_ahead(index, last, blocks_sent, lambda i: wanted(BlockKey(vid, i)), readers):
            if run.first > index and not self._flights.admits():
                break
            for part in self._flights.parts(self._version, run):
                begun = self._flights.board(self._version, part.run, self._position, part.peer)
                self._flights.fill(begun, ahead=part.run.first - index)
        # This reader would ask now for the blocks that prefetches bring: they must not come one by one.
        stop = min(last + 1, index + window_blocks(blocks_sent, readers))
        nearest: FillSlot | None = None
        for ahead in range(index, stop):
            flight = self._flights.get(BlockKey(vid, ahead))
            if flight is not None:
                self._wait_for(ahead, flight)
            if flight is not None and flight.slot is not None:
                flight.slot.promote(ahead - index)
                nearest = nearest or flight.slot
        if nearest is None or nearest.more:
            return
        beyond = min(last + 1, stop + WINDOW_BLOCKS_MAX)
        if any(self._is_to_ask_for(BlockKey(vid, ahead)) for ahead in range(index, beyond)):
            nearest.expect_more()

    def _is_to_ask_for(self, key: BlockKey) -> bool:
        """Neither here nor on its way for a reader."""
        flight = self._flights.get(key)
        if flight is None:
            return not self._store.has(key)
        return flight.slot is not None and not flight.slot.demand

    @contextmanager
    def _duplicates_counted(self, key: BlockKey) -> Iterator[None]:
        """Count the bytes of a relay that begins with this block, if they come twice."""
        began, comes_twice = self._position, self._flights.begin_relay(key)
        try:
            yield
        finally:
            self._flights.end_relay(key)
            if comes_twice:
                self._source.dropped("relay", self._position - began)

    # -- past the cache ---------------------------------------------------------------------------------------------

    async def _relay(self) -> AsyncGenerator[EarlyPiece | bytes, None]:
        """The run of missing blocks at `position`: by one GET, as far as the origin has to be asked for them."""
        self._metrics.relays.inc()
        # A disk that only lags is looked at again after a window.
        self._lagged = False
        window_stop = self._position + WINDOW_BLOCKS_MAX * self._layout.block_bytes
        stop = self._extent.stop if self._relaying else min(self._extent.stop, window_stop)
        extent = Extent(self._position, self._missing_until(stop))
        indexes = self._layout.indexes(extent)
        for run, peer in self._source.parts(self._version, BlockRun(indexes.start, len(indexes))):
            stop = min(extent.stop, (run.first + run.count) * self._layout.block_bytes)
            part = Extent(max(extent.start, run.first * self._layout.block_bytes), stop)
            async with aclosing(self._source.stream(self._version, part, waiters=A_CLIENT, peer=peer)) as chunks:
                async for chunk in chunks:
                    yield EarlyPiece(chunk, "peer") if peer is not None and peer.gives else chunk

    def _missing_until(self, stop: int) -> int:
        """Where the run of missing blocks ends that `position` lies in; `stop` at the latest."""
        index = self._layout.index_of(self._position)
        while True:
            block_stop = self._layout.extent(index, self._version.size).stop
            if block_stop >= stop:
                return stop
            index += 1
            key = BlockKey(self._version_id, index)
            if self._store.has(key) or self._flights.get(key) is not None:
                return block_stop


async def follow(
    flight: Flight, inside: Extent, *, promotes: bool = True
) -> AsyncGenerator[FilePiece | EarlyPiece, None]:  # fmt: skip
    """The bytes `inside` a block as they arrive, until a piece falls short. `promotes`: the fill becomes demand."""
    offset = inside.start
    lease: Lease | None = None
    try:
        while offset < inside.stop:
            if (early := await flight.arrival(offset, promotes=promotes)) is not None:
                early = early[: inside.stop - offset]
                yield EarlyPiece(early, flight.source)
                offset += len(early)
                continue
            if lease is None:
                if flight.has_landed:
                    # It may have been evicted since, and its file is closed.
                    return
                lease = flight.lease()
            piece = file_piece(lease, Extent(offset, min(flight.partial.reach(offset), inside.stop)), flight.source)
            yield piece
            if piece.fell_short:
                return
            offset += piece.count
    finally:
        if lease is not None:
            lease.release()


def file_piece(lease: Lease, inside: Extent, source: str) -> FilePiece:
    """The bytes `inside` a block, out of its file."""
    return FilePiece(lease.block.fd, lease.block.payload_offset + inside.start, inside.length, source)


class PrimedBody:
    """A body whose first piece is in hand. Not a generator: closing one that never ran would not close `rest`."""

    def __init__(self, first: Piece | None, rest: AsyncGenerator[Piece, None]) -> None:
        """`first` None: the body is empty."""
        self._first = first
        self._rest = rest

    def __aiter__(self) -> AsyncIterator[Piece]:
        return self

    async def __anext__(self) -> Piece:
        first, self._first = self._first, None
        return first if first is not None else await anext(self._rest)

    async def aclose(self) -> None:
        await self._rest.aclose()
