"""The planner: facts about reads, blocks and names go in; the objects to prefetch and the blocks to evict come out.

The planner is the cache policy `epoch` as well (see `core.cache.policies`), so that prefetch and eviction use one
prediction. It has no clock. Each fact brings its time; a call of the policy, which brings none, happens at the time of
the last fact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from outrider.core.ahead.dataset.cached_objects import CachedObject, CachedObjects
from outrider.core.ahead.dataset.dataset import Dataset, blocks_of
from outrider.core.ahead.dataset.registry import DatasetRegistry, Item, Victims
from outrider.core.ahead.dataset.templates import Templates
from outrider.core.ahead.discovery import FAREST, Discovery
from outrider.core.ahead.hint_messages import COUNT_MAX
from outrider.core.ahead.hints import Hint
from outrider.core.ahead.order.order_search import OrderSearch
from outrider.core.ahead.outstanding import Outstanding, PrefetchWaste
from outrider.core.ahead.prefetch_candidates import Candidates, Want
from outrider.core.ahead.prefetch_window import SOONER, BlockOwnership, CacheSpace, ClusterShare, PrefetchWindow
from outrider.core.ahead.readers import OpenObjects, PeerReaders, Readers
from outrider.core.block_layout import block_count
from outrider.core.cache.pins import Pins
from outrider.core.cache.tenants import Tenants
from outrider.core.model import BlockKey, Extent, ObjectRef, ObjectVersion


class Planner:
    """Called from one thread. `registry` has all that is known of datasets, to be exported and restored.

    A fact costs O(log n) of the cached objects. Exceptions are `listed` and `announced`, which cost as much as they
    bring, and `withdraw` and the end of an epoch, which make new tables for all objects of the epoch.
    """

    def __init__(
        self, capacity_bytes: int, block_bytes: int, *, keys_max: int = 1_000_000,
        disk_bytes: Callable[[int], int] = int, opened: Callable[[ObjectRef, int], None] = lambda ref, size: None,
        believed_s: Callable[[ObjectRef], float] = lambda ref: FAREST,
        fetches: Callable[[ObjectRef], bool] = lambda ref: True,
        pins: Pins | None = None, templates: Templates | None = None,
    ) -> None:  # fmt: skip
        """`keys_max`: at most so many names are remembered; beyond that, the dataset that was silent for longest is
        forgotten. `disk_bytes`: how much of the capacity a block of so many bytes takes. `opened` is called when a
        client begins to read an object (see `miss_ratio`). `believed_s`: for how long a name is believed without asking
        the origin again. `fetches`: whether an object may be prefetched, and the origin may be asked which others its
        dataset has; reads of an object that may not be still show which blocks to evict. Objects that `pins` hold are
        never victims; None: nothing is pinned. `templates`: the names of datasets, where others use them too; None:
        only the planner does.
        """
        self._on_opened = opened
        self._space = CacheSpace(capacity_bytes, block_bytes, disk_bytes)
        self._fetches = fetches
        self._now = 0.0
        self.registry = DatasetRegistry(
            keys_max, self._forget, self._move, Templates() if templates is None else templates,
        )  # fmt: skip
        self.discovery = Discovery(self.registry, believed_s)
        self._cached = CachedObjects()
        self._victims = Victims(self.registry, Pins(int, lambda version: b"") if pins is None else pins)
        self._readers = Readers()
        self._open_objects = OpenObjects()
        self._peer_readers = PeerReaders()
        self._on_begun: Callable[[str, ObjectRef, int], None] = lambda client, ref, size: None
        self.outstanding = Outstanding()
        """Wanted objects that are not on disk yet."""
        self._waste = PrefetchWaste(capacity_bytes, block_bytes)
        self._ownership = BlockOwnership()
        window = PrefetchWindow(
            self._open_objects, self._peer_readers, self.outstanding, self._space, self._ownership,
            lambda later_than_s: self._victims.farthest(later_than_s, self._now),
        )  # fmt: skip
        self._candidates = Candidates(
            self.registry, self._open_objects, self.outstanding, self._space, self._ownership, window,
            self._may_fetch, fetches,
        )  # fmt: skip
        self._order_search = OrderSearch()
        self.fetched_bytes = 0
        """Bytes that were prefetched."""
        self.wasted_bytes = 0
        """Bytes that were prefetched and evicted before a client requested them."""

    def share_line(self, tenants: Tenants) -> None:
        """Tenants take turns: the most urgent object of the one whose turn it is comes first."""
        self._candidates.share_line(tenants)

    def join(
        self, on_begun: Callable[[str, ObjectRef, int], None], mine: Callable[[ObjectRef, int], int],
        near_bytes: Callable[[], int], *, guessed_max: float = FAREST,
    ) -> None:  # fmt: skip
        """This node belongs to a cluster. `on_begun` is called when a client of this node begins to read an object:
        client, object and size. See `ClusterShare` for the others."""
        self._on_begun = on_begun
        self._ownership.cluster = ClusterShare(mine, near_bytes, guessed_max)

    def _forget(self, dataset: Dataset) -> None:
        for part in (self.outstanding, self._open_objects, self._peer_readers, self._waste, self._candidates):
            part.forget(dataset)

    def _move(self, items: Mapping[Item, Item]) -> None:
        """These objects belong to another dataset now, and have other indexes."""
        for part in (self.outstanding, self._open_objects, self._peer_readers, self._readers, self._waste):
            part.move(items)
        for dataset, _ in items:
            self._candidates.forget(dataset)

    # -- facts: requests ----------------------------------------------------------------------------------------

    def requested(self, client: str, ref: ObjectRef, size: int, extent: Extent, now: float) -> Extent | None:
        """A client asks for `extent` of an object of `size` bytes. Returns which other bytes of it are worth filling at
        once; None: none. `client`: all that distinguishes clients, such as address and access key."""
        self._now = now
        item = self.registry.item(ref)
        dataset, index = item
        dataset.names.sizes[index] = dataset.usual_bytes = size
        dataset.active_at = now
        requested = self._readers.requested(client, item, size, extent, now)
        if requested.opened:
            self._open_objects.opened(item, now)
            self._expect(client, ref, item)
            self._on_opened(ref, size)
            self._on_begun(client, ref, size)
        if (prefetch := self.outstanding.of(ref)) is not None:
            prefetch.is_requested = True
        return requested.ahead

    def opened_on_peer(self, member: str, client: str, ref: ObjectRef, size: int, readers: int, now: float) -> None:
        """A client of another member of the cluster began to read an object, of which some blocks may be here.
        `client`: its name in the whole cluster. `readers`: how many clients read at that member."""
        self._now = now
        item = self.registry.item(ref)
        dataset, index = item
        dataset.names.sizes[index] = dataset.usual_bytes = size
        cached = dataset.cached.get(index)
        served = 0 if cached is None or item not in self._open_objects else cached.served
        ended = self._peer_readers.began(member, item, readers, now)
        self._expect(client, ref, item)
        if cached is not None:
            # Blocks that a client here has read of it stay read.
            cached.served = served
        if not any(epoch.order_known for epoch in dataset.epochs()):
            # Where the next reads are not known, room is kept free for the readers' misses, and is missed elsewhere.
            ended.append(item)
        else:
            self._candidates.begun_on_peer(item)
        self._close_on_peers(ended)
        if (job := dataset.job_table.jobs.get(client)) is not None:
            job.is_on_peer = True
        if (shared := dataset.job_table.shared_epoch) is not None:
            shared.spans_nodes = True
        if (prefetch := self.outstanding.of(ref)) is not None:
            prefetch.is_requested = True

    def _close_on_peers(self, items: Iterable[Item]) -> None:
        """No client of another member reads these objects any more."""
        for item in items:
            self._candidates.ended_on_peer(item)
            dataset, index = item
            cached = dataset.cached.get(index)
            if cached is not None and item not in self._open_objects:
                cached.reading, cached.served = False, 0
                if cached.broken:
                    dataset.next_use.lost_block(cached, self._now)

    def _expect(self, client: str, ref: ObjectRef, item: Item) -> None:
        """Expects other reads than before, since a client began to read this object."""
        dataset, index = item
        self._close_on_peers(self._peer_readers.silent(self._now))
        self._waste.opened(dataset)
        dataset.opened(client, index, self.readers + self.readers_on_peers, self._now)
        dataset.is_fetched = self._fetches(ref)
        if not dataset.is_fetched:
            # Without prefetch, the share of hits that eviction can reach is the same for a known and an unknown order.
            dataset.to_search.clear()
            return
        if dataset.to_search:
            self._order_search.begin(dataset)
        self._candidates.opened(dataset)
        self.discovery.opened(dataset, index, ref, self._now)

    @property
    def readers(self) -> int:
        return self._open_objects.readers

    @property
    def readers_on_peers(self) -> int:
        """The readers at the other members of the cluster."""
        return self._peer_readers.count(self._now)

    def sent(self, client: str, ref: ObjectRef, now: float) -> None:
        """A request for the object has ended, answered in full or cut."""
        self._now = now
        item = self.registry.item(ref)
        reader = self._readers.reader(client, item)
        if item in self._open_objects and reader is not None and reader.complete:
            self._open_objects.ended(item)
            cached = item[0].cached.get(item[1])
            if cached is not None and cached.broken:
                item[0].next_use.lost_block(cached, now)

    # -- facts: hints -------------------------------------------------------------------------------------------

    def announced(
        self, client: str, refs: Sequence[ObjectRef], now: float, *, start: int = 0, total: int | None = None,
        hint: Hint | None = None, on_peer: bool = False,
    ) -> None:  # fmt: skip
        """The order in which one worker of `client` reads: numbers `start` and on of `total`; None: more may follow.
        `hint` remembers the objects, so that it can be looked up or withdrawn. `on_peer`: the client reads at
        another member of the cluster, so that only blocks that this node owns are fetched for it."""
        self._now = now
        for dataset, indexes in self.registry.items_of(refs, now).items():
            epoch = dataset.announced(client, indexes, start, total or COUNT_MAX, now)
            if on_peer:
                dataset.jobs[client].is_on_peer = True
            if hint is not None:
                hint.add(dataset, epoch, indexes)
            self.discovery.announced(dataset, now)

    def withdraw(self, hint: Hint, others: Iterable[Hint], now: float) -> int:
        """Expect the unread objects of a hint no longer, except for those that `others` announced as well. Returns how
        many that are. Those that are cached or on their way are kept as any others."""
        self._now = now
        others = list(others)
        count = 0
        for dataset, epoch, indexes in list(hint.unread()):
            for other in others:
                indexes.difference_update(other.indexes_of(epoch))
            if not indexes:
                continue
            dataset.withdraw(epoch, indexes, now)
            count += len(indexes)
            for index in indexes:
                # A prefetch in vain for a withdrawn hint is no wrong prediction, and no reason to prefetch less for a
                # later hint.
                for here in (dataset.cached.get(index), self.outstanding.get((dataset, index))):
                    if here is not None:
                        here.excused = True
        return count

    # -- facts: prefetches and blocks (the policy's side) -------------------------------------------------------

    def found(self, ref: ObjectRef, size: int) -> tuple[int, ...]:
        """A wanted object of unknown size has this size. Returns its other blocks that are wanted."""
        dataset, index = self.registry.item(ref)
        unknown = dataset.names.sizes[index] < 0
        dataset.names.sizes[index] = dataset.usual_bytes = size
        prefetch = self.outstanding.of(ref)
        if prefetch is None or not unknown:
            return ()
        count = max(1, block_count(size, self._space.block_bytes))
        mine = self._ownership.bits_of(dataset, index, count) if prefetch.is_shared else (1 << count) - 1
        self.outstanding.found(prefetch, mine, self._space.disk_bytes(-(-size // count)))
        return tuple(range(1, count))

    def added(self, block: BlockKey, version: ObjectVersion) -> None:
        """A block has landed on disk."""
        dataset, _ = item = self.registry.item(version.ref)
        cached = self._cached.get(block.version_id)
        if cached is None:
            cached = self._begin_cached(item, block, version)
        cached.present |= 1 << block.index
        if cached.broken and not cached.reading:
            cached.broken = False
            dataset.next_use.rank(cached, self._now)
        dataset.kept_bytes += cached.block_bytes
        if cached.ahead:
            self.fetched_bytes += cached.block_bytes
        self.outstanding.landed(version.ref, 1 << block.index, self._now)

    def _begin_cached(self, item: Item, block: BlockKey, version: ObjectVersion) -> CachedObject:
        dataset, index = item
        dataset.names.sizes[index] = dataset.usual_bytes = version.size
        prefetch = self.outstanding.of(version.ref)
        count = block_count(version.size, self._space.block_bytes)
        block_bytes = self._space.disk_bytes(-(-version.size // count))
        cached = self._cached.add(
            dataset, index, block.version_id, count, block_bytes, self._now,
            ahead=prefetch is not None and not prefetch.is_requested,
            excused=prefetch is not None and prefetch.excused,
            reading=item in self._open_objects or item in self._peer_readers,
        )  # fmt: skip
        if (old := dataset.cached.get(index)) is not None:
            dataset.next_use.drop(old)
            # When its readers end, `reading` of the new version is reset instead.
            old.reading = False
            self._victims.outdated[old.version_id] = old
        dataset.next_use.add(cached, self._now)
        return cached

    def dropped(
        self, ref: ObjectRef, blocks: Iterable[int] | None = None, *, again: bool = True, missing: bool = False
    ) -> None:  # fmt: skip
        """Those of the `blocks` of a wanted object that are not here will not come; None: none of it that is not here
        will. `again`: a later try may bring them. `missing`: there is no such object, or the origin refuses it."""
        dataset, index = self.registry.item(ref)
        bits = -1 if blocks is None else sum(1 << block for block in blocks)
        prefetch = self.outstanding.of(ref)
        if prefetch is not None and prefetch.missing & bits:
            self.outstanding.drop(ref, bits)
            if again:
                self._fetch_again(dataset, index)
            elif missing:
                self.discovery.missed(dataset, index, self._now)

    def _fetch_again(self, dataset: Dataset, index: int) -> None:
        for epoch in dataset.epochs():
            epoch.fetch_again(index)

    def read(self, block: BlockKey) -> None:
        """A client has read a block from the cache."""
        cached = self._cached.get(block.version_id)
        if cached is not None:
            cached.served |= 1 << block.index
            cached.used_at = cached.dataset.active_at = self._now
            self._open_objects.touched((cached.dataset, cached.index), self._now)

    def proved(self, version_id: bytes, index: int | None) -> None:
        """A block on disk is the one that the bucket has; None: all blocks of the version are."""
        cached = self._cached.get(version_id)
        if cached is None:
            return
        proved = cached.present if index is None else cached.present & (1 << index) | cached.proved
        cached.dataset.proved_bytes += (proved & ~cached.proved).bit_count() * cached.block_bytes
        cached.proved = proved

    def removed(self, block: BlockKey) -> None:
        """A block is on disk no more."""
        cached = self._cached.get(block.version_id)
        if cached is None:
            return
        cached.present &= ~(1 << block.index)
        dataset = cached.dataset
        if cached.proved >> block.index & 1:
            cached.proved &= ~(1 << block.index)
            dataset.proved_bytes -= cached.block_bytes
        dataset.kept_bytes -= cached.block_bytes
        if cached.ahead:
            self.wasted_bytes += cached.block_bytes
            if not cached.excused:
                self._waste.add(dataset, cached.block_bytes)
        if dataset.cached.get(cached.index) == cached:
            # The index of an outdated version may be from before the dataset was forgotten.
            self._fetch_again(dataset, cached.index)
        if not cached.present:
            self._victims.outdated.pop(block.version_id, None)
            dataset.next_use.drop(cached)
            self._cached.remove(cached)
        elif (
            not cached.broken
            and dataset.cached.get(cached.index) == cached
            and self._ownership.owns(cached, block.index)
        ):
            dataset.next_use.lost_block(cached, self._now)

    # -- decisions: which blocks to evict -----------------------------------------------------------------------

    def victims(self, incoming: BlockKey | None = None, version: ObjectVersion | None = None) -> Iterator[BlockKey]:
        """Blocks that may be evicted for `incoming`, about the one that is needed last first."""
        later_than_s = -1.0
        if incoming is not None and version is not None:
            dataset, index = self.registry.item(version.ref)
            prefetch = self.outstanding.of(version.ref)
            if prefetch is not None and not prefetch.is_requested and prefetch.missing >> incoming.index & 1:
                # No client waits for this block, so only those may go that are needed later.
                later_than_s = min(
                    (epoch.seconds(self._now) * (epoch.until(index) + SOONER) for epoch in dataset.epochs()),
                    default=FAREST,
                )
        return (block for cached in self._victims.farthest(later_than_s, self._now) for block in blocks_of(cached))

    # -- decisions: which objects to prefetch -------------------------------------------------------------------

    def wants(self, now: float, free_bytes: int, blocks: int) -> list[Want]:
        """The objects to prefetch now, most urgent first, so that at most some `blocks` blocks are on their way at any
        time. `free_bytes`: room that is neither used nor reserved. Each returned object must end in `added` for each of
        its blocks, or in `dropped`."""
        self._now = now
        return self._candidates.wants(now, free_bytes, blocks)

    def blocks(self, want: Want, count: int) -> Sequence[int]:
        """The wanted blocks of an object that turned out to have `count` of them."""
        return self._ownership.blocks_of(want.ref, count) if want.is_shared else range(count)

    def step(self) -> bool:
        """One step, of about 0.1 ms, of computations that take longer, such as the seed search. Returns whether there
        is more to do. After the last step there may be more to want."""
        return self._candidates.go_on() or self._order_search.step()

    def _may_fetch(self, dataset: Dataset) -> bool:
        return dataset.is_fetched and not self._waste.pauses(dataset)
