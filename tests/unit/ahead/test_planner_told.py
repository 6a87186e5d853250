"""Orders that were told: in pieces, in part, anew, or with an object twice."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.ahead.order.epoch import ORDER_UNLIKELY, Epoch
from outrider.core.ahead.planner import Planner
from outrider.core.model import Extent, ObjectRef, ObjectVersion
from tests.support.planned import BLOCK, PlannedStore, calls_of, drive, land, ratio, shuffled, think


def cut(keys: list[int], sizes: list[int]) -> list[tuple[int, list[int]]]:
    """Pieces of those sizes, the last as long as it takes, and where each begins."""
    pieces, start = [], 0
    for size in [*sizes, len(keys)]:
        if start < len(keys):
            pieces.append((start, keys[start : start + size]))
            start += size
    return pieces


@given(st.integers(1, 5), st.lists(st.integers(1, 9), max_size=6), st.randoms(use_true_random=False))
def test_what_workers_tell_in_pieces_is_one_order_however_they_come(
    workers: int, sizes: list[int], random: Random
) -> None:
    order = random.sample(range(60), 60)
    shares = {worker: order[worker::workers] for worker in range(workers)}
    left = {worker: cut(keys, sizes) for worker, keys in shares.items()}
    one, read = Epoch((), 60, 0.0, confidence=ORDER_UNLIKELY), random.sample(range(60), 9)
    while any(left.values()):
        worker = random.choice([worker for worker, pieces in left.items() if pieces])
        start, piece = left[worker].pop(0)
        one.cursor.position = len(one.agenda)
        one.tell(piece, start, len(shares[worker]))
        assert set(piece) <= set(one.agenda[one.cursor.position :]), "it is yet to be fetched"
        if read and random.random() < 0.5:
            one.read(read.pop(), 1.0)
    part = {key: (index + 0.5) / len(keys) for keys in shares.values() for index, key in enumerate(keys)}
    assert list(one.agenda) == sorted(order, key=lambda key: (part[key], key))
    assert [one.place[key] for key in one.agenda] == list(range(60))
    assert one.left == sum(one.unread(key) for key in order)


@pytest.mark.parametrize("turns", [[(0, 3), (0, 1), (1, 2), (1, 0)], [(0, 1), (0, 3), (1, 0), (1, 2)]])
def test_workers_that_are_told_to_be_equally_far_stand_in_one_order(turns: list[tuple[int, int]]) -> None:
    one = Epoch((), 4, 0.0, confidence=ORDER_UNLIKELY)
    for start, key in turns:
        one.tell([key], start, 2)
    assert list(one.agenda) == [1, 3, 0, 2]


def test_a_piece_costs_what_it_brings_where_workers_are_about_as_far() -> None:
    """Eight ranks of a node tell theirs in turn: the whole merged each time would hold all readers up."""
    placed = 0

    class Counted(Epoch):
        def _append(self, key: int) -> None:
            nonlocal placed
            placed += 1
            super()._append(key)

    one = Counted((), 8000, 0.0, confidence=ORDER_UNLIKELY)
    for start in range(0, 1000, 50):
        for worker in range(8):
            keys = range(worker * 1000 + start, worker * 1000 + start + 50)
            one.tell(keys, start, 1000)
    assert len(one.agenda) == 8000
    assert placed < 8 * 8000, "each once, and again for some pieces beside it"


def tell(store: PlannedStore, order: list[ObjectRef], total: int | None) -> None:
    """As the server passes it on."""
    for at in range(0, len(order), 100):
        store.planner.told("a", order[at : at + 100], store.now, start=at, total=total)


def agenda(store: PlannedStore) -> list[str]:
    [dataset] = store.planner.registry.datasets()
    return [dataset.names.keys[key] for key in dataset.epochs()[-1].agenda]


def test_the_pieces_of_a_plan_without_a_total_are_read_one_after_the_other() -> None:
    store = PlannedStore(300, 1, 30)
    order = shuffled(store, 1)
    tell(store, order, None)
    assert agenda(store) == [ref.key for ref in order]


@pytest.mark.parametrize(("piece", "ahead"), [(400, 0), (40, 20), (40, 2), (4, 2), (1, 1)])
def test_an_order_that_repeats_is_foreseen_in_pieces_too_told_when_few_reads_are_left(piece: int, ahead: int) -> None:
    store = PlannedStore(400, 1, 100)
    order = shuffled(store, 1)
    for _ in range(3):
        hits: list[bool] = []
        told = 0
        for number, ref in enumerate(order):
            while told < len(order) and told - number <= ahead:
                store.planner.told("a", order[told : told + piece], store.now, start=told, total=len(order))
                told += piece
            think(store)
            land(store, 4)
            hits += drive(store, [ref])
    assert ratio(hits) > 0.95


@pytest.mark.parametrize(("kind", "goal"), [("told", 0.7), ("repeated", 0.7), ("fresh", 0.45)])
@pytest.mark.parametrize(("count", "ranks"), [(403, 4), (403, 8), (201, 16)])
def test_ranks_whose_sampler_pads_the_last_batch_are_foreseen_in_the_next_epochs_too(
    kind: str, goal: float, count: int, ranks: int
) -> None:
    """DistributedSampler gives each rank as many: some of the first are read once more at the end of an epoch. With
    that begins the next one, not somebody who follows."""
    store, random = PlannedStore(count, 1, count // 4), Random(0)
    store.planner.listed("bucket", [(ref.key, store.size) for ref in store.refs], 0.0)
    order, ratios = shuffled(store, 1), []
    for epoch in range(6):
        if kind != "repeated":
            order = shuffled(store, epoch)
        padded = order + order[: -len(order) % ranks]
        parts = [padded[rank::ranks] for rank in range(ranks)]
        for part in parts if kind == "told" else []:
            store.planner.told("a", part, store.now, start=0, total=len(part))
        ratios.append(ratio(drive_beside(store, parts, random)))
    assert min(ratios[1:]) > goal, ratios


def test_a_set_that_went_since_it_was_read_is_fetched_from_its_first_object_on_when_it_comes_again() -> None:
    """A validation set between epochs: of it the last goes first."""
    store = PlannedStore(360, 1, 130)
    train = shuffled(store, 1)[:300]
    check = [ref for ref in store.refs if ref not in train]
    names = {ref: ObjectRef("bucket", f"check/{number:05d}.tar") for number, ref in enumerate(check)}
    for ref, name in names.items():
        store.versions[name], store.ids[name] = ObjectVersion(name, '"e"', store.size, ()), store.ids[ref]
        store.refs[store.refs.index(ref)] = name
    for its in (train, list(names.values())):
        store.planner.listed("bucket", [(ref.key, store.size) for ref in its], 0.0)
    drive(store, train)
    drive(store, list(names.values()))
    drive(store, train)
    assert ratio(drive(store, list(names.values()))) > 0.9


@pytest.mark.parametrize(("fresh", "goal"), [(False, 0.8), (True, 0.35)])
def test_a_run_that_is_taken_up_from_a_checkpoint_has_the_rest_of_its_epoch_fetched(fresh: bool, goal: float) -> None:
    """Some of what it had read is read again, in the same order; the rest comes after it."""
    store = PlannedStore(400, 1, 100)
    store.planner.listed("bucket", [(ref.key, store.size) for ref in store.refs], 0.0)
    drive(store, shuffled(store, 1))
    order = shuffled(store, 2 if fresh else 1)
    drive(store, order[:200])
    store.now += 30.0
    drive(store, order[150:200])
    assert ratio(drive(store, order[200:])) > goal


def test_what_a_run_that_was_taken_up_has_left_behind_is_fetched_when_it_comes_round() -> None:
    store = PlannedStore(400, 1, 100)
    store.planner.listed("bucket", [(ref.key, store.size) for ref in store.refs], 0.0)
    order = shuffled(store, 1)
    drive(store, order)
    drive(store, order[:200])
    store.now += 30.0
    drive(store, order[150:])
    assert ratio(drive(store, order)) > 0.9


@pytest.mark.parametrize("nodes", [2, 4])
def test_a_node_that_reads_another_part_in_each_epoch_has_nothing_fetched_but_what_it_asks_for(nodes: int) -> None:
    """DistributedSampler over several nodes, of which this is one. What is kept is what it has not read."""
    store = PlannedStore(1000, 1, 250)
    store.planner.listed("bucket", [(ref.key, store.size) for ref in store.refs], 0.0)
    for epoch in range(2):
        drive(store, shuffled(store, epoch)[::nodes])
    fetched_bytes = store.planner.fetched_bytes
    for epoch in range(2, 6):
        assert ratio(drive(store, shuffled(store, epoch)[::nodes])) > 0.2
    assert store.planner.fetched_bytes == fetched_bytes
    outlook = store.planner.registry.outlook()
    assert (outlook.part_reads > 0, outlook.set_reads, outlook.set_bytes) == (True, 0, 1000 * store.size)
    for epoch in range(6, 8):
        hits = drive(store, shuffled(store, epoch))
    assert ratio(hits) > 0.45, "it reads all of it now"


@pytest.mark.parametrize("part", [500, 700])
def test_a_run_begun_anew_in_a_new_order_is_an_epoch_again(part: int) -> None:
    store = PlannedStore(1000, 1, 250)
    store.planner.listed("bucket", [(ref.key, store.size) for ref in store.refs], 0.0)
    drive(store, shuffled(store, 1)[:part])
    for epoch in range(2, 4):
        assert ratio(drive(store, shuffled(store, epoch))) > 0.45


def drive_beside(store: PlannedStore, parts: list[list[ObjectRef]], random: Random) -> list[bool]:
    """Readers that are up to three objects apart, each with one open until it opens the next."""
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
        store.planner.asked("a", ref, store.size, Extent(0, store.size), store.now)
        if not hits[-1]:
            store.fill(ref, 0)
        store.outstanding.discard(store.key(ref, 0))
        store.planner.read(store.key(ref, 0))
        last[reader] = ref
    for ref in last.values():
        store.planner.sent("a", ref, store.now)
    return hits


def test_what_a_run_taken_up_amid_a_told_order_has_left_behind_does_not_stop_it() -> None:
    store = PlannedStore(1000, 1, 250)
    store.planner.listed("bucket", [(ref.key, store.size) for ref in store.refs], 0.0)
    order = shuffled(store, 1)
    store.planner.told("a", order, 0.0)
    for _ in range(40):
        think(store)
        land(store, 16)
    assert ratio(drive(store, order[500:])[60:]) > 0.8


def test_a_plan_of_more_names_than_may_be_known_is_told_as_far_as_it_goes() -> None:
    planner = Planner(10 * BLOCK, BLOCK, keys_max=1500)
    planner.asked("x", ObjectRef("b", "other/000001.jpg"), BLOCK, Extent(0, BLOCK), 1.0)
    refs = [ObjectRef("b", f"d/{i:06d}.jpg") for i in range(1800)]
    for at in range(0, 1800, 1000):
        planner.told("a", refs[at : at + 1000], 2.0, start=at, total=1800)
    assert len(planner.registry) <= 1500
    assert planner.wants(2.0, BLOCK, 1)


def test_a_plan_for_which_another_set_is_forgotten_is_told_as_a_whole() -> None:
    planner = Planner(10 * BLOCK, BLOCK, keys_max=1000)
    for i in range(700):
        planner.asked("x", ObjectRef("b", f"old/{i:06d}.jpg"), BLOCK, Extent(0, BLOCK), 1.0)
    refs = [ObjectRef("b", f"{folder}/{i:06d}.jpg") for folder in ("cats", "dogs") for i in range(200)]
    planner.told("a", refs, 2.0)
    assert sum(one.left for dataset in planner.registry.datasets() for one in dataset.epochs()) == 400


def test_a_plan_told_anew_in_another_order_takes_the_place_of_the_one_under_way() -> None:
    store = PlannedStore(500, 1, 100)
    first, second = shuffled(store, 1), shuffled(store, 2)
    store.planner.told("a", first, 0.0)
    drive(store, first[:80])
    store.planner.told("a", first, store.now)
    assert ratio(drive(store, first[80:100])) == 1.0, "the same once more changes nothing"
    store.now += 30.0
    tell(store, second, 500)
    assert ratio(drive(store, second)) > 0.9


def test_draws_with_replacement_that_were_told_are_foreseen() -> None:
    store = PlannedStore(400, 1, 120)
    draws = Random(1).choices(store.refs, k=400)
    store.planner.listed("bucket", [(ref.key, store.size) for ref in store.refs], 0.0)
    tell(store, draws, 400)
    assert ratio(drive(store, draws)) > 0.8


def test_an_object_that_is_told_twice_in_one_piece_is_waited_for_once() -> None:
    store = PlannedStore(100, 1, 30)
    store.planner.told("a", store.refs[:50] + store.refs[:10], 0.0)
    assert len(agenda(store)) == 50


def test_a_piece_of_a_plan_costs_as_much_as_it_brings_however_much_is_kept() -> None:
    """Measured in calls of functions."""

    def work(cached: int) -> int:
        store = PlannedStore(2 * cached, 1, 2 * cached)
        for ref in store.refs[:cached]:
            store.ask(ref, "a")
            store.read_on(ref)
        order = shuffled(store, 1)[:1000]
        store.planner.told("b", order[:100], store.now, start=0, total=1000)
        return calls_of(lambda: store.planner.told("b", order[100:200], store.now, start=100, total=1000))

    assert work(4000) < 2 * work(500)


def test_while_a_reader_computes_its_batch_the_next_one_is_fetched() -> None:
    """Its pace while it reads is not all that counts: it rests, and then reads a batch in one go."""
    batch = 40
    store = PlannedStore(8 * batch, 1, 4 * batch)
    order = shuffled(store, 1)
    tell(store, order, len(order))
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
    assert len(store.present) < 2.5 * batch, "no more than it may read at its pace"
