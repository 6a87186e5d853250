"""Back-pressure of the disk: the limit of fills that follows from measured waits, in virtual time."""

from __future__ import annotations

from outrider.core.cache.disk_limits import DiskPressure, WritePace

MB = 10**6


class Fills:
    """`count` concurrent fills. Each piece of 1 MB waits `origin_s` for the origin and `disk_s` for the disk."""

    def __init__(self) -> None:
        self.lag = DiskPressure()
        self.now = 0.0

    def run(self, seconds: float, count: int, origin_s: float, disk_s: float) -> None:
        stop = self.now + seconds
        while self.now < stop:
            under_way = min(count, count if self.lag.fills is None else self.lag.fills)
            self.now += origin_s + disk_s
            for _ in range(under_way):
                self.lag.measured(disk_s, origin_s, MB, under_way, self.now)


def test_an_origin_slower_than_the_disk_sets_no_limit() -> None:
    fills = Fills()
    fills.run(60, 16, origin_s=0.025, disk_s=0.02)
    assert fills.lag.fills is None


def test_a_disk_that_fills_wait_for_is_given_fewer_down_to_one() -> None:
    fills = Fills()
    fills.run(2.5, 16, origin_s=0.0, disk_s=0.1)
    assert fills.lag.fills in (4, 8)
    fills.run(10, 16, origin_s=0.0, disk_s=0.1)
    assert fills.lag.fills == 1
    assert fills.lag.allows(0, fills.now)
    assert not fills.lag.allows(1, fills.now)


def test_a_quick_disk_is_not_blamed_because_the_origin_is_next_door() -> None:
    fills = Fills()
    fills.run(60, 16, origin_s=0.0, disk_s=0.01)  # 100 MB/s each
    assert fills.lag.fills is None


def test_one_late_write_is_nothing() -> None:
    fills = Fills()
    fills.run(5, 16, origin_s=0.025, disk_s=0.002)
    fills.lag.measured(3.0, 0.0, MB, 16, fills.now)
    fills.run(5, 16, origin_s=0.025, disk_s=0.002)
    assert fills.lag.fills is None


def test_the_limit_ends_by_itself_when_the_disk_is_fast_again() -> None:
    fills = Fills()
    fills.run(10, 16, origin_s=0.0, disk_s=0.1)
    fills.run(30, 16, origin_s=0.025, disk_s=0.002)
    assert fills.lag.fills is None


def test_the_limit_goes_by_itself_once_there_are_no_fills() -> None:
    fills = Fills()
    fills.run(10, 16, origin_s=0.0, disk_s=0.1)
    assert fills.lag.fills == 1
    for second in range(30):
        fills.lag.allows(0, fills.now + second)
    assert fills.lag.fills is None


def test_a_disk_is_behind_when_it_is_slow_itself_beside_another_that_is_not() -> None:
    slow, fast, idle = WritePace(), WritePace(), WritePace()
    paces = [slow, fast, idle]
    slow.measured(0.9, 9_000_000, 0.0)
    fast.measured(0.1, 9_000_000, 0.0)
    assert not slow.is_behind(paces, 0.0)  # too little to judge
    slow.measured(0.9, 9_000_000, 0.0)
    assert [pace.is_behind(paces, 0.0) for pace in paces] == [True, False, False]
    assert not slow.is_behind([slow, idle], 0.0)
    # Nothing is written to it now, and it is tried again.
    assert not slow.is_behind(paces, 4.0)


def test_a_disk_that_is_faster_than_any_bucket_is_never_behind() -> None:
    good, better = WritePace(), WritePace()
    good.measured(2.0, 200_000_000, 0.0)
    better.measured(0.2, 200_000_000, 0.0)
    assert not good.is_behind([good, better], 0.0)
