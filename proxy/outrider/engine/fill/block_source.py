"""The source of missing blocks: which place their bytes are read from.

The order is that of groupcache: the own cache, then the peer that owns the block, then the origin. The own cache has
been asked by then: nothing is read here of a block that is on disk or on its way.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import NamedTuple

from outrider.core.cache.readahead import BlockRun
from outrider.core.cluster.peer_messages import PeerFailed
from outrider.core.model import Extent, ObjectVersion
from outrider.engine.fill.fill_scheduler import FillSlot
from outrider.engine.fill.origin_body import OriginBody
from outrider.engine.fill.origin_reader import OriginReader
from outrider.engine.fill.patience import NOBODY, Waiters
from outrider.engine.fill.peer_block import IncomingBody, PeerBlock, PeerBody, PeerReader
from outrider.ports import BlockReceiver, Buffer

log = logging.getLogger(__name__)


class SourcePart(NamedTuple):
    """Adjacent missing blocks that are requested by one GET; `peer` None: of the origin."""

    run: BlockRun
    peer: PeerBlock | None


class BlockSource:
    """The only place that decides where the bytes of a missing block come from. It is asked by fills, and by reads that
    relay past the cache."""

    def __init__(self, origin_reader: OriginReader, peers: PeerReader | None = None) -> None:
        """`peers` None: there are none."""
        self._origin_reader = origin_reader
        self._peers = peers
        self.has_peers = peers is not None
        self.clock = origin_reader.patience.clock
        """The clock that patience is measured by."""
        self.quirks = origin_reader.quirks

    @property
    def patience_s(self) -> float:
        """See `OriginReader.patience_s`."""
        return self._origin_reader.patience_s

    def parts(self, version: ObjectVersion, run: BlockRun) -> Iterator[SourcePart]:
        """The GETs for a run of missing blocks. A block that is requested of a peer has one of its own: the block
        beside it has another owner."""
        if self._peers is None:
            yield SourcePart(run, None)
            return
        first = run.first
        for index in range(run.first, run.first + run.count):
            if (peer := self._peers.block(version, index)) is None:
                continue
            if first < index:
                yield SourcePart(BlockRun(first, index - first), None)
            yield SourcePart(BlockRun(index, 1), peer)
            first = index + 1
        if (left := run.first + run.count - first) > 0:
            yield SourcePart(BlockRun(first, left), None)

    def body(
        self, version: ObjectVersion, extent: Extent, *, slot: FillSlot | None = None, waiters: Waiters = NOBODY,
        peer: PeerBlock | None = None, bulk: bool = False,
    ) -> IncomingBody:  # fmt: skip
        """The bytes of `extent` in order. `peer`: asked first. The rest, and what it raises: see `OriginBody`."""
        if peer is None:
            return OriginBody(self._origin_reader, version, extent, slot=slot, waiters=waiters, bulk=bulk)

        def rest(position: int) -> OriginBody:
            left = Extent(position, extent.stop)
            return OriginBody(self._origin_reader, version, left, slot=slot, waiters=waiters, bulk=bulk)

        return _PeersFirst(version, extent, peer.body(extent, slot), rest)

    def flowed(self, count: int, waited_s: float, *, is_first: bool) -> None:
        """`count` bytes of a body of the origin came after a wait. `is_first`: they are its first ones."""
        if self._peers is not None:
            self._peers.origin_flowed(count, waited_s, is_first=is_first)

    def dropped(self, cause: str, count: int) -> None:
        """See `OriginReader.dropped`."""
        self._origin_reader.dropped(cause, count)


class _PeersFirst:
    """A body of peers, which goes on at its offset at the origin where no peer gives more."""

    def __init__(
        self, version: ObjectVersion, extent: Extent, peers: PeerBody, rest: Callable[[int], OriginBody]
    ) -> None:  # fmt: skip
        self._version = version
        self._stop = extent.stop
        self._peers = peers
        self._rest_from = rest
        self._rest: OriginBody | None = None

    @property
    def position(self) -> int:
        return self._peers.position if self._rest is None else self._rest.position

    async def some(self) -> Buffer:
        if self._rest is None:
            try:
                return await self._peers.some()
            except PeerFailed as error:
                rest = self._fall_back(error)
        else:
            rest = self._rest
        piece = await rest.some()
        self._peers.check(piece)
        return piece

    async def in_thread(self) -> bool:
        if self._rest is None:
            try:
                return await self._peers.in_thread()
            except PeerFailed as error:
                self._fall_back(error)
        return self._rest is not None and await self._rest.in_thread()

    async def receive(self, count: int, sink: BlockReceiver, received: Callable[[int], None]) -> None:
        if self._rest is not None:
            return await self._rest.receive(count, sink, received)
        try:
            await self._peers.receive(count, sink, received)
        except PeerFailed as error:
            self._fall_back(error)

    def _fall_back(self, error: PeerFailed) -> OriginBody:
        position = self._peers.position
        log.debug(
            "peers failed, the origin is asked",
            extra={"object": str(self._version.ref), "offset": position, "why": error.why, "error": str(error)},
        )
        self._rest = self._rest_from(position)
        return self._rest

    async def aclose(self) -> None:
        await self._peers.aclose()
        if self._rest is not None:
            await self._rest.aclose()
