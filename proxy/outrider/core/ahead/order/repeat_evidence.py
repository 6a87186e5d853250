"""Evidence for and against epochs: how often a client reads an object again, against how often chance would have it."""

from __future__ import annotations

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
