"""How many fills at once: a controller of numbers, driven with numbers."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.concurrency import FIRST_FILLS, Concurrency


class Line:
    """An origin that gives each connection 40 MB/s and all of them `total_mb_s`; seconds pass one by one."""

    def __init__(self, concurrency: Concurrency, total_mb_s: float) -> None:
        self.concurrency = concurrency
        self.total_mb_s = total_mb_s
        self.connection_mb_s = 40.0
        self.now = 0.0

    def run(self, seconds: int, *, felt: bool = True) -> list[int]:
        limits = []
        for _ in range(seconds):
            rate = min(self.concurrency.limit * self.connection_mb_s, self.total_mb_s)
            if felt:
                self.concurrency.felt()
            for _ in range(10):
                self.concurrency.arrived(int(rate * 1e5), self.now)
                self.now += 0.1
            limits.append(self.concurrency.limit)
        return limits


def test_it_doubles_while_more_brings_more_and_then_stays() -> None:
    line = Line(Concurrency(1000), total_mb_s=5000)
    limits = line.run(8)
    assert max(limits) >= 125  # 125 x 40 MB/s fill the line
    assert max(limits) <= 512  # one doubling too many is how it learns of the end
    assert limits[-1] == limits[-2]


def test_the_ceiling_holds_and_is_reached() -> None:
    line = Line(Concurrency(64), total_mb_s=10**6)
    assert max(line.run(20)) == 64
    assert Concurrency(5).limit == 5


def test_a_limit_that_nobody_felt_does_not_grow() -> None:
    assert set(Line(Concurrency(64), total_mb_s=10**6).run(30, felt=False)) == {FIRST_FILLS}


def test_a_burst_of_slow_downs_halves_it_once() -> None:
    concurrency = Concurrency(64)
    for at in (10.0, 10.1, 10.9):
        concurrency.slow_down(at)
    assert concurrency.limit == FIRST_FILLS // 2
    concurrency.slow_down(11.1)
    assert concurrency.limit == FIRST_FILLS // 4


def test_the_floor_holds() -> None:
    concurrency = Concurrency(64, floor=3)
    for second in range(20):
        concurrency.slow_down(second * 2.0)
    assert concurrency.limit == 3


def test_after_a_slow_down_it_grows_in_small_steps_and_not_by_doubling() -> None:
    line = Line(Concurrency(64), total_mb_s=10**6)
    line.concurrency.slow_down(0.0)
    limits = line.run(5)
    assert all(later - earlier <= 2 for earlier, later in pairwise(limits))
    assert limits[-1] > limits[0]


def test_a_line_that_became_wider_is_found_out() -> None:
    line = Line(Concurrency(64), total_mb_s=200)
    stuck = line.run(15)[-1]
    line.total_mb_s = 10**6
    assert line.run(40)[-1] > stuck + 10


def test_what_was_had_in_better_days_does_not_stop_it_for_ever() -> None:
    line = Line(Concurrency(1000), total_mb_s=10**6)
    line.run(3)
    line.connection_mb_s = 5.0
    before = line.run(3)[-1]
    assert line.run(60)[-1] > before


@given(st.integers(1, 9), st.integers(0, 90), st.lists(st.tuples(st.sampled_from("fas"), st.floats(0, 3)), max_size=60))
def test_the_limit_never_leaves_its_bounds(floor: int, more: int, acts: list[tuple[str, float]]) -> None:
    concurrency, now = Concurrency(floor + more, floor), 0.0
    for act, later in acts:
        now += later
        if act == "f":
            concurrency.felt()
        elif act == "a":
            concurrency.arrived(10**6, now)
        else:
            concurrency.slow_down(now)
        assert floor <= concurrency.limit <= floor + more


def test_nonsense_is_refused() -> None:
    for ceiling, floor in ((0, 0), (3, 4)):
        with pytest.raises(ValueError, match="no limit"):
            Concurrency(ceiling, floor)
