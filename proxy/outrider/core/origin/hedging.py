"""Hedged requests: after how long a late reply gets a second request, and the budget for these."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque

# The last 1,000 replies count. Fewer than a hundred have no 99th percentile.
_SAMPLES_MAX = 1000
_SAMPLES_MIN = 100
_QUANTILE = 0.99
# Hedging adds at most this share of requests. Source of the idea and the size: Dean and Barroso, "The tail at scale"
# (2013).
_SHARE = 0.02
# The most hedged requests saved up, so that an origin that hangs does not get every request twice.
_SAVED_MAX = 4.0
# A second request for a large body costs what the loser's connection buffers by the time it is closed: up to so many
# bytes (Linux, `net.ipv4.tcp_wmem`). Hedging adds at most this share of bytes. Smaller bodies keep to the share of
# requests alone.
_BUFFERED_BYTES_MAX = 4 * 1024 * 1024
_BYTES_SHARE = 0.01
_LARGE_BYTES = 256 * 1024
# For so long after the origin throttled, no request is sent twice.
_REST_S = 10.0
# A reply that takes less than this is no straggler: a second request would take as long.
_AFTER_MIN_S = 0.02


class Hedging:
    """The waits for recent reply heads, in seconds, a budget to which each request adds `_SHARE`, and one of bytes."""

    ALONE_S = 1.0
    """A request is a straggler once a reply to another has come since it was sent. Without such a reply, the origin or
    the line is slow: the request is not hedged before it is late by so many seconds more."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque()
        self._ordered: list[float] = []
        self._saved = 0.0
        self._saved_bytes = 0.0
        self.replies = 0
        """How many reply heads came."""
        self._rests_until = float("-inf")

    def after_s(self) -> float | None:
        """A request is about to be sent. Returns after how many seconds without a reply head to send a second one;
        None: never."""
        self._saved = min(_SAVED_MAX, self._saved + _SHARE)
        if len(self._recent) < _SAMPLES_MIN or self._saved < 1.0:
            return None
        return max(_AFTER_MIN_S, self._ordered[int(_QUANTILE * len(self._ordered))])

    def slow_down(self, now: float) -> None:
        """The origin throttled a request. It is late because of its load, which a second request would add to."""
        self._rests_until = now + _REST_S

    def rests(self, now: float) -> bool:
        """Whether no request is to be sent twice now: the origin throttled a while ago."""
        return now < self._rests_until

    def spend(self, body_bytes: int = 0) -> bool:
        """Whether the budgets allow a second request for `body_bytes` now; if so, they are charged."""
        cost_bytes = min(body_bytes, _BUFFERED_BYTES_MAX) if body_bytes > _LARGE_BYTES else 0
        if self._saved < 1.0 or self._saved_bytes < cost_bytes:
            return False
        self._saved -= 1.0
        self._saved_bytes -= cost_bytes
        return True

    def replied(self, wait_s: float, body_bytes: int = 0) -> None:
        """A reply head came after `wait_s`, or was given up then and would have taken longer. `body_bytes` follow."""
        self.replies += 1
        self._saved_bytes = min(_BUFFERED_BYTES_MAX, self._saved_bytes + _BYTES_SHARE * body_bytes)
        if len(self._recent) == _SAMPLES_MAX:
            del self._ordered[bisect_left(self._ordered, self._recent.popleft())]
        self._recent.append(wait_s)
        insort(self._ordered, wait_s)
