"""The CPU time of this thread and process, and of receivers."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from outrider.adapters.process.cpu_clock import cpu_times

_HAS_SCHEDSTAT = Path("/proc/thread-self/schedstat").exists()


def work(seconds: float) -> None:
    until_s = time.thread_time() + seconds
    while time.thread_time() < until_s:
        pass


def test_the_work_of_this_thread_is_that_of_the_loop_and_other_threads_count_for_the_process() -> None:
    before = cpu_times(list)
    work(0.02)
    other = threading.Thread(target=work, args=(0.02,))
    other.start()
    other.join()
    after = cpu_times(list)
    assert after.loop_s - before.loop_s >= 0.02
    assert after.process_s - before.process_s >= 0.04
    assert after.loop_queued_s >= before.loop_queued_s >= 0
    assert (after.receivers, after.receivers_s) == (0, 0.0)


@pytest.mark.skipif(not _HAS_SCHEDSTAT, reason="this kernel has no schedstat")
def test_receivers_count_and_one_that_has_ended_takes_no_time() -> None:
    gone = 2**22 + 1
    times = cpu_times(lambda: [os.getppid(), gone])
    assert times.receivers == 2
    assert times.receivers_s > 0
    assert times.process_s > cpu_times(list).process_s - times.receivers_s
