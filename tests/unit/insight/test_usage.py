"""Usage by dataset and reader, waiting times, and savings."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from outrider.core.insight.usage import OTHERS, DatasetAccount, HitTally, Prices, Savings, Sums, Usage
from outrider.metrics.usage_metrics import UsageMetrics

TRAIN = ("bucket", "train-{}.tar")


def sums(requests: int = 1, disk: int = 0, origin: int = 0, wait_s: float = 0.0, away_s: float = 0.0) -> Sums:
    return Sums(requests, requests, disk, 0, origin, wait_s, away_s)


def test_a_dataset_is_named_by_its_template_and_never_by_a_key() -> None:
    assert Usage().dataset_of("bucket", "train-000123.tar") == TRAIN
    assert Usage().dataset_of("bucket", "cats/tom.jpg") == ("bucket", "cats/*.jpg")


def test_a_stall_is_the_part_of_the_time_that_a_reader_waited() -> None:
    assert sums(wait_s=1.0, away_s=3.0).stall == 0.25
    assert sums().stall is None


def test_reads_are_summed_by_dataset_and_by_reader() -> None:
    usage = Usage()
    usage.served("a", TRAIN, sums(disk=10, wait_s=1.0))
    usage.served("b", TRAIN, sums(2, origin=5))
    usage.served("a", ("bucket", "val-{}.tar"), sums(disk=7))
    usage.received("bucket", "train-7.tar", 1, 5)
    account = usage.datasets()[TRAIN]
    assert (account.sums.requests, account.sums.served_bytes, account.bucket_gets, account.bucket_bytes) == (
        3,
        15,
        1,
        5,
    )
    assert usage.total.sums.served_bytes == 22
    by_reader = {(reader, dataset[1]): account.sums.served_bytes for reader, dataset, account, _ in usage.readers()}
    assert by_reader == {("a", "train-{}.tar"): 10, ("b", "train-{}.tar"): 5, ("a", "val-{}.tar"): 7}


def test_old_requests_do_not_count_as_recent() -> None:
    usage = Usage()
    usage.tick(100.0)
    usage.served("a", TRAIN, sums(10, disk=1000, wait_s=10.0))
    usage.tick(110.0)
    ((_, _, account, _),) = usage.readers()
    assert (account.bytes_s, account.recent.stall) == (100.0, 1.0)
    for second in range(1, 301):
        if second > 200:
            usage.served("a", TRAIN, sums(disk=10, away_s=1.0))
        usage.tick(110.0 + second)
    assert abs(account.bytes_s - 10) < 1
    assert account.recent.stall is not None
    assert account.recent.stall < 0.01
    assert account.sums.stall is not None
    assert account.sums.stall > 0.09, "the sums keep old requests"


def test_the_reader_that_was_silent_for_longest_is_forgotten_first_and_no_sum_is_lost() -> None:
    usage = Usage(datasets_max=3, readers_max=2)
    for number in range(10):
        usage.served(f"reader-{number}", ("bucket", f"set-{number}"), sums(disk=10))
        usage.received("bucket", f"set-{number}", 1, 1)
    assert [reader for reader, *_ in usage.readers()] == ["reader-9", "reader-8"]
    assert len(usage.datasets()) <= 4
    assert sum(account.sums.disk_bytes for account in usage.datasets().values()) == 100
    assert sum(account.bucket_gets for account in usage.datasets().values()) == 10
    assert OTHERS in usage.datasets()


def test_a_hit_is_reported_once() -> None:
    recorder = HitTally()
    recorder.requests, recorder.sent_bytes, recorder.wait_s = 3, 30, 0.5
    assert recorder.take_unreported() == Sums(3, 3, 30, 0, 0, 0.5, 0.0)
    assert recorder.take_unreported() == Sums()


def test_savings_are_the_requests_that_the_bucket_did_not_get() -> None:
    account = DatasetAccount(wanted=5000, wanted_bytes=8 * 10**9, bucket_gets=1000, bucket_bytes=3 * 10**9)
    saved = Savings.of(account, Prices(per_gb=0.09, per_1000_gets=0.0004))
    assert (saved.gets, saved.egress_bytes) == (4000, 5 * 10**9)
    assert round(saved.egress_dollars, 9) == 0.45
    assert round(saved.request_dollars, 9) == 0.0016
    wasteful = Savings.of(DatasetAccount(wanted=1, wanted_bytes=1, bucket_gets=9, bucket_bytes=9), Prices(1e9, 1000.0))
    assert (wasteful.gets, wasteful.egress_bytes) == (-8, -8)
    assert (wasteful.request_dollars, wasteful.egress_dollars) == (-8.0, -8.0)


def test_a_read_answered_by_the_bucket_is_wanted_but_no_read_of_the_cache() -> None:
    usage = Usage(datasets_max=1)
    usage.served("ann", ("b", "x-{}.tar"), sums(2, disk=10))
    usage.passed_on(("b", "x-{}.tar"), 5)
    usage.passed_on(("b", "y-{}.tar"), 7)
    assert (usage.total.wanted, usage.total.wanted_bytes, usage.total.sums.requests) == (4, 22, 2)
    accounts = usage.datasets().values()
    assert (sum(account.wanted for account in accounts), sum(account.wanted_bytes for account in accounts)) == (4, 22)


def totals(registry: CollectorRegistry, name: str) -> dict[str, float]:
    summed: Counter[str] = Counter()
    for family in registry.collect():
        for sample in family.samples:
            if sample.name == name:
                summed[sample.labels["dataset"]] += sample.value  # type: ignore[assignment]
    return dict(summed)


def test_large_datasets_have_labels_of_their_own_and_the_rest_is_other() -> None:
    usage, registry = Usage(), CollectorRegistry()
    metrics = UsageMetrics(usage, registry, from_bytes=100)
    for _ in range(2):
        for number in range(30):
            usage.served("a", ("bucket", f"large-{number}"), sums(disk=60))
        usage.served("a", ("bucket", "small"), sums(disk=1))
        metrics.update()
    served = totals(registry, "outrider_dataset_served_bytes_total")
    assert len(served) == 21
    assert sum(served.values()) == 30 * 120 + 2
    assert served["bucket/large-0"] == 60, "bytes from before the label stay under `other`"


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 200), st.booleans()), max_size=60))
def test_no_byte_is_counted_twice_or_lost_as_datasets_come_and_go(reads: list[tuple[int, int, bool]]) -> None:
    usage, registry = Usage(datasets_max=2), CollectorRegistry()
    metrics = UsageMetrics(usage, registry, from_bytes=100)
    last: dict[str, float] = {}
    for number, count, scraped in [*reads, (0, 0, True)]:
        usage.served("a", ("bucket", f"set-{number}"), sums(disk=count))
        if not scraped:
            continue
        metrics.update()
        served = totals(registry, "outrider_dataset_served_bytes_total")
        assert all(served[label] >= value for label, value in last.items()), "a counter never falls"
        last = served
    assert sum(last.values()) == sum(count for _, count, _ in reads)


def test_small_datasets_on_disk_count_as_others_and_one_that_has_gone_is_not_shown() -> None:
    registry = CollectorRegistry()
    metrics = UsageMetrics(Usage(), registry, from_bytes=100)

    def cached() -> dict[str, float]:
        (family,) = metrics.cached_bytes.collect()
        return {sample.labels["dataset"]: sample.value for sample in family.samples}

    metrics.hold([(("b", "a-{}"), 100), (("b", "c-{}"), 7), (("b", "d-{}"), 8)])
    assert cached() == {"b/a-{}": 100, "other": 15}
    metrics.hold([(("b", "d-{}"), 8)])
    assert cached() == {"other": 8}


@pytest.mark.parametrize(("spent_bytes", "data_bytes", "are_read", "text"), [
    (47_100_000, 47_100_000, False, "spent 47.1 MB ahead; repays from epoch 2"),
    (20, 47, False, "spent 20 B ahead; repays from epoch 2"),
    (150, 47, False, "spent 150 B ahead; repays from epoch 4"),
    (20, 47, True, "spent 20 B ahead; repays within 1 epoch"),
    (48, 47, True, "spent 48 B ahead; repays within 2 epochs"),
    (20, 0, False, "the bucket sent 20 B more than readers got"),
    (0, 47, False, None),
    (-20, 47, True, None),
])  # fmt: skip
def test_bytes_that_came_ahead_say_when_they_are_repaid(
    spent_bytes: int, data_bytes: int, are_read: bool, text: str | None
) -> None:
    account = DatasetAccount(wanted_bytes=1000, bucket_bytes=1000 + spent_bytes)
    assert Savings.of(account, Prices()).spent(data_bytes, are_read=are_read) == text
