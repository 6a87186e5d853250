"""Evidence in the reads of one client: for epochs or for chance, by how often it reads an object again against how
often chance would have it; and for which part of the dataset it reads, as each rank of a job does that splits its
shards among nodes.
"""

from __future__ import annotations

from array import array
from math import gcd

from outrider.core.ahead.order.frontier import IN_ROW

# Without epochs there would have been so many repeats by now, and there was none: e**-7 is the probability of that.
CLEAN = 7.0
# Repeats that an epoch over another part of the dataset would have brought, before the reads are taken for one.
_PART_REPEATS = 24


class RepeatEvidence:
    """Counts the reads of one client since it was last clear what they are.

    A *repeat* is a read of an object that the oldest epoch has read already, and that no trusted epoch expects.
    """

    def __init__(self, reads: int = 0, by_chance: float = 0.0) -> None:
        self.reads = reads
        # The repeats that random reads would have brought by now.
        self.by_chance = by_chance
        self.repeats = 0
        # Repeats of objects that all epochs of the client have read.
        self._repeats_of_all = 0
        # At the first repeat: `by_chance`, the reads, and how many of them the oldest epoch had.
        self._chance_before = 0.0
        self._reads_before = self.log_before = 0
        # Repeats of objects that the oldest epoch has read since the first repeat.
        self._fresh_repeats = 0

    def read(self, by_chance: float) -> None:
        """`by_chance`: how likely a random read would be a repeat."""
        self.reads += 1
        self.by_chance += by_chance

    def repeat(self, place: int, log_length: int, *, read_by_all: bool) -> None:
        """The oldest epoch has read `log_length` objects, and the repeated one as its `place`-th."""
        if self.repeats == 0:
            self._chance_before, self._reads_before, self.log_before = self.by_chance, self.reads, log_length
        self.repeats += 1
        self._fresh_repeats += place >= self.log_before
        self._repeats_of_all += read_by_all

    @property
    def is_epoch(self) -> bool:
        """There was no repeat where chance would have brought `CLEAN` of them, so an epoch was read."""
        return self.by_chance >= CLEAN

    def is_chance(self) -> bool:
        """Objects are repeated as often as by chance, so there is no epoch."""
        if self._repeats_of_all >= 3 and self._repeats_of_all > 0.02 * self.reads:
            return True
        if self._chance_before >= CLEAN:
            return False
        return self.repeats >= 8 and 0.4 * self.by_chance <= self.repeats <= 1.6 * self.by_chance + 3

    def is_another_part(self, size: int, *, had_parts: bool) -> bool:
        """After an epoch that did not come to its end, as many of its objects are read again as chance would have it,
        and none twice since: another part of the dataset is read, as each of several nodes gets one in each epoch.
        `had_parts`: so it was in the last epoch, and a quarter of the evidence is enough."""
        expected = (self.reads - self._reads_before) * self.log_before / size
        if self._chance_before < CLEAN or expected < (_PART_REPEATS / 4 if had_parts else _PART_REPEATS):
            return False
        fresh_max = max(1, expected / _PART_REPEATS)
        return 0.7 * expected <= self.repeats <= 1.4 * expected and self._fresh_repeats <= fresh_max


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

    @property
    def is_in_order(self) -> bool:
        """The reads go through the part by name and leave hardly any out."""
        passed = (self._highest - self._lowest) // max(1, self._step)
        return self._reads >= IN_ROW and self._is_ascending and passed < self._reads + (self._reads // 4)

    @property
    def _is_ascending(self) -> bool:
        return self._ascents > 0.8 * self._reads

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
        low = self._lowest if self.is_in_order else max(0, self._lowest - beyond)
        high = listed if self._is_ascending else min(listed, self._highest + 1 + beyond)
        return low, high, step, self._first % step
