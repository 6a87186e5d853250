"""The AIMD limit of concurrent fills: it grows while more fills bring more bytes, and halves when the origin
throttles."""

from __future__ import annotations

# S3 gives 40-90 MB/s a connection, so 16 connections fill a line of 10 Gbit/s from the start.
FIRST_FILLS = 16
# Long enough for several blocks a connection, short enough to reach the ceiling of 64 within a few windows.
_WINDOW_S = 1.0
# The time from a change of the limit to the first bytes of the fills that it admitted.
_SETTLE_S = 0.25
# A step is a gain if it brought at least this part of what it would bring on an empty line; less is noise.
_GAIN = 1 / 4
# After so many windows without a gain another step is tried: the line, or the bucket, may have become faster.
_PATIENCE = 10
# A step is 1/8 of the limit, so that its gain is more than noise, and at least two.
_STEPS, _STEP_MIN = 8, 2


class AimdLimit:
    """Additive increase, multiplicative decrease, after a start that doubles. `floor` <= `limit` <= `ceiling`.

    A step up without a gain is taken back: more fills than fill the line only divide it, and each of them takes longer.
    Only the time counts in which the limit holds a fill up, since at other times the rate is not the line's. Source:
    Chiu and Jain, "Analysis of the increase and decrease algorithms" (1989); the doubling start is TCP's slow start.
    """

    def __init__(self, ceiling: int, floor: int = 1) -> None:
        if not 1 <= floor <= ceiling:
            raise ValueError(f"no limit between {floor} and {ceiling}")
        self._floor = floor
        self.ceiling = ceiling
        self.limit = max(floor, min(ceiling, FIRST_FILLS))
        self._starting = True
        # Since when the limit holds a fill up. Then the window: seconds until it begins, its seconds so far, and the
        # bytes received in them.
        self._short_since: float | None = None
        self._settling_s = self._window_s = 0.0
        self._received_bytes = 0
        self._best_rate = 0.0
        self._without_gain = 0
        # The limit before the last step, while it is not known whether that step was a gain.
        self._before: int | None = None
        self._halved_at: float | None = None

    def received(self, count: int, now: float, *, short: bool) -> None:
        """`count` bytes came from the origin. `short`: the limit holds a fill up."""
        if self._short_since is not None:
            passed_s = now - self._short_since
            if self._settling_s > 0:
                self._settling_s -= passed_s
            else:
                self._window_s += passed_s
                self._received_bytes += count
        self._short_since = now if short else None
        if self._window_s >= _WINDOW_S:
            before = self.limit
            self._judge(self._received_bytes / self._window_s)
            self._window_s, self._received_bytes = 0.0, 0
            self._settling_s = 0.0 if self.limit == before else _SETTLE_S

    def slow_down(self, now: float) -> None:
        """The origin throttled a request. The refusals of one burst halve the limit once."""
        if self._halved_at is not None and now - self._halved_at < _WINDOW_S:
            return
        self._halved_at = now
        self.limit = max(self._floor, self.limit // 2)
        self._starting, self._before = False, None
        self._best_rate, self._without_gain = 0.0, 0
        # The window so far was counted under the old limit.
        self._short_since, self._settling_s, self._window_s, self._received_bytes = None, _SETTLE_S, 0.0, 0

    def _judge(self, rate: float) -> None:
        if self._before is not None:
            if rate > self._best_rate * (1 + _GAIN * (self.limit / self._before - 1)):
                self._step_up(rate)
            else:
                self.limit, self._before, self._starting = self._before, None, False
        elif self._best_rate == 0:
            self._step_up(rate)
        else:
            self._without_gain += 1
            if self._without_gain > _PATIENCE:
                self._step_up(rate)

    def _step_up(self, rate: float) -> None:
        step = self.limit if self._starting else max(_STEP_MIN, self.limit // _STEPS)
        self._before, self.limit = self.limit, min(self.ceiling, self.limit + step)
        self._best_rate, self._without_gain = rate, 0
