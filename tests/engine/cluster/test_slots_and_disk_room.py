"""The slots of fills, and the room on disk, of members that need each other."""

from __future__ import annotations

import asyncio
from pathlib import Path

from outrider.core.model import ObjectRef
from tests.support.engine import BLOCK
from tests.support.fakes import RAMP
from tests.support.members import cluster

DATA = RAMP[: 4 * BLOCK]
DISK = BLOCK + 4096


async def test_the_slots_of_two_members_never_wait_for_each_other(tmp_path: Path) -> None:
    with cluster(tmp_path, "ab", fills_max=1) as nodes:
        await nodes.meet()
        refs = [ObjectRef("train", f"{number}.tar") for number in range(8)]
        for ref in refs:
            nodes.origin.put(ref, DATA)
        reads = [node.get(ref) for ref in refs for node in nodes]
        assert await asyncio.wait_for(asyncio.gather(*reads), 60) == [DATA] * 16
        ahead = [ObjectRef("train", f"ahead{number}.tar") for number in range(8)]
        for ref in ahead:
            nodes.origin.put(ref, DATA)
        await asyncio.wait_for(asyncio.gather(*(node.engine.fills.opened(ref) for ref in ahead for node in nodes)), 60)
        await nodes.settle()


async def test_blocks_of_others_never_displace_own_ones_and_are_relayed_instead(tmp_path: Path) -> None:
    with cluster(tmp_path, "ab", capacity_bytes=8 * DISK) as nodes:
        await nodes.meet()
        node = nodes["a"]
        refs = [ObjectRef("train", f"{number}.tar") for number in range(12)]
        for ref in refs:
            nodes.origin.put(ref, DATA)
        owned = [(ref, index) for ref in refs for index in range(4) if node.owns(ref, index)]
        near = [(ref, index) for ref in refs for index in range(4) if not node.owns(ref, index)]
        assert len(owned) >= 8 <= len(near)

        async def read(ref: ObjectRef, index: int) -> None:
            start = index * BLOCK
            assert await node.engine.range(start, start + BLOCK, ref) == DATA[start : start + BLOCK]
            await nodes.settle()

        for ref, index in near[:8]:
            await read(ref, index)
        assert (len(node.engine.store), len(node.near)) == (8, 8)
        for ref, index in owned[:8]:
            await read(ref, index)
        assert (len(node.engine.store), len(node.near)) == (8, 0)
        for ref, index in near:
            await read(ref, index)
        assert (len(node.engine.store), len(node.near)) == (8, 0)


async def test_an_owner_whose_disk_takes_nothing_passes_on_what_comes(tmp_path: Path) -> None:
    """Its fill fails, and the edge gets the bytes from it all the same."""
    with cluster(tmp_path, "ab") as nodes:
        await nodes.meet()
        edge, owner = nodes["a"], nodes["b"]
        ref = nodes.ref_owned_by("b")
        nodes.origin.put(ref, DATA[:BLOCK])
        owner.engine.store.disks[0].budget.capacity_bytes = 0
        for _ in range(2):
            assert await edge.cache_of(ref) == "PEER"
            await nodes.settle()
            await edge.engine.store.drop(list(edge.engine.store.present()))
        assert edge.members.health.of("b").failures.total() == 0
        assert len(owner.engine.store) == 0
