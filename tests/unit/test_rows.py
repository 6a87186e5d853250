"""Tables of rows: an index by hash and an order of use, each like the dictionary that it replaces."""

from __future__ import annotations

from collections import OrderedDict
from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from outrider.core.rows import FreeRows, RowIndex, RowOrder, without
from tests.support.counted_work import calls_of, lines_of
from tests.support.held_memory import held_bytes

STEPS = st.lists(st.tuples(st.booleans(), st.integers(0, 60)), max_size=300)


# Names share hashes, and hashes share bytes with rows and with each other at odd places.
@given(steps=STEPS, hashes=st.sampled_from([2, 1 << 8, 0x0101_0101, 1 << 40, 7919]))
def test_an_index_finds_what_a_dictionary_finds(steps: list[tuple[bool, int]], hashes: int) -> None:
    index, rows, names, expected = RowIndex(), FreeRows(), dict[int, int](), dict[int, int]()
    for is_add, name in steps:
        hashed = name // 2 * hashes - 5
        if is_add and name not in expected:
            row, is_new = rows.take()
            assert is_new == (row not in names)
            names[row], expected[name] = name, row
            index.add(hashed, row)
        elif not is_add and name in expected:
            row = expected.pop(name)
            index.discard(hashed, row)
            rows.give_back(row)

        def find(name: int) -> int:
            return index.find(name // 2 * hashes - 5, lambda found: names[found] == name)

        assert [find(each) for each in range(61)] == [expected.get(each, -1) for each in range(61)]
        assert len(index) == len(expected)


def test_an_index_grows_by_small_steps_and_takes_a_dozen_bytes_a_row() -> None:
    index = RowIndex()
    work = [lines_of(partial(index.add, hash(f"name {number}"), number)) for number in range(20_000)]
    # Some two lines for each entry of a bucket that is split.
    assert max(work) < 2 * 100, "one bucket is split at a time, and none is long"
    assert held_bytes(index) / len(index) < 12
    assert index.find(hash("name 777"), lambda row: row == 777) == 777


def test_an_index_of_known_length_has_its_buckets_before_its_rows() -> None:
    index, hashes = RowIndex(), [hash(f"name {number}") for number in range(3000)]
    assert calls_of(lambda: index.reserve(len(hashes))) > 100
    for first in range(0, len(hashes), 1000):
        assert calls_of(partial(index.add_new, hashes[first : first + 1000], first)) < 10, "no bucket is split"
    assert len(index) == len(hashes)
    assert all(index.find(hashed, lambda row, at=at: row == at) == at for at, hashed in enumerate(hashes))  # type: ignore[misc]


@given(names=st.lists(st.integers(0, 30), max_size=60), but=st.sets(st.integers(0, 59)))
def test_names_that_are_there_already_or_come_twice_or_are_left_out_get_no_row(names: list[int], but: set[int]) -> None:
    index, expected = RowIndex(), dict[int, int]()
    for first in (0, 20, 40):
        some = names[first : first + 20]
        # Others may be among them: their hashes are like the bytes of another entry.
        left = index.add_new([name * 7919 for name in some], len(index), but)
        for place, name in enumerate(some):
            assert place in left or (name not in expected and place not in but)
            if place not in left:
                expected[name] = len(expected)
        assert len(index) == len(expected)
    assert but or not names or expected
    for name in range(31):
        assert index.find(name * 7919, lambda _: True) == expected.get(name, -1)
    assert without(but, names) == [name for place, name in enumerate(names) if place not in but]


@given(steps=st.lists(st.tuples(st.sampled_from(["add", "first", "remove", "end"]), st.integers(0, 20)), max_size=100))
def test_an_order_is_that_of_an_ordered_dictionary(steps: list[tuple[str, int]]) -> None:
    order, expected = RowOrder(), OrderedDict[int, None]()
    for what, row in steps:
        if what in ("add", "first") and row not in expected:
            order.add(row, last=what == "add")
            expected[row] = None
            expected.move_to_end(row, last=what == "add")
        elif what == "remove" and row in expected:
            order.remove(row)
            del expected[row]
        elif what == "end" and row in expected:
            order.move_to_end(row)
            expected.move_to_end(row)
        assert list(order) == list(expected)
        assert (len(order), order.first()) == (len(expected), next(iter(expected), -1))
        assert all((each in order) == (each in expected) for each in range(21))
