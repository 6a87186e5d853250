"""The order search: jobs whose sampler has a seed that is found are predicted as well as jobs with hints."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from random import Random
from types import MappingProxyType
from typing import Any

import pytest

from outrider.core.ahead.hints import Hint
from outrider.core.ahead.order import order_search
from outrider.core.ahead.order.order_search import OrderSearch
from outrider.core.ahead.order.torch_sampler import Draw, Seeds, at_once, in_batches, order_at_once
from outrider.core.ahead.planner import Planner
from outrider.core.model import BlockKey, Extent, ObjectRef, ObjectVersion
from outrider.simulator.run import EpochResult, Machine, Simulation
from outrider.simulator.scenarios import JobSpec, Order, Shards
from tests.support.planner import SIZE, Sampled, beside_each_other, drifting
from tests.support.trials import SCALE, rounds

RATE = 2e6
COUNT = 1501
# A simulated read takes a hundred times as long as one of `Sampled`.
SIMULATED, LARGER = (COUNT, COUNT) if SCALE > 1 else (401, 601)
ANNOUNCED = COUNT if SCALE > 1 else 901


def drawn_order(draw: Draw, count: int) -> list[int]:
    return order_at_once(draw, count).tolist()


def sampled(
    count: int = SIMULATED, *, batch: int = 32, workers: int = 1, rank: int = 0, ranks: int = 1, padded: bool = True,
    drop_last: bool = False, draw: Callable[[int, int], Draw] = lambda epoch, count: Draw(7 + epoch),
) -> Order:  # fmt: skip
    """The reads of the workers of one rank's data loader, in batches of its sampler's order."""

    def order(epoch: int) -> list[list[int]]:
        whole = drawn_order(draw(epoch, count), count)
        if padded:
            whole += whole[: -count % ranks]
        mine = whole[rank::ranks]
        batches = [mine[begin : begin + batch] for begin in range(0, len(mine), batch)]
        if drop_last and len(batches[-1]) < batch:
            batches.pop()
        return [[number for its in batches[worker::workers] for number in its] for worker in range(workers)]

    return order


def a_job(
    order: Order, *, count: int = SIMULATED, name: str = "train", client: str = "10.0.0.1", epochs: int = 3
) -> JobSpec:
    return JobSpec(name, Shards(count, SIZE), order, epochs, RATE, client)


def simulated(jobs: list[JobSpec], readers: int) -> list[EpochResult]:
    """The origin gives 1.3 times the bandwidth that the readers need."""
    machine = Machine(int(0.1 * jobs[0].shards.count * SIZE), 1.3 * RATE * readers)
    return Simulation(machine, "epoch", jobs).run()


def of_one_generator(epoch: int, count: int) -> Draw:
    """`RandomSampler(generator=...)`: at the end of an epoch it draws a second order, and uses nothing of it."""
    return Draw(7, spent=epoch * 2 * (count - 1))


def of_the_loaders_generator(epoch: int, count: int) -> Draw:
    return Draw(7, spent=2 + epoch * (2 * (count - 1) + 2))


WORLDS: MappingProxyType[str, dict[str, Any]] = MappingProxyType({
    "a sampler": {},
    "workers": {"workers": 4},
    "large batches": {"workers": 4, "batch": LARGER // 12, "count": LARGER},
    "set_epoch forgotten": {"draw": lambda epoch, count: Draw(7)},
    "a generator": {"draw": of_one_generator, "workers": 2},
    "the loader's generator": {"draw": of_the_loaders_generator, "workers": 2},
    "the last batch dropped": {"drop_last": True, "workers": 2},
})  # fmt: skip


# The rest is in the long form: `test_torch_sampler.py` has each way to draw.
@pytest.mark.parametrize("world", WORLDS if SCALE > 1 else ["a sampler", "large batches", "the loader's generator"])
def test_a_new_seeded_order_each_epoch_is_predicted_as_well_as_an_announced_one(world: str) -> None:
    how = WORLDS[world]
    first, *later = simulated([a_job(sampled(**how), count=how.get("count", SIMULATED))], how.get("workers", 1))
    assert first.hit_ratio > 0.85
    for epoch in later:
        assert epoch.hit_ratio > 0.985
        assert epoch.stall < 0.02
        assert epoch.traffic < 0.9 + 0.04
    # By then the next order is known before it begins: its cached objects stay, and its first objects are on their way.
    assert later[-1].hit_ratio > 0.998
    assert later[-1].traffic < 0.9 + 0.0045


@pytest.mark.parametrize(
    ("one_client", "padded"),
    [(one, pads) for one in (True, False) for pads in (True, False) if SCALE > 1 or one == pads],
)
def test_the_ranks_of_a_run_are_recognised_by_their_shares(one_client: bool, padded: bool) -> None:
    """DistributedSampler: each rank has an address of its own, or all ranks of a node have one.

    One rank may be a batch ahead of another by the time that the search takes. It is not taken for two workers.
    """
    count = 1203 if padded or SCALE > 1 else 803
    jobs = [
        a_job(
            sampled(count, workers=2, rank=rank, ranks=4, padded=padded, drop_last=not padded),
            name=f"rank {rank}", count=count, client="node" if one_client else f"10.0.0.{rank}",
        )
        for rank in range(4)
    ]  # fmt: skip
    epochs = simulated(jobs, 8)
    first, second, third = ([epoch for epoch in epochs if epoch.number == number] for number in (1, 2, 3))
    assert min(epoch.hit_ratio for epoch in first) > 0.6
    assert min(epoch.hit_ratio for epoch in second) > 0.94
    assert min(epoch.hit_ratio for epoch in third) > (0.98 if padded else 0.94)
    assert not padded or max(epoch.waste for epoch in third) < 0.01, "no epoch begins with padding that is read again"


def test_for_one_rank_of_many_no_objects_of_the_others_are_prefetched() -> None:
    """A sidecar whose pod runs one of eight ranks."""
    epochs = simulated([a_job(sampled(4001, workers=2, rank=3, ranks=8), count=4001)], 2)
    assert [epoch.opened for epoch in epochs] == [501, 501, 501]
    for epoch in epochs[1:]:
        assert epoch.hit_ratio > 0.97
        assert epoch.origin_bytes < 1.1 * 501 * SIZE


def test_for_some_ranks_of_many_no_objects_of_the_others_are_prefetched() -> None:
    """Two of eight ranks behind one proxy look like workers with batches of two. The objects between theirs are not
    prefetched."""
    jobs = [a_job(sampled(1201, rank=rank, ranks=8), count=1201, name=f"rank {rank}", client="node") for rank in (2, 3)]
    of_all = sum(epoch.origin_bytes for epoch in simulated(jobs, 2))
    with_chance = [replace(job, order=chance_of(sampled(1201, rank=i, ranks=8))) for i, job in enumerate(jobs, 2)]
    assert of_all < 1.1 * sum(epoch.origin_bytes for epoch in simulated(with_chance, 2))


def chance_of(order: Order) -> Order:
    """The same reads of the same dataset, by seeds that the search does not try."""

    @cache
    def name_of(epoch: int) -> list[int]:
        return Random(f"{epoch}").sample(range(1201), 1201)

    return lambda epoch: [[name_of(epoch)[number] for number in its] for its in order(epoch)]


def test_the_search_changes_nothing_for_random_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    def results() -> list[tuple[float, float]]:
        order: Order = lambda epoch: [Random(f"no seed {epoch}").sample(range(SIMULATED), SIMULATED)]  # noqa: E731
        return [(epoch.hit_ratio, epoch.traffic) for epoch in simulated([a_job(order, epochs=2)], 1)]

    with_it = results()
    monkeypatch.setattr(OrderSearch, "begin", lambda self, dataset: dataset.to_search.clear())
    assert results() == with_it


def test_an_epoch_in_another_order_is_given_up_and_the_next_ones_are_found_again() -> None:
    """The script was started again with another seed, or draws one epoch by hand."""

    def draw(epoch: int, count: int) -> Draw:
        return Draw(2**31 if epoch == 2 else 7 + epoch)

    epochs = simulated([a_job(sampled(draw=draw), epochs=6)], 1)
    assert min(epochs[number].hit_ratio for number in (1, 4, 5)) > 0.95
    assert epochs[2].hit_ratio < 0.6
    assert epochs[2].traffic < 1.02


# -- workers that read what one process announced ----------------------------------------------------------------


@pytest.mark.parametrize(("batch", "workers"), [(32, 2), (64, 8), (128, 4)][: 3 if SCALE > 1 else 2])
@pytest.mark.parametrize("piece", [ANNOUNCED, 200])
def test_an_order_that_a_sampler_announces_is_prefetched_as_its_workers_read_it(
    piece: int, batch: int, workers: int
) -> None:
    """The main process announces the sampler's order; each of its workers reads in another batch of it."""
    proxy = Sampled(ANNOUNCED)
    parts = []
    for epoch in range(2):
        order = Random(f"no seed {epoch}").sample(range(ANNOUNCED), ANNOUNCED)
        for begin in range(0, ANNOUNCED, piece):
            refs = [proxy.refs[number] for number in order[begin : begin + piece]]
            proxy.planner.announced("client", refs, proxy.now, start=begin, total=None)
        parts.append(proxy.foreseen(beside_each_other(order, batch, workers, Random(epoch)), 2 * workers + 4))
    first, second = parts
    # Seventeen reads of each worker show how many workers there are.
    assert first > 1 - 1.25 * (48 + 17 * workers) / ANNOUNCED
    assert second > 0.95


