"""Which passes read in an order that a sampler has drawn (see `samplers`): thought over a little at a time."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Generator
from itertools import pairwise

from outrider.core.datasets import Names
from outrider.core.epochs import LOOK_AGAIN, LOOK_FIRST, Drawn, Pass, blanks
from outrider.core.kept import Dataset
from outrider.core.samplers import (
    Draw,
    Seeds,
    as_read,
    batches_of,
    following,
    in_batches,
    is_enough,
    next_draws,
    order_of,
    out_of_batches,
)

# It is looked again after so many times the reads; sooner once there are many, which may prove a rank's share: the more
# is read, the less of an order's beginning is to be seen.
_LOOK_LATER, _LOOK_SOONER, _MANY = 3, 2, 48
# Looks in vain at what one job reads, after which its order is taken for chance.
_IN_VAIN_MAX = 12
# Passes that are thought of at a time.
_THOUGHTS_MAX = 64
# Reads after which no beginning is looked at any more, and how far in the order batches are looked for.
_READS_MAX, _PLACES_MAX = 1296, 65_536
# Small steps of work that are done at once.
_AT_ONCE = 1024


class Foresight:
    """Called from one thread."""

    def __init__(self) -> None:
        self._seeds = Seeds()
        self._thoughts: deque[_Thought] = deque()

    def begin(self, dataset: Dataset) -> None:
        """There are passes whose reads may tell more."""
        for one in dataset.puzzles:
            reads = max(1, len(one.log))
            one.look_at = (_LOOK_LATER if reads < _MANY else _LOOK_SOONER) * reads
            # What was begun with fewer reads, or before all names were known, has become idle.
            self._thoughts = deque(thought for thought in self._thoughts if thought.one is not one)
            if len(self._thoughts) < _THOUGHTS_MAX and one.looks_in_vain < _IN_VAIN_MAX:
                self._thoughts.append(_Thought(dataset, one, self._seeds))
        dataset.puzzles.clear()

    def think(self) -> bool:
        """For about 0.1 ms; whether there is more to think of."""
        if not self._thoughts:
            return False
        thought = self._thoughts.popleft()
        if next(thought.steps, self) is not self:
            self._thoughts.append(thought)
        return bool(self._thoughts)


class _Thought:
    """By which sampler a pass is read, and the next one will be; of what was told or drawn, how many read it beside
    each other. `steps` is all that there is to think."""

    def __init__(self, dataset: Dataset, one: Pass, seeds: Seeds) -> None:
        self.one = one
        self._dataset = dataset
        self._seeds = seeds
        self._names = dataset.names
        self._count = one.drawn_of or len(dataset.names.listed)
        self._known = one.told, one.draw, one.round
        if one.draw is None and not one.told:
            steps = self._sampler()
        elif one.way >= 0 and one.upcoming is None and not one.told:
            steps = self._next_pass()
        else:
            steps = self._batches()
        self.steps = steps

    @property
    def _holds(self) -> bool:
        """Meanwhile its epoch may have ended, or what it reads was told, or the set was forgotten."""
        one, dataset = self.one, self._dataset
        if (one.told, one.draw, one.round) != self._known or dataset.names is not self._names:
            return False
        return dataset.pass_in(one.round) is one

    def _sampler(self) -> Generator[None, None, None]:
        one = self.one
        if is_enough(len(one.log), self._count) or one.last_draw is not None or one.found is not None:
            # What a sampler's numbers stand for is the order of the names, most often.
            draw = (yield from self._draw()) if (yield from _is_sorted(self._names)) else None
            if draw is not None:
                yield from self._drawn_by(draw)

    def _drawn_by(self, draw: Draw) -> Generator[None, None, None]:
        one = self.one
        agenda = yield from self._agenda(draw)
        batch, workers = one.batch, one.workers
        if one.last_draw is None:
            batches = yield from self._batches_in(agenda)
            if batches is None:
                one.look_at = _soon(one)
                return
            batch, workers = batches
        drawn = yield from self._drawn(draw, agenda, batch, workers)
        if self._holds:
            one.drawn(drawn)
            one.batch, one.workers, one.drawn_of = batch, workers, self._count
            yield from self._dataset.think_anew()

    def _draw(self) -> Generator[None, None, Draw | None]:
        """None: it is not known, or not yet."""
        one, names, count = self.one, self._names, self._count
        reads = [rank for key in one.log[:_READS_MAX] if (rank := names.rank_of(key)) >= 0]
        if one.last_draw is not None:
            likely = next_draws(one.last_draw, count)
            if one.way >= 0 and len(reads) < LOOK_AGAIN:
                return likely[one.way]
            draw = yield from following(likely, reads, count, one.batch, one.workers)
            if draw is not None:
                one.way = likely.index(draw)
                return draw
        if one.found is not None:
            # By now its beginning may be hard to see: among more reads there are more that chance would have brought.
            return as_read(one.found, reads, count)
        count = self._count = len(names.listed)
        if not is_enough(len(one.log), count):
            return None
        one.last_draw, one.way = None, -1
        draw = yield from self._seeds.found(reads, count)
        one.looks_in_vain = 0 if draw is not None else one.looks_in_vain + 1
        if draw is not None and self._holds:
            one.found, one.drawn_of = draw, count
        return draw

    def _next_pass(self) -> Generator[None, None, None]:
        one = self.one
        assert one.draw is not None
        draw = next_draws(one.draw, self._count)[one.way]
        agenda = yield from self._agenda(draw)
        upcoming = yield from self._drawn(draw, agenda, one.batch, one.workers)
        one.look_at = _soon(one)
        if self._holds and one.way >= 0:
            one.upcoming = upcoming
            yield from self._dataset.think_anew()

    def _batches(self) -> Generator[None, None, None]:
        one, changes = self.one, self.one.changes
        before = one.batch, one.workers
        order = yield from out_of_batches(one.agenda[:], *before)
        batches = yield from self._batches_in(order)
        one.look_at = _soon(one)
        if batches is None or batches == before:
            return
        agenda = yield from in_batches(order, *batches)
        place = yield from _places(agenda, len(self._names.keys))
        if not self._holds or one.changes != changes:
            one.look_at = len(one.log)
            return
        one.read_in_batches(agenda, place, *batches)
        yield from self._dataset.think_anew()

    def _batches_in(self, order: array[int]) -> Generator[None, None, tuple[int, int] | None]:
        """Of those who read this order beside each other."""
        place: dict[int, int] = {}
        for begin in range(0, min(len(order), _PLACES_MAX), _AT_ONCE):
            place.update(zip(order[begin : begin + _AT_ONCE], range(begin, begin + _AT_ONCE), strict=False))
            yield
        return batches_of([place[key] for key in self.one.first_reads() if key in place])

    def _agenda(self, draw: Draw) -> Generator[None, None, array[int]]:
        """The keys that it draws, in its order."""
        listed = self._names.listed
        agenda = yield from order_of(draw, self._count)
        for number, rank in enumerate(agenda):
            agenda[number] = listed[rank]
            if number % _AT_ONCE == 0:
                yield
        return agenda

    def _drawn(self, draw: Draw, agenda: array[int], batch: int, workers: int) -> Generator[None, None, Drawn]:
        agenda = yield from in_batches(agenda, batch, workers)
        return Drawn(draw, agenda, (yield from _places(agenda, len(self._names.keys))))


def _soon(one: Pass) -> int:
    """Workers are not always so far apart that their batches are seen."""
    reads = len(one.log)
    return reads + max(LOOK_FIRST, reads // 4) if reads <= _READS_MAX else _LOOK_LATER * reads


def _places(agenda: array[int], key_count: int) -> Generator[None, None, array[int]]:
    place = blanks(key_count)
    for number, key in enumerate(agenda):
        place[key] = number
        if number % _AT_ONCE == 0:
            yield
    return place


def _is_sorted(names: Names) -> Generator[None, None, bool]:
    for number, (rank, after) in enumerate(pairwise(names.listed)):
        if names.keys[rank] > names.keys[after]:
            return False
        if number % _AT_ONCE == 0:
            yield
    return True
