"""The verdict on whole jobs, ten seconds after their start, in virtual time: slow and fast ones, large and small reads,
from each source."""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count

import pytest

from outrider.core.insight.bottleneck import bottleneck_of
from outrider.core.insight.usage import Sums, Usage
from tests.support.trials import SCALE

TRAIN = ("bucket", "train-{}.tar")
SHARD, SAMPLE = 100_000_000, 10_000
SOURCES = {
    # The source: the bytes of a read by source (disk, flight, past the cache, peer), and whether it is a hit.
    "hit": ((1, 0, 0, 0), True),
    "miss": ((0, 1, 0, 0), False),
    "peer": ((0, 1, 0, 1), False),
    "past the cache": ((0, 0, 1, 0), False),
}
READS_S = [0.2, 0.5, 1.0, 1.7, 30.0, 5000.0 if SCALE > 1 else 1000.0]
SLOW = {"hit": "latency", "miss": "bucket", "peer": "peers", "past the cache": "uncached"}


def job(source: str, size: int, reads_s: float, stall: float, seconds: float = 10.0) -> Sums:
    """The recent sums of a job that does `reads_s` reads a second by one connection, or by as many as it takes to read
    that fast where a read lasts 10 ms at least. It waits for `stall` of its time."""
    usage = Usage()
    usage.tick(100.0)
    connections = max(1, round(0.01 * reads_s))
    period_s = connections / reads_s
    (disk, flight, past, peer), is_hit = SOURCES[source]
    order = count()
    # When a read of each connection ends. All begin at once: a read that is under way does not count.
    ends: list[tuple[float, int]] = []
    for _ in range(connections):
        heappush(ends, (100.0 + stall * period_s, next(order)))
    tick, first = 101.0, set(range(connections))
    while tick <= 100.0 + seconds:
        while ends[0][0] < tick:
            at, number = heappop(ends)
            wait_s, away_s = stall * period_s, 0.0 if number in first else (1 - stall) * period_s
            first.discard(number)
            usage.served("job", TRAIN, Sums(
                1, int(is_hit), disk * size, flight * size, past * size, wait_s, away_s, peer * size,
                0.0 if is_hit else wait_s,
            ))  # fmt: skip
            heappush(ends, (at + period_s, next(order)))
        usage.tick(tick)
        tick += 1.0
    ((_, _, account, _),) = usage.readers()
    return account.recent


@pytest.mark.parametrize("reads_s", READS_S)
@pytest.mark.parametrize("size", [SHARD, SAMPLE])
@pytest.mark.parametrize("source", SOURCES)
def test_a_job_that_waits_is_judged_after_ten_seconds(source: str, size: int, reads_s: float) -> None:
    assert bottleneck_of(job(source, size, reads_s, stall=0.61)).slow == SLOW[source]


@pytest.mark.parametrize("reads_s", READS_S)
@pytest.mark.parametrize("size", [SHARD, SAMPLE])
@pytest.mark.parametrize("source", SOURCES)
def test_a_job_that_hardly_waits_is_the_limit_itself(source: str, size: int, reads_s: float) -> None:
    # Two reads in ten seconds: the time before the second one is the only one in which this job was away.
    assert bottleneck_of(job(source, size, reads_s, stall=0.02)).slow == "readers"


def test_a_slow_job_keeps_its_verdict_and_loses_it_when_it_has_ended() -> None:
    """A count that is rounded down each second never reaches two reads."""
    assert job("miss", SHARD, 0.9, stall=0.61, seconds=180.0).requests > 20
    usage = Usage()
    usage.tick(0.5)
    for second in range(1, 100):
        usage.served("job", TRAIN, Sums(1, 0, 0, SHARD, 0, 0.6, 0.4, 0, 0.6))
        usage.tick(second + 0.5)
    ((_, _, account, _),) = usage.readers()
    assert bottleneck_of(account.recent).slow == "bucket"
    for second in range(100, 250):
        usage.tick(second + 0.5)
    assert bottleneck_of(account.recent).slow == "unknown"
