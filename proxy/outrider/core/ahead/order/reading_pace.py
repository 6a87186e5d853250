"""How fast the readers of an epoch open objects, and how long they pause."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from operator import itemgetter

# Reads of an epoch whose times are kept.
FIRST_READS = 512
# A pause that came once comes again (a batch, a validation): it is remembered over some 500 reads.
_PAUSE_KEPT = 0.998


class ReadingPace:
    """`gap_s` is the mean time between two reads, `pause_s` the longest pause of late; 0: no read tells."""

    def __init__(self) -> None:
        self.gap_s = self.pause_s = 0.0
        self._gaps = 0
        # The times of the first reads of the epoch.
        self._times = array("d")

    def copy(self) -> ReadingPace:
        """For another epoch of the same job."""
        other = ReadingPace()
        other.gap_s, other.pause_s, other._gaps = self.gap_s, self.pause_s, self._gaps
        return other

    def read(self, gap_s: float, now: float) -> None:
        """An object was opened `gap_s` after the one before it."""
        if len(self._times) < FIRST_READS:
            self._times.append(now)
        self._gaps += 1
        self.gap_s += (gap_s - self.gap_s) * (1.0 if self._gaps <= 2 else 0.1)
        kept_s = self.pause_s * _PAUSE_KEPT
        self.pause_s = gap_s if gap_s > kept_s else kept_s

    def begin_epoch(self) -> None:
        self._times = array("d")

    def first_reads(self, log: Sequence[int]) -> list[int]:
        """The first reads of the epoch by their times. The log may have them in another order: a hit that needs no
        other task is heard of later than a miss that was asked for at the same time."""
        return [index for _, index in sorted(zip(self._times, log, strict=False), key=itemgetter(0))]
