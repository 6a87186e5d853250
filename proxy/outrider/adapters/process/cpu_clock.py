"""Reads how much CPU time the event loop, the process and the receivers took, and how long they waited for a core."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from outrider.core.insight.load import CpuTimes

_OWN = Path("/proc/thread-self/schedstat")
_NS = 1e9


def cpu_times(receivers: Callable[[], Sequence[int]]) -> CpuTimes:
    """To be called on the event loop's thread. `receivers`: the ids of the processes that run now.

    With a kernel that has no schedstat, nothing is seen to be queued, and receivers seem to take no time.
    """
    pids = receivers()
    ran_s, queued_s = 0.0, 0.0
    for pid in pids:
        times = _scheduled(Path(f"/proc/{pid}/schedstat"))
        ran_s, queued_s = ran_s + times[0], queued_s + times[1]
    return CpuTimes(
        loop_s=time.thread_time(),
        loop_queued_s=_scheduled(_OWN)[1],
        process_s=time.process_time() + ran_s,
        receivers_s=ran_s + queued_s,
        receivers=len(pids),
    )


def _scheduled(path: Path) -> tuple[float, float]:
    """The seconds on a core, and those in the queue for one, of a thread (a process: of its first thread).

    Source: Documentation/scheduler/sched-stats.rst.
    """
    with suppress(OSError, ValueError):
        ran_ns, queued_ns, _ = path.read_text().split()
        return int(ran_ns) / _NS, int(queued_ns) / _NS
    return 0.0, 0.0
