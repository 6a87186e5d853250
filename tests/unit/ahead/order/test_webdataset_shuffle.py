"""The search for the seed of WebDataset's shard shuffle. `test_webdataset_draws.py` tests the draws themselves."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from random import Random
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.ahead.order import order_search, seed_state, webdataset_search, webdataset_shuffle
from outrider.core.ahead.order.torch_sampler import at_once
from outrider.core.ahead.order.webdataset_search import SearchResult
from outrider.core.ahead.order.webdataset_shuffle import (
    ALL_SEEDS,
    Shuffle,
    drawn,
    next_shuffles,
)
from outrider.simulator.run import EpochResult, Machine, Simulation
from outrider.simulator.scenarios import JobSpec, Order, Shards
from tests.support.planner import Sampled
from tests.support.trials import SCALE

T = TypeVar("T")
few_seeds = pytest.mark.usefixtures("few")

COUNT, WORKERS, LARGE = 1000, 8, 10_000
MIB = 2**20
# A search among all seeds takes ten seconds; its short form is for `make test`.
SEEDS = ALL_SEEDS if SCALE > 1 else 50_001
FAR = 600_123 if SCALE > 1 else 10_123
OWN = SEEDS * 3 // 5 + 123
SeedOf = Callable[[int, int], int]


def shuffled(
    count: int = COUNT, workers: int = WORKERS, *, seed: int = 42, buffer: int = LARGE, ranks: int = 1,
    mine: Sequence[int] = (0,), seed_of: SeedOf | None = None,
) -> Order:  # fmt: skip
    """The reads of each worker of these ranks in an epoch. `seed_of` takes a rank and an epoch."""

    def order(epoch: int) -> list[list[int]]:
        lists = []
        for rank in mine:
            drawn_by = seed if seed_of is None else seed_of(rank, epoch)
            for worker in range(workers):
                own = range(rank, count, ranks)[worker::workers]
                lists.append([own[place] for place in drawn(Random(drawn_by), len(own), buffer)])
        return lists

    return order


def beside_each_other(lists: list[list[int]], chance: Random) -> list[int]:
    """Workers that are about equally fast, and drift."""
    reads = []
    for its in lists:
        at = chance.random()
        for shard in its:
            reads.append((at, shard))
            at += chance.uniform(0.7, 1.3)
    return [shard for _, shard in sorted(reads)]


def first_reads(order: Order, rounds: int, epoch: int = 0, chance: int = 1) -> list[int]:
    lists = order(epoch)
    return beside_each_other(lists, Random(chance))[: rounds * len(lists)]


def found(reads: list[int], count: int = COUNT, tried: int = 0) -> SearchResult:
    workers = at_once(webdataset_search.workers_of(reads, count))
    return at_once(webdataset_search.found(reads, count, workers, tried))


def steps_of(work: Generator[None, None, T]) -> tuple[T, int]:
    steps = 0
    while True:
        try:
            next(work)
            steps += 1
        except StopIteration as end:
            return end.value, steps


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """WebDataset draws its own seed from `SEEDS`."""
    monkeypatch.setattr(webdataset_search, "ALL_SEEDS", SEEDS)
    monkeypatch.setattr(order_search, "SHUFFLE_SEEDS_MAX", 2 * SEEDS)
    monkeypatch.setattr(seed_state, "SHUFFLE_SEEDS_MAX", 2 * SEEDS)


# -- how it is found -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chance", [1, 2, 3] if SCALE > 1 else [1])
@pytest.mark.parametrize(
    ("count", "workers", "seed", "rounds"),
    [(1000, 8, 42, 5), (1000, 1, 42, 16), (1000, 2, 0, 9), (300, 4, 4095, 7), (100, 8, 42, 9), (5000, 64, 3000, 5)],
)
def test_a_small_seed_is_found_by_a_few_shards_of_each_worker(
    count: int, workers: int, seed: int, rounds: int, chance: int
) -> None:
    order = shuffled(count, workers, seed=seed)
    shuffle = found(first_reads(order, rounds, chance=chance), count).shuffle
    assert shuffle is not None
    assert (shuffle.workers, dict(shuffle.seeds)) == (workers, dict.fromkeys(range(workers), seed))


def test_webdatasets_own_seed_is_found_among_a_million() -> None:
    reads = first_reads(shuffled(seed=FAR), 6)
    (search, steps), last = steps_of(webdataset_search.found(reads, COUNT, WORKERS)), FAR
    assert search.shuffle is not None
    assert set(dict(search.shuffle.seeds).values()) == {last}
    # The search runs in steps of 0.1 ms.
    assert steps > last / 30


@few_seeds
def test_after_too_few_reads_the_search_says_how_many_it_needs() -> None:
    order = shuffled(seed=OWN)
    early = found(first_reads(order, 3))
    assert early.shuffle is None
    assert 3 * WORKERS < early.search_at <= 5 * WORKERS
    # The seeds that were tried until then need not be tried again.
    assert 0 < early.tried < OWN
    later = found(first_reads(order, 6), tried=OWN)
    assert later.shuffle is not None
    assert found(first_reads(order, 6), tried=OWN + 1).shuffle is None


def test_a_seed_is_found_as_well_when_the_names_are_known_late() -> None:
    assert found(first_reads(shuffled(seed=FAR), 40)).shuffle is not None


def test_a_shard_from_a_small_buffer_shows_less_of_the_seed() -> None:
    order = shuffled(seed=FAR, buffer=20)
    early = found(first_reads(order, 6))
    assert early.tried < FAR
    later = found(first_reads(order, 9), tried=early.tried)
    assert later.shuffle is not None


def test_a_single_worker_is_recognised_by_the_shards_that_it_leaves_for_later() -> None:
    search = found(first_reads(shuffled(5000, 1, seed=FAR), 16), 5000)
    assert search.shuffle is not None


@pytest.mark.parametrize("buffer", [100, 50, 20, 10])
def test_a_small_buffer_is_recognised_by_the_shards_that_are_not_read(buffer: int) -> None:
    search = found(first_reads(shuffled(5000, 4, buffer=buffer), 24), 5000)
    assert search.shuffle is not None
    assert search.shuffle.buffer == buffer


def test_a_buffer_that_shows_only_later_is_found_then() -> None:
    """The first shards from a buffer of 100 and from one of 1,000 are nearly the same."""
    order = shuffled(4000, 4, buffer=100)
    search = found(first_reads(order, 6), 4000)
    assert search.shuffle is not None
    better = at_once(webdataset_shuffle.as_read(search.shuffle, first_reads(order, 60), 4000))
    assert better == search.shuffle._replace(buffer=100)


def test_each_rank_of_a_node_has_a_seed_of_its_own() -> None:
    order = shuffled(2000, 2, ranks=4, mine=range(4), seed_of=lambda rank, _: 100 * rank)
    search = found(first_reads(order, 6), 2000)
    assert search.shuffle is not None
    assert search.shuffle.workers == 8
    assert dict(search.shuffle.seeds) == {rank + 4 * worker: 100 * rank for rank in range(4) for worker in range(2)}


@few_seeds
def test_the_seeds_of_several_ranks_are_found_all_or_none() -> None:
    order = shuffled(2000, 2, ranks=4, mine=range(4), seed_of=lambda rank, _: 100 if rank else 2**40)
    assert found(first_reads(order, 7), 2000) == SearchResult(None, SEEDS, 0)


@given(st.integers(2**32, 2**64), st.sampled_from([100, 1000, 5000]), st.integers(16, 96))
def test_random_reads_have_neither_workers_nor_a_seed(chance: int, count: int, reads: int) -> None:
    read = Random(chance).sample(range(count), min(reads, count - 1))
    assert at_once(webdataset_search.workers_of(read, count)) == 1
    search = found(read, count)
    assert search.shuffle is None
    # A million seeds are not tried for them.
    assert search.tried <= 4096


@pytest.mark.parametrize("reads", [16, 40, 96, 500])
def test_shards_that_are_read_in_their_order_do_not_look_like_several_workers(reads: int) -> None:
    about = beside_each_other([list(range(worker, COUNT, WORKERS)) for worker in range(WORKERS)], Random(1))
    for order in (range(COUNT), about):
        assert at_once(webdataset_search.workers_of(order[:reads], COUNT)) == 1


@pytest.mark.parametrize("workers", [2, 3, 8, 16, 48])
@pytest.mark.parametrize("rounds", [3, 6, 30] if SCALE > 1 else [3, 30])
def test_the_number_of_workers_is_neither_halved_nor_doubled(workers: int, rounds: int) -> None:
    reads = first_reads(shuffled(6000, workers, seed=99_999), max(rounds, 16 // workers))
    assert at_once(webdataset_search.workers_of(reads, 6000)) == workers


def test_the_next_epoch_has_the_same_seeds_or_the_next_ones() -> None:
    shuffle = Shuffle(2, 1000, ((0, 7), (1, 7)))
    same, other = next_shuffles(shuffle)
    for expected, seed in ((same, 7), (other, 8)):
        reads = first_reads(shuffled(COUNT, 2, seed=seed), 2)
        assert at_once(webdataset_shuffle.next_of((same, other), reads, COUNT)) == expected
    none = at_once(webdataset_shuffle.next_of((same, other), first_reads(shuffled(COUNT, 2, seed=9), 2), COUNT))
    assert none is None


# -- what comes of it ----------------------------------------------------------------------------------------------


def simulated(
    order: Order, count: int = COUNT, epochs: int = 3, size: int = 8 * MIB, **machine: Any
) -> list[EpochResult]:
    rate = 50.0 * MIB
    job = JobSpec("train", Shards(count, size), order, epochs, rate)
    readers = len(order(0))
    return Simulation(Machine(count * size // 4, 1.3 * rate * readers, step_s=0, **machine), "epoch", [job]).run()


WORLDS: dict[str, tuple[Order, int]] = {
    "a seed": (shuffled(), COUNT),
    "a seed of WebDataset's own": (shuffled(seed=123_456), COUNT),
    "detshuffle": (shuffled(seed_of=lambda _, epoch: 7 + epoch), COUNT),
    "a small buffer": (shuffled(buffer=100), COUNT),
    "the first names first": (shuffled(3000, 2), 3000),
    "one worker": (shuffled(workers=1), COUNT),
    "four ranks": (shuffled(workers=2, ranks=4, mine=range(4), seed_of=lambda rank, epoch: 50 * rank + epoch), COUNT),
}


# The rest is in the long form.
@pytest.mark.parametrize("world", WORLDS if SCALE > 1 else ["detshuffle", "a small buffer", "four ranks"])
def test_an_unmodified_webdataset_job_is_predicted_from_its_first_epoch_on(world: str) -> None:
    first, *later = simulated(*WORLDS[world], epochs=3 if SCALE > 1 else 2)
    assert first.hit_ratio > 0.88
    assert first.traffic < 1.005
    assert min(epoch.hit_ratio for epoch in later) > 0.97
    assert max(epoch.traffic for epoch in later) < 0.8


@pytest.mark.parametrize("seed", [42, 2**40])
@few_seeds
def test_for_a_node_that_has_some_of_the_ranks_no_shards_of_the_others_are_prefetched(seed: int) -> None:
    """Two of eight ranks. Their workers share an order, whether their seed is tried or not."""
    epochs = simulated(shuffled(4000, 4, ranks=8, mine=(2, 3), seed=seed), 4000, 2)
    assert [epoch.opened for epoch in epochs] == [1000, 1000]
    for epoch in epochs:
        # The first shards of the next epoch are among them.
        assert epoch.origin_bytes < 1.08 * 1000 * 8 * MIB
    assert epochs[0].hit_ratio > (0.8 if seed == 42 else 0.4)


def test_the_shards_of_a_worker_that_begins_late_are_expected() -> None:
    *lists, late = shuffled(800, 8)(0)
    proxy = Sampled(800)
    early = beside_each_other(lists, Random(1))
    proxy.foreseen(early[:60], 24)
    proxy.foreseen([late[0], late[1]], 24)
    rest = beside_each_other([*(its[10:] for its in lists), late[2:]], Random(2))
    rest = [shard for shard in rest if shard not in early[:60]]
    assert proxy.foreseen(rest, 48) > 0.8


@few_seeds
def test_workers_of_other_nodes_are_not_taken_for_late_ones() -> None:
    *lists, late = shuffled(800, 8, seed=2**40)(0)
    proxy = Sampled(800)
    proxy.foreseen(beside_each_other(lists, Random(1))[:60], 24)
    [dataset] = proxy.planner.registry.datasets()
    epoch = dataset.epochs()[-1]
    assert (epoch.is_dealt, len(epoch.agenda)) == (True, 700)
    proxy.foreseen(late[:1], 24)
    assert not epoch.is_dealt
    key = dataset.names.find(proxy.refs[late[1]].key)
    assert key is not None
    assert epoch.to_come(key)


def test_the_search_begins_as_soon_as_enough_is_read() -> None:
    proxy = Sampled(COUNT)
    proxy.foreseen(first_reads(shuffled(seed=42), 5, chance=2)[:37], 24)
    [dataset] = proxy.planner.registry.datasets()
    assert isinstance(dataset.epochs()[-1].seed_state.draw, Shuffle)


def test_workers_that_begin_the_next_epoch_while_others_end_theirs_are_predicted_in_both() -> None:
    """This is how `.repeat()` reads."""
    epochs = [shuffled(COUNT, 8)(epoch) for epoch in range(3)]
    reads = beside_each_other(
        [[shard for its in lists for shard in its] for lists in zip(*epochs, strict=True)], Random(3)
    )
    proxy = Sampled(COUNT)
    proxy.foreseen(reads[: COUNT // 2], 24)
    assert proxy.foreseen(reads[COUNT // 2 : -250], 8 * WORKERS) > 0.95
    # The last shards of an epoch are neither padding nor part of the next epoch.
    assert proxy.foreseen(reads[-250:], 8 * WORKERS) > 0.99


def test_the_first_shards_of_the_next_epoch_are_not_taken_for_padding_of_this_one() -> None:
    """One worker has begun the next epoch, and the others have one shard left each."""
    lists = shuffled()(0)
    left = {its[-1] for its in lists[1:]}
    proxy = Sampled(COUNT)
    proxy.foreseen([read for read in beside_each_other(lists, Random(1)) if read not in left], 24)
    [dataset] = proxy.planner.registry.datasets()
    assert dataset.epochs()[-1].number == 0
    proxy.read(lists[0][:1])
    key = dataset.names.find(proxy.refs[lists[0][0]].key)
    assert key is not None
    epoch = dataset.epochs()[-1]
    assert (epoch.number, epoch.unread(key)) == (1, False)


def test_a_found_shuffle_is_given_up_when_the_reads_contradict_it() -> None:
    """A job over the first names of a dataset: its shuffle begins as one over the whole dataset would."""
    first, second = simulated(shuffled(900), COUNT, 2)
    assert first.hit_ratio > 0.4
    assert first.waste < 0.1
    assert second.hit_ratio > 0.95


@few_seeds
@pytest.mark.skipif(SCALE == 1, reason="in `make soak`")
def test_the_search_changes_nothing_for_random_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    def fresh() -> list[tuple[float, float]]:
        def order(epoch: int) -> list[list[int]]:
            read = Random(f"no seed {epoch}").sample(range(COUNT), COUNT)
            return [read[worker::WORKERS] for worker in range(WORKERS)]

        return [(epoch.hit_ratio, epoch.traffic) for epoch in simulated(order, epochs=2)]

    with_it = fresh()
    monkeypatch.setattr(webdataset_search, "_SMALL_SEEDS", 0)
    assert fresh() == with_it


@few_seeds
def test_a_seed_that_is_found_after_its_epoch_gives_the_seed_of_the_next_one() -> None:
    proxy = Sampled(COUNT)
    for epoch in range(2):
        for read in beside_each_other(shuffled(seed=OWN + epoch)(0), Random(epoch)):
            proxy.read([read])
            # The search gets some seconds in all, and needs a minute.
            for _ in zip(range(20 * SEEDS // ALL_SEEDS), proxy.steps(), strict=False):
                pass
    for _ in proxy.steps():
        pass
    assert proxy.foreseen(beside_each_other(shuffled(seed=OWN + 2)(0), Random(2)), 3 * WORKERS) > 0.95


@few_seeds
def test_a_search_among_all_seeds_goes_on_during_reads_and_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = []
    search = webdataset_search.found

    def counted(*args: Any) -> Generator[None, None, SearchResult]:
        begun.append(len(args[0]))
        return (yield from search(*args))

    monkeypatch.setattr(webdataset_search, "found", counted)
    proxy = Sampled(COUNT)
    [*reads] = beside_each_other(shuffled(seed=2**40)(0), Random(1))
    steps = proxy.steps()
    for read in reads[:500]:
        proxy.read([read])
        for _ in range(20 if SCALE > 1 else 10):
            next(steps, None)
            steps = proxy.steps()
    for _ in proxy.steps():
        pass
    proxy.foreseen(reads[500:900], 24)
    # One search for the small seeds and one for all seeds, each with the evidence that it needs, and none after that.
    assert len(begun) <= 4
    [dataset] = proxy.planner.registry.datasets()
    assert dataset.epochs()[-1].seed_state.seeds_tried[WORKERS] == SEEDS


# -- workers that are not alike --------------------------------------------------------------------------------------


def by_pace(lists: list[list[int]], paces: Sequence[float], late: Sequence[float]) -> list[int]:
    reads = []
    for number, (its, pace, begin) in enumerate(zip(lists, paces, late, strict=True)):
        reads += [(begin + (place + number / 100) / pace, shard) for place, shard in enumerate(its)]
    return [shard for _, shard in sorted(reads)]


def test_workers_that_are_faster_than_others_are_recognised() -> None:
    paces = [1, 0.8, 1.1, 0.7, 1.3, 0.9, 1.2, 1]
    proxy = Sampled(COUNT)
    reads = by_pace(shuffled()(0), paces, [0] * WORKERS)
    proxy.foreseen(reads[:200], 24)
    assert proxy.foreseen(reads[200:], 3 * WORKERS) > 0.95
    assert proxy.foreseen(reads, 3 * WORKERS) > 0.95


@pytest.mark.parametrize("seed", [42, 77])
def test_a_rank_that_begins_when_the_seed_of_the_others_is_known_joins_the_epoch(seed: int) -> None:
    order = shuffled(600, 4, ranks=2, mine=range(2), seed_of=lambda rank, _: seed if rank else 42)
    reads = by_pace(order(0), [1] * 8, [0] * 4 + [12] * 4)
    proxy = Sampled(600)
    proxy.foreseen(reads[:200], 24)
    [dataset] = proxy.planner.registry.datasets()
    assert len(dataset.epochs()[-1].agenda) == 600
    first = proxy.foreseen(reads[200:], 3 * WORKERS)
    # The new rank has a known seed, which its first reads prove.
    assert first > 0.9 or seed != 42
    assert proxy.foreseen(reads, 3 * WORKERS) > 0.9


def test_an_order_that_was_drawn_from_the_first_pages_of_a_list_is_drawn_anew_when_it_goes_on() -> None:
    proxy = Sampled(0)
    refs = Sampled(3000).refs
    proxy.refs = refs
    entries = [(ref.key, 110_000) for ref in refs]
    proxy.planner.discovery.listed("bucket", entries[:1000], more=True)
    reads = beside_each_other(shuffled(3000, 2)(0), Random(1))
    proxy.foreseen(reads[:30], 12)
    proxy.planner.discovery.listed("bucket", entries[1000:])
    proxy.foreseen(reads[30:200], 12)
    assert proxy.foreseen(reads[200:1000], 12) > 0.95


def test_a_seed_is_tried_again_once_the_number_of_workers_is_clear() -> None:
    proxy = Sampled(100)
    reads = beside_each_other(shuffled(100, 2)(0), Random(1))
    proxy.foreseen(reads[:60], 8)
    assert proxy.expected


@few_seeds
def test_names_that_are_gone_when_the_seed_is_found_do_no_harm() -> None:
    proxy = Sampled(COUNT)
    proxy.read(first_reads(shuffled(seed=OWN), 6))
    for _ in zip(range(500), proxy.steps(), strict=False):
        pass
    [dataset] = proxy.planner.registry.datasets()
    dataset.give_up_numbering()
    for _ in proxy.steps():
        pass
    assert dataset.epochs()[-1].seed_state.draw is None
