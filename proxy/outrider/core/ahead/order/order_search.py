"""The seed search: finds epochs whose order is drawn by a seed, and the workers that read an order beside each other.

A search is a generator whose steps take about 0.1 ms, so that it never holds up the event loop. The draws themselves
are worked out in `torch_sampler`, `webdataset_shuffle` and `webdataset_search`.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Generator, Sequence
from itertools import pairwise
from typing import Protocol

from outrider.core.ahead.object_names import Names
from outrider.core.ahead.order import webdataset_search, webdataset_shuffle
from outrider.core.ahead.order.epoch import JobEpoch
from outrider.core.ahead.order.epoch_handle import EpochHandle
from outrider.core.ahead.order.saved_order import blanks
from outrider.core.ahead.order.seed_state import SEARCH_FIRST, SEARCH_KNOWN, SHUFFLE_SEEDS_MAX, DrawnOrder, Seeded
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

# An epoch is searched again after so many times the reads. The factor is smaller once there are many reads, which may
# prove a rank's share: the more is read, the less of an order's beginning can be seen.
_SEARCH_LATER, _SEARCH_SOONER, _MANY = 3, 2, 48
# Failed searches of one job, after which its order is taken for chance.
_FAILED_MAX = 12
# Epochs that are searched at the same time.
_SEARCHES_MAX = 64
# Reads after which the beginning of an order is not looked at any more, and how far into the order batches are looked
# for.
_READS_MAX, _PLACES_MAX = 1296, 65_536
# Ranks or workers that read one object each in turn are on average no more places apart than this.
_AS_READ = 2
# Readers of names one after the other overtake each other by up to so many places.
_OVERTAKEN = 8
# A worker's pace must change by more than this before its turns are dealt anew.
_CHANGED = 0.05
# After so many reads of each worker that was seen, all workers of this node have been seen.
_SETTLED = 3
# Small steps of work that are done without a pause.
_AT_ONCE = 1024


class SearchedDataset(Protocol):
    """A dataset as far as a search needs it. A Protocol, as datasets stand above orders."""

    to_search: list[JobEpoch]
    names: Names

    def epoch_of(self, handle: EpochHandle) -> JobEpoch | None:
        """The epoch of `handle`; None: it has ended, or was given up."""
        ...

    def rerank_in_steps(self) -> Generator[None, None, None]:
        """Ranks the cached objects anew, since more is known of the next reads of an epoch. Yields after every few."""
        ...


class OrderSearch:
    """The queue of all searches. Called from one thread."""

    def __init__(self) -> None:
        self._seeds = Seeds()
        self._searches: deque[_EpochSearch] = deque()

    def begin(self, dataset: SearchedDataset) -> None:
        """Queues the epochs of `dataset` whose reads may show more."""
        for epoch in dataset.to_search:
            seed_state, reads = epoch.seed_state, max(1, len(epoch.log))
            seed_state.search_at = (_SEARCH_LATER if reads < _MANY else _SEARCH_SOONER) * reads
            if any(search.epoch is epoch and search.is_among_all_seeds for search in self._searches):
                continue
            # A search that was begun with fewer reads, or before all names were known, is of no use any more.
            self._searches = deque(search for search in self._searches if search.epoch is not epoch)
            if len(self._searches) < _SEARCHES_MAX and seed_state.failed_searches < _FAILED_MAX:
                self._searches.append(_EpochSearch(dataset, epoch, self._seeds))
        dataset.to_search.clear()

    def step(self) -> bool:
        """Search on for about 0.1 ms. Returns whether there is more to search."""
        if not self._searches:
            return False
        search = self._searches.popleft()
        if next(search.steps, self) is not self:
            self._searches.append(search)
        return bool(self._searches)


class _EpochSearch:
    """One search for one epoch. Depending on what is known of the epoch, it looks for the seed of its order, works out
    the order of the next epoch, finds the buffer of WebDataset's workers, or finds how many workers read an order that
    was announced or drawn. `steps` does the work.
    """

    def __init__(self, dataset: SearchedDataset, epoch: JobEpoch, seeds: Seeds) -> None:
        self.epoch = epoch
        # The search tries a million seeds, which takes so long that it is not begun anew with more reads.
        self.is_among_all_seeds = False
        self._dataset = dataset
        self._seeds = seeds
        self._names = dataset.names
        seed_state = self._seed_state = epoch.seed_state
        self._count = seed_state.drawn_from or len(dataset.names.listed)
        self._known = epoch.announced, seed_state.draw, epoch.handle
        if seed_state.draw is None and not epoch.announced:
            steps = self._find_seed()
        elif seed_state.successor >= 0 and seed_state.upcoming is None and not epoch.announced:
            steps = self._draw_next_epoch()
        elif isinstance(seed_state.draw, Shuffle) and not epoch.announced:
            steps = self._find_buffer(seed_state.draw)
        else:
            steps = self._find_batches()
        self.steps = steps

    @property
    def _holds(self) -> bool:
        """The epoch is still the one that the search began with. Since then it may have ended, its order may have been
        announced, or the dataset may have been forgotten."""
        epoch = self.epoch
        return (epoch.announced, epoch.seed_state.draw, epoch.handle) == self._known and self._is_there

    @property
    def _is_there(self) -> bool:
        return self._dataset.names is self._names and self._dataset.epoch_of(self.epoch.handle) is self.epoch

    def _find_seed(self) -> Generator[None, None, None]:
        # The numbers that a seed draws stand for the sorted names, in nearly all scripts.
        draw = (yield from self._draw()) if (yield from _is_sorted(self._names)) else None
        if draw is not None:
            yield from self._set_draw(draw)
        if isinstance(draw, Shuffle) and not self._holds:
            self._found_late(draw)

    def _found_late(self, shuffle: Shuffle) -> None:
        """The epoch of the found seeds is over, but they give the seeds of the epoch that reads now. If both have the
        same seeds, the order is known in any case."""
        epoch, seed_state, (_, _, before) = self.epoch, self._seed_state, self._known
        epochs = epoch.handle.number - before.number
        is_open = not epoch.announced and seed_state.draw is None and not epoch.order_known
        if epochs > 0 and is_open and self._is_there:
            seed_state.last_draw = webdataset_shuffle.later(shuffle, epochs - 1)
            seed_state.successor, seed_state.drawn_from = -1, self._count
            seed_state.search_at = len(epoch.log) + 1

    def _set_draw(self, draw: Seeded) -> Generator[None, None, None]:
        epoch, seed_state = self.epoch, self._seed_state
        if self._count > len(self._names.listed):
            # Fewer names are listed by now.
            return
        agenda = yield from self._agenda(draw)
        batch, workers = epoch.batch, epoch.workers
        if isinstance(draw, Shuffle):
            # WebDataset's workers read one object each in turn.
            batch, workers = 1, len(draw.seeds)
        elif seed_state.last_draw is None:
            batches = batches_of((yield from self._places_read(agenda)))
            if batches is None:
                seed_state.search_at = _soon(epoch)
                return
            batch, workers = batches
        drawn = yield from self._drawn(draw, agenda, batch, workers)
        if self._holds:
            epoch.set_draw(drawn)
            epoch.batch, epoch.workers, seed_state.drawn_from = batch, workers, self._count
            yield from self._dataset.rerank_in_steps()

    def _draw(self) -> Generator[None, None, Seeded | None]:
        """None: the draw is not known, or not yet."""
        epoch, seed_state, names, count = self.epoch, self._seed_state, self._names, self._count
        reads = [rank for index in epoch.log[:_READS_MAX] if (rank := names.place_of(index)) >= 0]
        if seed_state.last_draw is not None:
            likely = _next_of(seed_state.last_draw, count)
            if seed_state.successor >= 0 and len(reads) < SEARCH_KNOWN:
                return likely[seed_state.successor]
            draw = yield from self._following(likely, reads)
            if isinstance(draw, Shuffle) and draw == seed_state.last_draw:
                # The order is the same as in the last epoch. The reads of that one also show how fast each worker is.
                seed_state.last_draw, seed_state.successor = None, -1
                return None
            if draw is not None:
                seed_state.successor = likely.index(draw)
                return draw
        if epoch.number > 0 and epoch.order_known:
            return None
        if seed_state.unbatched is not None:
            # The draw is proven already. A new search might not see its beginning: the more reads there are, the more
            # of them are there by chance.
            return as_read(seed_state.unbatched, reads, count)
        return (yield from self._first_draw(reads))

    def _first_draw(self, reads: Sequence[int]) -> Generator[None, None, Seeded | None]:
        """As `_draw`, of an epoch after one without a draw."""
        epoch, seed_state = self.epoch, self._seed_state
        count = self._count = len(self._names.listed)
        if _are_by_name(reads, count):
            return None
        shuffle = yield from self._find_shuffle()
        if shuffle is None and not is_enough(len(epoch.log), count):
            return None
        seed_state.last_draw, seed_state.successor = None, -1
        if shuffle is not None:
            return shuffle
        draw = yield from self._seeds.found(reads, count)
        seed_state.failed_searches = 0 if draw is not None else seed_state.failed_searches + 1
        if draw is not None and self._holds:
            seed_state.unbatched, seed_state.drawn_from = draw, count
        return draw

    def _following(self, likely: Sequence[Seeded], reads: Sequence[int]) -> Generator[None, None, Seeded | None]:
        """Which of the draws that may follow the last epoch's this epoch has. None: none of them, or not yet clear."""
        epoch, count = self.epoch, self._count
        shuffles = [draw for draw in likely if isinstance(draw, Shuffle)]
        if shuffles:
            return (yield from webdataset_shuffle.next_of(shuffles, self._first_reads, count))
        draws = [draw for draw in likely if isinstance(draw, Draw)]
        return (yield from following(draws, reads, count, epoch.batch, epoch.workers))

    def _find_shuffle(self) -> Generator[None, None, Shuffle | None]:
        epoch, seed_state, reads = self.epoch, self._seed_state, self._first_reads
        tried = seed_state.seeds_tried
        if not SEARCH_FIRST <= len(reads) < self._count or sum(tried.values()) >= SHUFFLE_SEEDS_MAX:
            return None
        workers = yield from webdataset_search.workers_of(reads, self._count)
        yield from self._drop_unseen_workers(workers, reads)
        self.is_among_all_seeds = True
        result = yield from webdataset_search.found(reads, self._count, workers, seed_state.seeds_tried.get(workers, 0))
        self.is_among_all_seeds = False
        seed_state.seeds_tried[workers] = result.tried
        if result.search_at:
            seed_state.search_at = min(seed_state.search_at, max(result.search_at, len(epoch.log) + 1))
        return result.shuffle

    def _drop_unseen_workers(self, workers: int, reads: Sequence[int]) -> Generator[None, None, None]:
        """Workers that have not read by now are on other nodes: expect none of their objects."""
        epoch, seen = self.epoch, {read % workers for read in reads}
        if epoch.number > 0 or len(seen) == workers or len(reads) < _SETTLED * len(seen):
            # The agenda of a later epoch is the log of the one before it, which is better.
            return
        agenda = array("i")
        for rank, index in enumerate(self._names.listed):
            if rank % workers in seen:
                agenda.append(index)
            if rank % _AT_ONCE == 0:
                yield
        place = yield from _places(agenda, len(self._names.keys))
        if self._holds:
            epoch.reorder(agenda, place)
            epoch.is_dealt = True
            yield from self._dataset.rerank_in_steps()

    def _find_buffer(self, shuffle: Shuffle) -> Generator[None, None, None]:
        """Better facts about a shuffle whose seeds are known: its buffer, workers that began late, their paces."""
        epoch, seed_state = self.epoch, self._seed_state
        seed_state.search_at = _soon(epoch)
        reads = yield from self._reads()
        better = yield from webdataset_shuffle.as_read(shuffle, reads, self._count)
        paces = webdataset_shuffle.paces_of(better, (yield from webdataset_shuffle.read_of(better, reads)))
        changed = any(abs(pace - seed_state.paces.get(first, 1.0)) > _CHANGED for first, pace in paces.items())
        if better != shuffle or changed:
            yield from self._set_draw(better)

    @property
    def _first_reads(self) -> list[int]:
        """The ranks of the first reads."""
        return [
            rank for index in self.epoch.pace.first_reads(self.epoch.log) if (rank := self._names.place_of(index)) >= 0
        ]

    def _reads(self) -> Generator[None, None, list[int]]:
        """The ranks of all reads."""
        reads = []
        for number, index in enumerate(self.epoch.log):
            if (rank := self._names.place_of(index)) >= 0:
                reads.append(rank)
            if number % _AT_ONCE == 0:
                yield
        return reads

    def _draw_next_epoch(self) -> Generator[None, None, None]:
        epoch, seed_state = self.epoch, self._seed_state
        assert seed_state.draw is not None
        if self._count > len(self._names.listed):
            return
        draw = _next_of(seed_state.draw, self._count)[seed_state.successor]
        agenda = yield from self._agenda(draw, later=True)
        upcoming = yield from self._drawn(draw, agenda, epoch.batch, epoch.workers)
        seed_state.search_at = _soon(epoch)
        if self._holds and seed_state.successor >= 0:
            seed_state.upcoming = upcoming
            yield from self._dataset.rerank_in_steps()

    def _find_batches(self) -> Generator[None, None, None]:
        """How many workers read an announced or drawn order beside each other, and in which batches."""
        epoch, changes = self.epoch, self.epoch.changes
        before = epoch.batch, epoch.workers
        order = yield from out_of_batches(epoch.agenda[:], *before)
        places = yield from self._places_read(order)
        batches = batches_of(places)
        epoch.seed_state.search_at = _soon(epoch)
        if batches is None or batches == before or _is_as_read(places, *before):
            return
        agenda = yield from in_batches(order, *batches)
        place = yield from _places(agenda, len(self._names.keys))
        if not self._holds or epoch.changes != changes:
            epoch.seed_state.search_at = len(epoch.log)
            return
        epoch.read_in_batches(agenda, place, *batches)
        yield from self._dataset.rerank_in_steps()

    def _places_read(self, order: array[int]) -> Generator[None, None, list[int]]:
        """The places of the epoch's first reads in this order."""
        place: dict[int, int] = {}
        for begin in range(0, min(len(order), _PLACES_MAX), _AT_ONCE):
            place.update(zip(order[begin : begin + _AT_ONCE], range(begin, begin + _AT_ONCE), strict=False))
            yield
        return [place[index] for index in self.epoch.pace.first_reads(self.epoch.log) if index in place]

    def _agenda(self, draw: Seeded, *, later: bool = False) -> Generator[None, None, array[int]]:
        """The objects in drawn order. `later`: for an epoch that has not begun."""
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
        """The ranks as workers read them that are as fast as they were in this epoch. `later`: from the beginning of
        an epoch; otherwise from the reads so far."""
        read = yield from webdataset_shuffle.read_of(shuffle, (yield from self._reads()))
        paces = self._seed_state.paces = webdataset_shuffle.paces_of(shuffle, read)
        return (yield from webdataset_shuffle.order_of(shuffle, self._count, paces, {} if later else read))

    def _drawn(self, draw: Seeded, agenda: array[int], batch: int, workers: int) -> Generator[None, None, DrawnOrder]:
        agenda = yield from in_batches(agenda, batch, workers)
        return DrawnOrder(draw, agenda, (yield from _places(agenda, len(self._names.keys))))


