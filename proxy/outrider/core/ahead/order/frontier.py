"""Where an epoch is in its agenda. Its readers: at which place they are (the frontier), how fast they are, and which
reads are late. Its prefetch: which object is next (the cursor).
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from operator import itemgetter

# How many of the last reads show the frontier of an epoch. An odd number, for the median.
RECENT = 9
# So few reads show it where all are next to each other.
IN_ROW = 4
# Places by which parallel readers drift apart in an order that is neither short nor long.
_DRIFT = 24
# Reads of an epoch whose times are kept.
FIRST_READS = 512
# A pause that came once comes again (a batch, a validation): it is remembered over some 500 reads.
_PAUSE_KEPT = 0.998
# A late read is one of the last of its epoch, and is reported among the first reads of the next one.
_LAST_MAX, _FIRST_MAX = 1024, 64


def tolerance(count: int) -> int:
    """How far a read may be from its place in an order of `count` objects: parallel readers drift apart."""
    # Each read asks this several times. Calls of `min` and `max` were a tenth of an event (cProfile).
    if count >= 32 * _DRIFT:
        return count // 32
    return _DRIFT if count >= 8 * _DRIFT else count // 8 or 1


# The weight of the newest read in `drift`, an exponentially weighted mean.
_NEWEST = 1 / 16


class Frontier:
    """`place` is the median of the places of the last reads, moved on by the reads since it. 0: they show nothing.
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
        reads, spread = len(self._recent), max(self._recent, default=0) - min(self._recent, default=0)
        if (reads < IN_ROW or spread >= reads) and (2 * reads < RECENT or spread > 2 * tolerance(count)):
            # They are few, or were not read in this order (such as the padding of the last epoch): they do not show
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


class ReadingPace:
    """`gap_s` is the mean time between two reads, `pause_s` the longest pause of late; 0: no read shows it."""

    def __init__(self) -> None:
        self.gap_s = self.pause_s = 0.0
        self._gaps = 0
        # The times of the first reads of the epoch.
        self._times = array("d")

    def copy(self) -> ReadingPace:
        """For another epoch of the same job."""
        other = ReadingPace()
        other.gap_s, other.pause_s, other._gaps = self.gap_s, self.pause_s, self._gaps
        return other

    def read(self, gap_s: float, now: float) -> None:
        """An object was opened `gap_s` after the one before it."""
        if len(self._times) < FIRST_READS:
            self._times.append(now)
        self._gaps += 1
        self.gap_s += (gap_s - self.gap_s) * (1.0 if self._gaps <= 2 else 0.1)
        kept_s = self.pause_s * _PAUSE_KEPT
        self.pause_s = gap_s if gap_s > kept_s else kept_s

    def begin_epoch(self) -> None:
        self._times = array("d")

    def first_reads(self, log: Sequence[int]) -> list[int]:
        """The first reads of the epoch by their times. The log may have them in another order: a hit that needs no
        other task is known later than a miss that was requested at the same time."""
        return [index for _, index in sorted(zip(self._times, log, strict=False), key=itemgetter(0))]


class LateReads:
    """Objects that the epoch before had left when this one began, which may have been read meanwhile."""

    def __init__(self) -> None:
        self._left: set[int] = set()

    def begin(self, agenda: Sequence[int], done: Sequence[int]) -> None:
        """An epoch begins. `agenda` is that of the epoch before, where it is certain; `done` as in `JobEpoch`."""
        self._left = {index for index in agenda[-_LAST_MAX:] if done[index] < 0}

    def take(self, index: int, reads: int, *, is_near: bool) -> bool:
        """Whether a read of this object, after `reads` others, belongs to the epoch before. `is_near`: this epoch's
        known order has it about now."""
        if index not in self._left or reads > _FIRST_MAX or is_near:
            return False
        self._left.discard(index)
        return True


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
