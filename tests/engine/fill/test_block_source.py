"""The source of missing blocks: a peer is asked before the origin, and every missing block comes from this source."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from outrider.core.cluster.peer_messages import PeerFailed
from outrider.core.model import Extent, ObjectVersion
from outrider.engine.fill.fill_scheduler import FillSlot
from outrider.engine.fill.sinks import SinkAt
from outrider.ports import Chunks
from tests.support.engine import BLOCK, REF, as_large, by_threads, engine
from tests.support.fakes import RAMP

DATA = RAMP[: 5 * BLOCK]


@dataclass
class FakePeerBlock:
    peers: Peers
    is_remote: bool = True
    receives_in_threads: bool = True
    gives: bool = False
    digest: str = ""

    async def stream(self, extent: Extent, slot: FillSlot | None) -> Chunks:
        self.peers.asked.append(extent)
        self.gives = True
        for start in range(extent.start, extent.stop, BLOCK // 4):
            if start - extent.start >= self.peers.breaks_after:
                self.gives = False
                raise PeerFailed("broke")
            yield DATA[start : min(start + BLOCK // 4, extent.stop)]

    async def receive(self, extent: Extent, sink_at: SinkAt, slot: FillSlot | None) -> AsyncGenerator[int, None]:
        position = extent.start
        async for chunk in self.stream(extent, slot):
            while chunk:
                sink, room = await sink_at(position)
                piece, chunk = chunk[:room], chunk[room:]
                sink.write(memoryview(piece))
                sink.ended()
                position += len(piece)
                yield len(piece)

    def checked(self, rest: Chunks, count: int) -> Chunks:
        return rest

    def refuted(self) -> None: ...


@dataclass
class Peers:
    """A cluster in which a peer has every second block. Notes what it is asked for."""

    breaks_after: int = BLOCK
    asked: list[Extent] = field(default_factory=list)

    def block(self, version: ObjectVersion, index: int) -> FakePeerBlock | None:
        return FakePeerBlock(self) if index % 2 else None

    def origin_flowed(self, count: int, waited_s: float) -> None: ...


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
