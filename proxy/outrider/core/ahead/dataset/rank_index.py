"""Object indexes in the order of their ranks, for ranks that change three times with each read."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

# A longer run is split in two.
_RUN_MAX = 256


class RankIndex:
    """Indexes, from 0 to 2**63 - 1, sorted by (rank, index), in runs of bare numbers: 16 bytes per index.

    Rejected: a sorted list of tuples, each of which lies elsewhere in memory. With 25,000 indexes a change took twice
    as long, and the changes were a quarter of what a read costs the planner (py-spy).
    """

    def __init__(self) -> None:
        # One array per run in each of these two.
        self._ranks: list[array[float]] = []
        self._indexes: list[array[int]] = []
        # The last rank and the last index of each run.
        self._last_ranks = array("d")
        self._last_indexes = array("q")

    def __reversed__(self) -> Iterator[int]:
        """The highest rank first; of equal ranks, the highest index first. An index that was yielded may be discarded
        before the next one is requested."""
        for indexes in reversed(self._indexes):
            yield from reversed(indexes)

    def add(self, index: int, rank: float) -> None:
        """`index` must not be here."""
        run = bisect_left(self._last_ranks, rank)
        if run == len(self._indexes):
            if not run:
                self._put(0, array("d", (rank,)), array("q", (index,)))
                return
            run -= 1
        ranks, indexes = self._ranks[run], self._indexes[run]
        place = bisect_left(ranks, rank)
        if place < len(ranks) and ranks[place] == rank:
            # Not rare: in an epoch of unknown order, all unread objects have the same rank.
            if self._last_ranks[run] == rank:
                run = self._run_of_equals(index, rank, run)
                ranks, indexes = self._ranks[run], self._indexes[run]
            place = _place(ranks, indexes, rank, index)
        ranks.insert(place, rank)
        indexes.insert(place, index)
        if place == len(indexes) - 1:
            self._last_ranks[run], self._last_indexes[run] = rank, index
        if len(indexes) > _RUN_MAX:
            self._split(run)

    def discard(self, index: int, rank: float) -> None:
        """`index` must be here, with this rank."""
        run = bisect_left(self._last_ranks, rank)
        ranks, indexes = self._ranks[run], self._indexes[run]
        place = bisect_left(ranks, rank)
        if indexes[place] != index:
            if self._last_ranks[run] == rank:
                run = self._run_of_equals(index, rank, run)
                ranks, indexes = self._ranks[run], self._indexes[run]
            place = _place(ranks, indexes, rank, index)
        del ranks[place], indexes[place]
        if not indexes:
            del self._ranks[run], self._indexes[run], self._last_ranks[run], self._last_indexes[run]
        elif place == len(indexes):
            self._last_ranks[run], self._last_indexes[run] = ranks[-1], indexes[-1]

    def _run_of_equals(self, index: int, rank: float, first: int) -> int:
        """The run in which `index` belongs, if run `first`, and perhaps others after it, end with this rank."""
        run = bisect_left(self._last_indexes, index, first, bisect_right(self._last_ranks, rank, first))
        return min(run, len(self._indexes) - 1)

    def _put(self, run: int, ranks: array[float], indexes: array[int]) -> None:
        self._ranks.insert(run, ranks)
        self._indexes.insert(run, indexes)
        self._last_ranks.insert(run, ranks[-1])
        self._last_indexes.insert(run, indexes[-1])

    def _split(self, run: int) -> None:
        ranks, indexes = self._ranks[run], self._indexes[run]
        half = len(indexes) // 2
        self._put(run, ranks[:half], indexes[:half])
        del ranks[:half], indexes[:half]


def _place(ranks: array[float], indexes: array[int], rank: float, index: int) -> int:
    """The place of the first pair in this run that is not below (rank, index)."""
    first = bisect_left(ranks, rank)
    return bisect_left(indexes, index, first, bisect_right(ranks, rank, first))