def test_an_order_that_one_worker_reads_as_announced_stays_as_it_was() -> None:
    proxy = Sampled(400)
    order = Random("no seed").sample(range(400), 400)
    proxy.planner.announced("client", [proxy.refs[number] for number in order], proxy.now, start=0, total=400)
    assert proxy.foreseen(order, 1) == 1.0


@pytest.mark.parametrize("pieces", [(1000, 400), (600, 424, 376), (1400,)])
def test_an_order_announced_in_pieces_stays_the_same_when_more_workers_are_seen(pieces: tuple[int, ...]) -> None:
    """The order in which workers take turns is worked out anew with each piece. The set of objects is certain."""
    count, batch, announced, reads = sum(pieces), 64, 0, 0
    refs = [ObjectRef("b", f"s/{number:06d}") for number in range(count)]
    planner = Planner(100 * SIZE, SIZE)
    by_two = [number for each in range(40) for number in (each, batch + each)]
    by_three = [number for each in range(40, batch) for number in (each, batch + each, 2 * batch + each - 40)]
    for piece in pieces:
        planner.announced("a", refs[announced : announced + piece], 0.0, start=announced, total=count)
        announced += piece
        [dataset] = planner.registry.datasets()
        [epoch] = dataset.epochs()
        for workers, its in ((2, by_two), (3, by_three if announced == count else [])):
            while its:
                number = its.pop(0)
                planner.requested("a", refs[number], SIZE, Extent(0, SIZE), float(reads))
                planner.sent("a", refs[number], float(reads))
                reads += 1
                while planner.step():
                    pass
                if not its:
                    assert (epoch.batch, epoch.workers) == (batch, workers)
            assert epoch.agenda == at_once(in_batches(array("i", range(announced)), batch, epoch.workers))
            assert [epoch.place[key] for key in epoch.agenda] == list(range(announced))


