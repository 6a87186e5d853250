"""Discovery: the objects of a dataset are found by a LIST, or by the numbers in its names."""

from __future__ import annotations

from random import Random

import pytest

from outrider.core.ahead.numbered_names_search import NumberedNames
from outrider.core.ahead.planner import Planner
from outrider.core.model import Extent, ObjectRef
from outrider.simulator.run import Machine, Simulation
from outrider.simulator.scenarios import JobSpec, Shards, order_of

SMALL = 10_000
COUNT = 300
KEYS = [f"s/{number:06d}.bin" for number in range(COUNT)]
PREFIX = ("b", "s/")


class Reader:
    """Reads objects of `size` bytes. Wanted objects are fetched, unless they are in `missing`: these do not exist."""

    def __init__(self, size: int = SMALL, *, believed_s: float = float("inf"), keys_max: int = 10_000) -> None:
        self.size = size
        self.planner = Planner(100 * size, size, believed_s=lambda _: believed_s, keys_max=keys_max)
        self.now = 0.0

    def read(self, *keys: str) -> None:
        for key in keys:
            self.now += 0.01
            self.planner.requested("a", ObjectRef("b", key), self.size, Extent(0, self.size), self.now)
            self.planner.sent("a", ObjectRef("b", key), self.now)

    def counted(self, numbering: NumberedNames | None = None, *, stop: int = COUNT, step: int = 50) -> int:
        """Answers a numbering in pages. Returns how many names the planner took."""
        if numbering is None:
            [(_, numbering)] = self.planner.discovery.please_count()
        for first in range(0, stop, step):
            names = [f"s/{number:06d}.bin" for number in range(first, min(stop, first + step))]
            if not self.planner.discovery.counted(numbering, names, before=first, more=True):
                return first
        self.planner.discovery.counted(numbering, (), before=stop)
        return stop

    def not_counted(self) -> None:
        """The first reads of a dataset, after which the probe of its numbering failed."""
        self.read(*READ)
        [(_, numbering)] = self.planner.discovery.please_count()
        self.planner.discovery.not_counted(numbering, self.now)
        assert self.planner.discovery.please_list() == [PREFIX]

    def listed(self, keys: list[str]) -> None:
        self.planner.discovery.listed("b", [(key, self.size) for key in keys])

    def wanted(self, *, there: set[str] | None = None) -> set[str]:
        """All objects that the planner wants now. It learns which of them do not exist."""
        found: set[str] = set()
        while wants := self.planner.wants(self.now, 10**9, 8):
            for want in wants:
                found.add(want.ref.key)
                missing = there is not None and want.ref.key not in there
                if not missing:
                    self.planner.found(want.ref, self.size)
                self.planner.dropped(want.ref, again=False, missing=missing)
        return found


READ = [KEYS[number] for number in (200, 17, 130, 4)]


def test_small_objects_with_numbered_names_are_probed_and_not_listed() -> None:
    reader = Reader()
    reader.read(*READ)
    [(bucket, numbering)] = reader.planner.discovery.please_count()
    assert (bucket, numbering) == ("b", NumberedNames("s/", 6, ".bin", (17, 130, 200)))
    assert reader.planner.discovery.please_list() == []
    reader.counted(numbering)
    assert reader.wanted() == set(KEYS) - set(READ)
    reader.read(*KEYS[20:40])
    assert reader.planner.discovery.please_count() == []
    assert reader.planner.discovery.please_list() == []


@pytest.mark.parametrize(("keys", "size"), [
    (KEYS[:4], 30_000),
    (["s/000100-3.bin", "s/000101-1.bin", "s/000102-4.bin", "s/000103-1.bin"], SMALL),
])  # fmt: skip
def test_large_objects_and_names_without_numbers_are_listed(keys: list[str], size: int) -> None:
    reader = Reader(size)
    reader.read(*keys)
    assert reader.planner.discovery.please_count() == []
    assert reader.planner.discovery.please_list() == [PREFIX]


def test_names_with_gaps_are_listed() -> None:
    reader = Reader()
    reader.not_counted()
    reader.planner.discovery.list_failed("b", "s/", reader.now)
    reader.now += 100.0
    reader.read(KEYS[9])
    assert reader.planner.discovery.please_list() == [PREFIX], "a LIST is due again, and no probe"
    assert reader.planner.discovery.please_count() == []


