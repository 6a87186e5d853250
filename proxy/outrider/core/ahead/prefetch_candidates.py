"""Prefetch candidates: for each epoch the next object that is not on disk, and whether the cache has room for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from outrider.core.ahead.dataset.cached_objects import CachedObject
from outrider.core.ahead.dataset.dataset import Dataset, may_go
from outrider.core.ahead.dataset.registry import DatasetRegistry, Item
from outrider.core.ahead.open_objects import OpenObjects
from outrider.core.ahead.order.epoch import ORDER_LIKELY, JobEpoch
from outrider.core.ahead.outstanding import Outstanding
from outrider.core.block_layout import block_count
from outrider.core.cache.tenants import Tenants
from outrider.core.model import ObjectRef
from outrider.core.origin.fair_turns import FairTurns

# A block may be evicted for one that is needed sooner by this part of an epoch. To replace blocks for less would only
# trade places.
SOONER = 0.01
# Where the next reads are not known, so much room is kept free for the readers' own misses: as part of an object, for
# each reader, and one object at least.
_RESERVE = 0.3
# A member of a cluster keeps room for so many objects at least, up to a third of its cache in place of a fourth: chance
# places most blocks of some objects at one member, and misses of all readers may come there at once.
_RESERVE_OF_MEMBER = 1.5
_FARTHEST = float("inf")
# A dataset of unknown order is fetched at so many times the pace of its readers.
_PACE = 2
# Candidates that are tried, soonest due first. Where there is no room for one, there is none for those due later.
_TRIED_MAX = 16
# Datasets that are asked for candidates each time: all of them up to twice this number. Where there are more,
# so many that were read last, and so many of the others by rotation.
_ATTENDED = 8
# Objects that need no prefetch are passed by at some 2 us each: so many of one epoch in one call of `wants`, and in one
# step of `go_on`.
_PASSED_BY, _PASSED_BY_STEP = 1024, 32
# The confidence in an order at which objects far behind its readers are left for the end of the epoch.
_SURE = 0.8
# A fill is taken to last longer than the mean by so many mean deviations, where room for it costs hits. With four, as
# for the window, a lone reader of 64 objects had .80 x the data from the bucket in place of .77 (`outrider simulate`).
_SPREADS = 2
# Candidates are asked for at least so often.
_TICK_S = 0.05


class Want(NamedTuple):
    """Fill these blocks of an object, first to last. `size` -1: not known. Then `blocks` has block 0 alone, and
    `Planner.blocks` returns them all. `is_shared`: only blocks that this node owns are wanted. `is_guess`:
    they are of an epoch whose order is not known, and perhaps of no use: the job's first one, or any in a cluster,
    whose members all guess."""

    ref: ObjectRef
    size: int
    blocks: tuple[int, ...]
    is_shared: bool = False
    is_guess: bool = False


@dataclass(frozen=True, slots=True)
class CacheSpace:
    """How large the cache and its blocks are. `disk_bytes`: how much of the capacity a block of so many bytes takes."""

    capacity_bytes: int
    block_bytes: int
    disk_bytes: Callable[[int], int]


class _Candidate(NamedTuple):
    """The next object of an epoch that is not on disk. It is due after `until` parts of the epoch."""

    due_s: float
    until: float
    dataset: Dataset
    epoch: JobEpoch
    object_index: int


class Candidates:
    """Selects the objects to prefetch. Called from one thread. An object that it hands out goes into `outstanding`."""

    def __init__(
        self, registry: DatasetRegistry, open_objects: OpenObjects, outstanding: Outstanding, space: CacheSpace,
        may_fetch: Callable[[Dataset], bool], fetches: Callable[[ObjectRef], bool],
        farthest: Callable[[float], Iterator[CachedObject]],
    ) -> None:  # fmt: skip
        """`may_fetch`: whether prefetch for a dataset goes on at the moment. `fetches`: whether an object may be
        prefetched at all. `farthest` returns the objects that may be evicted and are needed later than in so many
        seconds, about the farthest first."""
        self._registry = registry
        self._open_objects = open_objects
        self._outstanding = outstanding
        self._space = space
        self._may_fetch = may_fetch
        self._fetches = fetches
        self._farthest = farthest
        self.mine: Callable[[ObjectRef, int], int] | None = None
        """See `Planner.join`; None: this node is alone."""
        self.near_bytes: Callable[[], int] = lambda: 0
        """See `Planner.join`."""
        self.guessed_max = _FARTHEST
        """See `Planner.join`."""
        self.readers_elsewhere: Callable[[], int] = lambda: 0
        """How many clients read at other members of the cluster."""
        self._now = 0.0
        # None: clients are not told apart, and the most urgent object comes first.
        self._tenants: Tenants | None = None
        # As the last call of `wants` was told.
        self._free_bytes = 0
        self._read_last: deque[Dataset] = deque(maxlen=_ATTENDED)
        self._dataset_turn = self._epoch_turn = 0
        # Epochs whose next object the last call of `wants` has not found among `_PASSED_BY` objects.
        self._unfinished: list[tuple[Dataset, JobEpoch]] = []
        # Objects that clients of other members have begun to read. Some of their blocks may not be on their way yet.
        self._begun: dict[Item, None] = {}
        # In one call of `wants`: so many bytes found no room in place of objects that are needed later than that.
        self._no_room = _FARTHEST, _FARTHEST

    def share_line(self, tenants: Tenants) -> None:
        """See `Planner.share_line`."""
        self._tenants, self._turns = tenants, FairTurns(tenants.weight_of)

    def opened(self, dataset: Dataset) -> None:
        if dataset not in self._read_last:
            self._read_last.append(dataset)

    def begun_elsewhere(self, item: Item) -> None:
        """A client of another member has begun to read the object, which was expected."""
        self._begun[item] = None

    def ended_elsewhere(self, item: Item) -> None:
        """No client of another member reads the object any more."""
        self._begun.pop(item, None)

    def forget(self, dataset: Dataset) -> None:
        self._begun = {item: None for item in self._begun if item[0] is not dataset}
        if dataset in self._read_last:
            self._read_last = deque((other for other in self._read_last if other is not dataset), _ATTENDED)
        self._unfinished = [pair for pair in self._unfinished if pair[0] is not dataset]

    def wants(self, now: float, free_bytes: int, blocks: int) -> list[Want]:
        """See `Planner.wants`."""
        self._now = now
        self._free_bytes = free_bytes
        self._no_room = _FARTHEST, _FARTHEST
        self._unfinished.clear()
        wants: list[Want] = []
        if self._outstanding.blocks >= blocks:
            return wants
        wants += filter(None, [self._rest(item, free_bytes) for item in self._begun])
        self._begun.clear()
        active = self._active()
        candidates: list[_Candidate] = []
        asked = active
        while asked and self._outstanding.blocks < blocks:
            for dataset, epoch in asked:
                if (candidate := self._candidate(dataset, epoch)) is not None:
                    candidates.append(candidate)
            if len(candidates) > 1:
                candidates.sort(key=lambda candidate: (self._turn(candidate), candidate.due_s))
            asked = []
            for candidate in candidates[:_TRIED_MAX]:
                want = self._want(candidate, free_bytes)
                if want is not None:
                    wants.append(want)
                    self._had_turn(candidate, want)
                    if not self._goes_on(candidate):
                        candidate.epoch.cursor.advance(candidate.epoch.agenda)
                    # Other epochs over the same dataset may have had the same candidate.
                    asked = [pair for pair in active if pair[0] is candidate.dataset]
                    candidates = [other for other in candidates if other.dataset is not candidate.dataset]
                    break
        return wants

    def go_on(self) -> bool:
        """Looks on, for about 0.1 ms, where `wants` stopped at `_PASSED_BY` objects. Returns whether there is more to
        look at. After the last time there may be more to want."""
        if self._unfinished:
            self._next(*self._unfinished.pop(), _PASSED_BY_STEP)
        return len(self._unfinished) > 0

    # -- which epochs -------------------------------------------------------------------------------------------

    def _active(self) -> list[tuple[Dataset, JobEpoch]]:
        active = [(dataset, epoch) for dataset in self._attended() if self._may_fetch(dataset)
                  for epoch in dataset.epochs() if epoch.trusted and self._is_active(dataset, epoch)]  # fmt: skip
        if len(active) > 2 * _ATTENDED:
            # To ask all would cost as much as there are jobs. Each has its turn within a few reads.
            self._epoch_turn = (self._epoch_turn + 2 * _ATTENDED) % len(active)
            active = (active + active)[self._epoch_turn : self._epoch_turn + 2 * _ATTENDED]
        return active

    def _attended(self) -> Iterable[Dataset]:
        """A bounded number of datasets: there may be many, such as a folder for each class."""
        datasets = self._registry.datasets()
        if len(datasets) <= 2 * _ATTENDED:
            return datasets
        self._dataset_turn = (self._dataset_turn + _ATTENDED) % len(datasets)
        return dict.fromkeys([*self._read_last, *islice(datasets, self._dataset_turn, self._dataset_turn + _ATTENDED)])

    def _is_active(self, dataset: Dataset, epoch: JobEpoch) -> bool:
        if self._now - epoch.last <= 1.0:
            return True
        alive = max(epoch.last, min(dataset.active_at, epoch.last + 8 * self._open_objects.readers * epoch.gap_s))
        return self._now - alive <= max(1.0, 1.5 * epoch.pause_s)

    # -- which object of an epoch -------------------------------------------------------------------------------

    def _candidate(self, dataset: Dataset, epoch: JobEpoch) -> _Candidate | None:
        index = self._next(dataset, epoch, _PASSED_BY)
        if index is None:
            return None
        until = epoch.until(index)
        return _Candidate(until * epoch.seconds(self._now), until, dataset, epoch, index)

    def _next(self, dataset: Dataset, epoch: JobEpoch, passed_by_max: int) -> int | None:
        """The next object that the epoch will read and that is neither on disk nor on its way. None: there is none, or
        none among so many (as where the reads suggest another part of a large dataset)."""
        cursor, agenda = epoch.cursor, epoch.agenda
        for _ in range(passed_by_max):
            index = cursor.current(agenda)
            in_next_epoch = index is None
            if index is None:
                index = self._current_in_next(epoch)
            if index is None:
                return None
            is_needed = in_next_epoch or epoch.to_come(index)
            if (
                is_needed
                and not (self._is_here(dataset, epoch, index) or self._is_too_large(dataset, epoch, index))
                and self._fetches(ObjectRef(dataset.bucket, dataset.names.keys[index]))
            ):
                if cursor.is_behind(agenda) or not (epoch.confidence > _SURE and epoch.is_passed_over(index)):
                    return index
                # A run that was resumed in mid-epoch reads the objects that it skipped much later.
                cursor.leave_behind(index)
            cursor.advance(agenda)
        self._unfinished.append((dataset, epoch))
        return None

    def _current_in_next(self, epoch: JobEpoch) -> int | None:
        """The next epoch is prefetched once all objects of this one are fetched, and its end is within the window."""
        index = epoch.cursor.current_in_next(epoch.agenda, epoch.next_agenda) if epoch.agenda else None
        return index if index is not None and epoch.left <= self._window(epoch) else None

    def _is_here(self, dataset: Dataset, epoch: JobEpoch, index: int) -> bool:
        """The object is on disk, as far as it is to be here, on its way, or known to be missing."""
        prefetch = self._outstanding.get((dataset, index))
        if (prefetch is not None and not prefetch.goes_on) or index in dataset.discovery.missing:
            return True
        cached = dataset.cached.get(index)
        if (dataset, index) in self._open_objects or (
            cached is not None and cached.present.bit_count() == cached.blocks
        ):
            return True
        if not self._is_shared(dataset, epoch, index):
            return False
        present, count = (0, self._likely_count(dataset, index)) if cached is None else (cached.present, cached.blocks)
        return not self.mine_of(dataset, index, count) & ~present

    # -- which blocks of it ---------------------------------------------------------------------------------------

    def _is_shared(self, dataset: Dataset, epoch: JobEpoch, index: int) -> bool:
        """Each member of the cluster fetches what it owns. Only where a reader of this node has a known order are the
        blocks of others fetched ahead of it, as long as there is room for them: they displace no owned ones."""
        if self.mine is None:
            return False
        if not (epoch.order_known and dataset.job_table.is_read_here(epoch)):
            return True
        room_bytes = self._free_bytes + self.near_bytes()
        size = dataset.names.sizes[index]
        return room_bytes < self._space.disk_bytes(size if size >= 0 else max(dataset.usual_bytes, 1))

    def mine_of(self, dataset: Dataset, index: int, count: int) -> int:
        """The blocks of an object that this node owns, as bits."""
        every = (1 << count) - 1
        if self.mine is None:
            return every
        return self.mine(ObjectRef(dataset.bucket, dataset.names.keys[index]), count) & every

    def is_mine(self, cached: CachedObject, block: int) -> bool:
        """Whether this node owns a block."""
        return self.mine is None or self.mine_of(cached.dataset, cached.index, cached.blocks) >> block & 1 == 1

    def blocks(self, want: Want, count: int) -> Sequence[int]:
        """See `Planner.blocks`."""
        if self.mine is None or not want.is_shared:
            return range(count)
        bits = self.mine(want.ref, count)
        return [block for block in range(count) if bits >> block & 1]

    def _likely_count(self, dataset: Dataset, index: int) -> int:
        """How many blocks an object has that is not here."""
        size = dataset.names.sizes[index]
        return max(1, block_count(size if size >= 0 else dataset.usual_bytes, self._space.block_bytes))

    def _is_too_large(self, dataset: Dataset, epoch: JobEpoch, index: int) -> bool:
        """The object is much larger than usual, and would hold up the others."""
        disk_bytes, room_bytes = self._space.disk_bytes, self._space.capacity_bytes // (self._open_objects.readers + 1)
        is_exception = disk_bytes(dataset.names.sizes[index]) > room_bytes >= disk_bytes(dataset.usual_bytes) >= 0
        return is_exception and epoch.progress < 1

    # -- whether it is fetched now ------------------------------------------------------------------------------

    def _window(self, epoch: JobEpoch, rest_s: float = 0.0) -> int:
        """How many objects ahead of the readers a known order is fetched: one for each reader to open next, and those
        that they open while a fill takes its time, with room for its spread.

        `rest_s`: the readers have read nothing for so long, as in a training loop that computes. They may then open in
        one go what they would have opened meanwhile.
        """
        readers = self._open_objects.readers
        beside = readers + readers // 4 + 2
        if epoch.gap_s <= 0:
            # The pace of the readers is not known yet. A told order is known for certain, so all of it may be fetched.
            return epoch.size if epoch.told else beside
        at_once = max(beside, int(rest_s / epoch.gap_s))
        return at_once + int((self._outstanding.fill_s + 4 * self._outstanding.spread_s) / epoch.gap_s)

    def _outstanding_max(self, epoch: JobEpoch) -> int:
        """How many objects may be on their way where the order is not known: as many as bring twice the bytes that are
        read (Little's law). More would not come in time to be of use, and demand would queue behind them."""
        each_s = epoch.seconds(self._now) / epoch.size
        return 1 + int(_PACE * self._outstanding.fill_s / each_s)

    def _want(self, candidate: _Candidate, free_bytes: int) -> Want | None:
        _, until, dataset, epoch, index = candidate
        if epoch.order_known and until * epoch.size > self._window(epoch, self._now - epoch.last):
            return None
        # In its first epoch a job that is alone may read all objects, or an eighth of them that a sampler deals anew.
        is_guess = not epoch.order_known and (self.mine is not None or epoch.number == 0)
        if is_guess and self._outstanding.guessed >= self.guessed_max:
            return None
        size = dataset.names.sizes[index]
        likely_bytes = size if size >= 0 else dataset.usual_bytes
        if likely_bytes < 0 and self._outstanding.has_any_of(dataset):
            # No size of the dataset is known, so too much might come: the first object tells what the others take.
            return None
        block_bytes, disk_bytes = self._space.block_bytes, self._space.disk_bytes
        count = self._likely_count(dataset, index)
        is_shared = self._is_shared(dataset, epoch, index)
        cached = dataset.cached.get(index)
        missing = ((1 << count) - 1) & ~(cached.present if cached is not None else 0)
        if is_shared:
            missing &= self.mine_of(dataset, index, count)
        item, ref = (dataset, index), ObjectRef(dataset.bucket, dataset.names.keys[index])
        prefetch = self._outstanding.of(ref)
        if prefetch is not None:
            if self._outstanding.get(item) is not prefetch:
                # It was handed out as part of the dataset that it belonged to before.
                return None
            missing &= ~prefetch.missing
        each_bytes = disk_bytes(-(-likely_bytes // count) if likely_bytes >= 0 else block_bytes)
        wanted = missing
        if not self._fits(candidate, free_bytes, count * each_bytes, missing.bit_count() * each_bytes):
            wanted = self._due_now(candidate, missing, count, is_shared=is_shared)
            if size < 0 and wanted:
                # How many blocks it has will be known once the first one comes.
                wanted = missing
            later_than_s = candidate.due_s + SOONER * epoch.seconds(self._now)
            need_bytes = self._outstanding.bytes + wanted.bit_count() * each_bytes
            if not wanted or not self._has_room(free_bytes, need_bytes, later_than_s):
                return None
        self._outstanding.hand_out(
            item, ref, wanted, each_bytes, self._now, is_shared=is_shared, goes_on=wanted != missing, is_guess=is_guess
        )  # fmt: skip
        blocks = tuple(block for block in range(count if size >= 0 else 1) if wanted >> block & 1)
        return Want(ref, size, blocks, is_shared, is_guess)

    def _rest(self, item: Item, free_bytes: int) -> Want | None:
        """The blocks of an object that a reader will come to soon; None: they are here or on their way, or there is no
        room for them."""
        dataset, index = item
        ref, size = ObjectRef(dataset.bucket, dataset.names.keys[index]), dataset.names.sizes[index]
        count, prefetch = self._likely_count(dataset, index), self._outstanding.of(ref)
        cached = dataset.cached.get(index)
        missing = self.mine_of(dataset, index, count) & ~(0 if cached is None else cached.present)
        if prefetch is not None:
            missing = missing & ~prefetch.missing if prefetch is self._outstanding.get(item) else 0
        if not (missing and self._may_fetch(dataset) and self._fetches(ref)):
            return None
        each_bytes = self._space.disk_bytes(-(-size // count))
        soon_s = SOONER * min((epoch.seconds(self._now) for epoch in dataset.epochs()), default=0.0)
        if not self._has_room(free_bytes, self._outstanding.bytes + missing.bit_count() * each_bytes, soon_s):
            return None
        self._outstanding.hand_out(item, ref, missing, each_bytes, self._now, is_shared=True, asked_for=True)
        return Want(ref, size, tuple(block for block in range(count) if missing >> block & 1), True)

    def _turn(self, candidate: _Candidate) -> float:
        """Lower ones come first."""
        if self._tenants is None:
            return 0.0
        dataset = candidate.dataset
        ref = ObjectRef(dataset.bucket, dataset.names.keys[candidate.object_index])
        return self._turns.start(self._tenants.on_line(ref))

    def _had_turn(self, candidate: _Candidate, want: Want) -> None:
        if self._tenants is not None:
            size = want.size if want.size >= 0 else candidate.dataset.usual_bytes
            want_bytes = min(size, len(want.blocks) * self._space.block_bytes) if want.size >= 0 else size
            self._turns.served(self._tenants.on_line(want.ref), want_bytes)

    def _goes_on(self, candidate: _Candidate) -> bool:
        """Only a part of the object was handed out."""
        prefetch = self._outstanding.get((candidate.dataset, candidate.object_index))
        return prefetch is not None and prefetch.goes_on

    def _fits(self, candidate: _Candidate, free_bytes: int, object_bytes: int, missing_bytes: int) -> bool:
        """Whether there is room for the missing bytes of an object, or victims that are needed later."""
        epoch, capacity_bytes, readers = candidate.epoch, self._space.capacity_bytes, self._open_objects.readers
        if object_bytes * (readers + 1) > capacity_bytes and epoch.progress < 1:
            return False
        need_bytes = self._outstanding.bytes + missing_bytes
        later_than_s = candidate.due_s + SOONER * epoch.seconds(self._now)
        if epoch.order_known:
            # Each object that waits here for its reader takes the room of one that would have been a hit. Only what
            # nobody needs for an epoch may go (but see `_due_now`).
            later_than_s = (1 + SOONER) * epoch.seconds(self._now)
        else:
            # The readers' own misses need room that is not taken from prefetched objects.
            need_bytes += self._reserve_bytes(object_bytes)
            if free_bytes < need_bytes and len(self._outstanding) >= self._outstanding_max(epoch):
                return False
            if not epoch.to_come(candidate.object_index):
                # The object is of the next epoch: only outdated versions are evicted for it.
                later_than_s = _FARTHEST
        return self._has_room(free_bytes, need_bytes, later_than_s)

    def _reserve_bytes(self, object_bytes: int) -> int:
        """The room that is kept free for the readers' own misses."""
        most_bytes, least = self._space.capacity_bytes // 4, 1.0
        if self.readers_elsewhere():
            most_bytes, least = self._space.capacity_bytes // 3, _RESERVE_OF_MEMBER
        return min(most_bytes, int(max(least, self._open_objects.readers * _RESERVE) * object_bytes))

    def _is_proven(self, epoch: JobEpoch) -> bool:
        """Some reads have agreed with the order. Before the first of them it may as well be another one, and what is
        evicted for its first objects was as likely to be read."""
        return epoch.told or epoch.confidence > ORDER_LIKELY

    def _due_now(self, candidate: _Candidate, missing: int, count: int, *, is_shared: bool) -> int:
        """Those of the missing blocks, as bits, for which objects may go that are needed later in this epoch: a fill
        that began later might not be complete when a reader comes to the block.

        A reader takes as long for an object as passes until all readers beside it have opened one. One that has opened
        nothing for a while is nearer to its next object by that time, up to its longest pause: after that, the job may
        have ended. Readers that have drifted apart open objects sooner than their places tell.
        A hundredth of an epoch is always fetched, as it costs no more traffic, and so is the head of the next object.
        It is added to the time of a fill only where blocks come one by one: of 64 objects it is most of an object, and
        its room costs hits.
        While nobody has begun to read a told order, no fill is too early, except where other clients may be about to
        tell or to read the objects that would go.
        """
        epoch, outstanding = candidate.epoch, self._outstanding
        if not self._is_proven(epoch):
            return 0
        places = candidate.until * epoch.size
        if epoch.gap_s <= 0:
            return missing
        if epoch.told and epoch.left == len(epoch.agenda):
            return missing if len(candidate.dataset.jobs) == 1 or places < 1.0 else 0
        rest_s = min(self._now - epoch.last, epoch.pause_s)
        lead_s = outstanding.fill_s + _SPREADS * outstanding.spread_s + rest_s
        soon, hundredth = lead_s / epoch.gap_s + _SPREADS * epoch.frontier.drift, SOONER * epoch.size
        before = max(1.0, soon + hundredth if is_shared else max(soon + _TICK_S / epoch.gap_s, hundredth))
        if places > before:
            return 0
        if not is_shared or self.mine_of(candidate.dataset, candidate.object_index, count) == (1 << count) - 1:
            # The whole object is to be here when a reader of this node opens it.
            return missing
        table = candidate.dataset.job_table
        is_here = table.is_read_here(epoch)
        readers = self._open_objects.readers if is_here else self.readers_elsewhere()
        clients = sum(job.is_elsewhere is not is_here for job in table.jobs.values())
        beside = max(1.0, readers / max(1, clients))
        return missing & ((1 << min(count, int((before - places) * count / beside) + 1)) - 1)

    def _has_room(self, free_bytes: int, need_bytes: int, later_than_s: float) -> bool:
        if free_bytes >= need_bytes:
            return True
        refused_bytes, refused_s = self._no_room
        if need_bytes >= refused_bytes and later_than_s >= refused_s:
            return False
        for cached in self._farthest(later_than_s):
            free_bytes += may_go(cached).bit_count() * cached.block_bytes
            if free_bytes >= need_bytes:
                return True
        self._no_room = need_bytes, later_than_s
        return False
