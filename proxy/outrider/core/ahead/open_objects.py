"""The objects that are being read now, and the number of readers that this makes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from outrider.core.ahead.dataset.dataset import Dataset
from outrider.core.ahead.dataset.registry import Item
from outrider.core.ahead.sequential_reads import ABANDONED_S

# The number of readers falls by at most this factor with each object that is opened.
_READERS_KEPT = 0.99


class OpenObjects:
    """Counts the clients that read each object, and remembers when a client last read of it."""

    def __init__(self) -> None:
        # Clients that read the object, and when one of them last read of it; the longest silent object first.
        self._open: OrderedDict[Item, tuple[int, float]] = OrderedDict()
        self._readers = 1.0
        self.readers = 1
        """The number of readers lately. It falls slowly, because a reader between two shards has no object open."""

    def __contains__(self, item: Item) -> bool:
        return item in self._open

    def opened(self, item: Item, now: float) -> None:
        before = self._open.get(item)
        if before is None:
            self._open[item] = 1, now
        else:
            self._open[item] = before[0] + 1, now
            self._open.move_to_end(item)
        _, since = next(iter(self._open.values()))
        if now - since > ABANDONED_S:
            self._close_abandoned(now)
        count, faded = len(self._open), self._readers * _READERS_KEPT
        self._readers = count if count > faded else faded
        self.readers = round(self._readers)

    def touched(self, item: Item, now: float) -> None:
        """A client has read some of the object."""
        if item in self._open:
            self._open[item] = (self._open[item][0], now)
            self._open.move_to_end(item)

    def ended(self, item: Item) -> None:
        """One of its clients has read the whole object."""
        count, since = self._open[item]
        if count > 1:
            self._open[item] = (count - 1, since)
        else:
            self._close(item)

    def move(self, items: Mapping[Item, Item]) -> None:
        self._open = OrderedDict((items.get(item, item), open_by) for item, open_by in self._open.items())

    def forget(self, dataset: Dataset) -> None:
        for item in [item for item in self._open if item[0] is dataset]:
            self._close(item)

    def _close_abandoned(self, now: float) -> None:
        while self._open:
            item, (_, since) = next(iter(self._open.items()))
            if now - since <= ABANDONED_S:
                return
            self._close(item)

    def _close(self, item: Item) -> None:
        self._open.pop(item, None)
        cached = item[0].cached.get(item[1])
        if cached is not None:
            cached.reading, cached.served = False, 0
