"""The scrubber's pace, in virtual time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outrider.core.cache.scrub_pace import ScrubPace

MIB = 1024 * 1024
sizes = st.lists(st.integers(4096, 64 * MIB), min_size=1, max_size=50)
took = st.floats(0, 10)


def walk(pace: ScrubPace, blocks: list[int], took_s: float, round_bytes: int | None) -> float:
    """The seconds from the first block's read to the end of the pause after the last."""
    return sum(took_s + pace.pause_s(size, took_s, round_bytes) for size in blocks)


@given(sizes, took, st.floats(1e3, 1e9), st.booleans())
def test_no_round_reads_faster_than_the_rate(blocks: list[int], took_s: float, rate: float, first: bool) -> None:
    seconds = walk(ScrubPace(rate, 3600), blocks, took_s, None if first else sum(blocks))
    assert sum(blocks) <= seconds * rate * (1 + 1e-9)


@given(sizes, took, st.floats(1e3, 1e9))
def test_a_round_of_a_small_cache_takes_at_least_an_hour(blocks: list[int], took_s: float, rate: float) -> None:
    assert walk(ScrubPace(rate, 3600), blocks, took_s, sum(blocks)) >= 3600 * (1 - 1e-9)


def test_blocks_that_were_never_verified_are_not_spread_over_an_hour() -> None:
    assert walk(ScrubPace(MIB, 3600), [MIB] * 10, 0.0, None) == 10.0


def test_the_time_of_a_read_counts_as_a_part_of_the_pause() -> None:
    assert ScrubPace(MIB, 3600).pause_s(MIB, 5.0, None) == 0.0
