"""What was prefetched in vain: objects that were evicted before a client asked for them."""

from __future__ import annotations

from collections.abc import Mapping

from outrider.core.ahead.dataset.dataset import Dataset
from outrider.core.ahead.dataset.registry import Item

# Prefetch for a dataset pauses once so much of the cache was prefetched for it in vain lately.
_WASTE = 0.02
# With each object that is opened, so much of that waste is forgiven.
_FORGIVEN = 1 / 16


class PrefetchWaste:
    """Bytes prefetched in vain and not forgiven yet, by dataset."""

    def __init__(self, capacity_bytes: int, block_bytes: int) -> None:
        self._max_bytes = _WASTE * capacity_bytes + 2 * block_bytes
        self._bytes: dict[Dataset, float] = {}

    def add(self, dataset: Dataset, wasted_bytes: float) -> None:
        self._bytes[dataset] = self._bytes.get(dataset, 0.0) + wasted_bytes

    def opened(self, dataset: Dataset) -> None:
        """A client begins to read an object of the dataset."""
        if dataset in self._bytes:
            self._bytes[dataset] *= 1 - _FORGIVEN

    def pauses(self, dataset: Dataset) -> bool:
        """So much was in vain that nothing more is to be prefetched for the dataset."""
        return self._bytes.get(dataset, 0.0) > self._max_bytes

    def move(self, items: Mapping[Item, Item]) -> None:
        """Objects belong to other datasets now."""
        for (old, _), (new, _) in items.items():
            if wasted_bytes := self._bytes.pop(old, 0.0):
                self.add(new, wasted_bytes)

    def forget(self, dataset: Dataset) -> None:
        self._bytes.pop(dataset, None)