def test_numbered_names_are_probed_if_a_list_is_refused() -> None:
    reader = Reader(1_000_000)
    reader.read(*READ)
    assert reader.planner.discovery.please_list() == [PREFIX]
    reader.planner.discovery.list_refused("b", "s/", reader.now)
    reader.counted()
    assert reader.wanted() == set(KEYS) - set(READ)
    reader.read("s/000900.bin")
    assert reader.planner.discovery.please_list() == [], "another LIST would be refused, too"


def test_without_a_list_and_without_numbers_only_reads_are_known() -> None:
    reader = Reader()
    reader.not_counted()
    reader.planner.discovery.list_refused("b", "s/", reader.now)
    reader.read(*KEYS[20:60])
    assert reader.planner.discovery.please_count() == []
    assert reader.planner.discovery.please_list() == []
    assert reader.wanted() == set()


@pytest.mark.parametrize("how", ["a hole", "beyond the end"])
def test_a_wrong_numbering_is_replaced_by_a_list(how: str) -> None:
    reader = Reader()
    reader.read(*READ)
    reader.counted()
    there = [key for key in KEYS if key != KEYS[100]] + ["s/000900.bin", "s/000901.bin"]
    if how == "a hole":
        assert KEYS[100] in reader.wanted(there=set(there))
    else:
        reader.read("s/000900.bin")
    assert reader.planner.discovery.please_list() == [PREFIX]
    reader.read("s/000901.bin")
    reader.wanted(there=set(there))
    assert reader.planner.discovery.please_list() == [], "one LIST is enough"
    reader.listed(there)
    assert reader.wanted(there=set(there)) == set(there) - set(READ) - {"s/000901.bin"} - (
        {"s/000900.bin"} if how == "beyond the end" else set()
    )
    assert reader.planner.discovery.please_list() == []


def test_a_numbering_that_comes_after_a_list_changes_nothing() -> None:
    reader = Reader()
    reader.read(*READ)
    reader.listed(KEYS[:250])
    assert reader.counted() == 0
    assert reader.wanted() == set(KEYS[:250]) - set(READ)


def test_a_numbering_with_many_missing_objects_is_given_up() -> None:
    reader, there = Reader(1_000_000), {*KEYS[::2], KEYS[17]}
    reader.read(*(KEYS[number] for number in (200, 17, 130, 4, 290)))
    reader.planner.discovery.please_list()
    reader.planner.discovery.list_refused("b", "s/", reader.now)
    reader.counted()
    tried = reader.wanted(there=there)
    assert 8 + COUNT // 8 < len(tried - there) <= 16 + COUNT // 8
    reader.read(*KEYS[100:120:2])
    assert reader.wanted(there=there) == set()
    reader.read(*[*KEYS[::2], *KEYS[::2]])
    after = Reader(1_000_000)
    after.planner.registry.restore(reader.planner.registry.export())
    [dataset] = after.planner.registry.datasets()
    assert {dataset.names.keys[key] for key in dataset.names.listed} == there, "names stay missing after a restart"


def test_an_epoch_of_numbered_names_ends_and_the_next_is_predicted() -> None:
    reader = Reader()
    order = Random(3).sample(KEYS, COUNT)
    for number, key in enumerate(order):
        reader.read(key)
        if number == 2:
            reader.counted()
        if number == 50:
            assert reader.wanted() == set(order[51:])
    reader.read(*order[:40])
    assert order[40] in reader.wanted()


def test_names_that_become_stale_are_listed_again_unless_refused() -> None:
    for refused in (False, True):
        reader = Reader(1_000_000 if refused else SMALL, believed_s=60.0)
        reader.read(*READ)
        reader.planner.discovery.please_list()
        if refused:
            reader.planner.discovery.list_refused("b", "s/", reader.now)
        reader.counted()
        asked = []
        for key in KEYS:
            reader.now += 1.0
            reader.read(key)
            asked += reader.planner.discovery.please_list()
        assert bool(asked) is not refused


def test_a_numbering_is_remembered_over_a_restart() -> None:
    reader, after = Reader(), Reader()
    reader.read(*READ)
    reader.counted()
    after.planner.registry.restore(reader.planner.registry.export())
    after.read(*READ)
    assert KEYS[100] in after.wanted(there=set(KEYS) - {KEYS[100]})
    assert after.planner.discovery.please_list() == [PREFIX]
    after.planner.discovery.list_failed("b", "s/", after.now)
    after.now += 100.0
    after.read(KEYS[7])
    assert after.planner.discovery.please_count() == []
    assert after.planner.discovery.please_list() == [PREFIX]


