"""The diagnosis of the bottleneck, and its words."""

from __future__ import annotations

import pytest

from outrider.core.insight.bottleneck import LargerCache, OriginWait, bottleneck_of, larger_cache
from outrider.core.insight.usage import Sums

GB = 10**9


def reads(*, stall: float, disk: float, time_s: float = 100.0) -> Sums:
    """A reader that waited for this part of its time, and had this part of its bytes from the disk."""
    return Sums(100, 50, int(disk * GB), 0, GB - int(disk * GB), stall * time_s, (1 - stall) * time_s)


@pytest.mark.parametrize(
    ("sums", "larger", "slow", "words"),
    [
        (reads(stall=0.02, disk=0.1), None, "readers", "GPU-bound: the readers are the slow part (waited 2 % of"),
        (reads(stall=0.02, disk=0.1), LargerCache(GB, 0.5), "readers", "GPU-bound"),
        (reads(stall=0.5, disk=0.4), None, "bucket", "bucket-bound: 60 % of the bytes came from the bucket"),
        (
            reads(stall=0.5, disk=0.4),
            LargerCache(40 * GB, 0.31),
            "cache",
            "cache too small: 40.0 GB more would save 31 % of",
        ),
        (
            reads(stall=0.5, disk=1.0),
            LargerCache(40 * GB, 0.31),
            "machine",
            "served from disk: as fast as this machine",
        ),
        (reads(stall=0.5, disk=0.4, time_s=0.5), None, "unknown", "too early to say"),
        (Sums(2, 0, 0, 0, 9, 50.0, 0.0), None, "unknown", "too early to say"),
        (Sums(), None, "unknown", "too early to say"),
    ],
)
def test_the_bottleneck_is_named(sums: Sums, larger: LargerCache | None, slow: str, words: str) -> None:
    verdict = bottleneck_of(sums, larger)
    assert verdict.slow == slow
    assert verdict.text.startswith(words)


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
    assert (verdict.slow, verdict.text) == ("bucket", f"the bucket fails: {text}, for 7 s (status 503)")
