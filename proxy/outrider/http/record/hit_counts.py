"""The counts of the hits that the fast path has answered: plain numbers, which are added to the metrics when somebody
reads these.

A hit takes some ten microseconds, and one observation of a Prometheus histogram alone takes two of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from outrider.core.insight.usage import AWAY_S_MAX, DatasetName, HitTally
from outrider.core.model import ObjectRef
from outrider.metrics import FIRST_BUCKET_S, Metrics

# Pairs of a dataset and a reader whose hits are counted apart. When there are more, the counts are handed on, and a new
# table begins.
_TALLIES_MAX = 1024

Tallies = dict[str, HitTally]
"""The hits on one dataset, by reader."""


class _Answered:
    """The hits of one method and status; `quick` are those within the first bucket of the histogram. `counted`: the
    part of each number that the metrics have."""

    __slots__ = ("counted", "number", "quick", "quick_s")

    def __init__(self) -> None:
        self.number = self.quick = 0
        self.quick_s = 0.0
        self.counted = (0, 0, 0.0)


class HitCounts:
    def __init__(self, metrics: Metrics, when_full: Callable[[], None]) -> None:
        """`when_full` is called when the tables are replaced: nobody may hold the `tallies_of` before any longer."""
        self._metrics = metrics
        self._when_full = when_full
        self._answered: dict[tuple[str, int], _Answered] = {}
        self._served_from_disk = metrics.served_bytes.labels("disk")
        self._served_bytes = 0
        self._counted_bytes = 0
        # A table that was replaced is handed on once more.
        self._tallies: dict[DatasetName, Tallies] = {}
        self._tallied = 0
        self._old_tallies: deque[dict[DatasetName, Tallies]] = deque()
        metrics.before_read.append(self._hand_on)

    def tallies_of(self, ref: ObjectRef) -> Tallies:
        return self._tallies.setdefault(self._metrics.usage.dataset_of(*ref), {})

    def begin(self, ref: ObjectRef, reader: str) -> tuple[Tallies, HitTally]:
        """The tallies of the dataset of `ref`, and a new one among them, for `reader`."""
        if self._tallied >= _TALLIES_MAX:
            self._old_tallies.append(self._tallies)
            self._tallies, self._tallied = {}, 0
            self._when_full()
        self._tallied += 1
        tallies = self.tallies_of(ref)
        tally = tallies[reader] = HitTally()
        return tallies, tally

    def first_byte(self, method: str, seconds: float) -> None:
        """The time to the first byte of a hit that `add` does not get."""
        self._metrics.first_byte_s.labels(method.lower()).observe(seconds)

    def add(self, tally: HitTally, method: str, status: int, sent: int, seconds: float, away_s: float) -> None:
        """A hit that was sent whole, `seconds` after it was requested. `away_s`: see `Ended`."""
        try:
            answered = self._answered[method, status]
        except KeyError:
            answered = self._answered[method, status] = _Answered()
        answered.number += 1
        if seconds <= FIRST_BUCKET_S:
            answered.quick += 1
            answered.quick_s += seconds
        else:
            self.first_byte(method, seconds)
        self._served_bytes += sent
        tally.sent_bytes += sent
        tally.wait_s += seconds
        tally.away_s += away_s if away_s < AWAY_S_MAX else AWAY_S_MAX
        tally.requests += 1

    def _hand_on(self) -> None:
        for (method, status), answered in list(self._answered.items()):
            number, quick, quick_s = now = answered.number, answered.quick, answered.quick_s
            before, answered.counted = answered.counted, now
            if number > before[0]:
                self._metrics.requests.labels(method.lower(), str(status), "HIT").inc(number - before[0])
            if quick > before[1]:
                self._metrics.add_first_bytes(method.lower(), quick - before[1], quick_s - before[2])
        served = self._served_bytes
        self._served_from_disk.inc(served - self._counted_bytes)
        self._counted_bytes = served
        self._hand_on_usage(self._tallies)
        while self._old_tallies:
            self._hand_on_usage(self._old_tallies.popleft())

    def _hand_on_usage(self, tallies: dict[DatasetName, Tallies]) -> None:
        for dataset, readers in list(tallies.items()):
            for reader, tally in list(readers.items()):
                if tally.requests != tally.reported.requests:
                    self._metrics.usage.served(reader, dataset, tally.take_unreported())
