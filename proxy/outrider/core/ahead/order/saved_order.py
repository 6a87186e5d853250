"""An order of reads that is kept after its job has ended, and across restarts of the proxy."""

from __future__ import annotations

from array import array
from typing import Protocol


def blanks(count: int) -> array[int]:
    """A table of `count` objects that has -1 ("none") for each."""
    return array("i", b"\xff\xff\xff\xff" * count)


class ReadOrder(Protocol):
    """An order in which a dataset was read before, or is being read."""

    period_s: float

    def place_of(self, index: int) -> int: ...

    def sequence(self) -> array[int]: ...


class SavedOrder:
    """The indexes of a dataset's objects in the order in which one epoch read them; `period_s` is how long it took."""

    def __init__(self, indexes: array[int], place: array[int] | None, index_count: int, period_s: float) -> None:
        """`place` holds the place of each index in `indexes`, -1 where it has none. None: it is worked out here."""
        self._indexes = indexes
        self.period_s = period_s
        if place is None:
            place = blanks(index_count)
            for number, index in enumerate(indexes):
                place[index] = number
        self._place = place

    def place_of(self, index: int) -> int:
        """-1: the object is not in this order."""
        return self._place[index] if index < len(self._place) else -1

    def sequence(self) -> array[int]:
        return self._indexes


def is_alike(reads: array[int], order: ReadOrder, index_count: int) -> bool:
    """These reads stand close together in `order`, as only reads in the same order do."""
    near = max(12, index_count // 32)
    places = [order.place_of(index) for index in reads]
    return 3 * near < index_count and min(places) >= 0 and max(places) - min(places) <= near
