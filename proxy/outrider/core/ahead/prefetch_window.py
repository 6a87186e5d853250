"""The prefetch window: which blocks of an object are fetched now, by how soon a reader comes to them, by the cache's
room, and in a cluster by their owner."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from outrider.core.ahead.dataset.cached_objects import CachedObject
from outrider.core.ahead.dataset.dataset import Dataset, may_go
from outrider.core.ahead.order.epoch import ORDER_LIKELY, JobEpoch
from outrider.core.ahead.outstanding import Outstanding
from outrider.core.ahead.readers import OpenObjects, PeerReaders
from outrider.core.model import ObjectRef

# A block may be evicted for one that is needed sooner by this part of an epoch. To replace blocks for less would only
# trade places.
SOONER = 0.01
_FARTHEST = float("inf")
# Where the next reads are not known, so much room is kept free for the readers' own misses: as part of an object, for
# each reader, and one object at least. With one object, a new order in each epoch had .78 x the data from the bucket in
# place of .75 (`tests.bench.ahead_simulated`).
_RESERVE = 0.3
# A member of a cluster keeps room for so many objects at least, up to a third of its cache in place of a fourth: chance
# places most blocks of some objects at one member, and misses of all readers may come there at once.
_RESERVE_OF_MEMBER = 1.5
# A dataset of unknown order is fetched at so many times the pace of its readers.
_PACE = 2
# A fill is taken to last longer than the mean by so many mean deviations, where room for it costs hits. With four, as
# for the window, a lone reader of 64 objects had .80 x the data from the bucket in place of .77 (`outrider simulate`).
_SPREADS = 2
# Candidates are requested at least so often.
_TICK_S = 0.05


@dataclass(frozen=True, slots=True)
class ClusterShare:
    """The place of this node in its cluster.

    `mine`: the blocks that this node owns of an object of so many, as bits. `near_bytes`: what the blocks take here
    that others own, which may go for other such blocks. `guessed_max`: so many blocks of guesses may be on their way.
    They wait for all demand of the cluster, and prefetch of known orders must not wait for them.
    """

    mine: Callable[[ObjectRef, int], int]
    near_bytes: Callable[[], int]
    guessed_max: float


class BlockOwnership:
    """Blocks of an object are bits of an int: bit `i` stands for block `i`."""

    def __init__(self) -> None:
        self.cluster: ClusterShare | None = None
        """None: this node is by itself, and owns all blocks."""

    @property
    def guessed_max(self) -> float:
        """So many blocks of guesses may be on their way."""
        return _FARTHEST if self.cluster is None else self.cluster.guessed_max

    def bits_of(self, dataset: Dataset, index: int, count: int) -> int:
        """The blocks that this node owns of an object of `count` blocks."""
        every = (1 << count) - 1
        if self.cluster is None:
            return every
        return self.cluster.mine(ObjectRef(dataset.bucket, dataset.names.keys[index]), count) & every

    def owns(self, cached: CachedObject, block: int) -> bool:
        return self.cluster is None or self.bits_of(cached.dataset, cached.index, cached.blocks) >> block & 1 == 1

    def blocks_of(self, ref: ObjectRef, count: int) -> Sequence[int]:
        """The numbers of the blocks that this node owns."""
        if self.cluster is None:
            return range(count)
        bits = self.cluster.mine(ref, count)
        return [block for block in range(count) if bits >> block & 1]

    def is_shared(self, dataset: Dataset, epoch: JobEpoch, free_bytes: int, object_bytes: int) -> bool:
        """Whether only owned blocks are fetched of an object that takes `object_bytes` on disk. Each member of the
        cluster fetches what it owns. Only where a reader of this node has a known order are the blocks of others
        fetched ahead of it, as long as there is room for them: they displace no owned ones."""
        if self.cluster is None:
            return False
        if not (epoch.order_known and dataset.job_table.is_read_locally(epoch)):
            return True
        return free_bytes + self.cluster.near_bytes() < object_bytes


@dataclass(frozen=True, slots=True)
class CacheSpace:
    """How large the cache and its blocks are. `disk_bytes`: how much of the capacity a block of so many bytes takes."""

    capacity_bytes: int
    block_bytes: int
    disk_bytes: Callable[[int], int]


class Candidate(NamedTuple):
    """The next object of an epoch that is not on disk. It is due after `until` parts of the epoch."""

    due_s: float
    until: float
    dataset: Dataset
    epoch: JobEpoch
    object_index: int


class PrefetchWindow:
    """Called from one thread. `begin` comes before each search for candidates."""

    def __init__(
        self, open_objects: OpenObjects, peer_readers: PeerReaders, outstanding: Outstanding, space: CacheSpace,
        ownership: BlockOwnership, farthest: Callable[[float], Iterator[CachedObject]],
    ) -> None:  # fmt: skip
        """`farthest` returns the objects that may be evicted and are needed later than in so many seconds, about the
        farthest first."""
        self._open_objects = open_objects
        self._peer_readers = peer_readers
        self._outstanding = outstanding
        self._space = space
        self._ownership = ownership
        self._farthest = farthest
        self._now = 0.0
        self._free_bytes = 0
        # Since `begin`: so many bytes found no room in place of objects that are needed later than that.
        self._no_room = _FARTHEST, _FARTHEST

    def begin(self, now: float, free_bytes: int) -> None:
        """`free_bytes`: room that is neither used nor reserved."""
        self._now, self._free_bytes = now, free_bytes
        self._no_room = _FARTHEST, _FARTHEST

    def has_come(self, candidate: Candidate) -> bool:
        """The object of a known order is within the window, and that of an order that few reads have shown within twice
        as much; any object of an unknown order is."""
        epoch = candidate.epoch
        if not (epoch.order_known or epoch.is_in_order):
            return True
        places = self.places(epoch, self._now - epoch.last)
        if epoch.order_known:
            return candidate.until * epoch.size <= places
        return epoch.place[candidate.object_index] - epoch.frontier.place <= 2 * places

    def places(self, epoch: JobEpoch, rest_s: float = 0.0) -> int:
        """How many objects ahead of the readers a known order is fetched: one for each reader to open next, and those
        that they open while a fill takes its time, with room for its spread.

        `rest_s`: the readers have read nothing for so long, as in a training loop that computes. They may then open in
        one go what they would have opened meanwhile.
        """
        readers = self._open_objects.readers
        beside = readers + readers // 4 + 2
        if epoch.pace.gap_s <= 0:
            # The pace of the readers is not known yet. An announced order is known for certain, so all of it may be
            # fetched.
            return epoch.size if epoch.announced else beside
        at_once = max(beside, int(rest_s / epoch.pace.gap_s))
        return at_once + int((self._outstanding.fill_s + 4 * self._outstanding.spread_s) / epoch.pace.gap_s)

    def _outstanding_max(self, epoch: JobEpoch) -> int:
        """How many objects may be on their way where the order is not known: as many as bring twice the bytes that are
        read (Little's law). More would not come in time to be of use, and demand would queue behind them."""
        each_s = epoch.seconds(self._now) / epoch.size
        return 1 + int(_PACE * self._outstanding.fill_s / each_s)

    def blocks_now(
        self, candidate: Candidate, missing: int, count: int, each_bytes: int, *, is_shared: bool
    ) -> int:  # fmt: skip
        """Those of the `missing` blocks, as bits, to be fetched now; 0: none. The object has `count` blocks of
        `each_bytes` on disk."""
        if self._fits(candidate, count * each_bytes, missing.bit_count() * each_bytes):
            return missing
        wanted = self._due_now(candidate, missing, count, is_shared=is_shared)
        if wanted and candidate.dataset.names.sizes[candidate.object_index] < 0:
            # How many blocks it has will be known once the first one comes.
            wanted = missing
        later_than_s = candidate.due_s + SOONER * candidate.epoch.seconds(self._now)
        has_room = wanted and self.has_room(wanted.bit_count() * each_bytes, later_than_s)
        return wanted if has_room else 0

    def _fits(self, candidate: Candidate, object_bytes: int, missing_bytes: int) -> bool:
        """Whether there is room for the missing bytes of an object, or victims that are needed later."""
        epoch, capacity_bytes, readers = candidate.epoch, self._space.capacity_bytes, self._open_objects.readers
        if object_bytes * (readers + 1) > capacity_bytes and epoch.progress < 1:
            return False
        need_bytes = missing_bytes
        later_than_s = candidate.due_s + SOONER * epoch.seconds(self._now)
        if epoch.order_known:
            # Each object that waits here for its reader takes the room of one that would have been a hit. Only what
            # nobody needs for an epoch may go (but see `_due_now`).
            later_than_s = (1 + SOONER) * epoch.seconds(self._now)
        else:
            # The readers' own misses need room that is not taken from prefetched objects.
            need_bytes += self._reserve_bytes(object_bytes)
            is_full = self._free_bytes < self._outstanding.bytes + need_bytes
            if is_full and len(self._outstanding) >= self._outstanding_max(epoch):
                return False
            if not epoch.to_come(candidate.object_index):
                # The object is of the next epoch: only outdated versions are evicted for it.
                later_than_s = _FARTHEST
        return self.has_room(need_bytes, later_than_s)

    def _reserve_bytes(self, object_bytes: int) -> int:
        """The room that is kept free for the readers' own misses."""
        most_bytes, least = self._space.capacity_bytes // 4, 1.0
        if self._peer_readers.count(self._now):
            most_bytes, least = self._space.capacity_bytes // 3, _RESERVE_OF_MEMBER
        return min(most_bytes, int(max(least, self._open_objects.readers * _RESERVE) * object_bytes))

    def _is_proven(self, epoch: JobEpoch) -> bool:
        """Some reads have agreed with the order. Before the first of them it may as well be another one, and what is
        evicted for its first objects was as likely to be read."""
        return epoch.announced or epoch.confidence > ORDER_LIKELY

    def _due_now(self, candidate: Candidate, missing: int, count: int, *, is_shared: bool) -> int:
        """Those of the missing blocks, as bits, for which objects may go that are needed later in this epoch: a fill
        that began later might not be complete when a reader comes to the block.

        A reader takes as long for an object as passes until all readers beside it have opened one. One that has opened
        nothing for a while is nearer to its next object by that time, up to its longest pause: after that, the job may
        have ended. Readers that have drifted apart open objects sooner than their places show.
        A hundredth of an epoch is always fetched, as it costs no more traffic, and so is the head of the next object.
        It is added to the time of a fill only where blocks come one by one: of 64 objects it is most of an object, and
        its room costs hits.
        While nobody has begun to read an announced order, no fill is too early, except where other clients may be about
        to announce or to read the objects that would go.
        """
        epoch, outstanding = candidate.epoch, self._outstanding
        if not self._is_proven(epoch):
            return 0
        places = candidate.until * epoch.size
        if epoch.pace.gap_s <= 0:
            return missing
        if epoch.announced and epoch.left == len(epoch.agenda):
            return missing if len(candidate.dataset.jobs) == 1 or places < 1.0 else 0
        rest_s = min(self._now - epoch.last, epoch.pace.pause_s)
        lead_s = outstanding.fill_s + _SPREADS * outstanding.spread_s + rest_s
        soon, hundredth = lead_s / epoch.pace.gap_s + _SPREADS * epoch.frontier.drift, SOONER * epoch.size
        owned = self._ownership.bits_of(candidate.dataset, candidate.object_index, count)
        is_in_part = is_shared and owned != (1 << count) - 1
        before = max(1.0, soon + hundredth if is_in_part else max(soon + _TICK_S / epoch.pace.gap_s, hundredth))
        if places > before:
            return 0
        if not is_in_part:
            # The whole object is to be here when a reader of this node opens it.
            return missing
        table = candidate.dataset.job_table
        is_here = table.is_read_locally(epoch)
        readers = self._open_objects.readers if is_here else self._peer_readers.count(self._now)
        clients = sum(job.is_on_peer is not is_here for job in table.jobs.values())
        beside = max(1.0, readers / max(1, clients))
        return missing & ((1 << min(count, int((before - places) * count / beside) + 1)) - 1)

    def has_room(self, more_bytes: int, later_than_s: float) -> bool:
        """Whether so many bytes beyond those on their way find room that is free, or that of objects that are needed
        later than in so many seconds."""
        free_bytes, need_bytes = self._free_bytes, self._outstanding.bytes + more_bytes
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
