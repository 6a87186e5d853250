"""How many fills that nobody waits for may run beside those that somebody does: as many as take nothing from them.

Whether a line is full shows in the sum of what comes: when more fills do not bring more, they only share it out anew.
Of bodies too small for that it shows in their delay: what comes later than usual waits in a queue. (The idea is that of
RFC 6817, LEDBAT; by averages, since the latencies of a bucket scatter.)
"""

from __future__ import annotations

from collections.abc import Callable

# A quarter of a second has several chunks of each connection, and a reader is not held up for longer unnoticed.
_WINDOW_S = 0.25
# More than this above the best is no noise: the line has more to give.
_GAIN = 1.05
# Less than this of the best, and the line is not full.
_FULL = 0.85
# The best is half forgotten in this time: a line may come to give less.
_HALF_LIFE_S = 60.0
_FIRST = 2
# After so long without a byte a burst begins anew: an epoch's first blocks would share the line with all that was
# allowed at the end of the last one.
_IDLE_S = 1.0
# Small bodies: so many times later than usual is a queue, and less than the other is none. What is late is an
# average over the shorter number of them; usual is the least that the longer one was, and rises by so much of the way
# with each of them, as a bucket may get slower.
_LATE, _IN_TIME = 1.5, 1.3
_LATELY, _LONGER, _RISE = 16, 64, 1 / 2048


class Courtesy:
    """How many such fills may be under way: `alone`, while nobody waits for any bytes, and `beside` those who do.
    1 to `ceiling` each."""

    def __init__(self, ceiling: int) -> None:
        self._ceiling = ceiling
        self.alone = min(_FIRST, ceiling)
        self.beside = 1
        self._best_bytes_s = 0.0
        self._began: float | None = None
        self._flowed_at: float | None = None
        self._bytes = 0
        self._felt = False
        self._small = self._since_change = 0
        self._lately_s = self._longer_s = self._usual_s = 0.0

    def felt(self) -> None:
        """One had to wait because of the limit."""
        self._felt = True

    def heed(self, now: float) -> None:
        """One is about to begin."""
        if self._flowed_at is not None and now - self._flowed_at > _IDLE_S:
            self.alone, self.beside = min(_FIRST, self._ceiling), 1
            self._flowed_at = None

    def is_due(self, now: float) -> bool:
        """Bytes of a body came; whether what came lately is to be judged now."""
        self._flowed_at = now
        if self._began is None:
            self._began = now
        return now - self._began >= _WINDOW_S

    def flowed(self, count: int) -> None:
        """So many bytes of a body came, after its first ones: their time is latency."""
        self._bytes += count

    def came_small(self, after_s: float) -> None:
        """A small body was here so long after it was asked for: that is latency, and what it queued behind."""
        self._small += 1
        self._since_change += 1
        count = self._small
        self._lately_s += (after_s - self._lately_s) / min(count, _LATELY)
        self._longer_s += (after_s - self._longer_s) / min(count, _LONGER)
        rise_s = (self._longer_s - self._usual_s) * _RISE
        self._usual_s = self._longer_s if count <= _LONGER // 2 else min(self._usual_s + rise_s, self._longer_s)
        if self._lately_s > _LATE * self._usual_s:
            # What comes now was asked for before the last step down: once for all that are under way.
            if self._since_change > max(self.alone, self.beside):
                self._change(self._less)
        elif self._felt and self._lately_s < _IN_TIME * self._usual_s and self._since_change > self.beside // 2:
            # Twice a round trip, so that the queue shows before much more is in it.
            self._change(self._more)

    def _change(self, step: Callable[[int], int]) -> None:
        self._since_change, self._felt = 0, False
        self.alone, self.beside = step(self.alone), step(self.beside)

    def judge(self, now: float, *, awaited: bool, queued: bool) -> None:
        """`awaited`: some reader waits for bytes that have not come yet. `queued`: more could be under way."""
        assert self._began is not None
        passed_s = now - self._began
        rate = self._bytes / passed_s
        best = self._best_bytes_s * 0.5 ** (passed_s / _HALF_LIFE_S)
        self._best_bytes_s = max(best, rate)
        self._began, self._bytes = now, 0
        full = best * _FULL <= rate <= best * _GAIN
        if awaited:
            if full:
                self.beside = self._less(self.beside)
            elif queued:
                self.beside = self._more(self.beside)
        elif not queued:
            # What was not needed says nothing of the line: the next burst begins with less.
            self.alone = max(min(_FIRST, self._ceiling), self._less(self.alone))
        elif not full:
            self.alone = self._more(self.alone)

    def _less(self, limit: int) -> int:
        return max(1, limit - max(1, limit // 4))

    def _more(self, limit: int) -> int:
        return min(self._ceiling, limit + max(1, limit // 4))
