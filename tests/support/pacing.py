"""Bandwidth limits of the simulator: a schedule of slices keeps a rate over any period and shares it equally."""

from __future__ import annotations

import threading

# The duration of a slice at the lowest rate that applies: long compared with a sleep's overshoot (0.1 ms), short for
# fairness.
SLICE_S = 0.005
# One Ethernet frame: on a slow line, a sender of few bytes waits for no more than this of the others'.
SLICE_BYTES_MIN = 1500
SLICE_BYTES_MAX = 256 * 1024
# The lateness that a sender may make up for: it covers a thread that the scheduler delayed, and hides no idle minute.
CATCH_UP_S = 0.02


def reserve(free_at: float, now: float, size_bytes: int, rate_bytes_s: float, catch_up_s: float = CATCH_UP_S) -> float:
    """The time at which the last of `size_bytes` has passed a line of this rate that is busy until `free_at`.

    The line is then busy until the returned time. A line that was idle has at most `catch_up_s` of credit.
    """
    return max(free_at, now - catch_up_s) + size_bytes / rate_bytes_s


def slice_bytes(*rates_bytes_s: float | None) -> int:
    """How many bytes to move at once under these rates; None is no limit."""
    bound = [rate for rate in rates_bytes_s if rate is not None]
    if not bound:
        return SLICE_BYTES_MAX
    return max(SLICE_BYTES_MIN, min(SLICE_BYTES_MAX, int(min(bound) * SLICE_S)))


class Line:
    """One line of a given rate. Many threads may share it: they are served first come, first served, slice by slice."""

    def __init__(self, now: float) -> None:
        self._free_at = now
        self._lock = threading.Lock()

    def take(self, size_bytes: int, rate_bytes_s: float | None, now: float) -> float:
        """The time at which these bytes have passed. The rate may differ from call to call; None: they pass at once."""
        if rate_bytes_s is None:
            return now
        with self._lock:
            self._free_at = reserve(self._free_at, now, size_bytes, rate_bytes_s)
            return self._free_at
