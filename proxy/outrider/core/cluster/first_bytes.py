"""The waits for the first byte of a member's replies."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque

_SAMPLES_MAX = 500
# Fewer than a hundred have no 99th percentile.
_SAMPLES_MIN = 100
_LATE_MIN_S = 0.05
"""A reply that takes less is no straggler: the bucket would take as long."""


class FirstBytes:
    """The last 500 waits, in seconds."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque()
        self._ordered: list[float] = []

    def came(self, wait_s: float) -> None:
        """A first byte came after `wait_s`, or was given up then and would have come later."""
        if len(self._recent) == _SAMPLES_MAX:
            del self._ordered[bisect_left(self._ordered, self._recent.popleft())]
        self._recent.append(wait_s)
        insort(self._ordered, wait_s)

    def quantile(self, part: float) -> float | None:
        """None: nothing came yet."""
        return self._ordered[int(part * (len(self._ordered) - 1))] if self._ordered else None

    @property
    def late_s(self) -> float | None:
        """After how many seconds without a first byte a reply is later than 99 % of them, at least 50 ms; None: too few
        came to tell."""
        if len(self._ordered) < _SAMPLES_MIN:
            return None
        return max(_LATE_MIN_S, self._ordered[int(0.99 * len(self._ordered))])
