"""What to fetch ahead: what each pass reads next of what is not here, and whether there is room for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from outrider.core.ahead.dataset.dataset import CachedObject, Dataset, may_go
from outrider.core.ahead.dataset.registry import DatasetRegistry
from outrider.core.ahead.open_objects import OpenObjects
from outrider.core.ahead.order.epoch import Epoch
from outrider.core.ahead.outstanding import Outstanding
from outrider.core.block_layout import block_count
from outrider.core.model import ObjectRef

# A block goes for one that is needed sooner by this part of its dataset's pass; less would only trade places.
SOONER = 0.01
# What is kept free for the readers' own misses, per reader and as part of an object, where the next read is anybody's.
_RESERVE = 0.3
_FAREST = float("inf")
# Times the pace of the readers at which a set of unknown order is fetched.
_PACE = 2
# Offers that are tried, soonest due first: where there is no room for one, there is none for what is due later.
_TRIED = 16
# Of more sets than this, so many that were read last are thought of each time, and as many of the others in turn.
_ATTENDED = 8
# Objects that are here already, or coming, and passed by in one thought, some 2 us each; and in a step of `go_on`.
_PASSED_BY, _PASSED_BY_STEP = 1024, 32
# An order so likely that what lies far behind the readers is given up.
_SURE = 0.8


class Want(NamedTuple):
    """Fill these blocks of an object, first to last. `size` -1: not known; then the only block is 0, and the planner
    learns the rest by `found`."""

    ref: ObjectRef
    size: int
    blocks: tuple[int, ...]


class _Candidate(NamedTuple):
    """What a pass reads next of what is not here, and in what part of a pass."""

    due_s: float
    until: float
    dataset: Dataset
    by: Epoch
    key: int


class Candidates:
    """Called from one thread. `handed` counts what is handed out here, until it has come or will not."""

    def __init__(
        self, registry: DatasetRegistry, open_objects: OpenObjects, handed: Outstanding,
        may_fetch: Callable[[Dataset], bool],
        farthest: Callable[[float], Iterator[CachedObject]], *, capacity_bytes: int, block_bytes: int,
        disk_bytes: Callable[[int], int],
    ) -> None:  # fmt: skip
        """`farthest`: what may go of what is needed later than in so many seconds, about the farthest first."""
        self._registry = registry
        self._open_objects = open_objects
        self._handed = handed
        self._may_fetch = may_fetch
        self._farthest = farthest
        self._capacity_bytes = capacity_bytes
        self._block_bytes = block_bytes
        self._disk_bytes = disk_bytes
        self._now = 0.0
        self._read_last: deque[Dataset] = deque(maxlen=_ATTENDED)
        self._turn = self._pass_turn = 0
        # Passes of which the last thought has not found what they read next.
        self._cut: list[tuple[Dataset, Epoch]] = []
        # In one thought: so many bytes had no room, in place of what is needed later than that.
        self._no_room = _FAREST, _FAREST

    def opened(self, dataset: Dataset) -> None:
        if dataset not in self._read_last:
            self._read_last.append(dataset)

    def forget(self, dataset: Dataset) -> None:
        if dataset in self._read_last:
            self._read_last = deque((one for one in self._read_last if one is not dataset), _ATTENDED)
        self._cut = [pair for pair in self._cut if pair[0] is not dataset]

    def wants(self, now: float, free_bytes: int, blocks: int) -> list[Want]:
        """See `Planner.wants`."""
        self._now = now
        self._no_room = _FAREST, _FAREST
        self._cut.clear()
        wants: list[Want] = []
        if self._handed.blocks >= blocks:
            return wants
        active = [(dataset, one) for dataset in self._attended() if self._may_fetch(dataset)
                  for one in dataset.epochs() if one.trusted and self._is_active(dataset, one)]  # fmt: skip
        if len(active) > 2 * _ATTENDED:
            # Each thought would cost as much as there are jobs; all have their turn within a few reads.
            self._pass_turn = (self._pass_turn + 2 * _ATTENDED) % len(active)
            active = (active + active)[self._pass_turn : self._pass_turn + 2 * _ATTENDED]
        candidates: list[_Candidate] = []
        anew = active
        while anew and self._handed.blocks < blocks:
            for dataset, one in anew:
                if (offer := self._offer(dataset, one)) is not None:
                    candidates.append(offer)
            if len(candidates) > 1:
                candidates.sort(key=lambda offer: offer.due_s)
            anew = []
            for offer in candidates[:_TRIED]:
                want = self._want(offer, free_bytes)
                if want is not None:
                    wants.append(want)
                    offer.by.cursor.advance(offer.by.agenda)
                    # Others who read the same set may have offered the same.
                    anew = [pair for pair in active if pair[0] is offer.dataset]
                    candidates = [other for other in candidates if other.dataset is not offer.dataset]
                    break
        return wants

    def go_on(self) -> bool:
        """Look on, for about 0.1 ms, where `wants` was cut short; whether there is more to look at. After the last time
        there may be more to want."""
        if self._cut:
            self._next(*self._cut.pop(), _PASSED_BY_STEP)
        return len(self._cut) > 0

    def _attended(self) -> Iterable[Dataset]:
        """Of many sets, such as a folder for each class, a bounded number."""
        datasets = self._registry.datasets()
        if len(datasets) <= 2 * _ATTENDED:
            return datasets
        self._turn = (self._turn + _ATTENDED) % len(datasets)
        return dict.fromkeys([*self._read_last, *islice(datasets, self._turn, self._turn + _ATTENDED)])

    def _offer(self, dataset: Dataset, one: Epoch) -> _Candidate | None:
        key = self._next(dataset, one, _PASSED_BY)
        if key is None:
            return None
        until = one.until(key)
        return _Candidate(until * one.seconds(self._now), until, dataset, one, key)

    def _is_active(self, dataset: Dataset, one: Epoch) -> bool:
        if self._now - one.last <= 1.0:
            return True
        alive = max(one.last, min(dataset.active_at, one.last + 8 * self._open_objects.readers * one.gap_s))
        return self._now - alive <= max(1.0, 1.5 * one.pause_s)

    def _next(self, dataset: Dataset, one: Epoch, most: int) -> int | None:
        """The next key that this pass will read and that is neither here nor coming; None: none, or not among so many
        (as when another part of a large set is thought to be read)."""
        cursor, agenda = one.cursor, one.agenda
        for _ in range(most):
            index = cursor.current(agenda)
            in_next_epoch = index is None
            if index is None:
                index = self._current_in_next(one)
            if index is None:
                return None
            is_needed = in_next_epoch or one.to_come(index)
            if is_needed and not (self._is_here(dataset, index) or self._is_too_large(dataset, one, index)):
                if cursor.is_behind(agenda) or not (one.confidence > _SURE and one.is_passed_over(index)):
                    return index
                # What a run taken up in mid-epoch has left behind comes round much later: it is not waited for.
                cursor.leave_behind(index)
            cursor.advance(agenda)
        self._cut.append((dataset, one))
        return None

    def _is_too_large(self, dataset: Dataset, one: Epoch, key: int) -> bool:
        """An exception among its like, that would hold up the others."""
        size, room_bytes = dataset.names.sizes[key], self._capacity_bytes // (self._open_objects.readers + 1)
        return self._disk_bytes(size) > room_bytes >= self._disk_bytes(dataset.usual_bytes) >= 0 and one.progress < 1

    def _current_in_next(self, one: Epoch) -> int | None:
        """Past the end of the epoch lies the next one, once this one's objects are all fetched."""
        index = one.cursor.current_in_next(one.agenda, one.next_agenda) if one.agenda else None
        return index if index is not None and one.left <= self._window(one) else None

    def _is_here(self, dataset: Dataset, index: int) -> bool:
        """The object is on disk, on its way, or known to be missing."""
        if (dataset, index) in self._handed or index in dataset.discovery.missing:
            return True
        cached = dataset.cached.get(index)
        return cached is not None and (cached.reading or cached.present.bit_count() == cached.blocks)

    def _window(self, one: Epoch, rest_s: float = 0.0) -> int:
        """How many objects ahead of the readers a known order is fetched: what each of them opens next, and what they
        open while a fill takes its time, with room for its spread. Of readers who rest for `rest_s`, as a loop does
        that computes, what they would have opened meanwhile: they may open it in one go."""
        readers = self._open_objects.readers
        beside = readers + readers // 4 + 2
        if one.gap_s <= 0:
            # How fast they read is not known yet; what they read is, where it was told.
            return one.size if one.told else beside
        at_once = max(beside, int(rest_s / one.gap_s))
        return at_once + int((self._handed.fill_s + 4 * self._handed.spread_s) / one.gap_s)

    def _pace(self, one: Epoch) -> int:
        """How many objects may be on their way where the next reads are anybody's: as many as bring twice what is read
        (Little's law). More would come no sooner to be of use, and what a reader waits for would queue behind it."""
        each_s = one.seconds(self._now) / one.size
        return 1 + int(_PACE * self._handed.fill_s / each_s)

    def _want(self, offer: _Candidate, free_bytes: int) -> Want | None:
        due_s, until, dataset, one, key = offer
        if (known := one.order_known) and until * one.size > self._window(one, self._now - one.last):
            return None
        size = dataset.names.sizes[key]
        cached = dataset.cached.get(key)
        likely = size if size >= 0 else dataset.usual_bytes
        if likely < 0 and self._handed.has_any_of(dataset):
            # Of many whose size nobody knows, too much would come: the first tells what the others take.
            return None
        count = max(1, block_count(likely, self._block_bytes))
        missing = ((1 << count) - 1) & ~(cached.present if cached is not None else 0)
        each_bytes = self._disk_bytes(-(-likely // count) if likely >= 0 else self._block_bytes)
        object_bytes = count * each_bytes
        if object_bytes * (self._open_objects.readers + 1) > self._capacity_bytes and one.progress < 1:
            return None
        # Where the next reads are anybody's, the readers' misses need room that is not taken from what is fetched.
        reserve = (
            0 if known else min(self._capacity_bytes // 4, int(self._open_objects.readers * object_bytes * _RESERVE))
        )
        need = self._handed.bytes + missing.bit_count() * each_bytes + reserve
        in_next_pass = not known and not one.to_come(key)
        if not known and free_bytes < need and len(self._handed) >= self._pace(one):
            return None
        if not self._has_room(free_bytes, need, _FAREST if in_next_pass else due_s + SOONER * one.seconds(self._now)):
            return None
        ref = ObjectRef(dataset.bucket, dataset.names.keys[key])
        if self._handed.of(ref) is not None:
            return None  # as another dataset's, which it was
        self._handed.hand_out((dataset, key), ref, missing, each_bytes, self._now)
        blocks = tuple(index for index in range(count if size >= 0 else 1) if missing >> index & 1)
        return Want(ref, size, blocks)

    def _has_room(self, free_bytes: int, need: int, later_than_s: float) -> bool:
        if free_bytes >= need:
            return True
        refused_bytes, refused_s = self._no_room
        if need >= refused_bytes and later_than_s >= refused_s:
            return False
        for cached in self._farthest(later_than_s):
            free_bytes += may_go(cached).bit_count() * cached.block_bytes
            if free_bytes >= need:
                return True
        self._no_room = need, later_than_s
        return False
