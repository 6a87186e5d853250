"""The frontier of an epoch: where in its agenda the readers are, by the places of the last reads."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

# How many of the last reads tell the frontier of an epoch. An odd number, for the median.
RECENT = 9
# Places by which parallel readers drift apart in an order that is neither short nor long.
_DRIFT = 24


def tolerance(count: int) -> int:
    """How far a read may be from its place in an order of `count` objects: parallel readers drift apart."""
    # Each read asks this several times. Calls of `min` and `max` were a tenth of an event (cProfile).
    if count >= 32 * _DRIFT:
        return count // 32
    return _DRIFT if count >= 8 * _DRIFT else count // 8 or 1


# The weight of the newest read in `drift`, an exponentially weighted mean.
_NEWEST = 1 / 16


class Frontier:
    """`place` is the median of the places of the last reads, moved on by the reads since it. 0: they tell nothing.
    `drift` is how far from the place after it the next read was, on average: parallel readers are not equally far.

    `count` is the length of the agenda in all methods.
    """

    __slots__ = ("_recent", "drift", "place")

    def __init__(self) -> None:
        self.place = 0
        self.drift = 0.0
        self._recent: deque[int] = deque(maxlen=RECENT)

    def read(self, place: int, count: int) -> None:
        distance = abs(place - self.place - 1)
        if distance <= tolerance(count):
            self.drift += _NEWEST * (distance - self.drift)
        recent = self._recent
        recent.append(place)
        middle = len(recent) // 2
        self.place = sorted(recent)[middle] + len(recent) - 1 - middle

    def restart(self, *, known: bool = True) -> None:
        """`known` False: the reads so far were in another order than that of the agenda."""
        self._recent.clear()
        self.place = 0
        if not known:
            self.drift = 0.0

    def relocate(self, places: Iterable[int], count: int) -> None:
        """The agenda has changed, and these are now the places of the last reads."""
        self._recent.clear()
        self._recent.extend(places)
        if 2 * len(self._recent) < RECENT or max(self._recent) - min(self._recent) > 2 * tolerance(count):
            # They are few, or were not read in this order (such as the padding of the last epoch): they do not tell
            # where the readers are.
            self.restart()
            return
        middle = len(self._recent) // 2
        self.place = sorted(self._recent)[middle] + len(self._recent) - 1 - middle

    def agrees(self, place: int, count: int) -> bool:
        """A read at this place agrees with the agenda's order: it is near the frontier, or near it around the end of
        the agenda, as where a run that was resumed in mid-epoch comes to the objects that it has skipped."""
        distance, near = abs(place - self.place), tolerance(count)
        return distance <= near or count - distance <= near

    def has_passed_over(self, place: int, count: int) -> bool:
        """The place is far behind. One or two reads do not prove that: they may have been the last reads of another
        epoch."""
        behind = self.place - place
        return behind > 0 and 2 * len(self._recent) > RECENT and behind > 4 * tolerance(count)
