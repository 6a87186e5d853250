"""The jobs that read one dataset, and the epochs by which its next reads are predicted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set

from outrider.core.ahead.object_names import Names
from outrider.core.ahead.order.epoch import ORDER_LIKELY, JobEpoch
from outrider.core.ahead.order.epoch_detector import EpochDetector
from outrider.core.ahead.order.epoch_handle import EpochHandle
from outrider.core.ahead.order.saved_order import ReadOrder, SavedOrder
from outrider.core.ahead.order.shared_epoch import SharedEpoch

# A job that has been silent for so long, and for twice the duration of each of its epochs, is over.
_OVER_S = 900.0
# A job that has been silent for so long makes room for another job.
_MAKES_ROOM_S = 60.0
# Jobs at once; fewer where a dataset has many names. Each job has one or two tables of 16 bytes per name, and costs
# time with each read.
_JOBS_MAX, _JOBS_NAMES_MAX = 64, 8_000_000
# Orders of past jobs that are remembered.
_ORDERS_MAX = 2
# Reads of an epoch after which no hint is expected for it any more, if the epoch before it was hinted.
_HINT_LATE = 16


class JobTable:
    """Bounded. `jobs` is keyed by client.

    Invariant: `epochs` is computed at its first use after `forget_epochs`, and stays the same list until then. `opened`
    and the end of a job forget it; a caller that changes the expectations of a job by other means must do so too.
    """

    def __init__(self) -> None:
        self.jobs: dict[str, EpochDetector] = {}
        # Orders of jobs that are over, the latest first.
        self.learned: list[SavedOrder] = []
        # None: the dataset has one client.
        self.shared_epoch: SharedEpoch | None = None
        # The result of `epochs`; None: its next call computes it.
        self.computed: list[JobEpoch] | None = None
        # Whether `computed` are the epochs of all clients together.
        self._is_shared = False
        self.is_by_chance = False
        """As of the last call of `epochs`: a client reads at random, beside the epochs of others."""

    # -- predictions --------------------------------------------------------------------------------------------

    def epochs(self) -> list[JobEpoch]:
        """The epochs that predict the next reads; empty: nothing predicts them."""
        if self.computed is None:
            if self.shared_epoch is None and len(self.jobs) == 1:
                # The usual case: one client that shares its epochs with nobody.
                (job,) = self.jobs.values()
                self._is_shared = self.is_by_chance = False
                self.computed = job.predicting.copy()
                return self.computed
            own = self._own_epochs()
            shared = self.shared_epoch.epochs if self.shared_epoch is not None else []
            # A known order of one client predicts more than the rest of the shared epoch does. An epoch that is not
            # trusted is no such order: among many clients, the first reads of some suggest an order by chance.
            # That the clients of a cluster repeat their orders is first to be shown by reads.
            likely = ORDER_LIKELY if self.shared_epoch is not None and self.shared_epoch.spans_nodes else 0.0
            self._is_shared = bool(shared) and not any(
                epoch.trusted and epoch.order_known and (epoch.announced or epoch.confidence > likely) for epoch in own
            )
            self.is_by_chance = not self._is_shared and any(job.is_by_chance for job in self.jobs.values())
            self.computed = shared if self._is_shared else own
        return self.computed

    def forget_epochs(self) -> None:
        """The jobs expect other reads than before: `epochs` is computed anew."""
        self.computed = None

    def _own_epochs(self) -> list[JobEpoch]:
        epochs: list[JobEpoch] = []
        for job in self.jobs.values():
            epochs += job.predicting
        return epochs

    @property
    def is_hinted(self) -> bool:
        """Whether a job has sent a hint of its reads, or sent one for its last epoch and may still send the next one.
        The first reads of an epoch come beside its hint, and may arrive before it."""
        return any(
            epoch.announced or (epoch.was_announced and len(epoch.log) < _HINT_LATE) for epoch in self._own_epochs()
        )  # fmt: skip

    def is_read_locally(self, epoch: JobEpoch) -> bool:
        """Whether the epoch is that of one client, which reads at this node."""
        return any(epoch in job.epochs for job in self.jobs.values() if not job.is_on_peer)

    def orders(self) -> list[ReadOrder]:
        """The orders in which the dataset is being read, and was read before."""
        epochs = self.epochs()
        return [*(self._own_epochs() if self._is_shared else epochs), *self.learned]

    # -- reads and hints ----------------------------------------------------------------------------------------

    def job_of(self, client: str, names_count: int, now: float) -> EpochDetector | None:
        """None: there is no room for another job. Then the client's reads count in the shared epoch alone."""
        job = self.jobs.get(client)
        if job is None and self._has_room(names_count, now):
            job = self._begin(client, names_count, now)
        return job

    def opened(
        self, client: str, job: EpochDetector | None, index: int, names: Names, readers: int, now: float
    ) -> float:
        """A client begins to read an object. Returns the part of an epoch that the dataset's clock moves on by."""
        if len(self.jobs) > 1 and self.shared_epoch is None:
            self.shared_epoch = SharedEpoch(self.jobs.values(), names, now)
        if job is not None:
            job.opened(index, names, readers, self.orders if job.is_by_chance or len(job.epochs) < 2 else list, now)
        if self.shared_epoch is not None:
            self.shared_epoch.opened(client, index, names, readers, now)
            if self.shared_epoch.spans_nodes and self.shared_epoch.is_begun_anew:
                for each in self.jobs.values():
                    each.end_epoch(now)
        self.forget_epochs()
        epochs = self.epochs()
        counted = epochs if self._is_shared else job.predicting if job is not None else ()
        return 1.0 / (counted[0].size * len(epochs)) if counted else 0.0

    def announced(
        self, client: str, indexes: Sequence[int], start: int, total: int, names_count: int, now: float
    ) -> JobEpoch:  # fmt: skip
        """See `Dataset.announced`."""
        job = self.jobs.get(client) or self._begin(client, names_count, now)
        return job.announced(indexes, start, total, names_count, now)

    def withdraw(self, epoch: JobEpoch, indexes: Set[int], names: Names) -> None:
        """See `EpochDetector.withdraw`."""
        for job in self.jobs.values():
            if epoch in job.epochs:
                job.withdraw(epoch, indexes, names)

    def epoch_of(self, handle: EpochHandle) -> JobEpoch | None:
        """The epoch that is in this round; None: the round is over, or was given up."""
        return next((epoch for job in self.jobs.values() for epoch in job.epochs if epoch.handle is handle), None)

    # -- names --------------------------------------------------------------------------------------------------

    def grow(self, names_count: int) -> None:
        for job in self.jobs.values():
            job.grow(names_count)
        if self.shared_epoch is not None:
            self.shared_epoch.grow(names_count)

    def listed(self, names: Names) -> None:
        for job in self.jobs.values():
            job.listed(names)
        if self.shared_epoch is not None:
            self.shared_epoch.listed(names)

    # -- which jobs there are -----------------------------------------------------------------------------------

    def _has_room(self, names_count: int, now: float) -> bool:
        return len(self.jobs) < _jobs_max(names_count) or now - self._most_silent.last > _MAKES_ROOM_S

    @property
    def _most_silent(self) -> EpochDetector:
        return min(self.jobs.values(), key=lambda job: job.last)

    def _begin(self, client: str, names_count: int, now: float) -> EpochDetector:
        self._end_old(now)
        while len(self.jobs) >= _jobs_max(names_count):
            self._end(self._most_silent)
        job = self.jobs[client] = EpochDetector(client, now)
        return job

    def _end_old(self, now: float) -> None:
        for job in list(self.jobs.values()):
            if now - job.last > max([_OVER_S, *(2 * epoch.seconds(epoch.last) for epoch in job.epochs)]):
                self._end(job)
        if len(self.jobs) < 2:
            self.shared_epoch = None

    def _end(self, job: EpochDetector) -> None:
        del self.jobs[job.client]
        self.forget_epochs()
        self.learned = [*_learned_of(job), *self.learned][:_ORDERS_MAX]

    def remembered(self) -> list[SavedOrder]:
        """The orders that will be worth knowing after the current jobs have ended."""
        current = [order for job in self.jobs.values() for order in _learned_of(job)]
        return [*current, *self.learned][:_ORDERS_MAX]

    def clear(self) -> None:
        self.jobs, self.learned, self.shared_epoch = {}, [], None
        self.forget_epochs()

    def reads(self) -> Iterator[tuple[str, int]]:
        """The reads of all current epochs: client and object."""
        for client, job in self.jobs.items():
            for epoch in job.epochs:
                for index in epoch.log:
                    yield client, index


def _jobs_max(names_count: int) -> int:
    return max(2, min(_JOBS_MAX, _JOBS_NAMES_MAX // max(1, names_count)))


def _learned_of(job: EpochDetector) -> list[SavedOrder]:
    learned = (
        _saved(epoch) for epoch in job.predicting if epoch.number > 0 and epoch.trusted and len(epoch.agenda) > 1
    )
    return list(learned)[:1]


def _saved(epoch: JobEpoch) -> SavedOrder:
    place = epoch.place if epoch.number > 0 else None
    return SavedOrder(epoch.sequence(), place, len(epoch.place), epoch.seconds(epoch.last))
