"""The counts of hits reach the metrics whole and once, whenever these are read."""

from __future__ import annotations

import pytest

from outrider.core.model import ObjectRef
from outrider.http.record import hit_counts
from outrider.http.record.hit_counts import HitCounts
from outrider.metrics import FIRST_BUCKET_S, Metrics

REF = ObjectRef("train", "shard-0001.tar")
NAME = "outrider_first_byte_seconds"


def test_the_times_of_hits_are_in_the_histogram_as_if_each_was_observed() -> None:
    metrics, expected = Metrics(), Metrics()
    counts = HitCounts(metrics, lambda: None)
    _, tally = counts.begin(REF, "reader")
    for number, seconds in enumerate((0.0, 0.0005, FIRST_BUCKET_S, 0.002, 0.5, 0.0001, 100.0)):
        counts.add(tally, "GET", 206, 10, seconds, 0.0)
        expected.first_byte_s.labels("get").observe(seconds)
        if number % 2:
            metrics.add_up()
    for le in ("0.001", "0.003", "0.3", "1.0", "+Inf"):
        assert metrics.value(f"{NAME}_bucket", op="get", le=le) == expected.value(f"{NAME}_bucket", op="get", le=le)
    for suffix in ("_count", "_sum"):
        counted = metrics.value(NAME + suffix, op="get")
        assert counted == pytest.approx(expected.value(NAME + suffix, op="get"))


def test_hits_are_counted_once_however_often_the_metrics_are_read() -> None:
    metrics = Metrics()
    counts = HitCounts(metrics, lambda: None)
    tallies, tally = counts.begin(REF, "reader")
    assert tallies == counts.tallies_of(REF) == {"reader": tally}
    for method, status in (("GET", 200), ("GET", 206), ("GET", 206), ("HEAD", 200)):
        counts.add(tally, method, status, 10, 0.0001, 1.0)
        metrics.add_up()
        metrics.add_up()
    assert metrics.value("outrider_requests_total", op="get", status="206", cache="HIT") == 2
    assert metrics.value("outrider_requests_total", op="head", status="200", cache="HIT") == 1
    assert metrics.value("outrider_served_bytes_total", source="disk") == 40
    assert metrics.usage.total.sums.requests == metrics.usage.total.sums.hits == 4
    assert metrics.usage.total.sums.away_s == 4.0


def test_a_full_table_is_handed_on_and_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hit_counts, "_TALLIES_MAX", 2)
    replaced: list[bool] = []
    metrics = Metrics()
    counts = HitCounts(metrics, lambda: replaced.append(True))
    for number in range(5):
        _, tally = counts.begin(REF, f"reader {number}")
        counts.add(tally, "GET", 200, 1, 0.0001, 0.0)
    assert replaced == [True, True]
    assert len(counts.tallies_of(REF)) == 1
    metrics.add_up()
    assert metrics.usage.total.sums.requests == 5
