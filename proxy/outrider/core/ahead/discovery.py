"""When it is worth to find out which objects a dataset has, and how: by a LIST, or by the numbers in its names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from outrider.core.ahead.dataset.dataset import Dataset
from outrider.core.ahead.dataset.registry import DatasetRegistry
from outrider.core.ahead.numbered_names import NumberedNames, numbering_of
from outrider.core.model import ObjectRef

# Keys of a template after which its set is looked for.
_KEYS_MIN = 3
# A LIST takes some 300 bytes a name. Of objects smaller than this that is more than a hundredth of what is read, and
# where they are small indeed, a good part of it: if they count, a few questions tell which there are.
_SMALL_BYTES = 30_000
# Names that tell how they count.
_LOOKED_AT = 64
# So many names of which none is there, and of so many one: they do not count as it was thought.
_HOLES_MAX, _HOLES_PART = 8, 8
# After so many sets in a row of a bucket that did not count, or have fewer names than that, the others are listed at
# once: a small set takes some 15 HEADs, which is as much as a page of a LIST.
_IN_VAIN_MAX, _WORTH_COUNTING = 4, 128
# A LIST that is refused is not asked for again for so long: rights may change, and tokens expire.
_REFUSED_S = 3600.0
# A LIST of a page costs as much as a dozen HEADs (S3's price list), and one trip: it pays where more names than that
# would have to be asked about again.
_READS_PER_PAGE = 16
NAMES_PER_PAGE = 1000
# After this part of the time for which names are believed they are listed again, so that they never grow stale.
_LIST_AGAIN = 0.75
# Of objects that are hardly larger than their line in a LIST it must spare as many questions, about what has been here
# for a while: what is not here is asked for in any case, and what came a moment ago was asked about just then. Else it
# is for new names alone, and they can wait. (In DELI's world, of 1 KiB, a LIST that spared nothing had the line for a
# second and a half, and each read waited 10 ms longer meanwhile.)
_TINY_BYTES = 4096
_FOR_NAMES_ALONE = 10
FAREST = float("inf")


class Discovery:
    """Called from one thread. What is worth asking the origin is handed out once; see `Planner.please_list`,
    `please_count`."""

    def __init__(self, registry: DatasetRegistry, believed_s: Callable[[ObjectRef], float]) -> None:
        self._registry = registry
        self._believed_s = believed_s
        self._lists: list[tuple[str, str]] = []
        self._counts: list[tuple[str, NumberedNames]] = []
        # Buckets and prefixes of which a LIST was asked for that has not ended: one tells all sets under it.
        self._under_way: set[tuple[str, str]] = set()
        # Of each bucket, how many sets in a row were not worth to be counted.
        self._in_vain: Counter[str] = Counter()

    def please_list(self) -> list[tuple[str, str]]:
        lists, self._lists = self._lists, []
        return lists

    def please_count(self) -> list[tuple[str, NumberedNames]]:
        counts, self._counts = self._counts, []
        return counts

    # -- reads --------------------------------------------------------------------------------------------------

    def opened(self, dataset: Dataset, key: int, ref: ObjectRef, now: float) -> None:
        search = dataset.search
        if (
            not search.wanted
            and (not dataset.names.listed or search.cut)
            and not dataset.is_told
            and not search.too_many
            and now >= search.not_before
            and len(dataset.names.keys) >= _KEYS_MIN
        ):
            search.wanted = True
            is_small = 0 <= dataset.usual_bytes < _SMALL_BYTES and self._in_vain[dataset.bucket] < _IN_VAIN_MAX
            if not ((is_small or now < search.refused_until) and self._count(dataset, now)):
                self._list(dataset, now)
        elif search.counted and dataset.names.rank_of(key) < 0:
            self._doubt(dataset, now)
        self._think_of_listing_again(dataset, key, ref, now)

    def _think_of_listing_again(self, dataset: Dataset, key: int, ref: ObjectRef, now: float) -> None:
        search = dataset.search
        if search.too_many or (not dataset.names.listed and (search.wanted or not dataset.is_told)):
            return
        believed_s, pays = self._believed_s(ref), _READS_PER_PAGE * search.pages
        since_s, pause_s = now - search.begun_at, _LIST_AGAIN * believed_s
        search.reads_since += 1
        search.spared_since += now - dataset.came_at(key) >= pause_s
        if 0 <= dataset.usual_bytes < _TINY_BYTES and search.spared_since < pays:
            pause_s *= _FOR_NAMES_ALONE
        if not 0 < believed_s < FAREST or since_s < pause_s:
            return
        if search.reads_since >= pays:
            self._list(dataset, now)
        elif since_s > pause_s + believed_s:
            # Too slow for a LIST to pay; from here on it may become fast.
            search.begin(now - pause_s)

    def missed(self, dataset: Dataset, key: int, now: float) -> None:
        """There is no object of a name that was expected of it."""
        search = dataset.search
        if not search.counted:
            return
        search.holes.add(key)
        self._doubt(dataset, now)
        if len(search.holes) > _HOLES_MAX + len(dataset.names.listed) // _HOLES_PART:
            dataset.give_up_count()

    def _doubt(self, dataset: Dataset, now: float) -> None:
        """Its names do not count one by one: what there is, a LIST would tell."""
        search = dataset.search
        if not (search.doubted or search.too_many) and now >= search.refused_until:
            search.doubted = search.wanted = True
            self._list(dataset, now)

    # -- questions ----------------------------------------------------------------------------------------------

    def _list(self, dataset: Dataset, now: float) -> None:
        search = dataset.search
        if now < search.refused_until:
            if not dataset.names.listed:
                search.wanted, search.not_before = False, search.refused_until
            return
        where = dataset.bucket, dataset.prefix
        if where not in self._under_way:
            self._under_way.add(where)
            self._lists.append(where)
        search.cut = False
        search.begin(now)

    def _count(self, dataset: Dataset, now: float) -> bool:
        """If its names count, and that was not tried."""
        search = dataset.search
        names = dataset.names
        there = [key for key, size in zip(names.keys[:_LOOKED_AT], names.sizes, strict=False) if size >= 0]
        numbering = None if search.count_tried else numbering_of(there)
        if numbering is None:
            return False
        search.count_tried, search.counting, search.cut = True, numbering, False
        self._counts.append((dataset.bucket, numbering))
        search.begin(now)
        return True

    def _under(self, bucket: str, prefix: str) -> list[Dataset]:
        return [one for one in self._registry.datasets() if one.prefix == prefix and one.bucket == bucket]

    def list_ended(self, bucket: str, prefix: str | None) -> None:
        """Whole or not. `prefix` None: all of them."""
        self._under_way = {
            where for where in self._under_way if where[0] != bucket or prefix not in (None, where[1])
        }  # fmt: skip

    def list_failed(self, bucket: str, prefix: str, now: float) -> None:
        self.list_ended(bucket, prefix)
        for dataset in self._under(bucket, prefix):
            dataset.names.keep()
            if dataset.search.wanted:
                dataset.search.failed(now)

    def list_refused(self, bucket: str, prefix: str, now: float) -> None:
        self.list_ended(bucket, prefix)
        for dataset in self._under(bucket, prefix):
            dataset.search.refused_until, dataset.search.doubted = now + _REFUSED_S, False
            if not dataset.names.listed and dataset.search.wanted and not self._count(dataset, now):
                self._list(dataset, now)

    def counting(self, numbering: NumberedNames) -> Dataset | None:
        """Whose names are being asked about as these; None: nobody wants to know any more."""
        return next((one for one in self._registry.datasets() if one.search.counting is numbering), None)

    def counted(self, dataset: Dataset, count: int) -> None:
        """In all."""
        if count < _WORTH_COUNTING:
            self._in_vain[dataset.bucket] += 1
        else:
            del self._in_vain[dataset.bucket]

    def not_counted(self, bucket: str, numbering: NumberedNames, now: float) -> None:
        self._in_vain[bucket] += 1
        dataset = self.counting(numbering)
        if dataset is not None:
            dataset.search.counting = None
            if not dataset.names.listed:
                self._list(dataset, now)