def test_a_list_that_was_refused_during_a_hint_is_not_asked_for_again() -> None:
    reader = Reader(1_000_000, believed_s=60.0)
    refs = [ObjectRef("b", key) for key in KEYS]
    reader.planner.announced("a", refs, reader.now)
    asked = []
    for key in KEYS:
        reader.now += 1.0
        reader.read(key)
        for bucket, prefix in reader.planner.discovery.please_list():
            asked.append(prefix)
            reader.planner.discovery.list_refused(bucket, prefix, reader.now)
    assert asked == ["s/"]


def test_a_refused_list_is_tried_again_after_an_hour() -> None:
    reader = Reader()
    reader.read(*READ)
    reader.counted()
    reader.read("s/000900.bin")
    for _ in range(3):
        assert reader.planner.discovery.please_list() == [PREFIX]
        reader.planner.discovery.list_refused("b", "s/", reader.now)
        reader.read("s/000901.bin")
        assert reader.planner.discovery.please_list() == []
        reader.now += 3601.0
        reader.read("s/000902.bin")


@pytest.mark.parametrize("is_announced", [True, False])
def test_a_refused_list_is_tried_again_if_no_names_are_numbered(is_announced: bool) -> None:
    reader = Reader(1_000_000, believed_s=60.0)
    names = [f"s/{number:06d}-{number % 7}.bin" for number in range(100)]
    if is_announced:
        reader.planner.announced("a", [ObjectRef("b", name) for name in names[:50]], reader.now)
    for name in names[:50]:
        reader.now += 2.0
        reader.read(name)
        for bucket, prefix in reader.planner.discovery.please_list():
            reader.planner.discovery.list_refused(bucket, prefix, reader.now)
    reader.read(*names[50:80])
    assert reader.planner.discovery.please_list() == []
    reader.now += 3601.0
    reader.read(*names[80:])
    assert reader.planner.discovery.please_list() == [PREFIX]


def test_missing_objects_are_asked_for_once_and_a_few_of_them_change_nothing() -> None:
    reader, holes = Reader(1_000_000), {KEYS[number] for number in (31, 77, 140, 222, 280)}
    order = [key for key in Random(3).sample(KEYS, COUNT) if key not in holes]
    reader.read(*order[:4])
    reader.planner.discovery.please_list()
    reader.planner.discovery.list_refused("b", "s/", reader.now)
    reader.counted()
    asked = []
    for _ in range(6):
        for key in order:
            reader.read(key)
            asked += [key for key in reader.wanted(there=set(order)) if key in holes]
    assert sorted(asked) == sorted(holes)
    reader.read(*order[:40])
    assert order[40] in reader.wanted()


def test_numbered_names_stay_until_the_list_in_their_place_is_complete() -> None:
    reader = Reader()
    reader.read(*READ)
    reader.counted()
    reader.read("s/000900.bin")
    assert reader.planner.discovery.please_list() == [PREFIX]
    for fails in (True, False):
        page = [(key, SMALL) for key in KEYS[:100]]
        reader.planner.discovery.listed("b", page, more=True)
        if fails:
            reader.planner.discovery.list_failed("b", "s/", reader.now)
            reader.planner.discovery.listed("b", (), before=100)
            assert KEYS[250] in reader.wanted()
            reader.now += 100.0
            reader.read("s/000901.bin")
            assert reader.planner.discovery.please_list() == [PREFIX], "a LIST is due, and no probe"
            assert reader.planner.discovery.please_count() == []
        else:
            reader.planner.discovery.listed("b", [(key, SMALL) for key in KEYS[100:200]], before=100, more=True)
            reader.planner.discovery.listed("b", (), before=200)
    [dataset] = reader.planner.registry.datasets()
    assert [dataset.names.keys[key] for key in dataset.names.listed] == KEYS[:200]
    assert not dataset.discovery.is_numbered


def test_a_failed_list_leaves_the_numbered_names() -> None:
    reader = Reader(believed_s=60.0)
    reader.read(*READ)
    reader.counted()
    reader.read("s/000900.bin")
    for _ in range(2):
        assert reader.planner.discovery.please_list() == [PREFIX]
        reader.planner.discovery.listed("b", [(key, SMALL) for key in KEYS[:100]], more=True)
        reader.planner.discovery.list_failed("b", "s/", reader.now)
        reader.planner.discovery.listed("b", (), before=100)
        [dataset] = reader.planner.registry.datasets()
        assert len(dataset.names.listed) == COUNT
        reader.now += 50.0
        reader.read(*KEYS[100:200])


