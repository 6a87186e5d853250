"""What is here of each object, and which of it is needed last."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Generator, Iterator, Sequence, Set
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import chain, islice

from outrider.core.ahead.dataset.names import DiscoveryState, Names
from outrider.core.ahead.dataset.rank_index import RankIndex
from outrider.core.ahead.dataset.templates import prefix_of
from outrider.core.ahead.order.epoch import Epoch, LearnedOrder, Round
from outrider.core.ahead.order.job import Job, Order
from outrider.core.ahead.order.shared_epoch import SharedEpoch
from outrider.core.model import BlockKey

# A job that is silent may have ended: what is kept for it loses four seconds of value with each second of silence.
_FADE = 4.0
# Silence that means nothing yet (hardly ever is it so long), and so many times the longest pause that was seen.
_SILENCE_S, _PAUSES = 1.0, 2.0
# A job that was silent for so long, and for two of its passes, is over.
_OVER_S = 900.0
_ORDERS_MAX = 2
# Jobs at once, fewer where names are many: each has a table or two of 16 bytes a name, and is asked with each read.
_JOBS_MAX, _JOBS_NAMES_MAX = 64, 8_000_000
# A job that is silent for so long makes room for another one.
_MAKES_ROOM_S = 60.0
# Ranks looked at again with each read. With one, a run whose ranks draw anew and pad hit .46 of a set of 200 for .48.
_SWEPT = 2
# The same where all are, before others have their turn.
_RANKED_AT_ONCE = 8
# Candidates for eviction that are compared where two kinds of jobs meet.
_AT_ONCE = 16
# Reads of a pass after which it will not be told any more, where the last one was.
_UNTOLD = 16
_NEVER = 1e300
# Less than a millionth of a pass is no change.
_SAME_RANK = 1e-6


@dataclass(slots=True, eq=False)
class CachedObject:
    """Of one version of an object: which blocks are here (`present`), which of them were read in the pass over it that
    is under way (`served`), both as bits; `block_bytes`: what one takes on disk, on the average. `ahead`: fetched
    before anybody asked, and not asked for since. `excused`: for a plan that was withdrawn since. `aside`: no victim,
    as it is pinned. `came_at`: its first block, or when a start found it."""

    dataset: Dataset
    key: int
    version_id: bytes
    blocks: int
    block_bytes: int
    came_at: float
    used_at: float
    ahead: bool
    excused: bool = False
    aside: bool = False
    reading: bool = False
    present: int = 0
    served: int = 0
    rank: float = 0.0


class Dataset:
    """One dataset: its names, the jobs that read it, and what of it is here, ranked by its next use."""

    def __init__(self, bucket: str, template: str) -> None:
        self.bucket = bucket
        self.template = template
        # Under which a LIST shows it.
        self.prefix = prefix_of(template)
        self.names = Names()
        self.jobs: dict[str, Job] = {}
        # None: it has one client.
        self._shared_epoch: SharedEpoch | None = None
        # Whether `epochs` are those of all clients together; else, whether somebody reads it by chance.
        self._sharing = self._is_by_chance = False
        self.learned: list[LearnedOrder] = []
        self.search = DiscoveryState()
        # So many names were listed when that was last thought over.
        self._names_listed = 0
        self.cached: dict[int, CachedObject] = {}
        # On disk, outdated versions included.
        self.kept_bytes = 0
        # By expected next use on the dataset's own clock, which goes 1.0 forward in each pass of its jobs.
        self._ranked = RankIndex()
        # All that may be a victim, by its last read.
        self.recent: OrderedDict[int, None] = OrderedDict()
        self._clock = 0.0
        self.active_at = 0.0
        # Of the object whose size was learned last, in bytes: what one of unknown size is taken for.
        self.usual_bytes = -1
        self._sweep: list[int] = []
        self._epochs: list[Epoch] | None = None
        # Passes of whose order more may be known by their reads so far; see `order_search`.
        self.puzzles: list[Epoch] = []

    def number(self, key: str) -> int:
        count = len(self.names.keys)
        number = self.names.number(key)
        if number == count:
            self._grow(count + 1)
        return number

    def _grow(self, key_count: int) -> None:
        for job in self.jobs.values():
            job.grow(key_count)
        if self._shared_epoch is not None:
            self._shared_epoch.grow(key_count)

    # -- jobs ---------------------------------------------------------------------------------------------------

    def listed(self, *, more: bool) -> None:
        """Of what there is more was shown; `more`: is to come. That is thought over, which costs as much as there are
        names, when it is all, and before that each time that it is twice as long. That there are more is heard at once:
        any of them may be read now."""
        self._grow(len(self.names.keys))
        count = len(self.names.listed)
        if count > self._names_listed * (2 if more else 1):
            self._think_over_names()

    def list_ended(self) -> None:
        """A LIST of it is whole, or has failed."""
        if self.names.replace():
            self._no_longer_counted()
        self.listed(more=False)

    def _think_over_names(self) -> None:
        self._names_listed = len(self.names.listed)
        for job in self.jobs.values():
            job.listed(self.names)
        if self._shared_epoch is not None:
            self._shared_epoch.listed(self.names)

    def _no_longer_counted(self) -> None:
        self.search.no_longer_counted()
        self._names_listed = 0

    def give_up_count(self) -> None:
        """What is read is all that is known."""
        self.names.unlist()
        self._no_longer_counted()
        self._think_over_names()

    def epochs(self) -> list[Epoch]:
        if self._epochs is None:
            if self._shared_epoch is None and len(self.jobs) == 1:
                # As a rule: one client, whose reads are its own.
                (job,) = self.jobs.values()
                self._sharing, self._is_by_chance = False, job.free
                self._epochs = job.predicting.copy()
                return self._epochs
            each, shared_epoch = (
                self._passes_of_each(),
                self._shared_epoch.epochs if self._shared_epoch is not None else [],
            )
            # An order, of whomever, tells more than what is left of the epoch of all. Not one that a read or two
            # suggest: of many clients there is always one whose reads do.
            self._sharing = bool(shared_epoch) and not any(one.trusted and one.order_known for one in each)
            self._is_by_chance = not self._sharing and any(job.free for job in self.jobs.values())
            self._epochs = shared_epoch if self._sharing else each
        return self._epochs

    def _passes_of_each(self) -> list[Epoch]:
        epochs: list[Epoch] = []
        for job in self.jobs.values():
            epochs += job.predicting
        return epochs

    @property
    def is_told(self) -> bool:
        """A job has told what it reads, or did so for its last pass and may yet tell the next: its first reads come
        beside what it tells, and may be heard of before."""
        return any(one.told or (one.was_told and len(one.log) < _UNTOLD) for one in self._passes_of_each())

    def orders(self) -> list[Order]:
        epochs = self.epochs()
        return [*(self._passes_of_each() if self._sharing else epochs), *self.learned]

    def opened(self, client: str, key: int, readers: int, now: float) -> None:
        self.active_at = now
        job = self.jobs.get(client)
        if job is None and self._has_room(now):
            job = self._begin_job(client, now)
        self._sweep_some(now)
        if len(self.jobs) > 1 and self._shared_epoch is None:
            self._shared_epoch = SharedEpoch(self.jobs.values(), self.names, now)
        if job is not None:
            job.opened(key, self.names, readers, self.orders if job.free or len(job.epochs) < 2 else list, now)
            if job.puzzle is not None:
                self.puzzles.append(job.puzzle)
                job.puzzle = None
        if self._shared_epoch is not None:
            self._shared_epoch.opened(client, key, self.names, readers, now)
        self._epochs = None
        epochs = self.epochs()
        if mine := epochs if self._sharing else job.predicting if job is not None else ():
            self._clock += 1.0 / (mine[0].size * len(epochs))
        cached = self.cached.get(key)
        if cached is not None:
            cached.ahead, cached.reading, cached.served, cached.used_at = False, True, 0, now
            if not cached.aside:
                self.recent.move_to_end(key)
            self.rank(cached, now)

    def told(self, client: str, keys: Sequence[int], start: int, total: int, now: float) -> Epoch:
        job = self.jobs.get(client) or self._begin_job(client, now)
        one = job.told(keys, start, total, len(self.names.keys), now)
        self.active_at = now
        if len(keys) >= len(self.cached):
            self._expect_anew(now)
            return one
        # It comes in many pieces: each ranks its own, and as many of the others.
        self._epochs = None
        for key in keys:
            if (cached := self.cached.get(key)) is not None:
                self.rank(cached, now)
        self._sweep_some(now, len(keys))
        return one

    def pass_in(self, one_round: Round) -> Epoch | None:
        """The pass that is in this epoch; None: it is over, or given up."""
        return next((one for job in self.jobs.values() for one in job.epochs if one.round is one_round), None)

    def withdraw(self, one: Epoch, keys: Set[int], now: float) -> None:
        """See `Job.withdraw`."""
        for job in self.jobs.values():
            if one in job.epochs:
                job.withdraw(one, keys, self.names)
        self._expect_anew(now)

    def _expect_anew(self, now: float) -> None:
        self._epochs = None
        for cached in self.cached.values():
            self.rank(cached, now)

    def think_anew(self) -> Generator[None, None, None]:
        """What a pass reads next is known better; yields now and then."""
        self._epochs = None
        for number, cached in enumerate(list(self.cached.values())):
            if self.cached.get(cached.key) is cached:
                self.rank(cached, self.active_at)
            if number % _RANKED_AT_ONCE == 0:
                yield

    @property
    def _jobs_max(self) -> int:
        return max(2, min(_JOBS_MAX, _JOBS_NAMES_MAX // max(1, len(self.names.keys))))

    def _has_room(self, now: float) -> bool:
        """For another job; else what its client reads is heard of as one of many clients' reads alone."""
        return len(self.jobs) < self._jobs_max or now - self._most_silent.last > _MAKES_ROOM_S

    @property
    def _most_silent(self) -> Job:
        return min(self.jobs.values(), key=lambda job: job.last)

    def _begin_job(self, client: str, now: float) -> Job:
        self._end_old(now)
        while len(self.jobs) >= self._jobs_max:
            self._end(self._most_silent)
        job = self.jobs[client] = Job(client, now)
        return job

    def _end(self, job: Job) -> None:
        del self.jobs[job.client]
        self._epochs = None
        self._learn(job)

    def _end_old(self, now: float) -> None:
        for job in list(self.jobs.values()):
            if now - job.last > max([_OVER_S, *(2 * one.seconds(one.last) for one in job.epochs)]):
                self._end(job)
        if len(self.jobs) < 2:
            self._shared_epoch = None

    def _learn(self, job: Job) -> None:
        self.learned = [*_learned_of(job), *self.learned][:_ORDERS_MAX]

    def remembered(self) -> list[LearnedOrder]:
        """The orders that will be worth knowing when the jobs of now have gone."""
        now = [order for job in self.jobs.values() for order in _learned_of(job)]
        return [*now, *self.learned][:_ORDERS_MAX]

    def shrink(self) -> None:
        """Forget all but what is kept, and number it anew."""
        cached, names = list(self.cached.values()), self.names
        self.names, self.jobs, self.learned = Names(), {}, []
        self.search.forgotten()
        self._shared_epoch = None
        self.cached, self._ranked, self.recent = {}, RankIndex(), OrderedDict()
        self._epochs, self._sweep, self._names_listed = None, [], 0
        self.puzzles.clear()
        for one in cached:
            size = names.sizes[one.key]
            one.key = self.names.number(names.keys[one.key])
            self.names.sizes[one.key] = size
            self.keep(one, one.used_at)

    def take_in(self, other: Dataset) -> int:
        """All of a set of one name, which is part of this one: its number here."""
        key = self.number(other.names.keys[0])
        self.names.sizes[key] = max(self.names.sizes[key], other.names.sizes[0])
        self.usual_bytes = max(self.usual_bytes, other.usual_bytes)
        now = max(self.active_at, other.active_at)
        for client, job in other.jobs.items():
            for _ in chain.from_iterable(one.log for one in job.epochs):
                self.opened(client, key, 1, now)
        if (cached := other.cached.pop(0, None)) is not None:
            cached.dataset, cached.key = self, key
            count = cached.present.bit_count() * cached.block_bytes
            self.kept_bytes, other.kept_bytes = self.kept_bytes + count, other.kept_bytes - count
            self.keep(cached, cached.used_at)
        other.shrink()
        return key

    # -- what is needed when ------------------------------------------------------------------------------------

    def _rank_of(self, key: int, now: float) -> float:
        """When somebody reads `key` next, on the dataset's clock."""
        epochs = self.epochs()
        soonest = _NEVER if epochs else 1.0
        for one in epochs:
            parts = one.until(key)
            if now - one.last > _SILENCE_S:
                parts += silence(one, now) * _FADE / one.seconds(now)
            if parts < soonest:
                soonest = parts
        return self._clock + soonest

    def seconds_until(self, cached: CachedObject, now: float) -> float:
        """Expected until the next read. Where there is no epoch, what was used lately is used soon."""
        epochs = self.epochs()
        soonest = _NEVER if epochs and not self._is_by_chance else now - cached.used_at
        for one in epochs:
            seconds = one.until(cached.key) * one.seconds(now)
            if now - one.last > _SILENCE_S:
                seconds += silence(one, now) * _FADE
            if seconds < soonest:
                soonest = seconds
        return soonest

    def farthest(self, now: float) -> Iterator[tuple[float, CachedObject]]:
        """Seconds until the next use, and what is kept: about the farthest first."""
        if not self.epochs():
            keys = iter(self.recent)
        elif self._is_by_chance:
            return self._farthest_of_both(now)
        else:
            keys = reversed(self._ranked)
        return ((self.seconds_until(self.cached[key], now), self.cached[key]) for key in keys)

    def _farthest_of_both(self, now: float) -> Iterator[tuple[float, CachedObject]]:
        """One job reads in epochs and another one by chance: the best of the next few candidates of either."""
        streams = [reversed(self._ranked), iter(self.recent)]
        seen: set[int] = set()
        heap: list[tuple[float, int]] = []
        take = _AT_ONCE
        while True:
            for stream in streams:
                for key in islice(stream, take):
                    if key not in seen:
                        seen.add(key)
                        heappush(heap, (-self.seconds_until(self.cached[key], now), key))
            if not heap:
                return
            take = 1
            seconds, key = heappop(heap)
            yield -seconds, self.cached[key]

    def set_aside(self, cached: CachedObject) -> None:
        """It is pinned: those who look for a victim need not pass it by each time, until `put_back`."""
        if self.cached.get(cached.key) is cached:
            self._unrank(cached)
            cached.aside = True

    def put_back(self, now: float) -> None:
        """A pin let go some of its versions: all that were set aside are looked at anew."""
        for cached in sorted(
            (cached for cached in self.cached.values() if cached.aside), key=lambda cached: -cached.used_at
        ):
            self.keep(cached, now)
            # They are idle for long, or they would not have been looked at.
            self.recent.move_to_end(cached.key, last=False)

    def rank(self, cached: CachedObject, now: float) -> None:
        if cached.aside:
            return
        # Three times with each read, and as a rule of one pass: spelled out, two calls less for each.
        epochs = self._epochs
        if epochs and len(epochs) == 1 and now - epochs[0].last <= _SILENCE_S:
            rank = self._clock + epochs[0].until(cached.key)
        else:
            rank = self._rank_of(cached.key, now)
        if abs(rank - cached.rank) > _SAME_RANK:
            self._ranked.discard(cached.key, cached.rank)
            cached.rank = rank
            self._ranked.add(cached.key, rank)

    def _sweep_some(self, now: float, count: int = _SWEPT) -> None:
        """What is expected changes with a LIST, a plan, another job: ranks follow, a few with each read."""
        for _ in range(min(count, len(self.cached))):
            if not self._sweep:
                self._sweep = list(self.cached)
            cached = self.cached.get(self._sweep.pop())
            if cached is not None:
                self.rank(cached, now)

    # -- what is here -------------------------------------------------------------------------------------------

    def came_at(self, key: int) -> float:
        """See `CachedObject`; after any time, where it is not here."""
        cached = self.cached.get(key)
        return _NEVER if cached is None else cached.came_at

    def keep(self, cached: CachedObject, now: float) -> None:
        self.cached[cached.key] = cached
        cached.aside = False
        self.recent[cached.key] = None
        cached.rank = self._rank_of(cached.key, now)
        self._ranked.add(cached.key, cached.rank)

    def drop(self, cached: CachedObject) -> None:
        if self.cached.get(cached.key) is cached:
            del self.cached[cached.key]
            self._unrank(cached)

    def _unrank(self, cached: CachedObject) -> None:
        if not cached.aside:
            del self.recent[cached.key]
            self._ranked.discard(cached.key, cached.rank)


def _learned_of(job: Job) -> list[LearnedOrder]:
    return [one.learned() for one in job.predicting if one.number > 0 and one.trusted and len(one.agenda) > 1][:1]


def silence(one: Epoch, now: float) -> float:
    """Seconds for which this pass has been silent beyond what is usual."""
    return max(0.0, now - one.last - max(_SILENCE_S, _PAUSES * one.pause_s))


def may_go(cached: CachedObject) -> int:
    """Its blocks that may be evicted, as bits: of an object that is being read, those that were."""
    return cached.present & cached.served if cached.reading else cached.present


def blocks_of(cached: CachedObject) -> Iterator[BlockKey]:
    """The same, last first: the head of an object hides the latency of the rest."""
    mask = may_go(cached)
    while mask:
        index = mask.bit_length() - 1
        mask ^= 1 << index
        yield BlockKey(cached.version_id, index)
