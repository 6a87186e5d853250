"""Turns samples of the proxy's own parts into shares: how busy its CPU was of late, and for whom its reads waited."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from outrider.core.insight.usage import HALF_LIFE_S


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Growing totals, in seconds. A thread or process that is ready to run and has no core is *queued*.

    `loop_s`, `loop_queued_s`: of the thread of the event loop. `process_s`: CPU time of all threads of the proxy and
    of its receivers. `receivers_s`: ran or queued, summed over the `receivers` that run now.
    """

    loop_s: float = 0.0
    loop_queued_s: float = 0.0
    process_s: float = 0.0
    receivers_s: float = 0.0
    receivers: int = 0


@dataclass(frozen=True, slots=True)
class LoadSample:
    """The state at one moment. Times are growing totals in seconds, each summed over all reads. `is_idle`: nobody has
    read since the sample before.

    `hit_wait_s`: how long the readers of hits waited. `disk_wait_s`: how long reads of blocks on disk took.
    `lookup_wait_s`: how long clients waited for the bucket to confirm a version. The flags are of this moment:
    `is_disk_behind`: fills wait for the disk; `is_short_of_connections`, `is_short_of_fills`: a read of the bucket
    waits for a free connection, or for one of the fills that the settings allow.
    """

    cpu: CpuTimes = CpuTimes()
    hit_wait_s: float = 0.0
    disk_wait_s: float = 0.0
    lookup_wait_s: float = 0.0
    is_disk_behind: bool = False
    is_short_of_connections: bool = False
    is_short_of_fills: bool = False
    is_idle: bool = False


@dataclass(frozen=True, slots=True)
class Load:
    """Shares of the time, from 0 to about 1.

    `loop`: the event loop ran, or was queued; `queued` is the second part of it. `cores`: CPU time out of that of all
    usable cores. `receivers`: the receivers ran, or were queued. `disk`, `lookup`: parts of the wait for hits.
    `disk_behind`, `connections`, `fills`: parts of the samples whose flag was set.
    """

    loop: float = 0.0
    queued: float = 0.0
    cores: float = 0.0
    receivers: float = 0.0
    disk: float = 0.0
    lookup: float = 0.0
    disk_behind: float = 0.0
    connections: float = 0.0
    fills: float = 0.0


class LoadMeter:
    """Older samples count less, as older requests in `usage.ReaderAccount.recent`; with `half_life_s` None all count
    alike. Idle times do not count: else a job that begins would take a minute to show that it takes all of the CPU."""

    def __init__(self, cores: int, *, half_life_s: float | None = HALF_LIFE_S) -> None:
        self._cores = cores
        self._half_life_s = half_life_s
        self._last: tuple[float, LoadSample] | None = None
        self._sums: defaultdict[str, float] = defaultdict(float)

    def note(self, now: float, sample: LoadSample) -> None:
        """To be called about once a second."""
        last, self._last = self._last, (now, sample)
        if last is None or now <= last[0]:
            return
        seconds, before, cpu = now - last[0], last[1], sample.cpu
        # A receiver that ended has taken its total along.
        received_s = max(0.0, cpu.receivers_s - before.cpu.receivers_s)
        queued_s = max(0.0, cpu.loop_queued_s - before.cpu.loop_queued_s)
        more = {
            "loop": cpu.loop_s - before.cpu.loop_s + queued_s, "queued": queued_s,
            "process": max(0.0, cpu.process_s - before.cpu.process_s), "receivers": received_s,
            "receivers_in_all": cpu.receivers * seconds, "hits": sample.hit_wait_s - before.hit_wait_s,
            "disk": sample.disk_wait_s - before.disk_wait_s, "lookup": sample.lookup_wait_s - before.lookup_wait_s,
            "behind": sample.is_disk_behind * seconds, "connections": sample.is_short_of_connections * seconds,
            "fills": sample.is_short_of_fills * seconds, "all": seconds,
        }  # fmt: skip
        part = 1.0 if self._half_life_s is None else 0.5 ** (seconds / self._half_life_s)
        for name, each in more.items():
            self._sums[name] = part * self._sums[name] + (0.0 if sample.is_idle else each)

    @property
    def load(self) -> Load:
        s = self._sums

        def share(name: str, whole: str = "all", times: int = 1) -> float:
            return s[name] / (times * s[whole]) if s[whole] > 0 else 0.0

        return Load(
            share("loop"), share("queued"), share("process", times=self._cores),
            share("receivers", "receivers_in_all"), share("disk", "hits"), share("lookup", "hits"),
            share("behind"), share("connections"), share("fills"),
        )  # fmt: skip
