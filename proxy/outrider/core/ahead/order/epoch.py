"""How far a job has come in its epoch over a dataset: what was read, what is left, in which order.

A *pass* is one epoch of one job over one dataset: no key twice. Keys are small numbers within their dataset; what a
pass knows of them stands in arrays, so that a million keys take some twenty megabytes.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence, Set
from operator import itemgetter
from typing import NamedTuple

from outrider.core.ahead.order.torch_sampler import Draw, at_once, out_of_batches, turn_of
from outrider.core.ahead.order.webdataset_shuffle import ALL_SEEDS, Shuffle

# How many of the last reads tell where a pass is: odd, for the median.
_RECENT = 9
# Places in an order by which readers drift apart where it is neither short nor long.
_DRIFT = 24
# Of the evidence for or against a known order, this part is the newest read's.
_NEWEST = 1 / 8
# Before anything is known: a second epoch repeats the first one's order (WebDataset's default), a first one has none.
ORDER_LIKELY, ORDER_OPEN, ORDER_UNLIKELY = 0.65, 0.5, 0.2
# What a dozen reads have proven, and the next ones may refute.
ORDER_DRAWN = 0.8
# Reads of a pass after which it is looked for the sampler that drew its order, and of one whose last order was found.
LOOK_FIRST, LOOK_AGAIN = 16, 4
# Seeds that are tried for a job's shuffle, with one number of workers or another.
SHUFFLE_SEEDS_MAX = 2 * ALL_SEEDS
# Reads of a pass whose times are kept.
FIRST_READS = 512
# Who reads so much in a row of what another has not read does not follow it.
_OVERTAKEN = 16
# A pause that came once comes again (a batch, a validation): remembered over some 500 reads.
_PAUSE_KEPT = 0.998


def blanks(count: int) -> array[int]:
    """`count` times -1."""
    return array("i", b"\xff\xff\xff\xff" * count)


class LearnedOrder:
    """An order in which a dataset was read, after its job has gone or the proxy was restarted."""

    def __init__(self, keys: array[int], place: array[int] | None, key_count: int, period_s: float) -> None:
        self._keys = keys
        self.period_s = period_s
        self._place = place
        if place is None:
            self._place = blanks(key_count)
            for index, key in enumerate(keys):
                self._place[key] = index

    def where(self, key: int) -> int:
        assert self._place is not None
        return self._place[key] if key < len(self._place) else -1

    def sequence(self) -> array[int]:
        return self._keys


Seeded = Draw | Shuffle
"""By which seed an order is drawn, by a sampler or by WebDataset's workers."""


class DrawnOrder(NamedTuple):
    """What was drawn by a seed for a pass: see `Epoch`."""

    draw: Seeded
    agenda: array[int]
    place: array[int]


class Round:
    """One epoch of a pass, its `number`-th, for those who told of it: `ended` once all was read that was expected."""

    __slots__ = ("ended", "number")

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.ended = False


