"""Which passes read in an order that was drawn by a seed, by a sampler (see `samplers`) or by WebDataset's workers (see
`shardshuffle`): thought over a little at a time."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Generator, Sequence
from itertools import pairwise

from outrider.core.ahead.dataset.dataset import Dataset
from outrider.core.ahead.dataset.names import Names
from outrider.core.ahead.order import webdataset_shuffle
from outrider.core.ahead.order.epoch import LOOK_AGAIN, LOOK_FIRST, SHUFFLE_SEEDS_MAX, DrawnOrder, Epoch, Seeded, blanks
from outrider.core.ahead.order.torch_sampler import (
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
    turn_of,
)
from outrider.core.ahead.order.webdataset_shuffle import Shuffle

# It is looked again after so many times the reads; sooner once there are many, which may prove a rank's share: the more
# is read, the less of an order's beginning is to be seen.
_LOOK_LATER, _LOOK_SOONER, _MANY = 3, 2, 48
# Looks in vain at what one job reads, after which its order is taken for chance.
_IN_VAIN_MAX = 12
# Passes that are thought of at a time.
_THOUGHTS_MAX = 64
# Reads after which no beginning is looked at any more, and how far in the order batches are looked for.
_READS_MAX, _PLACES_MAX = 1296, 65_536
# Ranks, or workers, that read in turn are no farther apart than that, on average.
_AS_READ = 2
# What a worker's pace has changed by before its turns are dealt anew.
_CHANGED = 0.05
# Reads of each worker by which all that there are have begun.
_SETTLED = 3
# Small steps of work that are done at once.
_AT_ONCE = 1024


class OrderSearch:
    """Called from one thread."""

    def __init__(self) -> None:
        self._seeds = Seeds()
        self._thoughts: deque[_Thought] = deque()

    def begin(self, dataset: Dataset) -> None:
        """There are passes whose reads may tell more."""
        for one in dataset.puzzles:
            reads = max(1, len(one.log))
            one.look_at = (_LOOK_LATER if reads < _MANY else _LOOK_SOONER) * reads
            if any(thought.one is one and thought.is_searching for thought in self._thoughts):
                continue
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
    """By which seed the order of a pass is drawn, and the next one's will be; of what was told or drawn, how many read
    it beside each other. `steps` is all that there is to think."""

    def __init__(self, dataset: Dataset, one: Epoch, seeds: Seeds) -> None:
        self.one = one
        # Among a million seeds.
        self.is_searching = False
        self._dataset = dataset
        self._seeds = seeds
        self._names = dataset.names
        self._count = one.drawn_of or len(dataset.names.listed)
        self._known = one.told, one.draw, one.round
        if one.draw is None and not one.told:
            steps = self._seed()
        elif one.way >= 0 and one.upcoming is None and not one.told:
            steps = self._next_pass()
        elif isinstance(one.draw, Shuffle) and not one.told:
            steps = self._buffer(one.draw)
        else:
            steps = self._batches()
        self.steps = steps

    @property
    def _holds(self) -> bool:
        """Meanwhile its epoch may have ended, or what it reads was told, or the set was forgotten."""
        one = self.one
        return (one.told, one.draw, one.round) == self._known and self._is_there

    @property
    def _is_there(self) -> bool:
        return self._dataset.names is self._names and self._dataset.epoch_of(self.one.round) is self.one

    def _seed(self) -> Generator[None, None, None]:
        # What drawn numbers stand for is the order of the names, most often.
        draw = (yield from self._draw()) if (yield from _is_sorted(self._names)) else None
        if draw is not None:
            yield from self._drawn_by(draw)
        if isinstance(draw, Shuffle) and not self._holds:
            self._found_late(draw)

    def _found_late(self, shuffle: Shuffle) -> None:
        """Its epoch is over: it tells the seeds of this one. If they are the same, the order is known anyhow."""
        one, (_, _, before) = self.one, self._known
        epochs = one.round.number - before.number
        if epochs > 0 and not one.told and one.draw is None and not one.order_known and self._is_there:
            one.last_draw, one.way, one.drawn_of = webdataset_shuffle.later(shuffle, epochs - 1), -1, self._count
            one.look_at = len(one.log) + 1

    def _drawn_by(self, draw: Seeded) -> Generator[None, None, None]:
        one = self.one
        if self._count > len(self._names.listed):
            # There are fewer by now.
            return
        agenda = yield from self._agenda(draw)
        batch, workers = one.batch, one.workers
        if isinstance(draw, Shuffle):
            # They have turns of one.
            batch, workers = 1, len(draw.seeds)
        elif one.last_draw is None:
            batches = batches_of((yield from self._places_read(agenda)))
            if batches is None:
                one.look_at = _soon(one)
                return
            batch, workers = batches
        drawn = yield from self._drawn(draw, agenda, batch, workers)
        if self._holds:
            one.drawn(drawn)
            one.batch, one.workers, one.drawn_of = batch, workers, self._count
            yield from self._dataset.rerank_in_steps()

    def _draw(self) -> Generator[None, None, Seeded | None]:
        """None: it is not known, or not yet."""
        one, names, count = self.one, self._names, self._count
        reads = [rank for key in one.log[:_READS_MAX] if (rank := names.rank_of(key)) >= 0]
        if one.last_draw is not None:
            likely = _next_of(one.last_draw, count)
            if one.way >= 0 and len(reads) < LOOK_AGAIN:
                return likely[one.way]
            draw = yield from self._following(likely, reads)
            if isinstance(draw, Shuffle) and draw == one.last_draw:
                # The same order again, and the last epoch's reads tell more of it: who is faster than the others.
                one.last_draw, one.way = None, -1
                return None
            if draw is not None:
                one.way = likely.index(draw)
                return draw
        if one.number > 0 and one.order_known:
            return None
        if one.found is not None:
            # By now its beginning may be hard to see: among more reads there are more that chance would have brought.
            return as_read(one.found, reads, count)
        count = self._count = len(names.listed)
        shuffle = yield from self._shuffle()
        if shuffle is None and not is_enough(len(one.log), count):
            return None
        one.last_draw, one.way = None, -1
        if shuffle is not None:
            return shuffle
        draw = yield from self._seeds.found(reads, count)
        one.looks_in_vain = 0 if draw is not None else one.looks_in_vain + 1
        if draw is not None and self._holds:
            one.found, one.drawn_of = draw, count
        return draw

    def _following(self, likely: Sequence[Seeded], reads: Sequence[int]) -> Generator[None, None, Seeded | None]:
        one, count = self.one, self._count
        shuffles = [draw for draw in likely if isinstance(draw, Shuffle)]
        if shuffles:
            return (yield from webdataset_shuffle.next_of(shuffles, self._first_reads, count))
        draws = [draw for draw in likely if isinstance(draw, Draw)]
        return (yield from following(draws, reads, count, one.batch, one.workers))

    def _shuffle(self) -> Generator[None, None, Shuffle | None]:
        one, reads = self.one, self._first_reads
        if not LOOK_FIRST <= len(reads) < self._count or sum(one.shuffles_tried.values()) >= SHUFFLE_SEEDS_MAX:
            return None
        workers = yield from webdataset_shuffle.workers_of(reads, self._count)
        yield from self._leave_others(workers, reads)
        # More reads would tell no more, and to begin anew with them would take too long.
        self.is_searching = True
        found = yield from webdataset_shuffle.found(reads, self._count, workers, one.shuffles_tried.get(workers, 0))
        self.is_searching = False
        one.shuffles_tried[workers] = found.tried
        if found.look_at:
            one.look_at = min(one.look_at, max(found.look_at, len(one.log) + 1))
        return found.shuffle

    def _leave_others(self, workers: int, reads: Sequence[int]) -> Generator[None, None, None]:
        """Of so many workers, those that have not read by now are on other nodes."""
        one, seen = self.one, {read % workers for read in reads}
        if one.number > 0 or len(seen) == workers or len(reads) < _SETTLED * len(seen):
            # Of a later epoch more is known, by the one before.
            return
        agenda = array("i")
        for rank, key in enumerate(self._names.listed):
            if rank % workers in seen:
                agenda.append(key)
            if rank % _AT_ONCE == 0:
                yield
        place = yield from _places(agenda, len(self._names.keys))
        if self._holds:
            one.follow(agenda, place)
            one.is_dealt = True
            yield from self._dataset.rerank_in_steps()

    def _buffer(self, shuffle: Shuffle) -> Generator[None, None, None]:
        one = self.one
        one.look_at = _soon(one)
        reads = yield from self._reads()
        better = yield from webdataset_shuffle.as_read(shuffle, reads, self._count)
        paces = webdataset_shuffle.paces_of(better, (yield from webdataset_shuffle.read_of(better, reads)))
        changed = any(abs(pace - one.paces.get(first, 1.0)) > _CHANGED for first, pace in paces.items())
        if better != shuffle or changed:
            yield from self._drawn_by(better)

    @property
    def _first_reads(self) -> list[int]:
        """Their numbers among the names."""
        return [rank for key in self.one.first_reads() if (rank := self._names.rank_of(key)) >= 0]

    def _reads(self) -> Generator[None, None, list[int]]:
        """All that was read, as numbers among the names."""
        reads = []
        for number, key in enumerate(self.one.log):
            if (rank := self._names.rank_of(key)) >= 0:
                reads.append(rank)
            if number % _AT_ONCE == 0:
                yield
        return reads

    def _next_pass(self) -> Generator[None, None, None]:
        one = self.one
        assert one.draw is not None
        if self._count > len(self._names.listed):
            return
        draw = _next_of(one.draw, self._count)[one.way]
        agenda = yield from self._agenda(draw, later=True)
        upcoming = yield from self._drawn(draw, agenda, one.batch, one.workers)
        one.look_at = _soon(one)
        if self._holds and one.way >= 0:
            one.upcoming = upcoming
            yield from self._dataset.rerank_in_steps()

    def _batches(self) -> Generator[None, None, None]:
        one, changes = self.one, self.one.changes
        before = one.batch, one.workers
        order = yield from out_of_batches(one.agenda[:], *before)
        places = yield from self._places_read(order)
        batches = batches_of(places)
        one.look_at = _soon(one)
        if batches is None or batches == before or _is_as_read(places, *before):
            return
        agenda = yield from in_batches(order, *batches)
        place = yield from _places(agenda, len(self._names.keys))
        if not self._holds or one.changes != changes:
            one.look_at = len(one.log)
            return
        one.read_in_batches(agenda, place, *batches)
        yield from self._dataset.rerank_in_steps()

    def _places_read(self, order: array[int]) -> Generator[None, None, list[int]]:
        """Where in this order its first reads stand."""
        place: dict[int, int] = {}
        for begin in range(0, min(len(order), _PLACES_MAX), _AT_ONCE):
            place.update(zip(order[begin : begin + _AT_ONCE], range(begin, begin + _AT_ONCE), strict=False))
            yield
        return [place[key] for key in self.one.first_reads() if key in place]

    def _agenda(self, draw: Seeded, *, later: bool = False) -> Generator[None, None, array[int]]:
        """The keys that it draws, in its order. `later`: for an epoch that has not begun."""
        listed = self._names.listed
        if isinstance(draw, Shuffle):
            agenda = yield from self._order_of(draw, later=later)
        else:
            agenda = yield from order_of(draw, self._count)
        for number, rank in enumerate(agenda):
            agenda[number] = listed[rank]
            if number % _AT_ONCE == 0:
                yield
        return agenda

    def _order_of(self, shuffle: Shuffle, *, later: bool) -> Generator[None, None, array[int]]:
        """As its workers read it that are as fast as they were; `later`: from its beginning on."""
        read = yield from webdataset_shuffle.read_of(shuffle, (yield from self._reads()))
        self.one.paces = webdataset_shuffle.paces_of(shuffle, read)
        return (yield from webdataset_shuffle.order_of(shuffle, self._count, self.one.paces, {} if later else read))

    def _drawn(self, draw: Seeded, agenda: array[int], batch: int, workers: int) -> Generator[None, None, DrawnOrder]:
        agenda = yield from in_batches(agenda, batch, workers)
        return DrawnOrder(draw, agenda, (yield from _places(agenda, len(self._names.keys))))


def _is_as_read(places: Sequence[int], batch: int, workers: int) -> bool:
    """So many workers have read it in just about this order: whoever was held up since may look like two."""
    apart = sum(abs(turn_of(place, batch, workers) - number) for number, place in enumerate(places))
    return apart <= _AS_READ * len(places)


def _next_of(draw: Seeded, count: int) -> Sequence[Seeded]:
    return webdataset_shuffle.next_shuffles(draw) if isinstance(draw, Shuffle) else next_draws(draw, count)


def _soon(one: Epoch) -> int:
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