def _are_by_name(reads: Sequence[int], count: int) -> bool:
    """Whether so many of `count` ranks follow each other as no drawn order does, whichever reader is a little ahead."""
    highest, gap = -1, min(_OVERTAKEN, count // SEARCH_FIRST)
    for rank in reads:
        if rank < highest - gap:
            return False
        highest = max(highest, rank)
    return True


def _is_as_read(places: Sequence[int], batch: int, workers: int) -> bool:
    """The known number of workers explains the reads: a worker that was held up since may look like two workers."""
    apart = sum(abs(turn_of(place, batch, workers) - number) for number, place in enumerate(places))
    return apart <= _AS_READ * len(places)


def _next_of(draw: Seeded, count: int) -> Sequence[Seeded]:
    return webdataset_shuffle.next_shuffles(draw) if isinstance(draw, Shuffle) else next_draws(draw, count)


def _soon(epoch: JobEpoch) -> int:
    """The number of reads at which an epoch is searched again: workers are not always so far apart that their batches
    can be seen."""
    reads = len(epoch.log)
    return reads + max(SEARCH_FIRST, reads // 4) if reads <= _READS_MAX else _SEARCH_LATER * reads


def _places(agenda: array[int], index_count: int) -> Generator[None, None, array[int]]:
    place = blanks(index_count)
    for number, index in enumerate(agenda):
        place[index] = number
        if number % _AT_ONCE == 0:
            yield
    return place


def _is_sorted(names: Names) -> Generator[None, None, bool]:
    for number, (index, after) in enumerate(pairwise(names.listed)):
        if names.keys[index] > names.keys[after]:
            return False
        if number % _AT_ONCE == 0:
            yield
    return True
