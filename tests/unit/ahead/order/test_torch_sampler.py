"""The seed search for PyTorch's samplers, and the orders that they draw from a seed.

`tests/server/test_torch_sampler_orders.py` compares the numbers with those of torch itself.
"""

from __future__ import annotations

from array import array
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.core.ahead.order.torch_sampler import (
    Draw,
    at_once,
    batches_of,
    following,
    in_batches,
    is_enough,
    next_draws,
    order_at_once,
    turn_of,
)
from tests.support.planner import beside_each_other
from tests.support.seeds import ALL_SEEDS
from tests.support.trials import SCALE, rounds

COUNT = 5000
TORCH_0 = [4, 1, 7, 5, 3, 9, 0, 8, 6, 2]
TORCH_42 = [2, 6, 1, 8, 4, 5, 0, 9, 3, 7]
TORCH_42_AGAIN = [3, 5, 8, 9, 4, 6, 1, 0, 7, 2]
TORCH_42_LOADER = [6, 5, 4, 0, 8, 9, 2, 1, 3, 7]


def drawn(draw: Draw, count: int = COUNT) -> list[int]:
    return order_at_once(draw, count).tolist()


def test_the_numbers_are_those_of_torch() -> None:
    """`torch.randperm(10, generator=torch.Generator().manual_seed(seed))`, as 2.13 gives it."""
    assert drawn(Draw(0), 10) == TORCH_0
    assert drawn(Draw(42), 10) == TORCH_42
    # The second one of the same generator, and the first one after a loader has taken its workers' seeds.
    assert drawn(Draw(42, spent=9), 10) == TORCH_42_AGAIN
    assert drawn(Draw(42, spent=2), 10) == TORCH_42_LOADER
    # Torch takes 32 bits of a larger seed.
    assert drawn(Draw(2**32 + 42), 10) == TORCH_42


@given(st.integers(0, 2**40), st.integers(0, 3000), st.integers(1, 2000))
def test_an_order_has_each_number_once(seed: int, spent: int, count: int) -> None:
    assert sorted(drawn(Draw(seed, spent), count)) == list(range(count))


