"""The source of missing blocks: a peer is asked before the origin, and every missing block comes from this source."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.core.model import Extent, ObjectVersion
from outrider.ports import Chunks
from tests.support.engine import BLOCK, REF, engine
from tests.support.fakes import RAMP

DATA = RAMP[: 5 * BLOCK]


class Peers:
    """A cluster in which a peer has all blocks, or none. Notes what it is asked for."""

    def __init__(self, *, has: bool) -> None:
        self.has = has
        self.asked: list[Extent] = []

    def stream(self, version: ObjectVersion, extent: Extent) -> Chunks | None:
        self.asked.append(extent)
        return self._bytes(extent) if self.has else None

    async def _bytes(self, extent: Extent) -> Chunks:
        yield DATA[extent.start : extent.stop]


@pytest.mark.parametrize("capacity_bytes", [64 * 1024 * 1024, 0])
async def test_a_peer_gives_all_bytes_of_fills_and_of_relays(capacity_bytes: int, tmp_path: Path) -> None:
    peers = Peers(has=True)
    with engine(tmp_path / "c", capacity_bytes=capacity_bytes, peers=peers) as room:
        room.origin.put(REF, DATA)
        await room.reads.head(REF, {})
        assert await room.get() == DATA
        await room.tasks.settle()
        assert room.origin.count("GET") == 0
        assert sum(extent.length for extent in peers.asked) == len(DATA)


async def test_the_origin_gives_blocks_that_no_peer_has(tmp_path: Path) -> None:
    peers = Peers(has=False)
    with engine(tmp_path / "c", peers=peers) as room:
        room.origin.put(REF, DATA)
        await room.reads.head(REF, {})
        assert await room.get() == DATA
        await room.tasks.settle()
        assert len(peers.asked) == room.origin.count("GET") > 0


async def test_no_peer_is_asked_for_an_object_whose_version_is_not_known(tmp_path: Path) -> None:
    peers = Peers(has=True)
    with engine(tmp_path / "c", peers=peers) as room:
        room.origin.put(REF, DATA[:1000])
        assert await room.get() == DATA[:1000]
        await room.tasks.settle()
        assert (peers.asked, room.origin.count("GET")) == ([], 1)
