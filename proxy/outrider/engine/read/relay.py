"""A relay: bytes of missing blocks that go to their reader past the cache."""

from __future__ import annotations

from collections.abc import Iterator

from outrider.core.model import Extent, ObjectVersion
from outrider.engine.fill.block_source import BlockSource, SourcePart
from outrider.engine.fill.patience import A_CLIENT
from outrider.engine.fill.peer_block import IncomingBody, PeerBlock
from outrider.engine.read.body_pieces import EarlyPiece


class Relay:
    """Bytes of missing blocks on their way past the cache: one body after the other."""

    def __init__(
        self, version: ObjectVersion, extent: Extent, parts: Iterator[SourcePart], source: BlockSource, block_bytes: int
    ) -> None:
        """`parts`: the GETs for the blocks of `extent`, each of which has `block_bytes`."""
        self._version = version
        self._extent = extent
        self._parts = parts
        self._source = source
        self._block_bytes = block_bytes
        self._body: IncomingBody | None = None
        self._peer: PeerBlock | None = None
        self.count = 0
        """Bytes that were handed out."""

    async def next(self) -> EarlyPiece | bytes | None:
        """None: all have been handed out."""
        while True:
            if self._body is not None:
                if piece := await self._body.some():
                    self.count += len(piece)
                    by_peer = self._peer is not None and self._peer.gives
                    return EarlyPiece(piece, "peer") if by_peer else bytes(piece)
                await self.aclose()
            part = next(self._parts, None)
            if part is None:
                return None
            block_bytes = self._block_bytes
            start, stop = part.run.first * block_bytes, (part.run.first + part.run.count) * block_bytes
            extent = Extent(max(self._extent.start, start), min(self._extent.stop, stop))
            self._peer = part.peer
            self._body = self._source.body(self._version, extent, waiters=A_CLIENT, peer=part.peer)

    async def aclose(self) -> None:
        body, self._body = self._body, None
        if body is not None:
            await body.aclose()
