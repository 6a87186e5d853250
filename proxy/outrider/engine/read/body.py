"""The body of a read: each byte comes from the nearest place that has it, and missing blocks are filled ahead.

The nearest place is the disk, then a flight that brings the block, then the source of missing blocks. Bytes that come
straight from the source, past the cache, are relayed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field

from outrider.core.block_layout import BlockLayout
from outrider.core.cache.readahead import WINDOW_BLOCKS_MAX, BlockRun, Glances, ReaderCount, runs_ahead, window_blocks
from outrider.core.errors import OriginBroke, StoreUnavailable, VersionChanged
from outrider.core.model import BlockKey, Extent, ObjectVersion
from outrider.core.origin.oddities import Oddity
from outrider.engine.fill.block_source import BlockSource, SourcePart
from outrider.engine.fill.content_verification import ContentMismatch, ContentVerification
from outrider.engine.fill.fill_scheduler import FillSlot
from outrider.engine.fill.flight import Flight
from outrider.engine.fill.flight_table import FlightTable
from outrider.engine.fill.patience import Waiters
from outrider.engine.fill.reply_proof import Redated, Unproved
from outrider.engine.read.body_pieces import EarlyPiece, FilePiece, Piece
from outrider.engine.read.relay import Relay
from outrider.metrics import Metrics
from outrider.ports import BlockStore, Lease

# A reader widens its read-ahead window this many times while a block arrives. A lone reader's first blocks take 0.2 s
# at 40 MB/s, and the rest of the line would idle meanwhile.
_PLANS_PER_BLOCK = 8


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
    glances: Glances = field(default_factory=Glances)


OnWrong = Callable[[VersionChanged | Unproved, bool], None]
"""Called when the bytes of a body turn out not to be those of its version, or cannot be proved to be. The flag says
whether some of them were handed out."""

Renew = Callable[[ObjectVersion, Extent], Awaitable[tuple[ObjectVersion, int] | None]]
"""Called when the origin has another version with the same ETag, after bytes of `Extent` were sent. Returns the version
of now and the number of changes of the version cache, if these are its bytes as well; else None."""


async def _never(version: ObjectVersion, sent: Extent) -> None:
    return None


class BodyRead:
    """The bytes of one extent of one version, from the nearest place that has them, as a `Body`.

    `__anext__` raises:
        VersionChanged: the origin no longer has the version, or bytes that were sent are not those of the version.
        OriginRefused, OriginBroke, Unproved: the origin does not give them.
    """

    def __init__(
        self, version: ObjectVersion, extent: Extent, since: int, parts: BodyParts, *, has_begun: bool = False,
        on_wrong: OnWrong = lambda error, has_sent: None, renew: Renew = _never,
    ) -> None:  # fmt: skip
        """`since`: the number of changes of the version cache when the read began. `has_begun`: the client has the head
        of its reply."""
        self._version = version
        self.version_id = parts.layout.version_id(version)
        self._extent = extent
        self._position = self._planned_at = extent.start
        self._parts = parts
        self._layout = parts.layout
        self._plan_step = parts.layout.block_bytes // _PLANS_PER_BLOCK
        self._source = parts.source
        self._store = parts.store
        self._flights = parts.flights
        self._contents = parts.contents
        self._since = since
        self._has_begun = has_begun
        self._on_wrong = on_wrong
        self._renew = renew
        # The piece that was handed out last, and the block that it is of.
        self._piece: Piece | None = None
        self._key = BlockKey(self.version_id, -1)
        # The first piece, which is handed out once more.
        self._first: Piece | None = None
        # The source of the next bytes: one of the three, or none.
        self._lease: Lease | None = None
        self._flight: Flight | None = None
        self._relay: Relay | None = None
        # The waiters of the flights in the read-ahead window, by block, that this read has entered.
        self._waits_for: dict[int, Waiters] = {}
        # Since when the read has been at the position where its last block began.
        self._block_at = -1
        self._block_since = 0.0
        # The cache takes no fill of this read, or each fill would bring the whole object: what is missing is relayed.
        self._relaying = parts.source.quirks.has(version.ref.bucket, Oddity.RANGE_IGNORED)
        if parts.contents.has_mismatched and parts.contents.relays(version.ref):
            self._relaying = True
            parts.contents.relayed()
        # Fills have been begun, or would have been, for the block at `position`.
        self._fills = False
        # The block whose file failed under this read: the rest of it is relayed.
        self._failed_index = -1
        # The last block came at the pace of a disk that lags: the blocks after it need not.
        self._lagged = False
        self._is_open = False
        # A fill that is followed becomes demand.
        self._promotes = True

    def __aiter__(self) -> AsyncIterator[Piece]:
        return self

    async def begin(self) -> Piece | None:
        """The first piece, which `__anext__` gives as well; None: the body is empty."""
        self._first = await anext(self, None)
        return self._first

    async def __anext__(self) -> Piece:
        if self._first is not None:
            first, self._first = self._first, None
            return first
        if not self._is_open:
            self._is_open = True
            self._parts.readers.begin()
        try:
            piece, self._piece = self._piece, None
            if piece is not None:
                self._sent(piece)
            try:
                self._piece = await self._next()
            except Redated:
                if not await self._is_same_so_far():
                    raise
                self._piece = await self._next()
        except (VersionChanged, Unproved) as error:
            # Also when it comes too late for this answer: the client's next try must not begin with the old blocks.
            self._on_wrong(error, self._position > self._extent.start)
            await self.aclose()
            raise
        except BaseException:
            await self.aclose()
            raise
        if self._piece is None:
            await self.aclose()
            raise StopAsyncIteration
        return self._piece

    async def _is_same_so_far(self) -> bool:
        """Whether the bytes that were sent are those of the version that the origin has now, as after a second upload
        of the same bytes. The rest is then read of that version."""
        sent = Extent(self._extent.start, self._position)
        # With `has_begun` other bytes were sent before these, and nothing says which.
        now = None if self._has_begun or not sent.length else await self._renew(self._version, sent)
        if now is None:
            return False
        await self._leave_all()
        self._version, self._since = now
        self.version_id = self._layout.version_id(self._version)
        self._has_begun = True
        return True

    async def aclose(self) -> None:
        self._piece = self._first = None
        if self._is_open:
            self._is_open = False
            self._position = self._extent.stop
            self._parts.readers.end()
            await self._leave_all()

    async def _leave_all(self) -> None:
        self._leave_block()
        for waiters in self._waits_for.values():
            waiters.leave()
        self._waits_for.clear()
        if self._relay is not None:
            await self._end_relay()

    async def _next(self) -> Piece | None:
        """The piece at `position`; None: all have been sent."""
        piece: Piece | None = None
        while piece is None and self._position < self._extent.stop:
            if self._relay is not None:
                if (piece := await self._relay.next()) is None:
                    await self._end_relay()
            elif self._flight is not None:
                piece = await self._followed(self._flight)
            else:
                piece = await self._of_block()
        return piece

    async def _of_block(self) -> Piece | None:
        """The bytes of the block at `position`, if they are on disk. None: they are to come by a flight or a relay, or
        the block is to be looked at again."""
        if self._contents.has_mismatched:
            self._check_condemned()
        index = self._layout.index_of(self._position)
        key = self._key = BlockKey(self.version_id, index)
        self._note_progress(index)
        is_last = self._extent.stop <= (index + 1) * self._layout.block_bytes
        is_coming = self._flights.get(key) is not None
        # The last block of the read needs no fill where it is on its way.
        self._fills = not (is_coming and is_last) and self._begin_fills()
        has_failed = index == self._failed_index
        if not (has_failed or is_coming or self._flights.get(key) is not None):
            self._lease = await self._store.lease(key)
            if self._lease is not None:
                return self._in_file(self._lease, "disk", self._extent.stop)
        flight = None if has_failed else self._flight_of(key)
        if flight is not None:
            self._flight = flight
            self._wait_for(index, flight)
        elif not self._fills or has_failed or self._store.has(key):
            self._begin_relay()
        # Else the block was found bad and deleted, or evicted, since the fills were planned: plan again.
        return None

    async def _followed(self, flight: Flight) -> Piece | None:
        """The next bytes of a block on its way; None: none are left that are to be read so."""
        meta = flight.meta
        offset = self._position - meta.extent.start
        stop = min(self._extent.stop, meta.extent.stop)
        try:
            if self._position < stop and self._failed_index != meta.index:
                if (early := await flight.bytes_at(offset, promotes=self._promotes)) is not None:
                    left = stop - self._position
                    return EarlyPiece(early if len(early) <= left else early[:left], flight.source)
                if self._lease is None and not flight.has_landed:
                    self._lease = flight.lease()
                # Else it may have been evicted since, and its file is closed.
                if self._lease is not None:
                    return self._in_file(
                        self._lease, flight.source, meta.extent.start + flight.reach(offset)
                    )  # fmt: skip
            self._lagged = self._flights.disk_lags
            self._leave_block()
        except StoreUnavailable:
            # No room, or a disk that fails.
            self._relaying = True
            self._leave_block()
            self._begin_relay()
        except OriginBroke as error:
            self._leave_block()
            if not self._may_be_luckier(error):
                raise
        return None

    def _flight_of(self, key: BlockKey) -> Flight | None:
        """The flight to follow; None: there is none, and none is to be begun."""
        return self._flights.get(key)

    def _in_file(self, lease: Lease, source: str, stop: int) -> FilePiece:
        """The bytes from `position` to `stop`, or to the end of their block."""
        start = self._key.index * self._layout.block_bytes
        stop = min(stop, self._extent.stop, start + self._layout.block_bytes)
        block = lease.block
        offset = block.payload_offset + self._position - start
        return FilePiece(block.fd, offset, stop - self._position, source, block.is_remote)

    def _sent(self, piece: Piece) -> None:
        """The piece that was handed out last is sent, or as much of it as its file gave."""
        if isinstance(piece, FilePiece):
            self._position += piece.sent
            if piece.fell_short:
                self._store.doubt(self._key)
                self._failed_index = self._key.index
        else:
            self._position += len(piece.data if isinstance(piece, EarlyPiece) else piece)
        if self._relay is not None:
            return
        if self._contents.has_mismatched:
            self._check_condemned()
        if self._flight is None:
            self._leave_block()
        elif self._fills and self._planned_at + self._plan_step <= self._position < self._extent.stop:
            # Widen the window while a block arrives.
            self._fill_ahead()

    def _leave_block(self) -> None:
        self._flight = None
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.release()

    # -- waiting for the origin -------------------------------------------------------------------------------------

    def _note_progress(self, index: int) -> None:
        """The read has come to the block `index`."""
        if self._position != self._block_at:
            self._block_at, self._block_since = self._position, self._source.clock()
        if self._waits_for:
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

    def _may_be_luckier(self, error: OriginBroke) -> bool:
        """Called when a fill has failed: whether to try another.

        That is so where the reply has begun, the failure is not `lasting` (see `OriginBroke`), and the fill had waited
        for longer than this read has. A read whose reply has not begun fails in words that its client understands.
        """
        has_begun = self._has_begun or self._position > self._extent.start
        waited_s = self._source.clock() - self._block_since
        return not error.lasting and has_begun and waited_s < self._source.patience_s

    def _check_condemned(self) -> None:
        if self._contents.condemned_at(self.version_id) > self._since:
            raise ContentMismatch(f"{self._version.ref}: not the bytes that the bucket has")

    # -- read-ahead -------------------------------------------------------------------------------------------------

    def _begin_fills(self) -> bool:
        """Fill ahead, if the disk admits fills and this is no glance; else False."""
        if self._relaying or self._lagged or not self._flights.admits() or self._is_glance():
            return False
        self._fill_ahead()
        return True

    def _is_glance(self) -> bool:
        """Whether this small read is not worth the fill of its block: see `Glances`."""
        if not Glances.may_be(self._extent, self._version.size, self._layout.block_bytes):
            return False
        wanted, key = self._flights.wanted, self._key
        if not (wanted(key) and wanted(BlockKey(self.version_id, key.index - 1))):
            return False
        return self._parts.glances.is_one(key, self._extent)

    def _fill_ahead(self) -> None:
        """Begin the fills of the read-ahead window, and promote those in it that were prefetches."""
        self._planned_at = self._position
        blocks_sent = (self._position - self._extent.start) / self._layout.block_bytes
        readers = self._parts.readers.expected(blocks_sent)
        index, last = self._layout.index_of(self._position), self._layout.index_of(self._extent.stop - 1)
        vid, wanted = self.version_id, self._flights.wanted
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
        if any(self._flights.is_to_be_requested(BlockKey(vid, ahead)) for ahead in range(index, beyond)):
            nearest.expect_more()

    # -- past the cache ---------------------------------------------------------------------------------------------

    def _begin_relay(self) -> None:
        """The run of missing blocks at `position`: by one GET, as far as the origin has to bring them."""
        self._parts.metrics.relays.inc()
        # A disk that only lags is looked at again after a window.
        self._lagged = False
        window_stop = self._position + WINDOW_BLOCKS_MAX * self._layout.block_bytes
        stop = self._extent.stop if self._relaying else min(self._extent.stop, window_stop)
        extent = Extent(self._position, self._flights.missing_until(self._version, self._position, stop))
        self._relay = Relay(self._version, extent, self._relayed_parts(extent), self._source, self._layout.block_bytes)
        self._comes_twice = self._flights.begin_relay(self._key)

    def _relayed_parts(self, extent: Extent) -> Iterator[SourcePart]:
        indexes = self._layout.indexes(extent)
        return self._source.parts(self._version, BlockRun(indexes.start, len(indexes)))

    async def _end_relay(self) -> None:
        relay, self._relay = self._relay, None
        if relay is not None:
            self._flights.end_relay(self._key)
            if self._comes_twice:
                self._source.dropped("relay", relay.count)
            await relay.aclose()
