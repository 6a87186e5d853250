"""The AIMD limit of fills, in virtual time."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.origin.fill_limits import FIRST_FILLS, AimdLimit


class Line:
    """An origin that gives each connection 40 MB/s and all of them `total_mb_s`, simulated second by second."""

    def __init__(self, aimd: AimdLimit, total_mb_s: float) -> None:
        self.aimd = aimd
        self.total_mb_s = total_mb_s
        self.connection_mb_s = 40.0
        self.now = 0.0

    def run(self, seconds: int, *, short: bool = True) -> list[int]:
        limits = []
        for _ in range(seconds):
            for _ in range(10):
                begun = self.aimd.limit
                self.now += 0.1
                rate = min(begun * self.connection_mb_s, self.total_mb_s)
                self.aimd.received(int(rate * 1e5), self.now, short=short)
            limits.append(self.aimd.limit)
        return limits


def test_the_limit_doubles_while_more_fills_bring_more_bytes() -> None:
    line = Line(AimdLimit(1000), total_mb_s=5000)
    limits = line.run(10)
    assert max(limits) <= 512  # the limit learns of the line's end by one doubling too many
    assert limits[-1] == limits[-2]
    assert 125 <= limits[-1] < 250  # 125 x 40 MB/s fill the line, and the doubling is taken back


def test_the_ceiling_holds_and_is_reached() -> None:
    line = Line(AimdLimit(64), total_mb_s=10**6)
    assert max(line.run(20)) == 64
    assert AimdLimit(5).limit == 5


def test_a_limit_that_holds_no_fill_up_does_not_grow() -> None:
    assert set(Line(AimdLimit(64), total_mb_s=10**6).run(30, short=False)) == {FIRST_FILLS}


def test_the_aimd_limit_does_not_creep_up_on_a_full_line() -> None:
    line = Line(AimdLimit(64), total_mb_s=200)
    limits = line.run(300)
    assert limits.count(FIRST_FILLS) > 250
    assert max(limits[10:]) <= FIRST_FILLS + 2


def test_pauses_of_the_readers_are_not_taken_for_a_step_that_brought_nothing() -> None:
    """A long burst of readers, and then short ones."""
    line = Line(AimdLimit(64), total_mb_s=10**6)
    line.run(2)
    assert line.aimd.limit == 2 * FIRST_FILLS
    for _ in range(4):
        line.run(1)
        line.aimd.received(0, line.now, short=False)
        line.now += 2.0
    assert line.aimd.limit == 64


def test_a_step_is_judged_by_bytes_after_those_fills_that_it_admitted_began() -> None:
    aimd, now = AimdLimit(64), 0.0
    under_way = [FIRST_FILLS] * 2
    for _ in range(45):
        under_way.append(aimd.limit)
        now += 0.1
        # The bytes that come now were requested 0.2 s ago, and 21 connections fill the line.
        aimd.received(min(under_way[-3], 21) * 4_000_000, now, short=True)
    assert aimd.limit == 2 * FIRST_FILLS


def test_a_burst_of_slow_downs_halves_the_limit_once() -> None:
    aimd = AimdLimit(64)
    for at in (10.0, 10.1, 10.9):
        aimd.slow_down(at)
    assert aimd.limit == FIRST_FILLS // 2
    aimd.slow_down(11.1)
    assert aimd.limit == FIRST_FILLS // 4


def test_the_limit_never_falls_below_its_floor() -> None:
    aimd = AimdLimit(64, floor=3)
    for second in range(20):
        aimd.slow_down(second * 2.0)
    assert aimd.limit == 3


def test_after_a_slow_down_it_grows_in_small_steps_and_not_by_doubling() -> None:
    line = Line(AimdLimit(64), total_mb_s=10**6)
    line.aimd.slow_down(0.0)
    limits = line.run(5)
    assert all(later - earlier <= 2 for earlier, later in pairwise(limits))
    assert limits[-1] > limits[0]


def test_a_line_that_became_wider_is_found_out() -> None:
    line = Line(AimdLimit(64), total_mb_s=200)
    stuck = line.run(15)[-1]
    line.total_mb_s = 10**6
    assert line.run(40)[-1] > stuck + 10


def test_an_old_best_rate_does_not_stop_growth_for_ever() -> None:
    line = Line(AimdLimit(1000), total_mb_s=10**6)
    line.run(3)
    line.connection_mb_s = 5.0
    before = line.run(3)[-1]
    assert line.run(60)[-1] > before


@given(st.integers(1, 9), st.integers(0, 90), st.lists(st.tuples(st.sampled_from("fas"), st.floats(0, 3)), max_size=60))
def test_the_limit_never_leaves_its_bounds(floor: int, more: int, acts: list[tuple[str, float]]) -> None:
    aimd, now = AimdLimit(floor + more, floor), 0.0
    for act, later in acts:
        now += later
        if act in "fa":
            aimd.received(10**6, now, short=act == "f")
        else:
            aimd.slow_down(now)
        assert floor <= aimd.limit <= floor + more


def test_nonsense_is_refused() -> None:
    for ceiling, floor in ((0, 0), (3, 4)):
        with pytest.raises(ValueError, match="no limit"):
            AimdLimit(ceiling, floor)
