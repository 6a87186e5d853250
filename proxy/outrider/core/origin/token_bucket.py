"""A bandwidth as a hard limit: bytes that may be asked for now."""

from __future__ import annotations


class TokenBucket:
    """`bytes_per_s` on average over a few seconds; 0: without a limit. Called from one thread."""

    def __init__(self, bytes_per_s: float, now: float) -> None:
        self.bytes_per_s = bytes_per_s
        self._bytes = 0.0
        self._at = now

    def may_spend(self, now: float) -> bool:
        if self.bytes_per_s == 0:
            return True
        # What was not spent for a second is lost: a pause must not end in a storm.
        self._bytes = min(self.bytes_per_s, self._bytes + (now - self._at) * self.bytes_per_s)
        self._at = now
        return self._bytes > 0

    def wait_s(self, now: float) -> float:
        """In how many seconds `may_spend` is true again, if nobody else spends."""
        return 0.0 if self.may_spend(now) else max(0.001, -self._bytes / self.bytes_per_s)

    def spend(self, count: float) -> None:
        """May go below zero: a block is asked for as a whole."""
        self._bytes -= count
