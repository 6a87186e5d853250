"""The way of a GET or HEAD of a plain object: what version, which bytes, and where each of them comes from."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from outrider.core.block_layout import BlockLayout
from outrider.core.cache.readahead import WINDOW_BLOCKS_MAX, runs_ahead, window_blocks
from outrider.core.errors import (
    OriginBroke,
    PreconditionFailed,
    StoreUnavailable,
    VersionChanged,
    unanswered,
)
from outrider.core.model import (
    BlockKey,
    Extent,
    Headers,
    ObjectRef,
    ObjectVersion,
)
from outrider.core.s3 import ranges
from outrider.core.s3.conditions import CONDITIONALS, Precondition, evaluate
from outrider.core.s3.headers import asks_checksums, without_checksums
from outrider.engine.fill.block_source import BlockSource
from outrider.engine.fill.fill_scheduler import FillScheduler, FillSlot
from outrider.engine.fill.flight import Flight
from outrider.engine.fill.flight_table import FlightTable
from outrider.engine.fill.origin_reader import OriginRefused
from outrider.engine.read.version_cache import VersionCache
from outrider.engine.read.version_lookup import NotCacheable, VersionLookup
from outrider.metrics import Metrics
from outrider.ports import BlockStore, Buffer, Lease

# How often one read begins again because the object was overwritten under it. A name that moves faster is relayed.
_BEGINNINGS = 3
# While a block arrives, a read that goes on widens its window: a lone reader's first blocks take 0.2 s at 40 MB/s, and
# the rest of the line is idle meanwhile.
_PLANS_PER_BLOCK = 8
# Of the readers that there were so many are still believed in after each read: a lone one has the line to himself
# again after some fifty.
_READERS_KEPT = 0.98
# `x-cache` judges a read by its first 8 GiB: a 5 TB object must not hold up everybody else for a header.
_STATUS_BLOCKS_MAX = 1024


class CacheStatus(Enum):
    """The value of `x-cache`."""

    HIT = "HIT"
    MISS = "MISS"
    PARTIAL = "PARTIAL"
    BYPASS = "BYPASS"


@dataclass(slots=True)
class FilePiece:
    """`count` bytes of an open file, for the kernel to send; valid until the next piece is asked for.

    Where the disk gives fewer, whoever sends them puts into `sent` how many it were: the next piece begins there.
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


OnAsked = Callable[[ObjectVersion, Extent], None]


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
"""Plain bytes came straight from the origin."""


class Body(Protocol):
    """The pieces of a reply in order. `aclose` ends it, also when nothing or not all was taken."""

    def __aiter__(self) -> AsyncIterator[Piece]: ...

    async def aclose(self) -> None: ...


class _Primed:
    """A body whose first piece is in hand. Not a generator: closing one that never ran would not close `rest`."""

    def __init__(self, first: Piece | None, rest: AsyncGenerator[Piece, None]) -> None:
        self._first = first
        self._rest = rest

    def __aiter__(self) -> AsyncIterator[Piece]:
        return self

    async def __anext__(self) -> Piece:
        first, self._first = self._first, None
        return first if first is not None else await anext(self._rest)

    async def aclose(self) -> None:
        await self._rest.aclose()


@dataclass(frozen=True, slots=True)
class ReadAnswer:
    """The head is certain, and so is the first byte of the body. Close `body` when done, also halfway."""

    status: int
    headers: Headers
    length: int
    cache: CacheStatus
    body: Body | None = None


