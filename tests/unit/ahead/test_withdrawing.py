"""Hints that are withdrawn: nothing more is prefetched or kept for them, and all else goes on as before."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.core.ahead.hints import Hint, HintedObjects
from outrider.core.ahead.prefetch_candidates import Want
from outrider.core.model import BlockKey, ObjectRef
from tests.support.planner import BLOCK, PlannedStore
from tests.support.trials import rounds

COUNT = 40


def in_chance_order(store: PlannedStore, seed: int) -> list[ObjectRef]:
    return Random(seed).sample(store.refs, len(store.refs))


def announce(store: PlannedStore, refs: list[ObjectRef], client: str = "a", hint: Hint | None = None) -> Hint:
    hint = hint or Hint()
    store.planner.announced(client, refs, store.now, hint=hint)
    return hint


def hinted_by(hint: Hint, at_once: int = 7) -> HintedObjects:
    pieces = list(hint.pieces(at_once))
    assert all(each.read + len(each.unread) + each.unknown <= at_once for each in pieces)
    unread = tuple(ref for each in pieces for ref in each.unread)
    return HintedObjects(sum(each.read for each in pieces), unread, sum(each.unknown for each in pieces))


def read(store: PlannedStore, refs: list[ObjectRef], client: str = "a") -> None:
    for ref in refs:
        store.now += 0.01
        store.ask(ref, client)
        while ref in store.reading:
            store.read_on(ref)


def wanted(store: PlannedStore, blocks: int = COUNT) -> list[ObjectRef]:
    """Asks what is wanted, and drops it again."""
    wants = store.planner.wants(store.now, store.capacity_blocks * BLOCK, blocks)
    for want in wants:
        store.planner.dropped(want.ref)
    return [want.ref for want in wants]


def bring(store: PlannedStore, blocks: int = COUNT) -> list[Want]:
    """At most `blocks` at once, and all of them land before more are asked for."""
    wants = store.planner.wants(store.now, (store.capacity_blocks - len(store.present)) * BLOCK, blocks)
    store.take(wants)
    for block in sorted(store.outstanding):
        store.land(block)
    return wants


def size_known(store: PlannedStore) -> None:
    """Makes the size of the objects known: otherwise one object would be fetched first."""
    for ref in store.refs:
        store.planner.found(ref, store.size)


@pytest.fixture
def store() -> PlannedStore:
    store = PlannedStore(COUNT, 1, COUNT)
    size_known(store)
    return store


def test_objects_of_a_withdrawn_hint_are_not_prefetched(store: PlannedStore) -> None:
    order = in_chance_order(store, 1)
    hint = announce(store, order)
    assert wanted(store, 4) == order[:4]
    assert store.planner.withdraw(hint, (), store.now) == COUNT
    assert wanted(store) == []
    assert store.planner.withdraw(hint, (), store.now) == 0


def test_in_mid_epoch_only_unread_objects_are_withdrawn(store: PlannedStore) -> None:
    order = in_chance_order(store, 2)
    hint = announce(store, order)
    read(store, order[:15])
    assert hinted_by(hint) == HintedObjects(15, tuple(order[15:]), 0)
    assert wanted(store) != []
    assert store.planner.withdraw(hint, (), store.now) == COUNT - 15
    assert wanted(store) == []
    assert hinted_by(hint) == HintedObjects(15, (), COUNT - 15)
    # That is not taken for the end of an epoch, after which the same objects would be read again.
    read(store, order[20:21])
    assert not set(wanted(store)) & set(order[:15])


def test_objects_that_the_next_epoch_took_over_from_an_announced_one_are_withdrawn_too() -> None:
    """A repeat when nearly all objects were read begins the next epoch, which expects the objects that are left."""
    store = PlannedStore(12, 1, 12)
    order = in_chance_order(store, 12)
    hint = announce(store, order)
    read(store, [*order[:-2], *order[:8]])
    [job] = [job for dataset in store.planner.registry.datasets() for job in dataset.jobs.values()]
    assert [epoch.announced for epoch in job.epochs] == [True, False]
    assert [epoch.left for epoch in job.epochs] == [2, 4]
    assert store.planner.withdraw(hint, (), store.now) == 2
    assert wanted(store) == []


def test_objects_on_their_way_land_and_are_not_asked_for_twice(store: PlannedStore) -> None:
    order = in_chance_order(store, 3)
    hint = announce(store, order)
    store.take(store.planner.wants(store.now, COUNT * BLOCK, 3))
    outstanding = store.planner.outstanding.blocks
    store.planner.withdraw(hint, (), store.now)
    assert store.planner.outstanding.blocks == outstanding == 3
    announce(store, order)
    store.take(store.planner.wants(store.now, COUNT * BLOCK, 6))
    for block in sorted(store.outstanding):
        store.land(block)
    assert store.planner.outstanding.blocks == 0


def test_objects_of_another_hint_of_the_same_client_are_still_expected(store: PlannedStore) -> None:
    order = in_chance_order(store, 4)
    mine, its = announce(store, order[:30]), announce(store, order[20:])
    assert store.planner.withdraw(mine, [its], store.now) == 20
    assert hinted_by(its).unread == tuple(order[20:])
    assert set(wanted(store)) == set(order[20:])


def test_the_hint_of_another_client_is_untouched(store: PlannedStore) -> None:
    order, other = in_chance_order(store, 5), in_chance_order(store, 6)
    mine, its = announce(store, order, "a"), announce(store, other, "b")
    read(store, order[:5], "a")
    read(store, other[:5], "b")
    store.planner.withdraw(mine, [its], store.now)
    assert hinted_by(its) == HintedObjects(5, tuple(other[5:]), 0)
    seen = wanted(store)
    assert seen
    assert seen == [ref for ref in other[5:] if ref in seen], "in the order of the other hint"


def test_blocks_that_came_for_a_withdrawn_hint_are_evicted_before_those_of_a_hint_that_holds() -> None:
    store = PlannedStore(COUNT, 1, 20)
    size_known(store)
    order = in_chance_order(store, 7)
    mine, its = announce(store, order[:10]), announce(store, order[10:20], "b")
    bring(store)
    assert len(store.present) == 20
    store.planner.withdraw(mine, [its], store.now)
    first = {store.refs[int.from_bytes(block.version_id, "big")] for block, _ in
             zip(store.planner.victims(), range(10), strict=False)}  # fmt: skip
    assert first == set(order[:10])


def test_a_later_hint_of_the_same_name_is_prefetched_although_all_blocks_of_the_first_are_evicted_for_it() -> None:
    store = PlannedStore(2 * COUNT, 1, 20)
    size_known(store)
    hint = announce(store, store.refs[:COUNT])
    bring(store)
    assert len(store.present) == 20
    store.planner.withdraw(hint, (), store.now)
    announce(store, store.refs[COUNT:], hint=hint)
    came: list[ObjectRef] = []
    while wants := bring(store, 2):
        came += [want.ref for want in wants]
    assert came == store.refs[COUNT : COUNT + 20]
    assert store.planner.wasted_bytes == 20 * BLOCK, "the waste is counted all the same"


def test_a_hint_that_no_read_has_followed_yet_is_prefetched_however_slow_the_last_reader_was() -> None:
    """Nobody reads it, so no fill is too early. One at a time would be just in time for a reader of that pace."""
    store = PlannedStore(COUNT, 1, 20)
    size_known(store)
    hint = announce(store, store.refs)
    bring(store)
    for ref in store.refs[:2]:
        store.now += 10.0
        read(store, [ref])
    store.planner.withdraw(hint, (), store.now)
    later = store.refs[-8:]
    announce(store, later)
    for _ in range(20):
        bring(store)
    assert sum(store.key(ref, 0) in store.present for ref in later) >= 4


def test_objects_on_their_way_when_their_hint_is_withdrawn_are_no_wasted_prefetch() -> None:
    store = PlannedStore(COUNT, 1, 20)
    size_known(store)
    hint = announce(store, store.refs[:10])
    store.take(store.planner.wants(store.now, 20 * BLOCK, 10))
    store.planner.withdraw(hint, (), store.now)
    for block in sorted(store.outstanding):
        store.land(block)
        store.planner.removed(block)
    assert store.planner.wasted_bytes == 10 * BLOCK
    announce(store, store.refs[10:])
    assert wanted(store, 4) == store.refs[10:14]


def test_after_a_withdrawal_in_mid_epoch_the_rest_of_a_listed_dataset_is_expected(store: PlannedStore) -> None:
    """So it is for any job that sends no hint."""
    store.planner.discovery.listed("bucket", [(ref.key, BLOCK) for ref in store.refs])
    order = in_chance_order(store, 11)
    read(store, order[:30])
    hint = announce(store, order)
    read(store, order[:10])
    store.planner.withdraw(hint, (), store.now)
    store.present.clear()
    for number in range(COUNT):
        store.planner.removed(BlockKey(number.to_bytes(16, "big"), 0))
    seen = wanted(store)
    assert len(seen) >= 20
    assert not set(seen) & set(order[:10])


def test_an_order_that_was_expected_before_the_hint_is_expected_again(store: PlannedStore) -> None:
    order, plan = in_chance_order(store, 8), in_chance_order(store, 9)
    read(store, order)
    store.present.clear()
    for number in range(COUNT):
        store.planner.removed(BlockKey(number.to_bytes(16, "big"), 0))
    read(store, order[:10])
    before = wanted(store, 4)
    assert set(before) <= set(order[10:20])
    hint = announce(store, plan)
    assert set(wanted(store, 4)) != set(before)
    store.planner.withdraw(hint, (), store.now)
    assert wanted(store, 4) == before
    read(store, order[10:-1])
    for ref in order[:3]:
        store.present.discard(store.key(ref, 0))
        store.planner.removed(store.key(ref, 0))
    assert order[0] in wanted(store), "the next epoch is expected in the same order"


def test_more_may_be_announced_under_a_name_and_epochs_that_are_over_are_forgotten(store: PlannedStore) -> None:
    order = in_chance_order(store, 10)
    hint = Hint()
    for first in range(0, COUNT, 10):
        hint.go_on()
        store.planner.announced("a", order[first : first + 10], store.now, start=first, total=COUNT, hint=hint)
    assert hinted_by(hint).unread == tuple(order)
    read(store, order)
    assert hinted_by(hint) == HintedObjects(COUNT, (), 0)
    hint.go_on()
    assert hinted_by(hint) == HintedObjects(0, (), 0)


def test_a_hint_that_is_announced_again_and_again_takes_no_more_memory(store: PlannedStore) -> None:
    hint = Hint()
    for _ in range(50):
        announce(store, store.refs, hint=hint)
    assert hint.bytes <= 3 * 4 * COUNT
    assert hinted_by(hint).unread == tuple(store.refs)


@settings(max_examples=rounds(25))
@given(seed=st.integers(0, 2**32), readers=st.integers(1, 3))
def test_only_objects_that_were_read_or_are_named_by_a_hint_that_holds_are_wanted(seed: int, readers: int) -> None:
    """Nothing lists this dataset, and one client reads it: only its reads and hints name objects."""
    chance, store = Random(seed), PlannedStore(24, 1, 24)
    hints: dict[str, tuple[Hint, set[ObjectRef]]] = {}
    opened: set[ObjectRef] = set()
    to_read: list[ObjectRef] = []
    for _ in range(300):
        store.now += 0.01
        act = chance.choice("rrrrrrwwwwtd")
        if act == "r":
            to_read = to_read or chance.sample(store.refs, len(store.refs))
            ref = to_read.pop(0)
            if len(store.reading) >= readers:
                store.read_on(chance.choice(sorted(store.reading)))
            if ref not in store.reading:
                store.ask(ref)
                opened.add(ref)
        elif act == "w":
            wants = store.planner.wants(store.now, 24 * BLOCK, 4)
            hinted: set[ObjectRef] = set().union(*(refs for _, refs in hints.values()))
            assert {want.ref for want in wants} <= opened | hinted
            for want in wants:
                store.planner.dropped(want.ref)
        elif act == "t":
            name, refs = chance.choice("xy"), chance.sample(store.refs, chance.randint(1, 12))
            hint, before = hints.get(name, (Hint(), set()))
            hint.go_on()
            announce(store, refs, hint=hint)
            hints[name] = hint, before | set(refs)
        elif hints:
            hint, _ = hints.pop(chance.choice(sorted(hints)))
            others = [other for other, _ in hints.values()]
            expected = {other: set(hinted_by(other).unread) for other in others}
            store.planner.withdraw(hint, others, store.now)
            assert not set(hinted_by(hint).unread) - set().union(*expected.values())
            assert {other: set(hinted_by(other).unread) for other in others} == expected


def orders_known(store: PlannedStore) -> list[bool]:
    return [epoch.order_known for dataset in store.planner.registry.datasets() for epoch in dataset.epochs()]


@settings(max_examples=rounds(25))
@given(seed=st.integers(0, 2**32), before=st.integers(0, 100))
def test_a_hint_that_was_withdrawn_before_a_read_has_changed_nothing(seed: int, before: int) -> None:
    """Compared with a planner that got no hint, whatever is read before and after. There is room for all objects:
    ranks are looked at again with each hint, and otherwise from time to time, so victims may differ.

    A hint and its withdrawal forget the places of the last few reads. So by chance one planner may come to trust an
    order a few reads before the other does (in 11 of 400 random cases), and then fetches less far ahead.
    """
    chance = Random(seed)
    stores = PlannedStore(24, 1, 48), PlannedStore(24, 1, 48)
    epochs = [ref for _ in range(6) for ref in in_chance_order(stores[0], seed if seed % 2 else chance.randint(0, 9))]
    for store in stores:
        store.planner.discovery.listed("bucket", [(ref.key, store.size) for ref in store.refs])
        read(store, epochs[:before])
    hint = announce(stores[0], in_chance_order(stores[0], seed + 1))
    stores[0].planner.withdraw(hint, (), stores[0].now)
    assert orders_known(stores[0]) == orders_known(stores[1])
    for ref in epochs[before : before + 60]:
        for store in stores:
            read(store, [ref])
        hinted, unhinted = map(orders_known, stores)
        assert wanted(stores[0], 4) == wanted(stores[1], 4) or hinted != unhinted


def test_an_object_that_the_planner_has_forgotten_is_unknown_and_is_not_withdrawn(store: PlannedStore) -> None:
    hint = announce(store, store.refs[:10])
    [dataset] = store.planner.registry.datasets()
    dataset.shrink()
    assert hinted_by(hint) == HintedObjects(0, (), 10)
    assert store.planner.withdraw(hint, (), store.now) == 0


def test_reads_and_hints_while_a_long_hint_is_counted_do_no_harm(store: PlannedStore) -> None:
    hint = announce(store, store.refs)
    pieces = hint.pieces(10)
    assert next(pieces) == HintedObjects(0, tuple(store.refs[:10]), 0)
    read(store, store.refs[10:15])
    assert next(pieces) == HintedObjects(5, tuple(store.refs[15:20]), 0)
    announce(store, [ObjectRef("bucket", "train/12345.tar")], hint=hint)
    [dataset] = store.planner.registry.datasets()
    dataset.shrink()
    assert next(pieces) == HintedObjects(0, (), 10)
