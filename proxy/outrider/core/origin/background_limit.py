"""How many fills that nobody waits for may run beside those that somebody does: as many as take nothing from them.

Whether a line is full shows in the sum of what comes: when more fills do not bring more, they only share it out anew.
Of bodies too small for that it shows in their delay: what comes later than usual waits in a queue. (The idea is that of
RFC 6817, LEDBAT; by averages, since the latencies of a bucket scatter.)
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

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
# What somebody waits for is about to end, and its line to stand idle for a round trip, when so much time brings it all:
# what begins then has its first bytes as it ends. (Four readers of a cold epoch end their shards almost together: each
# time that cost them 50 ms, 1.5 % of two shards. With twice this the readers of small shards waited: `make
# bench-ahead`, WebDataset's first epoch, 1.25 s where it was 0.85.)
_ENDS_S = 0.05
# How many it had at once is believed a little less with each look.
_PEAK_KEPT = 0.9
# Small bodies: so many times what is usual, and so many standard errors more, since the latencies of some buckets
# scatter. Later than the first is a queue, the last its first sign.
_LATE, _IN_TIME, _FIRST_SIGN = (1.25, 2.5), (1.1, 1.5), (1.05, 1.0)
# What comes lately is an average over so many bodies, or over a round trip's where that has more, and what is usual
# the least that one over four times as many was.
_LATELY, _LONGER = 16, 4
# Until that is known, so many at most, and each body that came brings one more: with two, the first batch of a told
# order came half a second later; with ten, a reader of a full line would have less of it at first.
_UNTIL_KNOWN = 8
# Beside one fill of ours a body that is late has waited for others, or the bucket got slower: by so much of the way
# that is usual from then on. At more it would be our own queue that is taken for usual, deeper and deeper.
_RISE = 1 / 64


class BackgroundLimit:
    """How many such fills may be under way: `alone`, while nobody waits for any bytes, and `beside` those who do.
    1 to `ceiling` each."""

    def __init__(self, ceiling: int) -> None:
        self._ceiling = ceiling
        self.alone = min(_FIRST, ceiling)
        self.beside = 1
        self._best_bytes_s = 0.0
        # As many as somebody waited for at once of late.
        self._peak = 0.0
        self._began: float | None = None
        self._flowed_at: float | None = None
        self._bytes = 0
        self._felt = False
        self._since_change = 0
        self._delay = _Delay()
        # No queue was seen yet: what the line takes is found in a few round trips, not in dozens.
        self._rushing = True
        # Small bodies that were asked for while something else shared the line.
        self._foreign = 0

    def felt(self) -> None:
        """One had to wait because of the limit."""
        self._felt = True

    def heed(self, now: float) -> None:
        """One is about to begin."""
        if self._flowed_at is not None and now - self._flowed_at > _IDLE_S:
            self.alone, self.beside = min(_FIRST, self._ceiling), 1
            self._flowed_at, self._peak = None, 0.0

    def asked(self, demand: int) -> None:
        """So many that somebody waits for are under way."""
        self._peak = max(self._peak, demand)

    def ends(self, left_bytes: int) -> bool:
        """Whether demand with so many bytes to come is about to leave its line."""
        # Where no body had a rate of late, that of another time says nothing of what small ones take.
        return self._flowed_at is not None and left_bytes < self._best_bytes_s * _ENDS_S

    @property
    def after(self) -> int:
        """As `beside`, where demand ends: they take its places."""
        return min(self._ceiling, max(self.beside, int(self._peak)))

    def alone_again(self, under_way: int) -> None:
        """Something large that shared the line, and of which nothing is told here, has ended: what is usual was learnt
        beside it, and so many bodies were asked for beside it."""
        self._foreign = under_way
        self.alone, self.beside = min(_FIRST, self._ceiling), 1

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
        if self._foreign:
            self._foreign -= 1
            return
        self._since_change += 1
        window = max(_LATELY, self.beside)
        self._delay.came(after_s, window, not_ours=self.beside == 1)
        if self._delay.is_beyond(*_LATE):
            # What comes now was asked for before the last step down: once for all that are under way.
            if self._since_change > max(self.alone, self.beside):
                self._rushing = False
                self._change(self._less)
        elif self._felt and self._may_grow and not self._delay.is_beyond(*_IN_TIME):
            self._rushing &= not self._delay.is_beyond(*_FIRST_SIGN)
            if self._since_change > self._between_steps(window):
                self._change(self._more)

    @property
    def _may_grow(self) -> bool:
        return self._delay.is_known or self.alone < _UNTIL_KNOWN

    def _between_steps(self, window: int) -> int:
        """Bodies. Twice a round trip, or once all that is looked at was asked for after the last step: a step that is
        taken before the last one shows is one too many. Before anything would show there are few."""
        if not self._delay.is_known:
            return 0
        return self.beside // 2 if self._rushing else window + self.beside

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
        self._peak *= _PEAK_KEPT
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


class _Delay:
    """How late small bodies come, all in seconds."""

    def __init__(self) -> None:
        self._count = 0
        self._window = _LATELY
        self._lately_s = self._longer_s = self._usual_s = self._scatter_s = 0.0

    def came(self, after_s: float, window: int, *, not_ours: bool) -> None:
        """One took `after_s`. `window`: how many of them are lately. `not_ours`: what is late is late without us."""
        self._count += 1
        self._window = window
        long = min(self._count, _LONGER * window)
        if self._count > 1:
            self._scatter_s += (abs(after_s - self._longer_s) - self._scatter_s) / long
        self._lately_s += (after_s - self._lately_s) / min(self._count, window)
        self._longer_s += (after_s - self._longer_s) / long
        if not self.is_known:
            self._usual_s = self._longer_s
            return
        rise_s = (self._longer_s - self._usual_s) * _RISE if not_ours else 0.0
        self._usual_s = min(self._usual_s + rise_s, self._longer_s)

    @property
    def is_known(self) -> bool:
        """So many came that an average of them says what is usual."""
        return self._count > _LATELY

    def is_beyond(self, times: float, errors: float) -> bool:
        """What came lately took longer than that."""
        # The mean distance from the average is 0.8 of a standard deviation, where that is normal.
        error_s = 1.25 * self._scatter_s / sqrt(self._window)
        return self._lately_s > times * self._usual_s + errors * error_s
