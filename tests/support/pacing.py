"""How fast bytes may go: a schedule of slices, so that a rate holds over any stretch and sharers get equal parts."""

from __future__ import annotations

import threading

# A slice takes this long at the rate that binds it: long beside a sleep's overshoot (0.1 ms), short for fairness.
SLICE_S = 0.005
# A frame of Ethernet: on a slow line, whoever sends little waits for no more of the others than that.
SLICE_BYTES_MIN = 1500
SLICE_BYTES_MAX = 256 * 1024
# How much lateness may be made good: covers a thread that the scheduler forgot for a moment, hides no idle minute.
CATCH_UP_S = 0.02


def reserve(free_at: float, now: float, size_bytes: int, rate_bytes_s: float, catch_up_s: float = CATCH_UP_S) -> float:
    """When the last of `size_bytes` has passed a line of this rate that is taken until `free_at`.

    The line is then taken until the time returned. A line that stood idle has at most `catch_up_s` in hand.
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
        """When these bytes have passed; the rate may differ from call to call (None: at once)."""
        if rate_bytes_s is None:
            return now
        with self._lock:
            self._free_at = reserve(self._free_at, now, size_bytes, rate_bytes_s)
            return self._free_at
