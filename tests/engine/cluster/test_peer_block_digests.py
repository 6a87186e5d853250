"""A peer's block is compared with the peer's digest before it is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.core.errors import VersionChanged
from tests.support.engine import BLOCK, REF, as_large, as_small, by_threads
from tests.support.fake_peers import PeerFault
from tests.support.fakes import RAMP
from tests.support.members import Cluster, Node, cluster

DATA = RAMP[:BLOCK]
HELD_BYTES_MAX = "outrider.engine.cluster.requested_block._HELD_BYTES_MAX"


async def facing(nodes: Cluster, *faults: PeerFault, size: int = BLOCK, is_known: bool = True) -> Node:
    """A member, and these faults of the owner's next replies to it. `is_known`: to the member, as the version is."""
    nodes.origin.put(REF, DATA[:size])
    await nodes.meet()
    owner, (edge, _) = nodes.owner_of(), nodes.others_of()
    if is_known:
        await edge.engine.version_lookup.ask(REF, None)
    await owner.get()
    await nodes.settle()
    edge.wire.faults += faults
    return edge


def differing(node: Node) -> float:
    return node.engine.metrics.value("outrider_peer_failures_total", why="digest")


@pytest.mark.parametrize("size", [1000, BLOCK])
async def test_a_small_block_that_differs_from_its_digest_is_not_handed_out(size: int, tmp_path: Path) -> None:
    with cluster(tmp_path) as nodes:
        edge = await facing(nodes, PeerFault(turn=500), size=size, is_known=False)
        assert await edge.get() == DATA[:size]
        await nodes.settle()
        assert await edge.get() == DATA[:size]
        assert differing(edge) == 1


@pytest.mark.parametrize("buffer_bytes", [as_large, as_small, by_threads])
async def test_a_large_block_that_differs_is_cut_and_comes_from_the_bucket_next(
    buffer_bytes: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HELD_BYTES_MAX, 0)
    with cluster(tmp_path, buffer_bytes=buffer_bytes) as nodes:
        edge = await facing(nodes, PeerFault(turn=500), is_known=False)
        with pytest.raises(VersionChanged):
            await edge.get()
        await nodes.settle()
        assert (edge.engine.store.used_bytes, differing(edge)) == (0, 1)
        asked = len(edge.wire.reads)
        assert await edge.get() == DATA
        assert [read.extent for _, read in edge.wire.reads[asked:] if read.known is not None] == []


@pytest.mark.parametrize("buffer_bytes", [as_large, as_small, by_threads])
async def test_a_wrong_byte_of_a_peer_that_breaks_off_is_found_though_the_bucket_gives_the_rest(
    buffer_bytes: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HELD_BYTES_MAX, 0)
    with cluster(tmp_path, buffer_bytes=buffer_bytes) as nodes:
        edge = await facing(nodes, PeerFault(turn=500, break_after=2000), PeerFault(why="absent"))
        with pytest.raises(VersionChanged):
            await edge.get()
        await nodes.settle()
        assert edge.engine.store.used_bytes == 0
        assert await edge.get() == DATA


@pytest.mark.parametrize("held_bytes", [0, BLOCK])
@pytest.mark.parametrize("buffer_bytes", [as_large, as_small, by_threads])
async def test_a_digest_without_bytes_is_not_asked_of_those_of_the_bucket(
    buffer_bytes: object, held_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HELD_BYTES_MAX, held_bytes)
    with cluster(tmp_path, buffer_bytes=buffer_bytes) as nodes:
        edge = await facing(nodes, PeerFault(digest="xxh3:" + "0" * 32, break_after=0), PeerFault(why="absent"))
        assert await edge.get() == DATA
        await nodes.settle()
        assert differing(edge) == 0
