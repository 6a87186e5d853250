"""When a reply is late enough to ask a second time, and how often that may be done."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque

# Of the last so many replies; fewer than a hundred know no 99th percentile.
_SAMPLES_MAX = 1000
_SAMPLES_MIN = 100
_QUANTILE = 0.99
# So much more is sent than without it. Source of the idea and the size: Dean and Barroso, "The tail at scale" (2013).
_SHARE = 0.02
# What may be saved up: an origin that hangs is not asked everything twice.
_SAVED_MAX = 4.0
# What comes sooner than this is no straggler: a second request would cost as much.
_AFTER_MIN_S = 0.02


class Hedging:
    """The waits for recent reply heads, in seconds, and a budget that each request adds its share to."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque()
        self._ordered: list[float] = []
        self._saved = 0.0

    def after_s(self) -> float | None:
        """A request is about to be sent: how long its reply may take before a second one is; None: for ever."""
        self._saved = min(_SAVED_MAX, self._saved + _SHARE)
        if len(self._recent) < _SAMPLES_MIN or self._saved < 1.0:
            return None
        return max(_AFTER_MIN_S, self._ordered[int(_QUANTILE * len(self._ordered))])

    def spend(self) -> bool:
        """Whether the second request may be sent, now that it is time; if so, it is paid."""
        if self._saved < 1.0:
            return False
        self._saved -= 1.0
        return True

    def replied(self, wait_s: float) -> None:
        """A reply's head came after `wait_s`; or it was given up then, and would have taken longer."""
        if len(self._recent) == _SAMPLES_MAX:
            del self._ordered[bisect_left(self._ordered, self._recent.popleft())]
        self._recent.append(wait_s)
        insort(self._ordered, wait_s)
