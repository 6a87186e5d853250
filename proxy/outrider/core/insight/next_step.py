"""The next step for each bottleneck, in one sentence that names the command or the setting."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from outrider.core.insight.bottleneck import BUSY, LargerCache, Slow
from outrider.core.insight.load import Load
from outrider.core.text import in_words

# Sizes are advised in steps of a tenth of a unit, rounded up.
_STEPS = (("TB", 10**11), ("GB", 10**8), ("MB", 10**5))
_RECEIVERS_MAX = 64
# The event loop is queued for this share of the time where other processes take its cores.
_OFTEN = 0.25


@dataclass(frozen=True, slots=True)
class Setup:
    """The settings and the machine, as far as advice depends on them.

    `cores`: those that the proxy may use. `receivers`: how many processes receive at most. `is_https`: the bucket is
    reached by https, so that receivers are of use. `capacity_bytes`: of the cache. `connections_by`, `fills_by`: the
    setting, or the limit of the system, that bounds the connections to the bucket, and the fills.
    """

    cores: int = 1
    receivers: int = 0
    is_https: bool = False
    capacity_bytes: int = 0
    connections_by: str = "`origin_connections`"
    fills_by: str = "`fills`"


@dataclass(frozen=True, slots=True)
class Data:
    """The dataset that waits most. `url`: a prefix that `outrider warm` takes. `whole_bytes`: its size, 0: not known.
    `is_order_known`: the proxy knows in which order it will be read. `is_cached`: all its objects are on disk."""

    url: str
    whole_bytes: int = 0
    is_order_known: bool = False
    is_cached: bool = False


def next_step(
    slow: Slow, setup: Setup, load: Load, *, is_cold: bool = False, larger: LargerCache | None = None,
    data: Data | None = None,
) -> str:  # fmt: skip
    """Empty: nothing is to be said yet. `is_cold`: most bytes do not come from the disk here. `data` None: not
    known."""
    if slow == "cpu":
        return _for_cpu(setup, load, is_cold=is_cold)
    if slow == "bucket":
        return _for_bucket(setup, data)
    if slow == "cache":
        if larger is None:
            return ""
        return (
            f"Give the cache {in_words(larger.more_bytes)} more: "
            f"`--cache-size {_size(setup.capacity_bytes + larger.more_bytes)}`."
        )
    return {
        "unknown": "",
        "readers": "Nothing to do: the data is there when the job asks for it.",
        "failing": "Run `outrider doctor` on this machine: it tests the way to the bucket, the keys and the clock.",
        "disk": "Put `--cache-dir` on a faster disk; `outrider doctor` measures this one.",
        "latency": "Let the job read more objects at once (`num_workers` of its loader), or pack them into shards.",
        "freshness": "Set `--freshness immutable`, if no object changes under its name, or a longer `ttl:SECONDS`.",
        "connections": f"Raise {setup.connections_by}.",
        "fills": f"Raise {setup.fills_by}.",
        "peers": "Run `outrider cluster`: it shows how fast each member answers.",
        "uncached": "See `outrider stats` for reads uncached and the last error, `outrider doctor` for room on disk.",
    }[slow]


def _for_cpu(setup: Setup, load: Load, *, is_cold: bool) -> str:
    receives = is_cold and setup.is_https
    wanted = min(setup.cores, _RECEIVERS_MAX)
    if receives and load.cores < BUSY and load.queued < _OFTEN and setup.receivers < wanted:
        return f"Set `receivers` to {wanted}: so many processes then receive the cold bytes that come over https."
    if load.cores >= BUSY or load.queued >= _OFTEN or receives:
        more = "Give the proxy more cores (the CPU limit of its container, or `taskset`)"
        return f"{more}, and set `receivers` to their number." if receives else f"{more}."
    return "Start one proxy more, for a part of the jobs: one event loop answers all hits, on one core."


def _for_bucket(setup: Setup, data: Data | None) -> str:
    if data is None:
        return "Warm the data before the job reads it: `outrider warm s3://BUCKET/PREFIX/`."
    if data.is_cached:
        return "Nothing to do: the dataset is in the cache as a whole by now."
    if data.whole_bytes <= setup.capacity_bytes:
        return f"Warm the data before the job reads it: `outrider warm {data.url}`."
    if not data.is_order_known:
        return "Announce the order of reads, so that the proxy fetches ahead: one line of `outrider_sdk` in the job."
    return f"Fetching ahead is at its limit: `outrider doctor {data.url}` shows how fast the bucket and its line are."


def _size(count_bytes: int) -> str:
    """As `--cache-size` takes it."""
    unit, step = next((each for each in _STEPS if count_bytes >= 10 * each[1]), _STEPS[-1])
    return f"{ceil(count_bytes / step) / 10:g}{unit}"
