"""A read that is cancelled at any of its waits disturbs no other one, and leaves nothing behind on any member."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.support.child import open_below
from tests.support.engine import BLOCK, REF, as_large, by_threads, nothing_is_left
from tests.support.event_loops import SeededLoop, SeededThreads
from tests.support.fake_peers import PeerFault
from tests.support.fakes import FakeOrigin, ramp
from tests.support.members import Cluster, Node, cluster

DATA = ramp(3 * BLOCK + 5)
WAITS_MAX = 2000
# Each fourth wait is cancelled, in an order of events that differs each time.
STEP = 4


async def settled(nodes: Cluster) -> None:
    # A read that is not over keeps the watch over the members going.
    async with asyncio.timeout(30):
        await nodes.settle()
    assert nodes.origin.under_way == 0
    for node in nodes:
        assert node.wire.under_way == 0
        await nothing_is_left(node.engine)
        assert list((node.engine.store.disks[0].directory.root / "tmp").iterdir()) == []


@pytest.mark.parametrize(
    ("fault", "buffer_bytes"), [(None, by_threads), (PeerFault(None, break_after=40_000), as_large)],
    ids=["received by threads", "bodies that break"],
)  # fmt: skip
def test_a_cancellation_at_any_wait_of_a_read_of_peers_disturbs_nobody(
    fault: PeerFault | None, buffer_bytes: Callable[[int], int], tmp_path: Path
) -> None:
    async def attempt(root: Path, waits: int) -> bool:
        origin = FakeOrigin(chunk_bytes=30_000)
        origin.put(REF, DATA)
        with cluster(root, "ab", origin=origin, buffer_bytes=buffer_bytes, capacity_bytes=16 * BLOCK) as nodes:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, SeededLoop)
            for node in nodes:
                node.wire.chunk_bytes = 30_000
                node.engine.store.disks[0].work.threads.shutdown()
                node.engine.store.disks[0].work.threads = SeededThreads(loop)
            await nodes.meet()
            (edge,) = nodes.others_of()
            if fault is not None:
                edge.wire.faults.append(fault)

            async def reads(node: Node) -> None:
                assert await node.get() == DATA

            victim = asyncio.ensure_future(reads(edge))
            beside = [asyncio.ensure_future(reads(node)) for node in nodes]
            for _ in range(waits):
                await asyncio.sleep(0)
            ended = not victim.cancel()
            await asyncio.gather(*beside)
            with contextlib.suppress(asyncio.CancelledError):
                await victim
            await settled(nodes)
            for node in nodes:
                assert await node.get() == DATA
            await nodes.settle()
            return ended

    for waits in range(0, WAITS_MAX, STEP):
        root = tmp_path / str(waits)
        with asyncio.Runner(loop_factory=partial(SeededLoop, waits)) as runner:
            over = runner.run(attempt(root, waits))
        assert open_below(root) == []
        shutil.rmtree(root)
        if over:
            return
    raise AssertionError("it never ends")