@given(st.integers(1, 100), st.integers(1, 9))
def test_the_shares_of_all_ranks_are_the_whole_and_equally_large(count: int, ranks: int) -> None:
    """DistributedSampler makes the last ranks read some of the first objects again."""
    shares = [drawn(Draw(1, share=ranks, first=rank), count) for rank in range(min(ranks, count))]
    assert {len(share) for share in shares} == {-(-count // ranks)}
    assert {index for share in shares for index in share} == set(range(count))


@pytest.mark.parametrize("draw", [Draw(0), Draw(1), Draw(42), Draw(3407), Draw(4095), Draw(12345 + 100), Draw(7, 2)])
@pytest.mark.parametrize("reads", [16, 48, 400] if SCALE > 1 else [16, 400])
def test_a_seed_is_found_by_the_first_reads(draw: Draw, reads: int) -> None:
    assert at_once(ALL_SEEDS.found(drawn(draw)[:reads], COUNT)) == draw


def test_a_seed_is_found_in_a_small_dataset() -> None:
    assert at_once(ALL_SEEDS.found(drawn(Draw(5), 200)[:16], 200)) == Draw(5)


def test_a_rank_is_found_by_its_share() -> None:
    draw = Draw(11, share=8, first=3)
    assert at_once(ALL_SEEDS.found(drawn(draw)[:48], COUNT)) == draw


def test_the_first_reads_of_all_workers_are_not_taken_for_a_share() -> None:
    """Sixteen workers have each read the first object of a batch of sixteen."""
    order = drawn(Draw(11))
    assert at_once(ALL_SEEDS.found([order[16 * worker] for worker in range(16)], COUNT)) is None


@settings(max_examples=rounds(8))
@given(st.integers(0, 2**32), st.sampled_from([200, 1000, 20_000]), st.sampled_from([16, 48, 144]))
def test_no_seed_is_found_for_random_reads(seed: int, count: int, reads: int) -> None:
    assert at_once(ALL_SEEDS.found(Random(seed).sample(range(count), reads), count)) is None


def test_too_few_reads_prove_nothing() -> None:
    order = drawn(Draw(5), 100)
    assert not is_enough(15, 100)
    assert not is_enough(40, 100), "the beginning cannot be seen any more"
    assert at_once(ALL_SEEDS.found(order[:16], 100)) is None
    assert at_once(ALL_SEEDS.found(order[:5], 100)) is None
    assert at_once(following([Draw(5)], order[:3], 100)) is None


@pytest.mark.parametrize("way", range(6))
@pytest.mark.parametrize(("batch", "workers"), [(1, 1), (64, 8)])
def test_four_reads_of_each_worker_show_which_draw_follows(way: int, batch: int, workers: int) -> None:
    likely = next_draws(Draw(5), COUNT)
    reads = beside_each_other(drawn(likely[way]), batch, workers, Random(1))[:4]
    assert at_once(following(likely, reads, COUNT, batch, workers)) == likely[way]


def test_an_epoch_of_another_seed_is_not_taken_for_one_that_may_follow() -> None:
    assert at_once(following(next_draws(Draw(5), COUNT), drawn(Draw(99))[:16], COUNT)) is None


@settings(max_examples=50)
@given(
    st.sampled_from([16, 20, 32, 64, 256]), st.integers(2, 8), st.integers(0, 3), st.integers(9, 15),
    st.integers(0, 2**32),
)  # fmt: skip
def test_batches_are_found_by_the_reads_of_workers(batch: int, workers: int, rounds: int, each: int, seed: int) -> None:
    """In the middle of any round; `each`: how far the workers are in their batches."""
    reads = beside_each_other(list(range(workers * (rounds + 1) * batch)), batch, workers, Random(seed))
    reads = reads[: workers * (rounds * batch + each)]
    found = batches_of(reads)
    if len(reads) >= 17 * workers * (rounds + 1):
        assert found == (batch, workers)
    else:
        # Too early to judge, or nearly all of the first batches was read.
        assert found in {(batch, workers), (1, 1), None}


def test_a_worker_that_was_held_up_hides_nothing() -> None:
    """Batches of eight: one was left after its first two reads, another has not begun, and later ones were read."""
    read = [*range(10), *range(16, 32), *range(40, 96), *range(104, 112), *range(120, 128)]
    assert batches_of(read) == (1, 1)


def test_reads_one_after_the_other_are_no_batches() -> None:
    assert batches_of(range(100)) == (1, 1)
    assert batches_of([2, 1, 0, 4, 3]) == (1, 1)


def test_reads_that_are_reported_late_now_and_then_are_no_other_worker() -> None:
    """The planner may learn of a miss before it learns of the hits before that."""
    reads = [*range(10), *range(11, 52), 10, *range(95, 99), *range(52, 95), *range(99, 400), *range(420, 424)]
    for count in range(100, len(reads), 10):
        assert batches_of(reads[:count]) in {None, (1, 1)}, count


def test_some_of_the_ranks_are_not_taken_for_workers() -> None:
    """Eight of 64 ranks; the others are on other nodes. The objects between theirs would be prefetched in vain."""
    assert batches_of([64 * step + rank for step in range(20) for rank in range(8)]) is None
    assert batches_of([64 * step + rank for step in range(20) for rank in range(32)]) is None
    assert batches_of([8 * step + rank for step in range(40) for rank in range(4)]) is None
    assert batches_of([3 * step + rank for step in range(40) for rank in range(2)]) is None


@pytest.mark.parametrize(("batch", "workers", "count"), [(4, 3, 24), (4, 3, 26), (5, 2, 13), (7, 1, 9), (3, 4, 2)])
def test_workers_that_are_equally_fast_read_in_batches(batch: int, workers: int, count: int) -> None:
    """Except for the last round, in which some workers have nothing left to read."""
    whole = count // (batch * workers) * batch * workers
    order = array("i", range(count))
    read = at_once(in_batches(order, batch, workers)).tolist()
    assert read == sorted(order, key=lambda number: turn_of(number, batch, workers))
    one_by_one = [
        begin + worker * batch + each
        for begin in range(0, whole, batch * workers)
        for each in range(batch)
        for worker in range(workers)
    ]
    assert read[:whole] == one_by_one