@pytest.mark.parametrize("hits_max", [10, 18])
@pytest.mark.parametrize("seed", range(12 if SCALE > 1 else 2))
def test_hits_that_reach_the_planner_later_than_misses_do_not_make_one_reader_look_like_several(
    seed: int, hits_max: int
) -> None:
    """The planner learns of a hit that the fast path served at the next tick, and of a miss at once. So reads one after
    the other look like parallel reads."""
    chance, count, each_s = Random(seed), 500, 0.005
    refs = [ObjectRef("b", f"s/{number:06d}") for number in range(count)]
    planner, order_search = Planner(100 * SIZE, SIZE), list[tuple[int, int]]()
    planner.announced("a", refs, 0.0, total=count)
    [dataset] = planner.registry.datasets()
    read = 0
    while read < count:
        hits, misses = chance.randint(1, hits_max), chance.randint(1, 4)
        for number in [*range(read + hits, read + hits + misses), *range(read, read + hits)]:
            if number < count:
                planner.requested("a", refs[number], SIZE, Extent(0, SIZE), each_s * number)
                planner.sent("a", refs[number], each_s * number)
                while planner.step():
                    pass
                order_search += [(epoch.batch, epoch.workers) for epoch in dataset.epochs()]
        read += hits + misses
    assert set(order_search) == {(1, 1)}


