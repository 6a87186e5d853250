"""Eviction where nothing is fetched ahead, or the line is too slow for it: beside LRU, and beside Belady's optimum."""

from __future__ import annotations

from functools import cache
from itertools import product

import pytest

from outrider.simulator.run import Machine, Simulation
from outrider.simulator.scenarios import JobSpec, OrderKind, Shards, order_of

MIB = 2**20
COUNT, BLOCKS, READERS, READER_BYTES_S, EPOCHS = 80, 4, 4, 10.0 * MIB, 4
SHARE = 0.25
# Each reader has a shard under way, which takes room beside those that stay.
UNDER_WAY = READERS / COUNT
# The bandwidth as a multiple of the bytes that the readers could consume, and whether the planner prefetches.
LINES = {"off": (1.3, False), "slow": (0.4, True)}
EPOCH_ORDERS: tuple[OrderKind, ...] = ("repeated", "fresh", "seeded")
CHANCE: tuple[OrderKind, ...] = ("replacement", "zipf")


@cache
def kept(order: OrderKind, line: str, policy: str, announced: str = "") -> tuple[float, float]:
    """Two shares of the later epochs, in which the planner knows the set: whole shards that were hits, and bytes that
    did not come from the origin."""
    shards = Shards(COUNT, BLOCKS * MIB)
    lists = order_of(order, list(range(COUNT)), READERS, 1)
    job = JobSpec("train", shards, lists, EPOCHS, READER_BYTES_S, announced=bool(announced))
    bandwidth, prefetch = LINES[line]
    machine = Machine(
        int(SHARE * COUNT * shards.size),
        bandwidth * READERS * READER_BYTES_S,
        0.02,
        MIB,
        prefetch=prefetch,
        step_s=0.001 if order == "seeded" else 1.0,  # a seed is searched where there is one
    )
    later = Simulation(machine, policy, [job]).run()[2:]
    return sum(epoch.hit_ratio for epoch in later) / len(later), 1 - sum(epoch.traffic for epoch in later) / len(later)


@pytest.mark.parametrize(("order", "line", "announced"), [*product(EPOCH_ORDERS, LINES, ["", "announced"])])
def test_a_cache_spares_the_origin_its_share_of_each_epoch(order: OrderKind, line: str, announced: str) -> None:
    """No policy can spare more: an epoch reads no byte twice."""
    assert kept(order, line, "epoch", announced)[1] >= SHARE - UNDER_WAY


@pytest.mark.parametrize(("order", "tolerance"), [("repeated", 0.0), ("fresh", 0.05), ("seeded", 0.05)])
def test_without_prefetch_whole_shards_stay(order: OrderKind, tolerance: float) -> None:
    """Parts of many shards would spare the origin as much, but each read of one of them would wait for the origin."""
    assert kept(order, "off", "epoch")[0] >= SHARE - UNDER_WAY - tolerance


@pytest.mark.parametrize(
    ("order", "line", "announced"),
    [*product(EPOCH_ORDERS, LINES, ["", "announced"]), *product(CHANCE, LINES, [""])],
)
def test_hits_are_hardly_ever_fewer_than_those_of_lru(order: OrderKind, line: str, announced: str) -> None:
    ours, lru = kept(order, line, "epoch", announced), kept(order, line, "lru")
    assert ours[0] >= lru[0] - 0.02
    assert ours[1] >= lru[1] - 0.02
