"""How many fills at once the origin bears: more while more brings more, half when it says that it is too much."""

from __future__ import annotations

# S3 gives 40-90 MB/s a connection: these fill a 10 Gbit/s line without having asked for anything yet.
FIRST_FILLS = 16
# Long enough for several blocks a connection, short enough to be at the ceiling of 64 in a few.
_WINDOW_S = 1.0
# Less than this is noise and not a gain.
_GAIN = 1.03
# After so many windows without a gain one more step is tried: the line, or the bucket, may have grown since.
_PATIENCE = 10
_STEP = 2


class Concurrency:
    """Additive increase, multiplicative decrease, after a start that doubles. `floor` <= `limit` <= `ceiling`.

    It only grows in windows in which the limit was felt: what was not asked for says nothing of what can be had.
    Source: Chiu and Jain, "Analysis of the increase and decrease algorithms" (1989); the doubling start is TCP's.
    """

    def __init__(self, ceiling: int, floor: int = 1) -> None:
        if not 1 <= floor <= ceiling:
            raise ValueError(f"no limit between {floor} and {ceiling}")
        self._floor = floor
        self._ceiling = ceiling
        self.limit = max(floor, min(ceiling, FIRST_FILLS))
        self._starting = True
        self._window_began: float | None = None
        self._arrived = 0
        self._felt = False
        self._best_rate = 0.0
        self._without_gain = 0
        self._halved_at: float | None = None

    def felt(self) -> None:
        """Somebody had to wait because of the limit."""
        self._felt = True

    def arrived(self, count: int, now: float) -> None:
        """`count` bytes came from the origin."""
        if self._window_began is None:
            self._window_began = now
        if now - self._window_began >= _WINDOW_S:
            self._judge(self._arrived / (now - self._window_began))
            self._window_began, self._arrived, self._felt = now, 0, False
        self._arrived += count

    def slow_down(self, now: float) -> None:
        """The origin said that it is too much. All that it says of one burst halves the limit once."""
        if self._halved_at is not None and now - self._halved_at < _WINDOW_S:
            return
        self._halved_at = now
        self.limit = max(self._floor, self.limit // 2)
        self._starting = False
        self._best_rate, self._without_gain = 0.0, 0
        # What is counted so far was had under the old limit.
        self._window_began, self._arrived, self._felt = now, 0, False

    def _judge(self, rate: float) -> None:
        if not self._felt:
            return
        self._without_gain += 1
        if rate > self._best_rate * _GAIN or self._without_gain > _PATIENCE:
            self.limit = min(self._ceiling, self.limit * 2 if self._starting else self.limit + _STEP)
            self._best_rate, self._without_gain = rate, 0
        else:
            self._starting = False
