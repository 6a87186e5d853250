"""The orders that PyTorch's samplers draw, worked out from their seeds.

A training script that is to be reproducible gives its sampler a seed, and that is most often a small number:
`DistributedSampler` draws each epoch's order from `seed + epoch` (0 by default), `RandomSampler` from the generator
that it was given (https://docs.pytorch.org/docs/stable/notes/randomness.html). Then nothing in the new order of an
epoch is chance: who knows the first few reads can find the seed, and from it all the others.

`torch.randperm` on the CPU is a Fisher-Yates shuffle from the front, by the 32-bit numbers of an MT19937 (M. Matsumoto,
T. Nishimura, 1998), which Python's `random` has, too.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Generator, Iterable, Iterator, Sequence, Set
from itertools import pairwise
from math import gcd, sqrt
from random import Random
from typing import NamedTuple, TypeVar

T = TypeVar("T")

# Seeds that are tried, and those that people like beyond them, with the epochs that follow each.
_SEEDS = 4096
_LIKED = (12345, 31337, 123456)
_EPOCHS = 128
# Two numbers that a `DataLoader` takes for its workers' seeds from the generator that it was given, before each epoch.
_FOR_WORKERS = 2
# Numbers that are looked at of each seed, and of one that may be it: at these lengths of its beginning.
_GLANCE, _LOOKS = 32, (16, 32, 64, 128, 256)
# Of an order of which more is read than one part in so many, no beginning is to be seen any more.
_BEGUN = 3
# More reads than that among the first numbers prove one of the few orders that may follow a known one.
_LITTLE_PROOF = 3
# Reads that are looked at.
_READS_MAX = 1296
# Every n-th of an order is taken for a rank's share only after so many reads: before, it may be each worker's first.
_PROOF_OF_SHARE = 48
# Ranks, or the workers of small batches, overtake each other; what is farther apart are batches. Of a batch that has
# so many reads the first is there. More in a row than the ranks of a node are a batch.
_GAP, _SETTLED, _RUN = 8, 3, 17
# Of those who read beside each other one reads after another more often than this: once in so many reads.
_SWITCHED = 16
# Of the reads so far, so many were the very first of the order.
_WHOLE = 0.75
# Steps of work that are done at once.
_AT_ONCE = 512
_WORDS, _STATE_VERSION = 624, 3


class Draw(NamedTuple):
    """Where a sampler's generator stood before an epoch: made from `seed`, `spent` numbers taken from it. What one
    process reads is every `share`-th of the order, from number `first` on."""

    seed: int
    spent: int = 0
    share: int = 1
    first: int = 0


def next_draws(draw: Draw, count: int) -> tuple[Draw, ...]:
    """Where it may stand an epoch over `count` objects later."""
    taken = count - 1
    return (
        draw._replace(seed=draw.seed + 1),  # DistributedSampler
        draw,  # DistributedSampler, of which nobody called set_epoch
        # RandomSampler draws another order at the end, of which it needs nothing.
        *(draw._replace(spent=draw.spent + orders * taken + more) for orders in (2, 1) for more in (0, _FOR_WORKERS)),
    )


def order_of(draw: Draw, count: int) -> Generator[None, None, array[int]]:
    """What it draws of `count` objects, as their numbers; yields now and then."""
    numbers = _Numbers(draw.seed)
    yield from numbers.skip(draw.spent)
    order = array("i")
    for begin in range(0, count, 16 * _AT_ONCE):
        order.extend(range(begin, min(begin + 16 * _AT_ONCE, count)))
        yield
    for begin in range(0, count - 1, _AT_ONCE):
        end = min(begin + _AT_ONCE, count - 1)
        for place, number in enumerate(numbers.take(end - begin), begin):
            at = place + number % (count - place)
            order[place], order[at] = order[at], order[place]
        yield
    own = order[draw.first :: draw.share]
    if len(own) < -(-count // draw.share):
        # Each rank gets as many: there are some of the first again.
        own.append(order[draw.first + draw.share * len(own) - count])
    return own


def at_once(work: Generator[None, None, T]) -> T:
    """Its result, for who has the time."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result


def order_at_once(draw: Draw, count: int) -> array[int]:
    """See `order_of`: a million take most of a second."""
    return at_once(order_of(draw, count))


def turn_of(number: int, batch: int, workers: int) -> int:
    """As the how-many-th it is read of an order that workers read beside each other, a batch of each in turn."""
    begun, rest = divmod(number, batch * workers)
    worker, each = divmod(rest, batch)
    return begun * batch * workers + each * workers + worker


