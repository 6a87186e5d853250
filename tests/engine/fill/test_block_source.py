"""The source of missing blocks: a peer is asked before the origin, and every missing block comes from this source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from outrider.core.cluster.peer_messages import PeerFailed
from outrider.core.model import Extent, ObjectVersion
from outrider.engine.fill.fill_scheduler import FillSlot
from outrider.ports import Buffer, ByteSink
from tests.support.engine import BLOCK, REF, as_large, by_threads, engine
from tests.support.fakes import RAMP

DATA = RAMP[: 5 * BLOCK]


@dataclass
class FakePeerBlock:
    peers: Peers
    is_remote: bool = True
    gives: bool = False
    digest: str = ""

    def body(self, extent: Extent, slot: FillSlot | None) -> FakePeerBody:
        self.peers.asked.append(extent)
        return FakePeerBody(self, extent)

    def refuted(self) -> None: ...


class FakePeerBody:
    def __init__(self, block: FakePeerBlock, extent: Extent) -> None:
        self.block = block
        self.extent = extent
        self.position = extent.start

    async def some(self) -> bytes:
        self.block.gives = True
        await self.in_thread()
        stop = min(self.position + BLOCK // 4, self.extent.stop)
        piece, self.position = DATA[self.position : stop], stop
        return piece

    async def in_thread(self) -> bool:
        if self.position < self.extent.stop and self.position - self.extent.start >= self.block.peers.breaks_after:
            self.block.gives = False
            raise PeerFailed("broke")
        return True

    async def receive(self, count: int, sink: ByteSink, received: Callable[[int], None]) -> None:
        try:
            piece = (await self.some())[:count]
            sink.write(memoryview(piece))
        finally:
            sink.ended()
        received(len(piece))

    def check(self, piece: Buffer) -> None: ...

    async def aclose(self) -> None: ...


@dataclass
class Peers:
    """A cluster in which a peer has every second block. Notes what it is asked for."""

    breaks_after: int = BLOCK
    asked: list[Extent] = field(default_factory=list)

    def block(self, version: ObjectVersion, index: int) -> FakePeerBlock | None:
        return FakePeerBlock(self) if index % 2 else None

    def origin_flowed(self, count: int, waited_s: float, *, is_first: bool) -> None: ...


@pytest.mark.parametrize("buffer_bytes", [as_large, by_threads])
@pytest.mark.parametrize("capacity_bytes", [64 * 1024 * 1024, 0])
@pytest.mark.parametrize("breaks_after", [BLOCK, BLOCK // 2, 0])
async def test_each_block_comes_from_its_owner_and_the_rest_of_one_that_breaks_from_the_origin(
    capacity_bytes: int, breaks_after: int, buffer_bytes: object, tmp_path: Path
) -> None:
    peers = Peers(breaks_after)
    with engine(tmp_path / "c", capacity_bytes=capacity_bytes, peers=peers, buffer_bytes=buffer_bytes) as room:  # type: ignore[arg-type]
        room.origin.put(REF, DATA)
        await room.reads.head(REF, {})
        assert await room.get() == DATA
        await room.tasks.settle()
        assert room.origin.body_bytes == 3 * BLOCK + 2 * (BLOCK - breaks_after)
        assert sorted(peers.asked) == [Extent(BLOCK, 2 * BLOCK), Extent(3 * BLOCK, 4 * BLOCK)]


async def test_blocks_of_the_origin_beside_each_other_are_still_asked_for_by_one_get(tmp_path: Path) -> None:
    peers = Peers()
    with engine(tmp_path / "c", capacity_bytes=0, peers=peers) as room:
        peers.block = lambda version, index: FakePeerBlock(peers) if index == 2 else None  # type: ignore[method-assign]
        room.origin.put(REF, DATA)
        await room.reads.head(REF, {})
        assert await room.get() == DATA
        assert room.origin.ranges == [f"bytes=0-{2 * BLOCK - 1}", f"bytes={3 * BLOCK}-{5 * BLOCK - 1}"]
        assert peers.asked == [Extent(2 * BLOCK, 3 * BLOCK)]
