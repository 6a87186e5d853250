"""Decides when and how to find out which objects a dataset has: by a LIST, or by HEADs of numbered names."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from outrider.core.ahead.dataset.dataset import Dataset
from outrider.core.ahead.dataset.registry import DatasetRegistry
from outrider.core.ahead.numbered_names_search import NumberedNames, numbering_of
from outrider.core.model import ObjectRef

# The origin is asked about a dataset once so many of its keys are known.
_KEYS_MIN = 3
# A LIST takes some 300 bytes per name: more than a hundredth of the data where objects are smaller than this, and a
# good part of it where they are very small. If such names are numbered, a few HEADs show which objects there are.
_SMALL_BYTES = 30_000
# The names from which the numbering is inferred.
_LOOKED_AT = 64
# The numbering is given up when more names than this have no object: so many, and one in so many of the listed names.
_MISSING_MAX, _MISSING_PART = 8, 8
# The rest after a LIST that was refused: rights may change, and tokens expire.
_REFUSED_S = 3600.0
# A page of a LIST costs as much as a dozen HEADs (S3's price list), and one round trip. A LIST pays off where more
# names than that would have to be revalidated.
_READS_PER_PAGE = 16
_NAMES_PER_PAGE = 1000
# Names are listed again after this part of the time for which they are believed, so that they never become stale.
_LIST_AGAIN = 0.75
# An object below `_TINY_BYTES` is hardly larger than its line in a LIST, so its LIST must spare as many HEADs as above.
# Only HEADs of objects that have been here for a while count: an absent object is requested anyway, and a new one was
# requested just now. A LIST that spares fewer only finds new names, and comes ten times as late. (In DELI's world, of
# 1 KiB objects, a LIST that spared nothing held the link for 1.5 s, and each read waited 10 ms longer meanwhile.)
_TINY_BYTES = 4096
_FOR_NAMES_ALONE = 10
FAREST = float("inf")


class Discovery:
    """Called from one thread. Hands out each question to the origin once (`please_list`, `please_count`), takes the
    answers, and keeps the `DiscoveryState` of each dataset."""

    def __init__(self, registry: DatasetRegistry, believed_s: Callable[[ObjectRef], float]) -> None:
        """`believed_s`: for how long a name is believed without asking the origin again."""
        self._registry = registry
        self._believed_s = believed_s
        self._lists: list[tuple[str, str]] = []
        self._numberings: list[tuple[str, NumberedNames]] = []
        # The buckets and prefixes whose LIST was requested and has not ended. One LIST serves all datasets under it.
        self._lists_under_way: set[tuple[str, str]] = set()

    def please_list(self) -> list[tuple[str, str]]:
        """Buckets and prefixes that are worth a LIST: to learn which objects there are, or that what is believed of
        many names still holds. Answer by `listed`, and before that by `list_failed` or `list_refused`. A prefix without
        an answer is not returned again."""
        lists, self._lists = self._lists, []
        return lists

    def please_count(self) -> list[tuple[str, NumberedNames]]:
        """Buckets and numbered names whose highest number is worth finding out. Answer by `counted` or by
        `not_counted`."""
        numberings, self._numberings = self._numberings, []
        return numberings

    # -- reads --------------------------------------------------------------------------------------------------

    def opened(self, dataset: Dataset, index: int, ref: ObjectRef, now: float) -> None:
        state = dataset.discovery
        if (
            not state.requested
            and (not dataset.names.listed or state.list_failed)
            and not dataset.job_table.is_hinted
            and not state.too_many_names
            and now >= state.list_not_before
            and len(dataset.names.keys) >= _KEYS_MIN
        ):
            state.requested = True
            is_small = 0 <= dataset.usual_bytes < _SMALL_BYTES
            if not ((is_small or now < state.refused_until) and self._ask_numbering(dataset, now)):
                self._ask_list(dataset, now)
        elif state.is_numbered and dataset.names.place_of(index) < 0:
            self._doubt_numbering(dataset, now)
        self._list_again_if_due(dataset, index, ref, now)

    def _list_again_if_due(self, dataset: Dataset, index: int, ref: ObjectRef, now: float) -> None:
        state = dataset.discovery
        if state.too_many_names or (not dataset.names.listed and (state.requested or not dataset.job_table.is_hinted)):
            return
        believed_s, reads_min = self._believed_s(ref), _READS_PER_PAGE * state.pages
        since_s, pause_s = now - state.requested_at, _LIST_AGAIN * believed_s
        state.opened_since += 1
        state.spared_since += now - dataset.cached_at(index) >= pause_s
        if 0 <= dataset.usual_bytes < _TINY_BYTES and state.spared_since < reads_min:
            pause_s *= _FOR_NAMES_ALONE
        if not 0 < believed_s < FAREST or since_s < pause_s:
            return
        if state.opened_since >= reads_min:
            self._ask_list(dataset, now)
        elif since_s > pause_s + believed_s:
            # The reads are too slow for a LIST to pay off. They are counted anew, since they may become fast.
            state.looked_up(now - pause_s)

    def missed(self, dataset: Dataset, index: int, now: float) -> None:
        """There is no object of this name, although it was expected."""
        state = dataset.discovery
        if not state.is_numbered:
            return
        state.missing.add(index)
        self._doubt_numbering(dataset, now)
        if len(state.missing) > _MISSING_MAX + len(dataset.names.listed) // _MISSING_PART:
            dataset.give_up_numbering()

    def _doubt_numbering(self, dataset: Dataset, now: float) -> None:
        """The names do not count up one by one: a LIST would show which objects there are."""
        state = dataset.discovery
        if not (state.is_doubted or state.too_many_names) and now >= state.refused_until:
            state.is_doubted = state.requested = True
            self._ask_list(dataset, now)

    def announced(self, dataset: Dataset, now: float) -> None:
        """A client has announced the order of its reads. A LIST now would cost the first reads bandwidth: a name in it
        may be a good part of a small sample."""
        state = dataset.discovery
        if not state.requested and not dataset.names.listed:
            state.requested_at = state.requested_at or now
            state.pages = _pages_of(len(dataset.names.keys))

    # -- questions to the origin --------------------------------------------------------------------------------

    def _ask_list(self, dataset: Dataset, now: float) -> None:
        state = dataset.discovery
        if now < state.refused_until:
            if not dataset.names.listed:
                state.requested, state.list_not_before = False, state.refused_until
            return
        under = dataset.bucket, dataset.prefix
        if under not in self._lists_under_way:
            self._lists_under_way.add(under)
            self._lists.append(under)
        state.list_failed = False
        state.looked_up(now)

    def _ask_numbering(self, dataset: Dataset, now: float) -> bool:
        """False: the names are not numbered, or that was asked before."""
        state = dataset.discovery
        names = dataset.names
        existing = [key for key, size in zip(names.keys[:_LOOKED_AT], names.sizes, strict=False) if size >= 0]
        numbering = None if state.numbering_tried else numbering_of(existing)
        if numbering is None:
            return False
        state.numbering_tried, state.numbering, state.list_failed = True, numbering, False
        self._numberings.append((dataset.bucket, numbering))
        state.looked_up(now)
        return True

    # -- answers ------------------------------------------------------------------------------------------------

    def listed(
        self, bucket: str, entries: Iterable[tuple[str, int]], *, prefix: str | None = None, before: int = 0,
        more: bool = False,
    ) -> None:  # fmt: skip
        """Keys and sizes under `prefix` (None: of any datasets) in the order of the LIST, after `before` others.
        `more`: others will follow. Prefetch may begin with the first part."""
        entries = list(entries)
        for dataset in self._registry.list(bucket, entries, prefix=prefix):
            dataset.discovery.pages = _pages_of(before + len(entries))
            dataset.listed(more=True)
        if more:
            return
        self._list_ended(bucket, prefix)
        for dataset in self._registry.datasets():
            if dataset.bucket != bucket:
                continue
            if prefix is None or dataset.prefix == prefix:
                dataset.list_ended()
            elif dataset.prefix.startswith(prefix):
                dataset.listed(more=False)

    def _list_ended(self, bucket: str, prefix: str | None) -> None:
        """A LIST is complete, or has failed. `prefix` None: all LISTs of the bucket."""
        self._lists_under_way = {
            under for under in self._lists_under_way if under[0] != bucket or prefix not in (None, under[1])
        }  # fmt: skip

    def list_failed(self, bucket: str, prefix: str, now: float) -> None:
        """A LIST has failed, and may succeed later: it will be requested again, after a rest."""
        self._list_ended(bucket, prefix)
        for dataset in self._datasets_under(bucket, prefix):
            dataset.names.discard_staged()
            if dataset.discovery.requested:
                dataset.discovery.failed(now)

    def list_refused(self, bucket: str, prefix: str, now: float) -> None:
        """The origin refuses a LIST."""
        self._list_ended(bucket, prefix)
        for dataset in self._datasets_under(bucket, prefix):
            state = dataset.discovery
            state.refused_until, state.is_doubted = now + _REFUSED_S, False
            if not dataset.names.listed and state.requested and not self._ask_numbering(dataset, now):
                self._ask_list(dataset, now)

    def _datasets_under(self, bucket: str, prefix: str) -> list[Dataset]:
        return [
            dataset for dataset in self._registry.datasets() if dataset.prefix == prefix and dataset.bucket == bucket
        ]

    def _counting(self, numbering: NumberedNames) -> Dataset | None:
        """The dataset whose names were looked up as `numbering`; None: it does not need the answer any more."""
        return next(
            (dataset for dataset in self._registry.datasets() if dataset.discovery.numbering is numbering), None
        )

    def counted(
        self, numbering: NumberedNames, names: Iterable[str], *, before: int = 0, more: bool = False
    ) -> bool:  # fmt: skip
        """These numbered names exist, as far as the samples show: some of them may not, and there may be others. They
        come in the order of a LIST, after `before` others. `more`: others will follow. Returns False if no more are
        wanted."""
        dataset = self._counting(numbering)
        if dataset is None or (dataset.names.listed and not dataset.discovery.is_numbered):
            return False
        entries = [(name, -1) for name in names]
        for other in self._registry.list(dataset.bucket, entries, numbered=True):
            other.discovery.pages = _pages_of(before + len(entries))
            other.listed(more=True)
        if not more:
            dataset.listed(more=False)
        return not dataset.discovery.too_many_names

    def not_counted(self, numbering: NumberedNames, now: float) -> None:
        """These names do not count one by one, or the origin refuses the HEADs."""
        dataset = self._counting(numbering)
        if dataset is not None:
            dataset.discovery.numbering = None
            if not dataset.names.listed:
                self._ask_list(dataset, now)


def _pages_of(names_count: int) -> int:
    """The pages of a LIST of so many names."""
    return 1 + names_count // _NAMES_PER_PAGE
