"""Which passes read in an order that a sampler has drawn (see `samplers`): thought over a little at a time."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Generator
from itertools import pairwise
from typing import NamedTuple

from outrider.core.datasets import Names
from outrider.core.epochs import LOOK_AGAIN, LOOK_FIRST, Pass, blanks
from outrider.core.kept import Dataset
from outrider.core.samplers import Draw, Seeds, batches_of, following, in_batches, is_enough, next_draws, order_of

# It is looked again after so many times the reads.
_LOOK_LATER = 3
# Looks in vain at what one job reads, after which its order is taken for chance.
_IN_VAIN_MAX = 12
# Passes that are thought of at a time.
_THOUGHTS_MAX = 64
# Reads after which no beginning is looked at any more.
_READS_MAX = 1296
# Small steps of work that are done at once.
_AT_ONCE = 1024


class _Found(NamedTuple):
    """`draw` None: the agenda has another order, and is no other."""

    draw: Draw | None
    agenda: array[int]
    place: array[int]
    batch: int
    workers: int


class Foresight:
    """Called from one thread."""

    def __init__(self) -> None:
        self._seeds = Seeds()
        self._thoughts: deque[tuple[Pass, Generator[None, None, None]]] = deque()

    def begin(self, dataset: Dataset) -> None:
        """There are passes whose reads may tell more."""
        for one in dataset.puzzles:
            one.look_at = _LOOK_LATER * max(1, len(one.log))
            # What was begun with fewer reads, or before all names were known, has become idle.
            self._thoughts = deque(thought for thought in self._thoughts if thought[0] is not one)
            if len(self._thoughts) < _THOUGHTS_MAX and one.looks_in_vain < _IN_VAIN_MAX:
                self._thoughts.append((one, self._think_of(dataset, one)))
        dataset.puzzles.clear()

    def think(self) -> bool:
        """For about 0.1 ms; whether there is more to think of."""
        if not self._thoughts:
            return False
        one, thought = self._thoughts.popleft()
        if next(thought, self) is not self:
            self._thoughts.append((one, thought))
        return bool(self._thoughts)

    def _think_of(self, dataset: Dataset, one: Pass) -> Generator[None, None, None]:
        """By which sampler it is read; of what was told or drawn, how many read it beside each other."""
        names, epoch, known = dataset.names, one.round, (one.told, one.draw, len(one.agenda))
        if one.told or one.draw is not None:
            found = yield from self._agenda_in_batches(one, len(names.keys))
        else:
            found = yield from self._agenda_of_sampler(one, names)
        if found is None:
            return
        # Meanwhile its epoch may have ended, or what it reads was told, or the set was forgotten.
        if (
            (one.told, one.draw, len(one.agenda) if one.told else known[2]) != known
            or one.round is not epoch
            or dataset.names is not names
            or dataset.pass_in(epoch) is not one
        ):
            one.look_at = len(one.log)
            return
        if found.draw is not None:
            one.drawn(found.draw, found.agenda, found.place)
        else:
            one.follow(found.agenda, found.place)
        one.batch, one.workers = found.batch, found.workers
        one.grow(len(names.keys))
        yield from dataset.think_anew()

    def _agenda_in_batches(self, one: Pass, key_count: int) -> Generator[None, None, _Found | None]:
        batches = batches_of([one.place[key] for key in one.log[:_READS_MAX] if one.place[key] >= 0])
        if batches is None or batches == (1, 1):
            one.look_at = _soon(one)
            return None
        agenda = yield from in_batches(one.agenda[:], *batches)
        place = yield from _places(agenda, key_count)
        return _Found(None, agenda, place, *batches)

    def _agenda_of_sampler(self, one: Pass, names: Names) -> Generator[None, None, _Found | None]:
        # What a sampler's numbers stand for is the order of the names, most often.
        if not (yield from _is_sorted(names)):
            return None
        draw = yield from self._draw_of(one, names)
        if draw is None:
            return None
        agenda = yield from order_of(draw, len(names.listed))
        for number, rank in enumerate(agenda):
            agenda[number] = names.listed[rank]
            if number % _AT_ONCE == 0:
                yield
        place = yield from _places(agenda, len(names.keys))
        batch, workers = one.batch, one.workers
        if one.last_draw is None:
            batches = batches_of([place[key] for key in one.log[:_READS_MAX] if place[key] >= 0])
            if batches is None:
                one.look_at = _soon(one)
                return None
            batch, workers = batches
        if workers > 1:
            agenda = yield from in_batches(agenda, batch, workers)
            place = yield from _places(agenda, len(names.keys))
        return _Found(draw, agenda, place, batch, workers)

    def _draw_of(self, one: Pass, names: Names) -> Generator[None, None, Draw | None]:
        """None: it is not known, or not yet."""
        count = len(names.listed)
        reads = [rank for key in one.log if (rank := names.rank_of(key)) >= 0]
        if one.last_draw is not None:
            likely = next_draws(one.last_draw, count)
            if one.way >= 0 and len(reads) < LOOK_AGAIN:
                return likely[one.way]
            draw = yield from following(likely, reads, count, one.batch, one.workers)
            if draw is not None:
                one.way = likely.index(draw)
                return draw
        if len(reads) < LOOK_FIRST or not is_enough(len(reads), count):
            return None
        one.last_draw, one.way = None, -1
        draw = yield from self._seeds.found(reads, count)
        one.looks_in_vain = 0 if draw is not None else one.looks_in_vain + 1
        return draw


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
