"""The registry of datasets is bounded: in names, in datasets, and over a restart."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge
from random import Random

import pytest

from outrider.core.ahead.dataset import registry as registry_module
from outrider.core.ahead.dataset.cached_objects import CachedObject
from outrider.core.ahead.dataset.dataset import Dataset
from outrider.core.ahead.dataset.registry import DatasetRegistry, Victims
from outrider.core.ahead.dataset.templates import Templates
from outrider.core.ahead.planner import Planner
from outrider.core.model import BlockKey, Extent, ObjectRef, ObjectVersion
from tests.support.counted_work import calls_of

MIB = 2**20
DATASETS_MAX = 1024


@pytest.fixture(autouse=True)
def bound_of_datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of the usual bound, which takes a second to come to."""
    monkeypatch.setattr(registry_module, "_DATASETS_MAX", DATASETS_MAX)


def requested(planner: Planner, key: str, now: float) -> ObjectRef:
    ref = ObjectRef("b", key)
    planner.requested("a", ref, MIB, Extent(0, MIB), now)
    planner.sent("a", ref, now)
    return ref


def folders(planner: Planner) -> set[str]:
    return {template.partition("/")[0] for (_, template), _ in planner.registry.items()}


def names_of(planner: Planner) -> set[str]:
    return {key for dataset in planner.registry.datasets() for key in dataset.names.keys}


def test_one_key_in_two_buckets_belongs_to_two_datasets() -> None:
    registry = Planner(MIB, MIB).registry
    items = [registry.item(ObjectRef(bucket, "train/000000")) for bucket in ("b", "other", "b")]
    assert items[0] == items[2] != items[1]
    assert [dataset.bucket for dataset, _ in items] == ["b", "other", "b"]


def test_a_forgotten_dataset_is_not_found_as_the_last_one_that_was_read() -> None:
    planner = Planner(MIB, MIB, keys_max=10)
    for number in range(10):
        old, _ = planner.registry.item(ObjectRef("b", f"train/{number:06d}"))
    planner.announced("a", [ObjectRef("b", f"other/{number:06d}") for number in range(2)], 0.0)
    dataset, number = planner.registry.item(ObjectRef("b", "train/000009"))
    assert old is not dataset
    assert dataset in planner.registry.datasets()
    assert dataset.names.keys[number] == "train/000009"


def test_the_dataset_that_was_silent_for_longest_is_forgotten_first() -> None:
    planner = Planner(MIB, MIB, keys_max=1000)
    for number in range(500):
        requested(planner, f"old/{number:06d}", 0.001 * number)
    for number in range(500):
        requested(planner, f"young/{number:06d}", 1.0 + 0.001 * number)
    requested(planner, "new/000000", 2.0)
    assert folders(planner) == {"young", "new"}
    assert len(planner.registry) == 501


def test_names_of_cached_objects_are_never_forgotten_even_beyond_the_bound() -> None:
    planner = Planner(100 * MIB, MIB, keys_max=10)
    blocks = []
    for number in range(20):
        ref = requested(planner, f"train/{number:06d}", float(number))
        blocks.append(BlockKey(number.to_bytes(16, "big"), 0))
        planner.added(blocks[-1], ObjectVersion(ref, '"e"', MIB))
    requested(planner, "other/000000", 100.0)
    assert set(planner.victims()) == set(blocks)


