"""The order of an epoch that its job announces: pieces of several workers, merged into one sequence."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from outrider.core.ahead.order.torch_sampler import turn_of

END = 1.0
"""The share of an object that is expected without an announcement: it follows all that was announced."""


class Expectation(NamedTuple):
    """The expectation of an epoch before its order was announced: see the same names in `JobEpoch`."""

    agenda: array[int]
    confidence: float
    number: int


class AnnouncedOrder:
    """Ranks the reads that several workers announce by the *share* of its own part that a worker has done when it
    reads the object.

    Invariant: `_shares[place]` is the share of the object at that place of the epoch's agenda, and shares never
    decrease. So workers that are equally fast are merged as they read beside each other.
    """

    def __init__(self, before: Expectation) -> None:
        self.before = before
        # More than one worker announces, or a part was withdrawn: a place in the agenda is no longer a number in the
        # order of one teller.
        self.several = False
        # The number that the only teller would give to its next object, and the length of its part.
        self._next_number = self._total = 0
        self._shares: array[float] = array("d")

    def continues_at(self, start: int) -> bool:
        """Whether a piece that begins with this number may come from the same worker as the last piece."""
        return start == self._next_number

    def piece(
        self, indexes: Sequence[int], start: int, total: int, batch: int, workers: int, place: array[int]
    ) -> list[tuple[float, int]]:
        """Share and index of each object of a piece that has no `place` in the agenda yet, by share.

        The piece has the numbers `start`, `start` + 1, ... of `total`, in an order that `workers` workers read beside
        each other, a batch of `batch` each.
        """
        self._next_number, self._total = start + len(indexes), total
        piece = [((turn_of(start + i, batch, workers) + 0.5) / total, index)
                 for i, index in enumerate(indexes) if place[index] < 0]  # fmt: skip
        if workers > 1:
            piece.sort()
        return piece

    def overlaps(self, share: float) -> bool:
        """Whether objects of at least this share have been announced."""
        return len(self._shares) > 0 and share <= self._shares[-1]

    def cut(self, share: float) -> tuple[int, array[float]]:
        """Takes out all shares from this one on. Returns the first place among them, and the shares."""
        first = bisect_left(self._shares, share)
        tail = self._shares[first:]
        del self._shares[first:]
        return first, tail

    def append(self, share: float) -> None:
        self._shares.append(share)

    def keep(self, places: Iterable[int]) -> None:
        """Only the objects at these places are still expected."""
        self.several = True
        self._shares = array("d", (self._shares[place] for place in places))

    def deal_anew(self, turns_before: int, batch: int, workers: int) -> None:
        """The same order is read by `workers` workers, a batch of `batch` each in turn. A round of all workers took
        `turns_before` objects until now."""
        # Within a round that was announced as a whole, any dealing has the same set of shares, so those stay. In the
        # rounds after it a share says whose turn it was: with shares of two dealings, the next piece would be mixed up.
        count, turns = len(self._shares), batch * workers
        first = min(count - count % turns_before, count - count % turns)
        first -= first % turns
        # Where objects are announced twice, the places before `first` have larger shares than their number gives.
        least = self._shares[first - 1] if first else 0.0
        numbers = sorted(turn_of(number, batch, workers) for number in range(first, count))
        self._shares[first:] = array("d", (max(least, (number + 0.5) / self._total) for number in numbers))
