"""What one client does with one dataset, and which world that is: epochs, several jobs behind one address, or neither.

A client is what a proxy sees: an address and perhaps an access key. Its eight loader workers look like one; so do
two jobs of one node. A key that is read twice is what tells: at the end of a pass the next one begins; while a pass
goes on, somebody follows; and where it happens as often as chance would have it, there is no epoch.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence, Set
from itertools import chain, pairwise
from math import gcd
from typing import Protocol

from outrider.core.ahead.dataset.names import Names
from outrider.core.ahead.order.epoch import LOOK_FIRST, ORDER_LIKELY, ORDER_OPEN, ORDER_UNLIKELY, Epoch
from outrider.core.ahead.order.webdataset_shuffle import Shuffle

# Passes of one client beside each other: a job, those that follow it, and the tail of an epoch that is ending. Each has
# tables of eight bytes a key, so there are fewer where keys are many.
_PASSES_MAX, _PASSES_MAX_OF_MANY = 9, 3
_KEYS_MANY = 100_000
# So many reads without a repeat, where chance would have brought so many repeats, are an epoch: e**-7 is no chance.
_CLEAN = 7.0
# A follower of a known order is believed after nine reads in order.
_FOLLOWS = 0.8
# Some twenty reads elsewhere refute an order; fewer may be a worker that was held up, and reads its batch in one go.
_REFUTED = 0.1
# A little more in order than not: it may yet prove one.
_LEANS = 0.6
# Reads after which an order that is about to be refuted is looked at again.
_LOOK_AGAIN = 4
# Reads of an epoch that may be heard of before what it was told.
_HARDLY_BEGUN = 16
# Reads that look alike before an order of the past is taken for this one's.
_ALIKE = 5
# Repeats that an epoch over another part of the set would have brought by now, before it is taken for one.
_ANEW = 24
# The ranks of a node that read some of the first again, for each to have as many; less is no loss where it is an epoch.
_PADDING = 8
# Samples in a batch of which nothing is known.
_BATCH = 256
# Of a set of which so much is read in each epoch the rest is worth fetching, whichever part it will be.
_NEARLY_ALL = 0.6


class Order(Protocol):
    """An order in which a dataset was, or is being, read."""

    period_s: float

    def where(self, key: int) -> int: ...

    def sequence(self) -> array[int]: ...


class Job:
    """The passes of one client over one dataset, oldest first. `free`: no epoch is to be seen; then `epochs` holds one
    pass at most that watches for the return of epochs, and nothing is predicted."""

    def __init__(self, client: str, now: float) -> None:
        self.client = client
        self.free = False
        self.epochs: list[Epoch] = []
        self.last = now
        self._repeats = 0
        self._thirds = 0
        # Repeats that chance would have brought by now, and by the time of the first.
        self._by_chance = self._clean = 0.0
        self._reads = 0
        # When the first repeat came: reads by then, and how many of them the oldest pass had.
        self._reads_then = self._log_then = 0
        # Repeats of what the oldest pass has read since.
        self._fresh_repeats = 0
        # Where each pass reads another part of the set: how many keys the last one did. 0: passes read all of it.
        self._chosen = 0
        self._part = _Part()
        # A pass of whose order more may be known by its reads so far; see `order_search`.
        self.puzzle: Epoch | None = None

    @property
    def predicting(self) -> list[Epoch]:
        return [] if self.free else self.epochs

    def grow(self, key_count: int) -> None:
        for one in self.epochs:
            one.grow(key_count)

    # -- reads --------------------------------------------------------------------------------------------------

    def opened(self, key: int, names: Names, readers: int, orders: Callable[[], Sequence[Order]], now: float) -> None:
        """`orders` tells in which this dataset was read before, or is being read by others."""
        self.last = now
        key_count = len(names.keys)
        if not self.epochs:
            self.epochs = [Epoch(names.listed, key_count, now, order=ORDER_UNLIKELY)]
        if len(self.epochs) > 1:
            self._let_go(max(16, 4 * readers))
        self._reads += 1
        if names.listed or self.epochs[0].number > 0:
            first = self.epochs[0]
            size = first.size
            self._by_chance += len(first.log) / (key_count if self.free and key_count > size else size)
        if not self.epochs[0].unread(key):
            self._count(key)
        if self._repeats and not self.free and not self._is_told:
            self._see_whether_epochs_go_on(names, now)
        if self.epochs[-1].draw is not None:
            self._see_whether_drawn_anew(key, readers, now)
        one = self._pass_of(key)
        if one is None:
            one = self._repeated(key, key_count, readers, now)
        if one is None:
            return
        for each in self.epochs:
            each.passed_over += 1
        one.read(key, now)
        self._settle(one, readers, names, orders, now)
        self._wonder(one, names)

    def _see_whether_epochs_go_on(self, names: Names, now: float) -> None:
        if self._is_chance():
            self.free = True
            self._restart(len(names.keys), now)
        elif self._is_another_part():
            self._begin_another_part(names, now)

    def _see_whether_drawn_anew(self, key: int, readers: int, now: float) -> None:
        """A key that its sampler has not drawn, as its epoch ends, is of the next draw: what is left of this one does
        not fill a batch."""
        newest = self.epochs[-1]
        if newest.is_sampled and newest.is_strange(key) and newest.left <= _tail(newest, readers):
            newest.begin_next(now)
            self._clear_evidence()

    def _give_up_draw(self, one: Epoch, names: Names) -> None:
        share = len(one.agenda) < len(names.listed)
        one.undraw()
        if share:
            one.plan(names.listed, order=ORDER_UNLIKELY)

    def _wonder(self, one: Epoch, names: Names) -> None:
        if one.draw is not None:
            self._doubt_draw(one, names)
        if len(one.log) < one.look_at or self.free:
            return
        if one.told or one.draw is not None:
            wonders = not (one.told and one.several) or (one.way >= 0 and one.upcoming is None)
        else:
            # What begins as the names do may be drawn from a buffer that holds the first of them.
            known = one.order_known and one.number > 0 and one.last_draw is None
            wonders = not known and len(names.listed) > 0
        if wonders:
            self.puzzle = one

    def _doubt_draw(self, one: Epoch, names: Names) -> None:
        if one.order < _REFUTED:
            self._give_up_draw(one, names)
        if isinstance(one.draw, Shuffle) and one.log and one.place[one.log[-1]] < 0:
            rank, workers = names.rank_of(one.log[-1]), one.draw.workers
            if rank >= 0:
                # A worker, or all of a rank, has begun late.
                one.expect(names.listed[rank % workers :: workers])
        if one.is_shuffled and one.order < _LEANS and len(one.log) % _LOOK_AGAIN == 0:
            # A full buffer may show only now.
            one.look_at = len(one.log)

    def _let_go(self, silent: int) -> None:
        """What began with a key read twice and has not gone on for so many reads follows nobody: a sampler that pads
        reads some twice."""
        for one in self.epochs[1:]:
            # Of a pass that is nearly over, another one may have taken the last reads for its own.
            if one.passed_over > silent and (not one.trusted or (one.agenda and one.left <= one.size // 50)):
                self.epochs.remove(one)
                one.disband()
                for leader in self.epochs:
                    if one in leader.followers:
                        leader.followers.remove(one)

    def _count(self, key: int) -> None:
        """A key that the oldest pass has read is a repeat, unless a pass that is believed expects it."""
        if any(one.trusted and one.unread(key) for one in self.epochs[1:]):
            return
        if self._repeats == 0:
            self._clean = self._by_chance
            self._reads_then, self._log_then = self._reads, len(self.epochs[0].log)
        self._repeats += 1
        self._fresh_repeats += self.epochs[0].done[key] >= self._log_then
        if len(self.epochs) > 1 and not any(one.unread(key) for one in self.epochs):
            self._thirds += 1

    def _pass_of(self, key: int) -> Epoch | None:
        if len(self.epochs) == 1:
            return self.epochs[0] if self.epochs[0].unread(key) else None
        unread = [one for one in self.epochs if one.unread(key)]
        if len(unread) < 2:
            return unread[0] if unread else None
        # Who is next to where this key stands; else the oldest that expects it.
        ordered = [one for one in unread if one.trusted and one.order_known]
        nearest = min(ordered, key=lambda one: one.apart(key), default=None)
        if nearest is not None and (nearest.is_at(key) or (nearest is unread[0] and nearest.fits(key))):
            return nearest
        return next((one for one in unread if one.to_come(key)), unread[0])

    def _repeated(self, key: int, key_count: int, readers: int, now: float) -> Epoch | None:
        """All passes have read this key before."""
        newest = self.epochs[-1]
        if newest.is_sampled and newest.left > 0 and 0 <= newest.place[key] < _PADDING:
            return None
        tail = _tail(newest, readers)
        if newest.is_sampled and newest.left <= tail:
            newest.begin_next(now)
            self._clear_evidence()
            return newest
        if newest.trusted and newest.agenda and newest.left <= tail and newest.leader is None and not self.free:
            return self._follow(newest, key_count, now, trusted=True)
        if self.free:
            # Chance is still at work: watch anew.
            self._restart(key_count, now)
            return self.epochs[0]
        if len(self.epochs) >= 2 and not (newest.trusted and len(self.epochs) < self._passes_max(key_count)):
            return None
        return self._follow(newest.leader or newest, key_count, now, trusted=False)

    def _follow(self, leader: Epoch, key_count: int, now: float, *, trusted: bool) -> Epoch:
        """A pass that begins over what `leader` has read and, if that is the whole of it, what it has left."""
        keys: Iterator[int] = iter(leader.log)
        if trusted:
            keys = chain(keys, (key for key in leader.agenda if leader.unread(key)))
        order = leader.next_order if trusted else ORDER_OPEN
        one = Epoch(keys, key_count, now, order=order, trusted=trusted)
        one.number = leader.number + 1
        one.period_s = now - leader.began if trusted else 0.0
        one.go_on_like(leader)
        one.was_told = trusted and leader.told
        if trusted:
            one.draw_after(leader)
        if not trusted:
            leader.lead(one)
        self.epochs.append(one)
        if len(self.epochs) > self._passes_max(key_count):
            self.epochs.pop(0).disband()
        return one

    def _passes_max(self, key_count: int) -> int:
        return _PASSES_MAX if key_count <= _KEYS_MANY else _PASSES_MAX_OF_MANY

    @property
    def _is_told(self) -> bool:
        """What it reads next is known, be it drawn by chance."""
        return any(one.told and one.left > 0 for one in self.epochs)

    def _is_chance(self) -> bool:
        if any(one.order > _LEANS for one in self.epochs[1:]):
            return False
        if self._thirds >= 3 and self._thirds > 0.02 * self._reads:
            return True
        if self._clean >= _CLEAN:
            return False
        return self._repeats >= 8 and 0.4 * self._by_chance <= self._repeats <= 1.6 * self._by_chance + 3

    def _is_another_part(self) -> bool:
        """After an epoch that did not come to its end, keys are read of which as many were read in it as chance would
        have it, and none twice: another part of the set, as each node of several gets one in each epoch."""
        oldest = self.epochs[0]
        expected = (self._reads - self._reads_then) * self._log_then / oldest.size
        if (
            self._clean < _CLEAN
            or expected < (_ANEW / 4 if self._chosen else _ANEW)
            or any(one.order > _LEANS for one in self.epochs)
        ):
            return False
        return 0.7 * expected <= self._repeats <= 1.4 * expected and self._fresh_repeats <= max(1, expected / _ANEW)

    def _begin_another_part(self, names: Names, now: float) -> None:
        oldest = self.epochs[0]
        self._chosen = self._log_then if self._log_then < _NEARLY_ALL * oldest.size else 0
        one = Epoch(oldest.agenda, len(names.keys), now, order=ORDER_UNLIKELY, trusted=not self._chosen)
        for key in chain(oldest.log[self._log_then :], *(later.log for later in self.epochs[1:])):
            if one.unread(key):
                one.read(key, now)
        one.go_on_like(oldest)
        self.epochs = [one]
        self._clear_evidence()
        self._reads = len(one.log)
        self._by_chance = self._reads**2 / (2 * one.size)

    def _restart(self, key_count: int, now: float) -> None:
        self.epochs = [Epoch((), key_count, now, order=ORDER_UNLIKELY, trusted=not self._chosen)]
        self._clear_evidence()

    def _clear_evidence(self) -> None:
        self._repeats = self._fresh_repeats = self._thirds = self._reads = 0
        self._by_chance = self._clean = 0.0

    def _settle(
        self, one: Epoch, readers: int, names: Names, orders: Callable[[], Sequence[Order]], now: float
    ) -> None:
        """What the read of `one` has made clear."""
        if self.free:
            if self._by_chance >= _CLEAN:
                self.free = False
                self._clear_evidence()
                one.expect(key for key, size in enumerate(names.sizes) if size >= 0 or names.rank_of(key) >= 0)
            return
        if not one.trusted:
            self._see_whether_proven(one, readers)
        oldest = self.epochs[0]
        if len(self.epochs) > 1 and oldest.passed_over > max(16, 4 * readers) and oldest is not one:
            self.epochs.pop(0).disband()
            if not one.told and all(4 * one.place[key] > len(one.agenda) for key in one.log):
                # It began late in what was read: a run that was taken up again will read what was left of it.
                one.expect(key for key in oldest.agenda if oldest.unread(key))
            if not one.trusted:
                one.trusted = True
                one.period_s = max(one.began - oldest.began, 0.0)
            self._clear_evidence()
        if one.agenda and one.left == 0 and one.leader is None and not self._is_guess(one, names):
            if len(self.epochs) > 1 and one is oldest and self.epochs[1].trusted and self._tail_of(one):
                self.epochs.pop(0).disband()
            else:
                one.begin_next(now)
            self._clear_evidence()
        elif one.number == 0 and not one.told and one.draw is None:
            self._learn(one, names, orders)

    def _see_whether_proven(self, one: Epoch, readers: int) -> None:
        if self._chosen and one is self.epochs[0] and len(one.log) > max(1.25 * self._chosen, one.size / 2):
            # This is more than a part.
            one.trusted, self._chosen = True, 0
        # More than a sampler reads twice that gives each reader as many.
        if one.order > _FOLLOWS and len(one.log) > readers:
            one.trusted = True
            one.number = max(1, one.number)

    def _is_guess(self, one: Epoch, names: Names) -> bool:
        """What it was thought to read is less than there is: it may well go on. Else its first repeat is its end."""
        return one.number == 0 and not one.told and one.draw is None and len(one.agenda) < len(names.listed)

    def _tail_of(self, one: Epoch) -> bool:
        """Its successor has begun already, and is none that has followed it from its beginning on."""
        successor = self.epochs[1]
        return successor.number == one.number + 1 and (successor.leader is not one or successor.joined > one.size / 2)

    # -- the first pass -----------------------------------------------------------------------------------------

    def _learn(self, one: Epoch, names: Names, orders: Callable[[], Sequence[Order]]) -> None:
        if _ALIKE <= len(one.log) <= 8 * _ALIKE and one.order <= ORDER_LIKELY:
            for order in orders():
                leader = order.leader or order if isinstance(order, Epoch) else order
                if leader is not one and _alike(one.log[-_ALIKE:], order, len(names.keys)):
                    one.plan(order.sequence(), order=ORDER_LIKELY)
                    one.number, one.period_s = 1, order.period_s
                    if isinstance(leader, Epoch) and leader.number == 0:
                        leader.lead(one)
                    return
        rank = names.rank_of(one.log[-1])
        if rank < 0:
            return
        has_changed = self._part.read(rank, len(names.listed))
        if one.is_dealt and one.place[one.log[-1]] < 0:
            # There is a worker who had not been seen.
            one.is_dealt, has_changed = False, True
        if has_changed and not one.is_dealt:
            one.plan(self._part.of(names.listed), order=one.order)

    def listed(self, names: Names) -> None:
        """A LIST has shown which keys there are."""
        for one in self.epochs:
            if one.is_shuffled and one.drawn_of != len(names.listed):
                # What was drawn, was drawn of less.
                one.undraw(refuted=False)
            one.shuffles_tried = {}
            if one.number == 0 and not one.told and one.draw is None and not self.free:
                one.look_at = min(one.look_at, max(LOOK_FIRST, len(one.log)))
                one.is_dealt = False
                self._part = _Part()
                for key in one.log:
                    if (rank := names.rank_of(key)) >= 0:
                        self._part.read(rank, len(names.listed))
                one.plan(self._part.of(names.listed), order=ORDER_UNLIKELY)

    def told(self, keys: Sequence[int], start: int, total: int, key_count: int, now: float) -> Epoch:
        """What one worker will read, exactly: of the pass that is under way, or of the next one if these were read.
        Which one that is."""
        self.last, self.free = now, False
        self.grow(key_count)
        if self.epochs and len(self.epochs[0].log) < _HARDLY_BEGUN:
            # It is the one that these are told of, as its epoch begins.
            self._let_go(-1)
        one = self.epochs[-1] if self.epochs else None
        if one is None or 2 * sum(one.unread(key) for key in keys) < len(keys):
            period_s = one.seconds(now) if one is not None and one.log else 0.0
            new = Epoch((), key_count, now, order=ORDER_UNLIKELY)
            new.period_s = period_s
            if one is not None:
                new.go_on_like(one)
            one = new
            self.epochs = [*self.epochs[1 - self._passes_max(key_count) :], one]
        elif start == 0 and one.told and one.log and _is_another_order(keys, one):
            # The run was begun anew, or its epoch cut short.
            new = Epoch((), key_count, now, order=ORDER_UNLIKELY)
            new.period_s, new.number = one.seconds(now), one.number
            new.go_on_like(one)
            one = self.epochs[-1] = new
        if start == 0:
            # Plans that repeat are as good for the next pass as an order that was learned.
            one.repeats = len(keys) > 0 and all(0 <= one.place[key] <= 2 * one.tolerance for key in keys[:_ALIKE])
        one.tell(keys, start, total)
        one.trusted = True
        one.last = now
        return one

    def withdraw(self, one: Epoch, keys: Set[int], names: Names) -> None:
        """`one` was told to expect these, which are unread, and is not to any more."""
        one.withdraw(keys)
        for later in self.epochs[self.epochs.index(one) + 1 :]:
            if not later.told:
                # It began as one that follows, and took over what `one` had still to read.
                later.withdraw(keys)
        if one.told:
            return
        if not one.log and not one.agenda:
            self.epochs.remove(one)
        elif one.number == 0 and not one.agenda:
            self.listed(names)


def _tail(one: Epoch, readers: int) -> int:
    """So little of it may be left unread when the next one begins."""
    tail = min(2 * readers + one.size // 50, one.size // 2)
    if not one.is_sampled:
        return tail
    # It is certain which they are, and a loader leaves out what does not fill its last batch.
    return max(tail, min(one.size // 8, max(_BATCH, one.batch * one.workers)))


def _is_another_order(keys: Sequence[int], one: Epoch) -> bool:
    """These were told to `one` before, and not in this order."""
    places = [one.place[key] for key in dict.fromkeys(keys) if one.place[key] >= 0]
    ascents = sum(sooner < later for sooner, later in pairwise(places))
    return 2 * len(places) > len(keys) and 4 * ascents < 3 * (len(places) - 1)


def _alike(reads: array[int], order: Order, key_count: int) -> bool:
    """These reads stand close together in `order`, as only the same order has it."""
    near = max(12, key_count // 32)
    places = [order.where(key) for key in reads]
    return 3 * near < key_count and min(places) >= 0 and max(places) - min(places) <= near


class _Part:
    """Which part of a listed dataset this client reads, guessed from what it read: every n-th key, or a run of them."""

    def __init__(self) -> None:
        self._count = 0
        self._first = self._lowest = self._highest = -1
        self._step = 0
        self._ascents = 0
        self._bounds = (0, 0, 1, 0)
        self._next_look = 4

    def read(self, key: int, listed: int) -> bool:
        """True: the guess has changed."""
        if key >= listed:
            return False
        self._count += 1
        if self._first < 0:
            self._first = self._lowest = self._highest = key
        self._step = gcd(self._step, key - self._first)
        # Readers beside each other overtake each other a little.
        self._ascents += key > self._highest - (self._count // 4 or 1)
        if key < self._lowest:
            self._lowest = key
        elif key > self._highest:
            self._highest = key
        if self._count < self._next_look and (self._bounds[1] == 0 or self.has(key)):
            return False
        self._next_look = max(self._next_look, self._count + max(2, self._count // 4))
        before = self._bounds
        self._bounds = self._guess(listed)
        return self._bounds != before

    def has(self, key: int) -> bool:
        low, high, step, rest = self._bounds
        return low <= key < high and key % step == rest

    def of(self, listed: array[int]) -> array[int]:
        low, high, step, rest = self._bounds
        return listed[low + (rest - low) % step : high : step]

    def _guess(self, listed: int) -> tuple[int, int, int, int]:
        step = max(1, self._step) if self._count >= 4 else 1
        # So many reads spread over a run leave about this much of it beyond the outermost on either side.
        beyond = 2 * (self._highest - self._lowest + step) // self._count + step
        ascending = self._ascents > 0.8 * self._count
        low = max(0, self._lowest - beyond)
        high = listed if ascending else min(listed, self._highest + 1 + beyond)
        return low, high, step, self._first % step
