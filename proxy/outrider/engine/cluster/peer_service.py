"""The side of the member that is asked: a peer's read is answered from the store, from a flight, or from the origin.

No read on behalf of a peer waits for a peer: neither for a flight that another member fills, nor for a question that
another member answers. It asks the origin instead. So two members that each take the other for the owner of a block
answer each other, without a loop and without a deadlock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass

from outrider.core.block_layout import BlockLayout
from outrider.core.cache.readahead import BlockRun, ReaderCount
from outrider.core.cluster.messages import (
    Answer,
    Command,
    CommandAnswer,
    DatasetShare,
    DatasetShares,
    Forget,
    Hello,
    ListedPage,
    ListRequest,
    Notice,
    OrderNotice,
    Question,
    ReadsNotice,
    SharesRequest,
)
from outrider.core.cluster.peer_health import SendingPace
from outrider.core.cluster.peer_messages import NOT_STATED, Confirmed, PeerRead, ReadClass, Sending
from outrider.core.errors import OriginBroke, SlowDown, VersionChanged
from outrider.core.model import BlockKey, Extent, ObjectRef, ObjectVersion
from outrider.engine.cluster.members import LiveMembers
from outrider.engine.cluster.peer_reader import PeerReads
from outrider.engine.fill.block_source import BlockSource, SourcePart
from outrider.engine.fill.content_verification import ContentVerification
from outrider.engine.fill.flight import Flight
from outrider.engine.fill.flight_table import FlightTable
from outrider.engine.read.body import BodyParts, BodyRead
from outrider.engine.read.body_pieces import Body, Piece
from outrider.engine.read.version_answers import NotCacheable
from outrider.engine.read.version_cache import AGE_UNKNOWN_S, VersionCache
from outrider.engine.read.version_lookup import VersionLookup
from outrider.engine.tasks.runtime import Runtime
from outrider.futures import retrieve_failure
from outrider.metrics import Metrics
from outrider.ports import BlockStore, Lease

# A disk that has not opened a block after so long is late: the peer has other places to ask. One that has to verify the
# block reads all of it first, at this rate at least.
_LATE_S, _VERIFIED_BYTES_S = 0.3, 50e6
# A second fill of a block is begun for a reader whose first one failed for want of patience, as for clients.
_FILLS_MAX = 2


@dataclass(frozen=True, slots=True)
class PeerReadAnswer:
    """`status`:

    200  the version alone: nothing else was requested, the extent lies past its end, or it is not the known one
    206  the bytes of `extent`, in `body`
    404  not here, with `only_if_cached`; or nothing that a peer may get
    412  the bucket has another version than the known one
    503  too busy

    `confirmed` goes with 200 and 206. `digest`, `sending`: as those of `PeerReply`. The port closes `body`.
    """

    status: int
    confirmed: Confirmed | None = None
    extent: Extent | None = None
    digest: str = ""
    body: Body | None = None
    sending: Sending = NOT_STATED


class PeerService:
    """Answers the other members. All on the engine's loop."""

    def __init__(
        self, layout: BlockLayout, source: BlockSource, versions: VersionCache, store: BlockStore, flights: FlightTable,
        contents: ContentVerification, version_lookup: VersionLookup, owners: PeerReads, members: LiveMembers,
        metrics: Metrics, runtime: Runtime,
    ) -> None:  # fmt: skip
        self._layout = layout
        self._source = source
        self._versions = versions
        self._store = store
        self._flights = flights
        self._contents = contents
        self._version_lookup = version_lookup
        self._owners = owners
        self._members = members
        # Readers of other members share another line than those of this one.
        self._body_parts = BodyParts(layout, source, store, flights, contents, ReaderCount(), metrics)
        self._runtime, self._clock = runtime, runtime.clock
        self._sending = SendingPace()
        # Blocks that the disk has been asked to open, and has not for too long.
        self._late = 0
        self.on_reads: Callable[[ReadsNotice], None] = lambda message: None
        """Called with the reads of clients of other members."""
        self.take_command: Callable[[Command], Awaitable[CommandAnswer]] | None = None
        """Does this member's part of a maintenance command; None: not yet."""
        self.look_up_cached: Callable[[Command], Awaitable[CommandAnswer]] | None = None
        """Says which blocks of some objects are cached; None: not yet."""
        self.on_orders: Callable[[OrderNotice], None] = lambda message: None
        """Called with the orders of clients of other members."""
        self.own_shares: Callable[[], Awaitable[Sequence[DatasetShare]]] | None = None
        """Reports what this member has of each dataset; None: not yet."""
        self.list_page: Callable[[ListRequest], Awaitable[ListedPage]] | None = None
        """Has a page of a LIST, or gets it from the bucket; None: not yet."""

    async def answer(self, message: Hello | Notice | Question) -> Hello | Answer | None:
        """Heed a message of a member. None: its answer is empty."""
        match message:
            case Hello():
                return self._members.met(message)
            case Forget():
                self._members.on_forget(message)
            case ReadsNotice():
                self.on_reads(message)
            case OrderNotice():
                self.on_orders(message)
            case SharesRequest():
                return DatasetShares(() if self.own_shares is None else tuple(await self.own_shares()))
            case ListRequest():
                return ListedPage() if self.list_page is None else await self.list_page(message)
            case Command():
                take = self.look_up_cached if message.folder == "plan" else self.take_command
                return CommandAnswer(error="the member is not ready") if take is None else await take(message)
        return None

    async def read(self, read: PeerRead, sender: str) -> PeerReadAnswer:
        """Raises Signal, S3Error: the peer has to ask the origin itself."""
        try:
            return await (self._of_known(read, read.known) if read.known is not None else self._of_any(read))
        except VersionChanged:
            return PeerReadAnswer(412)
        except NotCacheable:
            return PeerReadAnswer(404)

    # -- which version ----------------------------------------------------------------------------------------------

    async def _of_known(self, read: PeerRead, known: Confirmed) -> PeerReadAnswer:
        version = known.version
        # The peer's belief is compared, and not taken over: by the time that the question took on its way it would be
        # believed for too long.
        if self._versions.was_written(read.ref, self._clock() - known.age_s):
            return PeerReadAnswer(412)
        assert read.extent is not None, "the wire sees to it"
        if read.extent.stop > version.size or self._layout.indexes(read.extent) != range(read.index, read.index + 1):
            return PeerReadAnswer(404)
        return await self._with_body(read, known, read.extent)

    async def _of_any(self, read: PeerRead) -> PeerReadAnswer:
        """The version is not known to the peer."""
        is_ahead = read.read_class is ReadClass.AHEAD
        confirmed = self._versions.confirmed(read.ref)
        if confirmed is None or (read.whole_headers and not confirmed.version.whole_headers):
            if read.only_if_cached:
                return self._doubted(read.ref)
            first_byte = None if read.extent is None or read.whole_headers else read.extent.start
            if first_byte is not None:
                self._owners.gave_up(read.ref, read.index, "for_peer")
            confirmed = await self._confirm(read.ref, first_byte, whole_headers=read.whole_headers, is_ahead=is_ahead)
        size = confirmed.version.size
        if read.extent is None or read.extent.start >= size:
            return PeerReadAnswer(200, confirmed)
        if read.only_if_cached and not self._store.has(self._layout.key(confirmed.version, 0)):
            return PeerReadAnswer(200, confirmed)
        return await self._with_body(read, confirmed, Extent(read.extent.start, min(read.extent.stop, size)))

    def _doubted(self, ref: ObjectRef) -> PeerReadAnswer:
        """The first block is on disk, and the version has to be confirmed by the bucket, as after each restart of a
        member. The peer asks about that alone, and then for the block."""
        likely = self._versions.likely(ref)
        if likely is None or not self._store.has(self._layout.key(likely, 0)):
            return PeerReadAnswer(404)
        return PeerReadAnswer(200, Confirmed(likely, AGE_UNKNOWN_S))

    async def _confirm(
        self, ref: ObjectRef, first_byte: int | None, *, whole_headers: bool, is_ahead: bool
    ) -> Confirmed:
        if self._contents.relays(ref):
            first_byte = None
        return await self._version_lookup.confirm(ref, first_byte, whole_headers=whole_headers, is_ahead=is_ahead)

    # -- which bytes ------------------------------------------------------------------------------------------------

    async def _with_body(self, read: PeerRead, confirmed: Confirmed, extent: Extent) -> PeerReadAnswer:
        """The head is promised once the first byte is in hand."""
        version, since = confirmed.version, self._clock()
        if not read.only_if_cached:
            await self._version_lookup.wait_for_transfer(version, extent.start, from_origin=True)
        key = self._layout.key(version, read.index)
        if self._contents.relays(read.ref):
            return PeerReadAnswer(404)
        lease = self._store.lease_open(key) or await self._leased(key)
        digest = ""
        if lease is not None:
            try:
                digest = await self._store.digest(key, lease)
            finally:
                lease.release()
        elif read.only_if_cached:
            return PeerReadAnswer(404)
        body = _PeerBodyRead(
            read, version, extent, self._versions.changes, self._body_parts, self._owners,
            lambda count: self._sending.sent(count, self._clock()),
        )  # fmt: skip
        await body.begin()
        confirmed = Confirmed(version, confirmed.age_s + self._clock() - since, confirmed.is_settled)
        sending = Sending(self._sending.bytes_s(self._clock()), self._body_parts.readers.reading)
        return PeerReadAnswer(206, confirmed, extent, digest, body, sending)

    async def _leased(self, key: BlockKey) -> Lease | None:
        """None: the block is not here. Raises SlowDown: the disk does not answer in time, or has just not."""
        if not self._store.has(key):
            return None
        if self._late:
            raise SlowDown
        patience_s = _LATE_S
        if not self._store.is_verified(key):
            patience_s += self._layout.block_bytes / _VERIFIED_BYTES_S
        leasing = asyncio.ensure_future(self._store.lease(key))
        bound = asyncio.ensure_future(self._runtime.sleep(patience_s))
        try:
            await asyncio.wait([leasing, bound], return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            leasing.cancel()
            # It may have been opened in this moment.
            leasing.add_done_callback(_unused)
            raise
        finally:
            bound.cancel()
        if leasing.done():
            return leasing.result()
        self._late += 1
        self._members.disk_answers(False)
        leasing.add_done_callback(self._was_late)
        raise SlowDown

    def _was_late(self, leasing: asyncio.Future[Lease | None]) -> None:
        _unused(leasing)
        self._late -= 1
        if not self._late:
            self._members.disk_answers(True)


def _unused(leasing: asyncio.Future[Lease | None]) -> None:
    """A callback: nobody reads from the lease."""
    retrieve_failure(leasing)
    if not leasing.cancelled() and leasing.exception() is None and (lease := leasing.result()) is not None:
        lease.release()


class _PeerBodyRead(BodyRead):
    """The bytes of a part of one block, from the nearest place that waits for no peer."""

    def __init__(
        self, read: PeerRead, version: ObjectVersion, extent: Extent, since: int, parts: BodyParts, owners: PeerReads,
        has_sent: Callable[[int], None],
    ) -> None:  # fmt: skip
        super().__init__(version, extent, since, parts)
        self._read = read
        self._owners = owners
        self._has_sent = has_sent
        self._promotes = read.read_class is not ReadClass.AHEAD
        self._fills_begun = 0

    def _sent(self, piece: Piece) -> None:
        before = self._position
        super()._sent(piece)
        self._has_sent(self._position - before)

    def _begin_fills(self) -> bool:
        return False

    def _flight_of(self, key: BlockKey) -> Flight | None:
        """The flight of the block from the origin, if need be a new one; None: the bytes are relayed past the cache."""
        flight = self._flights.get(key)
        if flight is not None:
            if flight.is_remote:
                return None
            self._fills_begun += 1
            return flight
        if self._relaying or self._fills_begun >= _FILLS_MAX or not self._flights.admits() or self._store.has(key):
            return None
        self._fills_begun += 1
        self._owners.gave_up(self._version.ref, key.index, "for_peer")
        peer = self._owners.previous(self._version, key.index)
        begun = self._flights.board(self._version, BlockRun(key.index, 1), self._position, peer)
        read_class = self._read.read_class
        self._flights.fill(
            begun, prefetch=read_class is ReadClass.AHEAD, ahead=int(read_class is ReadClass.NEXT)
        )  # fmt: skip
        return begun[0]

    def _wait_for(self, index: int, flight: Flight) -> None:
        if self._promotes:
            super()._wait_for(index, flight)

    def _may_be_luckier(self, error: OriginBroke) -> bool:
        return not error.lasting and self._fills_begun < _FILLS_MAX

    def _begin_relay(self) -> None:
        """All the rest, from the origin."""
        if not self._fills_begun:
            self._owners.gave_up(self._version.ref, self._key.index, "for_peer")
        self._relaying = True
        super()._begin_relay()

    def _relayed_parts(self, extent: Extent) -> Iterator[SourcePart]:
        yield SourcePart(BlockRun(self._key.index, 1), None)
