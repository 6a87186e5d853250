"""Diagnoses the bottleneck, in words: why readers wait. `next_step` says what to do about it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from outrider.core.insight.load import Load
from outrider.core.insight.usage import Sums
from outrider.core.text import counted, in_words

Slow = Literal[
    "unknown", "readers", "failing", "cpu", "disk", "latency", "freshness", "connections", "fills", "peers", "uncached",
    "cache", "bucket",
]  # fmt: skip
Level = Literal["none", "good", "slower", "bad"]

# Less time than this, over all connections, shows nothing yet.
_TIME_S_MIN = 1.0
# Two reads, of which the first is ten seconds old (see `usage.HALF_LIFE_S`): the first one of a connection always
# looks as if its reader did nothing but wait.
_REQUESTS_MIN = 1.5
# One read that takes this long is judged by itself.
_LONG_S = 5.0
# A reader that waits for less than this part of its time is not held up.
_STALL_LITTLE = 0.1
# A part that works, or waits for a core, for this share of the time cannot do more.
BUSY = 0.9
# A cause of at least this share of a wait is the cause of it.
_MOST = 0.5
# A larger cache that would save less than this part of the GETs is not mentioned.
_GAIN_MIN = 0.1
# As in "[Errno 111] Connection refused": the number says nothing to people.
_ERRNO = re.compile(r"\[Errno -?\d+\] ?")


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """`slow`: the part that holds the readers up.

    unknown      too little was read of late
    readers      nothing does: the job itself is the slow part
    failing      the bucket does not answer, or throttles
    cpu          the CPU of the proxy
    disk         the disk of the cache
    latency      hits, each by itself, with none of the above at its limit
    freshness    hits that ask the bucket first whether the object has changed
    connections  the limit on connections to the bucket
    fills        the limit on fills
    peers        other members of the cluster
    uncached     the bucket, by reads that are not kept
    cache        the size of the cache
    bucket       the bucket, or the line to it
    """

    slow: Slow
    text: str

    @property
    def level(self) -> Level:
        """`bad`: reads fail, or will. `slower`: readers wait, and the next step would make them wait less."""
        levels: dict[Slow, Level] = {"unknown": "none", "readers": "good", "failing": "bad"}
        return levels.get(self.slow, "slower")


@dataclass(frozen=True, slots=True)
class LargerCache:
    """With `more_bytes` more, the cache would save the part `saves` of the GETs that go to the bucket now."""

    more_bytes: int
    saves: float


@dataclass(frozen=True, slots=True)
class OriginWait:
    """`reads` reads wait for an origin that is busy or unreachable, the first of them for `for_s` seconds. `why`: its
    last failure."""

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


def bottleneck_of(
    sums: Sums, larger: LargerCache | None = None, origin_wait: OriginWait | None = None, load: Load | None = None
) -> Bottleneck:
    """The bottleneck of one reader, or of all together. `larger`: the larger cache that would help, if there is one.
    `origin_wait` None: no read waits for an origin that fails. `load` None: nothing was measured."""
    if origin_wait is not None:
        verb = "waits" if origin_wait.reads == 1 else "wait"
        why = _ERRNO.sub("", origin_wait.why)
        return Bottleneck(
            "failing",
            f"the bucket fails: {counted(origin_wait.reads, 'read')} {verb}, for {origin_wait.for_s:.0f} s ({why})",
        )
    time_s = sums.wait_s + sums.away_s
    if time_s < _TIME_S_MIN or (sums.requests < _REQUESTS_MIN and time_s < _LONG_S):
        return Bottleneck("unknown", "too early to say: too few reads of late")
    stall = sums.wait_s / time_s
    waited = f"waited {100 * stall:.0f} % of the time"
    load = load or Load()
    if load.loop >= BUSY:
        # Requests wait in their sockets until the loop comes to them, and nobody measures that: to it their readers
        # seem to be away. A bucket or a disk that is waited for takes no CPU.
        busy = f"{min(100, 100 * load.loop):.0f} % of the time"
        return Bottleneck("cpu", f"CPU-bound: the proxy's event loop is busy {busy}, and requests queue for it")
    if stall < _STALL_LITTLE:
        return Bottleneck("readers", f"GPU-bound: the job itself is the slow part ({waited})")
    slow, text = _of_cpu(load) or (_of_hits if _waits_for_hits(sums) else _of_misses)(sums, larger, load)
    return Bottleneck(slow, f"{text} ({waited})")


def is_mostly_cold(sums: Sums) -> bool:
    """Whether most bytes did not come from the disk here."""
    return sums.served_bytes > 0 and sums.disk_bytes < _MOST * sums.served_bytes


def alerts(
    failed_reads: int, unreachable: int, members: int, disks: Sequence[tuple[str, str]] = ()
) -> list[str]:  # fmt: skip
    """Faults that people should see beside any bottleneck, each with the next step.

    `failed_reads`: in the last minute. `members`: of the cluster, this node among them. `disks`: the directory of each,
    and why it fails; empty: it works.
    """
    found = []
    if failed_reads:
        found.append(f"{counted(failed_reads, 'read')} failed in the last minute: see the last errors")
    if unreachable:
        those = f"{unreachable} of {counted(members, 'member')} {'is' if unreachable == 1 else 'are'} away"
        found.append(f"{those}: see `outrider cluster`")
    if failing := [f"{directory} ({error})" for directory, error in disks if error]:
        verb = "fails" if len(failing) == 1 else "fail"
        those = f"{len(failing)} of {counted(len(disks), 'cache disk')} {verb}"
        found.append(f"{those}, see `outrider doctor`: {', '.join(failing)}")
    return found


def _waits_for_hits(sums: Sums) -> bool:
    """By the time, and not by the bytes: one miss in twenty may take longer than all hits together."""
    return sums.miss_wait_s < _MOST * sums.wait_s


def _of_cpu(load: Load) -> tuple[Slow, str] | None:
    if load.cores >= BUSY:
        return "cpu", f"CPU-bound: the proxy takes {min(100, 100 * load.cores):.0f} % of the cores that it may use"
    if load.receivers >= BUSY:
        return "cpu", f"CPU-bound: the receivers are busy {min(100, 100 * load.receivers):.0f} % of the time"
    return None


def _of_hits(sums: Sums, _: LargerCache | None, load: Load) -> tuple[Slow, str]:
    if load.disk >= _MOST:
        return "disk", f"disk-bound: hits wait for the disk of the cache, {_each(sums)}"
    if load.lookup >= _MOST:
        return "freshness", f"hits wait for the bucket, which is asked first whether they have changed, {_each(sums)}"
    return "latency", f"served from disk, {_each(sums)}: neither the CPU nor the disk is at its limit"


def _of_misses(sums: Sums, larger: LargerCache | None, load: Load) -> tuple[Slow, str]:
    served = sums.served_bytes
    cold = served - sums.disk_bytes
    part = f"{100 * cold / served:.0f} % of the bytes" if served else ""
    if load.disk_behind >= _MOST:
        return "disk", "disk-bound: the disk of the cache takes bytes slower than the bucket gives them"
    if cold and sums.peer_bytes >= _MOST * cold:
        return "peers", f"cluster-bound: {part} came from other members"
    if load.connections >= _MOST:
        return "connections", "connection-bound: reads of the bucket wait for a free connection"
    if load.fills >= _MOST:
        return "fills", "connection-bound: reads of the bucket wait for one of the fills that may run at once"
    if cold and sums.origin_bytes >= _MOST * cold:
        return "uncached", f"bucket-bound: {part} came from the bucket, most of them past the cache"
    if larger is not None:
        return (
            "cache",
            f"cache too small: {in_words(larger.more_bytes)} more would save {100 * larger.saves:.0f} % of GETs",
        )
    # Reads under way have no bytes yet, and a HEAD has none.
    return "bucket", f"bucket-bound: {part} came from the bucket" if cold else "bucket-bound: reads wait for the bucket"


def _each(sums: Sums) -> str:
    milliseconds = 1000 * (sums.wait_s - sums.miss_wait_s) / max(sums.hits, 1e-9)
    return f"{milliseconds:.1f} ms each" if milliseconds < 10 else f"{milliseconds:.0f} ms each"
