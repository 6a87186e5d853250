"""A token bucket for bytes: a hard limit of bandwidth."""

from __future__ import annotations


class TokenBucket:
    """Allows `bytes_per_s` on average over a few seconds; 0: no limit. Called from one thread."""

    def __init__(self, bytes_per_s: float, now: float) -> None:
        self.bytes_per_s = bytes_per_s
        self._bytes = 0.0
        self._at = now

    def may_spend(self, now: float) -> bool:
        if self.bytes_per_s == 0:
            return True
        # The bucket holds the bytes of one second at most: a burst must not follow a pause.
        self._bytes = min(self.bytes_per_s, self._bytes + (now - self._at) * self.bytes_per_s)
        self._at = now
        return self._bytes > 0

    def wait_s(self, now: float) -> float:
        """The seconds until `may_spend` is true, if no one spends until then."""
        return 0.0 if self.may_spend(now) else max(0.001, -self._bytes / self.bytes_per_s)

    def spend(self, count: float) -> None:
        """Take `count` bytes. The bucket may go below zero, since a block is requested as a whole."""
        self._bytes -= count
