"""All datasets that are known, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, Sequence, ValuesView
from dataclasses import dataclass
from heapq import heappop, heappush, heapreplace, merge, nsmallest
from operator import itemgetter

from outrider.core.ahead.dataset.dataset import CachedObject, Dataset
from outrider.core.ahead.dataset.learned_state import packed, unpacked
from outrider.core.ahead.dataset.templates import Templates, template_of
from outrider.core.model import ObjectRef

Item = tuple[Dataset, int]
"""An object: its dataset and its number there."""

_DATASETS_MAX = 4096
# Beyond that so many are forgotten at once: whose turn it is, is found by looking at all.
_FORGOTTEN_AT_ONCE = 256
# A set is forgotten for a part of its names that is larger than this, and none where nothing is kept of it.
_WORTH_IT = 16
# Sets of which the first in line is found anew each time; of more, so long after it was last.
_FEW_SETS, _FIRSTS_S = 16, 0.25


@dataclass(frozen=True, slots=True)
class Outlook:
    """What is foreseen: lately how many reads of passes whose order is known, of those whose set is, of those that read
    a part of a known set, chosen anew each time, and of the rest; and how large the datasets are that are read in a
    known order, and the others that are known."""

    ordered_reads: int = 0
    set_reads: int = 0
    part_reads: int = 0
    free_reads: int = 0
    ordered_bytes: int = 0
    set_bytes: int = 0


class DatasetRegistry:
    """Beyond `keys_max` names, or many datasets, what was silent for longest is forgotten, but for what is kept of it.

    `forget` is told of a dataset whose numbers are about to change, `move` of objects that go from a dataset to another
    one. `templates` says which names belong together.
    """

    def __init__(
        self, keys_max: int, forget: Callable[[Dataset], None], move: Callable[[Mapping[Item, Item]], None],
        templates: Templates,
    ) -> None:  # fmt: skip
        self._keys_max = keys_max
        self._forget = forget
        self._move = move
        self._templates = templates
        self._mergers = 0
        self._datasets: dict[tuple[str, str], Dataset] = {}
        # With so many sets it is tried next to forget some: where all hold what is kept, there is none to forget.
        self._crowd = _DATASETS_MAX
        self._keys = 0
        self._last: Dataset | None = None
        # Of sets that have any victims, or had, the first of each, the farthest first.
        self._firsts: list[tuple[float, Dataset]] = []
        self._begun_with: set[Dataset] = set()
        self._firsts_at = 0.0

    def __len__(self) -> int:
        return self._keys

    def datasets(self) -> ValuesView[Dataset]:
        return self._datasets.values()

    def items(self) -> ItemsView[tuple[str, str], Dataset]:
        return self._datasets.items()

    def dataset(self, ref: ObjectRef) -> Dataset:
        return self._named(self._name_of(ref.bucket, ref.key))

    def _name_of(self, bucket: str, key: str) -> tuple[str, str]:
        own = bucket, template_of(key)
        if self._has_several(own):
            # A set that is one stays one, whatever comes beside it.
            return own
        name = bucket, self._templates.of(bucket, key)
        if self._templates.mergers != self._mergers:
            self._mergers = self._templates.mergers
            self._gather()
        return name

    def _named(self, name: tuple[str, str]) -> Dataset:
        dataset = self._datasets.get(name)
        if dataset is None:
            if len(self._datasets) >= self._crowd:
                self._forget_some()
            dataset = self._datasets[name] = Dataset(*name)
        return dataset

    def _gather(self) -> None:
        """Of the sets with one name each, those that are part of another one now go into that."""
        moves = []
        for one in self._datasets.values():
            if len(one.names.keys) == 1:
                name = one.bucket, self._templates.of(one.bucket, one.names.keys[0])
                if name[1] != one.template:
                    moves.append((one, name))
        moved: dict[Item, Item] = {}
        for one, name in sorted(moves, key=lambda move: move[0].active_at):
            whole = self._datasets.get(name)
            if whole is None:
                # Without room made for it, or some of these would be forgotten.
                whole = self._datasets[name] = Dataset(*name)
            if one.cached and whole.names.known(one.names.keys[0]) in whole.cached:
                continue  # of another version
            del self._datasets[one.bucket, one.template]
            before = len(whole.names.keys)
            moved[one, 0] = whole, whole.take_in(one)
            self._keys += len(whole.names.keys) - before - 1
        self._move(moved)

    def _names_of(self, refs: Sequence[ObjectRef]) -> list[tuple[str, str]]:
        mergers, names = -1, list[tuple[str, str]]()
        while self._mergers != mergers:
            # What the last of them tell may concern the first.
            mergers = self._mergers
            names = [self._name_of(bucket, key) for bucket, key in refs]
        return names

    def item(self, ref: ObjectRef) -> Item:
        # Asked for some four times with each read, nearly always of the set that was asked for last: a set that is
        # gone has no names.
        last = self._last
        if last is not None and last.bucket == ref.bucket and (number := last.names.known(ref.key)) is not None:
            return last, number
        self._last = self.dataset(ref)
        return self._item_of(self._last, ref.key)

    def _item_of(self, dataset: Dataset, key: str) -> Item:
        if dataset.names.known(key) is None:
            while self._keys >= self._keys_max and self._forget_oldest(dataset):
                pass
            self._keys += 1
        return dataset, dataset.number(key)

    def numbered(self, refs: Sequence[ObjectRef], now: float) -> dict[Dataset, list[int]]:
        """The same for many at once, that are spoken of at `now`: a set among them may be forgotten for another."""
        names = self._names_of(refs)
        alone = [ref for ref, name in zip(refs, names, strict=True) if not self._has_several(name)]
        for bucket in {ref.bucket for ref in alone}:
            self._templates.told_together(bucket, (ref.key for ref in alone if ref.bucket == bucket))
        if self._templates.mergers != self._mergers:
            names = self._names_of(refs)
        keys: dict[Dataset, list[int]] = {}
        for _ in range(2):
            for ref, name in zip(refs, names, strict=True):
                self._item_of(self._named(name), ref.key)[0].active_at = now
            keys.clear()
            for ref, name in zip(refs, names, strict=True):
                dataset = self._datasets.get(name)
                if dataset is not None and (key := dataset.names.known(ref.key)) is not None:
                    keys.setdefault(dataset, []).append(key)
            if sum(map(len, keys.values())) == len(refs):
                break
        return keys

    def _has_several(self, name: tuple[str, str]) -> bool:
        dataset = self._datasets.get(name)
        return dataset is not None and len(dataset.names.keys) > 1

    def list(
        self, bucket: str, entries: Iterable[tuple[str, int]], *, prefix: str | None = None, counted: bool = False
    ) -> list[Dataset]:
        """The datasets that a LIST has told more of, or, if `counted`, the numbers in their names. `prefix`: whose LIST
        it is, which alone will take the place of what was counted; None: everybody's. One with too many names, or one
        too many, stays as it is: it is read as it comes."""
        entries = list(entries)
        found: dict[str, list[tuple[str, int]]] = {}
        names = self._names_of([ObjectRef(bucket, key) for key, _ in entries])
        for (_, template), entry in zip(names, entries, strict=True):
            found.setdefault(template, []).append(entry)
        told = []
        for template, its in found.items():
            dataset = self._datasets.get((bucket, template))
            if dataset is None:
                dataset = Dataset(bucket, template)
            new = sum(dataset.names.known(name) is None for name, _ in its)
            if self._may_have(dataset, new):
                self._datasets[bucket, template] = dataset
                self._keys += new
                own = not counted and prefix in (None, dataset.prefix)
                if own and (dataset.search.counted or dataset.names.is_listed_anew):
                    dataset.names.list_anew(its)
                else:
                    dataset.names.list(its)
                dataset.search.counted |= counted
                told.append(dataset)
            else:
                dataset.search.too_many = True
        return told

    def _may_have(self, dataset: Dataset, new_keys: int) -> bool:
        """Whether there is room for it with so many more names, and nothing need be forgotten."""
        known = (dataset.bucket, dataset.template) in self._datasets
        return self._keys + new_keys <= self._keys_max and (known or len(self._datasets) < _DATASETS_MAX)

    def farthest(self, now: float) -> Iterator[tuple[float, CachedObject]]:
        """See `Dataset.farthest`, of all sets. Of many, such as a folder for each class, only those are begun with of
        which the first is about as far as what was found so far."""
        sets = [one for one in self._datasets.values() if one.recent]
        if len(sets) == 1:
            return sets[0].farthest(now)
        if len(sets) <= _FEW_SETS:
            return merge(*(one.farthest(now) for one in sets), key=lambda pair: -pair[0])
        if now - self._firsts_at > _FIRSTS_S:
            self._firsts, self._begun_with, self._firsts_at = [], set(), now
        if new := [one for one in sets if one not in self._begun_with]:
            # In place of all, which would be looked at again with each of the sets that come and go.
            self._firsts += ((next(one.farthest(now))[0], one) for one in new)
            self._firsts.sort(key=itemgetter(0), reverse=True)
            self._begun_with.update(new)
        return self._farthest_of_many(now)

    def _farthest_of_many(self, now: float) -> Iterator[tuple[float, CachedObject]]:
        begun: list[tuple[float, int, CachedObject, Iterator[tuple[float, CachedObject]]]] = []
        for number, (first_s, one) in enumerate(self._firsts):
            while begun and -begun[0][0] >= first_s:
                yield _next_of(begun)
            its = one.farthest(now)
            if (pair := next(its, None)) is not None:
                heappush(begun, (-pair[0], number, pair[1], its))
        while begun:
            yield _next_of(begun)

    def _forget_some(self) -> None:
        """Of many sets, those of which nothing is kept and that were silent for longest."""
        empty = [one for one in self._datasets.values() if not one.cached]
        for one in nsmallest(_FORGOTTEN_AT_ONCE, empty, key=lambda one: one.active_at):
            self._forget(one)
            self._keys -= len(one.names.keys)
            one.shrink()
            del self._datasets[one.bucket, one.template]
        self._crowd = max(_DATASETS_MAX, len(self._datasets) + _FORGOTTEN_AT_ONCE)

    def _forget_oldest(self, wanted: Dataset) -> bool:
        """False: nothing more can be forgotten."""
        # To number all anew for a few names would cost more than they take.
        idle = [one for one in self._datasets.values()
                if (count := len(one.names.keys)) - len(one.cached) > count // _WORTH_IT]  # fmt: skip
        if not idle:
            return False
        oldest = min(idle, key=lambda one: (one is wanted, one.active_at))
        self._forget(oldest)
        self._keys -= len(oldest.names.keys)
        oldest.shrink()
        self._keys += len(oldest.names.keys)
        if oldest is wanted:
            # No other was left to be forgotten: listed again, it would only be forgotten again.
            oldest.search.too_many = True
        if not oldest.cached and oldest is not wanted:
            del self._datasets[oldest.bucket, oldest.template]
        return oldest is not wanted

    # -- over a restart, and for the eye ------------------------------------------------------------------------

    def export(self) -> bytes:
        return packed(list(self._datasets.values()))

    def restore(self, data: bytes) -> None:
        """Raises ValueError: `data` is nothing that `export` wrote."""
        for dataset in unpacked(data):
            count = len(dataset.names.keys)
            if (dataset.bucket, dataset.template) not in self._datasets and self._may_have(dataset, count):
                self._templates.remember(dataset.bucket, dataset.template, dataset.names.keys)
                self._keys += count
                self._datasets[dataset.bucket, dataset.template] = dataset

    def outlook(self) -> Outlook:
        ordered = known = part = free = ordered_bytes = known_bytes = 0
        for dataset in self._datasets.values():
            epochs = dataset.epochs()
            if not epochs:
                free += sum(one.reads for job in dataset.jobs.values() for one in job.epochs)
                continue
            some = epochs[0].sequence()[:64]
            mean = sum(max(0, dataset.names.sizes[key]) for key in some) / max(1, len(some))
            total, reads = int(mean * epochs[0].size), sum(one.reads for one in epochs)
            if epochs[0].order_known:
                ordered, ordered_bytes = ordered + reads, ordered_bytes + total
            else:
                known_bytes += total
                if epochs[0].trusted:
                    known += reads
                else:
                    part += reads
        return Outlook(ordered, known, part, free, ordered_bytes, known_bytes)


def _next_of(
    begun: list[tuple[float, int, CachedObject, Iterator[tuple[float, CachedObject]]]],
) -> tuple[float, CachedObject]:
    negative_s, number, cached, its = begun[0]
    if (pair := next(its, None)) is not None:
        heapreplace(begun, (-pair[0], number, pair[1], its))
    else:
        heappop(begun)
    return -negative_s, cached
