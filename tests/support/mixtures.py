"""Random mixtures of simulated jobs and datasets that may meet at one proxy."""

from __future__ import annotations

from random import Random

from outrider.simulator.run import Machine, Simulation
from outrider.simulator.scenarios import ORDERS, JobSpec, Shards, order_of

MIB = 2**20
# With fewer reads than this, chance would decide the comparison.
CHANCE_READS = 1200


def mixture(seed: int) -> tuple[list[JobSpec], Machine]:
    """One to three jobs over one to three datasets, in any order of reads; some share an address, some read only a
    part."""
    chance = Random(seed)
    sets: list[Shards] = []
    jobs: list[JobSpec] = []
    demand = 0.0
    for number in range(chance.choice([1, 1, 2, 2, 3])):
        if sets and chance.random() < 0.5:
            shards = chance.choice(sets)
        else:
            shards = Shards(chance.randint(24, 160), chance.choice([1, 4, 8]) * MIB, f"set-{'abc'[number]}")
            sets.append(shards)
        kind, readers = chance.choice(ORDERS), chance.choice([1, 2, 4, 8])
        part = list(range(0, shards.count, 2 if chance.random() < 0.2 else 1))
        epochs = chance.choice([1, 2, 4, 6])
        if kind in ("replacement", "zipf"):
            epochs = max(epochs, CHANCE_READS // len(part))
        rate = chance.choice([2.0, 10.0]) * MIB
        start_s = chance.choice([0, 0.05, 0.3, 2, 3]) * shards.count * shards.size / (readers * rate)
        order = order_of(kind, part, readers, chance.choice([1, seed]))
        jobs.append(JobSpec(kind, shards, order, epochs, rate, chance.choice("xxy"), start_s))
        demand += readers * rate
    data_bytes = sum(shards.count * shards.size for shards in sets)
    share, bandwidth = chance.choice([0.1, 0.25, 0.5, 0.8, 1.1]), chance.choice([0.7, 1.3, 1.3, 3])
    return jobs, Machine(int(share * data_bytes), bandwidth * demand, 0.02, block_bytes=MIB)


def hit_ratio(seed: int, policy: str) -> float:
    jobs, machine = mixture(seed)
    run = Simulation(machine, policy, jobs)
    epochs = run.run()
    assert 0 < run.store.used_bytes_max <= machine.capacity_bytes, "the store exceeds its budget"
    return sum(epoch.hits for epoch in epochs) / sum(epoch.opened for epoch in epochs)