@pytest.mark.parametrize("seed", range(3))
def test_reads_of_an_epoch_that_are_reported_in_the_next_one_hide_no_order(seed: int) -> None:
    """Hits are reported later than misses, also where an epoch ends. The first reads of the next epoch came before the
    last ones of this epoch, which were taken for reads in a wrong order, and the order was lost for good."""
    chance, count, epochs = Random(seed), 400, range(4)
    in_order = [number for epoch in epochs for number in drawn_order(of_one_generator(epoch, count), count)]
    reported, read = list[int](), 0
    while read < len(in_order):
        hits, misses = chance.randint(0, 12), chance.randint(1, 4)
        reported += in_order[read + hits : read + hits + misses] + in_order[read : read + hits]
        read += hits + misses
    world = Sampled(count)
    foreseen = [world.foreseen(reported[epoch * count : (epoch + 1) * count], within=64) for epoch in epochs]
    assert min(foreseen) > 0.8


def test_orders_that_several_workers_announce_of_their_own_reads_stay_as_announced() -> None:
    """Workers that drift look like workers with batches."""
    for seed in range(rounds(4)):
        proxy, chance = Sampled(400), Random(seed)
        queues = [[number for number in range(400) if number % 4 == worker] for worker in range(4)]
        for queue in queues:
            chance.shuffle(queue)
            refs = [proxy.refs[number] for number in queue]
            proxy.planner.announced("client", refs, proxy.now, start=0, total=len(refs))
        announced = proxy.expected
        while any(map(len, queues)) and len(queues[0]) > 10:
            queue = chance.choices(queues, [1, 0.9, 0.8, 0.7])[0]
            if queue:
                proxy.read([queue.pop(0)])
                for _ in proxy.steps():
                    pass
        assert proxy.expected == announced


def test_loaders_of_one_job_may_have_other_batches_and_workers() -> None:
    """Such as a loader for training and one for validation, or the next run of a client."""
    proxy = Sampled(COUNT)
    foreseen = []
    for epoch, (batch, workers) in enumerate([(64, 8), (1, 1), (32, 2), (64, 8)]):
        order = Random(f"no seed {epoch}").sample(range(COUNT), COUNT)
        proxy.planner.announced("client", [proxy.refs[number] for number in order], proxy.now, start=0, total=COUNT)
        foreseen.append(proxy.foreseen(beside_each_other(order, batch, workers, Random(epoch)), 24))
    assert min(foreseen) > 0.8


# -- workers that are ahead of others by whole batches ------------------------------------------------------------


def foreseen_of(count: int, ranks: int, batch: int, workers: int, at_once: float, seed: int = 1) -> list[float]:
    """One rank's reads in each of three epochs, each drawn at random from those that its loader has handed to
    workers."""
    proxy, chance, foreseen = Sampled(count * ranks), Random(seed), []
    for epoch in range(3):
        mine = drawn_order(Draw(7 + seed + epoch, share=ranks, first=seed % ranks), count * ranks)
        foreseen.append(proxy.foreseen(drifting(mine, batch, workers, chance, at_once), 2 * batch * workers))
    return foreseen