@pytest.mark.parametrize("what", [
    "of another bucket", "of other names", "of these and others", "of these and others, which fails", "a count",
])  # fmt: skip
def test_only_the_list_of_a_datasets_own_prefix_replaces_its_numbered_names(what: str) -> None:
    reader = Reader()
    reader.read(*READ)
    [(_, numbering)] = reader.planner.discovery.please_count()
    reader.counted(numbering)
    reader.read("s/000900.bin")
    assert reader.planner.discovery.please_list() == [PREFIX]
    [dataset] = reader.planner.registry.datasets()
    reader.planner.discovery.listed("b", [(key, SMALL) for key in KEYS[:100]], prefix="s/", more=True)
    if what == "of another bucket":
        reader.planner.discovery.listed("other", (), prefix="s/", before=7)
    elif what == "of other names":
        reader.planner.discovery.listed("b", [("t/000001.bin", SMALL)], prefix="t/")
    elif what == "a count":
        reader.planner.discovery.counted(numbering, (), before=COUNT)
    else:
        reader.planner.discovery.listed("b", [(key, SMALL) for key in KEYS[150:200]], prefix="", more=True)
        if what.endswith("which fails"):
            reader.planner.discovery.list_failed("b", "", reader.now)
        reader.planner.discovery.listed("b", (), prefix="", before=50)
    assert [dataset.names.keys[key] for key in dataset.names.listed] == KEYS
    reader.planner.discovery.listed("b", [(KEYS[100], SMALL)], prefix="s/", before=100)
    assert [dataset.names.keys[key] for key in dataset.names.listed] == KEYS[:101]


def test_names_that_the_list_of_another_prefix_shows_are_known_when_it_ends() -> None:
    reader = Reader(1_000_000)
    reader.read(*READ)
    for first, stop in ((0, 200), (200, COUNT)):
        page = [(key, 1_000_000) for key in KEYS[first:stop]]
        reader.planner.discovery.listed("b", page, prefix="", before=first, more=True)
    reader.planner.discovery.listed("b", (), prefix="", before=COUNT)
    assert reader.wanted() == set(KEYS) - set(READ)


def test_one_list_serves_all_datasets_under_its_prefix() -> None:
    reader = Reader(1_000_000)
    labels = [key.replace(".bin", ".json") for key in KEYS]
    reader.read(*KEYS[:4], *labels[:4])
    assert reader.planner.discovery.please_list() == [PREFIX]
    reader.planner.discovery.list_failed("b", "s/", reader.now)
    reader.now += 100.0
    reader.read(KEYS[4], labels[4])
    assert reader.planner.discovery.please_list() == [PREFIX]
    reader.planner.discovery.listed("b", [(key, 1_000_000) for key in sorted(KEYS + labels)], prefix="s/")
    assert {len(dataset.names.listed) for dataset in reader.planner.registry.datasets()} == {COUNT}
    reader.read(KEYS[5], labels[5])
    assert reader.planner.discovery.please_list() == []


@pytest.mark.parametrize("what", ["given up", "forgotten", "too many"])
def test_an_answer_that_is_not_needed_any_more_is_stopped(what: str) -> None:
    reader = Reader(keys_max=2000)
    reader.read(*READ)
    [(_, numbering)] = reader.planner.discovery.please_count()
    assert reader.planner.discovery.counted(numbering, KEYS[:100])
    [dataset] = reader.planner.registry.datasets()
    if what == "given up":
        reader.read(KEYS[90], KEYS[55])
        assert len(reader.wanted(there=set())) > 20
    elif what == "forgotten":
        reader.planner.registry.forget_oldest(dataset)
    else:
        assert not reader.planner.discovery.counted(numbering, [f"s/{n:06d}.bin" for n in range(100, 5000)])
        reader.planner.discovery.please_list()
        reader.read("s/090000.bin")
        assert reader.planner.discovery.please_list() == []
        return
    before = len(dataset.names.listed)
    assert not reader.planner.discovery.counted(numbering, KEYS[100:200], before=100)
    assert len(dataset.names.listed) == before


@pytest.mark.parametrize("listing", [True, False])
@pytest.mark.parametrize("size", [1000, 1_000_000])
def test_the_first_epoch_is_predicted_with_a_list_and_without(listing: bool, size: int) -> None:
    shards = Shards(100, size, "s")
    job = JobSpec("job", shards, order_of("fresh", list(range(100)), 2, 1), epochs=1, reader_bytes_s=5.0 * size)
    machine = Machine(200 * size, 40.0 * size, latency_s=0.01, block_bytes=size, listing=listing)
    [epoch] = Simulation(machine, "epoch", [job]).run()
    assert epoch.hit_ratio > 0.7
