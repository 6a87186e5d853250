"""The read-ahead window and range coalescing: single decisions, and whole reads."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.cache.readahead import FIRST_BLOCKS, WINDOW_BLOCKS_MAX, runs_ahead, window_blocks


@given(
    st.integers(0, 30), st.integers(0, 60), st.integers(0, 60), st.sets(st.integers(0, 100)), st.integers(1, 20)
)  # fmt: skip
def test_runs_stay_in_the_window_cover_the_position_and_never_overlap(
    position: int, more: int, blocks_sent: int, missing: set[int], readers: int
) -> None:
    last = position + more
    runs = runs_ahead(position, last, blocks_sent, missing.__contains__, readers)
    asked = [index for run in runs for index in range(run.first, run.first + run.count)]
    assert asked == sorted(set(asked))
    assert set(asked) <= missing
    assert all(position <= index <= last for index in asked)
    assert all(index < position + window_blocks(blocks_sent, readers) for index in asked)
    if position in missing:
        assert position in asked


@given(st.floats(0, 1000), st.floats(0, 10), st.integers(1, 100))
def test_the_window_grows_with_the_blocks_sent_up_to_its_limit(blocks_sent: float, more: float, readers: int) -> None:
    assert window_blocks(blocks_sent, readers) <= window_blocks(blocks_sent + more, readers) <= WINDOW_BLOCKS_MAX
    assert window_blocks(blocks_sent + 1, readers) > FIRST_BLOCKS


def test_the_window_of_a_lone_reader_grows_before_its_first_block_is_complete() -> None:
    assert [window_blocks(part / 8) for part in range(9)] == [4, 4, 5, 5, 6, 6, 7, 7, 8]


def test_a_wide_window_takes_fewer_gets_of_each_of_many_readers() -> None:
    runs = {readers: runs_ahead(10, 99, 10, lambda _: True, readers) for readers in (1, 2, 3)}
    assert {readers: [run.count for run in its] for readers, its in runs.items()} == {
        1: [1, 1] + [2] * 7,
        2: [1, 1] + [2] * 7,
        3: [1, 1] + [4] * 3,
    }


@pytest.mark.parametrize(("readers", "at_once"), [(1, 8), (3, 4)])
def test_the_last_blocks_of_a_read_come_side_by_side(readers: int, at_once: int) -> None:
    """Joined blocks would come one after the other, while no other block is left to fetch."""
    for left in range(1, 40):
        runs = runs_ahead(100 - left, 99, 20, lambda _: True, readers)
        assert all(run.count == 1 for run in runs if run.first > 100 - 2 * at_once), left
        assert left < 30 or max(run.count for run in runs) > 1, "far from it fewer GETs do"


def test_the_next_blocks_are_not_joined_for_they_would_come_one_after_the_other() -> None:
    for readers in (1, 8):
        assert [run.count for run in runs_ahead(1, 99, 1, lambda _: True, readers)][:2] == [1, 1]


def test_beside_others_a_reader_begins_with_a_small_window_that_grows_as_it_reads_on() -> None:
    assert [window_blocks(0, readers) for readers in (1, 2, 3, 100)] == [4, 4, 2, 2]
    assert [window_blocks(part / 4, 8) for part in range(9)] == [2] * 3 + [6] * 4 + [10] * 2


def test_the_first_gets_take_a_block_each() -> None:
    assert [(run.first, run.count) for run in runs_ahead(0, 99, 0, lambda _: True)] == [(i, 1) for i in range(4)]


@given(st.integers(1, 90), st.sets(st.integers(0, 90)), st.integers(0, 89))
def test_a_whole_read_requests_every_missing_block_exactly_once(block_count: int, here: set[int], first: int) -> None:
    first = min(first, block_count - 1)
    asked: Counter[int] = Counter()
    gets = 0
    for position in range(first, block_count):
        runs = runs_ahead(position, block_count - 1, position - first, lambda i: i not in here and not asked[i])
        gets += len(runs)
        for run in runs:
            asked.update(range(run.first, run.first + run.count))
        assert position in here or asked[position], "the reader waits for a block that was not requested"
    assert asked == Counter(set(range(first, block_count)) - here)
    if not here:
        single = 2 * FIRST_BLOCKS + 16  # requests of one block, at the beginning and at the end
        assert gets <= single + (block_count - first + 1) // 2, "joined blocks must save requests"