class ObjectReads:
    """Reads from the store, the flights and, past them, the origin."""

    def __init__(
        self, layout: BlockLayout, source: BlockSource, catalog: VersionCache, store: BlockStore, flights: FlightTable,
        version_lookup: VersionLookup, scheduler: FillScheduler, metrics: Metrics,
    ) -> None:  # fmt: skip
        self._layout = layout
        self._source = source
        self._catalog = catalog
        self._store = store
        self._flights = flights
        self._version_lookup = version_lookup
        self._scheduler = scheduler
        self._metrics = metrics
        self._readers = 0
        # Those who do not know yet what they read. A job's first readers begin so, all at once.
        self._beginning = 0
        # As many as there were lately: those of a job begin one after the other, at each epoch again, and the first has
        # the line to himself for a moment only.
        self._readers_lately = 0.0

    async def head(self, ref: ObjectRef, headers: Mapping[str, str]) -> ReadAnswer:
        """Raises what `get` raises."""
        version, cache = await self._known(ref, headers), CacheStatus.HIT
        if version is None:
            with self._scheduler.question():
                version, cache = await self._version_lookup.ask(ref, None), CacheStatus.MISS
        if (early := _conditional(version, headers, cache)) is not None:
            return early
        extent = _extent_of(headers, version)
        return _answer(version, extent, headers, cache, None)

    async def get(self, ref: ObjectRef, headers: Mapping[str, str], asked: OnAsked | None = None) -> ReadAnswer:
        """`headers` are the request's, names in lower case. `asked` hears what will be read, before any of it is.

        Raises:
            S3Error: what S3 says of the Range or the conditions; ServiceUnavailable: the origin cannot be reached.
            OriginRefused: the origin's own error, to be passed on.
            NotCacheable: forward the request instead.
        """
        for _ in range(_BEGINNINGS):
            try:
                version = await self._known(ref, headers)
                if version is None:
                    asks = asks_checksums(headers)
                    self._beginning += 1
                    try:
                        with self._scheduler.question():
                            version = await self._version_lookup.ask(ref, _first_byte(headers), whole_headers=asks)
                    finally:
                        self._beginning -= 1
            except OriginRefused as refused:
                if not refused.body:
                    # Asked by HEAD, whose refusals have no words: the origin says them to the GET itself.
                    raise NotCacheable(f"{ref}: refused without a word") from refused
                raise
            cache = CacheStatus.HIT
            if (early := _conditional(version, headers, cache)) is not None:
                return early
            extent = _extent_of(headers, version)
            whole = extent or Extent(0, version.size)
            if asked is not None:
                asked(version, whole)
                asked = None
            body = self._body(version, whole)
            cache = self._status_of(version, whole)
            try:
                # The first byte is in hand before the head is promised: until here another version changes nothing.
                first = await anext(body, None)
            except VersionChanged:
                continue
            except OriginBroke as error:
                raise unanswered(error) from error
            return _answer(version, extent, headers, cache, _Primed(first, body))
        raise NotCacheable(f"{ref} changed {_BEGINNINGS} times under one read")

    def resume(self, version: ObjectVersion, extent: Extent) -> Body:
        """The bytes of `extent`, for a reply whose head is out: now only `version` will do."""
        return self._body(version, extent)

    def doubt(self, version: ObjectVersion, position: int) -> None:
        """The block that has this byte could not be read where it was to be sent from."""
        self._store.doubt(self._layout.key(version, self._layout.index_of(position)))

    # -- which version ------------------------------------------------------------------------------------------

    def _fresh(self, ref: ObjectRef, headers: Mapping[str, str]) -> ObjectVersion | None:
        """The version to answer from without asking; None: ask."""
        version = self._catalog.fresh(ref)
        # A condition that fails on what we remember may hold on what the origin has: somebody who wrote past us asks
        # for his new ETag. Only the origin refuses.
        if version is not None and evaluate(headers, version) is Precondition.FAILED:
            return None
        return version

    async def _known(self, ref: ObjectRef, headers: Mapping[str, str]) -> ObjectVersion | None:
        """The same, with its checksums where they are wanted and the origin tells them."""
        version = self._fresh(ref, headers)
        if version is None or version.whole_headers or not asks_checksums(headers):
            return version
        await self._version_lookup.ask_checksums(ref)
        return self._fresh(ref, headers)

    # -- which bytes, from where --------------------------------------------------------------------------------

    def _status_of(self, version: ObjectVersion, extent: Extent) -> CacheStatus:
        if extent.length == 0:
            return CacheStatus.HIT
        vid = self._layout.version_id(version)
        indexes = self._layout.indexes(extent)[:_STATUS_BLOCKS_MAX]
        here = sum(self._store.has(BlockKey(vid, index)) for index in indexes)
        if here == 0:
            return CacheStatus.MISS
        return CacheStatus.HIT if here == len(indexes) else CacheStatus.PARTIAL

    async def _body(self, version: ObjectVersion, extent: Extent) -> AsyncGenerator[Piece, None]:
        self._readers += 1
        self._readers_lately = max(self._readers, self._readers_lately * _READERS_KEPT)
        try:
            async with aclosing(self._pieces(version, extent)) as pieces:
                async for piece in pieces:
                    yield piece
        except VersionChanged:
            # Also when it comes too late for this answer: the client's next try must not begin with the old blocks.
            self._catalog.forget(version.ref)
            raise
        finally:
            self._readers -= 1

    async def _pieces(self, version: ObjectVersion, extent: Extent) -> AsyncGenerator[Piece, None]:
        """The bytes of `extent` in order, each from the nearest place that has it."""
        layout, vid = self._layout, self._layout.version_id(version)
        position, relaying, step = extent.start, False, layout.block_bytes // _PLANS_PER_BLOCK
        sick_index = -1  # the block whose file failed under this read: the rest of it comes from the origin
        lagged = False  # the last block came at the pace of a disk that lags: what follows need not
        while position < extent.stop:
            index = layout.index_of(position)
            key = BlockKey(vid, index)
            block = layout.extent(index, version.size)
            inside = Extent(position - block.start, min(extent.stop, block.stop) - block.start)
            filling = not relaying and not lagged and self._flights.admits()
            if filling:
                self._fill_ahead(version, vid, Extent(position, extent.stop), extent.start)
            sick = index == sick_index
            if not sick and (lease := self._store.lease_open(key) or await self._store.lease(key)) is not None:
                piece = _file_piece(lease, inside, "disk")
                try:
                    yield piece
                finally:
                    lease.release()
                position += piece.sent
                sick_index = self._sick_after(piece, key, sick_index)
                continue
            flight = None if sick else self._flights.get(key)
            if flight is not None:
                try:
                    async with aclosing(_follow(flight, inside)) as pieces:
                        planned_at = position
                        async for come in pieces:
                            yield come
                            position += come.sent
                            sick_index = self._sick_after(come, key, sick_index)
                            if filling and planned_at + step <= position < extent.stop:
                                planned_at = position
                                self._fill_ahead(version, vid, Extent(position, extent.stop), extent.start)
                    lagged = self._flights.disk_lags
                    continue
                except StoreUnavailable:
                    # No room, or a sick disk: what is left of this read goes past the cache where it is not here.
                    relaying = True
            elif not sick and not self._store.has(key) and filling:
                continue  # found bad and deleted, or evicted, since the fills were planned: plan again
            self._metrics.relays.inc()
            # Where the disk only lags, it is asked again whether it still does.
            lagged = False
            window = WINDOW_BLOCKS_MAX * layout.block_bytes
            relay_max = extent.stop if relaying else min(extent.stop, position + window)
            stop = self._relay_stop(version, vid, position, relay_max)
            async with aclosing(self._source.stream(version, Extent(position, stop))) as chunks:
                async for chunk in chunks:
                    yield chunk
                    position += len(chunk)

    def _sick_after(self, piece: FilePiece | EarlyPiece, key: BlockKey, sick_index: int) -> int:
        """The block whose file failed last, now that `piece` was sent."""
        if not piece.fell_short:
            return sick_index
        self._store.doubt(key)
        return key.index

    def _fill_ahead(self, version: ObjectVersion, vid: bytes, rest: Extent, begun_at: int) -> None:
        blocks_sent = (rest.start - begun_at) / self._layout.block_bytes
        # By its second block the others would have begun, too: a long read that is alone then has the line to itself.
        readers = round(self._readers_lately) if blocks_sent < 1 else self._readers
        readers = max(readers, self._readers + self._beginning)
        index, last = self._layout.index_of(rest.start), self._layout.index_of(rest.stop - 1)
        wanted = self._flights.wanted
        for run in runs_ahead(index, last, blocks_sent, lambda i: wanted(BlockKey(vid, i)), readers):
            if run.first > index and not self._flights.admits():
                break
            begun = self._flights.board(version, run, rest.start)
            self._flights.fill(begun, ahead=run.first - index)
        # What was to be brought for nobody is what this reader would ask for now: it must not come one by one.
        stop = min(last + 1, index + window_blocks(blocks_sent, readers))
        nearest: FillSlot | None = None
        for ahead in range(index, stop):
            flight = self._flights.get(BlockKey(vid, ahead))
            if flight is not None and flight.slot is not None:
                flight.slot.promote(ahead - index)
                nearest = nearest or flight.slot
        if nearest is None or nearest.more:
            return
        beyond = min(last + 1, stop + WINDOW_BLOCKS_MAX)
        if any(self._to_ask_for(BlockKey(vid, ahead)) for ahead in range(index, beyond)):
            nearest.expect_more()

    def _to_ask_for(self, key: BlockKey) -> bool:
        """Neither here nor on its way for somebody."""
        flight = self._flights.get(key)
        if flight is None:
            return not self._store.has(key)
        return flight.slot is not None and not flight.slot.demand

    def _relay_stop(self, version: ObjectVersion, vid: bytes, position: int, stop: int) -> int:
        """Where the run of missing blocks ends that `position` lies in: one GET relays it."""
        index = self._layout.index_of(position)
        while True:
            block_stop = self._layout.extent(index, version.size).stop
            if block_stop >= stop:
                return stop
            index += 1
            key = BlockKey(vid, index)
            if self._store.has(key) or self._flights.get(key) is not None:
                return block_stop


