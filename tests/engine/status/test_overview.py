"""The verdicts of the overview, by samples of the proxy's parts and by reads under way, with a fake clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from outrider.core.ahead.planner import Planner
from outrider.core.insight.load import CpuTimes, LoadSample
from outrider.core.insight.miss_ratio import MissRatioCurve
from outrider.core.insight.next_step import Setup
from outrider.core.insight.usage import Prices, ReadUnderWay, Sums
from outrider.core.model import BlockKey, ObjectRef, ObjectVersion
from outrider.engine.status.overview import Overview
from outrider.engine.status.verdicts import Verdicts
from outrider.metrics import Metrics
from tests.support.fakes import FakeClock

TRAIN, VAL = ("bucket", "train/{}.tar"), ("bucket", "val/{}.tar")
GB = 10**9


@dataclass
class Proxy:
    """The parts that are looked at, with knobs; a second goes by in each `second`."""

    disk_lags: bool = False
    is_short: bool = False
    question_s: float = 0.0
    loop_share: float = 0.0
    is_short_of_connections: bool = False
    clock: FakeClock = field(default_factory=FakeClock)
    metrics: Metrics = field(default_factory=Metrics)
    loop_s: float = 0.0

    def __post_init__(self) -> None:
        setup = Setup(cores=4, capacity_bytes=GB, connections_by="`buffer_bytes`")
        self.planner = Planner(GB, 1000)
        self.overview = Overview(
            self.metrics, self.planner, MissRatioCurve(GB), Prices(), self.clock,
            Verdicts(self.metrics, setup, self.sample), capacity_bytes=GB,
        )  # fmt: skip

    def sample(self) -> LoadSample:
        return LoadSample(
            CpuTimes(loop_s=self.loop_s), lookup_wait_s=self.question_s, is_disk_behind=self.disk_lags,
            is_short_of_connections=self.is_short_of_connections, is_short_of_fills=self.is_short,
        )  # fmt: skip

    def second(self, *reads: tuple[str, tuple[str, str], Sums]) -> None:
        for reader, dataset, sums in reads:
            self.metrics.usage.served(reader, dataset, sums)
        self.loop_s += self.loop_share
        self.clock.advance(1.0)
        self.overview.tick()

    def verdict(self) -> dict[str, Any]:
        return dict(self.overview.document()["verdict"])


def a_miss(wait_s: float = 0.5) -> Sums:
    return Sums(1, 0, 0, 10**6, 0, wait_s, 1 - wait_s, 0, wait_s)


def a_hit(wait_s: float = 0.5) -> Sums:
    return Sums(1, 1, 10**6, 0, 0, wait_s, 1 - wait_s)


@pytest.mark.parametrize(
    ("knobs", "sums", "slow", "step"),
    [
        ({}, a_miss(), "bucket", "`outrider warm s3://bucket/train/`"),
        ({"disk_lags": True}, a_miss(), "disk", "`--cache-dir`"),
        ({"is_short": True}, a_miss(), "fills", "`fills`"),
        ({"is_short_of_connections": True}, a_miss(), "connections", "`buffer_bytes`"),
        ({"loop_share": 0.95}, a_miss(), "cpu", "one proxy more"),
        ({"loop_share": 0.95}, a_hit(), "cpu", "one proxy more"),
        ({"loop_share": 0.5}, a_hit(), "latency", "`num_workers`"),
        ({}, a_hit(0.01), "readers", "Nothing to do"),
    ],
)
def test_the_parts_of_the_proxy_are_looked_at_each_second(
    knobs: dict[str, Any], sums: Sums, slow: str, step: str
) -> None:
    proxy = Proxy(**knobs)
    for _ in range(10):
        proxy.second(("job", TRAIN, sums))
    assert proxy.verdict()["slow"] == slow
    assert step in proxy.verdict()["next"]
    assert proxy.overview.verdict_on_all()["slow"] == slow


def test_a_dataset_that_is_cached_as_a_whole_is_not_to_be_warmed() -> None:
    """Readers that waited for its first reads are bucket-bound for half a minute more."""
    proxy, keys = Proxy(), [f"train/{number:06d}.tar" for number in range(2)]
    proxy.planner.discovery.listed("bucket", [(key, 1000) for key in keys], prefix="train/")
    for number, key in enumerate(keys):
        for _ in range(5):
            proxy.second(("job", TRAIN, a_miss()))
        assert "`outrider warm s3://bucket/train/`" in proxy.verdict()["next"]
        version = ObjectVersion(ObjectRef("bucket", key), '"1"', 1000)
        proxy.planner.added(BlockKey(b"%016d" % number, 0), version)
    assert proxy.verdict()["slow"] == "bucket"
    assert proxy.verdict()["next"] == "Nothing to do: the dataset is in the cache as a whole by now."


def test_a_job_after_a_pause_is_judged_by_its_own_load() -> None:
    proxy = Proxy()
    for _ in range(600):
        proxy.second()
    proxy.loop_share = 0.97
    for _ in range(10):
        proxy.second(("job", TRAIN, a_hit()))
    assert proxy.verdict()["slow"] == "cpu"
    assert proxy.overview.document()["load"]["loop"] == 0.97


def test_hits_that_wait_for_the_disk_or_for_a_lookup_are_distinguished() -> None:
    for name in ("disk", "freshness"):
        proxy = Proxy()
        for _ in range(10):
            if name == "disk":
                proxy.metrics.disk_wait_s.inc(0.4)
            else:
                proxy.question_s += 0.4
            proxy.second(("job", TRAIN, a_hit()))
        assert proxy.verdict()["slow"] == name


def test_a_cpu_that_was_busy_long_ago_is_the_limit_of_the_whole_and_not_of_now() -> None:
    proxy = Proxy(loop_share=1.0)
    for second in range(1000):
        proxy.loop_share = 1.0 if second < 950 else 0.1
        proxy.second(("job", TRAIN, a_hit()))
    assert proxy.verdict()["slow"] == "latency"
    assert proxy.overview.verdict_on_all()["slow"] == "cpu"


def test_a_job_that_has_ended_does_not_outshout_one_that_reads_now() -> None:
    proxy = Proxy()
    for _ in range(60):
        proxy.second(("old", VAL, a_miss(1.0)))
    for _ in range(15):
        proxy.second(("new", TRAIN, a_hit(0.05)))
    assert proxy.verdict()["slow"] == "bucket"
    for _ in range(6):
        proxy.second(("new", TRAIN, a_hit(0.05)))
    assert proxy.verdict()["slow"] == "readers"
    readers = {reader["name"]: reader for reader in proxy.overview.document()["readers"]}
    assert (readers["old"]["slow"], readers["new"]["slow"]) == ("bucket", "readers")


def test_a_job_keeps_its_verdict_for_a_while_where_nobody_else_reads() -> None:
    proxy = Proxy()
    for _ in range(30):
        proxy.second(("job", TRAIN, a_miss()))
    for _ in range(25):
        proxy.second()
    assert proxy.verdict()["slow"] == "bucket"
    for _ in range(200):
        proxy.second()
    assert proxy.verdict()["slow"] == "unknown"


def under_way(wait_s: float, away_s: float = 0.0, *, is_hit: bool = False) -> ReadUnderWay:
    return ReadUnderWay("job", TRAIN, is_hit, away_s == 0.0, wait_s, away_s)


@pytest.mark.parametrize(
    ("reads", "slow", "waiting_s"),
    [
        ([], None, None),
        ([under_way(0.9)], None, None),
        ([under_way(9.0)], "bucket", 9.0),
        ([under_way(9.0), under_way(12.0)], "bucket", 12.0),
        ([under_way(0.5, 60.0)], "readers", None),
        ([under_way(9.0, is_hit=True)], "latency", 9.0),
    ],
)
def test_reads_under_way_count_before_they_end(
    reads: list[ReadUnderWay], slow: str | None, waiting_s: float | None
) -> None:
    proxy = Proxy()
    proxy.metrics.reads_under_way = lambda: reads
    readers = proxy.overview.document()["readers"]
    if slow is None:
        assert readers == []
        return
    (reader,) = readers
    assert (reader["slow"], reader["waiting_s"], reader["reads_under_way"]) == (slow, waiting_s, len(reads))
    assert proxy.verdict()["slow"] == slow


def test_a_read_under_way_weighs_no_more_than_its_time_would_have() -> None:
    short, long = under_way(1.0).recent(), under_way(10_000.0).recent()
    assert 0.95 < short.wait_s < 1.0
    assert 28 < long.wait_s < 29, "the integral of a half-life of 20 s"
    half = under_way(3.0, 9.0).recent()
    assert half.stall == pytest.approx(0.25)


def test_members_that_are_away_raise_an_alert() -> None:
    proxy = Proxy()
    states = {"alive": 2, "away": 1, "left_out": 0}
    assert proxy.overview.document(states)["verdict"]["alerts"] == ["1 of 3 members is away: see `outrider cluster`"]
    assert proxy.overview.document()["verdict"]["alerts"] == []


def test_a_failed_read_raises_an_alert_for_a_minute() -> None:
    proxy = Proxy()
    proxy.second()
    proxy.metrics.usage.failed()
    assert proxy.verdict()["alerts"] == ["1 read failed in the last minute: see the last errors"]
    for _ in range(59):
        proxy.second()
    assert proxy.verdict()["alerts"] == ["1 read failed in the last minute: see the last errors"]
    for _ in range(3):
        proxy.second()
    assert proxy.verdict()["alerts"] == []


def test_a_dataset_says_whether_all_its_objects_are_known() -> None:
    planner = Planner(GB, 1000)
    planner.discovery.listed(
        "bucket", [(f"train/{number:06d}.tar", 10) for number in range(4)], prefix="train/", more=True
    )
    (dataset,) = planner.registry.datasets()
    assert not dataset.discovery.is_whole
    planner.discovery.listed("bucket", [("train/000004.tar", 10)], prefix="train/", before=4)
    assert dataset.discovery.is_whole
    planner.discovery.list_failed("bucket", "train/", 2.0)
    assert dataset.discovery.is_whole, "a LIST that fails later changes nothing"
    dataset.give_up_numbering()
    assert not dataset.discovery.is_whole
