"""Whether fills wait for the disk more than for the origin, and how many there may then be: what the disk cannot take
is better relayed, since a cold read through us must not be slower than one past us."""

from __future__ import annotations

# Times are forgotten by half in this time: a pause of the disk, as of a flush, is not a slow disk.
_HALF_LIFE_S = 2.0
# The disk is what holds fills up when they wait for it so many times longer than for the origin ...
_TIMES_LONGER = 4.0
# ... and it gives each write less than a connection of S3 brings (40-90 MB/s): who is slower than the origin only
# because the origin is next door is still worth having.
_SLOW_BYTES_S = 60e6
# ... and that for a while. Seconds of all writers together: one or two late writes are nothing.
_SECONDS_MIN = 1.0
_STEP_S = 1.0


class DiskPressure:
    """`fills`: how many fills may be under way; None: as many as like. It is halved each second while the disk lags,
    and doubled each second once it does not, until nobody is held back any more."""

    def __init__(self) -> None:
        self.fills: int | None = None
        self._disk_s = 0.0
        self._origin_s = 0.0
        self._bytes = 0.0
        self._at: float | None = None
        self._stepped_at: float | None = None
        self._most = 0

    def took(self, disk_s: float, origin_s: float, count: int, under_way: int, now: float) -> None:
        """A fill, one of `under_way`, waited `origin_s` for `count` bytes, and its writing thread `disk_s` to write
        them."""
        self._forget(now)
        self._disk_s += disk_s
        self._origin_s += origin_s
        self._bytes += count
        self._step(under_way, now)

    def allows(self, under_way: int, now: float) -> bool:
        """Whether one more fill may begin beside those `under_way`."""
        if self.fills is None:
            return True
        self._forget(now)
        self._step(under_way, now)
        return self.fills is None or under_way < self.fills

    def _lags(self) -> bool:
        return (
            self._disk_s > _SECONDS_MIN
            and self._disk_s > _TIMES_LONGER * self._origin_s
            and self._bytes < _SLOW_BYTES_S * self._disk_s
        )

    def _forget(self, now: float) -> None:
        if self._at is not None and now > self._at:
            cached = 0.5 ** ((now - self._at) / _HALF_LIFE_S)
            self._disk_s *= cached
            self._origin_s *= cached
            self._bytes *= cached
        self._at = now

    def _step(self, under_way: int, now: float) -> None:
        if self._stepped_at is None:
            self._stepped_at = now
        self._most = max(self._most, under_way)
        if now - self._stepped_at < _STEP_S:
            return
        if self._lags():
            self.fills = max(1, min(self._most, self._most if self.fills is None else self.fills) // 2)
        elif self.fills is not None:
            self.fills *= 2
            if self.fills > 2 * self._most:
                self.fills = None
        self._stepped_at, self._most = now, under_way
