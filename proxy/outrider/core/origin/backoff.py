"""Retries: which statuses to repeat, and the backoff before each try."""

from __future__ import annotations

from dataclasses import dataclass

RETRYABLE_STATUSES = frozenset((429, 500, 502, 503, 504))
"""Statuses that S3 asks its clients to retry (S3 user guide, "Best practices for errors")."""
SLOW_DOWN_STATUSES = frozenset((429, 503))
"""Statuses that throttle: S3 answers 503 SlowDown, other stores 429."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Full jitter: the wait before try `n` is uniform in [0, min(cap, base * 2**n)].

    Source: AWS Architecture Blog, "Exponential Backoff And Jitter" (2015).
    """

    tries: int = 5
    base_s: float = 0.05
    cap_s: float = 2.0

    def wait_s(self, failures: int, chance: float) -> float | None:
        """The wait after the `failures`-th failure (from 1); None: give up. `chance` is uniform in [0, 1)."""
        if failures >= self.tries:
            return None
        return float(min(self.cap_s, self.base_s * 2**failures) * chance)
