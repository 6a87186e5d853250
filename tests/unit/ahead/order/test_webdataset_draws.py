"""Draws of WebDataset's shard shuffle from a seed, made with the `random` of this Python.

`tests/server/test_webdataset_shuffles.py` compares them with the library itself.
"""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from outrider.core.ahead.order.torch_sampler import at_once
from outrider.core.ahead.order.webdataset_shuffle import Shuffle, buffer_sizes, drawn, order_of

SEED_7_OF_12 = [5, 2, 6, 0, 1, 9, 4, 8, 10, 3, 11, 7]
SEED_7_OF_12_BY_5 = [2, 1, 3, 0, 7, 9, 8, 4, 10, 11, 6, 5]
SEED_7_OF_300 = [41, 19, 50, 83, 6, 9, 111, 68]


def test_a_worker_draws_the_order_that_webdataset_draws() -> None:
    """`list(webdataset.filters._shuffle(iter(range(12)), bufsize, seed=7))`, as 1.0.2 gives it."""
    assert list(drawn(Random(7), 12, 1000)) == SEED_7_OF_12
    assert list(drawn(Random(7), 12, 5)) == SEED_7_OF_12_BY_5
    assert list(drawn(Random(7), 300, 1000))[:8] == SEED_7_OF_300


@given(st.integers(0, 10**6), st.integers(0, 400), st.sampled_from([1, 2, 10, 99, 100, 101, 500]))
def test_an_order_has_each_shard_once(seed: int, count: int, buffer: int) -> None:
    assert sorted(drawn(Random(seed), count, buffer)) == list(range(count))


@given(st.integers(0, 400), st.sampled_from([1, 2, 10, 99, 100, 101, 500]))
def test_so_many_shards_are_in_the_buffer_at_each_draw_as_in_webdatasets(count: int, buffer: int) -> None:
    """`_shuffle` of webdataset 1.0.2, step by step: it takes one more shard, and another one while the buffer is not
    full, and draws once 100 are in it."""
    sizes, in_buffer, left = [], 0, count
    while left:
        left, in_buffer = left - 1, in_buffer + 1
        if left and in_buffer < buffer:
            left, in_buffer = left - 1, in_buffer + 1
        if in_buffer >= min(100, buffer):
            sizes.append(in_buffer)
            in_buffer -= 1
    assert list(buffer_sizes(count, buffer)) == sizes + list(range(in_buffer, 0, -1))


@given(st.integers(1, 300), st.integers(1, 9), st.integers(1, 300))
def test_all_workers_together_read_all_shards_one_each_in_turn(count: int, workers: int, buffer: int) -> None:
    workers = min(workers, count)
    order = at_once(order_of(Shuffle(workers, buffer, tuple((first, 3) for first in range(workers))), count, {}, {}))
    assert sorted(order) == list(range(count))
    assert [shard % workers for shard in order[: count // workers * workers]] == list(range(workers)) * (
        count // workers
    )
