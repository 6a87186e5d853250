"""Ranks the cached objects of one dataset by their expected next read, so that eviction finds the one needed last."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator, Iterable, Iterator, MutableMapping, Sequence
from heapq import heappop, heappush
from itertools import islice
from typing import Generic, Protocol, TypeVar

from outrider.core.ahead.dataset.job_table import JobTable
from outrider.core.ahead.order.epoch import JobEpoch
from outrider.core.rows import RowOrder

# A silent job may have ended: each second of silence moves the next read of its objects four seconds away.
_FADE = 4.0
# Silence within one second is usual and shows nothing; neither does silence within twice the longest pause seen.
_SILENCE_S, _PAUSES = 1.0, 2.0
# Objects ranked anew with each read. With one, a run of distributed ranks that draw a new order in each epoch, and pad
# it, had a hit ratio of .46 on a dataset of 200 objects, in place of .48.
_RERANKED = 2
# Objects ranked anew in one step of `rerank_in_steps`, before other work has its turn.
_RERANKED_A_STEP = 8
# Candidates for eviction of either kind that are compared where some jobs read in epochs and others at random.
_COMPARED = 16
# An object that was evicted in part goes before whole objects that are needed later by up to this part of an epoch.
# Otherwise each eviction takes blocks of those objects that can spare some at that moment, and many objects are kept in
# part: of 200 shards of two blocks, read in a new order by 8 readers, a cache of 25 % had 28 whole ones and 44 halves.
_BROKEN = 0.05
# A change of rank below a millionth of an epoch is no change.
_SAME_RANK = 1e-6
# Later than any time. Finite: ranks are compared by their difference, and that of two infinities is no number.
NEVER = 1e300


class Ranked(Protocol):
    """The attributes of a cached object that its ranking needs; see `CachedObject`."""

    index: int
    used_at: float
    rank: float
    aside: bool
    reading: bool
    broken: bool


T = TypeVar("T", bound=Ranked)


class NextUse(Generic[T]):
    """The cached objects of a dataset, ranked by their next read as `jobs` predict it.

    The rank of an object is the dataset's clock at its expected next read; the clock moves by 1.0 in each epoch of the
    jobs. So a rank stays true while its object waits for its turn, and a read changes one rank instead of all.

    Invariant: each object that is not `aside` stands once in the rank index, under its own `rank`, and once in
    `recent`. An object that is `aside` stands in neither. Only this class changes `objects`, `recent`, and the `rank`
    and `aside` of an object.

    A rank is stale when the jobs expect other reads than at the time when it was computed: after a read by another job,
    a LIST, a hint, or a found seed. `rerank_all` makes all ranks true at once, `rerank_some` a few with each read, and
    `rerank_in_steps` all with pauses. A stale rank makes eviction choose worse; it breaks nothing.

    It refers to the jobs, not to the dataset. So a dataset without cached objects is in no reference cycle, and is
    freed when it is forgotten; the collector does not look at objects again that it has frozen.
    """

    def __init__(self, jobs: JobTable, objects: MutableMapping[int, T]) -> None:
        """`objects` is empty, and changed by this class alone."""
        self._jobs = jobs
        self.objects = objects
        """The cached objects by index, those that are `aside` included."""
        self._ranked = RankIndex()
        self.recent = RowOrder()
        """The indexes of all objects that may be victims, by their last read, the oldest first."""
        self._clock = 0.0
        # Objects that `rerank_some` has still to look at in this round.
        self._to_rerank = array("i")

    # -- which objects there are --------------------------------------------------------------------------------

    def add(self, cached: T, now: float) -> None:
        """Another version of the object must have been dropped before."""
        self.objects[cached.index] = cached
        cached.aside = False
        self.recent.add(cached.index)
        cached.rank = self._rank_of(cached, now)
        self._ranked.add(cached.index, cached.rank)

    def drop(self, cached: T) -> None:
        """Does nothing if another version has taken its place."""
        if self.objects.get(cached.index) == cached:
            del self.objects[cached.index]
            self._unrank(cached)

    def set_aside(self, cached: T) -> None:
        """The object is pinned: a search for victims does not meet it until `put_back`."""
        if self.objects.get(cached.index) == cached:
            self._unrank(cached)
            cached.aside = True

    def put_back(self, now: float) -> None:
        """Some pin was released: all objects that were set aside may be victims again."""
        for cached in sorted(
            (cached for cached in self.objects.values() if cached.aside), key=lambda cached: -cached.used_at
        ):
            self.add(cached, now)
            # A search for victims met it, so it was not read for long.
            self.recent.remove(cached.index)
            self.recent.add(cached.index, last=False)

    def clear(self) -> None:
        """Forget all objects. The clock goes on."""
        self.objects.clear()
        self.recent = RowOrder()
        self._ranked = RankIndex()
        self._to_rerank = array("i")

    def _unrank(self, cached: T) -> None:
        if not cached.aside:
            self.recent.remove(cached.index)
            self._ranked.discard(cached.index, cached.rank)

    # -- ranks --------------------------------------------------------------------------------------------------

    def opened(self, cached: T, now: float) -> None:
        """A client begins to read the object; its epoch has noted it."""
        if not cached.aside:
            self.recent.move_to_end(cached.index)
        self.rank(cached, now)

    def advance(self, part: float) -> None:
        """The jobs have done another part of an epoch."""
        self._clock += part

    def rank(self, cached: T, now: float) -> None:
        if cached.aside:
            return
        # Called three times with each read, and most datasets have one epoch. Spelled out: two calls less each time.
        epochs = self._jobs.computed
        if epochs and len(epochs) == 1 and now - epochs[0].last <= _SILENCE_S:
            rank = self._clock + epochs[0].until(cached.index)
            if cached.broken and not cached.reading:
                rank += _BROKEN
        else:
            rank = self._rank_of(cached, now)
        self._set_rank(cached, rank)

    def lost_block(self, cached: T, now: float) -> None:
        """The object lost a block, or is no longer read after it did."""
        cached.broken = True
        if not (cached.aside or cached.reading):
            # Its rank may be stale, as may be those of its neighbours: only by rising it gets before them.
            self._set_rank(cached, max(self._rank_of(cached, now), cached.rank))

    def _set_rank(self, cached: T, rank: float) -> None:
        before = cached.rank
        if abs(rank - before) > _SAME_RANK:
            index = cached.index
            self._ranked.discard(index, before)
            cached.rank = rank
            self._ranked.add(index, rank)

    def rerank_all(self, now: float) -> None:
        for cached in self.objects.values():
            self.rank(cached, now)

    def rerank_some(self, now: float, count: int = _RERANKED) -> None:
        """Rank the next `count` objects anew, going round all of them."""
        for _ in range(min(count, self.recent.count)):
            if not self._to_rerank:
                self._to_rerank = array("i", self.recent)
            cached = self.objects.get(self._to_rerank.pop())
            if cached is not None:
                self.rank(cached, now)

    def rerank_in_steps(self, now: Callable[[], float]) -> Generator[None, None, None]:
        """Rank all objects anew; yields after every few. The objects may come and go meanwhile."""
        for number, index in enumerate(array("i", self.recent)):
            cached = self.objects.get(index)
            if cached is not None:
                self.rank(cached, now())
            if number % _RERANKED_A_STEP == 0:
                yield

    def _rank_of(self, cached: T, now: float) -> float:
        """The dataset's clock at the expected next read, and later for an object that was evicted in part."""
        epochs = self._jobs.epochs()
        soonest = NEVER if epochs else 1.0
        for epoch in epochs:
            parts = epoch.until(cached.index)
            if now - epoch.last > _SILENCE_S:
                parts += silence(epoch, now) * _FADE / epoch.seconds(now)
            if parts < soonest:
                soonest = parts
        return self._clock + soonest + (_BROKEN if cached.broken and not cached.reading else 0.0)

    # -- the next reads -----------------------------------------------------------------------------------------

    def farthest(self, now: float) -> Iterator[tuple[float, T]]:
        """Seconds until the next read, and the object; about the farthest first. Where no epoch predicts the read, as
        many seconds as since the last use; beside a job that reads at random those, too, if they are fewer.

        The order is that of the ranks, so it is as true as they are. The seconds are computed for `now`.
        """
        # Computed once, not for each object: most searches for room pass many objects.
        epochs = [
            (epoch, epoch.seconds(now), silence(epoch, now) * _FADE if now - epoch.last > _SILENCE_S else 0.0)
            for epoch in self._jobs.epochs()
        ]
        if not epochs or not self._jobs.is_by_chance:
            return self._with_seconds(reversed(self._ranked) if epochs else iter(self.recent), epochs, now)
        streams = [self._with_seconds(each, epochs, now) for each in (reversed(self._ranked), iter(self.recent))]
        return self._farthest_of(streams)

    def _farthest_of(self, streams: Sequence[Iterator[tuple[float, T]]]) -> Iterator[tuple[float, T]]:
        """Some jobs read in epochs and others at random: the farthest of the next candidates by rank and by LRU."""
        heap, seen, take = list[tuple[float, int]](), set[int](), _COMPARED
        while True:
            for seconds, cached in (found for stream in streams for found in islice(stream, take)):
                if cached.index not in seen:
                    seen.add(cached.index)
                    heappush(heap, (-seconds, cached.index))
            if not heap:
                return
            take = 1
            seconds, index = heappop(heap)
            yield -seconds, self.objects[index]

    def _with_seconds(
        self, indexes: Iterable[int], epochs: Sequence[tuple[JobEpoch, float, float]], now: float
    ) -> Iterator[tuple[float, T]]:
        """`epochs`: each with the seconds that it takes, and those that its silence adds."""
        is_by_use = not epochs or self._jobs.is_by_chance
        for index in indexes:
            cached = self.objects[index]
            soonest = now - cached.used_at if is_by_use else NEVER
            for epoch, epoch_s, silence_s in epochs:
                seconds = epoch.until(index) * epoch_s + silence_s
                if seconds < soonest:
                    soonest = seconds
            yield soonest, cached


