"""The delay of bodies that are too small to have a rate: by it a full line shows."""

from __future__ import annotations

import math

# The recent delay is an average over so many bodies, or over those of a round trip if they are more. The usual delay is
# the least value that an average over four times as many bodies had.
LATELY, _LONGER = 16, 4
# With only one background fill, a late body waited for other traffic, or the bucket became slower. The usual delay then
# moves this part of the way to the longer average. With more fills the delay may come from their own queue, and the
# usual delay would grow with that queue.
_RISE = 1 / 64
# A delay is accepted up to so many times the least one. Beyond that, bodies may wait for those of other nodes as well
# as for a slower bucket: each node on a full line finds that to step down by itself is in vain.
_ACCEPTED = 2.0


class BodyDelay:
    """The delay of small bodies, in seconds: recent, over a longer time, and usual; and how many come."""

    def __init__(self) -> None:
        self._count = 0
        self._window = LATELY
        self.lately_s = self._longer_s = self._usual_s = self._least_s = self._scatter_s = 0.0
        self._gap_s = self._last_at = 0.0

    @property
    def rate(self) -> float:
        """The bodies a second of late."""
        return 1 / self._gap_s if self._gap_s else math.inf

    def accept(self) -> bool:
        """The delay of late is the usual one from now on. Returns whether it is not too long for that."""
        if self.lately_s > _ACCEPTED * self._least_s:
            return False
        self._usual_s = self.lately_s
        return True

    def observe(self, after_s: float, now: float, window: int, *, not_ours: bool) -> None:
        """A body took `after_s`. `window`: how many bodies count as recent. `not_ours`: a delay cannot come from
        background fills."""
        self._count += 1
        # Readers that want nothing for a while make a gap, too, but no longer one than a body takes.
        gap_s = min(now - self._last_at, after_s)
        self._gap_s += (gap_s - self._gap_s) / min(self._count, window)
        self._last_at = now
        self._window = window
        long = min(self._count, _LONGER * window)
        if self._count > 1:
            self._scatter_s += (abs(after_s - self._longer_s) - self._scatter_s) / long
        self.lately_s += (after_s - self.lately_s) / min(self._count, window)
        self._longer_s += (after_s - self._longer_s) / long
        if not self.is_known:
            self._usual_s = self._least_s = self._longer_s
            return
        rise_s = (self._longer_s - self._usual_s) * _RISE if not_ours else 0.0
        self._usual_s = min(self._usual_s + rise_s, self._longer_s)
        self._least_s = min(self._least_s + max(0.0, rise_s), self._usual_s)

    @property
    def is_known(self) -> bool:
        """Enough bodies came for an average to be the usual delay."""
        return self._count > LATELY

    def is_beyond(self, times: float, errors: float) -> bool:
        """Whether the recent delay is beyond `times` the usual one plus `errors` standard errors."""
        # For a normal distribution the mean distance from the average is 0.8 of a standard deviation.
        error_s = 1.25 * self._scatter_s / math.sqrt(self._window)
        return self.lately_s > times * self._usual_s + errors * error_s
