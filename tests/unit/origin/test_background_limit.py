"""The LEDBAT-like limit of background fills, in virtual time."""

from __future__ import annotations

import heapq
import itertools
import random

import pytest

from outrider.core.origin.fill_limits import BackgroundLimit
from tests.support.trials import SCALE

MIB = 2**20
LONG_S = 60 if SCALE > 1 else 30


class Line:
    """A line that gives each connection 4 MB/s and all of them 32 MB/s."""

    def __init__(self) -> None:
        self.background_limit = BackgroundLimit(64)
        self.now = 0.0

    def run(self, seconds: float, demand: int, *, queued: bool = True) -> list[int]:
        """The limit of background fills in each tenth of a second, beside `demand` connections that readers wait
        for."""
        allowed = []
        for _ in range(int(seconds * 10)):
            background_limit = self.background_limit
            beside = background_limit.beside if demand else background_limit.alone
            allowed.append(beside)
            if background_limit.is_due(self.now):
                background_limit.judge(self.now, awaited=demand > 0, queued=queued)
            background_limit.flowed(int(min(4e5 * (demand + beside), 3.2e6)))
            self.now += 0.1
        return allowed


def test_without_demand_as_many_fills_are_allowed_as_fill_the_line() -> None:
    assert 7 <= Line().run(20, demand=0)[-1] <= 16


def test_an_unused_limit_is_small_again_for_the_next_burst() -> None:
    line = Line()
    line.run(20, demand=0)
    assert line.run(20, demand=0, queued=False)[-1] == 2


@pytest.mark.parametrize("blocks", [3, 6])
def test_a_limit_that_short_bursts_reach_is_kept(blocks: int) -> None:
    """As where a paced reader of objects of some blocks is ridden ahead: between two bursts nothing waits, and they
    bring less than the line could."""
    background_limit, now = BackgroundLimit(64), 0.0
    allowed = []
    for burst in range(200):
        allowed.append(background_limit.alone)
        if background_limit.alone <= blocks:
            background_limit.reached()
        if background_limit.alone < blocks:
            background_limit.hindered()
        if background_limit.is_due(now):
            background_limit.judge(now, awaited=False, queued=False)
        background_limit.flowed(2 * MIB if burst == 0 else MIB)
        now += 0.25
    assert allowed[0] == 2
    assert set(allowed[100:]) == {blocks}


def test_beside_demand_that_fills_the_line_hardly_any_fill_is_allowed() -> None:
    line = Line()
    line.run(20, demand=0)
    assert max(line.run(20, demand=8)[5:]) <= 2


def test_beside_demand_that_leaves_bandwidth_it_uses_the_bandwidth() -> None:
    line = Line()
    line.run(20, demand=0)
    allowed = line.run(20, demand=2)
    assert allowed[0] == 1
    assert 3 <= sum(allowed[100:]) / len(allowed[100:]) <= 8


def test_after_a_silence_the_limit_begins_small() -> None:
    line = Line()
    line.run(20, demand=0)
    line.background_limit.fill_begins(line.now + 0.9)
    assert line.background_limit.alone >= 7
    line.background_limit.fill_begins(line.now + 1.1)
    assert (line.background_limit.alone, line.background_limit.beside) == (2, 1)


def small_bodies_come(background_limit: BackgroundLimit, count: int, after_s: float) -> None:
    """One after the other, while fills wait for the limit."""
    for number in range(count):
        background_limit.hindered()
        background_limit.small_received(after_s, number * after_s)


def test_fills_limited_only_by_latency_are_not_held_back() -> None:
    background_limit = BackgroundLimit(64)
    small_bodies_come(background_limit, 200, 0.05)
    assert background_limit.alone == background_limit.beside == 64


def test_the_line_brings_so_many_bodies_at_the_rate_of_one() -> None:
    line = Line()
    assert line.background_limit.bodies(4e6) is None, "no body came"
    line.run(20, demand=8)
    assert line.background_limit.bodies(4e6) == 8
    line.background_limit.body_received(100_000, 0.001, is_demand=True)
    assert line.background_limit.body_bytes_s == 0, "the time of a small body is latency"
    line.background_limit.body_received(MIB, 0.5, is_demand=True)
    line.background_limit.body_received(MIB, 1.0, is_demand=False)
    assert line.background_limit.body_bytes_s == 2 * MIB
    line.run(61, demand=8)
    assert line.background_limit.body_bytes_s == pytest.approx(MIB, rel=0.02), "the bandwidth of a line may fall"
    assert line.background_limit.bodies(0.0) is None


