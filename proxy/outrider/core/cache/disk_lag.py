"""Disks that lag: the limit of concurrent fills while they wait for the disk more than for the origin, and one disk
beside faster ones.

Reads beyond the limit are relayed past the cache, since a cold read through the proxy must not be slower than a read
without it.
"""

from __future__ import annotations

from collections.abc import Iterable

# The half-life of the measured times: a short pause, as for a flush, does not make a disk slow.
_HALF_LIFE_S = 2.0
# The disk lags when three conditions hold. First, fills wait for it so many times longer than for the origin.
_TIMES_LONGER = 4.0
# Second, each write gets less than a connection to S3 brings (40-90 MB/s). A disk that is slower only than an origin
# close by is still worth using.
_SLOW_BYTES_S = 60e6
# Third, it has lasted: so many seconds, summed over all writers. One or two late writes do not count.
_SECONDS_MIN = 1.0
_STEP_S = 1.0


class WritePace:
    """How fast a disk took bytes of late, and the origin gave them."""

    def __init__(self) -> None:
        self.disk_s = 0.0
        self.origin_s = 0.0
        self._bytes = 0.0
        self._at: float | None = None

    def measured(self, disk_s: float, count: int, now: float, origin_s: float = 0.0) -> None:
        """The disk took `disk_s` for `count` bytes, for which the origin was waited for `origin_s`."""
        self._fade(now)
        self.disk_s += disk_s
        self.origin_s += origin_s
        self._bytes += count

    def is_slow(self, now: float) -> bool:
        """The second and the third condition. As nothing is written to a disk that lags, it ends after some seconds."""
        self._fade(now)
        return self.disk_s > _SECONDS_MIN and self._bytes < _SLOW_BYTES_S * self.disk_s

    def is_behind(self, others: Iterable[WritePace], now: float) -> bool:
        """Whether the disk is slow, and the fastest of the `others` is as many times faster as the first condition
        has it."""
        return self.is_slow(now) and any(
            other.disk_s > 0 and other._bytes * self.disk_s > _TIMES_LONGER * self._bytes * other.disk_s
            for other in others
        )

    def _fade(self, now: float) -> None:
        if self._at is not None and now > self._at:
            left = 0.5 ** ((now - self._at) / _HALF_LIFE_S)
            self.disk_s *= left
            self.origin_s *= left
            self._bytes *= left
        self._at = now


class DiskPressure:
    """`fills`: the limit of fills under way; None: no limit. It is halved each second while the disk lags, and doubled
    each second once the disk does not, until it limits nothing."""

    def __init__(self) -> None:
        self.fills: int | None = None
        self._pace = WritePace()
        self._stepped_at: float | None = None
        self._most = 0

    def measured(self, disk_s: float, origin_s: float, count: int, under_way: int, now: float) -> None:
        """A fill, one of `under_way`, waited `origin_s` for `count` bytes, and its writer took `disk_s` to write
        them."""
        self._pace.measured(disk_s, count, now, origin_s)
        self._step(under_way, now)

    def allows(self, under_way: int, now: float) -> bool:
        """Whether a fill may begin beside the `under_way` others."""
        if self.fills is None:
            return True
        self._step(under_way, now)
        return self.fills is None or under_way < self.fills

    def _step(self, under_way: int, now: float) -> None:
        if self._stepped_at is None:
            self._stepped_at = now
        self._most = max(self._most, under_way)
        if now - self._stepped_at < _STEP_S:
            return
        if self._pace.is_slow(now) and self._pace.disk_s > _TIMES_LONGER * self._pace.origin_s:
            self.fills = max(1, min(self._most, self._most if self.fills is None else self.fills) // 2)
        elif self.fills is not None:
            self.fills *= 2
            if self.fills > 2 * self._most:
                self.fills = None
        self._stepped_at, self._most = now, under_way