async def _follow(flight: Flight, inside: Extent) -> AsyncGenerator[FilePiece | EarlyPiece, None]:
    """The bytes `inside` a block as they arrive; until one piece falls short."""
    offset = inside.start
    lease: Lease | None = None
    try:
        while offset < inside.stop:
            if (early := await flight.arrival(offset)) is not None:
                early = early[: inside.stop - offset]
                yield EarlyPiece(early)
                offset += len(early)
                continue
            if lease is None:
                if flight.has_landed:
                    # It may have been evicted since, and its file is closed.
                    return
                lease = flight.lease()
            piece = _file_piece(lease, Extent(offset, min(flight.partial.reach(offset), inside.stop)), "flight")
            yield piece
            if piece.fell_short:
                return
            offset += piece.count
    finally:
        if lease is not None:
            lease.release()


def _file_piece(lease: Lease, inside: Extent, source: str) -> FilePiece:
    return FilePiece(lease.block.fd, lease.block.payload_offset + inside.start, inside.length, source)


def _first_byte(headers: Mapping[str, str]) -> int | None:
    """Where a read of an unknown object begins; None: only its size can tell, or a condition may end it first."""
    if any(name in headers for name in CONDITIONALS):
        return None
    if "range" not in headers:
        return 0
    spec = ranges.parse(headers["range"])
    return None if spec is None else spec.first


