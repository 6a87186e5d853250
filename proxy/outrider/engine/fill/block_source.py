"""The source of missing blocks: which place their bytes are read from.

The order is that of groupcache: the own cache, then the peer that owns the block, then the origin. The own cache has
been asked by then: nothing is read here of a block that is on disk or on its way.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from outrider.core.model import Extent, Headers, ObjectVersion
from outrider.core.origin.oddities import Oddity
from outrider.engine.fill.block_sinks import SinkAt
from outrider.engine.fill.fill_scheduler import FillSlot
from outrider.engine.fill.origin_reader import OriginReader
from outrider.engine.fill.patience import NOBODY, Waiters
from outrider.ports import Chunks, Clock, OriginReply, OriginRequest


class PeerReader(Protocol):
    """Reads blocks from the other nodes of a cluster."""

    def stream(self, version: ObjectVersion, extent: Extent) -> Chunks | None:
        """The bytes of `extent` of `version`; None: no peer is to be asked for them."""
        ...


class NoPeers:
    """The cluster of a node that is alone."""

    def stream(self, version: ObjectVersion, extent: Extent) -> None:
        return None


class BlockSource:
    """The only place that decides where the bytes of a missing block come from. It is asked by fills, by reads that
    relay past the cache, and by the question that brings the first block of an unknown object."""

    def __init__(self, origin_reader: OriginReader, peers: PeerReader | None = None) -> None:
        """`peers` None: there are none."""
        self._origin_reader = origin_reader
        self._peers = NoPeers() if peers is None else peers

    @property
    def receives_in_threads(self) -> bool:
        """Whether large bodies are better received (`receive`) than streamed."""
        return self._origin_reader.receives_in_threads

    @property
    def clock(self) -> Clock:
        """See `OriginReader.clock`."""
        return self._origin_reader.clock

    @property
    def patience_s(self) -> float:
        """See `OriginReader.patience_s`."""
        return self._origin_reader.patience_s

    def stream(
        self, version: ObjectVersion, extent: Extent, first: OriginReply | None = None, slot: FillSlot | None = None,
        waiters: Waiters = NOBODY,
    ) -> Chunks:  # fmt: skip
        """The bytes of `extent` in order. `first`, `slot`, `waiters` and what it raises: see `OriginReader.stream`."""
        if first is None and (chunks := self._peers.stream(version, extent)) is not None:
            return chunks
        return self._origin_reader.stream(version, extent, first, slot, waiters)

    def receive(
        self, version: ObjectVersion, extent: Extent, sink_at: SinkAt, slot: FillSlot | None, waiters: Waiters
    ) -> AsyncGenerator[int, None]:
        """The bytes of `extent`, put into sinks by a thread; how many, as they come. See `OriginReader.receive`."""
        return self._origin_reader.receive(version, extent, sink_at, slot, waiters)

    def dropped(self, cause: str, count: int) -> None:
        """See `OriginReader.dropped`."""
        self._origin_reader.dropped(cause, count)

    def first_reply(
        self, request: OriginRequest, optional: Headers, waiters: Waiters
    ) -> AbstractAsyncContextManager[OriginReply]:
        """The reply to a GET of an object whose version is not known. Only the origin knows the version, so no peer is
        asked. `optional`, `waiters`, and what it raises: see `OriginReader.asked`."""
        return self._origin_reader.asked(request, optional, hedged=True, waiters=waiters)

    def ignores_ranges(self, bucket: str) -> bool:
        """Whether each GET of a block would bring the whole object."""
        return self._origin_reader.quirks.has(bucket, Oddity.RANGE_IGNORED)