def silence(epoch: JobEpoch, now: float) -> float:
    """Seconds for which the epoch has been silent beyond its usual pauses."""
    return max(0.0, now - epoch.last - max(_SILENCE_S, _PAUSES * epoch.pace.pause_s))


# A longer run is split in two.
_RUN_MAX = 256


class RankIndex:
    """Indexes, from 0 to 2**31 - 1, sorted by (rank, index), in runs of bare numbers: 12 bytes per index.

    Rejected: a sorted list of tuples, each of which lies elsewhere in memory. With 25,000 indexes a change took twice
    as long, and the changes were a quarter of what a read costs the planner (py-spy).
    """

    def __init__(self) -> None:
        # One array per run in each of these two.
        self._ranks: list[array[float]] = []
        self._indexes: list[array[int]] = []
        # The last rank and the last index of each run.
        self._last_ranks = array("d")
        self._last_indexes = array("i")

    def __reversed__(self) -> Iterator[int]:
        """The highest rank first; of equal ranks, the highest index first. An index that was yielded may be discarded
        before the next one is asked for."""
        for indexes in reversed(self._indexes):
            yield from reversed(indexes)

    def add(self, index: int, rank: float) -> None:
        """`index` must not be here."""
        run = bisect_left(self._last_ranks, rank)
        if run == len(self._indexes):
            if not run:
                self._put(0, array("d", (rank,)), array("i", (index,)))
                return
            run -= 1
        ranks, indexes = self._ranks[run], self._indexes[run]
        place = bisect_left(ranks, rank)
        if place < len(ranks) and ranks[place] == rank:
            # Not rare: in an epoch of unknown order, all unread objects have the same rank.
            if self._last_ranks[run] == rank:
                run = self._run_of_equals(index, rank, run)
                ranks, indexes = self._ranks[run], self._indexes[run]
            place = _place(ranks, indexes, rank, index)
        ranks.insert(place, rank)
        indexes.insert(place, index)
        if place == len(indexes) - 1:
            self._last_ranks[run], self._last_indexes[run] = rank, index
        if len(indexes) > _RUN_MAX:
            self._split(run)

    def discard(self, index: int, rank: float) -> None:
        """`index` must be here, with this rank."""
        run = bisect_left(self._last_ranks, rank)
        ranks, indexes = self._ranks[run], self._indexes[run]
        place = bisect_left(ranks, rank)
        if indexes[place] != index:
            if self._last_ranks[run] == rank:
                run = self._run_of_equals(index, rank, run)
                ranks, indexes = self._ranks[run], self._indexes[run]
            place = _place(ranks, indexes, rank, index)
        del ranks[place], indexes[place]
        if not indexes:
            del self._ranks[run], self._indexes[run], self._last_ranks[run], self._last_indexes[run]
        elif place == len(indexes):
            self._last_ranks[run], self._last_indexes[run] = ranks[-1], indexes[-1]

    def _run_of_equals(self, index: int, rank: float, first: int) -> int:
        """The run in which `index` belongs, if run `first`, and perhaps others after it, end with this rank."""
        run = bisect_left(self._last_indexes, index, first, bisect_right(self._last_ranks, rank, first))
        return min(run, len(self._indexes) - 1)

    def _put(self, run: int, ranks: array[float], indexes: array[int]) -> None:
        self._ranks.insert(run, ranks)
        self._indexes.insert(run, indexes)
        self._last_ranks.insert(run, ranks[-1])
        self._last_indexes.insert(run, indexes[-1])

    def _split(self, run: int) -> None:
        ranks, indexes = self._ranks[run], self._indexes[run]
        half = len(indexes) // 2
        self._put(run, ranks[:half], indexes[:half])
        del ranks[:half], indexes[:half]


def _place(ranks: array[float], indexes: array[int], rank: float, index: int) -> int:
    """The place of the first pair in this run that is not below (rank, index)."""
    first = bisect_left(ranks, rank)
    return bisect_left(indexes, index, first, bisect_right(ranks, rank, first))
