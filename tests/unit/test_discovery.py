"""What a dataset has is found by a LIST, or by the numbers in its names."""

from __future__ import annotations

from random import Random

import pytest

from outrider.core.model import Extent, ObjectRef
from outrider.core.numbering import Numbering
from outrider.core.planner import Planner
from outrider.simulator.run import Machine, Simulation
from outrider.simulator.worlds import JobSpec, Shards, order_of

SMALL = 1000
COUNT = 300
KEYS = [f"s/{number:06d}.bin" for number in range(COUNT)]
PREFIX = ("b", "s/")


class Reader:
    """Of objects of `size` bytes; what is wanted is not brought, and so not there, if it is in `missing`."""

    def __init__(self, size: int = SMALL, *, believed_s: float = float("inf")) -> None:
        self.size = size
        self.planner = Planner(100 * size, size, believed_s=lambda _: believed_s)
        self.now = 0.0

    def read(self, *keys: str) -> None:
        for key in keys:
            self.now += 0.01
            self.planner.asked("a", ObjectRef("b", key), self.size, Extent(0, self.size), self.now)
            self.planner.sent("a", ObjectRef("b", key), self.now)

    def counted(self, *, stop: int = COUNT, step: int = 50) -> None:
        """As it is told, in pages."""
        for first in range(0, stop, step):
            page = [(f"s/{number:06d}.bin", -1) for number in range(first, min(stop, first + step))]
            self.planner.listed("b", page, self.now, before=first, more=True, counted=True)
        self.planner.listed("b", (), self.now, before=stop)

    def listed(self, keys: list[str]) -> None:
        self.planner.listed("b", [(key, self.size) for key in keys], self.now)

    def wanted(self, *, there: set[str] | None = None) -> set[str]:
        """All that it wants now; of what is not `there` it hears so."""
        found: set[str] = set()
        while wants := self.planner.wants(self.now, 10**9, 8):
            for want in wants:
                found.add(want.ref.key)
                if there is None or want.ref.key in there:
                    self.planner.found(want.ref, self.size)
                self.planner.dropped(want.ref, again=False)
        return found


READ = [KEYS[number] for number in (200, 17, 130, 4)]


def test_small_objects_whose_names_count_are_counted_and_not_listed() -> None:
    reader = Reader()
    reader.read(*READ)
    [(bucket, numbering)] = reader.planner.please_count()
    assert (bucket, numbering) == ("b", Numbering("s/", 6, ".bin", (17, 130, 200)))
    assert reader.planner.please_list() == []
    reader.counted()
    assert reader.wanted() == set(KEYS) - set(READ)
    reader.read(*KEYS[20:40])
    assert reader.planner.please_count() == []
    assert reader.planner.please_list() == []


@pytest.mark.parametrize(("keys", "size"), [
    (KEYS[:4], 30_000),
    (["s/a-100.bin", "s/b-101.bin", "s/b-102.bin", "s/a-103.bin"], SMALL),
])  # fmt: skip
def test_large_objects_and_names_that_do_not_count_are_listed(keys: list[str], size: int) -> None:
    reader = Reader(size)
    templates = {key[:4] for key in keys}
    reader.read(*keys, *keys[::-1])
    reader.read(*(key.replace("10", "11") for key in keys))
    assert reader.planner.please_count() == [] or len(templates) > 1
    assert PREFIX in reader.planner.please_list() or len(templates) > 1


def test_what_does_not_count_one_by_one_is_listed() -> None:
    reader = Reader()
    reader.read(*READ)
    [(bucket, numbering)] = reader.planner.please_count()
    reader.planner.not_counted(bucket, numbering, reader.now)
    assert reader.planner.please_list() == [PREFIX]
    reader.planner.list_failed("b", "s/", reader.now)
    reader.now += 100.0
    reader.read(KEYS[9])
    assert reader.planner.please_list() == [PREFIX], "once more, and not counted again"
    assert reader.planner.please_count() == []


def test_where_nobody_may_list_it_is_counted() -> None:
    reader = Reader(1_000_000)
    reader.read(*READ)
    assert reader.planner.please_list() == [PREFIX]
    reader.planner.list_refused("b", "s/", reader.now)
    assert reader.planner.please_count()
    reader.counted()
    assert reader.wanted() == set(KEYS) - set(READ)
    reader.read("s/000900.bin")
    assert reader.planner.please_list() == [], "it would be refused again"


def test_where_nobody_may_list_and_nothing_counts_it_is_read_as_it_comes() -> None:
    reader = Reader()
    reader.read(*READ)
    [(bucket, numbering)] = reader.planner.please_count()
    reader.planner.not_counted(bucket, numbering, reader.now)
    assert reader.planner.please_list() == [PREFIX]
    reader.planner.list_refused("b", "s/", reader.now)
    reader.read(*KEYS[20:60])
    assert reader.planner.please_count() == []
    assert reader.planner.please_list() == []
    assert reader.wanted() == set()