class Epoch:
    """One epoch of one job. `agenda` is what it is expected to read, in the likely order; `log` what it read.

    `place[key]`: where the key stands in the agenda, -1: not expected; `done[key]`: as the how-many-eth it was read,
    -1: not yet. Parts of a pass are floats: 1.0 is all of it.
    """

    def __init__(
        self, agenda: Iterable[int], key_count: int, now: float, *, order: float, trusted: bool = True
    ) -> None:
        self.number = 0
        self.agenda: array[int] = array("i")
        self.log: array[int] = array("i")
        # When its first ones were read.
        self._times: array[float] = array("d")
        self.place = blanks(key_count)
        self.done = blanks(key_count)
        # How likely the agenda's order is the true one, whether it was told, and whether the last pass' was.
        self.order = order
        self.told = self.was_told = False
        # What was expected before it was told: the agenda, how likely its order was, and `number`.
        self._untold: tuple[array[int], float, int] = (array("i"), order, 0)
        # The seed by which this pass' order is drawn, and the last pass' was; which of those that may follow one did so
        # last time, -1: not known; after how many reads it is looked for. See `order_search`.
        self.draw: Seeded | None = None
        self.last_draw: Seeded | None = None
        self.way = -1
        self.look_at = LOOK_FIRST
        self.looks_in_vain = 0
        # How fast WebDataset's workers are, by the number of the first name of each.
        self.paces: dict[int, float] = {}
        # What it reads is dealt to workers, and the agenda is what those that were seen got.
        self.is_dealt = False
        # By how many workers there may be: none of so many seeds is theirs. And so many that were found were none.
        self.shuffles_tried: dict[int, int] = {}
        self.shuffles_refuted = 0
        # The draw that was found, while it is not clear yet in which batches it is read.
        self.found: Draw | None = None
        # What the pass after this one will read, where that is known already.
        self.upcoming: DrawnOrder | None = None
        # Whether more than one worker tells of it; of the one that does, how much it has told, and of how much.
        self.several = False
        self._told_to = self._told_of = 0
        # Grows with each change of what is expected.
        self.changes = 0
        # How many names there were to draw of.
        self.drawn_of = 0
        # What one process tells, or draws, may be read by several beside each other, a batch of each in turn.
        self.batch = self.workers = 1
        self.round = Round()
        # Whether the next pass will probably have this one's order.
        self.repeats = True
        # False: it began with a key read twice, and may be no pass at all. Nothing is fetched for it.
        self.trusted = trusted
        self.began = self.last = now
        # period_s: how long the last pass took, 0: not known.
        self.gap_s = self.pause_s = self.period_s = 0.0
        self._gaps = 0
        # Reads that other passes of the same job took since this one's last.
        self.passed_over = 0
        # How far fetching has got in the agenda and, past its end, in the log, which is the next agenda.
        self.cursor = 0
        # A heap, by place: what went last was the farthest first, and would stand before what is read sooner.
        self.again: list[tuple[int, int]] = []
        # What a run that was taken up in mid-epoch has left behind: fetched once all that lies before it is.
        self.behind: deque[int] = deque()
        self.frontier = 0
        self._recent: deque[int] = deque(maxlen=_RECENT)
        self._expected_read = 0
        self._shares: array[float] = array("d")
        # Passes that read what this one reads, in its order, later; and the one that this one follows.
        self.followers: list[Epoch] = []
        self.leader: Epoch | None = None
        # How far that one was when this one joined it, and how much of what it has not read this one read since.
        self.joined = self._beyond = 0
        self._lay_out(agenda)

    # -- what is known ------------------------------------------------------------------------------------------

    @property
    def left(self) -> int:
        """Keys of the agenda that are still to be read."""
        return len(self.agenda) - self._expected_read

    @property
    def size(self) -> int:
        """Keys of the whole pass, as far as known."""
        # Asked for each pass with each read: spelled out, since the calls of `max` were a tenth of an event (cProfile).
        count = len(self.agenda) + len(self.log) - self._expected_read
        if self.leader is not None and self.leader.size > count:
            return self.leader.size
        return count if count > 0 else 1

    @property
    def reads(self) -> int:
        """Of this pass and the one before."""
        return len(self.log) + (len(self.agenda) if self.number > 0 else 0)

    @property
    def part(self) -> float:
        """How much of the pass is done."""
        return len(self.log) / self.size if self.agenda else 0.5

    @property
    def order_known(self) -> bool:
        return self.told or (self.order > ORDER_OPEN and len(self.agenda) > 0)

    @property
    def tolerance(self) -> int:
        """How far a read may be from its place in the order: readers run beside each other and drift."""
        # Asked for several times with each read: spelled out, as `size` is.
        count = len(self.agenda)
        if count >= 32 * _DRIFT:
            return count // 32
        return _DRIFT if count >= 8 * _DRIFT else count // 8 or 1

    @property
    def is_sampled(self) -> bool:
        """It reads what a sampler has drawn: some of it perhaps twice, or not at all, for each to have as many."""
        return self.draw is not None and isinstance(self.draw, Draw)

    @property
    def is_shuffled(self) -> bool:
        """It reads what WebDataset's workers have drawn: all of it, once."""
        return isinstance(self.draw, Shuffle)

    @property
    def next_order(self) -> float:
        """How likely the next pass has the order of this one."""
        if (self.told or self.draw is not None) and not self.repeats:
            # The next order will be told as well, or drawn, and be another one.
            return ORDER_UNLIKELY
        return self.order if self.number > 0 else max(self.order, ORDER_LIKELY)

    def unread(self, key: int) -> bool:
        return self.done[key] < 0

    def to_come(self, key: int) -> bool:
        return self.done[key] < 0 <= self.place[key]

    def is_strange(self, key: int) -> bool:
        """Neither read nor expected."""
        return self.done[key] < 0 and self.place[key] < 0

    def apart(self, key: int) -> int:
        """How far this expected key stands from where this pass is in its agenda."""
        return abs(self.place[key] - self.frontier) if self.place[key] >= 0 else len(self.place)

    def is_at(self, key: int) -> bool:
        """The key stands about where this pass is in its agenda."""
        return self.apart(key) <= self.tolerance

    def fits(self, key: int) -> bool:
        """The same, or a run that was taken up in mid-epoch comes round to the front."""
        place = self.place[key]
        if place < 0:
            return False
        apart, tolerance = abs(place - self.frontier), self.tolerance
        return apart <= tolerance or len(self.agenda) - apart <= tolerance

    def _goes_on(self, place: int) -> bool:
        """Who reads here of a draw has read what stands before it in its batch a moment ago: workers may be several
        batches apart, which is most of a small set."""
        if place < self.workers:
            return False
        before = self.done[self.agenda[place - self.workers]]
        return before >= 0 and len(self.log) - before <= self.tolerance

    def seconds(self, now: float) -> float:
        """How long a whole pass takes; of a first one as extrapolated, and twice its age while its size is unknown."""
        if self.period_s > 0:
            return self.period_s
        part, age_s = self.part, now - self.began
        return (age_s if age_s > 1e-3 else 1e-3) / (part if part > 0.02 else 0.02)

    def until(self, key: int) -> float:
        """Parts of a pass until this job reads `key`; the key may be none of its own, then it is taken for one."""
        done = self.done[key]
        # As `size` is, spelled out here as well.
        size = len(self.agenda) + len(self.log) - self._expected_read
        if self.leader is not None or size <= 0:
            size = self.size
        if done >= 0:
            if self.upcoming is not None and self.order_known:
                again = self.upcoming.place[key] if key < len(self.upcoming.place) else -1
                return (self.left + again) / size if again >= 0 else 1.0
            return 1.0 + (done - len(self.log)) / size
        place = self.place[key]
        if place < 0 and len(self.agenda) > 0:
            # Not expected, though a set is known: hardly in this pass.
            return 1.0
        if not (self.told or (place >= 0 and self.order > ORDER_OPEN)):
            # The order is not known; spelled out, as it is asked for each rank.
            return (1.0 - len(self.log) / size) / 2 if self.agenda else 0.25
        if self.leader is not None and place >= (known := len(self.leader.log)):
            # Nobody knows what stands where the leader has not been.
            return max(0.0, (len(self.agenda) + known) / 2 - self.frontier) / size
        ahead = place - self.frontier
        if ahead >= 0:
            return ahead / size
        return max(0.0, 1.0 + ahead / size) if self.is_passed_over(key) else 0.0

    def is_passed_over(self, key: int) -> bool:
        """Far behind in a known order, as in a run that was taken up in mid-epoch: read when it comes round. A read or
        two do not tell: they may have been another pass' last ones."""
        behind = self.frontier - self.place[key]
        return behind > 0 and 2 * len(self._recent) > _RECENT and behind > 4 * self.tolerance

    def where(self, key: int) -> int:
        """Where the key stands in the order that this pass has shown; -1: nowhere."""
        return self.place[key] if self.number > 0 else self.done[key]

    def sequence(self) -> array[int]:
        """That order, and after it what is still to be read."""
        if self.number > 0:
            return self.agenda
        return self.log + array("i", (key for key in self.agenda if self.unread(key)))

    # -- what happens -------------------------------------------------------------------------------------------

    def read(self, key: int, now: float) -> None:
        """`key` must be unread."""
        place = self.place[key]
        if place >= 0:
            self._expected_read += 1
            if self.fits(key) or (self.draw is not None and self._goes_on(place)):
                evidence = 1.0
            else:
                # Measured against what chance would give, which is 0 then, as true order is 1.
                near = (2 if self.draw is None else 3) * self.tolerance + 1
                chance = min(0.9, near / len(self.agenda))
                evidence = -chance / (1 - chance)
            self.order += _NEWEST * (evidence - self.order)
            self._recent.append(place)
            self._find_frontier()
        elif self.agenda:
            self.order -= _NEWEST * self.order
        self.done[key] = len(self.log)
        self.log.append(key)
        if len(self._times) < FIRST_READS:
            self._times.append(now)
        # A pass whose job has let go of it hears of no new names.
        if self.leader is not None:
            self.leader.grow(len(self.done))
            self._beyond = 0 if self.leader.done[key] >= 0 else self._beyond + 1
            if self._beyond > _OVERTAKEN:
                self.leader = None
        for follower in self.followers:
            follower.grow(len(self.place))
            follower.hear(key, len(self.log) - 1)
        gap = now - self.last
        self._gaps += 1
        self.gap_s += (gap - self.gap_s) * (1.0 if self._gaps <= 2 else 0.1)
        kept_s = self.pause_s * _PAUSE_KEPT
        self.pause_s = gap if gap > kept_s else kept_s
        self.last = now
        self.passed_over = 0

    def first_reads(self) -> list[int]:
        """In the order in which they came to pass: of a hit that needed nobody this hears later than of what was
        missing meanwhile."""
        return [key for _, key in sorted(zip(self._times, self.log, strict=False), key=itemgetter(0))]

    def go_on_like(self, other: Epoch) -> None:
        """Of the same job: its readers will most likely be as fast."""
        self.gap_s, self.pause_s, self._gaps = other.gap_s, other.pause_s, other._gaps
        self.batch, self.workers = other.batch, other.workers

    def undraw(self, *, refuted: bool = True) -> None:
        """`refuted`: it reads in another order than what was drawn."""
        if self.is_shuffled and refuted:
            self.shuffles_tried = {0: SHUFFLE_SEEDS_MAX}
            self.shuffles_refuted += 1
        self.draw = self.last_draw = self.upcoming = self.found = None
        self.way, self.repeats, self.batch, self.workers, self.drawn_of = -1, True, 1, 1, 0
        self.look_at = max(LOOK_FIRST, len(self.log))

    def draw_after(self, other: Epoch) -> None:
        """It is the epoch after that one's."""
        self.last_draw, self.way, self.looks_in_vain = other.draw, other.way, other.looks_in_vain
        self.drawn_of, self.shuffles_refuted = other.drawn_of, other.shuffles_refuted
        # Another run may have begun with another seed, once.
        self.shuffles_tried = {} if other.shuffles_refuted == 1 else other.shuffles_tried
        self.draw = self.found = None
        self.look_at = LOOK_FIRST if self.last_draw is None else LOOK_AGAIN if self.way < 0 else 0
        upcoming, other.upcoming = other.upcoming, None
        if upcoming is not None:
            self.drawn(upcoming)

    def learned(self) -> LearnedOrder:
        return LearnedOrder(
            self.sequence(), self.place if self.number > 0 else None, len(self.place), self.seconds(self.last)
        )

    def lead(self, follower: Epoch) -> None:
        follower.leader, follower.joined = self, len(self.log)
        self.followers.append(follower)

    def disband(self) -> None:
        """Lead nobody any more."""
        for follower in self.followers:
            follower.leader = None
        self.followers.clear()

    def hear(self, key: int, place: int) -> None:
        """The leader has read `key` as its `place`-th: so will this pass."""
        if self.told or self.draw is not None:
            return
        self.expect((key,))
        if place >= len(self.agenda):
            return
        before, other = self.place[key], self.agenda[place]
        self.agenda[place], self.agenda[before] = key, other
        self.place[key], self.place[other] = place, before

    def begin_next(self, now: float) -> None:
        """All was read: the next pass, which most likely is like this one."""
        ahead = max(0, self.cursor - len(self.agenda))
        self.agenda, self.log, self._times = self.log, array("i"), array("d")
        self.place, self.done = self.done, blanks(len(self.done))
        self._expected_read = 0
        self.period_s, self.began = now - self.began, now
        self.cursor = ahead
        self.again.clear()
        self.behind.clear()
        self.disband()
        self._recent.clear()
        self.frontier = 0
        self.order = self.next_order
        self.number += 1
        self.round.ended, self.round = True, Round(self.round.number + 1)
        self.was_told, self.told, self.repeats, self._shares = self.told, False, True, array("d")
        self.draw_after(self)
        self.cursor = ahead

    def grow(self, key_count: int) -> None:
        """The dataset has `key_count` keys now."""
        for table in (self.place, self.done):
            if key_count > len(table):
                table.extend(blanks(key_count - len(table)))

    def expect(self, keys: Iterable[int]) -> None:
        """Add those of `keys` that are not in the agenda to its end."""
        for key in keys:
            if self.place[key] < 0:
                self._append(key)

    def _append(self, key: int) -> None:
        self.place[key] = len(self.agenda)
        if self.cursor > self.place[key]:
            # What was taken for the end of the pass was none, and fetching had begun with the next one.
            self.cursor = self.place[key]
        self.changes += 1
        self.agenda.append(key)
        self._expected_read += self.done[key] >= 0

    def plan(self, keys: Iterable[int], *, order: float) -> None:
        """A new agenda, for this very pass: `keys`, none of them twice."""
        self.changes += 1
        self._lay_out(keys)
        self.order, self.cursor = order, 0
        self.again.clear()
        self.behind.clear()
        self._recall()

    def _lay_out(self, keys: Iterable[int]) -> None:
        """`keys`, none of them twice, are the agenda."""
        # Of a million names, with what part of them is read still in doubt, that is done some twenty times in an epoch.
        self.agenda, place = array("i", keys), blanks(len(self.place))
        for index, key in enumerate(self.agenda):
            place[key] = index
        self.place = place
        self._expected_read = sum(place[key] >= 0 for key in self.log)

    def drawn(self, drawn: DrawnOrder) -> None:
        """It reads what was drawn."""
        self.draw, self.leader, self.order = drawn.draw, None, ORDER_DRAWN
        # WebDataset's workers draw the same in each epoch, if they are not made to draw another one.
        self.repeats = self.is_shuffled and self.way <= 0
        self.follow(drawn.agenda, drawn.place)

    def follow(self, agenda: array[int], place: array[int]) -> None:
        """What it was told, or drawn, is read in this order; `place`: see the class."""
        self.agenda, self.place, self.upcoming = agenda, place, None
        self.grow(len(self.done))
        self._expected_read, self.cursor = sum(place[key] >= 0 for key in self.log), 0
        self.again.clear()
        self.behind.clear()
        self._recall()

    def _recall(self) -> None:
        """Places have changed: those of the last reads, and where the readers are by them."""
        self._recent.clear()
        for key in self.log[-_RECENT:]:
            if self.place[key] >= 0:
                self._recent.append(self.place[key])
        if 2 * len(self._recent) < _RECENT or max(self._recent) - min(self._recent) > 2 * self.tolerance:
            # Few, or not read in this order, as what pads the last epoch: they tell nothing of where the readers are.
            self._recent.clear()
        self._find_frontier()

    def _find_frontier(self) -> None:
        """The median of the last places, and on by what was read since it."""
        middle = len(self._recent) // 2
        self.frontier = sorted(self._recent)[middle] + middle if self._recent else 0

    def tell(self, keys: Sequence[int], start: int, total: int) -> None:
        """The order of this pass, for certain: `keys` are numbers `start`, `start` + 1, ... of the `total` that one
        worker reads. What several workers are told is merged by how far each is through its own part."""
        if not self.told:
            self._untold = self.agenda, self.order, self.number
            self.plan((), order=1.0)
            self.told, self.number, self.leader = True, max(1, self.number), None
            self.several, self._told_to = False, 0
        if start != self._told_to:
            self._is_told_by_several()
        self._told_to, self._told_of = start + len(keys), total
        new = [((turn_of(start + i, self.batch, self.workers) + 0.5) / total, key)
               for i, key in enumerate(keys) if self.place[key] < 0]  # fmt: skip
        if self.workers > 1:
            new.sort()
        if new and self._shares and new[0][0] <= self._shares[-1]:
            # Workers that tell a piece each, in turn, are about as far: most of what was told stays where it is.
            new = sorted([*self._cut(bisect_left(self._shares, new[0][0])), *new])
        for share, key in new:
            if self.place[key] < 0:
                self._shares.append(share)
                self._append(key)
        self._recall()

    def read_in_batches(self, agenda: array[int], place: array[int], batch: int, workers: int) -> None:
        """The same order, of which so many workers read a batch of such a size each, in turn."""
        if self.told:
            # Of a round that is whole, whoever reads it takes the same shares. Of what is beyond, shares tell whose
            # turn it was: kept as they are, they would mix up what is told next and this.
            count, before, after = len(self._shares), self.batch * self.workers, batch * workers
            first = min(count - count % before, count - count % after)
            first -= first % after
            # Where some are told twice, what lies before goes by larger numbers.
            least = self._shares[first - 1] if first else 0.0
            turns = sorted(turn_of(number, batch, workers) for number in range(first, count))
            self._shares[first:] = array("d", (max(least, (turn + 0.5) / self._told_of) for turn in turns))
        self.batch, self.workers = batch, workers
        self.follow(agenda, place)

    def _is_told_by_several(self) -> None:
        """Each tells what it reads itself: nothing of it is another one's turn."""
        self.several = True
        if self.workers > 1:
            self.agenda = at_once(out_of_batches(self.agenda, self.batch, self.workers))
            self.batch = self.workers = 1
            for place, key in enumerate(self.agenda):
                self.place[key] = place
            self.cursor = 0

    def _cut(self, first: int) -> list[tuple[float, int]]:
        """Take out what was told from this place on: shares and keys."""
        tail = list(zip(self._shares[first:], self.agenda[first:], strict=True))
        for _, key in tail:
            self._expected_read -= self.done[key] >= 0
            self.place[key] = -1
        del self._shares[first:], self.agenda[first:]
        self.cursor = min(self.cursor, first)
        return tail

    def withdraw(self, keys: Set[int]) -> None:
        """Expect none of these any more. When no told one is left, expect what was expected before."""
        self.several = True  # places are no longer what one has told
        rest = [place for place, key in enumerate(self.agenda) if key not in keys]
        if self.told:
            self._shares = array("d", (self._shares[place] for place in rest))
        self.plan([self.agenda[place] for place in rest], order=self.order)
        if self.told and self.left == 0:
            agenda, order, self.number = self._untold
            self.told, self.repeats, self._shares = False, True, array("d")
            self.plan(agenda, order=order)