def test_a_line_is_contended_while_bodies_of_demand_come_slower_than_connections_bring_them() -> None:
    line = Line()
    limit = line.background_limit
    assert limit.is_contended, "no body shows anything"
    limit.body_received(MIB, 0.01, is_demand=True)
    limit.body_received(8 * MIB, 0.1, is_demand=False)
    assert limit.is_contended, "the time of a short body is latency, and fills beside demand hold each other up"
    limit.body_received(8 * MIB, 0.1, is_demand=True)
    assert not limit.is_contended
    for _ in range(20):
        limit.body_received(8 * MIB, 0.2, is_demand=True)
    assert limit.is_contended
    line.run(60, demand=8)
    assert limit.is_contended, "it is full for a minute"
    line.run(900, demand=8)
    assert not limit.is_contended, "it is slow"
    for _ in range(20):
        limit.body_received(8 * MIB, 0.5, is_demand=True)
    assert limit.is_contended, "no connection to S3 is as slow alone"


def test_fills_that_take_the_slots_of_demand_are_as_many_as_demand_had_lately() -> None:
    line = Line()
    line.run(5, demand=8)
    line.background_limit.demand_seen(8)
    assert line.background_limit.after == 8
    line.run(2.5, demand=2)
    assert line.background_limit.beside <= line.background_limit.after < 8
    assert line.background_limit.ends_soon(14 * 10**5)
    assert not line.background_limit.ends_soon(18 * 10**5), "more than 50 ms"


def test_an_epoch_that_begins_after_a_silence_has_the_line_to_itself() -> None:
    line = Line()
    line.run(5, demand=8)
    line.background_limit.demand_seen(8)
    line.background_limit.fill_begins(line.now + 1.1)
    assert line.background_limit.after == 1


def test_without_large_bodies_no_end_of_demand_is_predicted() -> None:
    line = Line()
    line.run(5, demand=8)
    assert line.background_limit.ends_soon(1000)
    line.background_limit.fill_begins(line.now + 1.1)
    line.background_limit.demand_seen(40)
    assert not line.background_limit.ends_soon(1000), "the load of small bodies shows in their delay alone"


class SmallBodies:
    """Small bodies over a line that takes `each_s` for each of them.

    Each of `readers` requests one body after the other, and beside them as many fills run as the limit allows.
    `scatter` is the standard deviation of the logarithm of a bucket's latency. For `slow_s` at a time, by chance
    between the two numbers, the latency is `slower` times as long, and then for as long at a time it is not.
    """

    def __init__(
        self, latency_s: float, each_s: float, *, readers: int = 1, scatter: float = 0.0, slower: float = 1.0,
        slow_s: tuple[float, float] = (0.3, 3.0),
    ) -> None:  # fmt: skip
        self.background_limit = BackgroundLimit(64)
        self.latency_s = latency_s
        self.each_s = each_s
        self.scatter = scatter
        self.slower = slower
        self.slow_s = slow_s
        self._is_slow = False
        self._changes_at = 0.0
        self.now = 0.0
        self.read = 0
        self.brought = 0
        self._chance = random.Random(6)
        self._free_at = 0.0
        self._numbers = itertools.count()
        # The time of the event, the body's number, the time of its request, whether a reader waits, and whether it is
        # on the line.
        self.outstanding: list[tuple[float, int, float, bool, bool]] = []
        self._beside = 0
        for _ in range(readers):
            self._ask(waited_for=True)

    def _ask(self, *, waited_for: bool) -> None:
        while self.now >= self._changes_at:
            self._changes_at += self._chance.uniform(*self.slow_s)
            self._is_slow = not self._is_slow
        factor = self._chance.lognormvariate(-(self.scatter**2) / 2, self.scatter)
        factor *= self.slower if self._is_slow else 1
        ready = self.now + self.latency_s * factor
        heapq.heappush(self.outstanding, (ready, next(self._numbers), self.now, waited_for, False))

    def run(self, seconds: float, *, prefetch: bool = True) -> list[int]:
        """The limit of fills beside the readers, at each body's arrival."""
        allowed, until = [], self.now + seconds
        while self.outstanding[0][0] < until:
            self.now, number, requested_at, waited_for, on_line = heapq.heappop(self.outstanding)
            if not on_line:
                self._free_at = max(self._free_at, self.now) + self.each_s
                heapq.heappush(self.outstanding, (self._free_at, number, requested_at, waited_for, True))
                continue
            self.background_limit.small_received(self.now - requested_at, self.now)
            if waited_for:
                self.read += 1
                self._ask(waited_for=True)
            else:
                self.brought += 1
                self._beside -= 1
            if prefetch:
                self.background_limit.hindered()
                while self._beside < self.background_limit.beside:
                    self._beside += 1
                    self._ask(waited_for=False)
            allowed.append(self.background_limit.beside)
        self.now = until
        return allowed


def test_small_bodies_that_queue_behind_each_other_are_held_back() -> None:
    line = SmallBodies(latency_s=0.056, each_s=0.009)
    line.run(2, prefetch=False)
    # 6 bodies fill the line; 12 would double a reader's wait.
    allowed = line.run(30)
    assert max(allowed) <= 14
    assert 5 <= sum(allowed) / len(allowed) <= 10