@pytest.mark.parametrize("how", ["a hole", "beyond the end"])
def test_one_that_is_not_as_counted_is_listed_and_the_list_counts(how: str) -> None:
    reader = Reader()
    reader.read(*READ)
    reader.planner.please_count()
    reader.counted()
    there = [key for key in KEYS if key != KEYS[100]] + ["s/000900.bin", "s/000901.bin"]
    if how == "a hole":
        assert KEYS[100] in reader.wanted(there=set(there))
    else:
        reader.read("s/000900.bin")
    assert reader.planner.please_list() == [PREFIX]
    reader.read("s/000901.bin")
    reader.wanted(there=set(there))
    assert reader.planner.please_list() == [], "once"
    reader.listed(there)
    assert reader.wanted(there=set(there)) == set(there) - set(READ) - {"s/000901.bin"} - (
        {"s/000900.bin"} if how == "beyond the end" else set()
    )
    assert reader.planner.please_list() == []


def test_a_list_that_comes_first_is_not_changed_by_what_was_counted() -> None:
    reader = Reader()
    reader.read(*READ)
    reader.planner.please_count()
    reader.listed(KEYS[:250])
    reader.counted()
    assert reader.wanted() == set(KEYS[:250]) - set(READ)


def test_where_every_other_is_not_there_and_nobody_may_list_it_is_given_up() -> None:
    reader, there = Reader(1_000_000), {*KEYS[::2], KEYS[17]}
    reader.read(*(KEYS[number] for number in (200, 17, 130, 4, 290)))
    reader.planner.please_list()
    reader.planner.list_refused("b", "s/", reader.now)
    reader.planner.please_count()
    reader.counted()
    tried = reader.wanted(there=there)
    assert 8 < len(tried - there) < 20
    reader.read(*KEYS[100:120:2])
    assert reader.wanted(there=there) == set()


def test_an_epoch_of_what_was_counted_ends_and_the_next_is_foreseen() -> None:
    reader = Reader()
    order = Random(3).sample(KEYS, COUNT)
    for number, key in enumerate(order):
        reader.read(key)
        if reader.planner.please_count():
            reader.counted()
        if number == 50:
            assert reader.wanted() == set(order[51:])
    reader.read(*order[:40])
    assert order[40] in reader.wanted()


def test_names_that_grow_stale_are_listed_unless_nobody_may() -> None:
    for refused in (False, True):
        reader = Reader(1_000_000 if refused else SMALL, believed_s=60.0)
        reader.read(*READ)
        reader.planner.please_list()
        if refused:
            reader.planner.list_refused("b", "s/", reader.now)
        assert reader.planner.please_count()
        reader.counted()
        asked = []
        for key in KEYS:
            reader.now += 1.0
            reader.read(key)
            asked += reader.planner.please_list()
        assert bool(asked) is not refused


def test_that_it_was_counted_is_remembered_over_a_restart() -> None:
    reader, after = Reader(), Reader()
    reader.read(*READ)
    reader.planner.please_count()
    reader.counted()
    after.planner.library.restore(reader.planner.library.export())
    after.read(*READ)
    assert KEYS[100] in after.wanted(there=set(KEYS) - {KEYS[100]})
    assert after.planner.please_list() == [PREFIX]


def test_a_list_that_was_refused_while_the_order_was_told_is_not_asked_for_again() -> None:
    reader = Reader(1_000_000, believed_s=60.0)
    refs = [ObjectRef("b", key) for key in KEYS]
    reader.planner.told("a", refs, reader.now)
    asked = []
    for key in KEYS:
        reader.now += 1.0
        reader.read(key)
        for bucket, prefix in reader.planner.please_list():
            asked.append(prefix)
            reader.planner.list_refused(bucket, prefix, reader.now)
    assert asked == ["s/"]


@pytest.mark.parametrize("listing", [True, False])
@pytest.mark.parametrize("size", [1000, 1_000_000])
def test_in_the_simulator_a_first_epoch_is_known_with_a_list_and_without(listing: bool, size: int) -> None:
    shards = Shards(100, size, "s")
    job = JobSpec("job", shards, order_of("fresh", list(range(100)), 2, 1), epochs=1, reader_bytes_s=5.0 * size)
    machine = Machine(200 * size, 40.0 * size, latency_s=0.01, block_bytes=size, listing=listing)
    [epoch] = Simulation(machine, "epoch", [job]).run()
    assert epoch.hit_ratio > 0.7
