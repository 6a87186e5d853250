"""The rest of prefetch after a failure."""

from __future__ import annotations

# After a failure for a passing reason the pause is so long at first, and doubles with each one.
_PAUSE_S, _PAUSE_MAX_S = 0.1, 5.0


class PrefetchPause:
    """Without room, or without an origin, an immediate retry would be repeated for ever. Times are by one clock of the
    caller's choice, in seconds."""

    def __init__(self) -> None:
        self._pause_s = 0.0
        self.until = 0.0
        """Nothing is prefetched before."""

    def succeeded(self) -> None:
        """The next pause is a short one again."""
        self._pause_s = 0.0

    def failed(self, now: float) -> None:
        """A failure during the pause was under way with the one before, and has the same reason."""
        if now >= self.until:
            self._pause_s = min(_PAUSE_MAX_S, max(_PAUSE_S, 2 * self._pause_s))
            self.until = now + self._pause_s
