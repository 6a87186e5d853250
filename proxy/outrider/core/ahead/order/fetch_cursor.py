"""The fetch cursor of an epoch: which object of its agenda is prefetched next."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush


class FetchCursor:
    """How far prefetching has got in the agenda of one epoch and, past its end, in the agenda of the next one.

    Invariant: an object that stands in the agenda before `position` needs no prefetch (it was read, is on disk, on its
    way, or too large), or it is in `_again` or in `_behind`. A position of `len(agenda)` and more counts on into the
    next epoch's agenda. Objects are taken in this order: those to be fetched again, the agenda, those that a resumed
    run left behind, the next epoch. The agenda belongs to the epoch, and is an argument.
    """

    __slots__ = ("_again", "_behind", "position")

    def __init__(self) -> None:
        self.position = 0
        # Places and indexes of objects that must be fetched again: their prefetch has failed, or they were evicted
        # before they were read. A heap by place: the object evicted last was needed last, and in order of eviction it
        # would stand before objects that are read sooner.
        self._again: list[tuple[int, int]] = []
        # Objects that a run resumed in mid-epoch has skipped: they are fetched once the rest of the agenda is.
        self._behind: deque[int] = deque()

    def current(self, agenda: array[int]) -> int | None:
        """The object to look at next. None: this epoch's are done, and `current_in_next` is next."""
        if self._again:
            return self._again[0][1]
        if self.position < len(agenda):
            return agenda[self.position]
        return self._behind[0] if self._behind else None

    def current_in_next(self, agenda: array[int], next_agenda: Sequence[int]) -> int | None:
        """The object of the next epoch to look at. None: that agenda is not known, or done as well."""
        past = self.position - len(agenda)
        return next_agenda[past] if past < len(next_agenda) else None

    def advance(self, agenda: array[int]) -> None:
        """The current object needs no prefetch any more."""
        if self._again:
            heappop(self._again)
        elif self._behind and self.position >= len(agenda):
            self._behind.popleft()
        else:
            self.position += 1

    def is_behind(self, agenda: array[int]) -> bool:
        """Whether the current object is one that was left behind, or of the next epoch."""
        return not self._again and self.position >= len(agenda)

    def leave_behind(self, index: int) -> None:
        """Fetch the current object once the rest of the agenda is fetched. `advance` is still to be called."""
        self._behind.append(index)

    def fetch_again(self, place: int, index: int) -> None:
        """The object at this place is needed, and is neither on disk nor on its way any more."""
        # An object at or after the position is still to be looked at.
        if place < self.position:
            heappush(self._again, (place, index))

    def rewind(self, place: int) -> None:
        """The agenda has changed from this place on."""
        if self.position > place:
            self.position = place

    def restart(self, position: int = 0) -> None:
        """The agenda is another one."""
        self.position = position
        self._again.clear()
        self._behind.clear()

    def past_end(self, agenda: array[int]) -> int:
        """How many objects of the next epoch's agenda have been looked at."""
        return max(0, self.position - len(agenda))
