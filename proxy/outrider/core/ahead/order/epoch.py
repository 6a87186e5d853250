"""One epoch of one job over one dataset: which objects were read, which are still expected, and in which order.

An epoch reads no object twice. Objects go by their index in the dataset, a small number. All that is known of an object
stands in arrays: a million objects take some twenty megabytes.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

from outrider.core.ahead.order.announced_order import END, AnnouncedOrder
from outrider.core.ahead.order.epoch_handle import EpochHandle
from outrider.core.ahead.order.frontier import RECENT, FetchCursor, Frontier, LateReads, ReadingPace, tolerance
from outrider.core.ahead.order.saved_order import blanks
from outrider.core.ahead.order.seed_state import DrawnOrder, SeedState

# The weight of the newest read in `confidence`, an exponentially weighted mean.
_NEWEST = 1 / 8
# The confidence in an order before any read: a second epoch repeats the order of the first one (WebDataset's default),
# nothing is known, the order is most likely another one.
ORDER_LIKELY, ORDER_OPEN, ORDER_UNLIKELY = 0.65, 0.5, 0.2
# The confidence in a drawn order: a dozen reads have proven it, and the next reads may still refute it.
ORDER_DRAWN = 0.8
# A follower that reads so many objects in a row that its leader has not read does not follow it any more.
_OVERTAKEN = 16


class JobEpoch:
    """One epoch of one job, which becomes the job's next epoch by `begin_next`.

    `agenda` holds the objects that it is expected to read, in the likely order; `log` holds those that it has read.
    `place[index]` is the object's place in `agenda`, -1: not expected. `done[index]` is its place in `log`, -1: not
    read. Invariant: neither has an object twice. Durations as part of an epoch are floats: 1.0 is a whole epoch.
    """

    def __init__(
        self, agenda: Iterable[int], index_count: int, now: float, *, confidence: float, trusted: bool = True
    ) -> None:
        # Which epoch of its job this is. 0: the first one that was seen.
        self.number = 0
        self.handle = EpochHandle()
        self.agenda: array[int] = array("i")
        self.log: array[int] = array("i")
        self.place = blanks(index_count)
        self.done = blanks(index_count)
        # How many objects of the agenda have been read.
        self._expected_read = 0
        # Counts the changes of the agenda.
        self.changes = 0
        # How likely the order of the agenda is the true one.
        self.confidence = confidence
        # Whether the next epoch will probably have this one's order.
        self.repeats = True
        # False: it began with an object that was read twice, and may be no epoch at all. Nothing is fetched for it.
        self.trusted = trusted
        # None: nobody has announced this epoch's order. `was_announced`: the last epoch's order was announced.
        self.announced_order: AnnouncedOrder | None = None
        self.was_announced = False
        self.seed_state = SeedState()
        # Objects are dealt to workers by their rank, and the agenda holds only the shares of workers that were seen.
        # `is_in_order`: the reads of a first epoch go through the agenda in its order, though too few for `confidence`.
        self.is_dealt = self.is_in_order = False
        # The announced or drawn order of one process is read by `workers` workers beside each other, a batch each in
        # turn.
        self.batch = self.workers = 1
        self.cursor = FetchCursor()
        # Where the readers are in the agenda.
        self.frontier = Frontier()
        self.began = self.last = now
        # How long the last epoch took; 0: not known.
        self.period_s = 0.0
        self.pace = ReadingPace()
        # Reads of the same job that were counted to its other epochs since the last read of this one.
        self.passed_over = 0
        # Epochs that read the same objects in the same order later; and the epoch that this one follows.
        self.followers: list[JobEpoch] = []
        self.leader: JobEpoch | None = None
        # How many reads the leader had when this epoch joined it, and how many of this epoch's last reads were of
        # objects that the leader has not read.
        self.joined = self._beyond_leader = 0
        self.late_reads = LateReads()
        self._set_agenda(agenda)

    # -- what is known ------------------------------------------------------------------------------------------

    @property
    def announced(self) -> bool:
        """The job has announced the order of this epoch."""
        return self.announced_order is not None

    @property
    def left(self) -> int:
        """How many objects of the agenda are still to be read."""
        return len(self.agenda) - self._expected_read

    @property
    def size(self) -> int:
        """How many objects the whole epoch has, as far as known; at least 1."""
        # Each read asks this of each epoch. It calls no `max`: such calls were a tenth of an event (cProfile).
        count = len(self.agenda) + len(self.log) - self._expected_read
        if self.leader is not None and self.leader.size > count:
            return self.leader.size
        return count if count > 0 else 1

    @property
    def reads(self) -> int:
        """The reads of this epoch and of the one before it."""
        return len(self.log) + (len(self.agenda) if self.number > 0 else 0)

    @property
    def progress(self) -> float:
        """How much of the epoch is done, from 0.0 to 1.0."""
        return len(self.log) / self.size if self.agenda else 0.5

    @property
    def order_known(self) -> bool:
        return self.announced_order is not None or (self.confidence > ORDER_OPEN and len(self.agenda) > 0)

    @property
    def tolerance(self) -> int:
        return tolerance(len(self.agenda))

    @property
    def next_confidence(self) -> float:
        """How likely the next epoch has the order of this one."""
        if (self.announced_order is not None or self.seed_state.draw is not None) and not self.repeats:
            # The next order will be announced or drawn as well, and will be another one.
            return ORDER_UNLIKELY
        return self.confidence if self.number > 0 else max(self.confidence, ORDER_LIKELY)

    @property
    def next_agenda(self) -> Sequence[int]:
        """The objects of the next epoch in their likely order, as far as known."""
        if self.repeats:
            return self.log
        upcoming = self.seed_state.upcoming
        return upcoming.agenda if upcoming is not None else ()

    def unread(self, index: int) -> bool:
        return self.done[index] < 0

    def to_come(self, index: int) -> bool:
        """The object is expected and not read yet."""
        return self.done[index] < 0 <= self.place[index]

    def is_unexpected(self, index: int) -> bool:
        """The object is neither read nor expected."""
        return self.done[index] < 0 and self.place[index] < 0

    def distance_of(self, index: int) -> int:
        """How many places lie between this object and the frontier. More than all: it is not expected."""
        return abs(self.place[index] - self.frontier.place) if self.place[index] >= 0 else len(self.place)

    def is_near(self, index: int) -> bool:
        """The object stands in the agenda about where the readers are."""
        return self.distance_of(index) <= self.tolerance

    def _continues_batch(self, place: int) -> bool:
        """The object before this one in the same batch was read a moment ago. In a drawn order that is evidence as
        well: workers may be several batches apart, which is most of a small dataset."""
        if place < self.workers:
            return False
        before = self.done[self.agenda[place - self.workers]]
        return before >= 0 and len(self.log) - before <= self.tolerance

    def seconds(self, now: float) -> float:
        """How long a whole epoch takes. For a first epoch it is extrapolated: twice its age while the size is
        unknown."""
        if self.period_s > 0:
            return self.period_s
        progress, age_s = self.progress, now - self.began
        return (age_s if age_s > 1e-3 else 1e-3) / (progress if progress > 0.02 else 0.02)

    def until(self, index: int) -> float:
        """Parts of an epoch until this job reads the object, which is taken for one that it will read."""
        done = self.done[index]
        # The same as `size`, spelled out again for speed.
        size = len(self.agenda) + len(self.log) - self._expected_read
        if self.leader is not None or size <= 0:
            size = self.size
        if done >= 0:
            upcoming = self.seed_state.upcoming
            if upcoming is not None and self.order_known:
                again = upcoming.place[index] if index < len(upcoming.place) else -1
                return (self.left + again) / size if again >= 0 else 1.0
            if self.announced_order is not None and not self.repeats:
                # The next order is another one: half of it on average, after all that is left of this one.
                return self.left / size + 0.5
            return 1.0 + (done - len(self.log)) / size
        place = self.place[index]
        if place < 0 and len(self.agenda) > 0:
            # The set of objects is known and this one is not in it: hardly in this epoch.
            return 1.0
        if not (self.announced_order is not None or (place >= 0 and self.confidence > ORDER_OPEN)):
            # The order is not known: half of what is left, on average. `progress` spelled out, for each rank asks this.
            return (1.0 - len(self.log) / size) / 2 if self.agenda else 0.25
        if self.leader is not None and place >= (known := len(self.leader.log)):
            # The order beyond the last read of the leader is not known.
            return max(0.0, (len(self.agenda) + known) / 2 - self.frontier.place) / size
        ahead = place - self.frontier.place
        if ahead >= 0:
            return ahead / size
        return max(0.0, 1.0 + ahead / size) if self.is_passed_over(index) else 0.0

    def is_passed_over(self, index: int) -> bool:
        """The object is far behind the frontier of a known order. A run that was resumed in mid-epoch reads it when it
        comes round."""
        return self.frontier.has_passed_over(self.place[index], len(self.agenda))

    def place_of(self, index: int) -> int:
        """The object's place in the order that this epoch has shown, -1: none."""
        return self.place[index] if self.number > 0 else self.done[index]

    def sequence(self) -> array[int]:
        """The order that this epoch has shown, and after it the objects that are still to be read."""
        if self.number > 0:
            return self.agenda
        return self.log + array("i", (index for index in self.agenda if self.unread(index)))

    # -- reads --------------------------------------------------------------------------------------------------

    def read(self, index: int, now: float) -> None:
        """`index` must be unread."""
        place = self.place[index]
        if place >= 0:
            self._expected_read += 1
            self._judge_order(place)
            self.frontier.read(place, len(self.agenda))
        elif self.agenda:
            self.confidence -= _NEWEST * self.confidence
        self.done[index] = len(self.log)
        self.log.append(index)
        if self.leader is not None:
            self._compare_with_leader(self.leader, index)
        for follower in self.followers:
            follower.grow(len(self.place))
            follower.follow_read(index, len(self.log) - 1)
        self.pace.read(now - self.last, now)
        self.last = now
        self.passed_over = 0

    def _judge_order(self, place: int) -> None:
        is_drawn = self.seed_state.draw is not None
        if self.frontier.agrees(place, len(self.agenda)) or (is_drawn and self._continues_batch(place)):
            evidence = 1.0
        else:
            # Scaled so that reads by chance give 0 in the mean, as reads in the true order give 1.
            near = (3 if is_drawn else 2) * self.tolerance + 1
            chance = min(0.9, near / len(self.agenda))
            evidence, self.is_in_order = -chance / (1 - chance), False
        self.confidence += _NEWEST * (evidence - self.confidence)

    def _compare_with_leader(self, leader: JobEpoch, index: int) -> None:
        # A leader that its job has dropped learns of no new names.
        leader.grow(len(self.done))
        self._beyond_leader = 0 if leader.done[index] >= 0 else self._beyond_leader + 1
        if self._beyond_leader > _OVERTAKEN:
            self.leader = None

    def take_pace_of(self, other: JobEpoch) -> None:
        """Both are of the same job, so the readers are most likely as fast."""
        self.pace = other.pace.copy()
        self.batch, self.workers = other.batch, other.workers

    def lead(self, follower: JobEpoch) -> None:
        follower.leader, follower.joined = self, len(self.log)
        self.followers.append(follower)

    def release_followers(self) -> None:
        for follower in self.followers:
            follower.leader = None
        self.followers.clear()

    def follow_read(self, index: int, place: int) -> None:
        """The leader has read the object as its `place`-th, so this epoch will do the same."""
        if self.announced_order is not None or self.seed_state.draw is not None:
            return
        self.expect((index,))
        if place >= len(self.agenda):
            return
        before, other = self.place[index], self.agenda[place]
        self.agenda[place], self.agenda[before] = index, other
        self.place[index], self.place[other] = place, before

    def begin_next(self, now: float) -> None:
        """All was read: this becomes the next epoch, which is most likely like the one that ends."""
        self.late_reads.begin(self.agenda if self.seed_state.is_sampled and self.left > 0 else (), self.done)
        self.pace.begin_epoch()
        ahead = self.cursor.past_end(self.agenda)
        self.agenda, self.log = self.log, array("i")
        self.place, self.done = self.done, blanks(len(self.done))
        self._expected_read = 0
        self.period_s, self.began = now - self.began, now
        self.release_followers()
        self.frontier.restart(known=self.order_known)
        self.confidence = self.next_confidence
        self.number += 1
        self.handle.ended, self.handle = True, EpochHandle(self.handle.number + 1)
        self.was_announced, self.announced_order, self.repeats = self.announced, None, True
        self.draw_after(self)
        self.cursor.restart(ahead)

    # -- the agenda ---------------------------------------------------------------------------------------------

    def grow(self, index_count: int) -> None:
        """The dataset has `index_count` objects now."""
        for table in (self.place, self.done):
            if index_count > len(table):
                table.extend(blanks(index_count - len(table)))

    def expect(self, indexes: Iterable[int]) -> None:
        """Add those objects that are not in the agenda to its end."""
        for index in indexes:
            if self.place[index] < 0:
                if self.announced_order is not None:
                    self.announced_order.append(END)
                self.append(index)

    def append(self, index: int) -> None:
        """The object, which is not in the agenda, is expected after all others."""
        self.place[index] = len(self.agenda)
        # Fetching may have begun with the next epoch, as the agenda seemed to end before this object.
        self.cursor.rewind(len(self.agenda))
        self.changes += 1
        self.agenda.append(index)
        self._expected_read += self.done[index] >= 0

    def cut(self, first: int) -> array[int]:
        """Take out the agenda from this place on, and return it."""
        tail = self.agenda[first:]
        for index in tail:
            self._expected_read -= self.done[index] >= 0
            self.place[index] = -1
        del self.agenda[first:]
        self.cursor.rewind(first)
        return tail

    def replan(self, indexes: Iterable[int], *, confidence: float) -> None:
        """This very epoch gets a new agenda: `indexes`, none of them twice."""
        self.changes += 1
        self._set_agenda(indexes)
        self.confidence = confidence
        self.cursor.restart()
        self.relocate()

    def _set_agenda(self, indexes: Iterable[int]) -> None:
        # A client that reads an unknown part of a million names has this done some twenty times in an epoch.
        self.agenda, place = array("i", indexes), blanks(len(self.place))
        for number, index in enumerate(self.agenda):
            place[index] = number
        self.place = place
        self._expected_read = sum(place[index] >= 0 for index in self.log)

    def reorder(self, agenda: array[int], place: array[int]) -> None:
        """The epoch is read in this order. `place`: see the class."""
        self.agenda, self.place, self.seed_state.upcoming = agenda, place, None
        self.grow(len(self.done))
        self._expected_read = sum(place[index] >= 0 for index in self.log)
        self.cursor.restart()
        self.relocate()

    def fetch_again(self, index: int) -> None:
        """The object is not here any more, and is not on its way."""
        if self.to_come(index):
            self.cursor.fetch_again(self.place[index], index)

    def relocate(self) -> None:
        """Places have changed: find the frontier by the new places of the last reads."""
        places = (self.place[index] for index in self.log[-RECENT:])
        self.frontier.relocate((place for place in places if place >= 0), len(self.agenda))

    # -- an order that a seed draws -----------------------------------------------------------------------------

    def set_draw(self, drawn: DrawnOrder) -> None:
        """The epoch is read in a drawn order."""
        self.seed_state.draw, self.leader, self.confidence = drawn.draw, None, ORDER_DRAWN
        # By default WebDataset's workers draw the same order in each epoch.
        self.repeats = self.seed_state.is_shuffled and self.seed_state.successor <= 0
        self.reorder(drawn.agenda, drawn.place)

    def draw_after(self, other: JobEpoch) -> None:
        """This is the epoch after `other`, of the same job."""
        upcoming = self.seed_state.begin_after(other.seed_state)
        if upcoming is not None:
            self.set_draw(upcoming)

    def give_up_draw(self, *, refuted: bool = True) -> None:
        """`refuted`: the reads contradict the drawn order."""
        self.seed_state.give_up(len(self.log), refuted=refuted)
        self.repeats, self.batch, self.workers = True, 1, 1

    def read_in_batches(self, agenda: array[int], place: array[int], batch: int, workers: int) -> None:
        """The same order is read by `workers` workers, a batch of `batch` objects each in turn."""
        if self.announced_order is not None:
            self.announced_order.deal_anew(self.batch * self.workers, batch, workers)
        self.batch, self.workers = batch, workers
        self.reorder(agenda, place)