# In `make test` each value, in `make soak` all of them together.
@pytest.mark.parametrize(
    ("ranks", "count", "batch", "at_once"),
    [
        (ranks, count, batch, at_once)
        for ranks in (1, 4)
        for count, batch in ((300, 8), (900, 16))
        for at_once in (0, 8)
        if SCALE > 1 or (ranks == 4) == (count == 300) == (at_once == 8)
    ],
)
def test_workers_that_drift_by_whole_batches_do_not_refute_an_order_of_a_small_dataset(
    ranks: int, count: int, batch: int, at_once: float
) -> None:
    first, *later = foreseen_of(count, ranks, batch, 4, at_once)
    assert first > 0.75
    assert min(later) > 0.95


@pytest.mark.parametrize("seed", [2, 3, 4])
def test_a_seed_is_found_although_drift_hides_the_beginning_and_is_kept_until_the_batches_are_clear(seed: int) -> None:
    """The more reads there are, the fewer of them are of the order's beginning. So the search is repeated often, and a
    proven seed is kept."""
    first, *later = foreseen_of(300, 4, 16, 4, 8, seed)
    assert first > 0.5
    assert min(later) > 0.95


@pytest.mark.parametrize("count", [300, 900])
def test_reads_refute_a_drawn_order_of_a_small_dataset_as_soon_as_of_a_large_one(count: int) -> None:
    """Few random reads go on by chance where a worker has just read."""
    given_up_after = []
    for seed in range(rounds(5)):
        proxy, chance = Sampled(count), Random(seed)
        proxy.foreseen(drifting(drawn_order(Draw(7 + seed), count), 8, 2, chance, 0), 1)
        # The epoch begins as the next draw would: four reads prove that.
        begun = drawn_order(Draw(8 + seed), count)[:8]
        proxy.foreseen(begun, 1)
        assert proxy.expected
        others = sorted(set(range(count)) - set(begun))
        chance.shuffle(others)
        given_up_after.append(0)
        while proxy.expected:
            proxy.foreseen([others.pop()], 1)
            given_up_after[-1] += 1
    assert max(given_up_after) <= 40


# -- what is found, and given up ------------------------------------------------------------------------------------


def test_orders_without_a_seed_are_learned_after_orders_with_one() -> None:
    chosen = sampled(draw=lambda epoch, count: Draw(7 + epoch))
    repeated = Random("no seed").sample(range(SIMULATED), SIMULATED)
    epochs = simulated([a_job(lambda epoch: chosen(epoch) if epoch < 3 else [repeated], epochs=7)], 1)
    assert epochs[2].hit_ratio > 0.99
    assert epochs[3].hit_ratio < 0.5, "the seed is not known the first time"
    assert min(epoch.hit_ratio for epoch in epochs[4:]) > 0.95


def test_the_seed_of_a_script_that_is_started_again_is_found_again() -> None:
    chosen = sampled(LARGER, workers=2)
    epochs = simulated([a_job(lambda epoch: chosen(epoch % 3), count=LARGER, epochs=6)], 2)
    assert min(epoch.hit_ratio for epoch in epochs) > 0.9


def test_a_name_that_appears_during_the_search_does_no_harm() -> None:
    proxy = Sampled(2000)
    order = drawn_order(Draw(50), 2000)
    proxy.read(order[:16])
    for step, _ in enumerate(proxy.steps()):
        if step % 5 == 0:
            ref = ObjectRef("bucket", f"train/{2000 + step:06d}.jpg")
            proxy.planner.requested("client", ref, SIZE, Extent(0, SIZE), proxy.now)
            proxy.planner.sent("client", ref, proxy.now)
    assert proxy.expected[:2000] == order