def in_batches(order: array[int], batch: int, workers: int) -> Generator[None, None, array[int]]:
    """All of an order by `turn_of`; yields now and then."""
    if workers == 1:
        return order
    read, round_of_all = array("i"), batch * workers
    for begin in range(0, len(order), round_of_all):
        some = order[begin : begin + round_of_all]
        for each in range(min(batch, len(some))):
            read.extend(some[each::batch])
            if each % _AT_ONCE == 0:
                yield
    return read


def out_of_batches(read: array[int], batch: int, workers: int) -> Generator[None, None, array[int]]:
    """The order of which `in_batches` made this; yields now and then."""
    if workers == 1:
        return read
    order, round_of_all = array("i", read), batch * workers
    for begin in range(0, len(read), round_of_all):
        some = read[begin : begin + round_of_all]
        turns = yield from in_batches(array("i", range(len(some))), batch, workers)
        for number, key in zip(turns, some, strict=True):
            order[begin + number] = key
        yield
    return order


class _Run:
    """Places that were read one after the other, about: `next` follows on the last."""

    __slots__ = ("first", "length", "next")

    def __init__(self, place: int) -> None:
        self.first = self.next = place
        self.length = 0


def batches_of(places: Sequence[int]) -> tuple[int, int] | None:
    """How large the batches are, and how many workers read one each, by the places in their order of what was read so
    far. 1, 1 is one after the other. None: not clear, or no process reads so."""
    # Ranks of one node read about what the others do.
    found = _batches_of(places, 0) or _batches_of(places, _GAP)
    if found is None:
        count = len(places)
        if sum(place < count for place in places) >= max(_RUN, _WHOLE * count):
            # Whoever reads: nothing is left out.
            return 1, 1
    return found


def _batches_of(places: Sequence[int], gap: int) -> tuple[int, int] | None:
    runs, of_each = _runs_of(places, gap)
    if len(runs) == 1:
        return (1, 1) if runs[0].next <= len(places) + _GAP else None
    starts = [run.first for run in runs if run.length >= _SETTLED]
    batch = gcd(*starts)
    if sum(one is not after for one, after in pairwise(of_each)) * _SWITCHED < len(places):
        return None  # one after the other; what was heard of late looks like another one's
    if len(places) < _RUN * len(runs) or batch <= _GAP:
        # As some of a node's ranks read, of which others are on other nodes; or it is too early.
        return None
    under_way: dict[_Run, int] = {}
    workers = 0
    for number, (place, run) in enumerate(zip(places, of_each, strict=True)):
        under_way[run] = number
        if (place + 1) % batch == 0:
            # The last one of its batch.
            del under_way[run]
        workers = max(workers, len(under_way))
    if any(len(places) - number > _RUN * workers for number in under_way.values()):
        # Nobody goes on there.
        return None
    return batch, workers


def _runs_of(places: Sequence[int], gap: int) -> tuple[list[_Run], list[_Run]]:
    """All of them, and that of each place; what is no farther apart is one."""
    runs: list[_Run] = []
    of_each: list[_Run] = []
    heads: dict[int, _Run] = {}
    for place in places:
        run = heads.get(place)
        if run is None:
            run = next(filter(None, (heads.get(place + apart) for apart in range(-gap, gap + 1))), None)
        if run is None:
            run = _Run(place)
            runs.append(run)
        elif heads.get(run.next) is run:
            del heads[run.next]
        run.first, run.next = min(run.first, place), max(run.next, place + 1)
        run.length += 1
        heads[run.next] = run
        of_each.append(run)
    return runs, of_each


class Seeds:
    """The first numbers of each seed that is tried, made when they are needed for the first time: 0.1 ms each."""

    def __init__(self) -> None:
        self._seeds = array("I", [*range(_SEEDS), *(seed + epoch for seed in _LIKED for epoch in range(_EPOCHS))])
        self._numbers: array[int] = array("I")

    def found(self, reads: Sequence[int], count: int) -> Generator[None, None, Draw | None]:
        """The draw of `count` objects that began with these reads, in about this order; None: none of those that are
        tried. Yields now and then."""
        read = frozenset(reads[:_READS_MAX])
        each = _GLANCE + _FOR_WORKERS
        if not is_enough(len(reads), count):
            return None
        # More than chance gives, but for one seed in some hundred, and what every sixteenth of an order gives.
        by_chance = _GLANCE * len(read) / count
        least = max(2, int(1 + by_chance + 3 * sqrt(by_chance)))
        for index, seed in enumerate(self._seeds):
            if len(self._numbers) < (index + 1) * each:
                self._numbers.extend(_Numbers(seed).take(each))
                yield
            elif index % 16 == 0:
                yield
            numbers = self._numbers[index * each : (index + 1) * each]
            for spent in (0, _FOR_WORKERS):
                if sum(map(read.__contains__, _drawn(numbers[spent : spent + _GLANCE], count))) >= least:
                    found = _if_proven(Draw(seed, spent), read, count)
                    yield
                    if found is not None:
                        return found
        return None


