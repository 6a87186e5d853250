"""All known datasets, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, Sequence, ValuesView
from dataclasses import dataclass
from heapq import heappop, heappush, heapreplace, merge, nsmallest
from operator import itemgetter

from outrider.core.ahead.dataset.cached_objects import CachedObject
from outrider.core.ahead.dataset.dataset import Dataset
from outrider.core.ahead.dataset.saved_datasets import packed, unpacked
from outrider.core.ahead.dataset.templates import Templates, template_of
from outrider.core.cache.pins import Pins
from outrider.core.memo import Memo
from outrider.core.model import ObjectRef

Item = tuple[Dataset, int]
"""An object: its dataset and its index there."""

_DATASETS_MAX = 4096
# Beyond that number, so many datasets are forgotten at once, since the choice has to look at all of them.
_FORGOTTEN_AT_ONCE = 256
# A dataset is shrunk only if more than this part of its names (one in 16) belongs to no cached object.
_WORTH_SHRINKING = 16
# Up to so many datasets, each search for victims asks all of them for their farthest object. With more, these are
# remembered for so many seconds.
_FEW_DATASETS, _FARTHEST_KEPT_S = 16, 0.25
# More than there are readers at once, as a rule.
_ITEMS_MAX = 128


@dataclass(frozen=True, slots=True)
class Outlook:
    """How well the recent reads were predicted, and how large the datasets are that they were of."""

    # Reads of epochs whose order is known.
    ordered_reads: int = 0
    # Reads of epochs that read all of a known set, in an unknown order.
    set_reads: int = 0
    # Reads of epochs that read a part of a known set, chosen anew each time.
    part_reads: int = 0
    # All other reads.
    free_reads: int = 0
    # The sizes of the datasets that are read in a known order, and of the other known ones.
    ordered_bytes: int = 0
    set_bytes: int = 0


class DatasetRegistry:
    """Finds the dataset and the index of each object.

    Invariant: `len` is the number of all names in all datasets. Beyond `keys_max` names, or `_DATASETS_MAX` datasets,
    the dataset that was silent for longest is forgotten, except for the names of its cached objects.
    """

    def __init__(
        self, keys_max: int, forget: Callable[[Dataset], None], move: Callable[[Mapping[Item, Item]], None],
        templates: Templates,
    ) -> None:  # fmt: skip
        """`forget` is called before the indexes of a dataset change, `move` after objects went from one dataset to
        another. `templates` says which keys belong together."""
        self._keys_max = keys_max
        self._forget = forget
        self._move = move
        self._templates = templates
        # The value of `templates.mergers` when the datasets were last merged accordingly.
        self._mergers = 0
        self._datasets: dict[tuple[str, str], Dataset] = {}
        # At so many datasets, the next attempt is made to forget some. It fails where all of them have cached objects.
        self._forget_some_at = _DATASETS_MAX
        self._keys = 0
        # The dataset that was requested last.
        self._last: Dataset | None = None
        # The items of late: each read asks for its own some four times.
        self._items: Memo[ObjectRef, Item] = Memo(_ITEMS_MAX)
        # For more than a few datasets: the seconds until the next use of the farthest object of each, the farthest
        # first; which datasets are in there; and since when that is remembered.
        self._farthest_s: list[tuple[float, Dataset]] = []
        self._has_farthest: set[Dataset] = set()
        self._farthest_at = 0.0

    def __len__(self) -> int:
        return self._keys

    def datasets(self) -> ValuesView[Dataset]:
        return self._datasets.values()

    def items(self) -> ItemsView[tuple[str, str], Dataset]:
        return self._datasets.items()

    def find(self, name: tuple[str, str]) -> Dataset | None:
        """By its bucket and its template."""
        return self._datasets.get(name)

    # -- from keys to datasets ----------------------------------------------------------------------------------

    def dataset(self, ref: ObjectRef) -> Dataset:
        return self._named(self._name_of(ref.bucket, ref.key))

    def item(self, ref: ObjectRef) -> Item:
        found = self._items.get(ref)
        if found is None:
            found = self._find_item(ref)
            self._items.put(ref, found)
        return found

    def _find_item(self, ref: ObjectRef) -> Item:
        # Nearly always it is of the dataset of the last call. A dataset that was forgotten has no names, so it is not
        # found by this.
        last = self._last
        if last is not None and last.bucket == ref.bucket and (index := last.names.find(ref.key)) is not None:
            return last, index
        self._last = self.dataset(ref)
        return self._item_of(self._last, ref.key)

    def items_of(self, refs: Sequence[ObjectRef], now: float) -> dict[Dataset, list[int]]:
        """The indexes of the objects of a hint, by dataset. A dataset among them may be forgotten to make room for
        another one of them; then some objects are missing."""
        names = self._names_of(refs)
        alone = [ref for ref, name in zip(refs, names, strict=True) if not self._has_several(name)]
        for bucket in {ref.bucket for ref in alone}:
            self._templates.hinted_together(bucket, (ref.key for ref in alone if ref.bucket == bucket))
        if self._templates.mergers != self._mergers:
            names = self._names_of(refs)
        indexes: dict[Dataset, list[int]] = {}
        for _ in range(2):
            for ref, name in zip(refs, names, strict=True):
                self._item_of(self._named(name), ref.key)[0].active_at = now
            indexes.clear()
            for ref, name in zip(refs, names, strict=True):
                dataset = self._datasets.get(name)
                if dataset is not None and (index := dataset.names.find(ref.key)) is not None:
                    indexes.setdefault(dataset, []).append(index)
            if sum(map(len, indexes.values())) == len(refs):
                break
        return indexes

    def _item_of(self, dataset: Dataset, key: str) -> Item:
        index = dataset.names.find(key)
        if index is None:
            while self._keys >= self._keys_max and self.forget_oldest(dataset):
                pass
            self._keys += 1
            index = dataset.append_name(key)
        return dataset, index

    def _name_of(self, bucket: str, key: str) -> tuple[str, str]:
        own = bucket, template_of(key)
        if self._has_several(own):
            # A dataset of several names stays one, whatever other names are found beside it.
            return own
        name = bucket, self._templates.of(bucket, key)
        if self._templates.mergers != self._mergers:
            self._mergers = self._templates.mergers
            self._merge_datasets()
        return name

    def _names_of(self, refs: Sequence[ObjectRef]) -> list[tuple[str, str]]:
        mergers, names = -1, list[tuple[str, str]]()
        while self._mergers != mergers:
            # A merger that a later key causes may rename the dataset of an earlier one.
            mergers = self._mergers
            names = [self._name_of(bucket, key) for bucket, key in refs]
        return names

    def _named(self, name: tuple[str, str]) -> Dataset:
        dataset = self._datasets.get(name)
        if dataset is None:
            if len(self._datasets) >= self._forget_some_at:
                self._forget_some()
            dataset = self._datasets[name] = Dataset(*name)
        return dataset

    def _has_several(self, name: tuple[str, str]) -> bool:
        dataset = self._datasets.get(name)
        return dataset is not None and len(dataset.names.keys) > 1

    def _merge_datasets(self) -> None:
        """Moves each dataset of one name into the dataset that `templates` now names for it."""
        moves = []
        for dataset in self._datasets.values():
            if len(dataset.names.keys) == 1:
                name = dataset.bucket, self._templates.of(dataset.bucket, dataset.names.keys[0])
                if name[1] != dataset.template:
                    moves.append((dataset, name))
        moved: dict[Item, Item] = {}
        for dataset, name in sorted(moves, key=lambda move: move[0].active_at):
            whole = self._datasets.get(name)
            if whole is None:
                # `_named` would make room first, and might forget one of the datasets to be moved.
                whole = self._datasets[name] = Dataset(*name)
            if dataset.cached and whole.names.find(dataset.names.keys[0]) in whole.cached:
                continue  # `whole` has another version of the object
            del self._datasets[dataset.bucket, dataset.template]
            before = len(whole.names.keys)
            moved[dataset, 0] = whole, whole.take_in(dataset)
            self._keys += len(whole.names.keys) - before - 1
        self._items.clear()
        self._move(moved)

    # -- lists --------------------------------------------------------------------------------------------------

    def list(
        self, bucket: str, entries: Iterable[tuple[str, int]], *, prefix: str | None = None, numbered: bool = False
    ) -> list[Dataset]:
        """Adds keys and sizes that a LIST, or if `numbered` the numbering of names, has shown.

        Only the LIST of a dataset's own `prefix` is complete, so only that one replaces numbered names; None: the LIST
        is complete for all datasets. Returns the datasets that have the entries. A dataset for which there is no room
        is left as it is: it is known only by its reads.
        """
        entries = list(entries)
        by_template: dict[str, list[tuple[str, int]]] = {}
        names = self._names_of([ObjectRef(bucket, key) for key, _ in entries])
        for (_, template), entry in zip(names, entries, strict=True):
            by_template.setdefault(template, []).append(entry)
        listed = []
        for template, its_entries in by_template.items():
            dataset = self._datasets.get((bucket, template))
            if dataset is None:
                dataset = Dataset(bucket, template)
            new = sum(dataset.names.find(key) is None for key, _ in its_entries)
            if self._has_room_for(dataset, new):
                self._datasets[bucket, template] = dataset
                self._keys += new
                is_complete = not numbered and prefix in (None, dataset.prefix)
                if is_complete and (dataset.discovery.is_numbered or dataset.names.has_staged):
                    dataset.names.stage(its_entries)
                else:
                    dataset.names.list(its_entries)
                dataset.discovery.is_numbered |= numbered
                listed.append(dataset)
            else:
                dataset.discovery.too_many_names = True
        return listed

    def _has_room_for(self, dataset: Dataset, new_keys: int) -> bool:
        """Whether the dataset may have so many new names without another one being forgotten."""
        known = (dataset.bucket, dataset.template) in self._datasets
        return self._keys + new_keys <= self._keys_max and (known or len(self._datasets) < _DATASETS_MAX)

    # -- the next reads -----------------------------------------------------------------------------------------

    def farthest(self, now: float) -> Iterator[tuple[float, CachedObject]]:
        """See `NextUse.farthest`, over all datasets.

        Among many datasets, such as a folder for each class, only those are searched whose farthest object is about as
        far as the objects found so far.
        """
        datasets = [dataset for dataset in self._datasets.values() if dataset.next_use.recent.count]
        if len(datasets) == 1:
            return datasets[0].next_use.farthest(now)
        if len(datasets) <= _FEW_DATASETS:
            return merge(*(dataset.next_use.farthest(now) for dataset in datasets), key=lambda pair: -pair[0])
        if now - self._farthest_at > _FARTHEST_KEPT_S:
            self._farthest_s, self._has_farthest, self._farthest_at = [], set(), now
        if new := [dataset for dataset in datasets if dataset not in self._has_farthest]:
            # Added to the others, which would otherwise be looked at again whenever a dataset comes or goes.
            self._farthest_s += ((next(dataset.next_use.farthest(now))[0], dataset) for dataset in new)
            self._farthest_s.sort(key=itemgetter(0), reverse=True)
            self._has_farthest.update(new)
        return self._farthest_of_many(now)

    def _farthest_of_many(self, now: float) -> Iterator[tuple[float, CachedObject]]:
        begun: _Begun = []
        for number, (farthest_s, dataset) in enumerate(self._farthest_s):
            while begun and -begun[0][0] >= farthest_s:
                yield _next_of(begun)
            objects = dataset.next_use.farthest(now)
            if (pair := next(objects, None)) is not None:
                heappush(begun, (-pair[0], number, pair[1], objects))
        while begun:
            yield _next_of(begun)

    # -- bounds -------------------------------------------------------------------------------------------------

    def _forget_some(self) -> None:
        """Forgets the datasets without cached objects that were silent for longest."""
        empty = [dataset for dataset in self._datasets.values() if not dataset.cached]
        for dataset in nsmallest(_FORGOTTEN_AT_ONCE, empty, key=lambda dataset: dataset.active_at):
            self._forget(dataset)
            self._keys -= len(dataset.names.keys)
            dataset.shrink()
            del self._datasets[dataset.bucket, dataset.template]
        self._items.clear()
        self._forget_some_at = max(_DATASETS_MAX, len(self._datasets) + _FORGOTTEN_AT_ONCE)

    def forget_oldest(self, wanted: Dataset) -> bool:
        """Makes room for a name of `wanted`. False: no other dataset can be forgotten."""
        # To number a dataset anew for a few names would cost more than these names take.
        idle = [dataset for dataset in self._datasets.values()
                if (count := len(dataset.names.keys)) - len(dataset.cached) > count // _WORTH_SHRINKING]  # fmt: skip
        if not idle:
            return False
        oldest = min(idle, key=lambda dataset: (dataset is wanted, dataset.active_at))
        self._forget(oldest)
        self._keys -= len(oldest.names.keys)
        oldest.shrink()
        self._keys += len(oldest.names.keys)
        self._items.clear()
        if oldest is wanted:
            # No other dataset was left to be forgotten. Another LIST of this one would only end here again.
            oldest.discovery.too_many_names = True
        if not oldest.cached and oldest is not wanted:
            del self._datasets[oldest.bucket, oldest.template]
        return oldest is not wanted

    # -- over a restart, and for the status page ----------------------------------------------------------------

    def export(self) -> bytes:
        return packed(list(self._datasets.values()))

    def restore(self, data: bytes) -> None:
        """Raises ValueError: `export` did not write `data`."""
        for dataset in unpacked(data):
            count = len(dataset.names.keys)
            if (dataset.bucket, dataset.template) not in self._datasets and self._has_room_for(dataset, count):
                self._templates.remember(dataset.bucket, dataset.template, dataset.names.keys)
                self._keys += count
                self._datasets[dataset.bucket, dataset.template] = dataset

    def outlook(self) -> Outlook:
        ordered = known = part = free = ordered_bytes = known_bytes = 0
        for dataset in self._datasets.values():
            epochs = dataset.epochs()
            if not epochs:
                free += sum(epoch.reads for job in dataset.jobs.values() for epoch in job.epochs)
                continue
            sample = epochs[0].sequence()[:64]
            mean = sum(max(0, dataset.names.sizes[index]) for index in sample) / max(1, len(sample))
            total, reads = int(mean * epochs[0].size), sum(epoch.reads for epoch in epochs)
            if epochs[0].order_known:
                ordered, ordered_bytes = ordered + reads, ordered_bytes + total
            else:
                known_bytes += total
                if epochs[0].trusted:
                    known += reads
                else:
                    part += reads
        return Outlook(ordered, known, part, free, ordered_bytes, known_bytes)


class Victims:
    """Objects that `pins` hold are never victims."""

    def __init__(self, registry: DatasetRegistry, pins: Pins) -> None:
        self._registry = registry
        self._pins = pins
        self._pins_released = 0
        self.outdated: dict[bytes, CachedObject] = {}
        """Versions that another version has replaced. No client will ask for them."""

    def farthest(self, later_than_s: float, now: float) -> Iterator[CachedObject]:
        """The outdated versions, and then the objects that are needed later than in so many
        seconds, about the farthest first."""
        if self._pins_released != self._pins.released:
            self._pins_released = self._pins.released
            for dataset in self._registry.datasets():
                dataset.next_use.put_back(now)
        holds = self._pins.holds
        if self.outdated:
            yield from (cached for cached in self.outdated.values() if not holds(cached.version_id))
        pinned: list[CachedObject] = []
        try:
            for seconds, cached in self._registry.farthest(now):
                if seconds <= later_than_s:
                    if cached.broken:
                        continue
                    return
                if holds(cached.version_id):
                    pinned.append(cached)
                else:
                    yield cached
        finally:
            for cached in pinned:
                cached.dataset.next_use.set_aside(cached)


_Begun = list[tuple[float, int, CachedObject, Iterator[tuple[float, CachedObject]]]]
"""A heap of datasets that are being searched: the negative seconds until the next use of the farthest object left, a
number that breaks ties, that object, and the objects after it."""


def _next_of(begun: _Begun) -> tuple[float, CachedObject]:
    negative_s, number, cached, objects = begun[0]
    if (pair := next(objects, None)) is not None:
        heapreplace(begun, (-pair[0], number, pair[1], objects))
    else:
        heappop(begun)
    return -negative_s, cached