@pytest.mark.parametrize(("readers", "share"), [(1, 0.7), (8, 0.7), (40, 0.8)])
def test_readers_of_small_bodies_keep_most_of_a_full_line_however_long_prefetch_goes_on(
    readers: int, share: float
) -> None:
    line, alone = (SmallBodies(latency_s=0.03, each_s=0.0017, readers=readers, scatter=0.3) for _ in range(2))
    line.run(LONG_S)
    alone.run(LONG_S, prefetch=False)
    assert line.read >= share * alone.read
    assert (line.read + line.brought) * line.each_s >= 0.85 * LONG_S, "the line must not idle"


@pytest.mark.parametrize(("scatter", "share"), [(0.5, 0.9), (1.0, 0.5)])
def test_small_bodies_with_scattered_latencies_are_not_held_back(scatter: float, share: float) -> None:
    line = SmallBodies(latency_s=0.056, each_s=0.0001, scatter=scatter)
    line.run(LONG_S)
    assert line.brought >= share * LONG_S * 64 / 0.056


def test_a_bucket_that_became_slower_is_not_taken_for_a_queue_for_ever() -> None:
    line = SmallBodies(latency_s=0.03, each_s=0.0001, scatter=0.3)
    assert line.run(10)[-1] == 64
    line.latency_s *= 2
    allowed = line.run(20)
    assert min(allowed) == 1
    assert allowed[-1] == 64


@pytest.mark.parametrize("slower", [1.4, 1.7])
def test_a_machine_that_is_busy_every_now_and_then_holds_no_prefetch_back(slower: float) -> None:
    """As beside a job that decodes on all cores: bodies come late because the proxy runs late."""
    line = SmallBodies(latency_s=0.056, each_s=0.0001, scatter=0.1, slower=slower)
    line.run(LONG_S)
    assert line.brought >= 0.9 * LONG_S * 64 / (0.056 * (1 + slower) / 2)


def test_a_step_down_that_is_in_vain_beside_other_nodes_is_not_taken_back_for_ever() -> None:
    """Bodies come late because other nodes fill the line, and the fewer of ours come no sooner. Were each delay of that
    kind accepted, all nodes would prefetch as much as they can, and their readers would wait behind that."""
    background_limit = BackgroundLimit(64)
    small_bodies_come(background_limit, 200, 0.03)
    now = 10.0
    for _ in range(2000):
        now += 0.1 / background_limit.beside
        background_limit.hindered()
        background_limit.small_received(0.1, now)
    assert background_limit.beside <= 2


def test_limits_learnt_beside_a_list_do_not_hold_after_it() -> None:
    line = SmallBodies(latency_s=0.06, each_s=0.006)
    line.latency_s += 0.03
    line.run(5)
    line.latency_s -= 0.03
    line.background_limit.alone_again(len(line.outstanding))
    line.run(1)
    read = line.read
    line.run(5)
    # A queue of 30 ms would leave a reader 52 of its 76 bodies.
    assert line.read - read >= 60


def test_a_step_down_before_a_list_is_not_taken_back_after_it() -> None:
    background_limit = BackgroundLimit(64)
    small_bodies_come(background_limit, 200, 0.05)
    now = 10.0

    def late(count: int) -> None:
        nonlocal now
        for _ in range(count):
            now += 0.075 / background_limit.beside
            background_limit.small_received(0.075, now)

    while background_limit.beside == 64:
        late(1)
    background_limit.alone_again(0)
    late(100)
    assert background_limit.beside == 1


def test_bodies_requested_beside_a_list_are_not_learnt_from_after_it() -> None:
    background_limit = BackgroundLimit(64)
    background_limit.alone = background_limit.beside = 20
    background_limit.alone_again(20)
    small_bodies_come(background_limit, 20, 0.2)
    small_bodies_come(background_limit, 60, 0.05)
    learnt = background_limit.beside
    assert learnt > 8
    small_bodies_come(background_limit, 60, 0.15)
    assert background_limit.beside < learnt / 2, "three times as late as usual is a queue"


def test_until_the_usual_delay_is_known_the_limit_is_small() -> None:
    background_limit = BackgroundLimit(64)
    small_bodies_come(background_limit, 16, 0.05)
    assert (background_limit.alone, background_limit.beside) == (8, 7)
    small_bodies_come(background_limit, 1, 0.05)
    assert background_limit.alone > 8


def test_the_first_small_bodies_bring_one_more_each() -> None:
    """The first batch of a hint waits for them. One more fill for every two or three bodies took a round trip
    longer."""
    background_limit = BackgroundLimit(64)
    small_bodies_come(background_limit, 6, 0.05)
    assert (background_limit.alone, background_limit.beside) == (8, 7)