def is_enough(reads: int, count: int) -> bool:
    """So many reads may prove an order of so many objects."""
    return _LOOKS[0] <= reads <= count // _BEGUN


def _proof(by_chance: float) -> float:
    """So many of the first numbers were read of no order by chance, which gives so many in the mean, but once in a
    billion (Poisson's distribution, rounded up)."""
    return 6 + 6 * sqrt(by_chance) + by_chance


def following(
    draws: Iterable[Draw], reads: Sequence[int], count: int, batch: int = 1, workers: int = 1
) -> Generator[None, None, Draw | None]:
    """Which of these few began with these reads of workers in batches; None: none of them, or too few have come to
    tell. Yields now and then."""
    read = frozenset(reads)
    for draw in draws:
        # What would have been read four times as far in the order.
        expected = {
            draw.first + draw.share * (worker * batch + each)
            for each in range(1 + 4 * len(read) // workers)
            for worker in range(workers)
        }
        numbers = _Numbers(draw.seed)
        yield from numbers.skip(draw.spent)
        drawn = _drawn(numbers.take(min(max(expected) + 1, count - 1)), count)
        by_chance = len(expected) * len(read) / count
        seen = sum(number in read for place, number in enumerate(drawn) if place in expected)
        if seen > _LITTLE_PROOF + 3 * by_chance:
            return draw
        yield
    return None


def _if_proven(draw: Draw, read: Set[int], count: int) -> Draw | None:
    """It, with the share that was read of it; None: what was read is another one's."""
    places = _places_read(draw, read, count)
    if not any(bisect_left(places, look) >= _proof(look * len(read) / count) for look in _LOOKS):
        return None
    found = _with_share(draw, places)
    return found if found.share == 1 or len(read) >= _PROOF_OF_SHARE else None


def as_read(draw: Draw, reads: Iterable[int], count: int) -> Draw:
    """A draw that was found, with the share that was read of it by now: others may have begun meanwhile."""
    return _with_share(draw, _places_read(draw, frozenset(reads), count))


def _places_read(draw: Draw, read: Set[int], count: int) -> list[int]:
    """Of the first ones that it draws."""
    numbers = _Numbers(draw.seed)
    for _ in numbers.skip(draw.spent):
        pass
    drawn = _drawn(numbers.take(min(_LOOKS[-1], count - 1)), count)
    return [place for place, number in enumerate(drawn) if number in read]


def _with_share(draw: Draw, places: Sequence[int]) -> Draw:
    share = gcd(*(place - places[0] for place in places))
    return draw._replace(share=share, first=places[0] % share)


def _drawn(numbers: Iterable[int], count: int) -> Iterator[int]:
    """The beginning of an order of `count`, from a generator's numbers."""
    moved: dict[int, int] = {}
    for place, number in enumerate(numbers):
        at = place + number % (count - place)
        yield moved.get(at, at)
        moved[at] = moved.get(place, place)


class _Numbers:
    """What `torch.Generator().manual_seed(seed)` gives, 32 bits at a time."""

    def __init__(self, seed: int) -> None:
        word = seed & 0xFFFFFFFF
        words = [word]
        for index in range(1, _WORDS):
            word = (1812433253 * (word ^ word >> 30) + index) & 0xFFFFFFFF
            words.append(word)
        self._random = Random(0)  # noqa: S311 nothing is to be kept from anybody
        self._random.setstate((_STATE_VERSION, (*words, _WORDS), None))

    def take(self, count: int) -> array[int]:
        numbers = array("I")
        if count > 0:
            numbers.frombytes(self._random.getrandbits(32 * count).to_bytes(4 * count, "little"))
        return numbers

    def skip(self, count: int) -> Generator[None, None, None]:
        while count > 0:
            some = min(count, 16 * _AT_ONCE)
            self._random.getrandbits(32 * some)
            count -= some
            yield
