"""Bytes that are fetched in vain: a bucket is read once in the first epoch, and then less by about what the cache
holds."""

from __future__ import annotations

import pytest

from outrider.simulator.cluster import ClusterSimulation, SimNodes
from outrider.simulator.run import EpochResult, Machine, Simulation
from outrider.simulator.scenarios import JobSpec, OrderKind, Shards, order_of

MIB = 2**20
COUNT = 64


def epochs_of(
    order: OrderKind, size: int, cache: float, *, readers: int, rate: float, prefetch: bool = True
) -> list[EpochResult]:  # fmt: skip
    """Three epochs of `readers` readers that take `rate` bytes a second in all, from a bucket of 1.3 times that."""
    reads = order_of(order, list(range(COUNT)), readers, 1)
    job = JobSpec("train", Shards(COUNT, size), reads, 3, rate / readers)
    machine = Machine(int(cache * COUNT * size), 1.3 * rate, prefetch=prefetch)
    return Simulation(machine, "epoch", [job]).run()


def test_a_known_order_takes_no_more_room_from_later_hits_than_a_fill_lasts() -> None:
    first, *others = epochs_of("sequential", 24_000_000, 0.25, readers=1, rate=160e6)
    assert first.traffic <= 1.01
    assert max(epoch.traffic for epoch in others) <= 0.75 + 0.03
    assert min(epoch.hit_ratio for epoch in others) == 1.0, "and yet each object is there in time"


def test_readers_of_a_small_dataset_refetch_little_for_the_next_epoch() -> None:
    first, *others = epochs_of("sequential", 24_000_000, 0.25, readers=2, rate=160e6)
    assert first.traffic <= 1.01
    # Two objects are being read, and two have to be there when these end. A hundredth of an epoch, on top of the time
    # that a fill takes, would bring the mean from .786 to .791.
    assert max(epoch.traffic for epoch in others) <= 0.75 + 0.08
    assert sum(epoch.traffic for epoch in others) / 2 <= 0.79
    assert min(epoch.hit_ratio for epoch in others) == 1.0


def test_without_prefetch_eviction_alone_hits() -> None:
    _, *others = epochs_of("sequential", 24_000_000, 0.25, readers=2, rate=160e6, prefetch=False)
    assert min(epoch.hit_ratio for epoch in others) >= 0.20


@pytest.mark.parametrize("readers", [1, 4, 8])
def test_a_first_epoch_in_an_order_by_chance_reads_the_bucket_once(readers: int) -> None:
    """Nothing is evicted for a repeated order that no read has proven, and a miss of the readers evicts no object that
    waits to be read."""
    first, *_ = epochs_of("fresh", 16 * MIB, 0.40, readers=readers, rate=readers * 50.0 * MIB)
    assert first.traffic <= 1.01
    assert first.waste == 0.0


def test_nodes_whose_shards_are_dealt_anew_read_each_block_once_and_hit_what_they_hold() -> None:
    """Four nodes that hold a quarter of the data together. Objects that are being read take some of that room."""
    job = JobSpec("train", Shards(COUNT, 16 * MIB), order_of("fresh", list(range(COUNT)), 4, 1), 3, 40e6)
    machine = Machine(COUNT * 16 * MIB // 16, 1.3 * 4 * 40e6, 0.03, 4 * MIB, step_s=1.0)
    first, *others = ClusterSimulation(SimNodes(4, machine, 1e9, 40e6, 1), "cluster", job).run()
    assert first.read.traffic <= 1.01
    assert max(epoch.read.traffic for epoch in others) <= 0.80
