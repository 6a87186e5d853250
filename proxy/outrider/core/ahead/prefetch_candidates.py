"""Prefetch candidates: for each epoch the next object that is not on disk, the most urgent one first."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from typing import NamedTuple

from outrider.core.ahead.dataset.dataset import Dataset
from outrider.core.ahead.dataset.registry import DatasetRegistry, Item
from outrider.core.ahead.order.epoch import JobEpoch
from outrider.core.ahead.outstanding import Outstanding
from outrider.core.ahead.prefetch_window import SOONER, BlockOwnership, CacheSpace, Candidate, PrefetchWindow
from outrider.core.ahead.readers import OpenObjects
from outrider.core.block_layout import block_count
from outrider.core.cache.tenants import Tenants
from outrider.core.model import ObjectRef
from outrider.core.origin.fair_turns import FairTurns

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


class Candidates:
    """Selects the objects to prefetch. Called from one thread. An object that it hands out goes into `outstanding`."""

    def __init__(
        self, registry: DatasetRegistry, open_objects: OpenObjects, outstanding: Outstanding, space: CacheSpace,
        ownership: BlockOwnership, window: PrefetchWindow, may_fetch: Callable[[Dataset], bool],
        fetches: Callable[[ObjectRef], bool],
    ) -> None:  # fmt: skip
        """`may_fetch`: whether prefetch for a dataset goes on at the moment. `fetches`: whether an object may be
        prefetched at all."""
        self._registry = registry
        self._open_objects = open_objects
        self._outstanding = outstanding
        self._space = space
        self._ownership = ownership
        self._window = window
        self._may_fetch = may_fetch
        self._fetches = fetches
        self._now = 0.0
        # None: clients are not distinguished, and the most urgent object comes first.
        self._tenants: Tenants | None = None
        # As the last call of `wants` got it.
        self._free_bytes = 0
        self._read_last: deque[Dataset] = deque(maxlen=_ATTENDED)
        self._dataset_turn = self._epoch_turn = 0
        # Epochs whose next object the last call of `wants` has not found among `_PASSED_BY` objects.
        self._unfinished: list[tuple[Dataset, JobEpoch]] = []
        # Objects that clients of other members have begun to read. Some of their blocks may not be on their way yet.
        self._begun: dict[Item, None] = {}

    def share_line(self, tenants: Tenants) -> None:
        """See `Planner.share_line`."""
        self._tenants, self._turns = tenants, FairTurns(tenants.weight_of)

    def opened(self, dataset: Dataset) -> None:
        if dataset not in self._read_last:
            self._read_last.append(dataset)

    def begun_on_peer(self, item: Item) -> None:
        """A client of another member has begun to read the object, which was expected."""
        self._begun[item] = None

    def ended_on_peer(self, item: Item) -> None:
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
        self._window.begin(now, free_bytes)
        self._unfinished.clear()
        wants: list[Want] = []
        if self._outstanding.blocks >= blocks:
            return wants
        wants += filter(None, [self._rest(item) for item in self._begun])
        self._begun.clear()
        active = self._active()
        candidates: list[Candidate] = []
        pairs = active
        while pairs and self._outstanding.blocks < blocks:
            for dataset, epoch in pairs:
                if (candidate := self._candidate(dataset, epoch)) is not None:
                    candidates.append(candidate)
            if len(candidates) > 1:
                candidates.sort(key=lambda candidate: (self._turn(candidate), candidate.due_s))
            pairs = []
            for candidate in candidates[:_TRIED_MAX]:
                want = self._want(candidate)
                if want is not None:
                    wants.append(want)
                    self._had_turn(candidate, want)
                    if not self._goes_on(candidate):
                        candidate.epoch.cursor.advance(candidate.epoch.agenda)
                    # Other epochs over the same dataset may have had the same candidate.
                    pairs = [pair for pair in active if pair[0] is candidate.dataset]
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
        alive = max(epoch.last, min(dataset.active_at, epoch.last + 8 * self._open_objects.readers * epoch.pace.gap_s))
        return self._now - alive <= max(1.0, 1.5 * epoch.pace.pause_s)

    # -- which object of an epoch -------------------------------------------------------------------------------

    def _candidate(self, dataset: Dataset, epoch: JobEpoch) -> Candidate | None:
        index = self._next(dataset, epoch, _PASSED_BY)
        if index is None:
            return None
        until = epoch.until(index)
        return Candidate(until * epoch.seconds(self._now), until, dataset, epoch, index)

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
                and not (self._is_cached(dataset, epoch, index) or self._is_too_large(dataset, epoch, index))
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
        return index if index is not None and epoch.left <= self._window.places(epoch) else None

    def _is_cached(self, dataset: Dataset, epoch: JobEpoch, index: int) -> bool:
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
        return not self._ownership.bits_of(dataset, index, count) & ~present

    def _is_shared(self, dataset: Dataset, epoch: JobEpoch, index: int) -> bool:
        if self._ownership.cluster is None:
            return False
        size = dataset.names.sizes[index]
        object_bytes = self._space.disk_bytes(size if size >= 0 else max(dataset.usual_bytes, 1))
        return self._ownership.is_shared(dataset, epoch, self._free_bytes, object_bytes)

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

    def _want(self, candidate: Candidate) -> Want | None:
        dataset, epoch, index = candidate.dataset, candidate.epoch, candidate.object_index
        if not self._window.has_come(candidate):
            return None
        # In its first epoch a job that is alone may read all objects, or an eighth of them that a sampler deals anew.
        is_sure = epoch.order_known or epoch.is_in_order
        is_guess = not is_sure and (self._ownership.cluster is not None or epoch.number == 0)
        if is_guess and self._outstanding.guessed >= self._ownership.guessed_max:
            return None
        size = dataset.names.sizes[index]
        likely_bytes = size if size >= 0 else dataset.usual_bytes
        if likely_bytes < 0 and self._outstanding.has_any_of(dataset):
            # No size of the dataset is known, so too much might come: the first object shows what the others take.
            return None
        block_bytes, disk_bytes = self._space.block_bytes, self._space.disk_bytes
        count = self._likely_count(dataset, index)
        is_shared = self._is_shared(dataset, epoch, index)
        cached = dataset.cached.get(index)
        missing = ((1 << count) - 1) & ~(cached.present if cached is not None else 0)
        if is_shared:
            missing &= self._ownership.bits_of(dataset, index, count)
        item, ref = (dataset, index), ObjectRef(dataset.bucket, dataset.names.keys[index])
        prefetch = self._outstanding.of(ref)
        if prefetch is not None:
            if self._outstanding.get(item) is not prefetch:
                # It was handed out as part of the dataset that it belonged to before.
                return None
            missing &= ~prefetch.missing
        each_bytes = disk_bytes(-(-likely_bytes // count) if likely_bytes >= 0 else block_bytes)
        wanted = self._window.blocks_now(candidate, missing, count, each_bytes, is_shared=is_shared)
        if missing and not wanted:
            return None
        self._outstanding.hand_out(
            item, ref, wanted, each_bytes, self._now, is_shared=is_shared, goes_on=wanted != missing, is_guess=is_guess
        )  # fmt: skip
        blocks = tuple(block for block in range(count if size >= 0 else 1) if wanted >> block & 1)
        return Want(ref, size, blocks, is_shared, is_guess)

    def _rest(self, item: Item) -> Want | None:
        """The blocks of an object that a reader will come to soon; None: they are here or on their way, or there is no
        room for them."""
        dataset, index = item
        ref, size = ObjectRef(dataset.bucket, dataset.names.keys[index]), dataset.names.sizes[index]
        count, prefetch = self._likely_count(dataset, index), self._outstanding.of(ref)
        cached = dataset.cached.get(index)
        missing = self._ownership.bits_of(dataset, index, count) & ~(0 if cached is None else cached.present)
        if prefetch is not None:
            missing = missing & ~prefetch.missing if prefetch is self._outstanding.get(item) else 0
        if not (missing and self._may_fetch(dataset) and self._fetches(ref)):
            return None
        each_bytes = self._space.disk_bytes(-(-size // count))
        soon_s = SOONER * min((epoch.seconds(self._now) for epoch in dataset.epochs()), default=0.0)
        if not self._window.has_room(missing.bit_count() * each_bytes, soon_s):
            return None
        self._outstanding.hand_out(item, ref, missing, each_bytes, self._now, is_shared=True, is_requested=True)
        return Want(ref, size, tuple(block for block in range(count) if missing >> block & 1), True)

    def _turn(self, candidate: Candidate) -> float:
        """Lower ones come first."""
        if self._tenants is None:
            return 0.0
        dataset = candidate.dataset
        ref = ObjectRef(dataset.bucket, dataset.names.keys[candidate.object_index])
        return self._turns.start(self._tenants.on_line(ref))

    def _had_turn(self, candidate: Candidate, want: Want) -> None:
        if self._tenants is not None:
            size = want.size if want.size >= 0 else candidate.dataset.usual_bytes
            want_bytes = min(size, len(want.blocks) * self._space.block_bytes) if want.size >= 0 else size
            self._turns.served(self._tenants.on_line(want.ref), want_bytes)

    def _goes_on(self, candidate: Candidate) -> bool:
        """Only a part of the object was handed out."""
        prefetch = self._outstanding.get((candidate.dataset, candidate.object_index))
        return prefetch is not None and prefetch.goes_on
