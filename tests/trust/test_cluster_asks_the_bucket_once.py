"""The bucket is asked once for all members, and a write is seen through all of them: counted with real processes."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.support.trials import SCALE, rounds
from tests.trust.cluster import WAIT_S, Stored, World, body, extent_of, metrics_of, put, total

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.support.bucket import Bucket
    from tests.support.nodes import Node

BLOCK, BLOCKS, OBJECTS, EPOCHS = 64 * 1024, 3, 48 if SCALE > 1 else 12, 3 if SCALE > 1 else 2
# A multiple of the data. A late reply of a member may be left for the bucket; see `Excused`.
SHARE_MAX = 1.005
# Blocks that a member was not asked for, because it had not answered in time before, are excused up to this share.
LEFT_OUT_MAX = 0.1


@pytest.fixture(scope="module", params=["off", "epoch"], ids=lambda prefetch: f"prefetch {prefetch}")
def running(
    bucket: Bucket, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("cluster")
    with World(bucket, directory, block_bytes=BLOCK, flags={"prefetch": request.param}) as world:
        yield world


@pytest.fixture
def world(running: World) -> World:
    running.calm()
    return running


def dataset(world: World, name: str) -> list[Stored]:
    return [world.put(BLOCKS, f"{name}/{number:05d}.tar") for number in range(OBJECTS)]


def read_all(parts: Sequence[tuple[Node, Sequence[Stored]]]) -> None:
    """All nodes at once, each in its own order."""

    def read(part: tuple[Node, Sequence[Stored]]) -> None:
        node, objects = part
        for stored in objects:
            assert body(node, stored.key) == stored.data

    with ThreadPoolExecutor(len(parts)) as pool:
        list(pool.map(read, parts))


def share(world: World, objects: Sequence[Stored]) -> float:
    """The bytes that the bucket was asked for since the last count, as a multiple of the data."""
    world.settle()
    asked = [extent_of(request) for request in world.gets(objects[0].key.partition("/")[0])]
    world.simulator.reset()
    return sum(stop - start for start, stop in asked) / (len(objects) * BLOCKS * BLOCK)


class Excused:
    """The share of the data that may have been asked of the bucket once more since this was made. A machine that stands
    still for so long that a member seems late, or away, is no fault of the cluster."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._failed, self._left_out, self._away = self._count()

    @property
    def share(self) -> float:
        failed, left_out, away = self._count()
        if away > self._away:
            # Meanwhile its blocks are the stand-in's, which asks the bucket for them once.
            return 1.0
        blocks = OBJECTS * BLOCKS
        return (failed - self._failed) / blocks + min(LEFT_OUT_MAX, (left_out - self._left_out) / blocks)

    def _count(self) -> tuple[float, float, int]:
        nodes, whys = self._world.nodes.all, ("hedged", "late", "slow", "busy", "broke", "connect")
        pages = [metrics_of(node) for node in nodes]
        failed = sum(total(page, "outrider_peer_failures_total", why=why) for page in pages for why in whys)
        # A reply of the bucket that is late is asked for a second time, too.
        failed += sum(total(page, "outrider_hedges_total") for page in pages)
        # A hello that was answered late opens the breaker, though no read of the member failed.
        name = "outrider_peer_duplicate_fetches_total"
        left_out = sum(total(page, name, why=why) for page in pages for why in ("left_out", "for_peer"))
        changes = [line["change"] for node in nodes for line in node.lines("members changed")]
        return failed, left_out, changes.count("away")


def test_each_node_reads_all_of_a_cold_dataset(world: World) -> None:
    objects, excused = dataset(world, "each"), Excused(world)
    orders = [random.Random(number).sample(objects, OBJECTS) for number in range(len(world.nodes))]
    read_all(list(zip(world.nodes.all, orders, strict=True)))
    assert share(world, objects) <= SHARE_MAX + excused.share


def test_a_job_is_dealt_anew_in_each_epoch(world: World) -> None:
    """The first epoch takes each byte from the bucket once, all others take nothing."""
    objects, excused = dataset(world, "dealt"), Excused(world)
    shares = []
    for epoch in range(EPOCHS):
        order = random.Random(epoch).sample(objects, OBJECTS)
        read_all([(node, order[number :: len(world.nodes)]) for number, node in enumerate(world.nodes.all)])
        shares.append(share(world, objects))
    first, *others = shares
    assert 1.0 <= first <= SHARE_MAX + excused.share
    assert sum(others) <= excused.share


def test_a_write_is_read_through_all_other_nodes(world: World) -> None:
    """Each node knows the old version, and would believe it for an hour. A write whose message to a member was given
    up after `WAIT_S`, on a machine that stands still, promises nothing."""
    if world.flags["prefetch"] != "off":
        pytest.skip("prefetch changes nothing of it")
    nodes, stale, judged = world.nodes.all, 0, 0
    written = [Stored(f"written/{number}", b"-") for number in range(8)]
    for stored in written:
        for node in nodes:
            assert put(node, stored) == 200
            assert body(node, stored.key) == stored.data
    for number in range(rounds(10, of=25)):
        new = Stored(written[number % len(written)].key, world.rng.randbytes(64))
        through = nodes[number % len(nodes)]
        began = time.perf_counter()
        assert put(through, new) == 200
        in_time = time.perf_counter() - began < WAIT_S
        others = [node for node in nodes if node is not through]
        seen = [body(node, new.key) for node in others]
        judged += in_time
        stale += in_time and any(data != new.data for data in seen)
    assert stale == 0
    assert judged > 0
