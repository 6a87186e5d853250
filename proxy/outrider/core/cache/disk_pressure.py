"""Back-pressure of the disk: the limit of concurrent fills while they wait for the disk more than for the origin.

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
    """How fast one of several disks takes bytes, of late."""

    def __init__(self) -> None:
        self._took_s = 0.0
        self._bytes = 0.0
        self._at: float | None = None

    def measured(self, took_s: float, count: int, now: float) -> None:
        """The disk took `took_s` for `count` bytes."""
        left = self._left(now)
        self._took_s, self._bytes, self._at = self._took_s * left + took_s, self._bytes * left + count, now

    def is_behind(self, others: Iterable[WritePace], now: float) -> bool:
        """Whether the disk lags by the same measures as in `DiskPressure`, beside the fastest of the `others`. As
        nothing is written to it then, this ends by itself after some seconds."""
        if self._took_s * self._left(now) < _SECONDS_MIN or self._bytes > _SLOW_BYTES_S * self._took_s:
            return False
        return any(
            other._took_s > 0 and other._bytes * self._took_s > _TIMES_LONGER * self._bytes * other._took_s
            for other in others
        )

    def _left(self, now: float) -> float:
        """The part of what was measured that counts now."""
        return 1.0 if self._at is None else 0.5 ** (max(0.0, now - self._at) / _HALF_LIFE_S)


class DiskPressure:
    """`fills`: the limit of fills under way; None: no limit. It is halved each second while the disk lags, and doubled
    each second once the disk does not, until it limits nothing."""

    def __init__(self) -> None:
        self.fills: int | None = None
        self._disk_s = 0.0
        self._origin_s = 0.0
        self._bytes = 0.0
        self._at: float | None = None
        self._stepped_at: float | None = None
        self._most = 0

    def measured(self, disk_s: float, origin_s: float, count: int, under_way: int, now: float) -> None:
        """A fill, one of `under_way`, waited `origin_s` for `count` bytes, and its writer took `disk_s` to write
        them."""
        self._forget(now)
        self._disk_s += disk_s
        self._origin_s += origin_s
        self._bytes += count
        self._step(under_way, now)

    def allows(self, under_way: int, now: float) -> bool:
        """Whether a fill may begin beside the `under_way` others."""
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
            left = 0.5 ** ((now - self._at) / _HALF_LIFE_S)
            self._disk_s *= left
            self._origin_s *= left
            self._bytes *= left
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
