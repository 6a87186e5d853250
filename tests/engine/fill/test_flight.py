"""A block whose bytes arrive from its middle on, against a list of booleans."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.block_layout import BlockLayout
from outrider.core.cache.block_file import BlockMeta
from outrider.core.model import ObjectRef, ObjectVersion
from outrider.engine.fill.flight import Flight


def flight(length: int, start: int) -> Flight:
    version = ObjectVersion(ObjectRef("b", "k"), '"e"', length)
    return Flight(BlockMeta(BlockLayout("http://o", 64), version, 0), start)


@given(length=st.integers(1, 40), start=st.integers(0, 39), steps=st.lists(st.tuples(st.booleans(), st.integers(1, 9))))
def test_the_reach_is_the_run_of_bytes_that_came(length: int, start: int, steps: list[tuple[bool, int]]) -> None:
    start %= length
    partial, here = flight(length, start), [False] * length
    ends = {True: (0, start), False: (start, length)}  # of the head and the tail: the next byte, and the end
    for head, wanted in steps:
        position, stop = ends[head]
        count = min(wanted, stop - position)
        if count:
            partial.advance(position, count)
            here[position : position + count] = [True] * count
            ends[head] = (position + count, stop)
        for offset in range(length):
            run = next((i for i in range(offset, length) if not here[i]), length)
            assert max(offset, partial.reach(offset)) == run
        assert partial.is_written == all(here)
        assert partial.written_bytes == sum(here)


@pytest.mark.parametrize(("offset", "count"), [(0, 5), (3, 1), (4, 7), (5, 1)])
def test_a_gap_and_a_byte_that_comes_twice_are_our_own_bugs(offset: int, count: int) -> None:
    partial = flight(10, 4)
    with pytest.raises(AssertionError):
        partial.advance(offset, count)


def test_an_arrival_starts_within_the_block() -> None:
    for start in (-1, 10):
        with pytest.raises(AssertionError):
            flight(10, start)
