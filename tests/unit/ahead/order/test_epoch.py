"""Epochs through the planner: datasets are found by their names, epochs predicted, kinds of reading distinguished, and
learned orders kept."""

from __future__ import annotations

import json
import tracemalloc
import zlib
from collections.abc import Callable
from itertools import cycle, pairwise
from random import Random

import pytest

from outrider.core.ahead.dataset.dataset import Dataset
from outrider.core.ahead.dataset.registry import Outlook
from outrider.core.ahead.dataset.templates import template_of
from outrider.core.ahead.object_names import Names
from outrider.core.ahead.order.epoch_detector import EpochDetector
from outrider.core.ahead.planner import Planner
from outrider.core.model import BlockKey, Extent, ObjectRef, ObjectVersion

MIB = 2**20
COUNT = 200
KEYS = [f"train/part-{i:05d}.tar" for i in range(COUNT)]


class Jobs:
    """A planner, and jobs that read through it in an order."""

    def __init__(self, *, listed: bool = True, believed_s: float = float("inf"), size: int = MIB) -> None:
        self.planner = Planner(COUNT * size // 4, size, believed_s=lambda _: believed_s)
        self.now = 0.0
        self.size = size
        if listed:
            self.planner.discovery.listed("b", [(key, size) for key in KEYS])

    def read(self, order: list[int], client: str = "a") -> None:
        for i in order:
            self.now += 0.01
            self.planner.requested(client, ObjectRef("b", KEYS[i]), self.size, Extent(0, self.size), self.now)
            self.planner.sent(client, ObjectRef("b", KEYS[i]), self.now)

    def came(self, i: int) -> None:
        version = ObjectVersion(ObjectRef("b", KEYS[i]), '"e"', self.size, ())
        self.planner.added(BlockKey(b"%016d" % i, 0), version)

    def land_next(self) -> int:
        """The most urgent wanted object lands."""
        [want] = self.planner.wants(self.now, COUNT * self.size, 1)
        self.came(number := KEYS.index(want.ref.key))
        self.planner.dropped(want.ref)
        return number

    def announce(self, order: list[int]) -> None:
        self.planner.announced("a", [ObjectRef("b", KEYS[i]) for i in order], self.now)

    def wanted(self, count: int = 4) -> list[int]:
        wants = self.planner.wants(self.now, COUNT * self.size, count)
        for want in wants:
            self.planner.dropped(want.ref)
        return [KEYS.index(want.ref.key) for want in wants]


SHUFFLED = Random(3).sample(range(COUNT), COUNT)


def test_an_order_that_repeats_is_predicted() -> None:
    jobs = Jobs()
    jobs.read(SHUFFLED)
    jobs.read(SHUFFLED[:50])
    assert set(jobs.wanted()) <= set(SHUFFLED[50:60])


def test_in_a_new_order_the_unread_objects_of_a_dataset_are_prefetched() -> None:
    jobs, other = Jobs(), Random(4).sample(range(COUNT), COUNT)
    jobs.read(SHUFFLED)
    jobs.read(other[:50])
    assert len(jobs.wanted(20)) == 20
    assert not set(jobs.wanted(20)) & set(other[:50])


def test_without_a_list_an_epoch_is_known_by_its_repetition() -> None:
    jobs = Jobs(listed=False)
    jobs.read(SHUFFLED)
    assert jobs.wanted() == []
    jobs.read(SHUFFLED[:60])
    assert set(jobs.wanted()) <= set(SHUFFLED[60:70])
    assert jobs.wanted()


def test_a_template_is_listed_once_after_its_first_keys() -> None:
    jobs = Jobs(listed=False)
    jobs.read([0, 1])
    assert jobs.planner.discovery.please_list() == []
    jobs.read([2, 3])
    assert jobs.planner.discovery.please_list() == [("b", "train/part-")]
    jobs.read(list(range(4, 20)))
    assert jobs.planner.discovery.please_list() == []


def test_a_prefix_that_was_listed_a_moment_ago_is_not_listed_again() -> None:
    jobs, asked = Jobs(listed=False, believed_s=60.0), []
    jobs.now = 1000.0
    for _ in range(100):
        jobs.now += 1.0
        jobs.read([0, 1, 2])
        if jobs.planner.discovery.please_list():
            asked.append(jobs.now)
            jobs.planner.discovery.listed("b", [(key, MIB) for key in KEYS])
    assert len(asked) == 3
    assert all(45.0 <= later - sooner <= 46.1 for sooner, later in pairwise(asked))


def test_prefetch_begins_with_the_first_page_of_a_list_and_the_agenda_is_renewed_at_each_doubling(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jobs, updates = Jobs(listed=False), list[object]()
    monkeypatch.setattr(EpochDetector, "listed", spied(EpochDetector.listed, updates))
    jobs.read([5, 0, 8, 3])
    for before in range(0, COUNT, 10):
        page = [(key, MIB) for key in KEYS[before : before + 10]]
        jobs.planner.discovery.listed("b", page, before=before, more=True)
        assert jobs.wanted(), "prefetch uses the names known so far"
    jobs.planner.discovery.listed("b", (), before=COUNT)
    assert updates == [10, 30, 70, 150, COUNT]
    jobs.read(SHUFFLED[:50])
    assert set(jobs.wanted(150)) == set(range(COUNT)) - set(SHUFFLED[:50]) - {5, 0, 8, 3}


def test_names_of_a_page_may_be_read_and_cached_before_the_list_is_complete() -> None:
    jobs = Jobs(listed=False)
    jobs.read([5, 0, 8, 3])
    jobs.read([5, 0, 8, 3], client="b")
    for before in range(0, COUNT, 10):
        page = [(key, MIB) for key in KEYS[before : before + 10]]
        jobs.planner.discovery.listed("b", page, before=before, more=True)
        jobs.came(before + 9)
        jobs.read([before + 7])
        jobs.read([before + 6], client="b")
        assert jobs.wanted(), "prefetch uses the names known so far"


def test_a_dataset_that_was_forgotten_except_for_cached_objects_is_learned_anew_from_a_shorter_list() -> None:
    jobs = Jobs()
    jobs.read(SHUFFLED[:20])
    jobs.came(150)
    jobs.planner.registry.forget_oldest(Dataset("b", "another"))
    jobs.read([5, 0, 8, 3])
    jobs.planner.discovery.listed("b", [(key, MIB) for key in KEYS[:100]])
    assert jobs.wanted()


def spied(method: Callable[..., None], calls: list[object]) -> Callable[..., None]:
    def spy(job: EpochDetector, names: Names) -> None:
        calls.append(len(names.listed))
        method(job, names)

    return spy


@pytest.mark.parametrize(("believed_s", "lists"), [(60.0, 2), (0.0, 0), (float("inf"), 0)])
def test_a_dataset_that_is_read_fast_is_listed_again_before_its_names_grow_stale(believed_s: float, lists: int) -> None:
    jobs = Jobs(believed_s=believed_s)
    assert lists_asked(jobs, lambda: jobs.read([0, 1])) == lists, "at 45 and at 90 seconds"


def lists_asked(jobs: Jobs, each_second: Callable[[], None], seconds: int = 100) -> int:
    asked = 0
    for _ in range(seconds):
        jobs.now += 1.0
        each_second()
        for bucket, prefix in jobs.planner.discovery.please_list():
            asked += 1
            jobs.planner.discovery.listed(bucket, (), prefix=prefix)
    return asked


def test_a_dataset_of_tiny_objects_that_are_not_cached_is_listed_again_only_for_its_new_names() -> None:
    """Each read asks the origin in any case, and a LIST takes much of the bandwidth."""
    jobs, order = Jobs(believed_s=60.0, size=1024), cycle(SHUFFLED)
    assert lists_asked(jobs, lambda: jobs.read([next(order), next(order)]), 440) == 0
    assert lists_asked(jobs, lambda: jobs.read([next(order), next(order)]), 440) == 1


def test_a_dataset_of_tiny_objects_that_land_a_moment_before_they_are_read_is_not_listed_again() -> None:
    jobs, seen = Jobs(believed_s=60.0, size=1024), set(SHUFFLED[:8])
    jobs.read(SHUFFLED[:8])

    def one_here_and_one_not() -> None:
        for choose in (jobs.land_next, lambda: next(i for i in SHUFFLED if i not in seen)):
            seen.add(number := choose())
            jobs.read([number])

    assert lists_asked(jobs, one_here_and_one_not, 60) == 0


def test_reads_of_tiny_objects_that_were_cached_for_a_while_make_a_list_worthwhile() -> None:
    jobs = Jobs(believed_s=60.0, size=1024)
    jobs.read(SHUFFLED[:8])
    ahead = [jobs.land_next() for _ in range(16)]
    for number in ahead:
        jobs.planner.read(BlockKey(b"%016d" % number, 0))
    jobs.now += 45.0
    jobs.read(ahead[:15])
    assert jobs.planner.discovery.please_list() == []
    jobs.read(ahead[15:])
    assert jobs.planner.discovery.please_list() == [("b", "train/part-")]
    jobs.planner.discovery.listed("b", (), prefix="train/part-")
    jobs.now += 45.0
    jobs.read([number for number in SHUFFLED if number not in ahead][:50])
    assert jobs.planner.discovery.please_list() == [], "reads that spared a question before the last LIST do not count"


def test_a_dataset_that_is_read_slowly_or_is_a_small_part_of_a_long_list_is_not_listed_again() -> None:
    slowly, beside = Jobs(believed_s=60.0), Jobs(believed_s=60.0)
    beside.planner.discovery.listed("b", [(f"other/{i}", 1) for i in range(20_000)] + [(key, MIB) for key in KEYS])
    for i in range(20):
        slowly.now += 10.0
        beside.now += 10.0
        slowly.read([i])
        beside.read(list(range(20)))
        assert slowly.planner.discovery.please_list() == []
        assert ("b", "train/part-") not in beside.planner.discovery.please_list()


def test_sampling_with_replacement_is_noticed_and_ends_prefetch() -> None:
    jobs = Jobs()
    jobs.read(Random(5).choices(range(COUNT), k=COUNT))
    assert jobs.wanted() == []
    outlook = jobs.planner.registry.outlook()
    assert outlook == Outlook(free_reads=outlook.free_reads) != Outlook()


def test_epochs_that_return_after_random_reads_are_noticed() -> None:
    jobs = Jobs()
    jobs.read(Random(5).choices(range(COUNT), k=COUNT))
    jobs.read(SHUFFLED)
    jobs.read(SHUFFLED[:100])
    assert set(jobs.wanted()) <= set(SHUFFLED[100:110])
    assert jobs.wanted()


@pytest.mark.parametrize("part", [range(1, COUNT, 4), range(50, 100)], ids=["every fourth", "a quarter in a row"])
def test_for_a_sidecar_that_reads_a_part_hardly_any_other_objects_are_prefetched(part: range) -> None:
    jobs, own = Jobs(), set(part)
    jobs.read(Random(6).sample(sorted(own), 25))
    fetched = set(jobs.wanted(60))
    assert len(fetched & own) >= 20
    assert len(fetched - own) <= 10


def test_a_read_of_an_unlisted_name_does_not_change_the_guess_of_the_part() -> None:
    jobs, own = Jobs(listed=False), range(1, COUNT, 4)
    reads = Random(6).sample(own, 25)
    jobs.read(reads[:12])
    jobs.planner.requested("a", ObjectRef("b", "train/part-99999.tar"), MIB, Extent(0, MIB), jobs.now)
    jobs.read(reads[12:])
    jobs.planner.discovery.listed("b", [(key, MIB) for key in KEYS])
    assert len(set(jobs.wanted(60)) - set(own)) <= 10


@pytest.mark.parametrize(("seed", "read_before"), [(0, 21), (1, 7), (2, 3), (3, 10)])
def test_a_dataset_that_several_readers_read_in_order_is_prefetched_to_its_end(seed: int, read_before: int) -> None:
    """It was taken for the part of one sidecar, and all of that part is read. The epoch does not end there."""
    jobs, chance = Jobs(listed=False), Random(seed)
    overtaking = sorted(range(COUNT), key=lambda i: i + chance.random() * chance.choice((2, 4, 8)))
    jobs.read(overtaking[:read_before])
    jobs.planner.discovery.listed("b", [(key, MIB) for key in KEYS])
    idle = 0
    for number in range(read_before, COUNT - 32):
        jobs.read([overtaking[number]])
        idle += not set(jobs.wanted(8)) - set(overtaking[: number + 1])
    assert idle <= 8, "only now and then the guess of the part must grow first"


def test_an_announced_order_is_followed_from_its_first_shard() -> None:
    jobs, plan = Jobs(listed=False), Random(7).sample(range(COUNT), COUNT)
    for worker in range(2):
        jobs.planner.announced("a", [ObjectRef("b", KEYS[i]) for i in plan[worker::2]], jobs.now)
    assert set(jobs.wanted(3)) <= set(plan[:4])
    jobs.read(plan[:40])
    assert set(jobs.wanted(3)) <= set(plan[40:50])


def test_an_announced_order_is_not_listed_before_its_names_grow_stale() -> None:
    jobs = Jobs(listed=False, believed_s=60.0)
    for _ in range(2):
        jobs.announce(SHUFFLED)
        jobs.read(SHUFFLED)
        assert jobs.planner.discovery.please_list() == []
    jobs.now += 45.0
    jobs.announce(SHUFFLED)
    jobs.read(SHUFFLED)
    assert jobs.planner.discovery.please_list() == [("b", "train/part-")]


def test_the_first_reads_of_an_announced_epoch_may_arrive_before_its_order() -> None:
    """A LIST would take bandwidth from the first batch."""
    jobs = Jobs(listed=False)
    jobs.announce(SHUFFLED)
    jobs.read(SHUFFLED)
    other = Random(8).sample(range(COUNT), COUNT)
    jobs.read(other[:3])
    jobs.announce(other[3:])
    jobs.read(other[3:])
    assert jobs.planner.discovery.please_list() == []
    jobs.read(SHUFFLED[:15])
    assert jobs.planner.discovery.please_list() == []
    jobs.read(SHUFFLED[15:17])
    assert jobs.planner.discovery.please_list() == [("b", "train/part-")], (
        "no worker will announce this epoch's order any more"
    )


def test_an_announced_order_is_prefetched_from_its_first_moment() -> None:
    """The first announced order is fetched as far as there is room, while the pace of the readers is not known.
    The next one is fetched at the pace of the last epoch."""
    jobs = Jobs(listed=False)
    jobs.announce(SHUFFLED)
    assert jobs.wanted(40) == SHUFFLED[:1], "the size of the objects is not known either"
    jobs.came(SHUFFLED[0])
    assert len(set(jobs.wanted(40)) & set(SHUFFLED[:41])) == 40
    for i in SHUFFLED[:-10]:
        outstanding = jobs.planner.wants(jobs.now, COUNT * MIB, 1)
        jobs.now += 0.09
        for want in outstanding:
            jobs.came(KEYS.index(want.ref.key))
        jobs.read([i])
    for i in range(COUNT):
        jobs.planner.removed(BlockKey(b"%016d" % i, 0))
    jobs.announce(SHUFFLED[::-1])
    ahead = len(jobs.planner.wants(jobs.now, COUNT * MIB, 40))
    assert 4 <= ahead < 20, (
        "the objects that readers open next and during a fill, but no more: cached objects are of use, too"
    )


@pytest.mark.parametrize("padding", [0, 1])
def test_after_an_announced_epoch_its_order_is_not_prefetched_again_before_the_next_is_announced(padding: int) -> None:
    """It would take bandwidth and room from the next epoch's first shards."""
    jobs, other = Jobs(listed=False), Random(8).sample(range(COUNT), COUNT)
    for i in SHUFFLED[-COUNT // 4 :]:
        jobs.came(i)
    for order, wanted in (SHUFFLED, []), (other, []), (other, other[padding : padding + 2]):
        jobs.announce(order)
        # A sampler that pads reads some of the first objects again, before the slowest reader has come to its end.
        jobs.read([*order[:-2], *order[:padding], *order[-2:]])
        wants = jobs.planner.wants(jobs.now, 0, 2)
        assert [KEYS.index(want.ref.key) for want in wants] == wanted, "only hints that repeat show the next order"
        for want in wants:
            jobs.planner.dropped(want.ref)


def test_a_dataset_of_unknown_order_is_replaced_at_twice_the_pace_of_its_readers() -> None:
    """More prefetches at once would not be of use any sooner, and demand would queue behind them."""
    jobs, other = Jobs(), Random(4).sample(range(COUNT), COUNT)
    for i in SHUFFLED[:50]:
        jobs.came(i)
    jobs.read(SHUFFLED)
    jobs.read(other[:50])
    filling = jobs.planner.wants(jobs.now, COUNT * MIB, 20)
    assert len(filling) == 20
    for want in filling:
        jobs.planner.dropped(want.ref)
    assert len(jobs.planner.wants(jobs.now, 0, 20)) == 1, "a fill takes no time here"


def test_room_is_counted_in_bytes_on_disk() -> None:
    """Blocks of 1 KiB take 8 KiB on disk. Counted by their own size they would be wanted, refused for lack of room, and
    wanted again for ever."""
    planner = Planner(80 * 8192, MIB, disk_bytes=lambda length: 4096 + -(-length // 4096) * 4096)
    refs = [ObjectRef("b", key) for key in KEYS]
    planner.discovery.listed("b", [(key, 1024) for key in KEYS])
    planner.announced("a", refs, 0.0)
    planner.requested("a", refs[0], 1024, Extent(0, 1024), 0.0)
    assert planner.wants(0.0, 8191, 4) == []
    assert len(planner.wants(0.0, 2 * 8192, 4)) == 2


def test_an_object_of_unknown_size_is_taken_to_be_as_large_as_the_last_one() -> None:
    """It is not taken for a whole block, for which a small cache would have no room."""
    planner = Planner(MIB // 4, MIB)
    refs = [ObjectRef("b", key) for key in KEYS]
    planner.announced("a", refs, 0.0)
    assert planner.wants(0.0, MIB // 4, 4) == []
    planner.requested("a", refs[0], 1024, Extent(0, 1024), 0.0)
    assert planner.wants(0.0, MIB // 4, 4) != []


def test_prefetch_in_vain_pauses_prefetch_until_reads_have_made_up_for_it() -> None:
    """A fiftieth of the cache, and two blocks, may have been evicted unread lately: 3 of these 50."""
    jobs = Jobs()
    planner = jobs.planner
    jobs.read(SHUFFLED)
    jobs.read(SHUFFLED[:50])
    in_vain = 0
    while in_vain < COUNT and (wants := planner.wants(jobs.now, COUNT * MIB, 1)):
        block = BlockKey(in_vain.to_bytes(16, "big"), 0)
        planner.added(block, ObjectVersion(wants[0].ref, '"e"', MIB))
        planner.removed(block)
        in_vain += 1
    assert in_vain == 4
    assert planner.wasted_bytes == 4 * MIB
    jobs.read(SHUFFLED[50:52])
    assert jobs.wanted() == [], "not at once"
    jobs.read(SHUFFLED[52:60])
    assert jobs.wanted() != []


def test_a_second_after_the_readers_stop_prefetch_stops() -> None:
    jobs = Jobs()
    jobs.read(SHUFFLED)
    jobs.read(SHUFFLED[:50])
    assert jobs.wanted()
    jobs.now += 1.1
    assert jobs.wanted() == []


def test_a_learned_order_survives_a_restart() -> None:
    before, after = Jobs(), Jobs(listed=False)
    before.read(SHUFFLED)
    before.read(SHUFFLED[:20])
    after.planner.registry.restore(before.planner.registry.export())
    after.read(SHUFFLED[:20])
    wanted = after.wanted()
    assert wanted
    assert set(wanted) <= set(SHUFFLED[20:30])


@pytest.mark.parametrize("data", [b"", b"nonsense", b"x\x9c\x03\x00\x00\x00\x00\x01"])
def test_bytes_that_are_no_learned_state_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        Jobs().planner.registry.restore(data)


def test_a_stored_order_that_has_an_object_twice_is_refused() -> None:
    jobs = Jobs()
    jobs.read(SHUFFLED)
    jobs.read(SHUFFLED[:20])
    said = json.loads(zlib.decompress(jobs.planner.registry.export()))
    (order,) = said["datasets"][0]["orders"]
    order["keys"][-1] = order["keys"][0]
    with pytest.raises(ValueError, match="twice"):
        Jobs().planner.registry.restore(zlib.compress(json.dumps(said).encode()))


def test_many_names_that_are_read_take_bounded_memory() -> None:
    """Names and epochs; `tests.bench.ahead_events` measures a million. The active readers are not counted."""
    count = 10_000
    tracemalloc.start()
    try:
        planner = Planner(MIB, MIB)
        planner.discovery.listed("b", ((f"train/part-{i:08d}.tar", MIB) for i in range(count)))
        for i in range(0, count, 7):
            ref = ObjectRef("b", f"train/part-{i:08d}.tar")
            planner.requested("a", ref, MIB, Extent(0, MIB), i * 0.01)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    template_of.cache_clear()
    assert taken < 400 * count, taken
