"""Clients that share the epochs of a dataset, where each reads another part of it every time: the nodes of a run behind
one proxy, or its pods on one node. The next read of one client cannot be predicted, but the rest of the shared epoch is
known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from outrider.core.ahead.object_names import Names
from outrider.core.ahead.order.epoch import ORDER_OPEN, JobEpoch
from outrider.core.ahead.order.epoch_detector import EpochDetector

# Clients that read independently would have repeated so many reads of each other by now, and they repeated none:
# e**-7 is the probability of that.
_NO_CHANCE = 7.0
# Clients of several nodes of a cluster are most likely ranks of one job: this much is enough, until a repeat.
_LITTLE_CHANCE = 0.5
# Reads from before there were several clients are taken into account if there are no more than this.
_EARLIER_READS_MAX = 10_000


class SharedEpoch:
    """Takes the reads of all clients of a dataset for those of one job. They share epochs once the reads have had no
    repeat for long enough."""

    def __init__(self, jobs: Iterable[EpochDetector], names: Names, now: float) -> None:
        """`jobs`: what each client has read so far, by itself."""
        self.spans_nodes = False
        """Some of the clients read at other members of the cluster."""
        self._is_refuted = False
        # Reads from before it was known which objects there are: client, object and time.
        self._unlisted: list[tuple[str, int, float]] = []
        self._begin(now)
        begun = [(job.client, job.epochs[-1]) for job in jobs if job.epochs]
        if sum(len(epoch.log) for _, epoch in begun) > _EARLIER_READS_MAX:
            return
        for client, epoch in begun:
            for index in epoch.log:
                self.opened(client, index, names, len(begun), now)
        for shared in self._job.epochs:
            shared.began = min(epoch.began for _, epoch in begun)

    def _begin(self, now: float) -> None:
        self._job = EpochDetector("", now)
        # How many objects each client has read, and how many of all reads chance would have made repeats of another
        # client's.
        self._reads: Counter[str] = Counter()
        self._by_chance = 0.0

    @property
    def epochs(self) -> list[JobEpoch]:
        """Empty: the clients share no epoch, or that is not clear yet."""
        enough = _LITTLE_CHANCE if self.spans_nodes and not self._is_refuted else _NO_CHANCE
        return self._job.predicting if self._by_chance >= enough else []

    @property
    def is_begun_anew(self) -> bool:
        """The last read was the last one of an epoch of all clients."""
        epochs = self.epochs
        return len(epochs) == 1 and epochs[0].number > 0 and not epochs[0].log

    def grow(self, index_count: int) -> None:
        self._job.grow(index_count)

    def listed(self, names: Names) -> None:
        self._job.listed(names)
        if names.listed:
            unlisted, self._unlisted = self._unlisted, []
            for client, index, at in unlisted:
                self.opened(client, index, names, len(unlisted), at)

    def opened(self, client: str, index: int, names: Names, readers: int, now: float) -> None:
        if not names.listed:
            if len(self._unlisted) < _EARLIER_READS_MAX:
                self._unlisted.append((client, index, now))
            return
        if self._by_chance < _NO_CHANCE:
            self._by_chance += (self._reads.total() - self._reads[client]) / len(names.keys)
            self._reads[client] += 1
        self._job.opened(index, names, readers, list, now)
        if self.spans_nodes:
            for epoch in self._job.epochs:
                if len(epoch.log) <= 1 and epoch.number > 0 and not epoch.announced:
                    # Reads of many nodes seldom come in the same order again: it is first to be shown.
                    epoch.confidence = min(epoch.confidence, ORDER_OPEN)
        if self._by_chance < _NO_CHANCE and not all(epoch.trusted for epoch in self._job.epochs):
            # There was a repeat: each client reads for itself.
            self._is_refuted = True
            self._begin(now)
