"""Properties of the planner on random traces: its invariants for any reads, and the cost of each event."""

from __future__ import annotations

from collections import Counter
from random import Random
from statistics import median
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.ahead.dataset import templates
from outrider.core.ahead.hints import Hint
from outrider.core.model import ObjectRef
from outrider.simulator.run import Machine, Simulation
from outrider.simulator.scenarios import ORDERS, JobSpec, Shards, order_of
from tests.support.counted_work import calls_of
from tests.support.planner import BLOCK, PlannedStore
from tests.support.trials import SCALE

# `make soak` takes a hundred.
MIXTURES, AT_ONCE = (100, 5) if SCALE > 1 else (3, 3)
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


@given(
    seed=st.integers(0, 2**32), objects=st.integers(4, 24), blocks=st.integers(1, 4), capacity=st.integers(2, 40),
    in_epochs=st.booleans(), page=st.sampled_from([0, 1, 5, 24]), odd=st.booleans(),
)  # fmt: skip
def test_for_any_trace_the_budget_holds_and_no_block_is_wanted_twice_or_taken_from_a_reader(
    seed: int, objects: int, blocks: int, capacity: int, in_epochs: bool, page: int, odd: bool
) -> None:
    """Long traces of two clients are drawn from `seed`; half of them read in epochs, so that there is something to
    want.

    A LIST comes between the other events, in pages of `page` names, or not at all for 0. With `odd`, each name is a
    dataset of its own until there are six.
    """
    with patch.object(templates, "_SINGLE_NAMES_MAX", 5):
        follow_a_trace(Random(seed), PlannedStore(objects, blocks, capacity, odd=odd), page, in_epochs, seed % 3 == 0)


def follow_a_trace(chance: Random, store: PlannedStore, page: int, in_epochs: bool, with_plans: bool) -> None:
    objects, capacity = len(store.refs), store.capacity_blocks
    to_list = [(ref.key, store.size) for ref in store.refs] if page else []
    to_read: dict[str, list[ObjectRef]] = {"a": [], "b": []}
    hints: dict[str, Hint] = {}
    for _ in range(500):
        store.now += 0.01
        act, client = chance.choice("aarrrrrwwwllllPTD" if with_plans else "aarrrrrwwwllllP"), chance.choice("ab")
        if act == "a":
            to_read[client] = to_read[client] or chance.sample(store.refs, objects)
            ref = to_read[client].pop() if in_epochs else chance.choice(store.refs)
            if ref not in store.reading:
                store.ask(ref, client)
        elif act == "r" and store.reading:
            store.read_on(chance.choice(sorted(store.reading)))
        elif act == "w":
            store.take(store.planner.wants(store.now, (capacity - len(store.present)) * BLOCK, 8))
        elif act == "l" and store.outstanding:
            store.land(chance.choice(sorted(store.outstanding)))
        elif act == "P" and to_list:
            come, to_list = to_list[:page], to_list[page:]
            before = objects - len(come) - len(to_list)
            store.planner.discovery.listed("bucket", come, before=before, more=bool(to_list))
        elif act == "T":
            hint = hints.setdefault(client, Hint())
            store.planner.announced(client, chance.sample(store.refs, objects // 2), store.now, hint=hint)
        elif act == "D":
            store.planner.withdraw(hints.pop(client, Hint()), hints.values(), store.now)
        assert len(store.present) <= capacity


@pytest.mark.parametrize("readers", [1, 4])
@pytest.mark.parametrize("share", [0.2, 0.4, 0.6])
def test_a_prefetched_shard_is_kept_until_it_is_read(share: float, readers: int) -> None:
    """Each epoch has a new order. Any unread shard may be the next one, so no prefetched shard goes for another.
    `share`: of the dataset that the cache holds."""
    shards = Shards(60, 4 * MIB, "set")
    order = order_of("fresh", list(range(shards.count)), readers, 1)
    machine = Machine(int(share * shards.count * shards.size), 30 * readers * MIB, 0.02, block_bytes=MIB)
    _, *later = Simulation(machine, "epoch", [JobSpec("fresh", shards, order, 4, 10.0 * MIB)]).run()
    wasted = sum(epoch.wasted_bytes for epoch in later) / sum(epoch.dataset_bytes for epoch in later)
    assert wasted <= (0.025 if share < 0.3 else 0.0)


# A random reader beside epochs of a seed: without regard for the last use, the hits fall to 46 % of LRU's 74.
BESIDE_CHANCE = range(6, 7)


@pytest.mark.parametrize(
    "seeds", [BESIDE_CHANCE, *(range(begin, begin + AT_ONCE) for begin in range(0, MIXTURES, AT_ONCE))], ids=str
)
def test_the_budget_holds_and_the_hit_ratio_never_falls_below_that_of_lru_by_more_than_two_percent(
    seeds: range,
) -> None:
    worse = {seed: (lru, ours) for seed in seeds
             if (ours := hit_ratio(seed, "epoch")) < (lru := hit_ratio(seed, "lru")) - 0.02}  # fmt: skip
    assert not worse


def work_per_event(objects: int) -> dict[str, float]:
    """The median work of each kind of event in the second epoch, in function calls."""
    store = PlannedStore(objects, 1, objects // 4)
    store.planner.discovery.listed("bucket", [(ref.key, store.size) for ref in store.refs])
    work: dict[str, list[int]] = {"asked": [], "wants": [], "victims": []}
    for epoch in range(2):
        for ref in Random(epoch).sample(store.refs, objects):
            store.now += 0.01
            if epoch == 0 or len(work["asked"]) > 150:
                store.ask(ref)
            else:
                work["asked"].append(calls_of(lambda ref=ref: store.ask(ref)))  # type: ignore[misc]
                work["victims"].append(calls_of(lambda: next(store.planner.victims(), None)))
                work["wants"].append(calls_of(lambda: store.take(store.planner.wants(store.now, 0, 8))))
            store.read_on(ref)
            store.take(store.planner.wants(store.now, (store.capacity_blocks - len(store.present)) * BLOCK, 8))
            for block in sorted(store.outstanding):
                store.land(block)
    return {event: median(counts) for event, counts in work.items()}


def test_the_work_of_an_event_does_not_grow_with_the_number_of_objects() -> None:
    few, many = work_per_event(250), work_per_event(2000 if SCALE > 1 else 1000)
    for event, calls in many.items():
        assert calls <= 1.5 * few[event] + 5, (event, few, many)


def test_an_object_that_is_read_again_is_held_once() -> None:
    store = PlannedStore(3, 2, 10)
    for _ in range(3):
        store.ask(store.refs[0])
        store.read_on(store.refs[0])
        store.read_on(store.refs[0])
    assert Counter(block.version_id for block in store.present) == {store.ids[store.refs[0]]: 2}
