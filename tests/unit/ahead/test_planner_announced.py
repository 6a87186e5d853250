"""Orders that clients announce: in pieces, in part, again, or with an object twice."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.ahead.order.epoch import ORDER_UNLIKELY, JobEpoch
from outrider.core.ahead.order.epoch_announcements import announce
from outrider.core.ahead.planner import Planner
from outrider.core.model import Extent, ObjectRef, ObjectVersion
from tests.support.counted_work import calls_of
from tests.support.planner import BLOCK, PlannedStore, drive, land, ratio, shuffled, think
from tests.support.trials import SCALE


def cut(keys: list[int], sizes: list[int]) -> list[tuple[int, list[int]]]:
    """Pieces of those sizes and one with the rest, and the number at which each begins."""
    pieces, start = [], 0
    for size in [*sizes, len(keys)]:
        if start < len(keys):
            pieces.append((start, keys[start : start + size]))
            start += size
    return pieces


@given(st.integers(1, 5), st.lists(st.integers(1, 9), max_size=6), st.randoms(use_true_random=False))
def test_pieces_of_several_workers_are_merged_into_one_order_however_they_come(
    workers: int, sizes: list[int], random: Random
) -> None:
    order = random.sample(range(60), 60)
    shares = {worker: order[worker::workers] for worker in range(workers)}
    left = {worker: cut(keys, sizes) for worker, keys in shares.items()}
    epoch, read = JobEpoch((), 60, 0.0, confidence=ORDER_UNLIKELY), random.sample(range(60), 9)
    while any(left.values()):
        worker = random.choice([worker for worker, pieces in left.items() if pieces])
        start, piece = left[worker].pop(0)
        epoch.cursor.position = len(epoch.agenda)
        announce(epoch, piece, start, len(shares[worker]))
        assert set(piece) <= set(epoch.agenda[epoch.cursor.position :]), "announced objects are still to be prefetched"
        if read and random.random() < 0.5:
            epoch.read(read.pop(), 1.0)
    part = {key: (index + 0.5) / len(keys) for keys in shares.values() for index, key in enumerate(keys)}
    assert list(epoch.agenda) == sorted(order, key=lambda key: (part[key], key))
    assert [epoch.place[key] for key in epoch.agenda] == list(range(60))
    assert epoch.left == sum(epoch.unread(key) for key in order)


@pytest.mark.parametrize("turns", [[(0, 3), (0, 1), (1, 2), (1, 0)], [(0, 1), (0, 3), (1, 0), (1, 2)]])
def test_workers_that_are_equally_far_have_one_order_whichever_announces_first(turns: list[tuple[int, int]]) -> None:
    epoch = JobEpoch((), 4, 0.0, confidence=ORDER_UNLIKELY)
    for start, key in turns:
        announce(epoch, [key], start, 2)
    assert list(epoch.agenda) == [1, 3, 0, 2]


def test_a_piece_costs_as_much_as_it_brings_where_workers_are_about_equally_far() -> None:
    """Eight ranks of a node announce their orders in turn. To merge all of them each time would hold all readers up."""
    placed = 0

    class Counted(JobEpoch):
        def append(self, key: int) -> None:
            nonlocal placed
            placed += 1
            super().append(key)

    epoch = Counted((), 8000, 0.0, confidence=ORDER_UNLIKELY)
    for start in range(0, 1000, 50):
        for worker in range(8):
            keys = range(worker * 1000 + start, worker * 1000 + start + 50)
            announce(epoch, keys, start, 1000)
    assert len(epoch.agenda) == 8000
    assert placed < 8 * 8000, "each object is placed once, and again for some pieces beside it"


def announce_order(store: PlannedStore, order: list[ObjectRef], total: int | None) -> None:
    """Announces an order in the pieces in which the server passes it on."""
    for at in range(0, len(order), 100):
        store.planner.announced("a", order[at : at + 100], store.now, start=at, total=total)


def agenda(store: PlannedStore) -> list[str]:
    [dataset] = store.planner.registry.datasets()
    return [dataset.names.keys[key] for key in dataset.epochs()[-1].agenda]


def test_the_pieces_of_a_hint_without_a_total_are_read_one_after_the_other() -> None:
    store = PlannedStore(300, 1, 30)
    order = shuffled(store, 1)
    announce_order(store, order, None)
    assert agenda(store) == [ref.key for ref in order]


@pytest.mark.parametrize(("piece", "ahead"), [(40, 20), (40, 2), (1, 1)])
def test_an_order_that_repeats_is_predicted_also_if_its_pieces_are_announced_when_few_reads_are_left(
    piece: int, ahead: int
) -> None:
    store = PlannedStore(400, 1, 100)
    order = shuffled(store, 1)
    for _ in range(3):
        hits: list[bool] = []
        announced = 0
        for number, ref in enumerate(order):
            while announced < len(order) and announced - number <= ahead:
                refs = order[announced : announced + piece]
                store.planner.announced("a", refs, store.now, start=announced, total=len(order))
                announced += piece
            think(store)
            land(store, 4)
            hits += drive(store, [ref])
    assert ratio(hits) > 0.95


@pytest.mark.parametrize(
    ("kind", "goal", "count", "ranks"),
    [
        (kind, goal, count, ranks)
        for row, (kind, goal) in enumerate((("announced", 0.7), ("repeated", 0.7), ("fresh", 0.45)))
        for column, (count, ranks) in enumerate(((403, 4), (403, 8), (201, 16)))
        if SCALE > 1 or row == column
    ],
)
def test_ranks_whose_sampler_pads_the_last_batch_are_predicted_in_the_next_epochs_too(
    kind: str, goal: float, count: int, ranks: int
) -> None:
    """DistributedSampler gives each rank the same number of objects: some of the first are read again at the end of an
    epoch. These reads begin the next epoch, not a follower."""
    store, random = PlannedStore(count, 1, count // 4), Random(0)
    store.planner.discovery.listed("bucket", [(ref.key, store.size) for ref in store.refs])
    order, ratios = shuffled(store, 1), []
    for epoch in range(4):
        if kind != "repeated":
            order = shuffled(store, epoch)
        padded = order + order[: -len(order) % ranks]
        parts = [padded[rank::ranks] for rank in range(ranks)]
        for part in parts if kind == "announced" else []:
            store.planner.announced("a", part, store.now, start=0, total=len(part))
        ratios.append(ratio(drive_beside(store, parts, random)))
    assert min(ratios[1:]) > goal, ratios


def test_a_dataset_that_was_evicted_since_is_prefetched_from_its_first_object_on_when_it_is_read_again() -> None:
    """A validation set between epochs: its last objects are evicted first."""
    store = PlannedStore(360, 1, 130)
    train = shuffled(store, 1)[:300]
    check = [ref for ref in store.refs if ref not in train]
    names = {ref: ObjectRef("bucket", f"check/{number:05d}.tar") for number, ref in enumerate(check)}
    for ref, name in names.items():
        store.versions[name], store.ids[name] = ObjectVersion(name, '"e"', store.size, ()), store.ids[ref]
        store.refs[store.refs.index(ref)] = name
    for its in (train, list(names.values())):
        store.planner.discovery.listed("bucket", [(ref.key, store.size) for ref in its])
    drive(store, train)
    drive(store, list(names.values()))
    drive(store, train)
    assert ratio(drive(store, list(names.values()))) > 0.9


@pytest.mark.parametrize(("fresh", "goal"), [(False, 0.8), (True, 0.35)])
def test_for_a_run_that_is_resumed_from_a_checkpoint_the_rest_of_its_epoch_is_prefetched(
    fresh: bool, goal: float
) -> None:
    """Some of the objects that it had read are read again, in the same order; the rest comes after them."""
    store = PlannedStore(400, 1, 100)
    store.planner.discovery.listed("bucket", [(ref.key, store.size) for ref in store.refs])
    drive(store, shuffled(store, 1))
    order = shuffled(store, 2 if fresh else 1)
    drive(store, order[:200])
    store.now += 30.0
    drive(store, order[150:200])
    assert ratio(drive(store, order[200:])) > goal


def test_objects_that_a_resumed_run_has_skipped_are_prefetched_at_the_end_of_the_epoch() -> None:
    store = PlannedStore(400, 1, 100)
    store.planner.discovery.listed("bucket", [(ref.key, store.size) for ref in store.refs])
    order = shuffled(store, 1)
    drive(store, order)
    drive(store, order[:200])
    store.now += 30.0
    drive(store, order[150:])
    assert ratio(drive(store, order)) > 0.9


@pytest.mark.parametrize("nodes", [2, 4])
def test_for_a_node_that_reads_another_part_in_each_epoch_nothing_is_prefetched(nodes: int) -> None:
    """DistributedSampler over several nodes, of which this is one. Objects that it has not read in this epoch are
    kept."""
    count = 1000 if nodes == 4 or SCALE > 1 else 600
    store = PlannedStore(count, 1, count // 4)
    store.planner.discovery.listed("bucket", [(ref.key, store.size) for ref in store.refs])
    for epoch in range(2):
        drive(store, shuffled(store, epoch)[::nodes])
    fetched_bytes = store.planner.fetched_bytes
    for epoch in range(2, 6):
        assert ratio(drive(store, shuffled(store, epoch)[::nodes])) > 0.2
    assert store.planner.fetched_bytes == fetched_bytes
    outlook = store.planner.registry.outlook()
    assert (outlook.part_reads > 0, outlook.set_reads, outlook.set_bytes) == (True, 0, count * store.size)
    for epoch in range(6, 8):
        hits = drive(store, shuffled(store, epoch))
    assert ratio(hits) > 0.45, "the node reads all objects now"


@pytest.mark.parametrize("part", [200, 280])
def test_a_run_that_is_started_again_in_a_new_order_is_an_epoch(part: int) -> None:
    store = PlannedStore(400, 1, 100)
    store.planner.discovery.listed("bucket", [(ref.key, store.size) for ref in store.refs])
    drive(store, shuffled(store, 1)[:part])
    for epoch in range(2, 4):
        assert ratio(drive(store, shuffled(store, epoch))) > 0.45


def drive_beside(store: PlannedStore, parts: list[list[ObjectRef]], random: Random) -> list[bool]:
    """Readers that are up to three objects apart. Each has one object open until it opens the next."""
    hits, at, last = [], [0] * len(parts), dict[int, ObjectRef]()
    while going := [i for i, part in enumerate(parts) if at[i] < len(part) and at[i] <= min(at) + 3]:
        reader = random.choice(going)
        ref = parts[reader][at[reader]]
        at[reader] += 1
        store.now += 0.01
        for _ in range(2):
            think(store)
            land(store, 1)
        if reader in last:
            store.planner.sent("a", last[reader], store.now)
        hits.append(store.key(ref, 0) in store.present)
        store.planner.requested("a", ref, store.size, Extent(0, store.size), store.now)
        if not hits[-1]:
            store.fill(ref, 0)
        store.outstanding.discard(store.key(ref, 0))
        store.planner.read(store.key(ref, 0))
        last[reader] = ref
    for ref in last.values():
        store.planner.sent("a", ref, store.now)
    return hits


def test_objects_that_a_run_resumed_within_an_announced_order_has_skipped_do_not_stop_prefetch() -> None:
    store = PlannedStore(1000, 1, 250)
    store.planner.discovery.listed("bucket", [(ref.key, store.size) for ref in store.refs])
    order = shuffled(store, 1)
    store.planner.announced("a", order, 0.0)
    for _ in range(40):
        think(store)
        land(store, 16)
    assert ratio(drive(store, order[500:])[60:]) > 0.8


def test_a_hint_of_more_names_than_may_be_known_is_taken_as_far_as_it_goes() -> None:
    planner = Planner(10 * BLOCK, BLOCK, keys_max=1500)
    planner.requested("x", ObjectRef("b", "other/000001.jpg"), BLOCK, Extent(0, BLOCK), 1.0)
    refs = [ObjectRef("b", f"d/{i:06d}.jpg") for i in range(1800)]
    for at in range(0, 1800, 1000):
        planner.announced("a", refs[at : at + 1000], 2.0, start=at, total=1800)
    assert len(planner.registry) <= 1500
    assert planner.wants(2.0, BLOCK, 1)


def test_a_hint_for_which_another_dataset_is_forgotten_is_taken_as_a_whole() -> None:
    planner = Planner(10 * BLOCK, BLOCK, keys_max=1000)
    for i in range(700):
        planner.requested("x", ObjectRef("b", f"old/{i:06d}.jpg"), BLOCK, Extent(0, BLOCK), 1.0)
    refs = [ObjectRef("b", f"{folder}/{i:06d}.jpg") for folder in ("cats", "dogs") for i in range(200)]
    planner.announced("a", refs, 2.0)
    assert sum(epoch.left for dataset in planner.registry.datasets() for epoch in dataset.epochs()) == 400


def test_a_hint_in_another_order_replaces_the_announced_order_under_way() -> None:
    store = PlannedStore(500, 1, 100)
    first, second = shuffled(store, 1), shuffled(store, 2)
    store.planner.announced("a", first, 0.0)
    drive(store, first[:80])
    store.planner.announced("a", first, store.now)
    assert ratio(drive(store, first[80:100])) == 1.0, "the same order announced again changes nothing"
    store.now += 30.0
    announce_order(store, second, 500)
    assert ratio(drive(store, second)) > 0.9


def test_draws_with_replacement_that_were_announced_are_predicted() -> None:
    store = PlannedStore(400, 1, 120)
    draws = Random(1).choices(store.refs, k=400)
    store.planner.discovery.listed("bucket", [(ref.key, store.size) for ref in store.refs])
    announce_order(store, draws, 400)
    assert ratio(drive(store, draws)) > 0.8


def test_an_object_that_is_announced_twice_in_one_piece_is_expected_once() -> None:
    store = PlannedStore(100, 1, 30)
    store.planner.announced("a", store.refs[:50] + store.refs[:10], 0.0)
    assert len(agenda(store)) == 50


def test_a_piece_of_a_hint_costs_as_much_as_it_brings_however_much_is_cached() -> None:
    """The cost is measured in function calls."""

    def work(cached: int) -> int:
        store = PlannedStore(2 * cached, 1, 2 * cached)
        for ref in store.refs[:cached]:
            store.ask(ref, "a")
            store.read_on(ref)
        order = shuffled(store, 1)[:1000]
        store.planner.announced("b", order[:100], store.now, start=0, total=1000)
        return calls_of(lambda: store.planner.announced("b", order[100:200], store.now, start=100, total=1000))

    assert work(2000) < 2 * work(250)


def test_while_a_reader_computes_its_batch_the_next_one_is_fetched() -> None:
    """The reader rests, and then reads a batch in one go: its pace while it reads is not enough to go by."""
    batch = 40
    store = PlannedStore(8 * batch, 1, 4 * batch)
    order = shuffled(store, 1)
    announce_order(store, order, len(order))
    for ref in order[:batch]:
        think(store)
        store.now += 0.01
        land(store, 16)
        store.ask(ref)
        store.read_on(ref)
    assert not all(store.key(ref, 0) in store.present for ref in order[batch : 2 * batch])
    for _ in range(batch + 10):
        think(store)
        store.now += 0.01
        land(store, 16)
    assert all(store.key(ref, 0) in store.present for ref in order[batch : 2 * batch])
    assert len(store.present) < 2.5 * batch, "no more objects are fetched than the reader reads at its pace"