def test_a_hint_that_replaces_a_withdrawn_one_during_the_search_for_workers_holds() -> None:
    proxy = Sampled(COUNT)
    order = Random("no seed").sample(range(COUNT), 1200)
    first, rest = order[:800], [number for number in range(COUNT) if number not in set(order)][:300]
    cached, gone = Hint(), Hint()
    planner = proxy.planner
    planner.announced("client", [proxy.refs[number] for number in first], proxy.now, start=0, total=None, hint=cached)
    planner.announced("client", [proxy.refs[n] for n in order[800:1100]], proxy.now, start=800, total=None, hint=gone)
    steps = proxy.steps()
    proxy.read(beside_each_other(first, 64, 8, Random(1))[:200])
    next(steps)
    planner.withdraw(gone, [cached], proxy.now)
    planner.announced("client", [proxy.refs[number] for number in rest], proxy.now, start=1100, total=None)
    for _ in steps:
        pass
    assert set(proxy.expected) == {*first, *rest}


# -- what it costs -------------------------------------------------------------------------------------------------


def test_the_search_runs_in_small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step takes about 0.1 ms. Longer steps would hold up readers."""
    monkeypatch.setattr(order_search, "Seeds", Seeds)
    count = 10_000
    read = Sampled(count)
    order = drawn_order(Draw(100), count)
    read.read(order[:16])
    steps = sum(1 for _ in read.steps())
    assert steps > 100 + count / 512 + 2 * count / 1024, "a step for each seed, and for each piece of the order"
    assert read.expected == order


@pytest.mark.parametrize("readers", [1, 8])
def test_no_seed_is_tried_for_names_that_are_read_in_their_order(readers: int) -> None:
    """Readers that take the next name each may end in another order."""
    read, steps, chance = Sampled(2000), 0, Random(readers)
    for begin in range(0, 800, readers):
        read.read(chance.sample(range(begin, begin + readers), readers))
        steps += sum(1 for _ in read.steps())
    assert steps < 100, "a step for each seed"


def test_a_dataset_that_is_forgotten_meanwhile_is_not_searched_any_more() -> None:
    read = Sampled(2000)
    order = drawn_order(Draw(50), 2000)
    read.read(order[:16])
    next(read.steps())
    [dataset] = read.planner.registry.datasets()
    dataset.shrink()
    for _ in read.steps():
        pass
    assert not dataset.epochs()


def test_an_order_that_is_announced_meanwhile_stays() -> None:
    read = Sampled(2000)
    order = drawn_order(Draw(50), 2000)
    read.read(order[:16])
    next(read.steps())
    read.planner.announced("client", read.refs[::-1], read.now, start=0, total=2000)
    for _ in read.steps():
        pass
    assert read.expected[:5] == [1999, 1998, 1997, 1996, 1995]


def test_no_seed_is_searched_where_the_listed_names_are_not_sorted_any_more() -> None:
    """Names that a second LIST has found come after the known ones, and the numbers of a sampler stand for sorted
    names."""
    read = Sampled(600)
    read.planner.discovery.listed("bucket", [("train/0000001.jpg", SIZE)])
    assert len(read.planner.registry) == 601
    read.read(drawn_order(Draw(5), 600)[:16])
    for _ in read.steps():
        pass
    assert read.expected == []


def test_cached_objects_are_ranked_anew_when_a_seed_is_found() -> None:
    """The object that is needed last by the found order is evicted first, also if it was cached before."""
    read = Sampled(400)
    order = drawn_order(Draw(9), 400)
    cached = {}
    for number in order[100:105]:
        version = ObjectVersion(read.refs[number], '"e"', SIZE)
        block = BlockKey(number.to_bytes(16, "big"), 0)
        read.planner.added(block, version)
        cached[block] = number
    read.read(order[:16])
    for _ in read.steps():
        pass
    assert [cached[block] for block in read.planner.victims()] == order[104:99:-1]
