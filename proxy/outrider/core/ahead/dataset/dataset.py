"""One dataset: the names of its objects, the jobs that read it, and its cached objects."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence, Set

from outrider.core.ahead.dataset.cached_objects import CachedByIndex, CachedObject
from outrider.core.ahead.dataset.job_table import JobTable
from outrider.core.ahead.dataset.next_use_ranking import NEVER, NextUse
from outrider.core.ahead.dataset.templates import prefix_of
from outrider.core.ahead.object_names import DiscoveryState, Names
from outrider.core.ahead.order.epoch import JobEpoch
from outrider.core.ahead.order.epoch_detector import EpochDetector
from outrider.core.ahead.order.epoch_handle import EpochHandle
from outrider.core.model import BlockKey


class Dataset:
    """Objects go by their `index` in `names`. `next_use` owns the cached objects, `job_table` the jobs. This class
    hands both each event, in the order in which they depend on each other."""

    def __init__(self, bucket: str, template: str) -> None:
        self.bucket = bucket
        self.template = template
        self.prefix = prefix_of(template)
        """A LIST of this prefix shows all its objects."""
        self.names = Names()
        self.discovery = DiscoveryState()
        self.job_table = JobTable()
        # mypy compares a type with its bound before it knows the types of descriptors.
        self.next_use: NextUse[CachedObject] = NextUse(self.job_table, CachedByIndex())  # type: ignore[type-var]
        self.cached: Mapping[int, CachedObject] = self.next_use.objects
        self.kept_bytes = 0
        """Bytes on disk, outdated versions included."""
        self.proved_bytes = 0
        """The part of `kept_bytes` that was compared with what the bucket knows of it."""
        self.active_at = 0.0
        self.is_fetched = True
        """The settings allow to prefetch the object that was read last."""
        self.usual_bytes = -1
        """The size learned last: an object of unknown size is taken to be as large. -1: no size is known."""
        self.to_search: list[JobEpoch] = []
        """Epochs whose reads so far may show by which seed their order is drawn (see `order_search`)."""
        # The number of listed names when the jobs last got them.
        self._names_reported = 0

    @property
    def jobs(self) -> dict[str, EpochDetector]:
        return self.job_table.jobs

    # -- names --------------------------------------------------------------------------------------------------

    def append_name(self, key: str) -> int:
        """The index of a key that is not here."""
        index = self.names.append(key)
        self.job_table.grow(index + 1)
        return index

    def listed(self, *, more: bool) -> None:
        """More names are listed; `more`: others will follow.

        The jobs have room for new names at once, since any of them may be read now. Their expectations are computed
        anew, at a cost linear in the names, when all names are listed, and before that whenever the list has doubled.
        """
        self.job_table.grow(len(self.names.keys))
        count = len(self.names.listed)
        if not more:
            self.discovery.is_whole = count > 0
        if count > self._names_reported * (2 if more else 1):
            self._report_names_to_jobs()

    def list_ended(self) -> None:
        """A LIST of its prefix is complete, or has failed."""
        if self.names.commit_staged():
            self._forget_numbering()
        self.listed(more=False)

    def give_up_numbering(self) -> None:
        """Its names do not count one by one after all: only names that were read are known."""
        self.names.unlist()
        self.discovery.is_whole = False
        self._forget_numbering()
        self._report_names_to_jobs()

    def _report_names_to_jobs(self) -> None:
        self._names_reported = len(self.names.listed)
        self.job_table.listed(self.names)

    def _forget_numbering(self) -> None:
        self.discovery.forget_numbering()
        self._names_reported = 0

    # -- jobs ---------------------------------------------------------------------------------------------------

    def epochs(self) -> list[JobEpoch]:
        """See `JobTable.epochs`."""
        return self.job_table.epochs()

    def epoch_of(self, handle: EpochHandle) -> JobEpoch | None:
        """See `JobTable.epoch_of`."""
        return self.job_table.epoch_of(handle)

    def opened(self, client: str, index: int, readers: int, now: float) -> None:
        """A client begins to read an object; `readers` readers are active in all."""
        self.active_at = now
        jobs = self.job_table
        job = jobs.job_of(client, len(self.names.keys), now)
        self.next_use.rerank_some(now)
        self.next_use.advance(jobs.opened(client, job, index, self.names, readers, now))
        if job is not None and job.to_search is not None:
            self.to_search.append(job.to_search)
            job.to_search = None
        cached = self.cached.get(index)
        if cached is not None:
            cached.opened(now)
            self.next_use.opened(cached, now)

    def announced(self, client: str, indexes: Sequence[int], start: int, total: int, now: float) -> JobEpoch:
        """A hint: `client` reads these objects, numbers `start` and on of `total` in its epoch."""
        epoch = self.job_table.announced(client, indexes, start, total, len(self.names.keys), now)
        self.active_at = now
        self.job_table.forget_epochs()
        if len(indexes) >= len(self.cached):
            self.next_use.rerank_all(now)
            return epoch
        # A long hint comes in many pieces. Each piece ranks its own objects, and as many of the others.
        for index in indexes:
            if (cached := self.cached.get(index)) is not None:
                self.next_use.rank(cached, now)
        self.next_use.rerank_some(now, len(indexes))
        return epoch

    def withdraw(self, epoch: JobEpoch, indexes: Set[int], now: float) -> None:
        """See `EpochDetector.withdraw`."""
        self.job_table.withdraw(epoch, indexes, self.names)
        self.job_table.forget_epochs()
        self.next_use.rerank_all(now)

    def rerank_in_steps(self) -> Generator[None, None, None]:
        """More is known of the next reads of an epoch; see `NextUse.rerank_in_steps`."""
        self.job_table.forget_epochs()
        yield from self.next_use.rerank_in_steps(lambda: self.active_at)

    # -- cached objects -----------------------------------------------------------------------------------------

    def cached_at(self, index: int) -> float:
        """See `CachedObject`; later than any time if the object is not here."""
        cached = self.cached.get(index)
        return NEVER if cached is None else cached.cached_at

    def shrink(self) -> None:
        """Forget all but the cached objects, and number these anew."""
        objects, names = list(self.cached.values()), self.names
        self.names = Names()
        self._names_reported = 0
        self.discovery.forget_names()
        self.job_table.clear()
        self.next_use.clear()
        self.to_search.clear()
        for cached in objects:
            size = names.sizes[cached.index]
            cached.index = self.names.add(names.keys[cached.index])
            self.names.sizes[cached.index] = size
            self.next_use.add(cached, cached.used_at)

    def take_in(self, other: Dataset) -> int:
        """Moves all of `other`, which has one name, into this dataset; the index of that name here."""
        index = self.names.find(key := other.names.keys[0])
        if index is None:
            index = self.append_name(key)
        self.names.sizes[index] = max(self.names.sizes[index], other.names.sizes[0])
        self.usual_bytes = max(self.usual_bytes, other.usual_bytes)
        now = max(self.active_at, other.active_at)
        for client, _ in other.job_table.reads():
            self.opened(client, index, 1, now)
        if (cached := other.cached.get(0)) is not None:
            other.next_use.drop(cached)
            cached.dataset, cached.index = self, index
            count = cached.present.bit_count() * cached.block_bytes
            self.kept_bytes, other.kept_bytes = self.kept_bytes + count, other.kept_bytes - count
            count = cached.proved.bit_count() * cached.block_bytes
            self.proved_bytes, other.proved_bytes = self.proved_bytes + count, other.proved_bytes - count
            self.next_use.add(cached, cached.used_at)
        other.shrink()
        return index


def may_go(cached: CachedObject) -> int:
    """The blocks that may be evicted, as bits. While the object is being read, these are the blocks already read."""
    return cached.present & cached.served if cached.reading else cached.present


def blocks_of(cached: CachedObject) -> Iterator[BlockKey]:
    """The blocks that may be evicted, last first: the head of an object hides the latency of the rest."""
    mask = may_go(cached)
    while mask:
        index = mask.bit_length() - 1
        mask ^= 1 << index
        yield BlockKey(cached.version_id, index)
