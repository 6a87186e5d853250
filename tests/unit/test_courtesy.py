"""How many fills may run that nobody waits for: numbers in, numbers out."""

from __future__ import annotations

import heapq
import random

from outrider.core.courtesy import Courtesy


class Line:
    """Gives each connection 4 MB/s and all of them 32 MB/s."""

    def __init__(self) -> None:
        self.courtesy = Courtesy(64)
        self.now = 0.0

    def run(self, seconds: float, demand: int, *, queued: bool = True) -> list[int]:
        """So many connections that somebody waits for; how many others were allowed in each tenth of a second."""
        allowed = []
        for _ in range(int(seconds * 10)):
            courtesy = self.courtesy
            beside = courtesy.beside if demand else courtesy.alone
            allowed.append(beside)
            if courtesy.is_due(self.now):
                courtesy.judge(self.now, awaited=demand > 0, queued=queued)
            courtesy.flowed(int(min(4e5 * (demand + beside), 3.2e6)))
            self.now += 0.1
        return allowed


def test_alone_it_takes_what_fills_the_line_and_no_more() -> None:
    assert 7 <= Line().run(20, demand=0)[-1] <= 16


def test_what_nobody_needed_is_not_there_for_a_burst() -> None:
    line = Line()
    line.run(20, demand=0)
    assert line.run(20, demand=0, queued=False)[-1] == 2


def test_beside_readers_who_fill_the_line_it_keeps_out_of_the_way() -> None:
    line = Line()
    line.run(20, demand=0)
    assert max(line.run(20, demand=8)[5:]) <= 2


def test_beside_a_reader_who_leaves_room_it_takes_the_room() -> None:
    line = Line()
    line.run(20, demand=0)
    allowed = line.run(20, demand=2)
    assert allowed[0] == 1
    assert 3 <= sum(allowed[100:]) / len(allowed[100:]) <= 8


def test_after_a_silence_it_begins_anew() -> None:
    line = Line()
    line.run(20, demand=0)
    line.courtesy.heed(line.now + 0.9)
    assert line.courtesy.alone >= 7
    line.courtesy.heed(line.now + 1.1)
    assert (line.courtesy.alone, line.courtesy.beside) == (2, 1)


def test_what_is_limited_by_latency_alone_is_not_held_back() -> None:
    courtesy = Courtesy(64)
    for _ in range(200):
        courtesy.felt()
        courtesy.came_small(0.05)
    assert courtesy.alone == courtesy.beside == 64


def small_bodies(courtesy: Courtesy, latency_s: float, each_s: float, count: int, *, scatter: float = 0.0) -> list[int]:
    """`count` small bodies over a line that takes `each_s` for one, beside a reader that asks for one after the
    other; how many were allowed as each of them came."""
    chance = random.Random(6)
    free_at = 0.0
    under_way: list[tuple[float, float, bool]] = []
    allowed: list[int] = []

    def ask(now: float, *, demand: bool) -> None:
        nonlocal free_at
        ready = now + latency_s * chance.lognormvariate(-(scatter**2) / 2, scatter)
        free_at = max(free_at, ready) + each_s
        heapq.heappush(under_way, (free_at, now, demand))

    ask(0.0, demand=True)
    while len(allowed) < count:
        now, asked_at, demand = heapq.heappop(under_way)
        held = sum(not demand for _, _, demand in under_way)
        courtesy.felt()
        courtesy.came_small(now - asked_at)
        if demand:
            ask(now, demand=True)
        while held < courtesy.beside and len(allowed) >= 20:
            ask(now, demand=False)
            held += 1
        allowed.append(courtesy.beside)
        if len(allowed) < 20:
            courtesy.beside = 1
    return allowed


def test_small_bodies_that_queue_behind_each_other_are_held_back() -> None:
    allowed = small_bodies(Courtesy(64), latency_s=0.056, each_s=0.009, count=1500)
    # 6 fill the line; 12 would double what a reader waits.
    assert 6 <= sum(allowed[100:]) / len(allowed[100:]) <= 14


def test_small_bodies_of_a_bucket_whose_latencies_scatter_are_not() -> None:
    allowed = small_bodies(Courtesy(64), latency_s=0.056, each_s=0.0001, count=5000, scatter=0.5)
    assert sum(allowed[2500:]) / len(allowed[2500:]) >= 48


def test_a_bucket_that_became_slower_is_not_taken_for_a_queue_for_ever() -> None:
    courtesy = Courtesy(64)
    small_bodies(courtesy, latency_s=0.03, each_s=0.0001, count=500)
    allowed = small_bodies(courtesy, latency_s=0.06, each_s=0.0001, count=4000)
    assert min(allowed) == 1
    assert allowed[-1] == 64
