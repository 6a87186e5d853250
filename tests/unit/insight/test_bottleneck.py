"""The diagnosis of the bottleneck, its words, and the next step."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.insight.bottleneck import (
    LargerCache,
    OriginWait,
    Slow,
    alerts,
    bottleneck_of,
    is_mostly_cold,
    larger_cache,
)
from outrider.core.insight.load import CpuTimes, Load, LoadMeter, LoadSample
from outrider.core.insight.next_step import Data, Setup, next_step
from outrider.core.insight.usage import Sums
from outrider.settings.values import parse_bytes

GB = 10**9
LARGER = LargerCache(40 * GB, 0.31)


def reads(*, stall: float, disk: float, time_s: float = 100.0, misses: float | None = None, **more: int) -> Sums:
    """A reader that waited for this part of its time, and had this part of its bytes from the disk. `misses`: their
    part of the wait; None: that of the bytes."""
    wait_s = stall * time_s
    cold = GB - int(disk * GB)
    past = more.get("past", 0)
    return Sums(
        100, 50, int(disk * GB), cold - past, past, wait_s, (1 - stall) * time_s, more.get("peer", 0),
        wait_s * (1 - disk if misses is None else misses),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("sums", "larger", "load", "slow", "words"),
    [
        (
            reads(stall=0.02, disk=0.1),
            None,
            Load(),
            "readers",
            "GPU-bound: the job itself is the slow part (waited 2 % of",
        ),
        (reads(stall=0.02, disk=0.1), LARGER, Load(0.5, 0.0, 1.0, 1.0), "readers", "GPU-bound"),
        # Requests that wait in their sockets are not seen.
        (reads(stall=0.02, disk=1.0), LARGER, Load(0.97), "cpu", "CPU-bound: the proxy's event loop is busy 97 % of"),
        (reads(stall=0.5, disk=0.4), None, Load(), "bucket", "bucket-bound: 60 % of the bytes came from the bucket"),
        (reads(stall=0.5, disk=0.4), LARGER, Load(), "cache", "cache too small: 40.0 GB more would save 31 % of"),
        (reads(stall=0.5, disk=1.0), LARGER, Load(), "latency", "served from disk, 1000 ms each: neither the CPU nor"),
        (reads(stall=0.5, disk=1.0), None, Load(disk=0.6), "disk", "disk-bound: hits wait for the disk of the cache"),
        (reads(stall=0.5, disk=1.0), None, Load(lookup=0.6), "freshness", "hits wait for the bucket, which is asked"),
        (reads(stall=0.5, disk=0.97, misses=0.9), None, Load(), "bucket", "bucket-bound: 3 % of the bytes"),
        (reads(stall=0.5, disk=0.4, misses=0.1), LARGER, Load(disk=0.9), "disk", "disk-bound: hits"),
        (reads(stall=0.5, disk=0.4), LARGER, Load(disk_behind=0.8), "disk", "disk-bound: the disk of the cache takes"),
        (
            reads(stall=0.5, disk=0.4),
            LARGER,
            Load(connections=0.8),
            "connections",
            "connection-bound: reads of the bucket",
        ),
        (reads(stall=0.5, disk=0.4), LARGER, Load(fills=0.8), "fills", "connection-bound: reads of the bucket"),
        (reads(stall=0.5, disk=0.4, peer=500_000_000), LARGER, Load(), "peers", "cluster-bound: 60 % of the bytes"),
        (reads(stall=0.5, disk=0.4, past=500_000_000), LARGER, Load(), "uncached", "bucket-bound: 60 % of the bytes"),
        (reads(stall=0.5, disk=0.4, time_s=0.5), None, Load(), "unknown", "too early to say: too few reads of late"),
        (Sums(1, 0, 0, 0, 9, 4.0, 0.0, 0, 4.0), None, Load(), "unknown", "too early to say: too few reads of late"),
        (Sums(1, 0, 0, 0, 9, 50.0, 0.0, 0, 50.0), None, Load(), "uncached", "bucket-bound: 100 % of the bytes"),
        (Sums(9, 0, 0, 0, 0, 50.0, 0.0, 0, 50.0), None, Load(), "bucket", "bucket-bound: reads wait for the bucket"),
        (Sums(), None, Load(), "unknown", "too early to say: too few reads of late"),
    ],
)
def test_the_bottleneck_is_named(sums: Sums, larger: LargerCache | None, load: Load, slow: str, words: str) -> None:
    verdict = bottleneck_of(sums, larger, None, load)
    assert verdict.slow == slow
    assert verdict.text.startswith(words)
    # Amber means one thing: readers wait, and there is something to do about it.
    assert verdict.level == {"unknown": "none", "readers": "good"}.get(slow, "slower")


@pytest.mark.parametrize("disk", [0.0, 0.5, 1.0])
@pytest.mark.parametrize(
    ("load", "words"),
    [
        (Load(loop=0.97), "CPU-bound: the proxy's event loop is busy 97 % of the time"),
        (Load(cores=1.02), "CPU-bound: the proxy takes 100 % of the cores"),
        (Load(receivers=0.95), "CPU-bound: the receivers are busy 95 % of the time"),
    ],
)
def test_the_cpu_is_the_limit_wherever_the_bytes_come_from(disk: float, load: Load, words: str) -> None:
    verdict = bottleneck_of(reads(stall=0.5, disk=disk), LARGER, None, load)
    assert verdict.slow == "cpu"
    assert verdict.text.startswith(words)


shares = st.floats(0, 0.89)


@given(st.builds(Load, *[shares] * 4, *[st.floats(0, 1)] * 5), st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_a_cpu_with_time_left_is_never_blamed(load: Load, stall: float, disk: float, misses: float) -> None:
    """However long it waits for the bucket, for the disk or for a connection."""
    assert bottleneck_of(reads(stall=stall, disk=disk, misses=misses), LARGER, None, load).slow != "cpu"


@given(st.floats(0, 10_000), st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_more_wait_for_misses_never_turns_the_blame_to_hits(
    time_s: float, stall: float, misses: float, more: float
) -> None:
    of_hits = ("latency", "freshness")
    sums = reads(stall=stall, disk=0.5, time_s=time_s, misses=misses)
    worse = replace(sums, wait_s=sums.wait_s + more * time_s, miss_wait_s=sums.miss_wait_s + more * time_s)
    if bottleneck_of(sums).slow not in (*of_hits, "unknown", "readers"):
        assert bottleneck_of(worse).slow not in of_hits


def test_more_cache_is_advised_where_it_would_save_gets() -> None:
    ratios = {0.5: 0.2, 1.0: 0.5, 2.0: 0.655, 4.0: 1.0}
    double = larger_cache(ratios, 40 * GB, 0)
    assert double is not None
    assert (double.more_bytes, round(double.saves, 9)) == (40 * GB, 0.31)
    some = larger_cache(ratios, 40 * GB, 60 * GB)
    assert some is not None
    assert some.more_bytes == 20 * GB, "no more than there is"
    assert larger_cache({1.0: 0.5, 2.0: 0.52, 4.0: 1.0}, 40 * GB, 0) == LargerCache(120 * GB, 1.0)


@pytest.mark.parametrize("ratios", [None, {1.0: 1.0, 2.0: 1.0}, {1.0: 0.5, 2.0: 0.5, 4.0: 0.54}])
def test_no_larger_cache_is_advised_where_it_saves_nothing(ratios: dict[float, float] | None) -> None:
    assert larger_cache(ratios, GB, 0) is None


@pytest.mark.parametrize(("count", "text"), [(1, "1 read waits"), (12, "12 reads wait")])
def test_reads_that_wait_for_a_bucket_that_fails_are_the_verdict(count: int, text: str) -> None:
    verdict = bottleneck_of(Sums(), None, OriginWait(count, 7.4, "status 503"))
    assert (verdict.slow, verdict.text) == ("failing", f"the bucket fails: {text}, for 7 s (status 503)")
    assert verdict.level == "bad"


def test_a_failure_is_shown_without_its_number() -> None:
    why = "cannot connect: [Errno 111] Connection refused"
    assert bottleneck_of(Sums(), None, OriginWait(1, 7, why)).text.endswith("(cannot connect: Connection refused)")


def test_failed_reads_and_members_that_are_away_are_shown_beside_it() -> None:
    assert alerts(0, 0, 3) == []
    assert alerts(1, 1, 3) == [
        "1 read failed in the last minute: see the last errors",
        "1 of 3 members is away: see `outrider cluster`",
    ]
    assert alerts(12, 2, 3) == [
        "12 reads failed in the last minute: see the last errors",
        "2 of 3 members are away: see `outrider cluster`",
    ]


# -- the next step ----------------------------------------------------------------------------------------------------

FULL = Load(loop=1.0, cores=0.5)
TRAIN = Data("s3://b/train/", 60 * GB)


@pytest.mark.parametrize(
    ("slow", "setup", "load", "is_cold", "data", "words"),
    [
        ("bucket", Setup(), Load(), True, None, "outrider warm s3://BUCKET/PREFIX/"),
        ("bucket", Setup(capacity_bytes=80 * GB), Load(), True, TRAIN, "outrider warm s3://b/train/"),
        ("bucket", Setup(capacity_bytes=40 * GB), Load(), True, TRAIN, "`outrider_sdk`"),
        (
            "bucket", Setup(capacity_bytes=40 * GB), Load(), True, replace(TRAIN, is_order_known=True),
            "outrider doctor s3://b/train/",
        ),
        # It waited for the first reads, and need not do so again.
        ("bucket", Setup(capacity_bytes=80 * GB), Load(), True, replace(TRAIN, is_cached=True), "Nothing to do: "),
        ("cache", Setup(capacity_bytes=40 * GB), Load(), True, TRAIN, "40.0 GB more: `--cache-size 80GB`"),
        ("connections", Setup(connections_by="`buffer_bytes`"), Load(), True, TRAIN, "Raise `buffer_bytes`."),
        ("fills", Setup(), Load(), True, TRAIN, "Raise `fills`."),
        ("cpu", Setup(cores=8, receivers=4, is_https=True), FULL, True, None, "Set `receivers` to 8"),
        ("cpu", Setup(cores=4, receivers=4, is_https=True), FULL, True, None, "more cores .*set `receivers` to their"),
        ("cpu", Setup(cores=2, receivers=0, is_https=True), Load(1, cores=1.0), True, None, "more cores .*`receivers`"),
        ("cpu", Setup(cores=4, receivers=4, is_https=True), FULL, False, None, "one proxy more"),
        ("cpu", Setup(cores=4, receivers=4), FULL, True, None, "one proxy more"),
        ("cpu", Setup(cores=1), Load(1.0, cores=1.0), False, None, r"more cores \(.*\)\.$"),
        ("cpu", Setup(cores=4), Load(1.0, queued=0.6, cores=0.4), False, None, r"more cores \(.*\)\.$"),
        ("readers", Setup(), Load(), False, None, "Nothing to do"),
        ("disk", Setup(), Load(), False, None, "`--cache-dir` on a faster disk"),
        ("failing", Setup(), Load(), False, None, "outrider doctor"),
        ("uncached", Setup(), Load(), False, None, "`outrider doctor` for room on disk"),
        ("freshness", Setup(), Load(), False, None, "--freshness immutable"),
        ("unknown", Setup(), Load(), False, None, "^$"),
    ],
)  # fmt: skip
def test_the_next_step_names_the_command_or_the_setting(
    slow: Slow, setup: Setup, load: Load, is_cold: bool, data: Data | None, words: str
) -> None:
    assert re.search(words, next_step(slow, setup, load, is_cold=is_cold, larger=LARGER, data=data))


@pytest.mark.parametrize("slow", get_args(Slow))
def test_each_bottleneck_has_one_sentence(slow: Slow) -> None:
    step = next_step(slow, Setup(capacity_bytes=40 * GB), FULL, larger=LARGER, data=TRAIN)
    assert slow == "unknown" or re.fullmatch(r"[A-Z][^.]*(\.[^ ][^.]*)*\.", step), step


@given(st.integers(1, 10**15), st.integers(1, 10**15))
def test_the_advised_size_has_room_for_what_is_needed_and_hardly_more(capacity: int, more: int) -> None:
    step = next_step("cache", Setup(capacity_bytes=capacity), Load(), larger=LargerCache(more, 1.0))
    found = re.search(r"--cache-size (\S+)`", step)
    assert found is not None
    wanted = capacity + more
    assert wanted <= parse_bytes(found[1]) + 1 <= 1.1 * wanted + 100_000


# -- the load ---------------------------------------------------------------------------------------------------------


def test_the_load_is_a_share_of_the_time_and_of_the_cores() -> None:
    meter = LoadMeter(4)
    for second in range(200):
        meter.note(float(second), LoadSample(
            CpuTimes(0.7 * second, 0.2 * second, 2.0 * second, 1.5 * second, 2),
            4.0 * second, 1.0 * second, 3.0 * second, second % 2 == 0, False, True,
        ))  # fmt: skip
    load = meter.load
    assert [round(share, 3) for share in (load.loop, load.queued, load.cores, load.receivers)] == [0.9, 0.2, 0.5, 0.75]
    assert [round(share, 3) for share in (load.disk, load.lookup, load.connections, load.fills)] == [0.25, 0.75, 0, 1]
    assert 0.45 < load.disk_behind < 0.55


def test_an_old_load_is_forgotten_unless_all_samples_count() -> None:
    recent, whole = LoadMeter(1), LoadMeter(1, half_life_s=None)
    for second in range(201):
        for meter in (recent, whole):
            meter.note(float(second), LoadSample(CpuTimes(loop_s=min(second, 100.0))))
    assert recent.load.loop < 0.05
    assert whole.load.loop == 0.5


def test_a_job_that_takes_all_of_the_cpu_is_seen_ten_seconds_after_an_hour_without_reads() -> None:
    meter = LoadMeter(1)
    for second in range(3600):
        meter.note(float(second), LoadSample(is_idle=True))
    for second in range(10):
        meter.note(3600.0 + second, LoadSample(CpuTimes(loop_s=float(second))))
    assert bottleneck_of(reads(stall=0.5, disk=1.0), None, None, meter.load).slow == "cpu"


def test_a_receiver_that_ends_takes_nothing_from_the_load() -> None:
    meter = LoadMeter(1)
    for second, received_s in enumerate((0.0, 1.0, 0.0)):
        meter.note(float(second), LoadSample(CpuTimes(process_s=received_s, receivers_s=received_s, receivers=1)))
    assert meter.load.receivers > 0.45
    assert meter.load.cores > 0.45


def test_nothing_measured_is_no_load() -> None:
    meter = LoadMeter(1)
    assert meter.load == Load()
    meter.note(1.0, LoadSample())
    meter.note(1.0, LoadSample())
    assert meter.load == Load()


def test_bytes_are_cold_where_most_did_not_come_from_the_disk() -> None:
    assert not is_mostly_cold(Sums())
    assert is_mostly_cold(reads(stall=0.5, disk=0.4))
    assert not is_mostly_cold(reads(stall=0.5, disk=0.6))
