"""Keys in the order of their ranks, where a rank changes three times with each read."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

# A run is split in two when it is longer.
_RUN_MAX = 256


class RankIndex:
    """Keys, from 0 to 2**63 - 1, by (rank, key), in runs of bare numbers: 16 bytes a key.

    A sorted list of tuples has each of them elsewhere in memory: of 25,000 keys a change took twice as long, and the
    changes were a quarter of what a read costs the planner (py-spy).
    """

    def __init__(self) -> None:
        self._ranks: list[array[float]] = []
        self._keys: list[array[int]] = []
        # Of each run.
        self._last_ranks = array("d")
        self._last_keys = array("q")

    def __reversed__(self) -> Iterator[int]:
        """The keys, the highest rank first, of equal ranks the highest key. Those that were yielded may be discarded
        meanwhile."""
        for keys in reversed(self._keys):
            yield from reversed(keys)

    def add(self, key: int, rank: float) -> None:
        """`key` is not among them."""
        at = bisect_left(self._last_ranks, rank)
        if at == len(self._keys):
            if not at:
                self._put(0, array("d", (rank,)), array("q", (key,)))
                return
            at -= 1
        ranks, keys = self._ranks[at], self._keys[at]
        place = bisect_left(ranks, rank)
        if place < len(ranks) and ranks[place] == rank:
            # Not rare: of what is to be read once in an epoch of unknown order, each is as likely the next.
            if self._last_ranks[at] == rank:
                at = self._run_of_equals(key, rank, at)
                ranks, keys = self._ranks[at], self._keys[at]
            place = _place(ranks, keys, rank, key)
        ranks.insert(place, rank)
        keys.insert(place, key)
        if place == len(keys) - 1:
            self._last_ranks[at], self._last_keys[at] = rank, key
        if len(keys) > _RUN_MAX:
            self._split(at)

    def discard(self, key: int, rank: float) -> None:
        """`key` is among them, with that rank."""
        at = bisect_left(self._last_ranks, rank)
        ranks, keys = self._ranks[at], self._keys[at]
        place = bisect_left(ranks, rank)
        if keys[place] != key:
            if self._last_ranks[at] == rank:
                at = self._run_of_equals(key, rank, at)
                ranks, keys = self._ranks[at], self._keys[at]
            place = _place(ranks, keys, rank, key)
        del ranks[place], keys[place]
        if not keys:
            del self._ranks[at], self._keys[at], self._last_ranks[at], self._last_keys[at]
        elif place == len(keys):
            self._last_ranks[at], self._last_keys[at] = ranks[-1], keys[-1]

    def _run_of_equals(self, key: int, rank: float, first: int) -> int:
        """Where this belongs, if run `first` and perhaps others after it end with this rank."""
        at = bisect_left(self._last_keys, key, first, bisect_right(self._last_ranks, rank, first))
        return min(at, len(self._keys) - 1)

    def _put(self, at: int, ranks: array[float], keys: array[int]) -> None:
        self._ranks.insert(at, ranks)
        self._keys.insert(at, keys)
        self._last_ranks.insert(at, ranks[-1])
        self._last_keys.insert(at, keys[-1])

    def _split(self, at: int) -> None:
        ranks, keys = self._ranks[at], self._keys[at]
        half = len(keys) // 2
        self._put(at, ranks[:half], keys[:half])
        del ranks[:half], keys[:half]


def _place(ranks: array[float], keys: array[int], rank: float, key: int) -> int:
    """Of the first in this run that is this or more."""
    first = bisect_left(ranks, rank)
    return bisect_left(keys, key, first, bisect_right(ranks, rank, first))