def _extent_of(headers: Mapping[str, str], version: ObjectVersion) -> Extent | None:
    """None: the whole object. Raises InvalidRange; NotCacheable: a Range that stores answer differently."""
    if "range" not in headers:
        return None
    spec = ranges.parse(headers["range"])
    if spec is None:
        raise NotCacheable("an unusual Range")
    return ranges.resolve(spec, version.size)


def _conditional(version: ObjectVersion, headers: Mapping[str, str], cache: CacheStatus) -> ReadAnswer | None:
    verdict = evaluate(headers, version)
    if verdict is Precondition.FAILED:
        raise PreconditionFailed
    if verdict is Precondition.NOT_MODIFIED:
        cached = {"etag", "last-modified", "cache-control", "expires", "x-amz-version-id"}
        return ReadAnswer(304, tuple(pair for pair in version.headers if pair[0] in cached), 0, cache)
    return None


def _answer(
    version: ObjectVersion,
    extent: Extent | None,
    asked: Mapping[str, str],
    cache: CacheStatus,
    body: Body | None,
) -> ReadAnswer:
    headers = version.headers
    if extent is not None or not asks_checksums(asked):
        headers = without_checksums(headers)
    if extent is None:
        return ReadAnswer(200, headers, version.size, cache, body)
    headers += (("content-range", ranges.content_range(extent, version.size)),)
    return ReadAnswer(206, headers, extent.length, cache, body)
