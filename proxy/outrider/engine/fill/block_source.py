"""The source of missing blocks: which place their bytes are read from.

The order is that of groupcache: the own cache, then the peer that owns the block, then the origin. The own cache has
been asked by then: nothing is read here of a block that is on disk or on its way.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Iterator
from contextlib import AbstractAsyncContextManager, aclosing
from typing import NamedTuple

from outrider.core.cache.readahead import BlockRun
from outrider.core.cluster.peer_messages import PeerFailed
from outrider.core.model import Extent, Headers, ObjectVersion
from outrider.core.origin.oddities import Oddity
from outrider.engine.fill.fill_scheduler import FillSlot
from outrider.engine.fill.origin_reader import OriginReader
from outrider.engine.fill.patience import NOBODY, Waiters
from outrider.engine.fill.peer_block import PeerBlock, PeerReader
from outrider.engine.fill.sinks import SinkAt
from outrider.ports import Chunks, Clock, OriginReply, OriginRequest

log = logging.getLogger(__name__)


class Part(NamedTuple):
    """Adjacent missing blocks that are asked for by one GET; `peer` None: of the origin."""

    run: BlockRun
    peer: PeerBlock | None


class BlockSource:
    """The only place that decides where the bytes of a missing block come from. It is asked by fills, by reads that
    relay past the cache, and by the question that brings the first block of an unknown object."""

    def __init__(self, origin_reader: OriginReader, peers: PeerReader | None = None) -> None:
        """`peers` None: there are none."""
        self._origin_reader = origin_reader
        self._peers = peers
        self.has_peers = peers is not None

    @property
    def receives_in_threads(self) -> bool:
        """Whether large bodies of the origin are better received (`receive`) than streamed."""
        return self._origin_reader.receives_in_threads

    @property
    def clock(self) -> Clock:
        """See `OriginReader.clock`."""
        return self._origin_reader.clock

    @property
    def patience_s(self) -> float:
        """See `OriginReader.patience_s`."""
        return self._origin_reader.patience_s

    def parts(self, version: ObjectVersion, run: BlockRun) -> Iterator[Part]:
        """The GETs for a run of missing blocks. A block that a peer is asked for has one of its own: the block beside
        it has another owner."""
        if self._peers is None:
            yield Part(run, None)
            return
        first = run.first
        for index in range(run.first, run.first + run.count):
            if (peer := self._peers.block(version, index)) is None:
                continue
            if first < index:
                yield Part(BlockRun(first, index - first), None)
            yield Part(BlockRun(index, 1), peer)
            first = index + 1
        if (left := run.first + run.count - first) > 0:
            yield Part(BlockRun(first, left), None)

    def stream(
        self, version: ObjectVersion, extent: Extent, first: OriginReply | None = None, slot: FillSlot | None = None,
        waiters: Waiters = NOBODY, peer: PeerBlock | None = None,
    ) -> Chunks:  # fmt: skip
        """The bytes of `extent` in order. `peer`: asked first. `first`, `slot`, `waiters` and what it raises: see
        `OriginReader.stream`."""
        if peer is not None and first is None:
            return self._stream_by(peer, version, extent, slot, waiters)
        return self._origin_reader.stream(version, extent, first, slot, waiters)

    async def _stream_by(
        self, peer: PeerBlock, version: ObjectVersion, extent: Extent, slot: FillSlot | None, waiters: Waiters
    ) -> Chunks:  # fmt: skip
        position = extent.start
        try:
            async with aclosing(peer.stream(extent, slot)) as chunks:
                async for chunk in chunks:
                    position += len(chunk)
                    yield chunk
        except PeerFailed as error:
            _note_fallback(version, position, error)
        if position < extent.stop:
            rest = self._origin_reader.stream(version, Extent(position, extent.stop), None, slot, waiters)
            async with aclosing(peer.checked(rest, extent.stop - position)) as chunks:
                async for chunk in chunks:
                    yield chunk

    async def receive(
        self, version: ObjectVersion, extent: Extent, sink_at: SinkAt, slot: FillSlot | None, waiters: Waiters,
        peer: PeerBlock | None = None,
    ) -> AsyncGenerator[int, None]:  # fmt: skip
        """The bytes of `extent`, put into sinks by a thread; how many, as they come. `peer`: asked first. See
        `OriginReader.receive`."""
        position = extent.start
        if peer is not None:
            try:
                async with aclosing(peer.receive(extent, sink_at, slot)) as counts:
                    async for count in counts:
                        position += count
                        yield count
            except PeerFailed as error:
                _note_fallback(version, position, error)
        if position < extent.stop:
            rest = self._origin_reader.receive(version, Extent(position, extent.stop), sink_at, slot, waiters)
            async with aclosing(rest) as counts:
                async for count in counts:
                    yield count

    def flowed(self, count: int, waited_s: float) -> None:
        """`count` bytes of a body of the origin came after a wait."""
        if self._peers is not None:
            self._peers.origin_flowed(count, waited_s)

    def dropped(self, cause: str, count: int) -> None:
        """See `OriginReader.dropped`."""
        self._origin_reader.dropped(cause, count)

    def first_reply(
        self, request: OriginRequest, optional: Headers, waiters: Waiters
    ) -> AbstractAsyncContextManager[OriginReply]:
        """The origin's reply to a GET of an object whose version is not known, which no peer told. `optional`,
        `waiters`, and what it raises: see `OriginReader.asked`."""
        return self._origin_reader.asked(request, optional, hedged=True, waiters=waiters)

    def ignores_ranges(self, bucket: str) -> bool:
        """Whether each GET of a block would bring the whole object."""
        return self._origin_reader.quirks.has(bucket, Oddity.RANGE_IGNORED)


def _note_fallback(version: ObjectVersion, position: int, error: PeerFailed) -> None:
    log.debug(
        "peers failed, the origin is asked",
        extra={"object": str(version.ref), "offset": position, "why": error.why, "error": str(error)},
    )