def test_the_number_of_datasets_is_bounded() -> None:
    planner = Planner(MIB, MIB)
    for number in range(DATASETS_MAX + 20):
        requested(planner, f"only.{_word(number)}", float(number))
    assert DATASETS_MAX // 2 < len(planner.registry.datasets()) == len(planner.registry) <= DATASETS_MAX
    assert f"only.{_word(0)}" not in names_of(planner)
    assert {f"only.{_word(number)}" for number in range(DATASETS_MAX // 2, DATASETS_MAX + 20)} <= names_of(planner)


def test_a_new_dataset_does_not_look_at_all_others_where_all_hold_cached_objects() -> None:
    planner = Planner(10**6 * MIB, MIB)
    for number in range(DATASETS_MAX):
        cached(planner, f"only.{_word(number)}", 0.001 * number)
    requested(planner, "one.more", 5.0)
    assert calls_of(lambda: requested(planner, "and.another", 6.0)) < 200
    assert len(planner.registry.datasets()) == DATASETS_MAX + 2


def test_a_list_of_many_datasets_does_not_displace_a_dataset_that_is_read() -> None:
    """Objects of the datasets without room are known only by their reads."""
    planner = Planner(MIB, MIB)
    requested(planner, "train/000000", 0.0)
    planner.discovery.listed("b", [(f"only.{_word(number)}", 1) for number in range(DATASETS_MAX + 500)])
    assert len(planner.registry.datasets()) == DATASETS_MAX
    assert "train" in folders(planner)


def test_a_list_of_too_many_names_leaves_no_empty_dataset_behind() -> None:
    registry = DatasetRegistry(100, lambda dataset: None, lambda items: None, Templates())
    assert registry.list("b", [(f"huge/{number:06d}", 1) for number in range(101)]) == []
    assert (len(registry), len(registry.datasets())) == (0, 0)


def test_the_state_of_an_earlier_run_is_cut_to_the_bounds_of_this_one() -> None:
    large, small = Planner(MIB, MIB), Planner(MIB, MIB, keys_max=1000)
    for folder, count in (("fits", 900), ("huge", 2000), ("one-more", 101)):
        large.discovery.listed("b", [(f"{folder}/{number:06d}", 1) for number in range(count)])
    small.registry.restore(large.registry.export())
    assert (len(small.registry), folders(small)) == (900, {"fits"})


def test_an_earlier_run_may_have_known_more_datasets() -> None:
    registry = DatasetRegistry(10**6, lambda dataset: None, lambda items: None, Templates())
    for number in range(2):
        before = Planner(MIB, MIB)
        names = range(number * DATASETS_MAX, (number + 1) * DATASETS_MAX - 10)
        before.discovery.listed("b", [(f"only.{_word(name)}", 1) for name in names])
        registry.restore(before.registry.export())
    assert len(registry.datasets()) == DATASETS_MAX


def _word(number: int) -> str:
    """A folder's name of letters alone: a number would make many folders one dataset."""
    return "".join("abcdefghij"[int(digit)] for digit in str(number))


def cached(planner: Planner, key: str, now: float) -> BlockKey:
    ref = requested(planner, key, now)
    block = BlockKey(key.encode().ljust(16)[:16], 0)
    planner.added(block, ObjectVersion(ref, '"e"', MIB))
    return block


@pytest.mark.parametrize("sets", [5, 60])
def test_the_farthest_object_of_many_datasets_is_found_as_of_few(sets: int) -> None:
    planner, random = Planner(10**6 * MIB, MIB), Random(sets)
    keys = [f"{_word(number)}/{index}" for number in range(sets) for index in range(4)]
    now = 0.0
    for key in random.sample(keys, len(keys)):
        now += 1.0
        cached(planner, key, now)
    # Each folder is a dataset that was read once, in an order of its own. Some objects are read for a second time now.
    for key in random.sample(keys, sets):
        now += 1.0
        requested(planner, key, now)
    found = list(planner.registry.farthest(now))
    assert sorted(cached.version_id for _, cached in found) == sorted(key.encode().ljust(16)[:16] for key in keys)
    each = [dataset.next_use.farthest(now) for dataset in planner.registry.datasets()]
    exact = [seconds for seconds, _ in merge(*each, key=lambda pair: -pair[0])]
    # Beyond these, two are equally far, and either may be first.
    assert [seconds for seconds, _ in found][:75] == exact[:75]
    newest = cached(planner, f"{_word(sets)}/new", now)
    assert newest.version_id in {cached.version_id for _, cached in planner.registry.farthest(now)}


def test_an_eviction_looks_at_few_of_many_datasets() -> None:
    def work(sets: int) -> int:
        planner = Planner(10**6 * MIB, MIB)
        for number in range(sets):
            for index in range(600 // sets):
                cached(planner, f"{_word(number)}/{index}", float(number))
        next(planner.victims())
        return calls_of(lambda: next(planner.victims()))

    assert work(300) <= 5 * work(1)


def test_a_dataset_that_comes_or_goes_does_not_cause_a_look_at_all_others() -> None:
    planner = Planner(10**6 * MIB, MIB)
    for number in range(300):
        cached(planner, f"{_word(number)}/0", 0.0)
    next(planner.victims())
    planner.removed(cached(planner, "gone/0", 0.0))
    cached(planner, "new/0", 0.0)
    assert calls_of(lambda: next(planner.victims())) < 100


def of_folders(count: int) -> Planner:
    """Folders of four objects each, of which one was read just now and is cached."""
    planner = Planner(10**6 * MIB, MIB)
    names = [f"{_word(number)}/{index}" for number in range(count) for index in range(4)]
    planner.discovery.listed("b", [(name, MIB) for name in names])
    for number in range(count):
        cached(planner, names[4 * number], 0.001 * number)
    return planner


def test_the_search_for_candidates_looks_at_few_of_many_datasets() -> None:
    def work(count: int) -> int:
        planner = of_folders(count)
        planner.wants(1.0, 0, 16)
        return calls_of(lambda: planner.wants(1.0, 0, 16))

    assert work(300) < 2 * work(16)


def large_set(count: int, *, keys_max: int = 10**6) -> Planner:
    """A dataset of which all objects but the last are cached. The order of its reads is not known."""
    planner = Planner(10**6 * MIB, MIB, keys_max=keys_max)
    names = [f"train/{number:06d}" for number in range(count)]
    planner.discovery.listed("b", [(name, MIB) for name in names])
    for name in names[:-1]:
        block = BlockKey(name.encode().ljust(16)[:16], 0)
        planner.added(block, ObjectVersion(ObjectRef("b", name), '"e"', MIB))
    for number in (4000, 17, 2900, 1200):
        requested(planner, names[number], 0.001)
    return planner


def test_the_search_for_candidates_passes_over_a_bounded_number_of_cached_objects() -> None:
    def work(count: int) -> int:
        planner = large_set(count)
        return calls_of(lambda: planner.wants(0.01, 10**6 * MIB, 16))

    assert work(10_000) < 1.1 * work(5000)


def test_candidates_beyond_that_bound_are_found_in_steps() -> None:
    planner, steps = large_set(5000), 0
    assert planner.wants(0.01, 10**6 * MIB, 16) == []
    while planner.step():
        steps += 1
    assert steps > 100
    assert [want.ref.key for want in planner.wants(0.02, 10**6 * MIB, 16)] == ["train/004999"]


def test_a_later_search_goes_on_where_the_last_one_ended() -> None:
    planner = large_set(5000)
    found = [len(planner.wants(0.01, 10**6 * MIB, 16)) for _ in range(5)]
    assert found == [0, 0, 0, 0, 1]
    assert not planner.step()


def test_a_dataset_that_was_forgotten_between_two_steps_is_not_searched() -> None:
    planner = large_set(5000, keys_max=5000)
    planner.wants(0.01, 10**6 * MIB, 16)
    # The set has names that no cached object needs: the next new name has the set forgotten.
    for block in list(planner.victims())[:1000]:
        planner.removed(block)
    requested(planner, "another/0", 0.02)
    assert not planner.step()


def test_if_one_candidate_has_no_room_those_due_later_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    planner, searched = of_folders(16), 0
    search = Victims.farthest

    def counted(self: Victims, later_than_s: float, now: float) -> Iterator[CachedObject]:
        nonlocal searched
        searched += 1
        return search(self, later_than_s, now)

    monkeypatch.setattr(Victims, "farthest", counted)
    assert planner.wants(1.0, -100 * MIB, 16) == []
    assert searched == 1


def test_every_one_of_many_datasets_is_prefetched() -> None:
    planner = of_folders(100)
    wanted = []
    for _ in range(100):
        for want in planner.wants(1.0, 100 * MIB, 16):
            wanted.append(want.ref.key)
            planner.added(BlockKey(want.ref.key.encode().ljust(16)[:16], 0), ObjectVersion(want.ref, '"e"', MIB))
    assert sorted(wanted) == sorted(f"{_word(number)}/{index}" for number in range(100) for index in (1, 2, 3))


def test_the_dataset_read_last_is_considered_each_time() -> None:
    planner = of_folders(300)
    requested(planner, f"{_word(7)}/1", 0.5)
    for _ in range(3):
        planner.wants(1.0, 0, 16)
    wanted = {want.ref.key for want in planner.wants(1.0, 100 * MIB, 32)}
    assert {f"{_word(7)}/2", f"{_word(7)}/3"} & wanted


def test_a_dataset_of_too_many_names_is_not_listed_again_and_again() -> None:
    names_max, count, page = 3000, 3800, 100
    planner = Planner(10_000, 10, keys_max=names_max)
    keys = [f"d/{number:06d}.jpg" for number in range(count)]
    lists, listed = 0, names_max
    for now, key in enumerate(Random(1).sample(keys, count)):
        requested(planner, key, 0.01 * now)
        if planner.discovery.please_list():
            lists, listed = lists + 1, 0
        for _ in range(4):
            if listed < names_max:
                names = [(key, 10) for key in keys[listed : listed + page]]
                planner.discovery.listed("b", names, before=listed, more=True)
                listed += page
                if listed == names_max:
                    planner.discovery.listed("b", (), before=listed)
    assert lists == 1


def test_a_dataset_of_cached_objects_alone_is_not_shrunk_for_each_new_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shrunk, shrink = [], Dataset.shrink

    def counted(dataset: Dataset) -> None:
        shrunk.append(dataset)
        shrink(dataset)

    monkeypatch.setattr(Dataset, "shrink", counted)
    planner = Planner(10**9, 10, keys_max=1000)
    for number in range(1100):
        key = f"d/{number:06d}.jpg"
        cached(planner, key, float(number))
        if number >= 1000:
            planner.removed(next(planner.victims()))
    assert len(shrunk) <= 2
