"""Diagnoses the bottleneck, in words: the readers, the bucket, the size of the cache, or this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from outrider.core.insight.usage import Sums
from outrider.core.text import in_words

# Less time than this, over all connections, tells nothing yet; nor do fewer requests.
_TIME_S_MIN = 1.0
_REQUESTS_MIN = 4
# A reader that waits for less than this part of its time is not held up.
_STALL_LITTLE = 0.1
# If this part of the bytes came from the disk here, the bucket has no part in the wait.
_MOSTLY_DISK = 0.95
# A larger cache that would save less than this part of the GETs is not mentioned.
_GAIN_MIN = 0.1


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """`slow`: `unknown`, `readers`, `cache`, `bucket` or `machine`."""

    slow: str
    text: str


@dataclass(frozen=True, slots=True)
class LargerCache:
    """With `more_bytes` more, the cache would save the part `saves` of the GETs that go to the bucket now."""

    more_bytes: int
    saves: float


@dataclass(frozen=True, slots=True)
class OriginWait:
    """`reads` reads wait for an origin that is busy or away, the first of them for `for_s` seconds. `why`: its last
    failure."""

    reads: int
    for_s: float
    why: str


def larger_cache(hit_ratios: Mapping[float, float] | None, capacity_bytes: int, data_bytes: int) -> LargerCache | None:
    """The smallest larger cache that is worth mentioning; None: there is none, or nothing is known.

    `hit_ratios` are by size, as a multiple of `capacity_bytes` (see `miss_ratio`). `data_bytes`: the size of all data
    that is read again and again; 0: not known.
    """
    if hit_ratios is None or (now := hit_ratios.get(1.0, 1.0)) >= 1:
        return None
    for factor, ratio in sorted(hit_ratios.items()):
        gain = (ratio - now) / (1 - now)
        if factor > 1 and gain >= _GAIN_MIN:
            more = int((factor - 1) * capacity_bytes)
            whole = data_bytes - capacity_bytes
            return LargerCache(min(more, whole) if whole > 0 else more, min(1.0, gain))
    return None


def bottleneck_of(sums: Sums, larger: LargerCache | None, origin_wait: OriginWait | None = None) -> Bottleneck:
    """The bottleneck of one reader, or of all together. `larger`: the larger cache that would help, if there is one.
    `origin_wait` None: no read waits for an origin that fails."""
    if origin_wait is not None:
        waiting = f"{origin_wait.reads} {'read waits' if origin_wait.reads == 1 else 'reads wait'}"
        return Bottleneck("bucket", f"the bucket fails: {waiting}, for {origin_wait.for_s:.0f} s ({origin_wait.why})")
    stall = sums.stall
    if stall is None or sums.wait_s + sums.away_s < _TIME_S_MIN or sums.requests < _REQUESTS_MIN:
        return Bottleneck("unknown", "too early to say")
    waited = f"waited {100 * stall:.0f} % of the time"
    if stall < _STALL_LITTLE:
        return Bottleneck("readers", f"GPU-bound: the readers are the slow part ({waited})")
    served = sums.served_bytes
    here = sums.disk_bytes / served if served else 0.0
    if here >= _MOSTLY_DISK:
        return Bottleneck("machine", f"served from disk: as fast as this machine and its disk go ({waited})")
    if larger is not None:
        more = f"{in_words(larger.more_bytes)} more would save {100 * larger.saves:.0f} % of GETs"
        return Bottleneck("cache", f"cache too small: {more} ({waited})")
    return Bottleneck("bucket", f"bucket-bound: {100 * (1 - here):.0f} % of the bytes came from the bucket ({waited})")
