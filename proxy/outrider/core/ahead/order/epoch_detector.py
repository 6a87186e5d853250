"""The epochs of one client over one dataset, inferred from the order of its reads.

The proxy knows a client by its address and perhaps an access key. The eight loader workers of a job look like one
client, and so do two jobs of one node. An object that is read twice distinguishes them: at the end of an epoch the next
epoch begins; in mid-epoch another job follows; and where it happens as often as by chance, there is no epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from itertools import chain

from outrider.core.ahead.object_names import Names
from outrider.core.ahead.order.epoch import ORDER_LIKELY, ORDER_OPEN, ORDER_UNLIKELY, JobEpoch
from outrider.core.ahead.order.epoch_announcements import announce, begun_after, is_another_order, withdraw
from outrider.core.ahead.order.read_evidence import PartGuess, RepeatEvidence
from outrider.core.ahead.order.saved_order import ReadOrder, is_alike
from outrider.core.ahead.order.search_schedule import LEANS, is_worth_a_search
from outrider.core.ahead.order.seed_state import SEARCH_FIRST

# Epochs of one client at the same time: a job, its followers, and the tail of an epoch that is ending. Each has tables
# of eight bytes an object, so there are fewer where a dataset has many objects.
_EPOCHS_MAX, _EPOCHS_MAX_OF_MANY = 9, 3
_OBJECTS_MANY = 100_000
# A follower of a known order is trusted at this confidence: after nine reads in order.
_FOLLOWS = 0.8
# Reads of an epoch that may arrive before the epoch's order is announced.
_HARDLY_BEGUN = 16
# So many reads in the order of an earlier epoch prove that this epoch has that order.
_ALIKE = 5
# A sampler gives all ranks of a node the same number of objects, so it reads up to so many of the first ones again. To
# ignore as many repeats is no loss where they are the next epoch.
_PADDING = 8
# Samples in a batch whose size is not known.
_BATCH = 256
# When each epoch reads so much of the dataset, the rest of it is worth fetching, whichever part is read next.
_NEARLY_ALL = 0.6


class EpochDetector:
    """The epochs of one client over one dataset, oldest first: mostly one, or several jobs behind one address.

    `is_by_chance`: it reads at random, so no epoch is to be seen. Then `epochs` has at most one, which watches for the
    return of epochs, and nothing is predicted.
    """

    def __init__(self, client: str, now: float) -> None:
        self.client = client
        self.is_by_chance = False
        self.is_on_peer = False
        """It reads at another member of the cluster."""
        self.epochs: list[JobEpoch] = []
        self.last = now
        self._evidence = RepeatEvidence()
        # How many objects the last epoch read, where each epoch reads another part of the dataset. 0: epochs read all.
        self._part_size = 0
        self._part = PartGuess()
        # An epoch whose order may be found by its reads so far: the seed search (`order_search`) is to look at it.
        self.to_search: JobEpoch | None = None

    @property
    def predicting(self) -> list[JobEpoch]:
        return [] if self.is_by_chance else self.epochs

    def grow(self, index_count: int) -> None:
        for epoch in self.epochs:
            epoch.grow(index_count)

    # -- reads --------------------------------------------------------------------------------------------------

    def opened(
        self, index: int, names: Names, readers: int, orders: Callable[[], Sequence[ReadOrder]], now: float
    ) -> None:
        """`orders` returns those in which this dataset was read before, or is being read by others."""
        self.last = now
        index_count = len(names.keys)
        if not self.epochs:
            self.epochs = [JobEpoch(names.listed, index_count, now, confidence=ORDER_UNLIKELY)]
        newest = self.epochs[-1]
        is_near = newest.seed_state.draw is not None and newest.is_near(index)
        if newest.late_reads.take(index, len(newest.log), is_near=is_near):
            return
        if len(self.epochs) > 1:
            self._drop_silent(max(16, 4 * readers))
        self._count(index, names, index_count)
        if self._evidence.repeats and not self.is_by_chance and not self._is_announced:
            self._judge_epochs(names, now)
        if self.epochs[-1].seed_state.draw is not None:
            self._begin_next_draw(index, readers, now)
        epoch = self._epoch_of(index)
        if epoch is None:
            epoch = self._epoch_of_repeat(index, index_count, readers, now)
        if epoch is None:
            return
        for each in self.epochs:
            each.passed_over += 1
        epoch.read(index, now)
        self._conclude(epoch, readers, names, orders, now)
        seed_state = epoch.seed_state
        is_due = seed_state.draw is not None or len(epoch.log) >= seed_state.search_at
        if is_due and is_worth_a_search(epoch, names) and not self.is_by_chance:
            self.to_search = epoch

    def _count(self, index: int, names: Names, index_count: int) -> None:
        oldest, by_chance = self.epochs[0], 0.0
        if names.listed or oldest.number > 0:
            size = oldest.size
            by_chance = len(oldest.log) / (index_count if self.is_by_chance and index_count > size else size)
        self._evidence.read(by_chance)
        if oldest.unread(index) or any(later.trusted and later.unread(index) for later in self.epochs[1:]):
            return
        read_by_all = len(self.epochs) > 1 and not any(later.unread(index) for later in self.epochs[1:])
        self._evidence.repeat(oldest.done[index], len(oldest.log), read_by_all=read_by_all)

    def _judge_epochs(self, names: Names, now: float) -> None:
        """Whether the reads are still epochs, or random, or epochs over another part of the dataset each."""
        later_agree = any(epoch.confidence > LEANS for epoch in self.epochs[1:])
        if not later_agree and self._evidence.is_chance():
            self.is_by_chance = True
            self._restart(len(names.keys), now)
            return
        oldest = self.epochs[0]
        agree = later_agree or oldest.confidence > LEANS
        if not agree and self._evidence.is_another_part(oldest.size, had_parts=self._part_size > 0):
            self._begin_another_part(names, now)

    def _begin_next_draw(self, index: int, readers: int, now: float) -> None:
        """As its epoch ends, a job reads an object that its sampler has not drawn: it is of the next draw. The few
        objects that are left of this draw do not fill a batch."""
        newest = self.epochs[-1]
        is_sampled = newest.seed_state.is_sampled
        if is_sampled and newest.is_unexpected(index) and newest.left <= _tail_max(newest, readers):
            newest.begin_next(now)
            self._evidence = RepeatEvidence()

    def end_epoch(self, now: float) -> None:
        """The epoch that it shares with other clients is over. So is its own, which may have read a part of the objects
        that it seemed to expect."""
        newest = self.epochs[-1] if self.epochs else None
        if newest is None or not newest.log or self.is_by_chance:
            return
        if newest.announced or newest.seed_state.draw is not None:
            return
        for epoch in self.epochs:
            epoch.release_followers()
        self.epochs = [newest]
        newest.begin_next(now)
        self._evidence = RepeatEvidence()

    def _drop_silent(self, silent: int) -> None:
        """An epoch that began with a repeat and was silent for so many reads follows nobody: a sampler that pads reads
        some objects twice."""
        for epoch in self.epochs[1:]:
            # The last reads of an epoch that is nearly over may have been counted to another epoch.
            is_over = not epoch.trusted or (epoch.agenda and epoch.left <= epoch.size // 50)
            if epoch.passed_over > silent and is_over:
                self.epochs.remove(epoch)
                epoch.release_followers()
                for leader in self.epochs:
                    if epoch in leader.followers:
                        leader.followers.remove(epoch)

    def _epoch_of(self, index: int) -> JobEpoch | None:
        """Which epoch this read belongs to. None: all of them have read the object."""
        if len(self.epochs) == 1:
            return self.epochs[0] if self.epochs[0].unread(index) else None
        unread = [epoch for epoch in self.epochs if epoch.unread(index)]
        if len(unread) < 2:
            return unread[0] if unread else None
        # The epoch whose frontier is nearest to the object; else the oldest that expects it.
        ordered = [epoch for epoch in unread if epoch.trusted and epoch.order_known]
        nearest = min(ordered, key=lambda epoch: epoch.distance_of(index), default=None)
        if nearest is not None and nearest.place[index] >= 0:
            agrees = nearest.frontier.agrees(nearest.place[index], len(nearest.agenda))
            if nearest.is_near(index) or (nearest is unread[0] and agrees):
                return nearest
        return next((epoch for epoch in unread if epoch.to_come(index)), unread[0])

    def _epoch_of_repeat(self, index: int, index_count: int, readers: int, now: float) -> JobEpoch | None:
        """Which epoch this read begins, since all epochs have read the object. None: none, and it is ignored."""
        newest = self.epochs[-1]
        is_sampled = newest.seed_state.is_sampled
        if is_sampled and newest.left > 0 and 0 <= newest.place[index] < _PADDING:
            return None
        tail_max = _tail_max(newest, readers)
        if is_sampled and newest.left <= tail_max:
            newest.begin_next(now)
            self._evidence = RepeatEvidence()
            return newest
        if self.is_by_chance:
            # The reads are still random: watch anew.
            self._restart(index_count, now)
            return self.epochs[0]
        if newest.trusted and newest.agenda and newest.left <= tail_max and newest.leader is None:
            return self._follow(newest, index_count, now, trusted=True)
        if len(self.epochs) >= 2 and not (newest.trusted and len(self.epochs) < _epochs_max(index_count)):
            return None
        return self._follow(newest.leader or newest, index_count, now, trusted=False)

    def _follow(self, leader: JobEpoch, index_count: int, now: float, *, trusted: bool) -> JobEpoch:
        """A new epoch over the objects that `leader` has read. `trusted`: also over those that it has left."""
        indexes: Iterator[int] = iter(leader.log)
        if trusted:
            indexes = chain(indexes, (index for index in leader.agenda if leader.unread(index)))
        confidence = leader.next_confidence if trusted else ORDER_OPEN
        epoch = JobEpoch(indexes, index_count, now, confidence=confidence, trusted=trusted)
        epoch.number = leader.number + 1
        epoch.period_s = now - leader.began if trusted else 0.0
        epoch.take_pace_of(leader)
        epoch.was_announced = trusted and leader.announced
        if trusted:
            epoch.draw_after(leader)
        else:
            leader.lead(epoch)
        self.epochs.append(epoch)
        if len(self.epochs) > _epochs_max(index_count):
            self.epochs.pop(0).release_followers()
        return epoch

    @property
    def _is_announced(self) -> bool:
        """The next reads are announced. They may look random."""
        return any(epoch.announced and epoch.left > 0 for epoch in self.epochs)

    def _begin_another_part(self, names: Names, now: float) -> None:
        oldest, log_before = self.epochs[0], self._evidence.log_before
        self._part_size = log_before if log_before < _NEARLY_ALL * oldest.size else 0
        epoch = JobEpoch(oldest.agenda, len(names.keys), now, confidence=ORDER_UNLIKELY, trusted=not self._part_size)
        for index in chain(oldest.log[log_before:], *(later.log for later in self.epochs[1:])):
            if epoch.unread(index):
                epoch.read(index, now)
        epoch.take_pace_of(oldest)
        self.epochs = [epoch]
        reads = len(epoch.log)
        self._evidence = RepeatEvidence(reads, reads**2 / (2 * epoch.size))

    def _restart(self, index_count: int, now: float) -> None:
        self.epochs = [JobEpoch((), index_count, now, confidence=ORDER_UNLIKELY, trusted=not self._part_size)]
        self._evidence = RepeatEvidence()

    # -- conclusions from a read --------------------------------------------------------------------------------

    def _conclude(
        self, epoch: JobEpoch, readers: int, names: Names, orders: Callable[[], Sequence[ReadOrder]], now: float
    ) -> None:
        if self.is_by_chance:
            if self._evidence.is_epoch:
                self.is_by_chance = False
                self._evidence = RepeatEvidence()
                epoch.expect(index for index, size in enumerate(names.sizes) if size >= 0 or names.place_of(index) >= 0)
            return
        if not epoch.trusted:
            self._trust_if_proven(epoch, readers)
        oldest = self.epochs[0]
        if len(self.epochs) > 1 and oldest.passed_over > max(16, 4 * readers) and oldest is not epoch:
            self._drop_oldest(epoch)
        if epoch.agenda and epoch.left == 0 and epoch.leader is None and not self._may_go_on(epoch, names):
            if len(self.epochs) > 1 and epoch is oldest and self.epochs[1].trusted and self._has_successor(epoch):
                self.epochs.pop(0).release_followers()
            else:
                epoch.begin_next(now)
            self._evidence = RepeatEvidence()
        elif epoch.number == 0 and not epoch.announced and epoch.seed_state.draw is None:
            self._learn_agenda(epoch, names, orders)

    def _trust_if_proven(self, epoch: JobEpoch, readers: int) -> None:
        is_oldest = epoch is self.epochs[0]
        if self._part_size and is_oldest and len(epoch.log) > max(1.25 * self._part_size, epoch.size / 2):
            # This is more than a part.
            epoch.trusted, self._part_size = True, 0
        # A sampler that gives all ranks the same number of objects reads at most one per reader twice.
        if epoch.confidence > _FOLLOWS and len(epoch.log) > readers:
            epoch.trusted = True
            epoch.number = max(1, epoch.number)

    def _drop_oldest(self, epoch: JobEpoch) -> None:
        """The oldest epoch goes on no more; `epoch` does."""
        oldest = self.epochs.pop(0)
        oldest.release_followers()
        if not epoch.announced and all(4 * epoch.place[index] > len(epoch.agenda) for index in epoch.log):
            # It began late in the objects that were read: a resumed run reads those that were left.
            epoch.expect(index for index in oldest.agenda if oldest.unread(index))
        if not epoch.trusted:
            epoch.trusted = True
            epoch.period_s = max(epoch.began - oldest.began, 0.0)
        self._evidence = RepeatEvidence()

    def _may_go_on(self, epoch: JobEpoch, names: Names) -> bool:
        """All expected objects were read, but they were a guess, and there are more names. The epoch then ends with its
        first repeat."""
        is_guess = epoch.number == 0 and not epoch.announced and epoch.seed_state.draw is None
        return is_guess and len(epoch.agenda) < len(names.listed)

    def _has_successor(self, epoch: JobEpoch) -> bool:
        """The next epoch has begun already, and is no job that has followed this epoch from its beginning."""
        successor = self.epochs[1]
        is_follower = successor.leader is epoch and successor.joined <= epoch.size / 2
        return successor.number == epoch.number + 1 and not is_follower

    # -- the first epoch ----------------------------------------------------------------------------------------

    def _learn_agenda(self, epoch: JobEpoch, names: Names, orders: Callable[[], Sequence[ReadOrder]]) -> None:
        """Expect the order of an earlier epoch, or the part of the dataset that the reads suggest."""
        if _ALIKE <= len(epoch.log) <= 8 * _ALIKE and epoch.confidence <= ORDER_LIKELY:
            for order in orders():
                leader = order.leader or order if isinstance(order, JobEpoch) else order
                if leader is not epoch and is_alike(epoch.log[-_ALIKE:], order, len(names.keys)):
                    epoch.replan(order.sequence(), confidence=ORDER_LIKELY)
                    epoch.number, epoch.period_s = 1, order.period_s
                    if isinstance(leader, JobEpoch) and leader.number == 0:
                        leader.lead(epoch)
                    return
        rank = names.place_of(epoch.log[-1])
        if rank < 0:
            return
        has_changed = self._part.read(rank, len(names.listed))
        epoch.is_in_order = self._part.is_in_order
        if epoch.is_dealt and epoch.place[epoch.log[-1]] < 0:
            # A worker that was not seen before has read this.
            epoch.is_dealt, has_changed = False, True
        if has_changed and not epoch.is_dealt:
            epoch.replan(self._part.of(names.listed), confidence=epoch.confidence)

    def listed(self, names: Names) -> None:
        """A LIST has shown which objects there are."""
        for epoch in self.epochs:
            seed_state = epoch.seed_state
            if seed_state.is_shuffled and seed_state.drawn_from != len(names.listed):
                # The draw was from another number of names.
                epoch.give_up_draw(refuted=False)
            seed_state.seeds_tried = {}
            if epoch.number == 0 and not epoch.announced and seed_state.draw is None and not self.is_by_chance:
                seed_state.search_at = min(seed_state.search_at, max(SEARCH_FIRST, len(epoch.log)))
                epoch.is_dealt = False
                self._part = PartGuess()
                for index in epoch.log:
                    if (rank := names.place_of(index)) >= 0:
                        self._part.read(rank, len(names.listed))
                epoch.is_in_order = self._part.is_in_order
                epoch.replan(self._part.of(names.listed), confidence=ORDER_UNLIKELY)

    # -- an announced order ------------------------------------------------------------------------------------

    def announced(self, indexes: Sequence[int], start: int, total: int, index_count: int, now: float) -> JobEpoch:
        """One worker announces its next reads. They are of the epoch that is under way; where that has read most of
        them, they are of the next one. Returns that epoch."""
        self.last, self.is_by_chance = now, False
        self.grow(index_count)
        if self.epochs and len(self.epochs[0].log) < _HARDLY_BEGUN:
            # The oldest epoch has just begun, so it is the one that is announced.
            self._drop_silent(-1)
        epoch = self.epochs[-1] if self.epochs else None
        if epoch is None or 2 * sum(epoch.unread(index) for index in indexes) < len(indexes):
            self.epochs = self.epochs[1 - _epochs_max(index_count) :]
            epoch = begun_after(epoch, index_count, now)
            self.epochs.append(epoch)
        elif start == 0 and epoch.announced and epoch.log and is_another_order(indexes, epoch):
            # The run was begun anew, or its epoch was cut short.
            number = epoch.number
            epoch = self.epochs[-1] = begun_after(epoch, index_count, now)
            epoch.number = number
        if start == 0:
            # An order that is announced again is likely in the next epoch as well, as one that was learned.
            epoch.repeats = len(indexes) > 0 and all(
                0 <= epoch.place[index] <= 2 * epoch.tolerance for index in indexes[:_ALIKE]
            )
        announce(epoch, indexes, start, total)
        epoch.trusted = True
        epoch.last = now
        return epoch

    def withdraw(self, epoch: JobEpoch, indexes: Set[int], names: Names) -> None:
        """`epoch` was to expect these objects, which are unread, and is not to expect them any more."""
        withdraw(epoch, indexes)
        for later in self.epochs[self.epochs.index(epoch) + 1 :]:
            if not later.announced:
                # It began as a follower, and took over the objects that `epoch` had still to read.
                withdraw(later, indexes)
        if epoch.announced:
            return
        if not epoch.log and not epoch.agenda:
            self.epochs.remove(epoch)
        elif epoch.number == 0 and not epoch.agenda:
            self.listed(names)


def _epochs_max(index_count: int) -> int:
    return _EPOCHS_MAX if index_count <= _OBJECTS_MANY else _EPOCHS_MAX_OF_MANY


def _tail_max(epoch: JobEpoch, readers: int) -> int:
    """How many objects the epoch may have left when the next one begins."""
    tail = min(2 * readers + epoch.size // 50, epoch.size // 2)
    if not epoch.seed_state.is_sampled:
        return tail
    # It is certain which objects these are, and a loader leaves out those that do not fill its last batch.
    return max(tail, min(epoch.size // 8, max(_BATCH, epoch.batch * epoch.workers)))
