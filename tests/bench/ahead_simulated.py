"""The goals of prefetch, simulated: `python -m tests.bench.ahead_simulated` prints goal, measured value, met or not.

1,000 equal shards of 64 MiB, 8 readers of one client at 50 MiB/s each, an origin of 1.3 times that rate with 50 ms
latency. A hit is a shard that was cached whole when its reader requested it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial

from outrider.simulator.run import EpochResult, Machine, Simulation
from outrider.simulator.scenarios import JobSpec, OrderKind, Shards, order_of

MIB = 2**20
SHARDS, SHARD_BYTES, READERS, READER_BYTES_S = 1000, 64 * MIB, 8, 50.0 * MIB
BANDWIDTH = 1.3
SEEDS = (1, 2)


@dataclass(frozen=True)
class Row:
    """`goal`, such as ">= 0.97", is a bound for the worst of the seeds. `why`: the reason why it cannot be met."""

    world: str
    figure: str
    goal: str
    measure: Callable[[int], float]
    why: str = ""

    def met(self, measured: float) -> bool:
        sign, _, bound = self.goal.partition(" ")
        return measured <= float(bound) if sign == "<=" else measured >= float(bound)

    def worst(self, seeds: tuple[int, ...] = SEEDS) -> float:
        found = [self.measure(seed) for seed in seeds]
        return max(found) if self.goal.startswith("<=") else min(found)


@dataclass(frozen=True)
class World:
    """One job over `shards` shards behind a cache that holds `share` of them. Equal worlds are simulated once."""

    shards: int
    kind: OrderKind
    share: float
    policy: str = "epoch"
    announced: bool = False
    bandwidth: float = BANDWIDTH


def job(
    kind: OrderKind, seed: int, shards: int, *, name: str = "train", epochs: int = 3, start_shards: float = 0,
    client: str = "10.0.0.1", announced: bool = False,
) -> JobSpec:  # fmt: skip
    start_s = start_shards * SHARD_BYTES / (READERS * READER_BYTES_S)
    order = order_of(kind, list(range(shards)), READERS, seed)
    return JobSpec(name, Shards(shards, SHARD_BYTES, name), order, epochs, READER_BYTES_S, client, start_s, announced)


def run(
    jobs: list[JobSpec], cached_shards: float, policy: str = "epoch", *, bandwidth: float = BANDWIDTH,
    consumers: int = 1,
) -> tuple[EpochResult, ...]:  # fmt: skip
    rate = bandwidth * consumers * READERS * READER_BYTES_S
    return tuple(Simulation(Machine(int(cached_shards * SHARD_BYTES), rate), policy, jobs).run())


@cache
def alone(world: World, seed: int) -> tuple[EpochResult, ...]:
    only = job(world.kind, seed, world.shards, announced=world.announced)
    return run([only], world.share * world.shards, world.policy, bandwidth=world.bandwidth)


@cache
def two_jobs(shards: int, one_client: bool, seed: int) -> tuple[EpochResult, ...]:
    clients = ("10.0.0.1", "10.0.0.1" if one_client else "10.0.0.2")
    jobs = [job("repeated", seed, shards, client=client, start_shards=50 * i) for i, client in enumerate(clients)]
    return run(jobs, 0.25 * shards, consumers=2)


@cache
def switched(shards: int, seed: int) -> tuple[EpochResult, ...]:
    first = job("repeated", seed, shards, name="one")
    second = job("repeated", seed, shards, name="two", start_shards=3.2 * shards)
    return run([first, second], 0.25 * shards)


def hits(world: World, seed: int, begin: int = 1) -> float:
    """The hit ratio of the worst epoch from number `begin` on, counted from 0."""
    return min(epoch.hit_ratio for epoch in alone(world, seed)[begin:])


def hits_from_the_first(world: World, seed: int) -> float:
    return hits(world, seed, 0)


def traffic(world: World, seed: int) -> float:
    return max(epoch.traffic for epoch in alone(world, seed)[1:])


def first_hits(world: World, seed: int) -> float:
    return alone(world, seed)[0].hit_ratio


def first_traffic(world: World, seed: int) -> float:
    return alone(world, seed)[0].traffic


def after_switch(shards: int, seed: int) -> float:
    """Hits of the new dataset's second epoch, divided by those of the old dataset's last epoch."""
    epochs = switched(shards, seed)
    return epochs[4].hit_ratio / epochs[2].hit_ratio


def less_than_lru(world: World, seed: int) -> float:
    ours, lru = alone(world, seed), alone(replace(world, policy="lru"), seed)
    return min(our.hit_ratio - its.hit_ratio for our, its in zip(ours[1:], lru[1:], strict=True))


def traffic_of_lru(world: World, seed: int) -> float:
    ours, lru = alone(world, seed), alone(replace(world, policy="lru"), seed)
    return sum(epoch.origin_bytes for epoch in ours) / sum(epoch.origin_bytes for epoch in lru)


def hits_of_both(shards: int, one_client: bool, seed: int) -> float:
    return min(epoch.hit_ratio for epoch in two_jobs(shards, one_client, seed)[2:])


def half_a_shard(shards: int, seed: int) -> float:
    return max(epoch.traffic for epoch in run([job("repeated", seed, shards)], 0.5)[1:])


FLUID = (
    "at 1.3 x, 0.3 shards can be fetched ahead for each one read: the integral of 0.3 r / (1 - r) is 0.44 of an order"
    " that nobody can know, a little more as the readers' stalls give time"
)


def rows(shards: int = SHARDS) -> Iterator[Row]:
    world_of = partial(World, shards)
    for share in (0.10, 0.25, 0.50):
        name, room, world = (
            f"repeated order, cache {share:.0%}",
            f"<= {1 - share + 0.03:.2f}",
            world_of("repeated", share),
        )
        yield Row(name, "hits from epoch 2", ">= 0.97", partial(hits, world))
        yield Row(name, "traffic from epoch 2", room, partial(traffic, world))
    for share, goal in ((0.10, 0.28), (0.25, 0.57), (0.50, 0.80)):
        name, room = f"new order each epoch, cache {share:.0%}", f"<= {1 - share + 0.03:.2f}"
        yield Row(name, "hits from epoch 2", f">= {goal:.2f}", partial(hits, world_of("fresh", share)))
        yield Row(name, "traffic from epoch 2", room, partial(traffic, world_of("fresh", share)))
    for share in (0.10, 0.25):
        name, room = f"order of a sampler's seed, cache {share:.0%}", f"<= {1 - share + 0.03:.2f}"
        yield Row(name, "hits, epoch 1 too", ">= 0.94", partial(hits_from_the_first, world_of("seeded", share)))
        yield Row(name, "hits from epoch 2", ">= 0.97", partial(hits, world_of("seeded", share)))
        yield Row(name, "traffic from epoch 2", room, partial(traffic, world_of("seeded", share)))
    for share in (0.10, 0.25):
        name, room = f"announced order, cache {share:.0%}", f"<= {1 - share + 0.03:.2f}"
        announced = world_of("fresh", share, announced=True)
        yield Row(name, "hits, epoch 1 too", ">= 0.98", partial(hits_from_the_first, announced))
        yield Row(name, "traffic from epoch 2", room, partial(traffic, announced))
    firsts: dict[OrderKind, str] = {"repeated": "WebDataset's order", "sequential": "in order"}
    for kind, name in firsts.items():
        yield Row(f"first epoch, {name}, cache 25%", "hits", ">= 0.50", partial(first_hits, world_of(kind, 0.25)))
        yield Row(f"first epoch, {name}, cache 25%", "traffic", "<= 1.02", partial(first_traffic, world_of(kind, 0.25)))
    chance = world_of("fresh", 0.25)
    yield Row("first epoch, by chance, cache 25%", "hits", ">= 0.50", partial(first_hits, chance), FLUID)
    yield Row("first epoch, by chance, cache 25%", "traffic", "<= 1.02", partial(first_traffic, chance))
    yield Row("the same, bandwidth 1.4 x", "hits", ">= 0.50", partial(first_hits, replace(chance, bandwidth=1.4)))
    chances: tuple[OrderKind, ...] = ("replacement", "zipf")
    for kind in chances:
        yield Row(f"{kind}, cache 25%", "hits less LRU's", ">= -0.01", partial(less_than_lru, world_of(kind, 0.25)))
        yield Row(f"{kind}, cache 25%", "traffic of LRU's", "<= 1.05", partial(traffic_of_lru, world_of(kind, 0.25)))
    for one_client in (False, True):
        name = "two jobs 50 shards apart" + (", one client" if one_client else "")
        yield Row(name, "hits of each from epoch 2", ">= 0.50", partial(hits_of_both, shards, one_client))
    yield Row(
        "dataset switched, cache 25%", "hits after one epoch, of before", ">= 0.90", partial(after_switch, shards)
    )
    yield Row("cache of half a shard", "traffic", "<= 1.00", partial(half_a_shard, shards // 20))
    yield Row("dataset smaller than the cache", "hits from epoch 2", ">= 1.00", partial(hits, world_of("fresh", 1.2)))


def main() -> None:
    argparse.ArgumentParser(prog="python -m tests.bench.ahead_simulated", description=__doc__).parse_args()
    print(f"{'world':38} {'figure':32} {'goal':>8} {'measured':>8}")
    for row in rows():
        measured = row.worst()
        verdict = "met" if row.met(measured) else f"NOT MET: {row.why}" if row.why else "NOT MET"
        print(f"{row.world:38} {row.figure:32} {row.goal:>8} {measured:8.3f}  {verdict}", flush=True)


if __name__ == "__main__":
    main()
