"""Riding ahead: facts about reads in, decisions out: what to fetch next, what may go for it.

The planner is the cache policy `epoch` too (see `eviction`), so that fetching and evicting go by one foreknowledge. It
has no clock: each fact brings its time, and the policy's calls, which bring none, happen at the time of the last fact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from outrider.core.ahead.candidates import SOONER, Candidates, Want
from outrider.core.ahead.dataset.dataset import CachedObject, Dataset, blocks_of
from outrider.core.ahead.dataset.registry import DatasetRegistry, Item
from outrider.core.ahead.dataset.templates import Templates
from outrider.core.ahead.discovery import FAREST, NAMES_PER_PAGE, Discovery
from outrider.core.ahead.hint_messages import COUNT_MAX
from outrider.core.ahead.hints import Hint
from outrider.core.ahead.numbered_names import NumberedNames
from outrider.core.ahead.open_objects import OpenObjects
from outrider.core.ahead.order.order_search import OrderSearch
from outrider.core.ahead.outstanding import Outstanding
from outrider.core.ahead.readers import Readers
from outrider.core.block_layout import block_count
from outrider.core.cache.pins import Pins
from outrider.core.model import BlockKey, Extent, ObjectRef, ObjectVersion

# Of the cache, how much may have been fetched in vain lately before fetching pauses.
_WASTE = 0.02
# How fast that is forgiven: so much of it with each object read.
_FORGIVEN = 1 / 16


class Planner:
    """Called from one thread. `registry` has what is known of datasets, to be exported and restored.

    All facts cost O(log n) of what is kept, apart from `listed` and `told`, which cost as much as they bring, and the
    end of a pass and `withdraw`, which make new tables for the keys of a pass.
    """

    def __init__(
        self, capacity_bytes: int, block_bytes: int, *, keys_max: int = 1_000_000,
        disk_bytes: Callable[[int], int] = int, opened: Callable[[ObjectRef, int], None] = lambda ref, size: None,
        believed_s: Callable[[ObjectRef], float] = lambda ref: FAREST,
        pins: Pins | None = None, templates: Templates | None = None,
    ) -> None:  # fmt: skip
        """`disk_bytes`: how much of the capacity a block of so many bytes takes. `opened` hears of each pass over an
        object (see `miss_ratio`). `believed_s`: for how long a name is believed without asking the origin again. What
        `pins` hold never goes; None: nothing is pinned. `templates` names datasets, elsewhere, too; None: here alone.

        `keys_max`: names remembered at most; beyond it the dataset that was silent for longest is forgotten.
        """
        self._on_opened = opened
        self._pins = Pins(int, lambda version: b"") if pins is None else pins
        self._pins_released = 0
        self._capacity_bytes = capacity_bytes
        self._block_bytes = block_bytes
        self._disk_bytes = disk_bytes
        self._now = 0.0
        self.registry = DatasetRegistry(
            keys_max, self._forget, self._move, Templates() if templates is None else templates,
        )  # fmt: skip
        self._discovery = Discovery(self.registry, believed_s)
        self._cached: dict[bytes, CachedObject] = {}
        # Versions that another one has replaced: nobody will ask for them.
        self._outdated: dict[bytes, CachedObject] = {}
        self._streams = Readers()
        self._open_objects = OpenObjects()
        self._handed = Outstanding()
        self._owing: dict[Dataset, float] = {}
        self._candidates = Candidates(
            self.registry, self._open_objects, self._handed, self._may_fetch, self._farthest,
            capacity_bytes=capacity_bytes, block_bytes=block_bytes, disk_bytes=disk_bytes,
        )  # fmt: skip
        self._order_search = OrderSearch()
        self.fetched_bytes = 0
        self.wasted_bytes = 0

    def _forget(self, dataset: Dataset) -> None:
        self._handed.forget(dataset)
        self._open_objects.forget(dataset)
        self._owing.pop(dataset, None)
        self._candidates.forget(dataset)

    def _move(self, items: Mapping[Item, Item]) -> None:
        """These objects are of another dataset now, and go by other numbers."""
        self._handed.move(items)
        self._open_objects.move(items)
        self._streams.move(items)
        for (old, _), (new, _) in items.items():
            if owing := self._owing.pop(old, 0.0):
                self._owing[new] = self._owing.get(new, 0.0) + owing
            self._candidates.forget(old)

    # -- facts: requests ----------------------------------------------------------------------------------------

    def asked(self, client: str, ref: ObjectRef, size: int, extent: Extent, now: float) -> Extent | None:
        """A client asks for `extent` of an object of `size` bytes. What else of it is worth filling at once; None:
        nothing. `client`: whatever tells clients apart, such as address and access key."""
        self._now = now
        item = self.registry.item(ref)
        dataset, key = item
        dataset.names.sizes[key] = dataset.usual_bytes = size
        dataset.active_at = now
        asked = self._streams.asked(client, item, size, extent, now)
        if asked.opened:
            self._opened(client, ref, item)
            self._on_opened(ref, size)
        if (handed := self._handed.of(ref)) is not None:
            handed.asked_for = True
        return asked.ahead

    def _opened(self, client: str, ref: ObjectRef, item: Item) -> None:
        dataset, key = item
        self._open_objects.opened(item, self._now)
        if dataset in self._owing:
            self._owing[dataset] *= 1 - _FORGIVEN
        dataset.opened(client, key, self._open_objects.readers, self._now)
        if dataset.puzzles:
            self._order_search.begin(dataset)
        self._candidates.opened(dataset)
        self._discovery.opened(dataset, key, ref, self._now)

    @property
    def readers(self) -> int:
        return self._open_objects.readers

    def sent(self, client: str, ref: ObjectRef, now: float) -> None:
        """A request for the object has ended, answered in full or cut."""
        self._now = now
        item = self.registry.item(ref)
        reader = self._streams.reader(client, item)
        if item in self._open_objects and reader is not None and reader.complete:
            self._open_objects.ended(item)

    # -- facts: sets and orders ---------------------------------------------------------------------------------

    def please_list(self) -> list[tuple[str, str]]:
        """Buckets and prefixes worth a LIST, each told once: to learn what there is, or that what is believed of many
        names still holds. Answer by `listed`, and before that by `list_failed` or `list_refused`; a prefix that is not
        answered is not asked for again."""
        return self._discovery.please_list()

    def please_count(self) -> list[tuple[str, NumberedNames]]:
        """Buckets and names of which it is worth to know how far they count, each told once. Answer by `counted`
        or by `not_counted`."""
        return self._discovery.please_count()

    def list_failed(self, bucket: str, prefix: str, now: float) -> None:
        """A LIST that was asked for has failed, and may come when it is tried again: it will be, after a rest."""
        self._discovery.list_failed(bucket, prefix, now)

    def list_refused(self, bucket: str, prefix: str, now: float) -> None:
        """A LIST that was asked for is not to be had."""
        self._discovery.list_refused(bucket, prefix, now)

    def not_counted(self, bucket: str, numbering: NumberedNames, now: float) -> None:
        """These names do not count one by one, or nobody would tell."""
        self._discovery.not_counted(bucket, numbering, now)

    def counted(
        self, numbering: NumberedNames, names: Iterable[str], now: float, *, before: int = 0, more: bool = False
    ) -> bool:
        """More of the names that count, in the order of a LIST, of which `before` have been told already, and whether
        `more` are to come; some may not be there, and there may be others. False: nobody wants to know of more."""
        self._now = now
        dataset = self._discovery.counting(numbering)
        if dataset is None or (dataset.names.listed and not dataset.discovery.is_numbered):
            return False
        entries = [(name, -1) for name in names]
        if not more:
            self._discovery.counted(dataset, before + len(entries))
        for told in self.registry.list(dataset.bucket, entries, numbered=True):
            told.discovery.pages = 1 + (before + len(entries)) // NAMES_PER_PAGE
            told.listed(more=True)
        if not more:
            dataset.listed(more=False)
        return not dataset.discovery.too_many_names

    def listed(
        self, bucket: str, entries: Iterable[tuple[str, int]], now: float, *, prefix: str | None = None,
        before: int = 0, more: bool = False,
    ) -> None:  # fmt: skip
        """Keys and sizes under `prefix` (None: of whatever sets they are), in the order of the LIST, of which `before`
        have been told already, and whether `more` are to come: a part of it is worth fetching from, too."""
        self._now = now
        entries = list(entries)
        told = self.registry.list(bucket, entries, prefix=prefix)
        for dataset in told:
            dataset.discovery.pages = 1 + (before + len(entries)) // NAMES_PER_PAGE
            dataset.listed(more=True)
        if more:
            return
        self._discovery.list_ended(bucket, prefix)
        for dataset in self.registry.datasets():
            if dataset.bucket != bucket:
                continue
            if prefix is None or dataset.prefix == prefix:
                dataset.list_ended()
            elif dataset.prefix.startswith(prefix):
                dataset.listed(more=False)

    def told(
        self, client: str, refs: Sequence[ObjectRef], now: float, *, start: int = 0, total: int | None = None,
        telling: Hint | None = None,
    ) -> None:  # fmt: skip
        """The order in which one worker of `client` reads: numbers `start` and on of `total`; None: more may come.
        `telling` remembers it, to be asked about or withdrawn."""
        self._now = now
        for dataset, its in self.registry.items_of(refs, now).items():
            one = dataset.told(client, its, start, total or COUNT_MAX, now)
            if telling is not None:
                telling.add(dataset, one, its)
            if not dataset.discovery.requested and not dataset.names.listed:
                # It would cost the first reads their bandwidth: a name in a LIST may be a good part of a small sample.
                dataset.discovery.asked_at = dataset.discovery.asked_at or now
                dataset.discovery.pages = 1 + len(dataset.names.keys) // NAMES_PER_PAGE

    def withdraw(self, telling: Hint, others: Iterable[Hint], now: float) -> int:
        """Expect no longer what was told and is unread, but for what `others` have told as well; how many objects that
        are. What of them is here or on its way is kept as anything else is."""
        self._now = now
        others = list(others)
        count = 0
        for dataset, one, keys in list(telling.unread()):
            for other in others:
                keys.difference_update(other.indexes_of(one))
            if not keys:
                continue
            dataset.withdraw(one, keys, now)
            count += len(keys)
            for key in keys:
                # That it came in vain is nobody's wrong guess, and no reason to fetch less for a later plan.
                for here in (dataset.cached.get(key), self._handed.get((dataset, key))):
                    if here is not None:
                        here.excused = True
        return count

    def found(self, ref: ObjectRef, size: int) -> tuple[int, ...]:
        """The size of a wanted object is known now: the blocks of it that are wanted, too."""
        dataset, key = self.registry.item(ref)
        unknown = dataset.names.sizes[key] < 0
        dataset.names.sizes[key] = dataset.usual_bytes = size
        handed = self._handed.of(ref)
        if handed is None or not unknown:
            return ()
        count = max(1, block_count(size, self._block_bytes))
        self._handed.found(handed, count, self._disk_bytes(-(-size // count)))
        return tuple(range(1, count))

    # -- facts: blocks (the policy's side) ----------------------------------------------------------------------

    def added(self, block: BlockKey, version: ObjectVersion) -> None:
        item = dataset, key = self.registry.item(version.ref)
        cached = self._cached.get(block.version_id)
        if cached is None:
            dataset.names.sizes[key] = dataset.usual_bytes = version.size
            handed = self._handed.of(version.ref)
            count = block_count(version.size, self._block_bytes)
            block_bytes = self._disk_bytes(-(-version.size // count))
            cached = CachedObject(
                dataset, key, block.version_id, count, block_bytes, self._now, self._now,
                ahead=handed is not None and not handed.asked_for, excused=handed is not None and handed.excused,
                reading=item in self._open_objects,
            )  # fmt: skip
            self._cached[block.version_id] = cached
            if (old := dataset.cached.get(key)) is not None:
                dataset.next_use.drop(old)
                # Its readers' end would be told of the new one.
                old.reading = False
                self._outdated[old.version_id] = old
            dataset.next_use.add(cached, self._now)
        cached.present |= 1 << block.index
        dataset.kept_bytes += cached.block_bytes
        if cached.ahead:
            self.fetched_bytes += cached.block_bytes
        self._handed.landed(version.ref, 1 << block.index, self._now)

    def dropped(self, ref: ObjectRef, *, again: bool = True, missing: bool = False) -> None:
        """What is still missing of a wanted object will not come. `again`: it may come when it is tried again;
        `missing`: there is no such object, or it is not to be had."""
        dataset, key = self.registry.item(ref)
        if self._handed.of(ref) is not None:
            self._handed.drop(ref)
            if again:
                self._fetch_again(dataset, key)
            elif missing:
                self._discovery.missed(dataset, key, self._now)

    def _fetch_again(self, dataset: Dataset, key: int) -> None:
        for one in dataset.epochs():
            one.fetch_again(key)

    def read(self, block: BlockKey) -> None:
        cached = self._cached.get(block.version_id)
        if cached is not None:
            cached.served |= 1 << block.index
            cached.used_at = cached.dataset.active_at = self._now
            self._open_objects.heard_of((cached.dataset, cached.index), self._now)

    def removed(self, block: BlockKey) -> None:
        cached = self._cached.get(block.version_id)
        if cached is None:
            return
        cached.present &= ~(1 << block.index)
        dataset = cached.dataset
        dataset.kept_bytes -= cached.block_bytes
        if cached.ahead:
            self.wasted_bytes += cached.block_bytes
            if not cached.excused:
                self._owing[dataset] = self._owing.get(dataset, 0.0) + cached.block_bytes
        if dataset.cached.get(cached.index) is cached:
            # An outdated one's number may be from before the set was forgotten.
            self._fetch_again(dataset, cached.index)
        if not cached.present:
            del self._cached[block.version_id]
            self._outdated.pop(block.version_id, None)
            dataset.next_use.drop(cached)

    # -- decisions: what may go ---------------------------------------------------------------------------------

    def victims(self, incoming: BlockKey | None = None, version: ObjectVersion | None = None) -> Iterator[BlockKey]:
        sooner_s = -1.0
        if incoming is not None and version is not None:
            dataset, key = self.registry.item(version.ref)
            handed = self._handed.of(version.ref)
            if handed is not None and not handed.asked_for and handed.missing >> incoming.index & 1:
                # For what nobody waits for, only those may go that are needed later.
                sooner_s = self._worth(dataset, key)
        return self._victims(sooner_s)

    def _worth(self, dataset: Dataset, key: int) -> float:
        """Seconds beyond which the next use of a block must lie that goes for this object."""
        return min((one.seconds(self._now) * (one.until(key) + SOONER) for one in dataset.epochs()), default=FAREST)

    def _victims(self, later_than_s: float) -> Iterator[BlockKey]:
        for cached in self._farthest(later_than_s):
            yield from blocks_of(cached)

    def _farthest(self, later_than_s: float) -> Iterator[CachedObject]:
        """What is needed later than that, about the farthest first."""
        if self._pins_released != self._pins.released:
            self._pins_released = self._pins.released
            for dataset in self.registry.datasets():
                dataset.next_use.put_back(self._now)
        holds = self._pins.holds
        if self._outdated:
            yield from (cached for cached in self._outdated.values() if not holds(cached.version_id))
        passed_by: list[CachedObject] = []
        try:
            for seconds, cached in self.registry.farthest(self._now):
                if seconds <= later_than_s:
                    return
                if holds(cached.version_id):
                    passed_by.append(cached)
                else:
                    yield cached
        finally:
            for cached in passed_by:
                cached.dataset.next_use.set_aside(cached)

    # -- decisions: what to fetch -------------------------------------------------------------------------------

    def wants(self, now: float, free_bytes: int, blocks: int) -> list[Want]:
        """What to fetch now, most urgent first: some `blocks` blocks at most are on their way for the planner at any
        time. `free_bytes`: room that is neither used nor reserved. Each object handed out must end in `added` for each
        of its blocks, or in `dropped`."""
        self._now = now
        return self._candidates.wants(now, free_bytes, blocks)

    def ponder(self) -> bool:
        """Think for about 0.1 ms of what takes longer, such as by which sampler a job reads; whether there is more to
        think of. After the last time there may be more to want."""
        return self._candidates.go_on() or self._order_search.step()

    @property
    def blocks_coming(self) -> int:
        """Handed out to be fetched, and not here yet."""
        return self._handed.blocks

    @property
    def bytes_coming(self) -> int:
        return self._handed.bytes

    def is_coming(self, dataset: Dataset, key: int) -> bool:
        return (dataset, key) in self._handed

    def _may_fetch(self, dataset: Dataset) -> bool:
        return self._owing.get(dataset, 0.0) <= _WASTE * self._capacity_bytes + 2 * self._block_bytes
