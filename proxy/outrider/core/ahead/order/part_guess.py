"""Which part of a dataset a client reads, as each rank of a job does that splits its shards among nodes."""

from __future__ import annotations

from array import array
from math import gcd


class PartGuess:
    """Guesses from the ranks of the reads: every n-th name, or a run of names. Before any read: all names.

    A *rank* is a number in the sorted list of the dataset's names.
    """

    def __init__(self) -> None:
        self._reads = 0
        self._first = self._lowest = self._highest = -1
        # The greatest common divisor of all distances from the first rank.
        self._step = 0
        self._ascents = 0
        # The ranks low, low + 1, ... up to high (half-open) that have this remainder by this step: low, high, step,
        # remainder.
        self._bounds = (0, 0, 1, 0)
        self._next_guess = 4

    def read(self, rank: int, listed: int) -> bool:
        """Whether the guess has changed. `listed` is the number of listed names."""
        if rank >= listed:
            return False
        self._reads += 1
        if self._first < 0:
            self._first = self._lowest = self._highest = rank
        self._step = gcd(self._step, rank - self._first)
        # Parallel readers overtake each other a little.
        self._ascents += rank > self._highest - (self._reads // 4 or 1)
        if rank < self._lowest:
            self._lowest = rank
        elif rank > self._highest:
            self._highest = rank
        if self._reads < self._next_guess and (self._bounds[1] == 0 or self.has(rank)):
            return False
        self._next_guess = max(self._next_guess, self._reads + max(2, self._reads // 4))
        before = self._bounds
        self._bounds = self._guess(listed)
        return self._bounds != before

    def has(self, rank: int) -> bool:
        low, high, step, remainder = self._bounds
        return low <= rank < high and rank % step == remainder

    def of(self, listed: array[int]) -> array[int]:
        """The indexes of the part, where `listed` has the index of each rank."""
        low, high, step, remainder = self._bounds
        return listed[low + (remainder - low) % step : high : step]

    def _guess(self, listed: int) -> tuple[int, int, int, int]:
        step = max(1, self._step) if self._reads >= 4 else 1
        # The reads are spread over a run. About so much of it lies beyond the outermost of them on either side.
        beyond = 2 * (self._highest - self._lowest + step) // self._reads + step
        ascending = self._ascents > 0.8 * self._reads
        low = max(0, self._lowest - beyond)
        high = listed if ascending else min(listed, self._highest + 1 + beyond)
        return low, high, step, self._first % step
